"""Style and files of the report's figures, with a palette for colour-blind readers."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.rcsetup import cycler
from PIL import Image

from dpjax._checks import check_choice
from experiments.lib.registry import Experiment, Record

# Okabe and Ito (2008). The first three are those of the report's column groups.
SOURCE, MEASURED, CERTIFIED = "#6b6f76", "#0072b2", "#009e73"
PALETTE = (MEASURED, "#d55e00", CERTIFIED, "#cc79a7", "#e69f00", "#56b4e9", "#000000")
DPI = 100

_STYLE: dict[Any, Any] = {
    "axes.axisbelow": True,
    "axes.edgecolor": "#9a9da3",
    "axes.grid": True,
    "axes.labelcolor": "#2b2d31",
    "axes.labelsize": 10,
    "axes.prop_cycle": cycler(color=PALETTE),
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.titlelocation": "left",
    "axes.titlesize": 11,
    "axes.titlecolor": "#2b2d31",
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "grid.color": "#e8e9ec",
    "grid.linewidth": 0.8,
    "legend.fontsize": 9,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "xtick.color": "#5a5d63",
    "ytick.color": "#5a5d63",
}


@dataclass(frozen=True)
class SavedFigure:
    """A figure in a file."""

    path: Path  # the PNG file
    caption: str  # plain text
    width: int  # display width in CSS pixels of 1/96 inch


def new_figure(
    rows: int = 1, columns: int = 1, width: float = 6.4, height: float = 4.0
) -> tuple[Figure, tuple[Axes, ...]]:
    """Returns a figure in the report's style and its axes, row by row.

    Width and height are those of the whole figure, in inches. Lines take the colours of `PALETTE`;
    the source's own values are drawn in `SOURCE`.

    >>> figure, (left, right) = new_figure(columns=2)
    >>> line = left.plot([0, 1], [1, 0], label="Id")
    """
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        axes = figure.subplots(rows, columns, squeeze=False)
    return figure, tuple(axes.flat)


def draw_figures(
    experiment: Experiment, records: Sequence[Record], folder: Path
) -> tuple[SavedFigure, ...]:
    """Draws an experiment's figures, each to ``<folder>/<experiment>_<profile>_<stem>.png``.

    Returns:
      The figures, in the experiment's order.

    Raises:
      ValueError: if the experiment's page has no caption for a figure.
    """
    folder.mkdir(parents=True, exist_ok=True)
    saved = []
    with mpl.rc_context(_STYLE):
        for stem, figure in experiment.figures(records).items():
            check_choice("figure", stem, experiment.page.captions)
            path = folder / f"{experiment.name}_{records[0].profile}_{stem}.png"
            save_figure(figure, path)
            saved.append(
                SavedFigure(path, experiment.page.captions[stem], round(96 * figure.get_figwidth()))
            )
    return tuple(saved)


def save_figure(figure: Figure, path: Path, dpi: int = DPI) -> None:
    """Writes a PNG file with 256 colours, at 40 % of its size."""
    # Without matplotlib's version in the file, equal figures are equal files.
    figure.savefig(path, dpi=dpi, format="png", metadata={"Software": None})
    with Image.open(path) as image:
        reduced = image.convert("RGB").quantize(256, dither=Image.Dither.NONE)
    reduced.save(path, optimize=True)
