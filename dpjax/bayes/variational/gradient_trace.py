"""Sums over blocks of steps of released gradients and of the parameters they were taken at."""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from numpyro.distributions.constraints import Constraint
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

from dpjax.bayes.variational.model_args import Values

NUM_BLOCKS = 32


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
      params: by name; ``None`` is returned too if some are not the guide's.
    """
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


class GradientTrace(NamedTuple):
    """Sums over blocks of consecutive steps, from which gradients are regressed on parameters.

    With x the parameter minus its value in the block's first step, and g the gradient that the
    optimiser was given, both unconstrained. Function of what was released, and of the guide's
    draws, which do not depend on the data.

    Attributes:
      num_steps: steps recorded, int32.
      centers: by parameter, ``(num_blocks, ...)``: values in the first step of each block.
      sums: by parameter, ``(num_blocks, 5, ...)``: the sums of x, x^2, g, x g and g^2. With the
        centres this is the size of ``6 * num_blocks`` copies of the parameters, at most 192.
    """

    num_steps: jax.Array
    centers: dict[str, jax.Array]
    sums: dict[str, jax.Array]


def block_length(num_steps: int) -> int:
    """Returns the number of steps in a block, in a run of ``num_steps``."""
    return -(-num_steps // NUM_BLOCKS)


def init_trace(params: Values, num_steps: int) -> GradientTrace:
    """Returns the trace before the first of ``num_steps`` steps."""
    num_blocks = -(-num_steps // block_length(num_steps))

    def zeros(leaf: jax.Array, *axes: int) -> jax.Array:
        dtype = jnp.promote_types(jnp.result_type(leaf), jnp.float32)
        return jnp.zeros((*axes, *jnp.shape(leaf)), dtype)

    return GradientTrace(
        jnp.zeros((), jnp.int32),
        jax.tree.map(lambda leaf: zeros(leaf, num_blocks), params),
        jax.tree.map(lambda leaf: zeros(leaf, num_blocks, 5), params),
    )


def record_gradient(
    trace: GradientTrace, params: Values, gradient: Values, num_steps: int
) -> GradientTrace:
    """Returns the trace with one more step, of a run of ``num_steps``; further ones are left out.

    Args:
      trace: of the steps before.
      params: unconstrained, before the step.
      gradient: at ``params``, with noise.
      num_steps: of the planned run.
    """
    # Past the planned steps there is no block, and JAX leaves out what is written there.
    block, offset = jnp.divmod(trace.num_steps, block_length(num_steps))
    block = jnp.where(trace.num_steps < num_steps, block, NUM_BLOCKS)

    # Parameters relative to the block's first, so that rounding is small beside their variance.
    centers = jax.tree.map(
        lambda all, leaf: all.at[block].set(jnp.where(offset == 0, leaf, all[block])),
        trace.centers,
        params,
    )

    def add(sums: jax.Array, center: jax.Array, leaf: jax.Array, grad: jax.Array) -> jax.Array:
        x, g = leaf - center[block], grad.astype(sums.dtype)
        return sums.at[block].add(jnp.stack([x, x * x, g, x * g, g * g]))

    sums = jax.tree.map(add, trace.sums, centers, params, gradient)
    return GradientTrace(trace.num_steps + 1, centers, sums)


class TailSums(NamedTuple):
    """Sums of one parameter over the blocks of a tail, in float64, about one common centre.

    Attributes:
      counts: steps in each block, ``(num_blocks,)``.
      center: values that x is relative to.
      x: sums of x, ``(num_blocks, ...)``; so are all below.
      xx: of x^2.
      g: of the gradient g.
      xg: of x g.
      gg: of g^2.
    """

    counts: npt.NDArray[np.float64]
    center: npt.NDArray[np.float64]
    x: npt.NDArray[np.float64]
    xx: npt.NDArray[np.float64]
    g: npt.NDArray[np.float64]
    xg: npt.NDArray[np.float64]
    gg: npt.NDArray[np.float64]


def tail_sums(trace: GradientTrace, num_steps: int, burn_in: float) -> dict[str, TailSums]:
    """Returns the sums over the tail of a trace, by parameter.

    Args:
      trace: of a run.
      num_steps: of the planned run, which its blocks are of.
      burn_in: share of the recorded steps that are left out, rounded up to whole blocks.
    """
    # Whole blocks, the last one perhaps unfinished.
    length, done = block_length(num_steps), min(int(trace.num_steps), num_steps)
    first, last = math.ceil(burn_in * done / length), -(-done // length)
    counts = np.minimum(length, done - length * np.arange(first, last)).astype(float)

    # Sums about the first centre of the tail.
    tails = {}
    for name, sums in trace.sums.items():
        x, xx, g, xg, gg = np.moveaxis(np.asarray(sums, float)[first:last], 1, 0)
        centers = np.asarray(trace.centers[name], float)[first:last]
        n = counts.reshape(-1, *[1] * (centers.ndim - 1))
        shift = centers - centers[:1]
        tails[name] = TailSums(
            counts,
            centers[0] if last > first else centers.sum(0),
            x + n * shift,
            xx + 2 * shift * x + n * shift**2,
            g,
            xg + shift * g,
            gg,
        )
    return tails
