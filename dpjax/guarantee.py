"""The privacy guarantee of a mechanism, or of a run of it."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from dpjax.adjacency import Adjacency, is_size_public

if TYPE_CHECKING:
    from dp_accounting import DpEvent


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """What is released, for which neighbours, and what is known of the run that released it.

    Attributes:
      event: the dp-accounting event, with noise multipliers relative to *one clip bound*:
        accountants apply the factor of the adjacency.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, for example ``"one image"``.
      num_releases: the number of noisy values released.
      description: sampling, clipping, noise and so on, as heading and text.
      exact_noise: whether noise is sampled exactly, so that the guarantee holds for every bit.
      size_constants: names of published values computed from the number of records n. Under
        add/remove they make n public, and the certificate states so.
      num_examples: the number of records n, where it is known and public; else ``None``.
      num_steps_run: of a run, the number of steps taken: ``event`` is theirs.
      seeded: of a run, whether its key was derived from a seed, so that its noise can be redrawn.
    """

    event: "DpEvent"
    adjacency: Adjacency
    unit: str
    num_releases: int
    description: Mapping[str, str]
    exact_noise: bool = False
    size_constants: tuple[str, ...] = ()
    num_examples: int | None = None
    num_steps_run: int | None = None
    seeded: bool = False

    @property
    def is_size_public(self) -> bool:
        """Whether n is public: by the adjacency, or by a published value computed from it."""
        return is_size_public(self.adjacency) or bool(self.size_constants)

    def with_description(self, first: Mapping[str, str]) -> "Guarantee":
        """Returns the guarantee with headings and texts before its own.

        Args:
          first: of the description, such as the records' bounds.
        """
        return dataclasses.replace(self, description={**first, **self.description})

    def of_run(self, *, seeded: bool, num_steps: int | None = None) -> "Guarantee":
        """Returns the guarantee of a run of all steps that the event counts.

        Args:
          seeded: whether the key was derived from a seed (`dpjax.keys.is_seeded`).
          num_steps: how many steps were taken, where the mechanism runs in steps.
        """
        return dataclasses.replace(self, seeded=seeded, num_steps_run=num_steps)
