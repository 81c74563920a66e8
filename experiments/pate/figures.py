"""Figures of the experiments that train an ensemble."""

from collections.abc import Sequence

from matplotlib.figure import Figure

from experiments.lib.figures import PALETTE, new_figure
from experiments.lib.plots import draw_by_row
from experiments.lib.registry import Record
from experiments.pate.accounts import BOTH, EPSILON
from experiments.pate.answers import PLURALITY, RIGHT, STUDENT, TEACHERS


def releases_figure(records: Sequence[Record]) -> dict[str, Figure]:
    """Returns the figure of accuracies from teachers to student, and of ε, by row."""
    figure, (left, right) = new_figure(columns=2, width=9.6, height=1.6 + 0.5 * len(records))
    accuracies = {
        "student, source": ("source", STUDENT),
        "student": ("measured", STUDENT),
        "teachers, mean": ("measured", TEACHERS, PALETTE[4], "v"),
        "plurality": ("measured", PLURALITY, PALETTE[3], "D"),
        "answers": ("measured", RIGHT, PALETTE[5], "^"),
    }
    draw_by_row(left, records, accuracies)
    left.set(xlabel="accuracy (%)")
    epsilons = {
        "source": ("source", EPSILON),
        "data-dependent, not publishable": ("measured", BOTH),
        "any votes, certified": ("certified", EPSILON),
    }
    draw_by_row(right, records, epsilons, lambda record: "")
    right.set(xlabel="ε")
    for axes, columns in ((left, 3), (right, 2)):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8)
    return {"releases": figure}
