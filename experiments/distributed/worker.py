"""One process of a run: joins the others, trains on its own records, writes what was released."""

import os
import sys
import threading
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpyro.distributions import constraints
from tqdm import tqdm

from dpjax._typing import PyTree
from dpjax.bayes.sgmcmc import SGLD, sample
from dpjax.bayes.variational import DPSVI
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import (
    ArraySource,
    DataSource,
    MeshSharding,
    Report,
    SplitRecords,
    split_records,
    train,
)

NUM_EXAMPLES, NUM_FEATURES, NUM_STEPS, STEPS_PER_CALL = 1003, 16, 24, 2
# Seconds for which a process waits for others to join, and for a sign of life of one that has.
JOINING, HEARTBEAT = 30, 10


class Config(NamedTuple):
    """What one process does.

    Attributes:
      jobs: names in `JOBS`, done one after another.
      address: of the coordinator, ``127.0.0.1:port``.
      num_processes: number of processes.
      process: number of this one.
      result: path of the file that process 0 writes.
      num_devices: of this process.
      checkpoint_dir: shared folder, or ``None``.
      recoverable: JAX's option ``jax_enable_recoverability``.
    """

    jobs: tuple[str, ...]
    address: str
    num_processes: int
    process: int
    result: str
    num_devices: int = 1
    checkpoint_dir: str | None = None
    recoverable: bool = False


def run_process(config: Config, log: str) -> None:
    """Runs one process, and ends it as a program of its own ends."""
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    tqdm.set_lock(threading.RLock())  # by default a semaphore, which a killed process leaves
    try:
        main(config)
    except Exception:
        traceback.print_exc()
        sys.exit(1)
    finally:  # JAX does so when a program exits, but not when a forked process does
        sys.stderr.flush()
        jax.distributed.shutdown()


def main(config: Config) -> None:
    """Joins the other processes and does the jobs."""
    options = {
        "jax_platforms": "cpu",
        "jax_num_cpu_devices": config.num_devices,
        "jax_enable_recoverability": config.recoverable,
        # Compiling is most of the time: what it makes is kept, as that of the tests.
        "jax_disable_most_optimizations": True,
        "jax_compilation_cache_dir": str(Path(__file__).parents[2] / ".cache" / "jax"),
        "jax_persistent_cache_min_compile_time_secs": 0.0,
    }
    for name, value in options.items():
        jax.config.update(name, value)
    if config.num_processes > 1:
        jax.distributed.initialize(
            config.address,
            config.num_processes,
            config.process,
            coordinator_bind_address=config.address,
            initialization_timeout=JOINING,
            heartbeat_timeout_seconds=HEARTBEAT,
        )
    sharding = MeshSharding(jax.make_mesh((jax.device_count(),), ("data",)))
    data = split_records(own_part(config), sharding)
    released: dict[str, Any] = {}
    for job in config.jobs:
        for name, array in JOBS[job](config, data, sharding).items():
            released[f"{job} {name}"] = array
    if config.process == 0:
        np.savez(config.result, **released)


def all_records() -> dict[str, np.ndarray]:
    """The records of all processes together: a logistic model, and weights of the losses."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(NUM_EXAMPLES, NUM_FEATURES)).astype(np.float32)
    labels = rng.random(NUM_EXAMPLES) < 1 / (1 + np.exp(-2 * x[:, 0]))
    return {"x": x, "y": labels.astype(np.float32), "weight": np.ones(NUM_EXAMPLES, np.float32)}


def own_part(config: Config) -> dict[str, np.ndarray]:
    """This process's records: parts of unequal size, the last of four empty."""
    ends = np.cumsum([0, *part_sizes(config.num_processes)])
    part = slice(ends[config.process], ends[config.process + 1])
    return {name: array[part] for name, array in all_records().items()}


def part_sizes(num_processes: int) -> list[int]:
    """Numbers of records of the processes, ``NUM_EXAMPLES`` together."""
    return {1: [NUM_EXAMPLES], 2: [700, 303], 4: [500, 300, 203, 0]}[num_processes]


def fit_sgd(
    config: Config,
    data: SplitRecords | DataSource,
    sharding: MeshSharding,
    *,
    seed: int = 7,
    scale: float = 1.0,
    noise_multiplier: float = 1.0,
) -> dict[str, np.ndarray]:
    """NoisySGD of a network with one hidden layer, its loss multiplied by ``scale``."""

    def loss(params: PyTree, example: PyTree) -> jax.Array:
        hidden = jnp.tanh(example["x"] @ params["hidden"])
        logit = hidden @ params["out"]
        loss = optax.sigmoid_binary_cross_entropy(logit, example["y"])
        return scale * example["weight"] * loss

    def report(found: Report) -> None:
        if config.process == 0:
            print("release", found.num_releases, flush=True)

    rng = np.random.default_rng(1)
    params = {
        "hidden": rng.normal(size=(NUM_FEATURES, 32)).astype(np.float32) / 4,
        "out": rng.normal(size=32).astype(np.float32) / 4,
    }
    mechanism = SubsampledGaussian(
        PoissonSampling(NUM_EXAMPLES, 0.1),
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
    )
    result = train(
        jax.random.key(seed),
        loss,
        params,
        data,
        optax.sgd(0.5),
        mechanism=mechanism,
        sharding=sharding,
        steps_per_call=STEPS_PER_CALL,
        checkpoint_dir=config.checkpoint_dir,
        on_report=report,
        progress=False,
    )
    epsilon = result.certificate(1e-5).epsilon
    return {**jax.tree.map(np.asarray, result.params), "epsilon": np.array(epsilon)}


def fit_noise(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """NoisySGD of records without weight, which releases its noise alone."""
    weightless = {**data.arrays, "weight": jnp.zeros_like(data.arrays["weight"])}
    return fit_sgd(config._replace(checkpoint_dir=None), replace(data, arrays=weightless), sharding)


def fit_source(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """NoisySGD on a data source of all records, of which each process reads its drawn ones."""
    del data
    return fit_sgd(config._replace(checkpoint_dir=None), ArraySource(all_records()), sharding)


def refuse(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """Errors of runs where process 1 has another key, loss, mechanism, source, or equal records."""
    wrong = config.process == 1
    source = ArraySource({**all_records(), "weight": np.full(NUM_EXAMPLES, 1 + wrong, np.float32)})
    same = {name: array[:9] for name, array in all_records().items()}
    attempts: dict[str, Callable[[], Any]] = {
        "key": lambda: fit_sgd(config, data, sharding, seed=8 if wrong else 7),
        "loss": lambda: fit_sgd(config, data, sharding, scale=2.0 if wrong else 1.0),
        "mechanism": lambda: fit_sgd(config, data, sharding, noise_multiplier=1.0 - 0.1 * wrong),
        "source": lambda: fit_sgd(config, source, sharding),
        "records": lambda: split_records(same, sharding),
    }
    errors = {}
    for name, attempt in attempts.items():
        try:
            attempt()
            errors[name] = np.array("")
        except ValueError as error:
            errors[name] = np.array(str(error))
    return errors


def fit_dpsvi(config: Config, data: SplitRecords, sharding: MeshSharding) -> dict[str, np.ndarray]:
    """DPSVI of a logistic regression."""

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([NUM_FEATURES]).to_event(1))
        with numpyro.plate("records", len(x)):
            numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)

    def guide(x: Any, y: Any) -> None:  # by hand, as it has less to compile than an autoguide
        loc = numpyro.param("loc", jnp.zeros(NUM_FEATURES))
        scale = numpyro.param("scale", jnp.ones(NUM_FEATURES) / 10, constraint=constraints.positive)
        numpyro.sample("w", dist.Normal(loc, scale).to_event(1))

    mechanism = SubsampledGaussian(
        PoissonSampling(NUM_EXAMPLES, 0.1),
        num_steps=NUM_STEPS,
        l2_clip=1.0,
        noise_multiplier=1.0,
        adjacency="zero_out",
    )
    svi = DPSVI(model, guide, optax.adam(0.05), mechanism=mechanism, sharding=sharding)
    result = svi.run(jax.random.key(7), data["x"], data["y"], progress_bar=False)
    epsilon = result.certificate(1e-5).epsilon
    return {**jax.tree.map(np.asarray, result.params), "epsilon": np.array(epsilon)}


def sample_sgld(
    config: Config, data: SplitRecords, sharding: MeshSharding
) -> dict[str, np.ndarray]:
    """Two SGLD chains of a logistic regression."""

    def log_likelihood(w: jax.Array, example: PyTree) -> jax.Array:
        return -optax.sigmoid_binary_cross_entropy(example["x"] @ w, example["y"])

    chain = SGLD(
        PoissonSampling(NUM_EXAMPLES, 0.1),
        l2_clip=1.0,
        step_size=0.1,
        num_steps=NUM_STEPS,
        adjacency="zero_out",
        num_chains=2,
    )
    result = sample(
        jax.random.key(7),
        log_likelihood,
        lambda w: -jnp.sum(w**2) / 2,
        jnp.zeros(NUM_FEATURES),
        data,
        mechanism=chain,
        thinning=2,
        sharding=sharding,
        checkpoint_dir=config.checkpoint_dir,
        progress=False,
    )
    return {"samples": result.samples, "epsilon": np.array(result.certificate(1e-5).epsilon)}


JOBS: dict[str, Callable[[Config, SplitRecords, MeshSharding], dict[str, np.ndarray]]] = {
    "sgd": fit_sgd,
    "source": fit_source,
    "noise": fit_noise,
    "dpsvi": fit_dpsvi,
    "sgld": sample_sgld,
    "refused": refuse,
}
