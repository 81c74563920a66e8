"""The benchmark's section of the report: its tables, and one picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from experiments.bench.measurements import Bench, Measurement, load
from experiments.bench.tables import Table, tables_of
from experiments.bench.ways import PRIVATE
from experiments.lib.figures import DPI, MEASURED, SOURCE, SavedFigure, new_figure

_SHOWN_BATCH = 256


class BenchSection(NamedTuple):
    """What the report shows.

    Attributes:
      bench: the run.
      tables: one for each group.
      figures: none, or one of the steps.
    """

    bench: Bench
    tables: tuple[Table, ...]
    figures: tuple[SavedFigure, ...]


def bench_section(results: Path) -> BenchSection | None:
    """Returns the section and draws its figure; ``None`` where there was no run.

    >>> bench_section(Path("no_such_folder")) is None
    True
    """
    bench = load(results)
    if bench is None:
        return None
    timed = [m for m in bench.measurements if m.kind == "steps" and m.ratio]
    figures = (_save(timed, results / "figures"),) if timed else ()
    return BenchSection(bench, tables_of(bench), figures)


def _save(timed: Sequence[Measurement], folder: Path) -> SavedFigure:
    batch = min({m.batch for m in timed if m.batch}, key=lambda size: abs(size - _SHOWN_BATCH))
    figure = draw([m for m in timed if m.batch == batch])
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "bench.png"
    figure.savefig(path, dpi=DPI, format="png", metadata={"Software": None})
    caption = (
        f"One step at batch {batch:,}: how many times as long as the plain step in JAX, on a"
        " logarithmic scale. Blue: dpjax, clipping and noise included."
    )
    return SavedFigure(path, caption, round(96 * figure.get_figwidth()))


def draw(timed: Sequence[Measurement]) -> Figure:
    """Returns a figure with one panel for each model, one line for each case.

    Args:
      timed: of one batch size, all with a ratio.
    """
    models = list(dict.fromkeys(m.model for m in timed))
    cases = list(dict.fromkeys(m.case for m in timed))[::-1]
    figure, panels = new_figure(1, len(models), 3.2 + 1.65 * len(models), 1.1 + 0.24 * len(cases))
    for panel, model in zip(panels, models, strict=True):
        _draw_panel(panel, cases, [m for m in timed if m.model == model])
        panel.set_title(model.replace(" ", "\n", 1), fontsize=9)
        panel.tick_params(labelleft=panel is panels[0])
    figure.supxlabel("times the plain step", fontsize=10)
    return figure


def _draw_panel(panel: Axes, cases: Sequence[str], members: Sequence[Measurement]) -> None:
    places = [cases.index(m.case) for m in members]
    ratios = [m.ratio or 1.0 for m in members]
    colours = [MEASURED if m.case == PRIVATE else SOURCE for m in members]
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
