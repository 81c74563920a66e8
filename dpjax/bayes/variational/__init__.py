"""Private variational inference on numpyro's models and guides."""

from dpjax.bayes.variational.arviz import to_arviz
from dpjax.bayes.variational.clipping_report import ClippingReport
from dpjax.bayes.variational.step import DPSVIState
from dpjax.bayes.variational.svi import DPSVI

__all__ = ["DPSVI", "ClippingReport", "DPSVIState", "to_arviz"]
