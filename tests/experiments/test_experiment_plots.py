"""Figures, plots of records, and the rows and columns of sweeps."""

from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.lib.figures import (
    CERTIFIED,
    DPI,
    PALETTE,
    SOURCE,
    draw_figures,
    new_figure,
)
from experiments.lib.plots import (
    draw_bars,
    draw_by_row,
    draw_column,
    draw_published_against_measured,
    draw_series,
    legend_below,
    panel_grid,
    set_log_ticks,
)
from experiments.lib.records import load_records
from experiments.lib.registry import Record
from experiments.lib.runner import run_experiment
from experiments.lib.sweeps import column, grid, make_rows
from experiments.lib.verdicts import group_by, join_row_names


@pytest.fixture
def records(toy, plan):
    run_experiment(toy.experiment, plan)
    return load_records(plan.results, "toy_table")


@pytest.fixture
def axes():
    _, (axes,) = new_figure()
    return axes


def test_panel_grid_blanks_cells_without_a_panel():
    figure, panels = panel_grid(4, 3, 9.0, 6.0)
    assert len(panels) == 4
    assert [cell.axison for cell in figure.axes] == [True] * 4 + [False] * 2


def test_legend_below_has_each_label_once():
    figure, panels = panel_grid(2, 2, 9.0, 4.0)
    for panel in panels:
        panel.plot([0, 1], label="both")
    panels[1].plot([1, 0], label="right")
    legend_below(figure, panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "right"]


def test_set_log_ticks(axes):
    axes.plot([0.1, 1_000], [1, 2])
    set_log_ticks(axes, [0.1, 1_000], "records")
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1,000"]
    assert axes.get_xlabel() == "records"


def test_draw_series_has_bands_of_errors_and_leaves_records_out(axes, records):
    first, second, third = records
    found = [
        replace(first, series={"s": [(1, 5.0, 0.5), (2, 6.0, 0.5)]}),
        second,
        replace(third, series={"s": [(1, 1.0), (2, 2.0)]}),
    ]
    draw_series(axes, found, "s")
    assert [line.get_label() for line in axes.lines] == ["1", "3"]
    assert [line.get_color() for line in axes.lines] == list(PALETTE[:2])
    (band,) = axes.collections
    heights = band.get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (4.5, 6.5)


def test_draw_bars_side_by_side(axes):
    draw_bars(axes, {"one": {"a": 1.0, "b": 2.0}, "other": {"a": 3.0, "b": 4.0}})
    centres = [bar.get_x() + bar.get_width() / 2 for bar in axes.patches]
    np.testing.assert_allclose(centres, [-0.2, 0.8, 0.2, 1.2])
    assert [bar.get_height() for bar in axes.patches] == [1.0, 2.0, 3.0, 4.0]


def test_draw_by_row_places_each_record_on_its_line(axes, records):
    first, second, third = records
    shown = [
        replace(first, measured={"ε": [1.0, 2.0]}),
        replace(second, measured={"ε": 3.0}),
        third,
    ]
    draw_by_row(axes, shown, {"naive": ("measured", "ε", SOURCE, "s"), "ours": ("certified", "ε")})
    places = [list(line.get_ydata()) for line in axes.lines]
    assert places == [[0, 0], [1], [2], [0], [1], [2]]
    assert list(axes.lines[0].get_xdata()) == [1.0, 2.0]
    assert np.isnan(axes.lines[2].get_xdata()).all()
    assert [axes.lines[index].get_color() for index in (0, 3)] == [SOURCE, CERTIFIED]
    low, high = axes.get_ylim()
    assert low > high


def test_draw_column_has_bars_of_two_errors(axes, records):
    draw_column(axes, records, "l2_clip", "ε", "CLT ε", label="certified")
    (container,) = axes.containers
    line, _, (bars,) = container
    assert list(line.get_xdata()) == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(line.get_ydata(orig=False), [2.23411, 3.23411, 4.23411])
    np.testing.assert_allclose([np.ptp(bar[:, 1]) for bar in bars.get_segments()], 4 * 0.8765)


def test_draw_published_against_measured_pairs_numbers_of_the_same_name(records):
    first, second, third = records
    shown = [
        replace(
            first,
            source={"accuracy %": 91.0, "ε": 2.0, "CLT ε": 1.5, "n": "many", "μ": 0.0},
            measured={"accuracy %": 90.0, "CLT ε": 1.6, "n": 7, "μ": 0.1},
            certified={"ε": 3.0},
        ),
        replace(second, source={"ε": float("inf")}, measured={}, certified={"ε": 2.0}),
        replace(third, source={}),
    ]
    figure = draw_published_against_measured(shown)
    percentages, others = (
        {line.get_label(): list(zip(*line.get_data(), strict=True)) for line in axes.lines[:2]}
        for axes in figure.axes
    )
    assert percentages == {"measured": [(91.0, 90.0)], "certified": []}
    assert others == {"measured": [(1.5, 1.6)], "certified": [(2.0, 3.0)]}
    assert draw_published_against_measured(shown[2:]) is None


def test_make_rows_merges_shared_and_own_settings():
    points = grid(epsilon=[0.5, 1.0], n=[10, 20])
    rows = make_rows("ε = {epsilon:g}, n = {n}", points, {"n": 5, "seed": 0}, {"error": 0.1})
    assert [row.name for row in rows] == [
        "ε = 0.5, n = 10",
        "ε = 0.5, n = 20",
        "ε = 1, n = 10",
        "ε = 1, n = 20",
    ]
    assert rows[1].settings == {"n": 20, "seed": 0, "epsilon": 0.5}
    assert all(row.source == {"error": 0.1} for row in rows)


def test_column_is_certified_or_measured_or_a_setting():
    records = [
        Record(
            "toy", "1", "quick", {"n": 1}, {"ε": 9.0}, {"accuracy": 0.9, "ε": 5.0}, {"ε": 1.0}, 1.0
        ),
        Record("toy", "2", "quick", {"n": 2}, {}, {"accuracy": 0.8, "ε": 2.0}, {}, 1.0),
    ]
    assert column(records, "ε") == [1.0, 2.0]
    assert column(records, "accuracy") == [0.9, 0.8]
    assert column(records, "n") == [1, 2]
    with pytest.raises(KeyError):
        column(records, "no such column")


def test_new_figure_leaves_no_style_behind():
    before = dict(mpl.rcParams)
    _, (axes,) = new_figure()
    assert not axes.spines["top"].get_visible()
    assert dict(mpl.rcParams) == before


def test_draw_figures_writes_equal_files_named_by_profile_and_stem(toy, records, tmp_path):
    (saved,) = draw_figures(toy.experiment, records, tmp_path / "figures")
    assert saved.path == tmp_path / "figures" / "toy_table_quick_accuracy.png"
    assert saved.caption == "accuracy per epoch, as a caption"
    with Image.open(saved.path) as image:
        assert image.size == (round(6.4 * DPI), round(4.0 * DPI))
        assert len(np.unique(np.asarray(image.convert("L")))) > 2
    (again,) = draw_figures(toy.experiment, records, tmp_path / "again")
    assert again.path.read_bytes() == saved.path.read_bytes()


def test_draw_figures_keeps_the_style_while_an_experiment_draws(toy, records, tmp_path):
    frames = []

    def figures(records):
        figure, (axes,) = new_figure()
        axes.plot([0, 1], label="line")
        frames.append(axes.legend().get_frame_on())
        return {"accuracy": figure}

    draw_figures(replace(toy.experiment, figures=figures), records, tmp_path)
    assert frames == [False]


def test_draw_figures_refuses_a_figure_without_a_caption(toy, records, tmp_path):
    experiment = replace(toy.experiment, figures=lambda records: {"loss": Figure()})
    with pytest.raises(ValueError, match=r"figure must be one of 'accuracy', got 'loss'"):
        draw_figures(experiment, records, tmp_path)


def test_group_by_and_join_row_names(records):
    assert {key: len(group) for key, group in group_by(records, "epochs").items()} == {1: 3}
    assert group_by(records, "no such setting") == {}
    assert join_row_names(records, lambda record: record.measured["accuracy %"] > 72) == "2; 3"
