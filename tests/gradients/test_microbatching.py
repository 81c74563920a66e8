"""Micro-batches chosen from the memory that the compiled program takes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from gradient_oracle import assert_close

from dpjax import clipped_grad
from dpjax.gradients import microbatching

SIZE, WIDTH = 100, 64
BATCH = np.random.default_rng(0).normal(size=(SIZE, WIDTH)).astype(np.float32)
PARAMS = {"w": jnp.ones((WIDTH, WIDTH)) / WIDTH}


def loss(params, x):
    return jnp.sum(jnp.tanh(x @ params["w"]) ** 2)


@pytest.fixture
def analysed(monkeypatch):
    """Sizes of the programs whose memory was analysed, with a device of a few MiB."""
    sizes = []
    memory_of = microbatching._program_memory

    def recorded(*args):
        sizes.append((args[-1], memory_of(*args)))
        return sizes[-1][1]

    monkeypatch.setattr(microbatching, "_program_memory", recorded)
    return sizes


def with_memory(monkeypatch, mib):
    monkeypatch.setattr(microbatching, "device_memory", lambda: int(mib * 2**20))


def auto(**options):
    return clipped_grad(loss, 0.5, method="vmap", microbatch_size="auto", **options)


def test_a_batch_that_fits_is_not_split(monkeypatch, analysed):
    with_memory(monkeypatch, 1024)
    compute = auto()
    assert_close(compute(PARAMS, BATCH), clipped_grad(loss, 0.5, method="vmap")(PARAMS, BATCH), 0)
    assert [size for size, _ in analysed] == [8]
    compute(PARAMS, BATCH + 1)
    assert len(analysed) == 1  # shapes are the same


@pytest.mark.parametrize("mib", [0.5, 1.0, 2.0])
def test_the_largest_part_that_fits_is_taken(monkeypatch, analysed, mib):
    with_memory(monkeypatch, mib)
    found = jax.jit(auto())(PARAMS, BATCH)
    assert_close(found, clipped_grad(loss, 0.5)(PARAMS, BATCH), 1e-5)
    size, memory = analysed[-1]
    assert memory <= mib * 2**20 / 2
    compute, mask = clipped_grad(loss, 0.5, method="vmap"), jnp.ones(SIZE, bool)
    assert microbatching.fitting_microbatch_size(compute, PARAMS, BATCH, mask) == size
    twice = microbatching._program_memory(compute, PARAMS, BATCH, mask, 2 * size)
    assert twice > mib * 2**20 / 2  # the next power of two does not fit


def test_where_nothing_fits_examples_are_taken_one_by_one(monkeypatch):
    with_memory(monkeypatch, 0.001)
    mask = jnp.ones(SIZE, bool)
    assert microbatching.fitting_microbatch_size(clipped_grad(loss, 0.5), PARAMS, BATCH, mask) == 1


def test_losses_may_close_over_values_of_an_enclosing_trace(monkeypatch, analysed):
    with_memory(monkeypatch, 1.0)

    @jax.jit
    def compute(scale, batch):
        scaled = clipped_grad(lambda p, x: loss(p, scale * x), 0.5, microbatch_size="auto")
        return scaled(PARAMS, batch)[0]

    assert_close(compute(2.0, BATCH), clipped_grad(loss, 0.5)(PARAMS, 2 * BATCH)[0], 1e-5)
    assert analysed


def test_memory_of_a_control_group_is_a_limit(monkeypatch, tmp_path):
    group = tmp_path / "memory.max"
    monkeypatch.setattr(microbatching, "_CGROUP_LIMIT", group)
    machine = microbatching.device_memory()
    assert machine > 2**20
    for text, expected in (("max\n", machine), ("1048576\n", 2**20), (str(2**62), machine)):
        group.write_text(text)
        assert microbatching.device_memory() == expected
