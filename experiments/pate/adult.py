"""Adult, Papernot et al. (2017, 2018): random forests as teachers and student.

``python -m experiments run pate_adult``: on two CPU cores about half a minute (``quick``: forests
of 20 trees) or some minutes (``paper``: of 100 trees).
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from dpjax import pate
from experiments.data import Dataset, Split, load_data
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.pate.accounts import EPSILON
from experiments.pate.answers import (
    ANSWERS,
    NOTE,
    STUDENT,
    answer_queries,
    release_remarks,
    releases_figure,
    releases_finding,
)

_PLAIN = "random forest, no privacy"
_NUM_TREES = {"quick": 20, "paper": 100}
_POOL = 1_500
_DELTA = 1e-5
# By row: the release, and the published accuracy, ε and number of answers.
_RELEASES: dict[str, tuple[Values, tuple[float, ...]]] = {
    "LNMax, 500 queries": (
        {"aggregator": "LNMax", "num_queries": 500, "scale": 20.0},
        (83.0, 2.66),
    ),
    "Confident-GNMax": (
        {
            "aggregator": "ConfidentGNMax",
            "num_queries": _POOL,
            "threshold": 300.0,
            "check_scale": 200.0,
            "scale": 40.0,
            "max_answers": 524,
        },
        (83.7, 1.90, 524),
    ),
}


@functools.cache
def data_set() -> Dataset:
    return load_data("adult", stand_in=True)


def _forest(num_trees: int, seed: int) -> Any:
    """Returns a forest of scikit-learn, imported lazily."""
    from sklearn.ensemble import RandomForestClassifier

    return RandomForestClassifier(num_trees, random_state=seed)


@functools.cache
def _teacher_labels(num_teachers: int, num_trees: int, seed: int) -> npt.NDArray[np.int32]:
    """Returns the labels of each teacher on the pool; the rows of one run share them."""
    data = data_set()
    num_examples = len(data.train.y)
    partition = pate.Partition.draw(
        jax.random.key(seed),
        num_examples,
        num_teachers=num_teachers,
        shard_size=num_examples // num_teachers,
    )
    shards = partition.shards(tuple(data.train))
    queries = _split_pool(data)[0].x
    return np.stack(
        [
            _forest(num_trees, number).fit(x, y).predict(queries).astype(np.int32)
            for number, (x, y) in enumerate(zip(*shards, strict=True))
        ]
    )


def _split_pool(data: Dataset) -> tuple[Split, Split]:
    """Returns the public records for queries, and those for testing."""
    size = min(_POOL, len(data.test.y) // 2)
    x, y = data.test
    return Split(x[:size], y[:size]), Split(x[size:], y[size:])


def rows(profile: str) -> list[Row]:
    common = {"num_trees": _NUM_TREES[profile], "seed": 0}
    teachers = {"num_teachers": 250, "delta": _DELTA, **common}
    names = (STUDENT, EPSILON, ANSWERS)
    return [
        Row(_PLAIN, common, {STUDENT: 85.0}),
        *(
            Row(name, {**teachers, **release}, dict(zip(names, printed, strict=False)))
            for name, (release, printed) in _RELEASES.items()
        ),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    data, settings = data_set(), row.settings
    pool, test = _split_pool(data)
    student = _forest(settings["num_trees"], settings["seed"])
    if row.name == _PLAIN:
        return Result({STUDENT: 100 * student.fit(*data.train).score(*test)}, {}, data.note)
    labels = _teacher_labels(settings["num_teachers"], settings["num_trees"], settings["seed"])
    found = answer_queries(settings, labels, pool.y, num_classes=data.num_classes)
    student.fit(pool.x[found.indices], found.labels)
    measured = {STUDENT: 100 * student.score(*test), **found.measured}
    return Result(measured, found.certified, f"{data.note} {NOTE}", certificate=found.certificate)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    return releases_figure(records)


def finding(records: Sequence[Record]) -> Finding:
    return releases_finding(records, 1.0)


remarks = release_remarks
