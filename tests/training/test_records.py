"""Training on a data source is training on the same records on the device, bit for bit."""

import _thread
import functools
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from array_record.python.array_record_data_source import ArrayRecordDataSource
from array_record.python.array_record_module import ArrayRecordWriter
from helpers import large_memory_map
from helpers.inputs import Crash, crash_at, gaussian_mechanism
from helpers.quick import slow_except
from jax.sharding import PartitionSpec as P

import dpjax
import dpjax.training.data
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.training import ArraySource, MeshSharding, train
from dpjax.training.data import RecordReader, Stream

KEY = jax.random.key(3)
N, STEPS = 60, 9
_RNG = np.random.default_rng(0)
DATA = {
    "x": _RNG.normal(size=(N, 4)).astype(np.float32),
    "y": _RNG.normal(size=N),  # float64, which JAX takes as float32
    "kind": _RNG.integers(0, 3, (N, 2)).astype(np.uint8),
}


class Crowded(PoissonSampling):
    """Poisson sampling most of whose draws exceed the usual batches."""

    @property
    def num_static_batches(self) -> int:
        return 1


SAMPLINGS = {
    "poisson": PoissonSampling(N, 0.2, physical_batch_size=8),
    "crowded": Crowded(N, 0.2, physical_batch_size=6),
    "rarely": PoissonSampling(N, 0.01),
    "truncated": TruncatedPoissonSampling(N, 0.2, truncated_batch_size=11),
    "fixed": FixedSizeSampling(N, 13),
    "shuffled": ShuffledEpochs(N, 13),
}


def mechanism_with(sampling):
    return gaussian_mechanism(sampling, num_steps=STEPS, adjacency="zero_out")


def loss(params, example, key):
    """Squared error on a randomly shifted example, with dropout."""
    shift_key, drop_key = jax.random.split(key)
    x = jnp.roll(example["x"], jax.random.randint(shift_key, (), 0, 4))
    hidden = jnp.tanh(x @ params["in"]) + params["kinds"][example["kind"]].sum(0)
    hidden = hidden * jax.random.bernoulli(drop_key, 0.5, hidden.shape)
    return (hidden @ params["out"] - example["y"].astype(jnp.float32)) ** 2


def run(data, sampling="poisson", folder=None, key=KEY, **options):
    rng = np.random.default_rng(1)
    shapes = {"in": (4, 3), "kinds": (3, 3), "out": (3,)}
    params = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    return train(
        key,
        loss,
        params,
        data,
        optax.adam(0.1),
        mechanism=mechanism_with(SAMPLINGS[sampling]),
        loss_takes_key=True,
        steps_per_call=4,
        checkpoint_dir=folder,
        progress=False,
        **options,
    )


@functools.cache
def resident(sampling="poisson"):
    """The run on arrays, and the infos of its steps."""
    infos = []
    result = run(
        DATA, sampling, on_report=lambda report: infos.append(jax.device_get(report.infos))
    )
    return result, infos


def equal(one, other) -> bool:
    return jax.tree.all(jax.tree.map(np.array_equal, one.params, other.params))


def reading_threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("dpjax-records")]


class Rows:
    """A source of single records, read one by one."""

    def __init__(self, arrays=DATA, offset=0):
        self.arrays, self.offset = arrays, offset

    def __len__(self):
        return N

    def __getitem__(self, index):
        return jax.tree.map(lambda leaf: leaf[(index + self.offset) % N], self.arrays)


class Listed(Rows):
    """A source that reads several records into a list, and does something before each read."""

    def __init__(self, before_read=lambda number: None):
        super().__init__()
        self.before_read, self.num_reads = before_read, 0

    def __getitems__(self, indices):
        self.num_reads += 1
        self.before_read(self.num_reads)
        assert list(indices) == sorted(set(indices))
        return [self[index] for index in indices]


@pytest.mark.parametrize("sampling", slow_except(["fixed"], SAMPLINGS))
def test_train_on_a_source_is_that_on_arrays(sampling):
    expected, expected_infos = resident(sampling)
    infos = []
    streamed = run(
        ArraySource(DATA),
        sampling,
        on_report=lambda report: infos.append(jax.device_get(report.infos)),
    )
    assert equal(expected, streamed)
    assert expected.mechanism == streamed.mechanism
    sizes = np.concatenate([info.batch_size for info in infos])
    chex.assert_trees_all_equal(expected_infos, infos)
    if sampling == "crowded":
        assert sizes.max() > 2 * SAMPLINGS[sampling].physical_batch_size
    if sampling == "rarely":
        assert sizes.min() == 0


@pytest.mark.slow
def test_power_wrong_records_and_old_draws(monkeypatch):
    expected, _ = resident()
    assert equal(run(Rows()), expected)
    assert not equal(run(Rows(offset=1)), expected)
    before, stage = [], Stream._read_if_whole

    def stage_the_draw_before(self, located):
        before.append(located)
        return stage(self, before[-2] if len(before) > 1 else located)

    monkeypatch.setattr(Stream, "_read_if_whole", stage_the_draw_before)
    assert not equal(run(Rows()), expected)


@pytest.mark.slow
def test_stream_compiles_once_for_each_size(monkeypatch):
    sizes, compile_chunk = [], dpjax.training.data.compile_chunk

    def count(update, state, data, steps_per_call):
        sizes.append(len(data["y"]))
        return compile_chunk(update, state, data, steps_per_call)

    monkeypatch.setattr(dpjax.training.data, "compile_chunk", count)
    run(ArraySource(DATA))
    assert sizes == [24]
    sizes.clear()
    run(ArraySource(DATA), "crowded")
    assert len(sizes) == len(set(sizes)) > 1
    assert set(sizes) <= {6, 12, 24, 48}


@pytest.mark.slow
def test_train_on_a_source_resumes_to_the_same_result(tmp_path):
    with pytest.raises(Crash):
        run(Listed(), folder=tmp_path, on_report=crash_at(8))
    assert reading_threads() == []
    resumed = run(ArraySource(DATA), folder=tmp_path, key=dpjax.release_key())
    assert equal(resumed, resident()[0])
    # power: noise and draws are those of the checkpoint's key, not of another
    assert not equal(run(ArraySource(DATA), key=dpjax.release_key()), resumed)


@pytest.mark.slow
def test_train_refuses_the_checkpoint_of_other_records(tmp_path):
    run(ArraySource(DATA), folder=tmp_path)
    changed = DATA | {"kind": DATA["kind"].copy()}
    changed["kind"][17, 1] ^= 1
    with pytest.raises(ValueError, match="a run with another data:"):
        run(ArraySource(changed), folder=tmp_path)
    with pytest.raises(ValueError, match="a run with another data, another program"):
        run(DATA, folder=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("sampling", ["poisson", pytest.param("crowded", marks=pytest.mark.slow)])
def test_train_on_a_source_and_a_mesh_is_that_on_arrays(sampling):
    shape = {"poisson": (4, 1), "crowded": (2, 2)}[sampling]
    mesh = jax.make_mesh(shape, ("data", "model"), devices=jax.devices()[:4])
    sharding = MeshSharding(mesh, "data", lambda path, leaf: P("data") if path == "in" else P())
    streamed = run(ArraySource(DATA), sampling, sharding=sharding)
    assert equal(run(DATA, sampling, sharding=sharding), streamed)
    assert streamed.params["in"].sharding.spec == P("data")


def sharding_of(num_devices):
    return MeshSharding(
        jax.make_mesh((num_devices,), ("data",), devices=jax.devices()[:num_devices])
    )


@pytest.mark.slow
@pytest.mark.parametrize("own", [[0, 1, 2, 3], [1, 3]])
def test_stream_reads_once_what_is_drawn_for_its_devices(own, monkeypatch):
    """As one of two processes has them, devices 1 and 3 of 4."""
    monkeypatch.setattr(MeshSharding, "own_shards", own)
    sampling, source = SAMPLINGS["poisson"], ArraySource(DATA)
    stream = Stream(source, sampling, sharding=sharding_of(4))
    located = stream._locate(sampling.init(KEY), sampling.num_static_batches)
    drawn, mask = np.asarray(located.indices), np.asarray(located.mask)
    assert 8 < mask.sum() < 24
    read, read_several = [], ArraySource.__getitems__
    monkeypatch.setattr(
        ArraySource,
        "__getitems__",
        lambda source, indices: read.extend(indices) or read_several(source, indices),
    )
    staged, buffers = stream._read_drawn(located)
    assert list(buffers) == own
    # Slots of one device are two neighbours in each physical batch of eight.
    shards = np.arange(24) // 2 % 4
    assert sorted(read) == sorted(drawn[mask & np.isin(shards, own)])
    for shard, buffer in buffers.items():
        slots = np.flatnonzero(mask & (shards == shard))
        assert len(buffer["x"]) == 6
        for name, values in buffer.items():
            np.testing.assert_array_equal(
                values[staged.rows[slots]], DATA[name][drawn[slots]].astype(values.dtype)
            )


@pytest.mark.slow
def test_power_records_of_another_device(monkeypatch):
    sharding = sharding_of(2)
    expected = run(DATA, sharding=sharding)
    place = MeshSharding.place_shards

    def exchange(sharding, shards):
        return place(sharding, {0: shards[1], 1: shards[0]})

    assert equal(run(ArraySource(DATA), sharding=sharding), expected)
    monkeypatch.setattr(MeshSharding, "place_shards", exchange)
    assert not equal(run(ArraySource(DATA), sharding=sharding), expected)


@pytest.mark.slow
def test_stream_adds_nothing_for_a_device_without_drawn_records():
    """Its rows are zeros, at which this loss has no gradient."""
    positive = np.abs(DATA["x"]) + 1

    def on(data, sharding):
        return train(
            KEY,
            lambda w, x: jnp.sum(w * jnp.log(x)) / jnp.linalg.norm(x),
            jnp.zeros(4),
            data,
            optax.sgd(0.1),
            mechanism=mechanism_with(PoissonSampling(N, 0.05, physical_batch_size=8)),
            sharding=sharding,
            progress=False,
        )

    streamed = on(ArraySource(positive), sharding_of(4))
    assert equal(streamed, on(positive, sharding_of(4)))
    assert np.isfinite(streamed.params).all()


def test_fingerprint_is_of_1024_records_of_a_large_source():
    def fingerprint(array):
        return RecordReader(ArraySource(array), len(array)).fingerprint()

    large = np.arange(100_000, dtype=np.float32)
    for at in (0, 99_999):
        changed = large.copy()
        changed[at] += 1
        assert fingerprint(changed) != fingerprint(large)
    assert fingerprint(large[:-1]) != fingerprint(large)
    assert fingerprint(large[::-1].copy()) != fingerprint(large)
    some = np.random.default_rng(1).random(100_000) < 0.01
    assert fingerprint(np.where(some, 0, large)) != fingerprint(large)
    # What its docstring states: a record among many is not looked at.
    missed = large.copy()
    missed[50_000] = 0
    assert fingerprint(missed) == fingerprint(large)


def test_stream_reads_while_the_step_before_runs():
    read = threading.Event()
    source = Listed(lambda number: read.set() if number == 3 else None)
    sampling = SAMPLINGS["fixed"]
    draws = Stream(source, sampling)._prefetch(sampling.init(KEY), 2)
    next(draws)  # the first read was of the first record, the second of the first draw
    assert read.wait(20)
    assert reading_threads() != []
    draws.close()
    assert reading_threads() == []


@pytest.mark.slow
def test_train_ends_with_the_error_of_its_source():
    def fail(number):
        if number == 7:
            raise OSError("disk on fire")

    with pytest.raises(OSError, match="disk on fire"):
        run(Listed(fail))
    assert reading_threads() == []


@pytest.fixture
def interruptible():
    """Python's handler of interrupts: a shell may start background processes that ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize("slow_read", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_train_stops_its_thread_at_an_interrupt(tmp_path, slow_read):
    def interrupt(number):
        if number == 9:  # one read of the first record, two for the fingerprint, one for each step
            _thread.interrupt_main()
            time.sleep(0.5 * slow_read)  # the main thread waits for this read

    with pytest.raises(KeyboardInterrupt):
        run(Listed(interrupt), folder=tmp_path)
    assert reading_threads() == []
    assert equal(run(ArraySource(DATA), folder=tmp_path), resident()[0])


def read_two(result):
    """Reads two records of a source whose ``__getitems__`` returns ``result``."""
    reader = RecordReader(ArraySource(DATA), N)
    reader._source.__getitems__ = lambda indices: result
    reader.read([1, 2], reader.empty(2))


FIRST = {name: leaf[0] for name, leaf in DATA.items()}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: run(ArraySource(DATA["x"][:-1])),
            "data must have the 60 records .* got a source of 59",
        ),
        (
            lambda: run(Rows({"x": np.array(["text"] * N)})),
            r"dtype of data\[0\]\['x'\] must be that of numbers",
        ),
        (lambda: run(Rows({})), r"data\[0\] must be a tree of numbers"),
        (
            lambda: run(ArraySource(DATA), "fixed", sharding=sharding_of(4)),
            "physical_batch_size must be a multiple of 4",
        ),
        (
            lambda: read_two({name: leaf[:1] for name, leaf in DATA.items()}),
            "of 2 records must have the structure",
        ),
        (lambda: read_two([FIRST]), "as many records as indices, got 1 for 2"),
        (
            lambda: ArraySource((np.zeros(3), np.zeros(4))),
            "arrays must have one batch length",
        ),
        (
            lambda: ArraySource(np.ma.masked_less(DATA["y"], 0)),
            "arrays must be an array without a mask",
        ),
        (
            lambda: ArraySource([np.zeros(3), np.zeros(3)]),
            "arrays must be an array, a tuple or a mapping",
        ),
    ],
)
def test_refusals_of_sources(call, message):
    with pytest.raises(ValueError, match=message):
        call()


class Replaced(Listed):
    def __init__(self, index, record):
        super().__init__()
        self.index, self.record = index, record

    def __getitem__(self, index):
        return self.record if index == self.index else super().__getitem__(index)


@pytest.mark.parametrize(
    "record",
    [
        FIRST | {"x": FIRST["x"][:3]},
        FIRST | {"y": np.float32(1)},
        FIRST | {"more": 1},
        (FIRST["x"], FIRST["y"], FIRST["kind"]),
        FIRST | {"y": "text"},
    ],
    ids=["shape", "dtype", "fields", "structure", "text"],
)
def test_record_reader_names_a_record_unlike_the_first(record):
    reader = RecordReader(Replaced(41, record), N)
    reader.read([3, 40, 42], reader.empty(3))
    words = r"data\[41\] must have the structure, shapes and dtypes of data\[0\]"
    with pytest.raises(ValueError, match=words):
        reader.read([3, 41], reader.empty(3))


@pytest.mark.parametrize("source", [Rows(), Listed(), ArraySource(DATA)])
def test_record_reader_reads_into_the_first_rows(source):
    reader = RecordReader(source, N)
    found = reader.read([2, 30, 59], reader.empty(5))
    for name, leaf in found.items():
        np.testing.assert_array_equal(leaf[:3], jnp.asarray(DATA[name])[jnp.array([2, 30, 59])])
        assert leaf.dtype == jnp.asarray(DATA[name]).dtype
        assert not leaf[3:].any()


def test_record_reader_reads_plain_numbers():
    class Numbers(Rows):
        def __getitem__(self, index):
            return {"twice": 2 * index, "half": index / 2, "is_odd": index % 2 == 1}

    reader = RecordReader(Numbers(), N)
    found = reader.read([5, 8], reader.empty(2))
    assert {name: leaf.tolist() for name, leaf in found.items()} == {
        "twice": [10, 16],
        "half": [2.5, 4.0],
        "is_odd": [True, False],
    }
    assert {str(leaf.dtype) for leaf in found.values()} == {"int32", "float32", "bool"}


def test_record_reader_keeps_64_bits_in_a_thread(x64):
    reader = RecordReader(Rows(), N)
    with ThreadPoolExecutor(1) as thread:
        found = thread.submit(lambda: reader.read([1], reader.empty(1))).result()
    assert found["y"].dtype == np.float64
    assert found["y"] == DATA["y"][1]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peak memory is read from /proc")
@pytest.mark.parametrize("keep", [False, True], ids=["released", "kept"])
def test_train_reads_a_file_of_20_gigabytes_in_one(tmp_path, keep):
    script = Path(large_memory_map.__file__)
    command = [sys.executable, str(script), str(tmp_path), *["keep"] * keep]
    ended = subprocess.run(command, check=True, capture_output=True, text=True)
    in_file, read, peak = map(int, ended.stdout.split())
    assert in_file > 20e9
    assert read > 1.1e9
    assert (peak < 1e9) is not keep  # kept pages of what was read exceed it: power


def test_record_reader_reads_memory_maps_and_array_records(tmp_path):
    maps = {}
    for name, leaf in DATA.items():
        np.save(tmp_path / f"{name}.npy", leaf)
        maps[name] = np.load(tmp_path / f"{name}.npy", mmap_mode="r")
    path = str(tmp_path / "data.array_record")
    writer = ArrayRecordWriter(path, "group_size:1")
    for row in DATA["kind"]:
        writer.write(row.tobytes())
    writer.close()

    class Decoded:
        file = ArrayRecordDataSource(path)

        def __len__(self):
            return len(self.file)

        def __getitem__(self, index):
            return np.frombuffer(self.file[index], np.uint8)

        def __getitems__(self, indices):
            return [np.frombuffer(record, np.uint8) for record in self.file.__getitems__(indices)]

    chosen = [0, 7, 59]
    for source, expected in ((ArraySource(maps), DATA), (Decoded(), DATA["kind"])):
        reader = RecordReader(source, N)
        found = reader.read(chosen, reader.empty(3))
        for one, other in zip(*map(jax.tree.leaves, (found, expected)), strict=True):
            np.testing.assert_array_equal(one, other[chosen].astype(one.dtype))
    with pytest.raises(ValueError, match="must be that of numbers: a source decodes its records"):
        RecordReader(ArrayRecordDataSource(path), N)


def test_array_source_keeps_changes_of_a_copy_on_write_map(tmp_path):
    np.save(tmp_path / "x.npy", np.zeros((N, 3), np.float32))
    copied = np.load(tmp_path / "x.npy", mmap_mode="c")
    copied[5] = 1
    source = ArraySource(copied)
    assert [source[5].sum() for _ in range(2)] == [3, 3]
