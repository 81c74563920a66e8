"""Settings side by side in one program do what each real run does."""

import dataclasses
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from flax import nnx
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import dpjax
from dpjax.bayes.variational import DPSVI
from dpjax.rehearsal import Inference, Setting, Training, World, prior_predictive
from dpjax.rehearsal.stepped_runs import SteppedRuns
from dpjax.rehearsal.steps import steps_of

NUM, BATCH, EPOCHS, EPSILON, DELTA = 400, 40, 3.0, 2.0, 1e-4
SETTINGS = [
    Setting(BATCH, EPOCHS, clip, rate) for clip in (0.1, 1.0, 20.0) for rate in (0.03, 0.1, 0.3)
]


def model(x, y):
    slope = numpyro.sample("slope", dist.Normal(0, 1).expand([2]).to_event(1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(x @ slope, 0.5), obs=y)


SIMULATE = prior_predictive(
    model,
    {"x": dist.Uniform(-1, 1).expand([2]).to_event(1)},
    observed=("y",),
    num_examples=NUM,
    num_fresh=50,
)


def loss(w, example):
    return (example["x"] @ w - example["y"]) ** 2


def stepped(method, simulate=SIMULATE, plans=((BATCH, EPOCHS),)):
    steps = steps_of(method)
    scale = steps.scale(SIMULATE, jax.random.key(9))
    return SteppedRuns(
        steps,
        simulate,
        plans,
        scale,
        num_examples=NUM,
        delta=DELTA,
        adjacency="zero_out",
        unit="one record",
    )


def mechanism_of(setting):
    return dpjax.dpsgd(
        num_examples=NUM, batch_size=setting.batch_size, epochs=setting.epochs, epsilon=EPSILON,
        delta=DELTA, l2_clip=setting.l2_clip, adjacency="zero_out",
    )  # fmt: skip


@pytest.mark.parametrize("optimizer", [pytest.param(optax.adam, marks=pytest.mark.slow), optax.sgd])
def test_each_setting_ends_where_train_ends(optimizer):
    method = Training(loss, jnp.zeros(2), optimizer)
    key = jax.random.key(5)
    errors, constant, _ = stepped(method).run(SETTINGS, [EPSILON] * len(SETTINGS), key)

    world_key, run_key = jax.random.split(key)
    world = SIMULATE(world_key)
    expected = []
    for setting in SETTINGS[::4]:
        result = dpjax.train(
            run_key, loss, jnp.zeros(2), world.records, optimizer(setting.learning_rate),
            mechanism=mechanism_of(setting), progress=False,
        )  # fmt: skip
        expected.append(steps_of(method).score_of(result.params, world.fresh))
    np.testing.assert_allclose(errors[::4], expected, rtol=1e-5)
    # Power: neighbouring settings differ by far more than that.
    assert np.min(np.abs(np.diff(np.sort(errors)))) > 1e-4
    np.testing.assert_allclose(constant, np.mean(world.fresh["y"] ** 2), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options", [{}, {"gradient": "aligned"}, {"release_clipped_share": True}], ids=str
)
def test_each_setting_ends_where_dpsvi_ends(options):
    method = Inference(model, optimizer=optax.sgd, **options)
    settings = [each._replace(learning_rate=each.learning_rate / 400) for each in SETTINGS[:4]]
    runs, key = stepped(method), jax.random.key(5)
    errors, _, _ = runs.run(settings, [EPSILON] * len(settings), key)

    world_key, run_key = jax.random.split(key)
    world = SIMULATE(world_key)
    scale = steps_of(method).scale(SIMULATE, jax.random.key(9))
    for setting, error in zip(settings, errors, strict=True):
        svi = DPSVI(
            model, method.guide(model), optax.sgd(setting.learning_rate),
            mechanism=mechanism_of(setting), **options,
        )  # fmt: skip
        result = svi.run(run_key, progress_bar=False, **world.records)
        draws = result.posterior_samples(jax.random.key(0), 100)
        _, std = scale["slope"]
        expected = jnp.sqrt(
            jnp.mean(((draws["slope"].mean((0, 1)) - world.truth["slope"]) / std) ** 2)
        )
        np.testing.assert_allclose(error, expected, rtol=1e-4)
    assert np.ptp(errors) > 1e-2


@pytest.mark.slow
@pytest.mark.parametrize("guide", [AutoNormal, AutoMultivariateNormal])
def test_noise_aware_draws_are_as_many_as_asked_and_around_the_truth(guide):
    method = Inference(model, guide=guide, posterior="noise-aware")
    world = SIMULATE(jax.random.key(2))
    mechanism = dataclasses.replace(mechanism_of(Setting(BATCH, 40.0, 20.0, 0.02)), epochs=None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems of the posterior
        draws = steps_of(method).posterior_draws(
            jax.random.key(3), mechanism, 0.02, world.records, 99
        )
    assert {name: each.shape for name, each in draws.items()} == {"slope": (99, 2)}
    away = np.abs(draws["slope"].mean(0) - world.truth["slope"])
    assert (away < 4 * draws["slope"].std(0)).all()


@pytest.mark.slow
def test_without_privacy_there_is_neither_noise_nor_clipping():
    method = Training(loss, jnp.zeros(2), optax.sgd)
    key = jax.random.key(5)
    errors, _, trace = stepped(method).run(SETTINGS[1:2], [np.inf], key)
    assert np.max(trace.clipped_share) == 0
    assert np.max(trace.noise_square) == 0

    # The same batches, by a loop of one's own.
    world_key, run_key = jax.random.split(key)
    world = SIMULATE(world_key)
    sampling = mechanism_of(SETTINGS[1]).sampling
    state, w = sampling.init(jax.random.split(run_key)[0]), jnp.zeros(2)
    for _ in range(30):
        draw, state = sampling.draw(state)
        for part in range(int(sampling.num_batches(draw))):
            indices, mask = sampling.batch(draw, part)
            batch = jax.tree.map(lambda leaf: leaf[indices], world.records)  # noqa: B023
            total = jax.grad(
                lambda w: jnp.sum(jax.vmap(lambda e: loss(w, e))(batch), where=mask)  # noqa: B023
            )(w)
            w = w - 0.1 * total / BATCH
    np.testing.assert_allclose(errors[0], steps_of(method).score_of(w, world.fresh), rtol=1e-4)


@pytest.mark.slow
def test_the_trace_is_that_of_the_steps():
    method = Training(loss, jnp.zeros(2), optax.sgd)
    setting = Setting(BATCH, EPOCHS, 0.5, 0.1)
    key = jax.random.key(5)
    _, _, trace = stepped(method).run([setting], [EPSILON], key)

    world_key, run_key = jax.random.split(key)
    records = SIMULATE(world_key).records
    mechanism = mechanism_of(setting)
    step = dpjax.private_step(loss, optax.sgd(0.1), mechanism=mechanism, key=run_key)
    state, shares, kept = step.init(jnp.zeros(2)), [], []
    for _ in range(mechanism.num_steps):
        state, info = jax.jit(step.update)(state, records)
        norms = np.asarray(info.norms)[np.asarray(info.mask)]
        shares.append(np.mean(norms > 0.5))
        kept.append(np.sum(np.minimum(norms, 0.5)) / np.sum(norms))
    np.testing.assert_allclose(trace.clipped_share[:, 0], shares, rtol=1e-5)
    np.testing.assert_allclose(trace.norm_lost[:, 0], 1 - np.array(kept), atol=1e-5)
    noise = 2 * (mechanism.noise_multiplier * 0.5 / BATCH) ** 2
    np.testing.assert_allclose(trace.noise_square[:, 0], noise, rtol=1e-5)
    # In 30 steps the mean squared norm of noisy gradients is above that of their noise, as a sum of
    # squares that do not cancel; without it the noise alone would be about this large.
    assert trace.noisy_square.mean() > noise


@pytest.mark.slow
def test_modules_and_further_plans_share_one_interface():
    class Net(nnx.Module):
        def __init__(self):
            self.dense = nnx.Linear(2, 1, rngs=nnx.Rngs(0))

        def __call__(self, x):
            return self.dense(x)[0]

    def module_loss(net, example):
        return (net(example["x"]) - example["y"]) ** 2

    method = Training(module_loss, Net(), optax.adam)
    plans = ((BATCH, 1.0), (BATCH, 4.0), (NUM, 4.0))
    runs = stepped(method, plans=plans)
    settings = [Setting(*plan, 1.0, 0.1) for plan in plans]
    errors, constant, _ = runs.run(settings, [EPSILON, np.inf, EPSILON], jax.random.key(1))
    assert np.all(errors < constant)
    # One setting alone, and twice, is the same.
    again, _, _ = runs.run([settings[1]] * 2, [np.inf] * 2, jax.random.key(1))
    np.testing.assert_allclose(again, errors[1], rtol=1e-5)


def test_the_noise_is_that_of_the_real_mechanism():
    runs = stepped(Training(loss, jnp.zeros(2)))
    assert runs.noise(SETTINGS[0], EPSILON) == mechanism_of(SETTINGS[0]).noise_multiplier
    assert runs.noise(SETTINGS[0], np.inf) == 0
    assert runs.mechanism(SETTINGS[0], EPSILON) == dataclasses.replace(
        mechanism_of(SETTINGS[0]), noise_multiplier=runs.noise(SETTINGS[0], EPSILON)
    )


@pytest.mark.slow
def test_a_step_is_timed_with_its_memory():
    runs = stepped(Training(loss, jnp.zeros(2)))
    seconds, size = runs.step_cost(SETTINGS[0], EPSILON)
    assert 0 < seconds < 60
    assert size > NUM * 3 * 4


@pytest.mark.slow
def test_private_noise_is_never_the_same_for_two_real_sums():
    """The guard that common random numbers pass by a key for each setting still holds elsewhere."""
    mechanism = dataclasses.replace(mechanism_of(SETTINGS[0]), tuning="on simulated records")
    step = dpjax.private_step(loss, optax.sgd(0.1), mechanism=mechanism, key=jax.random.key(0))
    records = SIMULATE(jax.random.key(0)).records

    def one(start):
        return step.update(step.init(start), records)[0].params

    with pytest.raises(ValueError, match="another one for each of the 3 sums"):
        jax.vmap(one)(jnp.ones((3, 2)))


@pytest.mark.slow
def test_worlds_hold_trees_of_any_kind():
    def simulate(key):
        return World((jnp.ones((NUM, 2)), jnp.ones(NUM)), (jnp.ones((5, 2)), jnp.ones(5)))

    method = Training(lambda w, e: (e[0] @ w - e[1]) ** 2, jnp.zeros(2), optax.sgd)
    errors, constant, _ = stepped(method, simulate).run(SETTINGS[:1], [np.inf], jax.random.key(0))
    assert errors[0] < constant
