"""Training by sums of clipped gradients: what the analyst and what each holder computes.

In each round the analyst publishes parameters, every holder sums the clipped gradients of a batch
that it draws by itself at them, and the analyst makes a step with the released sum.
"""

import functools
import io
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.flatten_util import ravel_pytree

from dpjax._checks import (
    as_float64,
    as_key,
    batch_length,
    check,
    check_count,
    check_function,
    check_positive,
    check_type,
    is_key,
)
from dpjax._files import to_npz
from dpjax._typing import ArrayTree, LossFn, PRNGKey, PyTree
from dpjax.federated.noise import UInt64
from dpjax.gradients import clipped_grad
from dpjax.gradients.clip_bound import check_clip_numbers, total_l2_clip
from dpjax.gradients.loss_checks import check_params
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.additive import Gaussian
from dpjax.mechanisms.record_sum import RecordSum, SumPart, unweighted_part
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import check_data
from dpjax.sampling.cyclic import CyclicPoissonSampling
from dpjax.sampling.poisson import PoissonSampling
from dpjax.sensitivity import Sensitivity
from dpjax.training.batch_gradient import sum_over_draw

if TYPE_CHECKING:
    from dpjax.bayes import DPSVI
    from dpjax.bayes.variational import DPSVIState


@dataclass(frozen=True)
class ClippedGradientSum(RecordSum):
    """One step of a `SubsampledGaussian` as a sum over the records of a batch.

    Attributes:
      mechanism: sampler, clip bound, noise and number of steps, with one noise multiplier.
      num_parameters: entries of the gradient.

    With correlated noise, of a strategy C, a holder sends what `multiply` returns: in round t the
    combination of its sums so far by the weights in row t of C. Its noise is independent, as in any
    round. The analyst applies C^-1 to the released sums (`solve`), which gives the sums of the
    batches with correlated noise. A holder that drops out of a round leaves out its combination of
    the round, and its noise: less is released then.

    Privacy:
      The event is that of all steps. Each holder of records draws its own batch at the sampler's
      rate, and clips to the mechanism's bound.

    Raises:
      ValueError: several noise multipliers, or no noise.

    >>> from dpjax.sampling import PoissonSampling
    >>> steps = SubsampledGaussian(
    ...     PoissonSampling(1000, 0.1), l2_clip=1.0, noise_multiplier=2.0, num_steps=10,
    ...     adjacency="zero_out"
    ... )
    >>> ClippedGradientSum(steps, 5).event == steps.event
    True
    """

    mechanism: SubsampledGaussian
    num_parameters: int

    def __post_init__(self) -> None:
        check_count("num_parameters", self.num_parameters)
        check_type("mechanism", self.mechanism, SubsampledGaussian, "a SubsampledGaussian")
        noise = self.mechanism.noise_multiplier
        check(not isinstance(noise, tuple), "mechanism", noise, "of one noise multiplier")
        check_positive("noise_multiplier", noise)

    @property
    def guarantee(self) -> Guarantee:
        return self.mechanism.guarantee

    @property
    def num_rounds(self) -> int:
        return self.mechanism.num_steps

    @property
    def round_weights(self) -> npt.NDArray[np.float64] | None:
        correlation = self.mechanism.correlation
        return None if correlation is None else correlation.strategy_matrix(self.num_rounds)

    def init_buffers(self) -> npt.NDArray[np.float64]:
        """Returns the buffers of `multiply` and `solve` before the first round, of zeros.

        Their shape is ``(num_buffers, num_parameters)``, with no buffer for independent noise.
        """
        return np.zeros(self._buffers_shape)

    @property
    def _buffers_shape(self) -> tuple[int, int]:
        correlation = self.mechanism.correlation
        return 0 if correlation is None else correlation.num_buffers, self.num_parameters

    def multiply(
        self, sums: npt.ArrayLike | ArrayTree, buffers: npt.ArrayLike, *, round_number: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns what a holder sends in a round, and its next buffers: both **private**.

        With independent noise that is the sum itself. Rounds are taken in order; one in which the
        holder has no batch has a sum of zeros.

        Args:
          sums: the clipped sum of the round's batch, as of `clipped_grad`: a tree of arrays with
            ``num_parameters`` numbers.
          buffers: the holder's, from `init_buffers` or the round before.
          round_number: from zero.

        Raises:
          ValueError: another number of them, or a round past the last.

        >>> from dpjax.sampling import CyclicPoissonSampling
        >>> from dpjax.transforms import LambdaCGD
        >>> steps = SubsampledGaussian(
        ...     CyclicPoissonSampling(8, 0.25, num_groups=4), l2_clip=1.0, noise_multiplier=2.0,
        ...     num_steps=8, adjacency="zero_out", correlation=LambdaCGD(0.5)
        ... )
        >>> mechanism = ClippedGradientSum(steps, 1)
        >>> sent, buffers = mechanism.multiply([1.0], mechanism.init_buffers(), round_number=0)
        >>> mechanism.multiply([1.0], buffers, round_number=1)[0].tolist()
        [1.5]
        """
        # A sum that is not finite counts as zero: it would stay in the buffers.
        vector = self._flatten("sums", sums)
        vector = np.where(np.isfinite(vector), vector, 0.0)
        correlation = self.mechanism.correlation
        method = None if correlation is None else correlation.multiply
        return self._combine(method, vector, buffers, round_number)

    def solve(
        self, released: npt.ArrayLike, buffers: npt.ArrayLike, *, round_number: int
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Returns the sum of the round's batches, with correlated noise, and the next buffers.

        It is post-processing of the released sums of all rounds so far.

        Args:
          released: the noisy sum of the round, ``(num_parameters,)``.
          buffers: of the analyst, from `init_buffers` or the round before; they are public.
          round_number: from zero.

        Raises:
          ValueError: of another shape, or a round past the last.
        """
        correlation = self.mechanism.correlation
        method = None if correlation is None else correlation.solve
        return self._combine(method, self._flatten("released", released), buffers, round_number)

    def _combine(
        self,
        method: Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]] | None,
        vector: npt.NDArray[np.float64],
        buffers: npt.ArrayLike,
        round_number: int,
    ) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        """Applies a strategy's method to one round, in float64."""
        state, shape = as_float64(buffers, "buffers"), self._buffers_shape
        check(state.shape == shape, "buffers", state.shape, f"of shape {shape}")
        check_count("round_number", round_number, minimum=0)
        allowed = f"below num_rounds = {self.num_rounds}"
        check(round_number < self.num_rounds, "round_number", round_number, allowed)
        if method is None:
            return vector, state
        with jax.enable_x64(True):
            combined, next_state = method(
                jnp.asarray(vector), jnp.asarray(state), jnp.asarray(round_number)
            )
            return np.array(combined), np.array(next_state)

    def _flatten(self, name: str, values: PyTree) -> npt.NDArray[np.float64]:
        """Returns a tree of ``num_parameters`` numbers as a vector."""
        leaves = [as_float64(leaf, name).ravel() for leaf in jax.tree.leaves(values)]
        vector = np.concatenate(leaves) if leaves else np.zeros(0)
        allowed = f"num_parameters = {self.num_parameters} numbers"
        check(vector.size == self.num_parameters, name, vector.size, allowed)
        return vector

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return replace(self, mechanism=self.mechanism.with_privacy_factor(factor))

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        used = self.mechanism
        sensitivity = Sensitivity(
            float(used.sensitivity), "l2", used.adjacency, shape=(self.num_parameters,)
        )
        assert not isinstance(used.noise_multiplier, tuple)
        scale = float(used.noise_multiplier * total_l2_clip(used.l2_clip))
        return (unweighted_part(Gaussian(sensitivity, scale, used.unit)),)

    def sum_records(self, *records: npt.ArrayLike | ArrayTree) -> npt.NDArray[np.float64]:
        """Returns the clipped sum of a batch as a vector, for independent noise.

        Args:
          *records: the clipped sum itself, as of `clipped_grad`: a tree of arrays with
            ``num_parameters`` numbers.

        Raises:
          ValueError: another number of them, or correlated noise, for which a holder sends what
            `multiply` returns: the noise may not suffice for the sums themselves.
        """
        correlation = self.mechanism.correlation
        allowed = "None: with correlated noise a holder sends what `multiply` returns"
        check(correlation is None, "mechanism's correlation", correlation, allowed)
        return self._flatten("records", records)

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> jax.Array:
        return jnp.asarray(noisy)


def holder_gradient(
    loss_fn: LossFn, mechanism: SubsampledGaussian, *, num_examples: int, method: str = "auto"
) -> Callable[..., jax.Array]:
    """Returns a function for one holder's sum of clipped gradients over a Poisson batch.

    Batches that holders draw independently at one rate are together a Poisson batch of all records,
    so the event of the steps is the mechanism's, whatever the numbers of records. Groups that take
    turns are of each holder's records, by their order.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, the same at every holder.
      mechanism: clip bound, noise, steps and the `PoissonSampling` or `CyclicPoissonSampling` whose
        rate, and number of groups, are used.
      num_examples: of the holder; at least one for each group.
      method: see `clipped_grad`.

    Returns:
      ``gradient(key, params, data, round_number=0) -> (num_parameters,)``, compiled. The key is the
      holder's secret, a new one in each step: it decides which records are in the batch. ``data``
      holds all records of the holder on the leading axis of every array. ``round_number`` is that
      of the step, from zero: it decides which group has its turn. The vector is what
      ``plan.mechanism.sum_records`` takes; it is in the order of `jax.flatten_util.ravel_pytree`.

    Privacy:
      The sum is private, and not released here. One record moves it by at most the clip bound (by
      twice that if it is replaced), the rounding included.

    Raises:
      ValueError: another sampler, or a number out of range.

    >>> import jax.numpy as jnp
    >>> steps = SubsampledGaussian(
    ...     PoissonSampling(1000, 1.0), l2_clip=10.0, noise_multiplier=2.0, num_steps=10,
    ...     adjacency="zero_out"
    ... )
    >>> gradient = holder_gradient(lambda w, x: w @ x, steps, num_examples=3)
    >>> gradient(jax.random.key(0), jnp.zeros(2), jnp.eye(3, 2)).round(3).tolist()
    [1.0, 1.0]
    """
    check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
    sampling = mechanism.sampling
    if not isinstance(sampling, PoissonSampling | CyclicPoissonSampling):
        allowed = "PoissonSampling or CyclicPoissonSampling"
        raise ValueError(f"mechanism's sampling must be {allowed}, got {sampling!r}")
    check_count("num_examples", num_examples)
    check_clip_numbers(mechanism.l2_clip, "federated training")

    # The holder's own sampler, of the mechanism's rate.
    own = replace(sampling, num_examples=num_examples, physical_batch_size=0)
    most = own.num_static_batches * own.physical_batch_size
    clipped = clipped_grad(loss_fn, mechanism.l2_clip, method=method, max_batch_size=most)

    # One batch, clipped and summed.
    @jax.jit
    def compiled(
        key: PRNGKey, params: ArrayTree, data: ArrayTree, round_number: jax.Array
    ) -> jax.Array:
        state: Any = own.init(key)
        if isinstance(own, CyclicPoissonSampling):
            state = state._replace(step=round_number % own.num_groups)
        draw, _ = own.draw(state)
        return ravel_pytree(sum_over_draw(clipped, own, draw, params, data)[0])[0]

    def gradient(
        key: PRNGKey, params: ArrayTree, data: ArrayTree, round_number: int = 0
    ) -> jax.Array:
        check_data(own, data)
        return compiled(as_key(key), params, data, jnp.asarray(round_number, jnp.int32))

    return gradient


State = TypeVar("State")
Records = Mapping[str, npt.ArrayLike]
# From the noise of a sum over the planned noise to an optimiser.
OptimizerForNoise = Callable[[float], optax.GradientTransformation]


class Training(NamedTuple, Generic[State]):
    """A federated training: functions that the analyst and each holder call in a round.

    Attributes:
      mechanism: sampler, clip bound, noise and number of steps.
      init: ``init() -> state``: the analyst's starting state, which does not depend on records.
      get_params: ``get_params(state) -> params``: what gradients are taken at, a tree of floats,
        which every round publishes.
      clipped_sum: ``clipped_sum(key, vector, round_number, records) -> tree``: the clipped gradient
        sum of a holder's batch, **private**, at the parameters in ``vector``, float64, in the order
        of `jax.flatten_util.ravel_pytree`. The key is the holder's secret.
      update: ``update(state, noisy_sum, round_number, noise_factor) -> state``: a step of the
        analyst, where ``noise_factor`` is the noise in the sum over the planned noise.
      get_result: ``get_result(state) -> tree``: what the analyst writes at the end.
    """

    mechanism: SubsampledGaussian
    init: Callable[[], State]
    get_params: Callable[[State], PyTree]
    clipped_sum: Callable[[PRNGKey, npt.ArrayLike, int, Records], PyTree]
    update: Callable[[State, PyTree, int, float], State]
    get_result: Callable[[State], PyTree]


class GradientState(NamedTuple):
    """State of `gradient_training`: parameters and optimiser state."""

    params: PyTree
    optimizer: optax.OptState


def gradient_training(
    loss_fn: LossFn,
    params: ArrayTree,
    optimizer: optax.GradientTransformation | OptimizerForNoise,
    *,
    mechanism: SubsampledGaussian,
    method: str = "auto",
) -> Training[GradientState]:
    """Returns the training of a loss by any optax optimiser, or by an SG-MCMC chain.

    The optimiser is given the noisy sum over the mechanism's expected batch size.

    SG-MCMC needs noise of exactly the size that its step implies. The noise of a sum is public: of
    k holders it is sqrt(k / H) times the planned noise. So ``optimizer`` may be a function of that
    factor, and ``lambda factor: chain.with_privacy_factor(factor).optimizer(log_prior, key=key)``
    divides the step size by the factor squared, at the chain's temperature.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``, where ``example`` has the holder's arrays by
        name, without their leading axis.
      params: starting values, a tree of float arrays.
      optimizer: an optax optimiser, or a function to one from the noise over the planned noise.
      mechanism: of the plan's steps, with a `PoissonSampling` or `CyclicPoissonSampling`.
      method: see `dpjax.clipped_grad`.

    Privacy:
      The parameters of every round are released, at the cost of the mechanism's steps.

    Raises:
      ValueError: as `holder_gradient`.

    >>> from dpjax.sampling import PoissonSampling
    >>> steps = SubsampledGaussian(
    ...     PoissonSampling(8, 0.5), l2_clip=1.0, noise_multiplier=1.0, num_steps=3,
    ...     adjacency="zero_out"
    ... )
    >>> loss = lambda w, example: jnp.sum((w - example["x"]) ** 2)
    >>> training = gradient_training(loss, jnp.zeros(2), optax.sgd(0.1), mechanism=steps)
    >>> state = training.update(training.init(), jnp.ones(2), 0, 1.0)
    >>> training.get_params(state).tolist()
    [-0.025, -0.025]
    """
    check_params(params)
    if not isinstance(optimizer, optax.GradientTransformation):
        check_function("optimizer", optimizer, "noise_factor")
    # Checks the loss, the mechanism and the method; the gradients are of each holder's own number.
    check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
    fewest = getattr(mechanism.sampling, "num_groups", 1)
    holder_gradient(loss_fn, mechanism, num_examples=fewest, method=method)

    # One optimiser for each size of the noise, that is for each number of holders in a sum.
    @functools.cache
    def optimizer_for(noise_factor: float) -> optax.GradientTransformation:
        if isinstance(optimizer, optax.GradientTransformation):
            return optimizer
        return optimizer(noise_factor)

    @functools.cache
    def gradient_of(num_examples: int) -> Callable[..., jax.Array]:
        return holder_gradient(loss_fn, mechanism, num_examples=num_examples, method=method)

    @functools.cache
    def step_for(noise_factor: float) -> Callable[[GradientState, PyTree], GradientState]:
        chosen, size = optimizer_for(noise_factor), mechanism.sampling.expected_batch_size

        def step(state: GradientState, noisy_sum: PyTree) -> GradientState:
            mean = jax.tree.map(lambda s, p: (s / size).astype(p.dtype), noisy_sum, state.params)
            updates, optimizer_state = chosen.update(mean, state.optimizer, state.params)
            return GradientState(optax.apply_updates(state.params, updates), optimizer_state)

        return jax.jit(step)

    # What a holder computes.
    def clipped_sum(
        key: PRNGKey, vector: npt.ArrayLike, round_number: int, records: Records
    ) -> jax.Array:
        data = jax.tree.map(jnp.asarray, dict(records))
        return gradient_of(batch_length(data))(key, _unravel(params, vector), data, round_number)

    return Training(
        mechanism=mechanism,
        init=lambda: GradientState(params, optimizer_for(1.0).init(params)),
        get_params=lambda state: state.params,
        clipped_sum=clipped_sum,
        update=lambda state, noisy, _, factor: step_for(factor)(state, noisy),
        get_result=lambda state: state.params,
    )


def svi_training(
    key: PRNGKey, svi: "DPSVI", example: Records, **public: Any
) -> "Training[DPSVIState]":
    """Returns federated variational inference of a numpyro model by `dpjax.bayes.DPSVI`.

    Args:
      key: a JAX key for starting values and for draws from the guide: public, and the same at all
        parties.
      svi: over as many records as all holders have, or a public constant near it.
      example: one record: the arguments of model and guide that holders have records of, by name,
        without the leading axis. Of the values only shape and dtype are used.
      **public: arguments of model and guide that all parties know.

    Privacy:
      The parameters of every round are released, at the cost that ``svi.mechanism`` certifies.

    Raises:
      ValueError: as `DPSVI.init`; with ``gradient="aligned"`` or ``release_clipped_share=True``.
    """
    key = as_key(key)
    if svi.gradient != "plain" or svi.release_clipped_share:
        raise ValueError(
            'svi must have gradient="plain" and release_clipped_share=False, got'
            f" {svi.gradient!r} and {svi.release_clipped_share}: holders send a sum of the size of"
            " the parameters"
        )

    # Shapes alone: starting values do not depend on records.
    def blank(num_examples: int) -> dict[str, Any]:
        rows = {name: np.asarray(value) for name, value in example.items()}
        return {
            name: jnp.zeros((num_examples, *row.shape), row.dtype) for name, row in rows.items()
        }

    # A holder clips and sums as a DPSVI of its own records, at the published parameters.
    @functools.cache
    def of_holder(num_examples: int) -> tuple["DPSVI", "DPSVIState"]:
        own = svi.with_num_examples(num_examples)
        return own, own.init(key, **blank(num_examples), **public)

    def clipped_sum(
        key_of_batch: PRNGKey, vector: npt.ArrayLike, round_number: int, records: Records
    ) -> PyTree:
        data = {name: jnp.asarray(value) for name, value in records.items()}
        own, state = of_holder(batch_length(data))
        params = _unravel(own.optim.get_params(state.optim_state), vector)
        state = state._replace(
            optim_state=own.optim.init(params), rng_key=jax.random.fold_in(key, round_number)
        )
        return own.clipped_sum(key_of_batch, state, **data, **public)

    # The analyst makes the step.
    def update(
        state: "DPSVIState", noisy_sum: PyTree, round_number: int, noise_factor: float
    ) -> "DPSVIState":
        del noise_factor
        state = state._replace(rng_key=jax.random.fold_in(key, round_number))
        return svi.update_from_sum(state, noisy_sum, **blank_all, **public)

    blank_all = blank(svi.mechanism.sampling.num_examples)
    return Training(
        mechanism=svi.mechanism,
        init=lambda: svi.init(key, **blank_all, **public),
        get_params=lambda state: svi.optim.get_params(state.optim_state),
        clipped_sum=clipped_sum,
        update=update,
        get_result=svi.get_params,
    )


class ParameterFormat(Generic[State]):
    """Serialisation of the analyst's parameters (64-bit words) and states (bytes).

    A training with another number of parameters than the plan's ``size``, or with parameters that
    are no floats, is refused. ``start`` is the starting state.
    """

    def __init__(self, training: Training[State], size: int) -> None:
        self.start = training.init()
        self._params = training.get_params(self.start)
        own_size = ravel_pytree(self._params)[0].size
        check(own_size == size, "num_parameters", size, f"the {own_size} of the training")
        dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(self._params)]
        floats = all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
        check(floats, "params", dtypes, "a tree of floats")

    def to_words(self, params: ArrayTree) -> UInt64:
        """Returns parameters as float64 numbers in 64-bit words."""
        return np.asarray(ravel_pytree(params)[0], np.float64).view(np.uint64)

    def from_vector(self, vector: npt.ArrayLike) -> PyTree:
        """Returns a tree like the parameters from a vector, such as a released sum."""
        return _unravel(self._params, vector)

    def state_to_bytes(self, state: State) -> bytes:
        """Returns a state as bytes."""
        leaves = enumerate(jax.tree.leaves(state))
        return to_npz(**{f"arr_{number}": _as_numpy(leaf) for number, leaf in leaves})

    def state_from_bytes(self, data: bytes) -> State:
        """Returns the state of which `state_to_bytes` made ``data``."""
        leaves, treedef = jax.tree.flatten(self.start)
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = [file[name] for name in file]
        pairs = zip(arrays, leaves, strict=True)
        return jax.tree.unflatten(treedef, [_like(array, leaf) for array, leaf in pairs])


def noise_factor(num_contributing: int, num_noise_shares: int) -> float:
    """Returns the noise in a sum of so many holders over the planned noise, of H shares."""
    return math.sqrt(num_contributing / num_noise_shares)


def _unravel(params: ArrayTree, vector: npt.ArrayLike) -> PyTree:
    """Returns a tree like ``params`` with the numbers of a vector."""
    flat, unravel = ravel_pytree(params)
    return unravel(jnp.asarray(vector, flat.dtype))


def _as_numpy(leaf: npt.ArrayLike) -> npt.NDArray[np.generic]:
    return np.asarray(jax.random.key_data(leaf) if is_key(leaf) else leaf)


def _like(array: npt.NDArray[np.generic], leaf: npt.ArrayLike) -> jax.Array:
    if is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array, jnp.result_type(leaf))
