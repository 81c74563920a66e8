"""Private Bayesian inference: posteriors given released statistics, and private inference.

Where a posterior depends on the data through sufficient statistics (`conjugate`, `regression`),
these are released once and every posterior is post-processing. Elsewhere the inference itself is
private: variational (`DPSVI`, on numpyro's models and guides) or by SG-MCMC (`sgmcmc`).
"""

from dpjax.bayes import conjugate, regression, sgmcmc, variational
from dpjax.bayes.variational import DPSVI

__all__ = ["DPSVI", "conjugate", "regression", "sgmcmc", "variational"]
