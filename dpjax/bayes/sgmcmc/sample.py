"""``sample``: private posterior samples, from data to a certified result."""

import dataclasses
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import jax

from dpjax._validation import as_key, check_count
from dpjax.accounting.certificate import Certificate
from dpjax.bayes.sgmcmc.chains import LogLikelihood, LogPrior, private_chains
from dpjax.bayes.sgmcmc.description import Langevin
from dpjax.bayes.sgmcmc.runner import Plan, Runner
from dpjax.bayes.sgmcmc.storage import SampleStore
from dpjax.keys import is_seeded
from dpjax.sampling.base import check_data
from dpjax.training.checkpoint import CheckpointStore, identify
from dpjax.training.step import PrivateStep


@dataclasses.dataclass(frozen=True)
class ChainResult:
    """What a run of chains released.

    Attributes:
      samples: the kept states, a tree like the parameters of numpy arrays
        ``(num_chains, num_kept, ...)``.
      mechanism: the description of the chains that were run.
      seeded: whether the key looks like ``jax.random.key(seed)``: anyone can then redraw the noise.
    """

    samples: Any
    mechanism: Langevin
    seeded: bool

    def certificate(self, delta: float) -> Certificate:
        """What the run guarantees at ``delta``: of every state of every chain, kept or not."""
        return self.mechanism.certificate(delta).of_run(seeded=self.seeded)

    def to_arviz(self) -> Any:
        """Returns the samples as arviz's data tree, group ``posterior``; leaves named by path.

        >>> import numpy as np
        >>> from dpjax.bayes.sgmcmc import SGLD
        >>> from dpjax.sampling import PoissonSampling
        >>> chain = SGLD(PoissonSampling(8, 0.5), 1.0, 0.1, 4, "add_remove", num_chains=2)
        >>> samples = {"w": np.zeros((2, 4, 3))}
        >>> list(ChainResult(samples, chain, True).to_arviz().posterior.data_vars)
        ['w']
        """
        from arviz_base import from_dict  # takes long to import, and few ask for it

        leaves = jax.tree_util.tree_leaves_with_path(self.samples)
        return from_dict({"posterior": {_name(path): leaf for path, leaf in leaves}})


def sample(
    log_likelihood: LogLikelihood,
    log_prior: LogPrior | None,
    params: Any,
    data: Any,
    chain: Langevin,
    key: jax.Array,
    *,
    burn_in: int = 0,
    thinning: int = 1,
    method: str = "auto",
    microbatch_size: int | None = None,
    samples_per_call: int = 100,
    folder: str | Path | None = None,
    progress: bool = True,
) -> ChainResult:
    """Draws private posterior samples by ``chain``.

    Args:
      log_likelihood: ``log_likelihood(params, example) -> scalar``; its gradient is clipped.
      log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior. It sees no data, so
        it is neither clipped nor counted.
      params: where every chain starts: any tree of float arrays, or a function that draws one from
        a key, for starts that differ. May depend on the data only through a release that is
        counted as well, such as the first part of `hybrid`.
      data: any tree of arrays with a leading axis of ``chain.sampling.num_examples``.
      chain: an `SGLD`, `SGHMC` or `PSGLD`: how many steps and chains, on which batches.
      key: a JAX key; `dpjax.release_key()` for a real release.
      burn_in: how many steps of each chain are made before the first that may be kept. They are
        released as well, and counted.
      thinning: after those, every so many-th state is kept.
      method: see `clipped_grad`.
      microbatch_size: see `clipped_grad`.
      samples_per_call: kept states for each call to the device; what the device holds at once.
      folder: where the kept states go, as ``.npy`` files mapped into memory, with a checkpoint
        after each call: a run killed goes on from there to the same result, and no noise is used
        twice on different gradients (see `train`). By default, host memory.
      progress: show a bar.

    Returns:
      A `ChainResult`.

    Raises:
      ValueError: for data of another size than the sampler's, steps that burn-in and thinning do
        not divide, or a folder that holds another run, or a checkpoint without its samples.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(PoissonSampling(64, 0.25), 4.0, 0.5, 30, "add_remove", num_chains=2)
    >>> result = sample(lambda w, x: -0.5 * jnp.sum((w - x) ** 2), None, jnp.zeros(3),
    ...                 jnp.ones((64, 3)), chain, jax.random.key(0), burn_in=10, thinning=5,
    ...                 progress=False)
    >>> result.samples.shape, result.certificate(1e-3).num_releases
    ((2, 4, 3), 60)
    """
    plan = Plan.of(chain, burn_in, thinning)
    check_count("samples_per_call", samples_per_call)
    check_data(chain.sampling, data)
    key, data = as_key(key), jax.device_put(data)
    step = private_chains(
        log_likelihood, log_prior, chain, key, method=method, microbatch_size=microbatch_size
    )
    state, seeded = step.init(params), is_seeded(key)
    with _checkpoints(folder, plan, data, step, state, seeded) as saved:
        state = saved.restore(state) if saved else state
        begun = int(state.num_releases[0]) > 0
        place = Path(folder) if folder else None
        store = SampleStore(state.params, plan.num_kept, place, begun=begun)
        Runner(step.update, data, plan, samples_per_call, store, saved)(state, progress)
    return ChainResult(store.samples, chain, saved.seeded if saved else seeded)


def _checkpoints(
    folder: str | Path | None, plan: Plan, data: Any, step: PrivateStep, state: Any, seeded: bool
) -> AbstractContextManager[CheckpointStore | None]:
    if folder is None:
        return nullcontext()
    identity = identify(plan, data, step.update, state)
    return CheckpointStore(Path(folder) / "checkpoints", identity, seeded)


def _name(path: Any) -> str:
    return jax.tree_util.keystr(path, simple=True, separator=".") or "params"
