"""Steps of `DPSVI`, checked and compiled once for each signature of arguments."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState

from dpjax._hashing import hash_arrays
from dpjax._typing import PRNGKey
from dpjax.bayes.variational.arguments import (
    Arguments,
    Layout,
    Leaves,
    Values,
    check_in_arrays,
    fill_records,
    split_arguments,
)
from dpjax.bayes.variational.checks import check_problem
from dpjax.bayes.variational.elbo import Problem
from dpjax.bayes.variational.independence import check_program
from dpjax.bayes.variational.model_trace import ModelTrace, initial_value, trace_model
from dpjax.bayes.variational.step import (
    DPSVIState,
    clip_draw,
    join_records,
    make_step,
    move,
)
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import DataSource, Stream, as_training_data
from dpjax.training.run import (
    BoundChunk,
    Chunk,
    TrainingData,
    Update,
    check_processes,
    compile_chunk,
    run,
)
from dpjax.training.sharding import MeshSharding

# Constant records that starting values are found on: a model may need values other than zero.
_INITIAL_RECORDS = (0.0, 1.0, 0.5)


class PositionedSource:
    """A data source whose records come with their positions.

    Args:
      source: of the records.
    """

    def __init__(self, source: DataSource) -> None:
        self._source = source

    def __len__(self) -> int:
        return len(self._source)

    def __getitem__(self, index: int) -> tuple[Any, np.int32]:
        return self._source[index], np.int32(index)

    def __getitems__(self, indices: Sequence[int]) -> Any:
        if not hasattr(self._source, "__getitems__"):
            return [self[index] for index in indices]
        found = self._source.__getitems__(indices)
        positions = np.array(indices, np.int32)
        if isinstance(found, list):
            return list(zip(found, positions, strict=True))
        return found, positions


@dataclass(frozen=True)
class ModelData(TrainingData):
    """The arguments of model and guide, as the data of a run (`TrainingData`).

    Attributes:
      records: of the data set.
      parts: the arguments.
      compiled: programs for arrays by their kind, kept for others of their shapes.
    """

    records: TrainingData
    parts: Arguments
    compiled: dict[tuple[Any, ...], Chunk]

    @property
    def is_split(self) -> bool:  # type: ignore[override]
        """Whether each process has records of its own."""
        return self.records.is_split

    def place(self, sharding: MeshSharding | None) -> "ModelData":
        """Returns the data where they are."""
        del sharding
        return self

    def fingerprint(self) -> str:
        """Returns a hash of records and public arrays."""
        return hash_arrays((np.array(self.records.fingerprint()), self.parts.arrays))

    def shapes(self, state: DPSVIState) -> tuple[Any, Any]:
        """Returns the arguments of a step on one device."""
        state, records = self.records.shapes(state)
        return state, records if isinstance(self.records, Stream) else (records, self.parts.arrays)

    def compile(
        self, update: Update, state: DPSVIState, max_steps: int, every: int = 1
    ) -> BoundChunk:
        """Returns a compiled loop, for arrays that of an earlier run of their shapes."""
        if isinstance(self.records, Stream):
            return self.records.compile(update, state, max_steps, every=every)
        data = self.parts.records, self.parts.arrays
        leaves, treedef = jax.tree.flatten((state, data))
        kind = (self.parts.layout, max_steps, treedef, tuple(jax.typeof(leaf) for leaf in leaves))
        if kind not in self.compiled:
            self.compiled[kind] = compile_chunk(update, state, data, max_steps, every)
        chunk = self.compiled[kind]
        return lambda state, *numbers: chunk(state, data, *numbers)


class ModelStep(NamedTuple):
    """An SVI update, on the devices of the run and on one (`dpjax.training.run.Step`)."""

    update: Update
    one_device_update: Update


class CompiledSteps:
    """Steps of one `DPSVI`, checked and compiled once for each signature of arguments.

    Args:
      svi: numpyro's SVI of the same model, guide, optimiser and loss.
      mechanism: sampler, clip bound and noise.
      static_kwargs: arguments of model and guide in every call.
      sharding: of batches and parameters, or ``None`` for one device.
    """

    def __init__(
        self,
        svi: SVI,
        mechanism: SubsampledGaussian,
        static_kwargs: dict[str, Any],
        sharding: MeshSharding | None = None,
    ) -> None:
        self._svi, self._mechanism, self._static_kwargs = svi, mechanism, static_kwargs
        self._sharding = sharding
        self._jitted = jax.jit(self._step, static_argnums=(3, 4))
        self._jitted_clip = jax.jit(self._clip, static_argnums=(4, 5))
        self._jitted_move = jax.jit(self._move, static_argnums=(4, 5))
        self._loops: dict[tuple[Any, ...], Chunk] = {}  # of arrays
        # By signature, the last one checked last.
        self._traces: dict[tuple[Any, ...], ModelTrace] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Splits model arguments into records and public arguments (`split_arguments`)."""
        num_examples = self._mechanism.sampling.num_examples
        return split_arguments(args, {**kwargs, **self._static_kwargs}, num_examples)

    def open(self, parts: Arguments) -> ModelData:
        """Returns the data of the steps: records and public arrays, or the stream of a source."""
        data = (
            join_records(parts.records) if parts.source is None else PositionedSource(parts.source)
        )
        opened = as_training_data(data, self._mechanism.sampling, self._sharding)
        return ModelData(opened, parts, self._loops)

    def check_processes(self, key: PRNGKey, state: DPSVIState, parts: Arguments) -> None:
        """Raises ValueError unless all processes of `jax.distributed` make the same run."""
        params, data = self._svi.optim.get_params(state.optim_state), self.open(parts)
        step = self._make_step(state, data)
        check_processes(key, params, self._mechanism, step, state, data, self._sharding)

    def init(
        self, key: PRNGKey, model_trace: ModelTrace, parts: Arguments, values: Values | None
    ) -> SVIState:
        """Returns numpyro's initial state on constant records, with starting values by name."""
        for constant in _INITIAL_RECORDS:
            records = fill_records(parts.example_records, constant)
            args, kwargs = parts.layout.arguments(records, parts.arrays)
            try:
                return self._svi.init(key, *args, init_params=values, **kwargs)
            except (RuntimeError, ValueError) as error:
                failed = error
        # Models that standardise by the records themselves have no finite value on constant ones.
        check_program(self._svi.model, initial_value, model_trace.plate, {}, parts)
        raise failed

    def check(self, model_trace: ModelTrace, params: Values, parts: Arguments) -> None:
        """Checks model and guide, once for each set of argument and parameter shapes.

        Raises:
          ValueError: naming the site and what is allowed.
        """
        signature = parts.signature()
        leaves, treedef = jax.tree.flatten(params)
        kind = signature, treedef, tuple(jnp.shape(leaf) for leaf in leaves)
        if kind not in self._checked:
            check_problem(self._problem(parts.layout, model_trace.plate), params, parts)
            self._checked.add(kind)
        self._traces.pop(signature, None)
        self._traces[signature] = model_trace

    def last_trace(self) -> ModelTrace:
        """Returns the trace that `check` kept last."""
        if not self._traces:
            raise ValueError("init must be called first, got a DPSVI that has seen no arguments")
        return next(reversed(self._traces.values()))

    def problem(self, state: DPSVIState, parts: Arguments) -> Problem:
        """Returns model and guide with these arguments, checked if their signature is new."""
        if parts.signature() not in self._traces:
            params = self._svi.optim.get_params(state.optim_state)
            self.check(trace_model(self._svi.model, parts), params, parts)
        return self._problem(parts.layout, self._traces[parts.signature()].plate)

    def step(
        self, state: DPSVIState, parts: Arguments
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        """Runs one SVI update: see `make_step`."""
        check_in_arrays(parts)
        plate = self.problem(state, parts).plate
        return self._jitted(state, parts.records, parts.arrays, parts.layout, plate)

    def clip(self, state: DPSVIState, key: PRNGKey, parts: Arguments) -> Any:
        """Returns the clipped gradient sum of a batch drawn with ``key`` (`clip_draw`)."""
        check_in_arrays(parts)
        plate = self.problem(state, parts).plate
        return self._jitted_clip(state, key, parts.records, parts.arrays, parts.layout, plate)

    def move(self, state: DPSVIState, noisy: Any, parts: Arguments) -> DPSVIState:
        """Returns the state after an update with a noisy sum: see `move`."""
        check_in_arrays(parts)
        plate = self.problem(state, parts).plate
        return self._jitted_move(state, noisy, parts.records, parts.arrays, parts.layout, plate)

    def run(
        self,
        key: PRNGKey,
        state: DPSVIState,
        parts: Arguments,
        num_steps: int,
        steps_per_call: int,
        checkpoint_dir: str | Path | None,
        progress: bool,
    ) -> tuple[DPSVIState, jax.Array]:
        """Returns the last state, and estimates of the negative ELBO before the steps of this run.

        Args:
          key: of the run.
          state: the first one; consumed.
          parts: arguments of model and guide.
          num_steps: after the first state.
          steps_per_call: steps of one call.
          checkpoint_dir: of checkpoints, or ``None``.
          progress: whether to show a progress bar.
        """
        data, losses = self.open(parts), [jnp.zeros(0)]
        end = run(
            self._make_step(state, data),
            data,
            state,
            int(state.num_releases) + num_steps,
            key=key,
            params=self._svi.optim.get_params(state.optim_state),
            mechanism=self._mechanism,
            steps_per_call=steps_per_call,
            on_chunk=lambda num_done, state, infos: losses.append(infos),
            checkpoint_dir=checkpoint_dir,
            sharding=self._sharding,
            progress=progress,
        )
        return end.state, jnp.concatenate(losses)

    def _make_step(self, state: DPSVIState, data: ModelData) -> ModelStep:
        return ModelStep(self._update(state, data, self._sharding), self._update(state, data, None))

    def _update(
        self, state: DPSVIState, model_data: ModelData, sharding: MeshSharding | None
    ) -> Update:
        """A step as ``update(state, data) -> (state, loss)``."""
        parts, streamed = model_data.parts, isinstance(model_data.records, Stream)
        problem, optim = self.problem(state, parts), self._svi.optim

        def update(state: DPSVIState, data: Any) -> tuple[DPSVIState, jax.Array]:
            if streamed:
                records, positions, arrays = jax.tree.leaves(data[0]), data[1], parts.arrays
            else:
                (records, arrays), positions = data, None
            state, (loss, _) = make_step(
                problem, self._mechanism, optim, state, records, arrays, sharding, positions
            )
            return state, loss

        return update

    def _problem(self, layout: Layout, plate: str) -> Problem:
        svi = self._svi
        return Problem(svi.model, svi.guide, svi.loss, svi.constrain_fn, plate, layout)

    def _step(
        self, state: DPSVIState, records: Leaves, arrays: Leaves, layout: Layout, plate: str
    ) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
        problem = self._problem(layout, plate)
        return make_step(
            problem, self._mechanism, self._svi.optim, state, records, arrays, self._sharding
        )

    def _clip(
        self,
        state: DPSVIState,
        key: PRNGKey,
        records: Leaves,
        arrays: Leaves,
        layout: Layout,
        plate: str,
    ) -> Any:
        problem, sampling = self._problem(layout, plate), self._mechanism.sampling
        sampler, optim = sampling.init(key), self._svi.optim
        return clip_draw(problem, self._mechanism, optim, state, sampler, records, arrays)[0]

    def _move(
        self,
        state: DPSVIState,
        noisy: Any,
        records: Leaves,
        arrays: Leaves,
        layout: Layout,
        plate: str,
    ) -> DPSVIState:
        problem, optim = self._problem(layout, plate), self._svi.optim
        return move(problem, self._mechanism, optim, state, noisy, records, arrays)[0]
