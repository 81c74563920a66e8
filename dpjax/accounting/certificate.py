"""Certificates: what a mechanism guarantees, as a curve, its readings, and by every accountant."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dp_accounting import DpEvent

from dpjax._validation import check_delta
from dpjax.accounting import certificate_text as text
from dpjax.accounting.accountants import METHODS, epsilon_or_reason, guarantee
from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.bracket.ends import lower_end
from dpjax.accounting.certificate_figure import figure
from dpjax.accounting.certificate_risks import Risk, risks
from dpjax.accounting.curves import tradeoff_bracket, tradeoff_curve
from dpjax.accounting.events import UnsupportedEventError
from dpjax.accounting.tradeoff import TradeOff

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpjax.mechanisms.base import Mechanism

Kind = Literal["guarantee", "bound", "approximation", "unavailable"]

CAVEATS = (
    "Floating-point noise is not secure against an attacker who sees every bit of it.",
    "Hyper-parameters tuned on the same data are not counted.",
    "Per-example norms and losses are private values and no part of the release.",
)
_SEEDED = (
    "The key of this run came from a seed: its noise can be drawn again, so this run protects"
    " nobody. It shows what the mechanism guarantees with a secret key (dpjax.release_key())."
)
_NO_BETTER = "no composition of these steps' curves betters; no guarantee"
_LOWER_IN_WORDS = "no composition of these steps' curves certifies less; no guarantee"
_GUARANTEED = "the guaranteed trade-off curve"


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
    """The guarantee of one mechanism: a trade-off curve, and epsilon at one delta.

    The curves, and what is read off them, are computed when first asked for, in about a second.

    Attributes:
      delta: in (0, 1).
      adjacency: ``"add_remove"`` or ``"replace_one"``.
      unit: the unit of privacy in words.
      num_releases: how many noisy values are published.
      description: the mechanism in words, a heading for each sentence.
      event: what was accounted for.
      readings: what each accountant says; exactly one is the guarantee.
      epsilon_lower: the lower end of the bracket whose upper end is ``epsilon``: no accountant can
        certify less. ``None`` where there is none.
      epsilon_lower_note: what the lower end is of, or why there is none.
      caveats: what the guarantee does not cover.
    """

    delta: float
    adjacency: Adjacency
    unit: str
    num_releases: int
    description: Mapping[str, str]
    event: DpEvent
    readings: tuple[Reading, ...]
    epsilon_lower: float | None = None
    epsilon_lower_note: str = "not computed"
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
    def curve(self) -> TradeOff:
        """The trade-off curve that is guaranteed for neighbours each way.

        Of the privacy loss distribution, or of the Rényi bound where there is none. At ``delta``
        its epsilon may differ from the certified one by rounding; both are guaranteed.
        """
        return self._curves[0]

    @property
    def curve_upper(self) -> TradeOff | None:
        """A curve above the true one, which no accountant can beat; ``None`` if none is known."""
        return self._curves[1]

    @functools.cached_property
    def risks(self) -> tuple[Risk, ...]:
        """How well an attack can do at most and, no accountant can certify less, at least."""
        return risks(self.curve, self.curve_upper)

    @property
    def risks_note(self) -> str:
        """Where the readings come from, or why one end is not computed."""
        return self._curves[2]

    @functools.cached_property
    def _curves(self) -> tuple[TradeOff, TradeOff | None, str]:
        """The guaranteed curve, one above the true one if there is any, and a note."""
        try:
            lower, upper = tradeoff_bracket(self.event, adjacency=self.adjacency)
        except UnsupportedEventError as reason:
            lower = tradeoff_curve(self.event, adjacency=self.adjacency)
            return lower, None, f"{_GUARANTEED}; the other end is not computed: {reason}"
        return lower, upper, f"{_GUARANTEED}; the other end off one that {_NO_BETTER}"

    @property
    def _guarantee(self) -> Reading:
        return next(reading for reading in self.readings if reading.kind == "guarantee")

    def of_run(self, *, seeded: bool) -> "Certificate":
        """Returns the certificate of one run, which says so if anyone can draw its noise again."""
        return dataclasses.replace(self, caveats=(*self.caveats, _SEEDED)) if seeded else self

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": _json(self.epsilon),
            "epsilon_lower": _json(self.epsilon_lower),
            "epsilon_lower_note": self.epsilon_lower_note,
            "delta": self.delta,
            "accountant": self.accountant,
            "adjacency": self.adjacency,
            "unit": self.unit,
            "num_releases": self.num_releases,
            "description": dict(self.description),
            "readings": [
                {**vars(reading), "epsilon": _json(reading.epsilon)} for reading in self.readings
            ],
            "risks": [dict(vars(one)) for one in self.risks],
            "risks_note": self.risks_note,
            "caveats": list(self.caveats),
        }

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph in plain English, for a paper."""
        return text.paragraph(self)

    def plot(self) -> "Figure":
        """Returns a matplotlib figure: the curve between its ends, and what an attack attains."""
        return figure(self)

    def __str__(self) -> str:
        return text.plain(self)

    def _repr_html_(self) -> str:
        return text.page(self)


def certify(mechanism: "Mechanism", delta: float) -> Certificate:
    """Returns what ``mechanism`` guarantees at ``delta``.

    The certified epsilon is that of the privacy loss distribution; where there is none for the
    event, as for repetition and selection, the Rényi bound is the guarantee and is named so.

    Raises:
      UnsupportedEventError: neither accountant takes the mechanism's event.
      ValueError: ``delta`` is not in (0, 1).
    """
    check_delta(delta)
    method, certified = guarantee(mechanism.event, delta, mechanism.adjacency)
    lower, note = _lower(mechanism, delta, certified)
    return Certificate(
        delta=float(delta),
        adjacency=mechanism.adjacency,
        unit=mechanism.unit,
        num_releases=mechanism.num_releases,
        description=dict(mechanism.describe()),
        event=mechanism.event,
        readings=tuple(
            Reading(method, certified, "guarantee", text.ACCOUNTANTS[method])
            if other == method
            else _reading(mechanism, delta, other, (lower, certified))
            for other in METHODS
        ),
        epsilon_lower=lower,
        epsilon_lower_note=note,
    )


def _lower(mechanism: "Mechanism", delta: float, certified: float) -> tuple[float | None, str]:
    """Returns the lower end of the bracket and what it is of, or why there is none."""
    try:
        value = lower_end(mechanism.event, delta, mechanism.adjacency, near=certified)
    except UnsupportedEventError as reason:
        return None, str(reason)
    return value, _LOWER_IN_WORDS


def _reading(
    mechanism: "Mechanism", delta: float, method: str, ends: tuple[float | None, float]
) -> Reading:
    """Returns what a method says that did not give the guarantee."""
    try:
        value = epsilon_or_reason(mechanism.event, delta, mechanism.adjacency, method)
    except UnsupportedEventError as reason:
        return Reading(method, None, "unavailable", str(reason))
    words = text.ACCOUNTANTS[method]
    if method == "gdp_clt":
        return Reading(method, value, "approximation", f"{words}; {text.compared(value, *ends)}")
    return Reading(method, value, "bound", words)


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
