"""Compiles a loop of training steps, on the device or on the host, whichever is faster."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding

from dpjax._jaxprs import primitive_names

Update = Callable[[Any, Any], tuple[Any, Any]]
# (state, data, number of steps, at most steps_per_call) -> (state, their infos stacked)
Steps = Callable[[Any, Any, int], tuple[Any, Any]]


def compile_steps(update: Update, state: Any, data: Any, steps_per_call: int) -> Steps:
    """Compiles ``update`` once, to run up to ``steps_per_call`` steps per call.

    Args:
      update: ``update(state, data) -> (state, info)``, pure.
      state: a state as it will be passed; each call consumes (donates) its state.
      data: arrays of the shapes that will be passed; they are not embedded in the program.
      steps_per_call: the most steps one call runs.

    Returns:
      ``run(state, data, num_steps) -> (state, infos)``, where every leaf of ``infos`` has a leading
      axis of ``num_steps``. Never recompiles, whatever ``num_steps``.

    >>> run = compile_steps(lambda s, d: (s + d, s), jnp.zeros(()), jnp.ones(()), 4)
    >>> state, seen = run(jnp.zeros(()), jnp.ones(()), 3)
    >>> float(state), seen.tolist()
    (3.0, [0.0, 1.0, 2.0])
    """
    loop = on_device_loop if loops_on_device(update, state, data) else on_host_loop
    return loop(update, state, data, steps_per_call)


def loops_on_device(update: Update, state: Any, data: Any) -> bool:
    """Whether to loop on the device: always on accelerators, on CPU without convolutions.

    XLA runs them inside a loop without its
    fast kernels, about nine times slower (72 against 7.7 ms a step for a small MNIST network),
    while for dense models a host round trip for each step costs more than the step.
    """
    if jax.default_backend() != "cpu":
        return True
    names = primitive_names(jax.make_jaxpr(update)(state, data).jaxpr)
    return "conv_general_dilated" not in names


def on_host_loop(update: Update, state: Any, data: Any, steps_per_call: int) -> Steps:
    """Returns a Python loop that dispatches one compiled step each time; see `compile_steps`."""
    del steps_per_call
    step = _jit(update, state).lower(state, data).compile()

    def run(state: Any, data: Any, num_steps: int) -> tuple[Any, Any]:
        infos = []
        for _ in range(num_steps):
            state, info = step(state, data)
            infos.append(info)
        return state, jax.tree.map(lambda *leaves: jnp.stack(leaves), *infos)

    return run


def on_device_loop(update: Update, state: Any, data: Any, steps_per_call: int) -> Steps:
    """Returns one compiled loop with a traced number of steps, so shorter calls do not recompile.

    See `compile_steps`.
    """

    def steps(state: Any, data: Any, num_steps: Any) -> tuple[Any, Any]:
        def body(index: Any, carry: tuple[Any, Any]) -> tuple[Any, Any]:
            state, infos = carry
            state, info = update(state, data)
            return state, jax.tree.map(lambda all, one: all.at[index].set(one), infos, info)

        info = jax.eval_shape(update, state, data)[1]
        infos = jax.tree.map(lambda x: jnp.zeros((steps_per_call, *x.shape), x.dtype), info)
        return jax.lax.fori_loop(0, num_steps, body, (state, infos))

    compiled = _jit(steps, state).lower(state, data, jnp.int32(0)).compile()

    def run(state: Any, data: Any, num_steps: int) -> tuple[Any, Any]:
        state, infos = compiled(state, data, jnp.int32(num_steps))
        if num_steps == steps_per_call:
            return state, infos
        return state, jax.tree.map(lambda leaf: leaf[:num_steps], infos)

    return run


def _jit(steps: Callable[..., tuple[Any, Any]], state: Any) -> Any:
    """Compiles ``steps``, which consumes a state and returns one that is placed like it."""

    def sharding(leaf: Any) -> Any:
        found = leaf.sharding if isinstance(leaf, jax.Array) else None
        return found if isinstance(found, NamedSharding) else None

    placed = jax.tree.map(sharding, state)
    return jax.jit(steps, donate_argnums=0, out_shardings=(placed, None))
