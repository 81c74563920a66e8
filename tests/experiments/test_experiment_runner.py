import datetime
import fcntl
import os
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from experiments.lib import runner
from experiments.lib.records import load_records
from experiments.lib.registry import Result
from experiments.lib.runner import Plan, run_experiment, run_in_processes


def records(plan):
    return load_records(plan.results, "toy_table")


def test_run_experiment_records_each_row_once(toy, plan, said):
    assert run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"]
    before = records(plan)
    first, *_ = before
    assert (first.experiment, first.row, first.profile) == ("toy_table", "1", "quick")
    assert first.settings == {"step_size": 0.1, "epochs": 1, "l2_clip": 1.0}
    assert first.source == {"accuracy %": 91.0}
    assert first.measured == {"accuracy %": 71.5, "CLT ε": 0.8765}
    assert first.certified == {"ε": 1 + 1.23411}
    assert first.series == {"accuracy": [50.0, 71.5]}
    assert first.note == "toy data & more"
    assert first.finished
    assert first.seconds >= 0
    assert datetime.date.fromisoformat(first.date)
    assert set(first.versions) == {"Python", "JAX", "dpjax"}
    assert said[0] == "toy_table (quick), row 1: started"
    assert re.fullmatch(r"toy_table \(quick\), row 1: done in \d+\.\d s", said[1])
    assert len(said) == 6

    # Finished rows are not run again, unless the run is fresh.
    assert run_experiment(toy.experiment, plan)
    assert said[6:] == [f"toy_table (quick), row {row}: already there" for row in "123"]
    assert records(plan) == before
    run_experiment(toy.experiment, replace(plan, fresh=True))
    assert toy.names == ["1", "2", "3"] * 2
    assert [context.fresh for _, context in toy.ran] == [False] * 3 + [True] * 3
    assert len(records(plan)) == 3


def test_run_experiment_reruns_rows_of_other_settings_profile_or_data(toy, plan):
    stand_in, real = (replace(toy.experiment, data=lambda name=name: name) for name in "sr")
    run_experiment(stand_in, plan)
    run_experiment(stand_in, replace(plan, profile="paper"))
    assert [record.profile for record in records(plan)] == ["quick"] * 3 + ["paper"] * 3
    assert {context.profile for _, context in toy.ran} == {"quick", "paper"}
    toy.step_size = 0.2
    run_experiment(stand_in, plan)
    assert toy.names == ["1", "2", "3"] * 3
    run_experiment(real, plan)
    run_experiment(real, plan)
    assert toy.names == ["1", "2", "3"] * 4
    found = [record for record in records(plan) if record.profile == "quick"]
    assert {(record.settings["step_size"], record.data) for record in found} == {(0.2, "r")}
    assert len(found) == 3


def test_run_experiment_records_a_failure_and_tries_it_again(toy, plan, said):
    toy.raises = {"2": RuntimeError("loss is not finite")}
    assert not run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"]
    first, second, third = records(plan)
    assert [record.finished for record in (first, second, third)] == [True, False, True]
    assert second.error == "RuntimeError: loss is not finite"
    assert not second.measured
    assert not second.certified
    assert "run_row" in next(line for line in said if "Traceback" in line)
    assert any("row 2: FAILED after" in line for line in said)
    assert not any("row 2: done" in line for line in said)

    toy.raises = {}
    assert run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3", "2"]
    assert all(record.finished for record in records(plan))

    # A failure takes the place of an earlier result.
    toy.raises = {"1": RuntimeError("now broken")}
    run_experiment(toy.experiment, replace(plan, fresh=True))
    assert {record.row for record in records(plan) if not record.finished} == {"1"}


@pytest.mark.parametrize("result", [None, Result({"a": object()}, {}), Result({1: 2.0}, {})])
def test_run_experiment_fails_results_that_json_cannot_hold(toy, plan, result):
    experiment = replace(toy.experiment, run_row=lambda row, context: result)
    assert not run_experiment(experiment, plan)
    assert all(record.error.startswith("TypeError: ") for record in records(plan))


def leave_a_file(toy, plan):
    """Lets every row leave a file behind, and returns what each run finds on arrival."""
    found = []

    def run_row(row, context):
        found.append(sorted(path.name for path in context.folder.iterdir()))
        (context.folder / "checkpoint").write_text(row.name)
        return toy.run_row(row, context)

    return replace(toy.experiment, run_row=run_row), found


def test_run_experiment_resumes_an_interrupted_row_in_its_folder(toy, plan):
    experiment, found = leave_a_file(toy, plan)
    toy.raises = {"2": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, plan)
    assert [record.row for record in records(plan)] == ["1"]
    toy.raises = {}
    run_experiment(experiment, plan)
    assert toy.names == ["1", "2", "2", "3"]
    assert found == [[], [], ["checkpoint"], []]
    notes = [record.note for record in records(plan)]
    assert ["Resumed" in note for note in notes] == [False, True, False]
    assert notes[1].startswith("toy data & more Resumed from checkpoints")
    run_experiment(experiment, replace(plan, fresh=True))
    assert found[4:] == [[], [], []]
    assert not any("Resumed" in record.note for record in records(plan))


def test_run_experiment_has_a_folder_for_each_row_settings_and_profile(toy, plan):
    experiment, found = leave_a_file(toy, plan)
    run_experiment(experiment, plan)
    run_experiment(experiment, replace(plan, profile="paper"))
    toy.step_size = 0.2
    run_experiment(experiment, plan)
    assert found == [[]] * 9

    names = ["../../up", "a/b", "a b", "σ = 0.5", "."]
    rows = [replace(toy.rows("quick")[0], name=name) for name in names]
    toy.ran.clear()
    toy.raises = {name: RuntimeError() for name in names}
    run_experiment(replace(toy.experiment, rows=lambda profile: rows), plan)
    folders = {context.folder.resolve() for _, context in toy.ran}
    assert len(folders) == len(names)
    assert {folder.parent for folder in folders} == {plan.results / "work" / "toy_table"}


def test_run_experiment_fails_rows_whose_data_cannot_be_read(toy, plan):
    def unreadable():
        raise ValueError("truncated")

    toy.raises = {row: ValueError("truncated") for row in "123"}
    assert not run_experiment(replace(toy.experiment, data=unreadable), plan)
    assert {record.data for record in records(plan)} == {"unreadable: truncated"}


def test_run_experiment_takes_over_a_record_of_the_other_profile(toy, plan):
    same = replace(toy.experiment, rows=lambda profile: toy.rows("quick"))
    run_experiment(same, plan)
    run_experiment(same, replace(plan, profile="paper"))
    assert toy.names == ["1", "2", "3"]
    assert [record.profile for record in records(plan)] == ["quick"] * 3 + ["paper"] * 3
    for quick, paper in zip(records(plan)[:3], records(plan)[3:], strict=True):
        assert replace(paper, profile="quick") == quick
    run_experiment(same, replace(plan, profile="paper", fresh=True))
    assert toy.names == ["1", "2", "3"] * 2


KILLED = """
import os, signal, sys
from pathlib import Path
from experiments.lib.registry import Experiment, Finding, Page, Result, Row
from experiments.lib.runner import Plan, run_experiment

def run_row(row, context):
    step = context.folder / "step"
    count = int(step.read_text()) if step.exists() else 0
    while count < 3:
        count += 1
        step.write_text(str(count))
        if sys.argv[2] == row.name and count == 2:
            os.kill(os.getpid(), signal.SIGKILL)
    return Result({"steps": count}, {})

rows = [Row(str(number), {"a": 1}, {}) for number in range(3)]
finding = lambda records: Finding("not compared", "Nothing.")
experiment = Experiment(Page("killed", "t", "s", ("d",)), lambda profile: rows, run_row, finding)
run_experiment(experiment, Plan("quick", Path(sys.argv[1]), False, print))
"""


@pytest.mark.slow
def test_run_experiment_continues_inside_a_row_after_a_kill(tmp_path):
    def run(row):
        arguments = [sys.executable, "-c", KILLED, str(tmp_path), row]
        return subprocess.run(arguments, capture_output=True, text=True, check=False)

    assert run("1").returncode == -signal.SIGKILL
    assert [record.row for record in load_records(tmp_path, "killed")] == ["0"]
    step = next(tmp_path.glob("work/killed/quick_1_*/step"))
    assert step.read_text() == "2"
    found = run("none")
    assert found.returncode == 0, found.stderr
    assert "row 0: already there" in found.stdout
    assert [record.measured for record in load_records(tmp_path, "killed")] == [{"steps": 3}] * 3


@pytest.mark.slow
def test_save_record_of_two_processes_loses_none(tmp_path):
    """Both replace the same file; each must keep what the other saved."""
    program = """
import sys
from pathlib import Path
from experiments.lib.records import save_record
from experiments.lib.registry import Record
for number in range(60):
    row = f"{sys.argv[2]} {number}"
    save_record(Path(sys.argv[1]), Record("e", row, "quick", {}, {}, {}, {}, 1.0))
"""
    arguments = [sys.executable, "-c", program, str(tmp_path)]
    started = [subprocess.Popen([*arguments, name]) for name in "ab"]
    assert [process.wait() for process in started] == [0, 0]
    assert len(load_records(tmp_path, "e")) == 120


def test_run_experiment_waits_for_a_row_of_another_process(toy, plan):
    folder = plan.results / "work" / "toy_table"
    folder.mkdir(parents=True)
    with (folder / "quick_2.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=run_experiment, args=(toy.experiment, plan))
        thread.start()
        thread.join(0.5)
        assert toy.names == ["1"]
    thread.join()
    assert toy.names == ["1", "2", "3"]


@pytest.mark.slow
def test_run_in_processes_shares_the_experiments(tmp_path, capfd):
    names = ["bayes_bob", "pate_analysis", "course_differencing"]
    assert run_in_processes(names, Plan("quick", tmp_path, fresh=False), 2)
    said = capfd.readouterr().out
    for name in names:
        rows = {record.row for record in load_records(tmp_path, name) if record.finished}
        assert rows
        assert said.count(f"{name} (quick), row") == 2 * len(rows)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_processes_have_cores_of_their_own():
    before = os.sched_getaffinity(0)
    shares = []
    for position in range(len(before)):
        with runner._on_share_of_cores(position, len(before)):
            asked = "import os; print(*os.sched_getaffinity(0))"
            found = subprocess.run([sys.executable, "-c", asked], capture_output=True, check=True)
            shares += [int(core) for core in found.stdout.split()]
    assert sorted(shares) == sorted(before)
    assert os.sched_getaffinity(0) == before

    # More processes than cores share all of them.
    with runner._on_share_of_cores(0, len(before) + 1):
        assert os.sched_getaffinity(0) == before


@pytest.mark.slow
def test_run_in_processes_fails_with_an_error(tmp_path):
    assert not run_in_processes(["nonesuch"], Plan("quick", tmp_path, fresh=False), 1)
