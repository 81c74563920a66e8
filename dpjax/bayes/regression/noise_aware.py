"""Noise-aware posterior of a linear regression: the noise of the release is part of the model."""

import functools
import warnings
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy.typing as npt
from numpyro.infer.hmc import hmc

from dpjax._checks import (
    as_floats,
    as_key,
    check,
    check_count,
    check_delta,
    check_positive,
    check_type,
    is_traced,
)
from dpjax._typing import Numeric, PRNGKey
from dpjax.bayes.regression import latent_statistics
from dpjax.bayes.regression.budget_allocation import NoiseDistribution
from dpjax.bayes.regression.latent_statistics import ConjugatePrior, Coordinates
from dpjax.bayes.regression.observation_model import (
    FeaturePrior,
    Observation,
    SecondMoment,
    observe,
    second_moment_prior,
)
from dpjax.bayes.regression.perturbed_statistics import PerturbedStatistics
from dpjax.bayes.regression.statistics import RegressionStatistics
from dpjax.mechanisms.base import Interval

# Limits of the warning: quantiles of a 90 % interval are off by about 0.1 deviations at 200 draws.
_LEAST_ESS = 200
_LARGEST_R_HAT = 1.05
# Doublings of a trajectory: of warm-up, where steps may be far too small, and after it.
_TREE_DEPTHS = (5, 7)


class RegressionDraws(NamedTuple):
    """Posterior draws of a linear regression, with effective sample sizes and split R-hat.

    Attributes:
      beta: coefficients, of shape (num_draws, d); one chain after the other.
      sigma2: the residuals' variance, of shape (num_draws,).
      ess: effective sample sizes of the coefficients and of log sigma2, of shape (d + 1,).
      r_hat: split R-hat of the same, of shape (d + 1,): near one for chains that agree.
    """

    beta: jax.Array
    sigma2: jax.Array
    ess: jax.Array | None = None
    r_hat: jax.Array | None = None


def noise_aware_posterior(
    key: PRNGKey,
    mechanism: PerturbedStatistics,
    released: RegressionStatistics,
    *,
    num_examples: Numeric,
    prior_precision: Numeric,
    noise_shape: Numeric,
    noise_rate: Numeric,
    features: FeaturePrior | None = None,
    num_draws: int = 2_000,
    num_warmup: int = 500,
    num_chains: int = 4,
) -> RegressionDraws:
    """Returns draws from the posterior for y ~ N(x^T b, v), b ~ N(0, v I / prior_precision).

    The mixture of `unknown_noise_posterior` over the posterior of the exact statistics given the
    release. The parameters are integrated out in closed form, NUTS samples the statistics, and each
    draw of them gives one draw of the parameters. Unlike the intervals of a posterior that treats
    the release as exact, these widen with the noise and keep their coverage.

    The distribution of X^T y and y^T y given X^T X is exact for any features and any n > d. Only
    the prior of X^T X is a model: with ``features``, that of Gaussian features around zero.

    Privacy:
      Post-processing of the release. ``num_examples`` is public under replace-one and zero-out;
      under add/remove it is private, and has to be released too.

    Source: Bernstein & Sheldon (2019), "Differentially private Bayesian linear regression", with
    parameters marginalised and NUTS, Hoffman & Gelman (2014), instead of their Gibbs sampler.

    Args:
      key: a JAX key for the draws, which need not be secret.
      mechanism: the mechanism of the release, with yty.
      released: result of ``mechanism.release``, without `repair`.
      num_examples: number of records; fewer than d + 1 count as d + 1.
      prior_precision: above zero, over the noise's own precision.
      noise_shape: of the inverse-gamma prior of v, above zero.
      noise_rate: likewise.
      features: prior of E[x x^T]. By default a vague one of X^T X / n (matrix-F) with the mean
        x_norm^2 / d of every feature's square, which does not exclude collinear features.
      num_draws: kept, a multiple of ``num_chains``, and at least four times as many.
      num_warmup: iterations of each chain before them, which adapt step size and scales.
      num_chains: independent ones.

    Returns:
      The draws, with effective sample sizes and split R-hat. Works under jit and vmap, where no
      warning is given: look at ``ess`` and ``r_hat``. A step costs O(d^3).

    Raises:
      ValueError: statistics without yty or not of the mechanism's shape; a number that is not
        allowed.
      TypeError: statistics that are not real numbers.

    Warns:
      UserWarning: an effective sample size below 200 or a split R-hat above 1.05.

    >>> from dpjax.bayes.regression import RegressionBounds
    >>> mechanism = PerturbedStatistics.from_epsilon(
    ...     RegressionBounds(x_norm=1.0, y_size=1.0), epsilon=1.0, delta=1e-5,
    ...     adjacency="replace_one", num_features=1
    ... )
    >>> data = RegressionStatistics(jnp.eye(1) * 900, jnp.array([450.0]), jnp.array(270.0))
    >>> released = mechanism.release(jax.random.key(1), data)
    >>> draws = noise_aware_posterior(
    ...     jax.random.key(0), mechanism, released, num_examples=900,
    ...     prior_precision=1.0, noise_shape=1.0, noise_rate=0.1
    ... )
    >>> draws.beta.shape, round(float(draws.beta.mean()), 1), bool((draws.ess > 200).all())
    ((2000, 1), 0.5, True)
    """
    check_type("features", features, FeaturePrior | None, "a FeaturePrior or None")
    observation = observe(mechanism, released, num_examples)
    check_positive("prior_precision", prior_precision)
    check_positive("noise_shape", noise_shape)
    check_positive("noise_rate", noise_rate)
    check_count("num_chains", num_chains)
    check_count("num_draws", num_draws, minimum=4 * num_chains)
    allowed = f"a multiple of num_chains = {num_chains}"
    check(num_draws % num_chains == 0, "num_draws", num_draws, allowed)
    check_count("num_warmup", num_warmup, minimum=0)
    dtype = observation.average.dtype
    numbers = (prior_precision, noise_shape, noise_rate)
    prior = ConjugatePrior(*(jnp.asarray(number, dtype) for number in numbers))
    second_moment = second_moment_prior(features, mechanism, observation)
    coordinates = latent_statistics.make_coordinates(observation, prior, mechanism)
    draws = _sample(
        jax.random.split(as_key(key), num_chains),
        (coordinates, observation, second_moment, prior),
        mechanism.noise_distribution,
        num_draws // num_chains,
        num_warmup,
    )
    if is_traced(draws.ess):
        return draws
    ess, r_hat = float(jnp.min(draws.ess)), float(jnp.max(draws.r_hat))
    if not (ess >= _LEAST_ESS and r_hat <= _LARGEST_R_HAT):
        warnings.warn(
            f"the chains of noise_aware_posterior mixed poorly: least effective sample size"
            f" {ess:.0f} (below {_LEAST_ESS} is too few), largest split R-hat {r_hat:.3f} (above"
            f" {_LARGEST_R_HAT} is too large). Raise num_draws and num_warmup.",
            UserWarning,
            stacklevel=2,
        )
    return draws


def coefficient_interval(draws: RegressionDraws, level: float) -> Interval:
    """Returns the central credible interval of each coefficient.

    Args:
      draws: from a posterior.
      level: the probability, in (0, 1), of each interval; not of all together.

    Returns:
      Both ends, each ``(d,)``.

    Raises:
      ValueError: ``level`` is not in (0, 1).

    >>> draws = RegressionDraws(jnp.arange(101.0)[:, None], jnp.ones(101))
    >>> [end.tolist() for end in coefficient_interval(draws, 0.9)]
    [[5.0], [95.0]]
    """
    check_type("draws", draws, RegressionDraws, "RegressionDraws")
    return _central(draws.beta, level)


def prediction_interval(
    key: PRNGKey, draws: RegressionDraws, x: npt.ArrayLike, level: float
) -> Interval:
    """Returns the central predictive interval of the target of each new record.

    Args:
      key: a JAX key, for the residuals of the new records.
      draws: from a posterior.
      x: features ``(m, d)`` of new records. They are not protected here.
      level: the probability, in (0, 1), with which each interval covers its target.

    Returns:
      Both ends, each ``(m,)``.

    Raises:
      ValueError: ``level`` is not in (0, 1).

    >>> draws = RegressionDraws(jnp.ones((20_000, 1)), jnp.full(20_000, 4.0))
    >>> interval = prediction_interval(jax.random.key(0), draws, [[3.0]], 0.9)
    >>> [round(float(end[0])) for end in interval]
    [0, 6]
    """
    check_type("draws", draws, RegressionDraws, "RegressionDraws")
    x = as_floats(x, "x")
    check(x.ndim == 2, "x", x.shape, "of shape (n, d)")
    means = draws.beta @ x.astype(draws.beta.dtype).T
    normals = jax.random.normal(as_key(key), means.shape, means.dtype)
    return _central(means + jnp.sqrt(draws.sigma2)[:, None] * normals, level)


def _central(values: jax.Array, level: float) -> Interval:
    check_delta(level, "level")
    tail = (1 - level) / 2
    return Interval(*jnp.quantile(values, jnp.array([tail, 1 - tail]), axis=0))


@functools.partial(jax.jit, static_argnames=("noise_distribution", "num_draws", "num_warmup"))
def _sample(
    keys: jax.Array,
    model: tuple[Coordinates, Observation, SecondMoment, ConjugatePrior],
    noise_distribution: NoiseDistribution,
    num_draws: int,
    num_warmup: int,
) -> RegressionDraws:
    """One chain for each key, and the diagnostics of all."""
    chain = functools.partial(_run_chain, model, noise_distribution, num_draws, num_warmup)
    # numpyro's NUTS divides floats by integers.
    with jax.numpy_dtype_promotion("standard"):
        beta, sigma2 = jax.vmap(chain)(keys)
    values = jnp.concatenate([beta, jnp.log(sigma2)[..., None]], axis=-1)
    ess, r_hat = effective_sample_size(values), split_r_hat(values)
    return RegressionDraws(beta.reshape(-1, beta.shape[-1]), sigma2.reshape(-1), ess, r_hat)


def _run_chain(
    model: tuple[Coordinates, Observation, SecondMoment, ConjugatePrior],
    noise_distribution: NoiseDistribution,
    num_draws: int,
    num_warmup: int,
    key: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """NUTS over the statistics, and one draw of the parameters for each draw of them."""
    coordinates, observation, second_moment, prior = model
    start_key, chain_key, draw_key = jax.random.split(key, 3)

    log_density = functools.partial(
        latent_statistics.log_density,
        coordinates=coordinates,
        observation=observation,
        second_moment=second_moment,
        prior=prior,
        noise_distribution=noise_distribution,
    )
    scales = coordinates.scales
    start = jax.random.normal(start_key, scales.shape, scales.dtype) / 10
    initialise, step = hmc(lambda unknowns: -log_density(unknowns), algo="NUTS")
    state = initialise(
        start, num_warmup, step_size=0.3, max_tree_depth=_TREE_DEPTHS, rng_key=chain_key
    )

    def keep(state: Any, _: None) -> tuple[Any, jax.Array]:
        state = step(state)
        return state, state.z

    _, kept = jax.lax.scan(keep, state, length=num_warmup + num_draws)

    def draw(key: jax.Array, unknowns: jax.Array) -> tuple[jax.Array, jax.Array]:
        found = latent_statistics.decode(unknowns, coordinates, observation, prior)
        return latent_statistics.draw_parameters(key, found, observation.num_examples, prior)

    return jax.vmap(draw)(jax.random.split(draw_key, num_draws), kept[num_warmup:])


def split_r_hat(draws: jax.Array) -> jax.Array:
    """Returns split R-hat of draws ``(num_chains, num_draws, ...)``, as numpyro, also under jit.

    Source: Gelman et al. (2013), "Bayesian data analysis", section 11.4.
    """
    half = draws.shape[1] // 2
    within, total = _variances(jnp.concatenate([draws[:, :half], draws[:, -half:]]))
    return jnp.sqrt(total / within)


def effective_sample_size(draws: jax.Array) -> jax.Array:
    """Returns the effective sample size of draws ``(num_chains, num_draws, ...)``.

    Source: Gelman et al. (2013), section 11.5, with the initial monotone sequence of Geyer (1992).
    """
    num_chains, length = draws.shape[:2]
    centred = draws - draws.mean(axis=1, keepdims=True)
    spectrum = jnp.fft.rfft(centred, 2 * length, axis=1)
    products = jnp.fft.irfft((spectrum * spectrum.conj()).real, 2 * length, axis=1)[:, :length]
    within, total = _variances(draws)
    correlation = 1 - (within[None] - products.mean(axis=0) / length) / total[None]
    correlation = correlation.at[0].set(1.0)
    pairs = correlation[: length - length % 2].reshape(-1, 2, *draws.shape[2:]).sum(axis=1)
    # The first pair is kept whatever its sign; the sum of the others ends at a negative one.
    later = jnp.where(jax.lax.cummin(pairs[1:], axis=0) > 0, pairs[1:], 0.0)
    monotone = jax.lax.cummin(jnp.concatenate([pairs[:1], later]), axis=0)
    return num_chains * length / (2 * monotone.sum(axis=0) - 1)


def _variances(draws: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Within the chains, and of all draws together, both unbiased."""
    length = draws.shape[1]
    within = draws.var(axis=1, ddof=1).mean(axis=0)
    total = within * ((length - 1) / length)
    if len(draws) == 1:
        return total, total
    return within, total + draws.mean(axis=1).var(axis=0, ddof=1)
