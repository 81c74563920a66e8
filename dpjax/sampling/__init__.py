"""Batch samplers (Poisson, truncated Poisson, fixed size, shuffled epochs) and their events."""

from dpjax.sampling.base import Batch, Sampling, gather
from dpjax.sampling.fixed_size import FixedSizeSampling, ShuffledEpochs
from dpjax.sampling.poisson import PoissonSampling, TruncatedPoissonSampling

__all__ = [
    "Batch",
    "FixedSizeSampling",
    "PoissonSampling",
    "Sampling",
    "ShuffledEpochs",
    "TruncatedPoissonSampling",
    "gather",
]
