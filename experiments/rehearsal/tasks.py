"""Private runs to be rehearsed: their method, their worlds, and the records they are made for.

Worlds are crude public descriptions: the number of records and features, the range of a feature,
how many are one; weights are drawn from a wide prior. No statistic of the records is in them. The
records themselves are public benchmark data, or simulated ones unlike the prior.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpy.typing import NDArray

from dpjax.rehearsal import Inference, Training, World, prior_predictive
from dpjax.rehearsal.worlds import Simulator
from experiments.data import Range, load_data

Array = NDArray[Any]
Records = Mapping[str, Any]

_NUM_FRESH = 4_000
_ADULT_ATTRIBUTES = 14
_GRADE_STD = (8 - 4) / math.sqrt(12)  # of the public range of grades
_NUM_GROUPS = 20


@dataclass(frozen=True, eq=False)
class Task:
    """A private run.

    Attributes:
      unit: of its error: "error rate", "RMSE" or "prior deviations".
      method: what is run, from the number of features.
      world: from the numbers of records and features, the simulator of the rehearsal.
      real: the records that the run is made for, held-out ones, and true values of parameters where
        they are known.
      clips: of the grid that is evaluated on the real records.
      data: name and options of the data set, none where the records are simulated.
      unlike: how simulated records are unlike the prior.
    """

    unit: str
    method: Callable[[int], Training | Inference]
    world: Callable[[int, int], Simulator]
    real: Callable[[], World]
    clips: tuple[float, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    unlike: str = ""

    def data_name(self) -> str:
        """Returns the name of the data set that is available, or nothing."""
        return self._load().name if self.data else ""

    def about(self) -> str:
        """Returns where the records come from."""
        return (
            self._load().note
            if self.data
            else f"Simulated records, unlike the prior: {self.unlike}."
        )

    def _load(self) -> Any:
        return _load(**self.data)


@functools.cache
def _load(**options: Any) -> Any:
    return load_data(stand_in=True, **options)


# Models of regression; their weights' scale is unknown to an order of magnitude.


def _logits(params: Any, x: jax.Array) -> jax.Array:
    return x @ params["weights"] + params["intercept"]


def _log_loss(params: Any, record: Records) -> jax.Array:
    return optax.sigmoid_binary_cross_entropy(_logits(params, record["x"]), record["y"])


def _error_rate(params: Any, fresh: Records) -> jax.Array:
    return jnp.mean((_logits(params, fresh["x"]) > 0) != (fresh["y"] > 0.5))


def _rarer_class(fresh: Records) -> jax.Array:
    share = jnp.mean(fresh["y"].astype(float))
    return jnp.minimum(share, 1 - share)


def _squared_loss(params: Any, record: Records) -> jax.Array:
    return (_logits(params, record["x"]) - record["y"]) ** 2 / 2


def _rmse(params: Any, fresh: Records) -> jax.Array:
    residuals = _logits(params, fresh["x"]) - fresh["y"]
    return _GRADE_STD * jnp.sqrt(jnp.mean(residuals**2))


def _spread(fresh: Records) -> jax.Array:
    return _GRADE_STD * jnp.std(fresh["y"])


def _start(num_features: int) -> dict[str, jax.Array]:
    return {"weights": jnp.zeros(num_features), "intercept": jnp.zeros(())}


def _classifier(num_features: int) -> Training:
    return Training(
        _log_loss, _start(num_features), optax.adam, score=_error_rate, constant_score=_rarer_class
    )


def _regressor(num_features: int) -> Training:
    return Training(
        _squared_loss, _start(num_features), optax.adam, score=_rmse, constant_score=_spread
    )


def _draw_linear(x: jax.Array) -> jax.Array:
    """Draws an intercept and weights, and returns their linear predictor."""
    typical_norm = jnp.sqrt(jnp.mean(jnp.sum(x**2, axis=1)))
    scale = numpyro.sample("scale", dist.LogNormal(0, 1))
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    intercept = numpyro.sample("intercept", dist.Normal(0, 1))
    return x @ weights * scale / typical_norm + intercept


def _draw_in_directions(x: jax.Array) -> jax.Array:
    """Draws as `_draw_linear`, with weights that are larger where the features vary little.

    Those of principal directions, by a power of their standard deviations that is unknown.
    """
    variances, directions = jnp.linalg.eigh(x.T @ x / len(x))
    power = numpyro.sample("power", dist.Uniform(0, 1))
    return _draw_linear(x @ (directions * jnp.maximum(variances, 1e-6) ** (-power / 2)))


def _answers(logits: jax.Array, y: jax.Array) -> None:
    with numpyro.plate("records", len(logits)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def _classes(x: jax.Array, y: jax.Array) -> None:
    _answers(_draw_linear(x), y)


def _classes_in_directions(x: jax.Array, y: jax.Array) -> None:
    _answers(_draw_in_directions(x), y)


def _numbers(x: jax.Array, y: jax.Array) -> None:
    means = 0.5 * _draw_linear(x)
    noise = numpyro.sample("noise", dist.LogNormal(math.log(0.7), 0.5))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Normal(means, noise), obs=y)


# Features of worlds.


def _one_of_each(key: jax.Array, num: int, num_features: int) -> jax.Array:
    """Draws a category of each of 14 attributes, coded as ones and zeros."""
    share_key, *keys = jax.random.split(key, 1 + _ADULT_ATTRIBUTES)
    sizes = [len(part) for part in np.array_split(np.arange(num_features), _ADULT_ATTRIBUTES)]
    columns = []
    for number, (size, own_key) in enumerate(zip(sizes, keys, strict=True)):
        shares = jax.random.dirichlet(jax.random.fold_in(share_key, number), jnp.ones(size))
        category = jax.random.categorical(own_key, jnp.log(shares), shape=(num,))
        columns.append(jax.nn.one_hot(category, size))
    return jnp.concatenate(columns, axis=1)


def _with_factor(own_share: jax.Array, key: jax.Array, num: int, num_features: int) -> jax.Array:
    """Draws features of unit variance with one common factor, and this share of their own."""
    factor_key, own_key = jax.random.split(key)
    factor = jax.random.normal(factor_key, (num, 1))
    own = jax.random.normal(own_key, (num, num_features))
    return jnp.sqrt(1 - own_share) * factor + jnp.sqrt(own_share) * own


def _correlated(key: jax.Array, num: int, num_features: int) -> jax.Array:
    """Draws features with a common factor of any share."""
    share_key, own_key = jax.random.split(key)
    return _with_factor(jax.random.uniform(share_key), own_key, num, num_features)


def _collinear(key: jax.Array, num: int, num_features: int) -> jax.Array:
    """Draws features that differ from a common factor by any order of magnitude, to a 1,000th."""
    share_key, own_key = jax.random.split(key)
    own_share = 10.0 ** jax.random.uniform(share_key, minval=-3.0, maxval=0.0)
    return _with_factor(own_share, own_key, num, num_features)


def _linear_world(
    model: Callable[..., None],
    features: Callable[..., jax.Array],
    num_examples: int,
    num_features: int,
) -> Simulator:
    return prior_predictive(
        model,
        {"x": lambda key, num: features(key, num, num_features)},
        observed=("y",),
        num_examples=num_examples,
        num_fresh=_NUM_FRESH,
    )


# Real records.


def _scale(values: Array, ranges: tuple[Range, ...]) -> Array:
    """Centres and scales columns as if they were uniform on their public ranges."""
    low, high = np.array(ranges).T
    return ((values - (low + high) / 2) / ((high - low) / math.sqrt(12))).astype(np.float32)


def _classes_of(name: str, **options: Any) -> World:
    data = _load(name=name, **options)
    train, test = (
        {"x": jnp.asarray(part.x), "y": jnp.asarray(part.y)} for part in (data.train, data.test)
    )
    return World(train, test)


def _wines() -> World:
    data = _load(name="wine")
    train, test = (
        {
            "x": jnp.asarray(_scale(part.x, data.feature_ranges)),
            "y": jnp.asarray(_scale(part.y[:, None], (data.target_range,))[:, 0]),
        }
        for part in (data.train, data.test)
    )
    return World(train, test)


# Bayesian models, for DPSVI, and records unlike their priors.


def _poisson(x: jax.Array, y: jax.Array) -> None:
    weights = numpyro.sample("weights", dist.Normal(0, 0.4).expand([3]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Poisson(jnp.exp(x @ weights)), obs=y)


def _hierarchical(x: jax.Array, group: jax.Array, y: jax.Array) -> None:
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    scale = numpyro.sample("scale", dist.HalfNormal(1))
    slope = numpyro.sample("slope", dist.Normal(0, 1))
    with numpyro.plate("groups", _NUM_GROUPS):
        intercepts = numpyro.sample("intercepts", dist.Normal(mean, scale))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=intercepts[group] + slope * x), obs=y)


def _poisson_world(num_examples: int, num_features: int) -> Simulator:
    features = {"x": dist.Normal(0, 1).expand([num_features]).to_event(1)}
    return prior_predictive(_poisson, features, observed=("y",), num_examples=num_examples)


def _hierarchical_world(num_examples: int, num_features: int) -> Simulator:
    del num_features
    features = {
        "x": dist.Normal(0, 1),
        "group": lambda key, num: jax.random.randint(key, (num,), 0, _NUM_GROUPS),
    }
    return prior_predictive(_hierarchical, features, observed=("y",), num_examples=num_examples)


def counts_unlike_the_prior(num_examples: int = 2_000) -> World:
    """Returns counts with weights at two prior deviations, uniform features, and overdispersion."""
    rng = np.random.default_rng(0)
    weights = np.array([0.8, -0.8, 0.8])
    x = rng.uniform(-math.sqrt(3), math.sqrt(3), (num_examples, 3))
    y = rng.poisson(np.exp(x @ weights) * rng.gamma(2.0, 1 / 2.0, num_examples))
    records = {"x": jnp.asarray(x, jnp.float32), "y": jnp.asarray(y, jnp.int32)}
    return World(records, records, {"weights": jnp.asarray(weights, jnp.float32)})


def groups_unlike_the_prior(num_examples: int = 2_000) -> World:
    """Returns answers of groups of two kinds, of sizes that fall with their number."""
    rng = np.random.default_rng(0)
    intercepts, slope = np.where(np.arange(_NUM_GROUPS) % 2, 2.0, -2.0), 2.0
    sizes = 1 / np.arange(1, _NUM_GROUPS + 1)
    group = rng.choice(_NUM_GROUPS, num_examples, p=sizes / sizes.sum())
    x = rng.normal(size=num_examples)
    y = rng.random(num_examples) < 1 / (1 + np.exp(-intercepts[group] - slope * x))
    records = {
        "x": jnp.asarray(x, jnp.float32),
        "group": jnp.asarray(group, jnp.int32),
        "y": jnp.asarray(y, jnp.int32),
    }
    truth = {"mean": 0.0, "scale": 2.0, "slope": slope, "intercepts": intercepts}
    return World(records, records, {name: jnp.asarray(v, jnp.float32) for name, v in truth.items()})


TASKS = {
    "Adult": Task(
        "error rate",
        _classifier,
        functools.partial(_linear_world, _classes, _one_of_each),
        lambda: _classes_of("adult"),
        (0.1, 0.3, 1.0, 3.0, 10.0),
        {"name": "adult"},
    ),
    "Abalone": Task(
        "error rate",
        _classifier,
        functools.partial(_linear_world, _classes_in_directions, _collinear),
        lambda: _classes_of("abalone", scaling="public"),
        (0.1, 0.3, 1.0, 3.0, 10.0),
        {"name": "abalone", "scaling": "public"},
    ),
    "Wine": Task(
        "RMSE",
        _regressor,
        functools.partial(_linear_world, _numbers, _correlated),
        _wines,
        (0.1, 0.3, 1.0, 3.0, 10.0),
        {"name": "wine"},
    ),
    "Poisson regression": Task(
        "prior deviations",
        lambda num_features: Inference(_poisson),
        _poisson_world,
        counts_unlike_the_prior,
        (0.5, 1.5, 5.0, 15.0, 50.0),
        unlike="weights at two prior deviations, uniform features, overdispersed counts",
    ),
    "hierarchical regression": Task(
        "prior deviations",
        lambda num_features: Inference(_hierarchical),
        _hierarchical_world,
        groups_unlike_the_prior,
        (0.5, 1.5, 5.0, 15.0, 50.0),
        unlike="intercepts of two values, unequal groups, a slope at two prior deviations",
    ),
}
