"""Checkpoints that resume to the same result and refuse everything else.

A saved noise key replayed on other gradients would release their difference without noise. So a
checkpoint names what it belongs to - the mechanism, the data, the program of one step - and is
refused if any of these changed. **It contains keys: keep it as secret as the data.**
"""

import dataclasses
import hashlib
import json
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import orbax.checkpoint as ocp

from dpjax.datasets.fingerprint import fingerprint


class Identity(NamedTuple):
    """What a checkpoint belongs to, each a sha256.

    Attributes:
      mechanism: of the mechanism's every field.
      data: of the training data's every byte.
      program: of one compiled step's text: loss, optimiser and versions.
    """

    mechanism: str
    data: str
    program: str


def identify(mechanism: Any, data: Any, update: Any, state: Any) -> Identity:
    """Returns the identity of training ``state`` by ``update`` on ``data``."""
    program = jax.jit(update).lower(state, data).as_text()
    return Identity(
        mechanism_hash(mechanism), fingerprint(data), _sha256(jax.__version__ + program)
    )


def mechanism_hash(mechanism: Any) -> str:
    """A sha256 over the types and values of all fields of a (nested) frozen dataclass.

    >>> from dpjax.mechanisms import SubsampledGaussian
    >>> from dpjax.sampling import PoissonSampling
    >>> one = SubsampledGaussian(PoissonSampling(100, 0.1), 1.0, 1.1, 10, "add_remove")
    >>> mechanism_hash(one) == mechanism_hash(one.scale_noise(1.01))
    False
    """
    return _sha256(json.dumps(_plain(mechanism), sort_keys=True))


class CheckpointStore:
    """Checkpoints of one training run in one folder; the newest two are kept, written atomically.

    Attributes:
      seeded: whether the run's noise comes from a seed: what the folder says where it holds a run
        (the keys are then that run's), else what was passed.

    Raises:
      ValueError: at once, if the folder holds checkpoints of another mechanism, data or program,
        or if the newest one is damaged.
    """

    def __init__(self, folder: str | Path, identity: Identity, seeded: bool) -> None:
        self._path = Path(folder).absolute()
        self._path.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._identity = identity
        self.seeded = seeded
        self._manager = ocp.CheckpointManager(self._path, options=_options())
        self._check_identity()

    def __enter__(self) -> "CheckpointStore":
        return self

    def __exit__(self, *_: Any) -> None:
        self._manager.close()

    def restore(self, like: Any) -> Any:
        """The newest saved state, or ``like`` (which gives the shapes) if there is none."""
        newest = self._manager.latest_step()
        if newest is None:
            return like
        return _rebuild(like, self._read(newest, "state", ocp.args.StandardRestore(_arrays(like))))

    def save(self, state: Any, num_releases: int) -> None:
        """Writes ``state``, and returns when it is safely on disk."""
        content = ocp.args.Composite(
            state=ocp.args.StandardSave(_arrays(state)),
            identity=ocp.args.JsonSave({**self._identity._asdict(), "seeded": self.seeded}),
        )
        self._manager.save(num_releases, args=content)
        self._manager.wait_until_finished()

    def _check_identity(self) -> None:
        newest = self._manager.latest_step()
        if newest is None:
            return
        found = self._read(newest, "identity", ocp.args.JsonRestore())
        self.seeded = found.get("seeded", True)
        other = [name for name, own in self._identity._asdict().items() if found.get(name) != own]
        if other:
            raise ValueError(
                f"checkpoint_dir {str(self._path)!r} holds a run with another"
                f" {', another '.join(other)}: resuming it here would apply noise already drawn to"
                " other gradients. Give a new folder, or restore what has changed (mechanism: its"
                " fields; data: the training arrays; program: loss, optimiser, JAX version)"
            )

    def _read(self, step: int, item: str, args: Any) -> Any:
        try:
            return self._manager.restore(step, args=ocp.args.Composite(**{item: args}))[item]
        except Exception as error:  # what orbax raises depends on the file that is damaged
            raise ValueError(
                f"checkpoint_dir {str(self._path)!r} holds a checkpoint at release {step} whose"
                f" {item} cannot be read ({type(error).__name__}): remove its folder {str(step)!r}"
                " to go on from the one before it, which does the releases since then over again,"
                " with the same noise and to the same result"
            ) from error


def _options() -> ocp.CheckpointManagerOptions:
    # The step folders hold keys, so they are closed even where the folder around them is open.
    files = ocp.options.FileOptions(path_permission_mode=0o700)
    return ocp.CheckpointManagerOptions(
        max_to_keep=2, enable_async_checkpointing=False, file_options=files
    )


def _arrays(state: Any) -> dict[str, jax.Array]:
    """The leaves by number; keys as their raw words."""
    return {str(i): _key_words(leaf) for i, leaf in enumerate(jax.tree.leaves(state))}


def _rebuild(like: Any, arrays: dict[str, jax.Array]) -> Any:
    leaves, treedef = jax.tree.flatten(like)
    restored = [
        jax.random.wrap_key_data(arrays[str(i)], impl=jax.random.key_impl(leaf))
        if _is_key(leaf)
        else arrays[str(i)]
        for i, leaf in enumerate(leaves)
    ]
    return jax.tree.unflatten(treedef, restored)


def _key_words(leaf: jax.Array) -> jax.Array:
    return jax.random.key_data(leaf) if _is_key(leaf) else leaf


def _is_key(leaf: jax.Array) -> bool:
    return jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)


def _plain(value: Any) -> Any:
    """Frozen dataclasses as JSON, their types named."""
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return {"type": type(value).__qualname__, **fields}
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    return value if isinstance(value, str | int | float | None) else repr(value)


def _sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
