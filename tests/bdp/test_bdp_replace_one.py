"""Replace-one adjacency: pairs of gradients, and the log moments of replacing a record."""

import math

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from helpers.inputs import gaussian_mechanism
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.special import logsumexp

import dpjax
from dpjax import bdp
from dpjax.accounting.log_moments import gaussian_log_moments, subsampled_gaussian_log_moments
from dpjax.bdp.replace_one import (
    gradient_pairs,
    replace_one_log_moments,
    sample_disjoint_pairs,
)

ORDERS = (1, 2, 5, 12, 32)
# Norms, and the cosine of their angle, in units of the noise from 0.3 to 2.
PAIRS = [
    (0.7, 1.0, 1.0, 0.5),
    (1.0, 1.0, 0.3, -1.0),
    (2.0, 1.0, 2.0, 0.0),
    (1.0, 0.8, 1.0, 1.0),
    (0.5, 1.0, 0.4, -0.3),
    (3.0, 1.0, 0.9, 0.98),
]
COUNTEREXAMPLE = {"sampling_rate": 0.01, "noise_std": 0.7}


def moment(order, rate, noise, norm, other_norm, cosine):
    return float(
        replace_one_log_moments(
            (order,), norm, other_norm, cosine, sampling_rate=rate, noise_std=noise
        )[0]
    )


def in_the_plane(order, rate, noise, norm, other_norm, cosine):
    """Both directions by the trapezoid rule over the densities of the two mixtures in the plane."""
    first = np.array([norm * cosine, norm * math.sqrt(1 - cosine**2)]) / noise
    second = np.array([other_norm, 0.0]) / noise
    reach = 11 + (order + 1) * max(norm, other_norm) / noise
    x = np.linspace(-reach, reach, int(reach / 0.08))
    points = np.stack(np.meshgrid(x, x), axis=-1)

    def log_density(shift):
        moved = math.log(rate) + points @ shift - shift @ shift / 2
        plain = -np.sum(points**2, axis=-1) / 2 - math.log(2 * math.pi)
        with np.errstate(divide="ignore"):
            return plain + np.logaddexp(np.log1p(-rate), moved)

    p, q, area = log_density(first), log_density(second), 2 * math.log(x[1] - x[0])
    return [logsumexp(a + order * (a - b)) + area for a, b in ((p, q), (q, p))]


@pytest.mark.parametrize("rate", [1e-3, 0.05, 0.6])
@pytest.mark.parametrize("pair", PAIRS)
@pytest.mark.parametrize("order", [1, 2, 6])
def test_replace_one_log_moments_are_integrals_in_the_plane(order, rate, pair):
    expected = max(in_the_plane(order, rate, *pair))
    assert moment(order, rate, *pair) == pytest.approx(expected, rel=1e-9, abs=1e-11)


def on_the_line(order, rate, first, second):
    """Both directions for gradients on one line, by 30-digit quadrature."""
    with mp.workdps(30):
        rate = mpf(rate)

        def density(x, shift):
            return 1 - rate + rate * mpmath.exp(shift * x - mpf(shift) ** 2 / 2)

        def integral(u, v):
            def integrand(x):
                other = density(x, v)
                return mpmath.npdf(x) * other * (density(x, u) / other) ** (order + 1)

            ends = [mpf(i) for i in range(-12, 15, 3)]
            return mpmath.log(mpmath.quad(integrand, ends, maxdegree=5))

        return float(max(integral(first, second), integral(second, first)))


@pytest.mark.parametrize(
    ("rate", "norm", "other_norm", "cosine"),
    [(1e-6, 0.4, 0.3, -1.0), (1e-6, 0.03, 0.02, 1.0), (1e-3, 0.3, 0.2, 1.0)],
)
def test_replace_one_log_moments_keep_the_digits_of_small_ones(rate, norm, other_norm, cosine):
    expected = on_the_line(2, rate, norm, cosine * other_norm)
    assert expected < 1e-7
    value = moment(2, rate, 1.0, norm, other_norm, cosine)
    assert value == pytest.approx(expected, rel=1e-10, abs=0)


@pytest.mark.parametrize("cosine", [-1.0, -0.2, 0.6, 1.0])
def test_replace_one_log_moments_at_a_small_rate_are_the_chi_square(cosine):
    rate, u, v = 1e-8, 0.9, 0.5
    chi_square = math.exp(u**2) + math.exp(v**2) - 2 * math.exp(u * v * cosine)
    for order in ORDERS:
        expected = order * (order + 1) / 2 * rate**2 * chi_square
        assert moment(order, rate, 1.0, u, v, cosine) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.7, 1.0])
@pytest.mark.parametrize("noise", [0.2, 1.0, 6.0])
def test_replace_one_log_moments_of_a_zero_gradient_are_those_of_add_remove(rate, noise):
    distances = np.array([0.3, 0.8, 1.0])
    setting = {"sampling_rate": rate, "noise_std": noise}
    for cosines in (0.0, [-1.0, 0.4, 1.0]):
        values = replace_one_log_moments(ORDERS, distances, 0.0, cosines, **setting)
        np.testing.assert_allclose(
            values, subsampled_gaussian_log_moments(ORDERS, distances, **setting), rtol=1e-11
        )


@pytest.mark.parametrize("cosine", [-1.0, 0.3, 1.0])
def test_replace_one_log_moments_without_sampling_are_of_the_distance(cosine):
    distance = math.sqrt(0.7**2 + 0.5**2 - 2 * 0.7 * 0.5 * cosine)
    values = replace_one_log_moments(ORDERS, 0.7, 0.5, cosine, sampling_rate=1.0, noise_std=0.9)
    np.testing.assert_allclose(
        values, gaussian_log_moments(ORDERS, distance, noise_std=0.9), rtol=1e-11
    )


def test_replace_one_log_moments_exceed_the_formula_of_the_distance():
    """Two gradients of norm 1 at 60 degrees are 1 apart."""
    exact = moment(1, 0.01, 0.7, 1.0, 1.0, 0.5)
    formula = float(subsampled_gaussian_log_moments((1,), 1.0, **COUNTEREXAMPLE)[0])
    assert exact == pytest.approx(8.3e-4, abs=5e-6)
    assert formula == pytest.approx(6.7e-4, abs=5e-6)
    assert max(in_the_plane(1, 0.01, 0.7, 1.0, 1.0, 0.5)) > 1.2 * formula


lengths, cosines = st.floats(0.0, 3.0), st.floats(-1.0, 1.0)
rates = st.floats(math.log(1e-6), 0).map(math.exp)


@settings(max_examples=50)
@given(st.integers(1, 32), lengths, lengths, cosines, rates)
def test_replace_one_log_moments_are_symmetric_and_zero_for_equal_records(
    order, u, v, cosine, rate
):
    value = moment(order, rate, 1.0, u, v, cosine)
    assert value >= 0
    assert value == moment(order, rate, 1.0, v, u, cosine)
    assert moment(order, rate, 1.0, u, u, 1.0) == 0
    rounded = np.float32(1) + np.finfo(np.float32).eps  # a cosine of float32
    assert moment(order, rate, 1.0, u, u, rounded) == 0
    assert moment(order, rate, 2.5, 2.5 * u, 2.5 * v, cosine) == pytest.approx(value, rel=1e-9)


def test_replace_one_log_moments_grow_with_angle_and_norms_on_a_grid():
    angles, norms = np.linspace(1, -1, 11), np.linspace(0, 1, 6)
    for rate in (1e-3, 0.05, 0.3, 0.9):
        for noise in (0.5, 1.0, 3.0):
            setting = {"sampling_rate": rate, "noise_std": noise}
            for norm in (0.3, 1.0):
                wider = replace_one_log_moments(ORDERS, norm, 0.8, angles, **setting)
                assert np.all(wider[1:] >= wider[:-1] * (1 - 1e-11))
                assert np.all(wider[-1] > wider[0])
            longer = replace_one_log_moments(ORDERS, norms, 0.8, -1.0, **setting)
            assert np.all(longer[1:] >= longer[:-1] * (1 - 1e-11))
            assert np.all(longer[-1] > longer[0])


def test_replace_one_log_moments_broadcast_and_hold_for_little_noise():
    rng = np.random.default_rng(0)
    u, v, cosine = rng.random((2, 30)), rng.random(30), rng.uniform(-1, 1, (2, 30))
    noise = np.array([[0.15], [2.0]])
    values = replace_one_log_moments((1, 20), u, v, cosine, sampling_rate=0.02, noise_std=noise)
    assert values.shape == (2, 30, 2)
    for row, column in ((0, 0), (0, 13), (1, 29)):
        pair = u[row, column], v[column], cosine[row, column]
        alone = moment(20, 0.02, float(noise[row, 0]), *map(float, pair))
        assert values[row, column, 1] == pytest.approx(alone, rel=1e-11)
    # Where the two are far apart, Q is as good as its part on the batches without the record.
    far = moment(1, 0.02, 0.02, 1.0, 1.0, 0.0)
    assert far == pytest.approx(2 * math.log(0.02) + 50**2 - math.log(0.98), rel=1e-9)
    empty = replace_one_log_moments((1,), np.zeros((4, 0)), 1.0, 0.0, **COUNTEREXAMPLE)
    assert empty.shape == (4, 0, 1)


def loss(params, example):
    x, y = example
    return 0.5 * (jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2


def problem(num_pairs=20, seed=0):
    keys = jax.random.split(jax.random.key(seed), 6)
    params = {"w": jax.random.normal(keys[0], (4, 3)), "v": jax.random.normal(keys[1], (3,))}
    first, second = (
        (jax.random.normal(a, (num_pairs, 4)), jax.random.normal(b, (num_pairs,)))
        for a, b in (keys[2:4], keys[4:6])
    )
    return params, first, second


def record(batch, index):
    return jax.tree.map(lambda array: array[index], batch)


def flat(params, example):
    return np.asarray(jax.flatten_util.ravel_pytree(jax.grad(loss)(params, example))[0], float)


@pytest.mark.slow
@pytest.mark.parametrize("l2_clip", [None, 0.5])
def test_gradient_pairs_are_of_the_clipped_gradients(l2_clip):
    params, first, second = problem()
    pairs = gradient_pairs(loss, params, first, second, l2_clip=l2_clip)
    for i in range(5):
        g, other = (flat(params, record(part, i)) for part in (first, second))
        if l2_clip:
            g, other = (v * min(1, l2_clip / np.linalg.norm(v)) for v in (g, other))
        assert pairs.norms[i] == pytest.approx(np.linalg.norm(g), rel=1e-5)
        assert pairs.other_norms[i] == pytest.approx(np.linalg.norm(other), rel=1e-5)
        assert pairs.distances[i] == pytest.approx(np.linalg.norm(g - other), rel=1e-3, abs=1e-6)


def test_gradient_pairs_of_batches():
    params, first, second = problem()
    batches = [
        jax.tree.map(lambda a: a.reshape(4, 5, *a.shape[1:]), part) for part in (first, second)
    ]

    def mean_loss(params, batch):
        return jax.vmap(loss, (None, 0))(params, batch).mean()

    pairs = gradient_pairs(mean_loss, params, *batches)
    mean = np.mean([flat(params, record(first, i)) for i in range(5)], axis=0)
    assert pairs.norms.shape == (4,)
    assert pairs.norms[0] == pytest.approx(np.linalg.norm(mean), rel=1e-5)


def test_gradient_pairs_of_zero_or_infinite_gradients_have_zero_norm():
    x = jnp.array([[0.0, 0.0], [jnp.inf, 0.0]])
    pairs = gradient_pairs(lambda w, x: w @ x, jnp.zeros(2), x, jnp.ones((2, 2)))
    assert pairs.norms.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(pairs.distances, np.sqrt(2), rtol=1e-6)


def test_sample_disjoint_pairs_is_uniform_and_disjoint():
    drawn = [sample_disjoint_pairs(jax.random.key(seed), 12, num_pairs=3) for seed in range(400)]
    assert all(len(np.unique(pairs)) == 6 for pairs in drawn)
    counts = np.bincount(np.ravel(drawn), minlength=12)  # 200 each, standard deviation 10
    assert np.abs(counts - 200).max() < 50


def test_replace_one_log_moments_can_exceed_the_published_formula():
    params, first, second = problem(200)
    pairs = gradient_pairs(loss, params, first, second, l2_clip=1.0)
    settings = {"sampling_rate": 0.05, "noise_std": 0.8}
    own = bdp.replace_one_log_moments((1, 3), *pairs, **settings)
    published = bdp.subsampled_gaussian_log_moments((1, 3), pairs.distances, **settings)
    assert np.mean(own[:, 0] > published[:, 0]) > 0.2
    sampling, changes = dpjax.PoissonSampling(1_000, 0.05), {"adjacency": "replace_one"}
    mechanism = gaussian_mechanism(sampling, noise_multiplier=0.8, num_steps=1, **changes)
    account = bdp.init(mechanism, orders=(1, 3))
    both = bdp.epsilon(bdp.update_from_log_moments(account, own), 1e-5)
    assert 0 < both.dp < np.inf


GOOD = {"orders": (1,), "norms": 1.0, "other_norms": 1.0, "cosines": 0.0, **COUNTEREXAMPLE}
PARAMS, FIRST, SECOND = problem(4)
REFUSALS = [
    *[
        (lambda changes=changes: replace_one_log_moments(**{**GOOD, **changes}), message)
        for changes, message in [
            ({"orders": (0,)}, "orders"),
            ({"norms": [0.1, math.inf]}, "norms"),
            ({"cosines": 1.1}, "cosines"),
            ({"sampling_rate": 0}, "sampling_rate"),
            ({"noise_std": 0.0}, "noise_std"),
        ]
    ],
    (
        lambda: gradient_pairs(loss, PARAMS, FIRST, jax.tree.map(lambda a: a[:3], SECOND)),
        "second must be as many examples",
    ),
    (lambda: gradient_pairs(loss, PARAMS, FIRST, SECOND, l2_clip=0.0), "l2_clip"),
    (
        lambda: sample_disjoint_pairs(jax.random.key(0), 10, num_pairs=6),
        "num_pairs must be at most 5",
    ),
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_arguments_of_replace_one_are_refused(call, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        call()
