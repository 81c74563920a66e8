"""The Gaussian mechanism as an optax transformation on a clipped sum.

Transformations carry a static description of what they do, Python numbers and schedules and no
arrays: it is metadata of the pytree of their states, so it survives ``jit``, ``jax.tree.map``,
donation and checkpoints, and adds no leaf to a state.
"""

import dataclasses
from dataclasses import dataclass
from typing import Literal, NamedTuple, Self, TypeVar

import jax
import jax.numpy as jnp
import optax

from dpjax._checks import as_key, check_non_negative, check_type, is_traced
from dpjax._random import normal
from dpjax._typing import ArrayTree, ClipBound, Numeric, PRNGKey, PyTree
from dpjax.gradients.clip_bound import total_l2_clip
from dpjax.gradients.clip_rules import AdaptiveClip
from dpjax.gradients.clipping import accumulator
from dpjax.gradients.shard_map import check_same_on_devices
from dpjax.transforms.correlation import Correlation

D = TypeVar("D")
T = TypeVar("T")
Divisor = Literal["none", "public constant", "batch length"]


@jax.tree_util.register_static
@dataclass(frozen=True)
class NoiseDescription:
    """Gaussian noise on a clipped sum, once for each update.

    Attributes:
      l2_clip: the bound (or per-layer bounds) that the examples are clipped to; ``None`` if it is a
        JAX array, which ``optax.inject_hyperparams`` may change between two updates.
      noise_multiplier: standard deviation of the noise over the total bound, or a schedule of it;
        ``None`` if it is a JAX array or an object that holds one.
      divisor: what the sum is divided by. ``"batch length"`` is the length of the batch that was
        drawn: public if that is fixed, private under Poisson sampling.
      correlation: how the noise of different updates is correlated; ``None`` if it is independent.
    """

    l2_clip: ClipBound | None = dataclasses.field(hash=False)
    noise_multiplier: optax.ScalarOrSchedule | None = dataclasses.field(hash=False)
    divisor: Divisor = "none"
    correlation: Correlation | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "l2_clip", static_bounds(self.l2_clip))
        noise = self.noise_multiplier
        # Metadata must be comparable, which numbers and schedules that hold JAX arrays are not.
        held = list(getattr(noise, "__dict__", {}).values()) if callable(noise) else noise
        if any(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(held)):
            noise = None
        elif noise is not None and not callable(noise):
            noise = float(noise)
        object.__setattr__(self, "noise_multiplier", noise)


@jax.tree_util.register_static
class LeafShapes(tuple[tuple[int, ...] | None, ...]):
    """Shapes of a tree's leaves, ``None`` for leaves removed by ``optax.masked``.

    Equal to the shapes of a tree without leaves, which is what ``optax.tree_utils.tree_map_params``
    passes to ``init`` to find out a state's structure.
    """

    @classmethod
    def of(cls, tree: ArrayTree) -> Self:
        """Returns the shapes of the leaves of ``tree``."""

        def is_masked(node: object) -> bool:
            return isinstance(node, optax.MaskedNode)

        leaves = jax.tree.leaves(tree, is_leaf=is_masked)
        return cls(None if is_masked(leaf) else jnp.shape(leaf) for leaf in leaves)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LeafShapes) and (
            not self or not other or tuple(self) == tuple(other)
        )

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(LeafShapes)


class PrivateTransformation(optax.GradientTransformationExtraArgs):
    """An optax transformation that carries the description of the noise it adds.

    Attributes:
      init: as optax's.
      update: as optax's.
      description: the noise that ``update`` adds.
    """

    description: NoiseDescription

    @classmethod
    def of(
        cls,
        init: optax.TransformInitFn,
        update: optax.TransformUpdateExtraArgsFn,
        description: NoiseDescription,
    ) -> Self:
        """Returns the transformation ``(init, update)`` with its description.

        Args:
          init: as optax's.
          update: as optax's.
          description: the noise that ``update`` adds.
        """
        transformation = cls(init, update)
        transformation.description = description
        return transformation


class AddGaussianNoiseState(NamedTuple):
    """State of `add_gaussian_noise`. **The key is a secret**: with it the noise can be removed.

    Attributes:
      key: the key of the next noise; each update consumes it.
      num_releases: number of noisy sums released so far, int32.
      shapes: the shapes that every update must have (static).
      description: clip bound and noise multiplier as `dpjax.mechanism_of` reads them (static).
      buffers: earlier noise that correlated noise is made of, a secret, too; else ``None``.
    """

    key: PRNGKey
    num_releases: jax.Array
    shapes: LeafShapes
    description: NoiseDescription
    buffers: PyTree = None


def add_gaussian_noise(
    *,
    noise_multiplier: optax.ScalarOrSchedule,
    l2_clip: ClipBound,
    key: PRNGKey,
    correlation: Correlation | None = None,
) -> PrivateTransformation:
    """Adds Gaussian noise of standard deviation ``noise_multiplier * l2_clip`` to a **sum**.

    Not to be confused with ``optax.add_noise``, which has no privacy guarantee.

    Args:
      noise_multiplier: standard deviation over the clip bound; a number, or a schedule
        ``num_releases -> noise_multiplier``.
      l2_clip: the bound that examples were clipped to; with per-layer bounds the noise is scaled to
        the total bound, equal on all coordinates. With an `AdaptiveClip` the updates are
        `GradientAndSlots`, of which one example moves all together by at most 1.
      key: a JAX key. It is part of the state and split at each update, so noise is not reused.
      correlation: a strategy of correlated noise, such as ``LambdaCGD(0.9)``, whose noise partly
        cancels in sums over updates; ``noise_multiplier`` is then that of the independent noise it
        is made of. By default the noise of different updates is independent.

    Returns:
      An optax transformation on trees shaped like the parameters. A per-example tree, with its
      extra axis, is rejected, and so is a sum in half precision.

    Privacy:
      Each update is one Gaussian release: noise multiplier ``noise_multiplier`` under add/remove,
      half of it under replace one (the accountants apply the factor). Transformations after it are
      post-processing; its input must be a sum of examples clipped to ``l2_clip``, not a mean.
      With ``correlation`` all updates are one release, whose noise multiplier is this one over the
      sensitivity of the strategy, which depends on the sampler: `SubsampledGaussian` and
      `mechanism_of` derive it. Past the strategy's ``num_steps`` the updates are NaN.
      Floating-point noise: see the README on what is not guaranteed.

    Raises:
      ValueError: a standard deviation outside the range of float32, or (when applied) sums of
        other shapes than the parameters, in half precision, inside ``shard_map`` not the same on
        all devices, or under ``vmap`` several sums with one state.

    Source: Abadi et al. (2016), Algorithm 1; Mironov, Talwar, Zhang (2019) for the accounting.

    >>> noise = add_gaussian_noise(noise_multiplier=2.0, l2_clip=0.5, key=jax.random.key(0))
    >>> state = noise.init({"w": jnp.zeros(10_000)})
    >>> noisy, state = noise.update({"w": jnp.zeros(10_000)}, state)
    >>> round(float(noisy["w"].std()), 1), int(state.num_releases)
    (1.0, 1)
    """
    if not callable(noise_multiplier):
        check_non_negative("noise_multiplier", noise_multiplier)
    bound, key = total_l2_clip(l2_clip), as_key(key)
    if not callable(noise_multiplier):
        check_noise_scale(noise_multiplier, bound)
    check_type("correlation", correlation, Correlation | None, "such as LambdaCGD(0.9), or None")
    if isinstance(l2_clip, AdaptiveClip) and correlation is not None:
        raise ValueError(
            "l2_clip must be a fixed bound where the noise is correlated, got"
            f" {l2_clip!r}: noise in units of a bound that moves does not cancel"
        )
    description = NoiseDescription(l2_clip, noise_multiplier, correlation=correlation)

    def init(params: optax.Params) -> AddGaussianNoiseState:
        if isinstance(l2_clip, AdaptiveClip):
            params = l2_clip.with_slots(params, l2_clip.initial)
        buffers = None if correlation is None else correlation.init(params)
        return AddGaussianNoiseState(
            key, jnp.zeros((), jnp.int32), LeafShapes.of(params), description, buffers
        )

    def update(
        updates: optax.Updates,
        state: AddGaussianNoiseState,
        params: optax.Params | None = None,
        **extra_args: object,
    ) -> tuple[optax.Updates, AddGaussianNoiseState]:
        del params, extra_args
        check_description(state.description, description)
        check_same_on_devices("updates", updates)

        # One sum, shaped like the parameters, in float32 or wider.
        shapes = LeafShapes.of(updates)
        if tuple(shapes) != tuple(state.shapes):
            raise ValueError(
                "updates must be one clipped sum, shaped like the parameters given to init"
                f" {list(state.shapes)}, got shapes {list(shapes)}: per-example gradients are"
                " clipped and summed first, by clip_per_example or clipped_grad"
            )
        dtypes = {jnp.result_type(leaf) for leaf in jax.tree.leaves(updates)}
        narrow = [str(dtype) for dtype in dtypes if dtype.itemsize < 4]
        if narrow:
            raise ValueError(
                f"updates must be sums in float32 or wider, got {', '.join(sorted(narrow))}: a sum"
                " rounded to half precision before the noise moves by more than the clip bound when"
                " one example goes. clipped_grad and clip_per_example return float32"
            )

        # Its noise, from a key that is used once.
        multiplier = (
            noise_multiplier(state.num_releases) if callable(noise_multiplier) else noise_multiplier
        )
        next_key, noise_key = jax.random.split(state.key)
        if correlation is None:
            noisy = gaussian_like(noise_key, updates, multiplier * bound)
            return noisy, state._replace(key=next_key, num_releases=state.num_releases + 1)

        # Correlated with that of earlier updates, and NaN past those planned.
        step, deviation = state.num_releases, multiplier * bound
        if correlation.num_steps is not None:
            deviation = jnp.where(step < correlation.num_steps, deviation, jnp.nan)
        leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, updates))
        noisy_leaves, next_buffers = [], []
        keys = leaf_keys(noise_key, leaves)
        for leaf, leaf_key, buffer in zip(
            leaves, keys, jax.tree.leaves(state.buffers), strict=True
        ):
            noise, buffer = correlation.draw(leaf_key, leaf, buffer, step)
            noisy_leaves.append(_add_noise(leaf, noise, deviation))
            next_buffers.append(buffer)
        buffers = jax.tree.unflatten(jax.tree.structure(state.buffers), next_buffers)
        return jax.tree.unflatten(treedef, noisy_leaves), state._replace(
            key=next_key, num_releases=step + 1, buffers=buffers
        )

    return PrivateTransformation.of(init, update, description)


def check_description(state: D, own: D) -> None:
    """Raises ValueError for the state of another transformation.

    Of two schedules the ``noise_multiplier`` is compared, which those of mechanisms have; plain
    functions are not compared.
    """
    for name, value in vars(own).items():
        other = getattr(state, name)
        one, two = other, value
        if callable(other) and callable(value):
            one, two = (getattr(each, "noise_multiplier", None) for each in (other, value))
        if one != two:
            raise ValueError(
                f"state must come from init of the transformation that updates it: it was made with"
                f" {name} = {other!r}, the transformation has {value!r}. Changed noise or clipping"
                " needs a new state, and the releases of both count"
            )


def static_bounds(l2_clip: ClipBound | None) -> ClipBound | None:
    """The bounds as Python numbers; ``None`` where one is a JAX array, which is no metadata."""
    if any(isinstance(bound, jax.Array) for bound in jax.tree.leaves(l2_clip)):
        return None
    return jax.tree.map(float, l2_clip)


def check_noise_scale(noise_multiplier: Numeric, l2_clip: Numeric, max_batch_size: int = 0) -> None:
    """Raises ValueError for noise too small or too large for float32 sums (public numbers only).

    Args:
      noise_multiplier: standard deviation over the clip bound; zero (no noise) is accepted.
      l2_clip: total clip bound.
      max_batch_size: the most examples in a sum, whose norm is then at most ``max_batch_size *
        l2_clip``. There the spacing of float32 must be at most an eighth of the noise's standard
        deviation. For noise below 1/32 of the bound the limit of 1/32 applies.

    Raises:
      ValueError: the standard deviation is below 2^24 times float32's smallest normal number, near
        its largest, or too small beside the largest sum.
    """
    if is_traced(noise_multiplier) or is_traced(l2_clip) or noise_multiplier == 0:
        return
    limits, deviation = jnp.finfo(jnp.float32), float(noise_multiplier) * float(l2_clip)
    least, most = 2.0**24 * float(limits.tiny), 2.0**-24 * float(limits.max)
    if not least <= deviation <= most:
        raise ValueError(
            f"noise_multiplier * l2_clip must be between {least:.2g} and {most:.2g} (or zero),"
            f" where float32 holds the noise, got {noise_multiplier!r} * {l2_clip!r}"
        )
    spacing = float(limits.eps) * max_batch_size
    if 8 * spacing > max(float(noise_multiplier), 1 / 32):
        raise ValueError(
            f"noise_multiplier must be at least {8 * spacing:.3g} for sums of up to"
            f" {max_batch_size:,} examples, got {noise_multiplier!r}: float32 numbers as large as"
            f" such a sum are {spacing:.3g} * l2_clip apart, which would round the noise away. Use"
            " a smaller expected batch size or more noise"
        )


def gaussian_like(key: PRNGKey, tree: T, standard_deviation: Numeric) -> T:
    """Returns ``tree`` plus independent Gaussian noise of this standard deviation everywhere.

    Raises:
      ValueError: under ``vmap``, several trees with one key.
    """
    leaves, treedef = jax.tree.flatten(jax.tree.map(jnp.asarray, tree))
    noisy = [
        _add_noise(leaf, normal(leaf_key, leaf.shape, accumulator(leaf)), standard_deviation)
        for leaf, leaf_key in zip(leaves, leaf_keys(key, leaves), strict=True)
    ]
    noisy_tree: T = jax.tree.unflatten(treedef, noisy)
    return noisy_tree


def leaf_keys(key: PRNGKey, leaves: list[jax.Array]) -> list[PRNGKey]:
    """Returns a key for the noise of each array.

    Raises:
      ValueError: under ``vmap``, several trees with one key.
    """
    key = _key_of_each_sum(key, jax.lax.stop_gradient(leaves))
    return list(jax.random.split(key, max(len(leaves), 1)))[: len(leaves)]


def _add_noise(leaf: jax.Array, noise: jax.Array, standard_deviation: Numeric) -> jax.Array:
    scaled = noise * jnp.asarray(standard_deviation, noise.dtype)
    return (leaf.astype(noise.dtype) + scaled).astype(leaf.dtype)


@jax.custom_batching.custom_vmap
def _key_of_each_sum(key: PRNGKey, leaves: list[jax.Array]) -> PRNGKey:
    """Returns ``key``; under ``vmap``, raises ValueError for one key and several sums."""
    del leaves
    return key


@_key_of_each_sum.def_vmap
def _(
    axis_size: int, in_batched: tuple[bool, list[bool]], key: PRNGKey, leaves: list[jax.Array]
) -> tuple[PRNGKey, bool]:
    key_is_batched, leaf_is_batched = in_batched
    if any(leaf_is_batched) and not key_is_batched:
        raise ValueError(
            f"state must be another one for each of the {axis_size} sums under jax.vmap, got one"
            " for all of them: its key would add equal noise to each, and their differences would"
            " have none. Initialise each with its own key:"
            " jax.vmap(lambda key: add_gaussian_noise(..., key=key).init(params))(keys)"
        )
    return _key_of_each_sum(key, leaves), key_is_batched
