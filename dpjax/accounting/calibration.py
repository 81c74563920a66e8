"""The least noise for a target epsilon, and the most steps for a budget."""

import functools
import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, TypeVar, cast

from scipy.optimize import brentq

from dpjax._validation import check_delta, check_positive
from dpjax.accounting.accountants import guarantee

if TYPE_CHECKING:
    from dpjax.mechanisms.base import Mechanism

_M = TypeVar("_M", bound="Mechanism")

# Any certified epsilon in this share of the target is taken, so that a few evaluations suffice.
_LEAST_SHARE, _AIM = 0.997, 0.9985
# Noise is scaled by at most e^60 up or down.
_FARTHEST = 60.0


class Stoppable(Protocol):
    """A mechanism of several steps that can be stopped early."""

    @property
    def num_steps(self) -> int:
        """How many steps it makes."""

    def prefix(self, num_steps: int) -> "Mechanism":
        """Returns the same mechanism stopped after ``num_steps`` >= 1 steps."""


def calibrate(mechanism: _M, *, epsilon: float, delta: float) -> _M:
    """Returns ``mechanism`` with its noise scaled to certify ``epsilon`` at ``delta``.

    The certified epsilon of the result, which is that of its ``certificate(delta)``, is never above
    ``epsilon`` and at most 1 % below it.

    Raises:
      UnsupportedEventError: no accountant gives the mechanism a guarantee.
      ValueError: ``epsilon`` is not a finite number above zero, ``delta`` is not in (0, 1), or no
        scale of the noise reaches ``epsilon``.
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)

    @functools.cache
    def excess(log_scale: float) -> float:
        scaled = mechanism.scale_noise(math.exp(log_scale))
        certified = guarantee(scaled.event, delta, scaled.adjacency)[1]
        return _excess(certified / epsilon)

    lower, upper = _bracket(excess, epsilon)
    # The excess is zero on a whole interval, and the search stops at the first point in it.
    root = float(brentq(excess, lower, upper, xtol=1e-6))
    if excess(root) != 0:
        raise _unreachable(epsilon, "the certified epsilon jumps past it")
    return cast(_M, mechanism.scale_noise(math.exp(root)))


def releases_within(mechanism: Stoppable, *, epsilon: float, delta: float) -> int:
    """Returns the largest number of steps, 0 to ``num_steps``, that a budget pays for.

    Stopped there, the mechanism's certified epsilon is at most ``epsilon`` at ``delta``.

    Raises:
      UnsupportedEventError: no accountant gives the mechanism a guarantee.
      ValueError: ``epsilon`` is not a finite number above zero or ``delta`` is not in (0, 1).
    """
    check_positive("epsilon", epsilon)
    check_delta(delta)

    def is_within(num_steps: int) -> bool:
        stopped = mechanism.prefix(num_steps)
        return guarantee(stopped.event, delta, stopped.adjacency)[1] <= epsilon

    if is_within(mechanism.num_steps):
        return mechanism.num_steps
    paid, unpaid = 0, mechanism.num_steps
    while unpaid - paid > 1:
        middle = (paid + unpaid) // 2
        paid, unpaid = (middle, unpaid) if is_within(middle) else (paid, middle)
    return paid


def _excess(share: float) -> float:
    """Returns the log of how far a share of the target is off the aim; zero if close enough."""
    if _LEAST_SHARE <= share <= 1:
        return 0.0
    return math.log(min(max(share, 1e-9), 1e9) / _AIM)


def _bracket(excess: Callable[[float], float], epsilon: float) -> tuple[float, float]:
    """Returns two log scales between which the certified epsilon passes the target."""
    near, start = 0.0, excess(0.0)
    # Epsilon falls about as one over the noise; overshoot a little.
    step = math.copysign(min(1.3 * abs(start) + 0.05, 4.0), start)
    while abs(near) < _FARTHEST:
        far = near + step
        if excess(far) * step <= 0:
            return near, far
        near, step = far, 2 * step
    raise _unreachable(epsilon, f"scaling the noise by {math.exp(near):.0e} does not pass it")


def _unreachable(epsilon: float, reason: str) -> ValueError:
    return ValueError(f"epsilon = {epsilon:g} cannot be reached by scaling the noise: {reason}")
