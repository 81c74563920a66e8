"""Checks of arguments: every error names the argument, the value and what is allowed."""

import math
import operator
from collections.abc import Collection
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np


def check(ok: bool, name: str, value: Any, allowed: str) -> None:
    """Raises ``ValueError`` naming the argument, its value and what is allowed, unless ``ok``."""
    if not ok:
        raise ValueError(f"{name} must be {allowed}, got {value!r}")


def is_traced(value: Any) -> bool:
    """Whether ``value`` is a tracer, which has no concrete value."""
    return isinstance(value, jax.core.Tracer)


def check_positive(name: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is a finite number above zero (tracers pass)."""
    if not is_traced(value):
        check(_is_number(value) and float(value) > 0, name, value, "a finite number > 0")


def check_non_negative(name: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is a finite number of at least zero (tracers pass)."""
    if not is_traced(value):
        check(_is_number(value) and float(value) >= 0, name, value, "a finite number >= 0")


def check_rate(name: str, value: Any) -> None:
    """Raises ValueError unless ``value`` is a probability in (0, 1]."""
    check(_is_number(value) and 0 < float(value) <= 1, name, value, "in (0, 1]")


def check_delta(value: Any, name: str = "delta") -> None:
    """Raises ValueError unless ``value`` is in the open interval (0, 1)."""
    check(_is_number(value) and 0 < float(value) < 1, name, value, "in (0, 1)")


def check_count(name: str, value: Any, minimum: int = 1) -> None:
    """Raises ValueError unless ``value`` is a whole number of at least ``minimum``."""
    check(_is_integer(value) and value >= minimum, name, value, f"a whole number >= {minimum}")


def check_choice(name: str, value: Any, choices: Collection[str]) -> None:
    """Raises ValueError unless ``value`` is one of ``choices``."""
    check(value in choices, name, value, "one of " + ", ".join(map(repr, choices)))


def as_key(key: Any, name: str = "key") -> jax.Array:
    """Returns ``key`` as a typed JAX key; accepts a typed key or a raw uint32 one.

    Raises:
      TypeError: for anything else, an integer seed included: a seed holds 32 bits and its noise
        can be reproduced, so it must be given explicitly, as ``jax.random.key(seed)``.
    """
    if is_key(key):
        return key
    if isinstance(key, jax.Array | np.ndarray) and key.dtype == jnp.uint32 and key.shape == (2,):
        return jax.random.wrap_key_data(jnp.asarray(key), impl="threefry2x32")
    raise TypeError(
        f"{name} must be a scalar JAX key such as jax.random.key(0) (reproducible, for experiments)"
        " or dpjax.release_key() (from the operating system's entropy), got"
        f" {_without_secrets(key)}"
    )


def is_key(value: Any) -> bool:
    """Whether ``value`` is one typed JAX key."""
    return (
        isinstance(value, jax.Array)
        and jnp.issubdtype(value.dtype, jax.dtypes.prng_key)
        and value.shape == ()
    )


def as_floats(value: Any) -> jax.Array:
    """Returns ``value`` as an array of floats; float dtypes are kept.

    Integers of numpy and Python become floats first: JAX would wrap or reject those beyond 32 bits,
    and one record that causes an overflow would change a number by 2^32.
    """
    if isinstance(value, int | np.ndarray | np.generic) and np.asarray(value).dtype.kind in "iu":
        value = np.asarray(value, np.float64)
    value = jnp.asarray(value)
    return value if jnp.issubdtype(value.dtype, jnp.floating) else value.astype(float)


def as_numeric(value: Any, name: str) -> Any:
    """Returns a pandas Series or DataFrame as a numpy array; other values as they are.

    Raises:
      ValueError: for arrays that hold no numbers (objects, strings, dates), naming the dtype.
    """
    if hasattr(value, "to_numpy"):
        value = value.to_numpy()
    if isinstance(value, np.ndarray) and not jax.dtypes.issubdtype(value.dtype, np.number):
        check(value.dtype == bool, name, value.dtype, "an array of numbers or booleans")
    return value


def as_real(name: str, value: Any) -> jax.Array:
    """Returns an array of floats from anything that `numpy.asarray` converts to reals.

    Raises:
      TypeError: for complex numbers, strings, objects, and lists of unequal lengths.
    """
    if not isinstance(value, jax.Array):
        try:
            value = np.asarray(value)
        except ValueError as error:
            raise TypeError(f"{name} must be an array of real numbers: {error}") from error
    kinds = (jnp.floating, jnp.integer, jnp.bool_)
    if not any(jnp.issubdtype(value.dtype, kind) for kind in kinds):
        raise TypeError(
            f"{name} must be an array of real numbers (floats, integers or bools), got dtype"
            f" {value.dtype}"
        )
    return as_floats(value)


def as_seed(seed: Any, name: str = "seed") -> int:
    """Returns ``seed`` as an ``int``; raises ValueError for a key."""
    if not _is_integer(seed):
        raise ValueError(
            f"{name} must be a whole number (a seed, not a key), got {_without_secrets(seed)}"
        )
    return operator.index(seed)


def batch_length(batch: Any, name: str = "batch") -> int:
    """Returns the length of the leading axis shared by every leaf of ``batch``."""
    leaves = jax.tree_util.tree_leaves_with_path(batch)
    check(bool(leaves), name, batch, "a tree with at least one array")
    shapes = {jax.tree_util.keystr(path) or "leaf": jnp.shape(leaf) for path, leaf in leaves}
    scalars = [path for path, shape in shapes.items() if not shape]
    if scalars:
        raise ValueError(
            f"{name} must have a leading example axis on every leaf; {scalars} have none"
        )
    lengths = {path: shape[0] for path, shape in shapes.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"{name} must have one batch length on every leaf, got {lengths}")
    return next(iter(lengths.values()))


def _without_secrets(value: Any) -> str:
    """``repr``, but only dtype and shape of an array, which may be a key."""
    if isinstance(value, jax.Array | np.ndarray):
        return f"an array of dtype {value.dtype} and shape {value.shape}"
    return repr(value)


def _is_number(value: Any) -> bool:
    try:
        number = not isinstance(value, bool | np.bool_ | str | bytes)
        return number and math.isfinite(float(value))
    except (TypeError, ValueError, OverflowError):
        return False


def _is_integer(value: Any) -> bool:
    if isinstance(value, bool):
        return False
    try:
        operator.index(value)
    except TypeError:
        return False
    return True
