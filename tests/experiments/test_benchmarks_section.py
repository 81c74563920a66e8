import base64

import pytest

from experiments.benchmarks.results import Benchmark, Row, Table, save
from experiments.benchmarks.section import benchmark_sections, draw
from experiments.lib.figures import MEASURED
from experiments.lib.report import write_report

NAMES = ("plain", "plain + noise", "dpjax")


def steps(model, batch, ratios, *others):
    rows = [Row(case, {"ms": 2.0 * ratio, "× plain": ratio}, 5) for case, ratio in ratios.items()]
    return Table("steps", model, batch, (*rows, *others))


@pytest.fixture
def results(tmp_path):
    evil = Row("<script>", note="takes <b>9</b> GiB")
    found = (
        steps("MLP", 64, {"plain": 1.0, "dpjax": 7.0}),
        steps("CNN", 256, {"plain": 1.0, "dpjax": 1.5, "peer": 123.0}, evil),
        Table("loops", "CNN", 64, (Row("host loop", {"ms": 5.0, "× host": 1.0}, 5),)),
    )
    missing = {"torch": "not there"}
    save(tmp_path, Benchmark("steps", {"JAX": "0.10.2"}, "2 CPU cores", missing, found))
    return tmp_path


def test_the_report_shows_every_table_and_one_picture(results):
    path, complete = write_report([], results)
    html = path.read_text(encoding="utf-8")
    assert complete
    for part in (
        "Time and memory of private training steps",
        "MLP, batch 64",
        "CNN, batch 256",
        "× host",
        "2 CPU cores; JAX 0.10.2; not measured: torch (not there)",
        "<td>123</td>",
        "&lt;script&gt;",
        "takes &lt;b&gt;9&lt;/b&gt; GiB",
        '<a href="#benchmarks-steps">',
    ):
        assert part in html
    image = base64.b64encode((results / "figures" / "benchmarks.png").read_bytes()).decode()
    assert html.count(image) == 1


def test_without_a_run_there_is_no_section(tmp_path):
    path, _ = write_report([], tmp_path)
    assert 'id="benchmarks' not in path.read_text(encoding="utf-8")


def test_the_picture_is_of_the_batch_nearest_to_256(results):
    (section,) = benchmark_sections(results)
    assert "one step at batch size 256" in section.figures[0].caption


def test_without_a_timed_step_there_is_no_picture(tmp_path):
    loop = Table("loops", "m", None, (Row("host loop", {"ms": 1.0}, 3),))
    save(tmp_path, Benchmark("steps", {}, "", {}, (loop,)))
    assert benchmark_sections(tmp_path)[0].figures == ()


def test_one_panel_for_each_model_and_dpjax_stands_out():
    others = {"plain": 1.0, "dpjax": 3.0, "peer": 1000.0}
    figure = draw(
        [steps("MLP", 64, dict.fromkeys(NAMES, 1.0)), steps("CNN", 64, others, Row("skipped"))]
    )
    mlp, cnn = figure.axes
    assert [panel.get_title() for panel in (mlp, cnn)] == ["MLP", "CNN"]
    assert [tick.get_text() for tick in mlp.get_yticklabels()] == ["peer", *NAMES[::-1]]
    offsets = {tuple(point) for point in cnn.collections[-1].get_offsets().tolist()}
    assert offsets == {(1.0, 3.0), (3.0, 1.0), (1000.0, 0.0)}
    (blue,) = [c for c in cnn.collections[-1].get_facecolors().tolist() if c[0] < 0.1]
    assert MEASURED.lower() == "#{:02x}{:02x}{:02x}".format(*(round(255 * c) for c in blue[:3]))
    low, high = cnn.get_xlim()
    assert low < 1 < 1000 < high
