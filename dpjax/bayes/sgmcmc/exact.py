"""Exact samplers for one posterior sample: rejection, and a conjugate family; and one that is not.

Exact up to floating-point arithmetic: see the README on what is not guaranteed.
"""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from numpyro.infer import MCMC, NUTS

from dpjax._validation import as_key, check, check_count
from dpjax.bayes.conjugate.counts import BetaBinomial
from dpjax.bayes.sgmcmc.chains import LogLikelihood, LogPrior
from dpjax.bayes.sgmcmc.one_sample import (
    OnePosteriorSample,
    PosteriorDraw,
    clipped_log_likelihood,
)

Draw = Callable[[jax.Array], Any]


def rejection_sample(
    log_likelihood: LogLikelihood,
    draw_prior: Draw,
    data: Any,
    mechanism: OnePosteriorSample,
    key: jax.Array,
    *,
    most: int = 1_000_000,
) -> PosteriorDraw:
    """Draws one exact posterior sample by rejection from the prior.

    A draw of the prior is kept with probability ``exp(scale * sum(log-likelihood - high))``, so the
    time to the first grows with the information in the data: for few records, or strong privacy.

    Args:
      log_likelihood: ``log_likelihood(params, example) -> scalar``; clipped to the mechanism's
        bounds, which makes them true.
      draw_prior: ``draw_prior(key) -> params``; a bounded domain is one of the prior.
      data: any tree of arrays with a leading axis of records.
      mechanism: bounds and guarantee.
      key: a JAX key; `dpjax.release_key()` for a real release.
      most: give up after about this many draws. That nothing was released then tells something of
        the data, which the guarantee leaves out.

    Raises:
      ValueError: none of ``most`` draws was kept.

    >>> mechanism = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="replace_one")
    >>> draw = rejection_sample(lambda w, x: -(w - x) ** 2, jax.random.uniform, jnp.ones(6),
    ...                         mechanism, jax.random.key(0))
    >>> draw.label, 0 <= float(draw.params) <= 1
    ('pure DP: an exact sample', True)
    """
    of_all = clipped_log_likelihood(log_likelihood, mechanism)

    def log_accept(params: Any) -> jax.Array:
        return mechanism.scale * jnp.sum(of_all(params, data) - mechanism.high)

    return PosteriorDraw(_first_kept(draw_prior, log_accept, as_key(key), most), mechanism, True)


def beta_sample(
    family: BetaBinomial,
    records: Any,
    mechanism: OnePosteriorSample,
    key: jax.Array,
    *,
    most: int = 1_000_000,
) -> PosteriorDraw:
    """Draws one exact sample of a probability, from its conjugate posterior.

    Args:
      family: prior, and how records are read.
      records: zeros and ones, ``(n,)``.
      mechanism: its bounds make the domain: the probabilities for which log theta and
        log(1 - theta) are both within them. Outside it the prior is zero.
      key: a JAX key; `dpjax.release_key()` for a real release.
      most: see `rejection_sample`.

    Raises:
      ValueError: the domain is empty, or none of ``most`` draws was in it.

    >>> mechanism = OnePosteriorSample(1.0, low=-4.0, high=0.0, adjacency="replace_one")
    >>> draw = beta_sample(BetaBinomial(), jnp.ones(200), mechanism, jax.random.key(0))
    >>> float(draw.params) <= 1 - math.exp(-4)
    True
    """
    least = max(math.exp(mechanism.low), 1 - math.exp(mechanism.high))
    check(least < 0.5, "low and high", (mechanism.low, mechanism.high), "around -log 2")
    total = mechanism.scale * jnp.sum(family.statistic(records), dtype=float)
    zeros = mechanism.scale * len(records) - total
    ones_shape, zeros_shape = family.alpha + total, family.beta + zeros

    def log_accept(theta: jax.Array) -> jax.Array:
        return jnp.where((theta >= least) & (theta <= 1 - least), 0.0, -jnp.inf)

    def draw(key: jax.Array) -> jax.Array:
        return jax.random.beta(key, ones_shape, zeros_shape)

    return PosteriorDraw(_first_kept(draw, log_accept, as_key(key), most), mechanism, True)


def markov_chain_sample(
    log_likelihood: LogLikelihood,
    log_prior: LogPrior,
    params: Any,
    data: Any,
    mechanism: OnePosteriorSample,
    key: jax.Array,
    *,
    num_steps: int = 1_000,
) -> PosteriorDraw:
    """Draws from the posterior by NUTS: **not** an exact sample, so not private by `mechanism`.

    The likelihood is the same, clipped and tempered. The result's ``label`` says that it is not
    pure DP, and its ``certificate`` refuses.

    Args:
      log_likelihood: ``log_likelihood(params, example) -> scalar``.
      log_prior: ``log_prior(params) -> scalar``.
      params: where the chain starts.
      data: any tree of arrays with a leading axis of records.
      mechanism: bounds, and the power of the likelihood.
      key: a JAX key.
      num_steps: of numpyro's NUTS, all of them warm-up.

    >>> mechanism = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="replace_one")
    >>> draw = markov_chain_sample(lambda w, x: -(w - x) ** 2, lambda w: -(w**2), jnp.zeros(()),
    ...                            jnp.ones(6), mechanism, jax.random.key(0), num_steps=10)
    >>> draw.label
    'not pure DP: the end of a finite Markov chain, which is no exact sample'
    """
    check_count("num_steps", num_steps)
    of_all = clipped_log_likelihood(log_likelihood, mechanism)

    def potential(params: Any) -> jax.Array:
        return -log_prior(params) - mechanism.scale * of_all(params, data).sum()

    chain = MCMC(
        NUTS(potential_fn=potential), num_warmup=num_steps, num_samples=1, progress_bar=False
    )
    chain.run(as_key(key), init_params=params)
    last = jax.tree.map(lambda leaf: leaf[-1], chain.get_samples())
    return PosteriorDraw(last, mechanism, is_exact=False)


def _first_kept(
    draw: Draw, log_accept: Callable[[Any], jax.Array], key: jax.Array, most: int
) -> Any:
    check_count("most", most)
    kept, params = jax.jit(search(draw, log_accept, most))(key)
    if not kept:
        raise ValueError(
            f"most must be enough for one draw to be kept, got {most:,}: nothing was released. The"
            " data say more than such proposals can find; markov_chain_sample samples any"
            " posterior, but is not pure DP"
        )
    return params


def heads(key: jax.Array, log_probability: jax.Array) -> jax.Array:
    """Throws a coin that shows heads with probability ``exp(log_probability)``, however small.

    One uniform number has no values between zero and 2^-23: compared with a small probability it
    would round that to the next such step, or to never, and a record that tips it over would be
    seen. So it is heads if all of several coins are, of exp(-1) each and one of the remainder. None
    is less likely than exp(-1), so steps of 2^-23 change its probability by less than 5e-7 of it.
    What remains, in single precision: epsilon is exceeded by less than 5e-7 epsilon + 2e-6, however
    small the probability, beside what is rounded in ``log_probability`` itself.
    """

    def throw(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, left, _ = carry
        key, coin_key = jax.random.split(key)
        part = jnp.minimum(left, 1)  # taking it from what is left rounds nothing
        return key, left - part, jax.random.bernoulli(coin_key, jnp.exp(-part))

    def goes_on(carry: tuple[Any, ...]) -> jax.Array:
        return carry[2] & ~(carry[1] <= 0)  # what is not a number is thrown as well: tails

    return jax.lax.while_loop(goes_on, throw, (key, -log_probability, jnp.array(True)))[2]


def search(
    draw: Draw, log_accept: Callable[[Any], jax.Array], most: int
) -> Callable[[jax.Array], tuple[jax.Array, Any]]:
    """Returns ``f(key)``: whether one of ``most`` draws was kept, and the first such."""

    def attempt(carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, tried, _, _ = carry
        key, draw_key, coin_key = jax.random.split(key, 3)
        params = draw(draw_key)
        return key, tried + 1, heads(coin_key, log_accept(params)), params

    def goes_on(carry: tuple[Any, ...]) -> jax.Array:
        return ~carry[2] & (carry[1] < most)

    def first_kept(key: jax.Array) -> tuple[jax.Array, Any]:
        shapes = jax.eval_shape(draw, key)
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)
        start = (key, jnp.int32(0), jnp.array(False), empty)
        _, _, kept, params = jax.lax.while_loop(goes_on, attempt, start)
        return kept, params

    return first_kept
