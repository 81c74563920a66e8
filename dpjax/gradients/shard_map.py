"""Types of arrays inside ``shard_map``, with which per-example gradients stay on their device.

There, autodiff sums the gradient of a *replicated* parameter over all devices, which would mix
per-example gradients of different devices before they are clipped. So parameters are cast to
*varying* first.
"""

from typing import TypeVar

import jax
import numpy.typing as npt
from jax.sharding import AxisType, ManualAxisType, NamedSharding, PartitionSpec

from dpjax._typing import PyTree

T = TypeVar("T")


def varying_axes(tree: PyTree) -> frozenset[str]:
    """The mesh axes along which values in ``tree`` may differ; none outside ``shard_map``.

    >>> varying_axes(jax.numpy.ones(2))
    frozenset()
    """
    leaves = jax.tree.leaves(tree)
    described = [x if hasattr(x, "manual_axis_type") else jax.typeof(x) for x in leaves]
    types = [each.manual_axis_type for each in described]
    return frozenset[str]().union(*(each.varying for each in types if each is not None))


def as_varying(tree: T, axes: frozenset[str]) -> T:
    """Returns ``tree`` typed as varying along ``axes``; values do not change.

    >>> as_varying(1.5, frozenset())
    1.5
    """

    def cast(leaf: jax.Array) -> jax.Array:
        missing = tuple(sorted(axes - varying_axes(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def check_same_on_devices(name: str, tree: PyTree) -> None:
    """Raises ValueError inside ``shard_map`` unless ``tree`` is the same on all devices.

    Noise from one key would be equal on every device: removable where these hold different parts,
    and counted several times where their sums are added up afterwards.

    Args:
      name: of the argument, for the error.
      tree: of arrays.
    """
    axes = jax.sharding.get_abstract_mesh().manual_axes
    if not axes:
        return
    if varying := sorted(varying_axes(tree)):
        raise ValueError(
            f"{name} must be one clipped sum before noise is added, but may differ between devices"
            f" along the mesh axes {varying}: add the sums of the devices first (jax.lax.psum),"
            " or add the noise outside of shard_map, where it is added once for each release"
        )
    if not varying_axes(jax.lax.axis_index(axes)):
        raise ValueError(
            f"{name} cannot be checked inside shard_map(..., check_vma=False), where they may"
            " differ between devices, and each would add equal noise: add the noise outside of"
            " shard_map, or leave out check_vma=False"
        )


def check_not_explicit(name: str, tree: PyTree) -> None:
    """Raises ValueError for arrays that are split over a mesh with explicit axes.

    Operations on them would need an output partition each. The arrays of other meshes pass.

    Args:
      name: of the argument, for the error.
      tree: of arrays.
    """
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        sharding = getattr(jax.typeof(leaf), "sharding", None)
        if sharding is None or AxisType.Explicit not in sharding.mesh.axis_types:
            continue
        if any(entry is not None for entry in sharding.spec):
            raise ValueError(
                f"{name} must not be split over explicit mesh axes, but"
                f" {name}{jax.tree_util.keystr(path)} has the partition {sharding.spec}: place it"
                " on a mesh of automatic axes, jax.make_mesh(..., axis_types=(AxisType.Auto, ...)),"
                " or, in train and private_step, pass sharding=MeshSharding(mesh, ...) and arrays"
                " without a partition"
            )


def abstract(
    shape: tuple[int, ...], dtype: npt.DTypeLike, axes: frozenset[str]
) -> jax.ShapeDtypeStruct:
    """The shape and dtype of an array that varies along ``axes``, for tracing."""
    if not axes:
        return jax.ShapeDtypeStruct(shape, dtype)
    anywhere = NamedSharding(jax.sharding.get_abstract_mesh(), PartitionSpec())
    varying = ManualAxisType(varying=axes)
    return jax.ShapeDtypeStruct(shape, dtype, sharding=anywhere, manual_axis_type=varying)


def one_example(leaf: jax.typing.ArrayLike) -> jax.ShapeDtypeStruct:
    """Shape and dtype of one entry of the leading axis, for tracing.

    >>> one_example(jax.numpy.ones((5, 2)))
    ShapeDtypeStruct(shape=(2,), dtype=float32)
    """
    aval = jax.typeof(leaf)
    return abstract(aval.shape[1:], aval.dtype, varying_axes(aval))
