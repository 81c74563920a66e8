"""Time and memory of one training step by each method, and of the two loops of ``dpjax.train``."""

import functools
import importlib.util
import itertools
import os
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import jax
import optax

import dpjax
from dpjax._typing import PyTree
from dpjax.training.run import device_loop, host_loop
from experiments.benchmarks.methods import LEARNING_RATE, NOISY, PLAIN, Method, jax_methods
from experiments.benchmarks.models import MODELS, Model
from experiments.benchmarks.results import Group, Groups, Values, ratio, title
from experiments.benchmarks.timing import Case, Times, blocking
from experiments.benchmarks.torch_client import (
    PER_EXAMPLE_METHODS,
    TORCH_METHODS,
    TorchWorker,
    torch_worker,
)

_GIB = 1024.0
_LOOP_DATA, _LOOP_BATCH, _LOOP_STEPS = 2048, 64, 20
_LOOP_MODELS = ("mlp", "cnn")


class Limits(NamedTuple):
    """Memory limits in MiB; a case that exceeds them is skipped."""

    gradients: float  # of all per-example gradients together
    memory: float  # of a step


def default_limits() -> Limits:
    """Returns half of an accelerator's memory or a quarter of the host's.

    Per-example gradients may take 4 GiB or a third of it, since several copies are held.
    """
    stats = jax.devices()[0].memory_stats() or {}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = (stats["bytes_limit"] / 2 if "bytes_limit" in stats else pages / 4) / 2**20
    return Limits(min(4 * _GIB, memory / 3), memory)


def step_groups(batches: Sequence[int]) -> Groups:
    """Yields the groups of steps by model and batch size, and of the two loops."""
    limits, installed = default_limits(), importlib.util.find_spec("opacus")
    with torch_worker() if installed else nullcontext() as worker:
        for model in MODELS.values():
            for size in batches:
                make = functools.partial(_step_group, model, size, limits, worker)
                yield title(model.title, size), make
    for name in _LOOP_MODELS:
        model = MODELS[name]
        yield f"{model.title}, loops", functools.partial(loop_group, model)


def _step_group(model: Model, size: int, limits: Limits, worker: TorchWorker | None) -> Group:
    if worker:
        worker.forget()
    cases = list(step_cases(model, size, limits, worker))
    return Group("steps", model.title, cases, functools.partial(step_values, size), batch=size)


def step_values(size: int, case: Case, times: Mapping[str, Times]) -> Values:
    """Returns the values of a step on a batch of ``size`` examples, by column."""
    median = times[case.name].median
    opacus = [name for name in times if name.startswith("Opacus")]
    best = min(opacus, key=lambda name: times[name].median, default="")
    ratios = ratios_by_third(times, case.name, PLAIN)
    return {
        "ms": median,
        "× plain": ratio(times, case, PLAIN),
        "least": min(ratios, default=None),
        "most": max(ratios, default=None),
        "× noisy": ratio(times, case, NOISY),
        "× Opacus, best": ratio(times, case, best),
        "× torch": ratio(times, case, TORCH_METHODS[0]),
        "examples/s": 1e3 * size / median,
        **case.values,
    }


def ratios_by_third(times: Mapping[str, Times], name: str, baseline: str) -> list[float]:
    """Returns the ratio of medians in each third of a run; none if one was timed once.

    >>> twice = {"a": Times((2.0, 3.0, 4.0), False), "b": Times((1.0, 1.0, 1.0), False)}
    >>> ratios_by_third(twice, "a", "b")
    [2.0, 3.0, 4.0]
    """
    if any(other not in times or times[other].slow for other in (name, baseline)):
        return []

    def medians(seconds: Sequence[float]) -> list[float]:
        cuts = [number * len(seconds) // 3 for number in range(4)]
        return [statistics.median(seconds[a:b]) for a, b in itertools.pairwise(cuts)]

    pairs = zip(medians(times[name].seconds), medians(times[baseline].seconds), strict=True)
    return [own / other for own, other in pairs]


def step_cases(
    model: Model, size: int, limits: Limits, worker: TorchWorker | None
) -> Iterator[Case]:
    """Yields one step on a batch of ``size`` by every method, with torch if there is a worker."""
    params, batch = model.init(), model.batch(size)
    gradients = size * sum(leaf.nbytes for leaf in jax.tree.leaves(params)) / 2**20
    too_much = _over(gradients, limits.gradients, "its per-example gradients take")
    fits = True
    for method in jax_methods(model.loss, jax.random.key(0)):
        if method.per_example and too_much:
            yield Case(method.name, None, note=too_much)
            continue
        case = _jax_case(method, params, batch, limits)
        fits = fits and (method.name != PLAIN or case.seconds is not None)
        yield case
    for name in TORCH_METHODS if worker else ():
        refused = too_much if name in PER_EXAMPLE_METHODS else ""
        refused = refused if fits else "the plain step is skipped too"
        yield Case(name, None, note=refused) if refused else _torch_case(worker, name, model, size)


def _jax_case(method: Method, params: PyTree, batch: PyTree, limits: Limits) -> Case:
    size = len(jax.tree.leaves(batch)[0])
    optimizer = optax.chain(method.transform, optax.sgd(LEARNING_RATE / size))
    state = optimizer.init(params)

    def step(params: PyTree, state: PyTree, batch: PyTree) -> PyTree:
        updates, state = optimizer.update(method.gradient(params, batch), state)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step).lower(params, state, batch).compile()
    # Arguments, results and XLA's buffers.
    memory: Any = compiled.memory_analysis()
    arguments = memory.argument_size_in_bytes - memory.alias_size_in_bytes
    peak = (memory.temp_size_in_bytes + memory.output_size_in_bytes + arguments) / 2**20
    refused = _over(peak, limits.memory, "a step takes")
    if refused:
        return Case(method.name, None, note=refused)
    return Case(method.name, blocking(compiled, params, state, batch), {"peak MiB": peak})


def _torch_case(worker: Any, name: str, model: Model, size: int) -> Case:
    try:
        peak = worker.prepare(name, model, size)
    except RuntimeError as error:
        return Case(name, None, note=str(error))
    return Case(name, lambda: worker.step(name), {"peak MiB": peak})


def _over(mib: float, limit: float, what: str) -> str:
    """Returns a message if ``mib`` exceeds the limit, else an empty string."""
    if mib <= limit:
        return ""
    return f"{what} {mib / _GIB:.1f} GiB, the limit is {limit / _GIB:.1f}"


def loop_group(model: Model) -> Group:
    """Returns the host loop and the device loop of ``dpjax.train``."""
    data, params = model.batch(_LOOP_DATA), model.init()
    sampling = dpjax.PoissonSampling(_LOOP_DATA, _LOOP_BATCH / _LOOP_DATA)
    mechanism = dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=10**6, adjacency="zero_out"
    )
    step = dpjax.private_step(
        model.loss, optax.sgd(0.1), mechanism=mechanism, key=jax.random.key(0)
    )

    def case(name: str, loop: Any) -> Case:
        run = loop(step.update, step.init(params), data, _LOOP_STEPS)
        # A run donates its state, so each call starts from a new one.
        return Case(name, blocking(lambda: run(step.init(params), data, _LOOP_STEPS)))

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        median = times[case.name].median
        return {
            "ms": median,
            "× host": ratio(times, case, "host loop"),
            "examples/s": 1e3 * _LOOP_STEPS * _LOOP_BATCH / median,
        }

    cases = [case("host loop", host_loop), case("device loop", device_loop)]
    return Group("loops", model.title, cases, columns, batch=_LOOP_BATCH)
