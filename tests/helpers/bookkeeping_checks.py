"""What the tests of bookkeeping share: forced routes, fast compilation, comparison."""

from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

import dpjax
from dpjax.gradients import explain
from dpjax.gradients._clipped_grad import sum_by_vmap
from dpjax.gradients.bookkeeping import routes
from helpers.zoo import compiler_options

# Compiling is what takes the time, not running.
_OPTIONS = {"xla_backend_optimization_level": 0}
fast_jit = partial(jax.jit, compiler_options=_OPTIONS)
bookkeeping = partial(dpjax.clipped_grad, method="bookkeeping")

# (_WORK_PER_FLOAT, _LARGE) with which every leaf takes this route wherever it can.
_FORCED = {"ghost": (10**18, 10**18), "instantiate": (0, 10**18), "sequential": (0, -1)}


@contextmanager
def preferring(route):
    """Inside, every leaf takes this route wherever it can."""
    before = routes._WORK_PER_FLOAT, routes._LARGE
    routes._WORK_PER_FLOAT, routes._LARGE = _FORCED[route]
    try:
        yield
    finally:
        routes._WORK_PER_FLOAT, routes._LARGE = before


@contextmanager
def storing(part_size):
    """Inside, layers under remat store all values of micro-batches of this size, if not None."""
    before = routes.remat_microbatch_size
    routes.remat_microbatch_size = lambda *_: part_size
    try:
        yield
    finally:
        routes.remat_microbatch_size = before


def by_stored_values(part_size, loss):
    """As `by_route`, with layers under remat that store all values of such micro-batches."""

    def clipped_sum(clip, params, batch, mask):
        with storing(part_size):
            return bookkeeping(loss, clip)(params, batch, mask)

    return clipped_sum


def routes_of(loss, params, batch):
    """``{path: route name}``."""
    return {leaf.leaf: leaf.route.name for leaf in explain(loss, params, batch).leaves}


def by_route(route, loss):
    """Bookkeeping as ``f(clip, params, batch, mask)``, with one route preferred."""

    def clipped_sum(clip, params, batch, mask):
        with preferring(route):
            return bookkeeping(loss, clip)(params, batch, mask)

    return clipped_sum


def different_ways(case, wanted=("ghost", "instantiate")):
    """Bookkeeping by each of the routes wanted that makes a difference to this case."""
    found = {}
    for route in wanted:
        with preferring(route):
            taken = tuple(routes_of(*case).values())
        found.setdefault(taken, by_route(route, case.loss))
    return list(found.values())


def side_by_side(case, ways):
    """``f(clip, params, batch, mask)``: the reference's result and a list of the others'."""

    @partial(jax.jit, compiler_options=compiler_options(case))
    def run(clip, params, batch, mask):
        expected = sum_by_vmap(case.loss, clip, params, batch, mask)
        return expected, [way(clip, params, batch, mask) for way in ways]

    return run


def assert_same(found, expected, rtol):
    """Sums agree relative to the largest entry of each leaf; norms and losses one by one."""
    jax.tree.map(partial(_close, rtol=rtol), found[0], expected[0])
    one_by_one = partial(np.testing.assert_allclose, rtol=rtol, atol=rtol)
    jax.tree.map(one_by_one, found[1].norms, expected[1].norms)
    one_by_one(found[1].losses, expected[1].losses)
    assert found[1].num_nonfinite == expected[1].num_nonfinite


def _close(found, expected, rtol):
    assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
    scale = max(1e-30, float(np.max(np.abs(expected), initial=0)))
    np.testing.assert_allclose(found, expected, rtol=0, atol=rtol * scale)


def assert_norms_not_below(norms, expected, rtol):
    """The one-sided half that privacy rests on."""
    flat = zip(jax.tree.leaves(norms), jax.tree.leaves(expected), strict=True)
    for found, truth in flat:
        assert np.all(np.asarray(found) >= np.asarray(truth) * (1 - rtol)), (found, truth)


def a_clip(norms):
    """A bound that some of the examples exceed and others do not."""
    return jnp.median(norms[norms > 0]) if np.any(norms > 0) else jnp.ones((), norms.dtype)
