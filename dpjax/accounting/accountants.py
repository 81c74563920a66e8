"""Accountants: certified epsilon and delta of an event by RDP, PLD and others, with lower bounds.

**Privacy loss distributions.** How fine the grid of losses must be depends on one step, not on the
total: rounding adds a twelfth of the squared interval to a variance, so it does no harm where the
interval is small against the *per-step* standard deviation of the loss, and inflates epsilon
without bound where it is not. An interval of 1e-3 gives 0.0164 instead of 0.00334 for a noise
multiplier of 20, sampling rate 1e-3 and 1,000 steps (delta 1e-5). An interval tied to the answer
fails too: epsilon / 3,000 is 13 % too much for a noise multiplier of 4 and a million steps. So the
grid begins at a quarter of that deviation and is refined by four until that no longer changes the
answer. The error is of second order, so a change of 1 % leaves less than 0.1 %, except at the
largest loss of a bounded one, which lies on the grid if it is the first. Where all releases are
Gaussian, of all records, the loss of their composition is normal, and no grid is needed.

``PLDAccountant`` of dp-accounting (0.6.0) counts a repeated randomized response once, takes no
Laplace noise under replace-one and no sample of fixed size, and hides the number of compositions
that the rounding margin needs.

**Rényi divergences** are converted as by Canonne, Kamath & Steinke (2020), Proposition 12, for
``"rdp"``, and as by Abadi et al. (2016), Theorem 2, for ``"moments"``.
"""

import contextlib
import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent, GaussianDpEvent, PoissonSampledDpEvent
from dp_accounting.rdp import rdp_privacy_accountant
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

from dpjax._checks import as_float64, check, check_choice, check_delta
from dpjax.accounting import gdp, log_moments, lower_bounds
from dpjax.accounting.events import (
    AtomicEvent,
    AtomicEvents,
    TooLittleNoiseError,
    UnsupportedEventError,
    coarsen_noise_schedule,
    decompose,
    event_name,
    is_nonprivate,
    loss_deviation,
)
from dpjax.accounting.loss_distribution import (
    DIRECTIONS,
    TRANSFORM_ROUNDING,
    Array,
    Direction,
    GridLosses,
    compose_grids,
)
from dpjax.accounting.tradeoff.families import gaussian_log_delta
from dpjax.adjacency import Adjacency

METHODS = ("pld", "rdp", "moments", "gdp_clt")
ORDERS = tuple(rdp_privacy_accountant.DEFAULT_RDP_ORDERS)

# Intervals of a grid over the standard deviation of one step's loss.
_INTERVALS = (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 1024)
_PROFILE_INTERVAL, _COARSER = 1 / 32, 2.0
_COARSEST_INTERVAL = 4.0
_MOST_CELLS = 2**16
# A change of epsilon changes delta by no more than itself, so near zero delta sets the scale.
_LEAST_CHANGE, _LEAST_CHANGE_OF_DELTA = 0.01, 0.001
# The relative rounding error of a profile summed from a long list of masses.
_SUMMATION = 2.0**-40
# Rounding changes the closed form of Gaussian releases by a share of delta of at most some
# 2^-52 (1 + x) / mu, where x < 38 is the distance in standard deviations: 2^-30 at the least mu.
_LEAST_MU, CLOSED_FORM_MARGIN = 2.0**-16, 2.0**-28
# dp-accounting converts no Rényi divergence of a smaller order.
_LEAST_ORDER = 1.01
# A bound below the least normal float is not zero.
_LEAST_DELTA = float(np.finfo(np.float64).tiny)
# No finer grid changes these.
_ENDS = (0.0, math.inf)


class EpsilonBounds(NamedTuple):
    """Certified upper bound and proven lower bound on epsilon.

    Attributes:
      lower: no accountant can certify less.
      upper: the certified epsilon.
    """

    lower: float
    upper: float


class ProfileBounds(NamedTuple):
    """Certified upper bounds and proven lower bounds on delta, for each epsilon asked for.

    Attributes:
      lower: proven lower bounds, of the shape of the epsilons.
      upper: certified upper bounds, of the same shape.
    """

    lower: Array
    upper: Array


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
    check_delta(delta)
    check_choice("method", method, METHODS)
    try:
        return compute_epsilon(decompose(event, adjacency), delta, method)
    except UnsupportedEventError as error:
        reason = error

    # Name the methods that support the event, found by trying them.
    supporting = []
    for other in METHODS:
        with contextlib.suppress(UnsupportedEventError):
            compute_epsilon(decompose(event, adjacency), delta, other)
            supporting.append(repr(other))
    alternatives = f"Methods that support it: {', '.join(supporting)}."
    raise UnsupportedEventError(
        f"{type(event).__name__} under adjacency {adjacency!r} is not supported by method "
        f"{method!r}: {reason}. {alternatives if supporting else 'No method supports it.'}"
    )


def epsilon_bounds(event: DpEvent, delta: float, *, adjacency: Adjacency) -> EpsilonBounds:
    """Returns a lower and an upper bound on the epsilon of ``event`` at ``delta``.

    The upper bound is the certified epsilon. For subsampled Gaussian releases the two are about
    0.1 % apart, or 0.1 % of ``delta``, and for discrete losses up to 1 %, unless ``delta`` is near
    the rounding error, about 1e-15 for each release, epsilon beyond some hundreds, or there are
    more than 128 different noise multipliers. For compositions of discrete Gaussian releases of a
    scale below 1.5 units that a record moves by two or more, no one integer vector is the worst,
    and they are up to 15 % apart. For samples without replacement the lower bound is that of the
    composed curve: the mechanism itself may be more private. Under zero-out, and for truncated
    samples, it is that of data whose other records contribute nothing, which may be far lower.

    Source: Gopi, Lee & Wutschitz (2021), Section 5 (lower); Doroshenko et al. (2022) (upper).

    Args:
      event: what is released; noise multipliers are over one clip bound.
      delta: in (0, 1).
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.

    Returns:
      Both bounds, in that order; infinity where something is released without noise.

    Raises:
      UnsupportedEventError: no guarantee for the event, or no lower bound, as for zCDP and for
        noise multipliers below 0.01.
      ValueError: another argument is out of range.

    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> event = dp_accounting.SelfComposedDpEvent(step, 1_000)
    >>> lower, upper = epsilon_bounds(event, 1e-5, adjacency="add_remove")
    >>> round(lower, 2), round(upper, 2)
    (1.83, 1.83)
    """
    check_delta(delta)
    atoms = decompose(event, adjacency)
    upper = certified_epsilon(atoms, delta)[1]
    return EpsilonBounds(lower_bounds.epsilon_lower_bound(atoms, delta, upper), upper)


def profile_bounds(
    event: DpEvent,
    epsilons: npt.ArrayLike,
    *,
    adjacency: Adjacency,
    direction: Direction | None = None,
) -> ProfileBounds:
    """Returns lower and upper bounds on delta(epsilon), arrays of the shape of ``epsilons``.

    Args:
      event: what is released; noise multipliers are over one clip bound.
      epsilons: any real numbers; at one below zero delta is at least 1 - e^epsilon.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      direction: with ``"add"``, P is the output distribution on data without the record and Q on
        data with it, with ``"remove"`` the reverse; ``None`` takes the larger delta of the two. The
        pairs of replace-one are symmetric.

    Returns:
      Both bounds, each in [0, 1].

    Raises:
      UnsupportedEventError: as ``epsilon_bounds``, or something is released without noise.
      ValueError: another argument is out of range.

    >>> import dp_accounting
    >>> event = dp_accounting.GaussianDpEvent(noise_multiplier=1.0)
    >>> lower, upper = profile_bounds(event, [0.0, 1.0], adjacency="add_remove")
    >>> lower.round(3).tolist(), upper.round(3).tolist()
    ([0.383, 0.127], [0.383, 0.127])
    """
    epsilons = as_float64(epsilons, "epsilons")
    check(bool(np.all(np.isfinite(epsilons))), "epsilons", epsilons, "finite numbers")
    if direction is not None:
        check_choice("direction", direction, DIRECTIONS)
    atoms = decompose(event, adjacency)
    if is_nonprivate(atoms):
        raise UnsupportedEventError("something is released without noise")

    # From both sides, in the directions asked for.
    upper = pld_profile(atoms, epsilons, direction)
    taken = (direction,) if direction and atoms else lower_bounds.distinct_directions(atoms)
    return ProfileBounds(lower_bounds.delta_lower_bounds(atoms, epsilons, taken), upper)


def compute_epsilon(atoms: AtomicEvents, delta: float, method: str) -> float:
    """Returns the epsilon of a decomposed event by one method, infinity without noise."""
    check_delta(delta)
    if is_nonprivate(atoms):
        return math.inf
    match method:
        case "rdp":
            rdp = compute_rdp(atoms)
            return float(rdp_privacy_accountant.compute_epsilon(ORDERS, rdp, delta)[0])
        case "moments":
            orders = np.array(log_moments.ORDERS)
            moments = sum(count * atom.log_moments(log_moments.ORDERS) for atom, count in atoms)
            total = moments + np.zeros(orders.size)  # of no event at all
            return float(log_moments.epsilon_from_moments(total, orders, np.asarray(delta)))
        case "gdp_clt":
            return float(gdp.epsilon(gdp.compute_mu(atoms), delta))
        case _:
            return pld_epsilon(atoms, delta)


def certified_epsilon(atoms: AtomicEvents, delta: float) -> tuple[str, float]:
    """Returns the method whose epsilon is certified for a decomposed event, and that epsilon.

    It is the privacy loss distribution where there is one, else the Rényi bound; the smaller of
    both where either may be (discrete Gaussian noise of less than a unit, moved by many). A noise
    multiplier below 1e-100 counts as none: epsilon is infinite. Where neither supports the event, a
    `TooLittleNoiseError` states that more noise would help.
    """
    # The tightest first, and the next only if it may be the smaller or the first refuses.
    certified: dict[str, float] = {}
    reasons: dict[str, UnsupportedEventError] = {}
    for method in ("pld", "rdp"):
        try:
            certified[method] = compute_epsilon(atoms, delta, method)
        except UnsupportedEventError as reason:
            reasons[method] = reason
        either = not is_nonprivate(atoms) and any(atom.rdp_may_be_tighter for atom, _ in atoms)
        if certified and not either:
            break
    if certified:
        return min(certified.items(), key=lambda one: one[1])

    # Say why, and whether more noise would help.
    names = dict.fromkeys(event_name(atom.event) for atom, _ in atoms)
    too_little = any(isinstance(reason, TooLittleNoiseError) for reason in reasons.values())
    raise (TooLittleNoiseError if too_little else UnsupportedEventError)(
        f"{', '.join(names)} under adjacency {atoms[0][0].adjacency!r} has no guarantee: "
        + "; ".join(f"{method!r}: {reason}" for method, reason in reasons.items())
    )


def pld_epsilon(atoms: AtomicEvents, delta: float) -> float:
    """Returns an upper bound on epsilon at ``delta``, by composing privacy loss distributions.

    For Gaussian releases on all records it is exact at ``delta (1 - 2^-28)``, by the closed form,
    unless their mu is below 2^-16. Else it is at most 1 % above the truth, mostly 0.1 %, unless
    ``delta`` is near the rounding error, epsilon beyond some hundreds or so near zero that its
    error matters less than a thousandth of ``delta``, or a sampling rate so small that the grid it
    asks for is too long.

    Composition by Fourier transform is exact up to rounding, which grows with the number of
    compositions and may err on the unsafe side: 0.2 % too small an epsilon at delta = 1e-12 and
    10,000 steps. Measured, it is below 1e-16 of delta for each composition; ``delta`` is lowered by
    nine times that.
    """
    check_supported(atoms)
    if (mu := _gaussian_mu(atoms)) is not None:
        return float(gdp.epsilon(mu, delta * (1 - CLOSED_FORM_MARGIN)))
    atoms = coarsen_noise_schedule(atoms, "upper")

    # What rounding may add to delta, and the finest grid of each loss that fits in memory.
    safe_delta = delta - TRANSFORM_ROUNDING * sum(count for _, count in atoms)
    deviation, finest = loss_deviation(atoms), _finest_interval(atoms)

    # Refine the grid until that changes nothing, or memory does not allow it.
    value = math.inf
    for share in _INTERVALS if safe_delta > 0 else ():
        losses = _compose_losses(atoms, max(share * deviation, finest))
        finer = losses.epsilon(safe_delta)
        change, value = value - finer, min(value, finer)
        enough = max(_LEAST_CHANGE * finer, _LEAST_CHANGE_OF_DELTA * delta)
        converged = change <= enough and 2 * losses.remove.interval <= enough
        if converged or finer in _ENDS or share * deviation <= finest:
            break

    if math.isinf(value):
        # An event may spend delta by itself, as one that is known to be (epsilon, delta)-private.
        directions = losses.directions() if safe_delta > 0 else []
        spent = max((each.infinite for each in directions), default=0.0)
        own = f": of that the events spend {spent:.3g} by themselves" if spent > delta / 2 else ""
        # More noise may help, but not where rounding alone exceeds delta.
        raise (TooLittleNoiseError if safe_delta > 0 else UnsupportedEventError)(
            f"truncation and rounding leave no finite epsilon at delta = {delta:g}{own}"
        )
    return float(value)


def pld_profile(atoms: AtomicEvents, epsilons: Array, direction: Direction | None) -> Array:
    """Returns upper bounds on delta at ``epsilons``, by composing privacy loss distributions."""
    check_supported(atoms)
    least = -np.expm1(np.minimum(epsilons, 0.0))  # what holds of any two distributions
    if (mu := _gaussian_mu(atoms)) is not None:
        deltas = np.exp(gaussian_log_delta(mu, epsilons)) * (1 + CLOSED_FORM_MARGIN)
        return np.clip(np.maximum(deltas, _LEAST_DELTA), least, 1.0)
    atoms = coarsen_noise_schedule(atoms, "upper")

    # Every different event takes transforms of its own.
    share = _PROFILE_INTERVAL * min(max(len(atoms), 1) ** 0.5, _COARSER)
    wanted = max(share * loss_deviation(atoms), _finest_interval(atoms))
    deltas = _compose_losses(atoms, wanted).delta(epsilons, direction)

    # Rounded up.
    margin = TRANSFORM_ROUNDING * sum(count for _, count in atoms)
    return np.clip(deltas * (1 + _SUMMATION) + margin, least, 1.0)


def _gaussian_mu(atoms: AtomicEvents) -> float | None:
    """Returns the mu of releases that are all Gaussian, of all records, else ``None``."""
    if not atoms or not all(isinstance(atom.event, GaussianDpEvent) for atom, _ in atoms):
        return None
    mu = gdp.compute_mu(atoms)
    return mu if mu > _LEAST_MU else None


def last_iterate_epsilon(atoms: AtomicEvents, delta: float) -> float | None:
    """Returns an estimate of the epsilon of the last parameters alone: **no guarantee**.

    That of a linear loss, where they are the start minus the sum of all releases: the T steps with
    Poisson sampling at rate q and noise multiplier sigma are one release, Bin(T, q) + N(0, sigma^2
    T) against N(0, sigma^2 T). Other losses may reveal more.

    Args:
      atoms: a decomposed event.
      delta: in (0, 1).

    Returns:
      Epsilon; ``None`` of other events than two or more equal Gaussian steps with Poisson sampling,
      or where neighbours differ by replacing a record.

    Source: Steinke, Nasr, Ganesh, Balle, Choquette-Choo, Jagielski, Hayes, Thakurta, Smith &
    Terzis (2025), the heuristic for linear losses.

    >>> from dpjax.accounting.events import decompose
    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> steps = decompose(dp_accounting.SelfComposedDpEvent(step, 1000), "add_remove")
    >>> round(last_iterate_epsilon(steps, 1e-5), 4)
    1.2778
    """
    if len(atoms) != 1:
        return None
    ((atom, num_steps),) = atoms
    step = atom.event
    if not isinstance(step, PoissonSampledDpEvent) or atom.adjacency == "replace_one":
        return None
    if not isinstance(step.event, GaussianDpEvent) or num_steps < 2:
        return None

    # How often the record may be sampled, but for probabilities that do not count.
    counts = np.arange(num_steps + 1)
    log_weights = binom.logpmf(counts, num_steps, step.sampling_probability)
    likely = log_weights > math.log(delta) - 50
    counts, log_weights = counts[likely], log_weights[likely]
    scale = step.event.noise_multiplier * math.sqrt(num_steps)

    def loss(x: float) -> float:
        return float(logsumexp(log_weights + counts * (x - counts / 2) / scale**2))

    def excess(epsilon: float, sign: int) -> float:
        """Delta at an epsilon of adding (1) or removing (-1) the record, less the given one."""
        low, high = -40 * scale, num_steps + 40 * scale
        if not loss(low) < sign * epsilon < loss(high):
            return -delta
        x = brentq(lambda x: loss(x) - sign * epsilon, low, high)
        with_record = np.exp(log_weights) @ norm.sf(sign * (x - counts) / scale)
        without = norm.sf(sign * x / scale)
        first, second = (with_record, without)[::sign]
        return float(first - math.exp(epsilon) * second - delta)

    most = 700.0  # where exp is finite
    signs = [sign for sign in (1, -1) if excess(0.0, sign) > 0]
    if any(excess(most, sign) > 0 for sign in signs):
        return math.inf
    return max((float(brentq(excess, 0.0, most, args=(sign,))) for sign in signs), default=0.0)


def check_supported(atoms: AtomicEvents) -> None:
    """Refuses, before anything is computed, what has no privacy loss distribution."""
    for atom, _ in atoms:
        atom.grid_builder()


def compute_rdp(atoms: AtomicEvents, orders: tuple[float, ...] = ORDERS) -> Array:
    """Returns the Rényi divergences of all ``atoms`` together at ``orders``."""
    return sum((count * atom.rdp(orders) for atom, count in atoms), np.zeros(len(orders)))


def rdp_profile(atoms: AtomicEvents, epsilons: Array) -> Array:
    """Returns upper bounds on delta at ``epsilons`` >= 0, from Rényi divergences."""
    orders, rdp = np.array(ORDERS), compute_rdp(atoms)

    # By the total variation distance at order one, and by Canonne, Kamath & Steinke (2020),
    # Proposition 12, which loses its digits near order one.
    with np.errstate(divide="ignore"):
        by_distance = np.min(np.log1p(-np.exp(-rdp))) / 2
        stable = orders > _LEAST_ORDER
    orders, rdp = orders[stable], rdp[stable]
    constants = (orders - 1) * (rdp + np.log1p(-1 / orders)) - np.log(orders)
    by_order = constants - np.multiply.outer(epsilons, orders - 1)
    return np.minimum(np.exp(np.minimum(by_order.min(axis=-1), by_distance)), 1.0)


def _finest_interval(atoms: AtomicEvents) -> float:
    """Returns the interval that keeps the grid of every event's losses within memory."""
    return max((atom.loss_range() for atom, _ in atoms), default=0.0) / _MOST_CELLS


def _compose_losses(atoms: AtomicEvents, interval: float) -> GridLosses:
    """Returns the losses of all ``atoms`` together, on a grid of at most ``interval``."""
    # The aligned loss of the first event with one is on the grid. Else every release would exceed
    # its largest loss, or every atom be moved, by up to an interval. A loss within one interval
    # sets no grid: moved to the grid's next points, which is pessimistic, it adds to the variance
    # less than an interval times itself.
    interval = min(interval, _COARSEST_INTERVAL)
    losses = (atom.aligned_loss for atom, _ in atoms)
    aligned = next((one for one in losses if one is not None and one >= interval), None)
    if aligned is not None:
        interval = aligned / math.ceil(aligned / interval)

    return compose_grids([(_build(atom, interval), count) for atom, count in atoms], interval)


# A curve over the steps or a budget asks for the same step again and again, and building it costs
# more than composing it.
@functools.lru_cache(maxsize=32)
def _build(atom: AtomicEvent, interval: float) -> GridLosses:
    return atom.grid_builder()(interval)
