"""Certificates of private aggregation: the guarantee, and data-dependent epsilons beside it."""

import math
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

from dpjax._checks import check, check_type
from dpjax.certificates.certificate import Certificate
from dpjax.certificates.text import Table, render_html, render_text, round_up
from dpjax.pate.aggregation import VoteAggregation
from dpjax.pate.analysis import Analysis, data_dependent_analyses, data_independent_analyses
from dpjax.pate.smooth_sensitivity import SanitizedEpsilon, SmoothRDPRelease

NOT_PUBLISHABLE = (
    "A data-dependent epsilon is a function of the private votes: it is not publishable as is, and"
    " publishing it is a release that no epsilon here covers.",
    "The data-dependent epsilons hold for these votes and their neighbours, if the queries were"
    " fixed before the first answer. The guarantee holds for any votes and adaptive queries.",
    "A published formula bounds the divergence in one direction only, which is too little where the"
    " noise is small, and has the expected instead of the given number of answers.",
    "The epsilon of realized answers is a sum over the answers that were given. It is no bound over"
    " all outcomes.",
)
SANITIZED_CAVEATS = (
    "This epsilon holds between these votes and their neighbours, if the queries were fixed before"
    " the first answer. Order, beta, noise scale and failure probability must have been chosen"
    " before the votes were seen.",
    "The noise on the Rényi cost is sampled in floating point, which does not protect against an"
    " attacker who inspects the low-order bits of a release (Mironov 2012).",
    "The epsilons for any votes are those of the labels alone, without the release of their cost.",
)
_KINDS = {
    "guarantee": "guarantee",
    "bound": "upper bound",
    "published": "published formula, no guarantee",
    "realized": "of the realized answers, no guarantee",
}


@dataclass(frozen=True)
class PATECertificate:
    """The guarantee of private aggregation, and its epsilons on given votes.

    Attributes:
      dp_certificate: the certificate of the noisy histograms of which the labels are
        post-processing: any votes, with trade-off function and attack risks.
      data_independent: epsilons for any votes at the same delta; one is the guarantee.
      data_dependent: epsilons on the given votes, not publishable as is; empty without votes.
    """

    dp_certificate: Certificate
    data_independent: tuple[Analysis, ...]
    data_dependent: tuple[Analysis, ...] = ()

    @property
    def epsilon(self) -> float:
        """The guarantee: the least data-independent epsilon. It may be published."""
        return min(found.epsilon for found in self.data_independent)

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": _json(self.epsilon),
            "data_independent": [_row(found) for found in self.data_independent],
            "data_dependent_not_publishable": [_row(found) for found in self.data_dependent],
            "caveats": list(self._caveats),
            "dp_certificate": self.dp_certificate.to_dict(),
        }

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph for a paper, without data-dependent epsilons."""
        guarantee = next(one for one in self.data_independent if one.kind == "guarantee")
        return (
            f"{self.dp_certificate.paragraph()} For the released labels epsilon is at most"
            f" {round_up(self.epsilon)} at the same delta, whatever the votes ({guarantee.method})."
        )

    def __str__(self) -> str:
        own = render_text(self._title(), self._tables(), "Caveats", self._caveats)
        return f"{own}\n\nThe certificate of the noisy histograms\n\n{self.dp_certificate}"

    def _repr_html_(self) -> str:
        own = render_html(self._title(), self._tables(), self._caveats)
        return own + self.dp_certificate._repr_html_()

    @property
    def _caveats(self) -> tuple[str, ...]:
        return NOT_PUBLISHABLE if self.data_dependent else NOT_PUBLISHABLE[:1]

    def _title(self) -> str:
        delta = self.dp_certificate.delta
        return f"({round_up(self.epsilon)}, {delta:g})-differential privacy of the released labels"

    def _tables(self) -> list[Table]:
        own = self.dp_certificate
        setting = [
            ("adjacency", f"{own.guarantee.adjacency}, of teachers"),
            ("unit of privacy", own.guarantee.unit),
            *own.guarantee.description.items(),
        ]
        at = f"at delta = {own.delta:g}"
        tables = [
            ("Mechanism", setting),
            (f"Epsilon {at} for any votes", list(map(_text, self.data_independent))),
        ]
        if self.data_dependent:
            name = f"Epsilon {at} on these votes: NOT PUBLISHABLE AS IS"
            tables.append((name, list(map(_text, self.data_dependent))))
        return tables


def certificate(
    mechanism: VoteAggregation,
    delta: float,
    *,
    votes: npt.ArrayLike | None = None,
    answered: npt.ArrayLike | None = None,
    student_probabilities: npt.ArrayLike | None = None,
) -> PATECertificate:
    """Returns the guarantee of ``mechanism`` at ``delta``, by every analysis.

    The Rényi bounds of Gaussian noise take some seconds, once for each scale.

    Args:
      mechanism: an aggregation of this package.
      delta: in (0, 1).
      votes: counts ``(num_queries, num_classes)``, for data-dependent epsilons; private.
      answered: of a run with a threshold, which queries were answered; with ``votes`` only.
      student_probabilities: of `InteractiveGNMax`, as in its ``release``; with ``votes`` only.

    Raises:
      ValueError: an argument is out of range.

    Privacy:
      Without ``votes`` nothing private is read. With them the data-dependent epsilons, which the
      certificate marks, are private.

    >>> from dpjax import pate
    >>> mechanism = pate.LNMax(
    ...     scale=20.0, num_teachers=250, num_classes=10, num_queries=100, adjacency="replace_one"
    ... )
    >>> round(certificate(mechanism, 1e-5).epsilon, 2)
    2.9
    """
    check_type("mechanism", mechanism, VoteAggregation, "an aggregation of dpjax.pate")
    dependent: tuple[Analysis, ...] = ()
    alone = votes is None and not (answered is None and student_probabilities is None)
    check(not alone, "votes", votes, "given with answered and student_probabilities")
    if votes is not None:
        dependent = data_dependent_analyses(
            mechanism,
            votes,
            delta,
            answered=answered,
            student_probabilities=student_probabilities,
        )
    independent = data_independent_analyses(mechanism, delta)
    return PATECertificate(mechanism.certificate(delta), independent, dependent)


@dataclass(frozen=True)
class SanitizedCertificate:
    """A data-dependent epsilon that may be published, beside the guarantee for any votes.

    Attributes:
      release: the mechanism that released the Rényi cost.
      sanitized: the epsilon, with the cost of the release.
      data_independent: epsilons for any votes at the same delta.
    """

    release: SmoothRDPRelease
    sanitized: SanitizedEpsilon
    data_independent: tuple[Analysis, ...]

    @property
    def epsilon(self) -> float:
        """The published data-dependent epsilon."""
        return self.sanitized.epsilon

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        release = self.release
        return {
            **{name: _json(value) for name, value in self.sanitized._asdict().items()},
            "order": release.order,
            "beta": release.beta,
            "noise_scale": release.noise_scale,
            "failure_probability": release.failure_probability,
            "data_independent": [_row(found) for found in self.data_independent],
            "caveats": list(SANITIZED_CAVEATS),
        }

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph for a paper."""
        release, found = self.release, self.sanitized
        least = min(one.epsilon for one in self.data_independent)
        return (
            f"On these votes the labels and the release of their Rényi cost have epsilon"
            f" {round_up(found.epsilon)} at delta {found.delta:g}: a cost of at most"
            f" {round_up(found.released_rdp)} at order {release.order:g}, released with smooth"
            f" sensitivity (beta {release.beta:g}, noise scale {release.noise_scale:g}) at a cost"
            f" of {round_up(found.own_rdp)}. Without that release epsilon is at most"
            f" {round_up(least)} for any votes. {' '.join(SANITIZED_CAVEATS)}"
        )

    def __str__(self) -> str:
        release, found = self.release, self.sanitized
        rows = [
            ("epsilon, data-dependent", f"{round_up(found.epsilon)}, may be published"),
            ("released Rényi cost", round_up(found.released_rdp)),
            ("cost of its release", round_up(found.own_rdp)),
            ("order, beta", f"{release.order:g}, {release.beta:g}"),
            ("noise over smooth sensitivity", f"{release.noise_scale:g}"),
            ("failure probability", f"{release.failure_probability:g}, included in delta"),
        ]
        mechanism = release.mechanism
        setting = [("adjacency", f"{mechanism.adjacency}, of teachers"), ("unit", mechanism.unit)]
        at = f"at delta = {found.delta:g}"
        tables = [
            ("Mechanism", [*setting, *mechanism.guarantee.description.items()]),
            (f"Epsilon {at} on these votes", rows),
            (f"Epsilon {at} for any votes", list(map(_text, self.data_independent))),
        ]
        title = f"Sanitized data-dependent epsilon {round_up(found.epsilon)}"
        return render_text(title, tables, "Caveats", SANITIZED_CAVEATS)


def sanitized_certificate(
    release: SmoothRDPRelease, released_rdp: float, *, delta: float
) -> SanitizedCertificate:
    """Returns the certificate of a data-dependent epsilon that may be published.

    Args:
      release: the mechanism that released the Rényi cost.
      released_rdp: what its ``release`` returned.
      delta: in (0, 1), above the failure probability of ``release``.

    Raises:
      ValueError: ``delta`` is out of range.
    """
    check_type("release", release, SmoothRDPRelease, "a SmoothRDPRelease")
    sanitized = release.epsilon(released_rdp, delta=delta)
    independent = data_independent_analyses(release.mechanism, delta)
    return SanitizedCertificate(release, sanitized, independent)


def _text(found: Analysis) -> tuple[str, str]:
    order = "" if found.order is None else f" (order {found.order:.4g})"
    return found.method, f"{round_up(found.epsilon):<9} {_KINDS[found.kind]}{order}"


def _row(found: Analysis) -> dict[str, Any]:
    return {**found._asdict(), "epsilon": _json(found.epsilon)}


def _json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value
