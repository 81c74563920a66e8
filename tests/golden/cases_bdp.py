"""Accounts of Bayesian differential privacy, from fixed norms."""

from functools import partial

import numpy as np

from golden import api
from golden.cases_certificates import ADD, poisson

_RNG = np.random.default_rng(3)
NORMS = np.exp(0.5 * _RNG.normal(size=(6, 40)) - 1.0)
MASK = _RNG.uniform(size=NORMS.shape) < 0.8


def _account(norms=NORMS, mask=None, noise=1.5, **options):
    account = api.bdp_account(poisson(noise, 0.02, 20, ADD, n=2000), norms, mask, **options)
    return api.bdp_numbers(account, 1e-3)


def _at_bound():
    mechanism = poisson(1.5, 0.02, 20, ADD, n=2000)
    account = api.bdp_at_bound(api.bdp_account(mechanism, NORMS), 4)
    return api.bdp_numbers(account, 1e-3)


def _bernstein():
    return _account(estimator="empirical_bernstein", failure_probability=1e-9)


CASES = {
    "all norms": _account,
    "masked": partial(_account, mask=MASK),
    "few orders": partial(_account, orders=(1, 4, 16, 64)),
    "clipped": partial(_account, norms=4 * NORMS),
    "empirical Bernstein": _bernstein,
    "lost steps at the bound": _at_bound,
    "divergences": partial(api.bdp_divergences, (1, 2, 8), np.array([0.0, 0.1, 1.0, 3.0])),
}
