"""One posterior sample: its guarantee, and samplers that are exact.

False alarms: Kolmogorov-Smirnov tests at 1e-6; five counts within 5 standard errors, less than one
in 10,000.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.bayes.conjugate import BetaBinomial
from dpjax.bayes.sgmcmc import (
    OnePosteriorSample,
    PosteriorDraw,
    beta_sample,
    rejection_sample,
)
from dpjax.bayes.sgmcmc import one_posterior_sample as samplers
from dpjax.bayes.sgmcmc.one_posterior_sample import clipped_log_likelihood

LEVEL = 1e-6
GRID = np.linspace(0.0, 1.0, 20_001)


def mechanism(epsilon=2.0, low=-3.0, high=0.0, adjacency="replace_one"):
    return OnePosteriorSample(epsilon, low=low, high=high, adjacency=adjacency)


@pytest.mark.parametrize(
    ("low", "high", "adjacency", "epsilon"),
    [
        (-0.5, 0.5, "replace_one", 4 * 0.5),
        (-0.5, 0.0, "replace_one", 2 * 0.5),
        (-0.5, 0.0, "add_remove", 0.5),
    ],
)
def test_posterior_itself_costs_four_or_two_bounds(low, high, adjacency, epsilon):
    whole = mechanism(100.0, low, high, adjacency)
    assert whole.scale == 1
    assert whole.epsilon == pytest.approx(epsilon)
    tempered = mechanism(epsilon / 5, low, high, adjacency)
    assert tempered.scale == pytest.approx(1 / 5)
    assert tempered.epsilon == pytest.approx(epsilon / 5)


def test_certificate_of_one_posterior_sample_is_pure():
    assert mechanism().certificate(1e-9).epsilon == pytest.approx(2.0, rel=1e-3)
    assert mechanism().with_privacy_factor(4.0).epsilon == 0.5


@pytest.mark.parametrize("adjacency", ["replace_one", "add_remove"])
def test_neighbours_differ_by_at_most_epsilon_and_some_by_nearly_as_much(adjacency):
    """Distribution of a parameter on a grid in [0, 1], over all data sets of three records."""
    one = mechanism(2.0, -3.0, 0.0, adjacency)
    table = np.clip(
        -np.array([np.where(GRID < 1e-3, 0, 9), np.where(GRID < 1e-3, 9, 0), GRID]), -3, 0
    )

    def distribution(records):
        weights = np.exp(one.scale * table[list(records)].sum(axis=0))
        return weights / weights.sum()

    pairs = [
        ((a, b), (c, b) if adjacency == "replace_one" else (b,))
        for a in range(3)
        for b in range(3)
        for c in range(3)
    ]
    worst = max(np.abs(np.log(distribution(x) / distribution(y))).max() for x, y in pairs)
    assert 0.9 * one.epsilon < worst <= one.epsilon + 1e-9


def rejected(log_likelihood, max_draws=1_000_000):
    records = jnp.ones(400)
    return rejection_sample(
        jax.random.key(0), log_likelihood, jax.random.uniform, records, mechanism(),
        max_draws=max_draws,
    )  # fmt: skip


SCALAR = "log_likelihood must return a scalar.*"
UNBOUNDED = "one record can move the posterior without limit"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rejected(lambda theta, x: jnp.zeros(8) - theta), SCALAR + r"\(8,\)"),
        (lambda: rejected(lambda theta, x: jnp.zeros(1) - theta), SCALAR + r"\(1,\)"),
        (lambda: rejected(lambda theta, x: (-theta, -theta)), SCALAR + r"\(\(\), \(\)\)"),
        (lambda: rejected(lambda theta, x: -3.0 + 0 * theta, 50), "nothing was released"),
        (
            lambda: beta_sample(
                jax.random.key(0), BetaBinomial(), jnp.ones(3), mechanism(low=-0.5)
            ),
            "log 2",
        ),
        (lambda: mechanism(low=-math.inf), UNBOUNDED),
        (lambda: mechanism(low=-1.0, high=math.inf), UNBOUNDED),
        (lambda: mechanism(low=math.nan), UNBOUNDED),
        (lambda: mechanism(low=1.0, high=0.0), "high"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_clipped_log_likelihood_of_half_precision_is_single():
    one = mechanism(low=-1.01, high=0.0)
    each = clipped_log_likelihood(lambda w, x: w * x, one)(
        jnp.bfloat16(-9), jnp.ones(3, "bfloat16")
    )
    assert each.dtype == jnp.float32
    np.testing.assert_array_equal(each, np.float32(-1.01))


def test_log_likelihoods_are_clipped_at_both_bounds():
    one, records = mechanism(low=-0.5, high=0.25), jnp.array([-3.0, -0.4, 0.2, 3.0, jnp.inf])
    each = clipped_log_likelihood(lambda theta, record: record, one)(jnp.float32(0.0), records)
    np.testing.assert_allclose(each, [-0.5, -0.4, 0.2, 0.25, 0.25], rtol=1e-6)


@pytest.mark.slow
def test_clipped_log_likelihood_of_nan_is_the_lower_bound():
    one, records = mechanism(low=-0.5, high=0.25), jnp.array([0.2, 0.7, -1.0])

    def log_likelihood(theta, record):  # of the last record NaN
        return jnp.log(record) - theta

    def replaced(theta, record):
        return jnp.where(record < 0, -0.5, log_likelihood(theta, jnp.abs(record)))

    each = clipped_log_likelihood(log_likelihood, one)(jnp.float32(0.1), records)
    np.testing.assert_allclose(each, [-0.5, np.log(0.7) - 0.1, -0.5], rtol=1e-6)
    for seed in range(3):
        draws = [
            rejection_sample(jax.random.key(seed), function, jax.random.uniform, records, one)
            for function in (log_likelihood, replaced)
        ]
        assert draws[0].params == draws[1].params


def test_rejection_sample_draws_the_tempered_clipped_posterior(monkeypatch):
    records = jnp.array([0.1, 0.9, 0.8, 0.95])
    one = mechanism(1.0, -1.5, 0.0)

    def log_likelihood(theta, record):
        return -9 * (theta - record) ** 2  # the bounds cut it off

    draws = many(
        monkeypatch,
        lambda key: rejection_sample(key, log_likelihood, jax.random.uniform, records, one),
    )
    logs = np.clip(-9 * (GRID[:, None] - np.asarray(records)) ** 2, -1.5, 0).sum(axis=1)
    assert ks(draws, one.scale * logs) > LEVEL
    assert ks(draws, logs) < LEVEL  # power: not the posterior without its temperature


def test_beta_sample_draws_the_tempered_truncated_posterior():
    records, one = jnp.array([1] * 30 + [0] * 3), mechanism(2.0, -1.6, 0.0)
    family, keys = BetaBinomial(2.0, 1.0), jax.random.split(jax.random.key(1), 1_000)
    draws = np.array([float(beta_sample(key, family, records, one).params) for key in keys])
    inside = np.abs(GRID - 0.5) < 0.5 - math.exp(-1.6)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(GRID) + one.scale * (30 * np.log(GRID) + 3 * np.log1p(-GRID))
    logs = np.where(inside, logs, -np.inf)
    assert ks(draws, logs) > LEVEL
    with np.errstate(divide="ignore", invalid="ignore"):
        untempered = np.where(inside, 31 * np.log(GRID) + 3 * np.log1p(-GRID), -np.inf)
    assert ks(draws, untempered) < LEVEL


def many(monkeypatch, draw, count=4_000):
    """The public function's own search, run for many keys at once."""
    searches = []

    def recording(proposal, log_accept, max_draws):
        searches.append(search(proposal, log_accept, max_draws))
        return lambda key: (jnp.array(True), jnp.zeros(()))

    search = samplers.rejection_loop
    monkeypatch.setattr(samplers, "rejection_loop", recording)
    draw(jax.random.key(0))
    kept, draws = jax.jit(jax.vmap(searches[0]))(jax.random.split(jax.random.key(1), count))
    assert kept.all()
    return np.asarray(draws, np.float64)


def ks(draws, log_density):
    density = np.exp(log_density - log_density.max())
    cumulative = np.cumsum(density) / density.sum()
    return stats.kstest(draws, lambda x: np.interp(x, GRID, cumulative)).pvalue


SMALL = -np.array([0.3, 1.0, 2.5, 6.0, 8.0])
THROWS = 2**17


def away(coin):
    """Largest distance of the counts from their expectations, in standard errors.

    In half precision, whose uniform numbers are 2^-10 apart: there exp(-8) is what exp(-17) is to
    single precision.
    """
    keys = jax.random.split(jax.random.key(2), (len(SMALL), THROWS))
    thrown = jax.jit(jax.vmap(jax.vmap(coin, (0, None))))(keys, jnp.asarray(SMALL, jnp.float16))
    chance = np.exp(SMALL)
    errors = np.asarray(thrown).sum(axis=1) - THROWS * chance
    return np.abs(errors / np.sqrt(THROWS * chance * (1 - chance))).max()


@pytest.mark.slow
def test_bernoulli_exp_has_small_probabilities():
    assert away(samplers.bernoulli_exp) < 5

    def of_one_number(key, log_probability):
        return -jax.random.exponential(key, dtype=jnp.float16) < log_probability

    assert away(of_one_number) > 5  # power: it never shows bernoulli_exp at exp(-8)


def test_bernoulli_exp_at_zero_infinity_and_nan():
    keys, ends = jax.random.split(jax.random.key(4), 100), jnp.array([0.0, -jnp.inf, jnp.nan])
    of_all = jax.jit(jax.vmap(jax.vmap(samplers.bernoulli_exp, (None, 0)), (0, None)))
    assert (np.asarray(of_all(keys, ends)) == [True, False, False]).all()


def test_rejection_loop_returns_the_first_accepted_draw(monkeypatch):
    monkeypatch.setattr(samplers, "bernoulli_exp", lambda key, log: log < -0.99)
    kept, theta = samplers.rejection_loop(jax.random.uniform, jnp.negative, 10_000)(
        jax.random.key(0)
    )
    assert kept
    assert theta > 0.99


def test_posterior_draw_has_the_certificate_of_its_mechanism():
    draw = PosteriorDraw(jnp.zeros(2), mechanism())
    assert draw.guarantee == mechanism().guarantee
    assert draw.certificate(1e-5).epsilon == pytest.approx(2.0, rel=1e-3)
