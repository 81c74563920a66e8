"""Certificates as plain-text tables, as HTML, and as a paragraph for a paper."""

import html
import math
import textwrap
from collections.abc import Iterable, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from importlib.metadata import version
from typing import TYPE_CHECKING

from dpjax.accounting.risk import (
    ADVANTAGE,
    ERROR_SUM,
    FALSE_POSITIVE_RATES,
    Risk,
    true_positive_rate_at,
)
from dpjax.adjacency import is_size_public
from dpjax.guarantee import Guarantee

if TYPE_CHECKING:
    from dpjax.certificates.certificate import Certificate, Estimate

ACCOUNTANTS = {
    "pld": "privacy loss distribution, pessimistic",
    "rdp": "Rényi DP, conversion of Canonne, Kamath & Steinke 2020",
    "moments": "Rényi DP at the orders and with the conversion of Abadi et al. 2016",
    "gdp_clt": "central limit theorem of Gaussian DP, not a guarantee",
}
_FOUR_DIGITS_UP = Context(prec=4, rounding=ROUND_CEILING)
_FOUR_DIGITS_DOWN = Context(prec=4, rounding=ROUND_FLOOR)
_NEIGHBOURS = {
    "add_remove": "one record is added or removed",
    "replace_one": "one record is replaced by any other",
    "zero_out": "one record is replaced by one that contributes nothing",
}
_ATTACK_GOALS = {
    "add_remove": "whether {} is in the data",
    "replace_one": "which of two values {} has",
    "zero_out": "whether {} contributes to the releases",
}
_FLOAT_NOISE_CAVEAT = (
    "Noise sampled in floating point does not protect against an attacker who inspects the"
    " low-order bits of a release (Mironov 2012)."
)
_CAVEATS = (
    "The privacy cost of tuning hyper-parameters on the same data is not included.",
    "Per-example norms and losses are private, and publishing them is not covered.",
)
_EXACT_NOISE_CAVEAT = (
    "Noise is sampled exactly, so the guarantee holds for every bit of the output; the time that a"
    " draw takes depends on the noise."
)
_SEED_CAVEAT = (
    "This run protects nobody: its key was derived from a seed, so its noise can be reproduced. The"
    " stated epsilon holds for the mechanism with a secret key (dpjax.release_key())."
)
_SIZE_CAVEAT = (
    "The number of records was used to compute {}, so it is public: the guarantee holds, at the"
    " same epsilon, for adjacency 'zero_out' (one record is replaced by one that contributes"
    " nothing). To keep the number of records private, choose every constant without it"
    " (PoissonSampling takes expected_batch_size)."
)
# A caption, and rows of a heading and a text.
Table = tuple[str, list[tuple[str, str]]]


def certificate_title(certificate: "Certificate") -> str:
    """Returns the heading of a certificate: its (epsilon, delta) guarantee."""
    return f"({round_up(certificate.epsilon)}, {certificate.delta:g})-differential privacy"


def certificate_tables(certificate: "Certificate") -> list[Table]:
    """Returns the certificate as titled tables of two columns."""
    risks = [(risk.name, _format_risk(risk)) for risk in certificate.risks]
    risks.append(("computed from", certificate.risks_note))
    return [
        ("Guarantee", _guarantee_rows(certificate)),
        ("Mechanism", list(certificate.guarantee.description.items())),
        (
            f"Epsilon at delta = {certificate.delta:g} by accountant",
            [_estimate_row(estimate) for estimate in certificate.estimates],
        ),
        (f"Attack risk: any attack that decides {attack_goal(certificate)}", risks),
    ]


def render_text(title: str, tables: Sequence[Table], heading: str, lines: Iterable[str]) -> str:
    """Returns a title, tables of one width, and a list under its own heading, as plain text."""
    width = max(len(key) for _, rows in tables for key, _ in rows)
    blocks = [[title]]
    blocks += [[name, *(_wrapped(key, text, width) for key, text in rows)] for name, rows in tables]
    items = (
        textwrap.fill(line, 100, initial_indent="  - ", subsequent_indent="    ") for line in lines
    )
    blocks.append([heading, *items])
    return "\n\n".join("\n".join(block) for block in blocks)


def render_html(title: str, tables: Sequence[Table], lines: Iterable[str]) -> str:
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


def format_paragraph(certificate: "Certificate") -> str:
    """Returns one paragraph: mechanism, guarantee, attack risk, caveats."""
    count = certificate.guarantee.num_releases
    described = "; ".join(
        f"{key}: {text}" for key, text in certificate.guarantee.description.items()
    )
    approximations = (
        f"An approximation of epsilon is {estimate.epsilon:.4g} ({estimate.note})."
        for estimate in certificate.estimates
        if estimate.kind == "approximation"
    )
    sentences = [
        f"The mechanism publishes {count:,} noisy value{'' if count == 1 else 's'} ({described}).",
        _guarantee_sentence(certificate),
        _risk_sentence(certificate),
        *approximations,
        *certificate.caveats,
    ]
    return " ".join(sentences)


def compare_to_bounds(value: float, lower: float | None, certified: float) -> str:
    """Returns where an approximation of epsilon lies relative to the bounds on epsilon."""
    if lower is None:
        lower, between = certified, f"the certified epsilon {round_up(certified)}"
    else:
        between = f"the bounds [{round_down(lower)}, {round_up(certified)}]"
    if lower <= value <= certified:
        return f"within {between}"
    side, end = ("below", lower) if value < lower else ("above", certified)
    share = abs(value - end) / end if 0 < end < math.inf else math.inf
    return f"{side} {between}" + (f" by {share:.2%}" if share < math.inf else "")


def round_up(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded up."""
    return _rounded(value, _FOUR_DIGITS_UP)


def round_down(value: float) -> str:
    """Returns ``value`` to four significant digits, rounded down."""
    return _rounded(value, _FOUR_DIGITS_DOWN)


def attack_goal(certificate: "Certificate") -> str:
    """Returns the question that an attack on the unit of privacy decides."""
    return _ATTACK_GOALS[certificate.guarantee.adjacency].format(certificate.guarantee.unit)


def caveats_of(guarantee: Guarantee) -> tuple[str, ...]:
    """Returns what a guarantee does not cover."""
    caveats = [_EXACT_NOISE_CAVEAT if guarantee.exact_noise else _FLOAT_NOISE_CAVEAT, *_CAVEATS]
    constants = " and ".join(guarantee.size_constants)
    if constants and not is_size_public(guarantee.adjacency):
        caveats.append(_SIZE_CAVEAT.format(constants))
    if guarantee.seeded:
        caveats.append(_SEED_CAVEAT)
    return tuple(caveats)


def format_size(guarantee: Guarantee) -> str:
    """Returns whether the number of records is public, and through which constants."""
    if is_size_public(guarantee.adjacency):
        return "public"
    if guarantee.size_constants:
        return f"public: used to compute {' and '.join(guarantee.size_constants)}, see caveats"
    return "private; the constants of the mechanism must have been chosen without it"


def _rounded(value: float, context: Context) -> str:
    if math.isinf(value):
        return "inf"
    return f"{float(context.create_decimal(str(float(value)))):.4g}"


def _guarantee_rows(certificate: "Certificate") -> list[tuple[str, str]]:
    guarantee, lower = certificate.guarantee, certificate.epsilon_lower
    shown = "not available" if lower is None else round_down(lower)
    return [
        ("accountant", f"{certificate.accountant} ({ACCOUNTANTS[certificate.accountant]})"),
        (
            "adjacency",
            f"{guarantee.adjacency}: {_NEIGHBOURS[guarantee.adjacency]}",
        ),
        ("number of records", format_size(guarantee)),
        ("unit of privacy", guarantee.unit),
        ("delta", f"{certificate.delta:g}"),
        ("releases", str(guarantee.num_releases)),
        ("epsilon, upper bound", f"{round_up(certificate.epsilon)}  (certified)"),
        ("epsilon, lower bound", f"{shown}  ({certificate.epsilon_lower_note})"),
    ]


def _estimate_row(estimate: "Estimate") -> tuple[str, str]:
    """An accountant and its epsilon; upper bounds are rounded up."""
    if estimate.epsilon is None:
        shown = "-"
    elif estimate.kind == "approximation":
        shown = f"{estimate.epsilon:.4g}"
    else:
        shown = round_up(estimate.epsilon)
    return estimate.accountant, f"{shown:<9} {estimate.kind}: {estimate.note}"


def _format_risk(risk: Risk) -> str:
    """The guarantee, then the other bound if available; both are rounded outward."""
    upper = "" if risk.upper is None else round_up(risk.upper)
    lower = "" if risk.lower is None else round_down(risk.lower)
    if risk.name == ERROR_SUM:
        guarantee, other = f"at least {lower}", upper and f"upper bound {upper}, "
    else:
        guarantee, other = f"at most {upper}", lower and f"lower bound {lower}, "
    return f"{guarantee} ({other}guessing {risk.guessing:g})"


def _wrapped(heading: str, text: str, width: int) -> str:
    """A row of a plain-text table, its text folded below itself."""
    indent = " " * (width + 4)
    return textwrap.fill(
        f"{heading:<{width}}  {text}", 100, initial_indent="  ", subsequent_indent=indent
    )


def _guarantee_sentence(certificate: "Certificate") -> str:
    guarantee, lower = certificate.guarantee, certificate.epsilon_lower
    other = (
        f"a lower bound is not available ({certificate.epsilon_lower_note})"
        if lower is None
        else "no accountant that composes the trade-off functions of the releases can certify less"
        f" than {round_down(lower)}"
    )
    size = "public" if guarantee.is_size_public else "private"
    return (
        f"It is ({round_up(certificate.epsilon)}, {certificate.delta:g})-differentially private,"
        f" with {guarantee.unit} as the unit of privacy, under adjacency"
        f" {guarantee.adjacency!r} ({_NEIGHBOURS[guarantee.adjacency]}; the number of records"
        f" is {size}). This upper bound on epsilon was computed by accountant"
        f" {certificate.accountant!r} ({ACCOUNTANTS[certificate.accountant]}) of dpjax"
        f" {version('dpjax')} with dp-accounting {version('dp-accounting')}; {other}."
    )


def _risk_sentence(certificate: "Certificate") -> str:
    uppers = {
        risk.name: round_up(risk.upper) for risk in certificate.risks if risk.upper is not None
    }
    first, *others = FALSE_POSITIVE_RATES
    rates = [f"{uppers[true_positive_rate_at(x)]} at {x:g}" for x in others]
    return (
        f"Any attack that decides {attack_goal(certificate)}, even with all other records given,"
        f" has an advantage (true positive rate minus false positive rate) of at most"
        f" {uppers[ADVANTAGE]}, and a true positive rate of at most"
        f" {uppers[true_positive_rate_at(first)]} at a false positive rate of {first:g},"
        f" {', '.join(rates[:-1])} and {rates[-1]}."
    )
