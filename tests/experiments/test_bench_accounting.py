import math

import pytest
from experiments.bench.timing import Effort
from experiments.bench_accounting import __main__ as command
from experiments.bench_accounting.measurements import (
    MANY,
    AccountingBench,
    Measurement,
    load,
    measure_many,
    measure_single,
    save,
)
from experiments.bench_accounting.section import text
from experiments.bench_accounting.ways import (
    SETTINGS,
    ManyWay,
    Way,
    many_settings,
    many_ways,
    single_ways,
)

from experiments.lib.report import write_report

QUICK = Effort(0.01, 3)
BENCH = AccountingBench(
    {"JAX": "1"},
    "2 CPU cores",
    {"peer": "not there"},
    (
        Measurement("row <1>", "dpjax, pld", 200.0, 100.0, 5, 1, 0.8646, 1.0),
        Measurement("row <1>", "clt", 0.5, 0.4, 5, 1, 0.8346, 0.9653, "an approximation"),
        Measurement(MANY, "at once", 180.0, 170.0, 5, 1_000),
    ),
)


def test_a_small_run_writes_what_it_prints(tmp_path, capsys):
    argv = ["--settings", "MNIST row 1", "--repetitions", "3", "--seconds", "0.01"]
    assert command.main([*argv, "--results", str(tmp_path)]) == 0
    bench = load(tmp_path)
    found = {m.way: m for m in bench.measurements}
    assert found["dpjax, pld"].over_certified == 1
    assert round(found["dpjax, moments"].epsilon, 2) == 1.19
    assert found["dpjax, moments_accountant.epsilon"].epsilon == pytest.approx(
        found["dpjax, moments"].epsilon
    )
    assert round(found["dpjax, gdp_clt"].epsilon, 2) == 0.83
    assert found["dpjax, gdp_clt"].note == "an approximation, no guarantee"
    assert found["dp-accounting, PLDAccountant"].over_certified == pytest.approx(1, abs=0.01)
    assert found["dp-accounting, RdpAccountant"].over_certified > 1.05
    assert all(0 < m.least_ms <= m.median_ms and m.repetitions == 3 for m in bench.measurements)
    assert {"JAX", "numpy", "dp-accounting"} <= bench.versions.keys()
    assert capsys.readouterr().out == text(bench) + "\n"


def test_no_question_is_asked_twice():
    asked = []

    def epsilon(setting):
        asked.append(setting.noise_multiplier)
        return 2 * SETTINGS[0].certified

    (measured,) = measure_single(SETTINGS[0], [Way("way", epsilon)], QUICK)
    assert len(asked) > 3
    assert len(set(asked)) == len(asked)
    assert max(asked) < 1.3001
    assert measured.over_certified == pytest.approx(2)
    asked.clear()
    many = ManyWay("many", lambda noise, rate, steps: asked.append(noise[0]), 5)
    (measured,) = measure_many([many], QUICK)
    assert (measured.num_settings, measured.epsilon) == (5, None)
    assert len(set(asked)) == len(asked)


def test_every_way_to_many_epsilons_answers_for_all():
    for way in many_ways():
        settings = many_settings(min(way.num_settings, 3))
        values = way.epsilons(*settings)
        assert values.shape == (len(settings[0]),)
        assert all(0 <= value < math.inf for value in values)


def test_the_settings_are_the_published_ones():
    assert [setting.num_steps for setting in SETTINGS[:6]] == [
        3515, 14062, 10546, 14531, 15937, 23437
    ]  # fmt: skip
    assert [setting.num_steps for setting in SETTINGS[6:]] == [2060, 439, 1600]
    assert len({way.name for way in single_ways()}) >= 7


def test_the_terminals_tables():
    assert text(BENCH).splitlines() == [
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
    assert load(save(tmp_path, BENCH).parent) == BENCH
    (tmp_path / "bench_accounting.json").write_text("[]")
    with pytest.raises(ValueError, match="must be a benchmark's results"):
        load(tmp_path)


def test_the_report_shows_every_table(tmp_path):
    assert 'id="bench-accounting"' not in write_report([], tmp_path)[0].read_text("utf-8")
    save(tmp_path, BENCH)
    html = write_report([], tmp_path)[0].read_text("utf-8")
    for part in (
        "What an epsilon costs",
        "row &lt;1&gt;",
        "<td>0.965</td>",
        "an approximation",
        "2 CPU cores; JAX 1; not measured: peer (not there)",
        '<a href="#bench-accounting">',
    ):
        assert part in html
