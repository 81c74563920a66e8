"""The command ``dpjax``: its answers against known values, dp-accounting and the library's own."""

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path

import dp_accounting
import pytest
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant
from helpers.quick import slow_except

import dpjax
from dpjax.__main__ import _EXAMPLES, _OPTIONS, main
from dpjax.adjacency import ADJACENCIES

PAGE = Path(dpjax.__file__).parents[1] / "docs" / "how_to" / "command_line.md"
EXAMPLES = re.findall(r"```console\n\$ dpjax (.*?)\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
# The page's file for `dpjax rehearse`.
REHEARSAL = re.search(r"```python\n(# plan.py\n.*?)```", PAGE.read_text("utf-8"), re.DOTALL)[1]
# Quick: 150 steps.
PLAN = "--n 10000 --batch 200 --epochs 3"
STATED = "--delta 1e-5 --adjacency zero_out"


@pytest.fixture
def run(capsys):
    def answer(line: str) -> str:
        assert main(shlex.split(line)) == 0
        return capsys.readouterr().out

    return answer


@pytest.fixture
def values(run):
    return lambda line: json.loads(run(f"{line} --json"))


def test_epsilon_of_mnist(values):
    """RDP, the moments accountant and the CLT as published for this plan: 2.60, 3.01, 2.32."""
    plan = "--n 60000 --batch 256 --epochs 60"
    found = values(f"epsilon {plan} --sigma 1.1 {STATED}")
    assert 2.379 <= found["epsilon_lower"] <= found["epsilon"] <= 2.383
    estimates = {one["method"]: one["epsilon"] for one in found["estimates"]}
    assert estimates["rdp"] == pytest.approx(2.60, abs=0.005)
    assert estimates["moments"] == pytest.approx(3.01, abs=0.005)
    assert estimates["gdp_clt"] == pytest.approx(2.32, abs=0.005)
    assert found["num_steps"] == 14_063


def test_noise_of_cifar(values):
    plan = "--n 50000 --batch 500 --epochs 30"
    found = values(f"noise {plan} --epsilon 2 --delta 1e-6 --adjacency zero_out")
    assert found["noise_multiplier"] == 1.4348
    assert 1.99 < found["epsilon"] <= 2.0
    assert found["num_steps"] == 3_000


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
def test_epsilon_is_that_of_dp_accounting(adjacency, values):
    found = values(f"epsilon {PLAN} --sigma 0.9 --delta 1e-5 --adjacency {adjacency}")
    step = dp_accounting.PoissonSampledDpEvent(0.02, dp_accounting.GaussianDpEvent(0.9))
    event = dp_accounting.SelfComposedDpEvent(step, 150)
    relation = dp_accounting.NeighboringRelation.ADD_OR_REMOVE_ONE
    if adjacency == "replace_one":
        relation = dp_accounting.NeighboringRelation.REPLACE_ONE
    other = PLDAccountant(relation).compose(event).get_epsilon(1e-5)
    assert found["epsilon_lower"] <= other
    assert found["epsilon"] == pytest.approx(other, rel=2e-3)
    if adjacency == "add_remove":
        rdp = RdpAccountant(neighboring_relation=relation).compose(event).get_epsilon(1e-5)
        assert {one["method"]: one["epsilon"] for one in found["estimates"]}["rdp"] == rdp


@pytest.mark.parametrize("sampler", ["poisson", "fixed", "shuffled"])
def test_noise_is_the_least(sampler, values):
    found = values(f"noise {PLAN} --epsilon 1 {STATED} --sampler {sampler}")
    sigma = found["noise_multiplier"]
    again = values(f"epsilon {PLAN} --sigma {sigma} {STATED} --sampler {sampler}")
    assert again["epsilon"] == found["epsilon"] <= 1.0
    less = values(f"epsilon {PLAN} --sigma {0.99 * sigma} {STATED} --sampler {sampler}")
    assert less["epsilon"] > 1.0


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.6, 6.0], ids=["few", "beyond the first limit"])
def test_steps_are_the_most(epsilon, values):
    size = "--n 1000 --batch 500"
    found = values(f"steps {size} --sigma 20 --epsilon {epsilon} {STATED}")
    steps = found["num_steps"]
    assert found["epsilon"] <= epsilon
    assert (steps > 200) == (epsilon == 6.0)
    more = values(f"epsilon {size} --steps {steps + 1} --sigma 20 {STATED}")
    assert more["epsilon"] > epsilon


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "steps"),
    [
        ("--n 60000 --batch 256 --epochs 60", 14_063),  # 14,062.5
        ("--n 6e4 --batch 256 --epochs 1.5", 352),  # 351.5625
        ("--n 1_000 --batch 10.0 --epochs 0.07", 7),  # 7.000000000000001 in floating point
        ("--n 257 --batch 256 --epochs 60 --sampler shuffled", 120),  # passes of two steps
        ("--n 257 --batch 256 --steps 61 --sampler shuffled", 61),
        ("--n 257 --batch 256 --epochs 60 --sampler fixed", 61),
    ],
)
def test_epochs_are_rounded_up_to_steps(options, steps, values):
    assert values(f"epsilon {options} --sigma 20 {STATED}")["num_steps"] == steps


@pytest.mark.parametrize("sampler", ["poisson", "truncated", "allocated"])
def test_noise_is_that_of_dpsgd(sampler, values):
    plan = {"num_examples": 10_000, "batch_size": 200, "epochs": 3}
    target = {"epsilon": 1.0, "delta": 1e-5, "adjacency": "zero_out"}
    made = dpjax.dpsgd(**plan, **target, sampler=sampler)
    found = values(f"noise {PLAN} --epsilon 1 {STATED} --sampler {sampler}")
    assert found["noise_multiplier"] == pytest.approx(made.noise_multiplier, rel=2e-3)
    assert found["num_steps"] == made.num_steps
    assert found["description"].get("steps") == made.guarantee.description.get("steps")


@pytest.mark.slow
def test_certificate_is_that_of_the_mechanism(run, values):
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(10_000, 0.02, expected_batch_size=200.0),
        l2_clip=0.5,
        noise_multiplier=0.9,
        num_steps=150,
        adjacency="zero_out",
        unit="one image",
    )
    certificate = mechanism.certificate(1e-5)
    line = f"certificate --n 10000 --batch 200 --steps 150 --sigma 0.9 --clip 0.5 {STATED}"
    line += " --unit 'one image'"
    assert run(line) == f"{certificate}\n"
    assert run(f"{line} --paragraph") == f"{certificate.paragraph()}\n"
    assert run(f"{line} --json") == f"{certificate.to_json()}\n"
    calibrated = f"certificate {PLAN} --epsilon 1 {STATED}"
    assert (
        values(calibrated)["epsilon"]
        == values(calibrated.replace("certificate", "noise"))["epsilon"]
    )


@pytest.mark.slow
def test_compare_has_both_bounds_of_each_assumption(values):
    rows = values(f"compare {PLAN} --sigma 0.9 --epsilon 2.5 --delta 1e-5")["rows"]
    assert [(row["sampler"], row["adjacency"]) for row in rows] == [
        ("poisson", "add_remove"),
        ("poisson", "replace_one"),
        ("poisson", "zero_out"),
        ("fixed", "replace_one"),
        ("fixed", "zero_out"),
        ("shuffled", "replace_one"),
        ("shuffled", "zero_out"),
    ]
    for row in (rows[2], rows[4], rows[5]):
        assumed = f"--sampler {row['sampler']} --adjacency {row['adjacency']}"
        found = values(f"epsilon {PLAN} --sigma 0.9 --delta 1e-5 {assumed}")
        assert row["epsilon"] == found["epsilon"]
        assert row["epsilon_lower"] == found["epsilon_lower"]


@pytest.mark.parametrize(
    ("sampler", "adjacency", "claim", "verdict"),
    [
        ("poisson", "zero_out", 100, "certified"),
        ("poisson", "zero_out", 0.1, "refuted"),
        ("shuffled", "zero_out", 100, "certified"),
        ("shuffled", "zero_out", 0.1, "open: neither certified nor refuted for shuffled batches"),
        ("fixed", "zero_out", 3, "open: between the bounds"),
        ("fixed", "replace_one", 3, "refuted"),
        ("truncated --truncated-batch 220", "zero_out", 3, "open: between the bounds"),
    ],
)
def test_compare_verdict(sampler, adjacency, claim, verdict, run):
    assumed = f"--sampler {sampler} --adjacency {adjacency}"
    out = run(f"compare {PLAN} --sigma 0.9 --epsilon {claim} --delta 1e-5 {assumed}")
    assert out.startswith(f"claim: epsilon = {claim} at delta = 1e-05\n")
    *_, row = out.splitlines()
    assert row.startswith(sampler.split()[0])
    assert f"  {verdict}" in row


def test_compare_without_a_sampler_names_what_a_shuffling_paper_claims(run):
    line = f"compare {PLAN} --sigma 4 --epsilon 2 --delta 1e-5"
    assert "A paper that shuffles its data" in run(line)
    assert "A paper that shuffles its data" not in run(f"{line} --sampler poisson")


@pytest.mark.slow
def test_compare_of_too_little_noise_has_the_rows_that_are_known(values):
    rows = values(f"compare {PLAN} --sigma 0.005 --epsilon 2 --delta 1e-5")["rows"]
    assert [row["epsilon_lower"] for row in rows] == [None] * 7
    assert [row["epsilon"] is None for row in rows] == [False, True, *[False] * 5]
    assert rows[1]["verdict"] == "open: no accountant supports so little noise"


def test_steps_beyond_those_tried_are_warned_of(capsys, monkeypatch):
    monkeypatch.setattr("dpjax.__main__._MOST_STEPS", 400)
    main(f"steps --n 1000 --batch 500 --sigma 20 --epsilon 6 {STATED} --json".split())
    out, err = capsys.readouterr()
    assert json.loads(out)["num_steps"] == 400
    assert "warning: no more than 400 steps are tried" in err


@pytest.fixture(scope="module")
def rehearsal():
    """The rehearsal of the page, made once."""
    names = {}
    exec(REHEARSAL, names)
    return names["rehearsal"]


@pytest.fixture
def plan(tmp_path, monkeypatch, rehearsal):
    """Writes a file of Python, which may import `made`, for `dpjax rehearse`."""
    made = type(sys)("made")
    made.rehearsal = rehearsal
    monkeypatch.setitem(sys.modules, "made", made)
    monkeypatch.chdir(tmp_path)

    def write(text: str) -> Path:
        path = tmp_path / "plan.py"
        path.write_text(text, "utf-8")
        return path

    return write


@pytest.mark.parametrize("command", list(_EXAMPLES))
def test_example_of_each_help_runs(command, run, capsys, plan):
    plan("from made import rehearsal")
    with pytest.raises(SystemExit):
        main([command, "--help"])
    assert f"dpjax {command} {_EXAMPLES[command]}\n" in capsys.readouterr().out
    Path("certificate.json").write_text(run(f"certificate {_EXAMPLES['certificate']}"), "utf-8")
    assert run(f"{command} {_EXAMPLES[command]}")


def test_table_begins_with_what_was_asked_for(run):
    for command, options, first in (
        ("epsilon", f"{PLAN} --sigma 4", "epsilon"),
        ("noise", f"{PLAN} --epsilon 1", "noise multiplier"),
        ("steps", "--n 10000 --batch 200 --sigma 4 --epsilon 0.1", "steps"),
    ):
        lines = run(f"{command} {options} {STATED}").splitlines()
        assert lines[0].startswith(f"{first}  ")
        assert len(lines) == 8


@pytest.mark.parametrize("written", ["10,000", "10_000", "1e4"])
def test_counts_in_groups_of_three_digits(written, run):
    line = f"epsilon {PLAN} --sigma 4 {STATED}"
    assert run(line.replace("--n 10000", f"--n {written}")) == run(line)


def test_delta_of_one_over_the_number_of_records_is_warned_of(capsys):
    main(f"epsilon {PLAN} --sigma 4 --delta 1e-4 --adjacency zero_out".split())
    assert "delta is not below one over the number of records" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("kind", slow_except(["png"], ["png", "pdf", "svg"]))
def test_plot_writes_a_figure(kind, run, tmp_path):
    starts = {"png": b"\x89PNG", "pdf": b"%PDF", "svg": b"<?xml"}
    path = tmp_path / f"figure.{kind}"
    for command in ("noise", "certificate"):
        run(f"{command} --n 1000 --batch 500 --steps 3 --epsilon 2 {STATED} --plot {path}")
        assert path.read_bytes().startswith(starts[kind])
        path.unlink()
    run(f"compare {PLAN} --sigma 4 --epsilon 2 --delta 1e-5 --plot {path}")
    assert path.read_bytes().startswith(starts[kind])


@pytest.mark.slow
def test_rehearse_runs_the_file_of_the_page(run, plan):
    path = plan(f"print('simulating')\n{REHEARSAL}")
    shown = run(f"rehearse {path}")
    assert shown.startswith("Rehearsal on simulated records: n = 2,000, epsilon = 1")
    assert "Error by epsilon" in shown


@pytest.mark.parametrize(
    "text",
    [
        "from made import rehearsal",
        "import made\ndef rehearse():\n    return made.rehearsal",
        "from dpjax import rehearse\nfrom made import rehearsal",
        "import beside\nrehearsal = beside.made.rehearsal",
    ],
    ids=["variable", "function", "the library's function beside it", "module beside the file"],
)
def test_rehearse_prints_and_writes_what_the_file_defines(text, run, plan, rehearsal, capsys):
    path = plan(f"print('some text of its own')\n{text}")
    path.with_name("beside.py").write_text("import made", "utf-8")
    assert run(f"rehearse {path}") == f"{rehearsal}\n"

    shown = run(f"rehearse {path} --html report.html --plot figure.png --json")
    assert json.loads(shown) == json.loads(json.dumps(rehearsal.to_dict()))
    page = Path("report.html").read_text("utf-8")
    assert page.startswith("<!doctype html>")
    assert rehearsal.to_html() in page
    assert Path("figure.png").read_bytes().startswith(b"\x89PNG")
    assert str(path.parent) not in sys.path


@pytest.mark.parametrize(
    ("text", "got"),
    [
        ("x = 1", "got neither"),
        ("from dpjax import rehearse", "got neither"),
        ("rehearsal = 1", "got a int"),
        ("def rehearse():\n    return 'x'", "got a str"),
    ],
)
def test_rehearse_refuses_a_file_without_a_rehearsal(text, got, plan, capsys):
    with pytest.raises(SystemExit) as status:
        main(["rehearse", str(plan(text))])
    assert status.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert "plan.py must define `rehearsal = dpjax.rehearse(...)`, or a function" in last
    assert last.endswith(got)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("def rehearse():\n    raise ValueError('n must be 3')", "ValueError: n must be 3"),
        ("rehearsal = 1 +", "SyntaxError: invalid syntax"),
        ("import sys; sys.exit('over')", "SystemExit: over"),
    ],
)
def test_rehearse_of_a_file_that_fails_shows_its_traceback(text, message, plan, capsys):
    path = plan(text)
    with pytest.raises(SystemExit) as status:
        main(["rehearse", str(path)])
    assert str(status.value.code).startswith(f"dpjax rehearse: error: {path} failed with {message}")
    err = capsys.readouterr().err
    assert f'File "{path}"' in err
    assert "runpy" not in err


REFUSED = [
    ("rehearse", r"required: PLAN"),
    ("rehearse no_file.py", r"argument PLAN: must be a Python file that exists, got 'no_file.py'"),
    (f"rehearse {PAGE} --html x.txt", r"argument --html: must be a file of type .html"),
    ("epsilon --n 6.5", r"argument --n: must be a whole number of at least 1, got '6.5'"),
    ("epsilon --n 0", r"argument --n: must be a whole number of at least 1, got '0'"),
    ("epsilon --n 10,00", r"argument --n: must be a whole number of at least 1, got '10,00'"),
    ("epsilon --n many", r"argument --n: must be a whole number of at least 1, got 'many'"),
    ("epsilon --epochs -1", r"argument --epochs: must be a finite number above 0, got '-1'"),
    ("epsilon --sigma inf", r"argument --sigma: must be a finite number above 0, got 'inf'"),
    ("epsilon --delta 1", r"argument --delta: must be in \(0, 1\), got '1'"),
    ("epsilon --adjacency x", r"argument --adjacency: invalid choice: 'x' .*zero_out"),
    ("epsilon --sampler x", r"argument --sampler: invalid choice: 'x' .*shuffled"),
    ("epsilon --plot x.foo", r"argument --plot: must be .*\.pdf, \.png, \.svg.*, got 'x.foo'"),
    ("epsilon --plot no/x.png", r"argument --plot: must be .* a folder that exists, got 'no/x"),
    (f"epsilon {PLAN} --sigma 1 --delta 1e-5", r"required: --adjacency; zero_out is usual"),
    (f"noise {PLAN} {STATED}", r"required: --epsilon"),
    (f"epsilon {PLAN} --steps 9", r"argument --steps: not allowed with argument --epochs"),
    (f"epsilon --n 9 --batch 3 --sigma 1 {STATED}", r"one of the arguments --epochs --steps is"),
    (f"certificate {PLAN} {STATED}", r"one of the arguments --sigma --epsilon is required"),
    (
        f"epsilon --n 10 --batch 11 --steps 1 --sigma 1 {STATED}",
        r"argument --batch: must be at most --n, 10, got 11",
    ),
    (
        f"epsilon {PLAN} --sigma 1 {STATED} --truncated-batch 300",
        r"argument --truncated-batch: must be given with --sampler truncated only, got 300",
    ),
    (
        f"epsilon {PLAN} --sigma 1 --delta 1e-5 --adjacency add_remove --sampler fixed",
        r"argument --adjacency: must be 'replace_one' or 'zero_out' for FixedSizeSampling, got",
    ),
    (
        f"compare {PLAN} --sigma 1 --epsilon 1 --delta 1e-5 --adjacency add_remove --sampler fixed",
        r"argument --adjacency: must be 'replace_one' or 'zero_out'",
    ),
    (
        f"steps --n 10000 --batch 200 --sigma 0.3 --epsilon 1 {STATED}",
        r"argument --epsilon: must be at least that of one step, \d+\.\d+, got 1; more noise",
    ),
    (
        f"epsilon --n 3e9 --batch 9 --steps 1 --sigma 1 {STATED}",
        r"argument --n: must be below 2\^31, got 3000000000",
    ),
    (
        f"epsilon --n 9 --batch 9 --epochs 1e30 --sigma 1 {STATED}",
        r"argument --epochs: must be below 2\^63 .* got 1e\+30",
    ),
    (
        f"epsilon {PLAN} --sigma 1 {STATED} --sampler truncated --truncated-batch 20000",
        r"argument --truncated-batch: must be at most .*10000, got 20000",
    ),
    ("", r"required: COMMAND"),
    ("certify", r"invalid choice: 'certify' .*compare"),
]


@pytest.mark.parametrize(("line", "message"), REFUSED)
def test_options_refused(line, message, capsys):
    with pytest.raises(SystemExit) as status:
        main(line.split())
    assert status.value.code == 2
    assert re.search(message, capsys.readouterr().err.splitlines()[-1])


def test_figure_without_matplotlib_names_the_extra(capsys, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(SystemExit):
        main(f"epsilon {PLAN} --sigma 4 {STATED} --plot {tmp_path / 'x.png'}".split())
    assert (
        "matplotlib is not installed: install it, or dpjax with its extra 'plot'"
        in capsys.readouterr().err
    )


def test_adjacencies_are_those_of_the_library():
    assert sorted(_OPTIONS["adjacency"][0]) == sorted(ADJACENCIES)


@pytest.mark.parametrize(
    "line", ["--version", "--help", "epsilon --help", "epsilon --n x", "rehearse --help"]
)
def test_version_help_and_refusals_import_no_jax(line):
    report = "print(*sorted({'jax', 'dp_accounting', 'numpy'} & set(sys.modules)))"
    code = (
        "import sys; from dpjax.__main__ import main\n"
        f"try:\n    main({line.split()})\nexcept SystemExit:\n    {report}"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    *_, imported = process.stdout.decode().splitlines()
    assert imported == ""


def test_commands_of_numbers_import_no_jax():
    lines = [
        f"{name} {_EXAMPLES[name]}" for name in "epsilon noise steps certificate compare".split()
    ]
    code = (
        "import sys; from dpjax.__main__ import main\n"
        f"for line in {lines}:\n    main(line.split())\n"
        "print(*sorted({'jax', 'optax', 'chex', 'dp_accounting'} & set(sys.modules)))"
    )
    process = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    *_, imported = process.stdout.decode().splitlines()
    assert imported == "dp_accounting"  # power: what the commands import is found


def test_module_runs_as_a_command():
    command = [sys.executable, "-m", "dpjax", "--version"]
    process = subprocess.run(command, check=True, capture_output=True)
    assert process.stdout.decode() == f"dpjax {dpjax.__version__}\n"


@pytest.mark.slow
@pytest.mark.parametrize(("line", "output"), EXAMPLES, ids=[line[:30] for line, _ in EXAMPLES])
def test_examples_of_the_page_print_what_it_shows(line, output, run, monkeypatch, tmp_path):
    """But for digits of JSON's numbers beyond the eighth, which other versions of numpy change."""
    monkeypatch.chdir(tmp_path)
    shown, expected = (
        re.sub(r"\d+\.\d{8,}", lambda number: f"{float(number[0]):.8g}", text)
        for text in (run(line), output)
    )
    assert shown == expected


def test_page_has_an_example_of_each_command_but_certificate():
    shown = {line.split()[0] for line, _ in EXAMPLES}
    assert shown == {"epsilon", "noise", "steps", "compare"}
