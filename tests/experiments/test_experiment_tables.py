from dataclasses import replace

from experiments.lib.records import load_records
from experiments.lib.registry import Result, Row
from experiments.lib.runner import run_experiment
from experiments.lib.tables import (
    finished_records,
    shared_settings,
    table_cells,
    table_columns,
    table_lines,
    text_table,
)


def run(toy, plan):
    run_experiment(toy.experiment, plan)
    return load_records(plan.results, "toy_table")


def test_lines_say_what_became_of_each_row(toy, plan):
    toy.raises = {"2": RuntimeError("broken")}
    first, second, _ = run(toy, plan)
    lines = table_lines(toy.experiment, "quick", [first, second])
    assert [line.state for line in lines] == ["done", "failed", "not run yet"]
    assert lines[1].outcome == "failed: RuntimeError: broken"
    assert lines[2].outcome == "not run yet"
    assert finished_records(lines) == (first,)


def test_a_stale_record_shows_the_source_and_none_of_its_values(toy, plan):
    records = run(toy, plan)
    toy.step_size = 0.2
    line, *_ = table_lines(toy.experiment, "quick", records)
    assert line.state == "stale"
    assert line.values("source") == {"accuracy %": 91.0}
    assert line.values("settings")["step_size"] == 0.2
    assert line.values("measured") == line.values("certified") == {}
    assert finished_records([line]) == ()


def test_a_record_of_the_other_profile_is_not_shown(toy, plan):
    lines = table_lines(toy.experiment, "paper", run(toy, plan))
    assert {line.state for line in lines} == {"not run yet"}


def test_columns_are_those_of_any_row_and_absent_values_a_dash(toy, plan):
    rows = [Row("1", {}, {"ε": 0.83}), Row("2", {}, {"μ": 2.0, "ε": 7.1})]
    experiment = replace(toy.experiment, rows=lambda profile: rows)
    lines = table_lines(experiment, "quick", [])
    columns = table_columns(lines, "source")
    assert [column.name for column in columns] == ["ε", "μ"]
    assert table_cells(lines[0], "source", columns) == ["0.83", "–"]
    assert table_cells(lines[1], "source", columns) == ["7.10", "2"]


def test_what_is_printed_as_certified_is_certified(toy, plan):
    value = 2.23411
    result = Result({"ε": value}, {"ε": value, "ε lower": value})
    experiment = replace(toy.experiment, run_row=lambda row, context: result)
    run_experiment(experiment, plan)
    line, *_ = table_lines(experiment, "quick", load_records(plan.results, "toy_table"))
    for group, printed in (("measured", ["2.234"]), ("certified", ["2.235", "2.234"])):
        assert table_cells(line, group, table_columns([line], group)) == printed


def test_shared_settings_are_in_every_row_with_one_value():
    rows = [
        Row("1", {"a": 1, "b": [1, 2], "c": 3, "d": 1}, {}),
        Row("2", {"a": 1, "b": (1, 2), "c": 4}, {}),
    ]
    assert shared_settings(rows) == {"a": 1, "b": [1, 2]}


def test_the_text_table_sets_the_three_groups_side_by_side(toy, plan):
    toy.raises = {"2": RuntimeError("broken\nsecond line")}
    title, groups, names, first, second, third = text_table(
        toy.experiment, "quick", run(toy, plan)
    ).splitlines()
    assert title == "toy_table, quick profile: A toy table"
    assert [part.strip() for part in groups.split("|")] == [
        "",
        "source",
        "measured",
        "certified",
        "",
    ]
    assert [part.split() for part in names.split("|")] == [
        ["row"],
        ["accuracy", "%"],
        ["accuracy", "%", "CLT", "ε"],
        ["ε"],
        ["time"],
    ]
    cells = [part.split() for part in first.split("|")]
    assert cells[:4] == [["1"], ["91.0"], ["71.5", "0.8765"], ["2.235"]]
    assert [part.strip() for part in second.split("|")][1:] == [
        "92.0",
        "–       –",
        "–",
        "failed: RuntimeError: broken",
    ]
    bars = {
        tuple(i for i, char in enumerate(line) if char == "|") for line in (names, first, third)
    }
    assert len(bars) == 1


def test_the_text_table_of_what_was_not_run_says_so(toy):
    text = text_table(toy.experiment, "paper", [])
    assert text.count("not run yet") == 3
