"""Attack risk of a certificate: advantage, accuracy, TPR at a given FPR, with both bounds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from dpjax.accounting import risk
from dpjax.accounting.tradeoff import TradeOff

PRIORS = (0.5, 0.1)
FALSE_POSITIVE_RATES = (0.01, 0.001, 1e-5)
ADVANTAGE, ERROR_SUM = "advantage", "sum of errors"


@dataclass(frozen=True)
class Risk:
    """Lower and upper bound on one metric of the best attack.

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


def accuracy_at(prior: float) -> str:
    """Returns the name of the best attack's accuracy at a prior."""
    return f"accuracy at prior {prior:g}"


def true_positive_rate_at(level: float) -> str:
    """Returns the name of the best attack's true positive rate at a false positive rate."""
    return f"TPR at FPR {level:g}"


def attack_risks(certified: TradeOff, upper_bound: TradeOff | None) -> tuple[Risk, ...]:
    """Returns bounds on the success of the best attack, one `Risk` for each metric.

    Args:
      certified: the certified trade-off function, a lower bound.
      upper_bound: an upper bound on the trade-off function, ``None`` where it is not available.
    """
    return tuple(_risk(*metric, certified, upper_bound) for metric in _metrics())


def _metrics() -> list[tuple[str, Callable[[TradeOff], Any], float]]:
    """Returns name, function and value under guessing of each metric."""
    return [
        (ADVANTAGE, risk.advantage, 0.0),
        *((accuracy_at(prior), _accuracy(prior), max(prior, 1 - prior)) for prior in PRIORS),
        *((true_positive_rate_at(x), _detection(x), x) for x in FALSE_POSITIVE_RATES),
        (ERROR_SUM, risk.minimum_error_sum, 1.0),
    ]


def _accuracy(prior: float) -> Callable[[TradeOff], Any]:
    return lambda curve: risk.bayes_accuracy(curve, prior)


def _detection(level: float) -> Callable[[TradeOff], Any]:
    return lambda curve: risk.true_positive_rate(curve, level)


def _risk(
    name: str,
    metric: Callable[[TradeOff], Any],
    guessing: float,
    certified: TradeOff,
    upper_bound: TradeOff | None,
) -> Risk:
    guarantee = float(metric(certified))
    other = None if upper_bound is None else float(metric(upper_bound))
    lower, upper = (guarantee, other) if name == ERROR_SUM else (other, guarantee)
    return Risk(name, lower, upper, guessing)
