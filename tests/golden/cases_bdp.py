"""Accounts of Bayesian differential privacy, from fixed norms."""

from functools import partial

import numpy as np

from dpjax import bdp
from dpjax.bdp.conversion import best_order
from golden.cases_certificates import ADD, poisson

_RNG = np.random.default_rng(3)
NORMS = np.exp(0.5 * _RNG.normal(size=(6, 40)) - 1.0)
MASK = _RNG.uniform(size=NORMS.shape) < 0.8


def account_numbers(account, delta=1e-3):
    certificate = bdp.certificate(account, delta, share=0.99)
    return {
        "costs": account.costs,
        "strong": tuple(bdp.epsilon(account, delta)),
        "weak": tuple(bdp.epsilon(account, delta, definition="weak")),
        "delta at 0.2": tuple(bdp.delta(account, 0.2)),
        "order": best_order(account, delta),
        "certificate": tuple(certificate.epsilon),
        "percentiles": [epsilon for _, epsilon in certificate.population_epsilons],
        "attack": tuple(certificate.attack_success),
    }


def _account(norms=NORMS, mask=None, steps_at_bound=0, **options):
    account = bdp.init(poisson(1.5, 0.02, 20, ADD, n=2000), **options)
    account = bdp.update(account, norms, mask)
    if steps_at_bound:
        account = bdp.update_worst_case(account, steps_at_bound)
    return account_numbers(account)


def _divergences():
    orders, distances = (1, 2, 8), np.array([0.0, 0.1, 1.0, 3.0])
    return {
        "gaussian": bdp.gaussian_log_moments(orders, distances, noise_std=1.2),
        "laplace": bdp.laplace_log_moments(orders, distances, scale=1.5),
        "sampled": bdp.subsampled_gaussian_log_moments(
            orders, distances, sampling_rate=0.05, noise_std=1.2
        ),
    }


CASES = {
    "all norms": _account,
    "masked": partial(_account, mask=MASK),
    "few orders": partial(_account, orders=(1, 4, 16, 64)),
    "clipped": partial(_account, norms=4 * NORMS),
    "empirical Bernstein": partial(
        _account, estimator="empirical_bernstein", failure_probability=1e-9
    ),
    "lost steps at the bound": partial(_account, steps_at_bound=4),
    "divergences": _divergences,
}
