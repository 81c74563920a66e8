"""BDP certificates: the BDP epsilon of a run, always with the DP certificate of the same run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from dpjax._checks import check, check_share
from dpjax.bdp.accountant import AccountantState, check_state
from dpjax.bdp.conversion import (
    SHARES,
    BDPResult,
    attack_success,
    best_order,
    population_epsilons,
)
from dpjax.certificates.certificate import Certificate, certify
from dpjax.certificates.figure import new_figure
from dpjax.certificates.render import Report, Table, round_up
from dpjax.guarantee import format_size

if TYPE_CHECKING:
    from matplotlib.figure import Figure

NOT_PROTECTED = (
    "The BDP epsilon holds only for records drawn from the same distribution as the data, and only"
    " for the stated share of them. An outlier, a record from another source and a record chosen by"
    " an adversary have the DP epsilon only.",
    "The BDP epsilon is computed from the private records and is not part of the release:"
    " publishing it leaks information that it does not account for.",
)
ASSUMPTIONS: Mapping[str, str] = {
    "records": "the record in question and the records in the data are drawn from the same"
    " distribution (exchangeable)",
    "samples": "the examples of a batch are independent samples of that distribution, although the"
    " parameters depend on most of them through earlier steps",
    "steps": "the cost along the steps that were taken is that of steps fixed in advance, as the"
    " composition theorem requires",
}
_ESTIMATORS = {
    "student": "each step's cost is overestimated with probability 1 - {:.3g}, if the sample mean"
    " follows Student's distribution (Triastcyn & Faltings 2020, Theorem 4). Exponentials of norms"
    " rarely satisfy this: records of large norm that no batch contains are not accounted for, and"
    " choosing the best order favours orders at which the cost is underestimated, so that epsilon"
    " may be too small even without outliers",
    "empirical_bernstein": "each step's cost is overestimated with probability 1 - {:.3g}, for any"
    " distribution of independent samples under the clip bound (Maurer & Pontil 2009, Theorem 4)",
}


@dataclass(frozen=True)
class BDPCertificate(Report):
    """The BDP epsilon and the DP certificate of one run. Quote both, or DP alone.

    Attributes:
      dp_certificate: the DP certificate of the same steps, for every record.
      share: share of the population for which ``epsilon.bdp`` holds.
      epsilon: both epsilons, at the DP certificate's delta. Where the BDP epsilon is the larger, it
        adds nothing to the DP guarantee.
      population_epsilons: shares of the population, each with the BDP epsilon that holds for it.
      order: the order lambda of ``epsilon.bdp``.
      num_planned: the number of steps that the composition was planned for.
      failure_probability: probability that an estimate was too small; included in delta.
      assumptions: the assumptions of the BDP epsilon, as heading and text.
    """

    dp_certificate: Certificate
    share: float
    epsilon: BDPResult
    population_epsilons: tuple[tuple[float, float], ...]
    order: int
    num_planned: int
    failure_probability: float
    assumptions: Mapping[str, str]
    caveats_heading: ClassVar[str] = "Not covered by the BDP epsilon"
    enclosed_heading: ClassVar[str] = "The DP certificate of the same run"

    @property
    def attack_success(self) -> BDPResult:
        """Upper bounds on the success probability of membership inference with a uniform prior."""
        delta = self.dp_certificate.delta
        return BDPResult(*(float(attack_success(value, delta)) for value in self.epsilon))

    @property
    def title(self) -> str:
        bdp, dp = map(round_up, self.epsilon)
        return (
            f"DP epsilon {dp} for every record; BDP epsilon {bdp} for a share of"
            f" {self.share:.7g} of the population"
        )

    @property
    def tables(self) -> list[Table]:
        own, guarantee = self.dp_certificate, self.dp_certificate.guarantee

        # Both epsilons, and what they mean for membership inference.
        bdp, dp = map(round_up, self.epsilon)
        attack_bdp, attack_dp = map(round_up, self.attack_success)
        comparison = [
            ("DP epsilon", f"{dp}, for every record"),
            ("BDP epsilon", f"{bdp}, for records drawn from the data distribution"),
            ("BDP against DP", self._comparison),
            ("attack success, DP", f"at most {attack_dp} (uniform prior)"),
            ("attack success, BDP", f"at most {attack_bdp} (uniform prior)"),
        ]

        # What the BDP account is of.
        accounting = [
            ("adjacency", guarantee.adjacency),
            ("unit of privacy", guarantee.unit),
            ("number of records", format_size(guarantee)),
            ("steps", f"{guarantee.num_releases} of {self.num_planned} planned"),
            ("order lambda", str(self.order)),
            ("failure probability", f"{self.failure_probability:.3g}, included in delta"),
        ]
        shares = [
            (f"share {share:.7g}", round_up(value)) for share, value in self.population_epsilons
        ]
        return [
            (f"Epsilon at delta = {own.delta:g}", comparison),
            ("BDP accountant", accounting),
            (f"BDP epsilon at delta = {own.delta:g} by share of the population", shares),
            ("Assumptions of the BDP epsilon", list(self.assumptions.items())),
        ]

    @property
    def caveats(self) -> tuple[str, ...]:
        return NOT_PROTECTED

    @property
    def enclosed(self) -> Certificate:
        return self.dp_certificate

    def paragraph(self) -> str:
        """Returns the certificate as one paragraph for a paper, with the DP guarantee first."""
        bdp, dp = self.attack_success
        attack = (
            " An attacker with a uniform prior decides correctly whether such a record is in the"
            f" data with probability at most {round_up(bdp)} (for any record: {round_up(dp)})."
        )
        return (
            f"{self.dp_certificate.paragraph()} Under Bayesian differential privacy (BDP; Triastcyn"
            f" & Faltings 2020) the same steps have epsilon {round_up(self.epsilon.bdp)} at the"
            f" same delta, for all but a share of {1 - self.share:.3g} of the records drawn from"
            f" the distribution of the data; this is {self._comparison}."
            f"{attack if bdp < dp else ''}"
            " The BDP epsilon is not a differential privacy guarantee. It assumes:"
            f" {'; '.join(self.assumptions.values())}. {' '.join(NOT_PROTECTED)}"
        )

    @property
    def _comparison(self) -> str:
        bdp, dp = self.epsilon
        if bdp >= dp:
            return (
                "not below the DP epsilon, which also holds for these records, so BDP adds nothing"
            )
        return f"below the DP epsilon by {round_up(dp - bdp)}"

    def plot(self) -> "Figure":
        """Returns a figure of the BDP epsilon by share of the population, and of the DP epsilon."""
        # The BDP epsilon falls with the share that is left out; the DP epsilon is constant.
        shares, epsilons = np.array(self.population_epsilons).T
        figure = new_figure(6.4, 4.0)
        axes = figure.subplots()
        axes.plot(1 - shares, epsilons, marker="o", label="BDP, for a share of the population")
        axes.axhline(self.epsilon.dp, color="black", label="DP, for every record")
        axes.set(
            xscale="log",
            xlabel="share of the population not covered",
            ylabel=f"epsilon at delta = {self.dp_certificate.delta:g}",
            ylim=(0, None),
        )
        axes.invert_xaxis()
        axes.legend()
        return figure

    def _values(self) -> dict[str, Any]:
        return {
            "epsilon": self.epsilon,
            "attack_success": self.attack_success,
            "share": self.share,
            "population_epsilons": self.population_epsilons,
            "order": self.order,
            "num_planned": self.num_planned,
            "failure_probability": self.failure_probability,
            "assumptions": self.assumptions,
            "not_protected": self.caveats,
            "dp_certificate": self.dp_certificate,
        }


def certificate(
    state: AccountantState,
    delta: float,
    *,
    share: float = 0.99999,
    shares: Sequence[float] = SHARES,
    seeded: bool = False,
) -> BDPCertificate:
    """Returns the BDP and the DP guarantee of the accumulated steps.

    Args:
      state: of at least one step.
      delta: of both guarantees.
      share: share of the population for which the BDP epsilon is to hold: epsilon is evaluated at
        the BDP delta (1 - share) ``delta``.
      shares: shares of ``BDPCertificate.population_epsilons``.
      seeded: whether the run's key was derived from a seed (``result.seeded``), which the
        certificate then states.

    Raises:
      ValueError: a number is out of range, or ``delta`` is so small that the estimators' failure
        probability exceeds the BDP delta.

    Source: Triastcyn & Faltings (2020), Sections 4.2 to 4.4.

    >>> import dpjax
    >>> from dpjax import bdp
    >>> sampling = dpjax.PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=1_000, adjacency="add_remove"
    ... )
    >>> state = bdp.update(bdp.init(mechanism), np.full((1_000, 256), 0.3))
    >>> certificate(state, delta=1e-5).epsilon.bdp > bdp.epsilon(state, 1e-5).bdp
    True
    """
    check_state(state)
    check_share("share", share)
    check(share < 1, "share", share, "in [0, 1)")

    # The DP guarantee of the steps that were accumulated.
    mechanism = state.completed_mechanism
    run = mechanism.guarantee.of_run(seeded=seeded, num_steps=state.num_done)
    dp_certificate = certify(run, delta)

    # The BDP epsilon for a share of the population, at the share's BDP delta.
    failure = state.total_failure_probability
    mean_delta = (1 - share) * delta
    allowed = f"so large that (1 - share) delta exceeds the failure probability {failure:g}"
    check(mean_delta > failure, "delta", delta, allowed)
    ((_, epsilon),) = population_epsilons(state, delta, (share,))

    return BDPCertificate(
        dp_certificate=dp_certificate,
        share=share,
        epsilon=BDPResult(epsilon, dp_certificate.epsilon),
        population_epsilons=population_epsilons(state, delta, shares),
        order=best_order(state, mean_delta, definition="weak"),
        num_planned=state.mechanism.num_releases,
        failure_probability=failure,
        assumptions={
            **ASSUMPTIONS,
            "estimator": _ESTIMATORS[state.estimator].format(state.failure_probability),
        },
    )
