"""Preconditioned SGLD: a diagonal preconditioner learnt from released gradients alone."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._validation import as_key, check, check_positive
from dpjax.bayes.sgmcmc.description import TRUE_POSTERIOR, Langevin, prior_step
from dpjax.bayes.sgmcmc.schedules import StepSize, as_schedule
from dpjax.bayes.sgmcmc.transformation import noise_schedule, on_clipped_sum
from dpjax.gradients.clipping import total_l2_clip
from dpjax.transforms.description import PrivateTransformation
from dpjax.transforms.noise import gaussian_like


@dataclass(frozen=True)
class RMSProp:
    """A diagonal preconditioner ``G = 1 / (damping + sqrt(v))``, clamped to a known range.

    v is the running mean of squares of the *noisy* mean gradients of the steps before: the noise of
    a step is independent of its own preconditioner. Under strong privacy v is mostly the noise's
    own variance, and the preconditioner says little.

    Attributes:
      smallest: the least entry of G, above zero.
      largest: the largest entry of G: the privacy noise is what this entry asks for.
      decay: of the running mean, in (0, 1).
      damping: above zero.

    Source: Li, Chen, Carlson, Carin (2016), section 4, without the term of the changing curvature
    (as there): with G still changing the chain is biased.
    """

    smallest: float
    largest: float
    decay: float = 0.99
    damping: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("smallest", "largest", "damping"):
            check_positive(name, getattr(self, name))
        wanted = f"at least smallest = {self.smallest}"
        check(self.largest >= self.smallest, "largest", self.largest, wanted)
        check(0 < self.decay < 1, "decay", self.decay, "in (0, 1)")

    def __call__(self, squares: Any) -> Any:
        """Returns G for a tree of running means of squares."""
        return jax.tree.map(
            lambda v: jnp.clip(1 / (self.damping + jnp.sqrt(v)), self.smallest, self.largest),
            squares,
        )

    def average(self, squares: Any, gradient: Any) -> Any:
        """Returns the running means after one more gradient."""
        return jax.tree.map(
            lambda v, g: self.decay * v + (1 - self.decay) * g * g, squares, gradient
        )


class PSGLDState(NamedTuple):
    """Steps made, int32, running means of squared gradients, and the key of the next noise."""

    num_steps: jax.Array
    squares: Any
    key: jax.Array


@dataclass(frozen=True)
class PSGLD(Langevin):
    """Private preconditioned SGLD: see `Langevin` for the other arguments.

    ``theta <- theta - eta G g + N(0, 2 temperature eta G / N)`` with the noisy mean gradient g of
    `SGLD` and a diagonal G. The release's noise is the same on every coordinate: as much as the
    largest entry of G asks for. Where G is smaller, that is too little for the sampler, and noise
    that depends on no data is added after the release. ``excess_temperatures`` are those where G is
    largest; elsewhere they are less.

    Attributes:
      preconditioner: computed from released gradients.

    Privacy:
      Each step is a Gaussian release of the clipped sum with the noise multiplier
      ``tau sqrt(2 temperature / (eta G_max N)) / l2_clip``. Preconditioner and added noise are
      post-processing.

    Source: Li, Chen, Carlson, Carin (2016), Algorithm 1.

    >>> from dpjax.sampling import PoissonSampling
    >>> chain = PSGLD(PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.01, num_steps=100,
    ...               adjacency="add_remove", preconditioner=RMSProp(0.1, 10.0))
    >>> chain.gaussian.noise_multiplier
    5.0
    """

    preconditioner: RMSProp = dataclasses.field(kw_only=True)
    name: ClassVar[str] = "preconditioned SGLD"

    @property
    def noise_share(self) -> float:
        """One over the largest entry of the preconditioner."""
        return 1 / self.preconditioner.largest

    def drift(self, log_prior: Any, key: jax.Array) -> optax.GradientTransformation:
        """The step that follows the release. See `Langevin.drift`."""
        clip_over_size = total_l2_clip(self.l2_clip) / self.sampling.expected_batch_size
        noises = jnp.asarray(self.noise_multipliers * clip_over_size, float)
        return psgld_drift(
            self.schedule(),
            self.preconditioner,
            lambda step: noises[jnp.minimum(step, self.num_steps - 1)],
            self.temperature,
            self.sampling.num_examples,
            log_prior,
            key,
        )


def psgld(
    step_size: StepSize,
    temperature: float = TRUE_POSTERIOR,
    *,
    preconditioner: RMSProp,
    num_data: int,
    expected_batch_size: float,
    l2_clip: Any,
    key: jax.Array,
    log_prior: Any = None,
    at_least: float = 0.0,
) -> PrivateTransformation:
    """Preconditioned SGLD as an optax transformation of the clipped **sum**.

    Args:
      step_size: eta, a number or a function of the step's number.
      temperature: 1 samples the posterior.
      preconditioner: an `RMSProp`.
      num_data: N, the number of records.
      expected_batch_size: tau, the public constant that the noisy sum is divided by.
      l2_clip: what each example's gradient was clipped to.
      key: a JAX key for the noise.
      log_prior: ``log_prior(params) -> scalar``; ``None`` for a flat prior. Never clipped.
      at_least: a noise multiplier below which the noise does not fall.

    Returns:
      As `sgld`.

    Privacy:
      One Gaussian release for each update; see `PSGLD`.

    Source: Li, Chen, Carlson, Carin (2016), Algorithm 1.

    >>> optimizer = psgld(0.01, preconditioner=RMSProp(0.1, 10.0), num_data=50_000,
    ...                   expected_batch_size=1_000, l2_clip=4.0, key=jax.random.key(0))
    >>> optimizer.description.noise_multiplier
    5.0
    """
    noise = noise_schedule(
        step_size,
        at_least,
        temperature=temperature,
        num_data=num_data,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        share=1 / preconditioner.largest,
    )
    noise_key, drift_key = jax.random.split(as_key(key))
    clip_over_size = total_l2_clip(l2_clip) / expected_batch_size
    drift = psgld_drift(
        as_schedule(step_size),
        preconditioner,
        lambda step: (noise(step) if callable(noise) else noise) * clip_over_size,
        temperature,
        num_data,
        log_prior,
        drift_key,
    )
    return on_clipped_sum(noise, l2_clip, expected_batch_size, drift, noise_key)


def psgld_drift(
    step_size: Any,
    preconditioner: RMSProp,
    noise_of_mean: Any,
    temperature: float,
    num_data: int,
    log_prior: Any,
    key: jax.Array,
) -> optax.GradientTransformation:
    """The step of preconditioned SGLD on noisy mean gradients.

    ``noise_of_mean(step)`` is the standard deviation of the noise that they hold already.
    """
    with_prior = prior_step(log_prior, num_data)

    def missing(eta: Any, noise: Any, g: jax.Array) -> jax.Array:
        """The standard deviation of the noise that a coordinate still lacks."""
        variance = 2 * temperature * eta * g / num_data - (eta * noise * g) ** 2
        return jnp.sqrt(jnp.maximum(variance, 0)).astype(g.dtype)

    def init(params: Any) -> PSGLDState:
        return PSGLDState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), key)

    def update(mean: Any, state: PSGLDState, params: Any = None) -> tuple[Any, PSGLDState]:
        gains, eta = preconditioner(state.squares), step_size(state.num_steps)
        noise = noise_of_mean(state.num_steps)
        next_key, noise_key = jax.random.split(state.key)
        white = gaussian_like(noise_key, jax.tree.map(jnp.zeros_like, mean), 1.0)
        gradient = with_prior(mean, params)
        updates = jax.tree.map(
            lambda g, d, w: missing(eta, noise, g) * w - jnp.asarray(eta, d.dtype) * g * d,
            gains,
            gradient,
            white,
        )
        squares = preconditioner.average(state.squares, gradient)
        return updates, PSGLDState(state.num_steps + 1, squares, next_key)

    return optax.GradientTransformation(init, update)
