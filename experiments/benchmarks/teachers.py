"""Training and votes of 250 PATE teachers, compared with a Python loop over the teachers.

Every teacher has 240 images of MNIST's size and takes the same steps on batches of 32 in all cases.
All times include compilation: once for all teachers, but for the loop over calls of a function that
trains one teacher and has its compiled step inside. That one is timed for some teachers, and its
time is scaled up to all.
"""

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax import pate
from dpjax._typing import PRNGKey, PyTree
from experiments.benchmarks.models import MODELS, Mlp, Model
from experiments.benchmarks.results import Group, Groups, values_over
from experiments.benchmarks.timing import Case, Effort, blocking

TEACHERS, SHARD_SIZE, BATCH, QUERIES = 250, 240, 32, 640
_COMPILED = 10  # teachers whose programs are compiled one by one
COMPILING_LOOP, STEP_LOOP, SCAN_LOOP, PREDICTION_LOOP = (
    f"loop, compiled for each teacher (timed for {_COMPILED})",
    "loop, a call for each step",
    "loop, a call for each teacher",
    "loop, a call for each teacher's labels",
)
DPJAX = "dpjax, one call for all teachers"
_STEPS_PER_EPOCH = SHARD_SIZE // BATCH
_OPTIMIZER = optax.adam(1e-3)
_EFFORT = Effort(seconds=60.0, repetitions=5, slow=40.0)


class FlaxCNN(nn.Module):
    """Two convolutions with pooling as flax has them, 29,994 parameters; logits ``(batch, 10)``."""

    @nn.compact
    def __call__(self, images: jax.Array) -> jax.Array:
        """Returns the logits."""
        x = images
        for features in (16, 32):
            x = nn.Conv(features, (5, 5), padding="VALID")(x)
            x = nn.max_pool(nn.relu(x), (2, 2), (2, 2))
        return nn.Dense(10)(nn.relu(nn.Dense(32)(x.reshape(len(x), -1))))


_IMAGES = MODELS["mlp"].data
# Networks and numbers of epochs.
_MODELS = (
    (Model("softmax", "softmax regression", Mlp(()), _IMAGES), 60),
    (Model("mlp", "MLP 784-64-10", Mlp((64,)), _IMAGES), 60),
    (MODELS["cnn"], 4),
    (Model("flax_cnn", "CNN of flax layers", FlaxCNN(), _IMAGES), 2),
)


def teacher_groups(num_teachers: int = TEACHERS) -> Groups:
    """Yields the groups of training and of predictions for each network."""
    for model, epochs in _MODELS:
        title = f"{num_teachers} teachers, {model.title}"
        training = functools.partial(training_group, title, model, num_teachers, epochs)
        yield f"{title}, training", training
        yield f"{title}, votes", functools.partial(votes_group, title, model, num_teachers)


def training_group(title: str, model: Model, num_teachers: int, epochs: int) -> Group:
    """Returns the training of all teachers by Python loops and by dpjax."""
    x, y = model.data(num_teachers * SHARD_SIZE)
    partition = pate.Partition.draw(jax.random.key(0), len(y), num_teachers=num_teachers)
    shards = partition.shards((x, y))
    loss = functools.partial(_mean_loss, model)

    def by_dpjax() -> Any:
        return pate.train_teachers(
            jax.random.key(0),
            loss,
            functools.partial(_initialize, model),
            shards,
            _OPTIMIZER,
            num_steps=epochs * _STEPS_PER_EPOCH,
            batch_size=BATCH,
            progress=False,
        )

    some = min(_COMPILED, num_teachers)

    def compiling() -> float:
        run = functools.partial(loop_of_functions, model, [leaf[:some] for leaf in shards], epochs)
        return blocking(run)() * num_teachers / some

    runs: dict[str, Callable[[], Any]] = {
        STEP_LOOP: functools.partial(loop_of_steps, model, shards, epochs),
        SCAN_LOOP: functools.partial(loop_of_programs, model, shards, epochs),
        DPJAX: by_dpjax,
    }
    cases = [Case(name, blocking(run)) for name, run in runs.items()]
    cases.append(Case(COMPILING_LOOP, compiling))
    return Group("training", f"{title}, training", cases, values_over(STEP_LOOP), _EFFORT)


def votes_group(title: str, model: Model, num_teachers: int) -> Group:
    """Returns the labels of all teachers on the queries by a Python loop and by dpjax."""
    keys = jax.random.split(jax.random.key(0), num_teachers)
    teachers = jax.device_get(jax.vmap(functools.partial(_initialize, model))(keys))
    queries = model.data(QUERIES)[0]
    apply = functools.partial(_logits, model)

    def loop() -> np.ndarray:
        predict = jax.jit(lambda params, x: apply(params, x).argmax(axis=-1))
        labels = [predict(_entry(teachers, number), queries) for number in range(num_teachers)]
        return np.stack(labels)

    def by_dpjax() -> np.ndarray:
        return pate.predict_labels(apply, teachers, queries, progress=False)

    cases = [Case(PREDICTION_LOOP, blocking(loop)), Case(DPJAX, blocking(by_dpjax))]
    return Group("votes", f"{title}, votes", cases, values_over(PREDICTION_LOOP), _EFFORT)


def loop_of_functions(model: Model, shards: PyTree, epochs: int) -> list[Any]:
    """Calls a function that trains one teacher, and compiles its step, for each teacher."""
    size = len(shards[1])
    each = [jax.tree.map(lambda leaf, n=n: leaf[n : n + 1], shards) for n in range(size)]
    return [loop_of_steps(model, one, epochs)[0] for one in each]


def loop_of_steps(model: Model, shards: PyTree, epochs: int) -> list[Any]:
    """Trains one teacher after another, with one call of a compiled step for each batch."""
    init, init_optimizer, step = _programs(model)
    trained = []
    for number, (x, y) in enumerate(zip(*shards, strict=True)):
        params = init(jax.random.key(number))
        state = init_optimizer(params)
        for batch in _batches(number, epochs):
            params, state = step(params, state, (x[batch], y[batch]))
        trained.append(jax.device_get(params))
    return trained


def loop_of_programs(model: Model, shards: PyTree, epochs: int) -> list[Any]:
    """Trains one teacher after another, with one call of a compiled training for each."""
    init, init_optimizer, step = _programs(model)

    @jax.jit
    def train(key: PRNGKey, shard: PyTree, batches: jax.Array) -> Any:
        def body(carry: PyTree, batch: jax.Array) -> tuple[Any, None]:
            return step(*carry, jax.tree.map(lambda leaf: leaf[batch], shard)), None

        params = init(key)
        return jax.lax.scan(body, (params, init_optimizer(params)), batches)[0][0]

    return [
        jax.device_get(
            train(jax.random.key(number), _entry(shards, number), _batches(number, epochs))
        )
        for number in range(len(shards[1]))
    ]


def _programs(model: Model) -> tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]:
    """Returns compiled functions: initial parameters, initial optimiser state, and a step."""

    @jax.jit
    def step(params: PyTree, state: PyTree, batch: PyTree) -> tuple[PyTree, PyTree]:
        updates, state = _OPTIMIZER.update(
            jax.grad(functools.partial(_mean_loss, model))(params, batch), state, params
        )
        return optax.apply_updates(params, updates), state

    return jax.jit(functools.partial(_initialize, model)), jax.jit(_OPTIMIZER.init), step


def _batches(seed: int, epochs: int) -> np.ndarray:
    """Returns the records of each step, ``(num_steps, BATCH)``, shuffled in every epoch."""
    generator = np.random.default_rng(seed)
    orders = [generator.permutation(SHARD_SIZE) for _ in range(epochs)]
    used = np.stack(orders)[:, : _STEPS_PER_EPOCH * BATCH]
    return used.reshape(-1, BATCH)


def _logits(model: Model, params: PyTree, images: jax.Array) -> jax.Array:
    return jnp.asarray(model.network.apply({"params": params}, images))


def _mean_loss(model: Model, params: PyTree, batch: PyTree) -> jax.Array:
    logits = _logits(model, params, batch[0])
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch[1]).mean()


def _initialize(model: Model, key: PRNGKey) -> PyTree:
    return model.network.init(key, jnp.zeros((1, 28, 28, 1)))["params"]


def _entry(tree: PyTree, number: int) -> Any:
    return jax.tree.map(lambda leaf: leaf[number], tree)
