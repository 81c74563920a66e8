"""Privacy certificates: bounds on epsilon, trade-off function, attack risk and caveats."""

import dataclasses
import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from dp_accounting import DpEvent

from dpjax._checks import check, check_delta
from dpjax.accounting.accountants import METHODS, certified_epsilon, epsilon_or_reason
from dpjax.accounting.bounds import epsilon_lower_bound
from dpjax.accounting.event_tradeoff import tradeoff_bounds, tradeoff_curve
from dpjax.accounting.events import UnsupportedEventError
from dpjax.accounting.risk import Risk, attack_risks
from dpjax.accounting.tradeoff import TradeOff
from dpjax.adjacency import Adjacency, is_size_public
from dpjax.certificates import text
from dpjax.certificates.figure import plot_certificate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from dpjax.mechanisms.base import Mechanism


Kind = Literal["guarantee", "bound", "approximation", "unavailable"]

CAVEATS = (
    "Noise sampled in floating point does not protect against an attacker who inspects the"
    " low-order bits of a release (Mironov 2012).",
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
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``.
      unit: description of the unit of privacy, such as "one image".
      num_releases: the number of noisy values that are published.
      description: the mechanism's sampling, clipping, noise and so on, as heading and text.
      event: the dp-accounting event that was composed.
      estimates: epsilon by each accountant; exactly one is the guarantee.
      epsilon_lower: lower bound on the epsilon that any accountant can certify by composing the
        trade-off functions of the releases; ``None`` where it is not available.
      epsilon_lower_note: what the lower bound means, or why it is not available.
      caveats: what the guarantee does not cover.
      constants_from_size: descriptions of published values computed from the number of records.
    """

    delta: float
    adjacency: Adjacency
    unit: str
    num_releases: int
    description: Mapping[str, str]
    event: DpEvent
    estimates: tuple[Estimate, ...]
    epsilon_lower: float | None = None
    epsilon_lower_note: str = "not computed"
    caveats: tuple[str, ...] = CAVEATS
    constants_from_size: tuple[str, ...] = ()

    @property
    def epsilon(self) -> float:
        """The certified upper bound on epsilon."""
        value = self._guarantee.epsilon
        assert value is not None
        return value

    @property
    def accountant(self) -> str:
        """The accountant that computed the certified epsilon."""
        return self._guarantee.accountant

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
        try:
            lower, upper = tradeoff_bounds(self.event, adjacency=self.adjacency)
        except UnsupportedEventError as reason:
            lower = tradeoff_curve(self.event, adjacency=self.adjacency)
            return lower, None, f"{_RISKS_NOTE}; the other bounds are not computed: {reason}"
        return lower, upper, f"{_RISKS_NOTE}; {_OTHER_BOUNDS_NOTE}"

    @property
    def _guarantee(self) -> Estimate:
        return next(estimate for estimate in self.estimates if estimate.kind == "guarantee")

    @property
    def is_size_public(self) -> bool:
        """Whether n is public: by the adjacency, or by a published value computed from it."""
        return is_size_public(self.adjacency) or bool(self.constants_from_size)

    def with_seed_caveat(self, *, seeded: bool) -> "Certificate":
        """Returns the certificate, with a caveat that the noise is reproducible if ``seeded``."""
        return dataclasses.replace(self, caveats=(*self.caveats, _SEED_CAVEAT)) if seeded else self

    def with_size_caveat(self, *constants: str) -> "Certificate":
        """Returns the certificate, with a caveat that ``constants`` were computed from n.

        The certificate is unchanged where n is public by the adjacency.

        Args:
          *constants: descriptions of published values, such as "the divisor", in addition to those
            of ``constants_from_size``.
        """
        every = (*self.constants_from_size, *constants)
        if is_size_public(self.adjacency) or not every:
            return self
        before = text.size_caveat(self.constants_from_size)
        kept = tuple(caveat for caveat in self.caveats if caveat != before)
        caveats = (*kept, text.size_caveat(every))
        return dataclasses.replace(self, constants_from_size=every, caveats=caveats)

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": _json(self.epsilon),
            "epsilon_lower": _json(self.epsilon_lower),
            "epsilon_lower_note": self.epsilon_lower_note,
            "delta": self.delta,
            "accountant": self.accountant,
            "adjacency": self.adjacency,
            "is_size_public": self.is_size_public,
            "unit": self.unit,
            "num_releases": self.num_releases,
            "description": dict(self.description),
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


def certify(mechanism: "Mechanism", delta: float) -> Certificate:
    """Returns the privacy certificate of ``mechanism`` at ``delta``.

    The certified epsilon is that of the privacy loss distribution; where the event has none, as
    repetition and selection, it is that of Rényi DP. ``Certificate.accountant`` names which.

    Args:
      mechanism: any dpjax mechanism; it is not run.
      delta: in (0, 1).

    Raises:
      UnsupportedEventError: neither accountant supports the mechanism's event.
      ValueError: ``delta`` is not in (0, 1).
    """
    check(hasattr(mechanism, "event"), "mechanism", mechanism, "a dpjax mechanism")
    check_delta(delta)
    method, certified = certified_epsilon(mechanism.event, delta, mechanism.adjacency)
    lower, note = None, _LOWER_BOUND_NOTE
    try:
        lower = epsilon_lower_bound(mechanism.event, delta, mechanism.adjacency, certified)
    except UnsupportedEventError as reason:
        note = str(reason)
    certificate = Certificate(
        delta=float(delta),
        adjacency=mechanism.adjacency,
        unit=mechanism.unit,
        num_releases=mechanism.num_releases,
        description=dict(mechanism.describe()),
        event=mechanism.event,
        estimates=tuple(
            Estimate(method, certified, "guarantee", text.ACCOUNTANTS[method])
            if other == method
            else _estimate(mechanism, delta, other, (lower, certified))
            for other in METHODS
        ),
        epsilon_lower=lower,
        epsilon_lower_note=note,
        caveats=(_EXACT_NOISE_CAVEAT, *CAVEATS[1:]) if mechanism.has_exact_noise else CAVEATS,
    )
    return certificate.with_size_caveat(*mechanism.constants_from_size)


def _estimate(
    mechanism: "Mechanism", delta: float, method: str, bounds: tuple[float | None, float]
) -> Estimate:
    """Returns the estimate of an accountant other than the one that certifies epsilon."""
    try:
        value = epsilon_or_reason(mechanism.event, delta, mechanism.adjacency, method)
    except UnsupportedEventError as reason:
        return Estimate(method, None, "unavailable", str(reason))
    note = text.ACCOUNTANTS[method]
    if method == "gdp_clt":
        note = f"{note}; {text.compare_to_bounds(value, *bounds)}"
        return Estimate(method, value, "approximation", note)
    return Estimate(method, value, "bound", note)


def _json(value: float | None) -> float | str | None:
    return "inf" if value is not None and math.isinf(value) else value
