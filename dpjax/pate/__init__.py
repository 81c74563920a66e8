"""Private Aggregation of Teacher Ensembles (PATE): noisy votes, and every analysis of them.

`Partition` assigns records to disjoint shards, `train_teachers` trains a teacher on each of them,
and `predict_labels` and `count_votes` have their votes. `LNMax`, `GNMax` and `ConfidentGNMax`
(which is Interactive-GNMax too) release labels from the votes, which a student learns from: any
model, trained on public inputs. `certificate` has the guarantee, which holds for any votes, and
beside it the data-dependent epsilons of the literature, which depend on the private votes.

Source: Papernot et al. (2017), "Semi-supervised Knowledge Transfer for Deep Learning from Private
Training Data"; Papernot et al. (2018), "Scalable Private Learning with PATE".
"""

from dpjax.pate import data_dependent
from dpjax.pate._certificate import (
    PATECertificate,
    SanitizedCertificate,
    calibrate,
    certificate,
    sanitized_certificate,
)
from dpjax.pate.analysis import data_dependent_analyses
from dpjax.pate.data_independent import argmax_rdp
from dpjax.pate.mechanisms import (
    NO_ANSWER,
    Answers,
    ConfidentGNMax,
    GNMax,
    LNMax,
    VoteAggregation,
    count_votes,
)
from dpjax.pate.smooth_sensitivity import SmoothRDPRelease, gnss_rdp
from dpjax.pate.teachers import Partition, predict_labels, train_teachers

__all__ = [
    "NO_ANSWER",
    "Answers",
    "ConfidentGNMax",
    "GNMax",
    "LNMax",
    "PATECertificate",
    "Partition",
    "SanitizedCertificate",
    "SmoothRDPRelease",
    "VoteAggregation",
    "argmax_rdp",
    "calibrate",
    "certificate",
    "count_votes",
    "data_dependent",
    "data_dependent_analyses",
    "gnss_rdp",
    "predict_labels",
    "sanitized_certificate",
    "train_teachers",
]
