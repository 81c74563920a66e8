"""SG-MCMC as a Gaussian mechanism on clipped gradient sums: the part that all samplers share.

A step moves the parameters by ``-eta (grad(-log prior) / N + S / tau)`` and adds Gaussian noise,
where S is the sum of the clipped per-example gradients of ``-log likelihood`` over a batch of
expected size tau. This is the same as noise on S, multiplied by ``eta / tau``. So a step is a
Gaussian release of S, whose noise multiplier follows from step size and temperature: the noise that
the sampler injects is the noise of the mechanism.
"""

import abc
import dataclasses
import functools
import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax

from dpjax._checks import (
    as_count,
    as_finite,
    as_key,
    check,
    check_choice,
    check_count,
    check_function,
    check_non_negative,
    check_positive,
    check_share,
    check_text,
    check_type,
    is_traced,
)
from dpjax._typing import ArrayTree, ClipBound, Numeric, Params, PRNGKey, PyTree
from dpjax.adjacency import Adjacency
from dpjax.gradients.clip_bound import check_clip_numbers, total_l2_clip
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.base import Sampling, repeated
from dpjax.transforms import PrivateTransformation
from dpjax.transforms.chains import step_on_sum
from dpjax.transforms.noise import add_gaussian_noise

Floats = npt.NDArray[np.float64]
# A function of the step number 0, 1, ..., which may be traced.
Schedule = Callable[[jax.Array], jax.Array | float]
# A number, one number for each step, or a schedule.
StepSize = float | tuple[float, ...] | Schedule


@dataclass(frozen=True)
class PolynomialDecay:
    """Polynomially decreasing step sizes ``initial * t ** -exponent``, t = 1, 2, ...

    Attributes:
      initial: size of the first step.
      exponent: in [0, 1]; 1/3 has the best rate of convergence of the posterior mean.

    Raises:
      ValueError: a number out of range.

    Source: Teh, Thiery & Vollmer (2016), for the exponent 1/3.

    >>> schedule = PolynomialDecay(0.1)
    >>> round(float(schedule(0)), 3), round(float(schedule(7)), 3)
    (0.1, 0.05)
    """

    initial: float
    _: KW_ONLY
    exponent: float = 1 / 3

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_share("exponent", self.exponent)

    def __call__(self, step: Numeric) -> jax.Array:
        """Returns the size of step number ``step`` = 0, 1, ..., which may be traced."""
        return self.initial * (jnp.asarray(step, float) + 1) ** -self.exponent


@dataclass(frozen=True)
class CyclicalCosine:
    """Cyclical cosine step sizes: each cycle decreases from ``initial`` along half a cosine.

    Attributes:
      initial: size of the first step of each cycle.
      period: number of steps of a cycle.

    Raises:
      ValueError: a number out of range.

    Source: Zhang, Li, Zhang, Chen & Wilson (2020), equation 1.

    >>> schedule = CyclicalCosine(0.1, period=4)
    >>> [round(float(schedule(step)), 3) for step in range(5)]
    [0.1, 0.085, 0.05, 0.015, 0.1]
    """

    initial: float
    _: KW_ONLY
    period: int

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_count("period", self.period)

    def __call__(self, step: Numeric) -> jax.Array:
        """Returns the size of step number ``step`` = 0, 1, ..., which may be traced."""
        phase = jnp.asarray(jnp.asarray(step) % self.period, float) / self.period
        return self.initial * (jnp.cos(math.pi * phase) + 1) / 2


def evaluate_step_sizes(step_size: StepSize, num_steps: int) -> Floats:
    """Returns the step sizes ``(num_steps,)``, in float64.

    Raises:
      ValueError: a size that is not a finite number above zero, or a tuple of another length.
    """
    if callable(step_size):
        with jax.ensure_compile_time_eval():  # concrete numbers, also when called under jit
            steps = jnp.arange(num_steps, dtype=jnp.int32)
            traced = jax.vmap(lambda step: jnp.asarray(step_size(step), float))(steps)
            sizes = np.asarray(traced, np.float64)
    elif isinstance(step_size, tuple):
        wanted = f"a number, a schedule, or a tuple of num_steps = {num_steps} numbers"
        check(len(step_size) == num_steps, "step_size", f"{len(step_size)} values", wanted)
        sizes = np.asarray(step_size, np.float64)
    else:
        check_positive("step_size", step_size)
        sizes = np.full(num_steps, step_size, np.float64)

    # NaN is the smallest and the largest size where there is one.
    for size in (sizes.min(), sizes.max()):
        check_positive("step_size", float(size))
    return sizes


def as_schedule(step_size: StepSize) -> Schedule:
    """Returns a function of the (traced) step number: of a tuple, its entry."""
    if callable(step_size):
        return step_size
    sizes = jnp.asarray(step_size, float)
    return lambda step: sizes[jnp.minimum(step, sizes.size - 1)] if sizes.ndim else sizes


# Langevin dynamics of step h on a potential U is ``theta - h grad U + N(0, 2 h)``, and here
# h = eta / N. With the published noise variance eta / N it samples the posterior *squared*.
POSTERIOR_TEMPERATURE = 1.0
PUBLISHED_TEMPERATURE = 0.5

Batches = Literal["own", "shared"]
LogPrior = Callable[[Any], jax.Array]


def _check_all_positive(name: str, value: Numeric) -> None:
    if not is_traced(value):
        as_finite(value, name, "finite numbers > 0", lambda numbers: numbers > 0)


def injected_noise_multiplier(
    step_size: Numeric,
    *,
    temperature: Numeric,
    num_examples: int,
    expected_batch_size: float,
    l2_clip: ClipBound,
    variance_factor: float = 1.0,
) -> Numeric:
    """Returns the noise multiplier, on the clipped sum, of the noise that the sampler injects.

    It is ``tau * sqrt(2 * temperature * variance_factor / (step_size * N)) / l2_clip``: divided by
    tau and multiplied by the step size, this noise has the variance
    ``2 temperature variance_factor step_size / N``.

    Args:
      step_size: eta, a number or an array.
      temperature: 1 samples the posterior; 1/2 gives the published noise variance ``eta / N``.
      num_examples: N.
      expected_batch_size: tau.
      l2_clip: bound (or per-layer bounds) of one example's gradient.
      variance_factor: 1 for SGLD, the friction for SGHMC, one over the largest preconditioner
        entry for pSGLD.

    Returns:
      Noise multipliers, shaped like ``step_size``.

    >>> injected_noise_multiplier(0.1, temperature=1.0, num_examples=50_000,
    ...                           expected_batch_size=1_000, l2_clip=4.0)
    5.0
    """
    _check_all_positive("step_size", step_size)
    _check_all_positive("temperature", temperature)
    check_count("num_examples", num_examples)
    check_positive("expected_batch_size", expected_batch_size)
    check_positive("variance_factor", variance_factor)
    ratio = 2 * temperature * variance_factor / (step_size * num_examples)
    return expected_batch_size * ratio**0.5 / total_l2_clip(l2_clip)


@dataclass(frozen=True)
class Langevin(Mechanism):
    """Base class of the SG-MCMC mechanisms `SGLD`, `SGHMC` and `PSGLD`.

    Every state of every chain is released, burn-in included. Chains with their ``"own"`` batches
    compose the event of one chain ``num_chains`` times. With ``"shared"`` batches a step is one
    release of all the chains' sums together, whose noise multiplier is smaller by the square root
    of their number.

    Attributes:
      sampling: how a step's batch is drawn, with N and the expected batch size tau.
      l2_clip: bound on one example's gradient of ``-log likelihood`` in L2, or per-layer bounds.
      step_size: eta: a number, a schedule (`PolynomialDecay`, `CyclicalCosine`, any function of the
        step's number) or one number for each step.
      num_steps: steps of each chain.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      temperature: 1 (the default) samples the posterior, and ``PUBLISHED_TEMPERATURE`` = 1/2 its
        square, as published.
      min_noise_multiplier: lower bound on every step's noise multiplier.
      num_chains: number of chains.
      batches: ``"own"``, drawn for each chain, or ``"shared"`` by all.
      unit: the unit of privacy, in words.

    Raises:
      ValueError: a number, a step size or a choice out of range.
    """

    sampling: Sampling
    _: KW_ONLY
    l2_clip: ClipBound
    step_size: StepSize
    num_steps: int
    adjacency: Adjacency
    temperature: float = POSTERIOR_TEMPERATURE
    min_noise_multiplier: float = 0.0
    num_chains: int = 1
    batches: Batches = "own"
    unit: str = "one record"

    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_type("sampling", self.sampling, Sampling, "a sampler such as PoissonSampling")
        check_text("unit", self.unit)
        object.__setattr__(self, "num_steps", as_count("num_steps", self.num_steps))
        check_positive("temperature", self.temperature)
        check_non_negative("min_noise_multiplier", self.min_noise_multiplier)
        check_count("num_chains", self.num_chains)
        check_choice("batches", self.batches, ("own", "shared"))
        check_positive("l2_clip", total_l2_clip(self.l2_clip))
        check_clip_numbers(self.l2_clip, "SG-MCMC")
        self.sampling.check_adjacency(self.adjacency)
        _ = self.step_sizes  # checks them

    @property
    @abc.abstractmethod
    def noise_variance_factor(self) -> float:
        """The ``variance_factor`` of `injected_noise_multiplier`."""

    @abc.abstractmethod
    def optimizer(
        self, log_prior: LogPrior | None, *, key: PRNGKey
    ) -> optax.GradientTransformation:
        """Returns the sampler's update from noisy mean gradients, as an optax optimiser.

        Args:
          log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior. It does not
            depend on the data, so its gradient is neither clipped nor counted.
          key: for noise added after the release, which only pSGLD needs.
        """

    @cached_property
    def step_sizes(self) -> Floats:
        """Step sizes, ``(num_steps,)``."""
        return evaluate_step_sizes(self.step_size, self.num_steps)

    @cached_property
    def injected_noise_multipliers(self) -> Floats:
        """Noise multipliers of the noise that the sampler injects, ``(num_steps,)``."""
        injected = injected_noise_multiplier(
            self.step_sizes,
            temperature=self.temperature,
            num_examples=self.sampling.num_examples,
            expected_batch_size=self.sampling.expected_batch_size,
            l2_clip=self.l2_clip,
            variance_factor=self.noise_variance_factor,
        )
        return np.asarray(injected)

    @property
    def noise_multipliers(self) -> Floats:
        """Noise multipliers used, ``(num_steps,)``: at least ``min_noise_multiplier``."""
        return np.maximum(self.injected_noise_multipliers, self.min_noise_multiplier)

    @property
    def excess_temperatures(self) -> Floats:
        """Increase of each step's temperature by the extra noise, ``(num_steps,)``."""
        ratio = self.noise_multipliers / self.injected_noise_multipliers
        return self.temperature * (ratio**2 - 1)

    @property
    def gaussian(self) -> SubsampledGaussian:
        """The subsampled Gaussian mechanism of one chain, for `private_step` and `train`."""
        noises = self.noise_multipliers
        first = float(noises[0])
        noise = first if (noises == first).all() else tuple(noises.tolist())
        return SubsampledGaussian(
            self.sampling,
            l2_clip=self.l2_clip,
            noise_multiplier=noise,
            num_steps=self.num_steps,
            adjacency=self.adjacency,
            unit=self.unit,
            size_scaled=True,
        )

    @cached_property
    def guarantee(self) -> Guarantee:
        # Shared batches: one release a step, of all the chains' sums.
        if self.batches == "shared":
            event = self.gaussian.with_privacy_factor(self.num_chains**-0.5).event
        else:
            event = repeated(self.gaussian.event, self.num_chains)

        low, high = self.step_sizes.min(), self.step_sizes.max()
        steps = f"{low:.4g}" + (f" to {high:.4g}" if high > low else "")
        noise, raised = "all of the noise; none was added for privacy", self.excess_temperatures
        if raised.any():
            noise = (
                f"more noise was added for privacy in {np.count_nonzero(raised):,} of"
                f" {self.num_steps:,} steps, up to temperature"
                f" {self.temperature + raised.max():.4g}"
            )
        drawn = "a batch for each" if self.batches == "own" else "one batch for all"
        chains = f"{self.num_chains}, with {drawn} in each step" if self.num_chains > 1 else "one"
        scale = "the scale num_examples of the log-likelihood and the noise multiplier"
        return Guarantee(
            event=event,
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=self.num_steps * self.num_chains,
            description={
                "sampler": f"{self.name}, step size {steps}, temperature {self.temperature:g}",
                **self.gaussian.guarantee.description,
                "injected noise": noise,
                "chains": f"{chains}; every state is released, burn-in included",
            },
            size_constants=(*self.sampling.size_constants, scale),
            num_examples=self.sampling.num_examples,
        )

    def first_steps(self, num_steps: int) -> Self:
        """Returns the chain of the first ``num_steps`` steps, at most those planned."""
        num_steps = as_count("num_steps", num_steps)
        check(num_steps <= self.num_steps, "num_steps", num_steps, f"at most {self.num_steps}")
        sizes = self._with_sizes(self.step_sizes[:num_steps])
        return dataclasses.replace(self, num_steps=num_steps, step_size=sizes)

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the chain with every noise multiplier times ``factor``, by smaller steps.

        Step sizes are divided by ``factor`` squared, at the same temperature. So `dpjax.calibrate`
        returns the largest step sizes for which the injected noise suffices.
        """
        check_positive("factor", factor)
        smaller = self._with_sizes(self.step_sizes / factor**2)
        least = self.min_noise_multiplier * factor
        return dataclasses.replace(self, step_size=smaller, min_noise_multiplier=least)

    def schedule(self) -> Schedule:
        """Returns the step size as a function of the (traced) step number."""
        return as_schedule(self._with_sizes(self.step_sizes))

    def _with_sizes(self, sizes: Floats) -> float | tuple[float, ...]:
        """The step sizes as a number, where the chain's is one, else as a tuple."""
        several = callable(self.step_size) or isinstance(self.step_size, tuple)
        return tuple(sizes.tolist()) if several else float(sizes[0])


class _Counted(Protocol):
    """A named tuple that counts steps."""

    @property
    def num_steps(self) -> jax.Array: ...

    def _replace(self, *, num_steps: jax.Array) -> Self: ...


_CountedT = TypeVar("_CountedT", bound=_Counted)


def sampler_update(
    init: Callable[[ArrayTree], _CountedT],
    move: Callable[[ArrayTree, jax.Array | float, _CountedT], tuple[PyTree, _CountedT]],
    step_size: Schedule,
    num_examples: int,
    log_prior: LogPrior | None,
) -> optax.GradientTransformation:
    """Returns a sampler's update from noisy mean gradients of ``-log likelihood``.

    ``move(gradient, step size, state) -> (updates, state)`` is given the mean gradient plus that of
    ``-log prior / N``; the states of ``init`` count the steps in ``num_steps``.
    """
    if log_prior is not None:
        check_function("log_prior", log_prior, "params")

    def update(
        gradient: ArrayTree, state: _CountedT, params: Params | None = None
    ) -> tuple[PyTree, _CountedT]:
        # The gradient of -log prior / N, which is not clipped.
        if log_prior is not None:
            if params is None:
                raise ValueError("params must be given to update: the prior's gradient needs them")
            prior = jax.grad(log_prior)(params)
            gradient = jax.tree.map(
                lambda g, p: g - (p / num_examples).astype(g.dtype), gradient, prior
            )

        # The sampler's step.
        updates, next_state = move(gradient, step_size(state.num_steps), state)
        return updates, next_state._replace(num_steps=state.num_steps + 1)

    return optax.GradientTransformation(init, update)


def scale_tree(tree: ArrayTree, factor: Numeric) -> PyTree:
    """Returns ``factor * tree`` with unchanged dtypes."""
    return jax.tree.map(lambda leaf: jnp.asarray(factor, leaf.dtype) * leaf, tree)


def langevin_transformation(
    make_update: Callable[[Schedule, Schedule], optax.GradientTransformation],
    step_size: StepSize,
    key: PRNGKey,
    *,
    temperature: float,
    num_examples: int,
    expected_batch_size: float,
    l2_clip: ClipBound,
    min_noise_multiplier: float,
    variance_factor: float = 1.0,
) -> PrivateTransformation:
    """Returns noise, division by the expected batch size and the sampler's update.

    ``make_update`` returns the update, from the step size and the standard deviation of the noise
    in the mean gradients as functions of the step number.
    """
    check_non_negative("min_noise_multiplier", min_noise_multiplier)
    check_positive("temperature", temperature)
    check_count("num_examples", num_examples)
    check_positive("expected_batch_size", expected_batch_size)
    check_clip_numbers(l2_clip, "SG-MCMC")
    injected = functools.partial(
        injected_noise_multiplier,
        temperature=temperature,
        num_examples=num_examples,
        expected_batch_size=expected_batch_size,
        l2_clip=l2_clip,
        variance_factor=variance_factor,
    )

    # The noise multiplier of a step, which follows from its size.
    noise: Any
    if callable(step_size):
        schedule = step_size

        def noise(step: jax.Array) -> Numeric:
            multiplier = injected(schedule(step))
            missing = min_noise_multiplier - multiplier
            return multiplier + (multiplier < min_noise_multiplier) * missing
    else:
        check_positive("step_size", step_size)  # a tuple is none
        injected_noise = injected(step_size)  # type: ignore[arg-type]
        schedule, noise = as_schedule(step_size), max(injected_noise, min_noise_multiplier)

    # Noise on the clipped sum, division by the expected batch size, and the sampler's update.
    clip_over_size = total_l2_clip(l2_clip) / expected_batch_size
    update = make_update(
        schedule, lambda step: (noise(step) if callable(noise) else noise) * clip_over_size
    )
    added = add_gaussian_noise(noise_multiplier=noise, l2_clip=l2_clip, key=as_key(key))
    chain = step_on_sum(added, expected_batch_size, update, l2_clip)
    description = dataclasses.replace(added.description, divisor="public constant")
    return PrivateTransformation.of(chain.init, chain.update, description)
