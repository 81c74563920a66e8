"""Rejects models, guides, losses and optimisers that DP-VI cannot handle.

Everything is traced on constant or synthetic records, of which only number, shapes and dtypes are
those of the data, so a refusal is no function of the data. Not found: values that were computed
from the data before, a mean or some of them, in a closure, object or global.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpyro.optim
from jax.extend.core import ClosedJaxpr, Literal
from jax.flatten_util import ravel_pytree
from numpyro.distributions import Unit
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import ELBO, Trace_ELBO, TraceMeanField_ELBO, init_to_uniform
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoSemiDAIS,
    AutoSurrogateLikelihoodDAIS,
)
from numpyro.ops.provenance import eval_provenance

from dpjax._jaxprs import bodies_of
from dpjax.bayes.variational.elbo import (
    ELBOTerms,
    ResizePlate,
    Site,
    Trace,
    batch_of_one,
    data_free_loss,
    in_plate,
    log_prob,
    record_loss,
    site_losses,
    trace_guide_and_model,
)
from dpjax.bayes.variational.model_args import Leaves, ModelArgs, ModelArgsSpec, Values
from dpjax.gradients.loss_checks import is_close, is_unchanged, synthetic_batches

# Autoguides that use more of the records than their own parameters and one record, and how; the
# first class that fits.
_READ_RECORDS = {
    AutoSurrogateLikelihoodDAIS: "whose surrogate likelihood is of records in a closure, commonly"
    " some of the private ones, which cannot be recognised",
    AutoDAIS: "whose draws follow gradients of the log-density of all records",
    AutoSemiDAIS: "which is made for a fixed number of records, and runs the model on them",
    AutoLaplaceApproximation: "whose covariance is the Hessian of the log-density of all records"
    " (AutoDelta is the same point estimate)",
}
# Enough records for a lag of a month in hours, fewer where records are large.
_MAX_RECORDS, _MAX_ENTRIES = 2048, 2**22

_LOCAL_LATENTS = (
    "it would be private to one record and released as a parameter, which no noise on sums"
    " protects. Marginalise it (a discrete one by numpyro.distributions.MixtureSameFamily), or use"
    " an amortised guide: one that samples it under the same plate as a function of the record,"
    " with parameters that all records share"
)
_TO_DO = (
    "each record's term is evaluated by itself, so another model would be fitted. Pass what it"
    " takes from other records, and the number or position of records, as arguments: public values,"
    " or arrays with one entry for each record"
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


class ModelSites(NamedTuple):
    """The plate over the records, and the latent variables outside of it."""

    plate: str
    latents: tuple[str, ...]


def find_sites(model: Callable[..., object], model_args: ModelArgs) -> ModelSites:
    """Returns plate and latent variables of ``model``, traced abstractly on zero-filled records.

    Raises:
      ValueError: if there is not exactly one plate of ``num_examples`` that holds every observed
        site; if a latent variable is discrete, or the model has mutable sites.
    """
    spec, traced = model_args.spec, []

    def trace_sites(arrays: Leaves) -> None:
        args, kwargs = spec.to_args(spec.constant_records(spec.num_examples), arrays)
        filled = substitute(seed(model, jax.random.key(0)), substitute_fn=initial_value)
        sites = trace(filled).get_trace(*args, **kwargs)

        # Nothing but continuous latent variables, and observations under the plate.
        _check_not_mutable(sites, "model")
        latents = [n for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]]
        for name in latents:
            if sites[name]["fn"].support.is_discrete:
                raise ValueError(
                    f"model must have continuous latent variables, but site {name!r} is discrete"
                    " and not observed, so it has no gradient: if it is data, pass them (obs is"
                    " None); if it is latent, marginalise it, e.g. by"
                    " numpyro.distributions.MixtureSameFamily"
                )
        plate = _find_record_plate(sites, spec.num_examples)
        outside = tuple(name for name in latents if not in_plate(sites[name], plate))
        traced.append(ModelSites(plate, outside))

    jax.eval_shape(trace_sites, model_args.arrays)
    return traced[0]


def check_first_argument(
    model: Callable[..., object], model_args: ModelArgs, args: Sequence[object]
) -> None:
    """Raises ValueError for a first argument that is numpyro's number of steps, not the model's."""
    if args and type(args[0]) is int:
        try:
            find_sites(model, model_args)
        except (TypeError, AttributeError) as error:
            raise ValueError(
                f"args must be those of the model, got {args[0]} first, with which it raises"
                f" {type(error).__name__}: {error}. Where numpyro's SVI has run(rng_key, num_steps,"
                f" *args), write run(rng_key, *args, num_steps={args[0]}) here"
            ) from error


def initial_value(site: Site) -> jax.Array | None:
    """Returns numpyro's starting value of a latent variable; None where it has to be sampled.

    An improper prior cannot be sampled, and for some supports there are no starting values.
    """
    if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
        return None
    try:
        return init_to_uniform(site)
    except (NotImplementedError, ValueError):
        return None  # numpyro raises these for such priors and supports


def _find_record_plate(sites: Trace, num_examples: int) -> str:
    observed = {
        name: site
        for name, site in sites.items()
        if site["type"] == "sample" and site["is_observed"]
    }
    sizes = {name: site["args"][0] for name, site in sites.items() if site["type"] == "plate"}
    if not observed:
        raise ValueError("model must observe its records, but none of its sites has obs")
    plates = {
        name: {f.name for f in site["cond_indep_stack"] if sizes.get(f.name) == num_examples}
        for name, site in observed.items()
    }

    # A factor, or an observation that belongs to no record.
    for name, around in plates.items():
        if not around and isinstance(observed[name]["fn"], Unit):
            raise ValueError(
                "model must not have a numpyro.factor outside of the plate over the records, got"
                f" {name!r}: a factor counts as an observation. Write one that is free of data as"
                " the prior of a latent variable (a Distribution with this log-density), and move"
                " one that reads the records under the plate"
            )
        if not around:
            raise ValueError(
                f"model must observe under a numpyro.plate of num_examples = {num_examples}, but"
                f" site {name!r} is observed outside of one (plates: {sizes}): what it is given are"
                " data too, with no record to clip"
            )

    # One plate for all.
    common = set.intersection(*plates.values())
    if len(common) != 1:
        raise ValueError(
            f"model must have one plate of num_examples = {num_examples} for all observed sites, so"
            f" that a record has one term, got { ({k: sorted(v) for k, v in plates.items()}) }"
        )
    return common.pop()


def _check_not_mutable(sites: Trace, owner: str) -> None:
    """Refuses mutable sites of ``owner``, ``"model"`` or ``"guide"``."""
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise ValueError(
                f"{owner} must not keep state, but site {name!r} is mutable: what it keeps of the"
                " records would be released without noise; use layers without running statistics"
            )


def check_terms(terms: ELBOTerms, params: Values, model_args: ModelArgs) -> None:
    """Refuses models and guides in which a record affects more than its own clipped term."""
    # Parameters must not belong to records, nor be fitted to them.
    _check_guide_class(terms.guide)
    num_traced = model_args.spec.num_traced  # the parameters were initialised on so many
    for name, value in params.items():
        if any(leaf.shape[:1] == (num_traced,) for leaf in jax.tree.leaves(value)):
            _check_imputed(name)
            raise ValueError(
                f"params must be shared by all records, but {name!r} has a leading axis of"
                f" num_examples = {num_traced}, as a variable for each record has:"
                f" {_LOCAL_LATENTS}"
            )

    # Each site under the plate must be one record's, and no other site any record's.
    check_sites = partial(_check_sites, terms)
    jax.eval_shape(check_sites, params, model_args.arrays)
    _check_constants(terms, params, model_args)
    _check_dependence(terms, params, model_args)

    # A record's log-density must not depend on other records, at perturbed parameters: many start
    # at zero, where nothing is mixed.
    flat, unravel = ravel_pytree(params)
    noise = jax.random.normal(jax.random.key(1), flat.shape, flat.dtype)
    values = terms.constrain(unravel(flat + 0.1 * noise)) if params else {}
    check_program(terms.model, initial_value, terms.plate, values, model_args)
    check_program(terms.guide, lambda _: None, terms.plate, values, model_args)


def _check_sites(terms: ELBOTerms, params: Values, arrays: Leaves) -> None:
    """Compares the sites on one zero-filled record with those on all; see `check_terms`."""
    keys = jax.random.key(0), jax.random.key(0)
    traces = []
    for count in (terms.spec.num_examples, 1):
        zeros = terms.spec.constant_records(count)
        with explain_failure(count):
            traces.append(trace_guide_and_model(terms, params, zeros, arrays, keys))
    whole, one = traces

    # The guide has the model's latent variables, under the same plate.
    _check_not_mutable(one.guide, "guide")
    for name, site in one.model.items():
        if site["type"] == "sample":
            _check_guide_site(name, site, one.guide.get(name), terms.plate)

    # Outside of the plate nothing grows with the records, under it a record has one value.
    for of_one, of_all in ((one.model, whole.model), (one.guide, whole.guide)):
        for name, site in of_one.items():
            if site["type"] == "sample":
                _check_site(name, site, of_all[name], terms.plate)


def _check_guide_class(guide: object) -> None:
    """Refuses autoguides that use the records other than by parameters."""
    if isinstance(guide, AutoGuideList):
        for each in guide:
            _check_guide_class(each)
    for read_records, reason in _READ_RECORDS.items():
        if isinstance(guide, read_records):
            raise ValueError(
                "guide must depend on the records by its parameters alone, got"
                f" {type(guide).__name__}, {reason}: what it takes from them would be neither"
                " clipped nor noised. Use AutoMultivariateNormal, AutoLowRankMultivariateNormal or"
                " AutoNormal"
            )


def _check_guide_site(name: str, site: Site, proposal: Site | None, plate: str) -> None:
    """The guide must sample each latent variable, local ones under the same plate."""
    if site["is_observed"]:
        return

    # A latent variable for each record, and one of the model.
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

    # Gradients pass through its draws.
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
    """Compares a site on one record with the same site on all."""
    # Sites outside of the plate do not grow with the records.
    if not in_plate(site, plate):
        if site["fn"].shape() != whole["fn"].shape():
            raise ValueError(
                f"site {name!r} must not change with the number of records outside of plate"
                f" {plate!r}, but it has shape {whole['fn'].shape()} for all of them and"
                f" {site['fn'].shape()} for one: {_LOCAL_LATENTS}"
            )
        return

    # Those under it are not scaled; the plate's own factor is 1 here.
    scale = whole["scale"]
    if scale is not None and not (isinstance(scale, int | float) and scale == 1):
        raise ValueError(
            f"site {name!r} must not be scaled, got a factor of {scale} (handlers.scale, or an"
            " inner plate that subsamples): it would change what l2_clip bounds"
        )

    # They have one value for a record: without event axes, and the log-probability's last, as it
    # broadcasts the others.
    dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
    fn, value = site["fn"], jnp.shape(site["value"])
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


def _check_constants(terms: ELBOTerms, params: Values, model_args: ModelArgs) -> None:
    """The loss must not contain constants with an axis as long as the records."""
    num_examples, key = model_args.spec.num_examples, jax.random.key(0)

    # Inside a traced function, where constants stay apart from the model_args.
    def losses(params: Values, record: Leaves, arrays: Leaves) -> tuple[jax.Array, jax.Array]:
        of_record = record_loss(terms, params, record, arrays, key, 0)
        return of_record, data_free_loss(terms, params, arrays, key)

    for constant in _constants(
        jax.make_jaxpr(losses)(params, list(model_args.spec.record), model_args.arrays)
    ):
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


def _check_dependence(terms: ELBOTerms, params: Values, model_args: ModelArgs) -> None:
    """The terms of sites under the plate, and only those, must depend on the records."""
    key, is_local = jax.random.key(0), {}

    def losses(records: Leaves, params: Values) -> dict[str, jax.Array]:
        by_site = site_losses(terms, params, records, model_args.arrays, (key, key))
        is_local.update({name: local for name, (local, _) in by_site.items()})
        return {name: loss for name, (_, loss) in by_site.items()}

    # Which arguments each site's term reads.
    one = model_args.spec.constant_records(1)
    for name, reads in eval_provenance(losses, records=one, params=params).items():
        if "records" in reads and not is_local[name]:
            raise ValueError(
                f"site {name!r} must not depend on the records, but its prior or its guide reads"
                f" them outside of plate {terms.plate!r}: what it takes from them would be"
                " neither clipped nor noised; use public values there"
            )
        if "records" not in reads and is_local[name]:
            raise ValueError(
                f"site {name!r} is under plate {terms.plate!r} but does not depend on the"
                " records: data must be passed as arguments, and a guide for local variables must"
                " read the record"
            )


class LocalSites(NamedTuple):
    """Local latent variables, and log-densities of the sites in the plate: each ``(n, ...)``."""

    latents: dict[str, jax.Array]
    log_probs: dict[str, jax.Array]


@contextmanager
def explain_failure(count: int) -> Iterator[None]:
    """Raises ValueError for errors of a model or guide evaluated on ``count`` of its records."""
    try:
        yield
    except (TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError) as error:
        raise ValueError(
            "model and guide must run on any number of records, as each record's term is evaluated"
            f" by itself, but shown {count} they raise {type(error).__name__}: {error}"
        ) from error


def check_program(
    program: Callable[..., object],
    fill: Callable[[Site], jax.Array | None],
    plate: str,
    values: Values,
    model_args: ModelArgs,
) -> None:
    """Refuses a model or guide in which a record's log-density depends on other records.

    ``fill(site)`` returns the value of a latent variable, or None to sample it; ``values`` are
    those of param sites.

    On each kind of synthetic records, replacing half of them must leave the log-densities of the
    others as they are (in one compiled program, so rounding is the same); and a record by itself
    must have the log-densities that it has among the others (up to rounding).
    """
    # As many records as are needed, or as fit into memory.
    spec, arrays = model_args.spec, model_args.arrays
    entries = max(math.prod(leaf.shape) for leaf in spec.record)
    count = min(spec.num_examples, _MAX_RECORDS, max(8, _MAX_ENTRIES // max(1, entries)))
    shapes = [jax.ShapeDtypeStruct((count, *leaf.shape), leaf.dtype) for leaf in spec.record]

    among_others, by_itself = _local_site_functions(program, fill, plate, spec)
    for first_records, second_records, half in synthetic_batches(shapes, count):
        # Log-densities of two data sets, of a mixture of both, and of each record by itself.
        mixed_records = jax.tree.map(half, first_records, second_records)
        records = (first_records, second_records, mixed_records)
        with explain_failure(count):
            if not jax.eval_shape(among_others, first_records, arrays, values).log_probs:
                return  # a guide without local latent variables
            first, second, mixed = (among_others(shown, arrays, values) for shown in records)
            single = by_itself(first_records, first.latents, arrays, values)

        # Those of the mixture are those of the data set that the record is from.
        expected = jax.tree.map(half, first, second)
        for name in first.log_probs:
            for before, after in zip(expected, mixed, strict=True):
                if name in before and not is_unchanged(before[name], after[name]):
                    raise ValueError(
                        f"site {name!r} must depend on one record alone under plate {plate!r}, but"
                        f" changes with other records: {_TO_DO}"
                    )
            if not is_close(first.log_probs[name], single[name]):
                raise ValueError(
                    f"site {name!r} must have the same log-density for a record by itself and among"
                    f" others under plate {plate!r}, but changes with the number or the position of"
                    " records (len, shape, arange), or with latent variables of other records:"
                    f" {_TO_DO}"
                )


def _local_site_functions(
    program: Callable[..., object],
    fill: Callable[[Site], jax.Array | None],
    plate: str,
    spec: ModelArgsSpec,
) -> tuple[Callable[..., LocalSites], Callable[..., dict[str, jax.Array]]]:
    """The local sites of all records at once; log-densities of each by itself, at given latents."""
    axes: dict[str, int] = {}  # the records' axis in the values of each latent variable

    def local_sites(records: Leaves, arrays: Leaves, values: Values) -> LocalSites:
        key, local = jax.random.key(0), LocalSites({}, {})
        resized = seed(ResizePlate(program, plate, len(records[0]), key), key)
        filled = substitute(substitute(resized, substitute_fn=fill), data=values)
        args, kwargs = spec.to_args(records, arrays)
        for name, site in trace(filled).get_trace(*args, **kwargs).items():
            if site["type"] != "sample" or not in_plate(site, plate):
                continue
            dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
            local.log_probs[name] = jnp.moveaxis(log_prob(site), dim, 0)
            if not site["is_observed"]:
                axes[name] = dim - site["fn"].event_dim
                local.latents[name] = jnp.moveaxis(site["value"], axes[name], 0)
        return local

    def of_one(
        record: Leaves, latents: dict[str, jax.Array], arrays: Leaves, values: Values
    ) -> dict[str, jax.Array]:
        own = {name: jnp.expand_dims(value, axes[name]) for name, value in latents.items()}
        log_probs = local_sites(batch_of_one(record), arrays, {**values, **own}).log_probs
        return {name: value[0] for name, value in log_probs.items()}

    return jax.jit(local_sites), jax.jit(jax.vmap(of_one, (0, 0, None, None)))
