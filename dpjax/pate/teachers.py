"""Teachers of an ensemble: disjoint shards of the records, training, and labels.

Teachers are trained in blocks: one program takes a step of all teachers of a block. An accelerator
trains all teachers in one block. A CPU trains single teachers, as many at the same time as it has
cores: the kernels of convolutions are fast for one set of weights only. Each teacher has keys of
its own, folded from the given key by its number, so the result does not depend on the blocks or on
the devices, up to rounding.
"""

import hashlib
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, NamedTuple, Self, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
import optax
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from tqdm import tqdm

from dpjax._checks import (
    as_key,
    as_numbers,
    batch_length,
    check,
    check_count,
    check_function,
    check_path,
    check_type,
    check_unmasked,
)
from dpjax._hashing import hash_arrays
from dpjax._typing import ArrayTree, PRNGKey
from dpjax.keys import is_seeded
from dpjax.pate.mechanisms import NO_ANSWER
from dpjax.training.checkpoint import (
    CheckpointStore,
    CheckpointText,
    describe_arrays,
    program_hash,
)
from dpjax.training.run import compile_chunk

P = TypeVar("P")
T = TypeVar("T")  # a tree of arrays
R = TypeVar("R")
# loss_fn(params, batch) or loss_fn(params, batch, key): a scalar, or one for each example.
BatchLossFn = Callable[..., jax.Array]
# What the keys folded from a teacher's key are for.
_INIT, _ORDER, _LOSS = range(3)
_STEPS_PER_CALL = 50
_SECONDS_BETWEEN_SAVES = 20.0  # each save writes all teachers
_UNEQUAL = (
    "indices must be shards of equal size, an array (num_teachers, shard_size): the unit of privacy"
    " is one shard, whatever its size"
)
_CHECKPOINT_TEXT = CheckpointText(
    unit="teacher",
    mismatch="its teachers are not those asked for",
    restart="Starting again in a new folder trains all teachers again",
)


@dataclass(frozen=True, eq=False)
class Partition:
    """Assigns records to the shards of teachers: disjoint, and all of the same size.

    The analyses of this package hold for any change of *one shard*. So what is neighbouring of the
    records depends on how they were assigned:

    - `draw` assigns positions: replacing a record (``"replace_one"``), or zeroing it out
      (``"zero_out"``), changes one shard. Adding or removing a record moves others to other
      positions, hence to other shards, which is not covered.
    - `from_hash` assigns a record by itself: adding, removing or replacing one changes one shard
      (replacing its identifier too: two shards, one after the other).
    - given ``indices`` must not depend on the records, or each on its own record alone. Sorting by
      label, or clusters, let one record change many shards.

    Attributes:
      indices: positions of the records of each shard, whole numbers ``(num_teachers, shard_size)``.
        No record is in two shards; in a shard it may be repeated.
      num_examples: number of records that were assigned.

    Raises:
      ValueError: no teacher, shards of unequal size, a position that is no record, or a record in
        two shards.

    >>> Partition([[0, 3], [2, 1]], num_examples=4).shards(np.array([10, 11, 12, 13])).tolist()
    [[10, 13], [12, 11]]
    """

    indices: npt.NDArray[np.int64]
    num_examples: int

    def __post_init__(self) -> None:
        check_count("num_examples", self.num_examples)
        object.__setattr__(self, "indices", _as_shards(self.indices, self.num_examples))

    @classmethod
    def draw(
        cls,
        key: PRNGKey,
        num_examples: int,
        *,
        num_teachers: int,
        shard_size: int | None = None,
    ) -> Self:
        """Returns a random assignment of positions; adjacency ``"replace_one"`` or ``"zero_out"``.

        Args:
          key: a JAX key; it may be public.
          num_examples: number of records; public.
          num_teachers: number of shards.
          shard_size: records of each shard; by default all are used, which ``num_teachers`` must
            divide. Records that are left over, drawn at random, are in no shard.

        Raises:
          ValueError: shards would be unequal, or there are too few records.

        >>> Partition.draw(jax.random.key(0), 12, num_teachers=3).indices.shape
        (3, 4)
        """
        check_count("num_examples", num_examples)
        check_count("num_teachers", num_teachers)

        # by default every record is in a shard
        if shard_size is None:
            size, rest = divmod(num_examples, num_teachers)
            if rest or not size:
                raise ValueError(
                    f"num_teachers must divide num_examples = {num_examples} into shards of equal"
                    f" size, got {num_teachers}; or give shard_size, at most {size}, which leaves"
                    " records out"
                )
            shard_size = size
        check_count("shard_size", shard_size)
        used = num_teachers * shard_size
        allowed = f"at most num_examples / num_teachers = {num_examples // num_teachers}"
        check(used <= num_examples, "shard_size", shard_size, allowed)

        order = np.asarray(jax.random.permutation(as_key(key), num_examples)[:used])
        return cls(order.reshape(num_teachers, shard_size), num_examples)

    @classmethod
    def from_hash(
        cls,
        identifiers: Iterable[str | bytes | int] | np.ndarray,
        *,
        num_teachers: int,
        shard_size: int,
        salt: bytes = b"",
    ) -> Self:
        """Returns an assignment by a hash of each record; ``"add_remove"`` is covered too.

        A shard with fewer records than ``shard_size`` repeats its own, one with more drops its
        last, so nothing but its own records decides its contents.

        Args:
          identifiers: of each record: a text, bytes or a number that does not depend on other
            records (not its position); or an array with a row for each record, which is hashed.
          num_teachers: number of shards.
          shard_size: records of each shard, public: chosen without the number of records.
          salt: of the hash, at most 16 bytes; it may be public.

        Raises:
          ValueError: a shard has no record.

        >>> people = ["Ada", "Blaise", "Carl", "David", "Emmy", "Felix"]
        >>> both = Partition.from_hash(people, num_teachers=2, shard_size=3)
        >>> less = Partition.from_hash(people[:-1], num_teachers=2, shard_size=3)
        >>> np.sum(np.any(both.indices != less.indices, axis=1)).item()
        1
        """
        check_count("num_teachers", num_teachers)
        check_count("shard_size", shard_size)
        check_type("salt", salt, bytes, "bytes")
        check(len(salt) <= 16, "salt", salt, "at most 16 bytes")
        check_type("identifiers", identifiers, Iterable, "one identifier for each record")
        check_unmasked("identifiers", identifiers)

        # the shard of each record, by its own hash
        values = list(identifiers)
        digests = [hashlib.blake2b(_bytes(each), salt=salt, digest_size=8) for each in values]
        shards = [int.from_bytes(each.digest(), "big") % num_teachers for each in digests]

        # shards of equal size, of their own records alone
        own = [np.flatnonzero(np.array(shards) == number) for number in range(num_teachers)]
        for number, positions in enumerate(own):
            check(len(positions) > 0, "identifiers", f"none for shard {number}", "in every shard")
        indices = np.stack([np.resize(positions, shard_size) for positions in own])
        return cls(indices, len(values))

    @property
    def num_teachers(self) -> int:
        """Number of shards."""
        return self.indices.shape[0]

    @property
    def shard_size(self) -> int:
        """Number of records of each shard."""
        return self.indices.shape[1]

    def shards(self, data: T) -> T:
        """Returns the records of every shard.

        Args:
          data: a tree of arrays with a leading axis of ``num_examples``.

        Returns:
          The same tree, leaves ``(num_teachers, shard_size, ...)``.

        Raises:
          ValueError: ``data`` has another number of records.

        Privacy:
          Nothing is released: the shards are as private as the records.
        """
        # Records may hold text: their number alone is checked.
        rows = jax.tree.map(lambda leaf: np.empty(np.shape(leaf)[:1], bool), data)
        num_records = batch_length(rows, "data")
        allowed = f"of num_examples = {self.num_examples} records"
        check(num_records == self.num_examples, "data", f"{num_records} records", allowed)

        def take(leaf: npt.ArrayLike) -> np.ndarray | jax.Array:
            if isinstance(leaf, jax.Array):
                return jnp.take(leaf, self.indices, axis=0)
            return np.asarray(leaf)[self.indices]

        return jax.tree.map(take, data)


def train_teachers(
    key: PRNGKey,
    loss_fn: BatchLossFn,
    init_fn: Callable[[PRNGKey], P],
    shards: ArrayTree,
    optimizer: optax.GradientTransformation,
    *,
    num_steps: int,
    batch_size: int,
    loss_takes_key: bool = False,
    block_size: int | None = None,
    devices: Sequence[jax.Device] | None = None,
    checkpoint_dir: str | Path | None = None,
    progress: bool = True,
) -> P:
    """Trains one teacher on every shard, and returns their stacked parameters.

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
      block_size: how many teachers one program trains; by default one for each CPU device, and all
        on an accelerator.
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
    check_function("loss_fn", loss_fn, "params", "batch", *(["key"] if loss_takes_key else []))
    check_function("init_fn", init_fn, "key")
    check_type(
        "optimizer",
        optimizer,
        optax.GradientTransformation,
        "an optax optimiser such as optax.adam(1e-3)",
    )
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)
    blocks = _plan_blocks(num_teachers, block_size, devices)
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(num_teachers))
    training = _Training(loss_fn, init_fn, optimizer, num_steps, batch_size, loss_takes_key)

    # the result, filled block after block
    shapes = _check_params(init_fn, key)
    ensemble = _Ensemble(
        np.array(0),
        jax.tree.map(lambda leaf: np.zeros((num_teachers, *leaf.shape), leaf.dtype), shapes),
    )

    # teachers of an earlier, interrupted call
    store: AbstractContextManager[CheckpointStore | None] = nullcontext()
    if checkpoint_dir is not None:
        identity = _identify(key, training, shards)
        description = {
            "data": describe_arrays(shards),
            "program": {"JAX": jax.__version__, "batch_size": str(batch_size)},
            "number": {"num_teachers": str(num_teachers), "num_steps": str(num_steps)},
        }
        store = CheckpointStore(
            checkpoint_dir, identity, is_seeded(key), _CHECKPOINT_TEXT, description=description
        )
    with store as saved:
        if saved:
            ensemble = jax.tree.map(np.array, saved.restore(ensemble))

        # train the others, and save them from time to time
        last_save = time.monotonic()
        first = int(ensemble.num_done)
        for numbers, params in _train_blocks(training, blocks, keys, shards, first, progress):
            for stacked, leaf in zip(*map(jax.tree.leaves, (ensemble.params, params)), strict=True):
                stacked[numbers] = leaf
            num_done = int(numbers[-1]) + 1
            is_due = time.monotonic() > last_save + _SECONDS_BETWEEN_SAVES
            if saved and (is_due or num_done == num_teachers):
                saved.save(ensemble._replace(num_done=np.array(num_done)), num_done)
                last_save = time.monotonic()
    trained: P = ensemble.params
    return trained


def predict_labels(
    apply_fn: Callable[[P, T], jax.Array],
    teachers: P,
    inputs: T,
    *,
    batch_size: int = 1_000,
    progress: bool = True,
) -> npt.NDArray[np.int32]:
    """Returns the class that each teacher predicts for each query.

    Args:
      apply_fn: ``apply_fn(params, inputs) -> logits (batch, num_classes)`` of one teacher.
      teachers: stacked parameters, as `train_teachers` returns them.
      inputs: the queries, a tree of arrays with a leading axis of ``num_queries``; public.
      batch_size: number of queries computed at once.
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
    num_teachers = batch_length(cast(ArrayTree, teachers), "teachers")
    num_queries = batch_length(cast(ArrayTree, inputs), "inputs")
    check(num_teachers > 0, "teachers", num_teachers, "at least one")
    check(num_queries > 0, "inputs", num_queries, "at least one query")
    check_count("batch_size", batch_size)

    @jax.jit
    def predict(teacher: P, queries: T) -> jax.Array:
        logits = apply_fn(teacher, queries)
        num_inputs = batch_length(cast(ArrayTree, queries), "inputs")
        fits = logits.ndim == 2 and len(logits) == num_inputs
        wanted = f"logits of shape ({num_inputs}, num_classes)"
        check(fits, "apply_fn's result", logits.shape, wanted)
        classes = jnp.argmax(logits, axis=-1).astype(jnp.int32)
        return jnp.where(jnp.any(jnp.isnan(logits), axis=-1), NO_ANSWER, classes)

    # the last batch is filled up with its last query, so that nothing is compiled again
    size = min(batch_size, num_queries)
    starts = range(0, num_queries, size)
    places = [np.minimum(np.arange(start, start + size), num_queries - 1) for start in starts]
    batches = [jax.tree.map(lambda leaf, some=some: leaf[some], inputs) for some in places]

    labels = np.empty((num_teachers, num_queries), np.int32)
    for number in tqdm(range(num_teachers), unit="teacher", disable=not progress):
        teacher = jax.tree.map(lambda leaf, number=number: leaf[number], teachers)
        for queries, batch in zip(places, batches, strict=True):
            labels[number, queries] = predict(teacher, batch)
    return labels


class _Ensemble(NamedTuple, Generic[P]):
    """Parameters of all teachers, of which the first ``num_done`` are trained."""

    num_done: np.ndarray
    params: P


class _Identity(NamedTuple):
    """Hashes that identify the teachers of a checkpoint."""

    key: str
    data: str
    program: str
    number: str  # of teachers and of steps


class _State(NamedTuple, Generic[P]):
    """Training state of one teacher."""

    step: jax.Array
    key: PRNGKey
    orders: jax.Array  # of the records of the shard, (num_epochs, shard_size)
    params: P
    opt_state: optax.OptState


class _Training(NamedTuple, Generic[P]):
    """Training program of one teacher."""

    loss_fn: BatchLossFn
    init_fn: Callable[[PRNGKey], P]
    optimizer: optax.GradientTransformation
    num_steps: int
    batch_size: int
    loss_takes_key: bool

    def init(self, key: PRNGKey, shard: ArrayTree) -> _State[P]:
        """Returns the state of a teacher before its first step."""
        shard_size = batch_length(shard)
        num_epochs = -(-self.num_steps // (shard_size // self.batch_size))
        order_key = jax.random.fold_in(key, _ORDER)
        orders = jax.vmap(
            lambda epoch: jax.random.permutation(jax.random.fold_in(order_key, epoch), shard_size)
        )(jnp.arange(num_epochs))
        params = self.init_fn(jax.random.fold_in(key, _INIT))
        return _State(jnp.int32(0), key, orders, params, self.optimizer.init(params))

    def update(self, state: _State[P], shard: ArrayTree) -> tuple[_State[P], tuple[()]]:
        """Returns the state of a teacher after one more step."""
        # the next batch of this epoch's order
        epoch, place = jnp.divmod(state.step, state.orders.shape[1] // self.batch_size)
        start = (epoch, place * self.batch_size)
        indices = jax.lax.dynamic_slice(state.orders, start, (1, self.batch_size))[0]
        batch = jax.tree.map(lambda leaf: leaf[indices], shard)

        # a step of the optimiser
        step_key = jax.random.fold_in(jax.random.fold_in(state.key, _LOSS), state.step)
        grads = jax.grad(self._mean_loss)(state.params, batch, step_key)
        updates, opt_state = self.optimizer.update(grads, state.opt_state, state.params)
        params = optax.apply_updates(state.params, updates)
        return _State(state.step + 1, state.key, state.orders, params, opt_state), ()

    def _mean_loss(self, params: P, batch: ArrayTree, key: PRNGKey) -> jax.Array:
        losses = self.loss_fn(params, batch, *[key] * self.loss_takes_key)
        shapes = ((), (self.batch_size,))
        fits = losses.shape in shapes and jnp.issubdtype(losses.dtype, jnp.floating)
        wanted = (
            f"a float scalar, or of shape ({self.batch_size},), one for each example of the batch"
        )
        check(fits, "loss_fn's result", f"{losses.dtype}{list(losses.shape)}", wanted)
        return jnp.mean(losses)


class _Blocks(NamedTuple):
    """Division of an ensemble into blocks of equal size, each spread over the devices of a mesh."""

    num_teachers: int
    size: int
    mesh: Mesh
    num_threads: int  # blocks computed at the same time

    def numbers(self, first: int) -> Iterator[npt.NDArray[np.int64]]:
        """Yields the teachers of each block from ``first`` on; the last one fills up the block."""
        for start in range(first, self.num_teachers, self.size):
            yield np.minimum(np.arange(start, start + self.size), self.num_teachers - 1)

    def put(self, tree: T, numbers: npt.NDArray[np.int64]) -> T:
        """Returns the given teachers' entries of the leading axis, spread over the devices."""
        sharding = NamedSharding(self.mesh, PartitionSpec("teachers"))
        return jax.tree.map(lambda leaf: jax.device_put(leaf[numbers], sharding), tree)

    def spread(self, function: Callable[..., R]) -> Callable[..., R]:
        """Returns ``function`` of one teacher for a block, run on each device for its teachers."""
        teachers = PartitionSpec("teachers")
        return jax.shard_map(
            jax.vmap(function),
            mesh=self.mesh,
            in_specs=(teachers, teachers),
            out_specs=teachers,
            check_vma=False,
        )


def _plan_blocks(
    num_teachers: int, block_size: int | None, devices: Sequence[jax.Device] | None
) -> _Blocks:
    """Returns blocks of at most ``block_size`` teachers, in multiples of the number of devices."""
    if devices is not None:
        check_type("devices", devices, Sequence, "a list of JAX devices")
        for device in devices:
            check_type("devices", device, jax.Device, "a list of JAX devices")
        check(len(devices) > 0, "devices", devices, "at least one device")
    if block_size is not None:
        check_count("block_size", block_size)
    available = list(jax.devices() if devices is None else devices)[:num_teachers]
    on_cpu = available[0].platform == "cpu"
    if block_size is None:
        block_size = 1 if on_cpu else num_teachers
    per_device = -(-min(block_size, num_teachers) // len(available))

    # most operations on one small teacher run on one core; several devices share each block instead
    num_threads = (os.cpu_count() or 1) if on_cpu and len(available) == 1 else 1
    mesh = Mesh(np.array(available), "teachers")
    return _Blocks(num_teachers, per_device * len(available), mesh, num_threads)


def _train_blocks(
    training: _Training[P],
    blocks: _Blocks,
    keys: jax.Array,
    shards: ArrayTree,
    first: int,
    progress: bool,
) -> Iterator[tuple[npt.NDArray[np.int64], P]]:
    """Yields the teachers of each block from number ``first`` on, and their parameters."""
    todo = list(blocks.numbers(first))
    if not todo:
        return

    # compiled here: threads lack the settings of the context that this function was called in
    data, own_keys = blocks.put(shards, todo[0]), blocks.put(keys, todo[0])
    init = jax.jit(blocks.spread(training.init)).lower(own_keys, data).compile()
    update = blocks.spread(training.update)
    steps_per_call = min(training.num_steps, _STEPS_PER_CALL)
    run = compile_chunk(update, init(own_keys, data), data, steps_per_call)
    double = jax.dtypes.canonicalize_dtype(np.float64) == np.float64

    def train(numbers: npt.NDArray[np.int64]) -> tuple[npt.NDArray[np.int64], P]:
        with jax.enable_x64(double):  # JAX keeps this setting for each thread
            data = blocks.put(shards, numbers)
            state = init(blocks.put(keys, numbers), data)
            for done in range(0, training.num_steps, _STEPS_PER_CALL):
                count = min(_STEPS_PER_CALL, training.num_steps - done)
                state, _ = jax.block_until_ready(run(state, data, count))
                bar.update(count)
            return numbers, jax.device_get(state.params)

    total = len(todo) * training.num_steps
    with (
        tqdm(total=total, unit="step", disable=not progress) as bar,
        ThreadPoolExecutor(blocks.num_threads) as pool,
    ):
        yield from pool.map(train, todo)


def _identify(key: PRNGKey, training: _Training[P], shards: ArrayTree) -> _Identity:
    """Returns the identity of a run; the program is that of one teacher."""
    shard = jax.tree.map(lambda leaf: jnp.asarray(leaf[0]), shards)
    programs = [
        program_hash(training.init, key, shard),
        program_hash(training.update, jax.eval_shape(training.init, key, shard), shard),
    ]
    return _Identity(
        key=hash_arrays(key),
        data=hash_arrays(shards),
        program=" ".join(programs),
        number=f"{batch_length(shards)} {training.num_steps}",
    )


def _check_shards(shards: ArrayTree) -> tuple[int, int]:
    """Returns the number of teachers and the shard size."""
    leaves = jax.tree_util.tree_leaves_with_path(shards)
    shapes = {jax.tree_util.keystr(path) or "leaf": np.shape(leaf) for path, leaf in leaves}
    leading = {shape[:2] for shape in shapes.values()}
    fits = len(leading) == 1 and len(min(leading)) == 2 and min(min(leading)) > 0
    wanted = "with axes (num_teachers, shard_size) of at least one, the same on every leaf"
    check(fits, "shards", shapes, wanted)
    num_teachers, shard_size = leading.pop()
    return num_teachers, shard_size


def _check_params(init_fn: Callable[[PRNGKey], P], key: PRNGKey) -> P:
    """Returns the shapes of the parameters, all of which must be floats."""
    params = jax.eval_shape(init_fn, key)
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        is_float = jnp.issubdtype(leaf.dtype, jnp.floating)
        name = f"init_fn's result{jax.tree_util.keystr(path)}"
        check(is_float, name, leaf.dtype, "a float array, of trained parameters only")
    return params


def _as_shards(
    indices: np.ndarray | jax.Array | Iterable[npt.ArrayLike], num_examples: int
) -> npt.NDArray[np.int64]:
    """Returns positions ``(num_teachers, shard_size)`` after all checks of a partition."""
    # shards of equal size
    if not isinstance(indices, np.ndarray | jax.Array):
        check_type(
            "indices", indices, Iterable, "an array, or a list of one array for each teacher"
        )
        indices = list(indices)
        sizes = [len(np.atleast_1d(shard)) for shard in indices]
        check(len(set(sizes)) <= 1, "indices", sizes, _UNEQUAL.removeprefix("indices must be "))
    positions = np.asarray(as_numbers(indices, "indices"))
    check(len(positions) > 0, "indices", positions.shape, "shards of at least one teacher")
    fits = positions.ndim == 2 and positions.shape[1] > 0
    check(fits, "indices", positions.shape, _UNEQUAL.removeprefix("indices must be "))

    # whole numbers of records
    inside = (positions >= 0) & (positions < num_examples) & (positions == np.floor(positions))
    wrong = positions[~inside]
    check(wrong.size == 0, "indices", wrong[:1].tolist(), f"whole numbers 0 .. {num_examples - 1}")
    positions = positions.astype(np.int64)

    # no record in two shards
    owners = np.full(num_examples, -1)
    for teacher, shard in enumerate(positions):
        shared = shard[owners[shard] >= 0]
        if shared.size:
            first = shared[0]
            raise ValueError(
                f"indices must have every record in one shard, got record {first} in shard"
                f" {owners[first]} and in shard {teacher}: one record would move several votes"
            )
        owners[shard] = teacher
    return positions


def _bytes(identifier: str | bytes | int | np.ndarray) -> bytes:
    if isinstance(identifier, str):
        return identifier.encode()
    if isinstance(identifier, bytes):
        return identifier
    array = np.asarray(identifier)
    return np.ascontiguousarray(array).tobytes() if array.ndim else repr(array.tolist()).encode()
