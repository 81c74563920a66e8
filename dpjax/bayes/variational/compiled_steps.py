"""Steps of `DPSVI`, checked and compiled once for each signature of arguments."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

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
from dpjax.training.checkpoint import CheckpointStore, Identity, program_hash
from dpjax.training.data import (
    DataSource,
    RecordStream,
    check_processes,
    compile_calls,
    identify_run,
    open_data,
    stage,
    whole_shapes,
)
from dpjax.training.run import Steps, Update, run_calls
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
        self._loops: dict[tuple[Any, ...], Steps] = {}  # of arrays
        # By signature, the last one checked last.
        self._traces: dict[tuple[Any, ...], ModelTrace] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Splits model arguments into records and public arguments (`split_arguments`)."""
        num_examples = self._mechanism.sampling.num_examples
        return split_arguments(args, {**kwargs, **self._static_kwargs}, num_examples)

    def open(self, parts: Arguments) -> Any:
        """Returns the data of the steps: records and public arrays, or the stream of a source."""
        if parts.source is None:
            return parts.records, parts.arrays
        return open_data(self._mechanism.sampling, PositionedSource(parts.source), self._sharding)

    def check_processes(self, key: PRNGKey, state: DPSVIState, parts: Arguments) -> None:
        """Raises ValueError unless all processes of `jax.distributed` make the same run."""
        params = self._svi.optim.get_params(state.optim_state)
        data = self.open(parts)
        program = partial(self._program_hash, state, parts, data)
        records = data if isinstance(data, RecordStream) else join_records(parts.records)
        check_processes(key, params, self._mechanism, program, records, self._sharding)

    def identify(self, state: DPSVIState, parts: Arguments, data: Any) -> Identity:
        """Returns the identity of a run, for its checkpoints.

        Args:
          state: its first one.
          parts: its arguments.
          data: what `open` returned.
        """
        program = self._program_hash(state, parts, data)
        private = data if isinstance(data, RecordStream) else join_records(parts.records)
        found = identify_run(self._mechanism, private, program)
        return found._replace(data=hash_arrays((np.array(found.data), parts.arrays)))

    def _program_hash(self, state: DPSVIState, parts: Arguments, data: Any) -> str:
        """The hash of the program of a step on one device."""
        update = self._update(state, parts, data, None)
        if isinstance(data, RecordStream):
            return data.run_program_hash(update, state)
        whole = [whole_shapes(leaf) for leaf in parts.records], parts.arrays
        return program_hash(update, state, whole)

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
        state: DPSVIState,
        parts: Arguments,
        num_steps: int,
        steps_per_call: int,
        folder: tuple[str | Path, bool] | None,
        progress: bool,
    ) -> Iterator[tuple[DPSVIState, jax.Array]]:
        """Yields the first state, or that of the checkpoint, and the state after each call.

        With each state, estimates of the negative ELBO before the steps of the call.

        Args:
          state: the first one; consumed.
          parts: arguments of model and guide.
          num_steps: after the first state.
          steps_per_call: steps of one call.
          folder: of checkpoints, and whether the key is seeded; or ``None``.
          progress: whether to show a progress bar.
        """
        data, last = self.open(parts), int(state.num_releases) + num_steps
        with ExitStack() as opened:
            store = None
            if folder is not None:
                identity = self.identify(state, parts, data)
                store = opened.enter_context(CheckpointStore(folder[0], identity, folder[1]))
                state = store.restore(state)
            compile_run = partial(self.loop, state, parts, data, steps_per_call)
            calls = run_calls(
                compile_run, state, data, last, steps_per_call, store=store, progress=progress
            )
            yield state, jnp.zeros(0)
            for _, moved, losses in calls:
                yield moved, losses

    def loop(self, state: DPSVIState, parts: Arguments, data: Any, most: int) -> Steps:
        """Compiles a loop of up to ``most`` SVI updates: ``run(state, data, count)``.

        Infos are estimates of the negative ELBO. For arrays the program is kept for others of their
        shapes.

        Args:
          state: before the steps.
          parts: arguments of model and guide.
          data: what `open` returned.
          most: steps of one call.
        """
        update = self._update(state, parts, data, self._sharding)
        if isinstance(data, RecordStream):
            return compile_calls(update, state, data, most)
        leaves, treedef = jax.tree.flatten((state, data))
        kind = (parts.layout, most, treedef, tuple(jax.typeof(leaf) for leaf in leaves))
        if kind not in self._loops:
            self._loops[kind] = compile_calls(update, state, data, most)
        return self._loops[kind]

    def _update(
        self, state: DPSVIState, parts: Arguments, data: Any, sharding: MeshSharding | None
    ) -> Update:
        """A step as ``update(state, data) -> (state, loss)``."""
        problem, optim = self.problem(state, parts), self._svi.optim
        mechanism, streamed = stage(self._mechanism, data), isinstance(data, RecordStream)

        def update(state: DPSVIState, data: Any) -> tuple[DPSVIState, jax.Array]:
            if streamed:
                records, positions, arrays = jax.tree.leaves(data[0]), data[1], parts.arrays
            else:
                (records, arrays), positions = data, None
            state, (loss, _) = make_step(
                problem, mechanism, optim, state, records, arrays, sharding, positions
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
