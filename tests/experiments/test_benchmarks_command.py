import json
import sys
from functools import partial

import pytest

from experiments.benchmarks import __main__ as command
from experiments.benchmarks.imports import BASELINE, STATEMENTS, import_group
from experiments.benchmarks.inference import (
    NUMPYRO,
    account_group,
    inference_groups,
    svi_group,
)
from experiments.benchmarks.methods import NOISY, PLAIN, PRIVATE, import_error
from experiments.benchmarks.models import MODELS
from experiments.benchmarks.results import (
    Benchmark,
    Group,
    Row,
    format_text,
    load,
    measure,
    results_path,
    save,
)
from experiments.benchmarks.sources import MAPPED, RECORDS, RESIDENT, source_groups
from experiments.benchmarks.steps import loop_group, step_groups, step_values
from experiments.benchmarks.teachers import teacher_groups
from experiments.benchmarks.timing import Case, Effort
from experiments.benchmarks.torch_client import torch_worker


def case(name, seconds):
    return Case(name, lambda: seconds, {"peak MiB": 10.0})


SKIPPED = Case("vmap", None, note="large")
CASES = [case(PLAIN, 0.5), case(NOISY, 1.0), SKIPPED]
GROUP = Group("steps", "toy", CASES, partial(step_values, 8), batch=8)
THREE = Effort(repetitions=3)


@pytest.fixture
def no_peers(monkeypatch):
    monkeypatch.setattr(command, "missing_libraries", lambda part: {"torch": "left out"})
    part = command.PARTS["steps"]._replace(peers=("torch",))
    monkeypatch.setitem(command.PARTS, "steps", part)
    monkeypatch.setattr("experiments.benchmarks.steps.importlib.util.find_spec", lambda name: None)


def test_main_writes_what_it_prints(tmp_path, capsys, no_peers):
    argv = "steps --only 784-256-10,\xa0batch --batches 4 --repetitions 3 --seconds 0.01".split(" ")
    argv = [argument.replace("\xa0", " ") for argument in argv]
    assert command.main([*argv, "--results", str(tmp_path)]) == 0
    benchmark = load(tmp_path, "steps")
    (table,) = benchmark.tables
    assert (table.kind, table.subject, table.batch) == ("steps", "MLP 784-256-10", 4)
    assert [row.case for row in table.rows][:3] == [PLAIN, NOISY, PRIVATE]
    plain, noisy = (row.values["ms"] for row in table.rows[:2])
    for row in table.rows:
        assert row.repetitions == 3
        assert row.values["examples/s"] == pytest.approx(4e3 / row.values["ms"])
        assert row.values["× plain"] == pytest.approx(row.values["ms"] / plain)
        assert row.values["× noisy"] == pytest.approx(row.values["ms"] / noisy)
    assert {"JAX", "Python", "dpjax", "optax"} <= benchmark.versions.keys()
    said = capsys.readouterr()
    assert said.out == format_text(benchmark) + "\n"
    assert said.err == "MLP 784-256-10, batch 4\n"


@pytest.mark.parametrize("argv", [["nothing"], ["steps", "--unknown"], ["steps", "nothing"]])
def test_main_refuses_unknown_arguments(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(argv)
    assert stopped.value.code == 2
    capsys.readouterr()


def test_main_runs_all_parts_by_default(monkeypatch, tmp_path, capsys):
    ran = []
    monkeypatch.setattr(
        command, "run", lambda name, _: ran.append(name) or Benchmark("", {}, "", {})
    )
    assert command.main(["--results", str(tmp_path)]) == 0
    names = [
        "steps",
        "routes",
        "accounting",
        "inference",
        "sources",
        "meshes",
        "teachers",
        "imports",
    ]
    assert ran == names
    capsys.readouterr()


def test_main_keeps_finished_groups_when_interrupted(tmp_path, monkeypatch, capsys):
    def groups(batches):
        def interrupted():
            raise KeyboardInterrupt

        yield "first", lambda: GROUP
        yield "second", interrupted

    monkeypatch.setitem(command.PARTS, "steps", command.Part(groups, ("optax",)))
    assert command.main(["steps", "--results", str(tmp_path)]) == 130
    assert len(load(tmp_path, "steps").tables) == 1
    assert "the groups finished so far are kept" in capsys.readouterr().err


def test_measure_of_steps_has_ratios_to_the_plain_one():
    plain, noisy, skipped = measure(GROUP, THREE).rows
    ratios = [m.values[name] for m in (plain, noisy) for name in ("× plain", "× noisy")]
    assert ratios == [1, 0.5, 2, 1]
    assert [noisy.values[name] for name in ("ms", "examples/s", "peak MiB")] == [1000, 8, 10]
    assert skipped == Row("vmap", note="large")

    # Without the plain step there is no ratio, and a slow case is timed once.
    group = GROUP._replace(cases=[SKIPPED._replace(name=PLAIN), case(PRIVATE, 20.0)])
    _, private = measure(group).rows
    assert private.values["× plain"] is private.values["× noisy"] is None
    assert (private.repetitions, private.note) == (1, "slow: only its first call was timed")


def test_format_text_and_save(tmp_path):
    found = (measure(GROUP, THREE),)
    benchmark = Benchmark("steps", {}, "", {"torch": "not there"}, found)
    assert format_text(benchmark).splitlines() == [
        "toy, batch 8",
        "                  ms  × plain  least  most  × noisy  examples/s  peak MiB  runs",
        "plain            500     1.00   1.00  1.00     0.50        16.0      10.0     3",
        "plain + noise  1,000     2.00   2.00  2.00     1.00        8.00      10.0     3",
        "vmap               –        –      –     –        –           –         –     –  large",
        "",
        "not measured: torch (not there)",
    ]
    save(tmp_path, benchmark)
    assert load(tmp_path, "steps") == benchmark


def test_steps_have_the_ratio_to_the_fastest_variant_of_opacus():
    cases = [*CASES, case("Opacus, hooks", 4.0), case("Opacus, ghost", 2.0)]
    rows = measure(GROUP._replace(cases=cases), THREE).rows
    assert [row.values.get("× Opacus, best") for row in rows] == [0.25, 0.5, None, 2.0, 1.0]


@pytest.mark.parametrize("content", ["nothing", "[]", json.dumps({"tables": [1]})])
def test_load_names_a_broken_file(tmp_path, content):
    results_path(tmp_path, "steps").write_text(content)
    with pytest.raises(ValueError, match="must be a benchmark's results"):
        load(tmp_path, "steps")


def test_loop_group_compares_two_loops(no_peers):
    titles = [title for title, _ in step_groups([4])]
    assert titles[-2:] == ["MLP 784-256-10, loops", "tutorial CNN, loops"]
    loops = loop_group(MODELS["mlp"])
    assert [case.name for case in loops.cases] == ["host loop", "device loop"]
    host, device = measure(loops, Effort(0.01, 3)).rows
    assert host.values["× host"] == 1
    assert device.values["× host"] == pytest.approx(device.values["ms"] / host.values["ms"])


def test_import_error_has_the_reason(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libfoo.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    assert import_error("broken_peer") == "libfoo.so is missing"
    missing = command.missing_libraries(command.PARTS["steps"])
    assert set(missing) <= {"jax-privacy", "torch", "opacus"}


def test_torch_worker_reports_its_last_output(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho 'no such library' >&2\nexec {sys.executable} -c ''\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with torch_worker() as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the torch worker ended: no such library"):
                worker.forget()


def test_import_group_times_new_processes(monkeypatch):
    group = import_group()
    assert [case.name for case in group.cases] == [BASELINE, *STATEMENTS]
    assert 0.001 < group.cases[1].seconds() < 600
    fast = [case._replace(seconds=lambda: 2.0) for case in group.cases]
    _, dpjax, _ = measure(group._replace(cases=fast), THREE).rows
    assert dpjax.values["ms"] == 2000.0
    assert dpjax.values[f"× {BASELINE}"] == 1.0


def test_inference_groups(monkeypatch):
    titles = [title for title, _ in inference_groups()]
    assert len(titles) == len(set(titles)) == 8
    monkeypatch.setattr("experiments.benchmarks.inference.ACCOUNT_STEPS", 200)
    whole, part = measure(account_group(), Effort(0.01, 3)).rows
    assert (whole.case, part.case) == ("200 steps of 1,024 norms", "2 steps of 1,024 norms")
    guide = next(make for title, make in inference_groups() if "AutoNormal" in title)
    assert guide.func is svi_group
    found = measure(guide(), Effort(0.01, 3)).rows
    assert [m.case for m in found][:1] == [NUMPYRO]
    assert found[0].values["× numpyro"] == 1
    assert all(m.values["least ms"] <= m.values["ms"] for m in found)


def test_teacher_groups_compare_with_loops():
    """The loops and the call take as many steps; a small network and two teachers."""
    titles = [title for title, _ in teacher_groups(2)]
    assert titles[:2] == [
        f"2 teachers, softmax regression, {what}" for what in ("training", "votes")
    ]
    for title, make in list(teacher_groups(2))[:2]:
        group = make()
        assert (group.subject, len(group.cases)) == (title, 4 if "training" in title else 2)
        rows = measure(group, Effort(0.01, 3)).rows
        assert all(row.values["ms"] > 0 for row in rows)
        assert rows[0].values[f"× {rows[0].case}"] == 1


def test_source_groups_compare_with_the_device(monkeypatch):
    monkeypatch.setattr("experiments.benchmarks.sources._BLOCK", 3)
    groups = source_groups()  # its files are there until it ends
    title, make = next(groups)
    group = make()
    assert group.subject == title == "images from files, MLP 784-256-10, batch 256"
    rows = measure(group, Effort(0.01, 3)).rows
    assert [row.case for row in rows] == [RESIDENT, MAPPED, RECORDS]
    assert all(row.values["ms"] > 0 for row in rows)
    assert rows[0].values[f"× {RESIDENT}"] == 1
