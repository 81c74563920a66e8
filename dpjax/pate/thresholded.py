"""Confident and Interactive GNMax: answers only for queries that pass a noisy threshold."""

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from dp_accounting import SelfComposedDpEvent

from dpjax._checks import (
    as_finite,
    as_numbers,
    check,
    check_count,
    check_delta,
    check_positive,
    is_traced,
)
from dpjax._typing import PRNGKey
from dpjax.guarantee import Guarantee
from dpjax.mechanisms import Gaussian
from dpjax.mechanisms._exact_noise import Array, call_on_host, derive
from dpjax.pate.aggregation import (
    Answers,
    VoteAggregation,
    gaussian_in_words,
    gaussian_votes,
)
from dpjax.pate.votes import NO_ANSWER
from dpjax.sampling.base import compose
from dpjax.sensitivity import Sensitivity


@dataclass(frozen=True, kw_only=True)
class ThresholdedAggregation(VoteAggregation):
    """Base class of aggregations that answer only queries whose votes pass a noisy threshold.

    Queries are processed in order. Each is checked, with noise of its own, until ``max_answers``
    were answered; the rest is neither checked nor answered. Which queries were answered is
    released: it is post-processing of the checks. The event is ``num_queries`` checks and
    ``max_answers`` answers, both fixed before the votes are seen, so the guarantee does not depend
    on how many are answered. That the order of checks and answers depends on earlier outcomes
    costs nothing: the total of the squared sensitivities over the variances is at most that of the
    event on every path (Smith & Thakurta 2022, "Fully Adaptive Composition for Gaussian
    Differential Privacy"; for Rényi divergences Feldman & Zrnic 2021).

    Attributes:
      threshold: in votes.
      check_scale: standard deviation of the noise of the check, in votes.
      max_answers: after so many answers nothing more is released; at most ``num_queries``.
    """

    threshold: float
    check_scale: float
    max_answers: int

    def __post_init__(self) -> None:
        super().__post_init__()
        if not is_traced(self.threshold):
            as_finite(self.threshold, "threshold", "a finite number")
        check_positive("check_scale", self.check_scale)
        check_count("max_answers", self.max_answers)
        allowed = f"at most num_queries = {self.num_queries}"
        check(self.max_answers <= self.num_queries, "max_answers", self.max_answers, allowed)

    @property
    def vote_noise(self) -> Gaussian:
        """Gaussian noise on a histogram of L2 sensitivity sqrt(2)."""
        return gaussian_votes(self)

    @property
    def check_noise(self) -> Gaussian:
        """Gaussian noise on the checked count, of sensitivity one."""
        return Gaussian(Sensitivity(1.0, "l2", self.adjacency), self.check_scale, self.unit)

    def _thresholded_guarantee(self, checked: str) -> Guarantee:
        checks = SelfComposedDpEvent(self.check_noise.event, self.num_queries)
        answers = SelfComposedDpEvent(self.vote_noise.event, self.max_answers)
        return self._guarantee(
            compose([checks, answers]),
            self.num_queries + self.max_answers,
            statistic=f"{self._votes_in_words()}, at most {self.max_answers:,} answered",
            check=f"{checked} plus Gaussian noise of standard deviation {self.check_scale:.4g}"
            f" must reach {self.threshold:.6g}; every check is counted, also where none is made",
            noise=gaussian_in_words(self.scale),
        )

    def scale_noise(self, factor: float) -> Self:
        """Returns the same mechanism with ``scale`` and ``check_scale`` times ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(
            self, scale=self.scale * factor, check_scale=self.check_scale * factor
        )

    def _release(self, key: PRNGKey, votes: npt.ArrayLike, values: list[Any]) -> Answers:
        """Returns the teachers' answers; ``values`` are subtracted from the votes for the check."""
        counts = self.check_votes(votes)
        results = [jax.ShapeDtypeStruct((self.num_queries,), t) for t in (np.int32, np.bool_)]
        return Answers(
            *map(jnp.asarray, call_on_host(self._answer, key, [counts, *values], results))
        )

    def _answer(self, words: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        votes, *baselines = arrays
        check_words, answer_words = derive(words, 2)
        checked = np.max(votes - baselines[0] if baselines else votes, axis=-1)
        # the baseline is subtracted in float64
        rounding = self.num_teachers * 2.0**-50
        noisy = self.check_noise.add_noise(check_words, [checked], rounding=rounding)[0]
        passed = noisy >= self.threshold
        answered = passed & (np.cumsum(passed, axis=-1) <= self.max_answers)
        labels = self._noisy_labels(answer_words, votes)
        return [np.where(answered, labels, NO_ANSWER), answered]


@dataclass(frozen=True, kw_only=True)
class ConfidentGNMax(ThresholdedAggregation):
    """GNMax on the queries whose largest count plus Gaussian noise reaches a threshold.

    Attributes:
      threshold: T of the source, in votes.
      check_scale: standard deviation of the noise of the check (sigma_1), in votes.
      max_answers: after so many answers nothing more is released; at most ``num_queries``.
      scale: standard deviation of the noise on every count (sigma_2), in votes.
      num_teachers: what the votes on a query sum to, with ``abstentions`` at most; public.
      num_classes: at least two; public.
      num_queries: how many histograms one ``release`` takes; public.
      adjacency: ``"replace_one"``.
      unit: the unit of privacy, a noun phrase.
      abstentions: whether teachers may abstain; public.

    Privacy:
      The labels that ``release`` returns are released, and which queries were answered.

    Source: Papernot et al. (2018), Algorithm 1; the maximal number of answers is added.

    >>> mechanism = ConfidentGNMax(
    ...     threshold=200.0, check_scale=150.0, scale=40.0, max_answers=286, num_queries=640,
    ...     num_teachers=250, num_classes=10, adjacency="replace_one"
    ... )
    >>> round(mechanism.certificate(1e-5).epsilon, 2)
    2.54
    """

    def release(self, key: PRNGKey, votes: npt.ArrayLike) -> Answers:
        """Returns labels of the queries that pass the check; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``,
            with ``abstentions`` at most. Under jit only the shape is checked.

        Raises:
          ValueError: ``votes`` are not counts of all teachers.
        """
        return self._release(key, votes, [])

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return self._thresholded_guarantee("the largest count")


@dataclass(frozen=True, kw_only=True)
class InteractiveGNMax(ThresholdedAggregation):
    """GNMax on the queries where the teachers disagree with the student, above a threshold.

    Checked is the largest difference between a count and ``num_teachers`` times the student's
    probability of the class. Where the teachers do not answer and the student's largest probability
    reaches ``student_confidence``, the student's own class is the label.

    Attributes:
      threshold: T of the source, in votes.
      check_scale: standard deviation of the noise of the check (sigma_1), in votes.
      max_answers: after so many answers nothing more is released; at most ``num_queries``.
      student_confidence: a probability, in (0, 1).
      scale: standard deviation of the noise on every count (sigma_2), in votes.
      num_teachers: what the votes on a query sum to, with ``abstentions`` at most; public.
      num_classes: at least two; public.
      num_queries: how many histograms one ``release`` takes; public.
      adjacency: ``"replace_one"``.
      unit: the unit of privacy, a noun phrase.
      abstentions: whether teachers may abstain; public.

    Privacy:
      The labels that ``release`` returns are released, and which queries the teachers answered. The
      student's probabilities must be public: computed from public data and earlier releases only.

    Source: Papernot et al. (2018), Algorithm 2; the maximal number of answers is added.
    """

    student_confidence: float

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.student_confidence, "student_confidence")

    def release(
        self, key: PRNGKey, votes: npt.ArrayLike, student_probabilities: npt.ArrayLike
    ) -> Answers:
        """Returns the teachers' labels, and the student's own where it is confident.

        Works under jit and vmap. ``answered`` is true for the teachers' labels only.

        Args:
          key: a JAX key; a secret.
          votes: counts ``(num_queries, num_classes)``; every row sums to ``num_teachers``,
            with ``abstentions`` at most. Under jit only the shape is checked.
          student_probabilities: the student's predictions, of the shape of ``votes``; public.

        Raises:
          ValueError: ``votes`` are not counts of all teachers, or the probabilities are not in
            [0, 1] or of another shape.
        """
        probabilities = as_numbers(student_probabilities, "student_probabilities")
        shape = (self.num_queries, self.num_classes)
        fits = probabilities.shape == shape
        check(fits, "student_probabilities", probabilities.shape, f"of shape {shape}")
        if not is_traced(probabilities):
            values = np.asarray(probabilities, np.float64)
            wrong = values[~((values >= 0) & (values <= 1))]
            check(wrong.size == 0, "student_probabilities", wrong[:1].tolist(), "in [0, 1]")
        answers = self._release(key, votes, [self.num_teachers * probabilities])
        probabilities = jnp.asarray(probabilities)
        own = jnp.argmax(probabilities, axis=-1).astype(jnp.int32)
        is_confident = jnp.max(probabilities, axis=-1) >= self.student_confidence
        reinforced = ~answers.answered & is_confident
        return answers._replace(labels=jnp.where(reinforced, own, answers.labels))

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        checked = self._thresholded_guarantee("the largest count less the student's expected count")
        student = (
            "its own class is the label where the teachers do not answer and its probability is at"
            f" least {self.student_confidence:.4g}"
        )
        return dataclasses.replace(checked, description={**checked.description, "student": student})
