"""Report of all experiments and benchmarks as one self-contained HTML file."""

import base64
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import jinja2

from dpjax._files import write_atomically
from experiments.benchmarks.section import Section as BenchmarkSection
from experiments.benchmarks.section import benchmark_sections
from experiments.lib import tables
from experiments.lib.figures import SavedFigure, draw_figures
from experiments.lib.formatting import format_value, label
from experiments.lib.records import load_records
from experiments.lib.registry import PROFILES, Experiment, Finding, Record
from experiments.lib.tables import Line

T = TypeVar("T")


@dataclass(frozen=True)
class Block:
    """Table, remarks and figures of an experiment under one profile."""

    profile: str  # "quick" or "paper"
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...] = ()  # one, if a row is finished
    remarks: tuple[str, ...] = ()
    figures: tuple[SavedFigure, ...] = ()
    problems: tuple[str, ...] = ()  # errors of finding, remarks and figures

    @property
    def finished(self) -> tuple[Record, ...]:
        """The records of the finished rows."""
        return tables.finished_records(self.lines)

    @property
    def num_failed(self) -> int:
        """The number of rows that failed."""
        return sum(line.state == "failed" for line in self.lines)

    @property
    def notes(self) -> tuple[str, ...]:
        """The distinct notes of the finished rows, in order."""
        return tuple(dict.fromkeys(record.note for record in self.finished if record.note))


@dataclass(frozen=True)
class Section:
    """An experiment and one block for each profile it was run under."""

    experiment: Experiment
    blocks: tuple[Block, ...]

    @property
    def notes(self) -> tuple[str, ...]:
        """The distinct notes of all blocks, in order."""
        return tuple(dict.fromkeys(note for block in self.blocks for note in block.notes))


def write_report(experiments: Sequence[Experiment], results: Path) -> tuple[Path, bool]:
    """Writes ``report.html`` and ``figures/`` to the folder of the records and benchmark results.

    Returns:
      The path of the report, and whether all findings, remarks and figures were made.
    """
    sections = [make_section(experiment, results) for experiment in experiments]
    path = results / "report.html"
    write_atomically(path, render(sections, benchmark_sections(results)).encode())
    return path, not any(block.problems for section in sections for block in section.blocks)


def make_section(experiment: Experiment, results: Path) -> Section:
    """Returns an experiment's section; draws its figures to ``results/figures``."""
    records = load_records(results, experiment.name)
    profiles = [name for name in PROFILES if any(record.profile == name for record in records)]
    blocks = (_make_block(experiment, profile, records, results) for profile in profiles)
    return Section(experiment, tuple(blocks))


def _make_block(
    experiment: Experiment, profile: str, records: Sequence[Record], results: Path
) -> Block:
    lines = tables.table_lines(experiment, profile, records)
    finished = tables.finished_records(lines)
    if not finished:
        return Block(profile, lines)
    problems: list[str] = []
    findings = _attempt("finding", lambda: (experiment.finding(finished),), problems)
    remarks = _attempt("remarks", lambda: tuple(experiment.remarks(finished)), problems)
    figures = _attempt(
        "figures", lambda: draw_figures(experiment, finished, results / "figures"), problems
    )
    return Block(profile, lines, findings, remarks, figures, tuple(problems))


def _attempt(name: str, make: Callable[[], tuple[T, ...]], problems: list[str]) -> tuple[T, ...]:
    """Returns ``make()``; if it raises, returns nothing and adds the error to ``problems``."""
    try:
        return make()
    except Exception as error:  # the report of the other experiments is still written
        traceback.print_exc(file=sys.stderr)
        problems.append(f"The {name} could not be made: {type(error).__name__}: {error}")
        return ()


def render(sections: Sequence[Section], benchmarks: Sequence[BenchmarkSection] = ()) -> str:
    """Returns the HTML page, with escaped text and embedded images.

    >>> render([]).strip().endswith("</html>")
    True
    """
    template = _environment().get_template("report.html")
    records = [
        record for section in sections for block in section.blocks for record in block.finished
    ]
    return template.render(
        sections=sections,
        benchmarks=benchmarks,
        dates=sorted({record.date for record in records}),
        versions=sorted({", ".join(map(" ".join, record.versions.items())) for record in records}),
        profiles=[name for name in PROFILES if any(record.profile == name for record in records)],
    )


def _environment() -> jinja2.Environment:
    """Returns the jinja2 environment: autoescape, strict names, and this package's filters."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {
        "data_uri": _data_uri,
        "heading": _heading,
        "label": label,
        "value": format_value,
    }
    environment.globals |= {
        "table_cells": tables.table_cells,
        "table_columns": tables.table_columns,
        "shared_settings": tables.shared_settings,
    }
    return environment


def _heading(name: str) -> str:
    """Returns a column's heading; short headings and the space before % do not break."""
    text = label(name).replace(" %", "\u00a0%")
    return text if len(text) > 10 else text.replace(" ", "\u00a0")


def _data_uri(path: Path) -> str:
    return "data:image/png;base64," + base64.b64encode(path.read_bytes()).decode("ascii")
