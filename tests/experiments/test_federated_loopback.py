"""The configuration files of the Wine regression."""

import numpy as np
import pytest

from dpjax.bayes.regression import PerturbedStatistics, RegressionBounds
from dpjax.federated import read_study
from dpjax.federated.config import read_settings
from experiments.bayes.wine_fits import Records
from experiments.federated.__main__ import _LIMITS, _MECHANISM, _PARTIES, split_records
from experiments.federated.loopback import write_study

BOUNDS = RegressionBounds(x_norm=2.16, y_size=0.5773502691896258)


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    return Records(rng.normal(size=(103, 12)), rng.normal(size=103), 2.0, BOUNDS)


def test_the_files_are_those_of_the_plan(tmp_path, records):
    mechanism = PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=1e-4, adjacency="zero_out", num_features=12
    )
    table = _MECHANISM.format(mechanism=mechanism)
    parts = split_records(records)
    write_study(tmp_path, table, _PARTIES, parts, delta=1e-4, limits=_LIMITS)
    plan = read_study(tmp_path / "study.toml").plan
    assert (plan.mechanism, plan.parties) == (mechanism, _PARTIES)
    for role, number in (("holder", 10), ("node", 3)):
        settings = [read_settings(tmp_path / f"{role}-{i}.toml", role) for i in range(number)]
        assert [one.index for one in settings] == list(range(number))
        assert len({one.journal for one in settings}) == number
    assert read_settings(tmp_path / "analyst.toml", "analyst").delta == 1e-4


def test_every_record_has_one_holder(records):
    parts = split_records(records)
    assert [len(part["y"]) for part in parts] == [11] * 3 + [10] * 7
    together = np.concatenate([part["x"] for part in parts])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(records.x, axis=0))
