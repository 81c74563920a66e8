"""A new kind of release is one class: no accountant has a case for it."""

from dataclasses import dataclass

import numpy as np
import pytest
from dp_accounting import dp_event
from dp_accounting.dp_event import DpEvent

from dpjax.accounting import epsilon, epsilon_bounds, gdp, tradeoff_bounds
from dpjax.accounting import events as base
from dpjax.accounting.events import UnsupportedEventError
from dpjax.accounting.kinds.gaussian import gaussian_grid_builder, gaussian_loss_distribution
from dpjax.accounting.tradeoff import Gaussian

DELTA = 1e-5


@dataclass(frozen=True)
class PairDpEvent(DpEvent):
    """Gaussian noise, stated by its variance: what the test registers."""

    variance: float


@pytest.fixture
def kind(monkeypatch):
    monkeypatch.setattr(base, "_KINDS", [*base._KINDS])

    class PairNoise(base.AtomicEvent):
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


def test_every_accountant_supports_it(kind):
    event = dp_event.SelfComposedDpEvent(PairDpEvent(36.0), 4)
    exact = gdp.epsilon(2 / 6, DELTA)
    lower, upper = epsilon_bounds(event, DELTA, adjacency="add_remove")
    assert lower <= exact <= upper < 1.01 * exact
    assert epsilon(event, DELTA, adjacency="zero_out", method="gdp_clt") == pytest.approx(exact)
    for method in ("rdp", "moments"):
        assert upper < epsilon(event, DELTA, adjacency="add_remove", method=method) < 2 * upper
    curve = tradeoff_bounds(PairDpEvent(36.0), adjacency="replace_one").lower
    assert curve == Gaussian(1 / 6)


def test_without_its_class_it_is_refused():
    with pytest.raises(UnsupportedEventError, match="no privacy loss distribution of PairDpEvent"):
        epsilon(PairDpEvent(36.0), DELTA, adjacency="add_remove")
