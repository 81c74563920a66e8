"""What every private computation states about itself, once."""

import abc
from collections.abc import Mapping

from dp_accounting import DpEvent

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.certificate import Certificate, certify


class Mechanism(abc.ABC):
    """One description of a private computation, from which everything else is derived.

    A mechanism is a frozen dataclass. Whatever runs it (a sampler, an optax transformation, a
    one-shot release) and whatever accounts for it (its event) is computed from its fields, so the
    two cannot disagree.

    Attributes:
      adjacency: ``"add_remove"`` or ``"replace_one"``.
      unit: the unit of privacy in words, e.g. ``"one image"``.
    """

    adjacency: Adjacency
    unit: str

    @property
    @abc.abstractmethod
    def num_releases(self) -> int:
        """How many noisy values the mechanism publishes."""

    @property
    @abc.abstractmethod
    def event(self) -> DpEvent:
        """What is accounted for. Noise multipliers are relative to *one clip bound*; the factor
        that the adjacency adds is applied where events meet accountants.
        """

    @abc.abstractmethod
    def scale_noise(self, factor: float) -> "Mechanism":
        """Returns the same mechanism with every noise standard deviation times ``factor``."""

    @abc.abstractmethod
    def describe(self) -> Mapping[str, str]:
        """The mechanism in words, for certificates: a heading for each sentence."""

    def certificate(self, delta: float) -> Certificate:
        """Returns what the mechanism guarantees at ``delta``, by every accountant that takes it.

        Args:
          delta: in (0, 1); customarily well below one over the number of records.
        """
        return certify(self, delta)
