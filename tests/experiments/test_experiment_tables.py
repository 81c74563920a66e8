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


def test_table_lines_state_of_each_row(toy, plan):
    toy.raises = {"2": RuntimeError("broken")}
    first, second, _ = run(toy, plan)
    lines = table_lines(toy.experiment, "quick", [first, second])
    assert [line.state for line in lines] == ["done", "failed", "not run yet"]
    assert [line.outcome for line in lines[1:]] == ["failed: RuntimeError: broken", "not run yet"]
    assert finished_records(lines) == (first,)
    paper = table_lines(toy.experiment, "paper", [first, second])
    assert {line.state for line in paper} == {"not run yet"}

    # A stale record has the source's values and none of its own.
    toy.step_size = 0.2
    stale, *_ = table_lines(toy.experiment, "quick", [first, second])
    assert stale.state == "stale"
    assert stale.values("source") == {"accuracy %": 91.0}
    assert stale.values("settings")["step_size"] == 0.2
    assert stale.values("measured") == stale.values("certified") == {}
    assert finished_records([stale]) == ()


def test_table_columns_are_those_of_any_row(toy, plan):
    rows = [Row("1", {}, {"ε": 0.83}), Row("2", {}, {"μ": 2.0, "ε": 7.1})]
    experiment = replace(toy.experiment, rows=lambda profile: rows)
    lines = table_lines(experiment, "quick", [])
    columns = table_columns(lines, "source")
    assert [column.name for column in columns] == ["ε", "μ"]
    assert table_cells(lines[0], "source", columns) == ["0.83", "–"]
    assert table_cells(lines[1], "source", columns) == ["7.10", "2"]


def test_table_cells_round_certified_values_to_their_side(toy, plan):
    value = 2.23411
    result = Result({"ε": value}, {"ε": value, "ε lower": value})
    experiment = replace(toy.experiment, run_row=lambda row, context: result)
    run_experiment(experiment, plan)
    line, *_ = table_lines(experiment, "quick", load_records(plan.results, "toy_table"))
    for group, printed in (("measured", ["2.234"]), ("certified", ["2.235", "2.234"])):
        assert table_cells(line, group, table_columns([line], group)) == printed


def test_shared_settings_have_one_value_in_every_row():
    rows = [
        Row("1", {"a": 1, "b": [1, 2], "c": 3, "d": 1}, {}),
        Row("2", {"a": 1, "b": (1, 2), "c": 4}, {}),
    ]
    assert shared_settings(rows) == {"a": 1, "b": [1, 2]}


def test_text_table_sets_the_groups_side_by_side(toy, plan):
    toy.raises = {"2": RuntimeError("broken\nsecond line")}
    title, groups, names, first, second, third = text_table(
        toy.experiment, "quick", run(toy, plan)
    ).splitlines()
    assert title == "toy_table, quick profile: A toy table"
    assert groups.split("|")[1:4] == [" source     ", " measured           ", " certified "]
    assert [part.split() for part in names.split("|")[1:4]] == [
        ["accuracy", "%"],
        ["accuracy", "%", "CLT", "ε"],
        ["ε"],
    ]
    cells = [part.split() for part in first.split("|")]
    assert cells[:4] == [["1"], ["91.0"], ["71.5", "0.8765"], ["2.235"]]
    dashes = ["92.0", "–       –", "–", "failed: RuntimeError: broken"]
    assert [part.strip() for part in second.split("|")][1:] == dashes
    bars = {tuple(i for i, c in enumerate(line) if c == "|") for line in (names, first, third)}
    assert len(bars) == 1
    assert text_table(toy.experiment, "paper", []).count("not run yet") == 3
