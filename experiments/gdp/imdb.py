"""IMDb, Table 3 of Bu et al. (2020): NoisyAdam on the mean of word embeddings.

``python -m experiments run gdp_imdb``: one to two minutes on two CPU cores, both profiles. Expect a
test accuracy of about 83.5 % with privacy (source: 83.8) and 83 % without (84.7).
"""

import dataclasses
import functools
from collections.abc import Sequence

import optax
from matplotlib.figure import Figure

from experiments.data import NUM_TOKENS, Dataset, load_data
from experiments.gdp.classifiers import (
    ACCURACY,
    CERTIFIED_EPSILON,
    PlainSettings,
    PrivateSettings,
    Problem,
    account_finding,
    mean_accuracy,
    private_remarks,
    run,
    training_figure,
)
from experiments.lib.formatting import format_value
from experiments.lib.models import MeanEmbeddingClassifier
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import compare_published

PUBLISHED_SIZE = 25_000
PRIVATE = PrivateSettings(
    learning_rate=0.02, l2_clip=1.0, noise_multiplier=0.56, epochs=9, expected_batch_size=512
)
_PLAIN = PlainSettings(learning_rate=0.02, epochs=20, batch_size=512)
_SOURCE = {ACCURACY: 83.8, "CLT μ": 2.07, "CLT ε": 10.43, "MA ε": 15.24}
_PLAIN_SOURCE = {ACCURACY: 84.7}
_PRIVATE_ROW, _PLAIN_ROW, _QUOTED_ROW = "NoisyAdam", "Adam, no privacy", "LSTM, quoted"
_PADDING_TRAINED = ", padding trained"


@functools.cache
def data_set() -> Dataset:
    return load_data("imdb", stand_in=True)


def rows(profile: str) -> list[Row]:
    rows = []
    paddings = {"": True} if profile == "quick" else {"": True, _PADDING_TRAINED: False}
    for suffix, zero in paddings.items():
        private, plain = (
            {**dataclasses.asdict(settings), "padding_is_zero": zero}
            for settings in (PRIVATE, _PLAIN)
        )
        rows += [
            Row(_PRIVATE_ROW + suffix, private, _SOURCE),
            Row(_PLAIN_ROW + suffix, plain, _PLAIN_SOURCE),
        ]
    return [*rows, Row(_QUOTED_ROW, {"model": "LSTM"}, {ACCURACY: 85.4})]


def run_row(row: Row, context: RowContext) -> Result:
    if row.name == _QUOTED_ROW:
        return Result({ACCURACY: "not run"}, {}, "The LSTM is quoted from the source, not run.")
    data, arguments = data_set(), dict(row.settings)
    model = MeanEmbeddingClassifier(NUM_TOKENS, data.num_classes, arguments.pop("padding_is_zero"))
    problem = Problem(model, optax.adam, data, "one review", PUBLISHED_SIZE)
    return run(problem, arguments, context.folder)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    published = {_PRIVATE_ROW: _SOURCE[ACCURACY], _PLAIN_ROW: _PLAIN_SOURCE[ACCURACY]}
    return {"training": training_figure(records, published)}


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    remarks = private_remarks(rows[_PRIVATE_ROW]) if _PRIVATE_ROW in rows else []
    if plain := rows.get(_PLAIN_ROW):
        first, last = (format_value(mean_accuracy(plain, epoch), ACCURACY) for epoch in (0, -1))
        remarks.append(
            f"Without privacy the network overfits: {first} % after the first epoch, {last} %"
            f" after the last (source: {plain.source[ACCURACY]}). The measured cost of privacy"
            " depends on the stopping time."
        )
    return remarks


def finding(records: Sequence[Record]) -> Finding:
    rows = [record for record in records if record.row in (_PRIVATE_ROW, _PLAIN_ROW)]
    comparison = compare_published(rows, ACCURACY, 0.5, "published accuracies", "points")
    private = [record for record in rows if record.row == _PRIVATE_ROW]
    return account_finding(comparison, private, CERTIFIED_EPSILON)
