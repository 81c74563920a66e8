"""The exact samplers draw from their distributions: chi-square tests, each with broken twins."""

import math
from fractions import Fraction
from functools import cache

import jax
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM, chi_square_p

from dpjax.mechanisms._exact_noise import (
    RandomWords,
    bernoulli_exp,
    derive,
    discrete_gaussian,
    discrete_laplace,
    fit_integers,
    threefry,
)

MANY = 30_000
LAPLACE_SCALES = (Fraction(5, 2), Fraction(1, 2), Fraction(7))
GAUSSIAN_SCALES = (Fraction(3, 2), Fraction(4, 7), Fraction(4))


def laplace_pmf(scale):
    return lambda k: math.tanh(1 / (2 * scale)) * math.exp(-abs(k) / scale)


def gaussian_pmf(variance):
    weights = {k: math.exp(-(k**2) / (2 * float(variance))) for k in range(-200, 201)}
    return lambda k: weights[k] / sum(weights.values())


def likely(pmf):
    """The cells around zero outside which ten draws or more are expected."""
    outside = [(m, 1 - sum(pmf(k) for k in range(-m, m + 1))) for m in range(9)]
    farthest = max(m for m, share in outside if share * MANY > 10)
    return range(-farthest, farthest + 1)


def lanes(size, seed):
    return RandomWords(np.array([seed, 0], np.uint32), size)


def draw(sampler, scale, seed, size=MANY):
    each = (np.full(size, part, object) for part in Fraction(scale).as_integer_ratio())
    return sampler(lanes(size, seed), *fit_integers(*each))


@cache
def laplace_draws(scale):
    return draw(discrete_laplace, scale, seed=1)


@cache
def gaussian_draws(scale):
    return draw(discrete_gaussian, scale, seed=2)


@pytest.mark.parametrize("scale", LAPLACE_SCALES)
def test_discrete_laplace_distribution(scale):
    pmf = laplace_pmf(float(scale))
    assert chi_square_p(laplace_draws(scale), pmf, likely(pmf)) > FALSE_ALARM


@pytest.mark.parametrize("scale", GAUSSIAN_SCALES)
def test_discrete_gaussian_distribution(scale):
    pmf = gaussian_pmf(scale**2)
    assert chi_square_p(gaussian_draws(scale), pmf, likely(pmf)) > FALSE_ALARM
    # power: the variance taken for the scale
    wrong = gaussian_pmf(scale)
    assert chi_square_p(gaussian_draws(scale), wrong, range(-1, 2)) < FALSE_ALARM


@pytest.mark.parametrize("wrong", [0.93, 1.07])
def test_power_wrong_scale(wrong):
    pmf = laplace_pmf(2.5 * wrong)
    assert chi_square_p(laplace_draws(Fraction(5, 2)), pmf, likely(pmf)) < FALSE_ALARM
    pmf = gaussian_pmf((Fraction(3, 2) * Fraction(wrong)) ** 2)
    assert chi_square_p(gaussian_draws(Fraction(3, 2)), pmf, likely(pmf)) < FALSE_ALARM


@pytest.mark.parametrize("rounding", [np.floor, np.rint, np.trunc])
def test_power_rounded_continuous_noise(rounding):
    generator = np.random.default_rng(3)
    pmf = laplace_pmf(0.5)
    assert chi_square_p(rounding(generator.laplace(0, 0.5, MANY)), pmf, likely(pmf)) < FALSE_ALARM
    pmf = gaussian_pmf(Fraction(1, 3))
    drawn = rounding(generator.normal(0, math.sqrt(1 / 3), MANY))
    assert chi_square_p(drawn, pmf, likely(pmf)) < FALSE_ALARM


def test_power_zero_drawn_twice_as_often():
    """What the sampler does if it keeps minus zero."""
    generator = np.random.default_rng(5)
    sizes = np.abs(generator.geometric(1 - math.exp(-1 / 2.5), MANY) - 1)
    signs = generator.choice([-1, 1], MANY)
    pmf = laplace_pmf(2.5)
    assert chi_square_p(sizes * signs, pmf, likely(pmf)) < FALSE_ALARM


@pytest.mark.parametrize("x", [Fraction(0), Fraction(1, 3), Fraction(1), Fraction(7, 2)])
def test_bernoulli_exp_probability(x):
    top, bottom = (np.full(MANY, part) for part in x.as_integer_ratio())
    tosses = bernoulli_exp(lanes(MANY, 6), np.arange(MANY), top, bottom).astype(int)
    if x == 0:
        assert all(tosses)
        return
    chance = math.exp(-x)
    assert chi_square_p(tosses, lambda side: chance, [1]) > FALSE_ALARM
    assert chi_square_p(tosses, lambda side: chance + 0.02, [1]) < FALSE_ALARM


@pytest.mark.parametrize("others", [(), (1,), (2**62,)])
@pytest.mark.parametrize("number", [2**55 - 1, 2**55, 2**59, 2**62, 2**64])
def test_fit_integers_beyond_int64(number, others):
    """The samplers multiply scales by whole numbers up to 128."""
    fast = max(number, *others, 0) * 128 < 2**62  # a noise and a value below 2^62 add up in int64
    for array in fit_integers(*([each, each] for each in (number, *others))):
        assert array.dtype == (np.int64 if fast else object)


@pytest.mark.parametrize(
    ("sampler", "mean_size"), [(discrete_laplace, 1.0), (discrete_gaussian, 0.79788)]
)
@pytest.mark.parametrize("scale", [2**33, 2**54 + 3, 2**62 - 1, 2**90])
def test_samplers_at_large_scales(sampler, mean_size, scale):
    size = 20_000 if scale < 2**55 else 4000
    sizes = np.abs(draw(sampler, scale, seed=3, size=size) / scale).astype(float)
    assert abs(sizes.mean() - mean_size) < 5 / math.sqrt(size)  # five standard errors or more
    if scale == 2**62 - 1:  # power: in int64 the products overflow
        scales, ones = np.full(60_000, scale), np.ones(60_000, np.int64)
        with np.errstate(all="ignore"):
            wrapped = np.abs(sampler(lanes(60_000, 3), scales, ones) / scale)
        assert abs(wrapped.mean() - mean_size) > 5 / math.sqrt(60_000)
    # integers below the scale are uniform: no digit is missing
    low = draw(sampler, scale, seed=4, size=size) % 8
    assert chi_square_p(low.astype(int), lambda digit: 1 / 8, range(7)) > FALSE_ALARM


def test_samplers_in_int64_and_python_integers():
    small, large = (np.full(50, 7, dtype) for dtype in (np.int64, object))
    words = lanes(50, 8).below(small, np.arange(50))
    assert words.min() >= 0
    assert words.max() <= 6
    assert set(lanes(500, 8).below(np.full(500, 7, object), np.arange(500))) == set(range(7))
    assert large.dtype == object


@pytest.mark.parametrize("bound", [1, 3, 7, 2**62 - 1])
def test_below_is_uniform(bound):
    drawn = lanes(MANY, 9).below(np.full(MANY, bound), np.arange(MANY))
    assert drawn.min() >= 0
    assert drawn.max() < bound
    if bound > 1:
        cells = min(bound, 8)
        found = (drawn.astype(object) * cells // bound).astype(int)
        assert chi_square_p(found, lambda c: 1 / cells, range(cells - 1)) > FALSE_ALARM


def test_words_are_threefry():
    key = np.array([123, 456], np.uint32)
    count = np.arange(6, dtype=np.uint32)
    ours = np.concatenate(threefry(key[..., 0], key[..., 1], count[:3], count[3:]))
    np.testing.assert_array_equal(ours, jax.extend.random.threefry_2x32(key, count))


def test_words_are_distinct():
    key = np.array([1, 2], np.uint32)
    words = [stream.draw(np.arange(100)) for stream in [lanes(100, 1)] for _ in range(5)]
    words += [RandomWords(k, 100).draw(np.arange(100)) for k in (key, *derive(key, 3))]
    assert np.unique(np.concatenate(words)).size == 900


def test_words_of_a_lane_are_independent_of_batch():
    keys = np.array([[1, 2], [3, 4], [5, 6]], np.uint32)
    scale = np.full(12, 5)
    together = discrete_gaussian(RandomWords(keys, 4), scale, np.ones_like(scale)).reshape(3, 4)
    for key, row in zip(keys, together, strict=True):
        alone = discrete_gaussian(RandomWords(key, 4), scale[:4], np.ones(4, int))
        np.testing.assert_array_equal(alone, row)
