"""Published formulas of private aggregation, in forty digits, and beside bounds that hold."""

import math

import mpmath
import numpy as np
import pytest

from dpjax import pate
from dpjax.pate import GNMax, LNMax
from experiments.published.pate import perform_analysis, published_epsilon

COMMON = {"num_teachers": 250, "num_classes": 10, "adjacency": "replace_one"}


def agreeing_votes(num_queries, *, seed=0, agreement=0.9):
    """Votes of 250 teachers of whom each is right with a query's own probability."""
    generator = np.random.default_rng(seed)
    accuracies = generator.beta(9 * agreement, 9 * (1 - agreement), num_queries)
    probabilities = np.tile((1 - accuracies)[:, None] / 9, (1, 10))
    classes = generator.integers(0, 10, num_queries)
    probabilities[np.arange(num_queries), classes] = accuracies
    return generator.multinomial(250, probabilities)


def moments_by_mpmath(votes, gamma, delta, orders, factor=1):
    """Epsilon by Theorem 3 of the 2017 source in one direction, in 40 digits."""
    mpmath.mp.dps = 40
    gamma = mpmath.mpf(gamma)
    totals = [mpmath.mpf(0)] * len(orders)
    for counts in votes:
        top = max(counts)
        gaps = sorted(top - count for count in counts)[1:]
        error = sum((2 + gamma * gap) / (4 * mpmath.exp(gamma * gap)) for gap in gaps)
        error = factor * min(error, 1 - mpmath.mpf(1) / len(counts))
        for place, moment in enumerate(orders):
            bound = min(2 * gamma**2 * moment * (moment + 1), 2 * gamma * moment)
            if error < 1 / (mpmath.exp(2 * gamma) + 1):
                ratio = (1 - error) / (1 - mpmath.exp(2 * gamma) * error)
                value = (1 - error) * ratio**moment + error * mpmath.exp(2 * gamma * moment)
                bound = min(bound, mpmath.log(value))
            totals[place] += bound
    return float(
        min((t - mpmath.log(delta)) / moment for t, moment in zip(totals, orders, strict=True))
    )


@pytest.mark.parametrize("gamma", [0.05, 0.1, 0.5])
def test_published_epsilon_of_laplace_noise_in_forty_digits(gamma):
    votes = agreeing_votes(60, agreement=0.5)
    mechanism = LNMax(scale=1 / gamma, num_queries=60, **COMMON)
    found = published_epsilon(mechanism, votes, 1e-5)
    expected = moments_by_mpmath(votes.tolist(), gamma, 1e-5, range(1, 9))
    assert found == pytest.approx(expected, rel=1e-9)
    # power: a factor of two in q
    planted = moments_by_mpmath(votes.tolist(), gamma, 1e-5, range(1, 9), factor=0.5)
    assert planted < 0.99 * expected


def theorem_six_by_mpmath(votes, scale, delta, orders):
    """Epsilon by Theorem 6 of the 2018 source in one direction, in 40 digits."""
    mpmath.mp.dps = 40
    variance = mpmath.mpf(scale) ** 2
    totals = [mpmath.mpf(0)] * len(orders)
    for counts in votes:
        gaps = sorted(max(counts) - count for count in counts)[1:]
        error = sum(mpmath.erfc(gap / (2 * mpmath.sqrt(variance))) / 2 for gap in gaps)
        error = min(error, 1 - mpmath.mpf(1) / len(counts))
        second = mpmath.sqrt(variance * mpmath.log(1 / error))
        first = second + 1
        eps_1, eps_2 = first / variance, second / variance
        for place, order in enumerate(orders):
            bound = order / variance
            factor = (first / (first - 1) * second / (second - 1)) ** second
            if (
                order <= first
                and error <= mpmath.exp((second - 1) * eps_2) / factor
                and mpmath.log(1 / error) > eps_2
            ):
                a = (1 - error) / (1 - (error * mpmath.exp(eps_2)) ** (1 - 1 / second))
                b = mpmath.exp(eps_1) / error ** (1 / (first - 1))
                value = (1 - error) * a ** (order - 1) + error * b ** (order - 1)
                bound = min(bound, mpmath.log(value) / (order - 1))
            totals[place] += bound
    return float(min(t - mpmath.log(delta) / (o - 1) for t, o in zip(totals, orders, strict=True)))


@pytest.mark.parametrize("scale", [10.0, 40.0])
def test_gaussian_rdp_in_forty_digits(scale):
    votes = agreeing_votes(20)
    orders = np.array([2.0, 5.0, 10.0, 20.0, 40.0])
    errors = pate.data_dependent.log_error_probability_gaussian(votes, scale)
    rdp = pate.data_dependent.gaussian_rdp(errors, orders, scale).sum(axis=0)
    found = float(np.min(rdp + math.log(1e5) / (orders - 1)))
    expected = theorem_six_by_mpmath(votes.tolist(), scale, 1e-5, orders.tolist())
    assert found == pytest.approx(expected, rel=1e-9)


def test_published_epsilon_of_gaussian_noise():
    votes = agreeing_votes(20)
    mechanism = GNMax(scale=40.0, num_queries=20, **COMMON)
    published = published_epsilon(mechanism, votes, 1e-5)
    (both,) = pate.data_dependent_analyses(mechanism, votes, 1e-5)
    expected = theorem_six_by_mpmath(votes.tolist(), 40.0, 1e-5, [10.0, 20.0, 40.0])
    assert 0.9 * expected < published <= expected * (1 + 1e-9)
    assert both.epsilon < published


@pytest.mark.slow
def test_perform_analysis_returns_both_epsilons():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 10, 400)
    wrong = generator.random((250, 400)) > 0.95
    predictions = np.where(wrong, generator.integers(0, 10, (250, 400)), truth)
    indices = np.arange(0, 400, 4)
    found = perform_analysis(predictions, indices, noise_eps=0.1, delta=1e-5)
    mechanism = LNMax(scale=10.0, num_queries=100, **COMMON)
    assert found.data_independent == mechanism.certificate(1e-5).epsilon
    # agreement costs little, and the bound in both directions more than that in one
    assert found.data_dependent < 0.1 * found.data_independent
    votes = pate.count_votes(predictions, 10)[indices].tolist()
    orders = np.geomspace(0.5, 300, 60).tolist()
    assert found.data_dependent < moments_by_mpmath(votes, 0.1, 1e-5, orders) * 1.05
    # a tie of two halves costs as much as the data-independent analysis allows
    split = np.repeat([[0], [1]], 125, axis=0).repeat(50, axis=1)
    both = perform_analysis(split, np.arange(50), 0.1, 1e-5)
    assert 0.5 * both.data_independent < both.data_dependent <= both.data_independent


def test_perform_analysis_counts_abstentions_as_no_votes():
    predictions = np.zeros((250, 60))
    predictions[:100] = np.nan
    found = perform_analysis(predictions, np.arange(60), 0.05, 1e-5)
    fewer = perform_analysis(predictions[100:], np.arange(60), 0.05, 1e-5)
    every = perform_analysis(np.zeros((250, 60)), np.arange(60), 0.05, 1e-5)
    assert found == fewer  # the gaps are the same, 150 votes to none
    assert found.data_independent == every.data_independent
    assert found.data_dependent > 3 * every.data_dependent  # power: 250 votes to none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": [0, 1, 1]}, "different indices of examples, not labels"),
        ({"delta": 1.0}, "delta must be in"),
        ({"teacher_preds": np.full((3, 8), 10)}, "got 10 of teacher 0 on query 0"),
        ({"teacher_preds": np.full((3, 8), 0.5)}, "got 0.5 of teacher 0 on query 0"),
        ({"teacher_preds": np.zeros((0, 8))}, "at least one teacher"),
    ],
)
def test_perform_analysis_refuses(arguments, message):
    allowed = {"teacher_preds": np.zeros((3, 8), int), "indices": [0, 1], "noise_eps": 0.1}
    with pytest.raises(ValueError, match=message):
        perform_analysis(**{"delta": 1e-5, **allowed, **arguments})
