"""Conjugate families: likelihood, prior and public bounds on one record's statistic."""

import abc
import math
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar, Literal, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import gammaln, xlogy

from dpjax._checks import (
    as_finite,
    as_floats,
    check,
    check_choice,
    check_count,
    check_positive,
    is_traced,
)
from dpjax.adjacency import Adjacency, check_adjacency, is_size_public
from dpjax.bayes.conjugate.posteriors import (
    Array,
    BetaPosterior,
    DirichletPosterior,
    GammaPosterior,
    NormalInverseGammaPosterior,
    NormalPosterior,
    Posterior,
)
from dpjax.gradients.clipping import accumulator
from dpjax.sensitivity import (
    Norm,
    Sensitivity,
    checked_bounds,
    clip_to,
    of_histogram,
    of_sum,
    sum_in_blocks,
)


class SufficientStatistics(NamedTuple):
    """Sufficient statistics of a posterior: sums over the records, private until released.

    Attributes:
      total: the sum of the records' sufficient statistics, ``(..., k)``; traced under jit.
      num_examples: the number of records, ``(...)``; noisy sums need not have an integer.
    """

    total: Any  # an array of numpy, or of JAX under jit
    num_examples: Any


class Encoding(NamedTuple):
    """Linear map to the released entries ``matrix @ total + offset * num_examples``.

    Where the number of records is private, the first k + 1 entries determine it and the total;
    where it is public, the first k entries determine the total, and others only reduce the noise.

    Attributes:
      matrix: ``(m, k)``.
      offset: ``(m,)``.
    """

    matrix: Array
    offset: Array


class ConjugateFamily(abc.ABC):
    """Likelihood with a conjugate prior and public bounds on the sufficient statistic.

    A family is a frozen dataclass of prior and bounds. A subclass defines the sufficient statistic
    of a record, its bounds, the posterior, and the distribution of the sums. Records are clipped to
    the bounds in ``statistic``; the likelihood is that of unclipped records, so bounds that cut off
    much of the data bias every posterior.

    >>> from dataclasses import dataclass
    >>> import jax.numpy as jnp
    >>> from scipy.special import gammaln
    >>> from dpjax.bayes.conjugate.posteriors import GammaPosterior
    >>> from dpjax.sensitivity import clip_to
    >>> @dataclass(frozen=True)
    ... class GammaExponential(ConjugateFamily):
    ...     'Waiting times of rate theta, theta ~ Gamma(shape, rate).'
    ...     shape: float
    ...     rate: float
    ...     longest: float
    ...     description = 'waiting times'
    ...     @property
    ...     def statistic_bounds(self):
    ...         return np.zeros(1), np.array([self.longest])
    ...     def statistic(self, records):
    ...         return clip_to(records, (0, self.longest))[:, None]
    ...     def posterior(self, sums):
    ...         time, n = sums.total[..., 0], sums.num_examples
    ...         return GammaPosterior(self.shape + n, self.rate + time)
    ...     def log_evidence(self, sums):
    ...         (time, n), a, b = (sums.total[..., 0], sums.num_examples), self.shape, self.rate
    ...         log = gammaln(a + n) - gammaln(n) + (n - 1) * np.log(time)
    ...         return np.where(time > 0, log - (a + n) * np.log(b + time), -np.inf)
    >>> waiting = GammaExponential(shape=2.0, rate=1.0, longest=10.0)
    >>> waiting.sensitivity(norm="l1", adjacency="add_remove").value  # with the count
    11.0
    >>> float(waiting.exact_posterior(jnp.array([3.0, 40.0])).mean)
    0.2857
    """

    integer_valued: ClassVar[bool] = False

    @property
    @abc.abstractmethod
    def description(self) -> str:
        """Text for certificates: what a record is, and its bounds."""

    @property
    @abc.abstractmethod
    def statistic_bounds(self) -> tuple[Array, Array]:
        """Public lower and upper bounds on the statistic of one record, arrays ``(k,)``."""

    @abc.abstractmethod
    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the statistics ``(n, k)`` of clipped records; works under jit and vmap.

        They are within ``statistic_bounds`` for every record, also where one is NaN.

        Args:
          records: ``(n,)``, or as the family has it.
        """

    @abc.abstractmethod
    def posterior(self, sums: SufficientStatistics) -> Posterior:
        """Returns the conjugate posterior given exact sufficient statistics, one for each data set.

        Args:
          sums: of one data set, or with batch axes in front.
        """

    @abc.abstractmethod
    def log_evidence(self, sums: SufficientStatistics) -> Array:
        """Returns the log probability of the total under the prior, given the number of records.

        Up to a constant that depends on neither; minus infinity where the total is impossible.
        Float64 arrays, for each entry of their batch. The number of records is at least one and
        need not be an integer. Numpy's warnings are silenced by the caller.

        Args:
          sums: attainable sums.
        """

    def repair(self, sums: SufficientStatistics) -> SufficientStatistics:
        """Returns noisy sums projected to attainable ones: at least one record, within bounds.

        Args:
          sums: total and number of records, noise included.
        """
        n = np.maximum(sums.num_examples, 1.0)
        low, high = (n[..., None] * bound for bound in self.statistic_bounds)
        return SufficientStatistics(np.clip(sums.total, low, high), n)

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Returns the released entries: the total and, where it is private, the count.

        Args:
          adjacency: under ``"add_remove"`` the number of records is private.
        """
        size = len(self.statistic_bounds[0])
        identity = np.eye(size + 1)[: size if is_size_public(adjacency) else None]
        return Encoding(identity[:, :-1], identity[:, -1])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Returns the joint sensitivity of the released entries, that of a sum over a box.

        Exact where the statistic attains every corner of its box, and otherwise an upper bound.

        Args:
          norm: ``"l1"``, ``"l2"`` or ``"linf"``.
          adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
        """
        return of_sum(self.contribution_bounds(adjacency), norm=norm, adjacency=adjacency)

    def sums(self, records: npt.ArrayLike) -> SufficientStatistics:
        """Returns the exact sums of ``records``; works under jit and vmap.

        Summed in float64 or int64 on the host; under jit in JAX's default dtypes, whose rounding
        adds to the sensitivity. ``SufficientStatisticsMechanism`` sums on the host always.

        Args:
          records: as for ``statistic``; no records give zeros.

        Privacy:
          The sums are private, and not released here.

        Raises:
          ValueError: under jit, integers whose sum might exceed 2^31.
        """
        statistics = self.statistic(records)
        if not is_traced(statistics):
            return SufficientStatistics(sum_in_blocks(statistics), np.float64(statistics.shape[0]))
        largest = max(np.abs(bound).max(initial=0.0) for bound in self.statistic_bounds)
        fits = not self.integer_valued or statistics.shape[0] * largest < 2**31
        allowed = "so few that their sum is below 2^31 under jit"
        check(bool(fits), "records", f"{statistics.shape[0]} of them", allowed)
        dtype = accumulator(statistics) if jnp.issubdtype(statistics.dtype, jnp.floating) else None
        return SufficientStatistics(
            statistics.sum(axis=0, dtype=dtype), np.float64(statistics.shape[0])
        )

    def exact_posterior(self, records: npt.ArrayLike) -> Posterior:
        """Returns the posterior of clipped records.

        Args:
          records: as for ``statistic``.

        Privacy:
          Not private: a function of the exact sums.
        """
        return self.posterior(self.sums(records))

    def contribution_bounds(self, adjacency: Adjacency) -> tuple[Array, Array]:
        """Returns lower and upper bounds ``(m,)`` on one record's released entries.

        Args:
          adjacency: of the release.
        """
        encoding, (low, high) = self.encoding(adjacency), self.statistic_bounds
        ends = np.stack([encoding.matrix * low, encoding.matrix * high])
        lows, highs = (end.sum(axis=1) + encoding.offset for end in (ends.min(0), ends.max(0)))
        return lows, highs

    def encode(self, sums: SufficientStatistics, adjacency: Adjacency) -> np.ndarray:
        """Returns the entries to release ``(..., m)``, without noise.

        Args:
          sums: exact sums.
          adjacency: of the release.
        """
        dtype = sums.total.dtype
        matrix, offset = (part.astype(dtype) for part in self.encoding(adjacency))
        count = np.asarray(sums.num_examples).astype(dtype)[..., None]
        # Not a product of matrices, which some devices round.
        return (sums.total[..., None, :] * matrix).sum(-1) + count * offset

    def decode(
        self, released: Array, num_examples: np.float64 | Array | int | None, adjacency: Adjacency
    ) -> SufficientStatistics:
        """Returns the noisy sufficient statistics that released entries determine, in float64.

        Args:
          released: ``(..., m)``; redundant entries at the end are not read.
          num_examples: ``None`` under ``"add_remove"``, else public.
          adjacency: of the release.
        """
        matrix, offset = self.encoding(adjacency)
        size = matrix.shape[1]
        if num_examples is None:
            inverse = np.linalg.inv(np.column_stack([matrix, offset])[: size + 1])
            solved = released[..., : size + 1] @ inverse.T
            return SufficientStatistics(solved[..., :-1], solved[..., -1])
        n = np.broadcast_to(np.asarray(num_examples, np.float64), released.shape[:-1])
        total = released[..., :size] - n[..., None] * offset[:size]
        return SufficientStatistics(total @ np.linalg.inv(matrix[:size]).T, n)


class BoundedSum(ConjugateFamily):
    """Family whose statistic is one number in [0, ``upper_bound``], by default in [0, 1].

    Where the number n of records is private, a record adds its statistic s to one released entry
    and upper_bound - s to another. The two add up to n times the upper bound, so they determine n
    with the sensitivity of the sum alone.
    """

    upper_bound: ClassVar[float] = 1.0

    @property
    def statistic_bounds(self) -> tuple[Array, Array]:
        """Bounds on a record's statistic: zero and ``upper_bound``, each of shape ``(1,)``."""
        return np.zeros(1), np.full(1, float(self.upper_bound))

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Returns the sum and, where the number of records is private, its complement."""
        size = 1 if is_size_public(adjacency) else 2
        return Encoding(np.array([[1.0], [-1.0]])[:size], np.array([0.0, self.upper_bound])[:size])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Returns the exact sensitivity: ``upper_bound`` in every norm.

        One record changes the two entries by ``upper_bound`` together in L1, and one entry by all
        of it if the statistic is at a bound.
        """
        shape = self.encoding(adjacency).offset.shape
        return Sensitivity(float(self.upper_bound), norm, adjacency, monotone=True, shape=shape)


def clip_records(records: npt.ArrayLike, bounds: tuple[float, float]) -> jax.Array:
    """Returns records ``(n,)`` as floats clipped to ``bounds``; NaN becomes the lower bound.

    Raises:
      ValueError: records of another shape.
    """
    floats = as_floats(records, "records")
    check(floats.ndim == 1, "records", floats.shape, "of shape (n,)")
    return clip_to(floats, bounds)


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

    def posterior(self, sums: SufficientStatistics) -> BetaPosterior:
        """Returns Beta(alpha + ones, beta + zeros)."""
        ones, n = sums.total[..., 0], sums.num_examples
        return BetaPosterior(self.alpha + ones, self.beta + n - ones)

    def log_evidence(self, sums: SufficientStatistics) -> Array:
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
        return f"one of {len(self.concentration)} categories"

    @property
    def statistic_bounds(self) -> tuple[Array, Array]:
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
        return of_histogram(len(self.concentration), norm=norm, adjacency=adjacency)

    def repair(self, sums: SufficientStatistics) -> SufficientStatistics:
        """Returns sums whose negative counts are clipped to zero, and all scaled to the sum n."""
        n = np.maximum(sums.num_examples, 1.0)
        counts = np.maximum(_all_counts(sums), 0.0)
        all_counts = np.maximum(counts.sum(axis=-1, keepdims=True), 1e-300)
        return SufficientStatistics((counts * (n[..., None] / all_counts))[..., :-1], n)

    def posterior(self, sums: SufficientStatistics) -> DirichletPosterior:
        """Returns Dirichlet(concentration + counts)."""
        return DirichletPosterior(np.array(self.concentration) + _all_counts(sums))

    def log_evidence(self, sums: SufficientStatistics) -> Array:
        """Returns the Dirichlet-multinomial log probability."""
        return _dirichlet_multinomial(_all_counts(sums), np.array(self.concentration))


@dataclass(frozen=True, kw_only=True)
class GammaPoisson(BoundedSum):
    """Poisson counts with rate theta ~ Gamma(``shape``, ``rate``), of mean shape / rate.

    Records are rounded and clipped to 0 .. ``largest_count``; NaN becomes zero. Their sum is
    released and, where the number n of records is private, ``n largest_count`` less the sum.

    Attributes:
      largest_count: a public integer, which should exceed nearly all records.
      shape: of the prior, above zero.
      rate: of the prior, above zero. By default the prior mean is a quarter of ``largest_count``:
        90 % of the prior are between 1 and 75 % of it.

    Raises:
      ValueError: a number that is not above zero, or a ``largest_count`` that is not whole.

    >>> family = GammaPoisson(shape=2.0, rate=1.0, largest_count=10)
    >>> float(family.exact_posterior(jnp.array([3, 0, 99])).mean)
    3.75
    >>> float(GammaPoisson(largest_count=10).prior.mean)
    2.5
    >>> family.sensitivity(norm="l1", adjacency="replace_one").value
    10.0
    """

    largest_count: int
    shape: float = 1.0
    rate: float | None = None
    integer_valued: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_count("largest_count", self.largest_count)
        check_positive("shape", self.shape)
        if self.rate is not None:
            check_positive("rate", self.rate)

    @property
    def prior(self) -> GammaPosterior:
        """The prior of theta."""
        rate = 4 * self.shape / self.largest_count if self.rate is None else self.rate
        return GammaPosterior(np.asarray(self.shape), np.asarray(rate))

    @property
    def description(self) -> str:
        return f"counts clipped to 0 .. {self.largest_count}"

    @property
    def upper_bound(self) -> int:  # type: ignore[override]
        return self.largest_count

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the clipped counts, int32 ``(n, 1)``."""
        return _as_counts(records, self.largest_count)[:, None]

    def posterior(self, sums: SufficientStatistics) -> GammaPosterior:
        """Returns Gamma(shape + sum, rate + n)."""
        prior = self.prior
        return GammaPosterior(prior.shape + sums.total[..., 0], prior.rate + sums.num_examples)

    def log_evidence(self, sums: SufficientStatistics) -> Array:
        """Returns the negative binomial log probability."""
        total, n = sums.total[..., 0], sums.num_examples
        coefficient = gammaln(self.shape + total) - gammaln(self.shape) - gammaln(total + 1)
        share = n / (self.prior.rate + n)
        log_probability = coefficient + self.shape * np.log1p(-share) + xlogy(total, share)
        return np.where(total >= 0, log_probability, -math.inf)


def _as_counts(records: npt.ArrayLike, largest: int) -> jax.Array:
    """Rounded and clipped to 0 .. ``largest``, as int32."""
    return jnp.rint(clip_records(records, (0, largest))).astype(jnp.int32)


def _all_counts(sums: SufficientStatistics) -> Array:
    """The counts of all categories, the last one included, which the statistic omits."""
    last = sums.num_examples - sums.total.sum(axis=-1)
    return np.concatenate([sums.total, last[..., None]], axis=-1)


def _dirichlet_multinomial(counts: Array, concentration: Array) -> Array:
    """Log probability of counts on the last axis."""
    alphas, n = concentration.sum(), counts.sum(axis=-1)
    terms = gammaln(concentration + counts) - gammaln(concentration) - gammaln(counts + 1)
    log_probability = terms.sum(axis=-1) + gammaln(n + 1) + gammaln(alphas) - gammaln(alphas + n)
    return np.where((counts >= 0).all(axis=-1), log_probability, -math.inf)


MomentNorm = Literal["l1", "l2"]


@dataclass(frozen=True)
class NormalKnownVariance(BoundedSum):
    """Records from N(theta, ``variance``), with theta ~ N(``prior_mean``, ``prior_variance``).

    Records are clipped to ``bounds``; NaN becomes the lower bound. The statistic is
    (x - low) / (high - low). Its sum is released and, where the number n of records is private, n
    less the sum.

    Attributes:
      bounds: ``(low, high)``, public, which should contain nearly all records.
      variance: of the records, known and public.
      prior_mean: of theta; by default the middle of the bounds.
      prior_variance: of theta; by default its standard deviation is a quarter of their width.

    Raises:
      ValueError: bounds out of order, a number that is not finite, or a variance not above zero.

    >>> family = NormalKnownVariance(
    ...     (0.0, 60.0), variance=25.0, prior_mean=30.0, prior_variance=100.0
    ... )
    >>> round(float(family.exact_posterior(jnp.array([40.0, 42.0])).mean), 2)
    39.78
    >>> NormalKnownVariance((0.0, 60.0), variance=25.0).prior.interval(0.9)[0].round(1)
    np.float64(5.3)
    """

    bounds: tuple[float, float]
    _: KW_ONLY
    variance: float
    prior_mean: float | None = None
    prior_variance: float | None = None

    def __post_init__(self) -> None:
        _check_bounds_and_mean(self.bounds, self.prior_mean)
        check_positive("variance", self.variance)
        if self.prior_variance is not None:
            check_positive("prior_variance", self.prior_variance)

    @property
    def prior(self) -> NormalPosterior:
        """The prior of theta."""
        low, high = self.bounds
        centre = _prior_centre(self.bounds, self.prior_mean)
        variance = ((high - low) / 4) ** 2 if self.prior_variance is None else self.prior_variance
        return NormalPosterior(np.asarray(centre), np.asarray(variance))

    @property
    def description(self) -> str:
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}"

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns the clipped records, scaled from the bounds to [0, 1], ``(n, 1)``."""
        low, high = self.bounds
        units = (clip_records(records, self.bounds) - low) / (high - low)
        return jnp.clip(units, 0, 1)[:, None]

    def posterior(self, sums: SufficientStatistics) -> NormalPosterior:
        """Returns the normal posterior, by adding precisions."""
        (low, high), n, prior = self.bounds, sums.num_examples, self.prior
        total = (high - low) * sums.total[..., 0] + n * low
        precision = 1 / prior.variance + n / self.variance
        weighted = prior.centre / prior.variance + total / self.variance
        return NormalPosterior(weighted / precision, 1 / precision)

    def log_evidence(self, sums: SufficientStatistics) -> Array:
        """Returns the normal log density."""
        (low, high), n, prior = self.bounds, sums.num_examples, self.prior
        mean = n * (prior.centre - low) / (high - low)
        variance = (n * self.variance + n**2 * prior.variance) / (high - low) ** 2
        return -((sums.total[..., 0] - mean) ** 2) / (2 * variance) - np.log(variance) / 2


@dataclass(frozen=True)
class NormalUnknownVariance(ConjugateFamily):
    """Records from N(mean, variance), both unknown, with a normal-inverse-gamma prior.

    The variance is inverse gamma of ``prior_shape`` and ``prior_scale``; given it, the mean is
    N(``prior_mean``, variance / ``prior_strength``). Records are clipped to ``bounds``; NaN becomes
    the lower bound. With u = (x - centre) / (half the width) in [-1, 1], the statistic is (u, u^2).
    Both sums are released and, where the number n of records is private, n less the sum of u^2.

    Attributes:
      bounds: ``(low, high)``, public, which should contain nearly all records.
      prior_mean: of the mean; by default the middle of the bounds.
      prior_strength: number of records that the prior mean counts as.
      prior_shape: of the variance, whose prior mean is finite above one.
      prior_scale: of the variance, in its units; by default a hundredth of the squared width. By
        the default shape and scale, 90 % of the prior standard deviations are between a twentieth
        and a quarter of the width.

    Raises:
      ValueError: bounds out of order, a number that is not finite, or a prior parameter other than
        the mean not above zero.

    >>> family = NormalUnknownVariance(
    ...     (0.0, 10.0), prior_mean=5.0, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
    ... )
    >>> family.exact_posterior(jnp.array([4.0, 5.0, 6.0])).mean.round(3).tolist()
    [5.0, 0.8]
    >>> family.sensitivity(norm="l1", adjacency="replace_one").value
    2.25
    >>> [end[1].round(1).tolist() for end in NormalUnknownVariance((0.0, 10.0)).prior.interval(0.9)]
    [0.3, 5.7]
    """

    bounds: tuple[float, float]
    _: KW_ONLY
    prior_mean: float | None = None
    prior_strength: float = 0.1
    prior_shape: float = 1.5
    prior_scale: float | None = None
    # Of u and of its square.
    statistic_bounds: ClassVar[tuple[Array, Array]] = (np.array([-1.0, 0.0]), np.ones(2))

    def __post_init__(self) -> None:
        _check_bounds_and_mean(self.bounds, self.prior_mean)
        check_positive("prior_strength", self.prior_strength)
        check_positive("prior_shape", self.prior_shape)
        if self.prior_scale is not None:
            check_positive("prior_scale", self.prior_scale)

    @property
    def prior(self) -> NormalInverseGammaPosterior:
        """The prior of mean and variance."""
        low, high = self.bounds
        centre = _prior_centre(self.bounds, self.prior_mean)
        scale = (high - low) ** 2 / 100 if self.prior_scale is None else self.prior_scale
        numbers = (centre, self.prior_strength, self.prior_shape, scale)
        return NormalInverseGammaPosterior(*map(np.asarray, numbers))

    @property
    def description(self) -> str:
        return f"numbers clipped to {self.bounds[0]:g} .. {self.bounds[1]:g}, with their squares"

    def statistic(self, records: npt.ArrayLike) -> jax.Array:
        """Returns u and u^2, ``(n, 2)``."""
        low, high = self.bounds
        units = (clip_records(records, self.bounds) - (low + high) / 2) / ((high - low) / 2)
        units = jnp.clip(units, -1, 1)
        return jnp.stack([units, units**2], axis=-1)

    def encoding(self, adjacency: Adjacency) -> Encoding:
        """Returns both sums and, where n is private, n less the second."""
        size = 2 if is_size_public(adjacency) else 3
        matrix = np.array([[1.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
        return Encoding(matrix[:size], np.array([0.0, 0.0, 1.0])[:size])

    def sensitivity(self, *, norm: Norm, adjacency: Adjacency) -> Sensitivity:
        """Returns the exact sensitivity of (u, u^2), or of (u, u^2, 1 - u^2) where n is private.

        The latter has the L1 norm 1 + |u| and the squared L2 norm 1 - u^2 + 2 u^4, both largest at
        |u| = 1.
        """
        check_choice("norm", norm, ("l1", "l2"))
        if not is_size_public(adjacency):
            value = 2.0 if norm == "l1" else math.sqrt(2)
            return Sensitivity(value, norm, adjacency, shape=(3,))
        return of_first_two_moments((-1, 1), norm=cast(MomentNorm, norm), adjacency=adjacency)

    def repair(self, sums: SufficientStatistics) -> SufficientStatistics:
        """Returns sums within the bounds, whose second moment is at least the squared mean."""
        total, n = super().repair(sums)
        least = total[..., 0] ** 2 / n
        return SufficientStatistics(
            np.stack([total[..., 0], np.maximum(total[..., 1], least)], axis=-1), n
        )

    def posterior(self, sums: SufficientStatistics) -> NormalInverseGammaPosterior:
        """Returns the posterior from the sum and the sum of squared deviations from the mean."""
        total, squares, n = self._in_record_units(sums)
        prior = self.prior
        strength = prior.strength + n
        deviation = (total - n * prior.centre) ** 2 / np.maximum(n, 1e-300)
        shrunk = deviation * prior.strength / strength
        return NormalInverseGammaPosterior(
            centre=(prior.strength * prior.centre + total) / strength,
            strength=strength,
            shape=prior.shape + n / 2,
            scale=prior.scale + (squares + shrunk) / 2,
        )

    def log_evidence(self, sums: SufficientStatistics) -> Array:
        """Returns the log density of sum and squares: of the records, times that of equal sums.

        The volume is proportional to the sum of squared deviations to the power (n - 3) / 2. Fewer
        than two records, or deviations of zero, are counted as impossible.
        """
        _, squares, n = self._in_record_units(sums)
        before, after = self.prior, self.posterior(sums)
        constant = before.shape * np.log(before.scale) - gammaln(before.shape)
        update = gammaln(after.shape) - after.shape * np.log(after.scale) + constant
        update = update - np.log(after.strength) / 2 - n * math.log(2) / 2
        volume = xlogy((n - 3) / 2, squares) - gammaln((n - 1) / 2) - np.log(n) / 2
        return np.where((squares > 0) & (n > 1), update + volume, -math.inf)

    def _in_record_units(self, sums: SufficientStatistics) -> tuple[Array, Array, Array]:
        """The sum of the records, the sum of squares around their mean, and their number."""
        first, second, n = sums.total[..., 0], sums.total[..., 1], sums.num_examples
        around = second - first**2 / np.maximum(n, 1e-300)
        centre, half = (self.bounds[0] + self.bounds[1]) / 2, (self.bounds[1] - self.bounds[0]) / 2
        return half * first + n * centre, half**2 * around, n


def _prior_centre(bounds: tuple[float, float], prior_mean: float | None) -> float:
    """The prior mean, by default the middle of the bounds."""
    return (bounds[0] + bounds[1]) / 2 if prior_mean is None else prior_mean


def _check_bounds_and_mean(bounds: tuple[float, float], prior_mean: float | None) -> None:
    ordered = isinstance(bounds, tuple) and len(bounds) == 2 and bounds[0] < bounds[1]
    fine = ordered and math.isfinite(bounds[0]) and math.isfinite(bounds[1])
    check(fine, "bounds", bounds, "a tuple (low, high) of finite numbers with low < high")
    if prior_mean is not None:
        as_finite(prior_mean, "prior_mean", "a finite number")


def of_first_two_moments(
    bounds: tuple[float, float], *, norm: MomentNorm, adjacency: Adjacency
) -> Sensitivity:
    """Returns the sensitivity of (sum of x, sum of x^2) over numbers x within closed bounds.

    Adding x changes it by (x, x^2), most at the bound farther from zero. Replacing x by z changes
    it by |x - z| times (1, x + z). For fixed x - z, |x + z| is largest where one of the two is at a
    bound. As a function of the other the distance is then largest at the other bound, at the kink
    x + z = 0, or where the derivative vanishes: at -1/2 or 1/2 in L1, and in L2, with one at the
    bound b, where 2 z (b + z) = -1.

    Args:
      bounds: ``(low, high)``, two numbers.
      norm: ``"l1"`` or ``"l2"``.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      The exact sensitivity, attained by numbers between the bounds.

    Raises:
      ValueError: bounds that are not finite, out of order or equal to zero; another norm
        or adjacency.

    >>> of_first_two_moments((-1, 1), norm="l1", adjacency="replace_one").value
    2.25
    >>> of_first_two_moments((0, 100), norm="l1", adjacency="add_remove").value
    10100.0
    """
    check_choice("norm", norm, ("l1", "l2"))
    check_adjacency(adjacency)
    ends = checked_bounds(bounds)
    check(ends[0].ndim == 0, "bounds", bounds, "two numbers")
    low, high = (float(end) for end in ends)

    # Pairs of a number and the one in its place, among which the change is largest.
    pairs = [(low, 0.0), (high, 0.0)]
    if adjacency == "replace_one":
        pairs = []
        for end in (low, high):
            root = math.sqrt(max(end**2 - 2, 0.0))
            stationary = (-0.5, 0.5) if norm == "l1" else ((-end + root) / 2, (-end - root) / 2)
            pairs += [(end, min(max(z, low), high)) for z in (low, high, -end, *stationary)]

    # The largest change, x - z times (1, x + z).
    order = 1 if norm == "l1" else 2
    largest = max(float(np.linalg.norm([x - z, (x - z) * (x + z)], order)) for x, z in pairs)
    monotone = adjacency != "replace_one" and low >= 0
    return Sensitivity(largest, norm, adjacency, monotone, shape=(2,))
