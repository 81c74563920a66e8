"""Posteriors of conjugate families in closed form, and their mixtures: float64 on the host."""

import abc
import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy import special

from dpjax._validation import as_key, check_count, check_delta
from dpjax.mechanisms.base import Interval, check_level

Array = npt.NDArray[np.float64]


class Posterior(abc.ABC):
    """Posterior distribution of the parameters, given observed or released statistics.

    Its fields are arrays with batch axes in front, one entry for each data set. The entries of a
    parameter vector are on the last axis.
    """

    @property
    @abc.abstractmethod
    def mean(self) -> Array:
        """Posterior mean."""

    @abc.abstractmethod
    def cdf(self, parameters: Any) -> Array:
        """Returns the marginal distribution function at ``parameters``.

        Args:
          parameters: shaped like ``mean``.
        """

    @abc.abstractmethod
    def quantile(self, probability: float) -> Array:
        """Returns the marginal quantiles."""

    @abc.abstractmethod
    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns draws of the parameters on a new leading axis."""

    def interval(self, level: float) -> Interval:
        """Returns the marginal central credible intervals of probability ``level``."""
        check_level(level)
        return Interval(self.quantile((1 - level) / 2), self.quantile((1 + level) / 2))


@dataclass(frozen=True)
class BetaPosterior(Posterior):
    """Beta posterior of a probability.

    >>> posterior = BetaPosterior(np.float64(3), np.float64(1))
    >>> float(posterior.mean), float(posterior.interval(0.9).low)
    (0.75, 0.3684)
    """

    alpha: Array
    beta: Array

    @property
    def mean(self) -> Array:
        """alpha / (alpha + beta)."""
        return self.alpha / (self.alpha + self.beta)

    def cdf(self, parameters: Any) -> Array:
        """The regularised incomplete beta function."""
        return np.asarray(special.betainc(self.alpha, self.beta, parameters), np.float64)

    def quantile(self, probability: float) -> Array:
        """Its inverse."""
        return np.asarray(special.betaincinv(self.alpha, self.beta, probability), np.float64)

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns probabilities, of shape ``(num_samples, ...)``."""
        shape = _draws(num_samples, self.alpha)
        return jax.random.beta(as_key(key), jnp.array(self.alpha), jnp.array(self.beta), shape)


@dataclass(frozen=True)
class DirichletPosterior(Posterior):
    """Dirichlet posterior of the probabilities of K categories, ``concentration`` ``(..., K)``."""

    concentration: Array

    @property
    def mean(self) -> Array:
        """Concentration over its sum."""
        return self.concentration / self.concentration.sum(axis=-1, keepdims=True)

    def cdf(self, parameters: Any) -> Array:
        """Marginal beta distribution of each category."""
        return self._marginals().cdf(parameters)

    def quantile(self, probability: float) -> Array:
        """Marginal beta distribution of each category."""
        return self._marginals().quantile(probability)

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns probabilities of sum one, of shape ``(num_samples, ..., K)``."""
        shape = _draws(num_samples, self.concentration[..., 0])
        return jax.random.dirichlet(as_key(key), jnp.array(self.concentration), shape)

    def _marginals(self) -> BetaPosterior:
        rest = self.concentration.sum(axis=-1, keepdims=True) - self.concentration
        return BetaPosterior(self.concentration, rest)


@dataclass(frozen=True)
class GammaPosterior(Posterior):
    """Gamma posterior of a Poisson rate, of density ~ theta^(shape - 1) exp(-rate theta)."""

    shape: Array
    rate: Array

    @property
    def mean(self) -> Array:
        """Shape / rate."""
        return self.shape / self.rate

    def cdf(self, parameters: Any) -> Array:
        """The regularised lower incomplete gamma function."""
        return special.gammainc(self.shape, self.rate * parameters)

    def quantile(self, probability: float) -> Array:
        """Its inverse."""
        return special.gammaincinv(self.shape, probability) / self.rate

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns rates, of shape ``(num_samples, ...)``."""
        shape = _draws(num_samples, self.shape)
        return jax.random.gamma(as_key(key), jnp.array(self.shape), shape) / jnp.array(self.rate)


@dataclass(frozen=True)
class NormalPosterior(Posterior):
    """Normal posterior of a mean: N(``centre``, ``variance``)."""

    centre: Array
    variance: Array

    @property
    def mean(self) -> Array:
        """The centre."""
        return self.centre

    def cdf(self, parameters: Any) -> Array:
        """Normal distribution."""
        return special.ndtr((parameters - self.centre) / np.sqrt(self.variance))

    def quantile(self, probability: float) -> Array:
        """Normal distribution."""
        return self.centre + np.sqrt(self.variance) * special.ndtri(probability)

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns means, of shape ``(num_samples, ...)``."""
        noise = jax.random.normal(as_key(key), _draws(num_samples, self.centre))
        return jnp.array(self.centre) + noise * jnp.sqrt(jnp.array(self.variance))


@dataclass(frozen=True)
class NormalInverseGammaPosterior(Posterior):
    """Normal-inverse-gamma posterior of a mean and a variance, ``(..., 2)``.

    The variance is inverse gamma of ``shape`` and ``scale``; given it, the mean is
    N(``centre``, variance / ``strength``). The marginal distribution of the mean is Student's t.
    """

    centre: Array
    strength: Array
    shape: Array
    scale: Array

    @property
    def mean(self) -> Array:
        """The centre, and scale / (shape - 1): infinite up to a shape of one."""
        heavy = self.shape <= 1
        variance = np.where(heavy, np.inf, self.scale / np.where(heavy, 1.0, self.shape - 1))
        return np.stack([self.centre, variance], axis=-1)

    def cdf(self, parameters: Any) -> Array:
        """Marginal Student's t and inverse gamma distributions; the variance is above zero."""
        mean, variance = np.moveaxis(np.asarray(parameters), -1, 0)
        below = special.stdtr(2 * self.shape, (mean - self.centre) / self._spread())
        return np.stack([below, special.gammaincc(self.shape, self.scale / variance)], axis=-1)

    def quantile(self, probability: float) -> Array:
        """Marginal Student's t and inverse gamma distributions."""
        mean = self.centre + self._spread() * special.stdtrit(2 * self.shape, probability)
        variance = self.scale / special.gammainccinv(self.shape, probability)
        return np.stack([mean, variance], axis=-1)

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns means and variances, of shape ``(num_samples, ..., 2)``."""
        first, second = jax.random.split(as_key(key))
        variance = 1 / GammaPosterior(self.shape, self.scale).sample(first, num_samples)
        noise = jax.random.normal(second, variance.shape)
        mean = jnp.array(self.centre) + noise * jnp.sqrt(variance / jnp.array(self.strength))
        return jnp.stack([mean, variance], axis=-1)

    def _spread(self) -> Array:
        """Scale of the mean's marginal t distribution."""
        return np.sqrt(self.scale / (self.shape * self.strength))


def _draws(num_samples: int, batch: Any) -> tuple[int, ...]:
    check_count("num_samples", num_samples)
    return (num_samples, *np.shape(batch))


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
        """Effective sample size of the importance weights, 1 / sum of squares.

        The Monte Carlo error of a mean is the standard deviation over its root. Use more particles
        where it is below about a hundred.
        """
        return 1 / (self.weights**2).sum(axis=0)

    @property
    def mean(self) -> Array:
        """The weighted mean of the components' means."""
        return self._weighted(self.components.mean)

    def cdf(self, parameters: Any) -> Array:
        """The weighted mean of the components' distribution functions."""
        return self._weighted(self.components.cdf(parameters))

    def quantile(self, probability: float) -> Array:
        """Returns the quantiles, by bisection between those of the components.

        Slow for very many data sets: coverage of an interval can be read off ``cdf`` instead.
        """
        check_delta(probability, "probability")
        quantiles = self.components.quantile(probability)
        low, high = quantiles.min(axis=0), quantiles.max(axis=0)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            below = self.cdf(middle) < probability
            low, high = np.where(below, middle, low), np.where(below, high, middle)
        return (low + high) / 2

    def sample(self, key: jax.Array, num_samples: int) -> jax.Array:
        """Returns draws: a component by its weight, then the parameters from it."""
        check_count("num_samples", num_samples)
        first, second = jax.random.split(as_key(key))
        shape = (num_samples, *self.weights.shape[1:])
        with np.errstate(divide="ignore"):
            logits = np.moveaxis(np.log(self.weights), 0, -1)
        chosen = np.asarray(jax.random.categorical(first, logits, shape=shape))
        drawn = {
            field.name: self._take(getattr(self.components, field.name), chosen)
            for field in dataclasses.fields(self.components)  # type: ignore[arg-type]
        }
        return dataclasses.replace(self.components, **drawn).sample(second, 1)[0]  # type: ignore[type-var]

    def _weighted(self, values: Array) -> Array:
        return (self._aligned(self.weights, values) * values).sum(axis=0)

    def _take(self, field: Array, chosen: Any) -> Array:
        return np.take_along_axis(field, self._aligned(chosen, field), axis=0)

    def _aligned(self, indexed: Any, values: Array) -> Any:
        """Adds an axis at the end for parameters of several entries."""
        return indexed[..., None] if values.ndim > self.weights.ndim else indexed
