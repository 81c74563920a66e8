"""Neighbouring relations: which data sets a guarantee compares, and what one record may change.

- ``"add_remove"``: one of the two data sets has one record more. Their sizes differ, so the number
  of records is private.
- ``"zero_out"``: one record is replaced by one that contributes nothing to any released sum. The
  number of records is public. For a Poisson-sampled sum epsilon is that of ``"add_remove"``.
- ``"replace_one"``: one record is replaced by any other. The number of records is public, and a sum
  of terms of norm at most ``c`` may move by ``2c`` instead of ``c``.

An adjacency is never a default in dpjax.
"""

from typing import TYPE_CHECKING, Literal

from dpjax._checks import check_choice

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation

Adjacency = Literal["add_remove", "replace_one", "zero_out"]

ADJACENCIES: tuple[Adjacency, ...] = ("add_remove", "replace_one", "zero_out")


def check_adjacency(adjacency: str) -> None:
    """Raises ValueError unless ``adjacency`` is one of `ADJACENCIES`.

    >>> check_adjacency("zero_out")
    """
    check_choice("adjacency", adjacency, ADJACENCIES)


def sensitivity_factor(adjacency: Adjacency) -> int:
    """Returns the sensitivity of a sum over the norm bound of its terms: 2 under replace-one, or 1.

    >>> [sensitivity_factor(adjacency) for adjacency in ADJACENCIES]
    [1, 2, 1]
    """
    check_adjacency(adjacency)
    return 2 if adjacency == "replace_one" else 1


def is_size_public(adjacency: Adjacency) -> bool:
    """Returns whether neighbouring data sets have equal sizes, so that n needs no protection.

    >>> [is_size_public(adjacency) for adjacency in ADJACENCIES]
    [False, True, True]
    """
    check_adjacency(adjacency)
    return adjacency != "add_remove"


def neighboring_relation(adjacency: Adjacency) -> "NeighboringRelation":
    """Returns dp-accounting's name of ``adjacency``.

    >>> neighboring_relation("zero_out").name
    'REPLACE_SPECIAL'
    """
    from dp_accounting import NeighboringRelation

    check_adjacency(adjacency)
    relations = {
        "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
        "replace_one": NeighboringRelation.REPLACE_ONE,
        "zero_out": NeighboringRelation.REPLACE_SPECIAL,
    }
    return relations[adjacency]
