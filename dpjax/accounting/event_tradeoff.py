"""Upper and lower bounds on the trade-off function of an event.

A trade-off function and its privacy profile delta(epsilon) are equivalent. The upper profile, at
finitely many epsilons, is a list of guarantees, and the least curve that has them all is
guaranteed. The lower profile is convex in x = e^epsilon, so that beyond two of its points it lies
above the line through them; the two lines that meet over each interval leave a polygon below the
true profile, and the curve of that polygon is above the true curve.
"""

import math

import numpy as np
from dp_accounting import DpEvent

from dpjax.accounting.accountants import check_supported, pld_profile, rdp_profile
from dpjax.accounting.events import (
    AtomicEvents,
    TooLittleNoiseError,
    UnsupportedEventError,
    decompose,
    is_nonprivate,
    loss_deviation,
)
from dpjax.accounting.loss_distribution import Array
from dpjax.accounting.lower_bounds import delta_lower_bounds
from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Identity,
    TradeOff,
    TradeOffBounds,
    from_profile,
)
from dpjax.adjacency import Adjacency

# Epsilons to 9 standard deviations of the total loss beyond its mean, and in ratios to the largest.
_DEVIATIONS, _NEAR_POINTS, _FAR_POINTS = 9.0, 2_000, 3_000
_LARGEST_EPSILON = 700.0
_RENYI_EPSILONS = np.append(0.0, np.geomspace(1e-3, _LARGEST_EPSILON, 300))


def tradeoff_bounds(event: DpEvent, *, adjacency: Adjacency) -> TradeOffBounds:
    """Returns lower and upper bounds on the trade-off function of ``event``, for both orders.

    The lower curve is a guarantee: no test of two neighbours is better. No accountant can certify a
    curve that passes the upper one. Their advantages and true positive rates are some 0.2 % apart,
    down to false positive rates of 1e-5, unless there are more than 128 different noises; of
    Gaussian releases on the whole data both are exact, and of one Wishart release under add/remove.
    For samples without replacement the upper curve bounds the curve composed of the steps', which
    the mechanism itself may not attain.

    Source: Dong, Roth, Su 2022, Proposition 2.13 in the preprint's numbering (from a profile to its
    curve); Doroshenko et al. 2022 (upper profile); Gopi, Lee, Wutschitz 2021 (lower profile).

    Args:
      event: what is released; noise multipliers are over one clip bound.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      Both curves, symmetric; the same one twice where it is exact.

    Raises:
      UnsupportedEventError: no lower bound on the event's epsilon, as for zCDP, and so
        no upper curve; ``tradeoff_curve`` has what is guaranteed.
      ValueError: ``adjacency`` is unknown.

    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> event = dp_accounting.SelfComposedDpEvent(step, 100)
    >>> lower, upper = tradeoff_bounds(event, adjacency="add_remove")
    >>> round(lower(0.05), 3), round(upper(0.05), 3)
    (0.933, 0.933)
    """
    return curve_bounds(decompose(event, adjacency))


def tradeoff_curve(event: DpEvent, *, adjacency: Adjacency) -> TradeOff:
    """Returns the trade-off function (f-DP) of ``event``, for neighbours in both orders.

    It is the lower curve of ``tradeoff_bounds`` where there is a privacy loss distribution, else
    the looser one of the Rényi bound.

    Args:
      event: what is released; noise multipliers are over one clip bound.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      A symmetric curve; f = 0 where something is released without noise.

    Raises:
      UnsupportedEventError: neither takes the event.
      ValueError: ``adjacency`` is unknown.

    >>> import dp_accounting
    >>> event = dp_accounting.GaussianDpEvent(noise_multiplier=2.0)
    >>> tradeoff_curve(event, adjacency="add_remove")
    Gaussian(mu=0.5)
    """
    return guaranteed_curve(decompose(event, adjacency))


def curve_bounds(atoms: AtomicEvents) -> TradeOffBounds:
    """Returns the curves of `tradeoff_bounds` for a decomposed event."""
    exact = _closed_form(atoms)
    if exact is not None:
        return TradeOffBounds(exact, exact)

    # Above the true curve, from the lower profile of removing a record. Adding one gives less at
    # epsilons above zero, but for Wishart noise; leaving it out is on the safe side.
    epsilons = profile_epsilons(atoms)
    epsilons = np.append(-epsilons[1], epsilons)
    upper = from_profile(*_below(epsilons, delta_lower_bounds(atoms, epsilons, ("remove",))))
    return TradeOffBounds(_curve_of_profiles(atoms), upper)


def guaranteed_curve(atoms: AtomicEvents) -> TradeOff:
    """Returns the curve of `tradeoff_curve` for a decomposed event."""
    return _closed_form(atoms) or _curve_of_profiles(atoms)


def _closed_form(atoms: AtomicEvents) -> TradeOff | None:
    """Returns the exact trade-off function where it has a closed form."""
    if is_nonprivate(atoms):
        return ApproximateDP(0.0, slack=1.0)
    if not atoms:
        return Identity()
    return atoms[0][0].tradeoff() if len(atoms) == atoms[0][1] == 1 else None


def _curve_of_profiles(atoms: AtomicEvents) -> TradeOff:
    """Returns the least curve that has every delta of an upper profile, or of two."""
    profiles: list[tuple[Array, Array]] = []
    reason: UnsupportedEventError | None = None

    # That of the privacy loss distribution, where there is one.
    try:
        epsilons = profile_epsilons(atoms)
        profiles.append((epsilons, pld_profile(atoms, epsilons, None)))
    except UnsupportedEventError as error:
        reason = error

    # That of the Rényi bound, where it is needed or may be tighter.
    if not profiles or any(atom.rdp_may_be_tighter for atom, _ in atoms):
        try:
            profiles.append((_RENYI_EPSILONS, rdp_profile(atoms, _RENYI_EPSILONS)))
        except UnsupportedEventError as other:
            if not profiles:
                raise (reason if isinstance(reason, TooLittleNoiseError) else other) from None
    return from_profile(*map(np.concatenate, zip(*profiles, strict=True)))


def _below(epsilons: Array, deltas: Array) -> tuple[Array, Array]:
    """Returns the knots of a polygon below a profile, convex in e^epsilon, with the given points.

    The first point has a negative epsilon and the second is at zero, where the polygon begins; what
    lies beyond the last counts as zero.
    """
    # The slopes of the chords, and those before and after each.
    gaps = np.diff(epsilons)
    widths = np.exp(epsilons[:-1]) * np.expm1(gaps)
    slopes = np.diff(deltas) / widths
    before, here, after = slopes[:-2], slopes[1:-1], slopes[2:]
    bends = after - before

    # Where the line from the left meets the line from the right, over the width between.
    share = np.clip(np.divide(after - here, bends, out=np.ones_like(bends), where=bends > 0), 0, 1)
    knots = epsilons[1:-2] + np.log1p(share * np.expm1(gaps[1:-1]))
    values = deltas[1:-2] + before * share * widths[1:-1]

    # From the profile at zero to the end, of which only what is above zero counts.
    last = min(deltas[-2] + slopes[-2] * widths[-1], 0.0)
    epsilons = np.concatenate([[0.0], knots, epsilons[-1:]])
    values = np.concatenate([deltas[1:2], values, [last]])

    # Up to where the polygon passes zero, at the latest its end.
    end = int(np.argmax(values <= 0))
    if end == 0:
        return np.zeros(1), np.zeros(1)
    above, below = values[end - 1], values[end]
    width = np.expm1(epsilons[end] - epsilons[end - 1])
    zero = epsilons[end - 1] + np.log1p(above / (above - below) * width)
    return np.append(epsilons[:end], zero), np.append(values[:end], 0.0)


def profile_epsilons(atoms: AtomicEvents) -> Array:
    """Returns epsilons from zero on, between which a profile is straight enough for its chords."""
    check_supported(atoms)
    count = sum(count for _, count in atoms)
    deviation = loss_deviation(atoms) * math.sqrt(count)
    near = min(max(deviation**2 / 2 + _DEVIATIONS * deviation, 1e-100), _LARGEST_EPSILON)
    far = np.geomspace(near / _NEAR_POINTS, _LARGEST_EPSILON, _FAR_POINTS)
    return np.unique(np.append(np.linspace(0.0, near, _NEAR_POINTS), far))
