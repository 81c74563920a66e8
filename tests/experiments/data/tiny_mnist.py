"""A tiny MNIST and the writers of the formats that dpjax only reads."""

import gzip
import io
import struct
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.data import Dataset, mnist

IDX_CODES = {"u1": 0x08, "i1": 0x09, "i2": 0x0B, "i4": 0x0C, "f4": 0x0D, "f8": 0x0E}
NAMES = tuple(file.name for file in mnist._FILES)


def idx_bytes(array: np.ndarray) -> bytes:
    """Writes IDX."""
    code = IDX_CODES[array.dtype.str[1:]]
    header = struct.pack(f">BBBB{array.ndim}I", 0, 0, code, array.ndim, *array.shape)
    return header + array.astype(array.dtype.newbyteorder(">")).tobytes()


class TinyMnist(NamedTuple):
    """Seven training and three test images, and the four files that hold them."""

    arrays: tuple[np.ndarray, ...]
    contents: dict[str, bytes]

    def write(self, folder: Path, names: tuple[str, ...] = NAMES) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for name in names:
            (folder / name).write_bytes(self.contents[name])
        return folder

    def assert_held_by(self, dataset: Dataset) -> None:
        train_x, train_y, test_x, test_y = self.arrays
        np.testing.assert_array_equal(dataset.train.x[..., 0], train_x / np.float32(255))
        np.testing.assert_array_equal(dataset.test.x[..., 0], test_x / np.float32(255))
        np.testing.assert_array_equal(dataset.train.y, train_y)
        np.testing.assert_array_equal(dataset.test.y, test_y)
        assert dataset.train.x.shape == (7, 28, 28, 1)
        assert (dataset.train.x.dtype, dataset.train.y.dtype) == (np.float32, np.int32)
        assert (dataset.name, dataset.is_stand_in) == ("mnist", False)


def make_tiny_mnist() -> TinyMnist:
    rng = np.random.default_rng(0)
    kinds = ((256, (7, 28, 28)), (10, (7,)), (256, (3, 28, 28)), (10, (3,)))
    arrays = tuple(rng.integers(0, high, shape, dtype=np.uint8) for high, shape in kinds)
    files = [gzip.compress(idx_bytes(array), mtime=0) for array in arrays]
    return TinyMnist(arrays, dict(zip(NAMES, files, strict=True)))


def write_prepared(folder: Path, tiny: TinyMnist) -> None:
    """Writes what TFDS would prepare in ``folder``, without TensorFlow."""
    import tensorflow_datasets as tfds

    builder = tfds.builder("mnist", data_dir=str(folder), file_format="array_record")
    builder.data_path.mkdir(parents=True)
    train_x, train_y, test_x, test_y = tiny.arrays
    splits = [
        _write_split(builder, "train", train_x, train_y),
        _write_split(builder, "test", test_x, test_y),
    ]
    builder.info.set_splits(tfds.core.splits.SplitDict(splits))
    builder.info.write_to_directory(builder.data_path)


def _write_split(builder: Any, name: str, images: np.ndarray, labels: np.ndarray) -> Any:
    import tensorflow_datasets as tfds
    from array_record.python.array_record_module import ArrayRecordWriter

    template = tfds.core.ShardedFileTemplate(
        data_dir=builder.data_path,
        dataset_name="mnist",
        split=name,
        filetype_suffix="array_record",
    )
    path = template.sharded_filepath(shard_index=0, num_shards=1)
    writer = ArrayRecordWriter(str(path), "group_size:1")
    for image, label in zip(images, labels, strict=True):
        writer.write(_example(image, int(label)))
    writer.close()
    lengths = [len(labels)]
    return tfds.core.SplitInfo(
        name=name, shard_lengths=lengths, num_bytes=0, filename_template=template
    )


def _example(image: np.ndarray, label: int) -> bytes:
    from PIL import Image
    from tensorflow_datasets.proto import tf_example_pb2

    png = io.BytesIO()
    Image.fromarray(image).save(png, "PNG")
    example = tf_example_pb2.Example()
    example.features.feature["image"].bytes_list.value.append(png.getvalue())
    example.features.feature["label"].int64_list.value.append(label)
    return example.SerializeToString()
