"""Coverage of noise-aware posteriors of DPSVI in conjugate families, and on Adult.

``python -m experiments run bayes_noise_aware``: four minutes on two CPU cores in the quick
profile, an hour and a half in the paper profile. The data are simulated, but for those of Adult.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from matplotlib.figure import Figure
from numpy.typing import NDArray
from numpyro.infer import init_to_median
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax._typing import PRNGKey
from dpjax.bayes import DPSVI
from dpjax.bayes.variational import DPSVIResult
from experiments.bayes import noise_aware_adult as adult
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.plots import draw_by_row, legend_below
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column, grid, make_rows, percent

Array = NDArray[Any]
Draws = dict[str, Array]

_LEVEL = 0.95
_NUM_DRAWS = 2_000
_TRIALS = 1_000  # of one binomial record
_NUM_FEATURES = 10  # of the regression, beside its intercept
_BURN_IN = 0.2
_STYLES = {
    "not private": (MEASURED, "x"),
    "noise-aware": (CERTIFIED, "D"),
    "averaged iterate": (PALETTE[4], "s"),
    "last iterate": (PALETTE[1], "o"),
}
_COMPARED = ("noise-aware", "averaged iterate", "last iterate")
_FEW_CLIPPED = 1.0  # percent
_UNCLIPPED = 8.0  # a bound that few records of the exponential family exceed
_UNCLIPPED_REGRESSION = 100.0  # five root mean squares of the regression's gradients
_ADULT, _ADULT_CLIP, _ADULT_RATE = "Adult", 8.0, 0.01  # with the learning rate of Adam
_LARGEST_MULTIPLIER = 80.0  # of the noise, at the largest learning rate


@dataclass(frozen=True)
class Family:
    """A conjugate model with its prior, its simulated data and its exact posterior.

    Attributes:
      model: the numpyro model of the records.
      l2_clip: the published clip bound.
      simulate: parameters drawn from the prior by name, and the records.
      posterior: draws of the exact posterior of the parameters that are compared.
      learning_rate: of Adam, from the prior's medians, where parameters differ in their curvature;
        ``None`` for SGD, whose rate follows from the bound.
    """

    model: Callable[..., None]
    l2_clip: float
    simulate: Callable[[np.random.Generator, int], tuple[Draws, tuple[Array, ...]]]
    posterior: Callable[[np.random.Generator, tuple[Array, ...]], Draws]
    learning_rate: float | None = None


def _exponential(y: jax.Array) -> None:
    rate = numpyro.sample("rate", dist.Gamma(8.0, 2.0))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Exponential(rate), obs=y)


def _simulate_exponential(rng: np.random.Generator, num: int) -> tuple[Draws, tuple[Array, ...]]:
    rate = np.asarray(rng.gamma(8.0, 1 / 2.0))
    return {"rate": rate}, (rng.exponential(1 / rate, num),)


def _exponential_posterior(rng: np.random.Generator, records: tuple[Array, ...]) -> Draws:
    (y,) = records
    return {"rate": rng.gamma(8.0 + len(y), 1 / (2.0 + y.sum()), _NUM_DRAWS)}


def _binomial(trials: int) -> Family:
    """A beta prior and records of some trials each."""

    def model(y: jax.Array) -> None:
        p = numpyro.sample("p", dist.Beta(10.0, 10.0))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Binomial(trials, probs=p), obs=y)

    def simulate(rng: np.random.Generator, num: int) -> tuple[Draws, tuple[Array, ...]]:
        p = np.asarray(rng.beta(10.0, 10.0))
        return {"p": p}, (rng.binomial(trials, p, num),)

    def posterior(rng: np.random.Generator, records: tuple[Array, ...]) -> Draws:
        (y,) = records
        successes = y.sum()
        return {"p": rng.beta(10 + successes, 10 + len(y) * trials - successes, _NUM_DRAWS)}

    return Family(model, 2.0 if trials == 1 else 50.0, simulate, posterior)


def _categories(y: jax.Array) -> None:
    p = numpyro.sample("p", dist.Dirichlet(jnp.full(3, 5.0)))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Categorical(p), obs=y)


def _simulate_categories(rng: np.random.Generator, num: int) -> tuple[Draws, tuple[Array, ...]]:
    p = rng.dirichlet(np.full(3, 5.0))
    return {"p": p}, (rng.choice(3, num, p=p),)


def _categories_posterior(rng: np.random.Generator, records: tuple[Array, ...]) -> Draws:
    return {"p": rng.dirichlet(5.0 + np.bincount(records[0], minlength=3), _NUM_DRAWS)}


def _regression(x: jax.Array, y: jax.Array) -> None:
    variance = numpyro.sample("variance", dist.InverseGamma(20.0, 0.5))
    prior = dist.Normal(0, 2 * jnp.sqrt(variance)).expand([x.shape[1]]).to_event(1)
    weights = numpyro.sample("weights", prior)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(x @ weights, jnp.sqrt(variance)), obs=y)


def _simulate_regression(rng: np.random.Generator, num: int) -> tuple[Draws, tuple[Array, ...]]:
    variance = np.asarray(0.5 / rng.gamma(20.0))
    weights = 2 * np.sqrt(variance) * rng.normal(size=1 + _NUM_FEATURES)
    x = np.column_stack([np.ones(num), rng.normal(size=(num, _NUM_FEATURES))])
    y = x @ weights + np.sqrt(variance) * rng.normal(size=num)
    return {"weights": weights, "variance": variance}, (x, y)


def _regression_posterior(rng: np.random.Generator, records: tuple[Array, ...]) -> Draws:
    x, y = records
    precision = x.T @ x + np.eye(x.shape[1]) / 4
    mean = np.linalg.solve(precision, x.T @ y)
    scale = 0.5 + (y @ y - mean @ precision @ mean) / 2
    variance = scale / rng.gamma(20.0 + len(y) / 2, size=_NUM_DRAWS)
    normals = rng.normal(size=(_NUM_DRAWS, x.shape[1])) @ np.linalg.inv(
        np.linalg.cholesky(precision)
    )
    return {"weights": mean + np.sqrt(variance)[:, None] * normals, "variance": variance}


FAMILIES = {
    "exponential": Family(_exponential, 2.0, _simulate_exponential, _exponential_posterior),
    "Bernoulli": _binomial(1),
    "binomial": _binomial(_TRIALS),
    "categorical": Family(_categories, math.sqrt(2), _simulate_categories, _categories_posterior),
    "regression": Family(_regression, 260.0, _simulate_regression, _regression_posterior, 0.01),
}


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """Clip bound, privacy budget, steps and data sets of one row."""

    l2_clip: float
    epsilon: float
    delta: float
    num_data_sets: int
    num_examples: int = 5_000
    sampling_rate: float = 0.1
    num_steps: int = 4_000
    seed: int = 0

    @property
    def mechanism(self) -> dpjax.SubsampledGaussian:
        """DP-SGD with the least noise for the budget."""
        return dpjax.dpsgd(
            num_examples=self.num_examples,
            batch_size=round(self.num_examples * self.sampling_rate),
            epochs=self.num_steps * self.sampling_rate,
            epsilon=self.epsilon,
            delta=self.delta,
            l2_clip=self.l2_clip,
            adjacency="zero_out",
        )


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Those of a row, and its conjugate family."""

    family: str
    delta: float = 1e-5


def coverage(draws: Array, truth: Array, level: float) -> tuple[Array, Array]:
    """Returns for each parameter whether its central interval covers the truth, and the length."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.ravel((low < truth) & (truth < high)), np.ravel(high - low)


@functools.cache
def inference(settings: Settings) -> DPSVI:
    """Returns DPSVI by SGD whose scale and rates follow from bound and number of records."""
    # With a clip bound of three root mean squares of records' gradients this is the posterior's
    # standard deviation; a step goes a tenth of the way to the optimum, or less with much noise.
    family = FAMILIES[settings.family]
    scale = 3 / (settings.l2_clip * math.sqrt(settings.num_examples))
    less = min(1.0, _LARGEST_MULTIPLIER / float(np.max(settings.mechanism.noise_multiplier)))
    optimizer = optax.partition(
        {"loc": optax.sgd(0.1 * less * scale**2), "scale": optax.sgd(0.1 * less**2 * scale)},
        lambda params: {name: name.rpartition("_")[2] for name in params},
    )
    model, guide = family.model, AutoNormal(family.model, init_scale=scale)
    if family.learning_rate is not None:
        optimizer = optax.adam(family.learning_rate)
        guide = AutoNormal(model, init_loc_fn=init_to_median, init_scale=0.01)
    return DPSVI(model, guide, optimizer, mechanism=settings.mechanism, gradient="aligned")


class Fit(NamedTuple):
    """Posterior draws of each compared method on one simulated data set.

    Attributes:
      truth: the parameters it was simulated from.
      records: the arguments of the model.
      draws: of each posterior, by its name.
      num_problems: how many checks of the trace failed.
      result: of the run.
    """

    truth: Draws
    records: tuple[Array, ...]
    draws: dict[str, Draws]
    num_problems: int
    result: DPSVIResult


def fit(settings: Settings, number: int) -> Fit:
    """Simulates one data set, runs DPSVI on it and draws from all posteriors of it."""
    family, svi = FAMILIES[settings.family], inference(settings)
    rng = np.random.default_rng((settings.seed, number))
    truth, records = family.simulate(rng, settings.num_examples)
    key, draw_key = jax.random.split(jax.random.key(1_000_000 * settings.seed + number))
    result = svi.run(key, *records, progress_bar=False)

    found, num_problems = _draw(result, draw_key)
    found["not private"] = family.posterior(rng, records)
    return Fit(truth, records, found, num_problems, result)


def _draw(result: DPSVIResult, key: PRNGKey) -> tuple[dict[str, Draws], int]:
    """Draws from the posteriors of a run, by method, and how many checks of the trace failed."""
    # The guide at the last iterate, around the average of the means, and noise-aware.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems are counted
        aware = result.noise_aware_posterior(burn_in=_BURN_IN)
        averages = result.averaged_params(burn_in=_BURN_IN)
    means = {name: averages[name] for name in aware.fits}
    averaged = dataclasses.replace(result, params={**result.params, **means})
    draws: dict[str, Any] = {
        "noise-aware": aware.posterior_samples(key, _NUM_DRAWS),
        "last iterate": result.posterior_samples(key, _NUM_DRAWS),
        "averaged iterate": averaged.posterior_samples(key, _NUM_DRAWS),
    }
    found = {
        method: {name: np.asarray(each[0], float) for name, each in values.items()}
        for method, values in draws.items()
    }
    return found, len(aware.problems)


def rows(profile: str) -> list[Row]:
    epsilons = (0.1, 0.3, 1.0) if profile == "paper" else (1.0,)
    clips = [
        (name, family.l2_clip)
        for name, family in FAMILIES.items()
        if profile == "paper" or name not in ("binomial", "regression")
    ]
    clips.insert(1, ("exponential", _UNCLIPPED))
    clips.append(("regression", _UNCLIPPED_REGRESSION))
    points = [
        {"family": name, "l2_clip": clip, "num_data_sets": num, **point}
        for name, clip in clips
        for num in [400 if profile == "paper" else 8 if name == "regression" else 24]
        for point in grid(epsilon=epsilons)
    ]
    settings = [
        (row.name, Settings(**row.settings))
        for row in make_rows("{family}, C = {l2_clip:.3g}, ε = {epsilon:g}", points)
    ]
    num_runs = 20 if profile == "paper" else 4
    settings += [
        (
            f"{_ADULT}, ε = {epsilon:g}",
            Settings(
                family=_ADULT,
                l2_clip=_ADULT_CLIP,
                epsilon=epsilon,
                num_data_sets=num_runs,
                num_examples=26_048,
            ),
        )
        for epsilon in epsilons
    ]
    return [Row(name, dataclasses.asdict(each), {}) for name, each in settings]


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    if settings.family == _ADULT:
        return _run_adult(settings)
    fits = [fit(settings, number) for number in range(settings.num_data_sets)]

    # Of each method the coverage of all parameters, and the length of their intervals.
    measured: dict[str, Any] = {}
    lengths = {}
    for method in _STYLES:
        intervals = [
            coverage(draws, each.truth[name], _LEVEL)
            for each in fits
            for name, draws in each.draws[method].items()
        ]
        covered, lengths[method] = map(np.concatenate, zip(*intervals, strict=True))
        measured[f"{method}, coverage %"] = percent(covered)
    for method in _COMPARED:
        ratio = np.median(lengths[method] / lengths["not private"])
        measured[f"{method}, length over not private"] = float(ratio)

    # What a user sees who simulates: records clipped at the end of the first run.
    result = fits[0].result
    report = result.svi.clipping_report(jax.random.key(0), result.state, *fits[0].records)
    measured["records clipped %"] = 100 * float(report.share_clipped)
    measured["runs with a warning %"] = percent([each.num_problems > 0 for each in fits])

    certificate = result.certificate(settings.delta)
    return Result(
        measured=measured,
        certified={"ε": certificate.epsilon},
        note="Simulated data. The certified ε is that of one run. Seeded keys: the noise is"
        " reproducible.",
        certificate=str(certificate),
    )


def _run_adult(settings: Settings) -> Result:
    """Private runs on one data set, beside NUTS without privacy."""
    train, test, note = adult.data()
    settings = dataclasses.replace(settings, num_examples=len(train.y))
    svi = DPSVI(
        adult.model,
        AutoNormal(adult.model, init_scale=0.02),
        optax.adam(_ADULT_RATE),
        mechanism=settings.mechanism,
        gradient="aligned",
        release_clipped_share=True,
    )

    # Of each run and method, intervals beside those of NUTS, and predictions of the test records.
    without = adult.draws_of_nuts()
    mean = without.mean(0)
    _, usual = coverage(without, mean, _LEVEL)
    found: dict[str, list[tuple[Array, Array, float]]] = {method: [] for method in _COMPARED}
    shares, warned = [], []
    for number in range(settings.num_data_sets):
        key, draw_key = jax.random.split(jax.random.key(1_000_000 * settings.seed + number))
        result = svi.run(key, *train, progress_bar=False)
        draws, num_problems = _draw(result, draw_key)
        for method, each in found.items():
            weights = draws[method]["weights"]
            inside, lengths = coverage(weights, mean, _LEVEL)
            each.append((inside, lengths / usual, adult.calibration_error(weights, test)))
        report = svi.clipping_report(jax.random.key(0), result.state, *train)
        shares.append(float(report.share_clipped))
        warned.append(num_problems > 0)

    measured: dict[str, Any] = {}
    for method, each in found.items():
        inside, ratios, errors = map(np.array, zip(*each, strict=True))
        measured[f"{method}, has the mean of NUTS %"] = percent(inside)
        measured[f"{method}, length over not private"] = float(np.median(ratios))
        measured[f"{method}, calibration error %"] = float(errors.mean())
    measured["not private, calibration error %"] = adult.calibration_error(without, test)
    measured["records clipped %"] = 100 * float(np.mean(shares))
    measured["runs with a warning %"] = percent(warned)

    certificate = svi.mechanism.certificate(settings.delta)
    return Result(
        measured=measured,
        certified={"ε": certificate.epsilon},
        note=f"{note} The certified ε is that of one run. Seeded keys: the noise is reproducible.",
        certificate=str(certificate),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    records = [record for record in records if record.settings["family"] != _ADULT]
    figure, (coverages, lengths) = new_figure(columns=2, width=11.0, height=5.8)
    for axes, methods, what in (
        (coverages, tuple(_STYLES), "coverage %"),
        (lengths, _COMPARED, "length over not private"),
    ):
        columns = {each: ("measured", f"{each}, {what}", *_STYLES[each]) for each in methods}
        draw_by_row(axes, records, columns)
    coverages.axvline(100 * _LEVEL, color="black", linewidth=1, linestyle=":")
    coverages.set(xlabel="coverage of 95 % intervals (%)", xlim=(-3, 103))
    lengths.axvline(1.0, color="black", linewidth=1, linestyle=":")
    lengths.set(xlabel="length over that without privacy", xlim=(0, None), yticklabels=[])
    legend_below(figure, (coverages, lengths), ncols=4)
    return {"coverage": figure}


def finding(records: Sequence[Record]) -> Finding:
    of_adult = [record for record in records if record.settings["family"] == _ADULT]
    records = [record for record in records if record not in of_adult]
    few = [record for record in records if record.measured["records clipped %"] < _FEW_CLIPPED]
    many = [record for record in records if record not in few]
    parts = ["The source shows coverage as curves"]
    for which, chosen in (("fewer than", few), ("at least", many)):
        if chosen:
            aware, last = (
                column(chosen, f"{method}, coverage %")
                for method in ("noise-aware", "last iterate")
            )
            parts.append(
                f"where {which} {_FEW_CLIPPED:g} % of the records are clipped, noise-aware 95 %"
                f" intervals cover {min(aware):.1f} to {max(aware):.1f} % of the parameters, those"
                f" of the last iterate {min(last):.1f} to {max(last):.1f} %"
            )
    if of_adult:
        (aware, last), (error, usual) = (
            [max(column(of_adult, f"{method}, {what} %")) for method in methods]
            for methods, what in (
                (("noise-aware", "last iterate"), "has the mean of NUTS"),
                (("noise-aware", "not private"), "calibration error"),
            )
        )
        parts.append(
            f"on Adult up to {aware:.0f} % of noise-aware intervals, and {last:.0f} % of those of"
            " the last iterate, have the posterior mean without privacy in them, and predictions"
            f" have a calibration error of up to {error:.1f} %, without privacy {usual:.1f} %"
        )
    return Finding("not compared", "; ".join(parts) + ".")
