"""Random allocation: certified ε from both ends against Monte Carlo, and against Poisson sampling.

``python -m experiments run accounting_allocation``: accounting alone, a minute on two CPU
cores under ``quick``, and with eight times as many samples four minutes under ``paper``.
"""

import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from dp_accounting import DpEvent
from matplotlib.figure import Figure
from scipy.optimize import brentq

import dpjax
from dpjax.accounting import epsilon_bounds, profile_bounds
from dpjax.accounting.loss_distribution import Direction
from experiments.lib.figures import CERTIFIED, MEASURED
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_curve, draw_nonempty, legend_below, panel_grid, set_log_ticks
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import MeanAndError, mean_and_error
from experiments.lib.verdicts import Comparison, group_by

Array = npt.NDArray[np.float64]
Samples = npt.NDArray[np.float32]

REMOVE, ADD, POISSON = "ε, remove", "ε, add", "ε, Poisson"
RATIO = "δ there, of δ"
NOISE, NOISE_POISSON, SAVED = "σ", "σ, Poisson", "noise saved %"
CURVES = "ε by σ"
LOWER, SAMPLED, ERROR = "{}, lower", "{}, Monte Carlo", "{}, error of Monte Carlo"
_DIRECTIONS: dict[Direction, str] = {"remove": REMOVE, "add": ADD}
# Normal numbers drawn for each order, the repetitions that they are divided among, and the fewest
# samples of a loss.
_NUM_DRAWS = {"quick": 2**23, "paper": 2**27}
_REPETITIONS, _FEWEST = 16, 2**12
# With larger tilts nearly all terms would be rejected.
_MOST_TILT = 5.0
# Steps t, noise multiplier, δ, epochs; ε of removal, of addition, and of Poisson sampling.
_EPOCHS = (
    ((10, 1.0, 1e-5, 1), (2.188848, 1.36488, 2.8545)),
    ((100, 1.0, 1e-3, 1), (0.298051, 0.256081, 0.3408)),
    ((100, 1.0, 1e-5, 1), (0.620940, 0.421955, 0.7180)),
    ((1_000, 1.0, 1e-5, 1), (0.138847, 0.126294, 0.1490)),
    ((1_000, 0.8, 1e-6, 1), (0.450044, 0.216202, 0.4677)),
    ((100, 0.6, 1e-3, 1), (1.60850, 0.6527, 1.83)),
    ((1_000, 0.6, 1e-3, 1), (0.369914, 0.20176, 0.402)),
    ((10_000, 0.7, 1e-6, 1), (0.15638, 0.0875, None)),
    ((100, 1.0, 1e-5, 10), (1.7015, 1.5477, 1.8282)),
    ((100, 0.8, 1e-5, 10), (2.9079, 2.2570, 3.1410)),
    ((50, 1.0, 1e-5, 40), (5.3470, 5.0194, 5.6158)),
    ((200, 1.0, 1e-8, 5), (1.3353, 1.0121, 1.4072)),
)
# Participations k in 100 steps; ε of k blocks, and δ there by Monte Carlo.
_BLOCKS = ((2, (0.6777, 0.950)), (4, (1.5064, 0.850)))
# Steps and target ε of one epoch; the least noise multiplier.
_CALIBRATIONS = (((100, 1.0), 0.8731), ((100, 3.0), 0.6295), ((1_000, 1.0), 0.6373))
# Steps and epochs.
_CURVES = ((100, 1), (100, 10), (1_000, 1))
_NOISES = (0.6, 0.7, 0.8, 1.0, 1.25, 1.5, 2.0, 3.0, 4.0)
_DELTA = 1e-5


class Losses(NamedTuple):
    """Samples of a privacy loss with weights, whose mean is 1."""

    losses: Array
    weights: Array

    def delta(self, epsilon: float) -> float:
        """Returns an unbiased estimate of δ at ``epsilon``."""
        return float(np.mean(self.weights * np.maximum(-np.expm1(epsilon - self.losses), 0.0)))


def mechanism(
    num_steps: int, noise: float, epochs: int = 1, *, participations: int = 1, poisson: bool = False
) -> dpjax.SubsampledGaussian:
    """Returns DP-SGD by random allocation, or by Poisson sampling at the same rate.

    One record is in ``participations`` of the ``num_steps`` steps of an epoch. The number of
    records and the clip bound do not matter for ε.
    """
    sampling: Any = dpjax.AllocatedSampling(
        num_steps, steps_per_epoch=num_steps, participations=participations
    )
    if poisson:
        sampling = dpjax.PoissonSampling(num_steps, participations / num_steps)
    return dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=noise,
        num_steps=epochs * num_steps,
        adjacency="zero_out",
    )


def bounds_in_order(event: DpEvent, delta: float, direction: Direction) -> tuple[float, float]:
    """Returns the lower and the upper bound on ε in one order of the neighbours.

    By profiles at two hundred values of ε, refined once.
    """
    most = 1.01 * epsilon_bounds(event, delta, adjacency="zero_out").upper
    ends = [(0.0, most), (0.0, most)]
    for _ in range(2):
        lower_grid, upper_grid = (np.linspace(*end, 201) for end in ends)
        lower = profile_bounds(event, lower_grid, adjacency="zero_out", direction=direction).lower
        upper = profile_bounds(event, upper_grid, adjacency="zero_out", direction=direction).upper
        # δ falls: the last ε where it is above the target, and the first where it is not.
        last, first = int(np.sum(lower > delta)) - 1, int(np.sum(upper > delta))
        ends = [tuple(lower_grid[last : last + 2]), tuple(upper_grid[first - 1 : first + 1])]
    return float(ends[0][0]), float(ends[1][1])


def sample_losses(
    generator: np.random.Generator,
    size: int,
    *,
    num_steps: int,
    noise: float,
    participations: int = 1,
    direction: str,
    near: float,
) -> Losses:
    """Samples the exact privacy loss of one epoch by importance sampling near a value.

    Without the record, noise z is standard normal; with it, its mean is mu in k of the t steps, the
    inverse of the noise multiplier. Samples are from a mixture in equal parts, one of which is the
    hypothesis itself. Weights are the density of the hypothesis over that of the mixture.

    Args:
      generator: of random numbers.
      size: number of samples.
      num_steps: t.
      noise: the noise multiplier.
      participations: k.
      direction: ``"remove"`` or ``"add"``.
      near: the loss that most samples are near to.
    """
    mu, times = 1 / noise, participations
    z = generator.standard_normal((size, num_steps), np.float32)
    if direction == "add":
        # Half of the samples have rare large terms.
        tilt, log_mean = _tilt_of_terms(mu, math.exp(-near / times))
        _redraw(generator, z[::2], lambda part: np.exp(-tilt * _ratio(part, mu)))
        total = _ratio(z, mu).sum(axis=1, dtype=np.float64)
        densities = [np.ones(size), np.exp(-tilt * total - num_steps * log_mean)]
        return Losses(-np.log(_density(z, mu, times)), densities[0] / np.mean(densities, axis=0))

    # Means of any k steps, of which the first stand for all, or a mean of all steps.
    top = math.log1p(num_steps / times * math.expm1(near / times))
    means = [(mu, times), (max(mu, top / mu + mu / 2), times), (near / times / mu, num_steps)]
    for number, (mean, count) in enumerate(means):
        z[number :: len(means), :count] += np.float32(mean)
    densities = [_density(z, mean, count) for mean, count in means]
    return Losses(np.log(densities[0]), densities[0] / np.mean(densities, axis=0))


def _tilt_of_terms(mu: float, mean: float) -> tuple[float, float]:
    """Returns a tilt, and the logarithm of the mean of exp(-tilt w) for lognormal w of mean 1.

    With density in proportion to exp(-tilt w), w has the mean ``mean``, or a larger one where the
    tilt is the largest. By the trapezoidal rule, which is exact but for rounding.
    """
    z = np.linspace(-12.0, 12.0, 4001)
    masses, w = np.exp(-(z**2) / 2), np.exp(mu * z - mu**2 / 2)

    def excess(tilt: float) -> float:
        return float(np.average(w, weights=masses * np.exp(-tilt * w))) - mean

    tilt = float(brentq(excess, 0.0, _MOST_TILT)) if excess(_MOST_TILT) < 0 else _MOST_TILT
    return tilt, math.log(np.average(np.exp(-tilt * w), weights=masses))


def _redraw(
    generator: np.random.Generator, z: Samples, acceptance: Callable[[Samples], Samples]
) -> None:
    """Draws those of ``z`` again that are rejected, until none is."""
    rejected = generator.random(z.shape, np.float32) > acceptance(z)
    while count := np.count_nonzero(rejected):
        z[rejected] = generator.standard_normal(count, np.float32)
        rejected[rejected] = generator.random(count, np.float32) > acceptance(z[rejected])


def _ratio(z: Samples, mean: float) -> Samples:
    """Returns the density of a normal with this mean over that of mean zero."""
    return np.exp(np.float32(mean) * z - np.float32(mean**2 / 2))


def _density(z: Samples, mean: float, count: int) -> Array:
    """Returns the density of normals with a mean in ``count`` random columns, over that without.

    It is the elementary symmetric polynomial of the ratios of single columns over its number of
    terms.
    """
    num_steps = z.shape[1]
    if count == num_steps:
        total = z.sum(axis=1, dtype=np.float64)
        return np.exp(mean * total - num_steps * mean**2 / 2)
    terms = _ratio(z, mean)
    if count == 1:
        return terms.mean(axis=1, dtype=np.float64)
    sums = np.zeros((count + 1, len(z)))
    sums[0] = 1.0
    for term in terms.T:
        sums[1:] += sums[:-1] * term
    return sums[-1] / math.comb(num_steps, count)


def compose(generator: np.random.Generator, one: Losses, epochs: int, near: float) -> Losses:
    """Returns samples of sums of ``epochs`` losses, drawn from ``one`` with more large ones.

    With probabilities in proportion to exp(tilt loss), so that the mean of the sums is ``near``.
    """
    if epochs == 1:
        return one

    def tilted(tilt: float) -> Array:
        return one.weights * np.exp(tilt * one.losses)

    def excess(tilt: float) -> float:
        return epochs * float(np.average(one.losses, weights=tilted(tilt))) - near

    tilt = brentq(excess, 0.0, 100.0) if excess(0.0) < 0 else 0.0
    shares = tilted(tilt)
    size = len(one.losses)
    chosen = generator.choice(one.losses, (size, epochs), p=shares / shares.sum())
    sums = chosen.sum(axis=1)
    return Losses(sums, np.exp(epochs * math.log(shares.mean()) - tilt * sums))


def monte_carlo(
    settings: Values, direction: str, near: float, delta: float
) -> tuple[Callable[[float], MeanAndError], MeanAndError]:
    """Returns δ as a function of ε, and ε at ``delta``, with standard errors, by sampling.

    The errors are those of the mean over independent repetitions; that of ε is the error of δ over
    the slope.
    """
    size = max(settings["draws"] // settings["num_steps"], _FEWEST) // _REPETITIONS
    epochs = settings["epochs"]
    samples = []
    for seed in range(_REPETITIONS):
        generator = np.random.default_rng((settings["seed"], seed, direction == "add"))
        one = sample_losses(
            generator,
            size,
            num_steps=settings["num_steps"],
            noise=settings["noise_multiplier"],
            participations=settings["participations"],
            direction=direction,
            near=near / epochs,
        )
        samples.append(compose(generator, one, epochs, near))

    def deltas(epsilon: float) -> MeanAndError:
        return mean_and_error([each.delta(epsilon) for each in samples])

    epsilon = float(brentq(lambda x: deltas(x).mean - delta, 0.0, 2 * near))
    step = 1e-3 * epsilon
    slope = (deltas(epsilon - step).mean - deltas(epsilon + step).mean) / (2 * step)
    return deltas, MeanAndError(epsilon, deltas(epsilon).error / slope)


def rows(profile: str) -> list[Row]:
    sampled = {"draws": _NUM_DRAWS[profile], "seed": 0}
    rows = []

    # One step of each epoch.
    for (steps, noise, delta, epochs), figures in _EPOCHS:
        settings = {
            "part": "epochs", "num_steps": steps, "noise_multiplier": noise, "delta": delta,
            "epochs": epochs, "participations": 1, **sampled,
        }  # fmt: skip
        many = f", {epochs} epochs" if epochs > 1 else ""
        name = f"t = {steps:,}, σ = {noise:g}, δ = {format_value(delta)}{many}"
        rows.append(Row(name, settings, dict(zip((REMOVE, ADD, POISSON), figures, strict=True))))

    # One step of each of several blocks.
    for times, (epsilon, ratio) in _BLOCKS:
        settings = {
            "part": "blocks", "num_steps": 100, "noise_multiplier": 1.0, "delta": 1e-3,
            "epochs": 1, "participations": times, **sampled,
        }  # fmt: skip
        rows.append(Row(f"{times} of 100 steps, σ = 1", settings, {REMOVE: epsilon, RATIO: ratio}))

    # Noise for a target ε, and ε over noise.
    for (steps, epsilon), noise in _CALIBRATIONS:
        settings = {"part": "noise", "num_steps": steps, "epsilon": epsilon, "delta": _DELTA}
        rows.append(Row(f"σ at ε = {epsilon:g}, t = {steps:,}", settings, {NOISE: noise}))
    for steps, epochs in _CURVES:
        settings = {"part": "curve", "num_steps": steps, "epochs": epochs, "delta": _DELTA}
        many = f"{epochs} epochs" if epochs > 1 else "one epoch"
        rows.append(Row(f"ε by σ, t = {steps:,}, {many}", {**settings, "noises": _NOISES}, {}))
    return rows


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    if settings["part"] == "noise":
        return _run_calibration(settings)
    if settings["part"] == "curve":
        return _run_curve(settings)

    # Random allocation, and Poisson sampling at the same rate.
    plan = mechanism(
        settings["num_steps"],
        settings["noise_multiplier"],
        settings["epochs"],
        participations=settings["participations"],
    )
    poisson = dataclasses.replace(
        plan,
        sampling=dpjax.PoissonSampling(
            settings["num_steps"], settings["participations"] / settings["num_steps"]
        ),
    )

    # Both bounds in both orders of neighbours, beside Monte Carlo.
    measured: dict[str, float] = {}
    certified: dict[str, float] = {}
    delta = settings["delta"]
    for direction, name in _DIRECTIONS.items():
        lower, upper = bounds_in_order(plan.event, delta, direction)
        certified |= {name: upper, LOWER.format(name): lower}
        deltas, epsilon = monte_carlo(settings, direction, upper, delta)
        measured |= {SAMPLED.format(name): epsilon.mean, ERROR.format(name): epsilon.error}
        if settings["part"] == "blocks" and direction == "remove":
            measured[RATIO] = deltas(upper).mean / delta
    certified[POISSON] = epsilon_bounds(poisson.event, delta, adjacency="zero_out").upper
    note = "Monte Carlo: importance sampling of the exact loss, with its standard error."
    return Result(measured, certified, note)


def _run_calibration(settings: Values) -> Result:
    """Returns the least noise multipliers for a target ε, in one epoch."""
    budget = {"epsilon": settings["epsilon"], "delta": settings["delta"]}
    found = [
        dpjax.calibrate(mechanism(settings["num_steps"], 1.0, poisson=poisson), **budget)
        for poisson in (False, True)
    ]
    noise, other = (float(np.max(each.noise_multiplier)) for each in found)
    return Result(
        measured={NOISE: noise, NOISE_POISSON: other, SAVED: 100 * (1 - noise / other)},
        certified={"ε": found[0].certificate(settings["delta"]).epsilon},
    )


def _run_curve(settings: Values) -> Result:
    """Returns both bounds on ε by the noise multiplier, and the upper one of Poisson sampling."""
    points: dict[str, list[tuple[float, float]]] = {"upper": [], "lower": [], "Poisson": []}
    for noise in settings["noises"]:
        for poisson in (False, True):
            plan = mechanism(settings["num_steps"], noise, settings["epochs"], poisson=poisson)
            bounds = epsilon_bounds(plan.event, settings["delta"], adjacency="zero_out")
            points["Poisson" if poisson else "upper"].append((noise, bounds.upper))
            if not poisson:
                points["lower"].append((noise, bounds.lower))

    # The row has the largest ratios.
    upper, lower, other = (np.array(part)[:, 1] for part in points.values())
    return Result(
        measured={"width of the bracket %": 100 * float(np.max(1 - lower / upper))},
        certified={"ε over Poisson's": float(np.max(upper / other))},
        note="The largest of all σ. Poisson's is the upper bound.",
        series={CURVES: points},
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    curves = group_by(records, "part").get("curve", [])
    return draw_nonempty(epsilons=(_draw_curves, curves))


def _draw_curves(records: Sequence[Record]) -> Figure:
    figure, panels = panel_grid(len(records), 3, 9.6, 3.6)
    for axes, record in zip(panels, records, strict=True):
        points = {name: np.array(each).T for name, each in record.series[CURVES].items()}
        x, y = points["upper"]
        band = points["lower"][1], y
        draw_curve(axes, x, y, band, color=CERTIFIED, label="random allocation")
        draw_curve(axes, *points["Poisson"], color=MEASURED, label="Poisson", linestyle="--")
        axes.set_title(record.row.removeprefix("ε by σ, "))
        set_log_ticks(axes, (0.03, 0.1, 0.3, 1, 3, 10), "", "y")
        set_log_ticks(axes, (0.6, 1, 2, 4), "noise multiplier σ")
    panels[0].set_ylabel("certified ε")
    legend_below(figure, panels)
    return figure


def remarks(records: Sequence[Record]) -> list[str]:
    parts, remarks = group_by(records, "part"), []

    # Bounds against Monte Carlo.
    sampled = [*parts.get("epochs", []), *parts.get("blocks", [])]
    if sampled:
        widths, deviations = [], []
        for record in sampled:
            for name in _DIRECTIONS.values():
                lower, upper = (record.certified[each] for each in (LOWER.format(name), name))
                widths.append(100 * (1 - lower / upper))
                if record.settings["part"] == "epochs":
                    mean, error = (record.measured[e.format(name)] for e in (SAMPLED, ERROR))
                    deviations.append(max(mean - upper, lower - mean, 0.0) / error)
        remarks.append(
            f"The upper and the lower bound differ by at most {max(widths):.2g} % in either order;"
            f" the Monte Carlo values of the {len(deviations)} brackets of one record in one step"
            f" of an epoch are at most {max(deviations, default=0.0):.1f} standard errors outside."
        )

    # Blocks against k of t steps.
    if blocks := parts.get("blocks"):
        excess = [
            100 * (r.certified[REMOVE] / r.measured[SAMPLED.format(REMOVE)] - 1) for r in blocks
        ]
        remarks.append(
            "One step of each of k blocks is not k of t steps at random, which a sampler could draw"
            f" as well: the ε of blocks is {min(excess):.1f} to {max(excess):.1f} % above that of"
            " k of t by Monte Carlo, for which there is no certificate."
        )

    # Noise against Poisson sampling.
    if noises := parts.get("noise"):
        saved = [record.measured[SAVED] for record in noises]
        remarks.append(
            f"At the same ε random allocation has {min(saved):.1f} to {max(saved):.1f} % less noise"
            " than Poisson sampling at the same rate. Dong and Özgür (2026) state up to 9.6 % less,"
            " in settings that are not these."
        )
    return remarks


def finding(records: Sequence[Record]) -> Finding:
    # Values of the source, and those here.
    pairs = [
        (record.certified[name], record.source[name])
        for record in records
        for name in (REMOVE, ADD, POISSON)
        if record.source.get(name)
    ]
    pairs += [
        (record.measured[NOISE], record.source[NOISE])
        for record in records
        if NOISE in record.source
    ]

    # Rows in which Poisson sampling has the smaller ε.
    larger = [
        record
        for record in records
        if POISSON in record.certified and record.certified[REMOVE] >= record.certified[POISSON]
    ]
    clause = (
        "random allocation has the smaller ε in every row"
        if not larger
        else f"Poisson sampling has the smaller ε in {len(larger)} rows"
    )
    comparison = Comparison("values of an independent program", tuple(pairs), 0.5, "%")
    return comparison.finding(clause)
