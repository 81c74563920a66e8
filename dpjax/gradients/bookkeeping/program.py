"""The jaxpr of a loss, and the equations in it that are linear in a parameter.

The jaxpr of one example's loss is traced with all calls inlined. A parameter leaf may then pass
through *views*, which rearrange, cast or cut out its entries (reshape, transpose, cast, slice) or
iterate over its first axis (scan). An equation that takes a view and is linear in it is a *linear
operation*. The gradient of a leaf all of whose uses are linear operations follows from their other
inputs and the gradients at their outputs; that of any other leaf is computed by ``vmap``.
"""

import itertools
import math
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from dpjax._jaxprs import (
    Apply,
    Atom,
    aval,
    bind,
    bodies_of,
    body_of,
    evaluate,
    primitive_names,
    read_scan,
)
from dpjax._typing import PyTree
from dpjax.gradients.clipping import EXACT, accumulator
from dpjax.gradients.shard_map import abstract, as_varying, varying_axes

Equations = tuple[JaxprEqn, ...]
Values = list[jax.Array]
# (inputs, state, more) -> (outputs, state, more), with inputs and outputs of an equation's body
Body = Callable[[Values, PyTree, PyTree], tuple[Values, PyTree, PyTree]]
# For each input of an equation its value, or ``None`` where it is not needed.
Operands = list[Any]

# Entrywise: they keep norms.
_VIEWS = frozenset({"reshape", "transpose", "squeeze", "convert_element_type", "copy", "slice"})
# Operands in which each primitive is linear for every value of the others.
_LINEAR_IN: dict[str, frozenset[int]] = {
    "dot_general": frozenset({0, 1}),
    "conv_general_dilated": frozenset({1}),
    "gather": frozenset({0}),
    "dynamic_slice": frozenset({0}),
    "add": frozenset({0, 1}),
    "sub": frozenset({0, 1}),
    "mul": frozenset({0, 1}),
    "div": frozenset({0}),
    "broadcast_in_dim": frozenset({0}),
}
# Equations that may look up rows of a table by their indices.
LOOKUPS = frozenset({"gather", "dynamic_slice"})
# In longer loops the indices are not computed ahead.
_MOST_ITERATIONS = 512
# Scans over so few layers, each with a parameter of so many entries, are inlined on CPUs: there XLA
# copies what a layer stores into an array of all layers, and out of it again.
_MOST_LAYERS, _LEAST_ENTRY = 8, 2**16


class Block(NamedTuple):
    """Entries of a parameter leaf: all of them, a slice, or those that a scan iterates over.

    Attributes:
      leaf: the number of the parameter leaf.
      views: the equations from the leaf to the entries, in order, up to the last slice or scan.
    """

    leaf: int
    views: Equations = ()

    @property
    def stack(self) -> tuple[int, ...]:
        """The lengths of the scans that iterate over the leaf, outermost first."""
        return tuple(read_scan(view).length for view in self.views if _is_scan(view))

    def select(self, leaf: jax.Array) -> jax.Array:
        """The entries of ``leaf`` in a shape with the axes of the stack first, without casts."""
        return _apply_views(self.views, leaf)

    def entry(self, leaf: jax.Array) -> jax.ShapeDtypeStruct:
        """Shape and dtype of one entry of the stack."""
        axes = varying_axes(leaf)
        selected = jax.eval_shape(self.select, abstract(leaf.shape, leaf.dtype, axes))
        return abstract(selected.shape[len(self.stack) :], leaf.dtype, axes)

    def to_leaf(self, leaf: jax.Array, entries: jax.Array) -> jax.Array:
        """Zeros like ``leaf`` but for these entries (the axes of the stack flattened into one)."""
        if not self.views:
            return entries
        shape = self.stack + entries.shape[1:] if self.stack else entries.shape
        return transpose(self.select, leaf, entries.reshape(shape))

    def is_same(self, other: "Block") -> bool:
        """Whether both are the same entries of one leaf."""
        return self.leaf == other.leaf and _signature(self.views) == _signature(other.views)


class OuterProducts(NamedTuple):
    """Sizes of a gradient ``sum_t left_t right_t^T`` of one example, for each of some groups."""

    groups: int
    terms: int
    rows: int
    columns: int


class LinearOp(NamedTuple):
    """One equation that is linear in a view of one parameter leaf.

    Attributes:
      equation: the equation, which has a single output.
      operand: position of the parameter among its inputs.
      block: the entries of the leaf that it takes.
      views: the equations between the block and the operand, in order.
      path: the ``scan`` and ``remat`` equations around the equation, outermost first.
      stacked: for each scan of the path, whether it iterates over the leaf. In the iterations of
        the others the equation takes the same entries again.
      row_sum: the equation that adds up all rows looked up, if nothing else reads them (the mean
        of embeddings).
      total: the sum to which the output is only added, as ``x @ w + b + h @ v``, or the output:
        gradients at both are the same, so operations with one total share them.
    """

    equation: JaxprEqn
    operand: int
    block: Block
    views: Equations
    path: Equations = ()
    stacked: tuple[bool, ...] = ()
    row_sum: JaxprEqn | None = None
    total: Var | None = None

    @property
    def primitive(self) -> str:
        """The name of the equation's primitive."""
        return self.equation.primitive.name

    @property
    def output(self) -> Var:
        """The output whose gradient is recorded: of ``row_sum`` if any, else of ``equation``."""
        return (self.row_sum or self.equation).outvars[0]

    @property
    def lengths(self) -> tuple[int, ...]:
        """Lengths of the `jax.lax.scan` loops around the equation, outermost first."""
        return tuple(read_scan(loop).length for loop in self.path if _is_scan(loop))

    @property
    def repeats(self) -> int | None:
        """In how many iterations of scans it takes the same entries; ``None`` outside of scans."""
        lengths = [n for n, over in zip(self.lengths, self.stacked, strict=True) if not over]
        return math.prod(lengths) if lengths else None

    def input_shape(self, position: int) -> tuple[int, ...]:
        """The shape of one input of the equation."""
        return aval(self.equation.invars[position]).shape

    def output_size(self) -> int:
        """The number of entries of the output."""
        return math.prod(aval(self.output).shape)

    def outer_products(self) -> OuterProducts | None:
        """The shape of its gradient as a sum of outer products; ``None`` if it is no such sum.

        A convolution is a dense layer on its unfolded input (im2col); the inputs of a lookup are
        one-hot. Where the equation is repeated in a loop, the terms of all iterations are counted.
        """
        if self.primitive == "dot_general":
            (contracting, batch), operand = self.equation.params["dimension_numbers"], self.operand
            param = self.input_shape(operand)
            groups = math.prod(param[d] for d in batch[operand])
            rows = math.prod(param[d] for d in contracting[operand])
            columns = math.prod(param) // (groups * rows)
            sizes = OuterProducts(groups, self.output_size() // (groups * columns), rows, columns)
        elif self.is_unfoldable():
            kernel = self.input_shape(1)
            columns = kernel[self.equation.params["dimension_numbers"].rhs_spec[0]]
            terms = self.output_size() // columns
            sizes = OuterProducts(1, terms, math.prod(kernel) // columns, columns)
        elif self.primitive in LOOKUPS and self._looks_up_rows():
            sizes = OuterProducts(1, math.prod(self.input_shape(1)), *self.input_shape(0))
        else:
            return None

        return sizes._replace(terms=sizes.terms * (1 if self.repeats is None else self.repeats))

    def is_unfoldable(self) -> bool:
        """Whether it is a convolution that is one product with its unfolded input (no groups)."""
        if self.primitive != "conv_general_dilated":
            return False
        parameters = self.equation.params
        return (
            parameters["feature_group_count"] == 1
            and parameters["batch_group_count"] == 1
            and set(parameters["lhs_dilation"]) <= {1}
            and min(itertools.chain((0,), *parameters["padding"])) >= 0
            and self.output_size() > 0
        )

    def is_dense(self) -> bool:
        """Whether it is a matrix product with the parameter, without batch axes."""
        if self.primitive != "dot_general":
            return False
        _, batch = self.equation.params["dimension_numbers"]
        sizes = [self.output_size(), *(math.prod(self.input_shape(n)) for n in (0, 1))]
        return not batch[self.operand] and min(sizes) > 0

    def _looks_up_rows(self) -> bool:
        """Whether a lookup takes one whole row of a matrix for each index."""
        table, indices, params = self.input_shape(0), self.input_shape(1), self.equation.params
        if len(table) != 2 or tuple(params["slice_sizes"]) != (1, table[1]):
            return False
        if self.primitive == "dynamic_slice":
            return True
        numbers = params["dimension_numbers"]
        return (
            tuple(numbers.collapsed_slice_dims) == (0,)
            and tuple(numbers.start_index_map) == (0,)
            and not numbers.operand_batching_dims
            and tuple(numbers.offset_dims) == (len(indices) - 1,)
            and indices[-1] == 1
        )

    def row_axis(self) -> int | None:
        """Axis of a matrix leaf that the rows of the outer products index; ``None`` if no matrix.

        Only for leaves that views at most transpose or cast.
        """
        transposes = [view for view in self.views if not _is_cast(view)]
        if any(view.primitive.name != "transpose" for view in transposes):
            return None

        # The leaf's axis for each axis of the operand.
        axes = list(range(len(self.input_shape(self.operand))))
        for view in transposes:
            axes = [axes[d] for d in view.params["permutation"]]

        # That of the operand's rows.
        if len(axes) != 2:
            return None
        if self.primitive in LOOKUPS:
            return axes[0]
        if self.primitive != "dot_general":
            return None
        contracting, batch = self.equation.params["dimension_numbers"]
        if batch[self.operand] or len(contracting[self.operand]) != 1:
            return None
        return axes[contracting[self.operand][0]]

    def view(self, entries: jax.Array) -> jax.Array:
        """Applies the views to the block's entries, without casts."""
        return _apply_views(self.views, entries)

    def apply(self, operands: Operands, entries: jax.Array) -> jax.Array:
        """The output as a linear function of the block's entries, the other operands as recorded.

        Operands that the transpose does not need are ``None``. Computed in float32 or wider and at
        full precision whatever the loss uses: a clipped sum rounded to half precision moves by more
        than the clip bound when one example is removed.
        """
        # The inputs, in at least float32; those that are not needed are zero.
        dtype = accumulator(entries)
        inputs = []
        for atom, value in zip(self.equation.invars, operands, strict=True):
            if value is None:
                zeros = jnp.zeros(aval(atom).shape, dtype)
                inputs.append(as_varying(zeros, varying_axes(aval(atom))))
            else:
                is_float = jnp.issubdtype(value.dtype, jnp.floating)
                inputs.append(value.astype(dtype) if is_float else value)
        inputs[self.operand] = self.view(entries)

        # The equation, and the sum over all rows looked up.
        parameters = dict(self.equation.params)
        if "precision" in parameters:
            parameters |= {"precision": (EXACT, EXACT), "preferred_element_type": jnp.dtype(dtype)}
        output: jax.Array = self.equation.primitive.bind(*inputs, **parameters)
        if self.row_sum is not None:
            output = self.row_sum.primitive.bind(output, **self.row_sum.params)
        return output

    def apply_repeated(self, operands: Operands, entries: jax.Array) -> jax.Array:
        """`apply` for one example, in all iterations where the equation is repeated in a loop."""
        if self.repeats is None:
            return self.apply(operands, entries)
        each = partial(self.apply, entries=entries)
        return jax.vmap(each, axis_size=self.repeats)(operands)


class LossProgram(NamedTuple):
    """The jaxpr of one example's loss, calls inlined, with its linear operations.

    Attributes:
      jaxpr: inputs are the parameter leaves, then the example's leaves; one scalar output.
      ops: the linear operations of the leaves that book-keeping supports.
      blocks: disjoint blocks of all leaves, one or several for each.
      unsupported: the reason for each leaf that book-keeping does not support.
    """

    jaxpr: ClosedJaxpr
    ops: tuple[LinearOp, ...]
    blocks: tuple[Block, ...]
    unsupported: dict[int, str]


def transpose(
    function: Callable[[jax.Array], jax.Array], like: PyTree, output_grad: jax.Array
) -> jax.Array:
    """Applies the transpose of a function that is linear in an array shaped like ``like``.

    The result has that shape, in float32 or wider.
    """
    dtype = accumulator(like)
    shape = abstract(like.shape, dtype, varying_axes(like))
    result: jax.Array = jax.linear_transpose(function, shape)(output_grad.astype(dtype))[0]
    return result


def _apply_views(views: Equations, array: jax.Array) -> jax.Array:
    for number, view in enumerate(views):
        if _is_scan(view):
            return jax.vmap(partial(_apply_views, views[number + 1 :]))(array)
        if not _is_cast(view):
            array = view.primitive.bind(array, **view.params)
    return array


def _signature(views: Equations) -> list[tuple[str, object]]:
    """What the views do: equal for the scans over one stack, and with or without casts."""
    return [
        (view.primitive.name, read_scan(view).length if _is_scan(view) else view.params)
        for view in views
        if not _is_cast(view)
    ]


def _is_scan(view: JaxprEqn) -> bool:
    """Whether the view iterates over the first axis."""
    return view.primitive.name == "scan"


def _is_cast(view: JaxprEqn) -> bool:
    """Whether the view changes the type of the entries at most."""
    return view.primitive.name in ("convert_element_type", "copy")


# The loss, and the search for its linear operations.


def read_loss(
    called: ClosedJaxpr, leaves: list[jax.Array], *, inline_remat: bool = False
) -> LossProgram:
    """Inlines the calls of one example's loss, and finds the operations on each parameter leaf.

    The first inputs of the jaxpr are the ``leaves``. With ``inline_remat`` layers under ``remat``
    (`jax.checkpoint`) are inlined too, so that all of their values are stored.
    """
    # The jaxpr without calls.
    inputs = [abstract(a.shape, a.dtype, varying_axes(a)) for a in map(aval, called.jaxpr.invars)]
    inlined = partial(_inline_calls, called, num_constant=len(leaves), inline_remat=inline_remat)
    jaxpr = jax.make_jaxpr(lambda *values: inlined(values))(*inputs)

    # The operations, and the disjoint blocks that they take.
    search = _Search(len(leaves), jaxpr.jaxpr)
    blocks = tuple(b for leaf, array in enumerate(leaves) for b in search.blocks(leaf, array.shape))
    ops = [op for op in search.ops if op.block.leaf not in search.unsupported]

    # Sums that are the only readers of their outputs.
    ops = [_merge_row_sum(op, search.readers) for op in ops]
    ops = [op._replace(total=_total(op.output, search.readers)) for op in ops]
    return LossProgram(jaxpr, tuple(ops), blocks, search.unsupported)


class _View(NamedTuple):
    """How a value of the jaxpr is a view of a leaf (see `LinearOp`)."""

    leaf: int
    views: Equations = ()
    stacked: tuple[bool, ...] = ()


class _Search:
    """Finds the linear operations on every parameter leaf, also in scans and ``remat`` layers."""

    def __init__(self, num_leaves: int, jaxpr: Jaxpr) -> None:
        self.ops: list[LinearOp] = []
        self.unsupported: dict[int, str] = {}
        self.views: dict[Atom, _View] = {
            var: _View(leaf) for leaf, var in enumerate(jaxpr.invars[:num_leaves])
        }
        self.returned: dict[Atom, int | None] = {}  # views that scans return: rarely used
        # The equations that read each value; None is the end of a body.
        self.readers: dict[Atom, list[JaxprEqn | None]] = {}
        self._search(jaxpr, ())
        for output in jaxpr.outvars:
            self._mark_unsupported(output, "returned as the loss")

    def blocks(self, leaf: int, shape: tuple[int, ...]) -> list[Block]:
        """The disjoint blocks of one leaf; marks the leaf as unsupported if they overlap."""
        # The different blocks that its operations take.
        blocks: list[Block] = []
        for block in (op.block for op in self.ops if op.block.leaf == leaf):
            if not any(block.is_same(other) for other in blocks):
                blocks.append(block)

        # Each pair must be disjoint.
        regions = [_indices(block, shape) for block in blocks]
        if not all(itertools.starmap(_are_disjoint, itertools.combinations(regions, 2))):
            self.unsupported.setdefault(leaf, "used in parts that overlap")
        return [Block(leaf)] if leaf in self.unsupported or not blocks else blocks

    def _search(self, jaxpr: Jaxpr, path: Equations) -> None:
        """Visits the equations of a jaxpr, whose path is that of `LinearOp`."""
        self.readers.update({var: [None] for var in jaxpr.outvars if isinstance(var, Var)})
        for equation in jaxpr.eqns:
            for value in equation.invars:
                if isinstance(value, Var):
                    self.readers.setdefault(value, []).append(equation)
            viewed = [i for i, value in enumerate(equation.invars) if self._is_view(value)]
            for value in equation.invars:
                if not self._is_view(value):
                    self._mark_unsupported(value, "returned from scan")
            self._visit(equation, viewed, path)

    def _visit(self, equation: JaxprEqn, viewed: list[int], path: Equations) -> None:
        """What one equation does with the operands that are views."""
        name, inputs = equation.primitive.name, equation.invars
        floats = all(jnp.issubdtype(aval(v).dtype, jnp.floating) for v in equation.outvars)

        # Bodies.
        if name == "scan":
            self._enter_scan(equation, viewed, path)
        elif name == "remat2":
            self._enter_remat(equation, viewed, path)

        # A further view.
        elif len(viewed) == 1 and name in _VIEWS and len(inputs) == 1 and floats:
            source = self.views[inputs[0]]
            self.views[equation.outvars[0]] = source._replace(views=(*source.views, equation))
        elif viewed and name == "split":
            source = self.views[inputs[0]]
            for output, cut in zip(equation.outvars, _slices(equation), strict=True):
                self.views[output] = source._replace(views=(*source.views, cut))

        # A linear operation: the views up to the last slice or scan are its block.
        elif len(viewed) == 1 and viewed[0] in _LINEAR_IN.get(name, ()):
            leaf, views, stacked = self.views[inputs[viewed[0]]]
            cuts = [n for n, view in enumerate(views) if view.primitive.name in ("slice", "scan")]
            end = cuts[-1] + 1 if cuts else 0
            block = Block(leaf, views[:end])
            self.ops.append(LinearOp(equation, viewed[0], block, views[end:], path, stacked))

        # Any other use.
        else:
            reason = f"{name} of several parameters" if len(viewed) > 1 else f"used in {name}"
            for operand in viewed:
                self._mark_unsupported(inputs[operand], reason)

    def _enter_scan(self, equation: JaxprEqn, viewed: list[int], path: Equations) -> None:
        """Visits the body of a scan; constants and arrays it iterates over are views in it."""
        scan = read_scan(equation)
        body, num_carry = scan.body.jaxpr, scan.num_carry

        # The body's inputs.
        for operand in viewed:
            leaf, views, stacked = self.views[equation.invars[operand]]
            if operand < scan.num_consts:
                self.views[body.invars[operand]] = _View(leaf, views, (*stacked, False))
            elif operand >= scan.num_consts + num_carry:
                iterated = _View(leaf, (*views, equation), (*stacked, True))
                self.views[body.invars[operand]] = iterated
            else:
                self._mark_unsupported(equation.invars[operand], "the initial state of a scan")
        self._search(body, (*path, equation))

        # Its outputs.
        carried, stacked_outputs = body.outvars[:num_carry], body.outvars[num_carry:]
        for inner, outer in zip(stacked_outputs, equation.outvars[num_carry:], strict=True):
            if self._leaf_of(inner) is not None:
                self.returned[outer] = self._leaf_of(inner)
        for inner in carried:
            self._mark_unsupported(inner, "carried by scan")

    def _enter_remat(self, equation: JaxprEqn, viewed: list[int], path: Equations) -> None:
        """Visits the body of a ``remat`` layer, whose inputs and outputs may be views."""
        body = body_of(equation).jaxpr
        for operand in viewed:
            self.views[body.invars[operand]] = self.views[equation.invars[operand]]
        self._search(body, (*path, equation))
        for inner, outer in zip(body.outvars, equation.outvars, strict=True):
            if self._is_view(inner):
                self.views[outer] = self.views[inner]
            elif self._leaf_of(inner) is not None:
                self.returned[outer] = self.returned[inner]

    def _mark_unsupported(self, value: Atom, reason: str) -> None:
        leaf = self._leaf_of(value)
        if leaf is not None:
            self.unsupported.setdefault(leaf, reason)

    def _is_view(self, value: Atom) -> bool:
        return not isinstance(value, Literal) and value in self.views

    def _leaf_of(self, value: Atom) -> int | None:
        """The leaf that the value is a view of, possibly returned from a scan."""
        if self._is_view(value):
            return self.views[value].leaf
        return None if isinstance(value, Literal) else self.returned.get(value)


def _slices(split: JaxprEqn) -> list[JaxprEqn]:
    """A ``slice`` equation for each output of a ``split`` equation."""
    source, axis, start = aval(split.invars[0]), split.params["axis"], 0
    slices = []
    for size in split.params["sizes"]:
        starts, limits = [0] * source.ndim, list(source.shape)
        starts[axis], limits[axis] = start, start + size
        cut = partial(jax.lax.slice, start_indices=starts, limit_indices=limits)
        slices.append(jax.make_jaxpr(cut)(source).jaxpr.eqns[0])
        start += size
    return slices


def _indices(block: Block, shape: tuple[int, ...]) -> list[range] | None:
    """The block's indices along each axis of the leaf; ``None`` if views mix the axes."""
    indices, axes = [range(size) for size in shape], list(range(len(shape)))

    # The leaf's axis of each axis of the view, and the indices that slices leave of it.
    for view in block.views:
        name, params = view.primitive.name, view.params
        if name == "slice":
            strides = params["strides"] or [1] * len(axes)
            cuts = map(slice, params["start_indices"], params["limit_indices"], strides)
            for axis, cut in zip(axes, cuts, strict=True):
                indices[axis] = indices[axis][cut]
        elif name == "transpose":
            axes = [axes[d] for d in params["permutation"]]
        elif name == "squeeze":
            axes = [axis for d, axis in enumerate(axes) if d not in params["dimensions"]]
        elif _is_scan(view):
            axes = axes[1:]
        elif not _is_cast(view):
            return None

    return indices


def _are_disjoint(one: list[range] | None, other: list[range] | None) -> bool:
    if one is None or other is None:
        return False
    return any(set(a).isdisjoint(b) for a, b in zip(one, other, strict=True))


def _merge_row_sum(op: LinearOp, readers: dict[Atom, list[JaxprEqn | None]]) -> LinearOp:
    """Adds the sum over all rows looked up to a lookup, where nothing else reads the rows."""
    reader, shape = _only_reader(op.output, readers), aval(op.output).shape
    if op.primitive != "gather" or op.path or reader is None:
        return op
    if reader.primitive.name != "reduce_sum":
        return op
    added, (*others, last) = reader.params["axes"], range(len(shape))
    sums_rows = last not in added and all(axis in added or shape[axis] == 1 for axis in others)
    return op._replace(row_sum=reader) if sums_rows else op


def _total(value: Var, readers: dict[Atom, list[JaxprEqn | None]]) -> Var:
    """The sum to which a value is only added, in one or several steps, or the value."""
    reader = _only_reader(value, readers)
    if reader is None or reader.primitive.name != "add":
        return value
    total = reader.outvars[0]
    return _total(total, readers) if aval(total).shape == aval(value).shape else value


def _only_reader(value: Var, readers: dict[Atom, list[JaxprEqn | None]]) -> JaxprEqn | None:
    equations = readers.get(value, [])
    return equations[0] if len(equations) == 1 else None


# Inlining of calls, and evaluation of scans and ``remat`` with other bodies.


def _inline_calls(
    jaxpr: ClosedJaxpr, inputs: Sequence[jax.Array], num_constant: int, *, inline_remat: bool
) -> Values:
    """Evaluates a jaxpr with the bodies of ``jit`` inlined, also within scans and ``remat``.

    A scan over few large layers is inlined too, one iteration after another. The body of every
    other scan and ``remat`` is traced anew, so that no two of them share variables, and what a scan
    carries unchanged becomes one of its constants. A ``cond`` whose branch depends on
    the example becomes a choice between the results of all branches, as `jax.vmap` makes it. The
    first ``num_constant`` inputs are the same for every example.
    """
    varying = varying_values(jaxpr.jaxpr, jaxpr.jaxpr.invars[num_constant:])
    of_leaves = varying_values(jaxpr.jaxpr, jaxpr.jaxpr.invars[:num_constant]) - varying
    inlined = ("jit", "remat2") if inline_remat else ("jit",)

    def apply(equation: JaxprEqn, operands: Values) -> Values:
        name = equation.primitive.name
        if name in inlined:
            return evaluate(body_of(equation), operands, apply)
        if name == "cond" and _is_in(varying, equation.invars[0]):
            results = [evaluate(b, operands[1:], apply) for b in bodies_of(equation)]
            return [jax.lax.select_n(operands[0], *each) for each in zip(*results, strict=True)]
        if name == "scan":
            if _has_few_layers(equation, of_leaves, inline_remat=inline_remat):
                return _iterations_inlined(equation, operands, apply)
            return _scan_inlined(equation, operands, apply)
        if name != "remat2":
            return bind(equation, operands)

        # The body of a layer under ``remat``.
        def run(values: Values, *_: PyTree) -> tuple[Values, PyTree, PyTree]:
            return evaluate(body_of(equation), values, apply), (), ()

        return evaluate_remat(equation, operands, run, (), ())[0]

    return evaluate(jaxpr, inputs, apply)


def _has_few_layers(equation: JaxprEqn, of_leaves: set[Atom], *, inline_remat: bool) -> bool:
    """Whether a scan is over few large layers without loops, their parameters in ``of_leaves``."""
    scan = read_scan(equation)
    arrays = equation.invars[scan.num_consts + scan.num_carry :]
    largest = max((aval(x).size for x in arrays if _is_in(of_leaves, x)), default=0)
    names = set(primitive_names(scan.body.jaxpr))
    return (
        jax.default_backend() == "cpu"
        and 1 <= scan.length <= _MOST_LAYERS
        and largest >= scan.length * _LEAST_ENTRY
        and "scan" not in names
        and (inline_remat or "remat2" not in names)
        and not _counted_slices(equation)
    )


def _iterations_inlined(equation: JaxprEqn, operands: Values, apply: Apply) -> Values:
    """Evaluates a scan by ``apply``, one iteration after another, without a loop."""
    scan = read_scan(equation)
    consts, operands = operands[: scan.num_consts], operands[scan.num_consts :]
    carry, stacks = operands[: scan.num_carry], operands[scan.num_carry :]
    stacked: list[Values] = [[] for _ in range(scan.length)]

    # Each iteration takes its entries of the arrays that the scan iterates over.
    for index in range(scan.length)[:: -1 if scan.reverse else 1]:
        entries = [jax.lax.index_in_dim(stack, index, keepdims=False) for stack in stacks]
        outputs = evaluate(scan.body, [*consts, *carry, *entries], apply)
        carry, stacked[index] = outputs[: scan.num_carry], outputs[scan.num_carry :]
    return [*carry, *map(jnp.stack, zip(*stacked, strict=True))]


def _scan_inlined(equation: JaxprEqn, operands: Values, apply: Apply) -> Values:
    """Evaluates a scan by ``apply``; it iterates over arrays that its counter indexes."""
    body, counted = body_of(equation), _counted_slices(equation)
    arrays = [operands[body.jaxpr.invars.index(each.invars[0])] for each in counted]

    def run(values: Values, _: PyTree, entries: Values) -> tuple[Values, PyTree, PyTree]:
        taken = {each.outvars[0]: x for each, x in zip(counted, entries, strict=True)}

        # A slice w[i] is the entry of this iteration.
        def apply_in_body(inner: JaxprEqn, operands: Values) -> Values:
            if not (inner.outvars and inner.outvars[0] in taken):
                return apply(inner, operands)
            entry = taken[inner.outvars[0]]
            return [jax.lax.reshape(entry, (1, *entry.shape))]

        return evaluate(body, values, apply_in_body), (), ()

    return evaluate_scan(equation, operands, run, (), arrays)[0]


def evaluate_remat(
    equation: JaxprEqn, operands: Values, body: Body, state: PyTree, more: PyTree
) -> tuple[Values, PyTree, PyTree]:
    """Evaluates a ``remat`` equation with another body; see `evaluate_scan`."""
    params, jaxpr = equation.params, body_of(equation).jaxpr
    run = jax.checkpoint(body, policy=params["policy"], prevent_cse=params["prevent_cse"])
    outputs, state, more = run(operands, state, more)
    passed_on = dict(zip(jaxpr.invars, operands, strict=True))
    outputs = [
        value if isinstance(atom, Literal) else passed_on.get(atom, value)
        for atom, value in zip(jaxpr.outvars, outputs, strict=True)
    ]
    return outputs, state, more


def evaluate_scan(
    equation: JaxprEqn, operands: Values, body: Body, state: PyTree, more: PyTree
) -> tuple[Values, PyTree, PyTree]:
    """Evaluates a scan with another body, ``body(inputs, state, more) -> (outputs, state, more)``.

    Beside its own values it carries ``state`` and iterates over ``more``. Returns the outputs, the
    last state, and the third results of ``body``, stacked.
    """
    scan = read_scan(equation)
    consts, operands = operands[: scan.num_consts], operands[scan.num_consts :]

    # One iteration, with the state and the entries of ``more``.
    def step(carry: PyTree, scanned: PyTree) -> tuple[PyTree, PyTree]:
        (values, state), (xs, more) = carry, scanned
        outputs, state, more = body([*consts, *values, *xs], state, more)
        return (outputs[: scan.num_carry], state), (outputs[scan.num_carry :], more)

    (carry, state), (ys, more) = jax.lax.scan(
        step,
        (operands[: scan.num_carry], state),
        (operands[scan.num_carry :], more),
        length=scan.length,
        reverse=scan.reverse,
        unroll=scan.unroll,
    )
    return [*carry, *ys], state, more


def varying_values(jaxpr: Jaxpr, inputs: Collection[Var]) -> set[Atom]:
    """The values of a jaxpr, and of the bodies in it, that depend on some of its ``inputs``."""
    varying: set[Atom] = set(inputs)

    def visit(jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            inputs = [i for i, atom in enumerate(equation.invars) if _is_in(varying, atom)]
            bodies = [body.jaxpr for body in bodies_of(equation)]

            # All values of an unknown body depend on all of its inputs.
            if equation.primitive.name not in ("jit", "scan", "remat2"):
                for body in bodies:
                    varying.update(body.invars if inputs else ())
                    visit(body)
                varying.update(equation.outvars if inputs else ())
                continue

            # The body, again until nothing more that a scan carries depends on them.
            (body,) = bodies
            varying.update(body.invars[i] for i in inputs)
            visit(body)
            carried: list[tuple[Var, Atom]] = []
            if equation.primitive.name == "scan":
                scan = read_scan(equation)
                outputs = body.outvars[: scan.num_carry]
                carried = list(zip(body.invars[scan.num_consts :], outputs, strict=False))
            while any(_is_in(varying, out) and into not in varying for into, out in carried):
                varying.update(into for into, out in carried if _is_in(varying, out))
                visit(body)
            results = zip(body.outvars, equation.outvars, strict=True)
            varying.update(outer for inner, outer in results if _is_in(varying, inner))

    visit(jaxpr)
    return varying


def _is_in(values: set[Atom], atom: Atom) -> bool:
    return not isinstance(atom, Literal) and atom in values


# Loops whose counter indexes an array entry by entry, as ``w[i]`` in `jax.lax.fori_loop`.


def _counted_slices(equation: JaxprEqn) -> list[JaxprEqn]:
    """Returns the slices ``w[i]`` in a scan's body whose index i is the number of the iteration."""
    scan = read_scan(equation)
    body, length = scan.body.jaxpr, scan.length

    # Slices of one entry of a constant with as many entries as iterations.
    slices = [
        each
        for each in body.eqns
        if each.primitive.name == "dynamic_slice"
        and each.invars[0] in body.invars[: scan.num_consts]
        and aval(each.invars[0]).shape == (length, *each.params["slice_sizes"][1:])
        and each.params["slice_sizes"][0] == 1
    ]
    if not slices or length > _MOST_ITERATIONS:
        return []

    # Integers that the scan carries, with a constant for initial value.
    carried = slice(scan.num_consts, scan.num_consts + scan.num_carry)
    parameters = body.invars[carried]
    counters: dict[Atom, jax.Array] = {
        parameter: start.val
        for parameter, start in zip(parameters, equation.invars[carried], strict=True)
        if isinstance(start, Literal) and jnp.issubdtype(aval(parameter).dtype, jnp.integer)
    }

    # In each iteration all that follows from these alone, the indices among it.
    indices: list[list[jax.Array | None]] = []
    with jax.ensure_compile_time_eval():
        for _ in range(length):
            values = dict(counters)

            def read(atom: Atom, values: dict[Atom, jax.Array] = values) -> jax.Array | None:
                return atom.val if isinstance(atom, Literal) else values.get(atom)

            for each in body.eqns:
                inputs = [value for atom in each.invars if (value := read(atom)) is not None]
                if not each.effects and len(inputs) == len(each.invars):
                    values.update(zip(each.outvars, bind(each, inputs), strict=True))
            indices.append([read(each.invars[1]) for each in slices])
            following = zip(parameters, map(read, body.outvars), strict=False)
            counters = {p: v for p, v in following if p in counters and v is not None}

    entries = list(range(length))[:: -1 if scan.reverse else 1]
    return [
        each
        for each, column in zip(slices, zip(*indices, strict=True), strict=True)
        if [None if index is None else int(index) for index in column] == entries
    ]
