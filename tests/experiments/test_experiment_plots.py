from dataclasses import replace

import numpy as np
import pytest

from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import (
    draw_bars,
    draw_by_row,
    draw_column,
    draw_series,
    draw_source_and_measured,
    legend_below,
    panel_grid,
    set_log_ticks,
)
from experiments.lib.records import load_records
from experiments.lib.runner import run_experiment
from experiments.lib.verdicts import group_by, join_row_names, largest_deviation, remarks_on_rows


@pytest.fixture
def records(toy, plan):
    run_experiment(toy.experiment, plan)
    return load_records(plan.results, "toy_table")


@pytest.fixture
def axes():
    _, (axes,) = new_figure()
    return axes


def test_cells_without_a_panel_are_blank():
    figure, panels = panel_grid(4, 3, 9.0, 6.0)
    assert len(panels) == 4
    assert [cell.axison for cell in figure.axes] == [True] * 4 + [False] * 2


def test_the_legend_below_has_each_label_once():
    figure, panels = panel_grid(2, 2, 9.0, 4.0)
    for panel in panels:
        panel.plot([0, 1], label="both")
    panels[1].plot([1, 0], label="right")
    legend_below(figure, panels)
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["both", "right"]


def test_log_ticks_are_the_values_that_were_run(axes):
    axes.plot([0.1, 1_000], [1, 2])
    set_log_ticks(axes, [0.1, 1_000], "records")
    assert axes.get_xscale() == "log"
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0.1", "1,000"]
    assert axes.get_xlabel() == "records"


def test_series_with_errors_have_bands_and_records_without_are_left_out(axes, records):
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


def test_bars_stand_side_by_side(axes):
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


def test_draw_column_is_a_point_a_record_with_two_errors_as_bars(axes, records):
    draw_column(axes, records, "l2_clip", "ε", "CLT ε", label="certified")
    (container,) = axes.containers
    line, _, (bars,) = container
    assert list(line.get_xdata()) == [1.0, 2.0, 3.0]
    np.testing.assert_allclose(line.get_ydata(orig=False), [2.23411, 3.23411, 4.23411])
    np.testing.assert_allclose([np.ptp(bar[:, 1]) for bar in bars.get_segments()], 4 * 0.8765)


def test_source_and_measured_stand_beside_each_other(axes, records):
    draw_source_and_measured(axes, records, "accuracy %", expected="CLT ε")
    source, measured = axes.lines
    assert list(source.get_ydata()) == [91.0, 92.0, 93.0]
    assert list(measured.get_ydata()) == [71.5, 72.5, 73.5]
    assert (source.get_color(), measured.get_color()) == (SOURCE, MEASURED)
    assert len(axes.patches) == 3


def test_remarks_are_on_rows_that_are_all_there(records):
    def say(*rows):
        return " and ".join(row.row for row in rows)

    assert remarks_on_rows(records, say, "3", "1") == ["3 and 1"]
    assert remarks_on_rows(records, say, "3", "4") == []
    assert remarks_on_rows(records, lambda row: [row.row, "twice"], "2") == ["2", "twice"]


def test_records_by_setting_by_test_and_by_deviation(records):
    assert {key: len(group) for key, group in group_by(records, "epochs").items()} == {1: 3}
    assert group_by(records, "no such setting") == {}
    assert join_row_names(records, lambda record: record.measured["accuracy %"] > 72) == "2; 3"
    assert largest_deviation(records) == pytest.approx(1 - 71.5 / 91)
