"""Accounting: privacy of events as epsilon, privacy profile, trade-off function and attack risk."""

from dpjax.accounting import gdp, kinds, log_moments, risk, tradeoff  # noqa: F401
from dpjax.accounting.accountants import (
    EpsilonBounds,
    ProfileBounds,
    epsilon,
    epsilon_bounds,
    profile_bounds,
)
from dpjax.accounting.calibration import calibrate, max_num_steps
from dpjax.accounting.event_tradeoff import tradeoff_bounds, tradeoff_curve
from dpjax.accounting.events import UnsupportedEventError
from dpjax.accounting.kinds.approximate_dp import ApproximateDpEvent

__all__ = [
    "ApproximateDpEvent",
    "EpsilonBounds",
    "ProfileBounds",
    "UnsupportedEventError",
    "calibrate",
    "epsilon",
    "epsilon_bounds",
    "gdp",
    "log_moments",
    "max_num_steps",
    "profile_bounds",
    "risk",
    "tradeoff",
    "tradeoff_bounds",
    "tradeoff_curve",
]
