import json
import sys

import pytest
from experiments.bench import __main__ as command
from experiments.bench.groups import Group, Selection, make_groups
from experiments.bench.measurements import Bench, Measurement, load, measure, save
from experiments.bench.steps import Limits, Skipped
from experiments.bench.tables import text
from experiments.bench.timing import Case, Effort
from experiments.bench.torch_peer import torch_worker
from experiments.bench.ways import NOISY, PLAIN, PRIVATE, why_missing


def case(name, seconds):
    return Case(name, lambda: seconds, 10.0)


GROUP = Group(
    "steps", "toy", 8, 8, [case(PLAIN, 0.5), case(NOISY, 1.0), Skipped("vmap", "too large")]
)


@pytest.fixture
def no_peers(monkeypatch):
    missing = command.missing_peers() | {"torch": "left out", "opacus": "left out"}
    monkeypatch.setattr(command, "missing_peers", lambda: missing)


def test_a_small_run_writes_what_it_prints(tmp_path, capsys, no_peers):
    argv = "--kinds steps --models mlp --batches 4 --repetitions 3 --seconds 0.01".split()
    assert command.main([*argv, "--results", str(tmp_path)]) == 0
    bench = load(tmp_path)
    assert [m.case for m in bench.measurements][:3] == [PLAIN, NOISY, PRIVATE]
    for m in bench.measurements:
        assert (m.kind, m.model, m.batch, m.repetitions) == ("steps", "MLP 784-256-10", 4, 3)
        assert m.least_ms <= m.median_ms
        assert m.examples_per_second == pytest.approx(4e3 / m.median_ms)
        assert m.ratio == pytest.approx(m.median_ms / bench.measurements[0].median_ms)
        assert m.noisy_ratio == pytest.approx(m.median_ms / bench.measurements[1].median_ms)
    assert {"JAX", "Python", "dpjax", "optax"} <= bench.versions.keys()
    said = capsys.readouterr()
    assert said.out == text(bench) + "\n"
    assert said.err == "MLP 784-256-10, batch 4\n"


@pytest.mark.parametrize("argv", [["--models", "nothing"], ["--kinds", "nothing"], ["extra"]])
def test_unknown_arguments_are_refused(argv, capsys):
    with pytest.raises(SystemExit) as stopped:
        command.main(argv)
    assert stopped.value.code == 2
    capsys.readouterr()


def test_an_interrupted_run_keeps_the_groups_before(tmp_path, monkeypatch, no_peers, capsys):
    def groups(selection, worker):
        def interrupted():
            raise KeyboardInterrupt

        yield "first", lambda: GROUP
        yield "second", interrupted

    monkeypatch.setattr(command, "make_groups", groups)
    assert command.main(["--results", str(tmp_path)]) == 130
    assert len(load(tmp_path).measurements) == 3
    assert "the groups finished so far are kept" in capsys.readouterr().err


def test_ratios_are_to_the_plain_steps_of_the_group():
    plain, noisy, skipped = measure(GROUP, Effort(repetitions=3))
    assert (plain.ratio, plain.noisy_ratio, noisy.ratio, noisy.noisy_ratio) == (1, 0.5, 2, 1)
    assert (noisy.median_ms, noisy.examples_per_second, noisy.peak_mib) == (1000, 8, 10)
    assert skipped == Measurement("steps", "toy", 8, "vmap", note="too large")


def test_without_the_plain_step_there_is_no_ratio():
    group = GROUP._replace(cases=[Skipped(PLAIN, "too large"), case(PRIVATE, 0.5)])
    _, private = measure(group, Effort(repetitions=3))
    assert (private.median_ms, private.ratio, private.noisy_ratio) == (500, None, None)


def test_a_slow_case_says_that_it_was_timed_once():
    slow = measure(GROUP._replace(cases=[case(PLAIN, 20.0)]), Effort())[0]
    assert (slow.repetitions, slow.note) == (1, "slow: its first call alone")


def test_the_terminals_table(tmp_path):
    bench = Bench({}, "", {"torch": "not there"}, tuple(measure(GROUP, Effort(repetitions=3))))
    assert text(bench).splitlines() == [
        "toy, batch 8",
        "                  ms  × plain  × noisy  examples/s  peak MiB  runs",
        "plain            500     1.00     0.50        16.0      10.0     3",
        "plain + noise  1,000     2.00     1.00        8.00      10.0     3",
        "vmap               –        –        –           –         –     –  too large",
        "",
        "not measured: torch (not there)",
    ]


def test_saved_and_loaded_again(tmp_path):
    bench = Bench({"JAX": "1"}, "2 CPU cores", {}, tuple(measure(GROUP, Effort(repetitions=3))))
    assert load(save(tmp_path, bench).parent) == bench


@pytest.mark.parametrize("content", ["nothing", "[]", "{}", json.dumps({"measurements": [1]})])
def test_another_file_of_this_name_is_named(tmp_path, content):
    (tmp_path / "bench.json").write_text(content)
    with pytest.raises(ValueError, match="must be a benchmark's results"):
        load(tmp_path)


def test_loops_are_compared():
    selection = Selection(("loops",), ("mlp", "transformer"), (4,), Limits(1, 1))
    groups = dict(make_groups(selection, None))
    assert list(groups) == ["MLP 784-256-10, loops"]
    loops = groups["MLP 784-256-10, loops"]()
    assert [case.name for case in loops.cases] == ["host loop", "device loop"]
    assert all(case.seconds() > 0 for case in loops.cases)


def test_what_cannot_be_imported_says_why(tmp_path, monkeypatch):
    (tmp_path / "broken_peer.py").write_text("raise OSError('libfoo.so is missing')")
    monkeypatch.syspath_prepend(tmp_path)
    assert why_missing("broken_peer") == "libfoo.so is missing"
    assert set(command.missing_peers()) <= {"jax-privacy", "torch", "opacus"}


def test_a_worker_that_ends_says_its_last_words(monkeypatch, tmp_path):
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\necho 'no such library' >&2\nexec {sys.executable} -c ''\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with torch_worker() as worker:
        for _ in range(2):
            with pytest.raises(RuntimeError, match="the torch worker ended: no such library"):
                worker.forget()
