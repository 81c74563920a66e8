"""MNIST, Table 1 of Triastcyn and Faltings (2020): BDP and DP of CNN training.

``python -m experiments run bdp_mnist``: on two CPU cores about two minutes (``quick``: one epoch
a row) or an hour (``paper``: 50 epochs). A stopped row resumes from its last epoch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

from experiments.bdp import table
from experiments.bdp.table import EXAMPLES, MEAN, PLAIN, Settings, Task, published_row
from experiments.data import Dataset, load_data
from experiments.lib.models import MnistCNN
from experiments.lib.registry import Finding, Record, Result, Row, RowContext

_EPOCHS = 50
_BASELINE = published_row(99.0)
_PUBLISHED = published_row(96.0, (2.2, 0.898), (0.95, 0.721))
_OURS = published_row(96.0, (2.2, 0.898))


@functools.cache
def data_set() -> Dataset:
    """Returns MNIST, or its stand-in if it is not available."""
    return load_data("mnist", stand_in=True)


def rows(profile: str) -> list[Row]:
    quick = profile == "quick"
    epochs = 1 if quick else _EPOCHS

    common: Any = {"epochs": epochs, "published_epochs": _EPOCHS, "batch_size": 1024}

    def row(name: str, source: dict[str, float], method: str, rate: float, **changes: Any) -> Row:
        settings = Settings(method, "sgd", rate, **common, **changes)
        return Row(name, dataclasses.asdict(settings), source)

    # 59 steps of size 0.02 are too few to learn.
    source_rate = 0.1 if quick else 0.02
    tenth: Any = {"share_of_weights": 0.1}
    rows = [
        row("not private", _BASELINE, PLAIN, 0.1),
        row("source's protocol", _PUBLISHED, MEAN, source_rate, noise_std=0.1, **tenth),
        row("DP ε 2.2", _OURS, EXAMPLES, 1.5, target=(2.2, 1e-5)),
    ]
    if not quick:
        rows += [
            row("clip bound 100", {}, EXAMPLES, 0.1, l2_clip=100.0, noise_std=50.0),
            row("ε 0.95 at 1e-10", {}, EXAMPLES, 1.5, target=(0.95, 1e-10)),
            row("DP ε 2.2, tenth", _OURS, EXAMPLES, 1.5, target=(2.2, 1e-5), **tenth),
        ]
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    data = data_set()
    return table.run_row(row, context, Task(MnistCNN(data.num_classes), data, "one image"), 90.0)


def finding(records: Sequence[Record]) -> Finding:
    # The quick profile is shortened.
    return table.finding(records, "source's protocol", lambda record: record.profile == "paper")


figures, remarks = table.figures, table.remarks
