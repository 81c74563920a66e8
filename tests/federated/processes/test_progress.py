"""Lines on the progress of a party, and connection errors that are logged once."""

import logging
import re
import threading

import pytest
from helpers.federated_cases import gradient_plan

from dpjax.federated.processes import progress
from dpjax.federated.processes.progress import (
    ConnectionErrors,
    RoundTimes,
    Status,
    format_status,
    log_progress,
)

PLAN = gradient_plan(2, num_steps=400)  # of four holders and three nodes
EVERYONE = frozenset(range(4))
NODES = dict.fromkeys(range(3))
REFUSED = "connect: Connection refused"


@pytest.fixture
def lines(caplog):
    """What the log of dpjax.federated has, as a function."""
    caplog.set_level(logging.DEBUG, "dpjax.federated")
    return lambda: [record.getMessage() for record in caplog.records]


@pytest.mark.parametrize(
    ("status", "codes", "seconds", "line"),
    [
        (Status(None), NODES, None, "before round 1 of 400, 3 of 3 nodes answer"),
        (Status(36), NODES, 0.0812, "round 37 of 400, 3 of 3 nodes answer, 0.081 s a round"),
        (
            Status(36),
            {0: None, 1: "unreachable", 2: "early"},  # the round has not begun at node 2
            None,
            "round 37 of 400, 2 of 3 nodes answer (node-1: unreachable)",
        ),
        (
            Status(0),
            {0: "unreachable", 1: "unreachable", 2: "plan"},
            None,
            "round 1 of 400, 1 of 3 nodes answers"
            " (node-0: unreachable, node-1: unreachable, node-2: plan)",
        ),
        (Status(36, shares={0, 3}), {}, None, "shares of 2 of 4 holders (not holder-1, holder-2)"),
        (Status(36, shares=EVERYONE), {}, None, "round 37 of 400, shares of 4 of 4 holders"),
        # Where rounds go on the holders of this one change from line to line.
        (Status(36, {0}, EVERYONE), {}, 12.34, "round 37 of 400, sum of 4 of 4 holders, 12 s"),
        (Status(36, {0}, EVERYONE), {}, None, "round 37 of 400, shares of 1 of 4 holders (not"),
        (Status(36, None, {0, 1, 2}), {}, None, "round 37 of 400, sum of 3 of 4 holders"),
        (Status(400, None, EVERYONE), {}, None, "400 of 400 rounds are over, sum of 4 of 4"),
    ],
)
def test_format_status(status, codes, seconds, line):
    assert line in format_status(PLAN, status, codes, seconds)


def test_round_times_leave_out_the_start_and_the_end():
    """Start-up of 40 s, ten rounds of 2 s, a line, five of 4 s, and 100 s after the last."""
    now = 0.0
    times = RoundTimes(lambda: now)
    times.look(None)
    times.look(0)
    assert times.mean() is None
    now = 40.0
    times.look(1)
    assert times.mean() is None  # one change: the end of the round alone
    for number in range(2, 12):
        now += 2.0
        times.look(number)
    assert times.mean() == pytest.approx(2.0)
    assert times.mean() is None  # no round has ended since
    for number in range(12, 17):
        now += 4.0
        times.look(number)
    now += 100.0
    times.look(16)
    assert times.mean() == pytest.approx(4.0)
    assert times.mean(of_all=True) == pytest.approx((20 + 20) / 15)


def test_log_progress_has_a_line_at_the_start_each_interval_and_the_end(lines, monkeypatch):
    monkeypatch.setattr(progress, "_LINE_SECONDS", 0.05)
    monkeypatch.setattr(progress, "_LOOK_SECONDS", 0.01)
    later = threading.Event()
    looks = 0

    def status():
        nonlocal looks
        looks += 1
        if len(lines()) > 3:
            later.set()
        return Status(min(looks, 400))

    with log_progress("holder-1", PLAN, status, {0: None}):
        assert later.wait(10)
    first, *middle, last = lines()
    assert first == f"holder-1: starts, plan {PLAN.message_format.fingerprint.hex()}"
    pattern = r"round \d+ of 400, 1 of 1 nodes answers(, [\d.e-]+ s a round)?"
    assert len(middle) >= 3
    assert all(re.fullmatch(f"holder-1: {pattern}", line) for line in middle)
    assert re.fullmatch(f"holder-1: ends, {pattern}", last)


def test_log_progress_has_the_last_line_of_a_round_that_fails(lines):
    with pytest.raises(ZeroDivisionError), log_progress("analyst", PLAN, lambda: Status(3), {}):
        raise ZeroDivisionError
    assert lines()[-1] == "analyst: ends, round 4 of 400"


def log_errors(errors):
    """A node that is not there 124 times, then two texts in turn, and there again, twice."""
    for _ in range(124):
        errors.add(1, REFUSED)
    for _ in range(10):
        errors.add(1, "Deadline Exceeded")
        errors.add(1, REFUSED)
    errors.clear(1)
    errors.clear(1)
    errors.add(1, REFUSED)
    errors.clear(1)


def test_connection_errors_are_logged_once_with_their_number(lines):
    log_errors(ConnectionErrors())
    assert lines() == [
        f"node-1: {REFUSED}",
        "node-1: Deadline Exceeded (after 124 connection errors)",
        "node-1: answers (after 144 connection errors)",
        f"node-1: {REFUSED}",
        "node-1: answers (after 1 connection error)",
    ]


def test_connection_errors_would_be_many_lines_if_all_were_new(lines):
    """Power: a log that takes each text for a new one, as before, has a line for each error."""

    class Forgetful(ConnectionErrors):
        def add(self, node, text):
            self._counts.clear()
            super().add(node, text)

    log_errors(Forgetful())
    assert len(lines()) > 144


def test_connection_errors_of_many_texts_are_few_lines(lines):
    """A node may answer each time with another text."""
    errors = ConnectionErrors()
    for number in range(1000):
        errors.add(0, f"text {number}")
    assert len(lines()) == 8
    errors.add(2, "text 0")  # of another node
    assert len(lines()) == 9
    errors.clear(0)
    assert lines()[-1] == "node-0: answers (after 1000 connection errors)"
