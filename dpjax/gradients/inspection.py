"""What a per-example loss may not do, found by tracing it on one example.

Differential privacy rests on one fact: an example's gradient depends on that example alone. A loss
called on one example at a time cannot see the neighbours, but it can *pretend* to: batch
normalisation over a batch of one subtracts the example from itself and trains something else than
was meant, and a collective mixes the examples of other devices. Both are refused here, when the
loss is traced, so a compiled step pays nothing.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from numbers import Integral
from typing import Any

import flax.errors
import flax.linen as nn
import flax.nnx as nnx
import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var, jaxprs_in_params

from dpjax._validation import check
from dpjax.gradients.varying import one_example

# Primitives that name a mesh axis, yet bring nothing over from the other devices on it.
_LOCAL = frozenset({"axis_index", "pvary"})
_REDUCTIONS = frozenset({"reduce_sum", "reduce_max", "reduce_min", "reduce_prod"})
_NORMALISING = frozenset({"sub", "mul", "div"})
# What carries a statistic, or an activation, on to an array of the same entries.
_ENTRYWISE = frozenset(
    "add sub mul div neg abs sign exp log log1p expm1 square sqrt rsqrt integer_pow pow max min"
    " tanh logistic erf select_n convert_element_type stop_gradient broadcast_in_dim reshape"
    " squeeze transpose copy clamp".split()
)


def check_loss(loss_fn: Callable[[Any, Any], jax.Array], params: Any, batch: Any) -> None:
    """Traces ``loss_fn`` on one example and refuses what has no per-example gradient.

    Raises:
      ValueError: if a parameter is not a float array or is a batch statistic, if the loss is not
        one real number, or if it mixes examples.
    """
    _check_params(params)
    jaxpr = _trace(loss_fn, params, jax.tree.map(one_example, batch))
    _check_scalar(jaxpr)
    _check_no_collectives(jaxpr.jaxpr)
    num_inputs = len(jax.tree.leaves(batch))
    _Normalisation().visit(jaxpr.jaxpr, jaxpr.jaxpr.invars[-num_inputs:])


def _trace(loss_fn: Callable[[Any, Any], jax.Array], params: Any, example: Any) -> ClosedJaxpr:
    try:
        with nn.intercept_methods(_refuse_batch_norm):
            return jax.make_jaxpr(loss_fn)(params, example)
    except NameError as error:
        if "axis name" not in str(error):
            raise
        raise ValueError(
            f"loss_fn must see one example at a time: {error} (a collective)"
        ) from error
    except flax.errors.TraceContextError as error:
        if "BatchStat" not in str(error):
            raise
        raise ValueError(_BATCH_NORM.format(where="an nnx.BatchStat is updated")) from error


_BATCH_NORM = (
    "loss_fn must see one example at a time, but it normalises over the batch axis ({where}): a"
    " per-example gradient does not exist under batch normalisation. Use GroupNorm or LayerNorm, or"
    " batch normalisation with fixed statistics (use_running_average=True)"
)


def _refuse_batch_norm(next_method: Any, args: Any, kwargs: Any, context: Any) -> Any:
    if isinstance(context.module, nn.BatchNorm) and context.method_name == "__call__":
        frozen = nn.merge_param(
            "use_running_average",
            context.module.use_running_average,
            kwargs.get("use_running_average", args[1] if len(args) > 1 else None),
        )
        if not frozen:
            raise ValueError(_BATCH_NORM.format(where="flax.linen.BatchNorm updates batch_stats"))
    return next_method(*args, **kwargs)


def _check_params(params: Any) -> None:
    leaves = jax.tree_util.tree_leaves_with_path(
        params, is_leaf=lambda node: isinstance(node, nnx.BatchStat)
    )
    check(bool(leaves), "params", params, "a tree with at least one float array")
    for path, leaf in leaves:
        name = f"params{jax.tree_util.keystr(path)}"
        if isinstance(leaf, nnx.BatchStat) or "batch_stats" in name:
            raise ValueError(
                f"params must hold trained parameters alone, but {name} is a batch statistic: batch"
                " statistics mix examples; keep them out of params, or use GroupNorm or LayerNorm"
            )
        if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating):
            raise ValueError(
                f"params must be float arrays, but {name} has dtype {jnp.result_type(leaf)}"
            )


def _check_scalar(jaxpr: ClosedJaxpr) -> None:
    outputs = jaxpr.out_avals
    if len(outputs) != 1 or outputs[0].shape or not jnp.issubdtype(outputs[0].dtype, jnp.floating):
        shapes = ", ".join(str(output) for output in outputs) or "nothing"
        raise ValueError(f"loss_fn must return one float scalar for one example, got {shapes}")


def check_local(compute: Callable[..., Any], *args: Any) -> None:
    """Refuses gradients that autodiff sums over the devices of an enclosing ``shard_map``.

    The loss does not show it: the gradient of what is the same on all devices is such a sum.
    """
    if jax.sharding.get_abstract_mesh().manual_axes:
        _check_no_collectives(jax.make_jaxpr(compute)(*args).jaxpr)


def _check_no_collectives(jaxpr: Jaxpr) -> None:
    found = sorted(set(_collectives(jaxpr)))
    if found:
        raise ValueError(
            "loss_fn must see one example at a time, but it, or its gradient, calls the collective"
            f" {', '.join(found)}, which mixes the examples of several devices; what differs"
            " between devices belongs in batch, not in a closure"
        )


def _collectives(jaxpr: Jaxpr) -> Iterator[str]:
    """Primitives, at any depth, that reach over an axis with a name."""
    for equation in jaxpr.eqns:
        over = jax.tree.leaves([equation.params.get(key) for key in ("axes", "axis_name")])
        named = not all(isinstance(axis, Integral) for axis in over)
        if named and equation.primitive.name not in _LOCAL:
            yield equation.primitive.name
        for inner in jaxprs_in_params(equation.params):
            yield from _collectives(inner)


class _Normalisation:
    """Finds ``x - mean(x)`` where the mean runs over a leading axis of length one.

    Each value that depends on the example carries the activations it is an entrywise function of
    (``of``) and those it is a statistic of (``statistic_of``); an entrywise operation that brings a
    statistic back to its own activation is a normalisation. Reducing *all* axes (a loss, a
    per-image mean) is no statistic, and what depends on parameters alone may do as it likes.
    """

    def __init__(self) -> None:
        self.of: dict[Var, frozenset[int]] = {}
        self.statistic_of: dict[Var, frozenset[int]] = {}
        self.new_activation = (frozenset({number}) for number in itertools.count())

    def visit(self, jaxpr: Jaxpr, inputs: Sequence[Var]) -> None:
        """Visits a program whose ``inputs`` depend on the example."""
        self.of.update({value: next(self.new_activation) for value in inputs})
        self._follow(jaxpr)

    def _follow(self, jaxpr: Jaxpr) -> None:
        for equation in jaxpr.eqns:
            inner = list(jaxprs_in_params(equation.params))
            if len(inner) == 1 and len(inner[0].invars) == len(equation.invars):
                self._enter(equation, inner[0])
                for result, outer in zip(inner[0].outvars, equation.outvars, strict=True):
                    self._pass_on(result, outer)
                continue
            for body in inner:
                self._enter(equation, body)
            self._step(equation)

    def _enter(self, equation: JaxprEqn, body: Jaxpr) -> None:
        # The branches of a cond, the body of a while take the last of the inputs.
        for outer, parameter in zip(reversed(equation.invars), reversed(body.invars), strict=False):
            self._pass_on(outer, parameter)
        self._follow(body)

    def _pass_on(self, source: Any, target: Var) -> None:
        self.of[target] = self._activations(source)
        self.statistic_of[target] = self._statistics(source)

    def _activations(self, value: Any) -> frozenset[int]:
        return frozenset() if isinstance(value, Literal) else self.of.get(value, frozenset())

    def _statistics(self, value: Any) -> frozenset[int]:
        return (
            frozenset() if isinstance(value, Literal) else self.statistic_of.get(value, frozenset())
        )

    def _step(self, equation: JaxprEqn) -> None:
        name, inputs = equation.primitive.name, equation.invars
        of = frozenset[int]().union(*map(self._activations, inputs))
        statistic_of = frozenset[int]().union(*map(self._statistics, inputs))
        if name in _NORMALISING:
            self._check(*inputs)
        if name in _REDUCTIONS and _over_a_batch_of_one(equation):
            of, statistic_of = frozenset(), of
        elif name not in _ENTRYWISE:
            of, statistic_of = next(self.new_activation) if of | statistic_of else of, frozenset()
        for output in equation.outvars:
            self.of[output], self.statistic_of[output] = of, statistic_of

    def _check(self, left: Any, right: Any) -> None:
        for statistic, activation in ((left, right), (right, left)):
            if self._statistics(statistic) & self._activations(activation):
                raise ValueError(_BATCH_NORM.format(where="it has length one here"))


def _over_a_batch_of_one(equation: JaxprEqn) -> bool:
    """Over a leading axis of length one, or (an example without that axis) over no axis at all."""
    operand: Any = equation.invars[0].aval
    axes = equation.params["axes"]
    return len(axes) < operand.ndim and (not axes or (0 in axes and operand.shape[0] == 1))
