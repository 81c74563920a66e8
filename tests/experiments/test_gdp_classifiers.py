"""Classifiers of Bu et al. (2020): printed digits of the accounts, noise multipliers, a run."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.gradients import clipped_grad
from experiments.data import Split, load_data
from experiments.gdp import adult, imdb, mnist, noise_saved
from experiments.gdp.noise_saved import HALVES, compute_epsilon, min_noise_multiplier
from experiments.lib.models import MeanEmbeddingClassifier, cross_entropy
from experiments.lib.registry import Row, RowContext

# Mechanism, published values, and the printed decimals of ε.
ACCOUNTS = {
    **{
        f"MNIST {row.name}": (mechanism, row.source, 2)
        for mechanism, row in zip(mnist.published_mechanisms(), mnist.rows("paper"), strict=True)
    },
    "Adult": (
        adult.PRIVATE.mechanism(adult.PUBLISHED_SIZE, "one person"),
        adult.rows("paper")[0].source,
        1,
    ),
    "IMDb": (
        imdb.PRIVATE.mechanism(imdb.PUBLISHED_SIZE, "one review"),
        imdb.rows("paper")[0].source,
        2,
    ),
}


@pytest.mark.parametrize("name", ACCOUNTS)
def test_mechanism_has_the_printed_central_limit_epsilon(name):
    mechanism, printed, decimals = ACCOUNTS[name]
    epsilon = dpjax.accounting.epsilon(
        mechanism.event, 1e-5, adjacency="add_remove", method="gdp_clt"
    )
    assert round(epsilon, decimals) == printed["CLT ε"]
    mu = dpjax.accounting.gdp.mu_of_event(mechanism.event, "add_remove")
    assert round(mu, 2) == printed["CLT μ"]


# Figure 4: the noise multipliers of equal ε under each account.


def settings_of(half, noise):
    return mnist.Settings(0.15, 1.5, noise, published_epochs=half.epochs, epochs=half.epochs)


@pytest.mark.parametrize("name", HALVES)
def test_min_noise_multiplier_has_printed_digits(name):
    half = HALVES[name]
    moments, limit, tight = half.noises
    solved = {
        account: min_noise_multiplier(account, settings_of(half, moments), half.epsilon)
        for account in ("CLT", "MA", "PLD")
    }
    assert round(solved["CLT"], len(str(limit)) - 2) == limit
    assert solved["MA"] == pytest.approx(moments, rel=0.005)
    assert tight == math.ceil(1000 * solved["PLD"]) / 1000

    # Tight: the target is met, and would not be with 0.5 % less noise.
    assert compute_epsilon("PLD", settings_of(half, tight), half.epochs) <= half.epsilon
    less = settings_of(half, 0.995 * tight).mechanism(mnist.PUBLISHED_SIZE, half.epochs)
    lower = dpjax.accounting.epsilon_bounds(less.event, 1e-5, adjacency="add_remove").lower
    assert lower > half.epsilon


@pytest.mark.parametrize(("name", "cost"), [("top", 1.41), ("bottom", 9.48)])
def test_compute_epsilon_of_published_noise_is_above_its_target(name, cost):
    half = HALVES[name]
    settings = settings_of(half, half.noises[1])
    assert round(compute_epsilon("PLD", settings, half.epochs), 2) == cost
    assert compute_epsilon("CLT", settings, half.epochs) == pytest.approx(half.epsilon, rel=0.002)


def test_reached_has_the_milestones_of_the_curve():
    curve = [(1.0, 90.0), (2.0, 95.5), (3.0, 95.0), (4.01, 96.0)]
    spent = {"MA": [(1.0, 3.0), (2.0, 4.5)], "PLD": [(1.0, 2.0), (2.0, 4.0), (3.0, 4.1)]}
    reached = noise_saved._reached(curve, spent, "MA")
    assert [reached[f"epochs to {level} % right"] for level in (95, 96, 97)] == [2, 4, None]
    assert reached["accuracy, its account's ε ≤ 4, %"] == 90.0
    assert reached["accuracy, certified ε ≤ 4, %"] == 95.5


# Data and models.


def test_hold_out_tenth_is_fixed():
    x, y = np.arange(87).reshape(29, 3), np.arange(29)
    whole = dataclasses.replace(load_data("digits"), train=Split(x, y))
    split = adult._hold_out_tenth(whole)
    assert (len(split.train.y), len(split.test.y)) == (27, 2)
    assert sorted([*split.train.y, *split.test.y]) == list(range(29))
    for part in (split.train, split.test):
        np.testing.assert_array_equal(part.x, x[part.y])
    np.testing.assert_array_equal(split.test.y, adult._hold_out_tenth(whole).test.y)


def padded_review(padding_is_zero):
    model = MeanEmbeddingClassifier(10, 2, padding_is_zero)
    tokens = jnp.array([[0, 0, 0, 1, 2, 9]])
    params = model.init(jax.random.key(0), tokens)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 10 * 16 + 17 * 16 + 17 * 2
    return model, params, tokens


def test_mean_embedding_has_padding_as_a_zero_vector():
    model, params, tokens = padded_review(padding_is_zero=True)
    table = params["Embed_0"]["embedding"]
    without = model.apply(
        {"params": {**params, "Embed_0": {"embedding": table.at[0].set(7.0)}}}, tokens
    )
    assert (model.apply({"params": params}, tokens) == without).all()

    # With trained padding the same holds only where its vector is zero.
    trained = MeanEmbeddingClassifier(10, 2, padding_is_zero=False)
    zeroed = {**params, "Embed_0": {"embedding": table.at[0].set(0.0)}}
    assert jnp.abs(trained.apply({"params": zeroed}, tokens) - without).max() < 1e-6
    assert jnp.abs(trained.apply({"params": params}, tokens) - without).max() > 1e-4


@pytest.mark.parametrize("padding_is_zero", [True, False])
def test_clipped_grad_counts_trained_padding_in_the_norm(padding_is_zero):
    model, params, tokens = padded_review(padding_is_zero)
    batch = (tokens, jnp.array([1]))
    clipped, info = clipped_grad(cross_entropy(model), l2_clip=1e3)(params, batch, None)
    rows = jnp.linalg.norm(clipped["Embed_0"]["embedding"], axis=1)
    # Three lookups of the padding add up to three times the gradient of one.
    expected = 0.0 if padding_is_zero else 3 * float(rows[9])
    assert float(rows[0]) == pytest.approx(expected, rel=1e-5)
    total = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(clipped)))
    assert float(info.norms[0]) == pytest.approx(float(total), rel=1e-5)


# A row on the bundled digits.


@pytest.fixture
def run_short_row(monkeypatch, tmp_path):
    digits = dataclasses.replace(load_data("digits"), is_stand_in=True, note="digits.")
    monkeypatch.setattr(mnist, "data_set", lambda: digits)
    row = mnist.rows("paper")[0]
    context = RowContext(tmp_path, fresh=True, profile="quick")

    def run(**changes):
        settings = {**row.settings, "epochs": 3, **changes}
        return settings, mnist.run_row(Row(row.name, settings, row.source), context)

    return run


def test_run_row_learns_resumes_and_is_certified_as_run(run_short_row):
    settings, result = run_short_row(seeds=2)
    _, again = run_short_row(seeds=2)  # from its last checkpoint
    assert again.measured == result.measured
    assert result.measured["test accuracy %"] > 20
    by_seed = result.series["final accuracy % by seed"]
    assert len(set(by_seed.tolist())) == 2  # other initial parameters, batches and noise
    assert result.measured["test accuracy %"] == pytest.approx(by_seed.mean())
    assert result.certified["ε, published epochs"] == pytest.approx(0.8648, abs=2e-3)
    del settings["seeds"]
    as_run = mnist.Settings(**settings).mechanism(1437, 3)
    assert result.certified["ε, as run"] == as_run.certificate(1e-5).epsilon
