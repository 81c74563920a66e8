"""Additive Wishart noise on regression statistics, and two published mechanisms to compare with."""

import dataclasses
import functools
import math
from dataclasses import KW_ONLY, dataclass
from typing import Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import gammaincinv, ndtri

from dpjax._checks import (
    as_floats,
    check,
    check_count,
    check_delta,
    check_non_negative,
    check_positive,
    check_type,
)
from dpjax._typing import PRNGKey
from dpjax.accounting.kinds.wishart import WishartDpEvent, wishart_curve
from dpjax.accounting.tradeoff import TradeOff
from dpjax.adjacency import Adjacency
from dpjax.bayes.regression.release import StatisticsMechanism
from dpjax.bayes.regression.statistics import (
    RegressionBounds,
    RegressionStatistics,
    check_bound,
    check_setting,
)
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import Array, RandomWords, call_on_host, from_units, to_units
from dpjax.mechanisms.additive import mirror, upper_triangle

# With fewer degrees of freedom above the dimension a guarantee has no epsilon, only a delta.
_LEAST_SURPLUS = 2
# Relative, of eigenvalues in float32.
_ROUNDING = 1e-5


@dataclass(frozen=True)
class WishartNoise(StatisticsMechanism[RegressionStatistics]):
    """Adds Wishart noise to the second moment of the rows [x, y], which stays positive definite.

    Equivalent to adding normal rows to the data, as many as there are degrees of freedom, with
    variance ``scale`` of each coordinate. The mean of the noise acts as a ridge: see ``debias``.

    Attributes:
      bounds: public clipping bounds.
      num_features: d, with the intercept; the rows have d + 1 entries.
      degrees_of_freedom: k, an integer of at least d + 3.
      scale: s of the scale matrix s I, in the unit of a row's squared norm.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, in words.

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

    Source: Sheffet (2019), additive Wishart noise. The published number of degrees of freedom,
    `sheffet_degrees_of_freedom`, is private and many times larger than needed.

    >>> bounds = RegressionBounds(x_norm=1.0, y_size=1.0)
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
        """Returns noisy xtx, xty and yty, as `StatisticsMechanism.add_noise`.

        Nothing is added for ``rounding``: sums of records on the grid are exact.
        """
        del rounding
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


def wishart_noise(key: PRNGKey, dimension: int, degrees_of_freedom: int, scale: float) -> jax.Array:
    """Draws one Wishart matrix, ``(dimension, dimension)``, of scale matrix ``scale`` I.

    Works under jit and vmap; arguments as `draw_wishart`.
    """
    result = [jax.ShapeDtypeStruct((dimension, dimension), np.float64)]
    arguments = dimension, degrees_of_freedom, scale
    drawn = call_on_host(lambda key_bits, _: [draw_wishart(key_bits, *arguments)], key, [], result)
    return jnp.asarray(drawn[0])


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
    return bounds.x_norm**2 + bounds.y_size**2


def sheffet_degrees_of_freedom(dimension: int, *, epsilon: float, delta: float) -> int:
    """Returns the published degrees of freedom floor(d + (14 / epsilon^2) 2 log(4 / delta)).

    With a scale of the largest squared norm of a row it is (epsilon, delta)-private under
    add/remove and replace-one, by the exact profile, with many times the degrees of freedom of
    `WishartNoise.from_epsilon`.

    Args:
      dimension: d, of the rows [x, y].
      epsilon: in (0, 1).
      delta: in (0, 1 / e).

    Raises:
      ValueError: a number out of range.

    Source: Sheffet (2019), the theorem on additive Wishart noise.

    >>> sheffet_degrees_of_freedom(2, epsilon=0.5, delta=1e-4)
    1188
    """
    check_count("dimension", dimension)
    check_delta(epsilon, "epsilon")
    check_delta(delta)
    check(delta < math.exp(-1), "delta", delta, "in (0, 1 / e), for which the theorem is stated")
    return math.floor(dimension + 14 / epsilon**2 * 2 * math.log(4 / delta))


def nonprivate_wishart_noise(
    key: PRNGKey, num_features: int, *, x_norm: float, epsilon: float
) -> jax.Array:
    """Draws Wishart(d + 1, 3 R^2 / (2 epsilon) I) noise, which was published as private.

    It is NOT epsilon-differentially private, so it has no mechanism and no certificate. The noise
    is positive definite: if a release minus x x^T is not, x is not in the data. For every d and
    every finite epsilon', delta is at least 1 - e^(-epsilon / 3), the probability of that.
    `WishartNoise` has the degrees of freedom that make delta small.

    Args:
      key: a JAX key.
      num_features: d.
      x_norm: R, the bound on the norm of the features.
      epsilon: what is claimed.

    Returns:
      Noise ``(d, d)`` for the sum of x x^T.

    Raises:
      ValueError: a number that is not above zero.

    Source: Jiang, Xie & Zhang (2016), who claim privacy, without their division by n.

    >>> nonprivate_wishart_noise(jax.random.key(0), 3, x_norm=1.0, epsilon=1.0).shape
    (3, 3)
    """
    check_count("num_features", num_features)
    check_bound("x_norm", x_norm)
    check_positive("epsilon", epsilon)
    return wishart_noise(key, num_features, num_features + 1, 3 * x_norm**2 / (2 * epsilon))


def excludes_record(released: jax.Array, row: jax.Array) -> jax.Array:
    """Returns whether a second moment with positive definite noise excludes ``row`` from the data.

    It does if the release minus the row's second moment has a negative eigenvalue beyond rounding.

    Args:
      released: ``(d, d)``, symmetric.
      row: ``(d,)``.

    >>> bool(excludes_record(jnp.eye(2), jnp.array([0.9, 0.0])))
    False
    >>> bool(excludes_record(jnp.eye(2), jnp.array([1.1, 0.0])))
    True
    """
    released, row = as_floats(released, "released"), as_floats(row, "row")
    eigenvalues = jnp.linalg.eigvalsh(released - jnp.outer(row, row))
    return eigenvalues[0] < -_ROUNDING * jnp.abs(eigenvalues).max()
