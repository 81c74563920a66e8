"""Step sizes of private SGLD, Li et al. (2017): claimed and certified ε.

``python -m experiments run sgmcmc_bounds``: accounting alone, half a minute in both profiles. The
claim is ε = 0.1; expect 36.2, 3.5, 2.35 and 2.29 for batches of 100, 256, 1,000 and 5,000.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax import PoissonSampling
from dpjax.accounting import epsilon as certified_epsilon
from dpjax.bayes.sgmcmc import (
    POSTERIOR_TEMPERATURE,
    PUBLISHED_TEMPERATURE,
    SGLD,
    calibrate_step_size,
)
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE
from experiments.lib.formatting import format_value
from experiments.lib.plots import legend_below, panel_grid
from experiments.lib.registry import (
    DETERMINISTIC,
    Finding,
    Record,
    Result,
    Row,
    RowContext,
)
from experiments.lib.sweeps import column
from experiments.lib.verdicts import Comparison, format_upper_bound, group_by
from experiments.published.langevin import step_size_bound_2015, step_size_bound_2017

SETTING: dict[str, Any] = {"num_examples": 50_000, "num_steps": 10_000, "l2_clip": 4.0}
DELTA = 1e-5
BATCHES = (100, 256, 1_000, 5_000)
EPSILONS = (0.1, 0.5, 1.0, 2.0)
CLAIMED, CLAIMED_STEP, PRINTED_BOUND, PRINTED_2015 = 0.1, 0.1, 0.106, 1.54e-6
# Chosen so that the source's formula gives the printed 0.106 at t = 1.
CONSTANT = 0.235
_BATCH, _CHAINS, _NUM_PIECES = 1_000, 8, 30
PRINTED, TEMPERATURE_ONE = "ε, noise as printed", "ε, temperature 1"
CERTIFIED_STEP, FIRST_STEP = "certified η, batch {:,}", "first η of t^(−1/3)"
BY_SLIDES, BY_2015 = "η, slides' formula", "η, 2015 formula"


def make_sgld(batch: int, step_size: Any, temperature: float, **chains: Any) -> SGLD:
    """Returns SGLD in the source's MNIST setting."""
    sampling = PoissonSampling(SETTING["num_examples"], batch / SETTING["num_examples"])
    return SGLD(
        sampling,
        l2_clip=SETTING["l2_clip"],
        step_size=step_size,
        num_steps=SETTING["num_steps"],
        adjacency="zero_out",
        temperature=temperature,
        unit="one image",
        **chains,
    )


def stepwise_schedule(first: float) -> tuple[float, ...]:
    """Returns piecewise constant step sizes, at most 11 % above ``first * t^(-1/3)``.

    Larger steps have less noise, so their ε is an upper bound for the smooth schedule, and only
    thirty different steps are composed.

    >>> schedule = stepwise_schedule(0.1)
    >>> [round(size, 4) for size in (*schedule[:2], schedule[-1])]
    [0.1, 0.0794, 0.0051]
    """
    num_steps = SETTING["num_steps"]
    numbers = np.arange(1, num_steps + 1)
    edges = np.unique(np.geomspace(1, num_steps + 1, _NUM_PIECES + 1).astype(int))
    first_of_piece = edges[np.searchsorted(edges, numbers, side="right") - 1]
    return tuple((first * first_of_piece ** (-1 / 3)).tolist())


def rows(profile: str) -> list[Row]:
    claims = [
        Row(
            f"η = {size:g}{words}, batches of {batch:,}",
            {"part": "claim", "schedule": schedule, "first step": size, "batch": batch},
            {"claimed ε": CLAIMED},
        )
        for schedule, size, words in (
            ("constant", CLAIMED_STEP, ""),
            ("decreasing", PRINTED_BOUND, " t^(−1/3)"),
        )
        for batch in BATCHES
    ]
    chains = [
        Row(
            f"{_CHAINS} chains, {words} of {_BATCH:,}, η = {CLAIMED_STEP:g}",
            {"part": "chains", "batch": _BATCH, "chains": _CHAINS, "batches": batches},
            {},
        )
        for batches, words in (("own", "batches of their own"), ("shared", "shared batches"))
    ]
    printed = {"printed η": PRINTED_BOUND, "printed η, 2015": PRINTED_2015}
    steps = [
        Row(
            f"steps for ε = {epsilon:g}",
            {"part": "steps", "epsilon": epsilon},
            printed if epsilon == CLAIMED else {},
        )
        for epsilon in EPSILONS
    ]
    return [*claims, *chains, *steps]


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    if settings["part"] == "steps":
        return _run_steps(settings["epsilon"])
    batch = settings["batch"]
    if settings["part"] == "chains":
        chains = {"num_chains": settings["chains"], "batches": settings["batches"]}
        return Result({}, _both_epsilons(batch, CLAIMED_STEP, **chains))
    first = settings["first step"]
    if settings["schedule"] == "decreasing":
        note = f"t^(−1/3) is certified by {_NUM_PIECES} constant pieces above it."
        return Result({}, _both_epsilons(batch, stepwise_schedule(first)), note)
    shown = make_sgld(batch, first, PUBLISHED_TEMPERATURE) if batch == _BATCH else None
    text = str(shown.certificate(DELTA)) if shown else ""
    return Result({}, _both_epsilons(batch, first), certificate=text)


def _both_epsilons(batch: int, step_size: Any, **chains: Any) -> dict[str, float]:
    """Returns certified ε with the noise as printed, and at temperature 1."""
    temperatures = {PRINTED: PUBLISHED_TEMPERATURE, TEMPERATURE_ONE: POSTERIOR_TEMPERATURE}
    return {
        name: _epsilon(make_sgld(batch, step_size, temperature, **chains))
        for name, temperature in temperatures.items()
    }


def _epsilon(chain: SGLD) -> float:
    return certified_epsilon(chain.event, DELTA, adjacency=chain.adjacency)


def _run_steps(epsilon: float) -> Result:
    """Returns the largest certified step sizes at ε, and those of the two published formulas."""
    budget: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA}

    def largest(batch: int, step_size: Any) -> SGLD:
        chain = make_sgld(batch, step_size, POSTERIOR_TEMPERATURE)
        return calibrate_step_size(chain, **budget)

    found = {batch: largest(batch, CLAIMED_STEP) for batch in BATCHES}
    falling = largest(_BATCH, stepwise_schedule(CLAIMED_STEP))
    constant = {batch: float(chain.step_sizes[0]) for batch, chain in found.items()}
    first = float(falling.step_sizes[0])
    return Result(
        measured={
            BY_SLIDES: float(step_size_bound_2017(1, **budget, **SETTING, constant=CONSTANT)),
            BY_2015: step_size_bound_2015(**budget, **SETTING),
            **{CERTIFIED_STEP.format(batch): eta for batch, eta in constant.items()},
            FIRST_STEP: first,
        },
        certified={
            "ε, constant η": max(map(_epsilon, found.values())),
            "ε, t^(−1/3)": _epsilon(falling),
        },
        note="Certified steps are for temperature 1, and half as large for the noise as printed;"
        f" those of t^(−1/3) for batches of {_BATCH:,}.",
        series={"constant": [[b, eta] for b, eta in constant.items()], "decreasing": first},
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    steps = [record for record in records if record.settings["part"] == "steps"]
    if len(steps) < 2:
        return {}
    figure, panels = panel_grid(len(steps), 2, 9.6, 6.4)
    for axes, record in zip(panels, steps, strict=True):
        _draw_steps(axes, record)
    legend_below(figure, panels)
    return {"steps": figure}


def _draw_steps(axes: Axes, record: Record) -> None:
    numbers = np.geomspace(1, 10_000, 60)
    flat, falling = np.ones_like(numbers), numbers ** (-1 / 3)
    slides, oldest = record.measured[BY_SLIDES], record.measured[BY_2015]
    constant, first = dict(record.series["constant"])[_BATCH], record.series["decreasing"]
    for sizes, colour, style, words in (
        (slides * flat, PALETTE[1], "--", "slides, fixed"),
        (slides * falling, PALETTE[1], "-", "slides, t^(−1/3)"),
        (constant * flat, CERTIFIED, "-", "certified, constant"),
        (first * falling, MEASURED, "-", "certified, t^(−1/3)"),
        (oldest * flat, SOURCE, "-", "2015"),
    ):
        axes.plot(numbers, sizes, style, color=colour, label=words)
        if words.startswith("certified"):
            axes.plot(numbers, sizes / 2, ":", color=colour)
    axes.set(title=f"ε = {record.settings['epsilon']:g}", xlabel="step number t", ylabel="η")
    axes.set(xscale="log", yscale="log", ylim=(3e-8, 100))


def remarks(records: Sequence[Record]) -> list[str]:
    parts = group_by(records, "part")
    by_step: dict[str, list[Record]] = {}
    for record in parts.get("claim", []):
        by_step.setdefault(record.row.partition(",")[0], []).append(record)
    steps = [record for record in records if record.settings.get("epsilon") == CLAIMED]
    temperature = (
        "The noise as printed, of variance η/N, has temperature ½, for which the stationary"
        " distribution is the square of the posterior. Temperature 1 has noise 2η/N and a smaller"
        " ε."
    )
    return [
        *(_claim_remark(step, found) for step, found in by_step.items()),
        *([temperature] if by_step else []),
        *(remark for record in steps for remark in _step_remarks(record)),
        *([_chains_remark(parts["chains"])] if "chains" in parts else []),
    ]


def _claim_remark(step: str, records: Sequence[Record]) -> str:
    batches = ", ".join(f"{record.settings['batch']:,}" for record in records)
    printed, one = (
        ", ".join(map(format_upper_bound, column(records, name)))
        for name in (PRINTED, TEMPERATURE_ONE)
    )
    at_most = " at most" if records[0].settings["schedule"] == "decreasing" else ""
    least = min(record.certified[TEMPERATURE_ONE] for record in records)
    verdict = "is not certified" if least > CLAIMED else "is certified for some batch sizes"
    return (
        f"{step}: the claimed ε = {CLAIMED:g} {verdict}. The certified ε of all states is{at_most}"
        f" {printed} for batches of {batches} with the noise as printed, and {one} at temperature"
        " 1. It is the same if only the last state is released."
    )


def _step_remarks(record: Record) -> list[str]:
    # Half as large with the noise as printed.
    largest = [record.measured[CERTIFIED_STEP.format(batch)] / 2 for batch in BATCHES]
    formula = record.measured[BY_2015]
    at_one = step_size_bound_2015(epsilon=CLAIMED, delta=DELTA, **{**SETTING, "l2_clip": 1.0})
    return [
        f"The largest certified constant step size at ε = {CLAIMED:g} is {min(largest):.2g} to"
        f" {max(largest):.2g} with the noise as printed, depending on the batch size: the printed"
        f" {PRINTED_BOUND:g} is too large by a factor of at least"
        f" {PRINTED_BOUND / max(largest):.0f}. The 2015 formula is too small by a factor of at"
        f" least {min(largest) / formula:,.0f}.",
        f"The 2015 bound is printed as {format_value(PRINTED_2015)}; its formula gives"
        f" {formula:.2g} with L = 4, and {at_one:.3g} with L = 1.",
    ]


def _chains_remark(records: Sequence[Record]) -> str:
    found = [f"{r.row}: {format_upper_bound(r.certified[TEMPERATURE_ONE])}" for r in records]
    return f"ε grows with the number of chains. At temperature 1: {'; '.join(found)}."


def finding(records: Sequence[Record]) -> Finding:
    claims = [record for record in records if "claimed ε" in record.source]
    least = min((r.certified[TEMPERATURE_ONE] for r in claims), default=None)
    pairs = [
        (record.measured[BY_2015], record.source["printed η, 2015"])
        for record in records
        if "printed η, 2015" in record.source
    ]
    comparison = Comparison("published step sizes of the 2015 formula", tuple(pairs), 1.0, "%")
    if least is None:
        return comparison.finding()
    return comparison.finding(
        f"for the claimed ε = {CLAIMED:g} at least {format_upper_bound(least)} is certified, for"
        " every batch size",
        least > CLAIMED,
    )


TOLERANCE = DETERMINISTIC
