"""One step of training as cases to time: compiled in JAX, or run by the torch worker."""

import os
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import optax

from experiments.bench.subjects import Subject, batch_of
from experiments.bench.timing import Case, blocking
from experiments.bench.torch_peer import FORMS_GRADIENTS, TORCH_WAYS, TorchWorker
from experiments.bench.ways import LEARNING_RATE, PLAIN, Way, jax_ways

_GIB = 1024.0


class Skipped(NamedTuple):
    """A case that is not timed, and why."""

    name: str
    reason: str


class Limits(NamedTuple):
    """What a case may take, in MiB; more, and it is skipped.

    Attributes:
      gradients: all examples' gradients, where a case forms them at once.
      memory: a step in all.
    """

    gradients: float
    memory: float


def default_limits() -> Limits:
    """Half of an accelerator's memory or a quarter of the host's, which others use too.

    Of gradients 4 GiB, or a third of the limit: what forms them holds more than one copy.
    """
    stats = jax.devices()[0].memory_stats() or {}
    pages = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    memory = _mib(stats["bytes_limit"] / 2 if "bytes_limit" in stats else pages / 4)
    return Limits(min(4 * _GIB, memory / 3), memory)


def step_cases(
    subject: Subject, size: int, limits: Limits, worker: TorchWorker | None
) -> Iterator[Case | Skipped]:
    """Yields one step on a batch of this size in every way there is, JAX's plain one first.

    Args:
      subject: what is trained.
      size: of the batch.
      limits: of memory.
      worker: for torch and Opacus; ``None`` where they are not installed.
    """
    params, batch = subject.init(), batch_of(subject, size)
    gradients = _mib(size * sum(leaf.nbytes for leaf in jax.tree.leaves(params)))
    too_much = _over(gradients, limits.gradients, "its per-example gradients take")
    fits = True
    for way in jax_ways(subject.loss, jax.random.key(0)):
        refused = too_much if way.per_example else ""
        case = Skipped(way.name, refused) if refused else _jax_case(way, params, batch, limits)
        fits &= way.name != PLAIN or isinstance(case, Case)
        yield case
    for name in TORCH_WAYS if worker else ():
        refused = too_much if name in FORMS_GRADIENTS else ""
        refused = refused if fits else "the plain step is skipped too"
        yield Skipped(name, refused) if refused else _torch_case(worker, name, subject, size)


def _jax_case(way: Way, params: Any, batch: Any, limits: Limits) -> Case | Skipped:
    size = len(jax.tree.leaves(batch)[0])
    optimizer = optax.chain(way.transform, optax.sgd(LEARNING_RATE / size))
    state = optimizer.init(params)

    def step(params: Any, state: Any, batch: Any) -> Any:
        updates, state = optimizer.update(way.gradient(params, batch), state)
        return optax.apply_updates(params, updates), state

    compiled = jax.jit(step).lower(params, state, batch).compile()
    peak = _peak_mib(compiled)
    refused = _over(peak, limits.memory, "a step takes")
    if refused:
        return Skipped(way.name, refused)
    return Case(way.name, blocking(lambda: compiled(params, state, batch)), peak)


def _torch_case(worker: Any, name: str, subject: Subject, size: int) -> Case | Skipped:
    try:
        peak = worker.prepare(name, subject, size)
    except RuntimeError as error:
        return Skipped(name, str(error))
    return Case(name, lambda: worker.step(name), peak)


def _peak_mib(compiled: Any) -> float:
    """Arguments, results and XLA's buffers; the same at each run, on every device."""
    memory = compiled.memory_analysis()
    return _mib(
        memory.temp_size_in_bytes
        + memory.output_size_in_bytes
        + memory.argument_size_in_bytes
        - memory.alias_size_in_bytes
    )


def _over(mib: float, limit: float, what: str) -> str:
    """In words that ``mib`` is over the limit; an empty text where it is not."""
    if mib <= limit:
        return ""
    return f"{what} {mib / _GIB:.1f} GiB, the limit is {limit / _GIB:.1f}"


def _mib(number_of_bytes: float) -> float:
    return number_of_bytes / 2**20
