"""Logistic regression on Adult's 14 attributes: records, posterior by NUTS, and calibration."""

import functools
from typing import Any, NamedTuple

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpy.typing import NDArray
from numpyro.infer import MCMC, NUTS

from experiments.data import load_data

Array = NDArray[Any]

_NUM_WARMUP, _NUM_DRAWS = 300, 1_000
_NUM_BINS = 10


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """Logistic regression of labels on features, the intercept's among them."""
    weights = numpyro.sample("weights", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


class Records(NamedTuple):
    """Features ``(n, d)``, the first of them one, and labels ``(n,)``."""

    x: Array
    y: Array


class Data(NamedTuple):
    """Training and test records, and a note on their source."""

    train: Records
    test: Records
    note: str


@functools.cache
def data() -> Data:
    """Returns Adult's records, with columns scaled by public ranges."""
    found = load_data("adult_attributes", scaling="public", stand_in=True)
    train, test = (
        Records(
            np.column_stack([np.ones(len(part.y)), part.x]).astype(np.float32),
            np.asarray(part.y, np.float32),
        )
        for part in (found.train, found.test)
    )
    return Data(train, test, found.note)


@functools.cache
def draws_of_nuts() -> Array:
    """Returns draws of the weights from the posterior without privacy, ``(draws, d)``."""
    sampler = MCMC(
        NUTS(model, dense_mass=True),
        num_warmup=_NUM_WARMUP,
        num_samples=_NUM_DRAWS,
        progress_bar=False,
    )
    sampler.run(jax.random.key(0), *data().train)
    return np.asarray(sampler.get_samples()["weights"], float)


@jax.jit
def _predict(draws: jax.Array, x: jax.Array) -> jax.Array:
    """Posterior predictive probabilities, ``(n,)``."""
    each = jax.lax.map(lambda weights: jax.nn.sigmoid(x @ weights), draws, batch_size=50)
    return each.mean(0)


def calibration_error(draws: Array, records: Records) -> float:
    """Returns the mean distance of predicted and observed shares over ten bins, in percent.

    Bins are of predicted probabilities, of equal widths, each with the weight of its records.

    Args:
      draws: of the weights, ``(draws, d)``.
      records: that are predicted.

    >>> records = Records(np.eye(2), np.array([0.0, 1.0]))
    >>> calibration_error(np.log([[1 / 3, 3.0]]), records)
    25.0
    """
    probabilities = np.asarray(_predict(draws.astype(np.float32), records.x), float)
    y = records.y
    bins = np.minimum((_NUM_BINS * probabilities).astype(int), _NUM_BINS - 1)
    differences = np.bincount(bins, probabilities - y, _NUM_BINS)
    return round(100 * float(np.abs(differences).sum() / len(y)), 4)
