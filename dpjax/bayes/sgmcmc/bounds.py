"""Published bounds on the step size of private SGLD, as printed. Neither is what is certified."""

import math
from typing import Any

import numpy as np

from dpjax._validation import check, check_count, check_delta, check_positive
from dpjax.bayes.sgmcmc.schedules import Floats


def step_size_bound_2015(
    epsilon: float, delta: float, *, num_data: int, num_steps: int, l2_clip: float
) -> float:
    """The bound ``epsilon^2 N / (128 T L^2 log(2.5 T / delta) log(2 / delta))`` on the step size.

    What it does not guarantee: it knows neither the batch size nor the temperature, on both of
    which the privacy of a chain depends, so no epsilon is certified by it. It comes from strong
    composition and is mostly far too strict: at N = 50,000, T = 10,000, L = 4, delta = 1e-5 and
    epsilon = 0.1 it allows 9.2e-8, where with batches of 1,000 steps of 3.3e-4 are certified with
    the printed noise ``eta / N``, and of 6.6e-4 with that of the true posterior. What a chain
    really guarantees says its ``certificate``; the largest step for a target,
    `certified_step_size`.

    Args:
      epsilon: what is claimed.
      delta: in (0, 1).
      num_data: N.
      num_steps: T.
      l2_clip: L, the bound on a gradient's norm.

    Source: Wang, Fienberg, Smola (2015), as the slides of Li, Chen, Liu (2017) print it.

    >>> f"{step_size_bound_2015(0.1, 1e-5, num_data=50_000, num_steps=10_000, l2_clip=4.0):.1e}"
    '9.2e-08'
    """
    _check(epsilon, delta, num_data, num_steps, l2_clip)
    logs = math.log(2.5 * num_steps / delta) * math.log(2 / delta)
    return epsilon**2 * num_data / (128 * num_steps * l2_clip**2 * logs)


def step_size_bound_slides(
    step: Any,
    epsilon: float,
    delta: float,
    *,
    num_data: int,
    num_steps: int,
    l2_clip: float,
    constant: float,
) -> Floats:
    """The bound ``epsilon^2 N t^(-1/3) / (c^2 T^(2/3) L^2 log(1 / delta))`` on step number t.

    What it does not guarantee: **the claimed epsilon does not hold.** The printed value is 0.106 at
    N = 50,000, T = 10,000, L = 4, delta = 1e-5, epsilon = 0.1; a step size of 0.1 is certified at
    1.58 with batches of 1,000 and noise ``2 eta / N``, at 36 with batches of 100 and the printed
    noise, and at no batch size below 1.5. The constant c is said to depend on N, L, T, epsilon and
    delta, and is not given. What a chain really guarantees says its ``certificate``; the largest
    step for a target, `certified_step_size`.

    Args:
      step: t = 1, 2, ...: a number or an array.
      epsilon: what is claimed.
      delta: in (0, 1).
      num_data: N.
      num_steps: T.
      l2_clip: L, the bound on a gradient's norm.
      constant: c.

    Returns:
      Shaped like ``step``.

    Source: the slides of Li, Chen, Liu (2017), "Our results".

    >>> float(step_size_bound_slides(8, 0.1, 1e-5, num_data=50_000, num_steps=10_000, l2_clip=4.0,
    ...                              constant=0.235))
    0.053
    """
    _check(epsilon, delta, num_data, num_steps, l2_clip)
    check_positive("constant", constant)
    step = np.asarray(step, np.float64)
    check(bool((step >= 1).all()), "step", step, "at least 1: steps are counted from one")
    scale = epsilon**2 * num_data / (constant**2 * num_steps ** (2 / 3) * l2_clip**2)
    return np.asarray(scale / math.log(1 / delta) * step ** (-1 / 3))


def _check(epsilon: float, delta: float, num_data: int, num_steps: int, l2_clip: float) -> None:
    check_positive("epsilon", epsilon)
    check_delta(delta)
    check_count("num_data", num_data)
    check_count("num_steps", num_steps)
    check_positive("l2_clip", l2_clip)
