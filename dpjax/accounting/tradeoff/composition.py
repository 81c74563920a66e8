"""Composition of trade-off functions: exact where possible, else by lower and upper bounds.

A piecewise linear curve is a pair of discrete distributions, and the composition of pairs is their
product. Any curve lies between two such whose outcomes are numbered along a grid of losses:

- below it, the hull of its tangents at slopes -e^(j h): the outcomes have losses j h *exactly*, so
  the outcomes of a product with one sum of numbers may be merged without any change;
- above it, its chords between the levels of the knots of that hull: merging the outcomes of a
  product with one sum of numbers is post-processing, so it can only raise the curve, and the
  losses merged hardly differ.

Both products are convolutions of positive numbers, done directly, so that small masses keep their
accuracy. The gap between the curves shrinks as h^2.

The central limit of many compositions needs the moments of the privacy loss L = log(dQ / dP) alone,
under P and under Q. Integrated by parts they are integrals of the two profiles against polynomials,
so that the profiles suffice, and small moments do not come from differences of large numbers.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from dpjax._checks import check, check_count, check_type
from dpjax.accounting.tradeoff.base import (
    LARGEST_LOSS,
    Array,
    Discrete,
    TradeOff,
    bisect_decreasing,
    check_curve,
    tangent_masses,
)
from dpjax.accounting.tradeoff.families import Gaussian, Identity

# Pairs of outcomes that an exact composition of discrete curves may make.
_EXACT_PAIRS = 2**20
# Outcomes whose losses differ by less than rounding are one.
_SAME_LOSS = 1e-13
# Masses in the tails below this, under both distributions, are given up to infinite losses.
_TAIL = 1e-18
# The tangents reach to losses beyond which delta changes by less than this.
_REACH = 1e-15
# Panels of losses between 1e-14 and 1e6, each 7 % longer than the one before, 12 nodes in each.
_SMALLEST, _LARGEST, _PANELS, _NODES = 1e-14, 1e6, 680, 12


class TradeOffBounds(NamedTuple):
    """Lower and upper bounds on a trade-off function; the same one twice where it is exact.

    Attributes:
      lower: a guarantee: what is described is at least this private.
      upper: it is at most this private.
    """

    lower: TradeOff
    upper: TradeOff

    @property
    def is_exact(self) -> bool:
        """Whether both are the true curve itself."""
        return self.lower is self.upper


def compose(*curves: TradeOff, grid_size: int = 1024) -> TradeOffBounds:
    """Returns the composition f (x) g (x) ... = T(P x P' x ..., Q x Q' x ...), bounded.

    Gaussians add in squares, ``Identity`` changes nothing, and small products of ``Discrete`` and
    ``ApproximateDP`` are exact up to rounding. Otherwise ``lower`` is a guarantee and ``upper``
    shows how much it can be improved; both are rigorous but for double precision, some 1e-12 in
    alpha and beta. Meant for some dozens of curves of about the same scale.

    Source: Dong, Roth, Su 2022, Definition 3.1 and Theorem 3.2 in the preprint's numbering.

    Args:
      *curves: at least one, each in the same order of neighbours.
      grid_size: the number of losses in the grid of the curve with the widest range.

    Returns:
      Both bounds; the same curve twice where it is exact.

    Raises:
      ValueError: no curve is given, or ``grid_size`` is below 2.

    >>> compose(Gaussian(3.0), Identity(), Gaussian(4.0)).lower
    Gaussian(mu=5.0)
    """
    check(len(curves) > 0, "curves", curves, "at least one")
    for curve in curves:
        check_curve("curves", curve)
    return _compose([(curve, 1) for curve in curves], grid_size)


def power(curve: TradeOff, count: int, *, grid_size: int = 1024) -> TradeOffBounds:
    """Returns the composition of ``count`` times the same curve, bounded as by ``compose``.

    Args:
      curve: of one release.
      count: the number of releases, at least 1.
      grid_size: the number of losses in the grid, at least 2.

    Returns:
      Both bounds; the same curve twice where it is exact.

    Raises:
      ValueError: ``count`` is below 1 or ``grid_size`` below 2.

    >>> from dpjax.accounting.tradeoff import ApproximateDP
    >>> bounds = power(ApproximateDP(1.0), 3)
    >>> bounds.is_exact, round(bounds.lower.epsilon(0.1), 3)
    (True, 2.704)
    """
    check_curve("curve", curve)
    check_count("count", count)
    return _compose([(curve, count)], grid_size)


class PrivacyLossMoments(NamedTuple):
    """The moments of one privacy loss L = log(dQ / dP); infinite where L is.

    Attributes:
      kl: -E_P[L], the divergence of P from Q.
      kl_tilde: E_Q[L], the divergence of Q from P.
      kappa2: E_P[L^2].
      kappa2_tilde: E_Q[L^2].
      kappa3: E_P[|L|^3].
      kappa3_tilde: E_Q[|L|^3].
    """

    kl: float
    kl_tilde: float
    kappa2: float
    kappa2_tilde: float
    kappa3: float
    kappa3_tilde: float


def privacy_loss_moments(curve: TradeOff) -> PrivacyLossMoments:
    """Returns kl, kappa2 and kappa3 of a curve, under P and, with a tilde, under Q.

    By quadrature to about 1e-9 for smooth profiles and 1e-5 where they have kinks; exact sums for
    discrete pairs. Losses beyond 1e6 count as infinite.

    Args:
      curve: T(P, Q), whose loss is log(dQ / dP).

    Source: Bu, Dong, Long, Su 2020, Section 3; Dong, Roth, Su 2022, Section 3.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> values = privacy_loss_moments(Gaussian(0.5))
    >>> round(values.kl, 6), round(values.kappa2, 6)
    (0.125, 0.265625)
    """
    check_curve("curve", curve)
    moments = zip(_moments(curve.inverse()), _moments(curve), strict=True)
    return PrivacyLossMoments(*(value for pair in moments for value in pair))


def composition_clt_mu(moments: PrivacyLossMoments, count: int) -> float:
    """Returns K / s, the mu of the Gaussian that ``count`` releases of one curve tend to.

    K = count (kl + kl_tilde) and s^2 = count kappa2. A central limit: an *approximation* that errs
    on either side, and no guarantee.

    Args:
      moments: the privacy_loss_moments of one release's curve, without infinities.
      count: the number of releases, at least 1.

    Returns:
      The mu of the limit, 0 for perfect privacy.

    Source: Bu, Dong, Long, Su 2020, Theorem 5 and its asymmetric general form.

    Raises:
      ValueError: ``count`` is not a whole number of at least 1, or a moment is infinite.

    >>> from dpjax.accounting.tradeoff import Gaussian, mixture
    >>> step = privacy_loss_moments(mixture(Gaussian(1 / 1.1), 256 / 60_000))
    >>> round(composition_clt_mu(step, 14_062), 4)
    0.5735
    """
    check_type("moments", moments, PrivacyLossMoments, "the PrivacyLossMoments of a curve")
    check_count("count", count)
    check(moments.kappa2 < math.inf, "moments", moments, "finite")
    drift = moments.kl + moments.kl_tilde
    return 0.0 if drift == 0 else float(math.sqrt(count) * drift / math.sqrt(moments.kappa2))


def _compose(curves: list[tuple[TradeOff, int]], grid_size: int) -> TradeOffBounds:
    """Returns bounds on the composition of curves, each with how many times it occurs."""
    check_count("grid_size", grid_size, 2)

    # Leave out what reveals nothing, and add Gaussians in squares.
    mu = math.sqrt(
        sum(count * curve.mu**2 for curve, count in curves if isinstance(curve, Gaussian))
    )
    gaussian: list[tuple[TradeOff, int]] = [(Gaussian(mu), 1)] if mu > 0 else []
    curves = gaussian + [one for one in curves if not isinstance(one[0], Gaussian | Identity)]

    # Exactly, where that needs no grid.
    exact = _exact(curves)
    if exact is not None:
        return TradeOffBounds(exact, exact)

    # The product of the tangents below all curves, and that of the chords above them.
    spacing = max(sum(_reach(curve)) for curve, _ in curves) / grid_size or 1.0
    grids = [(_grids(curve, spacing), count) for curve, count in curves]
    lower = functools.reduce(_product, (_repeated(pair[0], count) for pair, count in grids))
    upper = functools.reduce(_product, (_repeated(pair[1], count) for pair, count in grids))
    return TradeOffBounds(_curve(lower), _curve(upper))


def _exact(curves: list[tuple[TradeOff, int]]) -> TradeOff | None:
    """Returns the composition where it needs no grid."""
    if not curves:
        return Identity()
    if len(curves) == 1 and curves[0][1] == 1:
        return curves[0][0]

    # The product of discrete pairs, unless a curve is none or the product is too large.
    total = None
    for curve, count in curves:
        pair = curve.as_discrete()
        for _ in range(count if pair is not None else 1):
            total = pair if total is None else _discrete_product(total, pair)
            if total is None:
                return None
    return total


def _discrete_product(first: Discrete, second: Discrete | None) -> Discrete | None:
    """Returns the product with outcomes of the same loss merged; ``None`` if it is too large."""
    if second is None or first.p.size * second.p.size > _EXACT_PAIRS:
        return None

    # Merge outcomes of one loss, up to rounding.
    product = Discrete(np.outer(first.p, second.p).ravel(), np.outer(first.q, second.q).ravel())
    losses = product.losses
    with np.errstate(invalid="ignore"):
        gaps = losses[:-1] - losses[1:]
        starts = np.append(True, gaps > _SAME_LOSS * (1.0 + np.minimum(np.abs(losses[1:]), 1e3)))
    merged = np.flatnonzero(starts)
    return Discrete(np.add.reduceat(product.p, merged), np.add.reduceat(product.q, merged))


class _Grid(NamedTuple):
    """Masses under P and Q of outcomes numbered from ``start``, and of infinite losses.

    Tails too small to carry on go to infinite losses, if the grid is that of a lower curve, or else
    to the outcome next to them: the two are easier to distinguish, or harder.
    """

    start: int
    p: Array
    q: Array
    p_alone: float
    q_alone: float
    is_lower: bool


def _reach(curve: TradeOff) -> tuple[float, float]:
    """Returns the losses up to which each of the two profiles changes."""
    reaches = []
    for side in (curve, curve.inverse()):
        floor = float(side.delta(LARGEST_LOSS))
        reach = bisect_decreasing(side.delta, np.asarray(min(floor + _REACH, 1.0)))
        reaches.append(min(float(reach), LARGEST_LOSS - 50.0))
    return reaches[0], reaches[1]


def _grids(curve: TradeOff, spacing: float) -> tuple[_Grid, _Grid]:
    """Returns the pair of the tangents at multiples of ``spacing``, and that of the chords."""
    sizes = [math.ceil(reach / spacing) + 1 for reach in _reach(curve)]
    ends = [
        _ends(side, np.linspace(0.0, spacing * size, size + 1))
        for side, size in zip((curve, curve.inverse()), sizes, strict=True)
    ]
    (tangents, chords), (tangents_behind, chords_behind) = ends
    lower = _joined(tangents, tangents_behind, is_lower=True)
    return lower, _joined(chords, chords_behind, is_lower=False)


def _ends(curve: TradeOff, losses: Array) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Returns the masses at positive losses of the tangents and of the chords, loss rising.

    Each is a pair of masses, the smaller and the larger, the last at loss infinity.
    """
    small, large = tangent_masses(losses, np.asarray(curve.delta(losses)))
    alphas = np.cumsum(small[::-1])
    detected = np.asarray(curve.true_positive_rate(np.minimum(alphas[1:], 1.0)))
    free = float(curve.true_positive_rate(0.0))
    chords = np.append(np.diff(detected, prepend=free)[::-1], free)
    return (small, large), (small, np.maximum(chords, 0.0))


def _joined(ahead: tuple[Array, Array], behind: tuple[Array, Array], *, is_lower: bool) -> _Grid:
    """Returns the grid with these masses at positive and, exchanged, at negative losses."""
    centre_p = max(1.0 - np.sum(ahead[0]) - np.sum(behind[1]), 0.0)
    centre_q = max(1.0 - np.sum(ahead[1]) - np.sum(behind[0]), 0.0)
    p = np.concatenate([behind[1][-2::-1], [centre_p], ahead[0][:-1]])
    q = np.concatenate([behind[0][-2::-1], [centre_q], ahead[1][:-1]])
    return _Grid(1 - behind[0].size, p, q, float(behind[1][-1]), float(ahead[1][-1]), is_lower)


def _product(first: _Grid, second: _Grid) -> _Grid:
    return _trimmed(
        first._replace(
            start=first.start + second.start,
            p=np.convolve(first.p, second.p),
            q=np.convolve(first.q, second.q),
            p_alone=first.p_alone + second.p_alone - first.p_alone * second.p_alone,
            q_alone=first.q_alone + second.q_alone - first.q_alone * second.q_alone,
        )
    )


def _trimmed(grid: _Grid) -> _Grid:
    """Returns the grid without its far tails."""
    # Where the tails end, and what is in them.
    both = grid.p + grid.q
    low = int(np.searchsorted(np.cumsum(both), _TAIL))
    high = both.size - int(np.searchsorted(np.cumsum(both[::-1]), _TAIL))
    (p, p_low, p_high), (q, q_low, q_high) = (
        (masses[low:high].copy(), float(np.sum(masses[:low])), float(np.sum(masses[high:])))
        for masses in (grid.p, grid.q)
    )

    # To infinite losses below the curve, to the next outcome above it.
    if grid.is_lower:
        p_alone, q_alone = grid.p_alone + p_low + p_high, grid.q_alone + q_low + q_high
        return _Grid(grid.start + low, p, q, p_alone, q_alone, True)
    p[0], p[-1], q[0], q[-1] = p[0] + p_low, p[-1] + p_high, q[0] + q_low, q[-1] + q_high
    return grid._replace(start=grid.start + low, p=p, q=q)


def _repeated(grid: _Grid, count: int) -> _Grid:
    """Returns the product of ``count`` equal grids, by squaring."""
    if count == 1:
        return grid
    half = _repeated(grid, count // 2)
    square = _product(half, half)
    return _product(square, grid) if count % 2 else square


def _curve(grid: _Grid) -> Discrete:
    p = np.concatenate([[0.0], grid.p[::-1], [grid.p_alone]])
    q = np.concatenate([[grid.q_alone], grid.q[::-1], [0.0]])
    return Discrete(p, q)


def _moments(curve: TradeOff) -> tuple[float, float, float]:
    """Returns E_Q of L, L^2 and |L|^3: sums over a discrete pair, else integrals of the profiles.

    The integrals are by Gauss and Legendre, on panels of losses whose lengths grow.
    """
    # Sums, or infinity where a loss is infinite.
    pair = curve.as_discrete()
    if pair is not None:
        mass, loss = pair.q[pair.q > 0], pair.losses[pair.q > 0]
        return float(mass @ loss), float(mass @ loss**2), float(mass @ np.abs(loss) ** 3)
    if float(curve._delta_pq(np.array(_LARGEST))) > 0:
        return math.inf, math.inf, math.inf

    # The nodes of all panels, and both profiles at them.
    edges = np.append(0.0, np.geomspace(_SMALLEST, _LARGEST, _PANELS))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = np.diff(edges)[:, None] / 2
    loss, weight = (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    with np.errstate(all="ignore"):
        ahead, behind = curve._delta_pq(loss), np.exp(-loss) * curve._delta_qp(loss)

    # Integrated by parts.
    first = ahead + behind
    second = 2 * (ahead + behind) + 2 * loss * (ahead - behind)
    third = 6 * loss * (ahead + behind) + 3 * loss**2 * (ahead - behind)
    return float(weight @ first), float(weight @ second), float(weight @ third)
