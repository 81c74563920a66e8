"""One process of a run: ``python -m experiments.distributed.worker CONFIG``.

It joins the other processes, trains on its own part of the records, and writes what was released.
"""

import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.infer.autoguide import AutoNormal

from dpjax.bayes.variational import DPSVI
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import MeshSharding, Report, SplitRecords, split_records, train

NUM_EXAMPLES, NUM_FEATURES, NUM_STEPS = 1003, 16, 24
# Seconds without a sign of life after which the other processes give a process up.
HEARTBEAT = 10


class Config(NamedTuple):
    """What one process does.

    Attributes:
      job: ``"sgd"`` or ``"dpsvi"``.
      address: of the coordinator, ``127.0.0.1:port``.
      num_processes: number of processes.
      index: of this one.
      result: path of the file that process 0 writes.
      checkpoint_dir: shared folder, or ``None``.
      pause: seconds after each report of ``"sgd"``.
      fault: what is wrong with process 1: ``""``, ``"key"``, ``"loss"`` or ``"records"``.
    """

    job: str
    address: str
    num_processes: int
    index: int
    result: str
    checkpoint_dir: str | None = None
    pause: float = 0.0
    fault: str = ""


def main(path: str) -> None:
    """Runs one process.

    Args:
      path: of its `Config`, as JSON.
    """
    config = Config(**json.loads(Path(path).read_text()))
    if config.num_processes > 1:
        jax.distributed.initialize(
            config.address,
            config.num_processes,
            config.index,
            coordinator_bind_address=config.address,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    sharding = MeshSharding(jax.make_mesh((jax.device_count(),), ("data",)))
    data = split_records(own_part(config), sharding)
    released = JOBS[config.job](config, data, sharding)
    if config.index == 0:
        np.savez(config.result, **released)


def all_records() -> dict[str, np.ndarray]:
    """The records of all processes together: a logistic model."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(np.float32)
    labels = rng.random(NUM_EXAMPLES) < 1 / (1 + np.exp(-2 * x[:, 0]))
    return {"x": x, "y": labels.astype(np.float32)}


def own_part(config: Config) -> dict[str, np.ndarray]:
    """This process's records: parts of unequal size, the last of four empty."""
    shares = {1: [1.0], 2: [0.7, 0.3], 4: [0.5, 0.3, 0.2, 0.0]}[config.num_processes]
    ends = np.round(np.cumsum([0, *shares]) * NUM_EXAMPLES).astype(int)
    index = 0 if config.fault == "records" and config.index == 1 else config.index
    part = slice(ends[index], ends[index + 1])
    return {name: array[part] for name, array in all_records().items()}


def fit_sgd(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """NoisySGD of a network with one hidden layer."""
    wrong = config.index == 1
    seed = 8 if wrong and config.fault == "key" else 7
    scale = 2.0 if wrong and config.fault == "loss" else 1.0

    def loss(params: Any, example: Any) -> jax.Array:
        hidden = jnp.tanh(example["x"] @ params["hidden"])
        logit = hidden @ params["out"]
        return scale * optax.sigmoid_binary_cross_entropy(logit, example["y"])

    def report(found: Report) -> None:
        if config.index == 0:
            print("release", found.num_releases, flush=True)
        time.sleep(config.pause)

    rng = np.random.default_rng(1)
    params = {
        "hidden": rng.normal(size=(NUM_FEATURES, 32)).astype(np.float32) / 4,
        "out": rng.normal(size=32).astype(np.float32) / 4,
    }
    mechanism = SubsampledGaussian(
        PoissonSampling(NUM_EXAMPLES, 0.1),
        l2_clip=1.0,
        noise_multiplier=1.0,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
    )
    result = train(
        jax.random.key(seed),
        loss,
        params,
        data,
        mechanism,
        optax.sgd(0.5),
        sharding=sharding,
        steps_per_call=2,
        checkpoint_dir=config.checkpoint_dir,
        on_report=report,
        progress=False,
    )
    epsilon = result.certificate(1e-5).epsilon
    return {**jax.tree.map(np.asarray, result.params), "epsilon": np.array(epsilon)}


def fit_dpsvi(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """DPSVI of a logistic regression."""

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([NUM_FEATURES]).to_event(1))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    svi = DPSVI(
        model,
        AutoNormal(model),
        optax.adam(0.05),
        sampling=PoissonSampling(NUM_EXAMPLES, 0.1),
        num_steps=NUM_STEPS,
        l2_clip=1.0,
        noise_multiplier=1.0,
        adjacency="zero_out",
        sharding=sharding,
    )
    records = data["x"], data["y"]
    result = svi.run(jax.random.key(7), NUM_STEPS, *records, progress_bar=False)
    epsilon = svi.certificate(1e-5).epsilon
    return {**jax.tree.map(np.asarray, result.params), "epsilon": np.array(epsilon)}


JOBS: dict[str, Callable[[Config, SplitRecords, MeshSharding], dict[str, np.ndarray]]] = {
    "sgd": fit_sgd,
    "dpsvi": fit_dpsvi,
}

if __name__ == "__main__":
    main(sys.argv[1])
