"""What the Bayesian account adds to training, and what it costs alone."""

import time
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import optax

import dpjax
from dpjax import bdp
from dpjax.training.loop import compile_steps
from experiments.bench.subjects import SUBJECTS, Subject
from experiments.bench.timing import Case, Effort, interleaved

NUM_STEPS, DRAWS = 10_000, 1_024
_BLOCK = 10
_NUM_EXAMPLES = 8_192


def alone() -> list[Case]:
    """The accounts of 10,000 steps of 1,024 norms, and of a hundredth of them."""
    norms = np.random.default_rng(0).exponential(0.5, (NUM_STEPS, DRAWS)).astype(np.float32)
    mechanism = _mechanism(NUM_STEPS, DRAWS / 60_000)

    def case(steps: int) -> Case:
        def seconds() -> float:
            start = time.perf_counter()
            bdp.update(bdp.init(mechanism), norms[:steps])
            return time.perf_counter() - start

        return Case(f"{steps:,} steps of {DRAWS:,} norms", seconds)

    return [case(NUM_STEPS), case(NUM_STEPS // 100)]


def beside_training(name: str, batch: int) -> list[Case]:
    """Ten private steps: norms thrown away, norms handed out, and norms handed out and counted."""
    (subject,) = [subject for subject in SUBJECTS if subject.name == name]
    mechanism = _mechanism(10**6, batch / _NUM_EXAMPLES, _NUM_EXAMPLES)
    return [
        Case("norms thrown away", _block(subject, mechanism, keep=False, count=False)),
        Case("norms handed out", _block(subject, mechanism, keep=True, count=False)),
        Case("norms handed out and counted", _block(subject, mechanism, keep=True, count=True)),
    ]


def _block(
    subject: Subject, mechanism: dpjax.SubsampledGaussian, *, keep: bool, count: bool
) -> Callable[[], float]:
    """Seconds of a block of steps, and of their account where it is counted."""
    step = dpjax.private_step(subject.loss, optax.sgd(0.01), mechanism, key=jax.random.key(0))
    data = jax.device_put(subject.data(_NUM_EXAMPLES))

    def update(state: Any, data: Any) -> tuple[Any, Any]:
        state, info = step.update(state, data)
        return state, info if keep else info.num_nonfinite

    state = step.init(subject.init())
    run = compile_steps(update, state, data, _BLOCK)
    held: dict[str, Any] = {"state": state, "account": bdp.init(mechanism)}

    def seconds() -> float:
        start = time.perf_counter()
        held["state"], info = jax.block_until_ready(run(held["state"], data, _BLOCK))
        if count:
            held["account"] = bdp.update(held["account"], info.norms, info.mask)
        return time.perf_counter() - start

    return seconds


def _mechanism(num_steps: int, rate: float, num_examples: int = 60_000) -> dpjax.SubsampledGaussian:
    sampling = dpjax.PoissonSampling(num_examples, rate)
    return dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=num_steps, adjacency="zero_out"
    )


def main() -> None:
    """Prints what accounting costs alone, and what it adds to ten steps of two networks."""
    for name, times in interleaved(alone(), Effort(seconds=10.0, slow=60.0)).items():
        print(f"the Bayesian account of {name}: {times.median / 1e3:.3f} s")
    for network, batch in (("mlp", 256), ("cnn", DRAWS)):
        found = interleaved(beside_training(network, batch), Effort(seconds=20.0))
        plain = next(iter(found.values()))
        for name, times in found.items():
            ratios = times.median / plain.median, times.least / plain.least
            print(f"{network}, batch {batch}, {name}: {ratios[0]:.3f} ({ratios[1]:.3f}) of a step")
