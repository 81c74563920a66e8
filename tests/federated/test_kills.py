"""Parties that are killed at random points of a round: what leaves them, and how the round ends."""

import functools

import numpy as np
import pytest
from federated_cases import histogram_release, plan_of
from federated_simulation import Simulation

from dpjax.federated import Parties, holder_messages
from dpjax.federated.messages import ANALYST
from dpjax.federated.node import Node
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
    kills = {"rate": float(rng.choice([0.01, 0.04])), "most": most, "rogue": rogue}
    return Simulation(plan, folder / str(seed), rng, **kills, **broken).run(monkeypatch)


def words(plan, data, kind, sender, receiver):
    message = plan.message_format.from_bytes(
        data, kind=kind, sender=sender, receiver=receiver, round_number=0
    )
    return message.holders, message.words


def violations(views, rogue):
    """The properties that do not hold, of all that left the parties and of the round's end."""
    found = set()
    if any(len(set(sent)) > 1 for sent in views.shares.values()):
        found.add("a holder sent two different messages to a node")
    for (holder, node), sent in views.shares.items():
        for data in set(sent):
            share = words(views.plan, data, "share", holder, node)[1].astype(np.int64)
            if any(np.any(share == noisy) for noisy in views.noisy[holder]):
                found.add("an unmasked sum left a holder")
    if {holder for holder, _ in views.shares} - {h for h, spent in views.spent.items() if spent}:
        found.add("shares left a holder whose journal has the budget unspent")
    if any(len(set(sent)) > 1 for sent in views.openings.values()):
        found.add("a node opened two sets")
    return found | opening_violations(views) | result_violations(views, rogue)


def opening_violations(views):
    plan, parties = views.plan, views.plan.parties
    found, sets = set(), {}
    openings = ((node, data) for node, sent in views.openings.items() for data in set(sent))
    for node, data in openings:
        holders, total = words(plan, data, "opening", node, ANALYST)
        sets.setdefault(holders, set()).add(node)
        if len(holders) < parties.num_holders - parties.num_dropouts:
            found.add("a sum of too few holders was opened")
        shares = [words(plan, views.shares[h, node][-1], "share", h, node)[1] for h in holders]
        if np.any(functools.reduce(parties.sharing.add, shares) != total):
            found.add("an opening is not the sum of the shares")
    if sum(len(nodes) >= parties.sharing.threshold for nodes in sets.values()) > 1:
        found.add("two sums can be reconstructed")
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
    if views.result is not None:
        # The last of each holder's draws is the one on disk: none is drawn after it.
        total = np.sum([views.noisy[holder][-1] for holder in views.result.holders], axis=0)
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
    return holder_messages(plan, holder, statistic)


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
