"""A town's incomes: the attack in closed form and for real, and whom the account covers."""

import math

import jax
import numpy as np
import pytest

from dpjax.accounting import risk, tradeoff_curve
from experiments.bdp import incomes
from experiments.lib.attack_rates import release_many

RELEASES = 40_000


@pytest.fixture(scope="module")
def records(run_rows):
    names = [row.name for row in incomes.rows("quick") if row.settings["epsilon"] == 1]
    return run_rows(incomes, *names, "clipped at the outlier, ε = 5", releases=RELEASES)


def near(record, name, exact):
    """Five standard errors: wrong in less than one of 1e6 seeds."""
    return abs(record.measured[name] - exact) < 5 * 50 / math.sqrt(record.settings["releases"])


@pytest.mark.slow
def test_attack_has_the_accuracy_of_the_closed_form_not_the_bound(records):
    for record in records.values():
        assert near(record, incomes.OUTLIER, record.measured[incomes.EXACT])
        assert near(record, incomes.RESIDENTS, record.measured[incomes.RESIDENTS_EXACT])
    worst = records["clipped at the outlier, ε = 1"]
    assert worst.measured[incomes.EXACT] == pytest.approx(69.67, abs=0.01)
    assert worst.certified[incomes.BOUND] == pytest.approx(73.11, abs=0.01)
    assert not near(worst, incomes.OUTLIER, worst.certified[incomes.BOUND])


def test_rows_have_the_bounds_of_equation_1():
    for row in incomes.rows("quick"):
        for printed in row.source.values():
            exact = 100 / (1 + math.exp(-row.settings["epsilon"]))
            assert round(exact, 1) == pytest.approx(printed, abs=0.15)


def test_exact_accuracy_is_that_of_the_best_attack():
    release = incomes.make_release(incomes.AT_OUTLIER, 2.0)
    curve = tradeoff_curve(release.mechanism.event, adjacency="add_remove")
    best = risk.bayes_accuracy(curve, 0.5)
    assert incomes.exact_accuracy(release.shift(np.array([incomes.OUTLIER_INCOME])))[
        0
    ] == pytest.approx(best, abs=1e-3)


def test_run_row_without_clipping_does_not_protect_the_outlier(records):
    loose = records["noise for 99 %, not clipped, ε = 1"]
    assert loose.measured[incomes.OUTLIER] == 100.0
    assert loose.certified["DP ε"] == math.inf
    assert loose.certificate == ""
    assert loose.measured[incomes.WITH_OUTLIER] > 50 * loose.measured[incomes.BAYESIAN]
    clipped = records["clipped at the outlier, ε = 1"]
    assert clipped.measured[incomes.RESIDENTS] < 51
    assert clipped.measured[incomes.BAYESIAN] < 0.05 < clipped.certified["DP ε"] == 1.0
    assert "Not covered by the BDP epsilon" in clipped.certificate


def test_bayesian_epsilon_is_that_of_the_largest_sample(records):
    for record in records.values():
        release = incomes.make_release(record.settings["way"], record.settings["epsilon"])
        largest = release.shift(incomes.draw_incomes()).max()
        assert record.measured[incomes.BAYESIAN] == pytest.approx(largest, rel=2e-3)
        if record.settings["way"] != incomes.AT_PERCENTILE:
            assert record.measured[incomes.KNOWN] > 4 * record.measured[incomes.BAYESIAN]


def test_exact_bayesian_epsilon_is_that_of_simulated_losses():
    release, draws = incomes.make_release(incomes.UNCLIPPED, 1.0), 400_000
    epsilon = incomes.exact_bayesian_epsilon(release, delta=0.01)
    generator = np.random.default_rng(5)
    shifts = release.shift(incomes.income_at(generator.exponential(size=draws)))
    seen = shifts + generator.laplace(size=draws)
    losses = np.abs(seen) - np.abs(seen - shifts)

    def share(level):
        return (losses >= level).mean()

    error = math.sqrt(0.01 / draws)
    assert abs(share(epsilon) - 0.01) < 5 * error
    assert abs(share(1.1 * epsilon) - 0.01) > 5 * error


def test_attack_on_large_shifts_is_always_right():
    release = incomes.make_release(incomes.AT_OUTLIER, 1.0)
    assert incomes.attack(release, np.full(RELEASES, 100.0), seed=0) == RELEASES
    noise = release_many(release.mechanism, jax.random.key(0), np.zeros(RELEASES, np.float32))
    assert np.abs(noise).mean() == pytest.approx(release.mechanism.scale, rel=0.03)
