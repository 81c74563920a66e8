"""Differencing attack of the course notes on exact and noisy answers of parallel databases.

``python -m experiments run course_differencing``: seconds, the same in both profiles.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

import dpjax
from dpjax.sensitivity import (
    Sensitivity,
    empirical_sensitivity,
    of_count,
    of_mean,
    of_sum,
    parallel_databases,
)
from experiments.lib.attack_rates import release_many
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.verdicts import direction_finding

_ENTRIES, _EPSILON, _SEED = 5_000, 0.5, 0
EMPIRICAL, TRUE = "sensitivity, empirical", "sensitivity, true"
EXACT, NOISY = "rows recovered, exact %", "rows recovered, noisy %"
_NEIGHBOURS: dict[str, Any] = {"norm": "l1", "adjacency": "replace_one"}


class Query(NamedTuple):
    """A query on a database of bits, and the differencing attack on it."""

    answer: Callable[[jax.Array], jax.Array]  # from the entries to the answer
    # by number of entries, under replacement
    sensitivity: Callable[[int], Sensitivity]
    scaled: bool = False  # whether the answer is divided by the number of entries

    def recover(self, with_row: jax.Array, without: jax.Array, entries: int) -> jax.Array:
        """Returns the value of a row from the answers with and without it."""
        if self.scaled:
            return entries * with_row - (entries - 1) * without
        return with_row - without


def queries(entries: jax.Array) -> dict[str, Query]:
    """Returns the queries of the notes, and a threshold that no single entry changes."""

    def threshold(level: int) -> Query:
        return Query(lambda x: jnp.sum(x) > level, lambda _: of_count(**_NEIGHBOURS))

    return {
        "sum": Query(jnp.sum, lambda _: of_sum((0, 1), **_NEIGHBOURS)),
        "mean": Query(jnp.mean, lambda n: of_mean((0, 1), n, **_NEIGHBOURS), scaled=True),
        "threshold, at the edge": threshold(int(entries.sum()) - 1),
        "threshold, far off": threshold(len(entries) // 4),
    }


def database(entries: int, seed: int) -> jax.Array:
    """Draws fair random bits."""
    return jax.random.bernoulli(jax.random.key(seed), 0.5, (entries,))


def rows(profile: str) -> list[Row]:
    settings = {"entries": _ENTRIES, "epsilon": _EPSILON, "seed": _SEED}
    names = queries(jnp.ones(1, bool))
    return [Row(name, {**settings, "noise_seed": n}, {}) for n, name in enumerate(names, 1)]


def run_row(row: Row, context: RowContext) -> Result:
    entries = database(row.settings["entries"], row.settings["seed"])
    size, query = len(entries), queries(entries)[row.name]
    # Exact answers on the database and on its parallel databases.
    parts = jax.vmap(query.answer)(parallel_databases(entries)).astype(float)
    whole = jnp.broadcast_to(jnp.asarray(query.answer(entries), float), parts.shape)
    epsilon = row.settings["epsilon"]
    mechanisms = [
        dpjax.Laplace.from_epsilon(query.sensitivity(n), epsilon=epsilon, unit="one entry")
        for n in (size, size - 1)
    ]
    keys = jax.random.split(jax.random.key(row.settings["noise_seed"]), 2)
    released = zip(mechanisms, keys, (whole, parts), strict=True)
    noisy = [release_many(mechanism, key, exact) for mechanism, key, exact in released]

    def percent_recovered(with_row: jax.Array, without: jax.Array) -> float:
        guesses = query.recover(with_row, without, size) > 0.5
        return 100 * float(jnp.mean(guesses == entries))

    first = mechanisms[0]
    return Result(
        measured={
            EMPIRICAL: empirical_sensitivity(query.answer, entries, norm="l1").value,
            EXACT: percent_recovered(whole, parts),
            NOISY: percent_recovered(*noisy),
        },
        certified={
            TRUE: first.sensitivity.value,
            "ε, one answer": first.pure_epsilon,
            "ε, both answers": sum(mechanism.pure_epsilon for mechanism in mechanisms),
            # The target is in one of the two answers, and half of the bits are ones.
            NOISY: 100 / (1 + math.exp(-first.pure_epsilon)),
        },
        certificate=str(dpjax.Composition(tuple(mechanisms)).certificate(1e-6)),
    )


def remarks(records: Sequence[Record]) -> list[str]:
    rows = {record.row: record for record in records}
    remarks = []
    if {"sum", "mean"} <= rows.keys():
        ratio = rows["sum"].measured[EMPIRICAL] / rows["mean"].measured[EMPIRICAL]
        remarks.append(
            "The mean's empirical sensitivity and noise are smaller than the sum's by a factor of"
            f" {ratio:,.0f}, but the attack multiplies the noise by the number of entries."
        )
    idle = [r.row for r in records if r.measured[EMPIRICAL] < 0.99 * r.certified[TRUE]]
    if idle:
        remarks.append(
            "The empirical sensitivity is a lower bound on the true one, and strictly smaller for"
            f" {' and for '.join(idle)}; mechanisms use the true one."
        )
    return remarks


def finding(records: Sequence[Record]) -> Finding:
    exact = [r.measured[EXACT] for r in records if r.measured[EMPIRICAL] > 0]
    noisy = [r.measured[NOISY] for r in records]
    bound = max(record.certified[NOISY] for record in records)
    return direction_finding(
        [min(exact) == 100, max(noisy) <= bound] if exact else [],
        "From exact answers that depend on an entry the attack recovers"
        f" {min(exact, default=0):.0f} % of the entries, from noisy ones at most"
        f" {max(noisy):.1f} %, where {bound:.2f} % is the certified limit.",
    )
