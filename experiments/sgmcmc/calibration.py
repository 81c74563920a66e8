"""How good predictive probabilities are: likelihood, calibration, and doubt where there should be.

Probabilities are ``(n, num_classes)``, labels int ``(n,)``; the logarithms are natural.
"""

from typing import Any, NamedTuple

import numpy as np
from scipy.stats import mannwhitneyu

_LEAST = np.finfo(np.float32).tiny


class Reliability(NamedTuple):
    """Predictions sorted by their confidence: the probability of the class that is predicted.

    Attributes:
      confidence: mean of each bin that is not empty.
      accuracy: share of a bin's predictions that are right.
      share: of all predictions, those in a bin.
    """

    confidence: np.ndarray
    accuracy: np.ndarray
    share: np.ndarray


def negative_log_likelihood(probabilities: Any, labels: Any) -> float:
    """Returns the mean of ``-log p(label)``.

    >>> round(negative_log_likelihood([[0.5, 0.5], [0.25, 0.75]], [0, 1]), 3)
    0.49
    """
    probabilities = np.asarray(probabilities)
    of_labels = probabilities[np.arange(len(probabilities)), np.asarray(labels)]
    return float(-np.log(np.maximum(of_labels, _LEAST)).mean())


def reliability(probabilities: Any, labels: Any, num_bins: int = 10) -> Reliability:
    """Returns accuracy by confidence, in bins of equal width.

    >>> found = reliability([[0.9, 0.1], [0.92, 0.08], [0.4, 0.6]], [0, 1, 1])
    >>> found.confidence.round(2).tolist(), found.accuracy.tolist()
    ([0.6, 0.91], [1.0, 0.5])
    """
    probabilities = np.asarray(probabilities, np.float64)
    confidence = probabilities.max(axis=1)
    right = probabilities.argmax(axis=1) == np.asarray(labels)
    bins = np.minimum((confidence * num_bins).astype(int), num_bins - 1)
    counts, confidences, rights = (
        np.bincount(bins, weights, num_bins) for weights in (None, confidence, right)
    )
    filled = counts > 0
    counts, confidences, rights = counts[filled], confidences[filled], rights[filled]
    return Reliability(confidences / counts, rights / counts, counts / len(right))


def calibration_error_percent(probabilities: Any, labels: Any, num_bins: int = 10) -> float:
    """Returns the expected calibration error: mean gap of confidence and accuracy, in points.

    Source: Guo, Pleiss, Sun, Weinberger (2017), equation 3.

    >>> round(calibration_error_percent([[0.9, 0.1], [0.9, 0.1]], [0, 1]), 1)
    40.0
    """
    bins = reliability(probabilities, labels, num_bins)
    return 100 * float((bins.share * abs(bins.confidence - bins.accuracy)).sum())


def entropies(probabilities: Any) -> np.ndarray:
    """Returns each prediction's entropy, between 0 (sure) and ``log(num_classes)``.

    >>> entropies([[0.5, 0.5], [1.0, 0.0]]).round(2).tolist()
    [0.69, 0.0]
    """
    probabilities = np.maximum(np.asarray(probabilities, np.float64), _LEAST)
    return -(probabilities * np.log(probabilities)).sum(axis=1)


def detection_percent(known: Any, strange: Any) -> float:
    """Returns how often a strange input's entropy is above a known one's: the AUROC.

    50 is no better than guessing.

    Args:
      known: entropies of predictions for inputs of the kind that was trained on.
      strange: for inputs of another kind.

    >>> detection_percent([0.1, 0.2], [0.3, 0.15])
    75.0
    """
    known, strange = np.asarray(known), np.asarray(strange)
    return 100 * float(mannwhitneyu(strange, known).statistic) / (known.size * strange.size)
