"""Collectives and memory of a private step on a mesh, counted, and its time on one device."""

import multiprocessing
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import PartitionSpec

import dpjax.training
from dpjax._typing import PyTree
from experiments.benchmarks.models import MODELS, Model
from experiments.benchmarks.results import Group, Groups, median_values, values_over
from experiments.benchmarks.timing import Case, Effort, blocking

PLAIN, SPLIT, COPIED = "plain", "dpjax, split records", "dpjax, records on every device"
SHARDED = ", parameters split"
NO_MESH = "no mesh"
_DEVICES, _EXAMPLES, _BATCH = (1, 8), 4096, 256
_COUNTED, _TIMED = "wide_mlp", ("mlp", "wide_mlp", "cnn")
_EFFORT = Effort(seconds=40.0, repetitions=200)

_KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(_KINDS)})(?:-start)?\(")
_ARRAY = re.compile(r"\b(?:pred|[a-z]+(\d+)[a-z0-9]*)\[([\d,]*)\]")


def mesh_groups() -> Groups:
    """Yields the table of counts, and one of times for each network."""
    yield "collectives and memory of a step, counted", count_group
    for name in _TIMED:
        subject = f"a mesh of one device, {MODELS[name].title}, batch {_BATCH}"
        yield subject, partial(overhead_group, subject, MODELS[name])


def count_group() -> Group:
    """Returns the counts for `_DEVICES` fake devices, made in a process of its own."""
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, spawn, use_fake_devices, (max(_DEVICES),)) as pool:
        cases = [case for n in _DEVICES for case in pool.submit(count_cases, _COUNTED, n).result()]
    model = MODELS[_COUNTED]
    size = sum(leaf.nbytes for leaf in jax.tree.leaves(model.init())) / 1024
    subject = f"{model.title} of {size:,.0f} KiB, Adam, batch {_BATCH}"
    return Group("collectives and memory of", subject, cases, median_values)


def use_fake_devices(count: int) -> None:
    """Gives a new process ``count`` fake devices of the CPU."""
    jax.config.update("jax_platforms", "cpu")
    jax.config.update("jax_num_cpu_devices", count)


def count_cases(name: str, num_devices: int) -> list[Case]:
    """Returns the counts of each kind of step on ``num_devices`` devices."""
    model, cases = MODELS[name], []
    for suffix, rule in {"": None, SHARDED: split_largest}.items():
        sharding = data_mesh(num_devices, rule)
        steps: dict[str, Callable[[Model, dpjax.MeshSharding], Any]] = {
            PLAIN: compile_plain,
            SPLIT: partial(compile_private, split=True),
            COPIED: compile_private,
        }
        for case, compile_step in steps.items():
            if suffix and (num_devices == 1 or case == COPIED):
                continue
            values = count(compile_step(model, sharding), num_devices)
            devices = "1 device" if num_devices == 1 else f"{num_devices} devices"
            cases.append(Case(f"{case}{suffix}, {devices}", None, values))
    return cases


def data_mesh(
    num_devices: int, rule: Callable[[str, Any], PartitionSpec] | None = None
) -> dpjax.MeshSharding:
    """Returns the split of rows over the first devices, with parameters placed by ``rule``."""
    mesh = jax.make_mesh((num_devices,), ("data",), devices=jax.devices()[:num_devices])
    return dpjax.MeshSharding(mesh, "data", *([rule] if rule else []))


def split_largest(path: str, leaf: Any) -> PartitionSpec:
    """The rule of fully sharded data parallelism: matrices split over their first axis."""
    del path
    return PartitionSpec("data") if np.ndim(leaf) > 1 else PartitionSpec()


def compile_plain(model: Model, sharding: dpjax.MeshSharding) -> Any:
    """Returns the compiled step on the mean loss of a batch, by XLA's own partition."""
    optimizer, params = optax.adam(1e-3), model.init()
    state = optimizer.init(params)
    batch = sharding.place(model.batch(_BATCH), sharding.rows)
    placed = sharding.place((params, state), sharding.state_specs((params, state), params))

    def step(params: PyTree, state: PyTree, batch: PyTree) -> PyTree:
        def mean_loss(params: PyTree) -> jax.Array:
            return jax.vmap(model.loss, (None, 0))(params, batch).mean()

        updates, state = optimizer.update(jax.grad(mean_loss)(params), state)
        moved = optax.apply_updates(params, updates), state
        return sharding.constrain(moved, sharding.state_specs(moved, params))

    return jax.jit(step, donate_argnums=(0, 1)).lower(*placed, batch).compile()


def compile_private(model: Model, sharding: dpjax.MeshSharding, *, split: bool = False) -> Any:
    """Returns the compiled private step of the same expected batch size."""
    step, arrays = private_step(model, sharding), model.batch(_EXAMPLES)
    data = dpjax.split_records(arrays, sharding) if split else sharding.place(arrays)
    state = step.init(model.init())
    return jax.jit(step.update, donate_argnums=0).lower(state, data).compile()


def private_step(model: Model, sharding: dpjax.MeshSharding | None) -> dpjax.training.PrivateStep:
    """Returns a private step with Adam on ``_EXAMPLES`` records."""
    sampling = dpjax.PoissonSampling(
        _EXAMPLES, _BATCH / _EXAMPLES, physical_batch_size=_BATCH + 8 * 8
    )
    mechanism = dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=10**6, adjacency="zero_out"
    )
    key = jax.random.key(0)
    return dpjax.private_step(
        model.loss, optax.adam(1e-3), mechanism=mechanism, key=key, sharding=sharding
    )


def count(compiled: Any, num_devices: int) -> dict[str, float]:
    """Returns number and KiB of the collectives of a program, and MiB of a device."""
    found = list(collectives(compiled.as_text(), num_devices))
    sizes = {kind: sum(size for name, size in found if name == kind) / 1024 for kind in _KINDS}
    memory = compiled.memory_analysis()
    arguments = memory.argument_size_in_bytes - memory.alias_size_in_bytes
    held = memory.temp_size_in_bytes + memory.output_size_in_bytes + arguments
    used = {f"{kind} KiB": sizes[kind] for kind in _KINDS[:3]}
    others = sum(sizes[kind] for kind in _KINDS[3:])
    return {"collectives": len(found), **used, "other KiB": others, "MiB a device": held / 2**20}


def collectives(program: str, num_devices: int) -> Iterator[tuple[str, int]]:
    """Yields kind and bytes of each collective in the text of a compiled program.

    >>> text = "%s = (f32[8,2]{1,0}, s32[]) all-reduce(%a, %b), replica_groups={}"
    >>> list(collectives(text, 4)), list(collectives("%r = f32[4]{0} reduce-scatter(%a)", 4))
    ([('all-reduce', 68)], [('reduce-scatter', 64)])
    """
    for line in program.splitlines():
        if match := _COLLECTIVE.search(line):
            scattered = num_devices if match[2] == "reduce-scatter" else 1
            yield match[2], scattered * sum(map(_num_bytes, _ARRAY.finditer(match[1])))


def _num_bytes(array: re.Match[str]) -> int:
    size = np.prod([int(n) for n in array[2].split(",") if n], dtype=int)
    return int(size) * int(array[1] or 8) // 8


def overhead_group(subject: str, model: Model) -> Group:
    """Returns private steps without a mesh and on a mesh of one device."""
    one = data_mesh(1)
    data = jax.tree.map(jnp.asarray, model.batch(_EXAMPLES))
    given: Mapping[str, tuple[PyTree, PyTree]] = {
        NO_MESH: (None, data),
        COPIED: (one, one.place(data)),
        SPLIT: (one, dpjax.split_records(data, one)),
    }
    cases = []
    for name, (sharding, records) in given.items():
        step = private_step(model, sharding)
        state = step.init(model.init())
        compiled = jax.jit(step.update).lower(state, records).compile()
        cases.append(Case(name, blocking(compiled, state, records)))
    return Group("a step", subject, cases, values_over(NO_MESH), _EFFORT)
