"""Private hyperparameter tuning: a random number of candidates, of which the best is released.

The number of candidates, their settings, the batches, the noise of training and the noise of scores
are drawn from keys that are folded in from one: they are independent of each other and, but for the
noise added to sums over them, of the records.
"""

import dataclasses
import io
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from dpjax._checks import (
    as_count,
    as_key,
    as_numbers,
    check,
    check_function,
    check_path,
    check_positive,
    check_type,
)
from dpjax._files import lock_folder, to_npz, write_atomically
from dpjax._hashing import hash_arrays, hash_dataclass, hash_text
from dpjax._html import HTMLTable
from dpjax._html_tables import leaf_table
from dpjax._typing import ArrayTree, LossFn, MicrobatchSize, Params, PRNGKey, PyTree, SamplerState
from dpjax.gradients.loss_checks import check_params, split_params
from dpjax.guarantee import Guarantee, render_guarantee
from dpjax.keys import is_seeded
from dpjax.mechanisms.repeated_selection import RepeatedSelection
from dpjax.mechanisms.subsampled_gaussian import SubsampledGaussian
from dpjax.training.data import Arrays, Examples, as_training_data
from dpjax.training.run import Chunk, Plan, Update, run
from dpjax.training.step import TrainState, private_step

if TYPE_CHECKING:
    from dpjax.certificates.certificate import Certificate

Settings: TypeAlias = Mapping[str, Any]
Candidates: TypeAlias = Mapping[str, Sequence[float]] | Callable[[PRNGKey], Settings]

# Numbers folded into the key: of the number of candidates, their settings, training and scores.
_NUMBER, _SETTINGS, _TRAINING, _SCORE = range(4)
# Settings that change the mechanism of a candidate: the noise is over the clip bound.
_OF_MECHANISM = ("l2_clip", "noise_multiplier")
# Scores of records are rounded to multiples of this, and so add up exactly; so many at a time.
_UNIT, _RECORDS = 2.0**-20, 1024
_FILE = "study.npz"


@dataclasses.dataclass(frozen=True)
class Study:
    """Result of `tune`: the best candidate, with the guarantee of the whole search.

    Attributes:
      params: the trained parameters of the best candidate; the first ones, untrained, if there was
        no candidate.
      best_params: its settings, by name, as Optuna calls them; ``None`` without a candidate.
      best_value: its score; with private records, the noisy one. ``None`` without a candidate.
      mechanism: candidates, their number and selection.
      seeded: whether the key looks like ``jax.random.key(seed)``, whose noise can be reproduced.
    """

    params: PyTree
    best_params: Mapping[str, float] | None
    best_value: float | None
    mechanism: RepeatedSelection
    seeded: bool

    @property
    def guarantee(self) -> Guarantee:
        """The guarantee of training, scores and selection together."""
        return self.mechanism.guarantee.of_run(seeded=self.seeded)

    def certificate(self, delta: float) -> "Certificate":
        """Returns the certificate of the search at ``delta``, customarily well below one over n.

        Args:
          delta: in (0, 1).
        """
        from dpjax.certificates.certificate import certify

        return certify(self.guarantee, delta)

    def __getattr__(self, name: str) -> Any:
        """Raises AttributeError for Optuna's names of what must stay secret."""
        if name in ("trials", "best_trial", "trials_dataframe", "get_trials"):
            raise AttributeError(
                f"a Study has no {name}: the number of candidates, and the scores and settings of"
                " those that were not selected, are not released. The best candidate's are"
                " best_params, best_value and params"
            )
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    def _repr_html_(self) -> str:
        rows = [(name, f"{value:.6g}") for name, value in (self.best_params or {}).items()]
        tables = [
            HTMLTable("Settings of the best candidate", rows),
            leaf_table("Released parameters", self.params),
        ]
        return render_guarantee("Study", self.guarantee, first=tables)


def tune(
    key: PRNGKey,
    loss_fn: LossFn,
    params: Params,
    data: Examples,
    optimizer: Callable[[Settings], optax.GradientTransformation],
    *,
    candidates: Candidates,
    score: Callable[..., Any],
    mechanism: RepeatedSelection,
    score_data: Examples | None = None,
    method: str = "auto",
    microbatch_size: MicrobatchSize = None,
    candidates_per_program: int = 16,
    steps_per_call: int = 100,
    checkpoint_dir: str | Path | None = None,
) -> Study:
    """Private hyperparameter tuning: trains a random number of candidates, returns the best.

    All candidates of one program are trained side by side. Compared with as many runs of `train`,
    the certificate counts the whole search, and it grows slowly with the expected number.

    Args:
      key: a JAX key; `dpjax.release_key()` for a real release. It decides how many candidates there
        are, so that a seeded key makes that number public.
      loss_fn: ``loss_fn(params, example) -> scalar``, as for `train`.
      params: the first parameters of every candidate, as for `train`.
      data: the private records in memory, as for `train`.
      optimizer: ``optimizer(settings)``, an optax optimiser; settings are traced numbers, by name.
      candidates: lists of values by name, of which each candidate has one of each, drawn uniformly
        and independently; or ``candidates(key)``, which draws the settings of one candidate as a
        dict of numbers. Chosen without the private records. Two names change the mechanism:
        ``"l2_clip"`` (the noise is over it, so epsilon is the same) and ``"noise_multiplier"``,
        which must be at least that of the mechanism. What else the guarantee depends on is the same
        for all candidates.
      score: higher is better. Without ``mechanism.score``, ``score(params)``, a number computed
        from public data (of an ``nnx.Module``, from its ``nnx.State``). With it,
        ``score(params, example)`` of a private record, a number that is clipped to [0, 1] and added
        up over all of ``score_data``. A score that is no number is the worst.
      mechanism: how one candidate is trained and scored, and the distribution of their number.
      score_data: the private records that candidates are scored on; by default ``data``.
      method, microbatch_size: see `clipped_grad`.
      candidates_per_program: how many are trained side by side at most, as memory allows.
      steps_per_call: steps between two checkpoints.
      checkpoint_dir: a folder to save to and resume from, to the same result, as for `train`. It
        holds keys and every candidate: keep it as secret as the data. A folder of a search that has
        ended gives the same result again.

    Returns:
      A `Study` with the best candidate alone, whose ``certificate(delta)`` counts the search.

    Privacy:
      Parameters, settings and score of the best candidate are released. Whoever sees how long the
      search takes, its memory or its folder may learn the number of candidates, which the guarantee
      needs secret. Scores on ``score_data`` are counted as if they were of the training records,
      which covers records that are in either or in both.

    Raises:
      TypeError: an argument of another type.
      ValueError: a value out of range, settings that the guarantee does not cover, data that are
        not in memory or of another size than the mechanism's, or a folder of another search.
      OSError: a checkpoint cannot be written.

    >>> from dpjax.mechanisms import dpsgd
    >>> from dpjax.sampling import PoissonRepetitions
    >>> mechanism = RepeatedSelection(
    ...     dpsgd(num_examples=64, batch_size=16, num_steps=20, noise_multiplier=4.0,
    ...           adjacency="zero_out"),
    ...     repetitions=PoissonRepetitions(3))
    >>> study = tune(
    ...     jax.random.key(0), lambda w, x: jnp.sum((w - x) ** 2), jnp.zeros(2), jnp.ones((64, 2)),
    ...     lambda settings: optax.sgd(settings["learning_rate"]), mechanism=mechanism,
    ...     candidates={"learning_rate": [1e-4, 0.1]}, score=lambda w: -jnp.sum((w - 1) ** 2))
    >>> study.best_params
    {'learning_rate': 0.1}
    """
    key = as_key(key)
    check_function("loss_fn", loss_fn)
    check_function("optimizer", optimizer, "settings")
    check_type("mechanism", mechanism, RepeatedSelection, "a RepeatedSelection")
    width = as_count("candidates_per_program", candidates_per_program)
    steps_per_call = as_count("steps_per_call", steps_per_call)
    if checkpoint_dir is not None:
        check_path("checkpoint_dir", checkpoint_dir)
    records = as_training_data(data, mechanism.run.sampling)
    if not isinstance(records, Arrays):
        raise ValueError(
            f"data must be arrays in memory, got {type(data).__name__}: candidates draw different"
            " batches, which cannot be read from a source or split over devices"
        )
    if mechanism.score is None:
        check_function("score", score, "params")
        check(score_data is None, "score_data", "given", "None without mechanism.score")
    else:
        check_function("score", score, "params", "example")

    # The parameters that are trained, and the loss of them.
    loss_input, trained, constants = split_params(params, None, keyed=False)
    check_params(trained)
    loss = loss_input.bind(loss_fn, constants)

    with _open_folder(checkpoint_dir) as folder:
        # The key is that of the search which the folder holds, if it holds one.
        key, seeded = folder.restore_key(key)

        # The number of candidates, and their settings, as many as fill the programs.
        number = mechanism.repetitions.quantile(_uniform(jax.random.fold_in(key, _NUMBER)))
        num_programs = math.ceil(number / width)
        width = math.ceil(number / max(num_programs, 1))
        settings = _draw_settings(
            jax.random.fold_in(key, _SETTINGS), candidates, mechanism.run, num_programs * width
        )
        folder.check_identity(mechanism, settings)
        if folder.best is not None:
            return folder.restore_best(trained, mechanism, settings, seeded)

        # Train the candidates of one program after another, and keep the best so far.
        train = _Trainer(mechanism.run, loss, trained, optimizer, records, method, microbatch_size)
        scored = records.arrays if score_data is None else score_data
        value_of = _score_of(score, mechanism, trained, scored)
        best: tuple[float, int, PyTree] | None = None
        for first in range(0, number, max(width, 1)):
            part = {name: values[first : first + width] for name, values in settings.items()}
            states = train(
                jax.random.fold_in(jax.random.fold_in(key, _TRAINING), first),
                part,
                steps_per_call,
                folder.path and folder.path / f"candidates_{first}",
            )
            for place in range(min(width, number - first)):
                one = jax.tree.map(lambda leaf, place=place: leaf[place], states.params)
                score_key = jax.random.fold_in(jax.random.fold_in(key, _SCORE), first + place)
                value = value_of(score_key, one)
                if best is None or value > best[0]:
                    best = value, first + place, one

        study = _study(best, trained, mechanism, settings, seeded)
        folder.save_best(best, study)
    return study


class _CandidateStates(NamedTuple):
    """Training states of candidates side by side, and their settings. **Holds keys.**"""

    params: PyTree
    optimizer: optax.OptState
    sampler: SamplerState
    settings: dict[str, jax.Array]

    @property
    def num_releases(self) -> jax.Array:
        """Noisy sums of each candidate."""
        return self.optimizer[0].num_releases


class _CandidateStep(NamedTuple):
    """A step of all candidates of a program."""

    update: Update[_CandidateStates, ArrayTree, jax.Array]
    one_device_update: Update[_CandidateStates, ArrayTree, jax.Array]


class _CompiledOnce(Arrays):
    """Records whose training loop is compiled for the first program of candidates, and reused."""

    def place(self, sharding: Any) -> "_CompiledOnce":
        return self

    def compile(self, *arguments: Any, **options: Any) -> Chunk[Any, Any]:
        if "_chunk" not in self.__dict__:
            self.__dict__["_chunk"] = super().compile(*arguments, **options)
        chunk: Chunk[Any, Any] = self.__dict__["_chunk"]
        return chunk


class _Trainer:
    """Trains candidates side by side, as many in each call."""

    def __init__(
        self,
        mechanism: SubsampledGaussian,
        loss: LossFn,
        params: PyTree,
        optimizer: Callable[[Settings], optax.GradientTransformation],
        records: Arrays,
        method: str,
        microbatch_size: MicrobatchSize,
    ) -> None:
        self._mechanism, self._params = mechanism, params
        self._records = _CompiledOnce(jax.device_put(records.arrays))

        def step_of(key: PRNGKey, settings: Settings) -> Any:
            # The noise multiplier is over the clip bound: the event is that of the mechanism.
            own = {name: settings[name] for name in _OF_MECHANISM if name in settings}
            return private_step(
                loss,
                optimizer(settings),
                mechanism=dataclasses.replace(mechanism, **own),
                key=key,
                method=method,
                microbatch_size=microbatch_size,
            )

        def update(states: _CandidateStates, data: ArrayTree) -> tuple[_CandidateStates, jax.Array]:
            def one(state: TrainState, settings: Settings) -> TrainState:
                # Its keys are those of its state.
                return step_of(jax.random.key(0), settings).update(state, data)[0]

            before = TrainState(states.params, states.optimizer, states.sampler)
            after = jax.vmap(one)(before, states.settings)
            columns = states.settings
            states = _CandidateStates(after.params, after.optimizer, after.sampler, columns)
            return states, jnp.zeros(())

        self._step = _CandidateStep(update, update)
        self._init = jax.jit(jax.vmap(lambda key, settings: step_of(key, settings).init(params)))

    def __call__(
        self, key: PRNGKey, settings: dict[str, jax.Array], steps_per_call: int, folder: Path | None
    ) -> _CandidateStates:
        """Returns the last states of candidates with these settings, arrays of one length."""
        keys = jax.random.split(key, jax.tree.leaves(settings)[0].size)

        def plan(num_steps: int) -> Plan[_CandidateStates, ArrayTree, jax.Array]:
            mechanism = dataclasses.replace(
                self._mechanism.first_steps(num_steps), epochs=None, tuning=None
            )
            columns = {name: jnp.array(values) for name, values in settings.items()}
            first = self._init(keys, settings)
            states = _CandidateStates(first.params, first.optimizer, first.sampler, columns)
            return Plan(mechanism, self._step, states)

        return run(
            plan,
            self._records,
            self._mechanism.num_steps,
            planned_steps=self._mechanism.num_steps,
            key=key,
            params=self._params,
            steps_per_call=steps_per_call,
            checkpoint_dir=folder,
            progress=False,
        ).state


def _uniform(key: PRNGKey) -> float:
    """Returns a multiple of 2^-53 in [0, 1), uniformly distributed."""
    high, low = np.asarray(jax.random.bits(key, (2,), np.uint32)).astype(np.uint64).tolist()
    return ((high << 21) | (low >> 11)) * 2.0**-53


def _draw_settings(
    key: PRNGKey, candidates: Candidates, mechanism: SubsampledGaussian, number: int
) -> dict[str, jax.Array]:
    """Returns independent settings of so many candidates, arrays by name."""
    if isinstance(candidates, Mapping):
        check(len(candidates) > 0, "candidates", candidates, "at least one list of values")
        grid = {}
        for name, listed in candidates.items():
            values = jnp.asarray(as_numbers(listed, f"candidates[{name!r}]"), jnp.float32)
            is_list = values.ndim == 1 and values.size > 0
            check(is_list, f"candidates[{name!r}]", listed, "a list of at least one number")
            grid[name] = values
        _check_settings(grid, mechanism)

        def draw(key: PRNGKey) -> dict[str, jax.Array]:
            keys = jax.random.split(key, len(grid))
            pairs = zip(keys, grid.items(), strict=True)
            return {name: jax.random.choice(one, values) for one, (name, values) in pairs}

    else:
        check_function("candidates", candidates, "key")

        def draw(key: PRNGKey) -> dict[str, jax.Array]:
            drawn = candidates(key)
            check_type("what candidates returns", drawn, Mapping, "a dict of numbers by name")
            return {name: jnp.asarray(value, jnp.float32) for name, value in drawn.items()}

    # One more, so that what is checked does not depend on the number.
    keys = jax.vmap(jax.random.fold_in, (None, 0))(key, jnp.arange(number + 1))
    drawn = jax.vmap(draw)(keys)
    for name, values in drawn.items():
        check(values.ndim == 1, f"candidates' {name!r}", values.shape[1:], "one number, shape ()")
    check(len(drawn) > 0, "candidates", drawn, "at least one setting")
    _check_settings(drawn, mechanism)
    return {name: values[:number] for name, values in drawn.items()}


def _check_settings(settings: Mapping[str, jax.Array], mechanism: SubsampledGaussian) -> None:
    """Raises ValueError for settings that the guarantee of ``mechanism`` does not cover."""
    # Finite numbers, of which only two may be the mechanism's.
    fields = {field.name for field in dataclasses.fields(mechanism)} - set(_OF_MECHANISM)
    for name, values in settings.items():
        finite = bool(jnp.all(jnp.isfinite(values)))
        check(finite, f"candidates' {name!r}", np.asarray(values).tolist(), "finite numbers")
        allowed = "an argument of the optimiser, l2_clip or noise_multiplier: all candidates have"
        check(name not in fields, "candidates", name, f"{allowed} the mechanism's {name}")

    # Those replace one number: not bounds by layer, or noise by step.
    for name in _OF_MECHANISM:
        if name in settings:
            own = getattr(mechanism, name)
            is_number = isinstance(own, int | float)
            check(is_number, f"the mechanism's {name}", own, "a number, to have candidates of it")

    # Any clip bound, as noise is relative to it, and no less noise than is counted.
    if "l2_clip" in settings:
        for value in np.unique(np.asarray(settings["l2_clip"])).tolist():
            check_positive("candidates' l2_clip", value)
    if "noise_multiplier" in settings:
        least, own = float(jnp.min(settings["noise_multiplier"])), mechanism.noise_multiplier
        assert not isinstance(own, tuple)
        allowed = f"at least {own}, that of the mechanism, which is counted"
        # The float32 number next to the mechanism's is what it would train with, too.
        check(least >= float(np.float32(own)), "candidates' noise_multiplier", least, allowed)


def _score_of(
    score: Callable[..., Any], mechanism: RepeatedSelection, params: PyTree, records: Examples
) -> Callable[[PRNGKey, PyTree], float]:
    """Returns the score of a candidate, from a key and its parameters; noisy of private records.

    Args:
      score: of parameters, or of parameters and a record.
      mechanism: with the noise, if there is any.
      params: the first ones, which it is tried on.
      records: private, for a noisy score.
    """
    if mechanism.score is None:

        def public_score(_: PRNGKey, params: PyTree) -> float:
            value = np.asarray(score(params))
            check(value.shape == (), "what score returns", value.shape, "one number, of shape ()")
            return -math.inf if np.isnan(value) else float(value)

        # An error now is found before anything is trained.
        public_score(jax.random.key(0), params)
        return public_score

    noise = mechanism.score
    records = jax.device_put(records)

    @jax.jit
    def units(params: PyTree, records: ArrayTree) -> jax.Array:
        values = jax.lax.map(lambda one: score(params, one), records, batch_size=_RECORDS)
        check(values.ndim == 1, "what score returns", values.shape[1:], "one number, of shape ()")
        shares = jnp.clip(jnp.nan_to_num(values.astype(jnp.float32), nan=0.0), 0.0, 1.0)
        return jnp.rint(shares if noise.integer_valued else shares / _UNIT).astype(jnp.int32)

    def noisy_score(key: PRNGKey, params: PyTree) -> float:
        total = int(np.asarray(units(params, records)).sum(dtype=np.int64))
        value = np.int64(total) if noise.integer_valued else np.float64(total * _UNIT)
        return float(np.asarray(noise.release(key, value)))

    jax.eval_shape(units, params, records)
    return noisy_score


def _study(
    best: tuple[float, int, PyTree] | None,
    params: PyTree,
    mechanism: RepeatedSelection,
    settings: Mapping[str, jax.Array],
    seeded: bool,
) -> Study:
    """Returns the result with the best candidate: score, number and parameters."""
    if best is None:
        return Study(params, None, None, mechanism, seeded)
    value, place, trained = best
    # The shortest numbers that are these in float32: 0.1 rather than 0.10000000149.
    chosen = {name: float(str(np.asarray(values)[place])) for name, values in settings.items()}
    return Study(trained, chosen, value, mechanism, seeded)


class _Folder:
    """The folder of a search: its key, the candidates' checkpoints and, in the end, the best.

    Attributes:
      path: of the folder; ``None`` without one.
      best: what was saved of the best candidate, once the search has ended.
    """

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self._saved: dict[str, np.ndarray] = {}
        if path is not None and (path / _FILE).exists():
            try:
                with np.load(io.BytesIO((path / _FILE).read_bytes())) as file:
                    self._saved = dict(file)
            except (OSError, ValueError) as error:
                raise ValueError(
                    f"checkpoint_dir {str(path)!r} holds a {_FILE} that cannot be read ({error}):"
                    " restore it from a copy. Starting again in a new folder is a second release"
                ) from error

    @property
    def best(self) -> np.ndarray | None:
        return self._saved.get("best")

    def restore_key(self, key: PRNGKey) -> tuple[PRNGKey, bool]:
        """Returns the saved key, else ``key``, which is saved; and whether it is from a seed."""
        if not self._saved:
            self._saved = {
                "key": np.asarray(jax.random.key_data(key)),
                "impl": np.array(str(jax.random.key_impl(key))),
                "seeded": np.array(is_seeded(key)),
            }
            return key, is_seeded(key)
        impl = str(self._saved["impl"])
        restored = jax.random.wrap_key_data(jnp.asarray(self._saved["key"]), impl=impl)
        return restored, bool(self._saved["seeded"])

    def check_identity(
        self, mechanism: RepeatedSelection, settings: Mapping[str, jax.Array]
    ) -> None:
        """Saves what identifies the search; raises ValueError where the folder is of another."""
        text = f"{hash_dataclass(mechanism)} {hash_arrays(dict(settings))}"
        identity = np.array(hash_text(text))
        saved = self._saved.setdefault("identity", identity)
        if str(saved) != str(identity):
            raise ValueError(
                f"checkpoint_dir {str(self.path)!r} holds a search with another mechanism or other"
                " candidates: resuming it here would be a second release. Give a new folder, or"
                " restore what has changed"
            )
        self._write()

    def save_best(self, best: tuple[float, int, PyTree] | None, study: Study) -> None:
        """Saves the released candidate."""
        place, value = (-1, 0.0) if best is None else (best[1], best[0])
        leaves = {f"leaf_{i}": leaf for i, leaf in enumerate(jax.tree.leaves(study.params))}
        arrays = {name: np.asarray(leaf) for name, leaf in leaves.items()}
        self._saved |= {"best": np.array(place), "value": np.array(value), **arrays}
        self._write()

    def restore_best(
        self,
        params: PyTree,
        mechanism: RepeatedSelection,
        settings: Mapping[str, jax.Array],
        seeded: bool,
    ) -> Study:
        """Returns the result that was saved, with parameters of the structure of ``params``."""
        place = int(self._saved["best"])
        first, structure = jax.tree.flatten(params)
        # Numpy's files have no bfloat16: it is read as bytes.
        leaves = [
            jnp.asarray(self._saved[f"leaf_{i}"].view(leaf.dtype)) for i, leaf in enumerate(first)
        ]
        trained = jax.tree.unflatten(structure, leaves)
        best = None if place < 0 else (float(self._saved["value"]), place, trained)
        return _study(best, trained, mechanism, settings, seeded)

    def _write(self) -> None:
        if self.path is not None:
            write_atomically(self.path / _FILE, to_npz(**self._saved), mode=0o600)


@contextmanager
def _open_folder(checkpoint_dir: str | Path | None) -> Iterator[_Folder]:
    """Opens and locks the folder of a search, if there is one."""
    with ExitStack() as opened:
        if checkpoint_dir is None:
            yield _Folder(None)
            return
        path = Path(checkpoint_dir).absolute()
        is_free = not path.exists() or path.is_dir()
        check(is_free, "checkpoint_dir", str(path), "a folder, or a path at which one can be made")
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        opened.enter_context(lock_folder(path))
        yield _Folder(path)
