"""The IMDb table: its accounting to the printed digits, and its rows run on made-up texts."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.gradients import clipped_grad
from experiments.data import Dataset, Split
from experiments.gdp import imdb
from experiments.gdp.classifiers import Problem, fit
from experiments.lib.figures import draw_figures
from experiments.lib.models import MeanEmbeddingClassifier, cross_entropy
from experiments.lib.registry import Row
from experiments.lib.runner import Plan, run_row


def test_the_accounts_have_the_printed_digits():
    mechanism = imdb.PRIVATE.mechanism(imdb.PUBLISHED_SIZE, "one review")
    assert mechanism.num_steps == 439
    printed = imdb.EXPERIMENT.rows("paper")[0].source

    def epsilon(method):
        return dpjax.accounting.epsilon(
            mechanism.event, 1e-5, adjacency="add_remove", method=method
        )

    mu = dpjax.accounting.gdp.mu_of_event(mechanism.event, "add_remove")
    assert round(mu, 2) == printed["CLT μ"]
    assert round(epsilon("gdp_clt"), 2) == printed["CLT ε"]
    # The source's orders do not quite give its own figure.
    assert epsilon("moments") == pytest.approx(printed["MA ε"], rel=0.025)


def test_both_profiles_run_everything_as_published():
    rows = imdb.EXPERIMENT.rows("paper")
    assert imdb.EXPERIMENT.rows("quick") == rows
    assert [row.settings.get("epochs") for row in rows] == [9, 20, 9, 20, None]
    accuracies = [row.source["test accuracy %"] for row in rows]
    assert accuracies == [83.8, 84.7, 83.8, 84.7, 85.4]


def loss_of(padding_is_zero):
    model = MeanEmbeddingClassifier(10, 2, padding_is_zero)
    tokens = jnp.array([[0, 0, 0, 1, 2, 9]])
    params = model.init(jax.random.key(0), tokens)["params"]
    assert sum(leaf.size for leaf in jax.tree.leaves(params)) == 10 * 16 + 17 * 16 + 17 * 2
    return model, params, tokens


def test_padding_counts_in_the_mean_as_a_zero_vector_or_as_itself():
    model, params, tokens = loss_of(padding_is_zero=True)
    table = params["Embed_0"]["embedding"]
    without = model.apply(
        {"params": {**params, "Embed_0": {"embedding": table.at[0].set(7.0)}}}, tokens
    )
    assert (model.apply({"params": params}, tokens) == without).all()
    trained = MeanEmbeddingClassifier(10, 2, padding_is_zero=False)
    zeroed = {**params, "Embed_0": {"embedding": table.at[0].set(0.0)}}
    same = trained.apply({"params": zeroed}, tokens) - without
    assert jnp.abs(same).max() < 1e-6
    assert jnp.abs(trained.apply({"params": params}, tokens) - without).max() > 1e-4


@pytest.mark.parametrize("padding_is_zero", [True, False])
def test_padding_that_is_trained_takes_its_share_of_the_norm(padding_is_zero):
    model, params, tokens = loss_of(padding_is_zero)
    batch = (tokens, jnp.array([1]))
    clipped, info = clipped_grad(cross_entropy(model), l2_clip=1e3)(params, batch)
    rows = jnp.linalg.norm(clipped["Embed_0"]["embedding"], axis=1)
    # Three lookups of the padding add up to three times the gradient of one.
    expected = 0.0 if padding_is_zero else 3 * float(rows[9])
    assert float(rows[0]) == pytest.approx(expected, rel=1e-5)
    total = jnp.sqrt(sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(clipped)))
    assert float(info.norms[0]) == pytest.approx(float(total), rel=1e-5)


def made_up_reviews(num, seed):
    """Texts of up to 60 words, most of them from five that go with the label."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, num).astype(np.int32)
    words = 4 + 5 * labels[:, None] + rng.integers(0, 5, (num, 256))
    words = np.where(rng.random(words.shape) < 0.2, rng.integers(4, 9999, words.shape), words)
    lengths = rng.integers(10, 60, num)
    tokens = np.where(np.arange(256) >= 256 - lengths[:, None], words, 0)
    return Split(tokens.astype(np.int32), labels)


@pytest.fixture
def made_up(monkeypatch):
    """The experiment on a small made-up data set."""
    splits = made_up_reviews(400, 0), made_up_reviews(200, 1)
    data = Dataset("made up", *splits, "memory", True, 2, "Made up.")
    monkeypatch.setattr(imdb, "_data", lambda: data)


SHORT = {"epochs": 6, "seeds": (0,)}


def run(row, tmp_path, **changes):
    plan = Plan("quick", tmp_path, False, print)
    return run_row(imdb.EXPERIMENT, Row(row.name, {**row.settings, **changes}, row.source), plan)


def test_the_rows_learn_resume_and_are_drawn(made_up, tmp_path):
    private, plain, *_, quoted = imdb.EXPERIMENT.rows("quick")
    noisy = run(private, tmp_path, expected_batch_size=64, **SHORT)
    free = run(plain, tmp_path, batch_size=64, **SHORT)
    lstm = run(quoted, tmp_path)
    assert [record.error for record in (noisy, free, lstm)] == ["", "", ""]
    assert noisy.measured["test accuracy %"] > 80
    assert free.measured["test accuracy %"] > 95
    assert lstm.measured == {"test accuracy %": "not run"}
    assert lstm.source == {"test accuracy %": 85.4}
    short = dataclasses.replace(imdb.PRIVATE, epochs=6, expected_batch_size=64)
    for name, size in (("published size", 25_000), ("as run", 400)):
        epsilon = short.mechanism(size, "one review").certificate(1e-5).epsilon
        assert noisy.certified[f"ε, {name}"] == epsilon
    assert "one review" in noisy.certificate
    assert noisy.note.startswith("Made up.")

    again = run(private, tmp_path, expected_batch_size=64, **SHORT)  # from its last checkpoint
    assert (again.measured, again.series) == (noisy.measured, noisy.series)

    trained = dataclasses.replace(noisy, row="NoisyAdam, padding trained")
    (figure,) = draw_figures(imdb.EXPERIMENT, [noisy, free, trained, lstm], tmp_path)
    assert figure.path.stat().st_size > 10_000
    remarks = " ".join(imdb.EXPERIMENT.remarks([noisy, free, trained, lstm]))
    for words in (
        "no ε accounts for it",
        "overfits",
        "padding as a zero vector",
        "expected batch size",
    ):
        assert words in remarks


def test_drowned_in_noise_nothing_is_learned(made_up, tmp_path):
    model = MeanEmbeddingClassifier(10_000)
    problem = Problem(model, optax.adam, imdb._data(), "one review", imdb.PUBLISHED_SIZE)
    changes = {"noise_multiplier": 1000.0, "expected_batch_size": 64}
    settings = dataclasses.replace(imdb.PRIVATE, **SHORT, **changes)
    (drowned,) = fit(problem, settings, tmp_path)
    assert 35 < drowned.curve[-1][1] < 65
