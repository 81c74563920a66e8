import math

import numpy as np
import pytest
from dp_accounting import NeighboringRelation, dp_event
from dp_accounting.rdp import RdpAccountant
from helpers.accounting_cases import (
    MNIST_RATE,
    MNIST_ROWS,
    fixed_size,
    gaussian,
    laplace,
    mnist_steps,
    poisson,
    truncated,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr

from dpjax.accounting import UnsupportedEventError, gdp
from dpjax.accounting import epsilon as event_epsilon
from dpjax.accounting import log_moments as moments

DELTA = 1e-5
ROW_2 = (1.1, MNIST_RATE, mnist_steps(60))
NOISES = np.array([0.3, 0.5, 0.7, 1.1, 5.0, 50.0])
RATES = np.array([1e-6, 256 / 60_000, 0.2, 0.9, 1.0])[:, None]
WHOLE = tuple(order for order in moments.ORDERS if order == round(order))
BROKEN = tuple(order for order in moments.ORDERS if order != round(order))

noises = st.floats(math.log(0.3), math.log(50)).map(math.exp)
rates = st.floats(math.log(1e-6), 0).map(math.exp)
orders = st.floats(1.25, 512)
factors = st.floats(1.0, 3.0)


def dp_accounting_rdp(noise, rate, orders):
    accountant = RdpAccountant(orders)
    accountant.compose(poisson(float(noise), float(rate), 1))
    return accountant.rdp


def test_compute_epsilon_of_other_published_figures():
    imdb = moments.compute_epsilon(0.56, 512 / 25_000, 439, DELTA)
    movielens = moments.compute_epsilon(0.6, 1 / 80, 1_600, 1e-6)
    figure_4 = moments.compute_epsilon(
        [1.3, 0.7], MNIST_RATE, [mnist_steps(20), mnist_steps(70)], DELTA
    )
    printed = [15.24, 15.39, 1.34, 8.68]
    np.testing.assert_allclose([imdb, movielens, *figure_4], printed, rtol=0.01)


def divergences(noise, rate, orders=moments.ORDERS):
    moment = [moments.compute_log_moment(order, noise, rate) for order in orders]
    return np.stack(moment, axis=-1) / (np.array(orders) - 1)


def test_compute_epsilon_of_published_figures():
    noise, epochs = np.array([row[:2] for row in MNIST_ROWS]).T
    steps = [mnist_steps(int(number)) for number in epochs]
    values = np.round(moments.compute_epsilon(noise, MNIST_RATE, steps, DELTA), 2)
    assert values.tolist() == [1.19, 3.01, 7.12, 13.33, 18.77, 32.36]
    assert round(moments.compute_epsilon(0.56, 512 / 25_000, 439, DELTA), 2) == 15.29


def test_orders_are_published():
    assert len(moments.ORDERS) == 10 + 60 + 3
    assert moments.ORDERS[:5] == (1.25, 1.5, 1.75, 2, 2.25)
    assert moments.ORDERS[-4:] == (64, 128, 256, 512)
    assert list(moments.ORDERS) == sorted(set(moments.ORDERS))


@pytest.mark.parametrize("rate", RATES[:, 0])
def test_compute_log_moment_of_whole_orders(rate):
    expected = [dp_accounting_rdp(noise, rate, WHOLE) for noise in NOISES]
    # A sum that starts at 1 keeps no more digits of a small divergence.
    np.testing.assert_allclose(divergences(NOISES, rate, WHOLE), expected, rtol=1e-9, atol=1e-13)


def test_compute_log_moment_between_whole_orders():
    ours = divergences(NOISES, 0.01, BROKEN)
    theirs = [dp_accounting_rdp(noise, 0.01, BROKEN) for noise in NOISES]
    assert np.all(ours <= np.array(theirs) * (1 + 1e-9) + 1e-13)
    # The log moment is a convex function of the order, so chords of whole ones are above it.
    chord = (
        moments.compute_log_moment(2, NOISES, 0.01) + moments.compute_log_moment(3, NOISES, 0.01)
    ) / 2
    middle = moments.compute_log_moment(2.5, NOISES, 0.01)
    assert np.all(middle <= chord)
    assert np.all(middle >= moments.compute_log_moment(2, NOISES, 0.01))


def test_compute_log_moment_is_larger_of_removal():
    for order in (1.25, 2, 3.5, 16, 100.5, 512):
        larger = moments.compute_log_moment(order, NOISES, RATES, direction="remove")
        other = moments.compute_log_moment(order, NOISES, RATES, direction="add")
        assert np.all(other <= larger * (1 + 1e-11))
        assert np.all(other > 0)
        assert np.all(other[1:3, 0] < 0.99 * larger[1:3, 0])  # much noise makes them alike


@given(orders, noises, rates, factors)
def test_compute_log_moment_is_monotone(order, noise, rate, factor):
    slack = 1 + 1e-10
    value = moments.compute_log_moment(order, noise, rate)
    assert 0 < value <= moments.compute_log_moment(order * factor, noise, rate) * slack
    assert moments.compute_log_moment(order, noise * factor, rate) <= value * slack
    assert moments.compute_log_moment(order, noise, min(1.0, rate * factor)) * slack >= value


@pytest.mark.slow
@given(noises, rates, st.integers(1, 10**6), st.integers(1, 10**3), factors)
def test_compute_epsilon_is_monotone(noise, rate, steps, more, factor):
    value = moments.compute_epsilon(noise, rate, steps, DELTA)
    assert value < moments.compute_epsilon(noise, rate, steps + more, DELTA)
    assert value >= moments.compute_epsilon(noise, rate, steps, DELTA * factor)
    assert value >= moments.compute_epsilon(noise * factor, rate, steps, DELTA) * (1 - 1e-10)


@pytest.mark.slow
@given(noises, rates, st.integers(1, 10**4))
def test_compute_profile_inverts_compute_epsilon(noise, rate, steps):
    epsilons, deltas = (values[1::200] for values in moments.compute_profile(noise, rate, steps))
    inverted = moments.compute_epsilon(noise, rate, steps, np.minimum(deltas, 0.9))
    np.testing.assert_allclose(inverted[deltas < 0.9], epsilons[deltas < 0.9], rtol=1e-6)


def test_compute_epsilon_broadcasts():
    noise, rate = np.array([0.8, 2.0])[:, None, None], np.array([0.01, 0.1, 1.0])[:, None]
    steps, delta = np.array([1, 10, 100, 1_000]), np.array([1e-5, 1e-6, 1e-7, 1e-8])
    values = moments.compute_epsilon(noise, rate, steps, delta)
    assert values.shape == (2, 3, 4)
    assert values[1, 0, 2] == pytest.approx(
        moments.compute_epsilon(2.0, 0.01, 100, 1e-7), rel=1e-12
    )
    assert moments.compute_epsilon(np.array([]), 0.1, 1, 0.1).shape == (0,)


def test_compute_profile_of_published_row():
    epsilons, deltas = moments.compute_profile(*ROW_2)
    assert epsilons[0] == 0
    assert np.all(np.diff(deltas) <= 0)
    assert deltas[-1] == pytest.approx(1e-15)
    at = np.searchsorted(-deltas, -DELTA)
    assert epsilons[at] == pytest.approx(moments.compute_epsilon(*ROW_2, DELTA), abs=epsilons[1])


def test_compute_profile_least_sum_of_errors():
    """Of the curve max(0, 1 - delta - e^epsilon a, ...) it is where a equals the curve."""
    clt = 2 * ndtr(-round(gdp.poisson_clt_mu(*ROW_2), 2) / 2)  # the source rounded first
    single = 2 * (1 - DELTA) / (1 + math.exp(moments.compute_epsilon(*ROW_2, DELTA)))
    epsilons, deltas = moments.compute_profile(*ROW_2)
    envelope = np.max(2 * (1 - deltas) / (1 + np.exp(epsilons)))
    assert (round(single, 3), round(clt, 3)) == (0.094, 0.776)
    assert single < envelope < clt
    assert envelope == pytest.approx(0.3690, abs=5e-5)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("noise_multiplier", {"noise_multiplier": 0.0}),
        ("noise_multiplier", {"noise_multiplier": [1.0, math.inf]}),
        ("noise_multiplier", {"noise_multiplier": "1.0"}),
        ("sampling_rate", {"sampling_rate": 0.0}),
        ("sampling_rate", {"sampling_rate": [0.5, 1.5]}),
        ("sampling_rate", {"sampling_rate": math.nan}),
        ("num_steps", {"num_steps": 0}),
        ("num_steps", {"num_steps": [10, 1.5]}),
        ("num_steps", {"num_steps": True}),
        ("delta", {"delta": 1.0}),
        ("delta", {"delta": [0.1, 0.0]}),
        ("orders", {"orders": (1.0, 2.0)}),
        ("orders", {"orders": ()}),
        ("orders", {"orders": 2.0}),
        ("orders", {"orders": (2.0, math.inf)}),
    ],
)
def test_settings_are_refused_by_name(name, arguments):
    good = {"noise_multiplier": 1.0, "sampling_rate": 0.1, "num_steps": 10, "delta": 1e-5}
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        moments.compute_epsilon(**good | arguments)


def test_other_arguments_are_refused_by_name():
    with pytest.raises(ValueError, match=r"^order must be a finite number > 1, got 1"):
        moments.compute_log_moment(1, 1.0, 0.1)
    with pytest.raises(ValueError, match=r"^direction must be one of 'add', 'remove', got 'both'"):
        moments.compute_log_moment(2, 1.0, 0.1, direction="both")
    with pytest.raises(ValueError, match=r"^num_steps must be one number, got \[1, 2\]"):
        moments.compute_profile(1.0, 0.1, [1, 2])


def by_event(event, adjacency="add_remove"):
    return event_epsilon(event, DELTA, adjacency=adjacency, method="moments")


@pytest.mark.parametrize(("adjacency", "clips"), [("add_remove", 1), ("replace_one", 2)])
def test_compute_epsilon_of_gaussians(adjacency, clips):
    noise, count = 10.0, 30
    squared_mu = count * (clips / noise) ** 2
    orders = np.array(moments.ORDERS)
    expected = np.min(squared_mu * orders / 2 + math.log(1 / DELTA) / (orders - 1))
    assert by_event(gaussian(noise, count), adjacency) == pytest.approx(expected)


def test_compute_epsilon_is_that_of_the_event():
    assert by_event(poisson(*ROW_2)) == pytest.approx(
        moments.compute_epsilon(*ROW_2, DELTA), rel=1e-12
    )


def test_moments_epsilon_of_different_releases():
    parts = [poisson(1.1, 0.01, 500), poisson(0.8, 0.02, 30), gaussian(20.0), laplace(15.0)]
    orders = np.array(moments.ORDERS)
    others = RdpAccountant(moments.ORDERS)
    others.compose(laplace(15.0))
    total = 500 * divergences(1.1, 0.01) + 30 * divergences(0.8, 0.02) + orders / 800 + others.rdp
    expected = np.min(total + math.log(1 / DELTA) / (orders - 1))
    assert by_event(dp_event.ComposedDpEvent(parts)) == pytest.approx(expected, rel=1e-12)


def test_moments_epsilon_of_other_releases():
    others = RdpAccountant(moments.ORDERS, NeighboringRelation.REPLACE_ONE)
    others.compose(fixed_size(4.0, 10, 1_000, 10).event, 10)
    assert by_event(fixed_size(8.0, 10, 1_000, 10), "replace_one") == pytest.approx(
        np.min(others.rdp + math.log(1 / DELTA) / (np.array(moments.ORDERS) - 1))
    )


def test_moments_epsilon_refuses_unknown_divergence():
    with pytest.raises(UnsupportedEventError, match="has no Rényi divergence"):
        by_event(truncated(2.0, 30))


def test_compute_epsilon_of_next_to_no_noise():
    assert by_event(poisson(1e-3, 0.01, 10)) > 1e5
