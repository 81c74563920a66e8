"""Rejection sampling under ``jit``, with an accurate coin for small acceptance probabilities."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from dpjax._typing import PRNGKey

Draw = Callable[[PRNGKey], Any]


def bernoulli_exp(key: PRNGKey, log_probability: jax.Array) -> jax.Array:
    """Draws from Bernoulli(exp(log_probability)), accurately for small probabilities.

    Comparing one uniform number with a small probability rounds it to a multiple of 2^-23, or to
    zero, and the rounding can reveal a record. So the draw is the product of independent draws with
    probability exp(-1) each and one for the remainder. None of these probabilities is below
    exp(-1), so steps of 2^-23 change each by a factor within 5e-7 of one. In single precision
    epsilon is exceeded by less than 5e-7 epsilon + 2e-6, beside the rounding of
    ``log_probability`` itself.
    """

    def draw(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, left, _ = carry
        key, draw_key = jax.random.split(key)
        part = jnp.minimum(left, 1)  # subtracting it is exact
        return key, left - part, jax.random.bernoulli(draw_key, jnp.exp(-part))

    start = key, -log_probability, jnp.array(True)
    # NaN is drawn as well, and gives False.
    return jax.lax.while_loop(lambda carry: carry[2] & ~(carry[1] <= 0), draw, start)[2]


def rejection_loop(
    draw: Draw, log_accept: Callable[[Any], jax.Array], max_draws: int
) -> Callable[[PRNGKey], tuple[jax.Array, Any]]:
    """Returns ``f(key)``: whether one of ``max_draws`` draws was accepted, and the first such."""

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, tried, _, _ = carry
        key, draw_key, accept_key = jax.random.split(key, 3)
        params = draw(draw_key)
        return key, tried + 1, bernoulli_exp(accept_key, log_accept(params)), params

    def first_accepted(key: PRNGKey) -> tuple[jax.Array, Any]:
        shapes = jax.eval_shape(draw, key)
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        start = (key, jnp.int32(0), jnp.array(False), empty)
        _, _, accepted, params = jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[1] < max_draws), attempt, start
        )
        return accepted, params

    return first_accepted
