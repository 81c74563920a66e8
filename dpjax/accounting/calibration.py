"""Calibration: noise for a privacy target, and the most steps within a budget."""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol, Self, TypeVar

from scipy.optimize import brentq
from scipy.special import ndtri

from dpjax._checks import check, check_delta, check_positive
from dpjax.accounting import risk
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.event_tradeoff import guaranteed_curve
from dpjax.accounting.events import AtomicEvents, TooLittleNoiseError, decompose
from dpjax.guarantee import Guarantee

# Noise is scaled by at most e^60 up or down.
_FARTHEST = 60.0
# Any value in this share of the target is taken, so that a few evaluations suffice.
_LEAST_SHARE, _AIM = 0.997, 0.9985
# What a rate may be at most, for its strength to be finite.
_CERTAIN = 1 - 1e-15


class Accountable(Protocol):
    """Protocol of objects with a guarantee, such as mechanisms."""

    @property
    def guarantee(self) -> Guarantee:
        """Event and adjacency, among others."""


class Calibratable(Accountable, Protocol):
    """A mechanism whose noise can be scaled."""

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the mechanism, as private as with all noise times ``factor``."""


class MultiStep(Accountable, Protocol):
    """A mechanism of several steps that can be stopped early."""

    @property
    def num_steps(self) -> int:
        """The number of steps."""

    def first_steps(self, num_steps: int) -> Accountable:
        """Returns the same mechanism stopped after ``num_steps`` >= 1 steps."""


_M = TypeVar("_M", bound=Calibratable)


@dataclass(frozen=True)
class Target:
    """The most that one measure of privacy loss may be.

    Attributes:
      name: of the measure, for errors.
      value: what it may be at most.
      measure: the measure of a mechanism, an upper bound like the certificate's.
      strength: a function of the measure that falls about as one over the noise.
      floor: the measure of perfect privacy.
      largest: the measure where there is too little noise for a bound.
    """

    name: str
    value: float
    measure: Callable[[Any], float]
    strength: Callable[[float], float]
    floor: float
    largest: float

    def measured(self, mechanism: Accountable) -> float:
        """Returns the measure of ``mechanism``."""
        try:
            return self.measure(mechanism)
        except TooLittleNoiseError:
            return self.largest

    def log_share(self, measured: float) -> float:
        """Returns the log of the measured over the target's strength, at most a billion."""
        share = self.strength(measured) / self.strength(self.value)
        return math.log(min(max(share, 1e-9), 1e9))

    def excess(self, mechanism: Accountable) -> float:
        """Returns the log of the measured over the targeted strength; zero if close below."""
        measured = self.measured(mechanism)
        room = self.value - self.floor
        if _LEAST_SHARE * room <= measured - self.floor <= room:
            return 0.0
        share = self.strength(measured) / self.strength(self.floor + _AIM * room)
        return math.log(min(max(share, 1e-9), 1e9))


def _only_target(
    epsilon: float | None,
    delta: float | None,
    advantage: float | None,
    true_positive_rate: float | None,
    false_positive_rate: float | None,
) -> Target:
    """Returns the one target among the arguments of ``calibrate``."""
    # Exactly one target, with its companion and no other.
    targets = {
        "epsilon": epsilon,
        "advantage": advantage,
        "true_positive_rate": true_positive_rate,
    }
    names = [name for name, value in targets.items() if value is not None]
    check(len(names) == 1, "the target", names, f"exactly one of {str(list(targets))[1:-1]}")
    check(epsilon is None or delta is not None, "delta", delta, "given with epsilon, such as 1e-6")
    check(epsilon is not None or delta is None, "delta", delta, "left out without epsilon")
    with_rate, allowed = (
        (false_positive_rate is None) == (true_positive_rate is None),
        "given with true_positive_rate, and with it only",
    )
    check(with_rate, "false_positive_rate", false_positive_rate, allowed)

    # Epsilon itself falls about as one over the noise.
    if epsilon is not None and delta is not None:
        check_positive("epsilon", epsilon)
        check_delta(delta)
        return Target(
            "epsilon",
            epsilon,
            measure=lambda mechanism: certified_epsilon(_atoms(mechanism), delta)[1],
            strength=lambda measured: measured,
            floor=0.0,
            largest=math.inf,
        )

    # Of an attack it is the mu of the Gaussian trade-off function of that advantage or rate.
    level = 0.0
    if false_positive_rate is not None:
        check_delta(false_positive_rate, "false_positive_rate")
        level = false_positive_rate
    (name,) = names
    check_delta(targets[name], name)
    value = float(targets[name] or 0.0)
    check(value > level, name, value, f"above false_positive_rate = {level:g}")

    def measure(mechanism: Accountable) -> float:
        curve = guaranteed_curve(_atoms(mechanism))
        if name == "advantage":
            return risk.advantage(curve)
        return float(risk.true_positive_rate(curve, level))

    def strength(measured: float) -> float:
        measured = min(measured, _CERTAIN)
        if name == "advantage":
            return 2 * float(ndtri((1 + measured) / 2))
        return float(ndtri(measured) - ndtri(level))

    return Target(name, value, measure, strength, floor=level, largest=1.0)


def calibrate(
    mechanism: _M,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
) -> _M:
    """Returns ``mechanism`` with its noise scaled to meet one privacy target.

    The target is ``epsilon`` at ``delta``, or an attacker's ``advantage`` (see
    ``dpjax.accounting.risk``), or the ``true_positive_rate`` at a ``false_positive_rate``. What the
    result's ``certificate`` guarantees of it is never above the target and at most 1 % below it. A
    central limit is no guarantee, so nothing is calibrated by one.

    Args:
      mechanism: the mechanism, at any scale of its noise.
      epsilon: the target epsilon, finite and above zero; with ``delta``.
      delta: in (0, 1), of ``epsilon``.
      advantage: the target advantage, in (0, 1).
      true_positive_rate: the target true positive rate, in (``false_positive_rate``, 1).
      false_positive_rate: in (0, 1), of ``true_positive_rate``.

    Returns:
      A mechanism of the same type, by its ``with_privacy_factor``.

    Raises:
      UnsupportedEventError: no accountant gives the mechanism a guarantee.
      ValueError: not exactly one target is given, a number of it is out of range, or no scale of
        the noise reaches it.

    >>> from dpjax import PoissonSampling, SubsampledGaussian
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(1_000, 0.1), l2_clip=1.0, noise_multiplier=1.0, num_steps=100,
    ...     adjacency="zero_out"
    ... )
    >>> round(calibrate(mechanism, epsilon=2.0, delta=1e-5).noise_multiplier, 1)
    2.3
    >>> round(calibrate(mechanism, advantage=0.1).noise_multiplier, 1)
    4.1
    """
    scalable = hasattr(mechanism, "with_privacy_factor")
    check(scalable, "mechanism", mechanism, "a mechanism such as SubsampledGaussian")
    target = _only_target(epsilon, delta, advantage, true_positive_rate, false_positive_rate)
    return scale_noise(mechanism, target)


def scale_noise(mechanism: _M, target: Target) -> _M:
    """Returns ``mechanism`` with its noise scaled until ``target`` is met.

    Args:
      mechanism: the mechanism, at any scale of its noise.
      target: what the result measures is at most this, and at most 1 % below.
    """

    @functools.cache
    def excess(log_scale: float) -> float:
        return target.excess(mechanism.with_privacy_factor(math.exp(log_scale)))

    lower, upper = _enclose_root(excess, target)
    # The excess is zero on a whole interval, and the search stops at the first point in it.
    root = float(brentq(excess, lower, upper, xtol=1e-6))
    if excess(root) != 0:
        raise _unreachable(target, f"the certified {target.name} jumps past it")
    return mechanism.with_privacy_factor(math.exp(root))


def max_num_steps(
    mechanism: MultiStep,
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    advantage: float | None = None,
    true_positive_rate: float | None = None,
    false_positive_rate: float | None = None,
) -> int:
    """Returns the largest number of steps, 0 to ``num_steps``, within a privacy budget.

    Stopped there, what the mechanism's certificate guarantees is at most the budget: ``epsilon`` at
    ``delta``, or ``advantage``, or ``true_positive_rate`` at ``false_positive_rate``.

    Args:
      mechanism: a mechanism of several steps, such as `SubsampledGaussian`.
      epsilon, delta, advantage, true_positive_rate, false_positive_rate: the budget, as the target
        of `calibrate`.

    Returns:
      The number of steps; zero where a single one is beyond the budget.

    Raises:
      UnsupportedEventError: no accountant gives the mechanism a guarantee.
      ValueError: not exactly one budget is given, or a number of it is out of range.
    """
    stoppable = hasattr(mechanism, "first_steps")
    check(stoppable, "mechanism", mechanism, "a mechanism of steps such as SubsampledGaussian")
    budget = _only_target(epsilon, delta, advantage, true_positive_rate, false_positive_rate)
    within, beyond, middle = 0, mechanism.num_steps + 1, mechanism.num_steps
    ends: dict[bool, tuple[float, float]] = {}
    num_measured = 0
    while beyond - within > 1:
        measured = budget.measured(mechanism.first_steps(middle))
        is_met = measured <= budget.value
        within, beyond = (middle, beyond) if is_met else (within, middle)
        ends[is_met] = math.log(middle), budget.log_share(measured)

        # The strength is near a power of the steps: through both ends, or their square root.
        (x, y), (other_x, other_y) = ends[is_met], ends.get(not is_met, (0.0, 0.0))
        power = (other_y - y) / (other_x - x) if len(ends) == 2 else 0.5
        num_measured += 1
        if num_measured % 5 and power > 0:
            guess = math.exp(min(x - y / power, math.log(beyond)))
            middle = int(min(max(guess, within + 1), beyond - 1))
        else:  # so that the interval shrinks, whatever the strength
            middle = (within + beyond) // 2
    return within


def _atoms(mechanism: Accountable) -> AtomicEvents:
    """Returns the decomposed event of a mechanism."""
    return decompose(mechanism.guarantee.event, mechanism.guarantee.adjacency)


def _enclose_root(excess: Callable[[float], float], target: Target) -> tuple[float, float]:
    """Returns two log scales of the noise between which the measure passes the target."""
    near, start = 0.0, excess(0.0)
    # The strength falls about as one over the noise; overshoot a little.
    step = math.copysign(min(1.3 * abs(start) + 0.05, 4.0), start)
    while abs(near) < _FARTHEST:
        far = near + step
        if excess(far) * step <= 0:
            return near, far
        near, step = far, 2 * step
    raise _unreachable(target, f"scaling the noise by {math.exp(near):.0e} does not pass it")


def _unreachable(target: Target, reason: str) -> ValueError:
    return ValueError(
        f"{target.name} = {target.value:g} cannot be reached by scaling the noise: {reason}"
    )
