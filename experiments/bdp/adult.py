"""Adult, Table 1 of Triastcyn and Faltings (2020): variational inference, DP and BDP.

``python -m experiments run bdp_adult``: half a minute, the same in both profiles.
"""

import functools

from experiments.bdp.variational import DESCRIPTION, Table, figures, finding, remarks
from experiments.data import Dataset, load_data
from experiments.lib.registry import Experiment


@functools.cache
def _data() -> Dataset:
    return load_data("adult_attributes")


TABLE = Table(
    data=_data,
    l2_clip=0.25,
    sampling_rate=0.005,
    num_steps=2_000,
    sigmas={"σ = 2, noise of Jälkö et al. (2017)": 2.0, "DP ε 0.2 at δ = 1e-10": 3.16},
    published=(81.0, 81.0, (0.5, 0.623), (0.2, 0.55)),
    repeats=3,
)

EXPERIMENT = Experiment(
    name="bdp_adult",
    title="Bayesian differential privacy: Adult",
    source="Triastcyn and Faltings (2020), Table 1",
    description=(
        "Logistic regression by variational inference, as in dpvi_adult.\n\n"
        f"{DESCRIPTION} The published DP ε of 0.5 is the moments accountant's of Jälkö et al."
        " (2017) for replacing a record at σ = 2 and q = 0.005 (0.46 at δ = 1e-3, 0.48 at half of"
        " it), with c = 50, a bound of 0.25 here; the accuracy of those runs stored with its code"
        " is 81.1 %. The noise of the last row is calibrated so that the DP ε equals the"
        " published BDP ε at the same δ."
    ),
    rows=TABLE.rows,
    run_row=TABLE.run_row,
    finding=finding,
    data=lambda: _data().name,
    figures=figures,
    remarks=remarks,
)
