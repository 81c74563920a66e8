"""One private step is the one written by hand: draw, clip, sum, noise, divide, step."""

from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism, linear_records

from dpjax import add_gaussian_noise, clip_per_example, noisy_sgd, train
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)
from dpjax.training import private_step

N, CLIP, RATE = 13, 0.7, 0.1
KEY = jax.random.key(3)
_RNG = np.random.default_rng(0)
DATA = (
    _RNG.normal(size=(N, 3)).astype(np.float32),
    _RNG.normal(size=N).astype(np.float32),
)
PARAMS = {"b": jnp.float32(0.5), "w": jnp.array([0.1, -0.2, 0.3])}


def loss(params, example):
    x, y = example
    return 0.5 * (x @ params["w"] + params["b"] - y) ** 2


def mechanism(sampling, **fields):
    usual = {"l2_clip": CLIP, "noise_multiplier": 1.5, "adjacency": "replace_one"}
    return gaussian_mechanism(sampling, **{**usual, **fields})


def sgd_step(described, key=KEY, **options):
    return private_step(loss, optax.sgd(RATE), mechanism=described, key=key, **options)


def drawn_by(sampling, state) -> list[int]:
    draw, _ = sampling.draw(state)
    batches = [sampling.batch(draw, part) for part in range(int(sampling.num_batches(draw)))]
    return [int(i) for batch in batches for i in np.asarray(batch.indices)[batch.mask]]


def clipped_sum_by_hand(params, records) -> dict[str, np.ndarray]:
    """Least squares: the gradient of one example is its residual times (x, 1)."""
    total = {"b": np.float64(0), "w": np.zeros(3)}
    for i in records:
        x, y = DATA[0][i].astype(float), float(DATA[1][i])
        residual = x @ np.asarray(params["w"], float) + float(params["b"]) - y
        norm = abs(residual) * np.sqrt(x @ x + 1)
        factor = min(1, CLIP / norm)
        total = {"b": total["b"] + factor * residual, "w": total["w"] + factor * residual * x}
    return total


def noise_of(described, state) -> dict[str, np.ndarray]:
    """What the state's next release adds to its sum."""
    zeros = jax.tree.map(jnp.zeros_like, state.params)
    return described.noise(KEY).update(zeros, state.optimizer[0])[0]


def mean_by_hand(described, state) -> dict[str, np.ndarray]:
    """The noisy mean gradient of the state's own draw, with the state's own noise."""
    summed = clipped_sum_by_hand(state.params, drawn_by(described.sampling, state.sampler))
    size = described.sampling.expected_batch_size
    return jax.tree.map(lambda s, z: (s + np.asarray(z)) / size, summed, noise_of(described, state))


def step_by_hand(described, state) -> dict[str, np.ndarray]:
    mean = mean_by_hand(described, state)
    return jax.tree.map(lambda p, g: np.asarray(p) - RATE * g, state.params, mean)


assert_close = partial(chex.assert_trees_all_close, rtol=1e-5, atol=1e-6)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("sampling", "microbatch_size"),
    [
        (PoissonSampling(N, 0.4, physical_batch_size=4), None),
        pytest.param(TruncatedPoissonSampling(N, 0.5, truncated_batch_size=5), 2, marks=SLOW),
        (FixedSizeSampling(N, 5), None),
        pytest.param(ShuffledEpochs(N, 6), 4, marks=SLOW),
    ],
    ids=lambda value: type(value).__name__,
)
def test_private_step_is_the_step_written_by_hand(sampling, microbatch_size):
    described = mechanism(sampling)
    step = sgd_step(described, method="vmap", microbatch_size=microbatch_size)
    update, state = jax.jit(step.update), step.init(PARAMS)
    for _ in range(4):
        expected, drawn = step_by_hand(described, state), drawn_by(sampling, state.sampler)
        state, info = update(state, DATA)
        assert_close(state.params, expected)
        assert int(info.batch_size) == len(drawn)


@pytest.mark.slow
def test_power_another_clip_bound_differs_from_the_step_by_hand():
    described = mechanism(FixedSizeSampling(N, 5), l2_clip=2 * CLIP, noise_multiplier=0.75)
    step = sgd_step(described)
    state = step.init(PARAMS)
    with pytest.raises(AssertionError):
        assert_close(step.update(state, DATA)[0].params, step_by_hand(described, state))


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # Adam's bias correction promotes
def test_private_step_gives_any_optimizer_the_noisy_mean():
    described, optimizer = mechanism(PoissonSampling(N, 0.4)), optax.adam(0.1)
    step = private_step(loss, optimizer, mechanism=described, key=KEY)
    update, state, plain = jax.jit(step.update), step.init(PARAMS), optimizer.init(PARAMS)
    for _ in range(3):
        gradient = jax.tree.map(jnp.float32, mean_by_hand(described, state))
        updates, plain = optimizer.update(gradient, plain, state.params)
        expected = optax.apply_updates(state.params, updates)
        state, _ = update(state, DATA)
        assert_close(state.params, expected)


def key_that_draws(sampling, wanted) -> jax.Array:
    """A key whose first draw has a size that is ``wanted``."""
    keys = jax.vmap(jax.random.key)(jnp.arange(20_000))
    sizes = jax.vmap(lambda key: sampling.draw(jax.random.split(key)[0])[0].size)(keys)
    return keys[int(np.flatnonzero(wanted(np.asarray(sizes)))[0])]


def test_private_step_on_an_empty_draw_is_pure_noise():
    sampling = PoissonSampling(N, 0.1)
    key = key_that_draws(sampling, lambda size: size == 0)
    described = mechanism(sampling)
    step = sgd_step(described, key)
    state = step.init(PARAMS)
    moved, info = jax.jit(step.update)(state, DATA)
    noise = noise_of(described, state)
    assert_close(moved.params, jax.tree.map(lambda p, z: p - RATE * z / 1.3, PARAMS, noise))
    assert float(jnp.abs(noise["w"]).min()) > 0
    assert (int(info.batch_size), float(info.loss_sum), int(info.num_nonfinite)) == (0, 0.0, 0)
    assert int(moved.num_releases) == 1


@pytest.mark.slow
@pytest.mark.parametrize("physical_batch_size", [1, 4, 20])
def test_private_step_does_not_depend_on_physical_batch_size(physical_batch_size):
    # 5 expected, 13 at most as usual: this draw needs further physical batches at every size.
    data = linear_records(50)
    reference = PoissonSampling(50, 0.05, physical_batch_size=50)
    key = key_that_draws(reference, lambda size: size > 8)
    results = []
    for size in (50, physical_batch_size):
        sampling = PoissonSampling(50, 0.05, physical_batch_size=size)
        step = sgd_step(mechanism(sampling), key)
        state, info = jax.jit(step.update)(step.init(PARAMS), data)
        results.append((state.params, info[:3]))
        assert info.norms.shape == info.mask.shape == (sampling.num_static_batches * size,)
    assert_close(*results)
    assert int(info.batch_size) > sampling.num_static_batches * size or physical_batch_size == 20


@pytest.mark.slow
def test_private_step_loops_over_many_small_physical_batches():
    def size_of_program(physical_batch_size):
        sampling = PoissonSampling(1000, 0.2, physical_batch_size=physical_batch_size)
        step = sgd_step(mechanism(sampling))
        data = (jnp.zeros((1000, 3)), jnp.zeros(1000))
        return len(jax.jit(step.update).lower(step.init(PARAMS), data).as_text())

    assert size_of_program(1) < 1.5 * size_of_program(0)


@pytest.mark.slow
def test_step_info_has_norms_and_losses_of_the_draw():
    sampling = PoissonSampling(N, 0.4, physical_batch_size=4)
    step = sgd_step(mechanism(sampling))
    state = step.init(PARAMS)
    _, info = step.update(state, DATA)
    records = drawn_by(sampling, state.sampler)
    residuals = DATA[0] @ np.asarray(PARAMS["w"]) + 0.5 - DATA[1]
    norms = np.abs(residuals) * np.sqrt((DATA[0] ** 2).sum(axis=1) + 1)
    np.testing.assert_allclose(info.norms[info.mask], norms[records], rtol=1e-5)
    assert (np.asarray(info.norms)[~np.asarray(info.mask)] == 0).all()
    np.testing.assert_allclose(info.loss_sum, (residuals[records] ** 2 / 2).sum(), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("bad", [pytest.param(np.nan, marks=SLOW), np.inf])
def test_private_step_leaves_out_and_counts_nonfinite_records(bad):
    x, y = (array.copy() for array in DATA)
    x[5] = bad
    described = mechanism(PoissonSampling(N, 1.0, physical_batch_size=4))
    step = sgd_step(described)
    first = step.init(PARAMS)
    state, info = jax.jit(step.update)(first, (x, y))
    others = clipped_sum_by_hand(PARAMS, [i for i in range(N) if i != 5])
    noise = jax.tree.map(np.asarray, noise_of(described, first))
    expected = jax.tree.map(
        lambda p, s, z: np.asarray(p) - RATE / N * (s + z), PARAMS, others, noise
    )
    assert_close(state.params, expected)
    assert (int(info.batch_size), int(info.num_nonfinite)) == (N, 1)
    assert np.isfinite(info.loss_sum)


@pytest.mark.slow
def test_private_step_counts_releases_and_gives_nan_past_the_last():
    step = sgd_step(mechanism(PoissonSampling(N, 0.4)))
    update, state = jax.jit(step.update), step.init(PARAMS)
    for done in range(1, 5):
        state, _ = update(state, DATA)
        assert int(state.num_releases) == done
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state.params))
    state, _ = update(state, DATA)
    assert all(np.isnan(leaf).all() for leaf in jax.tree.leaves(state.params))


@pytest.mark.slow
def test_private_step_traces_once_and_init_copies():
    step = sgd_step(mechanism(PoissonSampling(N, 0.4)))
    update = jax.jit(step.update, donate_argnums=0)
    once = update(step.init(PARAMS), DATA)[0]
    twice = update(update(step.init(PARAMS), DATA)[0], DATA)[0]
    assert update._cache_size() == 1
    assert PARAMS["w"].tolist() == pytest.approx([0.1, -0.2, 0.3])
    assert (int(once.num_releases), int(twice.num_releases)) == (1, 2)


def test_private_step_derives_different_keys():
    step = sgd_step(mechanism(PoissonSampling(N, 0.4)))
    state = step.init(PARAMS)
    words = {jax.random.key_data(k).tobytes() for k in (KEY, state.sampler, state.optimizer[0].key)}
    assert len(words) == 3


def test_refusals_of_private_step():
    described = mechanism(PoissonSampling(N, 0.4))
    step = sgd_step(described)
    with pytest.raises(ValueError, match="data must have the 13 records"):
        step.update(step.init(PARAMS), jax.tree.map(lambda a: a[:-1], DATA))
    with pytest.raises(TypeError, match="key must be a scalar JAX key"):
        sgd_step(described, key=0)
    with pytest.raises(ValueError, match="method must be one of"):
        sgd_step(described, method="fast")


WITH_DPJAX = {
    "noise": add_gaussian_noise(noise_multiplier=1.0, l2_clip=CLIP, key=KEY),
    "noise in a chain": optax.chain(
        optax.scale(2.0), add_gaussian_noise(noise_multiplier=1.0, l2_clip=CLIP, key=KEY)
    ),
    "noise in a wrapper": optax.apply_if_finite(
        add_gaussian_noise(noise_multiplier=1.0, l2_clip=CLIP, key=KEY), 3
    ),
    "noisy_sgd": noisy_sgd(0.1, l2_clip=CLIP, noise_multiplier=1.0, expected_batch_size=2, key=KEY),
    "clipping": optax.chain(clip_per_example(CLIP), optax.sgd(0.1)),
    "optax's own noise": optax.contrib.differentially_private_aggregate(CLIP, 1.0, KEY),
}


@pytest.mark.parametrize("name", WITH_DPJAX)
def test_private_step_refuses_an_optimizer_with_noise_or_clipping(name):
    described = mechanism(FixedSizeSampling(N, 4))
    words = "^optimizer must have no noise or clipping of its own"
    step = private_step(loss, WITH_DPJAX[name], mechanism=described, key=KEY)
    with pytest.raises(ValueError, match=words):
        step.init(PARAMS)
    with pytest.raises(ValueError, match=words):
        train(KEY, loss, PARAMS, DATA, WITH_DPJAX[name], mechanism=described, progress=False)
