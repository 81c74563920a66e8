"""Converts accumulated BDP cost to (epsilon, delta), with the DP guarantee alongside.

Source: Triastcyn & Faltings (2020), Definitions 1 and 2, Corollary 1 and Section 4.4.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_finite,
    as_float64,
    check,
    check_choice,
    check_delta,
    check_non_negative,
    check_share,
)
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.event_tradeoff import guaranteed_curve
from dpjax.accounting.events import decompose
from dpjax.accounting.loss_distribution import Array
from dpjax.bdp.accountant import AccountantState, check_state

Definition = Literal["strong", "weak"]

SHARES = (0.0, 0.5, 0.9, 0.99, 0.999, 0.9999, 0.99999)


class BDPResult(NamedTuple):
    """One quantity of the same run under BDP and under DP. Quote the DP value in every report.

    Attributes:
      bdp: for a record drawn from the data distribution, under the estimator's assumption.
      dp: for every record, as `dpjax.certificates.certify` certifies it.
    """

    bdp: float
    dp: float


def epsilon(
    state: AccountantState, delta: float, *, definition: Definition = "strong"
) -> BDPResult:
    """Returns the epsilon at ``delta`` of the accumulated steps, under BDP and under DP.

    The BDP epsilon is at least zero, and the estimators' failure probability is included in delta.
    It is the minimum over the orders of *estimates*; Student's are too small where the cost has
    tails that the sample does not contain, see `estimators.student_upper_bound`.

    Args:
      state: of at least one step.
      delta: in (0, 1), of both guarantees.
      definition: ``"strong"``: Pr[privacy loss >= epsilon] <= delta over release *and* record, by
        Chernoff's bound, the minimum over the orders of (costs - log delta) / lambda. ``"weak"``:
        Pr[release in S] <= e^epsilon Pr[other release in S] + delta, which is closed under
        post-processing, unlike the strong one, and has a sharper conversion.

    Raises:
      ValueError: ``delta`` is not in (0, 1), or not above the estimators' failure probability; or
        no step was accumulated.

    Source: Triastcyn & Faltings (2020), Definitions 1 and 2, Corollary 1 and Equation 17. The
    sharper conversion is Canonne, Kamath & Steinke (2020), Proposition 12, which needs only the
    mean of exp(lambda loss).

    >>> import dpjax
    >>> from dpjax import bdp
    >>> sampling = dpjax.PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=1_000, adjacency="add_remove"
    ... )
    >>> state = bdp.update(bdp.init(mechanism), np.full((1_000, 256), 0.3))
    >>> found = epsilon(state, delta=1e-5)
    >>> round(found.bdp, 2), round(found.dp, 2)
    (0.38, 0.6)
    """
    check_state(state)
    check_delta(delta)
    check_choice("definition", definition, get_args(Definition))
    mechanism = state.completed_mechanism
    atoms = decompose(mechanism.event, mechanism.guarantee.adjacency)
    return BDPResult(_epsilon(state, delta, definition), certified_epsilon(atoms, delta)[1])


def delta(
    state: AccountantState, epsilon: float, *, definition: Definition = "strong"
) -> BDPResult:
    """Returns the delta at ``epsilon`` of the accumulated steps, under BDP and under DP, at most 1.

    Args:
      state: of at least one step.
      epsilon: a finite number >= 0, of both guarantees.
      definition: see the function `epsilon`.

    Raises:
      ValueError: ``epsilon`` is negative, or no step was accumulated.

    Source: Triastcyn & Faltings (2020), Theorem 2 and Equation 17.
    """
    check_state(state)
    check_non_negative("epsilon", epsilon)
    check_choice("definition", definition, get_args(Definition))
    mechanism = state.completed_mechanism
    atoms = decompose(mechanism.event, mechanism.guarantee.adjacency)
    certified = float(guaranteed_curve(atoms).delta(epsilon))
    exponents = state.costs - np.asarray(state.orders, float) * epsilon
    exponents = exponents - _conversion_gain(state) * (definition == "weak")
    tail = math.exp(min(0.0, float(np.min(exponents))))
    return BDPResult(min(1.0, tail + state.total_failure_probability), certified)


def best_order(state: AccountantState, delta: float, *, definition: Definition = "strong") -> int:
    """Returns the order lambda that minimises the BDP epsilon."""
    return state.orders[int(np.argmin(_epsilon_at_orders(state, delta, definition)))]


def population_epsilons(
    state: AccountantState, delta: float, shares: Sequence[float]
) -> tuple[tuple[float, float], ...]:
    """Returns shares of the population, each with the epsilon at ``delta`` that holds for it.

    For a record x' let delta(x') be the smallest with which (epsilon, delta(x'))-DP holds for it.
    Its mean over the population is at most the BDP delta (of the weak definition), so by Markov's
    inequality at most a share delta_mu / delta of the population has a delta(x') above ``delta``.
    For a share s, epsilon is therefore evaluated at delta_mu = (1 - s) ``delta``. It is infinite
    where delta_mu is not above the estimators' failure probability.

    Source: Triastcyn & Faltings (2020), Section 4.4.1.
    """
    check_delta(delta)
    allowed = "numbers in [0, 1)"
    shares = as_finite(shares, "shares", allowed, lambda s: (s >= 0) & (s < 1)).tolist()
    check(isinstance(shares, list), "shares", shares, allowed)
    means = ((share, (1 - share) * delta) for share in shares)
    failure = state.total_failure_probability
    return tuple(
        (share, _epsilon(state, mean, "weak") if mean > failure else math.inf)
        for share, mean in means
    )


def attack_success(epsilon: npt.ArrayLike, delta: float = 0.0) -> np.float64 | Array:
    """Returns (e^epsilon + delta) / (1 + e^epsilon), elementwise: a bound on membership inference.

    It bounds the probability that an attacker with a uniform prior correctly decides whether a
    record is in the data, from a release that is (``epsilon``, ``delta``)-DP for that record. The
    published formula has no ``delta``.

    Args:
      epsilon: numbers >= 0.
      delta: in [0, 1].

    Returns:
      Probabilities, of the shape of ``epsilon``.

    Source: Triastcyn & Faltings (2020), Equation 1.

    >>> [round(float(attack_success(value)), 3) for value in (1.0, 2.0, 5.0)]
    [0.731, 0.881, 0.993]
    """
    check_share("delta", delta)
    value = as_float64(epsilon, "epsilon")
    return 1.0 - (1.0 - delta) / (1.0 + np.exp(np.minimum(value, 700.0)))


def _epsilon(state: AccountantState, delta: float, definition: Definition) -> float:
    return max(0.0, float(np.min(_epsilon_at_orders(state, delta, definition))))


def _epsilon_at_orders(state: AccountantState, delta: float, definition: Definition) -> Array:
    """Returns the BDP epsilon at each order."""
    failure = state.total_failure_probability
    allowed = f"above the estimators' failure probability over all steps, {failure:.3g}"
    check(delta > failure, "delta", delta, allowed)
    costs = state.costs - _conversion_gain(state) * (definition == "weak")
    return (costs - math.log(delta - failure)) / np.asarray(state.orders, float)


def _conversion_gain(state: AccountantState) -> Array:
    """Returns the difference of log delta between the strong and the weak definition.

    (1 - e^(epsilon - L))_+ is at most e^(lambda (L - epsilon)) times the largest (1 - u) u^lambda.
    """
    orders = np.asarray(state.orders, float)
    return (orders + 1) * np.log(orders + 1) - orders * np.log(orders)
