"""Perturbed statistics: sensitivities, noise, event and split of the budget."""

import math
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.accounting import gdp
from dpjax.bayes.regression import (
    AssumedModel,
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
    optimal_budget_shares,
    repair,
    statistics_sensitivities,
    sufficient_statistics,
    unknown_noise_posterior,
)

R, B = 2.0, 3.0
BOUNDS = RegressionBounds(x_norm_bound=R, y_bound=B)
ADJACENCIES = ("add_remove", "replace_one")


def mechanism(delta=1e-4, adjacency="add_remove", num_features=3, epsilon=1.0, **more):
    return PerturbedStatistics.from_epsilon(
        BOUNDS, epsilon=epsilon, delta=delta, adjacency=adjacency, num_features=num_features, **more
    )


def change(one, other):
    """The change of the three statistics if ``one`` replaces ``other`` (zeros: none)."""
    (x, y), (z, t) = one, other
    xtx = np.outer(x, x) - np.outer(z, z)
    return xtx[np.triu_indices(len(x))], xtx, x * y - z * t, np.array([y * y - t * t])


def distances(one, other, norm):
    upper, whole, xty, yty = change(one, other)
    if norm == "l2":
        # What the mechanism's weights make of the triangle, which bounds the triangle's own norm.
        assert np.linalg.norm(upper) <= np.linalg.norm(whole) + 1e-12
        return np.linalg.norm(whole), np.linalg.norm(xty), np.linalg.norm(yty)
    return np.abs(upper).sum(), np.abs(xty).sum(), np.abs(yty).sum()


NOTHING = (np.zeros(3), 0.0)
numbers = st.floats(-1, 1, allow_subnormal=False)


@st.composite
def records(draw):
    x = np.array(draw(st.lists(numbers, min_size=3, max_size=3)))
    x = x / max(np.linalg.norm(x), 1e-3) * R * draw(st.sampled_from([1.0, 1.0, 0.6]))
    x = x / max(1.0, np.linalg.norm(x) / R)
    return x, B * draw(numbers)


@pytest.mark.parametrize("norm", ["l1", "l2"])
@given(one=records(), other=records())
def test_statistics_sensitivities_are_not_exceeded(norm, one, other):
    for adjacency, z in (("add_remove", NOTHING), ("replace_one", other)):
        stated = statistics_sensitivities(BOUNDS, 3, norm=norm, adjacency=adjacency)
        for distance, sensitivity in zip(distances(one, z, norm), stated, strict=True):
            assert distance <= sensitivity.value * (1 + 1e-9)


E = np.eye(3) * R
EVEN = np.full(3, R / math.sqrt(3))
# For each sensitivity a pair of neighbours that attains it, the xtx, xty and yty in turn.
WORST = {
    ("l2", "add_remove"): [((E[0], B), NOTHING)] * 3,
    ("l2", "replace_one"): [((E[0], B), (E[1], B)), ((E[0], B), (E[0], -B)), ((E[0], B), NOTHING)],
    ("l1", "add_remove"): [((EVEN, B), NOTHING)] * 3,
    ("l1", "replace_one"): [None, ((EVEN, B), (EVEN, -B)), ((EVEN, B), NOTHING)],
}


@pytest.mark.parametrize(("norm", "adjacency"), WORST)
def test_statistics_sensitivities_are_attained(norm, adjacency):
    stated = statistics_sensitivities(BOUNDS, 3, norm=norm, adjacency=adjacency)
    for at, pair in enumerate(WORST[norm, adjacency]):
        if pair is not None:
            assert distances(*pair, norm)[at] >= 0.99 * stated[at].value


@pytest.mark.parametrize(("d", "share"), [(1, 0.99), (2, 0.99), (3, 0.95), (6, 0.95), (12, 0.95)])
def test_statistics_sensitivities_of_a_replacement_in_l1_are_nearly_attained(d, share):
    rng = np.random.default_rng(0)
    best = max(climb(rng.normal(size=(2, d)), 30) for _ in range(400)) if d > 1 else R**2
    stated = statistics_sensitivities(BOUNDS, d, norm="l1", adjacency="replace_one").xtx.value
    assert share * stated <= best <= stated * (1 + 1e-9)


def climb(pair, steps):
    """Alternates between the signs of x x^T - z z^T and the vectors that suit these signs best."""
    x, z = pair / np.linalg.norm(pair, axis=1, keepdims=True)
    for _ in range(steps):
        signs = np.sign(np.outer(x, x) - np.outer(z, z))
        matrix = (signs + np.diag(np.diag(signs))) / 2
        vectors = np.linalg.eigh(matrix)[1]
        x, z = vectors[:, -1], vectors[:, 0]
    return R**2 * np.abs(np.triu(np.outer(x, x) - np.outer(z, z))).sum()


@pytest.mark.parametrize("adjacency", ADJACENCIES)
@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_certificate_has_the_epsilon_asked_for(delta, adjacency):
    made = mechanism(delta, adjacency)
    certified = made.certificate(1e-4)
    description = certified.guarantee.description
    assert certified.guarantee.adjacency == made.adjacency == adjacency
    assert description["records"].endswith("target each, clipped: x to L2 norm 2, |y| to 3")
    assert ("sqrt(2)" in description.get("weights", "")) == (delta > 0)
    if delta:
        assert certified.epsilon == pytest.approx(1.0, rel=1e-3)
    else:
        pure = sum(part.pure_epsilon for part in made.parts)
        assert pure == pytest.approx(1.0, rel=1e-12)
        assert 0.95 < certified.epsilon <= 1.0 + 1e-6
    assert made.num_releases == 3


@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_event_is_that_of_the_noise_on_every_entry(adjacency):
    # The worst neighbours, seen through the noise entry by entry, are just mu apart.
    made = mechanism(adjacency=adjacency)
    scales = made.noise_scales
    assert scales.xtx[0, 0] / scales.xtx[0, 1] == pytest.approx(math.sqrt(2))
    triangle, worst = np.triu_indices(3), WORST["l2", adjacency]
    upper, xty, yty = (change(*pair)[place] for pair, place in zip(worst, (0, 2, 3), strict=True))
    shifts = (upper / scales.xtx[triangle], xty / scales.xty, yty / scales.yty)
    mu = math.sqrt(sum(np.sum(shift**2) for shift in shifts))
    assert gdp.delta(mu, 1.0) == pytest.approx(1e-4, rel=1e-6)
    # A dense record gains nothing from the smaller noise off the diagonal.
    dense = change((EVEN, B), NOTHING)[0] / scales.xtx[triangle]
    size = np.sum((R**2 / scales.xtx[0, 0]) ** 2)
    assert np.sum(dense**2) == pytest.approx(size)


def test_release_under_jit_and_vmap_is_the_same_and_symmetric():
    """Its noise is compared with the event's in tests/mechanisms/test_several_arrays.py."""
    made, key = mechanism(num_features=2), jax.random.key(3)
    stacked = jax.tree.map(lambda leaf: leaf[None], SUMS)
    several = jax.jit(jax.vmap(made.release))(key[None], stacked)
    one = made.release(key, SUMS)
    np.testing.assert_array_equal(one.xtx, one.xtx.T)
    for again in (jax.jit(made.release)(key, SUMS), one):
        chex.assert_trees_all_close(again, jax.tree.map(lambda leaf: leaf[0], several), rtol=1e-5)


def test_from_epsilon_without_yty_spends_its_share_on_the_others():
    split = AssumedModel(coefficient_norm=1.0, noise_std=1.0, noise_known=True)
    made = mechanism(split=split)
    exact = sufficient_statistics(jnp.ones((4, 3)), jnp.ones(4))
    assert made.release(jax.random.key(0), exact).yty is None
    assert made.noise_scales.yty is None
    assert made.num_releases == 2
    assert made.certificate(1e-4).epsilon == pytest.approx(1.0, rel=1e-3)
    with_yty = mechanism(split=replace(split, noise_known=False))
    assert made.scales.xtx < with_yty.scales.xtx
    assert made.scales.xty < with_yty.scales.xty


@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_from_epsilon_keeps_a_stated_split(delta):
    made = mechanism(delta, split=RegressionStatistics(0.5, 0.3, 0.2))
    if delta:
        mus = np.array([part.mu**2 for part in made.parts])
    else:
        mus = np.array([part.pure_epsilon for part in made.parts])
    np.testing.assert_allclose(mus / mus.sum(), [0.5, 0.3, 0.2], rtol=1e-9)


@pytest.mark.parametrize("distribution", ["gaussian", "laplace"])
def test_optimal_budget_shares_minimise_the_stated_loss(distribution):
    d, b, v = 5, 0.7, 0.3
    sizes = RegressionStatistics(4.0, 6.0, 9.0)
    shares = np.array(
        optimal_budget_shares(
            sizes,
            AssumedModel(coefficient_norm=b, noise_std=math.sqrt(v)),
            x_norm_bound=R,
            num_features=d,
            noise_distribution=distribution,
        )
    )

    def loss(shares):
        variances = np.square(sizes) / shares ** (1 if distribution == "gaussian" else 2)
        if distribution == "gaussian":
            variances[0] *= (1 + 1 / d) / 2
        xtx, xty, yty = variances
        of_coefficients = d**2 * (xty + b**2 * xtx) / (2 * R**2 * v)
        return of_coefficients + (yty + 4 * b**2 * xty + b**4 * xtx) / (4 * v**2)

    least = loss(shares)
    assert least < 0.95 * loss(np.full(3, 1 / 3))
    for step in ([0.02, -0.02, 0], [-0.02, 0.02, 0], [0.02, 0, -0.02], [-0.02, 0, 0.02]):
        assert loss(shares + np.array(step)) > least


@pytest.mark.slow
def test_from_epsilon_has_a_smaller_error_than_even_shares():
    def error(split):
        d, n = 10, 3_000
        bounds = RegressionBounds(x_norm_bound=math.sqrt(d), y_bound=2.0)
        made = PerturbedStatistics.from_epsilon(
            bounds, epsilon=1.0, delta=1e-4, adjacency="add_remove", num_features=d, split=split
        )
        rng = np.random.default_rng(0)
        x, beta = rng.normal(size=(n, d)), np.full(d, 1 / math.sqrt(d))
        y = x @ beta + rng.normal(size=n)
        exact = sufficient_statistics(*bounds.clip(x, y))
        best = np.linalg.solve(exact.xtx, exact.xty)
        keys = jax.random.split(jax.random.key(1), 500)
        seen = jax.jit(jax.vmap(lambda key: made.release(key, exact)))(keys)
        fits = jnp.linalg.solve(seen.xtx, seen.xty[..., None])[..., 0]
        return float(jnp.mean((fits - best) ** 2))

    assert error(None) < 0.85 * error(RegressionStatistics(1 / 3, 1 / 3, 1 / 3))


@pytest.mark.slow
@pytest.mark.parametrize("delta", [1e-4, 0.0])
def test_posterior_at_a_large_epsilon_is_the_exact_one(x64, delta):
    made = mechanism(delta, epsilon=1e16)
    rng = np.random.default_rng(0)
    x, y = np.clip(rng.normal(size=(50, 3)), -1, 1), np.clip(rng.normal(size=50), -3, 3)
    released = made.release_records(jax.random.key(0), x, y)
    prior = {"prior_precision": 1.0, "noise_shape": 1.0, "noise_rate": 1.0}
    found = unknown_noise_posterior(repair(released, 1e-3), 50, **prior)
    precision = np.eye(3) + x.T @ x
    mean = np.linalg.solve(precision, x.T @ y)
    np.testing.assert_allclose(found.precision, precision, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.mean, mean, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(found.rate, 1 + (y @ y - mean @ precision @ mean) / 2, rtol=1e-6)


@pytest.mark.parametrize("delta", [1e-4, 0.0])
@pytest.mark.parametrize(("x_norm_bound", "y_bound"), [(1e37, 1e-37), (1e-37, 1e37), (1e37, 1e37)])
def test_from_epsilon_of_extreme_bounds_is_finite(x_norm_bound, y_bound, delta):
    made = PerturbedStatistics.from_epsilon(
        RegressionBounds(x_norm_bound=x_norm_bound, y_bound=y_bound),
        epsilon=1.0,
        delta=delta,
        adjacency="add_remove",
        num_features=1_000,
    )
    assert np.isfinite(made.scales).all()


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_sufficient_statistics_of_half_precision_are_exact(dtype):
    # In steps of four a record would move them by four times their sensitivity.
    for n in range(3000, 3010):
        found = sufficient_statistics(jnp.ones((n, 1), dtype), jnp.ones(n, dtype))
        assert [float(jnp.sum(part)) for part in found] == [n, n, n]


def test_sufficient_statistics_use_the_highest_precision():
    jaxpr = jax.make_jaxpr(sufficient_statistics)(jnp.ones((5, 3)), jnp.ones(5))
    precisions = [e.params["precision"] for e in jaxpr.eqns if e.primitive.name == "dot_general"]
    assert precisions == [(jax.lax.Precision.HIGHEST,) * 2] * 3


def test_release_of_integers_has_the_noise_of_floats():
    integers = jax.tree.map(lambda leaf: leaf.astype(int), SUMS)
    made = mechanism(num_features=2)
    chex.assert_trees_all_equal(
        *(made.release(jax.random.key(0), sums) for sums in (SUMS, integers))
    )


ONES = jnp.ones((4, 2)), jnp.ones(4)
SUMS = sufficient_statistics(*ONES)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: mechanism(epsilon=0.0), "epsilon must be a finite number > 0"),
        (lambda: mechanism(epsilon=-1.0, delta=0.0), "epsilon must be a finite number > 0"),
        (lambda: mechanism(delta=1.0), "delta must be in"),
        (lambda: mechanism(num_features=0), "num_features must be"),
        (lambda: mechanism(split=RegressionStatistics(0.5, 0.4, 0.2)), "shares must be .* add up"),
        (lambda: mechanism(split=RegressionStatistics(1.2, -0.2, None)), "shares must be a finite"),
        (lambda: mechanism().release(jax.random.key(0), SUMS), r"xtx must be of shape \(3, 3\)"),
        (
            lambda: mechanism(num_features=2).release(
                jax.random.key(0), SUMS._replace(xty=np.ma.array(SUMS.xty))
            ),
            r"statistics\.xty must be an array without a mask",
        ),
        *[
            (
                lambda bounds={name: bound}: replace(BOUNDS, **bounds),
                rf"{name} must be between 1e-37 and 1e\+37, .* got 1e",
            )
            for name in ("x_norm_bound", "y_bound")
            for bound in (1e200, 1e-200)
        ],
    ],
)
def test_arguments_of_perturbed_statistics_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
