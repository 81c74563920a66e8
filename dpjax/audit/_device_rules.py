"""Rules for programs on several devices: what each of them has, and sums over all."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from jax.extend.core import JaxprEqn

from dpjax._jaxprs import aval
from dpjax.audit._values import Key, Part, Public, Records, Sums, Value

# Primitives that add up arrays of several devices.
SUMS_OF_DEVICES = {"psum", "psum_invariant"}


def axis_of(spec: Any) -> tuple[int, Any] | None:
    """The axis of an array that devices share, and the name of their mesh axis.

    Raises:
      ValueError: several axes.
    """
    named = [(axis, names) for axis, names in enumerate(spec) if names not in (None, ())]
    if not named:
        return None
    ((axis, names),) = named
    if isinstance(names, tuple):
        (names,) = names
    return axis, names


def on_device(value: Value, spec: Any, atom: Any, devices: Mapping[Any, tuple[int, int]]) -> Value:
    """What one device has of an array, of which each has a block of rows or all.

    Args:
      value: of the array.
      spec: how it is shared.
      atom: the array on a device.
      devices: by the names of the axes of the mesh, the number of a loop over their devices, in one
        of whose iterations each record is, and how many they are.

    Raises:
      ValueError: it is shared in a way that is not followed.
    """
    shared = axis_of(spec)
    if shared is None and not isinstance(value, Sums):
        return value
    if shared is None or not isinstance(value, Public | Records):
        raise ValueError
    axis, (uid, _) = shared[0], devices[shared[1]]
    if isinstance(value, Records):
        if value.axes != (axis,) or value.block > 1 or value.diagonal is not None:
            raise ValueError
        return replace(value, each_once=value.each_once | {uid})
    key = value.key
    if key is not None and key.span is not None and axis == 0 and aval(atom).shape[:1] == (1,):
        key = Key((*key.path, ("each", uid, *key.span)), (0, 1))
    return Public(value.facts, draws=value.draws, key=key)


def from_devices(value: Value, spec: Any, devices: Mapping[Any, tuple[int, int]]) -> Value:
    """The array that the devices return together.

    Raises:
      ValueError: it is put together in a way that is not followed.
    """
    shared = axis_of(spec)
    all_uids = frozenset(uid for uid, _ in devices.values())
    if isinstance(value, Public):
        return value if shared is None else Public(value.facts, draws=value.draws)
    if isinstance(value, Records):
        own = value.each_once & all_uids
        if shared is None and not own:
            return value
        if shared is None or own != {devices[shared[1]][0]} or value.axes != (shared[0],):
            raise ValueError
        return replace(value, each_once=value.each_once - own)
    assert isinstance(value, Sums)
    if value.carried:
        raise ValueError
    if shared is not None:  # as many sums as devices, each of other records or of all
        uid, size = devices[shared[1]]
        value = _times_devices(value, {uid: math.sqrt(size)})
    return replace(value.outside(all_uids), in_rows=False)


def added_up(
    equation: JaxprEqn, value: Value, devices: Mapping[Any, tuple[int, int]]
) -> Public | Sums | None:
    """The sum of an array over devices; `None` if it is not followed."""
    names = equation.params["axes"]
    if any(name not in devices for name in names) or equation.params.get("axis_index_groups"):
        return None
    if isinstance(value, Public):
        return Public(draws=value.draws)
    if not isinstance(value, Sums) or value.carried:
        return None
    value = _times_devices(value, {devices[name][0]: devices[name][1] for name in names})
    gone = frozenset(devices[name][0] for name in names)
    return replace(value.outside(gone), in_rows=False)


def _times_devices(value: Sums, factors: Mapping[int, float]) -> Sums:
    """Sums whose records all devices have, times a factor for each of the axes."""

    def factor(part: Part) -> float:
        return math.prod(own for uid, own in factors.items() if uid not in part.once)

    return value.weighted(factor)
