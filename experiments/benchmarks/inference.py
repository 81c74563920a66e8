"""Cost of BDP accounting, of DP-SVI compared with numpyro's SVI, and of Langevin chains.

BDP accounting: training steps of two networks with gradient norms returned and accounted for.
Variational inference: logistic regression with Adult's shape (30,000 records, mean batch 256,
Adam), with the same padded and masked batches for numpyro. Chains: logistic regression on 10,000
records of 20 attributes, 4 chains on Poisson batches of 256; blackjax's SGLD is the same chain
without clipping, and numpyro's NUTS uses all records.
"""

import functools
import time
from collections.abc import Callable, Mapping
from typing import Any

import arviz_base
import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import MCMC, NUTS, SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

import dpjax
from dpjax import bdp
from dpjax._typing import ArrayTree, PRNGKey, PyTree
from dpjax.bayes.sgmcmc import SGLD, private_chains
from dpjax.bayes.variational import DPSVI
from dpjax.sampling import gather
from dpjax.training.run import Update, compile_chunk
from experiments.benchmarks.methods import import_error
from experiments.benchmarks.models import MODELS
from experiments.benchmarks.results import Group, Groups, Values, median_values, ratio, values_over
from experiments.benchmarks.timing import Case, Effort, Times, blocking

Data = tuple[jax.Array, jax.Array]

ACCOUNT_STEPS, DRAWS = 10_000, 1_024
_BLOCK, _NUM_EXAMPLES = 10, 8_192
_DISCARDED = "norms discarded"
NUMPYRO, NO_NOISE, PRIVATE = "numpyro", "DPSVI, noise 0", "DPSVI, noise 1.1"
# Guides and numbers of attributes.
GUIDES = (
    (AutoNormal, 124),
    (AutoMultivariateNormal, 10),
    (AutoMultivariateNormal, 124),
    (AutoLowRankMultivariateNormal, 124),
)
SVI_STEPS = 100
SVI_SAMPLING = dpjax.PoissonSampling(30_000, 256 / 30_000)
RECORDS, ATTRIBUTES, BATCH = 10_000, 20, 256
CHAINS, BURN_IN, STEPS, STEP_SIZE = 4, 500, 4_000, 10.0
# Exceeds every gradient norm, so that nothing is clipped.
NO_CLIP, CLIP = 1e4, 1.0
CHAIN_SAMPLING = dpjax.PoissonSampling(RECORDS, BATCH / RECORDS)

# From a key to the kept states (chains, draws, attributes).
Run = Callable[[PRNGKey], jax.Array]


def inference_groups() -> Groups:
    """Yields the groups of BDP accounting, variational inference and chains."""
    yield "Bayesian account alone", account_group
    for name, batch in (("mlp", 256), ("cnn", DRAWS)):
        subject = f"Bayesian account, {MODELS[name].title}, batch {batch:,}"
        yield subject, functools.partial(training_group, subject, name, batch)
    for guide, attributes in GUIDES:
        subject = f"DP-SVI, {guide.__name__}, {attributes} attributes"
        yield subject, functools.partial(svi_group, subject, guide, attributes)
    yield "Langevin chains", chain_group


def account_group() -> Group:
    """Returns BDP accounting of 10,000 and of 100 steps of 1,024 norms."""
    norms = np.random.default_rng(0).exponential(0.5, (ACCOUNT_STEPS, DRAWS)).astype(np.float32)
    mechanism = _mechanism(ACCOUNT_STEPS, DRAWS / 60_000)

    def case(steps: int) -> Case:
        account = blocking(lambda: bdp.update(bdp.init(mechanism), norms[:steps]).num_done)
        return Case(f"{steps:,} steps of {DRAWS:,} norms", account)

    cases = [case(ACCOUNT_STEPS), case(ACCOUNT_STEPS // 100)]
    effort = Effort(seconds=10.0, slow=60.0)
    return Group("account", "Bayesian account alone", cases, median_values, effort)


def training_group(subject: str, name: str, batch: int) -> Group:
    """Returns ten private steps with norms discarded, returned, or returned and accounted for."""
    model = MODELS[name]
    mechanism = _mechanism(10**6, batch / _NUM_EXAMPLES, _NUM_EXAMPLES)
    data = jax.device_put(model.data(_NUM_EXAMPLES))

    def block(*, keep: bool, count: bool) -> Callable[[], float]:
        step = dpjax.private_step(
            model.loss, optax.sgd(0.01), mechanism=mechanism, key=jax.random.key(0)
        )

        def update(state: PyTree, data: PyTree) -> tuple[PyTree, PyTree]:
            state, info = step.update(state, data)
            return state, info if keep else info.num_nonfinite

        state = step.init(model.init())
        run = compile_chunk(update, state, data, _BLOCK)
        held: dict[str, Any] = {"state": state, "account": bdp.init(mechanism)}

        def seconds() -> float:
            start = time.perf_counter()
            held["state"], info = jax.block_until_ready(run(held["state"], data, _BLOCK))
            if count:
                held["account"] = bdp.update(held["account"], info.norms, info.mask)
            return time.perf_counter() - start

        return seconds

    cases = [
        Case(_DISCARDED, block(keep=False, count=False)),
        Case("norms returned", block(keep=True, count=False)),
        Case("norms returned and accounted for", block(keep=True, count=True)),
    ]
    return Group("ten steps", subject, cases, values_over(_DISCARDED), Effort(seconds=20.0))


def _mechanism(num_steps: int, rate: float, num_examples: int = 60_000) -> dpjax.SubsampledGaussian:
    sampling = dpjax.PoissonSampling(num_examples, rate)
    return dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=num_steps, adjacency="zero_out"
    )


def svi_group(subject: str, guide: Callable[..., Any], attributes: int) -> Group:
    """Returns a variational inference step with and without privacy, and batch sampling alone."""
    data = synthetic_records(attributes)
    effort = Effort(seconds=1.0, repetitions=30)
    cases = [*svi_cases(guide(svi_model), data), draw_case(data)]
    return Group("step", subject, cases, values_over(NUMPYRO), effort)


def svi_model(x: jax.Array, y: jax.Array, mask: Any = True) -> None:
    """Logistic regression; ``x`` and ``y`` are a batch of the records."""
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    plate = numpyro.plate("records", SVI_SAMPLING.num_examples, subsample_size=len(x))
    with plate, numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def svi_cases(guide: Callable[..., Any], data: Data) -> list[Case]:
    """Returns the cases of one step with and without privacy; the guide is of `svi_model`."""
    plain = SVI(svi_model, guide, optax.adam(1e-3), Trace_ELBO())

    def update(state: PyTree, data: PyTree) -> tuple[Any, jax.Array]:
        svi_state, sampler = state
        draw, sampler = SVI_SAMPLING.draw(sampler)
        batch = SVI_SAMPLING.batch(draw, 0)
        svi_state, loss = plain.update(svi_state, *gather(data, batch.indices), batch.mask)
        return (svi_state, sampler), loss

    state = plain.init(jax.random.key(0), *data), SVI_SAMPLING.init(jax.random.key(1))
    cases = [_svi_case(NUMPYRO, update, state, data)]
    for name, noise_multiplier in ((NO_NOISE, 0.0), (PRIVATE, 1.1)):
        mechanism = dpjax.SubsampledGaussian(
            SVI_SAMPLING,
            num_steps=10**5,
            l2_clip=1.0,
            noise_multiplier=noise_multiplier,
            adjacency="zero_out",
        )
        svi = DPSVI(svi_model, guide, optax.adam(1e-3), mechanism=mechanism)
        private = functools.partial(_update_privately, svi)
        cases.append(_svi_case(name, private, svi.init(jax.random.key(0), *data), data))
    return cases


def _update_privately(svi: DPSVI, state: PyTree, data: Data) -> tuple[PyTree, PyTree]:
    return svi.update(state, *data)


def draw_case(data: Data) -> Case:
    """Returns the case of Poisson sampling and batch padding alone."""

    def update(key: jax.Array, data: PyTree) -> tuple[jax.Array, jax.Array]:
        draw, key = SVI_SAMPLING.draw(key)
        return key, SVI_SAMPLING.batch(draw, 0).indices.sum()

    return _svi_case("the draw alone", update, jax.random.key(0), data)


def synthetic_records(attributes: int) -> Data:
    """Returns records of Adult's size with sparse binary attributes."""
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.bernoulli(x_key, 0.1, (SVI_SAMPLING.num_examples, attributes))
    y = jax.random.bernoulli(y_key, 0.25, (SVI_SAMPLING.num_examples,))
    return x.astype(jnp.float32), y.astype(jnp.float32)


def _svi_case(name: str, update: Update, state: PyTree, data: Data) -> Case:
    run = compile_chunk(update, jax.tree.map(jnp.array, state), data, SVI_STEPS)
    held = [state]

    def steps() -> PyTree:
        held[0], seen = run(jax.tree.map(jnp.array, held[0]), data, SVI_STEPS)
        return seen

    seconds = blocking(steps)
    return Case(name, lambda: seconds() / SVI_STEPS)


def chain_group() -> Group:
    """Returns the installed samplers and their effective samples per second."""
    key = jax.random.key(1)
    runs = {
        "dpjax SGLD, nothing clipped": _dpjax_chains(NO_CLIP),
        f"dpjax SGLD, clipped to {CLIP:g}": _dpjax_chains(CLIP),
        **({} if import_error("blackjax") else {"blackjax SGLD": _blackjax_chains()}),
        "numpyro NUTS, all records": _numpyro_chains(),
    }
    cases = [
        Case(name, blocking(run, key), {"effective samples": effective_samples(run(key))})
        for name, run in runs.items()
    ]
    speeds = {case.name: case.values["effective samples"] for case in cases}
    first = cases[0].name

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        relative = speeds[case.name] / speeds[first]
        return {
            **case.values,
            "ms": times[case.name].median,
            "effective/s": 1e3 * speeds[case.name] / times[case.name].median,
            "× dpjax, unclipped": relative / (ratio(times, case, first) or 1.0),
        }

    effort = Effort(seconds=5.0, repetitions=10)
    return Group("sampler", "Langevin chains", cases, columns, effort)


def effective_samples(samples: ArrayTree) -> float:
    """Returns the smallest bulk effective sample size of ``(chains, draws, attributes)`` samples.

    >>> draws = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> 1_500 < effective_samples(draws) < 2_600
    True
    """
    tree = arviz_base.from_dict({"posterior": {"w": np.asarray(samples)}})
    return float(arviz_stats.ess(tree)["w"].min())


def log_prior(weights: jax.Array) -> jax.Array:
    """Log density of N(0, I), up to a constant."""
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights: jax.Array, record: PyTree) -> jax.Array:
    """Log-likelihood of one record."""
    x, y = record
    return -jax.nn.softplus(-(2 * y - 1) * (x @ weights))


@functools.cache
def _chain_data() -> Data:
    """Returns features of norm about one, and labels drawn from the model."""
    x_key, w_key, y_key = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(x_key, (RECORDS, ATTRIBUTES)) / ATTRIBUTES**0.5
    logits = x @ (2 * jax.random.normal(w_key, (ATTRIBUTES,)))
    return x, jax.random.bernoulli(y_key, jax.nn.sigmoid(logits)).astype(jnp.float32)


def _dpjax_chains(l2_clip: float) -> Run:
    chain = SGLD(
        CHAIN_SAMPLING,
        l2_clip=l2_clip,
        step_size=STEP_SIZE,
        num_steps=STEPS,
        adjacency="zero_out",
        num_chains=CHAINS,
    )
    records = _chain_data()

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        step = private_chains(key, log_likelihood, log_prior, chain)

        def body(state: PyTree, _: None) -> tuple[Any, jax.Array]:
            state = step.update(state, records)[0]
            return state, state.params

        _, path = jax.lax.scan(body, step.init(jnp.zeros(ATTRIBUTES)), length=STEPS)
        return path[BURN_IN:].swapaxes(0, 1)

    return run


def _blackjax_chains() -> Run:
    import blackjax

    def weighted(weights: jax.Array, record: PyTree) -> jax.Array:
        *seen, weight = record
        return weight * log_likelihood(weights, seen)

    estimator = blackjax.sgmcmc.gradients.grad_estimator(log_prior, weighted, RECORDS)
    sgld, records = blackjax.sgld(estimator), _chain_data()

    def body(state: PyTree, _: None) -> tuple[Any, jax.Array]:
        position, sampler, key = state
        draw, sampler = CHAIN_SAMPLING.draw(sampler)
        batch = CHAIN_SAMPLING.batch(draw, 0)
        # blackjax divides by the batch length, padding included.
        weight = batch.mask * (len(batch.mask) / BATCH)
        key, step_key = jax.random.split(key)
        minibatch = (*gather(records, batch.indices), weight)
        position = sgld.step(step_key, position, minibatch, STEP_SIZE / RECORDS)
        return (position, sampler, key), position

    def chain(key: jax.Array) -> jax.Array:
        sampler_key, key = jax.random.split(key)
        start = (jnp.zeros(ATTRIBUTES), CHAIN_SAMPLING.init(sampler_key), key)
        return jax.lax.scan(body, start, length=STEPS)[1][BURN_IN:]

    return jax.jit(lambda key: jax.vmap(chain)(jax.random.split(key, CHAINS)))


def _numpyro_chains() -> Run:
    x, y = _chain_data()

    def potential(weights: jax.Array) -> jax.Array:
        each = jax.vmap(log_likelihood, (None, 0))(weights, (x, y))
        return -log_prior(weights) - each.sum()

    chains = MCMC(
        NUTS(potential_fn=potential),
        num_warmup=100,
        num_samples=200,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=False,
    )

    def run(key: jax.Array) -> jax.Array:
        chains.run(key, init_params=jnp.zeros((CHAINS, ATTRIBUTES)))
        return chains.get_samples(group_by_chain=True)

    return run
