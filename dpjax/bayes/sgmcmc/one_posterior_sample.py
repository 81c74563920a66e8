"""One posterior sample (OPS): an exact sample of a tempered posterior is a private release.

Exact samplers: rejection from the prior, and the beta posterior. Exact means up to floating-point
arithmetic; the last state of a Markov chain (NUTS) is not exact, so none is offered.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_key,
    batch_length,
    check,
    check_count,
    check_function,
    check_positive,
    check_text,
    check_type,
)
from dpjax._html_tables import leaf_table
from dpjax._typing import ArrayTree, LossFn, PRNGKey, PyTree
from dpjax.adjacency import Adjacency, sensitivity_factor
from dpjax.bayes.conjugate.families import BetaBinomial
from dpjax.certificates.certificate import Certificate
from dpjax.guarantee import Guarantee, render_guarantee
from dpjax.mechanisms.additive import pure_dp_event
from dpjax.mechanisms.base import Mechanism, format_pure_dp

P = TypeVar("P")
Draw: TypeAlias = Callable[[PRNGKey], P]


def bernoulli_exp(key: PRNGKey, log_probability: jax.Array) -> jax.Array:
    """Draws from Bernoulli(exp(log_probability)), accurately for small probabilities.

    Comparing one uniform number with a small probability rounds it to a multiple of 2^-23, or to
    zero, and the rounding can reveal a record. So the draw is the product of independent draws with
    probability exp(-1) each and one for the remainder. None of these probabilities is below
    exp(-1), so steps of 2^-23 change each by a factor within 5e-7 of one. In single precision
    epsilon is exceeded by less than 5e-7 epsilon + 2e-6, beside the rounding of
    ``log_probability`` itself.
    """

    def draw(
        carry: tuple[PRNGKey, jax.Array, jax.Array],
    ) -> tuple[PRNGKey, jax.Array, jax.Array]:
        key, left, _ = carry
        key, draw_key = jax.random.split(key)
        exponent = jnp.minimum(left, 1)  # subtracting it is exact
        return key, left - exponent, jax.random.bernoulli(draw_key, jnp.exp(-exponent))

    start = key, -log_probability, jnp.array(True)
    # NaN is drawn as well, and gives False.
    return jax.lax.while_loop(lambda carry: carry[2] & ~(carry[1] <= 0), draw, start)[2]


def rejection_loop(
    draw: Draw[P], log_accept: Callable[[P], jax.Array], max_draws: int
) -> Callable[[PRNGKey], tuple[jax.Array, P]]:
    """Returns ``f(key)``: whether one of ``max_draws`` draws was accepted, and the first such."""

    def attempt(
        carry: tuple[PRNGKey, jax.Array, jax.Array, P],
    ) -> tuple[PRNGKey, jax.Array, jax.Array, P]:
        key, tried, _, _ = carry
        key, draw_key, accept_key = jax.random.split(key, 3)
        params = draw(draw_key)
        return key, tried + 1, bernoulli_exp(accept_key, log_accept(params)), params

    def first_accepted(key: PRNGKey) -> tuple[jax.Array, P]:
        # Zeros stand for the parameters before the first draw.
        shapes = jax.eval_shape(draw, key)
        empty = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

        # Draws until one is accepted.
        start = (key, jnp.int32(0), jnp.array(False), empty)
        _, _, accepted, params = jax.lax.while_loop(
            lambda carry: ~carry[2] & (carry[1] < max_draws), attempt, start
        )
        return accepted, params

    return first_accepted


@dataclass(frozen=True)
class OnePosteriorSample(Mechanism):
    """One sample of ``prior * likelihood ^ scale``: the exponential mechanism of log-likelihoods.

    The privacy loss depends on one record's log-likelihood only through its bounds: replacing a
    record changes the log-density by at most ``2 scale (high - low)``, adding or removing one by
    half of that. With log-likelihoods in [-B, B] the posterior itself is 4 B-private under
    replace-one, with those in [-B, 0] 2 B-private. For a smaller epsilon the likelihood is
    tempered.

    Attributes:
      target_epsilon: upper bound on the epsilon of the release.
      low: lower bound on every record's log-likelihood, for all parameters.
      high: upper bound; zero for probabilities.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy, in words.

    Privacy:
      Pure differential privacy, of an **exact** sample alone. The last state of a finite Markov
      chain is not an exact sample, and has no such guarantee.

    Raises:
      ValueError: for bounds that are infinite or out of order, or an epsilon that is not above 0.

    Source: Wang, Fienberg & Smola (2015), Theorem 1; Dimitrakakis et al. (2014).

    >>> mechanism = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="replace_one")
    >>> mechanism.scale, mechanism.epsilon
    (0.25, 1.0)
    >>> OnePosteriorSample(1.0, low=-math.inf, high=0.0, adjacency="replace_one")
    Traceback (most recent call last):
    ValueError: low must be finite, got -inf: where a record's log-likelihood has no bound, one ...
    """

    target_epsilon: float
    _: KW_ONLY
    low: float
    high: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_positive("target_epsilon", self.target_epsilon)
        check_text("unit", self.unit)

        # The log-likelihood of a record is bounded on both sides.
        for name in ("low", "high"):
            bound = getattr(self, name)
            check_type(name, bound, int | float | np.number, "a number")
            check(not isinstance(bound, bool), name, bound, "a number")
            if not math.isfinite(bound):
                raise ValueError(
                    f"{name} must be finite, got {bound!r}: where a record's log-likelihood has no"
                    " bound, one record can move the posterior without limit, and a sample of it is"
                    " not private. Clip the log-likelihood, or bound parameters and records (a"
                    " logistic log-likelihood is bounded by -log(1 + exp(R X)) for parameters of"
                    " norm R and features of norm X)"
                )
        check(self.high > self.low, "high", self.high, f"above low = {self.low}")

        # The adjacency is one for which the sensitivity is known.
        sensitivity_factor(self.adjacency)

    @property
    def scale(self) -> float:
        """Exponent of the likelihood: at most 1, where the posterior itself is private enough."""
        at_one = sensitivity_factor(self.adjacency) * (self.high - self.low)
        return min(1.0, self.target_epsilon / at_one)

    @property
    def epsilon(self) -> float:
        """Epsilon of the release: at most ``target_epsilon``."""
        return self.scale * (sensitivity_factor(self.adjacency) * (self.high - self.low))

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        return Guarantee(
            event=pure_dp_event(self.epsilon, self.adjacency),
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=1,
            description={
                "sampler": "one exact sample of the posterior, its likelihood to the power"
                f" {self.scale:.4g}",
                "clipping": f"each log-likelihood within [{self.low:.4g}, {self.high:.4g}]",
                "guarantee": format_pure_dp(self.epsilon),
            },
        )

    def with_privacy_factor(self, factor: float) -> "OnePosteriorSample":
        """Returns the mechanism with ``target_epsilon`` divided by ``factor``."""
        check_positive("factor", factor)
        return dataclasses.replace(self, target_epsilon=self.target_epsilon / factor)


@dataclass(frozen=True)
class PosteriorDraw:
    """One exact sample of a tempered posterior, up to floating-point arithmetic.

    Attributes:
      params: the sample.
      mechanism: of which it is the release.
    """

    params: PyTree
    mechanism: OnePosteriorSample

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the sample."""
        return self.mechanism.guarantee

    def certificate(self, delta: float) -> Certificate:
        """Returns the certificate of the sample at ``delta`` in (0, 1)."""
        return self.mechanism.certificate(delta)

    def _repr_html_(self) -> str:
        first = [leaf_table("Released sample", self.params)]
        return render_guarantee(type(self).__name__, self.guarantee, first=first)


def clipped_log_likelihood(
    log_likelihood: LossFn, mechanism: OnePosteriorSample
) -> Callable[[ArrayTree, ArrayTree], jax.Array]:
    """Returns ``f(params, data)``: each record's log-likelihood clipped to the bounds, ``(n,)``.

    NaN becomes the lower bound. The log-likelihood of a record must be a scalar: several numbers
    would each be within the bounds, and their sum would not.
    """

    check_type("mechanism", mechanism, OnePosteriorSample, "a OnePosteriorSample")
    check_function("log_likelihood", log_likelihood, "params", "example")

    def clipped(params: ArrayTree, data: ArrayTree) -> jax.Array:
        each = jax.vmap(log_likelihood, (None, 0))(params, data)
        if not (isinstance(each, jax.Array) and each.ndim == 1):
            shape = jax.tree.map(lambda leaf: leaf.shape[1:], each)
            raise ValueError(
                f"log_likelihood must return a scalar for each record, got the shape {shape}"
            )
        each = each.astype(float)  # half precision would round the bounds, and the sum
        each = jnp.where(jnp.isnan(each), mechanism.low, each)
        return jnp.clip(each, mechanism.low, mechanism.high)

    return clipped


def rejection_sample(
    key: PRNGKey,
    log_likelihood: LossFn,
    draw_prior: Draw[ArrayTree],
    data: ArrayTree,
    mechanism: OnePosteriorSample,
    *,
    max_draws: int = 1_000_000,
) -> PosteriorDraw:
    """Draws one exact posterior sample by rejection from the prior.

    A draw from the prior is accepted with probability ``exp(scale * sum(log-likelihood - high))``,
    so the number of draws grows with the information in the data: for few records, or small
    epsilon.

    Args:
      key: a JAX key; `dpjax.release_key()` for a real release.
      log_likelihood: ``log_likelihood(params, example) -> scalar``; clipped to the mechanism's
        bounds.
      draw_prior: ``draw_prior(key) -> params``.
      data: any tree of arrays with a leading axis of records.
      mechanism: bounds on the log-likelihood, and its exponent.
      max_draws: number of draws after which an error is raised. The error depends on the data,
        which the guarantee does not cover.

    Returns:
      The sample, with its mechanism.

    Privacy:
      The sample is released, under ``mechanism``; the number of draws and the time are not.

    Raises:
      ValueError: none of ``max_draws`` draws was accepted.

    >>> mechanism = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="replace_one")
    >>> draw = rejection_sample(jax.random.key(0), lambda w, x: -(w - x) ** 2, jax.random.uniform,
    ...                         jnp.ones(6), mechanism)
    >>> 0 <= float(draw.params) <= 1
    True
    """
    check_count("max_draws", max_draws)
    clipped = clipped_log_likelihood(log_likelihood, mechanism)
    check_function("draw_prior", draw_prior, "key")
    batch_length(data, "data")
    sampler = rejection_loop(
        draw_prior,
        lambda params: mechanism.scale * jnp.sum(clipped(params, data) - mechanism.high),
        max_draws,
    )
    accepted, params = jax.jit(sampler)(as_key(key))
    _check_accepted(accepted, max_draws)
    return PosteriorDraw(params, mechanism)


def beta_sample(
    key: PRNGKey,
    family: BetaBinomial,
    records: npt.ArrayLike,
    mechanism: OnePosteriorSample,
    *,
    max_draws: int = 1_000_000,
) -> PosteriorDraw:
    """Draws one exact sample of a probability from its conjugate posterior.

    Args:
      key: a JAX key; `dpjax.release_key()` for a real release.
      family: the prior.
      records: zeros and ones, ``(n,)``.
      mechanism: its bounds restrict the prior to the probabilities for which log theta and
        log(1 - theta) are both within them.
      max_draws: see `rejection_sample`.

    Returns:
      The sample, with its mechanism.

    Privacy:
      The sample is released, under ``mechanism``.

    Raises:
      ValueError: no probability is within the bounds, or none of ``max_draws`` draws was.

    >>> mechanism = OnePosteriorSample(1.0, low=-4.0, high=0.0, adjacency="replace_one")
    >>> draw = beta_sample(jax.random.key(0), BetaBinomial(), jnp.ones(200), mechanism)
    >>> float(draw.params) <= 1 - math.exp(-4)
    True
    """
    check_type("family", family, BetaBinomial, "a BetaBinomial")
    check_type("mechanism", mechanism, OnePosteriorSample, "a OnePosteriorSample")
    check_count("max_draws", max_draws)
    least = max(math.exp(mechanism.low), 1 - math.exp(mechanism.high))
    check(least < 0.5, "low and high", (mechanism.low, mechanism.high), "around -log 2")
    ones = mechanism.scale * jnp.sum(family.statistic(records), dtype=float)
    zeros = mechanism.scale * np.shape(records)[0] - ones
    alpha, beta = family.alpha + ones, family.beta + zeros
    accepted, theta = _truncated_beta(as_key(key), alpha, beta, least, max_draws)
    _check_accepted(accepted, max_draws)
    return PosteriorDraw(theta, mechanism)


@functools.partial(jax.jit, static_argnums=4)
def _truncated_beta(
    key: PRNGKey, alpha: jax.Array, beta: jax.Array, least: float, max_draws: int
) -> tuple[jax.Array, jax.Array]:
    sampler = rejection_loop(
        lambda key: jax.random.beta(key, alpha, beta),
        lambda theta: jnp.where((theta >= least) & (theta <= 1 - least), 0.0, -jnp.inf),
        max_draws,
    )
    return sampler(key)


def _check_accepted(accepted: jax.Array, max_draws: int) -> None:
    if not accepted:
        raise ValueError(
            f"max_draws must be large enough for one accepted draw, got {max_draws:,}: nothing was"
            " released. The posterior is too far from these proposals"
        )
