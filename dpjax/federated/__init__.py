"""Private sums over records that several holders keep, without a trusted aggregator.

A `FederatedSum` is the plan of a release: a mechanism that sums over records, the parties, and the
noise that each holder adds. Holders send secret shares of their noisy sums to nodes, which open the
total alone. The protocol's functions take and return bytes; `run_round` runs them in one process,
and ``python -m dpjax.federated`` in a process for each party, connected by mutual TLS.

Source: Heikkilä et al. (2017), "Differentially private Bayesian learning on distributed data".
"""

from dpjax.federated.messages import ErrorCode, ProtocolError, agreed_draws
from dpjax.federated.noise import Entropy, simulated_entropy
from dpjax.federated.plan import Adversary, FederatedSum, Parties
from dpjax.federated.protocol import (
    NodeState,
    Result,
    combine,
    holder_messages,
    open_sum,
    perturb,
    receive,
    received_draws,
    run_round,
)
from dpjax.federated.training import (
    ClippedGradientSum,
    Training,
    gradient_training,
    holder_gradient,
    svi_training,
)

__all__ = [
    "Adversary",
    "ClippedGradientSum",
    "Entropy",
    "ErrorCode",
    "FederatedSum",
    "NodeState",
    "Parties",
    "ProtocolError",
    "Result",
    "Training",
    "agreed_draws",
    "combine",
    "gradient_training",
    "holder_gradient",
    "holder_messages",
    "open_sum",
    "perturb",
    "receive",
    "received_draws",
    "run_round",
    "simulated_entropy",
    "svi_training",
]
