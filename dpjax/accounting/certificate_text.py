"""Certificates in words: a text of tables, a page, and a paragraph for a paper."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from importlib.metadata import version
from typing import TYPE_CHECKING

from dpjax.accounting.certificate_risks import (
    ADVANTAGE,
    ERROR_SUM,
    FALSE_POSITIVE_RATES,
    Risk,
    true_positive_rate_at,
)

if TYPE_CHECKING:
    from dpjax.accounting.certificate import Certificate, Reading

ACCOUNTANTS = {
    "pld": "privacy loss distribution, pessimistic",
    "rdp": "Rényi divergences, improved conversion",
    "moments": "Rényi divergences at the moments accountant's orders, classical conversion",
    "gdp_clt": "central limit of Gaussian differential privacy, not a guarantee",
}
_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DIGITS_DOWN = Context(prec=4, rounding=ROUND_FLOOR)
_ADJACENCIES = {
    "add_remove": "add or remove one record",
    "replace_one": "replace one record",
}
_CHANGES = {
    "add_remove": "adding or removing one record",
    "replace_one": "replacing one record",
}
_ATTACKS = {
    "add_remove": "whether {} is in the data or not",
    "replace_one": "which of two values {} has",
}
# A caption, and rows of a heading and a text.
Table = tuple[str, list[tuple[str, str]]]


def plain(certificate: "Certificate") -> str:
    """Returns the certificate as tables of plain text."""
    return in_plain(_title(certificate), _tables(certificate), "Caveats", certificate.caveats)


def page(certificate: "Certificate") -> str:
    """Returns the certificate as HTML, for notebooks and reports."""
    return in_html(_title(certificate), _tables(certificate), certificate.caveats)


def in_plain(title: str, tables: Sequence[Table], heading: str, lines: Iterable[str]) -> str:
    """Returns a title, tables of one width, and a list under its own heading, as plain text."""
    width = max(len(key) for _, rows in tables for key, _ in rows)
    blocks = [[title]]
    blocks += [[name, *(_wrapped(key, text, width) for key, text in rows)] for name, rows in tables]
    blocks.append([heading, *(f"  - {line}" for line in lines)])
    return "\n\n".join("\n".join(block) for block in blocks)


def in_html(title: str, tables: Sequence[Table], lines: Iterable[str]) -> str:
    """Returns a title, tables and a list as HTML."""
    parts = [f"<h4>{html.escape(title)}</h4>"]
    for name, rows in tables:
        cells = "".join(
            f"<tr><th>{html.escape(key)}</th><td>{html.escape(text)}</td></tr>"
            for key, text in rows
        )
        parts.append(f"<table><caption>{html.escape(name)}</caption>{cells}</table>")
    items = "".join(f"<li>{html.escape(line)}</li>" for line in lines)
    return "".join([*parts, f"<ul>{items}</ul>"])


def paragraph(certificate: "Certificate") -> str:
    """Returns one paragraph in plain English: mechanism, guarantee, risks, what is not covered."""
    sentences = [
        _mechanism_sentence(certificate),
        _guarantee_sentence(certificate),
        _risk_sentence(certificate),
        *_approximation_sentences(certificate),
        *certificate.caveats,
    ]
    return " ".join(sentences)


def compared(value: float, lower: float | None, certified: float) -> str:
    """Says where an approximation of epsilon lies beside the bracket."""
    if lower is None:
        lower, between = certified, f"the certified epsilon {upward(certified)}"
    else:
        between = f"the bracket [{downward(lower)}, {upward(certified)}]"
    if lower <= value <= certified:
        return f"inside {between}"
    side, end = ("below", lower) if value < lower else ("above", certified)
    share = abs(value - end) / end if 0 < end < math.inf else math.inf
    return f"{side} {between}" + (f" by {share:.2%}" if share < math.inf else "")


def upward(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded up."""
    return _rounded(value, _FOUR_DIGITS_UP)


def downward(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded down."""
    return _rounded(value, _FOUR_DIGITS_DOWN)


def attack(certificate: "Certificate") -> str:
    """Returns what an attacker tells apart, in words."""
    return _ATTACKS[certificate.adjacency].format(certificate.unit)


def _rounded(value: float, context: Context) -> str:
    if math.isinf(value):
        return "inf"
    return f"{float(context.create_decimal(str(float(value)))):.4g}"


def _title(certificate: "Certificate") -> str:
    return f"({upward(certificate.epsilon)}, {certificate.delta:g})-differential privacy"


def _tables(certificate: "Certificate") -> list[Table]:
    """The certificate as titled tables of two columns."""
    risks = [(risk.name, _range(risk)) for risk in certificate.risks]
    risks.append(("read off", certificate.risks_note))
    return [
        ("Guarantee", _guarantee_rows(certificate)),
        ("Mechanism", list(certificate.description.items())),
        (
            f"Epsilon at delta = {certificate.delta:g}",
            [_reading_row(reading) for reading in certificate.readings],
        ),
        (f"Risks: any attack that tells {attack(certificate)}", risks),
    ]


def _guarantee_rows(certificate: "Certificate") -> list[tuple[str, str]]:
    lower = certificate.epsilon_lower
    at_least = "-" if lower is None else downward(lower)
    return [
        ("accountant", f"{certificate.accountant} ({ACCOUNTANTS[certificate.accountant]})"),
        ("adjacency", _ADJACENCIES[certificate.adjacency]),
        ("unit of privacy", certificate.unit),
        ("delta", f"{certificate.delta:g}"),
        ("releases", str(certificate.num_releases)),
        ("epsilon at most", upward(certificate.epsilon)),
        ("epsilon at least", f"{at_least}  ({certificate.epsilon_lower_note})"),
    ]


def _reading_row(reading: "Reading") -> tuple[str, str]:
    """A reading as heading and text; bounds are rounded up, never down."""
    if reading.epsilon is None:
        return reading.accountant, f"{'-':<9} {reading.kind}: {reading.note}"
    exact = reading.kind == "approximation"
    shown = f"{reading.epsilon:.4g}" if exact else upward(reading.epsilon)
    return reading.accountant, f"{shown:<9} {reading.kind}: {reading.note}"


def _range(risk: Risk) -> str:
    """The guaranteed end of a reading, then the other if known, each rounded to its safe side."""
    ends = [
        None if risk.upper is None else f"at most {upward(risk.upper)}",
        None if risk.lower is None else f"at least {downward(risk.lower)}",
    ]
    ordered = reversed(ends) if risk.name == ERROR_SUM else ends
    return f"{', '.join(filter(None, ordered))} (guessing: {risk.guessing:g})"


def _wrapped(heading: str, text: str, width: int) -> str:
    """A row of a plain-text table, its text folded below itself."""
    indent = " " * (width + 4)
    return textwrap.fill(
        f"{heading:<{width}}  {text}", 100, initial_indent="  ", subsequent_indent=indent
    )


def _mechanism_sentence(certificate: "Certificate") -> str:
    count = certificate.num_releases
    described = "; ".join(f"{key}: {text}" for key, text in certificate.description.items())
    return (
        f"The mechanism publishes {count:,} noisy value{'' if count == 1 else 's'} ({described})."
    )


def _guarantee_sentence(certificate: "Certificate") -> str:
    lower = certificate.epsilon_lower
    other = (
        f"how much less it may be is not computed ({certificate.epsilon_lower_note})"
        if lower is None
        else f"no composition of these steps' curves certifies less than {downward(lower)}"
    )
    return (
        f"With {certificate.unit} as the unit of privacy, under {_CHANGES[certificate.adjacency]},"
        f" it is ({upward(certificate.epsilon)}, {certificate.delta:g})-differentially private;"
        f" epsilon is certified by accountant {certificate.accountant!r}"
        f" ({ACCOUNTANTS[certificate.accountant]}) of dpjax {version('dpjax')} with dp-accounting"
        f" {version('dp-accounting')}, and {other}."
    )


def _risk_sentence(certificate: "Certificate") -> str:
    most = {risk.name: upward(risk.upper) for risk in certificate.risks if risk.upper is not None}
    rates = [f"{most[true_positive_rate_at(x)]} at {x:g}" for x in FALSE_POSITIVE_RATES]
    return (
        f"An attack that tells {attack(certificate)}, whatever else it knows, has an advantage"
        f" (true less false positive rate) of at most {most[ADVANTAGE]}, and true positive rates,"
        f" at given false positive rates, of at most {', '.join(rates[:-1])} and {rates[-1]}."
    )


def _approximation_sentences(certificate: "Certificate") -> list[str]:
    return [
        f"An approximation gives epsilon {reading.epsilon:.4g} ({reading.note})."
        for reading in certificate.readings
        if reading.kind == "approximation"
    ]
