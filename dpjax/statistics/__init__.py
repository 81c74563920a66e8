"""Statistics of tables: counts, moments, regressions, histograms and quantiles, with intervals.

A query states a statistic of columns with public bounds. A plan divides one budget over queries,
and its release returns for each an estimate and an interval that includes sampling error and noise.

**Moments.** Columns clipped to (low, high) are mapped to [-1, 1]. Means, covariances, correlations
and regression coefficients are ratios N / D of polynomials of average products of the columns,
released together with Gaussian noise. By the delta method, the variances of N and D are those of
noise, known, plus those of sampling, a combination of products of twice the degree, which are
released too. The interval has all ratios that a test does not reject (Fieller 1954).

**Counts.** The interval inverts a test of a binomial count with Gaussian noise, whose expectation
is not negative (Feldman & Cousins 1998).

**Quantiles.** `dpjax.PermuteAndFlip` selects from a public grid a value whose rank is near the
quantile's, and two more, whose ranks are lower and higher by a margin that covers the sampling
error of the quantile's rank and the rank noise of the selection.
"""

from dpjax.statistics.counts import count, histogram
from dpjax.statistics.moments import correlation, covariance, mean, regression, variance
from dpjax.statistics.plans import StatisticsPlan, StatisticsRelease, plan, release
from dpjax.statistics.quantiles import quantile
from dpjax.statistics.query import Estimate, Query

__all__ = [
    "Estimate",
    "Query",
    "StatisticsPlan",
    "StatisticsRelease",
    "correlation",
    "count",
    "covariance",
    "histogram",
    "mean",
    "plan",
    "quantile",
    "regression",
    "release",
    "variance",
]
