"""The Bayesian accountant: what a mechanism costs a record that is drawn like the data.

With x' the record that neighbours differ in, drawn from the data's distribution, and L the privacy
loss, E[exp(lambda L)] of T steps is at most the product over the steps t of
E_x'[exp(T lambda D_t)]^(1/T), where D_t is the step's Rényi divergence of order lambda + 1 for that
x' (Theorem 1: Hölder, because x' is the same in every step). The logarithm of a step's factor is
its cost; costs add up, and turn into epsilon by Chernoff's bound (Corollary 1).

The distribution of x' is unknown: each factor is estimated from draws of x', by an estimator that
overestimates with probability 1 - gamma under an assumption of its own (see ``estimators``), and
gamma is added to delta. Everything is float64 on the host: float32 under-reports by a quarter at a
sampling rate of 1e-3.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from dpjax._validation import check, check_choice, check_count, check_delta
from dpjax.accounting.bayesian import estimators
from dpjax.accounting.bayesian.releases import release_of
from dpjax.mechanisms.base import Mechanism

Array = npt.NDArray[np.float64]
Estimator = Literal["student", "empirical_bernstein"]

ORDERS = tuple(range(1, 33))
# Draws of so many steps at a time: their log moments stay in the caches.
_CHUNK_ENTRIES = 2**19


@dataclass(frozen=True, eq=False)
class Account:
    """What has been spent so far. `init` makes one, `update` returns the next.

    Attributes:
      mechanism: what runs. Its ``num_releases`` is the T of Theorem 1, fixed in advance: with a
        larger T every step costs more, and a run that stops early has paid for the steps it left.
      orders: the lambdas.
      failure_probability: gamma, of each step's estimator.
      estimator: ``"student"`` (Theorem 4) or ``"empirical_bernstein"`` (no assumption on the
        distribution but the clip bound).
      costs: the sum of the steps' costs at each of ``orders``, float64. **Private values.**
      num_done: how many steps are in it.
    """

    mechanism: Mechanism
    orders: tuple[int, ...]
    failure_probability: float
    estimator: Estimator
    costs: Array
    num_done: int = 0

    @property
    def failure(self) -> float:
        """The probability that some estimate was too small: 1 - (1 - gamma)^(steps x orders).

        All orders count, since the best is chosen afterwards. It is what the estimator states, and
        true where its assumption is (see `estimators.student`).
        """
        num_estimates = self.num_done * len(self.orders)
        return -math.expm1(num_estimates * math.log1p(-self.failure_probability))

    @property
    def as_run(self) -> Mechanism:
        """The mechanism stopped after the steps that were counted."""
        if self.num_done == self.mechanism.num_releases:
            return self.mechanism
        prefix = getattr(self.mechanism, "prefix", None)
        if prefix is None or self.num_done == 0:
            planned = self.mechanism.num_releases
            raise ValueError(
                f"account must hold all {planned} releases of its {type(self.mechanism).__name__}"
                f" (or at least one step of a mechanism that runs in steps), got {self.num_done}"
            )
        return prefix(self.num_done)


def init(
    mechanism: Mechanism,
    *,
    orders: Sequence[int] = ORDERS,
    failure_probability: float = 1e-17,
    estimator: Estimator = "student",
) -> Account:
    """Returns the account of a mechanism that has not run yet.

    Args:
      mechanism: what will run; the planned number of steps is its ``num_releases``.
      orders: lambdas to try, whole numbers of at least 1. The best is chosen afterwards, and that
        favours orders at which the estimate is too small; one order fixed in advance does not.
      failure_probability: gamma: the less, the larger each estimate (by Student's quantile), and
        the less is added to delta, gamma for each step and order.
      estimator: see `Account`.

    Raises:
      ValueError: an argument is out of range.

    >>> from dpjax import PoissonSampling, SubsampledGaussian
    >>> sampling = PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = SubsampledGaussian(sampling, 1.0, 1.1, 2, "add_remove", "one image")
    >>> account = init(mechanism)
    >>> account = update(account, np.full((2, 256), 0.3))  # the norms of two batches
    >>> account.num_done, bool(np.all(account.costs > 0))
    (2, True)
    """
    check(isinstance(mechanism, Mechanism), "mechanism", mechanism, "a dpjax Mechanism")
    whole = len(orders) > 0 and all(isinstance(o, int | np.integer) and o >= 1 for o in orders)
    check(whole, "orders", orders, "whole numbers >= 1, one at least")
    check_delta(failure_probability, "failure_probability")
    check_choice("estimator", estimator, get_args(Estimator))
    return Account(
        mechanism, tuple(map(int, orders)), failure_probability, estimator, np.zeros(len(orders))
    )


def update(account: Account, norms: Any, mask: Any = None) -> Account:
    """Counts steps of a Poisson-sampled Gaussian, from the norms that clipping has computed.

    The examples of a batch are taken as draws of x'. That they are: each is in the data, which are
    drawn from the distribution. Assumed: that they are independent of what was released before,
    although most were in earlier batches and the parameters remember them; and that the cost along
    the steps that were really taken stands for that of steps fixed in advance.

    Args:
      account: of a mechanism under add/remove that samples by `PoissonSampling`.
      norms: unclipped norms as `StepInfo.norms` has them, ``(steps, draws)``, or ``(draws,)`` for
        one step; with per-layer bounds a tree of such arrays. They are clipped here. A norm that
        is not finite counts as zero: such an example contributes nothing.
      mask: bool, which of them were drawn, of the same shape; by default all. `StepInfo.mask`
        belongs to padded batches: without it their empty slots would count as free records.

    Raises:
      ValueError: more steps than planned, another shape, or a mechanism that this does not fit:
        use `update_with` then.
    """
    release = release_of(account.mechanism)
    draws = release.contributions(norms)
    check(draws.ndim in (1, 2), "norms", draws.shape, "of shape (steps, draws) or (draws,)")
    usable = _as_mask(mask, draws.shape)
    draws, usable = np.atleast_2d(draws), np.atleast_2d(usable)
    start, num_steps = account.num_done, len(draws)
    _check_room(account, num_steps)
    rows = max(1, _CHUNK_ENTRIES // (max(1, draws.shape[1]) * len(account.orders)))

    def costs(first: int) -> Array:
        part = slice(first, first + rows)
        steps = np.arange(start + first, start + first + len(draws[part]))
        moments = release.log_moments(account.orders, draws[part], steps)
        bound = release.log_moments_at_bound(account.orders, steps)
        return _costs(account, moments, usable[part], bound)

    with ThreadPoolExecutor(os.cpu_count()) as pool:  # numpy leaves the interpreter's lock
        return _spent(account, np.concatenate(list(pool.map(costs, range(0, num_steps, rows)))))


def update_with(
    account: Account, log_moments: Any, mask: Any = None, *, log_moment_bound: Any = None
) -> Account:
    """Counts steps from any divergence: other mechanisms, pairs of records, pairs of batches.

    Args:
      account: whose steps these are.
      log_moments: lambda D_(lambda + 1) for each draw of x' (or of a pair) at each of the account's
        orders, ``(steps, draws, orders)``, or ``(draws, orders)`` for one step, which is how two
        axes are always read; see ``divergences``.
      mask: bool, which of the draws count, ``(steps, draws)`` or ``(draws,)``.
      log_moment_bound: at each order the largest that any record can have; none by default. The
        estimates are not above it.

    Raises:
      ValueError: more steps than planned, another shape, or negative or missing values.
    """
    moments = np.asarray(log_moments, float)
    shaped = moments.ndim in (2, 3) and moments.shape[-1] == len(account.orders)
    wanted = f"of shape (steps, draws, {len(account.orders)}) or (draws, {len(account.orders)})"
    check(shaped, "log_moments", moments.shape, wanted)
    check(bool(np.all(moments >= 0)), "log_moments", moments.min(initial=0), "numbers >= 0")
    usable = _as_mask(mask, moments.shape[:-1])
    if moments.ndim == 2:
        moments, usable = moments[None], usable[None]
    _check_room(account, len(moments))
    bound = _as_bound(log_moment_bound, moments, usable, len(account.orders))
    return _spent(account, _costs(account, moments, usable, bound))


def update_at_bound(account: Account, num_steps: int) -> Account:
    """Counts steps whose draws were lost, say in a crash, at what they cost the worst record."""
    check_count("num_steps", num_steps)
    _check_room(account, num_steps)
    steps = np.arange(account.num_done, account.num_done + num_steps)
    bound = release_of(account.mechanism).log_moments_at_bound(account.orders, steps)
    return _spent(account, np.broadcast_to(bound, (num_steps, len(account.orders))))


def _costs(account: Account, moments: Array, usable: npt.NDArray[np.bool_], bound: Array) -> Array:
    """Steps' costs by their estimates, which nothing makes larger than the worst record's."""
    planned, gamma = account.mechanism.num_releases, account.failure_probability
    worst = planned * bound
    if account.estimator == "student":
        estimates = estimators.student(planned * moments, gamma, usable)
    else:
        estimates = estimators.empirical_bernstein(planned * moments, gamma, worst, usable)
    estimates = np.where(np.isnan(estimates), np.inf, estimates)  # past a float's range
    return np.clip(estimates, 0.0, worst) / planned


def _spent(account: Account, costs: Array) -> Account:
    """The account after steps of these costs, ``(steps, orders)``."""
    total, num_done = account.costs + costs.sum(axis=0), account.num_done + len(costs)
    return dataclasses.replace(account, costs=total, num_done=num_done)


def _check_room(account: Account, num_steps: int) -> None:
    planned = account.mechanism.num_releases
    if account.num_done + num_steps > planned:
        raise ValueError(
            f"account must hold at most the planned {planned} steps (Theorem 1 fixes their number"
            f" in advance), got {num_steps} more after {account.num_done}"
        )


def _as_bound(value: Any, moments: Array, usable: npt.NDArray[np.bool_], num_orders: int) -> Array:
    """Returns the bound for each order, ``(1, orders)``, that no draw exceeds."""
    if value is None:
        return np.full((1, num_orders), np.inf)
    bound = np.broadcast_to(np.asarray(value, float), (1, num_orders))
    largest = np.max(moments, axis=(0, 1), initial=0.0, where=usable[..., None])
    allowed = f"at least the draws', {largest}"
    check(bool(np.all(bound >= largest * (1 - 1e-9))), "log_moment_bound", value, allowed)
    return bound


def _as_mask(mask: Any, shape: tuple[int, ...]) -> npt.NDArray[np.bool_]:
    if mask is None:
        return np.ones(shape, bool)
    mask = np.asarray(mask)
    fits = mask.dtype == bool and mask.shape == shape
    check(fits, "mask", f"{mask.dtype} of shape {mask.shape}", f"bool of shape {shape}")
    return mask
