"""The BDP accountant: accumulates the Bayesian privacy cost of the steps of a mechanism.

Let x' be the record in which two neighbouring data sets differ, drawn from the data distribution,
and L the privacy loss of T steps. E[exp(lambda L)] is at most the product over the steps t of
E_x'[exp(T lambda D_t)]^(1/T), where D_t is the Rényi divergence of order lambda + 1 of step t for
that x' (Triastcyn & Faltings 2020, Theorem 1, by Hölder's inequality: x' is the same in every
step). The logarithm of a step's factor is its cost. Costs add up over the steps and are converted
to epsilon by Chernoff's bound (Corollary 1).

The distribution of x' is unknown. Each factor is estimated from a sample of x' by an upper
confidence bound of level 1 - gamma, under an assumption (see ``estimators``), and the sum of the
gammas is added to delta. All arithmetic is float64 on the host: float32 underestimates the cost by
a quarter at a sampling rate of 1e-3.
"""

import dataclasses
import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

import jax
import numpy as np
import numpy.typing as npt

from dpjax._checks import (
    as_float64,
    as_mask,
    check,
    check_choice,
    check_count,
    check_delta,
    check_path,
    check_type,
)
from dpjax._files import to_npz, write_atomically
from dpjax._typing import ArrayTree, ClipBound
from dpjax.accounting.log_moments import gaussian_log_moments, subsampled_gaussian_log_moments
from dpjax.accounting.loss_distribution import Array
from dpjax.bdp import estimators
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.sampling.poisson import PoissonSampling

if TYPE_CHECKING:
    from dpjax.training._train import Report

Estimator = Literal["student", "empirical_bernstein"]

ORDERS = tuple(range(1, 33))
# Log moments are computed for this many entries at a time, to stay in the processor's cache.
_CHUNK_ENTRIES = 2**19


@dataclass(frozen=True, eq=False)
class AccountantState:
    """Accumulated BDP cost of a mechanism. `init` returns the first state, `update` the next.

    Attributes:
      mechanism: the mechanism. Its ``num_releases`` is the T of Theorem 1, fixed in advance: a
        larger T makes every step cost more, also in a run that stops early.
      orders: the orders lambda.
      failure_probability: gamma of each step's estimate.
      estimator: ``"student"`` (Triastcyn & Faltings 2020, Theorem 4) or ``"empirical_bernstein"``
        (Maurer & Pontil 2009; assumes nothing of the distribution but the clip bound).
      costs: sum of the steps' costs at each order, float64 ``(orders,)``. **Private values.**
      num_done: the number of steps accumulated.
    """

    mechanism: Mechanism
    orders: tuple[int, ...]
    failure_probability: float
    estimator: Estimator
    costs: Array
    num_done: int = 0

    @property
    def total_failure_probability(self) -> float:
        """Probability that some estimate is too small: 1 - (1 - gamma)^(steps x orders).

        All orders count, because the best one is chosen afterwards. It holds where the estimator's
        assumption does (see `estimators.student_upper_bound`).
        """
        num_estimates = self.num_done * len(self.orders)
        return -math.expm1(num_estimates * math.log1p(-self.failure_probability))

    @property
    def completed_mechanism(self) -> Mechanism:
        """The mechanism, truncated to the steps that were accumulated."""
        if self.num_done == self.mechanism.num_releases:
            return self.mechanism
        prefix = getattr(self.mechanism, "first_steps", None)
        if prefix is None or self.num_done == 0:
            planned = self.mechanism.num_releases
            raise ValueError(
                f"state must contain all {planned} releases of its {type(self.mechanism).__name__}"
                f" (or at least one step of a mechanism that runs in steps), got {self.num_done}"
            )
        return prefix(self.num_done)


def init(
    mechanism: Mechanism,
    *,
    orders: Sequence[int] = ORDERS,
    failure_probability: float = 1e-17,
    estimator: Estimator = "student",
) -> AccountantState:
    """Returns the accountant's state before the first step.

    Args:
      mechanism: what will run; the planned number of steps is its ``num_releases``.
      orders: orders lambda, integers of at least 1. The best is chosen after the run, which favours
        orders at which the estimate is too small; a single order fixed in advance avoids that.
      failure_probability: gamma, in (0, 1). A smaller gamma makes each estimate larger and adds
        less to delta: gamma for each step and order.
      estimator: see `AccountantState`.

    Raises:
      ValueError: an argument is out of range.

    >>> from dpjax import PoissonSampling, SubsampledGaussian
    >>> sampling = PoissonSampling(60_000, 256 / 60_000)
    >>> mechanism = SubsampledGaussian(
    ...     sampling, l2_clip=1.0, noise_multiplier=1.1, num_steps=2, adjacency="add_remove",
    ...     unit="one image"
    ... )
    >>> state = init(mechanism)
    >>> state = update(state, np.full((2, 256), 0.3))  # the gradient norms of two batches
    >>> state.num_done, bool(np.all(state.costs > 0))
    (2, True)
    """
    check(isinstance(mechanism, Mechanism), "mechanism", mechanism, "a dpjax Mechanism")
    check_type("orders", orders, list | tuple | range | np.ndarray, "whole numbers >= 1")
    whole = len(orders) > 0 and all(isinstance(o, int | np.integer) and o >= 1 for o in orders)
    check(whole, "orders", orders, "whole numbers >= 1, one at least")
    check_delta(failure_probability, "failure_probability")
    check_choice("estimator", estimator, get_args(Estimator))
    return AccountantState(
        mechanism, tuple(map(int, orders)), failure_probability, estimator, np.zeros(len(orders))
    )


def check_state(state: object) -> None:
    """Raises TypeError unless ``state`` is one of `init`, `update` and the like."""
    check_type("state", state, AccountantState, "an AccountantState")


def update(
    state: AccountantState, norms: ArrayTree, mask: npt.ArrayLike | None = None
) -> AccountantState:
    """Adds steps of a Poisson-subsampled Gaussian, from the per-example gradient norms.

    The examples of a batch are the sample of x'. They are drawn from the data distribution, since
    the data are. Two assumptions remain: that they are independent of earlier releases, although
    most were in earlier batches, and that the cost along the steps that were taken is that of steps
    fixed in advance.

    Args:
      state: of a mechanism with `PoissonSampling` under add/remove or zero-out.
      norms: unclipped norms as in `StepInfo.norms`, ``(steps, draws)``, or ``(draws,)`` for one
        step; with per-layer clip bounds a tree of such arrays. They are clipped here. A norm that
        is not finite counts as zero, because such an example contributes nothing.
      mask: bool, of the same shape: which entries are drawn examples; all by default. Padded
        batches need `StepInfo.mask`, or their empty slots count as records of zero cost.

    Returns:
      The state with the steps' costs added.

    Privacy:
      The norms are private values that were not released, and so are the costs computed from them.

    Raises:
      ValueError: more steps than planned, another shape, or a mechanism whose cost is not a
        function of the norms; use `update_from_log_moments` for it.
    """
    # Norms after clipping, (steps, draws), and which of them are drawn examples.
    check_state(state)
    steps = subsampled_gaussian_steps(state.mechanism)
    draws = steps.clip_norms(norms)
    check(draws.ndim in (1, 2), "norms", draws.shape, "of shape (steps, draws) or (draws,)")
    used = np.asarray(as_mask(mask, draws.shape))
    draws, used = np.atleast_2d(draws), np.atleast_2d(used)
    start, num_steps = state.num_done, len(draws)
    _check_num_steps(state, num_steps)

    # Costs of some steps at a time, by threads: numpy releases the interpreter's lock.
    rows = max(1, _CHUNK_ENTRIES // (max(1, draws.shape[1]) * len(state.orders)))

    def costs(first: int) -> Array:
        chunk = slice(first, first + rows)
        indices = np.arange(start + first, start + first + len(draws[chunk]))
        moments = steps.log_moments(state.orders, draws[chunk], indices)
        bound = steps.worst_case_log_moments(state.orders, indices)
        return _costs(state, moments, used[chunk], bound)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return _add_costs(state, np.concatenate(list(pool.map(costs, range(0, num_steps, rows)))))


def update_from_log_moments(
    state: AccountantState,
    log_moments: npt.ArrayLike,
    mask: npt.ArrayLike | None = None,
    *,
    log_moment_bound: npt.ArrayLike | None = None,
) -> AccountantState:
    """Adds steps from their log moments: other mechanisms, pairs of records or of batches.

    Args:
      state: of the mechanism that takes the steps.
      log_moments: lambda D_(lambda + 1) of each draw of x' (or of a pair) at each of the state's
        orders, ``(steps, draws, orders)``, or ``(draws, orders)`` for one step; see the functions
        of ``log_moments.py``.
      mask: bool, which draws count, ``(steps, draws)`` or ``(draws,)``; all by default.
      log_moment_bound: at each order the largest log moment of any record, ``(orders,)``; infinite
        by default. The estimates are at most this bound.

    Returns:
      The state with the steps' costs added.

    Privacy:
      Log moments of the data's own records are private values, and so are the costs.

    Raises:
      ValueError: more steps than planned, another shape, or negative or missing values.
    """
    # Log moments, (steps, draws, orders), and which draws count.
    check_state(state)
    moments = as_float64(log_moments, "log_moments")
    shaped = moments.ndim in (2, 3) and moments.shape[-1] == len(state.orders)
    wanted = f"of shape (steps, draws, {len(state.orders)}) or (draws, {len(state.orders)})"
    check(shaped, "log_moments", moments.shape, wanted)
    check(bool(np.all(moments >= 0)), "log_moments", moments.min(initial=0), "numbers >= 0")
    used = np.asarray(as_mask(mask, moments.shape[:-1]))
    if moments.ndim == 2:
        moments, used = moments[None], used[None]
    _check_num_steps(state, len(moments))

    # The largest log moment of any record, if it is known.
    bound = np.full((1, len(state.orders)), np.inf)
    if log_moment_bound is not None:
        bound = np.broadcast_to(as_float64(log_moment_bound, "log_moment_bound"), bound.shape)
        largest = np.max(moments, axis=(0, 1), initial=0.0, where=used[..., None])
        holds = bool(np.all(bound >= largest * (1 - 1e-9)))
        check(holds, "log_moment_bound", log_moment_bound, f"at least the draws', {largest}")
    return _add_costs(state, _costs(state, moments, used, bound))


def update_worst_case(state: AccountantState, num_steps: int) -> AccountantState:
    """Adds steps whose norms were lost, as in a crash, at the cost of the worst-case record.

    Args:
      state: of a mechanism with `PoissonSampling` under add/remove or zero-out.
      num_steps: the number of steps to add, at least 1.

    Returns:
      The state after these steps.

    Raises:
      ValueError: more steps than planned, or a mechanism of another kind.
    """
    check_state(state)
    check_count("num_steps", num_steps)
    _check_num_steps(state, num_steps)
    indices = np.arange(state.num_done, state.num_done + num_steps)
    steps = subsampled_gaussian_steps(state.mechanism)
    bound = steps.worst_case_log_moments(state.orders, indices)
    return _add_costs(state, np.broadcast_to(bound, (num_steps, len(state.orders))))


def _costs(
    state: AccountantState, moments: Array, used: npt.NDArray[np.bool_], bound: Array
) -> Array:
    """Returns the estimated costs of the steps, at most those of the worst-case record."""
    planned, gamma = state.mechanism.num_releases, state.failure_probability
    worst = planned * bound
    if state.estimator == "student":
        estimates = estimators.student_upper_bound(planned * moments, gamma, used)
    else:
        estimates = estimators.empirical_bernstein_upper_bound(
            planned * moments, gamma, worst, used
        )
    estimates = np.where(np.isnan(estimates), np.inf, estimates)  # overflow
    return np.clip(estimates, 0.0, worst) / planned


def _add_costs(state: AccountantState, costs: Array) -> AccountantState:
    """Returns the state after steps of these costs, ``(steps, orders)``."""
    total, num_done = state.costs + costs.sum(axis=0), state.num_done + len(costs)
    return dataclasses.replace(state, costs=total, num_done=num_done)


def _check_num_steps(state: AccountantState, num_steps: int) -> None:
    planned = state.mechanism.num_releases
    if state.num_done + num_steps > planned:
        raise ValueError(
            f"state must contain at most the planned {planned} steps (their number is fixed in"
            f" advance), got {num_steps} more after {state.num_done}"
        )


@dataclass(frozen=True)
class SubsampledGaussianSteps:
    """Log moments of the steps of a Poisson-subsampled Gaussian under add/remove or zero-out.

    Attributes:
      sampling_rate: q.
      noise_std: standard deviation of each step's noise in the units of the sum, ``(num_steps,)``.
      l2_clip: clip bound on one contribution: a number or per-layer bounds.
    """

    sampling_rate: float
    noise_std: Array
    l2_clip: ClipBound

    def clip_norms(self, norms: ArrayTree) -> Array:
        """Returns the norms after clipping; zero for those that are not finite."""
        # One array of norms for each clip bound.
        structure, wanted = map(str, map(jax.tree.structure, (norms, self.l2_clip)))
        check(structure == wanted, "norms", structure, f"one array for each clip bound, {wanted}")
        groups = [as_float64(group, "norms") for group in jax.tree.leaves(norms)]

        # An example with a norm that is not finite contributes zero.
        bounds = jax.tree.leaves(self.l2_clip)
        squares = [np.minimum(norm, bound) ** 2 for norm, bound in zip(groups, bounds, strict=True)]
        usable = np.all([np.isfinite(group) for group in groups], axis=0)
        return np.where(usable, np.sqrt(sum(squares)), 0.0)

    def log_moments(
        self, orders: Sequence[int], norms: Array, steps: npt.NDArray[np.intp]
    ) -> Array:
        """Returns lambda D_(lambda + 1), ``(steps, draws, orders)``, of clipped norms."""
        noise_std = self.noise_std[steps][:, None]
        if self.sampling_rate == 1:
            return gaussian_log_moments(orders, norms, noise_std=noise_std)
        return subsampled_gaussian_log_moments(
            orders, norms, sampling_rate=self.sampling_rate, noise_std=noise_std
        )

    def worst_case_log_moments(self, orders: Sequence[int], steps: npt.NDArray[np.intp]) -> Array:
        """Returns the log moments, ``(steps, orders)``, of a record at the clip bound."""
        norms = np.full((len(steps), 1), total_l2_clip(self.l2_clip))
        return self.log_moments(orders, norms, steps)[:, 0]


def subsampled_gaussian_steps(mechanism: Mechanism) -> SubsampledGaussianSteps:
    """Returns the log moments of the steps of ``mechanism``, as functions of gradient norms."""
    match mechanism:
        case SubsampledGaussian(sampling=PoissonSampling(sampling_rate=rate)):
            # Under add/remove and zero-out one contribution is added or not.
            check(
                mechanism.adjacency != "replace_one",
                "mechanism's adjacency",
                mechanism.adjacency,
                "'add_remove' or 'zero_out', as the cost of replacing a record depends on the angle"
                " between two gradients (use update_from_log_moments and replace_one_log_moments)",
            )

            # The noise of each step, in the units of the sum.
            multipliers = np.broadcast_to(mechanism.noise_multiplier, mechanism.num_steps)
            noise_std = multipliers * float(total_l2_clip(mechanism.l2_clip))
            check(noise_std.min() > 0, "mechanism's noise", noise_std.min(), "above zero")
            return SubsampledGaussianSteps(rate, noise_std, mechanism.l2_clip)
        case _:
            raise ValueError(
                "mechanism must be a SubsampledGaussian with PoissonSampling for its cost to be a"
                f" function of the gradient norms, got {mechanism!r}; use update_from_log_moments"
            )


class TrainingAccountant:
    """BDP accountant of a training run, passed to ``train`` as ``on_report``.

    It adds the per-example norms that clipping has computed, one `Report` at a time, without
    further gradients and without a transfer for each step. With a ``path`` the state is saved after
    each report, for a run that is resumed from a checkpoint; steps whose norms were lost in between
    are added at their worst case. One accountant and one file serve one run. **The file holds
    private values.**

    Args:
      path: file in which the state is kept for a resumed run; none by default.

    Attributes:
      state: the accumulated cost, an `AccountantState`.

    >>> import jax, jax.numpy as jnp, optax, dpjax
    >>> from dpjax import bdp
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     dpjax.PoissonSampling(64, 0.25), l2_clip=1.0, noise_multiplier=2.0,
    ...     num_steps=20, adjacency="add_remove")
    >>> accountant = TrainingAccountant(bdp.init(mechanism))
    >>> loss = lambda w, x: 0.01 * jnp.sum((w - x) ** 2)
    >>> result = dpjax.train(
    ...     jax.random.key(0), loss, jnp.zeros(2), jnp.ones((64, 2)), optax.sgd(0.1),
    ...     mechanism=mechanism, on_report=accountant, progress=False
    ... )
    >>> epsilon = bdp.epsilon(accountant.state, 1e-3)
    >>> epsilon.bdp < epsilon.dp
    True
    """

    def __init__(self, state: AccountantState, path: str | Path | None = None) -> None:
        check_state(state)
        if path is not None:
            check_path("path", path)
        self.state = state
        self._path = None if path is None else Path(path)
        if self._path is not None and self._path.exists():
            self.state = _load(self._path, state)

    def __call__(self, report: "Report") -> None:
        """Adds the steps of a report.

        Raises:
          ValueError: the report is of another mechanism, or repeats steps that were added: it is of
            another run, which needs an accountant of its own.
        """
        planned, done = self.state.mechanism, self.state.num_done
        check(report.mechanism == planned, "report's mechanism", report.mechanism, f"{planned}")
        mask = np.asarray(report.infos.mask)
        first = report.num_releases - len(mask)
        allowed = f"at least {done}, the steps already added; another run needs another accountant"
        check(first >= done, "report's first step", first, allowed)
        if first > done:
            self.state = update_worst_case(self.state, first - done)
        self.state = update(self.state, report.infos.norms, mask)
        if self._path is not None:
            _save(self._path, self.state)


def _save(path: Path, state: AccountantState) -> None:
    content = to_npz(identity=_identity(state), costs=state.costs, done=state.num_done)
    write_atomically(path, content)


def _load(path: Path, state: AccountantState) -> AccountantState:
    """Returns ``state`` with the costs of the file; refuses the file of another accountant."""
    with np.load(path) as file:
        if str(file["identity"]) != _identity(state):
            raise ValueError(
                f"path must be a file of this accountant, got {path}, which is of"
                f" {file['identity']}"
            )
        return dataclasses.replace(state, costs=file["costs"], num_done=int(file["done"]))


def _identity(state: AccountantState) -> str:
    return repr((state.mechanism, state.orders, state.failure_probability, state.estimator))
