"""Published Wishart noise on regression statistics: not private, or many times too large.

`dpjax.bayes.regression.WishartNoise` has as few degrees of freedom as its exact profile allows.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import as_floats, check, check_count, check_delta, check_positive
from dpjax._typing import PRNGKey
from dpjax.bayes.regression.statistics import check_bound
from dpjax.bayes.regression.wishart import draw_wishart
from dpjax.mechanisms._exact_noise import call_on_host

# Relative, of eigenvalues in float32.
_ROUNDING = 1e-5


def sheffet_degrees_of_freedom(dimension: int, *, epsilon: float, delta: float) -> int:
    """Returns the published degrees of freedom floor(d + (14 / epsilon^2) 2 log(4 / delta)).

    With a scale of the largest squared norm of a row it is (epsilon, delta)-private under
    add/remove and replace-one, by the exact profile, with many times the degrees of freedom of
    `WishartNoise.from_epsilon`.

    Args:
      dimension: d, of the rows [x, y].
      epsilon: in (0, 1).
      delta: in (0, 1 / e).

    Raises:
      ValueError: a number out of range.

    Source: Sheffet (2019), the theorem on additive Wishart noise.

    >>> sheffet_degrees_of_freedom(2, epsilon=0.5, delta=1e-4)
    1188
    """
    check_count("dimension", dimension)
    check_delta(epsilon, "epsilon")
    check_delta(delta)
    check(delta < math.exp(-1), "delta", delta, "in (0, 1 / e), for which the theorem is stated")
    return math.floor(dimension + 14 / epsilon**2 * 2 * math.log(4 / delta))


def nonprivate_wishart_noise(
    key: PRNGKey, num_features: int, *, x_norm_bound: float, epsilon: float
) -> jax.Array:
    """Draws Wishart(d + 1, 3 R^2 / (2 epsilon) I) noise, which was published as private.

    It is NOT epsilon-differentially private, so it has no mechanism and no certificate. The noise
    is positive definite: if a release minus x x^T is not, x is not in the data. For every d and
    every finite epsilon', delta is at least 1 - e^(-epsilon / 3), the probability of that.
    `WishartNoise` has the degrees of freedom that make delta small.

    Args:
      key: a JAX key.
      num_features: d.
      x_norm_bound: R, the bound on the norm of the features.
      epsilon: what is claimed.

    Returns:
      Noise ``(d, d)`` for the sum of x x^T.

    Raises:
      ValueError: a number that is not above zero.

    Source: Jiang, Xie & Zhang (2016), who claim privacy, without their division by n.
    """
    check_count("num_features", num_features)
    check_bound("x_norm_bound", x_norm_bound)
    check_positive("epsilon", epsilon)
    return wishart_noise(key, num_features, num_features + 1, 3 * x_norm_bound**2 / (2 * epsilon))


def excludes_record(released: jax.Array, row: jax.Array) -> jax.Array:
    """Returns whether a second moment with positive definite noise excludes ``row`` from the data.

    It does if the release minus the row's second moment has a negative eigenvalue beyond rounding.

    Args:
      released: ``(d, d)``, symmetric.
      row: ``(d,)``.

    >>> bool(excludes_record(jnp.eye(2), jnp.array([0.9, 0.0])))
    False
    >>> bool(excludes_record(jnp.eye(2), jnp.array([1.1, 0.0])))
    True
    """
    released, row = as_floats(released, "released"), as_floats(row, "row")
    eigenvalues = jnp.linalg.eigvalsh(released - jnp.outer(row, row))
    return eigenvalues[0] < -_ROUNDING * jnp.abs(eigenvalues).max()


def wishart_noise(key: PRNGKey, dimension: int, degrees_of_freedom: int, scale: float) -> jax.Array:
    """Draws one Wishart matrix, ``(dimension, dimension)``, of scale matrix ``scale`` I.

    Works under jit and vmap; arguments as `draw_wishart`.
    """
    result = [jax.ShapeDtypeStruct((dimension, dimension), np.float64)]
    arguments = dimension, degrees_of_freedom, scale
    drawn = call_on_host(lambda key_bits, _: [draw_wishart(key_bits, *arguments)], key, [], result)
    return jnp.asarray(drawn[0])
