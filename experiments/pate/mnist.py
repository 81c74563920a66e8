"""MNIST, Papernot et al. (2017, 2018): 250 teachers vote, a student learns from released labels.

``python -m experiments run pate_mnist``: on two CPU cores about two minutes (``quick``: teachers
with one hidden layer) or half an hour (``paper``: convolutional networks).
"""

from collections.abc import Sequence
from typing import Any

from experiments.lib.registry import Experiment, Finding, Record, Row
from experiments.pate.accounts import EPSILON
from experiments.pate.answers import ANSWERS, STUDENT, release_remarks, releases_finding
from experiments.pate.figures import releases_figure
from experiments.pate.images import PLAIN, RELEASE, STUDENTS, TEACHERS, load_images, run_row

_PLAIN_ROW = "network, no privacy"
_DELTA = 1e-5
_TEACHERS: dict[str, dict[str, Any]] = {
    "quick": {"network": "MLP", "epochs": 30, "batch_size": 40, "augment": False},
    "paper": {"network": "CNN", "epochs": 100, "batch_size": 40, "augment": True},
}
_STUDENTS: dict[str, dict[str, Any]] = {
    "quick": {"network": "CNN", "num_steps": 500, "batch_size": 32, "unlabeled_batch_size": 64},
    "paper": {"network": "CNN", "num_steps": 5_000, "batch_size": 32, "unlabeled_batch_size": 128},
}
_EPOCHS = {"quick": 2, "paper": 15}
# By row: the release, and the published accuracy, ε and number of answers.
_RELEASES: dict[str, tuple[dict[str, Any], tuple[float, ...]]] = {
    "LNMax, 100 queries": (
        {"aggregator": "LNMax", "num_queries": 100, "scale": 20.0},
        (98.00, 2.04),
    ),
    "LNMax, 1,000 queries": (
        {"aggregator": "LNMax", "num_queries": 1_000, "scale": 20.0},
        (98.10, 8.03),
    ),
    "Confident-GNMax": (
        {
            "aggregator": "ConfidentGNMax",
            "num_queries": 640,
            "threshold": 200.0,
            "check_scale": 150.0,
            "scale": 40.0,
            "max_answers": 286,
        },
        (98.5, 1.97, 286),
    ),
}


def _rows(profile: str) -> list[Row]:
    plain = {"network": "CNN", "num_epochs": _EPOCHS[profile], "batch_size": 128}
    names = (STUDENT, EPSILON, ANSWERS)
    ensemble = {TEACHERS: {"num_teachers": 250, **_TEACHERS[profile]}, STUDENTS: _STUDENTS[profile]}
    return [
        Row(_PLAIN_ROW, {"data": "mnist", PLAIN: plain}, {STUDENT: 99.18}),
        *(
            Row(
                name,
                {"data": "mnist", **ensemble, RELEASE: {**release, "delta": _DELTA, "seed": 0}},
                dict(zip(names, printed, strict=False)),
            )
            for name, (release, printed) in _RELEASES.items()
        ),
    ]


def _finding(records: Sequence[Record]) -> Finding:
    return releases_finding(records, 1.0)


EXPERIMENT = Experiment(
    name="pate_mnist",
    title="PATE on MNIST",
    source="Papernot et al. (2017), Table 2; Papernot et al. (2018), Table 1",
    description="",
    rows=_rows,
    run_row=run_row,
    finding=_finding,
    data=lambda: load_images("mnist").name,
    figures=releases_figure,
    remarks=release_remarks,
)
