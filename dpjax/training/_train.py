"""``train``: a run of differentially private training, with checkpoints and a certificate."""

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import (
    as_key,
    check_count,
    check_delta,
    check_function,
    check_path,
    check_positive,
    check_type,
)
from dpjax._html import HTMLTable
from dpjax._html_tables import leaf_table
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, Params, PRNGKey, PyTree
from dpjax.gradients.loss_checks import check_params, split_params
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import DataSource, Examples, as_training_data
from dpjax.training.run import Plan, RunResult, run
from dpjax.training.sharding import MeshSharding
from dpjax.training.step import TrainState, private_step


class Budget(NamedTuple):
    """A privacy budget: the largest certified ``epsilon`` at ``delta`` that a run may reach.

    Attributes:
      epsilon: the largest epsilon.
      delta: at which it is certified.
    """

    epsilon: float
    delta: float


class Report(NamedTuple):
    """The argument of ``on_report``, after each call to the device.

    Attributes:
      num_releases: steps done so far.
      params: a copy of the parameters after these steps: released.
      infos: `StepInfo` of the steps since the last report, every leaf with a leading axis of
        steps. **Private**: a published curve of the loss is not covered by the certificate.
      mechanism: the mechanism as planned.
    """

    num_releases: int
    params: ArrayTree
    infos: StepInfo
    mechanism: SubsampledGaussian


@dataclasses.dataclass(frozen=True)
class TrainResult(RunResult):
    """The parameters that a run released, and its mechanism.

    Attributes:
      params: the trained parameters.
      mechanism: the mechanism **as run**, with the steps that were taken.
      seeded: whether the key looks like ``jax.random.key(seed)``, whose noise can be reproduced.
      first_plan: the steps planned at first, where a run on a folder was continued with more.
      optimizer_state: the state of the optimiser given to `train`, computed from noisy sums alone
        and so covered by the same guarantee: averages of the parameters (`params_ema`,
        ``optax.contrib.schedule_free_eval_params``), or where a next run is to start.
    """

    params: PyTree
    mechanism: SubsampledGaussian
    seeded: bool
    first_plan: int | None = None
    optimizer_state: PyTree = ()

    def _released_tables(self) -> list[HTMLTable]:
        return [leaf_table("Released parameters", self.params)]


def train(
    key: PRNGKey,
    loss_fn: LossFn,
    params: Params,
    data: Examples | DataSource,
    optimizer: optax.GradientTransformation,
    *,
    mechanism: SubsampledGaussian,
    wrt: Any = None,
    loss_takes_key: bool = False,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
    steps_per_call: int = 100,
    on_report: Callable[[Report], None] | None = None,
    checkpoint_dir: str | Path | None = None,
    budget: Budget | None = None,
    progress: bool = True,
) -> TrainResult:
    """Trains ``params`` on ``data`` by ``mechanism``.

    Args:
      key: a JAX key; `dpjax.release_key()` for a real release.
      loss_fn: ``loss_fn(params, example) -> scalar``, or ``loss_fn(params, example, key)`` with
        ``loss_takes_key``.
      params: any tree of float arrays, or an ``nnx.Module``; the result's ``params`` are then an
        ``nnx.State``, for ``nnx.update(module, result.params)``.
      data: any tree of arrays with a leading axis of ``mechanism.sampling.num_examples``, or of
        pandas frames and series of numbers, an example of which is a row of the frame; put on the
        device once (with ``sharding``, on each device). Or `split_records` of them, of which
        each device, and each of several processes, has its own. Or a `DataSource` of as many
        records, for data larger than the device or memory: the drawn records of a step are read in
        a thread during the step before, with the same result. Each of several processes passes a
        source of all records, and reads those of its devices.
      optimizer: any optax optimiser; it sees noisy sums over the expected batch size.
      mechanism: sampling, clipping, noise, number of steps.
      wrt: which variables of an ``nnx.Module`` are trained; see `clipped_grad`.
      loss_takes_key: whether the loss draws random numbers (dropout) from a key, which is then
        another one for each step and each example drawn in it, and the same in a resumed run. The
        random streams of an ``nnx.Module`` start from it.
      method, microbatch_size: see `clipped_grad`; with ``sharding``, of the rows on one device.
      sharding: mesh of devices over which batches, and parameters by a rule, are split. The result
        is that of one device up to the order of summation, with the same noise. Several processes
        each call ``train`` with equal arguments but for ``data``.
      steps_per_call: steps between two checkpoints and reports.
      on_report: called with a `Report` after each call to the device.
      checkpoint_dir: a folder to save to and resume from. An interrupted run resumes from its last
        checkpoint to the same result. Steps are reported only after their checkpoint is on disk, so
        noise is never reused on different gradients; a checkpoint of another mechanism, other data
        or another program is rejected. A run of a mechanism with fewer steps and otherwise the same
        is continued, to the result of one run of all steps. The folder is locked during the run: a
        second run on it, in any process or thread, is rejected.
      budget: stop before the release that would exceed it.
      progress: show a progress bar (without losses, which are private).

    Returns:
      A `TrainResult`, whose ``certificate(delta)`` is for the steps that were run.

    Raises:
      ValueError: for arguments that differ between processes (compared by their hashes), for data
        of another size than the mechanism's, a budget that admits no release,
        a checkpoint of another run or damaged, a folder in use, a loss without per-example
        gradients, or an optimiser with noise or clipping of dpjax's own.
      OSError: a checkpoint cannot be written, for example on a full disk.
      LostProcessError: another process of the run has ended or cannot be reached.

    >>> from dpjax.sampling import PoissonSampling
    >>> mechanism = SubsampledGaussian(
    ...     PoissonSampling(64, 0.25), l2_clip=1.0, noise_multiplier=2.0, num_steps=20,
    ...     adjacency="add_remove"
    ... )
    >>> loss = lambda w, x: jnp.sum((w - x) ** 2)
    >>> result = train(
    ...     jax.random.key(0), loss, jnp.zeros(2), jnp.ones((64, 2)), optax.sgd(0.1),
    ...     mechanism=mechanism, progress=False
    ... )
    >>> result.mechanism.num_steps, result.certificate(1e-3).epsilon < 4
    (20, True)
    """
    key = as_key(key)
    check_function("loss_fn", loss_fn)
    check_type("mechanism", mechanism, SubsampledGaussian, "a SubsampledGaussian")
    check_count("steps_per_call", steps_per_call)
    if on_report is not None:
        check_function("on_report", on_report, "report")
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)

    # A step on the parameters, of a module on those of its variables that are trained.
    loss_input, trained, constants = split_params(params, wrt, keyed=loss_takes_key)
    check_params(trained)
    loss = loss_input.bind(loss_fn, constants)

    def plan(num_steps: int) -> Plan[TrainState, Examples, StepInfo]:
        first = mechanism.first_steps(num_steps)
        step = private_step(
            (lambda params, *inputs: loss(params, inputs)) if loss_takes_key else loss,
            optimizer,
            mechanism=first,
            key=key,
            loss_takes_key=loss_takes_key,
            method=method,
            microbatch_size=microbatch_size,
            sharding=sharding,
        )
        # More epochs are more steps of the same run.
        return Plan(dataclasses.replace(first, epochs=None, tuning=None), step, step.init(trained))

    records = as_training_data(data, mechanism.sampling, sharding)
    num_steps = mechanism.num_steps if budget is None else _affordable_steps(budget, mechanism)

    def report(num_done: int, state: TrainState, infos: StepInfo) -> None:
        if on_report:
            copied = jax.tree.map(jnp.array, state.params)
            on_report(Report(num_done, copied, infos, mechanism))

    # Repeat the step, from the start or from the newest checkpoint.
    end = run(
        plan,
        records,
        num_steps,
        planned_steps=mechanism.num_steps,
        key=key,
        params=trained,
        steps_per_call=steps_per_call,
        on_chunk=report,
        checkpoint_dir=checkpoint_dir,
        sharding=sharding,
        progress=progress,
    )
    if end.num_done > num_steps:
        raise ValueError(
            f"budget must admit the {end.num_done} releases that the checkpoint has already spent,"
            f" got one that admits {num_steps}"
        )
    as_run = mechanism.first_steps(end.num_done)
    own_state = end.state.optimizer[-1]  # without the noise before it, whose key is a secret
    return TrainResult(end.state.params, as_run, end.seeded, end.first_plan, own_state)


def _affordable_steps(budget: Budget, mechanism: SubsampledGaussian) -> int:
    from dpjax.accounting.calibration import max_num_steps

    check_type("budget", budget, Budget, "a Budget or None")
    check_positive("epsilon", budget.epsilon)
    check_delta(budget.delta)
    affordable = max_num_steps(mechanism, epsilon=budget.epsilon, delta=budget.delta)
    if affordable == 0:
        first = mechanism.first_steps(1).certificate(budget.delta).epsilon
        raise ValueError(
            f"budget must admit at least one release, got {budget}: the first one costs"
            f" epsilon = {first:.4g}"
        )
    return affordable
