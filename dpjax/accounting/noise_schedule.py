"""Merging of similar noise multipliers, so that long noise schedules can be composed."""

from typing import Any, Literal

import numpy as np
from dp_accounting import dp_event

from dpjax.accounting.releases.base import RepeatedRelease

# Every different noise multiplier costs about as much as a composition of equal ones.
MOST_NOISES = 128


def coarsen_noise_schedule(
    parts: tuple[RepeatedRelease, ...], side: Literal["upper", "lower"]
) -> tuple[RepeatedRelease, ...]:
    """Merges similar noise multipliers, conservatively, to at most ``MOST_NOISES`` for each rate.

    Noises close together become the least of them for an ``"upper"`` bound, the largest for a
    ``"lower"`` one: adding noise to a release is post-processing, so less noise is never more
    private. Only Poisson-sampled Gaussian releases are merged.
    """
    by_rate: dict[float, list[RepeatedRelease]] = {}
    kept = []
    for part in parts:
        if _noise(part) > 0:
            by_rate.setdefault(_event(part).sampling_probability, []).append(part)
        else:
            kept.append(part)
    for group in by_rate.values():
        kept += group if len(group) <= MOST_NOISES else _merge(group, side)
    return tuple(kept)


def _merge(group: list[RepeatedRelease], side: Literal["upper", "lower"]) -> list[RepeatedRelease]:
    """Returns one release for each share of the range of noises, evenly cut in ratios."""
    group = sorted(group, key=_noise)
    logs = np.log([_noise(part) for part in group])
    cuts = np.searchsorted(logs, np.linspace(logs[0], logs[-1], MOST_NOISES + 1)[1:-1])
    bins = [group[start:end] for start, end in zip([0, *cuts], [*cuts, len(group)], strict=True)]
    extreme = 0 if side == "upper" else -1
    return [
        RepeatedRelease(bin_[extreme].release, sum(part.count for part in bin_))
        for bin_ in bins
        if bin_
    ]


def _event(part: RepeatedRelease) -> Any:
    return part.release.event


def _noise(part: RepeatedRelease) -> float:
    """Returns the noise multiplier of a Poisson-sampled Gaussian; zero for any other release."""
    match _event(part):
        case dp_event.PoissonSampledDpEvent(event=dp_event.GaussianDpEvent(noise_multiplier=noise)):
            return float(noise)
        case _:
            return 0.0
