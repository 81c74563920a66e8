"""Published step sizes of Langevin dynamics that are not certified, and samples of finite chains.

`dpjax.bayes.sgmcmc.calibrate_step_size` has the step sizes that are certified, and
`dpjax.bayes.sgmcmc.rejection_sample` exact samples.
"""

import math
from typing import TypeVar

import jax
import numpy as np
import numpy.typing as npt
from numpyro.infer import MCMC, NUTS

from dpjax._checks import as_float64, check, check_count, check_delta, check_positive
from dpjax._typing import ArrayTree, ClipBound, LossFn, PRNGKey
from dpjax.bayes.sgmcmc import OnePosteriorSample
from dpjax.bayes.sgmcmc.langevin import LogPrior
from dpjax.bayes.sgmcmc.one_posterior_sample import clipped_log_likelihood
from dpjax.gradients.clip_bound import total_l2_clip

P = TypeVar("P")


def step_size_bound_2015(
    *, epsilon: float, delta: float, num_examples: int, num_steps: int, l2_clip: ClipBound
) -> float:
    """Published bound ``epsilon^2 N / (128 T L^2 log(2.5 T / delta) log(2 / delta))`` on eta.

    Not certified: it ignores batch size and temperature, on both of which the privacy of a chain
    depends. It follows from strong composition and is mostly far too small: at N = 50,000,
    T = 10,000, L = 4, delta = 1e-5 and epsilon = 0.1 it is 9.2e-8, where with batches of 1,000
    steps of 3.3e-4 are certified at the published noise variance ``eta / N``, and of 6.6e-4 at
    temperature 1.

    Args:
      epsilon: claimed.
      delta: in (0, 1).
      num_examples: N.
      num_steps: T.
      l2_clip: L, the bound on a gradient's norm, or per-layer bounds.

    Raises:
      ValueError: a number out of range.

    Returns:
      The largest step size, a number.

    Source: Wang, Fienberg & Smola (2015), as stated by Li, Chen & Liu (2017).

    >>> published = step_size_bound_2015(
    ...     epsilon=0.1, delta=1e-5, num_examples=50_000, num_steps=10_000, l2_clip=4.0
    ... )
    >>> f"{published:.1e}"
    '9.2e-08'
    """
    bound = _checked_bound(epsilon, delta, num_examples, num_steps, l2_clip)
    logs = math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    return epsilon**2 * num_examples / (128 * num_steps * bound**2 * logs)


def step_size_bound_2017(
    step: npt.ArrayLike,
    *,
    epsilon: float,
    delta: float,
    num_examples: int,
    num_steps: int,
    l2_clip: ClipBound,
    constant: float,
) -> npt.NDArray[np.float64]:
    """Published bound ``epsilon^2 N t^(-1/3) / (c^2 T^(2/3) L^2 log(1 / delta))`` on step t.

    **The claimed epsilon does not hold.** The published value is 0.106 at N = 50,000, T = 10,000,
    L = 4, delta = 1e-5, epsilon = 0.1; a step size of 0.1 is certified at 1.58 with batches of
    1,000 and noise variance ``2 eta / N``, at 36 with batches of 100 and the published noise, and
    at no batch size below 1.5. The constant c depends on N, L, T, epsilon and delta in a way that
    is not published.

    Args:
      step: t = 1, 2, ...: a number or an array.
      epsilon: claimed.
      delta: in (0, 1).
      num_examples: N.
      num_steps: T.
      l2_clip: L, the bound on a gradient's norm, or per-layer bounds.
      constant: c.

    Returns:
      Step sizes, shaped like ``step``.

    Raises:
      ValueError: a number out of range.

    Source: Li, Chen & Liu (2017), presentation slides, "Our results".

    >>> published = step_size_bound_2017(
    ...     8, epsilon=0.1, delta=1e-5, num_examples=50_000, num_steps=10_000, l2_clip=4.0,
    ...     constant=0.235
    ... )
    >>> float(published)
    0.053
    """
    bound = _checked_bound(epsilon, delta, num_examples, num_steps, l2_clip)
    check_positive("constant", constant)
    step = as_float64(step, "step")
    check(bool((step >= 1).all()), "step", step, "at least 1: steps are counted from one")
    scale = epsilon**2 * num_examples / (constant**2 * num_steps ** (2 / 3) * bound**2)
    return np.asarray(scale / math.log(1 / delta) * step ** (-1 / 3))


def _checked_bound(
    epsilon: float, delta: float, num_examples: int, num_steps: int, l2_clip: ClipBound
) -> float:
    """Checks the arguments of a published bound, and returns L."""
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_count("num_examples", num_examples)
    check_count("num_steps", num_steps)
    return total_l2_clip(l2_clip)


def markov_chain_sample(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior,
    params: P,
    data: ArrayTree,
    mechanism: OnePosteriorSample,
    *,
    num_steps: int = 1_000,
) -> P:
    """Draws from the tempered posterior by NUTS: **not** an exact sample, so a private value.

    The likelihood is clipped and tempered as by `dpjax.bayes.sgmcmc.rejection_sample`; the distance
    of the chain's distribution from the posterior is not known.

    Args:
      key: a JAX key.
      log_likelihood: ``log_likelihood(params, example) -> scalar``.
      log_prior: ``log_prior(params) -> scalar``.
      params: initial state of the chain.
      data: any tree of arrays with a leading axis of records.
      mechanism: bounds on the log-likelihood, and its exponent.
      num_steps: steps of NUTS, all of them warm-up.

    Returns:
      The last state.

    Source: Wang, Fienberg and Smola (2015), who sample by a Markov chain in practice.
    """
    check_count("num_steps", num_steps)
    clipped = clipped_log_likelihood(log_likelihood, mechanism)
    kernel = NUTS(
        potential_fn=lambda params: (
            -log_prior(params) - mechanism.scale * clipped(params, data).sum()
        )
    )
    chain = MCMC(kernel, num_warmup=num_steps, num_samples=1, progress_bar=False)
    chain.run(key, init_params=params)
    return jax.tree.map(lambda leaf: leaf[-1], chain.get_samples())
