"""What a JPEG encoding of CIFAR-10 costs: the same linear model, trained without privacy.

CIFAR-10 may be at hand as JPEG files only (quality 75, chroma at half resolution), whose lost
details cannot be restored. A further encoding on another grid of blocks loses about as much again:
so images are shifted, and compared with and without a further encoding. Two further rows have other
learning rates.
"""

import dataclasses
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np
import optax
from PIL import Image

from experiments.data import Dataset, Split
from experiments.gdp.classifiers import ACCURACY, summarize
from experiments.lib.formatting import format_value
from experiments.lib.registry import Record, Result, Row
from experiments.lib.training import ShuffledEpochs, classification, train
from experiments.scattering.features import load_features, moments_mechanism
from experiments.scattering.training import (
    CURVES,
    MODEL,
    MOMENTS_NOISE,
    UNIT,
    normalize_by_release,
)

_DATA, _SHIFT = "CIFAR-10", 5
_OTHER_RATES = (0.001, 0.01)


@dataclass(frozen=True)
class PlainSettings:
    """Settings of one row: SGD with momentum on features normalised by channel, one seed."""

    data: str
    num_train: int
    num_test: int
    shift: int = 0  # by how many pixels images are rolled along both axes, before the encoding
    encoded: bool = False  # whether they are encoded as JPEG and decoded
    learning_rate: float = 0.003  # at the first step; decays linearly to zero
    momentum: float = 0.9
    batch_size: int = 512
    epochs: int = 20
    seed: int = 0

    def transform(self, images: np.ndarray) -> np.ndarray:
        """Returns images as they are trained on, float32 in [0, 1]."""
        rolled = np.roll(images, (self.shift, self.shift), (1, 2))
        if not self.encoded:
            return rolled
        levels = np.rint(255 * rolled).astype(np.uint8)
        return np.stack([encode(image) for image in levels]).astype(np.float32) / 255


def plain_rows(num_train: int, num_test: int) -> dict[str, dict[str, Any]]:
    """Returns the settings of the rows without privacy, by name."""
    plain = PlainSettings(_DATA, num_train, num_test)
    shifted = dataclasses.replace(plain, shift=_SHIFT)
    rows = {
        "no privacy": plain,
        "no privacy, shifted": shifted,
        "no privacy, shifted and encoded": dataclasses.replace(shifted, encoded=True),
    } | {
        f"no privacy, learning rate {rate}": dataclasses.replace(plain, learning_rate=rate)
        for rate in _OTHER_RATES
    }
    return {f"{_DATA}, {name}": dataclasses.asdict(settings) for name, settings in rows.items()}


def encode(image: np.ndarray) -> np.ndarray:
    """Returns an image, uint8 ``(height, width, 3)``, as decoded from a JPEG file of quality 75."""
    file = io.BytesIO()
    Image.fromarray(image).save(file, "JPEG", quality=75, subsampling="4:2:0")
    return np.asarray(Image.open(file))


def run_plain(row: Row, images: Dataset, cache: Path) -> Result:
    """Trains the linear model without privacy, on features normalised like the private rows'.

    Args:
      row: one of `plain_rows`.
      images: the data set.
      cache: folder in which features are kept.
    """
    settings = PlainSettings(**row.settings)
    sizes = settings.num_train, settings.num_test
    train_part, test_part = (
        Split(settings.transform(part.x[:size]), part.y[:size])
        for part, size in zip((images.train, images.test), sizes, strict=True)
    )
    shown = dataclasses.replace(images, train=train_part, test=test_part)
    features = load_features(shown, *sizes, cache)
    moments = moments_mechanism(features.train.x.shape[1], MOMENTS_NOISE, UNIT)
    key = jax.random.key(settings.seed)
    data = normalize_by_release(features, moments, key)
    num_steps = settings.epochs * (settings.num_train // settings.batch_size)
    schedule = optax.linear_schedule(settings.learning_rate, 0.0, num_steps)
    task = classification(MODEL, data, optax.sgd(schedule, settings.momentum))
    params = MODEL.init(key, data.train.x[:1])["params"]
    trained = train(key, task, params, ShuffledEpochs(settings.epochs, settings.batch_size))
    measured = summarize([trained.curve[-1][1]])
    return Result(measured, {}, images.note, {CURVES: [trained.curve]})


def cost_of_encoding(
    plain: Record, shifted: Record, encoded: Record, slower: Record, faster: Record
) -> str:
    """Returns a sentence on the records of `plain_rows`."""
    records = (plain, shifted, encoded, slower, faster)
    accuracies = [record.measured[ACCURACY] for record in records]
    texts = [format_value(accuracy, ACCURACY) for accuracy in accuracies]
    rates = [record.settings["learning_rate"] for record in records]
    lost = f"{accuracies[1] - accuracies[2]:.1f}"
    return (
        f"Without privacy the model of {_DATA} reaches {texts[0]} %, on images shifted by five"
        f" pixels {texts[1]} %, and {texts[2]} % if they are then encoded as JPEG of the same"
        f" quality, on another grid of blocks: an encoding costs about {lost} points (the standard"
        " error of such a difference is about 0.4). If the first encoding of the images, which"
        " cannot be undone, cost as much, that is this part of the difference from the source."
        f" With a learning rate of {rates[3]} or {rates[4]} instead of {rates[0]} the model reaches"
        f" {texts[3]} or {texts[4]} %."
    )
