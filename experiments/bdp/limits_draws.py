"""How many draws a Bayesian epsilon needs, and what heavy tails do to it.

The run is that of ``limits_populations``: 1,000 Poisson-sampled steps, noise of one clip bound. The
same draws stand for every step, so that Theorem 1 loses nothing: what is lost, is by estimation.
"""

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import dpjax
from dpjax.accounting import moments_accountant
from dpjax.bdp import estimators
from experiments.bdp.costs import FAILURE, Array, epsilons
from experiments.bdp.limits_populations import (
    MEDIAN_NORM,
    NUM_STEPS,
    ORDERS,
    RUN,
    clipped_mean,
    log_normal_norm_at,
    log_normal_norms,
    run_log_moments,
)

DELTA = 1e-5
_STEPS_FAILURE = NUM_STEPS * FAILURE
_ENDS = (5, 50, 95)


@functools.cache
def certified_epsilon() -> float:
    """Returns the tight DP epsilon of the run."""
    sampling = dpjax.PoissonSampling(60_000, RUN["sampling_rate"])
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=RUN["noise_std"],
        num_steps=NUM_STEPS,
        adjacency="zero_out",
    )
    return mechanism.certificate(DELTA).epsilon


def moments_epsilon() -> float:
    """Returns the moments accountant's epsilon, at the orders of the Bayesian ones."""
    orders = [order + 1 for order in ORDERS]
    return float(
        moments_accountant.compute_epsilon(
            RUN["noise_std"], RUN["sampling_rate"], NUM_STEPS, DELTA, orders
        )
    )


def exact_epsilon(norm_at: Callable[[Array], Array] = log_normal_norm_at) -> float:
    """Returns the Bayesian epsilon of clipped norms whose distribution is known."""
    return _epsilon(clipped_mean(norm_at))


def exact_epsilon_of_most(norm_at: Callable[[Array], Array] = log_normal_norm_at) -> float:
    """Returns it with the records of the largest norms, half of delta, given up as a part of it.

    Corollary 1 does not: its expectation is over all records, however rare.
    """
    log_means = clipped_mean(norm_at, -math.log(DELTA / 2))
    return float(epsilons(log_means, DELTA / 2, 0.0, ORDERS))


def unseen_share(num_draws: int, failure_probability: float = FAILURE) -> float:
    """Returns the share of a population that none of the draws is of, with this probability.

    >>> round(unseen_share(1_024), 3)
    0.033
    """
    return -math.expm1(math.log(failure_probability) / num_draws)


def least_distribution_free_epsilon(num_draws: int) -> float:
    """Returns epsilon if the share that draws cannot exclude has the norm C, the rest the true one.

    An estimate that assumes nothing has to allow for it.
    """
    share, worst = unseen_share(num_draws), NUM_STEPS * run_log_moments(np.ones(1))[0]
    rest = math.log1p(-share) + clipped_mean(log_normal_norm_at)
    return _epsilon(np.logaddexp(rest, math.log(share) + worst))


def draws_curves(sizes: Sequence[int], repeats: int, seed: int) -> dict[str, Any]:
    """Returns epsilon against the number of draws: quantiles over the repeats, and the limit."""
    curves: dict[str, Any] = {"student": [], "bernstein": []}
    for size in sizes:
        generator = np.random.default_rng((seed, size))
        norms = np.minimum(log_normal_norms(generator, (repeats, size)), 1.0)
        found = [_clipped_epsilons(each) for each in norms]
        for name, each in zip(curves, zip(*found, strict=True), strict=True):
            curves[name].append(np.percentile(each, _ENDS))
    return {**curves, "limit": [least_distribution_free_epsilon(size) for size in sizes]}


def _clipped_epsilons(norms: Array) -> tuple[float, float]:
    """By Student, not above what the largest norm costs, and without an assumption."""
    values, worst = NUM_STEPS * run_log_moments(norms), NUM_STEPS * run_log_moments(np.ones(1))[0]
    found = (
        np.minimum(estimators.student_upper_bound(values, FAILURE), worst),
        estimators.empirical_bernstein_upper_bound(values, FAILURE, worst),
    )
    return _epsilon(found[0]), _epsilon(found[1])


def _epsilon(log_means: Array) -> float:
    """Of the estimates of all steps; what may fail is counted into delta."""
    return float(epsilons(log_means, DELTA, _STEPS_FAILURE, ORDERS))


def weibull_norm_at(shape: float) -> Callable[[Array], Array]:
    """Returns the norm that a share exp(-level) of Weibull norms exceeds.

    They have this shape and the population's median.

    >>> float(weibull_norm_at(1.0)(np.log([2.0]))[0])
    0.15
    """
    return lambda levels: MEDIAN_NORM * (levels / math.log(2)) ** (1 / shape)


def tail_curves(shape: float, sizes: Sequence[int], repeats: int, seed: int) -> dict[str, Any]:
    """Returns Student's epsilon of Weibull norms against the number of draws, clipped and not."""
    curves: dict[str, Any] = {"clipped": [], "unclipped": []}
    for size in sizes:
        levels = np.random.default_rng((seed, size)).exponential(size=(repeats, size))
        norms = weibull_norm_at(shape)(levels)
        curves["clipped"].append(
            np.percentile([_clipped_epsilons(each)[0] for each in np.minimum(norms, 1.0)], _ENDS)
        )
        values = [NUM_STEPS * run_log_moments(each) for each in norms]
        found = [_epsilon(estimators.student_upper_bound(each, FAILURE)) for each in values]
        curves["unclipped"].append(np.percentile(found, _ENDS))
    return curves
