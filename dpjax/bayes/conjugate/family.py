"""Conjugate families: likelihood, prior and public bounds on one record's statistic."""

import abc
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import as_floats, check, is_traced
from dpjax.adjacency import Adjacency, is_size_public
from dpjax.bayes.conjugate.posteriors import Array, Posterior
from dpjax.gradients.clipping import accumulator
from dpjax.sensitivity import Norm, Sensitivity, clip_to, of_sum, sum_in_blocks


class Sums(NamedTuple):
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

    matrix: npt.NDArray[Any]
    offset: npt.NDArray[Any]


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
    def posterior(self, sums: Sums) -> Posterior:
        """Returns the conjugate posterior of attainable sums, for each entry of their batch.

        Args:
          sums: of one data set, or with batch axes in front.
        """

    @abc.abstractmethod
    def log_evidence(self, sums: Sums) -> Array:
        """Returns the log probability of the total under the prior, given the number of records.

        Up to a constant that depends on neither; minus infinity where the total is impossible.
        Float64 arrays, for each entry of their batch. The number of records is at least one and
        need not be an integer. Numpy's warnings are silenced by the caller.

        Args:
          sums: attainable sums.
        """

    def repair(self, sums: Sums) -> Sums:
        """Returns noisy sums projected to attainable ones: at least one record, within bounds.

        Args:
          sums: total and number of records, noise included.
        """
        n = np.maximum(sums.num_examples, 1.0)
        low, high = (n[..., None] * bound for bound in self.statistic_bounds)
        return Sums(np.clip(sums.total, low, high), n)

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

    def sums(self, records: npt.ArrayLike) -> Sums:
        """Returns the exact sums of ``records``; works under jit and vmap.

        Summed in float64 or int64 on the host; under jit in JAX's default dtypes, whose rounding
        adds to the sensitivity. ``StatisticRelease`` sums on the host always.

        Args:
          records: as for ``statistic``; no records give zeros.

        Privacy:
          The sums are private, and not released here.

        Raises:
          ValueError: under jit, integers whose sum might exceed 2^31.
        """
        statistics = self.statistic(records)
        if not is_traced(statistics):
            return Sums(sum_in_blocks(statistics), np.float64(statistics.shape[0]))
        largest = max(np.abs(bound).max(initial=0.0) for bound in self.statistic_bounds)
        fits = not self.integer_valued or statistics.shape[0] * largest < 2**31
        allowed = "so few that their sum is below 2^31 under jit"
        check(bool(fits), "records", f"{statistics.shape[0]} of them", allowed)
        dtype = accumulator(statistics) if jnp.issubdtype(statistics.dtype, jnp.floating) else None
        return Sums(statistics.sum(axis=0, dtype=dtype), np.float64(statistics.shape[0]))

    def exact_posterior(self, records: npt.ArrayLike) -> Posterior:
        """Returns the posterior of clipped records, summed in float64.

        Args:
          records: as for ``statistic``.

        Privacy:
          Not private: a function of the exact sums.
        """
        statistics = np.asarray(self.statistic(records), np.float64)
        return self.posterior(Sums(statistics.sum(axis=0), np.float64(len(statistics))))

    def contribution_bounds(self, adjacency: Adjacency) -> tuple[Array, Array]:
        """Returns lower and upper bounds ``(m,)`` on one record's released entries.

        Args:
          adjacency: of the release.
        """
        encoding, (low, high) = self.encoding(adjacency), self.statistic_bounds
        ends = np.stack([encoding.matrix * low, encoding.matrix * high])
        lows, highs = (end.sum(axis=1) + encoding.offset for end in (ends.min(0), ends.max(0)))
        return lows, highs

    def encode(self, sums: Sums, adjacency: Adjacency) -> npt.NDArray[Any]:
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
    ) -> Sums:
        """Returns the sums that the released entries determine, noise included, in float64.

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
            return Sums(solved[..., :-1], solved[..., -1])
        n = np.broadcast_to(np.asarray(num_examples, np.float64), released.shape[:-1])
        total = released[..., :size] - n[..., None] * offset[:size]
        return Sums(total @ np.linalg.inv(matrix[:size]).T, n)


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
