"""A numpyro model of a linear regression given released noisy statistics, for any prior."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from dpjax._typing import Numeric
from dpjax.bayes.regression.observation_model import (
    FeaturePrior,
    SecondMomentCholesky,
    observe,
    second_moment_prior,
)
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
from dpjax.bayes.regression.statistics import RegressionStatistics


def released_regression(
    prior: Callable[[], tuple[jax.Array, jax.Array]],
    mechanism: PerturbedStatistics,
    released: RegressionStatistics,
    num_examples: Numeric,
    features: FeaturePrior | None = None,
) -> None:
    """Numpyro model of y ~ N(x^T b, v) given released noisy statistics, for NUTS or SVI.

    The model of `noise_aware_posterior` with any prior. X^T X / n is a latent variable. Given it,
    X^T y and y^T y are integrated out by the central limit theorem, a normal distribution with
    their exact mean and covariance, so the model is for many records. For Laplace noise the
    variance of each of their entries is one more latent variable.

    Privacy: post-processing of the release.

    Args:
      prior: samples the coefficients ``(d,)`` and the residuals' variance, and returns both.
      mechanism: the mechanism of the release, with yty.
      released: result of ``mechanism.release``, without `repair`.
      num_examples: number of records; public, or released too.
      features: as in `noise_aware_posterior`.

    Raises:
      ValueError: statistics without yty or not of the mechanism's shape; no records.

    Source: Bernstein & Sheldon (2019) for the model.

    >>> from dpjax.bayes.regression import RegressionBounds
    >>> mechanism = PerturbedStatistics.from_epsilon(
    ...     RegressionBounds(x_norm=1.0, y_size=1.0), epsilon=1.0, delta=1e-5,
    ...     adjacency="replace_one", num_features=1
    ... )
    >>> data = RegressionStatistics(jnp.eye(1) * 900, jnp.array([450.0]), jnp.array(270.0))
    >>> released = mechanism.release(jax.random.key(1), data)
    >>> def prior():
    ...     b = numpyro.sample("b", dist.StudentT(3, 0, 1).expand([1]).to_event(1))
    ...     return b, numpyro.sample("v", dist.HalfNormal(1))
    >>> kernel = numpyro.infer.NUTS(released_regression)
    >>> mcmc = numpyro.infer.MCMC(kernel, num_warmup=200, num_samples=200, progress_bar=False)
    >>> mcmc.run(jax.random.key(2), prior, mechanism, released, 900)
    >>> round(float(mcmc.get_samples()["b"].mean()), 1)
    0.5
    """
    observation = observe(mechanism, released, num_examples)
    average, noise, n = observation
    beta, variance = prior()
    root_prior = SecondMomentCholesky(second_moment_prior(features, mechanism, observation))
    root = numpyro.sample("feature_root", root_prior)
    second_moment = root @ root.T
    dim, upper = len(root), np.triu_indices(len(root))
    exact, deviations = second_moment[upper], noise[:dim, :dim][upper]
    noise_variances = noise[:, -1] ** 2
    if mechanism.noise_distribution == "gaussian":
        of_features = dist.Normal(exact, deviations)
    else:
        of_features = dist.Laplace(exact, deviations / math.sqrt(2))
        # Conditionally Gaussian noise of exponential variance, Park & Casella (2008), equation 4.
        exponential = dist.Exponential(1.0).expand(noise_variances.shape)
        units = numpyro.sample("noise_units", exponential.to_event(1))
        noise_variances = noise_variances * units
    observed = average[:dim, :dim][upper]
    numpyro.sample("released_xtx", of_features.to_event(1), obs=observed)
    mean, covariance = _moments_given_features(second_moment, beta, variance, n)
    joint = dist.MultivariateNormal(mean, covariance + jnp.diag(noise_variances))
    numpyro.sample("released_targets", joint, obs=average[:, -1])


def _moments_given_features(
    second_moment: jax.Array, beta: jax.Array, variance: jax.Array, num_examples: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Mean and covariance of X^T y / n and y^T y / n given X: exact, for any features."""
    cross = second_moment @ beta
    explained = beta @ cross
    mean = jnp.append(cross, explained + variance)
    corner = 4 * explained * variance + 2 * variance**2
    blocks = [
        [second_moment * variance, 2 * variance * cross[:, None]],
        [2 * variance * cross[None, :], corner[None, None]],
    ]
    return mean, jnp.block(blocks) / num_examples
