"""Disjoint shards of equal size, one for each teacher, by a public assignment."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_key,
    as_numbers,
    batch_length,
    check,
    check_count,
    check_type,
    check_unmasked,
)
from dpjax._typing import ArrayTree, PRNGKey

_UNEQUAL = (
    "indices must be shards of equal size, an array (num_teachers, shard_size): the unit of privacy"
    " is one shard, whatever its size"
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
        values = list(identifiers)
        digests = [hashlib.blake2b(_bytes(each), salt=salt, digest_size=8) for each in values]
        shards = [int.from_bytes(each.digest(), "big") % num_teachers for each in digests]
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

    def shards(self, data: ArrayTree) -> Any:
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
        found = batch_length(rows, "data")
        allowed = f"of num_examples = {self.num_examples} records"
        check(found == self.num_examples, "data", f"{found} records", allowed)
        return jax.tree.map(lambda leaf: _take(leaf, self.indices), data)


def _as_shards(indices: Any, num_examples: int) -> npt.NDArray[np.int64]:
    """Returns positions ``(num_teachers, shard_size)`` after all checks of a partition."""
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
    inside = (positions >= 0) & (positions < num_examples) & (positions == np.floor(positions))
    wrong = positions[~inside]
    check(wrong.size == 0, "indices", wrong[:1].tolist(), f"whole numbers 0 .. {num_examples - 1}")
    positions = positions.astype(np.int64)
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


def _bytes(identifier: Any) -> bytes:
    if isinstance(identifier, str):
        return identifier.encode()
    if isinstance(identifier, bytes):
        return identifier
    array = np.asarray(identifier)
    return (
        repr(array.tolist()).encode() if array.ndim == 0 else np.ascontiguousarray(array).tobytes()
    )


def _take(leaf: Any, indices: npt.NDArray[np.int64]) -> Any:
    return (
        jnp.take(leaf, indices, axis=0)
        if isinstance(leaf, jax.Array)
        else np.asarray(leaf)[indices]
    )
