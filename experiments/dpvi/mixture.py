"""A private mixture of Gaussians by variational inference: predictive density against epsilon.

``python -m experiments run dpvi_mixture``: half a minute. Component assignments are marginalised
out, so that there are no local latent variables.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from matplotlib.figure import Figure
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.autoguide import AutoNormal

from dpjax._typing import Params, PRNGKey, PyTree
from dpjax.bayes.variational import DPSVI
from experiments.dpvi.inference import (
    ADD,
    REPLACE,
    Point,
    compute_epsilons,
    fit,
    make_inference,
    make_mechanism,
)
from experiments.lib.figures import CERTIFIED, PALETTE, SOURCE, new_figure
from experiments.lib.formatting import format_value
from experiments.lib.plots import draw_column
from experiments.lib.registry import Finding, Record, Result, Row, RowContext
from experiments.lib.sweeps import make_rows, mean_and_error
from experiments.lib.verdicts import format_upper_bound

MEANS = jnp.array([[0.0, 0.0], [2.0, 2.0], [-2.0, -2.0], [-2.0, 2.0], [2.0, -2.0]])
VARIANCE = 0.5
_NUM_COMPONENTS, _NUM_DIMENSIONS = MEANS.shape

_SIGMAS = {"quick": (0.8, 2.0, 6.0, 20.0), "paper": (0.8, 1.3, 2.0, 3.2, 6.0, 12.0, 20.0)}
_REPEATS = {"quick": 2, "paper": 10}
_SETTINGS = {
    "num_records": 2_000,
    "sampling_rate": 0.05,
    "num_steps": 1_000,
    "learning_rate": 0.05,
    "l2_clip": 1.0,
    "delta": 1e-3,
    "seed": 0,
}
_NUM_TEST, _NUM_DRAWS = 1_000, 50
_PLAIN = "not private"
DENSITY, ERROR = "log density per record", "standard error"


def draw_records(key: PRNGKey, num_records: int) -> jax.Array:
    """Draws records ``(num_records, 2)`` from the source's mixture with equal weights."""
    component_key, normal_key = jax.random.split(key)
    components = jax.random.randint(component_key, (num_records,), 0, _NUM_COMPONENTS)
    normal = jax.random.normal(normal_key, (num_records, _NUM_DIMENSIONS))
    return MEANS[components] + jnp.sqrt(VARIANCE) * normal


def true_log_density(records: jax.Array) -> jax.Array:
    """Returns the mean log density of records under the true distribution."""
    weights = jnp.full(_NUM_COMPONENTS, 1 / _NUM_COMPONENTS)
    variances = jnp.full(_NUM_COMPONENTS, VARIANCE)
    return _mixture(weights, MEANS, variances).log_prob(records).mean()


def _mixture(weights: jax.Array, means: jax.Array, variances: jax.Array) -> Any:
    scales = jnp.broadcast_to(jnp.sqrt(variances)[:, None], means.shape)
    components = dist.Normal(means, scales).to_event(1)
    return dist.MixtureSameFamily(dist.Categorical(probs=weights), components)


def model(records: jax.Array) -> None:
    """Mixture of five isotropic Gaussians with unknown weights, means and variances."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(_NUM_COMPONENTS)))
    variances = numpyro.sample(
        "variances", dist.InverseGamma(2.0, 1.0).expand([_NUM_COMPONENTS]).to_event(1)
    )
    means = numpyro.sample("means", dist.Normal(0.0, 2.0).expand(MEANS.shape).to_event(2))
    with numpyro.plate("records", len(records)):
        numpyro.sample("x", _mixture(weights, means, variances), obs=records)


def new_guide() -> AutoNormal:
    """Returns a mean-field normal guide."""
    return AutoNormal(model, init_scale=0.1)


def predictive_log_density(
    guide: AutoNormal, params: Params, records: jax.Array, key: PRNGKey, num_draws: int
) -> jax.Array:
    """Returns the mean over records of log E_q[p(record | theta)], by samples of theta."""
    draws = Predictive(guide, params=params, num_samples=num_draws)(key, records)
    values = log_likelihood(model, draws, records)["x"]
    return (jax.nn.logsumexp(values, axis=0) - jnp.log(num_draws)).mean()


def rows(profile: str) -> list[Row]:
    sigmas = list(_SIGMAS[profile])
    common = {**_SETTINGS, "repeats": _REPEATS[profile], "sigmas": sigmas}
    plain = make_rows(_PLAIN, [{"sigma": 0.0}], common)
    return plain + make_rows("σ = {sigma:g}", [{"sigma": sigma} for sigma in sigmas], common)


def run_row(row: Row, context: RowContext) -> Result:
    settings = row.settings
    sizes = settings["num_steps"], settings["repeats"]
    densities = _densities(*sizes, tuple(settings["sigmas"]))[settings["sigma"]]
    measured = dict(zip((DENSITY, ERROR), mean_and_error(densities), strict=True))
    note = (
        f"{settings['num_records']:,} simulated training records and {_NUM_TEST:,} test records,"
        f" with true mean log density {_true_density():.3f}. Seeded keys: the noise is"
        " reproducible, so these runs are not private. Every ε is that of one run."
    )
    if row.name == _PLAIN:
        return Result(measured, {}, note)
    names = ("sigma", "l2_clip", "sampling_rate", "num_steps", "num_records")
    mechanism = make_mechanism(*(settings[name] for name in names))
    epsilons = compute_epsilons(mechanism, settings["delta"])
    return Result({**measured, **epsilons.claimed}, epsilons.certified, note)


@functools.cache
def _densities(num_steps: int, repeats: int, sigmas: tuple[float, ...]) -> dict[float, np.ndarray]:
    """Returns predictive log densities of all rows, computed together."""
    settings: dict[str, Any] = _SETTINGS
    optimizer = optax.adam(settings["learning_rate"])
    num_records, sampling_rate = settings["num_records"], settings["sampling_rate"]

    def make(point: Point, num_steps: int) -> DPSVI:
        numbers = num_records, sampling_rate, point, num_steps
        return make_inference(model, new_guide(), optimizer, *numbers)

    points = [Point(sigma, settings["l2_clip"]) for sigma in (0.0, *sigmas)]
    key = jax.random.key(settings["seed"])
    records = (draw_records(key, num_records),)
    fits = fit(key, make, points, records, num_steps=num_steps, repeats=repeats)
    found = np.asarray(_score(fits.params, _test_records()), float)
    return dict(zip((0.0, *sigmas), found, strict=True))


def _test_records() -> jax.Array:
    return draw_records(jax.random.key(1), _NUM_TEST)


def _true_density() -> float:
    return float(true_log_density(_test_records()))


@jax.jit
def _score(params: PyTree, records: jax.Array) -> jax.Array:
    def score(one: Any) -> jax.Array:
        return predictive_log_density(new_guide(), one, records, jax.random.key(0), _NUM_DRAWS)

    return jax.vmap(jax.vmap(score))(params)


def figures(records: Sequence[Record]) -> dict[str, Figure]:
    private = [record for record in records if record.certified]
    if not private:
        return {}
    figure, (axes,) = new_figure()
    for adjacency, colour in ((ADD, CERTIFIED), (REPLACE, PALETTE[1])):
        epsilon = f"ε, {adjacency}"
        draw_column(axes, private, epsilon, DENSITY, ERROR, color=colour, label=adjacency)
    axes.axhline(_true_density(), color=SOURCE, linestyle=":", linewidth=1, label="true density")
    for record in records:
        if record.row == _PLAIN:
            axes.axhline(record.measured[DENSITY], color=SOURCE, linewidth=1, label=_PLAIN)
    axes.set(xscale="log", xlabel="certified ε (δ = 1e-3)", ylabel="mean predictive log density")
    axes.legend(loc="lower right")
    return {"density": figure}


def finding(records: Sequence[Record]) -> Finding:
    found = [
        f"{format_value(r.measured[DENSITY])} "
        + (f"at ε = {format_upper_bound(r.certified[f'ε, {ADD}'])}" if r.certified else "without")
        for r in records
    ]
    return Finding(
        "not compared",
        "The source publishes no numbers; mean log densities with and without privacy are"
        f" {', '.join(found)}.",
    )
