"""The runner: chains, kept states, batches shared or not, resuming, diagnostics."""

import dataclasses
import errno
import functools
import os

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax import PoissonSampling
from dpjax.bayes.sgmcmc import (
    PSGLD,
    SGLD,
    ChainResult,
    PolynomialDecay,
    RMSProp,
    private_chains,
    sample,
)
from dpjax.bayes.sgmcmc.chains import SampleStore
from dpjax.sampling import ShuffledEpochs
from dpjax.training import ArraySource, TrainState
from dpjax.training.checkpoint import CheckpointStore

DATA = {"x": jnp.linspace(-1.0, 1.0, 24).reshape(12, 2), "y": jnp.linspace(0.0, 1.0, 12)}
START = {"w": jnp.zeros(2)}
DECAY = PolynomialDecay(0.3)


def log_likelihood(params, record):
    return -0.5 * (record["x"] @ params["w"] - record["y"]) ** 2


def log_prior(params):
    return -0.5 * sum(jnp.sum(leaf**2) for leaf in jax.tree.leaves(params))


def chain_of(num_steps=12, **changes):
    return SGLD(
        PoissonSampling(12, 0.5),
        l2_clip=1.0,
        step_size=0.3,
        num_steps=num_steps,
        adjacency="add_remove",
        **changes,
    )


def run(chain, seed=0, params=START, data=DATA, **options):
    key = jax.random.key(seed)
    return sample(
        key, log_likelihood, log_prior, params, data, mechanism=chain, progress=False, **options
    ).samples


@pytest.mark.slow
def test_private_chains_make_a_thousand_steps_under_one_jit():
    chain = chain_of(1_000, num_chains=8)
    step = private_chains(jax.random.key(0), log_likelihood, log_prior, chain)
    traces = []

    @jax.jit
    def whole(state):
        traces.append(1)

        def body(state, _):
            state = step.update(state, DATA)[0]
            return state, state.params["w"]

        return jax.lax.scan(body, state, length=1_000)

    for _ in range(2):
        state, path = whole(step.init(START))
    assert len(traces) == 1
    assert path.shape == (1_000, 8, 2)
    assert np.isfinite(path).all()
    assert (np.asarray(state.num_releases) == 1_000).all()
    # What `sample` keeps is this path, thinned.
    kept = run(chain, burn_in=600, thinning=100, steps_per_call=300)["w"]
    np.testing.assert_allclose(kept, np.moveaxis(path[699::100], 0, 1), rtol=1e-5, atol=1e-6)
    assert len(np.unique(np.asarray(path[-1, :, 0]))) == 8
    assert np.isnan(whole(state)[1]).all()  # not described, so not released


@pytest.mark.parametrize("batches", ["own", "shared"])
def test_private_chains_share_batches_or_not_and_noise_never(batches):
    chain = chain_of(num_chains=6, batches=batches)
    step = private_chains(jax.random.key(1), log_likelihood, log_prior, chain)
    state = step.init(START)
    masks, noises = [], []
    update = jax.jit(step.update)
    for _ in range(4):
        before = state.params["w"]
        state, info = update(state, DATA)
        masks.append(np.asarray(info.batch_size))
        noises.append(np.asarray(state.params["w"] - before))
    same = [len(set(sizes.tolist())) == 1 for sizes in masks]
    assert all(same) if batches == "shared" else not any(same)
    assert len(np.unique(np.stack(noises))) == 4 * 6 * 2  # but never the noise
    again, other = (
        private_chains(jax.random.key(seed), log_likelihood, log_prior, chain).init(START)
        for seed in (1, 2)
    )
    np.testing.assert_array_equal(update(again, DATA)[0].params["w"], noises[0])
    assert (np.asarray(update(other, DATA)[0].params["w"]) != noises[0]).all()


@pytest.mark.slow
def test_sample_takes_any_tree_of_floats_and_different_starts():
    def start(key):
        half = jnp.zeros(2, jnp.bfloat16)
        return {"w": [jax.random.normal(key, (2,), jnp.float16), (half, jnp.ones(()))]}

    def of_tree(params, record):
        first, (second, last) = params["w"]
        return last - jnp.sum((record["x"] - first.astype(float) - second.astype(float)) ** 2)

    chain = chain_of(1, num_chains=3)
    key = jax.random.key(0)
    samples = sample(key, of_tree, log_prior, start, DATA, mechanism=chain, progress=False).samples
    first, (second, last) = samples["w"]
    assert (first.shape, second.shape, last.shape) == ((3, 1, 2), (3, 1, 2), (3, 1))
    assert (first.dtype, second.dtype, last.dtype) == (np.float16, np.float32, np.float32)
    assert np.ptp(first) > 0.5


def key_words(tree):
    """The words of all keys of a tree."""
    keys = [
        leaf for leaf in jax.tree.leaves(tree) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
    ]
    return {
        row.tobytes()
        for leaf in keys
        for row in np.asarray(jax.random.key_data(leaf)).reshape(-1, 2)
    }


def split_off(key, depth=3):
    """The words of ``key`` and of the keys that are split off it, in two or three parts."""
    words = key_words(key)
    for count in (2, 3) if depth else ():
        for part in jax.random.split(key, count):
            words |= split_off(part, depth - 1)
    return words


def test_private_chains_have_other_keys_than_starting_points():
    chain, key = chain_of(num_chains=2), jax.random.key(4)

    def start(key):
        return {"w": jax.lax.bitcast_convert_type(jax.random.key_data(key), jnp.float32)}

    state = private_chains(key, log_likelihood, log_prior, chain).init(start)
    of_chains = key_words((state.sampler, state.optimizer))
    assert len(of_chains) == 4  # of sampler and noise
    starts = jax.random.wrap_key_data(np.asarray(state.params["w"]).view(np.uint32))
    assert not of_chains & (split_off(starts[0]) | split_off(starts[1]))
    # Power: keys of which the chains' are split off are found.
    parents = jax.random.split(key, 2)
    assert of_chains == of_chains & (split_off(parents[0]) | split_off(parents[1]))


@pytest.mark.slow
def test_sample_keeps_no_state_before_its_key_is_in_a_checkpoint(tmp_path, monkeypatch):
    events, write = [], SampleStore.write
    monkeypatch.setattr(
        CheckpointStore, "save", lambda self, state, done: events.append(f"checkpoint {done}")
    )

    def keep(self, first, states):
        events.append(f"states from {first}")
        write(self, first, states)

    monkeypatch.setattr(SampleStore, "write", keep)
    run(chain_of(4), checkpoint_dir=tmp_path, steps_per_call=2)
    expected = ["checkpoint 0", "states from 0", "checkpoint 2", "states from 2", "checkpoint 4"]
    assert events == expected


@functools.cache
def undisturbed():
    return run(chain_of(num_chains=2), burn_in=3)


@pytest.mark.slow
@pytest.mark.parametrize("on_host", [False, True])
@pytest.mark.parametrize("steps_per_call", [1, 4, 100])
def test_sample_does_not_depend_on_steps_per_call(on_host, steps_per_call, monkeypatch):
    monkeypatch.setattr("dpjax.training.run.is_slow_in_loops", lambda *_: on_host)
    options = {"burn_in": 6, "thinning": 3, "steps_per_call": steps_per_call}
    states = run(chain_of(num_chains=2), **options)["w"]
    np.testing.assert_allclose(states, undisturbed()["w"][:, [5, 8]], rtol=1e-5)


@pytest.mark.slow
def test_sample_resumes_to_the_same_samples(tmp_path, monkeypatch):
    chain, options = chain_of(num_chains=2), {"burn_in": 3, "steps_per_call": 2}
    save, saves = CheckpointStore.save, []

    def dying(self, *arguments):
        saves.append(arguments[1])
        if len(saves) == 5:
            raise KeyboardInterrupt
        save(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", dying)
        with pytest.raises(KeyboardInterrupt):
            run(chain, checkpoint_dir=tmp_path, **options)
    assert saves == [0, 2, 3, 5, 7]  # the key before the first state
    resumed = run(chain, checkpoint_dir=tmp_path, seed=9, **options)  # the key is the checkpoint's
    for one, other in zip(jax.tree.leaves(undisturbed()), jax.tree.leaves(resumed), strict=True):
        assert isinstance(other, np.memmap)
        np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(np.load(tmp_path / "samples_0.npy"), resumed["w"])
    (tmp_path / "samples_0.npy").rename(tmp_path / "away.npy")
    with pytest.raises(ValueError, match="'samples_0\\.npy', which cannot be read"):
        run(chain, checkpoint_dir=tmp_path, **options)
    assert not (tmp_path / "samples_0.npy").exists()
    with pytest.raises(ValueError, match="another mechanism"):
        run(chain_of(num_chains=2, min_noise_multiplier=9.0), checkpoint_dir=tmp_path, **options)


MORE_STEPS = [
    pytest.param(chain_of(12, num_chains=2), id="constant"),
    pytest.param(
        dataclasses.replace(chain_of(12, num_chains=2, batches="shared"), step_size=DECAY),
        id="schedule, shared batches",
        marks=pytest.mark.slow,
    ),
    pytest.param(
        PSGLD(
            PoissonSampling(12, 0.5),
            l2_clip=1.0,
            step_size=tuple(0.3 - 0.01 * step for step in range(12)),
            num_steps=12,
            adjacency="add_remove",
            preconditioner=RMSProp(min_value=0.1, max_value=1.0),
        ),
        id="preconditioned",
        marks=pytest.mark.slow,
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize("chain", MORE_STEPS)
def test_sample_continues_a_finished_run_with_more_steps(chain, tmp_path):
    options = {"burn_in": 2, "thinning": 2}
    first = run(chain.first_steps(8), checkpoint_dir=tmp_path, **options)["w"]
    before = np.array(first)
    continued = run(chain, seed=9, checkpoint_dir=tmp_path, **options)["w"]
    straight = run(chain, **options)["w"]
    assert (first.shape[1], straight.shape[1]) == (3, 5)
    np.testing.assert_array_equal(continued, straight)
    assert isinstance(continued, np.memmap)
    np.testing.assert_array_equal(np.load(tmp_path / "samples_0.npy"), straight)
    np.testing.assert_array_equal(first, before)  # still there, in the file that was replaced

    with pytest.raises(ValueError, match="num_steps = 12 and this one 8: only more steps"):
        run(chain.first_steps(8), checkpoint_dir=tmp_path, **options)


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [{"burn_in": 4}, {"thinning": 1}, {"step_size": 0.2}, {"min_noise_multiplier": 9.0}],
)
def test_sample_refuses_more_steps_of_another_run(changes, shorter_chain):
    options = {"burn_in": 2, "thinning": 2, **changes}
    of_run = {name: options.pop(name) for name in ("burn_in", "thinning")}
    chain = dataclasses.replace(chain_of(12, num_chains=2), **options)
    with pytest.raises(ValueError, match=r"holds a run with another .*only more steps continue it"):
        run(chain, checkpoint_dir=shorter_chain, **of_run)
    assert np.load(shorter_chain / "samples_0.npy").shape == (2, 3, 2)


@pytest.fixture(scope="module")
def shorter_chain(tmp_path_factory):
    """The folder of a finished run of eight steps."""
    folder = tmp_path_factory.mktemp("chain")
    run(chain_of(8, num_chains=2), checkpoint_dir=folder, burn_in=2, thinning=2)
    return folder


@pytest.mark.slow
def test_sample_returns_the_shorter_run_after_a_crash_of_the_longer_one(tmp_path, monkeypatch):
    """The files are longer then, and the checkpoint is still that of the shorter run."""
    chain, options = chain_of(8, num_chains=2), {"checkpoint_dir": tmp_path}
    first = np.array(run(chain, **options)["w"])
    with monkeypatch.context() as patch:
        patch.setattr(CheckpointStore, "save", lambda *_: pytest.fail("out of power"))
        with pytest.raises(pytest.fail.Exception):
            run(chain_of(12, num_chains=2), **options)
    assert np.load(tmp_path / "samples_0.npy").shape[1] == 12
    np.testing.assert_array_equal(run(chain, **options)["w"], first)
    longer = run(chain_of(12, num_chains=2), **options)["w"]
    np.testing.assert_array_equal(longer, run(chain_of(12, num_chains=2))["w"])


@pytest.mark.parametrize("chain", MORE_STEPS)
def test_first_steps_of_a_chain_are_a_prefix(chain):
    for steps in (1, 5, 12):
        first = chain.first_steps(steps)
        assert first.num_steps == steps
        np.testing.assert_array_equal(first.step_sizes, chain.step_sizes[:steps])
        np.testing.assert_array_equal(first.noise_multipliers, chain.noise_multipliers[:steps])
    with pytest.raises(ValueError, match="num_steps must be at most 12, got 13"):
        chain.first_steps(13)


def test_sample_has_certificate_and_diagnostics():
    chain = dataclasses.replace(chain_of(400, num_chains=4), step_size=3.0)
    result = sample(
        jax.random.key(0),
        log_likelihood,
        log_prior,
        START,
        DATA,
        mechanism=chain,
        burn_in=100,
        progress=False,
    )
    certificate = result.certificate(1e-3)
    assert certificate.epsilon == chain.certificate(1e-3).epsilon
    assert "seed" in certificate.caveats[-1]
    import arviz_stats

    tree = result.to_arviz()
    assert set(tree.posterior.data_vars) == {"w"}
    assert tree.posterior["w"].sizes == {"chain": 4, "draw": 300, "w_dim_0": 2}
    ess = arviz_stats.ess(tree)["w"].to_numpy()
    rhat = arviz_stats.rhat(tree)["w"].to_numpy()
    assert ((ess > 40) & (ess < 2_400)).all()
    assert (rhat < 1.1).all()


def test_chain_result_of_a_release_key_has_no_caveat_on_seeds():
    chain = chain_of(2)
    result = ChainResult({"w": np.zeros((1, 2, 2))}, chain, False)
    assert not any("seed" in caveat for caveat in result.certificate(1e-3).caveats)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"burn_in": -1}, "burn_in"),
        ({"burn_in": 12}, "thinning"),
        ({"thinning": 5}, "thinning"),
        ({"thinning": 0}, "thinning"),
        ({"steps_per_call": 0}, "steps_per_call"),
        ({"method": "guess"}, "method"),
        ({"data": {name: leaf[:5] for name, leaf in DATA.items()}}, "12 records"),
    ],
)
def test_bad_options_are_named(options, named):
    with pytest.raises(ValueError, match=named):
        run(chain_of(), **options)


class Crowded(PoissonSampling):
    """Poisson sampling most of whose draws exceed the usual batches."""

    @property
    def num_static_batches(self) -> int:
        return 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampling", "batches"),
    [
        pytest.param(Crowded(12, 0.5, physical_batch_size=3), "own", marks=pytest.mark.slow),
        (ShuffledEpochs(12, 5), "shared"),
    ],
)
def test_sample_on_a_source_is_that_on_arrays(sampling, batches, tmp_path):
    chain = dataclasses.replace(
        chain_of(11, num_chains=2, batches=batches), sampling=sampling, adjacency="zero_out"
    )
    options = {"burn_in": 3, "thinning": 2, "steps_per_call": 2}
    resident = run(chain, **options)["w"]
    streamed = run(chain, data=ArraySource(DATA), checkpoint_dir=tmp_path, **options)["w"]
    np.testing.assert_array_equal(streamed, resident)
    assert resident.shape == (2, 4, 2)
    assert (resident[0] != resident[1]).all()
    # power: other records give other samples
    shifted = {"x": DATA["x"], "y": jnp.roll(DATA["y"], 1)}
    assert (run(chain, data=ArraySource(shifted), **options)["w"] != resident).any()


# --- kept states in memory and on disk

STATES = {"w": jnp.arange(12.0).reshape(2, 3, 2)}  # two states of three chains
PARAMS = {"w": jnp.zeros((3, 2))}


def store_of(params, num_kept, folder, resumed=False):
    store = SampleStore(num_kept, 0, 1, folder)
    store.open(TrainState(params, None, None), num_done=num_kept if resumed else 0)
    return store


def test_sample_store_moves_the_axis_of_chains_first(tmp_path):
    for folder in (None, tmp_path):
        store = store_of(PARAMS, 4, folder)
        store.write(1, STATES)
        np.testing.assert_array_equal(store.samples["w"][:, 1:3], np.swapaxes(STATES["w"], 0, 1))
    again = store_of(PARAMS, 4, tmp_path, resumed=True).samples["w"]
    np.testing.assert_array_equal(again, store.samples["w"])


def test_sample_store_replaces_files_of_no_run(tmp_path):
    store_of(PARAMS, 9, tmp_path).write(0, STATES)
    new = store_of(PARAMS, 4, tmp_path).samples["w"]
    assert new.shape == (3, 4, 2)
    assert not new.any()


def gone(path):
    path.unlink()


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def of_other_numbers(path):
    np.save(path, np.load(path)[:, :2])


@pytest.mark.parametrize("damage", [gone, cut_off, of_other_numbers])
def test_sample_store_refuses_damaged_files_and_leaves_them(tmp_path, damage):
    store_of(PARAMS, 4, tmp_path).write(1, STATES)
    path = tmp_path / "samples_0.npy"
    damage(path)
    left = path.read_bytes() if path.exists() else None
    with pytest.raises(ValueError, match=f"checkpoint_dir .*{tmp_path.name}.* in 'samples_0.npy'"):
        store_of(PARAMS, 4, tmp_path, resumed=True)
    assert (path.read_bytes() if path.exists() else None) == left


def test_sample_store_keeps_bfloat16_in_single_precision():
    samples = store_of(jnp.zeros((3, 2), jnp.bfloat16), 4, None).samples
    assert samples.dtype == np.float32


def test_sample_store_allocates_all_states_at_once(tmp_path, monkeypatch):
    """A sparse file mapped into memory ends the process by SIGBUS where the disk is full."""
    store_of({"w": jnp.zeros((3, 1000))}, 20, tmp_path)
    found = (tmp_path / "samples_0.npy").stat()
    assert found.st_blocks * 512 >= found.st_size > 3 * 20 * 1000 * 4

    def disk_is_full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", disk_is_full)
    with pytest.raises(
        OSError, match=rf"checkpoint_dir '{tmp_path}' has no room for the 240,000 bytes"
    ):
        store_of({"w": jnp.zeros((3, 1000))}, 20, tmp_path)


def test_sample_store_writes_files_on_the_first_process_alone(tmp_path, monkeypatch):
    first = store_of(PARAMS, 4, tmp_path)
    first.write(0, STATES)
    path = tmp_path / "samples_0.npy"
    left = path.read_bytes()
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    for resumed in (False, True):
        other = store_of(PARAMS, 4, tmp_path, resumed=resumed)
        other.write(2, STATES)
        assert path.read_bytes() == left
        np.testing.assert_array_equal(other.samples["w"][:, 2:], first.samples["w"][:, :2])
    np.testing.assert_array_equal(other.samples["w"][:, :2], first.samples["w"][:, :2])
