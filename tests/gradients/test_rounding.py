"""Clipped sums of up to a million examples: rounding included, one example moves them by its bound.

Designs: gradients beyond the bound (so that each is clipped to it), of which a new one goes first,
which changes every later rounding, or last.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.bookkeeping_checks import by_stored_values, preferring
from helpers.quick import slow_except

import dpjax
from dpjax.gradients import clipping
from dpjax.gradients.clipping import CompensatedSum, clip_and_sum, rounding_margin, sum_in_parts
from dpjax.sampling import PoissonSampling
from dpjax.training import MeshSharding
from dpjax.training.batch_gradient import sum_over_draw
from dpjax.transforms import clip_per_example

CLIP, DIMENSION = 1.0, 4


def linear(w, x):
    return jnp.vdot(w, x)


def dense(w, x):
    return jnp.sum(x @ w[:, None])


def lookup(w, x):
    return jnp.vdot(w[None][jnp.zeros((), jnp.int32)], x)


def by_gradient(loss, **options):
    compute = dpjax.clipped_grad(loss, CLIP, **options)
    return lambda grads: compute(jnp.zeros(DIMENSION), grads, None)[0]


def by_instantiated_gradients(grads):
    with preferring("instantiate"):
        return by_gradient(dense, method="bookkeeping")(grads)


def by_one_pass(grads):
    with preferring("sequential"):
        return by_gradient(dense, method="bookkeeping")(grads)


def by_micro_batches(grads, microbatch_size=1_000):
    """Micro-batches of consecutive examples, by an order in which strided ones are that."""
    rows = np.arange(len(grads)).reshape(-1, microbatch_size)
    return by_gradient(linear, microbatch_size=microbatch_size)(grads[rows.T.ravel()])


def by_stored_layers(grads, part_size=1):
    """Micro-batches of a layer under remat, added up without compensation in parts of 512."""
    loss = jax.checkpoint(dense)
    by_parts = by_stored_values(part_size, loss)
    mask = jnp.ones(len(grads), bool)
    return by_parts(CLIP, jnp.zeros(DIMENSION), jnp.asarray(grads), mask)[0]


def by_optax(grads):
    clip = clip_per_example(CLIP)
    return clip.update(grads, clip.init(None), mask=None)[0]


@functools.partial(jax.jit, static_argnums=1)
def by_physical_batches(grads, physical_batch_size=25_000):
    sampling = PoissonSampling(len(grads), 1.0, physical_batch_size=physical_batch_size)
    most = sampling.num_static_batches * physical_batch_size
    clipped_sum = dpjax.clipped_grad(linear, CLIP, max_batch_size=most)
    draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    return sum_over_draw(clipped_sum, sampling, draw, jnp.zeros(DIMENSION), grads)[0]


def by_devices(grads, num_devices=8):
    mesh = jax.make_mesh((num_devices,), ("data",), devices=jax.devices()[:num_devices])
    sampling = PoissonSampling(len(grads), 1.0, physical_batch_size=25_000)
    clipped_sum = dpjax.clipped_grad(linear, CLIP, max_batch_size=4 * 25_000)
    draw, _ = sampling.draw(sampling.init(jax.random.key(0)))
    summed, _ = sum_over_draw(
        clipped_sum, sampling, draw, jnp.zeros(DIMENSION), grads, sharding=MeshSharding(mesh)
    )
    return summed


WAYS = {
    "vmap": by_gradient(linear, method="vmap"),
    "product": by_gradient(linear),
    "ghost": by_gradient(dense),
    "instantiate": by_instantiated_gradients,
    "one pass": by_one_pass,
    "lookup": by_gradient(lookup),
    "layers under remat": jax.jit(by_stored_layers),
    "micro-batches": by_micro_batches,
    "optax": by_optax,
    "physical batches": by_physical_batches,
    "devices": jax.jit(by_devices),
}


@functools.cache
def neighbours(num_examples):
    """Triples: all but one example, and these with the one first, and with the one last."""
    rng = np.random.default_rng(0)
    direction = rng.normal(size=DIMENSION)
    sizes = np.where(rng.random((num_examples, 2)) < 0.5, 1, [0.137, 0.05]).prod(1, keepdims=True)
    designs = [
        np.tile(7 * direction, (num_examples, 1)),
        5 * np.abs(rng.normal(size=(num_examples, DIMENSION))),
        7 * direction * sizes,
        np.where(np.arange(num_examples)[:, None] % 2, 9 * direction, 9 * direction[::-1]),
    ]
    triples = []
    for grads in (np.float32(design) for design in designs):
        # Zero for the example that is not there: of one shape, nothing compiles twice.
        without = np.concatenate([grads, np.zeros_like(grads[:1])])
        one = np.float32(7 * direction)[None]
        triples.append((without, np.concatenate([one, grads]), np.concatenate([grads, one])))
    return triples


def farthest(clipped_sum, num_examples):
    """How far one example moves the sum, at most, over the clip bound."""
    moved = []
    for without, *with_one in neighbours(num_examples):
        base = np.float64(clipped_sum(without))
        moved += [np.linalg.norm(np.float64(clipped_sum(grads)) - base) for grads in with_one]
    return max(moved) / CLIP


@pytest.mark.parametrize("way", slow_except(("vmap", "ghost"), WAYS))
def test_sum_of_many_within_the_bound(way):
    moved = farthest(WAYS[way], 99_999)
    assert 0.95 < moved <= 1


@pytest.mark.slow
@pytest.mark.parametrize("way", ["vmap", "ghost", "micro-batches"])
def test_sum_of_a_million_within_the_bound(way):
    assert 0.7 < farthest(WAYS[way], 999_999) <= 1


@pytest.mark.parametrize("size", [1, 255, 1_500])
def test_sum_of_few_within_the_bound(size):
    for way in ("vmap", "ghost", "one pass", "layers under remat"):
        assert 1 - 2 * rounding_margin(size + 1) < farthest(WAYS[way], size) <= 1


def test_power_without_rounding_margin(monkeypatch):
    monkeypatch.setattr(clipping, "rounding_margin", lambda *_: 0.0)
    assert farthest(by_gradient(linear, method="vmap"), 99_999) > 1 + 1e-4


@pytest.mark.slow
def test_power_without_compensation(monkeypatch):
    def add(self, term):
        return CompensatedSum(jax.tree.map(jnp.add, self.total, term), self.error)

    monkeypatch.setattr(CompensatedSum, "add", add)
    assert farthest(by_micro_batches, 999_999) > 1.1


def test_compensated_sum_compiled():
    """2^24 + 1 + ... + 1: each of the ones is lost by a plain sum of float32."""
    ones = jnp.ones(clipping.PART_SIZE * 3).at[0].set(2.0**24)

    def first_of_part(factor, array):
        return jnp.max(factor * array)  # 2^24, then 1

    assert jax.jit(sum_in_parts, static_argnums=0)(first_of_part, ones, ones * 0 + 1) == 2**24 + 2


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1024, 1300])
def test_sum_in_parts_covers_every_example(size):
    weights = jnp.arange(1.0, size + 1)
    total = sum_in_parts(lambda w, x: jnp.dot(w, x), weights, jnp.ones(size))
    assert total == size * (size + 1) / 2


def test_rounding_margin_of_max_batch_size():
    """Of parts that are added up, each is clipped for the whole."""
    grads = jnp.full((8, DIMENSION), 3.0)
    compute = dpjax.clipped_grad(linear, CLIP, max_batch_size=1_000_000)
    total = np.linalg.norm(compute(jnp.zeros(DIMENSION), grads, None)[0])
    assert total == pytest.approx(8 / (1 + rounding_margin(1_000_000)), rel=1e-6)
    alone = np.linalg.norm(clip_and_sum(grads, CLIP, np.ones(8, bool))[0])
    assert alone == pytest.approx(8, rel=2 * rounding_margin(8))
