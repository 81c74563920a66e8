"""Noise-aware posteriors of conjugate families, by importance sampling of the exact sums."""

from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt
from scipy.stats import laplace

from dpjax._checks import as_key, check, check_count, check_type
from dpjax._typing import PRNGKey
from dpjax.bayes.conjugate.families import SufficientStatistics
from dpjax.bayes.conjugate.posteriors import Array, Mixture
from dpjax.bayes.conjugate.release import SufficientStatisticsMechanism, estimate_sums
from dpjax.mechanisms import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace

# Iterations of adaptive importance sampling; the last one's particles are returned.
_ROUNDS = 6
# Share of the particles whose weights are clipped when the next proposal is fitted.
_CLIPPED_SHARE = 0.03
# Too light tails cost far more effective samples than too heavy ones.
_WIDER = 1.3


def noise_aware_posterior(
    key: PRNGKey,
    release: SufficientStatisticsMechanism,
    released: npt.ArrayLike,
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

    Returns:
      A mixture with one component for each particle.

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
    >>> release = SufficientStatisticsMechanism(family, noise)
    >>> aware = noise_aware_posterior(jax.random.key(0), release, [25.0], num_examples=40)
    >>> naive = naive_posterior(release, [25.0], num_examples=40)
    >>> [round(float(end), 1) for end in (*naive.interval(0.9), *aware.interval(0.9))]
    [0.5, 0.7, 0.3, 0.9]
    """
    check_count("num_particles", num_particles)
    check_type("release", release, SufficientStatisticsMechanism, "a SufficientStatisticsMechanism")
    entries, n = release.check_released(released, num_examples)

    # Adaptive importance sampling of the exact sums, from the entries nearest to the released ones.
    proposal = _initial_proposal(release, entries, n)
    for round_key in jax.random.split(as_key(key), _ROUNDS):
        uniforms = jax.random.uniform(round_key, (num_particles, *proposal.centre.shape))
        # In the open interval (0, 1).
        drawn = proposal.draw(np.asarray(uniforms, np.float64) + 2.0**-25)
        sums = release.family.decode(drawn, n, release.adjacency)

        # Weights of the draws, and the next proposal.
        log_weights = _log_target(release, entries, sums) - proposal.log_density(drawn)
        possible = bool(np.isfinite(log_weights).any(axis=0).all())
        allowed = "more: no particle is possible for some release"
        check(possible, "num_particles", num_particles, allowed)
        proposal = proposal.fit(drawn, log_weights, 0.3 * float(release.mechanism.scale))

    # Impossible sums have weight zero, but their posterior must be finite.
    posteriors = release.family.posterior(release.family.repair(sums))
    return Mixture(posteriors, normalize_weights(log_weights))


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
        start = laplace.cdf(self.low - margin, self.centre, self.scale)
        end = laplace.cdf(self.high + margin, self.centre, self.scale)
        drawn = laplace.ppf(start + uniforms * (end - start), self.centre, self.scale)
        return np.rint(drawn) if self.integer_valued else np.clip(drawn, self.low, self.high)

    def log_density(self, drawn: Array) -> Array:
        """Returns the log density ``(M, ...)``, up to a constant for each data set."""
        deviations = np.abs(drawn - self.centre)
        if not self.integer_valued:
            return -(deviations / self.scale).sum(axis=-1)
        inner, outer = ((end - deviations) / self.scale for end in (0.5, -0.5))
        probability = laplace.cdf(inner) - laplace.cdf(outer)
        return np.log(np.maximum(probability, 1e-300)).sum(axis=-1)

    def fit(self, drawn: Array, log_weights: Array, least_scale: float) -> "Proposal":
        """Returns a proposal fitted to weighted draws ``(M, ..., m)``.

        The largest weights are clipped (Koblents & Míguez 2015, section 3).
        """
        rank = len(log_weights) - 1 - int(_CLIPPED_SHARE * len(log_weights))
        largest = np.partition(log_weights, rank, axis=0)[rank]
        least_possible = np.where(np.isfinite(log_weights), log_weights, np.inf).min(axis=0)
        clipped = np.minimum(log_weights, np.maximum(largest, least_possible))
        weights = normalize_weights(clipped)[..., None]
        centre = (weights * drawn).sum(axis=0)
        spread = (weights * np.abs(drawn - centre)).sum(axis=0)
        scale = np.maximum(_WIDER * spread, least_scale)
        return Proposal(centre, scale, self.low, self.high, self.integer_valued)


def normalize_weights(log_weights: Array) -> Array:
    """Returns weights of sum one over the first axis; one log weight at least must be finite."""
    weights = np.exp(log_weights - log_weights.max(axis=0))
    return weights / weights.sum(axis=0)


def _log_target(
    release: SufficientStatisticsMechanism, entries: Array, sums: SufficientStatistics
) -> Array:
    """Log density, up to a constant, of the exact sums given the released entries."""
    family, mechanism = release.family, release.mechanism
    with np.errstate(all="ignore"):
        log_evidence = family.log_evidence(sums)
    # The tolerance is for rounding: integers are decoded by a division.
    log_prior = np.where(sums.num_examples < 1 - 1e-9, -np.inf, log_evidence)
    scaled = (entries - family.encode(sums, release.adjacency)) / float(mechanism.scale)
    if isinstance(mechanism, Laplace | DiscreteLaplace):
        return log_prior - np.abs(scaled).sum(axis=-1)
    if isinstance(mechanism, Gaussian | DiscreteGaussian):
        return log_prior - (scaled**2).sum(axis=-1) / 2
    raise TypeError(f"mechanism must add Laplace or Gaussian noise, got {mechanism!r}")


def _initial_proposal(
    release: SufficientStatisticsMechanism, entries: Array, num_examples: np.float64 | None
) -> Proposal:
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
