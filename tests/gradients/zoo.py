"""A zoo of losses on which every way to a clipped sum must agree: ``ZOO`` names their builders."""

import inspect

import zoo_convolutions
import zoo_dense
import zoo_networks
import zoo_programs
import zoo_views
from zoo_case import BATCH, Builder, Case, Draw, floats, poisoned

__all__ = ["BATCH", "ZOO", "Case", "Draw", "build", "floats", "poisoned"]

_PARTS = (zoo_dense, zoo_views, zoo_convolutions, zoo_programs, zoo_networks)

ZOO: dict[str, Builder] = {
    name: builder
    for part in _PARTS
    for name, builder in inspect.getmembers(part, inspect.isfunction)
    if inspect.signature(builder).return_annotation is Case
}


def build(name: str, dtype: object, seed: int = 0) -> Case:
    """The entry of this name, its floats in ``dtype``."""
    case = ZOO[name](Draw(seed))
    return Case(case.loss, floats(case.params, dtype), floats(case.batch, dtype))
