"""Step-size schedules of SG-MCMC: hashable functions of the step's number."""

import math
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._checks import check, check_count, check_positive, check_share
from dpjax._typing import Numeric

Floats = npt.NDArray[np.float64]
# A function of the step number 0, 1, ..., which may be traced.
Schedule = Callable[[Any], Any]
# A number, one number for each step, or a schedule.
StepSize = float | tuple[float, ...] | Schedule


@dataclass(frozen=True)
class PolynomialDecay:
    """Polynomially decreasing step sizes ``initial * t ** -exponent``, t = 1, 2, ...

    Attributes:
      initial: size of the first step.
      exponent: in [0, 1]; 1/3 has the best rate of convergence of the posterior mean.

    Raises:
      ValueError: a number out of range.

    Source: Teh, Thiery & Vollmer (2016), for the exponent 1/3.

    >>> schedule = PolynomialDecay(0.1)
    >>> round(float(schedule(0)), 3), round(float(schedule(7)), 3)
    (0.1, 0.05)
    """

    initial: float
    _: KW_ONLY
    exponent: float = 1 / 3

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_share("exponent", self.exponent)

    def __call__(self, step: Numeric) -> jax.Array:
        """Returns the size of step number ``step`` = 0, 1, ..., which may be traced."""
        return self.initial * (jnp.asarray(step, float) + 1) ** -self.exponent


@dataclass(frozen=True)
class CyclicalCosine:
    """Cyclical cosine step sizes: each cycle decreases from ``initial`` along half a cosine.

    Attributes:
      initial: size of the first step of each cycle.
      period: number of steps of a cycle.

    Raises:
      ValueError: a number out of range.

    Source: Zhang, Li, Zhang, Chen & Wilson (2020), equation 1.

    >>> schedule = CyclicalCosine(0.1, period=4)
    >>> [round(float(schedule(step)), 3) for step in range(5)]
    [0.1, 0.085, 0.05, 0.015, 0.1]
    """

    initial: float
    _: KW_ONLY
    period: int

    def __post_init__(self) -> None:
        check_positive("initial", self.initial)
        check_count("period", self.period)

    def __call__(self, step: Numeric) -> jax.Array:
        """Returns the size of step number ``step`` = 0, 1, ..., which may be traced."""
        phase = jnp.asarray(jnp.asarray(step) % self.period, float) / self.period
        return self.initial * (jnp.cos(math.pi * phase) + 1) / 2


def evaluate_step_sizes(step_size: StepSize, num_steps: int) -> Floats:
    """Returns the step sizes ``(num_steps,)``, in float64.

    Raises:
      ValueError: a size that is not a finite number above zero, or a tuple of another length.
    """
    if callable(step_size):
        with jax.ensure_compile_time_eval():  # concrete numbers, also when called under jit
            steps = jnp.arange(num_steps, dtype=jnp.int32)
            traced = jax.vmap(lambda step: jnp.asarray(step_size(step), float))(steps)
            sizes = np.asarray(traced, np.float64)
    elif isinstance(step_size, tuple):
        wanted = f"a number, a schedule, or a tuple of num_steps = {num_steps} numbers"
        check(len(step_size) == num_steps, "step_size", f"{len(step_size)} values", wanted)
        sizes = np.asarray(step_size, np.float64)
    else:
        check_positive("step_size", step_size)
        sizes = np.full(num_steps, step_size, np.float64)
    for size in (sizes.min(), sizes.max()):
        check_positive("step_size", float(size))
    return sizes


def as_schedule(step_size: StepSize) -> Schedule:
    """Returns a function of the (traced) step number: of a tuple, its entry."""
    if callable(step_size):
        return step_size
    sizes = jnp.asarray(step_size, float)
    return lambda step: sizes[jnp.minimum(step, sizes.size - 1)] if sizes.ndim else sizes
