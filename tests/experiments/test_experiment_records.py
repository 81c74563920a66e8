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


def test_load_records_returns_what_save_record_wrote_as_strict_json(tmp_path):
    save_record(tmp_path, RECORD)
    save_record(tmp_path, replace(RECORD, row="2", measured={"loss": math.nan}))
    first, second = load_records(tmp_path, "toy_table")
    assert first == RECORD
    assert math.isnan(second.measured["loss"])

    def refuse(constant):
        raise AssertionError(f"{constant} is not JSON")

    text = records_path(tmp_path, "toy_table").read_text(encoding="utf-8")
    item, _ = json.loads(text, parse_constant=refuse)
    assert set(item) == set(vars(RECORD))
    assert (item["certified"], item["series"]) == ({"ε": "inf"}, {"loss": [1.0, "-inf"]})


def test_save_record_replaces_that_of_the_same_row_and_profile_only(tmp_path):
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
def test_encode_makes_arrays_and_scalars_plain(value, expected):
    assert encode(value) == expected
    json.dumps(encode(value), allow_nan=False)


@pytest.mark.parametrize("value", [{1: 2}, {"a": {None: 1}}, object(), b"bytes", {"a": {1, 2}}, 1j])
def test_encode_refuses_what_json_cannot_hold(value):
    with pytest.raises(TypeError, match="record"):
        encode(value)


def test_decode_leaves_other_strings_alone():
    assert decode({"a": ["inf", "information"], "b": "NaN"}) == {
        "a": [math.inf, "information"],
        "b": "NaN",
    }


@pytest.mark.parametrize("text", ["", "{", "3", '["a"]', '[{"row": "1"}]', '[{"unknown": 1}]'])
def test_load_records_names_a_broken_file(tmp_path, text):
    records_path(tmp_path, "toy_table").write_text(text)
    with pytest.raises(ValueError, match=r"toy_table\.json must be a list of records"):
        load_records(tmp_path, "toy_table")


@pytest.mark.parametrize("step", ["fsync", "replace"])
@pytest.mark.parametrize("error", [OSError("disk full"), KeyboardInterrupt()])
def test_save_record_leaves_the_old_records_after_a_crash(tmp_path, monkeypatch, step, error):
    save_record(tmp_path, RECORD)

    def crash(*arguments):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(os, step, crash)
        with pytest.raises(type(error)):
            save_record(tmp_path, replace(RECORD, row="2"))
    assert load_records(tmp_path, "toy_table") == [RECORD]
    assert {path.name for path in tmp_path.iterdir()} == {".lock", "toy_table.json"}
    with pytest.raises(TypeError):
        save_record(tmp_path, replace(RECORD, measured={"a": object()}))
    assert load_records(tmp_path, "toy_table") == [RECORD]


def test_is_current_compares_the_settings(tmp_path):
    save_record(tmp_path, replace(RECORD, settings={"sizes": (1, 2), "floor": math.nan}))
    (record,) = load_records(tmp_path, "toy_table")
    assert is_current(record, Row("1", {"floor": math.nan, "sizes": (1, 2)}, {}))
    assert not is_current(record, Row("1", {"floor": math.nan, "sizes": (1, 3)}, {}))
    assert not is_current(record, Row("1", {"sizes": (1, 2)}, {}))


def test_find_record_takes_the_source_of_the_row():
    row = Row("1", {}, {"ε": 0.84})
    assert find_record([RECORD], row, "quick") == replace(RECORD, source={"ε": 0.84})
    assert find_record([RECORD], row, "paper") is None
    assert find_record([RECORD], Row("2", {}, {}), "quick") is None
