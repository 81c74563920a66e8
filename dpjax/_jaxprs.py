"""Helpers for jaxprs."""

from collections.abc import Iterator

from jax.extend.core import Jaxpr, jaxprs_in_params


def primitive_names(jaxpr: Jaxpr) -> Iterator[str]:
    """Names of the primitives of a jaxpr, including its inner jaxprs."""
    for equation in jaxpr.eqns:
        yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from primitive_names(inner)
