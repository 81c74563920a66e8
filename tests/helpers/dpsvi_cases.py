"""Models that the tests of private variational inference share, as numpyro's users write them."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from numpyro.infer import SVI
from numpyro.infer.autoguide import AutoMultivariateNormal
from numpyro.infer.svi import SVIState

from dpjax.bayes.variational import DPSVI
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import FixedSizeSampling

RECORDS, FEATURES = 60, 3
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(RECORDS, FEATURES)).astype(np.float32)
Y = (X @ np.array([2.0, -1.0, 0.5]) + _RNG.normal(size=RECORDS) > 0).astype(np.float32)


def logistic(x, y=None):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights), obs=y)


def logistic_guide(x, y=None):
    """Written by hand: quicker to start than an autoguide."""
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    positive = dist.constraints.positive
    scale = numpyro.param("scale", 0.1 * jnp.ones(x.shape[1]), constraint=positive)
    numpyro.sample("w", dist.Normal(loc, scale).to_event(1))


def mixture(x):
    weight = numpyro.sample("weight", dist.Uniform(0, 1))
    means = numpyro.sample("means", dist.Normal(0, 3).expand([2]).to_event(1))
    parts = dist.Categorical(jnp.stack([weight, 1 - weight])), dist.Normal(means, 1.0)
    with numpyro.plate("records", len(x)):
        numpyro.sample("x", dist.MixtureSameFamily(*parts), obs=x)


MIXED = X[:, 0] + 3 * Y
FULL_RANK = AutoMultivariateNormal(mixture)  # slow to start, so shared


# All records in every batch, in one physical batch, which is quick to compile.
WHOLE = SubsampledGaussian(
    FixedSizeSampling(RECORDS, RECORDS),
    num_steps=10,
    l2_clip=1e6,
    noise_multiplier=0.0,
    adjacency="replace_one",
)


def private(model=logistic, guide=logistic_guide, optim=None, loss=None, **fields):
    """DPSVI by the mechanism `WHOLE`, with ``fields`` of its own."""
    optim = numpyro.optim.SGD(1.0) if optim is None else optim
    return DPSVI(model, guide, optim, loss, mechanism=replace(WHOLE, **fields))


def step_of(svi, state, *args, **kwargs):
    """What one step of gradient descent with step size one takes off the parameters."""
    after, _ = svi.update(state, *args, **kwargs)
    before, after = (svi.optim.get_params(s.optim_state) for s in (state, after))
    return jax.tree.map(lambda b, a: np.asarray(b - a, float), before, after)


def flat(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])


def gradients(svi, args, kwargs):
    """Of numpyro and of DPSVI, from the same state and key, and their losses."""
    key = jax.random.key(7)
    state = svi.init(key, *args, **kwargs)
    theirs = SVI(svi.model, svi.guide, svi.optim, svi.loss)
    theirs.init(key, *args, **kwargs)
    same = SVIState(state.optim_state, None, state.rng_key)
    after, loss = jax.jit(lambda state: theirs.update(state, *args, **kwargs))(same)
    before, after = (svi.optim.get_params(s.optim_state) for s in (same, after))
    mine, (_, my_loss) = step_of(svi, state, *args, **kwargs), svi.update(state, *args, **kwargs)
    return flat(jax.tree.map(jnp.subtract, before, after)), flat(mine), loss, my_loss
