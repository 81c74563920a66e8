"""Adult, Table 1 of Triastcyn and Faltings (2020): variational inference, DP and BDP.

``python -m experiments run bdp_adult``: half a minute, the same in both profiles.
"""

import functools

from experiments.bdp import variational
from experiments.data import Dataset, load_data


@functools.cache
def data_set() -> Dataset:
    return load_data("adult_attributes", stand_in=True)


TABLE = variational.Table(
    data=data_set,
    l2_clip=0.25,
    sampling_rate=0.005,
    num_steps=2_000,
    sigmas={"σ = 2, noise of Jälkö et al. (2017)": 2.0, "DP ε 0.2 at δ = 1e-10": 3.16},
    published=(81.0, 81.0, (0.5, 0.623), (0.2, 0.55)),
    repeats=3,
)


rows, run_row = TABLE.rows, TABLE.run_row
figures, remarks, finding = variational.figures, variational.remarks, variational.finding
