"""Rejects models, guides, losses and optimisers that DP-VI cannot handle.

Everything is traced on zero-filled records, so a refusal is no function of the data. Not found:
values that were computed from the data before, a mean or a part, in a closure, object or global.
"""

from collections.abc import Callable, Iterator
from functools import partial

import jax
import jax.numpy as jnp
import numpyro.optim
from jax.extend.core import ClosedJaxpr, Literal
from numpyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDAIS, AutoGuideList, AutoLaplaceApproximation, AutoSemiDAIS
from numpyro.ops.provenance import eval_provenance

from dpjax._jaxprs import bodies_of
from dpjax._typing import ArrayTree
from dpjax.bayes.variational.arguments import Arguments, Values, fill_records, shapes_of
from dpjax.bayes.variational.elbo import (
    Problem,
    Traces,
    data_free_loss,
    log_prob,
    record_loss,
    site_losses,
    trace_guide_and_model,
)
from dpjax.bayes.variational.independence import check_independence, explain_failure
from dpjax.bayes.variational.model_trace import Site, check_not_mutable, in_plate

# Guides that evaluate the model on the records they were set up on.
_READ_RECORDS = (AutoDAIS, AutoLaplaceApproximation, AutoSemiDAIS)

_LOCAL_LATENTS = (
    "it would be private to one record and released as a parameter, which no noise on sums"
    " protects. Marginalise it (a discrete one by numpyro.distributions.MixtureSameFamily), or use"
    " an amortised guide: one that samples it under the same plate as a function of the record,"
    " with parameters that all records share"
)


def check_loss(loss: ELBO) -> None:
    """Raises ``ValueError`` for losses that are not a sum over the records."""
    plain = type(loss) in (Trace_ELBO, TraceMeanField_ELBO) and loss.sum_sites
    if not plain or getattr(loss, "multi_sample_guide", False):
        raise ValueError(
            "loss must be Trace_ELBO or TraceMeanField_ELBO (with sum_sites, without"
            f" multi_sample_guide), whose data term is a sum over records, got {loss!r}"
        )


def check_optimizer(optim: object) -> None:
    """Raises ``ValueError`` for optimisers that evaluate the loss."""
    if isinstance(optim, numpyro.optim.Minimize):
        raise ValueError(
            "optim must use gradients alone, got Minimize, which evaluates the loss, and so reads"
            " the records without noise"
        )


def check_problem(problem: Problem, params: Values, arguments: Arguments) -> None:
    """Refuses models and guides in which a record affects more than its own clipped term.

    Raises:
      ValueError: naming the site, and what is allowed.
    """
    num_examples = len(arguments.records[0])
    _check_guide_class(problem.guide)
    traced = len(arguments.example_records[0])  # on as many parameters were initialised
    for name, value in params.items():
        if any(leaf.shape[:1] == (traced,) for leaf in jax.tree.leaves(value)):
            _check_imputed(name)
            raise ValueError(
                f"params must be shared by all records, but {name!r} has a leading axis of"
                f" num_examples = {traced}, as a variable for each record has:"
                f" {_LOCAL_LATENTS}"
            )
    whole = _trace_zeros(problem, params, arguments, num_examples)
    one = _trace_zeros(problem, params, arguments, 1)
    check_not_mutable(one.guide, "guide")
    for name, site in one.model.items():
        if site["type"] == "sample":
            _check_guide_site(name, site, one.guide.get(name), problem.plate)
    for of_one, of_all in ((one.model, whole.model), (one.guide, whole.guide)):
        for name, site in of_one.items():
            if site["type"] == "sample":
                _check_site(name, site, of_all[name], problem.plate)
    _check_terms(problem, params, arguments)
    _check_constants(problem, params, arguments)
    _check_dependence(problem, params, arguments)
    check_independence(problem, params, arguments)


def _check_guide_class(guide: object) -> None:
    """Refuses autoguides that use the posterior of the records they were set up on."""
    if isinstance(guide, AutoGuideList):
        for part in guide._guides:
            _check_guide_class(part)
    if isinstance(guide, _READ_RECORDS):
        raise ValueError(
            f"guide must depend on the records by its parameters alone, got {type(guide).__name__},"
            " which uses the posterior of the records it was set up on (here zero-filled ones, so a"
            " wrong one): use AutoMultivariateNormal, AutoLowRankMultivariateNormal or AutoNormal"
        )


def _trace_zeros(problem: Problem, params: Values, arguments: Arguments, count: int) -> Traces:
    """Traces of guide and model on ``count`` zero-filled records, abstractly."""
    found = []

    def trace(records: list[jax.Array], arrays: list[jax.Array], params: Values) -> None:
        zeros, key = [leaf[:count] for leaf in fill_records(records)], jax.random.key(0)
        found.append(trace_guide_and_model(problem, params, zeros, arrays, (key, key)))

    with explain_failure(count):
        jax.eval_shape(trace, arguments.records, arguments.arrays, params)
    return found[0]


def _check_guide_site(name: str, site: Site, proposal: Site | None, plate: str) -> None:
    """The guide must sample each latent variable, local ones under the same plate."""
    if site["is_observed"]:
        return
    if in_plate(site, plate) and not (proposal and in_plate(proposal, plate)):
        _check_imputed(name)
        raise ValueError(
            f"model must not have latent variables for each record, but site {name!r} is one, under"
            f" plate {plate!r}, and the guide does not sample it there: {_LOCAL_LATENTS}"
        )
    if proposal is None or in_plate(site, plate) != in_plate(proposal, plate):
        raise ValueError(
            f"guide must sample every latent variable of the model, but not site {name!r}"
            if proposal is None
            else f"guide must sample site {name!r} outside of plate {plate!r}, as the model does"
        )
    if not proposal["fn"].has_rsample:
        raise ValueError(
            f"guide must have reparameterised distributions, but site {name!r} is"
            f" {type(proposal['fn']).__name__}, whose draws have no gradient"
        )


def _check_imputed(name: str) -> None:
    """Refuses the latent site ``*_unobserved`` of obs_mask, with what to write instead."""
    stem, unobserved, _ = name.partition("_unobserved")
    if unobserved:
        raise ValueError(
            f"model must not have latent variables for each record, but obs_mask makes one,"
            f" {stem + unobserved!r}, of site {stem!r}: use numpyro.handlers.mask around the site,"
            " which leaves out what is not observed, or a guide that samples it under the plate as"
            " a function of the record"
        )


def _check_site(name: str, site: Site, whole: Site, plate: str) -> None:
    """Sites outside the plate must not grow with the records; those under it must not be scaled."""
    if not in_plate(site, plate):
        if site["fn"].shape() != whole["fn"].shape():
            raise ValueError(
                f"site {name!r} must not change with the number of records outside of plate"
                f" {plate!r}, but it has shape {whole['fn'].shape()} for all of them and"
                f" {site['fn'].shape()} for one: {_LOCAL_LATENTS}"
            )
        return
    scale = whole["scale"]  # the plate's own factor is 1 here
    if scale is not None and not (isinstance(scale, int | float) and scale == 1):
        raise ValueError(
            f"site {name!r} must not be scaled, got a factor of {scale} (handlers.scale, or an"
            " inner plate that subsamples): it would change what l2_clip bounds"
        )


def _check_terms(problem: Problem, params: Values, arguments: Arguments) -> None:
    """For one record, a site under the plate must have one value and one log-probability."""

    def check_sites(records: list[jax.Array], arrays: list[jax.Array], params: Values) -> None:
        key = jax.random.key(0)
        one = [leaf[:1] for leaf in fill_records(records)]
        for sites in trace_guide_and_model(problem, params, one, arrays, (key, key)):
            for name, site in sites.items():
                if site["type"] == "sample" and in_plate(site, problem.plate):
                    _check_term(name, site, problem.plate)

    jax.eval_shape(check_sites, arguments.records, arguments.arrays, params)


def _check_term(name: str, site: Site, plate: str) -> None:
    dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
    fn, value = site["fn"], jnp.shape(site["value"])
    # Without event axes; the log-probability's last, as it broadcasts the others.
    shapes = {
        "batch shape": lambda: fn.batch_shape,
        "values of shape": lambda: value[: len(value) - fn.event_dim],
        "log-probabilities of shape": lambda: jnp.shape(log_prob(site)),
    }
    for what, shape_of in shapes.items():
        shape = shape_of()
        if len(shape) >= -dim and shape[dim] != 1:
            raise ValueError(
                f"site {name!r} must have one value for one record, but has {what} {shape}: pass"
                " the data as array arguments, whose leading axis runs over the records, not in a"
                " closure, a list or an object, and share parameters among the records"
            )


def _check_constants(problem: Problem, params: Values, arguments: Arguments) -> None:
    """The loss must not contain constants with an axis as long as the records."""
    num_examples = len(arguments.records[0])

    whole = jax.eval_shape(fill_records, arguments.records)
    one = jax.eval_shape(lambda records: [leaf[0] for leaf in records], whole)
    of_record = partial(record_loss, problem, index=0)
    for loss, records in ((of_record, one), (partial(data_free_loss, problem), whole)):

        def seeded(*leaves: ArrayTree, loss: Callable[..., jax.Array] = loss) -> jax.Array:
            return loss(*leaves, key=jax.random.key(0))

        for constant in _constants(jax.make_jaxpr(seeded)(params, records, arguments.arrays)):
            if num_examples > 1 and num_examples in jnp.shape(constant):
                raise ValueError(
                    "model and guide must take the data as arguments, but read an array of shape"
                    f" {jnp.shape(constant)}, so with an axis of num_examples = {num_examples},"
                    " from a closure, a list or an object: it would enter every record's term"
                    " whole. Pass it as an array argument whose leading axis runs over the records"
                )


def _constants(jaxpr: ClosedJaxpr) -> Iterator[jax.Array]:
    """Constants of a jaxpr and of the jaxprs inside it."""
    yield from jaxpr.consts
    for equation in jaxpr.jaxpr.eqns:
        yield from (v.val for v in equation.invars if isinstance(v, Literal))
        for inner in bodies_of(equation):
            yield from _constants(inner)


def _check_dependence(problem: Problem, params: Values, arguments: Arguments) -> None:
    """The terms of sites under the plate, and only those, must depend on the records."""
    key, is_local = jax.random.key(0), {}

    def losses(records: list[jax.Array], params: Values) -> dict[str, jax.Array]:
        found = site_losses(problem, params, records, arguments.arrays, (key, key))
        is_local.update({name: local for name, (local, _) in found.items()})
        return {name: loss for name, (_, loss) in found.items()}

    one = fill_records(shapes_of(arguments.records, 1))
    for name, reads in eval_provenance(losses, records=one, params=params).items():
        if "records" in reads and not is_local[name]:
            raise ValueError(
                f"site {name!r} must not depend on the records, but its prior or its guide reads"
                f" them outside of plate {problem.plate!r}: what it takes from them would be"
                " neither clipped nor noised; use public values there"
            )
        if "records" not in reads and is_local[name]:
            raise ValueError(
                f"site {name!r} is under plate {problem.plate!r} but does not depend on the"
                " records: data must be passed as arguments, and a guide for local variables must"
                " read the record"
            )
