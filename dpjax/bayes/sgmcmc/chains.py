"""One step of several SG-MCMC chains, and its compiled loop over many steps."""

from collections.abc import Callable
from contextlib import closing
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

from dpjax._checks import as_key, check_function, check_type
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey
from dpjax.bayes.sgmcmc.langevin import Langevin, LogPrior
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import RecordStream
from dpjax.training.processes import to_host
from dpjax.training.run import Update, loops_on_device, on_device_loop, on_host_loop
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
            chain.gaussian,
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

    def update(state: TrainState, data: ArrayTree) -> tuple[TrainState, StepInfo]:
        axes = TrainState(0, 0, None if shared else 0)
        return jax.vmap(step.update, (axes, None), (axes, 0))(state, data)

    step = one_chain(key, sharding)  # its update takes all keys from the state
    return PrivateStep(init, update)


def place_chains(state: TrainState, sharding: MeshSharding) -> TrainState:
    """Returns states with a leading axis of chains on a mesh, each chain like the states of one."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state)

    def of_chains(spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(None, *spec) if tuple(spec) else spec

    specs = jax.tree.map(of_chains, sharding.state_specs(one, one.params), is_leaf=is_spec)
    return sharding.place(state, specs)


# (state, steps between kept states, how many to keep) -> (state, the kept states stacked)
Keep = Callable[[TrainState, int, int], tuple[TrainState, Any]]


def compile_steps(update: Update, state: TrainState, data: Any, max_kept: int) -> Keep:
    """Compiles ``update`` once, for any number of steps between up to ``max_kept`` kept states."""
    if isinstance(data, RecordStream):
        return on_stream(update, data)
    loop = on_device if loops_on_device(update, state, data) else on_host
    return loop(update, state, data, max_kept)


def on_device(update: Update, state: TrainState, data: ArrayTree, max_kept: int) -> Keep:
    """Runs all steps to several kept states in one device call; see `compile_steps`."""

    def run_to_kept_state(
        carry: tuple[TrainState, jax.Array], data: ArrayTree
    ) -> tuple[tuple[TrainState, jax.Array], Any]:
        state, steps = carry
        state = jax.lax.fori_loop(0, steps, lambda _, at: update(at, data)[0], state)
        return (state, steps), state.params

    run = on_device_loop(run_to_kept_state, (state, jnp.int32(0)), data, max_kept)

    def keep(state: TrainState, steps: int, count: int) -> tuple[TrainState, Any]:
        (state, _), states = run((state, jnp.int32(steps)), data, count)
        return state, jax.tree.map(to_host, states)

    return keep


def on_host(update: Update, state: TrainState, data: ArrayTree, max_kept: int) -> Keep:
    """Runs one device call for each step, where that is faster; see `compile_steps`."""
    run = on_host_loop(lambda state, data: (update(state, data)[0], ()), state, data, max_kept)

    def keep(state: TrainState, steps: int, count: int) -> tuple[TrainState, Any]:
        kept = []
        for _ in range(count):
            state, _ = run(state, data, steps)
            kept.append(jax.tree.map(to_host, state.params))
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *kept)

    return keep


def on_stream(update: Update, stream: RecordStream) -> Keep:
    """Runs one device call for each step, on records read during the step before."""
    steps_of = stream.compile_steps(lambda state, data: (update(state, data)[0], ()))

    def keep(state: TrainState, steps: int, count: int) -> tuple[TrainState, Any]:
        kept = []
        with closing(steps_of(state, steps * count)) as each:
            for number, (state, _) in enumerate(each, start=1):
                if number % steps == 0:
                    kept.append(jax.tree.map(to_host, state.params))
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *kept)

    return keep
