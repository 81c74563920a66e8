"""Epsilon by the two accountants of Bu et al. (2020) and certified, and remarks on them."""

from collections.abc import Mapping, Sequence
from typing import Any

import dpjax
from experiments.lib.registry import Finding, Record
from experiments.lib.verdicts import Comparison, compare_claim, format_upper_bound, join_row_names

DIVISOR_REMARK = (
    "The published algorithm divides by the actual batch size, which is private under Poisson"
    " sampling; these runs divide by the expected batch size."
)


def compute_accounts(
    mechanism: dpjax.SubsampledGaussian, delta: float
) -> tuple[dict[str, Any], float]:
    """Returns epsilon by the source's accountants, by column, and the certified epsilon.

    >>> sampling = dpjax.PoissonSampling(29_305, 256 / 29_305)
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     sampling, l2_clip=1.0, noise_multiplier=0.55, num_steps=2060, adjacency="zero_out"
    ... )
    >>> costs, certified = compute_accounts(mechanism, delta=1e-5)
    >>> round(costs["CLT μ"], 2), round(costs["CLT ε"], 2), round(certified, 2)
    (2.03, 10.2, 11.81)
    """
    certificate = mechanism.certificate(delta)
    epsilon = {estimate.method: estimate.epsilon for estimate in certificate.estimates}
    costs = {
        "CLT μ": float(dpjax.accounting.gdp.mu_of_event(mechanism.event, mechanism.adjacency)),
        "CLT ε": epsilon["gdp_clt"],
        "MA ε": epsilon["moments"],
        "Rényi ε, improved": epsilon["rdp"],
    }
    return costs, certificate.epsilon


def account_remarks(row: str, clt: float, costs: Mapping[str, Any], certified: float) -> list[str]:
    """Compares the source's accountants of one row with the certified epsilon."""
    return [
        f"{row}: the source's CLT ε = {clt:.2f}, an approximation, {compare_claim(clt, certified)}"
        f" the certified ε = {format_upper_bound(certified)}.",
        f"{row}: the moments accountant is loose because of its conversion from Rényi DP: ε ="
        f" {costs['MA ε']:.2f}, or {costs['Rényi ε, improved']:.2f} with the improved conversion.",
    ]


def account_finding(
    comparison: Comparison, records: Sequence[Record], certified: str, remark: str = ""
) -> Finding:
    """Returns a comparison's finding, with the rows whose published CLT ε is below the certified.

    Args:
      comparison: of measured with published accuracies or errors.
      records: of all rows.
      certified: the column of the certified ε at the published size and length.
      remark: a further clause.
    """
    claims = [r for r in records if "CLT ε" in r.source and certified in r.certified]
    low = join_row_names(claims, lambda r: r.source["CLT ε"] < r.certified[certified])
    limit = (
        f"the published CLT ε is below the certified ε, hence no upper bound (rows: {low})"
        if low
        else "the published CLT ε is not below the certified ε in any row"
    )
    return comparison.finding("; ".join(filter(None, [remark, limit])), bool(low))
