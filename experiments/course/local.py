"""Local and global differential privacy: randomized response and the Laplace mechanism.

``python -m experiments run course_local``: seconds, the same in both profiles.
"""

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import dpjax
from experiments.lib.figures import PALETTE, new_figure
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import Comparison

SHARE = 0.3
_REPEATS = 1_000
_SIZES = (100, 1_000, 10_000)
_EPSILONS = {"0.5": 0.5, "log 3": math.log(3), "3": 3.0}
LOCAL, GLOBAL = "local, error", "global, error"
_CLOSED = "closed form, "


def local_mechanism(epsilon: float) -> dpjax.RandomizedResponse:
    """Returns randomized response; at ε = log 3 it is the two-coin protocol of the notes.

    >>> round(local_mechanism(math.log(3)).keep_probability, 9)
    0.5
    """
    return dpjax.RandomizedResponse.from_epsilon(
        2, epsilon=epsilon, adjacency="replace_one", unit="one answer"
    )


def global_mechanism(epsilon: float, answers: int) -> dpjax.Laplace:
    """Returns the Laplace mechanism of the mean of all answers."""
    sensitivity = dpjax.sensitivity.of_mean((0, 1), answers, norm="l1", adjacency="replace_one")
    return dpjax.Laplace.from_epsilon(sensitivity, epsilon=epsilon, unit="one answer")


def local_error(epsilon: float, answers: int) -> float:
    """Returns the standard deviation of the debiased share due to randomization.

    >>> round(local_error(math.log(3), 100), 4)
    0.0866
    """
    keep = local_mechanism(epsilon).keep_probability
    # Both values have randomized answers of variance (1 - keep**2) / 4.
    return math.sqrt((1 - keep**2) / 4 / answers) / keep


def estimates(
    epsilon: float, answers: jax.Array, repeats: int, seed: int
) -> tuple[np.ndarray, ...]:
    """Returns repeated estimates of the share of yes, locally and globally."""
    local, together = local_mechanism(epsilon), global_mechanism(epsilon, len(answers))

    def both(key: jax.Array) -> tuple[jax.Array, jax.Array]:
        local_key, global_key = jax.random.split(key)
        debiased = local.frequencies(local.release(local_key, answers)).estimate[1]
        return debiased, together.release(global_key, jnp.mean(answers.astype(float)))

    keys = jax.random.split(jax.random.key(seed), repeats)
    found = jax.jit(jax.vmap(both))(keys)
    return tuple(np.asarray(each) for each in found)


def rows(profile: str) -> list[Row]:
    rows = []
    for seed, (name, size) in enumerate(itertools.product(_EPSILONS, _SIZES)):
        settings = {"epsilon": _EPSILONS[name], "answers": size, "repeats": _REPEATS, "seed": seed}
        rows.append(Row(f"ε = {name}, n = {size:,}", settings, {}))
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    epsilon, size = row.settings["epsilon"], row.settings["answers"]
    answers = jnp.arange(size) < round(SHARE * size)
    found = estimates(epsilon, answers, row.settings["repeats"], row.settings["seed"])
    local, together = (float(np.sqrt(np.mean((each - SHARE) ** 2))) for each in found)
    laplace = global_mechanism(epsilon, size)
    return Result(
        measured={
            LOCAL: local,
            GLOBAL: together,
            "local over global": local / together,
            _CLOSED + LOCAL: local_error(epsilon, size),
            _CLOSED + GLOBAL: laplace.standard_deviation,
        },
        certified={
            "ε, local": local_mechanism(epsilon).pure_epsilon,
            "ε, global": laplace.pure_epsilon,
        },
        note="Errors are root mean squares, of the share of yes among those who answered.",
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    figure, (axes,) = new_figure(width=7.2, height=4.4)
    epsilons = sorted({record.settings["epsilon"] for record in records})
    for epsilon, colour in zip(epsilons, PALETTE, strict=False):
        some = [record for record in records if record.settings["epsilon"] == epsilon]
        sizes = [record.settings["answers"] for record in some]
        for name, marker, line in ((LOCAL, "o", "-"), (GLOBAL, "s", "--")):
            label = f"{name.split(',')[0]}, ε = {epsilon:.3g}"
            axes.plot(sizes, [r.measured[name] for r in some], marker, color=colour, label=label)
            axes.plot(sizes, [r.measured[_CLOSED + name] for r in some], line, color=colour)
    axes.set(xscale="log", yscale="log", xlabel="answers", ylabel="error of the share of yes")
    figure.legend(loc="outside right center")
    return {"errors": figure}


def finding(records: Sequence[Record]) -> Finding:
    pairs = [
        (record.measured[name], record.measured[_CLOSED + name])
        for record in records
        for name in (LOCAL, GLOBAL)
    ]
    ratios = [record.measured["local over global"] for record in records]
    comparison = Comparison("errors in closed form", tuple(pairs), 10.0, "%")
    return comparison.finding(
        f"the local error is {min(ratios):.1f} to {max(ratios):.0f} times the global one"
    )
