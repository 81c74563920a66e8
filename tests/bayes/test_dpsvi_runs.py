"""Runs of DPSVI on data sources, and runs that are interrupted and resumed from checkpoints."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest

from dpjax.bayes.variational import DPSVI, compiled_steps
from dpjax.bayes.variational.compiled_steps import PositionedSource
from dpjax.sampling import PoissonSampling
from dpjax.training import ArraySource
from dpjax.training.checkpoint import CheckpointStore

N, NUM_STEPS = 61, 5
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=N).astype(np.float32)
RECORDS = {"x": X, "y": (2 * X + _RNG.normal(size=N)).astype(np.float32)}
KEY = jax.random.key(3)


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
    fields = {"sampling": PoissonSampling(N, 0.2), "noise_multiplier": 1.0, **options}
    return DPSVI(
        model, guide, optax.adam(0.05), num_steps=NUM_STEPS, l2_clip=1.0, adjacency="zero_out",
        **fields,
    )  # fmt: skip


def run(data=RECORDS, svi=None, num_steps=NUM_STEPS, **options):
    svi = make() if svi is None else svi
    return svi.run(KEY, num_steps, data, progress_bar=False, **options)


@pytest.fixture(scope="module")
def straight():
    return run()


def assert_equal(found, expected):
    for name, value in expected.params.items():
        np.testing.assert_array_equal(found.params[name], value)


class Counted(ArraySource):
    """Counts the records that are read."""

    num_read = 0

    def __getitems__(self, indices):
        self.num_read += len(indices)
        return super().__getitems__(indices)


def test_a_source_gives_the_parameters_of_arrays(straight):
    source = Counted(RECORDS)
    found = run(source)
    assert_equal(found, straight)
    np.testing.assert_array_equal(found.losses, straight.losses)
    # Of 12 expected in a step, and the first, for its shapes.
    assert 0 < source.num_read < NUM_STEPS * N / 2


def test_a_source_without_positions_gives_other_parameters(straight, monkeypatch):
    class Unplaced(PositionedSource):
        def __getitems__(self, indices):
            records, positions = super().__getitems__(indices)
            return records, 0 * positions

    monkeypatch.setattr(compiled_steps, "PositionedSource", Unplaced)
    assert run(ArraySource(RECORDS)).params["gain"] != straight.params["gain"]


@pytest.mark.slow
def test_records_that_are_read_one_by_one_give_the_same(straight):
    class Single:
        def __len__(self):
            return N

        def __getitem__(self, index):
            return {name: array[index] for name, array in RECORDS.items()}

    assert_equal(run(Single()), straight)


def test_posterior_samples_after_a_run_on_a_source():
    svi = make()
    params = run(ArraySource(RECORDS), svi).params
    assert svi.posterior_samples(jax.random.key(0), params, 7)["slope"].shape == (1, 7)


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
def test_sources_that_are_refused(data, error):
    with pytest.raises(ValueError, match=error):
        make().init(KEY, *data)


def test_only_runs_read_sources(straight):
    source, svi = ArraySource(RECORDS), make()
    for call in (svi.update, svi.update_with_info):
        with pytest.raises(ValueError, match="args must be arrays here, got a data source of 61"):
            call(straight.state, source)
    whole = "args must be whole arrays here, got ArraySource"
    with pytest.raises(ValueError, match=whole):
        svi.clipping_report(KEY, straight.state, source)
    with pytest.raises(ValueError, match=whole):
        svi.evaluate(straight.state, source)


def test_a_guide_with_parameters_for_each_record_of_a_source_is_refused():
    def own(records, scale=1.0):
        numpyro.sample("slope", dist.Normal(0, 0.3))
        with numpyro.plate("records", len(records["x"])):
            each = numpyro.param("each", jnp.zeros(len(records["x"])))
            numpyro.sample("mean", dist.Normal(each, 0.5))

    svi = DPSVI(
        model, own, optax.adam(0.1), sampling=PoissonSampling(N, 0.2), num_steps=1, l2_clip=1.0,
        noise_multiplier=1.0, adjacency="zero_out",
    )  # fmt: skip
    with pytest.raises(ValueError, match=r"params must be shared by all records, but 'each'"):
        svi.init(KEY, ArraySource(RECORDS))


class Crash(Exception):
    pass


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


@pytest.mark.parametrize(
    "source", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["arrays", "source"]
)
def test_an_interrupted_run_resumes_to_the_same_result(source, straight, crash, tmp_path):
    data = ArraySource(RECORDS) if source else RECORDS
    with pytest.raises(Crash):
        run(data, checkpoint_dir=tmp_path)
    # Another key: the one in the folder is used, whose noise is already in its parameters.
    found = make().run(
        jax.random.key(4), NUM_STEPS, data, progress_bar=False, checkpoint_dir=tmp_path
    )
    assert_equal(found, straight)
    np.testing.assert_array_equal(found.losses, straight.losses[2:])
    assert int(found.state.num_releases) == NUM_STEPS


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return folder, run(checkpoint_dir=folder, num_steps=3)


@pytest.mark.slow
def test_a_finished_run_is_continued_and_then_returned(finished, straight):
    folder, first = finished
    assert int(first.state.num_releases) == 3
    assert_equal(run(checkpoint_dir=folder), straight)
    again = run(checkpoint_dir=folder)
    assert_equal(again, straight)
    assert again.losses.shape == (0,)


@pytest.mark.parametrize(
    ("changed", "name"),
    [
        (lambda: {"data": jax.tree.map(lambda leaf: leaf[::-1], RECORDS)}, "data"),
        (lambda: {"scale": jnp.float32(2)}, "data, another program"),
        (lambda: {"svi": make(noise_multiplier=1.1)}, "mechanism"),
        (lambda: {"svi": make(model=lambda records: model(records, 2.0))}, "program"),
    ],
)
def test_the_folder_of_another_run_is_refused(changed, name, finished):
    with pytest.raises(ValueError, match=f"holds a run with another {name}"):
        run(checkpoint_dir=finished[0], **changed())


@pytest.mark.slow
def test_public_arrays_are_part_of_the_run(tmp_path):
    run(checkpoint_dir=tmp_path, num_steps=1, scale=jnp.float32(1))
    with pytest.raises(ValueError, match="holds a run with another data"):
        run(checkpoint_dir=tmp_path, num_steps=1, scale=jnp.float32(2))


def test_a_folder_and_a_state_to_continue_from_are_refused(straight, tmp_path):
    with pytest.raises(ValueError, match="init_state must be None with checkpoint_dir"):
        run(checkpoint_dir=tmp_path, init_state=straight.state)
