"""Primitives of jaxprs, and whether those of a function are slow in loops on the device."""

from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax.extend.core import Jaxpr, jaxprs_in_params


def primitive_names(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of the primitives of a jaxpr, including its inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitive_names(inner)


def is_slow_in_loops(function: Callable[..., Any], *args: Any) -> bool:
    """Whether ``function(*args)`` is much slower in a loop: on a CPU, if it has convolutions.

    XLA has no fast CPU kernels for them in loops: 72 against 7.7 ms a step for a small MNIST
    network. On other devices the function is not traced.
    """
    if jax.default_backend() != "cpu":
        return False
    return "conv_general_dilated" in primitive_names(jax.make_jaxpr(function)(*args).jaxpr)
