"""Empirical sensitivity: the largest change of a query when one record of a data set is removed."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from dpjax._checks import batch_length, check, check_choice, check_function
from dpjax._typing import ArrayTree
from dpjax.sensitivity.base import NORMS, EmpiricalSensitivity, Norm

_ORDERS = {"l1": 1, "l2": 2, "linf": jnp.inf}


def parallel_databases(records: ArrayTree) -> Any:
    """Returns the n neighbours of ``records`` that each lack one of them, stacked.

    Args:
      records: a tree of arrays ``(n, ...)``, n of at least two.

    Returns:
      The same tree of arrays ``(n, n - 1, ...)``; the first lacks the first record.

    >>> parallel_databases(jnp.array([1, 2, 3])).tolist()
    [[2, 3], [1, 3], [1, 2]]
    """
    n = batch_length(records, "records")
    check(n >= 2, "records", f"{n} records", "at least two records")
    kept = np.arange(n - 1) + (np.arange(n - 1) >= np.arange(n)[:, None])
    return jax.tree.map(lambda leaf: jnp.asarray(leaf)[kept], records)


def empirical_sensitivity(
    query: Callable[[Any], ArrayTree], records: ArrayTree, *, norm: Norm
) -> EmpiricalSensitivity:
    """Returns the largest change of ``query`` when one of *these* records is removed.

    A lower bound on the sensitivity under add/remove, for teaching and for tests: no
    mechanism accepts it.

    Args:
      query: from a tree of arrays with a leading axis of records to a tree of arrays; vmapped.
      records: such a tree, of at least two records.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``, over all entries of all arrays of the answer.

    >>> ages = jnp.array([20.0, 30.0, 90.0])
    >>> empirical_sensitivity(jnp.sum, ages, norm="l1").value
    90.0
    """
    check_function("query", query, "records")
    check_choice("norm", norm, NORMS)
    answers = jax.vmap(lambda part: _flat(query(part)))(parallel_databases(records))
    moves = answers - _flat(query(records))[None]
    distances = jnp.linalg.norm(moves, ord=_ORDERS[norm], axis=1)
    return EmpiricalSensitivity(float(distances.max()), norm, "add_remove")


def _flat(tree: ArrayTree) -> jax.Array:
    leaves = [jnp.ravel(leaf).astype(float) for leaf in jax.tree.leaves(tree)]
    return jnp.concatenate(leaves)
