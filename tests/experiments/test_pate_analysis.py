"""The published ε of PATE from votes, the claims checked, and the command for other votes."""

import dataclasses
import itertools
import os
from pathlib import Path

import numpy as np
import pytest

from dpjax import pate
from experiments.lib.registry import RowContext
from experiments.pate import __main__ as command
from experiments.pate import accounts, analysis
from experiments.pate.accounts import BOTH, COMPOSED, EPSILON, FORMULA, PRIVATE, SANITIZED
from experiments.pate.analysis import AS_PRINTED, BLOCKS
from experiments.published.pate import published_epsilon

ROWS = {row.name: row for row in analysis.rows("quick")}
# In the order of the table; the first and the last simulated row of LNMax.
SOME = (
    "MNIST: LNMax, 100 queries",
    "Adult: LNMax, 500 queries",
    "Adult: Confident-GNMax",
    "simulated, LNMax, 100 teachers",
    "simulated, LNMax, 400 teachers",
    *analysis.CLAIMS,
)


def made_up_votes(num_queries, num_classes):
    shares = [0.8, *[0.2 / (num_classes - 1)] * (num_classes - 1)]
    return np.random.default_rng(0).multinomial(250, shares, num_queries).astype(float)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with votes on Adult, made up, and none on the other data sets."""
    root = tmp_path_factory.mktemp("data")
    (root / "pate_votes").mkdir()
    np.save(root / "pate_votes" / "adult_250_teachers.npy", made_up_votes(1_600, 2))
    return root


@pytest.fixture(scope="module")
def records(folder, run_rows):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DPJAX_DATA_DIR", str(folder))
        return run_rows(analysis, *SOME)


@pytest.mark.slow
def test_run_row_without_votes_has_the_epsilons_of_any_votes_only(records):
    record = records["MNIST: LNMax, 100 queries"]
    assert record.measured == {}
    assert record.certified[COMPOSED] == pytest.approx(4.31, abs=0.006)
    assert record.certified[EPSILON] == pytest.approx(2.893, abs=1e-3)


def test_run_row_analyses_votes_of_another_data_set(records):
    votes = made_up_votes(1_600, 2)
    record = records["Adult: LNMax, 500 queries"]
    mechanism = accounts.make_mechanism(record.settings, num_teachers=250, num_classes=2)
    (both,) = pate.data_dependent_analyses(mechanism, votes[:500], 1e-5)
    published = published_epsilon(mechanism, votes[:500], 1e-5)
    assert record.measured[AS_PRINTED] == record.measured[FORMULA] == published
    assert record.measured[BOTH] == both.epsilon
    assert record.series[BLOCKS][0] == record.measured[AS_PRINTED]
    assert len(record.series[BLOCKS]) == 3
    assert record.certified[EPSILON] > record.measured[BOTH]


def test_run_row_adds_the_cost_of_the_sanitized_epsilon(records):
    record = records["Adult: Confident-GNMax"]
    settings = {**record.settings["sanitized"], "failure_probability": 1e-6}
    mechanism = accounts.make_mechanism(record.settings, num_teachers=250, num_classes=2)
    release = pate.SmoothRDPRelease(mechanism=mechanism, **settings)
    assert record.certified[SANITIZED] > release.own_rdp
    assert 0 < record.measured["answers"] <= 524


def test_printed_epsilons_are_those_of_each_block_at_its_own_noise():
    votes = made_up_votes(200, 10)
    mechanism = accounts.make_mechanism(
        ROWS["MNIST: LNMax, 100 queries"].settings, num_teachers=250, num_classes=10
    )
    at_printed = dataclasses.replace(mechanism, scale=10.0)
    found = analysis.printed_epsilons(at_printed, 1e-5, votes)
    expected = [published_epsilon(at_printed, part, 1e-5) for part in (votes[:100], votes[100:])]
    assert found == expected


@pytest.mark.parametrize(
    ("row", "column", "expected"),
    [
        ("SVHN: LNMax, 500 queries", AS_PRINTED, 5.041),
        ("SVHN: LNMax, 500 queries", FORMULA, 4.37),
        ("MNIST: LNMax, 100 queries", EPSILON, 2.893),
    ],
)
def test_run_row_has_the_printed_digits_for_the_released_votes(row, column, expected, tmp_path):
    if not (Path(os.environ.get("DPJAX_DATA_DIR") or ".") / "pate_votes").is_dir():
        pytest.skip("DPJAX_DATA_DIR has no folder pate_votes with the released votes")
    result = analysis.run_row(ROWS[row], RowContext(tmp_path, fresh=True, profile="quick"))
    found = {**result.measured, **result.certified}
    assert found[column] == pytest.approx(expected, abs=0.006)
    if row == "MNIST: LNMax, 100 queries":
        # the source does not state its queries
        blocks = result.series[BLOCKS]
        assert min(blocks) < 2.04 < max(blocks)
        assert np.median(blocks) == pytest.approx(2.04, abs=0.006)


def test_run_row_of_agreeing_teachers_lowers_the_data_dependent_epsilon_only(records):
    few, many = (records[f"simulated, LNMax, {count} teachers"] for count in ("100", "400"))
    for record in (few, many):
        values = record.series["epsilon"]
        assert all(one >= other for one, other in itertools.pairwise(values))
        assert len(values) == len(record.settings["accuracies"])
    assert max(few.series["epsilon"]) > 20 * min(many.series["epsilon"])
    assert few.certified == many.certified
    assert all(column.startswith(PRIVATE) for column in many.measured)


def test_claims(records):
    label, direction, release = (records[name] for name in analysis.CLAIMS)
    assert label.certified[EPSILON] == 2 * label.source[EPSILON]
    assert direction.series[analysis.FORWARD] > 1
    assert direction.measured[analysis.REVERSE] == pytest.approx(0.676, abs=1e-3)
    assert round(release.series[analysis.BY_FORMULA], 2) == release.source[analysis.COST]
    assert round(release.certified[analysis.COST], 2) == 1.61


def test_direction_ratios_are_above_one_for_large_noise():
    orders = np.arange(2.0, 33.0)
    assert min(analysis.direction_ratios(40.0, 250, orders)) > 1
    assert analysis.direction_ratios(10.0, 250, orders)[1] == pytest.approx(0.097, abs=1e-3)


@pytest.mark.slow
def test_main_prints_both_kinds_of_epsilon(folder, capsys):
    path = str(folder / "pate_votes" / "adult_250_teachers.npy")
    confident = "--aggregator ConfidentGNMax --scale 40 --check-scale 200 --threshold 300"
    sanitize = "--sanitize 15.5 0.031 7.91 1e-6"
    options = f"{confident} --max-answers 20 --num-queries 50 --delta 1e-5 {sanitize}"
    assert command.main([path, *options.split()]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "NOT PUBLISHABLE AS IS" in printed
    assert "of 2 classes among the votes of 250 teachers, for 50 queries" in printed
    assert "Sanitized data-dependent epsilon" in printed


def test_main_refuses_votes_that_are_no_counts(tmp_path):
    np.save(tmp_path / "votes.npy", np.array([[3.0, 1.0], [2.0, 1.0]]))
    options = ["--aggregator", "LNMax", "--scale", "2", "--delta", "1e-5"]
    with pytest.raises(ValueError, match="sum to num_teachers = 4"):
        command.main([str(tmp_path / "votes.npy"), *options])
    with pytest.raises(ValueError, match="sum to at most num_teachers = 3"):
        command.main([str(tmp_path / "votes.npy"), *options, "--num-teachers", "3"])


def test_main_takes_votes_of_teachers_that_abstain(tmp_path, capsys):
    np.save(tmp_path / "votes.npy", np.tile([[30.0, 10.0], [20.0, 10.0]], (30, 1)))
    options = ["--aggregator", "LNMax", "--scale", "9", "--delta", "1e-5", "--num-teachers", "50"]
    assert command.main([str(tmp_path / "votes.npy"), *options]) == 0
    assert "50 teachers, who may abstain" in " ".join(capsys.readouterr().out.split())
