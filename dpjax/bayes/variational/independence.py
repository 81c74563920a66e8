"""Checks that a record's log-densities depend on that record alone, on synthetic records.

DP-VI evaluates model and guide on one record at a time. A model that mixes records (a lagged value,
a rank, a mean over the records) would be fitted as another model. Synthetic records come from fixed
keys, and of the records only shapes and dtypes are used, so a refusal is no function of the data.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from numpyro.handlers import seed, substitute, trace

from dpjax.bayes.variational.arguments import Arguments, Layout, Leaves, Values, batch_of_one
from dpjax.bayes.variational.elbo import Problem, ResizePlate, log_prob
from dpjax.bayes.variational.model_trace import Site, in_plate, initial_value
from dpjax.gradients.synthetic_examples import is_close, is_unchanged, synthetic_batches

# Enough records for a lag of a month in hours, fewer where records are large.
_MAX_RECORDS, _MAX_ENTRIES = 2048, 2**22

_TO_DO = (
    "each record's term is evaluated by itself, so another model would be fitted. Pass what it"
    " takes from other records, and the number or position of records, as arguments: public values,"
    " or arrays with one entry for each record"
)


class LocalSites(NamedTuple):
    """Sample sites under the plate over the records, by name, the records' axis first.

    Attributes:
      latents: values of the latent variables.
      log_probs: log-densities of all sites.
    """

    latents: dict[str, jax.Array]
    log_probs: dict[str, jax.Array]


@contextmanager
def explain_failure(count: int) -> Iterator[None]:
    """Turns errors of a model or guide that is shown ``count`` of its records into a refusal."""
    try:
        yield
    except (TypeError, ValueError, IndexError, AssertionError, ZeroDivisionError) as error:
        raise ValueError(
            "model and guide must run on any number of records, as each record's term is evaluated"
            f" by itself, but shown {count} they raise {type(error).__name__}: {error}"
        ) from error


def check_independence(problem: Problem, params: Values, arguments: Arguments) -> None:
    """Refuses models and guides in which a record's log-density depends on other records.

    Args:
      problem: model and guide.
      params: unconstrained parameters; they are perturbed, as many start at zero.
      arguments: of model and guide; of the records shapes and dtypes are used.

    Raises:
      ValueError: naming the site and what is allowed.
    """
    flat, unravel = ravel_pytree(params)
    noise = jax.random.normal(jax.random.key(1), flat.shape, flat.dtype)
    values = problem.constrain(unravel(flat + 0.1 * noise)) if params else {}
    check_program(problem.model, initial_value, problem.plate, values, arguments)
    check_program(problem.guide, lambda _: None, problem.plate, values, arguments)


def check_program(
    program: Callable[..., object],
    fill: Callable[[Site], jax.Array | None],
    plate: str,
    values: Values,
    arguments: Arguments,
) -> None:
    """Tests model or guide on each kind of synthetic records; see `check_independence`.

    ``fill(site)`` returns the value of a latent variable, or None to sample it; ``values`` are
    those of param sites.

    Replacing half of the records must leave the log-densities of the others as they are (in one
    compiled program, so rounding is the same); and a record by itself must have the log-densities
    that it has among the others (up to rounding).
    """
    arrays = arguments.arrays
    entries = max(math.prod(leaf.shape[1:]) for leaf in arguments.records)
    enough = max(8, _MAX_ENTRIES // max(1, entries))
    count = min(len(arguments.records[0]), _MAX_RECORDS, enough)
    among_others, by_itself = _local_site_functions(program, fill, plate, arguments.layout)
    shapes = [jax.ShapeDtypeStruct(leaf.shape, leaf.dtype) for leaf in arguments.records]
    for first_records, second_records, half in synthetic_batches(shapes, count):
        mixed_records = jax.tree.map(half, first_records, second_records)
        records = (first_records, second_records, mixed_records)
        with explain_failure(count):
            if not jax.eval_shape(among_others, first_records, arrays, values).log_probs:
                return  # a guide without local latent variables
            first, second, mixed = (among_others(shown, arrays, values) for shown in records)
            single = by_itself(first_records, first.latents, arrays, values)
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
    layout: Layout,
) -> tuple[Callable[..., LocalSites], Callable[..., dict[str, jax.Array]]]:
    """The local sites of all records at once; log-densities of each by itself, at given latents."""
    axes: dict[str, int] = {}  # the records' axis in the values of each latent variable

    def local_sites(records: Leaves, arrays: Leaves, values: Values) -> LocalSites:
        key, found = jax.random.key(0), LocalSites({}, {})
        resized = seed(ResizePlate(program, plate, len(records[0]), key), key)
        filled = substitute(substitute(resized, substitute_fn=fill), data=values)
        args, kwargs = layout.arguments(records, arrays)
        for name, site in trace(filled).get_trace(*args, **kwargs).items():
            if site["type"] != "sample" or not in_plate(site, plate):
                continue
            dim = next(frame.dim for frame in site["cond_indep_stack"] if frame.name == plate)
            found.log_probs[name] = jnp.moveaxis(log_prob(site), dim, 0)
            if not site["is_observed"]:
                axes[name] = dim - site["fn"].event_dim
                found.latents[name] = jnp.moveaxis(site["value"], axes[name], 0)
        return found

    def of_one(
        record: Leaves, latents: dict[str, jax.Array], arrays: Leaves, values: Values
    ) -> dict[str, jax.Array]:
        own = {name: jnp.expand_dims(value, axes[name]) for name, value in latents.items()}
        log_probs = local_sites(batch_of_one(record), arrays, {**values, **own}).log_probs
        return {name: value[0] for name, value in log_probs.items()}

    return jax.jit(local_sites), jax.jit(jax.vmap(of_one, (0, 0, None, None)))
