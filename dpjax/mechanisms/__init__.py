"""Private computations, each described once: what samples, runs and accounts derives from that."""

from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.composition import Composition
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian, mechanism_of

__all__ = ["Composition", "Mechanism", "SubsampledGaussian", "mechanism_of"]
