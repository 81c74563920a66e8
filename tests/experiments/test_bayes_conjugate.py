"""Conjugate posteriors: rates, coverage and the columns of the table."""

import dataclasses

import numpy as np
import pytest

from experiments.bayes import conjugate
from experiments.bayes.conjugate import DELTA, MODELS, make_release
from experiments.lib.figures import draw_figures
from experiments.lib.records import load_records
from experiments.lib.runner import Plan, run_experiment

ROWS = {row.name: row for row in conjugate.EXPERIMENT.rows("quick")}
# The others are like these.
RUN_HERE = (
    "consistency: normal, known variance",
    "coverage: normal, known variance, n = 100",
    "coverage: normal, known variance, n = 20,000",
    "coverage: beta-binomial, n = 100",
)


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    folder = tmp_path_factory.mktemp("results")
    some = dataclasses.replace(
        conjugate.EXPERIMENT, rows=lambda profile: [ROWS[name] for name in RUN_HERE]
    )
    assert run_experiment(some, Plan("quick", folder, False, print))
    return {record.row: record for record in load_records(folder, some.name)}


def test_every_family_has_a_row_of_each_kind():
    assert len(ROWS) == 3 * len(MODELS)
    for family in MODELS:
        kinds = [row.settings for row in ROWS.values() if row.settings["family"] == family]
        assert [settings.get("noise matters") for settings in kinds] == [None, True, False]
    assert len(conjugate.EXPERIMENT.rows("paper")) == len(ROWS)


def test_the_noise_costs_one_over_n_and_sampling_one_over_its_root(records):
    measured = records[RUN_HERE[0]].measured
    assert measured["slope, private"] == pytest.approx(-1, abs=0.1)
    assert measured["slope, sampling"] == pytest.approx(-0.5, abs=0.1)
    series = records[RUN_HERE[0]].series
    ratios = np.array(series["private"]) / np.array(series["sampling"])
    assert np.all(np.diff(ratios) < 0)


def test_slopes_are_the_exponents():
    sizes = np.array([10, 100, 1000])
    assert conjugate.slope(sizes, 7 / sizes**0.5) == pytest.approx(-0.5)


def test_noise_aware_intervals_cover_and_naive_ones_do_not(records):
    for name in RUN_HERE[1:]:
        aware = records[name].measured["noise-aware coverage %"]
        naive = records[name].measured["naive coverage %"]
        assert all(87 <= share <= 93 for share in aware)
        if ROWS[name].settings["noise matters"]:
            assert min(naive) < 80
        else:
            assert min(naive) > 85


def test_certified_is_the_mechanism_that_ran(records):
    laplace, gaussian = records[RUN_HERE[0]], records[RUN_HERE[1]]
    assert laplace.certified["pure ε"] == pytest.approx(1.0)
    assert laplace.certified["ε at δ = 1e-6"] <= 1 + 1e-6
    assert "pure differential privacy" in laplace.certificate
    assert gaussian.certified["pure ε"] is None
    release = make_release("normal, known variance", "Gaussian", 1.0, "replace_one")
    certified = gaussian.certified["ε at δ = 1e-6"]
    assert certified == release.certificate(DELTA).epsilon == pytest.approx(1.0, rel=5e-3)
    for record in records.values():
        assert "seeded" in record.note
        assert "not private" in record.note


def test_pictures_and_remarks_follow_the_records(records, tmp_path):
    pictures = draw_figures(conjugate.EXPERIMENT, list(records.values()), tmp_path)
    stems = [picture.path.stem.removeprefix("bayes_conjugate_quick_") for picture in pictures]
    assert stems == ["consistency", "coverage"]
    assert len(draw_figures(conjugate.EXPERIMENT, [records[RUN_HERE[0]]], tmp_path)) == 1
    (remark,) = conjugate.EXPERIMENT.remarks(list(records.values()))
    assert "in no row; that of naive ones is below 80 % in 2 of 3 rows" in remark
    off = dataclasses.replace(
        records[RUN_HERE[1]],
        measured={"naive coverage %": [50.0], "noise-aware coverage %": [80.0]},
    )
    assert RUN_HERE[1] in conjugate.EXPERIMENT.remarks([off])[0]
    assert conjugate.EXPERIMENT.remarks([records[RUN_HERE[0]]]) == []
