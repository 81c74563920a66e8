"""One renderer for all certificates: a title, tables and caveats as text, HTML and JSON values."""

import abc
import math
import textwrap
from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from typing import Any, ClassVar, Literal, NamedTuple

from dpjax._html import HTMLTable, render_html

Kind = Literal["guarantee", "bound", "approximation", "unavailable", "realized"]
# A caption, and rows of a heading and a text.
Table = tuple[str, list[tuple[str, str]]]

_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DIGITS_DOWN = Context(prec=4, rounding=ROUND_FLOOR)
_KINDS = {
    "bound": "upper bound",
    "realized": "of the realized answers, no guarantee",
}


class Estimate(NamedTuple):
    """Epsilon of a release by one method of privacy accounting.

    Attributes:
      method: an accountant, as in ``dpjax.accounting.epsilon``, or what is bounded and how.
      epsilon: at the certificate's delta; ``None`` where the method does not support the event.
      kind: ``"guarantee"`` (the certified upper bound), ``"bound"`` (another upper bound),
        ``"approximation"`` (may be too small or too large) or ``"unavailable"``; of PATE's
        data-dependent epsilons also ``"realized"`` (of the answers that were given).
      note: more on the method, or why it does not support the event.
      order: of the Rényi divergence; ``None`` for other methods.
    """

    method: str
    epsilon: float | None
    kind: Kind
    note: str = ""
    order: float | None = None

    @property
    def value(self) -> float:
        """Epsilon, of a method that supports the event."""
        assert self.epsilon is not None
        return self.epsilon

    @property
    def row(self) -> tuple[str, str]:
        """The method and its epsilon as a row of a table; upper bounds are rounded up."""
        if self.epsilon is None:
            shown = "-"
        elif self.kind == "approximation":
            shown = f"{self.epsilon:.4g}"
        else:
            shown = round_up(self.epsilon)
        order = "" if self.order is None else f" (order {self.order:.4g})"
        note = f"{self.kind}: {self.note}" if self.note else _KINDS.get(self.kind, self.kind)
        return self.method, f"{shown:<9} {note}{order}"


class Report(abc.ABC):
    """Base class of certificates, which are printed alike."""

    caveats_heading: ClassVar[str] = "Caveats"
    # Where another certificate is printed below: the sentence between them.
    enclosed_heading: ClassVar[str] = ""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The heading: what is guaranteed."""

    @property
    @abc.abstractmethod
    def tables(self) -> list[Table]:
        """Titled tables of two columns."""

    @property
    @abc.abstractmethod
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""

    @property
    def enclosed(self) -> "Report | None":
        """Another certificate of the same run, printed below this one."""
        return None

    @abc.abstractmethod
    def paragraph(self) -> str:
        """Returns the certificate as one paragraph, for the experimental section of a paper."""

    @abc.abstractmethod
    def _values(self) -> dict[str, Any]:
        """The content, of which `to_dict` makes JSON-ready values."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return as_json(self._values())

    def __str__(self) -> str:
        text = render_text(self.title, self.tables, self.caveats_heading, self.caveats)
        if self.enclosed:
            return "\n\n".join([text, self.enclosed_heading, str(self.enclosed)])
        return text

    def _repr_html_(self) -> str:
        # The first table is the guarantee; the others open by a click.
        tables = [
            HTMLTable(caption, rows, folded=number > 0)
            for number, (caption, rows) in enumerate(self.tables)
        ]
        return render_html(
            self.title,
            tables,
            notes_heading=self.caveats_heading,
            notes=self.caveats,
            enclosed_heading=self.enclosed_heading,
            enclosed_html=self.enclosed._repr_html_() if self.enclosed else "",
        )


def render_text(
    title: str, tables: Sequence[Table], notes_heading: str, notes: Sequence[str]
) -> str:
    """Returns a title, tables and a list of notes, if there are any, in lines of 100 characters."""
    # All tables in one width; long texts are folded below themselves.
    width = max(len(heading) for _, rows in tables for heading, _ in rows)
    indent = " " * (width + 4)
    blocks = [[title]]
    for caption, rows in tables:
        lines = [f"{heading:<{width}}  {text}" for heading, text in rows]
        blocks.append([caption, *(_fold(line, "  ", indent) for line in lines)])

    if notes:
        blocks.append([notes_heading, *(_fold(note, "  - ", "    ") for note in notes)])
    return "\n\n".join("\n".join(block) for block in blocks)


def as_json(value: Any) -> Any:
    """Returns a tree of values as JSON has them: named tuples are objects, infinity is "inf"."""
    if isinstance(value, Report):
        return value.to_dict()
    if isinstance(value, float) and math.isinf(value):
        return "inf"
    if hasattr(value, "_asdict"):
        return as_json(value._asdict())
    if isinstance(value, Mapping):
        return {key: as_json(entry) for key, entry in value.items()}
    return [as_json(entry) for entry in value] if isinstance(value, list | tuple) else value


def round_up(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded up."""
    return _rounded(value, _FOUR_DIGITS_UP)


def round_down(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded down."""
    return _rounded(value, _FOUR_DIGITS_DOWN)


def _rounded(value: float, context: Context) -> str:
    if math.isinf(value):
        return "inf"
    return f"{float(context.create_decimal(str(float(value)))):.4g}"


def _fold(text: str, first: str, others: str) -> str:
    return textwrap.fill(text, 100, initial_indent=first, subsequent_indent=others)
