"""Bayesian differential privacy: what a mechanism costs records that are drawn like the data.

It is an account *beside* differential privacy, never instead: every epsilon here comes with the
differential one of the same run. `init` an account of a mechanism, `update` it with the norms that
training emits (or let a `Ledger` do so), and read it by `epsilon`, `delta` or `certificate`.

Source: A. Triastcyn, B. Faltings, "Bayesian Differential Privacy for Machine Learning", 2020.
"""

from dpjax.accounting.bayesian import estimators, leakage
from dpjax.accounting.bayesian.account import (
    ORDERS,
    Account,
    init,
    update,
    update_at_bound,
    update_with,
)
from dpjax.accounting.bayesian.certificate import BayesianCertificate, certificate
from dpjax.accounting.bayesian.divergences import (
    diagonal_gaussian,
    gaussian,
    laplace,
    published_reverse,
    sampled_gaussian,
)
from dpjax.accounting.bayesian.ledger import Ledger
from dpjax.accounting.bayesian.pairs import Pairs, gradient_pairs, independent_pairs
from dpjax.accounting.bayesian.readings import (
    Percentile,
    SideBySide,
    attack_success,
    best_order,
    delta,
    epsilon,
    percentiles,
)
from dpjax.accounting.bayesian.releases import UnclippedGaussian
from dpjax.accounting.bayesian.replace_one import replaced_sampled_gaussian

__all__ = [
    "ORDERS",
    "Account",
    "BayesianCertificate",
    "Ledger",
    "Pairs",
    "Percentile",
    "SideBySide",
    "UnclippedGaussian",
    "attack_success",
    "best_order",
    "certificate",
    "delta",
    "diagonal_gaussian",
    "epsilon",
    "estimators",
    "gaussian",
    "gradient_pairs",
    "independent_pairs",
    "init",
    "laplace",
    "leakage",
    "percentiles",
    "published_reverse",
    "replaced_sampled_gaussian",
    "sampled_gaussian",
    "update",
    "update_at_bound",
    "update_with",
]
