"""Report of all experiments and benchmarks as one self-contained HTML file."""

import base64
import io
import re
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import jinja2
from markupsafe import Markup, escape
from PIL import Image

from dpjax._files import write_atomically
from experiments.benchmarks.section import Section as BenchmarkSection
from experiments.benchmarks.section import benchmark_sections
from experiments.lib import tables
from experiments.lib.figures import SavedFigure, draw_figures, save_figure
from experiments.lib.formatting import format_value, label
from experiments.lib.plots import draw_published_against_measured
from experiments.lib.records import encode, load_records
from experiments.lib.registry import PROFILES, Experiment, Finding, Record
from experiments.lib.tables import Line

T = TypeVar("T")

AGREEMENT_CAPTION = (
    "Each point: a published value and the one measured or certified here, equal on the line. A"
    " certified ε above the line is larger than the published one. Runs that are shortened, or on"
    " other data than the source's, are included."
)


@dataclass(frozen=True)
class Block:
    """Results of an experiment under one profile: table, findings, remarks and figures."""

    profile: str  # "quick" or "paper", or "quick and paper" where their records are the same
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...] = ()  # one, if a row is finished
    remarks: tuple[str, ...] = ()
    figures: tuple[SavedFigure, ...] = ()
    problems: tuple[str, ...] = ()  # errors of finding, remarks and figures

    @property
    def finished(self) -> tuple[Record, ...]:
        """Results of the rows that ran to their end."""
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

    def block(self, profile: str) -> Block | None:
        """The block that has this profile's records, ``None`` if it was not run."""
        return next((block for block in self.blocks if profile in block.profile), None)

    def figures(self, block: Block) -> tuple[SavedFigure, ...]:
        """The figures of a block, but for those that a later block has of its profile."""
        later = self.blocks[self.blocks.index(block) + 1 :]
        captions = {figure.caption for other in later for figure in other.figures}
        return tuple(figure for figure in block.figures if figure.caption not in captions)

    def certified(self, block: Block) -> tuple[Record, ...]:
        """Results with a certificate that is not shown before in the report."""
        earlier = self.blocks[: self.blocks.index(block)]
        shown = {record.certificate for other in earlier for record in other.finished}
        return tuple(record for record in block.finished if record.certificate not in {"", *shown})


def write_report(experiments: Sequence[Experiment], results: Path) -> tuple[Path, bool]:
    """Writes ``report.html`` and ``figures/`` to the folder of the records and benchmark results.

    Returns:
      The path of the report, and whether all findings, remarks and figures were made.
    """
    sections = [make_section(experiment, results) for experiment in experiments]
    overview = draw_overview(sections, results / "figures")
    path = results / "report.html"
    write_atomically(path, render(sections, benchmark_sections(results), overview).encode())
    return path, not any(block.problems for section in sections for block in section.blocks)


def make_section(experiment: Experiment, results: Path) -> Section:
    """Returns an experiment's section; draws its figures to ``results/figures``."""
    records = load_records(results, experiment.name)
    lines = {name: tables.table_lines(experiment, name, records) for name in PROFILES}
    if _contents(lines["quick"]) == _contents(lines["paper"]) != []:
        block = _make_block(experiment, "quick and paper", lines["quick"], results)
        return Section(experiment, (block,))
    profiles = [name for name in PROFILES if any(record.profile == name for record in records)]
    blocks = (_make_block(experiment, name, lines[name], results) for name in profiles)
    return Section(experiment, tuple(blocks))


def _contents(lines: Sequence[Line]) -> list[object]:
    """Returns what finished rows hold but for their profile; an empty list if a row is missing."""
    records = tables.finished_records(lines)
    if len(records) < len(lines):
        return []
    return [encode(vars(replace(record, profile=""))) for record in records]


def draw_overview(sections: Sequence[Section], folder: Path) -> tuple[SavedFigure, ...]:
    """Draws the published values of all experiments against the measured ones.

    Returns:
      The figure, or nothing if no record has both.
    """
    records = [
        record for section in sections for block in section.blocks for record in block.finished
    ]
    figure = draw_published_against_measured(records)
    if figure is None:
        return ()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "published_against_measured.png"
    save_figure(figure, path)
    return (SavedFigure(path, AGREEMENT_CAPTION, round(96 * figure.get_figwidth())),)


def _make_block(
    experiment: Experiment, profile: str, lines: tuple[Line, ...], results: Path
) -> Block:
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


def render(
    sections: Sequence[Section],
    benchmarks: Sequence[BenchmarkSection] = (),
    overview: Sequence[SavedFigure] = (),
) -> str:
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
        overview=overview,
        dates=sorted({record.date for record in records}),
        versions=sorted({", ".join(map(" ".join, record.versions.items())) for record in records}),
        profiles=[name for name in PROFILES if any(section.block(name) for section in sections)],
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
        "literals": _literals,
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


def _literals(text: str) -> Markup:
    """Returns escaped text with literals, such as ```n```, as ``<code>``."""
    return Markup(re.sub(r"`([^`\n]+)`", r"<code>\1</code>", str(escape(text))))


def _data_uri(path: Path) -> str:
    """Returns an image as WebP: without loss in 16 colours or, where it is smaller, with loss."""
    with Image.open(path) as file:
        image = file.convert("RGB")
    flat = image.quantize(16, dither=Image.Dither.NONE).convert("RGB")
    encoded = min(_webp(flat, lossless=True), _webp(image, quality=20), key=len)
    return "data:image/webp;base64," + base64.b64encode(encoded).decode("ascii")


def _webp(image: Image.Image, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, "WEBP", **options)
    return file.getvalue()
