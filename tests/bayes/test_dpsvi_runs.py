"""Runs of DPSVI on data sources and meshes, and runs that are resumed from checkpoints."""

from dataclasses import replace

import chex
import dp_accounting
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from dp_accounting.pld import PLDAccountant
from helpers.dpsvi_cases import logistic
from helpers.inputs import Crash, gaussian_mechanism
from jax.sharding import PartitionSpec as P
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

import dpjax
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.model_args import PositionedSource
from dpjax.sampling import AllocatedSampling, CyclicPoissonSampling, PoissonSampling
from dpjax.training import ArraySource, MeshSharding, split_records
from dpjax.training.checkpoint import CheckpointStore

N, NUM_STEPS = 61, 5
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=N).astype(np.float32)
RECORDS = {"x": X, "y": (2 * X + _RNG.normal(size=N)).astype(np.float32)}
KEY = jax.random.key(3)
MECHANISM = gaussian_mechanism(PoissonSampling(N, 0.2), num_steps=NUM_STEPS, adjacency="zero_out")


def model(records, scale=1.0):
    """A local latent variable makes a step depend on the positions of its records."""
    slope = numpyro.sample("slope", dist.Normal(0, scale))
    with numpyro.plate("records", len(records["x"])):
        mean = numpyro.sample("mean", dist.Normal(slope * records["x"], 1))
        numpyro.sample("y", dist.Normal(mean, 1), obs=records["y"])


def guide(records, scale=1.0):
    loc = numpyro.param("loc", 0.0)
    numpyro.sample("slope", dist.Normal(loc, 0.3))
    gain = numpyro.param("gain", 0.1)
    with numpyro.plate("records", len(records["x"])):
        numpyro.sample("mean", dist.Normal(gain * records["y"], 0.5))


def make(model=model, **options):
    return DPSVI(model, guide, optax.adam(0.05), mechanism=replace(MECHANISM, **options))


def run(data=RECORDS, svi=None, num_steps=None, key=KEY, **options):
    svi = make() if svi is None else svi
    return svi.run(key, data, num_steps=num_steps, progress_bar=False, **options)


@pytest.fixture(scope="module")
def straight():
    return run()


# Steps on arrays and on a source are two programs, whose results JAX 0.12 rounds differently: a
# parameter of 0.09 by 7e-9, its last bit.
ROUNDING = 1e-6


def assert_equal(found, expected, rtol=0.0):
    chex.assert_trees_all_close(found.params, expected.params, rtol=rtol, atol=0)


class Counted(ArraySource):
    """Counts the records that are read."""

    num_read = 0

    def __getitems__(self, indices):
        self.num_read += len(indices)
        return super().__getitems__(indices)


@pytest.mark.slow
def test_run_on_a_source_is_that_on_arrays(straight):
    source = Counted(RECORDS)
    found = run(source)
    assert_equal(found, straight, ROUNDING)
    np.testing.assert_allclose(found.losses, straight.losses, rtol=ROUNDING)
    # Of 12 expected in a step, and the first, for its shapes.
    assert 0 < source.num_read < NUM_STEPS * N / 2


@pytest.mark.slow
def test_run_on_a_source_has_the_prior_of_all_records():
    def counting(records):
        model(records, scale=1 / len(records["x"]))

    arrays, source = (
        run(data, make(model=counting), num_steps=2) for data in (RECORDS, ArraySource(RECORDS))
    )
    np.testing.assert_allclose(source.losses, arrays.losses, rtol=ROUNDING)
    assert_equal(source, arrays, ROUNDING)


@pytest.mark.slow
def test_power_source_without_positions(straight, monkeypatch):
    class Unplaced(PositionedSource):
        def __getitems__(self, indices):
            records, positions = super().__getitems__(indices)
            return records, 0 * positions

    monkeypatch.setattr("dpjax.bayes.variational.svi.PositionedSource", Unplaced)
    with pytest.raises(AssertionError):
        assert_equal(run(ArraySource(RECORDS)), straight, ROUNDING)


@pytest.mark.slow
def test_run_reads_single_records(straight):
    class Single:
        def __len__(self):
            return N

        def __getitem__(self, index):
            return {name: array[index] for name, array in RECORDS.items()}

    assert_equal(run(Single()), straight, ROUNDING)


@pytest.mark.slow
def test_posterior_samples_of_a_run_on_a_source():
    samples = run(ArraySource(RECORDS)).posterior_samples(jax.random.key(0), 7)
    assert samples["slope"].shape == (1, 7)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        ((ArraySource(RECORDS), X), "in one data source or in arrays, got both"),
        (
            (ArraySource(X), ArraySource(X)),
            "data sources in args must be one, of all",
        ),
        ((ArraySource(X[:5]),), r"args must hold the whole data set"),
    ],
)
def test_init_refuses_sources(data, error):
    with pytest.raises(ValueError, match=error):
        make().init(KEY, *data)


@pytest.mark.slow
def test_update_and_evaluate_refuse_sources(straight):
    source, svi = ArraySource(RECORDS), make()
    for call in (svi.update, svi.update_with_info):
        with pytest.raises(ValueError, match="args must be arrays here, got a data source of 61"):
            call(straight.state, source)
    whole = "args must be whole arrays here, got ArraySource"
    with pytest.raises(ValueError, match=whole):
        svi.clipping_report(KEY, straight.state, source)
    with pytest.raises(ValueError, match=whole):
        svi.evaluate(straight.state, source)


def test_init_refuses_parameters_for_each_record_of_a_source():
    def own(records, scale=1.0):
        numpyro.sample("slope", dist.Normal(0, 0.3))
        with numpyro.plate("records", len(records["x"])):
            each = numpyro.param("each", jnp.zeros(len(records["x"])))
            numpyro.sample("mean", dist.Normal(each, 0.5))

    svi = DPSVI(model, own, optax.adam(0.1), mechanism=MECHANISM)
    with pytest.raises(ValueError, match=r"params must be shared by all records, but 'each'"):
        svi.init(KEY, ArraySource(RECORDS))


@pytest.fixture
def crash(monkeypatch):
    """Ends the next run after two checkpoints."""
    save, done = CheckpointStore.save, []

    def save_or_crash(self, state, num_done):
        if len(done) == 2:
            done.clear()
            monkeypatch.setattr(CheckpointStore, "save", save)
            raise Crash
        done.append(num_done)
        save(self, state, num_done)

    monkeypatch.setattr(CheckpointStore, "save", save_or_crash)


@pytest.mark.slow
@pytest.mark.parametrize(
    "source", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["arrays", "source"]
)
def test_run_resumes_to_the_same_result(source, straight, crash, tmp_path):
    data = ArraySource(RECORDS) if source else RECORDS
    with pytest.raises(Crash):
        run(data, checkpoint_dir=tmp_path)
    # Another key: the one in the folder is used, whose noise is already in its parameters.
    found = run(data, key=jax.random.key(4), checkpoint_dir=tmp_path)
    whole = run(data) if source else straight
    assert_equal(found, whole)
    np.testing.assert_array_equal(found.losses, whole.losses[2:])
    assert int(found.state.num_releases) == NUM_STEPS


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"sampling": AllocatedSampling(N, steps_per_epoch=3)},
        {
            "sampling": CyclicPoissonSampling(N, 0.25, num_groups=4),
            "correlation": dpjax.BandedToeplitz(4),
        },
        {
            "sampling": CyclicPoissonSampling(N, 0.25, num_groups=4),
            "correlation": dpjax.LambdaCGD(0.7),
        },
    ],
    ids=["allocated", "banded", "lambda"],
)
def test_run_resumes_allocated_batches_and_correlated_noise(changes, crash, tmp_path):
    """Bit for bit, within an epoch and with the buffers of the noise."""
    svi = make(**changes)
    with pytest.raises(Crash):
        run(svi=svi, checkpoint_dir=tmp_path)
    found = run(svi=svi, key=jax.random.key(4), checkpoint_dir=tmp_path)
    whole = run(svi=svi)
    assert_equal(found, whole)
    assert int(found.state.num_releases) == NUM_STEPS
    assert found.certificate(1e-5) == whole.certificate(1e-5)
    # Another key has other batches and noise.
    assert run(svi=svi, key=jax.random.key(4)).params["loc"] != whole.params["loc"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(checkpoint_dir=folder, num_steps=3)


@pytest.mark.slow
def test_run_continues_a_finished_run_and_then_returns_it(finished, straight):
    folder, first = finished
    assert int(first.state.num_releases) == 3
    assert_equal(run(checkpoint_dir=folder), straight)
    again = run(checkpoint_dir=folder)
    assert_equal(again, straight)
    assert again.losses.shape == (0,)


@pytest.mark.slow
def test_run_continues_a_finished_run_with_more_steps(straight, tmp_path):
    first = run(svi=make(num_steps=3), checkpoint_dir=tmp_path)
    continued = run(key=dpjax.release_key(), checkpoint_dir=tmp_path)
    assert_equal(continued, straight)
    assert continued.seeded
    np.testing.assert_array_equal(np.concatenate([first.losses, continued.losses]), straight.losses)
    assert continued.mechanism == straight.mechanism == make().mechanism
    assert int(continued.state.num_releases) == NUM_STEPS

    with pytest.raises(ValueError, match="num_steps = 5 and this one 3: only more steps"):
        run(svi=make(num_steps=3), checkpoint_dir=tmp_path)
    with pytest.raises(ValueError, match=r"another mechanism, another program.*only more steps"):
        run(svi=make(num_steps=7, noise_multiplier=1.1), checkpoint_dir=tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (lambda: {"data": jax.tree.map(lambda leaf: leaf[::-1], RECORDS)}, "data"),
        (lambda: {"scale": jnp.float32(2)}, "data, another program"),
        (lambda: {"svi": make(noise_multiplier=1.1)}, "mechanism"),
        (lambda: {"svi": make(model=lambda records: model(records, 2.0))}, "program"),
    ],
)
def test_run_refuses_the_folder_of_another_run(changed, name, finished):
    with pytest.raises(ValueError, match=f"holds a run with another {name}"):
        run(checkpoint_dir=finished[0], **changed())


@pytest.mark.slow
def test_run_refuses_a_folder_of_other_public_arrays(tmp_path):
    run(checkpoint_dir=tmp_path, num_steps=1, scale=jnp.float32(1))
    with pytest.raises(ValueError, match="holds a run with another data"):
        run(checkpoint_dir=tmp_path, num_steps=1, scale=jnp.float32(2))


def test_run_refuses_a_folder_with_a_state(straight, tmp_path):
    with pytest.raises(ValueError, match="init_state must be None with checkpoint_dir"):
        run(checkpoint_dir=tmp_path, init_state=straight.state)


def is_said_to_be_seeded(result):
    stated = any("derived from a seed" in caveat for caveat in result.certificate(1e-5).caveats)
    assert stated == result.seeded
    return stated


FALLING = (3.0, 2.5, 2.0, 1.5, 1.0)


@pytest.fixture(scope="module")
def falling():
    return make(noise_multiplier=FALLING)


@pytest.mark.slow
def test_certificate_is_of_the_steps_that_were_run(falling):
    """By dp-accounting, whose grids differ; one step more or less is off by over 5 %."""
    first = run(svi=falling, num_steps=2)
    second = run(svi=falling, num_steps=2, init_state=first.state)
    for result, noises in ((first, FALLING[:2]), (second, FALLING[:4])):
        accountant = PLDAccountant()
        for noise in noises:
            event = dp_accounting.GaussianDpEvent(noise)
            accountant.compose(dp_accounting.PoissonSampledDpEvent(0.2, event))
        expected = accountant.get_epsilon(1e-5)
        assert result.certificate(1e-5).epsilon == pytest.approx(expected, rel=5e-3)
        assert result.guarantee.num_releases == len(noises)
        for other in (len(noises) - 1, len(noises) + 1):  # power
            certificate = falling.mechanism.first_steps(other).certificate(1e-5)
            assert certificate.epsilon != pytest.approx(expected, rel=0.05)
    # A step past the planned ones gives NaN, and is not counted.
    past = run(svi=falling, num_steps=2, init_state=second.state)
    assert all(np.isnan(value) for value in past.params.values())
    assert past.mechanism == falling.mechanism


def test_result_unpacks_as_numpyros(straight):
    params, state, losses = straight
    assert (params, state) == (straight.params, straight.state)
    assert losses.shape == (NUM_STEPS,)


@pytest.mark.slow
def test_certificate_states_a_seeded_key(falling):
    """The key of the first step counts; that of a call that continues a run is not used."""
    secret = dpjax.release_key()
    seeded = run(svi=falling, num_steps=2)
    assert is_said_to_be_seeded(seeded)
    assert is_said_to_be_seeded(run(svi=falling, num_steps=2, key=secret, init_state=seeded.state))
    unseeded = run(svi=falling, num_steps=2, key=secret)
    assert not is_said_to_be_seeded(unseeded)
    assert not is_said_to_be_seeded(run(svi=falling, num_steps=2, init_state=unseeded.state))


@pytest.mark.slow
@pytest.mark.parametrize("first_is_seeded", [True, False])
def test_run_resumed_is_seeded_as_its_first_call(first_is_seeded, falling, tmp_path):
    keys = [KEY, dpjax.release_key()]
    first, second = keys if first_is_seeded else reversed(keys)
    run(svi=falling, num_steps=1, key=first, checkpoint_dir=tmp_path)
    resumed = run(svi=falling, num_steps=3, key=second, checkpoint_dir=tmp_path)
    assert is_said_to_be_seeded(resumed) == first_is_seeded
    assert resumed.mechanism == falling.mechanism.first_steps(3)


def test_run_refuses_a_state_of_other_noise(falling, straight):
    with pytest.raises(ValueError, match=r"init_state must be a state of this DPSVI.*got one with"):
        run(svi=falling, num_steps=1, init_state=straight.state)


# --- on a mesh of devices


FEATURES = np.random.default_rng(0).normal(size=(107, 4)).astype(np.float32)
LABELS = (FEATURES[:, 0] > 0).astype(np.float32)


def on_mesh(guide, sharding, gradient="plain"):
    mechanism = replace(MECHANISM, sampling=PoissonSampling(107, 0.3))
    optim = optax.adam(0.05)
    fields = {"mechanism": mechanism, "sharding": sharding, "gradient": gradient}
    return DPSVI(logistic, guide(logistic), optim, **fields)


def run_on_mesh(guide, sharding=None, split=False, gradient="plain"):
    data = {"x": FEATURES, "y": LABELS}
    data = split_records(data, sharding) if split else data
    svi = on_mesh(guide, sharding, gradient)
    return svi.run(jax.random.key(1), data["x"], data["y"], progress_bar=False)


EIGHT = MeshSharding(jax.make_mesh((8,), ("data",)))
TWO_BY_FOUR = MeshSharding(
    jax.make_mesh((2, 4), ("data", "model")),
    "data",
    lambda path, leaf: P("model") if np.shape(leaf) == (4,) else P(),
)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("guide", "sharding", "split", "gradient"),
    [
        (AutoNormal, EIGHT, True, "plain"),
        (AutoNormal, TWO_BY_FOUR, False, "plain"),
        (AutoMultivariateNormal, TWO_BY_FOUR, True, "plain"),
        (AutoNormal, TWO_BY_FOUR, True, "aligned"),
    ],
)
def test_run_on_a_mesh_is_that_of_one_device(guide, sharding, split, gradient):
    expected = run_on_mesh(guide, gradient=gradient)
    found = run_on_mesh(guide, sharding, split, gradient)
    chex.assert_trees_all_close(found.params, expected.params, rtol=1e-7, atol=2e-6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)


def test_refusals_of_split_records():
    records = split_records({"x": FEATURES, "y": LABELS}, EIGHT)
    few = split_records({"x": FEATURES[:9]}, EIGHT)
    svi, key = on_mesh(AutoNormal, EIGHT), jax.random.key(0)
    with pytest.raises(ValueError, match=r"one array of SplitRecords each, as records\['x'\]"):
        svi.init(key, records)
    with pytest.raises(ValueError, match=r"args must be of 107 records in all, got 9"):
        svi.init(key, few["x"], LABELS)
    with pytest.raises(ValueError, match=r"whole arrays here, got SplitRecords"):
        svi.evaluate(None, records["x"], records["y"])
