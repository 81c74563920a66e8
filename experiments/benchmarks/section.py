"""Sections of the report on benchmarks: tables, and a figure of training steps."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.benchmarks.methods import PRIVATE
from experiments.benchmarks.results import Benchmark, Table, load
from experiments.lib.figures import MEASURED, SOURCE, SavedFigure, new_figure, save_figure

_SHOWN_BATCH = 256
# Heading and text of each part.
_TEXTS = {
    "steps": (
        "Time and memory of private training steps",
        "Median time of one training step by several methods, also relative to the plain step in"
        " JAX (SGD on the mean loss) and to the plain step with the same noise. All other cases"
        " clip and add noise, except the one named clipping alone. Peak memory counts parameters,"
        " batch and all buffers of the step. Ratios hold within a table only; least and most are"
        " the ratios to the plain step in the three thirds of a run.",
    ),
    "routes": (
        "The chosen route of each kind of parameter against the others",
        "Median time of a clipped sum with the routes that dpjax chooses, and with all parameters"
        " of one kind and shape on another route that they can take, whatever memory it needs. A"
        " quotient above one is what the choice costs; parameters that are less than 1 % of the"
        " model's are left out.",
    ),
    "accounting": (
        "Time and tightness of accountants",
        "Accountants of dpjax and of other libraries on the settings of the published tables:"
        " median time without caches, epsilon, and epsilon relative to the certified one. All"
        " values are upper bounds under add/remove unless a note states otherwise.",
    ),
    "inference": (
        "Time of private inference",
        "BDP accounting during training, a step of DP-SVI compared with numpyro's SVI on the same"
        " batches, and effective samples per second of Langevin chains.",
    ),
    "sources": (
        "Time of steps on records from files",
        "Private steps on MNIST's images, of one byte a pixel: on the device, and in memory-mapped"
        " files or an array_record file, where a step's records are read during the step before.",
    ),
    "meshes": (
        "Communication, memory and overhead of steps on a mesh",
        "Collectives of one compiled step and their bytes, and the memory of a device with its"
        " data, counted on fake devices: times on these would say nothing. The plain step is the"
        " data-parallel one that XLA makes of the mean loss of a batch. Then the time of a private"
        " step on a mesh of one device.",
    ),
    "teachers": (
        "Time of PATE teachers",
        "Training of all teachers, and their labels on 640 queries, compared with Python loops over"
        " the teachers that take as many steps on batches of the same size. Every time includes"
        " compilation: once for all teachers, but for the loop over calls of a function that"
        " compiles its own step, which was timed for 10 teachers and scaled up.",
    ),
    "imports": (
        "Import times",
        "Import times in new processes. dpjax imports public names lazily; the second statement"
        " imports all of them.",
    ),
}


class Section(NamedTuple):
    """The tables of one benchmark, as a section of the report."""

    anchor: str
    heading: str
    text: str
    benchmark: Benchmark
    figures: tuple[SavedFigure, ...]


def benchmark_sections(results: Path) -> list[Section]:
    """Returns a section for each part with results, and draws the figure.

    >>> benchmark_sections(Path("no_such_folder"))
    []
    """
    sections = []
    for part, (heading, text) in _TEXTS.items():
        benchmark = load(results, part)
        if benchmark:
            steps = [t for t in benchmark.tables if t.kind == "steps" and _ratios(t)]
            figures = (_save_figure(steps, results / "figures"),) if steps else ()
            sections.append(Section(f"benchmarks-{part}", heading, text, benchmark, figures))
    return sections


def _ratios(table: Table) -> dict[str, float]:
    """Returns the time relative to the plain step, by case."""
    ratios = ((row.case, row.values.get("× plain")) for row in table.rows)
    return {case: ratio for case, ratio in ratios if ratio}


def _save_figure(tables: Sequence[Table], folder: Path) -> SavedFigure:
    batch = min({t.batch or 0 for t in tables}, key=lambda size: abs(size - _SHOWN_BATCH))
    figure = draw([table for table in tables if table.batch == batch])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "benchmarks.png"
    save_figure(figure, path)
    caption = (
        f"Time of one step at batch size {batch:,} relative to the plain step in JAX, on a"
        " logarithmic scale. Blue: dpjax with clipping and noise."
    )
    return SavedFigure(path, caption, round(96 * figure.get_figwidth()))


def draw(tables: Sequence[Table]) -> Figure:
    """Returns a figure with one panel for each table and one line for each case."""
    every = {table.subject: _ratios(table) for table in tables}
    cases = list(dict.fromkeys(case for ratios in every.values() for case in ratios))[::-1]
    figure, panels = new_figure(1, len(every), 3.2 + 1.65 * len(every), 1.1 + 0.24 * len(cases))
    for panel, (model, ratios) in zip(panels, every.items(), strict=True):
        _draw_panel(panel, cases, ratios)
        panel.set_title(model.replace(" ", "\n", 1), fontsize=9)
        panel.tick_params(labelleft=panel is panels[0])
    figure.supxlabel("times the plain step", fontsize=10)
    return figure


def _draw_panel(panel: Axes, cases: Sequence[str], by_case: Mapping[str, float]) -> None:
    places, ratios = [cases.index(case) for case in by_case], list(by_case.values())
    colours = [MEASURED if case == PRIVATE else SOURCE for case in by_case]
    panel.hlines(places, 1, ratios, colors=colours, linewidth=1.5)
    panel.scatter(ratios, places, c=colours, s=22, zorder=3)
    panel.set_xscale("log")
    panel.set_xlim(min(0.5, 0.7 * min(ratios)), 1.6 * max(2.0, *ratios))
    panel.axvline(1, color="#9a9da3", linewidth=0.8)
    panel.set_yticks(range(len(cases)), cases)
    panel.set_ylim(-0.6, len(cases) - 0.4)
    panel.xaxis.set_major_locator(LogLocator(10, numticks=4))
    panel.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    panel.xaxis.set_minor_formatter(NullFormatter())
