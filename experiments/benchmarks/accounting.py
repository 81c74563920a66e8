"""Time and tightness of accountants of dpjax and of other libraries, called as users would."""

import functools
import importlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from absl import logging
from dp_accounting import dp_event
from dp_accounting.pld import PLDAccountant
from dp_accounting.rdp import RdpAccountant

from dpjax import accounting
from dpjax.accounting import gdp, moments_accountant
from dpjax.accounting.accountants import guarantee
from experiments.benchmarks.methods import why_missing
from experiments.benchmarks.results import Group, Groups, Values
from experiments.benchmarks.timing import Case, Effort, Times

PRV, MANY = "prv_accountant", "many settings"
_EFFORT = Effort(seconds=1.0, repetitions=10)


class Setting(NamedTuple):
    """A published run: Poisson-sampled Gaussian steps under add/remove, at one delta."""

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


class Method(NamedTuple):
    """One accountant, and how it is called.

    Attributes:
      name: for readers.
      epsilon: of a setting.
      note: what kind of number it is, where it is not an upper bound.
    """

    name: str
    epsilon: Callable[[Setting], float]
    note: str = ""


def single_methods() -> Iterator[Method]:
    """Yields the accountants of one setting; prv-accountant only where it is installed."""
    for name in accounting.accountants.METHODS:
        note = "an approximation, no guarantee" if name == "gdp_clt" else ""
        yield Method(f"dpjax, {name}", functools.partial(_by_dpjax, name), note)
    yield Method(
        "dpjax, both ends",
        lambda s: accounting.epsilon_bounds(s.event, s.delta, adjacency="add_remove").lower,
        "the lower end of the bracket, no guarantee",
    )
    yield Method(
        "dpjax, moments_accountant.epsilon",
        lambda setting: moments_accountant.compute_epsilon(*setting[1:]),
    )
    for accountant in (PLDAccountant, RdpAccountant):
        name = f"dp-accounting, {accountant.__name__}"
        yield Method(name, functools.partial(_by_dp_accounting, accountant))
    for error in () if why_missing(PRV) else (0.1, 0.02):
        name = f"prv-accountant, error {error:g}"
        yield Method(name, functools.partial(_by_prv, error), "the upper end of its interval")


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


class ManyMethod(NamedTuple):
    """One accountant of many settings.

    Attributes:
      name: for readers.
      epsilons: of noise multipliers, sampling rates and numbers of steps, at delta 1e-5.
      num_settings: in one call.
    """

    name: str
    epsilons: Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]
    num_settings: int


def many_methods() -> Iterator[ManyMethod]:
    """Yields the accountants of many settings; those without arrays are called for each."""
    yield ManyMethod(
        "dpjax, moments_accountant.epsilon, one call",
        lambda noise, rate, steps: moments_accountant.compute_epsilon(noise, rate, steps, 1e-5),
        1_000,
    )
    yield ManyMethod(
        "dpjax, gdp.clt_mu and gdp.epsilon",
        lambda noise, rate, steps: gdp.epsilon(gdp.clt_mu(noise, rate, steps), 1e-5),
        1_000,
    )

    def rdp_epsilon(noise: float, rate: float, steps: float) -> float:
        return _by_dp_accounting(RdpAccountant, Setting("", noise, rate, int(steps)))

    name = "dp-accounting, RdpAccountant, one by one"
    yield ManyMethod(name, np.vectorize(rdp_epsilon), 20)


def many_settings(number: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns noise multipliers from 0.5 to 5, rates from 1e-4 to 0.1 and steps from 10 to 1e5."""
    random = np.random.default_rng(0)
    noise = np.exp(random.uniform(np.log(0.5), np.log(5), number))
    rate = np.exp(random.uniform(np.log(1e-4), np.log(0.1), number))
    return noise, rate, np.round(np.exp(random.uniform(np.log(10), np.log(1e5), number)))


def accounting_groups() -> Groups:
    """Yields every setting by itself, and many settings in one call."""
    logging.set_verbosity(logging.ERROR)  # of the orders that dp-accounting leaves out
    for setting in SETTINGS:
        yield setting.name, functools.partial(single_group, setting)
    yield MANY, many_group


def single_group(setting: Setting, methods: Sequence[Method] | None = None) -> Group:
    """Returns the epsilon of one setting by every method, and the time of an answer."""
    methods = methods or tuple(single_methods())
    certified, noise = setting.certified, setting.noise_multiplier

    def case(method: Method) -> Case:
        epsilon = method.epsilon(setting)
        values = {"ε": epsilon, "× certified": epsilon / certified}
        seconds = _timed(lambda x: method.epsilon(setting._replace(noise_multiplier=x)), noise)
        return Case(method.name, seconds, values, method.note)

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        return {"ms": times[case.name].median, **case.values}

    return Group("accountant", setting.name, [case(m) for m in methods], columns, _EFFORT)


def many_group(methods: Sequence[ManyMethod] | None = None) -> Group:
    """Returns the time of the epsilons of many settings by every method."""
    methods = methods or tuple(many_methods())

    def case(method: ManyMethod) -> Case:
        noise, rate, steps = many_settings(method.num_settings)
        seconds = _timed(lambda x: method.epsilons(x, rate, steps), noise)
        return Case(method.name, seconds, {"settings": method.num_settings})

    def columns(case: Case, times: Mapping[str, Times]) -> Values:
        median = times[case.name].median
        return {**case.values, "ms": median, "ms a setting": median / case.values["settings"]}

    return Group("accountant", MANY, [case(m) for m in methods], columns, _EFFORT)


def _timed(solve: Callable[[Any], Any], noise: Any) -> Callable[[], float]:
    """Times ``solve`` of the noise times a factor next to 1, another each time, against caches."""
    factors = (1 + 1e-9 * number for number in count(1))

    def seconds() -> float:
        question = noise * next(factors)
        start = time.perf_counter()
        solve(question)
        return time.perf_counter() - start

    return seconds
