import math
from dataclasses import dataclass

import pytest
from accounting_cases import FakeMechanism, Noiseless

from dpjax.accounting import calibrate, calibration, releases_within
from dpjax.accounting.accountants import guarantee

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
def test_a_close_safe_target_in_few_evaluations(target, start, sampling, adjacency, monkeypatch):
    values = []

    def noted(*arguments):
        values.append(guarantee(*arguments)[1])
        return None, values[-1]

    monkeypatch.setattr(calibration, "guarantee", noted)
    mechanism = FakeMechanism(start, sampling=sampling, adjacency=adjacency)
    calibrated = calibrate(mechanism, epsilon=target, delta=DELTA)
    assert calibrated == FakeMechanism(calibrated.noise_multiplier, 100, sampling, adjacency)
    certified = guarantee(calibrated.event, DELTA, adjacency)[1]
    assert 0.99 * target <= certified <= target
    assert certified == values[-1]
    assert len(values) <= (14 if start < 1e-3 else 10)


def test_the_certificate_of_the_result_is_within_the_target():
    calibrated = calibrate(FakeMechanism(1.0), epsilon=2.0, delta=1e-6)
    assert 1.98 <= calibrated.certificate(1e-6).epsilon <= 2.0


def test_a_mechanism_on_target_is_kept():
    mechanism = FakeMechanism(1.0)
    target = mechanism.certificate(DELTA).epsilon / 0.998
    assert calibrate(mechanism, epsilon=target, delta=DELTA) == mechanism


@pytest.mark.parametrize("target", [0.0, -1.0, math.inf, math.nan, "tight"])
def test_nonsense_targets_are_refused(target):
    for search in (calibrate, releases_within):
        with pytest.raises(ValueError, match="epsilon must be a finite number > 0"):
            search(FakeMechanism(1.0), epsilon=target, delta=DELTA)


def test_nonsense_deltas_are_refused():
    for search in (calibrate, releases_within):
        with pytest.raises(ValueError, match=r"delta must be in \(0, 1\), got 2"):
            search(FakeMechanism(1.0), epsilon=1.0, delta=2)


def test_noise_that_does_not_help_is_reported():
    with pytest.raises(ValueError, match=r"epsilon = 1 cannot be reached.*does not pass it"):
        calibrate(Noiseless(1.0), epsilon=1.0, delta=DELTA)


@dataclass(frozen=True)
class Coarse(FakeMechanism):
    """Its noise comes in powers of two only."""

    def scale_noise(self, factor: float) -> "Coarse":
        return Coarse(2.0 ** round(math.log2(self.noise_multiplier * factor)), sampling="none")


def test_a_jump_past_the_target_is_reported():
    with pytest.raises(ValueError, match="the certified epsilon jumps past it"):
        calibrate(Coarse(16.0), epsilon=4.0, delta=DELTA)


@pytest.mark.parametrize(
    ("sampling", "adjacency"), [("poisson", "replace_one"), ("fixed_size", "replace_one")]
)
def test_the_last_step_paid_for_is_the_last(sampling, adjacency):
    mechanism = FakeMechanism(1.0, 50, sampling, adjacency)
    budget = 0.7 * guarantee(mechanism.event, DELTA, adjacency)[1]
    steps = releases_within(mechanism, epsilon=budget, delta=DELTA)
    assert 0 < steps < 50
    assert guarantee(mechanism.prefix(steps).event, DELTA, adjacency)[1] <= budget
    assert guarantee(mechanism.prefix(steps + 1).event, DELTA, adjacency)[1] > budget


def test_the_ends_of_a_budget():
    mechanism = FakeMechanism(1.0, 64, "none")
    assert releases_within(mechanism, epsilon=1e3, delta=DELTA) == 64
    assert releases_within(mechanism, epsilon=0.1, delta=DELTA) == 0
    single = mechanism.prefix(1).certificate(DELTA).epsilon
    assert releases_within(mechanism, epsilon=single, delta=DELTA) == 1
