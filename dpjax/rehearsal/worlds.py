"""Simulated data sets ("worlds") for rehearsals, and the check that no private array is in one."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from numpyro import handlers
from numpyro.distributions import Distribution

from dpjax._checks import as_count, batch_length, check, check_count, check_function, check_type
from dpjax._jaxprs import constants_at_any_depth
from dpjax._typing import ArrayTree, PRNGKey, PyTree

# A description of one record's covariate: a distribution of it, public values of which each record
# has one at random, or a function ``(key, n) -> array (n, ...)``.
Covariate: TypeAlias = Distribution | jax.Array | np.ndarray | Callable[[PRNGKey, int], jax.Array]


class World(NamedTuple):
    """One simulated data set.

    Attributes:
      records: a tree of arrays with a leading axis of the number of records, as the real ones have.
      fresh: a tree of the same kind: other records of the same world, to measure errors on.
      truth: the values that the world was drawn with, by name; empty where they are not known.
    """

    records: PyTree
    fresh: PyTree
    truth: Mapping[str, jax.Array] = {}


# From a key, a world.
Simulator: TypeAlias = Callable[[PRNGKey], World]


def prior_predictive(
    model: Callable[..., object],
    covariates: Mapping[str, Covariate],
    *,
    observed: Mapping[str, str] | tuple[str, ...],
    num_examples: int,
    num_fresh: int = 1000,
    **public_args: object,
) -> Simulator:
    """Returns a simulator of data sets from the prior predictive distribution of a numpyro model.

    Args:
      model: called as ``model(**covariates, **observed, **public_args)``, of which the observed
        arguments are placeholders, the values of which are not read: their sites are drawn.
      covariates: of one record, by argument: a numpyro distribution; public values, of which each
        record has one at random (so many as there are records are refused); or a function
        ``(key, n) -> array (n, ...)``. Covariates drawn from the same array have the same rows.
      observed: names of the observed sites, where those of the arguments are the same, or a mapping
        from arguments to sites.
      num_examples: number of records n of the real data.
      num_fresh: number of other records that errors are measured on.
      **public_args: passed to the model as they are.

    Returns:
      ``simulate(key) -> World``, whose records are a mapping from arguments to arrays and whose
      truth has the values of the latent sites.

    Raises:
      ValueError: an observed site that the model does not have, or an array as long as the records.

    >>> import numpyro, numpyro.distributions as dist
    >>> def model(x, y):
    ...     w = numpyro.sample("w", dist.Normal(0, 1))
    ...     with numpyro.plate("records", len(x)):
    ...         numpyro.sample("y", dist.Bernoulli(logits=w * x), obs=y)
    >>> simulate = prior_predictive(
    ...     model, {"x": dist.Uniform(-1, 1)}, observed=("y",), num_examples=500)
    >>> world = simulate(jax.random.key(0))
    >>> world.records["y"].shape, world.fresh["x"].shape, sorted(world.truth)
    ((500,), (1000,), ['w'])
    """
    check_function("model", model)
    num_examples, num_fresh = (
        as_count("num_examples", num_examples),
        as_count("num_fresh", num_fresh),
    )
    check_type("observed", observed, Mapping | tuple | list, "names of sites")
    sites = dict(observed) if isinstance(observed, Mapping) else {name: name for name in observed}
    for name, values in covariates.items():
        check_length(f"covariates[{name!r}]", values, num_examples)
    check_length("public_args", public_args, num_examples)
    total = num_examples + num_fresh

    def simulate(key: PRNGKey) -> World:
        # Covariates; of public arrays the same rows, so that columns of one table stay together.
        model_key, rows_key, *keys = jax.random.split(key, 2 + len(covariates))
        drawn = {}
        for (name, values), own_key in zip(covariates.items(), keys, strict=True):
            if isinstance(values, Distribution):
                drawn[name] = values.sample(own_key, (total,))
            elif callable(values):
                drawn[name] = jnp.asarray(values(own_key, total))
            else:
                rows = jax.random.randint(rows_key, (total,), 0, len(values))
                drawn[name] = jnp.asarray(values)[rows]

        # All sites of the model, those that it observes included.
        placeholders = {name: jnp.zeros(total) for name in sites}
        seeded = handlers.seed(handlers.uncondition(model), model_key)
        trace = handlers.trace(seeded).get_trace(**drawn, **placeholders, **public_args)
        for site in sites.values():
            known = [name for name, of in trace.items() if of["type"] == "sample"]
            check(site in known, "observed", site, f"one of the model's sites {known}")
        drawn |= {name: trace[site]["value"] for name, site in sites.items()}
        truth = {
            name: site["value"]
            for name, site in trace.items()
            if site["type"] == "sample" and name not in sites.values()
        }

        records, fresh = (
            jax.tree.map(lambda leaf, part=part: leaf[part], drawn)
            for part in (slice(num_examples), slice(num_examples, None))
        )
        return World(records, fresh, truth)

    return simulate


@dataclass(frozen=True, eq=False)
class PublicRecords:
    """Worlds that resample public records: a `Simulator`.

    In each world a random part of the public records is set aside, of which errors are measured;
    the world's records are drawn from the others with replacement. A data set of the same kind as
    the private one is meant. **A sample, a bootstrap or a summary of the private records is not
    public**, and no check can tell.

    Attributes:
      records: a tree of arrays with a common leading axis, of another length than ``num_examples``.
      num_examples: number of records n of the real data.
      fresh_share: of the public records, set aside.

    Raises:
      ValueError: as many records as the private data have, or too few to set some aside.

    >>> simulate = PublicRecords(jnp.arange(50.0), num_examples=200)
    >>> world = simulate(jax.random.key(0))
    >>> world.records.shape, world.fresh.shape
    ((200,), (10,))
    """

    records: ArrayTree
    _: KW_ONLY
    num_examples: int
    fresh_share: float = 0.2

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_examples", as_count("num_examples", self.num_examples))
        check_length("records", self.records, self.num_examples)
        enough = 0 < self._num_fresh < batch_length(self.records)
        check(enough, "fresh_share", self.fresh_share, "in (0, 1), of enough records")

    @property
    def _num_fresh(self) -> int:
        return round(self.fresh_share * batch_length(self.records))

    def __call__(self, key: PRNGKey) -> World:
        """Draws a world."""
        order_key, rows_key = jax.random.split(key)
        num_public, num_fresh = batch_length(self.records), self._num_fresh
        order = jax.random.permutation(order_key, num_public)
        rows = jax.random.randint(rows_key, (self.num_examples,), num_fresh, num_public)
        drawn, fresh = (
            jax.tree.map(lambda leaf, index=index: jnp.asarray(leaf)[index], self.records)
            for index in (order[rows], order[:num_fresh])
        )
        return World(drawn, fresh)


def check_length(name: str, values: object, num_examples: int) -> None:
    """Raises ValueError for an array as long as the records: it could be the private ones.

    Args:
      name: of the argument.
      values: any tree.
      num_examples: number of records of the real data.
    """
    for leaf in jax.tree.leaves(values):
        shape = getattr(leaf, "shape", None)
        if isinstance(shape, tuple) and shape[:1] == (num_examples,):
            raise ValueError(
                f"{name} must not hold an array as long as the records, num_examples ="
                f" {num_examples}, got one of shape {shape}: a rehearsal takes no private"
                " array. Of public records pass another number"
            )


def check_closure(
    name: str, function: Callable[..., PyTree], num_examples: int, *args: PyTree
) -> None:
    """Raises ValueError for a function that holds an array as long as the records.

    Args:
      name: of the argument.
      function: traced at ``args``; the arrays that it closes over are constants of its jaxpr.
      num_examples: number of records of the real data.
      *args: arrays or their shapes.
    """
    constants = constants_at_any_depth(jax.make_jaxpr(function)(*args))
    check_length(f"{name} (the arrays that it closes over)", list(constants), num_examples)


def check_world(simulate: Simulator, num_examples: int) -> World:
    """Returns the shapes of a world, after checks of what is simulated.

    Raises:
      TypeError: the function returns no `World`, or JAX cannot trace it.
      ValueError: records of another number, or an array as long as them in the function.
    """
    check_function("world", simulate, "key")
    check_count("num_examples", num_examples)
    try:
        shapes = jax.eval_shape(simulate, jax.random.key(0))
    except jax.errors.JAXTypeError as error:
        message = (
            "world must be a function that JAX can trace, with jax.numpy in the place of numpy"
        )
        raise TypeError(message) from error
    check_type("world(key)", shapes, World, "a World(records, fresh)")
    leaves = jax.tree.leaves(shapes.records)
    lengths = {leaf.shape[:1] for leaf in leaves}
    check(
        lengths == {(num_examples,)},
        "world(key).records",
        [leaf.shape for leaf in leaves],
        f"arrays with a leading axis of num_examples = {num_examples}",
    )
    check_closure("world", simulate, num_examples, jax.random.key(0))
    return shapes
