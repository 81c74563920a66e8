"""Observation model of released statistics, the prior of X^T X / n, and both as a numpyro model."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist

from dpjax._checks import (
    as_floats,
    as_numbers,
    check,
    check_function,
    check_positive,
    check_type,
)
from dpjax._typing import Numeric, PRNGKey
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
from dpjax.bayes.regression.statistics import RegressionStatistics


@dataclass(frozen=True)
class FeaturePrior:
    """Inverse-Wishart prior of the features' second moment E[x x^T], from public knowledge.

    Attributes:
      second_moment: its mean: one number for the mean square of every feature, or a matrix (d, d).
      num_examples: the number of records that the prior counts as. A large number fixes E[x x^T];
        X^T X / n still varies around it as for Gaussian features.

    Raises:
      ValueError: a number that is not above zero.
    """

    second_moment: Numeric
    _: KW_ONLY
    num_examples: Numeric = 1.0

    def __post_init__(self) -> None:
        check_positive("num_examples", self.num_examples)
        second_moment = as_numbers(self.second_moment, "second_moment")
        if second_moment.ndim == 0:
            check_positive("second_moment", self.second_moment)


class Observation(NamedTuple):
    """Released statistics as averages over the records of z z^T with z = (x, y).

    Attributes:
      average: the released statistics over n, ``(d + 1, d + 1)``.
      scale: the standard deviations of the noise on it, of the same shape.
      num_examples: n, but at least d + 1, where z z^T averages to a matrix of full rank.
    """

    average: jax.Array
    scale: jax.Array
    num_examples: jax.Array


class SecondMoment(NamedTuple):
    """Matrix-F distribution of S = X^T X / n: S ~ Wishart(k, F), F ~ inverse-Wishart(m, B).

    Source: Mulder & Pericchi (2018), "The matrix-F prior for estimating and testing covariance
    matrices", section 2.

    Attributes:
      degrees: k, above d - 1.
      prior_degrees: m, above d - 1.
      scale: B, ``(d, d)``.
    """

    degrees: jax.Array
    prior_degrees: jax.Array
    scale: jax.Array

    def log_density(self, log_det: jax.Array, log_det_sum: jax.Array) -> jax.Array:
        """Returns the log density up to a constant, from log|S| and log|S + B|."""
        dim = self.scale.shape[-1]
        total = self.degrees + self.prior_degrees
        return ((self.degrees - dim - 1) * log_det - total * log_det_sum) / 2


class SecondMomentCholesky(dist.Distribution):
    """The distribution of the Cholesky factor of a `SecondMoment` matrix, up to a constant."""

    support = dist.constraints.lower_cholesky

    def __init__(self, second_moment: SecondMoment) -> None:
        self.second_moment = second_moment
        super().__init__(event_shape=second_moment.scale.shape)

    def sample(self, key: PRNGKey, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Draws F, then the Cholesky factor of S given F, ``(*sample_shape, d, d)``."""
        first, second = jax.random.split(key)
        degrees, prior_degrees, scale = self.second_moment
        unit = jnp.eye(len(scale), dtype=scale.dtype)
        # numpyro adds integers to floats here.
        with jax.numpy_dtype_promotion("standard"):
            population = dist.InverseWishartCholesky(prior_degrees, scale)
            standard = dist.WishartCholesky(degrees, unit).sample(second, sample_shape)
            return population.sample(first, sample_shape) @ standard

    def log_prob(self, value: jax.Array) -> jax.Array:
        """Returns the matrix's log density plus the log volume factor of the factorisation."""
        diagonal = jnp.log(jnp.diagonal(value))
        total = log_det(value @ value.T + self.second_moment.scale)
        volume = jnp.sum(jnp.arange(len(value), 0, -1, dtype=value.dtype) * diagonal)
        return self.second_moment.log_density(2 * jnp.sum(diagonal), total) + volume


def observe(
    mechanism: PerturbedStatistics, released: RegressionStatistics, num_examples: Numeric
) -> Observation:
    """Returns a release and its noise scales in averages over the records.

    Raises:
      ValueError: statistics without yty or not of the mechanism's shape; no records.
    """
    check_type("mechanism", mechanism, PerturbedStatistics, "PerturbedStatistics")
    check_type("released", released, RegressionStatistics, "RegressionStatistics")
    with_yty = mechanism.scales.yty is not None and released.yty is not None
    check(with_yty, "released.yty", released.yty, "released, for unknown noise")
    dim = mechanism.num_features
    shapes, wanted = tuple(jnp.shape(part) for part in released), ((dim, dim), (dim,), ())
    check(shapes == wanted, "released", shapes, f"arrays of shapes {wanted}")
    check_positive("num_examples", num_examples)
    parts = [as_floats(part, f"released.{name}") for name, part in released._asdict().items()]
    scales = list(map(jnp.full_like, parts, mechanism.noise_scales))
    average, scale = (
        jnp.block([[xtx, xty[:, None]], [xty[None, :], yty[None, None]]])
        for xtx, xty, yty in (parts, scales)
    )
    n = jnp.asarray(num_examples, average.dtype)
    return Observation(average / n, scale / n, jnp.maximum(n, jnp.asarray(dim + 1, n.dtype)))


def second_moment_prior(
    features: FeaturePrior | None, mechanism: PerturbedStatistics, observation: Observation
) -> SecondMoment:
    """Returns the prior of X^T X / n: under Gaussian features given ``features``, or a vague one.

    The vague one has k = d and m = d + 2, and the mean square x_norm^2 / d of every feature for
    mean. Its density does not vanish at singular matrices: collinear and constant features are as
    likely as others.
    """
    dim, dtype = mechanism.num_features, observation.average.dtype
    identity = jnp.eye(dim, dtype=dtype)
    if features is None:
        scale = (mechanism.bounds.x_norm / dim) ** 2 * identity
        return SecondMoment(jnp.asarray(dim, dtype), jnp.asarray(dim + 2, dtype), scale)
    mean = jnp.asarray(features.second_moment, dtype)
    matrix = mean if mean.ndim == 2 else mean * identity
    worth, n = jnp.asarray(features.num_examples, dtype), observation.num_examples
    return SecondMoment(n, dim + 1 + worth, worth / n * matrix)


def log_det(matrix: jax.Array) -> jax.Array:
    """Returns the log determinant of a positive definite matrix."""
    return 2 * jnp.sum(jnp.log(jnp.diagonal(jnp.linalg.cholesky(matrix))))


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
    check_function("prior", prior)
    check_type("features", features, FeaturePrior | None, "a FeaturePrior or None")
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
