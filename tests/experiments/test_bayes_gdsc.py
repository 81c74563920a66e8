"""The drug-sensitivity experiment on its stand-in, and the guarantees of its baselines."""

import dataclasses
import math

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from scipy import optimize, stats

from dpjax.accounting import gdp
from dpjax.bayes.regression import RegressionBounds, RegressionStatistics, sufficient_statistics
from experiments.bayes import gdsc
from experiments.bayes.gdsc import BallRidge, ObjectivePerturbation
from experiments.data import Split, load_stand_in

# Two features keep the examples quick; the bounds are asymmetric on purpose.
BOUNDS = RegressionBounds(x_norm_bound=1.5, y_bound=2.0)
solve = jax.jit(BallRidge.solve, static_argnums=0)


def in_units(low, high, shape):
    number = st.floats(low, high, width=32)
    return st.lists(number, min_size=shape, max_size=shape).map(lambda row: np.array(row, float))


def statistics_of(records):
    x, y = BOUNDS.clip(jnp.asarray(records[:, :2], float), jnp.asarray(records[:, 2], float))
    return sufficient_statistics(x, y)


@st.composite
def neighbours(draw):
    """Five records, and the same with the last one replaced; all may leave the bounds."""
    rows = [draw(in_units(-4, 4, 3)) for _ in range(6)]
    return np.array(rows[:5]), np.array([*rows[:4], rows[5]])


@given(neighbours(), st.sampled_from([0.5, 3.0, 50.0]), st.sampled_from([0.3, 1.0, 4.0]))
@settings(max_examples=150, deadline=None)
def test_ball_ridge_solve_changes_by_at_most_the_sensitivity(pair, ridge, radius):
    model = BallRidge(BOUNDS, ridge, radius)
    first, second = (solve(model, statistics_of(records)) for records in pair)
    distance = float(jnp.linalg.norm(first - second))
    assert distance <= model.sensitivity * (1 + 1e-4) + 1e-5


def test_ball_ridge_sensitivity_is_nearly_attained():
    """Where the ridge rules, by a record turned over; half of it would be wrong."""
    model = BallRidge(BOUNDS, 1e4, 1e-3)
    one, other = np.array([[1.5, 0.0, 2.0]]), np.array([[1.5, 0.0, -2.0]])
    first, second = (solve(model, statistics_of(records)) for records in (one, other))
    distance = float(jnp.linalg.norm(first - second))
    assert 0.99 * model.sensitivity < distance <= model.sensitivity


@pytest.mark.parametrize("radius", [0.2, 5.0])
def test_ball_ridge_solve_is_the_minimum_over_the_ball(radius):
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(30, 3)), rng.normal(size=30)
    model = BallRidge(BOUNDS, 2.0, radius)

    def objective(beta):
        return np.sum((y - x @ beta) ** 2) / 2 + beta @ beta

    inside = {"type": "ineq", "fun": lambda beta: radius**2 - beta @ beta}
    best = optimize.minimize(objective, np.zeros(3), constraints=[inside], tol=1e-10)
    found = solve(model, sufficient_statistics(jnp.asarray(x), jnp.asarray(y)))
    np.testing.assert_allclose(found, best.x, atol=2e-4)
    assert np.linalg.norm(found) <= radius * (1 + 1e-5)


def delta_of_objective(mechanism, epsilon, first, second):
    """Delta between two data sets with one feature, by integration over the coefficient.

    Inside the ball the coefficient is (xty + noise) / (xtx + ridge); what is beyond is moved to the
    ends, which are outcomes of their own.
    """
    radius, ridge = mechanism.model.radius, mechanism.model.ridge
    grid = np.linspace(-radius, radius, 20_001)

    def distribution(records):
        curvature = float(np.sum(records[:, 0] ** 2)) + ridge
        mean = float(records[:, 0] @ records[:, 1]) / curvature
        return stats.norm(mean, mechanism.scale / curvature)

    p, q = distribution(first), distribution(second)
    excess = np.maximum(p.pdf(grid) - math.exp(epsilon) * q.pdf(grid), 0)
    ends = (p.cdf(-radius), q.cdf(-radius)), (p.sf(radius), q.sf(radius))
    atoms = sum(max(a - math.exp(epsilon) * b, 0.0) for a, b in ends)
    return float(np.trapezoid(excess, grid)) + atoms


ONE_RECORD = st.tuples(st.floats(-1.5, 1.5), st.floats(-2, 2))


@given(
    st.lists(ONE_RECORD, max_size=3),
    ONE_RECORD,
    ONE_RECORD,
    st.sampled_from([(8.0, 2.0), (200.0, 0.3)]),
    st.sampled_from([0.5, 2.0]),
)
@settings(max_examples=150, deadline=None)
def test_objective_perturbation_keeps_its_guarantee(common, one, other, model, epsilon):
    delta = 1e-2
    mechanism = ObjectivePerturbation.from_epsilon(BallRidge(BOUNDS, *model), epsilon, delta)
    first, second = (np.array([*common, record]) for record in (one, other))
    assert delta_of_objective(mechanism, epsilon, first, second) <= delta


def test_objective_perturbation_with_a_quarter_of_the_noise_breaks_its_guarantee():
    """The power of the test above: these neighbours are within what it draws."""
    mechanism = ObjectivePerturbation.from_epsilon(BallRidge(BOUNDS, 200.0, 0.3), 0.5, 1e-2)
    first, second = np.array([[1.5, 2.0]]), np.array([[1.5, -2.0]])
    assert delta_of_objective(mechanism, 0.5, first, second) <= 1e-2
    assert delta_of_objective(mechanism.with_privacy_factor(0.25), 0.5, first, second) > 1e-2


def test_objective_perturbation_refuses_a_small_ridge():
    with pytest.raises(ValueError, match=r"epsilon must be above 1\.179, got 1\.0"):
        ObjectivePerturbation.from_epsilon(BallRidge(BOUNDS, 1.0, 1.0), 1.0, 1e-5)
    with pytest.raises(ValueError, match="ridge"):
        BallRidge(BOUNDS, 0.0, 1.0)
    with pytest.raises(ValueError, match="radius"):
        BallRidge(BOUNDS, 1.0, -1.0)


@pytest.mark.parametrize("method", gdsc.METHODS)
@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_guarantee_of_each_method_is_its_budget(method, epsilon):
    options = gdsc.Settings(method, ridge=50.0)
    found = gdsc.METHODS[method](options, 10, epsilon).guarantee(1e-5, num_drugs=9)
    assert found.one == pytest.approx(epsilon, rel=2e-3)
    if method == "objective":
        assert (found.every, found.delta) == pytest.approx((9 * found.one, 9e-5))
    else:
        # Nine equal Gaussian mechanisms have three times the mu of one.
        mu = optimize.brentq(lambda mu: gdp.epsilon(mu, 1e-5) - epsilon, 1e-3, 10)
        assert found.every == pytest.approx(gdp.epsilon(3 * mu, 1e-5), rel=1e-6)


def test_spearman_is_scipys():
    rng = np.random.default_rng(0)
    first, second = rng.integers(0, 5, 40).astype(float), rng.normal(size=40)
    known = rng.random(40) < 0.7
    expected = stats.spearmanr(first[known], second[known]).statistic
    arrays = (jnp.asarray(part, float) for part in (first, second, known))
    assert float(gdsc.spearman(*arrays)) == pytest.approx(expected, abs=1e-5)
    assert float(gdsc.spearman(jnp.zeros(3), jnp.arange(3.0), jnp.ones(3))) == 0.0


NAMES = ("A_mut", "B_mut", "gain_X", "C_mut", "tissue_bone", "tissue_skin", "tissue_lung")


def test_frequent_features_are_the_most_frequent_genes_and_tissues():
    x = np.array([[1, 0, 1, 1, 0, 0, 1], [0, 0, 1, 1, 1, 0, 0], [1, 1, 1, 1, 0, 0, 1]], float)
    part = Split(x, np.zeros((3, 1)))
    data = dataclasses.replace(load_stand_in("gdsc"), train=part, test=part, feature_names=NAMES)
    assert gdsc.frequent_features(data, 2, 1) == [3, 0, 6]
    assert gdsc.frequent_features(data, 0, 2) == [6, 4]
    assert gdsc.frequent_features(load_stand_in("gdsc"), 5, 5) == list(range(10))


def test_draw_splits_keeps_lines_together_and_marks_missing_responses():
    data = load_stand_in("gdsc")
    y = np.where(np.arange(354)[:, None] % 5 == 0, np.nan, data.train.y)
    data = dataclasses.replace(data, train=Split(data.train.x, y))
    train, test = gdsc.draw_splits(data, range(10), 2, seed=0)
    assert (train.x.shape, test.y.shape) == ((2, 342, 10), (2, 100, 1))
    everyone = np.concatenate([data.train.x, data.test.x])
    centred = everyone - everyone.mean(axis=0)
    whole = np.concatenate([train.x[1], test.x[1]])
    np.testing.assert_allclose(np.sort(whole, axis=0), np.sort(centred, axis=0), atol=1e-6)
    known = np.concatenate([train.known[1], test.known[1]])
    assert known.sum() == 442 - 71
    responses = np.concatenate([train.y[1], test.y[1]])
    assert (responses[known == 0] == 0).all()
    assert (responses[known == 1] > 3).all()


def test_unit_statistics_are_of_known_lines_within_bounds():
    lines = gdsc.Lines(
        jnp.array([[3.0, 4.0], [0.3, 0.0], [9.0, 9.0]]),
        jnp.array([5.0, -9.0, 7.0]),
        jnp.array([1.0, 1.0, 0.0]),
    )
    options = gdsc.Settings("statistics", x_norm=2.0, y_size=4.0)
    found = gdsc.unit_statistics(options, lines, jnp.array(3.0))
    x, y = np.array([[0.6, 0.8], [0.15, 0.0]]), np.array([0.5, -1.0])
    expected = RegressionStatistics(x.T @ x, x.T @ y, y @ y)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)
    at_extremes = dataclasses.replace(options, x_norm=None, y_size=None)
    found = gdsc.unit_statistics(at_extremes, lines, jnp.array(3.0))
    assert float(found.yty) == pytest.approx(1 + (2 / 12) ** 2)


@pytest.mark.parametrize("method", gdsc.METHODS)
def test_make_scorer_at_tiny_epsilon_has_no_correlation(method):
    options = gdsc.Settings(method, num_repeats=40, ridge=1e4, delta=1e-5)
    columns = range(10)
    train, test = gdsc.draw_splits(load_stand_in("gdsc"), columns, 40, seed=0)
    mean, error = gdsc.make_scorer(options, train, test)(2e-3, 342)
    assert abs(mean) < 4.5 * error
