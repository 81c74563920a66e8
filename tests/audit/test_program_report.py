"""The check of programs on steps of dpjax and of optax, its report, and its errors."""

import json

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax.audit import check_program
from dpjax.bayes.sgmcmc import SGHMC, SGLD
from dpjax.bayes.variational import DPSVI
from dpjax.training import private_step

KEY = jax.random.key(0)
NOISE = 1.1
NUM_EXAMPLES = 6
DATA = (jax.random.normal(KEY, (NUM_EXAMPLES, 4)), jnp.ones(NUM_EXAMPLES))
PARAMS = {"w": jnp.zeros(4), "b": jnp.zeros(())}
SAMPLING = dpjax.PoissonSampling(NUM_EXAMPLES, 0.5)
# The state of the sampler, and statistics of the batch.
PRIVATE = ("[1]", "[0].sampler")


def loss(params, example):
    x, y = example
    return (x @ params["w"] + params["b"] - y) ** 2


def mechanism(**options):
    options = {"l2_clip": 0.5, "noise_multiplier": NOISE, "num_steps": 10, **options}
    return dpjax.SubsampledGaussian(SAMPLING, adjacency="add_remove", **options)


def check_step(step, *, noise_multiplier=NOISE, **options):
    state = step.init(PARAMS)
    return check_program(
        step.update,
        state,
        DATA,
        records=1,
        noise_multiplier=noise_multiplier,
        adjacency="add_remove",
        private_outputs=PRIVATE,
        **options,
    )


@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
def test_a_private_step_is_shown(method):
    step = private_step(loss, optax.adam(0.1), mechanism=mechanism(), key=KEY, method=method)
    report = check_step(step)
    assert report.verdict == "shown"
    assert report.noise_multiplier == pytest.approx(NOISE, rel=1e-5)
    assert report.trusted == ("the sum over a sampled batch of dpjax.training",)


def test_power_less_noise_than_declared_is_a_violation():
    step = private_step(loss, optax.adam(0.1), mechanism=mechanism(), key=KEY)
    report = check_step(step, noise_multiplier=1.2)
    assert report.verdict == "violated"
    assert "the noise multiplier is 1.1, and 1.2 is declared" in report.findings[0].reason


def test_power_statistics_of_the_batch_are_private():
    step = private_step(loss, optax.adam(0.1), mechanism=mechanism(), key=KEY)
    report = check_program(
        step.update,
        step.init(PARAMS),
        DATA,
        records=1,
        noise_multiplier=NOISE,
        adjacency="add_remove",
        private_outputs=PRIVATE[1:],
    )
    assert report.verdict != "shown"
    assert any(one.outputs and "[1]" in one.outputs[0] for one in report.findings)


@pytest.mark.parametrize("sampler", [SGLD, SGHMC])
def test_steps_of_langevin_samplers_are_shown(sampler):
    options = {"friction": 0.1} if sampler is SGHMC else {}
    chain = sampler(
        SAMPLING, l2_clip=0.5, step_size=0.1, num_steps=10, adjacency="add_remove", **options
    )
    optimizer = chain.optimizer(None, key=jax.random.key(1))
    step = private_step(loss, optimizer, mechanism=chain.gaussian, key=KEY)
    assert check_step(step, noise_multiplier=float(chain.noise_multipliers[0])).verdict == "shown"


def model(x, y):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
    with numpyro.plate("records", len(y), subsample_size=len(y)):
        numpyro.sample("y", dist.Normal(x @ weights, 1.0), obs=y)


@pytest.mark.slow
@pytest.mark.parametrize(("gradient", "expected"), [("aligned", "shown"), ("plain", "not decided")])
def test_steps_of_dpsvi(gradient, expected):
    svi = DPSVI(
        model, AutoNormal(model), optax.adam(0.05), mechanism=mechanism(), gradient=gradient
    )
    report = check_program(
        svi.update,
        svi.init(KEY, *DATA),
        *DATA,
        records=(1, 2),
        noise_multiplier=NOISE,
        adjacency="add_remove",
        private_outputs=PRIVATE,
    )
    assert report.verdict == expected


def own_loop(mask_is_passed, sampling):
    gradient = dpjax.clipped_grad(loss, l2_clip=0.5)
    optimizer = optax.chain(
        dpjax.add_gaussian_noise(noise_multiplier=NOISE, l2_clip=0.5, key=KEY),
        optax.scale(1 / sampling.expected_batch_size),
        optax.adam(0.05),
    )

    def step(params, state, sampler, data):
        draw, sampler = sampling.draw(sampler)
        batch = sampling.batch(draw, 0)
        examples = jax.tree.map(lambda leaf: leaf[batch.indices], data)
        summed, _ = gradient(params, examples, batch.mask if mask_is_passed else None)
        updates, state = optimizer.update(summed, state, params)
        return optax.apply_updates(params, updates), state, sampler

    return step, (PARAMS, optimizer.init(PARAMS), sampling.init(jax.random.key(1)), DATA)


@pytest.mark.parametrize("mask_is_passed", [True, False])
def test_a_loop_by_hand_is_shown_if_it_passes_the_mask(mask_is_passed):
    sampling = dpjax.TruncatedPoissonSampling(NUM_EXAMPLES, 0.5)
    step, args = own_loop(mask_is_passed, sampling)
    report = check_program(
        step,
        *args,
        records=3,
        noise_multiplier=NOISE,
        adjacency="zero_out",
        private_outputs=["[2]"],
    )
    assert (report.verdict == "shown") == mask_is_passed


@pytest.mark.parametrize(("adjacency", "expected"), [("zero_out", "shown"), ("add_remove", None)])
def test_the_aggregate_of_optax_divides_by_the_number_of_rows(adjacency, expected):
    aggregate = optax.contrib.differentially_private_aggregate(0.5, NOISE, KEY)

    def step(params, state, data):
        gradients = jax.vmap(jax.grad(loss), (None, 0))(params, data)
        updates, state = aggregate.update(gradients, state)
        return optax.apply_updates(params, updates), state

    report = check_program(
        step,
        PARAMS,
        aggregate.init(PARAMS),
        DATA,
        records=2,
        noise_multiplier=NOISE,
        adjacency=adjacency,
    )
    assert report.verdict == (expected or "violated")
    if expected is None:
        finding = report.findings[0]
        assert "a constant depends on the number of records" in finding.reason
        assert finding.where.startswith("_privacy.py:")


def bounded_sum(key, data):
    return jnp.clip(data, -1, 1).sum() + 2 * jax.random.normal(key)


def test_the_report_is_printed_and_has_values():
    records = jnp.arange(4.0)
    given = {"records": 1, "noise_multiplier": 2.0, "adjacency": "zero_out"}
    shown = check_program(bounded_sum, KEY, records, **given)
    assert str(shown).startswith("Shown: records reach the results only through clipped sums")
    assert "at least 2 (declared: 2) under zero_out" in shown.paragraph()
    wrong = check_program(
        lambda key, data: bounded_sum(key, data) / data.sum(), KEY, records, **given
    )
    assert wrong.verdict == "violated"
    assert "test_program_report.py" in str(wrong)
    values = json.loads(json.dumps(wrong.to_dict()))
    assert values["verdict"] == "violated"
    assert values["findings"][0]["is_violation"]


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"records": 2}, "records must be the position of an argument, 0 to 1, got 2"),
        ({"records": ()}, "records must be at least one position"),
        ({"records": 0}, "records must be arrays of one length"),
        ({"adjacency": "near"}, "adjacency"),
        ({"noise_multiplier": -1.0}, "noise_multiplier"),
    ],
)
def test_arguments_out_of_range_are_named(changed, message):
    given = {"records": 1, "noise_multiplier": 2.0, "adjacency": "zero_out", **changed}
    with pytest.raises(ValueError, match=message):
        check_program(bounded_sum, KEY, jnp.arange(4.0), **given)


def test_one_record_is_not_enough():
    given = {"records": 1, "noise_multiplier": 2.0, "adjacency": "zero_out"}
    with pytest.raises(ValueError, match="records must be at least two records, got 1"):
        check_program(bounded_sum, KEY, jnp.ones(1), **given)
