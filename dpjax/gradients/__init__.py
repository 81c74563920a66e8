"""Per-example gradient clipping: the clipped sum and its L2 sensitivity."""

from dpjax.gradients.bookkeeping import explain
from dpjax.gradients.clipped_grad import clipped_grad
from dpjax.gradients.clipping import ClippedGradInfo, l2_sensitivity, total_l2_clip

__all__ = ["ClippedGradInfo", "clipped_grad", "explain", "l2_sensitivity", "total_l2_clip"]
