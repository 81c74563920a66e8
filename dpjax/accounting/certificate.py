"""Certificates: what a mechanism guarantees, by every accountant that takes it, in words."""

import html
import math
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import ROUND_CEILING, Context
from typing import TYPE_CHECKING, Any, Literal

from dpjax._validation import check_delta
from dpjax.accounting.accountants import METHODS, epsilon_or_reason, guarantee
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.events import UnsupportedEventError

if TYPE_CHECKING:
    from dpjax.mechanisms.base import Mechanism

Kind = Literal["guarantee", "bound", "approximation", "unavailable"]

CAVEATS = (
    "Floating-point noise is not secure against an attacker who sees every bit of it.",
    "Hyper-parameters tuned on the same data are not counted.",
    "Per-example norms and losses are private values and no part of the release.",
)
_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_ADJACENCY_IN_WORDS = {
    "add_remove": "add or remove one record",
    "replace_one": "replace one record",
}
_ACCOUNTANT_IN_WORDS = {
    "pld": "privacy loss distribution, pessimistic",
    "rdp": "Rényi divergences, improved conversion",
    "moments": "Rényi divergences at the moments accountant's orders, classical conversion",
    "gdp_clt": "central limit of Gaussian differential privacy, not a guarantee",
}


@dataclass(frozen=True)
class Reading:
    """What one accountant says.

    Attributes:
      accountant: the method, as in ``dpjax.accounting.epsilon``.
      epsilon: its epsilon; ``None`` where it does not take the event.
      kind: ``"guarantee"`` (the certified one), ``"bound"`` (an upper bound, looser),
        ``"approximation"`` (errs on either side) or ``"unavailable"``.
      note: how it was computed, or why it was not.
    """

    accountant: str
    epsilon: float | None
    kind: Kind
    note: str


@dataclass(frozen=True)
class Certificate:
    """The guarantee of one mechanism at one delta.

    Attributes:
      delta: in (0, 1).
      adjacency: ``"add_remove"`` or ``"replace_one"``.
      unit: the unit of privacy in words.
      num_releases: how many noisy values are published.
      description: the mechanism in words, a heading for each sentence.
      readings: what each accountant says; exactly one is the guarantee.
      epsilon_lower: the lower end of the bracket whose upper end is ``epsilon``; ``None`` if it was
        not computed.
      caveats: what the guarantee does not cover.
    """

    delta: float
    adjacency: Adjacency
    unit: str
    num_releases: int
    description: Mapping[str, str]
    readings: tuple[Reading, ...]
    epsilon_lower: float | None = None
    caveats: tuple[str, ...] = CAVEATS

    @property
    def epsilon(self) -> float:
        """The certified epsilon."""
        value = self._guarantee.epsilon
        assert value is not None
        return value

    @property
    def accountant(self) -> str:
        """The method that certified it."""
        return self._guarantee.accountant

    @property
    def _guarantee(self) -> Reading:
        return next(reading for reading in self.readings if reading.kind == "guarantee")

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": _json(self.epsilon),
            "epsilon_lower": _json(self.epsilon_lower),
            "delta": self.delta,
            "accountant": self.accountant,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "num_releases": self.num_releases,
            "description": dict(self.description),
            "readings": [
                {**vars(reading), "epsilon": _json(reading.epsilon)} for reading in self.readings
            ],
            "caveats": list(self.caveats),
        }

    def __str__(self) -> str:
        width = max(len(heading) for _, rows in self._sections() for heading, _ in rows)
        blocks = [[self._title()]]
        for title, rows in self._sections():
            blocks.append([title, *(_wrapped(key, text, width) for key, text in rows)])
        blocks.append(["Caveats", *(f"  - {caveat}" for caveat in self.caveats)])
        return "\n\n".join("\n".join(block) for block in blocks)

    def _repr_html_(self) -> str:
        parts = [f"<h4>{html.escape(self._title())}</h4>"]
        for title, rows in self._sections():
            cells = "".join(
                f"<tr><th>{html.escape(key)}</th><td>{html.escape(text)}</td></tr>"
                for key, text in rows
            )
            parts.append(f"<table><caption>{html.escape(title)}</caption>{cells}</table>")
        caveats = "".join(f"<li>{html.escape(caveat)}</li>" for caveat in self.caveats)
        return "".join([*parts, f"<ul>{caveats}</ul>"])

    def _title(self) -> str:
        return f"({_upward(self.epsilon)}, {self.delta:g})-differential privacy"

    def _sections(self) -> list[tuple[str, list[tuple[str, str]]]]:
        """The certificate as titled tables of two columns."""
        lower = "not computed" if self.epsilon_lower is None else f"{self.epsilon_lower:.4g}"
        guarantee_rows = [
            ("accountant", f"{self.accountant} ({_ACCOUNTANT_IN_WORDS[self.accountant]})"),
            ("adjacency", _ADJACENCY_IN_WORDS[self.adjacency]),
            ("unit of privacy", self.unit),
            ("delta", f"{self.delta:g}"),
            ("releases", str(self.num_releases)),
            ("epsilon at most", _upward(self.epsilon)),
            ("lower end of the bracket", lower),
        ]
        return [
            ("Guarantee", guarantee_rows),
            ("Mechanism", list(self.description.items())),
            (f"Epsilon at delta = {self.delta:g}", [_row(reading) for reading in self.readings]),
        ]


def certify(mechanism: "Mechanism", delta: float) -> Certificate:
    """Returns what ``mechanism`` guarantees at ``delta``.

    The certified epsilon is that of the privacy loss distribution; where dp-accounting has none for
    the event, as for samples without replacement, the Rényi bound is the guarantee and is named so.

    Raises:
      UnsupportedEventError: neither accountant takes the mechanism's event.
      ValueError: ``delta`` is not in (0, 1).
    """
    check_delta(delta)
    method, certified = guarantee(mechanism.event, delta, mechanism.adjacency)
    return Certificate(
        delta=float(delta),
        adjacency=mechanism.adjacency,
        unit=mechanism.unit,
        num_releases=mechanism.num_releases,
        description=dict(mechanism.describe()),
        readings=tuple(
            Reading(method, certified, "guarantee", _ACCOUNTANT_IN_WORDS[method])
            if other == method
            else _reading(mechanism, delta, other, certified)
            for other in METHODS
        ),
    )


def _reading(mechanism: "Mechanism", delta: float, method: str, certified: float) -> Reading:
    """Returns what a method says that did not give the guarantee."""
    try:
        value = epsilon_or_reason(mechanism.event, delta, mechanism.adjacency, method)
    except UnsupportedEventError as reason:
        return Reading(method, None, "unavailable", str(reason))
    words = _ACCOUNTANT_IN_WORDS[method]
    if method == "gdp_clt":
        return Reading(method, value, "approximation", f"{words}; {_compared(value, certified)}")
    return Reading(method, value, "bound", words)


def _compared(value: float, certified: float) -> str:
    """Says where an approximation lies beside the certified epsilon."""
    if math.isclose(value, certified, rel_tol=1e-3):
        return "equal to the certified epsilon within 0.1 %"
    side = "below" if value < certified else "above"
    share = abs(value - certified) / certified if 0 < certified < math.inf else math.inf
    return f"{side} the certified epsilon" + (f" by {share:.1%}" if share < math.inf else "")


def _row(reading: Reading) -> tuple[str, str]:
    """A reading as heading and text; bounds are rounded up, never down."""
    if reading.epsilon is None:
        return reading.accountant, f"{'-':<9} {reading.kind}: {reading.note}"
    exact = reading.kind == "approximation"
    shown = f"{reading.epsilon:.4g}" if exact else _upward(reading.epsilon)
    return reading.accountant, f"{shown:<9} {reading.kind}: {reading.note}"


def _wrapped(heading: str, text: str, width: int) -> str:
    """A row of a plain-text table, its text folded below itself."""
    indent = " " * (width + 4)
    return textwrap.fill(
        f"{heading:<{width}}  {text}", 100, initial_indent="  ", subsequent_indent=indent
    )


def _upward(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded up."""
    if math.isinf(value):
        return "inf"
    return f"{float(_FOUR_DIGITS_UP.create_decimal(str(float(value)))):.4g}"


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
