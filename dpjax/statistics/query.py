"""Queries and estimates, and the columns of a table that a query reads."""

import abc
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_float64, check, check_unmasked
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency
from dpjax.mechanisms import Mechanism

Array = npt.NDArray[np.float64]
Column = str | int
Limits = tuple[float, float]
Records = Any  # a pandas DataFrame or Series, a mapping of columns, or an array
Table = dict[Any, npt.NDArray[Any]]


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """One released number and its interval.

    Attributes:
      statistic: the query, such as ``"mean of age"``.
      entry: of a query with several numbers which one it is, such as a bin; else empty.
      estimate: the released number, in the units of the statistic; NaN where the noise is so large
        that there is none.
      low: lower end of the interval.
      high: upper end of the interval.
      noise_std: standard deviation of the privacy noise in the estimate, in its units; of a
        quantile, a correlation or a coefficient an estimate of it.
      standard_error: of sampling error and noise together, an estimate.
    """

    statistic: str
    entry: str
    estimate: float
    low: float
    high: float
    noise_std: float
    standard_error: float


@dataclass(frozen=True)
class Size:
    """The number of records, public or with noise, by which estimates divide.

    Attributes:
      num_examples: public or released with noise; at least one.
      noise_std: of the noise on it; zero where it is public.
    """

    num_examples: float
    noise_std: float


class Query(abc.ABC):
    """A statistic to release under a plan, as `mean`, `count`, `quantile` and others return it.

    Attributes:
      label: what it is of, such as ``"mean of age"``.
      weight: its share of the budget, relative to the other queries' weights.
    """

    label: str
    weight: float

    # Whether the estimates use the number of all records.
    _uses_size = True
    # Labels whose estimates are of groups of records, without noise in common.
    _by_group: tuple[str, ...] = ()

    @abc.abstractmethod
    def _make_mechanisms(
        self, *, epsilon: float, delta: float, adjacency: Adjacency, unit: str
    ) -> tuple[Mechanism, ...]:
        """Returns mechanisms that together are (epsilon, delta)-private: the query's shares."""

    @property
    @abc.abstractmethod
    def released(self) -> str:
        """What its mechanisms release, and from which bounds, as text for certificates."""

    @abc.abstractmethod
    def _read(self, table: Table) -> npt.NDArray[Any]:
        """Returns the columns that the query uses, clipped; raises an error for other types."""

    @abc.abstractmethod
    def _release(
        self,
        key: PRNGKey,
        columns: npt.NDArray[Any],
        mechanisms: Sequence[Mechanism],
        size: Size,
        level: float,
    ) -> list[Estimate]:
        """Returns the estimates, of columns as `_read` returns them."""


def as_table(records: Records) -> Table:
    """Returns the columns ``(n,)`` of a DataFrame or mapping, or of an array by their indices."""
    if isinstance(records, Mapping) or hasattr(records, "columns"):
        names = list(records.keys())
        table = {name: _as_column(records[name], name) for name in names}
        check(len(table) == len(names) > 0, "records", names, "columns of different names")
    else:
        check_unmasked("records", records)
        array = np.asarray(records)
        array = array[:, None] if array.ndim == 1 else array
        fine = array.ndim == 2 and array.shape[1] > 0
        check(fine, "records", array.shape, "a DataFrame, or an array (n,) or (n, d)")
        table = {index: array[:, index] for index in range(array.shape[1])}
    lengths = sorted({len(column) for column in table.values()})
    check(len(lengths) == 1, "records", lengths, "columns of one length")
    return table


def _as_column(values: Any, name: Column) -> npt.NDArray[Any]:
    """Returns one value a record, ``(n,)``; pandas' missing numbers become NaN."""
    check_unmasked(f"records[{name!r}]", values)
    # Numbers of pandas' own dtypes, which have a missing value of their own.
    if getattr(values.dtype if hasattr(values, "dtype") else None, "na_value", None) is not None:
        is_number = getattr(values.dtype, "kind", "O") in "biuf"
        dtype, missing = (np.float64, np.nan) if is_number else (object, None)
        values = values.to_numpy(dtype=dtype, na_value=missing)
    array = np.asarray(values)
    check(array.ndim == 1, f"records[{name!r}]", array.shape, "one number a record, of shape (n,)")
    return array


def read_column(table: Table, column: Column) -> npt.NDArray[Any]:
    """Returns a column ``(n,)``."""
    check(column in table, "column", column, f"one of the columns {list(table)} of records")
    return table[column]


def read_groups(
    table: Table, column: Column, categories: Sequence[Any]
) -> list[npt.NDArray[np.bool_]]:
    """Returns which records ``(n,)`` have each of the categories in a column.

    Raises:
      ValueError: a value that the column's dtype excludes, such as a text in a column of numbers.
        Columns of Python objects, as pandas has for texts and categories, may hold any.
    """
    values = read_column(table, column)
    kind = {"U": str, "S": bytes}.get(values.dtype.kind)
    for each in categories:
        is_text = isinstance(each, str | bytes)
        can_be = isinstance(each, kind) if kind else not (is_text and values.dtype.kind in "biufmM")
        allowed = f"of the kind of column {column!r}, which has dtype {values.dtype}"
        check(can_be, "equal_to and categories", each, allowed)
    return [np.asarray(values == each) for each in categories]


def read_clipped(table: Table, column: Column, bounds: Limits) -> Array:
    """Returns a column of numbers, clipped; NaN becomes the lower bound."""
    values = as_float64(read_column(table, column), f"column {column!r}")
    return np.clip(np.where(np.isnan(values), bounds[0], values), *bounds)


def checked_categories(categories: Any) -> tuple[Any, ...]:
    """Returns at least two different values; raises ValueError for anything else."""
    listed = not isinstance(categories, str) and np.ndim(categories) == 1
    check(listed, "categories", categories, "a list of values")
    values = tuple(categories)
    fine = len(values) >= 2 and all(np.ndim(each) == 0 for each in values)
    fine = fine and len(set(values)) == len(values)
    check(fine, "categories", categories, "at least two different values")
    return values


def check_column(column: object, name: str = "column") -> None:
    """Raises ValueError unless ``column`` is a name or an index; ``name`` is the argument's."""
    is_index = isinstance(column, int) and not isinstance(column, bool) and column >= 0
    is_name = isinstance(column, str) and column != ""
    check(is_index or is_name, name, column, "the name of a column, or of an array its index")


def checked_limits(bounds: object) -> Limits:
    """Returns a lower and a higher bound; raises ValueError for anything but two numbers."""
    check_unmasked("bounds", bounds)
    allowed = "(low, high), two finite numbers with low < high, for one column"
    if isinstance(bounds, Mapping):
        allowed += ": of a mapping, bounds[column]"
    try:
        ends = [float(end) if np.ndim(end) == 0 else math.nan for end in bounds]  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        ends = []
    fine = len(ends) == 2 and ends[0] < ends[1] and math.isfinite(ends[1] - ends[0])
    check(fine, "bounds", bounds, allowed)
    return ends[0], ends[1]
