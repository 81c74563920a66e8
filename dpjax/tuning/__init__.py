"""Private tuning: candidates drawn, trained, scored and selected, counted as one release."""

from dpjax.tuning._tune import Study, tune

__all__ = ["Study", "tune"]
