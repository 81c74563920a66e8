"""Predicted labels of all teachers on the queries."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from tqdm import tqdm

from dpjax._checks import batch_length, check, check_count, check_function
from dpjax._typing import ArrayTree
from dpjax.pate.blocks import (
    PER_TEACHER,
    SHARED,
    Method,
    bytes_of_results,
    choose_method,
    over_teachers,
    part_shapes,
    plan_blocks,
)
from dpjax.pate.convolutions import by_slices
from dpjax.pate.votes import NO_ANSWER


def predict_labels(
    apply_fn: Callable[[Any, Any], jax.Array],
    teachers: ArrayTree,
    inputs: ArrayTree,
    *,
    batch_size: int = 100,
    method: Method = "auto",
    block_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    progress: bool = True,
) -> npt.NDArray[np.int32]:
    """Returns the class that each teacher predicts for each query.

    Args:
      apply_fn: ``apply_fn(params, inputs) -> logits (batch, num_classes)`` of one teacher.
      teachers: stacked parameters, as `train_teachers` returns them.
      inputs: the queries, a tree of arrays with a leading axis of ``num_queries``; public.
      batch_size: number of queries computed at once.
      method: see `train_teachers`.
      block_size: how many teachers one program computes; see `train_teachers`.
      devices: over which the teachers of a block are spread; by default all.
      progress: show a progress bar.

    Returns:
      int32 ``(num_teachers, num_queries)``, for `count_votes`; `NO_ANSWER` (-1) where a logit is
      NaN, as after a diverged training: the teacher abstains.

    Raises:
      ValueError: no teacher, no query, or logits of another shape.

    Privacy:
      Nothing is released: the labels are as private as the shards.

    >>> teachers = jnp.array([[1.0, -1.0], [-1.0, 1.0], [jnp.nan, 0.0]])
    >>> predict_labels(lambda w, x: x[:, None] * w, teachers, jnp.array([1.0, -1.0, 3.0]),
    ...                progress=False).tolist()
    [[0, 1, 0], [1, 0, 1], [-1, -1, -1]]
    """
    check_function("apply_fn", apply_fn, "params", "inputs")
    num_teachers = batch_length(teachers, "teachers")
    num_queries = batch_length(inputs, "inputs")
    check(num_teachers > 0, "teachers", num_teachers, "at least one")
    check(num_queries > 0, "inputs", num_queries, "at least one query")
    check_count("batch_size", batch_size)
    size = min(batch_size, num_queries)
    one, batch = part_shapes(teachers, (), axes=1), part_shapes(inputs, (size,), axes=1)
    logits = jax.eval_shape(apply_fn, one, batch)
    fits = logits.ndim == 2 and len(logits) == size
    check(fits, "apply_fn's result", logits.shape, f"logits of shape ({size}, num_classes)")
    chosen = choose_method(method, apply_fn, one, batch)
    function = by_slices(apply_fn) if chosen == "slices" else apply_fn
    blocks = plan_blocks(num_teachers, bytes_of_results(function, one, batch), block_size, devices)

    def predict(params: Any, inputs: Any) -> jax.Array:
        predicted = over_teachers(lambda each: _label(function(each, inputs)), chosen)
        return predicted(params)

    program = jax.jit(blocks.spread(predict, (PER_TEACHER, SHARED), PER_TEACHER))
    labels = np.empty((num_teachers, num_queries), np.int32)
    starts = range(0, num_queries, size)
    todo = list(blocks.numbers())
    # compiled here: threads lack the settings of the context that this function was called in
    run = program.lower(blocks.put(teachers, todo[0]), batch).compile()

    def label(numbers: npt.NDArray[np.int64]) -> None:
        params = blocks.put(teachers, numbers)
        for start in starts:
            queries = np.minimum(np.arange(start, start + size), num_queries - 1)
            some = jax.tree.map(lambda leaf: leaf[queries], inputs)  # noqa: B023
            labels[np.ix_(numbers, queries)] = run(params, some)
            bar.update()

    with tqdm(total=len(todo) * len(starts), unit="batch", disable=not progress) as bar:
        for _ in blocks.compute(label):
            pass
    return labels


def _label(logits: jax.Array) -> jax.Array:
    """Returns the class of the largest logit, int32 ``(batch,)``."""
    is_nan = jnp.any(jnp.isnan(logits), axis=-1)
    return jnp.where(is_nan, NO_ANSWER, jnp.argmax(logits, axis=-1).astype(jnp.int32))
