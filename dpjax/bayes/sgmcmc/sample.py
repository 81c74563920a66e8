"""Private posterior samples from SG-MCMC chains: the sampling loop and its result."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import jax

from dpjax._checks import as_key, check_count, check_path, check_type
from dpjax._extras import requires_extra
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey
from dpjax.bayes.sgmcmc.chains import private_chains
from dpjax.bayes.sgmcmc.langevin import Langevin, LogPrior
from dpjax.bayes.sgmcmc.storage import SampleStore
from dpjax.certificates.certificate import Certificate, certify
from dpjax.gradients.loss_checks import check_params
from dpjax.guarantee import Guarantee
from dpjax.training.data import DataSource, SplitRecords, as_training_data
from dpjax.training.run import Update, run
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


def sample(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior | None,
    params: ArrayTree | Callable[[PRNGKey], ArrayTree],
    data: ArrayTree | SplitRecords | DataSource,
    *,
    mechanism: Langevin,
    burn_in: int = 0,
    thinning: int = 1,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
    steps_per_call: int = 100,
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
      data: any tree of arrays with a leading axis of ``mechanism.sampling.num_examples``, or
        `split_records` of them, or a `DataSource` of as many records, which is read by record as by
        `train`.
      mechanism: an `SGLD`, `SGHMC` or `PSGLD`: sampling, clipping, numbers of steps and chains.
      burn_in: steps of each chain before the first state that may be kept. They are released as
        well, and counted.
      thinning: steps from one kept state to the next after the burn-in.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.
      sharding: mesh of devices over which batches, and parameters by a rule, are split, as for
        `train`, which is called by several processes in the same way. Process 0 writes the files
        of kept states, and the others keep the states in host memory.
      steps_per_call: steps between two checkpoints; the device holds the states that are kept of
        them at once.
      checkpoint_dir: folder of the kept states, memory-mapped ``.npy`` files, with a checkpoint
        after each call: an interrupted run resumes from there with the same result, and no noise
        is used for two different gradients (see `train`). Locked for the whole run. Without it the
        states are kept in host memory.
      progress: show a progress bar.

    Returns:
      A `ChainResult`.

    Privacy:
      Releases every state of every chain, under ``mechanism.adjacency``; ``mechanism.event``
      counts all.

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
    ...                 jnp.zeros(3), jnp.ones((64, 3)), mechanism=chain, burn_in=10, thinning=5,
    ...                 progress=False)
    >>> result.samples.shape, result.guarantee.num_releases
    ((2, 4, 3), 60)
    """
    check_type("mechanism", mechanism, Langevin, "an SGLD, SGHMC or PSGLD")
    check_type("sharding", sharding, MeshSharding | None, "a MeshSharding or None")
    if not callable(params):
        check_params(params)
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)
    check_count("steps_per_call", steps_per_call)
    key, folder = as_key(key), None if checkpoint_dir is None else Path(checkpoint_dir)
    store = SampleStore(mechanism.num_steps, burn_in, thinning, folder)
    num_samplers = None if mechanism.batches == "shared" else mechanism.num_chains
    records = as_training_data(data, mechanism.sampling, sharding, num_samplers)

    # The info of a step is the new state of each chain.
    chains = private_chains(
        key,
        log_likelihood,
        log_prior,
        mechanism,
        method=method,
        microbatch_size=microbatch_size,
        sharding=sharding,
    )

    def with_state(update: Update, state: TrainState, data: Any) -> tuple[TrainState, Any]:
        state = update(state, data)[0]
        return state, state.params

    step = chains._replace(
        update=partial(with_state, chains.update),
        one_device_update=partial(with_state, chains.one_device_update),
    )

    # Repeat it, from the start or from the newest checkpoint.
    end = run(
        step,
        records,
        chains.init(params),
        mechanism.num_steps,
        key=key,
        params=params(key) if callable(params) else params,
        mechanism=(mechanism.gaussian, mechanism.num_chains, mechanism.batches, burn_in, thinning),
        steps_per_call=steps_per_call,
        keep=store,
        checkpoint_dir=folder and folder / "checkpoints",
        sharding=sharding,
        progress=progress,
    )
    return ChainResult(store.samples, mechanism, end.seeded)
