"""Files of all parties that ``init`` writes, and the command that compares their plans."""

import re
from pathlib import Path

import numpy as np
import pytest

from dpjax.federated.__main__ import main
from dpjax.federated.processes import read_study
from dpjax.federated.processes.config import read_role, read_settings
from dpjax.federated.processes.plan_check import study_name

HOW_TO = Path(__file__).parents[3] / "docs" / "how_to" / "federated_processes.md"
PARTIES = ["holder-0", "holder-1", "holder-2", "node-0", "node-1", "analyst"]
INIT = ["--holders", "3", "--nodes", "2"]


def write_files(folder, *options):
    return main(["init", str(folder / "study.toml"), *options])


def write_keys_and_records(folder):
    """Empty files of keys, and records."""
    (folder / "keys").mkdir()
    for name in (
        "authority.pem",
        *(f"{party}.{end}" for party in PARTIES for end in ("pem", "key")),
    ):
        (folder / "keys" / name).write_text("")
    for holder in range(3):
        np.savez(folder / f"records-{holder}.npz", x=np.zeros((4, 2)), y=np.zeros(4))


@pytest.mark.parametrize("options", [INIT, [*INIT, "--training"]])
def test_init_writes_files_of_one_plan(tmp_path, capsys, options):
    assert write_files(tmp_path, *options) == 0
    printed = capsys.readouterr().out
    assert f"keys {tmp_path / 'keys'} --holders 3 --nodes 2" in printed
    assert "edit study.toml" in printed
    write_keys_and_records(tmp_path)
    plan = read_study(tmp_path / "study.toml").plan
    assert (plan.parties.num_holders, plan.parties.num_nodes) == (3, 2)
    for party in PARTIES:
        role = party.partition("-")[0]
        assert read_role(tmp_path / f"{party}.toml") == role
        settings = read_settings(tmp_path / f"{party}.toml", role)
        assert settings.study.plan == plan
        assert settings.journal == tmp_path / f"journal-{party}"
        assert settings.key == tmp_path / "keys" / f"{party}.key"
        assert party in (role, f"{role}-{settings.index}")
    assert main(["check", *(str(path) for path in tmp_path.glob("*.toml"))]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 7
    assert all(line.startswith(f"plan {plan.message_format.fingerprint.hex()}: ") for line in lines)


def test_init_takes_a_study_that_is_there(tmp_path, capsys):
    write_files(tmp_path, *INIT)
    other = tmp_path / "other"
    other.mkdir()
    text = (tmp_path / "study.toml").read_text().replace("y_bound = 1.0", "y_bound = 2.0")
    (other / "study.toml").write_text(text)
    capsys.readouterr()
    assert write_files(other, "--arrays", "features", 'a "target"', "--delta", "1e-6") == 0
    assert (other / "study.toml").read_text() == text
    assert "edit study.toml" not in capsys.readouterr().out
    write_keys_and_records(other)
    holder = read_settings(other / "holder-2.toml", "holder")
    assert holder.arrays == ("features", 'a "target"')
    assert read_settings(other / "analyst.toml", "analyst").delta == 1e-6
    assert holder.study.plan != read_study(tmp_path / "study.toml").plan


def test_init_overwrites_nothing(tmp_path, capsys):
    (tmp_path / "node-1.toml").write_text("mine")
    assert write_files(tmp_path, *INIT) == 2
    assert f"{tmp_path / 'node-1.toml'} is there" in capsys.readouterr().err
    assert (tmp_path / "node-1.toml").read_text() == "mine"
    assert not (tmp_path / "holder-0.toml").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([], "study must be a file"),
        (["--holders", "3"], "give --holders and --nodes"),
        (["--holders", "3", "--nodes", "1"], "num_nodes must be a whole number >= 2, got 1"),
        (["--holders", "0", "--nodes", "2"], "num_holders must be a whole number >= 1, got 0"),
        ([*INIT, "--delta", "nan"], "delta must be in (0, 1), got nan"),
        ([*INIT, "--delta", "1"], "delta must be in (0, 1), got 1.0"),
        ([*INIT, "--arrays", ""], "arrays must be names of arrays, got ['']"),
    ],
)
def test_init_refuses_by_name(tmp_path, capsys, options, message):
    assert write_files(tmp_path, *options) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "holder-0.toml").exists()


def test_init_refuses_numbers_of_a_study_that_is_there(tmp_path, capsys):
    write_files(tmp_path, *INIT)
    assert write_files(tmp_path, *INIT) == 2
    assert "holders, nodes and training must be left out" in capsys.readouterr().err


def test_check_refuses_files_of_other_plans(tmp_path, capsys):
    write_files(tmp_path, *INIT)
    study = tmp_path / "study.toml"
    for old, new in (("y_bound = 1.0", "y_bound = 1.5"), ("nodes =", "round_number = 0\nnodes =")):
        assert old in study.read_text()
        (tmp_path / "copy.toml").write_text(study.read_text().replace(old, new, 1))
        differs = read_study(tmp_path / "copy.toml").plan != read_study(study).plan
        capsys.readouterr()
        assert main(["check", str(study), str(tmp_path / "copy.toml")]) == int(differs)
        assert ("the plans differ" in capsys.readouterr().out) == differs == (old != "nodes =")


@pytest.mark.parametrize("key", ["nodes", "call_time", "waiting_time", "time_limit"])
def test_check_names_the_setting_that_differs_between_files(key, tmp_path, capsys):
    write_files(tmp_path, *INIT)
    study, copy = tmp_path / "study.toml", tmp_path / "copy.toml"
    text = study.read_text()
    if key == "nodes":
        changed = re.sub(r"(nodes = \[\"[^:]*):", r"\1-b:", text)
    else:
        other = 7.5 if key != "time_limit" else 99_999.5
        changed = f"{key} = {other}\n" + re.sub(rf"(?m)^{key} .*$", "", text)
    assert changed != text
    copy.write_text(changed)
    capsys.readouterr()
    assert main(["check", str(study), str(copy)]) == 1
    assert capsys.readouterr().out.splitlines()[2:] == [f"{key} differs"]


def test_check_refuses_the_file_of_a_node(tmp_path, capsys):
    write_files(tmp_path, *INIT)
    assert main(["check", "--config", str(tmp_path / "node-0.toml")]) == 2
    assert "nodes answer while they run" in capsys.readouterr().err
    for arguments in ([], ["--config", "a.toml", "b.toml"]):
        with pytest.raises(SystemExit):
            main(["check", *arguments])


@pytest.mark.parametrize("options", [["--verbose"], ["--quiet"]])
def test_options_are_taken_before_and_after_the_command(tmp_path, options):
    from dpjax.federated.__main__ import _parser

    for name in ("node", "holder", "analyst", "check"):
        config = [name, "--config", "file"]
        for arguments in ([*options, *config], [name, *options, *config[1:]], [*config, *options]):
            parsed = vars(_parser().parse_args(arguments))
            assert parsed[options[0].removeprefix("--")] is True
        parsed = vars(_parser().parse_args(config))
        assert (parsed["verbose"], parsed["quiet"]) == (False, False)


def test_example_studies_are_those_of_the_how_to_page(tmp_path):
    """The page shows what ``init`` writes, without its head."""
    blocks = re.findall(r"```toml\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    (program,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    for options, block in ((INIT, blocks[0]), ([*INIT, "--training"], blocks[2])):
        folder = tmp_path / str(len(options))
        folder.mkdir()
        assert write_files(folder, *options) == 0
        if "--training" in options:
            assert (folder / "train.py").read_text() == program
        (folder / "page.toml").write_text(block)
        written = read_study(folder / "study.toml")
        assert study_name(read_study(folder / "page.toml")) == study_name(written)
