"""MNIST by two accounts: what is released, what is counted, and short rows run for real."""

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import bdp
from dpjax.training import private_step
from experiments.bdp import table
from experiments.bdp.table import EXAMPLES, MEAN, Settings, Task, train
from experiments.data import Split, load_data
from experiments.lib.models import accuracy_percent, cross_entropy


class Linear(nn.Module):
    """Softmax regression on small images."""

    num_classes: int = 10

    @nn.compact
    def __call__(self, images):
        return nn.Dense(self.num_classes)(images[:, ::4, ::4].reshape(len(images), -1))


@pytest.fixture(scope="module")
def digits():
    found = load_data("digits")
    parts = {part: Split(*(a[:300] for a in getattr(found, part))) for part in ("train", "test")}
    return dataclasses.replace(found, **parts, note="digits.")


def settings(way, **changes):
    common = {"learning_rate": 0.5, "epochs": 2, "published_epochs": 50, "batch_size": 60}
    return Settings(way, "sgd", **{**common, **changes})


@pytest.fixture(scope="module")
def private(digits, tmp_path_factory):
    task, folder = Task(Linear(), digits, "one image"), tmp_path_factory.mktemp("private")
    return train(settings(EXAMPLES, l2_clip=3.0, target=(2.0, 1e-5)), task, folder)


def test_clip_mean_clips_to_a_ball_and_adds_the_stated_noise():
    chosen = settings(MEAN, noise_std=0.1, l2_clip=2.0)
    chain = table.clip_mean(jax.random.key(0), chosen, chosen.mechanism(300, "one image"))
    long = {"w": jnp.zeros(40_000).at[0].set(50.0)}
    noisy, _ = chain.update(long, chain.init(long))
    assert noisy["w"][0] == pytest.approx(2.0, abs=0.5)
    # 40,000 draws: the standard deviation is within 1.5 % with probability 1 - 2e-5.
    assert float(noisy["w"][1:].std()) == pytest.approx(0.1, rel=0.015)


def first_step(chosen, digits):
    """Which weights the first step moves, and its `StepInfo`."""
    model = Linear()
    weights = model.init(jax.random.key(0), digits.train.x[:1])["params"]
    mechanism = chosen.mechanism(300, "one image")
    key = jax.random.key(1)
    program = table.make_program(key, chosen, cross_entropy(model), weights, mechanism)
    step = private_step(
        program.loss_fn, program.optimizer, mechanism=program.mechanism, key=program.key
    )
    state = step.init(program.params)
    state, info = jax.jit(step.update)(state, jax.device_put(tuple(digits.train)))
    moved = jax.tree.map(lambda old, new: old != new, weights, program.weights(state.params))
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(moved)]), info


def test_make_program_updates_and_counts_the_drawn_weights_only(digits):
    chosen = settings(EXAMPLES, noise_std=1.0, share_of_weights=0.25)
    moved, info = first_step(chosen, digits)
    assert moved.mean() == pytest.approx(0.25, abs=0.08)  # 500 weights: four deviations
    all_moved, all_info = first_step(dataclasses.replace(chosen, share_of_weights=1.0), digits)
    assert all_moved.mean() > 0.9
    np.testing.assert_array_equal(info.mask, all_info.mask)
    ratio = info.norms[info.mask] / all_info.norms[info.mask]
    assert 0.35 < float(ratio.mean()) < 0.65  # the square root of a quarter
    assert float(ratio.max()) < 1


def test_train_draws_weights_anew_in_each_step(digits, tmp_path):
    chosen = settings(EXAMPLES, noise_std=1.0, share_of_weights=0.25)
    task = Task(Linear(), digits, "one image")
    start = task.model.init(jax.random.split(jax.random.key(0), 3)[1], digits.train.x[:1])["params"]
    run = train(chosen, task, tmp_path)
    moved = jax.tree.map(lambda old, new: np.mean(old != new), start, run.weights)
    # In ten steps a weight stays with probability 0.75^10 = 0.056.
    assert all(share > 0.8 for share in jax.tree.leaves(moved))


@pytest.mark.parametrize(
    ("way", "lost", "noise"),
    [(MEAN, 2, {"noise_std": 0.5}), (EXAMPLES, 3, {"l2_clip": 3.0, "target": (2.0, 1e-5)})],
)
def test_train_resumes_to_the_same_network(digits, tmp_path, monkeypatch, way, lost, noise):
    chosen = settings(way, share_of_weights=0.5, epochs=4, **noise)
    task = Task(Linear(), digits, "one image")
    whole = train(chosen, task, tmp_path / "whole")

    def stop_while_reporting(model):
        accuracy, calls = accuracy_percent(model), iter(range(4))

        def evaluate(weights, data):
            if next(calls) == lost:
                raise KeyboardInterrupt
            return accuracy(weights, data)

        return evaluate

    with monkeypatch.context() as patch:
        patch.setattr(table, "accuracy_percent", stop_while_reporting)
        with pytest.raises(KeyboardInterrupt):
            train(chosen, task, tmp_path / "stopped")
    resumed = train(chosen, task, tmp_path / "stopped")
    jax.tree.map(np.testing.assert_array_equal, resumed.weights, whole.weights)
    # The epoch was saved and not reported: its norms count as the worst case.
    assert resumed.account.num_done == whole.account.num_done == 20
    assert np.all(resumed.account.costs >= whole.account.costs)
    assert np.any(resumed.account.costs > whole.account.costs)
    assert resumed.norms == [norms for i, norms in enumerate(whole.norms) if i != lost]
    assert resumed.curve[-1] == whole.curve[-1]
    assert set(resumed.curve) <= set(whole.curve)


def test_train_accounts_for_the_norms_that_were_drawn(private):
    mechanism = private.mechanism
    assert private.account.num_done == mechanism.num_steps == 10
    both = bdp.epsilon(private.account, 1e-5)
    assert both.dp <= 2.0
    worst = bdp.update_worst_case(bdp.init(mechanism, orders=table.ORDERS), 10)
    assert 0 < private.share_clipped < 1
    assert np.all(private.account.costs <= worst.costs * (1 + 1e-12))
    assert np.any(private.account.costs < 0.9999 * worst.costs)
    assert private.published.num_done == 0


def test_train_with_all_norms_clipped_has_the_worst_case_account(digits, tmp_path):
    chosen = settings(EXAMPLES, l2_clip=1e-3, noise_std=1e-3, epochs=1)
    run = train(chosen, Task(Linear(), digits, "x"), tmp_path)
    worst = bdp.update_worst_case(bdp.init(run.mechanism, orders=table.ORDERS), 5)
    assert run.share_clipped == 1.0
    np.testing.assert_allclose(run.account.costs, worst.costs, rtol=1e-10)
