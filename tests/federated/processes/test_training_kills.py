"""Trainings whose parties are killed at each message and at random: what leaves, and the end."""

import numpy as np
import pytest
from helpers.federated_cases import plan_of
from helpers.federated_simulation import (
    PointAt,
    Points,
    TrainingSimulation,
    toy_training,
)
from helpers.kill_checks import PLACES, WRITING, kill_at_each_point, violations

from dpjax.federated import ClippedGradientSum
from dpjax.federated.messages import ANALYST, digest_of
from dpjax.federated.processes import holder as holder_module
from dpjax.federated.processes.analyst import TrainingAnalyst
from dpjax.federated.processes.node import Node
from dpjax.federated.protocol import receive
from dpjax.federated.training import ParameterFormat
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import CyclicPoissonSampling, PoissonSampling
from dpjax.transforms import LambdaCGD


def training_plan(num_steps, correlation=None, **parties):
    """Poisson batches with independent noise, or two groups in turn with correlated noise."""
    sampling = PoissonSampling(1000, 0.2, expected_batch_size=200.0)
    if correlation is not None:
        sampling = CyclicPoissonSampling(1000, 0.5, num_groups=2)
    steps = SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=1.0,
        num_steps=num_steps,
        adjacency="add_remove" if correlation is None else "zero_out",
        correlation=correlation,
    )
    return plan_of(ClippedGradientSum(steps, 2), **{"num_holders": 3, "num_nodes": 2, **parties})


BOTH = pytest.mark.parametrize(
    "correlation", [None, LambdaCGD(0.5)], ids=["independent", "correlated"]
)
SHORT = training_plan(3)


def final_params(views):
    """The final state again, from the openings alone."""
    plan, training = views.plan, toy_training(views.plan)
    form, state = ParameterFormat(training, plan.size), training.init()
    buffers = plan.mechanism.init_buffers()
    for number in range(plan.mechanism.num_rounds):
        nodes = [node for at, node in views.openings if at == number]
        messages = {
            node: plan.message_format.from_bytes(
                views.openings[number, node][0],
                kind="opening",
                sender=node,
                receiver=ANALYST,
                round_number=number,
                parameters=None,
            )
            for node in nodes
        }
        (digest,) = views.parameters[number]
        assert {message.parameters for message in messages.values()} == {digest}
        assert digest == digest_of(form.to_words(state))
        words = {node: message.words for node, message in messages.items()}
        released = plan.from_units(plan.parties.sharing.reconstruct(words))
        result = plan.mechanism.from_sum(released)
        noisy, buffers = plan.mechanism.solve(result, buffers, round_number=number)
        factor = np.sqrt(len(messages[nodes[0]].holders) / plan.parties.num_noise_shares)
        state = training.update(state, form.from_vector(noisy), number, factor)
    return state["w"]


def one_kill(plan=SHORT, **broken):
    def simulate(folder, points):
        rng = np.random.default_rng(0)
        return TrainingSimulation(plan, folder, rng, points, lost=0.0, **broken)

    return simulate


@pytest.mark.slow
@BOTH
def test_training_survives_a_kill_at_any_message(monkeypatch, tmp_path, correlation):
    """Of every kind, before and after it is sent and answered, and at calls of writes to disk."""
    found, names = kill_at_each_point(
        monkeypatch, tmp_path, one_kill(training_plan(3, correlation)), most=4
    )
    assert found == set()
    kinds = ("parameters", "next", "share", "query", "agreed")
    assert names >= WRITING | {place.format(kind) for place in PLACES for kind in kinds}


def simulate(monkeypatch, folder, seed, num_steps, correlation=None):
    """Views of a training with up to a dozen kills; every second one may lose a holder."""
    rng = np.random.default_rng(seed)
    plan = training_plan(num_steps, correlation, num_dropouts=seed % 2, num_holders=3 + seed % 2)
    points = Points(rng, 0.01, most=12)
    lost = 0.1 if seed % 2 else 0.0
    return TrainingSimulation(plan, folder / str(seed), rng, points, lost=lost).run(monkeypatch)


@pytest.mark.slow
@BOTH
def test_training_of_fifty_rounds_survives_random_kills(monkeypatch, tmp_path, correlation):
    results = []
    for seed in range(6):
        views = simulate(monkeypatch, tmp_path, seed, 50, correlation)
        assert violations(views) == set()
        results.append(views.result is not None)
        if views.result is not None:
            np.testing.assert_array_equal(views.result["w"], final_params(views))
            # The ledger: a holder's spent rounds are those in which its shares left it.
            for holder, spent in views.spent.items():
                sent = {number for number, of, _ in views.shares if of == holder}
                assert sent == spent
                assert len(spent) <= 50
        assert views.num_kills >= 5
    assert sum(results) >= 3


class ForgetsRounds(TrainingAnalyst):
    """An analyst that starts anew when its process is killed."""

    def __init__(self, plan, training, journal, **options):
        journal.delete(*(name for name in journal.names() if not name.startswith("agreed")))
        super().__init__(plan, training, journal, **options)


class AcceptsBeforeJournal(Node):
    """A node that keeps shares in memory."""

    def _accept(self, holder, data):
        number, options = self._check_begun(data), {"parameters": self._parameters}
        self.state = receive(
            self._plan, self.state, data, holder=holder, round_number=number, **options
        )
        return b""

    def _open(self, draws):
        self._journal.delete = lambda *names: None
        return super()._open(draws)


def redrawn_messages(plan, holder, statistic, journal, **options):
    """A holder that draws noise and batch again in every process."""
    return holder_module.holder_messages(plan, holder, statistic(), **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        ({"analyst": ForgetsRounds}, "one kill of a party that comes back ends the round"),
        ({"node": AcceptsBeforeJournal}, "one kill of a party that comes back ends the round"),
    ],
)
def test_power_broken_party_of_a_training_is_found(monkeypatch, tmp_path, broken, expected):
    found, _ = kill_at_each_point(monkeypatch, tmp_path, one_kill(**broken), most=2)
    assert expected in found


@pytest.mark.slow
def test_power_noise_drawn_twice_in_a_round_is_found(monkeypatch, tmp_path):
    monkeypatch.setattr(holder_module, "journalled_messages", redrawn_messages)
    found, _ = kill_at_each_point(monkeypatch, tmp_path, one_kill(), most=2)
    assert "a holder sent two different messages to a node" in found
    assert "shares left a holder whose journal has the budget unspent" in found


@pytest.mark.slow
def test_power_shares_at_other_parameters_are_found(monkeypatch, tmp_path):
    """An analyst whose parameters change when its process is killed, and nodes that take them."""
    monkeypatch.setattr(Node, "_begin", _takes_any_parameters)

    class Unstable(TrainingAnalyst):
        def _start(self, *arguments, **options):
            super()._start(*arguments, **options)
            self._words = self._words + np.uint64(len(started))
            started.append(self.round_number)

    started = []
    found, _ = kill_at_each_point(monkeypatch, tmp_path, one_kill(analyst=Unstable), most=2)
    assert "a round has two sets of parameters" in found


def _takes_any_parameters(node, data):
    number = node._plan.message_format.read_round(data)
    if node._journal.read(f"parameters-{number}"):
        node._journal.delete(f"parameters-{number}")
    node._journal.write(f"parameters-{number}", data)
    node._enter(number)
    return b""


def test_training_without_kills_has_its_result(monkeypatch, tmp_path):
    views = one_kill()(tmp_path, PointAt()).run(monkeypatch)
    assert (views.num_kills, views.code) == (0, None)
    np.testing.assert_array_equal(views.result["w"], final_params(views))
    assert views.spent == dict.fromkeys(range(3), frozenset(range(3)))
