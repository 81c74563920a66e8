"""The differencing attack of the course notes: exact answers on parallel databases, and noisy ones.

``python -m experiments run course_differencing``: seconds, the same in both profiles.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from matplotlib.figure import Figure

import dpjax
from dpjax.sensitivity import (
    Sensitivity,
    empirical_sensitivity,
    of_count,
    of_mean,
    of_sum,
    parallel_databases,
)
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_ENTRIES, _EPSILON, _SEED = 5_000, 0.5, 0
EMPIRICAL, TRUE = "sensitivity, empirical", "sensitivity, true"
EXACT, NOISY = "rows recovered, exact %", "rows recovered, noisy %"


class Query(NamedTuple):
    """A query on a database of bits, and what two of its answers say of a row.

    Attributes:
      answer: from the entries to a number.
      sensitivity: from the number of entries to that of the answer; one entry is replaced.
      recover: from the answers with and without a row, and the number of entries, to its value.
    """

    answer: Callable[[jax.Array], jax.Array]
    sensitivity: Callable[[int], Sensitivity]
    recover: Callable[[Any, Any, int], Any]


def queries(entries: jax.Array) -> dict[str, Query]:
    """The queries of the notes, and a threshold that no single entry moves.

    The threshold that an attacker chooses is one below the number of ones.
    """
    edge = int(entries.sum()) - 1
    return {
        "sum": Query(jnp.sum, _of_sum, _difference),
        "mean": Query(jnp.mean, _of_mean, _scaled_difference),
        "threshold, at the edge": _threshold(edge),
        "threshold, far off": _threshold(len(entries) // 4),
    }


def _threshold(level: int) -> Query:
    return Query(lambda x: jnp.sum(x) > level, _of_answer, _difference)


def _of_sum(entries: int) -> Sensitivity:
    return of_sum((0, 1), norm="l1", adjacency="replace_one")


def _of_mean(entries: int) -> Sensitivity:
    return of_mean((0, 1), entries, norm="l1", adjacency="replace_one")


def _of_answer(entries: int) -> Sensitivity:
    return of_count(norm="l1", adjacency="replace_one")


def _difference(with_row: Any, without: Any, entries: int) -> Any:
    return with_row - without


def _scaled_difference(with_row: Any, without: Any, entries: int) -> Any:
    return entries * with_row - (entries - 1) * without


def database(entries: int, seed: int) -> jax.Array:
    """Fair bits."""
    return jax.random.bernoulli(jax.random.key(seed), 0.5, (entries,))


def answers(query: Query, entries: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The exact answers on the database, once for each entry, and on its parallel databases."""
    whole = jnp.asarray(query.answer(entries), float)
    parts = jax.vmap(query.answer)(parallel_databases(entries)).astype(float)
    return jnp.broadcast_to(whole, parts.shape), parts


def mechanisms(query: Query, entries: int, epsilon: float) -> tuple[dpjax.Laplace, dpjax.Laplace]:
    """Laplace noise for an answer on all entries, and for one on all but one."""
    whole, part = (
        dpjax.Laplace.from_epsilon(query.sensitivity(n), epsilon=epsilon, unit="one entry")
        for n in (entries, entries - 1)
    )
    return whole, part


def share_recovered(query: Query, pair: Sequence[jax.Array], entries: jax.Array) -> float:
    """The share of entries, in %, that a pair of answers for each gives away."""
    guesses = query.recover(pair[0], pair[1], len(entries)) > 0.5
    return 100 * float(jnp.mean(guesses == entries))


def _rows(profile: str) -> list[Row]:
    settings = {"entries": _ENTRIES, "epsilon": _EPSILON, "seed": _SEED}
    names = queries(jnp.ones(1, bool))
    return [Row(name, {**settings, "noise_seed": n}, {}) for n, name in enumerate(names, 1)]


def _run_row(row: Row, context: RowContext) -> Result:
    entries = database(row.settings["entries"], row.settings["seed"])
    query, epsilon = queries(entries)[row.name], row.settings["epsilon"]
    pair = answers(query, entries)
    used = mechanisms(query, len(entries), epsilon)
    keys = jax.random.split(jax.random.key(row.settings["noise_seed"]), 2)
    noisy = [m.release(key, exact) for m, key, exact in zip(used, keys, pair, strict=True)]
    seen = empirical_sensitivity(query.answer, entries, norm="l1")
    return Result(
        measured={
            EMPIRICAL: seen.value,
            EXACT: share_recovered(query, pair, entries),
            NOISY: share_recovered(query, noisy, entries),
        },
        certified={
            TRUE: used[0].sensitivity.value,
            "ε, one answer": used[0].pure_epsilon,
            "ε, both answers": sum(mechanism.pure_epsilon for mechanism in used),
            # the row attacked is in one of the two answers, and half of the bits are ones
            NOISY: 100 / (1 + math.exp(-used[0].pure_epsilon)),
        },
        certificate=str(dpjax.Composition(used).certificate(1e-6)),
    )


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    places, names = np.arange(len(records)), [r.row.replace(", ", "\n") for r in records]
    left.bar(places - 0.2, [r.measured[EMPIRICAL] for r in records], 0.38, label="empirical")
    certified = [record.certified[TRUE] for record in records]
    left.bar(places + 0.2, certified, 0.38, color=CERTIFIED, label="true")
    left.set(yscale="log", ylim=(1e-5, 30), ylabel="sensitivity")
    right.bar(places - 0.2, [r.measured[EXACT] for r in records], 0.38, color=PALETTE[1])
    right.bar(places + 0.2, [r.measured[NOISY] for r in records], 0.38, color=MEASURED)
    bound = records[0].certified[NOISY]
    right.axhline(bound, color=CERTIFIED, linestyle="--")
    right.axhline(50, color="black", linewidth=1)
    right.set(ylim=(40, 130), ylabel="rows recovered (%)")
    right.set_yticks(range(40, 101, 20))
    right.legend(["the most at ε = 0.5", "guessing", "exact answers", "noisy answers"], ncols=2)
    left.legend()
    for axes in (left, right):
        axes.set_xticks(places, names)
    return {"attack": (figure, _CAPTION)}


_CAPTION = (
    "Left: how far deleting one of these entries moves an answer, at most, and how far replacing"
    " one entry of any database can. A threshold that is far off does not move at all here, and"
    " noise set by that would be none. Right: entries recovered from answers with and without them."
)


def _remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    remarks = []
    if {"sum", "mean"} <= rows.keys():
        ratio = rows["sum"].measured[EMPIRICAL] / rows["mean"].measured[EMPIRICAL]
        remarks.append(
            f"The mean's empirical sensitivity is below the sum's, by a factor of {ratio:,.0f}; so"
            " is its noise, but the attack multiplies that again."
        )
    idle = [r.row for r in records if r.measured[EMPIRICAL] < 0.99 * r.certified[TRUE]]
    if idle:
        remarks.append(
            "The empirical sensitivity is a lower bound on the true one, and below it here for"
            f" {' and for '.join(idle)}: no mechanism takes it."
        )
    return remarks


EXPERIMENT = Experiment(
    name="course_differencing",
    title="The differencing attack on a sum, a mean and a threshold",
    source="Course notes on differential privacy (nowave.it, 2021), sensitivity and attack",
    description=(
        "A database of 5,000 fair bits and its parallel databases, each without one entry. The"
        " attack reads a query's answers with and without an entry and infers it. Noisy answers"
        " have Laplace noise of ε = 0.5 each, for the true sensitivity to replacing an entry."
        " Both together cost 2ε, since all entries but one are in both.\n\n"
        "A threshold query says whether there are more ones than a number: at the edge that is"
        " one below their number, as in the notes; far off no deletion changes the answer, and the"
        " difference gives nothing away."
    ),
    rows=_rows,
    run_row=_run_row,
    figures=_figures,
    remarks=_remarks,
)
