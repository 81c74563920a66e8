"""Checkpoints of training runs; a checkpoint resumes only the run that wrote it.

A saved noise key used again on other gradients would release their difference without noise. So a
checkpoint stores hashes of the mechanism, the data and the program of one step, and is rejected if
one of them differs; a description beside them is for the error, which names what differs. A run is
continued with more steps where its steps are the first of them.
**A checkpoint contains keys: keep it as secret as the data.**
"""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol, Self, TypeVar

import jax
import numpy as np

from dpjax._checks import is_key
from dpjax._files import lock_folder
from dpjax._hashing import hash_text
from dpjax._typing import Array, PyTree
from dpjax.training.processes import LostProcessError, check_all, explain_lost_process

if TYPE_CHECKING:  # orbax takes as long to import as JAX, and only checkpoints need it
    import orbax.checkpoint as ocp

T = TypeVar("T")
# Of each hash of an identity, what it is of, as texts by their names: the hash alone decides.
Description = Mapping[str, Mapping[str, str]]

_SHOWN_DIFFERENCES = 6


class Hashes(Protocol):
    """A named tuple of hashes."""

    def _asdict(self) -> dict[str, str]: ...


class Identity(NamedTuple):
    """Hashes (sha256) that identify the run of a checkpoint.

    Attributes:
      mechanism: of all fields of the mechanism.
      data: of the training data, however they are split over devices.
      program: of the text of one step on one device (loss, optimiser) and the JAX version.
    """

    mechanism: str
    data: str
    program: str


# What a hash is of that its description does not have.
_NOT_DESCRIBED = {
    "mechanism": "its fields, which this folder does not describe",
    "data": "values or order of the training arrays",
    "program": "loss or optimiser, their numbers, or JAX's version",
}


class CheckpointText(NamedTuple):
    """Parts of error messages that depend on what a checkpoint holds.

    Attributes:
      unit: what is counted.
      mismatch: what is wrong with resuming the checkpoint of another run.
      restart: what starting again in a new folder means.
    """

    unit: str = "release"
    mismatch: str = "resuming it here would apply noise already drawn to other gradients"
    restart: str = (
        "Starting again in a new folder is a second release of the data, and both releases compose"
    )


def program_hash(function: Callable[..., PyTree], *arguments: PyTree) -> str:
    """A sha256 over the text of the program of ``function``, JAX's version and its generator.

    Only shapes and dtypes of ``arguments`` are used, not where they are placed.
    """
    shapes = jax.tree.map(_unplaced_shape, arguments)
    generator = getattr(jax.config, "jax_threefry_partitionable")  # noqa: B009 (no stub has it)
    text = jax.jit(function).lower(*shapes).as_text()
    return hash_text(f"{jax.__version__} {generator} {text}")


class CheckpointStore:
    """Checkpoints of one training run in one folder; the newest two are kept, written atomically.

    The folder is locked until the store is closed: see `lock_folder`.

    Args:
      checkpoint_dir: the folder.
      identity: a named tuple of hashes, all of which must agree for a run to be resumed.
      seeded: whether the run's noise comes from a seed.
      text: parts of error messages.
      description: of the identity, for the error.
      num_steps: steps planned, where a run can be continued with more of them.
      first_steps: ``first_steps(k)``, identity and description of the first k planned steps: a
        folder of fewer planned steps must have this identity.

    Attributes:
      seeded: whether the run's noise comes from a seed: as stored in the folder if it holds a run
        (whose keys are then used), else as passed.
      first_plan: the steps planned at first, where the run was continued with more; else ``None``.

    Raises:
      ValueError: if the path is that of a file, if another run has locked the folder, if the folder
        holds checkpoints of another mechanism, data or program, or if the newest one is damaged.
    """

    def __init__(
        self,
        checkpoint_dir: str | Path,
        identity: Hashes,
        seeded: bool,
        text: CheckpointText = CheckpointText(),  # noqa: B008
        *,
        description: Description | None = None,
        num_steps: int | None = None,
        first_steps: Callable[[int], tuple[Hashes, Description]] | None = None,
    ) -> None:
        import orbax.checkpoint as ocp

        self._path = Path(checkpoint_dir).absolute()
        for path in (self._path, *self._path.parents):
            if path.exists() and not path.is_dir():
                raise ValueError(
                    "checkpoint_dir must be a folder, or a path at which one can be made, got"
                    f" {str(checkpoint_dir)!r}, where {str(path)!r} is a file"
                )
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._identity, self._description, self._text = identity, description or {}, text
        self._num_steps, self._first_steps = num_steps, first_steps
        self.seeded = seeded
        self.first_plan: int | None = None
        with ExitStack() as opened, explain_lost_process(lambda: "while opening checkpoint_dir"):
            lock = check_all(self._lock, "checkpoint_dir")
            if lock is not None:
                opened.enter_context(lock)

            # The step folders hold keys: only their owner may read them.
            options = ocp.CheckpointManagerOptions(
                max_to_keep=2,
                enable_async_checkpointing=False,
                file_options=ocp.options.FileOptions(path_permission_mode=0o700),
            )
            self._manager = ocp.CheckpointManager(self._path, options=options)
            opened.callback(self._manager.close)
            check_all(self._check_identity, "checkpoint_dir")
            self._opened = opened.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def restore(self, like: T) -> T:
        """Returns the newest saved state, or ``like`` (which has its shapes) if there is none."""
        import orbax.checkpoint as ocp

        newest = self._manager.latest_step()
        if newest is None:
            return like

        # Shapes, dtypes and placement are those of this run.
        leaves, treedef = jax.tree.flatten(like)
        templates = {name: _template(leaf) for name, leaf in _arrays(like).items()}
        saved = self._read(newest, "state", ocp.args.StandardRestore(templates))
        restored = [
            jax.random.wrap_key_data(saved[str(i)], impl=jax.random.key_impl(leaf))
            if is_key(leaf)
            else saved[str(i)]
            for i, leaf in enumerate(leaves)
        ]
        return jax.tree.unflatten(treedef, restored)

    def save(self, state: PyTree, num_done: int) -> None:
        """Writes ``state`` after ``num_done`` units, and returns when it is on disk.

        Raises:
          OSError: it could not be written; earlier checkpoints are intact.
        """
        import orbax.checkpoint as ocp

        content = ocp.args.Composite(
            state=ocp.args.StandardSave(_arrays(state)),
            identity=ocp.args.JsonSave(
                {
                    **self._identity._asdict(),
                    "seeded": self.seeded,
                    "num_steps": self._num_steps,
                    "first_plan": self.first_plan,
                    "description": self._description,
                }
            ),
        )
        try:
            with explain_lost_process(lambda: f"while writing {self._text.unit} {num_done}"):
                self._manager.save(num_done, args=content)
                self._manager.wait_until_finished()
        except LostProcessError:
            raise
        except Exception as error:  # of tensorstore, orbax or the operating system
            reason = (str(error) or type(error).__name__).splitlines()[0][:200]
            raise OSError(
                f"checkpoint_dir {str(self._path)!r}: the checkpoint at {self._text.unit}"
                f" {num_done} cannot be written ({reason}). The checkpoint before it is intact,"
                " and nothing after it was reported: free disk space and call again with the same"
                " arguments to resume from it to the same result"
            ) from error

    def _lock(self) -> TextIOWrapper | None:
        """Locks the folder, on the first of several processes, which holds it for all."""
        return lock_folder(self._path) if jax.process_index() == 0 else None

    def _check_identity(self) -> None:
        import orbax.checkpoint as ocp

        newest = self._manager.latest_step()
        if newest is None:
            return
        saved = self._read(newest, "identity", ocp.args.JsonRestore())
        self.seeded, self.first_plan = saved.get("seeded", True), saved.get("first_plan")
        description, longer = self._description, ""
        other = _different(saved, self._identity)

        # A run of fewer planned steps is continued where these are the first of this one's.
        planned, own = saved.get("num_steps"), self._num_steps
        if other and planned and own and planned != own:
            longer = (
                f". Its run has num_steps = {planned} and this one {own}: only more steps"
                " continue it, with all else the same (noise calibrated for more steps, or a"
                " learning rate scheduled over them, is not)"
            )
            if self._first_steps is not None and planned < own:
                identity, description = self._first_steps(planned)
                other = _different(saved, identity)
                self.first_plan = self.first_plan or planned

        if other:
            differences = _describe_differences(other, saved.get("description", {}), description)
            raise ValueError(
                f"checkpoint_dir {str(self._path)!r} holds a run with another"
                f" {', another '.join(other)}: {self._text.mismatch}. What differs:"
                f" {differences}. Give a new folder, or restore what has changed{longer}"
            )

    def _read(self, step: int, item: str, args: "ocp.args.CheckpointArgs") -> dict[str, PyTree]:
        import orbax.checkpoint as ocp

        try:
            with explain_lost_process(lambda: f"while reading {self._text.unit} {step}"):
                return dict(
                    self._manager.restore(step, args=ocp.args.Composite(**{item: args}))[item]
                )
        except LostProcessError:
            raise
        except Exception as error:  # the type depends on the damaged file
            remedy = (
                f"there is no earlier one, so it must be restored from a copy. {self._text.restart}"
            )
            if older := [each for each in self._manager.all_steps() if each < step]:
                remedy = (
                    f"remove its folder {str(step)!r} to resume from the one at"
                    f" {self._text.unit} {max(older)}, which repeats all after it with the same"
                    " keys and result"
                )
            raise ValueError(
                f"checkpoint_dir {str(self._path)!r} holds a checkpoint at {self._text.unit} {step}"
                f" whose {item} cannot be read ({type(error).__name__}): {remedy}"
            ) from error


def _different(saved: Mapping[str, object], identity: Hashes) -> list[str]:
    """The names of the hashes of ``identity`` that were not saved."""
    return [name for name, own in identity._asdict().items() if saved.get(name) != own]


def _describe_differences(other: list[str], saved: Description, own: Description) -> str:
    """Returns what differs of the hashes ``other``, from the descriptions there and here."""
    texts = []
    for name in other:
        there, here = saved.get(name, {}), own.get(name, {})
        paths = [path for path in {**there, **here} if there.get(path) != here.get(path)]
        if there and paths:
            shown = [
                f"{path} is {there.get(path, 'missing')} there and {here.get(path, 'missing')} here"
                for path in paths[:_SHOWN_DIFFERENCES]
            ]
            more = len(paths) - len(shown)
            texts.append(f"{name}: {', '.join(shown)}{f', and {more} more' if more else ''}")
        elif name == "program" and texts:
            texts.append("program: it depends on these; loss and optimiser may differ, too")
        else:
            texts.append(f"{name}: {_NOT_DESCRIBED.get(name, 'its value')}")
    return "; ".join(texts)


def describe_arrays(tree: PyTree) -> dict[str, str]:
    """Returns dtype and shape of the arrays in ``tree``, by their paths."""
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    shapes = ((jax.tree_util.keystr(path), _unplaced_shape(leaf)) for path, leaf in leaves)
    return {path or "array": f"{leaf.dtype}{list(leaf.shape)}" for path, leaf in shapes}


def _arrays(state: PyTree) -> dict[str, jax.Array]:
    """The leaves by number, with keys as raw words."""
    leaves = enumerate(jax.tree.leaves(state))
    return {str(i): jax.random.key_data(leaf) if is_key(leaf) else leaf for i, leaf in leaves}


def _unplaced_shape(leaf: Array | jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
    aval = leaf if isinstance(leaf, jax.ShapeDtypeStruct) else jax.typeof(leaf)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype, weak_type=aval.weak_type)


def _template(leaf: jax.Array | np.ndarray) -> jax.ShapeDtypeStruct | np.ndarray:
    """Shape, dtype and placement; numpy's arrays are restored as such."""
    if not isinstance(leaf, jax.Array):
        return leaf
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=leaf.sharding)
