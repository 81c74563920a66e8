"""Coverage of credible intervals of a private linear regression, noise-aware and naive.

``python -m experiments run bayes_coverage``: under half a minute on two CPU cores in the quick
profile, some minutes in the paper profile. The data are simulated.
"""

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from matplotlib.figure import Figure

from dpjax._typing import PyTree
from dpjax.bayes.regression import (
    PerturbedStatistics,
    RegressionBounds,
    RegressionStatistics,
    coefficient_interval,
    largest_noise_eigenvalue,
    noise_aware_posterior,
    prediction_interval,
    repair,
    sufficient_statistics,
    unknown_noise_posterior,
)
from dpjax.bayes.regression.posterior import Prediction
from dpjax.certificates import Certificate
from dpjax.mechanisms.base import Interval
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.plots import draw_curve
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column

_LEVEL = 0.9
_SIZES = {
    "quick": (100, 1_000, 10_000, 30_000),
    "paper": (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000),
}
_PAPER = {"num_data_sets": 2_000, "num_draws": 1_000, "num_warmup": 300}
_PRIOR: dict[str, Any] = {"prior_precision": 1.0, "noise_shape": 10.0, "noise_rate": 2.25}
_LINES = {"noise-aware": CERTIFIED, "naive": PALETTE[1], "exact": MEASURED}


@dataclass(frozen=True)
class Settings:
    """Size of the data sets, budget of their release, and length of the chains."""

    num_examples: int  # public, under replacement
    num_features: int = 2  # uniform around zero, with norm at most one
    y_size: float = 2.5  # bound on the targets, four standard deviations
    epsilon: float = 1.0
    delta: float = 1e-5
    # each with parameters drawn from the prior
    num_data_sets: int = 400
    num_draws: int = 400
    num_warmup: int = 150
    seed: int = 0

    @property
    def release(self) -> tuple[int, float, float, float]:
        """Arguments of the mechanism: features, bound on the targets, epsilon, delta."""
        return self.num_features, self.y_size, self.epsilon, self.delta

    def mechanism(self) -> PerturbedStatistics:
        """Returns the mechanism that releases the sufficient statistics."""
        return _mechanism(*self.release)


def _mechanism(
    num_features: int, y_size: float, epsilon: float, delta: float
) -> PerturbedStatistics:
    bounds = RegressionBounds(x_norm_bound=1.0, y_bound=y_size)
    return PerturbedStatistics.from_epsilon(
        bounds, epsilon=epsilon, delta=delta, adjacency="replace_one", num_features=num_features
    )


@functools.cache
def _certificate(*release: Any) -> Certificate:
    """Returns the certificate, which does not depend on the number of records."""
    return _mechanism(*release).certificate(release[-1])


class Simulated(NamedTuple):
    """Exact and released statistics, coefficients and a new record of each data set."""

    exact: RegressionStatistics
    released: RegressionStatistics
    beta: jax.Array
    new_x: jax.Array
    new_y: jax.Array


def simulate(settings: Settings) -> Simulated:
    """Draws the data sets with one new record each; leading axis ``num_data_sets``."""
    mechanism, sets = settings.mechanism(), settings.num_data_sets
    shape = (settings.num_examples + 1, settings.num_features)
    keys = jax.random.split(jax.random.key(settings.seed), 4)
    gammas = jax.random.gamma(keys[0], _PRIOR["noise_shape"], (sets,))
    spread = jnp.sqrt(_PRIOR["noise_rate"] / gammas)
    normals = jax.random.normal(keys[1], (sets, settings.num_features))
    beta = spread[:, None] * normals / math.sqrt(_PRIOR["prior_precision"])

    def draw(given: Any) -> tuple[RegressionStatistics, jax.Array, jax.Array]:
        key, beta, spread = given
        x_key, noise_key = jax.random.split(key)
        x = jax.random.uniform(x_key, shape, minval=-1.0, maxval=1.0) / math.sqrt(len(beta))
        y = x @ beta + spread * jax.random.normal(noise_key, shape[:1])
        return sufficient_statistics(*mechanism.bounds.clip(x[1:], y[1:])), x[:1], y[:1]

    exact, new_x, new_y = jax.lax.map(draw, (jax.random.split(keys[2], sets), beta, spread))
    released = jax.vmap(mechanism.release)(jax.random.split(keys[3], sets), exact)
    return Simulated(exact, released, beta, new_x, new_y)


def noise_aware_intervals(settings: Settings, data: Simulated) -> tuple[Interval, Interval]:
    """Returns intervals of the coefficients, and of the new target, for every data set."""
    keys = jax.random.split(jax.random.key(settings.seed + 1), settings.num_data_sets)
    fit = _compiled_fit(*settings.release, settings.num_draws, settings.num_warmup)
    return fit(keys, data.released, data.new_x, float(settings.num_examples))


@functools.cache
def _compiled_fit(*settings: Any) -> PyTree:
    """Returns the fit, compiled once for all numbers of records."""
    *release, num_draws, num_warmup = settings
    mechanism = _mechanism(*release)

    def fit(key: jax.Array, released: RegressionStatistics, new_x: jax.Array, n: Any) -> PyTree:
        chain_key, new_key = jax.random.split(key)
        draws = noise_aware_posterior(
            chain_key,
            mechanism,
            released,
            num_examples=n,
            **_PRIOR,
            num_draws=num_draws,
            num_warmup=num_warmup,
            num_chains=1,
        )
        predicted = prediction_interval(new_key, draws, new_x, _LEVEL)
        return coefficient_interval(draws, _LEVEL), predicted

    return jax.jit(jax.vmap(fit, in_axes=(0, 0, 0, None)))


def naive_intervals(settings: Settings, data: Simulated) -> tuple[Interval, Interval]:
    """Returns intervals of the posterior that treats the repaired release as exact."""
    floor = largest_noise_eigenvalue(settings.mechanism().noise_scales.xtx)
    repaired = jax.vmap(lambda released: repair(released, floor))(data.released)
    return exact_intervals(settings, data._replace(exact=repaired))


def exact_intervals(settings: Settings, data: Simulated) -> tuple[Interval, Interval]:
    """Returns intervals of the posterior given exact statistics."""

    def fit(exact: RegressionStatistics, new_x: jax.Array) -> tuple[Prediction, Prediction]:
        posterior = unknown_noise_posterior(exact, settings.num_examples, **_PRIOR)
        shape = posterior.shape
        # Student marginals of the coefficients.
        scale = jnp.sqrt(jnp.diagonal(posterior.covariance) * (shape - 1) / shape)
        return Prediction(posterior.mean, scale, 2 * shape), posterior.predict(new_x)

    coefficients, targets = (
        # All data sets have the same degrees of freedom.
        each._replace(degrees_of_freedom=each.degrees_of_freedom[0]).interval(_LEVEL)
        for each in jax.vmap(fit)(data.exact, data.new_x)
    )
    return coefficients, targets


def coverage(intervals: Interval, truth: jax.Array) -> float:
    """Returns the coverage of the intervals in percent."""
    return 100 * float(jnp.mean((intervals.low <= truth) & (truth <= intervals.high)))


def rows(profile: str) -> list[Row]:
    changes = _PAPER if profile == "paper" else {}
    return [
        Row(f"n = {size:,}", dataclasses.asdict(Settings(size, **changes)), {})
        for size in _SIZES[profile]
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    data = simulate(settings)
    intervals = {
        "noise-aware": noise_aware_intervals(settings, data),
        "naive": naive_intervals(settings, data),
        "exact": exact_intervals(settings, data),
    }
    measured, lengths = {}, {}
    for name, (coefficients, predictions) in intervals.items():
        measured[f"{name}, coefficients %"] = coverage(coefficients, data.beta)
        measured[f"{name}, predictions %"] = coverage(predictions, data.new_y)
        lengths[name] = float(jnp.mean(coefficients.high - coefficients.low))
    certificate = _certificate(*settings.release)
    return Result(
        measured=measured,
        certified={"ε": certificate.epsilon},
        note="Simulated data. The certified ε is that of one data set's release; the exact"
        " statistics are not private. Seeded keys: the noise is reproducible.",
        series={"lengths": lengths},
        certificate=str(certificate),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    figure, panels = new_figure(columns=3, width=11.0, height=3.6)
    sizes = [record.settings["num_examples"] for record in records]
    for name, colour in _LINES.items():
        style: dict[str, Any] = {"color": colour, "label": name, "markersize": 4}
        for axes, what in zip(panels, ("coefficients", "predictions"), strict=False):
            draw_curve(axes, sizes, column(records, f"{name}, {what} %"), **style)
            axes.set(ylabel=f"coverage of 90 % intervals: {what} (%)", ylim=(0, 101))
        lengths = [record.series["lengths"][name] for record in records]
        draw_curve(panels[2], sizes, lengths, **style)
    for axes in panels:
        axes.set(xscale="log", xlabel="records, n")
    for axes in panels[:2]:
        axes.axhline(100 * _LEVEL, color="black", linewidth=1, linestyle=":")
    panels[2].set(yscale="log", ylabel="mean length, coefficients")
    panels[2].legend(loc="upper right")
    return {"coverage": figure}


def finding(records: Sequence[Record]) -> Finding:
    aware, naive = (
        column(records, f"{which}, coefficients %") for which in ("noise-aware", "naive")
    )
    return Finding(
        "not compared",
        "The source publishes no coverage; its naive 90 % intervals cover"
        f" {min(naive):.1f} to {max(naive):.1f} % of the coefficients, and noise-aware ones"
        f" {min(aware):.1f} to {max(aware):.1f} %.",
    )
