from dataclasses import replace

import pytest

from experiments.__main__ import main
from experiments.lib.planning import cost_ratio, forecast, summary
from experiments.lib.records import load_records, save_record
from experiments.lib.runner import run_experiment


@pytest.fixture
def measured(toy, plan):
    """Quick records of ten seconds each, the third one of a failed row."""
    toy.raises = {"3": RuntimeError("broken")}
    run_experiment(toy.experiment, plan)
    for record in load_records(plan.results, "toy_table"):
        save_record(plan.results, replace(record, seconds=10.0))
    toy.raises = {}
    return plan


RUN = {"num_steps": 10, "repeats": 3, "network": "MLP"}
CHAINS = {"num_draws": 400, "num_warmup": 100}


@pytest.mark.parametrize(
    ("row", "run", "ratio"),
    [
        (RUN, RUN, 1),
        ({**RUN, "num_steps": 50, "repeats": 6}, RUN, 10),
        ({**CHAINS, "num_draws": 900}, CHAINS, 2),
        *(
            ({**RUN, **changes}, RUN, None)
            for changes in ({"network": "CNN"}, {"num_steps": 0}, {"num_steps": [1]}, {"epochs": 3})
        ),
    ],
)
def test_cost_ratio_is_the_product_of_counts_or_unknown(row, run, ratio):
    assert cost_ratio(row, run) == ratio
    assert cost_ratio(run, row) == (ratio and 1 / ratio)


def test_forecast_takes_the_quick_seconds_times_the_work(toy, measured):
    records = load_records(measured.results, "toy_table")
    rows = forecast(toy.experiment, "paper", records)
    assert [row.seconds for row in rows] == [150.0, 150.0, None]
    assert rows[0].origin == "quick profile × 15"
    assert summary(rows) == "0 of 3 rows done, 0.08 hours left, 1 not measured"

    # Rows that are done keep their seconds, and those with the settings of a quick one need none.
    rows = forecast(toy.experiment, "quick", records)
    assert [(row.is_done, row.seconds) for row in rows] == [
        (True, 10.0),
        (True, 10.0),
        (False, None),
    ]
    same = replace(toy.experiment, rows=lambda profile: toy.rows("quick"))
    rows = forecast(same, "paper", records)
    assert [row.seconds for row in rows] == [0.0, 0.0, None]
    assert rows[0].origin == "record of the quick profile"


def test_forecast_prefers_stale_records_of_the_profile(toy, measured):
    records = load_records(measured.results, "toy_table")
    longer = [
        replace(r, profile="paper", seconds=40.0, settings={**r.settings, "epochs": 5})
        for r in records[:1]
    ]
    row, *_ = forecast(toy.experiment, "paper", [*records, *longer])
    assert (row.seconds, row.origin) == (120.0, "paper profile × 3")
    toy.step_size = 0.2
    assert forecast(toy.experiment, "paper", records)[0].seconds is None


def test_plan_prints_rows_and_hours(toy, measured, capsys):
    arguments = ["plan", "--profile", "paper", "--results", str(measured.results)]
    assert main(arguments, [toy.experiment]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "toy_table, paper profile: A toy table",
        "  1: not run yet, 2 min 30 s (quick profile × 15)",
        "  2: not run yet, 2 min 30 s (quick profile × 15)",
        "  3: not run yet, not measured",
        "  0 of 3 rows done, 0.08 hours left, 1 not measured",
        "",
        "all: 0 of 3 rows done, 0.08 hours left, 1 not measured",
    ]
    main(["plan", "toy_table", "--results", str(measured.results)], [toy.experiment])
    assert "  1: done in 10 s\n" in capsys.readouterr().out


def test_plan_takes_committed_records_for_rows_without_a_result(measured, tmp_path, capsys, toy):
    arguments = ["toy_table", "--results", str(measured.results), "--published", str(tmp_path)]
    main(["publish", *arguments], [toy.experiment])
    capsys.readouterr()
    elsewhere = ["--results", str(tmp_path / "none"), "--published", str(tmp_path)]
    main(["plan", *elsewhere], [toy.experiment])
    assert "2: done in 10 s" in capsys.readouterr().out
    main(["plan", "--results", str(tmp_path / "none")], [toy.experiment])
    assert "2: not run yet" in capsys.readouterr().out
