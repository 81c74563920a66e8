"""Linear regression on wines that several holders keep: error against epsilon, and the penalty.

``python -m experiments run bayes_holders``: half a minute, the same in both profiles.

Differences from a private release, all of which the rows show or state: records are centred by
their mean and scaled by their range, which are not released privately; the noise scale is the
classical sqrt(2 ln(1.25 / delta)) / epsilon also above epsilon = 1, where it has no proof; and the
sensitivity of the squares, from which the clipping bounds are estimated, is taken as
7.5 sqrt(d + 1), while records in [-7.5, 7.5] have 7.5^2 sqrt(d + 1).
"""

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax.accounting import epsilon as certified_epsilon
from dpjax.accounting import epsilon_bounds
from dpjax.bayes.regression import RegressionStatistics
from dpjax.federated import Entropy, FederatedSum, Parties, run_round, simulated_entropy
from dpjax.mechanisms import ClippedSum, Composition, Gaussian
from dpjax.sensitivity import Sensitivity
from experiments.bayes.wine import column
from experiments.bayes.wine_fits import (
    ADJACENCY,
    Fit,
    Records,
    Splits,
    Task,
    draw_splits,
    exact_statistics,
    local_statistics,
    non_private,
    perturbation,
    perturbed_statistics,
    posteriors,
    release_statistics,
    scale_records,
    score,
)
from experiments.data import load_data
from experiments.lib.figures import MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.plots import draw_curve, draw_error_bars, legend_below, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import make_rows, mean_and_error
from experiments.lib.verdicts import direction_finding

Array = npt.NDArray[np.float64]

# Share of epsilon and delta for the squares, the range that records are scaled to, and the range
# that they are clipped to for the squares.
_SHARE, _HALF_RANGE, _ASSUMED = 0.3, 5.0, 7.5
# In place of a standard deviation whose estimated square is negative.
_LEAST_DEVIATION = math.sqrt(0.5)
# The clipping bound over the standard deviation: candidates, and the synthetic data sets and noise
# draws by which one is chosen (20 of each in the source).
_FACTORS = np.arange(1, 21) / 10
_NUM_SYNTHETIC, _NUM_NOISE = 4, 10


class PublishedData(NamedTuple):
    """Centred and scaled records."""

    values: Array  # (n, d + 1), with the target last
    grade: float  # one grade in the target's units


def scale_as_published(x: npt.ArrayLike, y: npt.ArrayLike) -> PublishedData:
    """Returns all records, centred by their mean and scaled to a range of length ten."""
    values = np.column_stack([x, y]).astype(np.float64)
    ranges = np.ptp(values, axis=0)
    scaled = (values - values.mean(axis=0)) / ranges * 2 * _HALF_RANGE
    return PublishedData(scaled, 2 * _HALF_RANGE / float(ranges[-1]))


def classical_noise_multiplier(epsilon: float, delta: float) -> float:
    """Returns sqrt(2 ln(1.25 / delta)) / epsilon, proven for epsilon up to 1 only.

    >>> round(classical_noise_multiplier(1.0, 1e-4), 2)
    4.34
    """
    return math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def mechanisms(claimed: float, delta: float) -> tuple[Composition, Composition]:
    """Returns the two releases with an upper and with a lower bound on their sensitivities.

    The noise is relative to sensitivities of one. That of the squares is 7.5, for a record at the
    ends of the range instead of one at zero. The source's bound on that of the products has a
    factor of two off the diagonal, so it is at most twice what the same replacement attains.
    """
    shares = (1 - _SHARE, _SHARE)
    scales = [classical_noise_multiplier(part * claimed, part * delta) for part in shares]

    def composed(*sizes: float) -> Composition:
        parts = zip(sizes, scales, strict=True)
        return Composition(
            tuple(
                Gaussian(Sensitivity(size, "l2", "replace_one"), scale, "one wine")
                for size, scale in parts
            )
        )

    return composed(1.0, _ASSUMED), composed(0.5, _ASSUMED)


def choose_clipping_factors(
    num_examples: int, num_features: int, *, epsilon: float, delta: float, seed: int
) -> tuple[float, float]:
    """Returns the clipping bounds of features and target over their standard deviations.

    As published they have the least mean absolute error on synthetic data, under noise of the
    fourth power of the sensitivity in place of the sensitivity.
    """
    rng, d = np.random.default_rng(seed), num_features
    multiplier = classical_noise_multiplier(epsilon, delta)
    errors = np.zeros((len(_FACTORS), len(_FACTORS)))
    for _ in range(_NUM_SYNTHETIC):
        x = rng.standard_normal((num_examples, d))
        x -= x.mean(axis=0)
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        y = x @ rng.standard_normal(d) + rng.standard_normal(num_examples)
        y -= y.mean()
        noise = multiplier * rng.standard_normal((_NUM_NOISE, d, d + 1))
        of_xx, of_xy = _symmetric(noise[..., :d]), noise[..., d:]
        for i, c_x in enumerate(_FACTORS * x.std(ddof=1)):
            for j, c_y in enumerate(_FACTORS * y.std(ddof=1)):
                squared = d * c_x**4 + 2 * d * (d - 1) * c_x**4 + d * (2 * c_x * c_y) ** 2
                clipped = np.clip(x, -c_x, c_x)
                xx = clipped.T @ clipped + squared**2 * of_xx
                xy = clipped.T @ np.clip(y, -c_y, c_y)[:, None] + squared**2 * of_xy
                mean = np.linalg.solve(xx + np.eye(d), xy)[..., 0]
                errors[i, j] += np.abs(mean @ x.T - y).mean()
    best = np.unravel_index(int(errors.argmin()), errors.shape)
    return float(_FACTORS[best[0]]), float(_FACTORS[best[1]])


def published_errors(
    data: PublishedData,
    splits: Splits,
    *,
    claimed: float,
    delta: float,
    every_record_perturbed: bool,
    seed: int,
) -> Array:
    """Returns the mean absolute error of each run, in grades: one wine at each holder.

    Args:
      data: all records.
      splits: of the runs.
      claimed: the epsilon that the source states.
      delta: of the same guarantee.
      every_record_perturbed: whether each holder adds the whole noise to its statistics (input
        perturbation), and not 1 / (n - 1) of its variance.
      seed: of noise and synthetic data.
    """
    n, d = splits.train.shape[1], data.values.shape[1] - 1
    factors = choose_clipping_factors(n, d, epsilon=claimed, delta=delta, seed=seed)
    of_statistics, of_squares = (
        classical_noise_multiplier(part * claimed, part * delta) for part in (1 - _SHARE, _SHARE)
    )
    copies = n if every_record_perturbed else n / (n - 1)
    rng, errors = np.random.default_rng([seed, every_record_perturbed]), []
    for train, test in zip(splits.train, splits.test, strict=True):
        records = data.values[train]
        squares = (np.clip(records, -_ASSUMED, _ASSUMED) ** 2).sum(axis=0)
        scale = of_squares * _ASSUMED * math.sqrt(d + 1) * math.sqrt(n / (n - 1))
        variances = (squares + scale * rng.standard_normal(d + 1)) / n
        deviations = np.where(variances > 0, np.sqrt(np.abs(variances)), _LEAST_DEVIATION)
        bounds = np.minimum(np.repeat(factors, (d, 1)) * deviations, _ASSUMED)
        clipped = np.clip(records, -bounds, bounds)
        scale = of_statistics * _sensitivity(bounds) * math.sqrt(copies)
        noise = scale * rng.standard_normal((d, d + 1))
        xx = _with_positive_eigenvalues(
            clipped[:, :d].T @ clipped[:, :d] + _symmetric(noise[:, :d])
        )
        xy = clipped[:, :d].T @ clipped[:, d] + noise[:, d]
        mean = np.linalg.solve(xx + np.eye(d), xy)
        tested = data.values[test]
        errors.append(np.abs(tested[:, d] - tested[:, :d] @ mean).mean() / data.grade)
    return np.array(errors)


def _sensitivity(bounds: Array) -> float:
    """The source's bound on the L2 sensitivity of the products, with the target last."""
    products = 2 * np.outer(bounds, bounds)
    products[np.diag_indices_from(products)] /= 2
    return float(np.linalg.norm(np.triu(products)[:-1]))


def _symmetric(noise: Array) -> Array:
    """The lower triangle, mirrored."""
    lower = np.tril(noise)
    return lower + np.swapaxes(np.tril(noise, -1), -1, -2)


def _with_positive_eigenvalues(matrix: Array) -> Array:
    values, vectors = np.linalg.eigh(matrix)
    return np.asarray((vectors * np.abs(values)) @ vectors.T)


class DistributedFit(NamedTuple):
    """A regression fitted to secret-shared sums of several holders, and the noise in them."""

    fit: Fit
    noise_ratio: float  # root mean square over the trusted aggregator's standard deviations


def holder_sums(task: Task, num_holders: int) -> list[list[Array]]:
    """Returns the statistics of each holder in each run; a run's records are dealt out evenly."""
    mechanism = perturbation(task)
    x, y = np.asarray(task.records.x), np.asarray(task.records.y)
    return [
        [mechanism.sum_records(x[own], y[own]) for own in np.array_split(run, num_holders)]
        for run in task.splits.train
    ]


def distributed(
    task: Task, parties: Parties, sums: Sequence[Sequence[Array]], entropy: Entropy
) -> DistributedFit:
    """Runs one round of the protocol for each run, with every message as bytes, and fits."""
    trusted = perturbation(task)
    plan = FederatedSum(trusted, parties)
    results = [run_round(plan, own, entropy=entropy) for own in sums]
    used = results[0].mechanism
    released = [np.stack(part) for part in zip(*(one.released for one in results), strict=True)]
    statistics = RegressionStatistics(*map(jnp.asarray, released))
    exact = exact_statistics(task, trusted.bounds)
    rows, columns = np.triu_indices(trusted.num_features)
    ratios = [
        ((np.asarray(noisy, float) - np.asarray(true, float)) / scale).reshape(len(sums), -1)
        for noisy, true, scale in (
            (
                statistics.xtx[:, rows, columns],
                exact.xtx[:, rows, columns],
                trusted.noise_scales.xtx[rows, columns],
            ),
            (statistics.xty, exact.xty, trusted.noise_scales.xty),
            (statistics.yty, exact.yty, trusted.noise_scales.yty),
        )
    ]
    fitted = posteriors(statistics, task.splits, used.noise_scales.xtx)
    rms = math.sqrt(float(np.mean(np.concatenate(ratios, axis=1) ** 2)))
    return DistributedFit(Fit(fitted, plan), rms)


def trusted_with_noise(task: Task, factor: float) -> Fit:
    """Fits by a trusted aggregator whose noise has ``factor`` times its standard deviation."""
    return release_statistics(perturbation(task).with_privacy_factor(factor), task)


def noise_penalty(parties: Parties) -> float:
    """Returns the standard deviation of the sum's noise over a trusted aggregator's: sqrt(N / H).

    >>> round(noise_penalty(Parties(num_holders=10, num_nodes=3, num_colluders=1)), 2)
    1.12
    """
    return math.sqrt(parties.num_holders / parties.num_noise_shares)


def measured_penalty(parties: Parties, num_entries: int, entropy: Entropy) -> float:
    """Returns the noise of a sum of zeros over the trusted aggregator's, root mean square."""
    trusted = ClippedSum(
        (-np.ones(num_entries), np.ones(num_entries)), scale=1.0, adjacency="add_remove"
    )
    plan = FederatedSum(trusted, parties)
    zeros = [np.zeros(num_entries)] * parties.num_holders
    noise = run_round(plan, zeros, entropy=entropy).released
    return math.sqrt(float(np.mean(np.square(noise)))) / trusted.scale


_DELTA, _NUM_TRAIN, _NUM_REPEATS, _SEED = 1e-4, 2_000, 40, 0
_EPSILONS, _AT = (0.1, 0.3, 1.0, 3.0, 10.0, 31.6), 1.0
_NUM_NODES = 3
# Holders and colluders of the distributed fits.
_PARTIES = ((10, 0), (10, 1), (5, 1), (20, 5), (100, 1))
_NUM_HOLDERS = (2, 3, 5, 7, 10, 15, 20, 30, 50, 100)
_COLLUDERS, _NUM_ENTRIES = (0, 1, 5), 10_000

TRUSTED, PLAIN = "trusted aggregator", "not private"
AS_PUBLISHED = "as published, distributed, one wine a holder"
ABOVE = f"above trusted, ε = {_AT:g} %"
NOISE, FORMULA = "noise over trusted", "√(N / (N − T − 1)), formula"
WITH_NOISE = f"trusted with that noise, ε = {_AT:g}"
FARTHEST = "farthest from the formula %"
LOWER = "lower bound of ε, in this order"


@functools.cache
def _records() -> Records:
    return scale_records(load_data("wine", stand_in=True))


@functools.cache
def _splits() -> Splits:
    return draw_splits(_records(), _NUM_TRAIN, _NUM_REPEATS, _SEED)


def _task(epsilon: float) -> Task:
    return Task(_records(), _splits(), jax.random.key(_SEED), epsilon, _DELTA)


def _score(fit: Fit) -> list[float]:
    errors: list[float] = score(fit.posteriors, _records(), _splits()).error.tolist()
    return errors


@functools.cache
def _trusted_errors(epsilon: float) -> tuple[float, ...]:
    return tuple(_score(perturbed_statistics(_task(epsilon))))


@functools.cache
def _sums(num_holders: int) -> list[list[Any]]:
    return holder_sums(_task(_AT), num_holders)


@functools.cache
def _published_data() -> PublishedData:
    records = _records()
    return scale_as_published(records.x[:, 1:], np.asarray(records.y) * records.half_width)


def _parties(settings: Values) -> Parties:
    return Parties(
        num_holders=settings["num_holders"],
        num_nodes=settings["num_nodes"],
        num_colluders=settings["num_colluders"],
    )


def rows(profile: str) -> list[Row]:
    common = {
        "delta": _DELTA,
        "repeats": _NUM_REPEATS,
        "seed": _SEED,
        "num_train": _NUM_TRAIN,
        "epsilons": list(_EPSILONS),
    }
    nodes = {"num_nodes": _NUM_NODES}
    parties = [{"num_holders": n, "num_colluders": t, **nodes} for n, t in _PARTIES]
    penalties = [{"num_colluders": t, **nodes} for t in _COLLUDERS]
    every = {"num_holders": list(_NUM_HOLDERS), "num_entries": _NUM_ENTRIES, "seed": _SEED}
    return [
        *make_rows("{fit}", [{"fit": PLAIN}, {"fit": TRUSTED}], common),
        *make_rows(
            "distributed, N = {num_holders}, T = {num_colluders}",
            parties,
            {**common, "fit": "distributed"},
        ),
        *make_rows(
            "input perturbation, {num_holders:,} holders",
            [{"num_holders": count} for count in (10, _NUM_TRAIN)],
            {**common, "fit": "input perturbation"},
        ),
        *make_rows("{fit}", [{"fit": AS_PUBLISHED}], {**common, "every_record_perturbed": False}),
        *make_rows(
            "{fit}",
            [{"fit": "as published, input perturbation"}],
            {**common, "every_record_perturbed": True},
        ),
        *make_rows("noise of a sum, T = {num_colluders}", penalties, {**every, "fit": "noise"}),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    fit = row.settings["fit"]
    return (_RUN.get(fit) or _run_published)(row)


def _result(errors: Sequence[Sequence[float]], **fields: Any) -> Result:
    """The result of a row with the errors ``(num_epsilons, num_repeats)`` of its runs."""
    splits, y = _splits(), np.asarray(_records().y) * _records().half_width
    means = y[splits.train].mean(axis=1, keepdims=True)
    trusted = [_trusted_errors(epsilon) for epsilon in _EPSILONS]
    ratios = [
        mean_and_error(np.array(own) / np.mean(other))
        for own, other in zip(errors, trusted, strict=True)
    ]
    at = _EPSILONS.index(_AT)
    measured = {
        **{column(e): float(np.mean(own)) for e, own in zip(_EPSILONS, errors, strict=True)},
        ABOVE: 100 * (ratios[at].mean - 1),
        **fields.pop("measured", {}),
    }
    series = {
        "errors": np.mean(errors, axis=1).tolist(),
        "spread": np.std(errors, axis=1, ddof=1).tolist(),
        "trusted": np.mean(trusted, axis=1).tolist(),
        "difference error": [
            mean_and_error(np.array(own) - np.array(other)).error
            for own, other in zip(errors, trusted, strict=True)
        ],
        "mean predicted": float(np.abs(y[splits.test] - means).mean()),
        **fields.pop("series", {}),
    }
    note = (
        f"{data_set().note} {len(splits.train)} random splits: {splits.test.shape[1]}"
        f" records for testing, {splits.train.shape[1]:,} for training. Seeded noise and masks:"
        " these runs are simulations and not private. Every ε is that of one run."
    )
    return Result(
        **{"measured": measured, "certified": {}, "note": note, "series": series, **fields}
    )


def _certified(events: Sequence[Any]) -> dict[str, list[float]]:
    epsilons = [certified_epsilon(event, _DELTA, adjacency=ADJACENCY) for event in events]
    return {"ε, in this order": epsilons}


def _run_fit(make: Callable[[Task, Row], Fit], row: Row) -> Result:
    fits = [make(_task(epsilon), row) for epsilon in _EPSILONS]
    mechanisms = [fit.mechanism for fit in fits if fit.mechanism is not None]
    at = _EPSILONS.index(_AT)
    return _result(
        [_score(fit) for fit in fits],
        certified=_certified([one.event for one in mechanisms]) if mechanisms else {},
        certificate=str(mechanisms[at].certificate(_DELTA)) if mechanisms else "",
    )


def _run_distributed(row: Row) -> Result:
    parties = _parties(row.settings)
    penalty, sums = noise_penalty(parties), _sums(parties.num_holders)
    entropy = simulated_entropy(row.settings["seed"])
    fits = [distributed(_task(epsilon), parties, sums, entropy) for epsilon in _EPSILONS]
    predicted = [_score(trusted_with_noise(_task(epsilon), penalty)) for epsilon in _EPSILONS]
    plans = [one.fit.mechanism for one in fits]
    at = _EPSILONS.index(_AT)
    assert all(plan is not None for plan in plans)
    return _result(
        [_score(one.fit) for one in fits],
        measured={
            WITH_NOISE: float(np.mean(predicted[at])),
            NOISE: math.sqrt(float(np.mean(np.square([one.noise_ratio for one in fits])))),
            FORMULA: penalty,
        },
        certified=_certified([plan.event for plan in plans if plan]),
        certificate=str(plans[at].certificate(_DELTA)),  # type: ignore[union-attr]
        series={"predicted": np.mean(predicted, axis=1).tolist()},
    )


def _run_published(row: Row) -> Result:
    every = row.settings["every_record_perturbed"]
    options = {"delta": _DELTA, "every_record_perturbed": every, "seed": row.settings["seed"]}
    errors = [
        published_errors(_published_data(), _splits(), claimed=claimed, **options).tolist()
        for claimed in _EPSILONS
    ]
    upper, lower = zip(*(mechanisms(claimed, _DELTA) for claimed in _EPSILONS), strict=True)
    bounds = [epsilon_bounds(each.event, _DELTA, adjacency="replace_one").lower for each in lower]
    certified = [certified_epsilon(each.event, _DELTA, adjacency="replace_one") for each in upper]
    return _result(
        errors,
        certified={"ε, in this order": certified, LOWER: bounds},
        certificate=str(upper[_EPSILONS.index(_AT)].certificate(_DELTA)),
    )


def _run_noise(row: Row) -> Result:
    settings, entropy = row.settings, simulated_entropy(row.settings["seed"])
    counts = [n for n in settings["num_holders"] if n > settings["num_colluders"] + 1]
    plans = [_parties({**settings, "num_holders": count}) for count in counts]
    formula = [noise_penalty(parties) for parties in plans]
    found = [measured_penalty(one, settings["num_entries"], entropy) for one in plans]
    farthest = max(abs(one / other - 1) for one, other in zip(found, formula, strict=True))
    return Result(
        measured={FARTHEST: 100 * farthest},
        certified={},
        note=f"The noise of a row is that of {settings['num_entries']:,} sums of zeros, each by the"
        " protocol.",
        series={"noise": list(zip(counts, found, strict=True))},
    )


_RUN: Mapping[str, Callable[[Row], Result]] = {
    PLAIN: functools.partial(_run_fit, lambda task, row: non_private(task)),
    TRUSTED: functools.partial(_run_fit, lambda task, row: perturbed_statistics(task)),
    "input perturbation": functools.partial(
        _run_fit, lambda task, row: local_statistics(task, row.settings["num_holders"])
    ),
    "distributed": _run_distributed,
    "noise": _run_noise,
}


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    by_fit: dict[str, list[Record]] = {}
    for record in records:
        by_fit.setdefault(record.settings["fit"], []).append(record)
    drawn = {}
    ours = [
        record
        for name in (PLAIN, TRUSTED, "distributed", "input perturbation")
        for record in by_fit.get(name, [])
    ]
    if TRUSTED in by_fit:
        drawn["errors"] = _errors_figure(ours)
    if by_fit.get("noise") and by_fit.get("distributed"):
        drawn["penalty"] = _penalty_figure(by_fit["noise"], by_fit["distributed"])
    published = [record for name in by_fit if name.startswith("as pub") for record in by_fit[name]]
    if published and by_fit.get(TRUSTED):
        drawn["published"] = _published_figure(published, by_fit[TRUSTED][0])
    return drawn


def _errors_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=4.4)
    level = records[0].series["mean predicted"]
    for record, colour in zip(records, [SOURCE, SOURCE, *PALETTE], strict=False):
        errors = np.array(record.series["errors"])
        width = 2 * np.array(record.series["spread"]) / math.sqrt(record.settings["repeats"])
        style = {PLAIN: ":", "input perturbation": "--"}.get(record.settings["fit"], "-")
        band = (errors - width, errors + width)
        at = record.settings["epsilons"]
        draw_curve(axes, at, errors, band, color=colour, linestyle=style, label=record.row)
    axes.axhline(level, color=SOURCE, linewidth=1)
    set_log_ticks(axes, records[0].settings["epsilons"])
    axes.set(ylabel="mean absolute error")
    figure.legend(loc="outside right center")
    return figure


def _penalty_figure(noise: Sequence[Record], fits: Sequence[Record]) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.2)
    for record, colour in zip(noise, PALETTE, strict=False):
        colluders = record.settings["num_colluders"]
        counts, found = np.array(record.series["noise"]).T
        fine = np.geomspace(max(counts[0], colluders + 2), counts[-1], 200)
        left.plot(fine, np.sqrt(fine / (fine - colluders - 1)), color=colour)
        left.plot(counts, found, "o", color=colour, label=f"T = {colluders}")
    set_log_ticks(left, (2, 5, 10, 20, 50, 100), "holders N")
    left.set(ylabel="noise over a trusted aggregator's", ylim=(0.9, 2.75))
    left.legend()
    places = np.arange(len(fits))
    for number, colour in zip((1, 2), PALETTE, strict=False):  # the errors at ε = 0.3 and 1
        trusted = np.array([record.series["trusted"][number] for record in fits])
        ratios, lines, bars = (
            np.array([record.series[name][number] for record in fits]) / trusted
            for name in ("errors", "predicted", "difference error")
        )
        shown = {"color": colour, "linestyle": "", "label": f"ε = {_EPSILONS[number]:g}"}
        draw_error_bars(right, places + 0.12 * (number - 1.5), ratios, 2 * bars, **shown)
        right.plot(places + 0.12 * (number - 1.5), lines, "_", markersize=16, color=colour)
    names = [record.row.removeprefix("distributed, ").replace(", ", "\n") for record in fits]
    right.set_xticks(places, names)
    right.axhline(1.0, color=SOURCE, linewidth=1)
    right.set(ylabel="error over a trusted aggregator's")
    right.legend()
    return figure


def _published_figure(published: Sequence[Record], trusted: Record) -> Figure:
    figure, (left, right) = new_figure(columns=2, width=9.6, height=4.4)
    first = published[0]
    claimed = first.settings["epsilons"]
    upper, lower = first.certified["ε, in this order"], first.certified[LOWER]
    left.plot(claimed, claimed, color=SOURCE, linewidth=1, label="claimed")
    left.plot(claimed, upper, "--", color=MEASURED, label="of its noise, at most")
    left.plot(claimed, lower, "o", color=MEASURED, label="of its noise, at least")
    set_log_ticks(left, claimed, "claimed ε")
    set_log_ticks(left, (0.1, 1, 10, 100), along="y", label="ε")
    left.legend()
    _draw_published(right, published, trusted)
    legend_below(figure, [right])
    return figure


def _draw_published(axes: Axes, published: Sequence[Record], trusted: Record) -> None:
    for record, colour in zip(published, PALETTE, strict=False):
        claimed, errors = record.settings["epsilons"], record.series["errors"]
        certified = record.certified["ε, in this order"]
        name = record.row.removeprefix("as published, ")
        draw_curve(axes, claimed, errors, color=colour, linestyle="--", label=f"{name}, claimed")
        draw_curve(axes, certified, errors, color=colour, label=f"{name}, certified")
    draw_curve(
        axes, trusted.settings["epsilons"], trusted.series["errors"], color=SOURCE, label=TRUSTED
    )
    axes.axhline(trusted.series["mean predicted"], color=SOURCE, linewidth=1)
    set_log_ticks(axes, (0.1, 1, 10, 100))
    set_log_ticks(axes, (0.6, 1.0, 2.0, 4.0), "mean absolute error", along="y")


def remarks(records: Sequence[Record]) -> list[str]:
    written = []
    for record in records:
        if record.settings["fit"] == "distributed":
            at = record.settings["epsilons"].index(_AT)
            error = 200 * record.series["difference error"][at] / record.series["trusted"][at]
            written.append(
                f"{record.row}: at ε = {_AT:g} the error is {record.measured[ABOVE]:+.2f} ±"
                f" {error:.2f} % from a trusted aggregator's (two standard errors of paired runs);"
                f" the noise is {record.measured[NOISE]:.3f} times as large, by the formula"
                f" {record.measured[FORMULA]:.3f}.".replace("-", "−")
            )
        if record.row == AS_PUBLISHED:
            shown = [
                f"ε = {claimed:g} is at least {lower:.2f}"
                for claimed, lower in zip(
                    record.settings["epsilons"], record.certified[LOWER], strict=True
                )
            ]
            written.append(
                "Of the published noise, at δ = 1e-4 and with centring and scaling taken as public:"
                f" claimed {'; '.join(shown)}. The noise on the squares is 7.5 times too small, and"
                " the classical scale is too small above ε of about 8."
            )
    return written


def finding(records: Sequence[Record]) -> Finding:
    rows = {record.row: record for record in records}
    needed = [TRUSTED, "distributed, N = 10, T = 0", "input perturbation, 10 holders", AS_PUBLISHED]
    if not set(needed) <= set(rows):
        return Finding("not compared", "Only a part of the fits was run.")
    trusted, shared, local, published = (rows[name] for name in needed)
    above, far = shared.measured[ABOVE], local.measured[ABOVE]
    at = published.settings["epsilons"].index(_AT)
    lower = published.certified[LOWER][at]
    return direction_finding(
        [abs(above) < 2, above < far, trusted.measured[column(_AT)] < local.measured[column(_AT)]],
        f"At ε = {_AT:g} the error of ten holders differs from a trusted aggregator's by"
        f" {above:+.2f} %, that of input perturbation by {far:+.1f} %; the published noise for"
        f" ε = {_AT:g} has an ε of at least {lower:.2f}.".replace("-", "−"),
        contradicted=lower > _AT,
    )


data_set = functools.partial(load_data, "wine", stand_in=True)
