"""Rehearsals choose without the records; runs on the records, and the checks of what they say."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from helpers.quick import slow_except

from dpjax.rehearsal import Setting, World
from experiments.data import load_stand_in
from experiments.lib.registry import Record
from experiments.rehearsal import settings, tasks


def test_grid_has_fifty_settings_and_the_defaults_are_the_documented_ones():
    some = settings.Settings(task="Wine", clips=tasks.TASKS["Wine"].clips)
    assert len(set(settings.grid_of(some, 3_918))) == 50
    assert settings.defaults(6_400) == Setting(100, 10.0, 1.0, 2e-3)


@pytest.mark.parametrize("name", slow_except(["Abalone"], tasks.TASKS))
def test_worlds_are_made_without_the_records(name, monkeypatch):
    def refuse(**options):
        raise AssertionError("records were read")

    monkeypatch.setattr(tasks, "_load", refuse)
    task = tasks.TASKS[name]
    world = task.world(100, 14 if task.data else 3)(jax.random.key(0))
    assert {len(leaf) for leaf in jax.tree.leaves(world.records)} == {100}
    if task.data:  # power: the records are read by what is refused here
        with pytest.raises(AssertionError, match="records were read"):
            task.real()


@pytest.mark.parametrize("name", slow_except(["hierarchical regression"], tasks.TASKS))
def test_worlds_have_the_form_of_the_records(name, monkeypatch):
    monkeypatch.setattr(tasks, "_load", lambda name, **options: load_stand_in(name))
    task = tasks.TASKS[name]
    real = task.real()
    num_examples, size = settings._size(real)
    world = task.world(num_examples, size)(jax.random.key(0))
    assert jax.tree.map(jnp.shape, world.records) == jax.tree.map(jnp.shape, real.records)
    for name, value in real.truth.items():
        assert world.truth[name].shape == value.shape


@pytest.mark.slow
def test_features_of_worlds_are_those_described():
    one_of_each = tasks._one_of_each(jax.random.key(0), 500, 123)
    np.testing.assert_array_equal(one_of_each.sum(1), 14)
    assert set(np.unique(one_of_each)) == {0.0, 1.0}
    correlated = np.stack([tasks._correlated(jax.random.key(i), 500, 4).std(0) for i in range(20)])
    np.testing.assert_allclose(correlated.mean(), 1.0, atol=0.05)


def test_records_unlike_the_prior_are_as_stated():
    counts = tasks.counts_unlike_the_prior(20_000)
    means = np.exp(np.asarray(counts.records["x"] @ counts.truth["weights"]))
    y = np.asarray(counts.records["y"])
    # Gamma factors of shape 2: variances are m + m^2 / 2; those of a Poisson model are m.
    dispersion = np.mean((y - means) ** 2 - means) / np.mean(means**2)
    assert dispersion == pytest.approx(0.5, abs=0.15)
    np.testing.assert_allclose(np.abs(counts.truth["weights"]) / 0.4, 2.0, rtol=1e-6)
    groups = tasks.groups_unlike_the_prior()
    assert set(np.unique(groups.truth["intercepts"])) == {-2.0, 2.0}


@pytest.fixture(scope="module")
def line():
    """A world of 640 answers that one feature decides, and settings for it."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(1_000, 2)).astype(np.float32)
    parts = [
        {"x": jnp.asarray(x[part]), "y": jnp.asarray(x[part, 0] > 0.2, jnp.int32)}
        for part in (slice(640), slice(640, None))
    ]
    return World(*parts), settings.Settings(task="Abalone", clips=(1.0,), epsilon=8.0, seeds=(0,))


@pytest.mark.slow
def test_evaluate_ranks_settings_by_held_out_error(line):
    world, some = line
    candidates = [
        Setting(80, 20.0, 1.0, 0.1),
        Setting(80, 20.0, 1.0, 0.0),  # does not move, and a zero logit is the answer no
    ]
    errors, constant = settings.evaluate(some, candidates, world)
    rarer = float(np.mean(world.fresh["y"]))
    assert errors.shape == (1, 2)
    assert errors[0, 0] < 0.12
    assert errors[0, 1] == pytest.approx(rarer)
    assert constant == pytest.approx(min(rarer, 1 - rarer))


@pytest.mark.slow
def test_evaluate_has_an_infinite_error_where_a_run_has_none(line):
    world, some = line
    broken = world._replace(fresh={**world.fresh, "x": jnp.full_like(world.fresh["x"], jnp.inf)})
    wine = dataclasses.replace(some, task="Wine")
    errors, _ = settings.evaluate(wine, [Setting(80, 1.0, 1.0, 0.1)], broken)
    assert math.isinf(errors.item())


def test_posteriors_of_half_the_variance_are_flagged():
    some = settings.CalibrationSettings(num_worlds=50, num_entries=5, repeats=100)

    # Exact ones in at most 2 %: seven of a hundred or more have a chance of 0.1 %.
    assert settings.flagged(some, 1.0).sum() < 7
    assert settings.flagged(some, 0.5).mean() > 0.95
    # Power: a slightly narrow posterior is between both, so both assertions can fail.
    assert 0.07 < settings.flagged(some, 0.8).mean() < 0.95


def record(task, rehearsed, best):
    measured = {"error, rehearsed": rehearsed, "error, best of 50": best}
    return Record("rehearsal_settings", task, "quick", {"task": task}, {}, measured, {}, 1.0)


@pytest.mark.parametrize(
    ("task", "rehearsed", "best", "expected"),
    [
        ("Abalone", 0.239, 0.23, True),
        ("Abalone", 0.241, 0.23, False),
        ("Wine", 0.82, 0.8, True),
        ("Wine", 0.85, 0.8, False),
        ("Poisson regression", 0.05, 0.1, True),
    ],
)
def test_is_near_best_within_a_point_or_five_percent(task, rehearsed, best, expected):
    assert settings.is_near_best(record(task, rehearsed, best)) is expected
