"""A private step on a mesh is that of one device: the same draw, the same noise, the same sum."""

import functools
import shutil

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import Crash, crash_at, gaussian_mechanism
from helpers.mesh_cases import (
    AUTO,
    DATA,
    OPTIMIZERS,
    PARAMS,
    PER_LAYER,
    SAMPLERS,
    SHARDINGS,
    assert_same,
    collectives,
    loss,
    mechanism,
    mesh,
    on_one_device,
    run,
)
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from dpjax._hashing import hash_records
from dpjax.gradients import clipping
from dpjax.sampling import PoissonSampling
from dpjax.training import MeshSharding, private_step, split_records, train
from dpjax.training.data import Arrays
from dpjax.transforms import add_gaussian_noise

NUM_PARAMETERS = sum(leaf.size for leaf in jax.tree.leaves(PARAMS))
SLOW = pytest.mark.slow
SOME = [pytest.param(n, marks=() if n in ("8", "8 explicit") else SLOW) for n in SHARDINGS]
OTHER_SAMPLERS = [pytest.param(name, marks=SLOW) for name in SAMPLERS if name != "poisson"]
NOISE_MESHES = [
    pytest.param(name, marks=() if name == "8" else SLOW)
    for name in SHARDINGS
    if name not in ("1", "2", "8 explicit")
]


def step_on(sharding, loss=loss, optimizer="sgd", **options):
    return private_step(
        loss, OPTIMIZERS[optimizer], mechanism=mechanism(), key=jax.random.key(3),
        sharding=sharding, **options,
    )  # fmt: skip


@pytest.mark.parametrize("name", SOME)
def test_private_step_on_a_mesh_is_that_of_one_device(name):
    found = run(SHARDINGS[name])
    assert_same(found, on_one_device())
    # Private values of single records stay on the devices of their rows.
    rows = NamedSharding(SHARDINGS[name].auto_mesh, SHARDINGS[name].rows)
    assert found[1].norms.sharding.is_equivalent_to(rows, 1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["2x4", *(pytest.param(name, marks=SLOW) for name in ("4", "fully sharded"))]
)
def test_private_step_on_a_mesh_with_split_records_is_that_of_one_device(name):
    assert_same(run(SHARDINGS[name], split=True), on_one_device())


@pytest.mark.parametrize("split", [pytest.param(False, marks=SLOW), True], ids=str)
@pytest.mark.parametrize("sampler", OTHER_SAMPLERS)
def test_samplers_draw_the_same_on_a_mesh(sampler, split):
    found = run(SHARDINGS["8"], split, sampler=sampler)
    assert_same(found, on_one_device(sampler=sampler))


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["whole data", "split"])
def test_private_step_on_a_mesh_with_bounds_for_each_layer(split):
    options = {"optimizer": "sgd", "l2_clip": PER_LAYER}
    found = run(SHARDINGS["2x4"], split, **options)
    assert_same(found, on_one_device("sgd", per_layer=True))
    assert {name: norm.shape for name, norm in found[1].norms.items()}.keys() == PER_LAYER.keys()


def no_gradient(params, example):
    return 0.0 * jnp.sum(params["out"])


@functools.cache
def noise_on(name):
    state, _ = run(name and SHARDINGS[name], optimizer="sgd", loss=no_gradient)
    return state.params


@pytest.mark.parametrize("name", NOISE_MESHES)
def test_noise_is_equal_bit_for_bit_on_every_mesh(name):
    """Sums of zeros have no rounding: what is left is the noise."""
    chex.assert_trees_all_equal(noise_on(name), noise_on(None))


def scaled_noise(multiplier):
    """The standard deviation of what a step adds to zeros, over that of the mechanism."""
    sharding = SHARDINGS["8"]
    described = mechanism(noise_multiplier=multiplier)
    step = private_step(
        lambda w, x: 0.0 * jnp.sum(w), optax.sgd(1.0), mechanism=described, key=jax.random.key(0),
        sharding=sharding,
    )  # fmt: skip
    state, _ = jax.jit(step.update)(step.init(jnp.zeros(20_000)), DATA)
    return float(state.params.std()) * described.sampling.expected_batch_size / multiplier


@pytest.mark.slow
def test_noise_is_added_once():
    """Twenty thousand draws: six standard errors are 3 %, a false alarm below 1e-8."""
    assert abs(scaled_noise(2.0) - 1) < 0.03


# --- bugs of other implementations, each caught by the comparisons above


def mean_over_shards(self, summed, specs):
    return jax.tree.map(lambda leaf: jax.lax.pmean(leaf, self.batch_axes), summed)


def noise_per_shard(self, summed, specs):
    noise = jax.tree.map(lambda x: x + jax.random.normal(jax.random.key(0), x.shape), summed)
    return jax.tree.map(lambda leaf: jax.lax.psum(leaf, self.batch_axes), noise)


def local_sum(self, summed, specs):
    return summed


@pytest.mark.slow
@pytest.mark.parametrize("bug", [mean_over_shards, noise_per_shard, local_sum])
def test_power_wrong_sums_over_devices(bug, monkeypatch):
    monkeypatch.setattr(MeshSharding, "sum_over_shards", bug)
    with pytest.raises(AssertionError):
        assert_same(run(SHARDINGS["8"]), on_one_device())


@pytest.mark.slow
def test_power_noise_per_shard_has_another_scale(monkeypatch):
    monkeypatch.setattr(MeshSharding, "sum_over_shards", noise_per_shard)
    assert abs(scaled_noise(2.0) - 1) > 0.03


@pytest.mark.slow
def test_power_norms_of_a_part_of_the_parameters(monkeypatch):
    def local_norms(leaf):
        return whole(leaf[:, : leaf.shape[1] // 4])

    whole = clipping.squared_norms
    expected = on_one_device()  # before the bug
    monkeypatch.setattr(clipping, "squared_norms", local_norms)
    step = step_on(SHARDINGS["2x4"], optimizer="adam", method="vmap")
    state, update = step.init(PARAMS), jax.jit(step.update)
    for _ in range(3):
        state, info = update(state, DATA)
    with pytest.raises(AssertionError):
        assert_same((state, info), expected)


@pytest.mark.slow
def test_power_division_by_a_local_count(monkeypatch):
    def divided(self, summed, specs):
        shard = 1.0 + jax.lax.axis_index(self.batch_axes)  # sizes that differ
        mean = jax.tree.map(lambda leaf: leaf * 4.5 / shard, summed)
        return jax.tree.map(lambda leaf: jax.lax.psum(leaf, self.batch_axes), mean)

    monkeypatch.setattr(MeshSharding, "sum_over_shards", divided)
    with pytest.raises(AssertionError):
        assert_same(run(SHARDINGS["8"]), on_one_device())


@pytest.mark.slow
def test_power_equal_coins_on_every_device(monkeypatch):
    original = PoissonSampling.members_at

    def same_coins(self, state, positions):
        held = positions < self.num_examples
        return original(self, state, positions - positions[0]) & held

    monkeypatch.setattr(PoissonSampling, "members_at", same_coins)
    with pytest.raises(AssertionError):
        assert_same(run(SHARDINGS["8"], split=True), on_one_device())


# --- what is communicated


def compiled(sharding, data):
    step = step_on(sharding)
    return jax.jit(step.update).lower(step.init(PARAMS), data).compile()


def plain_data_parallel():
    rows = NamedSharding(SHARDINGS["8"].auto_mesh, P("data"))
    batch = jax.device_put(jax.tree.map(lambda leaf: leaf[:64], DATA), rows)

    def step(params, batch):
        losses = jax.vmap(loss, (None, 0))
        grads = jax.grad(lambda p: losses(p, batch).sum())(params)
        return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads)

    params = SHARDINGS["8"].place(PARAMS)
    return jax.jit(step).lower(params, batch).compile()


@pytest.mark.slow
@pytest.mark.parametrize("split", [False, True], ids=["whole data", "split"])
def test_private_step_on_a_mesh_communicates_one_gradient(split):
    sharding = SHARDINGS["8"]
    data = split_records(DATA, sharding) if split else DATA
    found = collectives(compiled(sharding, data))
    assert {name for name, _ in found} == {"all-reduce"}
    # The counts of the batch are a few numbers beside.
    assert NUM_PARAMETERS <= sum(size for _, size in found) <= NUM_PARAMETERS + 4
    plain = collectives(plain_data_parallel())
    assert sum(size for _, size in plain) == NUM_PARAMETERS
    large = [name for name, size in found if size > 4]
    assert len(large) <= len(plain)


@pytest.mark.slow
def test_fully_sharded_parameters_are_gathered_and_scattered():
    found = collectives(compiled(SHARDINGS["fully sharded"], DATA))
    sizes = {}
    for name, size in found:
        sizes[name] = sizes.get(name, 0) + size
    assert sizes["all-gather"] == NUM_PARAMETERS
    assert sizes["reduce-scatter"] * 8 == NUM_PARAMETERS
    assert sizes["all-reduce"] <= 4


# --- states and records


@pytest.mark.slow
def test_parameters_and_optimizer_states_follow_the_rule():
    state, _ = run(SHARDINGS["2x4"])
    moments = state.optimizer[3][0].mu
    for tree in (state.params, moments):
        assert tree["in"]["kernel"].sharding.spec == P(None, "model")
        assert tree["out"].sharding.spec == P("model")
    assert state.num_releases.sharding.is_fully_replicated
    assert jax.random.key_data(state.sampler).sharding.is_fully_replicated


def test_records_are_hashed_alike_however_they_are_split():
    whole = Arrays(DATA).fingerprint()
    for name in ("1", "4", "2x4", "2x4 rows"):
        assert split_records(DATA, SHARDINGS[name]).fingerprint() == whole
    swapped = jax.tree.map(lambda leaf: leaf[np.r_[1, 0, 2:203]], DATA)
    assert Arrays(swapped).fingerprint() != whole
    assert hash_records(DATA, np.arange(203)) == whole


def test_split_records_over_more_devices_than_records():
    few = jax.tree.map(lambda leaf: leaf[:3], DATA)
    records = split_records(few, SHARDINGS["8"])
    assert sorted(records.positions.tolist())[:3] == [0, 1, 2]
    assert records.fingerprint() == Arrays(few).fingerprint()


@pytest.mark.slow
def test_losses_with_keys_agree_between_meshes():
    def noisy_loss(params, example, key):
        return loss(params, example) * jax.random.uniform(key)

    def trained(sharding, data):
        step = step_on(sharding, noisy_loss, loss_takes_key=True)
        return jax.jit(step.update)(step.init(PARAMS), data)

    assert_same(trained(SHARDINGS["8"], DATA), trained(None, DATA))
    few, many = (
        trained(sharding, split_records(DATA, sharding))
        for sharding in (SHARDINGS["2"], SHARDINGS["8"])
    )
    assert_same(few, many)


# --- refused


def specs_by(spec):
    return MeshSharding(mesh((8,)), "data", lambda path, leaf: spec).param_specs(PARAMS)


BATCH_AXES = "batch_axes must be different axes of the mesh, of"
SPEC = r"param_rule\('in.bias', ...\) must be"


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: MeshSharding(mesh((2, 4)), "rows"), BATCH_AXES),
        (lambda: MeshSharding(mesh((2, 4)), ("data", "data")), BATCH_AXES),
        (lambda: MeshSharding(mesh((2, 4)), ()), BATCH_AXES),
        (lambda: specs_by(P("rows")), SPEC),
        (lambda: specs_by(P("data", None, None)), SPEC),
        (lambda: specs_by(P("data", "data")), SPEC),
        (lambda: specs_by("data"), SPEC),
        (
            lambda: SHARDINGS["fully sharded"].param_specs({"x": jnp.zeros(9)}),
            r"'x', \.\.\.\) must be a partition into equal parts of",
        ),
        (
            lambda: SHARDINGS["8"].check_batch_size(12),
            r"physical_batch_size must be a multiple of 8, .* got 12",
        ),
    ],
)
def test_refusals_of_mesh_sharding(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_split_records_without_their_mesh():
    step = step_on(None)
    records = split_records(DATA, SHARDINGS["8"])
    with pytest.raises(ValueError, match="sharding must be given for SplitRecords"):
        step.update(step.init(PARAMS), records)
    few = split_records(jax.tree.map(lambda leaf: leaf[:9], DATA), SHARDINGS["8"])
    with pytest.raises(ValueError, match=r"data must have the 203 records .* got 9"):
        step.update(step.init(PARAMS), few)


def test_arrays_split_over_explicit_axes():
    data = jax.device_put(jnp.ones((16, 2)), NamedSharding(mesh((8,)), P("data")))
    step = private_step(
        lambda w, x: jnp.sum(w * x),
        OPTIMIZERS["sgd"],
        mechanism=gaussian_mechanism(PoissonSampling(16, 0.5)),
        key=jax.random.key(0),
    )
    with pytest.raises(ValueError, match="data must not be split over explicit mesh axes"):
        step.update(step.init(jnp.zeros(2)), data)


# --- noise inside shard_map


def noise_of(check_vma, summed):
    noise = add_gaussian_noise(noise_multiplier=1.0, l2_clip=1.0, key=jax.random.key(0))

    def local(x):
        x = jax.lax.psum(x, "data") if summed else x
        return noise.update(x, noise.init(x))[0]

    specs = {"in_specs": P("data"), "out_specs": P() if summed else P("data")}
    mapped = jax.shard_map(local, mesh=mesh((4,), **AUTO), check_vma=check_vma, **specs)
    return jax.jit(mapped)(jnp.zeros(8))


def test_noise_on_parts_of_a_sum_is_refused():
    with pytest.raises(ValueError, match=r"differ between devices along the mesh axes \['data'\]"):
        noise_of(check_vma=True, summed=False)
    with pytest.raises(ValueError, match="cannot be checked inside shard_map"):
        noise_of(check_vma=False, summed=False)


@pytest.mark.slow
def test_noise_on_the_whole_sum_is_that_of_one_device():
    noise = add_gaussian_noise(noise_multiplier=1.0, l2_clip=1.0, key=jax.random.key(0))
    expected, _ = noise.update(jnp.zeros(2), noise.init(jnp.zeros(2)))
    np.testing.assert_array_equal(noise_of(check_vma=True, summed=True), expected)


def test_contexts_of_explicit_axes_are_refused():
    step = step_on(SHARDINGS["8"])
    state = step.init(PARAMS)
    refused = r"cannot be used inside jax.set_mesh of a mesh with explicit axes \('data',\)"
    with jax.set_mesh(mesh((8,))):
        with pytest.raises(ValueError, match=refused):
            step.init(PARAMS)
        with pytest.raises(ValueError, match=refused):
            jax.eval_shape(step.update, jax.eval_shape(lambda: state), DATA)


# --- a run that was saved on one mesh resumes on another


def trained(name=None, folder=None, split=False, on_report=None, data=DATA):
    sharding = SHARDINGS[name] if name else None
    return train(
        jax.random.key(3), loss, PARAMS, split_records(data, sharding) if split else data,
        OPTIMIZERS["adam"], mechanism=mechanism(), sharding=sharding,
        checkpoint_dir=folder, steps_per_call=1, on_report=on_report, progress=False,
    )  # fmt: skip


@pytest.fixture(scope="module")
def straight():
    return trained()


@pytest.fixture(scope="module")
def saved_on_eight(tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints") / "run"
    with pytest.raises(Crash):
        trained("8", folder, split=True, on_report=crash_at(2))
    return folder


def assert_same_result(found, expected):
    chex.assert_trees_all_close(found.params, expected.params, rtol=0, atol=2e-6)
    assert found.certificate(1e-5).epsilon == expected.certificate(1e-5).epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "split"),
    [("4", False), ("2x4", True), ("fully sharded", False), (None, False)],
)
def test_train_resumes_on_another_mesh(name, split, saved_on_eight, straight, tmp_path):
    folder, reports = shutil.copytree(saved_on_eight, tmp_path / "run"), []
    resumed = trained(name, folder, split, on_report=reports.append)
    assert [report.num_releases for report in reports] == [3]
    assert_same_result(resumed, straight)


@pytest.mark.slow
def test_train_resumes_on_a_mesh_after_one_device(straight, tmp_path):
    with pytest.raises(Crash):
        trained(folder=tmp_path, on_report=crash_at(2))
    assert_same_result(trained("8", tmp_path), straight)


@pytest.mark.slow
def test_train_refuses_other_split_records(saved_on_eight):
    swapped = jax.tree.map(lambda leaf: leaf[::-1], DATA)
    with pytest.raises(ValueError, match="holds a run with another data"):
        trained("8", saved_on_eight, split=True, data=swapped)
