"""Experiments, their rows and records, and the list of the experiments' modules.

Each experiment is a module with an ``EXPERIMENT``; :data:`MODULES` lists them by dotted path.
"""

import importlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dpjax._validation import check, check_choice

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PROFILES = ("quick", "paper")
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
    "experiments.bayes.gdsc",
    "experiments.bayes.wishart",
    "experiments.dpvi.abalone",
    "experiments.dpvi.adult",
    "experiments.dpvi.mixture",
    "experiments.bdp.mnist",
    "experiments.bdp.cifar10",
    "experiments.bdp.abalone",
    "experiments.bdp.adult",
    "experiments.bdp.figures",
    "experiments.bdp.limits",
    "experiments.bdp.incomes",
    "experiments.sgmcmc.bounds",
    "experiments.sgmcmc.adult",
    "experiments.sgmcmc.mnist",
    "experiments.sgmcmc.inversion",
    "experiments.course.differencing",
    "experiments.course.local",
)


@dataclass(frozen=True)
class Row:
    """One row of a published table.

    Attributes:
      name: unique within the experiment, as the source numbers or names it.
      settings: JSON-ready, everything the result depends on, the profile's own (epochs, sizes)
        included: a record made with other settings is stale.
      source: the published figures, such as ``{"accuracy %": 95.0, "CLT ε": 0.83}``. A name that
        ends in ``%`` holds a percentage (95.0, not 0.95). Empty where no figure survives.
    """

    name: str
    settings: Mapping[str, Any]
    source: Mapping[str, Any]


@dataclass(frozen=True)
class Result:
    """The result of one row.

    Attributes:
      measured: by name, as in ``Row.source``.
      certified: guarantees of the mechanism as it was run: upper bounds, printed rounded upwards; a
        lower bound has "lower" in its name.
      note: the data that were used and other conditions; shown below the table, once where rows
        share it.
      series: for the figures alone (accuracy per epoch, a curve); not shown in the table.
      certificate: the text of the run's certificate, shown in full below the table.
    """

    measured: Mapping[str, Any]
    certified: Mapping[str, Any]
    note: str = ""
    series: Mapping[str, Any] = field(default_factory=dict)
    certificate: str = ""


@dataclass(frozen=True)
class RowContext:
    """Where and how a row runs.

    Attributes:
      folder: exists; for this row's checkpoints and working files. Its name depends on the
        profile and the settings, so what lies there was made with the same settings.
      fresh: whether everything is computed again; ``folder`` is then already empty.
      profile: ``"quick"`` or ``"paper"``.
    """

    folder: Path
    fresh: bool
    profile: str


@dataclass(frozen=True)
class Record:
    """One row that ran, as kept in ``results/<experiment>.json``.

    Settings and source are as in :class:`Row`; measured, certified, note, series and certificate as
    in :class:`Result`, with nothing measured or certified where the row failed.

    Attributes:
      experiment: the experiment's name.
      row: the row's name.
      profile: ``"quick"`` or ``"paper"``.
      seconds: wall-clock time of the row.
      data: the name of the data that were used, as :class:`Experiment` gives it.
      error: why the row failed; empty where it did not.
      date: the day (UTC) it finished, ``YYYY-MM-DD``.
      versions: of Python, JAX and dpjax.
    """

    experiment: str
    row: str
    profile: str
    settings: Mapping[str, Any]
    source: Mapping[str, Any]
    measured: Mapping[str, Any]
    certified: Mapping[str, Any]
    seconds: float
    note: str = ""
    data: str = ""
    series: Mapping[str, Any] = field(default_factory=dict)
    certificate: str = ""
    error: str = ""
    date: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether the row ran to its end."""
        return not self.error


@dataclass(frozen=True)
class Experiment:
    """One published table or figure, and how it is run again.

    Attributes:
      name: source and subject, such as ``"gdp_mnist"``; names the file of its records.
      title: a heading.
      source: which publication, which table and figures.
      description: plain text; an empty line parts paragraphs.
      rows: from a profile to the table's rows.
      run_row: runs one row.
      data: the name of the data that are really at hand: rows that ran on others (a stand-in, say)
        are run again.
      figures: from the finished records of one profile, never none, to
        ``{"file_stem": (figure, caption)}``.
      remarks: from the same records to sentences for the report: where the source's claim is
        below the certified value, and what else a check contradicts.

    Raises:
      ValueError: if ``name`` is not in lower case with underscores.
    """

    name: str
    title: str
    source: str
    description: str
    rows: Callable[[str], Sequence[Row]]
    run_row: Callable[[Row, RowContext], Result]
    data: Callable[[], str] = lambda: ""
    figures: "Callable[[Sequence[Record]], Mapping[str, tuple[Figure, str]]]" = lambda records: {}
    remarks: Callable[[Sequence[Record]], Sequence[str]] = lambda records: ()

    def __post_init__(self) -> None:
        check_stem("name", self.name)


def check_stem(name: str, value: str) -> None:
    """Rejects what does not suit as part of a file's name: lower case, digits and underscores.

    Raises:
      ValueError: naming the argument.

    >>> check_stem("name", "gdp_mnist")
    """
    allowed = "lower-case letters, digits and underscores, a letter first"
    check(re.fullmatch(r"[a-z][a-z0-9_]*", value) is not None, name, value, allowed)


def load_experiments(modules: Sequence[str] = MODULES) -> tuple[Experiment, ...]:
    """Imports modules by dotted path, and returns the ``EXPERIMENT`` of each, in their order.

    >>> load_experiments(())
    ()
    """
    return tuple(importlib.import_module(module).EXPERIMENT for module in modules)


def select(names: Sequence[str], experiments: Sequence[Experiment]) -> tuple[Experiment, ...]:
    """The experiments of these names, each once; ``"all"`` names every one.

    Raises:
      ValueError: for an unknown name, listing those known.

    >>> select(["all"], ())
    ()
    """
    for name in names:
        check_choice("experiment", name, ["all", *(known.name for known in experiments)])
    return tuple(known for known in experiments if known.name in names or "all" in names)


def rows_of(experiment: Experiment, profile: str) -> tuple[Row, ...]:
    """The experiment's rows under a profile.

    Raises:
      ValueError: for an unknown profile, no row at all, or two rows of one name.
    """
    check_choice("profile", profile, PROFILES)
    rows = tuple(experiment.rows(profile))
    names = [row.name for row in rows]
    unique = 0 < len(names) == len(set(names))
    check(unique, f"row names of {experiment.name}", names, "one at least, and each once")
    return rows
