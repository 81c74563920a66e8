"""Epsilon of private aggregation by every analysis: published, exact, and data-dependent.

Data-independent epsilons hold for any votes and may be published. Data-dependent ones are functions
of the private votes.
"""

import math
import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting import SelfComposedDpEvent
from dp_accounting.rdp import rdp_privacy_accountant

from dpjax._checks import as_numbers, check, check_delta, check_positive, check_type
from dpjax.accounting import epsilon
from dpjax.accounting.events import decompose
from dpjax.accounting.loss_distribution import Array
from dpjax.accounting.rdp import compute_rdp
from dpjax.certificates.render import Estimate, Kind
from dpjax.mechanisms.additive import pure_dp_event
from dpjax.pate import data_dependent as bounds
from dpjax.pate.aggregation import (
    GNMax,
    LNMax,
    NoisyArgmax,
    VoteAggregation,
)
from dpjax.pate.argmax_rdp import argmax_rdp, check_rdp
from dpjax.pate.thresholded import InteractiveGNMax, ThresholdedAggregation
from dpjax.pate.votes import count_votes

RDP = Callable[[Array], Array]

# Of the bounds of this library, and of the scripts of the two sources.
ORDERS = tuple((1 + np.geomspace(0.3, 2_000, 48)).tolist())
ORDERS_2017 = tuple(float(moment + 1) for moment in range(1, 9))
ORDERS_2018 = tuple(np.concatenate([np.arange(2, 100, 0.5), np.geomspace(100, 500, 100)]).tolist())


class EpsilonPair(NamedTuple):
    """Epsilons of one release.

    Attributes:
      data_dependent: a function of the private votes, not publishable as is.
      data_independent: of any votes: the guarantee.
    """

    data_dependent: float
    data_independent: float


def data_independent_analyses(mechanism: VoteAggregation, delta: float) -> tuple[Estimate, ...]:
    """Returns the epsilons of ``mechanism`` at ``delta`` that hold for any votes.

    The least is the guarantee, of kind ``"guarantee"``; all are upper bounds.

    Args:
      mechanism: an aggregation of this package; it is not run.
      delta: in (0, 1).

    Returns:
      First the analysis of the source, then the others.

    Raises:
      ValueError: ``delta`` is not in (0, 1).
      TypeError: ``mechanism`` is no aggregation of this package.

    >>> mechanism = LNMax(
    ...     scale=20.0, num_teachers=250, num_classes=10, num_queries=100, adjacency="replace_one"
    ... )
    >>> [round(found.epsilon, 2) for found in data_independent_analyses(mechanism, 1e-5)]
    [5.3, 4.31, 2.9]
    """
    check_type("mechanism", mechanism, VoteAggregation, "an aggregation of dpjax.pate")
    check_delta(delta)
    composed = epsilon(mechanism.event, delta, adjacency=mechanism.adjacency)
    if isinstance(mechanism, LNMax):
        orders = np.arange(2.0, 502.0)
        rdp = mechanism.num_queries * bounds.laplace_rdp_independent(orders, mechanism.scale)
        pure = pure_dp_event(mechanism.pure_epsilon_per_query, mechanism.adjacency)
        event = SelfComposedDpEvent(pure, mechanism.num_queries)
        rows = [
            _classical("moments bound (Papernot et al. 2017, Theorem 2)", orders, rdp, delta),
            Estimate(
                "exact composition of pure DP, privacy loss distribution",
                epsilon(event, delta, adjacency=mechanism.adjacency),
                "bound",
            ),
            Estimate("noisy histograms, privacy loss distribution", composed, "bound"),
        ]
    else:
        parts = _gaussian_parts(mechanism)
        fine = _fine_orders()
        loose = fine * sum(count * slope for count, slope, _ in parts)
        orders = np.array(ORDERS)
        rdp = np.sum([count * divergence(orders) for count, _, divergence in parts], axis=0)
        rows = [
            _classical("Rényi bound (Papernot et al. 2018, Section 4.1)", fine, loose, delta),
            Estimate("Gaussian mechanism, privacy loss distribution", composed, "bound"),
            _improved("Rényi DP of the released outcomes, certified supremum", orders, rdp, delta),
        ]
    least = min(range(len(rows)), key=lambda row: rows[row].value)
    rows[least] = rows[least]._replace(kind="guarantee")
    return tuple(rows)


def data_dependent_analyses(
    mechanism: VoteAggregation,
    votes: npt.ArrayLike,
    delta: float,
    *,
    answered: npt.ArrayLike | None = None,
    student_probabilities: npt.ArrayLike | None = None,
) -> tuple[Estimate, ...]:
    """Returns the epsilons of ``mechanism`` at ``delta`` on these votes, not publishable as is.

    They assume that the queries were fixed before the first answer.

    Args:
      mechanism: an aggregation of this package.
      votes: counts ``(num_queries, num_classes)``; private.
      delta: in (0, 1).
      answered: of a run with a threshold, which queries the teachers answered, ``(num_queries,)``;
        adds the cost of the realized answers, a sum over the answers that were given instead of
        a bound over all outcomes.
      student_probabilities: of `InteractiveGNMax`, as in its ``release``.

    Returns:
      First the analysis of the source, then the others.

    Raises:
      ValueError: ``votes`` are not counts of all teachers, or another argument is out of range.

    Privacy:
      Every epsilon depends on the private votes, and publishing it is a release that it does not
      cover. `SmoothRDPRelease` releases one with noise.
    """
    check_type("mechanism", mechanism, VoteAggregation, "an aggregation of dpjax.pate")
    check_delta(delta)
    counts = np.asarray(mechanism.check_votes(votes), float)
    if isinstance(mechanism, NoisyArgmax):
        for name, value in (
            ("answered", answered),
            ("student_probabilities", student_probabilities),
        ):
            check(value is None, name, type(value), "left out: every query is answered")
        return _answers_analyses(mechanism, counts, delta)
    if not isinstance(mechanism, ThresholdedAggregation):
        raise TypeError(f"mechanism must be an aggregation of dpjax.pate, got {mechanism!r}")
    differences = counts
    interactive = isinstance(mechanism, InteractiveGNMax)
    given = student_probabilities is not None
    check(given == interactive, "student_probabilities", given, "given for InteractiveGNMax only")
    if student_probabilities is not None:
        probabilities = np.asarray(as_numbers(student_probabilities), float)
        shape = probabilities.shape
        check(shape == counts.shape, "student_probabilities", shape, f"of shape {counts.shape}")
        differences = counts - mechanism.num_teachers * probabilities
    return _thresholded_analyses(mechanism, counts, differences.max(axis=1), delta, answered)


def perform_analysis(
    teacher_preds: npt.ArrayLike,
    indices: npt.ArrayLike,
    noise_eps: float,
    delta: float = 1e-5,
    *,
    num_classes: int = 10,
) -> EpsilonPair:
    """Returns the data-dependent and the data-independent epsilon of LNMax labels.

    The data-dependent one bounds both directions of the divergence, at all orders, and is never
    above the data-independent one.

    Args:
      teacher_preds: predicted classes ``(num_teachers, num_examples)``; a teacher abstains where it
        predicts NaN or `NO_ANSWER` (-1).
      indices: which examples were labelled, each once: indices of columns, not labels.
      noise_eps: gamma, one over the scale of the Laplace noise; a label is (2 gamma, 0)-DP.
      delta: in (0, 1).
      num_classes: how many classes the noisy maximum is taken over, classes without votes included.

    Returns:
      Both epsilons, the data-dependent one first.

    Raises:
      ValueError: an argument is out of range, a prediction is no class, or ``indices`` are not
        different indices of examples.

    Privacy:
      The data-dependent epsilon is not publishable as is.

    Source: the function of this name in PySyft's PATE analysis; Papernot et al. (2017).

    >>> votes = np.repeat([[1], [1], [7], [1]], 20, axis=0).repeat(5, axis=1)
    >>> found = perform_analysis(votes, indices=[0, 2, 3], noise_eps=0.5, delta=1e-5)
    >>> round(found.data_dependent, 2), round(found.data_independent, 2)
    (0.53, 3.0)
    """
    check_positive("noise_eps", noise_eps)
    check_delta(delta)
    as_numbers(teacher_preds, "teacher_preds")
    votes = count_votes(teacher_preds, num_classes, abstentions=True)
    chosen = np.asarray(as_numbers(indices, "indices"))
    flat = chosen.ndim == 1 and chosen.size > 0 and np.issubdtype(chosen.dtype, np.integer)
    check(bool(flat), "indices", chosen, "a list of at least one whole number")
    inside = bool(np.all((chosen >= 0) & (chosen < len(votes))))
    check(inside, "indices", chosen, f"in 0 .. {len(votes) - 1}, indices of examples")
    different = np.unique(chosen).size == chosen.size
    check(different, "indices", chosen, "different indices of examples, not labels")
    mechanism = LNMax(
        scale=1 / float(noise_eps),
        num_teachers=len(np.asarray(teacher_preds)),
        num_classes=num_classes,
        num_queries=chosen.size,
        adjacency="replace_one",
        abstentions=True,
    )
    independent = min(found.value for found in data_independent_analyses(mechanism, delta))
    rows = data_dependent_analyses(mechanism, votes[chosen], delta)
    dependent = min(found.value for found in rows if found.kind == "bound")
    return EpsilonPair(min(dependent, independent), independent)


def _answers_analyses(mechanism: NoisyArgmax, counts: Array, delta: float) -> tuple[Estimate, ...]:
    """Returns the data-dependent analyses of a mechanism that answers every query."""
    both_orders = np.array(ORDERS)
    if isinstance(mechanism, LNMax):
        source, errors = bounds.laplace_rdp, bounds.log_error_probability_laplace
        name, orders = "Papernot et al. (2017), Theorem 3, moments 1 to 8", np.array(ORDERS_2017)
        parts = decompose(mechanism.event, mechanism.adjacency)
        independent = compute_rdp(parts, ORDERS) / mechanism.num_queries
    else:
        source, errors = bounds.gaussian_rdp, bounds.log_error_probability_gaussian
        name, orders = "Papernot et al. (2018), Theorem 6", np.array(ORDERS_2018)
        independent = argmax_rdp(ORDERS, mechanism.scale)
    scale = mechanism.scale
    forward = errors(counts, scale)
    worst = errors(counts, scale, worst_neighbor=True)
    published = source(forward, orders, scale).sum(axis=0)
    rdp = np.minimum(source(worst, both_orders, scale), independent).sum(axis=0)
    return (
        _classical(f"{name}, one direction", orders, published, delta, "published"),
        _improved("the same theorem in both directions, all orders", both_orders, rdp, delta),
    )


def _thresholded_analyses(
    mechanism: ThresholdedAggregation,
    counts: Array,
    checked: Array,
    delta: float,
    answered: npt.ArrayLike | None,
) -> tuple[Estimate, ...]:
    """Returns the data-dependent analyses of a mechanism with a threshold.

    ``checked`` is what is compared with the threshold.
    """
    scale, settings = (
        mechanism.scale,
        {
            "threshold": mechanism.threshold,
            "check_scale": mechanism.check_scale,
        },
    )
    source, orders = np.array(ORDERS_2018), np.array(ORDERS)
    answers = bounds.gaussian_rdp(
        bounds.log_error_probability_gaussian(counts, scale), source, scale
    )
    probabilities = np.exp(bounds.log_answer_probability(checked, **settings))
    expected = bounds.check_rdp_bound(checked, source, **settings).sum(axis=0)
    expected = expected + probabilities @ answers
    worst = bounds.log_error_probability_gaussian(counts, scale, worst_neighbor=True)
    both = np.minimum(bounds.gaussian_rdp(worst, orders, scale), argmax_rdp(orders, scale))
    pairs = bounds.checked_answer_rdp(checked, both, orders, **settings).sum(axis=0)
    name = "Papernot et al. (2018), Theorem 6, one direction, expected number of answers"
    rows = [
        _classical(name, source, expected, delta, "published"),
        _improved("check and answer of every query, both directions", orders, pairs, delta),
    ]
    if answered is not None:
        mask = np.asarray(answered)
        right = mask.shape == checked.shape and mask.dtype == bool
        check(right, "answered", mask, f"{checked.size} booleans")
        nothing = np.zeros((1, orders.size))
        checks = bounds.checked_answer_rdp(checked, nothing, orders, **settings).sum(axis=0)
        name = f"{int(mask.sum()):,} realized answers and all checks, both directions"
        rows.append(_improved(name, orders, checks + both[mask].sum(axis=0), delta, "realized"))
    return tuple(rows)


def _gaussian_parts(mechanism: VoteAggregation) -> list[tuple[int, float, RDP]]:
    """Returns, for each kind of Gaussian release, the count, the divergence over the order as if
    all of the noisy histogram or count were released, and that of what is released.
    """
    scale = mechanism.scale

    def answer(orders: Array) -> Array:
        return argmax_rdp(orders, scale)

    if isinstance(mechanism, GNMax):
        return [(mechanism.num_queries, 1 / scale**2, answer)]
    if not isinstance(mechanism, ThresholdedAggregation):
        raise TypeError(f"mechanism must be an aggregation of dpjax.pate, got {mechanism!r}")
    check_scale = mechanism.check_scale
    return [
        (mechanism.num_queries, 1 / (2 * check_scale**2), lambda o: check_rdp(o, check_scale)),
        (mechanism.max_answers, 1 / scale**2, answer),
    ]


def _fine_orders() -> Array:
    return 1 + np.geomspace(0.1, 2_000, 400)


def _classical(
    method: str, orders: Array, rdp: Array, delta: float, kind: Kind = "bound"
) -> Estimate:
    """Returns the epsilon by the conversion of the sources: rdp + log(1 / delta) / (order - 1)."""
    epsilons = rdp + math.log(1 / delta) / (orders - 1)
    best = int(np.argmin(epsilons))
    return Estimate(method, max(0.0, float(epsilons[best])), kind, order=float(orders[best]))


def _improved(
    method: str, orders: Array, rdp: Array, delta: float, kind: Kind = "bound"
) -> Estimate:
    """Returns the epsilon by the conversion of Canonne, Kamath & Steinke (2020), Proposition 12."""
    value, order = rdp_privacy_accountant.compute_epsilon(orders.tolist(), rdp.tolist(), delta)
    if value > 0 and order in (orders[0], orders[-1]):
        warnings.warn(
            f"the best order, {order:g}, is at an end of the orders searched: epsilon would be less"
            " at orders beyond",
            stacklevel=2,
        )
    return Estimate(method, float(value), kind, order=float(order))
