"""Coverage of noise-aware posteriors of DPSVI in eight numpyro models, under two guides.

``python -m experiments run bayes_models``: three minutes on two CPU cores in the quick
profile, half an hour in the paper profile. The data are simulated.
"""

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from matplotlib.figure import Figure
from numpy.typing import NDArray
from numpyro.infer import Predictive
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from dpjax.bayes import DPSVI
from experiments.bayes.noise_aware import RunSettings, coverage
from experiments.lib.figures import CERTIFIED, PALETTE, new_figure
from experiments.lib.plots import draw_by_row, legend_below
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import column, percent

Array = NDArray[Any]
Draws = Mapping[str, Array]

LEVEL = 0.9
NUM_DRAWS = 1_000
NUM_GROUPS = 20
_CORRELATION = 0.8
GUIDES = {"diagonal": AutoNormal, "full": AutoMultivariateNormal}
STYLES = {"noise-aware": (CERTIFIED, "D"), "guide alone": (PALETTE[1], "o")}


def _correlated(x: jax.Array, y: jax.Array | None = None) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ weights, 1), obs=y)


def _logistic(x: jax.Array, y: jax.Array | None = None) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([5]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def hierarchical_logistic(x: jax.Array, group: jax.Array, y: jax.Array | None = None) -> None:
    """Logistic regression with an intercept for each group."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("groups", NUM_GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(mean, scale))
    with numpyro.plate("records", len(x)):
        logits = intercepts[group] + slope * x
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _horseshoe(x: jax.Array, y: jax.Array | None = None) -> None:
    overall = numpyro.sample("overall", dist.HalfCauchy(0.1))
    local = numpyro.sample("local", dist.HalfCauchy(1).expand([10]).to_event(1))
    directions = numpyro.sample("directions", dist.Normal(0, 1).expand([10]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ (overall * local * directions), 1), obs=y)


def _mixture(y: jax.Array | None = None, num_examples: int | None = None) -> None:
    share = numpyro.sample("share", dist.Beta(5, 5))
    centres = numpyro.sample("centres", dist.Normal(jnp.array([-2.0, 2.0]), 0.3).to_event(1))
    both = jnp.broadcast_to(centres[:, None], (2, 2))
    parts = dist.Categorical(jnp.stack([share, 1 - share])), dist.Normal(both, 1).to_event(1)
    with numpyro.plate("records", num_examples if y is None else len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(*parts), obs=y)


def _poisson(x: jax.Array, exposure: jax.Array, y: jax.Array | None = None) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, 0.4).expand([3]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(x @ weights)), obs=y)


def _ordinal(x: jax.Array, y: jax.Array | None = None) -> None:
    slope = numpyro.sample("slope", dist.Normal(0, 0.7))
    first = numpyro.sample("first", dist.Normal(-1, 0.3))
    steps = numpyro.sample("steps", dist.Gamma(20, 20).expand([2]).to_event(1))
    cuts = first + jnp.concatenate([jnp.zeros(1), jnp.cumsum(steps)])
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.OrderedLogistic(slope * x, cuts), obs=y)


def _zero_inflated(x: jax.Array, y: jax.Array | None = None) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, 0.4).expand([2]).to_event(1))
    zeros = numpyro.sample("zeros", dist.Beta(4, 6))
    with numpyro.plate("records", len(x)):
        rate = jnp.exp(x @ weights)
        numpyro.sample("y", dist.ZeroInflatedPoisson(zeros, rate=rate), obs=y)


def _coefficients(draws: Draws) -> dict[str, Array]:
    product = draws["overall"][..., None] * draws["local"] * draws["directions"]
    return {"coefficients": product}


@dataclass(frozen=True)
class Case:
    """A numpyro model, its simulated inputs, and what is compared.

    Attributes:
      model: draws parameters, and the records ``y`` at inputs.
      inputs: arguments of the model before ``y``.
      fixed: parameters that are not drawn from the prior.
      compared: function of the draws of all parameters.
    """

    model: Callable[..., None]
    inputs: Callable[[np.random.Generator, int], tuple[Array, ...]]
    fixed: dict[str, Array] = field(default_factory=dict)
    compared: Callable[[Draws], Draws] = lambda draws: draws


def _features(size: int) -> Callable[[np.random.Generator, int], tuple[Array, ...]]:
    return lambda rng, num: (rng.normal(size=(num, size) if size > 1 else num),)


def _correlated_features(rng: np.random.Generator, num: int) -> tuple[Array, ...]:
    common = math.sqrt(_CORRELATION) * rng.normal(size=(num, 1))
    return (common + math.sqrt(1 - _CORRELATION) * rng.normal(size=(num, 5)),)


CASES = {
    "correlated regression": Case(_correlated, _correlated_features),
    "logistic regression": Case(_logistic, _features(5)),
    "hierarchical logistic regression": Case(
        hierarchical_logistic,
        lambda rng, num: (rng.normal(size=num), rng.integers(NUM_GROUPS, size=num)),
    ),
    "horseshoe regression": Case(
        _horseshoe,
        _features(10),
        # Three coefficients of ten are not zero.
        {"overall": np.array(0.1), "local": np.array([10.0] * 3 + [0.0] * 7)},
        _coefficients,
    ),
    "mixture": Case(_mixture, lambda rng, num: ()),
    "Poisson regression": Case(
        _poisson, lambda rng, num: (rng.normal(size=(num, 3)), rng.uniform(0.5, 2, num))
    ),
    "ordinal regression": Case(_ordinal, _features(1)),
    "zero-inflated regression": Case(_zero_inflated, _features(2)),
}


@dataclass(frozen=True, kw_only=True)
class Settings(RunSettings):
    """Those of a row, its model and guide, and the learning rate of Adam."""

    model: str
    guide: str = "diagonal"
    learning_rate: float
    epsilon: float = 1.0
    delta: float = 1e-6
    num_data_sets: int = 4


@functools.cache
def inference(settings: Settings) -> DPSVI:
    """Returns DPSVI with aligned gradients and the share of clipped records."""
    model = CASES[settings.model].model
    return DPSVI(
        model,
        GUIDES[settings.guide](model, init_scale=0.05),
        optax.adam(settings.learning_rate),
        mechanism=settings.mechanism,
        gradient="aligned",
        release_clipped_share=True,
    )


def simulate(settings: Settings, number: int) -> tuple[dict[str, Array], tuple[Array, ...]]:
    """Simulates a data set: returns the parameters and the model's arguments with the records."""
    return simulate_case(CASES[settings.model], settings, number)


def simulate_case(
    case: Case, settings: RunSettings, number: int
) -> tuple[dict[str, Array], tuple[Array, ...]]:
    """Simulates a data set of a model, as `simulate`."""
    num = settings.num_examples
    rng = np.random.default_rng((settings.seed, number))
    inputs = tuple(_narrow(each) for each in case.inputs(rng, num))
    arguments = {} if inputs else {"num_examples": num}
    model = numpyro.handlers.substitute(case.model, data=case.fixed)
    key = jax.random.key(1_000_000 * settings.seed + number)
    drawn = Predictive(model, num_samples=1)(key, *inputs, **arguments)
    truth = {name: np.asarray(each[0]) for name, each in drawn.items()}
    records = _narrow(truth.pop("y"))
    return {**truth, **case.fixed}, (*inputs, records)


def _narrow(values: Array) -> Array:
    """Floats and integers of 32 bits."""
    return values.astype(np.float32 if values.dtype.kind == "f" else np.int32)


def rows(profile: str) -> list[Row]:
    none, diagonal, full, both = (), ("diagonal",), ("full",), tuple(GUIDES)
    settings = [
        Settings(model=model, guide=guide, l2_clip=l2_clip, learning_rate=rate)
        for model, l2_clip, rate, quick, paper in (
            ("correlated regression", 8.0, 0.01, full, both),
            ("logistic regression", 3.0, 0.02, none, both),
            ("hierarchical logistic regression", 2.0, 0.03, diagonal, both),
            ("horseshoe regression", 8.0, 0.01, none, diagonal),
            ("mixture", 5.0, 0.02, none, both),
            ("Poisson regression", 8.0, 0.02, diagonal, both),
            ("Poisson regression", 2.0, 0.02, diagonal, diagonal),
            ("ordinal regression", 3.0, 0.02, none, diagonal),
            ("zero-inflated regression", 8.0, 0.02, none, both),
        )
        for guide in (paper if profile == "paper" else quick)
    ]
    changes = {"num_data_sets": 40} if profile == "paper" else {}
    return [
        Row(
            f"{each.model}, C = {each.l2_clip:g}, {each.guide}",
            {**dataclasses.asdict(each), **changes},
            {},
        )
        for each in settings
    ]


class Runs(NamedTuple):
    """Runs of DPSVI on the data sets of a row.

    Attributes:
      covered: by method and variable, whether each interval covers the truth.
      lengths: by method, of all intervals in one order.
      problems: of the noise-aware posterior of each run.
      shares: of clipped records at the end of each run, and as it was released.
    """

    covered: dict[str, dict[str, list[bool]]]
    lengths: dict[str, list[float]]
    problems: list[tuple[str, ...]]
    shares: list[tuple[float, float]]

    @property
    def measured(self) -> dict[str, Any]:
        """Coverage, lengths, clipped records and warnings."""
        measured: dict[str, Any] = {}
        for method, by_variable in self.covered.items():
            measured[f"{method}, coverage %"] = percent(np.concatenate(list(by_variable.values())))
        aware, guide = (np.array(self.lengths[method]) for method in STYLES)
        clipped, released = 100 * np.mean(self.shares, axis=0)
        measured["length, noise-aware over guide alone"] = float(np.median(aware / guide))
        measured["records clipped %"] = float(clipped)
        measured["records clipped %, as released"] = float(released)
        measured["runs with a warning %"] = percent([bool(each) for each in self.problems])
        return measured

    @property
    def by_variable(self) -> str:
        """Coverage of noise-aware intervals of each variable."""
        covered = self.covered["noise-aware"].items()
        return ", ".join(f"{name} {percent(each):.0f} %" for name, each in covered)


def run_on_data_sets(svi: DPSVI, case: Case, settings: Settings, **options: float) -> Runs:
    """Runs DPSVI on all data sets of a row.

    Args:
      svi: the inference.
      case: what is simulated and compared.
      settings: of the row.
      **options: of `DPSVIResult.noise_aware_posterior`.
    """
    covered: dict[str, dict[str, list[bool]]] = {method: {} for method in STYLES}
    lengths: dict[str, list[float]] = {method: [] for method in STYLES}
    problems, shares = [], []
    for number in range(settings.num_data_sets):
        truth, arguments = simulate_case(case, settings, number)
        key, draw_key = jax.random.split(jax.random.key(2_000_000 * settings.seed + number))
        result = svi.run(key, *arguments, progress_bar=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # problems are counted
            aware = result.noise_aware_posterior(**options)

            # Which intervals cover, by variable.
            compared = case.compared(truth)
            for method, sample in zip(
                STYLES, (aware.posterior_samples, result.posterior_samples), strict=True
            ):
                draws = case.compared(in_one_chain(sample(draw_key, NUM_DRAWS)))
                for name, true in compared.items():
                    inside, sizes = coverage(draws[name], true, LEVEL)
                    covered[method].setdefault(name, []).extend(inside.tolist())
                    lengths[method].extend(sizes.tolist())

        # What a user is told, and what is true.
        report = svi.clipping_report(jax.random.key(0), result.state, *arguments)
        released = np.nan if aware.clipped is None else aware.clipped.share
        shares.append((float(report.share_clipped), released))
        problems.append(aware.problems)
    return Runs(covered, lengths, problems, shares)


def in_one_chain(samples: Mapping[str, Any]) -> Draws:
    """Returns draws ``(draws, ...)`` of arrays ``(chains, draws, ...)``."""
    return {
        name: np.asarray(each).reshape(-1, *np.shape(each)[2:]) for name, each in samples.items()
    }


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    svi = inference(settings)
    runs = run_on_data_sets(svi, CASES[settings.model], settings)
    certificate = svi.mechanism.certificate(settings.delta)
    return Result(
        measured=runs.measured,
        certified={"ε": certificate.epsilon},
        note=f"Simulated data. Noise-aware, by variable: {runs.by_variable}. The certified ε is"
        " that of one run. Seeded keys: the noise is reproducible.",
        certificate=str(certificate),
    )


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    figure, (axes,) = new_figure(columns=1, width=8.0, height=4.6)
    columns = {each: ("measured", f"{each}, coverage %", *style) for each, style in STYLES.items()}
    draw_by_row(axes, records, columns)
    axes.axvline(100 * LEVEL, color="black", linewidth=1, linestyle=":")
    axes.set(xlabel="coverage of 90 % intervals (%)", xlim=(-3, 103))
    legend_below(figure, (axes,), ncols=2)
    return {"coverage": figure}


def finding(records: Sequence[Record]) -> Finding:
    parts = []
    for method in STYLES:
        shares = column(records, f"{method}, coverage %")
        parts.append(f"{method} {min(shares):.0f} to {max(shares):.0f} %")
    low = [record for record in records if record.measured["noise-aware, coverage %"] < 85]
    text = f"No source has these models; 90 % intervals cover, by model, {', '.join(parts)}"
    if low:
        warned = ", ".join(
            f"{record.row} ({record.measured['runs with a warning %']:.0f} %)" for record in low
        )
        text += f"; below 85 %, with the share of runs that have a warning: {warned}"
    return Finding("not compared", text + ".")
