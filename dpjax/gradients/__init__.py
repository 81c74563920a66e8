"""Sums of clipped per-example gradients: one reference, and room for faster ways to the same."""

from dpjax.gradients.clipped_grad import clipped_grad
from dpjax.gradients.clipping import ClippedGradInfo, l2_sensitivity, total_l2_clip

__all__ = ["ClippedGradInfo", "clipped_grad", "l2_sensitivity", "total_l2_clip"]
