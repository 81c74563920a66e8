import math
from dataclasses import dataclass, replace

import pytest
from helpers.accounting_cases import FakeMechanism, Noiseless, certified_of
from scipy.stats import norm

from dpjax import PoissonSampling, SubsampledGaussian
from dpjax.accounting import (
    UnsupportedEventError,
    accountants,
    calibrate,
    calibration,
    max_num_steps,
    risk,
)
from dpjax.accounting.accountants import certified_epsilon

DELTA = 1e-5
CASES = [
    (0.1, 2.0, "poisson", "add_remove"),
    (1.0, 0.03, "poisson", "add_remove"),
    (8.0, 50.0, "poisson", "add_remove"),
    (3.0, 2.0, "poisson", "replace_one"),
    (0.5, 1e-6, "none", "add_remove"),
    (40.0, 1e3, "none", "replace_one"),
    (3.0, 2.0, "fixed_size", "replace_one"),
]


@pytest.mark.parametrize(("target", "start", "sampling", "adjacency"), CASES)
def test_calibrate_epsilon_in_few_evaluations(target, start, sampling, adjacency, monkeypatch):
    values = []

    def noted(*arguments):
        values.append(certified_epsilon(*arguments)[1])
        return None, values[-1]

    monkeypatch.setattr(calibration, "certified_epsilon", noted)
    mechanism = FakeMechanism(start, sampling=sampling, adjacency=adjacency)
    calibrated = calibrate(mechanism, epsilon=target, delta=DELTA)
    assert calibrated == FakeMechanism(calibrated.noise_multiplier, 100, sampling, adjacency)
    certified = certified_of(calibrated.event, DELTA, adjacency)[1]
    assert 0.99 * target <= certified <= target
    assert certified == values[-1]
    assert len(values) <= (14 if start < 1e-3 else 10)


def test_calibrate_certificate_is_within_target():
    calibrated = calibrate(FakeMechanism(1.0), epsilon=2.0, delta=1e-6)
    assert 1.98 <= calibrated.certificate(1e-6).epsilon <= 2.0


READINGS = [
    ({"advantage": 0.1}, 0.5, "poisson", "add_remove"),
    ({"advantage": 0.5}, 5.0, "poisson", "add_remove"),
    ({"advantage": 0.01}, 0.02, "poisson", "replace_one"),
    ({"advantage": 0.3}, 2.0, "fixed_size", "replace_one"),
    ({"true_positive_rate": 0.05, "false_positive_rate": 1e-3}, 2.0, "poisson", "add_remove"),
    ({"true_positive_rate": 1.1e-5, "false_positive_rate": 1e-5}, 2.0, "poisson", "add_remove"),
    ({"true_positive_rate": 0.9, "false_positive_rate": 0.1}, 1.0, "none", "replace_one"),
]


@pytest.mark.parametrize(("target", "start", "sampling", "adjacency"), READINGS)
def test_calibrate_attack_risk(target, start, sampling, adjacency):
    mechanism = FakeMechanism(start, sampling=sampling, adjacency=adjacency)
    certificate = calibrate(mechanism, **target).certificate(DELTA)
    name, aim = next(iter(target.items()))
    level = target.get("false_positive_rate", 0.0)
    found = (
        risk.advantage(certificate.curve)
        if name == "advantage"
        else risk.true_positive_rate(certificate.curve, level)
    )
    assert 0.997 * (aim - level) <= found - level
    assert found <= aim
    least = (
        risk.advantage(certificate.curve_upper)
        if name == "advantage"
        else risk.true_positive_rate(certificate.curve_upper, level)
    )
    assert 0.99 * aim <= least <= aim


def test_calibrate_advantage_of_a_gaussian():
    """Its advantage is 2 Phi(mu / 2) - 1 with mu = 10 / noise, and an approximation is not used."""
    mechanism = FakeMechanism(1.0, sampling="none")
    exact = 5 / norm.isf((1 - 0.2) / 2)
    found = calibrate(mechanism, advantage=0.2).noise_multiplier
    assert exact <= found <= 1.004 * exact


def test_max_num_steps_of_attack_risk():
    mechanism = FakeMechanism(2.0, 64, "none")
    allowed = max_num_steps(mechanism, advantage=0.9)
    # The advantage of n steps is 2 Phi(sqrt(n) / 4) - 1.
    assert allowed == math.floor((4 * norm.isf(0.05)) ** 2)
    rates = {"true_positive_rate": 0.5, "false_positive_rate": 0.01}
    assert max_num_steps(mechanism, **rates) == math.floor((2 * norm.isf(0.01)) ** 2)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        ({}, "the target must be exactly one of 'epsilon', 'advantage', 'true_positive_rate'"),
        ({"advantage": 0.1, "epsilon": 1.0, "delta": 1e-5}, r"got \['epsilon', 'advantage'\]"),
        ({"epsilon": 1.0}, "delta must be given with epsilon"),
        ({"advantage": 0.1, "delta": 1e-5}, "delta must be left out without epsilon, got 1e-05"),
        ({"true_positive_rate": 0.1}, "false_positive_rate must be given with true_positive_rate"),
        ({"advantage": 0.1, "false_positive_rate": 0.1}, "and with it only, got 0.1"),
        ({"advantage": 1.0}, r"advantage must be in \(0, 1\), got 1.0"),
        *(
            ({"epsilon": epsilon, "delta": DELTA}, "epsilon must be a finite number > 0")
            for epsilon in (0.0, -1.0, math.inf, math.nan, "tight")
        ),
        ({"epsilon": 1.0, "delta": 2}, r"delta must be in \(0, 1\), got 2"),
        (
            {"true_positive_rate": 0.1, "false_positive_rate": 0.1},
            "true_positive_rate must be above false_positive_rate = 0.1, got 0.1",
        ),
        (
            {"true_positive_rate": 0.1, "false_positive_rate": 0.0},
            r"false_positive_rate must be in \(0, 1\)",
        ),
    ],
)
def test_calibrate_and_max_num_steps_refuse(target, text):
    for search in (calibrate, max_num_steps):
        with pytest.raises(ValueError, match=text):
            search(FakeMechanism(1.0), **target)


@dataclass(frozen=True)
class Coarse(FakeMechanism):
    """Its noise comes in powers of two only."""

    def with_privacy_factor(self, factor: float) -> "Coarse":
        return Coarse(2.0 ** round(math.log2(self.noise_multiplier * factor)), sampling="none")


@pytest.mark.parametrize(
    ("mechanism", "target", "message"),
    [
        (Noiseless(1.0), {"advantage": 0.5}, r"= 0\.5 cannot be reached.*does not pass it"),
        (Noiseless(1.0), {"epsilon": 1.0, "delta": DELTA}, r"= 1 cannot be reached.*not pass it"),
        (Coarse(16.0), {"epsilon": 4.0, "delta": DELTA}, "the certified epsilon jumps past it"),
    ],
)
def test_calibrate_reports_unreachable_targets(mechanism, target, message):
    with pytest.raises(ValueError, match=message):
        calibrate(mechanism, **target)


def test_calibrate_takes_nothing_just_above_the_target():
    mechanism = Coarse(16.0, sampling="none")
    target = 0.995 * mechanism.certificate(DELTA).epsilon
    with pytest.raises(ValueError, match="the certified epsilon jumps past it"):
        calibrate(mechanism, epsilon=target, delta=DELTA)


def test_calibrate_returns_mechanism_on_target():
    mechanism = FakeMechanism(1.0)
    target = mechanism.certificate(DELTA).epsilon / 0.998
    assert calibrate(mechanism, epsilon=target, delta=DELTA) == mechanism


@pytest.mark.parametrize("target", [{"epsilon": 1.0, "delta": DELTA}, {"advantage": 0.2}])
def test_calibrate_from_too_little_noise(target):
    mechanism = FakeMechanism(1e-4, sampling="poisson", adjacency="replace_one")
    with pytest.raises(UnsupportedEventError, match=r"must be at least 0\.01"):
        mechanism.certificate(DELTA)
    found = calibrate(mechanism, **target).noise_multiplier
    assert found == pytest.approx(
        calibrate(replace(mechanism, noise_multiplier=1.0), **target).noise_multiplier, rel=0.01
    )
    assert max_num_steps(mechanism, **target) == 0


@pytest.mark.parametrize(
    ("sampling", "adjacency"), [("poisson", "replace_one"), ("fixed_size", "replace_one")]
)
def test_max_num_steps_is_the_last(sampling, adjacency):
    mechanism = FakeMechanism(1.0, 50, sampling, adjacency)
    budget = 0.7 * certified_of(mechanism.event, DELTA, adjacency)[1]
    steps = max_num_steps(mechanism, epsilon=budget, delta=DELTA)
    assert 0 < steps < 50
    assert certified_of(mechanism.first_steps(steps).event, DELTA, adjacency)[1] <= budget
    assert certified_of(mechanism.first_steps(steps + 1).event, DELTA, adjacency)[1] > budget


@pytest.mark.parametrize(
    ("sampling", "target"),
    [("poisson", {"epsilon": 0.5}), ("none", {"epsilon": 5.0}), ("poisson", {"advantage": 0.1})],
)
def test_max_num_steps_in_few_evaluations(sampling, target, monkeypatch):
    """Bisection takes 18; the answer is the same."""
    values = []
    measured = calibration.Target.measured

    def noted(*arguments):
        values.append(measured(*arguments))
        return values[-1]

    monkeypatch.setattr(calibration.Target, "measured", noted)
    target |= {"delta": DELTA} if "epsilon" in target else {}
    mechanism = FakeMechanism(4.0, 100_000, sampling)
    steps = max_num_steps(mechanism, **target)
    assert 0 < steps < 100_000
    assert len(values) <= 10
    assert max_num_steps(mechanism.first_steps(steps + 5), **target) == steps


def test_max_num_steps_of_extreme_budgets():
    mechanism = FakeMechanism(1.0, 64, "none")
    assert max_num_steps(mechanism, epsilon=1e3, delta=DELTA) == 64
    assert max_num_steps(mechanism, epsilon=0.1, delta=DELTA) == 0
    single = mechanism.first_steps(1).certificate(DELTA).epsilon
    assert max_num_steps(mechanism, epsilon=single, delta=DELTA) == 1


@pytest.mark.slow
def test_calibrate_ten_million_steps_on_short_windows(monkeypatch):
    """Counted, not timed: eight windows of up to 850,000 losses, before of up to 7 million."""
    sizes, compose = [], accountants.compose_grids

    def noted(*arguments):
        total = compose(*arguments)
        sizes.append(total.remove.masses.size)
        return total

    monkeypatch.setattr(accountants, "compose_grids", noted)
    mechanism = SubsampledGaussian(
        PoissonSampling(1_000_000, 0.01),
        l2_clip=1.0,
        noise_multiplier=40.0,
        num_steps=10**7,
        adjacency="zero_out",
    )
    calibrated = calibrate(mechanism, epsilon=3.0, delta=1e-6)
    assert 2.97 <= certified_of(calibrated.event, 1e-6, "zero_out")[1] <= 3.0
    assert max(sizes) < 1_000_000
    assert len(sizes) <= 14
