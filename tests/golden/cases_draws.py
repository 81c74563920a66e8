"""What fixed keys draw: random bits, batches, noise, and the releases of every mechanism."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.transforms.noise import gaussian_like
from golden.cases_certificates import (
    ADD,
    BOTH,
    REPLACE,
    conjugate_release,
    private_bounds,
    statistic,
    subsampled,
)

KEY = jax.random.key(2024)
TREE = {
    "w": jnp.arange(12.0).reshape(3, 4) / 7,
    "b": jnp.array([0.5, -2.0]),
    "half": jnp.ones(5, jnp.bfloat16),
    "scalar": jnp.array(3.0),
}
SAMPLERS = {
    "poisson": dpjax.PoissonSampling(100, 0.1),
    "poisson in parts": dpjax.PoissonSampling(70, 0.3, physical_batch_size=8),
    "poisson, all": dpjax.PoissonSampling(10, 1.0),
    "truncated poisson": dpjax.TruncatedPoissonSampling(100, 0.2, truncated_batch_size=15),
    "fixed size": dpjax.FixedSizeSampling(100, 12),
    "shuffled": dpjax.ShuffledEpochs(17, 5),
}
EXAMPLES = {"w": jnp.arange(20.0).reshape(4, 5) - 8, "b": jnp.array([[0.1], [0.2], [30.0], [-1.0]])}
PARAMS = jax.tree.map(lambda leaf: jnp.ones(leaf.shape[1:]), EXAMPLES)
UTILITIES = jnp.array([3.0, 3.5, 1.0, 4.0, 3.9])
COUNTS = [np.array([5, 0, -3]), np.array(12)]
RECORDS = {
    "beta-binomial": jnp.array([1, 0, 1, 1, 0, 1]),
    "dirichlet-multinomial": jnp.array([0, 2, 2, 1, 0]),
    "gamma-poisson": jnp.array([3, 0, 15, 7]),
    "normal": jnp.array([0.3, -7.0, 2.5]),
    "normal-unknown": jnp.array([0.3, -7.0, 2.5]),
}


SUMS = jax.tree.map(lambda leaf: leaf.astype(jnp.float32), TREE)  # half precision is refused


def _updates(optimizer, params, gradients, count=3):
    """The first updates of an optax transformation."""
    state, found = optimizer.init(params), []
    for _ in range(count):
        updates, state = optimizer.update(gradients, state, params, mask=None)
        found.append(updates)
    return found


def _add_noise(noise):
    transform = dpjax.add_gaussian_noise(noise_multiplier=noise, l2_clip=0.5, key=KEY)
    return _updates(transform, TREE, SUMS)


def _mechanism_noise():
    sampling, clip = dpjax.PoissonSampling(100, 0.1), {"a": 3.0, "b": 4.0}
    mechanism = subsampled(sampling, (2.0, 0.5), 2, ADD, clip)
    return _updates(mechanism.noise(KEY), TREE, SUMS)


def _optimizer(make):
    optimizer = make(0.1, l2_clip=2.0, noise_multiplier=1.5, expected_batch_size=4.0, key=KEY)
    return _updates(optimizer, PARAMS, EXAMPLES)


def _noisy_mean():
    transform = dpjax.differentially_private_aggregate(2.0, 1.5, KEY)
    return _updates(transform, PARAMS, EXAMPLES)


def _draws(sampling):
    """The records of the first draws, as masked physical batches."""
    state, found = sampling.init(KEY), []
    for _ in range(6):
        draw, state = sampling.draw(state)
        batches = [sampling.batch(draw, part) for part in range(int(sampling.num_batches(draw)))]
        found.append([np.asarray(b.indices)[np.asarray(b.mask)].tolist() for b in batches])
    return found


def _of_shape(mechanism, value):
    """The mechanism of a statistic of the value's shape."""
    shape = tuple(np.shape(leaf) for leaf in jax.tree.leaves(value))
    return replace(mechanism, sensitivity=replace(mechanism.sensitivity, shape=shape))


def _statistic(kind, value):
    return _of_shape(statistic(kind, 2.0, 3.0, ADD), value).release(KEY, value)


def _symmetric(kind):
    matrix = jnp.arange(9.0).reshape(3, 3)
    value = {"a": matrix, "b": matrix[:2, :2]}
    triangles = jax.tree.map(lambda one: one[np.triu_indices(len(one))], value)
    return _of_shape(statistic(kind, 2.0, 3.0, ADD), triangles).release_symmetric(KEY, value)


def _whole_numbers(kind):
    mechanism = _of_shape(statistic(kind, 2.0, 3.0, ADD), COUNTS)
    return [mechanism.release(jax.random.key(seed), COUNTS) for seed in range(5)]


def _selection(kind):
    mechanism = _of_shape(statistic(kind, 1.0, 2.0, ADD), UTILITIES)
    return [int(mechanism.release(key, UTILITIES)) for key in jax.random.split(KEY, 20)]


def _randomized_response():
    mechanism = dpjax.RandomizedResponse(5, 0.4, REPLACE)
    released = mechanism.release(KEY, jnp.arange(40) % 5)
    return {"released": released, **mechanism.frequencies(released)._asdict()}


def _conjugate(family, noise, adjacency):
    mechanism = conjugate_release(family, noise, 2.0, adjacency)
    return mechanism.release(jax.random.key(3), RECORDS[family])


def _bounds():
    x = jax.random.normal(jax.random.key(1), (30, 3))
    y = 2 * jax.random.normal(jax.random.key(2), (30,))
    release = private_bounds(0.2, REPLACE).release_positions
    return [[int(place) for place in release(key, x, y)] for key in jax.random.split(KEY, 10)]


def _in_double():
    with jax.enable_x64(True):
        return gaussian_like(KEY, {"w": jnp.zeros(6, jnp.float64)}, 1.0)


CASES = {
    "noise on a tree": lambda: gaussian_like(KEY, TREE, 1.5),
    "noise in float64": _in_double,
    "add noise": partial(_add_noise, 2.0),
    "add scheduled noise": partial(_add_noise, lambda step: 1.0 / (1.0 + step)),
    "noise of a mechanism, and past its steps": _mechanism_noise,
    "noisy sgd": partial(_optimizer, dpjax.noisy_sgd),
    "noisy adam": partial(_optimizer, dpjax.noisy_adam),
    "noisy mean": _noisy_mean,
    **{name: partial(_draws, sampler) for name, sampler in SAMPLERS.items()},
    "gaussian": partial(_statistic, "gaussian", TREE),
    "laplace": partial(_statistic, "laplace", TREE),
    "gaussian on whole numbers": partial(_statistic, "gaussian", jnp.arange(4)),
    "gaussian, symmetric": partial(_symmetric, "gaussian"),
    "laplace, symmetric": partial(_symmetric, "laplace"),
    "discrete gaussian": partial(_whole_numbers, "discrete_gaussian"),
    "discrete laplace": partial(_whole_numbers, "discrete_laplace"),
    "exponential mechanism": partial(_selection, "exponential_mechanism"),
    "noisy max": partial(_selection, "noisy_max"),
    "randomized response": _randomized_response,
    **{
        f"{family} {noise} {adjacency}": partial(_conjugate, family, noise, adjacency)
        for family, noise in (
            ("beta-binomial", "discrete laplace"),
            ("dirichlet-multinomial", "discrete gaussian"),
            ("gamma-poisson", "laplace"),
            ("normal", "gaussian"),
            ("normal-unknown", "laplace"),
        )
        for adjacency in BOTH
    },
    "bounds": _bounds,
}
