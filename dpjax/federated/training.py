"""Training by sums of clipped gradients: what the analyst and what each holder computes.

In each round the analyst publishes parameters, every holder sums the clipped gradients of a batch
of its own at them, and the analyst makes a step with the released sum.
"""

import functools
import io
import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.flatten_util import ravel_pytree

from dpjax._checks import as_key, batch_length, check, check_function
from dpjax._typing import ArrayTree, LossFn, PRNGKey
from dpjax.federated.entropy import UInt64
from dpjax.federated.gradients import holder_gradient
from dpjax.gradients.loss_checks import check_params
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian

if TYPE_CHECKING:
    from dpjax.bayes import DPSVI

Records = Mapping[str, npt.ArrayLike]
# From the noise of a sum over the planned noise to an optimiser.
OptimizerForNoise = Callable[[float], optax.GradientTransformation]


class Training(NamedTuple):
    """Functions of the analyst and of each holder.

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
    init: Callable[[], Any]
    get_params: Callable[[Any], Any]
    clipped_sum: Callable[[PRNGKey, npt.ArrayLike, int, Records], Any]
    update: Callable[[Any, Any, int, float], Any]
    get_result: Callable[[Any], Any]


class GradientState(NamedTuple):
    """State of `gradient_training`: parameters, and the state of the optimiser."""

    params: Any
    optimizer: Any


def gradient_training(
    loss_fn: LossFn,
    params: ArrayTree,
    optimizer: optax.GradientTransformation | OptimizerForNoise,
    *,
    mechanism: SubsampledGaussian,
    method: str = "auto",
) -> Training:
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
      mechanism: of the plan's steps, with a `PoissonSampling`.
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
    holder_gradient(loss_fn, mechanism, num_examples=1, method=method)

    @functools.cache
    def optimizer_for(noise_factor: float) -> optax.GradientTransformation:
        if isinstance(optimizer, optax.GradientTransformation):
            return optimizer
        return optimizer(noise_factor)

    @functools.cache
    def gradient_of(num_examples: int) -> Callable[..., jax.Array]:
        return holder_gradient(loss_fn, mechanism, num_examples=num_examples, method=method)

    @functools.cache
    def step_for(noise_factor: float) -> Callable[[GradientState, Any], GradientState]:
        chosen, size = optimizer_for(noise_factor), mechanism.sampling.expected_batch_size

        def step(state: GradientState, noisy_sum: Any) -> GradientState:
            mean = jax.tree.map(lambda s, p: (s / size).astype(p.dtype), noisy_sum, state.params)
            updates, moved = chosen.update(mean, state.optimizer, state.params)
            return GradientState(optax.apply_updates(state.params, updates), moved)

        return jax.jit(step)

    def clipped_sum(
        key: PRNGKey, vector: npt.ArrayLike, round_number: int, records: Records
    ) -> jax.Array:
        del round_number
        data = jax.tree.map(jnp.asarray, dict(records))
        return gradient_of(batch_length(data))(key, _unravel(params, vector), data)

    return Training(
        mechanism=mechanism,
        init=lambda: GradientState(params, optimizer_for(1.0).init(params)),
        get_params=lambda state: state.params,
        clipped_sum=clipped_sum,
        update=lambda state, noisy, _, factor: step_for(factor)(state, noisy),
        get_result=lambda state: state.params,
    )


def svi_training(key: PRNGKey, svi: "DPSVI", example: Records, **public: Any) -> Training:
    """Returns the training of a `dpjax.bayes.DPSVI`.

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
      ValueError: as `DPSVI.init`.
    """
    key = as_key(key)

    def blank(num_examples: int) -> dict[str, Any]:
        rows = {name: np.asarray(value) for name, value in example.items()}
        return {
            name: jnp.zeros((num_examples, *row.shape), row.dtype) for name, row in rows.items()
        }

    @functools.cache
    def of_holder(num_examples: int) -> tuple["DPSVI", Any]:
        own = svi.with_num_examples(num_examples)
        return own, own.init(key, **blank(num_examples), **public)

    def clipped_sum(
        key_of_batch: PRNGKey, vector: npt.ArrayLike, round_number: int, records: Records
    ) -> Any:
        data = {name: jnp.asarray(value) for name, value in records.items()}
        own, state = of_holder(batch_length(data))
        params = _unravel(own.optim.get_params(state.optim_state), vector)
        state = state._replace(
            optim_state=own.optim.init(params), rng_key=jax.random.fold_in(key, round_number)
        )
        return own.clipped_sum(key_of_batch, state, **data, **public)

    def update(state: Any, noisy_sum: Any, round_number: int, noise_factor: float) -> Any:
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


class ParameterFormat:
    """Conversion of the analyst's parameters and states to words and bytes, and back.

    Args:
      training: of the plan.
      size: number of parameters of the plan.

    Attributes:
      start: the starting state.

    Raises:
      ValueError: another number of parameters, or parameters that are no floats.
    """

    def __init__(self, training: Training, size: int) -> None:
        self.start = training.init()
        self._params = training.get_params(self.start)
        found = ravel_pytree(self._params)[0]
        check(found.size == size, "num_parameters", size, f"the {found.size} of the training")
        dtypes = [jnp.result_type(leaf) for leaf in jax.tree.leaves(self._params)]
        floats = all(jnp.issubdtype(dtype, jnp.floating) for dtype in dtypes)
        check(floats, "params", dtypes, "a tree of floats")

    def to_words(self, params: Any) -> UInt64:
        """Returns parameters as float64 numbers in 64-bit words."""
        return np.asarray(ravel_pytree(params)[0], np.float64).view(np.uint64)

    def from_vector(self, vector: npt.ArrayLike) -> Any:
        """Returns a tree like the parameters from a vector, such as a released sum."""
        return _unravel(self._params, vector)

    def state_to_bytes(self, state: Any) -> bytes:
        """Returns a state as bytes."""
        buffer = io.BytesIO()
        np.savez(buffer, *(np.asarray(leaf) for leaf in map(_as_array, jax.tree.leaves(state))))
        return buffer.getvalue()

    def state_from_bytes(self, data: bytes) -> Any:
        """Returns the state of which `state_to_bytes` made ``data``."""
        leaves, treedef = jax.tree.flatten(self.start)
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            arrays = [file[name] for name in file]
        pairs = zip(arrays, leaves, strict=True)
        return jax.tree.unflatten(treedef, [_like(array, leaf) for array, leaf in pairs])


def noise_factor(num_contributing: int, num_noise_shares: int) -> float:
    """Returns the noise in a sum of so many holders over the planned noise, of H shares."""
    return math.sqrt(num_contributing / num_noise_shares)


def _unravel(params: Any, vector: npt.ArrayLike) -> Any:
    """Returns a tree like ``params`` with the numbers of a vector."""
    flat, unravel = ravel_pytree(params)
    return unravel(jnp.asarray(vector, flat.dtype))


def _is_key(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _as_array(leaf: Any) -> Any:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _like(array: npt.NDArray[Any], leaf: Any) -> Any:
    if _is_key(leaf):
        return jax.random.wrap_key_data(jnp.asarray(array), impl=jax.random.key_impl(leaf))
    return jnp.asarray(array, jnp.result_type(leaf))
