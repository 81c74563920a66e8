"""A small problem, meshes over the eight devices, and runs on them."""

import functools
import re

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from dpjax.sampling import (
    AllocatedSampling,
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.training import MeshSharding, private_step, split_records
from helpers.inputs import gaussian_mechanism

NUM_EXAMPLES, NUM_STEPS = 203, 3
_RNG = np.random.default_rng(0)
DATA = (
    _RNG.normal(size=(NUM_EXAMPLES, 8)).astype(np.float32),
    _RNG.normal(size=NUM_EXAMPLES).astype(np.float32),
)
PARAMS = {
    "in": {"kernel": _RNG.normal(size=(8, 16)).astype(np.float32), "bias": np.zeros(16, "f4")},
    "out": _RNG.normal(size=16).astype(np.float32),
}
SAMPLERS = {
    "poisson": PoissonSampling(NUM_EXAMPLES, 0.2),
    "small batches": PoissonSampling(NUM_EXAMPLES, 0.2, physical_batch_size=16),
    "all": PoissonSampling(NUM_EXAMPLES, 1.0, physical_batch_size=208),
    "truncated": TruncatedPoissonSampling(NUM_EXAMPLES, 0.2, truncated_batch_size=40),
    "fixed": FixedSizeSampling(NUM_EXAMPLES, 40),
    "shuffled": ShuffledEpochs(NUM_EXAMPLES, 40),
    "allocated": AllocatedSampling(NUM_EXAMPLES, steps_per_epoch=4, participations=2),
}
OPTIMIZERS = {"sgd": optax.sgd(0.5), "adam": optax.adam(0.1)}
PER_LAYER = {"in": 0.5, "out": 1.0}


def loss(params, example):
    x, y = example
    hidden = jnp.tanh(x @ params["in"]["kernel"] + params["in"]["bias"])
    return (hidden @ params["out"] - y) ** 2


def over_model(path, leaf):
    return P(None, "model") if path == "in.kernel" else P("model")


def fully_sharded(path, leaf):
    return P("data")


def mesh(shape, names=("data", "model"), **options):
    names = names[: len(shape)]
    return jax.make_mesh(shape, names, devices=jax.devices()[: np.prod(shape)], **options)


AUTO = {"axis_types": (AxisType.Auto,)}
SHARDINGS = {
    "1": MeshSharding(mesh((1,))),
    "2": MeshSharding(mesh((2,), **AUTO)),
    "4": MeshSharding(mesh((4,))),
    "8": MeshSharding(mesh((8,), **AUTO)),
    "8 explicit": MeshSharding(mesh((8,))),
    "fully sharded": MeshSharding(mesh((8,)), "data", fully_sharded),
    "2x4": MeshSharding(mesh((2, 4)), "data", over_model),
    "2x4 rows": MeshSharding(mesh((2, 4)), ("data", "model")),
}


def mechanism(sampler="poisson", **changes):
    fields = {"num_steps": NUM_STEPS, "adjacency": "zero_out", **changes}
    return gaussian_mechanism(SAMPLERS[sampler], **fields)


def run(sharding=None, split=False, optimizer="adam", loss=loss, **options):
    """The state after some steps, and the last info."""
    data = split_records(DATA, sharding) if split else DATA
    described = mechanism(**options)
    key = jax.random.key(3)
    step = private_step(
        loss, OPTIMIZERS[optimizer], mechanism=described, key=key, sharding=sharding
    )
    state, update = step.init(PARAMS), jax.jit(step.update)
    for _ in range(NUM_STEPS):
        state, info = update(state, data)
    return state, info


@functools.cache
def on_one_device(optimizer="adam", sampler="poisson", per_layer=False):
    l2_clip = PER_LAYER if per_layer else 1.0
    return run(optimizer=optimizer, sampler=sampler, l2_clip=l2_clip)


def assert_same(found, expected, atol=2e-6):
    """Parameters and sums up to the order of summation; the same records, the same states."""
    (state, info), (other, other_info) = found, expected
    chex.assert_trees_all_close(state.params, other.params, atol=atol, rtol=1e-7)
    assert int(info.batch_size) == int(other_info.batch_size)
    np.testing.assert_allclose(info.loss_sum, other_info.loss_sum, rtol=1e-4)
    np.testing.assert_array_equal(
        *(jax.random.key_data(s.optimizer[0].key) for s in (state, other))
    )


_COLLECTIVE = re.compile(
    r"= (.*?) (all-reduce|all-gather|reduce-scatter|all-to-all|collective-permute)(?:-start)?\("
)


def collectives(compiled):
    """Names of the collectives of a compiled program, with the numbers of entries they return."""
    found = []
    for line in compiled.as_text().splitlines():
        if match := _COLLECTIVE.search(line):
            shapes = re.findall(r"[a-z]+[0-9]+\[([0-9,]*)\]", match[1])
            sizes = [np.prod([int(n) for n in s.split(",") if n], dtype=int) for s in shapes]
            found.append((match[2], int(sum(sizes))))
    return found
