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
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from dpjax.bayes.regression import (
    PerturbedStatistics,
    RegressionBounds,
    RegressionPosterior,
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
from experiments.lib.registry import Experiment, Record, Result, Row, RowContext

_LEVEL = 0.9
_SIZES = {
    "quick": (100, 1_000, 10_000, 30_000),
    "paper": (100, 300, 1_000, 3_000, 10_000, 30_000, 100_000),
}
_PRIOR: dict[str, Any] = {"prior_precision": 1.0, "noise_shape": 10.0, "noise_rate": 2.25}
_LINES = {"noise-aware": CERTIFIED, "naive": PALETTE[1], "exact": MEASURED}


@dataclass(frozen=True)
class Settings:
    """How data sets are drawn, released and fitted.

    Attributes:
      num_examples: n, public: neighbours replace a record.
      num_features: each uniform on an interval around zero, of norm one at most together.
      y_size: bound on the targets, four of their standard deviations.
      epsilon: of the release.
      delta: likewise.
      num_data_sets: each with coefficients and a variance of its own, drawn from the prior.
      num_draws: of the sampler.
      num_warmup: likewise.
      seed: of everything.
    """

    num_examples: int
    num_features: int = 2
    y_size: float = 2.5
    epsilon: float = 1.0
    delta: float = 1e-5
    num_data_sets: int = 400
    num_draws: int = 400
    num_warmup: int = 150
    seed: int = 0

    @property
    def release(self) -> tuple[int, float, float, float]:
        """What the mechanism depends on, delta last."""
        return self.num_features, self.y_size, self.epsilon, self.delta

    def mechanism(self) -> PerturbedStatistics:
        """The release of the three statistics."""
        return _mechanism(*self.release)


def _mechanism(
    num_features: int, y_size: float, epsilon: float, delta: float
) -> PerturbedStatistics:
    bounds = RegressionBounds(x_norm=1.0, y_size=y_size)
    return PerturbedStatistics.from_epsilon(
        bounds, epsilon=epsilon, delta=delta, adjacency="replace_one", num_features=num_features
    )


@functools.cache
def _certificate(*release: Any) -> Certificate:
    """The same for all sizes of the data sets; the last setting is delta."""
    return _mechanism(*release).certificate(release[-1])


class Simulated(NamedTuple):
    """Data sets as a posterior sees them, and the truth about each."""

    exact: RegressionStatistics
    released: RegressionStatistics
    beta: jax.Array
    new_x: jax.Array
    new_y: jax.Array


def simulate(settings: Settings) -> Simulated:
    """Draws the data sets, each with one new record beside it: leading axis ``num_data_sets``."""
    mechanism, sets = settings.mechanism(), settings.num_data_sets
    keys = jax.random.split(jax.random.key(settings.seed), 4)
    gammas = jax.random.gamma(keys[0], _PRIOR["noise_shape"], (sets,))
    spread = jnp.sqrt(_PRIOR["noise_rate"] / gammas)
    normals = jax.random.normal(keys[1], (sets, settings.num_features))
    beta = spread[:, None] * normals / math.sqrt(_PRIOR["prior_precision"])

    def draw(given: Any) -> tuple[RegressionStatistics, jax.Array, jax.Array]:
        x, y = _draw_records(settings.num_examples + 1, *given)
        exact = sufficient_statistics(*mechanism.bounds.clip(x[1:], y[1:]))
        return exact, x[:1], y[:1]

    given = (jax.random.split(keys[2], sets), beta, spread)
    exact, new_x, new_y = jax.lax.map(draw, given)
    released = jax.vmap(mechanism.release)(jax.random.split(keys[3], sets), exact)
    return Simulated(exact, released, beta, new_x, new_y)


def _draw_records(
    num_examples: int, key: jax.Array, beta: jax.Array, spread: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Features and targets of one data set."""
    x_key, noise_key = jax.random.split(key)
    shape = (num_examples, len(beta))
    x = jax.random.uniform(x_key, shape, minval=-1.0, maxval=1.0) / math.sqrt(len(beta))
    return x, x @ beta + spread * jax.random.normal(noise_key, (num_examples,))


def noise_aware_intervals(settings: Settings, data: Simulated) -> tuple[Interval, Interval]:
    """Returns intervals of every data set's coefficients, and of its new record's target."""
    keys = jax.random.split(jax.random.key(settings.seed + 1), settings.num_data_sets)
    fit = _compiled_fit(*settings.release, settings.num_draws, settings.num_warmup)
    return fit(keys, data.released, data.new_x, float(settings.num_examples))


@functools.cache
def _compiled_fit(*settings: Any) -> Any:
    """Compiled once for all sizes of the data sets."""
    *release, num_draws, num_warmup = settings
    mechanism = _mechanism(*release)

    def fit(key: jax.Array, released: RegressionStatistics, new_x: jax.Array, n: Any) -> Any:
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
    """Returns the same from the posterior that takes the repaired release for exact."""
    floor = largest_noise_eigenvalue(settings.mechanism().noise_scales.xtx)
    repaired = jax.vmap(lambda released: repair(released, floor))(data.released)
    return exact_intervals(settings, data._replace(exact=repaired))


def exact_intervals(settings: Settings, data: Simulated) -> tuple[Interval, Interval]:
    """Returns the same from the posterior given exact statistics."""

    def fit(exact: RegressionStatistics, new_x: jax.Array) -> tuple[Prediction, Prediction]:
        posterior = unknown_noise_posterior(exact, settings.num_examples, **_PRIOR)
        return _marginals(posterior), posterior.predict(new_x)

    marginals, predictions = jax.vmap(fit)(data.exact, data.new_x)
    return _interval(marginals), _interval(predictions)


def _marginals(posterior: RegressionPosterior) -> Prediction:
    """The Student laws of the coefficients, one by one."""
    shape = posterior.shape
    scale = jnp.sqrt(jnp.diagonal(posterior.covariance) * (shape - 1) / shape)
    return Prediction(posterior.mean, scale, 2 * shape)


def _interval(laws: Prediction) -> Interval:
    """Intervals of laws stacked over data sets, whose degrees of freedom are all the same."""
    return laws._replace(degrees_of_freedom=laws.degrees_of_freedom[0]).interval(_LEVEL)


def coverage(intervals: Interval, truth: jax.Array) -> float:
    """Returns how many of the intervals hold their truth, in percent."""
    return 100 * float(jnp.mean((intervals.low <= truth) & (truth <= intervals.high)))


def _rows(profile: str) -> list[Row]:
    sizes = {"num_data_sets": 2_000, "num_draws": 1_000, "num_warmup": 300}
    more = sizes if profile == "paper" else {}
    return [
        Row(f"n = {size:,}", dataclasses.asdict(Settings(size, **more)), {})
        for size in _SIZES[profile]
    ]


def _run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    data = simulate(settings)
    ways = {
        "noise-aware": noise_aware_intervals(settings, data),
        "naive": naive_intervals(settings, data),
        "exact": exact_intervals(settings, data),
    }
    measured = {}
    for name, (coefficients, predictions) in ways.items():
        measured[f"{name}, coefficients %"] = coverage(coefficients, data.beta)
        measured[f"{name}, predictions %"] = coverage(predictions, data.new_y)
    certificate = _certificate(*settings.release)
    return Result(
        measured=measured,
        certified={"ε": certificate.epsilon},
        note="Simulated data. The certified ε is that of one data set's release; the exact"
        " statistics are not private. Seeded keys: the noise is reproducible.",
        series={"lengths": {name: _length(parts[0]) for name, parts in ways.items()}},
        certificate=str(certificate),
    )


def _length(intervals: Interval) -> float:
    return float(jnp.mean(intervals.high - intervals.low))


def _figures(records: Sequence[Record]) -> dict[str, tuple[Figure, str]]:
    figure, axes = new_figure(columns=3, width=11.0, height=3.6)
    for panel, what in zip(axes[:2], ("coefficients", "predictions"), strict=True):
        _draw(panel, records, {name: f"{name}, {what} %" for name in _LINES})
        panel.axhline(100 * _LEVEL, color="black", linewidth=1, linestyle=":")
        panel.set(ylabel=f"coverage of 90 % intervals: {what} (%)", ylim=(0, 101))
    for name, colour in _LINES.items():
        lengths = [record.series["lengths"][name] for record in records]
        axes[2].loglog(_sizes(records), lengths, "o-", markersize=4, color=colour, label=name)
    axes[2].set(xlabel="records, n", ylabel="mean length, coefficients")
    axes[2].legend(loc="upper right")
    caption = (
        "How often 90 % intervals hold the truth, over data sets drawn from the prior, and how long"
        " they are. Noise-aware: the noise of the release is part of the model. Naive: the repaired"
        " release is taken for exact. Exact: no noise, no privacy."
    )
    return {"coverage": (figure, caption)}


def _draw(axes: Axes, records: Sequence[Record], columns: dict[str, str]) -> None:
    for name, column in columns.items():
        values = [record.measured[column] for record in records]
        axes.semilogx(_sizes(records), values, "o-", markersize=4, color=_LINES[name], label=name)
    axes.set(xlabel="records, n")


def _sizes(records: Sequence[Record]) -> list[int]:
    return [record.settings["num_examples"] for record in records]


def _remarks(records: Sequence[Record]) -> list[str]:
    aware, naive = "noise-aware, coefficients %", "naive, coefficients %"
    low, high = (pick(record.measured[aware] for record in records) for pick in (min, max))
    failing = [record.row for record in records if record.measured[naive] < 80]
    said = f"The noise-aware intervals cover between {low:.1f} and {high:.1f} % of the coefficients"
    if not failing:
        return [f"{said}; no naive interval falls below 80 %."]
    return [f"{said}; the naive ones fall below 80 % at {'; '.join(failing)}."]


EXPERIMENT = Experiment(
    name="bayes_coverage",
    title="Coverage of a private regression's credible intervals",
    source="Honkela (2017), slides; method of Bernstein and Sheldon (2019)",
    description=(
        "A linear regression is fitted to one private release of X^T X, X^T y and y^T y, with"
        " Gaussian noise at ε = 1, δ = 1e-5 (neighbours replace one record). Over many data sets,"
        " how often does a 90 % credible interval hold the coefficient, and a 90 % prediction"
        " interval the target of a new record?\n\n"
        "The source takes the noisy statistics for exact (naive). The noise-aware posterior of"
        " Bernstein and Sheldon has the exact statistics as unknowns; NUTS draws them here, with"
        " the parameters integrated out. Both read the same release and have the same prior, from"
        " which the simulated data sets have their coefficients and variances, so that exact"
        " statistics cover 90 %."
    ),
    rows=_rows,
    run_row=_run_row,
    figures=_figures,
    remarks=_remarks,
)
