"""Adult, Table 2 of Bu et al. (2020): NoisySGD on one hidden layer, and classical classifiers.

``python -m experiments run gdp_adult``: about half a minute on two CPU cores, in both profiles.
Expect a test accuracy of 84 to 85 % with privacy, and half a point more without.
"""

import dataclasses
import functools
import importlib
from collections.abc import Sequence
from typing import Any

import numpy as np
import optax
from matplotlib.figure import Figure

from experiments.data import Dataset, Split, load_data
from experiments.gdp.classifiers import (
    ACCURACY,
    CERTIFIED_EPSILON,
    PlainSettings,
    PrivateSettings,
    Problem,
    account_finding,
    private_remarks,
    run,
    training_figure,
)
from experiments.lib.models import TabularMLP
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import Comparison

PUBLISHED_SIZE = 29_305
PRIVATE = PrivateSettings(
    learning_rate=0.15, l2_clip=1.0, noise_multiplier=0.55, epochs=18, expected_batch_size=256
)
_PLAIN = PlainSettings(learning_rate=0.15, epochs=18, batch_size=256)
_PRIVATE_ROW, _PLAIN_ROW = "NoisySGD", "SGD, no privacy"
_PUBLISHED_ACCURACY = 84.0
_SOURCE = {ACCURACY: "about 84", "CLT μ": 2.03, "CLT ε": 10.2}
_NOT_AT_HAND = {ACCURACY: None}
_OTHER_ACCURACY = "published test part %"
_SPLIT_SEED = 0

# scikit-learn's module, class and non-default options.
_CLASSICAL: dict[str, tuple[str, str, dict[str, Any]]] = {
    "logistic regression": ("linear_model", "LogisticRegression", {"max_iter": 1000}),
    "linear SVM": ("svm", "LinearSVC", {"random_state": 0}),
    "decision tree": ("tree", "DecisionTreeClassifier", {"random_state": 0}),
    "gradient boosting": ("ensemble", "HistGradientBoostingClassifier", {"random_state": 0}),
    "naive Bayes": ("naive_bayes", "BernoulliNB", {}),
    "nearest neighbours": ("neighbors", "KNeighborsClassifier", {"n_neighbors": 5}),
}


@functools.cache
def data_set() -> Dataset:
    return load_data("adult", stand_in=True)


def _hold_out_tenth(data: Dataset) -> Dataset:
    """Holds out a fixed random tenth of the training part for testing, as in the source."""
    order = np.random.default_rng(_SPLIT_SEED).permutation(len(data.train.y))
    num_test = len(order) // 10
    test, train = (Split(*(a[part] for a in data.train)) for part in np.split(order, [num_test]))
    return dataclasses.replace(data, train=train, test=test)


def rows(profile: str) -> list[Row]:
    return [
        Row(_PRIVATE_ROW, dataclasses.asdict(PRIVATE), _SOURCE),
        Row(_PLAIN_ROW, dataclasses.asdict(_PLAIN), _NOT_AT_HAND),
        *(
            Row(name, {"classifier": classifier, **options}, _NOT_AT_HAND)
            for name, (_, classifier, options) in _CLASSICAL.items()
        ),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    data = data_set()
    split = _hold_out_tenth(data)
    if row.name in _CLASSICAL:
        score = _classical(row.name).fit(*split.train).score
        parts = {ACCURACY: split.test, _OTHER_ACCURACY: data.test}
        return Result({name: 100 * score(*part) for name, part in parts.items()}, {}, data.note)
    model, others = TabularMLP(data.num_classes), {_OTHER_ACCURACY: data.test}
    problem = Problem(model, optax.sgd, split, "one person", PUBLISHED_SIZE, others)
    return run(problem, row.settings, context.folder)


def _classical(name: str) -> Any:
    """Returns a classifier of scikit-learn, imported lazily."""
    module, classifier, options = _CLASSICAL[name]
    return getattr(importlib.import_module(f"sklearn.{module}"), classifier)(**options)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    return {"training": training_figure(records, {_PRIVATE_ROW: _PUBLISHED_ACCURACY})}


def remarks(records: Sequence[Record]) -> list[str]:
    private = [record for record in records if record.row == _PRIVATE_ROW]
    return [remark for record in private for remark in private_remarks(record)]


def finding(records: Sequence[Record]) -> Finding:
    private = [record.measured[ACCURACY] for record in records if record.row == _PRIVATE_ROW]
    pairs = tuple((accuracy, _PUBLISHED_ACCURACY) for accuracy in private)
    comparison = Comparison("published private accuracies", pairs, 0.5, "points")
    return account_finding(comparison, records, CERTIFIED_EPSILON)
