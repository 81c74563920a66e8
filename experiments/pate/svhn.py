"""SVHN, Papernot et al. (2017, 2018): an ensemble of 40 teachers on 8,000 images.

``python -m experiments run pate_svhn``: on two CPU cores about a minute (``quick``) or
six (``paper``). Expect students of 58 to 64 % (72 to 80 %), below the source's, which has
250 teachers on 604,388 images.
"""

import functools
from collections.abc import Sequence

from experiments.lib.registry import Finding, Record, Row
from experiments.pate import images
from experiments.pate.answers import epsilon_clause, release_remarks, releases_figure
from experiments.pate.images import Release, load_images, make_rows

_DELTA = 1e-6
_NUM_TEACHERS = 40
# Noise and threshold over those of the source, as the number of teachers.
_SHARE = _NUM_TEACHERS / 250
_TEACHERS = {
    "quick": {"epochs": 12, "augment": False},
    "paper": {"epochs": 40, "augment": True},
}
_PLAIN_EPOCHS = {"quick": 3, "paper": 20}
_STUDENT = {
    "quick": {"num_steps": 300, "unlabeled_batch_size": 32},
    "paper": {"num_steps": 2_000, "unlabeled_batch_size": 64},
}
_RELEASES: dict[str, Release] = {
    "LNMax, 500 queries": (
        {"aggregator": "LNMax", "num_queries": 500, "scale": 20 * _SHARE, "delta": _DELTA},
        (82.72, 5.04),
    ),
    "LNMax, 1,000 queries": (
        {"aggregator": "LNMax", "num_queries": 1_000, "scale": 20 * _SHARE, "delta": _DELTA},
        (90.66, 8.19),
    ),
    "Confident-GNMax": (
        {
            "aggregator": "ConfidentGNMax",
            "num_queries": 1_000,
            "threshold": 300 * _SHARE,
            "check_scale": 200 * _SHARE,
            "scale": 40 * _SHARE,
            "max_answers": 365,
            "delta": _DELTA,
        },
        (91.6, 4.96, 3_098),
    ),
}


def rows(profile: str) -> list[Row]:
    return make_rows(
        "svhn",
        {"network": "CNN", "num_epochs": _PLAIN_EPOCHS[profile], "batch_size": 128},
        92.80,
        {
            "network": "CNN",
            "num_teachers": _NUM_TEACHERS,
            "batch_size": 20,
            "num_labels": 1_000,
            "learning_rate": 2e-3,
            **_TEACHERS[profile],
        },
        _RELEASES,
        {"network": "CNN", "batch_size": 32, "learning_rate": 2e-3, **_STUDENT[profile]},
    )


def finding(records: Sequence[Record]) -> Finding:
    clauses = filter(None, ["The source has more teachers and images", epsilon_clause(records)])
    return Finding("not compared", f"{'; '.join(clauses)}.")


data_set = functools.partial(load_images, "svhn")
run_row, figures, remarks = images.run_row, releases_figure, release_remarks
