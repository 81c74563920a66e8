"""Clipped sums of the zoo of losses in float64: by the usual routes and by ghost norms.

That the other ways to a clipped sum agree with these is tested beside the zoo itself.
"""

from contextlib import contextmanager
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from helpers import zoo_loops, zoo_models, zoo_networks
from helpers.zoo import ZOO, build, compiler_options, names_of

import dpjax
from dpjax.gradients.bookkeeping import routes

MASK = np.array([True, True, True, False])
LARGE = 256
# What the recorded numbers call each route to a clipped sum.
ROUTES = {
    "ghost": "ghost",
    "instantiate": "per-example",
    "sequential": "sequential",
    "vmap": "reference",
    "unused": "unused",
}


@contextmanager
def _preferring_ghost_norms():
    """Inside, every leaf takes the route of ghost norms wherever it can."""
    before = routes._WORK_PER_FLOAT, routes._LARGE
    routes._WORK_PER_FLOAT, routes._LARGE = 10**18, 10**18
    try:
        yield
    finally:
        routes._WORK_PER_FLOAT, routes._LARGE = before


def _sums(name):
    """Sums at a bound that some of the examples exceed, and each example's norm and loss."""
    with jax.enable_x64(True):
        case = build(name, jnp.float64)
        usual, ghost = _routes(case)

        @partial(jax.jit, compiler_options=compiler_options(case))
        def compute(clip, *arguments):
            by_usual = dpjax.clipped_grad(case.loss, clip)(*arguments)
            if ghost == usual:
                return by_usual, None
            with _preferring_ghost_norms():
                return by_usual, dpjax.clipped_grad(case.loss, clip)(*arguments)

        arguments = case.params, case.batch, MASK
        norms = np.asarray(compute(1.0, *arguments)[0][1].norms)
        clip = float(np.median(norms[norms > 0])) if np.any(norms > 0) else 1.0
        first, second = compute(clip, *arguments)
        found = {"clip": clip, "routes": usual, "sum": _leaves(first[0], LARGE)}
        found |= {"norms": first[1].norms, "losses": first[1].losses}
        if second is not None:
            found |= {"ghost routes": ghost, "ghost norms": second[1].norms}
            found |= {"ghost sum": _leaves(second[0], 3)}
        return found


def _routes(case):
    """The route of each leaf, by default and where ghost norms are preferred."""

    def names():
        return [ROUTES[leaf.route.name] for leaf in dpjax.explain(*case).leaves]

    usual = names()
    with _preferring_ghost_norms():
        return usual, names()


def _leaves(tree, most):
    """The leaves, flat; of one with more entries its norm and two random projections."""
    return [_compact(np.asarray(leaf).ravel(), most) for leaf in jax.tree.leaves(tree)]


def _compact(flat, most):
    if flat.size <= most:
        return flat
    directions = np.random.default_rng(0).normal(size=(2, flat.size))
    return np.append(directions @ flat, np.linalg.norm(flat))


# Loops and networks are compared with the reference beside the zoo; a few of the networks stand for
# them here.
_OTHERS = names_of(zoo_loops, zoo_models, zoo_networks)
_WITH = (
    "attention groups_and_depthwise image_network pooled strides_and_dilations"
    " transposed_convolution"
).split()
CASES = {name: partial(_sums, name) for name in ZOO if name in _WITH or name not in _OTHERS}
