"""Attack risk of a trade-off function: advantage, TPR at a given FPR, Bayes accuracy.

The attacker sees the release, knows everything but one record, and tests H0 against H1. Under
add/remove and zero-out, H0 is that the record is absent and H1 that it is present (or the reverse:
the curves of ``tradeoff_curve`` are symmetric): membership inference. Under replace-one, H0 and H1
are two values of the record, the two that are easiest to distinguish. Type I errors are false
positives, type II errors false negatives. A guaranteed curve bounds every attack: the values here
are then upper bounds on an attacker's success, and the sum of errors is a lower bound on failure.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from dpjax._validation import check
from dpjax.accounting.tradeoff import TradeOff
from dpjax.accounting.tradeoff.base import scalar


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

    Raises:
      ValueError: a ``prior`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(bayes_accuracy(Gaussian(1.0), 0.5), 3), round(bayes_accuracy(Gaussian(1.0), 0.1), 3)
    (0.691, 0.901)
    """
    share = np.asarray(prior, np.float64)
    check(bool(np.all((share >= 0) & (share <= 1))), "prior", prior, "in [0, 1]")
    open_share = np.clip(share, np.finfo(float).tiny, 1.0 - np.finfo(float).epsneg)
    # At the slope -e^epsilon = -(1 - prior) / prior the curve touches the best of the tests.
    odds = np.log1p(-open_share) - np.log(open_share)
    found = 1.0 - share + share * np.asarray(curve.delta(odds))
    return scalar(np.clip(found, np.maximum(share, 1.0 - share), 1.0))


def true_positive_rate(curve: TradeOff, false_positive_rate: npt.ArrayLike) -> Any:
    """Returns the largest true positive rate at a false positive rate, 1 - f(alpha), elementwise.

    Raises:
      ValueError: a ``false_positive_rate`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(true_positive_rate(Gaussian(1.0), 0.001), 4)
    0.0183
    """
    return curve.true_positive_rate(false_positive_rate)


def epsilon(curve: TradeOff, delta: npt.ArrayLike) -> Any:
    """Returns the least epsilon >= 0 at ``delta``, of both orders of neighbours, elementwise.

    Raises:
      ValueError: a ``delta`` is not in [0, 1].

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(epsilon(Gaussian(1.0), 1e-5), 3)
    4.377
    """
    return curve.symmetrized().epsilon(delta)
