"""Epsilons of every analysis: published figures (also of the votes released with Papernot et al.
2018), exact values, certificates."""

import dataclasses
import json
import math
import os
from pathlib import Path

import jax
import numpy as np
import pytest

import dpjax
from dpjax import pate
from dpjax.pate import ConfidentGNMax, GNMax, LNMax
from experiments.published.pate import published_epsilon

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
def test_certificate_of_laplace_noise_has_its_epsilons(
    scale, num_queries, delta, moments, composed
):
    mechanism = LNMax(scale=scale, num_queries=num_queries, **COMMON)
    source, pure, certified = pate.certificate(mechanism, delta).data_independent
    assert source.epsilon == pytest.approx(moments, rel=4e-3)
    assert pure.epsilon == pytest.approx(composed, rel=4e-3)
    assert (certified.kind, certified.epsilon) == (
        "guarantee",
        mechanism.certificate(delta).epsilon,
    )
    assert certified.epsilon < 0.71 * pure.epsilon


@pytest.fixture(scope="module")
def mnist_rows():
    found = pate.certificate(MNIST, 1e-5)
    assert found.data_dependent == ()
    assert "NOT PUBLISHABLE" not in str(found)
    return found.data_independent


@pytest.mark.slow
def test_certificate_of_the_published_setting_has_its_epsilons(mnist_rows):
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
def test_epsilon_of_published_settings_without_votes(
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


def test_certificate_marks_what_is_not_publishable(certificate, mnist_rows):
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


def test_paragraph_begins_with_the_guarantee_of_the_labels(certificate):
    first, second = certificate.paragraph().split(". ")[:2]
    assert first.startswith("The released labels are (2.15")
    assert "post-processing of noisy histograms" in second


LAPLACE = LNMax(scale=1.0, num_queries=100, **COMMON)
CONFIDENT = ConfidentGNMax(
    scale=20.0, threshold_scale=40.0, threshold=30.0, num_queries=50, max_answers=50, **COMMON
)


@pytest.mark.parametrize(
    "mechanism", [LAPLACE, pytest.param(CONFIDENT, marks=pytest.mark.slow)], ids=["LNMax", "GNMax"]
)
def test_calibrate_spends_epsilon_on_the_labels(mechanism):
    found = pate.calibrate(mechanism, epsilon=2.0, delta=1e-5)
    assert 1.98 <= pate.certificate(found, 1e-5).epsilon <= 2.0

    # Both scales by one factor, and never more noise than for the histograms' epsilon.
    factor = found.scale / mechanism.scale
    assert found == mechanism.with_privacy_factor(factor)
    assert found.scale <= dpjax.calibrate(mechanism, epsilon=2.0, delta=1e-5).scale * (1 + 1e-3)
    less = mechanism.with_privacy_factor(0.97 * factor)
    assert pate.certificate(less, 1e-5).epsilon > 2.0


def test_calibrate_refuses():
    for changes, message in [
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
        ({"delta": 1.0}, r"delta must be in \(0, 1\)"),
    ]:
        with pytest.raises(ValueError, match=message):
            pate.calibrate(LAPLACE, **({"epsilon": 1.0, "delta": 1e-5} | changes))
    with pytest.raises(TypeError, match="an aggregation of dpjax"):
        pate.calibrate(dpjax.Laplace, epsilon=1.0, delta=1e-5)


@pytest.mark.slow
def test_certificate_warns_of_a_best_order_at_an_end():
    with pytest.warns(UserWarning, match="the best order, 2001, is at an end"):
        pate.certificate(GNMax(scale=1e4, num_queries=1, **COMMON), 1e-5)


def test_data_dependent_analyses_are_smaller_where_the_student_agrees():
    votes = agreeing_votes(50)
    mechanism = ConfidentGNMax(
        threshold=150.0,
        threshold_scale=60.0,
        scale=40.0,
        max_answers=20,
        num_queries=50,
        student_confidence=0.9,
        **COMMON,
    )
    agreeing, uniform = votes / 250, np.full(votes.shape, 0.1)
    surprised = pate.data_dependent_analyses(mechanism, votes, 1e-5, student_probabilities=uniform)
    expected = pate.data_dependent_analyses(mechanism, votes, 1e-5, student_probabilities=agreeing)
    # where the student agrees the check fails surely, and nothing more is spent
    assert by_kind(expected)["bound"] < by_kind(surprised)["bound"]


@pytest.mark.parametrize(
    ("call", "arguments", "message"),
    [
        (pate.certificate, {"answered": np.ones(640, bool)}, "votes must be given with answered"),
        (
            pate.data_dependent_analyses,
            {"votes": agreeing_votes(640), "answered": np.ones(640)},
            "answered must be 640 booleans",
        ),
        (
            pate.data_dependent_analyses,
            {"votes": agreeing_votes(640), "student_probabilities": np.ones((640, 10))},
            "student_probabilities must be given where student_confidence is",
        ),
    ],
)
def test_votes_and_answers_are_refused(call, arguments, message):
    with pytest.raises(ValueError, match=message):
        call(MNIST, delta=1e-5, **arguments)


@pytest.fixture(scope="module")
def released_votes():
    """Votes of 250 teachers by name; skipped where DPJAX_DATA_DIR has no folder pate_votes."""
    folder = Path(os.environ.get("DPJAX_DATA_DIR") or ".") / "pate_votes"
    if not folder.is_dir():
        pytest.skip(f"{folder} does not exist: set DPJAX_DATA_DIR to a folder with pate_votes")
    return {name: np.load(folder / f"{name}_250_teachers.npy") for name in ("mnist", "svhn")}


@pytest.mark.parametrize(
    ("name", "rows", "delta", "expected"),
    [
        ("mnist", slice(700, 800), 1e-5, 2.049),  # the rows of the source are not stated
        ("svhn", slice(0, 500), 1e-6, 5.041),
        ("svhn", slice(0, 1000), 1e-6, 8.192),
    ],
)
def test_published_epsilon_of_laplace_noise(released_votes, name, rows, delta, expected):
    """With gamma 0.1, the default of the source's script, in place of the stated 0.05."""
    chosen = released_votes[name][rows]
    mechanism = LNMax(scale=10.0, num_queries=len(chosen), **COMMON)
    published = published_epsilon(mechanism, chosen, delta)
    (both,) = pate.data_dependent_analyses(mechanism, chosen, delta)
    assert published == pytest.approx(expected, abs=6e-4)
    assert both.epsilon < published


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "settings", "num_queries", "delta", "expected", "answers", "exact", "tight"),
    [
        ("mnist", (200.0, 150.0, 40.0), 640, 1e-5, 2.00, 286, 2.54, 2.155),
        ("svhn", (300.0, 200.0, 40.0), 8500, 1e-6, 4.92, 3098, 11.1, 9.13),
    ],
)
def test_certificate_of_released_votes_has_the_published_epsilons(
    released_votes, name, settings, num_queries, delta, expected, answers, exact, tight
):
    threshold, threshold_scale, scale = settings
    mechanism = ConfidentGNMax(
        threshold=threshold,
        threshold_scale=threshold_scale,
        scale=scale,
        max_answers=answers,
        num_queries=num_queries,
        **COMMON,
    )
    chosen = released_votes[name][:num_queries]
    released = mechanism.release(jax.random.key(0), chosen)
    found = pate.certificate(mechanism, delta, votes=chosen, answered=np.asarray(released.answered))
    assert [row.kind for row in found.data_dependent] == ["bound", "realized"]
    both, realized = (row.epsilon for row in found.data_dependent)
    assert published_epsilon(mechanism, chosen, delta) == pytest.approx(expected, abs=0.006)
    assert realized < both < found.epsilon
    assert found.dp_certificate.epsilon == pytest.approx(exact, rel=4e-3)
    assert found.epsilon == pytest.approx(tight, rel=2e-3)
    # 283 and 2,969 are expected to be answered, with standard deviations 12 and 43
    mean, deviation = {"mnist": (283, 12), "svhn": (2969, 43)}[name]
    uncapped = dataclasses.replace(mechanism, max_answers=num_queries)
    count = int(np.sum(uncapped.release(jax.random.key(1), chosen).answered))
    assert abs(count - mean) < 6 * deviation
