"""A training run to be killed: ``resumable_run.py MODEL FOLDER [RESULT]``.

Prints a line for each report: how many releases, and a hash of the parameters that were released.
With ``RESULT`` it also trains without interruption, and writes both ends there.
"""

import hashlib
import json
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import Report, TrainResult, train

MECHANISM = SubsampledGaussian(
    PoissonSampling(60, 0.2),
    l2_clip=1.0,
    noise_multiplier=1.5,
    num_steps=24,
    adjacency="add_remove",
)


def dense_loss(params, example):
    x, y = example
    return (jnp.tanh(x.reshape(-1) @ params["in"]) @ params["out"] - y) ** 2


def conv_loss(params, example):
    x, y = example
    maps = jax.lax.conv_general_dilated(x[None, None], params["in"], (1, 1), "VALID")
    return (jnp.tanh(maps).reshape(-1) @ params["out"] - y) ** 2


MODELS = {
    "dense": (dense_loss, {"in": (36, 8), "out": (8,)}),
    "conv": (conv_loss, {"in": (2, 1, 3, 3), "out": (32,)}),
}


def run(model: str, folder: str | None) -> TrainResult:
    loss, shapes = MODELS[model]
    rng = np.random.default_rng(0)
    params = {name: rng.normal(size=s).astype(np.float32) for name, s in shapes.items()}
    data = (rng.normal(size=(60, 6, 6)).astype(np.float32), rng.normal(size=60).astype(np.float32))
    return train(
        jax.random.key(11),
        loss,
        params,
        data,
        optax.adam(0.01),
        mechanism=MECHANISM,
        steps_per_call=2,
        checkpoint_dir=folder,
        on_report=publish if folder else None,
        progress=False,
    )


def publish(report: Report) -> None:
    print(report.num_releases, fingerprint(report.params), flush=True)
    time.sleep(0.03)


def fingerprint(params) -> str:
    words = b"".join(np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(params))
    return hashlib.sha256(words).hexdigest()


def ending(result: TrainResult) -> dict:
    return {
        "params": fingerprint(result.params),
        "num_releases": result.mechanism.num_releases,
        "certificate": result.certificate(1e-3).to_dict(),
    }


def main(model: str, folder: str, result: str | None = None) -> None:
    ends = [ending(run(model, folder))]
    if result:
        ends.append(ending(run(model, None)))
        with open(result, "w") as file:
            json.dump(ends, file)


if __name__ == "__main__":
    main(*sys.argv[1:])
