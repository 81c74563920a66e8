"""A step of `DPSVI` beside one of numpyro's SVI on the same Poisson batches.

``python -m experiments.bench_inference.svi``: logistic regression of Adult's shape (30,000 records
of 124 attributes; also of 10), mean batch 256, Adam. Both loops run on the device; numpyro's model
sees the same padded batch under the same mask, with its factor n/b.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer import SVI, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoLowRankMultivariateNormal,
    AutoMultivariateNormal,
    AutoNormal,
)

from dpjax import PoissonSampling
from dpjax.bayes.variational import DPSVI
from dpjax.sampling import gather
from dpjax.training.loop import Update, compile_steps
from experiments.bench.timing import Case, Effort, blocking, interleaved

RECORDS, BATCH, STEPS = 30_000, 256, 100
# Guides, and numbers of attributes.
PROBLEMS = (
    (AutoNormal, 124),
    (AutoMultivariateNormal, 10),
    (AutoMultivariateNormal, 124),
    (AutoLowRankMultivariateNormal, 124),
)
SAMPLING = PoissonSampling(RECORDS, BATCH / RECORDS)
NUMPYRO, NO_NOISE, PRIVATE = "numpyro", "DPSVI, noise 0", "DPSVI, noise 1.1"


def model(x: jax.Array, y: jax.Array, mask: Any = True) -> None:
    """Logistic regression of `RECORDS` records, of which it may be shown some."""
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", RECORDS, subsample_size=len(x)), numpyro.handlers.mask(mask=mask):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def step_cases(guide: Callable[..., Any], data: Any) -> list[Case]:
    """The same step with and without privacy, in seconds a step.

    Args:
      guide: of `model`.
      data: all records.
    """
    return [
        _case(NUMPYRO, *_plain(guide, data), data),
        _case(NO_NOISE, *_private(guide, 0.0, data), data),
        _case(PRIVATE, *_private(guide, 1.1, data), data),
    ]


def draw_case(data: Any) -> Case:
    """The Poisson draw alone, with the positions of its padded batch."""

    def update(key: jax.Array, data: Any) -> tuple[jax.Array, jax.Array]:
        draw, key = SAMPLING.draw(key)
        return key, SAMPLING.batch(draw, 0).indices.sum()

    return _case("the draw alone", update, jax.random.key(0), data)


def made_data(attributes: int) -> tuple[jax.Array, jax.Array]:
    """As many records as Adult, with attributes that are 0 or 1 and a tenth of them 1."""
    x_key, y_key = jax.random.split(jax.random.key(0))
    x = jax.random.bernoulli(x_key, 0.1, (RECORDS, attributes)).astype(jnp.float32)
    return x, jax.random.bernoulli(y_key, 0.25, (RECORDS,)).astype(jnp.float32)


def _private(guide: Callable[..., Any], noise_multiplier: float, data: Any) -> tuple[Update, Any]:
    svi = DPSVI(
        model,
        guide,
        optax.adam(1e-3),
        sampling=SAMPLING,
        num_steps=10**5,
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        adjacency="zero_out",
    )
    return lambda state, data: svi.update(state, *data), svi.init(jax.random.key(0), *data)


def _plain(guide: Callable[..., Any], data: Any) -> tuple[Update, Any]:
    svi = SVI(model, guide, optax.adam(1e-3), Trace_ELBO())

    def update(state: Any, data: Any) -> tuple[Any, jax.Array]:
        svi_state, sampler = state
        draw, sampler = SAMPLING.draw(sampler)
        batch = SAMPLING.batch(draw, 0)
        svi_state, loss = svi.update(svi_state, *gather(data, batch.indices), batch.mask)
        return (svi_state, sampler), loss

    return update, (svi.init(jax.random.key(0), *data), SAMPLING.init(jax.random.key(1)))


def _case(name: str, update: Update, state: Any, data: Any) -> Case:
    run, held = compile_steps(update, jax.tree.map(jnp.array, state), data, STEPS), [state]

    def steps() -> Any:
        held[0], seen = run(jax.tree.map(jnp.array, held[0]), data, STEPS)
        return seen

    seconds = blocking(steps)
    return Case(name, lambda: seconds() / STEPS)


def main() -> None:
    """Prints milliseconds a step, and each step over numpyro's."""
    for kind, attributes in PROBLEMS:
        data = made_data(attributes)
        cases = [*step_cases(kind(model), data), draw_case(data)]
        times = interleaved(cases, Effort(seconds=1.0, repetitions=30))
        plain = times[NUMPYRO]
        for name, each in times.items():
            print(
                f"{kind.__name__}, {attributes} attributes, {name}: median {each.median:.3f} ms,"
                f" least {each.least:.3f} ms, {each.median / plain.median:.2f}"
                f" ({each.least / plain.least:.2f}) x numpyro"
            )


if __name__ == "__main__":
    main()
