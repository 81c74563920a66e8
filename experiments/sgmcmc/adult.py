"""Bayesian logistic regression on Adult, Li et al. (2017): accuracy against ε by five methods.

``python -m experiments run sgmcmc_adult``: a minute; three epsilons and three runs of each (seven
and ten in the other profile). Expect 85 % at ε = 1 from all, and at ε = 0.1 between 77 and 84.6 %.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np
from matplotlib.figure import Figure

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import PUBLISHED_TEMPERATURE, SGLD
from experiments.data import Dataset, Split, load_data
from experiments.lib.figures import PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, draw_error_bars, legend_below, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column, grid, make_rows
from experiments.lib.verdicts import format_upper_bound, group_by, remarks_on_rows
from experiments.published.langevin import step_size_bound_2017
from experiments.sgmcmc.adult_methods import (
    DELTA,
    METHODS,
    NUM_STEPS,
    NUTS_STEPS,
    make_sgld,
    run_sgld,
)
from experiments.sgmcmc.bounds import CONSTANT

ACCURACY, ERROR, NLL = "test accuracy %", "two standard errors", "NLL"
LAST, TOTAL = "last sample alone %", "Σ η"
CLAIM, TARGET = "ε, slides' formula", "ε of an exact sample"
PLAIN, SOURCE_STEP = "SGLD, no privacy asked", "SGLD, the source's step"
_CHAIN = "DP-SGLD, ε = 1"
# Step size and temperature of the uncalibrated chains.
_GIVEN = {PLAIN: (1.0, 1.0), SOURCE_STEP: (0.1, PUBLISHED_TEMPERATURE)}
_EPSILONS = {"quick": (0.1, 0.3, 1.0), "paper": (0.05, 0.1, 0.2, 0.3, 0.5, 1.0, 2.0)}
_NUM_RUNS = {"quick": 3, "paper": 10}


@functools.cache
def data_set() -> Dataset:
    return load_data("adult")


def rows(profile: str) -> list[Row]:
    common = {"delta": DELTA, "num_steps": NUM_STEPS, "runs": _NUM_RUNS[profile]}
    given = [
        Row(name, {"method": name, "step": step, "temperature": temperature, **common}, {})
        for name, (step, temperature) in _GIVEN.items()
    ]
    calibrated = grid(method=METHODS, epsilon=_EPSILONS[profile])
    return [*given, *make_rows("{method}, ε = {epsilon:g}", calibrated, common)]


def run_row(row: Row, context: RowContext) -> Result:
    data, settings = data_set(), row.settings
    method, num_runs, key = settings["method"], settings["runs"], jax.random.key(0)
    if method in METHODS:
        runs = METHODS[method](data.train, settings["epsilon"], num_runs, key)
    else:
        chain = make_sgld(data.train, settings["step"], temperature=settings["temperature"])
        runs = run_sgld(data.train, chain, num_runs, key)
    mechanism = runs.mechanism
    epsilon = certified_epsilon(mechanism.event, DELTA, adjacency="zero_out")
    measured = scores(runs.weights, data.test)
    if isinstance(mechanism, SGLD):
        measured |= _claims(mechanism)
    note = (
        f"{data.note} Every ε is that of one run. Seeded keys: the noise is reproducible, so these"
        " runs are not private."
    )
    if not runs.is_exact:
        measured[TARGET] = epsilon
        note += (
            f" Each posterior sample is drawn by {NUTS_STEPS} steps of NUTS and is not exact, so"
            " the ε of an exact sample is not certified."
        )
    return Result(
        measured=measured,
        certified={"ε": epsilon} if runs.is_exact else {},
        note=note,
        certificate=str(mechanism.certificate(DELTA)) if row.name in (_CHAIN, SOURCE_STEP) else "",
    )


def scores(weights: Any, test: Split) -> dict[str, Any]:
    """Returns mean scores over runs, of averaged predictions and of the last sample.

    ``weights`` has shape ``(num_runs, num_kept, num_features)``, with at least two runs.

    >>> test = Split(np.array([[1.0], [-1.0]]), np.array([1, 1]))
    >>> found = scores(np.array([[[1.0], [3.0]], [[1.0], [3.0]]]), test)
    >>> found[ACCURACY], found[ERROR], round(found[NLL], 2)
    (50.0, 0.0, 1.01)
    """
    logits = np.asarray(weights, np.float64) @ np.asarray(test.x, np.float64).T
    each, is_one = 1 / (1 + np.exp(-logits)), np.asarray(test.y) == 1

    def accuracies(ones: np.ndarray) -> np.ndarray:
        return 100 * ((ones > 0.5) == is_one).mean(axis=1)

    averaged = each.mean(axis=1)
    of_labels = np.where(is_one, averaged, 1 - averaged)
    right = accuracies(averaged)
    found = {
        ACCURACY: float(right.mean()),
        ERROR: 2 * float(right.std(ddof=1)) / len(right) ** 0.5,
        NLL: -float(np.log(np.maximum(of_labels, 1e-12)).mean(axis=1).mean()),
    }
    if weights.shape[1] > 1:
        found[LAST] = float(accuracies(each[:, -1]).mean())
    return found


def _claims(chain: SGLD) -> dict[str, float]:
    """Returns the sum of a chain's step sizes, and its ε by the source's formula."""
    bound = step_size_bound_2017(
        1,
        epsilon=1.0,
        delta=DELTA,
        num_examples=chain.sampling.num_examples,
        num_steps=chain.num_steps,
        l2_clip=chain.l2_clip,
        constant=CONSTANT,
    )
    claim = float(np.sqrt(chain.step_sizes[0] / bound))
    return {TOTAL: float(chain.step_sizes.sum()), CLAIM: claim}


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if "epsilon" in record.settings]
    if not private:
        return {}
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.4)
    by_method = group_by(private, "method")
    for (method, group), colour in zip(by_method.items(), PALETTE, strict=False):
        at = [record.certified.get("ε", record.measured.get(TARGET)) for record in group]
        style = "-" if all("ε" in record.certified for record in group) else "--"
        heights, bars, losses = (column(group, name) for name in (ACCURACY, ERROR, NLL))
        draw_error_bars(left, at, heights, bars, color=colour, linestyle=style, label=method)
        draw_curve(right, at, losses, color=colour, linestyle=style)
    for axes, name in ((left, ACCURACY), (right, NLL)):
        for record in records:
            if record.row == PLAIN:
                axes.axhline(record.measured[name], color=SOURCE, linewidth=1)
        set_log_ticks(axes, sorted(group_by(private, "epsilon")))
    left.set(ylabel="test accuracy (%)")
    right.set(ylabel="negative log-likelihood")
    legend_below(figure, [left], ncols=5)
    return {"accuracy": figure}


def remarks(records: Sequence[Record]) -> list[str]:
    not_exact = (
        "OPS and the hybrid are plotted at the ε of an exact posterior sample. No exact sampler"
        " is known for this posterior, and the last state of a Markov chain has no such"
        " guarantee, so their accuracies are not those of certified runs."
    )
    return [
        *remarks_on_rows(records, _claim_remark, SOURCE_STEP),
        *remarks_on_rows(records, _last_remark, _CHAIN),
        *_compare_with_sgd(records),
        *([not_exact] if any(TARGET in record.measured for record in records) else []),
    ]


def _claim_remark(record: Record) -> str:
    return (
        f"SGLD with the source's step 0.1 and noise as printed: its formula (with c = {CONSTANT},"
        f" see sgmcmc_bounds) claims ε = {record.measured[CLAIM]:.2g}; certified is"
        f" {format_upper_bound(record.certified['ε'])}."
    )


def _last_remark(record: Record) -> str:
    return (
        f"{record.row}: accuracy {record.measured[ACCURACY]:.2f} % averaged over the chain,"
        f" {record.measured[LAST]:.2f} % with its last sample only. Both have the same certified"
        " ε, which covers all states."
    )


def _compare_with_sgd(records: Sequence[Record]) -> list[str]:
    """Compares DP-SGLD with DP-SGD at equal ε."""
    found = {(r.settings["method"], r.settings.get("epsilon")): r.measured for r in records}
    return [
        f"At ε = {epsilon:g} DP-SGLD has {found['DP-SGLD', epsilon][ACCURACY]:.1f} % (NLL"
        f" {found['DP-SGLD', epsilon][NLL]:.3f}) and DP-SGD {sgd[ACCURACY]:.1f} % (NLL"
        f" {sgd[NLL]:.3f}) at the same certified ε."
        for (method, epsilon), sgd in found.items()
        if method == "DP-SGD" and ("DP-SGLD", epsilon) in found
    ]


def finding(records: Sequence[Record]) -> Finding:
    known = {record.row: record for record in records}
    if SOURCE_STEP not in known:
        return Finding("not compared", "The source's step was not run.")
    chain = known[SOURCE_STEP]
    claimed, certified = chain.measured[CLAIM], chain.certified["ε"]
    return Finding(
        "claim contradicted" if claimed < certified else "not compared",
        "The accuracies of the source's figure are not printed; its step size claims ε ="
        f" {claimed:.2g}, where {format_upper_bound(certified)} is certified.",
    )
