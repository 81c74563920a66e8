"""Students: what is labelled and what is not, and what unlabelled inputs add."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax.pate import NO_ANSWER
from experiments.pate.student import random_affine, train_student

KEY = jax.random.key(0)
_ANGLES = np.random.default_rng(0).uniform(0, np.pi, 600)
CLASSES = np.arange(600) % 2
# Two interleaved half circles, of which a few inputs of each are labelled.
MOONS = np.stack([np.cos(_ANGLES), np.sin(_ANGLES)], axis=1)
MOONS = np.where(CLASSES[:, None] == 0, MOONS, np.array([1.0, 0.5]) - MOONS)
MOONS = (MOONS + np.random.default_rng(1).normal(0, 0.08, (600, 2))).astype(np.float32)
FEW = np.where(np.arange(600) < 12, CLASSES, NO_ANSWER)


def apply_fn(params, x):
    hidden = jnp.tanh(x @ params["in"] + params["bias"])
    return hidden @ params["out"]


def initial():
    keys = jax.random.split(KEY, 2)
    widths = {"in": (2, 32), "out": (32, 2)}
    drawn = zip(widths, keys, widths.values(), strict=True)
    return {"bias": jnp.zeros(32)} | {n: jax.random.normal(k, s) / s[0] ** 0.5 for n, k, s in drawn}


def jitter(key, x):
    return x + 0.15 * jax.random.normal(key, x.shape)


def train(inputs=MOONS, labels=FEW, **settings):
    given = {"num_steps": 400, "augment_fn": jitter, "progress": False, **settings}
    return train_student(KEY, apply_fn, initial(), inputs, labels, optax.adam(0.01), **given)


def accuracy(params):
    return float(np.mean(np.argmax(apply_fn(params, MOONS), axis=1) == CLASSES))


@pytest.fixture(scope="module")
def supervised():
    return train()


@pytest.fixture(scope="module")
def semi_supervised():
    return train(unlabeled_batch_size=128, confidence=0.8)


@pytest.mark.slow
def test_train_student_gains_from_unlabelled_inputs(supervised, semi_supervised):
    assert accuracy(semi_supervised) > accuracy(supervised) + 0.02
    assert accuracy(semi_supervised) > 0.95


def test_train_student_without_unlabelled_batches_uses_labelled_inputs_only(
    supervised, semi_supervised
):
    """Replaced by NaN, so that any use of an unlabelled input shows."""
    hidden = np.where((FEW == NO_ANSWER)[:, None], np.nan, MOONS)
    for one, other in zip(*map(jax.tree.leaves, (train(hidden), supervised)), strict=True):
        np.testing.assert_array_equal(one, other)
    # power: with them the others matter
    assert not np.isfinite(train(hidden, unlabeled_batch_size=128)["out"]).all()


def test_train_student_at_an_unreachable_confidence_is_supervised(supervised):
    found = train(unlabeled_batch_size=8, confidence=1 - 1e-7)
    for one, other in zip(*map(jax.tree.leaves, (found, supervised)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


def test_train_student_averages_the_parameters():
    """Linear in the step: gradient -1 throughout, so the parameter after step s is s + 1."""

    def linear(w, x):
        return jnp.stack([w * x, jnp.zeros_like(x)], axis=1)

    def constant_gradient():
        return optax.stateless(lambda updates, params: jax.tree.map(jnp.ones_like, updates))

    def run(decay):
        settings = {"num_steps": 4, "average_decay": decay, "progress": False}
        inputs, labels = jnp.ones(3), [0, 0, 0]
        return float(
            train_student(
                KEY, linear, jnp.zeros(()), inputs, labels, constant_gradient(), **settings
            )
        )

    assert run(0.0) == 4.0
    assert run(0.99) == pytest.approx(2.5)  # the mean of 1, 2, 3 and 4
    assert run(0.5) == pytest.approx(((1.5 + 3) / 2 + 4) / 2)


@pytest.mark.slow
def test_random_affine_moves_within_its_limits():
    image = jnp.zeros((1, 9, 9, 2)).at[0, 4, 4].set(jnp.array([1.0, 2.0]))
    none = {"max_shift": 0.0, "max_rotation": 0.0, "max_scale": 0.0, "max_shear": 0.0}
    np.testing.assert_allclose(random_affine(KEY, image, **none), image, atol=1e-6)
    batch = jnp.tile(image, (50, 1, 1, 1))
    moved = random_affine(KEY, batch, **(none | {"max_shift": 2.0}))
    # bilinear interpolation keeps the mass and its mean
    np.testing.assert_allclose(moved.sum((1, 2)), np.tile([1.0, 2.0], (50, 1)), rtol=1e-5)
    rows = (moved[..., 0].sum(axis=2) * jnp.arange(9)).sum(axis=1) - 4
    assert np.all(np.abs(rows) <= 2.0)
    assert np.std(rows) == pytest.approx(2 / 3**0.5, abs=0.4)
    turned = random_affine(KEY, batch, **(none | {"max_rotation": 1.0, "max_shear": 0.3}))
    np.testing.assert_allclose(turned[:, 4, 4], batch[:, 4, 4], rtol=1e-5)


@pytest.mark.parametrize("wrong", [NO_ANSWER, 2, -2, np.nan])
def test_train_student_refuses_labels(wrong):
    """None that is a class, or one that is neither a class nor no answer."""
    labels = np.where((FEW if wrong == NO_ANSWER else 0) == FEW, wrong, FEW)
    with pytest.raises(ValueError, match=r"labels must be classes 0 .. 1, of at least one input"):
        train(labels=labels)
