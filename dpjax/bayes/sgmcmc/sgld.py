"""SGLD: stochastic gradient Langevin dynamics, whose own noise is the privacy's noise."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax.bayes.sgmcmc.description import TRUE_POSTERIOR, Langevin, prior_step, scaled
from dpjax.bayes.sgmcmc.schedules import StepSize, as_schedule
from dpjax.bayes.sgmcmc.transformation import noise_schedule, on_clipped_sum
from dpjax.transforms.description import PrivateTransformation


class SGLDState(NamedTuple):
    """How many steps were made, int32."""

    num_steps: jax.Array


@dataclass(frozen=True)
class SGLD(Langevin):
    """Private stochastic gradient Langevin dynamics: see `Langevin` for what it is given.

    ``theta <- theta - eta (grad(-log prior) / N + S / tau) + N(0, 2 temperature eta / N)``.

    Privacy:
      Every state of ``num_steps`` steps is released: each is a Gaussian release of the clipped sum
      S with the noise multiplier ``tau sqrt(2 temperature / (eta N)) / l2_clip``.

    Source: Welling, Teh (2011); Wang, Fienberg, Smola (2015).

    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.1, num_steps=10_000,
    ...              adjacency="add_remove")
    >>> chain.gaussian.noise_multiplier, round(chain.certificate(1e-5).epsilon, 2)
    (5.0, 1.58)
    """

    name: ClassVar[str] = "SGLD"

    @property
    def noise_share(self) -> float:
        """All of it."""
        return 1.0

    def drift(self, log_prior: Any, key: jax.Array) -> optax.GradientTransformation:
        """The step that follows the release; needs no key. See `Langevin.drift`."""
        del key
        return sgld_drift(self.schedule(), self.sampling.num_examples, log_prior)


def sgld(
    step_size: StepSize,
    temperature: float = TRUE_POSTERIOR,
    *,
    num_data: int,
    expected_batch_size: float,
    l2_clip: Any,
    key: jax.Array,
    log_prior: Any = None,
    at_least: float = 0.0,
) -> PrivateTransformation:
    """SGLD as an optax transformation of the clipped **sum** of gradients of ``-log likelihood``.

    Args:
      step_size: eta, a number or a function of the step's number.
      temperature: 1 samples the posterior, 1/2 is the noise ``eta / N`` of the sources.
      num_data: N, the number of records.
      expected_batch_size: tau, the public constant that the noisy sum is divided by.
      l2_clip: what each example's gradient was clipped to (by `clipped_grad` or
        `clip_per_example`).
      key: a JAX key for the noise.
      log_prior: ``log_prior(params) -> scalar``; ``None`` for a flat prior. Never clipped.
      at_least: a noise multiplier below which the noise does not fall.

    Returns:
      An optax transformation on trees shaped like the parameters, which `mechanism_of` reads. Past
      the steps that a mechanism describes it goes on: for a chain that stops by itself see `SGLD`.

    Privacy:
      One Gaussian release for each update; the rest is post-processing.

    Source: Welling, Teh (2011).

    >>> optimizer = sgld(0.1, num_data=50_000, expected_batch_size=1_000, l2_clip=4.0,
    ...                  key=jax.random.key(0))
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
    )
    drift = sgld_drift(as_schedule(step_size), num_data, log_prior)
    return on_clipped_sum(noise, l2_clip, expected_batch_size, drift, key)


def sgld_drift(step_size: Any, num_data: int, log_prior: Any) -> optax.GradientTransformation:
    """The step of SGLD on noisy mean gradients: ``-eta (mean - grad(log prior) / N)``."""
    with_prior = prior_step(log_prior, num_data)

    def init(params: Any) -> SGLDState:
        del params
        return SGLDState(jnp.zeros((), jnp.int32))

    def update(mean: Any, state: SGLDState, params: Any = None) -> tuple[Any, SGLDState]:
        updates = scaled(with_prior(mean, params), -step_size(state.num_steps))
        return updates, SGLDState(state.num_steps + 1)

    return optax.GradientTransformation(init, update)
