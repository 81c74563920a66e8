"""Sums over blocks of steps of released gradients and of the parameters they were taken at."""

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from numpyro.distributions.constraints import Constraint
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

from dpjax.bayes.variational.model_args import Values

NUM_BLOCKS = 32
# Of a guide whose gradients are recorded: a trace is as large as 288 copies of its parameters.
MAX_PARAMETERS = 20_000


class MeanFieldParams(NamedTuple):
    """Names of the parameters of a mean-field normal guide.

    Attributes:
      locs: of the means; those of the scales have the same shapes.
      scales: of the standard deviations, in the same order.
      scale_constraint: support of the standard deviations.
    """

    locs: tuple[str, ...]
    scales: tuple[str, ...]
    scale_constraint: Constraint


def mean_field_params(
    guide: Callable[..., object], params: Mapping[str, object]
) -> MeanFieldParams | None:
    """Returns the names of the parameters of `AutoNormal` or `AutoDiagonalNormal`, else ``None``.

    Args:
      guide: of numpyro; exactly these types, as a subclass may use its parameters otherwise.
      params: by name; ``None`` is returned too if some are not the guide's, or if they have more
        than `MAX_PARAMETERS` entries.
    """
    if sum(jnp.size(leaf) for leaf in jax.tree.leaves(params)) > MAX_PARAMETERS:
        return None
    autoguide: Any = guide
    if type(guide) is AutoNormal:
        locs = tuple(sorted(name for name in params if name.endswith(f"_{autoguide.prefix}_loc")))
    elif type(guide) is AutoDiagonalNormal:
        locs = (f"{autoguide.prefix}_loc",)
    else:
        return None
    scales = tuple(name.removesuffix("loc") + "scale" for name in locs)
    if {*locs, *scales} != set(params):
        return None
    return MeanFieldParams(locs, scales, autoguide.scale_constraint)


def check_mean_field(guide: Callable[..., object], params: Mapping[str, object]) -> MeanFieldParams:
    """Returns the names as `mean_field_params`; raises ValueError where no trace is kept."""
    names = mean_field_params(guide, params)
    if names is None:
        raise ValueError(
            f"guide must be AutoNormal or AutoDiagonalNormal of at most {MAX_PARAMETERS:,}"
            " parameters, and the model without param sites, got"
            f" {type(guide).__name__} with parameters of shapes {jax.tree.map(jnp.shape, params)}"
        )
    return names


class GradientTrace(NamedTuple):
    """Sums over blocks of consecutive steps, from which gradients are regressed on parameters.

    With x the parameter minus its value in the block's first step, and g the gradient that the
    optimiser was given, both unconstrained. Function of what was released, and of the guide's
    draws, which do not depend on the data.

    Blocks do not depend on the planned number of steps: where all are full, neighbours are merged
    and blocks are twice as long.

    Attributes:
      num_steps: steps recorded, int32.
      block_length: steps in a full block, int32.
      centers: by parameter, ``(32, ...)``: values in the first step of each block.
      sums: by parameter, ``(32, 8, ...)``: the sums of x, x^2, x^3, x^4, g, x g, x^2 g and g^2.
        With the centres this is the size of 288 copies of the parameters.
    """

    num_steps: jax.Array
    block_length: jax.Array
    centers: dict[str, jax.Array]
    sums: dict[str, jax.Array]


def init_trace(params: Values) -> GradientTrace:
    """Returns the trace before the first step."""

    def zeros(leaf: jax.Array, *axes: int) -> jax.Array:
        dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
        return jnp.zeros((*axes, *jnp.shape(leaf)), dtype)

    return GradientTrace(
        jnp.zeros((), jnp.int32),
        jnp.ones((), jnp.int32),
        jax.tree.map(lambda leaf: zeros(leaf, NUM_BLOCKS), params),
        jax.tree.map(lambda leaf: zeros(leaf, NUM_BLOCKS, 8), params),
    )


def record_gradient(trace: GradientTrace, params: Values, gradient: Values) -> GradientTrace:
    """Returns the trace with one more step.

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
    return trace._replace(num_steps=trace.num_steps + 1, centers=centers, sums=sums)


def merge_blocks(trace: GradientTrace) -> GradientTrace:
    """Returns a full trace with each two neighbouring blocks in one, of twice the length."""

    def merge(sums: jax.Array, centers: jax.Array) -> jax.Array:
        first, second = sums[0::2], sums[1::2]

        # The second block's sums about the first's centre.
        shift = centers[1::2] - centers[0::2]
        moved = shift_sums(trace.block_length, shift, jnp.moveaxis(second, 1, 0))

        return pad(first + jnp.stack(moved, 1))

    def pad(half: jax.Array) -> jax.Array:
        return jnp.concatenate([half, jnp.zeros_like(half)])

    return GradientTrace(
        trace.num_steps,
        2 * trace.block_length,
        jax.tree.map(lambda centers: pad(centers[0::2]), trace.centers),
        jax.tree.map(merge, trace.sums, trace.centers),
    )


def shift_sums(count: Any, shift: Any, sums: Iterable[Any]) -> list[Any]:
    """Returns the sums of a trace about another centre, for x + ``shift`` in the place of x.

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
    """Sums of one parameter over the blocks of a tail, in float64, about one common centre.

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


def tail_sums(trace: GradientTrace, burn_in: float) -> dict[str, TailSums]:
    """Returns the sums over the tail of a trace, by parameter.

    Args:
      trace: of a run.
      burn_in: share of the recorded steps that are left out, rounded up to whole blocks.
    """
    # Whole blocks, the last one perhaps unfinished.
    length, done = int(trace.block_length), int(trace.num_steps)
    first, last = math.ceil(burn_in * done / length), -(-done // length)
    counts = np.minimum(length, done - length * np.arange(first, last)).astype(float)

    # Sums about the first centre of the tail.
    tails = {}
    for name, sums in trace.sums.items():
        blocks = np.moveaxis(np.asarray(sums, float)[first:last], 1, 0)
        centers = np.asarray(trace.centers[name], float)[first:last]
        n = counts.reshape(-1, *[1] * (centers.ndim - 1))
        moved = shift_sums(n, centers - centers[:1], blocks)
        tails[name] = TailSums(counts, centers[0] if last > first else centers.sum(0), *moved)
    return tails
