"""Audits of one run: honest scores are not refuted, those of less noise than stated are."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.optimize import brentq
from scipy.stats import binom, norm

import dpjax
from dpjax import audit, verify
from dpjax.accounting import gdp
from dpjax.audit import _one_run

KEY = jax.random.key(5)
DELTA = 1e-5
GAUSSIAN = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "zero_out"), 1.0)


def mu_of(epsilon):
    return brentq(lambda mu: float(gdp.epsilon(mu, DELTA)) - epsilon, 1e-2, 10)


def scores_of(rng, num_canaries, mu):
    """Scores of canaries on the Gaussian mechanism itself: those that are in, and the others."""
    is_in = rng.random(num_canaries) < 0.5
    scores = rng.normal(size=num_canaries) + mu * is_in
    return scores[is_in], scores[~is_in]


# jax_privacy's test of its own bounds, at significance 0.05 and delta 1e-6: 10,000 quantiles of a
# standard normal distribution that are in, moved by a shift, and as many that are out. The
# significance is divided by the number of vertices of the ROC curve's hull. At the vertex where
# the bound is largest: guesses, correct ones, epsilon, distribution-free and of Gaussian privacy.
PUBLISHED = {
    1: (386, (3_376, 2_807, 1.13346), (406, 379, 2.164749)),
    2: (374, (4_666, 4_499, 2.311945), (938, 934, 4.7218075)),
    4: (140, (8_233, 8_223, 4.395568), (5_436, 5_436, 9.133752)),
}


@pytest.mark.parametrize("shift", PUBLISHED)
def test_the_bounds_are_those_of_jax_privacy(shift):
    num_vertices, (guesses, correct, free), (guesses_f, correct_f, gaussian) = PUBLISHED[shift]
    error = 0.05 / num_vertices
    found = _one_run._guesses_epsilon(20_000, guesses, correct, 1e-6, error)
    assert found == pytest.approx(free, rel=1e-5)
    mu = _one_run._guesses_mu(20_000, guesses_f, correct_f, error)
    assert float(gdp.epsilon(mu, 1e-6)) == pytest.approx(gaussian, rel=1e-5)


@pytest.mark.parametrize("shift", PUBLISHED)
def test_the_counts_are_those_of_a_threshold_on_the_quantiles(shift):
    quantiles = norm.ppf((np.arange(10_000) + 0.5) / 10_000)
    for guesses, correct, _ in PUBLISHED[shift][1:]:
        wrong = guesses - correct
        threshold = quantiles[-correct] + shift
        assert np.sum(quantiles >= threshold) in (wrong, wrong - 1, wrong + 1)


def test_the_bound_of_normal_scores_is_that_of_the_difference_of_means():
    """With a standard error of sqrt(1 / n_in + 1 / n_out), and half of the failure probability."""
    inside, outside = 4 * norm.ppf((np.arange(1_000) + 0.5) / 1_000) + 8, np.full(900, -4.0)
    report = audit.one_run(inside, outside, GAUSSIAN, delta=DELTA, noise_std=4.0)
    error = norm.isf(0.025) * np.sqrt(1 / 1_000 + 1 / 900)
    assert report.mu == pytest.approx(3 - error, rel=1e-9)


def test_no_separation_has_no_bound():
    quantiles = norm.ppf((np.arange(1_000) + 0.5) / 1_000)
    report = audit.one_run(quantiles, quantiles, GAUSSIAN, delta=DELTA)
    assert (report.mu, report.epsilon, report.epsilon_distribution_free) == (0, 0, 0)
    assert not report.is_refuted


@pytest.mark.parametrize(("epsilon", "delta"), [(0.0, 0.0), (1.0, 0.0), (0.5, 1e-3), (2.0, 1e-2)])
def test_the_p_value_of_guesses_is_that_of_the_sum(epsilon, delta):
    """Without delta the binomial tail; its term in delta is the largest of averages of masses."""
    m, guesses, correct = 100, 20, 15
    mass = binom(guesses, 1 / (1 + np.exp(-epsilon))).pmf(np.arange(guesses + 1))
    averages = [mass[correct - i : correct].sum() / i for i in range(1, correct + 1)]
    expected = mass[correct:].sum() + 2 * m * delta * max(averages)
    found = _one_run._guesses_p_value(m, guesses, correct, epsilon, delta)
    assert found == pytest.approx(expected, rel=1e-9)


# Medians at delta 1e-5 and 95 % of each bound, simulated apart from this library, of (canaries,
# epsilon): distribution-free, f-differential privacy, normal scores.
MEDIANS = {
    (1_000, 2.0): (0.70, 0.98, 1.57),
    (5_000, 2.0): (0.90, 1.14, 1.80),
    (1_000, 8.0): (2.69, 4.73, 7.36),
    (5_000, 8.0): (3.33, 5.29, 7.76),
}


@pytest.mark.slow
@pytest.mark.parametrize(("num_canaries", "epsilon"), MEDIANS)
def test_bounds_on_the_gaussian_mechanism_reach_the_known_medians(num_canaries, epsilon):
    rng = np.random.default_rng(1)
    found = []
    for _ in range(15):
        scores = scores_of(rng, num_canaries, mu_of(epsilon))
        guessed, normal = (
            audit.one_run(*scores, delta=DELTA, confidence=0.9, noise_std=std)
            for std in (None, 1.0)
        )
        found.append([guessed.epsilon_distribution_free, guessed.epsilon, normal.epsilon])
    np.testing.assert_allclose(np.median(found, axis=0), MEDIANS[num_canaries, epsilon], rtol=0.15)


@pytest.mark.slow
def test_honest_runs_are_above_the_truth_in_at_most_one_of_twenty():
    """300 runs at 95 %: of each bound more than 25 above have a probability below 5e-3.

    The bound of normal scores has 2.5 % to itself: none above has a probability of 5e-4. Scores
    that are four times as far apart are above the truth in nearly all runs.
    """
    rng = np.random.default_rng(2)
    mu = mu_of(2.0)

    def count_above(shift):
        above = np.zeros(3)
        for _ in range(300):
            scores = scores_of(rng, 1_000, shift)
            guessed, normal = (
                audit.one_run(*scores, delta=DELTA, noise_std=std) for std in (None, 1.0)
            )
            above += guessed.epsilon_distribution_free > 2, guessed.mu > mu, normal.mu > mu
        return above

    honest = count_above(mu)
    assert (honest <= 25).all()
    assert honest[2] > 0
    assert (count_above(4 * mu) > 280).all()


@pytest.mark.parametrize("noise_std", [None, 1.0])
def test_half_the_noise_is_refuted(noise_std):
    rng = np.random.default_rng(3)
    scores = scores_of(rng, 4_000, 1.0)
    honest = audit.one_run(*scores, GAUSSIAN, delta=DELTA, noise_std=noise_std)
    assert not honest.is_refuted
    assert honest.epsilon > 0.5 * honest.certificate.epsilon
    half = audit.one_run(*scores_of(rng, 4_000, 2.0), GAUSSIAN, delta=DELTA, noise_std=noise_std)
    assert half.is_refuted
    assert half.title.startswith("REFUTED")


def test_guesses_are_compared_with_the_mechanisms_own_trade_off_function():
    """Randomized response: no guess is better than its epsilon, however few are made."""
    epsilon = 2.0
    rng = np.random.default_rng(4)
    is_in = rng.random(20_000) < 0.5
    mechanism = dpjax.Laplace(dpjax.Sensitivity(1.0, "l1", "zero_out"), 1 / epsilon)

    def audited(actual):
        truth = rng.random(is_in.size) < 1 / (1 + np.exp(-actual))
        scores = np.where(truth, is_in, ~is_in) + 0.1 * rng.random(is_in.size)
        return audit.one_run(scores[is_in], scores[~is_in], mechanism, delta=DELTA)

    honest = audited(epsilon)
    assert not honest.is_refuted
    assert 0.8 * epsilon < honest.epsilon_distribution_free < epsilon
    assert audited(2.6).is_refuted


def training(noise_multiplier, *, rate=1.0, canaries=600, steps=10):
    """A run of `dpjax.train` on orthogonal canaries, and the sums of its noisy sums."""
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(canaries, rate),
        l2_clip=0.5,
        noise_multiplier=noise_multiplier,
        num_steps=steps,
        adjacency="zero_out",
    )
    records, is_in = audit.orthogonal_canaries(KEY, canaries, l2_clip=0.5)
    result = dpjax.train(
        KEY,
        audit.canary_loss,
        jnp.zeros(canaries),
        records,
        optax.sgd(1.0),
        mechanism=mechanism,
        progress=False,
    )
    scores = -mechanism.sampling.expected_batch_size * result.params
    return mechanism, scores, np.asarray(is_in)


@pytest.mark.slow
def test_a_training_run_is_audited_and_one_of_half_the_noise_refuted():
    stated, scores, is_in = training(4.0)
    noise_std = 4.0 * 0.5 * np.sqrt(10)
    report = audit.one_run(scores[is_in], scores[~is_in], stated, delta=DELTA, noise_std=noise_std)
    assert not report.is_refuted
    assert report.epsilon > 0.5 * report.certificate.epsilon
    assert np.std(scores[~is_in]) == pytest.approx(noise_std, rel=0.2)
    _, scores, is_in = training(2.0)
    less = audit.one_run(scores[is_in], scores[~is_in], stated, delta=DELTA)
    assert less.is_refuted


def test_canaries_are_orthogonal_and_attain_the_clip_bound():
    records, is_in = audit.orthogonal_canaries(KEY, 64, l2_clip=0.7)
    gradients = jax.vmap(jax.grad(audit.canary_loss), (None, 0))(jnp.zeros(64), records)
    np.testing.assert_allclose(gradients, np.diag(1.4 * is_in))
    summed, _ = dpjax.clipped_grad(audit.canary_loss, l2_clip=0.7)(jnp.zeros(64), records, None)
    np.testing.assert_allclose(summed, 0.7 * is_in, rtol=1e-4)
    assert 16 < is_in.sum() < 48


def test_of_equal_scores_all_or_none_are_guessed():
    inside, outside = np.repeat([1.0, 0.0], 50), np.repeat([0.0, 0.0, 0.0, 1.0], 25)
    assert _one_run._guess(inside, outside, 10) == (200, 50 + 75)
    everything = np.zeros(100)
    assert _one_run._guess(everything, everything, 10) == (200, 100)
    # Neither their order nor which argument comes first changes the choice of canaries.
    rng = np.random.default_rng(5)
    rounded = rng.integers(0, 9, 400).astype(float)
    split = rng.random(400) < 0.5
    guesses, correct = _one_run._guess(rounded[split], rounded[~split], 50)
    again, other = _one_run._guess(rounded[~split], rounded[split], 50)
    assert (guesses, correct) == (again, again - other)


def test_the_report_reads_well():
    rng = np.random.default_rng(6)
    inside, outside = scores_of(rng, 2_000, 1.0)
    alone = audit.one_run(inside, outside, delta=DELTA)
    assert alone.title.startswith("At least: audited epsilon 2")
    assert alone.certificate is None
    assert "certified" not in alone.paragraph()
    report = audit.one_run(inside, outside, GAUSSIAN, delta=DELTA, noise_std=1.0)
    assert report.title.startswith("Not refuted: audited epsilon")
    assert "which does not contradict the certified" in report.paragraph()
    assert "with standard deviation 1" in str(report)
    assert "<table" in report._repr_html_()
    values = json.loads(json.dumps(report.to_dict()))
    assert values["epsilon"] == report.epsilon
    assert values["num_guesses"] == 250
    with pytest.raises(ValueError, match="report must be an audit of epsilon, delta and adjacency"):
        GAUSSIAN.certificate(DELTA).with_audit(alone)


@functools.cache
def _audited(noise_std):
    """The content of a certificate's file with an audit of one run."""
    inside, outside = scores_of(np.random.default_rng(6), 2_000, 1.0)
    report = audit.one_run(inside, outside, GAUSSIAN, delta=DELTA, noise_std=noise_std)
    certificate = GAUSSIAN.certificate(DELTA).with_audit(report)
    assert report.title in str(certificate)
    assert report.title in certificate._repr_html_()
    assert report.paragraph() in certificate.paragraph()
    return certificate.to_json()


def _verify_with(values, **changes):
    changed = {**values, "audit": {**values["audit"], **changes}}
    return verify.verify({**changed, "hash": verify.content_hash(changed)})


@pytest.mark.parametrize("noise_std", [None, 1.0])
def test_a_certificate_with_an_audit_of_one_run_is_verified(noise_std):
    values = json.loads(_audited(noise_std))
    assert verify.verify(values).verdict == "verified", verify.verify(values).reasons


GUESSES_CHANGES = {
    "epsilon": (0.1, '"audit.epsilon" does not follow'),
    "epsilon_distribution_free": (0.1, '"audit.epsilon_distribution_free" is not the bound'),
    "certified_epsilon": (9.0, '"audit.certified_epsilon" is 9'),
    "delta": (1e-6, '"audit.delta" is'),
    "adjacency": ("add_remove", '"audit.adjacency" is'),
    "confidence": (0.9, "is not the bound that follows from the guesses"),
    "is_refuted": (True, "the audit refutes the certificate"),
    "num_canaries": (2_100, "is not the bound that follows from the guesses"),
    "num_guesses": (260, "is not the bound that follows from the guesses"),
    "num_correct": (300, 'must be at most "audit.num_canaries"'),
    "mu": (0.1, '"audit.mu" is not the bound'),
    "noise_std": (-1.0, "has a value that is not allowed"),
}


@pytest.mark.parametrize("field", GUESSES_CHANGES)
def test_a_changed_field_of_an_audit_of_guesses_is_refused(field):
    changed, words = GUESSES_CHANGES[field]
    result = _verify_with(json.loads(_audited(None)), **{field: changed})
    assert result.verdict == "refused"
    assert any(words in reason for reason in result.reasons), result.reasons


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mu": 0.5}, '"audit.epsilon" does not follow'),
        ({"mu": 3.0}, '"audit.mu" is above "mu"'),
        ({"epsilon": 9.0}, '"audit.epsilon" is above "epsilon"'),
        ({"num_canaries": 10}, "has a value that is not allowed"),
        ({"confidence": 1.0}, "has a value that is not allowed"),
        ({"confidence": 0.5}, "is not the bound that follows from the guesses"),
    ],
)
def test_a_changed_field_of_an_audit_of_normal_scores_is_refused(changes, words):
    result = _verify_with(json.loads(_audited(1.0)), **changes)
    assert result.verdict == "refused"
    assert any(words in reason for reason in result.reasons), result.reasons


def test_a_refuting_run_is_refused():
    rng = np.random.default_rng(6)
    report = audit.one_run(*scores_of(rng, 2_000, 2.0), GAUSSIAN, delta=DELTA, noise_std=1.0)
    certificate = GAUSSIAN.certificate(DELTA).with_audit(report)
    assert "an audit refutes this certificate" in str(certificate)
    result = verify.verify(json.loads(certificate.to_json()))
    assert "the audit refutes the certificate" in result.reasons


EVEN = np.arange(100.0)


@pytest.mark.parametrize(
    ("scores", "options", "message"),
    [
        ((EVEN, EVEN), {"delta": 0.0}, r"delta must be in \(0, 1\)"),
        ((EVEN, EVEN), {"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ((EVEN, EVEN), {"noise_std": 0.0}, "noise_std must be"),
        ((EVEN, EVEN), {"num_guesses": 1}, "num_guesses must be a whole number >= 2"),
        ((EVEN, EVEN), {"num_guesses": 201}, "num_guesses must be at most 200, got 201"),
        ((EVEN[:7], EVEN[:8]), {}, "number of in_scores must be at least 16"),
        ((EVEN, EVEN[:10]), {}, "as many of 110 as fair coins may choose, got 100"),
        ((EVEN * np.nan, EVEN), {}, "in_scores must be numbers"),
        ((EVEN, EVEN + np.inf), {"noise_std": 1.0}, "out_scores must be numbers, finite"),
    ],
)
def test_one_run_refuses(scores, options, message):
    with pytest.raises(ValueError, match=message):
        audit.one_run(*scores, **{"delta": DELTA, **options})


def test_one_run_refuses_what_is_no_mechanism():
    with pytest.raises(TypeError, match="mechanism must be a mechanism or None"):
        audit.one_run(EVEN, EVEN, 2.0, delta=DELTA)


def test_scores_may_be_infinite_without_their_deviation():
    inside = np.where(EVEN > 90, np.inf, EVEN)
    assert audit.one_run(inside, EVEN, delta=DELTA).num_guesses >= 25
