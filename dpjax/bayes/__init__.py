"""Private Bayesian inference: posteriors given released statistics, and private inference.

Where a posterior depends on the data through sufficient statistics (`conjugate`, `regression`),
these are released once and every posterior is post-processing. Given a released sum, the posterior
of any numpyro model is sampled by data augmentation (`augmentation`). Elsewhere the inference is
private: variational (`DPSVI`, on numpyro's models and guides) or by SG-MCMC (`sgmcmc`).

The names are imported on first use, as those of `dpjax`.
"""

import importlib
from typing import TYPE_CHECKING, Any

__all__ = ["DPSVI", "augmentation", "conjugate", "regression", "sgmcmc", "variational"]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


if TYPE_CHECKING:
    from dpjax.bayes import augmentation, conjugate, regression, sgmcmc, variational
    from dpjax.bayes.variational import DPSVI
else:

    def __getattr__(name: str) -> Any:
        """Imports a subpackage, or `DPSVI`, on its first use."""
        if name not in __all__:
            raise AttributeError(f"module 'dpjax.bayes' has no attribute {name!r}")
        if name == "DPSVI":
            return importlib.import_module("dpjax.bayes.variational").DPSVI
        return importlib.import_module(f"dpjax.bayes.{name}")
