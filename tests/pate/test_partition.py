"""Shards: disjoint, of equal size, and changed one at a time by neighbouring records."""

import jax
import numpy as np
import pytest

from dpjax.pate import Partition

RECORDS = [f"record {number}" for number in range(60)]


def draw(num_teachers, **settings):
    return Partition.draw(jax.random.key(0), 60, num_teachers=num_teachers, **settings)


def changed_shards(one, other):
    return [t for t in range(len(one)) if not np.array_equal(np.sort(one[t]), np.sort(other[t]))]


def by_hash(records):
    partition = Partition.from_hash(records, num_teachers=4, shard_size=12)
    return partition.shards(np.array(records))


def test_draw_has_disjoint_shards_of_equal_size():
    partition = draw(5)
    assert (partition.num_teachers, partition.shard_size) == (5, 12)
    assert sorted(partition.indices.ravel()) == list(range(60))
    some = draw(7, shard_size=8)
    assert len(set(some.indices.ravel().tolist())) == 56
    x = np.arange(120).reshape(60, 2)
    shards = partition.shards({"x": x, "y": jax.numpy.arange(60)})
    np.testing.assert_array_equal(shards["x"][3], x[partition.indices[3]])
    np.testing.assert_array_equal(shards["y"], partition.indices)


def test_draw_changes_one_shard_where_a_record_is_replaced():
    partition = draw(5)
    data = np.arange(60)
    other = np.where(data == 17, -1, data)
    assert len(changed_shards(partition.shards(data), partition.shards(other))) == 1
    # power: removing it, by position, changes all of them
    removed = Partition.draw(jax.random.key(0), 59, num_teachers=5, shard_size=11)
    assert len(changed_shards(partition.shards(data), removed.shards(np.delete(data, 17)))) == 5


@pytest.mark.parametrize("place", [0, 31, 59])
def test_from_hash_changes_one_shard_where_a_record_is_added(place):
    fewer = by_hash(RECORDS[:place] + RECORDS[place + 1 :])
    assert len(changed_shards(by_hash(RECORDS), fewer)) <= 1


def test_from_hash_is_even_and_depends_on_the_salt():
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
def test_partition_refuses(indices, message):
    with pytest.raises(ValueError, match=message):
        Partition(indices, num_examples=4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: draw(7), r"num_teachers must divide num_examples = 60 .* got 7; or"),
        (lambda: draw(7, shard_size=9), r"shard_size must be at most .* = 8, got 9"),
        (lambda: draw(6).shards(np.zeros(59)), "data must be of num_examples = 60 .* '59 rec"),
        (
            lambda: Partition.from_hash(["a"], num_teachers=2, shard_size=3),
            "identifiers must be in every shard, got 'none for shard",
        ),
    ],
)
def test_draw_and_from_hash_refuse(call, message):
    with pytest.raises(ValueError, match=message):
        call()
