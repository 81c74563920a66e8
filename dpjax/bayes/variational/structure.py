"""Where a model keeps its records: the plate over them, and the variables outside of it."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
from numpyro.distributions import Unit
from numpyro.handlers import seed, trace

from dpjax.bayes.variational.elbo import in_plate
from dpjax.bayes.variational.records import Arguments, blank


class Structure(NamedTuple):
    """What a model's trace tells.

    Attributes:
      plate: name of the plate that holds every observed site.
      latents: names of the latent variables outside of it.
    """

    plate: str
    latents: tuple[str, ...]


def find_structure(model: Callable[..., Any], arguments: Arguments) -> Structure:
    """Traces ``model`` on blank records; nothing is computed.

    Raises:
      ValueError: if there is no plate with one place for each record that holds every observed
        site, or more than one; if a latent variable is discrete or imputes a record, or the model
        keeps state.
    """
    found: list[Structure] = []

    def look(records: Any, arrays: Any) -> None:
        args, kwargs = arguments.layout.arguments(blank(records), arrays)
        sites = trace(seed(model, jax.random.key(0))).get_trace(*args, **kwargs)
        check_state(sites, "model")
        _check_latents(sites)
        found.append(_structure(sites, len(records[0])))

    jax.eval_shape(look, arguments.records, arguments.arrays)
    return found[0]


def _structure(sites: Mapping[str, Any], num_examples: int) -> Structure:
    plate = _record_plate(sites, num_examples)
    latent = [name for name, site in sites.items() if _is_latent(site)]
    return Structure(plate, tuple(name for name in latent if not in_plate(sites[name], plate)))


def _is_latent(site: Any) -> bool:
    return site["type"] == "sample" and not site["is_observed"]


def check_state(sites: Mapping[str, Any], owner: str) -> None:
    """Refuses mutable sites of ``owner``, ``"model"`` or ``"guide"``."""
    for name, site in sites.items():
        if site["type"] == "mutable":
            raise ValueError(
                f"{owner} must not keep state, but site {name!r} is mutable: what it keeps of the"
                " records would be released without noise; use layers without running statistics"
            )


def _check_latents(sites: Mapping[str, Any]) -> None:
    for name, site in sites.items():
        stem = name.removesuffix("_unobserved")
        if _is_latent(site) and stem != name and f"{stem}_observed" in sites:
            raise ValueError(
                f"model must not have latent variables for each record, but obs_mask makes one,"
                f" {name!r}, of site {stem!r}: use numpyro.handlers.mask around the site, which"
                " leaves out what is not observed"
            )
        if _is_latent(site) and site["fn"].support.is_discrete:
            raise ValueError(
                f"model must have continuous latent variables, but site {name!r} is discrete and"
                " has no gradient: marginalise it, e.g. by numpyro.distributions.MixtureSameFamily"
            )


def _record_plate(sites: Mapping[str, Any], num_examples: int) -> str:
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
