"""The sensitivity of a statistic, with its norm and adjacency."""

from collections.abc import Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any, Literal

from dpjax._checks import check, check_choice, check_normal, check_type
from dpjax.adjacency import Adjacency, check_adjacency, sensitivity_factor

Norm = Literal["l1", "l2", "linf"]
NORMS: tuple[Norm, ...] = ("l1", "l2", "linf")
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Sensitivity:
    """The largest distance between a statistic's values on two neighbouring data sets.

    It is the sensitivity under its adjacency *itself*: under ``"replace_one"`` it is not doubled
    again. Mechanisms take their sensitivity and adjacency from here only.

    Attributes:
      value: a finite number of at least 2^-1022, in the units of the statistic; a bound for every
        pair of neighbours, never a distance measured on some data (see `EmpiricalSensitivity`).
      norm: the norm of the distance: ``"l1"``, ``"l2"`` or ``"linf"``, over all entries of
        all arrays of the statistic; of a symmetric matrix, over the upper triangle and the
        diagonal.
      adjacency: ``"add_remove"``, ``"zero_out"`` or ``"replace_one"``; there is no default.
      monotone: whether of two neighbours one has the larger value in every entry, as the counts
        of a histogram when a record is added. Selection then costs half (see `NoisyMax`).
      shape: the shape of the statistic, a scalar by default: of a vector of three ``(3,)``, of a
        symmetric d by d matrix that of its upper triangle, ``(d * (d + 1) // 2,)``, of a tree a
        tuple of the shapes of its arrays, in the order of ``jax.tree.leaves``. No mechanism
        releases a value of another shape, such as the records in place of their mean.

    Raises:
      ValueError: a value, norm, adjacency or shape that is not allowed.

    >>> Sensitivity(100.0, norm="l1", adjacency="replace_one").value
    100.0
    >>> Sensitivity(1.0, norm="l2", adjacency="add_remove", shape=((3,), ())).shapes
    ((3,), ())
    """

    value: float
    norm: Norm
    adjacency: Adjacency
    monotone: bool = False
    shape: Shape | tuple[Shape, ...] = ()

    def __post_init__(self) -> None:
        check_normal("value", self.value)
        check_choice("norm", self.norm, NORMS)
        check_adjacency(self.adjacency)
        check(isinstance(self.monotone, bool), "monotone", self.monotone, "True or False")
        allowed = "a tuple of whole numbers >= 0, or of a tree a tuple of such tuples"
        is_shape = isinstance(self.shape, tuple) and all(map(_is_shape, self.shapes))
        check(is_shape, "shape", self.shape, allowed)

    @property
    def shapes(self) -> tuple[Shape, ...]:
        """The shapes of the statistic's arrays; of a statistic of one array its shape alone."""
        is_tree = any(isinstance(part, tuple) for part in self.shape)
        return self.shape if is_tree else (self.shape,)  # type: ignore[return-value]

    @property
    def clip_bound(self) -> float:
        """The clip bound of a sum with this sensitivity: all of it, or half under replace-one.

        Events state noise over a clip bound, and accountants multiply the clip bound by the factor
        of the adjacency. Dividing by the same factor here cancels it.
        """
        return self.value / sensitivity_factor(self.adjacency)


@dataclass(frozen=True)
class EmpiricalSensitivity:
    """The largest distance between some neighbours: a *lower* bound on the sensitivity.

    For teaching and tests; no mechanism accepts it. It depends on the data, so publishing it is a
    release of its own, and the sensitivity on other data may be much larger.

    Attributes:
      value: the largest distance, at least zero.
      norm: ``"l1"``, ``"l2"`` or ``"linf"``.
      adjacency: of the neighbours that were compared.
    """

    value: float
    norm: Norm
    adjacency: Adjacency


def check_sensitivity(sensitivity: Any, norm: Norm) -> None:
    """Raises an error unless ``sensitivity`` is a `Sensitivity` in ``norm``.

    Raises:
      TypeError: not a `Sensitivity`; an empirical one is only a lower bound.
      ValueError: it is stated in another norm.
    """
    if isinstance(sensitivity, EmpiricalSensitivity):
        raise TypeError(
            "sensitivity must be a Sensitivity, a bound for every pair of neighbours; an"
            f" EmpiricalSensitivity is only a lower bound on it, got {sensitivity!r}"
        )
    allowed = "a Sensitivity, which names its norm and adjacency"
    check_type("sensitivity", sensitivity, Sensitivity, allowed)
    check(sensitivity.norm == norm, "sensitivity", sensitivity, f"stated in norm {norm!r}")


def check_shapes(name: str, shapes: Sequence[Shape], sensitivity: Sensitivity) -> None:
    """Raises an error unless ``shapes`` are those of the statistic of ``sensitivity``.

    Args:
      name: of the argument, for the error.
      shapes: of the arrays of a value that is to be released.
      sensitivity: as stated.

    Raises:
      ValueError: other shapes.
    """
    if tuple(shapes) != sensitivity.shapes:
        got, stated = map(_in_words, (shapes, sensitivity.shapes))
        raise ValueError(
            f"{name} must be of shape {stated}, which its sensitivity states, got shape {got}:"
            " release the statistic, not the records that it is computed from, or state the"
            " sensitivity of what is released with its shape, Sensitivity(..., shape=...)"
        )


def _in_words(shapes: Sequence[Shape]) -> str:
    """Shapes for an error: of one array its shape."""
    if len(shapes) == 1:
        return str(shapes[0])
    return f"{tuple(shapes)} (a tree of {len(shapes)} arrays)"


def _is_shape(shape: object) -> bool:
    """Whether ``shape`` is a tuple of whole numbers of at least zero."""
    return isinstance(shape, tuple) and all(
        isinstance(size, Integral) and not isinstance(size, bool) and int(size) >= 0
        for size in shape
    )
