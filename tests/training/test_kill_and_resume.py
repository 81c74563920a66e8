"""Runs that are killed with SIGKILL, again and again, end bit for bit where they would have."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from helpers import resumable_run

SCRIPT = Path(resumable_run.__file__)
NUM_RELEASES, KILLS = 24, 2


def start(*arguments) -> subprocess.Popen:
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def killed(model, folder, moment: random.Random) -> list[list[str]]:
    """Starts or resumes a run, kills it at a random moment, and returns what it published."""
    with start(model, folder) as process:
        lines = [process.stdout.readline() for _ in range(moment.randint(1, 3))]
        time.sleep(moment.uniform(0, 0.1))  # in a step, in a save, or between
        process.send_signal(signal.SIGKILL)
        lines += process.stdout.read().splitlines()
    assert process.returncode == -signal.SIGKILL
    return [line.split() for line in lines if line.strip()]


def finished(model, folder, result) -> list[list[str]]:
    with start(model, folder, result) as process:
        published, errors = process.communicate()
    assert process.returncode == 0, errors
    return [line.split() for line in published.splitlines()]


@pytest.mark.slow  # eight processes
@pytest.mark.parametrize("model", ["dense", "conv"])
def test_train_killed_and_resumed_is_equal_bit_for_bit(model, tmp_path):
    folder, result = tmp_path / "checkpoints", tmp_path / "result.json"
    moment, published = random.Random(model), []
    for _ in range(KILLS):
        published += killed(model, folder, moment)
        on_disk = max(int(step.name) for step in folder.iterdir() if step.name.isdigit())
        assert int(published[-1][0]) <= on_disk < NUM_RELEASES
    published += finished(model, folder, result)

    resumed, straight = json.loads(result.read_text())
    assert resumed == straight
    assert resumed["num_releases"] == NUM_RELEASES
    # Whatever was published of one release is one thing, whichever process published it.
    by_release = dict(published)
    assert {(release, words) for release, words in published} == set(by_release.items())
    assert by_release[str(NUM_RELEASES)] == straight["params"]
