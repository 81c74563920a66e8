"""The MovieLens table: its accounting, its unit of privacy, its movielens, and short runs of it."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.accounting import gdp
from experiments.data import RatingsDataset, split_ratings
from experiments.gdp import movielens
from experiments.gdp.movielens import (
    NeuralFiltering,
    group_guarantee,
    rmse,
    user_loss,
    user_records,
)
from experiments.lib.models import cross_entropy

NUM_USERS, NUM_ITEMS = 30, 20
MECHANISM = movielens.Settings().mechanism(800_167)


@pytest.fixture(scope="module")
def tiny():
    """Two tastes: half of the users grade 5 what the others grade 1, and the other way round."""
    rng = np.random.default_rng(0)
    pairs = np.array(list(itertools.product(range(NUM_USERS), range(NUM_ITEMS))))
    pairs = pairs[rng.random(len(pairs)) < 0.7]
    pairs = pairs[pairs[:, 0] != 7]  # user 7 rates nothing
    classes = np.where((pairs.sum(axis=1) % 2) == 0, 4, 0)
    train, test = split_ratings(pairs, classes)
    return RatingsDataset("tiny", train, test, "here", False, 5, "tiny.", NUM_USERS, NUM_ITEMS)


# The accounting.


def test_settings_mechanism_has_the_printed_central_limit():
    assert MECHANISM.num_steps == 1600
    assert MECHANISM.sampling.expected_batch_size == pytest.approx(10_002, abs=1)
    epsilon = dpjax.accounting.epsilon(
        MECHANISM.event, 1e-6, adjacency="add_remove", method="gdp_clt"
    )
    assert round(gdp.mu_of_event(MECHANISM.event, "add_remove"), 2) == 1.94
    assert round(epsilon, 2) == 10.61


def test_settings_mechanism_has_the_printed_moments_epsilon_above_the_certified():
    moments = dpjax.accounting.epsilon(
        MECHANISM.event, 1e-6, adjacency="add_remove", method="moments"
    )
    assert moments == pytest.approx(15.39, rel=0.025)
    assert 10.61 < MECHANISM.certificate(1e-6).epsilon < moments


def test_user_settings_mechanism_has_the_epsilon_of_the_ratings():
    by_user = movielens.UserSettings().mechanism(6_040)
    epsilon = by_user.certificate(1e-6).epsilon
    assert 0.99 * movielens.UserSettings().epsilon <= epsilon <= movielens.UserSettings().epsilon
    assert epsilon == pytest.approx(MECHANISM.certificate(1e-6).epsilon, rel=0.01)
    assert "one rating" in MECHANISM.unit
    assert "one user" in by_user.unit


# What is left to a user of many ratings.


@pytest.mark.parametrize("size", [1, 2, 3, 10])
def test_group_guarantee_adds_up_record_by_record(size):
    epsilon, delta = group_guarantee(0.7, 1e-9, size)
    assert epsilon == pytest.approx(0.7 * size)
    assert delta == pytest.approx(1e-9 * sum(np.exp(0.7 * i) for i in range(size)))


def test_group_guarantee_covers_the_loss_of_a_gaussian_group():
    """The size times delta, without its factor, would promise too much."""
    mu, epsilon = 0.3, 1.0
    for size in (2, 3, 4):
        group_epsilon, group_delta = group_guarantee(epsilon, gdp.delta(mu, epsilon), size)
        assert gdp.delta(size * mu, group_epsilon) <= group_delta
    assert gdp.delta(4 * mu, 4 * epsilon) > gdp.delta(mu, epsilon) * 4


# One user as one record.


def test_user_records_have_at_most_num_kept_ratings_of_their_user(tiny):
    records = user_records(tiny, num_kept=8, seed=0)
    rated = {tuple(row): int(y) for row, y in zip(tiny.train.x.tolist(), tiny.train.y, strict=True)}
    counts = np.bincount(tiny.train.x[:, 0], minlength=NUM_USERS)
    np.testing.assert_array_equal(records.mask.sum(axis=1), np.minimum(counts, 8))
    assert (counts > 8).any()
    for user, slot in np.argwhere(records.mask > 0):
        pair = (int(records.user[user]), int(records.items[user, slot]))
        assert rated.pop(pair) == records.classes[user, slot]  # popped: no rating counts twice


def test_user_records_do_not_depend_on_other_users(tiny):
    without = tiny.train.x[:, 0] != 3
    fewer = type(tiny.train)(tiny.train.x[without][::-1], tiny.train.y[without][::-1])
    before = user_records(tiny, num_kept=8, seed=0)
    after = user_records(dataclasses.replace(tiny, train=fewer), num_kept=8, seed=0)
    others = np.arange(NUM_USERS) != 3
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one[others], other[others])
    assert after.mask[3].sum() == 0


@pytest.fixture(scope="module")
def network(tiny):
    """A network whose gradients are far larger than the clip bounds below."""
    model = NeuralFiltering(NUM_USERS, NUM_ITEMS, 5)
    params = model.init(jax.random.key(0), tiny.train.x[:1])["params"]
    return model, jax.tree.map(lambda leaf: 30 * leaf, params)


def norm_of_difference(one, other):
    differences = jax.tree.map(lambda a, b: jnp.sum((a - b) ** 2), one, other)
    return float(jnp.sqrt(sum(jax.tree.leaves(differences))))


def test_user_loss_changes_the_clipped_sum_by_at_most_the_bound(tiny, network):
    """Clipped rating by rating, the twin that must fail, a user moves it by more."""
    model, params = network
    records = user_records(tiny, num_kept=12, seed=0)
    by_user = jax.jit(dpjax.clipped_grad(user_loss(model), 0.5))
    whole = by_user(params, records, None)[0]
    for user in (0, 3, 7, 29):
        rest = by_user(params, records, np.arange(NUM_USERS) != user)[0]
        assert norm_of_difference(whole, rest) <= 0.5 * (1 + 1e-4)
    by_rating = jax.jit(dpjax.clipped_grad(cross_entropy(model), 0.5))
    ratings = tuple(tiny.train)
    moved = norm_of_difference(
        by_rating(params, ratings, None)[0], by_rating(params, ratings, tiny.train.x[:, 0] != 3)[0]
    )
    assert moved > 0.5 * 1.5


def test_user_loss_has_no_gradient_without_ratings_or_of_padding(tiny, network):
    model, params = network
    records = user_records(tiny, num_kept=12, seed=0)
    gradient = jax.grad(user_loss(model))
    nobody = jax.tree.map(lambda leaf: leaf[7], records)
    assert all(not leaf.any() for leaf in jax.tree.leaves(gradient(params, nobody)))
    somebody = jax.tree.map(lambda leaf: leaf[3], records)
    other = somebody._replace(items=np.where(somebody.mask > 0, somebody.items, 5))
    assert norm_of_difference(gradient(params, somebody), gradient(params, other)) == 0


def test_user_loss_is_the_mean_over_the_ratings(tiny, network):
    model, params = network
    records = user_records(tiny, num_kept=30, seed=0)
    own = tiny.train.x[:, 0] == 3
    losses = jax.vmap(cross_entropy(model), (None, 0))(
        params, (tiny.train.x[own], tiny.train.y[own])
    )
    record = jax.tree.map(lambda leaf: leaf[3], records)
    assert float(user_loss(model)(params, record)) == pytest.approx(float(losses.mean()), rel=1e-5)


def test_rmse_is_that_of_the_expected_grade(tiny):
    model = NeuralFiltering(NUM_USERS, NUM_ITEMS, 5)
    params = model.init(jax.random.key(0), tiny.test.x[:1])["params"]
    flat = jax.tree.map(jnp.zeros_like, params)
    expected = np.sqrt(np.mean((2.0 - tiny.test.y) ** 2))
    assert rmse(model, tiny.test)(flat) == pytest.approx(expected, rel=1e-6)


# The movielens.


def test_user_based_filtering_weights_neighbours_as_by_hand(tiny):
    """Of random grades: among the two tastes of ``tiny`` all similarities are tied."""
    rng = np.random.default_rng(1)
    parts = (part._replace(y=rng.integers(0, 5, len(part.y))) for part in (tiny.train, tiny.test))
    tiny = dataclasses.replace(tiny, **dict(zip(("train", "test"), parts, strict=True)))
    predicted = movielens.user_based_filtering(tiny, num_neighbours=3)
    grades = {(u, i): c + 1 for (u, i), c in zip(tiny.train.x.tolist(), tiny.train.y, strict=True)}
    by_user = {u: {i: g for (v, i), g in grades.items() if v == u} for u in range(NUM_USERS)}

    def similarity(u, v):
        both = by_user[u].keys() & by_user[v].keys()
        squares = [(by_user[u][i] - by_user[v][i]) ** 2 for i in both]
        return 1 / (1 + np.mean(squares)) if both else 0

    # Ties at the third place make the neighbours ambiguous.
    pairs = []
    for (user, item), value in zip(tiny.test.x.tolist(), predicted, strict=True):
        known = [(similarity(user, v), by_user[v][item]) for v in by_user if item in by_user[v]]
        known.sort(reverse=True)
        if len(known) > 3 and not np.isclose(known[2][0], known[3][0]):
            total = sum(weight for weight, _ in known[:3])
            pairs.append((value, sum(weight * grade for weight, grade in known[:3]) / total))
    assert len(pairs) > 50
    np.testing.assert_allclose(*zip(*pairs, strict=True), rtol=1e-4)


def test_diagonals_share_neither_user_nor_item(tiny):
    parts = movielens._diagonals(tiny)
    assert sorted(np.concatenate(parts)) == list(range(len(tiny.train.y)))
    for part in parts:
        users, items = tiny.train.x[part].T
        assert len(set(users)) == len(set(items)) == len(part)


def test_factorizations_find_the_two_tastes(tiny):
    """Both have what it takes to be nearly exact; the global average has not."""
    average = movielens.baseline_rmse(movielens.global_average, tiny, {})
    assert average == pytest.approx(2, abs=0.1)
    settings = {"num_factors": 4, "num_epochs": 300, "penalty": 0.02}
    nonnegative = movielens.baseline_rmse(movielens.nonnegative_factorization, tiny, settings)
    settings |= {"step_size": 0.02}
    biased = movielens.baseline_rmse(movielens.biased_factorization, tiny, settings)
    assert max(nonnegative, biased) < 0.5


# The experiment.


def test_run_row_learns_unless_the_noise_is_large(tiny, run_rows, monkeypatch):
    monkeypatch.setattr(movielens, "data_set", lambda: tiny)
    monkeypatch.setattr(movielens, "_NUM_REPORTS", 2)
    short = {"learning_rate": 0.1, "epochs": 20, "num_kept": 8, "sampling_rate": 0.25}
    average, private, plain, by_user = (
        "global average", "private networks", "non-private networks", "private networks, by user"
    )  # fmt: skip
    records = run_rows(movielens, average, plain, by_user, **short)
    records |= run_rows(movielens, private, noise_multiplier=100.0, **short)
    level = records[average].measured["RMSE"]
    assert records[plain].measured["RMSE"] < 0.3 * level
    assert records[private].measured["RMSE"] > 0.9 * level
    mechanism = movielens.Settings(**records[private].settings).mechanism(len(tiny.train.y))
    assert records[private].certified == {"ε, one rating": mechanism.certificate(1e-6).epsilon}
    assert records[by_user].certified["ε, one user"] <= records[by_user].settings["epsilon"]
    assert not records[plain].certified
    most = int(np.bincount(np.concatenate([tiny.train.x, tiny.test.x])[:, 0]).max())
    assert [size for size, *_ in records[private].series["groups"]][::2] == [2, most]
