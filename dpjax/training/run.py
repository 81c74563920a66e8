"""The driver of all runs: compiled chunks of steps, progress, checkpoints, resumption, identity."""

import abc
import ctypes
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Generic, NamedTuple, Protocol, Self, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding
from jax.stages import Wrapped
from tqdm import tqdm

from dpjax._hashing import describe_dataclass, hash_arrays, hash_dataclass, hash_text
from dpjax._html import HTMLTable
from dpjax._jaxprs import is_slow_in_loops
from dpjax._typing import ArrayTree, PRNGKey, PyTree, SamplerState
from dpjax.guarantee import Guarantee, render_guarantee
from dpjax.keys import is_seeded
from dpjax.training.checkpoint import (
    CheckpointStore,
    Description,
    Identity,
    describe_arrays,
    program_hash,
)
from dpjax.training.processes import check_equal, explain_lost_process
from dpjax.training.sharding import MeshSharding

if TYPE_CHECKING:
    from dpjax.certificates.certificate import Certificate

StateT = TypeVar("StateT")
DataT = TypeVar("DataT")
InfoT = TypeVar("InfoT")
RunStateT = TypeVar("RunStateT", bound="RunState")
_StateT_contra = TypeVar("_StateT_contra", contravariant=True)
_DataT_co = TypeVar("_DataT_co", covariant=True)
_DataT_contra = TypeVar("_DataT_contra", contravariant=True)
_InfoT_co = TypeVar("_InfoT_co", covariant=True)
_InfoT_contra = TypeVar("_InfoT_contra", contravariant=True)

# Parameters and values of mallopt(3), as in malloc.h: large blocks are not mapped one by one, the
# heap is never trimmed and grows by 256 MiB, and threads share one arena (others map large blocks).
_MALLOPT = {
    "M_MMAP_MAX": (-4, 0),
    "M_TRIM_THRESHOLD": (-1, -1),
    "M_TOP_PAD": (-2, 2**28),
    "M_ARENA_MAX": (-8, 1),
}
_SECONDS_PER_FAULT = 1e-6  # measured: 0.7 to 1.5 microseconds, most of it for zeroing the page
_SHARE, _LEAST_SECONDS = 0.1, 10.0

# A step: (state, data) -> (next state, info).
Update: TypeAlias = Callable[[StateT, DataT], tuple[StateT, InfoT]]
# Compiled steps, made by `compile_chunk`: (state, data, num_steps, phase=0) -> (state, infos); by
# `TrainingData.compile`, bound to the data: (state, num_steps, phase=0) -> (state, infos).
Chunk: TypeAlias = Callable[..., tuple[StateT, InfoT]]


def compile_chunk(
    update: Update[StateT, DataT, InfoT], state: StateT, data: DataT, max_steps: int, every: int = 1
) -> Chunk[StateT, InfoT]:
    """Compiles a loop of up to ``max_steps`` steps of ``update``.

    It loops on the device; or on the host, one device call a step, where loops on the device are
    slow (`is_slow_in_loops`). For dense models a round trip for each step costs more than the step.

    Args:
      update: ``update(state, data) -> (state, info)``, pure.
      state: a state as it will be passed; each call consumes (donates) its state.
      data: arrays of the shapes that will be passed; they are not embedded in the program.
      max_steps: the most steps one call runs.
      every: of so many steps the info of the last is kept.

    Returns:
      ``chunk(state, data, num_steps, phase=0) -> (state, infos)``, where ``phase`` steps were made
      since an info was kept, and every leaf of ``infos`` has a leading axis of
      ``(phase + num_steps) // every``. It never recompiles, whatever the numbers.

    >>> chunk = compile_chunk(lambda s, d: (s + d, s), jnp.zeros(()), jnp.ones(()), 4)
    >>> state, seen = chunk(jnp.zeros(()), jnp.ones(()), 3)
    >>> float(state), seen.tolist()
    (3.0, [0.0, 1.0, 2.0])
    """
    update = jax.jit(update)  # traced once, for the choice of the loop and in it
    loop = host_loop if is_slow_in_loops(update, state, data) else device_loop
    return loop(update, state, data, max_steps, every)


def host_loop(
    update: Update[StateT, DataT, InfoT], state: StateT, data: DataT, max_steps: int, every: int = 1
) -> Chunk[StateT, InfoT]:
    """Compiles one step and returns a Python loop over it; see `compile_chunk`."""
    del max_steps
    step = _jit(update, state).lower(state, data).compile()

    def each_step(state: StateT, data: DataT, num_steps: int) -> Iterator[tuple[StateT, InfoT]]:
        for _ in range(num_steps):
            state, info = step(state, data)
            yield state, info

    def chunk(
        state: StateT, data: DataT, num_steps: int, phase: int = 0, /
    ) -> tuple[StateT, InfoT]:
        return last_and_kept(each_step(state, data, num_steps), phase, every, jnp.stack)

    return chunk


def last_and_kept(
    steps: Iterator[tuple[StateT, InfoT]], phase: int, every: int, join: Callable[..., jax.Array]
) -> tuple[StateT, InfoT]:
    """Returns the final state of a Python loop and the infos of every so many steps, stacked."""
    infos = []
    for number, (state, info) in enumerate(steps, start=phase + 1):  # noqa: B007
        if number % every == 0:
            infos.append(info)
    joined: PyTree = jax.tree.map(lambda *leaves: join(leaves), *infos) if infos else ()
    return state, joined


def device_loop(
    update: Update[StateT, DataT, InfoT], state: StateT, data: DataT, max_steps: int, every: int = 1
) -> Chunk[StateT, InfoT]:
    """Compiles a loop of steps on the device (``jax.lax.fori_loop``); see `compile_chunk`."""
    # Rows for the infos: of the last step of each stretch of ``every``, one perhaps unfinished.
    num_rows = 1 + (max_steps + every - 2) // every

    def steps(
        state: StateT, data: DataT, num_steps: jax.Array, phase: jax.Array
    ) -> tuple[StateT, InfoT]:
        def body(index: jax.Array, carry: tuple[StateT, InfoT]) -> tuple[StateT, InfoT]:
            state, infos = carry
            state, info = update(state, data)

            # Each step of a stretch overwrites the info of the one before.
            row = (phase + index) // every
            return state, jax.tree.map(lambda all, one: all.at[row].set(one), infos, info)

        info = jax.eval_shape(update, state, data)[1]
        infos = jax.tree.map(lambda x: jnp.zeros((num_rows, *x.shape), x.dtype), info)
        return jax.lax.fori_loop(0, num_steps, body, (state, infos))

    compiled = _jit(steps, state).lower(state, data, jnp.int32(0), jnp.int32(0)).compile()

    def chunk(
        state: StateT, data: DataT, num_steps: int, phase: int = 0, /
    ) -> tuple[StateT, InfoT]:
        state, infos = compiled(state, data, jnp.int32(num_steps), jnp.int32(phase))
        count = (phase + num_steps) // every
        return state, infos if count == num_rows else jax.tree.map(lambda x: x[:count], infos)

    return chunk


def _jit(steps: Callable[..., tuple[StateT, InfoT]], state: StateT) -> Wrapped:
    """Compiles ``steps``, which consumes a state and returns one that is placed like it."""

    def sharding(leaf: ArrayTree) -> NamedSharding | None:
        own = leaf.sharding if isinstance(leaf, jax.Array) else None
        return own if isinstance(own, NamedSharding) else None

    return jax.jit(steps, donate_argnums=0, out_shardings=(jax.tree.map(sharding, state), None))


class RunState(Protocol):
    """Protocol of the training states that `run` takes: named tuples such as `TrainState`.

    Attributes:
      sampler: state of the sampler.
      num_releases: number of noisy sums released, int32; of several chains one each.
    """

    @property
    def sampler(self) -> SamplerState: ...

    @property
    def num_releases(self) -> jax.Array: ...

    def _replace(self, *, sampler: SamplerState) -> Self: ...


class TrainingData(abc.ABC, Generic[_DataT_co]):
    """Base class of training data: arrays in memory, records split over processes, or a source.

    Attributes:
      is_split: whether each process has records of its own.
    """

    is_split: ClassVar[bool] = False

    @abc.abstractmethod
    def place(self, sharding: MeshSharding | None) -> Self:
        """Returns the data with its arrays placed on the device, or on those of ``sharding``."""

    @abc.abstractmethod
    def fingerprint(self) -> str:
        """Returns a sha256 of the records, the same on any devices; not to be published."""

    @abc.abstractmethod
    def shapes(self, state: RunStateT) -> tuple[RunStateT, PyTree]:
        """Returns the arguments of a step from ``state`` on one device, or their shapes."""

    @abc.abstractmethod
    def compile(
        self,
        update: Update[RunStateT, _DataT_co, InfoT],
        state: RunStateT,
        max_steps: int,
        *,
        every: int = 1,
    ) -> Chunk[RunStateT, InfoT]:
        """Compiles a loop of training steps on these records; see `compile_chunk`.

        Args:
          update: ``update(state, data) -> (state, info)``.
          state: as it will be passed.
          max_steps: the most steps one call runs.
          every: of so many steps the info of the last is kept.

        Returns:
          ``chunk(state, num_steps, phase=0) -> (state, infos)``.
        """


class Step(Protocol[StateT, _DataT_contra, _InfoT_co]):
    """A step of a run.

    Attributes:
      update: ``update(state, data) -> (state, info)``.
      one_device_update: the same on one device: its program identifies the run on any devices.
    """

    @property
    def update(self) -> Update[StateT, _DataT_contra, _InfoT_co]: ...

    @property
    def one_device_update(self) -> Update[StateT, _DataT_contra, _InfoT_co]: ...


class Plan(NamedTuple, Generic[RunStateT, DataT, InfoT]):
    """What a training run needs: the mechanism, the step function and the initial state.

    Attributes:
      mechanism: any tree of dataclasses that identifies the run.
      step: with its update.
      state: the first one, with its ``num_releases``, the steps done before; consumed.
    """

    mechanism: object
    step: Step[RunStateT, DataT, InfoT]
    state: RunStateT


class Keep(Protocol[_StateT_contra, _InfoT_contra]):
    """Storage of the infos of every so many steps of a run, before the checkpoint after them.

    Attributes:
      burn_in: steps before the first of them.
      thinning: of so many steps the info of the last is kept.
    """

    burn_in: int
    thinning: int

    def open(self, state: _StateT_contra, *, num_done: int) -> None:
        """Makes room, or opens what the ``num_done`` steps before have kept."""

    def write(self, first: int, infos: _InfoT_contra) -> None:
        """Writes the infos of steps to disk, from index ``first``."""


class RunResult:
    """Base class of what runs return: the guarantee of the steps that were taken.

    Attributes:
      mechanism: of the steps that were taken.
      seeded: whether the key looks like ``jax.random.key(seed)``, whose noise can be reproduced.
      first_plan: the steps planned at first, where a run on a folder was continued with more.
    """

    mechanism: "SteppedMechanism"
    seeded: bool
    first_plan: int | None

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the run."""
        steps = self.mechanism.num_steps
        return self.mechanism.guarantee.of_run(
            seeded=self.seeded, num_steps=steps, first_plan=self.first_plan
        )

    def certificate(self, delta: float) -> "Certificate":
        """Returns the certificate of the run at ``delta``, customarily well below one over n."""
        from dpjax.certificates.certificate import certify

        return certify(self.guarantee, delta)

    def _released_tables(self) -> list[HTMLTable]:
        """Tables of what was released, without private values."""
        return []

    def _repr_html_(self) -> str:
        title = f"{type(self).__name__}: {self.mechanism.num_steps:,} steps"
        return render_guarantee(title, self.guarantee, first=self._released_tables())


class SteppedMechanism(Protocol):
    """A mechanism that runs in steps."""

    @property
    def num_steps(self) -> int: ...

    @property
    def guarantee(self) -> Guarantee: ...


class RunEnd(NamedTuple, Generic[StateT]):
    """The end of a `run`.

    Attributes:
      state: the last one.
      num_done: steps that led to it.
      seeded: whether the key of the first of them looks like ``jax.random.key(seed)``.
      first_plan: the steps planned at first, where the run was continued with more.
    """

    state: StateT
    num_done: int
    seeded: bool
    first_plan: int | None


def run(
    plan: Callable[[int], Plan[RunStateT, DataT, InfoT]],
    data: TrainingData[DataT],
    num_steps: int,
    *,
    planned_steps: int,
    key: PRNGKey,
    params: ArrayTree,
    steps_per_call: int = 100,
    keep: Keep[RunStateT, InfoT] | None = None,
    on_chunk: Callable[[int, RunStateT, InfoT], None] | None = None,
    checkpoint_dir: str | Path | None = None,
    sharding: MeshSharding | None = None,
    progress: bool = True,
) -> RunEnd[RunStateT]:
    """Runs the training loop up to ``num_steps`` steps, from the newest checkpoint if there is one.

    Args:
      plan: ``plan(k)``, the run of the first k planned steps. A folder of a run that planned fewer
        steps is continued if it is one of these: all noises are then those of one run.
      data: the records.
      num_steps: to be done in all.
      planned_steps: of the mechanism.
      key: of the run.
      params: the first ones, in which processes are compared.
      steps_per_call: steps between two checkpoints.
      keep: where infos of some steps are put.
      on_chunk: ``on_chunk(num_done, state, infos)``, after each call and its checkpoint: a crash
        loses nothing that was reported, and noise is never used for two different gradients.
      checkpoint_dir: to save to and resume from.
      sharding: of the run.
      progress: whether to show a progress bar.

    Raises:
      ValueError: processes that differ, or a folder of another run.
      OSError: a checkpoint cannot be written.
      LostProcessError: another process of the run has ended.
    """
    mechanism, step, state = plan(planned_steps)

    # All processes must make the same run.
    check_processes(key, params, mechanism, step, state, data, sharding)
    data = data.place(sharding)
    burn_in, every = (keep.burn_in, keep.thinning) if keep else (0, 1)

    with ExitStack() as opened:
        # Resume from the newest checkpoint, if it is of this run.
        store, seeded, first_plan = None, is_seeded(key), None
        if checkpoint_dir is not None:
            identity = identify_run(mechanism, data, step, state)

            def first_steps(count: int) -> tuple[Identity, Description]:
                first = plan(count)
                program = step_hash(first.step, first.state, data)
                identity_of_first = Identity(
                    hash_dataclass(first.mechanism), identity.data, program
                )
                return identity_of_first, describe_run(first.mechanism, data, first.state)

            store = opened.enter_context(
                CheckpointStore(
                    checkpoint_dir,
                    identity,
                    seeded,
                    description=describe_run(mechanism, data, state),
                    num_steps=planned_steps,
                    first_steps=first_steps,
                )
            )
            state, seeded, first_plan = store.restore(state), store.seeded, store.first_plan
        done = int(np.ravel(state.num_releases)[0])

        # The key first: nothing that is kept may be on disk without it.
        if keep:
            if store and not done:
                store.save(state, 0)
            keep.open(state, num_done=done)
        if done >= num_steps:
            return RunEnd(state, done, seeded, first_plan)

        chunk = data.compile(step.update, state, steps_per_call, every=every)
        bar = opened.enter_context(
            tqdm(total=num_steps, initial=done, unit="step", disable=not progress)
        )
        opened.enter_context(warn_of_page_faults())
        while done < num_steps:
            # Make one call, up to the end of the burn-in or of the run.
            burning = done < burn_in
            count = min(steps_per_call, (burn_in if burning else num_steps) - done)
            first, phase = (0, 0) if burning else divmod(done - burn_in, every)
            with explain_lost_process(lambda: f"after release {done}"):  # noqa: B023
                state, infos = jax.block_until_ready(chunk(state, count, phase))
            done += count

            # What is kept, then the checkpoint, then the report.
            if keep and not burning and phase + count >= every:
                keep.write(first, infos)
            if store:
                store.save(state, done)
            if on_chunk:
                on_chunk(done, state, infos)
            bar.update(count)
    return RunEnd(state, done, seeded, first_plan)


def step_hash(
    step: Step[RunStateT, DataT, InfoT], state: RunStateT, data: TrainingData[DataT]
) -> str:
    """Returns the hash of the program of a step on one device."""
    return program_hash(step.one_device_update, *data.shapes(state))


def identify_run(
    mechanism: object,
    data: TrainingData[DataT],
    step: Step[RunStateT, DataT, InfoT],
    state: RunStateT,
) -> Identity:
    """Returns the identity of a run that its checkpoints must match, on any devices."""
    program = step_hash(step, state, data)
    return Identity(hash_dataclass(mechanism), data.fingerprint(), program)


def describe_run(
    mechanism: object, data: TrainingData[DataT], state: RunStateT
) -> dict[str, dict[str, str]]:
    """Returns what an `Identity` is of, as far as it has a text, for errors."""
    of_state, of_data = data.shapes(state)
    return {
        "mechanism": describe_dataclass(mechanism),
        "data": describe_arrays(of_data),
        "program": {"JAX": jax.__version__, **describe_arrays(of_state)},
    }


def check_processes(
    key: PRNGKey,
    params: ArrayTree,
    mechanism: object,
    step: Step[RunStateT, DataT, InfoT],
    state: RunStateT,
    data: TrainingData[DataT],
    sharding: MeshSharding | None,
) -> None:
    """Raises ValueError unless all processes of a run (`jax.distributed`) agree on it.

    Hashes of the arguments are compared, of ``data`` unless each process has a part of them.
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
        "mechanism": hash_dataclass(mechanism),
        "sharding": hash_text(sharding.describe(params)),
        "the program of loss_fn and optimizer, or JAX's version": step_hash(step, state, data),
    }
    if not data.is_split:
        hashes["data (unless it is split_records of them)"] = data.fingerprint()
    check_equal(hashes)


def keep_freed_memory() -> bool:
    """Lets the process keep the memory it frees, for faster steps on a CPU.

    XLA allocates a step's buffers anew in every step. By default glibc returns large ones to the
    kernel, and the next step faults in their pages again, which can take as long as the step
    itself. Call this before the first computation; memory then stays at its peak until the process
    ends. The environment variables ``MALLOC_MMAP_MAX_=0``, ``MALLOC_TRIM_THRESHOLD_=68719476736``,
    ``MALLOC_TOP_PAD_=268435456`` and ``MALLOC_ARENA_MAX=1`` do the same.

    Returns:
      Whether the allocator took the settings: False without glibc.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if sys.platform == "linux" else None
    if mallopt is None:
        return False
    taken = [mallopt(*setting) == 1 for setting in _MALLOPT.values()]
    return all(taken)


@contextmanager
def warn_of_page_faults() -> Iterator[None]:
    """Warns if page faults, of freed memory that is mapped again, took much of a run on a CPU."""
    start, before = time.monotonic(), _page_faults()
    yield
    seconds, faults = time.monotonic() - start, _page_faults() - before
    share = faults * _SECONDS_PER_FAULT / max(seconds, _LEAST_SECONDS)
    if share > _SHARE and jax.default_backend() == "cpu":
        warnings.warn(
            f"about {share:.0%} of the time went into {faults} page faults, because freed memory is"
            " returned to the system after each step: call"
            " dpjax.training.keep_freed_memory() at the start of the program",
            stacklevel=2,
        )


def _page_faults() -> int:
    """Page faults of the process so far that needed no disk; zero where they are not counted."""
    if sys.platform == "win32":
        return 0
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
