"""Losses of flax nnx modules and losses with randomness, as functions of parameters and example."""

import sys
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax._checks import as_key, check_function
from dpjax._typing import ArrayTree, LossFn, Params, PRNGKey

_RANDOM = (
    "loss_fn draws from the module's own random streams, whose state is the same for every example:"
    " pass key= (in train and private_step loss_takes_key=True), with which the streams of each"
    " example are seeded, and a loss_fn of params, example and key"
)


class LossInput(NamedTuple):
    """How a loss is called (static under ``jit``).

    Attributes:
      graphdef: of the nnx module; ``None`` if the parameters are a plain tree.
      keyed: whether each example has a key.
    """

    graphdef: Any
    keyed: bool

    def bind(self, loss_fn: LossFn, constants: ArrayTree) -> LossFn:
        """Returns the loss as a function of trained parameters and one example (with its key)."""
        check_function("loss_fn", loss_fn, "params", "example", *(["key"] if self.keyed else []))

        def loss(params: ArrayTree, example: Any) -> jax.Array:
            inputs = example if self.keyed else (example,)
            if self.graphdef is None:
                return loss_fn(params, *inputs)
            return _loss_of_module(loss_fn, self.graphdef, params, constants, *inputs)

        return loss


def split_params(params: Params, wrt: Any, keyed: bool) -> tuple[LossInput, Any, Any]:
    """Splits an nnx module into trained parameters and constants; other trees are all trained.

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
    nnx: Any = sys.modules.get("flax.nnx")
    if nnx is None or not isinstance(params, nnx.Module):
        if wrt is not None:
            raise ValueError(
                f"wrt is a filter for the variables of an nnx.Module, got {wrt!r} with params of"
                f" type {type(params).__name__}"
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
    graphdef: Any,
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
