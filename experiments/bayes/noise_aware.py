"""Coverage of noise-aware posteriors of DPSVI in conjugate families.

``python -m experiments run bayes_noise_aware``: three minutes on two CPU cores in the quick
profile, an hour in the paper profile. The data are simulated.
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
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax.bayes import DPSVI
from dpjax.bayes.variational import DPSVIResult
from experiments.lib.figures import CERTIFIED, MEASURED, PALETTE, new_figure
from experiments.lib.plots import draw_by_row, legend_below
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column, grid, make_rows, percent

Array = NDArray[Any]
Draws = dict[str, Array]

_LEVEL = 0.95
_NUM_DRAWS = 2_000
_TRIALS = 1_000  # of one binomial record
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
_LARGEST_MULTIPLIER = 80.0  # of the noise, at the largest learning rate


@dataclass(frozen=True)
class Family:
    """A conjugate model with its prior, its simulated data and its exact posterior.

    Attributes:
      model: the numpyro model of the records.
      l2_clip: the published clip bound.
      simulate: parameters drawn from the prior by name, and the records.
      posterior: draws of the exact posterior of the parameters that are compared.
    """

    model: Callable[..., None]
    l2_clip: float
    simulate: Callable[[np.random.Generator, int], tuple[Draws, tuple[Array, ...]]]
    posterior: Callable[[np.random.Generator, tuple[Array, ...]], Draws]


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


FAMILIES = {
    "exponential": Family(_exponential, 2.0, _simulate_exponential, _exponential_posterior),
    "Bernoulli": _binomial(1),
    "binomial": _binomial(_TRIALS),
    "categorical": Family(_categories, math.sqrt(2), _simulate_categories, _categories_posterior),
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
    num_data_sets: int = 24


def coverage(draws: Array, truth: Array, level: float) -> tuple[Array, Array]:
    """Returns for each parameter whether its central interval covers the truth, and the length."""
    low, high = np.quantile(draws, [(1 - level) / 2, (1 + level) / 2], axis=0)
    return np.ravel((low < truth) & (truth < high)), np.ravel(high - low)


@functools.cache
def inference(settings: Settings) -> DPSVI:
    """Returns DPSVI by SGD whose scale and rates follow from bound and number of records."""
    # With a clip bound of three root mean squares of records' gradients this is the posterior's
    # standard deviation; a step goes a tenth of the way to the optimum, or less with much noise.
    scale = 3 / (settings.l2_clip * math.sqrt(settings.num_examples))
    less = min(1.0, _LARGEST_MULTIPLIER / float(np.max(settings.mechanism.noise_multiplier)))
    optimizer = optax.partition(
        {"loc": optax.sgd(0.1 * less * scale**2), "scale": optax.sgd(0.1 * less**2 * scale)},
        lambda params: {name: name.rpartition("_")[2] for name in params},
    )
    model = FAMILIES[settings.family].model
    guide = AutoNormal(model, init_scale=scale)
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

    # The guide at the last iterate, around the average of the means, and noise-aware.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # problems are counted
        aware = result.noise_aware_posterior(burn_in=_BURN_IN)
    averages = result.averaged_params(burn_in=_BURN_IN)
    means = {name: averages[name] for name in aware.fits}
    averaged = dataclasses.replace(result, params={**result.params, **means})
    draws: dict[str, Any] = {
        "noise-aware": aware.posterior_samples(draw_key, _NUM_DRAWS),
        "last iterate": result.posterior_samples(draw_key, _NUM_DRAWS),
        "averaged iterate": averaged.posterior_samples(draw_key, _NUM_DRAWS),
    }
    found = {
        method: {name: np.asarray(each[0], float) for name, each in values.items()}
        for method, values in draws.items()
    }
    found["not private"] = family.posterior(rng, records)
    return Fit(truth, records, found, len(aware.problems), result)


def rows(profile: str) -> list[Row]:
    epsilons = (0.1, 0.3, 1.0) if profile == "paper" else (1.0,)
    clips = [
        (name, family.l2_clip)
        for name, family in FAMILIES.items()
        if profile == "paper" or name != "binomial"
    ]
    clips.insert(1, ("exponential", _UNCLIPPED))
    points = [
        {"family": name, "l2_clip": clip, **point}
        for name, clip in clips
        for point in grid(epsilon=epsilons)
    ]
    changes = {"num_data_sets": 400} if profile == "paper" else {}
    return [
        Row(row.name, dataclasses.asdict(Settings(**row.settings)), row.source)
        for row in make_rows("{family}, C = {l2_clip:.3g}, ε = {epsilon:g}", points, changes)
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
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


def figures(records: Sequence[Record]) -> dict[str, Figure]:
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
    return Finding("not compared", "; ".join(parts) + ".")
