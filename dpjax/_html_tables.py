"""Tables of arrays, trees of arrays and fields, for the HTML of results in notebooks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from dpjax._html import HTMLTable
from dpjax._lazy_imports import jax, jnp
from dpjax._typing import PyTree

_MOST_ROWS, _MOST_ENTRIES, _MOST_CHARACTERS = 30, 4, 400
# The ends of the intervals shown: central ones of 90 %.
INTERVAL_LEVEL = 0.9
SUMMARY_COLUMNS = ("mean", "std", "5 %", "95 %")


def format_value(value: npt.ArrayLike) -> str:
    """Returns a number with four significant digits."""
    return f"{float(np.asarray(value)):.4g}"


def field_table(value: Any, caption: str = "Fields", *, folded: bool = True) -> HTMLTable:
    """Returns the fields of a dataclass as its ``repr`` has them, long ones cut off."""
    rows = []
    for field in dataclasses.fields(value):
        if field.repr:
            text = repr(getattr(value, field.name))
            cut = f"{text[:_MOST_CHARACTERS]}…" if len(text) > _MOST_CHARACTERS else text
            rows.append((field.name, cut))
    return HTMLTable(caption, rows, folded=folded)


def entry_table(
    caption: str, names: Sequence[str], columns: Mapping[str, npt.ArrayLike], entry: str = "entry"
) -> HTMLTable:
    """Returns a table with a row for each name, of at most thirty names.

    Args:
      caption: above the table.
      names: of the rows.
      columns: heading and numbers of each column, as many as ``names``.
      entry: heading of the column of names.
    """
    shown = names[:_MOST_ROWS]
    values = [np.ravel(np.asarray(column)) for column in columns.values()]
    rows = [
        (name, *(format_value(column[row]) for column in values)) for row, name in enumerate(shown)
    ]
    if len(names) > len(shown):
        rows.append((f"… {len(names) - len(shown):,} more", *[""] * len(values)))
    return HTMLTable(caption, rows, (entry, *columns))


def entry_names(name: str, shape: Sequence[int]) -> list[str]:
    """Returns the name of each entry of an array: ``w[0, 1]``, or ``w`` for a number."""
    return [
        f"{name}[{', '.join(map(str, index))}]" if index else name for index in np.ndindex(*shape)
    ]


def draws_table(caption: str, name: str, draws: npt.ArrayLike) -> HTMLTable:
    """Returns means, standard deviations and quantiles of draws, of at most thirty entries.

    Args:
      caption: above the table.
      name: of the array that was drawn.
      draws: ``(num_draws, ...)``.
    """
    names = entry_names(name, np.shape(draws)[1:])
    flat = np.reshape(draws, (len(np.asarray(draws)), -1))[:, :_MOST_ROWS]
    low, high = np.quantile(flat, [0.05, 0.95], axis=0)
    columns = (flat.mean(axis=0), flat.std(axis=0), low, high)
    return entry_table(caption, names, dict(zip(SUMMARY_COLUMNS, columns, strict=True)))


def leaf_table(caption: str, tree: PyTree) -> HTMLTable:
    """Returns path, shape, type and values of the leaves of a tree, at most thirty.

    Values are left out where this process does not have all of them, and those of keys.
    """
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    rows = []
    for path, leaf in leaves[:_MOST_ROWS]:
        name = jax.tree_util.keystr(path) or "value"
        rows.append((name, str(np.shape(leaf)), str(jnp.result_type(leaf)), _values(leaf)))
    if len(leaves) > _MOST_ROWS:
        rows.append((f"… {len(leaves) - _MOST_ROWS:,} more", "", "", ""))
    return HTMLTable(caption, rows, ("leaf", "shape", "type", "values"))


def _values(leaf: Any) -> str:
    """The entries of a small array, or the range of a large one."""
    is_number = jnp.issubdtype(jnp.result_type(leaf), jnp.number)
    if not is_number or not getattr(leaf, "is_fully_addressable", True) or not np.size(leaf):
        return ""
    if np.size(leaf) <= _MOST_ENTRIES:
        return ", ".join(map(format_value, np.ravel(np.asarray(leaf))))
    return f"{format_value(jnp.min(leaf))} to {format_value(jnp.max(leaf))}"
