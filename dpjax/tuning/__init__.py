"""Private hyperparameter tuning, with the search counted in epsilon."""

from dpjax.tuning._tune import Study, tune

__all__ = ["Study", "tune"]
