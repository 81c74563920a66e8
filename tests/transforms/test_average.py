"""The average of the parameters: its closed form, in runs, and beside other transformations."""

import dataclasses

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import Crash, crash_at, gaussian_mechanism, linear_records, squared_error

from dpjax import PoissonSampling, mechanism_of, noisy_sgd, train
from dpjax.transforms import params_ema

KEY = jax.random.key(0)
STEPS = 300
MOVES = np.random.default_rng(0).normal(size=(STEPS, 3)).astype(np.float32)


def weighted(values, decay):
    """The average by its definition, in double precision."""
    ages = np.arange(len(values))[::-1]
    weights = decay ** ages.astype(float)
    return np.average(np.float64(values), axis=0, weights=weights)


def average_of_walk(transformation):
    """Parameters after each update, and the average after the last one."""

    def step(carry, move):
        params, state = carry
        updates, state = transformation.update({"w": move}, state, params)
        params = optax.apply_updates(params, updates)
        return (params, state), params["w"]

    start = {"w": jnp.full(3, 100.0)}  # no weight in the average
    (_, state), walk = jax.jit(
        lambda moves: jax.lax.scan(step, (start, transformation.init(start)), moves)
    )(MOVES)
    return walk, optax.tree.get(state, "average")["w"]


@pytest.mark.parametrize("decay", [0.5, 0.99, 0.99999, 1.0])
def test_average_has_its_closed_form(decay):
    walk, average = average_of_walk(params_ema(decay))
    np.testing.assert_allclose(average, weighted(walk, decay), rtol=2e-6)
    if decay > 0.5:  # power: another decay is seen
        assert not np.allclose(average, weighted(walk, 0.9 * decay), rtol=1e-3)


def test_average_is_that_of_optax():
    walk, average = average_of_walk(params_ema(0.9))
    ema = optax.ema(0.9)
    state = ema.init(walk[0])
    for params in walk:
        expected, state = ema.update(params, state)
    np.testing.assert_allclose(average, expected, rtol=2e-6)


@jax.numpy_dtype_promotion("standard")  # as apply_updates needs
def test_average_of_half_precision():
    average, params = params_ema(0.999), {"w": jnp.ones(2, jnp.bfloat16)}
    state = average.init(params)
    for _ in range(20):
        updates, state = average.update({"w": jnp.full(2, 2**-7, jnp.bfloat16)}, state, params)
        assert updates["w"].dtype == jnp.bfloat16
        params = optax.apply_updates(params, updates)
    assert state.average["w"].dtype == jnp.float32
    expected = weighted(1 + 2.0**-7 * np.arange(1, 21), 0.999)
    np.testing.assert_allclose(state.average["w"], expected, rtol=1e-6)


def test_average_refuses():
    for decay in (0.0, 1.1, np.nan, "0.9"):
        with pytest.raises(ValueError, match=r"decay must be in \(0, 1\]"):
            params_ema(decay)
    average = params_ema(0.9)
    with pytest.raises(ValueError, match="params must be given to update"):
        average.update(jnp.ones(2), average.init(jnp.ones(2)))


def run(**options):
    params, mechanism = {"w": jnp.zeros(3)}, gaussian_mechanism(num_steps=6)
    optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), params_ema(0.8))
    options = {"mechanism": mechanism, "steps_per_call": 1, "progress": False, **options}
    return train(KEY, squared_error, params, linear_records(), optimizer, **options)


@pytest.mark.slow
def test_average_of_a_run(tmp_path):
    reports = []
    whole = run(on_report=lambda report: reports.append(report.params["w"]))
    average = optax.tree.get(whole.optimizer_state, "average")["w"]
    np.testing.assert_allclose(average, weighted(reports, 0.8), rtol=1e-5)
    with pytest.raises(Crash):
        run(checkpoint_dir=tmp_path, on_report=crash_at(3))
    resumed = run(checkpoint_dir=tmp_path)
    resumed_average = optax.tree.get(resumed.optimizer_state, "average")["w"]
    assert (resumed_average == average).all()
    assert (resumed.params["w"] == whole.params["w"]).all()


@pytest.mark.slow
def test_optimizer_state_is_that_of_the_optimizer_alone():
    result = run()
    optimizer = optax.chain(optax.sgd(0.1, momentum=0.9), params_ema(0.8))
    state = optimizer.init({"w": jnp.zeros(3)})
    assert jax.tree.structure(result.optimizer_state) == jax.tree.structure(state)
    for leaf in jax.tree.leaves(result.optimizer_state):
        assert not jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


@pytest.mark.slow
def test_average_of_a_module_updates_the_module():
    model = nnx.Linear(3, 1, rngs=nnx.Rngs(0))

    def loss(model, example):
        return (model(example[0])[0] - example[1]) ** 2

    result = train(
        KEY,
        loss,
        model,
        linear_records(),
        optax.chain(optax.sgd(0.1), params_ema(1.0)),
        mechanism=gaussian_mechanism(),
        progress=False,
    )
    average = optax.tree.get(result.optimizer_state, "average")
    nnx.update(model, average)
    assert (model.kernel[...] == average["kernel"][...]).all()
    assert (model.kernel[...] != result.params["kernel"][...]).any()


def test_mechanism_of_an_optimizer_with_an_average():
    optimizer = optax.chain(
        noisy_sgd(0.1, l2_clip=1.0, noise_multiplier=2.0, expected_batch_size=10.0, key=KEY),
        params_ema(0.9),
    )
    state = optimizer.init(jnp.zeros(3))
    _, state = optimizer.update(jnp.ones((4, 3)), state, jnp.zeros(3), mask=None)
    found = mechanism_of(state, sampling=PoissonSampling(40, 0.25), adjacency="add_remove")
    assert (found.num_steps, found.noise_multiplier) == (1, 2.0)


@pytest.mark.slow
def test_averages_of_optax_work_in_a_run():
    params, mechanism = {"w": jnp.zeros(3)}, gaussian_mechanism(num_steps=6)
    result = train(
        KEY,
        squared_error,
        params,
        linear_records(),
        optax.contrib.schedule_free_sgd(0.1),
        mechanism=mechanism,
        progress=False,
    )
    average = optax.contrib.schedule_free_eval_params(result.optimizer_state, result.params)["w"]
    assert np.isfinite(average).all()
    assert (average != result.params["w"]).all()


@pytest.mark.slow
def test_a_second_run_continues_the_optimizer_of_the_first():
    """Without noise and with all records in each batch, two runs are one."""
    mechanism = gaussian_mechanism(
        PoissonSampling(40, 1.0), noise_multiplier=0.0, num_steps=3, adjacency="zero_out"
    )
    optimizer = optax.adam(optax.linear_schedule(0.1, 0.01, 6))

    def steps(optimizer, params, num_steps):
        plan = dataclasses.replace(mechanism, num_steps=num_steps)
        data = linear_records()
        return train(KEY, squared_error, params, data, optimizer, mechanism=plan, progress=False)

    first = steps(optimizer, {"w": jnp.zeros(3)}, 3)
    onwards = optax.GradientTransformation(lambda _: first.optimizer_state, optimizer.update)
    second, whole = steps(onwards, first.params, 3), steps(optimizer, {"w": jnp.zeros(3)}, 6)
    np.testing.assert_allclose(second.params["w"], whole.params["w"], rtol=1e-5)
    anew = steps(optimizer, first.params, 3)  # power
    assert not np.allclose(anew.params["w"], whole.params["w"], rtol=1e-3)
