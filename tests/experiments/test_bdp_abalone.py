"""Abalone by both accounts: the norms that count, and the source's way without noise."""

import dataclasses

import numpy as np
import pytest

from dpjax import bdp
from experiments.bdp import abalone, variational
from experiments.bdp.table import ACCURACY, BDP, BDP_ATTACK, DP, DP_ATTACK
from experiments.data import Dataset, Split
from experiments.lib.registry import experiment_of


def small_data(num_train=60, num_test=20, num_features=3):
    x = np.random.default_rng(0).normal(size=(num_train + num_test, num_features))
    x, y = x.astype(np.float32), (x[:, 0] > 0).astype(np.int32)
    train, test = (Split(x[part], y[part]) for part in (slice(num_train), slice(num_train, None)))
    return Dataset("small", train, test, "made up", False, 2, "Made up.")


@pytest.mark.slow
def test_run_source_protocol_has_the_step_without_each_record():
    data, settings = small_data(num_train=12), {"num_steps": 1, "learning_rate": 0.1, "seed": 0}
    common = {"l2_clip": 0.5, "sampling_rate": 1.0, **settings}
    whole = variational.run_source_protocol(data, **common)
    without = dataclasses.replace(data, train=Split(data.train.x[1:], data.train.y[1:]))
    shorter = variational.run_source_protocol(without, **common)
    np.testing.assert_allclose(whole.other_mean[0, 0], shorter.mean[0], atol=1e-5)
    np.testing.assert_allclose(whole.other_scale[0, 0], shorter.scale[0], atol=1e-5)
    assert np.abs(whole.mean[0] - shorter.mean[0]).max() > 1e-4
    assert whole.mask.shape == (1, 12)
    assert whole.mask.all()


def test_distances_are_those_of_normal_distributions():
    one = np.ones((1, 2))
    same = variational.Trajectory(one, one, one[None], one[None], np.array([[True]]))
    assert variational.distances(same).tolist() == [[0.0]]
    moved = same._replace(other_mean=np.array([[[1.3, 1.4]]]))
    np.testing.assert_allclose(variational.distances(moved), [[0.5]], rtol=1e-6)
    narrow = same._replace(other_scale=np.array([[[0.9, 1.0]]]))
    assert variational.distances(narrow) > 0.1


def test_account_without_noise_has_infinite_dp_epsilon():
    one = np.ones((3, 2))
    other = np.full((3, 4, 2), 1.01)
    trail = variational.Trajectory(one, one, other, np.ones((3, 4, 2)), np.ones((3, 4), bool))
    account = variational.account(trail, 0.1, 60, (1, 2, 32))
    both = bdp.epsilon(account, 1e-10)
    assert np.isinf(both.dp)
    # All distances alike: three steps of the sampled Gaussian at that distance.
    moment = bdp.subsampled_gaussian_log_moments(
        (32,), [0.01 * 2**0.5], sampling_rate=0.1, noise_std=1.0
    )
    expected = (3 * moment[0, 0] + 10 * np.log(10)) / 32
    np.testing.assert_allclose(both.bdp, expected, rtol=1e-4)


@pytest.fixture(scope="module")
def records(run_rows):
    """Every row, on few records and for few steps."""
    small = dataclasses.replace(
        abalone.TABLE, data=small_data, sampling_rate=0.3, num_steps=30, repeats=2
    )
    experiment = dataclasses.replace(
        experiment_of(abalone), rows=small.rows, run_row=small.run_row, data=lambda: "small"
    )
    return list(run_rows(experiment).values())


@pytest.mark.slow
def test_run_row_has_dp_and_bdp_epsilon_of_each_row(records):
    plain, source, *noisy = records
    assert not plain.certified
    assert source.certified == {DP: np.inf, DP_ATTACK: 1.0}
    assert source.measured["reconstructed BDP ε"] > 0
    assert source.source[BDP] == 0.61
    for record in noisy:
        assert np.isfinite(record.certified[DP])
        assert record.certified[DP_ATTACK] < 1
        assert {BDP, BDP_ATTACK} < set(record.measured)
        assert BDP not in record.certified
    assert noisy[0].certified[DP] > noisy[1].certified[DP]
    assert plain.measured[ACCURACY] > 70
