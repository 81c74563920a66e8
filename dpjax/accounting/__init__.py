"""Accounting: privacy of events as epsilon, privacy profile, trade-off function and attack risk."""

from dpjax.accounting import gdp, kinds, moments_accountant, risk, tradeoff  # noqa: F401
from dpjax.accounting.accountants import epsilon
from dpjax.accounting.bounds import (
    EpsilonBounds,
    ProfileBounds,
    epsilon_bounds,
    profile_bounds,
)
from dpjax.accounting.calibration import calibrate, max_num_steps
from dpjax.accounting.event_tradeoff import tradeoff_bounds, tradeoff_curve
from dpjax.accounting.events import UnsupportedEventError

__all__ = [
    "EpsilonBounds",
    "ProfileBounds",
    "UnsupportedEventError",
    "calibrate",
    "epsilon",
    "epsilon_bounds",
    "gdp",
    "max_num_steps",
    "moments_accountant",
    "profile_bounds",
    "risk",
    "tradeoff",
    "tradeoff_bounds",
    "tradeoff_curve",
]
