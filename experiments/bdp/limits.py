"""Errors of the BDP estimators of Triastcyn and Faltings (2020) on known distributions.

``python -m experiments run bdp_limits``: half a minute on two CPU cores; the paper profile runs
more trials and takes minutes.

Theorem 4's estimate (Student) exceeds the mean with probability 1 - γ if z is normal. The run has
1,000 Poisson-subsampled steps with noise of one clip bound, and the same samples for every step,
for which Theorem 1 is exact.

The small model has 100 records with known norms in 20 steps, so that E exp(λ L) and Theorem 1's
bound are finite sums, and the privacy loss L can be simulated.
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from scipy.special import logsumexp, ndtri
from scipy.stats import binomtest

from dpjax.accounting import log_moments
from dpjax.bdp import estimators, subsampled_gaussian_log_moments
from experiments.bdp import costs
from experiments.bdp.costs import FAILURE, Array, epsilons
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, draw_nonempty, panel_grid
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import MeanAndError, quantiles
from experiments.lib.verdicts import group_by

Draw = Callable[[np.random.Generator, tuple[int, int]], Array]
# From levels to the norms that shares exp(-level) of a population exceed.
NormAt = Callable[[Array], Array]

ORDERS = tuple(range(1, 33))
SIZES = (16, 64, 256, 1_024, 4_096)
# Numbers of records with about as many pairs as `SIZES`.
RECORDS = (6, 12, 23, 46, 91)
# The run, and the population of clipped norms, in units of C.
RUN: Mapping[str, float] = {"sampling_rate": 0.01, "noise_std": 1.0}
NUM_STEPS, DELTA = 1_000, 1e-5
MEDIAN_NORM, _LOG_SPREAD = 0.15, 0.6
_ORDER_PLACE = ORDERS.index(8)
_RARE, _LARGE = 1e-3, 1e6
_COORDINATES, _PAIR_SCALE = 8, 0.02
_CHUNK = 2**20
_LAST_LEVEL, _GRID = 40.0, 2**14

# The small model: norms, and the number of records with each in a step.
NUM_RECORDS, MODEL_STEPS, MODEL_RATE, MODEL_NOISE, MODEL_DELTA = 100, 20, 0.1, 1.0, 1e-3
_NORMS, _NUMBERS = (0.2, 0.5, 1.0), (80, 17, 3)
_LOSSES_AT_ONCE = 100_000


class Population(NamedTuple):
    """A distribution of z."""

    draw: Draw  # from generator and shape (trials, draws) to log z
    log_mean: float  # log of the exact mean
    log_bound: float = math.inf  # log of the largest z, or infinite


@functools.cache
def populations() -> dict[str, Population]:
    """Returns the populations by name; only the first satisfies Theorem 4's assumption."""
    grid = np.linspace(0.0, 1.0, 2_001)
    costs_of_grid = NUM_STEPS * run_log_moments(grid)[:, _ORDER_PLACE]

    def clipped(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
        norms = np.minimum(log_normal_norms(generator, shape), 1.0)
        return np.interp(norms, grid, costs_of_grid)

    worst = NUM_STEPS * float(run_log_moments(np.ones(1))[0, _ORDER_PLACE])
    rare_mean = math.log1p(_RARE * (_LARGE - 1))
    # Of exp(a |x - x'|^2), where |x - x'|^2 / 2 has a chi-squared distribution.
    of_pairs = -_COORDINATES / 2 * math.log1p(-4 * _PAIR_SCALE)
    return {
        "normal": Population(lambda g, shape: np.log(g.normal(10.0, 1.0, shape)), math.log(10.0)),
        "log-normal": Population(lambda g, shape: g.normal(0.0, 2.0, shape), 2.0),
        "Pareto": Population(lambda g, shape: g.exponential(1 / 1.5, shape), math.log(3.0)),
        "one in 1,000": Population(
            lambda g, shape: np.where(g.random(shape) < _RARE, math.log(_LARGE), 0.0),
            rare_mean,
            math.log(_LARGE),
        ),
        "clipped norms": Population(
            clipped, float(clipped_mean(log_normal_norm_at)[_ORDER_PLACE]), worst
        ),
        "independent pairs": Population(
            lambda g, shape: 2 * _PAIR_SCALE * g.chisquare(_COORDINATES, shape), of_pairs
        ),
        "all pairs": Population(_draw_all_pairs, of_pairs),
    }


def _draw_all_pairs(generator: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Draws all pairs of a sample of records, which are dependent."""
    num_records = math.isqrt(2 * shape[1]) + 1
    records = generator.normal(size=(shape[0], num_records, _COORDINATES))
    squares = np.square(records).sum(axis=-1)
    first, second = np.triu_indices(num_records, 1)
    products = np.matmul(records, records.swapaxes(-1, -2))[:, first, second]
    return _PAIR_SCALE * (squares[:, first] + squares[:, second] - 2 * products)


def log_normal_norms(generator: np.random.Generator, shape: Sequence[int]) -> Array:
    """Draws log-normal norms in units of C, of which one in 1,275 is clipped."""
    return MEDIAN_NORM * generator.lognormal(0.0, _LOG_SPREAD, shape)


def log_normal_norm_at(levels: Array) -> Array:
    """Returns the norms that shares exp(-level) of `log_normal_norms` exceed."""
    return MEDIAN_NORM * np.exp(-_LOG_SPREAD * ndtri(np.exp(-levels)))


def weibull_norm_at(shape: float) -> NormAt:
    """Returns the quantile function of Weibull norms with this shape and the same median.

    >>> float(weibull_norm_at(1.0)(np.log([2.0]))[0])
    0.15
    """
    return lambda levels: MEDIAN_NORM * (levels / math.log(2)) ** (1 / shape)


def run_log_moments(norms: Array) -> Array:
    """Returns log moments of one step at all orders, on a last axis, from norms in units of C."""
    return costs.log_moments(norms, **RUN, orders=ORDERS)


def clipped_mean(norm_at: NormAt, last_level: float = _LAST_LEVEL) -> Array:
    """Returns log E exp(Tλ D) at all orders for norms of known distribution clipped at C = 1."""
    ends = np.linspace(0.0, last_level, _GRID + 1)
    log_shares = np.log(-np.diff(np.exp(-ends), append=0.0))
    levels = np.append((ends[1:] + ends[:-1]) / 2, last_level)
    moments = run_log_moments(np.minimum(norm_at(levels), 1.0))
    return np.asarray(logsumexp(NUM_STEPS * moments + log_shares[:, None], axis=0))


def num_too_small(
    population: Population, trials: int, num_draws: int, gammas: Sequence[float], seed: int
) -> dict[str, list[int]]:
    """Counts trials whose estimate is below the mean, by estimator and for each γ.

    The empirical Bernstein bound is counted only if z is bounded.
    """
    generator = np.random.default_rng((seed, num_draws))
    bounded = math.isfinite(population.log_bound)
    counts = {name: [0] * len(gammas) for name in ("student", *(["bernstein"] * bounded))}
    per_chunk = max(1, _CHUNK // num_draws)
    for start in range(0, trials, per_chunk):
        shape = (min(per_chunk, trials - start), num_draws)
        values = population.draw(generator, shape)[..., None]
        for place, gamma in enumerate(gammas):
            found = {"student": estimators.student_upper_bound(values, gamma)}
            if bounded:
                found["bernstein"] = estimators.empirical_bernstein_upper_bound(
                    values, gamma, population.log_bound
                )
            for name, estimate in found.items():
                counts[name][place] += int((estimate < population.log_mean).sum())
    return counts


def share_bounds(counts: npt.ArrayLike, trials: int, error: float = 0.005) -> Array:
    """Returns lower and upper bounds on each share, each wrong with probability ``error``."""
    return np.array(
        [
            binomtest(int(count), trials).proportion_ci(1 - 2 * error, "exact")
            for count in np.ravel(counts)
        ]
    ).T


def certified_run_epsilon() -> float:
    """Returns the certified DP ε of the run."""
    rate, noise = RUN["sampling_rate"], RUN["noise_std"]
    return costs.certified_epsilon(60_000, rate, noise, NUM_STEPS, "zero_out", DELTA)


def moments_epsilon() -> float:
    """Returns the moments accountant's ε of the run, at the orders of the BDP accounts."""
    noise, rate = RUN["noise_std"], RUN["sampling_rate"]
    orders = [order + 1 for order in ORDERS]
    return float(log_moments.compute_epsilon(noise, rate, NUM_STEPS, DELTA, orders))


def exact_epsilon(norm_at: NormAt = log_normal_norm_at) -> float:
    """Returns the BDP ε of clipped norms of known distribution."""
    return _epsilon(clipped_mean(norm_at))


def exact_epsilon_without_rarest(norm_at: NormAt = log_normal_norm_at) -> float:
    """Returns the BDP ε without the largest norms, whose probability is counted as half of δ."""
    log_means = clipped_mean(norm_at, -math.log(DELTA / 2))
    return float(epsilons(log_means, DELTA / 2, 0.0, ORDERS))


def unseen_share(num_draws: int, failure_probability: float = FAILURE) -> float:
    """Returns the largest population share that a sample misses with this probability.

    >>> round(unseen_share(1_024), 3)
    0.033
    """
    return -math.expm1(math.log(failure_probability) / num_draws)


def least_distribution_free_epsilon(num_draws: int) -> float:
    """Returns a lower bound on the ε of every distribution-free estimate.

    It is the BDP ε if the share that the sample may miss has norm C.
    """
    share, worst = unseen_share(num_draws), NUM_STEPS * run_log_moments(np.ones(1))[0]
    rest = math.log1p(-share) + clipped_mean(log_normal_norm_at)
    return _epsilon(np.logaddexp(rest, math.log(share) + worst))


def _epsilon(log_means: Array) -> float:
    """Returns ε, with the failure probability of all estimates as a part of δ."""
    return float(epsilons(log_means, DELTA, NUM_STEPS * FAILURE, ORDERS))


def draws_curves(sizes: Sequence[int], repeats: int, seed: int) -> Values:
    """Returns quantiles of ε over repeats by sample size, and the distribution-free limit."""
    curves: dict[str, Any] = {"student": [], "bernstein": []}
    for size in sizes:
        generator = np.random.default_rng((seed, size))
        norms = np.minimum(log_normal_norms(generator, (repeats, size)), 1.0)
        found = zip(*map(_clipped_epsilons, norms), strict=True)
        for curve, each in zip(curves.values(), found, strict=True):
            curve.append(quantiles(each))
    return {**curves, "limit": [least_distribution_free_epsilon(size) for size in sizes]}


def tail_curves(shape: float, sizes: Sequence[int], repeats: int, seed: int) -> Values:
    """Returns quantiles of Student's ε by sample size for Weibull norms, clipped and not."""
    curves: dict[str, Any] = {"clipped": [], "unclipped": []}
    for size in sizes:
        levels = np.random.default_rng((seed, size)).exponential(size=(repeats, size))
        norms = weibull_norm_at(shape)(levels)
        values = [NUM_STEPS * run_log_moments(each) for each in norms]
        found = {
            "clipped": [_clipped_epsilons(each)[0] for each in np.minimum(norms, 1.0)],
            "unclipped": [
                _epsilon(estimators.student_upper_bound(each, FAILURE)) for each in values
            ],
        }
        for name, each in found.items():
            curves[name].append(quantiles(each))
    return curves


def _clipped_epsilons(norms: Array) -> tuple[float, float]:
    """Returns ε by Student's estimate, capped at the worst case, and by empirical Bernstein."""
    values, worst = NUM_STEPS * run_log_moments(norms), NUM_STEPS * run_log_moments(np.ones(1))[0]
    student = np.minimum(estimators.student_upper_bound(values, FAILURE), worst)
    bernstein = estimators.empirical_bernstein_upper_bound(values, FAILURE, worst)
    return _epsilon(student), _epsilon(bernstein)


def norms_by_step(kept: float) -> Array:
    """Returns the small model's norms, ``(steps, records)``.

    Each record has its own norm in a share ``kept`` of the steps; in the others the norms rotate.

    >>> bool(np.all(np.sort(norms_by_step(0.5)) == np.sort(norms_by_step(1.0))))
    True
    """
    own = np.repeat(_NORMS, _NUMBERS)
    num_kept = round(kept * MODEL_STEPS)
    turns = [0] * num_kept + [3 * (step + 1) for step in range(MODEL_STEPS - num_kept)]
    return np.stack([np.roll(own, turn) for turn in turns])


def _model_log_moments(norms: Array, orders: Sequence[int]) -> Array:
    rates = {"sampling_rate": MODEL_RATE, "noise_std": MODEL_NOISE}
    return subsampled_gaussian_log_moments(orders, norms, **rates)


def exact_moments(norms: Array, orders: Sequence[int] = costs.ORDERS) -> Array:
    """Returns log E exp(λ L) of all steps, exactly."""
    products = _model_log_moments(norms, orders).sum(axis=0)
    return np.asarray(logsumexp(products, axis=0) - math.log(NUM_RECORDS))


def theorem_moments(norms: Array, orders: Sequence[int] = costs.ORDERS) -> Array:
    """Returns Theorem 1's bound (Hölder's inequality) with exact expectations."""
    powers = logsumexp(MODEL_STEPS * _model_log_moments(norms, orders), axis=1)
    return np.asarray((powers - math.log(NUM_RECORDS)).mean(axis=0))


def simulated_losses(norms: Array, draws: int, seed: int) -> Array:
    """Draws total privacy losses over the record x' and the releases."""
    generator = np.random.default_rng(seed)
    losses = []
    for start in range(0, draws, _LOSSES_AT_ONCE):
        size = min(_LOSSES_AT_ONCE, draws - start)
        lengths = norms[:, generator.integers(NUM_RECORDS, size=size)]
        sampled = generator.random(lengths.shape) < MODEL_RATE
        released = sampled * lengths + MODEL_NOISE * generator.normal(size=lengths.shape)
        exponents = (released * lengths - lengths**2 / 2) / MODEL_NOISE**2
        losses.append(np.log1p(MODEL_RATE * np.expm1(exponents)).sum(axis=0))
    return np.concatenate(losses)


def simulated_moment(losses: Array, order: int) -> MeanAndError:
    """Returns the mean of exp(λ L) over simulated losses, and its standard error.

    >>> simulated_moment(np.zeros(10), 2)
    MeanAndError(mean=1.0, error=0.0)
    """
    values = np.exp(order * losses)
    return MeanAndError(float(values.mean()), float(values.std() / math.sqrt(len(values))))


def certified_model_epsilon() -> float:
    """Returns the certified DP ε of the small model; the largest norm is the clip bound."""
    shape = (NUM_RECORDS, MODEL_RATE, MODEL_NOISE, MODEL_STEPS)
    return costs.certified_epsilon(*shape, "zero_out", MODEL_DELTA)


_COUNTS: Mapping[str, dict[str, int]] = {
    "quick": {"trials": 4_000, "repeats": 10, "losses": 400_000},
    "paper": {"trials": 100_000, "repeats": 200, "losses": 10_000_000},
}
_GAMMAS = (0.05, 0.001)
_DRAWS, _TAIL_DRAWS = (16, 64, 256, 1_024, 4_096, 16_384), (64, 1_024, 16_384)
_SHAPES, _KEPT = (0.5, 1.0, 2.0), (1.0, 0.5, 0.0)
_MOMENT = 2
_LEVELS = np.geomspace(1e-4, 0.5, 40)
INSIDE, NUMBER = "normal", "number of draws"
_LABELS = {"student": "Student too small %", "bernstein": "Bernstein too small %"}
KNOWN, MOST = "Bayesian ε, exact", "Bayesian ε, exact, rarest given up"
STUDENT = "Bayesian ε, Student"
EXACT, BOUND, SIMULATED = "E exp(2L), exact", "E exp(2L), Theorem 1", "E exp(2L), simulated"


def rows(profile: str) -> list[Row]:
    counts = _COUNTS[profile]
    coverage = {"trials": counts["trials"], "gammas": _GAMMAS, "seed": 0}
    repeated = {"repeats": counts["repeats"], "seed": 0}
    composition = {"losses": counts["losses"], "seed": 1}
    # Numbers of pairs closest to the other sizes.
    pairs = [n * (n - 1) // 2 for n in RECORDS]
    sizes: dict[str, Sequence[int]] = dict.fromkeys(populations(), SIZES)
    settings: dict[str, Values] = {
        **{
            name: {"part": "coverage", "draws": draws, **coverage}
            for name, draws in (sizes | {"all pairs": pairs}).items()
        },
        NUMBER: {"part": "number", "draws": _DRAWS, **repeated},
        **{
            f"tails: Weibull, shape {shape:g}": {
                "part": "tails", "shape": shape, "draws": _TAIL_DRAWS, **repeated
            }
            for shape in _SHAPES
        },
        **{
            f"composition: {100 * kept:.0f} % of norms kept": {
                "part": "composition", "kept": kept, **composition
            }
            for kept in _KEPT
        },
    }  # fmt: skip
    return [Row(name, each, {}) for name, each in settings.items()]


def run_row(row: Row, context: RowContext) -> Result:
    run = {
        "coverage": _run_coverage,
        "number": _run_number,
        "tails": _run_tails,
        "composition": _run_composition,
    }
    return run[row.settings["part"]](row)


def _run_coverage(row: Row) -> Result:
    settings, population = row.settings, populations()[row.name]
    counts = [
        num_too_small(population, settings["trials"], n, settings["gammas"], settings["seed"])
        for n in settings["draws"]
    ]
    return Result(
        measured={
            f"γ = {gamma:g}: {_LABELS[name]}": [
                100 * each[name][place] / settings["trials"] for each in counts
            ]
            for name in counts[0]
            for place, gamma in enumerate(settings["gammas"])
        },
        certified={},
        note="Shares of trials by sample size: 16, 64, 256, 1,024 and 4,096.",
        series={name: [each[name] for each in counts] for name in counts[0]},
    )


def _run_number(row: Row) -> Result:
    settings = row.settings
    curves = draws_curves(settings["draws"], settings["repeats"], settings["seed"])
    return Result(
        measured={
            "MA ε": moments_epsilon(),
            KNOWN: exact_epsilon(),
            MOST: exact_epsilon_without_rarest(),
            STUDENT: [each[1] for each in curves["student"]],
            "Bayesian ε, Bernstein": [each[1] for each in curves["bernstein"]],
            "Bayesian ε, least without assumption": curves["limit"],
        },
        certified={"DP ε": certified_run_epsilon()},
        note="Medians over repeats by sample size: 16, 64, ..., 16,384.",
        series=curves,
    )


def _run_tails(row: Row) -> Result:
    settings, shape = row.settings, row.settings["shape"]
    curves = tail_curves(shape, settings["draws"], settings["repeats"], settings["seed"])
    return Result(
        measured={
            KNOWN: exact_epsilon(weibull_norm_at(shape)),
            MOST: exact_epsilon_without_rarest(weibull_norm_at(shape)),
            STUDENT: [each[1] for each in curves["clipped"]],
            f"{KNOWN}, unclipped": math.inf,
            f"{STUDENT}, unclipped": [each[1] for each in curves["unclipped"]],
        },
        certified={"DP ε": certified_run_epsilon(), "DP ε, unclipped": math.inf},
        note="Tails: medians over repeats by sample size: 64, 1,024 and 16,384.",
        series=curves,
    )


def _run_composition(row: Row) -> Result:
    settings, delta = row.settings, MODEL_DELTA
    norms = norms_by_step(settings["kept"])
    losses = simulated_losses(norms, settings["losses"], settings["seed"])
    exact, bound = exact_moments(norms), theorem_moments(norms)
    simulated = simulated_moment(losses, _MOMENT)
    return Result(
        measured={
            EXACT: float(np.exp(exact_moments(norms, (_MOMENT,))[0])),
            BOUND: float(np.exp(theorem_moments(norms, (_MOMENT,))[0])),
            SIMULATED: simulated.mean,
            f"{SIMULATED}, standard error": simulated.error,
            "Bayesian ε, exact moments": float(epsilons(exact, delta)),
            "Bayesian ε, Theorem 1": float(epsilons(bound, delta)),
            "Bayesian ε, simulated": float(np.quantile(losses, 1 - delta)),
        },
        certified={"DP ε, composition": certified_model_epsilon()},
        series={
            "exact": exact,
            "bound": bound,
            "levels": _LEVELS,
            "losses": np.quantile(losses, 1 - _LEVELS),
        },
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    parts = group_by(records, "part")
    return draw_nonempty(
        coverage=(_coverage_figure, parts.get("coverage", [])),
        draws=(_draws_figure, parts.get("number", [])),
        tails=(_tails_figure, parts.get("tails", [])),
        composition=(_composition_figure, parts.get("composition", [])),
    )


_ESTIMATORS: Mapping[str, Values] = {
    "student": {"color": PALETTE[1], "label": "Student (Theorem 4)"},
    "bernstein": {"color": MEASURED, "label": "empirical Bernstein"},
}
_LEAST_SHARE = 2e-4


def _coverage_figure(records: Sequence[Record]) -> Figure:
    figure, axes = panel_grid(len(records), 4, width=9.6, height=5.2)
    for axis, record in zip(axes, records, strict=True):
        _draw_shares(axis, record)
        axis.set(title=record.row, ylim=(_LEAST_SHARE, 1.4), xscale="log", yscale="log")
    for axis in axes[::4]:
        axis.set_ylabel("share too small")
    for axis in axes[4:]:
        axis.set_xlabel("sample size")
    known = [axis.get_legend_handles_labels() for axis in axes]
    handles = {label: handle for each in known for handle, label in zip(*each, strict=True)}
    place: dict[str, Any] = {"loc": "lower right", "bbox_to_anchor": (0.98, 0.12)}
    figure.legend(list(handles.values()), list(handles), **place)
    return figure


def _draw_shares(axes: Axes, record: Record) -> None:
    trials, sizes = record.settings["trials"], record.settings["draws"]
    for place, (gamma, marker) in enumerate(zip(record.settings["gammas"], "os", strict=True)):
        axes.axhline(gamma, color=SOURCE, linestyle=":", linewidth=1.2)
        for name in record.series:
            counts = np.array(record.series[name])[:, place]
            shares = np.maximum(counts / trials, _LEAST_SHARE)
            low, high = share_bounds(counts, trials)
            bars = np.maximum(shares - low, 0), np.maximum(high - shares, 0)
            style = {**_ESTIMATORS[name], **({"label": None} if place else {})}
            axes.errorbar(sizes, shares, bars, marker=marker, markersize=4, linewidth=1.2, **style)


def _draw_band(axes: Axes, places: Any, quantiles: Any, **style: Any) -> None:
    low, middle, high = np.array(quantiles).T
    draw_curve(axes, places, middle, (low, high), **style)


def _draws_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=6.8, height=4.2)
    sizes, series = records[0].settings["draws"], records[0].series
    measured, certified = records[0].measured, records[0].certified
    for label, level, colour, line in (
        ("DP, moments accountant", measured["MA ε"], SOURCE, "-"),
        ("DP, certified", certified["DP ε"], CERTIFIED, "-"),
        ("Bayesian, distribution known", measured[KNOWN], "black", ":"),
    ):
        axes.axhline(level, color=colour, linestyle=line, label=label)
    for name, style in _ESTIMATORS.items():
        label = f"Bayesian, {style['label']}"
        _draw_band(axes, sizes, series[name], **{**style, "label": label, "marker": ""})
    axes.plot(sizes, series["limit"], "--", color=MEASURED, label="distribution-free lower limit")
    axes.set(xscale="log", xlabel="sample size", ylabel="ε at δ = 1e-5", ylim=(0, None))
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return figure


def _tails_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=3.8)
    for record, colour in zip(records, PALETTE, strict=False):
        sizes, style = record.settings["draws"], {"color": colour, "marker": "o", "markersize": 4}
        label = f"shape {record.settings['shape']:g}"
        _draw_band(left, sizes, record.series["clipped"], label=label, **style)
        left.axhline(record.measured[KNOWN], color=colour, linestyle=":")
        _draw_band(right, sizes, record.series["unclipped"], **style)
    left.axhline(records[0].certified["DP ε"], color="black", label="DP, certified")
    left.set(
        xscale="log", xlabel="sample size", ylabel="ε at δ = 1e-5", ylim=(0, None), title="clipped"
    )
    right.set(xscale="log", yscale="log", xlabel="sample size", title="not clipped")
    left.legend()
    return figure


def _composition_figure(records: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.0)
    orders = [order for order in costs.ORDERS if order <= 12]
    for record, colour in zip(records, PALETTE, strict=False):
        series, kept = record.series, 100 * record.settings["kept"]
        exact = np.array(series["exact"])
        left.semilogy(orders, exact[: len(orders)], color=colour, label=f"{kept:.0f} % kept")
        right.loglog(series["losses"], series["levels"], color=colour, label="simulated")
        right.plot(*_chernoff(exact), "--", color=colour, linewidth=1.2)
    bound = np.array(series["bound"])
    left.semilogy(orders, bound[: len(orders)], "--", color="black", label="Theorem 1")
    right.plot(*_chernoff(bound), "--", color="black", linewidth=1.2)
    left.set(xlabel="λ", ylabel="log E exp(λ L)")
    right.set(xscale="linear", xlabel="ε", ylabel="Pr[L ≥ ε]", xlim=(0, 4), ylim=(1e-4, 1))
    left.legend()
    return figure


def _chernoff(moments: Array) -> tuple[Array, Array]:
    """Returns Chernoff bounds (Theorem 2) on the probability of a loss of each epsilon."""
    epsilons = np.linspace(0.0, 4.0, 81)
    exponents = moments - np.array(costs.ORDERS) * epsilons[:, None]
    return epsilons, np.exp(np.minimum(exponents.min(axis=1), 0.0))


def finding(records: Sequence[Record]) -> Finding:
    name, nominal = f"γ = 0.05: {_LABELS['student']}", 5.0
    shares = {r.row: max(r.measured[name]) for r in records if name in r.measured}
    normal = shares.pop(INSIDE, None)
    worst = max(shares, key=lambda row: shares[row], default=None)
    if normal is None or worst is None:
        return Finding("not compared", "Only a part of the populations was run.")
    verdict = "reproduced; claim contradicted" if shares[worst] > 2 * nominal else "reproduced"
    return Finding(
        verdict if normal <= nominal + 2 else "not reproduced",
        f"Theorem 4's estimate is too small in at most {normal:.1f} % of trials for normal costs"
        f" (γ = {nominal:g} %), and in up to {shares[worst]:.0f} % for other ones ({worst}).",
        "2 points",
    )
