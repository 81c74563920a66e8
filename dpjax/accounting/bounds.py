"""Upper and lower bounds on epsilon and on privacy profiles."""

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent

from dpjax._checks import as_float64, check, check_choice
from dpjax.accounting import lower_bounds, pld
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import (
    UnsupportedEventError,
    decompose,
    has_unsampled_nonprivate_part,
    is_nonprivate,
)
from dpjax.accounting.loss_distribution import DIRECTIONS, Array, Direction
from dpjax.adjacency import Adjacency, check_adjacency


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
      UnsupportedEventError: no guarantee for the event, or no lower bound, as for selection and for
        noise multipliers below 0.01.
      ValueError: another argument is out of range.

    >>> import dp_accounting
    >>> step = dp_accounting.PoissonSampledDpEvent(0.01, dp_accounting.GaussianDpEvent(1.0))
    >>> event = dp_accounting.SelfComposedDpEvent(step, 1_000)
    >>> lower, upper = epsilon_bounds(event, 1e-5, adjacency="add_remove")
    >>> round(lower, 2), round(upper, 2)
    (1.83, 1.83)
    """
    upper = certified_epsilon(event, delta, adjacency)[1]
    return EpsilonBounds(epsilon_lower_bound(event, delta, adjacency, upper), upper)


def epsilon_lower_bound(
    event: DpEvent, delta: float, adjacency: Adjacency, upper_bound: float
) -> float:
    """Returns a lower bound on epsilon at ``delta``, close to it if ``upper_bound`` is.

    Raises:
      UnsupportedEventError: a release whose loss has no known distribution, or too large a one.
    """
    if is_nonprivate(event):
        return math.inf if has_unsampled_nonprivate_part(event) else 0.0
    if upper_bound == 0:
        return 0.0
    return lower_bounds.epsilon_lower_bound(decompose(event, adjacency), delta, upper_bound)


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
    check_adjacency(adjacency)
    if direction is not None:
        check_choice("direction", direction, DIRECTIONS)
    if is_nonprivate(event):
        raise UnsupportedEventError("something is released without noise")
    parts = decompose(event, adjacency)
    upper = pld.compute_profile(parts, epsilons, direction)
    taken = (direction,) if direction and parts else lower_bounds.distinct_directions(parts)
    return ProfileBounds(lower_bounds.delta_lower_bounds(parts, epsilons, taken), upper)
