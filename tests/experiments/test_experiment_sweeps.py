"""Rows of sweeps, columns of records, and statistics of repeated runs."""

import numpy as np
import pytest

from experiments.lib.registry import Record
from experiments.lib.sweeps import column, grid, make_rows, mean_and_error, quantiles


def test_a_row_has_the_shared_settings_its_own_and_the_source():
    points = grid(epsilon=[0.5, 1.0], n=[10, 20])
    rows = make_rows("ε = {epsilon:g}, n = {n}", points, {"n": 5, "seed": 0}, {"error": 0.1})
    assert [row.name for row in rows] == [
        "ε = 0.5, n = 10",
        "ε = 0.5, n = 20",
        "ε = 1, n = 10",
        "ε = 1, n = 20",
    ]
    assert rows[1].settings == {"n": 20, "seed": 0, "epsilon": 0.5}
    assert all(row.source == {"error": 0.1} for row in rows)


def test_a_column_is_certified_or_else_measured():
    records = [
        Record("toy", "1", "quick", {}, {"ε": 9.0}, {"accuracy": 0.9, "ε": 5.0}, {"ε": 1.0}, 1.0),
        Record("toy", "2", "quick", {}, {}, {"accuracy": 0.8, "ε": 2.0}, {}, 1.0),
    ]
    assert column(records, "ε") == [1.0, 2.0]
    assert column(records, "accuracy") == [0.9, 0.8]
    with pytest.raises(KeyError):
        column(records, "no such column")


def test_the_error_of_a_mean_shrinks_with_the_root_of_the_runs():
    runs = np.random.default_rng(0).normal(3.0, 2.0, 10_000)
    mean, error = mean_and_error(runs)
    assert error == pytest.approx(2.0 / 100, rel=0.05)
    assert abs(mean - 3.0) < 5 * error
    assert quantiles(runs)[1] == pytest.approx(np.median(runs))
