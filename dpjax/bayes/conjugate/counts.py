"""Conjugate families of integers: beta-binomial, Dirichlet-multinomial and gamma-Poisson."""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from dpjax._checks import check, check_count, check_positive
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.bayes.conjugate.family import BoundedSum, ConjugateFamily, Encoding, Sums, clip_records
from dpjax.bayes.conjugate.posteriors import (
    Array,
    BetaPosterior,
    DirichletPosterior,
    GammaPosterior,
)
from dpjax.sensitivity import Norm, Sensitivity, of_histogram


@dataclass(frozen=True)
class BetaBinomial(BoundedSum):
    """Bernoulli records with probability theta of one; theta ~ Beta(``alpha``, ``beta``).

    Records are zeros and ones; other numbers are rounded to the nearer one, and NaN becomes zero.
    The number of ones is released and, where the number of records is private, that of zeros.

    Attributes:
      alpha: of the prior, above zero.
      beta: of the prior, above zero.

    Raises:
      ValueError: ``alpha`` or ``beta`` is not a finite number above zero.

    >>> family = BetaBinomial(alpha=1.0, beta=1.0)
    >>> float(family.exact_posterior(jnp.array([1, 1, 0, 1])).mean)
    0.6667
    >>> family.sensitivity(norm="l1", adjacency="add_remove").value
    1.0
    """

    alpha: float = 1.0
    beta: float = 1.0
    integer_valued: ClassVar[bool] = True
    description: ClassVar[str] = "zeros and ones"

    def __post_init__(self) -> None:
        check_positive("alpha", self.alpha)
        check_positive("beta", self.beta)

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the records as int32 ``(n, 1)``."""
        return _as_counts(records, 1)[:, None]

    def posterior(self, sums: Sums) -> BetaPosterior:
        """Returns Beta(alpha + ones, beta + zeros)."""
        ones, n = sums.total[..., 0], sums.num_examples
        return BetaPosterior(self.alpha + ones, self.beta + n - ones)

    def log_evidence(self, sums: Sums) -> Array:
        """Returns the beta-binomial log probability."""
        return _dirichlet_multinomial(_all_counts(sums), np.array([self.alpha, self.beta]))


@dataclass(frozen=True)
class DirichletMultinomial(ConjugateFamily):
    """Categorical records of K >= 2 categories; theta ~ Dirichlet(``concentration``).

    Records are integers 0 to K - 1; other numbers are rounded and clipped to these, and NaN becomes
    0. The histogram of all K categories is released, whose counts add up to the number of records.
    The statistic of a record omits the last category.

    Attributes:
      concentration: of the prior, K numbers above zero.

    Raises:
      ValueError: ``concentration`` is not a tuple of at least two numbers above zero.

    >>> family = DirichletMultinomial((1.0, 1.0, 1.0))
    >>> family.exact_posterior(jnp.array([0, 2, 2])).mean.round(2).tolist()
    [0.33, 0.17, 0.5]
    """

    concentration: tuple[float, ...]
    integer_valued: ClassVar[bool] = True

    def __post_init__(self) -> None:
        several = isinstance(self.concentration, tuple) and len(self.concentration) >= 2
        check(several, "concentration", self.concentration, "a tuple of at least two numbers > 0")
        for number in self.concentration:
            check_positive("concentration", number)

    @property
    def description(self) -> str:
        """The number of categories, as text."""
        return f"one of {len(self.concentration)} categories"

    @property
    def statistic_bounds(self) -> tuple[Array, Array]:
        """Bounds on a record's statistic: zero and one, for every category but the last."""
        size = len(self.concentration) - 1
        return np.zeros(size), np.ones(size)

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns one-hot categories without the last, int32 ``(n, K - 1)``."""
        size = len(self.concentration)
        return jax.nn.one_hot(_as_counts(records, size - 1), size, dtype=jnp.int32)[:, :-1]

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Returns the counts of all categories, whatever the adjacency."""
        check_adjacency(adjacency)
        size = len(self.concentration) - 1
        return Encoding(np.vstack([np.eye(size), -np.ones(size)]), np.eye(size + 1)[-1])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Returns the sensitivity of a histogram."""
        return of_histogram(len(self.concentration), norm=norm, adjacency=adjacency)

    def repair(self, sums: Sums) -> Sums:
        """Returns sums whose negative counts are clipped to zero, and all scaled to the sum n."""
        n = np.maximum(sums.num_examples, 1.0)
        counts = np.maximum(_all_counts(sums), 0.0)
        all_counts = np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300)
        return Sums((counts * (n[..., None] / all_counts))[..., :-1], n)

    def posterior(self, sums: Sums) -> DirichletPosterior:
        """Returns Dirichlet(concentration + counts)."""
        return DirichletPosterior(np.array(self.concentration) + _all_counts(sums))

    def log_evidence(self, sums: Sums) -> Array:
        """Returns the Dirichlet-multinomial log probability."""
        return _dirichlet_multinomial(_all_counts(sums), np.array(self.concentration))


@dataclass(frozen=True, kw_only=True)
class GammaPoisson(BoundedSum):
    """Poisson counts with rate theta ~ Gamma(``shape``, ``rate``), of mean shape / rate.

    Records are rounded and clipped to 0 .. ``largest_count``; NaN becomes zero. Their sum is
    released and, where the number n of records is private, ``n largest_count`` less the sum.

    Attributes:
      shape: of the prior, above zero.
      rate: of the prior, above zero.
      largest_count: a public integer, which should exceed nearly all records.

    Raises:
      ValueError: a number that is not above zero, or a ``largest_count`` that is not whole.

    >>> family = GammaPoisson(shape=2.0, rate=1.0, largest_count=10)
    >>> float(family.exact_posterior(jnp.array([3, 0, 99])).mean)
    3.75
    >>> family.sensitivity(norm="l1", adjacency="replace_one").value
    10.0
    """

    shape: float
    rate: float
    largest_count: int
    integer_valued: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_positive("shape", self.shape)
        check_positive("rate", self.rate)
        check_count("largest_count", self.largest_count)

    @property
    def description(self) -> str:
        """The range of the counts, as text."""
        return f"counts clipped to 0 .. {self.largest_count}"

    @property
    def upper_bound(self) -> int:  # type: ignore[override]
        """The largest count."""
        return self.largest_count

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the clipped counts, int32 ``(n, 1)``."""
        return _as_counts(records, self.largest_count)[:, None]

    def posterior(self, sums: Sums) -> GammaPosterior:
        """Returns Gamma(shape + sum, rate + n)."""
        return GammaPosterior(self.shape + sums.total[..., 0], self.rate + sums.num_examples)

    def log_evidence(self, sums: Sums) -> Array:
        """Returns the negative binomial log probability."""
        total, n = sums.total[..., 0], sums.num_examples
        coefficient = gammaln(self.shape + total) - gammaln(self.shape) - gammaln(total + 1)
        share = n / (self.rate + n)
        log_probability = coefficient + self.shape * np.log1p(-share) + xlogy(total, share)
        return np.where(total >= 0, log_probability, -math.inf)


def _as_counts(records: npt.ArrayLike, largest: int) -> jax.Array:
    """Rounded and clipped to 0 .. ``largest``, as int32."""
    return jnp.rint(clip_records(records, (0, largest))).astype(jnp.int32)


def _all_counts(sums: Sums) -> Array:
    """The counts of all categories, the last one included, which the statistic omits."""
    last = sums.num_examples - sums.total.sum(axis=-1)
    return np.concatenate([sums.total, last[..., None]], axis=-1)


def _dirichlet_multinomial(counts: Array, concentration: Array) -> Array:
    """Log probability of counts on the last axis."""
    alphas, n = concentration.sum(), counts.sum(axis=-1)
    terms = gammaln(concentration + counts) - gammaln(concentration) - gammaln(counts + 1)
    log_probability = terms.sum(axis=-1) + gammaln(n + 1) + gammaln(alphas) - gammaln(alphas + n)
    return np.where((counts >= 0).all(axis=-1), log_probability, -math.inf)
