"""Steps of private methods with traced settings.

A mechanism is built from traced numbers and the library's own step is made with it, so what is
rehearsed is the step of a real run, many settings at a time.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import check
from dpjax._typing import Numeric, PRNGKey, PyTree
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.noise_aware import pool
from dpjax.bayes.variational.step import DPSVIState
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.loss_checks import split_params
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.rehearsal.methods import Inference, Training
from dpjax.rehearsal.worlds import Simulator, World
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.step import TrainState, private_step

# Draws of the guide that give the mean of a posterior; prior draws that give its scale.
_NUM_DRAWS, _NUM_PRIOR_DRAWS = 100, 400


class Steps(Protocol):
    """The steps of a private method, with settings that may be traced."""

    @property
    def axes(self) -> PyTree:
        """The ``in_axes`` of a state for `jax.vmap` over settings, which share the drawn batch."""

    def init(
        self, mechanism: SubsampledGaussian, rate: Numeric, key: PRNGKey, records: PyTree
    ) -> PyTree:
        """Returns the initial state of a run."""

    def update(
        self, mechanism: SubsampledGaussian, rate: Numeric, state: PyTree, records: PyTree
    ) -> tuple[PyTree, StepInfo]:
        """Returns the next state, and what was drawn."""

    def noisy_norm(self, state: PyTree) -> jax.Array:
        """Returns the L2 norm of the last gradient that the optimiser was given."""

    def noise_norm(self, mechanism: SubsampledGaussian, state: PyTree) -> jax.Array:
        """Returns the root mean square norm of the noise in it."""

    def error(
        self, mechanism: SubsampledGaussian, state: PyTree, world: World, scale: PyTree
    ) -> jax.Array:
        """Returns the scalar error of released parameters or posterior on a simulated data set."""

    def constant_error(self, world: World, scale: PyTree) -> jax.Array:
        """Returns the error of predicting a constant, or the prior's medians, to improve on."""

    def scale(self, simulate: Simulator, key: PRNGKey) -> PyTree:
        """Returns the units of errors: medians and deviations of priors, if there are any."""

    def posterior_draws(
        self,
        key: PRNGKey,
        mechanism: SubsampledGaussian,
        rate: float,
        records: PyTree,
        num_draws: int,
    ) -> Mapping[str, jax.Array]:
        """Makes the run that is rehearsed, and returns posterior draws by latent variable.

        Arrays ``(num_draws, ...)``; by default none, of a method without a posterior.
        """
        del key, mechanism, rate, records, num_draws
        return {}


class NormState(NamedTuple):
    """The norm of the last gradient that an optimiser was given.

    Attributes:
      norm: in L2, over all leaves.
    """

    norm: jax.Array


def record_norm(optimizer: optax.GradientTransformation) -> optax.GradientTransformation:
    """Wraps an optimiser so that its state begins with the norm of the gradient it is given."""

    def init(params: optax.Params) -> NormState:
        del params
        return NormState(jnp.zeros(()))

    def update(
        updates: optax.Updates, state: NormState, params: optax.Params | None = None
    ) -> tuple[optax.Updates, NormState]:
        del state, params
        return updates, NormState(optax.tree.norm(updates))

    return optax.chain(optax.GradientTransformation(init, update), optimizer)


class TrainingSteps(Steps):
    """Steps of `dpjax.train`.

    Attributes:
      method: what is rehearsed.
      trained: the first parameters; of a module those that are trained.
      loss: of these and an example.
    """

    def __init__(self, method: Training) -> None:
        self.method = method
        loss_input, self.trained, constants = split_params(method.params, None, keyed=False)
        self.loss = loss_input.bind(method.loss_fn, constants)

    @property
    def axes(self) -> TrainState:
        return TrainState(0, 0, None, None)

    def _step(self, mechanism: SubsampledGaussian, rate: Numeric, key: PRNGKey) -> Any:
        optimizer = record_norm(self.method.optimizer(rate))
        return private_step(self.loss, optimizer, mechanism=mechanism, key=key)

    def init(
        self, mechanism: SubsampledGaussian, rate: Numeric, key: PRNGKey, records: PyTree
    ) -> TrainState:
        del records
        return self._step(mechanism, rate, key).init(self.trained)

    def update(
        self, mechanism: SubsampledGaussian, rate: Numeric, state: TrainState, records: PyTree
    ) -> tuple[TrainState, StepInfo]:
        return self._step(mechanism, rate, jax.random.key(0)).update(state, records)

    def noisy_norm(self, state: TrainState) -> jax.Array:
        return state.optimizer[-1][0].norm

    def noise_norm(self, mechanism: SubsampledGaussian, state: TrainState) -> jax.Array:
        size = optax.tree.size(state.params)
        return _noise_std(mechanism) * size**0.5 / mechanism.sampling.expected_batch_size

    def error(
        self, mechanism: SubsampledGaussian, state: TrainState, world: World, scale: PyTree
    ) -> jax.Array:
        del mechanism, scale
        return self.score_of(state.params, world.fresh)

    def constant_error(self, world: World, scale: PyTree) -> jax.Array:
        del scale
        if self.method.constant_score is not None:
            return self.method.constant_score(world.fresh)
        return self.score_of(self.trained, world.fresh)

    def scale(self, simulate: Simulator, key: PRNGKey) -> None:
        return None

    def score_of(self, params: PyTree, fresh: PyTree) -> jax.Array:
        """Returns the error of parameters on fresh records.

        Args:
          params: the trained ones.
          fresh: records.
        """
        if self.method.score is not None:
            return self.method.score(params, fresh)
        return jnp.mean(jax.vmap(lambda example: self.loss(params, example))(fresh))


class InferenceSteps(Steps):
    """Steps of `DPSVI`.

    Attributes:
      method: what is rehearsed.
    """

    def __init__(self, method: Inference) -> None:
        self.method = method
        # Runs of one mechanism on many worlds share their compiled program.
        self._runs: dict[Any, DPSVI] = {}

    @property
    def axes(self) -> DPSVIState:
        axes: Any = (0, None, None, 0, None, 0)
        return DPSVIState(*axes)

    def _svi(self, mechanism: SubsampledGaussian, rate: Numeric) -> DPSVI:
        model, optimizer = self.method.model, record_norm(self.method.optimizer(rate))
        return DPSVI(
            model,
            self.method.guide(model),
            optimizer,
            mechanism=mechanism,
            gradient=self.method.gradient,
            release_clipped_share=self.method.release_clipped_share,
        )

    def model_args(self, records: PyTree) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the model's arguments with these records.

        Args:
          records: a mapping from arguments to arrays, or a sequence of them.
        """
        if isinstance(records, Mapping):
            return (), {**records, **self.method.model_kwargs}
        return tuple(records), dict(self.method.model_kwargs)

    def init(
        self, mechanism: SubsampledGaussian, rate: Numeric, key: PRNGKey, records: PyTree
    ) -> DPSVIState:
        args, kwargs = self.model_args(records)
        return self._svi(mechanism, rate).init(key, *args, **kwargs)

    def update(
        self, mechanism: SubsampledGaussian, rate: Numeric, state: DPSVIState, records: PyTree
    ) -> tuple[DPSVIState, StepInfo]:
        args, kwargs = self.model_args(records)
        return self._svi(mechanism, rate).update_with_info(state, *args, **kwargs)

    def noisy_norm(self, state: DPSVIState) -> jax.Array:
        return state.optim_state[1][1][0].norm

    def noise_norm(self, mechanism: SubsampledGaussian, state: DPSVIState) -> jax.Array:
        # Of aligned gradients the noise is in the means, and a small part of it in the deviations.
        halves = 2 if self.method.gradient == "aligned" else 1
        sampling, size = mechanism.sampling, optax.tree.size(state.optim_state[1][0]) / halves
        scale = sampling.num_examples / sampling.expected_batch_size
        return _noise_std(mechanism) * size**0.5 * scale

    def error(
        self, mechanism: SubsampledGaussian, state: DPSVIState, world: World, scale: PyTree
    ) -> jax.Array:
        args, kwargs = self.model_args(world.records)
        svi = self._svi(mechanism, 0.0)
        # Finds the constraints of the parameters.
        svi.init(jax.random.key(0), *args, **kwargs)
        draws = svi.posterior_samples(jax.random.key(0), state, _NUM_DRAWS, *args, **kwargs)
        known = set(scale) <= set(draws)
        check(known, "names of world(key).truth", sorted(scale), f"among those of {sorted(draws)}")
        means = {name: jnp.mean(draws[name], (0, 1)) for name in scale}
        return _standardised_error(means, world.truth, scale)

    def constant_error(self, world: World, scale: PyTree) -> jax.Array:
        medians = {name: median for name, (median, _) in scale.items()}
        return _standardised_error(medians, world.truth, scale)

    def scale(self, simulate: Simulator, key: PRNGKey) -> PyTree:
        # Medians and standard deviations of the latent variables under the prior.
        keys = jax.random.split(key, _NUM_PRIOR_DRAWS)
        truths = jax.jit(lambda keys: jax.lax.map(lambda key: dict(simulate(key).truth), keys))(
            keys
        )
        check(bool(truths), "world(key).truth", truths, "the latent variables by name")
        levels = jnp.array([0.16, 0.5, 0.84])
        quantiles = {
            name: jnp.quantile(values.astype(float), levels, 0) for name, values in truths.items()
        }
        return {name: (mid, (high - low) / 2) for name, (low, mid, high) in quantiles.items()}

    def posterior_draws(
        self,
        key: PRNGKey,
        mechanism: SubsampledGaussian,
        rate: float,
        records: PyTree,
        num_draws: int,
    ) -> Mapping[str, jax.Array]:
        # Runs in many worlds share one compiled program.
        args, kwargs = self.model_args(records)
        if (mechanism, rate) not in self._runs:
            self._runs[mechanism, rate] = self._svi(mechanism, rate)
        run_key, draws_key = jax.random.split(key)
        svi = self._runs[mechanism, rate]
        result = svi.run(run_key, *args, progress_bar=False, **kwargs)
        released = result if self.method.posterior == "guide" else result.noise_aware_posterior()
        return pool(released.posterior_samples(draws_key, num_draws), num_draws)


def steps_of(method: Training | Inference) -> TrainingSteps | InferenceSteps:
    """Returns the steps of a method."""
    return TrainingSteps(method) if isinstance(method, Training) else InferenceSteps(method)


def _noise_std(mechanism: SubsampledGaussian) -> Numeric:
    """Standard deviation of the noise on a sum, the same in all steps."""
    assert not isinstance(mechanism.noise_multiplier, tuple)
    return mechanism.noise_multiplier * total_l2_clip(mechanism.l2_clip)


def _standardised_error(
    values: Mapping[str, jax.Array], truth: Mapping[str, jax.Array], scale: PyTree
) -> jax.Array:
    """Root mean square of (value - truth) over the prior's standard deviation, over all entries."""
    errors = [jnp.ravel((values[name] - truth[name]) / std) for name, (_, std) in scale.items()]
    return jnp.sqrt(jnp.mean(jnp.concatenate(errors) ** 2))
