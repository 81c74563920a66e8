"""Posterior density of the exact statistics of a regression, given their noisy release.

With S the average of z z^T over n records, z = (x, y), the parameters are integrated out in closed
form (Murphy (2012), section 7.6.3): given X, X^T y and the residual sum of squares have their exact
distributions, whatever the features are, and y ~ N(x^T b, v) with the conjugate prior of b and v.
S_xx has the prior of `second_moment_prior`. What is left is the density of S, over d + 1 times
d + 2 over 2 unknowns, and parameters given S are drawn independently.

S = L L^T for L = [[V D M, 0], [w^T, sqrt(r)]], where V holds the eigenvectors of the released
S_xx and D the roots of its eigenvalues, raised to the noise's. The unknowns are the lower triangle
of M, which is near the identity, u with w = chol(K) u, and log r, where K = (V D M)^T V D M +
prior_precision / n: u has nearly one scale however near to singular S_xx is.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

from dpjax._typing import Numeric, PRNGKey
from dpjax.bayes.regression.budget_allocation import NoiseDistribution
from dpjax.bayes.regression.observation_model import Observation, SecondMoment, log_det
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
from dpjax.bayes.regression.posterior import largest_noise_eigenvalue


class ConjugatePrior(NamedTuple):
    """b ~ N(0, v I / precision), v ~ inverse-gamma(shape, rate)."""

    precision: jax.Array
    shape: jax.Array
    rate: jax.Array


class Coordinates(NamedTuple):
    """Origin and scales of the unknowns: roughly the posterior mean and standard deviations.

    Attributes:
      vectors: V, ``(d, d)``.
      roots: the diagonal of D, ``(d,)``.
      coefficients: u at zero, ``(d,)``.
      residual: r at zero, ``()``.
      scales: of M's lower triangle, u and log r, ``((d + 1) (d + 2) / 2,)``.
    """

    vectors: jax.Array
    roots: jax.Array
    coefficients: jax.Array
    residual: jax.Array
    scales: jax.Array


class Statistics(NamedTuple):
    """The exact statistics S as the blocks of their factor L; notation as in the module."""

    features: jax.Array  # V D M
    targets: jax.Array  # w
    ridged: jax.Array  # chol(K)
    coefficients: jax.Array  # u
    residual: jax.Array  # r
    log_diagonal: jax.Array  # log |diagonal of M|


def make_coordinates(
    observation: Observation, prior: ConjugatePrior, mechanism: PerturbedStatistics
) -> Coordinates:
    """Returns coordinates in which the posterior is near zero and of deviations near one."""
    average, noise = observation.average, observation.scale
    d = len(average) - 1
    largest_x, largest_y = mechanism.bounds.x_norm**2 / d, mechanism.bounds.y_size**2
    values, vectors = jnp.linalg.eigh(average[:d, :d])
    values, vectors = values[::-1], vectors[:, ::-1]
    values = jnp.maximum(values, jnp.minimum(largest_noise_eigenvalue(noise[:d, :d]), largest_x))
    total = jnp.clip(average[d, d], jnp.minimum(noise[d, d], largest_y / 4), largest_y)
    start = vectors.T @ average[:d, d] / values
    # Not more than most of the targets' square is explained.
    explained = jnp.sum(values * start**2)
    start = start * jnp.minimum(1.0, jnp.sqrt(0.8 * total / jnp.maximum(explained, 1e-30)))
    residual = total - jnp.sum(values * start**2)

    square = vectors.T**2
    of_features = square @ noise[:d, :d] ** 2 @ square.T
    of_targets = (square @ noise[:d, d] ** 2 + of_features @ start**2) / values**2
    relative = of_features / (values[:, None] * values[None, :])
    relative = relative * (1 - 0.75 * jnp.eye(d, dtype=relative.dtype))
    variances = [
        _bounded(relative, 1.0)[np.tril_indices(d)],
        _bounded(of_targets, residual / prior.precision),
        _bounded((noise[d, d] / residual) ** 2, 1.0)[None],
    ]
    scales = jnp.sqrt(jnp.concatenate(variances))
    return Coordinates(vectors, jnp.sqrt(values), start, residual, scales)


def log_density(
    unknowns: jax.Array,
    coordinates: Coordinates,
    observation: Observation,
    second_moment: SecondMoment,
    prior: ConjugatePrior,
    noise_distribution: NoiseDistribution,
) -> jax.Array:
    """Returns the log posterior density of the unknowns, up to a constant."""
    found = decode(unknowns, coordinates, observation, prior)
    d, n = len(found.targets), observation.num_examples
    rotated = coordinates.vectors.T @ found.features
    scale = coordinates.vectors.T @ second_moment.scale @ coordinates.vectors
    total = _compute_after(found.ridged, rotated @ rotated.T + scale)
    log_prior = second_moment.log_density(2 * jnp.sum(found.log_diagonal), log_det(total))
    # Of X^T y and the residuals given X, b and v integrated out.
    beside = (2 * prior.rate + prior.precision * jnp.sum(found.coefficients**2)) / n
    log_prior -= (prior.shape + d / 2) * jnp.log(found.residual)
    log_prior -= (prior.shape + n / 2) * jnp.log1p(beside / found.residual)
    # The volume factors of M (for S_xx), whose powers fall from d to 1.
    powers = jnp.arange(d, 0, -1, dtype=unknowns.dtype)
    volume = jnp.sum(powers * found.log_diagonal)
    # Of the release given S.
    cross = found.features @ found.targets
    square = found.residual + jnp.sum(found.targets**2)
    exact = jnp.block(
        [[found.features @ found.features.T, cross[:, None]], [cross[None, :], square[None, None]]]
    )
    noise = ((observation.average - exact) / observation.scale)[np.triu_indices(d + 1)]
    if noise_distribution == "gaussian":
        return log_prior + volume - jnp.sum(noise**2) / 2
    return log_prior + volume - math.sqrt(2) * jnp.sum(jnp.abs(noise))


def decode(
    unknowns: jax.Array, coordinates: Coordinates, observation: Observation, prior: ConjugatePrior
) -> Statistics:
    """Returns S in factors at the unknowns, ``((d + 1) (d + 2) / 2,)``."""
    d = len(coordinates.roots)
    moves = unknowns * coordinates.scales
    lower = jnp.eye(d, dtype=moves.dtype).at[np.tril_indices(d)].add(moves[: -d - 1])
    rotated = coordinates.roots[:, None] * lower
    ridge = prior.precision / observation.num_examples * jnp.eye(d, dtype=moves.dtype)
    ridged = jnp.linalg.cholesky(rotated.T @ rotated + ridge)
    coefficients = coordinates.coefficients + moves[-d - 1 : -1]
    diagonal = jnp.abs(jnp.diagonal(lower))
    return Statistics(
        features=coordinates.vectors @ rotated,
        targets=ridged @ coefficients,
        ridged=ridged,
        coefficients=coefficients,
        residual=coordinates.residual * jnp.exp(moves[-1]),
        log_diagonal=jnp.log(jnp.maximum(diagonal, jnp.finfo(diagonal.dtype).tiny)),
    )


def draw_parameters(
    key: PRNGKey, found: Statistics, num_examples: jax.Array, prior: ConjugatePrior
) -> tuple[jax.Array, jax.Array]:
    """Draws coefficients ``(d,)`` and residual variance from their conjugate posterior given S."""
    gamma_key, normal_key = jax.random.split(key)
    root, n = found.features, num_examples
    d, dtype = len(root), root.dtype
    beside = (2 * prior.rate + prior.precision * jnp.sum(found.coefficients**2)) / n
    gamma = jax.random.gamma(gamma_key, prior.shape + n / 2, dtype=dtype)
    variance = n / 2 * (found.residual + beside) / gamma
    mean = root @ solve_triangular(found.ridged, found.coefficients, lower=True, trans=1)
    ridge = prior.precision / n * jnp.eye(d, dtype=dtype)
    factor = jnp.linalg.cholesky(_compute_after(mean, root @ root.T + ridge))
    normals = jax.random.normal(normal_key, (d,), dtype)
    spread = solve_triangular(factor, normals, lower=True, trans=1)
    return mean + jnp.sqrt(variance / n) * spread, variance


def _compute_after(earlier: jax.Array, matrix: jax.Array) -> jax.Array:
    """Returns ``matrix``, which is computed after ``earlier``.

    Under vmap, factorisations that run at the same time can wait for each other without end on a
    CPU with two cores (jaxlib 0.10): each occupies a thread of the pool that its parts wait for.
    XLA keeps the order of what depends on each other, and does not drop a floating-point 0 * x.
    """
    return matrix + 0 * jnp.sum(earlier)


def _bounded(variance: jax.Array, largest: Numeric) -> jax.Array:
    """Nearly the smaller of two variances."""
    return variance * largest / (variance + largest)
