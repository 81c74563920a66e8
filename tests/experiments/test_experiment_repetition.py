"""Committed figures are found again, and a planted difference is reported."""

import copy
import math
from dataclasses import replace

import pytest

from experiments.lib.publication import PUBLISHED, load_publication
from experiments.lib.registry import Record, Tolerance, load_experiments, select_rows
from experiments.lib.repetition import check_rows, compare_records

# Module, profile and row of rows that run in about a second and need no data.
CHEAP = [
    ("experiments.gdp.curves", "quick", "A.1"),
    ("experiments.bayes.bob", "quick", "ε = 10, N = 25"),
    ("experiments.bayes.holders_costs", "quick", "additive shares: N = 10, M = 2, 78 numbers"),
    ("experiments.course.local", "quick", "ε = log 3, n = 100"),
    ("experiments.sgmcmc.bounds", "quick", "8 chains, shared batches of 1,000, η = 0.1"),
]


@pytest.mark.parametrize(("module", "profile", "row"), CHEAP)
def test_check_rows_agrees_with_the_committed_records(module, profile, row):
    (experiment,) = load_experiments([module])
    records = load_publication(PUBLISHED, experiment.name, profile).records
    said = []
    rows = select_rows(experiment, profile, row)
    assert check_rows(experiment, rows, records, said.append), said
    assert said == [f"{experiment.name}, row {row}: agrees with the committed record"]


def test_check_rows_finds_a_planted_difference():
    (experiment,) = load_experiments(["experiments.gdp.curves"])
    records = copy.deepcopy(load_publication(PUBLISHED, "gdp_curves", "quick").records)
    (record,) = (record for record in records if record.row == "A.1")
    record.certified["sup |f − G|"] *= 1 + 1e-6
    said = []
    rows = select_rows(experiment, "quick", "A.1")
    assert not check_rows(experiment, rows, records, said.append)
    assert "certified sup |f − G|" in said[0]
    assert said[-1] == "gdp_curves, row A.1: DIFFERS from the committed record"


def record(measured, certified=None, **changes):
    return Record("e", "1", "quick", {}, {}, measured, certified or {}, 1.0, **changes)


@pytest.mark.parametrize(
    ("old", "new", "agree"),
    [
        ({"accuracy %": 95.0}, {"accuracy %": 95.9}, True),
        ({"accuracy %": 95.0}, {"accuracy %": 96.1}, False),
        ({"accuracy %": 0.1}, {"accuracy %": 0.9}, True),
        ({"NLL": 0.5}, {"NLL": 0.52}, True),
        ({"NLL": 0.5}, {"NLL": 0.53}, False),
        ({"a node (ms)": 0.5}, {"a node (ms)": 5.0}, True),
        ({"ms": 0.5}, {"ms": 5.0}, False),
        ({"CLT ε": 0.5}, {"CLT ε": 0.5 * (1 + 1e-9)}, True),
        ({"CLT ε": 0.5}, {"CLT ε": 0.5 * (1 + 1e-7)}, False),
        ({"ranges %": [1.0, 2.0]}, {"ranges %": (1.5, 2.5)}, True),
        ({"ranges %": [1.0, 2.0]}, {"ranges %": [1.0, 4.0]}, False),
        ({"ranges %": [1.0, 2.0]}, {"ranges %": [1.0]}, False),
        ({"NLL": math.inf}, {"NLL": math.inf}, True),
        ({"NLL": math.nan}, {"NLL": math.nan}, True),
        ({"NLL": math.nan}, {"NLL": 1.0}, False),
        ({"NLL": None}, {"NLL": None}, True),
        ({"NLL": None}, {"NLL": 0.0}, False),
        ({"NLL": 1.0}, {}, False),
        ({}, {"NLL": 1.0}, False),
        ({"kept": True}, {"kept": False}, False),
    ],
)
def test_compare_records_has_a_tolerance_for_each_kind_of_value(old, new, agree):
    assert (compare_records(record(old), record(new), Tolerance()) == []) == agree


def test_compare_records_reports_certified_values_other_data_and_errors():
    old, new = record({}, {"ε": 1.0, "bound %": 50.0}), record({}, {"ε": 1.0, "bound %": 50.1})
    (difference,) = compare_records(old, new, Tolerance())
    assert "certified bound %: 50.1, committed 50.0" in difference
    old = record({"NLL": 1.0}, data="mnist")
    assert "mnist" in compare_records(old, record({"NLL": 1.0}, data="digits"), Tolerance())[0]
    assert "broken" in compare_records(old, record({}, error="broken"), Tolerance())[0]


def test_check_rows_fails_rows_of_other_settings_or_without_a_record(toy):
    rows, said = toy.rows("quick"), []
    assert not check_rows(toy.experiment, rows, [], said.append)
    assert said[0] == "toy_table, row 1: no committed record"
    other = replace(record({}), row="1", settings={"epochs": 2})
    assert not check_rows(toy.experiment, rows[:1], [other], said.append)
    assert "other settings" in said[-2]
    assert not toy.ran
