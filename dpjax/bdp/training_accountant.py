"""The BDP accountant of a training run, and the file in which it is kept for a resumed run."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpjax._checks import check, check_path
from dpjax.bdp.accountant import AccountantState, check_state, update, update_worst_case

if TYPE_CHECKING:
    from dpjax.training._train import Report


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
    """Replaces the file atomically."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        np.savez(file, identity=_identity(state), costs=state.costs, done=state.num_done)
    os.replace(new, path)


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
