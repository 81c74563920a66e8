"""Negative ELBO as a sum over records plus a KL term, which does not depend on the data.

ELBO = sum_i E_q[log p(x_i | theta)] - KL(q || p). The first part is a sum over records, whose
gradients are clipped; the second does not depend on the data. The factor n/b that numpyro gives a
subsampled plate is left out here, so it does not enter the clipped gradients.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpyro.distributions as dist
from jax.extend.core import Literal
from numpyro.distributions import constraints
from numpyro.distributions.constraints import Constraint
from numpyro.distributions.kl import kl_divergence
from numpyro.distributions.transforms import AbsTransform, Transform
from numpyro.distributions.util import scale_and_mask
from numpyro.handlers import replay, seed, substitute, trace
from numpyro.infer import ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal
from numpyro.primitives import Messenger

from dpjax._checks import is_traced
from dpjax._typing import Numeric, PRNGKey, PyTree
from dpjax.bayes.variational.model_args import Leaves, ModelArgsSpec, Values

# A message of numpyro's trace, and all messages of a program by name.
Site: TypeAlias = Mapping[str, Any]
Trace: TypeAlias = Mapping[str, Site]
# Of global latent variables, and of those under the plate.
Keys: TypeAlias = tuple[PRNGKey, PRNGKey]

# Far from the numbers of the keys that numpyro splits off the same key.
_LOCAL = 2**31 - 1


class MeanFieldParams(NamedTuple):
    """Means and standard deviations of a mean-field normal guide, by latent variable.

    Attributes:
      sites: the guide's latent variables, each normal before a transformation.
      locs: names of their means, in the same order.
      scales: names of their standard deviations, of the same shapes.
      constraints: supports of the standard deviations.
    """

    sites: tuple[str, ...]
    locs: tuple[str, ...]
    scales: tuple[str, ...]
    constraints: tuple[Constraint, ...]


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
      mean_field: parameters of a mean-field normal guide, else ``None``.
    """

    model: Callable[..., object]
    guide: Callable[..., object]
    loss: ELBO
    constrain: Callable[[PyTree], Values]
    plate: str
    spec: ModelArgsSpec
    mean_field: MeanFieldParams | None = None


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
    """Returns one record's term of the negative ELBO, averaged over the ELBO's particles.

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
        except NotImplementedError:  # raised by numpyro
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


def guide_sites(terms: ELBOTerms, params: Values, arrays: Leaves, key: PRNGKey) -> Trace:
    """Returns the trace of a guide without local latent variables."""
    return trace_guide(terms, params, terms.spec.constant_records(1), arrays, (key, key))


def find_mean_field(terms: ELBOTerms, params: Values, arrays: Leaves) -> MeanFieldParams | None:
    """Returns the means and scales of a mean-field normal guide; ``None`` of any other guide.

    `AutoDiagonalNormal`, and a guide in which each latent variable, all of them the model's, is
    ``Normal(loc, scale)``, or a bijection of it that depends on no parameter, where ``loc`` and
    ``scale`` are param sites of their own and of its shape, and there are no other parameters: so
    are `AutoNormal` and a list of these. Found in the program, not from values or names.

    Args:
      terms: of the negative ELBO.
      params: by name.
      arrays: public arguments of the model.
    """
    autoguide: Any = terms.guide
    if type(autoguide) is AutoDiagonalNormal:  # one normal vector, of which the sites are parts
        loc, scale = f"{autoguide.prefix}_loc", f"{autoguide.prefix}_scale"
        if {loc, scale} != set(params):
            return None
        site = f"_{autoguide.prefix}_latent"
        return MeanFieldParams((site,), (loc,), (scale,), (autoguide.scale_constraint,))

    # The guide as a function of the values of its param sites.
    as_given = replace(terms, constrain=lambda values: values)
    normals: dict[str, dist.Normal] = {}
    supports: dict[str, Constraint] = {}
    others = []

    def parts_of_guide(values: Values, arrays: Leaves) -> tuple[list[jax.Array], list[object]]:
        key = jax.random.key(0)
        records = terms.spec.constant_records(1)
        guide, model = trace_guide_and_model(as_given, values, records, arrays, (key, key))
        in_transforms = []
        for name, site in guide.items():
            if site["type"] == "param":
                supports[name] = site["kwargs"].get("constraint", constraints.real)
            elif site["type"] == "sample":
                normal, transforms = normal_and_transforms(site)
                if normal is None or name not in model or in_plate(site, terms.plate):
                    others.append(name)
                    continue
                normals[name] = normal
                try:
                    in_transforms += jax.tree.leaves(transforms)
                except NotImplementedError:  # a user's own, whose numbers are unknown
                    others.append(name)
        return [part for each in normals.values() for part in (each.loc, each.scale)], in_transforms

    values = jax.eval_shape(terms.constrain, params)
    program = jax.make_jaxpr(parts_of_guide)(values, arrays).jaxpr
    if others or not normals or not all(hasattr(leaf, "shape") for leaf in values.values()):
        return None

    # Each mean and scale is a param site itself, and each param site is one of them.
    name_of: dict[object, str] = dict(zip(program.invars, sorted(values), strict=False))
    outputs = [None if isinstance(each, Literal) else each for each in program.outvars]
    names = [name_of.get(each, "") for each in outputs[: 2 * len(normals)]]
    if sorted(names) != sorted(params) or set(names) != set(supports):
        return None

    # No transformation depends on a parameter, or on a variable that does.
    dependent: set[object] = set(name_of)
    for equation in program.eqns:
        if any(each in dependent for each in equation.invars if not isinstance(each, Literal)):
            dependent.update(equation.outvars)
    if dependent.intersection(outputs[2 * len(normals) :]):
        return None

    # Means are free, and standard deviations have a support of their own entries.
    locs, scales = tuple(names[::2]), tuple(names[1::2])
    of_scales = tuple(supports[scale] for scale in scales)
    if not all(_is_real(supports[loc]) for loc in locs):
        return None
    if any(each.event_dim or any(map(is_traced, jax.tree.leaves(each))) for each in of_scales):
        return None
    return MeanFieldParams(tuple(normals), locs, scales, of_scales)


def normal_and_transforms(site: Site) -> tuple[dist.Normal | None, tuple[Transform, ...]]:
    """Returns the normal distribution that a latent site transforms, and the bijections.

    ``None`` in its place if there is none: other distributions, one transformed twice (of which
    numpyro does not keep the normal draw), or terms of the ELBO that a handler scales.
    """
    fn, transforms = site["fn"], tuple[Transform, ...]()
    while isinstance(fn, dist.Independent) or type(fn) in (
        dist.TransformedDistribution,
        dist.LogNormal,
    ):
        if not isinstance(fn, dist.Independent):
            if transforms:
                return None, ()
            transforms = tuple(fn.transforms)
        fn = fn.base_dist
    is_plain = type(fn) is dist.Normal and jnp.shape(fn.loc) == jnp.shape(fn.scale)
    is_bijective = not any(isinstance(each, AbsTransform) for each in transforms)
    is_free = not site["is_observed"] and site["scale"] is None
    return (fn if is_plain and is_bijective and is_free else None), transforms


def _is_real(support: Constraint) -> bool:
    while isinstance(support, constraints.independent):
        support = support.base_constraint
    return support is constraints.real


def guide_name(guide: Callable[..., object]) -> str:
    """Returns the name of a guide in errors: of its function or its type."""
    return str(getattr(guide, "__name__", type(guide).__name__))


def log_prob(site: Site) -> jax.Array:
    """Returns the log-density of a sample site at its value, without factors of handlers."""
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    return site["fn"].log_prob(site["value"], *intermediates)
