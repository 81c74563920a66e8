"""Conjugate posteriors from private sums: convergence rates and coverage.

``python -m experiments run bayes_conjugate``: half a minute in the quick profile.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from dpjax._typing import PyTree
from dpjax.adjacency import Adjacency
from dpjax.bayes.conjugate import (
    BetaBinomial,
    ConjugateFamily,
    DirichletMultinomial,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    SufficientStatistics,
    SufficientStatisticsMechanism,
    naive_posterior,
    noise_aware_posterior,
)
from dpjax.bayes.conjugate.posteriors import Posterior
from dpjax.mechanisms import Gaussian, Laplace
from experiments.lib.figures import MEASURED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_by_row, draw_nonempty, panel_grid
from experiments.lib.registry import Finding, Record, Result, Row, RowContext, Values
from experiments.lib.sweeps import make_rows
from experiments.lib.verdicts import Comparison

DELTA = 1e-6
_LEVEL, _NUM_PARTICLES, _BATCH = 0.9, 300, 50
# Accepted coverage (%) of noise-aware intervals.
ALLOWED = (87.0, 93.0)
# Coverage rows: noise, epsilon, adjacency, and two numbers of records, one with large noise.
_COVERAGE = {
    "beta-binomial": ("Laplace", 0.2, "replace_one", 100, 5_000),
    "Dirichlet-multinomial": ("Laplace", 0.2, "add_remove", 100, 5_000),
    "gamma-Poisson": ("Laplace", 0.5, "add_remove", 100, 5_000),
    "normal, known variance": ("Gaussian", 1.0, "replace_one", 100, 20_000),
    "normal, unknown variance": ("Laplace", 1.0, "replace_one", 200, 50_000),
}
_SIZES = {
    "quick": (300, 1_000, 3_000, 10_000),
    "paper": (300, 1_000, 3_000, 10_000, 30_000, 100_000),
}
_REPEATS = {
    "quick": {"slopes": 200, "coverage": 1_200},
    "paper": {"slopes": 400, "coverage": 4_000},
}
_NAIVE, _AWARE = "naive coverage %", "noise-aware coverage %"


class Model(NamedTuple):
    """A conjugate family and the sampler of its records."""

    family: ConjugateFamily  # prior and public bounds, which clip almost nothing
    truth: Any  # fixed parameters
    draw: Callable[[jax.Array, Any, int], jax.Array]  # from key, parameters and n to records


class Data(NamedTuple):
    """Exact and noisy sums ``(repeats, m)`` of repeated data sets."""

    sums: SufficientStatistics
    released: npt.NDArray[np.float64]


MODELS = {
    "beta-binomial": Model(
        BetaBinomial(1.0, 1.0),
        0.3,
        lambda key, theta, n: jax.random.bernoulli(key, theta, (n,)),
    ),
    "Dirichlet-multinomial": Model(
        DirichletMultinomial((1.0, 1.0, 1.0)),
        (0.2, 0.3, 0.5),
        lambda key, theta, n: jax.random.choice(key, 3, (n,), p=theta),
    ),
    "gamma-Poisson": Model(
        GammaPoisson(shape=6.0, rate=2.0, largest_count=12),
        3.0,
        lambda key, theta, n: jax.random.poisson(key, theta, (n,)),
    ),
    "normal, known variance": Model(
        NormalKnownVariance((-5.0, 5.0), variance=1.0, prior_mean=0.0, prior_variance=1.0),
        0.5,
        lambda key, theta, n: theta + jax.random.normal(key, (n,)),
    ),
    "normal, unknown variance": Model(
        NormalUnknownVariance(
            (-5.0, 5.0), prior_mean=0.0, prior_strength=10.0, prior_shape=10.0, prior_scale=9.0
        ),
        (0.3, 1.0),
        lambda key, theta, n: theta[0] + jnp.sqrt(theta[1]) * jax.random.normal(key, (n,)),
    ),
}


def make_release(
    family: str, noise: str, epsilon: float, adjacency: Adjacency
) -> SufficientStatisticsMechanism:
    """Returns the release of a family's sums with Laplace or Gaussian noise."""
    model = MODELS[family].family
    if noise == "Laplace":
        of_sums = model.sensitivity(norm="l1", adjacency=adjacency)
        return SufficientStatisticsMechanism(model, Laplace.from_epsilon(of_sums, epsilon=epsilon))
    of_sums = model.sensitivity(norm="l2", adjacency=adjacency)
    return SufficientStatisticsMechanism(
        model, Gaussian.from_epsilon(of_sums, epsilon=epsilon, delta=DELTA)
    )


def draw_data(
    key: jax.Array,
    model: Model,
    release: SufficientStatisticsMechanism,
    parameters: jax.Array,
    sizes: Sequence[int],
) -> list[Data]:
    """Draws a data set for each of ``parameters``, and releases its first n records by size."""

    def one(inputs: tuple[jax.Array, jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
        data_key, *noise_keys = jax.random.split(inputs[0], 1 + len(sizes))
        records = model.draw(data_key, inputs[1], max(sizes))
        return [
            (release.family.sums(records[:n]).total, release.release(noise_key, records[:n]))
            for noise_key, n in zip(noise_keys, sizes, strict=True)
        ]

    keys = jax.random.split(key, len(parameters))
    drawn = jax.jit(lambda inputs: jax.lax.map(one, inputs, batch_size=_BATCH))((keys, parameters))
    counts = [np.full(len(parameters), float(n)) for n in sizes]
    return [
        Data(
            SufficientStatistics(np.asarray(total, np.float64), count),
            np.asarray(noisy, np.float64),
        )
        for (total, noisy), count in zip(drawn, counts, strict=True)
    ]


def rows(profile: str) -> list[Row]:
    repeats = _REPEATS[profile]
    slopes = {"noise": "Laplace", "ε": 1.0, "adjacency": "replace_one", "n": _SIZES[profile]}
    slopes["repeats"] = repeats["slopes"]
    source = {"slope, private": -1.0, "slope, sampling": -0.5}
    points = [
        {
            "family": family,
            "noise": noise,
            "ε": epsilon,
            "adjacency": adjacency,
            "n": n,
            "repeats": repeats["coverage"],
            "noise matters": n == few,
        }
        for family, (noise, epsilon, adjacency, few, many) in _COVERAGE.items()
        for n in (few, many)
    ]
    return [
        *make_rows(
            "consistency: {family}", [{"family": name, **slopes} for name in MODELS], source=source
        ),
        *make_rows("coverage: {family}, n = {n:,}", points),
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    release = make_release(*(settings[name] for name in ("family", "noise", "ε", "adjacency")))
    # Each family has its own key.
    key = jax.random.key(list(MODELS).index(settings["family"]))
    run = _run_consistency if row.name.startswith("consistency") else _run_coverage
    measured, series = run(release, settings, key)
    certificate = release.certificate(DELTA)
    pure = release.mechanism.pure_epsilon if isinstance(release.mechanism, Laplace) else None
    return Result(
        measured=measured,
        certified={"pure ε": pure, "ε at δ = 1e-6": certificate.epsilon},
        series=series,
        note="Simulated records; seeded keys: the noise is reproducible, so these runs are not"
        " private. Coverage of 90 % intervals for each parameter, with parameters drawn from the"
        " prior.",
        certificate=str(certificate),
    )


def _run_consistency(
    release: SufficientStatisticsMechanism, settings: Values, key: jax.Array
) -> tuple[PyTree, PyTree]:
    """Returns log-log slopes of the errors, and root mean square errors by n."""
    sizes, model = settings["n"], MODELS[settings["family"]]
    truth = np.asarray(model.truth)
    truths = jnp.broadcast_to(jnp.array(model.truth), (settings["repeats"], *truth.shape))
    errors: dict[str, list[float]] = {"private": [], "sampling": []}
    for n, data in zip(sizes, draw_data(key, model, release, truths, sizes), strict=True):
        exact = release.family.posterior(data.sums).mean
        noisy = naive_posterior(release, data.released, n).mean
        for name, difference in (("private", noisy - exact), ("sampling", exact - truth)):
            errors[name].append(float(np.sqrt(np.mean(difference**2))))
    slopes = {f"slope, {name}": slope(sizes, found) for name, found in errors.items()}
    return slopes, {"n": sizes, **errors}


def slope(sizes: Sequence[int], errors: Sequence[float]) -> float:
    """Returns the exponent of n in the errors, by least squares on logs.

    >>> round(slope((10, 100, 1000), (3.0, 0.3, 0.03)), 6)
    -1.0
    """
    return float(np.polyfit(np.log(sizes), np.log(errors), 1)[0])


def _run_coverage(
    release: SufficientStatisticsMechanism, settings: Values, key: jax.Array
) -> tuple[PyTree, PyTree]:
    """Returns the coverage of both posteriors' intervals, with parameters from the prior."""
    model, n = MODELS[settings["family"]], settings["n"]
    prior_key, data_key, particle_key = jax.random.split(key, 3)
    nothing = SufficientStatistics(np.zeros(len(model.family.statistic_bounds[0])), np.float64(0))
    parameters = model.family.posterior(nothing).sample(prior_key, settings["repeats"])
    (data,) = draw_data(data_key, model, release, parameters, (n,))
    public_n = n if release.adjacency == "replace_one" else None
    naive = naive_posterior(release, data.released, public_n)
    aware = noise_aware_posterior(
        particle_key, release, data.released, num_examples=public_n, num_particles=_NUM_PARTICLES
    )
    measured = {
        _NAIVE: coverage(naive, parameters),
        _AWARE: coverage(aware, parameters),
        "effective sample size, median": float(np.median(aware.effective_sample_size)),
    }
    return measured, {}


def coverage(posterior: Posterior, parameters: npt.ArrayLike) -> list[float]:
    """Returns the coverage (%) of 90 % intervals for each parameter, by the posterior's cdf."""
    ranks = posterior.cdf(np.asarray(parameters, np.float64))
    inside = np.mean(np.abs(ranks - 0.5) <= _LEVEL / 2, axis=0)
    return [round(100 * float(share), 2) for share in np.atleast_1d(inside)]


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    slopes = [record for record in records if record.row.startswith("consistency")]
    covered = [record for record in records if record.row.startswith("coverage")]
    return draw_nonempty(
        consistency=(_consistency_figure, slopes), coverage=(_coverage_figure, covered)
    )


def _consistency_figure(records: Sequence[Record]) -> Figure:
    figure, panels = panel_grid(len(records), 3, 10.5, 6.4)
    kinds = {"sampling": (MEASURED, 0.5, "--"), "private": (PALETTE[1], 1.0, ":")}
    for axes, record in zip(panels, records, strict=True):
        series = record.series
        for kind, (colour, power, style) in kinds.items():
            exponent = format_value(round(record.measured[f"slope, {kind}"], 2), decimals=2)
            label = f"{kind}: slope {exponent}"
            axes.loglog(series["n"], series[kind], "o", color=colour, label=label)
            guide = [series[kind][0] * (series["n"][0] / n) ** power for n in series["n"]]
            axes.loglog(series["n"], guide, style, color=colour, linewidth=1.2)
        axes.set(title=record.settings["family"], xlabel="records n", ylabel="error")
        axes.legend(loc="lower left")
    return figure


def _coverage_figure(records: Sequence[Record]) -> Figure:
    figure, (axes,) = new_figure(width=8.4, height=0.42 * len(records) + 1.2)
    axes.axvspan(*ALLOWED, color="#e8e9ec")
    axes.axvline(100 * _LEVEL, color=SOURCE, linewidth=1)
    shares = {
        "naive": ("measured", _NAIVE, PALETTE[1], "s"),
        "noise-aware": ("measured", _AWARE),
    }
    draw_by_row(axes, records, shares, lambda record: record.row.removeprefix("coverage: "))
    axes.set(xlabel="coverage of 90 % intervals (%)", xlim=(0, 100))
    axes.legend(loc="lower left")
    return figure


def finding(records: Sequence[Record]) -> Finding:
    pairs = [
        (record.measured[name], record.source[name]) for record in records for name in record.source
    ]
    covered = [record for record in records if _AWARE in record.measured]
    low, high = ALLOWED
    aware = sum(all(low <= each <= high for each in r.measured[_AWARE]) for r in covered)
    naive = sum(all(low <= each <= high for each in r.measured[_NAIVE]) for r in covered)
    return Comparison("published rates of convergence", tuple(pairs), 0.1).finding(
        f"90 % intervals cover {low:.0f} to {high:.0f} % in {aware} of {len(covered)} rows if"
        f" noise-aware, in {naive} if naive"
    )
