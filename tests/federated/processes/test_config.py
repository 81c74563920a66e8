"""Configuration files: the plan that is built, and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from helpers.federated_cases import RECORDS, plan_of, regression_release

from dpjax.bayes.conjugate import DirichletMultinomial, SufficientStatisticsMechanism
from dpjax.federated.__main__ import main
from dpjax.federated.processes import read_study
from dpjax.federated.processes.config import read_settings
from dpjax.mechanisms import ClippedSum, Gaussian
from dpjax.sensitivity import Sensitivity

HOW_TO = Path(__file__).parents[3] / "docs" / "how_to" / "federated_processes.md"
HEAD = """
nodes = ["127.0.0.1:7001", "127.0.0.1:7002", "127.0.0.1:7003"]
waiting_time = 20

[plan.parties]
num_holders = 5
num_nodes = 3
num_dropouts = 1
"""
SUM = """
[plan.mechanism]
type = "dpjax.mechanisms.ClippedSum"
bounds = [0.0, 100.0]
scale = 50.0
adjacency = "add_remove"
"""
NO_SUM = """
[plan.mechanism]
type = "dpjax.federated.Parties"
num_holders = 5
num_nodes = 3
"""
REGRESSION = """
[plan.mechanism]
type = "dpjax.bayes.regression.PerturbedStatistics.from_epsilon"
epsilon = 1.0
delta = 1e-5
adjacency = "replace_one"
num_features = 3
[plan.mechanism.bounds]
type = "dpjax.bayes.regression.RegressionBounds"
x_norm_bound = 1.5
y_bound = 2.0
"""
HISTOGRAM = """
[plan.mechanism]
type = "dpjax.bayes.conjugate.SufficientStatisticsMechanism"
[plan.mechanism.family]
type = "dpjax.bayes.conjugate.DirichletMultinomial"
concentration = [1.0, 1.0, 1.0]
[plan.mechanism.mechanism]
type = "dpjax.mechanisms.Gaussian"
scale = 4.0
[plan.mechanism.mechanism.sensitivity]
type = "dpjax.sensitivity.Sensitivity"
value = 1.0
norm = "l2"
adjacency = "add_remove"
shape = [3]
"""


def study_of(tmp_path, text):
    path = tmp_path / "study.toml"
    path.write_text(text)
    return read_study(path)


def test_read_study_builds_the_plan_of_python(tmp_path):
    family = DirichletMultinomial((1.0,) * 3)
    moves = Sensitivity(1.0, "l2", "add_remove", shape=(3,))
    histogram = SufficientStatisticsMechanism(family, Gaussian(moves, scale=4.0))
    cases = {
        SUM: ClippedSum((0.0, 100.0), scale=50.0, adjacency="add_remove"),
        REGRESSION: regression_release(),
        HISTOGRAM: histogram,
    }
    for text, mechanism in cases.items():
        study = study_of(tmp_path, HEAD + text)
        expected = plan_of(mechanism, num_dropouts=1)
        assert study.plan == expected
        assert study.plan.message_format == expected.message_format
    assert study.nodes[1] == "127.0.0.1:7002"
    assert (study.waiting_time, study.time_limit) == (20, 300.0)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("scale = 50.0", "scale = 50.00001"),
        ("[0.0, 100.0]", "[0.0, 101.0]"),
        ('"add_remove"', '"zero_out"'),
        ("num_dropouts = 1", "num_dropouts = 2"),
        ("num_dropouts = 1", "num_dropouts = 1\nnum_colluders = 1"),
        ("num_holders = 5", "num_holders = 6"),
        ("num_nodes = 3", "num_nodes = 3\nnode_threshold = 2"),
        ("[plan.parties]", "[plan]\ngrid_bits = 17\n[plan.parties]"),
    ],
)
def test_fingerprint_differs_with_every_number_of_the_plan(tmp_path, old, new):
    one, other = (
        study_of(tmp_path, text).plan.message_format.fingerprint
        for text in (HEAD + SUM, (HEAD + SUM).replace(old, new))
    )
    assert one != other


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("nodes = [", "node = [", "study must be a table with nodes, too"),
        ("waiting_time", "patience", "study must be a table of plan, nodes, program"),
        ("waiting_time = 20", "waiting_time = 900", "waiting_time must be below time_limit"),
        ("waiting_time = 20", "waiting_time = 'long'", "waiting_time must be a finite number > 0"),
        ("waiting_time = 20", "round_number = 1", "round_number must be at most 0, got 1"),
        ("7003", '7003", "127.0.0.1:7004', "list of host and port of each of the 3 nodes"),
        ("num_holders", "holders", "plan.parties must be a table of num_holders, num_nodes"),
        ("num_holders = 5", "num_holders = 0", "num_holders must be a whole number >= 1, got 0"),
        ("num_holders = 5", "num_holders = 'five'", "num_holders must be a whole number"),
        ("scale", "size", "plan.mechanism must be a table of bounds, scale, adjacency, unit"),
        ("50.0", "-1.0", "plan.mechanism: scale must be a finite number > 0, got -1.0"),
        ("dpjax.mechanisms.ClippedSum", "os.system", "plan.mechanism.type must be a public class"),
        ("mechanisms.ClippedSum", "mechanisms.base.inspect", "type must be a public class"),
        ("mechanisms.ClippedSum", "mechanisms.ClippedSum.__init__", "type must be a public class"),
        ("type =", "kind =", "plan.mechanism must be a table with the key type"),
        ("[plan.mechanism]", "[plan.mechanism", "config must be a TOML file"),
        ("mechanisms.ClippedSum", "federated.Parties", "must be a table of num_holders"),
        (SUM, NO_SUM, "plan: mechanism must release a sum over records"),
        ("\nnodes", "\nprogram = 'none.py'\nnodes", "program must be a file"),
        ("\nnodes", "\nprogram = 7\nnodes", "program must be the name of a file"),
        (
            "\nnodes",
            "\nprogram = 'study.toml'\nnodes",
            "the mechanism is no dpjax.federated.ClippedGradientSum",
        ),
    ],
)
def test_read_study_refuses_by_name(tmp_path, old, new, message):
    text = HEAD + SUM
    assert old in text
    with pytest.raises(ValueError, match=re.escape(message)):
        study_of(tmp_path, text.replace(old, new))


def test_read_settings_reads_the_how_to_page(folder):
    blocks = re.findall(r"```toml\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    assert len(blocks) == 3
    (folder / "study.toml").write_text(blocks[0])
    (folder / "keys").mkdir()
    for name in ("keys/authority.pem", "keys/holder-1.pem", "keys/holder-1.key", "records-1.npz"):
        (folder / name).write_text("")
    (folder / "holder.toml").write_text(blocks[1])
    found = read_settings(folder / "holder.toml", "holder")
    assert found.index == 1
    assert 0.5 < found.study.plan.certificate(1e-5).epsilon < 5
    (program,) = re.findall(r"```python\n(.*?)```", HOW_TO.read_text("utf-8"), re.DOTALL)
    (folder / "train.py").write_text(program)
    training = study_of(folder, blocks[2]).load_training()
    assert training.init().params["w"].shape == (2,)


HOLDER = """
study = "study.toml"
index = 3
journal = "journal"
authority = "file"
certificate = "file"
key = "file"
data = "records.npz"
arrays = ["x", "y"]
"""


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "study.toml").write_text(HEAD + REGRESSION)
    (tmp_path / "file").write_text("")
    x, y = RECORDS["regression"][1](np.random.default_rng(0), 7)
    np.savez(tmp_path / "records.npz", x=x, y=y)
    return tmp_path


def test_read_settings_of_a_holder(folder):
    (folder / "holder.toml").write_text(HOLDER)
    found = read_settings(folder / "holder.toml", "holder")
    assert (found.index, found.arrays) == (3, ("x", "y"))
    assert found.data == folder / "records.npz"  # whatever the working folder is
    assert found.study.plan.parties.num_holders == 5


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("index = 3", "index = 5", "index must be a whole number, 0 to 4, got 5"),
        ("index = 3", "index = true", "index must be a whole number, 0 to 4, got True"),
        ('key = "file"', 'key = "none"', "key must be a file"),
        ('key = "file"', "key = 7", "key must be the name of a file, got 7"),
        ("data =", "records =", "holder must be a table with data, too"),
        ("arrays =", "address = ''\narrays =", "got ['address']"),
        ("study.toml", "other.toml", "config must be a file, got"),
        ('["x", "y"]', "'x'", "arrays must be a list of names of arrays, got 'x'"),
        ('"y"]', '"z"]', "arrays must be of the arrays in data: x, y, got ['z']"),
        ('["x", "y"]', '["x"]', "arrays ['x'] do not fit the mechanism"),
        ('"records.npz"', '"study.toml"', "data must be an npz file, got"),
    ],
)
def test_main_refuses_settings_of_a_holder_by_name(folder, capfd, old, new, message):
    """By the command, with status 2 and without a traceback."""
    assert old in HOLDER
    (folder / "holder.toml").write_text(HOLDER.replace(old, new))
    assert main(["holder", "--config", str(folder / "holder.toml")]) == 2
    printed = capfd.readouterr().err
    assert printed.startswith("error: ")
    assert message in printed
    assert not (folder / "journal").exists()  # nothing was spent


@pytest.mark.parametrize(
    ("result", "delta", "message"),
    [
        ('"none/released.npz"', 1e-5, "result must be a file in a folder that exists"),
        ('"released.npz"', 0, "delta must be in (0, 1), got 0"),
    ],
)
def test_main_refuses_settings_of_an_analyst_by_name(folder, capfd, result, delta, message):
    kept = HOLDER[: HOLDER.index("data")].replace("index = 3", "")
    (folder / "analyst.toml").write_text(f"{kept}result = {result}\ndelta = {delta}")
    assert main(["analyst", "--config", str(folder / "analyst.toml")]) == 2
    assert message in capfd.readouterr().err


def test_main_without_configuration_is_refused(tmp_path, capfd):
    assert main(["analyst", "--config", str(tmp_path / "none.toml")]) == 2
    assert "config must be a file, got" in capfd.readouterr().err
    with pytest.raises(SystemExit):
        main(["holder"])
    with pytest.raises(SystemExit):
        main(["auditor", "--config", "file"])


def test_main_keys_writes_keys_once(tmp_path, capfd):
    command = ["keys", str(tmp_path / "keys"), "--holders", "2", "--nodes", "2"]
    assert main(command) == 0
    assert len(list((tmp_path / "keys").iterdir())) == 11
    assert main(command) == 2  # keys are not overwritten
    assert "File exists" in capfd.readouterr().err


TRAINING = """
[plan.mechanism]
type = "dpjax.federated.ClippedGradientSum"
num_parameters = 2
[plan.mechanism.mechanism]
type = "dpjax.SubsampledGaussian"
l2_clip = 1.0
noise_multiplier = 1.0
num_steps = 5
adjacency = "zero_out"
[plan.mechanism.mechanism.sampling]
type = "dpjax.PoissonSampling"
num_examples = 90
sampling_rate = 0.2
"""
PROGRAM = """
import dataclasses
import jax.numpy as jnp
import optax
from dpjax.federated import gradient_training

def training(mechanism):
    return gradient_training(
        lambda w, e: w @ e["x"], jnp.zeros(2), optax.sgd(0.1), mechanism=mechanism
    )
"""


def test_load_training_refuses_another_program_than_the_plans(tmp_path):
    (tmp_path / "train.py").write_text(PROGRAM)
    head = 'program = "train.py"' + HEAD
    study = study_of(tmp_path, head + TRAINING)
    assert study.load_training().mechanism == study.plan.mechanism.mechanism
    (tmp_path / "train.py").write_text(PROGRAM + "# another\n")
    with pytest.raises(ValueError, match="program must be the file that the plan was made with"):
        study.load_training()
    other = study_of(tmp_path, head + TRAINING).plan
    assert other.message_format.fingerprint != study.plan.message_format.fingerprint
    with pytest.raises(ValueError, match="program must be given for a training"):
        study_of(tmp_path, HEAD + SUM).load_training()


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("return gradient", "return 0, gradient", "program must be one that returns a Training"),
        ("def training", "def trains", "a file with a function training(mechanism)"),
        (
            "mechanism=mechanism",
            "mechanism=dataclasses.replace(mechanism, l2_clip=2.0)",
            "program must be one that trains by SubsampledGaussian",
        ),
    ],
)
def test_load_training_refuses_by_name(tmp_path, old, new, message):
    assert old in PROGRAM
    (tmp_path / "train.py").write_text(PROGRAM.replace(old, new))
    study = study_of(tmp_path, 'program = "train.py"' + HEAD + TRAINING)
    with pytest.raises(ValueError, match=re.escape(message)):
        study.load_training()
