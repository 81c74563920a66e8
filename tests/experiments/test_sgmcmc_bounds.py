"""Step sizes: the certified epsilons of those claimed, the largest certified, and the remarks."""

import dataclasses

import numpy as np
import pytest

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import POSTERIOR_TEMPERATURE, PUBLISHED_TEMPERATURE, PolynomialDecay
from experiments.lib.figures import draw_figures
from experiments.lib.records import load_records
from experiments.lib.runner import Plan, run_experiment
from experiments.sgmcmc import bounds


def _fewer_rows(profile):
    """All constant steps and chains, one decreasing row, and the steps for two epsilons."""
    rows = bounds.EXPERIMENT.rows(profile)
    slow = [row for row in rows if row.settings.get("schedule") == "decreasing"][:3]
    return [row for row in rows if row not in slow and row.settings.get("epsilon") not in (0.5, 2)]


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    some = dataclasses.replace(bounds.EXPERIMENT, rows=_fewer_rows)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bounds, "_NUM_PIECES", 4)  # coarser, and faster: still an upper bound
        assert run_experiment(some, Plan("quick", folder, False, print))
    return {record.row: record for record in load_records(folder, some.name)}


@pytest.mark.parametrize(
    ("batch", "printed", "temperature_one"),
    [("100", 36.2, 8.87), ("256", 3.5, 1.90), ("1,000", 2.35, 1.58), ("5,000", 2.29, 1.56)],
)
def test_the_claimed_step_certifies_far_more(records, batch, printed, temperature_one):
    record = records[f"η = 0.1, batches of {batch}"]
    assert record.source["claimed ε"] == 0.1
    assert record.certified[bounds.PRINTED] == pytest.approx(printed, rel=0.005)
    assert record.certified[bounds.TEMPERATURE_ONE] == pytest.approx(temperature_one, rel=0.005)


@pytest.mark.parametrize(("batches", "epsilon"), [("batches of their own", 5.12), ("shared", 5.62)])
def test_eight_chains(records, batches, epsilon):
    (record,) = [record for name, record in records.items() if f"8 chains, {batches}" in name]
    assert record.certified[bounds.TEMPERATURE_ONE] == pytest.approx(epsilon, rel=0.005)


def test_the_steps_for_a_tenth(records):
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


def test_the_stairs_lie_above_the_smooth_schedule(monkeypatch):
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


def test_remarks_and_pictures(records, tmp_path):
    remarks = bounds.EXPERIMENT.remarks(list(records.values()))
    assert "is not certified" in remarks[0]
    assert "36.18, 3.51, 2.354, 2.294 for batches of 100, 256, 1,000, 5,000" in remarks[0]
    assert "temperature ½" in " ".join(remarks)
    assert "1.54e-6; its formula gives 9.2e-08 with L = 4" in " ".join(remarks)
    assert "8 chains" in remarks[-1]
    certified = {bounds.PRINTED: 0.1, bounds.TEMPERATURE_ONE: 0.05}
    small = dataclasses.replace(records["η = 0.1, batches of 1,000"], certified=certified)
    assert "is certified for some batch sizes" in bounds.EXPERIMENT.remarks([small])[0]
    pictures = draw_figures(bounds.EXPERIMENT, list(records.values()), tmp_path)
    stems = [picture.path.stem for picture in pictures]
    assert stems == ["sgmcmc_bounds_quick_steps", "sgmcmc_bounds_quick_epsilons"]
    assert not draw_figures(bounds.EXPERIMENT, [small], tmp_path)
