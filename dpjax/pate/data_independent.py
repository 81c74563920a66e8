"""Data-independent Rényi divergence of a Gaussian noisy argmax, as a certified supremum.

The label of GNMax is a function of the noisy histogram, whose divergence is order / scale^2, and
has a smaller one. Let a vote move from class b to class a. Given the largest noisy count t of other
classes, which has the same distribution on both, the label is a, b or another one, and which other
one is independent of both noisy counts. exp((order - 1) D) is jointly convex, so D is at most its
supremum over t of these three outcomes, and over all real means x, y of the two noisy counts less
t, in units of the scale:

    a: X >= max(Y, 0),    b: Y > max(X, 0),    other: X, Y < 0,

with X, Y of unit variance and of means (x, y) under P and (x - s, y + s) under Q, s = 1 / scale.
Both directions are the same up to exchanging a and b. Then

    e^((order - 1) D) - 1 = sum over outcomes of Q phi(P / Q),
    phi(r) = r^order - 1 - order (r - 1),

of which every term is at least zero. Over a square of half-width h around (x, y)

- log Q is concave (Prékopa), so it is at most its tangent;
- the log-probability of a convex set under a shifted Gaussian has a Hessian between -I and zero,
  and third derivatives of at most sqrt(3) in unit directions: they are the conditional covariance
  less I and the conditional third central moment (Brascamp & Lieb 1976, Theorems 4.1 and 5.1). So
  log(P / Q) moves by at most 2 s h, and its Hessian is at most sqrt(6) s;
- with these, the sum is at most its second-order expansion with a bounded remainder.

Branch and bound halves squares until the bounds of all of them are within 0.3 % of the largest
value found. Outside of the initial square, of x, y and 0 the least is at least a `_gap` below the
next, or the greatest above it. An outcome that far below has at most e^(order (order - 1) s^2)
times its mass under a Gaussian shifted by (order - 1) s (Hölder). The other two are those of one
bit, of which the supremum is found the same way in one dimension.
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpjax._checks import as_finite, check, check_positive
from dpjax.accounting.loss_distribution import Array

_TOLERANCE = 0.003
# Of the integrals of the probabilities and of rounding; both are below 1e-9.
_QUADRATURE = 1e-6
# Beyond these the bound of the histogram is returned: order / scale, and the scale itself.
_LARGEST_ORDER, _LARGEST_SCALE = 1.5, 1e5
_SEPARATION = 12.0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(40)
_WINDOW = 7.0
_LEAST_LOG = -690.0
_BOXES_AT_ONCE = 4096


class _Outcomes(NamedTuple):
    """Log-probabilities of the outcomes at several means, and their gradients.

    Attributes:
      logs: ``(num_points, num_outcomes)``.
      gradients: of ``logs`` by the means, ``(num_points, num_outcomes, dimensions)``.
    """

    logs: Array
    gradients: Array


def argmax_rdp(orders: Sequence[float] | Array, scale: float) -> Array:
    """Returns upper bounds on the Rényi divergences of one GNMax label on any votes.

    About 2 / pi of order / scale^2 at low orders. It is within 1 % of the largest divergence over
    all histograms of real counts, and the same for any number of classes above two.

    Args:
      orders: above one, ``(num_orders,)``.
      scale: standard deviation of the noise on every count, in votes.

    Returns:
      Bounds ``(num_orders,)``.

    Raises:
      ValueError: an order that is not above one, or ``scale`` is not a finite number above zero.

    >>> ratio = argmax_rdp([2.0, 8.0], scale=40.0) / (np.array([2.0, 8.0]) / 40.0**2)
    >>> ratio.round(2).tolist()
    [0.64, 0.64]
    """
    return _supremum(tuple(check_orders(orders).tolist()), _check_scale(scale), 2)


def threshold_rdp(orders: Sequence[float] | Array, threshold_scale: float) -> Array:
    """Returns upper bounds ``(num_orders,)`` on the Rényi divergences of one threshold check.

    On any votes: it is one bit of a count of sensitivity one, about 2 / pi of
    order / (2 ``threshold_scale``^2).
    """
    scale = np.sqrt(2) * _check_scale(threshold_scale, "threshold_scale")
    return _supremum(tuple(check_orders(orders).tolist()), float(scale), 1)


@functools.lru_cache(maxsize=32)
def _supremum(orders: tuple[float, ...], scale: float, dimensions: int) -> Array:
    """Returns the divergence of three outcomes (two dimensions) or of one bit (one dimension).

    The bit is that of a noisy difference of two counts: shifted by sqrt(2) / ``scale``.
    """
    # the bound of the histogram, also where the search would not pay
    every = np.array(orders)
    bound = every / scale**2
    chosen = (every <= _LARGEST_ORDER * scale) & (scale <= _LARGEST_SCALE)
    if np.any(chosen):
        # e^((order - 1) D) - 1 of one bit, and of three outcomes inside and outside of the square
        some, step = every[chosen], 1 / scale
        excess = _excess(some, np.array([np.sqrt(2) * step]), _bit, 2 * _gap(some, step))
        if dimensions == 2:
            inside = _excess(some, np.array([step, -step]), _three, 2 * _gap(some, step))
            excess = np.maximum(inside, _excess_outside(excess, some, step))
        supremum = np.log1p(excess) / (some - 1)
        bound[chosen] = np.minimum(supremum, bound[chosen])
    return bound


def _excess(
    orders: Array, shift: Array, outcomes: Callable[[Array], _Outcomes], extent: float
) -> Array:
    """Returns upper bounds on e^((order - 1) D) - 1 over a cube, for each order.

    Args:
      orders: above one.
      shift: the mean under P less that under Q.
      outcomes: from means ``(num_points, dimensions)``.
      extent: the cube is [-extent, extent] in each dimension.
    """
    # boxes of half-width one that cover the cube
    dimensions = shift.size
    half = 1.0
    axis = np.arange(-extent, extent, 2 * half) + half
    centers = np.stack(np.meshgrid(*[axis] * dimensions), axis=-1).reshape(-1, dimensions)
    corners = np.stack(np.meshgrid(*[[-0.5, 0.5]] * dimensions), axis=-1).reshape(-1, dimensions)

    # branch and bound: of each box that may exceed the best value, its halves in each dimension
    best = np.zeros(orders.size)
    while len(centers):
        uppers = []
        for some in np.array_split(centers, 1 + len(centers) // _BOXES_AT_ONCE):
            value, upper = _bounds_on_boxes(orders, some, half, shift, outcomes)
            best = np.maximum(best, value.max(axis=0))
            uppers.append(upper)
        undecided = np.any(np.concatenate(uppers) > best * (1 + _TOLERANCE), axis=1)
        centers = (centers[undecided, None] + half * corners).reshape(-1, dimensions)
        half /= 2
    return best * (1 + _TOLERANCE + _QUADRATURE)


def _bounds_on_boxes(
    orders: Array,
    centers: Array,
    half: float,
    shift: Array,
    outcomes: Callable[[Array], _Outcomes],
) -> tuple[Array, Array]:
    """Returns e^((order - 1) D) - 1 at the centers, and its upper bounds on the boxes.

    Both have shape ``(num_boxes, num_orders)``; arrays in between also have an axis of outcomes.
    """
    # the value at the centers: the sum over the outcomes of Q phi(P / Q)
    p, q = outcomes(centers), outcomes(centers - shift)
    loss, mass = (p.logs - q.logs)[..., None], np.exp(q.logs)[..., None]
    phi = _phi(loss, orders)
    value = np.sum(mass * phi, axis=1)

    # bounds on Q and phi over the box: log Q is below its tangent, the loss moves by 2 s h at most
    step, radius = np.linalg.norm(shift), np.sqrt(shift.size) * half
    rise = half * np.sum(np.abs(q.gradients), axis=-1)[..., None]
    mass_above = np.exp(np.minimum(q.logs[..., None] + rise, 0.0))
    largest_change = step * radius
    phi_above = np.maximum(_phi(loss - largest_change, orders), _phi(loss + largest_change, orders))
    first = np.sum(mass_above * phi_above, axis=1)

    # gradient of the value at the center
    slope = orders * np.exp(loss) * np.expm1((orders - 1) * loss)
    changes = p.gradients - q.gradients
    gradient = np.einsum("bco,bcd->bod", mass * phi, q.gradients)
    gradient += np.einsum("bco,bcd->bod", mass * slope, changes)

    # bounds over the box on the derivatives of phi, and on those of log Q and of the loss
    size = np.abs(loss) + largest_change
    curve_above = orders * (orders - 1) * _largest_power(loss + largest_change, orders)
    slope_above, curve_above = curve_above * size, curve_above * (1 + size)
    change = (np.linalg.norm(changes, axis=-1) + np.sqrt(3) * largest_change)[..., None]
    change = np.minimum(change, step)
    steepness = (np.linalg.norm(q.gradients, axis=-1) + radius)[..., None]

    # second-order expansion with a bounded remainder, or the bound of the two factors
    hessian = phi_above * steepness**2 + 2 * slope_above * steepness * change
    hessian += curve_above * change**2 + slope_above * np.sqrt(3) * step
    remainder = np.sum(mass_above * hessian, axis=1) * radius**2 / 2
    second = value + half * np.sum(np.abs(gradient), axis=-1) + remainder
    return value, np.minimum(first, second)


def _phi(loss: Array, orders: Array) -> Array:
    """Returns r^order - 1 - order (r - 1) at r = e^loss: decreasing below r = 1, increasing above.

    By the loss it has the first derivative order (r^order - r), and the second is at most
    order (order - 1) (1 + abs(loss)) times the largest of r^order and r.
    """
    value = np.maximum(np.expm1(orders * loss) - orders * np.expm1(loss), 0.0)
    series = orders * (orders - 1) / 2 * loss**2 * (1 + (orders + 1) * loss / 3)
    return np.where(np.abs(orders * loss) < 1e-5, series, value)


def _largest_power(loss: Array, orders: Array) -> Array:
    """Returns the larger of r^order and r at r = e^loss."""
    return np.exp(np.maximum(orders * loss, loss))


def _bit(means: Array) -> _Outcomes:
    """Outcomes of the sign of a unit Gaussian."""
    logs = log_ndtr(np.concatenate([means, -means], axis=1))
    gradients = _density(means) * np.exp(-logs) * np.array([1.0, -1.0])
    return _Outcomes(logs, gradients[..., None])


def _three(means: Array) -> _Outcomes:
    """Outcomes of the largest of two unit Gaussians and zero: a, b and zero."""
    x, y = means.T
    logs = np.stack([_log_win(x, y), _log_win(y, x), log_ndtr(-x) + log_ndtr(-y)], axis=1)
    logs = np.maximum(logs, _LEAST_LOG)
    # the mass that moves between two outcomes when a mean does: densities on their boundaries
    between = _density((x - y) / np.sqrt(2)) / np.sqrt(2) * ndtr((x + y) / np.sqrt(2))
    at_x, at_y = _density(x) * ndtr(-y), _density(y) * ndtr(-x)
    flows = [[between + at_x, -between], [-between, between + at_y], [-at_x, -at_y]]
    return _Outcomes(logs, np.moveaxis(np.array(flows), 2, 0) * np.exp(-logs)[..., None])


def _log_win(x: Array, y: Array) -> Array:
    """Returns log Pr[X >= max(Y, 0)]: the integral of density(z - x) ndtr(z - y) over z >= 0.

    The log of the integrand has a second derivative below -1, so the window holds all of it.
    """
    start = np.maximum(0.0, np.maximum(x, (x + y) / 2) - _WINDOW)[:, None]
    z = start + _WINDOW * (1 + _NODES)
    integrand = _density(z - x[:, None]) * ndtr(z - y[:, None])
    with np.errstate(divide="ignore"):
        return np.log(_WINDOW * (integrand @ _WEIGHTS))


def _density(z: Array) -> Array:
    return np.exp(-(z**2) / 2) / np.sqrt(2 * np.pi)


def _gap(orders: Array, step: float) -> float:
    """Returns the distance between means beyond which an outcome is negligible."""
    return float(np.ceil(_SEPARATION + 2 * np.max(orders) * step))


def _excess_outside(bit: Array, orders: Array, step: float) -> Array:
    """Returns upper bounds where an outcome is far below the others; ``bit``: of the other two."""
    gap = _gap(orders, step)

    # Q[the third one passes the winner of the other two], at most
    overtaken = ndtr((2 * step - gap) / np.sqrt(2))

    # Hölder: the moment of the third outcome
    log_third = orders * (orders - 1) * step**2
    log_third = log_third + log_ndtr((2 * (orders - 1) * step - gap) / np.sqrt(2))
    raised = np.expm1(-(orders - 1) * np.log1p(-2 * overtaken))
    return bit + (1 + bit) * raised + 2 * np.exp(log_third)


def check_orders(orders: Sequence[float] | Array) -> Array:
    """Returns ``orders`` as floats; refuses what is not a sequence of numbers above one."""
    numbers = as_finite(orders, "orders", "finite numbers > 1", lambda values: values > 1)
    check(numbers.ndim == 1 and numbers.size > 0, "orders", orders, "finite numbers > 1")
    return numbers


def _check_scale(scale: float, name: str = "scale") -> float:
    check_positive(name, scale)
    return float(scale)
