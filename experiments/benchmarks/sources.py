"""Private training on MNIST's images from files, compared with images that are on the device."""

import functools
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import jax
import numpy as np
import optax

import dpjax
from dpjax._typing import PyTree
from dpjax.training import ArraySource
from dpjax.training.data import as_training_data
from experiments.benchmarks.models import MODELS
from experiments.benchmarks.results import Group, Groups, values_over
from experiments.benchmarks.timing import Case, Effort
from experiments.data import load_data

RESIDENT, MAPPED, RECORDS = "on the device", "memory map", "array_record file"
_BATCH, _BLOCK = 256, 50
_EFFORT = Effort(seconds=60.0, slow=120.0)


class ImageRecords:
    """Images and labels in an array_record file, of one byte for each pixel and label."""

    def __init__(self, path: Path, shape: tuple[int, ...]) -> None:
        from array_record.python.array_record_module import ArrayRecordReader

        # As `ArrayRecordDataSource` opens it, whose Python code takes as long again as the reads.
        self._file = ArrayRecordReader(
            str(path), options="readahead_buffer_size:0", file_reader_buffer_size=32_768
        )
        self._shape = shape

    def __len__(self) -> int:
        return self._file.num_records()

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns image and label ``index``."""
        images, labels = self.__getitems__([index])
        return images[0], labels[0]

    def __getitems__(self, indices: Sequence[int]) -> tuple[np.ndarray, np.ndarray]:
        """Returns images and labels, stacked."""
        records = np.frombuffer(b"".join(self._file.read(indices)), np.uint8)
        table = records.reshape(len(indices), -1)
        return table[:, 1:].reshape(-1, *self._shape), table[:, 0]


def write_array_record(path: Path, images: np.ndarray, labels: np.ndarray) -> None:
    """Writes a record of the label's byte and the image's bytes for each image."""
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), "group_size:1,uncompressed")
    for image, label in zip(images, labels, strict=True):
        writer.write(bytes([label]) + image.tobytes())
    writer.close()


def source_groups() -> Groups:
    """Yields a group for each network, on MNIST or the data that stand in for it."""
    with tempfile.TemporaryDirectory() as folder:  # removed after the last group
        for name in ("mlp", "wide_mlp", "cnn"):
            subject = f"images from files, {MODELS[name].title}, batch {_BATCH}"
            yield subject, functools.partial(source_group, subject, name, Path(folder))


def source_group(subject: str, name: str, folder: Path) -> Group:
    """Returns blocks of private steps on the images on the device, memory-mapped and in records."""
    dataset = load_data("mnist", stand_in=True)
    images = np.rint(255 * dataset.train.x).astype(np.uint8)
    arrays = images, dataset.train.y.astype(np.uint8)
    for number, array in enumerate(arrays):
        np.save(folder / f"{number}.npy", array)
    maps = tuple(np.load(folder / f"{number}.npy", mmap_mode="r") for number in range(2))
    path = folder / "images.array_record"
    write_array_record(path, *arrays)
    sources = {
        RESIDENT: arrays,
        MAPPED: ArraySource(maps),
        RECORDS: ImageRecords(path, images.shape[1:]),
    }
    cases = [
        Case(source, _block(name, data, len(images)), note=dataset.name)
        for source, data in sources.items()
    ]
    return Group(f"{_BLOCK} steps", subject, cases, values_over(RESIDENT), _EFFORT)


def _block(name: str, data: PyTree, num_examples: int) -> Callable[[], float]:
    """Returns a function that times ``_BLOCK`` steps."""
    model = MODELS[name]
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(num_examples, _BATCH / num_examples),
        l2_clip=1.0,
        noise_multiplier=1.1,
        num_steps=10**6,
        adjacency="zero_out",
    )

    def loss(params: PyTree, example: tuple[jax.Array, jax.Array]) -> jax.Array:
        image, label = example
        return model.loss(params, (image.astype(np.float32) / 255, label.astype(np.int32)))

    records = as_training_data(data, mechanism.sampling).place(None)
    step = dpjax.private_step(loss, optax.sgd(0.01), mechanism=mechanism, key=jax.random.key(0))
    held = {"state": step.init(model.init())}
    run = records.compile(step.update, held["state"], _BLOCK)

    def seconds() -> float:
        start = time.perf_counter()
        held["state"], _ = jax.block_until_ready(run(held["state"], _BLOCK))
        return time.perf_counter() - start

    return seconds
