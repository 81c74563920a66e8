"""Every public callable refuses wrong arguments with an error that names the argument.

For each callable there is one valid call (`valid_arguments`); each of its arguments is replaced in
turn by values of other types. A value that does not fit the annotation must be refused; one that
does may be accepted or refused. Every refusal is a ValueError or TypeError with the argument's
name: no AttributeError, no IndexError, and no error from inside of JAX or numpy.
"""

import datetime
import re
import types
import typing
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

import jax
import numpy as np
import numpy.typing as npt
import pytest
from helpers.public_callables import PublicCallable, public_callables, public_names
from helpers.quick import slow_except
from helpers.valid_arguments import (
    ACCEPTED,
    NOT_CALLED,
    NOT_TRIED,
    OTHER_NAMES,
    RESULTS,
    SLOW,
    valid_call,
)

import dpjax
from dpjax._typing import ArrayTree, ClipBound, Numeric, Params
from dpjax.federated.messages import ProtocolError

# Wrong values by name, each with the kind by which an annotation may allow it.
POOL: dict[str, tuple[str, Any]] = {
    "None": ("none", None),
    "'a'": ("string", "a"),
    "''": ("empty string", ""),
    "b'x'": ("bytes", b"x"),
    "complex": ("complex", 1 + 2j),
    "nan": ("nan", float("nan")),
    "inf": ("float", float("inf")),
    "-1": ("negative", -1),
    "0": ("int", 0),
    "2**70": ("int", 2**70),
    "True": ("bool", True),
    "object()": ("object", object()),
    "[None]": ("objects", [None]),
    "strings": ("strings", np.array(["a", "b"])),
    "masked": ("masked array", np.ma.masked_array([0.5, 0.25], [False, True])),
    "date": ("date", datetime.date(2024, 1, 1)),
    "date64": ("date", np.array(["2024-01-01"], "datetime64[D]")),
    "function": ("function", lambda: None),
    "dict": ("mapping", {"a": "b"}),
    "class": ("function", int),
}
EVERYTHING = frozenset(kind for kind, _ in POOL.values())
NUMBERS = frozenset({"nan", "float", "negative", "int", "bool"})
# What fits an annotation, by type; anything else is refused.
KINDS: dict[Any, frozenset[str]] = {
    Any: EVERYTHING,
    object: EVERYTHING,
    int: frozenset({"int"}),
    float: frozenset({"float", "int"}),
    str: frozenset({"string"}),
    bytes: frozenset({"bytes"}),
    type(None): frozenset({"none"}),
    jax.Array: NUMBERS,
    np.ndarray: NUMBERS,
    Callable: frozenset({"function"}),
    Mapping: frozenset({"mapping"}),
}
ARRAYS = [npt.ArrayLike, ArrayTree, Numeric, ClipBound, Params]

CALLABLES = {
    one.name.removeprefix("dpjax."): one
    for one in public_callables(public_names())
    if one.signature.parameters
}
CALLED = [name for name in CALLABLES if name not in RESULTS and name not in NOT_CALLED]
# Most of whose time is in the accounts of right arguments.
LONG = {"bdp.certificate", "pate.certificate", "bayes.regression.noise_aware_posterior"}


def kinds(annotation: Any) -> frozenset[str]:
    """Returns the kinds of values that fit an annotation."""
    if annotation in ARRAYS:
        return NUMBERS
    origin = typing.get_origin(annotation) or annotation
    origin = getattr(origin, "__value__", origin)  # NDArray of newer numpy is an alias
    origin = typing.get_origin(origin) or origin
    if origin not in (typing.Union, types.UnionType):
        return KINDS.get(origin, frozenset())
    alternatives = set(typing.get_args(annotation))
    for array in ARRAYS:
        parts = set(typing.get_args(array))
        if parts and parts <= alternatives:  # a union within the union
            return NUMBERS.union(*map(kinds, alternatives - parts))
    return frozenset().union(*map(kinds, alternatives))


def must_be_refused(annotation: Any) -> Iterator[tuple[str, Any, bool]]:
    """Yields name and value of each of the pool, and whether a call with it must be an error.

    Nothing for flags: any object has a truth value.
    """
    if annotation is bool:
        return
    allowed = kinds(annotation)
    for label, (kind, value) in POOL.items():
        if kind == "function" and kind in allowed:
            continue  # what is wrong with it shows when it is called
        yield label, value, kind not in allowed


def outcome(call: Callable[..., Any], arguments: Mapping[str, Any], name: str) -> str:
    """Returns "accepted", "refused" or what is wrong with the error."""
    try:
        call(**arguments)
    except (ValueError, TypeError) as error:
        named = re.search(rf"(?<!\w)({name})(?!\w)", str(error))
        return "refused" if named else f"{type(error).__name__} without the name: {error}"
    except ProtocolError:
        return "refused"  # by a code that contains no values
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "accepted"


def problems(name: str, function: PublicCallable) -> Iterator[str]:
    """Yields what is wrong with the answers of a callable to wrong arguments."""
    for parameter in function.signature.parameters.values():
        if parameter.kind == parameter.VAR_KEYWORD:
            continue
        shown = OTHER_NAMES.get(f"{name}: {parameter.name}", (parameter.name,))[0]
        for label, value, wrong in must_be_refused(parameter.annotation):
            untried = label in listed(NOT_TRIED, name, parameter.name)
            if untried or (name in SLOW and not wrong):
                continue
            call, arguments = valid_call(name, function)
            given = (value,) if parameter.kind == parameter.VAR_POSITIONAL else value
            found = outcome(call, {**arguments, parameter.name: given}, shown)
            allowed = label in listed(ACCEPTED, name, parameter.name)
            if found == "accepted" and (allowed or not wrong):
                continue
            if found != "refused":
                yield f"{parameter.name}={label}: {found}"


def listed(
    values: Mapping[str, tuple[set[str], str]], name: str, parameter: str
) -> Collection[str]:
    """Returns the values of the pool that are listed for a parameter, in all or one callable."""
    return next(
        (values[key][0] for key in (f"{name}: {parameter}", parameter) if key in values), ()
    )


@pytest.fixture(autouse=True)
def empty_folder(tmp_path, monkeypatch):
    """Runs each test in a folder of its own, where a path such as "a" may be written."""
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", slow_except(set(CALLED) - LONG, CALLED))
def test_wrong_arguments_are_refused_by_name(name):
    assert list(problems(name, CALLABLES[name])) == []


@pytest.mark.parametrize("name", [name for name in CALLED if name not in SLOW])
def test_valid_call_is_valid(name):
    call, arguments = valid_call(name, CALLABLES[name])
    call(**arguments)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: dpjax.sensitivity.clip_to(np.ones((4, 2)), (np.zeros(3), np.ones(3))), "bounds"),
        (lambda: dpjax.PoissonSampling(2**31, 0.1), "num_examples must be below 2"),
        (lambda: dpjax.FixedSizeSampling(2**70, 1), "num_examples must be below 2"),
        (
            lambda: dpjax.DiscreteGaussian(dpjax.Sensitivity(0.5, "l2", "zero_out"), scale=2.0),
            "sensitivity must be at least 1",
        ),
        (
            lambda: dpjax.clipped_grad(lambda params: 0.0, 1.0)(np.zeros(2), np.ones((4, 2)), None),
            r"loss_fn must be a function of \(params, example\)",
        ),
    ],
)
def test_constraints_outside_of_types_are_refused_by_name(call, words):
    with pytest.raises((ValueError, TypeError), match=f"^{words}"):
        call()


def test_callables_are_called_or_listed():
    """What is left out is left out by name, and exists."""
    assert set(RESULTS) | set(NOT_CALLED) | SLOW <= set(CALLABLES)
    calls = [
        (name, parameter.name, label)
        for name in CALLED
        for parameter in CALLABLES[name].signature.parameters.values()
        for label, _, wrong in must_be_refused(parameter.annotation)
        if wrong
    ]
    assert len(calls) > 10_000


def test_power_obscure_errors_and_accepted_values_are_found():
    def accepts(epsilon: float) -> float:
        return epsilon

    def looks_up(epsilon: float) -> float:
        return {1.0: 2.0}[epsilon]

    def multiplies(epsilon: float) -> float:
        return 2.0 * epsilon

    assert outcome(accepts, {"epsilon": None}, "epsilon") == "accepted"
    assert outcome(looks_up, {"epsilon": "a"}, "epsilon") == "KeyError: 'a'"
    assert "without the name" in outcome(multiplies, {"epsilon": None}, "epsilon")
