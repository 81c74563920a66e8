"""What privacy costs in time: ``make bench``.

Every claim is a ratio within one group, whose cases run in turn in one process, so that a noisy
machine disturbs all of them alike; medians are kept. Results go to ``results/bench.json``.
"""

import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

import dpjax
from dpjax.accounting import accountants
from dpjax.training.loop import on_device_loop, on_host_loop
from experiments.gdp.mnist import published_mechanisms
from experiments.models import MnistCNN, cross_entropy
from experiments.records import write_atomically

Call = Callable[[], Any]
Group = tuple[str, Mapping[str, Call]]


@dataclass(frozen=True)
class Timing:
    """One case beside the first of its group.

    Attributes:
      group: what is compared.
      case: which way of doing it.
      milliseconds: median wall-clock time of one call.
      ratio: the same over that of the group's first case.
    """

    group: str
    case: str
    milliseconds: float
    ratio: float


class Mlp(nn.Module):
    """784-256-10 on images."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = nn.relu(nn.Dense(256)(images.reshape(len(images), -1)))
        return nn.Dense(10)(x)


MODELS: dict[str, nn.Module] = {"MLP 784-256-10": Mlp(), "tutorial CNN": MnistCNN()}


def interleaved(group: Group, repetitions: int) -> list[Timing]:
    """Times the cases of a group in turn, after two calls each to warm up."""
    name, cases = group
    seconds: dict[str, list[float]] = {case: [] for case in cases}
    for repetition in range(repetitions + 2):
        for case, call in cases.items():
            start = time.perf_counter()
            jax.block_until_ready(call())
            if repetition >= 2:
                seconds[case].append(time.perf_counter() - start)
    medians = {case: 1e3 * statistics.median(times) for case, times in seconds.items()}
    first = next(iter(medians.values()))
    return [Timing(name, case, median, median / first) for case, median in medians.items()]


def step_groups(batch_size: int) -> Iterator[Group]:
    """A plain step, the same with noise, and private steps, on one batch."""
    for name, model in MODELS.items():
        batch = _images(batch_size)
        params = model.init(jax.random.key(0), batch[0][:1])["params"]
        yield f"{name}, one step, batch {batch_size}", _steps(cross_entropy(model), params, batch)


def _steps(loss_fn: Any, params: Any, batch: Any) -> dict[str, Call]:
    size, key = len(batch[1]), jax.random.key(0)
    noise = dpjax.add_noise(1.1, 1.0, key)
    aggregate = optax.contrib.differentially_private_aggregate(1.0, 1.1, key)
    clipped = dpjax.clipped_grad(loss_fn, 1.0)

    def mean_loss(params: Any, batch: Any) -> jax.Array:
        return jax.vmap(loss_fn, (None, 0))(params, batch).mean()

    def per_example(params: Any, batch: Any) -> Any:
        return jax.vmap(jax.grad(loss_fn), (None, 0))(params, batch)

    ways = {
        "plain": (jax.grad(mean_loss), optax.identity()),
        "plain + noise": (jax.grad(mean_loss), noise),
        "dpjax, clipped + noise": (lambda p, b: clipped(p, b)[0], noise),
        "optax.contrib": (per_example, aggregate),
    }
    return {case: _step(*way, params, batch, size) for case, way in ways.items()}


def _step(gradient: Any, transform: Any, params: Any, batch: Any, size: int) -> Call:
    optimizer = optax.chain(transform, optax.sgd(0.1 / size))
    state = optimizer.init(params)

    @jax.jit
    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = optimizer.update(gradient(params, batch), state)
        return optax.apply_updates(params, updates), state

    return lambda: step(params, state, batch)


def loop_groups(num_steps: int = 20) -> Iterator[Group]:
    """The loop on the device against the loop on the host: what `compile_steps` chooses between."""
    for name, model in MODELS.items():
        data = _images(2048)
        params = model.init(jax.random.key(0), data[0][:1])["params"]
        mechanism = dpjax.SubsampledGaussian(
            dpjax.PoissonSampling(2048, 64 / 2048), 1.0, 1.1, 10**6, "add_remove"
        )
        step = dpjax.private_step(
            cross_entropy(model), optax.sgd(0.1), mechanism, jax.random.key(0)
        )
        loops = {"host loop": on_host_loop, "device loop": on_device_loop}
        runs = {
            case: _repeatable(loop(step.update, step.init(params), data, num_steps), step, params)
            for case, loop in loops.items()
        }
        calls = {case: functools.partial(run, num_steps) for case, run in runs.items()}
        yield f"{name}, {num_steps} private steps, batch 64", calls


def _repeatable(run: Any, step: dpjax.training.PrivateStep, params: Any) -> Callable[[int], Any]:
    """Each call starts from the first state again: a run consumes the state it is given."""
    return lambda num_steps: run(step.init(params), num_steps)


def certificate_group() -> Group:
    """Every accountant on row 2 of the MNIST table."""
    event = published_mechanisms()[1].event
    epsilon = functools.partial(dpjax.accounting.epsilon, event, 1e-5, adjacency="add_remove")
    calls = {method: functools.partial(epsilon, method=method) for method in accountants.METHODS}
    return "accountants, MNIST row 2 (14,062 steps)", calls


def _images(count: int) -> tuple[jax.Array, jax.Array]:
    generator = np.random.default_rng(0)
    images = generator.normal(size=(count, 28, 28, 1)).astype(np.float32)
    return jnp.asarray(images), jnp.asarray(generator.integers(0, 10, count), jnp.int32)


def main(results: Path = Path("results"), repetitions: int = 15) -> None:
    """Runs everything, prints a table and writes ``results/bench.json``."""
    groups = [*step_groups(64), *step_groups(256), *loop_groups(), certificate_group()]
    timings = [timing for group in tqdm(groups) for timing in interleaved(group, repetitions)]
    write_atomically(results / "bench.json", json.dumps([asdict(t) for t in timings], indent=1))
    for timing in timings:
        case = f"{timing.group:<45} {timing.case:<24}"
        print(f"{case} {timing.milliseconds:9.2f} ms {timing.ratio:8.2f} x")


if __name__ == "__main__":
    main()
