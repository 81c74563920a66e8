"""Effective samples a second: dpjax's Langevin chains beside blackjax's and numpyro's.

``python -m experiments.bench_inference.langevin``: logistic regression of 10,000 records of 20
attributes, 4 chains on Poisson batches of 256 drawn alike, one compiled loop each. blackjax's SGLD
is the same chain without clipping; numpyro has none, and its NUTS, on all records, is another kind
of chain that shows what the posterior costs without batches. What is not installed is left out.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import arviz_base
import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
from numpyro.infer import MCMC, NUTS

from dpjax import PoissonSampling
from dpjax.bayes.sgmcmc import SGLD, private_chains
from dpjax.sampling import gather
from experiments.bench.timing import Case, Effort, Times, blocking, interleaved
from experiments.bench.ways import why_missing

RECORDS, ATTRIBUTES, BATCH = 10_000, 20, 256
CHAINS, BURN_IN, STEPS, STEP_SIZE = 4, 500, 4_000, 10.0
NUTS_WARMUP, NUTS_KEPT = 100, 200
# No gradient is as long: the chain without privacy is the private one that clips nothing.
NO_CLIP, CLIP = 1e4, 1.0
SAMPLING = PoissonSampling(RECORDS, BATCH / RECORDS)

# From a key to the kept states, (chains, draws, attributes).
Run = Callable[[jax.Array], jax.Array]


class Speed(NamedTuple):
    """Of one way to sample.

    Attributes:
      name: of the way.
      milliseconds: of the whole run, compiled before, the median.
      effective: samples of the worst coordinate that are worth as much as independent ones.
      repetitions: how often it was timed.
    """

    name: str
    milliseconds: float
    effective: float
    repetitions: int

    @property
    def effective_per_second(self) -> float:
        """What is compared."""
        return 1e3 * self.effective / self.milliseconds


def ways() -> Iterator[tuple[str, Run]]:
    """Yields each way to sample that is installed."""
    yield "dpjax SGLD, nothing clipped", _dpjax(NO_CLIP)
    yield f"dpjax SGLD, clipped to {CLIP:g}", _dpjax(CLIP)
    if not why_missing("blackjax"):
        yield "blackjax SGLD", _blackjax()
    yield "numpyro NUTS, all records", _numpyro()


def measure(effort: Effort) -> list[Speed]:
    """Times every way in turn, and counts its effective samples."""
    runs, key = dict(ways()), jax.random.key(1)
    cases = [Case(name, blocking(partial(run, key))) for name, run in runs.items()]
    times = interleaved(cases, effort)
    return [_speed(name, times[name], run(key)) for name, run in runs.items()]


def effective_samples(samples: Any) -> float:
    """Returns the bulk effective sample size of the worst coordinate.

    Args:
      samples: ``(chains, draws, attributes)``.

    >>> draws = np.random.default_rng(0).normal(size=(4, 500, 2))
    >>> 1_500 < effective_samples(draws) < 2_600
    True
    """
    tree = arviz_base.from_dict({"posterior": {"w": np.asarray(samples)}})
    return float(arviz_stats.ess(tree)["w"].min())


def log_prior(weights: jax.Array) -> jax.Array:
    """A standard normal."""
    return -0.5 * jnp.sum(weights**2)


def log_likelihood(weights: jax.Array, record: Any) -> jax.Array:
    """Of one record."""
    x, y = record
    return -jax.nn.softplus(-(2 * y - 1) * (x @ weights))


def data() -> tuple[jax.Array, jax.Array]:
    """Features of norm about one, and answers drawn from the model."""
    x_key, w_key, y_key = jax.random.split(jax.random.key(0), 3)
    x = jax.random.normal(x_key, (RECORDS, ATTRIBUTES)) / ATTRIBUTES**0.5
    logits = x @ (2 * jax.random.normal(w_key, (ATTRIBUTES,)))
    return x, jax.random.bernoulli(y_key, jax.nn.sigmoid(logits)).astype(jnp.float32)


def _dpjax(l2_clip: float) -> Run:
    chain = SGLD(
        SAMPLING,
        l2_clip=l2_clip,
        step_size=STEP_SIZE,
        num_steps=STEPS,
        adjacency="zero_out",
        num_chains=CHAINS,
    )
    records = data()

    @jax.jit
    def run(key: jax.Array) -> jax.Array:
        step = private_chains(key, log_likelihood, log_prior, chain)

        def body(state: Any, _: None) -> tuple[Any, jax.Array]:
            state = step.update(state, records)[0]
            return state, state.params

        _, path = jax.lax.scan(body, step.init(jnp.zeros(ATTRIBUTES)), length=STEPS)
        return path[BURN_IN:].swapaxes(0, 1)

    return run


def _blackjax() -> Run:
    import blackjax

    def weighted(weights: jax.Array, record: Any) -> jax.Array:
        *seen, weight = record
        return weight * log_likelihood(weights, seen)

    estimator = blackjax.sgmcmc.gradients.grad_estimator(log_prior, weighted, RECORDS)
    sgld, records = blackjax.sgld(estimator), data()

    def body(state: Any, _: None) -> tuple[Any, jax.Array]:
        position, sampler, key = state
        draw, sampler = SAMPLING.draw(sampler)
        batch = SAMPLING.batch(draw, 0)
        # It divides by the batch's length, padding included.
        weight = batch.mask * (len(batch.mask) / BATCH)
        key, step_key = jax.random.split(key)
        minibatch = (*gather(records, batch.indices), weight)
        position = sgld.step(step_key, position, minibatch, STEP_SIZE / RECORDS)
        return (position, sampler, key), position

    def chain(key: jax.Array) -> jax.Array:
        sampler_key, key = jax.random.split(key)
        start = (jnp.zeros(ATTRIBUTES), SAMPLING.init(sampler_key), key)
        return jax.lax.scan(body, start, length=STEPS)[1][BURN_IN:]

    return jax.jit(lambda key: jax.vmap(chain)(jax.random.split(key, CHAINS)))


def _numpyro() -> Run:
    x, y = data()

    def potential(weights: jax.Array) -> jax.Array:
        each = jax.vmap(log_likelihood, (None, 0))(weights, (x, y))
        return -log_prior(weights) - each.sum()

    chains = MCMC(
        NUTS(potential_fn=potential),
        num_warmup=NUTS_WARMUP,
        num_samples=NUTS_KEPT,
        num_chains=CHAINS,
        chain_method="vectorized",
        progress_bar=False,
        jit_model_args=False,
    )

    def run(key: jax.Array) -> jax.Array:
        chains.run(key, init_params=jnp.zeros((CHAINS, ATTRIBUTES)))
        return chains.get_samples(group_by_chain=True)

    return run


def _speed(name: str, times: Times, samples: jax.Array) -> Speed:
    return Speed(name, times.median, effective_samples(samples), len(times.seconds))


def main() -> None:
    """Prints effective samples a second, the first way's last: what each is worth beside it."""
    reason = why_missing("blackjax")
    if reason:
        print(f"left out: blackjax ({reason})")
    speeds = measure(Effort(seconds=5.0, repetitions=10))
    for speed in speeds:
        share = speed.effective_per_second / speeds[0].effective_per_second
        print(
            f"{speed.name}: {speed.effective:,.0f} effective in {speed.milliseconds:,.0f} ms"
            f" (median of {speed.repetitions}), {speed.effective_per_second:,.0f} a second,"
            f" {share:.2f} x"
        )


if __name__ == "__main__":
    main()
