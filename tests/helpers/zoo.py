"""A zoo of losses on which every way to a clipped sum must agree: ``ZOO`` names their builders."""

import inspect
from types import ModuleType

import jax
import jaxlib.version

from helpers import zoo_dense, zoo_loops, zoo_models, zoo_networks, zoo_programs
from helpers.zoo_case import BATCH, Builder, Case, Draw, floats, poisoned

__all__ = [
    "BATCH",
    "ZOO",
    "Case",
    "Draw",
    "build",
    "compiler_options",
    "floats",
    "names_of",
    "poisoned",
]

_MODULES = (zoo_dense, zoo_programs, zoo_loops, zoo_networks, zoo_models)


def _builders(module: ModuleType) -> dict[str, Builder]:
    return {
        name: builder
        for name, builder in inspect.getmembers(module, inspect.isfunction)
        if inspect.signature(builder).return_annotation is Case
    }


ZOO: dict[str, Builder] = {
    name: builder for module in _MODULES for name, builder in _builders(module).items()
}


def names_of(*modules: ModuleType) -> list[str]:
    """The names of the entries that are built in these modules."""
    return [name for module in modules for name in _builders(module)]


def build(name: str, dtype: object, seed: int = 0) -> Case:
    """The entry of this name, its floats in ``dtype``."""
    case = ZOO[name](Draw(seed))
    return Case(case.loss, floats(case.params, dtype), floats(case.batch, dtype))


def compiler_options(case: Case) -> dict[str, int | bool]:
    """Options of ``jax.jit`` for short compilation, most of the time, and correct results.

    The older code generator that `tests/conftest.py` chooses clamps an index in the index's dtype:
    uint8 indices of 300 rows to 43, also in `jax.vmap` of `jax.grad`.
    """
    options: dict[str, int | bool] = {"xla_backend_optimization_level": 0}
    narrow = any(leaf.dtype in ("int8", "uint8") for leaf in jax.tree.leaves(case.batch))
    if narrow and jaxlib.version.__version_info__ < (0, 11):
        options["xla_cpu_use_fusion_emitters"] = True
    return options
