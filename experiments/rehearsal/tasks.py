"""Private runs to be rehearsed: their method, their worlds, and the records they are made for.

Worlds are crude public descriptions: the number of records and features, the range of a feature,
how many are one; weights are drawn from a wide prior. Of images they are other public images. No
statistic of the records is in them. The records themselves are public benchmark data, or simulated
ones unlike the prior.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
from numpy.typing import NDArray

from dpjax.rehearsal import Inference, PublicRecords, Training, World, prior_predictive
from dpjax.rehearsal.worlds import Simulator
from experiments.bayes.models import NUM_GROUPS, hierarchical_logistic
from experiments.data import NUM_TOKENS, Range, load_data
from experiments.data.reviews import FIRST_WORD, START
from experiments.lib.models import MeanEmbeddingClassifier, MnistCNN

Array = NDArray[Any]
Records = Mapping[str, Any]

_NUM_FRESH = 4_000
_ADULT_ATTRIBUTES = 14
_SHORTEST_REVIEW = 20  # words
_NUM_IMAGES = 6_000  # of MNIST, taken as the private ones
_SCORED = 500  # records at a time, for memory


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
      plans: of that grid: records over batch size, and epochs.
      epochs: that the rehearsal tries, by default its own.
      num_worlds: of the rehearsal in the paper profile.
      num_seeds: of the runs on the real records in the paper profile.
    """

    unit: str
    method: Callable[[int], Training | Inference]
    world: Callable[[int, int], Simulator]
    real: Callable[[], World]
    clips: tuple[float, ...]
    data: Mapping[str, Any] = field(default_factory=dict)
    unlike: str = ""
    plans: tuple[tuple[int, float], ...] = ((64, 10.0), (8, 20.0))
    epochs: tuple[float, ...] | None = None
    num_worlds: int = 8
    num_seeds: int = 10

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


def _rmse(target_std: float, params: Any, fresh: Records) -> jax.Array:
    residuals = _logits(params, fresh["x"]) - fresh["y"]
    return target_std * jnp.sqrt(jnp.mean(residuals**2))


def _spread(target_std: float, fresh: Records) -> jax.Array:
    return target_std * jnp.std(fresh["y"])


def _start(num_features: int) -> dict[str, jax.Array]:
    return {"weights": jnp.zeros(num_features), "intercept": jnp.zeros(())}


def _classifier(num_features: int) -> Training:
    return Training(
        _log_loss, _start(num_features), optax.adam, score=_error_rate, constant_score=_rarer_class
    )


def _regressor(low: float, high: float, num_features: int) -> Training:
    """The regression of a target that was scaled by this public range."""
    target_std = (high - low) / math.sqrt(12)
    return Training(
        _squared_loss,
        _start(num_features),
        optax.adam,
        score=functools.partial(_rmse, target_std),
        constant_score=functools.partial(_spread, target_std),
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


def _targets(means: jax.Array, y: jax.Array) -> None:
    noise = numpyro.sample("noise", dist.LogNormal(math.log(0.7), 0.5))
    with numpyro.plate("records", len(means)):
        numpyro.sample("y", dist.Normal(means, noise), obs=y)


def _numbers(x: jax.Array, y: jax.Array) -> None:
    _targets(0.5 * _draw_linear(x), y)


def _numbers_in_directions(x: jax.Array, y: jax.Array) -> None:
    _targets(0.5 * _draw_in_directions(x), y)


# Networks.


def _network(model: nn.Module, example: jax.Array) -> Training:
    """The classifier by a network, whose parameters are drawn at an example."""

    def logits(params: Any, x: jax.Array) -> jax.Array:
        output: Any = model.apply({"params": params}, _as_input(x))
        return output

    def loss(params: Any, record: Records) -> jax.Array:
        return optax.softmax_cross_entropy_with_integer_labels(
            logits(params, record["x"][None])[0], record["y"]
        )

    def error_rate(params: Any, fresh: Records) -> jax.Array:
        wrong = jax.lax.map(
            lambda record: logits(params, record["x"][None])[0].argmax() != record["y"],
            dict(fresh),
            batch_size=_SCORED,
        )
        return jnp.mean(wrong)

    def other_classes(fresh: Records) -> jax.Array:
        return 1 - jnp.bincount(fresh["y"], length=10).max() / len(fresh["y"])

    params = model.init(jax.random.key(0), _as_input(example[None]))["params"]
    return Training(loss, params, optax.adam, score=error_rate, constant_score=other_classes)


def _as_input(x: jax.Array) -> jax.Array:
    """Returns pixels, which are kept as bytes, in [0, 1] with a channel; tokens as they are."""
    return x[..., None] / 255 if x.dtype == jnp.uint8 else x


def _text_classifier(length: int) -> Training:
    return _network(MeanEmbeddingClassifier(NUM_TOKENS), jnp.zeros(length, jnp.int32))


def _image_classifier(num_pixels: int) -> Training:
    width = math.isqrt(num_pixels)
    return _network(MnistCNN(), jnp.zeros((width, width), jnp.uint8))


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


def _review_world(num_examples: int, length: int) -> Simulator:
    """Texts of words by Zipf's law, more or less frequent in praise, by factors around one."""
    numbers = jnp.arange(NUM_TOKENS)
    frequencies = jnp.where(numbers < FIRST_WORD, 0.0, 1 / (numbers + 1.0))

    def simulate(key: jax.Array) -> World:
        keys = jax.random.split(key, 5)
        total = num_examples + _NUM_FRESH

        # How much each word is preferred in praise, and the two classes' frequencies.
        strength = 0.1 * jnp.exp(jax.random.normal(keys[0]) / 2)
        preference = strength * jax.random.normal(keys[1], (NUM_TOKENS,))
        weights = frequencies * jnp.exp(jnp.stack([-preference, preference]))
        cumulative = jnp.cumsum(weights / weights.sum(1, keepdims=True), axis=1)

        # Labels, words, and lengths between the shortest and the longest.
        y = jax.random.bernoulli(keys[2], shape=(total,)).astype(jnp.int32)
        uniform = jax.random.uniform(keys[3], (total, length))
        words = [jnp.searchsorted(of_class, uniform) for of_class in cumulative]
        x = jnp.clip(jnp.where(y[:, None] == 1, words[1], words[0]), FIRST_WORD, NUM_TOKENS - 1)
        shortest = min(_SHORTEST_REVIEW, length)
        lengths = jax.random.randint(keys[4], (total, 1), shortest, length + 1)
        x = jnp.where(jnp.arange(length) < lengths, x, 0).at[:, 0].set(START)

        records = {"x": x.astype(jnp.int32), "y": y}
        parts = slice(num_examples), slice(num_examples, None)
        return World(*(jax.tree.map(lambda leaf, part=part: leaf[part], records) for part in parts))

    return simulate


def _image_world(name: str, num_examples: int, num_pixels: int) -> Simulator:
    """Resamples other images, of the same number of classes."""
    del num_pixels
    data = load_data(name, stand_in=True)
    x, y = (
        np.concatenate([getattr(part, kind) for part in (data.train, data.test)])
        for kind in ("x", "y")
    )
    share = min(0.2, _NUM_FRESH / len(x))
    records = {"x": _as_bytes(x), "y": jnp.asarray(y, jnp.int32)}
    return PublicRecords(records, num_examples=num_examples, fresh_share=share)


def _as_bytes(images: Array) -> jax.Array:
    """Returns grey images in [0, 1] as bytes, which JAX holds in less memory."""
    return jnp.asarray(np.round(255 * images[..., 0]).astype(np.uint8))


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


def _reviews() -> World:
    data = _load(name="imdb")
    return World(
        *(
            {"x": jnp.asarray(part.x, jnp.int32), "y": jnp.asarray(part.y, jnp.int32)}
            for part in (data.train, data.test)
        )
    )


def _digits() -> World:
    data = _load(name="mnist")
    parts = (data.train.x[:_NUM_IMAGES], data.train.y[:_NUM_IMAGES]), data.test
    return World(*({"x": _as_bytes(x), "y": jnp.asarray(y, jnp.int32)} for x, y in parts))


def _numbers_of(name: str) -> World:
    data = _load(name=name)
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


def _poisson_world(num_examples: int, num_features: int) -> Simulator:
    features = {"x": dist.Normal(0, 1).expand([num_features]).to_event(1)}
    return prior_predictive(_poisson, features, observed=("y",), num_examples=num_examples)


def _hierarchical_world(num_examples: int, num_features: int) -> Simulator:
    del num_features
    features = {
        "x": dist.Normal(0, 1),
        "group": lambda key, num: jax.random.randint(key, (num,), 0, NUM_GROUPS),
    }
    return prior_predictive(
        hierarchical_logistic, features, observed=("y",), num_examples=num_examples
    )


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
    intercepts, slope = np.where(np.arange(NUM_GROUPS) % 2, 2.0, -2.0), 2.0
    sizes = 1 / np.arange(1, NUM_GROUPS + 1)
    group = rng.choice(NUM_GROUPS, num_examples, p=sizes / sizes.sum())
    x = rng.normal(size=num_examples)
    y = rng.random(num_examples) < 1 / (1 + np.exp(-intercepts[group] - slope * x))
    records = {
        "x": jnp.asarray(x, jnp.float32),
        "group": jnp.asarray(group, jnp.int32),
        "y": jnp.asarray(y, jnp.int32),
    }
    truth = {"mean": 0.0, "scale": 2.0, "slope": slope, "intercepts": intercepts}
    return World(records, records, {name: jnp.asarray(v, jnp.float32) for name, v in truth.items()})


def _mnist_rehearsed_on(name: str) -> Task:
    return Task(
        "error rate",
        _image_classifier,
        functools.partial(_image_world, name),
        _digits,
        (0.03, 0.1, 0.3, 1.0, 3.0),
        {"name": "mnist"},
        plans=((64, 2.0), (16, 2.0)),
        epochs=(2.0,),
        num_worlds=2,
        num_seeds=1,
    )


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
        functools.partial(_regressor, 4.0, 8.0),
        functools.partial(_linear_world, _numbers, _correlated),
        functools.partial(_numbers_of, "wine"),
        (0.1, 0.3, 1.0, 3.0, 10.0),
        {"name": "wine"},
    ),
    "Abalone, rings": Task(
        "RMSE",
        functools.partial(_regressor, 4.0, 16.0),
        functools.partial(_linear_world, _numbers_in_directions, _collinear),
        functools.partial(_numbers_of, "abalone_rings"),
        (0.1, 0.3, 1.0, 3.0, 10.0),
        {"name": "abalone_rings"},
    ),
    "IMDb": Task(
        "error rate",
        _text_classifier,
        _review_world,
        _reviews,
        (0.01, 0.03, 0.1, 0.3, 1.0),
        {"name": "imdb"},
        plans=((64, 5.0), (8, 5.0)),
        epochs=(5.0,),
        num_worlds=2,
        num_seeds=1,
    ),
    "MNIST, rehearsed on Fashion-MNIST": _mnist_rehearsed_on("fashion_mnist"),
    "MNIST, rehearsed on scanned digits": _mnist_rehearsed_on("digits"),
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
        lambda num_features: Inference(hierarchical_logistic),
        _hierarchical_world,
        groups_unlike_the_prior,
        (0.5, 1.5, 5.0, 15.0, 50.0),
        unlike="intercepts of two values, unequal groups, a slope at two prior deviations",
    ),
}
