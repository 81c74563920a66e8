from dataclasses import replace

import pytest

from experiments.__main__ import main
from experiments.lib.records import load_records


@pytest.fixture
def command(toy, tmp_path):
    """Runs the command on the toy and one more experiment."""
    page = replace(toy.experiment.page, name="other_table", title="Another table")
    other = replace(toy.experiment, page=page)

    def run(*arguments):
        return main([*arguments, "--results", str(tmp_path)], [toy.experiment, other])

    return run


def test_run_prints_progress_and_table_of_the_chosen_experiment(command, toy, tmp_path, capsys):
    assert command("run", "toy_table") == 0
    output = capsys.readouterr().out
    assert toy.names == ["1", "2", "3"]
    assert "toy_table (quick), row 1: started" in output
    assert "toy_table, quick profile: A toy table" in output
    assert "2.235" in output
    assert "other_table" not in output
    command("run", "toy_table", "--fresh")
    assert len(toy.ran) == 6
    assert command("run", "all", "--profile", "paper") == 0
    assert {record.profile for record in load_records(tmp_path, "other_table")} == {"paper"}


def test_run_fails_with_a_row_and_runs_the_rest(command, toy, capsys):
    toy.raises = {"1": RuntimeError("broken here")}
    assert command("run", "all") == 1
    output = capsys.readouterr().out
    assert toy.names == ["1", "2", "3"] * 2
    assert "Traceback" in output
    assert "failed: RuntimeError: broken here" in output


def test_run_keeps_finished_rows_when_interrupted(command, toy, tmp_path, capsys):
    toy.raises = {"2": KeyboardInterrupt()}
    assert command("run", "all") == 130
    assert toy.names == ["1", "2"]
    assert [record.row for record in load_records(tmp_path, "toy_table")] == ["1"]
    assert "stopped" in capsys.readouterr().err


@pytest.mark.slow
def test_report_and_list_name_what_was_run(command, tmp_path, capsys):
    command("run", "toy_table")
    capsys.readouterr()
    assert command("report") == 0
    output = capsys.readouterr().out
    assert f"The report is {tmp_path / 'report.html'}" in output
    assert "other_table: not run yet" in output
    assert "toy_table, quick profile" in output
    assert (tmp_path / "figures" / "toy_table_quick_accuracy.png").exists()
    assert command("list") == 0
    assert capsys.readouterr().out.splitlines() == [
        "toy_table    quick 3/3, paper 0/3  A toy table",
        "other_table  quick 0/3, paper 0/3  Another table",
    ]


def test_report_fails_where_a_figure_fails(toy, tmp_path):
    experiment = replace(toy.experiment, figures=lambda records: 1 / 0)
    assert main(["run", "all", "--results", str(tmp_path)], [experiment]) == 0
    assert main(["report", "--results", str(tmp_path)], [experiment]) == 1
    assert (tmp_path / "report.html").exists()


UNKNOWN = "experiment must be one of 'all', 'toy_table', 'other_table', got 'nonesuch'"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "toy_table", "nonesuch"], UNKNOWN),
        (["run", "toy_table", "--row", "4"], "row must be one of '1', '2', '3', got '4'"),
        *[
            (arguments, "usage: python -m experiments")
            for arguments in (
                [],
                ["run"],
                ["walk"],
                ["run", "all", "--profile", "slow"],
                ["run", "all", "--jobs", "0"],
                ["list", "toy_table"],
            )
        ],
    ],
)
def test_main_refuses_arguments_and_runs_nothing(command, toy, arguments, message, capsys):
    with pytest.raises(SystemExit) as exit_info:
        command(*arguments)
    assert exit_info.value.code == 2
    assert message in capsys.readouterr().err
    assert not toy.ran


def test_help_imports_no_experiment(monkeypatch):
    monkeypatch.setattr("experiments.__main__.load_experiments", lambda: 1 / 0)
    with pytest.raises(SystemExit) as exit_info:
        main(["--help"])
    assert exit_info.value.code == 0


def test_publish_and_check_of_one_row(command, toy, tmp_path, capsys):
    published = ("--published", str(tmp_path / "published"))
    command("run", "toy_table", "--row", "1")
    assert toy.names == ["1"]
    assert command("publish", *published) == 0
    output = capsys.readouterr().out
    assert "toy_table_quick.json: 1 rows" in output
    assert "without row 2: not run yet" in output
    assert "other_table: no finished row of the quick profile" in output
    assert command("check", "toy_table", "--row", "1", *published) == 0
    assert "row 1: agrees with the committed record" in capsys.readouterr().out
    assert command("check", "toy_table", "--row", "2", *published) == 1
    path = tmp_path / "published" / "toy_table_quick.json"
    path.write_text(path.read_text("utf-8").replace("2.23411", "2.23412"), "utf-8")
    assert command("check", "toy_table", *published) == 1
    assert "row 1: certified ε: 2.23411" in capsys.readouterr().out
