"""Batch samplers, and distributions of the number of repetitions of private selection."""

from dpjax.sampling.allocated import AllocatedSampling
from dpjax.sampling.base import Batch, Participation, Sampling, gather
from dpjax.sampling.cyclic import CyclicPoissonSampling
from dpjax.sampling.fixed_size import FixedSizeSampling, ShuffledEpochs
from dpjax.sampling.poisson import PoissonSampling, TruncatedPoissonSampling
from dpjax.sampling.repetitions import (
    PoissonRepetitions,
    Repetitions,
    TruncatedNegativeBinomial,
)

__all__ = [
    "AllocatedSampling",
    "Batch",
    "CyclicPoissonSampling",
    "FixedSizeSampling",
    "Participation",
    "PoissonRepetitions",
    "PoissonSampling",
    "Repetitions",
    "Sampling",
    "ShuffledEpochs",
    "TruncatedNegativeBinomial",
    "TruncatedPoissonSampling",
    "gather",
]
