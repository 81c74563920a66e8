"""Trains on a sparse memory-mapped file: ``large_memory_map.py FOLDER [keep]``.

Prints the bytes of the file, the bytes of the records that were read, and the peak resident memory
of the process in bytes, file pages included. With ``keep`` the pages of the map are not released.
"""

import re
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import ArraySource, data, train

NUM_EXAMPLES, LENGTH, NUM_STEPS = 80_000, 65_536, 70
MECHANISM = SubsampledGaussian(
    PoissonSampling(NUM_EXAMPLES, 64 / NUM_EXAMPLES),
    l2_clip=1.0,
    noise_multiplier=1.0,
    num_steps=NUM_STEPS,
    adjacency="zero_out",
)


def loss(weights, record):
    return (record.reshape(len(weights), -1).sum(axis=1) @ weights - 1.0) ** 2


def main(folder: str, keep: str = "") -> None:
    if keep:
        data._release_pages = lambda array: None
    path, shape = Path(folder) / "records.dat", (NUM_EXAMPLES, LENGTH)
    # Of the size at once, without a written byte: a sparse file.
    np.memmap(path, np.float32, "w+", shape=shape)
    read = []
    result = train(
        jax.random.key(0),
        loss,
        jnp.zeros(16),
        ArraySource(np.memmap(path, np.float32, "r", shape=shape)),
        optax.sgd(0.1),
        mechanism=MECHANISM,
        on_report=lambda report: read.append(int(report.infos.batch_size.sum())),
        steps_per_call=20,
        checkpoint_dir=Path(folder) / "run",
        progress=False,
    )
    assert np.isfinite(result.params).all()
    # Not of getrusage, whose peak is that of the process that started this one, if it is higher.
    status = Path("/proc/self/status").read_text()
    peak = 1024 * int(re.search(r"VmHWM:\s*(\d+) kB", status)[1])
    print(path.stat().st_size, sum(read) * LENGTH * 4, peak)


if __name__ == "__main__":
    main(*sys.argv[1:])
