"""Private variational logistic regression on Adult's 14 attributes: accuracy against epsilon.

``python -m experiments run dpvi_adult``: a minute.
"""

import functools
from collections.abc import Sequence

import numpy as np

from experiments.data import Dataset, Scaling, load_data
from experiments.dpvi import study
from experiments.dpvi.codings import PART, coding_remark, coding_rows, run_coding_row
from experiments.lib.registry import Record, Result, Row, RowContext

_SIGMAS = tuple(float(sigma) for sigma in np.exp(np.linspace(-0.3, 3.0, 10)))
# Published means over five runs by (c, q, sigma, T).
_CLIPS = {
    (10.0, 0.001, 0.8, 2_000): 76.70,
    (55.0, 0.001, 0.8, 2_000): 80.80,
    (100.0, 0.001, 0.8, 2_000): 80.57,
    (10.0, 0.001, 1.6, 2_000): 73.90,
    (55.0, 0.001, 1.6, 2_000): 75.68,
    (100.0, 0.001, 1.6, 2_000): 76.39,
}
_RATES = {
    (50.0, 0.001, 0.8, 2_000): 80.44,
    (50.0, 0.003, 0.8, 2_000): 81.07,
    (50.0, 0.005, 0.8, 2_000): 81.43,
    (50.0, 0.001, 2.0, 2_000): 74.78,
    (50.0, 0.003, 2.0, 2_000): 80.79,
    (50.0, 0.005, 2.0, 2_000): 81.12,
}


@functools.cache
def _data(scaling: Scaling) -> Dataset:
    return load_data("adult_attributes", scaling=scaling)


STUDY = study.Study(
    data=_data,
    sampling_rate=0.005,
    clip=75.0,
    num_steps=2_000,
    sigmas={"quick": _SIGMAS[::3], "paper": _SIGMAS},
    at=_SIGMAS[0],
    clips=list(_CLIPS),
    rates=list(_RATES),
    step_sizes=(3.0, 1.0),
    published={**_CLIPS, **_RATES},
    published_plain=81.13,
    repeats={"quick": 3, "paper": 10},
)

_CODED: study.Setting = (55.0, 0.001, 0.8, 2_000)


def rows(profile: str) -> list[Row]:
    return STUDY.rows(profile) + coding_rows(STUDY, _CODED, profile)


def run_row(row: Row, context: RowContext) -> Result:
    if row.settings["part"] == PART:
        return run_coding_row(STUDY, row)
    return STUDY.run_row(row, context)


def remarks(records: Sequence[Record]) -> list[str]:
    return study.remarks(records) + coding_remark(records, _CLIPS[_CODED])


data_set = functools.partial(_data, "published")
figures, finding = study.figures, study.finding
