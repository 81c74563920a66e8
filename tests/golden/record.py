"""Computes, writes and compares the golden numbers: one JSON file for each group of cases.

The files pin what dpjax computes, so that a restructuring which must not change a number can be
checked to have changed none. They hold every digit. ``python tests/golden GROUP [CASE ...]``
rewrites a group, or the cases of it whose names contain one of the texts, and prints each number
that changed, old and new; ``--check`` prints and writes nothing. Where a change is on purpose, it
is recorded in the commit that makes it and **named in the CHANGELOG**, with its reason.

Numbers are compared within a tolerance relative to the largest number of their array: 1e-6 where
they are computed in float64, 1e-5 for float32 results of a device; integers, booleans and text
exactly. Processors round exp and log differently, which the tails of Fourier transforms enlarge to
1e-9 of an epsilon at delta = 1e-5, and to 7e-8 at delta = 1e-9. What differs by less than 1e-14 is
equal: a delta of 1e-10 is a sum of probabilities up to one, whose rounding differs between versions
of scipy.
"""

import json
import math
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import jax
import numpy as np

DOUBLE, SINGLE = 1e-6, 1e-5
_ROUNDING = 1e-14
# The relative tolerance of each group.
GROUPS = {
    "certificates": DOUBLE,
    "tradeoff": DOUBLE,
    "calibration": DOUBLE,
    "bdp": DOUBLE,
    "gradients": DOUBLE,
    "draws": SINGLE,
    "inference": SINGLE,
}


def cases(group: str) -> dict[str, Any]:
    """The functions of a group by name."""
    return import_module(f"golden.cases_{group}").CASES


def compute(group: str, name: str) -> Any:
    """One case's numbers, as JSON holds them."""
    return as_json(cases(group)[name]())


def path_of(group: str) -> Path:
    return Path(__file__).with_name(f"{group}.json")


def load(group: str) -> dict[str, Any]:
    """The recorded numbers of a group."""
    return json.loads(path_of(group).read_text()) if path_of(group).exists() else {}


def save(group: str, recorded: dict[str, Any]) -> None:
    """Writes a group with one line for each case."""
    lines = (f"{json.dumps(name)}: {json.dumps(recorded[name])}" for name in sorted(recorded))
    path_of(group).write_text("{\n" + ",\n".join(lines) + "\n}\n")


def as_json(value: Any) -> Any:
    """A tree of arrays as dictionaries, lists and numbers, without losing a digit."""
    if isinstance(value, dict):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, str | bool | int | None):
        return value
    if isinstance(value, list | tuple):
        return [as_json(item) for item in value]
    if jax.dtypes.issubdtype(getattr(value, "dtype", None), jax.dtypes.prng_key):
        value = jax.random.key_data(value)
    array = np.asarray(value)
    if array.ndim:
        return [as_json(item) for item in array]
    return _float(array[()]) if array.dtype.kind == "f" else array.item()


def _float(number: Any) -> float | str:
    """The shortest decimal that gives the number back in its own precision."""
    return float(str(number)) if math.isfinite(number) else str(number)


def differences(old: Any, new: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """What is not the same, one text for each number or array."""
    if isinstance(old, dict) and isinstance(new, dict) and old.keys() == new.keys():
        pairs = [(old[key], new[key], f"{where}/{key}") for key in old]
    elif _is_list_of_trees(old) and _is_list_of_trees(new) and len(old) == len(new):
        pairs = [(*pair, f"{where}/{i}") for i, pair in enumerate(zip(old, new, strict=True))]
    else:
        pairs = []
        if not _same(old, new, tolerance):
            yield f"{where or '/'}: {_short(old)} -> {_short(new)}"
    for before, after, place in pairs:
        yield from differences(before, after, tolerance, place)


def _is_list_of_trees(value: Any) -> bool:
    """Whether a list is no array: its items have shapes of their own."""
    return isinstance(value, list) and _array(value) is None


def _array(value: Any) -> Any:
    """Numbers as an array; ``None`` for dictionaries, ragged lists and text."""
    try:
        found = np.asarray(value, None if _all(value, int) else float)
    except (TypeError, ValueError):
        return None
    return found if found.dtype.kind in "if" else None


def _all(value: Any, kind: type) -> bool:
    return all(_all(v, kind) for v in value) if isinstance(value, list) else type(value) is kind


def _same(old: Any, new: Any, tolerance: float) -> bool:
    if not isinstance(old, float | list) or not isinstance(new, float | list):
        return type(old) is type(new) and old == new
    before, after = _array(old), _array(new)
    if before is None or after is None:
        return False
    if before.shape != after.shape or before.dtype != after.dtype:
        return False
    if before.dtype.kind == "i":
        return bool(np.array_equal(before, after))
    finite = np.isfinite(before)
    largest = np.max(np.abs(before), where=finite, initial=0.0)
    away = np.abs(np.where(finite, after - np.where(finite, before, 0.0), 0.0))
    unequal = (before != after) & ~(np.isnan(before) & np.isnan(after))
    return not np.any(
        np.where(finite, ~(away <= np.maximum(tolerance * largest, _ROUNDING)), unequal)
    )


def _short(value: Any, most: int = 160) -> str:
    text = json.dumps(value)
    return text if len(text) <= most else text[:most] + " ..."


def record(group: str, wanted: list[str], *, write: bool) -> int:
    """Recomputes cases, prints what changed beyond the last bit of rounding, and writes it.

    Returns:
      How many cases changed by more than the tolerance.
    """
    recorded, changed = load(group), 0
    current = cases(group)
    for name in [name for name in recorded if name not in current]:
        print(f"{group} | {name}: is gone")
        del recorded[name]
        changed += 1
    for name in current:
        if wanted and not any(text in name for text in wanted):
            continue
        new = compute(group, name)
        if name not in recorded:
            print(f"{group} | {name}: is new")
        else:
            found = list(differences(recorded[name], new, GROUPS[group]))
            changed += bool(found)
            for text in found or differences(recorded[name], new, 0.0):
                rounding = "" if found else " (within the tolerance)"
                print(f"{group} | {name} {text}{rounding}")
        recorded[name] = new
    if write:
        save(group, recorded)
    return changed
