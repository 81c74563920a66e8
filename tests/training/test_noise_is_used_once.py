"""No noise is applied to two sums, whatever was lost in a crash and done again."""

import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import train
from dpjax.training.checkpoint import CheckpointStore
from dpjax.transforms import PrivateTransformation, add_gaussian_noise

DATA = np.random.default_rng(0).normal(size=(30, 3)).astype(np.float32)
MECHANISM = SubsampledGaussian(
    PoissonSampling(30, 0.3),
    l2_clip=1.0,
    noise_multiplier=2.0,
    num_steps=12,
    adjacency="add_remove",
)


class Crash(Exception):
    pass


def run(folder):
    train(
        jax.random.key(5),
        lambda params, x: jnp.sum((params["w"] - x) ** 2),
        {"w": jnp.zeros(3)},
        DATA,
        optax.sgd(0.1),
        mechanism=MECHANISM,
        steps_per_call=3,
        checkpoint_dir=folder,
        progress=False,
    )


def recording(monkeypatch):
    """Makes every run log (release, noise key, hash of the clipped sum) into its own state."""

    def noise(mechanism, key):
        inner = add_gaussian_noise(
            noise_multiplier=mechanism.noise_multiplier, l2_clip=mechanism.l2_clip, key=key
        )

        def update(updates, state, params=None, **_):
            words = jax.random.key_data(state.key)
            jax.debug.callback(log, state.num_releases, words, updates["w"])
            return inner.update(updates, state, params)

        return PrivateTransformation.of(inner.init, update, inner.description)

    def log(num_releases, words, summed):
        digest = hashlib.sha256(np.asarray(summed).tobytes()).hexdigest()
        applied.append((np.asarray(words).tobytes(), int(num_releases), digest))

    applied = []
    monkeypatch.setattr(SubsampledGaussian, "noise", noise)
    return applied


def reused(applied) -> set:
    """The noise keys that were applied to more than one sum."""
    sums = {}
    for words, _, digest in applied:
        sums.setdefault(words, set()).add(digest)
    return {words for words, digests in sums.items() if len(digests) > 1}


def run_until_done(folder, monkeypatch, save_fails_at):
    """Interrupts a run before its checkpoint is written, at each of these releases in turn."""
    save = CheckpointStore.save
    for fails_at in save_fails_at:
        monkeypatch.setattr(CheckpointStore, "save", _crashing(save, fails_at))
        with pytest.raises(Crash):
            run(folder)
    monkeypatch.setattr(CheckpointStore, "save", save)
    run(folder)
    jax.effects_barrier()


def _crashing(save, fails_at):
    def save_or_crash(store, state, num_releases):
        if num_releases >= fails_at:
            raise Crash
        save(store, state, num_releases)

    return save_or_crash


def test_no_noise_is_applied_to_two_sums(tmp_path, monkeypatch):
    applied = recording(monkeypatch)
    run_until_done(tmp_path, monkeypatch, save_fails_at=(3, 9))
    releases = [num_releases for _, num_releases, _ in applied]
    assert set(releases) == set(range(12))
    assert len(releases) > 12  # some were lost and done again
    assert reused(applied) == set()


def test_power_noise_that_is_replayed_on_other_gradients_is_seen(tmp_path, monkeypatch):
    applied = recording(monkeypatch)
    restore = CheckpointStore.restore

    def keys_alone(store, like):
        return restore(store, like)._replace(params=like.params)

    monkeypatch.setattr(CheckpointStore, "restore", keys_alone)
    run_until_done(tmp_path, monkeypatch, save_fails_at=(9,))
    assert reused(applied) != set()
