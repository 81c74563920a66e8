"""Bob's class: the printed errors, the closed forms, and what both answers cost."""

import math

import numpy as np
import pytest

from experiments.bayes import bob


@pytest.fixture(scope="module")
def records(run_rows):
    return list(run_rows(bob).values())


@pytest.mark.slow
def test_run_row_has_the_printed_errors_and_the_closed_forms(records):
    assert [record.source[bob.MEAN_ERROR] for record in records] == [1.2, 0.12, 12.0, 1.2, 0.12]
    for record in records:
        repeats = record.settings["repeats"]
        for name in (bob.MEAN_ERROR, bob.ATTACK_ERROR):
            exact = record.measured[f"closed form, {name}"]
            # The deviation of |X| is at most the mean of it; false alarms below 1e-6 in all.
            assert record.measured[name] == pytest.approx(exact, rel=5.5 / math.sqrt(repeats))
            assert record.measured[name] == pytest.approx(record.source[name], rel=0.01)
        assert record.measured["attack on exact means, error kg"] == 0.0


def test_mean_weight_of_other_noise_is_noticed(records):
    """The same assertion fails for noise of another scale."""
    measured, exact = (
        records[0].measured[n] for n in (bob.MEAN_ERROR, "closed form, mean, error kg")
    )
    assert measured != pytest.approx(1.03 * exact, rel=5.5 / math.sqrt(200_000))
    assert bob.mean_weight(1.0, 12).scale > 2 * exact


def test_run_row_certifies_twice_epsilon_for_both_means(records):
    for record in records:
        epsilon = record.settings["epsilon"]
        assert record.certified["ε, one mean"] == pytest.approx(epsilon, rel=1e-12)
        assert record.certified["ε, both means"] == pytest.approx(2 * epsilon, rel=1e-12)
        assert "replace_one" in record.certificate


@pytest.mark.parametrize("students", [25, 250])
def test_infer_weight_is_exact_for_exact_means(students):
    weights = np.random.default_rng(3).uniform(30, 60, students)
    recovered = bob.infer_weight(weights.mean(), weights[1:].mean(), students)
    assert recovered == pytest.approx(weights[0], abs=1e-9)
    assert bob.infer_weight(weights.mean(), weights[2:].mean(), students) != pytest.approx(
        weights[0]
    )
