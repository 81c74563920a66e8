"""Private Bayesian inference: posteriors of released statistics, and released posteriors.

Where a posterior depends on the data through a few sums (`conjugate`, `regression`), one release of
those pays for everything. Elsewhere the inference itself is private: variational (`DPSVI`, on
numpyro's models and guides) or by chains (`sgmcmc`).
"""

from dpjax.bayes import conjugate, regression, sgmcmc, variational
from dpjax.bayes.variational import DPSVI

__all__ = ["DPSVI", "conjugate", "regression", "sgmcmc", "variational"]
