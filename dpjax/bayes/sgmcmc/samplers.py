"""SGLD, SGHMC and preconditioned SGLD, private by the noise that they inject."""

import dataclasses
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_key, check, check_delta, check_positive, check_rate, check_type
from dpjax._typing import ArrayTree, ClipBound, PRNGKey, PyTree
from dpjax.bayes.sgmcmc.langevin import (
    POSTERIOR_TEMPERATURE,
    Langevin,
    LogPrior,
    Schedule,
    StepSize,
    langevin_transformation,
    sampler_update,
    scale_tree,
)
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.transforms import PrivateTransformation
from dpjax.transforms.noise import gaussian_like


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


class SGHMCState(NamedTuple):
    """State of SGHMC: number of steps done, int32, and velocity, a tree like the parameters."""

    num_steps: jax.Array
    velocity: PyTree


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
      step_size, temperature, num_examples, expected_batch_size, l2_clip: as of `sgld`.
      friction: alpha, in (0, 1].
      key, log_prior, min_noise_multiplier: as of `sgld`.

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

    def move(
        gradient: ArrayTree, eta: jax.Array | float, state: SGHMCState
    ) -> tuple[PyTree, SGHMCState]:
        force = scale_tree(gradient, -eta)
        velocity = jax.tree.map(jnp.add, scale_tree(state.velocity, 1 - friction), force)
        return velocity, state._replace(velocity=velocity)

    return sampler_update(init, move, step_size, num_examples, log_prior)


@dataclass(frozen=True, kw_only=True)
class RMSProp:
    """RMSprop preconditioner ``G = 1 / (damping + sqrt(v))``, clipped to a public range.

    v is the running mean of squares of the *noisy* mean gradients of earlier steps, so the noise of
    a step is independent of its preconditioner. Under strong privacy v is mostly the variance of
    the noise, and G is nearly constant.

    Attributes:
      min_value: lower bound on the entries of G, above zero.
      max_value: upper bound on the entries of G, from which the noise multiplier follows.
      decay: of the running mean, in (0, 1).
      damping: above zero.

    Raises:
      ValueError: a number out of range, or a ``max_value`` below ``min_value``.

    Source: Li, Chen, Carlson & Carin (2016), section 4, without the curvature term Gamma, as there:
    while G still changes the chain is biased.
    """

    min_value: float
    max_value: float
    decay: float = 0.99
    damping: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("min_value", "max_value", "damping"):
            check_positive(name, getattr(self, name))
        wanted = f"at least min_value = {self.min_value}"
        check(self.max_value >= self.min_value, "max_value", self.max_value, wanted)
        check_delta(self.decay, "decay")

    def __call__(self, squares: ArrayTree) -> PyTree:
        """Returns G, a tree like the running means of ``squares``."""
        return jax.tree.map(
            lambda v: jnp.clip(1 / (self.damping + jnp.sqrt(v)), self.min_value, self.max_value),
            squares,
        )

    def average(self, squares: ArrayTree, gradient: ArrayTree) -> PyTree:
        """Returns the running means of squares after one more ``gradient``.

        Args:
          squares: running means of squared gradients, a tree.
          gradient: a tree of the same structure.
        """
        return jax.tree.map(
            lambda v, g: self.decay * v + (1 - self.decay) * g * g, squares, gradient
        )


class PSGLDState(NamedTuple):
    """State of pSGLD: number of steps done, running means of squared gradients, and a key."""

    num_steps: jax.Array
    squares: PyTree
    key: jax.Array


@dataclass(frozen=True)
class PSGLD(Langevin):
    """Private preconditioned SGLD; other arguments as `Langevin`.

    ``theta <- theta - eta G g + N(0, 2 temperature eta G / N)`` with the noisy mean gradient g of
    `SGLD` and a diagonal G. The noise of the release is the same on every coordinate:
    that of the largest possible entry of G. Where G is smaller the sampler needs more noise, which
    is added after the release, independently of the data. ``excess_temperatures`` are those where
    G is largest; elsewhere they are lower.

    Attributes:
      preconditioner: an `RMSProp`, computed from released gradients.

    Privacy:
      Each step is a Gaussian release of the clipped sum with the noise multiplier
      ``tau sqrt(2 temperature / (eta G_max N)) / l2_clip``. Preconditioner and added noise are
      post-processing.

    Source: Li, Chen, Carlson & Carin (2016), Algorithm 1.

    >>> from dpjax.sampling import PoissonSampling
    >>> chain = PSGLD(PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.01, num_steps=100,
    ...               adjacency="add_remove", preconditioner=RMSProp(min_value=0.1, max_value=10.0))
    >>> chain.gaussian.noise_multiplier
    5.0
    """

    preconditioner: RMSProp = dataclasses.field(kw_only=True)
    name: ClassVar[str] = "preconditioned SGLD"

    def __post_init__(self) -> None:
        check_type("preconditioner", self.preconditioner, RMSProp, "an RMSProp")
        super().__post_init__()

    @property
    def noise_variance_factor(self) -> float:
        """Variance of the injected noise over SGLD's: one over the preconditioner's upper bound."""
        return 1 / self.preconditioner.max_value

    def optimizer(
        self, log_prior: LogPrior | None, *, key: PRNGKey
    ) -> optax.GradientTransformation:
        """Returns the update of preconditioned SGLD from noisy mean gradients."""
        clip_over_size = total_l2_clip(self.l2_clip) / self.sampling.expected_batch_size
        noises = jnp.asarray(self.noise_multipliers * clip_over_size, float)
        return psgld_update(
            self.schedule(),
            self.preconditioner,
            lambda step: noises[jnp.minimum(step, self.num_steps - 1)],
            self.temperature,
            self.sampling.num_examples,
            log_prior,
            as_key(key),
        )


def psgld(
    step_size: StepSize,
    *,
    temperature: float = POSTERIOR_TEMPERATURE,
    preconditioner: RMSProp,
    num_examples: int,
    expected_batch_size: float,
    l2_clip: ClipBound,
    key: PRNGKey,
    log_prior: LogPrior | None = None,
    min_noise_multiplier: float = 0.0,
) -> PrivateTransformation:
    """Preconditioned SGLD as an optax transformation of the clipped **sum**.

    Args:
      step_size, temperature, num_examples, expected_batch_size, l2_clip: as of `sgld`.
      preconditioner: an `RMSProp`.
      key, log_prior, min_noise_multiplier: as of `sgld`.

    Returns:
      As `sgld`.

    Privacy:
      One Gaussian release for each update; see `PSGLD`.

    Source: Li, Chen, Carlson & Carin (2016), Algorithm 1.

    >>> optimizer = psgld(0.01, preconditioner=RMSProp(min_value=0.1, max_value=10.0),
    ...                   num_examples=50_000, expected_batch_size=1_000, l2_clip=4.0,
    ...                   key=jax.random.key(0))
    >>> optimizer.description.noise_multiplier
    5.0
    """
    check_type("preconditioner", preconditioner, RMSProp, "an RMSProp")

    # One key for the noise of the release, one for what pSGLD adds to it.
    noise_key, update_key = jax.random.split(as_key(key))
    return langevin_transformation(
        lambda schedule, noise_std: psgld_update(
            schedule, preconditioner, noise_std, temperature, num_examples, log_prior, update_key
        ),
        step_size,
        noise_key,
        temperature=temperature,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        min_noise_multiplier=min_noise_multiplier,
        variance_factor=1 / preconditioner.max_value,
    )


def psgld_update(
    step_size: Schedule,
    preconditioner: RMSProp,
    noise_std: Schedule,
    temperature: float,
    num_examples: int,
    log_prior: LogPrior | None,
    key: PRNGKey,
) -> optax.GradientTransformation:
    """Returns the update of preconditioned SGLD from noisy mean gradients.

    ``noise_std(step)`` is the standard deviation of the noise in the mean gradients.
    """

    def init(params: ArrayTree) -> PSGLDState:
        return PSGLDState(jnp.zeros((), jnp.int32), jax.tree.map(jnp.zeros_like, params), key)

    def move(
        gradient: ArrayTree, eta: jax.Array | float, state: PSGLDState
    ) -> tuple[PyTree, PSGLDState]:
        # White noise, which each entry scales by its gain.
        noise = noise_std(state.num_steps)
        next_key, noise_key = jax.random.split(state.key)
        white = gaussian_like(noise_key, jax.tree.map(jnp.zeros_like, gradient), 1.0)

        def move_leaf(gain: jax.Array, gradient: jax.Array, white: jax.Array) -> jax.Array:
            # The variance that the noise of the release does not have where the gain is small.
            lacking = 2 * temperature * eta * gain / num_examples - (eta * noise * gain) ** 2
            added_std = jnp.sqrt(jnp.maximum(lacking, 0)).astype(gain.dtype)
            return added_std * white - jnp.asarray(eta, gradient.dtype) * gain * gradient

        # The preconditioner of a step is that of earlier releases alone.
        updates = jax.tree.map(move_leaf, preconditioner(state.squares), gradient, white)
        squares = preconditioner.average(state.squares, gradient)
        return updates, state._replace(squares=squares, key=next_key)

    return sampler_update(init, move, step_size, num_examples, log_prior)
