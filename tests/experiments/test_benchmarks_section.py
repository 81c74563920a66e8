"""Sections of the report on benchmarks, and the timing of their cases in turns."""

import itertools

import jax.numpy as jnp

from experiments.benchmarks.results import Benchmark, Row, Table, save
from experiments.benchmarks.section import benchmark_sections, draw
from experiments.benchmarks.timing import (
    FEWEST,
    Case,
    Effort,
    Times,
    blocking,
    interleaved,
    is_timed_in_round,
)
from experiments.lib.figures import MEASURED
from experiments.lib.report import write_report

NAMES = ("plain", "plain + noise", "dpjax")


def steps(model, batch, ratios, *others):
    rows = [Row(case, {"ms": 2.0 * ratio, "× plain": ratio}, 5) for case, ratio in ratios.items()]
    return Table("steps", model, batch, (*rows, *others))


def test_write_report_shows_tables_and_the_picture_of_the_batch_nearest_256(tmp_path):
    evil = Row("<script>", note="takes <b>9</b> GiB")
    found = (
        steps("MLP", 64, {"plain": 1.0, "dpjax": 7.0}),
        steps("CNN", 256, {"plain": 1.0, "dpjax": 1.5, "peer": 123.0}, evil),
        Table("loops", "CNN", 64, (Row("host loop", {"ms": 5.0, "× host": 1.0}, 5),)),
    )
    missing = {"torch": "not there"}
    assert 'id="benchmarks' not in write_report([], tmp_path)[0].read_text("utf-8")
    save(tmp_path, Benchmark("steps", {"JAX": "0.10.2"}, "2 CPU cores", missing, found))
    path, complete = write_report([], tmp_path)
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
        "one step at batch size 256",
    ):
        assert part in html
    assert (tmp_path / "figures" / "benchmarks.png").exists()
    assert html.count('src="data:image/webp;base64,') == 1

    # Without a timed step there is no picture.
    save(tmp_path, Benchmark("steps", {}, "", {}, found[2:]))
    assert benchmark_sections(tmp_path)[0].figures == ()


def test_draw_has_a_panel_for_each_model():
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


def recorded(durations):
    """Cases whose calls take scripted times, and the order they were called in."""
    calls = []

    def case(name, seconds):
        script = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def call():
            calls.append(name)
            return next(script)

        return Case(name, call)

    return [case(name, seconds) for name, seconds in durations.items()], calls


def test_interleaved_takes_turns_after_a_call_to_warm_up():
    cases, calls = recorded({"a": [9.0, 1.0], "b": [9.0, 2.0]})
    times = interleaved(cases, Effort(seconds=9 * FEWEST))
    assert calls == ["a", "b"] * (1 + FEWEST)
    assert times == {"a": Times((1.0,) * FEWEST, False), "b": Times((2.0,) * FEWEST, False)}


def test_interleaved_counts_the_last_call_of_a_quick_turn(monkeypatch):
    clock = itertools.count(step=0.015)  # it is read once before a turn, and after each call
    monkeypatch.setattr("experiments.benchmarks.timing.time.perf_counter", lambda: next(clock))
    cases, calls = recorded({"quick": [0.9, 0.01, *[0.5, 0.01] * 4], "other": [1.0]})
    times = interleaved(cases, Effort(seconds=0.04))
    assert times["quick"].seconds == (0.01,) * 4
    assert calls.count("quick") == 2 + 2 * 4


def test_interleaved_spreads_the_turns_of_slower_cases():
    cases, calls = recorded({"often": [1.0], "seldom": [2.0]})
    interleaved(cases, Effort(seconds=6.0))
    assert "".join(name[0] for name in calls[2:]) == "oosoosoos"


def test_is_timed_in_round_as_often_as_counted():
    for rounds, count in itertools.product(range(1, 30), range(1, 30)):
        if count <= rounds:
            assert (
                sum(is_timed_in_round(number, rounds, count) for number in range(rounds)) == count
            )


def test_interleaved_calls_a_slow_case_once():
    cases, calls = recorded({"slow": [20.0], "other": [1.0]})
    times = interleaved(cases, Effort(seconds=4.0))
    assert times["slow"] == Times((20.0,), True)
    assert calls.count("slow") == 1
    assert len(times["other"].seconds) == 4
    assert interleaved([Case("skipped", None)], Effort()) == {}
    assert 0 < blocking(jnp.add, 1, 2)() < 60
