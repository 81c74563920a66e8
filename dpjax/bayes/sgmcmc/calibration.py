"""Calibrates SG-MCMC to a privacy budget: minimal noise, step sizes, hybrid."""

import dataclasses
from dataclasses import dataclass
from typing import Generic, Self, TypeVar

from dpjax._checks import check_positive, check_type
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.calibration import calibrate
from dpjax.accounting.events import decompose
from dpjax.bayes.sgmcmc.langevin import Langevin
from dpjax.bayes.sgmcmc.one_posterior_sample import OnePosteriorSample
from dpjax.guarantee import Guarantee
from dpjax.mechanisms.base import Composition

_L = TypeVar("_L", bound=Langevin)


def calibrate_min_noise(chain: _L, *, epsilon: float, delta: float) -> _L:
    """Returns ``chain`` with the smallest (epsilon, delta)-private ``min_noise_multiplier``.

    The minimum is never lowered: a chain that is private enough is returned unchanged. Step sizes
    are kept. Where the injected noise is below the minimum, independent noise is added, which
    raises the temperature: see ``excess_temperatures`` of the result. All chains are counted.

    Args:
      chain: an `SGLD`, `SGHMC` or `PSGLD`.
      epsilon: above zero.
      delta: in (0, 1).

    Raises:
      ValueError: ``epsilon`` or ``delta`` is out of range.

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(
    ...     PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.1, num_steps=10_000,
    ...     adjacency="add_remove"
    ... )
    >>> noisier = calibrate_min_noise(chain, epsilon=1.0, delta=1e-5)
    >>> round(noisier.min_noise_multiplier, 1), round(float(noisier.excess_temperatures[0]), 1)
    (7.5, 1.3)
    """
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    check_positive("epsilon", epsilon)
    if certified_epsilon(decompose(chain.event, chain.adjacency), delta)[1] <= epsilon:
        return chain
    least = float(chain.noise_multipliers.min())
    raised = dataclasses.replace(chain, min_noise_multiplier=least)
    calibrated = calibrate(_MinNoise(raised), epsilon=epsilon, delta=delta)
    return calibrated.chain


def calibrate_step_size(chain: _L, *, epsilon: float, delta: float) -> _L:
    """Returns ``chain`` with its step sizes scaled to the largest (epsilon, delta)-private ones.

    At the chain's temperature, by the injected noise alone, with ``min_noise_multiplier`` zero:
    smaller steps inject more noise into the sums. Equals `dpjax.calibrate` of a chain without a
    minimum. Steps that were given smaller become larger: whether the chain then samples the
    posterior is not checked. All chains are counted. Unlike the published bounds, step sizes are
    those that the accountant certifies for the chain's own batch size, clip bound, steps and
    adjacency.

    Args:
      chain: an `SGLD`, `SGHMC` or `PSGLD`.
      epsilon: above zero.
      delta: in (0, 1).

    Raises:
      ValueError: ``epsilon`` or ``delta`` is out of range, or no step size reaches it.

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(
    ...     PoissonSampling(50_000, 0.02), l2_clip=4.0, step_size=0.1, num_steps=10_000,
    ...     adjacency="add_remove"
    ... )
    >>> round(calibrate_step_size(chain, epsilon=1.0, delta=1e-5).step_size, 3)
    0.044
    """
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    return calibrate(
        dataclasses.replace(chain, min_noise_multiplier=0.0), epsilon=epsilon, delta=delta
    )


@dataclass(frozen=True)
class _MinNoise(Generic[_L]):
    """A chain made more private by its minimal noise multiplier instead of smaller steps."""

    chain: _L

    @property
    def guarantee(self) -> Guarantee:
        return self.chain.guarantee

    def with_privacy_factor(self, factor: float) -> Self:
        least = self.chain.min_noise_multiplier * factor
        scaled = dataclasses.replace(self.chain, min_noise_multiplier=least)
        return dataclasses.replace(self, chain=scaled)


def hybrid(
    start: OnePosteriorSample,
    chain: Langevin,
    *,
    epsilon: float,
    delta: float,
    keep_steps: bool = False,
) -> Composition:
    """Returns one posterior sample as start and a chain, each with half of ``epsilon``.

    Run an exact sampler with ``parts[0]`` (`rejection_sample`, `beta_sample`), then `sample` with
    ``parts[1]`` from its result. A start that is not an exact sample is not covered.

    Args:
      start: its ``target_epsilon`` becomes ``epsilon / 2``.
      chain: made (epsilon / 2, delta)-private.
      epsilon: above zero.
      delta: in (0, 1).
      keep_steps: whether to add noise (`calibrate_min_noise`) instead of scaling the step sizes
        (`calibrate_step_size`).

    Privacy:
      Both parts are released: at most (epsilon, delta) by basic composition, and less by the
      certificate's accountant.

    Raises:
      ValueError: ``epsilon`` or ``delta`` is out of range, or no step size reaches half of it.

    Source: Wang, Fienberg & Smola (2015).

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> start = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="add_remove")
    >>> chain = SGLD(
    ...     PoissonSampling(1_000, 0.1), l2_clip=1.0, step_size=0.1, num_steps=100,
    ...     adjacency="add_remove"
    ... )
    >>> both = hybrid(start, chain, epsilon=1.0, delta=1e-5)
    >>> both.mechanisms[0].epsilon, both.certificate(1e-5).epsilon < 1
    (0.5, True)
    """
    check_type("start", start, OnePosteriorSample, "a OnePosteriorSample")
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    check_positive("epsilon", epsilon)
    half = epsilon / 2
    calibrated = (calibrate_min_noise if keep_steps else calibrate_step_size)(
        chain, epsilon=half, delta=delta
    )
    return Composition((dataclasses.replace(start, target_epsilon=half), calibrated))
