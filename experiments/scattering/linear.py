"""Scattering features and a linear model (Tramèr and Boneh 2021) at certified ε = 1, 2, 3.

``python -m experiments run scattering_linear``: on two CPU cores about a minute (``quick``: a few
thousand images of each data set at ε = 3) or an hour (``paper``: all images).

CIFAR-10 may be at hand as JPEG files only (quality 75, chroma at half resolution), whose lost
details cannot be restored. A further encoding on another grid of blocks loses about as much again:
so images are shifted, and compared with and without a further encoding. Two further rows have other
learning rates.

Group normalisation uses one image at a time and costs no privacy. The mean and the variance of each
channel over the training images are released by a Gaussian mechanism.
"""

import dataclasses
import functools
import io
import itertools
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from PIL import Image

import dpjax
from dpjax._hashing import hash_arrays
from dpjax._typing import PRNGKey
from dpjax.certificates import certify
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity, clip_norm_to, sum_in_blocks
from experiments.data import Dataset, Split, load_data
from experiments.gdp.classifiers import ACCURACY, summarize
from experiments.lib.figures import PALETTE, SOURCE
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_error_bars, legend_below, panel_grid
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.scattering import NUM_CHANNELS, scattering
from experiments.lib.sweeps import column
from experiments.lib.training import ShuffledEpochs, Training, classification, stack_curves, train
from experiments.lib.verdicts import compare_published, format_upper_bound, group_by

# Images transformed or normalised together.
_AT_ONCE = 1000
_LEAST_VARIANCE = 0.01


class Moments(NamedTuple):
    """Released mean and variance of each channel, in units of `_public_scale` and its square.

    Attributes:
      mean: float32 ``(channels, 1, 1)``.
      variance: float32 ``(channels, 1, 1)``, at least 0.01.
    """

    mean: np.ndarray
    variance: np.ndarray


def load_features(images: Dataset, num_train: int, num_test: int, cache: Path) -> Dataset:
    """Returns the scattering features of the first training and test images.

    Args:
      images: the data set, with images ``(n, height, width, colours)``.
      num_train: number of training images.
      num_test: number of test images.
      cache: existing folder in which features are kept for later calls.

    Returns:
      The data set with features in place of images: float16 ``(n, colours * 81, height / 4,
      width / 4)``, read from disk when used.
    """
    parts = ((images.train, num_train), (images.test, num_test))
    train, test = (Split(_cached_features(part.x[:n], cache), part.y[:n]) for part, n in parts)
    note = images.note
    if len(train.y) < len(images.train.y):
        note += f" Of these, the first {len(train.y):,} and {len(test.y):,}."
    return dataclasses.replace(images, train=train, test=test, note=note)


def _cached_features(images: np.ndarray, cache: Path) -> np.ndarray:
    # The first image's coefficients are in the name, so that no other transform's are read.
    path = cache / f"features_{hash_arrays((images, scattering(images[:1])))[:16]}.npy"
    if not path.exists():
        features = _in_chunks(scattering, images)
        temporary = path.with_suffix(f".{os.getpid()}")
        with temporary.open("wb") as file:
            np.save(file, features)
        temporary.replace(path)
    return np.load(path, mmap_mode="r")


def normalize_groups(features: np.ndarray, num_groups: int) -> np.ndarray:
    """Returns features with mean 0 and variance 1 in each group of channels of each image.

    Group normalisation (Wu and He 2018) without trained scales.

    Args:
      features: ``(n, channels, height, width)``.
      num_groups: a divisor of the number of channels.

    Returns:
      float16 ``(n, channels * height * width)``.
    """

    def normalize(part: np.ndarray) -> np.ndarray:
        groups = part.astype(np.float32).reshape(len(part), num_groups, -1)
        centred = groups - groups.mean(axis=2, keepdims=True)
        variance = np.square(centred).mean(axis=2, keepdims=True)
        return (centred / np.sqrt(variance + 1e-5)).reshape(len(part), -1)

    return _in_chunks(normalize, features)


def normalize_channels(features: np.ndarray, moments: Moments) -> np.ndarray:
    """Returns features ``(n, channels * height * width)`` standardised by channel, float16."""
    mean, deviation = moments.mean, np.sqrt(moments.variance)

    def normalize(part: np.ndarray) -> np.ndarray:
        scaled = part.astype(np.float32) / _public_scale(part.shape[1])
        return ((scaled - mean) / deviation).reshape(len(part), -1)

    return _in_chunks(normalize, features)


def moments_mechanism(num_channels: int, noise_multiplier: float, unit: str) -> dpjax.Gaussian:
    """Returns the Gaussian mechanism of one sum of means and mean squares by channel.

    One image contributes the mean and the mean square over space of each channel, in units of
    `_public_scale`, clipped to a public bound.

    Args:
      num_channels: number of channels.
      noise_multiplier: standard deviation of the noise over the sensitivity.
      unit: the unit of privacy.
    """
    # The sum is in float64, its terms are clipped in float32.
    bound = _moments_clip(num_channels) * (1 + SUM_ROUNDING)
    sensitivity = Sensitivity(bound, "l2", "zero_out", shape=(2 * num_channels,))
    return dpjax.Gaussian(sensitivity, noise_multiplier * sensitivity.value, unit)


def release_moments(key: PRNGKey, mechanism: dpjax.Gaussian, features: np.ndarray) -> Moments:
    """Releases the mean and variance of each channel over training images.

    Args:
      key: for the noise.
      mechanism: as of `moments_mechanism`.
      features: ``(n, channels, height, width)``.

    Privacy:
      One release of ``mechanism``: the sum over images under zero-out, where n is public.
    """
    num_examples, channels = features.shape[:2]
    clip = _moments_clip(channels)
    total = np.zeros(2 * channels)
    for start in range(0, num_examples, _AT_ONCE):
        part = features[start : start + _AT_ONCE].astype(np.float32) / _public_scale(channels)
        records = np.concatenate([part.mean((2, 3)), np.square(part).mean((2, 3))], axis=1)
        total += sum_in_blocks(clip_norm_to(jnp.asarray(records), clip))
    mean, square = np.split(mechanism.release(key, total) / num_examples, 2)
    variance = np.maximum(square - mean**2, _LEAST_VARIANCE)
    return Moments(*(each.astype(np.float32)[:, None, None] for each in (mean, variance)))


def _moments_clip(num_channels: int) -> float:
    """Returns twice the norm of an image's means and mean squares if all of them are 1."""
    return 2 * math.sqrt(2 * num_channels)


@functools.cache
def _public_scale(num_channels: int) -> np.ndarray:
    """Returns the root mean square of each channel over scikit-learn's digits, which are public."""
    squares = np.square(scattering(load_data("digits").test.x)).mean((0, 2, 3), keepdims=True)[0]
    return np.tile(np.sqrt(squares), (num_channels // NUM_CHANNELS, 1, 1))


def _in_chunks(transform: Callable[[np.ndarray], np.ndarray], images: np.ndarray) -> np.ndarray:
    """Returns the transform of many images as float16, computed in parts."""
    first = transform(images[:_AT_ONCE])
    found = np.empty((len(images), *first.shape[1:]), np.float16)
    found[:_AT_ONCE] = first
    for start in range(_AT_ONCE, len(images), _AT_ONCE):
        found[start : start + _AT_ONCE] = transform(images[start : start + _AT_ONCE])
    return found


GROUPS, CHANNELS = "group normalisation", "private normalisation"
CURVES = "accuracy % by epoch, each seed"
UNIT = "one image"
# Noise multiplier of each of the source's two releases for the normalisation.
MOMENTS_NOISE = 8.0
MODEL = nn.Dense(10, kernel_init=nn.initializers.zeros)
_PHYSICAL_BATCH_SIZE = 1024


@dataclass(frozen=True)
class Settings:
    """Settings of one row: DP-SGD with momentum on normalised features, one run for each seed."""

    data: str
    normalization: str
    epsilon: float  # target, the normalisation included
    learning_rate: float
    sampling_rate: float
    noise_multiplier: float  # published; scaled to reach the target
    epochs: int
    num_train: int
    num_test: int
    num_groups: int = 27
    l2_clip: float = 0.1
    momentum: float = 0.9
    delta: float = 1e-5
    seeds: tuple[int, ...] = (0, 1, 2)

    def training(self, num_examples: int) -> dpjax.SubsampledGaussian:
        """Returns the mechanism of training with the published noise, on Poisson batches."""
        usual = dpjax.PoissonSampling(num_examples, self.sampling_rate)
        size = min(_PHYSICAL_BATCH_SIZE, usual.physical_batch_size)
        return dpjax.SubsampledGaussian(
            dataclasses.replace(usual, physical_batch_size=size),
            l2_clip=self.l2_clip,
            noise_multiplier=self.noise_multiplier,
            # The source drops the last, incomplete batch of an epoch.
            num_steps=self.epochs * int(1 / self.sampling_rate),
            adjacency="zero_out",
            unit=UNIT,
        )

    def mechanism(self, num_examples: int, num_channels: int) -> dpjax.Composition:
        """Returns the training, preceded by the release of moments for private normalisation.

        The noise of both is scaled by one factor, so that the certified ε is at most ``epsilon``.
        """
        parts: tuple[Any, ...] = (self.training(num_examples),)
        if self.normalization == CHANNELS:
            parts = (moments_mechanism(num_channels, MOMENTS_NOISE, UNIT), *parts)
        return dpjax.calibrate(dpjax.Composition(parts), epsilon=self.epsilon, delta=self.delta)

    def optimizer(self, num_steps: int) -> optax.GradientTransformation:
        """Returns SGD with momentum; the learning rate decays to zero in the second half."""
        constant = num_steps // 2
        schedule = optax.linear_schedule(self.learning_rate, 0.0, num_steps - constant, constant)
        return optax.sgd(schedule, self.momentum)


def fit(
    settings: Settings, data: Dataset, mechanism: dpjax.Composition, folder: Path
) -> list[Training]:
    """Trains the linear model once for each seed; resumes from ``folder``.

    Args:
      settings: of the row.
      data: features ``(n, channels, height, width)``.
      mechanism: of ``settings``, for these features.
      folder: for checkpoints.
    """
    moments: Any
    training: Any
    moments, training = mechanism.mechanisms[0], mechanism.mechanisms[-1]
    runs = []
    for seed in settings.seeds:
        train_key, moments_key, init_key = jax.random.split(jax.random.key(seed), 3)
        if settings.normalization == CHANNELS:
            normalized = normalize_by_release(data, moments, moments_key)
        else:
            normalized = _normalize(data, partial(normalize_groups, num_groups=settings.num_groups))
        params = MODEL.init(init_key, normalized.train.x[:1])["params"]
        task = classification(MODEL, normalized, settings.optimizer(training.num_steps))
        runs.append(train(train_key, task, params, training, folder=folder / str(seed)))
    return runs


def normalize_by_release(data: Dataset, mechanism: dpjax.Gaussian, key: PRNGKey) -> Dataset:
    """Returns features standardised by privately released moments, of ``mechanism``."""
    moments = release_moments(key, mechanism, data.train.x)
    return _normalize(data, partial(normalize_channels, moments=moments))


def _normalize(data: Dataset, normalize: Callable[[np.ndarray], np.ndarray]) -> Dataset:
    # On the device once, so that no copy is made for training.
    train, test = (Split(jax.device_put(normalize(p.x)), p.y) for p in (data.train, data.test))
    return dataclasses.replace(data, train=train, test=test)


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


def plain_rows(num_train: int, num_test: int) -> dict[str, Values]:
    """Returns the settings of the non-private baselines, by name of their row."""
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


EPSILON, PUBLISHED_EPSILON = "ε", "ε of the source's noise"
RANGE = "lowest, highest %"
_EPSILONS = (1.0, 2.0, 3.0)
_CLAIMED = 3.0


class Published(NamedTuple):
    """The source's linear model of one data set, at its ε of 3."""

    loader: str
    normalization: str
    learning_rate: float
    batch_size: int
    noise_multiplier: float
    epochs: int
    accuracy: float
    num_train: int


_SOURCE = {
    "MNIST": Published("mnist", CHANNELS, 8.0, 4096, 3.04, 40, 98.7, 60_000),
    "Fashion-MNIST": Published("fashion_mnist", GROUPS, 16.0, 8192, 4.05, 40, 89.7, 60_000),
    "CIFAR-10": Published("cifar10", CHANNELS, 4.0, 8192, 5.67, 60, 67.0, 50_000),
}
_NUM_TEST = 10_000
_QUICK_SIZES = {"MNIST": (4000, 1000), "Fashion-MNIST": (4000, 1000), "CIFAR-10": (1500, 500)}


def published_epsilon(settings: Settings) -> float:
    """Returns the ε (PLD) of the published noise on all images, if batches are Poisson samples.

    The private normalisation of the source is two Gaussian releases of noise multiplier 8.
    """
    parts: tuple[Any, ...] = (settings.training(_SOURCE[settings.data].num_train),)
    if settings.normalization == CHANNELS:
        moments = moments_mechanism(1, MOMENTS_NOISE, UNIT)
        parts = (moments, moments, *parts)
    return dpjax.Composition(parts).certificate(settings.delta).epsilon


def load_images(name: str) -> Dataset:
    """Returns a data set of images, or its stand-in if it is not available."""
    return load_data(_SOURCE[name].loader, stand_in=True)


@functools.cache
def data() -> str:
    return ", ".join(load_images(name).name for name in _SOURCE)


def rows(profile: str) -> list[Row]:
    rows = []
    for data, source in _SOURCE.items():
        sizes = (source.num_train, _NUM_TEST) if profile == "paper" else _QUICK_SIZES[data]
        for normalization, epsilon in itertools.product((GROUPS, CHANNELS), _EPSILONS):
            is_published = normalization == source.normalization and epsilon == _CLAIMED
            if profile == "quick" and not is_published:
                continue
            # Fewer images have more noise in the mean gradient, in proportion.
            share = sizes[0] / source.num_train
            settings = Settings(
                data,
                normalization,
                epsilon,
                source.learning_rate * share * epsilon / _CLAIMED,
                source.batch_size / source.num_train,
                source.noise_multiplier,
                source.epochs,
                *sizes,
                seeds=(0, 1, 2) if profile == "paper" and data != "CIFAR-10" else (0,),
            )
            published = {ACCURACY: source.accuracy, EPSILON: _CLAIMED} if is_published else {}
            name = f"{data}, {normalization}, ε = {epsilon:g}"
            rows.append(Row(name, dataclasses.asdict(settings), published))
    if profile == "paper":
        sizes = (_SOURCE["CIFAR-10"].num_train, _NUM_TEST)
        rows += [Row(name, found, {}) for name, found in plain_rows(*sizes).items()]
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    if "epsilon" not in row.settings:
        return run_plain(row, load_images(row.settings["data"]), context.folder.parent)
    settings = Settings(**{**row.settings, "seeds": tuple(row.settings["seeds"])})
    # The rows share the features, beside their own folders. The images are not kept: 1 GB.
    cache, sizes = context.folder.parent, (settings.num_train, settings.num_test)
    data = load_features(load_images(settings.data), *sizes, cache)
    mechanism = settings.mechanism(*data.train.x.shape[:2])
    runs = fit(settings, data, mechanism, context.folder)
    measured = summarize([run.curve[-1][1] for run in runs])
    training: Any = mechanism.mechanisms[-1]
    measured["noise multiplier"] = training.noise_multiplier
    certificate = certify(mechanism.guarantee.of_run(seeded=True), settings.delta)
    certified = {EPSILON: certificate.epsilon}
    if row.source:
        certified[PUBLISHED_EPSILON] = published_epsilon(settings)
    note = (
        f"{data.note} Every ε is that of one run; accuracies are means over seeds. Seeded keys: the"
        " noise is reproducible, so these runs are not private."
    )
    if len(data.train.y) < _SOURCE[settings.data].num_train:
        note += " Fewer images than the source's, so accuracies are lower."
    return Result(
        measured=measured,
        certified=certified,
        note=note,
        series={CURVES: stack_curves(runs).tolist()},
        certificate=str(certificate),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if record.certified]
    groups = group_by(private, "data")
    colours = dict(zip(group_by(private, "normalization"), PALETTE, strict=False))
    figure, panels = panel_grid(len(groups), len(groups), 3.2 * len(groups), 3.6)
    for axes, (data, of_data) in zip(panels, groups.items(), strict=True):
        for label, drawn in group_by(of_data, "normalization").items():
            lowest, highest = np.transpose(column(drawn, RANGE))
            means = np.array(column(drawn, ACCURACY))
            bars = np.abs([lowest - means, highest - means])
            draw_error_bars(
                axes,
                column(drawn, EPSILON),
                means,
                bars,
                color=colours[label],
                label=label,
                capsize=2,
            )
        for record in (record for record in of_data if record.source):
            accuracy = record.source[ACCURACY]
            axes.plot(_CLAIMED, accuracy, "s", color=SOURCE, label="source, claimed")
            tight = record.certified[PUBLISHED_EPSILON]
            label = "source, PLD of its noise"
            axes.plot(tight, accuracy, "s", color=SOURCE, fillstyle="none", label=label)
        axes.set(title=data, xlabel="ε", ylabel="test accuracy (%)")
    legend_below(figure, panels, ncols=2)
    return {"accuracy": figure}


def remarks(records: Sequence[Record]) -> list[str]:
    found = []
    private = [record for record in records if record.certified]
    for data, of_data in group_by(private, "data").items():
        best = [
            max(at_epsilon, key=lambda record: record.measured[ACCURACY])
            for at_epsilon in group_by(of_data, "epsilon").values()
        ]
        figures = ", ".join(
            f"{format_value(record.measured[ACCURACY], ACCURACY)} % at"
            f" {format_upper_bound(record.certified[EPSILON])} ({record.settings['normalization']})"
            for record in best
        )
        found.append(f"{data}, best accuracy at each certified ε: {figures}.")
    for record in (record for record in records if record.source):
        tight = format_upper_bound(record.certified[PUBLISHED_EPSILON])
        found.append(
            f"{record.row}: {format_value(record.measured[ACCURACY], ACCURACY)} % against the"
            f" source's {record.source[ACCURACY]} % at a claimed ε of {_CLAIMED:g}, by classical"
            f" Rényi accounting; the PLD ε of its noise is {tight} if its batches are Poisson"
            " samples, so that less noise suffices here."
        )
        if "JPEG re-encoding" in record.note:
            found.append(
                f"{record.settings['data']} is a JPEG re-encoding here, and the source had the"
                " original pixels: accuracies are not comparable to the point."
            )
    return found


def finding(records: Sequence[Record]) -> Finding:
    comparison = compare_published(
        records,
        ACCURACY,
        0.5,
        "published accuracies",
        "points",
        lambda record: record.profile == "paper" and "JPEG re-encoding" not in record.note,
    )
    claims = [record for record in records if record.source]
    found = "; ".join(
        f"{record.row} {format_value(record.measured[ACCURACY], ACCURACY)} % at a certified"
        f" {format_upper_bound(record.certified[EPSILON])}"
        for record in claims
    )
    return comparison.finding(found)
