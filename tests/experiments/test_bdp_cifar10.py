"""The fixed front for photographs, and a row of CIFAR-10's table on the stand-in."""

import dataclasses

import numpy as np
import pytest

from experiments.bdp import cifar10, table
from experiments.bdp.cifar10 import NUM_FEATURES, features
from experiments.data import Split, load_stand_in
from experiments.lib.registry import Row, RowContext
from experiments.lib.scattering import wavelets

RNG = np.random.default_rng(0)
CELLS = 16


def first_order(images):
    """Energy by size and angle of the brightness, (n, 2 * 8)."""
    first = features(images)[:, 3 * CELLS :][:, : 2 * 3 * 8 * CELLS]
    energy = first.reshape(len(images), 2, 3, 8, CELLS)[:, :, 0].mean(axis=-1)
    return energy.reshape(len(images), -1)


def grating(angle, period):
    y, x = np.mgrid[:32, :32]
    wave = np.sin(2 * np.pi / period * (np.cos(angle) * x + np.sin(angle) * y))
    return np.repeat(0.5 + 0.3 * wave[..., None], 3, axis=-1).astype(np.float32)


def test_features_are_of_norm_one_and_of_their_image_alone():
    images = RNG.random((108, 32, 32, 3), dtype=np.float32)
    found = features(images)
    assert found.shape == (108, NUM_FEATURES)
    assert found.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=2e-2)
    np.testing.assert_allclose(features(images[50:58]), found[50:58], atol=1e-5)


def test_wavelets_have_mean_zero():
    for scale in (1.0, 2.0):
        assert np.abs(wavelets((32, 32), scale)[:, 0, 0]).max() < 1e-6
    images = RNG.random((8, 32, 32, 3), dtype=np.float32) / 2
    brighter = features(images + 0.3)[:, 3 * CELLS :]
    np.testing.assert_allclose(brighter, features(images)[:, 3 * CELLS :], atol=1e-5)


def test_features_of_a_grating_are_largest_at_its_size_and_angle():
    kinds = [(size, angle) for size in (0, 1) for angle in (0, 2, 4, 6)]
    periods = (8 / 3, 16 / 3)
    waves = np.stack([grating(angle * np.pi / 8, periods[size]) for size, angle in kinds])
    assert first_order(waves).argmax(axis=1).tolist() == [8 * size + angle for size, angle in kinds]


@pytest.fixture
def stand_in(monkeypatch):
    digits = load_stand_in("cifar10")
    parts = {name: Split(*(a[:200] for a in getattr(digits, name))) for name in ("train", "test")}
    monkeypatch.setattr(cifar10, "data_set", lambda: dataclasses.replace(digits, **parts))
    cifar10.load_features.cache_clear()
    yield
    cifar10.load_features.cache_clear()


def run_row(index, tmp_path, **changes):
    row = cifar10.rows("quick")[index]
    sizes = {"num_train": 200, "num_test": 100, "batch_size": 40, "epochs": 10}
    row = Row(row.name, {**row.settings, **sizes, **changes}, row.source)
    return cifar10.run_row(row, RowContext(tmp_path, fresh=True, profile="quick"))


def test_run_row_learns_on_fixed_features_and_has_both_accounts(stand_in, tmp_path):
    result = run_row(2, tmp_path, target=None, noise_std=0.05)
    assert result.measured[table.ACCURACY] > 30
    assert result.measured["largest norm"] <= 2**0.5 + 1e-2
    assert result.certified[table.DP] > 100
    assert result.measured[table.BDP] > 0
