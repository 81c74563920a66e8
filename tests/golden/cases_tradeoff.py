"""Trade-off functions: the calculus of f-DP, and Gaussian differential privacy in closed form."""

from functools import partial

import numpy as np

from dpjax.accounting import gdp, tradeoff
from dpjax.accounting.kinds.wishart import ChiSquare

PAIR = tradeoff.Discrete([0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4])
GAUSSIAN, LAPLACE = tradeoff.Gaussian(1.2), tradeoff.Laplace(0.8)
CURVES = {
    "gaussian": GAUSSIAN,
    "laplace": LAPLACE,
    "identity": tradeoff.Identity(),
    "approximate": tradeoff.ApproximateDP(1.0, slack=0.01),
    "chi square": ChiSquare(30, 2.0),
    "distributions": PAIR,
    "profile": tradeoff.from_profile([0.0, 0.5, 1.0], [0.4, 0.2, 0.05]),
    "piecewise linear": tradeoff.piecewise_linear([0.0, 0.2, 1.0], [0.9, 0.4, 0.0]),
    "mixture of gaussian": tradeoff.mixture(GAUSSIAN, 0.1),
    "subsampled gaussian": tradeoff.subsample(GAUSSIAN, 0.1),
    "subsampled laplace": tradeoff.subsample(LAPLACE, 0.3),
    "group of laplace": tradeoff.group(tradeoff.Laplace(0.4), 3),
    "group of gaussian": tradeoff.group(tradeoff.Gaussian(0.4), 3),
    "group of distributions": tradeoff.group(PAIR, 2),
}
COMPOSED = {
    "gaussian and laplace": lambda: tradeoff.compose(GAUSSIAN, LAPLACE),
    "gaussians": lambda: tradeoff.compose(GAUSSIAN, tradeoff.Gaussian(0.5)),
    "distributions": lambda: tradeoff.compose(PAIR, CURVES["approximate"]),
    "laplace 10 times": lambda: tradeoff.power(tradeoff.Laplace(0.2), 10),
    "subsampled gaussian 20 times": lambda: tradeoff.power(CURVES["mixture of gaussian"], 20),
}


def _values(curve):
    """A curve, its inverse and its symmetric hull at a few points."""
    alphas = np.array([0.0, 1e-6, 1e-3, 0.05, 0.3, 0.7, 0.99])
    return {
        "f": curve(alphas),
        "inverse": curve.inverse()(alphas),
        "symmetrized": curve.symmetrized()(alphas),
        "delta": curve.delta(np.array([0.0, 0.5, 2.0])),
        "epsilon": curve.epsilon(np.array([1e-8, 1e-5, 1e-2])),
    }


def _bounds(compose):
    return {end: _values(curve) for end, curve in compose()._asdict().items()}


def _functionals(curve):
    moments = tradeoff.privacy_loss_moments(curve)
    return {**moments._asdict(), "clt mu": tradeoff.composition_clt_mu(moments, 100)}


def _gdp():
    return {
        "delta": gdp.delta(1.3, np.array([0.0, 0.5, 3.0, 20.0])),
        "epsilon": gdp.epsilon(1.3, np.array([1e-12, 1e-5, 0.1])),
        "clt mu": gdp.poisson_clt_mu(1.1, 256 / 60_000, 14_062),
    }


CASES = {
    "gdp": _gdp,
    **{name: partial(_values, curve) for name, curve in CURVES.items()},
    **{f"composed {name}": partial(_bounds, compose) for name, compose in COMPOSED.items()},
    **{
        f"functionals of {name}": partial(_functionals, CURVES[name])
        for name in ("gaussian", "laplace", "subsampled gaussian", "distributions")
    },
}
