"""Step sizes: the certified epsilons of those claimed, the largest certified, and the remarks."""

import dataclasses

import numpy as np
import pytest

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE, PolynomialDecay
from experiments.sgmcmc import bounds


@pytest.fixture(scope="module")
def records(run_rows):
    """All constant steps and chains, one decreasing row, and the steps for two epsilons."""
    rows = bounds.rows("quick")
    slow = [row for row in rows if row.settings.get("schedule") == "decreasing"][:3]
    slow += [row for row in rows if row.settings.get("epsilon") in (0.5, 2)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_NUM_PIECES", 4)  # coarser, and faster: still an upper bound
        return run_rows(bounds, *(row.name for row in rows if row not in slow))


@pytest.mark.parametrize(
    ("batch", "printed", "temperature_one"),
    [("100", 36.2, 8.87), ("256", 3.5, 1.90), ("1,000", 2.35, 1.58), ("5,000", 2.29, 1.56)],
)
def test_run_row_certifies_more_than_the_claimed_epsilon(records, batch, printed, temperature_one):
    record = records[f"η = 0.1, batches of {batch}"]
    assert record.source["claimed ε"] == 0.1
    assert record.certified[bounds.PRINTED] == pytest.approx(printed, rel=0.005)
    assert record.certified[bounds.TEMPERATURE_ONE] == pytest.approx(temperature_one, rel=0.005)


@pytest.mark.parametrize(("batches", "epsilon"), [("batches of their own", 5.12), ("shared", 5.62)])
def test_run_row_certifies_eight_chains(records, batches, epsilon):
    (record,) = [record for name, record in records.items() if f"8 chains, {batches}" in name]
    assert record.certified[bounds.TEMPERATURE_ONE] == pytest.approx(epsilon, rel=0.005)


def test_run_steps_at_a_tenth_has_the_largest_certified_steps(records):
    record = records["steps for ε = 0.1"]
    constant = dict(record.series["constant"])
    assert constant[100] / 2 == pytest.approx(3.2e-4, rel=0.02)
    assert record.measured[bounds.BY_2015] == pytest.approx(9.2e-8, rel=0.01)
    assert record.measured[bounds.BY_SLIDES] == pytest.approx(0.106, rel=0.01)
    for name in ("ε, constant η", "ε, t^(−1/3)"):
        assert 0.099 < record.certified[name] <= 0.1
    # half as large with the noise as printed, and no larger
    for size, certified in ((0.5, True), (0.53, False)):
        chain = bounds.make_sgld(1_000, size * constant[1_000], PUBLISHED_TEMPERATURE)
        found = certified_epsilon(chain.event, bounds.DELTA, adjacency="add_remove")
        assert (found <= 0.1) == certified


def test_stepwise_schedule_is_above_the_smooth_one(monkeypatch):
    stepwise_schedule, smooth = (
        np.array(bounds.stepwise_schedule(0.1)),
        np.arange(1, 10_001) ** (-1 / 3) / 10,
    )
    assert (stepwise_schedule >= smooth - 1e-12).all()
    assert (stepwise_schedule <= 1.11 * smooth).all()
    assert len(np.unique(stepwise_schedule)) <= 30
    monkeypatch.setitem(bounds.SETTING, "num_steps", 300)
    chain = bounds.make_sgld(5_000, PolynomialDecay(0.1), POSTERIOR_TEMPERATURE)
    above = dataclasses.replace(chain, step_size=bounds.stepwise_schedule(0.1))
    smooth_epsilon, epsilon = (
        certified_epsilon(one.event, bounds.DELTA, adjacency="add_remove") for one in (chain, above)
    )
    assert smooth_epsilon < epsilon < 1.03 * smooth_epsilon
