"""Private aggregation of teachers' votes: LNMax, GNMax, and Confident and Interactive GNMax.

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
import itertools
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, SelfComposedDpEvent

from dpjax._checks import (
    as_finite,
    as_numbers,
    check,
    check_count,
    check_delta,
    check_positive,
    check_text,
    is_traced,
)
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import Gaussian, Laplace, Mechanism
from dpjax.mechanisms._exact_noise import Array, call_on_host, derive
from dpjax.mechanisms.base import format_pure_dp
from dpjax.sampling.base import compose
from dpjax.sensitivity import Sensitivity

# The label of a query that was not answered, and of a teacher that abstains.
NO_ANSWER = -1
_ENCODE_LABELS = (
    ". Names of classes become numbers by their position in a public list of all classes:"
    " code = {name: i for i, name in enumerate(classes)}, np.vectorize(code.__getitem__)(names) and"
    " num_classes=len(classes) (or sklearn's LabelEncoder().fit(classes)). The list must not be"
    " collected from the teachers' labels, as np.unique(names, return_inverse=True) would: which"
    " classes occur in them is private"
)
_MAY_ABSTAIN = "; abstentions=True lets teachers abstain"


def count_votes(
    teacher_labels: npt.ArrayLike, num_classes: int, *, abstentions: bool = False
) -> npt.NDArray[np.int64]:
    """Returns the histogram of the teachers' votes on each query.

    Args:
      teacher_labels: predicted classes ``(num_teachers, num_queries)``, whole numbers in
        0 .. ``num_classes`` - 1; of any kind of teachers.
      num_classes: at least two, and public: never counted from the votes.
      abstentions: whether teachers may abstain, by a prediction that is NaN or `NO_ANSWER` (-1).
        The mechanism then needs ``abstentions=True`` too.

    Returns:
      Counts ``(num_queries, num_classes)``; every row sums to the number of teachers, without those
      that abstain.

    Raises:
      ValueError: no teacher, a prediction that is no class, or an array of another shape.

    Privacy:
      Nothing is released: the counts are as private as the teachers' training data.

    >>> count_votes([[0, 2], [0, 1], [1, 2]], num_classes=3).tolist()
    [[2, 1, 0], [0, 1, 2]]
    """
    check_count("num_classes", num_classes, minimum=2)
    try:
        labels = np.asarray(as_numbers(teacher_labels, "teacher_labels"))
    except ValueError as error:
        rows = [np.asarray(each, object).ravel() for each in jax.tree.leaves(teacher_labels)]
        names = [one for one in itertools.chain(*rows) if isinstance(one, str)]
        hint = f", such as {names[0]!r}{_ENCODE_LABELS}" if names else ""
        raise ValueError(f"{error}{hint}") from None
    shape = labels.shape
    check(labels.ndim == 2, "teacher_labels", shape, "of shape (num_teachers, num_queries)")
    check(shape[0] > 0, "teacher_labels", shape, "of at least one teacher")

    # a class, or an abstention
    with np.errstate(invalid="ignore"):  # a comparison with NaN is False
        valid = (labels >= 0) & (labels < num_classes) & (labels == np.floor(labels))
    abstains = np.isnan(labels.astype(np.float64)) | (labels == NO_ANSWER)
    if abstentions:
        valid |= abstains
    if not np.all(valid):
        teacher, query = np.argwhere(~valid)[0]
        other = ", or NaN or -1 where a teacher abstains" if abstentions else ""
        hint = _MAY_ABSTAIN if abstains[teacher, query] else ""
        raise ValueError(
            f"teacher_labels must be whole numbers in 0 .. {num_classes - 1}{other}, got"
            f" {labels[teacher, query]} of teacher {teacher} on query {query}{hint}"
        )
    classes = np.arange(num_classes)
    return np.stack([np.sum(labels == one, axis=0) for one in classes], axis=-1).astype(np.int64)


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
            lambda key_bits, arrays: [self._noisy_argmax(key_bits, arrays[0])],
            key,
            [self.check_votes(votes)],
            results,
        )
        labels = jnp.asarray(labels)
        return Answers(labels, jnp.ones(labels.shape, bool))

    def with_privacy_factor(self, factor: float) -> Self:
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
        counts = as_numbers(votes, "votes")
        shape = (self.num_queries, self.num_classes)
        check(counts.shape == shape, "votes", counts.shape, f"of shape {shape}")
        if is_traced(counts):
            return counts

        # whole counts of all teachers in every row
        concrete = np.asarray(counts, np.float64)
        whole = (concrete >= 0) & (concrete == np.floor(concrete))
        sums = np.sum(concrete, axis=1)
        fits = sums <= self.num_teachers if self.abstentions else sums == self.num_teachers
        valid = np.all(whole, axis=1) & fits
        if not np.all(valid):
            row = int(np.argmin(valid))
            most = "at most " if self.abstentions else ""
            too_few = not self.abstentions and sums[row] < self.num_teachers
            raise ValueError(
                f"votes must be whole counts >= 0 that sum to {most}num_teachers ="
                f" {self.num_teachers} in every row, got {concrete[row].tolist()} in row {row}, of"
                f" sum {sums[row]:g}{_MAY_ABSTAIN if too_few else ''}"
            )
        return counts

    def _noisy_argmax(self, key_bits: npt.NDArray[np.uint32], votes: Array) -> Array:
        """Returns the class of the largest noisy count of each query, on the host."""
        return self.vote_noise.add_noise(key_bits, [votes])[0].argmax(axis=-1)

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


@dataclass(frozen=True, kw_only=True)
class LNMax(VoteAggregation):
    """Laplace noise on every count, and only the class of the largest noisy count is released.

    The scale is 1 / gamma in the notation of the source. One query is (2 / scale, 0)-DP: two
    counts move by one. For many queries the event is that of the two noisy counts, two Laplace
    releases of sensitivity one, which is tighter than any composition of (2 / scale, 0)-DP.

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
class GNMax(VoteAggregation):
    """Gaussian noise on every count, and only the class of the largest noisy count is released.

    It is post-processing of a Gaussian mechanism of L2 sensitivity sqrt(2), which is the event.
    `dpjax.pate.certificate` has a smaller epsilon, from the divergence of the label itself.

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
        return _gaussian_votes(self)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self._guarantee(
            SelfComposedDpEvent(self.vote_noise.event, self.num_queries),
            self.num_queries,
            statistic=self._votes_in_words(),
            noise=_gaussian_in_words(self.scale),
        )


@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(VoteAggregation):
    """GNMax on the queries that pass a noisy threshold: Confident-GNMax and Interactive-GNMax.

    A query passes where its largest count plus Gaussian noise reaches the threshold. With a
    ``student_confidence`` it is Interactive-GNMax: checked is the largest difference between a
    count and ``num_teachers`` times the student's probability of the class, so that teachers answer
    where they disagree with the student; where they do not, the student's own class is the label if
    its probability reaches ``student_confidence``.

    Queries are processed in order. Each is checked, with noise of its own, until ``max_answers``
    were answered; the rest is neither checked nor answered. Which queries were answered is
    released: it is post-processing of the checks. The event is ``num_queries`` checks and
    ``max_answers`` answers, both fixed before the votes are seen, so the guarantee does not depend
    on how many are answered. That the order of checks and answers depends on earlier outcomes
    costs nothing: the total of the squared sensitivities over the variances is at most that of the
    event on every path (Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian
    Differential Privacy"; for Rényi divergences Feldman & Zrnic 2021).

    Attributes:
      threshold: T of the source, in votes.
      threshold_scale: standard deviation of the noise of the check (sigma_1), in votes; ``scale``
        is that of the noise on every count (sigma_2).
      max_answers: after so many answers nothing more is released; at most ``num_queries``.
      student_confidence: a probability in (0, 1), for Interactive-GNMax.

    Privacy:
      The labels that ``release`` returns are released, and which queries the teachers answered. The
      student's probabilities must be public: computed from public data and earlier releases only.

    Source: Papernot et al. (2018), Algorithms 1 (Confident-GNMax) and 2 (Interactive-GNMax); the
    maximal number of answers is added.

    >>> mechanism = ConfidentGNMax(
    ...     threshold=200.0, threshold_scale=150.0, scale=40.0, max_answers=286, num_queries=640,
    ...     num_teachers=250, num_classes=10, adjacency="replace_one"
    ... )
    >>> round(mechanism.certificate(1e-5).epsilon, 2)
    2.54
    """

    threshold: float
    threshold_scale: float
    max_answers: int
    student_confidence: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_traced(self.threshold):
            as_finite(self.threshold, "threshold", "a finite number")
        check_positive("threshold_scale", self.threshold_scale)
        check_count("max_answers", self.max_answers)
        allowed = f"at most num_queries = {self.num_queries}"
        check(self.max_answers <= self.num_queries, "max_answers", self.max_answers, allowed)
        if self.student_confidence is not None:
            check_delta(self.student_confidence, "student_confidence")

    @property
    def vote_noise(self) -> Gaussian:
        """Gaussian noise on a histogram of L2 sensitivity sqrt(2)."""
        return _gaussian_votes(self)

    @property
    def threshold_noise(self) -> Gaussian:
        """Gaussian noise on the checked count, of sensitivity one."""
        return Gaussian(Sensitivity(1.0, "l2", self.adjacency), self.threshold_scale, self.unit)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        checks = SelfComposedDpEvent(self.threshold_noise.event, self.num_queries)
        answers = SelfComposedDpEvent(self.vote_noise.event, self.max_answers)
        checked, student = "the largest count", {}
        if self.student_confidence is not None:
            checked = "the largest count less the student's expected count"
            student["student"] = (
                "its own class is the label where the teachers do not answer and its probability"
                f" is at least {self.student_confidence:.4g}"
            )
        return self._guarantee(
            compose([checks, answers]),
            self.num_queries + self.max_answers,
            statistic=f"{self._votes_in_words()}, at most {self.max_answers:,} answered",
            check=f"{checked} plus Gaussian noise of standard deviation {self.threshold_scale:.4g}"
            f" must reach {self.threshold:.6g}; every check is counted, also where none is made",
            noise=_gaussian_in_words(self.scale),
            **student,
        )

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the same mechanism with ``scale`` and ``threshold_scale`` times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(
            self, scale=self.scale * factor, threshold_scale=self.threshold_scale * factor
        )

    def release(
        self,
        key: PRNGKey,
        votes: npt.ArrayLike,
        student_probabilities: npt.ArrayLike | None = None,
    ) -> Answers:
        """Returns labels of the queries that pass the check; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``,
            with ``abstentions`` at most. Under jit only the shape is checked.
          student_probabilities: with ``student_confidence``, the student's predictions, of the
            shape of ``votes``; public.

        Returns:
          The teachers' labels and, with a student, its own where it is confident; ``answered`` is
          true for the teachers' labels only.

        Raises:
          ValueError: ``votes`` are not counts of all teachers, or the probabilities are not in
            [0, 1] or of another shape.
        """
        counts = self.check_votes(votes)
        probabilities = self.check_probabilities(student_probabilities)
        baselines = [] if probabilities is None else [self.num_teachers * probabilities]
        results = [jax.ShapeDtypeStruct((self.num_queries,), t) for t in (np.int32, np.bool_)]
        labels, answered = map(
            jnp.asarray, call_on_host(self._answer, key, [counts, *baselines], results)
        )
        if probabilities is None or self.student_confidence is None:
            return Answers(labels, answered)

        # the student's own labels
        probabilities = jnp.asarray(probabilities)
        own = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
        is_confident = jnp.max(probabilities, axis=-1) >= self.student_confidence
        return Answers(jnp.where(~answered & is_confident, own, labels), answered)

    def check_probabilities(
        self, student_probabilities: npt.ArrayLike | None
    ) -> np.ndarray | jax.Array | None:
        """Returns ``student_probabilities`` as an array, or raises ValueError.

        They are ``None`` without a ``student_confidence``. Under jit only the shape is checked.

        Args:
          student_probabilities: as in ``release``.
        """
        expected = self.student_confidence is not None
        is_stated = student_probabilities is not None
        allowed = "given where student_confidence is, and left out where it is not"
        check(is_stated == expected, "student_probabilities", type(student_probabilities), allowed)
        if student_probabilities is None:
            return None
        probabilities = as_numbers(student_probabilities, "student_probabilities")
        shape = (self.num_queries, self.num_classes)
        fits = probabilities.shape == shape
        check(fits, "student_probabilities", probabilities.shape, f"of shape {shape}")
        if not is_traced(probabilities):
            values = np.asarray(probabilities, np.float64)
            wrong = values[~((values >= 0) & (values <= 1))]
            check(wrong.size == 0, "student_probabilities", wrong[:1].tolist(), "in [0, 1]")
        return probabilities

    def _answer(self, key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        """Returns labels, and which queries passed the check, on the host."""
        votes, *baselines = arrays
        check_bits, answer_bits = derive(key_bits, 2)

        # the check; the student's expected count is subtracted in float64
        checked = np.max(votes - baselines[0] if baselines else votes, axis=-1)
        rounding = self.num_teachers * 2.0**-50
        noisy = self.threshold_noise.add_noise(check_bits, [checked], rounding=rounding)[0]
        passed = noisy >= self.threshold
        answered = passed & (np.cumsum(passed, axis=-1) <= self.max_answers)

        labels = self._noisy_argmax(answer_bits, votes)
        return [np.where(answered, labels, NO_ANSWER), answered]


def _gaussian_votes(mechanism: VoteAggregation) -> Gaussian:
    """Returns Gaussian noise on a histogram of votes, of L2 sensitivity sqrt(2)."""
    # float64's sqrt(2) is rounded up
    shape = (mechanism.num_classes,)
    sensitivity = Sensitivity(math.sqrt(2), "l2", mechanism.adjacency, shape=shape)
    return Gaussian(sensitivity, mechanism.scale, mechanism.unit)


def _gaussian_in_words(scale: float) -> str:
    return (
        f"Gaussian of standard deviation {scale:.4g} on every count; a histogram has sensitivity"
        " sqrt(2) in L2"
    )
