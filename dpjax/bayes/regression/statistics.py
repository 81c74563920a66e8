"""Sufficient statistics of linear regression: sums, bounds, sensitivities, and their release."""

import abc
import functools
import math
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_float64,
    as_floats,
    as_numbers,
    check,
    check_choice,
    check_count,
    check_positive,
    check_text,
    check_type,
    is_traced,
)
from dpjax._typing import Numeric, PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency, sensitivity_factor
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.mechanisms._exact_noise import Array, HostFunction, call_on_host, float_dtype
from dpjax.mechanisms.base import Mechanism
from dpjax.sensitivity import (
    SUM_ROUNDING,
    Norm,
    Sensitivity,
    clip_norm_to,
    clip_to,
    of_second_moment,
    of_sum,
    products_in_blocks,
)


class RegressionStatistics(NamedTuple):
    """Sufficient statistics of linear regression: sums over the records.

    The same type holds what there is one of for each statistic: noise scales (one number for all
    entries of a field), sensitivities, mechanisms. yty is ``None`` where it is not released.

    Attributes:
      xtx: the sum of x x^T, of shape (d, d), symmetric.
      xty: the sum of y x, of shape (d,).
      yty: the sum of y^2, of shape ().
    """

    xtx: Any  # an array of JAX or numpy, a number, a `Sensitivity` or a mechanism
    xty: Any
    yty: Any


@dataclass(frozen=True, kw_only=True)
class RegressionBounds:
    """Public clipping bounds on one record of a regression.

    Attributes:
      x_norm_bound: bound on the L2 norm of the features, an intercept's constant included.
      y_bound: bound on the absolute value of the target.

    Raises:
      ValueError: a bound that is not a number between 1e-37 and 1e+37.

    >>> bounds = RegressionBounds(x_norm_bound=1.0, y_bound=2.0)
    >>> x, y = bounds.clip(jnp.array([[3.0, 4.0]]), jnp.array([-9.0]))
    >>> x.round(3).tolist(), y.tolist()
    ([[0.6, 0.8]], [-2.0])
    """

    x_norm_bound: float
    y_bound: float

    def __post_init__(self) -> None:
        check_bound("x_norm_bound", self.x_norm_bound)
        check_bound("y_bound", self.y_bound)

    def clip(self, x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[jax.Array, jax.Array]:
        """Returns clipped features ``(n, d)`` and targets ``(n,)``.

        A row that is not finite becomes zero, a NaN target ``-y_bound``.

        Args:
          x: features ``(n, d)``.
          y: targets ``(n,)``.

        Raises:
          ValueError: not real numbers.
        """
        x, y = as_floats(x, "x"), as_floats(y, "y")
        check_records(x.shape, y.shape)
        return clip_norm_to(x, self.x_norm_bound), clip_to(y, (-self.y_bound, self.y_bound))


def check_bound(name: str, bound: float) -> None:
    """Raises ``ValueError`` unless the fourth powers of a clipping bound are float64 numbers."""
    check_positive(name, bound)
    allowed = "between 1e-37 and 1e+37, so that its fourth power is a float64 number"
    check(is_traced(bound) or 1e-37 <= bound <= 1e37, name, bound, allowed)


def clipped_statistics(
    bounds: RegressionBounds, x: npt.ArrayLike, y: npt.ArrayLike, unit: float = 0.0
) -> RegressionStatistics:
    """Returns the statistics of records clipped to ``bounds``, in float64 on the host.

    For fewer than 2^26 records rounding adds at most `SUM_ROUNDING`, relatively, to the
    sensitivities.

    Args:
      bounds: public.
      x: features ``(..., n, d)``; a row that is not finite becomes zero.
      y: targets ``(..., n)``; NaN becomes ``-y_bound``.
      unit: if above zero, a power of two: clipped records are rounded to its multiples and stay
        within bounds, so that the sums are exact.
    """
    x, y = as_float64(x), as_float64(y)
    check_records(x.shape, y.shape)

    # Rows by their norm, computed without overflow; less the rounding's share of it.
    slack = unit * math.sqrt(x.shape[-1]) / 2
    with np.errstate(all="ignore"):
        size = np.abs(x).max(axis=-1, keepdims=True, initial=0.0)
        directions = x / np.where(size > 0, size, 1.0)
        norms = np.linalg.norm(directions, axis=-1, keepdims=True)
        longest = (bounds.x_norm_bound - slack) / np.where(norms > 0, norms, 1.0)
        clipped = np.where(np.isfinite(size), directions * np.minimum(size, longest), 0.0)

    # Targets by their absolute value.
    low = bounds.y_bound - unit
    target = np.where(np.isnan(y), -low, np.clip(y, -low, low))[..., None]
    if unit:
        clipped, target = np.rint(clipped / unit) * unit, np.rint(target / unit) * unit

    # The sums, of the rows [x, y].
    rows = np.concatenate([clipped, target], axis=-1)
    joint = products_in_blocks(rows, rows)
    return RegressionStatistics(joint[..., :-1, :-1], joint[..., :-1, -1], joint[..., -1, -1])


def check_records(x_shape: tuple[int, ...], y_shape: tuple[int, ...]) -> None:
    """Raises ``ValueError`` unless the shapes are those of features and targets."""
    check(len(x_shape) >= 2, "x", x_shape, "features of shape (n, d)")
    check(y_shape == x_shape[:-1], "y", y_shape, f"targets of shape {x_shape[:-1]}")


def features_and_targets(
    records: tuple[npt.ArrayLike, ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the two arrays of a sum over records as numbers on the host."""
    check(len(records) == 2, "records", f"{len(records)} arrays", "features x and targets y")
    x, y = (np.asarray(as_numbers(part, name)) for part, name in zip(records, "xy", strict=True))
    return x, y


def check_features(x: npt.ArrayLike, num_features: int) -> None:
    """Raises ``ValueError`` unless ``x`` has ``num_features`` columns."""
    check(np.shape(x)[-1] == num_features, "x", np.shape(x), f"of shape (n, {num_features})")


def check_setting(bounds: object, num_features: int, adjacency: str, unit: str) -> None:
    """Raises an error unless the fields that mechanisms of regression share are allowed."""
    check_type("bounds", bounds, RegressionBounds, "RegressionBounds")
    check_count("num_features", num_features)
    check_adjacency(adjacency)
    check_text("unit", unit)


def sufficient_statistics(x: npt.ArrayLike, y: npt.ArrayLike) -> RegressionStatistics:
    """Returns the exact statistics of records, private until a mechanism releases them.

    Summed on the device, in float32 unless x64 is on. The rounding adds to their sensitivity, about
    a thousandth of a record at 10^5 records and a tenth at 10^7. The mechanisms'
    ``release_records`` clips and sums in float64 instead, and accounts for the rounding.

    Args:
      x: features ``(n, d)``; an intercept is a column of ones. n = 0 gives zeros.
      y: targets ``(n,)``.

    Privacy:
      The statistics are private, and not released here.

    Raises:
      ValueError: not real numbers.
      ValueError: features or targets of other shapes.

    >>> sufficient_statistics(jnp.array([[1.0, 2.0]]), jnp.array([3.0])).xty.tolist()
    [3.0, 6.0]
    """
    x, y = as_floats(x, "x"), as_floats(y, "y")
    check(x.ndim == 2, "x", x.shape, "features of shape (n, d)")
    check_records(x.shape, y.shape)
    x, y = (part.astype(accumulator(part)) for part in (x, y))
    dot = functools.partial(jnp.matmul, precision=EXACT)
    return RegressionStatistics(dot(x.T, x), dot(x.T, y), dot(y, y))


def statistics_sensitivities(
    bounds: RegressionBounds, num_features: int, *, norm: Norm, adjacency: Adjacency
) -> RegressionStatistics:
    """Returns the `Sensitivity` of each statistic of records clipped to ``bounds``.

    With R for ``x_norm_bound``, B for ``y_bound`` and d for ``num_features``, that of xtx counts
    the upper triangle once, whose shape it states, and is

    - in L2, R^2 under add/remove and zero-out, and sqrt(2) R^2 under replace-one
      (`of_second_moment`), also with the entries off the diagonal counted twice, as the Frobenius
      norm does; for d = 1 it is R^2 under all;
    - in L1, (d + 1) / 2 R^2 under add/remove: the sum over i <= j of ``|x_i x_j|`` is half of
      ``|x|_1``^2 + ``|x|_2``^2. Under replace-one it is at most sqrt(d (d + 3) / 2) R^2, by Cauchy
      and Schwarz from the Frobenius norm, which is at most sqrt(2) R^2; for d = 1 it is R^2.

    That of xty is R B in L2, sqrt(d) R B in L1, and twice as much under replace-one. That of yty,
    which is not negative, is B^2 whatever the norm and the adjacency.

    All are attained, except the L1 bound of xtx under replace-one for d > 2: a search over pairs of
    records comes within 5 % of it for d from 3 to 24.

    Args:
      bounds: public.
      num_features: d, the intercept counted.
      norm: ``"l1"`` or ``"l2"``.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Raises:
      ValueError: another norm or adjacency, or a ``num_features`` below one.

    >>> bounds = RegressionBounds(x_norm_bound=2.0, y_bound=3.0)
    >>> found = statistics_sensitivities(bounds, 4, norm="l1", adjacency="add_remove")
    >>> found.xtx.value, found.xty.value, found.yty.value
    (10.0, 12.0, 9.0)
    """
    check_type("bounds", bounds, RegressionBounds, "RegressionBounds")
    check_choice("norm", norm, ("l1", "l2"))
    check_count("num_features", num_features)
    check_adjacency(adjacency)

    # Of xtx, whose upper triangle is counted once.
    xtx = of_second_moment(bounds.x_norm_bound, num_features=num_features, adjacency=adjacency)
    if norm == "l1":
        factor = (num_features + 1) / 2
        if adjacency == "replace_one" and num_features > 1:
            factor = math.sqrt(num_features * (num_features + 3) / 2)
        xtx = replace(xtx, value=factor * bounds.x_norm_bound**2, norm=norm)

    # Of xty and yty.
    spread = math.sqrt(num_features) if norm == "l1" else 1.0
    of_xty = sensitivity_factor(adjacency) * spread * bounds.x_norm_bound * bounds.y_bound
    xty = Sensitivity(of_xty, norm, adjacency, shape=(num_features,))
    yty = of_sum((0, bounds.y_bound**2), norm=norm, adjacency=adjacency)
    return RegressionStatistics(xtx, xty, yty)


def describe_clipping(bounds: RegressionBounds, num_features: int) -> str:
    """Returns records and clipping as text for certificates."""
    clipped = f"x to L2 norm {bounds.x_norm_bound:.4g}, |y| to {bounds.y_bound:.4g}"
    return f"{num_features} features and a target each, clipped: {clipped}"


_R = TypeVar("_R")


class StatisticsMechanism(Mechanism, Generic[_R]):
    """Base class of mechanisms that clip and sum records, and add noise to the statistics.

    Attributes:
      bounds: public clipping bounds, which determine the sensitivities.
      num_features: d, with the intercept.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.
    """

    bounds: RegressionBounds
    num_features: int
    adjacency: Adjacency
    unit: str

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
    _scales: ClassVar[tuple[Numeric, ...]] = ()

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
        d, numbers = self.num_features, []
        shapes = [(d, d), (d,), ()][: self._num_statistics]
        for name, sums, shape in zip(statistics._fields, statistics, shapes, strict=False):
            check(sums is not None, f"statistics.{name}", None, "given, as it is released")
            check(
                jnp.shape(sums) == shape, f"statistics.{name}", jnp.shape(sums), f"of shape {shape}"
            )
            numbers.append(as_numbers(sums, f"statistics.{name}"))
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

    def _release(
        self, key: PRNGKey, values: list[np.ndarray | jax.Array], noisy: HostFunction
    ) -> _R:
        d, dtype = self.num_features, float_dtype(values[0])
        shapes = [(d, d), (d,), ()][: self._num_values]
        results = [jax.ShapeDtypeStruct(shape, dtype) for shape in shapes]
        numbers = [as_numbers(value) for value in (*values, *self._scales)]
        return self._as_release([*map(jnp.asarray, call_on_host(noisy, key, numbers, results))])

    def _as_release(self, values: list[jax.Array]) -> _R:
        """The result of a release, made of the noisy values."""
        return cast(_R, RegressionStatistics(*values, *[None] * (3 - len(values))))
