"""Abalone, Table 1 of Triastcyn and Faltings (2020): variational inference, DP and BDP.

``python -m experiments run bdp_abalone``: a quarter of a minute, the same in both profiles.
"""

import functools

from experiments.bdp.variational import Table, figures, finding, remarks
from experiments.data import Dataset, load_data
from experiments.lib.registry import Experiment, read_page


@functools.cache
def _data() -> Dataset:
    return load_data("abalone")


TABLE = Table(
    data=_data,
    l2_clip=0.25,
    sampling_rate=0.05,
    num_steps=1_000,
    sigmas={"σ = 1.22, noise of Jälkö et al. (2017)": 1.2214, "DP ε 0.61 at δ = 1e-10": 7.53},
    published=(77.0, 76.0, (7.6, 0.999), (0.61, 0.649)),
    repeats=5,
)

EXPERIMENT = Experiment(
    page=read_page(__file__),
    rows=TABLE.rows,
    run_row=TABLE.run_row,
    finding=finding,
    data=lambda: _data().name,
    figures=figures,
    remarks=remarks,
)
