"""The privacy loss distribution accountant: pessimistic upper bounds on epsilon and delta.

How fine the grid of losses must be depends on one step, not on the total: rounding adds a twelfth
of the squared interval to a variance, so it does no harm where the interval is small against the
*per-step* standard deviation of the loss, and inflates epsilon without bound where it is not. An
interval of 1e-3 gives 0.0164 instead of 0.00334 for a noise multiplier of 20, sampling rate 1e-3
and 1,000 steps (delta 1e-5). An interval tied to the answer fails too: epsilon / 3,000 is 13 % too
much for a noise multiplier of 4 and a million steps. So the grid begins at a quarter of that
deviation and is refined by four until that no longer changes the answer. The error is of second
order, so a change of 1 % leaves less than 0.1 %, except at the largest loss of a bounded one, which
lies on the grid if it is the first.

The constructors are called directly, instead of through ``PLDAccountant``, which (0.6.0) counts a
repeated randomized response once, takes no Laplace noise under replace-one and no sample of fixed
size, and hides the number of compositions that the rounding margin below needs.
"""

import functools
import math
from typing import Literal

import numpy as np
import scipy.fft
from dp_accounting import dp_event
from dp_accounting.pld import common, pld_pmf
from dp_accounting.pld.privacy_loss_distribution import PrivacyLossDistribution, identity

from dpjax.accounting.events import TAIL, AtomicEvent, RepeatedEvent, UnsupportedEventError
from dpjax.accounting.loss_distribution import (
    Array,
    Direction,
    hockey_stick_divergence,
    least_epsilon,
)

# Every different noise multiplier costs about as much as a composition of equal ones.
MOST_NOISES = 128
# What a Fourier transform rounds, for each composition.
ROUNDING = 2.0**-50
# Intervals over the standard deviation of one step's loss.
_INTERVALS = (1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 1024)
_MOST_CELLS = 2**16
_PROFILE_INTERVAL, _COARSER = 1 / 32, 2.0
_COARSEST_INTERVAL = 4.0
# From this many repetitions on the composition is that of arrays.
_LEAST_COUNT = 10
# What a window may leave out, and the slopes at which tails are bounded, over the natural one.
_TRUNCATED, _SLOPES = 1e-15, np.geomspace(1e-3, 10.0, 60)
# A change of epsilon changes delta by no more than itself, so near zero delta sets the scale.
_LEAST_CHANGE, _LEAST_CHANGE_OF_DELTA = 0.01, 0.001
# The relative rounding error of a profile summed from a long list of masses.
_SUMMATION = 2.0**-40
# No finer grid changes these.
_ENDS = (0.0, math.inf)


def compute_epsilon(parts: tuple[RepeatedEvent, ...], delta: float) -> float:
    """Returns an upper bound on epsilon at ``delta``.

    It is at most 1 % above the truth, mostly 0.1 %, unless ``delta`` is near the rounding error,
    epsilon beyond some hundreds or so near zero that its error matters less than a thousandth of
    ``delta``, or a sampling rate so small that the grid it asks for is too long.

    Composition by Fourier transform is exact up to rounding, which grows with the number of
    compositions and may err on the unsafe side: 0.2 % too small an epsilon at delta = 1e-12 and
    10,000 steps. Measured, it is below 1e-16 of delta for each composition; ``delta`` is lowered by
    nine times that.

    Raises:
      UnsupportedEventError: a release of unknown loss, or a ``delta`` below the rounding error.
    """
    parts = coarsen_noise_schedule(parts, "upper")
    check_supported(parts)
    safe_delta = delta - _margin(parts)
    value, deviation = math.inf, loss_deviation(parts)
    least = _least_interval(parts)
    for share in _INTERVALS if safe_delta > 0 else ():
        interval = _align(min(max(share * deviation, least), _COARSEST_INTERVAL), parts)
        finer = least_epsilon(_compose(parts, interval), safe_delta)
        change, value = value - finer, min(value, finer)
        enough = max(_LEAST_CHANGE * finer, _LEAST_CHANGE_OF_DELTA * delta)
        converged = change <= enough and 2 * interval <= enough
        if converged or finer in _ENDS or share * deviation <= least:
            break
    if math.isinf(value):
        raise UnsupportedEventError(
            f"truncation and rounding leave no finite epsilon at delta = {delta:g}"
        )
    return float(value)


def compute_profile(
    parts: tuple[RepeatedEvent, ...], epsilons: Array, direction: Direction | None
) -> Array:
    """Returns upper bounds on delta at any real ``epsilons``, by default in both directions.

    Raises:
      UnsupportedEventError: a release of unknown loss.
    """
    parts = coarsen_noise_schedule(parts, "upper")
    check_supported(parts)
    # Every different release takes transforms of its own.
    share = _PROFILE_INTERVAL * min(max(len(parts), 1) ** 0.5, _COARSER)
    wanted = max(share * loss_deviation(parts), _least_interval(parts))
    total = _compose(parts, _align(min(wanted, _COARSEST_INTERVAL), parts))
    deltas = hockey_stick_divergence(total, epsilons, direction)
    least = -np.expm1(np.minimum(epsilons, 0.0))
    return np.clip(deltas * (1 + _SUMMATION) + _margin(parts), least, 1.0)


def check_supported(parts: tuple[RepeatedEvent, ...]) -> None:
    """Refuses, before anything is computed, what has no privacy loss distribution.

    Raises:
      UnsupportedEventError: a release of unknown loss, or with hardly any noise.
    """
    for part in parts:
        part.atom.pld_builder()


def loss_deviation(parts: tuple[RepeatedEvent, ...]) -> float:
    """Returns the standard deviation of one release's loss, its square averaged over them all."""
    if not parts:
        return 1.0
    variances = []
    for part in parts:
        losses, weights = part.atom.loss_distribution("remove", TAIL).nodes
        variances.append(float(weights @ losses**2 - (weights @ losses) ** 2))
    return math.sqrt(np.average(variances, weights=[part.count for part in parts]))


def coarsen_noise_schedule(
    parts: tuple[RepeatedEvent, ...], side: Literal["upper", "lower"]
) -> tuple[RepeatedEvent, ...]:
    """Merges similar noise multipliers, conservatively, to at most ``MOST_NOISES`` for each rate.

    The range of noise multipliers is cut evenly in ratios. Those of one interval become the least
    of them for an ``"upper"`` bound, the largest for a ``"lower"`` one: adding noise to a release
    is post-processing, so less noise is never more private. Only Poisson-sampled Gaussian releases
    are merged.
    """
    by_rate: dict[float, list[tuple[float, RepeatedEvent]]] = {}
    kept = []
    for part in parts:
        match part.atom.event:
            case dp_event.PoissonSampledDpEvent(
                sampling_probability=rate, event=dp_event.GaussianDpEvent(noise_multiplier=noise)
            ) if noise > 0:
                by_rate.setdefault(rate, []).append((float(noise), part))
            case _:
                kept.append(part)
    for group in by_rate.values():
        if len(group) <= MOST_NOISES:
            kept += [part for _, part in group]
            continue
        group.sort(key=lambda pair: pair[0])
        logs = np.log([noise for noise, _ in group])
        cuts = np.searchsorted(logs, np.linspace(logs[0], logs[-1], MOST_NOISES + 1)[1:-1])
        for start, end in zip([0, *cuts], [*cuts, len(group)], strict=True):
            if start < end:
                extreme = group[start if side == "upper" else end - 1][1].atom
                kept.append(RepeatedEvent(extreme, sum(p.count for _, p in group[start:end])))
    return tuple(kept)


def _least_interval(parts: tuple[RepeatedEvent, ...]) -> float:
    """Returns the interval that keeps the grid of every release's losses within memory."""
    return max((part.atom.loss_range() for part in parts), default=0.0) / _MOST_CELLS


def _align(interval: float, parts: tuple[RepeatedEvent, ...]) -> float:
    """Returns an interval, no larger, that divides the aligned loss of the first part with one.

    Else every release would exceed its largest loss, or every atom be moved, by up to an interval.
    """
    for part in parts:
        aligned = part.atom.aligned_loss
        if aligned is not None:
            return aligned / math.ceil(aligned / interval)
    return interval


def _margin(parts: tuple[RepeatedEvent, ...]) -> float:
    return ROUNDING * sum(part.count for part in parts)


def _compose(parts: tuple[RepeatedEvent, ...], interval: float) -> PrivacyLossDistribution:
    """Returns the loss of all ``parts`` together, on multiples of ``interval``."""
    composed = (_self_compose(_build(part.atom, interval), part.count) for part in parts)
    return functools.reduce(lambda a, b: a.compose(b), composed, identity(interval))


def _self_compose(one: PrivacyLossDistribution, count: int) -> PrivacyLossDistribution:
    """Returns the loss of ``count`` releases.

    From ten on it is composed here: dp-accounting (0.6.0) compares the number of masses to the
    power of ``count`` with a limit, a number of 10^7 digits for 10^7 releases, which takes half a
    minute, and its window is up to ten times as wide as need be.
    """
    if count < _LEAST_COUNT:
        return one.self_compose(count) if count > 1 else one
    pmfs = [one._pmf_remove] if one._symmetric else [one._pmf_remove, one._pmf_add]
    return PrivacyLossDistribution(*(_power(pmf.to_dense_pmf(), count) for pmf in pmfs))


def _power(pmf: pld_pmf.DensePLDPmf, count: int) -> pld_pmf.DensePLDPmf:
    """Returns the masses of a sum of ``count`` losses, but for 1e-15 that counts as infinite."""
    masses = pmf._probs

    # Chernoff bounds at slopes near that of a normal distribution enclose the sum's mass.
    place = np.arange(masses.size)
    mean = masses @ place / np.sum(masses)
    deviation = math.sqrt(count * (masses @ (place - mean) ** 2))
    slopes = _SLOPES * math.sqrt(-2 * math.log(_TRUNCATED)) / max(deviation, 1.0)
    slopes = np.concatenate([-slopes, slopes])
    first, last = common.compute_self_convolve_bounds(masses, count, _TRUNCATED, slopes)

    # What lies outside wraps around.
    length = scipy.fft.next_fast_len(max(last - first + 1, masses.size), real=True)
    total = scipy.fft.irfft(scipy.fft.rfft(masses, length) ** count, length)
    total = np.roll(total, -first % length)[: last - first + 1]

    infinite = _TRUNCATED - math.expm1(count * math.log1p(-pmf._infinity_mass))
    lowest = pmf._lower_loss * count + first
    return pld_pmf.DensePLDPmf(pmf._discretization, lowest, total, infinite, True)


# A curve over the steps or a budget asks for the same step again and again, and building it costs
# more than composing it.
@functools.lru_cache(maxsize=32)
def _build(release: AtomicEvent, interval: float) -> PrivacyLossDistribution:
    return release.pld_builder()(interval)
