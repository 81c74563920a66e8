"""Per-example gradient clipping: the clipped sum and its L2 sensitivity."""

from dpjax.gradients._clipped_grad import clipped_grad
from dpjax.gradients.bookkeeping.routes import Explanation, explain
from dpjax.gradients.clip_rules import (
    AdaptiveClip,
    AutomaticClip,
    GradientAndSlots,
    PSACClip,
    QuantileClip,
    SlackClip,
)
from dpjax.gradients.clipping import ClippedGradInfo, l2_sensitivity, total_l2_clip
from dpjax.gradients.user_level import UnitRecords, augmented_loss, group_by_unit, unit_loss

__all__ = [
    "AdaptiveClip",
    "AutomaticClip",
    "ClippedGradInfo",
    "Explanation",
    "GradientAndSlots",
    "PSACClip",
    "QuantileClip",
    "SlackClip",
    "UnitRecords",
    "augmented_loss",
    "clipped_grad",
    "explain",
    "group_by_unit",
    "l2_sensitivity",
    "total_l2_clip",
    "unit_loss",
]
