"""The accountants that are compared, each called as its users would."""

import functools
import importlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import accounting
from dpjax.accounting import gdp, moments_accountant
from dpjax.accounting.accountants import guarantee
from experiments.bench.ways import why_missing

PRV = "prv_accountant"
_APPROXIMATION = "an approximation, no guarantee"


class Setting(NamedTuple):
    """A published run: Poisson-sampled Gaussian steps under add/remove.

    Attributes:
      name: for readers.
      noise_multiplier: over the clip bound.
      sampling_rate: of each step.
      num_steps: whole epochs.
      delta: at which epsilon is asked for.
    """

    name: str
    noise_multiplier: float
    sampling_rate: float
    num_steps: int
    delta: float = 1e-5

    @property
    def event(self) -> dp_event.DpEvent:
        """The run as dp-accounting's event."""
        step = dp_event.PoissonSampledDpEvent(
            self.sampling_rate, dp_event.GaussianDpEvent(self.noise_multiplier)
        )
        return dp_event.SelfComposedDpEvent(step, self.num_steps)

    @property
    def certified(self) -> float:
        """The epsilon that a certificate prints."""
        return guarantee(self.event, self.delta, "add_remove")[1]


SETTINGS = (
    *(
        Setting(f"MNIST row {row}", noise, 256 / 60_000, epochs * 60_000 // 256)
        for row, (noise, epochs) in enumerate(
            [(1.3, 15), (1.1, 60), (0.7, 45), (0.6, 62), (0.55, 68), (0.5, 100)], 1
        )
    ),
    Setting("Adult", 0.55, 256 / 29_305, 18 * 29_305 // 256),
    Setting("IMDb", 0.56, 512 / 25_000, 9 * 25_000 // 512),
    Setting("MovieLens", 0.6, 1 / 80, 20 * 80, 1e-6),
)


class Way(NamedTuple):
    """One way to an epsilon.

    Attributes:
      name: for readers.
      epsilon: of a setting.
      note: what kind of number it is, where it is not an upper bound.
    """

    name: str
    epsilon: Callable[[Setting], float]
    note: str = ""


def single_ways() -> Iterator[Way]:
    """Yields what answers for one setting; prv-accountant only where it is installed."""
    for method in accounting.accountants.METHODS:
        note = _APPROXIMATION if method == "gdp_clt" else ""
        yield Way(f"dpjax, {method}", functools.partial(_by_event, method), note)
    yield Way("dpjax, both ends", _lower_end, "the lower end of the bracket, no guarantee")
    yield Way(
        "dpjax, moments_accountant.epsilon",
        lambda setting: moments_accountant.compute_epsilon(*setting[1:]),
    )
    yield Way("dp-accounting, PLDAccountant", functools.partial(_by_dp_accounting, PLDAccountant))
    yield Way("dp-accounting, RdpAccountant", functools.partial(_by_dp_accounting, RdpAccountant))
    if not why_missing(PRV):
        for error in (0.1, 0.02):
            name = f"prv-accountant, error {error:g}"
            yield Way(name, functools.partial(_by_prv, error), "the upper end of its interval")


class ManyWay(NamedTuple):
    """One way to many epsilons.

    Attributes:
      name: for readers.
      epsilons: of noise multipliers, sampling rates and numbers of steps, at delta 1e-5.
      num_settings: in one call.
    """

    name: str
    epsilons: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    num_settings: int


def many_ways() -> Iterator[ManyWay]:
    """Yields what answers for many settings; accountants without arrays are called for each."""
    yield ManyWay("dpjax, moments_accountant.epsilon, one call", _moments_at_once, 1_000)
    yield ManyWay("dpjax, gdp.clt_mu and gdp.epsilon", _clt_at_once, 1_000)
    yield ManyWay("dp-accounting, RdpAccountant, one by one", np.vectorize(_rdp_of_one), 20)


def many_settings(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns noise multipliers from 0.5 to 5, rates from 1e-4 to 0.1 and steps from 10 to 1e5."""
    random = np.random.default_rng(0)
    noise = np.exp(random.uniform(np.log(0.5), np.log(5), number))
    rate = np.exp(random.uniform(np.log(1e-4), np.log(0.1), number))
    return noise, rate, np.round(np.exp(random.uniform(np.log(10), np.log(1e5), number)))


def _moments_at_once(noise: np.ndarray, rate: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return moments_accountant.compute_epsilon(noise, rate, steps, 1e-5)


def _clt_at_once(noise: np.ndarray, rate: np.ndarray, steps: np.ndarray) -> np.ndarray:
    return gdp.epsilon(gdp.clt_mu(noise, rate, steps), 1e-5)


def _rdp_of_one(noise: float, rate: float, steps: float) -> float:
    return _by_dp_accounting(RdpAccountant, Setting("", noise, rate, int(steps)))


def _lower_end(setting: Setting) -> float:
    bracket = accounting.epsilon_bounds(setting.event, setting.delta, adjacency="add_remove")
    return bracket.lower


def _by_event(method: str, setting: Setting) -> float:
    return accounting.epsilon(setting.event, setting.delta, adjacency="add_remove", method=method)


def _by_dp_accounting(
    accountant: type[PLDAccountant] | type[RdpAccountant], setting: Setting
) -> float:
    return accountant().compose(setting.event).get_epsilon(setting.delta)


def _by_prv(error: float, setting: Setting) -> float:
    prv = importlib.import_module(PRV)
    step = prv.PoissonSubsampledGaussianMechanism(
        sampling_probability=setting.sampling_rate, noise_multiplier=setting.noise_multiplier
    )
    accountant = prv.PRVAccountant(
        prvs=[step],
        max_self_compositions=[setting.num_steps],
        eps_error=error,
        delta_error=setting.delta / 1_000,
    )
    return accountant.compute_epsilon(setting.delta, [setting.num_steps])[2]
