"""Losses of units of several records: one clipped gradient for each unit."""

import hashlib
import itertools
from types import SimpleNamespace

import flax.nnx as nnx
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.bookkeeping_checks import fast_jit
from helpers.gradient_oracle import assert_close, assert_matches_hand, sum_of_clipped
from helpers.inputs import gaussian_mechanism

from dpjax import PoissonSampling, clipped_grad, train
from dpjax.gradients import (
    UnitRecords,
    augmented_loss,
    explain,
    group_by_unit,
    unit_loss,
    user_level,
)

KEY = jax.random.key(3)
UNITS, RECORDS, WIDTH = 5, 3, 4
MASK = np.array([[1, 1, 1], [1, 0, 1], [0, 1, 0], [1, 1, 0], [0, 0, 0]], bool)
PARAMS = {"w": np.full((WIDTH, 2), 0.3, np.float32), "b": np.zeros(2, np.float32)}


def loss(params, record):
    x, label = record
    logits = jnp.tanh(x @ params["w"] + params["b"])
    return optax.softmax_cross_entropy_with_integer_labels(logits, label)


def units(padding=0.0):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(UNITS, RECORDS, WIDTH)).astype(np.float32)
    labels = rng.integers(0, 2, (UNITS, RECORDS))
    return UnitRecords((np.where(MASK[..., None], x, padding), labels), MASK)


def gradient(reduction="mean", clip=0.2, **options):
    return fast_jit(clipped_grad(unit_loss(loss, reduction=reduction), clip, **options))


def by_hand(reduction, clip):
    """Losses and gradients of units by a loop over their records, then clipped."""
    (x, labels), found = units().records, []
    value_and_grad = jax.value_and_grad(loss)
    for unit in range(UNITS):
        total, sums = 0.0, jax.tree.map(np.zeros_like, PARAMS)
        for i in np.flatnonzero(MASK[unit]):
            value, grad = value_and_grad(PARAMS, (x[unit, i], labels[unit, i]))
            total, sums = total + value, jax.tree.map(jnp.add, sums, grad)
        count = max(MASK[unit].sum(), 1) if reduction == "mean" else 1
        found.append((total / count, jax.tree.map(lambda g, n=count: g / n, sums)))
    return sum_of_clipped(found, clip, PARAMS)


@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_unit_loss_clips_the_unit(reduction, method):
    found = gradient(reduction, method=method)(PARAMS, units(), None)
    assert_matches_hand(found, by_hand(reduction, 0.2), rtol=1e-4)
    each_record = by_hand(reduction, 0.2)[0]["w"] * RECORDS  # as if every record were clipped
    assert not np.allclose(found[0]["w"], each_record, rtol=1e-2)


@pytest.mark.parametrize("padding", [np.nan, np.inf, 1e30])
@pytest.mark.parametrize("method", ["vmap", "bookkeeping"])
def test_unit_loss_ignores_padding(padding, method):
    sum_of = gradient(method=method)
    expected, spoilt = sum_of(PARAMS, units(), None), sum_of(PARAMS, units(padding), None)
    # The unit without records has padding alone, whose gradient may not be finite.
    assert_close((spoilt[0], spoilt[1].norms[:-1]), (expected[0], expected[1].norms[:-1]), 0)


def test_unit_loss_without_records():
    _, info = gradient()(PARAMS, units(), None)
    assert info.norms[-1] == 0
    assert info.losses[-1] == 0
    assert info.num_nonfinite == 0


def test_unit_loss_nonfinite_record():
    (x, labels), mask = units().records, np.arange(UNITS) != 1
    x = x.copy()
    x[1, 2] = np.nan
    summed, info = gradient()(PARAMS, UnitRecords((x, labels), MASK), None)
    assert info.num_nonfinite == 1
    assert_close(summed, gradient()(PARAMS, units(), mask)[0], 0)


def linear_loss(params, record):
    return jnp.vdot(params, record)


@pytest.mark.slow
def test_unit_loss_sensitivity():
    rng = np.random.default_rng(1)
    records = 10.0 ** rng.uniform(-6, 4, (200, UNITS, RECORDS, 1)) * rng.normal(
        loc=0.5, size=(200, UNITS, RECORDS, WIDTH)
    )
    masks = rng.random((200, UNITS, RECORDS)) < 0.7

    def moves(compute, masks):
        """Norm of the difference that the first unit makes, ``(200,)``."""
        sum_of = fast_jit(jax.vmap(compute))
        without = masks & (np.arange(UNITS) > 0)[:, None]
        difference = sum_of(np.float32(records), masks) - sum_of(np.float32(records), without)
        return np.linalg.norm(difference, axis=1)

    def by_unit(reduction):
        compute = clipped_grad(unit_loss(linear_loss, reduction=reduction), 1.0)
        return lambda records, mask: compute(jnp.zeros(WIDTH), UnitRecords(records, mask), None)[0]

    def by_record(records, mask):
        compute = clipped_grad(linear_loss, 1.0)
        return compute(jnp.zeros(WIDTH), records.reshape(-1, WIDTH), mask.reshape(-1))[0]

    for reduction in ("sum", "mean"):
        assert 0.99 < moves(by_unit(reduction), masks).max() <= 1
    assert moves(by_record, masks).max() > 1.5


def test_unit_loss_keys_of_records():
    def loss(params, record, key):
        return jnp.sum(params * record * jax.random.bernoulli(key, 0.5, (64,)))

    records, mask = jnp.ones((1, RECORDS, 64)), jnp.array([[True, True, False]])

    def mean_of_masks(mask):
        sum_of = clipped_grad(unit_loss(loss, reduction="sum"), 100.0)
        return np.rint(sum_of(jnp.zeros(64), UnitRecords(records, mask), None, key=KEY)[0])

    both, one = mean_of_masks(mask), mean_of_masks(mask.at[0, 1].set(False))
    assert set(np.unique(both)) == {0, 1, 2}  # one mask for both would give 0 and 2
    assert set(np.unique(both - one)) == {0, 1}


def test_unit_loss_dropout_of_modules():
    class Dropped(nnx.Module):
        def __init__(self):
            self.w = nnx.Param(jnp.zeros(64))
            self.dropout = nnx.Dropout(0.5, rngs=nnx.Rngs(0))

    def loss(model, record, key):
        del key
        return jnp.sum(model.dropout(model.w * record))

    unit = UnitRecords(jnp.ones((1, 2, 64)), jnp.ones((1, 2), bool))
    sum_of = clipped_grad(unit_loss(loss, reduction="sum"), 1e3)
    (masks,) = jax.tree.leaves(sum_of(Dropped(), unit, None, key=KEY)[0])
    assert set(np.unique(np.rint(masks))) == {0, 2, 4}


def test_unit_loss_refuses():
    with pytest.raises(ValueError, match="example must be a UnitRecords"):
        clipped_grad(unit_loss(linear_loss), 1.0)(jnp.zeros(2), jnp.ones((3, 2, 2)), None)
    with pytest.raises(ValueError, match="reduction must be"):
        unit_loss(linear_loss, reduction="max")


def flip(key, example):
    x, label = example
    return jnp.where(jax.random.bernoulli(key), x, -x), label


@pytest.mark.slow
def test_augmented_loss_clips_the_mean():
    batch = jax.tree.map(lambda leaf: leaf[:, 0], units().records)
    always = augmented_loss(loss, lambda key, example: example, 4)
    expected = fast_jit(clipped_grad(loss, 0.2))(PARAMS, batch, None)
    assert_close(fast_jit(clipped_grad(always, 0.2))(PARAMS, batch, None, key=KEY), expected, 1e-6)

    def views(key):  # as `augmented_loss` documents: the first of two keys, for each slot's key
        return jax.random.split(jax.random.split(key)[0], 4)

    keys = [views(jax.random.fold_in(KEY, slot)) for slot in range(UNITS)]
    value_and_grad, found = jax.value_and_grad(loss), []
    for slot in range(UNITS):
        example = jax.tree.map(lambda leaf, i=slot: leaf[i], batch)
        each = [value_and_grad(PARAMS, flip(key, example)) for key in keys[slot]]
        found.append(jax.tree.map(lambda *leaves: sum(leaves) / 4, *each))
    sum_of = fast_jit(clipped_grad(augmented_loss(loss, flip, 4), 0.2))
    assert_matches_hand(
        sum_of(PARAMS, batch, None, key=KEY), sum_of_clipped(found, 0.2, PARAMS), 1e-4
    )


def test_augmented_loss_keys():
    def loss(params, view, key):
        return jnp.sum(params * (view == jax.random.key_data(key)[0]))

    views = augmented_loss(loss, lambda key, _: jax.random.key_data(key)[0], 3, loss_takes_key=True)
    summed, _ = clipped_grad(views, 100.0)(jnp.zeros(1), jnp.zeros((50, 1)), None, key=KEY)
    assert summed.item() == 0  # 150 words equal by chance: probability 4e-8


def test_unit_loss_routes():
    batch = jax.tree.map(lambda leaf: leaf[:, 0], units().records)
    for found in (
        explain(unit_loss(loss), PARAMS, units()),
        explain(augmented_loss(loss, flip, 4), PARAMS, batch, key=KEY),
    ):
        assert {leaf.route.name for leaf in found.leaves} <= {"ghost", "instantiate"}


@pytest.mark.slow
def test_train_on_users():
    changes = {"l2_clip": 0.5, "num_steps": 3, "adjacency": "zero_out", "unit": "one user"}
    mechanism = gaussian_mechanism(PoissonSampling(UNITS, 0.5), **changes)

    def run(data, loss_fn):
        return train(
            KEY, loss_fn, PARAMS, data, optax.sgd(0.5), mechanism=mechanism, progress=False
        )

    one_record = UnitRecords(jax.tree.map(lambda x: x[:, :1], units().records), MASK[:, :1] | True)
    plain = jax.tree.map(lambda x: x[:, 0], units().records)
    assert_close(run(one_record, unit_loss(loss)).params, run(plain, loss).params, 1e-6)
    result = run(units(np.nan), unit_loss(loss))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    assert "one user" in str(result.certificate(1e-3))


IDS = np.array(["u", "v", "u", "w", "u", "w", "u"])


def test_group_by_unit():
    found = group_by_unit(KEY, {"x": np.arange(7), "y": np.ones((7, 2))}, IDS, max_records=4)
    assert found.records["x"].shape == (3, 4)
    assert found.records["y"].shape == (3, 4, 2)
    of_unit = [set(row[kept]) for row, kept in zip(found.records["x"], found.mask, strict=True)]
    assert of_unit == [{0, 2, 4, 6}, {1}, {3, 5}]


SIZES = (12, 1, 3, 7, 30)  # records of each unit, of which at most five are kept
IDENTIFIERS = {
    "consecutive": np.arange(5),
    "equal modulo 2^32": 7 + 2**32 * np.arange(5),
    "64-bit extremes": np.array([-(2**63), 2**63 - 1, -1, 0, 1]),
    "unsigned": np.array([2**64 - 1, 2**63, 2**63 - 1, 0, 1], np.uint64),
    "strings": np.array(["ß", "", "u10", "u1", "\U0001f600"]),
    "floats": np.array([0.1, -2.5, 1e300, np.inf, 3.0]),
    "beyond 64 bits": [2**70, -1, 2**63, 1, 0],
}


def users_of(names, max_records=5, drop=(), group=group_by_unit):
    """The records of each unit by its name, with ``drop`` left out, in a fixed random order."""
    unit = np.random.default_rng(5).permutation(np.repeat(np.arange(len(SIZES)), SIZES))
    left = np.setdiff1d(np.arange(len(unit)), drop)
    ids = names[unit[left]] if isinstance(names, np.ndarray) else [names[u] for u in unit[left]]
    found = group(KEY, left, ids, max_records=max_records)
    kept = {
        unit[row[mask][0]]: tuple(row[mask])
        for row, mask in zip(found.records, found.mask, strict=True)
    }
    return kept, np.flatnonzero(unit == 0)


def changed_by_the_first_unit(names, group=group_by_unit):
    """The other units whose records change if one record of the first, or all, are left out."""
    kept, own = users_of(names, group=group)
    changed = set()
    for drop in (*own, own):
        others, _ = users_of(names, drop=drop, group=group)
        changed |= {unit for unit in range(1, len(SIZES)) if others[unit] != kept[unit]}
    return changed


def by_one_permutation(key, records, unit_ids, *, max_records):
    """As `group_by_unit`, but the records of all units are permuted together."""
    order = np.asarray(jax.random.permutation(key, len(records)))
    units, unit = np.unique(np.asarray(unit_ids)[order], return_inverse=True)
    found = [order[unit == number][:max_records] for number in range(len(units))]
    rows = [np.pad(records[row], (0, max_records - len(row))) for row in found]
    masks = [np.arange(max_records) < len(row) for row in found]
    return UnitRecords(np.stack(rows), np.stack(masks))


@pytest.mark.slow
@pytest.mark.parametrize("names", IDENTIFIERS.values(), ids=IDENTIFIERS)
def test_group_by_unit_independent_of_other_units(names):
    kept, _ = users_of(names)
    assert [len(kept[unit]) for unit in range(len(SIZES))] == [min(size, 5) for size in SIZES]
    assert not changed_by_the_first_unit(names)


def test_power_one_permutation_of_all_records():
    assert changed_by_the_first_unit(np.arange(5), by_one_permutation)


def test_group_by_unit_dtypes():
    """A file's column is read as floats, or as strings, if the records of one unit need it."""
    kept, _ = users_of(np.arange(5))
    for names in (np.arange(5, dtype=np.uint8), np.arange(5.0), np.array(list("01234"))):
        assert users_of(names)[0] == kept
    assert users_of(list(range(5)))[0] == kept


def moves_of_the_sum(group):
    """How far the first unit's records move the sum of clipped gradients of units, bound 1."""
    x = np.random.default_rng(6).normal(size=(sum(SIZES), WIDTH)).astype(np.float32)
    x[:, 0] += 2

    def sum_without(drop):
        left = np.setdiff1d(np.arange(len(x)), drop)
        unit = np.random.default_rng(5).permutation(np.repeat(np.arange(len(SIZES)), SIZES))
        found = group(KEY, left, unit[left], max_records=2)
        compute = clipped_grad(unit_loss(linear_loss), 1.0, max_batch_size=len(SIZES))
        batch = UnitRecords(x[found.records], found.mask)
        return compute(jnp.zeros(WIDTH), batch, None)[0]

    own = users_of(np.arange(5))[1]
    whole = sum_without(())
    of_records = [np.linalg.norm(whole - sum_without(record)) for record in own]
    return max(of_records), np.linalg.norm(whole - sum_without(own))


@pytest.mark.slow
def test_group_by_unit_sensitivity():
    of_a_record, of_the_unit = moves_of_the_sum(group_by_unit)
    assert 0.99 < of_the_unit <= 1  # a contribution is left out
    assert 0.1 < of_a_record <= 2  # a contribution is replaced
    assert moves_of_the_sum(by_one_permutation)[1] > 1.1


def uniform_and_independent(keys):
    """Whether records and pairs of a unit are kept with equal rates, by six standard errors."""
    ids = np.array(list("uvuwuwuww"))
    of_u, of_w = np.flatnonzero(ids == "u"), np.flatnonzero(ids == "w")
    found = [group_by_unit(key, np.arange(9), ids, max_records=1).records[:, 0] for key in keys]
    u, _, w = np.transpose(found)
    pairs = [
        frozenset(group_by_unit(key, np.arange(9), ids, max_records=2).records[0]) for key in keys
    ]
    events = [(u == i, 1 / 4) for i in of_u] + [(w == j, 1 / 4) for j in of_w]
    events += [((u == i) & (w == j), 1 / 16) for i in of_u for j in of_w]
    of_four = map(frozenset, itertools.combinations(of_u, 2))
    events += [(np.array([pair == kept for kept in pairs]), 1 / 6) for pair in of_four]
    return all(
        abs(np.mean(event) - rate) < 6 * np.sqrt(rate * (1 - rate) / len(keys))
        for event, rate in events
    )


@pytest.mark.slow
def test_group_by_unit_uniform(monkeypatch):
    keys = jax.random.split(KEY, 200)
    assert uniform_and_independent(keys)  # false alarms below 1e-6 for each of 30 rates

    with monkeypatch.context() as broken:  # the first record of each unit
        broken.setattr(jax.random, "fold_in", lambda key, position: key)
        assert not uniform_and_independent(keys)

    def without_identifier(data, **options):
        return hashlib.blake2b(b"", **options)

    monkeypatch.setattr(user_level, "hashlib", SimpleNamespace(blake2b=without_identifier))
    assert not uniform_and_independent(keys)  # one key for all units


TYPES = r"^unit_ids must be integers, .* \(NaN, None\), got {}$"
REFUSED = [
    *((np.ones(2), ids, 1, TYPES.format(got)) for ids, got in [
        ([1.0, np.nan], "float with NaN"),
        (np.array([1, np.nan], np.float32), "float32 with NaN"),
        ([None, None], "NoneType"),
        (["a", None], "NoneType, str"),
        (["a", np.nan], "float, str"),
        (np.array(["a", 1], object), "int, str"),
        ([1, 2.5], "float, int"),
        (np.array(["2026-01-01", "NaT"], "datetime64[ns]"), "datetime64"),
        ([[1], [1, 2]], "list"),
    ]),
    (np.ones(2), np.ma.array([1, 2], mask=[0, 1]), 1, "unit_ids must be an array without a mask"),
    (np.ones(3), [1, 2], 1, r"unit_ids must be of shape \(3,\)"),
    (np.ones(0), [], 1, "records must be at least one record"),
    (np.ones(2), [1, 2], 0, "max_records must be"),
]  # fmt: skip


@pytest.mark.parametrize(("records", "ids", "max_records", "message"), REFUSED, ids=str)
def test_group_by_unit_refuses(records, ids, max_records, message):
    with pytest.raises(ValueError, match=message):
        group_by_unit(KEY, records, ids, max_records=max_records)
