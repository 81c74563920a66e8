"""SGLD (stochastic gradient Langevin dynamics), private by the noise that it injects."""

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_key
from dpjax._typing import ClipBound, PRNGKey
from dpjax.bayes.sgmcmc.langevin import (
    POSTERIOR_TEMPERATURE,
    Langevin,
    LogPrior,
    langevin_transformation,
    sampler_update,
    scale_tree,
)
from dpjax.bayes.sgmcmc.schedules import Schedule, StepSize
from dpjax.transforms import PrivateTransformation


class SGLDState(NamedTuple):
    """State of SGLD: the number of steps done, int32."""

    num_steps: jax.Array


@dataclass(frozen=True)
class SGLD(Langevin):
    """Private stochastic gradient Langevin dynamics; arguments as `Langevin`.

    ``theta <- theta - eta (grad(-log prior) / N + S / tau) + N(0, 2 temperature eta / N)``.

    Privacy:
      Every state of ``num_steps`` steps is released: each is a Gaussian release of the clipped sum
      S with the noise multiplier ``tau sqrt(2 temperature / (eta N)) / l2_clip``.

    Source: Welling & Teh (2011); Wang, Fienberg & Smola (2015).

    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.1, num_steps=10_000,
    ...              adjacency="add_remove")
    >>> chain.gaussian.noise_multiplier, round(chain.certificate(1e-5).epsilon, 2)
    (5.0, 1.58)
    """

    name: ClassVar[str] = "SGLD"
    noise_variance_factor: ClassVar[float] = 1.0

    def optimizer(
        self, log_prior: LogPrior | None, *, key: PRNGKey
    ) -> optax.GradientTransformation:
        """Returns the SGLD update of noisy mean gradients, which needs no key."""
        as_key(key)
        return sgld_update(self.schedule(), self.sampling.num_examples, log_prior)


def sgld(
    step_size: StepSize,
    *,
    temperature: float = POSTERIOR_TEMPERATURE,
    num_examples: int,
    expected_batch_size: float,
    l2_clip: ClipBound,
    key: PRNGKey,
    log_prior: LogPrior | None = None,
    min_noise_multiplier: float = 0.0,
) -> PrivateTransformation:
    """SGLD as an optax transformation of the clipped **sum** of gradients of ``-log likelihood``.

    Args:
      step_size: eta, a number or a function of the step's number.
      temperature: 1 samples the posterior, 1/2 gives the published noise variance ``eta / N``.
      num_examples: N.
      expected_batch_size: tau, the public constant that the noisy sum is divided by.
      l2_clip: what each example's gradient was clipped to (by `clipped_grad` or
        `clip_per_example`).
      key: a JAX key for the noise.
      log_prior: ``log_prior(params) -> scalar``; ``None`` for a flat prior. Never clipped.
      min_noise_multiplier: lower bound on the noise multiplier.

    Returns:
      An optax transformation on trees shaped like the parameters, which `mechanism_of` reads. Past
      the steps that a mechanism describes it continues: use `SGLD` for a chain that stops.

    Privacy:
      One Gaussian release for each update; the rest is post-processing.

    Source: Welling & Teh (2011).

    >>> optimizer = sgld(0.1, num_examples=50_000, expected_batch_size=1_000, l2_clip=4.0,
    ...                  key=jax.random.key(0))
    >>> optimizer.description.noise_multiplier
    5.0
    """
    return langevin_transformation(
        lambda schedule, _: sgld_update(schedule, num_examples, log_prior),
        step_size,
        key,
        temperature=temperature,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        min_noise_multiplier=min_noise_multiplier,
    )


def sgld_update(
    step_size: Schedule, num_examples: int, log_prior: LogPrior | None
) -> optax.GradientTransformation:
    """Returns the SGLD update ``-eta (mean - grad(log prior) / N)`` of noisy mean gradients."""
    return sampler_update(
        lambda _: SGLDState(jnp.zeros((), jnp.int32)),
        lambda gradient, eta, state: (scale_tree(gradient, -eta), state),
        step_size,
        num_examples,
        log_prior,
    )
