"""Time and tightness of the accountants of dpjax and of other libraries."""

import functools
import importlib
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import accounting
from dpjax.accounting import gdp, log_moments
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import decompose
from experiments.benchmarks.methods import import_error
from experiments.benchmarks.results import Group, Groups, Values, median_values
from experiments.benchmarks.timing import Case, Effort, Times, blocking

PRV, _PRV_NAME, MANY = "prv_accountant", "prv-accountant", "many settings"
# Notes on values that are not certified upper bounds on epsilon.
_NOTES = {
    "dpjax, gdp_clt": "an approximation, not a bound",
    "dpjax, both ends": "a lower bound",
    _PRV_NAME: "upper bound of its interval",
}
_EFFORT = Effort(seconds=1.0, repetitions=10)


class Setting(NamedTuple):
    """A published run: Poisson-subsampled Gaussian steps under add/remove, and delta."""

    name: str
    noise_multiplier: float
    sampling_rate: float
    num_steps: int
    delta: float = 1e-5

    @property
    def event(self) -> dp_event.DpEvent:
        """The run as a dp-accounting event."""
        step = dp_event.PoissonSampledDpEvent(
            self.sampling_rate, dp_event.GaussianDpEvent(self.noise_multiplier)
        )
        return dp_event.SelfComposedDpEvent(step, self.num_steps)

    @property
    def certified(self) -> float:
        """The certified epsilon."""
        return certified_epsilon(decompose(self.event, "add_remove"), self.delta)[1]


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


Accountant = Callable[[Setting], float]
ArrayAccountant = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def single_methods() -> dict[str, Accountant]:
    """Returns the accountants of one setting, with prv-accountant if it is installed."""
    methods: dict[str, Accountant] = {
        f"dpjax, {name}": functools.partial(_by_dpjax, name)
        for name in accounting.accountants.METHODS
    }
    methods |= {
        "dpjax, both ends": lambda s: (
            accounting.epsilon_bounds(s.event, s.delta, adjacency="add_remove").lower
        ),
        "dpjax, moments_accountant.epsilon": lambda s: log_moments.compute_epsilon(
            s.noise_multiplier, s.sampling_rate, s.num_steps, s.delta
        ),
        "dp-accounting, PLDAccountant": functools.partial(_by_dp_accounting, PLDAccountant),
        "dp-accounting, RdpAccountant": functools.partial(_by_dp_accounting, RdpAccountant),
    }
    for error in () if import_error(PRV) else (0.1, 0.02):
        methods[f"{_PRV_NAME}, error {error:g}"] = functools.partial(_by_prv, error)
    return methods


def _by_dpjax(method: str, setting: Setting) -> float:
    return accounting.epsilon(setting.event, setting.delta, adjacency="add_remove", method=method)


def _by_dp_accounting(accountant: Any, setting: Setting) -> float:
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


def array_methods() -> dict[str, tuple[ArrayAccountant, int]]:
    """Returns accountants of arrays of settings at delta 1e-5, and the array size of a call."""

    def rdp_epsilon(noise: float, rate: float, steps: float) -> float:
        return _by_dp_accounting(RdpAccountant, Setting("", noise, rate, int(steps)))

    return {
        "dpjax, moments_accountant.epsilon, one call": (
            lambda noise, rate, steps: log_moments.compute_epsilon(noise, rate, steps, 1e-5),
            1_000,
        ),
        "dpjax, gdp.poisson_clt_mu and gdp.epsilon": (
            lambda noise, rate, steps: gdp.epsilon(gdp.poisson_clt_mu(noise, rate, steps), 1e-5),
            1_000,
        ),
        "dp-accounting, RdpAccountant, one by one": (np.vectorize(rdp_epsilon), 20),
    }


def random_settings(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns noise multipliers from 0.5 to 5, rates from 1e-4 to 0.1 and steps from 10 to 1e5."""
    random = np.random.default_rng(0)
    noise = np.exp(random.uniform(np.log(0.5), np.log(5), number))
    rate = np.exp(random.uniform(np.log(1e-4), np.log(0.1), number))
    return noise, rate, np.round(np.exp(random.uniform(np.log(10), np.log(1e5), number)))


def accounting_groups() -> Groups:
    """Yields a group for each setting, and one for many settings in one call."""
    logging.set_verbosity(logging.ERROR)  # silences warnings on omitted orders
    for setting in SETTINGS:
        yield setting.name, functools.partial(single_group, setting, single_methods())
    yield MANY, lambda: many_group(array_methods())


def single_group(setting: Setting, methods: Mapping[str, Accountant]) -> Group:
    """Returns epsilon and run time of every method on one setting."""
    certified, noise = setting.certified, setting.noise_multiplier

    def case(name: str, solve: Accountant) -> Case:
        epsilon = solve(setting)
        seconds = _timed(lambda x: solve(setting._replace(noise_multiplier=x)), noise)
        note = _NOTES.get(name.partition(", error")[0], "")
        return Case(name, seconds, {"ε": epsilon, "× certified": epsilon / certified}, note)

    cases = [case(*method) for method in methods.items()]
    return Group("accountant", setting.name, cases, median_values, _EFFORT)


def many_group(methods: Mapping[str, tuple[ArrayAccountant, int]]) -> Group:
    """Returns the run time of every method on many settings."""

    def case(name: str, solve: ArrayAccountant, size: int) -> Case:
        noise, rate, steps = random_settings(size)
        return Case(name, _timed(lambda x: solve(x, rate, steps), noise), {"settings": size})

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        median = times[case.name].median
        return {**case.values, "ms": median, "ms a setting": median / case.values["settings"]}

    cases = [case(name, *method) for name, method in methods.items()]
    return Group("accountant", MANY, cases, columns, _EFFORT)


def _timed(solve: Callable[[Any], Any], noise: Any) -> Callable[[], float]:
    """Times ``solve`` with a slightly different noise at each call, to avoid caches."""
    factors = (1 + 1e-9 * number for number in count(1))
    return lambda: blocking(solve, noise * next(factors))()
