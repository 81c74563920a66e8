"""Schedules of many noises: fewer of them, on the right side of the truth."""

import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import gaussian, poisson

from dpjax.accounting import epsilon, epsilon_bounds, events
from dpjax.accounting.events import RepeatedEvent, coarsen_noise_schedule, decompose

NOISES = np.linspace(0.8, 1.6, 24)
EVENT = dp_event.ComposedDpEvent([poisson(float(noise), 0.05, 3) for noise in NOISES])


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(events, "MOST_NOISES", 6)


def _noises(parts):
    return [(part.atom.event.event.noise_multiplier, part.count) for part in parts]


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_noises_are_merged_to_one_side(few, adjacency):
    parts = decompose(EVENT, adjacency)
    for side, first, last in (("upper", 0.8, NOISES[20]), ("lower", NOISES[2], 1.6)):
        merged = coarsen_noise_schedule(parts, side)
        assert len(merged) == 6
        assert sum(part.count for part in merged) == 72
        assert set(merged) <= {
            RepeatedEvent(part.atom, other.count) for part in parts for other in merged
        }
        assert merged[0].atom.event.event.noise_multiplier == pytest.approx(first)
        assert merged[-1].atom.event.event.noise_multiplier == pytest.approx(last, rel=0.05)
        for (noise, count), least, largest in zip(
            _noises(merged), *_cumulative_range(merged), strict=True
        ):
            assert noise == (least if side == "upper" else largest)
            assert count % 3 == 0


def _cumulative_range(merged):
    """The least and the largest of the noises, in order, that each merged release stands for."""
    ends = np.cumsum([part.count // 3 for part in merged])
    return NOISES[[0, *ends[:-1]]], NOISES[ends - 1]


def test_the_ends_move_apart_and_not_across(monkeypatch):
    upper = epsilon(EVENT, 1e-5, adjacency="add_remove")
    lower = epsilon_bounds(EVENT, 1e-5, adjacency="add_remove").lower
    monkeypatch.setattr(events, "MOST_NOISES", 6)
    assert upper < epsilon(EVENT, 1e-5, adjacency="add_remove") < 1.15 * upper
    assert lower > epsilon_bounds(EVENT, 1e-5, adjacency="add_remove").lower > 0.85 * lower


def test_what_is_few_or_of_another_kind_stays(few):
    event = dp_event.ComposedDpEvent(
        [poisson(1.0, 0.1, 2), poisson(2.0, 0.2, 1), gaussian(3.0)]
        + [
            dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(noise))
            for noise in (1.0, 2.0)
        ]
    )
    parts = decompose(event, "add_remove")
    assert set(coarsen_noise_schedule(parts, "upper")) == set(parts)
