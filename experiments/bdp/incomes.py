"""Section 3 of Triastcyn and Faltings (2020): an attack on a town's mean income with an outlier.

``python -m experiments run bdp_incomes``: seconds; the paper profile attacks ten times as often.
"""

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.optimize import brentq
from scipy.special import ndtri

import dpjax
from dpjax import bdp
from experiments.bdp.costs import FAILURE, epsilons, step_costs
from experiments.lib.attack_rates import clopper_pearson
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext
from experiments.lib.sweeps import percent
from experiments.lib.verdicts import group_by

Array = npt.NDArray[np.float64]

_RELEASES = {"quick": 100_000, "paper": 1_000_000}
# Equation 1 at these epsilons, as printed.
_PRINTED = {1.0: 73.0, 2.0: 88.0, 5.0: 99.3}
_ERROR = 5e-7
BOUND, OUTLIER, EXACT = "attack bound %", "outlier guessed %", "outlier guessed, exact %"
RESIDENTS, RESIDENTS_EXACT = "residents guessed %", "residents guessed, exact %"
BAYESIAN, WITH_OUTLIER = "Bayesian ε", "Bayesian ε, outlier among draws"
KNOWN = "Bayesian ε, incomes' law known"
NOISE_ERROR, CLIPPING_ERROR = "error of mean: noise", "error of mean: clipping"

NUM_RESIDENTS, OUTLIER_INCOME = 1_000, 1e7
_MEDIAN, _LOG_SPREAD, _SEED = 30_000.0, 0.6, 0
AT_OUTLIER, AT_PERCENTILE = "clipped at the outlier", "clipped at 99 %"
UNCLIPPED = "noise for 99 %, not clipped"
_COLOURS = {AT_OUTLIER: CERTIFIED, AT_PERCENTILE: MEASURED, UNCLIPPED: PALETTE[1]}
_ORDERS = tuple(int(order) for order in np.unique(np.geomspace(1, 1e6, 61).round()))
# Of the loss of one resident, and on average over release and resident: by Markov's inequality the
# second implies the first for all but their ratio of the population.
_DELTA, _DELTA_MU = 1e-5, 1e-10
_SHARES = np.geomspace(0.5, 1e-6, 30)
_SHOWN_INCOMES = np.geomspace(5e3, 2e7, 80)


@dataclass(frozen=True)
class Release:
    """A noisy sum of clipped incomes.

    Attributes:
      mechanism: adds the noise.
      clip: bound on an income; infinite for no clipping, and then the mechanism's own privacy
        statements do not hold.
    """

    mechanism: dpjax.Laplace
    clip: float

    @property
    def epsilon(self) -> float:
        """The DP ε of the release: the clip bound over the noise's scale."""
        return self.clip / self.mechanism.scale

    def shift(self, incomes: npt.ArrayLike) -> Array:
        """Returns each income's contribution to the sum, in scales of the noise."""
        return np.minimum(incomes, self.clip) / self.mechanism.scale


def make_release(way: str, epsilon: float) -> Release:
    """Returns the release of a row.

    >>> make_release(AT_OUTLIER, 1.0).epsilon
    1.0
    """
    bound = OUTLIER_INCOME if way == AT_OUTLIER else float(income_at(-math.log(0.01)))
    sensitivity = dpjax.sensitivity.of_sum((0.0, bound), norm="l1", adjacency="add_remove")
    mechanism = dpjax.Laplace.from_epsilon(sensitivity, epsilon=epsilon, unit="one resident")
    return Release(mechanism, math.inf if way == UNCLIPPED else bound)


def income_at(levels: npt.ArrayLike) -> Array:
    """Returns the income that a share exp(-level) of typical residents exceeds.

    >>> income_at([np.log(2)])
    array([30000.])
    """
    return _MEDIAN * np.exp(-_LOG_SPREAD * ndtri(np.exp(-np.asarray(levels, float))))


@functools.cache
def draw_incomes() -> Array:
    """Returns the incomes of the typical residents."""
    generator = np.random.default_rng(_SEED)
    return generator.lognormal(math.log(_MEDIAN), _LOG_SPREAD, NUM_RESIDENTS - 1)


def attack(release: Release, shifts: Array, seed: int) -> int:
    """Returns the number of right answers of the attacker, in as many releases as shifts.

    Every second release includes the attacked resident. The attacker subtracts the contributions of
    all others and takes the likelier of the two centres, 0 and the resident's shift.
    """
    noise = release.mechanism.release(jax.random.key(seed), np.zeros(len(shifts), np.float32))
    is_in = np.arange(len(shifts)) % 2 == 1
    seen = np.asarray(noise, np.float64) / release.mechanism.scale + shifts * is_in
    return int(((np.abs(seen - shifts) < np.abs(seen)) == is_in).sum())


def exact_accuracy(shifts: npt.ArrayLike) -> Array:
    """Returns the accuracy of that attack: 1 - exp(-shift / 2) / 2.

    >>> float(exact_accuracy(0.0))
    0.5
    """
    return 1 - np.exp(-np.asarray(shifts, float) / 2) / 2


def bayesian_epsilon(release: Release, incomes: Array, delta: float = _DELTA_MU) -> float:
    """Returns the Bayesian ε, with ``incomes`` as draws of a resident's."""
    worst = None
    if math.isfinite(release.clip):
        worst = bdp.laplace_log_moments(_ORDERS, release.epsilon, scale=1.0)
    moments = bdp.laplace_log_moments(_ORDERS, release.shift(incomes), scale=1.0)
    return float(epsilons(step_costs(moments, 1, worst=worst), delta, FAILURE, _ORDERS))


def exact_bayesian_epsilon(release: Release, delta: float = _DELTA_MU) -> float:
    """Returns the Bayesian ε by Definition 1, from the distribution of incomes: no moments.

    The loss is at most the shift s, and at least epsilon <= s with probability
    1 - exp(-(s - epsilon) / 2) / 2.
    """
    ends = np.linspace(0.0, 40.0, 40_001)
    shifts = release.shift(income_at((ends[1:] + ends[:-1]) / 2))
    masses = -np.diff(np.exp(-ends))

    def excess(epsilon: float) -> float:
        chances = np.where(shifts >= epsilon, exact_accuracy(shifts - epsilon), 0.0)
        return math.log(max(float(masses @ chances), 1e-300)) - math.log(delta)

    return float(brentq(excess, 0.0, 1.001 * float(shifts.max())))


def certificate(release: Release, incomes: Array) -> bdp.BDPCertificate:
    """Returns both guarantees of a clipped release, the Bayesian one from these incomes."""
    account = bdp.init(release.mechanism, orders=_ORDERS, failure_probability=FAILURE)
    worst = bdp.laplace_log_moments(_ORDERS, release.epsilon, scale=1.0)
    moments = bdp.laplace_log_moments(_ORDERS, release.shift(incomes), scale=1.0)
    account = bdp.update_from_log_moments(account, moments, log_moment_bound=worst)
    return bdp.certificate(account, _DELTA)


def _rows(profile: str) -> list[Row]:
    return [
        Row(
            f"{way}, ε = {epsilon:g}",
            {"way": way, "epsilon": epsilon, "releases": _RELEASES[profile], "seed": seed},
            {BOUND: printed} if way != UNCLIPPED else {},
        )
        for way in _COLOURS
        for seed, (epsilon, printed) in enumerate(_PRINTED.items())
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    release, incomes = make_release(row.settings["way"], row.settings["epsilon"]), draw_incomes()
    bayesian = bayesian_epsilon(release, incomes)
    lost = np.maximum(np.append(incomes, OUTLIER_INCOME) - release.clip, 0.0)
    return Result(
        measured={
            **_attack_rates(row, release, incomes),
            BAYESIAN: bayesian,
            "Bayesian attack bound %": percent(bdp.attack_success(bayesian)),
            WITH_OUTLIER: bayesian_epsilon(release, np.append(incomes, OUTLIER_INCOME)),
            KNOWN: exact_bayesian_epsilon(release),
            NOISE_ERROR: release.mechanism.scale / NUM_RESIDENTS,
            CLIPPING_ERROR: float(lost.sum()) / NUM_RESIDENTS,
        },
        certified={"DP ε": release.epsilon, BOUND: percent(bdp.attack_success(release.epsilon))},
        note=_NOTE,
        series={
            "incomes": _SHOWN_INCOMES,
            "accuracies": exact_accuracy(release.shift(_SHOWN_INCOMES)),
            "shares": _SHARES,
            "bayesian": [bayesian_epsilon(release, incomes, share * _DELTA) for share in _SHARES],
            "own": release.shift(income_at(-np.log(_SHARES))),
        },
        certificate="" if math.isinf(release.clip) else str(certificate(release, incomes)),
    )


_NOTE = (
    "Incomes are drawn: 999 residents' log-normal (median 30,000, log standard deviation 0.6) and"
    " one of 10,000,000. Attacks: shares of right answers, half of the releases with the attacked"
    " resident; seeded, so not private. Bayesian ε at δ_μ = 1e-10 (γ = 1e-15), which holds at"
    " δ = 1e-5 for 99.999 % of those whose income is drawn like the residents', and under Theorem"
    " 4's assumption: not for the outlier."
)


def _attack_rates(row: Row, release: Release, incomes: Array) -> dict[str, Any]:
    number, seed = row.settings["releases"], row.settings["seed"]
    outlier = release.shift(np.full(number, OUTLIER_INCOME))
    residents = release.shift(np.random.default_rng(seed).choice(incomes, number))
    outlier_right = attack(release, outlier, 2 * seed)
    residents_right = attack(release, residents, 2 * seed + 1)
    return {
        OUTLIER: 100 * outlier_right / number,
        f"{OUTLIER}, at least": 100 * clopper_pearson(outlier_right, number, _ERROR)[0],
        EXACT: percent(exact_accuracy(outlier[0])),
        RESIDENTS: 100 * residents_right / number,
        RESIDENTS_EXACT: percent(exact_accuracy(release.shift(incomes))),
    }


def _remarks(records: Sequence[Record]) -> list[str]:
    by_way = group_by(records, "way")
    hidden, cut, loose = (by_way.get(way, []) for way in _COLOURS)
    return [
        *([_bound_remark(hidden)] if hidden else []),
        *([_utility_remark(hidden[0], cut[0])] if hidden and cut else []),
        *([_outlier_remark(loose[0]), _percentile_remark(loose[0])] if loose else []),
    ]


def _bound_remark(records: Sequence[Record]) -> str:
    first = records[0]
    parts = [
        f"{record.measured[OUTLIER]:.1f} % at ε = {record.settings['epsilon']:g} (bound"
        f" {record.certified[BOUND]:.1f} %)"
        for record in records
    ]
    return (
        "Equation 1's bound is not attained by one mean: with the clip at the outlier's income, the"
        f" worst there is, the best attack on the outlier is right in {', '.join(parts)}. It is"
        " 1 − exp(−ε/2)/2 for Laplace noise; randomized response would attain the bound. The same"
        f" attack on other residents is right in {first.measured[RESIDENTS]:.1f} % at"
        f" ε = {first.settings['epsilon']:g}, hardly more than guessing."
    )


def _utility_remark(hidden: Record, cut: Record) -> str:
    mean = float(draw_incomes().sum() + OUTLIER_INCOME) / NUM_RESIDENTS
    return (
        f"What hides the outlier hides the mean of {mean:,.0f}: at ε ="
        f" {hidden.settings['epsilon']:g} the noise is {hidden.measured[NOISE_ERROR]:,.0f} in size"
        f" with the clip at the outlier. At the 99th percentile it is"
        f" {cut.measured[NOISE_ERROR]:,.0f}, and {cut.measured[CLIPPING_ERROR]:,.0f} are clipped"
        " away, nearly all of them the outlier's."
    )


def _outlier_remark(record: Record) -> str:
    return (
        f"“{record.row}”: the Bayesian ε of {record.measured[BAYESIAN]:.2f} says nothing of the"
        " outlier, who is not drawn like the others; the attack is right in"
        f" {record.measured[OUTLIER]:.1f} %, and DP ε is infinite. With the outlier among the"
        f" draws the Bayesian ε is {record.measured[WITH_OUTLIER]:.0f}: it depends on the draws."
    )


def _percentile_remark(record: Record) -> str:
    release = make_release(record.settings["way"], record.settings["epsilon"])
    own = float(release.shift(income_at(math.log(1e5))))
    return (
        f"“{record.row}”: nor does it hold for 99.999 % of the others. It is the ε of the largest"
        f" of 999 incomes, while the resident at that percentile has {own:.2f}, and Definition 1"
        f" at δ_μ = 1e-10 asks for {record.measured[KNOWN]:.2f}. Unclipped log-normal incomes have"
        " no E exp(λ D) at all, and Theorem 4 nothing to estimate; with the clip at the outlier"
        " they have, and the estimate is too small all the same."
    )


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    attacks = (
        "How often the attacker rightly says whether a resident is in, by income. Lines: the best"
        " attack in closed form; points: attacks that were run, on the outlier and on residents"
        " picked at random (at the median income). Grey: the bound e^ε / (1 + e^ε) for clipped"
        " incomes; of the release that does not clip there is none."
    )
    percentiles = (
        "Bayesian ε of the same releases at ε = 1, against the share of the population for whom it"
        " need not hold (lines: Student's estimate and Markov's inequality, δ = 1e-5), and the ε"
        " that the resident at that percentile really has, income over scale (dotted). An account"
        " is the largest draw's: beyond one in a thousand it is too small. Dashed: DP ε. The"
        " outlier is at no percentile."
    )
    return {
        "attacks": (_attacks_figure(records), attacks),
        "percentiles": (_percentiles_figure(records), percentiles),
    }


def _attacks_figure(records: Sequence[Record]) -> Figure:
    by_epsilon = sorted(group_by(records, "epsilon").items())
    figure, axes = new_figure(1, len(by_epsilon), width=9.6, height=4.2)
    for axis, (epsilon, shown) in zip(axes, by_epsilon, strict=True):
        _draw_attacks(axis, shown)
        axis.set(title=f"ε = {epsilon:g}", xscale="log", xlabel="income", ylim=(48, 102))
    axes[0].set_ylabel("right answers (%)")
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4)
    return figure


def _draw_attacks(axes: Axes, records: Sequence[Record]) -> None:
    for record in records:
        way, series, measured = record.settings["way"], record.series, record.measured
        accuracies = [100 * accuracy for accuracy in series["accuracies"]]
        axes.plot(series["incomes"], accuracies, color=_COLOURS[way], label=way)
        run = [measured[OUTLIER], measured[RESIDENTS]]
        axes.plot([OUTLIER_INCOME, _MEDIAN], run, "o", color=_COLOURS[way], markersize=5)
    bounds = [record.source[BOUND] for record in records if record.source]
    if bounds:
        axes.axhline(bounds[0], color=SOURCE, linestyle="--", label="bound")


def _percentiles_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.4)
    least, shown = min(group_by(records, "epsilon").items())
    for record in shown:
        colour, series = _COLOURS[record.settings["way"]], record.series
        axes.loglog(series["shares"], series["bayesian"], color=colour)
        axes.plot(series["shares"], series["own"], ":", color=colour)
        axes.plot([], [], color=colour, label=record.settings["way"])
    axes.plot([], [], ":", color=SOURCE, label="what the resident there has")
    axes.axhline(least, color=SOURCE, linestyle="--", label="DP ε, clipped", zorder=1)
    axes.set(xlabel="share of the population left out", ylabel="ε")
    axes.invert_xaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


EXPERIMENT = Experiment(
    name="bdp_incomes",
    title="A town's incomes: whom Bayesian privacy protects",
    source="Triastcyn and Faltings (2020), Section 3",
    description=(
        "The mean income of a town of 1,000 is released with Laplace noise: the sum under adding or"
        " removing a resident, divided by the public 1,000. The attacker has every income, and"
        " all residents but one, has a flat prior on whether that one is in, and decides by the"
        " likelihoods. Equation 1 bounds the share of right answers by e^ε / (1 + e^ε).\n\n"
        "Three ways: incomes clipped at the outlier's, 10,000,000; clipped at the 99th percentile"
        " of the others, 121,000, which the noise is scaled to; and the same noise without"
        " clipping, scaled to typical incomes, as Bayesian differential privacy allows. The"
        " Bayesian account is from the 999 typical incomes, by the Rényi divergence of Laplace"
        " noise (one step), orders 1 to a million."
    ),
    rows=_rows,
    run_row=_run_row,
    figures=_figures,
    remarks=_remarks,
)
