"""Differentially private variational inference for numpyro's models and guides."""

from dpjax.bayes.variational.full_curvature import CurvatureFit, FullCurvaturePosterior
from dpjax.bayes.variational.noise_aware import (
    MeanFieldPosterior,
    NoiseAwarePosterior,
    OptimumFit,
)
from dpjax.bayes.variational.step import ClippingReport, DPSVIState
from dpjax.bayes.variational.svi import DPSVI, DPSVIResult, to_arviz

__all__ = [
    "DPSVI",
    "ClippingReport",
    "CurvatureFit",
    "DPSVIResult",
    "DPSVIState",
    "FullCurvaturePosterior",
    "MeanFieldPosterior",
    "NoiseAwarePosterior",
    "OptimumFit",
    "to_arviz",
]
