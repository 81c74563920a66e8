"""Epsilon of an event by a named accountant, and which accountant gives the guarantee."""

import contextlib
import math
from collections.abc import Callable

from dp_accounting import DpEvent

from dpjax._checks import check_choice, check_delta
from dpjax.accounting import gdp, moments_accountant, pld, rdp
from dpjax.accounting.events import (
    RepeatedEvent,
    TooLittleNoiseError,
    UnsupportedEventError,
    decompose,
    is_nonprivate,
)
from dpjax.adjacency import Adjacency, check_adjacency

_ACCOUNTANTS: dict[str, Callable[[tuple[RepeatedEvent, ...], float], float]] = {
    "pld": pld.compute_epsilon,
    "rdp": rdp.compute_epsilon,
    "moments": moments_accountant.compute_epsilon_of_releases,
    "gdp_clt": gdp.compute_epsilon,
}
METHODS = tuple(_ACCOUNTANTS)
# The tightest first; upper bounds only.
_GUARANTEES = ("pld", "rdp")


def epsilon(event: DpEvent, delta: float, *, adjacency: Adjacency, method: str = "pld") -> float:
    """Returns the epsilon of ``event`` at ``delta``.

    Args:
      event: what is released; noise multipliers are over one clip bound, whatever the adjacency.
      delta: in (0, 1).
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      method: ``"pld"`` (privacy loss distribution, a tight upper bound), ``"rdp"`` (Rényi
        divergences, improved conversion, an upper bound), ``"moments"`` (Rényi divergences as in
        the moments accountant, a loose upper bound) or ``"gdp_clt"`` (the central limit of Gaussian
        differential privacy: an *approximation*, which errs on either side and is no guarantee).

    Returns:
      Epsilon >= 0; infinity where something is released without noise.

    Raises:
      UnsupportedEventError: the method does not support the event under the adjacency.
      ValueError: another argument is out of range.

    >>> import dp_accounting
    >>> event = dp_accounting.GaussianDpEvent(noise_multiplier=2.0)
    >>> round(epsilon(event, 1e-5, adjacency="add_remove"), 2)
    1.99
    >>> round(epsilon(event, 1e-5, adjacency="replace_one"), 2)
    4.38
    """
    try:
        return epsilon_or_reason(event, delta, adjacency, method)
    except UnsupportedEventError as reason:
        raise UnsupportedEventError(
            f"{type(event).__name__} under adjacency {adjacency!r} is not supported by method "
            f"{method!r}: {reason}. {_alternatives(event, delta, adjacency)}"
        ) from None


def epsilon_or_reason(event: DpEvent, delta: float, adjacency: Adjacency, method: str) -> float:
    """Returns `epsilon`; its `UnsupportedEventError` contains only the reason of the method."""
    check_delta(delta)
    check_adjacency(adjacency)
    check_choice("method", method, METHODS)
    if is_nonprivate(event):
        return math.inf
    return float(_ACCOUNTANTS[method](decompose(event, adjacency), delta))


def certified_epsilon(event: DpEvent, delta: float, adjacency: Adjacency) -> tuple[str, float]:
    """Returns the method whose epsilon is certified, and that epsilon.

    It is the privacy loss distribution where there is one, else the Rényi bound; the smaller of
    both where either may be (discrete Gaussian noise of less than a unit, moved by many). A noise
    multiplier below 1e-100 counts as none: epsilon is infinite.

    Raises:
      UnsupportedEventError: neither supports the event; a `TooLittleNoiseError` if one would do so
        with more noise.
    """
    found: dict[str, float] = {}
    reasons = {}
    for method in _GUARANTEES:
        try:
            found[method] = epsilon_or_reason(event, delta, adjacency, method)
        except UnsupportedEventError as reason:
            reasons[method] = reason
        if found and not _has_loose_pld(event, adjacency):
            break
    if found:
        return min(found.items(), key=lambda one: one[1])
    too_little = any(isinstance(reason, TooLittleNoiseError) for reason in reasons.values())
    raise (TooLittleNoiseError if too_little else UnsupportedEventError)(
        f"{type(event).__name__} under adjacency {adjacency!r} has no guarantee: "
        + "; ".join(f"{method!r}: {reason}" for method, reason in reasons.items())
    )


def _has_loose_pld(event: DpEvent, adjacency: Adjacency) -> bool:
    """Whether the Rényi bound of ``event``, which an accountant supports, may be the smaller."""
    if is_nonprivate(event):
        return False
    return any(part.atom.rdp_may_be_tighter for part in decompose(event, adjacency))


def _alternatives(event: DpEvent, delta: float, adjacency: Adjacency) -> str:
    """Returns a sentence with the methods that support ``event``, found by trying them."""
    supporting = []
    for method in METHODS:
        with contextlib.suppress(UnsupportedEventError):
            epsilon_or_reason(event, delta, adjacency, method)
            supporting.append(repr(method))
    if not supporting:
        return "No method supports it."
    return f"Methods that support it: {', '.join(supporting)}."
