"""Who takes part in a federated release, and who may attack it."""

from dataclasses import dataclass
from typing import NamedTuple

from dpjax._validation import check, check_count
from dpjax.federated.sharing import LARGEST_NODE, AdditiveSharing, SecretSharing, ShamirSharing


@dataclass(frozen=True, kw_only=True)
class Parties:
    """Who takes part in a federated release, and what may go wrong.

    Attributes:
      num_holders: N, of records.
      num_nodes: M >= 2, which add up shares.
      num_dropouts: D, holders that may drop out before their shares arrive.
      num_colluders: T, holders that may give their values and noise to the observer, or add none.
      observer_is_holder: whether who sees the result may be a holder itself.
      node_threshold: t, how many nodes open a sum (Shamir): M - t may die, and fewer than t learn
        nothing from their shares. More than M / 2, so that no two sets of holders are opened by
        different nodes. ``None`` for all nodes (additive shares).

    Raises:
      ValueError: a number out of range, or no holder left whose noise counts.

    >>> Parties(num_holders=10, num_nodes=3, num_dropouts=1, num_colluders=2).num_noise_shares
    6
    """

    num_holders: int
    num_nodes: int
    num_dropouts: int = 0
    num_colluders: int = 0
    observer_is_holder: bool = True
    node_threshold: int | None = None

    def __post_init__(self) -> None:
        check_count("num_holders", self.num_holders)
        check_count("num_nodes", self.num_nodes, minimum=2)
        check(self.num_nodes <= LARGEST_NODE, "num_nodes", self.num_nodes, "at most 65,535")
        check_count("num_dropouts", self.num_dropouts, minimum=0)
        check_count("num_colluders", self.num_colluders, minimum=0)
        check(self.num_noise_shares >= 1, "num_holders", self.num_holders, self._least_holders())
        if self.node_threshold is not None:
            check_count("node_threshold", self.node_threshold, minimum=2)
            allowed = f"more than half of num_nodes = {self.num_nodes}, and no more than that"
            fits = self.num_nodes < 2 * self.node_threshold <= 2 * self.num_nodes
            check(fits, "node_threshold", self.node_threshold, allowed)

    def _least_holders(self) -> str:
        least = self.num_holders - self.num_noise_shares + 1
        return f"at least {least}, for one share of noise that the observer cannot subtract"

    @property
    def num_noise_shares(self) -> int:
        """H: shares of noise that remain against the observer with T colluding holders."""
        known = self.num_dropouts + self.num_colluders + int(self.observer_is_holder)
        return self.num_holders - known

    @property
    def least_holders(self) -> int:
        """N - D: a sum of fewer holders is not opened."""
        return self.num_holders - self.num_dropouts

    @property
    def sharing(self) -> SecretSharing:
        """The secret sharing among the nodes."""
        if self.node_threshold is None:
            return AdditiveSharing(self.num_nodes)
        return ShamirSharing(self.num_nodes, threshold=self.node_threshold)


class Adversary(NamedTuple):
    """Who may attack a federated release, and the guarantee against it.

    Attributes:
      name: who it is.
      view: what it sees.
      num_noise_shares: shares of noise that it cannot subtract.
      epsilon: at the delta asked for.
    """

    name: str
    view: str
    num_noise_shares: int
    epsilon: float
