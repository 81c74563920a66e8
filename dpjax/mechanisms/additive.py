"""Additive noise on one statistic: a tree of arrays, symmetric matrices, or integers."""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpjax._checks import (
    as_numbers,
    check,
    check_arrays,
    check_delta,
    check_non_negative,
    check_normal,
    check_positive,
    check_text,
    is_traced,
)
from dpjax._typing import ArrayTree, PRNGKey, PyTree
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import _exact_noise
from dpjax.mechanisms._exact_noise import (
    Array,
    Integers,
    RandomWords,
    as_fraction,
    as_integers,
    call_on_host,
    derive,
    fit_integers,
    float_dtype,
    from_units,
    grid_for,
    to_units,
)
from dpjax.mechanisms.base import (
    Interval,
    Mechanism,
    format_pure_dp,
    format_sensitivity,
    one_release,
)
from dpjax.sensitivity import Norm, Sensitivity, check_sensitivity, check_shapes

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Sampler = Callable[[RandomWords, Integers, Integers], Integers]


@dataclass(frozen=True)
class AdditiveNoise(Mechanism):
    """Base class of independent noise of one distribution on every entry of a statistic.

    Noise on real numbers is drawn on a public grid, noise on integers on the integers, both with
    integer arithmetic. So the guarantee holds for the floating-point output and for every input:
    see `dpjax.mechanisms._exact_noise` for the proof. The noise is computed on the host, under jit
    and vmap through a callback. NaN and infinite entries are released as if they were zero.

    Attributes:
      sensitivity: of the statistic, in the mechanism's own norm. Its adjacency is the mechanism's,
        and nothing of another shape than it states is released.
      scale: of the noise, in the units of the statistic.
      unit: the unit of privacy, for example ``"one record"``.

    Raises:
      TypeError: ``sensitivity`` is not a `Sensitivity`.
      ValueError: it is stated in another norm, or ``scale`` is not a finite number above zero.
    """

    sensitivity: Sensitivity
    scale: float
    unit: str = "one record"
    norm: ClassVar[Norm]
    sampler: ClassVar[Sampler]
    # Whether statistic and noise are integers.
    integer_valued: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_sensitivity(self.sensitivity, self.norm)
        check_normal("scale", self.scale)
        check_text("unit", self.unit)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the sensitivity."""
        return self.sensitivity.adjacency

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    @property
    @abc.abstractmethod
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry (drawn up to 1e-9 larger, relatively)."""

    @abc.abstractmethod
    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``.

        Args:
          level: in (0, 1).

        Raises:
          ValueError: ``level`` is out of range.
        """

    def confidence_interval(self, released: ArrayTree, level: float) -> Interval:
        """Returns confidence intervals for the statistic without noise, entry by entry.

        Post-processing, at no privacy cost. Sampling error of the statistic is not included.

        Args:
          released: what ``release`` returned.
          level: the probability, in (0, 1), with which each interval covers; not all together.

        Returns:
          Both ends, shaped like ``released``.

        Raises:
          ValueError: ``level`` is out of range.
        """
        check_arrays("released", released)
        for leaf in jax.tree.leaves(released):
            as_numbers(leaf, "released")
        width = self.half_width(level)
        low = jax.tree.map(lambda leaf: leaf - width, released)
        return Interval(low, jax.tree.map(lambda leaf: leaf + width, released))

    def release(self, key: PRNGKey, value: ArrayTree) -> PyTree:
        """Returns ``value`` plus independent noise on every entry; works under jit and vmap.

        Args:
          key: a JAX key, of whose bits all noise is made. The same key gives the same noise: to use
            it again on other data reveals both values. It is a secret.
          value: a tree of real numbers or arrays, for discrete noise of integers, at most as
            sensitive as stated, all of them together, and of the shapes that the sensitivity
            states. Outside jit Python integers of any size, int64 and float64 are taken exactly.

        Returns:
          The same tree. Float dtypes are kept; integers become numpy's float64, JAX's its default.
          Discrete noise gives int64 arrays; of Python integers, with dtype object, where int64 does
          not hold the noisy number; under jit JAX's default integers, the nearest they hold.

        Raises:
          ValueError: an array that is not of real numbers (complex, strings, objects), or for
            discrete noise of integers, that is masked, or of another shape than the sensitivity
            states.
        """
        # The numbers, of the shapes that the sensitivity states.
        leaves, treedef = jax.tree.flatten(value)
        check(bool(leaves), "value", value, "a tree with at least one array")
        as_checked = as_integers if self.integer_valued else as_numbers
        numbers: list[Any] = [as_checked(leaf) for leaf in leaves]
        check_shapes("value", [np.shape(number) for number in numbers], self.sensitivity)

        # Exact noise on the host; a traced scale is one of its arguments.
        results = [
            jax.ShapeDtypeStruct(
                np.shape(number), np.int64 if self.integer_valued else float_dtype(number)
            )
            for number in numbers
        ]
        scales = [self.scale] if is_traced(self.scale) else []

        def noisy(key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
            scale = arrays.pop() if scales else None
            return self.add_noise(key_bits, arrays, scale=scale)

        released = call_on_host(noisy, key, numbers + scales, results)
        if not self.integer_valued:  # JAX may have no int64
            released = [
                jnp.asarray(array) if isinstance(leaf, jax.Array) else array
                for array, leaf in zip(released, leaves, strict=True)
            ]
        return jax.tree.unflatten(treedef, released)

    def release_symmetric(self, key: PRNGKey, value: ArrayTree) -> PyTree:
        """Returns symmetric matrices plus symmetric noise; works under jit and vmap.

        The noise of the upper triangle, diagonal included, is drawn once and mirrored. So the
        sensitivity counts each of these entries once: it is a norm over the upper triangle, not
        over the whole matrix, and states the shape of the triangle.

        Args:
          key: as for ``release``.
          value: a tree of arrays ``(..., d, d)``. Only the upper triangle is read, of shape
            ``(..., d (d + 1) / 2)``.

        Returns:
          The same tree of symmetric matrices, with the dtypes of ``release``.

        Raises:
          ValueError: the matrices are not square, or as for ``release``.
        """
        triangles = jax.tree.map(upper_triangle, value)
        shapes = [np.shape(triangle) for triangle in jax.tree.leaves(triangles)]
        check_shapes("the upper triangle of value", shapes, self.sensitivity)
        return jax.tree.map(mirror, self.release(key, triangles))

    def add_noise(
        self,
        key_bits: npt.NDArray[np.uint32],
        arrays: list[Array],
        *,
        scale: npt.ArrayLike | Fraction | None = None,
        weights: Array | None = None,
        rounding: float = 0.0,
    ) -> list[Array]:
        """Returns ``arrays`` plus noise: what ``release`` computes on the host.

        The caller has checked that the shapes are those of the statistic, or of several statistics
        whose releases it accounts for.

        Args:
          key_bits: a key for each release, uint32 ``(*batch, 2)``.
          arrays: ``(*batch, ...)`` each, float64 or integers.
          scale: one number, the mechanism's own by default.
          weights: public, of at least one, for the entries of every array: the sensitivity is that
            of the value times the weights, and an entry's noise has scale ``scale / weight``.
          rounding: by how much more than stated the value moves, over the sensitivity; integers
            are not rounded.

        Returns:
          Arrays of the shapes of ``arrays``, float64 or for discrete noise integers.

        Raises:
          ValueError: ``scale`` is not one finite number above zero.
        """
        given = self.scale if scale is None else scale
        scales = [given] if isinstance(given, Fraction) else np.unique(np.asarray(given)).tolist()
        check(len(scales) == 1, "scale", scales, "one number for the whole batch")
        check_positive("scale", scales[0])
        sizes = [math.prod(array.shape[key_bits.ndim - 1 :]) for array in arrays]
        all_weights = np.ones(1) if weights is None else weights

        # The scale of each entry's noise in units of the grid, that of the integers or one to which
        # rounding every entry parts neighbours by at most so many units more.
        if self.integer_valued:
            check(rounding == 0, "rounding", rounding, "zero for integers")
            exponent = 0
            unit_scales = [as_fraction(scales[0]) / as_fraction(w) for w in all_weights.ravel()]
        else:
            entries = max(sum(sizes), 1)
            entries = entries if self.norm == "l1" else np.sqrt(entries)
            extra_units = int(np.ceil(float(np.max(all_weights)) * entries) + 1)
            grid = grid_for(scales[0], self.sensitivity.value, extra_units, rounding)
            exponent = grid.exponent
            unit_scales = [Fraction(grid.noise_scale(weight)) for weight in all_weights.ravel()]
        numerators = np.array([each.numerator for each in unit_scales], object)
        denominators = np.array([each.denominator for each in unit_scales], object)

        # Each array in units of the grid, plus integer noise.
        noisy = []
        for key, array, size in zip(derive(key_bits, len(arrays)), arrays, sizes, strict=True):
            lanes = RandomWords(key, size)
            per_lane = fit_integers(
                np.resize(numerators, lanes.size), np.resize(denominators, lanes.size)
            )
            total = to_units(array.ravel(), exponent) + type(self).sampler(lanes, *per_lane)
            total = total if self.integer_valued else from_units(total, exponent)
            noisy.append(total.reshape(array.shape))
        return noisy


def upper_triangle(matrix: Any) -> Any:
    """Returns the upper triangle of matrices ``(..., d, d)``, row by row, ``(..., d (d + 1) / 2)``.

    Raises:
      ValueError: the matrices are not square.
    """
    shape = np.shape(matrix)
    square = len(shape) >= 2 and shape[-1] == shape[-2]
    check(square, "value", shape, "square matrices, of shape (..., d, d)")
    matrix = matrix if isinstance(matrix, jax.Array) else np.asarray(matrix)
    return matrix[(..., *np.triu_indices(shape[-1]))]


def mirror(triangle: Any) -> Any:
    """Returns the symmetric matrices ``(..., d, d)`` from `upper_triangle`."""
    dim = (int(np.sqrt(8 * triangle.shape[-1] + 1)) - 1) // 2
    place = np.zeros((dim, dim), np.int32)
    place[np.triu_indices(dim)] = np.arange(triangle.shape[-1])
    return triangle[..., np.maximum(place, place.T)]


@dataclass(frozen=True)
class Gaussian(AdditiveNoise):
    """A statistic plus Gaussian noise, for L2 sensitivity.

    Attributes:
      sensitivity: of the statistic, in L2.
      scale: the noise's standard deviation, in the units of the statistic.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency. It is Gaussian
      differentially private with ``mu``, the sensitivity over the scale.
    Source: Balle and Wang 2018, Theorem 8; it holds at every epsilon, unlike the classical rule.

    >>> from dpjax import sensitivity
    >>> moments = sensitivity.of_second_moment(1.0, num_features=3, adjacency="add_remove")
    >>> mechanism = Gaussian.from_epsilon(moments, epsilon=1.0, delta=1e-5)
    >>> round(mechanism.scale, 2), round(mechanism.certificate(1e-5).epsilon, 2)
    (3.73, 1.0)
    """

    norm: ClassVar[Norm] = "l2"
    sampler: ClassVar[Sampler] = staticmethod(_exact_noise.discrete_gaussian)

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, delta: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is (epsilon, delta)-private.

        Its certificate has at most this epsilon, unless that is so small or large that the noise is
        beyond 2^16 or below 0.01 times the sensitivity, where accounting is less exact.

        Source: Balle and Wang 2018, Algorithm 1.

        Args:
          sensitivity: of the statistic, in L2.
          epsilon: any finite number above zero.
          delta: in (0, 1).
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: a number out of range, or a sensitivity in another norm.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        check_sensitivity(sensitivity, cls.norm)
        from dpjax.accounting.accountants import CLOSED_FORM_MARGIN

        # So that the epsilon of the certificate, which rounds delta, is at most this one.
        mu = _largest_mu(epsilon, delta * (1 - 2 * CLOSED_FORM_MARGIN))
        return cls(sensitivity, sensitivity.value / mu, unit)

    @property
    def mu(self) -> float:
        """Parameter mu of Gaussian DP: the sensitivity over the standard deviation."""
        return self.sensitivity.value / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dp_accounting import GaussianDpEvent

        return one_release(
            GaussianDpEvent(self.scale / self.sensitivity.clip_bound),
            self.sensitivity,
            self.unit,
            statistic=f"one release, of {format_sensitivity(self.sensitivity)}",
            noise=f"Gaussian of standard deviation {self.scale:.4g} on every entry",
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry."""
        return self.scale

    def delta(self, epsilon: float) -> float:
        """Returns the exact delta at ``epsilon >= 0``, in closed form (Balle and Wang 2018)."""
        check_non_negative("epsilon", epsilon)
        from dpjax.accounting import gdp

        return gdp.delta(self.mu, epsilon)

    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``."""
        check_delta(level, "level")
        return -self.scale * float(ndtri((1 - level) / 2))


@dataclass(frozen=True)
class DiscreteGaussian(AdditiveNoise):
    """Integers plus discrete Gaussian noise, sampled exactly, for L2 sensitivity.

    The noise on each entry is k with a probability in proportion to exp(-k^2 / (2 scale^2)).

    Attributes:
      sensitivity: of the statistic, in L2.
      scale: of the noise; a float or a `Fraction`. The standard deviation is at most this.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency. The certificate's
      epsilon is that of the exact loss, for the worst integer vector within the sensitivity and any
      number of entries, where the scale is below ten and the squared sensitivity at most 30, else
      that of a Gaussian release that is hardly less private
      (`dpjax.accounting.kinds.discrete_gaussian`). It is for the numbers drawn, without rounding
      error. The release is also rho-zero-concentrated, with rho half the square of the sensitivity
      over the scale.

    Source: Canonne, Kamath & Steinke 2020, Theorem 14 (concentration); Karney 2016, Algorithm D
    (sampler).

    >>> from dpjax import sensitivity
    >>> bins = sensitivity.of_histogram(2, norm="l2", adjacency="add_remove")
    >>> mechanism = DiscreteGaussian(bins, scale=2.0)
    >>> import jax, numpy as np
    >>> mechanism.rho, mechanism.release(jax.random.key(1), np.array([3, 0])).shape
    (0.125, (2,))
    """

    scale: float | Fraction  # type: ignore[assignment]
    integer_valued: ClassVar[bool] = True
    norm: ClassVar[Norm] = "l2"
    sampler: ClassVar[Sampler] = staticmethod(_exact_noise.discrete_gaussian)

    def __post_init__(self) -> None:
        super().__post_init__()
        moves = self.sensitivity.value
        check(moves >= 1, "sensitivity", moves, "at least 1: two sums of integers differ by that")

    @property
    def rho(self) -> float:
        """Parameter rho of zero-concentrated DP."""
        return float(self.sensitivity.value / self.scale) ** 2 / 2

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dpjax.accounting.kinds.discrete_gaussian import DiscreteGaussianDpEvent

        scale = float(self.scale)
        return one_release(
            DiscreteGaussianDpEvent(scale / self.sensitivity.clip_bound, scale),
            self.sensitivity,
            self.unit,
            statistic=f"one release of integers, of {format_sensitivity(self.sensitivity)}",
            noise=f"discrete Gaussian, scale {scale:.4g}, on every entry; sampled exactly",
            guarantee=f"zero-concentrated differential privacy, rho = {self.rho:.4g}",
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry: at most ``scale``."""
        scale = float(self.scale)
        if scale > 2:  # the difference is below 1e-30
            return scale
        sizes = range(1, 80)
        weights = [math.exp(-(k**2) / (2 * scale**2)) for k in sizes]
        moment = sum(k**2 * weight for k, weight in zip(sizes, weights, strict=True))
        return math.sqrt(2 * moment / (1 + 2 * sum(weights)))

    def half_width(self, level: float) -> float:
        """Returns an integer that absolute noise exceeds with probability at most 1 - ``level``.

        The tail beyond m is at most that of the normal distribution beyond m - 1.
        """
        check_delta(level, "level")
        return float(math.ceil(-float(self.scale) * float(ndtri((1 - level) / 2))))


def _largest_mu(epsilon: float, delta: float) -> float:
    """Returns the largest mu, up to rounding, with delta at ``epsilon`` at most ``delta``."""
    from scipy.optimize import brentq

    from dpjax.accounting import gdp

    def excess(log_mu: float) -> float:
        return gdp.delta(math.exp(log_mu), epsilon) / delta - 1

    high = 0.0  # the increasing excess is zero between high - 1 and high
    while excess(high) < 0:
        high += 1.0
    while excess(high - 1.0) >= 0:
        high -= 1.0
    root = float(brentq(excess, high - 1.0, high, xtol=1e-15, rtol=1e-15))
    while excess(root) > 0:
        root -= 1e-15 * max(1.0, abs(root))
    return math.exp(root)


@dataclass(frozen=True)
class Laplace(AdditiveNoise):
    """A statistic plus Laplace noise: pure differential privacy, for L1 sensitivity.

    The noise on each entry has density exp(-|x| / scale) / (2 scale), mean size ``scale`` and
    standard deviation sqrt(2) ``scale``.

    Attributes:
      sensitivity: of the statistic, in L1.
      scale: of the noise, in the units of the statistic; epsilon is the sensitivity over it.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency.

    Source: Dwork, McSherry, Nissim, Smith 2006, Proposition 1.

    >>> from dpjax import sensitivity
    >>> weight = sensitivity.of_mean((30, 60), 25, norm="l1", adjacency="replace_one")
    >>> mechanism = Laplace.from_epsilon(weight, epsilon=1.0)
    >>> import jax
    >>> mechanism.scale, mechanism.release(jax.random.key(0), 45.0).shape
    (1.2, ())
    """

    norm: ClassVar[Norm] = "l1"
    sampler: ClassVar[Sampler] = staticmethod(_exact_noise.discrete_laplace)

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is ``epsilon``-differentially private.

        Args:
          sensitivity: of the statistic, in L1.
          epsilon: any finite number above zero.
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: ``epsilon`` is out of range, or the sensitivity is in another norm.
        """
        check_positive("epsilon", epsilon)
        check_sensitivity(sensitivity, cls.norm)
        return cls(sensitivity, sensitivity.value / epsilon, unit)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero: the sensitivity over the scale."""
        return self.sensitivity.value / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dp_accounting import LaplaceDpEvent

        return one_release(
            LaplaceDpEvent(self.scale / self.sensitivity.clip_bound),
            self.sensitivity,
            self.unit,
            statistic=f"one release, of {format_sensitivity(self.sensitivity)}",
            noise=f"Laplace of scale {self.scale:.4g} on every entry",
            guarantee=format_pure_dp(self.pure_epsilon),
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry: sqrt(2) ``scale``."""
        return math.sqrt(2) * self.scale

    def half_width(self, level: float) -> float:
        """Returns a bound on one entry's absolute noise that holds with probability ``level``."""
        check_delta(level, "level")
        return -self.scale * math.log1p(-level)


@dataclass(frozen=True)
class DiscreteLaplace(AdditiveNoise):
    """Integers plus discrete Laplace noise, sampled exactly: pure differential privacy.

    The noise on each entry is k with a probability in proportion to exp(-|k| / scale): the
    difference of two geometric variables. It is the geometric mechanism.

    Attributes:
      sensitivity: of the statistic, in L1; a whole number.
      scale: of the noise; a float or a `Fraction`. Epsilon is the sensitivity over it.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      What ``release`` returns is released, under the sensitivity's adjacency; without
      rounding error. The time of a draw depends on the noise.

    Source: Ghosh, Roughgarden, Sundararajan 2012 (mechanism); Canonne, Kamath, Steinke 2020,
    Algorithm 2 (sampler).

    >>> from dpjax import sensitivity
    >>> count = sensitivity.of_count(norm="l1", adjacency="add_remove")
    >>> mechanism = DiscreteLaplace.from_epsilon(count, epsilon=0.5)
    >>> import jax
    >>> mechanism.release(jax.random.key(3), 120).dtype
    dtype('int64')
    """

    scale: float | Fraction  # type: ignore[assignment]
    integer_valued: ClassVar[bool] = True
    norm: ClassVar[Norm] = "l1"
    sampler: ClassVar[Sampler] = staticmethod(_exact_noise.discrete_laplace)

    def __post_init__(self) -> None:
        super().__post_init__()
        whole = float(self.sensitivity.value).is_integer()
        check(whole, "sensitivity", self.sensitivity, "a whole number")

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is ``epsilon``-differentially private.

        Its scale is a `Fraction`, so that epsilon is exact.

        Args:
          sensitivity: of the statistic, in L1; a whole number.
          epsilon: any finite number above zero.
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: ``epsilon`` is out of range, or the sensitivity is in another norm or no whole
            number.
        """
        check_positive("epsilon", epsilon)
        check_sensitivity(sensitivity, cls.norm)
        return cls(sensitivity, as_fraction(sensitivity.value) / as_fraction(epsilon), unit)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero: the sensitivity over the scale."""
        return float(self.sensitivity.value / self.scale)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        scale = float(self.scale)
        return one_release(
            discrete_laplace_event(self.sensitivity, scale),
            self.sensitivity,
            self.unit,
            statistic=f"one release of integers, of {format_sensitivity(self.sensitivity)}",
            noise=f"discrete Laplace, scale {scale:.4g}, on every entry; sampled exactly",
            guarantee=format_pure_dp(self.pure_epsilon),
        )

    @property
    def standard_deviation(self) -> float:
        """Standard deviation of the noise on one entry."""
        rate = 1 / float(self.scale)
        return math.sqrt(2) * math.exp(-rate / 2) / -math.expm1(-rate)

    def half_width(self, level: float) -> float:
        """Returns the least integer that noise exceeds with probability at most 1 - ``level``."""
        check_delta(level, "level")
        ratio = math.exp(-1 / float(self.scale))
        beyond = float(self.scale) * math.log(2 / ((1 - level) * (1 + ratio)))
        return float(max(0, math.ceil(beyond - 1)))


# More losses than this change an accountant's answer by less than its own error, at a cost.
_MOST_LOSSES = 4096


def discrete_laplace_event(sensitivity: Sensitivity, scale: float) -> "DpEvent":
    """Returns the event of discrete Laplace noise on whole numbers, of a whole L1 sensitivity.

    Past 4,096 units of sensitivity the event is that of noise on a coarser grid, with a sensitivity
    rounded up to it: an upper bound, less than 0.03 % above. The losses of noise in steps of t are
    every t-th of those of noise in steps of one; there both have the same delta, 1 - e^(-i / scale)
    at the i-th, and between them the coarser one interpolates a convex function.
    """
    step = math.ceil(sensitivity.value / _MOST_LOSSES)
    coarse = Sensitivity(math.ceil(sensitivity.value / step), "l1", sensitivity.adjacency)
    from dp_accounting.dp_event import DiscreteLaplaceDpEvent

    return DiscreteLaplaceDpEvent(step / scale, coarse.clip_bound)


def pure_dp_event(epsilon: float, adjacency: Adjacency) -> "DpEvent":
    """Returns an event that dominates every ``epsilon``-differentially private release.

    The dominating one is binary randomized response (Kairouz, Oh, Viswanath 2015),
    whose two losses are those of discrete Laplace noise of sensitivity one.
    """
    one = Sensitivity(1.0, "l1", adjacency)
    return discrete_laplace_event(one, 1 / epsilon)
