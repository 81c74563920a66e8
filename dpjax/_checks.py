"""Checks of arguments: every error names the argument, the value and what is allowed."""

from __future__ import annotations

import inspect
import math
import operator
import os
import re
from collections.abc import Callable, Collection
from fractions import Fraction
from numbers import Real
from typing import Any, SupportsFloat, SupportsIndex, TypeGuard, cast

import numpy as np
import numpy.typing as npt

from dpjax._lazy_imports import is_jax_imported, jax, jnp
from dpjax._typing import ArrayTree, PRNGKey

# The smallest normal float64.
_LEAST_NORMAL = 2.0**-1022


def check(ok: bool, name: str, value: object, allowed: str) -> None:
    """Raises ``ValueError`` naming the argument, its value and what is allowed, unless ``ok``."""
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {_without_secrets(value)}")


def check_type(name: str, value: object, types: Any, allowed: str) -> None:
    """Raises TypeError unless ``value`` is an instance of ``types``, as ``isinstance`` has them."""
    if not isinstance(value, types):
        raise TypeError(f"{name} must be {allowed}, got {_without_secrets(value)}")


def check_function(name: str, value: object, *arguments: str) -> None:
    """Raises TypeError unless ``value`` can be called with as many arguments, named for the error.

    Without ``arguments`` their number is not checked, nor that of a function without a signature.
    """
    taken = f" of ({', '.join(arguments)})" if arguments else ""
    check_type(name, value, Callable, f"a function{taken}")
    try:
        signature = inspect.signature(cast(Callable[..., Any], value))
    except ValueError:  # of some built-in functions
        return
    try:
        signature.bind(*arguments) if arguments else None
    except TypeError as error:
        found = f"one of {signature}: {error}"
        raise TypeError(f"{name} must be a function{taken}, got {found}") from error


def check_text(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a string that is not empty."""
    check(isinstance(value, str) and bool(value.strip()), name, value, "a string, not empty")


def check_path(name: str, value: object) -> None:
    """Raises an error unless ``value`` is the path of a file or folder, and not empty.

    Raises:
      TypeError: neither a string nor a path.
      ValueError: an empty string.
    """
    check_type(name, value, str | os.PathLike, "a path")
    check(value != "", name, value, "a path, not empty")


def is_traced(value: object) -> bool:
    """Whether ``value`` is a tracer, which has no concrete value."""
    return is_jax_imported() and isinstance(value, jax.core.Tracer)


def check_positive(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a finite number above zero (tracers pass)."""
    if not is_traced(value):
        check(_is_number(value) and float(value) > 0, name, value, "a finite number > 0")


def check_normal(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a finite number that has not lost digits near zero.

    Tracers pass.
    """
    check_positive(name, value)
    normal = not _is_number(value) or float(value) >= _LEAST_NORMAL
    check(normal, name, value, f"at least {_LEAST_NORMAL:.3g}, a normal float64")


def check_non_negative(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a finite number of at least zero (tracers pass)."""
    if not is_traced(value):
        check(_is_number(value) and float(value) >= 0, name, value, "a finite number >= 0")


def check_rate(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is a probability in (0, 1]."""
    check(_is_number(value) and 0 < float(value) <= 1, name, value, "in (0, 1]")


def check_share(name: str, value: object) -> None:
    """Raises ValueError unless ``value`` is in the closed interval [0, 1]."""
    check(_is_number(value) and 0 <= float(value) <= 1, name, value, "in [0, 1]")


def check_delta(value: object, name: str = "delta") -> None:
    """Raises ValueError unless ``value`` is in the open interval (0, 1)."""
    check(_is_number(value) and 0 < float(value) < 1, name, value, "in (0, 1)")


def check_count(name: str, value: object, minimum: int = 1) -> None:
    """Raises ValueError unless ``value`` is a whole number of at least ``minimum``."""
    count = operator.index(value) if _is_integer(value) else minimum - 1
    check(count >= minimum, name, value, f"a whole number >= {minimum}")
    check(count < 2**63, name, value, "below 2^63")


def as_count(name: str, value: object, minimum: int = 1) -> int:
    """Returns a whole number of at least ``minimum`` as an ``int``; accepts floats such as 256.0.

    >>> as_count("batch_size", 256.0)
    256
    """
    whole = isinstance(value, float | np.floating) and float(value).is_integer()
    count = int(cast(float, value)) if whole else value
    check_count(name, count, minimum)
    return operator.index(cast(SupportsIndex, count))


def check_choice(name: str, value: object, choices: Collection[str]) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    known = isinstance(value, str) and value in choices
    check(known, name, value, "one of " + ", ".join(map(repr, choices)))


def as_key(key: object, name: str = "key") -> PRNGKey:
    """Returns ``key`` as a typed JAX key; accepts a typed key or a raw uint32 one.

    Raises:
      TypeError: for anything else, an integer seed included: a seed holds 32 bits and its noise
        can be reproduced, so it must be given explicitly, as ``jax.random.key(seed)``.
    """
    if is_key(key):
        return key
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == np.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    raise TypeError(
        f"{name} must be a scalar JAX key such as jax.random.key(0) (reproducible, for experiments)"
        " or dpjax.release_key() (from the operating system's entropy), got"
        f" {_without_secrets(key)}"
    )


def is_key(value: object) -> TypeGuard[PRNGKey]:
    """Whether ``value`` is one typed JAX key."""
    return (
        _is_jax_array(value)
        and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        and value.shape == ()
    )


def _is_jax_array(value: object) -> TypeGuard[jax.Array]:
    return is_jax_imported() and isinstance(value, jax.Array)


def check_unmasked(name: str, value: object) -> None:
    """Raises ValueError for a numpy masked array, whose mask JAX and ``numpy.asarray`` drop."""
    if isinstance(value, np.ma.MaskedArray):
        raise ValueError(
            f"{name} must be an array without a mask, got a numpy masked array, of which the masked"
            " entries would be used too: fill them (numpy.ma.filled) or leave them out"
        )


def as_numbers(value: object, name: str = "value") -> np.ndarray | jax.Array:
    """Returns ``value`` as an array of real numbers, without rounding.

    Args:
      value: a number or an array, a pandas Series or DataFrame, or a list. JAX arrays are returned
        as they are.
      name: of the argument, for the error.

    Returns:
      A JAX array, or a numpy array of booleans, integers or floats; of Python numbers, with dtype
      object, where a number does not fit into the integers or floats of 64 bits.

    Raises:
      ValueError: for complex numbers, strings, dates, durations, objects, keys, floats of more than
        64 bits, lists of unequal lengths, and masked arrays, whose mask would be lost.
    """
    allowed = "real numbers: integers, booleans or floats of at most 64 bits"
    is_list = isinstance(value, list | tuple)
    leaves = jax.tree.leaves(value) if is_list else [value]
    for leaf in leaves:
        check_unmasked(name, leaf)
    try:
        if is_list and any(map(is_traced, leaves)):
            value = jnp.asarray(value)
        elif is_list:
            large = any(map(_has_large_integers, leaves))  # numpy would round them beside floats
            value = jax.tree.map(
                lambda x: np.asarray(x).tolist() if large or isinstance(x, jax.Array) else x, value
            )
            value = np.array(value, object) if large else value
        array = value if _is_jax_array(value) else np.asarray(value)
    except (TypeError, ValueError, OverflowError) as error:  # of rows of unequal lengths, keys
        raise ValueError(f"{name} must be {allowed}: {error}") from error
    if array.dtype == object:
        numbers = []
        for entry in array.ravel():
            check_unmasked(name, entry)
            is_scalar = hasattr(entry, "item") and np.ndim(entry) == 0
            numbers.append(entry.item() if is_scalar else entry)
        exact = np.empty(len(numbers), object)
        exact[:] = numbers
        check(all(isinstance(n, int | float) for n in numbers), name, array.dtype, allowed)
        return exact.reshape(array.shape)
    real = _is_real(array.dtype) and array.dtype.itemsize <= 8
    # numpy counts durations among the integers, in a unit that a bound does not state.
    check(real and array.dtype.kind != "m", name, array.dtype, allowed)
    return array


def from_pandas(value: Any, name: str) -> Any:
    """Returns the numbers of a pandas Series or DataFrame as an array; other values as they are.

    Missing numbers become NaN.

    Raises:
      ValueError: columns that hold no numbers.
    """
    if not hasattr(value, "to_numpy"):
        return value
    is_pandas = hasattr(value, "iloc")
    if is_pandas:
        columns = value.items() if value.ndim == 2 else [(value.name, value)]
        for column, values in columns:
            if not _holds_numbers(values):
                what = "values" if column is None else f"column {column!r}"
                raise ValueError(
                    f"{name} must be real numbers, got {what} of dtype {values.dtype}:"
                    " texts, categories and lists become arrays of numbers before, such as tokens"
                    " of one length or places in a public list of categories"
                )
    array = as_numbers(value.to_numpy(na_value=np.nan) if is_pandas else value, name)
    return array.astype(np.float64) if array.dtype == object else array


def _holds_numbers(column: Any) -> bool:
    """Whether a pandas Series holds real numbers or truth values, missing ones among them."""
    if getattr(column.dtype, "kind", "O") != "O":
        return column.dtype.kind in "biuf"
    return all(isinstance(each, Real) for each in column.dropna())


def as_floats(value: object, name: str = "value") -> jax.Array:
    """Returns ``value`` as a JAX array of floats; float dtypes are kept.

    Integers of numpy and Python become floats first: JAX would wrap or reject those beyond 32 bits,
    and one record that causes an overflow would change a number by 2^32.

    Raises:
      ValueError: as for `as_numbers`.
    """
    numbers = as_numbers(value, name)
    if isinstance(numbers, np.ndarray) and numbers.dtype.kind in "iuO":
        numbers = to_float64(numbers)
    array = jnp.asarray(numbers)
    return array if jnp.issubdtype(array.dtype, jnp.floating) else array.astype(float)


def as_float64(value: object, name: str = "value") -> npt.NDArray[np.float64]:
    """Returns ``value`` as a numpy array of float64, infinite where it is too large for that.

    Raises:
      ValueError: as for `as_numbers`.
    """
    return to_float64(np.asarray(as_numbers(value, name)))


def as_finite(
    value: object,
    name: str,
    allowed: str = "finite numbers",
    fits: Callable[[np.ndarray], np.ndarray] = np.isfinite,
) -> npt.NDArray[np.float64]:
    """Returns ``value`` as an array of float64, finite and such that ``fits`` holds everywhere.

    Raises:
      ValueError: as for `as_numbers`, for booleans, and where a number is not ``allowed``.
    """
    numbers = as_numbers(value, name)
    floats = to_float64(np.asarray(numbers))
    fine = numbers.dtype != bool and np.all(np.isfinite(floats) & fits(floats))
    check(bool(fine), name, value, allowed)
    return floats


def to_float64(numbers: np.ndarray) -> npt.NDArray[np.float64]:
    """Returns numbers in float64: infinite where a Python number is too large for it."""
    if numbers.dtype != object:
        return numbers.astype(np.float64)
    floats = [_as_float(number) for number in numbers.ravel()]
    return np.array(floats, np.float64).reshape(numbers.shape)


def as_mask(mask: npt.ArrayLike | None, shape: tuple[int, ...]) -> np.ndarray | jax.Array:
    """Returns ``mask``, by default all True; raises ValueError unless it is bool of ``shape``."""
    if mask is None:
        return np.ones(shape, bool)
    mask = as_numbers(mask, "mask")
    if mask.dtype != bool or mask.shape != shape:
        raise ValueError(
            f"mask must be bool of shape {shape}, one entry for each example,"
            f" got {mask.dtype} of shape {mask.shape}"
        )
    return mask


def as_seed(seed: object, name: str = "seed") -> int:
    """Returns ``seed`` as an ``int``; raises ValueError for a key."""
    if not _is_integer(seed):
        raise ValueError(
            f"{name} must be a whole number (a seed, not a key), got {_without_secrets(seed)}"
        )
    return operator.index(seed)


def batch_length(batch: ArrayTree, name: str = "batch") -> int:
    """Returns the length of the leading axis shared by every leaf of ``batch``."""
    check_arrays(name, batch)
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    shapes = {jax.tree_util.keystr(path) or "leaf": jnp.shape(leaf) for path, leaf in leaves}
    scalars = [path for path, shape in shapes.items() if not shape]
    if scalars:
        more = f" and {len(scalars) - 1} more" if len(scalars) > 1 else ""
        raise ValueError(
            f"{name} must have a leading example axis on every leaf, got a number at"
            f" {scalars[0]}{more}. A list is a tree of its entries: np.asarray makes it an array"
        )
    lengths = {path: shape[0] for path, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} must have one batch length on every leaf, got {lengths}")
    return next(iter(lengths.values()))


def check_arrays(name: str, tree: object) -> None:
    """Raises ValueError unless ``tree`` has leaves, all numbers or arrays of numbers or keys."""
    leaves = jax.tree.leaves(tree)
    check(bool(leaves), name, tree, "a tree with at least one array")
    for leaf in leaves:
        check_unmasked(name, leaf)
        dtype = getattr(leaf, "dtype", type(leaf))
        kinds = int | float | complex | jax.Array | jax.ShapeDtypeStruct
        ok = isinstance(leaf, kinds) or (isinstance(dtype, np.dtype) and _is_numeric(dtype))
        check(ok, name, dtype, "a tree of arrays of numbers")


def _is_real(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is one of real numbers or truth values, those of ml_dtypes among them."""
    if isinstance(dtype, np.dtype) and dtype.kind in "biuf":
        return True
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.floating, jnp.integer, jnp.bool_))


def _is_numeric(dtype: np.dtype) -> bool:
    """Whether ``dtype`` is one of numbers or truth values, those of ml_dtypes among them."""
    return jnp.issubdtype(dtype, jnp.number) or jnp.issubdtype(dtype, jnp.bool_)


def _has_large_integers(number: object) -> bool:
    """Whether a number or array holds integers that float64 may round, or Python objects."""
    array = np.asarray(number)
    large = array.dtype.kind in "iu" and np.any((array > 2**53) | (array < -(2**53)))
    return bool(large) or array.dtype == object


def _as_float(number: Fraction | float) -> float:
    try:
        return float(number)
    except OverflowError:
        return math.inf if number > 0 else -math.inf


# Entries of a list in an error: a statement of public numbers rather than a column of records.
_MOST_SHOWN = 16
_LONGEST = 300


def _without_secrets(value: object) -> str:
    """``repr``, but only dtype and shape of an array, which may be a key or a column of records.

    Of a tuple, list or dict this for each entry, or the number of many entries; of a long text its
    beginning.
    """
    if type(value) is dict:
        if len(value) > _MOST_SHOWN:
            return f"a dict of {len(value)} entries"
        return "{" + ", ".join(f"{k!r}: {_without_secrets(v)}" for k, v in value.items()) + "}"
    if isinstance(value, tuple | list) and type(value) in (tuple, list):
        if len(value) > _MOST_SHOWN:
            return f"a {type(value).__name__} of {len(value)} entries"
        parts = [_without_secrets(part) for part in value]
        opening, closing = "()" if isinstance(value, tuple) else "[]"
        one = isinstance(value, tuple) and len(value) == 1
        return opening + ", ".join(parts) + ("," if one else "") + closing
    shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None and (shape or is_key(value)):
        return f"an array of dtype {dtype} and shape {shape}"
    text = re.sub(r"\s*\n\s*", " ", repr(value))
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]} ..."


def _is_number(value: object) -> TypeGuard[SupportsFloat]:
    try:
        number = not isinstance(value, bool | np.bool_ | str | bytes)
        return number and math.isfinite(float(cast(SupportsFloat, value)))
    except (TypeError, ValueError, OverflowError):
        return False


def _is_integer(value: object) -> TypeGuard[SupportsIndex]:
    if isinstance(value, bool):
        return False
    try:
        operator.index(cast(SupportsIndex, value))
    except TypeError:
        return False
    return True
