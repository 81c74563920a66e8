"""Private selection: the exponential mechanism, permute-and-flip and report noisy max."""

import abc
import dataclasses
import functools
from dataclasses import dataclass
from typing import ClassVar, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_floats,
    as_numbers,
    check,
    check_normal,
    check_positive,
    check_text,
)
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import (
    Array,
    Integers,
    RandomWords,
    bernoulli_exp,
    call_on_host,
    discrete_laplace,
    fit_integers,
    grid_for,
    is_finite,
    to_units,
)
from dpjax.mechanisms.additive import pure_dp_event
from dpjax.mechanisms.base import Mechanism, format_pure_dp, format_sensitivity, one_release
from dpjax.sensitivity import Norm, Sensitivity, check_sensitivity, check_shapes

Mask = npt.NDArray[np.bool_]
# Candidates that the exponential mechanism proposes at a time, to be accepted or not.
_PROPOSALS = 256


@dataclass(frozen=True)
class Selection(Mechanism):
    """Base class of selection by the largest noisy utility, with pure differential privacy.

    Epsilon is twice the sensitivity of the utilities in L-infinity over the scale, or once where
    the sensitivity is monotone: where a record moves every utility the same way, one of them cannot
    gain what another loses. The number of candidates does not matter; the utilities stay secret.

    The utilities are rounded to a public grid g, and all else is integer arithmetic. Rounding is
    monotone and moves the sensitivity D to at most D + g, and the scale is enlarged by that factor,
    so epsilon is as stated, for the finite arithmetic that runs and for every input.

    Attributes:
      sensitivity: of the utilities, in L-infinity: of how much one record moves any one of them.
      scale: of the noise, in the units of the utilities.
      unit: the unit of privacy, for example ``"one record"``.
    """

    sensitivity: Sensitivity
    scale: float
    unit: str = "one record"
    norm: ClassVar[Norm] = "linf"
    noise_name: ClassVar[str]

    def __post_init__(self) -> None:
        check_sensitivity(self.sensitivity, self.norm)
        check_normal("scale", self.scale)
        check_text("unit", self.unit)
        shape = self.sensitivity.shape
        allowed = "(num_candidates,) with at least one candidate, that of the utilities"
        check(len(shape) == 1 and shape[0] != 0, "sensitivity's shape", shape, allowed)

    @classmethod
    def from_epsilon(
        cls, sensitivity: Sensitivity, *, epsilon: float, unit: str = "one record"
    ) -> Self:
        """Returns the mechanism with the least noise that is ``epsilon``-differentially private.

        Args:
          sensitivity: of the utilities, in L-infinity.
          epsilon: any finite number above zero.
          unit: the unit of privacy, for example ``"one record"``.

        Raises:
          ValueError: ``epsilon`` is out of range, or the sensitivity is in another norm.
        """
        check_positive("epsilon", epsilon)
        unscaled = cls(sensitivity, 1.0, unit)
        return unscaled.with_privacy_factor(unscaled.pure_epsilon / epsilon)

    @property
    def adjacency(self) -> Adjacency:
        """The adjacency of the sensitivity."""
        return self.sensitivity.adjacency

    def with_privacy_factor(self, factor: float) -> Self:
        check_positive("factor", factor)
        return dataclasses.replace(self, scale=self.scale * factor)

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero."""
        moves = 1 if self.sensitivity.monotone else 2
        return moves * self.sensitivity.value / self.scale

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        moves = format_sensitivity(self.sensitivity)
        moves += ", monotone" if self.sensitivity.monotone else ""
        return one_release(
            pure_dp_event(self.pure_epsilon, self.adjacency),
            self.sensitivity,
            self.unit,
            statistic=f"the index of the best candidate; utilities of {moves}",
            noise=f"{self.noise_name} of scale {self.scale:.4g} on every utility",
            guarantee=format_pure_dp(self.pure_epsilon),
        )

    def release(self, key: PRNGKey, utilities: npt.ArrayLike) -> jax.Array:
        """Returns the index of the selected candidate, int32; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          utilities: ``(num_candidates,)`` as the sensitivity states, and at most as sensitive.
            Outside jit int64, float64 and lists of Python numbers of any size are taken exactly. A
            utility that is not finite, NaN or infinite, excludes its candidate unless all are
            excluded; then all have the same utility. The sensitivity covers finite utilities: which
            candidates are excluded must not depend on the records.

        Raises:
          ValueError: utilities that are not real numbers, masked, or of another shape.
        """
        utilities = as_numbers(utilities, "utilities")
        check_shapes("utilities", [np.shape(utilities)], self.sensitivity)
        result = [jax.ShapeDtypeStruct((), np.int32)]
        chosen = call_on_host(
            lambda key_bits, arrays: [self.select(key_bits, arrays[0])], key, [utilities], result
        )
        return jnp.asarray(chosen[0])

    def select(self, key_bits: npt.NDArray[np.uint32], utilities: Array) -> npt.NDArray[np.intp]:
        """Returns the indices of selected candidates: what ``release`` computes on the host.

        Args:
          key_bits: a key for each release, uint32 ``(*batch, 2)``.
          utilities: ``(*batch, num_candidates)``, float64, integers or exact Python numbers.
        """
        eligible = is_finite(utilities)
        eligible |= ~eligible.any(axis=-1, keepdims=True)
        grid = grid_for(self.scale, self.sensitivity.value, 1)
        units = to_units(utilities, grid.exponent)
        rows = (-1, utilities.shape[-1])
        units, eligible, scale = units.reshape(rows), eligible.reshape(rows), grid.noise_scale()
        return self._select_units(key_bits, units, eligible, scale).reshape(key_bits.shape[:-1])

    @abc.abstractmethod
    def _select_units(
        self, key_bits: npt.NDArray[np.uint32], units: Integers, eligible: Mask, scale: int
    ) -> npt.NDArray[np.intp]:
        """Returns the selected candidate of each row.

        Args:
          key_bits: a key for each row, uint32 ``(..., 2)``.
          units: utilities in units of the grid, ``(rows, candidates)``.
          eligible: which candidates may be selected, at least one in each row.
          scale: of the noise, in units of the grid.
        """


@dataclass(frozen=True)
class ExponentialMechanism(Selection):
    """Selects a candidate with probability proportional to exp(utility / scale).

    That is the distribution of the largest utility after Gumbel noise of this scale. It is sampled
    exactly, by rejection: a uniform candidate is accepted with probability
    exp((utility - largest utility) / scale).

    Attributes:
      sensitivity: of the utilities, in L-infinity: of how much one record moves any one of them.
      scale: of the noise, in the units of the utilities. Epsilon is twice the sensitivity over it,
        or once where the sensitivity is monotone.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      The index that ``release`` returns is released, under the sensitivity's adjacency.

    Source: McSherry & Talwar (2007), Theorem 6.

    >>> from dpjax import sensitivity
    >>> votes = sensitivity.of_histogram(3, norm="linf", adjacency="replace_one")
    >>> mechanism = ExponentialMechanism.from_epsilon(votes, epsilon=0.5)
    >>> mechanism.scale, mechanism.release(jax.random.key(0), [40, 90, 12]).item()
    (4.0, 1)
    """

    noise_name: ClassVar[str] = "Gumbel noise"

    def _select_units(
        self, key_bits: npt.NDArray[np.uint32], units: Integers, eligible: Mask, scale: int
    ) -> npt.NDArray[np.intp]:
        # What each proposal lacks to the best, and a lane of random words for each.
        count, size = units.shape
        width = min(size, _PROPOSALS)
        lowest = units.min()
        gaps = np.where(eligible, units, lowest).max(axis=-1, keepdims=True) - units
        lanes = RandomWords(key_bits, width)
        (scales,) = fit_integers(np.full(count * width, scale, object))
        scales = scales.astype(np.result_type(scales, units))

        # Propose at random, and accept with the probability of what is lacking.
        chosen = np.zeros(count, np.intp)
        left = np.arange(count)
        while left.size:
            at = (left[:, None] * width + np.arange(width)).ravel()
            picks = lanes.below(np.full(at.size, size), at).reshape(-1, width)
            rows = left[:, None]
            gap = np.where(eligible[rows, picks], gaps[rows, picks], 0).ravel()
            accepted = bernoulli_exp(lanes, at, gap, scales[: at.size]).reshape(-1, width)
            accepted &= eligible[rows, picks]
            # The first accepted proposal of each row, as if they were made one after another.
            first = accepted.argmax(axis=-1)
            done = accepted.any(axis=-1)
            chosen[left[done]] = picks[done, first[done]]
            left = left[~done]
        return chosen

    def log_probabilities(self, utilities: npt.ArrayLike) -> jax.Array:
        """Returns the log of each candidate's probability: ``utilities / scale``, normalised.

        Args:
          utilities: ``(num_candidates,)``.

        Privacy:
          Nothing is released: the probabilities are as private as the utilities.
        """
        floats = as_floats(utilities, "utilities").astype(float)
        check(floats.ndim == 1, "utilities", floats.shape, "of shape (num_candidates,)")
        return jax.nn.log_softmax(floats / self.scale)


@dataclass(frozen=True)
class PermuteAndFlip(Selection):
    """Selects the largest of utilities with exponential noise; only the winner is released.

    At the same epsilon the selected utility is never worse in expectation than that of
    `ExponentialMechanism`. It is sampled exactly: every candidate passes with probability
    exp((utility - largest utility) / scale), and one of those that passed is selected uniformly,
    which is the first of them in a random order.

    Given the others' noise, a candidate wins where its own noise N is at least some t, which moves
    by at most twice the utilities' sensitivity between neighbours, or once where they are monotone;
    P(N >= t + s) is at least exp(-s / scale) P(N >= t).

    Attributes:
      sensitivity: of the utilities, in L-infinity: of how much one record moves any one of them.
      scale: of the noise, in the units of the utilities. Epsilon is twice the sensitivity over it,
        or once where the sensitivity is monotone.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      The index that ``release`` returns is released, under the sensitivity's adjacency.

    Source: McKenna & Sheldon (2020), "Permute-and-flip"; as noise Ding et al. (2021).

    >>> from dpjax import sensitivity
    >>> votes = sensitivity.of_histogram(3, norm="linf", adjacency="replace_one")
    >>> mechanism = PermuteAndFlip.from_epsilon(votes, epsilon=0.5)
    >>> mechanism.scale, mechanism.release(jax.random.key(0), [40, 90, 12]).item()
    (4.0, 1)
    """

    noise_name: ClassVar[str] = "exponential noise"

    def _select_units(
        self, key_bits: npt.NDArray[np.uint32], units: Integers, eligible: Mask, scale: int
    ) -> npt.NDArray[np.intp]:
        # Every candidate passes with the probability of what it lacks to the best, which passes.
        lanes = RandomWords(key_bits, units.shape[-1])
        lowest = units.min()
        gaps = np.where(eligible, units, lowest).max(axis=-1, keepdims=True) - units
        gaps = np.where(eligible, gaps, 0).ravel()
        (scales,) = fit_integers(np.full(lanes.size, scale, object))
        scales = scales.astype(np.result_type(scales, units))
        passed = bernoulli_exp(lanes, np.arange(lanes.size), gaps, scales).reshape(units.shape)
        passed &= eligible

        # The number-th of those that passed.
        counts = passed.sum(axis=-1)
        first = np.arange(len(units)) * units.shape[-1]
        number = lanes.below(counts, first)
        return (passed.cumsum(axis=-1) > number[:, None]).argmax(axis=-1)


@dataclass(frozen=True)
class NoisyMax(Selection):
    """Selects the largest of utilities with Laplace noise; only the winner is released.

    The noise is discrete Laplace noise on the grid, and of equal noisy utilities the first wins.
    Given the others' noise, a candidate wins where its own noise is at least some integer t, and t
    moves by at most twice the utilities' sensitivity between neighbours, or once where they are
    monotone. Of noise N of scale T, P(N >= t + 1) is at least exp(-1 / T) P(N >= t), for every t.

    Attributes:
      sensitivity: of the utilities, in L-infinity: of how much one record moves any one of them.
      scale: of the noise, in the units of the utilities. Epsilon is twice the sensitivity over it,
        or once where the sensitivity is monotone.
      unit: the unit of privacy, for example ``"one record"``.

    Privacy:
      The index that ``release`` returns is released, under the sensitivity's adjacency. The noisy
      utilities are not: releasing them all costs as much as `Laplace` does.

    Source: Dwork & Roth (2014), Claim 3.9 (monotone utilities).

    >>> from dpjax import sensitivity
    >>> votes = sensitivity.of_histogram(3, norm="linf", adjacency="add_remove")
    >>> mechanism = NoisyMax.from_epsilon(votes, epsilon=0.5)
    >>> mechanism.scale, mechanism.release(jax.random.key(0), [40, 90, 12]).item()
    (2.0, 1)
    """

    noise_name: ClassVar[str] = "Laplace noise"

    def _select_units(
        self, key_bits: npt.NDArray[np.uint32], units: Integers, eligible: Mask, scale: int
    ) -> npt.NDArray[np.intp]:
        lanes = RandomWords(key_bits, units.shape[-1])
        scales = np.full(lanes.size, scale, object)
        noise = discrete_laplace(lanes, *fit_integers(scales, np.ones_like(scales)))
        noisy = units + noise.reshape(units.shape)
        return np.where(eligible, noisy, noisy.min() - 1).argmax(axis=-1)
