import math

import pytest

from experiments.benchmarks import __main__ as command
from experiments.benchmarks.accounting import (
    MANY,
    SETTINGS,
    array_methods,
    many_group,
    random_settings,
    single_group,
    single_methods,
)
from experiments.benchmarks.results import (
    Benchmark,
    Row,
    Table,
    format_text,
    load,
    measure,
    results_path,
    save,
)
from experiments.benchmarks.timing import Effort
from experiments.lib.report import write_report

QUICK = Effort(0.01, 3)


def answers(subject, *rows):
    return Table("accountant", subject, None, rows)


BENCHMARK = Benchmark(
    "accounting",
    {"JAX": "1"},
    "2 CPU cores",
    {"peer": "not there"},
    (
        answers(
            "row <1>",
            Row("dpjax, pld", {"ms": 200.0, "ε": 0.8646, "× certified": 1.0}, 5),
            Row("clt", {"ms": 0.5, "ε": 0.8346, "× certified": 0.9653}, 5, "an approximation"),
        ),
        answers(MANY, Row("at once", {"settings": 1_000, "ms": 180.0, "ms a setting": 0.18}, 5)),
    ),
)


def test_a_small_run_writes_what_it_prints(tmp_path, capsys):
    argv = ["accounting", "--only", "MNIST row 1", "--repetitions", "3", "--seconds", "0.01"]
    assert command.main([*argv, "--results", str(tmp_path)]) == 0
    benchmark = load(tmp_path, "accounting")
    (table,) = benchmark.tables
    found = {row.case: row for row in table.rows}
    assert found["dpjax, pld"].values["× certified"] == 1
    moments = found["dpjax, moments"].values["ε"]
    assert round(moments, 2) == 1.19
    assert found["dpjax, moments_accountant.epsilon"].values["ε"] == pytest.approx(moments)
    assert round(found["dpjax, gdp_clt"].values["ε"], 2) == 0.83
    assert found["dpjax, gdp_clt"].note == "an approximation, not a bound"
    tight = found["dp-accounting, PLDAccountant"].values["× certified"]
    assert tight == pytest.approx(1, abs=0.01)
    assert found["dp-accounting, RdpAccountant"].values["× certified"] > 1.05
    assert all(m.values["ms"] > 0 and m.repetitions == 3 for m in table.rows)
    assert {"JAX", "numpy", "dp-accounting"} <= benchmark.versions.keys()
    assert capsys.readouterr().out == format_text(benchmark) + "\n"


def test_no_question_is_timed_twice():
    asked = []

    def epsilon(setting):
        asked.append(setting.noise_multiplier)
        return 2 * SETTINGS[0].certified

    (measured,) = measure(single_group(SETTINGS[0], {"method": epsilon}), QUICK).rows
    assert len(asked) > 3
    assert len(set(asked)) == len(asked)
    assert max(asked) < 1.3001
    assert measured.values["× certified"] == pytest.approx(2)
    asked.clear()
    many = {"many": (lambda noise, rate, steps: asked.append(noise[0]), 5)}
    (measured,) = measure(many_group(many), QUICK).rows
    assert measured.values["settings"] == 5
    assert "ε" not in measured.values
    assert len(set(asked)) == len(asked)


def test_every_method_of_many_epsilons_answers_for_all():
    for solve, number in array_methods().values():
        settings = random_settings(min(number, 3))
        values = solve(*settings)
        assert values.shape == (len(settings[0]),)
        assert all(0 <= value < math.inf for value in values)


def test_the_settings_are_the_published_ones():
    assert [setting.num_steps for setting in SETTINGS[:6]] == [
        3515, 14062, 10546, 14531, 15937, 23437
    ]  # fmt: skip
    assert [setting.num_steps for setting in SETTINGS[6:]] == [2060, 439, 1600]
    assert len(single_methods()) >= 7


def test_the_terminals_tables():
    assert format_text(BENCHMARK).splitlines() == [
        "row <1>",
        "              ms       ε  × certified  runs",
        "dpjax, pld   200  0.8646        1.000     5",
        "clt         0.50  0.8346        0.965     5  an approximation",
        "",
        MANY,
        "         settings   ms  ms a setting  runs",
        "at once     1,000  180          0.18     5",
        "",
        "not measured: peer (not there)",
    ]


def test_saved_and_loaded_again(tmp_path):
    save(tmp_path, BENCHMARK)
    assert load(tmp_path, "accounting") == BENCHMARK
    results_path(tmp_path, "accounting").write_text("[]")
    with pytest.raises(ValueError, match="must be a benchmark's results"):
        load(tmp_path, "accounting")


def test_the_report_shows_every_table(tmp_path):
    anchor = 'id="benchmarks-accounting"'
    assert anchor not in write_report([], tmp_path)[0].read_text("utf-8")
    save(tmp_path, BENCHMARK)
    html = write_report([], tmp_path)[0].read_text("utf-8")
    for part in (
        anchor,
        "Time and tightness of accountants",
        "row &lt;1&gt;",
        "<td>0.965</td>",
        "an approximation",
        "2 CPU cores; JAX 1; not measured: peer (not there)",
        '<a href="#benchmarks-accounting">',
    ):
        assert part in html
