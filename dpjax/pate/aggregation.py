"""Private aggregation of teachers' votes: LNMax and GNMax, which answer every query.

One record is in the shard of one teacher, so neighbouring data sets differ in the votes of one
teacher: on every query its vote may move from one class to another. A histogram of votes then
changes by at most sqrt(2) in L2, 2 in L1 and 1 in its largest count.

Where teachers may abstain, a vote may also appear or disappear. That changes the histogram less, by
1 in L2 and L1, and its largest count by at most 1, so all these bounds hold. Of the analyses none
reads the sum of a histogram:

- The supremum of `argmax_rdp` is over all means. If one count a changes by one, the label is a, or
  else the largest of the others, which is independent of a. So its divergence is at most that of
  one bit whose mean moves by 1 / scale, less than by sqrt(2) / scale, for two classes.
- The published theorems need the divergence for L2 sqrt(2), which is an upper bound, and the
  probability of an unexpected label, which depends on the gaps between the counts.
- Of all neighbours that with the smallest gaps has a vote moved from the plurality to the
  runner-up: a gap changes by two, and by one if a vote appears or disappears. The same is true of
  the smooth sensitivity, whose table has all largest counts from 0 on.

Source: Papernot, Abadi, Erlingsson, Goodfellow & Talwar (2017), "Semi-supervised Knowledge Transfer
for Deep Learning from Private Training Data"; Papernot, Song, Mironov, Raghunathan, Talwar &
Erlingsson (2018), "Scalable Private Learning with PATE".
"""

import abc
import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, SelfComposedDpEvent

from dpjax._checks import check, check_count, check_positive, check_text
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import Gaussian, Laplace, Mechanism
from dpjax.mechanisms._exact_noise import Array, call_on_host
from dpjax.mechanisms.base import format_pure_dp
from dpjax.pate.votes import check_votes
from dpjax.sensitivity import Sensitivity


class Answers(NamedTuple):
    """Labels released for the queries.

    Attributes:
      labels: int32 ``(num_queries,)``; `NO_ANSWER` (-1) where there is none.
      answered: bool ``(num_queries,)``: whether the label is the teachers'.
    """

    labels: jax.Array
    answered: jax.Array


@dataclass(frozen=True, kw_only=True)
class VoteAggregation(Mechanism):
    """Base class: releases labels of ``num_queries`` queries from the votes of an ensemble.

    The noise is exact, on a public grid (see `dpjax.mechanisms._exact_noise`), and the labels are
    post-processing of noisy histograms. It is computed on the host, under jit and vmap through a
    callback.

    Attributes:
      scale: of the noise on every count, in votes.
      num_teachers: what the votes on a query sum to, with ``abstentions`` at most; public.
      num_classes: at least two; public.
      num_queries: how many histograms one ``release`` takes; public.
      adjacency: ``"replace_one"``, which must be stated: the shard of one teacher is replaced by
        any other. That covers every change of one record which changes no other shard: replacing
        it, and adding or removing it if records are assigned to shards one by one, by a hash.
      unit: the unit of privacy, a noun phrase.
      abstentions: whether teachers may abstain, so that the votes on a query sum to at most
        ``num_teachers``; public. Every bound of this package holds then too (see above).

    Raises:
      ValueError: a number out of range, or another adjacency than ``"replace_one"``.
    """

    scale: float
    num_teachers: int
    num_classes: int
    num_queries: int
    adjacency: Adjacency
    unit: str = "the shard of one teacher"
    abstentions: bool = False

    def __post_init__(self) -> None:
        check_positive("scale", self.scale)
        check_count("num_teachers", self.num_teachers)
        check_count("num_classes", self.num_classes, minimum=2)
        check_count("num_queries", self.num_queries)
        check_text("unit", self.unit)
        check_adjacency(self.adjacency)
        allowed = "'replace_one': one teacher's votes are replaced"
        check(self.adjacency == "replace_one", "adjacency", self.adjacency, allowed)

    @property
    @abc.abstractmethod
    def vote_noise(self) -> Gaussian | Laplace:
        """The mechanism that adds noise to the counts."""

    def scale_noise(self, factor: float) -> Self:
        """Returns the same mechanism with ``scale`` times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    def check_votes(self, votes: npt.ArrayLike) -> np.ndarray | jax.Array:
        """Returns ``votes`` as an array, or raises ValueError unless they are all teachers' counts.

        Under jit only the shape is checked.

        Args:
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``, with
            ``abstentions`` at most.
        """
        shape = (self.num_queries, self.num_classes)
        return check_votes(
            votes, num_teachers=self.num_teachers, shape=shape, abstentions=self.abstentions
        )

    def _noisy_labels(self, words: npt.NDArray[np.uint32], votes: Array) -> Array:
        """Returns the class of the largest noisy count of each query, on the host."""
        return self.vote_noise.add_noise(words, [votes])[0].argmax(axis=-1)

    def _guarantee(self, event: DpEvent, num_releases: int, **description: str) -> Guarantee:
        return Guarantee(
            event=event,
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=num_releases,
            description=description,
            exact_noise=True,
        )

    def _votes_in_words(self) -> str:
        abstain = ", who may abstain" if self.abstentions else ""
        return (
            f"the most frequent of {self.num_classes} classes among the votes of"
            f" {self.num_teachers:,} teachers{abstain}, for {self.num_queries:,} queries"
        )


class NoisyArgmax(VoteAggregation):
    """Base class of aggregations that answer every query."""

    def release(self, key: PRNGKey, votes: npt.ArrayLike) -> Answers:
        """Returns the class with the largest noisy count for every query; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``,
            with ``abstentions`` at most. Under jit only the shape is checked.

        Raises:
          ValueError: ``votes`` are not counts of all teachers.
        """
        results = [jax.ShapeDtypeStruct((self.num_queries,), np.int32)]
        (labels,) = call_on_host(
            lambda words, arrays: [self._noisy_labels(words, arrays[0])],
            key,
            [self.check_votes(votes)],
            results,
        )
        labels = jnp.asarray(labels)
        return Answers(labels, jnp.ones(labels.shape, bool))


@dataclass(frozen=True, kw_only=True)
class LNMax(NoisyArgmax):
    """Laplace noise on every count, and only the class of the largest noisy count is released.

    The scale is 1 / gamma in the notation of the source. One query is (2 / scale, 0)-DP: two
    counts move by one. For many queries the event is that of the two noisy counts, two Laplace
    releases of sensitivity one, which is tighter than any composition of (2 / scale, 0)-DP.

    Attributes:
      scale: of the Laplace noise, in votes.
      num_teachers: what the votes on a query sum to, with ``abstentions`` at most; public.
      num_classes: at least two; public.
      num_queries: how many histograms one ``release`` takes; public.
      adjacency: ``"replace_one"``.
      unit: the unit of privacy, a noun phrase.
      abstentions: whether teachers may abstain; public.

    Privacy:
      The labels that ``release`` returns are released; the votes and the noisy counts are not.

    Source: Papernot et al. (2017), Section 2.

    >>> mechanism = LNMax(
    ...     scale=20.0, num_teachers=250, num_classes=10, num_queries=100, adjacency="replace_one"
    ... )
    >>> mechanism.pure_epsilon_per_query, round(mechanism.certificate(1e-5).epsilon, 2)
    (0.1, 2.9)
    """

    @property
    def vote_noise(self) -> Laplace:
        """Laplace noise on one count, of sensitivity one."""
        return Laplace(Sensitivity(1.0, "l1", self.adjacency), self.scale, self.unit)

    @property
    def pure_epsilon_per_query(self) -> float:
        """Epsilon at delta zero of one label: 2 / ``scale``."""
        return 2 / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self._guarantee(
            # Two releases of sensitivity one for each query.
            SelfComposedDpEvent(self.vote_noise.event, 2 * self.num_queries),
            self.num_queries,
            statistic=self._votes_in_words(),
            noise=f"Laplace of scale {self.scale:.4g} on every count, of which two move by one",
            guarantee=f"for each label {format_pure_dp(self.pure_epsilon_per_query)}",
        )


@dataclass(frozen=True, kw_only=True)
class GNMax(NoisyArgmax):
    """Gaussian noise on every count, and only the class of the largest noisy count is released.

    It is post-processing of a Gaussian mechanism of L2 sensitivity sqrt(2), which is the event.
    `dpjax.pate.certificate` has a smaller epsilon, from the divergence of the label itself.

    Attributes:
      scale: standard deviation of the noise, in votes.
      num_teachers: what the votes on a query sum to, with ``abstentions`` at most; public.
      num_classes: at least two; public.
      num_queries: how many histograms one ``release`` takes; public.
      adjacency: ``"replace_one"``.
      unit: the unit of privacy, a noun phrase.
      abstentions: whether teachers may abstain; public.

    Privacy:
      The labels that ``release`` returns are released; the votes and the noisy counts are not.

    Source: Papernot et al. (2018), Section 4.1.

    >>> mechanism = GNMax(
    ...     scale=40.0, num_teachers=250, num_classes=10, num_queries=286, adjacency="replace_one"
    ... )
    >>> votes = jnp.zeros((286, 10), int).at[:, 3].set(250)
    >>> mechanism.release(jax.random.key(0), votes).labels.shape
    (286,)
    """

    @property
    def vote_noise(self) -> Gaussian:
        """Gaussian noise on a histogram of L2 sensitivity sqrt(2)."""
        return gaussian_votes(self)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self._guarantee(
            SelfComposedDpEvent(self.vote_noise.event, self.num_queries),
            self.num_queries,
            statistic=self._votes_in_words(),
            noise=gaussian_in_words(self.scale),
        )


def gaussian_votes(mechanism: VoteAggregation) -> Gaussian:
    """Returns Gaussian noise on a histogram of votes, of L2 sensitivity sqrt(2)."""
    # float64's sqrt(2) is rounded up
    shape = (mechanism.num_classes,)
    moved = Sensitivity(math.sqrt(2), "l2", mechanism.adjacency, shape=shape)
    return Gaussian(moved, mechanism.scale, mechanism.unit)


def gaussian_in_words(scale: float) -> str:
    """Returns a sentence on Gaussian noise on the counts."""
    return (
        f"Gaussian of standard deviation {scale:.4g} on every count; a histogram has sensitivity"
        " sqrt(2) in L2"
    )
