"""Noise-aware posterior of DPSVI with a multivariate normal guide, by NUTS.

A step draws the latent variables theta_t from the guide, which all records share, and releases the
noisy sum g_t of the records' gradients at them. Where the log-likelihood is quadratic,

  g_t = H (theta_t - theta_hat) + e_t,

with a symmetric curvature H and noise e_t that is independent of theta_t given the past, whatever
guide and optimiser. A regression of g_t on theta_t has H and the mean gradient. The posterior is
the model's own prior times the density of that mean gradient given theta, whose noise includes that
of the records (their score at theta has the variance H) and that of the steps: NUTS draws from it.

H has d (d + 1) / 2 entries, which the trace of a noisy run does not determine each by itself. Off
the diagonal they are normal a priori, with mean zero and a standard deviation that predicts the
gradients of one half of the tail best from the other: in the coordinates of the latent variables,
scaled by the guide, or in those in which the guide's draws are independent.

In the directions in which noise and H are both diagonal the gradient of one is a regression by
itself, with its own curvature. Draws of the curvature are those of this regression, and the latent
variables are drawn given it: the density above is divided by that of the mean gradient given the
curvature alone, under a normal approximation of the prior in each direction by itself. Otherwise a
curvature near zero, which allows all that the prior does, would have more weight than the
regression gives it, the more so the less likely the estimate is a priori.
"""

import math
import warnings
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import numpyro.distributions as dist
from numpyro.diagnostics import split_gelman_rubin
from numpyro.handlers import block, seed, substitute, trace
from numpyro.infer.hmc import HMCState, hmc
from numpyro.infer.util import constrain_fn, potential_energy
from numpyro.ops.provenance import eval_provenance
from scipy.sparse.linalg import LinearOperator, cg

from dpjax._checks import as_key, check_count
from dpjax._typing import PRNGKey
from dpjax.bayes.variational.elbo import ELBOTerms, Site, in_plate, log_prob
from dpjax.bayes.variational.gradient_trace import (
    TailProducts,
    TailSums,
    shift_products,
    shift_sums,
)
from dpjax.bayes.variational.model_args import Leaves, ModelArgs, Values
from dpjax.bayes.variational.noise_aware import (
    NoiseAwarePosterior,
    OptimumFit,
    compare_blocks,
    prior_range,
    remove_feedback_bias,
)

Array: TypeAlias = npt.NDArray[np.float64]

# Standard deviations of the prior of entries of H off the diagonal, as correlations.
_SCALES = (0.0, 0.03, 0.1, 0.3, 1.0)
# Of the tail: fewer leave the covariance of the gradients' noise too uncertain.
_STEPS_PER_LATENT = 10
_NUM_CHAINS, _NUM_WARMUP = 4, 500
_LEAST_DRAWS = 250  # of each chain
_SOLVED_DIRECTLY = 30  # latent variables: d^2 linear equations
_LARGEST_R_HAT, _LARGEST_DIVERGING = 1.05, 0.01
# Of the regressions in messages.
IN_DIRECTIONS = "latent variables, in directions of the curvature"


class CurvatureFit(NamedTuple):
    """Curvature of the log-likelihood, estimated from a run's noisy gradients.

    Attributes:
      directions: ``(k, k)``, rows of unit length: a coordinate of direction i is row i times the
        latent variables minus ``center``.
      mean: of the latent variables over the tail, ``(d,)``.
      center: the entries of ``mean`` that records read, ``(k,)``.
      is_read: of each of the d latent variables, whether the records' likelihood reads it: k do.
      each: the regression in each direction. Its ``mean`` is zero, and its ``bend`` is of the
        latent variables, in combinations of them that are independent.
      scale: standard deviation of the prior of entries off the diagonal, as correlations, in the
        coordinates by which halves of the tail predict each other best.
    """

    directions: Array
    mean: Array
    center: Array
    is_read: npt.NDArray[np.bool_]
    each: OptimumFit
    scale: float

    @property
    def combinations(self) -> Array:
        """``(k, k)``, columns: gradients in a direction are a column times those by the latents."""
        return np.asarray(np.linalg.inv(self.directions), np.float64)


class _Sums(NamedTuple):
    """Moments over some blocks: number of steps, means, and sums of products about the means."""

    num_steps: float
    x: Array
    g: Array
    xx: Array
    gx: Array
    gg: Array


class _Estimate(NamedTuple):
    """Posterior mean of H under a prior of its entries, in coordinates y with x = C y.

    Attributes:
      curvature: posterior mean, C^T H C.
      precision: inverse covariance P of the gradients' noise, of C^T g.
      xx: sum of y y^T.
      penalty: precision of the entries off the diagonal, infinite for a diagonal H.
      inverse: of C.
      scale: standard deviation of the prior of these entries, as correlations.
      error: minus the log-likelihood of each half of the tail at the other's estimate, but for a
        constant.
    """

    curvature: Array
    precision: Array
    xx: Array
    penalty: Array
    inverse: Array
    scale: float
    error: float


def fit_curvature(
    tail: TailSums,
    products: TailProducts,
    noise_variance: float,
    covariance: Array,
    is_read: npt.NDArray[np.bool_],
    *,
    num_early: int = 0,
) -> CurvatureFit:
    """Returns the curvature of the log-likelihood, from the noisy gradients of a run.

    A regression of the records' gradients on the draws of the latent variables.

    Args:
      tail: sums of the latent variables and of the records' noisy gradient by them.
      products: theirs.
      noise_variance: of the DP noise on the gradient of one step.
      covariance: of the guide's draws, ``(d, d)``.
      is_read: of each latent variable, whether the records' likelihood reads it. The others'
        gradients are noise alone.
      num_early: number of the first blocks whose mean gradient and whose checks are left out. The
        curvature is that of all blocks.

    Raises:
      ValueError: too few steps; no latent variable is read; the guide's covariance is singular.
    """
    # The latent variables that records read.
    later = tail.later(num_early)
    mean = tail.center + later.x.sum(0) / later.counts.sum()
    tail = TailSums(tail.counts, *(each[..., is_read] for each in tail[1:]))
    products = TailProducts(*(each[:, is_read][:, :, is_read] for each in products))
    covariance = covariance[np.ix_(is_read, is_read)]
    size, num_steps = len(covariance), tail.counts.sum()
    if not size:
        raise ValueError("the records' likelihood must read a latent variable, but reads none")
    least = np.linalg.eigvalsh(_correlation(covariance))[0]
    if not least > 1e-12:
        raise ValueError(
            "the covariance of the guide must be positive definite, got correlations with the"
            f" least eigenvalue {least:.1e}: the run has diverged, or the guide lost a dimension"
        )
    if num_steps < _STEPS_PER_LATENT * size:
        raise ValueError(
            f"the tail must have {_STEPS_PER_LATENT} steps for each latent variable or more, got"
            f" {int(num_steps)} for {size}"
        )

    # Variance of the gradients' noise, at least that of the DP noise.
    sums = _sums(tail, products, slice(None))
    residual = sums.gg - sums.gx @ np.linalg.solve(sums.xx, sums.gx.T)
    values, vectors = np.linalg.eigh(residual / (sums.num_steps - size - 1))
    of_rounding = 1e-12 * np.trace(sums.gg) / sums.num_steps
    values = np.maximum(values, max(noise_variance, of_rounding))
    noise = (vectors * values) @ vectors.T

    # H under each prior, and the one by which halves of the tail predict each other best.
    halves = [_sums(tail, products, slice(first, None, 2)) for first in range(2)]
    scales = np.asarray(np.diag(np.sqrt(np.diag(covariance))), np.float64)
    factor = np.asarray(np.linalg.cholesky(covariance), np.float64)
    estimates = [
        _estimate(sums, halves, noise, coordinates, scale)
        for coordinates in (scales, factor)
        for scale in (_SCALES if size > 1 else _SCALES[:1])
    ]
    best = min(estimates, key=lambda each: each.error)
    curvature = best.inverse.T @ best.curvature @ best.inverse

    # Directions D with rows of unit length, and W = D^-1: W^T H W and W^T noise W are diagonal.
    white = vectors / np.sqrt(values)
    _, rotation = np.linalg.eigh(white.T @ curvature @ white)
    combinations = white @ rotation
    directions = np.linalg.inv(combinations)
    lengths = np.linalg.norm(directions, axis=1)
    directions, combinations = directions / lengths[:, None], combinations * lengths

    # The curvature in a direction, in which gradients are combinations^T g.
    slope = np.diag(combinations.T @ curvature @ combinations)
    slope_std = np.sqrt([_variance(best, best.inverse @ each) for each in combinations.T])
    slope = remove_feedback_bias(slope, slope_std)
    return CurvatureFit(
        directions,
        mean,
        mean[is_read],
        is_read,
        _in_directions(
            tail.later(num_early),
            TailProducts(*(each[num_early:] for each in products)),
            directions,
            combinations,
            curvature,
            noise,
            (slope, slope_std),
        ),
        best.scale,
    )


def _sums(tail: TailSums, products: TailProducts, blocks: slice) -> _Sums:
    n = tail.counts[blocks].sum()
    x, g = tail.x[blocks].sum(0) / n, tail.g[blocks].sum(0) / n
    return _Sums(
        n,
        x,
        g,
        products.xx[blocks].sum(0) - n * np.outer(x, x),
        products.xg[blocks].sum(0).T - n * np.outer(g, x),
        products.gg[blocks].sum(0) - n * np.outer(g, g),
    )


def _estimate(
    sums: _Sums, halves: list[_Sums], noise: Array, coordinates: Array, scale: float
) -> _Estimate:
    """H in some coordinates under a prior, and how halves of the tail predict each other by it."""
    inverse = np.asarray(np.linalg.inv(coordinates), np.float64)
    precision = inverse @ np.linalg.inv(noise) @ inverse.T

    def moments(sums: _Sums) -> tuple[Array, Array]:
        return inverse @ sums.xx @ inverse.T, coordinates.T @ sums.gx @ inverse.T

    def fit(xx: Array, gx: Array) -> tuple[Array, Array]:
        # Least squares for a diagonal H.
        weights = precision * xx
        diagonal = np.linalg.solve(weights, np.diag(precision @ gx))
        std = np.sqrt(np.diag(np.linalg.inv(weights)))
        if scale == 0:
            return np.diag(diagonal), np.full_like(xx, np.inf)

        # Correlations of this standard deviation.
        unit = np.maximum(diagonal, std)
        penalty = 1 / (scale**2 * np.outer(unit, unit))
        np.fill_diagonal(penalty, 0.0)
        right = precision @ gx
        return _solve(precision, xx, penalty, right + right.T), penalty

    # Minus the log-likelihood of each half at the other's estimate.
    error = 0.0
    for half, other in (halves, halves[::-1]):
        curvature, _ = fit(*moments(half))
        xx, gx = moments(other)
        predicted = precision @ curvature
        error += float(np.trace(predicted @ xx @ curvature) / 2 - np.sum(predicted * gx))

    xx, gx = moments(sums)
    curvature, penalty = fit(xx, gx)
    return _Estimate(curvature, precision, xx, penalty, inverse, scale, error)


def _solve(precision: Array, xx: Array, penalty: Array, right: Array) -> Array:
    """Returns the symmetric H with P H X + X H P + penalty * H = right.

    Of few latent variables directly, however near to singular P and X are; of many by conjugate
    gradients, whose iterations cost d^3.
    """
    shape = right.shape
    if len(right) <= _SOLVED_DIRECTLY:
        matrix = np.kron(precision, xx) + np.kron(xx, precision) + np.diag(penalty.ravel())
        curvature = np.linalg.solve(matrix, right.ravel()).reshape(shape)
        return (curvature + curvature.T) / 2

    def apply(entries: Array) -> Array:
        half = precision @ entries.reshape(shape) @ xx
        return (half + half.T + penalty * entries.reshape(shape)).ravel()

    half = np.outer(np.diag(precision), np.diag(xx))
    diagonal = (half + half.T + penalty).ravel()
    operator, preconditioner = (
        LinearOperator((right.size, right.size), matvec=each, dtype=float)
        for each in (apply, lambda entries: entries / diagonal)
    )
    solution, failed = cg(operator, right.ravel(), rtol=1e-6, maxiter=20_000, M=preconditioner)
    if failed:
        raise ValueError(
            f"the curvature of {len(right)} latent variables cannot be computed: the guide's"
            " covariance is nearly singular, and conjugate gradients did not converge. AutoNormal"
            " needs no full curvature"
        )
    curvature = solution.reshape(shape)
    return (curvature + curvature.T) / 2


def _variance(estimate: _Estimate, direction: Array) -> float:
    """Posterior variance of w^T H w, for a direction w in the coordinates of the estimate."""
    precision, xx = estimate.precision, estimate.xx
    if estimate.scale == 0:
        squares = direction**2
        return float(squares @ np.linalg.solve(precision * xx, squares))
    outer = np.outer(direction, direction)
    return float(np.sum(outer * _solve(precision, xx, estimate.penalty, 2 * outer)))


def _in_directions(
    tail: TailSums,
    products: TailProducts,
    directions: Array,
    combinations: Array,
    curvature: Array,
    noise: Array,
    slopes: tuple[Array, Array],
) -> OptimumFit:
    """The regression and its checks in each direction, as for one coordinate of a guide.

    H is diagonal there, so each direction's gradient follows its own coordinate alone.
    """
    slope, slope_std = slopes
    variance = np.diag(combinations.T @ noise @ combinations)
    counts, sums = tail.counts, _sums(tail, products, slice(None))
    size, n = len(slope), sums.num_steps

    # Whether blocks of steps, and both halves of the tail, vary as the model has it.
    xx = np.einsum("ij,bjk,ik->bi", directions, products.xx, directions)
    xg = np.einsum("ij,bjk,ki->bi", directions, products.xg, combinations)
    x, g = tail.x @ directions.T, tail.g @ combinations
    squares, drift, change = compare_blocks(counts, x, g, xx, xg, slope, variance)
    dispersion = max(1.0, float(squares.mean()) / (len(counts) - 2))
    drift /= math.sqrt(max(1.0, float((squares - drift**2).mean()) / (len(counts) - 3)))

    # Quadratic terms: gradients on what a square has beside its own regression on all variables.
    totals = np.stack([each.sum(0) for each in tail[2:]])
    _, squared, _, fourth, _, _, squared_g, _ = shift_sums(n, -sums.x, totals)
    pairs = [each.sum(0)[None] for each in products]
    third = shift_products(n, -sums.x[None], totals[None], pairs)[3][0]
    on_x = np.linalg.solve(sums.xx, third.T).T
    remainder = fourth - squared**2 / n - np.sum(on_x * third, axis=1)
    product = squared_g - squared * sums.g - np.sum(on_x * sums.gx, axis=1)
    remainder = np.where(remainder > 0, remainder, np.inf)
    bend = product / np.sqrt(dispersion * np.diag(noise) * remainder)

    # Independent combinations of them: of normal variables squares have the squared correlation.
    correlation = _correlation(noise) * _correlation(sums.xx) ** 2
    bend = np.linalg.solve(np.linalg.cholesky(correlation + 1e-9 * np.eye(size)), bend)

    return OptimumFit(
        np.zeros(size),
        combinations.T @ sums.g,
        variance,
        int(n),
        slope,
        slope_std,
        np.full(size, dispersion),
        drift,
        change,
        bend,
    )


def guide_covariance(guide: dist.Distribution) -> Array:
    """Returns the covariance ``(d, d)`` of a guide's normal distribution.

    In float64: in float32 rounding makes one that is nearly singular indefinite.
    """
    if isinstance(guide, dist.LowRankMultivariateNormal):
        factor = np.asarray(guide.cov_factor, np.float64)
        return factor @ factor.T + np.diag(np.asarray(guide.cov_diag, np.float64))
    factor = np.asarray(guide.scale_tril, np.float64)
    return factor @ factor.T


def _correlation(covariance: Array) -> Array:
    std = np.sqrt(np.diag(covariance))
    return covariance / np.outer(std, std)


class NoisyLikelihood(NamedTuple):
    """Likelihood of a run's noisy gradients, a normal density in each direction of the latents.

    In units of the noise of the mean gradient.

    Attributes:
      positions: of the latent variables that records read, ``(k,)``.
      center: ``(k,)``.
      directions: ``(k, k)``.
      slope: curvature in each direction, ``(k,)``.
      slope_std: its standard deviation.
      score: mean gradient of the log-likelihood at the centre, in each direction.
      prior_loc: median of the prior of the latent variables minus ``center``, in each direction.
      prior_scale: half the distance of its quantiles at 16 and 84 %; infinite where the curvature
        is identified, or the prior improper.
    """

    positions: jax.Array
    center: jax.Array
    directions: jax.Array
    slope: jax.Array
    slope_std: jax.Array
    score: jax.Array
    prior_loc: jax.Array
    prior_scale: jax.Array


def likelihood_of(fit: CurvatureFit, prior_draws: Array | None) -> NoisyLikelihood:
    """Returns the likelihood of a run's noisy gradients, a function of the latent variables.

    Args:
      fit: curvature and mean gradient.
      prior_draws: of the latent variables, ``(draws, d)``, or ``None`` for an improper prior.
    """
    each = fit.each
    std = np.sqrt(each.dispersion * each.variance / each.num_steps)

    # The prior in the directions whose curvature is not identified.
    prior_loc, prior_scale = np.zeros_like(std), np.full_like(std, np.inf)
    if prior_draws is not None:
        at = (prior_draws[:, fit.is_read] - fit.center) @ (fit.directions * std[:, None]).T
        prior_loc, prior_scale = prior_range(at, ~each.is_identified)

    values = (
        fit.center,
        fit.directions * std[:, None],
        each.slope / std**2,
        each.slope_std / std**2,
        -each.mean_gradient / std,
        prior_loc,
        prior_scale,
    )
    positions = jnp.asarray(np.flatnonzero(fit.is_read))
    return NoisyLikelihood(positions, *(jnp.asarray(value, float) for value in values))


def read_latents(terms: ELBOTerms, params: Values, model_args: ModelArgs) -> npt.NDArray[np.bool_]:
    """Returns, of each latent variable, whether the likelihood of the records depends on it.

    Found in the program: whatever enters a loop, a branch or a call-back counts as read.

    Args:
      terms: of the negative ELBO, with a guide that draws one vector.
      params: of the guide.
      model_args: arguments of the model.
    """
    guide: Any = terms.guide
    args, kwargs = model_args.spec.constant_args(model_args.arrays)

    def loss(**latents: jax.Array) -> jax.Array:
        values = constrain_fn(terms.model, args, kwargs, latents)
        fixed = substitute(seed(terms.model, 0), data={name: values[name] for name in latents})
        sites = trace(fixed).get_trace(*args, **kwargs).values()
        of_records = [site for site in sites if is_record_site(site, terms.plate)]
        return sum((jnp.sum(log_prob(site)) for site in of_records), jnp.zeros(()))

    mean = jnp.asarray(params[f"{guide.prefix}_loc"])
    with warnings.catch_warnings():  # constant records need not be in the support of a site
        warnings.filterwarnings("ignore", ".*Out-of-support values")
        read = eval_provenance(loss, **guide._unpack_latent(mean))
    positions = guide._unpack_latent(np.arange(mean.size))
    is_read = np.zeros(mean.size, bool)
    for name in read:
        is_read[positions[name]] = True
    return is_read


def is_record_site(site: Site, plate: str) -> bool:
    """Returns whether a sample site is inside the plate over the records."""
    return site["type"] == "sample" and in_plate(site, plate)


def _normal_log_density(residual: jax.Array, variance: jax.Array) -> jax.Array:
    return -(residual**2 / variance + jnp.log(variance)) / 2


class Chains(NamedTuple):
    """Draws of Markov chains.

    Attributes:
      values: of the latent variables, by site ``(chains, draws, ...)``.
      unknowns: all that NUTS samples, without constraints, ``(chains, draws, d + k)``.
      diverging: which transitions diverged, ``(chains, draws)``.
    """

    values: Values
    unknowns: jax.Array
    diverging: jax.Array


@partial(jax.jit, static_argnames=("terms", "num_draws"))
def draw_latents(
    terms: ELBOTerms,
    num_draws: int,
    keys: PRNGKey,
    starts: jax.Array,
    likelihood: NoisyLikelihood,
    arrays: Leaves,
) -> Chains:
    """Draws the latent variables given a run's noisy gradients by NUTS, one chain for each key.

    Args:
      terms: of the negative ELBO; its model has the prior.
      num_draws: of each chain.
      keys: of the chains.
      starts: of the chains, vectors of the guide.
      likelihood: of the trace.
      arrays: public arguments of the model.

    Returns:
      The chains, after their warm-up.
    """
    guide: Any = terms.guide
    unpack = guide._unpack_latent
    args, kwargs = terms.spec.constant_args(arrays)
    prior = block(seed(terms.model, 0), hide_fn=partial(is_record_site, plate=terms.plate))

    def potential(unknowns: tuple[jax.Array, jax.Array]) -> jax.Array:
        # Curvatures above zero.
        vector, raw = unknowns
        slope = likelihood.slope_std * jax.nn.softplus(raw)
        squares = ((slope - likelihood.slope) / likelihood.slope_std) ** 2
        of_slope = jnp.sum(jax.nn.log_sigmoid(raw) - squares / 2)

        # The score given the latent variables: noise of records and of steps.
        at = vector[likelihood.positions] - likelihood.center
        residual, variance = likelihood.score - slope * (likelihood.directions @ at), slope + 1
        of_score = _normal_log_density(residual, variance)

        # Given the curvature alone, for a normal prior: one over the slope where that is flat.
        is_limited = jnp.isfinite(likelihood.prior_scale)
        scale = jnp.where(is_limited, likelihood.prior_scale, 1.0)
        expected = likelihood.score - slope * likelihood.prior_loc
        normal = _normal_log_density(expected, variance + (slope * scale) ** 2)
        of_score_alone = jnp.where(is_limited, normal, -jnp.log(slope))

        of_prior: jax.Array = potential_energy(prior, args, kwargs, unpack(vector))
        return of_prior - of_slope - jnp.sum(of_score - of_score_alone)

    def chain(key: PRNGKey, start: jax.Array) -> Chains:
        # The inverse of softplus; large values are their own.
        ratio = jnp.clip(likelihood.slope / likelihood.slope_std, 1.0)
        raw = ratio + jnp.log(-jnp.expm1(-ratio))
        initialise, step = hmc(potential, algo="NUTS")
        state = initialise((start, raw), _NUM_WARMUP, dense_mass=True, rng_key=key)

        def keep(
            state: HMCState, _: None
        ) -> tuple[HMCState, tuple[jax.Array, jax.Array, jax.Array]]:
            state = step(state)
            return state, (*state.z, state.diverging)

        state, _ = jax.lax.scan(lambda state, _: (step(state), None), state, length=_NUM_WARMUP)
        _, (vectors, raw, diverging) = jax.lax.scan(keep, state, length=num_draws)
        constrain = partial(constrain_fn, prior, args, kwargs)
        values = jax.vmap(lambda vector: constrain(unpack(vector)))(vectors)
        return Chains(values, jnp.concatenate([vectors, raw], axis=-1), diverging)

    draws: Chains = jax.vmap(chain)(keys, starts)
    return draws


@dataclass(frozen=True, kw_only=True)
class FullCurvaturePosterior(NoiseAwarePosterior):
    """Noise-aware posterior under a multivariate normal autoguide, by NUTS.

    The model's prior times the density of the noisy gradients given the latent variables, without
    the guide: correlations are those of the records' gradients, and priors need not be normal. NUTS
    draws from it in the unconstrained latent variables. Where the trace does not identify a
    curvature, the prior limits the draws.

    Attributes:
      fit: the regression of the records' gradients.
      prior_draws: of the latent variables, unconstrained, ``(draws, d)``; ``None`` where all
        curvatures are identified, or the prior is improper.
      terms: of the negative ELBO; its model has the prior.
    """

    fit: CurvatureFit
    prior_draws: Array | None = field(repr=False)
    terms: ELBOTerms = field(repr=False)

    def posterior_samples(self, rng_key: PRNGKey, num_samples: int) -> dict[str, jax.Array]:
        """Draws the latent variables by four chains of NUTS.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws of all chains together, rounded up to a multiple of 4. Of
            chains of 250 draws or more, evenly spaced ones.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(4, num_samples / 4, ...)``: chains and draws. A warning is given where split R-hat is
          above 1.05, or more than one in a hundred transitions diverged.

        Raises:
          ValueError: ``num_samples`` is below one.
        """
        check_count("num_samples", num_samples)
        in_chain = -(-num_samples // _NUM_CHAINS)
        num_draws = max(in_chain, _LEAST_DRAWS)

        # Starts around the mean of the iterates, as far as their curvatures tell.
        start_key, key = jax.random.split(as_key(rng_key))
        each = self.fit.each
        scales = 1 / np.sqrt(np.maximum(each.slope, each.slope_std))
        normals = jax.random.normal(start_key, (_NUM_CHAINS, len(scales))) * scales
        starts = jnp.asarray(self.fit.mean) + jnp.zeros((_NUM_CHAINS, 1))
        starts = starts.at[:, self.fit.is_read].add(normals @ self.fit.combinations.T)

        chains = draw_latents(
            self.terms,
            num_draws,
            jax.random.split(key, _NUM_CHAINS),
            starts,
            likelihood_of(self.fit, self.prior_draws),
            self.model_args.arrays,
        )

        # Did the chains mix?
        r_hat = float(np.max(split_gelman_rubin(np.asarray(chains.unknowns))))
        if not r_hat <= _LARGEST_R_HAT:
            warnings.warn(
                f"the chains of posterior_samples mixed poorly: largest split R-hat {r_hat:.3f}"
                f" (above {_LARGEST_R_HAT} is too large): raise num_samples",
                stacklevel=2,
            )
        share = float(jnp.mean(chains.diverging))
        if share > _LARGEST_DIVERGING:
            warnings.warn(
                f"{share:.1%} of the transitions of posterior_samples diverged (above"
                f" {_LARGEST_DIVERGING:.0%} is too many), so draws may miss a part of the"
                " posterior: a non-centred model (numpyro.infer.reparam) if a scale is near zero",
                stacklevel=2,
            )
        step = num_draws // in_chain
        return {name: each[:, ::step][:, :in_chain] for name, each in chains.values.items()}
