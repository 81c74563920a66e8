"""One step of differentially private stochastic variational inference, and its compilation."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.infer import SVI
from numpyro.infer.svi import SVIState
from numpyro.optim import _NumPyroOptim

from dpjax._typing import PRNGKey
from dpjax.bayes.variational.checks import check_problem
from dpjax.bayes.variational.clipping import choose_coordinates
from dpjax.bayes.variational.elbo import Problem, data_free_loss
from dpjax.bayes.variational.independence import check_program
from dpjax.bayes.variational.model_trace import (
    Arguments,
    Layout,
    Leaves,
    ModelTrace,
    Values,
    fill_records,
    initial_value,
    split_arguments,
    trace_model,
)
from dpjax.gradients.clipped_grad import clipped_grad
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.checkpoint import check_processes, program_hash
from dpjax.training.draw_sums import StepInfo, sum_next_draw
from dpjax.training.loop import Steps, compile_steps
from dpjax.training.sharding import MeshSharding
from dpjax.training.split_records import SplitRecords, whole_shapes

# Constant records that starting values are found on: a model may need values other than zero.
_INITIAL_RECORDS = (0.0, 1.0, 0.5)


class DPSVIState(NamedTuple):
    """State of `DPSVI`. **Holds keys, which are secrets.**

    Attributes:
      optim_state: state of the optimiser, which includes the unconstrained parameters.
      rng_key: key of the draws from the guide, as in numpyro's ``SVIState``.
      sampler: state of the sampler.
      noise: state of the noise, which counts the releases.
    """

    optim_state: Any
    rng_key: PRNGKey
    sampler: Any
    noise: Any

    @property
    def num_releases(self) -> jax.Array:
        """Number of noisy sums released so far."""
        return self.noise.num_releases


def make_step(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    records: Leaves,
    arrays: Leaves,
    sharding: MeshSharding | None = None,
) -> tuple[DPSVIState, tuple[jax.Array, StepInfo]]:
    """Draws a batch, adds noise to the clipped sum, adds the data-free gradient, and updates.

    Returns:
      The next state; and, not released, an estimate of the negative ELBO and a `StepInfo`.
    """
    summed, info, sampler = clip_draw(
        problem, mechanism, optim, state, state.sampler, records, arrays, sharding
    )
    noisy, noise = mechanism.noise(state.noise.key).update(summed, state.noise)
    moved, free_loss = move(problem, mechanism, optim, state, noisy, records, arrays)
    loss = _scale(mechanism) * info.loss_sum + free_loss
    moved = moved._replace(sampler=sampler, noise=noise)
    if sharding is not None:
        moved = place_state(moved, optim, sharding)
    return moved, (loss, info)


def place_state(state: DPSVIState, optim: _NumPyroOptim, sharding: MeshSharding) -> DPSVIState:
    """Returns the state on the devices of ``sharding``, its parameters placed by their rule."""
    params = optim.get_params(state.optim_state)
    return sharding.place(state, sharding.state_specs(state, params))


def clip_draw(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    sampler: Any,
    records: Leaves,
    arrays: Leaves,
    sharding: MeshSharding | None = None,
) -> tuple[Any, StepInfo, Any]:
    """Returns the clipped sum over the next draw of ``sampler``, without noise; see `make_step`.

    Also a `StepInfo`, and the sampler's next state.
    """
    _, key = jax.random.split(state.rng_key)
    params = optim.get_params(state.optim_state)
    where = choose_coordinates(problem, mechanism.l2_clip, params, records, arrays, key)
    most = mechanism.sampling.usual_batches * mechanism.sampling.physical_batch_size
    clipped = clipped_grad(where.loss, mechanism.l2_clip, max_batch_size=most)
    summed, info, moved = sum_next_draw(
        clipped, mechanism.sampling, sampler, where.point, with_index(records), sharding=sharding
    )
    return where.to_params(summed), info, moved


def move(
    problem: Problem,
    mechanism: SubsampledGaussian,
    optim: _NumPyroOptim,
    state: DPSVIState,
    noisy: Any,
    records: Leaves,
    arrays: Leaves,
) -> tuple[DPSVIState, jax.Array]:
    """Returns the state after an update with a noisy sum, and the data-free loss before it.

    Of ``records`` only shapes and dtypes are used. Sampler and noise stay as they are.
    """
    rng_key, key = jax.random.split(state.rng_key)
    params, scale = optim.get_params(state.optim_state), _scale(mechanism)
    free = jax.value_and_grad(partial(data_free_loss, problem))
    free_loss, free_grad = free(params, records, arrays, key)
    grads = jax.tree.map(lambda n, g: (scale * n).astype(g.dtype) + g, noisy, free_grad)
    optim_state = optim.update(grads, state.optim_state, value=jnp.nan)
    return state._replace(optim_state=optim_state, rng_key=rng_key), free_loss


def _scale(mechanism: SubsampledGaussian) -> float:
    return mechanism.sampling.num_examples / mechanism.sampling.expected_batch_size


def with_index(records: Leaves) -> Any:
    """Returns the records, each with its position in the data set."""
    first = records[0]
    if not isinstance(first, SplitRecords):
        return records, jnp.arange(len(first))
    arrays = [leaf.arrays for leaf in records]
    return SplitRecords((arrays, first.positions), first.positions, first.num_examples)


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
        self._loops: dict[tuple[Any, ...], Steps] = {}
        # By signature, the last one checked last.
        self._traces: dict[tuple[Any, ...], ModelTrace] = {}
        self._checked: set[tuple[Any, ...]] = set()

    def split(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Arguments:
        """Splits arguments into records and public ones; see `split_arguments`."""
        num_examples = self._mechanism.sampling.num_examples
        return split_arguments(args, {**kwargs, **self._static_kwargs}, num_examples)

    def check_processes(self, key: PRNGKey, params: Values, parts: Arguments) -> None:
        """Raises ValueError unless all processes of `jax.distributed` make the same run."""

        def program() -> str:
            problem = self._problem(parts.layout, self.last_trace().plate)
            step = partial(clip_draw, problem, self._mechanism, self._svi.optim)
            optim_state = jax.eval_shape(self._svi.optim.init, params)
            sampler = jax.eval_shape(self._mechanism.sampling.init, key)
            state = DPSVIState(optim_state, key, sampler, None)
            whole = [whole_shapes(leaf) for leaf in parts.records]
            return program_hash(step, state, sampler, whole, parts.arrays)

        split = isinstance(parts.records[0], SplitRecords)
        data = parts.records[0] if split else parts.records
        check_processes(key, params, self._mechanism, program, data, self._sharding)

    def init(
        self, key: PRNGKey, model_trace: ModelTrace, parts: Arguments, values: Values | None
    ) -> SVIState:
        """Returns numpyro's initial state on constant records, with starting values by name."""
        for constant in _INITIAL_RECORDS:
            args, kwargs = parts.layout.arguments(
                fill_records(parts.records, constant), parts.arrays
            )
            try:
                return self._svi.init(key, *args, init_params=values, **kwargs)
            except (RuntimeError, ValueError) as error:
                failed = error
        # Models that standardise by the records themselves have no finite value on constant ones.
        check_program(self._svi.model, initial_value, model_trace.plate, {}, parts)
        raise failed

    def check(self, model_trace: ModelTrace, params: Values, parts: Arguments) -> None:
        """Checks model and guide, once for arguments and parameters of the same shapes.

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
        """Makes one step: see `make_step`."""
        plate = self.problem(state, parts).plate
        return self._jitted(state, parts.records, parts.arrays, parts.layout, plate)

    def clip(self, state: DPSVIState, key: PRNGKey, parts: Arguments) -> Any:
        """Returns the clipped sum of a batch drawn with ``key``: see `clip_draw`."""
        plate = self.problem(state, parts).plate
        return self._jitted_clip(state, key, parts.records, parts.arrays, parts.layout, plate)

    def move(self, state: DPSVIState, noisy: Any, parts: Arguments) -> DPSVIState:
        """Returns the state after an update with a noisy sum: see `move`."""
        plate = self.problem(state, parts).plate
        return self._jitted_move(state, noisy, parts.records, parts.arrays, parts.layout, plate)

    def loop(self, state: DPSVIState, parts: Arguments, most: int) -> Steps:
        """Returns a compiled loop ``run(state, data, count) -> (state, losses)``.

        It makes up to ``most`` steps. ``data`` are ``(parts.records, parts.arrays)``; the loop is
        kept for others of their shapes.
        """
        data, plate = (parts.records, parts.arrays), self.problem(state, parts).plate
        leaves, treedef = jax.tree.flatten((state, data))
        kind = (parts.layout, most, treedef, tuple(jax.typeof(leaf) for leaf in leaves))
        if kind not in self._loops:

            def update(
                state: DPSVIState, data: tuple[list[jax.Array], list[jax.Array]]
            ) -> tuple[DPSVIState, jax.Array]:
                state, (loss, _) = self._step(state, *data, parts.layout, plate)
                return state, loss

            self._loops[kind] = compile_steps(update, state, data, most)
        return self._loops[kind]

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
