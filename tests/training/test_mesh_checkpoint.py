"""A run that was saved on one mesh resumes on another, with the same noise."""

import jax
import numpy as np
import optax
import pytest
from helpers.mesh_cases import DATA, PARAMS, SHARDINGS, loss, mechanism

from dpjax.mechanisms import SubsampledGaussian
from dpjax.training import split_records, train


class Crash(Exception):
    pass


def crash(report):
    if report.num_releases >= 2:
        raise Crash


def run(name=None, folder=None, split=False, on_report=None):
    sharding = SHARDINGS[name] if name else None
    data = split_records(DATA, sharding) if split else DATA
    described: SubsampledGaussian = mechanism()
    return train(
        jax.random.key(3), loss, PARAMS, data, optax.adam(0.1),
        mechanism=described, sharding=sharding,
        checkpoint_dir=folder, steps_per_call=1, on_report=on_report, progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def straight():
    return run()


@pytest.fixture(scope="module")
def saved_on_eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    with pytest.raises(Crash):
        run("8", folder, split=True, on_report=crash)
    return folder


def assert_same(found, expected):
    leaves = zip(*map(jax.tree.leaves, (found.params, expected.params)), strict=True)
    for one, other in leaves:
        np.testing.assert_allclose(one, other, atol=2e-6)
    assert found.certificate(1e-5).epsilon == expected.certificate(1e-5).epsilon


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("name", "split"),
    [
        pytest.param("8", True, marks=SLOW),
        ("4", False),
        pytest.param("2x4", True, marks=SLOW),
        pytest.param("1", True, marks=SLOW),
        pytest.param("fully sharded", False, marks=SLOW),
        pytest.param(None, False, marks=SLOW),
    ],
)
def test_a_run_saved_on_eight_devices_resumes(name, split, saved_on_eight, straight, tmp_path):
    import shutil

    folder, reports = shutil.copytree(saved_on_eight, tmp_path / "run"), []
    resumed = run(name, folder, split, on_report=reports.append)
    assert [report.num_releases for report in reports] == [3]
    assert_same(resumed, straight)


@pytest.mark.slow
def test_a_run_saved_without_a_mesh_resumes_on_one(straight, tmp_path):
    with pytest.raises(Crash):
        run(folder=tmp_path, on_report=crash)
    assert_same(run("8", tmp_path), straight)


def test_other_records_are_refused(saved_on_eight):
    swapped = jax.tree.map(lambda leaf: leaf[::-1], DATA)
    sharding = SHARDINGS["8"]
    with pytest.raises(ValueError, match="holds a run with another data"):
        train(
            jax.random.key(3), loss, PARAMS, split_records(swapped, sharding), optax.adam(0.1),
            mechanism=mechanism(), sharding=sharding, checkpoint_dir=saved_on_eight, progress=False,
        )  # fmt: skip
