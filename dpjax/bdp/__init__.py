"""Bayesian differential privacy (BDP): privacy of records drawn from the data distribution.

BDP complements differential privacy and does not replace it: every BDP epsilon is returned with the
DP epsilon of the same run. `init` returns the accountant's state for a mechanism, `update` adds the
gradient norms of a training step (a `TrainingAccountant` does so in ``train``), and `epsilon`,
`delta` or `certificate` convert the accumulated cost.

Source: Triastcyn & Faltings (2020), "Bayesian Differential Privacy for Machine Learning".
"""

from dpjax.accounting.log_moments import (
    diagonal_gaussian_log_moments,
    gaussian_log_moments,
    laplace_log_moments,
    subsampled_gaussian_log_moments,
)
from dpjax.bdp import estimators
from dpjax.bdp._certificate import BDPCertificate, certificate
from dpjax.bdp.accountant import (
    ORDERS,
    AccountantState,
    TrainingAccountant,
    init,
    update,
    update_from_log_moments,
    update_worst_case,
)
from dpjax.bdp.conversion import (
    BDPResult,
    attack_success,
    delta,
    epsilon,
)
from dpjax.bdp.replace_one import (
    GradientPairs,
    gradient_pairs,
    replace_one_log_moments,
    sample_disjoint_pairs,
)

__all__ = [
    "ORDERS",
    "AccountantState",
    "BDPCertificate",
    "BDPResult",
    "GradientPairs",
    "TrainingAccountant",
    "attack_success",
    "certificate",
    "delta",
    "diagonal_gaussian_log_moments",
    "epsilon",
    "estimators",
    "gaussian_log_moments",
    "gradient_pairs",
    "init",
    "laplace_log_moments",
    "replace_one_log_moments",
    "sample_disjoint_pairs",
    "subsampled_gaussian_log_moments",
    "update",
    "update_from_log_moments",
    "update_worst_case",
]
