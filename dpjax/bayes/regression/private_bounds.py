"""Private clipping bounds: by the exponential mechanism, or from a noisy histogram of sizes."""

import functools
import math
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_float64,
    as_numbers,
    check,
    check_delta,
    check_positive,
    check_text,
    check_type,
)
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    check_bound,
    check_records,
    features_and_targets,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, as_fraction, call_on_host, derive
from dpjax.mechanisms.additive import Gaussian
from dpjax.mechanisms.base import Composition, Mechanism
from dpjax.mechanisms.record_sum import RecordSum, SumPart, release_sum, unweighted_part
from dpjax.mechanisms.selection import ExponentialMechanism
from dpjax.sensitivity import Sensitivity, of_histogram


@dataclass(frozen=True, kw_only=True)
class PrivateBounds(Mechanism):
    """Selects bounds near a quantile of the records' sizes, among public candidates.

    Two exponential mechanisms of one scale. The utility of a candidate is
    ``-|quantile * above - (1 - quantile) * below|``, with the numbers of records above and below
    it. One record changes it by at most the larger of quantile and 1 - quantile under add/remove,
    and by one under replace-one.

    Attributes:
      x_norm_bounds: candidates for ``x_norm_bound``, increasing.
      y_bounds: candidates for ``y_bound``, increasing.
      quantile: target share of the records within each bound, in (0, 1).
      epsilon: of both choices together, half each.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

    Privacy:
      The bounds are released. Compose with the mechanism on the same records by `Composition`. For
      Gaussian noise and the default split of `PerturbedStatistics` its event does not depend on
      the selected bounds. The utilities are exact fractions for any number of records.

    Raises:
      ValueError: no candidates, candidates that are not increasing or that `RegressionBounds` does
        not allow, or a quantile or epsilon out of range.

    Source: Smith (2011), for the private quantile.

    >>> mechanism = PrivateBounds(
    ...     x_norm_bounds=(1.0, 2.0, 4.0), y_bounds=(1.0, 2.0, 4.0), quantile=0.9, epsilon=1.0,
    ...     adjacency="add_remove"
    ... )
    >>> x, y = jnp.linspace(0, 1.5, 500)[:, None], jnp.linspace(-3, 3, 500)
    >>> mechanism.release(jax.random.key(0), x, y)
    RegressionBounds(x_norm_bound=2.0, y_bound=4.0)
    """

    x_norm_bounds: tuple[float, ...]
    y_bounds: tuple[float, ...]
    quantile: float
    epsilon: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        _check_candidates(self)
        check_positive("epsilon", self.epsilon)

    @property
    def choices(self) -> tuple[ExponentialMechanism, ExponentialMechanism]:
        """The exponential mechanisms of ``x_norm_bound`` and ``y_bound``."""
        largest = max(self.quantile, 1 - self.quantile) if self.adjacency == "add_remove" else 1.0
        of_x, of_y = (
            ExponentialMechanism.from_epsilon(
                Sensitivity(largest, "linf", self.adjacency, shape=(len(candidates),)),
                epsilon=self.epsilon / 2,
                unit=self.unit,
            )
            for candidates in (self.x_norm_bounds, self.y_bounds)
        )
        return of_x, of_y

    def release(self, key: PRNGKey, x: npt.ArrayLike, y: npt.ArrayLike) -> RegressionBounds:
        """Returns the chosen bounds, on the host.

        Args:
          key: JAX key.
          x: features ``(n, d)``.
          y: targets ``(n,)``.
        """
        at_x, at_y = self.release_positions(key, x, y)
        return RegressionBounds(
            x_norm_bound=self.x_norm_bounds[int(at_x)], y_bound=self.y_bounds[int(at_y)]
        )

    def release_positions(
        self, key: PRNGKey, x: npt.ArrayLike, y: npt.ArrayLike
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the positions of the chosen candidates; works under jit and vmap.

        NaN counts as above every candidate.

        Args:
          key: a JAX key; a secret.
          x: features ``(n, d)``.
          y: targets ``(n,)``.

        Returns:
          Positions in ``x_norm_bounds`` and in ``y_bounds``, of shape ``()``.

        Raises:
          ValueError: not real numbers, or of other shapes.
        """
        numbers = [as_numbers(x, "x"), as_numbers(y, "y")]
        check_records(*(np.shape(part) for part in numbers))
        result = [jax.ShapeDtypeStruct((), np.int32)] * 2
        at_x, at_y = call_on_host(self._choose, key, numbers, result)
        return jnp.asarray(at_x), jnp.asarray(at_y)

    def _choose(self, key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        norms, sizes = _sizes(*arrays)
        (x_key, y_key), (of_x, of_y) = derive(key_bits, 2), self.choices
        return [
            of_x.select(x_key, self._utilities(norms, self.x_norm_bounds)),
            of_y.select(y_key, self._utilities(sizes, self.y_bounds)),
        ]

    def _utilities(self, sizes: Array, candidates: tuple[float, ...]) -> Array:
        """Exact fractions: quantile * above - (1 - quantile) * below is quantile * n - below."""
        below = np.sum(sizes[..., None] <= np.array(candidates), axis=-2)
        return -np.abs(as_fraction(self.quantile) * sizes.shape[-1] - below.astype(object))

    @property
    def composition(self) -> Composition:
        """Composition of the two selections, on the same records."""
        return Composition(self.choices)

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return replace(self, epsilon=self.epsilon / factor)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self.composition.guarantee.with_description({"bounds": _aim(self)})


@dataclass(frozen=True, kw_only=True)
class HistogramBounds(RecordSum):
    """Selects bounds near a quantile of the records' sizes from two noisy histograms.

    The records are counted between the candidates, by |x| and by |y|. The bound is the smallest
    candidate with at least the quantile's noisy share of the records below it, or the largest one.
    Unlike the utilities of `PrivateBounds`, the counts are sums over the records, so several
    holders can add them up.

    Attributes:
      x_norm_bounds: candidates for ``x_norm_bound``, increasing.
      y_bounds: candidates for ``y_bound``, increasing.
      quantile: target share of the records within each bound, in (0, 1).
      scale: of the noise on every count, its standard deviation.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

    Privacy:
      The counts may be released; the bounds are computed from them. Compose with the mechanism on
      the same records by `Composition`.

    Raises:
      ValueError: candidates or a quantile as in `PrivateBounds`, or a scale out of range.

    >>> mechanism = HistogramBounds(
    ...     x_norm_bounds=(1.0, 2.0, 4.0), y_bounds=(1.0, 2.0, 4.0), quantile=0.9, scale=3.0,
    ...     adjacency="add_remove"
    ... )
    >>> x, y = jnp.linspace(0, 1.5, 500)[:, None], jnp.linspace(-3, 3, 500)
    >>> mechanism.release(jax.random.key(0), x, y)
    RegressionBounds(x_norm_bound=2.0, y_bound=4.0)
    """

    x_norm_bounds: tuple[float, ...]
    y_bounds: tuple[float, ...]
    quantile: float
    scale: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        _check_candidates(self)
        check_positive("scale", self.scale)

    @property
    def sensitivity(self) -> Sensitivity:
        """That of two histograms, of which a record is in one bin each.

        A histogram has a bin below each candidate, and one above the last.
        """
        size = len(self.x_norm_bounds) + len(self.y_bounds) + 2
        one = of_histogram(size, norm="l2", adjacency=self.adjacency)
        return replace(one, value=math.sqrt(2) * one.value)

    @property
    def mechanism(self) -> Gaussian:
        """The Gaussian mechanism that releases the counts."""
        return Gaussian(self.sensitivity, self.scale, self.unit)

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        return (unweighted_part(self.mechanism),)

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return replace(self, scale=self.scale * factor)

    def release(self, key: PRNGKey, x: npt.ArrayLike, y: npt.ArrayLike) -> RegressionBounds:
        """Returns the chosen bounds, released by one trusted aggregator.

        Args:
          key: a JAX key; a secret.
          x: features ``(n, d)``.
          y: targets ``(n,)``.

        Raises:
          ValueError: not real numbers, or of other shapes.
        """
        return release_sum(self, self.mechanism, key, [x, y])

    def sum_records(self, *records: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """Returns both histograms of sizes; NaN counts as above every candidate.

        Args:
          *records: features ``(n, d)`` and targets ``(n,)``.

        Raises:
          ValueError: not real numbers, or of other shapes.
        """
        x, y = features_and_targets(records)
        check_records(x.shape, y.shape)
        counts = [
            np.bincount(np.searchsorted(candidates, sizes), minlength=len(candidates) + 1)
            for candidates, sizes in zip(self._candidates, _sizes(x, y), strict=True)
        ]
        return np.concatenate(counts)

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> RegressionBounds:
        """Returns the bounds chosen by noisy histograms.

        Args:
          noisy: ``(size,)``.
        """
        chosen = []
        parts = np.split(noisy, [len(self.x_norm_bounds) + 1])
        for candidates, counts in zip(self._candidates, parts, strict=True):
            below = np.cumsum(counts)
            enough = np.flatnonzero(below[:-1] >= self.quantile * below[-1])
            chosen.append(candidates[enough[0] if enough.size else -1])
        return RegressionBounds(x_norm_bound=chosen[0], y_bound=chosen[1])

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self.mechanism.guarantee.with_description({"bounds": _aim(self)})

    @property
    def _candidates(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.x_norm_bounds, self.y_bounds


def _check_candidates(bounds: PrivateBounds | HistogramBounds) -> None:
    for name in ("x_norm_bounds", "y_bounds"):
        candidates = getattr(bounds, name)
        check_type(name, candidates, tuple, "a tuple of numbers")
        check(len(candidates) > 0, name, candidates, "at least one candidate")
        for candidate in candidates:
            check_bound(name, candidate)
        increasing = all(low < high for low, high in pairwise(candidates))
        check(increasing, name, candidates, "increasing")
    check_delta(bounds.quantile, "quantile")
    check_adjacency(bounds.adjacency)
    check_text("unit", bounds.unit)


def _sizes(x: np.ndarray, y: np.ndarray) -> tuple[Array, Array]:
    """The norms of the features and the absolute values of the targets."""
    with np.errstate(over="ignore"):
        norms = np.linalg.norm(as_float64(x), axis=-1)
    return norms, np.abs(as_float64(y))


def _aim(bounds: PrivateBounds | HistogramBounds) -> str:
    candidates = f"{len(bounds.x_norm_bounds)} candidates for |x|, {len(bounds.y_bounds)} for |y|"
    return f"the {100 * bounds.quantile:.4g} % quantiles of |x| and |y|, {candidates}"
