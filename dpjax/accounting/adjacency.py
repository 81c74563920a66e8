"""Which pairs of data sets count as neighbours, and what one record may then change.

Adjacency is never a default in dpjax. Under ``"add_remove"`` neighbours differ by the presence of
one record; the size of the data set is then private. Under ``"replace_one"`` they have the same,
public, size and differ in the value of one record, so a sum of terms of norm at most ``c`` may move
by ``2c`` instead of ``c``.
"""

from typing import Literal

from dp_accounting import NeighboringRelation

from dpjax._validation import check_choice

Adjacency = Literal["add_remove", "replace_one"]

ADJACENCIES: tuple[Adjacency, ...] = ("add_remove", "replace_one")
_RELATIONS = {
    "add_remove": NeighboringRelation.ADD_OR_REMOVE_ONE,
    "replace_one": NeighboringRelation.REPLACE_ONE,
}


def check_adjacency(adjacency: str) -> None:
    """Refuses anything but the names in ``ADJACENCIES``."""
    check_choice("adjacency", adjacency, ADJACENCIES)


def sensitivity_in_clips(adjacency: Adjacency) -> int:
    """How many clip bounds one record may move a clipped sum by: 1 (add/remove) or 2 (replace)."""
    check_adjacency(adjacency)
    return 1 if adjacency == "add_remove" else 2


def neighboring_relation(adjacency: Adjacency) -> NeighboringRelation:
    """Returns dp-accounting's name for ``adjacency``."""
    check_adjacency(adjacency)
    return _RELATIONS[adjacency]
