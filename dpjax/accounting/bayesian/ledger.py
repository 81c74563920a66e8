"""A ledger: an account that follows a training run, and is not lost when the run stops."""

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from dpjax._validation import check
from dpjax.accounting.bayesian.account import Account, update, update_at_bound

if TYPE_CHECKING:
    from dpjax.training.train import Report


class Ledger:
    """Keeps the Bayesian account of a run: pass it to ``train`` as ``on_report``.

    It reads the norms that clipping has computed, block by block, after the device has run on: no
    gradient more and no transfer per step. With a ``path`` the account survives the stop of a run
    that goes on from a checkpoint; steps whose norms were lost in between are counted at what they
    cost the worst record. A ledger and its file are of one run. **The file holds private values.**

    Attributes:
      account: what has been counted so far.

    >>> import jax, jax.numpy as jnp, optax, dpjax
    >>> from dpjax.accounting import bayesian
    >>> mechanism = dpjax.SubsampledGaussian(
    ...     dpjax.PoissonSampling(64, 0.25), 1.0, 2.0, 20, "add_remove")
    >>> ledger = Ledger(bayesian.init(mechanism))
    >>> loss = lambda w, x: 0.01 * jnp.sum((w - x) ** 2)
    >>> result = dpjax.train(loss, jnp.zeros(2), jnp.ones((64, 2)), mechanism, optax.sgd(0.1),
    ...                      jax.random.key(0), on_report=ledger, progress=False)
    >>> both = bayesian.epsilon(ledger.account, 1e-3)
    >>> both.bayesian < both.differential
    True
    """

    def __init__(self, account: Account, path: str | Path | None = None) -> None:
        self.account = account
        self._path = None if path is None else Path(path)
        if self._path is not None and self._path.exists():
            self.account = _read(self._path, account)

    def __call__(self, report: "Report") -> None:
        """Counts the steps of a report.

        Raises:
          ValueError: the report is of another mechanism, or does not go on from the last one: it
            is of another run, which needs a ledger of its own.
        """
        planned, done = self.account.mechanism, self.account.num_done
        check(report.mechanism == planned, "report's mechanism", report.mechanism, f"{planned}")
        mask = np.asarray(report.infos.mask)
        first = report.num_releases - len(mask)
        allowed = f"at least {done}, which are counted: another run needs a ledger of its own"
        check(first >= done, "report's first step", first, allowed)
        if first > done:
            self.account = update_at_bound(self.account, first - done)
        self.account = update(self.account, report.infos.norms, mask)
        if self._path is not None:
            _write(self._path, self.account)


def _write(path: Path, account: Account) -> None:
    """Replaces the file at once: a run killed here leaves the old one or the new one."""
    new = path.with_name(path.name + ".new")
    with new.open("wb") as file:
        np.savez(file, identity=_identity(account), costs=account.costs, done=account.num_done)
    os.replace(new, path)


def _read(path: Path, account: Account) -> Account:
    """Returns ``account`` with the costs that lie in the file.

    Raises:
      ValueError: the file is of another account.
    """
    with np.load(path) as file:
        if str(file["identity"]) != _identity(account):
            raise ValueError(
                f"path must be a ledger of this account, got {path}, which is of {file['identity']}"
            )
        return dataclasses.replace(account, costs=file["costs"], num_done=int(file["done"]))


def _identity(account: Account) -> str:
    return repr((account.mechanism, account.orders, account.failure_probability, account.estimator))
