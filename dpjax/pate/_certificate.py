"""Certificates of private aggregation: the guarantee, and data-dependent epsilons beside it."""

import math
from dataclasses import dataclass
from typing import Any, ClassVar, TypeVar

import numpy.typing as npt

from dpjax._checks import check, check_delta, check_positive, check_type
from dpjax.accounting.calibration import Target, scale_noise
from dpjax.certificates.certificate import NORMS_CAVEAT, TUNING_CAVEAT, Certificate
from dpjax.certificates.render import Estimate, Report, Table, round_up
from dpjax.guarantee import Guarantee
from dpjax.pate.analysis import data_dependent_analyses, data_independent_analyses
from dpjax.pate.mechanisms import VoteAggregation
from dpjax.pate.smooth_sensitivity import SmoothRDPRelease

_V = TypeVar("_V", bound=VoteAggregation)

NOT_PUBLISHABLE = (
    "A data-dependent epsilon is a function of the private votes: it is not publishable as is, and"
    " publishing it is a release that no epsilon here covers.",
    "The data-dependent epsilons hold for these votes and their neighbours, if the queries were"
    " fixed before the first answer. The guarantee holds for any votes and adaptive queries.",
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


@dataclass(frozen=True)
class PATECertificate(Report):
    """The guarantee of private aggregation, and its epsilons on given votes.

    Attributes:
      dp_certificate: the certificate of the noisy histograms of which the labels are
        post-processing: any votes, with trade-off function and attack risks.
      data_independent: epsilons for any votes at the same delta; one is the guarantee.
      data_dependent: epsilons on the given votes, not publishable as is; empty without votes.
    """

    dp_certificate: Certificate
    data_independent: tuple[Estimate, ...]
    data_dependent: tuple[Estimate, ...] = ()
    enclosed_heading: ClassVar[str] = "The certificate of the noisy histograms"

    @property
    def epsilon(self) -> float:
        """The guarantee: the least data-independent epsilon. It may be published."""
        return _least(self.data_independent)

    @property
    def title(self) -> str:
        delta = self.dp_certificate.delta
        return f"({round_up(self.epsilon)}, {delta:g})-differential privacy of the released labels"

    @property
    def tables(self) -> list[Table]:
        at = f"at delta = {self.dp_certificate.delta:g}"
        tables = [
            _mechanism_table(self.dp_certificate.guarantee),
            (f"Epsilon {at} for any votes", [estimate.row for estimate in self.data_independent]),
        ]
        if self.data_dependent:
            caption = f"Epsilon {at} on these votes: NOT PUBLISHABLE AS IS"
            tables.append((caption, [estimate.row for estimate in self.data_dependent]))
        return tables

    @property
    def caveats(self) -> tuple[str, ...]:
        return NOT_PUBLISHABLE if self.data_dependent else ()

    @property
    def enclosed(self) -> Certificate:
        return self.dp_certificate

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph for a paper, without data-dependent epsilons."""
        guarantee = next(one for one in self.data_independent if one.kind == "guarantee")
        delta = self.dp_certificate.delta
        return (
            f"The released labels are ({round_up(self.epsilon)}, {delta:g})-differentially private,"
            f" whatever the votes ({guarantee.method}). They are post-processing of noisy"
            " histograms of the votes, whose own guarantee follows."
            f" {self.dp_certificate.paragraph()}"
        )

    def _values(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "data_independent": self.data_independent,
            "data_dependent_not_publishable": self.data_dependent,
            "caveats": self.caveats,
            "dp_certificate": self.dp_certificate,
        }


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
      student_probabilities: with ``student_confidence``, as in ``release``; with ``votes`` only.

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
    dependent: tuple[Estimate, ...] = ()
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


def calibrate(mechanism: _V, *, epsilon: float, delta: float) -> _V:
    """Returns ``mechanism`` with its noise scaled to a target epsilon of the released labels.

    `dpjax.calibrate` scales the noise to an epsilon of the noisy histograms, of which the labels
    are post-processing: for the labels alone it is more noise than they need. Both noise scales of
    a `ConfidentGNMax` are multiplied by one factor. Takes some ten times as long as `certificate`.

    Args:
      mechanism: an aggregation of this package, at any scale of its noise.
      epsilon: the target, finite and above zero: ``certificate(result, delta).epsilon`` is at most
        this, and at most 1 % below.
      delta: in (0, 1).

    Raises:
      TypeError: ``mechanism`` is no aggregation.
      ValueError: a number is out of range, or no scale of the noise reaches the target.

    >>> from dpjax import pate
    >>> mechanism = pate.LNMax(
    ...     scale=1.0, num_teachers=250, num_classes=10, num_queries=100, adjacency="replace_one"
    ... )
    >>> round(calibrate(mechanism, epsilon=2.9, delta=1e-5).scale)
    20
    """
    check_type("mechanism", mechanism, VoteAggregation, "an aggregation of dpjax.pate")
    check_positive("epsilon", epsilon)
    check_delta(delta)

    def labels_epsilon(scaled: VoteAggregation) -> float:
        return _least(data_independent_analyses(scaled, delta))

    target = Target("epsilon", epsilon, labels_epsilon, strength=float, floor=0.0, largest=math.inf)
    return scale_noise(mechanism, target)


@dataclass(frozen=True, kw_only=True)
class SanitizedCertificate(Report):
    """A data-dependent epsilon that may be published, beside the guarantee for any votes.

    Attributes:
      release: the mechanism that released the Rényi cost.
      released_rdp: what its ``release`` returned.
      delta: of both epsilons.
      data_independent: epsilons for any votes at the same delta.
    """

    release: SmoothRDPRelease
    released_rdp: float
    delta: float
    data_independent: tuple[Estimate, ...]

    @property
    def epsilon(self) -> float:
        """The published data-dependent epsilon, of the labels and of the release of their cost."""
        return self.release.epsilon(self.released_rdp, delta=self.delta)

    @property
    def title(self) -> str:
        return f"Sanitized data-dependent epsilon {round_up(self.epsilon)}"

    @property
    def tables(self) -> list[Table]:
        release = self.release
        rows = [
            ("epsilon, data-dependent", f"{round_up(self.epsilon)}, may be published"),
            ("released Rényi cost", round_up(self.released_rdp)),
            ("cost of its release", round_up(release.own_rdp)),
            ("order, beta", f"{release.order:g}, {release.beta:g}"),
            ("noise over smooth sensitivity", f"{release.noise_scale:g}"),
            ("failure probability", f"{release.failure_probability:g}, included in delta"),
        ]
        at = f"at delta = {self.delta:g}"
        return [
            _mechanism_table(release.mechanism.guarantee),
            (f"Epsilon {at} on these votes", rows),
            (f"Epsilon {at} for any votes", [estimate.row for estimate in self.data_independent]),
        ]

    @property
    def caveats(self) -> tuple[str, ...]:
        return (*SANITIZED_CAVEATS, TUNING_CAVEAT, NORMS_CAVEAT)

    def paragraph(self) -> str:
        release = self.release
        return (
            f"On these votes the labels and the release of their Rényi cost have epsilon"
            f" {round_up(self.epsilon)} at delta {self.delta:g}: a cost of at most"
            f" {round_up(self.released_rdp)} at order {release.order:g}, released with smooth"
            f" sensitivity (beta {release.beta:g}, noise scale {release.noise_scale:g}) at a cost"
            f" of {round_up(release.own_rdp)}. Without that release epsilon is at most"
            f" {round_up(_least(self.data_independent))} for any votes. {' '.join(self.caveats)}"
        )

    def _values(self) -> dict[str, Any]:
        release = self.release
        return {
            "epsilon": self.epsilon,
            "delta": self.delta,
            "released_rdp": self.released_rdp,
            "own_rdp": release.own_rdp,
            "order": release.order,
            "beta": release.beta,
            "noise_scale": release.noise_scale,
            "failure_probability": release.failure_probability,
            "data_independent": self.data_independent,
            "caveats": self.caveats,
        }


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
    release.epsilon(released_rdp, delta=delta)  # checks both numbers
    independent = data_independent_analyses(release.mechanism, delta)
    return SanitizedCertificate(
        release=release, released_rdp=released_rdp, delta=delta, data_independent=independent
    )


def _mechanism_table(guarantee: Guarantee) -> Table:
    rows = [
        ("adjacency", f"{guarantee.adjacency}, of teachers"),
        ("unit of privacy", guarantee.unit),
        *guarantee.description.items(),
    ]
    return "Mechanism", rows


def _least(estimates: tuple[Estimate, ...]) -> float:
    return min(estimate.value for estimate in estimates)
