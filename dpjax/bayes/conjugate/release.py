"""Private release of a conjugate family's sufficient statistics."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Self

import jax
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, as_numbers, check, check_count, check_type
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, is_size_public
from dpjax.bayes.conjugate.families import ConjugateFamily, SufficientStatistics
from dpjax.bayes.conjugate.posteriors import Array, Posterior
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import call_on_host
from dpjax.mechanisms.additive import AdditiveNoise
from dpjax.mechanisms.record_sum import RecordSum, SumPart, unweighted_part
from dpjax.sensitivity import SUM_ROUNDING, sum_in_blocks


@dataclass(frozen=True)
class SufficientStatisticsMechanism(RecordSum):
    """Releases the summed sufficient statistics of a conjugate family once, with noise.

    Clipping, sums, noise, event and posteriors are all derived from family and mechanism.

    Attributes:
      family: prior, likelihood and public bounds.
      mechanism: `Laplace` or `Gaussian`, or for integer-valued families `DiscreteLaplace` or
        `DiscreteGaussian`.

    Privacy:
      The result of ``release`` is released, under the adjacency of the mechanism's sensitivity.
      Under ``"add_remove"`` the number of records is private: the released entries determine it
      with noise (see the family), and it must not be published. Otherwise it is public. Posteriors
      are post-processing.

    Raises:
      TypeError: ``mechanism`` adds no noise to a statistic.
      ValueError: its sensitivity is below that of the family, or of another shape; or its noise is
        discrete and the family is not integer-valued.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.conjugate import BetaBinomial
    >>> from dpjax.mechanisms import Laplace
    >>> family = BetaBinomial(alpha=1.0, beta=1.0)
    >>> sensitivity = family.sensitivity(norm="l1", adjacency="replace_one")
    >>> noise = Laplace.from_epsilon(sensitivity, epsilon=0.5)
    >>> release = SufficientStatisticsMechanism(family, noise)
    >>> noisy = release.release(jax.random.key(0), jnp.array([1, 0, 1, 1]))
    >>> noisy.shape, release.certificate(1e-6).epsilon <= 0.5 + 1e-6
    ((1,), True)
    """

    family: ConjugateFamily
    mechanism: AdditiveNoise

    def __post_init__(self) -> None:
        if not isinstance(self.mechanism, AdditiveNoise):
            raise TypeError(f"mechanism must add noise to a statistic, got {self.mechanism!r}")
        check_type("family", self.family, ConjugateFamily, "a ConjugateFamily")
        stated = self.mechanism.sensitivity
        needed = self.family.sensitivity(norm=stated.norm, adjacency=stated.adjacency)
        allowed = f"at least {needed.value:.6g}, that of the family in {stated.norm}"
        check(stated.value >= needed.value, "mechanism's sensitivity", stated.value, allowed)
        allowed = f"{needed.shape}, that of the family's statistics"
        check(stated.shape == needed.shape, "sensitivity's shape", stated.shape, allowed)
        fits = self.family.integer_valued or not self.mechanism.integer_valued
        check(
            fits, "mechanism", self.mechanism, "continuous noise: the statistics are not integers"
        )

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency under which the mechanism is private."""
        return self.mechanism.adjacency

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        public = is_size_public(self.adjacency)
        count = "public" if public else "private; determined by the release, with noise"
        records = f"{self.family.description}; summed sufficient statistics are released"
        return self.mechanism.guarantee.with_description(
            {"records": records, "number of records": count}
        )

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the same release with the noise's scale times ``factor``."""
        return dataclasses.replace(self, mechanism=self.mechanism.with_privacy_factor(factor))

    def release(self, key: PRNGKey, records: npt.ArrayLike) -> Any:
        """Returns the noisy sums ``(m,)`` of clipped records; works under jit and vmap.

        Summed on the host, in float64, or exactly for integers. This is what is released.

        Args:
          key: a JAX key; a secret.
          records: ``(n,)``, or as the family has it; n = 0 gives noise alone.

        Returns:
          Numpy's float64, or int64 from a discrete mechanism; JAX's default dtypes under jit.
        """
        statistics = as_numbers(self.family.statistic(records))
        dtype = np.int64 if self.mechanism.integer_valued else np.float64
        result = [jax.ShapeDtypeStruct((self._num_entries,), dtype)]
        return call_on_host(self._noisy_sums, key, [statistics], result)[0]

    @property
    def sum_parts(self) -> tuple[SumPart, ...]:
        return (unweighted_part(self.mechanism),)

    def sum_records(self, *records: npt.ArrayLike) -> np.ndarray:
        """Returns the sums ``(m,)`` of clipped records, without noise.

        Args:
          *records: one array ``(n,)``, or as the family has it.
        """
        (values,) = records
        return self._encoded_sums(np.asarray(as_numbers(self.family.statistic(values))))

    def from_sum(self, noisy: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
        """Returns ``noisy``: the entries are what is released."""
        return noisy

    @property
    def _num_entries(self) -> int:
        """The number of released entries, m."""
        return len(self.family.encoding(self.adjacency).offset)

    def _encoded_sums(self, statistics: np.ndarray) -> np.ndarray:
        total = sum_in_blocks(statistics, axis=-2)
        return self.family.encode(SufficientStatistics(total, statistics.shape[-2]), self.adjacency)

    def _noisy_sums(self, key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        exact = self._encoded_sums(arrays[0])
        rounding = 0.0 if self.family.integer_valued else SUM_ROUNDING
        return self.mechanism.add_noise(key_bits, [exact], rounding=rounding)

    def check_released(
        self, released: npt.ArrayLike, num_examples: int | None
    ) -> tuple[Array, np.float64 | None]:
        """Returns noisy entries and the public number of records in float64.

        Args:
          released: noisy entries ``(..., m)``.
          num_examples: ``None`` under ``"add_remove"``, else public.

        Raises:
          ValueError: entries that are not finite or too few; a number of records that is missing,
            or given though it is private.
        """
        size = self._num_entries
        entries = as_float64(released, "released")
        fine = entries.ndim > 0 and entries.shape[-1] == size and bool(np.isfinite(entries).all())
        check(fine, "released", released, f"finite numbers, {size} on the last axis")
        if not is_size_public(self.adjacency):
            check(num_examples is None, "num_examples", num_examples, "None: it is private")
            return entries, None
        check_count("num_examples", num_examples)
        return entries, np.float64(num_examples)


def naive_posterior(
    release: SufficientStatisticsMechanism, released: npt.ArrayLike, num_examples: int | None = None
) -> Posterior:
    """Returns the posterior that treats noisy sums, projected to attainable ones, as exact.

    Its mean converges to the exact one as the number of records grows, but its intervals ignore the
    noise and can be too short: see `noise_aware_posterior`.

    Args:
      release: the mechanism that made ``released``.
      released: result of ``release.release``, ``(..., m)``; one posterior for each batch entry.
      num_examples: the number of records; ``None`` under ``"add_remove"``, where it is private.

    Privacy:
      Post-processing of the release.

    Raises:
      ValueError: entries that are not finite or too few; a number of records that is missing, or
        given though it is private.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.conjugate import BetaBinomial
    >>> from dpjax.mechanisms import Laplace
    >>> family = BetaBinomial(alpha=1.0, beta=1.0)
    >>> noise = Laplace(family.sensitivity(norm="l1", adjacency="replace_one"), scale=2.0)
    >>> release = SufficientStatisticsMechanism(family, noise)
    >>> float(naive_posterior(release, [-1.7], num_examples=8).mean)
    0.1
    """
    check_type("release", release, SufficientStatisticsMechanism, "a SufficientStatisticsMechanism")
    entries, n = release.check_released(released, num_examples)
    return release.family.posterior(estimate_sums(release, entries, n))


def estimate_sums(
    release: SufficientStatisticsMechanism, entries: Array, num_examples: np.float64 | None
) -> SufficientStatistics:
    """Returns the sums that checked entries determine, projected to attainable ones."""
    family = release.family
    return family.repair(family.decode(entries, num_examples, release.adjacency))
