"""Model structure, traced on zero-filled records: plate and latent variables."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from numpyro.distributions import Unit
from numpyro.handlers import seed, substitute, trace
from numpyro.infer import init_to_uniform

from dpjax.bayes.variational.arguments import ArgsAndKwargs, Arguments, Layout, fill_records

# A message of numpyro's trace, and all messages of a program by name.
Site = Mapping[str, Any]
Trace = Mapping[str, Site]


class ModelTrace(NamedTuple):
    """Structure of a model called with one signature of arguments.

    Attributes:
      plate: name of the plate over the records.
      latents: names of the latent variables outside of it.
      records: shapes and dtypes of the records, of a data source of few.
      arrays: the public arrays.
      layout: of the arguments.
    """

    plate: str
    latents: tuple[str, ...]
    records: list[jax.ShapeDtypeStruct]
    arrays: list[jax.Array]
    layout: Layout

    def zero_arguments(self) -> ArgsAndKwargs:
        """Returns ``(args, kwargs)`` with zero-filled records."""
        return self.layout.arguments(fill_records(self.records), self.arrays)


def trace_model(model: Callable[..., Any], arguments: Arguments) -> ModelTrace:
    """Returns the structure of ``model``, traced abstractly on zero-filled records.

    Raises:
      ValueError: if there is not exactly one plate of ``num_examples`` that holds every observed
        site; if a latent variable is discrete, or the model has mutable sites.
    """
    found: list[tuple[str, tuple[str, ...]]] = []

    def trace_sites(records: list[jax.Array], arrays: list[jax.Array]) -> None:
        args, kwargs = arguments.layout.arguments(fill_records(records), arrays)
        filled = substitute(seed(model, jax.random.key(0)), substitute_fn=initial_value)
        sites = trace(filled).get_trace(*args, **kwargs)
        check_not_mutable(sites, "model")
        latents = [n for n, s in sites.items() if s["type"] == "sample" and not s["is_observed"]]
        for name in latents:
            if sites[name]["fn"].support.is_discrete:
                raise ValueError(
                    f"model must have continuous latent variables, but site {name!r} is discrete"
                    " and has no gradient: marginalise it, e.g. by"
                    " numpyro.distributions.MixtureSameFamily"
                )
        plate = _find_record_plate(sites, len(records[0]))
        found.append((plate, tuple(n for n in latents if not in_plate(sites[n], plate))))

    jax.eval_shape(trace_sites, arguments.records, arguments.arrays)
    shapes = arguments.example_records
    return ModelTrace(*found[0], shapes, arguments.arrays, arguments.layout)


def initial_value(site: Site) -> jax.Array | None:
    """Returns numpyro's starting value of a latent variable; None where it has to be sampled.

    An improper prior cannot be sampled, and for some supports there are no starting values.
    """
    if site["type"] != "sample" or site["is_observed"] or site["value"] is not None:
        return None
    try:
        return init_to_uniform(site)
    except (NotImplementedError, ValueError):
        return None


def in_plate(site: Site, plate: str) -> bool:
    """Returns whether a traced site is under the plate of this name."""
    return any(frame.name == plate for frame in site["cond_indep_stack"])


def check_not_mutable(sites: Trace, owner: str) -> None:
    """Refuses mutable sites of ``owner``, ``"model"`` or ``"guide"``."""
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise ValueError(
                f"{owner} must not keep state, but site {name!r} is mutable: what it keeps of the"
                " records would be released without noise; use layers without running statistics"
            )


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
    common = set.intersection(*plates.values())
    if len(common) != 1:
        raise ValueError(
            f"model must have one plate of num_examples = {num_examples} for all observed sites, so"
            f" that a record has one term, got { ({k: sorted(v) for k, v in plates.items()}) }"
        )
    return common.pop()
