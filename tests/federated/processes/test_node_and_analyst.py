"""Node and analyst on bytes: rounds, restarts, names of parties, and the set that is opened."""

import contextlib

import numpy as np
import pytest
from helpers.federated_cases import (
    code_of,
    draws_of,
    from_analyst,
    gradient_plan,
    histogram_release,
    plan_of,
)

from dpjax.federated import holder_messages, protocol
from dpjax.federated.processes.analyst import Analyst
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node, party_index


@pytest.mark.parametrize(
    "name",
    ["holder-01", "holder--1", "holder-", "Holder-1", "holder-1 ", "node-1", "1", "holder-²"],
)
def test_party_index_refuses_other_names(name):
    assert code_of(party_index, "holder", name) == "sender"
    assert party_index("holder", "holder-10") == 10


def test_node_has_rounds_of_one_journal_apart(tmp_path):
    plan = gradient_plan(2, num_steps=20)
    sums = [np.full(2, float(h)) for h in range(4)]
    with Journal(tmp_path, "node 0") as journal:
        for number in (1, 11):
            node = Node(plan, 0, journal, round_number=number)
            data = [holder_messages(plan, h, sums[h], round_number=number)[0] for h in range(4)]
            for holder in range(4):
                node.answer(f"holder-{holder}", "share", data[holder])
        replayed = data[1]
        node = Node(plan, 0, journal, round_number=12)
        assert code_of(node.answer, "holder-1", "share", replayed) == "round"
        first = Node(plan, 0, journal, round_number=1)
        assert first.state.holders(1) == {0, 1, 2, 3}
        draws = draws_of(plan, first.state, range(4), 1)
        other_round = from_analyst(plan, "agreed", 0, draws, 11)
        assert code_of(first.answer, "analyst", "agreed", other_round) == "round"
        opening = first.answer("analyst", "agreed", from_analyst(plan, "agreed", 0, draws, 1))
        assert journal.names() == ["opening-1", *(f"share-11-{holder}" for holder in range(4))]
        assert Node(plan, 0, journal, round_number=1).state == first.state
        again = from_analyst(plan, "query", 0, (), 1)
        assert Node(plan, 0, journal, round_number=1).answer("analyst", "query", again) == opening
        assert Node(plan, 0, journal, round_number=11).state.holders(11) == {0, 1, 2, 3}


def test_node_deletes_shares_left_beside_an_opening(tmp_path):
    """The process ended between the two."""
    plan = plan_of(histogram_release(), num_holders=3)
    with Journal(tmp_path, "node 0") as journal:
        node = Node(plan, 0, journal)
        shares = [holder_messages(plan, h, np.zeros(5))[0] for h in range(3)]
        for holder, data in enumerate(shares):
            node.answer(f"holder-{holder}", "share", data)
        draws = draws_of(plan, node.state, range(3))
        node.answer("analyst", "agreed", from_analyst(plan, "agreed", 0, draws))
        journal.write("share-0-1", shares[1])
        assert Node(plan, 0, journal).state == node.state
        assert journal.names() == ["opening-0"]


def test_node_that_is_stopped_writes_nothing(tmp_path):
    plan = plan_of(histogram_release(), num_holders=3)
    data = holder_messages(plan, 1, np.zeros(5))[0]
    with Journal(tmp_path, "node 0") as journal:
        node = Node(plan, 0, journal)
        node.stop()
        assert code_of(node.answer, "holder-1", "share", data) == "unreachable"
        assert journal.names() == []


class Nodes:
    """Nodes of a plan in this process, of which some have shares of some holders alone."""

    def __init__(self, plan, journal_of, missing):
        self.plan = plan
        names = [f"node-{index}" for index in range(plan.parties.num_nodes)]
        self.nodes = [Node(plan, index, journal_of(name)) for index, name in enumerate(names)]
        for holder in range(plan.parties.num_holders):
            for index, data in enumerate(holder_messages(plan, holder, np.zeros(plan.size))):
                if holder not in missing.get(index, ()):
                    self.nodes[index].answer(f"holder-{holder}", "share", data)

    def call(self, node, kind, data):
        return self.nodes[node].answer("analyst", kind, data)

    def open(self, node, holders):
        draws = draws_of(self.plan, self.nodes[node].state, holders)
        return self.call(node, "agreed", from_analyst(self.plan, "agreed", node, draws))


@pytest.fixture
def journal_of(tmp_path):
    """A function from a party's name to its journal."""
    with contextlib.ExitStack() as stack:
        yield lambda name: stack.enter_context(Journal(tmp_path / name, name))


def additive_plan(**parties):
    return plan_of(histogram_release(), num_holders=4, **parties)


def shamir_plan(**parties):
    return plan_of(histogram_release(), num_holders=4, num_nodes=3, node_threshold=2, **parties)


def test_analyst_leaves_out_a_node_that_lacks_shares(journal_of):
    plan = shamir_plan()
    network = Nodes(plan, journal_of, {2: {0, 3}})
    analyst = Analyst(plan, journal_of("analyst"))
    assert analyst.attempt(network.call, waiting_over=False) is None
    assert analyst.attempt(network.call, waiting_over=True).holders == {0, 1, 2, 3}
    assert analyst.codes == {2: "holders"}


@pytest.mark.parametrize("plan", [shamir_plan(), additive_plan()])
def test_analyst_does_not_use_answers_that_are_no_messages(journal_of, plan):
    """Shamir's other nodes suffice; where all are needed, the round ends."""
    network = Nodes(plan, journal_of, {})

    def call(node, kind, data):
        answer = network.call(node, kind, data)
        return answer if node else answer[::-1]

    analyst = Analyst(plan, journal_of("analyst"))
    if plan.parties.node_threshold is None:
        assert code_of(analyst.attempt, call, waiting_over=True) == "format"
    else:
        assert analyst.attempt(call, waiting_over=True).holders == {0, 1, 2, 3}
        assert analyst.codes == {0: "format"}


def test_analyst_ends_the_round_at_two_opened_sets(journal_of):
    plan = additive_plan(num_dropouts=1)
    network = Nodes(plan, journal_of, {})
    network.open(1, [0, 1, 2])
    network.open(2, [0, 1, 3])
    analyst = Analyst(plan, journal_of("analyst"))
    assert code_of(analyst.attempt, network.call, waiting_over=False) == "opened"


def test_analyst_takes_the_set_that_a_node_has_opened(journal_of):
    plan = additive_plan(num_dropouts=1)
    network = Nodes(plan, journal_of, {})
    network.open(1, [0, 1, 2])
    result = Analyst(plan, journal_of("analyst")).attempt(network.call, waiting_over=False)
    assert result.holders == {0, 1, 2}


def test_analyst_of_another_plan_is_refused(journal_of):
    plan = additive_plan(num_dropouts=1)
    network = Nodes(plan, journal_of, {})
    other = plan_of(histogram_release(scale=5.0), num_holders=4, num_dropouts=1)
    analyst = Analyst(other, journal_of("analyst"))
    assert code_of(analyst.attempt, network.call, waiting_over=True) == "plan"


def redrawn(plan, network, holder, nodes):
    """The holder sends the shares of a second draw to ``nodes``, which had none."""
    for node, data in enumerate(holder_messages(plan, holder, np.zeros(plan.size))):
        if node in nodes:
            network.nodes[node].answer(f"holder-{holder}", "share", data)


def test_analyst_leaves_out_a_holder_of_two_draws(journal_of):
    """It lost its journal after a part of its shares was delivered, and drew again."""
    plan = additive_plan(num_dropouts=1)
    network = Nodes(plan, journal_of, {1: {3}, 2: {3}})
    redrawn(plan, network, 3, (1, 2))
    analyst = Analyst(plan, journal_of("analyst"))
    result = analyst.attempt(network.call, waiting_over=False)
    assert result.holders == {0, 1, 2}
    assert np.abs(result.released).max() < 100


def test_analyst_ends_a_round_that_needs_a_holder_of_two_draws(journal_of):
    plan = additive_plan()
    network = Nodes(plan, journal_of, {1: {3}, 2: {3}})
    redrawn(plan, network, 3, (1, 2))
    analyst = Analyst(plan, journal_of("analyst"))
    assert code_of(analyst.attempt, network.call, waiting_over=False) == "draw"
    # A set with the draw that a node lacks is refused there, and nothing is opened.
    draws = draws_of(plan, network.nodes[0].state, range(4))
    for node in (1, 2):
        data = from_analyst(plan, "agreed", node, draws)
        assert code_of(network.call, node, "agreed", data) == "draw"


def test_power_analyst_opens_two_draws_without_identifiers(journal_of, monkeypatch):
    """All draws with one identifier: the result is no sum, and nobody notices."""
    monkeypatch.setattr(protocol, "uniform_words", lambda entropy, size: np.ones(size, np.uint64))
    plan = additive_plan()
    network = Nodes(plan, journal_of, {1: {3}, 2: {3}})
    redrawn(plan, network, 3, (1, 2))
    result = Analyst(plan, journal_of("analyst")).attempt(network.call, waiting_over=False)
    assert np.abs(result.released).max() > 1e6


def test_analyst_combines_nodes_with_one_draw(journal_of):
    plan = shamir_plan()
    network = Nodes(plan, journal_of, {1: {3}, 2: {3}})
    redrawn(plan, network, 3, (1, 2))
    analyst = Analyst(plan, journal_of("analyst"))
    assert analyst.attempt(network.call, waiting_over=False).holders == {0, 1, 2, 3}
    assert analyst.codes == {0: "draw"}
