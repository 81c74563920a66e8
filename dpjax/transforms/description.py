"""Static descriptions of clipping and noise, carried by optax transformations and their states.

A description holds Python numbers and schedules, no arrays: it is metadata of the pytree, so it
survives ``jit``, ``jax.tree.map``, donation and checkpoints, and adds no leaf to a state.
"""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, Self

import jax
import jax.numpy as jnp
import optax

from dpjax._typing import ArrayTree, ClipBound

Divisor = Literal["none", "public constant", "batch length"]


@jax.tree_util.register_static
@dataclass(frozen=True)
class ClipDescription:
    """The bound that per-example gradients are clipped to.

    Attributes:
      l2_clip: the bound (or per-layer bounds); ``None`` if it is a JAX array, which
        ``optax.inject_hyperparams`` may change between two updates.
    """

    l2_clip: Any = dataclasses.field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_clip", _static_bounds(self.l2_clip))


@jax.tree_util.register_static
@dataclass(frozen=True)
class NoiseDescription:
    """Gaussian noise on a clipped sum, once for each update.

    Attributes:
      l2_clip: the bound (or per-layer bounds) that the examples are clipped to; ``None`` if it is a
        JAX array, which ``optax.inject_hyperparams`` may change between two updates.
      noise_multiplier: standard deviation of the noise over the total bound, or a schedule of it;
        ``None`` if it is a JAX array or an object that holds one.
      divisor: what the sum is divided by. ``"batch length"`` is the length of the batch that was
        drawn: public if that is fixed, private under Poisson sampling.
    """

    l2_clip: Any = dataclasses.field(hash=False)
    noise_multiplier: float | Callable[[Any], Any] | None = dataclasses.field(hash=False)
    divisor: Divisor = "none"

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_clip", _static_bounds(self.l2_clip))
        noise: Any = self.noise_multiplier
        # Metadata must be comparable, which numbers and schedules that hold JAX arrays are not.
        held = list(getattr(noise, "__dict__", {}).values()) if callable(noise) else noise
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(held)):
            noise = None
        elif noise is not None and not callable(noise):
            noise = float(noise)
        object.__setattr__(self, "noise_multiplier", noise)


@jax.tree_util.register_static
class LeafShapes(tuple[tuple[int, ...] | None, ...]):
    """Shapes of a tree's leaves, ``None`` for leaves removed by ``optax.masked``.

    Equal to the shapes of a tree without leaves, which is what ``optax.tree_utils.tree_map_params``
    passes to ``init`` to find out a state's structure.
    """

    @classmethod
    def of(cls, tree: ArrayTree) -> Self:
        """Returns the shapes of the leaves of ``tree``."""
        leaves = jax.tree.leaves(tree, is_leaf=_is_masked)
        return cls(None if _is_masked(leaf) else jnp.shape(leaf) for leaf in leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafShapes) and (
            not self or not other or tuple(self) == tuple(other)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(LeafShapes)


class PrivateTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that carries the description of the noise it adds.

    Attributes:
      init: as optax's.
      update: as optax's.
      description: the noise that ``update`` adds.
    """

    description: NoiseDescription

    @classmethod
    def of(
        cls,
        init: optax.TransformInitFn,
        update: optax.TransformUpdateExtraArgsFn,
        description: NoiseDescription,
    ) -> Self:
        """Returns the transformation ``(init, update)`` with its description.

        Args:
          init: as optax's.
          update: as optax's.
          description: the noise that ``update`` adds.
        """
        transformation = cls(init, update)
        transformation.description = description
        return transformation


def check_description(
    found: ClipDescription | NoiseDescription, own: ClipDescription | NoiseDescription
) -> None:
    """Raises ValueError for the state of another transformation.

    Schedules are not compared.
    """
    for name, value in vars(own).items():
        other = getattr(found, name)
        if other != value and not (callable(other) and callable(value)):
            raise ValueError(
                f"state must come from init of the transformation that updates it: it was made with"
                f" {name} = {other!r}, the transformation has {value!r}. Changed noise or clipping"
                " needs a new state, and the releases of both count"
            )


def _static_bounds(l2_clip: ClipBound) -> ClipBound | None:
    if any(isinstance(bound, jax.Array) for bound in jax.tree.leaves(l2_clip)):
        return None
    return jax.tree.map(float, l2_clip)


def _is_masked(node: object) -> bool:
    return isinstance(node, optax.MaskedNode)
