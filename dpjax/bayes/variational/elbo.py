"""Minus the ELBO in its two parts: what each record adds, and what no record is needed for.

ELBO = sum_i E_q[log p(x_i | theta)] - KL(q || p): the first part is the sum of one term for each
record, to be clipped; the second is free of data. What numpyro scales by n/b for a subsampled plate
is left unscaled here, so no such factor enters a clip.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.util import scale_and_mask
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO, TraceMeanField_ELBO
from numpyro.primitives import Messenger

from dpjax.bayes.variational.records import Layout, batch_of_one, blank

# Far from the numbers of the keys that numpyro splits off the same key.
_LOCAL = 2**31 - 1

Trace = Mapping[str, Mapping[str, Any]]


class Problem(NamedTuple):
    """A model, a guide and a loss, once it is known which plate holds the records.

    Attributes:
      model: as the user wrote it.
      guide: likewise.
      loss: `numpyro.infer.Trace_ELBO` or `numpyro.infer.TraceMeanField_ELBO`.
      constrain: from unconstrained parameters to the values of the param sites.
      plate: the name of the plate over the records.
      layout: how the model's arguments fit together.
    """

    model: Callable[..., Any]
    guide: Callable[..., Any]
    loss: ELBO
    constrain: Callable[[Any], Any]
    plate: str
    layout: Layout


class Terms(NamedTuple):
    """Two parts of minus the ELBO of the records that a model was shown."""

    data_free: jax.Array
    of_records: jax.Array


class Traces(NamedTuple):
    """The guide, and the model replayed on what the guide has drawn."""

    guide: Trace
    model: Trace


def record_loss(
    problem: Problem, params: Any, record: Any, arrays: Any, key: jax.Array, index: Any
) -> jax.Array:
    """What one record adds to minus the ELBO, as an average over the loss's particles.

    Args:
      problem: model and guide.
      params: unconstrained parameters.
      record: the leaves of one record, without their leading axis.
      arrays: the arguments that are no records.
      key: of the step: the same latent variables for every record.
      index: of the record: local latent variables are drawn for each record by itself.
    """
    local_key = jax.random.fold_in(jax.random.fold_in(key, _LOCAL), index)

    def one(keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        return terms(problem, params, batch_of_one(record), arrays, *keys).of_records

    return _average(problem.loss, one, key, local_key)


def data_free_loss(
    problem: Problem, params: Any, records: Any, arrays: Any, key: jax.Array
) -> jax.Array:
    """E_q[log q - log p] over the global latent variables: of ``records`` only shapes are used."""

    def one(keys: tuple[jax.Array, jax.Array]) -> jax.Array:
        return terms(problem, params, blank(records), arrays, *keys).data_free

    return _average(problem.loss, one, key, key)


def terms(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> Terms:
    """Both parts for one particle; drawn from ``key`` as numpyro's losses draw from it."""
    parts = [jnp.zeros(()), jnp.zeros(())]
    for local, loss in site_losses(problem, params, records, arrays, key, local_key).values():
        parts[local] = parts[local] + loss
    return Terms(*parts)


def site_losses(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> dict[str, tuple[bool, jax.Array]]:
    """For each sample site: whether it stands under the plate, and what it adds."""
    guide, model = traces(problem, params, records, arrays, key, local_key)
    analytic = isinstance(problem.loss, TraceMeanField_ELBO)
    losses = {}
    for name in dict.fromkeys([*model, *guide]):
        site, proposal = model.get(name), guide.get(name)
        known: Any = site or proposal
        if known["type"] == "sample":
            local = in_plate(known, problem.plate)
            losses[name] = local, _loss_of(site, proposal, local, analytic)
    return losses


def traces(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> Traces:
    """Runs the guide, then the model on what it drew, on ``records`` taken for all there are."""
    guide_trace = run_guide(problem, params, records, arrays, key, local_key)
    model_key, _ = jax.random.split(key)
    shown = _Shown(problem.model, problem.plate, len(records[0]), local_key)
    model = replay(seed(shown, model_key), guide_trace)
    return Traces(guide_trace, _run(problem, model, params, records, arrays))


def run_guide(
    problem: Problem,
    params: Any,
    records: Any,
    arrays: Any,
    key: jax.Array,
    local_key: jax.Array,
) -> Trace:
    """The guide alone."""
    _, guide_key = jax.random.split(key)
    shown = _Shown(problem.guide, problem.plate, len(records[0]), local_key)
    return _run(problem, seed(shown, guide_key), params, records, arrays)


def _run(
    problem: Problem, program: Callable[..., Any], params: Any, records: Any, arrays: Any
) -> Trace:
    args, kwargs = problem.layout.arguments(records, arrays)
    values = problem.constrain(params)
    return trace(substitute(program, data=values)).get_trace(*args, **kwargs)


def in_plate(site: Any, plate: str) -> bool:
    """Whether a site stands under the plate of this name."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


class _Shown(Messenger):
    """Shows a model ``count`` records: its plate holds so many, its local draws are their own."""

    def __init__(self, fn: Any, plate: str, count: int, key: jax.Array) -> None:
        super().__init__(fn)
        self.plate, self.count, self.key = plate, count, key

    def process_message(self, msg: Any) -> None:
        if msg["type"] == "plate" and msg["name"] == self.plate:
            msg["args"] = (msg["args"][0], self.count)
            msg["value"] = jnp.arange(self.count)
        elif msg["type"] == "sample" and msg["value"] is None and in_plate(msg, self.plate):
            self.key, msg["kwargs"]["rng_key"] = jax.random.split(self.key)


def _average(loss: ELBO, one: Any, key: jax.Array, local_key: jax.Array) -> jax.Array:
    """Over the particles, whose keys are numpyro's."""
    if loss.num_particles == 1:
        return one((key, local_key))
    keys = [jax.random.split(k, loss.num_particles) for k in (key, local_key)]
    return loss.vectorize_particles_fn(one, tuple(keys)).mean()


def _loss_of(site: Any, proposal: Any, local: bool, analytic: bool) -> jax.Array:
    """What one site adds to minus the ELBO."""
    if analytic and site and proposal:
        try:
            divergence = kl_divergence(proposal["fn"], site["fn"])
            return jnp.sum(_scaled(divergence, proposal, local))
        except NotImplementedError:
            pass  # no closed form for this pair: its draws are used, as numpyro's own ELBO does
    of_guide, of_model = (_log_prob(s, local) if s else jnp.zeros(()) for s in (proposal, site))
    return of_guide - of_model


def _log_prob(site: Any, local: bool) -> jax.Array:
    """Summed; of sites under the plate without the plate's own factor n/b."""
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    return jnp.sum(_scaled(site["fn"].log_prob(site["value"], *intermediates), site, local))


def _scaled(value: jax.Array, site: Any, local: bool) -> jax.Array:
    return value if local else scale_and_mask(value, site["scale"])
