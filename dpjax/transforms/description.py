"""What a noise-adding transformation says of itself, so that no accountant has to be told again."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple, Self

import optax

Divisor = Literal["none", "public constant", "batch length"]


class NoiseDescription(NamedTuple):
    """One release of a noisy clipped sum.

    Attributes:
      l2_clip: the bound (or per-layer bounds) that the examples are clipped to.
      noise_multiplier: standard deviation of the noise over the total bound, or a schedule of it.
      divisor: what the sum is divided by. ``"batch length"`` is the length of the batch that was
        drawn: harmless if that is fixed, private information under Poisson sampling.
    """

    l2_clip: Any
    noise_multiplier: float | Callable[[Any], Any]
    divisor: Divisor = "none"


class PrivateTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that carries the description of the noise it adds."""

    description: NoiseDescription

    @classmethod
    def of(cls, init: Any, update: Any, description: NoiseDescription) -> Self:
        """Returns the transformation ``(init, update)`` with its description."""
        transformation = cls(init, update)
        transformation.description = description
        return transformation
