"""Sweeps: rows from grids of settings, and statistics of repeated runs."""

import itertools
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from experiments.lib.registry import Record, Row, Values


class MeanAndError(NamedTuple):
    """The mean of repeated runs and its standard error."""

    mean: float
    error: float


def grid(**values: Iterable[Any]) -> list[dict[str, Any]]:
    """Returns the Cartesian product of the settings' values; the last setting varies fastest.

    >>> grid(epsilon=[1.0], n=[10, 20])
    [{'epsilon': 1.0, 'n': 10}, {'epsilon': 1.0, 'n': 20}]
    """
    return [dict(zip(values, point, strict=True)) for point in itertools.product(*values.values())]


def make_rows(
    name: str,
    points: Iterable[Values],
    common: Values | None = None,
    source: Values | None = None,
) -> list[Row]:
    """Returns one row for each point of a sweep.

    Args:
      name: format string of the rows' names, filled with the settings.
      points: settings that differ between rows.
      common: settings of all rows; those of a point take precedence.
      source: published values of every row.

    >>> [row.name for row in make_rows("ε = {epsilon:g}", grid(epsilon=[0.5, 1.0]), {"seed": 0})]
    ['ε = 0.5', 'ε = 1']
    """
    settings = [{**(common or {}), **point} for point in points]
    return [Row(name.format(**each), each, source or {}) for each in settings]


def column(records: Iterable[Record], name: str) -> list[Any]:
    """Returns each record's certified value of this name, or else the measured one, or the setting.

    Raises:
      KeyError: if a record has none of them.
    """
    return [{**record.settings, **record.measured, **record.certified}[name] for record in records]


def mean_and_error(values: npt.ArrayLike) -> MeanAndError:
    """Returns the mean of repeated runs and its standard error.

    >>> mean_and_error([1.0, 3.0])
    MeanAndError(mean=2.0, error=1.0)
    """
    runs = np.asarray(values, float)
    return MeanAndError(float(runs.mean()), float(runs.std(ddof=1) / np.sqrt(len(runs))))


def quantiles(runs: npt.ArrayLike, levels: Sequence[float] = (0.05, 0.5, 0.95)) -> list[float]:
    """Returns quantiles of repeated runs, by default 5, 50 and 95 %.

    >>> quantiles([0.0, 1.0, 2.0], (0.0, 0.5, 1.0))
    [0.0, 1.0, 2.0]
    """
    return np.quantile(np.asarray(runs, float), levels).tolist()


def percent(shares: npt.ArrayLike) -> float:
    """Returns the mean of shares or of booleans, in percent.

    >>> percent([True, False, True, True])
    75.0
    """
    return 100 * float(np.mean(np.asarray(shares, float)))
