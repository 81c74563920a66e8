"""Adult's attributes in other codings: the numbers of the categories, the scalings, one row."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest

from experiments.data import Dataset, Split
from experiments.dpvi import adult
from experiments.dpvi.adult import _CODINGS, PART, _number, recode
from experiments.lib.registry import Record, experiment_of, profile_rows
from experiments.lib.runner import Plan, run_row


def make_data(is_stand_in: bool = False) -> Dataset:
    x = np.random.default_rng(0).integers(0, 4, (50, 14)).astype(np.float32)
    y = np.arange(50) % 2
    return Dataset("tiny", Split(x[:40], y[:40]), Split(x[40:], y[40:]), "", is_stand_in, 2, "")


def test_number_counts_values_in_each_order():
    values = np.array([0.5, 9.0, -1.0, 9.0, 0.5, 9.0])
    assert _number(values, "alphabetical").tolist() == [1, 2, 0, 2, 1, 2]
    assert _number(values, "first appearance").tolist() == [0, 1, 2, 1, 0, 1]
    assert _number(values, "frequency").tolist() == [1, 0, 2, 0, 1, 0]


def test_recode_does_not_depend_on_the_scale_of_the_columns():
    data = make_data()
    shifted = dataclasses.replace(
        data,
        train=Split(data.train.x * 3 - 1, data.train.y),
        test=Split(data.test.x * 3 - 1, data.test.y),
    )
    for coding in _CODINGS:
        first, second = recode(data, *coding), recode(shifted, *coding)
        np.testing.assert_allclose(first.train.x, second.train.x, atol=1e-5)
        np.testing.assert_allclose(first.test.x, second.test.x, atol=1e-5)


@pytest.mark.parametrize("is_stand_in", [False, True])
def test_recode_has_the_stated_scalings(is_stand_in: bool):
    def table(order: str, scaling: str) -> np.ndarray:
        found = recode(make_data(is_stand_in), order, scaling)
        return np.concatenate([found.train.x, found.test.x])

    standardised = table("frequency", "standardised")
    np.testing.assert_allclose(standardised.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(standardised.std(axis=0), 1, rtol=1e-5)
    between = table("alphabetical", "to [0, 1]")
    assert (between.min(), between.max()) == (0, 1)
    assert (table("alphabetical", "standardised, with an intercept")[:, 14] == 1).all()
    norms = np.linalg.norm(table("alphabetical", "standardised, records of norm one"), axis=1)
    np.testing.assert_allclose(norms, 1, rtol=1e-5)
    not_centred = table("alphabetical", "over the standard deviation, not centred")
    np.testing.assert_allclose(
        not_centred - not_centred.mean(axis=0), table(*_CODINGS[0]), atol=1e-5
    )


@pytest.mark.slow
def test_run_coding_row_takes_the_sources_step_on_its_coding(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    study = dataclasses.replace(adult.STUDY, data=lambda scaling: make_data(), repeats={"quick": 2})
    monkeypatch.setattr(adult, "STUDY", study)
    rows = profile_rows(experiment_of(adult), "quick")
    (row,) = [each for each in rows if each.settings.get("scaling") == "to [0, 1]"]
    row = dataclasses.replace(row, settings={**row.settings, "num_steps": 5, "sampling_rate": 0.2})
    record = run_row(experiment_of(adult), row, Plan("quick", tmp_path, fresh=True))
    assert isinstance(record, Record)
    assert record.settings["part"] == PART
    assert 0 <= record.measured["accuracy %, source's step"] <= 100
