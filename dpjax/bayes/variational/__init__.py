"""Differentially private variational inference for numpyro's models and guides."""

from dpjax.bayes.variational.clipping import ClippingReport
from dpjax.bayes.variational.posterior import to_arviz
from dpjax.bayes.variational.step import DPSVIState
from dpjax.bayes.variational.svi import DPSVI, DPSVIResult

__all__ = ["DPSVI", "ClippingReport", "DPSVIResult", "DPSVIState", "to_arviz"]
