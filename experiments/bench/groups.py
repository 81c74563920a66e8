"""What is compared: the steps of each model, and the two loops."""

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import optax

import dpjax
from dpjax.training.loop import on_device_loop, on_host_loop
from experiments.bench.steps import Limits, Skipped, step_cases
from experiments.bench.subjects import SUBJECTS, Subject, batch_of
from experiments.bench.timing import Case, blocking
from experiments.bench.torch_peer import TorchWorker

KINDS = ("steps", "loops")
_LOOP_DATA, _LOOP_BATCH, _LOOP_STEPS = 2048, 64, 20
_LOOP_SUBJECTS = ("mlp", "cnn")


class Group(NamedTuple):
    """Cases that are timed in turn, the first of them what the others are compared with.

    Attributes:
      kind: one of :data:`KINDS`.
      model: what they have in common, for readers.
      batch: examples in a batch, or ``None``.
      examples: that one call of a case works on, or ``None``.
      cases: timed or skipped, in order.
    """

    kind: str
    model: str
    batch: int | None
    examples: int | None
    cases: Sequence[Case | Skipped]


class Selection(NamedTuple):
    """What to measure.

    Attributes:
      kinds: of :data:`KINDS`.
      models: names of subjects.
      batches: sizes.
      limits: of memory.
    """

    kinds: Sequence[str]
    models: Sequence[str]
    batches: Sequence[int]
    limits: Limits

    @property
    def subjects(self) -> list[Subject]:
        """The subjects of these names."""
        return [subject for subject in SUBJECTS if subject.name in self.models]


Make = Callable[[], Group]


def make_groups(selection: Selection, worker: TorchWorker | None) -> Iterator[tuple[str, Make]]:
    """Yields each group's title, and what makes it: compiled one at a time, it is freed again."""
    for subject in selection.subjects if "steps" in selection.kinds else ():
        for size in selection.batches:
            title = f"{subject.title}, batch {size}"
            yield title, functools.partial(_steps, subject, size, selection.limits, worker)
    for subject in selection.subjects if "loops" in selection.kinds else ():
        if subject.name in _LOOP_SUBJECTS:
            yield f"{subject.title}, loops", functools.partial(_loops, subject)


def _steps(subject: Subject, size: int, limits: Limits, worker: TorchWorker | None) -> Group:
    if worker:
        worker.forget()
    cases = list(step_cases(subject, size, limits, worker))
    return Group("steps", subject.title, size, size, cases)


def _loops(subject: Subject) -> Group:
    """The loop on the host against that on the device: what `compile_steps` chooses between."""
    data, params = batch_of(subject, _LOOP_DATA), subject.init()
    sampling = dpjax.PoissonSampling(_LOOP_DATA, _LOOP_BATCH / _LOOP_DATA)
    mechanism = dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=10**6, adjacency="zero_out"
    )
    step = dpjax.private_step(subject.loss, optax.sgd(0.1), mechanism, key=jax.random.key(0))

    def case(name: str, loop: Any) -> Case:
        run = loop(step.update, step.init(params), data, _LOOP_STEPS)
        # A run consumes the state it is given: each call starts from the first one again.
        return Case(name, blocking(lambda: run(step.init(params), data, _LOOP_STEPS)))

    cases = [case("host loop", on_host_loop), case("device loop", on_device_loop)]
    return Group("loops", subject.title, _LOOP_BATCH, _LOOP_STEPS * _LOOP_BATCH, cases)
