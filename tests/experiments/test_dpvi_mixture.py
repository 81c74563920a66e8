"""The private mixture: its records, its density, its rows and picture."""

import jax
import jax.numpy as jnp
import numpy as np

from experiments.dpvi.mixture import (
    MEANS,
    VARIANCE,
    draw_records,
    new_guide,
    predictive_log_density,
    true_log_density,
)

TRUTH = {"weights": jnp.full(5, 0.2), "means": MEANS, "variances": jnp.full(5, VARIANCE)}


def test_draw_records_has_the_moments_of_the_mixture():
    records = np.asarray(draw_records(jax.random.key(0), 40_000))
    # Five standard errors: a false alarm of 2e-6.
    covariance = VARIANCE * np.eye(2) + np.cov(MEANS.T, bias=True)
    error = 5 * np.sqrt(covariance[0, 0] / len(records))
    assert np.abs(records.mean(axis=0)).max() < error
    np.testing.assert_allclose(np.cov(records.T), covariance, atol=0.1)


def test_predictive_log_density_of_a_narrow_guide_is_that_of_its_centre():
    records = draw_records(jax.random.key(2), 200)
    params = {
        "weights_auto_loc": jnp.zeros(4),
        "variances_auto_loc": jnp.log(TRUTH["variances"]),
        "means_auto_loc": MEANS,
    }
    scales = {
        name.replace("loc", "scale"): jnp.full_like(value, 1e-4) for name, value in params.items()
    }
    # Equal weights are where numpyro's stick-breaking transform is zero.
    found = predictive_log_density(new_guide(), {**params, **scales}, records, jax.random.key(0), 3)
    np.testing.assert_allclose(found, true_log_density(records), atol=2e-3)
