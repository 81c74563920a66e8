"""Privacy certificates: bounds on epsilon, trade-off function, attack risk and caveats."""

import dataclasses
import functools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from dpjax import verify
from dpjax._checks import check, check_delta, check_text, check_type
from dpjax.accounting import gdp
from dpjax.accounting.accountants import (
    METHODS,
    certified_epsilon,
    compute_epsilon,
    last_iterate_epsilon,
)
from dpjax.accounting.event_tradeoff import curve_bounds, guaranteed_curve
from dpjax.accounting.events import (
    AtomicEvents,
    UnsupportedEventError,
    decompose,
    event_values,
)
from dpjax.accounting.lower_bounds import epsilon_lower_bound
from dpjax.accounting.risk import (
    ADVANTAGE,
    ERROR_SUM,
    FALSE_POSITIVE_RATES,
    Risk,
    attack_risks,
    true_positive_rate_at,
)
from dpjax.accounting.tradeoff import TradeOff
from dpjax.certificates.figure import plot_people, plot_tradeoff
from dpjax.certificates.render import Estimate, Report, Table, as_json, round_down, round_up
from dpjax.guarantee import (
    NEIGHBOURS,
    Guarantee,
    guarantee_caveats,
    guarantee_rows,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ACCOUNTANTS = {
    "pld": "privacy loss distribution, pessimistic",
    "rdp": "Rényi DP, conversion of Canonne, Kamath & Steinke 2020",
    "moments": "Rényi DP at the orders and with the conversion of Abadi et al. 2016",
    "gdp_clt": "central limit theorem of Gaussian DP, not a guarantee",
}
_ATTACK_GOALS = {
    "add_remove": "whether {} is in the data",
    "replace_one": "which of two values {} has",
    "zero_out": "whether {} contributes to the releases",
}
_LOWER_BOUND_NOTE = (
    "not a guarantee: no accountant that composes the trade-off functions of the releases can"
    " certify less"
)
_LAST_ITERATE_NOTE = (
    "no guarantee: an estimate for the last parameters alone, of a linear loss; of others they may"
    " reveal more"
)
_RISKS_NOTE = "the certified trade-off function"
_MU_NOTE = f"the best curve of Gaussian DP below, at errors of {gdp.LEAST_ERROR:g} and more"
_OTHER_BOUNDS_NOTE = (
    "the bounds in parentheses are not guarantees: they are those of a trade-off function that no"
    " accountant which composes the releases can exceed"
)
_FLOAT_NOISE_CAVEAT = (
    "Noise sampled in floating point does not protect against an attacker who inspects the"
    " low-order bits of a release (Mironov 2012)."
)
_EXACT_NOISE_CAVEAT = (
    "Noise is sampled exactly, so the guarantee holds for every bit of the output; the time that a"
    " draw takes depends on the noise."
)
# The packages whose versions a file states, and what its reader fills in.
_COMPUTED_BY = ("dpjax", "dp-accounting")
_BLANK = "TO BE FILLED IN"
_REFUTED_CAVEAT = (
    "The code is not the mechanism: an audit refutes this certificate, at the confidence of the"
    " audit."
)
TUNING_CAVEAT = "The privacy cost of tuning hyper-parameters on the same data is not included."
NORMS_CAVEAT = "Per-example norms and losses are private, and publishing them is not covered."
_DELTA_CAVEAT = (
    "delta = {:g} is not below one over the number of records, {:,}: publishing a random one of the"
    " records as it is would have (0, 1/{:,})-differential privacy. Choose a delta well below that."
)


@dataclass(frozen=True)
class Certificate(Report):
    """The (epsilon, delta)-DP guarantee of a mechanism, its trade-off function and attack risk.

    The trade-off functions and the attack risks are computed on first access, in about a second.

    Attributes:
      delta: in (0, 1).
      guarantee: of the mechanism or run: event, adjacency, unit, description and so on.
      atomic_events: the guarantee's event, decomposed: what everything is computed from.
      estimates: epsilon by each accountant; exactly one is the guarantee.
      epsilon_lower: lower bound on the epsilon that any accountant can certify by composing the
        trade-off functions of the releases; ``None`` where it is not available.
      epsilon_lower_note: what the lower bound means, or why it is not available.
      audit: of the code, a `dpjax.audit.AuditReport` or `dpjax.audit.OneRunReport`; ``None``
        without one.
    """

    delta: float
    guarantee: Guarantee
    atomic_events: AtomicEvents = dataclasses.field(repr=False)
    estimates: tuple[Estimate, ...]
    epsilon_lower: float | None = None
    epsilon_lower_note: str = "not computed"
    audit: Report | None = None

    @property
    def epsilon(self) -> float:
        """The certified upper bound on epsilon."""
        return self._certified.value

    @property
    def accountant(self) -> str:
        """The accountant that computed the certified epsilon."""
        return self._certified.method

    @property
    def _certified(self) -> Estimate:
        return next(estimate for estimate in self.estimates if estimate.kind == "guarantee")

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
        """Bounds on attack risk: advantage, true positive rates at false positive rates, ..."""
        return attack_risks(self.curve, self.curve_upper)

    @functools.cached_property
    def gaussian(self) -> gdp.GaussianSummary:
        """The least mu for which the mechanism is mu-Gaussian private, and its regret."""
        return gdp.summarize(self.curve)

    @functools.cached_property
    def _last_iterate(self) -> float | None:
        """An estimate of the epsilon of the last parameters alone, where there is one."""
        # Correlated noise cancels in the last parameters: the estimate is of independent noise.
        if any(each.endswith("correlation") for each in self.guarantee.description):
            return None
        return last_iterate_epsilon(self.atomic_events, self.delta)

    @property
    def risks_note(self) -> str:
        """What the risks are computed from, or why only one of the two bounds is."""
        return self._curves[2]

    @functools.cached_property
    def _curves(self) -> tuple[TradeOff, TradeOff | None, str]:
        """Lower and (if available) upper bound on the trade-off function, and ``risks_note``."""
        try:
            lower, upper = curve_bounds(self.atomic_events)
        except UnsupportedEventError as reason:
            lower = guaranteed_curve(self.atomic_events)
            return lower, None, f"{_RISKS_NOTE}; the other bounds are not computed: {reason}"
        return lower, upper, f"{_RISKS_NOTE}; {_OTHER_BOUNDS_NOTE}"

    @property
    def attack_goal(self) -> str:
        """What a membership or substitution attack has to find out, in words."""
        return _ATTACK_GOALS[self.guarantee.adjacency].format(self.guarantee.unit)

    @property
    def title(self) -> str:
        return f"({round_up(self.epsilon)}, {self.delta:g})-differential privacy"

    @property
    def tables(self) -> list[Table]:
        # The guarantee, and the bounds on epsilon.
        guarantee, lower = self.guarantee, self.epsilon_lower
        shown = "not available" if lower is None else round_down(lower)
        rows = [
            ("accountant", f"{self.accountant} ({ACCOUNTANTS[self.accountant]})"),
            *guarantee_rows(guarantee, self.delta),
            ("epsilon, upper bound", f"{round_up(self.epsilon)}  (certified)"),
            ("epsilon, lower bound", f"{shown}  ({self.epsilon_lower_note})"),
        ]
        if self._last_iterate is not None:
            estimate = f"{self._last_iterate:.4g}  ({_LAST_ITERATE_NOTE})"
            rows.append(("epsilon, last iterate", estimate))
        if self.audit is not None:
            rows.append(("audit", self.audit.title))

        # What an attack can do, and all tables in order.
        risks = [(risk.name, _format_risk(risk)) for risk in self.risks]
        mu, regret = map(round_up, self.gaussian)
        risks.append(("Gaussian DP", f"mu at most {mu}, with regret {regret} ({_MU_NOTE})"))
        risks.append(("computed from", self.risks_note))
        return [
            ("Guarantee", rows),
            ("Mechanism", list(guarantee.description.items())),
            (
                f"Epsilon at delta = {self.delta:g} by accountant",
                [estimate.row for estimate in self.estimates],
            ),
            (f"Attack risk: any attack that decides {self.attack_goal}", risks),
        ]

    @property
    def caveats(self) -> tuple[str, ...]:
        exact = self.guarantee.exact_noise
        noise = _EXACT_NOISE_CAVEAT if exact else _FLOAT_NOISE_CAVEAT
        size = self.guarantee.num_examples
        is_large = size is not None and self.delta * size >= 1
        large_delta = (_DELTA_CAVEAT.format(self.delta, size, size),) if is_large else ()
        # A certificate that states how settings were chosen needs no caveat on tuning.
        tuning = (TUNING_CAVEAT,) if self.guarantee.tuning is None else ()
        clips = any(heading.endswith("clipping") for heading in self.guarantee.description)
        norms = (NORMS_CAVEAT,) if clips else ()
        of_mechanism = guarantee_caveats(self.guarantee)
        is_refuted = self.audit is not None and self.audit.to_dict()["is_refuted"]
        refuted = (_REFUTED_CAVEAT,) if is_refuted else ()
        return (*refuted, noise, *tuning, *norms, *large_delta, *of_mechanism)

    def paragraph(self) -> str:
        # What is published.
        guarantee, lower = self.guarantee, self.epsilon_lower
        count = guarantee.num_releases
        described = "; ".join(
            f"{heading}: {text}" for heading, text in guarantee.description.items()
        )
        releases = "one noisy release" if count == 1 else f"{count:,} noisy releases"
        published = f"the results of {releases} ({described})"

        # The guarantee, its lower bound and who may know the number of records.
        other = (
            f"a lower bound is not available ({self.epsilon_lower_note})"
            if lower is None
            else "no accountant that composes the trade-off functions of the releases can certify"
            f" less than {round_down(lower)}"
        )
        stated = (
            f"It is ({round_up(self.epsilon)}, {self.delta:g})-differentially private, with"
            f" {guarantee.unit} as the unit of privacy, under adjacency {guarantee.adjacency!r}"
            f" ({NEIGHBOURS[guarantee.adjacency]}; the number of records is"
            f" {'public' if guarantee.is_size_public else 'private'}). This upper bound on epsilon"
            f" was computed by accountant {self.accountant!r} ({ACCOUNTANTS[self.accountant]}) of"
            f" dpjax {version('dpjax')} with dp-accounting {version('dp-accounting')}; {other}."
        )

        # The attack risks.
        upper = {risk.name: round_up(risk.upper) for risk in self.risks if risk.upper is not None}
        first, *levels = FALSE_POSITIVE_RATES
        *rates, last_rate = [f"{upper[true_positive_rate_at(x)]} at {x:g}" for x in levels]
        risks = (
            f"Any attack that decides {self.attack_goal}, even with all other records given, has an"
            " advantage (true positive rate minus false positive rate) of at most"
            f" {upper[ADVANTAGE]}, and a true positive rate of at most"
            f" {upper[true_positive_rate_at(first)]} at a false positive rate of {first:g},"
            f" {', '.join(rates)} and {last_rate}. As one number, the release is mu-Gaussian"
            f" differentially private with mu = {round_up(self.gaussian.mu)}, at type I and II"
            f" errors of {gdp.LEAST_ERROR:g} and more (regret {round_up(self.gaussian.regret)})."
        )

        # The estimates that are no guarantee, and the caveats.
        approximations = (
            f"An approximation of epsilon is {estimate.epsilon:.4g} ({estimate.note})."
            for estimate in self.estimates
            if estimate.kind == "approximation"
        )
        sentences = (f"The mechanism publishes {published}.", stated, risks)
        audits = () if self.audit is None else (self.audit.paragraph(),)
        return " ".join([*sentences, *approximations, *audits, *self.caveats])

    def plot(self) -> "Figure":
        """Returns a matplotlib figure of the trade-off function and the ROC curve of any attack.

        Where ``matplotlib.pyplot`` was imported, and in IPython, it is one of pyplot's figures:
        ``plt.show`` and ``plt.savefig`` act on it, and ``plt.close`` frees it.
        """
        return plot_tradeoff(
            self.curve,
            self.curve_upper,
            epsilon=self.epsilon,
            delta=self.delta,
            attack_goal=self.attack_goal,
        )

    def plot_people(self) -> "Figure":
        """Returns a figure for lay readers: right guesses of 100, without and with the release.

        Left, whether one unit of privacy contributed (under replace-one, which of two values it
        has), where both are equally likely. Right, an attribute or record that 10 of 100 guess
        without the release. The numbers with it are certified upper bounds, rounded up, against
        an attacker who has all other records. It is one of pyplot's figures as `plot`'s is.
        """
        return plot_people(self.curve, unit=self.guarantee.unit, attack_goal=self.attack_goal)

    def with_audit(self, report: Report) -> "Certificate":
        """Returns the certificate with the report of an audit of the code.

        Args:
          report: of `dpjax.audit.audit` or `dpjax.audit.one_run`, on this mechanism at this delta.

        Raises:
          TypeError: ``report`` is no report of an audit.
          ValueError: it is of another epsilon, delta or adjacency.
        """
        check_type(
            "report", report, Report, "the report of dpjax.audit.audit or dpjax.audit.one_run"
        )
        of_this = self.epsilon, self.delta, self.guarantee.adjacency
        values = report.to_dict()
        names = "certified_epsilon", "delta", "adjacency"
        if not set(names) <= set(values):
            kinds = "an AuditReport or OneRunReport"
            raise TypeError(f"report must be {kinds}, got {type(report).__name__}")
        found = tuple(values[name] for name in names)
        allowed = f"an audit of epsilon, delta and adjacency {as_json(of_this)}"
        check(list(found) == as_json(of_this), "report", found, allowed)
        return dataclasses.replace(self, audit=report)

    def to_json(self) -> str:
        """Returns the certificate as JSON, a file that can be verified without dpjax.

        It holds all of `to_dict`, and what is needed to compute the guarantee anew: the event and
        what is public. ``dpjax verify certificate.json``, or ``dpjax/verify.py`` copied to a
        machine that has only numpy, scipy and dp-accounting, does that. The form is the JSON Schema
        that ``dpjax verify --schema`` prints.

        >>> import json, dpjax
        >>> mechanism = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "zero_out"), scale=2.0)
        >>> text = mechanism.certificate(1e-5).to_json()
        >>> json.loads(text)["event"]
        {'type': 'Gaussian', 'noise_multiplier': 2.0}
        """
        guarantee = self.guarantee
        own = {
            "format": verify.FORMAT,
            **self.to_dict(),
            "size_constants": guarantee.size_constants,
            "num_examples": guarantee.num_examples,
            "exact_noise": guarantee.exact_noise,
            "event": event_values(guarantee.event),
            "versions": {name: version(name) for name in _COMPUTED_BY},
        }
        values = as_json({name: own[name] for name in verify.SCHEMA["properties"] if name in own})
        return json.dumps({**values, "hash": verify.content_hash(values)}, indent=2)

    def to_registry(self, *, name: str, curators: Sequence[str]) -> dict[str, Any]:
        """Returns a draft record for OpenDP's registry of deployments of differential privacy.

        What a certificate knows is filled in; what it cannot know, such as who may see the data, is
        marked ``"TO BE FILLED IN"``. Written as YAML it is a file of the registry.

        Source: github.com/opendp/deployments-registry-data. The fields are those of its schema of
        15 July 2026 (commit 3e9c812), but for curators, which have a name and a type in records
        published since (as ``deployments/mhusage.yaml`` of September 2026, commit 285f803).

        Args:
          name: of what is published.
          curators: who publish it, at least one.

        Raises:
          ValueError: ``name`` is empty, or there is no curator.

        >>> import dpjax
        >>> mechanism = dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "zero_out"), scale=2.0)
        >>> record = mechanism.certificate(1e-5).to_registry(name="Total", curators=["An office"])
        >>> record["deployment"]["privacy_loss"]["privacy_unit"]
        'one record'
        """
        check_text("name", name)
        named = isinstance(curators, list | tuple) and all(isinstance(one, str) for one in curators)
        check(named and bool(curators), "curators", curators, "one name or more, in a list")
        guarantee, lower = self.guarantee, self.epsilon_lower
        noise = "sampled exactly" if guarantee.exact_noise else "sampled in floating point"
        versions = " and ".join(f"{each} {version(each)}" for each in _COMPUTED_BY)

        # What the number of records is used for is not protected.
        constants = ", ".join(guarantee.size_constants)
        unprotected = f"The number of records{f', through {constants}' if constants else ''}."
        below = "not available" if lower is None else round_down(lower)
        described = "\n".join(f"- {head}: {text}" for head, text in guarantee.description.items())
        return {
            "status": "Draft",
            "tier": 3,
            "url_slug": _BLANK,
            "deployment": {
                "basic": {
                    "name": name,
                    "data_curators": [
                        {"data_curator_name": one, "data_curator_type": _BLANK} for one in curators
                    ],
                    "intended_use": _BLANK,
                    "data_product_type": _BLANK,
                    "data_product_region": _BLANK,
                    "description": _BLANK,
                    "publication_date": _BLANK,
                    "data_product_sector": _BLANK,
                },
                "dp_variant": {
                    "variant_name": "Approximate DP",
                    "data_domain": _BLANK,
                    "unprotected_quantities": (
                        unprotected if guarantee.is_size_public else "None by the mechanism."
                    ),
                },
                "privacy_loss": {
                    "privacy_unit": guarantee.unit,
                    "privacy_unit_details": (
                        f"Adjacency {guarantee.adjacency!r}: {NEIGHBOURS[guarantee.adjacency]}."
                    ),
                    "privacy_parameters": {"epsilon": self.epsilon, "delta": self.delta},
                    "privacy_parameters_details": (
                        f"Epsilon is an upper bound ({ACCOUNTANTS[self.accountant]}); no accountant"
                        f" that composes the releases certifies less than: {below}. Gaussian DP: mu"
                        f" {round_up(self.gaussian.mu)}, regret {round_up(self.gaussian.regret)}."
                    ),
                },
                "deployment_model": {
                    "model_name": _BLANK,
                    "model_name_details": _BLANK,
                    "actors": _BLANK,
                    "release_type": _BLANK,
                    "release_type_details": _BLANK,
                    "data_source_type": _BLANK,
                    "access_type": _BLANK,
                    "access_type_details": _BLANK,
                },
                "accounting": {
                    "post_processing": _BLANK,
                    "composition": (
                        f"{guarantee.num_releases:,} noisy releases, composed by {versions}."
                    ),
                },
                "implementation": {
                    "preprocessing_and_hyperparameter_tuning": (
                        f"Settings: {guarantee.tuning}." if guarantee.tuning else _BLANK
                    ),
                    "mechanisms": f"{described}\n- noise: {noise}, by dpjax {version('dpjax')}",
                    "justification": _BLANK,
                },
                "administrative": {"sources": _BLANK, "registry_authors": [_BLANK]},
            },
        }

    def _values(self) -> dict[str, Any]:
        guarantee = self.guarantee
        return {
            "epsilon": self.epsilon,
            "epsilon_lower": self.epsilon_lower,
            "epsilon_lower_note": self.epsilon_lower_note,
            "delta": self.delta,
            "accountant": self.accountant,
            "mu": self.gaussian.mu,
            "mu_regret": self.gaussian.regret,
            "adjacency": guarantee.adjacency,
            "is_size_public": guarantee.is_size_public,
            "unit": guarantee.unit,
            "num_releases": guarantee.num_releases,
            "num_steps_run": guarantee.num_steps_run,
            "first_plan": guarantee.first_plan,
            "seeded": guarantee.seeded,
            "tuning": guarantee.tuning,
            "description": guarantee.description,
            "estimates": self.estimates,
            "risks": [vars(risk) for risk in self.risks],
            "risks_note": self.risks_note,
            "audit": self.audit,
            "caveats": self.caveats,
        }


def certify(guarantee: Guarantee, delta: float) -> Certificate:
    """Returns the certificate of a guarantee at ``delta``, and the caveats on it.

    The certified epsilon is that of the privacy loss distribution; where the event has none, as
    zCDP, it is that of Rényi DP. ``Certificate.accountant`` names which.

    Args:
      guarantee: that of a mechanism or of a run (``mechanism.guarantee``, ``result.guarantee``).
      delta: in (0, 1).

    Raises:
      UnsupportedEventError: neither accountant supports the mechanism's event.
      ValueError: ``delta`` is not in (0, 1).
    """
    check_type("guarantee", guarantee, Guarantee, "the Guarantee of a mechanism or of a run")
    check_delta(delta)
    atomic_events = decompose(guarantee.event, guarantee.adjacency)

    # The certified epsilon, and the lower bound below which no accountant can certify.
    certifying, certified = certified_epsilon(atomic_events, delta)
    lower, note = None, _LOWER_BOUND_NOTE
    try:
        lower = epsilon_lower_bound(atomic_events, delta, certified)
    except UnsupportedEventError as reason:
        note = str(reason)

    # The other accountants, for comparison.
    estimates = []
    for method in METHODS:
        if method == certifying:
            estimates.append(Estimate(method, certified, "guarantee", ACCOUNTANTS[method]))
            continue
        try:
            value = compute_epsilon(atomic_events, delta, method)
        except UnsupportedEventError as reason:
            estimates.append(Estimate(method, None, "unavailable", str(reason)))
            continue
        if method == "gdp_clt":
            compared = f"{ACCOUNTANTS[method]}; {compare_to_bounds(value, lower, certified)}"
            estimates.append(Estimate(method, value, "approximation", compared))
        else:
            estimates.append(Estimate(method, value, "bound", ACCOUNTANTS[method]))
    return Certificate(float(delta), guarantee, atomic_events, tuple(estimates), lower, note)


def compare_to_bounds(value: float, lower: float | None, certified: float) -> str:
    """Describes an approximate epsilon: within, below or above the bounds, and by how much."""
    if lower is None:
        lower, between = certified, f"the certified epsilon {round_up(certified)}"
    else:
        between = f"the bounds [{round_down(lower)}, {round_up(certified)}]"
    if lower <= value <= certified:
        return f"within {between}"
    side, end = ("below", lower) if value < lower else ("above", certified)
    share = abs(value - end) / end if 0 < end < math.inf else math.inf
    return f"{side} {between}" + (f" by {share:.2%}" if share < math.inf else "")


def _format_risk(risk: Risk) -> str:
    """The guarantee, then the other bound if available; both are rounded outward."""
    upper = "" if risk.upper is None else round_up(risk.upper)
    lower = "" if risk.lower is None else round_down(risk.lower)
    if risk.name == ERROR_SUM:
        guarantee, other = f"at least {lower}", upper and f"upper bound {upper}, "
    else:
        guarantee, other = f"at most {upper}", lower and f"lower bound {lower}, "
    return f"{guarantee} ({other}guessing {risk.guessing:g})"
