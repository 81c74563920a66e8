"""Mechanisms: each describes its noise, its release and its privacy event."""

from dpjax.guarantee import Guarantee
from dpjax.mechanisms._dpsgd import dpsgd
from dpjax.mechanisms.additive import DiscreteGaussian, DiscreteLaplace, Gaussian, Laplace
from dpjax.mechanisms.base import Composition, Interval, Mechanism
from dpjax.mechanisms.epochs import Epochs
from dpjax.mechanisms.randomized_response import Frequencies, RandomizedResponse
from dpjax.mechanisms.record_sum import ClippedSum, RecordSum, SumPart
from dpjax.mechanisms.repeated_selection import RepeatedSelection
from dpjax.mechanisms.selection import ExponentialMechanism, NoisyMax, PermuteAndFlip
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian, mechanism_of

__all__ = [
    "ClippedSum",
    "Composition",
    "DiscreteGaussian",
    "DiscreteLaplace",
    "Epochs",
    "ExponentialMechanism",
    "Frequencies",
    "Gaussian",
    "Guarantee",
    "Interval",
    "Laplace",
    "Mechanism",
    "NoisyMax",
    "PermuteAndFlip",
    "RandomizedResponse",
    "RecordSum",
    "RepeatedSelection",
    "SubsampledGaussian",
    "SumPart",
    "dpsgd",
    "mechanism_of",
]
