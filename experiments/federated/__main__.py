"""The command ``python -m experiments.federated``: two studies of holders on this machine.

A regression of ten holders with three nodes, and variational inference of three holders with two
nodes in many rounds. All parties and the analyst are processes that are connected by TLS; what is
printed is computed from what the analyst's process released.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np

from dpjax import PoissonSampling, calibrate
from dpjax.bayes.regression import (
    PerturbedStatistics,
    RegressionDraws,
    RegressionStatistics,
    noise_aware_posterior,
)
from dpjax.federated import Parties
from dpjax.federated.processes import read_study
from dpjax.mechanisms import SubsampledGaussian
from experiments.bayes.wine_fits import Records, scale_records
from experiments.data import load_data
from experiments.federated import hospitals
from experiments.federated.loopback import Limits, finish, start_all, write_study

_EPSILON, _DELTA, _NUM_ROUNDS = 1.0, 1e-4, 50
_REGRESSION = Parties(num_holders=10, num_nodes=3, num_dropouts=1)
_TRAINING = Parties(num_holders=3, num_nodes=2)
_LIMITS = Limits(waiting_time=200.0, time_limit=300.0)
_STATISTICS_TABLE = """
[plan.mechanism]
type = "dpjax.bayes.regression.PerturbedStatistics"
num_features = {mechanism.num_features}
noise_distribution = "{mechanism.noise_distribution}"
adjacency = "{mechanism.adjacency}"
unit = "{mechanism.unit}"
[plan.mechanism.bounds]
type = "dpjax.bayes.regression.RegressionBounds"
x_norm_bound = {mechanism.bounds.x_norm_bound}
y_bound = {mechanism.bounds.y_bound}
[plan.mechanism.scales]
type = "dpjax.bayes.regression.RegressionStatistics"
xtx = {mechanism.scales.xtx}
xty = {mechanism.scales.xty}
yty = {mechanism.scales.yty}
"""
_STEPS_TABLE = """
[plan.mechanism]
type = "dpjax.federated.ClippedGradientSum"
num_parameters = {num_parameters}
[plan.mechanism.mechanism]
type = "dpjax.mechanisms.SubsampledGaussian"
size_scaled = true
l2_clip = {mechanism.l2_clip}
noise_multiplier = {mechanism.noise_multiplier}
num_steps = {mechanism.num_steps}
adjacency = "{mechanism.adjacency}"
unit = "{mechanism.unit}"
[plan.mechanism.mechanism.sampling]
type = "dpjax.PoissonSampling"
num_examples = {mechanism.sampling.num_examples}
sampling_rate = {mechanism.sampling.sampling_rate}
"""


def main() -> int:
    """Runs both studies, and prints certificates and posteriors.

    Returns:
      The exit status: 0, or 1 if one of them has no result.
    """
    begin = time.monotonic()
    data = load_data("wine", stand_in=True)
    records = scale_records(data)
    names = ("constant", *data.feature_names)
    print(f"{len(records.y)} records: {data.name}")
    ok = run_regression(records, names) and run_training(records, names)
    print(f"\n{time.monotonic() - begin:.0f} s in all")
    return 0 if ok else 1


def run_regression(records: Records, names: Sequence[str]) -> bool:
    """Releases the statistics of a regression, and returns whether there is a result."""
    mechanism = PerturbedStatistics.from_epsilon(
        records.bounds,
        epsilon=_EPSILON,
        delta=_DELTA,
        adjacency="zero_out",
        num_features=records.x.shape[1],
        unit="one record",
    )
    print(f"\nLinear regression, {_REGRESSION.num_holders} holders", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = _STATISTICS_TABLE.format(mechanism=mechanism)
        parts = split_records(records, _REGRESSION.num_holders)
        write_study(folder, table, _REGRESSION, parts, delta=_DELTA, limits=_LIMITS)
        if not run_parties(folder, _REGRESSION):
            return False
        draws = draw_posterior(folder, len(records.y))
    print("\nPosterior in half widths of the public ranges, the noise of the release included:")
    beta = np.asarray(draws.beta)
    print_coefficients(names, beta.mean(axis=0), beta.std(axis=0))
    return True


def run_training(records: Records, names: Sequence[str]) -> bool:
    """Fits a logistic regression by DPSVI, and returns whether there is a result."""
    num_parameters = 2 * hospitals.NUM_FEATURES  # locations and scales of the guide
    columns = [0, *range(len(names) - hospitals.NUM_FEATURES + 1, len(names))]
    mechanism = calibrate(
        SubsampledGaussian(
            PoissonSampling(len(records.y), 0.1),
            l2_clip=1.0,
            noise_multiplier=1.0,
            num_steps=_NUM_ROUNDS,
            adjacency="zero_out",
            size_scaled=True,
        ),
        epsilon=_EPSILON,
        delta=_DELTA,
    )
    print(
        f"\nVariational inference, {_TRAINING.num_holders} holders, {_NUM_ROUNDS} rounds",
        flush=True,
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        table = _STEPS_TABLE.format(mechanism=mechanism, num_parameters=num_parameters)
        parts = [
            {"x": own["x"][:, columns].astype(np.float32), "y": (own["y"] > 0).astype(np.float32)}
            for own in split_records(records, _TRAINING.num_holders)
        ]
        program = Path(hospitals.__file__)
        write_study(folder, table, _TRAINING, parts, delta=_DELTA, limits=_LIMITS, program=program)
        if not run_parties(folder, _TRAINING):
            return False
        with np.load(folder / "released.npz") as file:
            location, scale = file["location"], file["scale"]
    print("\nGuide of the logistic regression of a target above the middle of its range:")
    print_coefficients([names[column] for column in columns], location, scale)
    return True


def split_records(records: Records, num_holders: int) -> list[dict[str, np.ndarray]]:
    """Returns the records of each holder, a random part of all."""
    order = np.random.default_rng(0).permutation(len(records.y))
    parts = np.array_split(order, num_holders)
    return [{"x": np.asarray(records.x)[own], "y": np.asarray(records.y)[own]} for own in parts]


def run_parties(folder: Path, parties: Parties) -> bool:
    """Runs all parties, prints what they print, and returns whether the analyst has a result."""
    outcomes = finish(start_all(folder, parties, progress=True), timeout=330)
    for party, (status, output) in outcomes.items():
        lines = output.strip() if party == "analyst" else ", ".join(output.splitlines())
        print(f"{party}: {lines} (exit status {status})")
    return outcomes["analyst"][0] == 0


def draw_posterior(folder: Path, num_examples: int) -> RegressionDraws:
    """Returns draws from the noise-aware posterior given what the analyst has released."""
    with np.load(folder / "released.npz") as file:
        released = RegressionStatistics(file["xtx"], file["xty"], file["yty"])
        mechanism = read_study(folder / "study.toml").plan.mechanism_for(len(file["holders"]))
    assert isinstance(mechanism, PerturbedStatistics)
    return noise_aware_posterior(
        jax.random.key(0),
        mechanism,
        released,
        num_examples=num_examples,
        prior_precision=1.0,
        noise_shape=1.0,
        noise_rate=0.1,
        num_draws=500,
        num_warmup=250,
        num_chains=2,
    )


def print_coefficients(names: Sequence[str], means: np.ndarray, deviations: np.ndarray) -> None:
    """Prints a line for each coefficient."""
    for feature, mean, deviation in zip(names, means, deviations, strict=True):
        print(f"{mean:+8.3f} ± {deviation:.3f}  {feature}")


if __name__ == "__main__":
    sys.exit(main())
