"""Attacks with large values: neighbours' releases overlap as the noise says, whatever the dtype.

Noise added in float32 beside a large value is rounded away, and a count is released exactly under a
finite epsilon: the broken twin here.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.noise_checks import attacked_epsilon
from helpers.quick import slow_except

from dpjax.bayes.conjugate import GammaPoisson, SufficientStatisticsMechanism
from dpjax.bayes.regression import (
    AdaSSP,
    PerturbedStatistics,
    PrivateBounds,
    RegressionBounds,
    RegressionStatistics,
    WishartNoise,
)
from dpjax.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
)
from dpjax.sensitivity import Sensitivity

MANY = 3_000
UNIT = RegressionBounds(x_norm_bound=1.0, y_bound=1.0)
# A lower confidence bound on epsilon of Gaussian noise of mu = 1/2 is far below this at MANY draws.
GAUSSIAN_LIMIT = 2.0
V = 330_000_016


def attack(ones, others):
    """A lower confidence bound on epsilon; a quarter of the releases choose the outcomes."""
    cut = MANY // 4
    seen = np.concatenate([ones[:cut], others[:cut]])
    levels = np.unique(np.quantile(seen, np.linspace(0.1, 0.9, 5), method="nearest"))
    values, counts = np.unique(seen, return_counts=True)
    common = values[np.argsort(-counts)[:5]]
    outcomes = [lambda x, t=t: x >= t for t in levels] + [lambda x, a=a: x == a for a in common]
    return attacked_epsilon(ones[cut:], others[cut:], outcomes)


def releases(release, value, seed, x64=True):
    """Releases of one value with many keys; in float64 with x64, else rounded to float32."""
    with jax.enable_x64(x64):
        keys = jax.random.split(jax.random.key(seed), MANY)
        return np.asarray(jax.vmap(lambda key: release(key, value))(keys), np.float64)


def attack_neighbours(release, value, neighbour):
    """The better of two attacks, on releases in float64 and in float32."""
    return max(
        attack(releases(release, value, 1, x64), releases(release, neighbour, 2, x64))
        for x64 in (True, False)
    )


# Neighbours, and by how much they differ: one unit, or the spacing of their dtype.
NEIGHBOURS = {
    "int": (V, V + 1, 1),
    "negative": (-V, -V - 1, 1),
    "10^18": (10**18, 10**18 + 1, 1),
    "int64 max": (np.int64(2**63 - 1), np.int64(2**63 - 2), 1),
    "uint64": (np.uint64(2**64 - 1), np.uint64(2**64 - 2), 1),
    "beyond 64 bits": (10**30, 10**30 + 1, 1),
    "float": (float(V), V + 1.0, 1),
    "1e300": (1e300, np.nextafter(1e300, 2e300), float(np.spacing(1e300))),
    "float32": (np.float32(330_000_000), np.float32(330_000_032), 32),
    "float16": (np.float16(2048), np.float16(2050), 2),
    "bfloat16": (jnp.bfloat16(256), jnp.bfloat16(258), 2),
}


@pytest.mark.parametrize("name", slow_except(("int", "1e300", "float32"), NEIGHBOURS))
def test_release_hides_a_unit_in_large_values(name):
    value, neighbour, distance = NEIGHBOURS[name]
    laplace = Laplace.from_epsilon(Sensitivity(distance, "l1", "add_remove"), epsilon=1.0)
    assert attack_neighbours(laplace.release, value, neighbour) <= 1.0
    gaussian = Gaussian(Sensitivity(distance, "l2", "add_remove"), 2.0 * distance)
    assert attack_neighbours(gaussian.release, value, neighbour) <= GAUSSIAN_LIMIT


DISCRETE = ["int", "negative", "10^18", "int64 max", "beyond 64 bits"]


@pytest.mark.parametrize("name", slow_except(("int", "beyond 64 bits"), DISCRETE))
def test_discrete_release_hides_a_unit_in_large_values(name):
    value, neighbour, _ = NEIGHBOURS[name]
    laplace = DiscreteLaplace(Sensitivity(1, "l1", "add_remove"), 1)
    assert attack_neighbours(laplace.release, value, neighbour) <= 1.0
    gaussian = DiscreteGaussian(Sensitivity(1, "l2", "add_remove"), 2)
    assert attack_neighbours(gaussian.release, value, neighbour) <= GAUSSIAN_LIMIT


@pytest.mark.parametrize("name", ["int", "negative", "10^18", "float"])
def test_power_noise_added_in_float32(name):
    value, _, distance = NEIGHBOURS[name]
    # two spacings apart instead of a unit: different floats, however ties are rounded
    apart = 2 * int(np.spacing(np.float32(abs(value))))

    def float_release(key, value):
        noise = distance * jax.random.laplace(key, (), jnp.float32)
        return np.float32(value) + noise

    assert attack_neighbours(float_release, value, value + apart) > 3.0


@pytest.mark.parametrize("scale", [1e-300, 1e-40, 1e-12])
def test_release_at_scales_below_float32(scale):
    used = Laplace(Sensitivity(scale, "l1", "add_remove"), scale)
    assert attack_neighbours(used.release, 0.0, scale) <= 1.0
    with pytest.raises(ValueError, match=r"scale must be at least 2\.2"):
        Laplace(Sensitivity(1.0, "l1", "add_remove"), 1e-310)


@pytest.mark.parametrize("cls", [ExponentialMechanism, NoisyMax])
@pytest.mark.parametrize(
    "pair", [(V, V + 1), (10**18, 10**18 + 1), (10**30, 10**30 + 1), (float(V), V + 1.0)]
)
def test_selection_hides_a_unit_in_large_utilities(cls, pair):
    used = cls(Sensitivity(1.0, "linf", "add_remove", shape=(2,)), 2.0)
    ones = releases(used.release, list(pair), 1)
    others = releases(used.release, list(pair)[::-1], 2)
    assert attacked_epsilon(ones, others, [lambda x: x == 1]) <= used.pure_epsilon == 1.0
    # the same probabilities as of the differences: at least 0.3 for the worse of the two
    assert 0.3 < np.mean(ones == 0) < 0.48
    # power: in float32 they are equal or 32 apart, and the noise decides nothing
    noise = np.random.default_rng(0).gumbel(size=(MANY, 2)).astype(np.float32)
    assert np.ptp(np.argmax(np.float32(pair) + noise, axis=1)) == 0


def statistic_release(name):
    if name == "wishart":
        return WishartNoise(UNIT, 2, degrees_of_freedom=12, scale=2.0, adjacency="add_remove")
    if name == "adassp":
        return AdaSSP(UNIT, 2, mu=0.5, delta=1e-5, adjacency="add_remove")
    scales = RegressionStatistics(3.0, 3.0, 3.0)
    return PerturbedStatistics(UNIT, 2, scales, name, "add_remove")


def statistics(value, dtype):
    return RegressionStatistics(
        np.full((2, 2), value, dtype), np.full(2, value, dtype), np.asarray(value, dtype)
    )


@pytest.mark.parametrize("name", ["gaussian", "laplace", "adassp", "wishart"])
def test_regression_release_of_large_integers(name):
    released = statistic_release(name).release(jax.random.key(0), statistics(10**18, np.int64))
    released = released.statistics if name == "adassp" else released
    np.testing.assert_allclose(released.xty, 1e18, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
@pytest.mark.parametrize("name", ["gaussian", "laplace", "adassp", "wishart"])
def test_regression_release_hides_a_unit_in_large_statistics(name, dtype):
    used = statistic_release(name)

    def entries(key, value):
        released = used.release(key, statistics(value, dtype))
        released = released.statistics if name == "adassp" else released
        return jnp.concatenate([released.xtx.ravel()[:2], released.xty])

    ones, others = (releases(entries, V + k, 1 + k) for k in (0, 1))
    for one, other in zip(ones.T, others.T, strict=True):
        assert np.unique(one).size > MANY / 2  # noise with all its digits
        assert attack(one, other) <= GAUSSIAN_LIMIT


@pytest.mark.slow
def test_conjugate_release_hides_a_record_among_large_counts():
    family = GammaPoisson(shape=1.0, rate=1.0, largest_count=2**30)
    moves = family.sensitivity(norm="l1", adjacency="replace_one")
    used = SufficientStatisticsMechanism(family, Laplace(moves, moves.value))
    ones = np.full(64, 2.0**30)
    others = np.append(ones[1:], 0.0)
    assert attack_neighbours(lambda key, x: used.release(key, x)[0], ones, others) <= 1.0


@pytest.mark.parametrize("name", ["gaussian", "adassp", "wishart"])
def test_regression_release_of_largest_records(name):
    x, y = np.full((3, 2), 10**400, object), np.full(3, -(10**400), object)
    released = statistic_release(name).release_records(jax.random.key(0), x, y)
    released = released.statistics if name == "adassp" else released
    assert np.isfinite(released.xty).all()


def test_private_bounds_of_largest_records():
    bounds = PrivateBounds(
        x_norm_bounds=(1.0, 2.0),
        y_bounds=(1.0, 2.0),
        quantile=0.9,
        epsilon=50.0,
        adjacency="add_remove",
    )
    sizes = np.array([2] * 99 + [10**400], object)
    assert bounds.release(jax.random.key(0), sizes[:, None], -sizes) == RegressionBounds(
        x_norm_bound=2.0, y_bound=2.0
    )
