import math
from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent
from helpers.accounting_cases import fixed_size, gaussian, laplace, poisson, response, truncated

from dpjax.accounting import epsilon, epsilon_bounds, events, gdp, tradeoff_bounds
from dpjax.accounting.events import (
    UnsupportedEventError,
    coarsen_noise_schedule,
    decompose,
    event_name,
    is_nonprivate,
)
from dpjax.accounting.kinds.gaussian import gaussian_grid_builder, gaussian_loss_distribution
from dpjax.accounting.tradeoff import Gaussian

GaussianDpEvent, Composed = dp_event.GaussianDpEvent, dp_event.ComposedDpEvent


def _over_sensitivity(event, adjacency):
    ((atom, _),) = decompose(event, adjacency)
    return atom.unit_sensitivity_event


@pytest.mark.parametrize("event", [gaussian(3.0), laplace(3.0)])
def test_unit_sensitivity_event_under_replace_one(event):
    assert _over_sensitivity(event, "add_remove").noise_multiplier == 3.0
    assert _over_sensitivity(event, "replace_one").noise_multiplier == 1.5


def test_unit_sensitivity_event_of_nested_events():
    assert _over_sensitivity(poisson(3.0, 0.1, 4), "replace_one").event == GaussianDpEvent(1.5)
    assert _over_sensitivity(fixed_size(3.0, 2, 9, 4), "replace_one").event == GaussianDpEvent(1.5)
    assert _over_sensitivity(truncated(3.0, 30), "replace_one").noise_multiplier == 1.5
    discrete = dp_event.DiscreteLaplaceDpEvent(0.5, 3)
    assert _over_sensitivity(discrete, "replace_one").sensitivity == 6
    selected = dp_event.RepeatAndSelectDpEvent(Composed([gaussian(3.0, 2), laplace(5.0)]), 10, 1)
    inner = _over_sensitivity(selected, "replace_one").event
    assert inner == Composed([gaussian(1.5, 2), laplace(2.5)])


def test_unit_sensitivity_event_stated_for_neighbors():
    for event in (dp_event.RandomizedResponseDpEvent(0.5, 3), dp_event.ZCDpEvent(0.1)):
        assert _over_sensitivity(event, "replace_one") == event


def test_decompose_keeps_event_over_clip_bound():
    ((atom, count),) = decompose(poisson(3.0, 0.1, 4), "replace_one")
    assert atom.event == poisson(3.0, 0.1, 4).event
    assert count == 4


def test_decompose_refuses_unknown_sensitivity():
    for event in (dp_event.MixtureOfGaussiansDpEvent(1.0, [1.0], [1.0]), dp_event.DpEvent()):
        with pytest.raises(UnsupportedEventError, match=f"sensitivity of {event_name(event)}"):
            decompose(event, "replace_one")


def test_decompose_flattens_and_counts():
    step = poisson(1.0, 0.1, 3)
    event = dp_event.SelfComposedDpEvent(Composed([step, laplace(2.0), step]), 5)
    counts = {event_name(atom.event): count for atom, count in decompose(event, "add_remove")}
    assert counts == {"PoissonSampledDpEvent of GaussianDpEvent": 30, "LaplaceDpEvent": 5}


def test_decompose_joins_gaussians():
    event = Composed([gaussian(2.0, 4), gaussian(3.0), GaussianDpEvent(6)])
    ((atom, count),) = decompose(event, "add_remove")
    assert count == 1
    assert atom.event.noise_multiplier**-2 == pytest.approx(1 + 1 / 9 + 1 / 36)
    joint = dp_event.PoissonSampledDpEvent(0.1, Composed([GaussianDpEvent(2.0), gaussian(2.0, 3)]))
    ((atom, count),) = decompose(joint, "add_remove")
    assert atom.event.event.noise_multiplier == pytest.approx(1.0)


def test_decompose_drops_what_depends_on_no_data():
    nothing = [
        dp_event.NoOpDpEvent(),
        poisson(0.0, 0.0, 3),
        gaussian(1.0, 0),
        response(1.0, 4),
        response(0.5, 1),
        Composed([]),
    ]
    assert decompose(Composed(nothing), "replace_one") == ()
    assert not is_nonprivate(decompose(Composed(nothing), "add_remove"))


def test_decompose_of_sampling_everything():
    assert decompose(poisson(10.0, 1.0, 100), "replace_one") == decompose(
        gaussian(10.0, 100), "replace_one"
    )


@pytest.mark.parametrize(
    "event",
    [
        dp_event.NonPrivateDpEvent(),
        gaussian(0.0),
        laplace(0),
        poisson(0.0, 0.1, 2),
        fixed_size(0.0, 1, 10, 2),
        truncated(0.0, 30),
        response(0.0, 2),
        Composed([gaussian(1.0), gaussian(0.0)]),
        dp_event.RepeatAndSelectDpEvent(dp_event.NonPrivateDpEvent(), 10, 1),
    ],
)
def test_is_nonprivate_without_noise(event):
    assert is_nonprivate(decompose(event, "add_remove"))


def test_is_nonprivate_of_noisy_releases():
    noisy = [gaussian(0.1), response(0.5, 3), dp_event.ZCDpEvent(0.1), poisson(math.pi, 0.1, 2)]
    assert not is_nonprivate(decompose(Composed(noisy), "add_remove"))


@pytest.mark.parametrize(
    "event",
    [
        gaussian(math.inf),
        poisson(math.inf, 0.1, 2),
        fixed_size(math.inf, 1, 10, 2),
        dp_event.PoissonSampledDpEvent(0.1, laplace(math.inf)),
        dp_event.PoissonSampledDpEvent(0.1, dp_event.NoOpDpEvent()),
    ],
)
def test_decompose_drops_samples_of_constants(event):
    assert decompose(Composed([event, gaussian(2.0)]), "replace_one") == decompose(
        gaussian(2.0), "replace_one"
    )


DELTA = 1e-5


@dataclass(frozen=True)
class PairDpEvent(DpEvent):
    """Gaussian noise, stated by its variance: what the test registers."""

    variance: float


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.setattr(events, "_KINDS", [*events._KINDS])

    class PairNoise(events.AtomicEvent):
        event_types = (PairDpEvent,)
        is_stated_for_neighbors = True

        @property
        def mu(self):
            return float(self.event.variance**-0.5)

        def grid_builder(self):
            return gaussian_grid_builder(1 / self.mu)

        def loss_distribution(self, direction, tail):
            return gaussian_loss_distribution(self.mu, 1.0, tail, direction)

        def rdp(self, orders):
            return np.asarray(orders, float) * self.mu**2 / 2

        def tradeoff(self):
            return Gaussian(self.mu)

        def squared_mu(self):
            return self.mu**2

    return PairNoise


def test_new_kind_is_supported_by_every_accountant(kind):
    event = dp_event.SelfComposedDpEvent(PairDpEvent(36.0), 4)
    exact = gdp.epsilon(2 / 6, DELTA)
    lower, upper = epsilon_bounds(event, DELTA, adjacency="add_remove")
    assert lower <= exact <= upper < 1.01 * exact
    assert epsilon(event, DELTA, adjacency="zero_out", method="gdp_clt") == pytest.approx(exact)
    for method in ("rdp", "moments"):
        assert upper < epsilon(event, DELTA, adjacency="add_remove", method=method) < 2 * upper
    curve = tradeoff_bounds(PairDpEvent(36.0), adjacency="replace_one").lower
    assert curve == Gaussian(1 / 6)


def test_event_without_kind_is_refused():
    with pytest.raises(UnsupportedEventError, match="no privacy loss distribution of PairDpEvent"):
        epsilon(PairDpEvent(36.0), DELTA, adjacency="add_remove")


@pytest.mark.parametrize("missing", ["grid_builder", "loss_distribution"])
def test_method_that_a_kind_lacks_is_named(kind, missing):
    setattr(kind, missing, getattr(events.AtomicEvent, missing))
    with pytest.raises(UnsupportedEventError, match=f"its kind has no {missing}"):
        epsilon(PairDpEvent(36.0), DELTA, adjacency="add_remove")


NOISES = np.linspace(0.8, 1.6, 24)
EVENT = dp_event.ComposedDpEvent([poisson(float(noise), 0.05, 3) for noise in NOISES])


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setattr(events, "MOST_NOISES", 6)


def _noises(atoms):
    return [(atom.event.event.noise_multiplier, count) for atom, count in atoms]


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_coarsen_noise_schedule_is_conservative(few, adjacency):
    atoms = decompose(EVENT, adjacency)
    for side, first, last in (("upper", 0.8, NOISES[20]), ("lower", NOISES[2], 1.6)):
        merged = coarsen_noise_schedule(atoms, side)
        assert len(merged) == 6
        assert sum(count for _, count in merged) == 72
        assert {atom for atom, _ in merged} <= {atom for atom, _ in atoms}
        assert merged[0][0].event.event.noise_multiplier == pytest.approx(first)
        assert merged[-1][0].event.event.noise_multiplier == pytest.approx(last, rel=0.05)
        for (noise, count), least, largest in zip(
            _noises(merged), *_cumulative_range(merged), strict=True
        ):
            assert noise == (least if side == "upper" else largest)
            assert count % 3 == 0


def _cumulative_range(merged):
    """The least and the largest of the noises, in order, that each merged release stands for."""
    ends = np.cumsum([count // 3 for _, count in merged])
    return NOISES[[0, *ends[:-1]]], NOISES[ends - 1]


def test_coarsen_noise_schedule_widens_epsilon_bounds(monkeypatch):
    upper = epsilon(EVENT, 1e-5, adjacency="add_remove")
    lower = epsilon_bounds(EVENT, 1e-5, adjacency="add_remove").lower
    monkeypatch.setattr(events, "MOST_NOISES", 6)
    assert upper < epsilon(EVENT, 1e-5, adjacency="add_remove") < 1.15 * upper
    assert lower > epsilon_bounds(EVENT, 1e-5, adjacency="add_remove").lower > 0.85 * lower


def test_coarsen_noise_schedule_keeps_few_and_other_kinds(few):
    event = dp_event.ComposedDpEvent(
        [poisson(1.0, 0.1, 2), poisson(2.0, 0.2, 1), gaussian(3.0)]
        + [
            dp_event.PoissonSampledDpEvent(0.1, dp_event.LaplaceDpEvent(noise))
            for noise in (1.0, 2.0)
        ]
    )
    atoms = decompose(event, "add_remove")
    assert set(coarsen_noise_schedule(atoms, "upper")) == set(atoms)
