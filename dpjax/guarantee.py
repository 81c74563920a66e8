"""The privacy guarantee of a mechanism, or of a run of it."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias

from dpjax._html import HTMLTable, render_html
from dpjax.adjacency import Adjacency, is_size_public

if TYPE_CHECKING:
    from dp_accounting import DpEvent

NEIGHBOURS = {
    "add_remove": "one record is added or removed",
    "replace_one": "one record is replaced by any other",
    "zero_out": "one record is replaced by one that contributes nothing",
}
_SIZE_CAVEAT = (
    "The number of records was used to compute {}, so it is public: the guarantee holds, at the"
    " same epsilon, for adjacency 'zero_out' (one record is replaced by one that contributes"
    " nothing). To keep the number of records private, choose every constant without it"
    " (PoissonSampling takes expected_batch_size)."
)
_SEED_CAVEAT = (
    "This run protects nobody: its key was derived from a seed, so its noise can be reproduced. The"
    " stated epsilon holds for the mechanism with a secret key (dpjax.release_key())."
)
_CONTINUED_CAVEAT = (
    "The run was planned with {:,} steps and continued with more. The certificate of all of them"
    " holds if their largest number was fixed before results were seen."
)


# How the settings of a release were chosen.
Tuning: TypeAlias = Literal[
    "on simulated records",
    "on public records",
    "fixed in advance",
    "counted",
    "on the private records, not counted",
]
NOT_COUNTED: Tuning = "on the private records, not counted"
_TUNING_CAVEAT = (
    "The settings were chosen by results on the private records, and the choice is not counted: it"
    " can reveal records. The stated epsilon holds for one run with these settings, not for the"
    " search that led to them."
)


@dataclass(frozen=True, kw_only=True)
class Guarantee:
    """The privacy guarantee of a release: event, adjacency, unit, and the run that made it.

    Attributes:
      event: the dp-accounting event, with noise multipliers relative to *one clip bound*:
        accountants apply the factor of the adjacency.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: the unit of privacy, for example ``"one image"``.
      num_releases: the number of noisy values released.
      description: sampling, clipping, noise and so on, as heading and text.
      exact_noise: whether noise is sampled exactly, so that the guarantee holds for every bit.
      size_constants: names of published values computed from the number of records n. Under
        add/remove they make n public, and the certificate states so.
      num_examples: the number of records n, where it is known and public; else ``None``.
      num_steps_run: of a run, the number of steps taken: ``event`` is theirs.
      seeded: of a run, whether its key was derived from a seed, so that its noise can be redrawn.
      first_plan: of a run that was continued with more steps than planned, how many were planned
        at first.
      tuning: how the settings were chosen, as in `SubsampledGaussian`, or ``"counted"`` where the
        event holds the choice, as in `RepeatedSelection`; ``None`` if that is not stated.
    """

    event: "DpEvent"
    adjacency: Adjacency
    unit: str
    num_releases: int
    description: Mapping[str, str]
    exact_noise: bool = False
    size_constants: tuple[str, ...] = ()
    num_examples: int | None = None
    num_steps_run: int | None = None
    seeded: bool = False
    first_plan: int | None = None
    tuning: Tuning | None = None

    @property
    def is_size_public(self) -> bool:
        """Whether n is public: by the adjacency, or by a published value computed from it."""
        return is_size_public(self.adjacency) or bool(self.size_constants)

    def with_description(self, first: Mapping[str, str]) -> "Guarantee":
        """Returns the guarantee with headings and texts before its own.

        Args:
          first: of the description, such as the records' bounds.
        """
        return dataclasses.replace(self, description={**first, **self.description})

    def of_run(
        self, *, seeded: bool, num_steps: int | None = None, first_plan: int | None = None
    ) -> "Guarantee":
        """Returns the guarantee of a run of all steps that the event counts.

        Args:
          seeded: whether the key was derived from a seed (`dpjax.keys.is_seeded`).
          num_steps: how many steps were taken, where the mechanism runs in steps.
          first_plan: how many were planned at first, where the run was continued with more.
        """
        return dataclasses.replace(
            self, seeded=seeded, num_steps_run=num_steps, first_plan=first_plan
        )

    def _repr_html_(self) -> str:
        return render_guarantee(type(self).__name__, self)


def guarantee_rows(guarantee: Guarantee, delta: float | None = None) -> list[tuple[str, str]]:
    """Returns the neighbours, the unit, the run and the releases of a guarantee, as table rows."""
    rows = [
        ("adjacency", f"{guarantee.adjacency}: {NEIGHBOURS[guarantee.adjacency]}"),
        ("number of records", format_size(guarantee)),
        ("unit of privacy", guarantee.unit),
    ]
    if delta is not None:
        rows.append(("delta", f"{delta:g}"))
    if guarantee.num_steps_run is not None:
        key = "; its key was derived from a seed, see caveats" if guarantee.seeded else ""
        more = f", {guarantee.first_plan:,} planned at first" if guarantee.first_plan else ""
        rows.append(("run", f"{guarantee.num_steps_run:,} steps{more}{key}"))
    if guarantee.tuning is not None:
        rows.append(("tuning", guarantee.tuning))
    return [*rows, ("releases", str(guarantee.num_releases))]


def guarantee_caveats(guarantee: Guarantee) -> tuple[str, ...]:
    """Returns the caveats that depend on the mechanism or the run, such as a seeded key."""
    caveats = []
    if guarantee.size_constants and not is_size_public(guarantee.adjacency):
        caveats.append(_SIZE_CAVEAT.format(_join(guarantee.size_constants)))
    if guarantee.seeded:
        caveats.append(_SEED_CAVEAT)
    if guarantee.first_plan:
        caveats.append(_CONTINUED_CAVEAT.format(guarantee.first_plan))
    if guarantee.tuning == NOT_COUNTED:
        caveats.append(_TUNING_CAVEAT)
    return tuple(caveats)


def format_size(guarantee: Guarantee) -> str:
    """Returns whether the number of records is public, and through which constants."""
    if is_size_public(guarantee.adjacency):
        return "public"
    if guarantee.size_constants:
        return f"public: used to compute {_join(guarantee.size_constants)}, see caveats"
    return "private; the constants of the mechanism must have been chosen without it"


def _join(names: Sequence[str]) -> str:
    """Returns names in a sentence: ``"a"``, ``"a and b"``, ``"a, b and c"``."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def guarantee_tables(guarantee: Guarantee) -> list[tuple[str, list[tuple[str, str]]]]:
    """Returns the description and the guarantee, which any delta has, as titled tables."""
    epsilon = ("epsilon", "depends on delta: certificate(delta)")
    return [
        ("Mechanism", list(guarantee.description.items())),
        ("Guarantee", [*guarantee_rows(guarantee), epsilon]),
    ]


def render_guarantee(
    title: str,
    guarantee: Guarantee,
    *,
    first: Sequence[HTMLTable] = (),
    last: Sequence[HTMLTable] = (),
    notes: Sequence[str] = (),
) -> str:
    """Returns HTML of the guarantee of a mechanism or of a run.

    Args:
      title: a heading.
      guarantee: its description and what holds at any delta; no epsilon is computed.
      first: tables above, such as the parameters that a run released.
      last: tables below.
      notes: sentences below all tables.
    """
    own = (HTMLTable(caption, rows) for caption, rows in guarantee_tables(guarantee))
    tables = [*first, *own, *last]
    notes = [*notes, *guarantee_caveats(guarantee)]
    return render_html(title, tables, notes_heading="Caveats", notes=notes)
