"""Readings of a Bayesian account: epsilon and delta, never without their differential twins."""

import math
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from dpjax._validation import check, check_choice, check_delta, check_non_negative
from dpjax.accounting.accountants import guarantee
from dpjax.accounting.bayesian.account import Account
from dpjax.accounting.curves import tradeoff_curve
from dpjax.accounting.events import reveals

Definition = Literal["strong", "weak"]

SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


class SideBySide(NamedTuple):
    """The same run by both accounts: neither is to be quoted without the other.

    Attributes:
      bayesian: for a record drawn like the data, under the estimator's assumption.
      differential: for every record, as `dpjax.accounting.certify` certifies it.
    """

    bayesian: float
    differential: float


class Percentile(NamedTuple):
    """A guarantee for most of the population.

    Attributes:
      share: of records drawn like the data, for each of which it holds.
      epsilon: (epsilon, delta) holds for each of them as in differential privacy, at the delta that
        was asked for.
    """

    share: float
    epsilon: float


def epsilon(account: Account, delta: float, *, definition: Definition = "strong") -> SideBySide:
    """Returns the least epsilon at ``delta`` of the steps so far, by both accounts.

    The Bayesian one is never below zero, and the estimators' failure is counted into delta. It is
    the least over the orders of *estimates*, and by Student's too small where the cost's draws have
    tails that the sample does not show: see `estimators.student`.

    Args:
      account: of one step at least.
      delta: of both.
      definition: ``"strong"``: Pr[privacy loss >= epsilon] <= delta over release *and* record, by
        Chernoff's bound, the least over the orders of (costs - log delta) / lambda. ``"weak"``:
        Pr[release in S] <= e^epsilon Pr[other release in S] + delta, which is kept by what is done
        with a release afterwards, as the strong one is not, and has the sharper conversion.

    Raises:
      ValueError: ``delta`` is not in (0, 1), or not above the estimators' failure probability; or
        nothing has been counted.

    Source: Triastcyn and Faltings 2020, Definitions 1 and 2, Corollary 1 and Equation 17; the
    sharper conversion is that of Canonne, Kamath, Steinke 2020, Proposition 12, which takes nothing
    but the mean of exp(lambda loss).

    >>> import dpjax
    >>> from dpjax.accounting import bayesian
    >>> sampling = dpjax.PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = dpjax.SubsampledGaussian(sampling, 1.0, 1.1, 1_000, "add_remove")
    >>> account = bayesian.update(bayesian.init(mechanism), np.full((1_000, 256), 0.3))
    >>> both = epsilon(account, delta=1e-5)
    >>> round(both.bayesian, 2), round(both.differential, 2)
    (0.38, 0.6)
    """
    check_delta(delta)
    certified = guarantee(account.as_run.event, delta, account.as_run.adjacency)[1]
    check_choice("definition", definition, get_args(Definition))
    return SideBySide(_epsilon(account, delta, definition), certified)


def delta(account: Account, epsilon: float, *, definition: Definition = "strong") -> SideBySide:
    """Returns the least delta at ``epsilon`` of the steps so far, by both accounts, at most 1.

    See `epsilon` for the definitions.

    Raises:
      ValueError: ``epsilon`` is negative, or nothing has been counted.

    Source: Triastcyn and Faltings 2020, Theorem 2 and Equation 17.
    """
    check_non_negative("epsilon", epsilon)
    as_run = account.as_run
    lost = reveals(as_run.event)
    certified = 1.0 if lost else _certified_delta(as_run.event, as_run.adjacency, epsilon)
    check_choice("definition", definition, get_args(Definition))
    exponents = account.costs - np.asarray(account.orders, float) * epsilon
    exponents = exponents - _sharpened(account) * (definition == "weak")
    tail = math.exp(min(0.0, float(np.min(exponents))))
    return SideBySide(min(1.0, tail + account.failure), certified)


def best_order(account: Account, delta: float, *, definition: Definition = "strong") -> int:
    """Returns the lambda at which the Bayesian epsilon is least.

    At the largest one tried, larger ones would do better: give `init` more.
    """
    return account.orders[int(np.argmin(_candidates(account, delta, definition)))]


def percentiles(
    account: Account, delta: float, shares: Sequence[float] = SHARES
) -> tuple[Percentile, ...]:
    """Returns the epsilons at ``delta`` that hold for shares of the population.

    For a record x' let delta(x') be the least with which (epsilon, delta(x')) holds for it, as in
    differential privacy. Its mean over the population is at most the Bayesian delta (of the weak
    definition), so by Markov's inequality at most a share delta_mu / delta of the population has a
    delta(x') above ``delta``. To hold for a share s, epsilon is read at delta_mu = (1 - s)
    ``delta``. A share whose delta_mu is not above the estimators' failure probability gets an
    infinite epsilon.

    Source: Triastcyn and Faltings 2020, Section 4.4.1.
    """
    check_delta(delta)
    for share in shares:
        check(0 <= share < 1, "shares", share, "in [0, 1)")
    readings = ((share, (1 - share) * delta) for share in shares)
    lost = account.failure
    return tuple(
        Percentile(share, _epsilon(account, mean, "weak") if mean > lost else math.inf)
        for share, mean in readings
    )


def attack_success(epsilon: Any, delta: float = 0.0) -> Any:
    """Returns (e^epsilon + delta) / (1 + e^epsilon), elementwise.

    It is how often an attacker with a flat prior is at most right about one record being there,
    who saw a release that is (``epsilon``, ``delta``)-differentially private for it. The source
    leaves ``delta`` out.

    Source: Triastcyn and Faltings 2020, Equation 1.

    >>> [round(float(attack_success(value)), 3) for value in (1.0, 2.0, 5.0)]
    [0.731, 0.881, 0.993]
    """
    value = np.asarray(epsilon, float)
    return 1.0 - (1.0 - delta) / (1.0 + np.exp(np.minimum(value, 700.0)))


def _epsilon(account: Account, delta: float, definition: Definition) -> float:
    return max(0.0, float(np.min(_candidates(account, delta, definition))))


def _candidates(account: Account, delta: float, definition: Definition) -> npt.NDArray[np.float64]:
    """Epsilon at each order."""
    left = delta - account.failure
    allowed = f"above the estimators' failure probability over all steps, {account.failure:.3g}"
    check(left > 0, "delta", delta, allowed)
    costs = account.costs - _sharpened(account) * (definition == "weak")
    return (costs - math.log(left)) / np.asarray(account.orders, float)


def _sharpened(account: Account) -> npt.NDArray[np.float64]:
    """How much less log delta is by the weak definition.

    (1 - e^(epsilon - L))_+ is at most e^(lambda (L - epsilon)) times the largest (1 - u) u^lambda.
    """
    orders = np.asarray(account.orders, float)
    return (orders + 1) * np.log(orders + 1) - orders * np.log(orders)


def _certified_delta(event: Any, adjacency: Any, epsilon: float) -> float:
    return float(tradeoff_curve(event, adjacency=adjacency).delta(epsilon))
