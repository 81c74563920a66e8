"""Adaptive composition of mechanisms on one data set."""

import dataclasses
import functools
from dataclasses import dataclass

from dpjax._checks import check, check_positive, check_type
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism
from dpjax.sampling.base import compose


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
            values = {getattr(part.guarantee, name) for part in self.parts}
            check(len(values) == 1, f"parts' {name}", sorted(values), "the same in every part")

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        parts = [part.guarantee for part in self.parts]
        return Guarantee(
            event=compose([part.event for part in parts]),
            adjacency=parts[0].adjacency,
            unit=parts[0].unit,
            num_releases=sum(part.num_releases for part in parts),
            description={
                f"part {number}, {heading}": text
                for number, part in enumerate(parts, start=1)
                for heading, text in part.description.items()
            },
            exact_noise=all(part.exact_noise for part in parts),
            size_constants=tuple(dict.fromkeys(c for part in parts for c in part.size_constants)),
        )

    def with_privacy_factor(self, factor: float) -> "Composition":
        """Returns the composition of the parts with their noise times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(
            self, parts=tuple(part.with_privacy_factor(factor) for part in self.parts)
        )
