"""Training of all teachers of an ensemble at once.

The teachers' parameters are stacked, and one program takes a step of all teachers of a block. A CPU
trains as many blocks at the same time as it has cores. Each teacher has keys of its own, folded
from the given key by its number, so the result does not depend on the size of the blocks or on the
devices, up to rounding.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from dpjax._checks import (
    as_key,
    batch_length,
    check,
    check_choice,
    check_count,
    check_function,
    check_path,
    check_type,
)
from dpjax._hashing import hash_arrays
from dpjax._typing import ArrayTree, PRNGKey
from dpjax.keys import is_seeded
from dpjax.pate.blocks import (
    METHODS,
    PER_TEACHER,
    SHARED,
    Blocks,
    Method,
    bytes_of_results,
    choose_method,
    over_teachers,
    part_shapes,
    plan_blocks,
)
from dpjax.pate.convolutions import by_slices
from dpjax.training.checkpoint import CheckpointStore, CheckpointText, program_hash
from dpjax.training.run import compile_steps

# loss_fn(params, batch) or loss_fn(params, batch, key): a scalar, or one for each example.
BatchLossFn = Callable[..., jax.Array]
# What the keys folded from a teacher's key are for.
_INIT, _ORDER, _LOSS = range(3)
_STEPS_PER_CALL = 50
_SECONDS_BETWEEN_SAVES = 20.0  # each save writes all teachers
_CHECKPOINT_TEXT = CheckpointText(
    unit="teacher",
    mismatch="its teachers are not those asked for",
    restart="Starting again in a new folder trains all teachers again",
)


def train_teachers(
    key: PRNGKey,
    loss_fn: BatchLossFn,
    init_fn: Callable[[PRNGKey], Any],
    shards: ArrayTree,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    batch_size: int,
    loss_takes_key: bool = False,
    method: Method = "auto",
    block_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    checkpoint_dir: str | Path | None = None,
    progress: bool = True,
) -> Any:
    """Trains one teacher on every shard, all at once, and returns their stacked parameters.

    Each teacher takes ``num_steps`` steps on batches of its shard, which is shuffled anew in every
    epoch; an incomplete last batch is left out.

    Args:
      key: a JAX key. Teacher t has the key ``fold_in(key, t)``.
      loss_fn: ``loss_fn(params, batch)``, a scalar, or one loss for each example, of which the mean
        is minimised. With ``loss_takes_key`` it has a key as third argument, another one for each
        teacher and step. Of a loss of one example, as `dpjax.train` takes it, give
        ``jax.vmap(loss_fn, (None, 0))``.
      init_fn: returns the initial parameters of one teacher from its key: a tree of float arrays,
        such as ``model.init(key, x)`` of flax, ``nnx.state(Model(nnx.Rngs(key)), nnx.Param)``, or
        the arrays of an equinox module.
      shards: a tree of arrays with leading axes ``(num_teachers, shard_size)``, such as
        ``Partition.shards(data)``.
      optimizer: any optax optimiser; every teacher has its own state.
      num_steps: of each teacher.
      batch_size: at most ``shard_size``.
      loss_takes_key: whether the loss draws random numbers (dropout).
      method: how the teachers of a block are computed. ``"vmap"``: batched, where convolutions
        become grouped ones; ``"slices"``: batched, with convolutions as products of patches;
        ``"map"``: one after another in one program; ``"auto"``: ``"slices"`` for convolutions on a
        CPU, else ``"vmap"``.
      block_size: how many teachers one program trains; by default as many as fit the memory of an
        accelerator, or the cache of a CPU, whose cores train a block each.
      devices: over which the teachers of a block are spread; by default all.
      checkpoint_dir: a folder to save to after a block, at most every 20 seconds, and to resume
        from: teachers that are there are not trained again. Another key, data, program or number of
        steps is refused; ``block_size`` and ``devices`` may change.
      progress: show a progress bar (without losses, which are private).

    Returns:
      The tree of ``init_fn``, numpy arrays with a leading axis of teachers.

    Raises:
      ValueError: no teacher, shards of unequal size, a batch larger than a shard, a loss of another
        shape, parameters that are not float arrays, or a checkpoint of another run.

    Privacy:
      Nothing is released: the parameters are as private as the shards. One record decides one
      teacher, if the shards are disjoint (see `Partition`). Labels are released by `GNMax` and its
      like.

    Source: Papernot et al. (2017), Section 2.1.

    >>> shards = {"x": jnp.ones((3, 8, 2)), "y": jnp.arange(3.0)[:, None] * jnp.ones((3, 8))}
    >>> loss = lambda w, batch: (batch["x"] @ w - batch["y"]) ** 2
    >>> teachers = train_teachers(
    ...     jax.random.key(0), loss, lambda key: jnp.zeros(2), shards, optax.sgd(0.1), num_steps=50,
    ...     batch_size=4, progress=False
    ... )
    >>> teachers.round(2).tolist()
    [[0.0, 0.0], [0.5, 0.5], [1.0, 1.0]]
    """
    key = as_key(key)
    num_teachers, shard_size = _check_shards(shards)
    check_count("num_steps", num_steps)
    check_count("batch_size", batch_size)
    check(batch_size <= shard_size, "batch_size", batch_size, f"at most {shard_size}, a shard")
    check_choice("method", method, METHODS)
    check_function("loss_fn", loss_fn, "params", "batch", *(["key"] if loss_takes_key else []))
    check_function("init_fn", init_fn, "key")
    check_type("optimizer", optimizer, optax.GradientTransformation, "an optax optimiser")
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)
    training, bytes_each = _plan(
        loss_fn, init_fn, optimizer, shards, batch_size, loss_takes_key, method
    )
    blocks = plan_blocks(num_teachers, bytes_each, block_size, devices)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_teachers))
    params = jax.eval_shape(init_fn, key)
    ensemble = _Ensemble(
        np.array(0),
        jax.tree.map(lambda leaf: np.zeros((num_teachers, *leaf.shape), leaf.dtype), params),
    )
    store: AbstractContextManager[CheckpointStore | None] = nullcontext()
    if checkpoint_dir is not None:
        identity = _identify(key, training, shards, num_steps)
        store = CheckpointStore(checkpoint_dir, identity, is_seeded(key), _CHECKPOINT_TEXT)
    last_save = time.monotonic()
    with store as saved:
        if saved:
            ensemble = jax.tree.map(np.array, saved.restore(ensemble))
        trained = _train(
            training, blocks, keys, shards, num_steps, int(ensemble.num_done), progress
        )
        for numbers, params in trained:
            for stacked, leaf in zip(*map(jax.tree.leaves, (ensemble.params, params)), strict=True):
                stacked[numbers] = leaf
            num_done = int(numbers[-1]) + 1
            is_due = time.monotonic() > last_save + _SECONDS_BETWEEN_SAVES
            if saved and (is_due or num_done == num_teachers):
                saved.save(ensemble._replace(num_done=np.array(num_done)), num_done)
                last_save = time.monotonic()
    return ensemble.params


class _Ensemble(NamedTuple):
    """Parameters of all teachers, of which the first ``num_done`` are trained."""

    num_done: np.ndarray
    params: Any


class _Identity(NamedTuple):
    """Hashes that identify the teachers of a checkpoint."""

    key: str
    data: str
    program: str
    number: str  # of teachers and of steps


class _State(NamedTuple):
    """Training state of a block of teachers; every leaf but ``step`` has a leading axis."""

    step: jax.Array
    keys: jax.Array
    order: jax.Array  # of the records of each shard in this epoch
    params: Any
    optimizer: Any


_SPECS = _State(SHARED, *[PER_TEACHER] * 4)  # type: ignore[arg-type]


class _Training(NamedTuple):
    """Training program of a block of teachers.

    Attributes:
      loss_fn: of parameters, batch and key; a scalar.
      init_fn: of a key.
      optimizer: of one teacher.
      batch_size: number of records of a batch.
      method: another one than ``"auto"``.
    """

    loss_fn: BatchLossFn
    init_fn: Callable[[PRNGKey], Any]
    optimizer: optax.GradientTransformation
    batch_size: int
    method: Method

    def init(self, keys: jax.Array, shards: ArrayTree) -> _State:
        """Returns the state of a block before the first step."""
        # one after another: it compiles twice as fast, and is done once
        params = jax.lax.map(lambda key: self.init_fn(jax.random.fold_in(key, _INIT)), keys)
        size = jax.tree.leaves(shards)[0].shape[1]
        order = jnp.zeros((len(keys), size), jnp.int32)
        return _State(jnp.int32(0), keys, order, params, jax.vmap(self.optimizer.init)(params))

    def update(self, state: _State, shards: ArrayTree) -> tuple[_State, tuple[()]]:
        """Returns the state of a block after one more step."""
        epoch, place = jnp.divmod(state.step, state.order.shape[1] // self.batch_size)
        shuffle = jax.vmap(lambda key: _permutation(key, epoch, state.order.shape[1]))
        order = jax.lax.cond(place == 0, lambda: shuffle(state.keys), lambda: state.order)
        start = place * self.batch_size
        indices = jax.lax.dynamic_slice_in_dim(order, start, self.batch_size, axis=1)

        def one(params: Any, optimizer: Any, shard: Any, indices: Any, key: Any) -> Any:
            batch = jax.tree.map(lambda leaf: leaf[indices], shard)
            step_key = jax.random.fold_in(jax.random.fold_in(key, _LOSS), state.step)
            grads = jax.grad(self.loss_fn)(params, batch, step_key)
            updates, optimizer = self.optimizer.update(grads, optimizer, params)
            return optax.apply_updates(params, updates), optimizer

        step = over_teachers(one, self.method)
        params, optimizer = step(state.params, state.optimizer, shards, indices, state.keys)
        return _State(state.step + 1, state.keys, order, params, optimizer), ()


def _permutation(key: PRNGKey, epoch: jax.Array, size: int) -> jax.Array:
    key = jax.random.fold_in(jax.random.fold_in(key, _ORDER), epoch)
    return jax.random.permutation(key, jnp.arange(size, dtype=jnp.int32))


def _plan(
    loss_fn: BatchLossFn,
    init_fn: Callable[[PRNGKey], Any],
    optimizer: optax.GradientTransformation,
    shards: ArrayTree,
    batch_size: int,
    loss_takes_key: bool,
    method: Method,
) -> tuple[_Training, int]:
    """Returns the training program, and the bytes of the results of one teacher's gradient."""

    def loss(params: Any, batch: Any, key: PRNGKey) -> jax.Array:
        losses = loss_fn(params, batch, *[key] * loss_takes_key)
        fits = losses.shape in ((), (batch_size,)) and jnp.issubdtype(losses.dtype, jnp.floating)
        allowed = f"a float scalar, or of shape ({batch_size},), one for each example of the batch"
        check(fits, "loss_fn's result", f"{losses.dtype}{list(losses.shape)}", allowed)
        return jnp.mean(losses)

    key = jax.random.key(0)
    params = jax.eval_shape(init_fn, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        name = f"init_fn's result{jax.tree_util.keystr(path)}"
        check(is_float, name, leaf.dtype, "a float array, of trained parameters only")
    batch = part_shapes(shards, (batch_size,), axes=2)
    chosen = choose_method(method, loss, params, batch, key)
    function = by_slices(loss) if chosen == "slices" else loss
    bytes_each = bytes_of_results(jax.grad(function), params, batch, key)
    return _Training(function, init_fn, optimizer, batch_size, chosen), bytes_each


def _train(
    training: _Training,
    blocks: Blocks,
    keys: jax.Array,
    shards: ArrayTree,
    num_steps: int,
    first: int,
    progress: bool,
) -> Iterator[tuple[np.ndarray, Any]]:
    """Yields the teachers of each block from number ``first`` on, and their parameters."""
    program = jax.jit(blocks.spread(training.init, (PER_TEACHER, PER_TEACHER), _SPECS))
    update = blocks.spread(training.update, (_SPECS, PER_TEACHER), (_SPECS, SHARED))
    todo = list(blocks.numbers(first))
    if not todo:
        return
    data, own_keys = blocks.put(shards, todo[0]), blocks.put(keys, todo[0])
    # compiled here: threads lack the settings of the context that this function was called in
    init = program.lower(own_keys, data).compile()
    run = compile_steps(update, init(own_keys, data), data, min(num_steps, _STEPS_PER_CALL))

    def train(numbers: np.ndarray) -> tuple[np.ndarray, Any]:
        data = blocks.put(shards, numbers)
        state = init(blocks.put(keys, numbers), data)
        for done in range(0, num_steps, _STEPS_PER_CALL):
            count = min(_STEPS_PER_CALL, num_steps - done)
            state, _ = jax.block_until_ready(run(state, data, count))
            bar.update(count)
        return numbers, jax.device_get(state.params)

    with tqdm(total=len(todo) * num_steps, unit="step", disable=not progress) as bar:
        yield from blocks.compute(train, first)


def _identify(key: PRNGKey, training: _Training, shards: ArrayTree, num_steps: int) -> _Identity:
    """Returns the identity of a run; the program is that of one teacher."""
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(1))
    shard = jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), shards)
    programs = [
        program_hash(training.init, keys, shard),
        program_hash(training.update, jax.eval_shape(training.init, keys, shard), shard),
    ]
    return _Identity(
        key=hash_arrays(key),
        data=hash_arrays(shards),
        program=" ".join(programs),
        number=f"{batch_length(shards)} {num_steps}",
    )


def _check_shards(shards: ArrayTree) -> tuple[int, int]:
    """Returns the number of teachers and the shard size."""
    leaves = jax.tree_util.tree_leaves_with_path(shards)
    shapes = {jax.tree_util.keystr(path) or "leaf": np.shape(leaf) for path, leaf in leaves}
    leading = {shape[:2] for shape in shapes.values()}
    fits = len(leading) == 1 and len(min(leading)) == 2 and min(min(leading)) > 0
    allowed = "with axes (num_teachers, shard_size) of at least one, the same on every leaf"
    check(fits, "shards", shapes, allowed)
    num_teachers, shard_size = leading.pop()
    return num_teachers, shard_size
