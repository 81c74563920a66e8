"""Several chains of one description, stepped together: by vmap over the private step."""

from collections.abc import Callable
from typing import Any

import jax
import optax

from dpjax._validation import as_key
from dpjax.bayes.sgmcmc.description import Langevin
from dpjax.training.step import PrivateStep, StepInfo, TrainState, private_step

LogLikelihood = Callable[[Any, Any], jax.Array]
LogPrior = Callable[[Any], jax.Array]


def private_chains(
    log_likelihood: LogLikelihood,
    log_prior: LogPrior | None,
    chain: Langevin,
    key: jax.Array,
    *,
    method: str = "auto",
    microbatch_size: int | None = None,
) -> PrivateStep:
    """Builds one step of all of ``chain.num_chains`` chains.

    Args:
      log_likelihood: ``log_likelihood(params, example) -> scalar``.
      log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior.
      chain: an `SGLD`, `SGHMC` or `PSGLD`.
      key: split into each chain's.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.

    Returns:
      ``init(params)``, where ``params`` is where every chain starts, or a function that draws a
      start from a key; and ``update(state, data)``. Every leaf of states and infos has a leading
      axis of chains, but a sampler that the chains share.

    Privacy:
      Each update releases the new parameters of all chains, counted in ``chain.event``.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(8, 0.5), 1.0, 0.1, 10, "add_remove", num_chains=3)
    >>> step = private_chains(lambda w, x: -jnp.sum((w - x) ** 2), None, chain, jax.random.key(0))
    >>> state = step.init(jnp.zeros(2))
    >>> jax.eval_shape(step.update, state, jnp.ones((8, 2)))[0].params.shape
    (3, 2)
    """
    key = as_key(key)
    shared = chain.batches == "shared"

    def one(key: jax.Array) -> PrivateStep:
        step_key, drift_key = jax.random.split(key)
        drift: optax.GradientTransformation = chain.drift(log_prior, drift_key)
        return private_step(
            lambda params, example: -log_likelihood(params, example),
            drift,
            chain.gaussian,
            step_key,
            method=method,
            microbatch_size=microbatch_size,
        )

    def init(params: Any) -> TrainState:
        def start(key: jax.Array) -> TrainState:
            step_key, start_key = jax.random.split(key)
            return one(step_key).init(params(start_key) if callable(params) else params)

        state = jax.vmap(start)(jax.random.split(key, chain.num_chains))
        if not shared:
            return state
        return state._replace(sampler=jax.tree.map(lambda leaf: leaf[0], state.sampler))

    def update(state: TrainState, data: Any) -> tuple[TrainState, StepInfo]:
        axes = TrainState(0, 0, None if shared else 0)
        return jax.vmap(step.update, (axes, None), (axes, 0))(state, data)

    step = one(key)  # its update takes all keys from the state
    return PrivateStep(init, update)
