"""Epsilons of every analysis: published figures, exact values, certificates."""

import json
import math

import numpy as np
import pytest

from dpjax import pate
from dpjax.pate import ConfidentGNMax, GNMax, InteractiveGNMax, LNMax

COMMON = {"num_teachers": 250, "num_classes": 10, "adjacency": "replace_one"}
MNIST = ConfidentGNMax(
    threshold=200.0, threshold_scale=150.0, scale=40.0, max_answers=286, num_queries=640, **COMMON
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
    ("threshold_scale", "scale", "checks", "answers", "delta", "classical", "exact"),
    [
        (200.0, 40.0, 8500, 3098, 1e-6, 12.7, 11.1),
        (200.0, 40.0, 1500, 524, 1e-5, 4.34, 3.54),
        (500.0, 100.0, 12000, 10762, 1e-8, 10.1, 9.01),
    ],
)
def test_published_settings_without_votes(
    threshold_scale, scale, checks, answers, delta, classical, exact
):
    mechanism = ConfidentGNMax(
        threshold=300.0,
        threshold_scale=threshold_scale,
        scale=scale,
        max_answers=answers,
        num_queries=checks,
        **COMMON,
    )
    assert mechanism.certificate(delta).epsilon == pytest.approx(exact, rel=5e-3)
    slope = checks / (2 * threshold_scale**2) + answers / scale**2
    assert slope + 2 * math.sqrt(slope * math.log(1 / delta)) == pytest.approx(classical, rel=5e-3)


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
    assert kinds == ["bound", "realized"]
    epsilons = by_kind(certificate.data_dependent)
    assert max(epsilons.values()) < certificate.epsilon
    assert "NOT PUBLISHABLE" in certificate._repr_html_()
    stored = json.loads(json.dumps(certificate.to_dict()))
    assert len(stored["data_dependent_not_publishable"]) == 2
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
        threshold_scale=60.0,
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
