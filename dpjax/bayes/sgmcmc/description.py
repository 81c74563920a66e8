"""One description of a private Langevin chain: its noise is the mechanism's noise.

A step moves the parameters by ``-eta (grad(-log prior) / N + S / tau)`` and adds Gaussian noise,
where S is the sum of the clipped per-example gradients of ``-log likelihood`` over a batch of
expected size tau. Adding the noise to S instead, divided by ``eta / tau``, is the same step. So it
is a Gaussian release of S, whose noise multiplier follows from step size and temperature, and then
arithmetic: the noise that a sampler adds for its own sake is what an accountant counts.
"""

import abc
import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import optax
from dp_accounting import DpEvent

from dpjax._validation import check_choice, check_count, check_non_negative, check_positive
from dpjax.accounting.adjacency import Adjacency
from dpjax.bayes.sgmcmc.schedules import Floats, StepSize, as_schedule, each_step_size
from dpjax.gradients.clipping import total_l2_clip
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import Sampling, repeated

# Langevin dynamics of step h on a potential U is ``theta - h grad U + N(0, 2 h)``, and here
# h = eta / N. Published with noise of variance eta / N it samples the posterior *squared*.
TRUE_POSTERIOR = 1.0
PRINTED_TEMPERATURE = 0.5

Batches = Literal["own", "shared"]


def own_noise_multiplier(
    step_size: Any,
    *,
    temperature: float,
    num_data: int,
    expected_batch_size: float,
    l2_clip: Any,
    share: float = 1.0,
) -> Any:
    """Returns the noise multiplier, on the clipped sum, of the noise that a chain adds by itself.

    It is ``tau * sqrt(2 * temperature * share / (step_size * N)) / l2_clip``: divided by tau and
    multiplied by the step size this noise has the variance ``2 temperature share step_size / N``.

    Args:
      step_size: eta, a number or an array.
      temperature: 1 samples the posterior; 1/2 is the noise ``eta / N`` of the sources.
      num_data: N.
      expected_batch_size: tau.
      l2_clip: bound (or per-layer bounds) of one example's gradient.
      share: 1 for SGLD, the friction for SGHMC, one over the largest preconditioner for pSGLD.

    >>> own_noise_multiplier(0.1, temperature=1.0, num_data=50_000, expected_batch_size=1_000,
    ...                      l2_clip=4.0)
    5.0
    """
    ratio = 2 * temperature * share / (step_size * num_data)
    return expected_batch_size * ratio**0.5 / total_l2_clip(l2_clip)


@dataclass(frozen=True)
class Langevin(Mechanism):
    """What `SGLD`, `SGHMC` and `PSGLD` share: sampling, clipping, steps, temperature and noise.

    Every state of every chain is released, burn-in included. Only ``num_chains`` and ``batches``
    tell several chains from one: ``"own"`` batches compose the chain's event ``num_chains`` times,
    ``"shared"`` batches make it one release of all the chains' sums together, whose noise
    multiplier is smaller by the square root of their number.

    Attributes:
      sampling: how a step's batch is drawn; says N and the expected batch size tau.
      l2_clip: bound on one example's gradient of ``-log likelihood`` in L2, or per-layer bounds.
      step_size: eta: a number, a schedule (`Decreasing`, `Cyclical`, any function of the step's
        number) or one number for each step.
      num_steps: steps of each chain.
      adjacency: ``"add_remove"`` or ``"replace_one"``; there is no default.
      temperature: T_emp: 1 (the default) samples the posterior, and ``PRINTED_TEMPERATURE`` = 1/2
        its square: what the sources print.
      at_least: a noise multiplier below which no step's noise falls, whatever the chain needs.
      num_chains: how many chains are run.
      batches: ``"own"`` or ``"shared"``.
      unit: the unit of privacy, in words.

    Raises:
      ValueError: for numbers out of range.
    """

    sampling: Sampling
    l2_clip: Any
    step_size: StepSize
    num_steps: int
    adjacency: Adjacency
    temperature: float = TRUE_POSTERIOR
    at_least: float = 0.0
    num_chains: int = 1
    batches: Batches = "own"
    unit: str = "one record"

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_count("num_steps", self.num_steps)
        check_positive("temperature", self.temperature)
        check_non_negative("at_least", self.at_least)
        check_count("num_chains", self.num_chains)
        check_choice("batches", self.batches, ("own", "shared"))
        check_positive("l2_clip", total_l2_clip(self.l2_clip))
        self.sampling.check_adjacency(self.adjacency)
        _ = self.step_sizes  # refuses what is no step size

    @property
    @abc.abstractmethod
    def noise_share(self) -> float:
        """``share`` of `own_noise_multiplier`."""

    @abc.abstractmethod
    def drift(self, log_prior: Any, key: jax.Array) -> optax.GradientTransformation:
        """The step that follows the release, as an optimiser of noisy mean gradients.

        Args:
          log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior. Free of data:
            its gradient is neither clipped nor counted.
          key: for noise that is added after the release, where the sampler needs any.
        """

    @cached_property
    def step_sizes(self) -> Floats:
        """The size of each step, ``(num_steps,)``."""
        return each_step_size(self.step_size, self.num_steps)

    @cached_property
    def own_noise_multipliers(self) -> Floats:
        """The noise that the sampler injects for its own sake, ``(num_steps,)``."""
        return np.asarray(
            own_noise_multiplier(
                self.step_sizes,
                temperature=self.temperature,
                num_data=self.sampling.num_examples,
                expected_batch_size=self.sampling.expected_batch_size,
                l2_clip=self.l2_clip,
                share=self.noise_share,
            )
        )

    @property
    def noise_multipliers(self) -> Floats:
        """The noise that is used, ``(num_steps,)``: the chain's own, or ``at_least`` if larger."""
        return np.maximum(self.own_noise_multipliers, self.at_least)

    @property
    def extra_noise_multipliers(self) -> Floats:
        """The independent noise on top of the chain's own, ``(num_steps,)``; zero where enough."""
        return np.sqrt(self.noise_multipliers**2 - self.own_noise_multipliers**2)

    @property
    def excess_temperatures(self) -> Floats:
        """How far the extra noise raises the temperature of each step, ``(num_steps,)``."""
        ratio = self.noise_multipliers / self.own_noise_multipliers
        return self.temperature * (ratio**2 - 1)

    @property
    def gaussian(self) -> SubsampledGaussian:
        """One chain's mechanism: what `private_step` and `train` run, with `drift` as optimiser."""
        noises = self.noise_multipliers
        one = float(noises[0])
        noise = one if (noises == one).all() else tuple(noises.tolist())
        return SubsampledGaussian(
            self.sampling, self.l2_clip, noise, self.num_steps, self.adjacency, self.unit
        )

    @property
    def num_releases(self) -> int:
        """One noisy sum for each step of each chain."""
        return self.num_steps * self.num_chains

    @property
    def event(self) -> DpEvent:
        """The event of all steps of all chains."""
        if self.batches == "shared":
            return self.gaussian.scale_noise(self.num_chains**-0.5).event
        return repeated(self.gaussian.event, self.num_chains)

    def scale_noise(self, factor: float) -> Self:
        """The same chain with every noise multiplier times ``factor``, by smaller steps.

        Steps are divided by ``factor`` squared, at the same temperature. So `dpjax.calibrate`
        returns the largest steps for which the chain's own noise is enough.
        """
        sizes = (self.step_sizes / factor**2).tolist()
        smaller = sizes[0] if self._is_constant else tuple(sizes)
        return dataclasses.replace(self, step_size=smaller, at_least=self.at_least * factor)

    def schedule(self) -> Any:
        """Returns the step size as a function of the (traced) step number."""
        sizes = tuple(self.step_sizes.tolist())
        return as_schedule(sizes[0] if self._is_constant else sizes)

    def describe(self) -> Mapping[str, str]:
        """Sampler, sampling, clipping, noise and chains in words."""
        low, high = self.step_sizes.min(), self.step_sizes.max()
        steps = f"{low:.4g}" + (f" to {high:.4g}" if high > low else "")
        return {
            "sampler": f"{self.name}, step size {steps}, temperature {self.temperature:g}",
            **self.gaussian.describe(),
            "sampler's own noise": self._own_noise_in_words(),
            "chains": self._chains_in_words(),
        }

    @property
    def _is_constant(self) -> bool:
        return not callable(self.step_size) and not isinstance(self.step_size, tuple)

    def _own_noise_in_words(self) -> str:
        raised = self.excess_temperatures > 0
        if not raised.any():
            return "all of the noise; none was added for privacy"
        return (
            f"noise was added for privacy in {int(raised.sum()):,} of {self.num_steps:,} steps, up"
            f" to temperature {self.temperature + self.excess_temperatures.max():.4g}"
        )

    def _chains_in_words(self) -> str:
        released = "every state is released, burn-in included"
        if self.num_chains == 1:
            return f"one; {released}"
        drawn = "batches of their own" if self.batches == "own" else "one batch for all"
        return f"{self.num_chains}, with {drawn} in each step; {released}"


def prior_step(log_prior: Any, num_data: int) -> Any:
    """Returns ``f(mean_gradient, params)``, which adds the gradient of ``-log prior / N``."""
    if log_prior is None:
        return lambda gradient, params: gradient

    def add(gradient: Any, params: Any) -> Any:
        if params is None:
            raise ValueError("params must be given to update: the prior's gradient is taken there")
        prior = jax.grad(log_prior)(params)
        return jax.tree.map(lambda g, p: g - (p / num_data).astype(g.dtype), gradient, prior)

    return add


def scaled(tree: Any, factor: Any) -> Any:
    """Returns ``factor * tree``, in the tree's own dtypes."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)
