"""Step-size schedules: functions of the step's number that a description can hold and compare."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax._validation import check, check_count, check_positive

Floats = npt.NDArray[np.float64]
# A number, one number for each step, or a function of the step's number 0, 1, ...
StepSize = float | tuple[float, ...] | Callable[[Any], Any]


@dataclass(frozen=True)
class Decreasing:
    """Steps that shrink as a power of their number: ``first * t ** -exponent``, t = 1, 2, ...

    Attributes:
      first: the size of the first step.
      exponent: in [0, 1]; 1/3 is the slides' and loses least of a chain's accuracy.

    Source: Teh, Thiery, Vollmer (2016) for the exponent 1/3.

    >>> schedule = Decreasing(0.1)
    >>> round(float(schedule(0)), 3), round(float(schedule(7)), 3)
    (0.1, 0.05)
    """

    first: float
    exponent: float = 1 / 3

    def __post_init__(self) -> None:
        check_positive("first", self.first)
        check(0 <= self.exponent <= 1, "exponent", self.exponent, "in [0, 1]")

    def __call__(self, step: Any) -> jax.Array:
        """Returns the size of step number ``step``, counted from zero."""
        return self.first * (jnp.asarray(step, float) + 1) ** -self.exponent


@dataclass(frozen=True)
class Cyclical:
    """Steps that fall along half a cosine from ``largest``, again and again.

    Attributes:
      largest: the size of the first step of each cycle.
      period: steps in a cycle.

    Source: Zhang, Li, Zhang, Chen, Wilson (2020), equation 1.

    >>> schedule = Cyclical(0.1, period=4)
    >>> [round(float(schedule(step)), 3) for step in range(5)]
    [0.1, 0.085, 0.05, 0.015, 0.1]
    """

    largest: float
    period: int

    def __post_init__(self) -> None:
        check_positive("largest", self.largest)
        check_count("period", self.period)

    def __call__(self, step: Any) -> jax.Array:
        """Returns the size of step number ``step``, counted from zero."""
        phase = jnp.asarray(jnp.asarray(step) % self.period, float) / self.period
        return self.largest * (jnp.cos(math.pi * phase) + 1) / 2


def each_step_size(step_size: StepSize, num_steps: int) -> Floats:
    """Returns the sizes of all steps, ``(num_steps,)``.

    Raises:
      ValueError: for a size that is not a finite number above zero, or a tuple of another length.
    """
    if callable(step_size):
        sizes = _evaluated(step_size, num_steps)
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


def as_schedule(step_size: StepSize) -> Callable[[Any], Any]:
    """Returns a function of the (traced) step number: of a tuple, its entry."""
    if callable(step_size):
        return step_size
    sizes = jnp.asarray(step_size, float)
    return lambda step: sizes[jnp.minimum(step, sizes.size - 1)] if sizes.ndim else sizes


def _evaluated(schedule: Callable[[Any], Any], num_steps: int) -> Floats:
    with jax.ensure_compile_time_eval():  # numbers, also where a description is made under jit
        steps = jnp.arange(num_steps, dtype=jnp.int32)
        sizes = jax.vmap(lambda step: jnp.asarray(schedule(step), float))(steps)
        return np.asarray(sizes, np.float64)
