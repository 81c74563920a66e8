"""``train`` runs what the mechanism describes, within the budget, on any tree of parameters."""

import re

import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism, linear_records
from helpers.inputs import squared_error as loss

import dpjax
from dpjax import datasets
from dpjax.sampling import PoissonSampling, ShuffledEpochs
from dpjax.training import Budget, private_step, train

KEY = jax.random.key(0)
DELTA = 1e-3
DATA = linear_records()
MECHANISM = gaussian_mechanism(noise_multiplier=2.0, num_steps=10)


def run(params=None, mechanism=MECHANISM, key=KEY, data=DATA, loss=loss, **options):
    params = {"w": jnp.zeros(3)} if params is None else params
    options = {"optimizer": optax.sgd(0.1), "steps_per_call": 4, "progress": False, **options}
    return train(key, loss, params, data, mechanism=mechanism, **options)


@pytest.mark.slow
def test_train_is_its_steps():
    result = run()
    step = private_step(loss, optax.sgd(0.1), mechanism=MECHANISM, key=KEY)
    update, state = jax.jit(step.update), step.init({"w": jnp.zeros(3)})
    for _ in range(10):
        state, _ = update(state, DATA)
    np.testing.assert_allclose(result.params["w"], state.params["w"], rtol=1e-6)
    assert result.mechanism == MECHANISM
    assert result.certificate(DELTA).epsilon == MECHANISM.certificate(DELTA).epsilon


@pytest.mark.slow
def test_train_does_not_depend_on_steps_per_call():
    results = [run(steps_per_call=n).params["w"] for n in (1, 4, 100)]
    assert all((other == results[0]).all() for other in results)


@pytest.mark.slow
def test_train_depends_on_the_key():
    assert (run().params["w"] != run(key=jax.random.key(1)).params["w"]).any()


@pytest.mark.slow
def test_train_leaves_parameters_and_data_of_the_caller_alone():
    params, data = {"w": jnp.zeros(3)}, jax.device_put(DATA)
    first, second = (run(params=params, data=data) for _ in range(2))
    assert params["w"].tolist() == [0, 0, 0]
    assert data[0].shape == (40, 3)
    assert (first.params["w"] == second.params["w"]).all()


@pytest.mark.slow
def test_train_takes_optimizers_whose_state_is_the_parameters():
    # Their state holds one buffer twice, which may not be donated twice.
    with jax.numpy_dtype_promotion("standard"):
        result = run(optimizer=optax.contrib.prodigy())
    assert np.isfinite(result.params["w"]).all()
    assert (result.params["w"] != 0).all()  # from zero, along noisy sums


class Linen(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(1)(nn.tanh(nn.Dense(4)(x)))[..., 0]


def linen_model():
    model = Linen()

    def loss(params, example):
        x, y = example
        return (model.apply({"params": params}, x) - y) ** 2

    return loss, model.init(KEY, DATA[0][0])["params"]


def nnx_model():
    rngs = nnx.Rngs(0)
    model = nnx.Sequential(nnx.Linear(3, 4, rngs=rngs), nnx.tanh, nnx.Linear(4, 1, rngs=rngs))
    graph, params = nnx.split(model, nnx.Param)

    def loss(params, example):
        x, y = example
        return (nnx.merge(graph, params)(x)[0] - y) ** 2

    return loss, params


def bfloat16_model():
    def half_loss(params, example):
        x, y = example
        return (x.astype(jnp.bfloat16) @ params["w"] - y.astype(jnp.bfloat16)) ** 2

    return half_loss, {"w": jnp.zeros(3, jnp.bfloat16)}


@pytest.mark.slow
@jax.numpy_dtype_promotion("standard")  # half precision is widened on purpose
@pytest.mark.parametrize("model", [linen_model, nnx_model, bfloat16_model])
def test_train_returns_the_tree_of_the_parameters(model):
    model_loss, params = model()
    result = run(params=params, loss=model_loss)
    assert jax.tree.structure(result.params) == jax.tree.structure(params)
    for trained, before in zip(*map(jax.tree.leaves, (result.params, params)), strict=True):
        assert (trained.shape, trained.dtype) == (before.shape, before.dtype)
        assert jnp.isfinite(trained).all()
        assert (trained != before).any()


@pytest.mark.slow
def test_train_reports_after_each_call():
    reports = []
    result = run(on_report=reports.append)
    assert [report.num_releases for report in reports] == [4, 8, 10]
    assert [report.infos.batch_size.shape for report in reports] == [(4,), (4,), (2,)]
    slots = MECHANISM.sampling.physical_batch_size
    assert [r.infos.norms.shape for r in reports] == [(n, slots) for n in (4, 4, 2)]
    assert (reports[-1].params["w"] == result.params["w"]).all()
    for report in reports:  # none was donated to a later call
        assert np.isfinite(report.params["w"]).all()
        assert (report.infos.mask.sum(axis=1) == report.infos.batch_size).all()
    assert (reports[0].params["w"] != reports[1].params["w"]).any()


@pytest.mark.slow
def test_train_ends_with_an_error_of_on_report():
    def fail(report):
        raise RuntimeError("no more")

    with pytest.raises(RuntimeError, match="no more"):
        run(on_report=fail)


@pytest.mark.slow
def test_train_shows_steps_alone(capsys):
    run(progress=True)
    shown = capsys.readouterr()
    assert "10/10" in shown.err
    assert set(re.findall("[a-z]+", shown.err.lower())) <= {"step", "s"}
    assert shown.out == ""
    run()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "sampling",
    [PoissonSampling(40, 0.25), pytest.param(ShuffledEpochs(40, 15), marks=pytest.mark.slow)],
    ids=["poisson", "shuffled"],
)
def test_train_stops_before_the_release_that_exceeds_its_budget(sampling):
    mechanism = gaussian_mechanism(
        sampling, noise_multiplier=2.0, num_steps=10, adjacency="replace_one"
    )
    epsilon = 1.001 * mechanism.first_steps(6).certificate(DELTA).epsilon
    result = run(mechanism=mechanism, budget=Budget(epsilon, DELTA))
    assert result.mechanism == mechanism.first_steps(6)
    assert result.certificate(DELTA).epsilon <= epsilon
    assert mechanism.first_steps(7).certificate(DELTA).epsilon > epsilon
    assert run(mechanism=mechanism, budget=Budget(1000.0, DELTA)).mechanism == mechanism
    whole = []
    run(mechanism=mechanism, on_report=whole.append, steps_per_call=6)
    assert (result.params["w"] == whole[0].params["w"]).all()


@pytest.mark.slow
def test_train_refuses_a_budget_below_one_release():
    first = MECHANISM.first_steps(1).certificate(DELTA).epsilon
    with pytest.raises(ValueError, match="budget must admit at least one release") as refused:
        run(budget=Budget(0.99 * first, DELTA))
    assert f"epsilon = {first:.4g}" in str(refused.value)
    with pytest.raises(ValueError, match="delta must be in"):
        run(budget=Budget(1.0, 0.0))


@pytest.mark.slow
def test_certificate_of_a_seeded_run_names_the_seed():
    seeded, secret = run(), run(key=dpjax.release_key())
    assert seeded.seeded
    assert not secret.seeded
    caveats = seeded.certificate(DELTA).caveats
    assert len(caveats) == len(secret.certificate(DELTA).caveats) + 1
    assert "protects nobody" in caveats[-1]
    assert "protects nobody" in str(seeded.certificate(DELTA))
    assert "protects nobody" not in str(secret.certificate(DELTA))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"key": 0}, "key must be a scalar JAX key"),
        ({"data": jax.tree.map(lambda a: a[:-1], DATA)}, "data must have the 40 records .* got 39"),
        ({"data": (DATA[0], DATA[1][:-1])}, "data must have one batch length"),
        ({"data": (np.ma.masked_less(DATA[0], 0), DATA[1])}, "data must be an array without a ma"),
        ({"steps_per_call": 0}, "steps_per_call must be a whole number >= 1"),
        ({"loss": lambda params, example: params["w"]}, "loss"),
        ({"params": {"w": jnp.zeros(3, jnp.int32)}}, "float"),
        ({"microbatch_size": 0}, "microbatch_size must be a whole number >= 1"),
    ],
)
def test_train_refuses(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        run(**options)


def test_train_refuses_arguments_in_another_order_for_the_key():
    with pytest.raises(TypeError, match=r"key must be a scalar JAX key .* got <function"):
        train(loss, {"w": jnp.zeros(3)}, DATA, MECHANISM, KEY, mechanism=optax.sgd(0.1))


class Dense(nn.Module):
    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x)))


def accuracy(digits, noise_multiplier, seed) -> float:
    """Of a model trained for 120 steps on the digits' own 8x8 pixels, on the held-out digits."""

    def loss(params, example):
        logits = model.apply({"params": params}, example[0])
        return optax.softmax_cross_entropy_with_integer_labels(logits, example[1])

    model, (key, init_key) = Dense(), jax.random.split(jax.random.key(seed))
    data, test = (
        (split.x[:, 2:-2:3, 2:-2:3, 0].reshape(len(split.y), 64), split.y)
        for split in (digits.train, digits.test)
    )
    mechanism = gaussian_mechanism(
        PoissonSampling(len(data[1]), 0.1), noise_multiplier=noise_multiplier, num_steps=120
    )
    params = model.init(init_key, data[0][0])["params"]
    result = run(params, mechanism, key, data, loss, optimizer=optax.sgd(1.0), steps_per_call=100)
    return float(np.mean(model.apply({"params": result.params}, test[0]).argmax(-1) == test[1]))


@pytest.mark.slow
def test_train_learns_nothing_at_a_noise_multiplier_of_1000():
    digits = datasets.load_digits()
    drowned = [accuracy(digits, 1000.0, seed) for seed in range(3)]
    # Ten classes of equal share: a network of noise guesses one in ten right. Single networks
    # scatter by 0.04 around that, so the mean of three is off by 0.1 less than once in 10,000.
    assert abs(np.mean(drowned) - 0.1) < 0.1
    assert accuracy(digits, 1.0, seed=0) > 0.7  # power
