"""The route that is chosen for each kind of parameter, against all other routes for it."""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax._typing import PyTree
from dpjax.gradients.bookkeeping import routes
from experiments.benchmarks.models import MODELS, Model
from experiments.benchmarks.results import Group, Groups, Values, ratio, title
from experiments.benchmarks.steps import default_limits
from experiments.benchmarks.timing import Case, Times, blocking

CHOSEN = "as chosen"
_ROUTES: tuple[routes.RouteName, ...] = ("ghost", "instantiate", "sequential")
# Parameters with less than this share of the model's are left out: biases, norms.
_LEAST_SHARE = 0.01


class Kind(NamedTuple):
    """Blocks of parameters of one shape that enter one kind of operation."""

    operation: str
    shape: tuple[int, ...]  # of the operand
    terms: int  # outer products whose sum is an example's gradient

    def __str__(self) -> str:
        return f"{self.operation} {'×'.join(map(str, self.shape))}, {self.terms} terms"


def route_groups(batches: Sequence[int]) -> Groups:
    """Yields a group for each model and batch size; larger models have the smallest batch alone."""
    for model in MODELS.values():
        for size in batches if model.name in ("mlp", "wide_mlp", "cnn", "embedding") else [32]:
            yield title(model.title, size), functools.partial(_route_group, model, size)


def _route_group(model: Model, size: int) -> Group:
    params, batch = model.init(), model.batch(size)
    plan = plan_of(model, params, batch)
    total = sum(leaf.size for leaf in jax.tree.leaves(params))

    # The blocks by kind, those with many parameters.
    kinds: dict[Kind, list[routes.RoutedBlock]] = {}
    for block in plan.blocks:
        if (kind := kind_of(block.ops)) is not None:
            kinds.setdefault(kind, []).append(block)
    large = {
        kind: blocks
        for kind, blocks in kinds.items()
        if sum(np.prod(b.block.stack + b.entry.shape) for b in blocks) >= _LEAST_SHARE * total
    }

    # Each of them by all routes that it can take, the others as chosen.
    cases = [_case(CHOSEN, model, params, batch)]
    for kind, blocks in large.items():
        for route in _ROUTES:
            if route == blocks[0].route.name or not can_take(blocks[0], route):
                continue
            with taking(kind, route):
                name = f"{kind}: {route} for {blocks[0].route.name}"
                cases.append(_case(name, model, params, batch))
    return Group("routes", model.title, cases, _columns, batch=size)


def plan_of(model: Model, params: PyTree, batch: PyTree) -> routes.Plan:
    """Returns the routes of a model's parameters."""
    size = len(jax.tree.leaves(batch)[0])
    return routes.plan_routes(model.loss, params, jax.tree.map(lambda x: x[0], batch), size)


def kind_of(ops: Sequence[Any]) -> Kind | None:
    """Returns the kind of a block that enters these operations; None without outer products."""
    sizes = ops[0].outer_products() if ops else None
    if sizes is None:
        return None
    return Kind(ops[0].primitive, ops[0].input_shape(ops[0].operand), sizes.terms)


def can_take(block: routes.RoutedBlock, route: routes.RouteName) -> bool:
    """Whether a block can take a route, whatever that costs."""
    looks_up = any(op.primitive in routes.LOOKUPS for op in block.ops)
    if block.recomputed or looks_up or block.route.name in ("vmap", "unused"):
        return False
    return route != "sequential" or len(block.ops) == 1


@contextmanager
def taking(kind: Kind, route: routes.RouteName) -> Iterator[None]:
    """Inside, all blocks of this kind take this route."""
    choose: Callable[..., routes.Route] = routes._choose_route

    def forced(stack: Any, ops: Any, entry: int, recomputed: bool) -> routes.Route:
        chosen = choose(stack, ops, entry, recomputed)
        return chosen._replace(name=route) if kind_of(ops) == kind else chosen

    with mock.patch.object(routes, "_choose_route", forced):
        yield


def _case(name: str, model: Model, params: PyTree, batch: PyTree) -> Case:
    """Returns a clipped sum, compiled now."""
    # A function of its own, as what is read of a loss may be kept.
    compute = dpjax.clipped_grad(lambda p, example: model.loss(p, example), l2_clip=1.0)
    mask = jnp.ones(len(jax.tree.leaves(batch)[0]), bool)
    compiled = jax.jit(compute).lower(params, batch, mask).compile()
    memory: Any = compiled.memory_analysis()
    peak = memory.temp_size_in_bytes / 2**20
    if peak > default_limits().memory:
        return Case(name, None, {"buffers, MiB": peak}, "more than the memory limit")
    return Case(name, blocking(compiled, params, batch, mask), {"buffers, MiB": peak})


def _columns(case: Case, times: Mapping[str, Times]) -> Values:
    """Returns the time, and that of the chosen routes over it: above one, another is faster."""
    own = ratio(times, case, CHOSEN)
    least = times[CHOSEN].least / times[case.name].least
    return {
        "ms": times[case.name].median,
        "chosen ÷ this": 1 / own if own else None,
        "÷, least": least,
        **case.values,
    }
