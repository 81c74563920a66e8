"""What releases take and refuse, and that jit, vmap and scan change nothing."""

import functools
import math
import os
import subprocess
import sys
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.mechanisms import (
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Gaussian,
    Laplace,
    NoisyMax,
    RandomizedResponse,
    additive,
)
from dpjax.mechanisms._exact_noise import as_fraction, from_units, grid_for, to_units
from dpjax.sensitivity import SUM_ROUNDING, Sensitivity

KEY = jax.random.key(3)
CLASSES = (Laplace, Gaussian, DiscreteLaplace, DiscreteGaussian, NoisyMax, ExponentialMechanism)


def mechanism(cls, scale=2.5, shape=(3,)):
    return cls(Sensitivity(1, cls.norm, "add_remove", shape=shape), scale)


def every_mechanism(shape=(3,)):
    of_statistics = [mechanism(cls, shape=shape) for cls in CLASSES]
    return [*of_statistics, RandomizedResponse(3, 0.4, "replace_one")]


@pytest.mark.slow
@pytest.mark.parametrize("used", every_mechanism((4,)), ids=lambda used: type(used).__name__)
def test_release_of_batches_under_vmap_and_scan(used):
    keys = jax.random.split(KEY, 5)
    values = jnp.arange(20).reshape(5, 4) % 3
    together = jax.jit(jax.vmap(used.release))(keys, values)
    nested = jax.vmap(jax.vmap(used.release, (None, 0)), (0, None))(keys, values)
    _, scanned = jax.lax.scan(lambda c, kv: (c, used.release(*kv)), 0, (keys, values))
    for i in range(5):
        alone = np.asarray(used.release(keys[i], values[i]))
        for released in (
            together[i],
            nested[i, i],
            scanned[i],
            jax.jit(used.release)(keys[i], values[i]),
        ):
            np.testing.assert_array_equal(np.asarray(released, alone.dtype), alone)


def test_release_of_large_arrays_under_jit():
    released = jax.jit(mechanism(Laplace, shape=(3, 50_000)).release)(KEY, jnp.zeros((3, 50_000)))
    assert np.unique(released).size > 140_000  # and the callback returns at all


_ON_ONE_CORE = """
import os

os.sched_setaffinity(0, [min(os.sched_getaffinity(0))])
import jax
import dpjax

gaussian = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "add_remove", shape=(200_000,)), 2.0)
late = jax.jit(lambda key: jax.numpy.linalg.matrix_power(jax.random.normal(key, (900, 900)), 8))
release = jax.jit(lambda key, values: gaussian.release(key, values.ravel()[:200_000]))
for key in jax.random.split(jax.random.key(0), 2):
    released = release(key, late(key))
    late(key)
    released.block_until_ready()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="cores cannot be set here")
def test_a_machine_with_one_core_does_not_wait_for_itself():
    """Its only thread calls back, with values that were not ready when the release was called."""
    subprocess.run([sys.executable, "-c", _ON_ONE_CORE], check=True, timeout=100)


@pytest.mark.parametrize("used", every_mechanism(), ids=lambda used: type(used).__name__)
def test_release_of_64_bits_on_other_threads(used):
    """JAX enables 64 bits for a thread, and may run a callback on another one."""
    wide = np.array([2**40 + 1, 2**40 - 3, 2**40 + 1])
    value = wide % 3 if isinstance(used, RandomizedResponse) else wide
    only_integers = isinstance(used, DiscreteLaplace | DiscreteGaussian | RandomizedResponse)
    with jax.enable_x64(True):
        for dtype in (jnp.int64,) if only_integers else (jnp.int64, jnp.float64):
            given = jnp.asarray(value, dtype)
            released = jax.jit(used.release).lower(KEY, given).compile()
            alone = np.asarray(used.release(KEY, given))
            with jax.enable_x64(False):
                np.testing.assert_array_equal(released(KEY, given), alone)


def test_release_compiles_once():
    traced = []
    release = jax.jit(
        lambda key, value: traced.append(1) or mechanism(Gaussian).release(key, value)
    )
    for seed in range(3):
        release(jax.random.key(seed), jnp.zeros(3))
    assert len(traced) == 1


@pytest.mark.parametrize(
    "value",
    [1j, np.ones(2, complex), "3", ["a"], np.array([1, "x"], object), np.array([None]), KEY, b"1"],
)
@pytest.mark.parametrize("cls", CLASSES)
def test_release_refuses_what_is_not_real(cls, value):
    with pytest.raises(ValueError, match=r"(value|utilities) must be|could not convert"):
        mechanism(cls).release(KEY, value)


@pytest.mark.parametrize("used", every_mechanism(), ids=lambda used: type(used).__name__)
def test_release_refuses_masked_arrays(used):
    masked = np.ma.masked_equal([1, 2, 1], 2)
    with pytest.raises(ValueError, match=r"must be an array without a mask.*numpy\.ma\.filled"):
        used.release(KEY, masked)
    np.testing.assert_array_equal(
        used.release(KEY, masked.filled(0)), used.release(KEY, np.array([1, 0, 1]))
    )


@pytest.mark.parametrize("cls", [NoisyMax, ExponentialMechanism])
@pytest.mark.parametrize(
    "utilities",
    [
        [2**2000, 1.5, 2**2000 - 10**4],
        [2**70 + 10**4, 1.5, 2**70],
        [2**62 + 10**4, 2**62, -1.5],
        [2**63, -1, 2**63 - 10**4],
        [2**70 + 10**4, np.float32(1), np.int64(7), 2**70],
        [2**70 + 10**4, jnp.float32(1), 2**70],
    ],
    ids="beyond_float64 beyond_int64 rounded_by_float64 beyond_uint64 numpy jax".split(),
)
def test_selection_of_integers_beside_floats(cls, utilities):
    used = mechanism(cls, scale=100.0, shape=(len(utilities),))
    assert used.release(KEY, utilities) == 0
    assert used.release(KEY, utilities[::-1]) == len(utilities) - 1
    # What is not finite is excluded here too.
    longer = mechanism(cls, scale=100.0, shape=(2 + len(utilities),))
    assert longer.release(KEY, [math.inf, math.nan, *utilities]) == 2
    # power: of equal utilities the last wins sometimes
    keys = jax.random.split(KEY, 8)
    three = mechanism(cls, scale=100.0)
    assert {int(three.release(key, [2**2000, 1.5, 2**2000])) for key in keys} == {0, 2}


def test_release_of_pandas_columns():
    pandas = pytest.importorskip("pandas")
    column = pandas.Series([1, 2, 10**18])
    exact_noise = mechanism(DiscreteLaplace).release(KEY, np.zeros(3, int))
    released = mechanism(DiscreteLaplace).release(KEY, column)
    assert (released - exact_noise).tolist() == [1, 2, 10**18]
    with pytest.raises(ValueError, match="value must be real numbers"):
        mechanism(Laplace).release(KEY, pandas.Series(["a"]))


@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_release_of_nonfinite_is_that_of_zero(cls):
    used = mechanism(cls, shape=(4,))
    strange = used.release(KEY, np.array([np.nan, np.inf, -np.inf, 1.0]))
    np.testing.assert_array_equal(strange, used.release(KEY, np.array([0.0, 0.0, 0.0, 1.0])))


@pytest.mark.parametrize("cls", [NoisyMax, ExponentialMechanism])
def test_selection_excludes_nonfinite_utilities(cls):
    keys = jax.random.split(KEY, 300)

    def selected(utilities):
        release = mechanism(cls, 100.0, utilities.shape).release
        return set(jax.vmap(release, (0, None))(keys, utilities).tolist())

    assert selected(jnp.array([jnp.nan, 0.0, jnp.inf, 5.0, -jnp.inf])) == {1, 3}
    assert selected(jnp.full(3, jnp.nan)) == {0, 1, 2}


@pytest.mark.parametrize("exponent", [-80, -32, 0, 7, 100])
def test_to_units_rounds_to_nearest(exponent):
    values = [0.0, 1.0, -0.3, 1e300, -1e-300, 2.0**62, 3e18, 5e-324]
    for array in (np.array(values), np.array([10**30, -7], object), np.array([2**63 - 1, 5])):
        units = to_units(array, exponent)
        for unit, value in zip(units.tolist(), array.tolist(), strict=True):
            assert abs(unit - as_fraction(value) / as_fraction(2) ** exponent) <= as_fraction(0.5)
    assert from_units(np.array([3, -1]), -1).tolist() == [1.5, -0.5]
    assert from_units(np.array([10**400, -(10**400)], object), 0).tolist() == [np.inf, -np.inf]


@pytest.mark.parametrize("scale", [1e-300, 0.3, 1.0, 7e20])
@pytest.mark.parametrize("entries", [1, 1000, 10**6])
def test_grid_noise_scale_is_slightly_enlarged(scale, entries):
    grid = grid_for(scale, 0.7 * scale, entries)
    enlarged = grid.noise_scale() * as_fraction(2) ** grid.exponent / as_fraction(scale)
    rounding = entries * as_fraction(2) ** grid.exponent / as_fraction(0.7 * scale)
    assert 1 + rounding < enlarged < 1 + as_fraction(1e-9)
    # power: without its last unit the scale does not cover the discreteness of the noise
    assert (grid.noise_scale() - 2) * as_fraction(2) ** grid.exponent < as_fraction(scale) * (
        1 + rounding
    )


@pytest.mark.parametrize("rounding", [0.0, SUM_ROUNDING, 1e-3])
@pytest.mark.parametrize("scale", [2.0**-1022, 0.3, 1e308])
@pytest.mark.parametrize("moved_units", [1, 1001, 2**40])
def test_grid_scale_covers_rounding(scale, moved_units, rounding):
    for sensitivity in (2.0**-1022, scale, 1e308):
        grid = grid_for(scale, sensitivity, moved_units, rounding)
        spacing = as_fraction(2) ** grid.exponent
        moved = moved_units * spacing / as_fraction(sensitivity)
        covered = grid.scale * spacing / as_fraction(scale)
        assert covered >= 1 + as_fraction(rounding) + moved
        assert covered < 1 + as_fraction(rounding) + as_fraction(2.0**-31)
        assert moved > 0


@pytest.mark.parametrize("entries", [1, 2**14])
@pytest.mark.parametrize("cls", [Laplace, Gaussian])
def test_release_noise_covers_rounding_of_every_entry(cls, entries, monkeypatch):
    """Neighbours that rounding to the grid moves apart by nearly one unit more in every entry.

    Their distance in units is at most the scale of the noise, for a scale of the sensitivity.
    """
    order, slack = {"l1": 1, "l2": 2}[cls.norm], 2.0**-10
    spread = entries if order == 1 else math.isqrt(entries)  # the norm of a vector of ones
    grids = []
    keep = lambda *arguments: grids.append(grid_for(*arguments)) or grids[-1]  # noqa: E731
    monkeypatch.setattr(additive, "grid_for", keep)

    def grid_of(value):
        moves = Sensitivity(value, cls.norm, "add_remove", shape=(entries,))
        cls(moves, value).release(KEY, np.zeros(entries))
        return grids[-1]

    # a sensitivity of a whole number of units in each entry, and a little more
    spacing = 2.0 ** grid_of(1.0).exponent
    units = round(1 / (spread * spacing))
    sensitivity = spread * (units + 2 * slack) * spacing
    grid = grid_of(sensitivity)
    assert 2.0**grid.exponent == spacing

    one = np.full(entries, (0.5 - slack) * spacing)
    other = np.full(entries, (units + 0.5 + slack) * spacing)
    assert np.linalg.norm(other - one, order) <= sensitivity * (1 + 1e-15)
    apart = to_units(other, grid.exponent) - to_units(one, grid.exponent)
    assert np.all(apart == units + 1)
    assert spread * (units + 1) <= grid.noise_scale()
    # power: the scale enlarged for the rounding of one entry is too small for that of all
    assert entries == 1 or spread * (units + 1) > math.ceil(sensitivity / spacing) + 2


def test_enlarged_discrete_noise_is_below_continuous_curve():
    """The proof in `dpjax.mechanisms._exact_noise`, in numbers, on grids coarse enough to see."""
    for units, scale in ((3, 2.0), (10, 4.0), (40, 40.0)):
        for last, below in ((1.0, True), (0.0, False)):
            parameter = 1 / (scale + last)
            i = np.arange(units + 1)
            corners = np.exp((units - 2 * i) * parameter)[::-1]
            deltas = (1 - np.exp(-i * parameter))[::-1]
            ratios = np.exp(np.linspace(-units / scale, units / scale, 2001)[1:-1])
            inside = (ratios > corners[0]) & (ratios < corners[-1])
            discrete = np.interp(ratios[inside], corners, deltas)
            continuous = 1 - np.sqrt(ratios[inside] / np.exp(units / scale))
            assert np.all(discrete <= continuous + 1e-15) == below


@pytest.mark.parametrize("answers", [2**70, [-(2**70), 1]])
def test_randomized_response_beyond_int64(answers):
    released = RandomizedResponse(3, 0.4, "replace_one").release(KEY, answers)
    assert released.shape == np.shape(answers)
    assert np.isin(released, range(3)).all()


def of(cls, value=1.0, shape=(), **options):
    sensitivity = Sensitivity(value, options.pop("norm", cls.norm), "add_remove", shape=shape)
    return functools.partial(cls, sensitivity, **options)


def from_epsilon(cls, norm=None, **target):
    return lambda: cls.from_epsilon(Sensitivity(1.0, norm or cls.norm, "add_remove"), **target)


def traced_release(scale):
    sensitivity = Sensitivity(1.0, "l1", "add_remove")
    release = jax.jit(lambda scale: Laplace(sensitivity, scale).release(KEY, 5.0))
    return lambda: release(scale).block_until_ready()


LAPLACE = mechanism(Laplace)
COINS = RandomizedResponse(2, 0.5, "replace_one")
CANDIDATES = r"sensitivity's shape must be \(num_candidates,\) with at least one candidate"
REFUSED = [
    *((from_epsilon(Gaussian, epsilon=1.0, delta=d), r"delta must be in \(0, 1\)") for d in (0, 1)),
    (from_epsilon(Gaussian, epsilon=0.0, delta=0.1), "epsilon must be a finite number > 0"),
    *(
        (from_epsilon(Laplace, epsilon=epsilon), "epsilon must be a finite number > 0")
        for epsilon in (0.0, -1.0, math.inf, math.nan)
    ),
    *(
        (from_epsilon(cls, "l2", epsilon=1.0), "sensitivity must be stated in norm 'l1'")
        for cls in (Laplace, DiscreteLaplace)
    ),
    *(
        (of(cls, scale=scale), "scale must be a finite number > 0")
        for cls in (Laplace, Gaussian)
        for scale in (0.0, -1.0, math.nan, math.inf, "1")
    ),
    *(
        (traced_release(scale), "scale must be a finite number > 0")
        for scale in (0.0, -1.0, math.nan, math.inf)
    ),
    *(
        (
            functools.partial(LAPLACE.confidence_interval, np.zeros(2), x),
            r"level must be in \(0, 1\)",
        )
        for x in (0.0, 1.0, 95)
    ),
    (lambda: LAPLACE.release(0, np.zeros(3)), "key must be a scalar JAX key"),
    (
        lambda: jax.jit(LAPLACE.release)(KEY, jnp.ones(2, complex)),
        "value must be real numbers",
    ),
    *(
        (functools.partial(LAPLACE.release_symmetric, KEY, np.zeros(shape)), "square matrices")
        for shape in ((3,), (2, 3), ())
    ),
    (of(DiscreteLaplace, 2.5, scale=1.0), "sensitivity must be a whole number"),
    *(
        (functools.partial(mechanism(DiscreteGaussian).release, KEY, value), "value must be")
        for value in (0.5, [1.0, 2.0, 3.0], np.array([True] * 3), "12")
    ),
    *((of(NoisyMax, shape=s, scale=1.0), CANDIDATES) for s in ((), (2, 2), (0,), ((2,), (3,)))),
    (lambda: RandomizedResponse(1, 0.5, "replace_one"), "num_categories must be a whole number >="),
    *(
        (functools.partial(RandomizedResponse, 2, p, "replace_one"), r"keep_probability must be in")
        for p in (0.0, 1.0)
    ),
    *(
        (
            functools.partial(RandomizedResponse, 2, 0.5, adjacency),
            "adjacency must be 'replace_one'",
        )
        for adjacency in ("add_remove", "zero_out")
    ),
    (lambda: RandomizedResponse(2, 0.5, "local"), "adjacency must be one of"),
    (lambda: COINS.release(KEY, jnp.zeros(3)), "answers must be integers or booleans"),
]


@pytest.mark.parametrize(("call", "message"), REFUSED)
def test_mechanism_of_a_statistic_refuses(call, message):
    with pytest.raises(Exception, match=message):  # a callback's error is JAX's own type
        call()


DESCRIPTIONS = [
    (of(Gaussian, 2.0, scale=5.0), "one release, of sensitivity 2 in L2", "deviation 5", ""),
    (of(Laplace, 30.0, scale=90.0), "sensitivity 30 in L1", "scale 90", "at most 0.3334 at any"),
    (
        of(DiscreteLaplace, 3.0, scale=Fraction(9)),
        "one release of integers, of sensitivity 3 in L1",
        "discrete Laplace, scale 9, on every entry; sampled exactly",
        "pure differential privacy: epsilon at most 0.3334",  # rounded up
    ),
    (of(DiscreteGaussian, 3.0, scale=2.0), "L2", "discrete Gaussian, scale 2", "rho = 1.125"),
    (
        of(ExponentialMechanism, shape=(4,), scale=2.0),
        "utilities of sensitivity 1 in L-infinity",
        "Gumbel noise of scale 2",
        "epsilon at most 1",
    ),
    (
        lambda: NoisyMax(Sensitivity(1.0, "linf", "add_remove", True, (4,)), 2.0),
        "sensitivity 1 in L-infinity, monotone",
        "Laplace noise of scale 2",
        "epsilon at most 0.5",
    ),
    (
        lambda: RandomizedResponse(5, 0.3, "replace_one"),
        "of 5, randomized",
        "probability 0.3",
        "epsilon at most 1.146",
    ),
]


@pytest.mark.parametrize(("make", "statistic", "noise", "guarantee"), DESCRIPTIONS)
def test_guarantee_describes_statistic_noise_and_privacy(make, statistic, noise, guarantee):
    described = make().guarantee.description
    assert statistic in described["statistic"]
    assert noise in described["noise"]
    assert guarantee in described.get("guarantee", "")
    assert make().num_releases == 1
