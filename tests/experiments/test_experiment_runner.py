import datetime
import fcntl
import math
import re
import signal
import subprocess
import sys
import threading
from dataclasses import replace

import pytest

from experiments.lib.records import load_records
from experiments.lib.registry import Result
from experiments.lib.runner import Plan, run_experiment, run_in_processes


def records(plan):
    return load_records(plan.results, "toy_table")


def test_every_row_runs_once_and_is_recorded(toy, plan):
    assert run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"]
    first, *_ = records(plan)
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


def test_finished_rows_are_not_run_again(toy, plan, said):
    run_experiment(toy.experiment, plan)
    before = records(plan)
    said.clear()
    assert run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"]
    assert said == [f"toy_table (quick), row {row}: already there" for row in "123"]
    assert records(plan) == before


def test_progress_names_each_start_and_end_with_its_time(toy, plan, said):
    run_experiment(toy.experiment, plan)
    assert said[0] == "toy_table (quick), row 1: started"
    assert re.fullmatch(r"toy_table \(quick\), row 1: done in \d+\.\d s", said[1])
    assert len(said) == 6


def test_fresh_runs_everything_again(toy, plan):
    run_experiment(toy.experiment, plan)
    run_experiment(toy.experiment, replace(plan, fresh=True))
    assert toy.names == ["1", "2", "3"] * 2
    assert [context.fresh for _, context in toy.ran] == [False] * 3 + [True] * 3
    assert len(records(plan)) == 3


def test_changed_settings_make_a_record_stale(toy, plan):
    run_experiment(toy.experiment, plan)
    toy.step_size = 0.2
    run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"] * 2
    assert [record.settings["step_size"] for record in records(plan)] == [0.2] * 3


def test_profiles_live_side_by_side(toy, plan):
    run_experiment(toy.experiment, plan)
    run_experiment(toy.experiment, replace(plan, profile="paper"))
    assert [record.profile for record in records(plan)] == ["quick"] * 3 + ["paper"] * 3
    assert {context.profile for _, context in toy.ran} == {"quick", "paper"}


def test_a_row_that_raises_is_recorded_as_failed_and_the_others_go_on(toy, plan, said):
    toy.raises = {"2": RuntimeError("loss is not finite")}
    assert not run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3"]
    first, second, third = records(plan)
    assert first.finished
    assert third.finished
    assert second.error == "RuntimeError: loss is not finite"
    assert not second.finished
    assert not second.measured
    assert not second.certified
    traceback = next(line for line in said if "Traceback" in line)
    assert "run_row" in traceback
    assert any("row 2: FAILED after" in line for line in said)
    assert not any("row 2: done" in line for line in said)


def test_a_failed_row_is_tried_again(toy, plan):
    toy.raises = {"2": RuntimeError()}
    run_experiment(toy.experiment, plan)
    toy.raises = {}
    assert run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "3", "2"]
    assert all(record.finished for record in records(plan))


def test_a_failure_takes_the_place_of_an_earlier_result(toy, plan):
    run_experiment(toy.experiment, plan)
    toy.raises = {"1": RuntimeError("now broken")}
    run_experiment(toy.experiment, replace(plan, fresh=True))
    assert {record.row for record in records(plan) if not record.finished} == {"1"}


@pytest.mark.parametrize("result", [None, Result({"a": object()}, {}), Result({1: 2.0}, {})])
def test_a_result_that_cannot_be_kept_is_a_failure(toy, plan, result):
    experiment = replace(toy.experiment, run_row=lambda row, context: result)
    assert not run_experiment(experiment, plan)
    assert all(record.error.startswith("TypeError: ") for record in records(plan))


def test_an_interrupt_stops_at_once_and_keeps_what_is_finished(toy, plan):
    toy.raises = {"2": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2"]
    assert [record.row for record in records(plan)] == ["1"]
    toy.raises = {}
    run_experiment(toy.experiment, plan)
    assert toy.names == ["1", "2", "2", "3"]


def test_an_infinite_result_is_kept(toy, plan):
    result = Result({"loss": math.nan}, {"ε": math.inf})
    experiment = replace(toy.experiment, run_row=lambda row, context: result)
    assert run_experiment(experiment, plan)
    assert records(plan)[0].certified == {"ε": math.inf}


def leave_a_file(toy, plan):
    """Lets every row leave a file behind, and returns what each run finds on arrival."""
    found = []

    def run_row(row, context):
        found.append(sorted(path.name for path in context.folder.iterdir()))
        (context.folder / "checkpoint").write_text(row.name)
        return toy.run_row(row, context)

    return replace(toy.experiment, run_row=run_row), found


def test_an_interrupted_row_finds_its_files_again_and_a_fresh_one_does_not(toy, plan):
    experiment, found = leave_a_file(toy, plan)
    toy.raises = {"1": KeyboardInterrupt()}
    with pytest.raises(KeyboardInterrupt):
        run_experiment(experiment, plan)
    toy.raises = {}
    run_experiment(experiment, plan)
    assert found == [[], ["checkpoint"], [], []]
    notes = [record.note for record in records(plan)]
    assert ["Resumed" in note for note in notes] == [True, False, False]
    assert notes[0].startswith("toy data & more Resumed from checkpoints")
    run_experiment(experiment, replace(plan, fresh=True))
    assert found[4:] == [[], [], []]
    assert not any("Resumed" in record.note for record in records(plan))


def test_rows_settings_and_profiles_do_not_share_a_folder(toy, plan):
    experiment, found = leave_a_file(toy, plan)
    run_experiment(experiment, plan)
    run_experiment(experiment, replace(plan, profile="paper"))
    toy.step_size = 0.2
    run_experiment(experiment, plan)
    assert found == [[]] * 9
    assert all(plan.results in context.folder.parents for _, context in toy.ran)


def test_row_names_of_any_kind_have_a_folder_inside_the_results(toy, plan):
    names = ["../../up", "a/b", "a b", "σ = 0.5", "."]
    rows = [replace(toy.rows("quick")[0], name=name) for name in names]
    folders = []

    def run_row(row, context):
        folders.append(context.folder.resolve())
        return Result({}, {})

    experiment = replace(toy.experiment, rows=lambda profile: rows, run_row=run_row)
    assert run_experiment(experiment, plan)
    assert len(set(folders)) == len(names)
    assert {folder.parent for folder in folders} == {plan.results / "work" / "toy_table"}


def test_rows_that_ran_on_other_data_are_run_again(toy, plan):
    run_experiment(replace(toy.experiment, data=lambda: "a stand-in"), plan)
    run_experiment(replace(toy.experiment, data=lambda: "the real data"), plan)
    run_experiment(replace(toy.experiment, data=lambda: "the real data"), plan)
    assert toy.names == ["1", "2", "3"] * 2
    assert {record.data for record in records(plan)} == {"the real data"}


def test_data_that_cannot_be_read_fail_the_rows_and_nothing_else(toy, plan):
    def unreadable():
        raise ValueError("truncated")

    toy.raises = {row: ValueError("truncated") for row in "123"}
    assert not run_experiment(replace(toy.experiment, data=unreadable), plan)
    assert {record.data for record in records(plan)} == {"unreadable: truncated"}


def test_one_row_runs_alone(toy, plan):
    assert run_experiment(toy.experiment, plan, "2")
    assert toy.names == ["2"]
    with pytest.raises(ValueError, match="row must be one of '1', '2', '3', got '4'"):
        run_experiment(toy.experiment, plan, "4")


def test_a_row_with_the_same_settings_in_both_profiles_runs_once(toy, plan):
    same = replace(toy.experiment, rows=lambda profile: toy.rows("quick"))
    run_experiment(same, plan)
    run_experiment(same, replace(plan, profile="paper"))
    assert toy.names == ["1", "2", "3"]
    assert [record.profile for record in records(plan)] == ["quick"] * 3 + ["paper"] * 3
    first, *_, last = records(plan)
    assert last.measured == {"accuracy %": 73.5, "CLT ε": 0.8765}
    assert (first.seconds, first.date) == (records(plan)[3].seconds, records(plan)[3].date)
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


def test_a_killed_run_keeps_its_rows_and_continues_inside_a_row(tmp_path):
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


def test_two_processes_save_to_one_folder_without_losing_records(tmp_path):
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


def test_a_row_that_another_process_runs_is_waited_for(toy, plan):
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
def test_processes_share_the_experiments(tmp_path, capfd):
    names = ["bayes_bob", "pate_analysis", "course_differencing"]
    assert run_in_processes(names, Plan("quick", tmp_path, fresh=False), 2)
    said = capfd.readouterr().out
    for name in names:
        rows = {record.row for record in load_records(tmp_path, name) if record.finished}
        assert rows
        assert said.count(f"{name} (quick), row") == 2 * len(rows)


@pytest.mark.slow
def test_an_error_in_a_process_is_a_failure(tmp_path):
    assert not run_in_processes(["nonesuch"], Plan("quick", tmp_path, fresh=False), 1)
