"""Certificates of a Bayesian account: its epsilon beside the differential one of the same run."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from dpjax._validation import check
from dpjax.accounting.bayesian.account import Account
from dpjax.accounting.bayesian.readings import (
    SHARES,
    Percentile,
    SideBySide,
    attack_success,
    best_order,
    percentiles,
)
from dpjax.accounting.certificate import Certificate, certify
from dpjax.accounting.certificate_text import Table, in_html, in_plain, upward

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_PROTECTED = (
    "It speaks of records drawn like the data, and of those only with the probability stated. An"
    " outlier, a record of another source, or one that an adversary made has the differential"
    " epsilon and no other.",
    "The Bayesian epsilon is computed from the private records, and is no part of the release: to"
    " publish it is a leak that it does not count.",
)
_LIST = "What is not protected"
ASSUMPTIONS: Mapping[str, str] = {
    "records": "exchangeable: the record in question is drawn like those in the data",
    "draws": "the examples of a batch stand for fresh records, although earlier steps have seen"
    " most of them and the parameters remember them",
    "steps": "costs are those along the steps that were taken; the composition theorem is for steps"
    " fixed in advance",
}
_ESTIMATORS = {
    "student": "each step's mean is overestimated with probability 1 - {:.3g} if means of so many"
    " draws follow Student's distribution (Theorem 4). Exponentials of norms rarely do: rare"
    " records of large norm that no batch happened to show are not covered, and the order that is"
    " chosen is one at which the estimate is small, so that epsilon may be too small even for norms"
    " without outliers",
    "empirical_bernstein": "each step's mean is overestimated with probability 1 - {:.3g} whatever"
    " the distribution, from independent draws under the clip bound",
}


@dataclass(frozen=True)
class BayesianCertificate:
    """Both guarantees of one run; neither is to be quoted without the other.

    Attributes:
      differential: the certificate of the same steps for every record.
      share: of the population that ``epsilon.bayesian`` holds for.
      epsilon: both, at the certificate's delta.
        The Bayesian one may be the larger: then it adds nothing.
      percentiles: the Bayesian epsilon for other shares.
      order: the lambda at which it was found.
      num_planned: steps that the composition was planned for.
      failure: probability that an estimate was too small, counted into delta.
      assumptions: what the Bayesian epsilon rests on, a heading for each sentence.
    """

    differential: Certificate
    share: float
    epsilon: SideBySide
    percentiles: tuple[Percentile, ...]
    order: int
    num_planned: int
    failure: float
    assumptions: Mapping[str, str]

    @property
    def attack(self) -> SideBySide:
        """Bounds on how often an attacker with a flat prior is right, by both accounts."""
        delta = self.differential.delta
        return SideBySide(*(float(attack_success(value, delta)) for value in self.epsilon))

    def to_dict(self) -> dict[str, Any]:
        """Returns the certificate as JSON-ready values; an infinite epsilon is the text "inf"."""
        return {
            "epsilon": {name: _json(value) for name, value in self.epsilon._asdict().items()},
            "attack": self.attack._asdict(),
            "share": self.share,
            "percentiles": [[share, _json(value)] for share, value in self.percentiles],
            "order": self.order,
            "num_planned": self.num_planned,
            "failure": self.failure,
            "assumptions": dict(self.assumptions),
            "not_protected": list(NOT_PROTECTED),
            "differential": self.differential.to_dict(),
        }

    def paragraph(self) -> str:
        """Returns one paragraph in plain English for a paper: the differential guarantee first."""
        bayesian, own = upward(self.epsilon.bayesian), self.differential
        return (
            f"{own.paragraph()} By a Bayesian account of the same steps epsilon is {bayesian} at"
            f" the same delta for all but a share of {1 - self.share:.3g} of the records that are"
            f" drawn like the data: {_verdict(self)}.{_attack_sentence(self)} This is not"
            f" differential privacy. It assumes: {'; '.join(self.assumptions.values())}."
            f" {' '.join(NOT_PROTECTED)}"
        )

    def plot(self) -> "Figure":
        """Returns a matplotlib figure: the Bayesian epsilon by share, below the differential."""
        return _figure(self)

    def __str__(self) -> str:
        own = in_plain(_title(self), _tables(self), _LIST, NOT_PROTECTED)
        return f"{own}\n\nThe differential guarantee\n\n{self.differential}"

    def _repr_html_(self) -> str:
        own = in_html(_title(self), _tables(self), NOT_PROTECTED)
        return own + self.differential._repr_html_()


def certificate(
    account: Account,
    delta: float,
    *,
    share: float = 0.99999,
    shares: Sequence[float] = SHARES,
) -> BayesianCertificate:
    """Returns what the steps so far guarantee, to every record and to those like the data.

    Args:
      account: with one step at least.
      delta: of both guarantees.
      share: of the population for which the Bayesian one is to hold: it is read at the Bayesian
        delta (1 - share) ``delta``.
      shares: of the percentile curve.

    Raises:
      ValueError: a number is out of range, or ``delta`` is so small that the estimators' failure
        probability exceeds the Bayesian delta.

    Source: Triastcyn and Faltings 2020, Sections 4.2 to 4.4.

    >>> import dpjax
    >>> from dpjax.accounting import bayesian
    >>> sampling = dpjax.PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = dpjax.SubsampledGaussian(sampling, 1.0, 1.1, 1_000, "add_remove")
    >>> account = bayesian.update(bayesian.init(mechanism), np.full((1_000, 256), 0.3))
    >>> certificate(account, delta=1e-5).epsilon.bayesian > bayesian.epsilon(account, 1e-5).bayesian
    True
    """
    check(0 <= share < 1, "share", share, "in [0, 1)")
    differential = certify(account.as_run, delta)
    (own,) = percentiles(account, delta, (share,))
    mean = (1 - share) * delta
    allowed = f"so large that (1 - share) delta exceeds the failure probability {account.failure:g}"
    check(mean > account.failure, "delta", delta, allowed)
    return BayesianCertificate(
        differential=differential,
        share=share,
        epsilon=SideBySide(own.epsilon, differential.epsilon),
        percentiles=percentiles(account, delta, shares),
        order=best_order(account, mean, definition="weak"),
        num_planned=account.mechanism.num_releases,
        failure=account.failure,
        assumptions={
            **ASSUMPTIONS,
            "estimator": _ESTIMATORS[account.estimator].format(account.failure_probability),
        },
    )


def _verdict(certificate: BayesianCertificate) -> str:
    """Whether the Bayesian account says anything that the differential one does not."""
    bayesian, differential = certificate.epsilon
    if bayesian >= differential:
        return "no less than the differential one, which holds for them too, so it adds nothing"
    return f"less than the differential one, by {upward(differential - bayesian)}"


def _attack_sentence(certificate: BayesianCertificate) -> str:
    bayesian, differential = certificate.attack
    if bayesian >= differential:
        return ""
    return (
        " An attacker with a flat prior is then right about such a record with probability at most"
        f" {upward(bayesian)} (for any record: {upward(differential)})."
    )


def _title(certificate: BayesianCertificate) -> str:
    bayesian, differential = map(upward, certificate.epsilon)
    return (
        f"epsilon {differential} for every record; {bayesian} (Bayesian) for"
        f" {certificate.share:.7g} of the records drawn like the data"
    )


def _tables(certificate: BayesianCertificate) -> list[Table]:
    own = certificate.differential
    both = [
        (f"{name} epsilon at delta = {own.delta:g}", f"{upward(value)}   attacker right: {success}")
        for name, value, success in (
            ("differential", certificate.epsilon.differential, _right(certificate, 1)),
            ("Bayesian", certificate.epsilon.bayesian, _right(certificate, 0)),
        )
    ]
    account = [
        ("adjacency, unit", f"{own.adjacency}, {own.unit}"),
        ("steps", f"{own.num_releases} of {certificate.num_planned} planned"),
        ("what it adds", _verdict(certificate)),
        ("order lambda", str(certificate.order)),
        ("failure", f"{certificate.failure:.3g}, counted into delta"),
    ]
    shares = [
        (f"for a share of {share:.7g}", upward(value)) for share, value in certificate.percentiles
    ]
    return [
        ("Side by side", both),
        ("Bayesian account", account),
        (f"Bayesian epsilon at delta = {own.delta:g}, by share of the population", shares),
        ("What the Bayesian epsilon assumes", list(certificate.assumptions.items())),
    ]


def _right(certificate: BayesianCertificate, side: int) -> str:
    return f"at most {upward(certificate.attack[side])} of the time (flat prior)"


def _figure(certificate: BayesianCertificate) -> "Figure":
    from matplotlib.figure import Figure

    shares, epsilons = np.array(certificate.percentiles).T
    figure = Figure(figsize=(6.4, 4.0), layout="constrained")
    axes = figure.subplots()
    axes.plot(1 - shares, epsilons, marker="o", label="Bayesian, for records like the data")
    axes.axhline(certificate.epsilon.differential, color="black", label="differential, for all")
    axes.set(
        xscale="log",
        xlabel="share of the population that is left out",
        ylabel=f"epsilon at delta = {certificate.differential.delta:g}",
        ylim=(0, None),
    )
    axes.invert_xaxis()
    axes.legend()
    return figure


def _json(value: float) -> float | str:
    return "inf" if math.isinf(value) else value
