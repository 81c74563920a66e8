"""Closed-form posteriors of linear regression, and repair of noisy sufficient statistics."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.scipy.linalg import cho_factor, cho_solve
from scipy.stats import t as student

from dpjax._checks import as_floats, check, check_delta, check_positive, check_type
from dpjax._html import HTMLTable, render_html
from dpjax._html_tables import (
    INTERVAL_LEVEL,
    SUMMARY_COLUMNS,
    entry_names,
    entry_table,
    format_value,
)
from dpjax._typing import Numeric
from dpjax.bayes.regression.statistics import RegressionStatistics
from dpjax.mechanisms.base import Interval

_EXACT_CAVEAT = (
    "The statistics are treated as exact: of statistics with noise, the intervals leave it out and"
    " are too narrow (noise_aware_posterior includes it)."
)


class Prediction(NamedTuple):
    """Predictive distribution of new targets: a scaled and shifted Student's t, or normal.

    Attributes:
      mean: ``(n,)``.
      scale: ``(n,)``; the standard deviation, if normal.
      degrees_of_freedom: of the t distribution; infinite if normal.
    """

    mean: jax.Array
    scale: jax.Array
    degrees_of_freedom: jax.Array

    def interval(self, level: float) -> Interval:
        """Returns central prediction intervals, each of probability ``level``.

        Computed on the host.

        Args:
          level: in (0, 1).

        Returns:
          Both ends, each ``(n,)``.

        Raises:
          ValueError: ``level`` is not in (0, 1).
        """
        check_delta(level, "level")
        width = student.ppf((1 + level) / 2, np.asarray(self.degrees_of_freedom)) * self.scale
        return Interval(self.mean - width, self.mean + width)

    def _repr_html_(self) -> str | None:
        # Of one data set; of many, made under vmap, the text is shown.
        if np.ndim(self.mean) != 1:
            return None
        ends = zip(SUMMARY_COLUMNS[2:], self.interval(INTERVAL_LEVEL), strict=True)
        columns = {"mean": self.mean, "scale": self.scale, **dict(ends)}
        names = entry_names("y", np.shape(self.mean))

        distribution = "normal"
        if np.isfinite(self.degrees_of_freedom):
            freedom = format_value(self.degrees_of_freedom)
            distribution = f"Student's t with {freedom} degrees of freedom"
        tables = [
            entry_table("New targets", names, columns, "target"),
            HTMLTable("", [("distribution", distribution)]),
        ]
        return render_html(type(self).__name__, tables)


class RegressionPosterior(NamedTuple):
    """Posterior distribution of the coefficients, and of the noise variance where unknown.

    Given the noise variance v, the coefficients are normal with mean ``mean`` and precision
    ``precision`` / v, and v itself is inverse-gamma of shape ``shape`` and rate ``rate``. Where v
    was known the shape is infinite, and ``rate`` is v itself.

    Attributes:
      mean: posterior mean of the coefficients, ``(d,)``.
      precision: ``(d, d)``, in the units of xtx.
      shape: of the noise variance's distribution; infinite where the variance is known.
      rate: of the noise variance's distribution, or the variance.
    """

    mean: jax.Array
    precision: jax.Array
    shape: jax.Array
    rate: jax.Array

    @property
    def noise_variance(self) -> jax.Array:
        """Squared predictive scale for known coefficients, ``rate`` over ``shape``, of shape ()."""
        return jnp.where(jnp.isinf(self.shape), self.rate, self.rate / self.shape)

    @property
    def covariance(self) -> jax.Array:
        """Posterior covariance of the coefficients, ``(d, d)``; infinite up to a shape of one."""
        spread = jnp.where(jnp.isinf(self.shape), 1.0, self.shape / (self.shape - 1))
        spread = jnp.where(self.shape > 1, spread, jnp.inf)
        return spread * self.noise_variance * self._inverse

    def predict(self, x: npt.ArrayLike) -> Prediction:
        """Returns the marginal predictive distributions of new targets; works under jit and vmap.

        Args:
          x: features ``(n, d)``. They are not protected here.

        >>> data = RegressionStatistics(jnp.eye(1) * 4, jnp.array([2.0]), jnp.array(1.0))
        >>> seen = known_noise_posterior(data, prior_precision=1.0, noise_precision=1.0)
        >>> prediction = seen.predict(jnp.array([[1.0]]))
        >>> [end.round(2).tolist() for end in prediction.interval(0.9)]
        [[-1.4], [2.2]]
        """
        x = as_floats(x, "x")
        check(x.ndim == 2, "x", x.shape, "of shape (n, d)")
        spread = jnp.sum(x * (x @ self._inverse), axis=1)
        scale = jnp.sqrt(self.noise_variance * (1 + spread))
        return Prediction(x @ self.mean, scale, 2 * self.shape)

    def _repr_html_(self) -> str | None:
        # One posterior; of many, made under vmap, the text is shown.
        if np.ndim(self.mean) != 1:
            return None

        # The coefficients' marginals are Student's t, or normal, around the mean.
        scale = jnp.sqrt(self.noise_variance * jnp.diagonal(self._inverse))
        interval = Prediction(self.mean, scale, 2 * self.shape).interval(INTERVAL_LEVEL)
        deviation = jnp.sqrt(jnp.diagonal(self.covariance))
        columns = dict(zip(SUMMARY_COLUMNS, (self.mean, deviation, *interval), strict=True))
        names = entry_names("beta", np.shape(self.mean))

        variance = [(name, format_value(getattr(self, name))) for name in ("shape", "rate")]
        tables = [
            entry_table("Coefficients", names, columns, "coefficient"),
            HTMLTable("Variance of the noise: inverse-gamma distribution", variance)
            if np.isfinite(self.shape)
            else HTMLTable("Variance of the noise", [("known", format_value(self.rate))]),
        ]
        title = type(self).__name__
        return render_html(title, tables, notes_heading="Caveats", notes=[_EXACT_CAVEAT])

    @property
    def _inverse(self) -> jax.Array:
        identity = jnp.eye(self.precision.shape[0], dtype=self.precision.dtype)
        return cho_solve(cho_factor(self.precision), identity)


def known_noise_posterior(
    statistics: RegressionStatistics, *, prior_precision: Numeric, noise_precision: Numeric
) -> RegressionPosterior:
    """Returns the posterior for y ~ N(x^T b, 1 / noise_precision), b ~ N(0, I / prior_precision).

    The statistics are treated as exact: with noisy statistics the posterior ignores the noise, and
    its intervals are too narrow. Works under jit and vmap.

    Args:
      statistics: exact, or noisy ones after `repair`; yty is not read.
      prior_precision: above zero.
      noise_precision: above zero.

    Privacy:
      Post-processing of released statistics.

    Raises:
      ValueError: a precision that is not above zero.

    Source: Bishop (2006), equations 3.53 and 3.54.

    >>> data = RegressionStatistics(jnp.eye(2) * 4, jnp.array([5.0, 0.0]), None)
    >>> posterior = known_noise_posterior(data, prior_precision=2.0, noise_precision=2.0)
    >>> posterior.mean.tolist(), posterior.covariance.diagonal().tolist()
    ([1.0, 0.0], [0.1, 0.1])
    """
    check_type("statistics", statistics, RegressionStatistics, "RegressionStatistics")
    check_positive("prior_precision", prior_precision)
    check_positive("noise_precision", noise_precision)
    precision, mean = _normal(statistics, prior_precision / noise_precision)
    variance = 1 / jnp.asarray(noise_precision, float)
    return RegressionPosterior(mean, precision, jnp.asarray(jnp.inf, mean.dtype), variance)


def unknown_noise_posterior(
    statistics: RegressionStatistics,
    num_examples: Numeric,
    *,
    prior_precision: Numeric,
    noise_shape: Numeric,
    noise_rate: Numeric,
) -> RegressionPosterior:
    """Returns the posterior for y ~ N(x^T b, v), b ~ N(0, v I / prior_precision), v unknown.

    The prior of v is inverse-gamma of shape ``noise_shape`` and rate ``noise_rate``. As in
    `known_noise_posterior` the statistics are treated as exact. Works under jit and vmap.

    Args:
      statistics: exact, or noisy ones after `repair`, with yty.
      num_examples: public, or as released; a negative number counts as zero.
      prior_precision: above zero, over the noise's own precision.
      noise_shape: above zero.
      noise_rate: above zero.

    Privacy:
      Post-processing of released statistics.

    Raises:
      ValueError: a prior that is not above zero, or statistics without yty.

    Source: Murphy (2012), section 7.6.3.

    >>> data = RegressionStatistics(jnp.eye(1) * 4, jnp.array([5.0]), jnp.array(7.0))
    >>> posterior = unknown_noise_posterior(
    ...     data, 4, prior_precision=1.0, noise_shape=1.0, noise_rate=1.0
    ... )
    >>> posterior.mean.tolist(), posterior.shape.item(), posterior.rate.item()
    ([1.0], 3.0, 2.0)
    """
    check_type("statistics", statistics, RegressionStatistics, "RegressionStatistics")
    check_positive("noise_shape", noise_shape)
    check_positive("noise_rate", noise_rate)
    check_positive("prior_precision", prior_precision)
    check(statistics.yty is not None, "statistics.yty", None, "released, for unknown noise")
    noise_shape, noise_rate = _as_float(noise_shape), _as_float(noise_rate)
    precision, mean = _normal(statistics, _as_float(prior_precision))
    (_, xty), yty = _xtx_and_xty(statistics), as_floats(statistics.yty, "statistics.yty")
    unexplained = jnp.maximum(yty - xty @ mean, 0.0)
    shape = jnp.maximum(as_floats(num_examples, "num_examples"), 0.0) / 2 + noise_shape
    return RegressionPosterior(mean, precision, shape, unexplained / 2 + noise_rate)


def _as_float(number: Numeric) -> Numeric:
    """A Python integer as a float: JAX takes none beyond its own integers."""
    return float(number) if isinstance(number, int) else number


def _xtx_and_xty(statistics: RegressionStatistics) -> tuple[jax.Array, jax.Array]:
    xtx = as_floats(statistics.xtx, "statistics.xtx")
    return xtx, as_floats(statistics.xty, "statistics.xty")


def _normal(statistics: RegressionStatistics, ridge: Numeric) -> tuple[jax.Array, jax.Array]:
    """Posterior precision of the coefficients over the noise precision, and their mean."""
    xtx, xty = _xtx_and_xty(statistics)
    precision = xtx + ridge * jnp.eye(len(xty), dtype=xtx.dtype)
    return precision, cho_solve(cho_factor(precision), xty)


def repair(statistics: RegressionStatistics, floor: Numeric) -> RegressionStatistics:
    """Returns the statistics with xtx projected to positive definite matrices and yty raised.

    The eigenvalues of xtx below ``floor`` are raised to it, which gives the nearest such matrix in
    Frobenius norm; then a yty smaller than xty^T xtx^-1 xty, the explained sum of squares, is
    raised to that. Works under jit and vmap. A direction whose eigenvalue is below that of the
    noise cannot be distinguished from noise: see `largest_noise_eigenvalue`.

    Args:
      statistics: as released.
      floor: lower bound on the eigenvalues, in the units of xtx; above zero.

    Privacy:
      Post-processing of released statistics.

    Raises:
      ValueError: ``floor`` is not above zero.

    >>> noisy = RegressionStatistics(jnp.diag(jnp.array([4.0, -1.0])), jnp.ones(2), jnp.array(0.0))
    >>> repaired = repair(noisy, floor=0.5)
    >>> repaired.xtx.tolist(), repaired.yty.item()
    ([[4.0, 0.0], [0.0, 0.5]], 2.25)
    """
    check_type("statistics", statistics, RegressionStatistics, "RegressionStatistics")
    check_positive("floor", floor)
    xtx, xty = _xtx_and_xty(statistics)
    values, vectors = jnp.linalg.eigh(xtx)
    values = jnp.maximum(values, _as_float(floor))
    raised = (vectors * values[None, :]) @ vectors.T
    if statistics.yty is None:
        return RegressionStatistics(raised, xty, None)
    explained = jnp.sum((vectors.T @ xty) ** 2 / values)
    yty = as_floats(statistics.yty, "statistics.yty")
    return RegressionStatistics(raised, xty, jnp.maximum(yty, explained))


def largest_noise_eigenvalue(standard_deviations: npt.ArrayLike) -> jax.Array:
    """Returns the typical largest eigenvalue of the noise in a released xtx, for large d.

    Twice the root of the summed variances of a row, averaged over the rows: 2 s sqrt(d) for equal
    standard deviations s. Use it as ``floor`` of `repair`.

    Source: Wigner (1958); for the largest eigenvalue, Bai & Yin (1988).

    Args:
      standard_deviations: of the noise on every entry, ``(d, d)``, as ``noise_scales.xtx``.

    >>> largest_noise_eigenvalue(jnp.full((9, 9), 1.5)).item()
    9.0
    """
    deviations = as_floats(standard_deviations, "standard_deviations")
    check(deviations.ndim == 2, "standard_deviations", deviations.shape, "of shape (d, d)")
    variances = jnp.square(deviations)
    return 2 * jnp.sqrt(variances.sum(axis=1).mean())
