"""What the benchmark of the accountants writes: one measurement for each way and question."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from experiments.bench.timing import Case, Effort, interleaved
from experiments.bench_accounting.ways import ManyWay, Setting, Way, many_settings
from experiments.lib.records import write_atomically

MANY = "many settings"


@dataclass(frozen=True)
class Measurement:
    """One way to answer one question.

    Attributes:
      question: a setting's name, or :data:`MANY`.
      way: which accountant, and how it was called.
      median_ms: of the repetitions.
      least_ms: of the repetitions.
      repetitions: how many.
      num_settings: answered for in one call.
      epsilon: the answer; ``None`` for many settings.
      over_certified: the answer over the epsilon that a certificate prints.
      note: what kind of number epsilon is, where it is not an upper bound.
    """

    question: str
    way: str
    median_ms: float
    least_ms: float
    repetitions: int
    num_settings: int = 1
    epsilon: float | None = None
    over_certified: float | None = None
    note: str = ""


@dataclass(frozen=True)
class AccountingBench:
    """A whole run.

    Attributes:
      versions: of what was measured.
      device: in words.
      missing: the libraries that could not be measured, and why.
      measurements: in the order they were made.
    """

    versions: Mapping[str, str]
    device: str
    missing: Mapping[str, str]
    measurements: tuple[Measurement, ...] = field(default=())


def measure_single(setting: Setting, ways: Sequence[Way], effort: Effort) -> list[Measurement]:
    """Times every way to the epsilon of one setting, in turn."""
    cases = [Case(way.name, _timed(way.epsilon, _variants(setting))) for way in ways]
    times, certified = interleaved(cases, effort), setting.certified
    found = [(way, times[way.name], way.epsilon(setting)) for way in ways]
    return [
        Measurement(
            setting.name,
            way.name,
            time.median,
            time.least,
            len(time.seconds),
            epsilon=epsilon,
            over_certified=epsilon / certified,
            note=way.note,
        )
        for way, time, epsilon in found
    ]


def measure_many(ways: Sequence[ManyWay], effort: Effort) -> list[Measurement]:
    """Times every way to the epsilons of many settings, in turn."""

    def case(way: ManyWay) -> Case:
        noise, rate, steps = many_settings(way.num_settings)
        variants = (noise * nudge for nudge in _nudges())
        return Case(way.name, _timed(lambda noise: way.epsilons(noise, rate, steps), variants))

    times = interleaved([case(way) for way in ways], effort)
    return [
        Measurement(
            MANY,
            way.name,
            times[way.name].median,
            times[way.name].least,
            len(times[way.name].seconds),
            way.num_settings,
        )
        for way in ways
    ]


def _timed(solve: Callable[[Any], Any], questions: Iterator[Any]) -> Callable[[], float]:
    def seconds() -> float:
        question = next(questions)
        start = time.perf_counter()
        solve(question)
        return time.perf_counter() - start

    return seconds


def _variants(setting: Setting) -> Iterator[Setting]:
    noise = setting.noise_multiplier
    return (setting._replace(noise_multiplier=noise * nudge) for nudge in _nudges())


def _nudges() -> Iterator[float]:
    """Yields factors next to 1: no question is asked twice, so that no cache knows the answer."""
    return (1 + 1e-9 * number for number in count(1))


def save(results: Path, bench: AccountingBench) -> Path:
    """Writes ``bench_accounting.json`` and returns its path."""
    path = results / "bench_accounting.json"
    write_atomically(path, json.dumps(asdict(bench), indent=1, ensure_ascii=False) + "\n")
    return path


def load(results: Path) -> AccountingBench | None:
    """Returns what :func:`save` wrote; ``None`` where there is nothing.

    Raises:
      ValueError: if the file holds something else.

    >>> load(Path("no_such_folder")) is None
    True
    """
    path = results / "bench_accounting.json"
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        measurements = tuple(Measurement(**item) for item in content.pop("measurements"))
        return AccountingBench(**content, measurements=measurements)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must be a benchmark's results; remove it") from error
