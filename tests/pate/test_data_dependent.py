"""The published bounds against exact Rényi divergences of noisy argmaxes and noisy checks."""

import itertools

import numpy as np
import pytest
from helpers.vote_oracles import (
    exact_divergences,
    gaussian_log_winners,
    laplace_log_winners,
    neighbors,
    renyi,
)
from scipy import stats
from scipy.special import log_ndtr, logsumexp

from dpjax.pate import argmax_rdp
from dpjax.pate import data_dependent as bounds
from experiments.published.pate import published_threshold_rdp

ORDERS = np.array([1.5, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0])
HISTOGRAMS = [
    (125, 125),
    (215, 35),
    (250, 0),
    (140, 60, 50),
    (90, 80, 80),
    (180, 20, 20, 15, 15),
    (230, 5, 5, 5, 5, 0, 0, 0, 0, 0),
    (0, 0),
    (1, 0, 0),
]
GAUSSIAN = [(votes, scale) for votes in HISTOGRAMS for scale in (10.0, 20.0, 40.0, 80.0)]
LAPLACE = [(votes, scale) for votes in HISTOGRAMS for scale in (5.0, 10.0, 20.0)]
WINNERS = {"gaussian": gaussian_log_winners, "laplace": laplace_log_winners}
SLACK, ROUNDING = 1 + 1e-9, 1e-28  # relative and absolute, of the quadrature


@pytest.fixture(scope="module")
def exact():
    """The exact divergences of every setting, forward and reverse."""
    return {
        noise: {one: exact_divergences(*one, ORDERS, WINNERS[noise]) for one in settings}
        for noise, settings in {"gaussian": GAUSSIAN, "laplace": LAPLACE}.items()
    }


def violations(exact, noise, direction, *, log_factor=0.0, worst_neighbor=False):
    """How many exact divergences exceed the bound, over all settings and orders."""
    log_error = getattr(bounds, f"log_error_probability_{noise}")
    divergence = getattr(bounds, f"{noise}_rdp")
    count = 0
    for (votes, scale), found in exact[noise].items():
        log_q = log_error([votes], scale, worst_neighbor=worst_neighbor) + log_factor
        bound = divergence(log_q, ORDERS, scale)[0]
        count += int(np.sum(found[direction] > SLACK * bound + ROUNDING))
    return count


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_rdp_by_the_theorems_is_a_bound_in_their_direction(exact, noise):
    assert violations(exact, noise, 0) == 0
    # power: the probability of an unexpected outcome too small by a factor of two
    assert violations(exact, noise, 0, log_factor=-np.log(2)) > 0


@pytest.mark.parametrize("noise", ["gaussian", "laplace"])
def test_rdp_of_the_worst_neighbor_bounds_both_directions(exact, noise):
    for direction in (0, 1):
        assert violations(exact, noise, direction, worst_neighbor=True) == 0
    # power: the published bound does not hold in reverse where the noise is small
    assert violations(exact, noise, 1) > 0


def test_exact_divergences_need_a_sensitivity_above_one(exact):
    """Order / (2 scale^2) is exceeded near a tie; order / scale^2 never is."""
    excess = {one: np.max(found / ORDERS) * one[1] ** 2 for one, found in exact["gaussian"].items()}
    assert max(excess.values()) <= 1
    assert max(excess.values()) > 0.5


@pytest.mark.parametrize(
    ("noise", "votes", "scale"),
    [("gaussian", *one) for one in GAUSSIAN] + [("laplace", *one) for one in LAPLACE],
)
def test_log_error_probabilities_bound_the_exact_ones(noise, votes, scale):
    log_error = getattr(bounds, f"log_error_probability_{noise}")
    exact = 1 - np.exp(WINNERS[noise](votes, scale)[0])
    bound = np.exp(log_error([votes], scale)[0])
    assert exact <= bound * (1 + 1e-9) + 1e-10
    if len(votes) == 2 and exact > 1e-6:
        assert bound == pytest.approx(exact, rel=1e-5)
    worst = log_error([votes], scale, worst_neighbor=True)[0]
    for changed in neighbors(votes):
        assert log_error([changed], scale)[0] <= worst + 1e-12


@pytest.mark.parametrize("count", [0.0, 120.0, 199.0, 201.5, 250.0])
@pytest.mark.parametrize("scale", [10.0, 150.0])
def test_checked_answer_rdp_bounds_checks_of_all_neighbors(count, scale):
    """Answers of known divergence: Gaussian of any shift, so that the pair's is in closed form."""

    def log_bit(count):
        return np.log([stats.norm.sf(count, 200.0, scale), stats.norm.cdf(count, 200.0, scale)])

    answer = np.broadcast_to(ORDERS * 0.01, (1, ORDERS.size))
    for cost in (np.zeros_like(answer), answer):
        bound = bounds.checked_answer_rdp(
            [count], cost, ORDERS, threshold=200.0, threshold_scale=scale
        )[0]
        for shift in (-1.0, -0.5, 0.0, 0.5, 1.0):
            for p, q in itertools.permutations((log_bit(count), log_bit(count + shift))):
                if np.any(np.isinf(p)) or np.any(np.isinf(q)):
                    continue
                for place, order in enumerate(ORDERS):
                    extra = np.array([0.0, (order - 1) * cost[0, place] / order])
                    exact = logsumexp(order * (p + extra) + (1 - order) * q) / (order - 1)
                    assert exact <= bound[place] * SLACK + 1e-13


@pytest.mark.slow
def test_checked_answer_rdp_bounds_checks_and_labels_of_all_neighbors():
    """The exact divergence of the pair (passed, label)."""
    scale, settings = 20.0, {"threshold": 100.0, "threshold_scale": 30.0}

    def outcomes(votes):
        log_pass, log_fail = (log_ndtr(sign * (np.max(votes) - 100.0) / 30.0) for sign in (1, -1))
        return np.concatenate([[log_fail], log_pass + gaussian_log_winners(votes, scale)])

    def violations(answers):
        count = 0
        for votes in HISTOGRAMS:
            worst = bounds.log_error_probability_gaussian([votes], scale, worst_neighbor=True)
            both = np.minimum(bounds.gaussian_rdp(worst, ORDERS, scale), argmax_rdp(ORDERS, scale))
            found = bounds.checked_answer_rdp([max(votes)], answers * both, ORDERS, **settings)[0]
            for changed in neighbors(votes):
                pair = (outcomes(votes), outcomes(changed))
                exact = [max(renyi(*pair, o), renyi(*pair[::-1], o)) for o in ORDERS]
                count += np.sum(exact > SLACK * found + ROUNDING)
        return count

    assert violations(1.0) == 0
    # power: the check alone is no bound on the pair
    assert violations(0.0) > 0


def test_checked_answer_rdp_exceeds_the_expected_cost_of_an_answer():
    """The published sum over an expectation is less than the divergence of check and answer."""
    orders = np.array([16.0])
    answer = orders[None] / 10.0**2
    settings = {"threshold": 200.0, "threshold_scale": 150.0}
    pair = bounds.checked_answer_rdp([200.0], answer, orders, **settings)[0]
    check = bounds.checked_answer_rdp([200.0], 0 * answer, orders, **settings)[0]
    assert pair > 1.2 * (check + 0.5 * answer[0])


def test_rdp_of_orders_beyond_the_theorem_is_the_independent_one():
    """Theorem 6 holds up to the order mu_1 = 1 + scale sqrt(-log q), here 45.7."""
    orders = np.array([40.0, 46.0, 64.0, 1000.0])
    found = bounds.gaussian_rdp(np.array([-20.0]), orders, 10.0)[0]
    independent = orders / 10.0**2
    assert found[0] < 0.99 * independent[0]
    np.testing.assert_allclose(found[1:], independent[1:])


def test_rdp_of_extreme_votes_is_finite():
    votes = np.zeros((10_000, 10))
    votes[:, 0] = np.linspace(0, 1e6, 10_000)
    orders = np.array([1.0001, 2.0, 1e3, 1e6])
    for scale, worst in itertools.product((1e-3, 1.0, 40.0, 1e6), (False, True)):
        log_q = bounds.log_error_probability_gaussian(votes, scale, worst_neighbor=worst)
        gaussian = bounds.gaussian_rdp(log_q, orders, scale)
        log_q = bounds.log_error_probability_laplace(votes, scale, worst_neighbor=worst)
        laplace = bounds.laplace_rdp(log_q, orders, scale)
        assert np.all((gaussian >= 0) & (gaussian <= orders / scale**2))
        assert np.all((laplace >= 0) & (laplace <= 2 / scale))
    checks = bounds.checked_answer_rdp(
        votes.max(axis=1), gaussian, orders, threshold=300.0, threshold_scale=200.0
    )
    assert np.all(np.isfinite(checks))


def test_rdp_of_certain_outcomes_is_zero():
    assert np.all(bounds.gaussian_rdp([-np.inf], ORDERS, 40.0) == 0)
    assert np.all(bounds.laplace_rdp([-np.inf], ORDERS, 20.0) < 1e-15)


# By core.py of tensorflow/privacy, research/pate_2018, at orders 2, 8 and 32: GNMax of the scale,
# LNMax of a quarter of it, and a check of the scale at threshold 100.
RESEARCH_CODE = {
    ((180, 20, 20, 15, 15), 40.0): (
        [0.00125, 0.0022947874245497018, 0.007751416212451821],
        [7.280540043176033e-07, 1.0816397330188748e-06, 2.6434689794593455e-05],
        [0.000625, 0.0025, 0.006472981224260854],
    ),
    ((250, 0, 0), 20.0): (
        [1.7490836648026494e-18, 1.3495412117408284e-17, 1.5802689831775986e-11],
        [4.9327554161625854e-21, 1.3530811463822075e-20, 3.9279379301002765e-17],
        [3.083496661534208e-14, 8.340241115515305e-14, 2.1693575963676957e-10],
    ),
    ((130, 120), 40.0): (
        [0.00125, 0.005, 0.02],
        [0.04, 0.12864134915962552, 0.16099953769724246],
        [0.000625, 0.0025, 0.01],
    ),
}


@pytest.mark.parametrize(("votes", "scale"), RESEARCH_CODE)
def test_rdp_is_that_of_the_research_code(votes, scale):
    orders, quarter = np.array([2.0, 8.0, 32.0]), scale / 4
    gaussian = bounds.log_error_probability_gaussian([votes], scale)
    laplace = bounds.log_error_probability_laplace([votes], quarter)
    found = (
        bounds.gaussian_rdp(gaussian, orders, scale)[0],
        bounds.laplace_rdp(laplace, orders, quarter)[0],
        published_threshold_rdp([max(votes)], orders, threshold=100.0, threshold_scale=scale)[0],
    )
    np.testing.assert_allclose(found, RESEARCH_CODE[votes, scale], rtol=1e-12)
