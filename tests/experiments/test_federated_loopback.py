"""The configuration files of the Wine studies."""

from pathlib import Path

import numpy as np
import pytest

from dpjax.bayes.regression import PerturbedStatistics, RegressionBounds
from dpjax.federated.processes import read_study
from dpjax.federated.processes.config import read_settings
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from experiments.bayes.wine_fits import Records
from experiments.federated import hospitals
from experiments.federated.__main__ import (
    _LIMITS,
    _REGRESSION,
    _STATISTICS_TABLE,
    _STEPS_TABLE,
    _TRAINING,
    split_records,
)
from experiments.federated.loopback import write_study

BOUNDS = RegressionBounds(x_norm_bound=2.16, y_bound=0.5773502691896258)


@pytest.fixture(scope="module")
def records():
    rng = np.random.default_rng(0)
    return Records(rng.normal(size=(103, 12)), rng.normal(size=103), 2.0, BOUNDS)


def test_write_study_files_are_those_of_the_plan(tmp_path, records):
    mechanism = PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=1.0, delta=1e-4, adjacency="zero_out", num_features=12
    )
    table = _STATISTICS_TABLE.format(mechanism=mechanism)
    parts = split_records(records, 10)
    write_study(tmp_path, table, _REGRESSION, parts, delta=1e-4, limits=_LIMITS)
    plan = read_study(tmp_path / "study.toml").plan
    assert (plan.mechanism, plan.parties) == (mechanism, _REGRESSION)
    for role, number in (("holder", 10), ("node", 3)):
        settings = [read_settings(tmp_path / f"{role}-{i}.toml", role) for i in range(number)]
        assert [one.index for one in settings] == list(range(number))
        assert len({one.journal for one in settings}) == number
    assert read_settings(tmp_path / "analyst.toml", "analyst").delta == 1e-4


def test_split_records(records):
    parts = split_records(records, 10)
    assert [len(part["y"]) for part in parts] == [11] * 3 + [10] * 7
    together = np.concatenate([part["x"] for part in parts])
    np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(records.x, axis=0))


@pytest.mark.slow
def test_write_study_with_a_program_trains_by_the_mechanism(tmp_path, records):
    mechanism = SubsampledGaussian(
        PoissonSampling(103, 0.1),
        l2_clip=1.0,
        noise_multiplier=1.2345678901234567,
        num_steps=5,
        adjacency="zero_out",
        size_scaled=True,
    )
    table = _STEPS_TABLE.format(mechanism=mechanism, num_parameters=2 * hospitals.NUM_FEATURES)
    parts = split_records(records, 3)
    program = Path(hospitals.__file__)
    write_study(tmp_path, table, _TRAINING, parts, delta=1e-4, limits=_LIMITS, program=program)
    study = read_study(tmp_path / "study.toml")
    training = study.load_training()
    assert training.mechanism == study.plan.mechanism.mechanism == mechanism
    state = training.init()
    assert training.get_result(state)["location"].shape == (hospitals.NUM_FEATURES,)
