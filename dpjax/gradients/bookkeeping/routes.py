"""Which route each parameter leaf takes, and why: decided once, from shapes alone."""

import math
from typing import Any, Literal, NamedTuple

from dpjax.gradients.bookkeeping.factors import LOOKUPS, Shape, shape_of
from dpjax.gradients.bookkeeping.program import Program, Site, aval

Name = Literal["factors", "materialise", "in turn", "vmap", "unused"]


# Multiplications in the time that one number of a formed gradient takes to be written and read
# again (12 bytes at some 10 GB/s, against 16 multiplications a nanosecond, on two CPU cores).
_WORK_PER_FLOAT = 20
# A gradient of more floats than this (2 MB) leaves the cache before it is read again: all examples'
# together are then slower than one after the other, and a batch of them may not fit in memory.
_LARGE = 2**19


class Route(NamedTuple):
    """How one leaf's per-example norms and clipped sum are computed.

    Attributes:
      name: ``"factors"``: norms from inputs and signals, no gradient formed. ``"materialise"``:
        each example's gradient formed from its input and signal. ``"vmap"``: each example's
        gradient by ``vmap(grad)`` of this leaf. ``"in turn"``: formed for one example after the
        other, for its norm alone. ``"unused"``: the loss does not depend on it.
      reason: why, in words.
      floats: how many numbers the route holds for one example.
    """

    name: Name
    reason: str
    floats: int


def choose(program: Program, leaf: int, size: int) -> Route:
    """Returns the route of one leaf of ``size`` entries."""
    if leaf in program.refused:
        return Route("vmap", program.refused[leaf], size)
    sites = [program.sites[number] for number in program.sites_of(leaf)]
    if not sites or size == 0:
        return Route("unused", "the loss does not depend on it", 0)
    shapes = _common_factors(sites)
    if shapes is None:
        return Route("materialise", _words(sites), size)
    terms = sum(shape.terms for shape in shapes)
    if _only_looks_up(sites):
        return Route("factors", f"{_words(sites)}, {terms} lookups", terms * shapes[0].columns)
    if _gram_work(shapes) < _WORK_PER_FLOAT * size:
        return Route("factors", f"{_words(sites)}, {_products(terms)}", _gram_floats(shapes))
    words = f"{_words(sites)}, {_products(terms)}: forming it is cheaper"
    return (
        Route("in turn", words, 0) if _is_large(sites, size) else Route("materialise", words, size)
    )


def _common_factors(sites: list[Site]) -> list[Shape] | None:
    """The shapes of all sites if their factors can be laid side by side, else ``None``."""
    shapes = [shape_of(site) for site in sites]
    if any(shape is None for shape in shapes):
        return None
    if len(sites) > 1 and not _same_orientation(sites):
        return None
    return shapes  # type: ignore[return-value]


def _same_orientation(sites: list[Site]) -> bool:
    """Whether all are matrices, and what looks up rows looks up the leaf's own rows."""
    axes = [(row_axis(site), site.equation.primitive.name) for site in sites]
    return all(axis == 0 or (axis == 1 and name == "dot_general") for axis, name in axes)


def row_axis(site: Site) -> int | None:
    """Which axis of a matrix leaf the factors' ``left`` runs along; ``None`` if it is no matrix.

    Sites of one leaf are put side by side only where views did nothing but transpose it.
    """
    axes = _leaf_axes(site)
    if axes is None or len(axes) != 2:
        return None
    if site.equation.primitive.name in LOOKUPS:
        return axes[0]
    if site.equation.primitive.name != "dot_general":
        return None
    contracting, batch = site.equation.params["dimension_numbers"]
    if batch[site.operand] or len(contracting[site.operand]) != 1:
        return None
    return axes[contracting[site.operand][0]]


def _leaf_axes(site: Site) -> list[int] | None:
    """For each axis of the operand the leaf's axis it is, if the views only transpose and cast."""
    axes = list(range(aval(site.equation.invars[site.operand]).ndim))
    for view in site.views:
        if view.primitive.name == "transpose":
            axes = [axes[d] for d in view.params["permutation"]]
        elif view.primitive.name not in ("convert_element_type", "copy"):
            return None
    return axes


def _is_large(sites: list[Site], size: int) -> bool:
    return len(sites) == 1 and size > _LARGE


def _only_looks_up(sites: list[Site]) -> bool:
    return len(sites) == 1 and sites[0].equation.primitive.name in LOOKUPS


def _gram_work(shapes: list[Shape]) -> int:
    terms = sum(shape.terms for shape in shapes)
    return terms**2 * max(shape.groups * (shape.rows + shape.columns) for shape in shapes)


def _gram_floats(shapes: list[Shape]) -> int:
    return 2 * max(shape.groups for shape in shapes) * sum(shape.terms for shape in shapes) ** 2


def _products(terms: int) -> str:
    return "one outer product" if terms == 1 else f"{terms} outer products"


def _words(sites: list[Site]) -> str:
    names = [site.equation.primitive.name for site in sites]
    return " and ".join(names) if len(names) < 4 else f"{len(names)} uses, first {names[0]}"


def size_of(leaf: Any) -> int:
    """The number of entries of an array."""
    return math.prod(leaf.shape)
