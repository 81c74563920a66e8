"""The public functions, classes, methods and properties of dpjax, found through ``__all__``."""

import inspect
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

import dpjax

sys.path.insert(0, str(Path(__file__).parents[2] / "docs"))
from public_names import public_names as public_names


class PublicCallable(NamedTuple):
    """A public function, class, method or property, as a user sees it.

    Attributes:
      name: The full name.
      value: The object itself; of a property, its getter.
      signature: Without ``self`` and ``cls``.
      docstrings: Its own and, of a class or method, those of the base classes.
      is_property: Whether it is read without a call.
    """

    name: str
    value: Any
    signature: inspect.Signature
    docstrings: list[str]
    is_property: bool = False

    def positional(self) -> list[inspect.Parameter]:
        """Returns the parameters that may be given by position; none of a named tuple."""
        named_tuple = isinstance(self.value, type) and issubclass(self.value, tuple)
        kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
        parameters = self.signature.parameters.values()
        return [] if named_tuple else [p for p in parameters if p.kind in kinds]


def bases_in_dpjax(value: type) -> list[type]:
    return [base for base in value.__mro__ if base is value or base.__module__[:5] == "dpjax"]


def function_of(member: Any) -> Any:
    """Returns the function of a method or property, and anything else as it is."""
    return member.fget if isinstance(member, property) else getattr(member, "__func__", member)


def signature_of(function: Any) -> inspect.Signature:
    """Returns the signature, annotations evaluated but for names that only type checkers import."""
    names = {"jax": jax, "Correlation": dpjax.transforms.Correlation}
    names |= vars(sys.modules[function.__module__])

    def evaluate(annotation: Any) -> Any:
        if annotation in (None, inspect.Signature.empty):
            return annotation
        try:
            alone = types.SimpleNamespace(__annotations__={"x": annotation})
            value = typing.get_type_hints(alone, names)["x"]
        except NameError:
            return annotation
        return None if value is type(None) else value

    signature = inspect.signature(function)
    parameters = [
        each.replace(annotation=evaluate(each.annotation)) for each in signature.parameters.values()
    ]
    returns = evaluate(signature.return_annotation)
    return signature.replace(parameters=parameters, return_annotation=returns)


def describe(name: str, value: Any, owner: type | None = None) -> PublicCallable:
    """Returns a public object, or the member that ``owner`` defines, with what is checked of it."""
    signature = signature_of(function_of(value))
    documented = [value]
    if isinstance(value, type):
        documented = bases_in_dpjax(value)
    elif owner is not None:
        short = name.rpartition(".")[2]
        documented = [vars(base)[short] for base in bases_in_dpjax(owner) if short in vars(base)]
        if not isinstance(value, staticmethod):
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
    docstrings = [inspect.cleandoc(text) for one in documented if (text := one.__doc__)]
    is_property = isinstance(value, property)
    return PublicCallable(name, function_of(value), signature, docstrings, is_property)


def public_members(value: type) -> Iterator[tuple[str, Any, type]]:
    """Yields name, value and class of the public methods and properties that dpjax defines."""
    kinds = (types.FunctionType, classmethod, staticmethod, property)
    for base in bases_in_dpjax(value):
        for name, member in vars(base).items():
            if name[0] == "_" or not isinstance(member, kinds):
                continue
            # Not a function from elsewhere that the class has as a constant.
            if function_of(member).__qualname__.startswith(base.__qualname__):
                yield name, member, base


def public_callables(names: dict[str, Any]) -> Iterator[PublicCallable]:
    """Yields functions, classes and the members of classes, each once."""
    seen = set()
    for full, value in names.items():
        is_class = inspect.isclass(value)
        if not (is_class or inspect.isroutine(value)) or value in seen:
            continue
        seen.add(value)
        has_constructor = not (is_class and issubclass(value, Exception))
        if has_constructor and not getattr(value, "_is_protocol", False):
            yield describe(full, value)
        for name, member, owner in public_members(value) if is_class else ():
            if member not in seen:
                seen.add(member)
                owner_name = full if owner is value else f"{owner.__module__}.{owner.__name__}"
                yield describe(f"{owner_name}.{name}", member, owner)
