"""The command ``dpjax``, also ``python -m dpjax``: the privacy of DP-SGD from the shell.

``rehearse`` runs a Python file and prints the `Rehearsal` that it makes, ``verify`` verifies files
of certificates; every other command builds a `SubsampledGaussian` from its options and prints what
its certificate has, without JAX. dp-accounting, whose import takes most of a command's time, is
imported after the options were read.
"""

import argparse
import contextlib
import json
import math
import re
import runpy
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import dpjax

if TYPE_CHECKING:
    from dpjax.mechanisms import SubsampledGaussian
    from dpjax.rehearsal import Rehearsal
    from dpjax.sampling import Sampling

# The search for the most steps begins at this many epochs, and ends at this many steps.
_FIRST_EPOCHS, _MOST_STEPS = 100, 2**23
# Points of the figure of epsilon against epochs.
_NUM_POINTS = 12
# Calibrated noise multipliers are rounded up to four decimals.
_DECIMALS = 10_000
_SHUFFLED_NOTE = """\
No sampler was given, so each is assumed in turn. A paper that shuffles its data but states the
epsilon of Poisson sampling made its claim under the rows 'poisson'; for the batches that it drew,
the upper bounds of the rows 'shuffled' are what is proven."""
_COMPOSED = "no accountant that composes the steps certifies less"
_FIGURES = (".pdf", ".png", ".svg")
# The page around a report, in the colours that the reader's browser is set to.
_PAGE = """\
<!doctype html>
<html lang="en">
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Rehearsal</title>
<style>
:root{{color-scheme:light dark;font:16px/1.5 system-ui,sans-serif}}
body{{margin:1.5rem}}
</style>
{report}
</html>
"""

_EXAMPLES = {
    "epsilon": "--n 60000 --batch 256 --epochs 60 --sigma 1.1 --delta 1e-5 --adjacency zero_out",
    "noise": "--n 50000 --batch 500 --epochs 30 --epsilon 2 --delta 1e-6 --adjacency zero_out",
    "steps": "--n 50000 --batch 500 --sigma 1.5 --epsilon 2 --delta 1e-6 --adjacency zero_out",
    "certificate": (
        "--n 50000 --batch 500 --epochs 30 --epsilon 2 --delta 1e-6 --adjacency zero_out --json"
    ),
    "compare": "--n 60000 --batch 256 --epochs 60 --sigma 1.1 --epsilon 2.1 --delta 1e-5",
    "rehearse": "plan.py --html report.html",
    "verify": "certificate.json",
}
# Options by the names that arguments of the library have in its errors.
_OPTION_OF = {
    "num_examples": "n",
    "batch_size": "batch",
    "num_steps": "steps",
    "epochs": "epochs",
    "noise_multiplier": "sigma",
    "truncated_batch_size": "truncated-batch",
    "adjacency": "adjacency",
    "l2_clip": "clip",
    "unit": "unit",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and prints its answer.

    Args:
      argv: the command and its options; by default those of the process.

    Returns:
      The exit status, 0; of ``verify`` also 1 or 2, where a certificate is not verified.

    Raises:
      SystemExit: status 2 for options that are not allowed, with the reason on standard error;
        status 1 where the Python file of ``rehearse`` fails, after its traceback; status 0 after
        ``--help`` and ``--version``.

    >>> main("noise --n 50000 --batch 500 --steps 1 --epsilon 2 --delta 1e-6 --adjacency zero_out"
    ...      .split())
    noise multiplier   0.5955
    ...
    0
    """
    # Verification needs neither JAX nor the rest of dpjax, and has a parser of its own.
    given = sys.argv[1:] if argv is None else argv
    if given[:1] == ["verify"]:
        from dpjax import verify

        return verify.main(given[1:])
    arguments = _parser().parse_args(given)
    try:
        arguments.run(arguments)
    except (ImportError, ValueError) as error:
        # An error of the library names its own argument.
        name, must, rest = str(error).partition(" must ")
        known = must and name in _OPTION_OF
        arguments.parser.error(
            f"argument --{_OPTION_OF[name]}: must {rest}" if known else str(error)
        )
    return 0


def _run_epsilon(arguments: argparse.Namespace) -> None:
    """Upper and lower bound on epsilon."""
    _answer(arguments, _mechanism(arguments), "epsilon")


def _run_noise(arguments: argparse.Namespace) -> None:
    """Noise multiplier for an epsilon."""
    _answer(arguments, _calibrated(arguments), "noise multiplier")


def _run_steps(arguments: argparse.Namespace) -> None:
    """Most steps and epochs for an epsilon."""
    from dpjax.accounting import max_num_steps

    # More and more steps, until some are beyond the target.
    arguments.steps, most = math.ceil(_FIRST_EPOCHS * arguments.n / arguments.batch), 0
    mechanism = _mechanism(arguments)
    while most < _MOST_STEPS:
        most = max_num_steps(mechanism, epsilon=arguments.epsilon, delta=arguments.delta)
        if most < mechanism.num_steps:
            break
        arguments.steps = min(8 * most, _MOST_STEPS)
        mechanism = _mechanism(arguments)
    if most == _MOST_STEPS:
        print(f"warning: no more than {most:,} steps are tried", file=sys.stderr)

    # Of no step there is no certificate.
    if most == 0:
        one = mechanism.first_steps(1).certificate(arguments.delta).epsilon
        raise ValueError(
            f"argument --epsilon: must be at least that of one step, {one:.4g}, got"
            f" {arguments.epsilon:g}; more noise or smaller batches lower it"
        )
    _answer(arguments, mechanism.first_steps(most), "steps")


def _run_certificate(arguments: argparse.Namespace) -> None:
    """The whole certificate: bounds, other accountants, attack risk, caveats."""
    mechanism = _mechanism(arguments) if arguments.sigma else _calibrated(arguments)
    certificate = mechanism.certificate(arguments.delta)
    if arguments.plot:
        certificate.plot().savefig(arguments.plot, dpi=150)
    if arguments.json:
        print(certificate.to_json())
    else:
        print(certificate.paragraph() if arguments.paragraph else certificate)


def _run_compare(arguments: argparse.Namespace) -> None:
    """A claimed epsilon against both bounds, by sampler and adjacency."""
    from dpjax.adjacency import ADJACENCIES
    from dpjax.certificates.render import round_down, round_up

    # What to assume: all that is left open. Batches of fixed size have no add_remove.
    open_sampler = arguments.sampler is None
    samplers = ["poisson", "fixed", "shuffled"] if open_sampler else [arguments.sampler]
    adjacencies = [arguments.adjacency] if arguments.adjacency else ADJACENCIES
    assumed = [(sampler, adjacency) for sampler in samplers for adjacency in adjacencies]
    if len(assumed) > 1:
        impossible = {("fixed", "add_remove"), ("shuffled", "add_remove")}
        assumed = [pair for pair in assumed if pair not in impossible]

    # The bounds, and where the claim is. Poisson's of zero_out are those of add_remove.
    bounds: dict[tuple[str, str], tuple[float | None, float | None]] = {}
    rows: list[dict[str, Any]] = []
    for sampler, adjacency in assumed:
        same = (
            sampler,
            "add_remove" if sampler == "poisson" and adjacency == "zero_out" else adjacency,
        )
        if same not in bounds:
            arguments.sampler, arguments.adjacency = same
            bounds[same] = _bounds(_mechanism(arguments), arguments.delta)
        lower, upper = bounds[same]
        verdict = _verdict(arguments.epsilon, lower, upper, sampler)
        row = {"sampler": sampler, "adjacency": adjacency, "epsilon_lower": lower, "epsilon": upper}
        rows.append({**row, "verdict": verdict})

    # The figure, and the table or JSON.
    if arguments.plot:
        _plot_claim(arguments, rows)
    claim = {"claim": arguments.epsilon, "delta": arguments.delta}
    if arguments.json:
        _print_json({"command": "compare", **claim, "rows": rows, "dpjax": dpjax.__version__})
        return
    print(f"claim: epsilon = {arguments.epsilon:g} at delta = {arguments.delta:g}\n")
    line = "{:<9}  {:<11}  {:>7}  {:>7}  {}"
    print(line.format("sampler", "adjacency", "lower", "upper", "the claim is"))
    for sampler, adjacency, below, above, verdict in (row.values() for row in rows):
        shown = "-" if below is None else round_down(below)
        largest = "-" if above is None else round_up(above)
        print(line.format(sampler, adjacency, shown, largest, verdict))
    if open_sampler:
        print(f"\n{_SHUFFLED_NOTE}")


def _run_rehearse(arguments: argparse.Namespace) -> None:
    """A private run on simulated records: its settings, and what its result will be worth."""
    from dpjax.certificates.figure import new_figure

    # Without matplotlib an error before minutes of simulation.
    if arguments.plot:
        new_figure(1, 1)
    rehearsal = _rehearsal_of(arguments.file)
    if arguments.json:
        _print_json(rehearsal.to_dict())
    else:
        print(rehearsal)
    if arguments.html:
        Path(arguments.html).write_text(_PAGE.format(report=rehearsal.to_html()), "utf-8")
    if arguments.plot:
        rehearsal.plot().savefig(arguments.plot, dpi=150)


def _rehearsal_of(file: str) -> "Rehearsal":
    """Runs a Python file and returns the rehearsal that it defines.

    What the file prints goes to standard error. Modules beside it can be imported.
    """
    from dpjax.rehearsal import Rehearsal

    sys.path.insert(0, str(Path(file).resolve().parent))
    try:
        with contextlib.redirect_stdout(sys.stderr):
            names = runpy.run_path(file, run_name=Path(file).stem)
            found, function = names.get("rehearsal"), names.get("rehearse")
            if found is None and callable(function) and function is not dpjax.rehearse:
                found = function()
    except (Exception, SystemExit) as error:
        # The traceback from the file on.
        frames, own = error.__traceback__, str(Path(file))
        while frames and frames.tb_frame.f_code.co_filename != own:
            frames = frames.tb_next
        traceback.print_exception(type(error), error, frames)
        sys.exit(f"dpjax rehearse: error: {file} failed with {type(error).__name__}: {error}")
    finally:
        sys.path.pop(0)
    if not isinstance(found, Rehearsal):
        must = "`rehearsal = dpjax.rehearse(...)`, or a function `rehearse()` that returns one"
        got = "neither" if found is None else f"a {type(found).__name__}"
        raise ValueError(f"argument PLAN: {file} must define {must}, got {got}")
    return found


def _bounds(mechanism: "SubsampledGaussian", delta: float) -> tuple[float | None, float | None]:
    """Lower and upper bound on epsilon, ``None`` where no accountant has them."""
    from dpjax.accounting import UnsupportedEventError, epsilon, epsilon_bounds

    event, stated = mechanism.event, {"adjacency": mechanism.adjacency}
    try:
        return epsilon_bounds(event, delta, **stated)
    except UnsupportedEventError:
        pass
    for method in ("pld", "rdp"):
        with contextlib.suppress(UnsupportedEventError):
            return None, epsilon(event, delta, method=method, **stated)
    return None, None


def _verdict(claim: float, lower: float | None, upper: float | None, sampler: str) -> str:
    if upper is None:
        return "open: no accountant supports so little noise"
    if claim >= upper:
        return "certified"
    if sampler == "shuffled":
        return "open: neither certified nor refuted for shuffled batches"
    if lower is not None and claim < lower:
        return "refuted: no accountant that composes the steps certifies it"
    return "open: between the bounds"


def _plot_claim(arguments: argparse.Namespace, rows: Sequence[dict[str, Any]]) -> None:
    """Writes the figure of the claim against the bounds of each row."""
    from dpjax.certificates.figure import plot_claim

    known = [row for row in rows if row["epsilon"] is not None]
    figure = plot_claim(
        [f"{row['sampler']}, {row['adjacency']}" for row in known],
        [(row["epsilon_lower"] or 0.0, row["epsilon"]) for row in known],
        claim=arguments.epsilon,
        delta=arguments.delta,
    )
    figure.savefig(arguments.plot, dpi=150)


def _mechanism(arguments: argparse.Namespace) -> "SubsampledGaussian":
    """The mechanism that the options describe, with noise multiplier 1 where they give none."""
    # Options that go together.
    n, batch, most = arguments.n, arguments.batch, arguments.truncated_batch
    if batch > n:
        raise ValueError(f"argument --batch: must be at most --n, {n}, got {batch}")
    if most is not None and arguments.sampler != "truncated":
        allowed = "given with --sampler truncated only"
        raise ValueError(f"argument --truncated-batch: must be {allowed}, got {most}")

    from dpjax import mechanisms, sampling

    # How batches are drawn.
    sampler: Sampling
    if arguments.sampler == "fixed":
        sampler = sampling.FixedSizeSampling(n, batch)
    elif arguments.sampler == "shuffled":
        sampler = sampling.ShuffledEpochs(n, batch)
    elif arguments.sampler == "allocated":
        sampler = sampling.AllocatedSampling(n, steps_per_epoch=math.ceil(n / batch))
    elif arguments.sampler == "truncated":
        sampler = sampling.TruncatedPoissonSampling(
            n, batch / n, truncated_batch_size=most or 0, expected_batch_size=float(batch)
        )
    else:
        sampler = sampling.PoissonSampling(n, batch / n, expected_batch_size=float(batch))

    # How often: by the rule of `dpjax.dpsgd`, but for epochs that are whole passes.
    steps, plan = arguments.steps, None
    whole = sampling.AllocatedSampling | sampling.ShuffledEpochs
    if steps is None and isinstance(sampler, whole):
        steps = math.ceil(arguments.epochs * sampler.steps_per_epoch)
    elif steps is None:
        plan = mechanisms.Epochs(num_examples=n, batch_size=batch, epochs=arguments.epochs)
        steps = plan.num_steps
    return mechanisms.SubsampledGaussian(
        sampler,
        l2_clip=arguments.clip,
        noise_multiplier=arguments.sigma or 1.0,
        num_steps=steps,
        adjacency=arguments.adjacency,
        unit=arguments.unit,
        epochs=plan,
    )


def _steps_per_epoch(sampler: "Sampling") -> float:
    """Steps in which a record is drawn once, on average; of shuffled epochs a whole number."""
    whole = getattr(sampler, "steps_per_epoch", None)
    return whole or sampler.num_examples / sampler.expected_batch_size


def _calibrated(arguments: argparse.Namespace) -> "SubsampledGaussian":
    """The mechanism of the target, its noise multiplier rounded up to four decimals."""
    from dpjax.accounting import calibrate

    least = calibrate(_mechanism(arguments), epsilon=arguments.epsilon, delta=arguments.delta)
    assert isinstance(least.noise_multiplier, float)
    arguments.sigma = math.ceil(least.noise_multiplier * _DECIMALS) / _DECIMALS
    return _mechanism(arguments)


def _answer(arguments: argparse.Namespace, mechanism: "SubsampledGaussian", first: str) -> None:
    """Prints a table that begins with the row ``first``, or JSON, and writes the figure."""
    from dpjax.certificates.render import round_down, round_up
    from dpjax.guarantee import guarantee_caveats

    certificate = mechanism.certificate(arguments.delta)
    epochs = mechanism.num_steps / _steps_per_epoch(mechanism.sampling)
    if arguments.plot:
        _plot(arguments, mechanism)
    if arguments.json:
        values = {
            "command": arguments.command,
            "epsilon": certificate.epsilon,
            "epsilon_lower": certificate.epsilon_lower,
            "delta": certificate.delta,
            "noise_multiplier": mechanism.noise_multiplier,
            "num_steps": mechanism.num_steps,
            "epochs": epochs,
            "num_examples": arguments.n,
            "batch_size": arguments.batch,
            "sampler": arguments.sampler or "poisson",
            "adjacency": arguments.adjacency,
            "description": mechanism.guarantee.description,
            "estimates": certificate.estimates,
            "caveats": certificate.caveats,
            "dpjax": dpjax.__version__,
        }
        _print_json(values)
        return

    lower = certificate.epsilon_lower
    below = certificate.epsilon_lower_note if lower is None else _COMPOSED
    others = [
        f"{one.method} {round_up(one.value) if one.kind == 'bound' else f'{one.value:.4g}'}"
        for one in certificate.estimates
        if one.kind in ("bound", "approximation")
    ]
    rows = {
        "epsilon": f"{round_up(certificate.epsilon)}  (certified upper bound)",
        "lower bound": f"{'-' if lower is None else round_down(lower)}  ({below})",
        "noise multiplier": f"{mechanism.noise_multiplier:g}",
        "steps": f"{mechanism.num_steps:,}  ({epochs:.4g} epochs)",
        "delta": f"{certificate.delta:g}",
        "adjacency": arguments.adjacency,
        "sampling": mechanism.guarantee.description["sampling"],
        "other accountants": ", ".join(others) or "-",
    }
    for heading, text in {first: rows[first], **rows}.items():
        print(f"{heading:<17}  {text}")
    for caveat in guarantee_caveats(mechanism.guarantee):
        print(f"{'caveat':<17}  {caveat}")
    if arguments.delta * arguments.n >= 1:
        print("warning: delta is not below one over the number of records", file=sys.stderr)


def _plot(arguments: argparse.Namespace, mechanism: "SubsampledGaussian") -> None:
    """Writes the figure of epsilon against epochs."""
    from dpjax.accounting import epsilon
    from dpjax.certificates.figure import plot_epsilon

    shares = range(1, _NUM_POINTS + 1)
    counts = sorted({math.ceil(mechanism.num_steps * i / _NUM_POINTS) for i in shares})
    events = [mechanism.first_steps(count).guarantee.event for count in counts]
    stated = {"delta": arguments.delta, "adjacency": arguments.adjacency}
    figure = plot_epsilon(
        [count / _steps_per_epoch(mechanism.sampling) for count in counts],
        [epsilon(event, **stated) for event in events],
        delta=arguments.delta,
        target=getattr(arguments, "epsilon", None),
    )
    figure.savefig(arguments.plot, dpi=150)


def _print_json(values: dict[str, Any]) -> None:
    from dpjax.certificates.render import as_json

    print(json.dumps(as_json(values), indent=2, ensure_ascii=False))


def _number(
    allowed: str, test: Callable[[float], bool], kind: type = float
) -> Callable[[str], Any]:
    """The type of an option: a number that passes the test, also as 60_000 or 60,000."""

    def convert(text: str) -> float:
        in_groups = re.fullmatch(r"\d{1,3}(,\d{3})+", text)
        try:
            value = float(text.replace(",", "") if in_groups else text)
        except ValueError:
            value = math.nan
        if not test(value):
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return kind(value)

    return convert


def _written(*suffixes: str) -> Callable[[str], str]:
    """The type of an option: a file that is written."""

    def convert(text: str) -> str:
        path = Path(text)
        if path.suffix.lower() not in suffixes or not path.parent.is_dir():
            allowed = f"a file of type {', '.join(suffixes)} in a folder that exists"
            raise argparse.ArgumentTypeError(f"must be {allowed}, got {text!r}")
        return text

    return convert


def _python_file(text: str) -> str:
    if not Path(text).is_file():
        raise argparse.ArgumentTypeError(f"must be a Python file that exists, got {text!r}")
    return text


_COUNT = _number("a whole number of at least 1", lambda x: x >= 1 and x.is_integer(), int)
_POSITIVE = _number("a finite number above 0", lambda x: 0 < x < math.inf)
_PROBABILITY = _number("in (0, 1)", lambda x: 0 < x < 1)
# Type or choices, value in the usage, and help of each option; of a flag the help alone.
_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "n": (_COUNT, "N", "number of records"),
    "batch": (_COUNT, "B", "records in a batch; the expected ones where their number is random"),
    "epochs": (_POSITIVE, "E", "passes over the data: E * N / B steps, rounded up"),
    "steps": (_COUNT, "T", "number of steps"),
    "sigma": (_POSITIVE, "S", "noise multiplier: noise standard deviation over the clip bound"),
    "epsilon": (_POSITIVE, "EPS", "what epsilon may be at most; of compare, the claim"),
    "delta": (_PROBABILITY, "D", "of the guarantee; well below 1/N"),
    "adjacency": (
        ("add_remove", "replace_one", "zero_out"),
        "",
        "which data sets are neighbours. add_remove: one has a record more; replace_one: one record"
        " is replaced by any other; zero_out: by one that contributes nothing. There is no default;"
        " compare takes all",
    ),
    "sampler": (
        ("poisson", "truncated", "fixed", "allocated", "shuffled"),
        "",
        "how batches are drawn. poisson (the default): each record independently with probability"
        " B/N; truncated: so, but at most K of them; fixed: a random set of B; allocated: each"
        " record in one random step of each epoch of N/B, rounded up; shuffled: a new order each"
        " epoch, cut into batches, as data loaders do, of which no amplification is"
        " counted. compare takes the others",
    ),
    "truncated-batch": (
        _COUNT,
        "K",
        "with --sampler truncated: the most records in a batch (default: costs no noise)",
    ),
    "unit": (str, "TEXT", "what is protected, such as 'one image' (default: one record)"),
    "clip": (_POSITIVE, "C", "clip bound to state; epsilon does not depend on it (default: 1)"),
    "paragraph": (None, "", "print one paragraph for a paper"),
    "json": (None, "", "print the answer as JSON"),
    "plot": (_written(*_FIGURES), "FILE", "write a figure (png, pdf or svg); needs the extra plot"),
    "html": (_written(".html"), "FILE", "write the report as a page"),
    "file": (
        _python_file,
        "PLAN",
        "a Python file that defines `rehearsal = dpjax.rehearse(...)`, or a function `rehearse()`"
        " that returns one",
    ),
}
_PLAN = "n batch epochs|steps"
_DRAWN = "sampler? truncated-batch?"
# Given by position.
_POSITIONAL = ("file",)
# The options of each command: exactly one of those with a bar between them is given, those with a
# question mark may be left out.
_COMMANDS = {
    _run_epsilon: f"{_PLAN} sigma delta adjacency plot? {_DRAWN}",
    _run_noise: f"{_PLAN} epsilon delta adjacency plot? {_DRAWN}",
    _run_steps: f"n batch sigma epsilon delta adjacency plot? {_DRAWN}",
    _run_certificate: (
        f"{_PLAN} sigma|epsilon delta adjacency unit? clip? paragraph? plot? {_DRAWN}"
    ),
    _run_compare: f"{_PLAN} sigma epsilon delta adjacency? plot? {_DRAWN}",
    _run_rehearse: "file html? plot?",
}


class _Parser(argparse.ArgumentParser):
    """A parser whose error for a missing adjacency says which one is usual."""

    def error(self, message: str) -> NoReturn:
        if "required" in message and "--adjacency" in message:
            message += "; zero_out is usual where the number of records is public, see --help"
        super().error(message)


def _parser() -> argparse.ArgumentParser:
    examples = "\n".join(f"  dpjax {name} {line}" for name, line in _EXAMPLES.items())
    parser = _Parser(
        prog="dpjax",
        description=(
            "The privacy of DP-SGD: noisy sums of clipped gradients of random batches; and what a"
            " private run will be worth, by simulation."
        ),
        epilog=f"examples:\n{examples}\n\n`dpjax COMMAND --help` lists the options of a command.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"dpjax {dpjax.__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND", dest="command")
    for run, options in _COMMANDS.items():
        name, text = run.__name__.removeprefix("_run_"), run.__doc__
        command = commands.add_parser(
            name,
            help=text,
            description=text,
            epilog=f"example:\n  dpjax {name} {_EXAMPLES[name]}",
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        unset = {"epochs": None, "steps": None, "sigma": None}
        command.set_defaults(run=run, parser=command, clip=1.0, unit="one record", **unset)
        for entry in f"{options} json?".split():
            names, required = entry.rstrip("?").split("|"), not entry.endswith("?")
            if len(names) > 1:
                group = command.add_mutually_exclusive_group(required=True)
                for name in names:
                    _add_option(group, name)
            else:
                _add_option(command, names[0], required=required)
    commands.add_parser("verify", help="Whether files of certificates are right.", add_help=False)
    return parser


def _add_option(parser: "argparse._ActionsContainer", name: str, *, required: bool = False) -> None:
    kind, metavar, text = _OPTIONS[name]
    if name in _POSITIONAL:
        parser.add_argument(name, type=kind, metavar=metavar, help=text)
    elif kind is None:
        parser.add_argument(f"--{name}", action="store_true", help=text)
    elif isinstance(kind, tuple):
        parser.add_argument(f"--{name}", choices=kind, help=text, required=required)
    else:
        parser.add_argument(f"--{name}", type=kind, metavar=metavar, help=text, required=required)


if __name__ == "__main__":
    sys.exit(main())
