"""SGHMC (stochastic gradient Hamiltonian Monte Carlo), private by its injected noise."""

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_key, check_rate
from dpjax._typing import ArrayTree, ClipBound, PRNGKey
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


class SGHMCState(NamedTuple):
    """State of SGHMC: number of steps done, int32, and velocity, a tree like the parameters."""

    num_steps: jax.Array
    velocity: Any


@dataclass(frozen=True)
class SGHMC(Langevin):
    """Private stochastic gradient Hamiltonian Monte Carlo; other arguments as `Langevin`.

    ``v <- (1 - friction) v - eta (grad(-log prior) / N + S / tau)
    + N(0, 2 friction temperature eta / N)``, then ``theta <- theta + v``. The estimate of the
    gradient noise that the source subtracts (beta-hat) is zero here: it would have to be released
    privately as well, and less injected noise is less privacy.

    Attributes:
      friction: alpha, in (0, 1].

    Raises:
      ValueError: a number out of range.

    Privacy:
      Every velocity, and so every state, is released: each is a Gaussian release of the clipped sum
      with the noise multiplier ``tau sqrt(2 friction temperature / (eta N)) / l2_clip``.

    Source: Chen, Fox & Guestrin (2014), equation 15.

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
    def noise_variance_factor(self) -> float:
        """Variance of the injected noise over SGLD's: the friction."""
        return self.friction

    def optimizer(
        self, log_prior: LogPrior | None, *, key: PRNGKey
    ) -> optax.GradientTransformation:
        """Returns the SGHMC update of noisy mean gradients, which needs no key."""
        as_key(key)
        schedule, num_examples = self.schedule(), self.sampling.num_examples
        return sghmc_update(schedule, self.friction, num_examples, log_prior)


def sghmc(
    step_size: StepSize,
    *,
    temperature: float = POSTERIOR_TEMPERATURE,
    friction: float,
    num_examples: int,
    expected_batch_size: float,
    l2_clip: ClipBound,
    key: PRNGKey,
    log_prior: LogPrior | None = None,
    min_noise_multiplier: float = 0.0,
) -> PrivateTransformation:
    """SGHMC as an optax transformation of the clipped **sum** of gradients of ``-log likelihood``.

    Args:
      step_size: eta, a number or a function of the step's number.
      temperature: 1 samples the posterior.
      friction: alpha, in (0, 1].
      num_examples: N.
      expected_batch_size: tau, the public constant that the noisy sum is divided by.
      l2_clip: what each example's gradient was clipped to.
      key: a JAX key for the noise.
      log_prior: ``log_prior(params) -> scalar``; ``None`` for a flat prior. Never clipped.
      min_noise_multiplier: lower bound on the noise multiplier.

    Returns:
      As `sgld`; the velocity is part of the state.

    Privacy:
      One Gaussian release for each update; the rest is post-processing.

    Source: Chen, Fox & Guestrin (2014), equation 15.

    >>> optimizer = sghmc(0.01, friction=0.1, num_examples=50_000, expected_batch_size=1_000,
    ...                   l2_clip=4.0, key=jax.random.key(0))
    >>> optimizer.description.noise_multiplier
    5.0
    """
    check_rate("friction", friction)
    return langevin_transformation(
        lambda schedule, _: sghmc_update(schedule, friction, num_examples, log_prior),
        step_size,
        key,
        temperature=temperature,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        min_noise_multiplier=min_noise_multiplier,
        variance_factor=friction,
    )


def sghmc_update(
    step_size: Schedule, friction: float, num_examples: int, log_prior: LogPrior | None
) -> optax.GradientTransformation:
    """Returns the SGHMC update of noisy mean gradients: the new velocity."""

    def init(params: ArrayTree) -> SGHMCState:
        return SGHMCState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params))

    def move(gradient: ArrayTree, eta: jax.Array, state: SGHMCState) -> tuple[Any, SGHMCState]:
        force = scale_tree(gradient, -eta)
        velocity = jax.tree.map(jnp.add, scale_tree(state.velocity, 1 - friction), force)
        return velocity, state._replace(velocity=velocity)

    return sampler_update(init, move, step_size, num_examples, log_prior)
