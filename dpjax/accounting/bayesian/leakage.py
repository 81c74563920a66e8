"""What the statistics of an estimate tell of the draws they are made of.

An account is computed from data: from the mean M and the standard deviation S of N draws, one of
them a record's. So it tells something of that record itself, which the account does not count. The
source bounds it *under an assumption*: that M and S vary from sample to sample as those of N
normal draws do, with the mean and the variance of this sample. Then M is normal with the variance
S^2 / N, N S^2 is a scaled chi-square with N - 1 degrees of freedom, and both are independent. The
samples vary by chance, though; nothing is added to them. **Without the assumption nothing is
bounded**: whoever knows the other N - 1 draws reads the last one off M exactly. An account is
therefore best kept from the public, or released with noise of its own.

Draws, widths and standard deviations are in one unit, whichever it is.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from dpjax._validation import check_count
from dpjax.accounting.bayesian.divergences import (
    check_finite,
    check_scales,
    diagonal_gaussian,
)

Array = npt.NDArray[np.float64]


def mean_leakage(
    orders: Sequence[int],
    num_draws: int,
    shift: npt.ArrayLike,
    std: npt.ArrayLike,
    other_std: npt.ArrayLike,
) -> Array:
    """Returns the log moments of two means of ``num_draws`` draws, of which one draw differs.

    It holds under the assumption that both means are normal: see this module.

    Args:
      orders: whole numbers lambda >= 1.
      num_draws: N, at least 2.
      shift: how much larger the one draw is; the means differ by ``shift / num_draws``.
      std: the first sample's standard deviation, > 0, of single draws.
      other_std: the second's; the three arrays broadcast.

    Returns:
      Numbers >= 0 or infinity, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    Source: Section 4.4.3 of Triastcyn, Faltings 2020; Gil, Alajaji, Linder 2013, Table 2.

    >>> mean_leakage((1, 2), num_draws=100, shift=5.0, std=1.0, other_std=1.0)
    array([0.25, 0.75])
    """
    check_count("num_draws", num_draws, 2)
    moved = check_finite("shift", shift) / np.sqrt(num_draws)
    return _of_one_normal(orders, moved, std, other_std)


def variance_leakage(
    orders: Sequence[int], num_draws: int, std: npt.ArrayLike, other_std: npt.ArrayLike
) -> Array:
    """Returns the log moments of two variances of ``num_draws`` draws with these expectations.

    It holds under the assumption that both are scaled chi-squares: see this module. Their
    divergence is that of the N - 1 normal numbers whose squares they add up.

    Args:
      orders: whole numbers lambda >= 1.
      num_draws: N, at least 2.
      std: the first sample's standard deviation, > 0.
      other_std: the second's; the two arrays broadcast.

    Returns:
      Numbers >= 0 or infinity, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    Source: Section 4.4.3 of Triastcyn, Faltings 2020; Gil, Alajaji, Linder 2013, Table 2.

    >>> variance_leakage((1, 4), num_draws=101, std=1.0, other_std=1.05)
    array([0.4340..., ...])
    """
    check_count("num_draws", num_draws, 2)
    return (num_draws - 1) * _of_one_normal(orders, 0.0, std, other_std)


def statistics_leakage(
    orders: Sequence[int], num_draws: int, width: npt.ArrayLike, std: npt.ArrayLike
) -> Array:
    """Returns the log moments of mean and variance together, at the worst replaced draw.

    All draws are in a range of the given ``width``, as clipping has it. So the mean moves by at
    most width / N, the variance by (N - 1) width^2 / N^2, and the worst is at an end of both, in
    either direction. It is infinite while one draw can be all of the variance, or most of it, and
    falls as 1 / N in the end. It holds under the assumption that the draws are normal, see this
    module, and for the statistics of one step.

    Args:
      orders: whole numbers lambda >= 1.
      num_draws: N, at least 2.
      width: of the range of a draw, > 0.
      std: the sample's standard deviation, > 0; the two arrays broadcast.

    Returns:
      Numbers >= 0 or infinity, orders on a last axis behind those of the arrays.

    Raises:
      ValueError: an argument is out of range.

    Source: Section 4.4.3 of Triastcyn, Faltings 2020.

    >>> statistics_leakage((1, 4), num_draws=10_000, width=5.0, std=1.0)
    array([0.0339..., 0.3409...])
    """
    check_count("num_draws", num_draws, 2)
    reach = check_scales("width", width) / check_scales("std", std)
    change = np.square(reach) * (num_draws - 1) / num_draws**2
    one, wide = np.ones_like(reach), np.sqrt(1 + change)
    narrow = np.sqrt(np.where(change < 1, 1 - change, 1.0))
    cases = [
        mean_leakage(orders, num_draws, reach, first, second)
        + variance_leakage(orders, num_draws, first, second)
        for first, second in ((one, narrow), (narrow, one), (one, wide), (wide, one))
    ]
    return np.where((change < 1)[..., None], np.max(cases, axis=0), np.inf)


def _of_one_normal(
    orders: Sequence[int], shift: npt.ArrayLike, std: npt.ArrayLike, other_std: npt.ArrayLike
) -> Array:
    first, second = check_scales("std", std), check_scales("other_std", other_std)
    moved, zero = np.asarray(shift, float)[..., None], np.zeros(1)
    return diagonal_gaussian(orders, zero, first[..., None], moved, second[..., None])
