"""Teachers trained in blocks are those trained one by one, on any blocks and devices."""

import os
import threading

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from flax import nnx

from dpjax.pate import NO_ANSWER, predict_labels, teachers, train_teachers

TEACHERS, SIZE, BATCH, STEPS = 5, 10, 4, 6
ONE = jax.devices()[:1]
KEY = jax.random.key(3)
OPTIMIZER = optax.sgd(0.1, momentum=0.9)


class Convolutional(nn.Module):
    """Convolution, pooling, and a dense layer."""

    @nn.compact
    def __call__(self, images):
        x = nn.max_pool(nn.relu(nn.Conv(4, (3, 3))(images)), (2, 2), (2, 2))
        return nn.Dense(3)(x.reshape(len(x), -1))


MODEL = Convolutional()
_IMAGES = jax.random.normal(jax.random.key(0), (TEACHERS, SIZE, 6, 6, 1))
SHARDS = (_IMAGES, jnp.arange(TEACHERS * SIZE).reshape(TEACHERS, SIZE) % 3)


def apply_fn(params, images):
    return MODEL.apply({"params": params}, images)


def init_fn(key):
    return MODEL.init(key, jnp.zeros((1, 6, 6, 1)))["params"]


def loss_fn(params, batch):
    return optax.softmax_cross_entropy_with_integer_labels(apply_fn(params, batch[0]), batch[1])


def train(key=KEY, shards=SHARDS, loss_fn=loss_fn, init_fn=init_fn, **settings):
    common = {"num_steps": STEPS, "batch_size": BATCH, "devices": ONE, "progress": False}
    return train_teachers(key, loss_fn, init_fn, shards, OPTIMIZER, **{**common, **settings})


def one_by_one(loss=loss_fn, *, own_key=True, takes_key=False):
    """The same steps in a Python loop over teachers, without a block."""

    @jax.jit
    def step(params, state, batch, key):
        def mean_loss(params):
            return jnp.mean(loss(params, batch, *[key] * takes_key))

        updates, state = OPTIMIZER.update(jax.grad(mean_loss)(params), state, params)
        return optax.apply_updates(params, updates), state

    trained = []
    for number in range(TEACHERS):
        init_key, order_key, loss_key = (
            jax.random.fold_in(jax.random.fold_in(KEY, number * own_key), use) for use in range(3)
        )
        params = init_fn(init_key)
        state, x, y = OPTIMIZER.init(params), SHARDS[0][number], SHARDS[1][number]
        for taken in range(STEPS):
            epoch, place = divmod(taken, SIZE // BATCH)
            order = jax.random.permutation(jax.random.fold_in(order_key, epoch), SIZE)
            chosen = order[place * BATCH : (place + 1) * BATCH]
            batch = (x[chosen], y[chosen])
            params, state = step(params, state, batch, jax.random.fold_in(loss_key, taken))
        trained.append(params)
    return jax.tree.map(lambda *leaves: np.stack(leaves), *trained)


def distance(one, other):
    differences = jax.tree.map(lambda a, b: np.max(np.abs(a - b)), one, other)
    return max(jax.tree.leaves(differences))


@pytest.fixture(scope="module")
def expected():
    return one_by_one()


@pytest.fixture(scope="module")
def trained():
    return train()


def test_train_teachers_matches_a_loop_over_teachers(trained, expected):
    assert distance(trained, expected) < 1e-4
    # power: one key for all teachers
    assert distance(trained, one_by_one(own_key=False)) > 0.01


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"block_size": 5}, {"block_size": 3}, {"devices": None}])
def test_train_teachers_depends_neither_on_blocks_nor_on_devices(settings, trained):
    assert len(jax.devices()) == 8
    assert distance(train(**settings), trained) < 1e-4


@pytest.mark.slow
def test_train_teachers_lets_a_record_decide_one_teacher(trained):
    """Replaced by NaN, so that any dependence shows."""
    images = SHARDS[0].at[2, 7].set(jnp.nan)
    other = train(shards=(images, SHARDS[1]))
    for one, two in zip(*map(jax.tree.leaves, (trained, other)), strict=True):
        same = [np.array_equal(one[t], two[t]) for t in range(TEACHERS)]
        assert same == [True, True, False, True, True]
    labels = predict_labels(apply_fn, other, images[0], progress=False)
    assert np.all(labels[2] == NO_ANSWER)
    assert np.all(np.delete(labels, 2, axis=0) != NO_ANSWER)


@pytest.mark.slow
def test_train_teachers_traces_once_for_all_blocks():
    traced = []

    def counted(params, batch):
        traced.append(1)
        return loss_fn(params, batch)

    counts = []
    for shards in (jax.tree.map(lambda leaf: leaf[:2], SHARDS), SHARDS):
        traced.clear()
        train(shards=shards, loss_fn=counted, block_size=2)
        counts.append(len(traced))
    assert counts[0] == counts[1]


@pytest.mark.slow
def test_train_teachers_gives_losses_a_key_of_each_teacher_and_step():
    def noisy(params, batch, key):
        return loss_fn(params, (batch[0] + jax.random.normal(key, batch[0].shape), batch[1]))

    found = train(loss_fn=noisy, loss_takes_key=True)
    assert distance(found, one_by_one(noisy, takes_key=True)) < 1e-4
    assert distance(found, one_by_one()) > 0.01


@pytest.mark.slow
def test_train_teachers_takes_nnx_plain_and_per_example_losses():
    class Linear(nnx.Module):
        def __init__(self, rngs):
            self.layer = nnx.Linear(36, 3, rngs=rngs)

    graph = nnx.graphdef(Linear(nnx.Rngs(0)))

    def nnx_loss(state, batch):
        logits = nnx.merge(graph, state).layer(batch[0].reshape(-1, 36))
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1])

    def plain_loss(params, batch):
        logits = batch[0].reshape(-1, 36) @ params[0] + params[1]
        return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()

    def nnx_init(key):
        return nnx.state(Linear(nnx.Rngs(key)), nnx.Param)

    found = train(loss_fn=nnx_loss, init_fn=nnx_init)

    def plain_init(key):
        layer = nnx_init(key)["layer"]
        return layer["kernel"].get_value(), layer["bias"].get_value()

    plain = train(loss_fn=plain_loss, init_fn=plain_init)
    assert distance(found["layer"]["kernel"].get_value(), plain[0]) < 1e-5
    one = jax.vmap(lambda p, e: plain_loss(p, jax.tree.map(lambda leaf: leaf[None], e)), (None, 0))
    assert distance(train(loss_fn=one, init_fn=plain_init), plain) < 1e-5


class Interrupted(Exception):
    """Stands for a crash."""


@pytest.mark.slow
def test_train_teachers_resumes_after_the_last_block(tmp_path, monkeypatch, trained):
    compiled, trained_blocks = teachers.compile_chunk, []

    def interrupting(*arguments):
        run = compiled(*arguments)

        def counted(state, data, count):
            trained_blocks.append(len(state.key))
            if np.array_equal(data[0][0], SHARDS[0][2]) and not resumed:
                raise Interrupted
            return run(state, data, count)

        return counted

    monkeypatch.setattr(teachers, "compile_chunk", interrupting)
    monkeypatch.setattr(teachers, "_SECONDS_BETWEEN_SAVES", 0.0)
    resumed = False
    with pytest.raises(Interrupted):
        train(block_size=2, checkpoint_dir=tmp_path)
    resumed = True
    trained_blocks.clear()
    found = train(block_size=3, checkpoint_dir=tmp_path)  # the three that are left
    assert trained_blocks == [3]
    assert distance(found, trained) < 1e-4
    trained_blocks.clear()
    again = train(checkpoint_dir=tmp_path)
    assert trained_blocks == []
    assert distance(again, found) == 0.0


@pytest.mark.slow
def test_train_teachers_refuses_checkpoints_of_other_runs(tmp_path):
    settings = {"loss_fn": lambda w, batch: (batch[0].mean((1, 2, 3)) - w) ** 2}
    settings |= {"init_fn": lambda key: jnp.zeros(()), "checkpoint_dir": tmp_path}
    train(**settings)
    others = {
        "key": {"key": jax.random.key(4)},
        "data": {"shards": (SHARDS[0] + 1, SHARDS[1])},
        "program": {"batch_size": 3},
        "number": {"num_steps": STEPS - 1},
    }
    differences = {
        "program": "program: batch_size is .* there and 3 here",
        "number": f"number: num_steps is {STEPS} there and {STEPS - 1} here",
    }
    for name, changes in others.items():
        message = f"holds a run with another {name}: its teachers are not those asked for.*"
        with pytest.raises(ValueError, match=message + differences.get(name, name)):
            train(**{**settings, **changes})
    with pytest.raises(ValueError, match="another program"):
        train(**{**settings, "init_fn": lambda key: jnp.ones(())})


@pytest.mark.slow
def test_predict_labels_are_those_of_each_teacher(trained):
    queries = jax.random.normal(jax.random.key(9), (23, 6, 6, 1))
    expected = [
        apply_fn(jax.tree.map(lambda leaf, t=t: leaf[t], trained), queries).argmax(axis=1)
        for t in range(TEACHERS)
    ]
    for batch_size in (7, 1_000):
        found = predict_labels(apply_fn, trained, queries, batch_size=batch_size, progress=False)
        np.testing.assert_array_equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"shards": (SHARDS[0], SHARDS[1][:, :3])}, "shards must be with axes"),
        ({"shards": jnp.zeros((0, 4))}, "shards must be with axes .* got .*0, 4"),
        ({"batch_size": 11}, "batch_size must be at most 10, a shard, got 11"),
        (
            {"loss_fn": lambda params, batch: apply_fn(params, batch[0])},
            r"loss_fn's result must be a float scalar, or of shape \(4,\), .* got 'float32\[4",
        ),
        (
            {"init_fn": lambda key: {"n": jnp.zeros(2, int)}},
            r"init_fn's result\['n'\] must be a fl",
        ),
    ],
)
def test_train_teachers_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        train(**changes)


@pytest.mark.parametrize(
    ("function", "num_queries", "message"),
    [
        (lambda params, x: x.sum(), 2, "apply_fn's result must be logits of shape"),
        (apply_fn, 0, "inputs must be at least one query"),
    ],
)
def test_predict_labels_refuses(function, num_queries, message, trained):
    with pytest.raises(ValueError, match=message):
        predict_labels(function, trained, SHARDS[0][0][:num_queries], progress=False)


@pytest.mark.slow
def test_train_teachers_uses_all_cores_of_a_cpu(monkeypatch):
    """As many blocks at the same time as there are cores, with the settings of the caller."""
    meeting = threading.Barrier(min(os.cpu_count(), TEACHERS), timeout=30)  # none passes alone
    compiled, dtypes = teachers.compile_chunk, []

    def meeting_steps(*arguments):
        run = compiled(*arguments)

        def met(state, data, count):
            if len(dtypes) < meeting.parties:
                dtypes.append(jnp.zeros(1, "float64").dtype)
                meeting.wait()
            return run(state, data, count)

        return met

    monkeypatch.setattr(teachers, "compile_chunk", meeting_steps)
    with jax.enable_x64(True):
        train(loss_fn=lambda w, batch: w**2 + 0 * batch[1], init_fn=lambda key: jnp.zeros(()))
    assert set(dtypes) == {np.dtype("float64")}


@pytest.mark.slow
def test_train_teachers_ends_at_a_failing_block(monkeypatch):
    compiled, calls = teachers.compile_chunk, []

    def failing(*arguments):
        def run(state, data, count):
            calls.append(1)
            raise Interrupted

        compiled(*arguments)
        return run

    monkeypatch.setattr(teachers, "compile_chunk", failing)
    shards = jax.tree.map(lambda leaf: np.repeat(leaf, 20, axis=0), SHARDS)
    with pytest.raises(Interrupted):
        train(shards=shards)
    assert len(calls) < 50  # of 100


@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_predict_labels_of_other_types(dtype):
    queries = np.array([[3, 1], [1, 2]], dtype)
    labels = predict_labels(lambda w, x: x * w, jnp.ones((3, 2)), queries, progress=False)
    assert labels.tolist() == [[0, 1]] * 3


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_train_teachers_on_shards_of_other_types(dtype, trained):
    def loss(params, batch):
        return loss_fn(params, (batch[0], batch[1].astype(jnp.int32)))

    shards = (SHARDS[0], np.asarray(SHARDS[1], dtype))
    assert distance(train(shards=shards, loss_fn=loss), trained) == 0
