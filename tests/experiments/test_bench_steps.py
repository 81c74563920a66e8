import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from experiments.bench.steps import Limits, Skipped, default_limits, step_cases
from experiments.bench.subjects import SUBJECTS, Mlp, Transformer, batch_of
from experiments.bench.timing import Case
from experiments.bench.torch_peer import FORMS_GRADIENTS, TORCH_WAYS
from experiments.bench.ways import L2_CLIP, NOISE_MULTIPLIER, NOISY, PLAIN, PRIVATE, jax_ways

LARGE = Limits(math.inf, math.inf)


@pytest.fixture(scope="module")
def small():
    (mlp,) = (subject for subject in SUBJECTS if subject.name == "mlp")
    return replace(mlp, network=Mlp((4,)))


@pytest.fixture(scope="module")
def cases(small):
    return list(step_cases(small, 4, LARGE, FakeWorker()))


@pytest.fixture
def keep(monkeypatch):
    """Leaves only the ways of these names: each takes a while to compile."""

    def only(*names):
        monkeypatch.setattr(
            "experiments.bench.steps.jax_ways",
            lambda loss, key: [way for way in jax_ways(loss, key) if way.name in names],
        )

    return only


def close(one, other):
    return all(
        jax.tree.leaves(jax.tree.map(lambda a, b: jnp.allclose(a, b, atol=1e-4), one, other))
    )


class FakeWorker:
    """Prepares everything but ghost clipping."""

    def prepare(self, way, subject, size):
        if way == "Opacus, ghost":
            raise RuntimeError("NotImplementedError: no such layer")
        return 7.0

    def step(self, way):
        return 0.5


@pytest.mark.parametrize("subject", SUBJECTS, ids=lambda subject: subject.name)
def test_the_networks_have_the_sizes_they_are_named_for(subject):
    sizes = {
        "mlp": 784 * 256 + 256 + 2570,
        "wide_mlp": 784 * 1024 + 1024 + 1024 * 1024 + 1024 + 10_250,
        "cnn": 26_010,
        "embedding": 160_000 + 16 * 16 + 16 + 34,
        "transformer": 128 * 10_000 * 2 + 10_000 + 5 * 256 + 2 * 12 * 128**2 + 2 * 9 * 128,
    }
    shapes = jax.eval_shape(subject.init)
    assert sum(leaf.size for leaf in jax.tree.leaves(shapes)) == sizes[subject.name]
    loss = jax.eval_shape(jax.vmap(subject.loss, (None, 0)), shapes, batch_of(subject, 3))
    assert loss.shape == (3,)


def test_the_transformer_sees_no_later_token():
    tokens = np.arange(8)[None]
    network = Transformer(width=8)
    params = jax.jit(network.init)(jax.random.key(0), tokens)
    logits = jax.jit(network.apply)
    changed = logits(params, np.where(tokens == 5, 99, tokens))
    same = np.isclose(changed, logits(params, tokens), atol=1e-6).all(axis=(0, 2))
    assert same.tolist() == [True] * 5 + [False] * 3


def test_texts_predict_their_next_token():
    inputs, labels = SUBJECTS[-1].data(2)
    assert inputs.shape == labels.shape == (2, 128)
    assert (inputs[:, 1:] == labels[:, :-1]).all()


def test_the_private_ways_compute_the_same_clipped_sum(small):
    params, batch = small.init(), batch_of(small, 6)
    ways = {way.name: way for way in jax_ways(small.loss, jax.random.key(0))}
    clipped = [name for name in ways if name.startswith(("dpjax", "jax-privacy"))]
    assert len(clipped) >= 3
    sums = jax.jit(lambda: {name: ways[name].gradient(params, batch) for name in clipped})()
    each = jax.jit(ways["optax.contrib"].gradient)(params, batch)
    norms = jnp.sqrt(sum(jnp.sum(g.reshape(6, -1) ** 2, 1) for g in jax.tree.leaves(each)))
    assert (norms > L2_CLIP).any()
    scale = jnp.minimum(1, L2_CLIP / norms)
    expected = jax.tree.map(lambda g: jnp.tensordot(scale, g, 1), each)
    assert all(close(found, expected) for found in sums.values())


def test_the_plain_way_is_the_mean_gradient(small):
    params, batch = small.init(), batch_of(small, 6)
    way = next(jax_ways(small.loss, jax.random.key(0)))
    each = jax.jit(jax.vmap(jax.grad(small.loss), (None, 0)))(params, batch)
    assert way.name == PLAIN
    found = jax.jit(way.gradient)(params, batch)
    assert close(found, jax.tree.map(lambda g: g.mean(axis=0), each))


def test_only_what_is_named_so_is_without_noise(small):
    def deviation(way):
        shape = (64, 4096) if way.name == "optax.contrib" else (4096,)  # it sums, and averages
        transform = way.transform
        updates, _ = transform.update(jnp.zeros(shape), transform.init(jnp.zeros(4096)))
        return updates.std() * (64 if way.name == "optax.contrib" else 1)

    ways = list(jax_ways(small.loss, jax.random.key(0)))
    found = jax.jit(lambda: {way.name: deviation(way) for way in ways})()
    quiet = {name for name, value in found.items() if value == 0}
    assert quiet == {PLAIN, "dpjax, clipping alone"}
    noisy = [float(found[name]) for name in found if name not in quiet]
    assert noisy == pytest.approx([NOISE_MULTIPLIER * L2_CLIP] * len(noisy), rel=0.08)


def test_every_case_runs_and_knows_its_memory(small, cases):
    assert [case.name for case in cases][:3] == [PLAIN, NOISY, PRIVATE]
    params = sum(leaf.nbytes for leaf in jax.tree.leaves(small.init())) / 2**20
    for case in cases[: -len(TORCH_WAYS)]:
        assert case.seconds() > 0
        assert case.peak_mib > params


def test_torchs_ways_come_last_and_say_why_one_cannot(cases):
    *_, plain, hooks, ew, ghost = cases
    assert (plain.name, hooks.name, ew.name, ghost.name) == TORCH_WAYS
    assert isinstance(plain, Case)
    assert (plain.seconds(), plain.peak_mib) == (0.5, 7.0)
    assert ghost == Skipped("Opacus, ghost", "NotImplementedError: no such layer")


def test_forming_gradients_costs_memory_that_is_counted(keep):
    keep("dpjax, vmap reference", "dpjax, clipping alone")
    subject = SUBJECTS[0]
    lean, forming = (case.peak_mib for case in step_cases(subject, 16, LARGE, None))
    per_example = 16 * sum(leaf.nbytes for leaf in jax.tree.leaves(subject.init())) / 2**20
    assert lean < per_example < forming


def test_gradients_over_the_limit_are_not_formed(small, keep):
    keep(PLAIN, "dpjax, vmap reference", "optax.contrib")
    plain, *cases = step_cases(small, 4, Limits(0.0, math.inf), FakeWorker())
    assert isinstance(plain, Case)
    skipped = {case.name for case in cases if isinstance(case, Skipped)}
    named = {"dpjax, vmap reference", "optax.contrib", *FORMS_GRADIENTS}
    assert skipped == named | {"Opacus, ghost"}  # ghost for another reason
    assert cases[0].reason == "its per-example gradients take 0.0 GiB, the limit is 0.0"


def test_a_step_over_the_limit_is_not_run(small, keep):
    keep(PLAIN)
    first, *others = step_cases(small, 4, Limits(math.inf, 0.0), FakeWorker())
    assert first == Skipped(PLAIN, "a step takes 0.0 GiB, the limit is 0.0")
    assert {case.reason for case in others} == {"the plain step is skipped too"}


def test_the_limit_of_memory_is_this_machines():
    gradients, memory = default_limits()
    assert 100 < 3 * gradients <= memory < 10**7
