"""What a JPEG encoding does to an image, and the rows without privacy on images in colour."""

import dataclasses

import numpy as np
import pytest

from experiments.data import Split, load_stand_in
from experiments.lib.registry import Row
from experiments.scattering import linear
from experiments.scattering.linear import (
    PlainSettings,
    encode,
    plain_rows,
    run_plain,
)

ROWS = plain_rows(50_000, 10_000)


def a_photograph():
    """Smooth brightness with sharp colours."""
    levels = np.linspace(40, 200, 32)[:, None, None] * np.ones((32, 32, 3))
    levels[:, 7::9] = (170, 90, 80)
    return levels.astype(np.uint8)


def test_encode_again_loses_much_on_another_grid_alone():
    first = encode(a_photograph())
    lost = np.abs(first.astype(int) - a_photograph()).mean()
    assert np.abs(encode(first).astype(int) - first).mean() < 0.2 * lost
    rolled = np.roll(first, (5, 5), (0, 1))
    assert np.abs(encode(rolled).astype(int) - rolled).mean() > 0.5 * lost


def test_transform_shifts_and_then_encodes():
    images = np.stack([a_photograph(), a_photograph()[::-1]]).astype(np.float32) / 255
    plain, shifted, encoded, *_ = (PlainSettings(**settings) for settings in ROWS.values())
    np.testing.assert_array_equal(plain.transform(images), images)
    rolled = np.roll(images, (5, 5), (1, 2))
    np.testing.assert_array_equal(shifted.transform(images), rolled)
    found = encoded.transform(images)
    np.testing.assert_allclose(
        255 * found[1], encode(np.uint8(np.rint(255 * rolled[1]))), atol=1e-4
    )
    assert found.dtype == np.float32
    assert found.shape == images.shape


def test_plain_rows_are_in_the_paper_profile_alone():
    names = [row.name for row in linear.rows("paper")]
    assert names[-5:] == list(ROWS)
    assert not {row.name for row in linear.rows("quick")} & set(ROWS)


@pytest.mark.slow
def test_run_plain_learns(tmp_path):
    images = load_stand_in("cifar10")
    small = Split(images.train.x[:600], images.train.y[:600])
    images = dataclasses.replace(images, train=small, test=small)
    settings = {**ROWS["CIFAR-10, no privacy, shifted and encoded"], "num_train": 600}
    row = Row("row", {**settings, "num_test": 600, "batch_size": 100, "learning_rate": 0.01}, {})
    result = run_plain(row, images, tmp_path)
    assert result.measured["test accuracy %"] > 90
    assert result.certified == {}
    (curve,) = result.series["accuracy % by epoch, each seed"]
    assert len(curve) == 20
