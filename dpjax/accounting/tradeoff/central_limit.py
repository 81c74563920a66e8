"""Moments of the privacy loss (kl, kappa2, kappa3) and the central limit of composition.

With L = log(dQ / dP), the moments of f = T(P, Q) are the first three moments of L under P and
under Q. Integrated by parts they are integrals of the two profiles against polynomials, so that the
profiles suffice, and small moments do not come from differences of large numbers.
"""

import math
from typing import NamedTuple

import numpy as np

from dpjax._checks import check, check_count, check_type
from dpjax.accounting.tradeoff.base import TradeOff, check_curve

# Panels of losses between 1e-14 and 1e6, each 7 % longer than the one before, 12 nodes in each.
_SMALLEST, _LARGEST, _PANELS, _NODES = 1e-14, 1e6, 680, 12


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


def _moments(curve: TradeOff) -> tuple[float, float, float]:
    """Returns E_Q of L, L^2 and |L|^3: sums over a discrete pair, else integrals of the profiles.

    The integrals are by Gauss and Legendre, on panels of losses whose lengths grow.
    """
    pair = curve.as_discrete()
    if pair is not None:
        mass, loss = pair.q[pair.q > 0], pair.losses[pair.q > 0]
        return float(mass @ loss), float(mass @ loss**2), float(mass @ np.abs(loss) ** 3)
    if float(curve._delta_pq(np.array(_LARGEST))) > 0:
        return math.inf, math.inf, math.inf
    edges = np.append(0.0, np.geomspace(_SMALLEST, _LARGEST, _PANELS))
    nodes, weights = np.polynomial.legendre.leggauss(_NODES)
    half = np.diff(edges)[:, None] / 2
    loss, weight = (edges[:-1, None] + half * (1 + nodes)).ravel(), (half * weights).ravel()
    with np.errstate(all="ignore"):
        ahead, behind = curve._delta_pq(loss), np.exp(-loss) * curve._delta_qp(loss)
    first = ahead + behind
    second = 2 * (ahead + behind) + 2 * loss * (ahead - behind)
    third = 6 * loss * (ahead + behind) + 3 * loss**2 * (ahead - behind)
    return float(weight @ first), float(weight @ second), float(weight @ third)
