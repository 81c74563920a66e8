"""Runs chains to their end: many steps a call, kept states to the host, a checkpoint after each."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from tqdm import tqdm

from dpjax._validation import check, check_count
from dpjax.bayes.sgmcmc.description import Batches, Langevin
from dpjax.bayes.sgmcmc.storage import SampleStore
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.checkpoint import CheckpointStore
from dpjax.training.loop import Update, loops_on_device, on_device_loop, on_host_loop
from dpjax.training.step import TrainState

# (state, steps between kept states, how many to keep) -> (state, the kept states stacked)
Keep = Callable[[TrainState, int, int], tuple[TrainState, Any]]


@dataclass(frozen=True)
class Plan:
    """Which states are kept, and of what chains: what a checkpoint belongs to.

    Attributes:
      gaussian: one chain's mechanism.
      num_chains: how many chains.
      batches: ``"own"`` or ``"shared"``.
      burn_in: steps before the first state that may be kept.
      thinning: steps from one kept state to the next.
    """

    gaussian: SubsampledGaussian
    num_chains: int
    batches: Batches
    burn_in: int
    thinning: int

    @classmethod
    def of(cls, chain: Langevin, burn_in: int, thinning: int) -> "Plan":
        """Returns the plan for ``chain``; refuses steps that do not come out even."""
        check_count("burn_in", burn_in, minimum=0)
        check_count("thinning", thinning)
        after = chain.num_steps - burn_in
        wanted = f"such that num_steps - burn_in = {after} is a positive multiple of it"
        check(after > 0 and after % thinning == 0, "thinning", thinning, wanted)
        return cls(chain.gaussian, chain.num_chains, chain.batches, burn_in, thinning)

    @property
    def num_kept(self) -> int:
        """How many states of each chain are kept."""
        return (self.gaussian.num_steps - self.burn_in) // self.thinning


class Runner(NamedTuple):
    """A run of chains, from whatever state it is given to its last step.

    Attributes:
      update: one step of all chains.
      data: device-resident.
      plan: which states are kept.
      samples_per_call: kept states for each call to the device.
      store: takes the kept states.
      checkpoints: takes the chains' state after each call; or ``None``.
    """

    update: Update
    data: Any
    plan: Plan
    samples_per_call: int
    store: SampleStore
    checkpoints: CheckpointStore | None

    def __call__(self, state: TrainState, progress: bool) -> None:
        """Runs from ``state`` (consumed) to the end."""
        done, num_steps = int(state.num_releases[0]), self.plan.gaussian.num_steps
        if done == num_steps:
            return
        keep = keeping(self.update, state, self.data, self.samples_per_call)
        with tqdm(total=num_steps, initial=done, unit="step", disable=not progress) as bar:
            while done < num_steps:
                state, steps = self._advance(keep, state, done)
                done += steps
                bar.update(steps)

    def _advance(self, keep: Keep, state: TrainState, done: int) -> tuple[TrainState, int]:
        """One call to the device: a stretch of the burn-in, or some kept states."""
        plan = self.plan
        if done < plan.burn_in:
            steps = min(plan.burn_in - done, plan.thinning * self.samples_per_call)
            state, _ = jax.block_until_ready(keep(state, steps, 1))
        else:
            first = (done - plan.burn_in) // plan.thinning
            count = min(self.samples_per_call, plan.num_kept - first)
            steps = count * plan.thinning
            state, states = keep(state, plan.thinning, count)
            self.store.write(first, states)
        if self.checkpoints:  # after the states: what a checkpoint has passed is on disk
            self.checkpoints.save(state, done + steps)
        return state, steps


def keeping(update: Update, state: Any, data: Any, most: int) -> Keep:
    """Compiles ``update`` once, for any number of steps between up to ``most`` kept states."""
    loop = on_device if loops_on_device(update, state, data) else on_host
    return loop(update, state, data, most)


def on_device(update: Update, state: Any, data: Any, most: int) -> Keep:
    """All steps to several kept states in one call; see `keeping`."""

    def stretch(carry: tuple[TrainState, jax.Array], data: Any) -> tuple[Any, Any]:
        state, steps = carry
        state = jax.lax.fori_loop(0, steps, lambda _, at: update(at, data)[0], state)
        return (state, steps), state.params

    run = on_device_loop(stretch, (state, jnp.int32(0)), data, most)

    def keep(state: TrainState, steps: int, count: int) -> tuple[TrainState, Any]:
        (state, _), states = run((state, jnp.int32(steps)), data, count)
        return state, states

    return keep


def on_host(update: Update, state: Any, data: Any, most: int) -> Keep:
    """A call for each step, where that is faster; see `keeping`."""
    run = on_host_loop(lambda state, data: (update(state, data)[0], ()), state, data, most)

    def keep(state: TrainState, steps: int, count: int) -> tuple[TrainState, Any]:
        kept = []
        for _ in range(count):
            state, _ = run(state, data, steps)
            kept.append(jax.device_get(state.params))
        return state, jax.tree.map(lambda *leaves: np.stack(leaves), *kept)

    return keep
