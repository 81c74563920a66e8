"""Lower bounds on epsilon from the releases of two neighbouring data sets.

Each data set is released many times, and a test distinguishes the releases of the two.
Where its errors are fewer than the mechanism's trade-off function allows, up to the confidence of
the bounds on them, the certificate is refuted: the code, the mechanism or its account is wrong.
Where they are not, nothing is proven, and the audited epsilon says how close the attack came. The
data sets are made up: nothing here is private.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri
from scipy.stats import beta

from dpjax._checks import (
    as_key,
    check,
    check_count,
    check_delta,
    check_function,
    check_positive,
    check_type,
)
from dpjax._typing import ArrayTree, PRNGKey
from dpjax.accounting import calibrate
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.certificates import Certificate, Report
from dpjax.certificates.render import Table, round_down, round_up
from dpjax.mechanisms import Mechanism

__all__ = [
    "AuditReport",
    "ErrorBounds",
    "audit",
    "canary_loss",
    "canary_records",
]

Array: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[[ArrayTree], jax.typing.ArrayLike]
# Candidates for the threshold of a test, between the least and the largest score.
_NUM_THRESHOLDS = 400
_LEAST_RUNS = 200
# Thresholds are compared by bounds on their error rates that fail with this probability: so small
# that few errors by chance do not make a rare test the best.
_CHOICE_ERROR = 1e-4
# The gradient of the canary has so many times the norm of the clip bound, so that it is clipped.
CANARY_NORM = 2.0
_CAVEATS = (
    "This is what one attack found. Another attack may find more; only the certificate bounds what"
    " every attack can find.",
    "The errors are those on made-up records, chosen so that one of them is easy to find.",
)


@dataclass(frozen=True, kw_only=True)
class ErrorBounds:
    """Error counts of a test of two data sets, with Clopper-Pearson bounds on its error rates.

    Attributes:
      false_positives: releases of the first data set that the test assigns to the second.
      false_negatives: releases of the second data set that it assigns to the first.
      num_releases: of each data set.
      false_positive_rate: upper bound on the probability of a false positive.
      false_negative_rate: upper bound on the probability of a false negative.
    """

    false_positives: int
    false_negatives: int
    num_releases: int
    false_positive_rate: float
    false_negative_rate: float


@dataclass(frozen=True, kw_only=True)
class AuditReport(Report):
    """Audited and certified epsilon of code, with the error rates of the attack.

    Attributes:
      mechanism: that the code is claimed to implement.
      certificate: of the mechanism.
      confidence: of all bounds together.
      errors: of the test that is compared with the certified trade-off function.
      epsilon_distribution_free: lower bound on epsilon that assumes nothing of the mechanism: the
        largest log((1 - FNR - delta) / FPR), with both errors in either place.
    """

    mechanism: Mechanism
    certificate: Certificate
    confidence: float
    errors: ErrorBounds
    epsilon_distribution_free: float

    @functools.cached_property
    def epsilon(self) -> float:
        """The audited epsilon: certified for the mechanism with as much noise as the errors allow.

        It assumes that the code differs from the mechanism in the scale of its noise alone. Where
        no scale allows so few errors it is `epsilon_distribution_free`. Computed on first access,
        in some seconds for a mechanism of many steps.
        """
        rates = self.errors.false_positive_rate, 1 - self.errors.false_negative_rate
        if rates[0] >= rates[1] or not hasattr(self.mechanism, "with_privacy_factor"):
            return self.epsilon_distribution_free
        try:
            noisier = calibrate(
                self.mechanism, true_positive_rate=rates[1], false_positive_rate=rates[0]
            )
        except ValueError:  # no noise of this mechanism allows so few errors
            return self.epsilon_distribution_free
        return max(
            self.epsilon_distribution_free, noisier.certificate(self.certificate.delta).epsilon
        )

    @property
    def certified_false_negative_rate(self) -> float:
        """The least false negative rate at the false positive rate, by the certificate."""
        return float(self.certificate.curve(self.errors.false_positive_rate))

    @property
    def is_refuted(self) -> bool:
        """Whether the audited epsilon or the error rates contradict the certificate."""
        beyond = self.epsilon_distribution_free > self.certificate.epsilon
        return beyond or self.errors.false_negative_rate < self.certified_false_negative_rate

    @property
    def title(self) -> str:
        if self.is_refuted:
            return "REFUTED: the releases reveal more than the certificate allows"
        return (
            f"Not refuted: audited epsilon {round_down(self.epsilon)}, certified"
            f" {round_up(self.certificate.epsilon)}"
        )

    @property
    def tables(self) -> list[Table]:
        certificate, errors, runs = self.certificate, self.errors, self.errors.num_releases
        positive, negative = errors.false_positive_rate, errors.false_negative_rate
        least = self.certified_false_negative_rate
        bounds = [
            ("adjacency", certificate.guarantee.adjacency),
            ("epsilon, certified", f"at most {round_up(certificate.epsilon)}"),
            ("epsilon, audited", f"at least {round_down(self.epsilon)}  (of this mechanism)"),
            (
                "distribution-free",
                f"at least {round_down(self.epsilon_distribution_free)}  (of any mechanism)",
            ),
        ]
        attack = [
            ("releases", f"{runs:,} of each data set, after those that chose the test"),
            ("false positives", f"{errors.false_positives:,}, a rate of at most {positive:.4g}"),
            ("false negatives", f"{errors.false_negatives:,}, a rate of at most {negative:.4g}"),
            ("certified", f"a false negative rate of at least {least:.4g}"),
        ]
        caption = f"Audit at delta = {certificate.delta:g} and confidence {self.confidence:.4g}"
        return [(caption, bounds), ("Errors of the attack", attack)]

    @property
    def caveats(self) -> tuple[str, ...]:
        return _CAVEATS

    def paragraph(self) -> str:
        verdict = "which refutes" if self.is_refuted else "which does not contradict"
        return (
            f"An attack on {self.errors.num_releases:,} releases of each of two neighbouring data"
            f" sets made {self.errors.false_positives:,} false positives and"
            f" {self.errors.false_negatives:,} false negatives. At confidence"
            f" {self.confidence:.4g} the audited epsilon is at least {round_down(self.epsilon)} at"
            f" delta = {self.certificate.delta:g}, {verdict} the certified"
            f" {round_up(self.certificate.epsilon)}."
        )

    def _values(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "epsilon_distribution_free": self.epsilon_distribution_free,
            "certified_epsilon": self.certificate.epsilon,
            "delta": self.certificate.delta,
            "adjacency": self.certificate.guarantee.adjacency,
            "confidence": self.confidence,
            "is_refuted": self.is_refuted,
            "errors": vars(self.errors),
        }


def audit(
    key: PRNGKey,
    release: Callable[[PRNGKey, Any], ArrayTree],
    first: Any,
    second: Any,
    mechanism: Mechanism,
    *,
    delta: float,
    score: Score | None = None,
    num_runs: int = 10_000,
    confidence: float = 0.95,
    vectorize: bool = True,
) -> AuditReport:
    """Audits code against a mechanism's certificate, by an attack on two neighbouring data sets.

    A fifth of the runs on each data set choose a test, the others count its errors. The bounds on
    these are exact (Clopper & Pearson 1934), so code that is the mechanism is refuted with a
    probability of at most 1 - ``confidence``. Code with less noise is refuted if there are enough
    runs: 10,000 show half the noise at an epsilon of 1, 100,000 at an epsilon of 0.1, of a release
    of some hundred numbers at most; of more, give a ``score`` of the numbers that the canary moves.

    Source: Nasr, Hayes, Steinke, Balle, Tramer, Jagielski, Carlini & Terzis (2023), whose curve of
    Gaussian differential privacy is replaced by that of the mechanism.

    Args:
      key: of the runs.
      release: from a key and a data set, what is published, a tree of arrays: a mechanism's
        ``release``, or a function that trains and returns the parameters.
      first: made-up records.
      second: a neighbour of ``first`` under the mechanism's adjacency. The attack is as strong as
        the record by which they differ: see `canary_records`.
      mechanism: that the code is claimed to implement.
      delta: in (0, 1), at which epsilon is stated.
      score: from what one run publishes, a number that tends to be larger for ``second``, also an
        infinite one, under ``jax.vmap``; by default the product with the difference of the means
        of the runs that choose the test, for finite real releases of the same shape.
      num_runs: on each data set, at least 200; all releases are in memory together.
      confidence: of all bounds together, in (0, 1).
      vectorize: whether ``release`` and ``score`` are run under ``jax.vmap``; else run by run.

    Returns:
      The audited epsilon beside the certified one, and whether the certificate is refuted.

    Raises:
      TypeError: an argument of another type.
      ValueError: a number out of range, or a score that is not one number for each run.

    >>> import dpjax
    >>> one = dpjax.Sensitivity(1.0, "l2", "add_remove")
    >>> stated, actual = (dpjax.Gaussian(one, scale) for scale in (3.0, 1.5))
    >>> report = audit(jax.random.key(0), stated.release, 0.0, 1.0, stated, delta=1e-5)
    >>> report.is_refuted, report.epsilon > 0.7 * report.certificate.epsilon
    (False, True)
    >>> audit(jax.random.key(0), actual.release, 0.0, 1.0, stated, delta=1e-5).is_refuted
    True
    """
    key = as_key(key)
    check_function("release", release, "key", "data")
    check_type("mechanism", mechanism, Mechanism, "a mechanism, which has a certificate")
    if score is not None:
        check_function("score", score, "released")
    check_count("num_runs", num_runs, _LEAST_RUNS)
    check(isinstance(vectorize, bool), "vectorize", vectorize, "True or False")
    check_delta(confidence, "confidence")
    certificate = mechanism.certificate(delta)

    # Both data sets, released with keys of their own.
    keys = jax.random.split(key, (2, num_runs))
    run = jax.jit(jax.vmap(release, (0, None))) if vectorize else _run_by_run(release)
    released = [run(own, data) for own, data in zip(keys, (first, second), strict=True)]
    first_part = num_runs // 5  # which chooses the test

    # The scores; by default of the direction in which the means differ.
    if score is None:
        shapes = [[np.shape(leaf) for leaf in jax.tree.leaves(world)] for world in released]
        check(
            shapes[0] == shapes[1] and bool(shapes[0]),
            "release",
            shapes,
            "a function to arrays of the same shapes for both data sets, or else score given",
        )
        for leaf in map(np.asarray, jax.tree.leaves(released)):
            allowed = "a function to finite real numbers, or score given"
            check(leaf.dtype.kind in "biuf", "release", leaf.dtype, allowed)
            check(bool(np.isfinite(leaf).all()), "release", "NaN or infinity", allowed)
        means = [
            jax.tree.map(lambda leaf: np.asarray(leaf[:first_part], np.float64).mean(0), world)
            for world in released
        ]
        direction = jax.tree.map(lambda a, b: b - a, *means)
        one, other = (_project(direction, world) for world in released)
    elif vectorize:
        one, other = (np.asarray(jax.vmap(score)(world), np.float64) for world in released)
    else:
        one, other = (_score_each(score, world, num_runs) for world in released)
    for scores in (one, other):
        check(scores.shape == (num_runs,), "score", scores.shape, "one number for each run")
        check(not np.isnan(scores).any(), "score", math.nan, "a number for each run")

    # Two thresholds, chosen by the first part: for the trade-off function, as if the scores were
    # normal, and for the distribution-free epsilon. Four bounds share the failure probability.
    error = (1 - confidence) / 4
    chosen_by = one[:first_part], other[:first_part]
    thresholds = np.quantile(
        np.concatenate(chosen_by),
        np.linspace(0, 1, _NUM_THRESHOLDS),
        method="lower",  # scores may be infinite: nothing lies between them
    )
    *_, positive_rates, negative_rates = _error_rates(*chosen_by, thresholds, _CHOICE_ERROR)
    separations = -ndtri(positive_rates) - ndtri(negative_rates)
    *_, positive_rates, negative_rates = _error_rates(*chosen_by, thresholds, error)
    epsilons = _distribution_free_epsilon(positive_rates, negative_rates, delta)
    chosen = thresholds[[np.argmax(separations), np.argmax(epsilons)]]

    # The errors of both tests on the other runs.
    counted = one[first_part:], other[first_part:]
    positives, negatives, positive_rates, negative_rates = _error_rates(*counted, chosen, error)
    epsilons = _distribution_free_epsilon(positive_rates, negative_rates, delta)
    return AuditReport(
        mechanism=mechanism,
        certificate=certificate,
        confidence=confidence,
        errors=ErrorBounds(
            false_positives=int(positives[0]),
            false_negatives=int(negatives[0]),
            num_releases=num_runs - first_part,
            false_positive_rate=float(positive_rates[0]),
            false_negative_rate=float(negative_rates[0]),
        ),
        epsilon_distribution_free=float(np.max(epsilons)),
    )


def canary_records(
    num_examples: int, *, l2_clip: float, adjacency: Adjacency, num_params: int = 1
) -> tuple[jax.Array, jax.Array]:
    """Returns two neighbouring data sets that differ by a canary: the record easiest to find.

    With `canary_loss` a record is its own gradient. All records but the last are zero. The norm of
    the last, the canary, is twice the clip bound, so that it contributes exactly the bound in every
    step that samples it.

    Args:
      num_examples: of the data sets, n, at least 1; of the larger one under add/remove.
      l2_clip: the clip bound.
      adjacency: under ``"zero_out"`` the last record of the first data set is zero, under
        ``"replace_one"`` it is the opposite of the second's, under ``"add_remove"`` the first data
        set lacks it.
      num_params: of the model, d.

    Returns:
      Arrays ``(n, d)``, or first ``(n - 1, d)`` under add/remove.

    Raises:
      ValueError: an argument is out of range.

    >>> first, second = canary_records(3, l2_clip=1.0, adjacency="replace_one")
    >>> first.ravel().tolist(), second.ravel().tolist()
    ([0.0, 0.0, -2.0], [0.0, 0.0, 2.0])
    """
    check_count("num_examples", num_examples)
    check_positive("l2_clip", l2_clip)
    check_adjacency(adjacency)
    check_count("num_params", num_params)
    empty = jnp.zeros((num_examples, num_params))
    second = empty.at[-1, 0].set(CANARY_NORM * l2_clip)
    if adjacency == "add_remove":
        return empty[:-1], second
    return (-second if adjacency == "replace_one" else empty), second


def canary_loss(params: jax.Array, record: jax.Array) -> jax.Array:
    """Returns a linear loss, whose gradient in ``params`` is ``record`` itself.

    Args:
      params: of shape ``(d,)``.
      record: of shape ``(d,)``.

    >>> jax.grad(canary_loss)(jnp.zeros(2), jnp.array([3.0, 4.0])).tolist()
    [3.0, 4.0]
    """
    return jnp.vdot(params, record)


def _run_by_run(release: Callable[[PRNGKey, Any], ArrayTree]) -> Callable[..., ArrayTree]:
    def run(keys: jax.Array, data: Any) -> ArrayTree:
        each = [release(key, data) for key in keys]
        return jax.tree.map(lambda *leaves: np.stack([np.asarray(leaf) for leaf in leaves]), *each)

    return run


def _score_each(score: Score, released: ArrayTree, num_runs: int) -> Array:
    """Returns the score of each run, computed one after the other."""
    runs = (jax.tree.map(lambda leaf: leaf[run], released) for run in range(num_runs))  # noqa: B023
    return np.array([score(each) for each in runs], np.float64)


def _project(direction: ArrayTree, released: ArrayTree) -> Array:
    """Returns the inner product of each run's release with a direction."""
    products = jax.tree.map(
        lambda d, leaf: np.asarray(leaf, np.float64).reshape(len(leaf), -1) @ np.ravel(d),
        direction,
        released,
    )
    return np.asarray(sum(jax.tree.leaves(products)), np.float64)


def _error_rates(
    first: Array, second: Array, thresholds: Array, error: float
) -> tuple[Array, Array, Array, Array]:
    """Returns the errors of the tests that assign scores above a threshold to the second data set.

    Args:
      first, second: scores of the runs on both data sets.
      thresholds: of the tests.
      error: the probability that one bound is too small.

    Returns:
      For each threshold the numbers of false positives and of false negatives, and Clopper-Pearson
      upper bounds on their probabilities.
    """
    positives = np.sum(first > thresholds[:, None], axis=1)
    negatives = second.size - np.sum(second > thresholds[:, None], axis=1)
    bounds = (
        np.where(counts < size, beta.ppf(1 - error, counts + 1, np.maximum(size - counts, 1)), 1.0)
        for counts, size in ((positives, first.size), (negatives, second.size))
    )
    return positives, negatives, *bounds


def _distribution_free_epsilon(positive_rates: Array, negative_rates: Array, delta: float) -> Array:
    """Returns the least epsilon at ``delta`` of any mechanism with these error rates."""
    pairs = (positive_rates, negative_rates), (negative_rates, positive_rates)
    powers = [np.maximum(1 - other - delta, one) / one for one, other in pairs]
    return np.log(np.max(powers, axis=0))
