"""Comparison of plans before a round: who agrees, who differs, and that nothing is spent."""

import contextlib
from dataclasses import replace

import pytest
from helpers.federated_cases import code_of, histogram_release, plan_of

from dpjax.federated import ProtocolError
from dpjax.federated.processes.config import Study
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node
from dpjax.federated.processes.plan_check import PlanCheck, plan_name, study_name

PLAN = plan_of(histogram_release(), num_holders=3, num_nodes=2)
OTHER = plan_of(histogram_release(scale=5.0), num_holders=3, num_nodes=2)
LARGER = plan_of(histogram_release(), num_holders=4, num_nodes=2)
CLIENTS = ["holder-0", "holder-1", "holder-2", "analyst"]
OWN, FOREIGN = plan_name(PLAN), plan_name(OTHER)


class Parties:
    """Nodes, and a check of each other party, in this process."""

    def __init__(self, folder, stack, plans):
        self.checks = {
            name: PlanCheck(Study(plan=plans.get(name, PLAN), nodes=("node:1", "node:2")))
            for name in CLIENTS
        }
        self.journals = [
            stack.enter_context(Journal(folder / str(index), "node")) for index in range(2)
        ]
        self.nodes = [
            Node(plans.get(f"node-{index}", PLAN), index, journal)
            for index, journal in enumerate(self.journals)
        ]
        self.away = set()

    def attempt(self, name):
        def call(node, kind, data):
            if node in self.away:
                raise ProtocolError("unreachable")
            return self.nodes[node].answer(name, kind, data)

        return self.checks[name].attempt(call)


@pytest.fixture
def parties_with(tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda **plans: Parties(
            tmp_path, stack, {name.replace("_", "-"): plan for name, plan in plans.items()}
        )


def test_plan_check_ends_when_all_parties_were_heard_of(parties_with):
    parties = parties_with()
    parties.away = {1}
    for name in CLIENTS:
        assert not parties.attempt(name)
    assert parties.checks["analyst"].missing == ["node-1"]
    parties.away = set()
    for name in CLIENTS[:-1]:
        assert not parties.attempt(name)
    assert parties.checks["holder-2"].missing == []  # but the second node lacks the analyst's
    for name in ("analyst", *CLIENTS):
        assert parties.attempt(name)
        assert parties.checks[name].is_agreed
        assert str(parties.checks[name]) == f"all 6 parties hold plan {OWN}"


def test_plan_check_writes_nothing(parties_with):
    parties = parties_with()
    for name in CLIENTS:
        parties.attempt(name)
    assert [journal.names() for journal in parties.journals] == [[], []]
    assert all(node.status.shares == frozenset() for node in parties.nodes)


@pytest.mark.parametrize("plan", [OTHER, LARGER])
def test_plan_check_names_a_holder_of_another_plan(parties_with, plan):
    parties = parties_with(holder_1=plan)
    assert parties.attempt("holder-1")  # both nodes have another one
    for name in ("holder-0", "holder-2"):
        assert not parties.attempt(name)
    for name in ("analyst", "holder-0", "holder-2"):
        assert parties.attempt(name)
        assert not parties.checks[name].is_agreed
        assert str(parties.checks[name]).splitlines() == [
            f"plan {OWN}: analyst, holder-0, holder-2, node-0, node-1",
            f"plan {plan_name(plan)}: holder-1",
        ]

    # Power: with the right file it is one plan, for all who ask again.
    parties.checks["holder-1"] = PlanCheck(Study(plan=PLAN, nodes=("node:1", "node:2")))
    assert parties.attempt("holder-1")
    assert parties.attempt("holder-0")
    assert parties.checks["holder-0"].is_agreed


def test_plan_check_names_a_node_of_another_plan(parties_with):
    parties = parties_with(node_0=OTHER)
    assert parties.attempt("holder-0")
    assert str(parties.checks["holder-0"]).splitlines() == [
        f"plan {OWN}: holder-0, node-1",
        f"plan {FOREIGN}: node-0",
        "no plan received from: holder-1, holder-2, analyst",
    ]


STUDY = Study(plan=PLAN, nodes=("node:1", "node:2"))
SETTINGS = {
    "nodes": ("node:1", "node:3"),
    "call_time": 11.0,
    "waiting_time": 61.0,
    "time_limit": 299.0,
}


@pytest.mark.parametrize("key", SETTINGS)
def test_plan_check_names_a_setting_that_differs(key, parties_with):
    parties = parties_with()
    parties.checks["holder-1"] = PlanCheck(replace(STUDY, **{key: SETTINGS[key]}))
    for name in (*CLIENTS, *CLIENTS):
        parties.attempt(name)
    everyone = "analyst, holder-0, holder-1, holder-2, node-0, node-1"
    for name, others in (("holder-0", "holder-1"), ("holder-1", "analyst, holder-0, holder-2")):
        assert parties.attempt(name)
        assert not parties.checks[name].is_agreed
        assert str(parties.checks[name]).splitlines() == [
            f"plan {OWN}: {everyone}",
            f"{key} is another than in this study: {others}",
        ]

    # Power: equal settings, of other types, agree.
    parties.checks["holder-1"] = PlanCheck(replace(STUDY, call_time=10))
    for name in ("holder-1", "holder-0"):
        assert parties.attempt(name)
    assert parties.checks["holder-0"].is_agreed


def test_plan_check_names_a_node_with_another_setting(tmp_path):
    name = study_name(replace(STUDY, time_limit=200.0))
    with Journal(tmp_path, "node") as journal:
        node = Node(PLAN, 0, journal, name=name)
        check = PlanCheck(STUDY)
        check.attempt(lambda _, kind, data: node.answer("analyst", kind, data))
    assert "time_limit is another than in this study: node-0" in str(check).splitlines()


def test_plan_check_without_an_answer(parties_with):
    parties = parties_with()
    parties.away = {0, 1}
    assert not parties.attempt("holder-0")
    assert not parties.checks["holder-0"].is_agreed
    assert str(parties.checks["holder-0"]).splitlines()[0] == f"plan {OWN}: no party"


def test_plan_name_has_the_number_of_a_single_round():
    assert plan_name(PLAN, 0) == plan_name(PLAN) == OWN
    assert plan_name(PLAN, 3) == f"{OWN}-3"
    assert plan_name(replace(PLAN, grid_bits=17)) != OWN


@pytest.mark.parametrize(
    ("sender", "data", "code"),
    [
        ("node-1", OWN.encode(), "sender"),
        ("holder-01", OWN.encode(), "sender"),
        ("holder-1", b"", "format"),
        ("holder-1", OWN.encode()[:-1], "format"),
        ("holder-1", f"{OWN}\n".encode(), "format"),
        ("holder-1", b"\xff" * 32, "format"),
    ],
)
def test_node_refuses_what_is_no_name_of_a_plan(tmp_path, sender, data, code):
    with Journal(tmp_path, "node") as journal:
        assert code_of(Node(PLAN, 0, journal).answer, sender, "plan", data) == code


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\xff",
        b"node-0",
        f"node-0 {OWN}+00000000".encode(),
        f"node-0 {OWN}\n".encode(),
        f"node-0  {OWN}".encode(),
        f"node-0 {OWN} text of a node".encode(),
        f"node-0 {OWN}\n\x1b[2J {OWN}".encode(),
        f"node-\u0660 {OWN}".encode(),
    ],
)
def test_plan_check_takes_no_other_answer(answer):
    check = PlanCheck(Study(plan=PLAN, nodes=("node:1", "node:2")))
    assert not check.attempt(lambda *_: answer)
    assert check.plans == {}
