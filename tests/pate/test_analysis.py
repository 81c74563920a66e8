"""Epsilons of every analysis: published figures, exact values, certificates."""

import json
import math

import mpmath
import numpy as np
import pytest

from dpjax import pate
from dpjax.pate import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax

COMMON = {"num_teachers": 250, "num_classes": 10, "adjacency": "replace_one"}
MNIST = ConfidentGNMax(
    threshold=200.0, check_scale=150.0, scale=40.0, max_answers=286, num_queries=640, **COMMON
)


def agreeing_votes(num_queries, *, seed=0, agreement=0.9):
    """Votes of 250 teachers of whom each is right with a query's own probability."""
    generator = np.random.default_rng(seed)
    accuracies = generator.beta(9 * agreement, 9 * (1 - agreement), num_queries)
    probabilities = np.tile((1 - accuracies)[:, None] / 9, (1, 10))
    classes = generator.integers(0, 10, num_queries)
    probabilities[np.arange(num_queries), classes] = accuracies
    return generator.multinomial(250, probabilities)


def by_kind(rows):
    return {row.kind: row.epsilon for row in rows}


@pytest.mark.parametrize(
    ("scale", "num_queries", "delta", "moments", "composed"),
    [(20, 100, 1e-5, 5.30, 4.31), (20, 1000, 1e-5, 20.8, 17.8), (20, 500, 1e-6, 14.4, 12.5)],
)
def test_data_independent_epsilons_of_laplace_noise(scale, num_queries, delta, moments, composed):
    mechanism = LNMax(scale=scale, num_queries=num_queries, **COMMON)
    source, pure, certified = pate.data_independent_analyses(mechanism, delta)
    assert source.epsilon == pytest.approx(moments, rel=4e-3)
    assert pure.epsilon == pytest.approx(composed, rel=4e-3)
    assert (certified.kind, certified.epsilon) == (
        "guarantee",
        mechanism.certificate(delta).epsilon,
    )
    assert certified.epsilon < 0.71 * pure.epsilon


@pytest.fixture(scope="module")
def mnist_rows():
    return pate.data_independent_analyses(MNIST, 1e-5)


def test_data_independent_epsilons_of_the_published_setting(mnist_rows):
    """Classical Rényi bound, exact Gaussian composition, and outcomes alone."""
    assert [row.epsilon for row in mnist_rows] == pytest.approx([3.174, 2.543, 2.155], rel=1e-3)
    assert [row.kind for row in mnist_rows] == ["bound", "bound", "guarantee"]


@pytest.mark.parametrize(
    ("check_scale", "scale", "checks", "answers", "delta", "classical", "exact"),
    [
        (200.0, 40.0, 8500, 3098, 1e-6, 12.7, 11.1),
        (200.0, 40.0, 1500, 524, 1e-5, 4.34, 3.54),
        (500.0, 100.0, 12000, 10762, 1e-8, 10.1, 9.01),
    ],
)
def test_published_settings_without_votes(
    check_scale, scale, checks, answers, delta, classical, exact
):
    mechanism = ConfidentGNMax(
        threshold=300.0,
        check_scale=check_scale,
        scale=scale,
        max_answers=answers,
        num_queries=checks,
        **COMMON,
    )
    assert mechanism.certificate(delta).epsilon == pytest.approx(exact, rel=5e-3)
    slope = checks / (2 * check_scale**2) + answers / scale**2
    assert slope + 2 * math.sqrt(slope * math.log(1 / delta)) == pytest.approx(classical, rel=5e-3)


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
def test_the_published_laplace_epsilon_in_forty_digits(gamma):
    votes = agreeing_votes(60, agreement=0.5)
    mechanism = LNMax(scale=1 / gamma, num_queries=60, **COMMON)
    found = by_kind(pate.data_dependent_analyses(mechanism, votes, 1e-5))
    expected = moments_by_mpmath(votes.tolist(), gamma, 1e-5, range(1, 9))
    assert found["published"] == pytest.approx(expected, rel=1e-9)
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
def test_the_published_gaussian_epsilon_in_forty_digits(scale):
    votes = agreeing_votes(20)
    orders = np.array([2.0, 5.0, 10.0, 20.0, 40.0])
    errors = pate.data_dependent.log_error_probability_gaussian(votes, scale)
    rdp = pate.data_dependent.gaussian_rdp(errors, orders, scale).sum(axis=0)
    found = float(np.min(rdp + math.log(1e5) / (orders - 1)))
    expected = theorem_six_by_mpmath(votes.tolist(), scale, 1e-5, orders.tolist())
    assert found == pytest.approx(expected, rel=1e-9)


def test_gaussian_answers_are_analysed_by_the_theorem_in_both_directions():
    votes = agreeing_votes(20)
    mechanism = GNMax(scale=40.0, num_queries=20, **COMMON)
    found = by_kind(pate.data_dependent_analyses(mechanism, votes, 1e-5))
    expected = theorem_six_by_mpmath(votes.tolist(), 40.0, 1e-5, [10.0, 20.0, 40.0])
    assert 0.9 * expected < found["published"] <= expected * (1 + 1e-9)
    assert found["bound"] < found["published"]


def test_the_course_function_returns_both_epsilons():
    generator = np.random.default_rng(1)
    truth = generator.integers(0, 10, 400)
    wrong = generator.random((250, 400)) > 0.95
    predictions = np.where(wrong, generator.integers(0, 10, (250, 400)), truth)
    indices = np.arange(0, 400, 4)
    found = pate.perform_analysis(predictions, indices, noise_eps=0.1, delta=1e-5)
    mechanism = LNMax(scale=10.0, num_queries=100, **COMMON)
    assert found.data_independent == mechanism.certificate(1e-5).epsilon
    # agreement costs little, and the bound in both directions more than that in one
    assert found.data_dependent < 0.1 * found.data_independent
    votes = pate.count_votes(predictions, 10)[indices].tolist()
    orders = np.geomspace(0.5, 300, 60).tolist()
    assert found.data_dependent < moments_by_mpmath(votes, 0.1, 1e-5, orders) * 1.05
    # a tie of two halves costs as much as the data-independent analysis allows
    split = np.repeat([[0], [1]], 125, axis=0).repeat(50, axis=1)
    both = pate.perform_analysis(split, np.arange(50), 0.1, 1e-5)
    assert 0.5 * both.data_independent < both.data_dependent <= both.data_independent


def test_the_course_function_counts_abstentions_as_no_votes():
    predictions = np.zeros((250, 60))
    predictions[:100] = np.nan
    found = pate.perform_analysis(predictions, np.arange(60), 0.05, 1e-5)
    fewer = pate.perform_analysis(predictions[100:], np.arange(60), 0.05, 1e-5)
    every = pate.perform_analysis(np.zeros((250, 60)), np.arange(60), 0.05, 1e-5)
    assert found == fewer  # the gaps are the same, 150 votes to none
    assert found.data_independent == every.data_independent
    assert found.data_dependent > 3 * every.data_dependent  # power: 250 votes to none


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"indices": [0, 1, 1]}, "different indices of examples, not labels"),
        ({"indices": [0, 8]}, "indices must be in 0 .. 7"),
        ({"indices": [0.5]}, "indices must be a list of at least one whole number"),
        ({"indices": []}, "at least one whole number"),
        ({"noise_eps": 0.0}, "noise_eps must be a finite number > 0, got 0.0"),
        ({"delta": 1.0}, "delta must be in"),
        ({"teacher_preds": np.full((3, 8), 10)}, "got 10 of teacher 0 on query 0"),
        ({"teacher_preds": np.full((3, 8), 0.5)}, "got 0.5 of teacher 0 on query 0"),
        ({"teacher_preds": np.zeros((0, 8))}, "at least one teacher"),
    ],
)
def test_the_course_function_refuses(arguments, message):
    allowed = {"teacher_preds": np.zeros((3, 8), int), "indices": [0, 1], "noise_eps": 0.1}
    with pytest.raises(ValueError, match=message):
        pate.perform_analysis(**{"delta": 1e-5, **allowed, **arguments})


@pytest.fixture(scope="module")
def certificate():
    votes = agreeing_votes(640, agreement=0.95)
    answered = np.arange(640) < 286
    return pate.certificate(MNIST, 1e-5, votes=votes, answered=answered)


def test_a_certificate_marks_what_is_not_publishable(certificate, mnist_rows):
    assert certificate.data_independent == mnist_rows
    assert certificate.epsilon == mnist_rows[2].epsilon
    text = str(certificate)
    assert text.startswith("(2.15")
    assert "differential privacy of the released labels" in text
    assert "on these votes: NOT PUBLISHABLE AS IS" in text
    assert "it is not publishable as is" in text
    assert "286 realized answers" in text
    kinds = [row.kind for row in certificate.data_dependent]
    assert kinds == ["published", "bound", "realized"]
    epsilons = by_kind(certificate.data_dependent)
    assert max(epsilons.values()) < certificate.epsilon
    assert "NOT PUBLISHABLE" in certificate._repr_html_()
    stored = json.loads(json.dumps(certificate.to_dict()))
    assert len(stored["data_dependent_not_publishable"]) == 3
    for row in certificate.data_dependent:
        assert f"{row.epsilon:.3f}" not in certificate.paragraph()


def test_a_certificate_without_votes_has_no_data_dependent_epsilon(mnist_rows):
    found = pate.certificate(MNIST, 1e-5)
    assert found.data_dependent == ()
    assert "NOT PUBLISHABLE" not in str(found)


def test_answers_without_votes_are_refused():
    with pytest.raises(ValueError, match="votes must be given with answered"):
        pate.certificate(MNIST, 1e-5, answered=np.ones(640, bool))


def test_the_best_order_at_an_end_is_warned_of():
    with pytest.warns(UserWarning, match="the best order, 2001, is at an end"):
        pate.data_independent_analyses(GNMax(scale=1e4, num_queries=1, **COMMON), 1e-5)


def test_interactive_queries_are_analysed_with_the_student():
    votes = agreeing_votes(50)
    mechanism = InteractiveGNMax(
        threshold=150.0,
        check_scale=60.0,
        scale=40.0,
        max_answers=20,
        num_queries=50,
        student_confidence=0.9,
        **COMMON,
    )
    agreeing = votes / 250
    with pytest.raises(ValueError, match="student_probabilities must be given for Interactive"):
        pate.data_dependent_analyses(mechanism, votes, 1e-5)
    with pytest.raises(ValueError, match="student_probabilities must be given for Interactive"):
        pate.data_dependent_analyses(MNIST, agreeing_votes(640), 1e-5, student_probabilities=votes)
    uniform = np.full(votes.shape, 0.1)
    surprised = pate.data_dependent_analyses(mechanism, votes, 1e-5, student_probabilities=uniform)
    expected = pate.data_dependent_analyses(mechanism, votes, 1e-5, student_probabilities=agreeing)
    # where the student agrees the check fails surely, and nothing more is spent
    assert by_kind(expected)["bound"] < by_kind(surprised)["bound"]


def test_answers_must_be_booleans_of_every_query():
    with pytest.raises(ValueError, match="answered must be 640 booleans"):
        pate.data_dependent_analyses(MNIST, agreeing_votes(640), 1e-5, answered=np.ones(640))
