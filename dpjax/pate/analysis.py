"""Epsilon of private aggregation by every analysis, data-independent and data-dependent.

Data-independent epsilons hold for any votes and may be published. Data-dependent ones are functions
of the private votes.
"""

import math
import warnings

import numpy as np
import numpy.typing as npt
from dp_accounting import SelfComposedDpEvent
from dp_accounting.rdp import rdp_privacy_accountant

from dpjax._checks import check, check_delta, check_type
from dpjax.accounting import epsilon
from dpjax.accounting.accountants import compute_rdp
from dpjax.accounting.events import decompose
from dpjax.accounting.loss_distribution import Array
from dpjax.certificates.render import Estimate, Kind
from dpjax.mechanisms.additive import pure_dp_event
from dpjax.pate import data_dependent as bounds
from dpjax.pate.data_independent import argmax_rdp, threshold_rdp
from dpjax.pate.mechanisms import ConfidentGNMax, LNMax, VoteAggregation

# Of Rényi divergences.
ORDERS = tuple((1 + np.geomspace(0.3, 2_000, 48)).tolist())


def data_independent_analyses(mechanism: VoteAggregation, delta: float) -> tuple[Estimate, ...]:
    """Returns the epsilons of ``mechanism`` at ``delta`` that hold for any votes.

    First that of the source; the least is the guarantee, of kind ``"guarantee"``.
    """
    check_delta(delta)
    composed = epsilon(mechanism.event, delta, adjacency=mechanism.adjacency)
    if isinstance(mechanism, LNMax):
        rows = _laplace_bounds(mechanism, composed, delta)
    else:
        rows = _gaussian_bounds(mechanism, composed, delta)
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
      student_probabilities: with ``student_confidence``, as in ``release``.

    Returns:
      The bound over all outcomes and, with ``answered``, the cost of those answers. What the
      sources published bounds one direction of the divergence only, and is not among them.

    Raises:
      ValueError: ``votes`` are not counts of all teachers, or another argument is out of range.

    Privacy:
      Every epsilon depends on the private votes, and publishing it is a release that it does not
      cover. `SmoothRDPRelease` releases one with noise.
    """
    check_type("mechanism", mechanism, VoteAggregation, "an aggregation of dpjax.pate")
    check_delta(delta)
    counts = np.asarray(mechanism.check_votes(votes), float)

    if isinstance(mechanism, ConfidentGNMax):
        probabilities = mechanism.check_probabilities(student_probabilities)
        return _thresholded_analyses(mechanism, counts, probabilities, delta, answered)

    # every query is answered
    for name, value in (("answered", answered), ("student_probabilities", student_probabilities)):
        check(value is None, name, type(value), "left out: every query is answered")
    return _answers_analyses(mechanism, counts, delta)


def _answers_analyses(
    mechanism: VoteAggregation, counts: Array, delta: float
) -> tuple[Estimate, ...]:
    """Returns the data-dependent analysis of a mechanism that answers every query."""
    orders, scale = np.array(ORDERS), mechanism.scale
    if isinstance(mechanism, LNMax):
        worst = bounds.log_error_probability_laplace(counts, scale, worst_neighbor=True)
        dependent = bounds.laplace_rdp(worst, orders, scale)
        releases = decompose(mechanism.event, mechanism.adjacency)
        independent = compute_rdp(releases, ORDERS) / mechanism.num_queries
        method = "Papernot et al. (2017), Theorem 3, in both directions, all orders"
    else:
        worst = bounds.log_error_probability_gaussian(counts, scale, worst_neighbor=True)
        dependent = bounds.gaussian_rdp(worst, orders, scale)
        independent = argmax_rdp(ORDERS, scale)
        method = "Papernot et al. (2018), Theorem 6, in both directions, all orders"
    rdp = np.minimum(dependent, independent).sum(axis=0)
    return (_improved(method, orders, rdp, delta),)


def _thresholded_analyses(
    mechanism: ConfidentGNMax,
    counts: Array,
    probabilities: npt.ArrayLike | None,
    delta: float,
    answered: npt.ArrayLike | None,
) -> tuple[Estimate, ...]:
    """Returns the data-dependent analyses of a mechanism with a threshold."""
    scale, orders = mechanism.scale, np.array(ORDERS)

    # what is compared with the threshold: the largest count, less what the student expects
    baseline = 0.0 if probabilities is None else np.asarray(probabilities, float)
    checked = (counts - mechanism.num_teachers * baseline).max(axis=1)

    def check_and_answer_rdp(answer_rdp: Array) -> Array:
        return bounds.checked_answer_rdp(
            checked,
            answer_rdp,
            orders,
            threshold=mechanism.threshold,
            threshold_scale=mechanism.threshold_scale,
        ).sum(axis=0)

    # over all outcomes
    worst = bounds.log_error_probability_gaussian(counts, scale, worst_neighbor=True)
    answers = np.minimum(bounds.gaussian_rdp(worst, orders, scale), argmax_rdp(orders, scale))
    method = "check and answer of every query, both directions"
    rows = [_improved(method, orders, check_and_answer_rdp(answers), delta)]

    # of the answers that were given
    if answered is not None:
        mask = np.asarray(answered)
        fits = mask.shape == checked.shape and mask.dtype == bool
        check(fits, "answered", mask, f"{checked.size} booleans")
        checks = check_and_answer_rdp(np.zeros((1, orders.size)))
        method = f"{int(mask.sum()):,} realized answers and all checks, both directions"
        rows.append(
            _improved(method, orders, checks + answers[mask].sum(axis=0), delta, "realized")
        )
    return tuple(rows)


def _laplace_bounds(mechanism: LNMax, composed: float, delta: float) -> list[Estimate]:
    """Returns the epsilons of Laplace noise for any votes; ``composed``: of the histograms."""
    orders = np.arange(2.0, 502.0)
    rdp = mechanism.num_queries * bounds.laplace_rdp_independent(orders, mechanism.scale)
    pure = pure_dp_event(mechanism.pure_epsilon_per_query, mechanism.adjacency)
    event = SelfComposedDpEvent(pure, mechanism.num_queries)
    return [
        _classical("moments bound (Papernot et al. 2017, Theorem 2)", orders, rdp, delta),
        Estimate(
            "exact composition of pure DP, privacy loss distribution",
            epsilon(event, delta, adjacency=mechanism.adjacency),
            "bound",
        ),
        Estimate("noisy histograms, privacy loss distribution", composed, "bound"),
    ]


def _gaussian_bounds(mechanism: VoteAggregation, composed: float, delta: float) -> list[Estimate]:
    """Returns the epsilons of Gaussian noise for any votes; ``composed``: of the histograms."""
    scale, orders = mechanism.scale, np.array(ORDERS)
    fine_orders = 1 + np.geomspace(0.1, 2_000, 400)

    # divergences over the order of all noisy counts, and those of what is released of them
    num_answers = mechanism.num_queries
    if isinstance(mechanism, ConfidentGNMax):
        num_answers = mechanism.max_answers
    slope = num_answers * (1 / scale**2)
    outcomes = num_answers * argmax_rdp(orders, scale)

    # the same of the checks
    if isinstance(mechanism, ConfidentGNMax):
        threshold_scale = mechanism.threshold_scale
        slope = mechanism.num_queries * (1 / (2 * threshold_scale**2)) + slope
        outcomes = outcomes + mechanism.num_queries * threshold_rdp(orders, threshold_scale)
    return [
        _classical(
            "Rényi bound (Papernot et al. 2018, Section 4.1)",
            fine_orders,
            fine_orders * slope,
            delta,
        ),
        Estimate("Gaussian mechanism, privacy loss distribution", composed, "bound"),
        _improved("Rényi DP of the released outcomes, certified supremum", orders, outcomes, delta),
    ]


def _classical(method: str, orders: Array, rdp: Array, delta: float) -> Estimate:
    """Returns the epsilon by the conversion of the sources: rdp + log(1 / delta) / (order - 1)."""
    epsilons = rdp + math.log(1 / delta) / (orders - 1)
    best = int(np.argmin(epsilons))
    return Estimate(method, max(0.0, float(epsilons[best])), "bound", order=float(orders[best]))


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
