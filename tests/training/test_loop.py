"""The driver: loops on the device and on the host, compiled once; memory that is freed and kept."""

import subprocess
import sys
import warnings
from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.inputs import gaussian_mechanism

from dpjax.sampling import PoissonSampling
from dpjax.training import private_step
from dpjax.training import run as driver
from dpjax.training.run import compile_chunk, device_loop, host_loop

LOOPS = {"device": device_loop, "host": host_loop}
on_cpu = pytest.mark.skipif(jax.default_backend() != "cpu", reason="a rule for CPUs")


def dense_loss(params, example):
    x, y = example
    hidden = jnp.tanh(x.reshape(-1) @ params["in"])
    return (hidden @ params["out"] - y) ** 2


def conv_loss(params, example):
    x, y = example
    maps = jax.lax.conv_general_dilated(x[None, None], params["kernel"], (1, 1), "VALID")
    return (jnp.tanh(maps).reshape(-1) @ params["out"] - y) ** 2


def problem(loss):
    rng = np.random.default_rng(0)
    data = jax.device_put(
        (rng.normal(size=(20, 4, 4)).astype(np.float32), rng.normal(size=20).astype(np.float32))
    )
    shapes = {
        dense_loss: {"in": (16, 5), "out": (5,)},
        conv_loss: {"kernel": (2, 1, 2, 2), "out": (18,)},
    }[loss]
    params = {k: jnp.asarray(rng.normal(size=s), jnp.float32) for k, s in shapes.items()}
    mechanism = gaussian_mechanism(PoissonSampling(20, 0.3), num_steps=50)
    optimizer = optax.sgd(0.1, momentum=0.9)
    return private_step(loss, optimizer, mechanism=mechanism, key=jax.random.key(1)), params, data


def run_in_calls(loop, step, params, data, calls):
    run = loop(step.update, step.init(params), data, max(calls))
    state, infos = step.init(params), []
    for num_steps in calls:
        state, info = run(state, data, num_steps)
        infos.append(info)
    return state, jax.tree.map(lambda *leaves: np.concatenate(leaves), *infos)


@pytest.mark.slow
@pytest.mark.parametrize("loss", [dense_loss, conv_loss])
def test_loops_make_the_same_steps(loss):
    device, host = (run_in_calls(loop, *problem(loss), (4, 4, 2)) for loop in LOOPS.values())
    keys, numbers = (
        [pick(state, infos) for state, infos in (device, host)]
        for pick in (
            lambda state, infos: (state.sampler, state.optimizer[0]),
            lambda state, infos: (state.params, state.optimizer[1:], infos),
        )
    )
    chex.assert_trees_all_equal(*keys)
    chex.assert_trees_all_close(*numbers, rtol=1e-5, atol=1e-5)
    state, infos = device
    assert int(state.num_releases) == 10
    assert infos.batch_size.shape == (10,)
    assert infos.norms.shape == infos.mask.shape == (10, 16)
    assert len(set(infos.batch_size.tolist())) > 1


@pytest.mark.slow
@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_loops_do_not_depend_on_the_division_into_calls(loop):
    one_call = run_in_calls(loop, *problem(dense_loss), (6,))
    many_calls = run_in_calls(loop, *problem(dense_loss), (1, 2, 2, 1))
    chex.assert_trees_all_equal(one_call, many_calls)


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_loops_never_trace_or_compile_again(loop):
    traces, compilations = [], []

    def update(state, step_size):
        traces.append(None)
        return state + step_size, state * 2

    def listen(name, _duration, **_):
        if "backend_compile" in name:
            compilations.append(name)

    run = loop(update, jnp.zeros(3), jnp.float32(1), 5)
    traced, state = len(traces), jnp.zeros(3)
    for num_steps in (5, 3, 1):  # cutting and stacking infos is compiled once for each length
        state, _ = run(state, jnp.float32(1), num_steps)
    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        for num_steps in (5, 5, 3, 1, 5, 3):
            state, infos = run(state, jnp.float32(1), num_steps)
            assert infos.shape == (num_steps, 3)
        assert (len(traces), compilations) == (traced, [])
        jax.jit(lambda x: x + 1)(1.0)
        assert compilations, "the listener would not have heard a compilation"
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert state.tolist() == [31.0] * 3


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_loops_consume_their_state_and_take_the_data_of_the_call(loop):
    run = loop(lambda s, d: (s + d, s), jnp.zeros(3), jnp.ones(3), 2)
    first = jnp.zeros(3)
    last, _ = run(first, jnp.full(3, 5.0), 2)
    assert last.tolist() == [10.0] * 3
    assert first.is_deleted()


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
@pytest.mark.parametrize("every", [1, 3, 7])
def test_loops_keep_the_last_info_of_so_many_steps(loop, every):
    run = loop(lambda s, d: (s + d, s), jnp.int32(0), jnp.int32(1), 5, every)
    state, kept = jnp.int32(0), []
    for done, num_steps in ((0, 5), (5, 1), (6, 4), (10, 5)):
        state, infos = run(state, jnp.int32(1), num_steps, done % every)
        kept += jax.tree.leaves(jax.tree.map(np.ndarray.tolist, jax.device_get(infos)))
    assert kept == list(range(every - 1, 15, every))


@pytest.mark.slow
@on_cpu
@pytest.mark.parametrize("loss", [dense_loss, conv_loss])
def test_compile_chunk_takes_the_faster_loop(loss, monkeypatch):
    taken = []
    for name, loop in LOOPS.items():
        instead = partial(lambda name, *_: taken.append(name), name)
        monkeypatch.setattr(f"dpjax.training.run.{loop.__name__}", instead)
    step, params, data = problem(loss)
    compile_chunk(step.update, step.init(params), data, 3)
    assert taken == [{dense_loss: "device", conv_loss: "host"}[loss]]


LARGE_BUFFERS = """
import resource, sys
import numpy as np
from dpjax.training import keep_freed_memory

kept = sys.argv[1] == "keep" and keep_freed_memory()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

np.ones(2**23)
before = faults()
for _ in range(20):
    np.ones(2**23)  # 64 MiB: 16,384 pages
print(kept, (faults() - before) // 20)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc's settings are for Linux")
def test_keep_freed_memory_saves_page_faults():
    def run(word):
        command = [sys.executable, "-c", LARGE_BUFFERS, word]
        output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        kept, faults = output.split()
        return kept == "True", int(faults)

    kept, faults = run("keep")
    assert kept
    assert faults < 100
    assert run("default")[1] > 100  # transparent huge pages may make it far fewer than 16,384


# The faults of a short run may be those of its first step.
@pytest.mark.parametrize(
    ("seconds", "faults", "warned"), [(20, 5e6, True), (20, 1e6, False), (1, 5e5, False)]
)
def test_run_warns_where_page_faults_take_its_time(monkeypatch, seconds, faults, warned):
    times, counts = iter([100.0, 100.0 + seconds]), iter([7, 7 + int(faults)])
    monkeypatch.setattr(driver.time, "monotonic", lambda: next(times))
    monkeypatch.setattr(driver, "_page_faults", lambda: next(counts))
    with warnings.catch_warnings(record=True) as found, driver.warn_of_page_faults():
        warnings.simplefilter("always")
    assert [str(w.message).startswith("about 25% of the time") for w in found] == [True] * warned
