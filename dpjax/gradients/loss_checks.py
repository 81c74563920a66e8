"""Losses as functions of parameters and one example; those that mix examples are rejected.

What is rejected: batch normalisation, collectives, callbacks on whole batches.

Differential privacy requires that an example's gradient depends on that example alone. A loss is
called on one example at a time, so batch normalisation would subtract the example from itself, and
a collective would mix examples of several devices. Under ``vmap`` a callback or a function with a
batching rule of its own gets the whole batch. All are detected when the loss is traced, at no cost
to the compiled step. Where a loss has primitives with batching rules that are not JAX's own,
gradients of synthetic examples in a batch are compared with those of each by itself.
"""

import inspect
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from functools import partial
from numbers import Integral
from types import ModuleType
from typing import TYPE_CHECKING, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.interpreters import batching

from dpjax._checks import as_key, check, check_arrays, check_function, is_traced
from dpjax._jaxprs import aval, bodies_of, equations_at_any_depth
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey, PyTree
from dpjax.gradients.shard_map import one_example

if TYPE_CHECKING:
    from flax import linen, nnx

# What to do with leaves that are not trained.
_SEPARATE = (
    "separate the leaves that are not trained, as in"
    " equinox.partition(model, equinox.is_inexact_array), and combine both in loss_fn"
)
# Primitives that name a mesh axis without communication.
_LOCAL = frozenset({"axis_index", "pvary"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})
_NORMALISING = frozenset({"sub", "mul", "div"})
# Primitives that map entries to entries.
_ENTRYWISE = frozenset(
    "add sub mul div neg abs sign exp log log1p expm1 square sqrt rsqrt integer_pow pow max min"
    " tanh logistic erf select_n convert_element_type stop_gradient broadcast_in_dim reshape"
    " squeeze transpose copy clamp".split()
)

# Callbacks act on one example at a time by these methods; None is an error under ``vmap``.
_SEQUENTIAL = (None, "sequential", "sequential_unrolled")
_NUM_SYNTHETIC = 16
# Shapes of an example that an error shows.
_MAX_SHAPES = 8
# Float entries inside (0, 1), close together, heavy-tailed, and whole numbers: most functions of
# an example are finite on one of these at least. Integers: from the first number up to the second.
_FLOATS: tuple[Callable[[np.random.Generator, tuple[int, ...]], np.ndarray], ...] = (
    lambda rng, shape: rng.uniform(0.05, 0.95, shape),
    lambda rng, shape: rng.normal(0.5, 0.01, shape),
    lambda rng, shape: rng.standard_cauchy(shape),
    lambda rng, shape: rng.integers(0, 4, shape),
)
_INTEGERS = ((0, 2), (1, 4), (0, 100), (0, 10))
_RANDOM = (
    "loss_fn draws from the module's own random streams, whose state is the same for every example:"
    " pass key= (in train and private_step loss_takes_key=True), with which the streams of each"
    " example are seeded, and a loss_fn of params, example and key"
)


class LossInput(NamedTuple):
    """Arguments that a loss takes (static under ``jit``): an nnx module or a tree, and a key.

    Attributes:
      graphdef: of the nnx module; ``None`` if the parameters are a plain tree.
      keyed: whether each example has a key.
    """

    graphdef: "nnx.GraphDef[nnx.Module] | None"
    keyed: bool

    def bind(self, loss_fn: LossFn, constants: ArrayTree) -> LossFn:
        """Returns the loss as a function of trained parameters and one example (with its key)."""
        check_function("loss_fn", loss_fn, "params", "example", *(["key"] if self.keyed else []))

        def loss(params: ArrayTree, example: PyTree) -> jax.Array:
            inputs = example if self.keyed else (example,)
            if self.graphdef is None:
                return loss_fn(params, *inputs)
            return _loss_of_module(loss_fn, self.graphdef, params, constants, *inputs)

        return loss


def split_params(params: Params, wrt: object, keyed: bool) -> tuple[LossInput, PyTree, PyTree]:
    """Splits an nnx module into trainable parameters and the rest; other pytrees are all trainable.

    flax is not imported here: if it is not imported yet, ``params`` is no module.

    Args:
      params: a tree, or an nnx module.
      wrt: a filter for the variables of the module that are trained; ``None`` for ``nnx.Param``.
      keyed: whether each example has a key.

    Returns:
      How the loss is called, the trained parameters, and the constants.

    Raises:
      ValueError: ``wrt`` is given for a tree.
    """
    nnx = _imported("flax.nnx")
    if nnx is None or not isinstance(params, nnx.Module):
        if wrt is not None:
            raise ValueError(
                f"wrt is a filter for the variables of an nnx.Module, got {wrt!r} with params of"
                f" type {type(params).__name__}: of a tree, pass the trained arrays alone as"
                " params, and use the frozen ones in loss_fn"
            )
        return LossInput(None, keyed), params, ()
    graphdef, trained, constants = nnx.split(params, nnx.Param if wrt is None else wrt, ...)
    return LossInput(graphdef, keyed), trained, constants


def with_keys(batch: ArrayTree, key: PRNGKey, size: int) -> tuple[ArrayTree, jax.Array]:
    """Returns ``(batch, keys)`` with a key for each slot: ``fold_in(key, slot)``, or as given."""
    several = isinstance(key, jax.Array) and jnp.issubdtype(key.dtype, jax.dtypes.prng_key)
    if several and key.shape == (size,):
        return batch, key
    return batch, jax.vmap(jax.random.fold_in, (None, 0))(as_key(key), jnp.arange(size))


def _loss_of_module(
    loss_fn: LossFn,
    graphdef: "nnx.GraphDef[nnx.Module]",
    params: ArrayTree,
    constants: ArrayTree,
    example: ArrayTree,
    key: PRNGKey | None = None,
) -> jax.Array:
    """The loss of a copy of the module, so that changes of its state are discarded."""
    from flax import nnx

    model = nnx.merge(graphdef, params, constants, copy=True)
    streams = [node for _, node in nnx.iter_graph(model) if isinstance(node, nnx.RngStream)]
    if key is not None:
        for number, stream in enumerate(streams):
            stream.key.set_value(jax.random.fold_in(key, number))
            stream.count.set_value(jnp.zeros_like(stream.count.get_value()))
        return loss_fn(model, example, key)
    counts = [stream.count.get_value() for stream in streams]
    loss = loss_fn(model, example)
    if any(
        stream.count.get_value() is not count for stream, count in zip(streams, counts, strict=True)
    ):
        raise ValueError(_RANDOM)
    return loss


def check_loss(loss_fn: LossFn, params: ArrayTree, batch: ArrayTree) -> None:
    """Traces ``loss_fn`` on one example and rejects losses without per-example gradients.

    Raises:
      ValueError: if the loss is not one real number, or if it mixes examples.
    """
    # The jaxpr of the loss of one example; batch normalisation of flax is refused by its name.
    linen = _imported("flax.linen")
    example = jax.tree.map(one_example, batch)
    try:
        with linen.intercept_methods(_refuse_batch_norm) if linen else nullcontext():
            jaxpr = jax.make_jaxpr(loss_fn)(params, example)
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise ValueError(
            f"loss_fn must see one example at a time: {error} (a collective)"
        ) from error
    except Exception as error:
        # flax.errors.TraceContextError, by name: flax may not be imported.
        if type(error).__name__ != "TraceContextError" or "BatchStat" not in str(error):
            if not str(error).startswith("loss_fn "):  # an error of the loss, not of dpjax
                error.add_note(_describe_example(example))
            raise
        raise ValueError(_BATCH_NORM.format(where="an nnx.BatchStat is updated")) from error

    # One real number.
    outputs = jaxpr.out_avals
    if len(outputs) != 1 or outputs[0].shape or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        shapes = ", ".join(str(output) for output in outputs) or "nothing"
        raise ValueError(f"loss_fn must return one float scalar for one example, got {shapes}")

    # Nothing that mixes examples.
    _check_no_collectives(jaxpr.jaxpr)
    num_inputs = len(jax.tree.leaves(batch))
    _check_no_normalisation(jaxpr.jaxpr, jaxpr.jaxpr.invars[-num_inputs:])
    _check_batching_rules(loss_fn, params, batch, jaxpr)


def _describe_example(example: PyTree) -> str:
    """Returns the note for errors of a loss on one example: its shapes, and the usual cure."""
    leaves = jax.tree_util.tree_leaves_with_path(example)
    shapes = [
        f"example{jax.tree_util.keystr(path)}: {leaf.dtype}{list(leaf.shape)}"
        for path, leaf in leaves[:_MAX_SHAPES]
    ]
    more = [f"and {len(leaves) - _MAX_SHAPES} more"] if len(leaves) > _MAX_SHAPES else []
    return (
        "loss_fn was called on ONE example, without the batch axis:"
        f" {', '.join([*shapes, *more])}. A module that expects a batch takes x[None], a batch of"
        " one, as in model(x[None])[0]."
    )


def _imported(name: str) -> ModuleType | None:
    """A module of flax; ``None`` if it is not imported yet, so that nothing is of its types."""
    return sys.modules.get(name)


_BATCH_NORM = (
    "loss_fn must see one example at a time, but it normalises over the batch axis ({where}): a"
    " per-example gradient does not exist under batch normalisation. Use GroupNorm or LayerNorm, or"
    " batch normalisation with fixed statistics (use_running_average=True)"
)


def _refuse_batch_norm(
    next_method: Callable[..., PyTree],
    args: tuple[PyTree, ...],
    kwargs: dict[str, PyTree],
    context: "linen.module.InterceptorContext",
) -> PyTree:
    from flax import linen

    if isinstance(context.module, linen.BatchNorm) and context.method_name == "__call__":
        frozen = linen.merge_param(
            "use_running_average",
            context.module.use_running_average,
            kwargs.get("use_running_average", args[1] if len(args) > 1 else None),
        )
        if not frozen:
            raise ValueError(_BATCH_NORM.format(where="flax.linen.BatchNorm updates batch_stats"))
    return next_method(*args, **kwargs)


def check_params(params: ArrayTree) -> None:
    """Raises ValueError for parameters that are not float arrays, or are batch statistics."""
    nnx = _imported("flax.nnx")

    def is_batch_stat(node: object) -> bool:
        return nnx is not None and isinstance(node, nnx.BatchStat)

    leaves = jax.tree_util.tree_leaves_with_path(params, is_leaf=is_batch_stat)
    check(bool(leaves), "params", params, "a tree with at least one float array")
    for path, leaf in leaves:
        name = f"params{jax.tree_util.keystr(path)}"
        if is_batch_stat(leaf) or "batch_stats" in name:
            raise ValueError(
                f"params must hold trained parameters alone, but {name} is a batch statistic: batch"
                " statistics mix examples; keep them out of params, or use GroupNorm or LayerNorm"
            )
        if not hasattr(leaf, "dtype") and not isinstance(leaf, float | int | complex):
            raise ValueError(
                f"params must be float arrays, but {name} is of type {type(leaf).__name__}:"
                f" {_SEPARATE}"
            )
        check_arrays("params", leaf)
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"params must be float arrays, but {name} has dtype {jnp.result_type(leaf)}:"
                f" {_SEPARATE}"
            )


def check_local(compute: Callable[..., PyTree], *args: PyTree) -> None:
    """Raises ValueError if autodiff sums gradients over devices of an enclosing ``shard_map``.

    It does so for parameters replicated over devices, which the jaxpr of the loss does not show.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        _check_no_collectives(jax.make_jaxpr(compute)(*args).jaxpr)


def _check_no_collectives(jaxpr: Jaxpr) -> None:
    """Raises ValueError for a primitive, at any depth, that communicates over a named axis."""
    names = set()
    for equation in equations_at_any_depth(jaxpr):
        axes = jax.tree.leaves([equation.params.get(key) for key in ("axes", "axis_name")])
        if not all(isinstance(axis, Integral) for axis in axes):
            names.add(equation.primitive.name)
    if names := names - _LOCAL:
        raise ValueError(
            "loss_fn must see one example at a time, but it, or its gradient, calls the collective"
            f" {', '.join(sorted(names))}, which mixes the examples of several devices; pass arrays"
            " that differ between devices in batch, not in a closure"
        )


def _check_batching_rules(
    loss_fn: LossFn, params: ArrayTree, batch: ArrayTree, jaxpr: ClosedJaxpr
) -> None:
    """Raises ValueError if ``vmap`` passes a whole batch to code that may mix its examples."""
    equations = list(equations_at_any_depth(jaxpr.jaxpr))

    # The rules of custom derivatives are in the gradient alone.
    if any(map(_has_own_derivative, equations)):
        example = jax.tree.map(one_example, batch)
        gradient = jax.make_jaxpr(jax.grad(loss_fn))(params, example)
        equations += equations_at_any_depth(gradient.jaxpr)

    # What gets the whole batch for certain.
    of_batch = set()
    for equation in equations:
        name, method = equation.primitive.name, equation.params.get("vmap_method")
        if method not in _SEQUENTIAL:
            of_batch.add(f"{name}(vmap_method={method!r})")
        elif name == "custom_vmap_call":
            of_batch.add("jax.custom_batching.custom_vmap")
    if of_batch:
        raise ValueError(
            f"loss_fn must see one example at a time, but {', '.join(sorted(of_batch))} in it, or"
            " in its gradient, gets the whole batch and may mix examples: use"
            ' vmap_method="sequential" for callbacks, and functions without custom_vmap'
        )

    # What has a batching rule that is not JAX's own.
    names = {equation.primitive.name for equation in equations if _has_own_rule(equation)}
    if names:
        _check_synthetic_gradients(loss_fn, params, batch, ", ".join(sorted(names)))


def _has_own_rule(equation: JaxprEqn) -> bool:
    """Whether the batching rule of an equation's primitive is defined outside of JAX."""
    if equation.primitive.name == "call_hi_primitive":
        # A class has its rule. Classes of jax.numpy are trusted; others of JAX wrap functions.
        return not type(equation.params["_prim"]).__module__.startswith("jax._src.numpy.")

    rule: object = batching.fancy_primitive_batchers.get(equation.primitive)
    while True:
        variables = inspect.getclosurevars(rule).nonlocals if inspect.isfunction(rule) else {}
        if isinstance(rule, partial):
            rule = rule.func
        elif "batcher" in variables:
            rule = variables["batcher"]
        else:
            break
    return rule is not None and rule.__module__.partition(".")[0] != "jax"


def _has_own_derivative(equation: JaxprEqn) -> bool:
    """Whether it is a custom_jvp or custom_vjp of a function that is not JAX's own."""
    if not equation.primitive.name.startswith(("custom_jvp_call", "custom_vjp_call")):
        return False
    file = bodies_of(equation)[0].jaxpr.debug_info.func_filename or ""
    return not file.startswith(os.path.join(os.path.dirname(jax.__file__), ""))


def _check_synthetic_gradients(
    loss_fn: LossFn, params: ArrayTree, batch: ArrayTree, names: str
) -> None:
    """Raises ValueError if gradients of synthetic examples depend on the others in their batch.

    Replacing half of the examples must leave losses and gradients of the others as they are, and an
    example by itself must have those that it has among the others.
    """
    value_and_grad = jax.value_and_grad(loss_fn)
    in_batch = jax.jit(jax.vmap(value_and_grad, (None, 0)))
    by_itself = jax.jit(lambda params, batch: jax.lax.map(partial(value_and_grad, params), batch))
    one_of_params = jax.tree.map(lambda leaf: jnp.expand_dims(leaf, 0), params)
    shapes, params_shape = jax.eval_shape(lambda *trees: trees, batch, one_of_params)
    compared = False

    # Not staged out where clipped sums are computed under jit.
    with jax.core.eval_context():
        drawn = jax.tree.map(lambda leaf: leaf[0], next(synthetic_batches(params_shape, 1))[0])
        for first, second, half in synthetic_batches(shapes, _NUM_SYNTHETIC):
            try:
                before, other, after = (
                    jax.tree.leaves(in_batch(drawn, examples))
                    for examples in (first, second, jax.tree.map(half, first, second))
                )
                alone = jax.tree.leaves(by_itself(drawn, first))
                apart = all(map(is_unchanged, map(half, before, other), after))
                apart = apart and all(map(is_close, before, alone))
            except Exception:
                continue  # the loss checks its values, or closes over traced ones
            compared = True
            if not apart:
                raise ValueError(
                    "loss_fn must see one example at a time, but on synthetic batches the gradient"
                    f" of an example depends on the other examples; it has the primitives {names}"
                )

    if not compared:
        raise ValueError(
            f"loss_fn has the primitives {names}, which may mix examples under jax.vmap, and cannot"
            " be checked on synthetic examples: it closes over traced values, or raises errors on"
            " all of them. Build it outside of jit, or without these primitives"
        )


class _Dependence(NamedTuple):
    """The activations that a value is an entrywise function of, and those it is a statistic of."""

    entrywise: frozenset[int] = frozenset()
    statistic: frozenset[int] = frozenset()


def _check_no_normalisation(jaxpr: Jaxpr, inputs: Sequence[Var]) -> None:
    """Raises ValueError for ``x - mean(x)`` where the mean is over a leading axis of length one.

    An entrywise operation that combines a statistic with its own activation is a normalisation.
    Reductions over *all* axes (a loss, a per-image mean) and values that depend on parameters alone
    are not counted as statistics.

    Args:
      jaxpr: of the loss of one example.
      inputs: its inputs that depend on the example.
    """
    numbers = itertools.count()
    known = {value: _Dependence(frozenset({next(numbers)})) for value in inputs}

    def read(atom: Var | Literal) -> _Dependence:
        return _Dependence() if isinstance(atom, Literal) else known.get(atom, _Dependence())

    def visit(jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            bodies = [body.jaxpr for body in bodies_of(equation)]
            for body in bodies:
                # The branches of a cond, the body of a while take the last of the inputs.
                pairs = zip(reversed(equation.invars), reversed(body.invars), strict=False)
                known.update({inner: read(outer) for outer, inner in pairs})
                visit(body)

            # The results of the only body, or of an operation.
            if len(bodies) == 1 and len(bodies[0].invars) == len(equation.invars):
                pairs = zip(bodies[0].outvars, equation.outvars, strict=True)
                known.update({outer: read(inner) for inner, outer in pairs})
            else:
                known.update(dict.fromkeys(equation.outvars, step(equation)))

    def step(equation: JaxprEqn) -> _Dependence:
        name, operands = equation.primitive.name, list(map(read, equation.invars))
        for statistic, activation in itertools.permutations(operands, 2):
            if name in _NORMALISING and statistic.statistic & activation.entrywise:
                raise ValueError(_BATCH_NORM.format(where="it has length one here"))

        activations = frozenset[int]().union(*(each.entrywise for each in operands))
        statistics = frozenset[int]().union(*(each.statistic for each in operands))
        if name in _ENTRYWISE:
            return _Dependence(activations, statistics)
        if name in _REDUCTIONS:
            # Over a leading axis of length one, or (an example without that axis) over no axis.
            shape, axes = aval(equation.invars[0]).shape, equation.params["axes"]
            if len(axes) < len(shape) and (not axes or (0 in axes and shape[0] == 1)):
                return _Dependence(statistic=activations)
        depends = bool(activations | statistics)
        return _Dependence(frozenset({next(numbers)}) if depends else frozenset())

    visit(jaxpr)


# Synthetic examples. They come from fixed seeds, and of the data only shapes and dtypes are used,
# so that a refusal is no function of the data. NumPy draws and compares them, as compiling that
# takes seconds.


def synthetic_batches(
    batch: PyTree, count: int
) -> Iterator[tuple[PyTree, PyTree, Callable[[jax.Array, jax.Array], jax.Array]]]:
    """Two batches of ``count`` examples of each kind, and ``half(first, second)`` of two arrays.

    ``half`` takes the rows of a random half of the examples from its first argument, and the others
    from its second.
    """
    leaves, treedef = jax.tree.flatten(batch)
    for kind in range(len(_FLOATS)):
        first, second = (
            jax.tree.unflatten(treedef, _draw(leaves, count, kind, number)) for number in range(2)
        )
        order = np.random.default_rng((kind, 2)).permutation(count)

        def half(first: jax.Array, second: jax.Array, order: np.ndarray = order) -> jax.Array:
            is_first = (order < count // 2).reshape(-1, *[1] * (first.ndim - 1))
            return jnp.where(is_first, first, second)

        yield first, second, half


def _draw(leaves: Sequence[jax.Array], count: int, kind: int, number: int) -> list[jax.Array]:
    """``count`` examples with the dtypes and shapes of one example, drawn from fixed seeds."""
    drawn = []
    for position, leaf in enumerate(leaves):
        shape, dtype = (count, *leaf.shape[1:]), leaf.dtype
        rng = np.random.default_rng((kind, number, position))
        if jnp.issubdtype(dtype, jax.dtypes.prng_key):
            drawn.append(jax.random.split(jax.random.key(int(rng.integers(2**32))), shape))
            continue
        if jnp.issubdtype(dtype, jnp.floating):
            values = _FLOATS[kind](rng, shape)
        else:
            low, high = (0, 2) if jnp.issubdtype(dtype, jnp.bool_) else _INTEGERS[kind]
            values = rng.integers(low, high, shape)
        with np.errstate(over="ignore"):  # a half-precision float may become infinite
            drawn.append(jnp.asarray(values.astype(dtype)))
    return drawn


def is_unchanged(before: jax.Array, after: jax.Array) -> bool:
    """Whether two arrays are equal up to the rounding of a sum in another order.

    True too where a traced value leaves it unknown.
    """
    return _holds(partial(np.allclose, rtol=1e-6, atol=0, equal_nan=True), before, after)


def is_close(a: jax.Array, b: jax.Array) -> bool:
    """Whether two arrays, where finite, are equal up to rounding in batches of another size.

    True too where a traced value leaves it unknown.
    """
    return _holds(_is_close, a, b)


def _is_close(a: np.ndarray, b: np.ndarray) -> bool:
    finite = np.isfinite(a) & np.isfinite(b)
    a, b = a[finite], b[finite]
    size = np.abs(a) + np.sum(np.abs(a)) / max(1, a.size)
    return bool(np.all(np.abs(a - b) <= 0.01 * size))


def _holds(condition: Callable[[np.ndarray, np.ndarray], bool], a: jax.Array, b: jax.Array) -> bool:
    if a.shape != b.shape:
        return False
    if is_traced(a) or is_traced(b):
        return True
    return condition(np.asarray(a, np.float64), np.asarray(b, np.float64))
