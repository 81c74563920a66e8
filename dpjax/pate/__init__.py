"""Private Aggregation of Teacher Ensembles (PATE): noisy votes, and every analysis of them.

`Partition` assigns records to disjoint shards, `train_teachers` trains a teacher on each of them,
and `predict_labels` and `count_votes` have their votes. `LNMax`, `GNMax`, `ConfidentGNMax` and
`InteractiveGNMax` release labels from the votes, which a student learns from: any model, trained
on public inputs. `certificate` has the guarantee, which holds for any votes, and beside it the
data-dependent epsilons of the literature, which depend on the private votes.

Source: Papernot et al. (2017), "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data"; Papernot et al. (2018), "Scalable Private Learning with PATE".
"""

from dpjax.pate import data_dependent
from dpjax.pate.aggregation import (
    Answers,
    GNMax,
    LNMax,
    VoteAggregation,
)
from dpjax.pate.analysis import (
    EpsilonPair,
    data_dependent_analyses,
    data_independent_analyses,
    perform_analysis,
)
from dpjax.pate.argmax_rdp import argmax_rdp, check_rdp
from dpjax.pate.certificate import (
    PATECertificate,
    SanitizedCertificate,
    certificate,
    sanitized_certificate,
)
from dpjax.pate.partition import Partition
from dpjax.pate.smooth_sensitivity import (
    RDPCost,
    SanitizedEpsilon,
    SmoothRDPRelease,
    gnss_rdp,
)
from dpjax.pate.teachers import predict_labels, train_teachers
from dpjax.pate.thresholded import ConfidentGNMax, InteractiveGNMax
from dpjax.pate.votes import NO_ANSWER, Abstentions, count_abstentions, count_votes

__all__ = [
    "NO_ANSWER",
    "Abstentions",
    "Answers",
    "ConfidentGNMax",
    "EpsilonPair",
    "GNMax",
    "InteractiveGNMax",
    "LNMax",
    "PATECertificate",
    "Partition",
    "RDPCost",
    "SanitizedCertificate",
    "SanitizedEpsilon",
    "SmoothRDPRelease",
    "VoteAggregation",
    "argmax_rdp",
    "certificate",
    "check_rdp",
    "count_abstentions",
    "count_votes",
    "data_dependent",
    "data_dependent_analyses",
    "data_independent_analyses",
    "gnss_rdp",
    "perform_analysis",
    "predict_labels",
    "sanitized_certificate",
    "train_teachers",
]
