"""Rounds and trainings with a process for each party, some of them killed."""

import time

import numpy as np
import pytest

from dpjax.federated import Parties
from dpjax.federated.processes import read_study
from experiments.federated.loopback import Limits, finish, start, start_all, write_study

MECHANISM = """
[plan.mechanism]
type = "dpjax.mechanisms.ClippedSum"
bounds = [0.0, 1.0]
scale = 0.01
adjacency = "add_remove"
"""
RECORDS = [{"x": np.full((10 * (holder + 1), 1), 0.5)} for holder in range(3)]
START = 60.0  # seconds that a process may take to start on a busy machine

pytestmark = pytest.mark.slow


@pytest.fixture
def study(tmp_path):
    def written(num_dropouts, time_limit=120.0, waiting_time=1.0):
        parties = Parties(
            num_holders=3, num_nodes=2, num_dropouts=num_dropouts, observer_is_holder=False
        )
        limits = Limits(waiting_time=waiting_time, time_limit=time_limit)
        write_study(tmp_path, MECHANISM, parties, RECORDS, delta=1e-5, limits=limits)
        return tmp_path, parties

    return written


def wait_for(path, processes):
    """Waits until a journal has an entry."""
    begin = time.monotonic()
    while not path.exists():
        assert time.monotonic() - begin < 60, {n: p.poll() for n, p in processes.items()}
        time.sleep(0.01)


def released(folder):
    with np.load(folder / "released.npz") as file:
        return float(file["released"][0]), file["holders"].tolist()


def test_parties_that_are_killed_and_started_again_send_the_same(study):
    """A holder after its shares and a node after its opening; the round has the result of all."""
    folder, parties = study(0)
    processes = start_all(folder, parties)
    sent = {}
    for name, entry in (("holder-1", "shares-0"), ("node-1", "opening-0")):
        path = folder / f"journal-{name}" / entry
        wait_for(path, processes)
        processes[name].kill()
        processes[name].communicate()
        sent[path] = path.read_bytes()
        processes[name] = start(folder, name)
    outcomes = finish(processes, timeout=120 + START)
    assert outcomes["analyst"][0] == 0, outcomes
    assert sent == {path: path.read_bytes() for path in sent}
    assert "spent: 1 of 1 rounds" in outcomes["holder-1"][1]
    total, holders = released(folder)
    assert holders == [0, 1, 2]
    assert total == pytest.approx(0.5 * (10 + 20 + 30), abs=0.2)


@pytest.mark.parametrize(("num_dropouts", "time_limit"), [(1, 120.0), (0, 20.0)])
def test_holder_that_stays_away_is_left_out(study, num_dropouts, time_limit):
    """Before it could send: a sum of the others, or no result where their noise is too little."""
    folder, parties = study(num_dropouts, time_limit)
    processes = start_all(folder, parties)
    processes["holder-1"].kill()
    processes.pop("holder-1").communicate()
    begin = time.monotonic()
    outcomes = finish(processes, timeout=time_limit + START)
    assert time.monotonic() - begin < time_limit + START
    status, output = outcomes["analyst"]
    if num_dropouts:
        assert status == 0, outcomes
        total, holders = released(folder)
        assert holders == [0, 2]
        assert total == pytest.approx(0.5 * (10 + 30), abs=0.2)
    else:
        assert (status, output.strip()) == (1, "refused: too few holders")
        assert not (folder / "released.npz").exists()
        assert {outcomes[f"node-{node}"][1].strip() for node in range(2)} == {"opened: nothing"}


def test_parties_of_another_plan_are_refused(study):
    """One holder's file has other noise: its messages are refused by their code, and the round."""
    folder, _ = study(0)
    other = (folder / "study.toml").read_text().replace("scale = 0.01", "scale = 0.02")
    (folder / "other.toml").write_text(other)
    settings = (folder / "holder-1.toml").read_text().replace("study.toml", "other.toml")
    (folder / "holder-1.toml").write_text(settings)
    assert read_study(folder / "other.toml") != read_study(folder / "study.toml")
    nodes = {f"node-{node}": start(folder, f"node-{node}") for node in range(2)}
    outcomes = finish(nodes | {"holder-1": start(folder, "holder-1")}, timeout=120 + START)
    status, output = outcomes["holder-1"]
    assert status == 1
    assert output.splitlines()[:2] == ["node 0: plan", "node 1: plan"]


def test_check_names_the_holder_of_another_plan(study):
    """By processes of all parties; then it is one plan for the holder that corrected its file."""
    folder, _ = study(0, waiting_time=60.0)
    right = (folder / "holder-1.toml").read_text()
    other = (folder / "study.toml").read_text().replace("scale = 0.01", "scale = 0.02")
    (folder / "other.toml").write_text(other)
    (folder / "holder-1.toml").write_text(right.replace("study.toml", "other.toml"))
    nodes = {f"node-{node}": start(folder, f"node-{node}") for node in range(2)}
    clients = ["holder-0", "holder-1", "holder-2", "analyst"]
    checks = {name: start(folder, name, command="check") for name in clients}
    outcomes = finish(checks, timeout=60 + START)
    assert {status for status, _ in outcomes.values()} == {1}, outcomes
    assert outcomes["holder-0"][1].splitlines()[-1].endswith(": holder-1")
    (folder / "holder-1.toml").write_text(right)
    last = finish({"holder-1": start(folder, "holder-1", command="check")}, timeout=START)
    assert last["holder-1"][0] == 0, last
    assert last["holder-1"][1].startswith("all 6 parties hold plan ")
    outcomes = finish(nodes, timeout=START)
    assert {output.strip() for _, output in outcomes.values()} == {"opened: nothing"}
    assert not list(folder.glob("journal-holder-*"))  # nothing was spent


PROGRAM = """
import jax.numpy as jnp
import optax
from dpjax.federated import gradient_training

def training(mechanism):
    def loss(w, example):
        return 0.5 * (w @ example["x"] - example["y"]) ** 2

    return gradient_training(loss, jnp.zeros(2), optax.sgd(0.2), mechanism=mechanism)
"""
STEPS = """
[plan.mechanism]
type = "dpjax.federated.ClippedGradientSum"
num_parameters = 2
[plan.mechanism.mechanism]
type = "dpjax.SubsampledGaussian"
l2_clip = 1.0
noise_multiplier = 1.0
num_steps = 50
adjacency = "zero_out"
[plan.mechanism.mechanism.sampling]
type = "dpjax.PoissonSampling"
num_examples = 900
sampling_rate = 0.2
"""


@pytest.fixture
def training(tmp_path):
    rng = np.random.default_rng(0)
    records = [{"x": rng.normal(size=(300, 2)).astype(np.float32)} for _ in range(3)]
    for own in records:
        own["y"] = own["x"] @ np.array([0.7, -0.4], np.float32)
    parties = Parties(num_holders=3, num_nodes=2)
    (tmp_path / "program.py").write_text(PROGRAM)
    limits = Limits(waiting_time=100.0, time_limit=200.0)
    program = tmp_path / "program.py"
    write_study(tmp_path, STEPS, parties, records, delta=1e-5, limits=limits, program=program)
    return tmp_path, parties


def kill_and_start(folder, processes, name):
    processes[name].kill()
    processes[name].communicate()
    processes[name] = start(folder, name)


def test_training_ends_when_killed_parties_start_again(training):
    """A holder, a node and the analyst in the middle of fifty rounds: all of them end."""
    folder, parties = training
    processes = start_all(folder, parties)
    for number, name in ((8, "holder-1"), (16, "node-0"), (24, "analyst"), (32, "node-1")):
        wait_for(folder / "journal-holder-0" / f"spent-{number}", processes)
        kill_and_start(folder, processes, name)
    outcomes = finish(processes, timeout=200 + START)
    assert {status for status, _ in outcomes.values()} == {0}, outcomes
    for holder in range(3):
        assert outcomes[f"holder-{holder}"][1].strip() == "spent: 50 of 50 rounds of the plan"
    with np.load(folder / "released.npz") as file:
        np.testing.assert_allclose(file["params"], [0.7, -0.4], atol=0.1)


def test_training_without_a_holder_goes_on_when_it_is_back(training):
    """The analyst's time is over: a clear code. All are started again, and the training ends."""
    folder, parties = training
    study = (folder / "study.toml").read_text()
    short = study.replace("time_limit = 200.0", "time_limit = 30.0")
    short = short.replace("waiting_time = 100.0", "waiting_time = 20.0")
    (folder / "study.toml").write_text(short)
    processes = start_all(folder, parties)
    wait_for(folder / "journal-holder-0" / "spent-5", processes)
    processes["holder-2"].kill()
    processes.pop("holder-2").communicate()
    outcomes = finish(processes, timeout=30 + START)
    assert (outcomes["analyst"][0], outcomes["analyst"][1].strip()) == (
        1,
        "refused: too few holders",
    )
    (folder / "study.toml").write_text(study)
    outcomes = finish(start_all(folder, parties), timeout=200 + START)
    assert {status for status, _ in outcomes.values()} == {0}, outcomes
    for holder in range(3):
        assert outcomes[f"holder-{holder}"][1].strip() == "spent: 50 of 50 rounds of the plan"


def test_party_of_another_program_is_refused(training):
    folder, _ = training
    other = (folder / "program.py").read_text().replace("0.5 *", "0.4 *")
    (folder / "other.py").write_text(other)
    study = (folder / "study.toml").read_text().replace("program.py", "other.py")
    (folder / "other.toml").write_text(study)
    settings = (folder / "holder-1.toml").read_text().replace("study.toml", "other.toml")
    (folder / "holder-1.toml").write_text(settings)
    nodes = {f"node-{node}": start(folder, f"node-{node}") for node in range(2)}
    outcomes = finish(nodes | {"holder-1": start(folder, "holder-1")}, timeout=120 + START)
    assert outcomes["holder-1"] == (1, "refused: plan\n")
