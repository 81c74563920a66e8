"""One description: the noise that is added is the noise that is accounted for."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.conjugate_cases import ADJACENCIES, FAMILIES, exact_sums, laplace_release, records_of

from dpjax.bayes.conjugate import SufficientStatisticsMechanism, naive_posterior
from dpjax.mechanisms import DiscreteLaplace, Gaussian, Laplace, RandomizedResponse

BETA = FAMILIES["beta-binomial"]


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_release_has_the_noise_of_the_event(name, adjacency):
    """16,000 draws: false alarms of five standard errors are below 1e-6 each."""
    family, records = FAMILIES[name], records_of(name)
    release = laplace_release(family, adjacency, epsilon=0.8)
    keys = jax.random.split(jax.random.key(3), 16000)
    noisy = jax.jit(jax.vmap(lambda key: release.release(key, records)))(keys)
    noise = np.asarray(noisy, np.float64) - family.encode(exact_sums(family, records), adjacency)
    scale = family.sensitivity(norm="l1", adjacency=adjacency).value / 0.8

    def agrees(size):
        return np.all(np.abs(np.abs(noise).mean(axis=0) / size - 1) < 5 / np.sqrt(16000))

    assert agrees(scale)
    assert not agrees(1.1 * scale)
    assert not agrees(0.9 * scale)
    per_clip = 2 if adjacency == "replace_one" else 1
    assert release.event == dp_event.LaplaceDpEvent(per_clip / 0.8)
    assert release.mechanism.pure_epsilon == pytest.approx(0.8)


@pytest.mark.usefixtures("strict_numerics")
@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_release_under_strict_promotion(name, adjacency):
    release = laplace_release(FAMILIES[name], adjacency, 1.0)
    noisy = jax.jit(release.release)(jax.random.key(0), jnp.ones(7))
    np.testing.assert_allclose(noisy, release.release(jax.random.key(0), jnp.ones(7)), rtol=1e-5)


def test_certificate_is_the_mechanisms_and_states_what_is_public():
    for adjacency, word in (("add_remove", "private"), ("replace_one", "public")):
        release = laplace_release(BETA, adjacency, 0.5)
        certificate = release.certificate(1e-6)
        assert 0.49 < certificate.epsilon <= 0.5 * (1 + 1e-6)
        assert certificate.guarantee.description["number of records"].startswith(word)
        assert "zeros and ones" in certificate.guarantee.description["records"]
        assert certificate.guarantee.adjacency == adjacency
    gaussian = Gaussian.from_epsilon(
        BETA.sensitivity(norm="l2", adjacency="add_remove"), epsilon=1.0, delta=1e-6
    )
    release = SufficientStatisticsMechanism(BETA, gaussian)
    assert release.certificate(1e-6).epsilon == pytest.approx(1.0, rel=5e-3)
    louder = release.with_privacy_factor(2.0)
    assert louder.mechanism.scale == 2 * gaussian.scale
    assert louder.num_releases == 1
    assert louder.guarantee.unit == "one record"


def test_release_with_discrete_noise_is_of_integers():
    sensitivity = BETA.sensitivity(norm="l1", adjacency="add_remove")
    release = SufficientStatisticsMechanism(
        BETA, DiscreteLaplace.from_epsilon(sensitivity, epsilon=0.5)
    )
    records = jnp.array([1, 1, 0, np.nan])
    noisy = release.release(jax.random.key(0), records)
    assert noisy.dtype == np.int64
    keys = jax.random.split(jax.random.key(1), 600)
    draws = np.asarray(jax.vmap(lambda key: release.release(key, records))(keys))
    spread = release.mechanism.standard_deviation
    # Five standard errors again.
    assert np.all(np.abs(draws.mean(axis=0) - [2, 2]) < 5 * spread / np.sqrt(600))


NORMAL = FAMILIES["normal-unknown"]
REPLACED = NORMAL.sensitivity(norm="l1", adjacency="replace_one")
RANDOMIZED = RandomizedResponse.from_epsilon(2, epsilon=1.0, adjacency="replace_one")


@pytest.mark.parametrize(
    ("family", "mechanism", "error", "message"),
    [
        (  # the distance of the two ends
            NORMAL,
            Laplace(dataclasses.replace(REPLACED, value=2.0), 1.0),
            ValueError,
            r"mechanism's sensitivity must be at least 2\.25",
        ),
        (
            NORMAL,
            DiscreteLaplace(dataclasses.replace(REPLACED, value=3.0), 1.0),
            ValueError,
            "the statistics are not integers",
        ),
        (BETA, RANDOMIZED, TypeError, "mechanism must add noise"),
    ],
)
def test_sufficient_statistics_mechanism_refuses(family, mechanism, error, message):
    with pytest.raises(error, match=message):
        SufficientStatisticsMechanism(family, mechanism)


@pytest.mark.parametrize("name", FAMILIES)
def test_naive_posterior_of_exact_sums_is_the_exact_posterior(name):
    family, records = FAMILIES[name], records_of(name)
    exact = family.exact_posterior(records)
    for adjacency in ADJACENCIES:
        release = laplace_release(family, adjacency, 1.0)
        released = family.encode(exact_sums(family, records), adjacency)
        naive = naive_posterior(release, released, 40 if adjacency == "replace_one" else None)
        np.testing.assert_allclose(naive.mean, exact.mean, rtol=1e-6)
        np.testing.assert_allclose(naive.interval(0.9), exact.interval(0.9), rtol=1e-6)


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_naive_posterior_of_any_release_is_proper(name, adjacency):
    family = FAMILIES[name]
    release = laplace_release(family, adjacency, 0.01)
    exact = family.encode(exact_sums(family, jnp.zeros(0)), adjacency)
    released = exact + np.random.default_rng(0).laplace(0, 100, (300, len(exact)))
    naive = naive_posterior(release, released, 30 if adjacency == "replace_one" else None)
    low, high = naive.interval(0.9)
    assert np.all(np.isfinite(naive.mean))
    assert np.all(low <= high)


def test_naive_posterior_keeps_batch_axes():
    public = laplace_release(BETA, "replace_one", 1.0)
    assert naive_posterior(public, np.zeros((4, 3, 1)), 5).mean.shape == (4, 3)


@pytest.mark.parametrize(
    ("adjacency", "released", "num_examples", "message"),
    [
        ("replace_one", [3.0], (), "num_examples must be a whole number"),
        ("add_remove", [3.0, 4.0], (7,), "num_examples must be None: it is private"),
        ("add_remove", [3.0], (), "released must be finite numbers, 2 on the last axis"),
        ("replace_one", [np.nan], (5,), "released must be finite"),
    ],
)
def test_naive_posterior_refuses(adjacency, released, num_examples, message):
    with pytest.raises(ValueError, match=message):
        naive_posterior(laplace_release(BETA, adjacency, 1.0), released, *num_examples)
