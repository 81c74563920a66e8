"""Parties that are killed at random points of a round: what leaves them, and how the round ends."""

import numpy as np
import pytest
from helpers.federated_cases import histogram_release, plan_of
from helpers.federated_simulation import Points, Simulation
from helpers.kill_checks import PLACES, WRITING, kill_at_each_point, violations

from dpjax.federated import Parties
from dpjax.federated.processes import holder as holder_module
from dpjax.federated.processes.node import Node
from dpjax.federated.protocol import open_sum, receive
from dpjax.federated.sharing import AdditiveSharing

NUM_ROUNDS = 100
PARTIES = (
    {"num_holders": 4, "num_nodes": 2, "num_dropouts": 1},
    {"num_holders": 5, "num_nodes": 3, "num_dropouts": 2},
    {"num_holders": 4, "num_nodes": 3, "num_dropouts": 0},
    {"num_holders": 5, "num_nodes": 3, "num_dropouts": 1, "node_threshold": 2},
)
PLANS = [plan_of(histogram_release(scale=3.0), **parties) for parties in PARTIES]


def simulate(monkeypatch, folder, seed, **broken):
    """Views of a round with up to six kills or, in every second one, twelve and a rogue analyst."""
    rng = np.random.default_rng(seed)
    plan, rogue = PLANS[seed // 2 % len(PLANS)], bool(seed % 2)
    most = 12 if rogue else int(rng.integers(1, 7))
    points = Points(rng, float(rng.choice([0.01, 0.04])), most)
    simulation = Simulation(plan, folder / str(seed), rng, points, rogue=rogue, **broken)
    return simulation.run(monkeypatch)


def all_violations(monkeypatch, folder, num_rounds=NUM_ROUNDS, **broken):
    found, kills, results = set(), 0, 0
    for seed in range(num_rounds):
        views = simulate(monkeypatch, folder, seed, **broken)
        found |= violations(views, bool(seed % 2))
        kills, results = kills + views.num_kills, results + (views.result is not None)
    return found, kills, results


@pytest.mark.slow
def test_round_under_random_kills_has_no_violation(monkeypatch, tmp_path):
    found, kills, results = all_violations(monkeypatch, tmp_path)
    assert found == set()
    assert kills >= NUM_ROUNDS  # the rounds were disturbed
    assert NUM_ROUNDS / 4 < results < NUM_ROUNDS  # some end with a result and some do not


class OpensBeforeJournal(Node):
    """A node whose opening is on disk only if it is not killed."""

    def _open(self, draws):
        self.state, data = open_sum(self._plan, self.state, draws)
        return data


class AcceptsBeforeJournal(Node):
    """A node that keeps shares in memory."""

    def _accept(self, holder, data):
        self.state = receive(self._plan, self.state, data, holder=holder)
        return b""

    def _open(self, draws):
        self.state, data = open_sum(self._plan, self.state, draws)
        return data


def redrawn_messages(plan, holder, statistic, journal):
    """A holder that draws noise again in every process."""
    return holder_module.holder_messages(plan, holder, statistic)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"node": OpensBeforeJournal}, {"a node opened two sets"}),
        ({"node": AcceptsBeforeJournal}, {"the round of those who stayed has no result"}),
        (
            {"messages": redrawn_messages},
            {
                "a holder sent two different messages to a node",
                "shares left a holder whose journal has the budget unspent",
            },
        ),
    ],
)
def test_power_broken_party_is_found(monkeypatch, tmp_path, broken, expected):
    found, _, _ = all_violations(monkeypatch, tmp_path, **broken)
    assert expected <= found


def test_power_shares_without_masks_are_found(monkeypatch, tmp_path):
    def unmasked(sharing, entropy, values):
        return [values.astype(np.uint64), *[np.zeros(values.size, np.uint64)] * 2][
            : sharing.num_nodes
        ]

    monkeypatch.setattr(AdditiveSharing, "share", unmasked)
    found, _, _ = all_violations(monkeypatch, tmp_path, num_rounds=2)
    assert "an unmasked sum left a holder" in found


@pytest.mark.slow
def test_power_nodes_that_open_any_set_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(Parties, "least_holders", 1)
    found, _, _ = all_violations(monkeypatch, tmp_path, num_rounds=20)
    assert "a sum of too few holders was opened" in found


def one_kill(broken):
    def simulate(folder, points):
        return Simulation(PLANS[0], folder, np.random.default_rng(0), points, lost=0.0, **broken)

    return simulate


def test_round_survives_a_kill_at_any_point(monkeypatch, tmp_path):
    """Every message and answer, before and after it is sent, and every call of a write to disk."""
    found, names = kill_at_each_point(monkeypatch, tmp_path, one_kill({}), most=12)
    assert found == set()
    kinds = ("share", "query", "agreed")
    assert names >= WRITING | {place.format(kind) for place in PLACES for kind in kinds}


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"node": AcceptsBeforeJournal}, "one kill of a party that comes back ends the round"),
        (
            {"messages": redrawn_messages},
            "shares left a holder whose journal has the budget unspent",
        ),
    ],
)
def test_power_one_kill_finds_a_broken_party(monkeypatch, tmp_path, broken, expected):
    found, _ = kill_at_each_point(monkeypatch, tmp_path, one_kill(broken), most=3)
    assert expected in found
