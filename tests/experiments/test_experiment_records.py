import json
import math
import os
from dataclasses import replace
from types import MappingProxyType

import jax.numpy as jnp
import numpy as np
import pytest

from experiments.lib.records import (
    decode,
    encode,
    find_record,
    is_current,
    load_records,
    records_path,
    save_record,
    write_atomically,
)
from experiments.lib.registry import Record, Row

RECORD = Record(
    experiment="toy_table",
    row="1",
    profile="quick",
    settings={"step_size": 0.1, "layers": [16, 16]},
    source={"ε": 0.83},
    measured={"accuracy %": 94.5},
    certified={"ε": math.inf},
    seconds=1.5,
    note="inf",
    series={"loss": [1.0, -math.inf]},
    date="2025-01-31",
    versions={"Python": "3.11"},
)


def test_a_record_comes_back_as_it_was(tmp_path):
    save_record(tmp_path, RECORD)
    assert load_records(tmp_path, "toy_table") == [RECORD]


def test_not_a_number_comes_back(tmp_path):
    save_record(tmp_path, replace(RECORD, measured={"loss": math.nan}))
    (record,) = load_records(tmp_path, "toy_table")
    assert math.isnan(record.measured["loss"])


def test_the_file_is_strict_json_with_one_object_for_each_row(tmp_path):
    save_record(tmp_path, RECORD)

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = records_path(tmp_path, "toy_table").read_text(encoding="utf-8")
    (item,) = json.loads(text, parse_constant=refuse)
    assert item == {
        "experiment": "toy_table",
        "row": "1",
        "profile": "quick",
        "settings": {"step_size": 0.1, "layers": [16, 16]},
        "source": {"ε": 0.83},
        "measured": {"accuracy %": 94.5},
        "certified": {"ε": "inf"},
        "seconds": 1.5,
        "note": "inf",
        "data": "",
        "certificate": "",
        "series": {"loss": [1.0, "-inf"]},
        "error": "",
        "date": "2025-01-31",
        "versions": {"Python": "3.11"},
    }


def test_a_record_replaces_that_of_the_same_row_and_profile_only(tmp_path):
    paper = replace(RECORD, profile="paper")
    other = replace(RECORD, row="2")
    newer = replace(RECORD, seconds=9.0)
    for record in (RECORD, paper, other, newer):
        save_record(tmp_path, record)
    assert load_records(tmp_path, "toy_table") == [paper, other, newer]


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (np.float32(0.5), 0.5),
        (np.float64("nan"), "nan"),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (jnp.float32(0.25), 0.25),
        (jnp.arange(2), [0, 1]),
        (np.array([1.0, -np.inf]), [1.0, "-inf"]),
        (MappingProxyType({"a": (1, None)}), {"a": [1, None]}),
    ],
)
def test_arrays_and_scalars_become_plain(value, expected):
    assert encode(value) == expected
    json.dumps(encode(value), allow_nan=False)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, object(), b"bytes", {"a": {1, 2}}, 1j])
def test_what_json_cannot_hold_is_refused(value):
    with pytest.raises(TypeError, match="record"):
        encode(value)


def test_decode_leaves_other_strings_alone():
    assert decode({"a": ["inf", "information"], "b": "NaN"}) == {
        "a": [math.inf, "information"],
        "b": "NaN",
    }


@pytest.mark.parametrize("text", ["", "{", "3", '["a"]', '[{"row": "1"}]', '[{"unknown": 1}]'])
def test_a_broken_file_is_named(tmp_path, text):
    records_path(tmp_path, "toy_table").write_text(text)
    with pytest.raises(ValueError, match=r"toy_table\.json must be a list of records"):
        load_records(tmp_path, "toy_table")


def test_a_file_that_is_replaced_is_whole_at_every_moment(tmp_path, monkeypatch):
    path = tmp_path / "file.json"
    write_atomically(path, "old")
    seen = []

    def watch(source, target):
        seen.append((path.read_text(), source.read_text()))
        rename(source, target)

    rename = os.replace
    monkeypatch.setattr(os, "replace", watch)
    write_atomically(path, "new")
    assert seen == [("old", "new")]
    assert path.read_text() == "new"


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_a_crash_while_saving_leaves_the_old_records(tmp_path, monkeypatch, step, error):
    save_record(tmp_path, RECORD)

    def crash(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, crash)
        with pytest.raises(type(error)):
            save_record(tmp_path, replace(RECORD, row="2"))
    assert load_records(tmp_path, "toy_table") == [RECORD]
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "toy_table.json"}


def test_a_record_that_json_cannot_hold_leaves_the_old_ones(tmp_path):
    save_record(tmp_path, RECORD)
    with pytest.raises(TypeError):
        save_record(tmp_path, replace(RECORD, measured={"a": object()}))
    assert load_records(tmp_path, "toy_table") == [RECORD]


def test_a_record_is_current_while_its_settings_are_the_rows(tmp_path):
    save_record(tmp_path, replace(RECORD, settings={"sizes": (1, 2), "floor": math.nan}))
    (record,) = load_records(tmp_path, "toy_table")
    assert is_current(record, Row("1", {"floor": math.nan, "sizes": (1, 2)}, {}))
    assert not is_current(record, Row("1", {"floor": math.nan, "sizes": (1, 3)}, {}))
    assert not is_current(record, Row("1", {"sizes": (1, 2)}, {}))


def test_a_found_record_carries_the_rows_source():
    row = Row("1", {}, {"ε": 0.84})
    assert find_record([RECORD], row, "quick") == replace(RECORD, source={"ε": 0.84})
    assert find_record([RECORD], row, "paper") is None
    assert find_record([RECORD], Row("2", {}, {}), "quick") is None
