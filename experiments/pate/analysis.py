"""The published ε of Papernot et al. (2017, 2018) from the released votes, and beside them bounds.

``python -m experiments run pate_analysis``: half a minute, the same in both profiles; nothing is
trained. For votes of another data set see ``python -m experiments.pate --help``.
"""

import dataclasses
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import log_ndtr

from dpjax import pate
from experiments.lib.figures import PALETTE, new_figure
from experiments.lib.plots import (
    draw_by_row,
    draw_curve,
    draw_nonempty,
    legend_below,
    set_log_ticks,
)
from experiments.lib.registry import DETERMINISTIC, Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import grid, make_rows
from experiments.lib.verdicts import Comparison, format_upper_bound
from experiments.pate.accounts import (
    BOTH,
    EPSILON,
    FORMULA,
    PRIVATE,
    SANITIZED,
    compute_epsilons,
    load_votes,
    make_mechanism,
    sanitize,
    votes_path,
)
from experiments.published.pate import published_epsilon

COST, BY_FORMULA = "Rényi cost", "Rényi cost by the source's formula"
FORWARD, REVERSE = "bound over divergence", "bound over reverse divergence"


@dataclass(frozen=True)
class Claim:
    """A claim of a source, its check, and a clause on the result."""

    settings: Values
    source: Values
    check: Callable[..., Result]  # from the settings
    finding: Callable[[Record], str]


def check_claim(name: str, settings: Values) -> Result:
    """Returns the result of the claim's check."""
    return CLAIMS[name].check(**settings)


def _check_label(scale: float) -> Result:
    mechanism = pate.LNMax(
        scale=scale, num_teachers=250, num_classes=10, num_queries=1, adjacency="replace_one"
    )
    return Result({}, {EPSILON: mechanism.pure_epsilon_per_query})


def _check_gnss(order: float, beta: float, noise_scale: float) -> Result:
    claimed = published_gnss_rdp(order, beta, noise_scale)
    exact = pate.gnss_rdp(order, beta=beta, shift=1 / noise_scale)
    return Result({}, {COST: exact}, series={BY_FORMULA: claimed})


def published_gnss_rdp(order: float, beta: float, noise_scale: float) -> float:
    """Returns the Rényi cost of the smooth-sensitivity release by Theorem 23 of the source.

    >>> round(published_gnss_rdp(14.0, 0.0329, 6.23), 2)
    0.52
    """
    shift = order * math.exp(2 * beta) / noise_scale**2
    return shift + (beta * order - math.log(1 - 2 * order * beta) / 2) / (order - 1)


def _check_direction(scale: float, num_teachers: int, orders: list[float]) -> Result:
    forward, reverse = direction_ratios(scale, num_teachers, np.asarray(orders))
    return Result({REVERSE: reverse}, {}, series={FORWARD: forward})


def direction_ratios(
    scale: float, num_teachers: int, orders: npt.NDArray[np.float64]
) -> tuple[float, float]:
    """Returns the least ratios of Theorem 6's bound to the exact divergence, forward and reverse.

    Over all votes of two classes with a plurality, and both neighbours of each.
    """
    counts = np.arange(num_teachers // 2 + 1, num_teachers)
    votes = np.stack([counts, num_teachers - counts], axis=1)
    log_errors = pate.data_dependent.log_error_probability_gaussian(votes, scale)
    bounds = pate.data_dependent.gaussian_rdp(log_errors, orders, scale)

    def outcomes(shift: int) -> npt.NDArray[np.float64]:
        gaps = (2 * (counts + shift) - num_teachers) / (math.sqrt(2) * scale)
        return np.stack([log_ndtr(gaps), log_ndtr(-gaps)])[..., None]

    here = outcomes(0)
    forward: list[float] = []
    reverse: list[float] = []
    for shift in (-1, 1):
        there = outcomes(shift)
        for found, p, q in ((forward, here, there), (reverse, there, here)):
            # terms of at least zero, so that small divergences keep their digits
            terms = np.expm1(orders * (p - q)) - orders * np.expm1(p - q)
            exact = np.log1p(np.sum(np.exp(q) * terms, axis=0)) / (orders - 1)
            found.append(float(np.min(bounds / exact)))
    return min(forward), min(reverse)


CLAIMS = {
    "claim: ε of one label, 1/γ = 20": Claim(
        {"scale": 20.0},
        {EPSILON: 0.05},
        _check_label,
        lambda record: (
            f"one label is {format_upper_bound(record.certified[EPSILON])}-DP, where"
            f" {record.source[EPSILON]:g} is printed"
        ),
    ),
    "claim: Theorem 6 bounds the divergence": Claim(
        {"scale": 20.0, "num_teachers": 250, "orders": [float(order) for order in range(2, 65)]},
        {},
        _check_direction,
        lambda record: (
            f"at σ = {record.settings['scale']:g} Theorem 6 is as little as"
            f" {record.measured[REVERSE]:.2f} times the reverse divergence"
        ),
    ),
    "claim: Rényi cost of the smoothed release": Claim(
        {"order": 14.0, "beta": 0.0329, "noise_scale": 6.23},
        {COST: 0.52},
        _check_gnss,
        lambda record: (
            f"the smoothed release costs {format_upper_bound(record.certified[COST])}, where"
            f" {record.source[COST]:g} is claimed"
        ),
    ),
}


AS_PRINTED = f"{PRIVATE} as printed"
BLOCKS = "as printed, of each block of as many votes"
ANSWERS = "answers"
_PLURALITY, _BY_SHARE = "votes for the plurality", "epsilon"
# Of the simulated teachers in the table.
_TABLE_ACCURACY = 0.8
_ACCURACIES = (0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 0.99)

_MNIST = {"votes": "mnist", "num_teachers": 250, "num_classes": 10, "delta": 1e-5}
_SVHN = {"votes": "svhn", "num_teachers": 250, "num_classes": 10, "delta": 1e-6}
_ADULT = {"votes": "adult", "num_teachers": 250, "num_classes": 2, "delta": 1e-5}
# Release of the cost with smooth sensitivity, near the best for simulated votes.
_SANITIZED = {"sanitized": {"order": 6.0, "beta": 1 / 60, "noise_scale": 3.0}}
_SANITIZED_SVHN = {"sanitized": {"order": 4.0, "beta": 1 / 16, "noise_scale": 3.0}}
_GLYPH = {"votes": "glyph", "num_teachers": 5_000, "num_classes": 150, "delta": 1e-8}


def _laplace(num_queries: int, analysed_scale: float = 10.0) -> Values:
    """Settings of LNMax; ``analysed_scale`` is 1/γ of the printed ε, and not of the labels."""
    return {
        "aggregator": "LNMax",
        "num_queries": num_queries,
        "scale": 20.0,
        "analysed_scale": analysed_scale,
    }


def _confident(thresholds: Sequence[float], num_queries: int, max_answers: int) -> Values:
    """Settings of Confident-GNMax with T, σ1 and σ2."""
    return {
        "aggregator": "ConfidentGNMax",
        "num_queries": num_queries,
        "max_answers": max_answers,
        **dict(zip(("threshold", "check_scale", "scale"), thresholds, strict=True)),
    }


# By row: settings, and the published ε and number of answers.
_RELEASES: dict[str, tuple[Values, tuple[float, ...]]] = {
    "MNIST: LNMax, 100 queries": ({**_MNIST, **_laplace(100)}, (2.04,)),
    "MNIST: LNMax, 1,000 queries": ({**_MNIST, **_laplace(1_000)}, (8.03,)),
    "MNIST: Confident-GNMax": (
        {
            **_MNIST,
            **_confident((200.0, 150.0, 40.0), 640, 286),
            **_SANITIZED,
        },
        (1.97, 286),
    ),
    "SVHN: LNMax, 500 queries": ({**_SVHN, **_laplace(500)}, (5.04,)),
    "SVHN: LNMax, 1,000 queries": ({**_SVHN, **_laplace(1_000)}, (8.19,)),
    "SVHN: Confident-GNMax": (
        {
            **_SVHN,
            **_confident((300.0, 200.0, 40.0), 8_500, 3_098),
            **_SANITIZED_SVHN,
        },
        (4.96, 3_098),
    ),
    "Adult: LNMax, 500 queries": ({**_ADULT, **_laplace(500, 20.0)}, (2.66,)),
    "Adult: Confident-GNMax": (
        {
            **_ADULT,
            **_confident((300.0, 200.0, 40.0), 1_500, 524),
            **_SANITIZED,
        },
        (1.90, 524),
    ),
    "Glyph: Confident-GNMax": (
        {**_GLYPH, **_confident((1000.0, 500.0, 100.0), 12_000, 10_762)},
        (2.03, 10_762),
    ),
}
# Of the simulated votes: noise and queries of the first and the third row above.
_SIMULATED = {
    "LNMax": {"scale": 20.0, "num_queries": 100},
    "GNMax": {"scale": 40.0, "num_queries": 286},
}
_ENSEMBLES = (100, 150, 200, 250, 400)


def rows(profile: str) -> list[Row]:
    releases = [
        Row(name, settings, dict(zip((EPSILON, ANSWERS), printed, strict=False)))
        for name, (settings, printed) in _RELEASES.items()
    ]
    common = {"num_classes": 10, "delta": 1e-5, "accuracies": list(_ACCURACIES), "seed": 0}
    simulated = [
        {"aggregator": name, **_SIMULATED[name], **each}
        for name in _SIMULATED
        for each in grid(num_teachers=_ENSEMBLES)
    ]
    name = "simulated, {aggregator}, {num_teachers:,} teachers"
    claims = [Row(name, dict(claim.settings), claim.source) for name, claim in CLAIMS.items()]
    return [*releases, *make_rows(name, simulated, common), *claims]


def run_row(row: Row, context: RowContext) -> Result:
    if row.name in CLAIMS:
        return check_claim(row.name, row.settings)
    return _run_release(row) if "votes" in row.settings else _run_simulation(row)


def _run_release(row: Row) -> Result:
    settings = row.settings
    teachers, delta = settings["num_teachers"], settings["delta"]
    mechanism = make_mechanism(settings, num_teachers=teachers, num_classes=settings["num_classes"])
    path = votes_path(settings["votes"], teachers)
    if path is None:
        account = compute_epsilons(mechanism, delta)
        note = f"The votes on {settings['votes']} were not available: only ε of any votes."
        return Result({}, account.certified, note, certificate=account.certificate)
    votes, answered = load_votes(path), None
    queries = votes[: mechanism.num_queries]
    measured: dict[str, float] = {}
    if isinstance(mechanism, pate.ConfidentGNMax):
        answered = np.asarray(mechanism.release(jax.random.key(0), queries).answered)
        measured[ANSWERS] = int(answered.sum())
    account = compute_epsilons(mechanism, delta, queries, answered)
    analysed = dataclasses.replace(mechanism, scale=settings.get("analysed_scale", mechanism.scale))
    blocks = printed_epsilons(analysed, delta, votes)
    measured[AS_PRINTED] = blocks[0]
    certified = dict(account.certified)
    if isinstance(mechanism, pate.ConfidentGNMax) and "sanitized" in settings:
        chosen = {**settings["sanitized"], "failure_probability": delta / 10}
        certified[SANITIZED] = sanitize(mechanism, delta, queries, chosen)
    note = (
        f"Released votes on {settings['votes']}, in their order: the queries are the first"
        f" {mechanism.num_queries:,} of {len(votes):,}."
    )
    measured |= account.private
    return Result(measured, certified, note, {BLOCKS: blocks}, account.certificate)


def printed_epsilons(
    mechanism: pate.VoteAggregation, delta: float, votes: npt.NDArray[np.float64]
) -> list[float]:
    """Returns the source's data-dependent ε of every block of ``mechanism.num_queries`` votes."""
    size = mechanism.num_queries
    return [
        published_epsilon(mechanism, votes[start : start + size], delta)
        for start in range(0, len(votes) - size + 1, size)
    ]


def _run_simulation(row: Row) -> Result:
    settings = row.settings
    mechanism = make_mechanism(
        settings, num_teachers=settings["num_teachers"], num_classes=settings["num_classes"]
    )
    account = compute_epsilons(mechanism, settings["delta"])
    epsilons, shares = {}, []
    for accuracy in settings["accuracies"]:
        votes = simulate_votes(mechanism, accuracy, settings["seed"])
        with warnings.catch_warnings():
            # where all agree the best order is beyond those searched: ε is below 0.01
            warnings.filterwarnings("ignore", "the best order")
            private = pate.data_dependent_analyses(mechanism, votes, settings["delta"])
        both = next(each.value for each in private if each.kind == "bound")
        epsilons[accuracy] = min(both, account.certified[EPSILON])
        shares.append(float(np.mean(votes.max(axis=1) / mechanism.num_teachers)))
    return Result(
        {BOTH: epsilons[_TABLE_ACCURACY]},
        account.certified,
        "Simulated votes: every teacher is right with the same probability (in the table"
        f" {100 * _TABLE_ACCURACY:g} %), independently, and its errors are uniform over the other"
        " classes. The data-dependent ε is at most that of any votes.",
        {_PLURALITY: shares, _BY_SHARE: list(epsilons.values())},
    )


def simulate_votes(
    mechanism: pate.VoteAggregation, accuracy: float, seed: int
) -> npt.NDArray[np.int64]:
    """Returns votes of independent teachers who are right with probability ``accuracy``."""
    others = mechanism.num_classes - 1
    shares = [accuracy, *[(1 - accuracy) / others] * others]
    size = mechanism.num_queries
    return np.random.default_rng(seed).multinomial(mechanism.num_teachers, shares, size)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    releases = [record for record in records if record.row in _RELEASES]
    simulated = [record for record in records if _BY_SHARE in record.series]
    return draw_nonempty(
        releases=(_releases_figure, releases), agreement=(_agreement_figure, simulated)
    )


def _releases_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=4.6)
    epsilons = {
        "source": ("source", EPSILON),
        "recomputed, not publishable": ("measured", AS_PRINTED),
        "sanitized": ("certified", SANITIZED, PALETTE[4], "D"),
        "any votes": ("certified", EPSILON),
    }
    draw_by_row(axes, records, epsilons)
    set_log_ticks(axes, (1, 2, 5, 10, 20))
    legend_below(figure, [axes], ncols=4)
    return figure


def _agreement_figure(records: Sequence[Record]) -> Figure:
    figure, panels = new_figure(columns=2, width=9.6, height=4.2)
    for axes, (name, settings) in zip(panels, _SIMULATED.items(), strict=True):
        some = [record for record in records if record.settings["aggregator"] == name]
        _draw_agreement(axes, some)
        noise = "1/γ" if name == "LNMax" else "σ"
        axes.set_title(
            f"{name}, {noise} = {settings['scale']:g}, {settings['num_queries']} queries"
        )
    legend_below(figure, panels, ncols=6)
    return figure


def _draw_agreement(axes: Axes, records: Sequence[Record]) -> None:
    for record, colour in zip(records, PALETTE, strict=False):
        label = f"{record.settings['num_teachers']:,} teachers"
        draw_curve(
            axes, record.series[_PLURALITY], record.series[_BY_SHARE], color=colour, label=label
        )
    for record in records[:1]:
        axes.axhline(record.certified[EPSILON], color="black", label="any votes")
    axes.set(xlabel="votes for the plurality (share)", ylabel="ε at δ = 1e-5", ylim=(0, None))


def remarks(records: Sequence[Record]) -> list[str]:
    return [_release_remark(record) for record in records if AS_PRINTED in record.measured]


def _release_remark(record: Record) -> str:
    found, certified = record.measured, record.certified
    true_noise = ""
    if record.settings.get("analysed_scale") not in (None, record.settings["scale"]):
        true_noise = (
            f"; it is for γ = 0.1, and the labels have γ = 0.05, where the same formula gives"
            f" {found[FORMULA]:.2f}"
        )
    blocks = record.series[BLOCKS]
    of_blocks = ""
    if len(blocks) > 1:
        of_blocks = (
            f" (the {len(blocks)} disjoint blocks of as many votes: {min(blocks):.2f} to"
            f" {max(blocks):.2f}, median {np.median(blocks):.2f})"
        )
    sanitized = ""
    if SANITIZED in certified:
        sanitized = f", and the sanitized one is {format_upper_bound(certified[SANITIZED])}"
    return (
        f"{record.row}: ε = {record.source[EPSILON]:g} is printed, {found[AS_PRINTED]:.2f} is"
        f" recomputed{of_blocks}{true_noise}. It is a function of the private votes. For any votes"
        f" ε = {format_upper_bound(certified[EPSILON])} is certified{sanitized}."
    )


def finding(records: Sequence[Record]) -> Finding:
    known = [record for record in records if AS_PRINTED in record.measured]
    pairs = tuple((record.measured[AS_PRINTED], record.source[EPSILON]) for record in known)
    comparison = Comparison("published ε", pairs, 3.0, "%")
    low = sum(r.source[EPSILON] < r.certified[EPSILON] for r in records if r.row in _RELEASES)
    contradicted = [
        CLAIMS[record.row].finding(record) for record in records if record.row in CLAIMS
    ]
    clause = (
        f"{low} published ε are below the ε of any votes and depend on private votes"
        + "".join(f"; {each}" for each in contradicted)
    )
    return comparison.finding(clause, bool(contradicted))


def data() -> str:
    names = [
        name
        for name, teachers in (("mnist", 250), ("svhn", 250), ("adult", 250), ("glyph", 5_000))
        if votes_path(name, teachers)
    ]
    return f"votes on {', '.join(names)}" if names else "no votes"


TOLERANCE = DETERMINISTIC
