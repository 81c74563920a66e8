"""Private variational logistic regression on Abalone: accuracy against epsilon.

``python -m experiments run dpvi_abalone``: half a minute.
"""

import functools

import numpy as np

from experiments.data import Dataset, Scaling, load_data
from experiments.dpvi import study

_SIGMAS = tuple(float(sigma) for sigma in np.exp(np.linspace(0.2, 5.0, 10)))
# Published means over ten runs by _SIGMAS, and over five runs by (c, q, sigma, T).
_MAIN = (76.20, 76.20, 76.03, 76.04, 75.63, 75.73, 74.87, 74.40, 73.42, 73.53)
_CLIPS = {
    (1.0, 0.01, 2.0, 2_000): 74.11,
    (3.0, 0.01, 2.0, 2_000): 74.95,
    (5.0, 0.01, 2.0, 2_000): 75.33,
    (1.0, 0.01, 10.0, 2_000): 74.00,
    (3.0, 0.01, 10.0, 2_000): 74.16,
    (5.0, 0.01, 10.0, 2_000): 74.76,
}


@functools.cache
def _data(scaling: Scaling) -> Dataset:
    return load_data("abalone", scaling=scaling, stand_in=True)


STUDY = study.Study(
    data=_data,
    sampling_rate=0.05,
    clip=5.0,
    num_steps=1_000,
    sigmas={"quick": _SIGMAS[::2], "paper": _SIGMAS},
    at=_SIGMAS[0],
    clips=list(_CLIPS),
    rates=[(5.0, rate, sigma, 2_000) for sigma in (2.0, 10.0) for rate in (0.01, 0.05, 0.1)],
    step_sizes=(3.0, 1.0, 0.3),
    published={
        **{(5.0, 0.05, sigma, 1_000): value for sigma, value in zip(_SIGMAS, _MAIN, strict=True)},
        **_CLIPS,
    },
    published_plain=76.67,
    repeats={"quick": 5, "paper": 10},
)


data_set = functools.partial(_data, "published")
rows, run_row = STUDY.rows, STUDY.run_row
figures, remarks, finding = study.figures, study.remarks, study.finding
