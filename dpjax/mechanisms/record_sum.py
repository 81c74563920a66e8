"""Mechanisms that release a sum over records, each entry with Gaussian noise of its own scale."""

import abc
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.gaussian import Gaussian


class SumPart(NamedTuple):
    """Consecutive entries of a released sum that one Gaussian mechanism covers.

    Attributes:
      mechanism: its sensitivity is that of these entries, each times its weight.
      weights: public, at least one, ``(size,)``: the noise on an entry has the mechanism's scale
        over its weight.
    """

    mechanism: Gaussian
    weights: npt.NDArray[np.float64]


class RecordSum(Mechanism):
    """Base class of mechanisms that release a noisy sum over records.

    The sum is a vector, and every record adds to it without regard to the others. So it may be
    computed over parts of the records, as `dpjax.federated` does where several holders keep them.
    """

    @property
    @abc.abstractmethod
    def sum_parts(self) -> tuple[SumPart, ...]:
        """The entries of the sum in their order, with the noise on them.

        Raises:
          ValueError: the noise is not Gaussian.
        """

    @abc.abstractmethod
    def sum_records(self, *records: npt.ArrayLike) -> npt.NDArray[Any]:
        """Returns the sum ``(size,)`` of clipped records, float64 or integers: private.

        Whatever the records are, its distance between neighbours is within the sensitivities times
        1 + `dpjax.sensitivity.sums.SUM_ROUNDING`.

        Args:
          *records: arrays with a leading axis of records, which may be empty.
        """

    @abc.abstractmethod
    def from_sum(self, noisy: npt.NDArray[np.float64]) -> Any:
        """Returns the result of a release, from the noisy sum.

        Args:
          noisy: ``(size,)``.
        """


def gaussian_part(mechanism: Mechanism, weights: npt.ArrayLike) -> SumPart:
    """Returns one part of a sum.

    Args:
      mechanism: a `Gaussian`.
      weights: one for each entry.

    Raises:
      ValueError: a mechanism of another kind.
    """
    if not isinstance(mechanism, Gaussian):
        raise ValueError(
            "the noise of a sum that several holders add up must be Gaussian: sums of other noise"
            f" have another distribution than each of its shares, got {mechanism!r}"
        )
    return SumPart(mechanism, np.asarray(weights, np.float64))
