"""MNIST, Table 1 of Triastcyn and Faltings (2020): BDP and DP of its protocol, and with clipping.

``python -m experiments run bdp_mnist``: on two CPU cores about two minutes (``quick``: two epochs
a row) or an hour (``paper``: 50 epochs). A stopped row resumes from its last epoch.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import dpjax
from dpjax.datasets import Dataset
from experiments.bdp.classifiers import EXAMPLES, MEAN, PLAIN, Settings, Task
from experiments.bdp.table import DESCRIPTION, figures, published_row, remarks, run_row
from experiments.lib.models import MnistCNN
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_EPOCHS = 50
_BASELINE = published_row(99.0)
_PUBLISHED = published_row(96.0, (2.2, 0.898), (0.95, 0.721))
_OURS = published_row(96.0, (2.2, 0.898))


@functools.cache
def load_mnist() -> Dataset:
    """Returns MNIST, or what stands in for it where it cannot be had."""
    return dpjax.datasets.load("mnist")


def _rows(profile: str) -> list[Row]:
    quick = profile == "quick"
    epochs = 2 if quick else _EPOCHS

    common: Any = {"epochs": epochs, "published_epochs": _EPOCHS, "batch_size": 1024}

    def row(name: str, source: dict[str, float], way: str, rate: float, **changes: Any) -> Row:
        settings = Settings(way, "sgd", rate, **common, **changes)
        return Row(name, dataclasses.asdict(settings), source)

    # In 117 steps of 0.02 nothing is learned.
    source_rate = 0.1 if quick else 0.02
    tenth: Any = {"share_of_weights": 0.1}
    rows = [
        row("not private", _BASELINE, PLAIN, 0.3),
        row("source's protocol", _PUBLISHED, MEAN, source_rate, noise_std=0.1, **tenth),
        row("DP ε 2.2", _OURS, EXAMPLES, 1.5, target=(2.2, 1e-5)),
        row("ε 0.95 at 1e-10", {}, EXAMPLES, 1.5, target=(0.95, 1e-10)),
        row("nothing clipped", {}, EXAMPLES, 0.3, l2_clip=100.0, noise_std=50.0),
    ]
    if not quick:
        rows.append(row("DP ε 2.2, tenth", _OURS, EXAMPLES, 1.5, target=(2.2, 1e-5), **tenth))
    return rows


def _run_row(row: Row, context: RowContext) -> Result:
    data = load_mnist()
    return run_row(row, context, Task(MnistCNN(data.num_classes), data, "one image"), 90.0)


def _remarks(records: Sequence[Record]) -> list[str]:
    return [
        "The network is the CNN of Bu et al. (2020), 26,010 parameters. The published code has one"
        " with batch normalisation, where one example's gradient depends on its whole batch: no"
        " account of examples holds for it.",
        "The 10 % of the weights that a step updates are drawn without looking at the data, and the"
        " others are held fixed before anything is clipped, so norms are those of the drawn ones.",
        *remarks(records),
    ]


EXPERIMENT = Experiment(
    name="bdp_mnist",
    title="MNIST by two accounts",
    source="Triastcyn and Faltings (2020), Table 1 and Figure 2",
    description=DESCRIPTION
    + "\n\nRows: no privacy; the source's protocol (batches of 1,024, σ = 0.1 on the clipped mean,"
    " a random tenth of the weights in each step; step size 0.02, in the shortened run 0.1);"
    " examples clipped to 1 with noise for the published DP ε; the same with noise for the"
    " published BDP ε, aimed at through DP at the same δ; a clip bound that no norm reaches, with"
    " much noise, where the two accounts differ most; in full, also a tenth of the weights with"
    " examples clipped.",
    rows=_rows,
    run_row=_run_row,
    data=lambda: load_mnist().name,
    figures=figures,
    remarks=_remarks,
)
