"""Columns of a table brought to one scale: as published, or by what is known without the data."""

from collections.abc import Sequence
from typing import Literal, get_args

import numpy as np

from dpjax._validation import check_choice
from dpjax.datasets.regression import Range

Scaling = Literal["published", "public"]

NOTES = {
    "published": "Columns are standardised with the means and deviations of all these records,"
    " test records included, as in the published code: a small leak that no ε counts.",
    "public": "Columns are scaled by public ranges, which look at no record.",
}


def check_scaling(scaling: str) -> None:
    """Refuses anything but the names in ``Scaling``."""
    check_choice("scaling", scaling, get_args(Scaling))


def scaled(table: np.ndarray, ranges: Sequence[Range], scaling: Scaling) -> np.ndarray:
    """Returns ``table`` (n, columns) with every column brought to a scale of about one.

    Args:
      table: a number in every cell.
      ranges: of each column, known without the data.
      scaling: ``"published"``: less the column's mean, over its standard deviation (ddof 0), so
        every record moves every other; ``"public"``: the same with mean and deviation of a column
        spread evenly over its range, so a record's features depend on that record alone.

    Privacy: the published way leaks a little of every record into all the others' features, which
    no accountant of what is trained on them counts.

    >>> table = np.array([[1.0], [3.0]])
    >>> scaled(table, [Range(-6.0, 6.0)], "published").tolist()
    [[-1.0], [1.0]]
    >>> scaled(table, [Range(-6.0, 6.0)], "public").round(3).tolist()
    [[0.289], [0.866]]
    """
    check_scaling(scaling)
    low, high = np.array(ranges, float).T
    if scaling == "published":
        return np.asarray((table - table.mean(axis=0)) / table.std(axis=0))
    return np.asarray((table - (low + high) / 2) / ((high - low) / np.sqrt(12)))
