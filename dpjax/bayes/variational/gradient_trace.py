"""Sums over blocks of steps of released gradients and of what they were taken at.

Of a mean-field normal guide: by each parameter. Of a multivariate normal guide: of the records'
part by the draw of the latent variables, with the products of all pairs of entries.
"""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from numpyro.infer.autoguide import AutoLowRankMultivariateNormal, AutoMultivariateNormal
from scipy.special import stdtrit

from dpjax.bayes.variational.elbo import guide_name
from dpjax.bayes.variational.model_args import Values

Array: TypeAlias = npt.NDArray[np.float64]

NUM_BLOCKS = 32
# Of a guide whose gradients are recorded: a trace is as large as 288 copies of its parameters.
MAX_PARAMETERS = 20_000
# Of latent variables whose products are recorded: a trace has 128 matrices of this size.
MAX_LATENTS = 100
# Of a trend of the iterates in any coordinate, where there is none.
_FALSE_ALARM_RATE = 0.01
# Guides with means and standard deviations as parameters, in errors.
MEAN_FIELD = (
    "AutoNormal, AutoDiagonalNormal or a function that draws each latent variable from Normal"
    " (transformed or not) with a param site for its mean and one for its standard deviation,"
)
# Name of the latent variables of a step in a trace: no parameter can have it.
LATENTS = "latent variables"


def vector_mean(guide: Callable[..., object], params: Values) -> str | None:
    """Returns the name of the mean of a multivariate normal autoguide, else ``None``.

    Args:
      guide: of numpyro; exactly `AutoMultivariateNormal` or `AutoLowRankMultivariateNormal`.
      params: by name; ``None`` is returned too if some are not the guide's, or if there are more
        than `MAX_LATENTS` latent variables.
    """
    autoguide: Any = guide
    others = {
        AutoMultivariateNormal: ("scale_tril",),
        AutoLowRankMultivariateNormal: ("cov_factor", "scale"),
    }
    if type(guide) not in others:
        return None
    names = [f"{autoguide.prefix}_{each}" for each in ("loc", *others[type(guide)])]
    if set(names) != set(params) or jnp.size(jnp.asarray(params[names[0]])) > MAX_LATENTS:
        return None
    return names[0]


def no_trace_error(
    guide: Callable[..., object], params: Mapping[str, object], num_particles: int
) -> ValueError:
    """Returns the error of a guide whose gradients are not recorded."""
    return ValueError(
        f"guide must be {MEAN_FIELD} of at most {MAX_PARAMETERS:,} parameters, or"
        " AutoMultivariateNormal or AutoLowRankMultivariateNormal of at most"
        f" {MAX_LATENTS} latent variables and with one particle, and the model without param"
        f" sites, got {guide_name(guide)}, num_particles = {num_particles} and parameters of"
        f" shapes {jax.tree.map(jnp.shape, dict(params))}"
    )


class GradientTrace(NamedTuple):
    """Sums over blocks of consecutive steps, from which gradients are regressed on parameters.

    With x the parameter minus its value in the block's first step, and g the gradient that the
    optimiser was given, both unconstrained; or x the draw of the latent variables, and g the
    records' part of the gradient by them. Function of what was released, and of the guide's
    draws, which do not depend on the data.

    Blocks do not depend on the planned number of steps: where all are full, neighbours are merged
    and blocks are twice as long.

    Attributes:
      num_steps: steps recorded, int32.
      block_length: steps in a full block, int32.
      centers: by parameter, ``(32, ...)``: values in the first step of each block.
      sums: by parameter, ``(32, 8, ...)``: the sums of x, x^2, x^3, x^4, g, x g, x^2 g and g^2.
        With the centres this is the size of 288 copies of the parameters.
      products: of the draws of the latent variables, ``(32, 4, d, d)``: the sums of x x^T, x g^T,
        g g^T and x^2 x^T.
    """

    num_steps: jax.Array
    block_length: jax.Array
    centers: dict[str, jax.Array]
    sums: dict[str, jax.Array]
    products: dict[str, jax.Array]


def init_trace(params: Values, vectors: Mapping[str, jax.Array] | None = None) -> GradientTrace:
    """Returns the sums over no step, to which `record_gradient` adds.

    Args:
      params: what gradients are recorded at, by name.
      vectors: more of it, vectors whose products are recorded too.
    """
    vectors = vectors or {}
    params = {**params, **vectors}

    def zeros(leaf: jax.Array, *axes: int) -> jax.Array:
        dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
        return jnp.zeros((*axes, *jnp.shape(leaf)), dtype)

    return GradientTrace(
        jnp.zeros((), jnp.int32),
        jnp.ones((), jnp.int32),
        jax.tree.map(lambda leaf: zeros(leaf, NUM_BLOCKS), params),
        jax.tree.map(lambda leaf: zeros(leaf, NUM_BLOCKS, 8), params),
        {name: zeros(each, NUM_BLOCKS, 4, jnp.size(each)) for name, each in vectors.items()},
    )


def record_gradient(trace: GradientTrace, params: Values, gradient: Values) -> GradientTrace:
    """Adds the noisy gradient of one step, and what it was taken at, to the sums.

    Args:
      trace: of the steps before.
      params: unconstrained, before the step.
      gradient: at ``params``, with noise.
    """
    # Make room.
    is_full = trace.num_steps == NUM_BLOCKS * trace.block_length
    trace = jax.lax.cond(is_full, merge_blocks, lambda trace: trace, trace)
    block, offset = jnp.divmod(trace.num_steps, trace.block_length)

    # Parameters relative to the block's first, so that rounding is small beside their variance.
    centers = jax.tree.map(
        lambda all, leaf: all.at[block].set(jnp.where(offset == 0, leaf, all[block])),
        trace.centers,
        params,
    )

    def add(sums: jax.Array, center: jax.Array, leaf: jax.Array, grad: jax.Array) -> jax.Array:
        x, g = leaf - center[block], grad.astype(sums.dtype)
        terms = [x, x**2, x**3, x**4, g, x * g, x**2 * g, g**2]
        return sums.at[block].add(jnp.stack(terms))

    sums = jax.tree.map(add, trace.sums, centers, params, gradient)

    # Products of all pairs of entries: of matrices, half of a b^T twice. XLA fuses an outer product
    # with what computes its factors, and would draw the noise in them anew for each entry.
    products = {}
    for name, each in trace.products.items():
        x = jnp.asarray(params[name]) - centers[name][block]
        g = jnp.asarray(gradient[name], each.dtype)
        left = jnp.stack([jnp.stack([x, x, g, x**2]) / 2] * 2, -1)
        right = jnp.stack([jnp.stack([x, g, g, x])] * 2, 1)
        products[name] = each.at[block].add(jnp.matmul(left, right, precision="highest"))

    return trace._replace(
        num_steps=trace.num_steps + 1, centers=centers, sums=sums, products=products
    )


def merge_blocks(trace: GradientTrace) -> GradientTrace:
    """Returns a full trace with each two neighbouring blocks in one, of twice the length."""

    def merge(sums: jax.Array, centers: jax.Array) -> jax.Array:
        first, second = sums[0::2], sums[1::2]

        # The second block's sums about the first's centre.
        shift = centers[1::2] - centers[0::2]
        moved = shift_sums(trace.block_length, shift, jnp.moveaxis(second, 1, 0))

        return pad(first + jnp.stack(moved, 1))

    def merge_products(products: jax.Array, sums: jax.Array, centers: jax.Array) -> jax.Array:
        first, second = products[0::2], jnp.moveaxis(products[1::2], 1, 0)
        shift, count = centers[1::2] - centers[0::2], trace.block_length
        moved = shift_products(count, shift, sums[1::2], second)
        return pad(first + jnp.stack(moved, 1))

    def pad(half: jax.Array) -> jax.Array:
        return jnp.concatenate([half, jnp.zeros_like(half)])

    return GradientTrace(
        trace.num_steps,
        2 * trace.block_length,
        jax.tree.map(lambda centers: pad(centers[0::2]), trace.centers),
        jax.tree.map(merge, trace.sums, trace.centers),
        {
            name: merge_products(each, trace.sums[name], trace.centers[name])
            for name, each in trace.products.items()
        },
    )


def shift_products(count: Any, shift: Any, sums: Any, products: Iterable[Any]) -> list[Any]:
    """Returns sums of products of x and gradients with x measured from another centre.

    For x + ``shift`` in the place of x.

    Args:
      count: number of steps in each block, of a shape that broadcasts with ``(blocks, d, d)``.
      shift: the old centre minus the new one, ``(blocks, d)``.
      sums: about the old centre, ``(blocks, 8, d)``, in the order of `GradientTrace.sums`.
      products: about the old centre, each ``(blocks, d, d)``, in that of `GradientTrace.products`.
    """
    x, squares, g = sums[:, 0], sums[:, 1], sums[:, 4]
    xx, xg, gg, xxx = products
    column, row = shift[:, :, None], shift[:, None, :]
    sum_column, sum_row = x[:, :, None], x[:, None, :]
    moved_squares = squares[:, :, None] + 2 * column * sum_column + count * column**2
    return [
        xx + column * sum_row + sum_column * row + count * column * row,
        xg + column * g[:, None, :],
        gg,
        xxx + 2 * column * xx + column**2 * sum_row + moved_squares * row,
    ]


def shift_sums(count: Any, shift: Any, sums: Iterable[Any]) -> list[Any]:
    """Moves the centre that x is measured from, in sums of powers of x and of gradients.

    For x + ``shift`` in the place of x.

    Args:
      count: number of steps.
      shift: the old centre minus the new one.
      sums: in the order of `GradientTrace.sums`.
    """
    x, xx, xxx, xxxx, g, xg, xxg, gg = sums
    return [
        x + count * shift,
        xx + 2 * shift * x + count * shift**2,
        xxx + 3 * shift * xx + 3 * shift**2 * x + count * shift**3,
        xxxx + 4 * shift * xxx + 6 * shift**2 * xx + 4 * shift**3 * x + count * shift**4,
        g,
        xg + shift * g,
        xxg + 2 * shift * xg + shift**2 * g,
        gg,
    ]


class TailSums(NamedTuple):
    """Sufficient statistics of a regression of noisy gradients on a parameter, over the last steps.

    In float64, with x about one common centre.

    Attributes:
      counts: steps in each block, ``(num_blocks,)``.
      center: values that x is relative to.
      x: sums of x, ``(num_blocks, ...)``; so are all below.
      xx: of x^2.
      xxx: of x^3.
      xxxx: of x^4.
      g: of the gradient g.
      xg: of x g.
      xxg: of x^2 g.
      gg: of g^2.
    """

    counts: npt.NDArray[np.float64]
    center: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    xx: npt.NDArray[np.float64]
    xxx: npt.NDArray[np.float64]
    xxxx: npt.NDArray[np.float64]
    g: npt.NDArray[np.float64]
    xg: npt.NDArray[np.float64]
    xxg: npt.NDArray[np.float64]
    gg: npt.NDArray[np.float64]

    def later(self, num_early: int) -> "TailSums":
        """Returns the sums without those of the first blocks.

        Args:
          num_early: number of blocks that are left out.
        """
        sums = (each[num_early:] for each in self[2:])
        return TailSums(self.counts[num_early:], self.center, *sums)


def tail_blocks(trace: GradientTrace, burn_in: float) -> tuple[npt.NDArray[np.float64], slice]:
    """Returns the number of steps in each block of the tail, and which blocks these are.

    Args:
      trace: of a run.
      burn_in: share of the recorded steps that are left out, rounded up to whole blocks.
    """
    length, done = int(trace.block_length), int(trace.num_steps)
    # Whole blocks, but for the rounding of the share.
    first, last = math.ceil(burn_in * done / length - 1e-9), -(-done // length)
    counts = np.minimum(length, done - length * np.arange(first, last)).astype(float)
    return counts, slice(first, last)


def tail_sums(trace: GradientTrace, burn_in: float) -> dict[str, TailSums]:
    """Returns the sums over the tail of a trace, by parameter.

    Args:
      trace: of a run.
      burn_in: share of the recorded steps that are left out, rounded up to whole blocks.
    """
    counts, tail = tail_blocks(trace, burn_in)

    # Sums about the first centre of the tail.
    tails = {}
    for name, sums in trace.sums.items():
        blocks = np.moveaxis(np.asarray(sums, float)[tail], 1, 0)
        centers = np.asarray(trace.centers[name], float)[tail]
        n = counts.reshape(-1, *[1] * (centers.ndim - 1))
        moved = shift_sums(n, centers - centers[:1], blocks)
        tails[name] = TailSums(counts, centers[0] if len(counts) else centers.sum(0), *moved)
    return tails


def average_iterates(trace: GradientTrace, burn_in: float) -> dict[str, Array]:
    """Returns the parameters averaged over the steps of a run after the burn-in, unconstrained.

    Args:
      trace: of a run.
      burn_in: share of the steps that are left out, as for `tail_sums`.

    Raises:
      ValueError: if no block of steps is left.
    """
    averages = {}
    for name, tail in tail_sums(trace, burn_in).items():
        if not tail.counts.size:
            raise ValueError(f"burn_in must leave a block of steps, got {burn_in}")
        averages[name] = tail.center + tail.x.sum(0) / tail.counts.sum()
    return averages


class TailProducts(NamedTuple):
    """Sums of products of the latent variables and their noisy gradients, by block of steps.

    In float64, with x about one common centre.

    Attributes:
      xx: of x x^T, ``(num_blocks, d, d)``; so are all below.
      xg: of x g^T.
      gg: of g g^T.
      xxx: of x^2 x^T, the squares of its entries.
    """

    xx: npt.NDArray[np.float64]
    xg: npt.NDArray[np.float64]
    gg: npt.NDArray[np.float64]
    xxx: npt.NDArray[np.float64]


def tail_products(trace: GradientTrace, burn_in: float, name: str) -> TailProducts:
    """Returns the products of one vector over the tail of a trace, about the centre of `tail_sums`.

    Args:
      trace: of a run.
      burn_in: as for `tail_sums`.
      name: of a vector whose products were recorded.
    """
    counts, tail = tail_blocks(trace, burn_in)
    centers, sums, products = (
        np.asarray(each[name], float)[tail] for each in (trace.centers, trace.sums, trace.products)
    )
    n = counts[:, None, None]
    blocks = np.moveaxis(products, 1, 0)
    moved = shift_products(n, centers - centers[:1], sums, blocks)
    return TailProducts(*moved)


def settled_burn_in(trace: GradientTrace) -> float | None:
    """Returns the least share of the steps after which the iterates have no trend.

    Neither has a line through the means of the tail's blocks a slope that noise does not explain,
    nor is its first block off the others: t-tests at 1 % for all coordinates together, with the
    variance of the second half's blocks.

    Args:
      trace: of a run, in 16 blocks or more.

    Returns:
      The first steps' share, at most one half; ``None`` if the second half has a trend.
    """
    counts, _ = tail_blocks(trace, 0.0)
    means = np.concatenate(
        [
            (each.center + each.x / counts.reshape(-1, *[1] * (each.x.ndim - 1))).reshape(
                len(counts), -1
            )
            for each in tail_sums(trace, 0.0).values()
        ],
        axis=1,
    )
    times = np.cumsum(counts) - counts / 2

    def line(first: int) -> tuple[Array, Array, Array]:
        """Slope of the blocks from ``first`` on, in units of its weight; residuals; deviations."""
        weights, y = counts[first:, None], means[first:]
        time = times[first:, None] - np.average(times[first:], weights=counts[first:])
        y = y - (weights * y).sum(0) / weights.sum()
        spread = np.sum(weights * time**2)
        slope = (weights * time * y).sum(0) / spread
        return slope * math.sqrt(spread), y - time * slope, y

    # The noise of one step in a block's mean, from the second half, whose blocks may correlate.
    half = len(counts) // 2
    freedom = len(counts) - half - 2
    residuals = np.sqrt(counts[half:, None]) * line(half)[1]
    squares = (residuals**2).sum(0)
    correlation = (residuals[1:] * residuals[:-1]).sum(0) / np.where(squares > 0, squares, 1.0)
    correlation = np.clip(correlation, 0.0, 0.9)
    std = np.sqrt(squares / freedom * (1 + correlation) / (1 - correlation))
    limit = std * stdtrit(freedom, 1 - _FALSE_ALARM_RATE / 4 / means.shape[1])

    # The first block from which on nothing exceeds it.
    for first in range(half + 1):
        slope, _, deviations = line(first)
        share = counts[first] / counts[first:].sum()
        off = np.abs(deviations[0]) * math.sqrt(counts[first] / (1 - share))
        if (np.abs(slope) <= limit).all() and (off <= limit).all():
            return float(counts[:first].sum() / counts.sum())
    return None
