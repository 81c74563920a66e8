"""Abalone, Table 1 of Triastcyn and Faltings (2020): variational inference, DP and BDP.

``python -m experiments run bdp_abalone``: a quarter of a minute, the same in both profiles.
"""

import functools

from experiments.bdp import variational
from experiments.data import Dataset, load_data


@functools.cache
def data_set() -> Dataset:
    return load_data("abalone", stand_in=True)


TABLE = variational.Table(
    data=data_set,
    l2_clip=0.25,
    sampling_rate=0.05,
    num_steps=1_000,
    sigmas={"σ = 1.22, noise of Jälkö et al. (2017)": 1.2214, "DP ε 0.61 at δ = 1e-10": 7.53},
    published=(77.0, 76.0, (7.6, 0.999), (0.61, 0.649)),
    repeats=5,
)


rows, run_row = TABLE.rows, TABLE.run_row
figures, remarks, finding = variational.figures, variational.remarks, variational.finding
