import math

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf
from scipy.integrate import dblquad
from scipy.special import logsumexp

from dpjax.accounting.bayesian.divergences import gaussian, sampled_gaussian
from dpjax.accounting.bayesian.replace_one import replaced_sampled_gaussian

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
        replaced_sampled_gaussian(
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
def test_the_two_mixtures_against_integration_in_the_plane(order, rate, pair):
    expected = max(in_the_plane(order, rate, *pair))
    assert moment(order, rate, *pair) == pytest.approx(expected, rel=1e-9, abs=1e-11)


def test_adaptive_quadrature_agrees():
    def integrand(y, x):
        plain = math.exp(-(x * x + y * y) / 2) / (2 * math.pi)
        first = 0.8 + 0.2 * math.exp(0.6 * x + 0.8 * y - 0.5)
        second = 0.8 + 0.2 * math.exp(1.2 * x - 0.72)
        return plain * second * (first / second) ** 3

    forward = math.log(dblquad(integrand, -11, 11, -11, 11, epsabs=1e-9, epsrel=1e-9)[0])
    assert moment(2, 0.2, 1.0, 1.2, 1.0, 0.6) >= forward
    expected = in_the_plane(2, 0.2, 1.0, 1.0, 1.2, 0.6)
    assert expected[0] == pytest.approx(forward, rel=1e-8)
    assert moment(2, 0.2, 1.0, 1.0, 1.2, 0.6) == pytest.approx(max(expected), rel=1e-9)


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
def test_small_moments_keep_their_digits(rate, norm, other_norm, cosine):
    expected = on_the_line(2, rate, norm, cosine * other_norm)
    assert expected < 1e-7
    value = moment(2, rate, 1.0, norm, other_norm, cosine)
    assert value == pytest.approx(expected, rel=1e-10, abs=0)


@pytest.mark.parametrize("cosine", [-1.0, -0.2, 0.6, 1.0])
def test_at_a_vanishing_rate_it_is_the_chi_square_of_the_two(cosine):
    rate, u, v = 1e-8, 0.9, 0.5
    chi_square = math.exp(u**2) + math.exp(v**2) - 2 * math.exp(u * v * cosine)
    for order in ORDERS:
        expected = order * (order + 1) / 2 * rate**2 * chi_square
        assert moment(order, rate, 1.0, u, v, cosine) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("rate", [1e-6, 0.01, 0.7, 1.0])
@pytest.mark.parametrize("noise", [0.2, 1.0, 6.0])
def test_a_record_without_gradient_leaves_add_remove(rate, noise):
    distances = np.array([0.3, 0.8, 1.0])
    setting = {"sampling_rate": rate, "noise_std": noise}
    for cosines in (0.0, [-1.0, 0.4, 1.0]):
        values = replaced_sampled_gaussian(ORDERS, distances, 0.0, cosines, **setting)
        np.testing.assert_allclose(
            values, sampled_gaussian(ORDERS, distances, **setting), rtol=1e-11
        )


@pytest.mark.parametrize("cosine", [-1.0, 0.3, 1.0])
def test_without_sampling_only_the_distance_matters(cosine):
    distance = math.sqrt(0.7**2 + 0.5**2 - 2 * 0.7 * 0.5 * cosine)
    values = replaced_sampled_gaussian(ORDERS, 0.7, 0.5, cosine, sampling_rate=1.0, noise_std=0.9)
    np.testing.assert_allclose(values, gaussian(ORDERS, distance, noise_std=0.9), rtol=1e-11)


def test_the_formula_of_the_distance_is_not_an_upper_bound():
    """Two gradients of norm 1 at 60 degrees are 1 apart."""
    exact = moment(1, 0.01, 0.7, 1.0, 1.0, 0.5)
    formula = float(sampled_gaussian((1,), 1.0, **COUNTEREXAMPLE)[0])
    assert exact == pytest.approx(8.3e-4, abs=5e-6)
    assert formula == pytest.approx(6.7e-4, abs=5e-6)
    assert max(in_the_plane(1, 0.01, 0.7, 1.0, 1.0, 0.5)) > 1.2 * formula


lengths, cosines = st.floats(0.0, 3.0), st.floats(-1.0, 1.0)
rates = st.floats(math.log(1e-6), 0).map(math.exp)


@settings(max_examples=50)
@given(st.integers(1, 32), lengths, lengths, cosines, rates)
def test_the_two_records_are_interchangeable_and_alike_ones_cost_nothing(order, u, v, cosine, rate):
    value = moment(order, rate, 1.0, u, v, cosine)
    assert value >= 0
    assert value == moment(order, rate, 1.0, v, u, cosine)
    assert moment(order, rate, 1.0, u, u, 1.0) == 0
    assert moment(order, rate, 2.5, 2.5 * u, 2.5 * v, cosine) == pytest.approx(value, rel=1e-9)


def test_on_a_grid_the_moments_grow_with_the_angle_and_opposite_ones_with_their_norms():
    angles, norms = np.linspace(1, -1, 11), np.linspace(0, 1, 6)
    for rate in (1e-3, 0.05, 0.3, 0.9):
        for noise in (0.5, 1.0, 3.0):
            setting = {"sampling_rate": rate, "noise_std": noise}
            for norm in (0.3, 1.0):
                wider = replaced_sampled_gaussian(ORDERS, norm, 0.8, angles, **setting)
                assert np.all(wider[1:] >= wider[:-1] * (1 - 1e-11))
                assert np.all(wider[-1] > wider[0])
            longer = replaced_sampled_gaussian(ORDERS, norms, 0.8, -1.0, **setting)
            assert np.all(longer[1:] >= longer[:-1] * (1 - 1e-11))
            assert np.all(longer[-1] > longer[0])


def test_next_to_no_noise_and_many_pairs():
    rng = np.random.default_rng(0)
    u, v, cosine = rng.random((2, 30)), rng.random(30), rng.uniform(-1, 1, (2, 30))
    noise = np.array([[0.15], [2.0]])
    values = replaced_sampled_gaussian((1, 20), u, v, cosine, sampling_rate=0.02, noise_std=noise)
    assert values.shape == (2, 30, 2)
    for row, column in ((0, 0), (0, 13), (1, 29)):
        pair = u[row, column], v[column], cosine[row, column]
        alone = moment(20, 0.02, float(noise[row, 0]), *map(float, pair))
        assert values[row, column, 1] == pytest.approx(alone, rel=1e-11)
    # Where the two are far apart, Q is as good as its part on the batches without the record.
    far = moment(1, 0.02, 0.02, 1.0, 1.0, 0.0)
    assert far == pytest.approx(2 * math.log(0.02) + 50**2 - math.log(0.98), rel=1e-9)
    empty = replaced_sampled_gaussian((1,), np.zeros((4, 0)), 1.0, 0.0, **COUNTEREXAMPLE)
    assert empty.shape == (4, 0, 1)


def test_cosines_of_single_precision_may_be_rounded_above_one():
    rounded = np.float32(1) + np.finfo(np.float32).eps
    assert moment(1, 0.1, 1.0, 0.5, 1.0, rounded) == moment(1, 0.1, 1.0, 0.5, 1.0, 1.0)


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("orders", {"orders": (0,)}),
        ("norms", {"norms": -1.0}),
        ("norms", {"norms": [0.1, math.inf]}),
        ("other_norms", {"other_norms": math.nan}),
        ("cosines", {"cosines": 1.1}),
        ("cosines", {"cosines": "1"}),
        ("sampling_rate", {"sampling_rate": 0}),
        ("noise_std", {"noise_std": 0.0}),
        ("noise_std", {"noise_std": -1.0}),
    ],
)
def test_bad_settings_are_refused_by_name(name, arguments):
    good = {"orders": (1,), "norms": 1.0, "other_norms": 1.0, "cosines": 0.0}
    with pytest.raises(ValueError, match=rf"^{name} must be "):
        replaced_sampled_gaussian(**good | COUNTEREXAMPLE | arguments)
