"""Figure 4 of Bu et al. (2020): noise multipliers, their certified costs, and short runs."""

import dataclasses
import math

import pytest

import dpjax
from experiments.data import load_data
from experiments.gdp import noise_saved
from experiments.gdp.mnist import PUBLISHED_SIZE, Settings
from experiments.gdp.noise_saved import compute_epsilon, min_noise_multiplier
from experiments.lib.figures import draw_figures
from experiments.lib.records import load_records
from experiments.lib.registry import Row
from experiments.lib.runner import Plan, run_experiment

HALVES = list(noise_saved.HALVES)


def settings_of(half, noise):
    return Settings(0.15, 1.5, noise, published_epochs=half.epochs, epochs=half.epochs)


@pytest.mark.parametrize("name", HALVES)
def test_the_solved_noises_have_the_printed_digits(name):
    half = noise_saved.HALVES[name]
    moments, limit, tight = half.noises
    solved = min_noise_multiplier("CLT", settings_of(half, moments), half.epsilon)
    assert round(solved, len(str(limit)) - 2) == limit
    solved = min_noise_multiplier("MA", settings_of(half, moments), half.epsilon)
    assert solved == pytest.approx(moments, rel=0.005)
    solved = min_noise_multiplier("PLD", settings_of(half, moments), half.epsilon)
    assert tight == math.ceil(1000 * solved) / 1000


@pytest.mark.parametrize("name", HALVES)
def test_the_tight_noise_meets_the_target_and_hardly_less_would(name):
    half = noise_saved.HALVES[name]
    tight = half.noises[-1]
    assert compute_epsilon("PLD", settings_of(half, tight), half.epochs) <= half.epsilon
    less = settings_of(half, 0.995 * tight).mechanism(PUBLISHED_SIZE, half.epochs)
    lower = dpjax.accounting.epsilon_bounds(less.event, 1e-5, adjacency="add_remove").lower
    assert lower > half.epsilon


@pytest.mark.parametrize(("name", "cost"), [("top", 1.41), ("bottom", 9.48)])
def test_what_the_published_noise_really_costs(name, cost):
    half = noise_saved.HALVES[name]
    settings = settings_of(half, half.noises[1])
    assert round(compute_epsilon("PLD", settings, half.epochs), 2) == cost
    assert compute_epsilon("CLT", settings, half.epochs) == pytest.approx(half.epsilon, rel=0.002)


def test_quick_shortens_the_top_and_paper_runs_all():
    quick, paper = (noise_saved.EXPERIMENT.rows(profile) for profile in ("quick", "paper"))
    assert [row.settings["epochs"] for row in quick] == [2, 2, 2, 0, 0, 0]
    assert [row.settings["epochs"] for row in paper] == [20, 20, 20, 70, 70, 70]
    assert len({row.settings["noise_multiplier"] for row in paper}) == 6


def test_milestones_are_read_off_the_curve():
    curve = [(1.0, 90.0), (2.0, 95.5), (3.0, 95.0), (4.01, 96.0)]
    spent = {"MA": [(1.0, 3.0), (2.0, 4.5)], "PLD": [(1.0, 2.0), (2.0, 4.0), (3.0, 4.1)]}
    reached = noise_saved._reached(curve, spent, "MA")
    assert [reached[f"epochs to {level} % right"] for level in (95, 96, 97)] == [2, 4, None]
    assert reached["accuracy, its account's ε ≤ 4, %"] == 90.0
    assert reached["accuracy, certified ε ≤ 4, %"] == 95.5


def rows_run_here(profile):
    """The top half by its accounts alone, and of the bottom half one run, shortened."""
    *top, bottom, _, _ = noise_saved.EXPERIMENT.rows("paper")
    short = {**bottom.settings, "epochs": 3, "published_epochs": 5}
    untrained = [Row(row.name, {**row.settings, "epochs": 0}, row.source) for row in top]
    return [*untrained, Row(bottom.name, short, bottom.source)]


@pytest.fixture
def experiment(monkeypatch):
    """The experiment on the small stand-in, and shortened."""
    stand_in = dataclasses.replace(load_data("digits"), is_stand_in=True, note="digits.")
    monkeypatch.setattr(noise_saved, "load_mnist", lambda: stand_in)
    return dataclasses.replace(noise_saved.EXPERIMENT, rows=rows_run_here)


def test_rows_run_are_certified_and_drawn(experiment, tmp_path):
    assert run_experiment(experiment, Plan("quick", tmp_path, False, print))
    records = load_records(tmp_path, experiment.name)
    moments, limit, tight, trained = records
    assert "test accuracy %" not in limit.measured
    assert "not trained" in limit.note
    assert round(limit.certified["ε"], 2) == 1.41
    assert tight.certified["ε"] <= 1.34 < moments.measured["MA ε"] == pytest.approx(1.34, rel=0.01)
    assert trained.measured["test accuracy %"] > 20
    assert trained.measured["epochs to 95 % right"] is None
    assert 0 < trained.certified["ε, as run"] < math.inf
    assert "Shortened" in trained.note
    assert [epoch for epoch, _ in trained.series["accuracy % by epoch"]] == [1.0, 2.0, 3.0]
    assert len(draw_figures(experiment, records, tmp_path)) == 2
    (remark,) = experiment.remarks(records)
    assert "87% of that reduction" in remark
    assert "ε is 1.409" in remark
