from dataclasses import replace

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from experiments.lib.figures import DPI, draw_figures, new_figure
from experiments.lib.records import load_records
from experiments.lib.runner import run_experiment


@pytest.fixture
def records(toy, plan):
    run_experiment(toy.experiment, plan)
    return load_records(plan.results, "toy_table")


def test_new_figure_returns_its_axes_row_by_row():
    figure, axes = new_figure(rows=2, columns=3, width=7.0, height=5.0)
    assert len(axes) == 6
    assert list(figure.get_size_inches()) == [7.0, 5.0]
    assert axes[1].get_position().x0 > axes[0].get_position().x0
    assert axes[3].get_position().y0 < axes[0].get_position().y0


def test_the_style_is_the_figures_own_and_not_left_behind():
    before = dict(mpl.rcParams)
    _, (axes,) = new_figure()
    assert not axes.spines["top"].get_visible()
    assert dict(mpl.rcParams) == before


def test_figures_are_written_under_experiment_profile_and_stem(toy, records, tmp_path):
    (saved,) = draw_figures(toy.experiment, records, tmp_path / "figures")
    assert saved.path == tmp_path / "figures" / "toy_table_quick_accuracy.png"
    assert saved.caption == "accuracy per epoch, as a caption"
    with Image.open(saved.path) as image:
        assert image.size == (round(6.4 * DPI), round(4.0 * DPI))
        assert len(np.unique(np.asarray(image.convert("L")))) > 2


def test_equal_figures_are_equal_files(toy, records, tmp_path):
    one, two = (draw_figures(toy.experiment, records, tmp_path / name)[0] for name in "ab")
    assert one.path.read_bytes() == two.path.read_bytes()


def test_the_style_holds_while_an_experiment_draws(toy, records, tmp_path):
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
