"""One step of several SG-MCMC chains."""

from collections.abc import Callable
from functools import partial

import jax
import optax
from jax.sharding import PartitionSpec

from dpjax._checks import as_key, check_function, check_type
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey
from dpjax.bayes.sgmcmc.langevin import Langevin, LogPrior
from dpjax.training.sharding import MeshSharding, is_spec
from dpjax.training.step import PrivateStep, TrainState, private_step


def private_chains(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior | None,
    chain: Langevin,
    *,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
) -> PrivateStep:
    """Returns ``init`` and ``update`` of all ``chain.num_chains`` chains, by vmap over one.

    Args:
      key: a JAX key, split into one for each chain.
      log_likelihood: ``log_likelihood(params, example) -> scalar``.
      log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior.
      chain: an `SGLD`, `SGHMC` or `PSGLD`.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.
      sharding: see `private_step`; every device computes its rows for all chains.

    Returns:
      ``init(params)``, where ``params`` is the initial state of every chain, or a function that
      draws one from a key; and ``update(state, data)``. Every leaf of states and infos has a
      leading axis of chains, but a sampler that the chains share.

    Privacy:
      Each update releases the new parameters of all chains, counted in ``chain.event``.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(
    ...     PoissonSampling(8, 0.5), l2_clip=1.0, step_size=0.1, num_steps=10,
    ...     adjacency="add_remove", num_chains=3
    ... )
    >>> step = private_chains(jax.random.key(0), lambda w, x: -jnp.sum((w - x) ** 2), None, chain)
    >>> state = step.init(jnp.zeros(2))
    >>> jax.eval_shape(step.update, state, jnp.ones((8, 2)))[0].params.shape
    (3, 2)
    """
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    check_function("log_likelihood", log_likelihood, "params", "example")
    check_type("sharding", sharding, MeshSharding | None, "a MeshSharding or None")
    key = as_key(key)
    shared = chain.batches == "shared"

    def one_chain(key: PRNGKey, sharding: MeshSharding | None = None) -> PrivateStep:
        step_key, update_key = jax.random.split(key)
        optimizer: optax.GradientTransformation = chain.optimizer(log_prior, key=update_key)
        return private_step(
            lambda params, example: -log_likelihood(params, example),
            optimizer,
            mechanism=chain.gaussian,
            key=step_key,
            method=method,
            microbatch_size=microbatch_size,
            sharding=sharding,
        )

    def init(params: ArrayTree | Callable[[PRNGKey], ArrayTree]) -> TrainState:
        def start(key: PRNGKey) -> TrainState:
            step_key, start_key = jax.random.split(key)
            return one_chain(step_key).init(params(start_key) if callable(params) else params)

        state = jax.vmap(start)(jax.random.split(key, chain.num_chains))
        if shared:
            state = state._replace(sampler=jax.tree.map(lambda leaf: leaf[0], state.sampler))
        return state if sharding is None else place_chains(state, sharding)

    # Updates take all keys from the state, so those of one chain serve all.
    step, axes = one_chain(key, sharding), TrainState(0, 0, None if shared else 0)
    over_chains = partial(jax.vmap, in_axes=(axes, None), out_axes=(axes, 0))
    return PrivateStep(init, over_chains(step.update), over_chains(step.one_device_update))


def place_chains(state: TrainState, sharding: MeshSharding) -> TrainState:
    """Returns states with a leading axis of chains on a mesh, each chain like the states of one."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state)

    def of_chains(spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(None, *spec) if tuple(spec) else spec

    specs = jax.tree.map(of_chains, sharding.state_specs(one, one.params), is_leaf=is_spec)
    return sharding.place(state, specs)
