"""Inside ``shard_map``: saying that parameters differ between devices, so gradients stay local.

There, autodiff sums the gradient of a *replicated* parameter over all devices. For one example's
gradient that is wrong: it would be mixed with those of the other devices before it is clipped.
"""

from typing import Any

import jax


def varying_axes(tree: Any) -> frozenset[str]:
    """The mesh axes along which values in ``tree`` may differ; none outside ``shard_map``.

    >>> varying_axes(jax.numpy.ones(2))
    frozenset()
    """
    return frozenset[str]().union(*map(_axes, jax.tree.leaves(tree)))


def as_varying(tree: Any, axes: frozenset[str]) -> Any:
    """Returns ``tree`` typed as differing along ``axes``; no value changes, nothing is sent.

    >>> as_varying(1.5, frozenset())
    1.5
    """

    def cast(leaf: Any) -> Any:
        missing = tuple(sorted(axes - _axes(leaf)))
        return jax.lax.pcast(leaf, missing, to="varying") if missing else leaf

    return jax.tree.map(cast, tree)


def _axes(leaf: Any) -> frozenset[str]:
    return jax.typeof(leaf).manual_axis_type.varying
