"""Differentially private variational inference for numpyro's models and guides."""

from dpjax.bayes.variational.noise_aware import NoiseAwarePosterior, OptimumFit
from dpjax.bayes.variational.step import ClippingReport, DPSVIState
from dpjax.bayes.variational.svi import DPSVI, DPSVIResult, to_arviz

__all__ = [
    "DPSVI",
    "ClippingReport",
    "DPSVIResult",
    "DPSVIState",
    "NoiseAwarePosterior",
    "OptimumFit",
    "to_arviz",
]
