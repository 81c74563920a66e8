"""Rules for noise and keys: which arrays are independent noise, and which keys are the same."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpjax import _random
from dpjax._jaxprs import aval, bodies_of, body_of
from dpjax.audit._record_rules import is_inside
from dpjax.audit._values import Key, Normal, Public, is_key_dtype

# Names of the programs that draw normal noise: of JAX and of dpjax.
NORMAL = "_normal", "normal"
# Primitives that make or derive keys, or draw bits from one.
KEYS = {
    "random_bits", "random_fold_in", "random_seed", "random_split", "random_unwrap", "random_wrap",
}  # fmt: skip


def normal_after(equation: JaxprEqn, values: Sequence[Public], number: int) -> Normal | None:
    """The noise that an output is, if it is noise with independent entries."""
    name, params = equation.primitive.name, equation.params
    out = aval(equation.outvars[number]).shape
    sources = [
        (value, atom) for value, atom in zip(values, equation.invars, strict=True) if value.normal
    ]
    if not sources:
        return None
    value, before = sources[0][0], aval(sources[0][1]).shape
    normal = value.normal
    assert normal is not None
    if name in ("mul", "div", "add", "sub", "add_any") and any(
        aval(a).shape != out for _, a in sources
    ):
        return None
    others = [other for other in values if other is not value]
    if name == "mul" and len(sources) == 1 and len(others) == 1 and not others[0].draws:
        low, high = others[0].facts.interval
        return replace(normal, deviation=normal.deviation * max(low, -high, 0.0))
    if name == "div" and value is values[0] and len(others) == 1 and not others[0].draws:
        magnitude = others[0].facts.magnitude
        return replace(normal, deviation=normal.deviation / magnitude) if magnitude else None
    if name in ("add", "sub", "add_any"):
        if len(sources) == 1:
            return normal if len(others) == 1 and not others[0].draws else None
        second = sources[1][0].normal
        if second is None or parts_overlap(normal.parts, second.parts):
            return None
        deviation = math.hypot(normal.deviation, second.deviation)
        return Normal(normal.parts | second.parts, deviation)
    if name == "concatenate":
        parts: frozenset[Any] = frozenset()
        for one in values:
            if one.normal is None or parts_overlap(parts, one.normal.parts):
                return None
            parts |= one.normal.parts
        return Normal(parts, min(one.normal.deviation for one in values if one.normal))
    if name in ("reshape", "squeeze", "neg", "expand_dims"):
        return normal
    if name == "convert_element_type":
        floating = jnp.issubdtype(aval(equation.outvars[0]).dtype, jnp.floating)
        return normal if floating else None
    if name == "broadcast_in_dim":
        return normal if math.prod(out) == math.prod(before) else None
    if name in ("transpose", "rev"):
        return replace(normal, parts=frozenset((draw, None) for draw, _ in normal.parts))
    if name in ("slice", "split", "unstack"):
        # Ranges of the leading axis are ranges of the flat array.
        if name == "unstack":
            start, rest_kept = number, params["axis"] == 0
        elif name == "slice":
            start = params["start_indices"][0]
            rest_kept = params["strides"] is None and out[1:] == before[1:]
        else:
            start = sum(params["sizes"][:number])
            rest_kept = params["axis"] == 0
        row = math.prod(before[1:])
        parts = frozenset()
        for draw, region in normal.parts:
            begin = region[0] + start * row if region is not None else 0
            is_range = region is not None and rest_kept
            if len(normal.parts) == 1:
                region = (begin, begin + math.prod(out)) if is_range else None
            parts |= {(draw, region)}
        return replace(normal, parts=parts)
    return None


def parts_overlap(one: Iterable[Any], other: Iterable[Any]) -> bool:
    """Whether two noises have entries of a draw in common."""
    return any(
        draw == other_draw and (a is None or b is None or (a[0] < b[1] and b[0] < a[1]))
        for draw, a in one
        for other_draw, b in other
    )


def key_after(equation: JaxprEqn, values: Sequence[Public], number: int) -> Key | None:
    """The key, or keys, that an output holds."""
    name, params = equation.primitive.name, equation.params
    if not values or values[0].key is None:
        return None
    key, out = values[0].key, aval(equation.outvars[0])
    before = aval(equation.invars[0])
    trailing = 0 if is_key_dtype(before.dtype) else 1  # a raw key is an array of two numbers
    if name in ("reshape", "squeeze", "broadcast_in_dim", "expand_dims"):
        if math.prod(out.shape) != math.prod(before.shape):
            return None
        if out.ndim == trailing and key.span is not None and key.span[1] - key.span[0] == 1:
            return Key((*key.path, key.span))
        return key
    if name == "unstack" and key.span is not None and before.ndim == 1 + trailing:
        start = key.span[0] + number
        return Key((*key.path, (start, start + 1))) if params["axis"] == 0 else None
    if name == "slice" and key.span is not None and before.ndim == 1 + trailing:
        if trailing and out.shape[-1] != before.shape[-1]:
            return None
        if params["strides"] is None or set(params["strides"]) == {1}:
            start = key.span[0] + params["start_indices"][0]
            return Key(key.path, (start, start + out.shape[0]))
    if name == "dynamic_slice" and key.span is not None and before.ndim == 1 + trailing:
        index = values[1]
        if index.known is not None:
            start = key.span[0] + int(np.clip(index.known, 0, before.shape[0] - out.shape[0]))
            return Key(key.path, (start, start + out.shape[0]))
        if index.loop is not None and out.shape[0] == 1 and is_inside(index, before.shape[0]):
            return Key((*key.path, ("each", index.loop[0], *key.span)), (0, 1))
    if name == "convert_element_type" and before.dtype == out.dtype:
        return key
    return None


def carried_key(key: Key | None, step: tuple[str, int, int]) -> Key | None:
    """The key that a loop carries, all that it becomes being derived from that before the loop."""
    if key is None:
        return None
    span = () if key.span is None else (key.span,)
    return Key((*key.path, *span, step), key.span)


def varies_in_loop(key: Key, loop: int) -> bool:
    """Whether a key is another one in every iteration of a loop."""
    return any(
        isinstance(step, tuple) and step[0] in ("each", "loop", "carried") and step[1] == loop
        for step in key.path
    )


def keys_overlap(one: Key, other: Key) -> bool | None:
    """Whether two keys are the same or one is derived from the other; `None`: not known."""
    if "unknown" in (one.path[0], other.path[0]):
        return None
    paths = [key.path if key.span is None else (*key.path, key.span) for key in (one, other)]
    if paths[0][:2] != paths[1][:2]:
        return False
    for a, b in zip(*paths, strict=False):
        if a == b:
            continue
        if not isinstance(a, tuple) or not isinstance(b, tuple):
            return False
        if {a[0], b[0]} == {"carried", "carried out"} and a[1:] == b[1:]:
            return False  # the loop goes on with keys that it did not use
        ranges = [step[-2:] if step[0] == "each" else step for step in (a, b)]
        if any(isinstance(step[0], str) for step in ranges):
            return None
        if ranges[0][0] >= ranges[1][1] or ranges[1][0] >= ranges[0][1]:
            return False
    return True


@cache
def _normal_programs(shape: tuple[int, ...], dtype: Any, key_type: Any) -> frozenset[str]:
    """Programs that draw standard normal noise: JAX's and dpjax's own."""
    programs = []
    for normal in (jax.random.normal, _random.normal):
        for mapped in (False, True) if shape else (False,):
            key = jax.ShapeDtypeStruct(shape[:1] if mapped else (), key_type)
            size = shape[1:] if mapped else shape

            def draw(key: Any, normal: Any = normal, size: Any = size) -> Any:
                return normal(key, size, dtype)

            traced = jax.make_jaxpr(jax.vmap(draw) if mapped else draw)(key)
            programs += [str(body_of(e).jaxpr) for e in traced.jaxpr.eqns if bodies_of(e)]
    return frozenset(programs)


def is_normal(equation: JaxprEqn) -> bool:
    key, out = equation.invars[0], equation.outvars[0]
    if not is_key_dtype(aval(key).dtype):
        return False
    programs = _normal_programs(aval(out).shape, aval(out).dtype, aval(key).dtype)
    return str(body_of(equation).jaxpr) in programs
