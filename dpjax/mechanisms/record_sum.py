"""Mechanisms that release a sum over records, each entry with Gaussian noise of its own scale."""

import abc
import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Self

import jax
import numpy as np
import numpy.typing as npt

from dpjax._checks import check, check_positive, check_text
from dpjax._typing import Bounds, PRNGKey, PyTree
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import call_on_host
from dpjax.mechanisms.additive import AdditiveNoise, Gaussian
from dpjax.mechanisms.base import Mechanism
from dpjax.sensitivity import (
    SUM_ROUNDING,
    Sensitivity,
    check_shapes,
    checked_bounds,
    clip_to,
    of_sum,
    sum_in_blocks,
)


@dataclass(frozen=True, eq=False)
class SumPart:
    """Consecutive entries of a released sum that one Gaussian mechanism covers.

    Attributes:
      mechanism: its sensitivity is that of these entries, each times its weight.
      weights: public, at least one, ``(size,)``: the noise on an entry has the mechanism's scale
        over its weight.

    Raises:
      ValueError: a mechanism of another kind, or another number of weights than its sensitivity
        states entries.
    """

    mechanism: Gaussian
    weights: npt.NDArray[np.float64]

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, Gaussian):
            raise ValueError(
                "the noise of a sum that several holders add up must be Gaussian: sums of other"
                " noise have another distribution than each of its shares, got"
                f" {self.mechanism!r}"
            )
        stated = self.mechanism.sensitivity
        size = sum(map(math.prod, stated.shapes))
        allowed = f"({size},), for the entries of shape {stated.shape} that the sensitivity states"
        check(self.weights.shape == (size,), "weights' shape", self.weights.shape, allowed)


def unweighted_part(mechanism: AdditiveNoise) -> SumPart:
    """Returns all entries of a statistic, with noise of one scale."""
    size = sum(map(math.prod, mechanism.sensitivity.shapes))
    return SumPart(mechanism, np.ones(size))  # type: ignore[arg-type]  # refused where not Gaussian


class RecordSum(Mechanism):
    """Base class of mechanisms that release a noisy sum over records.

    The sum is a vector, and every record adds to it without regard to the others. So it may be
    computed over parts of the records, as `dpjax.federated` does where several holders keep them.
    """

    @property
    def num_rounds(self) -> int:
        """How many sums the event covers: one, or the number of steps."""
        return 1

    @property
    def round_weights(self) -> npt.NDArray[np.float64] | None:
        """Weights of earlier rounds in what a round sends, where the event covers all as one.

        A lower triangular matrix, or the first column of a Toeplitz one; ``None`` where each round
        is a release of its own.
        """
        return None

    @property
    @abc.abstractmethod
    def sum_parts(self) -> tuple[SumPart, ...]:
        """The entries of the sum in their order, with the noise on them.

        Raises:
          ValueError: the noise is not Gaussian.
        """

    @abc.abstractmethod
    def sum_records(self, *records: npt.ArrayLike) -> np.ndarray:
        """Returns the sum ``(size,)`` of clipped records, float64 or integers: private.

        Whatever the records are, its distance between neighbours is within the sensitivities times
        1 + `dpjax.sensitivity.SUM_ROUNDING`.

        Args:
          *records: arrays with a leading axis of records, which may be empty.
        """

    @abc.abstractmethod
    def from_sum(self, noisy: npt.NDArray[np.float64]) -> PyTree:
        """Returns the result of a release, from the noisy sum.

        Args:
          noisy: ``(size,)``.
        """


def release_sum(
    sums: RecordSum, mechanism: Gaussian, key: PRNGKey, records: Sequence[npt.ArrayLike]
) -> PyTree:
    """Returns the result of a release by one trusted aggregator, with noise of one scale.

    Raises:
      ValueError: a sum of another shape than the sensitivity of ``mechanism`` states.
    """
    exact = np.asarray(sums.sum_records(*records), np.float64)
    check_shapes("the sum of the records", [exact.shape], mechanism.sensitivity)
    noisy = functools.partial(mechanism.add_noise, rounding=SUM_ROUNDING)
    result = [jax.ShapeDtypeStruct(exact.shape, np.float64)]
    return sums.from_sum(call_on_host(noisy, key, [exact], result)[0])


@dataclass(frozen=True)
class ClippedSum(RecordSum):
    """The sum of vectors that are clipped to a box, with Gaussian noise.

    A mean is the sum over a public number of records, or over a constant.

    Attributes:
      bounds: ``(low, high)``, public: tuples of one number for each entry, or one number each.
      scale: of the noise, its standard deviation.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

    Privacy:
      The noisy sum is released. The number of records is not.

    Raises:
      ValueError: bounds as in `dpjax.sensitivity.of_sum`, or a scale out of range.

    >>> ages = ClippedSum((0.0, 100.0), scale=50.0, adjacency="add_remove")
    >>> ages.sum_records(np.array([[30.0], [170.0], [np.nan]])).tolist()
    [130.0]
    >>> ages.release(jax.random.key(0), np.full((1000, 1), 40.0)).shape
    (1,)
    """

    bounds: Bounds
    _: KW_ONLY
    scale: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        check_text("unit", self.unit)
        low, _ = checked_bounds(self.bounds)
        check(low.ndim <= 1, "bounds", self.bounds, "numbers, or vectors of one for each entry")
        self.sensitivity  # noqa: B018 - raises where it is zero

    @classmethod
    def from_epsilon(
        cls,
        bounds: Bounds,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        unit: str = "one record",
    ) -> Self:
        """Returns the mechanism with the least noise that is (epsilon, delta)-private.

        Args:
          bounds: as of the class.
          epsilon: any finite number above zero.
          delta: in (0, 1).
          adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
          unit: the unit of privacy, in words.

        Raises:
          ValueError: a number out of range.
        """
        moves = of_sum(bounds, norm="l2", adjacency=adjacency)
        scale = Gaussian.from_epsilon(moves, epsilon=epsilon, delta=delta).scale
        return cls(bounds, scale=scale, adjacency=adjacency, unit=unit)

    @property
    def sensitivity(self) -> Sensitivity:
        """That of the sum of records in the box, also for records of one entry a vector."""
        low, high = map(np.atleast_1d, checked_bounds(self.bounds))
        return of_sum((low, high), norm="l2", adjacency=self.adjacency)

    @property
    def mechanism(self) -> Gaussian:
        """The Gaussian mechanism that releases the sum."""
        return Gaussian(self.sensitivity, self.scale, self.unit)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self.mechanism.guarantee

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        return (unweighted_part(self.mechanism),)

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    def release(self, key: PRNGKey, records: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the noisy sum ``(size,)``, released by one trusted aggregator.

        Args:
          key: a JAX key; a secret.
          records: ``(n, size)``.

        Raises:
          ValueError: records of another shape.
        """
        return release_sum(self, self.mechanism, key, [records])

    def sum_records(self, *records: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Returns the sum ``(size,)`` of clipped records; NaN counts as the lower bound.

        Args:
          *records: one array ``(n, size)``.

        Raises:
          ValueError: records of another shape.
        """
        (values,) = records
        shape, (size,) = np.shape(values), self.sensitivity.shape
        check(len(shape) == 2 and shape[1] == size, "records", shape, f"of shape (n, {size})")
        clipped = clip_to(values, checked_bounds(self.bounds))
        return sum_in_blocks(np.asarray(clipped, np.float64))

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns the noisy sum unchanged."""
        return noisy
