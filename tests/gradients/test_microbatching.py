"""Micro-batches: their size, from the memory of the compiled program, and loops over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.gradient_oracle import assert_close

from dpjax import clipped_grad
from dpjax._jaxprs import bodies_of, primitive_names, read_scan
from dpjax.gradients import explain, microbatching

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


def test_fitting_microbatch_size_of_the_whole_batch(monkeypatch, analysed):
    with_memory(monkeypatch, 1024)
    compute = auto()
    assert_close(
        compute(PARAMS, BATCH, None), clipped_grad(loss, 0.5, method="vmap")(PARAMS, BATCH, None), 0
    )
    assert [size for size, _ in analysed] == [8]
    compute(PARAMS, BATCH + 1, None)
    assert len(analysed) == 1  # shapes are the same


@pytest.mark.slow
@pytest.mark.parametrize("mib", [0.5, 1.0, 2.0])
def test_fitting_microbatch_size_is_the_largest(monkeypatch, analysed, mib):
    with_memory(monkeypatch, mib)
    found = jax.jit(auto())(PARAMS, BATCH, None)
    assert_close(found, clipped_grad(loss, 0.5)(PARAMS, BATCH, None), 1e-5)
    size, memory = analysed[-1]
    assert memory <= mib * 2**20 / 2
    compute, mask = clipped_grad(loss, 0.5, method="vmap"), jnp.ones(SIZE, bool)
    assert microbatching.fitting_microbatch_size(compute, PARAMS, BATCH, mask) == size
    twice = microbatching._program_memory(compute, PARAMS, BATCH, mask, 2 * size)
    assert twice > mib * 2**20 / 2  # the next power of two does not fit


def test_fitting_microbatch_size_of_one(monkeypatch):
    with_memory(monkeypatch, 0.001)
    mask = jnp.ones(SIZE, bool)
    assert microbatching.fitting_microbatch_size(clipped_grad(loss, 0.5), PARAMS, BATCH, mask) == 1


@pytest.mark.slow
def test_fitting_microbatch_size_of_traced_closures(monkeypatch, analysed):
    with_memory(monkeypatch, 1.0)

    @jax.jit
    def compute(scale, batch):
        scaled = clipped_grad(lambda p, x: loss(p, scale * x), 0.5, microbatch_size="auto")
        return scaled(PARAMS, batch, None)[0]

    assert_close(compute(2.0, BATCH), clipped_grad(loss, 0.5)(PARAMS, 2 * BATCH, None)[0], 1e-5)
    assert analysed


def test_device_memory_of_a_control_group(monkeypatch, tmp_path):
    group = tmp_path / "memory.max"
    monkeypatch.setattr(microbatching, "_CGROUP_LIMIT", group)
    machine = microbatching.device_memory()
    assert machine > 2**20
    for text, expected in (("max\n", machine), ("1048576\n", 2**20), (str(2**62), machine)):
        group.write_text(text)
        assert microbatching.device_memory() == expected


KERNELS = {"a": jnp.full((3, 3, 1, 2), 0.1), "b": jnp.full((3, 3, 2, 2), 0.1)}
IMAGES = np.random.default_rng(1).normal(size=(34, 6, 6, 1)).astype(np.float32)


def convolved(x, kernel):
    axes = ("NHWC", "HWIO", "NHWC")
    return jnp.tanh(
        jax.lax.conv_general_dilated(x[None], kernel, (1, 1), "SAME", dimension_numbers=axes)[0]
    )


def loss_of_convolutions(params, image):
    return jnp.sum(convolved(convolved(image, params["a"]), params["b"]) ** 2)


def loss_under_remat(params, image):
    hidden = jax.checkpoint(convolved)(image, params["a"])
    return jnp.sum(jax.checkpoint(convolved)(hidden, params["b"]) ** 2)


def loops_with_convolutions(function, *args):
    """Numbers of iterations of the scans with convolutions that are compiled to a loop."""

    def find(jaxpr):
        for equation in jaxpr.eqns:
            inner = [body.jaxpr for body in bodies_of(equation)]
            if equation.primitive.name == "scan" and read_scan(equation).unroll == 1:
                names = [name for body in inner for name in primitive_names(body)]
                if "conv_general_dilated" in names:
                    yield read_scan(equation).length
            for body in inner:
                yield from find(body)

    return list(find(jax.make_jaxpr(function)(*args, None).jaxpr))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loss", "part_size"), [(loss_of_convolutions, 9), (loss_under_remat, None)]
)
def test_convolutions_unrolled_on_cpu(loss, part_size):
    batch = IMAGES[:30]
    compute = clipped_grad(loss, 0.5, microbatch_size=part_size)
    assert loops_with_convolutions(compute, KERNELS, batch) == []
    expected = clipped_grad(loss, 0.5, method="vmap")(KERNELS, batch, None)
    assert_close(compute(KERNELS, batch, None), expected, 1e-5)


def test_convolutions_under_remat_microbatch_size():
    assert explain(loss_under_remat, KERNELS, IMAGES).microbatch_size in range(3, 30)


def test_convolutions_of_many_microbatches():
    compute = clipped_grad(loss_of_convolutions, 0.5, microbatch_size=2)
    assert loops_with_convolutions(compute, KERNELS, IMAGES) == [17]
