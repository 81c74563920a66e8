"""Base class of mechanisms that are compositions of other mechanisms."""

import abc

from dp_accounting import DpEvent

from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.composition import Composition


class ComposedMechanism(Mechanism):
    """Mechanism whose event is that of a composition, on the same records."""

    @property
    @abc.abstractmethod
    def composition(self) -> Composition:
        """The mechanisms that are run."""

    @property
    def has_exact_noise(self) -> bool:
        """Whether the noise of all parts is sampled exactly."""
        return self.composition.has_exact_noise

    @property
    def num_releases(self) -> int:
        """The number of releases of all parts."""
        return self.composition.num_releases

    @property
    def event(self) -> DpEvent:
        """The composition of the parts' events."""
        return self.composition.event
