"""Book-keeping inside the backward pass, for sites whose inputs are recomputed and not recorded."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from dpjax.gradients.clipping import accumulator
from dpjax.gradients.shard_map import as_varying, varying_axes


class Recomputed(NamedTuple):
    """Book-keeping of a site inside the backward pass.

    Attributes:
      squares: ``squares(operands, output_grads)``, ``(batch, 2)``: squared norms, and 1 for each
        example whose terms cancel (see `BlockNorms`), else 0.
      clipped_sum: ``clipped_sum(factors, operands, output_grads)``, where ``factors`` is
        ``(batch, 2)``: the clip factors, and more than 0 where terms cancel in some iteration.
      entry: shape and dtype of the clipped sum.
    """

    squares: Callable[[list[Any], jax.Array], jax.Array]
    clipped_sum: Callable[[jax.Array, list[Any], jax.Array], jax.Array]
    entry: Any


class Token(NamedTuple):
    """Zeros that pass through all recomputed sites; their cotangents are inputs of backward passes.

    Attributes:
      factors: the cotangents are each example's clip factors for the recomputed sites, with
        whether its terms cancel (see `Recomputed`).
      phase: the cotangent is 0 where norms are wanted, and 1 where sums are.
    """

    factors: dict[int, Any]
    phase: jax.Array


def backward_hook(number: int, recomputed: Recomputed) -> Callable[..., Any]:
    """The identity on a site's output, whose backward pass computes squared norms or sums.

    ``hook(output, operands, square, total, token)`` for one example, under `jax.vmap`, returns
    output and token. The cotangent of ``square`` is the squared norm, with 1 where terms cancel,
    that of ``total`` the clipped sum over the batch.
    """

    @jax.custom_vjp
    def of_batch(output: Any, operands: Any, square: Any, total: Any, token: Token) -> Any:
        return output, token

    def forward(output: Any, operands: Any, square: Any, total: Any, token: Token) -> Any:
        return (output, token), operands

    def backward(operands: Any, cotangents: Any) -> Any:
        output_grad, token = cotangents
        factors, entry = token.factors[number], recomputed.entry
        zero = as_varying(jnp.zeros(entry.shape, accumulator(entry)), varying_axes(factors))
        square, total = jax.lax.cond(
            token.phase == 0,
            lambda: (recomputed.squares(operands, output_grad), zero),
            lambda: (
                jnp.zeros_like(factors),
                recomputed.clipped_sum(factors, operands, output_grad),
            ),
        )
        return output_grad, None, square, total, token

    of_batch.defvjp(forward, backward)

    @jax.custom_batching.custom_vmap
    def of_example(output: Any, operands: Any, square: Any, total: Any, token: Token) -> Any:
        return output, token

    @of_example.def_vmap
    def _(size: int, batched: Any, *args: Any) -> Any:
        def with_batch_axis(value: Any, is_batched: bool) -> Any:
            return value if is_batched else jnp.broadcast_to(value, (size, *value.shape))

        output, operands, square = jax.tree.map(with_batch_axis, args[:3], tuple(batched[:3]))
        factors = jax.tree.map(with_batch_axis, args[4].factors, batched[4].factors)
        token = args[4]._replace(factors=factors)
        batched_token = Token(dict.fromkeys(factors, True), False)  # type: ignore[arg-type]
        return of_batch(output, operands, square, args[3], token), (True, batched_token)

    return of_example
