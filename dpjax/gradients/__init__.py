"""Per-example gradient clipping: the clipped sum and its L2 sensitivity."""

from dpjax.gradients._clipped_grad import clipped_grad
from dpjax.gradients.bookkeeping.routes import Explanation, explain
from dpjax.gradients.clipping import ClippedGradInfo, l2_sensitivity, total_l2_clip
from dpjax.gradients.user_level import UnitRecords, augmented_loss, group_by_unit, unit_loss

__all__ = [
    "ClippedGradInfo",
    "Explanation",
    "UnitRecords",
    "augmented_loss",
    "clipped_grad",
    "explain",
    "group_by_unit",
    "l2_sensitivity",
    "total_l2_clip",
    "unit_loss",
]
