"""Noise-aware posterior of DP variational inference, from the noisy gradients of a run.

Near the optimum phi* of the ELBO the gradient at phi_t is linear, g_t = A (phi_t - phi*) + e_t, and
the noise e_t is independent of phi_t given the past, whatever the optimiser. So the pairs
(phi_t, g_t) are a linear regression whose noise variance is known but for the share of batches and
of the guide's draws, which its residuals estimate. With A diagonal each coordinate is a regression
by itself, and under flat priors slope and mean gradient are normal. As phi_t follows the gradients
before it, least squares finds slopes that are too large; that bias is known, and taken off.

Noise hides most of what is not linear in the records' gradients, but the gradient of the data-free
term, of priors and guide, is known without noise: its average over the iterates minus its value at
their mean is what a gradient that is not linear adds to the mean gradient.

For a mean m and standard deviation s of a mean-field normal guide and a log posterior that is
quadratic with curvature a, the gradients are a (m - m*) in m and a s - 1/s in s. The optimum is
s* = a^(-1/2) (Opper & Archambeau 2009, of the fixed points of the variational Gaussian), so the
slope of the means' gradients gives the scales too, whose own gradients are mostly noise.
"""

import abc
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.flatten_util import ravel_pytree
from numpyro.distributions import biject_to
from numpyro.distributions.constraints import Constraint
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.infer.util import unconstrain_fn
from scipy.special import chdtrc

from dpjax._checks import as_key, check_count
from dpjax._typing import PRNGKey
from dpjax.bayes.variational.elbo import (
    ELBOTerms,
    MeanFieldParams,
    data_free_loss,
    guide_sites,
    normal_and_transforms,
)
from dpjax.bayes.variational.gradient_trace import TailSums, shift_sums
from dpjax.bayes.variational.model_args import (
    Leaves,
    ModelArgs,
    ModelArgsSpec,
    Values,
    as_arrays,
)
from dpjax.bayes.variational.validate import find_sites

if TYPE_CHECKING:
    from dpjax.bayes.variational.svi import DPSVI

Array = npt.NDArray[np.float64]

# Fewer steps leave the residual variance, which is plugged in, too uncertain.
MIN_TAIL_STEPS = 100
# Of a slope over its standard deviation: below it draws of the optimum have heavy tails.
MIN_SLOPE_RATIO = 2.5
# Of all checks of one posterior together, under the model.
_FALSE_ALARM_RATE = 0.01
_NUM_PRIOR_DRAWS = 1_000
# A larger rate is not recommended: gradients must be linear over the range of the iterates.
_LARGEST_RATE_FACTOR = 2.5
# Of the clipped share over its standard error, and of the move in posterior standard deviations.
_CLIPPED_RATIO, _LARGEST_MOVE = 3.0, 0.5
# Of the move by gradients of priors that are not linear, in posterior standard deviations, and
# how many iterates it is averaged over.
_LARGEST_PRIOR_MOVE, _NUM_ITERATES = 1.5, 4_000

# Values of all latent variables at which a prior's gradient has to be on one line, and how far it
# may be off, over the largest of them.
_NUM_PRIOR_POINTS, _LINE_TOLERANCE = 6, 1e-3

# Of an estimate from the prior's median, in standard deviations, beyond all draws of the prior.
_FARTHEST_FROM_PRIOR = 5.0
# Of a clip bound over the root mean square norm of gradients: below it many may be clipped.
_SMALL_CLIP_RATIO = 2.0

_NARROWER_RANGE = (
    "a smaller learning rate, with more steps; or less noise, by a smaller l2_clip (if few records"
    " are clipped) or a larger epsilon"
)


class OptimumFit(NamedTuple):
    """Linear regression of a run's noisy gradients on the parameters they were taken at.

    Of a mean-field guide on its means, of a multivariate normal guide on its draws.

    Attributes:
      mean: average of the parameter over the tail.
      mean_gradient: average of its gradient.
      variance: of the gradient of one step given the parameter, at least that of the DP noise.
      num_steps: steps in the tail.
      slope: estimate of the slope, the curvature of the negative ELBO, without the bias that noise
        in the parameters gives it.
      slope_std: posterior standard deviation of the slope.
      dispersion: factor of at least one on the variance of ``mean_gradient``, by which averages
        over blocks of steps vary more than the model has it.
      drift: z-score of the difference between both halves' residual mean gradients.
      curvature_change: z-score of the difference between both halves' slopes.
      bend: z-score of the coefficient of the squared parameter in the regression.
    """

    mean: Array
    mean_gradient: Array
    variance: Array
    num_steps: int
    slope: Array
    slope_std: Array
    dispersion: Array
    drift: Array
    curvature_change: Array
    bend: Array

    @property
    def is_identified(self) -> npt.NDArray[np.bool_]:
        """Of each coordinate, whether its curvature is 2.5 standard deviations above zero."""
        return self.slope >= MIN_SLOPE_RATIO * self.slope_std


class ClippedShare(NamedTuple):
    """Share of clipped records over the last steps of a run, as released with noise.

    A gradient that exceeds it by 25 % or more counts as one, by less in proportion.

    Attributes:
      share: estimate; noise may make it negative.
      share_std: standard deviation of its noise.
      move_of_all: by how many posterior standard deviations estimates would move if the gradient of
        every record lost its bound, and the loss were the same in all coordinates: their root mean
        square.
    """

    share: float
    share_std: float
    move_of_all: float

    @property
    def move(self) -> float:
        """Approximate bias of the estimates by clipping, in posterior standard deviations.

        The root mean square over coordinates, if clipped gradients are on average twice as long as
        the bound, and what they lose adds up in one direction that has all coordinates alike: an
        order of magnitude.
        """
        return max(self.share, 0.0) * self.move_of_all

    @property
    def is_certain(self) -> bool:
        """Whether the share is above zero by more than the noise explains."""
        return self.share > _CLIPPED_RATIO * self.share_std


class NormalPrior(NamedTuple):
    """Independent normal priors of the coordinates of a guide's mean.

    Attributes:
      mean: of each coordinate; zero where the precision is.
      precision: zero where the prior is not normal, or depends on other latent variables.
    """

    mean: Array
    precision: Array


def fit_optimum(
    loc: TailSums,
    scale: TailSums,
    noise_variance: float,
    scale_constraint: Constraint,
    *,
    aligned: bool = False,
    num_early: int = 0,
) -> OptimumFit:
    """Returns the curvature and mean gradient of each coordinate, by Bayesian linear regression.

    Args:
      loc: sums of the guide's means.
      scale: sums of its unconstrained standard deviations, of the same shapes.
      noise_variance: of the DP noise on the gradient of one step by the means.
      scale_constraint: support of the standard deviations.
      aligned: whether gradients of scales are T' u times those of the means, u standard normal: so
        is their noise, which has mean zero given that of the means.
      num_early: number of the first blocks whose mean gradient and whose checks are left out. The
        curvature is that of all blocks.
    """
    counts = loc.counts.reshape(-1, *[1] * (loc.x.ndim - 1))
    num_steps = loc.counts.sum()

    # Least squares of g on x, and its residual variance.
    s_xx, s_xg, s_gg = _centered(loc)
    least_squares = s_xg / np.where(s_xx > 0, s_xx, 1.0)
    residuals = (s_gg - least_squares * s_xg) / (num_steps - 2)
    variance = np.maximum(noise_variance, residuals)

    # Gradients of scales have mean a s T' - T'/s, where s = T(r): a second regression on a.
    s, slope_of_t = _constrain(scale_constraint, scale.center + scale.x / counts)
    design, response = s * slope_of_t, scale.g / counts + slope_of_t / s
    within = (scale.gg - scale.g**2 / counts).sum(0) / (num_steps - len(counts))
    factor = (slope_of_t**2).mean(0) if aligned else 1.0
    scale_variance = np.maximum(factor * noise_variance, within)
    precision = s_xx / variance + (counts * design**2).sum(0) / scale_variance
    weighted = s_xg / variance + (counts * design * response).sum(0) / scale_variance
    slope_std = precision**-0.5
    slope = remove_feedback_bias(weighted / precision, slope_std)

    # The mean gradient of the later blocks.
    loc = loc.later(num_early)
    num_steps = loc.counts.sum()
    mean_x, mean_g = loc.x.sum(0) / num_steps, loc.g.sum(0) / num_steps
    s_xx, s_xg, _ = _centered(loc)

    # Whether blocks of steps, and both halves of the tail, vary as the model has it.
    squares, drift, change = compare_blocks(
        loc.counts, loc.x, loc.g, loc.xx, loc.xg, slope, variance
    )
    dispersion = np.maximum(1.0, squares / (len(loc.counts) - 2))
    drift /= np.sqrt(np.maximum(1.0, (squares - drift**2) / (len(loc.counts) - 3)))

    # A quadratic term: gradients on what x^2 has beside its own regression on x.
    totals = (each.sum(0) for each in loc[2:])
    _, _, s_xxx, s_xxxx, _, _, s_xxg, _ = shift_sums(num_steps, -mean_x, totals)
    on_x = s_xxx / np.where(s_xx > 0, s_xx, 1.0)
    remainder = s_xxxx - s_xx**2 / num_steps - on_x * s_xxx
    product = s_xxg - s_xx * mean_g - on_x * s_xg
    bend = product / np.sqrt(dispersion * variance * np.where(remainder > 0, remainder, np.inf))

    return OptimumFit(
        loc.center + mean_x,
        mean_g,
        variance,
        int(num_steps),
        slope,
        slope_std,
        dispersion,
        drift,
        change,
        bend,
    )


def remove_feedback_bias(slope: Array, slope_std: Array) -> Array:
    """Returns slopes without the bias of a regression on parameters that follow the gradients.

    The noise of a gradient moves all later parameters, so their average over the tail is correlated
    with the noise, and least squares finds a slope a that is too large by 2 s^2 / a, with s its
    standard deviation (Marriott & Pope 1954; Kendall 1954, of autoregressive processes, which the
    iterates of SGD are). Slopes at or below zero are returned as they are.

    Args:
      slope: by least squares.
      slope_std: its standard deviation.
    """
    ratio = np.maximum(slope, np.finfo(float).tiny) / slope_std
    return np.where(slope > 0, slope * ratio**2 / (ratio**2 + 2), slope)


def compare_blocks(
    counts: Array, x: Array, g: Array, xx: Array, xg: Array, slope: Array, variance: Array
) -> tuple[Array, Array, Array]:
    """Returns how much blocks of steps, and both halves of them, vary beside their noise.

    Args:
      counts: steps in each block, ``(num_blocks,)``.
      x: sums of x, ``(num_blocks, ...)``.
      g: of the gradient.
      xx: of x^2.
      xg: of x g.
      slope: of the gradient on x, ``(...)``.
      variance: of the gradient of one step given x.

    Returns:
      Of each coordinate, under the model: a chi-square variable, the blocks' squared mean residuals
      over their variance, with two degrees of freedom fewer than blocks; and z-scores of the
      differences between both halves' mean residuals, and between their slopes.
    """
    counts = counts.reshape(-1, *[1] * (x.ndim - 1))
    n = counts.sum()
    residuals = g / counts - g.sum(0) / n - slope * (x / counts - x.sum(0) / n)
    squares = (counts * residuals**2).sum(0) / variance

    # Both halves: their sizes, mean residuals, sums of squares of x and slopes.
    half = len(counts) // 2
    sizes, means, spreads, slopes = [], [], [], []
    for part in (slice(None, half), slice(half, None)):
        size = counts[part].sum()
        mean_x, mean_g = x[part].sum(0) / size, g[part].sum(0) / size
        spread = np.maximum(xx[part].sum(0) - size * mean_x**2, np.finfo(float).tiny)
        sizes.append(size)
        means.append(mean_g - slope * mean_x)
        spreads.append(spread)
        slopes.append((xg[part].sum(0) - size * mean_x * mean_g) / spread)
    drift = (means[1] - means[0]) / np.sqrt(variance * (1 / sizes[0] + 1 / sizes[1]))
    change = (slopes[1] - slopes[0]) / np.sqrt(variance * (1 / spreads[0] + 1 / spreads[1]))
    return squares, drift, change


def move_by_loss(fits: dict[str, OptimumFit], loss: float, lengths: npt.ArrayLike = 1.0) -> float:
    """Returns how many posterior standard deviations estimates move by if gradients lose ``loss``.

    Args:
      fits: the regressions, by the name of the guide's means.
      loss: L2 norm of what the gradient of all records loses, the same in each coordinate.
      lengths: of the combinations of gradients that are regressed.
    """
    each = loss / math.sqrt(sum(fit.mean.size for fit in fits.values())) * np.asarray(lengths)
    squares = []
    for fit in fits.values():
        slope = np.maximum(fit.slope, fit.slope_std)
        variance = 1 / slope + fit.dispersion * fit.variance / fit.num_steps / slope**2
        squares.append(((each / slope) ** 2 / variance).ravel())
    return float(np.sqrt(np.mean(np.concatenate(squares))))


def moves_by_priors(
    terms: ELBOTerms, tails: dict[str, TailSums], locs: Sequence[str], arrays: Leaves
) -> dict[str, Array]:
    """Returns the bias of the optima by priors that are not normal, in posterior deviations.

    Their gradient on average over the iterates, minus that at the mean iterate, which is zero where
    it is linear, over the curvature; in units of the coordinate's posterior standard deviation with
    the others fixed, noise included. Iterates are drawn from independent normal distributions
    of their mean and variance in the tail, in pairs around the mean, and the latent variables are
    the same in both and at the mean.

    Args:
      terms: of the negative ELBO.
      tails: sums of each unconstrained parameter of the guide.
      locs: names of the guide's means.
      arrays: public arguments of the model.

    Returns:
      By the name of the guide's means, an array of their shape.
    """
    # Mean and standard deviation of the iterates.
    center, std = {}, {}
    for name, tail in tails.items():
        n = tail.counts.sum()
        mean_x = tail.x.sum(0) / n
        variance = np.maximum(tail.xx.sum(0) / n - mean_x**2, 0.0)
        center[name] = jnp.asarray(tail.center + mean_x)
        std[name] = jnp.asarray(np.sqrt(variance))

    # What the gradient has more on average over them than at the mean.
    keys = jax.random.split(jax.random.key(0), _NUM_ITERATES)
    added = _mean_difference(terms, center, std, arrays, keys)

    # Over the curvature by least squares, in posterior standard deviations. The residual variance
    # is that of the gradients themselves: those of variables that no record reads have no noise.
    moves = {}
    for name in locs:
        tail = tails[name]
        n = tail.counts.sum()
        s_xx, s_xg, s_gg = _centered(tail)
        s_xx = np.maximum(s_xx, np.finfo(float).tiny)
        residual_variance = np.maximum(s_gg - s_xg**2 / s_xx, np.finfo(float).tiny) / (n - 2)
        slope_std = np.sqrt(residual_variance / s_xx)
        slope = np.maximum(remove_feedback_bias(s_xg / s_xx, slope_std), slope_std)
        posterior_variance = 1 / slope + residual_variance / n / slope**2
        moves[name] = np.asarray(added[name], float) / slope / np.sqrt(posterior_variance)
    return moves


@partial(jax.jit, static_argnames="terms")
def _mean_difference(
    terms: ELBOTerms, center: Values, std: Values, arrays: Leaves, keys: PRNGKey
) -> Values:
    """Mean of the data-free gradient at draws around a center, minus that at the center."""
    flat_center, unravel = ravel_pytree(center)
    flat_std = ravel_pytree(std)[0]

    def one(key: PRNGKey) -> jax.Array:
        iterate_key, guide_key = jax.random.split(key)
        step = flat_std * jax.random.normal(iterate_key, jnp.shape(flat_std))

        @jax.grad
        def gradient(flat: jax.Array) -> jax.Array:
            return data_free_loss(terms, unravel(flat), arrays, guide_key)

        at = jax.lax.map(gradient, jnp.stack([flat_center + step, flat_center - step, flat_center]))
        return (at[0] + at[1]) / 2 - at[2]

    mean: Values = unravel(jax.lax.map(one, keys, batch_size=100).mean(0))
    return mean


def _centered(sums: TailSums) -> tuple[Array, Array, Array]:
    """Sums of squares and products of x and g about their means."""
    n = sums.counts.sum()
    mean_x, mean_g = sums.x.sum(0) / n, sums.g.sum(0) / n
    return (
        sums.xx.sum(0) - n * mean_x**2,
        sums.xg.sum(0) - n * mean_x * mean_g,
        sums.gg.sum(0) - n * mean_g**2,
    )


def _constrain(constraint: Constraint, unconstrained: Array) -> tuple[Array, Array]:
    """Values of a constrained parameter, and their derivatives by the unconstrained one."""
    at = jnp.asarray(unconstrained)
    values, derivatives = jax.jvp(biject_to(constraint), (at,), (jnp.ones_like(at),))
    return np.asarray(values, float), np.asarray(derivatives, float)


def pool(draws: dict[str, jax.Array], num_samples: int) -> dict[str, jax.Array]:
    """Returns draws ``(num_samples, ...)`` of all chains together."""
    pooled = {name: jax.lax.collapse(values, 0, 2) for name, values in draws.items()}
    return {name: values[:num_samples] for name, values in pooled.items()}


@dataclass(frozen=True, kw_only=True)
class NoiseAwarePosterior(abc.ABC):
    """Posterior of the latent variables that includes the noise of the gradients.

    **Not** included: the bias of clipping, and that of gradients that are not linear over the range
    of the iterates, which a large learning rate makes wide: ``problems`` has it where priors cause
    it, or where it exceeds the noise. Whether clipping matters shows in ``clipped``, where `DPSVI`
    releases the share of clipped records. Both can be seen on records simulated from the draws, at
    no privacy cost: whether a run on them finds the parameters they were simulated from, and how
    many `DPSVI.clipping_report` finds clipped.

    Attributes:
      fits: the regressions, by the name of the guide's means; of a multivariate normal guide one,
        in directions of the latent variables.
      clipped: share of clipped records, or ``None`` where it was not released.
      problems: where the model of the trace does not hold, and what would help; empty if no check
        failed. Under the model one in a hundred posteriors has some.
      svi: the inference that was run.
      model_args: structure, shapes and public arrays of its arguments, without the records.

    Privacy:
      Post-processing of what a run of `DPSVI` releases: no further privacy cost.
    """

    fits: dict[str, OptimumFit]
    clipped: ClippedShare | None
    problems: tuple[str, ...]
    svi: "DPSVI" = field(repr=False)
    model_args: ModelArgs = field(repr=False)

    @abc.abstractmethod
    def posterior_samples(self, rng_key: PRNGKey, num_samples: int) -> dict[str, jax.Array]:
        """Draws the global latent variables from the noise-aware posterior.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws, of all chains together: rounded up to a multiple of four
            for a `FullCurvaturePosterior`, which has four chains.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(chain, draw, ...)``, as `DPSVI.posterior_samples`.
        """

    def predict(
        self, rng_key: PRNGKey, num_samples: int, *args: object, **kwargs: object
    ) -> dict[str, jax.Array]:
        """Draws from the posterior predictive at public inputs.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws.
          *args: of the model, new ones, with ``None`` for what it observes.
          **kwargs: of the model.

        Returns:
          As `DPSVI.predict`: for each observed or deterministic site an array
          ``(num_samples, ...)``.
        """
        latent_key, key = jax.random.split(as_key(rng_key))
        draws = self.posterior_samples(latent_key, num_samples)
        args, kwargs = as_arrays(args, {**kwargs, **self.svi.static_kwargs})
        latents = pool(draws, num_samples)
        predictive = Predictive(self.svi.model, posterior_samples=latents, parallel=True)
        return predictive(key, *args, **kwargs)

    def __str__(self) -> str:
        fits = self.fits.values()
        ratio = min(float(np.min(fit.slope / fit.slope_std)) for fit in fits)
        found = self.problems or ("no check of the trace failed",)
        clipped = "not released (release_clipped_share of DPSVI)"
        if self.clipped is not None:
            share, share_std, move_of_all = self.clipped
            clipped = (
                f"{share:.2%}, as estimated from a noisy number (standard error {share_std:.2%}:"
                " if that share were clipped, estimates would move by about"
                f" {share_std * move_of_all:.1f} posterior standard deviations)"
            )
        lines = [
            f"Noise-aware posterior of {next(iter(fits)).num_steps:,} steps; least curvature over"
            f" its standard deviation: {ratio:.1f}",
            f"Share of clipped records: {clipped}",
            *(f"- {problem}" for problem in found),
            "- not included: the bias of clipping, and of gradients that are not linear over the"
            " range of the iterates. To check, which costs no privacy: simulate records from one"
            " posterior draw, run the same inference on them, and see whether its intervals cover"
            " that draw, and the share clipped in svi.clipping_report",
        ]
        return "\n".join(lines)


def weigh_normal_prior(
    fit: OptimumFit, prior: NormalPrior, slope: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns mean and standard deviation of an optimum's draws under a normal prior.

    A variable with the prior precision p, and records of the curvature h = a - p, whose noisy mean
    gradient given the variable has the variance h + v: the posterior precision is p + h^2 / (h +
    v). Draws of the guide around the optimum have the variance 1 / a of it.

    Args:
      fit: the regression, with the mean gradient of records and prior.
      prior: of the variable.
      slope: draws of the curvature a.
    """
    variance = fit.dispersion * fit.variance / fit.num_steps
    of_records = jnp.maximum(slope - prior.precision, 1e-6 * fit.slope_std)
    signal = of_records / (of_records + variance)
    precision = prior.precision + of_records * signal

    of_prior = prior.precision * (fit.mean - prior.mean)
    gradient = of_prior + signal * (fit.mean_gradient - of_prior)
    std = jnp.sqrt(jnp.maximum(1 / precision - 1 / slope, 0.0))
    return jnp.asarray(fit.mean - gradient / precision), std


@dataclass(frozen=True, kw_only=True)
class MeanFieldPosterior(NoiseAwarePosterior):
    """Noise-aware posterior under a mean-field normal guide, by conjugacy.

    A mixture of guides over their optimum: theta ~ q(theta; phi*) with phi* drawn given the trace
    of released gradients.

    Attributes:
      priors: median and scale of the prior of each coordinate whose curvature is not identified;
        zero and infinity of the others.
      normal_priors: of the coordinates whose prior is normal and independent of the others, by the
        names of the guide's means.
      names: of the guide's parameters.
    """

    priors: dict[str, tuple[Array, Array]]
    normal_priors: dict[str, NormalPrior]
    names: MeanFieldParams = field(repr=False)

    def optimum_samples(self, rng_key: PRNGKey, num_samples: int) -> dict[str, jax.Array]:
        """Draws variational parameters that maximise the ELBO, given the noisy gradients.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws.

        Returns:
          For each parameter, constrained, an array ``(num_samples, ...)``.
        """
        check_count("num_samples", num_samples)
        draws: dict[str, jax.Array] = {}
        keys = jax.random.split(as_key(rng_key), len(self.names.locs))
        for loc, scale, key in zip(self.names.locs, self.names.scales, keys, strict=True):
            fit = self.fits[loc]
            shape = (num_samples, *np.shape(fit.mean))
            slope_key, gradient_key = jax.random.split(key)

            # The curvature is above zero, as q is proper, and above that of a normal prior.
            prior_loc, prior_scale = self.priors[loc]
            normal = self.normal_priors[loc]
            least = np.maximum(prior_scale**-2.0, normal.precision)
            lower = jnp.asarray((least - fit.slope) / fit.slope_std)
            above = jax.random.truncated_normal(slope_key, lower, jnp.inf, shape)
            slope = jnp.maximum(fit.slope + fit.slope_std * above, 1e-6 * fit.slope_std)

            # The mean gradient is independent of it; the optimum has the prior of the variable.
            optimum = fit.mean - fit.mean_gradient / slope
            std = jnp.sqrt(fit.dispersion * fit.variance / fit.num_steps) / slope
            weight = 1 / (1 + (std / prior_scale) ** 2)
            center = weight * optimum + (1 - weight) * prior_loc
            std = jnp.sqrt(weight) * std

            # Where that is normal it is weighed against the records with their noise.
            weighed, spread = weigh_normal_prior(fit, normal, slope)
            center = jnp.where(normal.precision > 0, weighed, center)
            std = jnp.where(normal.precision > 0, spread, std)

            draws[loc] = jnp.asarray(center + std * jax.random.normal(gradient_key, shape))
            draws[scale] = slope**-0.5
        return draws

    def posterior_samples(self, rng_key: PRNGKey, num_samples: int) -> dict[str, jax.Array]:
        """Draws the global latent variables from the noise-aware posterior.

        Args:
          rng_key: a JAX key.
          num_samples: number of draws.

        Returns:
          For each latent variable of the model outside of the plate an array
          ``(1, num_samples, ...)``, as `DPSVI.posterior_samples`.
        """
        optimum_key, guide_key = jax.random.split(as_key(rng_key))
        optima = self.optimum_samples(optimum_key, num_samples)
        args, kwargs = self.model_args.spec.constant_args(self.model_args.arrays)

        def draw(key: PRNGKey, params: Values) -> dict[str, jax.Array]:
            return Predictive(self.svi.guide, params=params, num_samples=1)(key, *args, **kwargs)

        draws = jax.vmap(draw)(jax.random.split(guide_key, num_samples), optima)
        latents = find_sites(self.svi.model, self.model_args).latents
        return {name: jnp.swapaxes(draws[name], 0, 1) for name in latents}

    def __str__(self) -> str:
        return (
            f"{super().__str__()}\n- not included: correlations, which a guide of independent"
            " normals cannot represent. Where parameters are correlated, as weights of correlated"
            " features, intervals may be too short and no check shows it: AutoMultivariateNormal,"
            " for up to 100 latent variables"
        )


def draw_prior_means(
    svi: "DPSVI",
    model_args: ModelArgs,
    terms: ELBOTerms,
    names: MeanFieldParams,
    params: Values,
) -> dict[str, Array] | None:
    """Returns prior draws of the normal variables of a mean-field guide, ``(draws, ...)``.

    By the name of the guide's mean of each; ``None`` if a prior is improper.
    """
    draws = draw_prior(svi, model_args)
    if draws is None:
        return None
    if type(svi.guide) is AutoDiagonalNormal:
        (loc,) = names.locs
        size = jnp.size(jnp.asarray(params[loc]))
        return {loc: as_vectors(svi, model_args, draws, size)}

    # The guide's transformations lead from them to the sites.
    sites = guide_sites(terms, params, model_args.arrays, jax.random.key(0))
    normals = {}
    for name, loc in zip(names.sites, names.locs, strict=True):
        values = draws[name]
        for transform in reversed(normal_and_transforms(sites[name])[1]):
            values = transform.inv(values)
        normals[loc] = np.asarray(values, float)
    return normals


def find_normal_priors(
    terms: ELBOTerms, params: Values, names: MeanFieldParams, arrays: Leaves
) -> dict[str, NormalPrior]:
    """Returns the priors that are normal and independent of the other latent variables.

    The gradient of their negative log-density is linear in the coordinate and constant in all
    others. It is compared at random values of all of them together.

    Args:
      terms: of the negative ELBO.
      params: of the guide, unconstrained.
      names: of these.
      arrays: public arguments of the model.

    Returns:
      By the name of the guide's means.
    """
    # At the guide's means, nearly without its standard deviations.
    fixed = {name: jnp.full(np.shape(jnp.asarray(params[name])), -20.0) for name in names.scales}
    flat, unravel = ravel_pytree({name: params[name] for name in names.locs})
    draws = jax.random.normal(jax.random.key(0), (_NUM_PRIOR_POINTS, flat.size), flat.dtype)
    points = flat + draws
    gradients = _data_free_gradients(terms, {**params, **fixed}, names.locs, arrays, points)
    x, g = np.asarray(points, float), np.asarray(gradients, float)

    # A line through them, and whether all are on it.
    mean_x, mean_g = x.mean(0), g.mean(0)
    precision = ((x - mean_x) * g).sum(0) / ((x - mean_x) ** 2).sum(0)
    error = np.abs(mean_g + precision * (x - mean_x) - g).max(0)
    is_normal = (precision > 0) & (error <= _LINE_TOLERANCE * np.abs(g).max(0))
    precision = np.where(is_normal, precision, 0.0)
    mean = np.where(is_normal, mean_x - mean_g / np.where(is_normal, precision, 1.0), 0.0)
    means, precisions = (unravel(jnp.asarray(each, flat.dtype)) for each in (mean, precision))
    return {
        name: NormalPrior(np.asarray(means[name], float), np.asarray(precisions[name], float))
        for name in names.locs
    }


@partial(jax.jit, static_argnames=("terms", "locs"))
def _data_free_gradients(
    terms: ELBOTerms, params: Values, locs: tuple[str, ...], arrays: Leaves, points: jax.Array
) -> jax.Array:
    """Gradients of the data-free loss by the guide's means, at several values of these."""
    _, unravel = ravel_pytree({name: params[name] for name in locs})

    @jax.grad
    def gradient(flat: jax.Array) -> jax.Array:
        at = {**params, **unravel(flat)}
        return data_free_loss(terms, at, arrays, jax.random.key(0))

    return jax.lax.map(gradient, points)


def find_priors(
    fits: dict[str, OptimumFit], draws: dict[str, Array] | None
) -> dict[str, tuple[Array, Array]]:
    """Returns location and scale of the prior where noise hides the posterior's curvature.

    Of the others zero and infinity, as of improper priors, which have no limit.

    Args:
      fits: the regressions, by the name of the guide's means.
      draws: of the prior, by these names, or ``None`` for an improper prior.
    """
    return {
        loc: (np.zeros(fit.slope.shape), np.full(fit.slope.shape, np.inf))
        if draws is None
        else prior_range(draws[loc], ~fit.is_identified)
        for loc, fit in fits.items()
    }


def find_conflicts(means: dict[str, Array], draws: dict[str, Array] | None) -> tuple[str, ...]:
    """Returns a problem for each variable with estimates that its prior hardly allows.

    Beyond all draws of the prior, which has a probability of at most 2 / 1,001 for a coordinate
    drawn from it, and more than five standard deviations from its median.

    Args:
      means: of the iterates, by the name of the guide's means.
      draws: of the prior, by these names, ``(draws, ...)``, or ``None`` for an improper prior.
    """
    if draws is None:
        return ()
    problems = []
    for name, mean in means.items():
        each = draws[name]
        median, scale = prior_range(each, np.ones(mean.shape, bool))
        distance = np.abs(mean - median) / scale
        beyond = (mean < each.min(0)) | (mean > each.max(0))
        far = distance[beyond & (distance > _FARTHEST_FROM_PRIOR)]
        if far.size:
            problems.append(
                f"{name}: estimates of {far.size} of {mean.size} coordinates are up to"
                f" {far.max():.0f} standard deviations of the prior from its median, where none of"
                f" {_NUM_PRIOR_DRAWS:,} prior draws is: the run may have found another optimum than"
                " the posterior's largest, such as components of a mixture in another order, or the"
                " prior contradicts the records: starting values from the prior's medians"
                " (init_loc_fn=numpyro.infer.init_to_median of the guide), or another prior"
            )
    return tuple(problems)


def find_small_clip(
    fits: dict[str, OptimumFit], l2_clip: float, num_examples: int
) -> tuple[str, ...]:
    """Returns a problem if a clip bound is small beside the gradients that the curvature implies.

    The curvature of the log-likelihood is the number of records times the mean square of a record's
    gradient (the information equality), where the model is right and nothing is clipped. Where
    records are clipped, both are smaller. Uncertain curvatures count less, by two standard
    deviations of their sum.

    Args:
      fits: the regressions, by the name of the guide's means.
      l2_clip: bound on a record's gradient.
      num_examples: number of records n.
    """
    total = sum(float(fit.slope.sum()) for fit in fits.values())
    total_std = math.sqrt(sum(float((fit.slope_std**2).sum()) for fit in fits.values()))
    norm = math.sqrt(max(total - 2 * total_std, 0.0) / num_examples)
    if l2_clip >= _SMALL_CLIP_RATIO * norm:
        return ()
    return (
        f"l2_clip = {l2_clip:g} is {l2_clip / norm:.1f} times the root mean square norm of the"
        f" records' gradients, as far as the curvature shows (below {_SMALL_CLIP_RATIO:g} is"
        " small), so many may be clipped, and intervals do not include what that moves:"
        " release_clipped_share=True of DPSVI shows whether it does, or a larger l2_clip",
    )


def draw_prior(svi: "DPSVI", model_args: ModelArgs) -> dict[str, jax.Array] | None:
    """Returns 1,000 prior draws of the latent variables; ``None`` if a prior is improper."""
    latents = tuple(find_sites(svi.model, model_args).latents)
    with warnings.catch_warnings():  # constant records need not be in the support of a site
        warnings.filterwarnings("ignore", ".*Out-of-support values")
        try:
            return _draw_sites(svi.model, model_args.spec, latents, model_args.arrays)
        except NotImplementedError:  # an improper prior has no draws
            return None


@partial(jax.jit, static_argnames=("model", "spec", "latents"))
def _draw_sites(
    model: Callable[..., object], spec: ModelArgsSpec, latents: tuple[str, ...], arrays: Leaves
) -> dict[str, jax.Array]:
    """Prior draws of some sites, compiled once for a model."""
    args, kwargs = spec.constant_args(arrays)
    prior = Predictive(model, num_samples=_NUM_PRIOR_DRAWS, return_sites=list(latents))
    draws: dict[str, jax.Array] = prior(jax.random.key(0), *args, **kwargs)
    return draws


def as_vectors(
    svi: "DPSVI", model_args: ModelArgs, draws: dict[str, jax.Array], size: int
) -> Array:
    """Returns prior draws as unconstrained vectors of a guide that has one, ``(draws, size)``."""
    with warnings.catch_warnings():  # constant records need not be in the support of a site
        warnings.filterwarnings("ignore", ".*Out-of-support values")
        unconstrained = _unconstrain(svi.model, model_args.spec, draws, model_args.arrays)
    vectors, guide = np.zeros((_NUM_PRIOR_DRAWS, size)), cast(Any, svi.guide)
    for name, positions in guide._unpack_latent(np.arange(size)).items():
        vectors[:, np.ravel(positions)] = unconstrained[name].reshape(_NUM_PRIOR_DRAWS, -1)
    return vectors


@partial(jax.jit, static_argnames=("model", "spec"))
def _unconstrain(
    model: Callable[..., object], spec: ModelArgsSpec, draws: dict[str, jax.Array], arrays: Leaves
) -> dict[str, jax.Array]:
    """Draws without constraints, compiled once for a model."""
    args, kwargs = spec.constant_args(arrays)
    values: dict[str, jax.Array] = jax.vmap(partial(unconstrain_fn, model, args, kwargs))(draws)
    return values


def prior_range(draws: Array, use: npt.NDArray[np.bool_]) -> tuple[Array, Array]:
    """Returns medians and scales of prior draws, or 0 and infinity for unused coordinates.

    The scale is half the distance of the quantiles at 16 and 84 %, if these are finite.

    Args:
      draws: ``(draws, ...)``.
      use: of which coordinates, ``(...)``.
    """
    with np.errstate(invalid="ignore"):  # of infinite draws
        low, median, high = np.quantile(draws, [0.16, 0.5, 0.84], axis=0)
    use = use & np.isfinite(low) & np.isfinite(high) & (high > low)
    return np.where(use, median, 0.0), np.where(use, (high - low) / 2, np.inf)


def find_problems(
    fits: dict[str, OptimumFit],
    moves: dict[str, Array],
    clipped: ClippedShare | None,
    *,
    of_draws: bool = False,
) -> tuple[str, ...]:
    """Returns the failed checks of a noise-aware posterior: curvature, drift, linearity, clipping.

    Args:
      fits: the regressions, by the name of the guide's means.
      moves: by how many posterior standard deviations gradients of priors that are not linear move
        the optima, by these names.
      clipped: share of clipped records, if it was released.
      of_draws: whether gradients are regressed on draws from the guide, whose range does not grow
        with the learning rate.
    """
    # Half of the rate of false alarms for the two-sided checks of all coordinates.
    num_coordinates = sum(fit.mean.size for fit in fits.values())
    limit = NormalDist().inv_cdf(1 - _FALSE_ALARM_RATE / 2 / (4 * num_coordinates))

    # Half for their quadratic terms together.
    problems = []
    squares = np.concatenate([np.ravel(fit.bend**2) for fit in fits.values()])
    if chdtrc(num_coordinates, squares.sum()) < _FALSE_ALARM_RATE / 2:
        factor = math.sqrt(squares.sum() / num_coordinates)
        problems.append(
            "gradients are not linear over the range of the iterates (their quadratic terms are"
            f" {factor:.1f} times as large as the noise explains), so intervals of all parameters"
            f" may miss: {_NARROWER_RANGE}"
        )

    for name, fit in fits.items():
        size = fit.mean.size

        ratio = fit.slope / fit.slope_std
        weak = int((~fit.is_identified).sum())
        if weak:
            factor = (MIN_SLOPE_RATIO / max(float(ratio.min()), 1.0)) ** 2
            more = -(-int((factor - 1) * fit.num_steps) // 100) * 100
            text = (
                f"{name}: the curvature of {weak} of {size} coordinates is not identified (least"
                f" ratio to its standard deviation {ratio.min():.1f}, below {MIN_SLOPE_RATIO:g}),"
                " so their intervals are wide, limited by the prior, and those of parameters that"
                " the model multiplies by them may miss. A run with"
                f" {'about' if ratio.min() > 1 else 'more than'} {more:,} more steps at the same"
                " noise multiplier would identify it, at a larger epsilon"
            )
            if factor < _LARGEST_RATE_FACTOR and not of_draws:
                text += (
                    f"; or a learning rate {factor:.1f} times as large, as long as gradients are"
                    " linear over the range of the iterates"
                )
            problems.append(text)

        moving = int((np.abs(fit.drift) > limit).sum())
        if moving:
            problems.append(
                f"{name}: {moving} of {size} coordinates have not settled (mean gradients of both"
                f" halves of the tail differ by up to {np.abs(fit.drift).max():.1f} standard"
                " errors): more steps, or a larger burn_in"
            )

        bent = int((np.abs(fit.curvature_change) > limit).sum())
        if bent:
            problems.append(
                f"{name}: the gradient of {bent} of {size} coordinates is not linear over the tail"
                f" (curvatures of both halves differ by up to"
                f" {np.abs(fit.curvature_change).max():.1f} standard errors): a larger burn_in, or"
                " a smaller learning rate in the tail"
            )

        largest = float(np.abs(moves[name]).max())
        moved = int((~(np.abs(moves[name]) <= _LARGEST_PRIOR_MOVE)).sum())  # NaN included
        if moved:
            problems.append(
                f"{name}: the gradient of the priors of {moved} of {size} coordinates is not linear"
                f" over the range of the iterates, which moves estimates by up to {largest:.1f}"
                " posterior standard deviations; those of the records need not be linear there"
                f" either, so intervals of all parameters may miss: {_NARROWER_RANGE}"
            )

    if clipped is not None and clipped.is_certain and clipped.move > _LARGEST_MOVE:
        problems.append(
            f"{clipped.share:.2%} of the records are clipped (standard error"
            f" {clipped.share_std:.2%}): if their gradients are twice as long as the bound, that"
            f" moves estimates by about {clipped.move:.1f} posterior standard deviations, which"
            " intervals do not include: a larger l2_clip"
        )
    return tuple(problems)
