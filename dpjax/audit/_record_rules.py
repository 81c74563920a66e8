"""Rules for operations on per-record arrays: where the records are, and bounds on the entries."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpjax._jaxprs import aval
from dpjax.audit import _values
from dpjax.audit._values import Facts, Public, Records, Value, is_zero

# Primitives of one operand whose output is that operand.
IDENTITIES = {
    "copy", "copy_p", "stop_gradient", "optimization_barrier", "sharding_constraint", "name",
    "pvary", "device_put", "random_clone",
}  # fmt: skip
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bitcast_convert_type", "cbrt", "ceil", "clamp", "conj", "convert_element_type", "cos", "cosh",
    "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
    "ge", "gt", "hypot", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log",
    "log1p", "log2", "logistic", "lt", "lt_to", "max", "min", "mul", "ne", "neg", "nextafter",
    "not", "one_minus_square", "or", "polygamma", "population_count", "pow", "real",
    "reduce_precision", "rem", "round", "rsqrt",
    "select_n", "shift_left", "shift_right_arithmetic", "shift_right_logical", "sign", "sin",
    "sinh", "sqrt", "square", "sub", "tan", "tanh", "xor",
}  # fmt: skip
_RANGES = {
    "tanh": (-1.0, 1.0), "sin": (-1.0, 1.0), "cos": (-1.0, 1.0), "sign": (-1.0, 1.0),
    "erf": (-1.0, 1.0), "logistic": (0.0, 1.0), "exp": (0.0, math.inf), "exp2": (0.0, math.inf),
    "erfc": (0.0, 2.0), "expm1": (-1.0, math.inf), "cosh": (1.0, math.inf),
    "atan": (-math.pi / 2, math.pi / 2), "population_count": (0.0, 64.0),
}  # fmt: skip
# Primitives that move entries without changing them.
_MOVES = {
    "reshape", "transpose", "squeeze", "expand_dims", "broadcast_in_dim", "slice", "rev",
    "dynamic_slice", "split", "unstack",
}  # fmt: skip
ENTRIES_KEPT = _MOVES | {"reduce_max", "reduce_min", "cummax", "cummin", "sort", "gather"}
SAME_ENTRIES = {
    "reshape", "transpose", "squeeze", "expand_dims", "slice", "rev", "split", "unstack",
    "dynamic_slice", "convert_element_type", "copy", "real",
}  # fmt: skip
KEEPS_DISTINCT = {
    "reshape",
    "squeeze",
    "expand_dims",
    "slice",
    "sort",
    "convert_element_type",
    "broadcast_in_dim",
}
_REDUCTIONS = {
    "reduce_sum", "reduce_max", "reduce_min", "reduce_prod", "reduce_and", "reduce_or",
    "reduce_xor", "argmax", "argmin",
}  # fmt: skip
_CUMULATIVE = {"cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"}
_MATRICES = {"cholesky", "triangular_solve", "lu", "qr", "eigh", "svd", "householder_product"}
SCATTER_ADD = {"scatter-add", "scatter_add"}
_COMPARISONS = {"gt": "gt", "ge": "gt", "lt": "lt", "le": "lt", "gt_to": "gt", "lt_to": "lt"}


class Mixing(Exception):
    """An equation whose outputs depend on several records."""


class Axes(NamedTuple):
    """Where the records are in the outputs of an equation.

    Attributes:
      axes: that index the records, of each output alike.
      is_sum: whether the outputs are sums over all records, or over those of each row.
      order: the new order of the records, if it changes.
      orders: that of each output, if there are several.
      block: how many entries of the axis in a row are of one record.
    """

    axes: tuple[int, ...]
    is_sum: bool = False
    order: Any = None
    orders: tuple[Any, ...] = ()
    block: int = 1


def order_after(step: Any, order: Any) -> Any:
    """The order of records that were moved by a step, from that before it."""
    rows = rows_of(order)
    if step[0] == "rows" and rows is not None:  # some of some rows
        return ("rows", rows[step[1].start : step[1].stop : step[1].step]), order[1]
    return step, order


def rows_of(order: Any) -> range | None:
    """The rows in an earlier order that records are, if they are some of these."""
    return order[0][1] if order and order[0][0] == "rows" else None


def elementwise_facts(name: str, equation: JaxprEqn, facts: Sequence[Facts]) -> Facts | None:
    """Bounds on the entries of an output of an elementwise primitive; `None` of another one."""
    if name not in ELEMENTWISE:
        return None
    first = facts[0]
    is_integer = jnp.issubdtype(aval(equation.outvars[0]).dtype, jnp.integer)
    if name == "mul":
        same = equation.invars[0] is equation.invars[1]
        return _values.squared(first) if same else _values.multiplied(first, facts[1])
    if name == "square" or (name == "integer_pow" and equation.params["y"] == 2):
        return _values.squared(first)
    if name == "integer_pow" and equation.params["y"] == -1:
        return _values.inverted(first)
    if name == "div" and is_integer:  # rounds
        low, high = _values.multiplied(first, _values.inverted(facts[1])).interval
        return Facts((low - 1, high + 1))
    if name == "div":
        return _values.multiplied(first, _values.inverted(facts[1]))
    if name in ("add", "add_any"):
        return _values.added(first, facts[1])
    if name == "sub":
        return _values.reduced(first, facts[1])
    if name == "sqrt":
        return _values.root(first)
    if name == "hypot":
        return _values.root(_values.added(*map(_values.squared, facts)))
    if name == "rsqrt":
        return _values.inverted(_values.root(first))
    if name == "pow" and len(facts) > 1 and facts[1].interval[0] == facts[1].interval[1]:
        power = facts[1].interval[0]
        if power == 2:
            return _values.squared(first)
        if abs(power) == 0.5 and first.interval[0] >= 0:
            result = _values.root(first)
            return result if power > 0 else _values.inverted(result)
        if power == -1:
            return _values.inverted(first)
    if name == "max":
        return _values.larger(first, facts[1])
    if name == "min":
        return _values.lesser(first, facts[1])
    if name == "clamp":
        return _values.lesser(_values.larger(facts[1], first), facts[2])
    if name == "neg":
        low, high = first.interval
        kept = replace(first, interval=(-high, -low), total={}, square={}, norm={}, smaller={})
        return replace(kept, excess=None)
    if name == "abs":
        low, high = first.interval
        least = max(low, -high, 0.0)
        return replace(first, interval=(least, first.magnitude), smaller={})
    if name == "convert_element_type":
        before, dtype = aval(equation.invars[0]).dtype, aval(equation.outvars[0]).dtype
        if jnp.issubdtype(dtype, jnp.inexact) or before == dtype:
            return first
        if dtype == jnp.bool_:
            return Facts((0.0, 1.0))
        if jnp.issubdtype(before, jnp.integer) or before == jnp.bool_:
            return first
        low, high = first.interval
        return Facts((low - 1, high + 1))
    if name == "is_finite":
        return Facts((1.0, 1.0))
    if name in ("eq", "ne"):
        same = equation.invars[0] is equation.invars[1]
        if same or any(math.isinf(f.interval[0]) and f.interval[0] == f.interval[1] for f in facts):
            answer = float(same == (name == "eq"))
            return Facts((answer, answer))
        equal = (first, facts[1]), (facts[1], first)
        return Facts((0.0, 1.0), smaller={name == "eq": equal})
    if name in _COMPARISONS and len(facts) > 1:
        small, large = (facts[1], first) if _COMPARISONS[name] == "gt" else (first, facts[1])
        always = small.interval[1] < large.interval[0]
        never = small.interval[0] > large.interval[1] or (
            name in ("gt", "lt") and small.interval[0] >= large.interval[1]
        )
        interval = (float(always), float(not never))
        return Facts(interval, smaller={True: ((small, large),), False: ((large, small),)})
    if name == "select_n" and first.interval[0] == first.interval[1]:
        return facts[1 + int(first.interval[0])]
    if name == "select_n" and len(facts) == 3:
        return _values.chosen(first, {False: facts[1], True: facts[2]})
    if name in ("floor", "ceil", "round"):
        low, high = first.interval
        return Facts((low - 1, high + 1))
    if name == "log" and first.interval[0] > 0:
        low, high = first.interval
        return Facts((math.log(low), math.log(high) if math.isfinite(high) else math.inf))
    return Facts(_RANGES.get(name, _values.REALS))


def structural_facts(
    equation: JaxprEqn, facts: Sequence[Facts], inputs: Sequence[Value], number: int
) -> Facts:
    """Bounds on the entries of an output of a primitive that moves, adds or multiplies entries."""
    name, out = equation.primitive.name, aval(equation.outvars[number]).shape
    first, before = facts[0], aval(equation.invars[0]).shape
    if name in _MOVES and isinstance(inputs[0], Records):
        repeats = max(1.0, math.prod(out) / max(math.prod(before), 1))
        if math.prod(out) < math.prod(before) or name in ("slice", "dynamic_slice", "split", "rev"):
            moved = replace(first, name=None, least={}, total={})
        else:
            moved = first
        return moved.repeated(repeats) if repeats > 1 else moved
    if name == "reduce_sum":
        terms = math.prod(before[axis] for axis in equation.params["axes"])
        records = inputs[0].axes if isinstance(inputs[0], Records) else ()
        terms //= math.prod(before[axis] for axis in records if axis in equation.params["axes"])
        low, high = first.interval
        grown = first.scaled(1.0, math.sqrt(terms))
        return Facts(
            _values.times((low, high), (float(terms), float(terms))),
            first.name if terms == 1 else None,
            within=grown.within,
            clipped=grown.clipped,
            least=first.least if low >= 0 or terms == 1 else {},
            total=first.total if low >= 0 else {},
            square=first.square if low >= 0 else {},
            norm=first.norm if low >= 0 else {},
            inverse={group: k * terms for group, k in first.inverse.items()},
        )
    if name == "reduce_max" and first.interval[0] >= 0:
        # The largest of d entries is at least the norm over sqrt(d).
        terms = math.prod(before[axis] for axis in equation.params["axes"])
        shrunk = first.scaled(terms**-0.5, 1.0)
        return replace(first, name=None, within={}, clipped={}, total={}, least=shrunk.least)
    if name == "dot_general":
        return _product_facts(equation, facts, inputs)
    if name in ("concatenate", "stack"):
        return _values.concatenated(facts)
    if name in SCATTER_ADD and isinstance(inputs[0], Public) and is_zero(inputs[0]):
        return scattered_facts(equation, facts, inputs)
    if name in ("pad", "dynamic_update_slice"):
        ends = [fact.interval for fact in facts[:2]]
        return Facts((min(low for low, _ in ends), max(high for _, high in ends)))
    if name in ENTRIES_KEPT and name != "gather":
        return Facts(facts[number if name == "sort" else 0].interval)
    return Facts()


def region_of(equation: JaxprEqn, number: int) -> tuple[tuple[int, int], ...] | None:
    """Where an output is in the array that it is a region of: a range of every axis."""
    name, params = equation.primitive.name, equation.params
    shape = aval(equation.invars[0]).shape
    if name == "slice":
        ends = zip(params["start_indices"], params["limit_indices"], strict=True)
        return tuple((int(start), int(stop)) for start, stop in ends)
    if name == "split":
        stop = sum(params["sizes"][: number + 1])
        part = int(stop - params["sizes"][number]), int(stop)
        return tuple(part if axis == params["axis"] else (0, n) for axis, n in enumerate(shape))
    return None


def _product_facts(equation: JaxprEqn, facts: Sequence[Facts], inputs: Sequence[Value]) -> Facts:
    """Bounds on a ``dot_general``: the squared norm of an array, or products of entries."""
    (contracted, batch) = equation.params["dimension_numbers"]
    shapes = [aval(atom).shape for atom in equation.invars]
    records = [value.axes if isinstance(value, Records) else () for value in inputs]
    terms = math.prod(
        shapes[0][axis]
        for axis, other in zip(*contracted, strict=True)
        if axis not in records[0] and other not in records[1]
    )
    if inputs[0] is inputs[1] and isinstance(inputs[0], Records):
        same = tuple(contracted[0]) == tuple(contracted[1]) and set(batch[0]) == set(records[0])
        if same and len(shapes[0]) == len(contracted[0]) + len(batch[0]):
            return replace(_values.squared(facts[0]), interval=(0.0, math.inf), square={})
    facts = list(facts)
    for side, value in enumerate(inputs):  # a public number for each record, such as a weight
        axes = [*zip(contracted[side], contracted[1 - side], strict=True)]
        axes += zip(batch[side], batch[1 - side], strict=True)
        weighted = {own for own, other in axes if other in records[1 - side]}
        rest = math.prod(n for axis, n in enumerate(shapes[side]) if axis not in weighted)
        if isinstance(value, Public) and rest == 1 and math.isfinite(facts[side].magnitude):
            facts[side] = replace(facts[side], within={_values.UNIT: facts[side].magnitude})
    size = float(terms)
    interval = _values.times(_values.times(facts[0].interval, facts[1].interval), (size, size))

    # The norm is at most the product of the norms, and is that of an outer product.
    result = _values.upper_product(*facts)
    is_outer = all(set(axes) <= set(own) for axes, own in zip(batch, records, strict=True))
    if terms == 1 and is_outer:
        result = replace(result, name=_values.group_product(facts[0].name, facts[1].name))
    return replace(result, interval=interval)


def scattered_facts(equation: JaxprEqn, facts: Sequence[Facts], inputs: Sequence[Value]) -> Facts:
    """Bounds on a ``scatter-add`` of the rows of one record, at positions that may be equal."""
    numbers, (_, indices, updates) = equation.params["dimension_numbers"], inputs
    shapes = [aval(atom).shape for atom in equation.invars]
    scattered = [a for a in range(len(shapes[2])) if a not in numbers.update_window_dims]
    places = set(indices.axes) if isinstance(indices, Records) else set()
    if isinstance(updates, Records):
        places |= {scattered.index(axis) for axis in updates.axes if axis in scattered}
    rows = math.prod(n for axis, n in enumerate(shapes[1][:-1]) if axis not in places)
    low, high = facts[2].interval
    bounds = facts[2].scaled(0.0, math.sqrt(rows))
    within = dict(bounds.within)
    if isinstance(updates, Public) and math.isfinite(facts[2].magnitude):
        window = math.prod(shapes[2][axis] for axis in numbers.update_window_dims)
        within[_values.UNIT] = facts[2].magnitude * rows * math.sqrt(window)
    interval = rows * min(low, 0.0) if low else 0.0, rows * max(high, 0.0) if high else 0.0
    return Facts(interval, within=within, clipped=bounds.clipped)


def places_scattered(equation: JaxprEqn, inputs: Sequence[Value]) -> bool:
    """Whether rows of records are added to a sum: at their axes, each position has one record."""
    numbers, (_, indices, updates) = equation.params["dimension_numbers"], inputs
    if numbers.operand_batching_dims or equation.params["unique_indices"]:
        return False
    rank = aval(equation.invars[2]).ndim
    scattered = [axis for axis in range(rank) if axis not in numbers.update_window_dims]
    found = set()
    if isinstance(indices, Records):
        if aval(equation.invars[1]).ndim - 1 in indices.axes:
            return False
        found.add(indices.axes)
    if isinstance(updates, Records):
        if not set(updates.axes) <= set(scattered):
            return False
        found.add(tuple(scattered.index(axis) for axis in updates.axes))
    return len(found) == 1


def most_gathered(equation: JaxprEqn, indices: Public) -> int | None:
    """How often an entry is gathered at most; `None` if it is not known."""
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape, known = aval(equation.invars[0]).shape, indices.known
    indexed = numbers.start_index_map
    if known is None or not known.size or numbers.operand_batching_dims:
        return None
    places = known.reshape(-1, known.shape[-1])
    limits = np.array([shape[axis] for axis in indexed])
    if any(sizes[axis] != 1 for axis in indexed) or (places < 0).any() or (places >= limits).any():
        return None
    return int(np.unique(places, axis=0, return_counts=True)[1].max())


def most_equal(known: np.ndarray, axes: Sequence[int]) -> int:
    """The largest number of equal entries in a row; ``axes`` index the rows."""
    rows = np.moveaxis(known, axes, range(len(axes)))
    for axis in range(len(axes)):
        if rows.strides[axis] == 0:
            rows = rows[(slice(None),) * axis + (slice(1),)]
    rows = rows.reshape(math.prod(rows.shape[: len(axes)]), -1)
    return max((int(np.unique(row, return_counts=True)[1].max()) for row in rows), default=0)


def one_hot(
    facts: Facts, inputs: Sequence[Value], axes: tuple[int, ...], shape: tuple[int, ...]
) -> Facts:
    """Bounds on the entries of a mask: where one number of each record equals public numbers."""
    for one, other in (inputs, inputs[::-1]):
        if not isinstance(one, Records) or not isinstance(other, Public) or other.known is None:
            continue
        if one.facts.uniform is not None and other.known.ndim == len(shape):
            most = most_equal(np.broadcast_to(other.known, shape), axes)
            return replace(facts, within={_values.UNIT: math.sqrt(most)})
    return facts


def repeats_of(atom: Any, shape: tuple[int, ...]) -> float:
    """The factor of the norm of an array that is broadcast to a shape."""
    return math.sqrt(math.prod(shape) / max(math.prod(aval(atom).shape), 1))


def axes_after(equation: JaxprEqn, inputs: Sequence[Value]) -> Axes | None:
    """Where the records are in the outputs; `None` if the primitive is not followed.

    Raises:
      Mixing: the outputs depend on several records at once.
    """
    name, params = equation.primitive.name, equation.params
    shapes = [aval(atom).shape for atom in equation.invars]
    out = aval(equation.outvars[0]).shape
    axes = [value.axes if isinstance(value, Records) else None for value in inputs]
    given = [one for one in axes if one is not None]
    first = axes[0]
    blocks = {value.block for value in inputs if isinstance(value, Records)}
    block = max(blocks)
    follows_blocks = name in ("reshape", "transpose", "conv_general_dilated")
    if blocks != {1} and not follows_blocks and (len(blocks) > 1 or name not in ELEMENTWISE):
        return None

    if name in ELEMENTWISE:
        if any(one != given[0] for one in given):
            raise Mixing
        same_rank = all(len(s) in (0, len(out)) for s in shapes)
        # One record that is broadcast along an axis of records counts as many.
        for one, shape in zip(axes, shapes, strict=True):
            if one is not None and any(shape[axis] != out[axis] for axis in one):
                return None
        return Axes(given[0], block=block) if same_rank else None
    if name in _REDUCTIONS and first is not None:
        reduced = set(params["axes"])
        if reduced & set(first):
            rows = set(first) - reduced
            if name != "reduce_sum" or rows not in (set(), {0}):
                raise Mixing
            return Axes(tuple(rows), is_sum=True)
        return Axes(tuple(axis - sum(r < axis for r in reduced) for axis in first))
    if name in _CUMULATIVE and first is not None:
        if params["axis"] in first:
            raise Mixing
        return Axes(first)
    if name == "sort":
        if any(one != given[0] for one in given) or params["dimension"] in given[0]:
            raise Mixing
        return Axes(given[0])
    if name == "broadcast_in_dim" and first is not None:
        moved = tuple(params["broadcast_dimensions"][axis] for axis in first)
        kept = all(out[m] == shapes[0][axis] for axis, m in zip(first, moved, strict=True))
        return Axes(moved) if kept else None
    if name == "transpose" and first is not None:
        moved = tuple(list(params["permutation"]).index(axis) for axis in first)
        return Axes(moved, block=block) if tuple(sorted(moved)) == moved else None
    if name == "squeeze" and first is not None:
        gone = params["dimensions"]
        if set(gone) & set(first):  # one record is left
            return Axes(()) if len(first) == 1 else None
        return Axes(tuple(axis - sum(g < axis for g in gone) for axis in first))
    if name == "reshape" and first is not None:
        before = shapes[0]
        if params["dimensions"] is not None:
            before = tuple(before[axis] for axis in params["dimensions"])
            first = tuple(sorted(list(params["dimensions"]).index(axis) for axis in first))
            if len(first) != 1:
                return None
        return _reshaped(before, out, first, block)
    if name == "rev" and first is not None:
        return None if set(params["dimensions"]) & set(first) else Axes(first)
    if name == "slice" and first is not None:
        if any(out[axis] != shapes[0][axis] for axis in first):
            if len(first) != 1:
                return None
            start, stop = (params[f"{end}_indices"][first[0]] for end in ("start", "limit"))
            stride = params["strides"][first[0]] if params["strides"] else 1
            return Axes(first, order=("rows", range(start, stop, stride)))
        return Axes(first)
    if name == "unstack" and first is not None:
        axis = params["axis"]
        if axis not in first:
            return Axes(tuple(one - (axis < one) for one in first))
        single = (("rows", range(row, row + 1)) for row in range(len(equation.outvars)))
        return Axes((), orders=tuple(single)) if len(first) == 1 else None
    if name == "split" and first is not None:
        if params["axis"] not in first or len(params["sizes"]) == 1:
            return Axes(first)
        ends = np.cumsum([0, *params["sizes"]]).tolist()
        parts = (("rows", range(*ends_of_part)) for ends_of_part in itertools.pairwise(ends))
        return Axes(first, orders=tuple(parts)) if len(first) == 1 else None
    if name == "dynamic_slice" and first is not None:
        if any(one is not None for one in axes[1:]):
            return None
        if all(out[axis] == shapes[0][axis] for axis in first):
            return Axes(first)
        start = inputs[1 + first[0]]
        if len(first) != 1 or not isinstance(start, Public) or start.known is None:
            return None
        begin = int(np.clip(start.known, 0, shapes[0][first[0]] - out[first[0]]))
        return Axes(first, order=("rows", range(begin, begin + out[first[0]])))
    if name == "concatenate":
        if any(one != given[0] for one in given) or params["dimension"] in given[0]:
            return None
        return Axes(given[0]) if all(one is not None for one in axes) or given else None
    if name == "stack":
        if any(one != given[0] for one in given):
            raise Mixing
        return Axes(tuple(axis + (params["axis"] <= axis) for axis in given[0]))
    if name == "pad" and first is not None and axes[1] is None:
        padding = params["padding_config"]
        return Axes(first) if all(tuple(padding[axis]) == (0, 0, 0) for axis in first) else None
    if name == "dot_general":
        return _axes_of_product(params["dimension_numbers"], [len(s) for s in shapes], axes)
    if name == "conv_general_dilated":
        return _axes_of_convolution(equation, inputs)
    if name in ("reduce_window_max", "reduce_window_sum", "reduce_window") and first is not None:
        untouched = all(
            params["window_dimensions"][axis] == 1
            and params["window_strides"][axis] == 1
            and tuple(params["padding"][axis]) == (0, 0)
            for axis in first
        )
        return Axes(first) if untouched and len(inputs) == 1 else None
    if name == "select_and_gather_add" and first is not None and len(set(given)) == 1:
        return Axes(first) if all(params["window_dimensions"][a] == 1 for a in first) else None
    if name == "select_and_scatter_add" and len(set(given)) == 1:
        return (
            Axes(given[0]) if all(params["window_dimensions"][a] == 1 for a in given[0]) else None
        )
    if name in _MATRICES:
        if any(one != given[0] for one in given) or len(given) != len(axes):
            return None
        return Axes(given[0]) if max(given[0]) < len(shapes[0]) - 2 else None
    if name == "top_k" and first is not None:
        return Axes(first) if max(first) < len(shapes[0]) - 1 else None
    if name == "gather":
        return _axes_of_gather(equation, inputs)
    if name in ("scatter", "scatter-add", "scatter_add", "scatter-mul"):
        return _axes_of_scatter(equation, inputs)
    return None


def _axes_of_product(
    numbers: Any, ranks: Sequence[int], axes: Sequence[tuple[int, ...] | None]
) -> Axes | None:
    contracted, _ = numbers
    is_summed = [
        one is not None and set(one) <= set(c) for one, c in zip(axes, contracted, strict=True)
    ]
    touched = [
        one is not None and bool(set(one) & set(c)) for one, c in zip(axes, contracted, strict=True)
    ]
    if any(touched):
        # Rows of both arrays, or of one and a public array, are multiplied and added up.
        for side in (0, 1):
            own, other = axes[side], axes[1 - side]
            if own is None or not is_summed[side]:
                continue
            partners = tuple(contracted[1 - side][list(contracted[side]).index(a)] for a in own)
            if other is None or other == partners:
                return Axes((), is_sum=True)
        raise Mixing
    moved = product_places(numbers, ranks)
    places = [
        tuple(moved[side][a] for a in own) for side, own in enumerate(axes) if own is not None
    ]
    if any(place != places[0] for place in places):
        raise Mixing
    return Axes(places[0])


# Primitives whose output is zero where their first operand is.
_KEEP_ZEROS = {
    "abs", "convert_element_type", "copy", "div", "integer_pow", "mul", "neg", "real",
    "reduce_precision", "sign", "sqrt", "square",
}  # fmt: skip
# Those whose output is zero where all terms or cases are.
_KEEP_COMMON_ZEROS = {"add", "add_any", "select_n", "sub"}


def diagonals_of(value: Value) -> list[tuple[int, int]]:
    """Pairs of axes of an array whose entries are zero where the positions along both differ."""
    if isinstance(value, Records):
        return [] if value.diagonal is None else [(value.axes[0], value.diagonal)]
    if not isinstance(value, Public) or value.known is None:
        return [value.diagonal] if isinstance(value, Public) and value.diagonal else []
    shape = value.known.shape
    return [
        (a, b)
        for a, b in itertools.combinations(range(len(shape)), 2)
        if shape[a] == shape[b] > 1 and not value.known[_off_diagonal(shape, a, b)].any()
    ]


def _off_diagonal(shape: tuple[int, ...], a: int, b: int) -> np.ndarray:
    place = [
        np.arange(n).reshape([-1 if axis == own else 1 for axis in range(len(shape))])
        for own, n in ((a, shape[a]), (b, shape[b]))
    ]
    return np.broadcast_to(place[0] != place[1], shape)


def diagonals_after(equation: JaxprEqn, inputs: Sequence[Value]) -> list[tuple[int, int]]:
    """The same pairs of axes of an output."""
    name, params = equation.primitive.name, equation.params
    pairs = [diagonals_of(value) for value in inputs]
    if not any(pairs):
        return []
    shapes = [aval(atom).shape for atom in equation.invars]
    out = aval(equation.outvars[0]).shape

    # Entrywise: where a factor is zero, or all terms are.
    if name in _KEEP_ZEROS or name in _KEEP_COMMON_ZEROS:
        every = [{(min(pair), max(pair)) for pair in own} for own in pairs]
        if name == "mul":
            return list(every[0] | every[1])
        if name in _KEEP_ZEROS:
            return list(every[0]) if shapes[0] == out and params.get("y", 1) > 0 else []
        cases = range(name == "select_n", len(inputs))
        terms = [every[i] if shapes[i] == out else set() for i in cases if not is_zero(inputs[i])]
        return list(set.intersection(*terms)) if terms else []

    # Where the axes are moved to.
    places: dict[int, int] = {}
    if name == "broadcast_in_dim":
        dimensions = params["broadcast_dimensions"]
        places = {axis: int(place) for axis, place in enumerate(dimensions)}
    elif name == "transpose":
        places = {int(axis): place for place, axis in enumerate(params["permutation"])}
    elif name in ("squeeze", "reduce_sum"):
        gone = params["dimensions" if name == "squeeze" else "axes"]
        kept = [axis for axis in range(len(shapes[0])) if axis not in gone]
        places = {axis: place for place, axis in enumerate(kept)}
    elif name == "reshape" and params["dimensions"] is None:
        # An axis stays if as many entries are before it.
        before, after = ([(math.prod(s[:a]), n) for a, n in enumerate(s)] for s in (shapes[0], out))
        places = {a: after.index(end) for a, end in enumerate(before) if end in after}
    elif name == "split":
        whole = len(params["sizes"]) == 1
        places = {axis: axis for axis in range(len(out)) if whole or axis != params["axis"]}
    elif name == "dot_general":
        moved = product_places(params["dimension_numbers"], [len(s) for s in shapes])
        return [
            (place[a], place[b])
            for own, place in zip(pairs, moved, strict=True)
            for a, b in own
            if a in place and b in place
        ]
    elif name in SCATTER_ADD and is_zero(inputs[0]):
        pairs, places = pairs[2:], update_places(equation)
    return [(places[a], places[b]) for a, b in pairs[0] if a in places and b in places]


def partner_of_sum(equation: JaxprEqn, inputs: Sequence[Value]) -> int | None:
    """The axis of a sum over the records in which each entry has the term of one record only."""
    name, params = equation.primitive.name, equation.params
    if name == "reduce_sum":
        for _, b in diagonals_of(inputs[0]):
            if b not in params["axes"]:
                return b - sum(axis < b for axis in params["axes"])
    if name == "dot_general":
        numbers = params["dimension_numbers"]
        moved = product_places(numbers, [aval(atom).ndim for atom in equation.invars])
        for side, value in enumerate(inputs):
            own, other = numbers[0][side], numbers[0][1 - side]
            partner = inputs[1 - side]
            # The axis of the records, or that is multiplied with the other array's.
            if isinstance(value, Records):
                summed = value.axes[0]
            elif isinstance(partner, Records):
                summed = own[list(other).index(partner.axes[0])]
            else:
                continue
            for pair in diagonals_of(value):
                rest = [axis for axis in pair if axis != summed]
                if len(rest) == 1 and rest[0] in moved[side]:
                    return moved[side][rest[0]]
    return None


def product_places(numbers: Any, ranks: Sequence[int]) -> list[dict[int, int]]:
    """Where the axes of both operands of a product are in it."""
    contracted, batch = numbers
    places: list[dict[int, int]] = []
    offset = len(batch[0])
    for side in (0, 1):
        free = [a for a in range(ranks[side]) if a not in (*contracted[side], *batch[side])]
        found = {int(axis): place for place, axis in enumerate(batch[side])}
        places.append(found | {axis: offset + place for place, axis in enumerate(free)})
        offset += len(free)
    return places


def update_places(equation: JaxprEqn) -> dict[int, int]:
    """Where axes of the rows that are scattered are in the array, if they are not moved."""
    numbers = equation.params["dimension_numbers"]
    rank = aval(equation.invars[2]).ndim
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    window = [axis for axis in range(aval(equation.invars[0]).ndim) if axis not in gone]
    scattered = [axis for axis in range(rank) if axis not in numbers.update_window_dims]
    batching = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    found = {
        axis: window[place]
        for place, axis in enumerate(numbers.update_window_dims)
        if window[place] not in numbers.scatter_dims_to_operand_dims
    }
    batched = {axis: batching[place] for place, axis in enumerate(scattered) if place in batching}
    return found | batched


def _axes_of_gather(equation: JaxprEqn, inputs: Sequence[Value]) -> Axes | None:
    operand, indices = inputs
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    shape = aval(equation.invars[0]).shape
    index_rank = aval(equation.invars[1]).ndim
    out_rank = aval(equation.outvars[0]).ndim
    places = [axis for axis in range(out_rank) if axis not in numbers.offset_dims]
    found = set()
    order = None
    if isinstance(indices, Records):
        if index_rank - 1 in indices.axes:
            return None
        found.add(tuple(places[axis] for axis in indices.axes))
    if isinstance(operand, Records):
        if len(operand.axes) != 1:
            return None
        (axis,) = operand.axes
        if axis in numbers.operand_batching_dims:
            partner = numbers.start_indices_batching_dims[
                list(numbers.operand_batching_dims).index(axis)
            ]
            if isinstance(indices, Records) and indices.axes != (partner,):
                raise Mixing
            found.add((places[partner],))
        elif axis not in numbers.collapsed_slice_dims and sizes[axis] == shape[axis]:
            kept = [
                a
                for a in range(len(shape))
                if a not in numbers.collapsed_slice_dims and a not in numbers.operand_batching_dims
            ]
            if isinstance(indices, Records):
                raise Mixing
            found.add((numbers.offset_dims[kept.index(axis)],))
        elif (
            tuple(numbers.start_index_map) == (axis,) == tuple(numbers.collapsed_slice_dims)
            and isinstance(indices, Public)
            and index_rank == 2
            and indices.distinct is not None
            and (is_inside(indices, shape[axis]) or _is_batch(indices.distinct))
        ):
            # Different records, at public positions.
            found.add((places[0],))
            order = ("gather", indices.distinct)
        else:
            return None
    if len(found) != 1:
        raise Mixing
    return Axes(found.pop(), order=order)


def _axes_of_scatter(equation: JaxprEqn, inputs: Sequence[Value]) -> Axes | None:
    operand, indices, updates = inputs
    numbers = equation.params["dimension_numbers"]
    shape, rank = aval(equation.invars[0]).shape, aval(equation.invars[2]).ndim
    scattered = [axis for axis in range(rank) if axis not in numbers.update_window_dims]
    window = [
        axis
        for axis in range(len(shape))
        if axis not in numbers.inserted_window_dims and axis not in numbers.operand_batching_dims
    ]
    batching = dict(
        zip(numbers.scatter_indices_batching_dims, numbers.operand_batching_dims, strict=True)
    )
    found = set()
    if isinstance(operand, Records):
        found.add(operand.axes)
    if isinstance(indices, Records):
        if any(axis not in batching for axis in indices.axes):
            raise Mixing
        found.add(tuple(batching[axis] for axis in indices.axes))
    if isinstance(updates, Records):
        moved = []
        for axis in updates.axes:
            if axis in numbers.update_window_dims:
                moved.append(window[list(numbers.update_window_dims).index(axis)])
            elif scattered.index(axis) in batching:
                moved.append(batching[scattered.index(axis)])
            else:
                raise Mixing
        found.add(tuple(moved))
    if len(found) != 1:
        raise Mixing
    (axes,) = found
    moved_windows = all(
        axis in numbers.operand_batching_dims or axis not in numbers.scatter_dims_to_operand_dims
        for axis in axes
    )
    return Axes(axes) if moved_windows else None


def _axes_of_convolution(equation: JaxprEqn, inputs: Sequence[Value]) -> Axes | None:
    params, images, kernel = equation.params, inputs[0], inputs[1]
    numbers = params["dimension_numbers"]
    shapes = [aval(atom).shape for atom in equation.invars]
    features = aval(equation.outvars[0]).shape[numbers.out_spec[1]]
    plain = params["batch_group_count"] == 1
    if plain and isinstance(images, Records) and isinstance(kernel, Public):
        is_batch = images.block == 1 and images.axes == (numbers.lhs_spec[0],)
        return Axes((numbers.out_spec[0],)) if is_batch else None

    # Groups of channels, or of images, that are each of one record.
    groups = params["feature_group_count"] if plain else params["batch_group_count"]
    grouped = numbers.lhs_spec[1] if plain else numbers.lhs_spec[0]
    for value, axis, shape in (
        (images, grouped, shapes[0]),
        (kernel, numbers.rhs_spec[0], shapes[1]),
    ):
        if isinstance(value, Records):
            if value.axes != (axis,):
                raise Mixing
            if shape[axis] != groups * value.block:
                return None
    return Axes((numbers.out_spec[1],), block=features // groups)


def _reshaped(
    before: tuple[int, ...], after: tuple[int, ...], axes: tuple[int, ...], block: int
) -> Axes | None:
    """The axes of a reshaped array that index what adjacent axes of the array did."""
    if axes != tuple(range(axes[0], axes[0] + len(axes))):
        return None
    prefix = math.prod(before[: axes[0]])
    number = math.prod(before[axis] for axis in axes)
    if number == block == 1:  # of one record is all of the array
        ones = [a for a, n in enumerate(after) if n == 1 and math.prod(after[:a]) == prefix]
        return Axes(tuple(ones[:1]))
    for start in range(len(after)):
        if math.prod(after[:start]) != prefix or after[start] == 1:
            continue
        if block == 1:
            for stop in range(start + 1, len(after) + 1):
                if math.prod(after[start:stop]) == number:
                    return Axes(tuple(range(start, stop)))
            if len(axes) == 1 and after[start] % number == 0:
                return Axes((start,), block=after[start] // number)
        elif after[start] in (number, number // block):
            return Axes((start,), block=after[start] * block // number)
        return None
    return None


def is_inside(index: Public, size: int) -> bool:
    """Whether an index is never moved into the array."""
    low, high = index.facts.interval
    return low >= 0 and high <= size - 1


def _is_batch(distinct: Any) -> bool:
    return isinstance(distinct, tuple) and distinct[:1] == ("batch",)
