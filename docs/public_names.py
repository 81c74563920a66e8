"""The public names of dpjax, which the API reference documents."""

import importlib
import pkgutil

import dpjax


def public_packages() -> list[str]:
    """Returns dpjax's modules that declare ``__all__``, without private ones."""
    found = [module.name for module in pkgutil.walk_packages(dpjax.__path__, "dpjax.")]
    public = [name for name in found if not any(part[0] == "_" for part in name.split("."))]
    return [name for name in public if hasattr(importlib.import_module(name), "__all__")]


def public_names() -> dict[str, object]:
    """Returns each public object by full name, those of dpjax by the exporting package."""
    exported = {f"{module}.{name}": module for name, module in dpjax._MODULE_OF.items()}
    for package in public_packages():
        exported |= {
            f"{package}.{name}": package for name in importlib.import_module(package).__all__
        }
    return {
        full: getattr(importlib.import_module(module), full.rpartition(".")[2])
        for full, module in exported.items()
    }
