import math
from dataclasses import replace

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.benchmarks.methods import (
    L2_CLIP,
    NOISE_MULTIPLIER,
    NOISY,
    PLAIN,
    PRIVATE,
    jax_methods,
)
from experiments.benchmarks.models import MODELS, Mlp, Transformer
from experiments.benchmarks.steps import Limits, default_limits, step_cases
from experiments.benchmarks.timing import Case
from experiments.benchmarks.torch_client import PER_EXAMPLE_METHODS, TORCH_METHODS

LARGE = Limits(math.inf, math.inf)


@pytest.fixture(scope="module")
def small():
    return replace(MODELS["mlp"], network=Mlp((4,)))


@pytest.fixture(scope="module")
def cases(small):
    return list(step_cases(small, 4, LARGE, FakeWorker()))


@pytest.fixture
def keep(monkeypatch):
    """Leaves only the methods of these names: each takes a while to compile."""

    def only(*names):
        monkeypatch.setattr(
            "experiments.benchmarks.steps.jax_methods",
            lambda loss, key: [m for m in jax_methods(loss, key) if m.name in names],
        )

    return only


class FakeWorker:
    """Prepares everything but ghost clipping."""

    def prepare(self, method, model, size):
        if method == "Opacus, ghost":
            raise RuntimeError("NotImplementedError: no such layer")
        return 7.0

    def step(self, method):
        return 0.5


@pytest.mark.parametrize("model", MODELS.values(), ids=lambda model: model.name)
def test_models_have_the_sizes_they_are_named_for(model):
    sizes = {
        "mlp": 784 * 256 + 256 + 2570,
        "wide_mlp": 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 10_250,
        "cnn": 26_010,
        "wide_resnet": 2_748_890,  # 2.7 million in Zagoruyko & Komodakis (2016), Table 3
        "vision": 12 * (12 * 192**2 + 13 * 192) + 49 * 192 + 64 * 192 + 2 * 192 + 1930,
        "embedding": 160_000 + 16 * 16 + 16 + 34,
        "transformer": 128 * 10_000 * 2 + 10_000 + 5 * 256 + 2 * 12 * 128**2 + 2 * 9 * 128,
        "stacked": 256 * 256 * 2 + 256 + 2 * 256 + 6 * (12 * 256**2 + 13 * 256),
        "remat": 256 * 256 * 2 + 256 + 2 * 256 + 6 * (12 * 256**2 + 13 * 256),
        "lora": 6 * 2 * 8 * (256 + 1024),
        "gru": 10_000 * 64 + 3 * 128 * (64 + 128) + 4 * 128 + 258,
    }
    shapes = jax.eval_shape(model.init)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == sizes[model.name]
    loss = jax.eval_shape(jax.vmap(model.loss, (None, 0)), shapes, model.batch(3))
    assert loss.shape == (3,)


def test_transformer_sees_no_later_token():
    tokens = np.arange(8)[None]
    network = Transformer(width=8)
    params = jax.jit(network.init)(jax.random.key(0), tokens)
    logits = jax.jit(network.apply)
    changed = logits(params, np.where(tokens == 5, 99, tokens))
    same = np.isclose(changed, logits(params, tokens), atol=1e-6).all(axis=(0, 2))
    assert same.tolist() == [True] * 5 + [False] * 3
    inputs, labels = MODELS["transformer"].data(2)
    assert (inputs[:, 1:] == labels[:, :-1]).all()


def test_jax_methods_compute_the_same_clipped_sum(small):
    params, batch = small.init(), small.batch(6)
    methods = {method.name: method for method in jax_methods(small.loss, jax.random.key(0))}
    clipped = [name for name in methods if name.startswith(("dpjax", "jax-privacy"))]
    assert len(clipped) >= 3
    sums = jax.jit(lambda: {name: methods[name].gradient(params, batch) for name in clipped})()
    each = jax.jit(methods["optax.contrib"].gradient)(params, batch)
    norms = jnp.sqrt(sum(jnp.sum(g.reshape(6, -1) ** 2, 1) for g in jax.tree.leaves(each)))
    assert (norms > L2_CLIP).any()
    scale = jnp.minimum(1, L2_CLIP / norms)
    expected = jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), each)
    for name in clipped:
        chex.assert_trees_all_close(sums[name], expected, atol=1e-4)


def test_plain_method_is_the_mean_gradient(small):
    params, batch = small.init(), small.batch(6)
    method = next(jax_methods(small.loss, jax.random.key(0)))
    each = jax.jit(jax.vmap(jax.grad(small.loss), (None, 0)))(params, batch)
    assert method.name == PLAIN
    found = jax.jit(method.gradient)(params, batch)
    chex.assert_trees_all_close(found, jax.tree.map(lambda g: g.mean(axis=0), each), atol=1e-4)


def test_jax_methods_add_the_noise(small):
    def deviation(method):
        shape = (64, 4096) if method.name == "optax.contrib" else (4096,)  # it sums, and averages
        transform = method.transform
        updates, _ = transform.update(jnp.zeros(shape), transform.init(jnp.zeros(4096)))
        return updates.std() * (64 if method.name == "optax.contrib" else 1)

    methods = list(jax_methods(small.loss, jax.random.key(0)))
    found = jax.jit(lambda: {m.name: deviation(m) for m in methods})()
    quiet = {name for name, value in found.items() if value == 0}
    assert quiet == {PLAIN, "dpjax, clipping alone"}
    noisy = [float(found[name]) for name in found if name not in quiet]
    assert noisy == pytest.approx([NOISE_MULTIPLIER * L2_CLIP] * len(noisy), rel=0.08)


def test_step_cases_run_and_measure_memory(small, cases):
    assert [case.name for case in cases][:3] == [PLAIN, NOISY, PRIVATE]
    params = sum(leaf.nbytes for leaf in jax.tree.leaves(small.init())) / 2**20
    for case in cases[: -len(TORCH_METHODS)]:
        assert case.seconds() > 0
        assert case.values["peak MiB"] > params


def test_step_cases_end_with_torch(cases):
    *_, plain, hooks, ew, ghost = cases
    assert (plain.name, hooks.name, ew.name, ghost.name) == TORCH_METHODS
    assert (plain.seconds(), plain.values) == (0.5, {"peak MiB": 7.0})
    assert ghost == Case("Opacus, ghost", None, note="NotImplementedError: no such layer")


def test_step_cases_count_per_example_gradients(keep):
    keep("dpjax, vmap reference", "dpjax, clipping alone")
    model = MODELS["mlp"]
    lean, forming = (case.values["peak MiB"] for case in step_cases(model, 16, LARGE, None))
    per_example = 16 * sum(leaf.nbytes for leaf in jax.tree.leaves(model.init())) / 2**20
    assert lean < per_example < forming


def test_step_cases_skip_what_exceeds_the_limits(small, keep):
    keep(PLAIN, "dpjax, vmap reference", "optax.contrib")
    plain, *cases = step_cases(small, 4, Limits(0.0, math.inf), FakeWorker())
    assert plain.seconds
    skipped = {case.name for case in cases if not case.seconds}
    named = {"dpjax, vmap reference", "optax.contrib", *PER_EXAMPLE_METHODS}
    assert skipped == named | {"Opacus, ghost"}  # ghost for another reason
    assert cases[0].note == "its per-example gradients take 0.0 GiB, the limit is 0.0"

    # Nor is a step over the limit run.
    keep(PLAIN)
    first, *others = step_cases(small, 4, Limits(math.inf, 0.0), FakeWorker())
    assert first == Case(PLAIN, None, note="a step takes 0.0 GiB, the limit is 0.0")
    assert {case.note for case in others} == {"the plain step is skipped too"}
    assert 100 < 3 * default_limits().gradients <= default_limits().memory < 10**7
