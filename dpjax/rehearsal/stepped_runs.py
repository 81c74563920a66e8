"""Runs of DP-SGD or DPSVI on simulated data sets, with many settings in one compiled program.

All settings draw the same batches and the same standard normal noise (common random numbers), so
differences between them are those of the settings, and a batch is gathered once for all.
"""

import dataclasses
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from dpjax._typing import PRNGKey, PyTree
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import dpsgd
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.rehearsal.calibration import NUM_DRAWS, rank_truth
from dpjax.rehearsal.steps import Steps
from dpjax.rehearsal.worlds import Simulator
from dpjax.training.run import Chunk, compile_chunk

# Settings in one program; rows of the trace of a run.
_NUM_SETTINGS, _NUM_ROWS = 8, 40
# A bound above all norms.
_NO_BOUND = 1e30
# Steps that are timed.
_NUM_TIMED = 10


class Setting(NamedTuple):
    """Settings of a run of DP-SGD or DPSVI.

    Attributes:
      batch_size: expected number of records in a batch.
      epochs: over the records.
      l2_clip: clip bound.
      learning_rate: of the optimiser.
    """

    batch_size: int
    epochs: float
    l2_clip: float
    learning_rate: float


class Trace(NamedTuple):
    """What was clipped and noised in some steps of a run, arrays ``(steps, ...)``.

    Attributes:
      clipped_share: of the drawn records.
      norm_lost: share of the sum of the gradients' norms that clipping takes away.
      mean_norm: of the gradients before clipping.
      noisy_square: squared norm of the noisy gradient.
      noise_square: expected squared norm of the noise in it.
    """

    clipped_share: jax.Array
    norm_lost: jax.Array
    mean_norm: jax.Array
    noisy_square: jax.Array
    noise_square: jax.Array


class _Programs(NamedTuple):
    """Compiled programs of one batch size, over settings side by side.

    Attributes:
      init: ``(columns, key, records) -> states``.
      steps: ``(states, (columns, records), num_steps) -> (states, Trace)``.
    """

    init: Callable[..., PyTree]
    steps: Chunk[PyTree, Trace]


class SteppedRuns:
    """Runs of DP-SGD or DPSVI on simulated data sets, many settings at a time.

    Args:
      method: its steps are run.
      simulate: a world from a key.
      plans: pairs of batch size and epochs that are tried.
      scale: that errors are measured in.
      num_examples, delta, adjacency, unit: of the mechanism.
    """

    def __init__(
        self,
        method: Steps,
        simulate: Simulator,
        plans: Sequence[tuple[int, float]],
        scale: PyTree,
        *,
        num_examples: int,
        delta: float,
        adjacency: Adjacency,
        unit: str,
    ) -> None:
        self._method, self._plans, self._scale = method, plans, scale
        self._delta = delta
        self._plan = partial(dpsgd, num_examples=num_examples, adjacency=adjacency, unit=unit)
        self._simulate = jax.jit(simulate)
        self._constant_error = jax.jit(partial(method.constant_error, scale=scale))
        self._programs: dict[int, _Programs] = {}

        # Of states from any batch size.
        any_mechanism = self._plan(batch_size=1, epochs=1, noise_multiplier=1.0)
        error = partial(method.error, any_mechanism, scale=scale)
        self._error = jax.jit(jax.vmap(error, in_axes=(method.axes, None)))
        self._noises: dict[tuple[int, float, float], float] = {}

    def noise(self, setting: Setting, epsilon: float) -> float:
        """Returns the noise multiplier of a setting: the least for epsilon, zero without privacy.

        Args:
          setting: of which batch size and epochs count.
          epsilon: infinite without privacy.
        """
        if math.isinf(epsilon):
            return 0.0
        kind = (setting.batch_size, setting.epochs, epsilon)
        if kind not in self._noises:
            mechanism = self._plan(
                batch_size=setting.batch_size,
                epochs=setting.epochs,
                epsilon=epsilon,
                delta=self._delta,
            )
            assert isinstance(mechanism.noise_multiplier, float)
            self._noises[kind] = mechanism.noise_multiplier
        return self._noises[kind]

    def mechanism(self, setting: Setting, epsilon: float) -> SubsampledGaussian:
        """Returns the mechanism of a setting at an epsilon.

        Args:
          setting: of the run.
          epsilon: finite.
        """
        return self._plan(
            batch_size=setting.batch_size,
            epochs=setting.epochs,
            l2_clip=setting.l2_clip,
            noise_multiplier=self.noise(setting, epsilon),
        )

    def run(
        self, settings: Sequence[Setting], epsilons: Sequence[float], key: PRNGKey
    ) -> tuple[np.ndarray, float, Trace]:
        """Runs settings in one world.

        Args:
          settings: any.
          epsilons: of each; infinite without noise and clipping.
          key: of the world and of the noise, which is one for all settings.

        Returns:
          Errors ``(settings,)``, the error of a constant result, and a `Trace` of arrays
          ``(rows, settings)`` of the first batch size and number of epochs.
        """
        world_key, run_key = jax.random.split(key)
        world = self._simulate(world_key)
        errors, first_trace = np.full(len(settings), np.nan), None

        # Settings of one batch size and number of epochs, as many in each call as a program takes.
        for batch_size, epochs in dict.fromkeys(setting[:2] for setting in settings):
            group = [i for i, each in enumerate(settings) if each[:2] == (batch_size, epochs)]
            num_steps = self._plan(
                batch_size=batch_size, epochs=epochs, noise_multiplier=1.0
            ).num_steps
            traces = []
            for start in range(0, len(group), _NUM_SETTINGS):
                # Columns of numbers; those missing for a full program are copies of the last.
                part = group[start : start + _NUM_SETTINGS]
                numbers = []
                for i in part:
                    clip = _NO_BOUND if math.isinf(epsilons[i]) else settings[i].l2_clip
                    noise = self.noise(settings[i], epsilons[i])
                    numbers.append((clip, settings[i].learning_rate, noise))
                numbers += [numbers[-1]] * (_NUM_SETTINGS - len(part))
                columns = _split(tuple(jnp.array(column) for column in zip(*numbers, strict=True)))

                # First states, all steps, errors.
                programs = self._compile(batch_size, columns, run_key, world.records)
                states = programs.init(columns, run_key, world.records)
                states, trace = programs.steps(states, (columns, world.records), num_steps)
                errors[part] = self._error(states, world)[: len(part)]
                traces.append(jax.tree.map(lambda x: np.asarray(x)[:, : len(part)], trace))  # noqa: B023
            if first_trace is None:
                first_trace = jax.tree.map(lambda *parts: np.concatenate(parts, 1), *traces)
        assert first_trace is not None
        return errors, float(self._constant_error(world)), first_trace

    def _compile(
        self, batch_size: int, columns: PyTree, key: PRNGKey, records: PyTree
    ) -> _Programs:
        """Returns the programs of a batch size, which are compiled once."""
        if batch_size in self._programs:
            return self._programs[batch_size]
        method, axes = self._method, self._method.axes
        most = max(epochs for size, epochs in self._plans if size == batch_size)
        base = self._plan(batch_size=batch_size, epochs=most, noise_multiplier=1.0)
        base = dataclasses.replace(base, epochs=None)

        # The mechanism of one setting, whose numbers are traced.
        def mechanism_of(column: tuple[Any, ...]) -> SubsampledGaussian:
            return dataclasses.replace(base, l2_clip=column[0], noise_multiplier=column[2])

        def init(column: tuple[jax.Array, ...], key: PRNGKey, records: PyTree) -> PyTree:
            return method.init(mechanism_of(column), column[1], key, records)

        def update(
            state: PyTree, column: tuple[jax.Array, ...], records: PyTree
        ) -> tuple[PyTree, Trace]:
            mechanism, clip = mechanism_of(column), column[0]
            state, info = method.update(mechanism, column[1], state, records)

            # Norms of the drawn records before and after clipping.
            norms = jnp.asarray(info.norms)
            drawn = info.mask & jnp.isfinite(norms)
            clipped, total = jnp.minimum(norms, clip).sum(where=drawn), norms.sum(where=drawn)
            number = jnp.maximum(jnp.sum(drawn), 1)
            return state, Trace(
                jnp.sum(norms > clip, where=drawn) / number,
                1 - clipped / jnp.maximum(total, 1e-30),
                total / number,
                method.noisy_norm(state) ** 2,
                jnp.asarray(method.noise_norm(mechanism, state) ** 2),
            )

        # Settings side by side; the batch and its sampler are one for all.
        all_init = jax.jit(jax.vmap(init, in_axes=(0, None, None), out_axes=axes))
        all_update = jax.vmap(update, in_axes=(axes, 0, None), out_axes=(axes, 0))
        every = max(1, base.num_steps // _NUM_ROWS)
        steps = compile_chunk(
            lambda state, data: all_update(state, *data),
            all_init(columns, key, records),
            (columns, records),
            base.num_steps,
            every,
        )
        self._programs[batch_size] = _Programs(all_init, steps)
        return self._programs[batch_size]

    def ranks(self, setting: Setting, epsilon: float, key: PRNGKey) -> dict[str, np.ndarray]:
        """Makes a run and returns ranks of the truth among posterior draws, by latent variable.

        Args:
          setting: of the run.
          epsilon: finite.
          key: of the world and the run.
        """
        world_key, run_key = jax.random.split(key)
        world = self._simulate(world_key)
        draws = self._method.posterior_draws(
            run_key,
            self.mechanism(setting, epsilon),
            setting.learning_rate,
            world.records,
            NUM_DRAWS,
        )
        return rank_truth(draws, world.truth)

    def step_cost(self, setting: Setting, epsilon: float) -> tuple[float, int]:
        """Returns seconds and bytes of one step as it will be made, compiled.

        Args:
          setting: of the run.
          epsilon: finite.
        """
        world_key, run_key = jax.random.split(jax.random.key(0))
        records = self._simulate(world_key).records
        arguments = self.mechanism(setting, epsilon), setting.learning_rate
        state = self._method.init(*arguments, run_key, records)

        @jax.jit
        def update(state: PyTree, records: PyTree) -> PyTree:
            return self._method.update(*arguments, state, records)[0]

        compiled = update.lower(state, records).compile()
        analysis: Any = compiled.memory_analysis()
        state = jax.block_until_ready(compiled(state, records))
        start = time.monotonic()
        for _ in range(_NUM_TIMED):
            state = compiled(state, records)
        jax.block_until_ready(state)
        seconds = (time.monotonic() - start) / _NUM_TIMED
        return seconds, analysis.temp_size_in_bytes + analysis.argument_size_in_bytes


def _split(columns: PyTree) -> PyTree:
    """Returns columns of settings that are split over the devices, where there are several."""
    devices = jax.devices()
    if len(devices) == 1 or _NUM_SETTINGS % len(devices):
        return columns
    mesh = Mesh(np.array(devices), ("settings",))
    return jax.device_put(columns, NamedSharding(mesh, PartitionSpec("settings")))
