"""The figures of the landing page and of the README: ``python docs/figures.py`` writes them.

The values are those of the committed records in ``docs/reproduction`` and of the tables of
``docs/benchmarks.md``.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

DOCS = Path(__file__).parent
sys.path.append(str(DOCS.parent))

from experiments.lib.figures import PALETTE, SOURCE, new_figure, save_figure  # noqa: E402
from experiments.lib.publication import load_publication  # noqa: E402
from experiments.lib.registry import Record  # noqa: E402

FOLDER = DOCS / "_static"
_DATA_SETS = ("MNIST", "Fashion-MNIST", "CIFAR-10")
_PEERS = "Beside other libraries"


def main() -> None:
    """Writes the figures into ``docs/_static``."""
    records = load_publication(DOCS / "reproduction", "scattering_linear", "paper").records
    steps = read_table((DOCS / "benchmarks.md").read_text("utf-8"), _PEERS)
    for name, figure in {"accuracy": draw_accuracy(records), "steps": draw_steps(steps)}.items():
        save_figure(figure, FOLDER / f"{name}.png", dpi=150)


def draw_accuracy(records: Sequence[Record]) -> Figure:
    """Returns test accuracy against certified ε, and the published accuracies, by data set."""
    figure, (axes,) = new_figure(width=5.6, height=3.5)
    for data, colour in zip(_DATA_SETS, PALETTE, strict=False):
        private = [each for each in records if each.row.startswith(f"{data}, private norm")]
        epsilons = [each.certified["ε"] for each in private]
        accuracies = [each.measured["test accuracy %"] for each in private]
        axes.plot(epsilons, accuracies, marker="o", color=colour, label=data)
        published = [each.source for each in records if each.row.startswith(data) and each.source]
        axes.plot(
            [source["ε"] for source in published],
            [source["test accuracy %"] for source in published],
            "s",
            color=SOURCE,
            markerfacecolor="none",
            markersize=9,
            label="published" if data == _DATA_SETS[-1] else None,
        )
    axes.set(xlabel="ε at δ = 1e-5, certified", ylabel="test accuracy (%)", ylim=(50, 101))
    axes.set_xticks([1, 2, 3])
    axes.legend(loc="center right", bbox_to_anchor=(1.0, 0.55))
    return figure


def read_table(page: str, heading: str) -> dict[str, dict[str, float]]:
    """Returns the milliseconds of each library by the row's name, of the table under a heading.

    >>> page = "## A\\n\\n| model | x, ms |\\n|---|---|\\n| CNN | 1,024 |\\n| MLP | – |\\n"
    >>> read_table(page, "A")
    {'CNN': {'x': 1024.0}, 'MLP': {}}
    """
    section = page.partition(f"## {heading}\n")[2].partition("\n## ")[0]
    lines = [line.strip("| ").split(" | ") for line in section.splitlines() if line[:1] == "|"]
    (_, *names), _, *rows = lines
    times: dict[str, dict[str, float]] = {}
    for model, *cells in rows:
        by_name = zip(names, cells, strict=True)
        times[model] = {
            name.removesuffix(", ms"): float(cell.replace(",", "").strip("*"))
            for name, cell in by_name
            if name.endswith(", ms") and cell != "–"
        }
    return times


def draw_steps(times: Mapping[str, Mapping[str, float]]) -> Figure:
    """Returns the time of one step by each library: a panel for each model, on one logarithm."""
    names = list(next(iter(times.values())))[::-1]
    figure, panels = new_figure(1, len(times), 2.2 + 1.45 * len(times), 2.6)
    for panel, (model, by_name) in zip(panels, times.items(), strict=True):
        _draw_model(panel, names, by_name)
        panel.set_title(model.replace(" ", "\n", 1).replace(", ", "\n"), fontsize=9)
        panel.tick_params(labelleft=panel is panels[0])
    figure.supxlabel("times as long as the plain step in JAX", fontsize=10)
    return figure


def _draw_model(panel: Axes, names: Sequence[str], times: Mapping[str, float]) -> None:
    """Draws the time of each library over that of the first, the plain step."""
    plain = next(iter(times.values()))
    places = [names.index(name) for name in times]
    ratios = [time / plain for time in times.values()]
    colours = [PALETTE[0] if name == "dpjax" else SOURCE for name in times]
    panel.hlines(places, 1, ratios, colors=colours, linewidth=1.5)
    panel.scatter(ratios, places, c=colours, s=24, zorder=3)
    for place, ratio in zip(places, ratios, strict=True):
        text = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
        panel.annotate(
            text,
            (max(ratio, 1), place),
            (6, 0),
            textcoords="offset points",
            va="center",
            fontsize=8,
        )
    panel.axvline(1, color="#9a9da3", linewidth=0.8)
    panel.set_xscale("log")
    panel.set_xlim(0.4, 2500)
    panel.set_xticks([1, 10, 100, 1000], ["1", "10", "100", "1,000"])
    panel.minorticks_off()
    panel.set_yticks(range(len(names)), names)
    panel.set_ylim(-0.6, len(names) - 0.4)


if __name__ == "__main__":
    main()
