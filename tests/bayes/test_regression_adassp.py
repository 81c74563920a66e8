"""AdaSSP: its three parts, its ridge, and its certificate."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.accounting import gdp
from dpjax.bayes.regression import AdaSSP, RegressionBounds, sufficient_statistics

BOUNDS = RegressionBounds(x_norm_bound=2.0, y_bound=3.0)
D = 4
FALSE_ALARM = 1e-6


def mechanism(adjacency="add_remove", epsilon=1.0, delta=1e-4):
    return AdaSSP.from_epsilon(
        BOUNDS, epsilon=epsilon, delta=delta, adjacency=adjacency, num_features=D
    )


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_certificate_is_of_three_equal_parts(adjacency):
    made = mechanism(adjacency)
    mus = np.array([part.mu for part in made.parts])
    np.testing.assert_allclose(mus, made.mu / math.sqrt(3))
    assert gdp.delta(made.mu, 1.0) == pytest.approx(1e-4, rel=1e-6)
    assert made.certificate(1e-4).epsilon == pytest.approx(1.0, rel=1e-3)
    assert made.num_releases == 3
    assert made.with_privacy_factor(2.0).parts[2].scale == pytest.approx(2 * made.parts[2].scale)


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_sensitivity_of_the_smallest_eigenvalue(adjacency):
    stated = mechanism(adjacency).parts[2].sensitivity.value
    rng = np.random.default_rng(0)
    largest = 0.0
    for _ in range(300):
        rows = rng.normal(size=(int(rng.integers(1, 9)), D))
        one, other = rng.normal(size=(2, D))
        one, other = (2 * row / np.linalg.norm(row) for row in (one, other))
        other = other if adjacency == "replace_one" else np.zeros(D)
        ends = [np.linalg.eigvalsh(rows.T @ rows + np.outer(row, row))[0] for row in (one, other)]
        largest = max(largest, abs(ends[0] - ends[1]))
    assert largest <= stated * (1 + 1e-9)
    # Three directions are held well, the fourth by the record alone.
    held = 100 * np.diag([1.0, 1.0, 1.0, 0.0])
    record = np.diag([0.0, 0.0, 0.0, 4.0])
    assert np.linalg.eigvalsh(held + record)[0] - np.linalg.eigvalsh(held)[0] >= 0.99 * stated


def releases(exact, made, num=2_000):
    keys = jax.random.split(jax.random.key(0), num)
    return jax.jit(jax.vmap(lambda key: made.release(key, exact)))(keys)


@pytest.mark.slow
def test_release_has_the_ridge_of_the_source():
    made = mechanism()
    scale = made.parts[2].scale
    assert made.parts[0].scale == made.parts[2].scale
    exact = sufficient_statistics(jnp.eye(D) * 30, jnp.ones(D))
    seen = releases(exact, made)
    # 900 is far above zero, so that the noise is all there.
    noise = np.asarray(seen.smallest_eigenvalue) - (900 - scale * math.sqrt(math.log(6e4)))
    assert stats.kstest(noise / scale, "norm").pvalue > FALSE_ALARM
    assert stats.kstest(noise / scale / 1.3, "norm").pvalue < FALSE_ALARM  # the power check
    needed = scale * math.sqrt(D * math.log(2 * D**2 / 0.05))
    weak = releases(sufficient_statistics(jnp.eye(D), jnp.ones(D)), made)
    expected = np.maximum(needed - np.asarray(weak.smallest_eigenvalue), 0)
    np.testing.assert_allclose(weak.ridge, expected, rtol=1e-5)
    assert (np.asarray(weak.smallest_eigenvalue) >= 0).all()


@pytest.mark.slow
def test_ridged_is_positive_definite_but_for_the_failure_probability():
    made = mechanism()
    seen = releases(sufficient_statistics(jnp.zeros((0, D)), jnp.zeros(0)), made)
    ridged = jax.vmap(lambda one: one.ridged.xtx)(seen)
    failures = int((np.linalg.eigvalsh(ridged)[:, 0] <= 0).sum())
    assert stats.binom.sf(failures - 1, len(ridged), made.failure_probability) > FALSE_ALARM
    # The power check: without the ridge it nearly always fails.
    raw = int((np.linalg.eigvalsh(seen.statistics.xtx)[:, 0] <= 0).sum())
    assert stats.binom.sf(raw - 1, len(ridged), made.failure_probability) < FALSE_ALARM


def test_release_with_many_records_has_no_ridge_and_no_yty():
    exact = sufficient_statistics(jnp.eye(D) * 100, jnp.ones(D))
    released = jax.jit(mechanism().release)(jax.random.key(0), exact)
    assert float(released.ridge) == 0
    assert released.statistics.yty is None
    assert mechanism().noise_scales.yty is None
