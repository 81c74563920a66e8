"""Additive Wishart noise on regression statistics."""

import dataclasses
import functools
import math
from dataclasses import KW_ONLY, dataclass
from typing import Self

import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtri

from dpjax._checks import (
    check_count,
    check_delta,
    check_non_negative,
    check_positive,
    check_type,
)
from dpjax.accounting.kinds.wishart import WishartDpEvent, wishart_curve
from dpjax.accounting.tradeoff import TradeOff
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    StatisticsMechanism,
    check_setting,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, RandomWords, from_units, to_units
from dpjax.mechanisms.additive import mirror, upper_triangle

# With fewer degrees of freedom above the dimension a guarantee has no epsilon, only a delta.
_LEAST_SURPLUS = 2


@dataclass(frozen=True)
class WishartNoise(StatisticsMechanism[RegressionStatistics]):
    """Adds Wishart noise to the second moment of the rows [x, y], which stays positive definite.

    Equivalent to adding normal rows to the data, as many as there are degrees of freedom, with
    variance ``scale`` of each coordinate. The mean of the noise acts as a ridge: see ``debias``.

    Attributes:
      degrees_of_freedom: k, an integer of at least d + 3; the rows have d + 1 entries.
      scale: s of the scale matrix s I, in the unit of a row's squared norm.

    Privacy:
      All three statistics are released. For a row v the trade-off function between noise N and
      N + v v^T is that between a chi-square variable with k - d degrees of freedom and the same
      plus |v|^2 / scale, in every dimension. So the profile is exact under add/remove; under
      replace-one it is a bound through the data without the row (see
      `dpjax.accounting.tradeoff.ChiSquare`). The supports differ: delta is at least the chi-square
      mass below that shift. Statistics and noise are added exactly, on a public grid of at most
      2^-32 times ``scale``, so large values do not remove the noise. The noise itself is float64,
      by inversion, with tails down to a probability of 2^-54. ``release_records`` rounds the
      records so that their sums lie on the grid; statistics given to ``release`` are rounded to it,
      which the profile does not cover.

    Raises:
      ValueError: a number out of range.

    Source: Sheffet (2019), additive Wishart noise; the published number of degrees of freedom is
    private and many times larger than needed.

    >>> bounds = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
    >>> mechanism = WishartNoise.from_epsilon(
    ...     bounds, epsilon=1.0, delta=1e-4, adjacency="add_remove", num_features=11)
    >>> mechanism.degrees_of_freedom
    37
    """

    bounds: RegressionBounds
    num_features: int
    _: KW_ONLY
    degrees_of_freedom: int
    scale: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_setting(self.bounds, self.num_features, self.adjacency, self.unit)
        least = self.dimension + _LEAST_SURPLUS
        check_count("degrees_of_freedom", self.degrees_of_freedom, minimum=least)
        check_positive("scale", self.scale)

    @classmethod
    def from_epsilon(
        cls,
        bounds: RegressionBounds,
        *,
        epsilon: float,
        delta: float,
        adjacency: Adjacency,
        num_features: int,
        unit: str = "one record",
    ) -> Self:
        """Returns the (epsilon, delta)-private mechanism with the fewest degrees of freedom.

        Its ``scale`` is the largest squared norm of a row, as in the source.

        Args:
          bounds: public.
          epsilon: any finite number above zero.
          delta: in (0, 1).
          adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
          num_features: d, with the intercept.
          unit: the unit of privacy, in words.

        Raises:
          ValueError: a number out of range.
        """
        check_setting(bounds, num_features, adjacency, unit)
        check_positive("epsilon", epsilon)
        check_delta(delta)
        least = cls(
            bounds,
            num_features,
            degrees_of_freedom=num_features + 1 + _LEAST_SURPLUS,
            scale=_largest_square(bounds),
            adjacency=adjacency,
            unit=unit,
        )

        def delta_with(count: int) -> float:
            degrees = least.degrees_of_freedom + count
            return dataclasses.replace(least, degrees_of_freedom=degrees).delta(epsilon)

        # Bisection of the number of degrees of freedom above the least, in which delta falls.
        short, enough = -1, 0
        while delta_with(enough) > delta:
            short, enough = enough, max(1, 2 * enough)
        while enough - short > 1:
            middle = (short + enough) // 2
            is_private = delta_with(middle) <= delta
            short, enough = (short, middle) if is_private else (middle, enough)
        degrees = least.degrees_of_freedom + enough
        return dataclasses.replace(least, degrees_of_freedom=degrees)

    @property
    def dimension(self) -> int:
        """Dimension of the rows: features and target."""
        return self.num_features + 1

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        surplus = self.degrees_of_freedom - self.dimension + 1
        largest = _largest_square(self.bounds)
        return Guarantee(
            event=WishartDpEvent(surplus, self.scale / largest),
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=1,
            description={
                "statistic": f"the second moment of rows of {self.dimension} entries, features and"
                f" target, of norm at most {math.sqrt(largest):.4g}",
                "noise": f"Wishart with {self.degrees_of_freedom} degrees of freedom and scale"
                f" {self.scale:.4g}: of mean {self.mean_noise:.4g} on the diagonal, of standard"
                f" deviation {self.scale * math.sqrt(self.degrees_of_freedom):.4g} off it",
            },
        )

    @property
    def curve(self) -> TradeOff:
        """Trade-off function; exact under add/remove, a lower bound under replace-one."""
        return wishart_curve(self.event, self.adjacency)

    @property
    def mean_noise(self) -> float:
        """Mean of the noise on each diagonal entry, k ``scale``; zero off the diagonal."""
        return self.degrees_of_freedom * self.scale

    def delta(self, epsilon: float) -> float:
        """Returns delta at ``epsilon``, in closed form under add/remove, else a bound."""
        check_non_negative("epsilon", epsilon)
        return float(self.curve.delta(epsilon))

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the mechanism with ``scale`` times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    def add_noise(
        self, key_bits: npt.NDArray[np.uint32], arrays: list[Array], *, rounding: float = 0.0
    ) -> list[Array]:
        del rounding  # sums of records on the grid are exact
        xtx, xty, yty = arrays
        noise = draw_wishart(key_bits, self.dimension, self.degrees_of_freedom, self.scale)
        noises = [upper_triangle(noise[..., :-1, :-1]), noise[..., :-1, -1], noise[..., -1, -1]]
        exponent = self._exponent
        released = [
            from_units(to_units(exact, exponent) + to_units(drawn, exponent), exponent)
            for exact, drawn in zip([upper_triangle(xtx), xty, yty], noises, strict=True)
        ]
        return [mirror(released[0]), *released[1:]]

    @property
    def _record_unit(self) -> float:  # type: ignore[override]
        return 2.0 ** (self._exponent // 2)

    @property
    def _exponent(self) -> int:
        """Exponent of the grid: an even number, at least 32 bits below the noise."""
        return 2 * ((math.frexp(self.scale)[1] - 33) // 2)

    def debias(self, released: RegressionStatistics) -> RegressionStatistics:
        """Returns a release minus the mean of the noise: unbiased, but may be indefinite.

        Args:
          released: result of ``release``.

        Privacy:
          Post-processing.
        """
        check_type("released", released, RegressionStatistics, "RegressionStatistics")
        ridge = self.mean_noise * jnp.eye(self.num_features, dtype=jnp.result_type(released.xtx))
        return RegressionStatistics(
            released.xtx - ridge, released.xty, released.yty - self.mean_noise
        )


def draw_wishart(
    key_bits: npt.NDArray[np.uint32], dimension: int, degrees_of_freedom: int, scale: float
) -> npt.NDArray[np.float64]:
    """Draws Wishart matrices ``(..., dimension, dimension)`` of scale matrix ``scale`` I.

    In float64, by inversion of uniform numbers with 54 bits.

    Args:
      key_bits: a key for each matrix, uint32 ``(..., 2)``.
      dimension: of the matrices.
      degrees_of_freedom: at least ``dimension``.
      scale: above zero.

    Source: Bartlett (1933), whose decomposition has independent entries in the Cholesky factor.
    """
    shape = (*key_bits.shape[:-1], dimension, dimension)
    uniform = RandomWords(key_bits, dimension**2).uniform().reshape(shape)
    halves = (degrees_of_freedom - np.arange(dimension)) / 2
    every = np.arange(dimension)
    factor = np.tril(ndtri(uniform), -1)
    factor[..., every, every] = np.sqrt(2 * gammaincinv(halves, uniform[..., every, every]))
    return scale * (factor @ np.swapaxes(factor, -1, -2))


def _largest_square(bounds: RegressionBounds) -> float:
    """The largest squared norm of a row of features and target."""
    return bounds.x_norm_bound**2 + bounds.y_bound**2
