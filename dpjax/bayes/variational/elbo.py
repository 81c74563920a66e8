"""Negative ELBO, split into one term for each record and a data-free term.

ELBO = sum_i E_q[log p(x_i | theta)] - KL(q || p). The first part is a sum over records, whose
gradients are clipped; the second does not depend on the data. The factor n/b that numpyro gives a
subsampled plate is left out here, so it does not enter the clipped gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import scale_and_mask
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO, TraceMeanField_ELBO
from numpyro.primitives import Messenger

from dpjax._typing import Numeric, PRNGKey, PyTree
from dpjax.bayes.variational.model_args import Leaves, ModelArgsSpec, Values

# A message of numpyro's trace, and all messages of a program by name.
Site: TypeAlias = Mapping[str, Any]
Trace: TypeAlias = Mapping[str, Site]
# Of global latent variables, and of those under the plate.
Keys: TypeAlias = tuple[PRNGKey, PRNGKey]

# Far from the numbers of the keys that numpyro splits off the same key.
_LOCAL = 2**31 - 1


@dataclass(frozen=True, eq=False)
class ELBOTerms:
    """The terms of the negative ELBO of a model and a guide, and the plate that separates them.

    Attributes:
      model: numpyro model.
      guide: numpyro guide.
      loss: `numpyro.infer.Trace_ELBO` or `numpyro.infer.TraceMeanField_ELBO`.
      constrain: from unconstrained parameters to the values of the param sites.
      plate: the name of the plate over the records.
      spec: of the arguments of model and guide.
    """

    model: Callable[..., object]
    guide: Callable[..., object]
    loss: ELBO
    constrain: Callable[[PyTree], Values]
    plate: str
    spec: ModelArgsSpec


class Traces(NamedTuple):
    """Traces of the guide, and of the model at the guide's latent variables."""

    guide: Trace
    model: Trace


def record_loss(
    terms: ELBOTerms,
    params: Values,
    record: Leaves,
    arrays: Leaves,
    key: PRNGKey,
    position: Numeric,
) -> jax.Array:
    """Returns one record's term of the negative ELBO, averaged over the loss's particles.

    ``key`` is that of the step: the same global latent variables for every record. ``position``, of
    the record, is folded into the key of its local latent variables.
    """
    local_key = jax.random.fold_in(jax.random.fold_in(key, _LOCAL), position)
    one = batch_of_one(record)
    return _mean_loss(terms, params, one, arrays, (key, local_key), under_plate=True)


def data_free_loss(terms: ELBOTerms, params: Values, arrays: Leaves, key: PRNGKey) -> jax.Array:
    """Returns E_q[log q - log p] of the global latent variables, averaged over the particles.

    Model and guide are shown as many zeros as there are records: a
    prior may depend on their number.
    """
    zeros = terms.spec.constant_records(terms.spec.num_examples)
    return _mean_loss(terms, params, zeros, arrays, (key, key), under_plate=False)


def batch_of_one(record: Leaves) -> list[jax.Array]:
    """Returns the leaves of one record with a leading axis of length one."""
    return [jnp.asarray(leaf)[None] for leaf in record]


def _mean_loss(
    terms: ELBOTerms,
    params: Values,
    records: Leaves,
    arrays: Leaves,
    keys: Keys,
    *,
    under_plate: bool,
) -> jax.Array:
    """The summed terms of the sites under the plate, or of the others; mean over the particles."""

    def loss_of_particle(keys: Keys) -> jax.Array:
        losses = site_losses(terms, params, records, arrays, keys).values()
        return sum((loss for local, loss in losses if local == under_plate), jnp.zeros(()))

    num_particles = terms.loss.num_particles
    if num_particles == 1:
        return loss_of_particle(keys)
    split = tuple(jax.random.split(key, num_particles) for key in keys)  # as numpyro's losses do
    return terms.loss.vectorize_particles_fn(loss_of_particle, split).mean()


def site_losses(
    terms: ELBOTerms, params: Values, records: Leaves, arrays: Leaves, keys: Keys
) -> dict[str, tuple[bool, jax.Array]]:
    """Returns each sample site's term of the negative ELBO, and whether it is under the plate.

    For one particle, drawn from ``keys[0]`` as numpyro's losses draw from it.
    """
    guide, model = trace_guide_and_model(terms, params, records, arrays, keys)
    analytic = isinstance(terms.loss, TraceMeanField_ELBO)
    losses = {}
    for name in dict.fromkeys([*model, *guide]):
        site, proposal = model.get(name), guide.get(name)
        either = site or proposal
        if either and either["type"] == "sample":
            local = in_plate(either, terms.plate)
            losses[name] = local, _site_loss(site, proposal, local=local, analytic=analytic)
    return losses


def _site_loss(
    site: Site | None, proposal: Site | None, *, local: bool, analytic: bool
) -> jax.Array:
    """One site's term, scaled by handlers but under the plate, whose n/b is among their factors."""

    def total(value: jax.Array, scaled: Site) -> jax.Array:
        return jnp.sum(value if local else scale_and_mask(value, scaled["scale"]))

    if analytic and site and proposal:
        try:
            return total(kl_divergence(proposal["fn"], site["fn"]), proposal)
        except NotImplementedError:
            pass  # no closed form for this pair: log-densities at the draw, as in numpyro's ELBO
    of_guide, of_model = (
        total(log_prob(each), each) if each else jnp.zeros(()) for each in (proposal, site)
    )
    return of_guide - of_model


def trace_guide_and_model(
    terms: ELBOTerms, params: Values, records: Leaves, arrays: Leaves, keys: Keys
) -> Traces:
    """Returns the traces of guide, and of model at its latent variables, on ``records`` alone."""
    guide_trace = trace_guide(terms, params, records, arrays, keys)
    model_key, _ = jax.random.split(keys[0])
    model = ResizePlate(terms.model, terms.plate, len(records[0]), keys[1])
    model = replay(seed(model, model_key), guide_trace)
    return Traces(guide_trace, _trace(terms, model, params, records, arrays))


def trace_guide(
    terms: ELBOTerms, params: Values, records: Leaves, arrays: Leaves, keys: Keys
) -> Trace:
    """Returns the trace of the guide on ``records`` alone."""
    _, guide_key = jax.random.split(keys[0])
    guide = ResizePlate(terms.guide, terms.plate, len(records[0]), keys[1])
    return _trace(terms, seed(guide, guide_key), params, records, arrays)


def _trace(
    terms: ELBOTerms,
    program: Callable[..., object],
    params: Values,
    records: Leaves,
    arrays: Leaves,
) -> Trace:
    args, kwargs = terms.spec.to_args(records, arrays)
    values = terms.constrain(params)
    return trace(substitute(program, data=values)).get_trace(*args, **kwargs)


def in_plate(site: Site, plate: str) -> bool:
    """Returns whether a traced site is under the plate of this name."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


class ResizePlate(Messenger):
    """Effect handler that gives the plate over the records size ``count``.

    Local latent variables are drawn from ``key``, whatever is drawn outside of the plate.
    """

    def __init__(self, fn: Callable[..., object], plate: str, count: int, key: PRNGKey) -> None:
        super().__init__(fn)
        self.plate, self.count, self.key = plate, count, key

    def process_message(self, msg: dict[str, Any]) -> None:
        """Changes plate and sample messages, as numpyro's handlers do."""
        if msg["type"] == "plate" and msg["name"] == self.plate:
            msg["args"] = (msg["args"][0], self.count)
            msg["value"] = jnp.arange(self.count)
        elif msg["type"] == "sample" and msg["value"] is None and in_plate(msg, self.plate):
            self.key, msg["kwargs"]["rng_key"] = jax.random.split(self.key)


def log_prob(site: Site) -> jax.Array:
    """Returns the log-density of a sample site at its value, without factors of handlers."""
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    return site["fn"].log_prob(site["value"], *intermediates)
