"""Figures of the experiments that train an ensemble."""

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.lib.figures import CERTIFIED, MEASURED, SOURCE, new_figure
from experiments.lib.plots import draw_by_row
from experiments.lib.registry import Record
from experiments.pate.accounts import BOTH, EPSILON
from experiments.pate.answers import PLURALITY, RIGHT, STUDENT, TEACHERS


def releases_figure(records: Sequence[Record]) -> dict[str, Figure]:
    """Returns the figure of accuracies from teachers to student, and of ε, by row."""
    figure, (left, right) = new_figure(columns=2, width=9.6, height=1.6 + 0.5 * len(records))
    names = [record.row for record in records]

    def values(group: str, name: str) -> list[float]:
        found = [getattr(record, group).get(name) for record in records]
        return [np.nan if value is None else value for value in found]

    draw_by_row(
        left,
        names,
        {
            "student, source": (values("source", STUDENT), SOURCE, "s"),
            "student": (values("measured", STUDENT), MEASURED, "o"),
            "teachers, mean": (values("measured", TEACHERS), "#e69f00", "v"),
            "plurality": (values("measured", PLURALITY), "#cc79a7", "D"),
            "answers": (values("measured", RIGHT), "#56b4e9", "^"),
        },
    )
    left.set(xlabel="accuracy (%)")
    draw_by_row(
        right,
        names,
        {
            "source": (values("source", EPSILON), SOURCE, "s"),
            "data-dependent, not publishable": (values("measured", BOTH), MEASURED, "o"),
            "any votes, certified": (values("certified", EPSILON), CERTIFIED, "^"),
        },
    )
    right.set(xlabel="ε")
    right.set_yticks(range(len(names)), [""] * len(names))
    for axes, columns in ((left, 3), (right, 2)):
        axes.legend(loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=columns, fontsize=8)
    return {"releases": figure}
