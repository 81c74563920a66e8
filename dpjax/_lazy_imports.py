"""JAX and optax, imported on first use: computing epsilon needs neither.

Modules that compute guarantees import ``jax``, ``jnp`` and ``optax`` from here, and have
``from __future__ import annotations``: an annotation that is evaluated is a use.
"""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any

__all__ = ["exports_on_first_use", "is_jax_imported", "jax", "jnp", "optax"]

if TYPE_CHECKING:
    import jax
    import jax.numpy as jnp
    import optax
else:

    class _OnFirstUse(ModuleType):
        """A module whose attributes are those of the module of its name, which the first imports.

        >>> _OnFirstUse("math").pi
        3.141592653589793
        """

        def __getattr__(self, name: str) -> Any:
            return getattr(importlib.import_module(self.__name__), name)

    jax, jnp, optax = map(_OnFirstUse, ("jax", "jax.numpy", "optax"))


def is_jax_imported() -> bool:
    """Whether JAX is imported: without it no value is a JAX array, key or tracer."""
    return "jax" in sys.modules


def exports_on_first_use(
    package: str, exports: Mapping[str, Sequence[str]], subpackages: Sequence[str] = ()
) -> Callable[[str], Any]:
    """Returns a module's ``__getattr__`` for lazy imports of its public names (PEP 562).

    Args:
      package: its name.
      exports: the names by the module that defines them.
      subpackages: names of subpackages that are imported on first use too.

    >>> exports_on_first_use("package", {"math": ["pi"]})("e")
    Traceback (most recent call last):
    AttributeError: module 'package' has no attribute 'e'
    """
    module_of = {name: module for module, names in exports.items() for name in names}

    def get(name: str) -> Any:
        """Imports a public name, or a subpackage, on its first use."""
        if name in subpackages:
            return importlib.import_module(f"{package}.{name}")
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(module_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return get
