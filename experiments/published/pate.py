"""Published epsilons of private aggregation: formulas that bound one direction of the divergence.

Theorem 3 of Papernot et al. (2017) and Theorem 6 of Papernot et al. (2018) bound the divergence of
the labels of the given votes from those of neighbouring ones, but not the reverse, and with a
threshold the source takes the expected number of answers. `dpjax.pate.data_dependent_analyses`
bounds both directions over all outcomes. Everything here is a function of the private votes.
"""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from scipy.special import log_ndtr, ndtr

from dpjax import pate
from dpjax.pate import data_dependent as bounds

Array = npt.NDArray[np.float64]
# Of the scripts of the two sources.
ORDERS_2017 = np.arange(2.0, 10.0)
ORDERS_2018 = np.concatenate([np.arange(2, 100, 0.5), np.geomspace(100, 500, 100)])


class EpsilonPair(NamedTuple):
    """Epsilons of one release.

    Attributes:
      data_dependent: a function of the private votes, not publishable as is.
      data_independent: of any votes: the guarantee.
    """

    data_dependent: float
    data_independent: float


def published_epsilon(mechanism: pate.VoteAggregation, votes: npt.ArrayLike, delta: float) -> float:
    """Returns the data-dependent epsilon by the formula and the orders of the mechanism's source.

    Args:
      mechanism: an `LNMax`, `GNMax` or `ConfidentGNMax`.
      votes: counts ``(num_queries, num_classes)``; private.
      delta: in (0, 1).
    """
    counts = np.asarray(mechanism.check_votes(votes), float)
    if isinstance(mechanism, pate.LNMax):
        orders = ORDERS_2017
        log_errors = bounds.log_error_probability_laplace(counts, mechanism.scale)
        rdp = bounds.laplace_rdp(log_errors, orders, mechanism.scale).sum(axis=0)
    else:
        orders = ORDERS_2018
        log_errors = bounds.log_error_probability_gaussian(counts, mechanism.scale)
        answers = bounds.gaussian_rdp(log_errors, orders, mechanism.scale)
        rdp = answers.sum(axis=0)
    if isinstance(mechanism, pate.ConfidentGNMax):
        settings = {
            "threshold": mechanism.threshold,
            "threshold_scale": mechanism.threshold_scale,
        }
        checked = counts.max(axis=1)
        probabilities = ndtr((checked - mechanism.threshold) / mechanism.threshold_scale)
        rdp = published_threshold_rdp(checked, orders, **settings).sum(axis=0)
        rdp = rdp + probabilities @ answers
    return max(0.0, float(np.min(rdp + math.log(1 / delta) / (orders - 1))))


def published_threshold_rdp(
    checked: npt.ArrayLike, orders: Array, *, threshold: float, threshold_scale: float
) -> Array:
    """Returns Theorem 6's bound on the Rényi divergences of the check, forward direction only.

    Args:
      checked: what is compared with the threshold, ``(num_queries,)``.
      orders: above one, ``(num_orders,)``.
      threshold: in votes.
      threshold_scale: standard deviation of the noise of the check.

    Returns:
      Bounds ``(num_queries, num_orders)``, as the analysis of the source has them.

    Source: Papernot et al. (2018), Theorem 6 for a release of sensitivity one.
    """
    log_pass = log_ndtr((np.asarray(checked) - threshold) / threshold_scale)
    with np.errstate(divide="ignore"):
        log_fail = np.where(
            log_pass > -0.7, np.log(-np.expm1(log_pass)), np.log1p(-np.exp(log_pass))
        )
    return bounds.gaussian_rdp(
        np.minimum(log_pass, log_fail), orders, math.sqrt(2) * threshold_scale
    )


def perform_analysis(
    teacher_preds: npt.ArrayLike,
    indices: npt.ArrayLike,
    noise_eps: float,
    delta: float = 1e-5,
    *,
    num_classes: int = 10,
) -> EpsilonPair:
    """Returns the data-dependent and the data-independent epsilon of LNMax labels.

    The signature is that of PySyft's function, the bounds are those of `dpjax.pate`: the
    data-dependent epsilon is of both directions of the divergence, at all orders.

    Args:
      teacher_preds: predicted classes ``(num_teachers, num_examples)``; a teacher abstains where it
        predicts NaN or `NO_ANSWER` (-1).
      indices: which examples were labelled, each once: indices of columns, not labels.
      noise_eps: gamma, one over the scale of the Laplace noise; a label is (2 gamma, 0)-DP.
      delta: in (0, 1).
      num_classes: how many classes the noisy maximum is taken over, classes without votes included.

    >>> votes = np.repeat([[1], [1], [7], [1]], 20, axis=0).repeat(5, axis=1)
    >>> found = perform_analysis(votes, indices=[0, 2, 3], noise_eps=0.5, delta=1e-5)
    >>> round(found.data_dependent, 2), round(found.data_independent, 2)
    (0.53, 3.0)
    """
    votes = pate.count_votes(teacher_preds, num_classes, abstentions=True)
    columns = np.asarray(indices)
    if np.unique(columns).size != columns.size:
        raise ValueError(f"indices must be different indices of examples, not labels: {columns}")
    mechanism = pate.LNMax(
        scale=1 / noise_eps,
        num_teachers=len(np.asarray(teacher_preds)),
        num_classes=num_classes,
        num_queries=columns.size,
        adjacency="replace_one",
        abstentions=True,
    )
    found = pate.certificate(mechanism, delta, votes=votes[columns])
    dependent = min(row.value for row in found.data_dependent)
    return EpsilonPair(min(dependent, found.epsilon), found.epsilon)
