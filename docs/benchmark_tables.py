"""Tables of the benchmarks page, from the files that ``make bench`` writes."""

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

PARTS = {
    "steps": "Training steps",
    "accounting": "Accountants",
    "inference": "Inference",
    "imports": "Imports",
}
_NONE = "There are no results: `make bench` writes them, and the next `make docs` shows them.\n"


def render(results: Path) -> str:
    """Returns Markdown with a table for each comparison in ``results/benchmarks_*.json``.

    A figure of the same part, ``results/figures/benchmarks_PART.png`` or, of the training steps,
    ``results/figures/benchmarks.png``, follows its tables.
    """
    blocks: list[str] = []
    for part, heading in PARTS.items():
        path = results / f"benchmarks_{part}.json"
        if path.exists():
            benchmark = json.loads(path.read_text("utf-8"))
            blocks += [f"### {heading}", describe(benchmark), *tables(benchmark["measurements"])]
            names = [f"benchmarks_{part}.png", *(["benchmarks.png"] if part == "steps" else [])]
            figures = [results / "figures" / name for name in names]
            blocks += [f"![{heading}]({path})" for path in figures if path.exists()]
    return "\n\n".join(blocks) + "\n" if blocks else _NONE


def describe(benchmark: dict[str, Any]) -> str:
    """Returns the machine, the versions, and the libraries that could not be measured."""
    versions = ", ".join(f"{name} {version}" for name, version in benchmark["versions"].items())
    missing = "".join(
        f" Not measured: {name} ({why})." for name, why in benchmark["missing"].items()
    )
    return f"{benchmark['device']}; {versions}.{missing}"


def tables(measurements: list[dict[str, Any]]) -> Iterator[str]:
    """Yields one table for each subject and batch size: a row for each case."""
    for (_, subject, batch), group in groupby(measurements, _subject):
        members = list(group)
        columns = list(dict.fromkeys(name for m in members for name in m["values"]))
        rows = [[subject if batch is None else f"{subject}, batch {batch:,}", *columns, "runs", ""]]
        rows += [["---"] + ["---:"] * (len(columns) + 1) + ["---"]]
        for m in members:
            cells = [_cell(m["values"].get(name)) for name in columns]
            rows += [[m["case"], *cells, str(m["repetitions"] or "–"), m["note"]]]
        yield "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _subject(measurement: dict[str, Any]) -> tuple[Any, ...]:
    return measurement["kind"], measurement["subject"], measurement["batch"]


def _cell(value: float | None) -> str:
    """Three significant digits, and all digits of the whole part."""
    return "–" if value is None else f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
