"""Base class of mechanisms that release the sufficient statistics of a linear regression."""

import abc
from typing import Any, ClassVar, Generic, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_numbers, check, check_type
from dpjax._typing import PRNGKey
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    check_features,
    check_records,
    check_statistics,
    clipped_statistics,
)
from dpjax.mechanisms._exact_noise import Array, HostFunction, call_on_host, float_dtype
from dpjax.mechanisms.base import Mechanism
from dpjax.sensitivity import SUM_ROUNDING

_R = TypeVar("_R")


class StatisticsMechanism(Mechanism, Generic[_R]):
    """Base class of mechanisms that clip and sum records, and add noise to the statistics.

    Attributes:
      bounds: public clipping bounds, which determine the sensitivities.
      num_features: d, with the intercept.
    """

    bounds: RegressionBounds
    num_features: int

    @abc.abstractmethod
    def add_noise(
        self, key_bits: npt.NDArray[np.uint32], arrays: list[Array], *, rounding: float = 0.0
    ) -> list[Array]:
        """Returns the noisy values: what ``release`` computes on the host.

        Args:
          key_bits: a key for each release, uint32 ``(*batch, 2)``.
          arrays: xtx, xty and yty, those that are used, then the noise scales that may be traced.
          rounding: relative increase of the sensitivities by rounding of the sums.
        """

    # How many of xtx, xty and yty are used, and how many noisy values are released.
    _num_statistics: ClassVar[int] = 3
    _num_values: ClassVar[int] = 3
    # What clipped records are rounded to multiples of; zero for no rounding.
    _record_unit: ClassVar[float] = 0.0
    # Noise scales, where they may be traced.
    _scales: ClassVar[tuple[Any, ...]] = ()

    def release(self, key: PRNGKey, statistics: RegressionStatistics) -> _R:
        """Returns the noisy statistics; a pure function that works under jit and vmap.

        Args:
          key: a JAX key; a secret. Reusing it on other data reveals their difference.
          statistics: of records clipped to ``bounds``, as of `sufficient_statistics`.

        Privacy:
          The result is released. xtx in it is symmetric, and may be indefinite where the noise can
          be negative: see `repair`.

        Raises:
          ValueError: statistics of other shapes, a missing one, or one that is not of real numbers
            or masked.
        """
        check_type("statistics", statistics, RegressionStatistics, "RegressionStatistics")
        given = statistics[: self._num_statistics]
        check_statistics(
            RegressionStatistics(*given, *[None] * (3 - len(given))), self.num_features
        )
        numbers = []
        for name, part in zip(statistics._fields, given, strict=False):
            check(part is not None, f"statistics.{name}", None, "given, as it is released")
            numbers.append(as_numbers(part, f"statistics.{name}"))
        return self._release(key, numbers, self.add_noise)

    def release_records(self, key: PRNGKey, x: npt.ArrayLike, y: npt.ArrayLike) -> _R:
        """Returns the noisy statistics of records, which are clipped and summed here, in float64.

        Args:
          key: a JAX key; a secret.
          x: features ``(n, num_features)``, of any size.
          y: targets ``(n,)``, of any size.

        Privacy:
          The result is released, as that of ``release``.

        Raises:
          ValueError: features or targets of other shapes, not of real numbers, or masked.
        """
        x, y = as_numbers(x, "x"), as_numbers(y, "y")
        check_records(np.shape(x), np.shape(y))
        check_features(x, self.num_features)

        def noisy(key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
            x, y, *scales = arrays
            exact = clipped_statistics(self.bounds, x, y, self._record_unit)
            arrays = [*exact[: self._num_statistics], *scales]
            return self.add_noise(key_bits, arrays, rounding=SUM_ROUNDING)

        return self._release(key, [x, y], noisy)

    def _release(self, key: PRNGKey, values: list[Any], noisy: HostFunction) -> _R:
        d, dtype = self.num_features, float_dtype(values[0])
        shapes = [(d, d), (d,), ()][: self._num_values]
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        numbers = [as_numbers(value) for value in (*values, *self._scales)]
        return self._as_release([*map(jnp.asarray, call_on_host(noisy, key, numbers, results))])

    def _as_release(self, values: list[jax.Array]) -> Any:
        """The result of a release, made of the noisy values."""
        return RegressionStatistics(*values, *[None] * (3 - len(values)))
