"""Simulated worlds: what they hold, and that no array as long as the records is in them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

import dpjax
from dpjax.rehearsal import Inference, PublicRecords, Release, Training, World, prior_predictive

NUM = 300


def poisson_model(x, group, y, num_groups):
    slope = numpyro.sample("slope", dist.Normal(0, 0.1))
    with numpyro.plate("groups", num_groups):
        level = numpyro.sample("level", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("counts", dist.Poisson(jnp.exp(level[group] + slope * x)), obs=y)


def simulate_poisson():
    table = np.arange(50.0)
    return prior_predictive(
        poisson_model,
        {"x": table, "group": lambda key, n: jax.random.randint(key, (n,), 0, 4)},
        observed={"y": "counts"},
        num_examples=NUM,
        num_fresh=2000,
        num_groups=4,
    )


def test_the_prior_predictive_draws_the_model_that_it_is_given():
    world = simulate_poisson()(jax.random.key(3))
    assert {name: leaf.shape for name, leaf in world.records.items()} == {
        "x": (NUM,),
        "group": (NUM,),
        "y": (NUM,),
    }
    # The mean count of a group is exp(level + slope * x): within 5 standard errors.
    fresh, truth = world.fresh, world.truth
    assert set(truth) == {"slope", "level"}
    rates = np.exp(truth["level"][fresh["group"]] + truth["slope"] * fresh["x"])
    for group in range(4):
        own = np.asarray(fresh["group"] == group)
        error = np.sum(np.asarray(fresh["y"])[own]) - np.sum(np.asarray(rates)[own])
        assert abs(error) < 5 * np.sqrt(np.sum(np.asarray(rates)[own]))
    # Another key is another world, the same one the same.
    again, other = (simulate_poisson()(jax.random.key(seed)) for seed in (3, 4))
    assert jnp.array_equal(world.records["y"], again.records["y"])
    assert not jnp.array_equal(world.records["y"], other.records["y"])


@pytest.mark.slow
def test_columns_of_one_public_table_keep_their_rows_together():
    def model(a, b, y):
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(a + b, 1), obs=y)

    table = np.random.default_rng(0).normal(size=50)
    simulate = prior_predictive(
        model, {"a": table, "b": 2 * table}, observed=("y",), num_examples=NUM
    )
    records = simulate(jax.random.key(0)).records
    np.testing.assert_allclose(records["b"], 2 * records["a"])


@pytest.mark.slow
def test_an_observed_site_that_the_model_does_not_have_is_named():
    simulate = prior_predictive(
        poisson_model, {"x": np.ones(9), "group": np.zeros(9, int)}, observed=("y",),
        num_examples=NUM, num_groups=4,
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"observed must be one of the model's sites.*got 'y'"):
        simulate(jax.random.key(0))


@pytest.mark.slow
def test_public_records_are_never_measured_on_themselves():
    simulate = PublicRecords(jnp.arange(100.0), num_examples=NUM, fresh_share=0.3)
    for seed in range(5):
        world = simulate(jax.random.key(seed))
        assert len(world.records) == NUM
        assert len(world.fresh) == 30
        assert not set(world.records.tolist()) & set(world.fresh.tolist())


def rehearse(method=None, world=None, **changes):
    method = method or Training(lambda w, x: (w - x) ** 2, jnp.zeros(()), optax.sgd)
    world = world or (lambda key: World(jax.random.normal(key, (NUM,)), jnp.ones(5)))
    settings = {
        "num_examples": NUM, "epsilon": 1.0, "delta": 1e-4, "adjacency": "zero_out",
        "batch_size": 30, "epochs": 1, "l2_clip": [1.0], "learning_rate": [0.1], "num_worlds": 2,
        "progress": False,
    }  # fmt: skip
    return dpjax.rehearse(jax.random.key(0), method, world, **(settings | changes))


PRIVATE = np.arange(float(NUM))


def jitted(key):
    inner = jax.jit(lambda x: x + jnp.asarray(PRIVATE))
    return World(inner(jax.random.normal(key, (NUM,))), jnp.ones(5))


def scanned(key):
    def body(carry, _):
        return carry + jnp.asarray(PRIVATE).sum(), None

    total, _ = jax.lax.scan(body, 0.0, length=3)
    return World(total + jax.random.normal(key, (NUM,)), jnp.ones(5))


@pytest.mark.parametrize(
    "arguments",
    [
        {"world": lambda key: World(jnp.asarray(PRIVATE), jnp.ones(5))},
        {"world": lambda key: World(jax.random.normal(key, (NUM,)) + PRIVATE, jnp.ones(5))},
        {"world": jitted},
        {"world": scanned},
        {"method": Training(lambda w, x: (w - x) ** 2, jnp.zeros(NUM), optax.sgd)},
        {"method": Training(lambda w, x: w * jnp.mean(PRIVATE * x), jnp.zeros(()), optax.sgd)},
        {
            "method": Training(
                lambda w, x: (w - x) ** 2, jnp.zeros(()), optax.sgd,
                score=lambda w, fresh: jnp.mean((w - jnp.asarray(PRIVATE)) ** 2),
            )
        },
        {
            "method": Training(
                lambda w, x: (w - x) ** 2, jnp.zeros(()), optax.sgd,
                constant_score=lambda fresh: jnp.mean(jnp.asarray(PRIVATE) ** 2),
            )
        },
        {"method": Inference(poisson_model, model_kwargs={"scores": PRIVATE})},
        {
            "method": Release(
                lambda key, records, epsilon, column: column, lambda *_: 0.0, {"column": [PRIVATE]}
            ),
            "batch_size": None, "epochs": None, "l2_clip": None, "learning_rate": None,
        },
    ],
)  # fmt: skip
def test_an_array_as_long_as_the_records_is_refused_wherever_it_is(arguments):
    with pytest.raises(ValueError, match="as long as the records, num_examples = 300"):
        rehearse(**arguments)


@pytest.mark.parametrize(
    "build",
    [
        lambda: PublicRecords(PRIVATE, num_examples=NUM),
        lambda: prior_predictive(poisson_model, {"x": PRIVATE}, observed=("y",), num_examples=NUM),
        lambda: prior_predictive(
            poisson_model, {}, observed=("y",), num_examples=NUM, offsets=PRIVATE
        ),
    ],
)
def test_the_makers_of_worlds_refuse_it_too(build):
    with pytest.raises(ValueError, match="as long as the records, num_examples = 300"):
        build()


@pytest.mark.slow
def test_public_arrays_of_another_length_are_taken():
    table = jnp.arange(NUM + 1.0)  # the power of the tests above: one entry more is accepted
    result = rehearse(world=lambda key: World(jax.random.normal(key, (NUM,)) + table[0], table))
    assert result.setting.learning_rate == pytest.approx(0.1)


def test_worlds_of_another_kind_are_refused():
    with pytest.raises(ValueError, match=r"leading axis of num_examples = 300, got \[\(7,\)\]"):
        rehearse(world=lambda key: World(jnp.ones(7), jnp.ones(5)))
    with pytest.raises(TypeError, match="must be a World"):
        rehearse(world=lambda key: (jnp.ones(NUM), jnp.ones(5)))
    with pytest.raises(TypeError, match="JAX can trace"):
        rehearse(world=lambda key: World(np.asarray(jax.random.normal(key, (NUM,))), jnp.ones(5)))
