"""What cannot be made private as it stands, told before a step is taken.

Everything is traced, on blank records: what is said (or not said) here is no function of anybody.
Not told: data in a closure, an object or a global that were summarised before, to a mean or a part.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpyro.optim
from jax.extend.core import ClosedJaxpr, Jaxpr, Literal
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoSemiDAIS,
)
from numpyro.ops.provenance import eval_provenance

from dpjax.bayes.variational.elbo import (
    Problem,
    Traces,
    data_free_loss,
    in_plate,
    record_loss,
    site_losses,
    traces,
)
from dpjax.bayes.variational.records import Arguments, blank
from dpjax.bayes.variational.structure import check_state

# They follow the posterior of the records they were set up on: blank ones, or unprotected ones.
_READ_RECORDS = (AutoDAIS, AutoLaplaceApproximation, AutoSemiDAIS)

_LOCAL = (
    "it would be private to one record and released as a parameter, which no noise on sums"
    " protects. Marginalise it (a discrete one by numpyro.distributions.MixtureSameFamily), or use"
    " an amortised guide: one that samples it under the same plate as a function of the record,"
    " with parameters that all records share"
)


def check_loss(loss: Any) -> None:
    """Refuses losses that are no sum over the records."""
    plain = type(loss) in (Trace_ELBO, TraceMeanField_ELBO) and loss.sum_sites
    if not plain or getattr(loss, "multi_sample_guide", False):
        raise ValueError(
            "loss must be Trace_ELBO or TraceMeanField_ELBO (with sum_sites, without"
            f" multi_sample_guide), whose data term is a sum over records, got {loss!r}"
        )


def check_optimizer(optim: Any) -> None:
    """Refuses optimisers that evaluate the loss themselves."""
    if isinstance(optim, numpyro.optim.Minimize):
        raise ValueError(
            "optim must use gradients alone, got Minimize, which looks at the loss, and so at the"
            " records, as often as it likes"
        )


def check_problem(problem: Problem, params: Any, arguments: Arguments) -> None:
    """Refuses models and guides with which a record would count elsewhere than in its own term.

    Raises:
      ValueError: naming the site, and what is allowed.
    """
    num_examples = len(arguments.records[0])
    _check_kind(problem.guide)
    _check_params(params, num_examples)
    whole = _look(problem, params, arguments, num_examples)
    one = _look(problem, params, arguments, 1)
    check_state(one.guide, "guide")
    for name, site in one.model.items():
        if site["type"] == "sample":
            _check_guide(name, site, one.guide.get(name), problem.plate)
    for shown, all_shown in ((one.model, whole.model), (one.guide, whole.guide)):
        for name, site in shown.items():
            if site["type"] == "sample":
                _check_site(name, site, all_shown[name], problem.plate)
    _check_terms(problem, params, arguments)
    _check_constants(problem, params, arguments)
    _check_dependence(problem, params, arguments)


def _check_kind(guide: Any) -> None:
    """A guide knows the records by its parameters alone."""
    if isinstance(guide, AutoGuideList):
        for part in guide._guides:
            _check_kind(part)
    if isinstance(guide, _READ_RECORDS):
        raise ValueError(
            f"guide must know the records by its parameters alone, got {type(guide).__name__},"
            " which follows the posterior of the records it was set up on (here blank ones, so a"
            " wrong one): use AutoMultivariateNormal, AutoLowRankMultivariateNormal or AutoNormal"
        )


def _check_params(params: Mapping[str, Any], num_examples: int) -> None:
    for name, value in params.items():
        if any(leaf.shape[:1] == (num_examples,) for leaf in jax.tree.leaves(value)):
            raise ValueError(
                f"params must be shared by all records, but {name!r} has a leading axis of"
                f" num_examples = {num_examples}, as a variable for each record has: {_LOCAL}"
            )


def _look(problem: Problem, params: Any, arguments: Arguments, count: int) -> Traces:
    """Both traces on ``count`` blank records: shapes alone, nothing is computed."""
    found = []

    def look(records: Any, arrays: Any, params: Any) -> None:
        shown, key = [leaf[:count] for leaf in blank(records)], jax.random.key(0)
        found.append(traces(problem, params, shown, arrays, key, key))

    jax.eval_shape(look, arguments.records, arguments.arrays, params)
    return found[0]


def _check_guide(name: str, site: Any, proposal: Any, plate: str) -> None:
    """Latent variables are drawn by the guide, local ones under the same plate."""
    if site["is_observed"]:
        return
    if in_plate(site, plate) and not (proposal and in_plate(proposal, plate)):
        raise ValueError(
            f"model must not have latent variables for each record, but site {name!r} is one, under"
            f" plate {plate!r}, and the guide does not sample it there: {_LOCAL}"
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


def _check_site(name: str, site: Any, whole: Any, plate: str) -> None:
    """One record has one term under the plate, and none of its own outside."""
    if not in_plate(site, plate):
        if site["fn"].shape() != whole["fn"].shape():
            raise ValueError(
                f"site {name!r} must not change with the number of records outside of plate"
                f" {plate!r}, but it has shape {whole['fn'].shape()} for all of them and"
                f" {site['fn'].shape()} for one: {_LOCAL}"
            )
        return
    scale = whole["scale"]  # with all records shown the plate itself adds none
    if scale is not None and not (isinstance(scale, int | float) and scale == 1):
        raise ValueError(
            f"site {name!r} must not be scaled, got a factor of {scale} (handlers.scale, or an"
            " inner plate that subsamples): it would change what l2_clip bounds"
        )


def _check_terms(problem: Problem, params: Any, arguments: Arguments) -> None:
    """Shown one record, a site under the plate has one value, and one log-probability."""

    def look(records: Any, arrays: Any, params: Any) -> None:
        key = jax.random.key(0)
        one = [leaf[:1] for leaf in blank(records)]
        for sites in traces(problem, params, one, arrays, key, key):
            for name, site in sites.items():
                if site["type"] == "sample" and in_plate(site, problem.plate):
                    _check_term(name, site, problem.plate)

    jax.eval_shape(look, arguments.records, arguments.arrays, params)


def _check_term(name: str, site: Any, plate: str) -> None:
    dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
    for what, shape in _shapes(site):
        if len(shape) >= -dim and shape[dim] != 1:
            raise ValueError(
                f"site {name!r} must have one value for one record, but has {what} {shape}: pass"
                " the data as array arguments, whose leading axis runs over the records, not in a"
                " closure, a list or an object, and share parameters among the records"
            )


def _shapes(site: Any) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Without the axes of one event; the log-probability's last, as it broadcasts the others."""
    fn, value = site["fn"], jnp.shape(site["value"])
    yield "batch shape", fn.batch_shape
    yield "values of shape", value[: len(value) - fn.event_dim]
    intermediates = [site["intermediates"]] if site["intermediates"] else []
    yield "log-probabilities of shape", jnp.shape(fn.log_prob(site["value"], *intermediates))


def _check_constants(problem: Problem, params: Any, arguments: Arguments) -> None:
    """Neither part of the loss may hold an array as long as the records that it was not given."""
    num_examples = len(arguments.records[0])

    def of_record(params: Any, record: Any, arrays: Any) -> jax.Array:
        return record_loss(problem, params, record, arrays, jax.random.key(0), 0)

    def data_free(params: Any, records: Any, arrays: Any) -> jax.Array:
        return data_free_loss(problem, params, records, arrays, jax.random.key(0))

    whole = jax.eval_shape(blank, arguments.records)
    one = jax.eval_shape(lambda records: [leaf[0] for leaf in records], whole)
    for loss, shown in ((of_record, one), (data_free, whole)):
        for constant in _constants(jax.make_jaxpr(loss)(params, shown, arguments.arrays)):
            if num_examples > 1 and num_examples in jnp.shape(constant):
                raise ValueError(
                    "model and guide must take the data as arguments, but read an array of shape"
                    f" {jnp.shape(constant)}, so with an axis of num_examples = {num_examples},"
                    " from a closure, a list or an object: it would enter every record's term"
                    " whole. Pass it as an array argument whose leading axis runs over the records"
                )


def _constants(jaxpr: ClosedJaxpr | Jaxpr) -> Iterator[Any]:
    """All arrays that a traced function holds, those of functions inside of it too."""
    yield from getattr(jaxpr, "consts", ())
    for equation in getattr(jaxpr, "jaxpr", jaxpr).eqns:
        yield from (v.val for v in equation.invars if isinstance(v, Literal))
        for inner in jax.tree.leaves(equation.params):
            if isinstance(inner, ClosedJaxpr | Jaxpr):
                yield from _constants(inner)


def _check_dependence(problem: Problem, params: Any, arguments: Arguments) -> None:
    """Records enter the terms of sites under the plate, and those alone."""
    key, local = jax.random.key(0), {}

    def losses(records: Any, params: Any) -> dict[str, jax.Array]:
        found = site_losses(problem, params, records, arguments.arrays, key, key)
        local.update({name: under for name, (under, _) in found.items()})
        return {name: loss for name, (_, loss) in found.items()}

    one = [leaf[:1] for leaf in blank(arguments.records)]
    for name, reads in eval_provenance(losses, records=one, params=params).items():
        if "records" in reads and not local[name]:
            raise ValueError(
                f"site {name!r} must not depend on the records, but its prior or its guide reads"
                f" them outside of plate {problem.plate!r}: what it takes from them would be"
                " neither clipped nor noised; use public values there"
            )
        if "records" not in reads and local[name]:
            raise ValueError(
                f"site {name!r} is under plate {problem.plate!r} but does not depend on the"
                " records: data must be passed as arguments, and a guide for local variables must"
                " read the record"
            )
