"""Coverage of noise-aware posteriors of DPSVI in four models of applied work, as a user runs it.

``python -m experiments run bayes_user_models``: a minute on two CPU cores in the quick profile,
half an hour in the paper profile. The data are simulated.
"""

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from matplotlib.figure import Figure
from numpy.typing import NDArray
from numpyro.infer import SVI, Trace_ELBO, init_to_median, init_to_value
from numpyro.infer.autoguide import AutoNormal

from dpjax.bayes import DPSVI
from experiments.bayes import models
from experiments.bayes.models import GUIDES, LEVEL, NUM_DRAWS, NUM_GROUPS, STYLES, Case, Draws
from experiments.bayes.noise_aware import coverage
from experiments.lib.figures import new_figure
from experiments.lib.plots import draw_by_row, legend_below
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import percent

Array = NDArray[Any]

_FEATURES = 50
_COEFFICIENTS = np.zeros(_FEATURES)
_COEFFICIENTS[[0, 7, 20, 33]] = 1.0, -0.8, 0.5, 0.3
_CENTRES = np.array([[-2.0, 0.0], [1.5, 1.5], [1.0, -2.0]])
# A public guess of the centres of the mixture's components.
_START = {"centres": jnp.array([[-1.0, 0.0], [1.0, 1.0], [1.0, -1.0]])}
# The learning rate falls to a tenth after this share of the steps; the mean gradient is averaged
# from a little later on.
_FALL, _FALL_AFTER, _MEAN_FROM = 0.1, 0.5, 0.55
_SVI_STEPS = 2_000
_LEAST = 85  # percent that intervals of a nominal 90 % have to cover
# Of a problem, by a phrase in it.
_KINDS = {
    "not identified": "is not identified",
    "not settled": "have not settled",
    "not linear": "not linear over",
    "clipping": "are clipped",
    "prior": "standard deviations of the prior",
}


def _hierarchical(x: jax.Array, group: jax.Array, y: jax.Array | None = None) -> None:
    mu = numpyro.sample("mu", dist.Normal(0, 1))
    tau = numpyro.sample("tau", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("groups", NUM_GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(mu, tau))
    with numpyro.plate("records", len(x)):
        logits = intercepts[group] + slope * x
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _horseshoe(x: jax.Array, y: jax.Array | None = None) -> None:
    overall = numpyro.sample("overall", dist.HalfCauchy(0.1))
    sigma = numpyro.sample("sigma", dist.HalfNormal(1))
    with numpyro.plate("features", _FEATURES):
        own = numpyro.sample("own", dist.HalfCauchy(1))
        coefficients = numpyro.sample("coefficients", dist.Normal(0, own * overall))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(x @ coefficients, sigma), obs=y)


def _mixture(y: jax.Array | None = None, num_examples: int | None = None) -> None:
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(3)))
    with numpyro.plate("components", 3):
        centres = numpyro.sample("centres", dist.Normal(0, 3).expand([2]).to_event(1))
        widths = numpyro.sample("widths", dist.LogNormal(-0.5, 0.5))
    parts = dist.Categorical(weights), dist.Normal(centres, widths[:, None]).to_event(1)
    with numpyro.plate("records", num_examples if y is None else len(y)):
        numpyro.sample("y", dist.MixtureSameFamily(*parts), obs=y)


def _poisson(x: jax.Array, log_exposure: jax.Array, y: jax.Array | None = None) -> None:
    intercept = numpyro.sample("intercept", dist.Normal(0, 2))
    slopes = numpyro.sample("slopes", dist.Normal(0, 1).expand([4]).to_event(1))
    with numpyro.plate("records", len(x)):
        log_rate = intercept + x @ slopes + log_exposure
        numpyro.sample("y", dist.Poisson(jnp.exp(log_rate)), obs=y)


def _only(*names: str) -> Callable[[Draws], Draws]:
    return lambda draws: {name: draws[name] for name in names}


def _matched(draws: Draws) -> Draws:
    """Components in the order in which their mean centres are nearest to the true ones."""
    draws = _only("weights", "centres", "widths")(draws)
    means = draws["centres"].reshape(-1, 3, 2).mean(0)
    orders = [list(order) for order in itertools.permutations(range(3))]
    best = min(orders, key=lambda order: float(((means[order] - _CENTRES) ** 2).sum()))
    axes = {"weights": -1, "centres": -2, "widths": -1}
    return {name: np.take(each, best, axes[name]) for name, each in draws.items()}


# Models, public inputs, and truths that are not drawn from the prior.
CASES = {
    "hierarchical logistic": Case(
        _hierarchical,
        lambda rng, num: (rng.normal(size=num), rng.integers(NUM_GROUPS, size=num)),
        {"mu": np.array(-0.5), "tau": np.array(1.0), "slope": np.array(0.7)},
    ),
    "horseshoe": Case(
        _horseshoe,
        lambda rng, num: (rng.normal(size=(num, _FEATURES)),),
        {"coefficients": _COEFFICIENTS, "sigma": np.array(1.0)},
        _only("coefficients", "sigma"),
    ),
    "mixture of three": Case(
        _mixture,
        lambda rng, num: (),
        {
            "weights": np.array([0.5, 0.3, 0.2]),
            "centres": _CENTRES,
            "widths": np.array([0.7, 0.5, 0.6]),
        },
        _matched,
    ),
    "Poisson with offset": Case(
        _poisson,
        lambda rng, num: (rng.normal(size=(num, 4)), np.log(rng.uniform(0.5, 2, num))),
        {"intercept": np.array(-1.0), "slopes": np.array([0.4, -0.3, 0.2, 0.0])},
    ),
}


@dataclass(frozen=True, kw_only=True)
class Settings(models.Settings):
    """Those of `bayes_models`, and whether the learning rate falls in the run."""

    num_steps: int = 2_000
    is_falling: bool = True


@functools.cache
def inference(settings: Settings) -> DPSVI:
    """Returns DPSVI with aligned gradients and the share of clipped records."""
    model = CASES[settings.model].model
    rate: Any = settings.learning_rate
    if settings.is_falling:
        at = round(_FALL_AFTER * settings.mechanism.num_steps)
        rate = optax.piecewise_constant_schedule(rate, {at: _FALL})
    return DPSVI(
        model,
        GUIDES[settings.guide](model, init_loc_fn=_start(settings.model), init_scale=0.02),
        optax.adam(rate),
        mechanism=settings.mechanism,
        gradient="aligned",
        release_clipped_share=True,
    )


def _start(model: str) -> Callable[..., Any]:
    """Starting values: the prior's medians, or the public guess."""
    return init_to_value(values=_START) if model == "mixture of three" else init_to_median


def rows(profile: str) -> list[Row]:
    settings = [
        Settings(
            model=model,
            guide=guide,
            num_examples=num,
            sampling_rate=500 / num,
            l2_clip=l2_clip,
            learning_rate=rate,
            is_falling=is_falling,
        )
        for model, guide, num, l2_clip, rate, is_falling, is_quick in (
            ("Poisson with offset", "diagonal", 5_000, 6.0, 0.03, True, True),
            ("Poisson with offset", "diagonal", 5_000, 6.0, 0.03, False, False),
            ("mixture of three", "diagonal", 4_000, 12.0, 0.03, True, True),
            ("hierarchical logistic", "diagonal", 5_000, 2.0, 0.08, True, False),
            ("horseshoe", "diagonal", 3_000, 20.0, 0.015, True, False),
        )
        if profile == "paper" or is_quick
    ]
    num_data_sets = 40 if profile == "paper" else 3
    return [
        Row(
            f"{each.model}, {each.guide}, {'falling' if each.is_falling else 'constant'} rate",
            {**dataclasses.asdict(each), "num_data_sets": num_data_sets},
            {},
        )
        for each in settings
    ]


def run_row(row: Row, context: RowContext) -> Result:
    settings = Settings(**row.settings)
    case, svi = CASES[settings.model], inference(settings)
    options = {"mean_from": _MEAN_FROM} if settings.is_falling else {}
    runs = models.run_on_data_sets(svi, case, settings, **options)

    measured = runs.measured
    usual = _lengths_without_privacy(settings)
    aware = np.array(runs.lengths["noise-aware"][: len(usual)])
    measured["length over not private"] = float(np.median(aware / usual))
    for kind, phrase in _KINDS.items():
        found = [any(phrase in problem for problem in each) for each in runs.problems]
        measured[f"warning, {kind} %"] = percent(found)

    certificate = svi.mechanism.certificate(settings.delta)
    return Result(
        measured=measured,
        certified={"ε": certificate.epsilon},
        note=f"Simulated data. Noise-aware, by variable: {runs.by_variable}. The certified ε is"
        " that of one run. Seeded keys: the noise is reproducible.",
        certificate=str(certificate),
    )


def _lengths_without_privacy(settings: Settings) -> Array:
    """Lengths of the intervals of numpyro's SVI on the first data set, its guide diagonal."""
    case = CASES[settings.model]
    _, arguments = models.simulate_case(case, settings, 0)
    guide = AutoNormal(case.model, init_loc_fn=_start(settings.model), init_scale=0.02)
    svi = SVI(case.model, guide, optax.adam(0.01), Trace_ELBO())
    params = svi.run(jax.random.key(0), _SVI_STEPS, *arguments, progress_bar=False).params
    draws = guide.sample_posterior(jax.random.key(1), params, sample_shape=(NUM_DRAWS,))
    compared = case.compared({name: np.asarray(each) for name, each in draws.items()})
    truth = case.compared(models.simulate_case(case, settings, 0)[0])
    return np.concatenate([coverage(compared[name], truth[name], LEVEL)[1] for name in truth])


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    figure, (axes,) = new_figure(columns=1, width=8.0, height=4.0)
    columns = {each: ("measured", f"{each}, coverage %", *style) for each, style in STYLES.items()}
    draw_by_row(axes, records, columns)
    axes.axvline(100 * LEVEL, color="black", linewidth=1, linestyle=":")
    axes.set(xlabel="coverage of 90 % intervals (%)", xlim=(-3, 103))
    legend_below(figure, (axes,), ncols=2)
    return {"coverage": figure}


def finding(records: Sequence[Record]) -> Finding:
    shares = [
        f"{record.row}, {record.measured['noise-aware, coverage %']:.0f} %"
        f" (guide alone {record.measured['guide alone, coverage %']:.0f} %; a warning in"
        f" {record.measured['runs with a warning %']:.0f} % of the runs)"
        for record in records
    ]
    text = f"No source has these models; 90 % intervals cover: {'; '.join(shares)}"
    low = [each.row for each in records if each.measured["noise-aware, coverage %"] < _LEAST]
    if low:
        text += f"; below {_LEAST} %: {'; '.join(low)}"
    return Finding("not compared", text + ".")
