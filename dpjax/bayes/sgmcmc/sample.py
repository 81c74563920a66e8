"""Private posterior samples from SG-MCMC chains: the sampling loop and its result."""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax
from tqdm import tqdm

from dpjax._checks import as_key, check, check_count, check_path, check_type
from dpjax._extras import requires_extra
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey
from dpjax.bayes.sgmcmc.chains import compile_steps, place_chains, private_chains
from dpjax.bayes.sgmcmc.langevin import Batches, Langevin, LogPrior
from dpjax.bayes.sgmcmc.storage import SampleStore
from dpjax.certificates.certificate import Certificate, certify
from dpjax.gradients.loss_checks import check_params
from dpjax.guarantee import Guarantee
from dpjax.keys import is_seeded
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.checkpoint import CheckpointStore
from dpjax.training.data import (
    DataSource,
    RecordStream,
    SplitRecords,
    check_processes,
    identify_run,
    open_data,
    place_data,
    run_program_hash,
    stage,
)
from dpjax.training.processes import explain_lost_process
from dpjax.training.run import Update
from dpjax.training.sharding import MeshSharding
from dpjax.training.step import TrainState


@dataclass(frozen=True)
class ChainResult:
    """Posterior samples of a run, with the mechanism that released them.

    Attributes:
      samples: the kept states, a tree like the parameters of numpy arrays
        ``(num_chains, num_kept, ...)``.
      mechanism: the chains' `SGLD`, `SGHMC` or `PSGLD`.
      seeded: whether the key looks like ``jax.random.key(seed)``: the noise can then be redrawn by
        trying seeds.
    """

    samples: Any
    mechanism: Langevin
    seeded: bool

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of the run, for every state of every chain."""
        steps = self.mechanism.num_steps
        return self.mechanism.guarantee.of_run(seeded=self.seeded, num_steps=steps)

    def certificate(self, delta: float) -> Certificate:
        """Returns the certificate of ``guarantee`` at ``delta`` in (0, 1)."""
        return certify(self.guarantee, delta)

    def to_arviz(self) -> Any:
        """Returns the samples as arviz's data tree, group ``posterior``; leaves named by path.

        >>> import numpy as np
        >>> from dpjax.bayes.sgmcmc import SGLD
        >>> from dpjax.sampling import PoissonSampling
        >>> chain = SGLD(
        ...     PoissonSampling(8, 0.5), l2_clip=1.0, step_size=0.1, num_steps=4,
        ...     adjacency="add_remove", num_chains=2
        ... )
        >>> samples = {"w": np.zeros((2, 4, 3))}
        >>> list(ChainResult(samples, chain, True).to_arviz().posterior.data_vars)
        ['w']
        """
        with requires_extra("arviz"):
            from arviz_base import from_dict

        leaves = jax.tree_util.tree_leaves_with_path(self.samples)
        named = {
            jax.tree_util.keystr(path, simple=True, separator=".") or "params": leaf
            for path, leaf in leaves
        }
        return from_dict({"posterior": named})


@dataclass(frozen=True)
class SamplePlan:
    """Chains, burn-in and thinning of a run: what a checkpoint must agree with to be resumed.

    Attributes:
      gaussian: one chain's mechanism.
      num_chains: number of chains.
      batches: ``"own"`` or ``"shared"``.
      burn_in: steps before the first state that may be kept.
      thinning: steps from one kept state to the next.
    """

    gaussian: SubsampledGaussian
    num_chains: int
    batches: Batches
    burn_in: int
    thinning: int

    @classmethod
    def from_chain(cls, chain: Langevin, burn_in: int, thinning: int) -> "SamplePlan":
        """Returns the plan for ``chain``.

        Raises:
          ValueError: burn-in and thinning do not divide the chain's steps.
        """
        check_count("burn_in", burn_in, minimum=0)
        check_count("thinning", thinning)
        after = chain.num_steps - burn_in
        wanted = f"such that num_steps - burn_in = {after} is a positive multiple of it"
        check(after > 0 and after % thinning == 0, "thinning", thinning, wanted)
        return cls(chain.gaussian, chain.num_chains, chain.batches, burn_in, thinning)

    @property
    def num_kept(self) -> int:
        """Number of kept states of each chain."""
        return (self.gaussian.num_steps - self.burn_in) // self.thinning


def sample(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior | None,
    params: ArrayTree | Callable[[PRNGKey], ArrayTree],
    data: ArrayTree | SplitRecords | DataSource,
    chain: Langevin,
    *,
    burn_in: int = 0,
    thinning: int = 1,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
    samples_per_call: int = 100,
    checkpoint_dir: str | Path | None = None,
    progress: bool = True,
) -> ChainResult:
    """Draws private posterior samples with SGLD, SGHMC or preconditioned SGLD.

    Args:
      key: a JAX key; `dpjax.release_key()` for a real release.
      log_likelihood: ``log_likelihood(params, example) -> scalar``; its gradient is clipped.
      log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior. It does not depend
        on the data, so its gradient is neither clipped nor counted.
      params: initial state of every chain: any tree of float arrays, or a function that draws one
        from a key, for different initial states. May depend on the data only through a release
        that is counted as well, such as the first part of `hybrid`.
      data: any tree of arrays with a leading axis of ``chain.sampling.num_examples``, or
        `split_records` of them, or a `DataSource` of as many records, which is read by record as by
        `train`.
      chain: an `SGLD`, `SGHMC` or `PSGLD`: sampling, clipping, numbers of steps and chains.
      burn_in: steps of each chain before the first state that may be kept. They are released as
        well, and counted.
      thinning: steps from one kept state to the next after the burn-in.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.
      sharding: mesh of devices over which batches, and parameters by a rule, are split, as for
        `train`, which is called by several processes in the same way. Process 0 writes the files
        of kept states, and the others keep the states in host memory.
      samples_per_call: kept states for each call to the device, which holds them at once.
      checkpoint_dir: folder of the kept states, memory-mapped ``.npy`` files, with a checkpoint
        after each call: an interrupted run resumes from there with the same result, and no noise
        is used for two different gradients (see `train`). Locked for the whole run. Without it the
        states are kept in host memory.
      progress: show a progress bar.

    Returns:
      A `ChainResult`.

    Privacy:
      Releases every state of every chain, under ``chain.adjacency``; ``chain.event`` counts all.

    Raises:
      ValueError: for data of another size than the sampler's, a number of steps that burn-in and
        thinning do not divide, or a ``checkpoint_dir`` that is in use, holds another run, or has a
        checkpoint without its samples.
      OSError: a checkpoint or the kept states cannot be written, for example on a full disk.
      LostProcessError: another process of the run has ended or cannot be reached.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(
    ...     PoissonSampling(64, 0.25), l2_clip=4.0, step_size=0.5, num_steps=30,
    ...     adjacency="add_remove", num_chains=2
    ... )
    >>> result = sample(jax.random.key(0), lambda w, x: -0.5 * jnp.sum((w - x) ** 2), None,
    ...                 jnp.zeros(3), jnp.ones((64, 3)), chain, burn_in=10, thinning=5,
    ...                 progress=False)
    >>> result.samples.shape, result.guarantee.num_releases
    ((2, 4, 3), 60)
    """
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    check_type("sharding", sharding, MeshSharding | None, "a MeshSharding or None")
    if not callable(params):
        check_params(params)
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)
    plan = SamplePlan.from_chain(chain, burn_in, thinning)
    check_count("samples_per_call", samples_per_call)
    num_samplers = None if chain.batches == "shared" else chain.num_chains
    opened = open_data(chain.sampling, data, sharding, num_samplers)
    key = as_key(key)
    make_step = partial(
        private_chains,
        key,
        log_likelihood,
        log_prior,
        stage(chain, opened),
        method=method,
        microbatch_size=microbatch_size,
    )
    one_device = make_step()
    state, seeded = one_device.init(params), is_seeded(key)
    first = jax.tree.map(lambda leaf: leaf[0], state.params)
    program = partial(run_program_hash, one_device.update, state, opened)
    check_processes(key, first, plan, program, opened, sharding)
    folder = None if checkpoint_dir is None else Path(checkpoint_dir)
    checkpoints: AbstractContextManager[CheckpointStore | None] = nullcontext()
    if folder is not None:
        identity = identify_run(plan, opened, program())
        checkpoints = CheckpointStore(folder / "checkpoints", identity, seeded)
    opened, update = place_data(opened, sharding), make_step(sharding=sharding).update
    state = state if sharding is None else place_chains(state, sharding)
    with checkpoints as saved:
        state = saved.restore(state) if saved else state
        resumed = int(state.num_releases[0]) > 0
        if saved and not resumed:  # the key first: no kept state may be on disk without it
            saved.save(state, 0)
        store = SampleStore(state.params, plan.num_kept, folder, resumed=resumed)
        _run_chains(update, state, opened, plan, samples_per_call, store, saved, progress)
    return ChainResult(store.samples, chain, saved.seeded if saved else seeded)


def _run_chains(
    update: Update,
    state: TrainState,
    data: ArrayTree | SplitRecords | RecordStream,
    plan: SamplePlan,
    samples_per_call: int,
    store: SampleStore,
    checkpoints: CheckpointStore | None,
    progress: bool,
) -> None:
    """Runs from ``state`` (consumed) to the last step, one device call after another.

    A call is a stretch of the burn-in or up to ``samples_per_call`` kept states.
    """
    done, num_steps = int(state.num_releases[0]), plan.gaussian.num_steps
    if done == num_steps:
        return
    keep = compile_steps(update, state, data, samples_per_call)
    with tqdm(total=num_steps, initial=done, unit="step", disable=not progress) as bar:
        while done < num_steps:
            if done < plan.burn_in:
                first, thinning, count = None, plan.burn_in - done, 1
                thinning = min(thinning, plan.thinning * samples_per_call)
            else:
                first, thinning = (done - plan.burn_in) // plan.thinning, plan.thinning
                count = min(samples_per_call, plan.num_kept - first)
            with explain_lost_process(lambda: f"after step {done}"):  # noqa: B023
                state, states = jax.block_until_ready(keep(state, thinning, count))
            if first is not None:
                store.write(first, states)
            steps = count * thinning
            done += steps
            if checkpoints:  # after the states: those before a checkpoint are on disk
                checkpoints.save(state, done)
            bar.update(steps)
