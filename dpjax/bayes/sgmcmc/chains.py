"""Private posterior samples from SG-MCMC chains: the step of all chains, the loop, its result."""

import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec

from dpjax._checks import as_key, check, check_count, check_function, check_path, check_type
from dpjax._html import HTMLTable
from dpjax._html_tables import draws_table
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, PRNGKey, PyTree
from dpjax.bayes._data_tree import Draws, make_data_tree
from dpjax.bayes.sgmcmc.langevin import Langevin, LogPrior
from dpjax.gradients.loss_checks import check_params
from dpjax.training.batch_gradient import StepInfo
from dpjax.training.data import DataSource, Examples, as_training_data
from dpjax.training.processes import check_all, to_host
from dpjax.training.run import Plan, RunResult, Update, run
from dpjax.training.sharding import MeshSharding, is_spec
from dpjax.training.step import PrivateStep, TrainState, private_step


def private_chains(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior | None,
    chain: Langevin,
    *,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    sharding: MeshSharding | None = None,
) -> PrivateStep:
    """Returns ``init`` and ``update`` of all ``chain.num_chains`` chains, by vmap over one.

    Args:
      key: a JAX key, split into one for each chain.
      log_likelihood: ``log_likelihood(params, example) -> scalar``.
      log_prior: ``log_prior(params) -> scalar``, or ``None`` for a flat prior.
      chain: an `SGLD`, `SGHMC` or `PSGLD`.
      method, microbatch_size: see `clipped_grad`.
      sharding: see `private_step`; every device computes its rows for all chains.

    Returns:
      ``init(params)``, where ``params`` is the initial state of every chain, or a function that
      draws one from a key; and ``update(state, data)``. Every leaf of states and infos has a
      leading axis of chains, but a sampler that the chains share.

    Privacy:
      Each update releases the new parameters of all chains, counted in ``chain.event``.

    >>> import jax.numpy as jnp
    >>> from dpjax.bayes.sgmcmc import SGLD
    >>> from dpjax.sampling import PoissonSampling
    >>> chain = SGLD(
    ...     PoissonSampling(8, 0.5), l2_clip=1.0, step_size=0.1, num_steps=10,
    ...     adjacency="add_remove", num_chains=3
    ... )
    >>> step = private_chains(jax.random.key(0), lambda w, x: -jnp.sum((w - x) ** 2), None, chain)
    >>> state = step.init(jnp.zeros(2))
    >>> jax.eval_shape(step.update, state, jnp.ones((8, 2)))[0].params.shape
    (3, 2)
    """
    check_type("chain", chain, Langevin, "an SGLD, SGHMC or PSGLD")
    check_function("log_likelihood", log_likelihood, "params", "example")
    check_type("sharding", sharding, MeshSharding | None, "a MeshSharding or None")
    key = as_key(key)
    shared = chain.batches == "shared"

    def one_chain(key: PRNGKey, sharding: MeshSharding | None = None) -> PrivateStep:
        step_key, update_key = jax.random.split(key)
        optimizer: optax.GradientTransformation = chain.optimizer(log_prior, key=update_key)
        return private_step(
            lambda params, example: -log_likelihood(params, example),
            optimizer,
            mechanism=chain.gaussian,
            key=step_key,
            method=method,
            microbatch_size=microbatch_size,
            sharding=sharding,
        )

    def init(params: ArrayTree | Callable[[PRNGKey], ArrayTree]) -> TrainState:
        def start(key: PRNGKey) -> TrainState:
            step_key, start_key = jax.random.split(key)
            return one_chain(step_key).init(params(start_key) if callable(params) else params)

        state = jax.vmap(start)(jax.random.split(key, chain.num_chains))
        if shared:
            state = state._replace(sampler=jax.tree.map(lambda leaf: leaf[0], state.sampler))
        return state if sharding is None else place_chains(state, sharding)

    # Updates take all keys from the state, so those of one chain serve all.
    step, axes = one_chain(key, sharding), TrainState(0, 0, None if shared else 0)
    over_chains = partial(jax.vmap, in_axes=(axes, None), out_axes=(axes, 0))
    return PrivateStep(init, over_chains(step.update), over_chains(step.one_device_update))


def place_chains(state: TrainState, sharding: MeshSharding) -> TrainState:
    """Returns states with a leading axis of chains on a mesh, each chain like the states of one."""
    one = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape[1:], x.dtype), state)

    def of_chains(spec: PartitionSpec) -> PartitionSpec:
        return PartitionSpec(None, *spec) if tuple(spec) else spec

    specs = jax.tree.map(of_chains, sharding.state_specs(one, one.params), is_leaf=is_spec)
    return sharding.place(state, specs)


class ChainStep(NamedTuple):
    """A step of all chains as `run` takes it, whose info are the parameters of each chain."""

    update: Update[TrainState, Examples, PyTree]
    one_device_update: Update[TrainState, Examples, PyTree]


class SampleStore:
    """Storage of the kept states of a run, ``(num_chains, num_kept, ...)``: host memory or files.

    Of several processes the first one has the files, and the others have arrays in memory.

    Args:
      num_steps: of the run.
      burn_in: steps before the first state that may be kept.
      thinning: steps from one kept state to the next.
      folder: of the files, or ``None`` for host memory.

    Attributes:
      num_kept: number of states of each chain.
      samples: a tree of numpy arrays; with a folder, memory-mapped ``.npy`` files.

    Raises:
      ValueError: burn-in and thinning do not divide the number of steps.
    """

    samples: PyTree

    def __init__(self, num_steps: int, burn_in: int, thinning: int, folder: Path | None) -> None:
        check_count("burn_in", burn_in, minimum=0)
        check_count("thinning", thinning)
        after = num_steps - burn_in
        wanted = f"such that num_steps - burn_in = {after} is a positive multiple of it"
        check(after > 0 and after % thinning == 0, "thinning", thinning, wanted)
        self.burn_in, self.thinning, self.folder = burn_in, thinning, folder
        self.num_kept = after // thinning

    def open(self, state: TrainState, *, num_done: int) -> None:
        """Allocates arrays for all states, or opens those of a run that is resumed.

        Args:
          state: of the chains, every leaf of its parameters with a leading axis of chains.
          num_done: steps done before. If there are any, the folder's files hold their states, and
            are made longer for a run that is continued with more steps; else they are created.

        Raises:
          ValueError: a file of the resumed run is missing, lacks states of steps that are done, or
            has another shape or dtype.
          OSError: the disk has no room for all states. All of it is allocated here, because a full
            disk under a memory-mapped file ends the process.
        """
        leaves, treedef = jax.tree.flatten(state.params)
        num_saved = max(0, num_done - self.burn_in) // self.thinning if num_done else None
        is_writer = jax.process_index() == 0

        def allocate() -> list[np.ndarray]:
            return [
                _allocate(
                    leaf,
                    self.num_kept,
                    self.folder and self.folder / f"samples_{number}.npy",
                    num_saved,
                )
                for number, leaf in enumerate(leaves)
            ]

        # On the first process first, which writes the files that the others open.
        first = check_all(lambda: allocate() if is_writer else [], "checkpoint_dir")
        others = check_all(lambda: [] if is_writer else allocate(), "checkpoint_dir")
        self.samples = jax.tree.unflatten(treedef, first + others)

    def write(self, first: int, states: ArrayTree) -> None:
        """Writes posterior samples ``(count, num_chains, ...)`` to disk, from index ``first``.

        Args:
          first: number of the first state.
          states: of all chains; every process must call it.
        """
        for array, leaf in zip(*map(jax.tree.leaves, (self.samples, states)), strict=True):
            array[:, first : first + len(leaf)] = np.moveaxis(to_host(leaf), 0, 1)
            if isinstance(array, np.memmap):
                array.flush()


def _allocate(
    leaf: jax.Array, num_kept: int, path: Path | None, num_saved: int | None
) -> np.ndarray:
    """Memory for the kept states of one leaf, or its file: new, or with the states saved before."""
    shape = (leaf.shape[0], num_kept, *leaf.shape[1:])
    # numpy cannot store bfloat16 in files.
    dtype = leaf.dtype if np.dtype(leaf.dtype).kind == "f" else np.dtype(np.float32)
    is_writer = jax.process_index() == 0

    if path is None or not (is_writer or num_saved is not None):
        return np.empty(shape, dtype)
    if num_saved is not None:
        return _open_file(path, shape, dtype, "r+" if is_writer else "c", num_saved)
    return _new_file(path, shape, dtype)


def _new_file(path: Path, shape: tuple[int, ...], dtype: np.dtype) -> np.memmap:
    """A new file for kept states, with room on the disk for all of it."""
    try:
        array = np.lib.format.open_memmap(path, mode="w+", dtype=dtype, shape=shape)
        if hasattr(os, "posix_fallocate"):  # not on macOS or Windows
            with path.open("r+b") as file:
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    except OSError as error:
        size = math.prod(shape) * np.dtype(dtype).itemsize
        raise OSError(
            f"checkpoint_dir {str(path.parent)!r} has no room for the {size:,} bytes of kept states"
            f" in {path.name!r} ({error}): make room on the disk and call again, or raise thinning"
        ) from error
    return array


def _open_file(
    path: Path,
    shape: tuple[int, ...],
    dtype: np.dtype,
    mode: Literal["r+", "c"],
    num_saved: int,
) -> np.ndarray:
    """Opens a file of kept states, whose changes are written or (``"c"``) stay in memory.

    Of a run that planned fewer steps the file is shorter; it is replaced by a longer one with the
    same states. A longer one was made before a crash.
    """
    try:
        # Read-only: a writable map would extend a file that is too short.
        array = np.lib.format.open_memmap(path, mode="r")
        as_planned = array.shape[:1] + shape[1:2] + array.shape[2:], array.dtype
        is_whole = as_planned == (shape, dtype) and array.shape[1] >= num_saved
        wrong = None if is_whole else f"has {array.shape}"
    except (OSError, ValueError) as error:
        wrong = f"cannot be read ({type(error).__name__})"
    if wrong:
        raise ValueError(
            f"checkpoint_dir {str(path.parent)!r} holds the checkpoint of a run whose kept states"
            f" are in {path.name!r}, which {wrong}: put the file back as it was, {dtype} {shape}."
            " A run in another checkpoint_dir is a new release"
        )

    # As long as planned.
    if array.shape[1] < shape[1]:
        longer = path.with_name(f"{path.name}.longer")
        states = _new_file(longer, shape, dtype)
        states[:, : array.shape[1]] = array
        states.flush()
        longer.replace(path)
    return np.lib.format.open_memmap(path, mode=mode)[:, : shape[1]]


@dataclass(frozen=True)
class ChainResult(RunResult):
    """Posterior samples of a run, with the mechanism that released every state of every chain.

    Attributes:
      samples: the kept states, a tree like the parameters of numpy arrays
        ``(num_chains, num_kept, ...)``.
      mechanism: the chains' `SGLD`, `SGHMC` or `PSGLD`.
      seeded: whether the key looks like ``jax.random.key(seed)``: the noise can then be redrawn by
        trying seeds.
      first_plan: the steps planned at first, where a run on a folder was continued with more.
    """

    samples: PyTree
    mechanism: Langevin
    seeded: bool
    first_plan: int | None = None

    def to_arviz(self, **groups: Draws) -> Any:
        """Returns the samples as an `xarray.DataTree` for arviz, group ``posterior``.

        Leaves are named by their path. ``arviz_stats.rhat`` and ``arviz_stats.ess`` take the tree.

        Args:
          **groups: draws of further groups, as for `dpjax.bayes.variational.to_arviz`.

        Raises:
          ValueError: draws with other axes, or a group that holds private records.

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
        return make_data_tree(dict(self._named_leaves()), groups)

    def _named_leaves(self) -> list[tuple[str, Any]]:
        """The leaves of the samples, with their paths as names."""
        return [
            (jax.tree_util.keystr(path, simple=True, separator=".") or "params", leaf)
            for path, leaf in jax.tree_util.tree_leaves_with_path(self.samples)
        ]

    def _released_tables(self) -> list[HTMLTable]:
        # Means and quantiles over chains and draws, of the first entries of each leaf.
        tables = []
        for name, leaf in self._named_leaves():
            num_chains, num_kept, *shape = np.shape(leaf)
            caption = f"{name}: {num_chains} chains of {num_kept:,} kept states"
            tables.append(draws_table(caption, name, np.reshape(leaf, (-1, *shape))))
        return tables


def sample(
    key: PRNGKey,
    log_likelihood: LossFn,
    log_prior: LogPrior | None,
    params: ArrayTree | Callable[[PRNGKey], ArrayTree],
    data: Examples | DataSource,
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
      data: any tree of arrays, or of pandas frames and series of numbers, with a leading axis of
        ``mechanism.sampling.num_examples``, or `split_records` of them, or a `DataSource` of as
        many records, which is read by record as by `train`.
      mechanism: an `SGLD`, `SGHMC` or `PSGLD`: sampling, clipping, numbers of steps and chains.
      burn_in: steps of each chain before the first state that may be kept. They are released as
        well, and counted.
      thinning: steps from one kept state to the next after the burn-in.
      method, microbatch_size: see `clipped_grad`.
      sharding: mesh of devices over which batches, and parameters by a rule, are split, as for
        `train`, which is called by several processes in the same way. Process 0 writes the files
        of kept states, and the others keep the states in host memory.
      steps_per_call: steps between two checkpoints; the device holds the states that are kept of
        them at once.
      checkpoint_dir: folder of the kept states, memory-mapped ``.npy`` files, with a checkpoint
        after each call: an interrupted run resumes from there with the same result, and no noise
        is used for two different gradients (see `train`). Continued by a mechanism with more steps
        and otherwise the same, for which the files are replaced by longer ones. Locked for the
        whole run. Without it the states are kept in host memory.
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
    def with_params(
        update: Update[TrainState, Examples, StepInfo], state: TrainState, data: Examples
    ) -> tuple[TrainState, PyTree]:
        state = update(state, data)[0]
        return state, state.params

    def plan(num_steps: int) -> Plan[TrainState, Examples, PyTree]:
        first = mechanism.first_steps(num_steps)
        chains = private_chains(
            key,
            log_likelihood,
            log_prior,
            first,
            method=method,
            microbatch_size=microbatch_size,
            sharding=sharding,
        )
        step = ChainStep(
            partial(with_params, chains.update), partial(with_params, chains.one_device_update)
        )
        identity = first.gaussian, first.num_chains, first.batches, burn_in, thinning
        return Plan(identity, step, chains.init(params))

    # Repeat it, from the start or from the newest checkpoint.
    end = run(
        plan,
        records,
        mechanism.num_steps,
        planned_steps=mechanism.num_steps,
        key=key,
        params=params(key) if callable(params) else params,
        steps_per_call=steps_per_call,
        keep=store,
        checkpoint_dir=folder and folder / "checkpoints",
        sharding=sharding,
        progress=progress,
    )
    return ChainResult(store.samples, mechanism, end.seeded, end.first_plan)
