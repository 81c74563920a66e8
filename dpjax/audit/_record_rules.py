"""Rules for operations on per-record arrays: where the records are, and bounds on the entries."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jax.extend.core import JaxprEqn

from dpjax._jaxprs import aval
from dpjax.audit import _values
from dpjax.audit._values import Facts, Public, Records, Value, as_hashable, is_zero

# Primitives of one operand whose output is that operand.
IDENTITIES = {
    "copy", "copy_p", "stop_gradient", "optimization_barrier", "sharding_constraint", "name",
    "pvary", "device_put", "random_clone",
}  # fmt: skip
ELEMENTWISE = {
    "abs", "acos", "acosh", "add", "add_any", "and", "asin", "asinh", "atan", "atan2", "atanh",
    "bitcast_convert_type", "cbrt", "ceil", "clamp", "conj", "convert_element_type", "cos", "cosh",
    "digamma", "div", "eq", "eq_to", "erf", "erf_inv", "erfc", "exp", "exp2", "expm1", "floor",
    "ge", "gt", "imag", "integer_pow", "is_finite", "le", "le_to", "lgamma", "log", "log1p",
    "log2", "logistic", "lt", "lt_to", "max", "min", "mul", "ne", "neg", "nextafter", "not",
    "one_minus_square", "or",
    "polygamma", "population_count", "pow", "real", "reduce_precision", "rem", "round", "rsqrt",
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
      block: how many entries of the axis in a row are of one record.
    """

    axes: tuple[int, ...]
    is_sum: bool = False
    order: Any = None
    block: int = 1


def elementwise_facts(name: str, equation: JaxprEqn, facts: Sequence[Facts]) -> Facts | None:
    """Facts of an output of an elementwise primitive; `None` of another one."""
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
        low, high = facts[1].interval
        return Facts(_values.plus(first.interval, (-high, -low)))
    if name == "sqrt":
        return _values.root(first)
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
        return kept
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
        return Facts((0.0, 1.0))
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
    """Facts of an output of a primitive that moves, adds or multiplies entries."""
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


def _product_facts(equation: JaxprEqn, facts: Sequence[Facts], inputs: Sequence[Value]) -> Facts:
    """Facts of a product: the squared norm of an array, or products of the records' entries."""
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
    size = float(terms)
    interval = _values.times(_values.times(facts[0].interval, facts[1].interval), (size, size))

    # The norm is at most the product of the norms, and is that of an outer product.
    result = _values.upper_product(*facts)
    if terms == 1:
        result = replace(result, name=_values.group_product(facts[0].name, facts[1].name))
    return replace(result, interval=interval)


def scattered_facts(equation: JaxprEqn, facts: Sequence[Facts], inputs: Sequence[Value]) -> Facts:
    """Facts of what the rows of one record add to an array, at positions that may be the same."""
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
    """How many entries of a row are equal at most, if some axes index the rows."""
    rows = np.moveaxis(known, axes, range(len(axes)))
    for axis in range(len(axes)):
        if rows.strides[axis] == 0:
            rows = rows[(slice(None),) * axis + (slice(1),)]
    rows = rows.reshape(math.prod(rows.shape[: len(axes)]), -1)
    return max((int(np.unique(row, return_counts=True)[1].max()) for row in rows), default=0)


def one_hot(
    facts: Facts, inputs: Sequence[Value], axes: tuple[int, ...], shape: tuple[int, ...]
) -> Facts:
    """Facts of where one number of each record equals public numbers."""
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
            return None
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
            cut = (params["start_indices"], params["limit_indices"], params["strides"])
            return Axes(first, order=("slice", *map(as_hashable, cut))) if len(first) == 1 else None
        return Axes(first)
    if name == "unstack" and first is not None:
        axis = params["axis"]
        return None if axis in first else Axes(tuple(one - (axis < one) for one in first))
    if name == "split" and first is not None:
        return None if params["axis"] in first else Axes(first)
    if name == "dynamic_slice" and first is not None:
        whole = all(out[axis] == shapes[0][axis] for axis in first)
        return Axes(first) if whole and all(one is None for one in axes[1:]) else None
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
    contracted, batch = numbers
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
    places = []
    for side, own in enumerate(axes):
        if own is None:
            continue
        free = [a for a in range(ranks[side]) if a not in contracted[side] and a not in batch[side]]
        offset = len(batch[0])
        if side == 1:
            offset += ranks[0] - len(contracted[0]) - len(batch[0])
        places.append(
            tuple(
                list(batch[side]).index(a) if a in batch[side] else offset + free.index(a)
                for a in own
            )
        )
    if any(place != places[0] for place in places):
        raise Mixing
    return Axes(places[0])


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
