"""Local and global estimates have the errors of their closed forms."""

import dataclasses
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.course import local
from experiments.lib.records import load_records
from experiments.lib.registry import experiment_of
from experiments.lib.runner import Plan, run_experiment

# Root mean squares of 1,000 errors: their deviation is at most 3.6 % (Laplace), so five and more.
_TOLERANCE = 0.2


def _small(profile):
    return [row for row in local.rows(profile) if row.settings["answers"] <= 1_000]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    some = dataclasses.replace(experiment_of(local), rows=_small)
    assert run_experiment(some, Plan("quick", folder, False, print))
    return load_records(folder, some.name)


@pytest.mark.slow
def test_run_row_has_the_errors_of_the_closed_forms(records):
    for record in records:
        for name in (local.LOCAL, local.GLOBAL):
            exact = record.measured[f"closed form, {name}"]
            assert record.measured[name] == pytest.approx(exact, rel=_TOLERANCE)
            assert record.measured[name] != pytest.approx(math.sqrt(2) * exact, rel=_TOLERANCE)
        assert record.certified["ε, local"] == pytest.approx(record.settings["epsilon"])
        assert record.certified["ε, global"] == pytest.approx(record.settings["epsilon"])
    for epsilon in {record.settings["epsilon"] for record in records}:
        few, many = (
            record.measured["local over global"]
            for size in (100, 1_000)
            for record in records
            if (record.settings["epsilon"], record.settings["answers"]) == (epsilon, size)
        )
        assert few > 3
        assert many / few == pytest.approx(math.sqrt(10), rel=2 * _TOLERANCE)


@pytest.mark.slow
def test_local_mechanism_of_two_coins():
    coins = local.local_mechanism(math.log(3))
    assert coins.keep_probability == pytest.approx(0.5)
    released = coins.release(jax.random.key(0), jnp.arange(500) < 150)
    debiased = coins.frequencies(released).estimate[1]
    assert float(debiased) == pytest.approx(2 * float(released.mean()) - 0.5, abs=1e-6)


def test_estimates_are_unbiased():
    answers = jnp.arange(200) < 60
    for found, error in zip(
        local.estimates(1.0, answers, 4_000, seed=3),
        (local.local_error(1.0, 200), local.global_mechanism(1.0, 200).standard_deviation),
        strict=True,
    ):
        # false alarms below 1e-6; without debiasing the mean would be off by many of these
        assert np.mean(found) == pytest.approx(local.SHARE, abs=5 * error / math.sqrt(4_000))
        assert np.std(found) == pytest.approx(error, rel=0.15)
    keep = local.local_mechanism(1.0).keep_probability
    biased = keep * local.SHARE + (1 - keep) / 2
    assert biased != pytest.approx(
        local.SHARE, abs=5 * local.local_error(1.0, 200) / math.sqrt(4_000)
    )
