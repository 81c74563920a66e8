"""Trade-off functions of f-differential privacy: evaluate, compose, subsample, compare.

A trade-off function f = T(P, Q) is a ``TradeOff``: calling it gives the least type II error at a
level, and it has ``delta(epsilon)``, ``epsilon(delta)`` and ``inverse()``. It is asymmetric in
general; ``symmetrized()`` is what holds for neighbours in both orders.
"""

from dpjax.accounting.tradeoff.base import Discrete, Inverse, Symmetrized, TradeOff
from dpjax.accounting.tradeoff.calculus import (
    Group,
    Mixture,
    distance,
    group,
    is_at_least,
    mixture,
    subsample,
)
from dpjax.accounting.tradeoff.composition import (
    PrivacyLossMoments,
    TradeOffBounds,
    compose,
    composition_clt_mu,
    power,
    privacy_loss_moments,
)
from dpjax.accounting.tradeoff.families import (
    ApproximateDP,
    Gaussian,
    Identity,
    Laplace,
    from_distributions,
    from_log_likelihood_ratios,
    from_profile,
    gaussian_delta,
    gaussian_type_two,
    piecewise_linear,
)

__all__ = [
    "ApproximateDP",
    "Discrete",
    "Gaussian",
    "Group",
    "Identity",
    "Inverse",
    "Laplace",
    "Mixture",
    "PrivacyLossMoments",
    "Symmetrized",
    "TradeOff",
    "TradeOffBounds",
    "compose",
    "composition_clt_mu",
    "distance",
    "from_distributions",
    "from_log_likelihood_ratios",
    "from_profile",
    "gaussian_delta",
    "gaussian_type_two",
    "group",
    "is_at_least",
    "mixture",
    "piecewise_linear",
    "power",
    "privacy_loss_moments",
    "subsample",
]
