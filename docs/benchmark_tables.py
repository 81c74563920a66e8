"""Tables and figures of the benchmarks page, from what ``make bench`` wrote."""

import os
from pathlib import Path

from experiments.benchmarks.results import Benchmark, Table
from experiments.benchmarks.section import benchmark_sections

DOCS = Path(__file__).parent
_HEAD = """\
## Tables of this clone

The tables below are those that `make bench` last wrote to `results/` in the clone that built this
page. `results/report.html` has the same."""
_NONE = """\
`make bench` writes the tables of a machine to `results/report.html`, and the next `make docs` adds
them to this page.
"""


def render(results: Path) -> str:
    """Returns Markdown with the tables and figures of every part that was run."""
    blocks = []
    for section in benchmark_sections(results):
        blocks += [f"### {section.heading}", section.text, describe(section.benchmark)]
        for figure in section.figures:
            blocks.append(f"![{figure.caption}]({os.path.relpath(figure.path, DOCS)})")
        blocks += [render_table(table) for table in section.benchmark.tables]
    return "\n\n".join([_HEAD, *blocks]) + "\n" if blocks else _NONE


def describe(benchmark: Benchmark) -> str:
    """Returns the machine, the versions, and the libraries that could not be measured."""
    versions = ", ".join(f"{name} {version}" for name, version in benchmark.versions.items())
    missing = [f"Not measured: {name} ({why})." for name, why in benchmark.missing.items()]
    return " ".join([f"{benchmark.device}; {versions}.", *missing])


def render_table(table: Table) -> str:
    """Returns one comparison in Markdown: a row for each case, with its note."""
    lines = [(table.title, *table.columns, "")]
    lines += [("---", *("---:" for _ in table.columns), "---")]
    lines += [(row.case, *table.cells(row), row.note) for row in table.rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
