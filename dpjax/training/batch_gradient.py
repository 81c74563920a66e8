"""Clipped gradient sums over a sampled batch, on one device or on a mesh of devices."""

import math
from collections.abc import Callable
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from dpjax._typing import ArrayTree, PRNGKey, PyTree, SamplerState
from dpjax.gradients.clipping import ClippedSumFn, CompensatedSum, sum_of_clipped
from dpjax.sampling.base import Sampling, gather
from dpjax.sampling.poisson import pack
from dpjax.training.data import Examples, PrefetchedDraw, SplitRecords
from dpjax.training.sharding import REPLICATED, MeshSharding, check_context, is_spec

# XLA's CPU backend runs loop bodies slower, but each copy of the body is compiled: the loop over
# up to this many physical batches is unrolled.
_UNROLLED = 16


class StepInfo(NamedTuple):
    """Batch statistics of one step. **Private values**: not part of the release.

    Attributes:
      batch_size: records drawn, int32.
      loss_sum: sum of their losses.
      num_nonfinite: records set to zero because their gradient was not finite, int32.
      norms: unclipped norms as `ClippedGradInfo`'s, ``(slots,)``: of every drawn record, or, where
        the draw exceeds the sampler's ``num_static_batches`` (about one in some hundred), of a
        uniformly random subset of ``mask.sum()`` of the ``batch_size`` drawn.
      mask: which of those slots hold a drawn record, bool ``(slots,)``.
    """

    batch_size: jax.Array
    loss_sum: jax.Array
    num_nonfinite: jax.Array
    norms: ArrayTree
    mask: jax.Array


# The clipped sum over a draw, shaped like the parameters, and its `StepInfo`.
BatchSum: TypeAlias = tuple[PyTree, StepInfo]


def sum_next_draw(
    clipped_sum: ClippedSumFn,
    sampling: Sampling,
    state: SamplerState,
    params: ArrayTree,
    data: Examples,
    key: PRNGKey | None = None,
    sharding: MeshSharding | None = None,
) -> tuple[PyTree, StepInfo, SamplerState]:
    """Returns the clipped gradient sum of the next batch, its infos, and the sampler's state."""
    if sharding is not None:
        check_context()
    draw, next_state = (state, state) if isinstance(state, PrefetchedDraw) else sampling.draw(state)
    if not isinstance(data, SplitRecords) and sharding is None:

        @jax.jit
        def sum_of_draw(
            draw: PyTree, params: ArrayTree, data: ArrayTree, key: PRNGKey | None
        ) -> BatchSum:
            summed, info = sum_over_draw(clipped_sum, sampling, draw, params, data, key)
            return sum_of_clipped(0.0, summed), info

        return *sum_of_draw(draw, params, data, key), next_state
    if not isinstance(data, SplitRecords):
        return *sum_over_draw(clipped_sum, sampling, draw, params, data, key, sharding), next_state
    if sharding is None:
        raise ValueError("sharding must be given for SplitRecords: the one they were split by")
    summed, info = sum_over_split_records(clipped_sum, sampling, state, params, data, key, sharding)
    return summed, info, next_state


class Rows(NamedTuple):
    """The rows of one physical batch that one device computes.

    Attributes:
      indices: of the records in the device's data, ``(size,)``.
      mask: bool ``(size,)``, False for padding.
      stream: number folded into the key of the loss for all rows.
      slots: numbers folded into it for each row, ``(size,)``.
    """

    indices: jax.Array
    mask: jax.Array
    stream: jax.Array | int
    slots: jax.Array

    def keys(self, key: PRNGKey) -> jax.Array:
        """Returns the key of each row's loss."""
        return jax.vmap(jax.random.fold_in, (None, 0))(
            jax.random.fold_in(key, self.stream), self.slots
        )


def sum_over_draw(
    clipped_sum: ClippedSumFn,
    sampling: Sampling,
    draw: PyTree,
    params: ArrayTree,
    data: ArrayTree,
    key: PRNGKey | None = None,
    sharding: MeshSharding | None = None,
) -> BatchSum:
    """The clipped sum over all physical batches of a draw: **private values**, without noise.

    ``data`` are all records; of a `PrefetchedDraw` the buffers of all devices, one after another.
    The key of the example in slot i of physical batch j is ``fold_in(fold_in(key, j), i)``. With
    ``sharding`` norms and mask stay on the devices of their rows.
    """
    prefetched, size = isinstance(draw, PrefetchedDraw), sampling.physical_batch_size

    def sum_own_rows(
        draw: PyTree, params: ArrayTree, data: ArrayTree, key: PRNGKey | None
    ) -> BatchSum:
        def rows_of(part: jax.Array) -> Rows:
            batch = draw.batch(part, size) if prefetched else sampling.batch(draw, part)
            columns = [*batch, jnp.arange(size)]
            if sharding is not None:
                num_own = size // sharding.num_shards
                start = jax.lax.axis_index(sharding.batch_axes) * num_own
                columns = [jax.lax.dynamic_slice_in_dim(x, start, num_own) for x in columns]
            indices, mask, slots = columns
            return Rows(indices, mask, part, slots)

        num_batches = draw.num_batches if prefetched else sampling.num_batches(draw)
        usual = sampling.num_static_batches
        return sum_over_batches(clipped_sum, rows_of, usual, num_batches, params, data, key)

    if sharding is None:
        return sum_own_rows(draw, params, data, key)
    sharding.check_batch_size(size)
    of_data = sharding.rows if prefetched else REPLICATED
    specs = (REPLICATED, REPLICATED, of_data, REPLICATED)
    return add_up_shards(sum_own_rows, sharding, params, (draw, params, data, key), specs)


def sum_over_split_records(
    clipped_sum: ClippedSumFn,
    sampling: Sampling,
    state: SamplerState,
    params: ArrayTree,
    data: SplitRecords,
    key: PRNGKey | None,
    sharding: MeshSharding,
) -> BatchSum:
    """Returns the clipped gradient sum of a batch from records that are split over processes.

    Each device computes the gradients of the records that it holds. The key of an example is
    ``fold_in(fold_in(key, 0), its position in the data set)``.
    """

    def sum_own_records(
        state: SamplerState, params: ArrayTree, data: SplitRecords, key: PRNGKey | None
    ) -> BatchSum:
        # Draw from the records in this device's slots.
        positions, shard = data.positions, jax.lax.axis_index(sharding.batch_axes)
        drawn = pack(sampling.members_at(state, positions))

        # The batches that are always computed have a random subset of them, nearly always all.
        size, usual = local_batch_size(sampling, len(positions))
        subset_key = jax.random.fold_in(sampling.subset_key(state), shard)
        subset, others = drawn.split_randomly(subset_key, size * usual)
        num_drawn = subset.size + others.size

        def rows_of(part: jax.Array) -> Rows:
            ranks = part * size + jnp.arange(size, dtype=jnp.int32)
            slots = jnp.where(
                ranks < subset.size,
                subset.records_at(ranks),
                others.records_at(ranks - subset.size),
            )
            slots = jnp.clip(slots, 0, len(positions) - 1)
            return Rows(slots, ranks < num_drawn, 0, positions[slots])

        num_batches = -(-num_drawn // size)
        return sum_over_batches(clipped_sum, rows_of, usual, num_batches, params, data.arrays, key)

    specs = (REPLICATED, REPLICATED, sharding.rows, REPLICATED)
    return add_up_shards(sum_own_records, sharding, params, (state, params, data, key), specs)


def local_batch_size(sampling: Sampling, num_slots: int) -> tuple[int, int]:
    """Returns size and usual number of the physical batches of a device with ``num_slots`` slots.

    Together they hold the mean number of its drawn records plus three standard deviations.

    >>> from dpjax.sampling import PoissonSampling
    >>> sampling = PoissonSampling(1000, 0.1)
    >>> sampling.physical_batch_size, local_batch_size(sampling, 125)
    (136, (30, 1))
    """
    usual = sampling.num_static_batches
    total = usual * sampling.physical_batch_size
    mean = total * num_slots / sampling.num_examples
    wanted = min(math.ceil(mean + 3 * math.sqrt(mean)), total, num_slots)
    return -(-wanted // usual), usual


def add_up_shards(
    local: Callable[..., BatchSum],
    sharding: MeshSharding,
    params: ArrayTree,
    arguments: tuple[PyTree, ...],
    specs: tuple[PartitionSpec, ...],
) -> BatchSum:
    """Returns the sum of the clipped gradients of all devices of the mesh, by ``psum``.

    ``local(*arguments)`` is that of one device; norms and mask stay sharded.

    The sum has the shapes and the placement of ``params``. ``specs`` are how each argument is split
    over the batch axes.
    """
    param_specs = sharding.param_specs(params)

    def on_device(*arguments: PyTree) -> BatchSum:
        summed, info = local(*arguments)
        counts = tuple(info[:3])
        if sharding.num_shards > 1:
            counts = jax.lax.psum(counts, sharding.batch_axes)
        size, loss, nonfinite = counts
        whole = info._replace(batch_size=size, loss_sum=loss, num_nonfinite=nonfinite)
        return sharding.sum_over_shards(summed, param_specs), whole

    batch_specs = jax.tree.map(sharding.batch_spec, param_specs, is_leaf=is_spec)
    info_specs = (*[REPLICATED] * 3, sharding.rows, sharding.rows)
    mapped = jax.shard_map(
        on_device,
        mesh=sharding.auto_mesh,
        in_specs=specs,
        out_specs=(batch_specs, StepInfo(*info_specs)),  # type: ignore[arg-type]
        axis_names=set(sharding.batch_axes),
        check_vma=False,  # a loss may scan over constants, whose type does not vary over devices
    )
    summed, info = mapped(*arguments)
    return sharding.constrain(summed, param_specs), info


def sum_over_batches(
    clipped_sum: ClippedSumFn,
    rows_of: Callable[[jax.Array], Rows],
    usual: int,
    num_batches: jax.Array | int,
    params: ArrayTree,
    data: ArrayTree,
    key: PRNGKey | None,
) -> BatchSum:
    """The clipped sum over physical batches, one after another, of which ``usual`` always.

    ``rows_of(part)`` are the rows of a physical batch, all masked past the last one;
    ``num_batches`` is an int if they are ``usual`` in every draw.
    """

    @jax.jit  # traced once, for the batches of nearly every draw and for further ones
    def sum_of_part(part: jax.Array) -> BatchSum:
        rows = rows_of(part)
        keys = None if key is None else rows.keys(key)
        examples = gather(data, rows.indices)
        summed, info = clipped_sum(params, examples, rows.mask, key=keys)
        drawn = jnp.sum(rows.mask, dtype=jnp.int32)
        loss_sum = jnp.where(jnp.isfinite(info.losses), info.losses, 0).sum()
        return summed, StepInfo(drawn, loss_sum, info.num_nonfinite, info.norms, rows.mask)

    # The batches of nearly every draw, in one scan.
    def add(summed: CompensatedSum, part: jax.Array) -> tuple[CompensatedSum, StepInfo]:
        more, info = sum_of_part(part)
        return summed.add(more), info

    zero = CompensatedSum.zero(jax.eval_shape(sum_of_part, jnp.int32(0))[0])
    parts = jnp.arange(usual, dtype=jnp.int32)
    summed, infos = jax.lax.scan(add, zero, parts, unroll=0 if usual <= _UNROLLED else 1)
    batch_size, loss_sum, num_nonfinite = (jnp.sum(leaf, dtype=leaf.dtype) for leaf in infos[:3])
    norms, mask = jax.tree.map(jnp.ravel, (infos.norms, infos.mask))
    info = StepInfo(batch_size, loss_sum, num_nonfinite, norms, mask)
    if isinstance(num_batches, int):
        return summed.value(), info

    # Further ones of a rare large draw, of which only the counts are kept.
    def add_next(
        carry: tuple[jax.Array, CompensatedSum, StepInfo],
    ) -> tuple[jax.Array, CompensatedSum, StepInfo]:
        part, summed, info = carry
        more, more_info = sum_of_part(part)
        info = info._replace(
            batch_size=info.batch_size + more_info.batch_size,
            loss_sum=info.loss_sum + more_info.loss_sum,
            num_nonfinite=info.num_nonfinite + more_info.num_nonfinite,
        )
        return part + 1, summed.add(more), info

    start = (jnp.int32(usual), summed, info)
    end = jax.lax.while_loop(lambda carry: carry[0] < num_batches, add_next, start)
    return end[1].value(), end[2]
