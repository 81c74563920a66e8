"""The program of a training in which three holders fit a logistic regression by DPSVI.

Every party has a copy of this file; its digest is in the plan.
"""

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import numpyro
import numpyro.distributions as dist
import optax

from dpjax.bayes import DPSVI
from dpjax.federated import Training, svi_training
from dpjax.mechanisms import SubsampledGaussian

# The constant and as many features as the stand-in for missing data has.
NUM_FEATURES = 11


def model(x: jax.Array, y: jax.Array | None = None) -> None:
    """A logistic regression of ``y``, zero or one, on features ``x``."""
    weights = numpyro.sample("weights", dist.Normal(0, 3).expand([NUM_FEATURES]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def guide(x: jax.Array, y: jax.Array | None = None) -> None:
    """Independent normal distributions of the weights."""
    location = numpyro.param("location", jnp.zeros(NUM_FEATURES))
    positive = dist.constraints.positive
    scale = numpyro.param("scale", jnp.full(NUM_FEATURES, 0.1), constraint=positive)
    numpyro.sample("weights", dist.Normal(location, scale).to_event(1))


def training(mechanism: SubsampledGaussian) -> Training:
    """Returns the training by the mechanism of the plan."""
    svi = DPSVI(model, guide, optax.adam(0.1), mechanism=mechanism)
    record: dict[str, npt.ArrayLike] = {"x": np.zeros(NUM_FEATURES, np.float32), "y": np.float32(0)}
    return svi_training(jax.random.key(0), svi, record)
