"""The command ``python -m experiments.federated``: the Wine regression of ten holders.

Ten holders, three nodes and the analyst are processes on this machine that are connected by TLS.
The posterior is computed from what the analyst's process released.
"""

import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from dpjax.bayes.regression import (
    PerturbedStatistics,
    RegressionPosterior,
    RegressionStatistics,
    largest_noise_eigenvalue,
    repair,
    unknown_noise_posterior,
)
from dpjax.datasets.uci import load_wine
from dpjax.federated import Parties, read_study
from experiments.bayes.wine_fits import Records, scale_records
from experiments.federated.loopback import Limits, finish, start_all, write_study

_EPSILON, _DELTA = 1.0, 1e-4
_PARTIES = Parties(num_holders=10, num_nodes=3, num_dropouts=1)
_LIMITS = Limits(waiting_time=120.0, time_limit=180.0)
_MECHANISM = """
[plan.mechanism]
type = "dpjax.bayes.regression.PerturbedStatistics"
num_features = {mechanism.num_features}
noise_distribution = "{mechanism.noise_distribution}"
adjacency = "{mechanism.adjacency}"
unit = "{mechanism.unit}"
[plan.mechanism.bounds]
type = "dpjax.bayes.regression.RegressionBounds"
x_norm = {mechanism.bounds.x_norm}
y_size = {mechanism.bounds.y_size}
[plan.mechanism.scales]
type = "dpjax.bayes.regression.RegressionStatistics"
xtx = {mechanism.scales.xtx}
xty = {mechanism.scales.xty}
yty = {mechanism.scales.yty}
"""


def main() -> int:
    """Runs the study, and prints certificate and posterior.

    Returns:
      The exit status: 0, or 1 if there is no result.
    """
    begin = time.monotonic()
    data = load_wine()
    records = scale_records(data)
    mechanism = PerturbedStatistics.from_epsilon(
        records.bounds,
        epsilon=_EPSILON,
        delta=_DELTA,
        adjacency="zero_out",
        num_features=records.x.shape[1],
        unit="one record",
    )
    print(f"{_PARTIES.num_holders} holders of {len(records.y)} records: {data.name}", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = _MECHANISM.format(mechanism=mechanism)
        parts = split_records(records)
        write_study(folder, table, _PARTIES, parts, delta=_DELTA, limits=_LIMITS)
        outcomes = finish(start_all(folder, _PARTIES), timeout=200)
        for party, (status, output) in outcomes.items():
            lines = output.strip() if party == "analyst" else ", ".join(output.splitlines())
            print(f"{party}: {lines} (exit status {status})")
        if outcomes["analyst"][0]:
            return 1
        posterior = read_posterior(folder, len(records.y))
    print("\nPosterior in half widths of the public ranges, noise of the release left out:")
    deviations = np.sqrt(np.diag(posterior.covariance))
    names = ("constant", *data.feature_names)
    for feature, mean, deviation in zip(names, posterior.mean, deviations, strict=True):
        print(f"{mean:+8.3f} ± {deviation:.3f}  {feature}")
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    return 0


def split_records(records: Records) -> list[dict[str, np.ndarray]]:
    """Returns the records of each holder, a random part of all."""
    order = np.random.default_rng(0).permutation(len(records.y))
    parts = np.array_split(order, _PARTIES.num_holders)
    return [{"x": np.asarray(records.x)[own], "y": np.asarray(records.y)[own]} for own in parts]


def read_posterior(folder: Path, num_examples: int) -> RegressionPosterior:
    """Returns the posterior given what the analyst's process has released."""
    with np.load(folder / "released.npz") as file:
        released = RegressionStatistics(file["xtx"], file["xty"], file["yty"])
        mechanism = read_study(folder / "study.toml").plan.mechanism_for(len(file["holders"]))
    assert isinstance(mechanism, PerturbedStatistics)
    floor = largest_noise_eigenvalue(mechanism.noise_scales.xtx)
    return unknown_noise_posterior(
        repair(released, floor),
        num_examples,
        prior_precision=1.0,
        noise_shape=1.0,
        noise_rate=0.1,
    )


if __name__ == "__main__":
    sys.exit(main())
