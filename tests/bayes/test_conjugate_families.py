"""Conjugate families: updates and evidence against scipy, sensitivities, records of every kind."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.conjugate_cases import FAMILIES, exact_sums, records_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from dpjax.adjacency import ADJACENCIES
from dpjax.bayes.conjugate import (
    BetaBinomial,
    DirichletMultinomial,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    SufficientStatistics,
    of_first_two_moments,
)

ORDERS = {"l1": 1, "l2": 2}
NASTY = [np.nan, np.inf, -np.inf, 1e30, -7.0, 0.4, 2.0**25]


def contributions(family, records, adjacency):
    """What each record adds to the release."""
    statistics = np.asarray(family.statistic(jnp.array(records)), np.float64)
    return family.encode(SufficientStatistics(statistics, np.ones(len(records))), adjacency)


def farthest(family, records, norm, adjacency):
    rows = contributions(family, records, adjacency)
    others = rows[:, None] if adjacency == "replace_one" else np.zeros(1)
    return np.linalg.norm(rows - others, ORDERS[norm], axis=-1).max()


@st.composite
def families(draw):
    """All families, with asymmetric bounds."""
    low, width = draw(st.floats(-50, 50)), draw(st.floats(0.5, 90))
    bounds = (low, low + width)
    return draw(
        st.sampled_from(
            [
                BetaBinomial(1.0, 1.0),
                DirichletMultinomial((1.0,) * draw(st.integers(2, 5))),
                GammaPoisson(shape=1.0, rate=1.0, largest_count=draw(st.integers(1, 30))),
                NormalKnownVariance(bounds, variance=1.0, prior_mean=0.0, prior_variance=1.0),
                NormalUnknownVariance(
                    bounds, prior_mean=0.0, prior_strength=1.0, prior_shape=2.0, prior_scale=1.0
                ),
            ]
        )
    )


@given(
    family=families(),
    records=st.lists(st.floats(-100, 100, width=32), min_size=6, max_size=6),
    norm=st.sampled_from(sorted(ORDERS)),
    adjacency=st.sampled_from(ADJACENCIES),
)
def test_sensitivity_is_not_exceeded(family, records, norm, adjacency):
    stated = family.sensitivity(norm=norm, adjacency=adjacency)
    assert (stated.norm, stated.adjacency) == (norm, adjacency)
    assert farthest(family, [*records, *NASTY], norm, adjacency) <= stated.value * (1 + 1e-6)


@given(
    family=families(),
    norm=st.sampled_from(sorted(ORDERS)),
    adjacency=st.sampled_from(ADJACENCIES),
)
def test_sensitivity_is_attained(family, norm, adjacency):
    low, high = getattr(family, "bounds", (0.0, 30.0))
    records = np.linspace(low, high, 301)
    stated = family.sensitivity(norm=norm, adjacency=adjacency).value
    assert farthest(family, records, norm, adjacency) >= 0.99 * stated


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("name", FAMILIES)
def test_decode_returns_the_encoded_sums(name, adjacency):
    family = FAMILIES[name]
    sums = exact_sums(family, records_of(name))
    released = family.encode(sums, adjacency)
    decoded = family.decode(released, None if adjacency == "add_remove" else 40, adjacency)
    np.testing.assert_allclose(decoded.total, sums.total, rtol=1e-12)
    assert decoded.num_examples == pytest.approx(40)
    low, high = family.contribution_bounds(adjacency)
    assert np.all((40 * low - 1e-9 <= released) & (released <= 40 * high + 1e-9))


@pytest.mark.parametrize("name", FAMILIES)
def test_statistic_of_no_records_and_of_extreme_ones(name):
    family = FAMILIES[name]
    empty = family.sums(jnp.zeros(0))
    assert np.all(np.asarray(empty.total) == 0)
    assert empty.num_examples == 0
    prior = family.exact_posterior(jnp.zeros(0)).mean
    assert np.all(np.isfinite(prior))
    one = family.exact_posterior(jnp.full(1, 2.0)).mean
    assert np.all(np.isfinite(one))
    assert not np.allclose(one, prior)
    low, high = family.statistic_bounds
    strange = np.asarray(family.statistic(jnp.array(NASTY)))
    assert np.all((low <= strange) & (strange <= high))
    with pytest.raises(ValueError, match=r"records must be of shape \(n,\)"):
        family.statistic(jnp.zeros((2, 2)))


@pytest.mark.parametrize("name", FAMILIES)
def test_sums_under_jit_and_vmap(name):
    family, records = FAMILIES[name], jnp.stack([records_of(name, seed) for seed in (1, 2)])
    totals = jax.jit(jax.vmap(lambda data: family.sums(data).total))(records)
    for total, data in zip(totals, records, strict=True):
        np.testing.assert_allclose(total, exact_sums(family, data).total, rtol=1e-5)
    if family.integer_valued:
        assert totals.dtype == jnp.int32


def test_sums_of_large_integers_are_exact_outside_jit():
    assert LARGE_COUNTS.sums(jnp.full(3, 2.0**30)).total.tolist() == [3 * 2**30]


def test_exact_posterior_is_that_of_the_textbook():
    beta = FAMILIES["beta-binomial"].exact_posterior(jnp.array([1, 0, 1, 1, 0]))
    assert (beta.alpha, beta.beta) == (4.0, 4.0)
    dirichlet = FAMILIES["dirichlet-multinomial"].exact_posterior(jnp.array([0, 2, 2]))
    assert dirichlet.concentration.tolist() == [2.0, 2.0, 3.5]
    gamma = FAMILIES["gamma-poisson"].exact_posterior(jnp.array([3, 5]))
    assert (gamma.shape, gamma.rate) == (14.0, 4.0)
    normal = FAMILIES["normal"].exact_posterior(jnp.array([0.0, 2.0, 4.0]))
    assert normal.centre == pytest.approx((1 / 0.5 + 6) / (2 + 3), rel=1e-6)
    assert normal.variance == pytest.approx(1 / 5)
    x = np.array([0.0, 2.0, 4.0])
    both = FAMILIES["normal-unknown"].exact_posterior(jnp.array(x))
    assert both.centre == pytest.approx((10 + 6) / 13, rel=1e-6)
    scale = 9 + (((x - 2) ** 2).sum() + 10 * 3 * (2 - 1) ** 2 / 13) / 2
    assert (both.strength, both.shape) == (13.0, 11.5)
    assert both.scale == pytest.approx(scale, rel=1e-5)


def assert_constant_offset(ours, reference):
    offsets = np.asarray(ours) - np.asarray(reference)
    np.testing.assert_allclose(offsets, offsets.flat[0], atol=1e-8)


def test_log_evidence_is_the_distribution_of_the_sum():
    s = np.arange(13.0)
    for n in (12.0, 30.0):
        sums = SufficientStatistics(s[:, None], np.full(13, n))
        ours = FAMILIES["beta-binomial"].log_evidence(sums)
        np.testing.assert_allclose(ours, stats.betabinom.logpmf(s, n, 1.0, 2.0), atol=1e-9)
        ours = FAMILIES["gamma-poisson"].log_evidence(sums)
        np.testing.assert_allclose(ours, stats.nbinom.logpmf(s, 6.0, 2 / (2 + n)), atol=1e-9)
    impossible = SufficientStatistics(np.array([[-1.0], [13.0]]), np.full(2, 12.0))
    with np.errstate(invalid="ignore"):
        assert np.all(FAMILIES["beta-binomial"].log_evidence(impossible) == -np.inf)
    counts = np.array([[3, 4, 5], [12, 0, 0], [1, 1, 10]])
    ours = FAMILIES["dirichlet-multinomial"].log_evidence(
        SufficientStatistics(counts[:, :2] * 1.0, np.full(3, 12.0))
    )
    reference = stats.dirichlet_multinomial.logpmf(counts, [1.0, 2.0, 1.5], 12)
    np.testing.assert_allclose(ours, reference, atol=1e-9)


def test_log_evidence_of_normal_sums():
    x, n = np.meshgrid([-3.0, 10.0, 25.0], [5.0, 9.0])
    reference = stats.norm.logpdf(x, n, np.sqrt(n + n**2 * 0.5))  # means of one, in all
    units = SufficientStatistics(((x + 4 * n) / 10)[..., None], n)
    assert_constant_offset(FAMILIES["normal"].log_evidence(units), reference)


def test_log_evidence_of_sum_and_squares_by_the_candidates_formula():
    """p(s) = p(theta) p(s | theta) / p(theta | s), whatever theta is."""
    family, (mean, variance) = FAMILIES["normal-unknown"], (0.7, 1.3)
    n, x_bar, around = np.array([4.0, 9.0, 9.0]), np.array([0.2, 1.0, 3.0]), np.array([2.0, 9.0, 5])
    units = (x_bar - 1) / 5
    sums = SufficientStatistics(np.stack([n * units, around / 25 + n * units**2], axis=-1), n)
    after = family.posterior(sums)
    given = stats.norm.logpdf(n * x_bar, n * mean, np.sqrt(n * variance))
    given = given + stats.chi2.logpdf(around / variance, n - 1) - np.log(variance)
    density = stats.invgamma.logpdf(variance, after.shape, scale=after.scale)
    density = density + stats.norm.logpdf(mean, after.centre, np.sqrt(variance / after.strength))
    assert_constant_offset(family.log_evidence(sums), given - density)


@pytest.mark.parametrize("name", FAMILIES)
def test_repair_keeps_possible_sums_and_makes_others_possible(name):
    family = FAMILIES[name]
    sums = exact_sums(family, records_of(name))
    kept = family.repair(sums)
    np.testing.assert_allclose(kept.total, sums.total, rtol=1e-12)
    rng = np.random.default_rng(0)
    wild = SufficientStatistics(rng.normal(0, 100, (500, len(sums.total))), rng.normal(0, 40, 500))
    repaired = family.repair(wild)
    assert np.all(repaired.num_examples >= 1)
    assert np.all(np.isfinite(family.posterior(repaired).mean))
    low, high = family.statistic_bounds
    n = repaired.num_examples[:, None]
    assert np.all((n * low - 1e-9 <= repaired.total) & (repaired.total <= n * high + 1e-9))


KNOWN = FAMILIES["normal"]
LARGE_COUNTS = GammaPoisson(shape=1.0, rate=1.0, largest_count=2**30)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda: BetaBinomial(0.0, 1.0), "alpha must be"),
        (lambda: DirichletMultinomial((1.0,)), "concentration must be"),
        (lambda: GammaPoisson(shape=1.0, rate=1.0, largest_count=2.5), "largest_count must be"),
        (lambda: replace(KNOWN, bounds=(1.0, 0.0)), "bounds must be"),
        (lambda: replace(KNOWN, bounds=(0.0, np.inf)), "bounds must be"),
        (
            lambda: jax.jit(lambda records: LARGE_COUNTS.sums(records).total)(jnp.ones(2)),
            r"records must be so few that their sum is below 2\^31",
        ),
        *[
            (
                lambda bounds=bounds, norm=norm: of_first_two_moments(
                    bounds, norm=norm, adjacency="add_remove"
                ),
                text,
            )
            for bounds, norm, text in [
                ((1, 0), "l1", "bounds must be"),
                ((0, np.inf), "l1", "bounds must be"),
                (([0, 0], [1, 1]), "l1", "two numbers"),
                ((0, 1), "linf", "norm must be one of 'l1', 'l2'"),
            ]
        ],
    ],
)
def test_arguments_of_families_are_refused(call, text):
    with pytest.raises(ValueError, match=text):
        call()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sums_of_half_precision_are_exact(dtype):
    # In steps of four a record would move the sum by four times its sensitivity.
    family = NormalKnownVariance((0.0, 1.0), variance=1.0, prior_mean=0.0, prior_variance=1.0)
    sums = [float(family.sums(jnp.ones(n, dtype)).total[0]) for n in range(3000, 3010)]
    assert sums == [float(n) for n in range(3000, 3010)]


def distances(one, other, norm):
    """Between the two moments of one record and those of another, or of none."""
    gaps = np.stack([one - other, one**2 - other**2], axis=-1)
    return np.linalg.norm(gaps, ORDERS[norm], axis=-1)


# Wide boxes, narrow ones, and ones around the kinks at plus and minus a half.
@given(
    low=st.one_of(st.floats(-50, 50), st.floats(-2, 2)),
    width=st.one_of(st.floats(0.01, 60), st.just(1.0)),
    norm=st.sampled_from(sorted(ORDERS)),
    adjacency=st.sampled_from(["add_remove", "replace_one"]),
)
def test_of_first_two_moments_is_attained_and_not_exceeded(low, width, norm, adjacency):
    stated = of_first_two_moments((low, low + width), norm=norm, adjacency=adjacency).value
    one = np.linspace(low, low + width, 801)
    other = one[:, None] if adjacency == "replace_one" else np.zeros(1)
    largest = distances(one, other, norm).max()
    assert 0.99 * stated <= largest <= stated * (1 + 1e-9)


@pytest.mark.parametrize(
    ("bounds", "norm", "value"),
    [
        ((0, 100), "l1", 10_100.0),
        ((-1, 1), "l1", 2.25),
        ((-1, 1), "l2", 2.0),
        ((-3, 3), "l1", 12.25),
        ((40, 41), "l2", np.hypot(1, 81)),
        ((1e15, 1e15 + 1), "l1", 2e15 + 2),  # where the difference of the squares cancels
    ],
)
def test_of_first_two_moments_of_replacements_by_hand(bounds, norm, value):
    stated = of_first_two_moments(bounds, norm=norm, adjacency="replace_one")
    assert stated.value == pytest.approx(value, rel=1e-12)
    assert (stated.norm, stated.adjacency) == (norm, "replace_one")
