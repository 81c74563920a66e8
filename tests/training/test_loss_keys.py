"""Losses with a key: one for each step and example, independent of the noise and the sampler."""

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import Crash, crash_at, gaussian_mechanism

import dpjax
from dpjax.sampling import FixedSizeSampling, PoissonSampling
from dpjax.training import private_step, train

KEY = jax.random.key(5)
N, WIDTH = 12, 64
DATA = jnp.ones((N, WIDTH))


def mechanism(sampling):
    return gaussian_mechanism(sampling, l2_clip=10.0, num_steps=6, adjacency="replace_one")


ALL = mechanism(FixedSizeSampling(N, N))
POISSON = mechanism(PoissonSampling(N, 0.5, physical_batch_size=4))


def plain_loss(params, example):
    return jnp.sum(params * example)


def dropout_loss(params, example, key):
    return jnp.sum(params * example * jax.random.bernoulli(key, 0.5, (WIDTH,)))


def words(key) -> bytes:
    return np.asarray(jax.random.key_data(key)).tobytes()


def masks_of(state, described) -> np.ndarray:
    """The dropout mask of each record in the next step, ``(N, WIDTH)``, if all are drawn."""
    step = private_step(
        dropout_loss, optax.sgd(1.0), mechanism=described, key=KEY, loss_takes_key=True
    )

    @jax.jit
    def params_after(data):
        return step.update(state, data)[0].params

    # The gradient of a record of ones is its mask, and that of a record of zeros is zero.
    one_record = jnp.eye(N)[:, :, None] * DATA
    moves = params_after(0 * DATA) - jax.lax.map(params_after, one_record)
    return np.rint(moves * described.sampling.expected_batch_size)


def started(described=ALL, loss=dropout_loss, key=KEY, **options):
    options = {"loss_takes_key": True, **options}
    step = private_step(loss, optax.sgd(1.0), mechanism=described, key=key, **options)
    return step, step.init(jnp.zeros(WIDTH))


@pytest.mark.slow
def test_loss_keys_differ_between_examples_and_steps():
    step, state = started()
    first = masks_of(state, ALL)
    state, _ = step.update(state, DATA)
    second = masks_of(state, ALL)
    assert set(np.unique(first)) == {0.0, 1.0}
    masks = {mask.tobytes() for mask in (*first, *second)}
    assert len(masks) == 2 * N  # two equal ones of 64 bits have a probability below 1e-16


@pytest.mark.slow
@pytest.mark.parametrize("physical_batch_size", [1, 4, 12])
def test_loss_keys_differ_between_slots_of_all_physical_batches(physical_batch_size):
    drawn = mechanism(PoissonSampling(N, 1.0, physical_batch_size=physical_batch_size))
    masks = masks_of(started(drawn)[1], drawn)
    assert len({mask.tobytes() for mask in masks}) == N


@pytest.mark.slow
def test_power_one_key_for_a_step_gives_every_example_one_mask():
    fixed = jax.random.key(1)
    loss = lambda params, example, key: dropout_loss(params, example, fixed)  # noqa: E731
    step, state = started(ALL, loss)
    summed = -(step.update(state, DATA)[0].params - step.update(state, 0 * DATA)[0].params)
    assert set(np.rint(np.asarray(summed)).tolist()) == {0.0, 1.0}  # the mean of N equal masks


def keys_of_a_run(step, state, data=DATA):
    """Keys of the sampler, the noise and the loss in six steps."""
    update, keys = jax.jit(step.update), []
    for number in range(6):
        loss_key = jax.random.fold_in(state.loss_key, number)
        keys += [state.sampler, *jax.random.split(state.sampler, 3)]
        keys += [state.optimizer[0].key, *jax.random.split(state.optimizer[0].key, 2), loss_key]
        parts = [jax.random.fold_in(loss_key, part) for part in range(3)]
        keys += [*parts, *(jax.random.fold_in(part, slot) for part in parts for slot in range(4))]
        state, _ = update(state, data)
    return keys


@pytest.mark.slow
def test_loss_keys_are_none_of_the_noise_or_the_sampler():
    step, state = started(POISSON)
    keys = keys_of_a_run(step, state)
    # The next key of a stream is the state of its next step.
    expected = len(keys) - 2 * 5
    assert len({words(key) for key in keys}) == expected
    # power: a loss key that is the noise's is seen
    keys = keys_of_a_run(step, state._replace(loss_key=state.optimizer[0].key))
    assert len({words(key) for key in keys}) < expected


@pytest.mark.slow
@pytest.mark.parametrize("partitionable", [True, False])
def test_loss_keys_change_neither_noise_nor_sampler(partitionable):
    with jax.threefry_partitionable(partitionable):
        with_key, without = (
            started(POISSON, loss, loss_takes_key=takes_key)
            for loss, takes_key in ((dropout_loss, True), (plain_loss, False))
        )
        zeros = jnp.zeros((N, WIDTH))
        ends = [jax.jit(step.update)(state, zeros)[0] for step, state in (with_key, without)]
        assert (ends[0].params == ends[1].params).all()  # pure noise
        for state in (with_key[1], without[1], *ends):
            assert words(state.sampler) != words(state.optimizer[0].key)
        three = [with_key[1].sampler, with_key[1].optimizer[0].key, with_key[1].loss_key]
        each = np.concatenate([np.asarray(jax.random.key_data(key)) for key in three])
        assert len(set(each.tolist())) == 6  # not a word in common
    assert without[1].loss_key is None
    assert len(jax.tree.leaves(without[1])) == len(jax.tree.leaves(with_key[1])) - 1


def test_loss_keys_are_uncorrelated_with_the_noise():
    def pair(seed):
        state = started(POISSON, key=jax.random.key(seed))[1]
        return state.optimizer[0].key, state.loss_key, state.sampler

    keys = jax.vmap(pair)(jnp.arange(200))
    noise, loss, sampler = (
        np.asarray(jax.vmap(lambda k: jax.random.normal(k, (50,)))(k)) for k in keys
    )
    limit = 5 / np.sqrt(200 * 50)  # five standard errors
    for other in (loss, sampler):
        assert abs(np.corrcoef(noise.ravel(), other.ravel())[0, 1]) < limit
    assert abs(np.corrcoef(loss.ravel(), sampler.ravel())[0, 1]) < limit
    assert np.corrcoef(noise.ravel(), noise.ravel())[0, 1] > limit  # power


def run(folder=None, key=KEY, loss=dropout_loss, params=None, **options):
    options = {"loss_takes_key": True, "steps_per_call": 2, "progress": False, **options}
    params = jnp.zeros(WIDTH) if params is None else params
    return train(
        key, loss, params, DATA, optax.sgd(0.1), mechanism=POISSON, checkpoint_dir=folder, **options
    )


@pytest.mark.slow
def test_train_with_loss_keys_resumes_to_the_same_masks(tmp_path):
    step = private_step(
        dropout_loss, optax.sgd(0.1), mechanism=POISSON, key=KEY, loss_takes_key=True
    )
    update, state = jax.jit(step.update), step.init(jnp.zeros(WIDTH))
    for _ in range(6):
        state, _ = update(state, DATA)
    straight = run()
    np.testing.assert_allclose(straight.params, state.params, rtol=1e-5, atol=1e-6)
    with pytest.raises(Crash):
        run(tmp_path, on_report=crash_at(4))
    resumed = run(tmp_path, key=dpjax.release_key())  # whoever resumes has another key
    assert (resumed.params == straight.params).all()
    # power: with other masks the end is another one
    fixed = lambda params, example, key: dropout_loss(params, example, KEY)  # noqa: E731
    assert (run(loss=fixed).params != straight.params).any()


class Net(nnx.Module):
    def __init__(self, rngs):
        self.drop = nnx.Dropout(0.5, rngs=rngs)
        self.weight = nnx.Param(jnp.zeros(WIDTH))

    def __call__(self, x):
        return jnp.sum(self.drop(x) * self.weight[...])


@pytest.mark.slow
def test_train_starts_the_streams_of_a_module_from_the_key():
    def by_hand(params, example, key):
        drop = nnx.Dropout(0.5, rngs=nnx.Rngs(0))
        drop.rngs = nnx.RngStream(jax.random.fold_in(key, 0), tag="dropout")
        return jnp.sum(drop(example) * params)

    module = run(params=Net(nnx.Rngs(0)), loss=lambda model, example, key: model(example))
    tree = run(loss=by_hand)
    np.testing.assert_allclose(module.params["weight"][...], tree.params, rtol=1e-5, atol=1e-6)
    with pytest.raises(ValueError, match=r"random streams.*loss_takes_key=True"):
        run(params=Net(nnx.Rngs(0)), loss=lambda model, x: model(x), loss_takes_key=False)
