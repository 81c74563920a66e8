"""Noise-aware posterior of a linear regression: the noise of the release is part of the model.

The exact statistics are sampled given their noisy release.

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

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import numpyro
import numpyro.distributions as dist
from jax.scipy.linalg import solve_triangular
from numpyro.infer.hmc import HMCState, hmc

from dpjax._checks import (
    as_floats,
    as_key,
    as_numbers,
    check,
    check_count,
    check_delta,
    check_function,
    check_positive,
    check_type,
    is_traced,
)
from dpjax._html import HTMLTable, render_html
from dpjax._html_tables import draws_table, entry_names, entry_table
from dpjax._typing import Numeric, PRNGKey
from dpjax.bayes.regression.mechanisms import NoiseDistribution, PerturbedStatistics
from dpjax.bayes.regression.posterior import largest_noise_eigenvalue
from dpjax.bayes.regression.statistics import RegressionStatistics
from dpjax.mechanisms.base import Interval


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
        """Returns the log density of a Cholesky factor, the Jacobian of the product included."""
        diagonal = jnp.log(jnp.diagonal(value))
        total = log_det(value @ value.T + self.second_moment.scale)
        volume = jnp.sum(jnp.arange(len(value), 0, -1, dtype=value.dtype) * diagonal)
        return self.second_moment.log_density(2 * jnp.sum(diagonal), total) + volume


def observe(
    mechanism: PerturbedStatistics, released: RegressionStatistics, num_examples: Numeric
) -> Observation:
    """Returns a release and its noise scales in averages over the records."""
    check_type("mechanism", mechanism, PerturbedStatistics, "PerturbedStatistics")
    check_type("released", released, RegressionStatistics, "RegressionStatistics")
    with_yty = mechanism.scales.yty is not None and released.yty is not None
    check(with_yty, "released.yty", released.yty, "released, for unknown noise")

    # The statistics must be those that the mechanism releases.
    dim = mechanism.num_features
    shapes, wanted = tuple(jnp.shape(part) for part in released), ((dim, dim), (dim,), ())
    check(shapes == wanted, "released", shapes, f"arrays of shapes {wanted}")
    check_positive("num_examples", num_examples)

    # Blocks of z z^T, and of the deviations of its noise, over n.
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

    The vague one has k = d, m = d + 2 and the mean square x_norm_bound^2 / d of every feature for
    mean. Its density does not vanish at singular matrices: collinear and constant features are as
    likely as others.
    """
    dim, dtype = mechanism.num_features, observation.average.dtype
    identity = jnp.eye(dim, dtype=dtype)
    if features is None:
        scale = (mechanism.bounds.x_norm_bound / dim) ** 2 * identity
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
    ...     RegressionBounds(x_norm_bound=1.0, y_bound=1.0), epsilon=1.0, delta=1e-5,
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

    # Priors of the parameters and of X^T X / n.
    beta, variance = prior()
    root_prior = SecondMomentCholesky(second_moment_prior(features, mechanism, observation))
    root = numpyro.sample("feature_root", root_prior)
    second_moment = root @ root.T

    # The noise: X^T X is observed by its upper triangle.
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

    # The release given X^T X and the parameters.
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
    largest_x, largest_y = mechanism.bounds.x_norm_bound**2 / d, mechanism.bounds.y_bound**2

    # The origin: the released averages, raised to the noise and no larger than the bounds allow.
    values, vectors = jnp.linalg.eigh(average[:d, :d])
    values, vectors = values[::-1], vectors[:, ::-1]
    values = jnp.maximum(values, jnp.minimum(largest_noise_eigenvalue(noise[:d, :d]), largest_x))
    total = jnp.clip(average[d, d], jnp.minimum(noise[d, d], largest_y / 4), largest_y)
    start = vectors.T @ average[:d, d] / values
    # Not more than most of the targets' square is explained.
    explained = jnp.sum(values * start**2)
    start = start * jnp.minimum(1.0, jnp.sqrt(0.8 * total / jnp.maximum(explained, 1e-30)))
    residual = total - jnp.sum(values * start**2)

    # The scales: deviations of the noise in these coordinates, bounded by those of the prior.
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
    statistics = decode(unknowns, coordinates, observation, prior)
    d, n = len(statistics.targets), observation.num_examples
    rotated = coordinates.vectors.T @ statistics.features
    scale = coordinates.vectors.T @ second_moment.scale @ coordinates.vectors

    # The prior of S_xx.
    total = _compute_after(statistics.ridged, rotated @ rotated.T + scale)
    log_prior = second_moment.log_density(2 * jnp.sum(statistics.log_diagonal), log_det(total))

    # Of X^T y and the residuals given X, b and v integrated out.
    beside = (2 * prior.rate + prior.precision * jnp.sum(statistics.coefficients**2)) / n
    log_prior -= (prior.shape + d / 2) * jnp.log(statistics.residual)
    log_prior -= (prior.shape + n / 2) * jnp.log1p(beside / statistics.residual)

    # The volume factors of M (for S_xx), whose powers fall from d to 1.
    powers = jnp.arange(d, 0, -1, dtype=unknowns.dtype)
    volume = jnp.sum(powers * statistics.log_diagonal)

    # Of the release given S.
    cross = statistics.features @ statistics.targets
    square = statistics.residual + jnp.sum(statistics.targets**2)
    exact = jnp.block(
        [
            [statistics.features @ statistics.features.T, cross[:, None]],
            [cross[None, :], square[None, None]],
        ]
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
    scaled = unknowns * coordinates.scales

    # V D M, and the factor of K.
    lower = jnp.eye(d, dtype=scaled.dtype).at[np.tril_indices(d)].add(scaled[: -d - 1])
    rotated = coordinates.roots[:, None] * lower
    ridge = prior.precision / observation.num_examples * jnp.eye(d, dtype=scaled.dtype)
    ridged = jnp.linalg.cholesky(rotated.T @ rotated + ridge)

    # w = chol(K) u, and r.
    coefficients = coordinates.coefficients + scaled[-d - 1 : -1]
    diagonal = jnp.abs(jnp.diagonal(lower))
    return Statistics(
        features=coordinates.vectors @ rotated,
        targets=ridged @ coefficients,
        ridged=ridged,
        coefficients=coefficients,
        residual=coordinates.residual * jnp.exp(scaled[-1]),
        log_diagonal=jnp.log(jnp.maximum(diagonal, jnp.finfo(diagonal.dtype).tiny)),
    )


def draw_parameters(
    key: PRNGKey, statistics: Statistics, num_examples: jax.Array, prior: ConjugatePrior
) -> tuple[jax.Array, jax.Array]:
    """Draws coefficients ``(d,)`` and residual variance from their conjugate posterior given S."""
    gamma_key, normal_key = jax.random.split(key)
    root, n = statistics.features, num_examples
    d, dtype = len(root), root.dtype
    beside = (2 * prior.rate + prior.precision * jnp.sum(statistics.coefficients**2)) / n
    gamma = jax.random.gamma(gamma_key, prior.shape + n / 2, dtype=dtype)
    variance = n / 2 * (statistics.residual + beside) / gamma
    mean = root @ solve_triangular(statistics.ridged, statistics.coefficients, lower=True, trans=1)
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


# Limits of the warning: quantiles of a 90 % interval are off by about 0.1 deviations at 200 draws.
_LEAST_ESS = 200
_LARGEST_R_HAT = 1.05
# Doublings of a trajectory: of warm-up, where steps may be far too small, and after it.
_TREE_DEPTHS = (5, 7)


class RegressionDraws(NamedTuple):
    """Posterior draws of a linear regression, with effective sample sizes and split R-hat.

    Attributes:
      beta: coefficients, of shape (num_draws, d); one chain after the other.
      sigma2: the residuals' variance, of shape (num_draws,).
      ess: effective sample sizes of the coefficients and of log sigma2, of shape (d + 1,).
      r_hat: split R-hat of the same, of shape (d + 1,): near one for chains that agree.
    """

    beta: jax.Array
    sigma2: jax.Array
    ess: jax.Array | None = None
    r_hat: jax.Array | None = None

    def _repr_html_(self) -> str | None:
        # One posterior; of many, made under vmap, the text is shown.
        if np.ndim(self.beta) != 2:
            return None
        beta = draws_table("", "beta", self.beta)
        variance = draws_table("", "sigma2", self.sigma2)
        tables = [HTMLTable("Posterior draws", [*beta.rows, *variance.rows], beta.columns)]
        if self.ess is not None and self.r_hat is not None:
            names = [*entry_names("beta", np.shape(self.beta)[1:]), "log sigma2"]
            columns = {"effective sample size": self.ess, "split R-hat": self.r_hat}
            tables.append(entry_table("Convergence of the chains", names, columns))
        return render_html(f"RegressionDraws: {len(self.beta):,} draws", tables)


def noise_aware_posterior(
    key: PRNGKey,
    mechanism: PerturbedStatistics,
    released: RegressionStatistics,
    *,
    num_examples: Numeric,
    prior_precision: Numeric | None = None,
    noise_shape: Numeric = 1.5,
    noise_rate: Numeric | None = None,
    features: FeaturePrior | None = None,
    num_draws: int = 2_000,
    num_warmup: int = 500,
    num_chains: int = 4,
) -> RegressionDraws:
    """Returns draws from the posterior for y ~ N(x^T b, v), b ~ N(0, v I / prior_precision).

    The mixture of `unknown_noise_posterior` over the posterior of the exact statistics given the
    release. The parameters are integrated out in closed form, NUTS samples the statistics, and each
    draw of them gives one draw of the parameters. Unlike the intervals of a posterior that treats
    the release as exact, these widen with the noise and keep their coverage.

    The distribution of X^T y and y^T y given X^T X is exact for any features and any n > d. Only
    the prior of X^T X is a model: with ``features``, that of Gaussian features around zero.

    Privacy:
      Post-processing of the release. ``num_examples`` is public under replace-one and zero-out;
      under add/remove it is private, and has to be released too.

    Source: Bernstein & Sheldon (2019), "Differentially private Bayesian linear regression", with
    parameters marginalised and NUTS, Hoffman & Gelman (2014), instead of their Gibbs sampler.

    Args:
      key: a JAX key for the draws, which need not be secret.
      mechanism: the mechanism of the release, with yty.
      released: result of ``mechanism.release``, without `repair`.
      num_examples: number of records; fewer than d + 1 count as d + 1.
      prior_precision: above zero, over the noise's own precision; by default a tenth of
        x_norm_bound^2.
      noise_shape: of the inverse-gamma prior of v, above zero.
      noise_rate: likewise; by default y_bound^2 / 25. By the default shape and rate, 90 % of the
        prior standard deviations are between a tenth and a half of y_bound.
      features: prior of E[x x^T]. By default a vague one of X^T X / n (matrix-F) with the mean
        x_norm_bound^2 / d of every feature's square, which does not exclude collinear features.
      num_draws: kept, a multiple of ``num_chains``, and at least four times as many.
      num_warmup: iterations of each chain before them, which adapt step size and scales.
      num_chains: independent ones.

    Returns:
      The draws, with effective sample sizes and split R-hat. Works under jit and vmap, where no
      warning is given: look at ``ess`` and ``r_hat``. A step costs O(d^3).

    Raises:
      ValueError: statistics without yty or not of the mechanism's shape; a number that is not
        allowed.
      TypeError: statistics that are not real numbers.

    Warns:
      UserWarning: an effective sample size below 200 or a split R-hat above 1.05.

    >>> from dpjax.bayes.regression import RegressionBounds
    >>> mechanism = PerturbedStatistics.from_epsilon(
    ...     RegressionBounds(x_norm_bound=1.0, y_bound=1.0), epsilon=1.0, delta=1e-5,
    ...     adjacency="replace_one", num_features=1
    ... )
    >>> data = RegressionStatistics(jnp.eye(1) * 900, jnp.array([450.0]), jnp.array(270.0))
    >>> released = mechanism.release(jax.random.key(1), data)
    >>> draws = noise_aware_posterior(jax.random.key(0), mechanism, released, num_examples=900)
    >>> draws.beta.shape, round(float(draws.beta.mean()), 1), bool((draws.ess > 200).all())
    ((2000, 1), 0.5, True)
    """
    check_type("features", features, FeaturePrior | None, "a FeaturePrior or None")
    observation = observe(mechanism, released, num_examples)
    if prior_precision is None:
        prior_precision = mechanism.bounds.x_norm_bound**2 / 10
    if noise_rate is None:
        noise_rate = mechanism.bounds.y_bound**2 / 25
    check_positive("prior_precision", prior_precision)
    check_positive("noise_shape", noise_shape)
    check_positive("noise_rate", noise_rate)
    check_count("num_chains", num_chains)
    check_count("num_draws", num_draws, minimum=4 * num_chains)
    allowed = f"a multiple of num_chains = {num_chains}"
    check(num_draws % num_chains == 0, "num_draws", num_draws, allowed)
    check_count("num_warmup", num_warmup, minimum=0)

    # The model, in coordinates in which the chains move easily.
    dtype = observation.average.dtype
    numbers = (prior_precision, noise_shape, noise_rate)
    prior = ConjugatePrior(*(jnp.asarray(number, dtype) for number in numbers))
    second_moment = second_moment_prior(features, mechanism, observation)
    coordinates = make_coordinates(observation, prior, mechanism)

    # NUTS over the statistics, and the parameters given each draw of them.
    draws = _sample(
        jax.random.split(as_key(key), num_chains),
        (coordinates, observation, second_moment, prior),
        mechanism.noise_distribution,
        num_draws // num_chains,
        num_warmup,
    )
    if is_traced(draws.ess):
        return draws

    # Did the chains mix?
    ess, r_hat = float(jnp.min(draws.ess)), float(jnp.max(draws.r_hat))
    if not (ess >= _LEAST_ESS and r_hat <= _LARGEST_R_HAT):
        warnings.warn(
            f"the chains of noise_aware_posterior mixed poorly: least effective sample size"
            f" {ess:.0f} (below {_LEAST_ESS} is too few), largest split R-hat {r_hat:.3f} (above"
            f" {_LARGEST_R_HAT} is too large). Raise num_draws and num_warmup.",
            UserWarning,
            stacklevel=2,
        )
    return draws


def coefficient_interval(draws: RegressionDraws, level: float) -> Interval:
    """Returns the central credible interval of each coefficient.

    Args:
      draws: from a posterior.
      level: the probability, in (0, 1), of each interval; not of all together.

    Returns:
      Both ends, each ``(d,)``.

    Raises:
      ValueError: ``level`` is not in (0, 1).

    >>> draws = RegressionDraws(jnp.arange(101.0)[:, None], jnp.ones(101))
    >>> [end.tolist() for end in coefficient_interval(draws, 0.9)]
    [[5.0], [95.0]]
    """
    check_type("draws", draws, RegressionDraws, "RegressionDraws")
    return _central(draws.beta, level)


def prediction_interval(
    key: PRNGKey, draws: RegressionDraws, x: npt.ArrayLike, level: float
) -> Interval:
    """Returns the central predictive interval of the target of each new record.

    Args:
      key: a JAX key, for the residuals of the new records.
      draws: from a posterior.
      x: features ``(m, d)`` of new records. They are not protected here.
      level: the probability, in (0, 1), with which each interval covers its target.

    Returns:
      Both ends, each ``(m,)``.

    Raises:
      ValueError: ``level`` is not in (0, 1).

    >>> draws = RegressionDraws(jnp.ones((20_000, 1)), jnp.full(20_000, 4.0))
    >>> interval = prediction_interval(jax.random.key(0), draws, [[3.0]], 0.9)
    >>> [round(float(end[0])) for end in interval]
    [0, 6]
    """
    check_type("draws", draws, RegressionDraws, "RegressionDraws")
    x = as_floats(x, "x")
    check(x.ndim == 2, "x", x.shape, "of shape (n, d)")
    means = draws.beta @ x.astype(draws.beta.dtype).T
    normals = jax.random.normal(as_key(key), means.shape, means.dtype)
    return _central(means + jnp.sqrt(draws.sigma2)[:, None] * normals, level)


def _central(values: jax.Array, level: float) -> Interval:
    check_delta(level, "level")
    tail = (1 - level) / 2
    return Interval(*jnp.quantile(values, jnp.array([tail, 1 - tail]), axis=0))


@functools.partial(jax.jit, static_argnames=("noise_distribution", "num_draws", "num_warmup"))
def _sample(
    keys: jax.Array,
    model: tuple[Coordinates, Observation, SecondMoment, ConjugatePrior],
    noise_distribution: NoiseDistribution,
    num_draws: int,
    num_warmup: int,
) -> RegressionDraws:
    """One chain for each key, and the diagnostics of all."""
    chain = functools.partial(_run_chain, model, noise_distribution, num_draws, num_warmup)
    # numpyro's NUTS divides floats by integers.
    with jax.numpy_dtype_promotion("standard"):
        beta, sigma2 = jax.vmap(chain)(keys)
    values = jnp.concatenate([beta, jnp.log(sigma2)[..., None]], axis=-1)
    ess, r_hat = effective_sample_size(values), split_r_hat(values)
    return RegressionDraws(beta.reshape(-1, beta.shape[-1]), sigma2.reshape(-1), ess, r_hat)


def _run_chain(
    model: tuple[Coordinates, Observation, SecondMoment, ConjugatePrior],
    noise_distribution: NoiseDistribution,
    num_draws: int,
    num_warmup: int,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """NUTS over the statistics, and one draw of the parameters for each draw of them."""
    coordinates, observation, second_moment, prior = model
    start_key, chain_key, draw_key = jax.random.split(key, 3)

    # The chain starts near the posterior's mode.
    density = functools.partial(
        log_density,
        coordinates=coordinates,
        observation=observation,
        second_moment=second_moment,
        prior=prior,
        noise_distribution=noise_distribution,
    )
    scales = coordinates.scales
    start = jax.random.normal(start_key, scales.shape, scales.dtype) / 10
    initialise, step = hmc(lambda unknowns: -density(unknowns), algo="NUTS")
    state = initialise(
        start, num_warmup, step_size=0.3, max_tree_depth=_TREE_DEPTHS, rng_key=chain_key
    )

    # Warm-up, which adapts step size and scales, and the draws.
    def keep(state: HMCState, _: None) -> tuple[HMCState, jax.Array]:
        state = step(state)
        return state, state.z

    _, unknowns = jax.lax.scan(keep, state, length=num_warmup + num_draws)

    # One draw of the parameters for each of the statistics.
    def draw(key: jax.Array, unknowns: jax.Array) -> tuple[jax.Array, jax.Array]:
        statistics = decode(unknowns, coordinates, observation, prior)
        return draw_parameters(key, statistics, observation.num_examples, prior)

    return jax.vmap(draw)(jax.random.split(draw_key, num_draws), unknowns[num_warmup:])


def split_r_hat(draws: jax.Array) -> jax.Array:
    """Returns split R-hat of draws ``(num_chains, num_draws, ...)``, as numpyro, also under jit.

    Source: Gelman et al. (2013), "Bayesian data analysis", section 11.4.
    """
    half = draws.shape[1] // 2
    within, total = _variances(jnp.concatenate([draws[:, :half], draws[:, -half:]]))
    return jnp.sqrt(total / within)


def effective_sample_size(draws: jax.Array) -> jax.Array:
    """Returns the effective sample size of draws ``(num_chains, num_draws, ...)``.

    Source: Gelman et al. (2013), section 11.5, with the initial monotone sequence of Geyer (1992).
    """
    num_chains, length = draws.shape[:2]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = jnp.fft.rfft(centred, 2 * length, axis=1)
    products = jnp.fft.irfft((spectrum * spectrum.conj()).real, 2 * length, axis=1)[:, :length]

    # Autocorrelations, and the sums of pairs of them.
    within, total = _variances(draws)
    correlation = 1 - (within[None] - products.mean(axis=0) / length) / total[None]
    correlation = correlation.at[0].set(1.0)
    pairs = correlation[: length - length % 2].reshape(-1, 2, *draws.shape[2:]).sum(axis=1)

    # The first pair is kept whatever its sign; the sum of the others ends at a negative one.
    later = jnp.where(jax.lax.cummin(pairs[1:], axis=0) > 0, pairs[1:], 0.0)
    monotone = jax.lax.cummin(jnp.concatenate([pairs[:1], later]), axis=0)
    return num_chains * length / (2 * monotone.sum(axis=0) - 1)


def _variances(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Within the chains, and of all draws together, both unbiased."""
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    total = within * ((length - 1) / length)
    if len(draws) == 1:
        return total, total
    return within, total + draws.mean(axis=1).var(axis=0, ddof=1)
