"""Trade-off functions: the calculus of f-DP, and Gaussian differential privacy in closed form."""

from functools import partial

import numpy as np

from golden import api

P, Q = [0.5, 0.3, 0.15, 0.05], [0.1, 0.2, 0.3, 0.4]
CURVES = {
    "gaussian": lambda: api.curve("gaussian", 1.2),
    "laplace": lambda: api.curve("laplace", 0.8),
    "identity": lambda: api.curve("identity"),
    "approximate": lambda: api.curve("approximate", 1.0, 0.01),
    "chi square": lambda: api.curve("chi square", 30, 2.0),
    "distributions": lambda: api.curve("distributions", P, Q),
    "profile": lambda: api.curve("profile", np.array([0.0, 0.5, 1.0]), np.array([0.4, 0.2, 0.05])),
    "piecewise linear": lambda: api.curve(
        "piecewise linear", np.array([0.0, 0.2, 1.0]), np.array([0.9, 0.4, 0.0])
    ),
    "mixture of gaussian": lambda: api.curve("mixture", api.curve("gaussian", 1.2), 0.1),
    "subsampled gaussian": lambda: api.curve("subsample", api.curve("gaussian", 1.2), 0.1),
    "subsampled laplace": lambda: api.curve("subsample", api.curve("laplace", 0.8), 0.3),
    "group of laplace": lambda: api.curve("group", api.curve("laplace", 0.4), 3),
    "group of gaussian": lambda: api.curve("group", api.curve("gaussian", 0.4), 3),
    "group of distributions": lambda: api.curve("group", api.curve("distributions", P, Q), 2),
}
COMPOSED = {
    "gaussian and laplace": lambda: api.compose(CURVES["gaussian"](), CURVES["laplace"]()),
    "gaussians": lambda: api.compose(CURVES["gaussian"](), api.curve("gaussian", 0.5)),
    "distributions": lambda: api.compose(CURVES["distributions"](), CURVES["approximate"]()),
    "laplace 10 times": lambda: api.power(api.curve("laplace", 0.2), 10),
    "subsampled gaussian 20 times": lambda: api.power(CURVES["mixture of gaussian"](), 20),
}


def _values(make):
    return api.curve_values(make())


def _ends(make):
    return {end: api.curve_values(one) for end, one in zip(("lower", "upper"), make(), strict=True)}


def _functionals(make):
    return api.functionals(make(), 100)


CASES = {
    "gdp": api.gdp_numbers,
    **{name: partial(_values, make) for name, make in CURVES.items()},
    **{f"composed {name}": partial(_ends, make) for name, make in COMPOSED.items()},
    **{
        f"functionals of {name}": partial(_functionals, CURVES[name])
        for name in ("gaussian", "laplace", "subsampled gaussian", "distributions")
    },
}
