"""SGHMC: stochastic gradient Hamiltonian Monte Carlo, private through the velocity's noise."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._validation import check_rate
from dpjax.bayes.sgmcmc.description import TRUE_POSTERIOR, Langevin, prior_step, scaled
from dpjax.bayes.sgmcmc.schedules import StepSize, as_schedule
from dpjax.bayes.sgmcmc.transformation import noise_schedule, on_clipped_sum
from dpjax.transforms.description import PrivateTransformation


class SGHMCState(NamedTuple):
    """How many steps were made, int32, and the velocity, a tree like the parameters."""

    num_steps: jax.Array
    velocity: Any


@dataclass(frozen=True)
class SGHMC(Langevin):
    """Private stochastic gradient Hamiltonian Monte Carlo: see `Langevin` for the other arguments.

    ``v <- (1 - friction) v - eta (grad(-log prior) / N + S / tau)
    + N(0, 2 friction temperature eta / N)``, then ``theta <- theta + v``. The estimate of the
    gradient's own noise that the source subtracts (beta-hat) is zero here: it would have to be
    private as well, and less noise is less privacy.

    Attributes:
      friction: alpha, in (0, 1].

    Privacy:
      Every velocity, and so every state, is released: each is a Gaussian release of the clipped sum
      with the noise multiplier ``tau sqrt(2 friction temperature / (eta N)) / l2_clip``.

    Source: Chen, Fox, Guestrin (2014), equation 15.

    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGHMC(PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.01, num_steps=100,
    ...               adjacency="add_remove", friction=0.1)
    >>> chain.gaussian.noise_multiplier
    5.0
    """

    friction: float = dataclasses.field(kw_only=True)
    name: ClassVar[str] = "SGHMC"

    def __post_init__(self) -> None:
        check_rate("friction", self.friction)
        super().__post_init__()

    @property
    def noise_share(self) -> float:
        """The friction."""
        return self.friction

    def drift(self, log_prior: Any, key: jax.Array) -> optax.GradientTransformation:
        """The step that follows the release; needs no key. See `Langevin.drift`."""
        del key
        schedule, num_data = self.schedule(), self.sampling.num_examples
        return sghmc_drift(schedule, self.friction, num_data, log_prior)


def sghmc(
    step_size: StepSize,
    temperature: float = TRUE_POSTERIOR,
    *,
    friction: float,
    num_data: int,
    expected_batch_size: float,
    l2_clip: Any,
    key: jax.Array,
    log_prior: Any = None,
    at_least: float = 0.0,
) -> PrivateTransformation:
    """SGHMC as an optax transformation of the clipped **sum** of gradients of ``-log likelihood``.

    Args:
      step_size: eta, a number or a function of the step's number.
      temperature: 1 samples the posterior.
      friction: alpha, in (0, 1].
      num_data: N, the number of records.
      expected_batch_size: tau, the public constant that the noisy sum is divided by.
      l2_clip: what each example's gradient was clipped to.
      key: a JAX key for the noise.
      log_prior: ``log_prior(params) -> scalar``; ``None`` for a flat prior. Never clipped.
      at_least: a noise multiplier below which the noise does not fall.

    Returns:
      As `sgld`; the velocity is part of the state.

    Privacy:
      One Gaussian release for each update; the rest is post-processing.

    Source: Chen, Fox, Guestrin (2014), equation 15.

    >>> optimizer = sghmc(0.01, friction=0.1, num_data=50_000, expected_batch_size=1_000,
    ...                   l2_clip=4.0, key=jax.random.key(0))
    >>> optimizer.description.noise_multiplier
    5.0
    """
    check_rate("friction", friction)
    noise = noise_schedule(
        step_size,
        at_least,
        temperature=temperature,
        num_data=num_data,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        share=friction,
    )
    drift = sghmc_drift(as_schedule(step_size), friction, num_data, log_prior)
    return on_clipped_sum(noise, l2_clip, expected_batch_size, drift, key)


def sghmc_drift(
    step_size: Any, friction: float, num_data: int, log_prior: Any
) -> optax.GradientTransformation:
    """The step of SGHMC on noisy mean gradients: the new velocity."""
    with_prior = prior_step(log_prior, num_data)

    def init(params: Any) -> SGHMCState:
        return SGHMCState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def update(mean: Any, state: SGHMCState, params: Any = None) -> tuple[Any, SGHMCState]:
        force = scaled(with_prior(mean, params), -step_size(state.num_steps))
        slowed = scaled(state.velocity, 1 - friction)
        velocity = jax.tree.map(jnp.add, slowed, force)
        return velocity, SGHMCState(state.num_steps + 1, velocity)

    return optax.GradientTransformation(init, update)
