"""Parties that are killed at random points of a round: what leaves them, and how the round ends."""

import functools

import numpy as np
import pytest
from federated_cases import histogram_release, plan_of
from federated_simulation import PointAt, Points, Simulation

from dpjax.federated import Parties, Result
from dpjax.federated.messages import ANALYST, NO_PARAMETERS
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


def read(plan, data, kind, sender, receiver):
    return plan.message_format.from_bytes(
        data, kind=kind, sender=sender, receiver=receiver, round_number=None, parameters=None
    )


def violations(views, rogue=False):
    """The properties that do not hold, of all that left the parties and of the round's end."""
    found = sending_violations(views)
    rounds = sorted({number for number, _ in views.openings})
    for number in rounds:
        found |= opening_violations(views, number)
    return found | result_violations(views, rogue)


def sending_violations(views):
    found = set()
    if any(len(set(sent)) > 1 for sent in views.shares.values()):
        found.add("a holder sent two different messages to a node")
    for (number, holder, node), sent in views.shares.items():
        for data in set(sent):
            share = read(views.plan, data, "share", holder, node).words.astype(np.int64)
            if any(np.any(share == noisy) for noisy in views.noisy[number, holder]):
                found.add("an unmasked sum left a holder")
        if number not in views.spent[holder]:
            found.add("shares left a holder whose journal has the budget unspent")
    if any(len(set(sent)) > 1 for sent in views.openings.values()):
        found.add("a node opened two sets")
    return found | parameter_violations(views)


def parameter_violations(views):
    found = set()
    if any(len(digests) > 1 for digests in views.parameters.values()):
        found.add("a round has two sets of parameters")
    for (number, holder, node), sent in views.shares.items():
        digests = {read(views.plan, data, "share", holder, node).parameters for data in set(sent)}
        if not digests <= views.parameters.get(number, {NO_PARAMETERS}):
            found.add("a share is at other parameters than its round's")
    return found


def opening_violations(views, number):
    plan, parties = views.plan, views.plan.parties
    found, sets = set(), {}
    nodes = [node for at, node in views.openings if at == number]
    openings = ((node, data) for node in nodes for data in set(views.openings[number, node]))
    for node, data in openings:
        message = read(plan, data, "opening", node, ANALYST)
        sets.setdefault(frozenset(message.draws.items()), {})[node] = message.words
        if len(message.holders) < parties.num_holders - parties.num_dropouts:
            found.add("a sum of too few holders was opened")
        shares = [
            read(plan, views.shares[number, holder, node][-1], "share", holder, node).words
            for holder in message.holders
        ]
        if np.any(functools.reduce(parties.sharing.add, shares) != message.words):
            found.add("an opening is not the sum of the shares")
    complete = [(s, own) for s, own in sets.items() if len(own) >= parties.sharing.threshold]
    if len(complete) > 1:
        found.add("two sums can be reconstructed")
    for draws, opened in complete:
        # The last of each holder's draws is the one on disk: none is drawn after it.
        total = np.sum([views.noisy[number, holder][-1] for holder, _ in draws], axis=0)
        if np.any(parties.sharing.reconstruct(opened) != total):
            found.add("the opened sum is not that of perturbed sums")
    return found


def result_violations(views, rogue):
    plan, parties = views.plan, views.plan.parties
    found = set()
    holders = sum(name.startswith("holder") for name in views.lost)
    nodes = sum(name.startswith("node") for name in views.lost)
    survivable = parties.num_dropouts >= holders
    survivable &= parties.num_nodes - parties.sharing.threshold >= nodes
    if "analyst" not in views.lost:
        if (views.result is None) == (views.code is None):
            found.add("the round has no clear end")
        if survivable and not rogue and views.result is None:
            found.add("the round of those who stayed has no result")
    if isinstance(views.result, Result):
        total = np.sum([views.noisy[0, holder][-1] for holder in views.result.holders], axis=0)
        if np.any(plan.from_units(total) != views.result.released):
            found.add("the result is not the sum of perturbed sums")
        if len(views.result.holders) < parties.num_holders - parties.num_dropouts:
            found.add("the result has too little noise")
    return found


def all_violations(monkeypatch, folder, num_rounds=NUM_ROUNDS, **broken):
    found, kills, results = set(), 0, 0
    for seed in range(num_rounds):
        views = simulate(monkeypatch, folder, seed, **broken)
        found |= violations(views, bool(seed % 2))
        kills, results = kills + views.num_kills, results + (views.result is not None)
    return found, kills, results


def test_no_kill_makes_a_party_send_what_it_must_not(monkeypatch, tmp_path):
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
def test_a_broken_party_is_found(monkeypatch, tmp_path, broken, expected):
    found, _, _ = all_violations(monkeypatch, tmp_path, **broken)
    assert expected <= found


def test_shares_without_masks_are_found(monkeypatch, tmp_path):
    def unmasked(sharing, entropy, values):
        return [values.astype(np.uint64), *[np.zeros(values.size, np.uint64)] * 2][
            : sharing.num_nodes
        ]

    monkeypatch.setattr(AdditiveSharing, "share", unmasked)
    found, _, _ = all_violations(monkeypatch, tmp_path, num_rounds=2)
    assert "an unmasked sum left a holder" in found


def test_nodes_that_open_any_set_are_found(monkeypatch, tmp_path):
    monkeypatch.setattr(Parties, "least_holders", 1)
    found, _, _ = all_violations(monkeypatch, tmp_path, num_rounds=20)
    assert "a sum of too few holders was opened" in found


# Where a message is on its way when a party is killed.
PLACES = ("{} leaves", "{} arrives", "answer to {} leaves", "answer to {} arrives")
WRITING = {"open", "write", "fsync", "rename", "unlink"}


def kill_at_each_point(monkeypatch, folder, simulate, most):
    """Violations of runs with one kill at up to ``most`` points of each name, and the names."""
    points = PointAt()
    found = violations(simulate(folder / "none", points).run(monkeypatch))
    names = np.array(points.names)
    chosen = [np.flatnonzero(names == name) for name in set(points.names)]
    spread = [at[np.linspace(0, at.size - 1, min(most, at.size)).astype(int)] for at in chosen]
    for last in np.concatenate(spread).tolist():
        views = simulate(folder / str(last), PointAt(last)).run(monkeypatch)
        assert views.num_kills == 1
        found |= violations(views)
        if views.result is None:
            found.add("one kill of a party that comes back ends the round")
    return found, set(points.names)


def one_kill(broken):
    def simulate(folder, points):
        return Simulation(PLANS[0], folder, np.random.default_rng(0), points, lost=0.0, **broken)

    return simulate


def test_a_kill_at_any_point_of_a_round(monkeypatch, tmp_path):
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
