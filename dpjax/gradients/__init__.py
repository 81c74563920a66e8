"""Per-example gradient clipping: the clipped sum and its L2 sensitivity."""

from typing import TYPE_CHECKING

from dpjax._lazy_imports import exports_on_first_use

# The public names by the module that defines them; `TYPE_CHECKING` repeats them for mypy.
_EXPORTS = {
    "dpjax.gradients._clipped_grad": ["clipped_grad"],
    "dpjax.gradients.bookkeeping.routes": ["Explanation", "explain"],
    "dpjax.gradients.clip_rules": [
        "AdaptiveClip",
        "AutomaticClip",
        "GradientAndSlots",
        "PSACClip",
        "QuantileClip",
        "SlackClip",
    ],
    "dpjax.gradients.clip_bound": ["l2_sensitivity", "total_l2_clip"],
    "dpjax.gradients.clipping": ["ClippedGradInfo"],
    "dpjax.gradients.user_level": ["UnitRecords", "augmented_loss", "group_by_unit", "unit_loss"],
}

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


def __dir__() -> list[str]:
    return __all__


if TYPE_CHECKING:
    from dpjax.gradients._clipped_grad import clipped_grad
    from dpjax.gradients.bookkeeping.routes import Explanation, explain
    from dpjax.gradients.clip_bound import l2_sensitivity, total_l2_clip
    from dpjax.gradients.clip_rules import (
        AdaptiveClip,
        AutomaticClip,
        GradientAndSlots,
        PSACClip,
        QuantileClip,
        SlackClip,
    )
    from dpjax.gradients.clipping import ClippedGradInfo
    from dpjax.gradients.user_level import UnitRecords, augmented_loss, group_by_unit, unit_loss
else:  # hidden from mypy, for which a module with __getattr__ has every attribute
    __getattr__ = exports_on_first_use(__name__, _EXPORTS)
