"""Rounds with a process for each party, some of them killed."""

import time

import numpy as np
import pytest

from dpjax.federated import Parties, read_study
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
    def written(num_dropouts, time_limit=120.0):
        parties = Parties(
            num_holders=3, num_nodes=2, num_dropouts=num_dropouts, observer_is_holder=False
        )
        limits = Limits(waiting_time=1.0, time_limit=time_limit)
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


def test_a_node_is_killed_and_started_again(study):
    """When it has opened its sum; the round ends with the result of all, and the same opening."""
    folder, parties = study(0)
    processes = start_all(folder, parties)
    analyst = processes.pop("analyst")
    wait_for(folder / "journal-node-1" / "opening-0", processes)
    processes["node-1"].kill()
    processes.pop("node-1").communicate()
    opening = (folder / "journal-node-1" / "opening-0").read_bytes()
    processes |= {"analyst": analyst, "node-1": start(folder, "node-1")}
    outcomes = finish(processes, timeout=120 + START)
    assert outcomes["analyst"][0] == 0, outcomes
    assert (folder / "journal-node-1" / "opening-0").read_bytes() == opening
    total, holders = released(folder)
    assert holders == [0, 1, 2]
    assert total == pytest.approx(0.5 * (10 + 20 + 30), abs=0.2)


@pytest.mark.parametrize(("num_dropouts", "time_limit"), [(1, 120.0), (0, 20.0)])
def test_a_holder_is_killed_and_stays_away(study, num_dropouts, time_limit):
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


def test_a_holder_is_killed_with_messages_on_disk_and_sends_the_same(study):
    folder, parties = study(0)
    processes = start_all(folder, parties)
    shares = folder / "journal-holder-1" / "shares-0"
    wait_for(shares, processes)
    processes["holder-1"].kill()
    processes.pop("holder-1").communicate()
    sent = shares.read_bytes()
    outcomes = finish(processes | {"holder-1": start(folder, "holder-1")}, timeout=120 + START)
    assert shares.read_bytes() == sent
    assert outcomes["analyst"][0] == 0, outcomes
    assert released(folder)[1] == [0, 1, 2]
    assert "spent: 1 of 1 rounds" in outcomes["holder-1"][1]


def test_parties_with_different_plans_refuse_each_other(study):
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
