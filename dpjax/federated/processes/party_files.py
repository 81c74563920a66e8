"""TOML files of all parties, written from that of the study; and an example of a study."""

import json
from collections.abc import Sequence
from pathlib import Path

from dpjax._checks import check, check_delta
from dpjax.federated.plan import Parties
from dpjax.federated.processes.config import read_study

_FIRST_PORT = 7000
_STUDY = """\
nodes = {nodes}
call_time = 10.0      # seconds for the answer to one message
waiting_time = 600.0  # seconds that the analyst waits for holders that are missing
time_limit = {time_limit}  # seconds after which every process ends

[plan.parties]        # the arguments of dpjax.federated.Parties
num_holders = {num_holders}
num_nodes = {num_nodes}
"""
_ROUND = """
[plan.mechanism]
type = "dpjax.bayes.regression.PerturbedStatistics"
num_features = 3
noise_distribution = "gaussian"
adjacency = "replace_one"

[plan.mechanism.bounds]
type = "dpjax.bayes.regression.RegressionBounds"
x_norm_bound = 2.0
y_bound = 1.0

[plan.mechanism.scales]
type = "dpjax.bayes.regression.RegressionStatistics"
xtx = 24.0
xty = 18.0
yty = 6.0
"""
_TRAINING = """
[plan.mechanism]
type = "dpjax.federated.ClippedGradientSum"
num_parameters = 3

[plan.mechanism.mechanism]
type = "dpjax.SubsampledGaussian"
l2_clip = 1.0
noise_multiplier = 2.0
num_steps = 50
adjacency = "zero_out"

[plan.mechanism.mechanism.sampling]
type = "dpjax.PoissonSampling"
num_examples = 3000   # of all holders together
sampling_rate = 0.1
"""
_PROGRAM = """\
import jax.numpy as jnp
import optax
from dpjax.federated import gradient_training

def training(mechanism):
    def loss(params, example):  # the holder's arrays, by name
        return 0.5 * (example["x"] @ params["w"] + params["b"] - example["y"]) ** 2

    start = {"w": jnp.zeros(2), "b": jnp.zeros(())}
    return gradient_training(loss, start, optax.adam(0.1), mechanism=mechanism)
"""


def write_example_study(
    path: Path, *, num_holders: int, num_nodes: int, training: bool = False
) -> list[Path]:
    """Writes a study with an example of a plan, on ports of one machine.

    Args:
      path: of the file, which is not overwritten.
      num_holders: of the plan.
      num_nodes: of the plan.
      training: whether gradients are summed in many rounds; then ``train.py`` is written, too.

    Returns:
      The files.

    Raises:
      FileExistsError: a file is there.
      ValueError: a number that `Parties` refuses.
    """
    Parties(num_holders=num_holders, num_nodes=num_nodes)  # checks them
    text = _STUDY.format(
        nodes=json.dumps([f"127.0.0.1:{_FIRST_PORT + node}" for node in range(num_nodes)]),
        time_limit="86400.0" if training else "3600.0",
        num_holders=num_holders,
        num_nodes=num_nodes,
    )
    if not training:
        return _write({path: text + _ROUND})
    program = path.parent / "train.py"
    return _write({program: _PROGRAM, path: f'program = "{program.name}"\n{text}{_TRAINING}'})


def write_party_files(
    study: Path, *, arrays: Sequence[str] = ("x", "y"), delta: float = 1e-5
) -> list[Path]:
    """Writes the files of all parties of a study beside it.

    A party's keys are in ``keys``, its journal in ``journal-<party>``, a holder's records in
    ``records-<index>.npz``, the analyst's result in ``released.npz``.

    Args:
      study: the TOML file of the study.
      arrays: names in the file of records, in the order of the mechanism's ``sum_records``.
      delta: at which the analyst's certificate is printed.

    Returns:
      The files.

    Raises:
      FileExistsError: a file is there.
      ValueError: a study that `read_study` refuses, or ``delta`` out of range.
    """
    check(all(arrays), "arrays", list(arrays), "names of arrays")
    check_delta(delta)
    parties = read_study(study).plan.parties

    tables: dict[str, list[str]] = {}
    for index in range(parties.num_holders):
        own = [f'data = "records-{index}.npz"', f"arrays = {json.dumps(list(arrays))}"]
        tables[f"holder-{index}"] = [f"index = {index}", *own]
    for index in range(parties.num_nodes):
        tables[f"node-{index}"] = [f"index = {index}"]
    tables["analyst"] = ['result = "released.npz"', f"delta = {delta!r}"]

    texts = {}
    for party, own in tables.items():
        files = [
            f"study = {json.dumps(study.name, ensure_ascii=False)}",
            f'journal = "journal-{party}"',
            'authority = "keys/authority.pem"',
            f'certificate = "keys/{party}.pem"',
            f'key = "keys/{party}.key"',
        ]
        texts[study.parent / f"{party}.toml"] = "\n".join([*files, *own, ""])
    return _write(texts)


def _write(texts: dict[Path, str]) -> list[Path]:
    """Writes new files, or none where one is there."""
    for path in texts:
        if path.exists():
            raise FileExistsError(f"{path} is there; remove it, or name another folder")
    for path, text in texts.items():
        path.write_text(text, "utf-8")
    return list(texts)
