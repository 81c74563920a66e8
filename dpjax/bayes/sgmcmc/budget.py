"""Chains within a privacy budget: by extra noise, or by smaller steps."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

from dp_accounting import DpEvent

from dpjax.accounting.adjacency import Adjacency
from dpjax.accounting.calibration import calibrate
from dpjax.accounting.targets import target
from dpjax.bayes.sgmcmc.description import Langevin
from dpjax.bayes.sgmcmc.schedules import Floats
from dpjax.mechanisms.base import Mechanism

_L = TypeVar("_L", bound=Langevin)


def add_noise_for(chain: _L, *, epsilon: float, delta: float) -> _L:
    """Returns ``chain`` with the smallest ``at_least`` that makes it (epsilon, delta)-private.

    Never one below its own: a chain that is private enough is returned as it is.

    The steps keep their sizes. Where the chain's own noise is less than the floor the rest is added
    on top, which raises the temperature there: see ``excess_temperatures`` of the result. All
    chains are counted.

    Raises:
      ValueError: ``epsilon`` or ``delta`` is out of range.

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(50_000, 0.02), 4.0, 0.1, 10_000, "add_remove")
    >>> noisier = add_noise_for(chain, epsilon=1.0, delta=1e-5)
    >>> round(noisier.at_least, 1), round(float(noisier.excess_temperatures[0]), 1)
    (7.5, 1.3)
    """
    if target(epsilon, delta, None, None, None).is_met(chain):
        return chain
    floor = _Floor(dataclasses.replace(chain, at_least=float(chain.noise_multipliers.min())))
    return calibrate(floor, epsilon=epsilon, delta=delta).chain  # type: ignore[return-value]


def scale_steps_for(chain: _L, *, epsilon: float, delta: float) -> _L:
    """Returns ``chain`` with all steps times one factor: the largest that (epsilon, delta) allows.

    At the chain's temperature and by its own noise alone, without ``at_least``. Smaller steps are
    noisier sums. It is what `dpjax.calibrate` makes of a chain whose ``at_least`` is zero. All
    chains are counted.

    Raises:
      ValueError: ``epsilon`` or ``delta`` is out of range, or no step size reaches it.

    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(50_000, 0.02), 4.0, 0.1, 10_000, "add_remove")
    >>> round(scale_steps_for(chain, epsilon=1.0, delta=1e-5).step_size, 3)
    0.044
    """
    return calibrate(dataclasses.replace(chain, at_least=0.0), epsilon=epsilon, delta=delta)


def certified_step_size(chain: Langevin, *, epsilon: float, delta: float) -> Floats:
    """Returns the largest step sizes in proportion to ``chain``'s that are certified, one a step.

    Unlike the published bounds (`step_size_bound_2015`, `step_size_bound_slides`) this is a
    guarantee, by the accountant that certifies the chain: for its batch size, clip bound, number of
    steps, temperature, adjacency and number of chains.

    Returns:
      ``(num_steps,)``.

    Raises:
      ValueError: as `scale_steps_for`.
    """
    return scale_steps_for(chain, epsilon=epsilon, delta=delta).step_sizes


@dataclass(frozen=True)
class _Floor(Mechanism):
    """A chain whose noise is scaled by its floor alone."""

    chain: Langevin

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        return self.chain.adjacency

    @property
    def unit(self) -> str:  # type: ignore[override]
        return self.chain.unit

    @property
    def num_releases(self) -> int:
        return self.chain.num_releases

    @property
    def event(self) -> DpEvent:
        return self.chain.event

    def scale_noise(self, factor: float) -> "_Floor":
        return _Floor(dataclasses.replace(self.chain, at_least=self.chain.at_least * factor))

    def describe(self) -> Mapping[str, str]:
        return self.chain.describe()
