"""Batch samplers (Poisson, cyclic, fixed size, random allocation, shuffled) and their events."""

from dpjax.sampling.allocated import AllocatedSampling
from dpjax.sampling.base import Batch, Participation, Sampling, gather
from dpjax.sampling.cyclic import CyclicPoissonSampling
from dpjax.sampling.fixed_size import FixedSizeSampling, ShuffledEpochs
from dpjax.sampling.poisson import PoissonSampling, TruncatedPoissonSampling

__all__ = [
    "AllocatedSampling",
    "Batch",
    "CyclicPoissonSampling",
    "FixedSizeSampling",
    "Participation",
    "PoissonSampling",
    "Sampling",
    "ShuffledEpochs",
    "TruncatedPoissonSampling",
    "gather",
]
