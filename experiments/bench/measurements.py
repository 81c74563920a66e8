"""What the benchmark writes: one measurement for each case, and the versions they depend on."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from experiments.bench.groups import Group
from experiments.bench.timing import Case, Effort, Times, interleaved
from experiments.bench.ways import NOISY
from experiments.lib.records import write_atomically


@dataclass(frozen=True)
class Measurement:
    """One case of one group; what is ``None`` was not measured, as ``note`` says.

    Attributes:
      kind: ``"steps"`` or ``"loops"``.
      model: what is trained, or accounted for.
      batch: examples in a batch.
      case: which way of doing it.
      median_ms: of the repetitions.
      least_ms: of the repetitions.
      ratio: the median over that of the group's first case; of a step: over the plain one.
      noisy_ratio: the median over that of the plain step with noise.
      examples_per_second: at the median.
      peak_mib: memory at its peak, arguments included; counted, not sampled.
      repetitions: how many.
      note: why it was skipped, or timed once.
    """

    kind: str
    model: str
    batch: int | None
    case: str
    median_ms: float | None = None
    least_ms: float | None = None
    ratio: float | None = None
    noisy_ratio: float | None = None
    examples_per_second: float | None = None
    peak_mib: float | None = None
    repetitions: int = 0
    note: str = ""


@dataclass(frozen=True)
class Bench:
    """A whole run.

    Attributes:
      versions: of what was measured.
      device: in words.
      missing: the peers that could not be measured, and why.
      measurements: in the order they were made.
    """

    versions: Mapping[str, str]
    device: str
    missing: Mapping[str, str]
    measurements: tuple[Measurement, ...] = field(default=())


def measure(group: Group, effort: Effort) -> list[Measurement]:
    """Times a group; a case that was skipped keeps its place, with the reason."""
    cases = [case for case in group.cases if isinstance(case, Case)]
    times = interleaved(cases, effort)
    return [
        _measured(group, case, times)
        if isinstance(case, Case)
        else Measurement(group.kind, group.model, group.batch, case.name, note=case.reason)
        for case in group.cases
    ]


def _measured(group: Group, case: Case, times: Mapping[str, Times]) -> Measurement:
    mine, first = times[case.name], times.get(group.cases[0].name)
    noisy = times.get(NOISY)
    return Measurement(
        group.kind,
        group.model,
        group.batch,
        case.name,
        median_ms=mine.median,
        least_ms=mine.least,
        ratio=mine.median / first.median if first else None,
        noisy_ratio=mine.median / noisy.median if noisy else None,
        examples_per_second=1e3 * group.examples / mine.median if group.examples else None,
        peak_mib=case.peak_mib,
        repetitions=len(mine.seconds),
        note="slow: its first call alone" if mine.slow else "",
    )


def save(results: Path, bench: Bench) -> Path:
    """Writes ``bench.json`` and returns its path."""
    path = results / "bench.json"
    write_atomically(path, json.dumps(asdict(bench), indent=1, ensure_ascii=False) + "\n")
    return path


def load(results: Path) -> Bench | None:
    """Returns what :func:`save` wrote; ``None`` where there is nothing.

    Raises:
      ValueError: if the file holds something else.

    >>> load(Path("no_such_folder")) is None
    True
    """
    path = results / "bench.json"
    if not path.exists():
        return None
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        measurements = tuple(Measurement(**item) for item in content.pop("measurements"))
        return Bench(**content, measurements=measurements)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} must be a benchmark's results; remove it") from error
