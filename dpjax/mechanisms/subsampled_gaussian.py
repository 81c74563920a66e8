"""The subsampled Gaussian mechanism (DP-SGD): noisy sums of clipped gradients of random batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Self, get_args

from dpjax._checks import (
    as_count,
    check,
    check_choice,
    check_non_negative,
    check_positive,
    check_text,
    check_type,
)
from dpjax._lazy_imports import jax, jnp, optax
from dpjax._typing import ClipBound, Numeric
from dpjax.adjacency import Adjacency, is_size_public
from dpjax.gradients.clip_bound import clip_bounds, l2_sensitivity, total_l2_clip
from dpjax.gradients.clip_rules import AdaptiveClip, ClipRule
from dpjax.guarantee import Guarantee, Tuning
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.epochs import Epochs
from dpjax.sampling.base import Sampling

if TYPE_CHECKING:
    from dp_accounting import DpEvent

    from dpjax.transforms import Correlation, PrivateTransformation


@dataclass(frozen=True)
class SubsampledGaussian(Mechanism):
    """The mechanism of DP-SGD: sampler, clip bound, noise and number of steps.

    Each of ``num_steps`` steps draws a batch, sums contributions clipped to ``l2_clip`` and
    releases the sum plus Gaussian noise of standard deviation ``noise_multiplier * l2_clip``.

    Attributes:
      sampling: how batches are drawn (`PoissonSampling`, `FixedSizeSampling`, ...).
      l2_clip: bound on one example's contribution in L2: a number, or per-layer bounds;
        `AutomaticClip` or `PSACClip` may stand for a number. With `QuantileClip` or `SlackClip` the
        bound follows the norms: the contribution, over the current bound and with the slots that
        the next bound is computed from, has norm 1, and the noise multiplier is of both together.
      noise_multiplier: noise standard deviation over the total clip bound, whatever the adjacency:
        a number, or a tuple with one for each step.
      num_steps: number of noisy sums released.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy, for example ``"one record"``.
      size_scaled: whether the gradient is a sum that stands for the whole data's, scaled by
        ``num_examples / expected_batch_size``, as in DP-SVI and SG-MCMC. The scale is published
        with the parameters and computed from the number of records, as the certificate states.
      epochs: where rate and steps were computed from batch size and epochs, as by `dpsgd`, these,
        for the certificate.
      correlation: a strategy of correlated noise, such as ``BandedToeplitz(64)``, or ``None`` for
        noise that is independent over steps. ``noise_multiplier`` is that of the independent noise
        it is made of; the event has this over the strategy's sensitivity, which follows from the
        steps in which the sampler can draw one record.
      tuning: how clip bound, batch, steps and what follows the noise were chosen, for the
        certificate: ``"on simulated records"`` (as by `dpjax.rehearse`), ``"on public records"``,
        ``"fixed in advance"``, ``"on the private records, not counted"``, which adds a caveat, or
        ``None`` if that is not stated. Epsilon does not depend on it.

    Raises:
      ValueError: for numbers out of range, a tuple of another length than ``num_steps``, an
        adjacency that the sampler does not support, ``epochs`` of other records or fewer steps, or
        a strategy of correlated noise that does not fit the sampler.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(60_000, 256 / 60_000), l2_clip=1.5, noise_multiplier=1.3,
    ...     num_steps=3515, adjacency="add_remove", unit="one image")
    >>> round(mechanism.certificate(delta=1e-5).epsilon, 2)
    0.86
    """

    sampling: Sampling
    _: KW_ONLY
    l2_clip: ClipBound
    noise_multiplier: float | tuple[float, ...]
    num_steps: int
    adjacency: Adjacency
    unit: str = "one record"
    size_scaled: bool = False
    epochs: Epochs | None = None
    correlation: Correlation | None = None
    tuning: Tuning | None = None

    def __post_init__(self) -> None:
        check_type("sampling", self.sampling, Sampling, "a sampler such as PoissonSampling")
        object.__setattr__(self, "num_steps", as_count("num_steps", self.num_steps))
        check_text("unit", self.unit)
        self.sampling.check_adjacency(self.adjacency)
        check_positive("l2_clip", total_l2_clip(self.l2_clip))
        for sigma, _ in self._noise_by_runs():
            check_non_negative("noise_multiplier", sigma)
        self._check_epochs()
        if self.tuning is not None:
            # Only a selection counts it.
            choices = [each for each in get_args(Tuning) if each != "counted"]
            check_choice("tuning", self.tuning, choices)
        self._plan_correlation()

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        # Noise, clip bound and constants from the number of records, in words.
        sigmas = [sigma for sigma, _ in self._noise_by_runs()]
        noise = f"{min(sigmas):.4g}" + (f" to {max(sigmas):.4g}" if len(sigmas) > 1 else "")
        bound = total_l2_clip(self.l2_clip)
        groups = clip_bounds(self.l2_clip)
        layers = "" if len(groups) == 1 else ", shared by layers"
        rules = any(isinstance(group, ClipRule) for group in groups)
        how = "normalised to an L2 norm of at most" if rules else "to L2 norm"
        clipping = f"each contribution {how} {bound:.4g}{layers}; only sums are noised"
        if isinstance(self.l2_clip, AdaptiveClip):
            clipping = (
                f"each contribution {self.l2_clip.describe()}; the sums that the next bound is"
                " computed from are noised together with it, and counted in the noise multiplier"
            )

        # Constants computed from the number of records, and this number where they publish it.
        size_constants = self.sampling.size_constants
        if self.size_scaled:
            size_constants += ("the scale num_examples / expected_batch_size",)
        if self.epochs is not None:
            size_constants += ("the sampling rate", "the number of steps")
        public = is_size_public(self.adjacency) or bool(size_constants)
        steps = {} if self.epochs is None else {"steps": self.epochs.describe(self.num_steps)}
        event, correlation = self._event()

        return Guarantee(
            event=event,
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=self.num_steps,
            description={
                "sampling": self.sampling.describe(self.adjacency),
                **steps,
                "clipping": clipping,
                "noise": f"Gaussian, noise multiplier {noise} (standard deviation over the clip"
                " bound)",
                **correlation,
            },
            size_constants=size_constants,
            num_examples=self.sampling.num_examples if public else None,
            tuning=self.tuning,
        )

    @property
    def sensitivity(self) -> float:
        """L2 sensitivity of one step's sum under the adjacency."""
        return l2_sensitivity(self.l2_clip, self.adjacency)

    def noise(self, key: jax.Array) -> PrivateTransformation:
        """Returns the noise as an optax transformation on clipped sums (see `add_gaussian_noise`).

        Past ``num_steps`` releases its updates are NaN.

        Args:
          key: a JAX key; a secret.

        Raises:
          ValueError: the noise is too small beside the largest sum (see `check_noise_scale`).
        """
        from dpjax.transforms.noise import add_gaussian_noise, check_noise_scale

        most = self.sampling.num_static_batches * self.sampling.physical_batch_size
        for sigma, _ in self._noise_by_runs():
            check_noise_scale(sigma, total_l2_clip(self.l2_clip), most)
        schedule = NoiseSchedule(self.noise_multiplier, self.num_steps, self.sampling)
        return add_gaussian_noise(
            noise_multiplier=schedule,
            l2_clip=self.l2_clip,
            key=key,
            correlation=self.correlation,
        )

    def private_optimizer(
        self, optimizer: optax.GradientTransformation, *, key: jax.Array
    ) -> optax.GradientTransformationExtraArgs:
        """Returns an optax chain of noise, division by expected batch size and ``optimizer``.

        Args:
          optimizer: any optax optimiser without noise or clipping of dpjax's own, which ``init``
            refuses.
          key: a JAX key for the noise; a secret.
        """
        from dpjax.transforms.chains import step_on_sum

        size = self.sampling.expected_batch_size
        return step_on_sum(self.noise(key), size, optimizer, self.l2_clip)

    def first_steps(self, num_steps: int) -> SubsampledGaussian:
        """Returns the mechanism of the first ``num_steps`` steps, at most those planned."""
        num_steps = as_count("num_steps", num_steps)
        check(num_steps <= self.num_steps, "num_steps", num_steps, f"at most {self.num_steps}")
        noise = self.noise_multiplier
        noise = noise[:num_steps] if isinstance(noise, tuple) else noise
        return dataclasses.replace(self, num_steps=num_steps, noise_multiplier=noise)

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns this mechanism with every noise multiplier multiplied by ``factor``."""
        check_positive("factor", factor)
        noise = self.noise_multiplier
        scaled = tuple(factor * s for s in noise) if isinstance(noise, tuple) else factor * noise
        return dataclasses.replace(self, noise_multiplier=scaled)

    def _plan_correlation(self) -> None:
        """Plans the strategy for the steps; raises ValueError for one that does not fit."""
        if self.correlation is None:
            return
        from dpjax.transforms import Correlation

        check_type("correlation", self.correlation, Correlation, "a strategy, or None")
        if isinstance(self.noise_multiplier, tuple):
            raise ValueError(
                "noise_multiplier must be one number with correlation, whose sensitivity is that of"
                f" equal noise in all steps, got {len(self.noise_multiplier)} of them"
            )
        separation, is_fixed = self.sampling.participation(self.num_steps)
        planned = self.correlation.plan(self.num_steps, separation=separation)
        object.__setattr__(self, "correlation", planned)
        steps = planned.num_steps
        allowed = f"at least the mechanism's num_steps = {self.num_steps}"
        check(steps is None or steps >= self.num_steps, "correlation's num_steps", steps, allowed)
        if not is_fixed and not self._is_amplified(separation):
            raise ValueError(
                f"correlation must fit the sampler, got {planned} with {self.sampling}, which can"
                f" draw a record in steps {separation} apart: every strategy fits"
                " CyclicPoissonSampling of whole groups (sampling_rate = 1 / num_groups) and one"
                " epoch of ShuffledEpochs; BandedToeplitz fits CyclicPoissonSampling at any rate"
                " with as many groups as bands or more; under other samplers leave it out"
            )

    def _is_amplified(self, separation: int) -> bool:
        """Whether columns of the strategy for two steps of one record do not overlap."""
        assert self.correlation is not None
        bands = self.correlation.bandwidth
        return self.num_steps <= separation or (bands is not None and bands <= separation)

    def _event(self) -> tuple[DpEvent, dict[str, str]]:
        """The event of all steps, and a description of the correlation if there is one."""
        if self.correlation is None:
            return self.sampling.event(self._noise_by_runs()), {}
        assert not isinstance(self.noise_multiplier, tuple)
        separation, _ = self.sampling.participation(self.num_steps)
        count = -(-self.num_steps // separation)
        steps = f"a record takes part {count:,} times at most"
        steps += f", {separation:,} steps apart" if count > 1 else ""

        # Independent releases of the columns of the steps of a record, which do not overlap, or
        # one release of all.
        if self._is_amplified(separation):
            sensitivity, _ = self.correlation.sensitivity(self.num_steps)
            noise = self.noise_multiplier / sensitivity
            event = self.sampling.event([(noise, self.num_steps)])
            kind = f"{sensitivity:.6g} for each time"
        else:
            sensitivity, is_exact = self.correlation.sensitivity(
                self.num_steps, separation=separation
            )
            from dp_accounting import GaussianDpEvent

            event = GaussianDpEvent(self.noise_multiplier / sensitivity)
            kind = f"{sensitivity:.6g} for all times ({'exact' if is_exact else 'upper bound'})"
        text = (
            f"{self.correlation}: noise of different steps is correlated; {steps}; sensitivity of"
            f" the strategy {kind}, which the noise multiplier is divided by"
        )
        return event, {"correlation": text}

    def _check_epochs(self) -> None:
        """Raises ValueError for epochs that are not those of sampler and steps."""
        epochs, sampling = self.epochs, self.sampling
        check_type("epochs", epochs, Epochs | None, "Epochs, or None")
        if epochs is not None:
            size = epochs.num_examples, float(epochs.batch_size)
            sampled = sampling.num_examples, sampling.expected_batch_size
            check(
                size == sampled, "epochs", epochs, f"of the sampler's records and batch, {sampled}"
            )
            allowed = (
                f"of at least num_steps = {self.num_steps}, or None where the steps are not"
                " planned in epochs: dataclasses.replace(mechanism, num_steps=..., epochs=None)"
            )
            check(self.num_steps <= epochs.num_steps, "epochs", epochs, allowed)

    def _noise_by_runs(self) -> list[tuple[float, int]]:
        """Noise multipliers, each with its number of consecutive steps."""
        if not isinstance(self.noise_multiplier, tuple):
            return [(self.noise_multiplier, self.num_steps)]
        check(
            len(self.noise_multiplier) == self.num_steps,
            "noise_multiplier",
            f"{len(self.noise_multiplier)} values",
            f"a number, or a tuple of num_steps = {self.num_steps} numbers",
        )
        runs = itertools.groupby(self.noise_multiplier)
        return [(sigma, len(list(run))) for sigma, run in runs]


@dataclass(frozen=True)
class NoiseSchedule:
    """A mechanism's noise multipliers by step, NaN past the last; comparable, unlike a closure."""

    noise_multiplier: float | tuple[float, ...]
    num_steps: int
    sampling: Sampling = field(compare=False)

    def __call__(self, num_releases: Numeric) -> jax.Array:
        multipliers = jnp.asarray(self.noise_multiplier, jnp.float32)
        index = jnp.minimum(num_releases, self.num_steps - 1)
        multiplier = multipliers[index] if multipliers.ndim else multipliers
        return jnp.where(num_releases < self.num_steps, multiplier, jnp.nan)
