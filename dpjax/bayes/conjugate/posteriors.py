"""Posteriors of conjugate families in closed form, and their mixtures: float64 on the host."""

import abc
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy import stats
from scipy.stats.distributions import rv_frozen

from dpjax._checks import as_float64, as_key, check, check_count, check_delta, check_share
from dpjax._html import render_html
from dpjax._html_tables import (
    INTERVAL_LEVEL,
    SUMMARY_COLUMNS,
    entry_names,
    entry_table,
    field_table,
    format_value,
)
from dpjax._typing import PRNGKey
from dpjax.mechanisms.base import Interval

Array = npt.NDArray[np.float64]

# In notebooks: ends of central intervals, and the most parameters whose quantiles are shown.
_ENDS = SUMMARY_COLUMNS[2:]
_MOST_SHOWN = 30


class Posterior(abc.ABC):
    """Posterior distribution of the parameters, given observed or released statistics.

    Its fields are arrays with batch axes in front, one entry for each data set. The entries of a
    parameter vector are on the last axis. A subclass defines the marginal distributions and the
    draws, or overrides ``mean``, ``cdf``, ``quantile`` and ``sample``.
    """

    # Mixtures and the normal-inverse-gamma posterior, which have none, override what uses it.
    def _marginal(self) -> rv_frozen:
        """The marginal distribution of each entry."""
        raise NotImplementedError(f"{type(self).__name__} has no marginal distribution")

    @abc.abstractmethod
    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        """Draws ``num_samples`` parameters on a new leading axis."""

    @property
    def mean(self) -> Array:
        """Posterior mean, ``(...)``, or ``(..., k)`` of a vector of k parameters."""
        return np.asarray(self._marginal().mean(), np.float64)

    def cdf(self, parameters: npt.ArrayLike) -> Array:
        """Returns the marginal distribution functions at ``parameters``.

        Args:
          parameters: shaped like ``mean``, or with more axes in front.

        Returns:
          Probabilities, shaped like ``parameters``.
        """
        return np.asarray(self._marginal().cdf(as_float64(parameters, "parameters")), np.float64)

    def quantile(self, probability: float) -> Array:
        """Returns the marginal quantiles, shaped like ``mean``.

        Args:
          probability: in (0, 1).
        """
        check_share("probability", probability)
        return np.asarray(self._marginal().ppf(probability), np.float64)

    def sample(self, key: PRNGKey, num_samples: int) -> jax.Array:
        """Draws parameters from the posterior.

        Args:
          key: a JAX key.
          num_samples: number of draws for each data set.

        Returns:
          Draws ``(num_samples, ...)``, in JAX's default float dtype.

        Raises:
          ValueError: ``num_samples`` is not a whole number of at least one.
        """
        check_count("num_samples", num_samples)
        return self._draw(as_key(key), num_samples)

    def interval(self, level: float) -> Interval:
        """Returns the marginal central credible intervals.

        Args:
          level: the probability, in (0, 1), of each interval.

        Returns:
          Both ends, shaped like ``mean``.

        Raises:
          ValueError: ``level`` is not in (0, 1).
        """
        check_delta(level, "level")
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))

    def _repr_html_(self) -> str:
        # Quantiles of the first entries would need those of all: many data sets have no table.
        mean, tables = self.mean, []
        if mean.size <= _MOST_SHOWN:
            columns = {"mean": mean, **dict(zip(_ENDS, self.interval(INTERVAL_LEVEL), strict=True))}
            names = entry_names("parameter", mean.shape)
            tables.append(entry_table("Marginal posterior", names, columns, "parameter"))
        return render_html(
            type(self).__name__, [*tables, field_table(self)], notes=self._display_notes()
        )

    def _display_notes(self) -> list[str]:
        return []


@dataclass(frozen=True)
class BetaPosterior(Posterior):
    """Beta posterior of a probability.

    Attributes:
      alpha: above zero, ``(...)``.
      beta: above zero, ``(...)``.

    >>> posterior = BetaPosterior(np.float64(3), np.float64(1))
    >>> float(posterior.mean), float(posterior.interval(0.9).low)
    (0.75, 0.3684)
    """

    alpha: Array
    beta: Array

    def _marginal(self) -> rv_frozen:
        return stats.beta(self.alpha, self.beta)

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        shape = (num_samples, *np.shape(self.alpha))
        return jax.random.beta(key, jnp.array(self.alpha), jnp.array(self.beta), shape)


@dataclass(frozen=True)
class DirichletPosterior(Posterior):
    """Dirichlet posterior of the probabilities of K categories, with beta marginals.

    Attributes:
      concentration: above zero, ``(..., K)``.
    """

    concentration: Array

    def _marginal(self) -> rv_frozen:
        rest = self.concentration.sum(axis=-1, keepdims=True) - self.concentration
        return stats.beta(self.concentration, rest)

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        shape = (num_samples, *self.concentration.shape[:-1])
        return jax.random.dirichlet(key, jnp.array(self.concentration), shape)


@dataclass(frozen=True)
class GammaPosterior(Posterior):
    """Gamma posterior of a Poisson rate, of density ~ theta^(shape - 1) exp(-rate theta).

    Attributes:
      shape: above zero, ``(...)``.
      rate: above zero, ``(...)``.
    """

    shape: Array
    rate: Array

    def _marginal(self) -> rv_frozen:
        return stats.gamma(self.shape, scale=1 / self.rate)

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        shape = (num_samples, *np.shape(self.shape))
        return jax.random.gamma(key, jnp.array(self.shape), shape) / jnp.array(self.rate)


@dataclass(frozen=True)
class NormalPosterior(Posterior):
    """Normal posterior of a mean: N(``centre``, ``variance``).

    Attributes:
      centre: the posterior mean, ``(...)``.
      variance: above zero, ``(...)``.
    """

    centre: Array
    variance: Array

    def _marginal(self) -> rv_frozen:
        return stats.norm(self.centre, np.sqrt(self.variance))

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        noise = jax.random.normal(key, (num_samples, *np.shape(self.centre)))
        return jnp.array(self.centre) + noise * jnp.sqrt(jnp.array(self.variance))


@dataclass(frozen=True)
class NormalInverseGammaPosterior(Posterior):
    """Normal-inverse-gamma posterior of a mean and a variance, ``(..., 2)``.

    The variance is inverse gamma of ``shape`` and ``scale``; given it, the mean is
    N(``centre``, variance / ``strength``). The marginal distribution of the mean is Student's t.

    Attributes:
      centre: the posterior mean of the mean, ``(...)``.
      strength: number of records that the posterior mean counts as, above zero, ``(...)``.
      shape: of the variance, above zero, ``(...)``; its mean is infinite up to a shape of one.
      scale: of the variance, above zero, ``(...)``.
    """

    centre: Array
    strength: Array
    shape: Array
    scale: Array

    def _marginals(self) -> tuple[rv_frozen, rv_frozen]:
        spread = np.sqrt(self.scale / (self.shape * self.strength))
        mean = stats.t(2 * self.shape, self.centre, spread)
        return mean, stats.invgamma(self.shape, scale=self.scale)

    @property
    def mean(self) -> Array:
        """The centre, and scale / (shape - 1): infinite up to a shape of one."""
        _, variance = self._marginals()
        return np.stack([self.centre, variance.mean()], axis=-1)

    def cdf(self, parameters: npt.ArrayLike) -> Array:
        """Returns the distribution functions of mean and variance at ``(..., 2)`` parameters."""
        values = as_float64(parameters, "parameters")
        check(values.ndim > 0, "parameters", values.shape, "of shape (..., 2)")
        values = np.moveaxis(values, -1, 0)
        both = zip(self._marginals(), values, strict=True)
        return np.stack([marginal.cdf(value) for marginal, value in both], axis=-1)

    def quantile(self, probability: float) -> Array:
        """Returns the quantiles ``(..., 2)`` of mean and variance at ``probability``."""
        check_share("probability", probability)
        return np.stack([marginal.ppf(probability) for marginal in self._marginals()], axis=-1)

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        first, second = jax.random.split(key)
        variance = 1 / GammaPosterior(self.shape, self.scale).sample(first, num_samples)
        noise = jax.random.normal(second, variance.shape)
        mean = jnp.array(self.centre) + noise * jnp.sqrt(variance / jnp.array(self.strength))
        return jnp.stack([mean, variance], axis=-1)


# To the rounding of float64.
_BISECTIONS = 60


@dataclass(frozen=True)
class Mixture(Posterior):
    """A mixture of posteriors of one family.

    Attributes:
      components: posteriors with the mixture's axis of M entries in front of the batch axes.
      weights: ``(M, ...)``, of sum one over that axis.
    """

    components: Posterior
    weights: Array

    @property
    def effective_sample_size(self) -> Array:
        """Effective sample size of the importance weights, 1 / sum of squares, ``(...)``.

        The Monte Carlo error of a mean is the standard deviation over its root. Use more particles
        where it is below about a hundred.
        """
        return 1 / (self.weights**2).sum(axis=0)

    def _display_notes(self) -> list[str]:
        least = format_value(self.effective_sample_size.min())
        return [f"effective sample size of the {len(self.weights):,} weights: {least} at least"]

    @property
    def mean(self) -> Array:
        return self._weighted_sum(self.components.mean)

    def cdf(self, parameters: npt.ArrayLike) -> Array:
        values = as_float64(parameters, "parameters")
        more = values.ndim - self.mean.ndim
        if more <= 0:
            return self._weighted_sum(self.components.cdf(values))

        # Axes in front would be taken for that of the components.
        each = values.reshape(-1, *values.shape[more:])
        return np.stack([self.cdf(one) for one in each]).reshape(values.shape)

    def quantile(self, probability: float) -> Array:
        """Returns the quantiles, by bisection between those of the components.

        Slow for very many data sets: coverage of an interval can be computed from ``cdf`` instead.

        Args:
          probability: in (0, 1).

        Raises:
          ValueError: ``probability`` is not in (0, 1).
        """
        check_delta(probability, "probability")
        quantiles = self.components.quantile(probability)
        low, high = quantiles.min(axis=0), quantiles.max(axis=0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def _draw(self, key: PRNGKey, num_samples: int) -> jax.Array:
        """Draws a component by its weight, then the parameters from it."""
        first, second = jax.random.split(key)
        with np.errstate(divide="ignore"):
            logits = np.moveaxis(np.log(self.weights), 0, -1)
        shape = (num_samples, *self.weights.shape[1:])
        chosen = np.asarray(jax.random.categorical(first, logits, shape=shape))
        drawn: dict[str, Array] = {}
        for name, field in vars(self.components).items():
            index = chosen[..., None] if field.ndim > chosen.ndim else chosen
            drawn[name] = np.take_along_axis(field, index, axis=0)
        return type(self.components)(**drawn).sample(second, 1)[0]

    def _weighted_sum(self, values: Array) -> Array:
        """Sums over the components; weights get an axis for parameters of several entries."""
        several = values.ndim > self.weights.ndim
        return ((self.weights[..., None] if several else self.weights) * values).sum(axis=0)
