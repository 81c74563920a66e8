"""Reads the noise transformation, and clipping before it, from an optax optimiser state.

The state of ``optax.chain`` lists the states of its transformations in the order in which they act.
That order, and the static descriptions in the states of dpjax's transformations, are all that can
be read from a state; anything else is rejected.
"""

import math
import sys
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
import optax
from optax.schedules import InjectHyperparamsState, InjectStatefulHyperparamsState
from optax.transforms import PartitionState

from dpjax._typing import Numeric
from dpjax.gradients.clipping import total_l2_clip
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


class _Other(NamedTuple):
    """A transformation that is not dpjax's, by the name of its state."""

    name: str


def optimizer_state(holder: Any) -> optax.OptState:
    """Returns the optimiser state that an object of flax holds; anything else is returned itself.

    By type, as states of optax's wrappers have a field ``opt_state`` too (``contrib.sam``). flax is
    not imported here: an object of a module that is not imported does not exist.
    """
    for module, name in _FLAX_HOLDERS:
        holder_type: Any = getattr(sys.modules.get(module), name, None)
        if holder_type is not None and isinstance(holder, holder_type):
            return holder.opt_state
    return holder


def check_no_dpjax(state: optax.OptState) -> None:
    """Raises ValueError for the state of an optimiser with noise or clipping of dpjax's own."""
    if _holds_dpjax(state):
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


def _only_noise(steps: list[Any]) -> NoiseInState:
    """Returns the noise of ordered transformations; raises ValueError for a wrong order."""
    positions = [i for i, step in enumerate(steps) if isinstance(step, NoiseInState)]
    clips = [i for i, step in enumerate(steps) if isinstance(step, ClipPerExampleState)]
    if len(positions) != 1:
        raise ValueError(
            "the optimizer's state must hold exactly one noise transformation (of"
            " add_gaussian_noise, noisy_sgd, noisy_adam or differentially_private_aggregate), got"
            f" {len(positions)}: {[_name(step) for step in steps]}"
        )
    noise, before = steps[positions[0]], steps[: positions[0]]
    if clips not in ([], [0]) or len(before) != len(clips):
        raise ValueError(
            "the optimizer's noise must be preceded by nothing but clip_per_example, got the order"
            f" {[_name(step) for step in steps]}: what else acts before the noise can change the"
            f" sensitivity of the sum; {_NOISE_FIRST}"
        )
    if clips:
        _check_same_bound(before[0], noise)
    return noise._replace(takes_examples=noise.takes_examples or bool(clips))


def _check_same_bound(clip: ClipPerExampleState, noise: NoiseInState) -> None:
    bounds = clip.description.l2_clip, noise.description.l2_clip
    if None in bounds:
        return  # refused later: it is set while running
    totals = [float(total_l2_clip(bound)) for bound in bounds]
    if noise.grouped or not math.isclose(*totals, rel_tol=1e-6):
        raise ValueError(
            "the optimizer's noise must be scaled to the bound of the clip_per_example before it,"
            f" got l2_clip={bounds[1]!r} after clip_per_example({bounds[0]!r})"
        )


def _steps(state: optax.OptState) -> list[Any]:
    """The transformations in a state in the order in which they act, without wrappers."""
    if type(state) in (tuple, list, OrderedDict) and state:
        children = state.values() if isinstance(state, OrderedDict) else state
        return [step for child in children for step in _steps(child)]
    if isinstance(state, _DPJAX) or not _holds_dpjax(state):
        return [_one_step(state)]
    if isinstance(state, PartitionState):
        return [_joint_noise(state)]
    if isinstance(state, optax.MultiStepsState):
        return _steps_of_multi_steps(state)
    if isinstance(state, _TRANSPARENT):
        return _steps_without_lone_clip(state.inner_state, type(state).__name__)
    raise ValueError(
        f"the optimizer's noise must not be inside {type(state).__name__}: whether and on what it"
        " is then applied may depend on private gradients and cannot be read from the state;"
        f" {_NOISE_FIRST}"
    )


def _one_step(state: Any) -> Any:
    """A transformation that holds no other, as an entry of the list of `_steps`."""
    if isinstance(state, AddGaussianNoiseState):
        return _noise(state, state.key, _count(state.num_releases))
    if isinstance(state, DifferentiallyPrivateAggregateState):
        return _noise(state, state.rng_key, None)
    return state if isinstance(state, ClipPerExampleState) else _Other(type(state).__name__)


def _steps_of_multi_steps(state: optax.MultiStepsState) -> list[Any]:
    steps = _steps(state.inner_opt_state)
    if jax.tree.leaves(state.skip_state):
        raise ValueError(
            "optax.MultiSteps around noise must not have should_skip_update_fn: what is released"
            " would then depend on private gradients"
        )
    if any(isinstance(s, ClipPerExampleState) or getattr(s, "takes_examples", 0) for s in steps):
        raise ValueError(
            "optax.MultiSteps must accumulate clipped sums, not per-example gradients: use"
            " optax.chain(clip_per_example(...), optax.MultiSteps(optax.chain("
            "add_gaussian_noise(...), ...), every_k_schedule=...))"
        )
    return steps


def _steps_without_lone_clip(inner: Any, name: str) -> list[Any]:
    """Raises ValueError for a clip in a wrapper (perhaps masked) that does not hold its noise."""
    steps = _steps(inner)
    if not any(isinstance(step, NoiseInState) for step in steps):
        raise ValueError(
            f"clip_per_example must not be inside {name} without its noise: {_NOISE_FIRST}"
        )
    return steps


def _noise(state: Any, key: Any, num_releases: int | None) -> NoiseInState:
    words = np.asarray(jax.random.key_data(_array(key)))
    takes_examples = isinstance(state, DifferentiallyPrivateAggregateState)
    shapes, keys = tuple(state.shapes), (words.tobytes(),)
    return NoiseInState(state.description, shapes, num_releases, keys, takes_examples)


def _count(num_releases: Any) -> int:
    count = np.asarray(_array(num_releases))
    if count.ndim:
        raise ValueError(
            f"the optimizer must be of one model, got the states of {count.size} side by side:"
            " their releases compose, so describe each and use Composition"
        )
    return int(count)


def _array(value: Any) -> jax.Array:
    """The array itself, where ``flax.nnx.Optimizer`` holds it in a variable."""
    return jax.tree.leaves(value)[0]


def _joint_noise(state: PartitionState) -> NoiseInState:
    """One release of several groups of parameters, each with its own bound and noise.

    Scaled by the noise of its group, a record moves the sums by sqrt(sum of 1 / multiplier^2), so
    together they are one Gaussian release of multiplier 1 / sqrt(sum of 1 / multiplier^2).
    """
    groups = {}
    for label, inner in state.inner_states.items():
        if not _holds_dpjax(inner):
            raise ValueError(
                f"the optimizer's noise must cover all parameters, but the group {label!r} of"
                f" optax.partition has none: {_NOISE_FIRST}"
            )
        groups[label] = _only_noise(_steps(inner.inner_state))
    found = list(groups.values())
    if len(found) == 1:
        return found[0]
    keys = tuple(key for noise in found for key in noise.keys)
    if len(set(keys)) < len(keys):
        raise ValueError("groups of optax.partition must have noise with different keys")
    counts = {noise.num_releases for noise in found}
    if len(counts) > 1:
        raise ValueError(f"groups of optax.partition must release together, got counts {counts}")
    shapes = tuple(
        next((shape for shape in leaf if shape is not None), None)
        for leaf in zip(*(noise.shapes for noise in found), strict=True)
    )
    descriptions = [noise.description for noise in found]
    readable = None not in [description.l2_clip for description in descriptions]
    bounds = (
        {k: total_l2_clip(v.description.l2_clip) for k, v in groups.items()} if readable else None
    )
    divisor = max(descriptions, key=lambda d: d.divisor == "batch length").divisor
    multiplier = _joint_multiplier([d.noise_multiplier for d in descriptions])
    joint = NoiseDescription(bounds, multiplier, divisor)
    takes_examples = any(noise.takes_examples for noise in found)
    return NoiseInState(joint, shapes, counts.pop(), keys, takes_examples, grouped=True)


def _joint_multiplier(multipliers: list[Any]) -> float | Callable[[Any], Any] | None:
    if None in multipliers:
        return None

    def joint(step: Numeric) -> float:
        values = [float(m(step)) if callable(m) else m for m in multipliers]
        return 0.0 if 0 in values else sum(value**-2 for value in values) ** -0.5

    return joint if any(map(callable, multipliers)) else joint(0)


def _holds_dpjax(state: optax.OptState) -> bool:
    nodes = jax.tree.leaves(state, is_leaf=lambda node: isinstance(node, _DPJAX))
    return any(isinstance(node, _DPJAX) for node in nodes)


def _name(step: Any) -> str:
    if isinstance(step, NoiseInState):
        return "noise"
    return "clip_per_example" if isinstance(step, ClipPerExampleState) else step.name
