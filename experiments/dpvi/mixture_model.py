"""Five round Gaussians in the plane: records made up, and the mixture that is fitted to them.

Which component a record comes from is summed out, so that no latent variable is a record's own.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
from numpyro.infer import Predictive, log_likelihood
from numpyro.infer.autoguide import AutoNormal

MEANS = jnp.array([[0.0, 0.0], [2.0, 2.0], [-2.0, -2.0], [-2.0, 2.0], [2.0, -2.0]])
VARIANCE = 0.5
_NUM_COMPONENTS, _NUM_DIMENSIONS = MEANS.shape
_START = 0.1


def draw_records(key: jax.Array, num_records: int) -> jax.Array:
    """Returns records ``(num_records, 2)`` of the source's mixture, its weights equal."""
    component_key, normal_key = jax.random.split(key)
    components = jax.random.randint(component_key, (num_records,), 0, _NUM_COMPONENTS)
    normal = jax.random.normal(normal_key, (num_records, _NUM_DIMENSIONS))
    return MEANS[components] + jnp.sqrt(VARIANCE) * normal


def true_log_density(records: jax.Array) -> jax.Array:
    """Returns the mean log density of records under what they were drawn from.

    >>> float(true_log_density(draw_records(jax.random.key(0), 10_000))).__round__(1)
    -3.7
    """
    weights = jnp.full(_NUM_COMPONENTS, 1 / _NUM_COMPONENTS)
    variances = jnp.full(_NUM_COMPONENTS, VARIANCE)
    return _mixture(weights, MEANS, variances).log_prob(records).mean()


def model(records: jax.Array) -> None:
    """Weights, means and variances of five round Gaussians, and records of their mixture."""
    weights = numpyro.sample("weights", dist.Dirichlet(jnp.ones(_NUM_COMPONENTS)))
    variances = numpyro.sample(
        "variances", dist.InverseGamma(2.0, 1.0).expand([_NUM_COMPONENTS]).to_event(1)
    )
    shape = _NUM_COMPONENTS, _NUM_DIMENSIONS
    means = numpyro.sample("means", dist.Normal(0.0, 2.0).expand(shape).to_event(2))
    with numpyro.plate("records", len(records)):
        numpyro.sample("x", _mixture(weights, means, variances), obs=records)


def _mixture(weights: jax.Array, means: jax.Array, variances: jax.Array) -> Any:
    scales = jnp.broadcast_to(jnp.sqrt(variances)[:, None], means.shape)
    parts = dist.Normal(means, scales).to_event(1)
    return dist.MixtureSameFamily(dist.Categorical(probs=weights), parts)


def new_guide() -> AutoNormal:
    """Independent normals of small scale around a point that is drawn, not looked up."""
    return AutoNormal(model, init_scale=_START)


def predictive_log_density(
    guide: AutoNormal, params: Any, records: jax.Array, key: jax.Array, num_draws: int
) -> jax.Array:
    """Returns the mean over records of log E_q[p(record | theta)], by draws of theta from q."""
    draws = Predictive(guide, params=params, num_samples=num_draws)(key, records)
    values = log_likelihood(model, draws, records)["x"]
    return (jax.nn.logsumexp(values, axis=0) - jnp.log(num_draws)).mean()
