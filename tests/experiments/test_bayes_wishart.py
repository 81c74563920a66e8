"""The published Wishart noise is beaten, ours are not, and the constant is safe."""

import pytest

from experiments.bayes import wishart
from experiments.lib.attack_rates import Counts, epsilon_lower_bound


@pytest.fixture(scope="module")
def records(run_rows):
    return run_rows(wishart, draws=20_000)


def withstands(record, epsilon):
    """Whether the attacks prove no more than ``epsilon``."""
    return record.measured[wishart.ATTACKED] <= epsilon


@pytest.mark.slow
@pytest.mark.parametrize("dimension", [1, 5])
def test_attack_on_published_noise_has_hits_without_false_alarms(records, dimension):
    record = records[f"Wishart(d + 1), d = {dimension}"]
    assert record.measured[wishart.ALARMS] == 0
    assert record.measured[f"{wishart.HITS}, at least"] > 25
    assert not withstands(record, record.source["claimed ε"])
    assert not withstands(record, 5 * record.source["claimed ε"])
    # what its accuracy alone would not show
    assert record.measured["best accuracy %"] < 73.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["Laplace, d = 1", "Gaussian, d = 1", "Laplace, d = 5", "Gaussian, d = 5", "Wishart, d = 5"],
)
def test_attack_on_private_noise_stays_below_the_certified_epsilon(records, name):
    record = records[name]
    assert withstands(record, record.certified["ε"])
    assert record.certified["ε"] <= 1.001
    # they are no idle attacks: each proves some epsilon
    assert record.measured[wishart.ATTACKED] > 0.03


def test_attack_on_less_noise_exceeds_epsilon():
    mechanism = wishart.make_mechanism("Laplace", 1)
    halved = mechanism.with_privacy_factor(0.3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(wishart, "make_mechanism", lambda noise, dimension: halved)
        support, along = wishart.attack("Laplace", 1, 20_000, seed=1)
    assert epsilon_lower_bound([support, *along], 0.0) > mechanism.pure_epsilon


@pytest.mark.slow
def test_run_constant_is_safe_and_loose(records):
    for epsilon in (0.1, 0.5, 0.99):
        record = records[f"constant, ε = {epsilon:g}"]
        assert record.certified["ε"] < record.certified["ε, replace one"] < epsilon
        asked = record.source[wishart.DEGREES]
        assert asked > 5 * record.measured[f"{wishart.DEGREES}, replace one"]
        assert asked > 5 * record.measured[wishart.DEGREES]


def test_bounds_of_attacks():
    # the complement and the exchanged test prove the same
    test = Counts(hits=900, alarms=500, draws=1_000)
    for other in (test.complement(), test.exchange()):
        assert epsilon_lower_bound([other], 0.0) == epsilon_lower_bound([test], 0.0) > 0.5
    assert epsilon_lower_bound([test], 0.9) == 0.0
