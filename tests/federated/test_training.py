"""Trainings of gradients, chains and DPSVI: the functions of analyst and holders, and rounds."""

import contextlib
import dataclasses
import math

import chex
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.federated_cases import code_of, from_analyst, plan_of
from jax.flatten_util import ravel_pytree

from dpjax.bayes import DPSVI
from dpjax.bayes.sgmcmc import PSGLD, SGHMC, SGLD, RMSProp
from dpjax.federated import (
    ClippedGradientSum,
    gradient_training,
    perturb,
    run_round,
    simulated_entropy,
    svi_training,
)
from dpjax.federated.messages import ANALYST, Message, digest_of
from dpjax.federated.processes.analyst import TrainingAnalyst
from dpjax.federated.processes.holder import TrainingHolder, journalled_messages, spent_rounds
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node
from dpjax.federated.training import ParameterFormat, noise_factor
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling

KEY = jax.random.key(5)


def steps(num_examples, *, num_steps=6, rate=0.5, noise_multiplier=0.5):
    return SubsampledGaussian(
        PoissonSampling(num_examples, rate),
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency="zero_out",
    )


def squared_error(params, example):
    return 0.5 * (example["x"] @ params["w"] + params["b"] - example["y"]) ** 2


START = {"w": jnp.zeros(2), "b": jnp.zeros(())}


def linear_records(rng, num_examples):
    x = rng.normal(size=(num_examples, 2)).astype(np.float32)
    return {"x": x, "y": x @ np.array([1.0, -0.5], np.float32) + 0.25}


class Network:
    """Parties of a training in this process, each with a journal."""

    def __init__(self, stack, folder, plan):
        self.stack, self.folder, self.plan = stack, folder, plan
        self.nodes = [
            Node(plan, node, self.journal(f"node-{node}"), round_number=None)
            for node in range(plan.parties.num_nodes)
        ]

    def journal(self, name):
        return self.stack.enter_context(Journal(self.folder / name, name))

    def caller(self, sender):
        return lambda node, kind, data: self.nodes[node].answer(sender, kind, data)

    def holder(self, index, training, records, **options):
        journal = self.journal(f"holder-{index}")
        return TrainingHolder(self.plan, index, training, records, journal, **options)

    def run(self, analyst, holders, most=1000):
        for step in range(most):
            for index, holder in holders.items():
                holder.attempt(self.caller(f"holder-{index}"))
            if analyst.attempt(self.caller("analyst"), elapsed=float(step)):
                break
        for index, holder in holders.items():
            assert holder.attempt(self.caller(f"holder-{index}"))


@pytest.fixture
def network_of(tmp_path):
    with contextlib.ExitStack() as stack:
        yield lambda plan: Network(stack, tmp_path, plan)


def keys_of(secret):
    """One key after the other, from a holder's secret."""
    count = iter(range(1000))
    return lambda: jax.random.fold_in(secret, next(count))


@pytest.mark.slow
def test_gradient_training_in_rounds_equals_one_process(network_of):
    """The same batches, noise and steps: equal parameters. Power: other batches."""
    plan = plan_of(ClippedGradientSum(steps(60), 3), num_holders=3, num_nodes=2)
    rng = np.random.default_rng(1)
    records = [linear_records(rng, size) for size in (10, 20, 30)]
    training = gradient_training(
        squared_error, START, optax.adam(0.1), mechanism=plan.mechanism.mechanism
    )
    network = network_of(plan)
    secrets = jax.random.split(KEY, 3)
    holders = {
        index: network.holder(
            index,
            training,
            records[index],
            entropy=simulated_entropy(index),
            new_key=keys_of(secrets[index]),
        )
        for index in range(3)
    }
    journal = network.journal("analyst")
    analyst = TrainingAnalyst(plan, training, journal, waiting_time=100.0, keep_every=2)
    network.run(analyst, holders)
    assert analyst.round_number == 6

    def alone(secrets):
        state, entropies = training.init(), [simulated_entropy(index) for index in range(3)]
        path = []
        for number in range(6):
            vector = ravel_pytree(training.get_params(state))[0]
            noisy = 0.0
            for holder, own in enumerate(records):
                key = jax.random.fold_in(secrets[holder], number)
                own_sum = plan.mechanism.sum_records(training.clipped_sum(key, vector, number, own))
                noisy = noisy + released_alone(plan, own_sum, entropies[holder])
            form = ParameterFormat(training, 3)
            factor = noise_factor(3, plan.parties.num_noise_shares)
            state = training.update(state, form.from_vector(noisy), number, factor)
            path.append(training.get_params(state))
        return path

    path = alone(secrets)
    chex.assert_trees_all_close(analyst.state.params, path[-1], rtol=1e-5)
    other = alone(jax.random.split(jax.random.key(6), 3))
    assert not np.allclose(analyst.state.params["w"], other[-1]["w"], rtol=1e-3)
    rounds, kept = analyst.kept_params()
    assert rounds == [2, 4, 6]
    np.testing.assert_allclose(kept[1]["w"], path[3]["w"], rtol=1e-5)


def released_alone(plan, statistic, entropy):
    """One holder's sum with its share of the noise, from the bytes that a round takes."""
    units = perturb(plan, statistic, entropy=entropy)
    plan.parties.sharing.share(entropy, units)
    entropy(8)  # the identifier of the draw
    return plan.from_units(units)


def gaussian_model(x, y=None):
    weight = numpyro.sample("weight", dist.Normal(0, 1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(weight * x, 0.5), obs=y)


def gaussian_guide(x, y=None):
    loc = numpyro.param("loc", jnp.zeros(()))
    scale = numpyro.param("scale", jnp.ones(()), constraint=dist.constraints.positive)
    numpyro.sample("weight", dist.Normal(loc, scale))


@pytest.mark.slow
def test_svi_training_reaches_the_posterior_mean(network_of):
    """The location comes near the posterior mean; certificate and result are DPSVI's."""
    svi = DPSVI(
        gaussian_model,
        gaussian_guide,
        optax.adam(0.1),
        mechanism=SubsampledGaussian(
            PoissonSampling(300, 0.5),
            num_steps=40,
            l2_clip=2.0,
            noise_multiplier=0.5,
            adjacency="zero_out",
        ),
    )
    example = {"x": np.float32(0), "y": np.float32(0)}
    training = svi_training(KEY, svi, example)
    plan = plan_of(ClippedGradientSum(svi.mechanism, 2), num_holders=3, num_nodes=2)
    assert plan.certificate(1e-5).epsilon == svi.mechanism.certificate(1e-5).epsilon
    rng, network = np.random.default_rng(2), network_of(plan)
    parts = [rng.normal(size=size).astype(np.float32) for size in (50, 100, 150)]
    holders = {
        index: network.holder(
            index,
            training,
            {"x": x, "y": 0.7 * x + 0.5 * rng.normal(size=len(x)).astype(np.float32)},
            entropy=simulated_entropy(index),
            new_key=keys_of(jax.random.fold_in(KEY, index)),
        )
        for index, x in enumerate(parts)
    }
    journal = network.journal("analyst")
    analyst = TrainingAnalyst(plan, training, journal, waiting_time=100.0)
    network.run(analyst, holders)
    found = training.get_result(analyst.state)
    assert float(found["loc"]) == pytest.approx(0.7, abs=0.15)
    assert 0.0 < float(found["scale"]) < 0.3  # constrained
    # The state on disk is the state: its keys, too.
    form = ParameterFormat(training, plan.size)
    again = form.state_from_bytes(form.state_to_bytes(analyst.state))
    assert jax.tree.all(
        jax.tree.map(lambda one, other: jnp.all(one == other), again, analyst.state)
    )


def test_svi_with_num_examples_keeps_the_rate():
    svi = DPSVI(
        gaussian_model,
        gaussian_guide,
        optax.adam(0.1),
        mechanism=SubsampledGaussian(
            PoissonSampling(300, 0.5, expected_batch_size=140.0),
            num_steps=60,
            l2_clip=2.0,
            noise_multiplier=0.5,
            adjacency="zero_out",
        ),
    )
    own = svi.with_num_examples(20)
    expected = PoissonSampling(20, 0.5, expected_batch_size=140.0)
    assert own.mechanism == dataclasses.replace(svi.mechanism, sampling=expected)
    assert (own.model, own.guide) == (svi.model, svi.guide)


CHAINS = {
    "SGLD": lambda **options: SGLD(**options),
    "SGHMC": lambda **options: SGHMC(friction=0.3, **options),
    "pSGLD": lambda **options: PSGLD(
        preconditioner=RMSProp(min_value=0.2, max_value=1.0), **options
    ),
}


def chain_draws(make, plan_options, step_factor=None, num_steps=1000, num_missing=0):
    """Draws of a Gaussian mean over four holders, and its posterior deviation."""
    num_examples = 400
    data = 0.3 + np.random.default_rng(8).normal(size=(4, 100, 1))
    options = {"sampling": PoissonSampling(num_examples, 1.0), "l2_clip": 20.0}
    chain = make(step_size=0.1, num_steps=num_steps, adjacency="zero_out", **options)
    plan = plan_of(ClippedGradientSum(chain.gaussian, 1), num_holders=4, **plan_options)

    def optimizer(factor):
        used = factor if step_factor is None else step_factor
        return chain.with_privacy_factor(used).optimizer(None, key=KEY)

    training = gradient_training(
        lambda mean, x: 0.5 * jnp.sum((mean - x) ** 2),
        jnp.full(1, 0.3),
        optimizer,
        mechanism=chain.gaussian,
    )
    state, entropy, draws = training.init(), simulated_entropy(9), []
    shares = plan.parties.num_noise_shares
    missing = np.random.default_rng(1).integers(4, size=num_steps)
    exact = 100 * data.mean(axis=1)  # minus the gradient of a holder is its sum less n times mean
    for number in range(num_steps):
        mean = float(training.get_params(state)[0])
        sums = [100 * np.full(1, mean) - own for own in exact]
        if num_missing:
            # A holder of the same records as the mean of the others is missing.
            others = [one for holder, one in enumerate(sums) if holder != missing[number]]
            sums = [None if h == missing[number] else sum(others) / 3 * 4 / 3 for h in range(4)]
        result = run_round(plan, sums, entropy=entropy, round_number=number)
        factor = noise_factor(len(result.holders), shares)
        noisy = jnp.asarray(result.released, jnp.float32)
        state = training.update(state, noisy, number, factor)
        draws.append(float(training.get_params(state)[0]))
    return np.array(draws[50:]), 1 / math.sqrt(num_examples)


def integrated_time(draws, most=200):
    """Integrated autocorrelation time."""
    centred = draws - draws.mean()
    spectrum = np.fft.rfft(centred, 2 * draws.size)
    correlation = np.fft.irfft(spectrum * spectrum.conj())[:most]
    return 2 * correlation.sum() / correlation[0] - 1


# The noise in the sum is sqrt(k / H) times the planned noise: k = 4, H = 3; k = 4 or 3, H = 2.
NOISES = {
    "an observing holder": ({}, 0),
    "a drop-out": ({"num_dropouts": 1}, 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("name", CHAINS)
def test_gradient_training_of_chains_has_the_posteriors_variance(name, noise):
    """With more noise than planned the steps are smaller. Power: with planned steps too wide.

    The discretisation raises the variance by some 5 %. Six standard errors by the autocorrelation
    time: false alarm 2e-9 each.
    """
    plan_options, num_missing = NOISES[noise]
    draws, deviation = chain_draws(CHAINS[name], plan_options, num_missing=num_missing)
    error = 6 * math.sqrt(2 * integrated_time(draws**2) / draws.size)
    assert draws.var() / deviation**2 == pytest.approx(1.0, abs=0.08 + error)
    wide, _ = chain_draws(CHAINS[name], plan_options, step_factor=1.0, num_missing=num_missing)
    assert wide.var() > 1.2 * deviation**2


def test_noise_factor_is_that_of_mechanism_for():
    plan = plan_of(ClippedGradientSum(steps(60), 3), num_holders=9, num_dropouts=3)
    for contributing in (6, 9):
        wider = plan.mechanism_for(contributing).mechanism.noise_multiplier
        factor = noise_factor(contributing, plan.parties.num_noise_shares)
        assert wider == pytest.approx(factor * plan.mechanism.mechanism.noise_multiplier)


def parameters_message(plan, node, words, round_number, digest=None):
    message = Message(
        kind="parameters",
        sender=ANALYST,
        receiver=node,
        round_number=round_number,
        parameters=digest_of(words) if digest is None else digest,
        words=words,
    )
    return plan.message_format.to_bytes(message)


def test_node_takes_one_set_of_parameters_in_a_round(network_of):
    plan = plan_of(ClippedGradientSum(steps(60), 3), num_holders=3, num_nodes=2)
    network = network_of(plan)
    call, words = network.caller("analyst"), np.arange(3, dtype=np.uint64)
    assert code_of(call, 0, "query", from_analyst(plan, "query", 0)) == "early"
    assert call(0, "parameters", parameters_message(plan, 0, words, 2)) == b""
    assert call(0, "parameters", parameters_message(plan, 0, words, 2)) == b""  # a retry
    cases = {
        "parameters": parameters_message(plan, 0, words + np.uint64(1), 2),
        "round": parameters_message(plan, 0, words, 1),
        "receiver": parameters_message(plan, 1, words, 3),
    }
    for code, data in cases.items():
        assert code_of(call, 0, "parameters", data) == code
    beyond = parameters_message(plan, 0, words, 7)
    assert code_of(call, 0, "parameters", beyond) == "round"
    forged = parameters_message(plan, 0, words, 3, digest=b"0" * 16)
    assert code_of(call, 0, "parameters", forged) == "parameters"
    holder = network.caller("holder-1")
    assert code_of(holder, 0, "parameters", parameters_message(plan, 0, words, 3)) == "sender"
    assert network.nodes[0].round_number == 2


@pytest.mark.slow
def test_training_holder_with_altered_parameters_is_refused(network_of):
    """A holder that got other parameters than the nodes have is refused by their digest."""
    plan = plan_of(ClippedGradientSum(steps(60), 3), num_holders=3, num_nodes=2)
    network = network_of(plan)
    training = gradient_training(
        squared_error, START, optax.sgd(0.1), mechanism=plan.mechanism.mechanism
    )
    words = np.arange(3, dtype=np.float64).view(np.uint64)
    for node in (0, 1):
        network.caller("analyst")(node, "parameters", parameters_message(plan, node, words, 0))
    other = (words.view(np.float64) + 1).view(np.uint64)

    def call(node, kind, data):
        if kind == "next":
            return parameters_message(plan, node, other, 0)
        return network.caller("holder-0")(node, kind, data)

    records = linear_records(np.random.default_rng(0), 10)
    holder = network.holder(0, training, records)
    holder.attempt(call)
    assert holder.round_number == 0
    assert all(not node.state.holders(0) for node in network.nodes)
    # Its budget is spent, and the round's true parameters are no reason for another draw.
    holder._journal.close()
    again = network.holder(0, training, records)
    assert not again.attempt(network.caller("holder-0"))
    assert all(not node.state.holders(0) for node in network.nodes)
    assert spent_rounds(again._journal) == {0}


def test_journalled_messages_are_not_sent_at_other_parameters(network_of):
    """The holder's process ended before a node answered, and the round has other parameters."""
    plan = plan_of(ClippedGradientSum(steps(60), 3), num_holders=3, num_nodes=2)
    journal = network_of(plan).journal("holder-0")
    sent = journalled_messages(plan, 0, lambda: np.zeros(3), journal, parameters=b"a" * 16)
    assert sent == journalled_messages(plan, 0, lambda: None, journal, parameters=b"a" * 16)
    options = {"parameters": b"b" * 16}
    assert code_of(journalled_messages, plan, 0, lambda: None, journal, **options) == "spent"


def test_parameter_format_refuses_another_number_of_parameters(network_of):
    plan = plan_of(ClippedGradientSum(steps(60), 4), num_holders=3, num_nodes=2)
    training = gradient_training(
        squared_error, START, optax.sgd(0.1), mechanism=plan.mechanism.mechanism
    )
    with pytest.raises(ValueError, match="num_parameters must be the 3 of the training, got 4"):
        TrainingAnalyst(plan, training, network_of(plan).journal("analyst"), waiting_time=1.0)
    whole = training._replace(init=lambda: jnp.zeros(4, int), get_params=lambda state: state)
    with pytest.raises(ValueError, match="params must be a tree of floats"):
        ParameterFormat(whole, 4)
