"""The certified supremum against exact divergences over many histograms."""

import numpy as np
import pytest
from helpers.vote_oracles import exact_divergences, gaussian_log_winners
from scipy import stats
from scipy.special import logsumexp

from dpjax.pate import argmax_rdp, data_independent
from dpjax.pate.data_independent import threshold_rdp

ORDERS = np.array([1.5, 2.0, 6.0, 16.0, 32.0])
SCALE = 40.0
# Classes at and around a tie, with others at every distance.
HISTOGRAMS = [
    (125, 125),
    (126, 124),
    (130, 120),
    (140, 110),
    (101, 72, 77),
    (120, 110, 0),
    (90, 88, 88),
    (90, 90, 60),
    (60, 60, 58, 58),
    (50, 50, 45, 45, 40, 20),
    (26, 25, 25, 25, 25, 25, 25, 25, 25, 24),
]


@pytest.fixture(scope="module")
def certified():
    return argmax_rdp(ORDERS, SCALE)


@pytest.fixture(scope="module")
def exact():
    return np.max(
        [exact_divergences(v, SCALE, ORDERS, gaussian_log_winners) for v in HISTOGRAMS], axis=(0, 1)
    )


@pytest.mark.slow
def test_argmax_rdp_is_not_exceeded_by_any_histogram(certified, exact):
    assert np.all(exact <= certified)
    # power: histograms come within 2 %, so a sensitivity of 0.98 sqrt(2) is noticed
    assert np.all(exact > 0.98 * certified)


@pytest.mark.parametrize("outcomes", ["_bit", "_three"])
def test_bounds_on_boxes_hold_inside(outcomes):
    """Random boxes of every size, scales and orders, and random points inside."""
    generator = np.random.default_rng(0)
    ratios = []
    for half in 2.0 ** -np.arange(9):
        step = 1 / generator.choice([2.0, 5.0, 40.0, 200.0])
        shift = np.array([np.sqrt(2) * step] if outcomes == "_bit" else [step, -step])
        orders = 1 + generator.uniform(0.1, 1.5 / step, 4)
        centers = generator.uniform(-4, 4, (100, shift.size))
        settings = (half, shift, getattr(data_independent, outcomes))
        at_center, upper = data_independent._bounds_on_boxes(orders, centers, *settings)
        for _ in range(5):
            inside = centers + half * generator.uniform(-1, 1, centers.shape)
            value, _ = data_independent._bounds_on_boxes(orders, inside, *settings)
            assert np.all(value <= upper * (1 + 1e-9) + 1e-15)
            ratios.append(np.max(value[upper > 1e-9] / at_center[upper > 1e-9]))
    # power: values at the centers alone are no bounds
    assert max(ratios) > 1.5


def test_argmax_rdp_is_not_exceeded_by_random_means(certified):
    """Means of two counts less the noisy maximum of the others, in units of the scale."""
    means = np.random.default_rng(1).uniform(-3, 3, (5_000, 2))
    shift = np.array([1.0, -1.0]) / SCALE
    p, q = (data_independent._three(points).logs for points in (means, means - shift))
    for order, bound in zip(ORDERS, certified, strict=True):
        found = np.max(logsumexp(order * p + (1 - order) * q, axis=1)) / (order - 1)
        assert 0.99 * bound < found <= bound


def test_argmax_rdp_is_far_below_that_of_the_histogram(certified):
    ratio = ORDERS / SCALE**2 / certified
    assert ratio[0] == pytest.approx(np.pi / 2, rel=0.012)
    assert np.all(np.diff(ratio) < 0)
    assert ratio[-1] > 1.5


def largest_of_a_bit(order, shift):
    """The largest divergence of the sign of a unit Gaussian, by a dense grid of means."""
    means = np.linspace(-4, 4, 4001)
    sides = [(stats.norm.logcdf(m), stats.norm.logsf(m)) for m in (means, means + shift)]
    terms = [order * p + (1 - order) * q for p, q in zip(*sides, strict=True)]
    return np.max(np.logaddexp(*terms)) / (order - 1)


def test_threshold_rdp_is_the_supremum_of_one_bit():
    found = threshold_rdp(ORDERS, 20.0)
    exact = np.array([largest_of_a_bit(order, 1 / 20.0) for order in ORDERS])
    assert np.all(exact <= found)
    np.testing.assert_allclose(found, exact, rtol=0.004)
    # power: a sensitivity of 1.01
    assert np.all([largest_of_a_bit(order, 1.01 / 20.0) for order in ORDERS] > found)


def test_rdp_of_large_orders_and_small_noise_is_that_of_the_histogram():
    np.testing.assert_allclose(argmax_rdp([10.0], 1.0), [10.0])
    np.testing.assert_allclose(threshold_rdp([10.0], 1.0), [5.0])
    assert argmax_rdp([2.0], 1e6)[0] == pytest.approx(2e-12)


@pytest.mark.parametrize(
    ("bound", "orders", "scale", "message"),
    [
        *[
            (argmax_rdp, orders, 40.0, "orders must be finite numbers > 1")
            for orders in ([1.0], [0.5], [], [[2.0]], [np.inf])
        ],
        (argmax_rdp, [2.0], 0.0, "scale must be a finite number > 0"),
        (threshold_rdp, [2.0], 0.0, "threshold_scale must be a finite number > 0"),
    ],
)
def test_arguments_of_rdp_are_refused(bound, orders, scale, message):
    with pytest.raises(ValueError, match=message):
        bound(orders, scale)
