"""Privacy certificates: bounds on epsilon, trade-off function, attack risk and caveats."""

import functools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dpjax._checks import check_delta, check_type
from dpjax.accounting.accountants import METHODS, certified_epsilon, epsilon_or_reason
from dpjax.accounting.bounds import epsilon_lower_bound
from dpjax.accounting.event_tradeoff import tradeoff_bounds, tradeoff_curve
from dpjax.accounting.events import UnsupportedEventError
from dpjax.accounting.risk import Risk, attack_risks
from dpjax.accounting.tradeoff import TradeOff
from dpjax.certificates import text
from dpjax.certificates.figure import plot_certificate
from dpjax.guarantee import Guarantee

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["guarantee", "bound", "approximation", "unavailable"]

_LOWER_BOUND_NOTE = (
    "not a guarantee: no accountant that composes the trade-off functions of the releases can"
    " certify less"
)
_RISKS_NOTE = "the certified trade-off function"
_OTHER_BOUNDS_NOTE = (
    "the bounds in parentheses are not guarantees: they are those of a trade-off function that no"
    " accountant which composes the releases can exceed"
)


@dataclass(frozen=True)
class Estimate:
    """Epsilon of the mechanism by one accountant.

    Attributes:
      accountant: the method, as in ``dpjax.accounting.epsilon``.
      epsilon: its epsilon; ``None`` where the accountant does not support the event.
      kind: ``"guarantee"`` (the certified upper bound), ``"bound"`` (another upper bound),
        ``"approximation"`` (may be too small or too large) or ``"unavailable"``.
      note: the method, or why the accountant does not support the event.
    """

    accountant: str
    epsilon: float | None
    kind: Kind
    note: str


@dataclass(frozen=True)
class Certificate:
    """The (epsilon, delta)-DP guarantee of a mechanism, its trade-off function and attack risk.

    The trade-off functions and the attack risks are computed on first access, in about a second.

    Attributes:
      delta: in (0, 1).
      guarantee: of the mechanism or run: event, adjacency, unit, description and so on.
      estimates: epsilon by each accountant; exactly one is the guarantee.
      epsilon_lower: lower bound on the epsilon that any accountant can certify by composing the
        trade-off functions of the releases; ``None`` where it is not available.
      epsilon_lower_note: what the lower bound means, or why it is not available.
    """

    delta: float
    guarantee: Guarantee
    estimates: tuple[Estimate, ...]
    epsilon_lower: float | None = None
    epsilon_lower_note: str = "not computed"

    @property
    def epsilon(self) -> float:
        """The certified upper bound on epsilon."""
        value = self._certified.epsilon
        assert value is not None
        return value

    @property
    def accountant(self) -> str:
        """The accountant that computed the certified epsilon."""
        return self._certified.accountant

    @property
    def curve(self) -> TradeOff:
        """The certified trade-off function: a lower bound on the type II error of any attack.

        Computed from the privacy loss distribution, or from the Rényi bound where that is not
        available. At ``delta`` its epsilon may differ from the certified one by rounding; both are
        guarantees.
        """
        return self._curves[0]

    @property
    def curve_upper(self) -> TradeOff | None:
        """Upper bound on the trade-off function, or ``None`` where it is not available.

        No accountant that composes the releases' trade-off functions can certify a larger one.
        """
        return self._curves[1]

    @functools.cached_property
    def risks(self) -> tuple[Risk, ...]:
        """Upper and lower bounds on the success of the best attack, by several metrics."""
        return attack_risks(self.curve, self.curve_upper)

    @property
    def risks_note(self) -> str:
        """What the risks are computed from, or why only one of the two bounds is."""
        return self._curves[2]

    @functools.cached_property
    def _curves(self) -> tuple[TradeOff, TradeOff | None, str]:
        """Lower and (if available) upper bound on the trade-off function, and ``risks_note``."""
        event, adjacency = self.guarantee.event, self.guarantee.adjacency
        try:
            lower, upper = tradeoff_bounds(event, adjacency=adjacency)
        except UnsupportedEventError as reason:
            lower = tradeoff_curve(event, adjacency=adjacency)
            return lower, None, f"{_RISKS_NOTE}; the other bounds are not computed: {reason}"
        return lower, upper, f"{_RISKS_NOTE}; {_OTHER_BOUNDS_NOTE}"

    @property
    def _certified(self) -> Estimate:
        return next(estimate for estimate in self.estimates if estimate.kind == "guarantee")

    @property
    def caveats(self) -> tuple[str, ...]:
        """What the guarantee does not cover."""
        return text.caveats_of(self.guarantee)

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": _json(self.epsilon),
            "epsilon_lower": _json(self.epsilon_lower),
            "epsilon_lower_note": self.epsilon_lower_note,
            "delta": self.delta,
            "accountant": self.accountant,
            "adjacency": self.guarantee.adjacency,
            "is_size_public": self.guarantee.is_size_public,
            "unit": self.guarantee.unit,
            "num_releases": self.guarantee.num_releases,
            "num_steps_run": self.guarantee.num_steps_run,
            "seeded": self.guarantee.seeded,
            "description": dict(self.guarantee.description),
            "estimates": [
                {**vars(estimate), "epsilon": _json(estimate.epsilon)}
                for estimate in self.estimates
            ],
            "risks": [dict(vars(risk)) for risk in self.risks],
            "risks_note": self.risks_note,
            "caveats": list(self.caveats),
        }

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph, for the experimental section of a paper."""
        return text.format_paragraph(self)

    def plot(self) -> "Figure":
        """Returns a matplotlib figure of the trade-off function and the ROC curve of any attack."""
        return plot_certificate(self)

    def __str__(self) -> str:
        title, tables = text.certificate_title(self), text.certificate_tables(self)
        return text.render_text(title, tables, "Caveats", self.caveats)

    def _repr_html_(self) -> str:
        title, tables = text.certificate_title(self), text.certificate_tables(self)
        return text.render_html(title, tables, self.caveats)


def certify(guarantee: Guarantee, delta: float) -> Certificate:
    """Returns the certificate of a guarantee at ``delta``, with the caveats that it deserves.

    The certified epsilon is that of the privacy loss distribution; where the event has none, as
    repetition and selection, it is that of Rényi DP. ``Certificate.accountant`` names which.

    Args:
      guarantee: that of a mechanism or of a run (``mechanism.guarantee``, ``result.guarantee``).
      delta: in (0, 1).

    Raises:
      UnsupportedEventError: neither accountant supports the mechanism's event.
      ValueError: ``delta`` is not in (0, 1).
    """
    check_type("guarantee", guarantee, Guarantee, "the Guarantee of a mechanism or of a run")
    check_delta(delta)
    event, adjacency = guarantee.event, guarantee.adjacency
    method, certified = certified_epsilon(event, delta, adjacency)
    lower, note = None, _LOWER_BOUND_NOTE
    try:
        lower = epsilon_lower_bound(event, delta, adjacency, certified)
    except UnsupportedEventError as reason:
        note = str(reason)
    return Certificate(
        delta=float(delta),
        guarantee=guarantee,
        estimates=tuple(
            Estimate(method, certified, "guarantee", text.ACCOUNTANTS[method])
            if other == method
            else _estimate(guarantee, delta, other, (lower, certified))
            for other in METHODS
        ),
        epsilon_lower=lower,
        epsilon_lower_note=note,
    )


def _estimate(
    guarantee: Guarantee, delta: float, method: str, bounds: tuple[float | None, float]
) -> Estimate:
    """Returns the estimate of an accountant other than the one that certifies epsilon."""
    try:
        value = epsilon_or_reason(guarantee.event, delta, guarantee.adjacency, method)
    except UnsupportedEventError as reason:
        return Estimate(method, None, "unavailable", str(reason))
    note = text.ACCOUNTANTS[method]
    if method == "gdp_clt":
        note = f"{note}; {text.compare_to_bounds(value, *bounds)}"
        return Estimate(method, value, "approximation", note)
    return Estimate(method, value, "bound", note)


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
