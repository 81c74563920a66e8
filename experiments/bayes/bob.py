"""Private mean of a class, Honkela (2017), and a differencing attack on one student's weight.

``python -m experiments run bayes_bob``: seconds, the same in both profiles.
"""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

import dpjax
from experiments.lib.attack_rates import release_many
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import Comparison

WEIGHTS = (30.0, 60.0)  # kg, public bounds
MEAN_ERROR, ATTACK_ERROR = "mean, error kg", "attack, error kg"
_CLOSED = "closed form, "
# Epsilon, students, and the published mean absolute errors of the mean and of the attack.
_SLIDES = (
    (1.0, 25, 1.20, 45.04),
    (10.0, 25, 0.12, 4.49),
    (0.1, 25, 12.00, 447.56),
    (0.1, 250, 1.20, 450.60),
    (1.0, 250, 0.12, 45.18),
)


def mean_weight(epsilon: float, students: int) -> dpjax.Laplace:
    """Returns the Laplace mechanism of the mean weight of a class, under replacement."""
    sensitivity = dpjax.sensitivity.of_mean(WEIGHTS, students, norm="l1", adjacency="replace_one")
    return dpjax.Laplace.from_epsilon(sensitivity, epsilon=epsilon, unit="one student's weight")


def infer_weight(mean_with: Any, mean_without: Any, students: int) -> Any:
    """Returns Bob's weight from the means of the class with and without him.

    >>> infer_weight(46.0, 45.0, 25)
    70.0
    """
    return students * mean_with - (students - 1) * mean_without


def rows(profile: str) -> list[Row]:
    return [
        Row(
            f"ε = {epsilon:g}, N = {students}",
            {"epsilon": epsilon, "students": students, "repeats": 200_000, "seed": seed},
            {MEAN_ERROR: mean_error, ATTACK_ERROR: attack_error},
        )
        for seed, (epsilon, students, mean_error, attack_error) in enumerate(_SLIDES)
    ]


def run_row(row: Row, context: RowContext) -> Result:
    epsilon, students = row.settings["epsilon"], row.settings["students"]
    repeats, seed = row.settings["repeats"], row.settings["seed"]
    means = mean_weight(epsilon, students), mean_weight(epsilon, students - 1)
    weights = np.random.default_rng(seed).uniform(*WEIGHTS, size=(students,))
    exact = weights.mean(), weights[1:].mean()
    # Independent releases of each mean, in float64.
    keys = jax.random.split(jax.random.key(seed))
    with_bob, without_bob = (
        release_many(mean, key, np.full(repeats, value))
        for mean, key, value in zip(means, keys, exact, strict=True)
    )
    attack_errors = np.abs(infer_weight(with_bob, without_bob, students) - weights[0])
    attack_on_exact = abs(infer_weight(*exact, students) - weights[0])
    return Result(
        measured={
            MEAN_ERROR: np.abs(with_bob - exact[0]).mean(),
            ATTACK_ERROR: attack_errors.mean(),
            _CLOSED + MEAN_ERROR: means[0].scale,
            # E|X - Y| of two Laplace variables is 1.5 times their scale
            _CLOSED + ATTACK_ERROR: 1.5 * (WEIGHTS[1] - WEIGHTS[0]) / epsilon,
            "attack on exact means, error kg": round(attack_on_exact, 6),
        },
        certified={
            "ε, one mean": means[0].pure_epsilon,
            "ε, both means": sum(mean.pure_epsilon for mean in means),
        },
        note="Simulated weights, uniform between 30 and 60 kg; the slides' are not published.",
        series={"attack errors": np.quantile(attack_errors, np.linspace(0.05, 0.95, 19))},
        certificate=str(dpjax.Composition(means).certificate(1e-6)),
    )


def finding(records: Sequence[Record]) -> Finding:
    pairs = [
        (record.measured[name], record.source[name])
        for record in records
        for name in (MEAN_ERROR, ATTACK_ERROR)
    ]
    more = all(record.certified["ε, both means"] > record.settings["epsilon"] for record in records)
    comparison = Comparison("published errors", tuple(pairs), 1.0, "%")
    return comparison.finding("both means together cost 2ε, not the slides' ε", more)
