"""Noise-aware posteriors of conjugate families, by importance sampling of the exact sums."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from dpjax._validation import as_key, check, check_count
from dpjax.bayes.conjugate.family import Sums
from dpjax.bayes.conjugate.posteriors import Array, Mixture
from dpjax.bayes.conjugate.release import StatisticRelease, estimate_sums
from dpjax.mechanisms import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from dpjax.mechanisms.base import NoisyStatistic

# Iterations of adaptive importance sampling; the last one's particles are returned.
_ROUNDS = 6
# Share of the particles whose weights are clipped when the next proposal is fitted.
_CLIPPED_SHARE = 0.03


# Too light tails cost far more effective samples than too heavy ones.
_WIDER = 1.3


def noise_aware_posterior(
    key: jax.Array,
    release: StatisticRelease,
    released: Any,
    *,
    num_examples: int | None = None,
    num_particles: int = 1000,
) -> Mixture:
    """Returns the posterior given the released statistics y, with the noise in the model.

    Given the exact sums s, theta is independent of y and its posterior is conjugate:

      p(theta | y) = sum over s of p(theta | s) p(s | y),   p(s | y) ~ p(s) p(y | s).

    So the posterior is a mixture of conjugate posteriors. The sums are sampled by adaptive
    importance sampling, within the public bounds, with p(s) in closed form from the family and
    p(y | s) from the mechanism; the only approximation is the number of particles (see
    ``Mixture.effective_sample_size``). Integer sums are drawn as integers. Where the number n of
    records is private, it is drawn too, under a flat prior on n >= 1. As the noise goes to zero
    this is the conjugate posterior.

    Args:
      key: a JAX key for the particles, which need not be secret.
      release: the mechanism that made ``released``.
      released: result of ``release.release``, ``(..., m)``; one posterior for each batch entry.
      num_examples: the number of records; ``None`` under ``"add_remove"``, where it is private.
      num_particles: of each posterior.

    Privacy:
      Post-processing of the release.

    Source: Bernstein & Sheldon (2018), whose Gibbs sampler approximates p(s | theta) by a normal
    distribution.

    Raises:
      ValueError: entries that are not finite or too few; a number of records that is missing, or
        given though it is private; no particle is possible.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.conjugate import BetaBinomial, naive_posterior
    >>> from dpjax.mechanisms import Laplace
    >>> family = BetaBinomial(alpha=1.0, beta=1.0)
    >>> noise = Laplace(family.sensitivity(norm="l1", adjacency="replace_one"), scale=10.0)
    >>> release = StatisticRelease(family, noise)
    >>> aware = noise_aware_posterior(jax.random.key(0), release, [25.0], num_examples=40)
    >>> naive = naive_posterior(release, [25.0], num_examples=40)
    >>> [round(float(end), 1) for end in (*naive.interval(0.9), *aware.interval(0.9))]
    [0.5, 0.7, 0.3, 0.9]
    """
    check_count("num_particles", num_particles)
    entries, n = release.check_released(released, num_examples)
    target = _Target(release, entries, n)
    proposal = _initial_proposal(release, entries, n)
    keys = jax.random.split(as_key(key), _ROUNDS)
    drawn, log_weights = _weighted_draws(keys[0], target, proposal, num_particles)
    for round_key in keys[1:]:
        proposal = proposal.fit(drawn, log_weights, 0.3 * float(release.mechanism.scale))
        drawn, log_weights = _weighted_draws(round_key, target, proposal, num_particles)
    # Impossible sums have weight zero, but their posterior must be finite.
    possible = release.family.repair(target.sums(drawn))
    return Mixture(release.family.posterior(possible), normalize_weights(log_weights))


@dataclass(frozen=True)
class Proposal:
    """Proposal of importance sampling: independent truncated Laplace distributions.

    Attributes:
      centre: ``(..., m)``, within the bounds.
      scale: of the same shape.
      low: lower bounds ``(m,)``, may be minus infinity.
      high: upper bounds ``(m,)``, may be infinity.
      integer_valued: whether draws are rounded to integers.
    """

    centre: Array
    scale: Array
    low: Array
    high: Array
    integer_valued: bool

    def draw(self, uniforms: Array) -> Array:
        """Returns draws ``(M, ..., m)`` from uniform numbers of the same shape in (0, 1)."""
        margin = 0.5 if self.integer_valued else 0.0
        start = _cdf((self.low - margin - self.centre) / self.scale)
        end = _cdf((self.high + margin - self.centre) / self.scale)
        drawn = self.centre + self.scale * _quantile(start + uniforms * (end - start))
        return np.rint(drawn) if self.integer_valued else np.clip(drawn, self.low, self.high)

    def log_density(self, drawn: Array) -> Array:
        """Returns the log density ``(M, ...)``, up to a constant for each data set."""
        deviations = np.abs(drawn - self.centre)
        if not self.integer_valued:
            return -(deviations / self.scale).sum(axis=-1)
        inner, outer = ((end - deviations) / self.scale for end in (0.5, -0.5))
        return np.log(np.maximum(_cdf(inner) - _cdf(outer), 1e-300)).sum(axis=-1)

    def fit(self, drawn: Array, log_weights: Array, least_scale: float) -> "Proposal":
        """Returns a proposal fitted to weighted draws, the largest weights clipped.

        Source: Koblents & Míguez (2015), section 3 (clipping of weights).
        """
        weights = normalize_weights(_clip_largest(log_weights))[..., None]
        centre = (weights * drawn).sum(axis=0)
        spread = (weights * np.abs(drawn - centre)).sum(axis=0)
        scale = np.maximum(_WIDER * spread, least_scale)
        return Proposal(centre, scale, self.low, self.high, self.integer_valued)


def normalize_weights(log_weights: Array) -> Array:
    """Returns weights of sum one over the first axis; one log weight at least must be finite."""
    weights = np.exp(log_weights - log_weights.max(axis=0))
    return weights / weights.sum(axis=0)


def _clip_largest(log_weights: Array) -> Array:
    kept = len(log_weights) - 1 - int(_CLIPPED_SHARE * len(log_weights))
    most = np.partition(log_weights, kept, axis=0)[kept]
    least_possible = np.where(np.isfinite(log_weights), log_weights, np.inf).min(axis=0)
    return np.minimum(log_weights, np.maximum(most, least_possible))


def _cdf(x: Array) -> Array:
    tail = np.exp(-np.abs(x)) / 2
    return np.where(x < 0, tail, 1 - tail)


def _quantile(probability: Array) -> Array:
    tail = np.log(2 * np.minimum(probability, 1 - probability))
    return np.where(probability < 0.5, tail, -tail)


class _Target(NamedTuple):
    """Distribution of the exact sums given the released statistics."""

    release: StatisticRelease
    entries: Array
    num_examples: Any

    def sums(self, drawn: Array) -> Sums:
        return self.release.family.decode(drawn, self.num_examples, self.release.adjacency)

    def log_density(self, drawn: Array) -> Array:
        """Log density of the first entries, which determine the others for public n."""
        family, sums = self.release.family, self.sums(drawn)
        noise = self.entries - family.encode(sums, self.release.adjacency)
        with np.errstate(all="ignore"):
            log_evidence = family.log_evidence(sums)
        # The tolerance is for rounding: integers are decoded by a division.
        log_prior = np.where(sums.num_examples < 1 - 1e-9, -np.inf, log_evidence)
        return log_prior + _log_likelihood(self.release.mechanism, noise)


def _weighted_draws(
    key: jax.Array, target: _Target, proposal: Proposal, num_particles: int
) -> tuple[Array, Array]:
    uniforms = jax.random.uniform(key, (num_particles, *proposal.centre.shape))
    # In the open interval (0, 1).
    drawn = proposal.draw(np.asarray(uniforms, np.float64) + 2.0**-25)
    log_weights = target.log_density(drawn) - proposal.log_density(drawn)
    possible = bool(np.isfinite(log_weights).any(axis=0).all())
    allowed = "more: no particle is possible for some release"
    check(possible, "num_particles", num_particles, allowed)
    return drawn, log_weights


def _initial_proposal(release: StatisticRelease, entries: Array, num_examples: Any) -> Proposal:
    """Laplace distributions at the attainable entries nearest to y, of the noise's scale."""
    family = release.family
    size = family.encoding(release.adjacency).matrix.shape[1] + (num_examples is None)
    low, high = family.contribution_bounds(release.adjacency)
    if num_examples is None:
        low, high = np.where(low >= 0, 0.0, -np.inf), np.where(high <= 0, 0.0, np.inf)
    else:
        low, high = num_examples * low, num_examples * high
    nearest = family.encode(estimate_sums(release, entries, num_examples), release.adjacency)
    centre = np.clip(nearest, low, high)[..., :size]
    scale = np.full_like(centre, float(release.mechanism.scale))
    return Proposal(centre, scale, low[:size], high[:size], family.integer_valued)


def _log_likelihood(mechanism: NoisyStatistic, noise: Array) -> Array:
    """The log density, or probability, of noise ``(..., m)``, up to a constant."""
    scaled = noise / float(mechanism.scale)
    if isinstance(mechanism, Laplace | DiscreteLaplace):
        return -np.abs(scaled).sum(axis=-1)
    if isinstance(mechanism, Gaussian | DiscreteGaussian):
        return -(scaled**2).sum(axis=-1) / 2
    raise TypeError(f"mechanism must add Laplace or Gaussian noise, got {mechanism!r}")
