"""Adaptive composition of mechanisms on one data set."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpjax._checks import check, check_positive, check_type
from dpjax.adjacency import Adjacency
from dpjax.mechanisms.base import Mechanism
from dpjax.sampling.base import compose

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True)
class Composition(Mechanism):
    """Adaptive composition: all ``parts`` run on the same records.

    Attributes:
      parts: at least one mechanism, all of one adjacency and one unit of privacy.

    >>> from dpjax.mechanisms import SubsampledGaussian
    >>> from dpjax.sampling import PoissonSampling
    >>> once = SubsampledGaussian(
    ...     PoissonSampling(100, 1.0), l2_clip=1.0, noise_multiplier=2.0, num_steps=1,
    ...     adjacency="add_remove"
    ... )
    >>> both = Composition((once, once))
    >>> both.num_releases, both.certificate(1e-5).epsilon > once.certificate(1e-5).epsilon
    (2, True)
    """

    parts: tuple[Mechanism, ...]

    def __post_init__(self) -> None:
        check_type("parts", self.parts, tuple, "a tuple of mechanisms")
        for part in self.parts:
            check_type("parts", part, Mechanism, "a tuple of mechanisms")
        check(len(self.parts) > 0, "parts", self.parts, "at least one mechanism")
        for name in ("adjacency", "unit"):
            values = {getattr(part, name) for part in self.parts}
            check(len(values) == 1, f"parts' {name}", sorted(values), "the same in every part")

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """The adjacency of the parts."""
        return self.parts[0].adjacency

    @property
    def unit(self) -> str:  # type: ignore[override]
        """The unit of privacy of the parts."""
        return self.parts[0].unit

    @property
    def num_releases(self) -> int:
        """Number of noisy values released, summed over the parts."""
        return sum(part.num_releases for part in self.parts)

    @property
    def event(self) -> "DpEvent":
        """The composition of the parts' events."""
        return compose([part.event for part in self.parts])

    @property
    def has_exact_noise(self) -> bool:
        """Whether the noise of all parts is sampled exactly."""
        return all(part.has_exact_noise for part in self.parts)

    @property
    def constants_from_size(self) -> tuple[str, ...]:
        """Descriptions of the parts' published values computed from n, each once."""
        return tuple(dict.fromkeys(c for part in self.parts for c in part.constants_from_size))

    def scale_noise(self, factor: float) -> "Composition":
        """Returns the composition of the parts with their noise times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(
            self, parts=tuple(part.scale_noise(factor) for part in self.parts)
        )

    def describe(self) -> Mapping[str, str]:
        """Returns the sentences of each part, numbered."""
        return {
            f"part {number}, {heading}": words
            for number, part in enumerate(self.parts, start=1)
            for heading, words in part.describe().items()
        }
