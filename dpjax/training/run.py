"""Loops of training steps: compiled, on the device or on the host, and with checkpoints."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding
from tqdm import tqdm

from dpjax._jaxprs import is_slow_in_loops
from dpjax.training.allocator import warn_of_page_faults
from dpjax.training.checkpoint import CheckpointStore
from dpjax.training.processes import explain_lost_process

Update = Callable[[Any, Any], tuple[Any, Any]]
# (state, data, number of steps, at most steps_per_call) -> (state, their infos stacked)
Steps = Callable[[Any, Any, int], tuple[Any, Any]]


def compile_steps(update: Update, state: Any, data: Any, steps_per_call: int) -> Steps:
    """Compiles a training loop that runs up to ``steps_per_call`` steps of ``update`` per call.

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
    """Whether to loop on the device: not where it is slow in loops (`is_slow_in_loops`).

    For dense models a host round trip for each step costs more than the step.
    """
    return not is_slow_in_loops(update, state, data)


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


def run_calls(
    compile_run: Callable[[], Steps],
    state: Any,
    data: Any,
    num_steps: int,
    steps_per_call: int,
    *,
    store: CheckpointStore | None = None,
    progress: bool = True,
) -> Iterator[tuple[int, Any, Any]]:
    """Runs compiled calls of several steps; yields steps done, state and infos after each call.

    Args:
      compile_run: returns the steps, made by `compile_steps`; not called where all are done.
      state: with its ``num_releases``, the steps done before; consumed.
      data: of the steps.
      num_steps: to be done in all.
      steps_per_call: steps of one call.
      store: of the checkpoint that is written after each call, before the call is yielded: a crash
        loses nothing that was reported, and noise is never used for two different gradients.
      progress: whether to show a progress bar.

    Raises:
      LostProcessError: another process of the run has ended.
    """
    done = int(state.num_releases)
    if done >= num_steps:
        return
    run = compile_run()
    bar = tqdm(total=num_steps, initial=done, unit="step", disable=not progress)
    with bar, warn_of_page_faults():
        while done < num_steps:
            count = min(steps_per_call, num_steps - done)
            with explain_lost_process(lambda: f"after release {done}"):  # noqa: B023
                state, infos = jax.block_until_ready(run(state, data, count))
            done += count
            if store:
                store.save(state, done)
            yield done, state, infos
            bar.update(count)
