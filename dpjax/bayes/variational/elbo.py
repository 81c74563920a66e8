"""Negative ELBO, split into one term for each record and a data-free term.

ELBO = sum_i E_q[log p(x_i | theta)] - KL(q || p). The first part is a sum over records, whose
gradients are clipped; the second does not depend on the data. The factor n/b that numpyro gives a
subsampled plate is left out here, so it does not enter the clipped gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import scale_and_mask
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO, TraceMeanField_ELBO
from numpyro.primitives import Messenger

from dpjax.bayes.variational.model_trace import (
    Layout,
    Trace,
    batch_of_one,
    fill_records,
    in_plate,
)

# Far from the numbers of the keys that numpyro splits off the same key.
_LOCAL = 2**31 - 1


class Problem(NamedTuple):
    """A variational inference problem: model, guide, loss and the plate over the records.

    Attributes:
      model: numpyro model.
      guide: numpyro guide.
      loss: `numpyro.infer.Trace_ELBO` or `numpyro.infer.TraceMeanField_ELBO`.
      constrain: from unconstrained parameters to the values of the param sites.
      plate: the name of the plate over the records.
      layout: of the model's arguments.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    loss: ELBO
    constrain: Callable[[Any], Any]
    plate: str
    layout: Layout


class NegativeELBO(NamedTuple):
    """Data-free term, and sum of the records' terms, for one particle."""

    data_free: jax.Array
    of_records: jax.Array


class Traces(NamedTuple):
    """Trace of the guide, and of the model at the guide's latent variables."""

    guide: Trace
    model: Trace


def record_loss(
    problem: Problem, params: Any, record: Any, arrays: Any, key: jax.Array, index: Any
) -> jax.Array:
    """One record's term of the negative ELBO, averaged over the loss's particles.

    Args:
      problem: model and guide.
      params: unconstrained parameters.
      record: the leaves of one record, without their leading axis.
      arrays: the public arrays.
      key: of the step: the same global latent variables for every record.
      index: position of the record, folded into the key of its local latent variables.
    """
    local_key = jax.random.fold_in(jax.random.fold_in(key, _LOCAL), index)

    def one(keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        return negative_elbo(problem, params, batch_of_one(record), arrays, *keys).of_records

    return _mean_over_particles(problem.loss, one, key, local_key)


def data_free_loss(
    problem: Problem, params: Any, records: Any, arrays: Any, key: jax.Array
) -> jax.Array:
    """E_q[log q - log p] of the global latent variables; of ``records`` only shapes are used."""

    def one(keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        return negative_elbo(problem, params, fill_records(records), arrays, *keys).data_free

    return _mean_over_particles(problem.loss, one, key, key)


def negative_elbo(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> NegativeELBO:
    """Both terms for one particle, drawn from ``key`` as numpyro's losses draw from it."""
    parts = [jnp.zeros(()), jnp.zeros(())]
    for local, loss in site_losses(problem, params, records, arrays, key, local_key).values():
        parts[local] = parts[local] + loss
    return NegativeELBO(*parts)


def site_losses(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> dict[str, tuple[bool, jax.Array]]:
    """For each sample site: whether it is under the plate, and its term of the negative ELBO."""
    guide, model = trace_guide_and_model(problem, params, records, arrays, key, local_key)
    analytic = isinstance(problem.loss, TraceMeanField_ELBO)
    losses = {}
    for name in dict.fromkeys([*model, *guide]):
        site, proposal = model.get(name), guide.get(name)
        either: Any = site or proposal
        if either["type"] == "sample":
            local = in_plate(either, problem.plate)
            losses[name] = local, _site_loss(site, proposal, local, analytic)
    return losses


def trace_guide_and_model(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> Traces:
    """Traces the guide, then the model at its latent variables, on ``records`` alone."""
    guide_trace = trace_guide(problem, params, records, arrays, key, local_key)
    model_key, _ = jax.random.split(key)
    model = ResizePlate(problem.model, problem.plate, len(records[0]), local_key)
    model = replay(seed(model, model_key), guide_trace)
    return Traces(guide_trace, _trace(problem, model, params, records, arrays))


def trace_guide(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> Trace:
    """Traces the guide on ``records`` alone."""
    _, guide_key = jax.random.split(key)
    guide = ResizePlate(problem.guide, problem.plate, len(records[0]), local_key)
    return _trace(problem, seed(guide, guide_key), params, records, arrays)


def _trace(
    problem: Problem, program: Callable[..., Any], params: Any, records: Any, arrays: Any
) -> Trace:
    args, kwargs = problem.layout.arguments(records, arrays)
    values = problem.constrain(params)
    return trace(substitute(program, data=values)).get_trace(*args, **kwargs)


class ResizePlate(Messenger):
    """Effect handler that gives the plate over the records size ``count``.

    Local latent variables are drawn from ``key``, whatever is drawn outside of the plate.
    """

    def __init__(self, fn: Any, plate: str, count: int, key: jax.Array) -> None:
        super().__init__(fn)
        self.plate, self.count, self.key = plate, count, key

    def process_message(self, msg: Any) -> None:
        """Changes plate and sample messages, as numpyro's handlers do."""
        if msg["type"] == "plate" and msg["name"] == self.plate:
            msg["args"] = (msg["args"][0], self.count)
            msg["value"] = jnp.arange(self.count)
        elif msg["type"] == "sample" and msg["value"] is None and in_plate(msg, self.plate):
            self.key, msg["kwargs"]["rng_key"] = jax.random.split(self.key)


def _mean_over_particles(loss: ELBO, one: Any, key: jax.Array, local_key: jax.Array) -> jax.Array:
    """Mean over the particles, which are drawn from numpyro's keys."""
    if loss.num_particles == 1:
        return one((key, local_key))
    keys = [jax.random.split(k, loss.num_particles) for k in (key, local_key)]
    return loss.vectorize_particles_fn(one, tuple(keys)).mean()


def _site_loss(site: Any, proposal: Any, local: bool, analytic: bool) -> jax.Array:
    """One site's term of the negative ELBO."""
    if analytic and site and proposal:
        try:
            divergence = kl_divergence(proposal["fn"], site["fn"])
            return jnp.sum(_scaled(divergence, proposal, local))
        except NotImplementedError:
            pass  # no closed form for this pair: log-densities at the draw, as in numpyro's ELBO
    of_guide, of_model = (
        jnp.sum(_scaled(log_prob(s), s, local)) if s else jnp.zeros(()) for s in (proposal, site)
    )
    return of_guide - of_model


def log_prob(site: Any) -> jax.Array:
    """The log-density of a traced sample site at its value, without factors of handlers."""
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    return site["fn"].log_prob(site["value"], *intermediates)


def _scaled(value: jax.Array, site: Any, local: bool) -> jax.Array:
    """Scaled by handlers; sites under the plate are not, as its factor n/b is among theirs."""
    return value if local else scale_and_mask(value, site["scale"])
