"""The differencing attack succeeds on exact answers and fails on noisy ones."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from dpjax.mechanisms import Laplace
from experiments.course import differencing
from experiments.lib.records import load_records
from experiments.lib.registry import experiment_of
from experiments.lib.runner import Plan, run_experiment

FALSE_ALARM = 1e-6
ENTRIES = 1_000


def _smaller(profile):
    return [
        dataclasses.replace(row, settings={**row.settings, "entries": ENTRIES})
        for row in differencing.rows(profile)
    ]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    some = dataclasses.replace(experiment_of(differencing), rows=_smaller)
    assert run_experiment(some, Plan("quick", folder, False, print))
    return {record.row: record for record in load_records(folder, some.name)}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sum", "mean", "threshold, at the edge"])
def test_run_row_recovers_exact_answers_and_not_noisy_ones(records, name):
    record = records[name]
    assert record.certified["ε, one answer"] == pytest.approx(0.5)
    assert record.certified["ε, both answers"] == pytest.approx(1.0)
    assert record.measured[differencing.EXACT] == 100.0
    hits = round(ENTRIES * record.measured[differencing.NOISY] / 100)
    most = record.certified[differencing.NOISY] / 100
    assert stats.binom.sf(hits - 1, ENTRIES, most) > FALSE_ALARM
    # the same test, on exact answers
    assert stats.binom.sf(ENTRIES - 1, ENTRIES, most) < FALSE_ALARM
    # no more than this attack can do: it is better than guessing on average, and not by much
    assert 45 < record.measured[differencing.NOISY] < 68


def test_run_row_has_a_smaller_empirical_sensitivity(records):
    name = differencing.EMPIRICAL
    assert records["mean"].measured[name] < records["sum"].measured[name] == 1
    assert records["sum"].certified[differencing.TRUE] == 1
    mean = records["mean"]
    seen, true = mean.measured[differencing.EMPIRICAL], mean.certified[differencing.TRUE]
    assert seen == pytest.approx(0.5 / ENTRIES, rel=0.1)
    assert true == pytest.approx(1 / ENTRIES)
    far = records["threshold, far off"]
    assert far.measured[differencing.EMPIRICAL] == 0
    assert far.certified[differencing.TRUE] == 1
    assert far.measured[differencing.EXACT] < 60
    with pytest.raises(TypeError, match="only a lower bound"):
        Laplace.from_epsilon(
            differencing.empirical_sensitivity(jnp.sum, jnp.ones(3), norm="l1"), epsilon=1.0
        )


@pytest.mark.parametrize("name", ["sum", "mean", "threshold, at the edge"])
def test_queries_change_by_at_most_their_sensitivity(name):
    """Replacing any entry of many databases; some database attains it."""
    moves = []
    for seed in range(20):
        bits = differencing.database(40, seed)
        query = differencing.queries(bits)[name]
        flipped = jnp.where(jnp.eye(40, dtype=bool), ~bits, bits)
        answers = jax.vmap(query.answer)(flipped).astype(float)
        moves.append(np.abs(answers - jnp.asarray(query.answer(bits), float)).max())
    stated = query.sensitivity(40).value
    assert 0.99 * stated <= max(moves) <= stated * (1 + 1e-5)
