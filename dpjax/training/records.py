"""Training on a data source, whose records are read while the device computes."""

import dataclasses
import math
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from dpjax._typing import ArrayTree, PRNGKey
from dpjax.sampling.base import Sampling
from dpjax.sampling.staged import LocatedDraw, StagedDraw, StagedSampling, locate_draw
from dpjax.training.checkpoint import Identity, mechanism_hash, program_hash, text_hash
from dpjax.training.loop import Steps, Update, compile_steps
from dpjax.training.processes import check_all, check_equal, hash_arrays
from dpjax.training.sharding import REPLICATED, MeshSharding
from dpjax.training.sources import DataSource, RecordReader, is_source
from dpjax.training.split_records import (
    SplitRecords,
    check_records,
    place_records,
    records_fingerprint,
    whole_shapes,
)

# (state, number of steps) -> the state and the info after each step
StepIterator = Callable[[Any, int], Generator[tuple[Any, Any]]]


class RecordStream:
    """Training steps on a data source, of which only the sampled records are read.

    The sampler draws on the device, and its draws do not depend on the parameters: the records of
    a draw are read in a thread while the device computes the step before. They are put into a
    buffer with one row for each slot of the ``usual_batches`` physical batches. For a draw that
    exceeds these the buffer is doubled, and the step compiled for that size too.

    On a mesh each part of the physical batches' rows has a buffer of its own, on its devices. Every
    process makes the whole draw, and reads the records of the parts that its devices have.

    Args:
      source: the records, on several processes the same ones.
      sampling: the sampler.
      num_samplers: how many independent samplers of this kind draw in each step; their states are
        stacked on a leading axis. By default there is one, without such an axis.
      sharding: of the run.

    Attributes:
      sampling: the sampler in a step whose data are the buffer.

    Raises:
      ValueError: the source has another length than the sampler, its first record is no tree of
        numbers, or physical batches cannot be split evenly over the mesh.
    """

    def __init__(
        self,
        source: DataSource,
        sampling: Sampling,
        num_samplers: int | None = None,
        sharding: MeshSharding | None = None,
    ) -> None:
        self.sampling = StagedSampling(sampling)
        self._sharding, everywhere = sharding, None
        if sharding is not None:
            sharding.check_batch_size(sampling.physical_batch_size)
            everywhere = NamedSharding(sharding.auto_mesh, REPLICATED)
        self._reader = check_all(lambda: RecordReader(source, sampling.num_examples), "data")

        def locate(state: Any, num_batches: int) -> LocatedDraw:
            one = partial(locate_draw, sampling, num_batches=num_batches)
            return one(state) if num_samplers is None else jax.vmap(one)(state)

        self._locate = jax.jit(locate, static_argnums=1, out_shardings=everywhere)

    def fingerprint(self) -> str:
        """Returns a hash of the source's length, structure and some records (`RecordReader`)."""
        return self._reader.fingerprint()

    def run_program_hash(self, update: Update, state: Any) -> str:
        """Returns the hash of the program of ``update``: see `run_program_hash` of this module."""
        usual = self.sampling.usual_batches
        located = jax.eval_shape(lambda sampler: self._locate(sampler, usual), state.sampler)
        draw = located._replace(sampler=None)
        nothing = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), draw)
        staged, _ = self._split(nothing, 1)
        records = self._reader.empty(nothing.mask.size)
        return program_hash(update, state._replace(sampler=staged), records)

    def compile_steps(self, update: Update) -> StepIterator:
        """Returns ``steps(state, num_steps)``, which yields the state and info after each step.

        Args:
          update: ``update(state, data) -> (state, info)``, pure, of a state with a ``sampler``. Its
            sampler is ``self.sampling``. Each step consumes (donates) the state before it, and its
            ``info`` has a leading axis of one step.
        """
        programs: dict[int, Steps] = {}

        def steps(state: Any, num_steps: int) -> Generator[tuple[Any, Any]]:
            with closing(self._stage_draws(state.sampler, num_steps)) as draws:
                for draw, records, sampler in draws:
                    state = state._replace(sampler=draw)
                    if draw.mask.size not in programs:
                        programs[draw.mask.size] = compile_steps(update, state, records, 1)
                    state, info = programs[draw.mask.size](state, records, 1)
                    state = state._replace(sampler=sampler)
                    yield state, info

        return steps

    def _stage_draws(self, sampler: Any, num_draws: int) -> Generator[tuple[StagedDraw, Any, Any]]:
        """Yields draws, their records, and the sampler's state after each."""
        usual = self.sampling.usual_batches
        with ThreadPoolExecutor(1, "dpjax-records") as thread:
            located = self._locate(sampler, usual)
            reading = thread.submit(self._stage_if_whole, located)
            for number in range(1, num_draws + 1):
                found: Any = reading.result()
                if isinstance(found, int):
                    size = usual * 2 ** math.ceil(math.log2(found / usual))
                    located = self._locate(sampler, size)
                    found = self._stage(located)
                draw, records = self._place(*found)
                sampler = located.sampler
                if number < num_draws:
                    # Dispatched before the step that takes `draw`, behind which it would wait.
                    located = self._locate(sampler, usual)
                    reading = thread.submit(self._stage_if_whole, located)
                yield draw, records, sampler

    def _stage_if_whole(self, located: LocatedDraw) -> tuple[StagedDraw, dict[int, Any]] | int:
        """Stages the draw if all of it was located, else returns its physical batches' number."""
        if located.num_batches is not None:
            filled = int(np.asarray(located.num_batches).max())
            if filled * self.sampling.physical_batch_size > located.mask.shape[-1]:
                return filled
        return self._stage(located)

    def _stage(self, located: LocatedDraw) -> tuple[StagedDraw, dict[int, Any]]:
        """Returns the draw, and this process's buffers, which hold each drawn record once."""
        num_shards = 1 if self._sharding is None else self._sharding.num_shards
        staged, drawn = self._split(located, num_shards)
        own = [0] if self._sharding is None else self._sharding.own_shards
        num_rows = located.mask.size // num_shards
        return staged, {
            shard: self._reader.read(drawn[shard].tolist(), self._reader.empty(num_rows))
            for shard in own
        }

    def _split(self, located: LocatedDraw, num_shards: int) -> tuple[StagedDraw, list[np.ndarray]]:
        """Returns the draw, and the positions of the records that each buffer has.

        Slots without a record have the first row of the buffer, on which a loss is as finite as on
        any other.
        """
        mask, indices = np.asarray(located.mask), np.asarray(located.indices)
        rows, size = np.zeros(mask.shape, np.int32), self.sampling.physical_batch_size
        shards = np.arange(mask.shape[-1]) % size // (size // num_shards)
        drawn = []
        for shard in range(num_shards):
            own = mask & (shards == shard)
            found, rows[own] = np.unique(indices[own], return_inverse=True)
            drawn.append(found)
        # One empty physical batch more: with one alone, XLA would see that the loop over further
        # batches repeats a computation, and make it before the loop, in every step.
        empty = [(0, 0)] * (mask.ndim - 1) + [(0, size)]
        filled = None if located.num_batches is None else np.array(located.num_batches)
        return StagedDraw(np.pad(rows, empty), np.pad(mask, empty), filled), drawn

    def _place(self, staged: StagedDraw, buffers: dict[int, Any]) -> tuple[StagedDraw, Any]:
        """Returns the draw on all devices, and each buffer on its own."""
        if self._sharding is None:
            return jax.device_put((staged, buffers[0]))
        return self._sharding.place(staged), self._sharding.place_shards(buffers)


def open_data(
    sampling: Sampling,
    data: Any,
    sharding: MeshSharding | None = None,
    num_samplers: int | None = None,
) -> Any:
    """Returns the stream of a source's records; other data as they are, if they fit the sampler.

    Args:
      sampling: the sampler.
      data: a source, a tree of arrays, or `SplitRecords`.
      sharding: of the run.
      num_samplers: see `RecordStream`.

    Raises:
      ValueError: ``data`` has another length than ``sampling``, or masked arrays.
    """
    if not is_source(data):
        check_records(sampling, data)
        return data
    return RecordStream(data, sampling, num_samplers, sharding)


def place_data(data: Any, sharding: MeshSharding | None) -> Any:
    """Returns what `open_data` returned, arrays on the device or on each device of a mesh."""
    return data if isinstance(data, RecordStream) else place_records(data, sharding)


def stage(mechanism: Any, data: Any) -> Any:
    """Returns the mechanism, on a data source with a sampler whose draws are made beforehand."""
    if not isinstance(data, RecordStream):
        return mechanism
    return dataclasses.replace(mechanism, sampling=data.sampling)


def run_program_hash(update: Update, state: Any, data: Any) -> str:
    """Returns the hash of the program of ``update`` on one device, on what `open_data` returned."""
    if isinstance(data, RecordStream):
        return data.run_program_hash(update, state)
    return program_hash(update, state, whole_shapes(data))


def data_fingerprint(data: Any) -> str:
    """Returns a hash of what `open_data` returned: of all records, or of some of a source."""
    return data.fingerprint() if isinstance(data, RecordStream) else records_fingerprint(data)


def identify_run(mechanism: Any, data: Any, program: str) -> Identity:
    """Returns the identity of a run that its checkpoints must match, on any devices.

    Args:
      mechanism: of the run.
      data: what `open_data` returned.
      program: `run_program_hash` of the step on one device.
    """
    return Identity(mechanism_hash(mechanism), data_fingerprint(data), program)


def check_processes(
    key: PRNGKey,
    params: ArrayTree,
    mechanism: Any,
    program: Callable[[], str],
    data: Any,
    sharding: MeshSharding | None,
) -> None:
    """Raises ValueError unless all processes of a run (`jax.distributed`) agree on it.

    Hashes of the arguments are compared, of ``data`` unless each process has a part of them.

    Args:
      key: of the run.
      params: the initial parameters.
      mechanism: of the run.
      program: returns the hash of the program of a step.
      data: what `open_data` returned.
      sharding: of the run.
    """
    if jax.process_count() == 1:
        return
    if sharding is None:
        raise ValueError(
            f"sharding must be given where jax.distributed connects {jax.process_count()}"
            " processes: without it each would make a release of its own"
        )
    hashes = {
        "key": hash_arrays(key),
        "params": hash_arrays(params),
        "mechanism": mechanism_hash(mechanism),
        "sharding": text_hash(sharding.describe(params)),
        "the program of loss_fn and optimizer, or JAX's version": program(),
    }
    if not isinstance(data, SplitRecords):
        hashes["data (unless it is split_records of them)"] = data_fingerprint(data)
    check_equal(hashes)


def compile_calls(update: Update, state: Any, data: Any, steps_per_call: int) -> Steps:
    """Returns `compile_steps` of what `open_data` returned; on a stream one step at a time."""
    if not isinstance(data, RecordStream):
        return compile_steps(update, state, data, steps_per_call)
    steps = data.compile_steps(update)

    def run(state: Any, data: Any, num_steps: int) -> tuple[Any, Any]:
        infos = []
        with closing(steps(state, num_steps)) as each:
            for state, info in each:  # noqa: B007
                infos.append(info)
        return state, jax.tree.map(lambda *leaves: jnp.concatenate(leaves), *infos)

    return run
