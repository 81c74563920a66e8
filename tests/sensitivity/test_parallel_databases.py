"""Parallel databases teach what a query's sensitivity is, and never overstate it."""

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.sensitivity import (
    EmpiricalSensitivity,
    empirical_sensitivity,
    of_sum,
    parallel_databases,
)


def test_parallel_databases_lack_one_record():
    tree = {"x": jnp.arange(4.0), "y": jnp.arange(8).reshape(4, 2)}
    neighbours = parallel_databases(tree)
    assert neighbours["x"].shape == (4, 3)
    for i in range(4):
        for name in tree:
            np.testing.assert_array_equal(neighbours[name][i], np.delete(tree[name], i, axis=0))


def test_empirical_sensitivity_of_small_database():
    database = jnp.array([1.0, 0.0, 1.0, 1.0, 0.0])
    queries = {"sum": jnp.sum, "mean": jnp.mean, "threshold": lambda x: x.sum() > 2}
    found = {
        name: empirical_sensitivity(query, database, norm="l1") for name, query in queries.items()
    }
    assert found["sum"] == EmpiricalSensitivity(1.0, "l1", "add_remove")
    assert found["mean"].value == pytest.approx(0.75 - 0.6)
    assert found["mean"].value < found["sum"].value
    assert found["threshold"].value == 1.0
    # at another database the threshold is not near: a lower bound is not the sensitivity
    assert empirical_sensitivity(queries["threshold"], jnp.ones(5), norm="l1").value == 0.0


@given(
    records=st.lists(st.floats(-3, 7, width=32), min_size=6, max_size=6),
    norm=st.sampled_from(["l1", "l2", "linf"]),
)
def test_empirical_sensitivity_is_a_lower_bound(records, norm):
    rows = jnp.asarray(records).reshape(3, 2)
    found = empirical_sensitivity(lambda x: x.sum(axis=0), rows, norm=norm)
    stated = of_sum(([-3, -3], [7, 7]), norm=norm, adjacency="add_remove")
    assert found.value <= stated.value * (1 + 1e-5)


def test_empirical_sensitivity_of_trees():
    rows = jnp.array([[3.0, 4.0], [0.0, 0.0]])
    query = lambda x: {"sum": x.sum(axis=0), "count": x.shape[0]}  # noqa: E731
    values = {n: empirical_sensitivity(query, rows, norm=n).value for n in ("l1", "l2", "linf")}
    assert values == pytest.approx({"l1": 8.0, "l2": 26**0.5, "linf": 4.0})


def test_parallel_databases_refuses_one_record():
    with pytest.raises(ValueError, match="records must be at least two records"):
        parallel_databases(jnp.zeros(1))
    with pytest.raises(ValueError, match="norm must be one of"):
        empirical_sensitivity(jnp.sum, jnp.zeros(3), norm="l5")
