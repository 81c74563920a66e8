"""Micro-batches: clipped sums of parts of a batch, and the choice of their size."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun

from dpjax._typing import ArrayTree
from dpjax.gradients.clipping import ClippedGradInfo, ClippedSum, ClippedSumFn, CompensatedSum

T = TypeVar("T")

# The most micro-batches that are computed without a loop, where loops are slow.
_UNROLLED = 16
# Examples in the first program whose memory is analysed.
_FEW = 8
_CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")


def isolate_nonfinite(
    compute: ClippedSumFn, params: ArrayTree, batch: ArrayTree, mask: jax.Array
) -> ClippedSum:
    """``compute``, repeated with micro-batches of one where an example was not finite.

    XLA runs convolutions with a kernel (or kernel gradient) for each example as *one* convolution
    with zeros between the examples, and 0 * NaN is NaN: one example could zero out the whole batch,
    which moves the sum by more than a clip bound.
    """
    summed, info = compute(params, batch, mask)
    if len(mask) < 2:
        return summed, info
    return jax.lax.cond(
        info.num_nonfinite == 0,
        lambda: (summed, info),
        lambda: sum_over_microbatches(compute, 1, params, batch, mask),
    )


def sum_over_microbatches(
    compute: ClippedSumFn,
    part_size: int,
    params: ArrayTree,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    unroll: bool = False,
) -> ClippedSum:
    """Returns the sum of clipped gradients over micro-batches (gradient accumulation).

    Rounding errors of the sum are compensated.

    See `scan_microbatches`.
    """

    def add(
        summed: CompensatedSum, batch: ArrayTree, mask: jax.Array
    ) -> tuple[CompensatedSum, ClippedGradInfo]:
        more, info = compute(params, batch, mask)
        return summed.add(more), info

    zero = CompensatedSum.zero(jax.eval_shape(compute, params, batch, mask)[0])
    summed, info = scan_microbatches(add, zero, part_size, batch, mask, unroll=unroll)
    return summed.value(), info


def scan_microbatches(
    add: Callable[..., tuple[T, ClippedGradInfo]],
    start: T,
    part_size: int,
    batch: ArrayTree,
    mask: jax.Array,
    *,
    unroll: bool = False,
) -> tuple[T, ClippedGradInfo]:
    """Scans ``add(summed, batch, mask) -> (summed, info)`` over micro-batches of ``part_size``.

    Micro-batch i has the examples i, i + k, i + 2k, ... of k micro-batches, the last ones padded
    and masked. So a batch that is split over devices in contiguous parts has a part of each
    micro-batch on every device. With ``unroll`` (`is_slow_in_loops`) up to 16 micro-batches are
    computed without a loop.
    """
    size = mask.shape[0]
    num_parts = -(-size // part_size)
    padding = num_parts * part_size - size

    def in_columns(leaf: jax.Array) -> jax.Array:
        padded = leaf if padding == 0 else jnp.concatenate([leaf, leaf[jnp.full(padding, -1)]])
        return padded.reshape(part_size, num_parts, *leaf.shape[1:])

    counts = jnp.arange(num_parts * part_size).reshape(part_size, num_parts) < size
    columns = jax.tree.map(in_columns, (jax.tree.map(jnp.asarray, batch), mask))

    def add_part(summed: T, index: jax.Array) -> tuple[T, ClippedGradInfo]:
        # Without a loop too, one micro-batch after another: at once they would take more memory.
        summed, index = jax.lax.optimization_barrier((summed, index))
        examples, included, counted = jax.tree.map(
            lambda leaf: jax.lax.dynamic_index_in_dim(leaf, index, 1, keepdims=False),
            (*columns, counts),
        )
        return add(summed, examples, included & counted)

    at_once = num_parts if unroll and num_parts <= _UNROLLED else 1
    summed, info = jax.lax.scan(add_part, start, jnp.arange(num_parts), unroll=at_once)
    norms, losses = jax.tree.map(
        lambda leaf: leaf.swapaxes(0, 1).reshape(-1)[:size], (info.norms, info.losses)
    )
    return summed, ClippedGradInfo(norms, losses, info.num_nonfinite.sum())


def fitting_microbatch_size(
    compute: ClippedSumFn, params: ArrayTree, batch: ArrayTree, mask: jax.Array
) -> int:
    """The largest power of two, or all examples, with which ``compute`` fits in device memory.

    It may take half of it, by the compiler's analysis: of one program where that shows that the
    whole batch fits, else of three or more.
    """
    size, limit = len(mask), device_memory() // 2

    def memory(part_size: int) -> int:
        return _program_memory(compute, params, batch, mask, part_size)

    # The whole batch, if it fits by the memory of a few examples.
    few = min(_FEW, size)
    of_few = memory(few)
    if of_few * size <= limit * few:
        return size

    # Else the largest power of two, by that of twice as many.
    each = max(memory(2 * few) - of_few, 1) / few
    fitting = max(1, min(int(few + (limit - of_few) / each), size - 1))
    part_size: int = 2 ** (fitting.bit_length() - 1)
    while part_size > 1 and memory(part_size) > limit:
        part_size //= 2
    return part_size


def device_memory() -> int:
    """Bytes of memory of the default device: of a CPU the machine's, or its control group's."""
    stats = jax.devices()[0].memory_stats() or {}
    if "bytes_limit" in stats:
        return int(stats["bytes_limit"])
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    group = _CGROUP_LIMIT.read_text().strip() if _CGROUP_LIMIT.exists() else "max"
    return machine if group == "max" else min(machine, int(group))


def _program_memory(
    compute: ClippedSumFn, params: ArrayTree, batch: ArrayTree, mask: jax.Array, size: int
) -> int:
    """Bytes that ``compute`` takes on ``size`` examples, with two sums beside its own."""
    part = jax.tree.map(
        lambda leaf: jax.ShapeDtypeStruct((size, *leaf.shape[1:]), leaf.dtype), (batch, mask)
    )
    jaxpr = jax.make_jaxpr(compute)(params, *part)
    # Without closed-over values, which may be values of an enclosing trace.
    shapes = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype),
        (jaxpr.consts, jax.tree.leaves((params, part))),
    )
    program = jax.jit(lambda consts, inputs: jaxpr_as_fun(jaxpr.replace(consts=consts))(*inputs))
    analysis = program.lower(*shapes).compile().memory_analysis()
    assert analysis is not None
    return int(analysis.temp_size_in_bytes + 3 * analysis.output_size_in_bytes)
