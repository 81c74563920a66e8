"""BDP under replace-one adjacency: gradients of pairs of records, and the cost of replacing one.

The cost of a step depends on a record and on the one that replaces it. Clipping computes their
gradients' norms and not the angle between them, so `gradient_pairs` computes the gradients of a
sample of pairs, and `replace_one_log_moments` their log moments.

Both records are in the batch under the same Bernoulli draw. In units of the noise the releases are
P = (1 - q) N(0, I) + q N(u, I) and Q = (1 - q) N(0, I) + q N(v, I), for clipped gradients u and v,
and P and Q differ only in the plane of the two. There m_u = 1 - q + q exp(u x - |u|^2 / 2) is the
density of P over that of N(0, I), m_v that of Q, and r = m_u / m_v their ratio, of mean 1 under Q.

Let p = lambda + 1. As in ``log_moments``, E_Q[r^p] - 1 is computed as the mean of r^p - 1 -
p (r - 1), which is nowhere negative. Along v the plane has a coordinate y, and m_v depends on it
alone. Across it r^p is a sum of p + 1 exponentials, whose mean is known: with s the mean of r at y,
that of r^p - 1 - p (r - 1) is

    s^p - 1 - p (s - 1) + sum_{k >= 2} B(k) h(y)^k / m_v(y)^p (exp(k (k - 1) w^2 / 2) - 1),

where B is the binomial distribution of p draws at the rate q, h(y) the part of exp(u x - |u|^2 / 2)
along v, and w the length of u across v. No term is negative. The remaining integral over y is of
functions that are analytic around the real line, and is computed by the trapezoid rule.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from dpjax._checks import (
    as_finite,
    as_key,
    batch_length,
    check,
    check_count,
    check_function,
    check_positive,
    check_rate,
)
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey
from dpjax.accounting.log_moments import (
    check_lengths,
    check_orders,
    check_scales,
    log_binomial,
    log_excess,
    log_expm1,
    log_ratio,
    log_sum,
)
from dpjax.accounting.loss_distribution import Array
from dpjax.gradients.loss_checks import check_params

_PAIRS_PER_BATCH = 16
_WIDEST_SPACING = 0.45
# A Gaussian density at nine deviations is 1e-18 of its peak.
_MARGIN = 9.0
# Numbers processed at a time, to stay in a core's cache.
_CHUNK = 2**16
_ROUNDING = 1e-6
_LOG_SQRT_2_PI = 0.5 * math.log(2 * math.pi)
# Intended infinities: the log of zero, the inverse of a zero norm.
_LIMITS = np.errstate(over="ignore", divide="ignore", invalid="ignore")


class GradientPairs(NamedTuple):
    """Norms and cosines of the clipped gradients of pairs of records. **Private values.**

    The fields are the arguments of `replace_one_log_moments`, in its order.

    Attributes:
      norms: norm of the first record's gradient, ``(pairs,)``.
      other_norms: norm of the second record's gradient, ``(pairs,)``.
      cosines: cosine of the angle between them, in [-1, 1], ``(pairs,)``; 1 where a norm is zero.
    """

    norms: jax.Array
    other_norms: jax.Array
    cosines: jax.Array

    @property
    def distances(self) -> jax.Array:
        """Distances of the two gradients, ``(pairs,)``; they do not determine the cost."""
        cross = self.norms * self.other_norms * (1 - self.cosines)
        return jnp.sqrt((self.norms - self.other_norms) ** 2 + 2 * cross)


def sample_disjoint_pairs(key: PRNGKey, num_examples: int, *, num_pairs: int) -> jax.Array:
    """Returns indices ``(2, num_pairs)`` of random pairs of records, no record in two pairs.

    All pairs of one sample would be more, but they are not independent, as the estimators assume.

    Args:
      key: a JAX key.
      num_examples: the number of records.
      num_pairs: the number of pairs, at most half of it.

    Raises:
      ValueError: more pairs than half the records.

    >>> pairs = sample_disjoint_pairs(jax.random.key(0), num_examples=10, num_pairs=5)
    >>> sorted(pairs.ravel().tolist()) == list(range(10))
    True
    """
    check_count("num_examples", num_examples)
    check_count("num_pairs", num_pairs)
    check(2 * num_pairs <= num_examples, "num_pairs", num_pairs, f"at most {num_examples // 2}")
    return jax.random.permutation(as_key(key), num_examples)[: 2 * num_pairs].reshape(2, num_pairs)


def gradient_pairs(
    loss_fn: LossFn,
    params: Params,
    first: ArrayTree,
    second: ArrayTree,
    *,
    l2_clip: float | None = None,
) -> GradientPairs:
    """Returns norms and cosines of the clipped gradients of pairs of examples.

    Args:
      loss_fn: ``loss_fn(params, example) -> scalar``. An example may be a batch, with its mean
        loss: then the pairs are pairs of batches, and a batch is replaced.
      params: parameters at which the gradients are taken.
      first: examples with a leading axis of pairs.
      second: the examples that replace them, of the same shapes.
      l2_clip: clip bound on each gradient's norm over all parameters; by default none.

    Returns:
      Norms and cosines, float32 ``(pairs,)``.

    Privacy:
      The result is computed from the records without noise and is not covered by any epsilon.

    Raises:
      ValueError: ``first`` and ``second`` differ in length, or ``l2_clip`` is not positive.

    >>> loss = lambda w, x: w @ x
    >>> x, y = jnp.array([[3.0, 0.0]]), jnp.array([[0.0, 4.0]])
    >>> pairs = gradient_pairs(loss, jnp.zeros(2), x, y, l2_clip=2.0)
    >>> pairs.norms.tolist(), pairs.other_norms.tolist(), pairs.cosines.tolist()
    ([2.0], [2.0], [0.0])
    """
    check_function("loss_fn", loss_fn, "params", "example")
    check_params(cast(ArrayTree, params))
    lengths = batch_length(first, "first"), batch_length(second, "second")
    check(
        lengths[0] == lengths[1], "second", lengths[1], f"as many examples as first, {lengths[0]}"
    )
    if l2_clip is not None:
        check_positive("l2_clip", l2_clip)
    bound = jnp.inf if l2_clip is None else l2_clip
    return _norms_and_cosines(loss_fn, params, (first, second), jnp.float32(bound))


def replace_one_log_moments(
    orders: Sequence[int],
    norms: npt.ArrayLike,
    other_norms: npt.ArrayLike,
    cosines: npt.ArrayLike,
    *,
    sampling_rate: float,
    noise_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of a Poisson-subsampled Gaussian release under replace-one.

    It is the maximum over the two directions, of the two mixtures, to a relative error of about
    1e-12. The formula of Triastcyn & Faltings (2020), `subsampled_gaussian_log_moments` at the
    distance of the two gradients, is not an upper bound on it.

    On every grid that was tried the log moments increase with the angle, and for opposite gradients
    with the norms, so that a cosine of -1 is the worst case; this is not proven.

    A pair of norms as large as the noise takes about 0.1 ms an order, smaller ones half of it.

    Args:
      orders: whole numbers lambda >= 1.
      norms: finite numbers >= 0, clipped norms of the first record's gradients.
      other_norms: clipped norms of the second record's gradients.
      cosines: cosines of the angles between them, in [-1, 1], up to rounding.
      sampling_rate: q, in (0, 1].
      noise_std: standard deviation of the noise in the units of the norms; all four arrays
        broadcast.

    Returns:
      Numbers >= 0, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    >>> values = replace_one_log_moments(
    ...     (1,), 1.0, 1.0, [0.5, -1.0], sampling_rate=0.01, noise_std=0.7
    ... )
    >>> np.round(values * 1e4, 2)
    array([[ 8.3 ],
           [13.38]])
    """
    numbers = check_orders(orders)
    check_rate("sampling_rate", sampling_rate)
    noise = check_scales("noise_std", noise_std)
    first, second = check_lengths("norms", norms), check_lengths("other_norms", other_norms)
    angles = as_finite(cosines, "cosines")
    check(bool(np.all(np.abs(angles) <= 1 + _ROUNDING)), "cosines", cosines, "in [-1, 1]")

    # Norms in units of the noise, as flat arrays.
    pairs = np.broadcast_arrays(first / noise, second / noise, np.clip(angles, -1.0, 1.0))
    shape = pairs[0].shape
    u, v, c = (array.ravel() for array in pairs)

    # The larger of the two directions at each order.
    rate = np.asarray(sampling_rate, float)
    values = [
        np.maximum(_directed(order + 1, u, v, c, rate), _directed(order + 1, v, u, c, rate))
        for order in numbers
    ]
    return np.stack(values, axis=-1).reshape(*shape, len(numbers))


@_LIMITS
def _directed(power: float, u: Array, v: Array, cosine: Array, rate: Array) -> Array:
    """Returns log E_Q[(P / Q)^power] at norms ``u`` and ``v``, all of shape (n,), by chunks."""
    along, across = u * cosine, u * np.sqrt((1 - cosine) * (1 + cosine))
    low, high = _window(power, along, v, rate)
    # Small against the distance pi / v, pi / along of complex zeros.
    feature = 1 / (np.maximum(v, np.abs(along)) * math.sqrt(7 + power))
    spacing = np.minimum(_WIDEST_SPACING, feature)
    counts = np.ceil((high - low) / spacing)
    values = np.empty(u.shape)
    for rows in _batches(counts * power):
        node = np.arange(counts[rows].max() + 1)
        step = ((high - low)[rows] / (len(node) - 1))[:, None]
        y = low[rows, None] + step * node
        logs = _log_integrand(power, y, along[rows, None], across[rows, None], v[rows, None], rate)
        values[rows] = np.logaddexp(0, log_sum(logs) + np.log(step[:, 0]) - _LOG_SQRT_2_PI)
    return values


def _window(power: float, along: Array, v: Array, rate: Array) -> tuple[Array, Array]:
    """Returns an interval of y outside of which the integrand is negligible.

    It is a sum of exponentials that tilt the normal density by up to ``power * along``, or by 2 v
    where the excess is small, times 1 / m_v^lambda, which moves a mode at t to t - lambda v w, with
    w no more than its value at t.
    """
    tilt = np.minimum(0, power * along)
    weight = expit(logit(rate) + v * tilt - v**2 / 2)
    high = np.maximum(np.maximum(0, power * along), 2 * v)
    return tilt - (power - 1) * v * weight - _MARGIN, high + _MARGIN


def _batches(sizes: Array) -> list[npt.NDArray[np.intp]]:
    """Returns groups of rows of similar size, each about as large as the cache."""
    rows = np.argsort(sizes)
    group = np.floor(np.cumsum(sizes[rows]) / _CHUNK)
    return np.split(rows, np.flatnonzero(np.diff(group)) + 1) if rows.size else []


def _log_integrand(
    power: float, y: Array, along: Array, across: Array, v: Array, rate: Array
) -> Array:
    log_other = log_ratio(y, 1 / v, rate)
    log_mean = log_ratio(y, 1 / along, rate) - log_other
    excess = log_other + log_excess(power, log_mean)
    spread = _log_spread(power, along * (y - along / 2), across, rate) - (power - 1) * log_other
    return np.logaddexp(excess, spread) - y**2 / 2


def _log_spread(power: float, exponent: Array, across: Array, rate: Array) -> Array:
    """Returns log sum_{k >= 2} B(k) exp(k exponent) (exp(k (k - 1) across^2 / 2) - 1)."""
    k = np.arange(2, power + 1)
    log_weights = log_binomial(np.asarray(power), k, rate)
    log_weights = log_weights + log_expm1(k * (k - 1) / 2 * across**2)
    return log_sum(log_weights[:, None, :] + exponent[..., None] * k)


@functools.partial(jax.jit, static_argnums=0)
def _norms_and_cosines(
    loss_fn: LossFn, params: Params, examples: tuple[ArrayTree, ArrayTree], bound: jax.Array
) -> GradientPairs:
    def one(pair: tuple[ArrayTree, ArrayTree]) -> GradientPairs:
        g, other = (jax.grad(loss_fn)(params, example) for example in pair)
        norms = jnp.sqrt(_dot(g, g)), jnp.sqrt(_dot(other, other))
        product = norms[0] * norms[1]
        angled = jnp.isfinite(product) & (product > 0)
        cosine = jnp.where(angled, _dot(g, other) / jnp.where(angled, product, 1), 1)
        # The norm of a gradient that is not finite counts as zero.
        norm, other_norm = (
            jnp.where(jnp.isfinite(norm), jnp.minimum(norm, bound), 0) for norm in norms
        )
        return GradientPairs(norm, other_norm, jnp.clip(cosine, -1, 1))

    return jax.lax.map(one, examples, batch_size=_PAIRS_PER_BATCH)


def _dot(tree: ArrayTree, other: ArrayTree) -> jax.Array:
    products = jax.tree.map(
        lambda a, b: jnp.vdot(a, b, precision=jax.lax.Precision.HIGHEST), tree, other
    )
    return sum(jax.tree.leaves(products), jnp.float32(0))
