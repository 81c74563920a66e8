"""The town of `bdp_incomes`: its incomes, the release of their mean, the attack, the accounts."""

import functools
import math
from dataclasses import dataclass

import jax
import numpy as np
import numpy.typing as npt
from scipy.optimize import brentq
from scipy.special import ndtri

import dpjax
from dpjax import bdp
from experiments.bdp.costs import FAILURE, epsilons, step_costs

Array = npt.NDArray[np.float64]

NUM_RESIDENTS, OUTLIER = 1_000, 1e7
_MEDIAN, _LOG_SPREAD, _SEED = 30_000.0, 0.6, 0
AT_OUTLIER, AT_PERCENTILE = "clipped at the outlier", "clipped at 99 %"
UNCLIPPED = "noise for 99 %, not clipped"
WAYS = (AT_OUTLIER, AT_PERCENTILE, UNCLIPPED)
ERRORS = ("error of mean: noise", "error of mean: clipping")
ORDERS = tuple(int(order) for order in np.unique(np.geomspace(1, 1e6, 61).round()))
# Of the loss of one resident, and on average over release and resident: Markov's inequality takes
# the second to the first for all but their ratio of the population.
DELTA, DELTA_MU = 1e-5, 1e-10
SHARES = np.geomspace(0.5, 1e-6, 30)
SHOWN_INCOMES = np.geomspace(5e3, 2e7, 80)


@dataclass(frozen=True)
class Release:
    """A noisy sum of incomes.

    Attributes:
      mechanism: whose noise it has.
      clip: the largest income that counts in full; infinite for no clipping, and then the
        mechanism's own statements do not hold.
    """

    mechanism: dpjax.Laplace
    clip: float

    @property
    def differential_epsilon(self) -> float:
        """For every income that there may be."""
        return self.clip / self.mechanism.scale

    def shift(self, incomes: Array) -> Array:
        """How far each resident moves the release, in scales of the noise."""
        return np.minimum(incomes, self.clip) / self.mechanism.scale


def income_at(levels: npt.ArrayLike) -> Array:
    """Returns the income that a share exp(-level) of typical residents exceeds.

    >>> income_at([np.log(2)])
    array([30000.])
    """
    return _MEDIAN * np.exp(-_LOG_SPREAD * ndtri(np.exp(-np.asarray(levels, float))))


@functools.cache
def draw_incomes() -> Array:
    """Returns the incomes of the typical residents."""
    generator = np.random.default_rng(_SEED)
    return generator.lognormal(math.log(_MEDIAN), _LOG_SPREAD, NUM_RESIDENTS - 1)


def release_of(way: str, epsilon: float) -> Release:
    """Returns the release of one of `WAYS`.

    >>> release_of(AT_OUTLIER, 1.0).differential_epsilon
    1.0
    """
    bound = OUTLIER if way == AT_OUTLIER else float(income_at(-math.log(0.01)))
    moved = dpjax.sensitivity.of_sum((0.0, bound), norm="l1", adjacency="add_remove")
    mechanism = dpjax.Laplace.from_epsilon(moved, epsilon=epsilon, unit="one resident")
    return Release(mechanism, math.inf if way == UNCLIPPED else bound)


def true_mean() -> float:
    """Returns the mean of all incomes, the outlier's included."""
    return float(draw_incomes().sum() + OUTLIER) / NUM_RESIDENTS


def errors_of_mean(release: Release, incomes: Array) -> dict[str, float]:
    """Returns the mean size of the noise on the mean, and what clipping takes from the mean."""
    lost = np.maximum(np.append(incomes, OUTLIER) - release.clip, 0.0)
    values = release.mechanism.scale, float(lost.sum())
    return {name: value / NUM_RESIDENTS for name, value in zip(ERRORS, values, strict=True)}


def attack(release: Release, shifts: Array, seed: int) -> int:
    """Returns how often the attacker is right, in as many releases as there are shifts.

    Every second release has the attacked resident. The attacker subtracts what everybody else
    contributes and takes the likelier of the two centres, 0 and the resident's shift.
    """
    noise = release.mechanism.release(jax.random.key(seed), np.zeros(len(shifts), np.float32))
    is_in = np.arange(len(shifts)) % 2 == 1
    seen = np.asarray(noise, np.float64) / release.mechanism.scale + shifts * is_in
    return int(((np.abs(seen - shifts) < np.abs(seen)) == is_in).sum())


def exact_accuracy(shifts: npt.ArrayLike) -> Array:
    """Returns how often that attack is right: 1 - exp(-shift / 2) / 2.

    >>> float(exact_accuracy(0.0))
    0.5
    """
    return 1 - np.exp(-np.asarray(shifts, float) / 2) / 2


def bayesian_epsilon(release: Release, incomes: Array, delta: float = DELTA_MU) -> float:
    """Returns the Bayesian epsilon, with ``incomes`` as draws of a resident's."""
    shifts = release.shift(incomes)
    worst = None
    if math.isfinite(release.clip):
        worst = bdp.laplace_log_moments(ORDERS, release.differential_epsilon, scale=1.0)
    costs = step_costs(bdp.laplace_log_moments(ORDERS, shifts, scale=1.0), 1, worst=worst)
    return float(epsilons(costs, delta, FAILURE, ORDERS))


def known_epsilon(release: Release, delta: float = DELTA_MU) -> float:
    """Returns it by Definition 1 itself, from the incomes' law: no moments, no estimate.

    The loss is at most the shift s, and at least epsilon <= s with probability
    1 - exp(-(s - epsilon) / 2) / 2.
    """
    ends = np.linspace(0.0, 40.0, 40_001)
    shifts = release.shift(income_at((ends[1:] + ends[:-1]) / 2))
    masses = -np.diff(np.exp(-ends))

    def excess(epsilon: float) -> float:
        chances = np.where(shifts >= epsilon, exact_accuracy(shifts - epsilon), 0.0)
        return math.log(max(float(masses @ chances), 1e-300)) - math.log(delta)

    return float(brentq(excess, 0.0, 1.001 * float(shifts.max())))


def certificate(release: Release, incomes: Array) -> bdp.BDPCertificate:
    """Returns both guarantees of a clipped release, the Bayesian one from these incomes."""
    account = bdp.init(release.mechanism, orders=ORDERS, failure_probability=FAILURE)
    worst = bdp.laplace_log_moments(ORDERS, release.differential_epsilon, scale=1.0)
    moments = bdp.laplace_log_moments(ORDERS, release.shift(incomes), scale=1.0)
    account = bdp.update_from_log_moments(account, moments, log_moment_bound=worst)
    return bdp.certificate(account, DELTA)
