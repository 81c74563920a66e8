"""HTML of mechanisms and runs in notebooks: what they guarantee, before epsilon at one delta."""

from collections.abc import Sequence

from dpjax._html import HTMLTable, render_html
from dpjax.certificates.certificate import guarantee_caveats, guarantee_rows
from dpjax.guarantee import Guarantee


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
    epsilon = ("epsilon", "certificate(delta) computes it")
    tables = [
        *first,
        HTMLTable("Mechanism", list(guarantee.description.items())),
        HTMLTable("Guarantee", [*guarantee_rows(guarantee), epsilon]),
        *last,
    ]
    notes = [*notes, *guarantee_caveats(guarantee)]
    return render_html(title, tables, notes_heading="Caveats", notes=notes)
