"""Reads the noise transformation, and clipping before it, from an optax optimiser state.

The state of ``optax.chain`` lists the states of its transformations in the order in which they act.
That order, and the static descriptions in the states of dpjax's transformations, are all that can
be read from a state; anything else is rejected.
"""

import math
import sys
from collections import OrderedDict
from typing import NamedTuple

import jax
import numpy as np
import optax
from optax.schedules import InjectHyperparamsState, InjectStatefulHyperparamsState
from optax.transforms import PartitionState

from dpjax._typing import Numeric
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.transforms.aggregate import DifferentiallyPrivateAggregateState
from dpjax.transforms.clip import ClipPerExampleState
from dpjax.transforms.noise import AddGaussianNoiseState, NoiseDescription

_DPJAX = (ClipPerExampleState, AddGaussianNoiseState, DifferentiallyPrivateAggregateState)
_TRANSPARENT = (InjectHyperparamsState, InjectStatefulHyperparamsState, optax.MaskedState)
# Objects of flax that hold an optimiser's state next to the parameters, as ``opt_state``.
_FLAX_HOLDERS = (
    ("flax.nnx", "Optimizer"),
    ("flax.nnx", "TrainState"),
    ("flax.training.train_state", "TrainState"),
)
_NOISE_FIRST = (
    "noise comes first, or directly after clip_per_example, and optax's wrappers go around the"
    " transformations after it: optax.chain(clip_per_example(...), add_gaussian_noise(...), ...)"
)


class NoiseInState(NamedTuple):
    """The Gaussian noise that an optimiser state describes.

    Attributes:
      description: clip bound, noise multiplier, divisor.
      shapes: of every parameter, ``None`` where none of the noise is added.
      num_releases: noisy sums released so far; ``None`` if the state does not count them.
      keys: words of the next keys, to find those that are used twice.
      takes_examples: whether its input is per-example gradients rather than their sum.
      grouped: whether parameters are in several groups, each with its own bound and noise.
    """

    description: NoiseDescription
    shapes: tuple[tuple[int, ...] | None, ...]
    num_releases: int | None
    keys: tuple[bytes, ...]
    takes_examples: bool = False
    grouped: bool = False


# A transformation in a state: dpjax's noise or clipping, or another one, by its state's name.
Step = NoiseInState | ClipPerExampleState | str


def optimizer_state(holder: object) -> optax.OptState:
    """Returns the optimiser state that an object of flax holds; anything else is returned itself.

    By type, as states of optax's wrappers have a field ``opt_state`` too (``contrib.sam``). flax is
    not imported here: an object of a module that is not imported does not exist.
    """
    for module, name in _FLAX_HOLDERS:
        holder_type = getattr(sys.modules.get(module), name, None)
        if holder_type is not None and isinstance(holder, holder_type):
            return holder.opt_state
    return holder


def check_no_dpjax(state: optax.OptState) -> None:
    """Raises ValueError for the state of an optimiser with noise or clipping of dpjax or optax."""
    if _holds(state, (*_DPJAX, optax.contrib.DifferentiallyPrivateAggregateState)):
        raise ValueError(
            "optimizer must have no noise or clipping of its own, as the mechanism clips examples"
            " and adds the noise to their sum, got one with add_gaussian_noise, clip_per_example,"
            " noisy_sgd, noisy_adam or differentially_private_aggregate: pass the optax optimizer"
            " alone, such as optax.adam(...)"
        )


def find_noise(state: optax.OptState) -> NoiseInState:
    """Returns the noise of an optimiser state, for one noise transformation over all parameters.

    Raises:
      ValueError: for no noise, two of them, parameters without noise, a transformation before the
        noise other than `clip_per_example`, another clip bound than the noise's, or a wrapper
        around the noise whose effect on its input cannot be read from the state.
    """
    noise = _only_noise(_steps(state))
    without = sum(shape is None for shape in noise.shapes)
    if without:
        raise ValueError(
            f"the optimizer's noise must cover all parameters, but {without} of"
            f" {len(noise.shapes)} leaves are masked out of it: {_NOISE_FIRST}"
        )
    return noise


def _only_noise(steps: list[Step]) -> NoiseInState:
    """Returns the noise of ordered transformations; raises ValueError for a wrong order."""
    positions = [i for i, step in enumerate(steps) if isinstance(step, NoiseInState)]
    clips = [i for i, step in enumerate(steps) if isinstance(step, ClipPerExampleState)]
    names = [step if isinstance(step, str) else "noise" for step in steps]
    for position in clips:
        names[position] = "clip_per_example"
    if len(positions) != 1:
        raise ValueError(
            "the optimizer's state must hold exactly one noise transformation (of"
            " add_gaussian_noise, noisy_sgd, noisy_adam or differentially_private_aggregate), got"
            f" {len(positions)}: {names}"
        )
    if clips not in ([], [0]) or positions[0] != len(clips):
        raise ValueError(
            "the optimizer's noise must be preceded by nothing but clip_per_example, got the order"
            f" {names}: what else acts before the noise can change the sensitivity of the sum;"
            f" {_NOISE_FIRST}"
        )

    # Its bound is that of the clipping; one that is set while running is refused later.
    noise, clip = steps[positions[0]], steps[0]
    assert isinstance(noise, NoiseInState)
    if not isinstance(clip, ClipPerExampleState):
        return noise
    before, own = clip.l2_clip, noise.description.l2_clip
    if before is not None and own is not None:
        same = math.isclose(total_l2_clip(before), total_l2_clip(own), rel_tol=1e-6)
        if noise.grouped or not same:
            raise ValueError(
                "the optimizer's noise must be scaled to the bound of the clip_per_example before"
                f" it, got l2_clip={own!r} after clip_per_example({before!r})"
            )
    return noise._replace(takes_examples=True)


def _steps(state: optax.OptState) -> list[Step]:
    """The transformations in a state in the order in which they act, without wrappers."""
    # Several, or one that holds no other.
    if type(state) in (tuple, list, OrderedDict) and state:
        children = state.values() if isinstance(state, OrderedDict) else state
        return [step for child in children for step in _steps(child)]
    if isinstance(state, ClipPerExampleState):
        return [state]
    if isinstance(state, AddGaussianNoiseState | DifferentiallyPrivateAggregateState):
        return [_noise(state)]
    if not _holds(state):
        return [type(state).__name__]

    # A wrapper around noise, or around what comes after it.
    name = type(state).__name__
    if isinstance(state, PartitionState):
        return [_joint_noise(state)]
    if isinstance(state, optax.MultiStepsState):
        steps = _steps(state.inner_opt_state)
        if jax.tree.leaves(state.skip_state):
            raise ValueError(
                "optax.MultiSteps around noise must not have should_skip_update_fn: what is"
                " released would then depend on private gradients"
            )
        if any(
            isinstance(step, ClipPerExampleState)
            or (isinstance(step, NoiseInState) and step.takes_examples)
            for step in steps
        ):
            raise ValueError(
                "optax.MultiSteps must accumulate clipped sums, not per-example gradients: use"
                " optax.chain(clip_per_example(...), optax.MultiSteps(optax.chain("
                "add_gaussian_noise(...), ...), every_k_schedule=...))"
            )
        return steps
    if isinstance(state, _TRANSPARENT):
        # A clip may be masked, or act on other parameters than its noise.
        steps = _steps(state.inner_state)
        if not any(isinstance(step, NoiseInState) for step in steps):
            raise ValueError(
                f"clip_per_example must not be inside {name} without its noise: {_NOISE_FIRST}"
            )
        return steps
    raise ValueError(
        f"the optimizer's noise must not be inside {name}: whether and on what it is then applied"
        f" may depend on private gradients and cannot be read from the state; {_NOISE_FIRST}"
    )


def _noise(state: AddGaussianNoiseState | DifferentiallyPrivateAggregateState) -> NoiseInState:
    """The noise of one transformation; ``flax.nnx.Optimizer`` holds its arrays in variables."""
    num_releases = None
    if isinstance(state, AddGaussianNoiseState):
        counts = np.asarray(jax.tree.leaves(state.num_releases)[0])
        if counts.ndim:
            raise ValueError(
                f"the optimizer must be of one model, got the states of {counts.size} side by side:"
                " their releases compose, so describe each and use Composition"
            )
        key, num_releases, takes_examples = state.key, int(counts), False
    else:
        key, takes_examples = state.rng_key, True
    words = np.asarray(jax.random.key_data(jax.tree.leaves(key)[0])).tobytes()
    return NoiseInState(
        state.description, tuple(state.shapes), num_releases, (words,), takes_examples
    )


def _joint_noise(state: PartitionState) -> NoiseInState:
    """One release of several groups of parameters, each with its own bound and noise.

    Scaled by the noise of its group, a record moves the sums by sqrt(sum of 1 / multiplier^2), so
    together they are one Gaussian release of multiplier 1 / sqrt(sum of 1 / multiplier^2).
    """
    # The noise of each group.
    groups = {}
    for label, inner in state.inner_states.items():
        if not _holds(inner):
            raise ValueError(
                f"the optimizer's noise must cover all parameters, but the group {label!r} of"
                f" optax.partition has none: {_NOISE_FIRST}"
            )
        groups[label] = _only_noise(_steps(inner.inner_state))
    noises = list(groups.values())
    if len(noises) == 1:
        return noises[0]

    # They are released together, and independent.
    if any(noise.description.correlation is not None for noise in noises):
        raise ValueError(
            "groups of optax.partition must have noise that is independent over steps, got"
            " correlation=: one noise transformation for all parameters takes it"
        )
    keys = tuple(key for noise in noises for key in noise.keys)
    if len(set(keys)) < len(keys):
        raise ValueError("groups of optax.partition must have noise with different keys")
    counts = {noise.num_releases for noise in noises}
    if len(counts) > 1:
        raise ValueError(f"groups of optax.partition must release together, got counts {counts}")

    # Their joint bound, multiplier and shapes.
    shapes = tuple(
        next((shape for shape in leaf if shape is not None), None)
        for leaf in zip(*(noise.shapes for noise in noises), strict=True)
    )
    descriptions = [noise.description for noise in noises]
    bounds = {label: noise.description.l2_clip for label, noise in groups.items()}
    totals = {k: total_l2_clip(bound) for k, bound in bounds.items() if bound is not None}
    joint_bound = totals if len(totals) == len(bounds) else None
    divisor = max(descriptions, key=lambda d: d.divisor == "batch length").divisor
    multiplier = _joint_multiplier([d.noise_multiplier for d in descriptions])
    joint = NoiseDescription(joint_bound, multiplier, divisor)
    takes_examples = any(noise.takes_examples for noise in noises)
    return NoiseInState(joint, shapes, counts.pop(), keys, takes_examples, grouped=True)


def _joint_multiplier(
    multipliers: list[optax.ScalarOrSchedule | None],
) -> optax.ScalarOrSchedule | None:
    if None in multipliers:
        return None

    def joint(step: Numeric) -> float:
        values = [float(m(step) if callable(m) else m) for m in multipliers if m is not None]
        return 0.0 if 0 in values else sum(value**-2 for value in values) ** -0.5

    return joint if any(map(callable, multipliers)) else joint(0)


def _holds(state: optax.OptState, types: tuple[type, ...] = _DPJAX) -> bool:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, types))
    return any(isinstance(node, types) for node in nodes)
