"""Rules that scale per-example gradients other than by clipping to a fixed bound.

`AutomaticClip` and `PSACClip` normalise every gradient: they stand where a clip bound stands, alone
or for the groups of per-layer bounds, and have no state.

`QuantileClip` and `SlackClip` have a bound that follows the norms of the gradients. An example
contributes two things to one sum: its gradient over the current bound, and slots, numbers that tell
how its norm compares with the bound. Together they have an L2 norm of at most 1, and get noise
together. So a step is one Gaussian release of sensitivity 1 whatever the bound is, its noise
multiplier is that of the joint release, and the next bound is computed from released values alone:
the noisy slots over the *expected* batch size.
"""

from __future__ import annotations

import abc
import math
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple

from dpjax._checks import as_count, check, check_non_negative, check_positive
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import Numeric, PyTree

# A bound stays within this factor of the one that it started from.
_RANGE = 1e3


@dataclass(frozen=True)
class AutomaticClip:
    """Normalised gradients: each becomes ``bound * g / (|g| + gamma)``, small ones too.

    Source: Bu, Wang, Zha, Karypis (2023), "Automatic clipping" (AUTO-S); Yang et al. (2022) for the
    same rule, as normalised SGD.

    Attributes:
      bound: the L2 norm that a contribution stays below; it only scales the learning rate.
      gamma: at least 0; the rule keeps half of the bound for gradients of this norm, less for
        smaller ones.

    Raises:
      ValueError: a bound that is not above zero, a negative ``gamma``.

    >>> AutomaticClip(1.0, gamma=1.0).factor(jnp.array([0.0, 1.0, 3.0])).tolist()
    [1.0, 0.5, 0.25]
    """

    bound: float = 1.0
    _: KW_ONLY
    gamma: float = 0.01

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_non_negative("gamma", self.gamma)

    def __float__(self) -> float:
        return float(self.bound)

    def factor(self, norm: jax.Array) -> jax.Array:
        """Returns what gradients are multiplied by.

        Args:
          norm: of each gradient, ``(batch,)``.
        """
        tiny = jnp.finfo(norm.dtype).tiny
        return self.bound / jnp.maximum(norm + self.gamma, tiny)


@dataclass(frozen=True)
class PSACClip:
    """Normalised gradients whose weight does not grow as they vanish.

    Each becomes ``bound * g / (|g| + r / (|g| + r))``: the weight of `AutomaticClip` rises to
    ``1 / gamma`` at norm zero, this one to about 1 there.

    Source: Xia, Shen, Yao, Fu, Xu, Xu, Fu (2023), "Differentially private learning with per-sample
    adaptive clipping", Equation 9.

    Attributes:
      bound: the L2 norm that a contribution stays below.
      r: above 0; how small the norms are from which on gradients are no longer normalised.

    Raises:
      ValueError: a bound or ``r`` that is not above zero.

    >>> PSACClip(1.0, r=1.0).factor(jnp.array([0.0, 1.0])).round(4).tolist()
    [1.0, 0.6667]
    """

    bound: float = 1.0
    _: KW_ONLY
    r: float = 0.1

    def __post_init__(self) -> None:
        check_positive("bound", self.bound)
        check_positive("r", self.r)

    def __float__(self) -> float:
        return float(self.bound)

    def factor(self, norm: jax.Array) -> jax.Array:
        """Returns what gradients are multiplied by.

        Args:
          norm: of each gradient, ``(batch,)``.
        """
        return self.bound / (norm + self.r / (norm + self.r))


class GradientAndSlots(NamedTuple):
    """A clipped sum and the slots that are released with it, or the parameters and the bound.

    Attributes:
      gradient: the sum of gradients over the bound, shaped like the parameters; where this is an
        input, the parameters.
      slots: the sums of the slots, ``(num_slots,)``; where this is an input, the current bound in
        each of them.
    """

    gradient: PyTree
    slots: jax.Array


@dataclass(frozen=True)
class AdaptiveClip(abc.ABC):
    """A clip bound that follows the norms of the gradients, by noisy slots.

    Attributes:
      initial: the first bound; all stay between a thousandth and a thousand times it.
    """

    initial: float

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)

    def __float__(self) -> float:
        """The L2 norm of one example's gradient over the bound and its slots, together."""
        return 1.0

    @property
    @abc.abstractmethod
    def gradient_norm(self) -> float:
        """The largest norm of one example's gradient in the sum, at most 1."""

    @abc.abstractmethod
    def slots(self, norms: jax.Array, bound: jax.Array) -> jax.Array:
        """Returns the slots of each example, ``(batch, num_slots)``.

        With the gradient of norm ``gradient_norm * min(1, norm / bound)`` they have norm at most 1.

        Args:
          norms: of each gradient, ``(batch,)``.
          bound: the current one.
        """

    @abc.abstractmethod
    def log_change(self, slots: jax.Array, expected_batch_size: float) -> jax.Array:
        """Returns by how much the bound's logarithm changes.

        Args:
          slots: the noisy sums, ``(num_slots,)``.
          expected_batch_size: public constant that they are divided by.
        """

    @abc.abstractmethod
    def describe(self) -> str:
        """Returns how the bound changes, for certificates."""

    def next_bound(
        self, bound: jax.Array, slots: jax.Array, expected_batch_size: float
    ) -> jax.Array:
        """Returns the bound of the next step: post-processing of what was released.

        Args:
          bound: that of this step.
          slots: the noisy sums, ``(num_slots,)``.
          expected_batch_size: public constant that the sums are divided by.
        """
        moved = bound * jnp.exp(self.log_change(slots, expected_batch_size))
        return jnp.clip(moved, self.initial / _RANGE, self.initial * _RANGE)

    def with_slots(self, params: PyTree, bound: Numeric) -> GradientAndSlots:
        """Returns parameters and bound as `dpjax.clipped_grad` takes them, shaped like its sum.

        Args:
          params: any tree.
          bound: the current one.
        """
        norm = jax.ShapeDtypeStruct((), jnp.float32)
        shape = jax.eval_shape(self.slots, jax.ShapeDtypeStruct((1,), jnp.float32), norm).shape
        return GradientAndSlots(params, jnp.full(shape[1:], bound, jnp.float32))

    def at(self, bound: Numeric) -> ScaledClip:
        """Returns the rule that clips to a bound and divides by it.

        Args:
          bound: the current one; may be traced.
        """
        return ScaledClip(self.gradient_norm, bound)


@dataclass(frozen=True)
class ScaledClip:
    """Clips a gradient to ``clip`` and scales it to a norm of at most ``bound``.

    Attributes:
      bound: the largest norm of a contribution.
      clip: the norm from which on gradients are clipped; may be traced.
    """

    bound: float
    clip: Numeric

    def __float__(self) -> float:
        return self.bound

    def factor(self, norm: jax.Array) -> jax.Array:
        """Returns what gradients are multiplied by.

        Args:
          norm: of each gradient, ``(batch,)``.
        """
        return self.bound / jnp.maximum(norm, jnp.asarray(self.clip, norm.dtype))


@dataclass(frozen=True)
class QuantileClip(AdaptiveClip):
    """A clip bound that follows a quantile of the gradients' norms.

    An example adds +1/2 to a count if its norm is at most the bound, else -1/2. Each step
    multiplies the bound by ``exp(-step_size * (b - quantile))`` with the noisy fraction b below it.

    The count has a small share of the squared sensitivity, so that the noise on the sum of
    gradients grows by the factor ``1 / sqrt(1 - share)``; the noise of the count has the standard
    deviation ``noise_multiplier / (2 sqrt(share))`` examples. (Andrew et al. choose that deviation,
    a twentieth of the batch.)

    Source: Andrew, Thakkar, McMahan, Ramaswamy (2021), Algorithm 1 and Theorem 1. Divided is by the
    expected batch size: the number of drawn examples is private under Poisson sampling.

    Attributes:
      initial: the first bound.
      quantile: in (0, 1), which fraction of the gradients the bound shall not clip.
      step_size: above 0; what the deviation of the fraction from the quantile is multiplied by, to
        change the bound's logarithm.
      share: in (0, 1), the count's share of the squared sensitivity.

    Raises:
      ValueError: for numbers out of range.

    >>> rule = QuantileClip(1.0, quantile=0.5)
    >>> rule.slots(jnp.array([0.5, 2.0]), jnp.array(1.0))[:, 0].round(6).tolist()
    [0.1, -0.1]
    >>> round(float(rule.next_bound(jnp.array(1.0), jnp.array([1.0]), 10.0)), 4)
    0.9048
    """

    initial: float = 1.0
    _: KW_ONLY
    quantile: float = 0.5
    step_size: float = 0.2
    share: float = 0.01

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("step_size", self.step_size)
        for name in ("quantile", "share"):
            value = getattr(self, name)
            check_positive(name, value)
            check(value < 1, name, value, "above 0 and below 1")

    @property
    def gradient_norm(self) -> float:
        return math.sqrt(1 - self.share) * (1 - 1e-7)

    def slots(self, norms: jax.Array, bound: jax.Array) -> jax.Array:
        side = jnp.where(norms <= bound, 1, -1)
        return (math.sqrt(self.share) * side.astype(norms.dtype))[:, None]

    def log_change(self, slots: jax.Array, expected_batch_size: float) -> jax.Array:
        above_half = slots[0] / (2 * math.sqrt(self.share) * expected_batch_size)
        return -self.step_size * (0.5 + above_half - self.quantile)

    def describe(self) -> str:
        return (
            f"to a bound that starts at {self.initial:.4g} and follows the {self.quantile:.4g}"
            " quantile of the norms"
        )


@dataclass(frozen=True)
class SlackClip(AdaptiveClip):
    """A clip bound that follows the norms by what clipping leaves unused: at no cost in noise.

    Of an example whose clipped gradient has norm r, below the bound C, ``C (C - r)`` of the squared
    sensitivity is free. ``num_slots`` K slots use it: with ``x = K (1 - r / C)``, slot j holds
    ``min(max(x - j, 0), 1) / sqrt(K)``, in units of C. Summed and noised, slot j tells the fraction
    of norms below about ``C (1 - (j + 1) / K)``. Each step changes the bound's logarithm by
    ``step_size * ((1 + s) / 2 - u)``: u is the fraction that is not clipped (the first slot), s
    that of vanishing gradients (the last). So half of the gradients that do not vanish are clipped.

    Source: "SlaClip" (2026), as implemented in jax_privacy; there the last slot is divided once
    more by the bound, which makes the update depend on the unit of the gradients, and is left out
    here.

    Attributes:
      initial: the first bound.
      num_slots: at least 2; the source has ``(B / (5.152 noise_multiplier))^(2/3)`` for batches of
        B, with which the slots' noise does not hide them.
      step_size: above 0, of the bound's logarithm.

    Raises:
      ValueError: for numbers out of range.

    >>> rule = SlackClip(1.0, num_slots=4)
    >>> rule.slots(jnp.array([0.0, 0.4, 2.0]), jnp.array(1.0)).round(3).tolist()
    [[0.5, 0.5, 0.5, 0.5], [0.5, 0.5, 0.2, 0.0], [0.0, 0.0, 0.0, 0.0]]
    """

    initial: float = 1.0
    _: KW_ONLY
    num_slots: int = 8
    step_size: float = 0.5

    def __post_init__(self) -> None:
        super().__post_init__()
        check_positive("step_size", self.step_size)
        object.__setattr__(self, "num_slots", as_count("num_slots", self.num_slots))
        check(self.num_slots >= 2, "num_slots", self.num_slots, "at least 2")

    @property
    def gradient_norm(self) -> float:
        return 1.0

    def slots(self, norms: jax.Array, bound: jax.Array) -> jax.Array:
        used = self.num_slots * (1 - jnp.minimum(norms / bound, 1))
        filled = jnp.clip(used[:, None] - jnp.arange(self.num_slots), 0, 1)
        return filled / math.sqrt(self.num_slots)

    def log_change(self, slots: jax.Array, expected_batch_size: float) -> jax.Array:
        fractions = slots * (math.sqrt(self.num_slots) / expected_batch_size)
        vanishing = jnp.clip(fractions[-1], 0, 1)
        return self.step_size * ((1 + vanishing) / 2 - fractions[0])

    def describe(self) -> str:
        return (
            f"to a bound that starts at {self.initial:.4g} and follows the median of the norms that"
            " do not vanish"
        )


# Rules without a state, which stand where a number stands in a clip bound.
ClipRule = AutomaticClip | PSACClip | ScaledClip
