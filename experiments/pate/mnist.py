"""MNIST, Papernot et al. (2017, 2018): 250 teachers vote, a student learns from released labels.

``python -m experiments run pate_mnist``: on two CPU cores about two minutes (``quick``: teachers of
6 epochs) or eight (``paper``: of 30 epochs of transformed images). Expect students of 97.4
to 98.6 % with the latter.
"""

import functools
from collections.abc import Sequence

from experiments.lib.registry import Finding, Record, Row
from experiments.pate import images
from experiments.pate.answers import release_remarks, releases_figure, releases_finding
from experiments.pate.images import Release, load_images, make_rows

_DELTA = 1e-5
_PLAIN_EPOCHS = {"quick": 1, "paper": 5}
_TEACHERS = {
    "quick": {"epochs": 6, "augment": False, "learning_rate": 3e-3},
    "paper": {"epochs": 30, "augment": True, "learning_rate": 2e-3},
}
_STUDENT = {
    "quick": {"num_steps": 500, "unlabeled_batch_size": 64},
    "paper": {"num_steps": 4_000, "unlabeled_batch_size": 128},
}
_RELEASES: dict[str, Release] = {
    "LNMax, 100 queries": (
        {"aggregator": "LNMax", "num_queries": 100, "scale": 20.0, "delta": _DELTA},
        (98.00, 2.04),
    ),
    "LNMax, 1,000 queries": (
        {"aggregator": "LNMax", "num_queries": 1_000, "scale": 20.0, "delta": _DELTA},
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
            "delta": _DELTA,
        },
        (98.5, 1.97, 286),
    ),
}


def rows(profile: str) -> list[Row]:
    return make_rows(
        "mnist",
        {"network": "CNN", "num_epochs": _PLAIN_EPOCHS[profile], "batch_size": 128},
        99.18,
        {
            "network": "CNN",
            "num_teachers": 250,
            "batch_size": 20,
            "num_labels": 1_000,
            **_TEACHERS[profile],
        },
        _RELEASES,
        {"network": "CNN", "batch_size": 32, "learning_rate": 2e-3, **_STUDENT[profile]},
    )


def finding(records: Sequence[Record]) -> Finding:
    return releases_finding(
        records, 1.0, lambda record: record.profile == "paper" and record.data == "mnist"
    )


data_set = functools.partial(load_images, "mnist")
run_row, figures, remarks = images.run_row, releases_figure, release_remarks
