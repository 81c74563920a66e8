"""Shards: disjoint, of equal size, and changed one at a time by neighbouring records."""

import jax
import numpy as np
import pytest

from dpjax.pate import Partition

RECORDS = [f"record {number}" for number in range(60)]


def changed_shards(one, other):
    return [t for t in range(len(one)) if not np.array_equal(np.sort(one[t]), np.sort(other[t]))]


def by_hash(records):
    partition = Partition.from_hash(records, num_teachers=4, shard_size=12)
    return partition.shards(np.array(records))


def test_shards_are_disjoint_and_of_equal_size():
    partition = Partition.draw(jax.random.key(0), 60, num_teachers=5)
    assert (partition.num_teachers, partition.shard_size) == (5, 12)
    assert sorted(partition.indices.ravel()) == list(range(60))
    some = Partition.draw(jax.random.key(0), 60, num_teachers=7, shard_size=8)
    assert len(set(some.indices.ravel().tolist())) == 56
    x = np.arange(120).reshape(60, 2)
    shards = partition.shards({"x": x, "y": jax.numpy.arange(60)})
    np.testing.assert_array_equal(shards["x"][3], x[partition.indices[3]])
    np.testing.assert_array_equal(shards["y"], partition.indices)


def test_an_assignment_is_that_of_its_key():
    draw = [Partition.draw(jax.random.key(k), 60, num_teachers=5).indices for k in (0, 0, 1)]
    np.testing.assert_array_equal(draw[0], draw[1])
    assert np.mean(draw[0] != draw[2]) > 0.8


def test_replacing_a_record_changes_the_shard_of_its_position():
    partition = Partition.draw(jax.random.key(0), 60, num_teachers=5)
    data = np.arange(60)
    other = np.where(data == 17, -1, data)
    assert len(changed_shards(partition.shards(data), partition.shards(other))) == 1
    # power: removing it, by position, changes all of them
    removed = Partition.draw(jax.random.key(0), 59, num_teachers=5, shard_size=11)
    assert len(changed_shards(partition.shards(data), removed.shards(np.delete(data, 17)))) == 5


@pytest.mark.parametrize("place", [0, 31, 59])
def test_adding_a_record_changes_the_shard_of_its_hash(place):
    fewer = by_hash(RECORDS[:place] + RECORDS[place + 1 :])
    assert len(changed_shards(by_hash(RECORDS), fewer)) <= 1


def test_hashes_spread_records_evenly_and_depend_on_the_salt():
    many = [str(number) for number in range(10_000)]
    salted = [
        Partition.from_hash(many, num_teachers=10, shard_size=1_300, salt=salt)
        for salt in (b"", b"another")
    ]
    # binomial: mean 1,000, standard deviation 30; sizes within 6 of them
    sizes = [len(set(shard.tolist())) for shard in salted[0].indices]
    assert sum(sizes) == 10_000
    assert all(820 < size < 1_180 for size in sizes)
    assert np.mean(salted[0].indices != salted[1].indices) > 0.8
    rows = np.arange(20.0).reshape(10, 2)
    of_rows = Partition.from_hash(rows, num_teachers=2, shard_size=4)
    bytes_of_rows = [row.tobytes() for row in rows]
    of_bytes = Partition.from_hash(bytes_of_rows, num_teachers=2, shard_size=4)
    np.testing.assert_array_equal(of_rows.indices, of_bytes.indices)


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        ([[0, 1], [2]], r"shards of equal size.*got \[2, 1\]"),
        ([[0, 1], [1, 2]], "every record in one shard, got record 1 in shard 0 and in shard 1"),
        ([], "at least one teacher"),
        ([[0, 4]], r"whole numbers 0 .. 3, got \[4"),
        ([[0, -1]], r"got \[-1"),
        ([[0.0, np.nan]], r"got \[nan"),
        ([0, 1], "shards of equal size"),
    ],
)
def test_shards_are_refused(indices, message):
    with pytest.raises(ValueError, match=message):
        Partition(indices, num_examples=4)


def test_draws_and_hashes_are_refused():
    key = jax.random.key(0)
    with pytest.raises(
        ValueError, match=r"num_teachers must divide num_examples = 60 .* got 7; or"
    ):
        Partition.draw(key, 60, num_teachers=7)
    with pytest.raises(ValueError, match="num_teachers must be a whole number >= 1, got 0"):
        Partition.draw(key, 60, num_teachers=0)
    with pytest.raises(ValueError, match=r"shard_size must be at most .* = 8, got 9"):
        Partition.draw(key, 60, num_teachers=7, shard_size=9)
    with pytest.raises(ValueError, match="identifiers must be in every shard, got 'none for shard"):
        Partition.from_hash(["a"], num_teachers=2, shard_size=3)
    with pytest.raises(ValueError, match="data must be of num_examples = 60 records, got '59 rec"):
        Partition.draw(key, 60, num_teachers=6).shards(np.zeros(59))
