"""Experiments, their rows and records, and the list of the experiments' modules.

Each experiment is a module with the functions of :func:`experiment_of`, and a Markdown page of the
same stem beside it with its prose; :data:`MODULES` lists the modules by dotted path.
"""

import contextlib
import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_EVEN
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from dpjax._checks import check, check_choice
from experiments.lib.formatting import format_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Settings, or values of a row, by name: numbers, text, and lists or mappings of them.
Values: TypeAlias = Mapping[str, Any]

PROFILES = ("quick", "paper")
VERDICTS = (
    "reproduced",
    "reproduced in part",
    "not reproduced",
    "claim contradicted",
    "not compared",  # nothing is published, or this profile shortens what is
)
MODULES = (
    "experiments.gdp.mnist",
    "experiments.gdp.adult",
    "experiments.gdp.imdb",
    "experiments.gdp.movielens",
    "experiments.gdp.curves",
    "experiments.gdp.noise_saved",
    "experiments.bayes.bob",
    "experiments.bayes.conjugate",
    "experiments.bayes.clipping",
    "experiments.bayes.wine",
    "experiments.bayes.coverage",
    "experiments.bayes.noise_aware",
    "experiments.bayes.models",
    "experiments.bayes.user_models",
    "experiments.bayes.gdsc",
    "experiments.bayes.wishart",
    "experiments.bayes.holders",
    "experiments.bayes.holders_costs",
    "experiments.dpvi.abalone",
    "experiments.dpvi.adult",
    "experiments.dpvi.gradients",
    "experiments.dpvi.mixture",
    "experiments.bdp.mnist",
    "experiments.bdp.cifar10",
    "experiments.bdp.abalone",
    "experiments.bdp.adult",
    "experiments.bdp.figures",
    "experiments.bdp.limits",
    "experiments.bdp.incomes",
    "experiments.scattering.linear",
    "experiments.sgmcmc.bounds",
    "experiments.sgmcmc.adult",
    "experiments.sgmcmc.mnist",
    "experiments.sgmcmc.inversion",
    "experiments.pate.analysis",
    "experiments.pate.adult",
    "experiments.pate.mnist",
    "experiments.pate.svhn",
    "experiments.rehearsal.settings",
    "experiments.training.tuned",
    "experiments.course.differencing",
    "experiments.course.local",
    "experiments.audit.mechanisms",
    "experiments.accounting.allocation",
    "experiments.training.correlated",
)


@dataclass(frozen=True)
class Row:
    """One row of a published table.

    Attributes:
      name: unique within the experiment, as in the source.
      settings: everything the result depends on, including the profile's epochs and sizes;
        representable in JSON. A record with other settings is stale.
      source: published values, such as ``{"accuracy %": 95.0, "CLT ε": 0.83}``; a name that ends in
        ``%`` is a percentage. Empty if nothing is published.
    """

    name: str
    settings: Values
    source: Values


@dataclass(frozen=True)
class Result:
    """The result of one row.

    Attributes:
      measured: measured values by name, as in ``Row.source``; times, which depend on the machine,
        end in ``(ms)``.
      certified: guarantees of the mechanism as run, by name: upper bounds, rounded up when printed;
        a lower bound has "lower" in its name.
      note: data and other conditions of the run, printed below the table.
      series: data of the figures (such as accuracy per epoch), not in the table.
      certificate: text of the run's certificate, printed below the table.
    """

    measured: Values
    certified: Values
    note: str = ""
    series: Values = field(default_factory=dict)
    certificate: str = ""


@dataclass(frozen=True)
class RowContext:
    """Working folder and options of the run of one row.

    Attributes:
      folder: existing folder for the row's checkpoints; its name depends on profile and settings.
      fresh: whether everything is computed again; ``folder`` is then empty.
      profile: ``"quick"`` or ``"paper"``.
    """

    folder: Path
    fresh: bool
    profile: str


@dataclass(frozen=True)
class Record:
    """The stored result of one table row, in ``results/<experiment>.json``.

    Settings and source are as in :class:`Row`; measured, certified, note, series and certificate as
    in :class:`Result`. A row that failed has no measured or certified values.

    Attributes:
      experiment: the experiment's name.
      row: the row's name.
      profile: ``"quick"`` or ``"paper"``.
      seconds: wall-clock time of the row.
      data: name of the data set, as returned by ``Experiment.data``.
      error: error of a row that failed, else empty.
      date: the day (UTC) it finished, ``YYYY-MM-DD``.
      versions: of Python, JAX and dpjax.
    """

    experiment: str
    row: str
    profile: str
    settings: Values
    source: Values
    measured: Values
    certified: Values
    seconds: float
    note: str = ""
    data: str = ""
    series: Values = field(default_factory=dict)
    certificate: str = ""
    error: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the row ran without an error."""
        return not self.error


@dataclass(frozen=True)
class Finding:
    """What the records of one profile show of a source's figures and claims.

    Attributes:
      verdict: one or more of `VERDICTS`, joined by a semicolon.
      sentence: one sentence, with the numbers of the records.
      tolerance: the difference up to which a figure counts as reproduced; empty if no figure is
        compared.

    Raises:
      ValueError: for another verdict, or a text that is not one sentence.
    """

    verdict: str
    sentence: str
    tolerance: str = ""

    def __post_init__(self) -> None:
        for part in self.verdict.split("; "):
            check_choice("verdict", part, VERDICTS)
        is_sentence = self.sentence.endswith(".") and ". " not in self.sentence
        check(is_sentence, "sentence", self.sentence, "one sentence that ends in a full stop")


class Tolerance(NamedTuple):
    """Tolerances between the values of a row and those of the same row run again."""

    points: float = 1.0  # of measured percentages
    relative: float = 0.05  # of other measured values, relative
    # Of certified values and of measured ε of an accountant, relative. SciPy 1.17 and 1.18 round
    # the transforms of 10,000 compositions differently: 4e-9 of ε, a tenth of the margin for it.
    account: float = 1e-8


DETERMINISTIC = Tolerance(points=1e-7, relative=1e-9)


@dataclass(frozen=True)
class Page:
    """The prose of an experiment, in plain text.

    Attributes:
      name: source and subject, such as ``"gdp_mnist"``; also the stem of its records' file.
      title: heading in the report.
      source: publication, table and figures.
      paragraphs: what was run.
      captions: of its figures, by the stem of their files.
      remarks: sentences with the values of rows, as of :func:`fill_in`.

    Raises:
      ValueError: if ``name`` or a stem is not in lower case with underscores.
    """

    name: str
    title: str
    source: str
    paragraphs: tuple[str, ...]
    captions: Mapping[str, str] = field(default_factory=dict)
    remarks: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for stem in (self.name, *self.captions):
            allowed = "lower-case letters, digits and underscores, a letter first"
            check(re.fullmatch(r"[a-z][a-z0-9_]*", stem) is not None, "name", stem, allowed)


def read_page(module: str | Path) -> Page:
    """Reads the page beside an experiment's module, given as its ``__file__``.

    The name is that of folder and module. The page is the Markdown text::

        # Title

        Source: publication, table and figures

        Paragraphs of what was run.

        ## Remarks

        A paragraph for each remark, with the values of rows.

        ## Figures

        ### stem_of_a_figure

        Its caption.

    Raises:
      ValueError: if the page does not start with title and source.
    """
    module = Path(module)
    path = module.with_suffix(".md")
    text, _, figures = path.read_text(encoding="utf-8").partition("\n## Figures\n")
    text, _, remarks = text.partition("\n## Remarks\n")

    # Title, source and paragraphs.
    blocks = _join_lines(text)
    title, source = (*blocks, "", "")[:2]
    is_headed = title.startswith("# ") and source.startswith("Source: ")
    check(is_headed, f"beginning of {path.name}", title, "'# Title', then 'Source: ...'")

    # Captions, each below the stem of its figure.
    parts = re.split(r"^### (\w+)$", figures, flags=re.MULTILINE)
    captions = {
        stem: " ".join(caption.split())
        for stem, caption in zip(parts[1::2], parts[2::2], strict=True)
    }

    return Page(
        name=f"{module.parent.name}_{module.stem}",
        title=title.removeprefix("# "),
        source=source.removeprefix("Source: "),
        paragraphs=tuple(blocks[2:]),
        captions=captions,
        remarks=tuple(_join_lines(remarks)),
    )


def _join_lines(text: str) -> list[str]:
    """Returns the paragraphs of a text, each in one line."""
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n", text) if block.strip()]


class _Value:
    """A value of records in a template, formatted as in tables if no format is given."""

    def __init__(self, value: Any, name: str = "") -> None:
        self.value, self.name = value, name

    def __getitem__(self, key: str | int) -> "_Value":
        if isinstance(self.value, Mapping):
            return _Value(self.value[str(key)], str(key))
        return _Value(self.value[int(key)], self.name)

    def __format__(self, spec: str) -> str:
        roundings = {"": ROUND_HALF_EVEN, "up": ROUND_CEILING, "down": ROUND_FLOOR}
        if spec not in roundings:
            return format(self.value, spec)
        return format_value(self.value, self.name, rounding=roundings[spec])


def fill_in(templates: Sequence[str], records: Sequence[Record]) -> list[str]:
    """Returns the templates with values of the records; those of rows that are not there left out.

    A value is a field of Python's format strings, ``{rows[NAME][PART][COLUMN]}``, with the format
    of tables, or ``:up`` or ``:down`` for one rounded up or down, or any other format.

    >>> record = Record("toy", "1", "quick", {}, {}, {"accuracy %": 95.0}, {"ε": 1.20001}, 1.0)
    >>> fill_in(["ε = {rows[1][certified][ε]:up}, {rows[1][measured][accuracy %]:.0f} %"], [record])
    ['ε = 1.201, 95 %']
    """
    rows, filled = _Value({record.row: vars(record) for record in records}), []
    for template in templates:
        with contextlib.suppress(KeyError):
            filled.append(template.format(rows=rows))
    return filled


@dataclass(frozen=True)
class Experiment:
    """One published table or figure and its reproduction.

    Attributes:
      page: its name and prose.
      rows: returns the table's rows for a profile.
      run_row: runs one row.
      finding: returns the finding for the finished records of a profile, at least one.
      data: returns the name of the available data set; rows that ran on another one (such as its
        stand-in) are run again.
      figures: returns ``{"file_stem": figure}`` for the finished records of a profile; the page has
        their captions.
      remarks: returns sentences for the report for the same records, such as claims below the
        certified value.
      tolerance: differences allowed when a row is run again.
    """

    page: Page
    rows: Callable[[str], Sequence[Row]]
    run_row: Callable[[Row, RowContext], Result]
    finding: Callable[[Sequence[Record]], Finding]
    data: Callable[[], str] = lambda: ""
    figures: "Callable[[Sequence[Record]], Mapping[str, Figure]]" = lambda records: {}
    remarks: Callable[[Sequence[Record]], Sequence[str]] = lambda records: ()
    tolerance: Tolerance = field(default_factory=Tolerance)

    @property
    def name(self) -> str:
        """The name of the page."""
        return self.page.name


def experiment_of(module: ModuleType) -> Experiment:
    """Returns the experiment that a module defines by its functions and the page beside it.

    Its functions ``rows``, ``run_row`` and ``finding``, and where it has them ``data``, ``figures``
    and ``remarks``, are those of :class:`Experiment`; ``data_set`` returns a data set whose name
    ``data`` would return, and ``TOLERANCE`` is the tolerance. Remarks of the page come first.
    """
    page = read_page(module.__file__ or "")
    functions = {name: vars(module).get(name) for name in ("data", "figures")}
    if hasattr(module, "data_set"):
        functions["data"] = lambda: module.data_set().name

    def remarks(records: Sequence[Record]) -> list[str]:
        computed = module.remarks(records) if hasattr(module, "remarks") else ()
        return [*fill_in(page.remarks, records), *computed]

    return Experiment(
        page=page,
        remarks=remarks,
        rows=module.rows,
        run_row=module.run_row,
        finding=module.finding,
        tolerance=getattr(module, "TOLERANCE", Tolerance()),
        **{name: function for name, function in functions.items() if function},
    )


def load_experiments(modules: Sequence[str] = MODULES) -> tuple[Experiment, ...]:
    """Imports modules by dotted path, and returns the experiment of each, in their order.

    >>> load_experiments(())
    ()
    """
    return tuple(experiment_of(importlib.import_module(module)) for module in modules)


def select(names: Sequence[str], experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """Returns the experiments of these names, each once; ``"all"`` selects every one.

    Raises:
      ValueError: for an unknown name; the message lists the names.

    >>> select(["all"], ())
    ()
    """
    for name in names:
        check_choice("experiment", name, ["all", *(known.name for known in experiments)])
    return tuple(known for known in experiments if known.name in names or "all" in names)


def profile_rows(experiment: Experiment, profile: str) -> tuple[Row, ...]:
    """Returns the experiment's rows under a profile.

    Raises:
      ValueError: for an unknown profile, no row at all, or two rows of one name.
    """
    check_choice("profile", profile, PROFILES)
    rows = tuple(experiment.rows(profile))
    names = [row.name for row in rows]
    unique = 0 < len(names) == len(set(names))
    check(unique, f"row names of {experiment.name}", names, "one at least, and each once")
    return rows


def select_rows(experiment: Experiment, profile: str, name: str | None = None) -> tuple[Row, ...]:
    """Returns the experiment's rows under a profile, or the one of this name.

    Raises:
      ValueError: for an unknown name; the message lists the names.
    """
    rows = profile_rows(experiment, profile)
    if name is None:
        return rows
    check_choice("row", name, [row.name for row in rows])
    return tuple(row for row in rows if row.name == name)
