"""Attack risk of a trade-off function: membership by several metrics, inference by its baseline.

The attacker sees the release, has all data but one record, and tests H0 against H1. Under
add/remove and zero-out, H0 is that the record is absent and H1 that it is present (or the reverse:
the curves of ``tradeoff_curve`` are symmetric): membership inference. Under replace-one, H0 and H1
are two values of the record, the two that are easiest to distinguish. Type I errors are false
positives, type II errors false negatives. A guaranteed curve bounds every attack: the values here
are then upper bounds on an attacker's success, and the sum of errors is a lower bound on failure.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from dpjax.accounting.tradeoff import TradeOff
from dpjax.accounting.tradeoff.base import scalar, unit_interval

PRIORS = (0.5, 0.1)
FALSE_POSITIVE_RATES = (0.01, 0.001, 1e-5)
ADVANTAGE, ERROR_SUM = "advantage", "sum of errors"


def advantage(curve: TradeOff) -> float:
    """Returns the largest true positive rate minus false positive rate: the total variation.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(advantage(Gaussian(1.0)), 3)
    0.383
    """
    return float(curve.delta(0.0))


def minimum_error_sum(curve: TradeOff) -> float:
    """Returns the least sum of errors, min alpha + f(alpha) = 1 - advantage; 1 is perfect privacy.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(minimum_error_sum(Gaussian(0.57)), 3)
    0.776
    """
    return 1.0 - advantage(curve)


def bayes_accuracy(curve: TradeOff, prior: npt.ArrayLike) -> Any:
    """Returns the accuracy of the best attack where H1 holds with probability ``prior``.

    It is the largest of prior (1 - f(alpha)) + (1 - prior) (1 - alpha), elementwise; guessing alone
    attains max(prior, 1 - prior).

    Args:
      curve: the trade-off function of H0 against H1.
      prior: probabilities of H1, in [0, 1].

    Returns:
      The accuracies, of the shape of ``prior``; scalars give a scalar.

    Raises:
      ValueError: a ``prior`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(bayes_accuracy(Gaussian(1.0), 0.5), 3), round(bayes_accuracy(Gaussian(1.0), 0.1), 3)
    (0.691, 0.901)
    """
    share = unit_interval("prior", prior)
    open_share = np.clip(share, np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg)
    # At the slope -e^epsilon = -(1 - prior) / prior the curve touches the best of the tests.
    odds = np.log1p(-open_share) - np.log(open_share)
    accuracy = 1.0 - share + share * np.asarray(curve.delta(odds))
    return scalar(np.clip(accuracy, np.maximum(share, 1.0 - share), 1.0))


def true_positive_rate(curve: TradeOff, false_positive_rate: npt.ArrayLike) -> Any:
    """Returns the largest true positive rate at a false positive rate, 1 - f(alpha), elementwise.

    Args:
      curve: the trade-off function f of H0 against H1.
      false_positive_rate: levels alpha, in [0, 1].

    Returns:
      The rates, of the shape of ``false_positive_rate``; scalars give a scalar.

    Raises:
      ValueError: a ``false_positive_rate`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(true_positive_rate(Gaussian(1.0), 0.001), 4)
    0.0183
    """
    return curve.true_positive_rate(false_positive_rate)


def success_probability(curve: TradeOff, baseline: npt.ArrayLike) -> Any:
    """Returns the largest success probability of attribute inference or reconstruction.

    The attack has all other records and the release, and succeeds if its output is right about the
    record: an attribute, its identity, or the record itself to some accuracy. Against a release
    without the record it succeeds with the probability ``baseline``; with the record it does so
    with at most 1 - f(``baseline``), since its success is a test of the one against the other.

    Source: arXiv 2507.06969 (2025), one bound for re-identification, attribute inference and
    reconstruction.

    Args:
      curve: the certified trade-off function, in both orders of neighbours as a certificate's is;
        under replace-one the release without the record is one with any other record in its place.
      baseline: probabilities in [0, 1]: of the best guess from what is known without the release,
        for instance the share of the commonest value of an attribute.

    Returns:
      The probabilities, of the shape of ``baseline``; scalars give a scalar.

    Raises:
      ValueError: a ``baseline`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(success_probability(Gaussian(1.0), 0.01), 3)
    0.092
    """
    return curve.true_positive_rate(unit_interval("baseline", baseline))


def epsilon(curve: TradeOff, delta: npt.ArrayLike) -> Any:
    """Returns the least epsilon >= 0 at ``delta``, of both orders of neighbours, elementwise.

    Args:
      curve: the trade-off function of one order of neighbours.
      delta: numbers in [0, 1].

    Returns:
      The epsilons, of the shape of ``delta``, infinite where none reaches it; scalars give a
      scalar.

    Raises:
      ValueError: a ``delta`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(epsilon(Gaussian(1.0), 1e-5), 3)
    4.377
    """
    return curve.symmetrized().epsilon(delta)


@dataclass(frozen=True)
class Risk:
    """Bounds on the success of the best membership or substitution attack, by one metric.

    The guarantee is the upper bound, except for the sum of the errors, where it is the lower bound.

    Attributes:
      name: the metric, such as ``"advantage"``.
      lower: lower bound; ``None`` where it is not available.
      upper: upper bound; ``None`` where it is not available.
      guessing: the metric of an attack that ignores the release.
    """

    name: str
    lower: float | None
    upper: float | None
    guessing: float


def true_positive_rate_at(level: float) -> str:
    """Returns the name of the best attack's true positive rate at a false positive rate."""
    return f"TPR at FPR {level:g}"


def attack_risks(certified: TradeOff, upper_bound: TradeOff | None) -> tuple[Risk, ...]:
    """Returns bounds on the success of the best attack, one `Risk` for each metric.

    Args:
      certified: the certified trade-off function, a lower bound.
      upper_bound: an upper bound on the trade-off function, ``None`` where it is not available.
    """
    # The metrics: name, value of a curve, value of guessing.
    metrics: list[tuple[str, Callable[[TradeOff], Any], float]] = [(ADVANTAGE, advantage, 0.0)]
    for prior in PRIORS:
        metric = partial(bayes_accuracy, prior=prior)
        metrics.append((f"accuracy at prior {prior:g}", metric, max(prior, 1 - prior)))
    for level in FALSE_POSITIVE_RATES:
        metric = partial(true_positive_rate, false_positive_rate=level)
        metrics.append((true_positive_rate_at(level), metric, level))
    metrics.append((ERROR_SUM, minimum_error_sum, 1.0))

    # Of both curves; the certified one bounds all from above but the sum of errors.
    risks = []
    for name, metric_of, guessing in metrics:
        guarantee = float(metric_of(certified))
        other = None if upper_bound is None else float(metric_of(upper_bound))
        lower, upper = (guarantee, other) if name == ERROR_SUM else (other, guarantee)
        risks.append(Risk(name, lower, upper, guessing))
    return tuple(risks)
