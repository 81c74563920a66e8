"""What fixed keys draw: random bits, batches, noise, and the releases of every mechanism."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from golden import api
from golden.cases_certificates import ADD, BOTH, REPLACE

KEY = jax.random.key(2024)
TREE = {
    "w": jnp.arange(12.0).reshape(3, 4) / 7,
    "b": jnp.array([0.5, -2.0]),
    "half": jnp.ones(5, jnp.bfloat16),
    "scalar": jnp.array(3.0),
}
SAMPLERS = {
    "poisson": api.poisson(100, 0.1),
    "poisson in parts": api.poisson(70, 0.3, 8),
    "poisson, all": api.poisson(10, 1.0),
    "truncated poisson": api.truncated_poisson(100, 0.2, 15),
    "fixed size": api.fixed_size(100, 12),
    "shuffled": api.shuffled(17, 5),
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
        updates, state = optimizer.update(gradients, state, params)
        found.append(updates)
    return found


def _add_noise(noise):
    return _updates(api.add_noise(noise=noise, clip=0.5, key=KEY), TREE, SUMS)


def _mechanism_noise():
    mechanism = api.subsampled_gaussian(
        api.poisson(100, 0.1), noise=(2.0, 0.5), steps=2, adjacency=ADD, clip={"a": 3.0, "b": 4.0}
    )
    return _updates(api.mechanism_noise(mechanism, KEY), TREE, SUMS)


def _optimizer(kind):
    options = {"clip": 2.0, "noise": 1.5, "batch_size": 4.0, "key": KEY}
    return _updates(api.noisy_optimizer(kind, 0.1, **options), PARAMS, EXAMPLES)


def _noisy_mean():
    return _updates(api.noisy_mean(clip=2.0, noise=1.5, key=KEY), PARAMS, EXAMPLES)


def _statistic(kind, norm, value):
    mechanism = kind(api.sensitivity(2.0, norm, ADD), scale=3.0)
    return api.release(mechanism, KEY, value)


def _symmetric(kind, norm):
    mechanism = kind(api.sensitivity(2.0, norm, ADD), scale=3.0)
    matrix = jnp.arange(9.0).reshape(3, 3)
    return api.release_symmetric(mechanism, KEY, {"a": matrix, "b": matrix[:2, :2]})


def _whole_numbers(kind, norm):
    mechanism = kind(api.sensitivity(2.0, norm, ADD), scale=3.0)
    return [api.release_whole_numbers(mechanism, seed, COUNTS) for seed in range(5)]


def _selection(kind):
    mechanism = kind(api.sensitivity(1.0, "linf", ADD), scale=2.0)
    return [int(api.release(mechanism, key, UTILITIES)) for key in jax.random.split(KEY, 20)]


def _randomized_response():
    mechanism = api.randomized_response(5, keep=0.4)
    released = api.release(mechanism, KEY, jnp.arange(40) % 5)
    return {"released": released, **api.frequencies(mechanism, released)}


def _conjugate(family, noise, adjacency):
    mechanism = api.conjugate_release(family, noise, scale=2.0, adjacency=adjacency)
    return api.conjugate_noisy(mechanism, 3, RECORDS[family])


CASES = {
    "noise on a tree": lambda: api.gaussian_noise(KEY, TREE, 1.5),
    "noise in float64": lambda: _in_double(api.gaussian_noise),
    "add noise": partial(_add_noise, 2.0),
    "add scheduled noise": partial(_add_noise, lambda step: 1.0 / (1.0 + step)),
    "noise of a mechanism, and past its steps": _mechanism_noise,
    "noisy sgd": partial(_optimizer, "sgd"),
    "noisy adam": partial(_optimizer, "adam"),
    "noisy mean": _noisy_mean,
    **{name: partial(api.draws, sampler, KEY, 6) for name, sampler in SAMPLERS.items()},
    "gaussian": partial(_statistic, api.gaussian, "l2", TREE),
    "laplace": partial(_statistic, api.laplace, "l1", TREE),
    "gaussian on whole numbers": partial(_statistic, api.gaussian, "l2", jnp.arange(4)),
    "gaussian, symmetric": partial(_symmetric, api.gaussian, "l2"),
    "laplace, symmetric": partial(_symmetric, api.laplace, "l1"),
    "discrete gaussian": partial(_whole_numbers, api.discrete_gaussian, "l2"),
    "discrete laplace": partial(_whole_numbers, api.discrete_laplace, "l1"),
    "exponential mechanism": partial(_selection, api.exponential_mechanism),
    "noisy max": partial(_selection, api.noisy_max),
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
    "bounds": lambda: [
        api.release_bounds(api.private_bounds(epsilon=0.2, adjacency=REPLACE), key, *_records())
        for key in jax.random.split(KEY, 10)
    ],
}


def _records():
    x = jax.random.normal(jax.random.key(1), (30, 3))
    return x, 2 * jax.random.normal(jax.random.key(2), (30,))


def _in_double(noise):
    with jax.enable_x64(True):
        return noise(KEY, {"w": jnp.zeros(6, jnp.float64)}, 1.0)
