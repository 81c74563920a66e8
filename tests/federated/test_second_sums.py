"""Attempts to open two sums of one round: sets that differ between nodes, and restored journals.

The difference of two sums with and without a holder is its value under its own noise alone.
"""

import contextlib
import itertools
import shutil

import numpy as np
import pytest
from helpers.federated_cases import draws_of, from_analyst, histogram_release, plan_of
from scipy.linalg import null_space

from dpjax.federated import (
    Parties,
    ProtocolError,
    holder_messages,
    open_sum,
    perturb,
    protocol,
    simulated_entropy,
)
from dpjax.federated.messages import ANALYST
from dpjax.federated.processes.analyst import Analyst
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node

NUM_HOLDERS, VICTIM = 6, 5
EVERYONE = range(NUM_HOLDERS)
OTHERS = range(VICTIM)


class Nodes:
    """Nodes with journals, which have shares of all holders.

    Attributes:
      sent: the victim's noisy sums.
    """

    def __init__(self, plan, folder, monkeypatch):
        self.plan, self.folder = plan, folder
        self.stack, self.journals, self.nodes = contextlib.ExitStack(), {}, {}
        for index in range(plan.parties.num_nodes):
            self.start(index)
        for holder in EVERYONE:
            for index, data in enumerate(self._messages(holder, monkeypatch)):
                self.nodes[index].answer(f"holder-{holder}", "share", data)

    def _messages(self, holder, monkeypatch):
        def recorded(plan, statistic, *, entropy):
            self.sent = perturb(plan, statistic, entropy=entropy)
            return self.sent

        with monkeypatch.context() as patched:
            patched.setattr(protocol, "perturb", recorded)
            sums = np.full(self.plan.size, 100.0 * holder)
            return holder_messages(self.plan, holder, sums, entropy=simulated_entropy(holder))

    def start(self, index):
        path = self.folder / f"node-{index}"
        self.journals[index] = self.stack.enter_context(Journal(path, f"node {index}"))
        self.nodes[index] = Node(self.plan, index, self.journals[index])

    def copy(self, index):
        shutil.copytree(self.folder / f"node-{index}", self.folder / f"copy-{index}")

    def restore(self, index):
        """The node is started with the copy of its journal."""
        self.journals[index].close()
        shutil.rmtree(self.folder / f"node-{index}")
        shutil.copytree(self.folder / f"copy-{index}", self.folder / f"node-{index}")
        self.start(index)

    def draws(self, holders):
        return draws_of(self.plan, self.received, holders)

    @property
    def received(self):
        return next(one.state for one in self.nodes.values() if one.state.received)

    def call(self, index, kind, data):
        return self.nodes[index].answer("analyst", kind, data)

    def ask(self, index, draws):
        """The opening of a set, or the code."""
        try:
            return self.call(index, "agreed", from_analyst(self.plan, "agreed", index, draws))
        except ProtocolError as error:
            return error.code

    def words(self, index, opening):
        return self.plan.message_format.from_bytes(
            opening, kind="opening", sender=index, receiver=ANALYST, round_number=0
        ).words


@pytest.fixture
def nodes_of(tmp_path, monkeypatch):
    monkeypatch.setattr("os.fsync", lambda descriptor: None)
    with contextlib.ExitStack() as stack:
        count = itertools.count()

        def make(plan):
            made = Nodes(plan, tmp_path / str(next(count)), monkeypatch)
            stack.enter_context(made.stack)
            return made

        yield make


def opened_sums(nodes, num_colluding, num_asked_for_all):
    """The sums that an analyst reconstructs who asks honest nodes for one of two sets.

    The first nodes collude: they give away the shares they received, and open nothing.
    """
    sharing, draws = nodes.plan.parties.sharing, [nodes.draws(EVERYONE), nodes.draws(OTHERS)]
    found = [
        {
            index: nodes.words(index, open_sum(nodes.plan, nodes.nodes[index].state, wanted)[1])
            for index in range(num_colluding)
        }
        for wanted in draws
    ]
    for index in range(num_colluding, nodes.plan.parties.num_nodes):
        which = 0 if index < num_colluding + num_asked_for_all else 1
        found[which][index] = nodes.words(index, nodes.ask(index, draws[which]))
        assert nodes.ask(index, draws[1 - which]) == "opened"
    return [sharing.reconstruct(one) for one in found if len(one) >= sharing.threshold]


def plan_with(num_nodes, threshold, num_dropouts=1):
    return plan_of(
        histogram_release(),
        num_holders=NUM_HOLDERS,
        num_nodes=num_nodes,
        node_threshold=threshold,
        num_dropouts=num_dropouts,
    )


@pytest.mark.parametrize(
    ("num_nodes", "threshold", "most"),
    [(3, 2, 0), (3, 3, 2), (4, 3, 1), (5, 3, 0), (5, 4, 2), (7, 5, 2), (3, None, 2)],
)
def test_analyst_with_shares_of_colluding_nodes_opens_one_sum(nodes_of, num_nodes, threshold, most):
    """Whatever number of nodes it asks for each set; with one node more it has the victim's."""
    plan = plan_with(num_nodes, threshold)
    assert plan.parties.num_colluding_nodes == most
    for asked in range(num_nodes - most + 1):
        assert len(opened_sums(nodes_of(plan), most, asked)) <= 1
    nodes = nodes_of(plan)
    first, second = opened_sums(nodes, most + 1, (num_nodes - most - 1) // 2)
    np.testing.assert_array_equal(first - second, nodes.sent)


def test_node_opens_no_other_set_without_dropouts(nodes_of):
    nodes = nodes_of(plan_with(3, 2, num_dropouts=0))
    assert nodes.plan.parties.num_colluding_nodes == 1
    assert {nodes.ask(index, nodes.draws(OTHERS)) for index in range(3)} == {"too few holders"}
    assert len(nodes.ask(0, nodes.draws(EVERYONE))) == nodes.plan.message_format.num_bytes


def learnt_forms(sets, points, num_coefficients):
    """A basis of the linear forms of holders' values that opened sums determine, by columns.

    Args:
      sets: of each node the holders in its sum, ``(num_nodes, num_holders)``, zeros and ones.
      points: at which nodes have the values of polynomials, of holders' values at zero.
      num_coefficients: of a polynomial, those that colluding nodes' shares leave free.
    """
    powers = np.vander(points, num_coefficients, increasing=True).T
    # Weights on nodes for which the random coefficients of every holder cancel.
    terms = [(sets * power[:, None]).T for power in powers[1:]]
    cancelled = np.concatenate([np.zeros((1, len(points))), *terms])
    return sets.T @ null_space(cancelled, rcond=1e-9)


def is_one_sum(forms, sets):
    """Whether all forms are multiples of one opened sum."""
    rank = np.linalg.matrix_rank(forms, tol=1e-9)
    return rank == 0 or (
        rank == 1 and any(np.linalg.matrix_rank(np.c_[forms, one], tol=1e-9) == 1 for one in sets)
    )


def sets_of(num_holders, num_dropouts):
    rows = np.array(list(itertools.product([0.0, 1.0], repeat=num_holders)))
    return rows[rows.sum(axis=1) >= num_holders - num_dropouts]


def are_all_one_sum(parties, num_colluding):
    """Whether every choice of a set for each honest node, of 1,500 at random, gives one sum."""
    rows = sets_of(parties.num_holders, parties.num_dropouts)
    points = np.arange(num_colluding + 1.0, parties.num_nodes + 1)
    left = parties.sharing.threshold - num_colluding
    rng = np.random.default_rng(0)
    for _ in range(1500):
        # Few different sets, so that several nodes have the same.
        few = rng.integers(len(rows), size=rng.integers(1, 5))
        sets = rows[rng.choice(few, len(points))]
        if not is_one_sum(learnt_forms(sets, points, left), sets):
            return False
    return True


@pytest.mark.parametrize(
    ("num_nodes", "threshold", "num_holders", "num_dropouts", "most"),
    [
        (3, 2, 3, 1, 0),
        (4, 3, 4, 1, 1),
        (5, 3, 3, 1, 0),
        (5, 3, 12, 2, 0),
        (6, 5, 13, 2, 3),
        # Many may drop out.
        (4, 3, 4, 2, 0),
        (6, 5, 4, 2, 2),
        (7, 6, 6, 4, 3),
    ],
)
def test_num_colluding_nodes_leaves_one_sum_for_any_sets(
    num_nodes, threshold, num_holders, num_dropouts, most
):
    """Linear algebra over all that is opened. Power: with 2 t - M nodes two sums can be opened."""
    parties = Parties(
        num_holders=num_holders,
        num_nodes=num_nodes,
        num_dropouts=num_dropouts,
        observer_is_holder=False,
        node_threshold=threshold,
    )
    assert parties.num_colluding_nodes == most
    assert are_all_one_sum(parties, most)
    assert not are_all_one_sum(parties, 2 * threshold - num_nodes)


def test_parties_refuse_thresholds_that_open_weighted_sums():
    """Three nodes of which two suffice, asked for two halves and for all: 4 P + Q is learnt.

    So such parties are refused, though no two sums are opened.
    """
    sets = np.array([[1.0, 1, 0, 0], [0, 0, 1, 1], [1, 1, 1, 1]])
    forms = learnt_forms(sets, np.arange(1.0, 4), 2)
    assert not is_one_sum(forms, sets)
    np.testing.assert_allclose(forms[:, 0] / forms[3, 0], [4, 4, 1, 1])
    options = {"num_holders": 4, "num_nodes": 3, "observer_is_holder": False}
    with pytest.raises(ValueError, match="node_threshold must be more than two thirds of"):
        Parties(num_dropouts=2, node_threshold=2, **options)
    Parties(num_dropouts=2, node_threshold=3, **options)
    Parties(num_dropouts=1, node_threshold=2, **options)


@pytest.mark.parametrize(("threshold", "most"), [(None, 2), (3, 2), (2, 0)])
def test_restored_journals_of_colluding_nodes_open_one_sum(nodes_of, threshold, most):
    """As many as may collude; power: with one more the copies' second sum shows the victim."""
    for number in (most, most + 1):
        nodes = nodes_of(plan_with(3, threshold))
        draws = [nodes.draws(EVERYONE), nodes.draws(OTHERS)]
        for index in range(number):
            nodes.copy(index)
        needed = nodes.plan.parties.sharing.threshold
        first = {index: nodes.words(index, nodes.ask(index, draws[0])) for index in range(needed)}
        for index in range(number):
            nodes.restore(index)
        # The nodes that were not asked before open the second set, too.
        answers = {index: nodes.ask(index, draws[1]) for index in range(3)}
        refused = {index for index, answer in answers.items() if answer == "opened"}
        assert refused == set(range(number, needed))
        second = {i: nodes.words(i, one) for i, one in answers.items() if i not in refused}
        assert (len(second) >= needed) == (number > most)
        if number > most:
            sharing = nodes.plan.parties.sharing
            difference = sharing.reconstruct(first) - sharing.reconstruct(second)
            np.testing.assert_array_equal(difference, nodes.sent)


def test_analyst_without_a_journal_takes_the_opened_set(nodes_of, tmp_path):
    """Two of three nodes were restored, and a late holder's share has come since."""
    nodes = nodes_of(plan_with(3, None))
    draws = nodes.draws(OTHERS)
    for index in (0, 1):
        nodes.copy(index)
    for index in range(3):
        nodes.ask(index, draws)
    for index in (0, 1):
        nodes.restore(index)
    with Journal(tmp_path / "analyst", "analyst") as journal:
        result = Analyst(nodes.plan, journal).attempt(nodes.call, waiting_over=False)
    assert result.holders == set(OTHERS)
