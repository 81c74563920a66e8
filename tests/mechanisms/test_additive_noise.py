"""Floating-point noise on a statistic: its law, where it goes, and that the event tells of it."""

from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM, coverage_is_at_least, release
from scipy import stats

from dpjax.mechanisms import Gaussian, Laplace
from dpjax.mechanisms.additive import upper_triangle
from dpjax.sensitivity import Sensitivity

pytestmark = pytest.mark.usefixtures("strict_numerics")

KEY = jax.random.key(20)
MANY = 100_000
TREE = {"a": jnp.arange(4.0), "b": (jnp.ones(4),)}
KINDS = {"laplace": (Laplace, "l1", stats.laplace), "gaussian": (Gaussian, "l2", stats.norm)}


@pytest.fixture(params=KINDS)
def kind(request):
    return KINDS[request.param]


def mechanism(kind, scale=2.5, adjacency="add_remove", value=4.0, shape=()):
    cls, norm, _ = kind
    return cls(Sensitivity(value, norm, adjacency, shape=shape), scale)


@cache
def noises(kind):
    """What is added to two arrays of one tree; compiled once for all tests."""
    zeros = jnp.zeros(MANY)
    return [np.asarray(n) for n in jax.jit(partial(release, mechanism(kind)))(KEY, (zeros, zeros))]


def noise(kind):
    return noises(kind)[0]


@cache
def symmetric_release(kind):
    shapes = tuple(upper_triangle(matrix).shape for matrix in jax.tree.leaves(matrices()))
    return jax.jit(mechanism(kind, shape=shapes).release_symmetric)


def matrices():
    """A large matrix and a stack of small ones."""
    return {"large": jnp.zeros((300, 300)), "stack": jnp.zeros((4, 2, 2))}


def law_p(samples, law, scale):
    return stats.kstest(samples, law(scale=scale).cdf).pvalue


def test_release_noise_has_stated_distribution(kind):
    samples = noise(kind)
    assert law_p(samples, kind[2], 2.5) > FALSE_ALARM
    # power: five per cent too little, and the other law of the same deviation
    assert law_p(0.95 * samples, kind[2], 2.5) < FALSE_ALARM
    other = stats.laplace if kind[2] is stats.norm else stats.norm
    assert law_p(samples, other, samples.std() / other.std()) < FALSE_ALARM


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_event_is_that_of_added_noise(kind, adjacency):
    used = mechanism(kind, adjacency=adjacency)
    doubled = {"add_remove": 1, "replace_one": 2}[adjacency]
    # What accountants make of the event is noise over the sensitivity, 4, and nothing else.
    told = used.event.noise_multiplier / doubled * 4.0
    assert told == pytest.approx(used.scale, rel=1e-15)
    for ours, law_tested in zip(
        jax.tree.leaves(release(used, KEY, TREE)),
        jax.tree.leaves(release(mechanism(kind), KEY, TREE)),
        strict=True,
    ):
        np.testing.assert_array_equal(ours, law_tested)
    assert law_p(noise(kind), kind[2], told) > FALSE_ALARM
    assert noise(kind).std() == pytest.approx(used.standard_deviation, rel=0.02)


def test_release_noise_depends_on_key(kind):
    used = mechanism(kind)
    first, again = release(used, KEY, TREE), release(used, KEY, TREE)
    assert jax.tree.all(jax.tree.map(lambda x, y: bool((x == y).all()), first, again))
    other = release(used, jax.random.key(21), TREE)
    assert not bool((first["a"] == other["a"]).any())


def test_release_under_jit_and_vmap(kind):
    used = mechanism(kind)
    keys = jax.random.split(KEY, 3)
    together = jax.jit(jax.vmap(partial(release, used), in_axes=(0, None)))(keys, TREE)
    alone = jax.tree.map(lambda *rows: jnp.stack(rows), *(release(used, key, TREE) for key in keys))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), together, alone)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_release_keeps_float_dtypes(kind, dtype):
    used = mechanism(kind)
    released = release(used, KEY, jnp.full(4, 3.0, dtype))
    assert released.dtype == dtype
    exact = release(used, KEY, jnp.full(4, 3.0))
    np.testing.assert_array_equal(released, exact.astype(dtype))


def test_release_of_integers_is_float(kind):
    released = release(mechanism(kind), KEY, jnp.arange(4))
    assert released.dtype == jnp.float32
    np.testing.assert_array_equal(released, release(mechanism(kind), KEY, jnp.arange(4.0)))
    assert release(mechanism(kind), KEY, 3).dtype == np.float64


@pytest.mark.usefixtures("x64")
def test_release_of_float64_has_float64_noise(kind):
    released = jax.jit(partial(release, mechanism(kind)))(KEY, jnp.zeros(1000))
    assert released.dtype == jnp.float64
    assert (np.asarray(released) != np.float32(released)).mean() > 0.99


@pytest.mark.slow
def test_release_symmetric_draws_triangle_once(kind):
    released = np.asarray(symmetric_release(kind)(KEY, matrices())["large"])
    np.testing.assert_array_equal(released, released.T)
    upper = released[np.triu_indices(300)]
    assert np.unique(upper).size > 0.9 * upper.size
    for entries in (upper, np.diagonal(released)):
        assert law_p(entries, kind[2], 2.5) > FALSE_ALARM
    # power: the mean of a matrix of noise and its transpose is symmetric too, and too quiet
    full = noise(kind)[:90_000].reshape(300, 300)
    assert law_p(((full + full.T) / 2)[np.triu_indices(300, 1)], kind[2], 2.5) < FALSE_ALARM


@pytest.mark.slow
def test_release_symmetric_reads_upper_triangle(kind):
    draw = symmetric_release(kind)
    value = matrices() | {"stack": jnp.arange(16.0).reshape(4, 2, 2)}
    upper = jnp.triu(value["stack"])
    mirrored = upper + jnp.swapaxes(jnp.triu(upper, 1), 1, 2)
    released = draw(KEY, value)["stack"]
    np.testing.assert_array_equal(released, draw(KEY, value | {"stack": mirrored})["stack"])
    added = released - draw(KEY, matrices())["stack"]
    np.testing.assert_allclose(added, mirrored, atol=1e-5)


def test_release_symmetric_of_a_stack(kind):
    stack = symmetric_release(kind)(KEY, matrices())["stack"]
    np.testing.assert_array_equal(stack, jnp.swapaxes(stack, 1, 2))
    assert np.unique(stack).size == 4 * 3


@pytest.mark.parametrize("level", [0.5, 0.95, 0.999])
def test_confidence_interval_coverage(kind, level):
    used = mechanism(kind)
    low, high = used.confidence_interval(7 + noise(kind), level)
    covered = (low <= 7) & (high >= 7)
    assert coverage_is_at_least(level, covered)
    assert coverage_is_at_least(1 - level, ~covered)  # and no wider than needed
    narrow = np.abs((low + high) / 2 - 7) < 0.9 * used.half_width(level)
    assert not coverage_is_at_least(level, narrow)


def test_mechanism_takes_adjacency_of_sensitivity(kind):
    used = mechanism(kind, adjacency="replace_one")
    assert (used.adjacency, used.num_releases, used.unit) == ("replace_one", 1, "one record")
    assert used.with_privacy_factor(2.0) == mechanism(kind, adjacency="replace_one", scale=5.0)
