"""Who takes part in a federated release, and who may attack it."""

from dataclasses import dataclass
from typing import NamedTuple

from dpjax._checks import check, check_count, check_type
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
        different nodes, and more than 2 M / 3 where many holders may drop out (D > 1 and D M at
        least the number of those who do not collude). ``None`` for all nodes (additive shares).

    Raises:
      ValueError: a number out of range, no holder left whose noise counts, or a threshold at which
        an analyst could have other sums opened than that of one set.

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
        check_type("observer_is_holder", self.observer_is_holder, bool, "True or False")
        check(self.num_noise_shares >= 1, "num_holders", self.num_holders, self._least_holders())
        if self.node_threshold is not None:
            check_count("node_threshold", self.node_threshold, minimum=2)
            allowed = f"more than half of num_nodes = {self.num_nodes}, and no more than that"
            fits = self.num_nodes < 2 * self.node_threshold <= 2 * self.num_nodes
            check(fits, "node_threshold", self.node_threshold, allowed)
            allowed = (
                f"more than two thirds of num_nodes = {self.num_nodes}, or num_dropouts at most one"
                f" or below {self._num_honest / self.num_nodes:.3g}"
            )
            check(self.num_colluding_nodes >= 0, "node_threshold", self.node_threshold, allowed)

    def _least_holders(self) -> str:
        least = self.num_holders - self.num_noise_shares + 1
        return f"at least {least}, for one share of noise that the observer cannot subtract"

    @property
    def num_noise_shares(self) -> int:
        """H: shares of noise that remain against the observer with T colluding holders."""
        known = self.num_dropouts + self.num_colluders + int(self.observer_is_holder)
        return self.num_holders - known

    @property
    def _num_honest(self) -> int:
        """Holders that neither observe nor collude, of which D may drop out."""
        return self.num_noise_shares + self.num_dropouts

    @property
    def least_holders(self) -> int:
        """N - D: a sum of fewer holders is not opened."""
        return self.num_holders - self.num_dropouts

    @property
    def num_colluding_nodes(self) -> int:
        """C, nodes that may give their shares to an analyst who asks each node for any set.

        With C colluding nodes the analyst asks m = M - C others. Given the shares of the C nodes, a
        holder's polynomial has n = t - C unknown coefficients. A linear combination of the opened
        sums, with weights w of the nodes, does not depend on the random ones if for each honest
        holder h the weights of the nodes whose sets contain h, with -a_h at the point zero, are a
        codeword of the dual of a Reed-Solomon code of dimension n; then it is the sum of a_h times
        the value of h. A codeword that is not zero has at least n + 1 entries that are not zero. In
        what follows, nodes are those whose weights are not zero.

        - D = 0: there is one set, and t - 1 nodes learn nothing.
        - D M is below the number of honest holders, so one of them is in all sets. Its codeword
          less that of another holder h has the weights of the nodes whose sets lack h: these are
          none, or at least n. If they are n, the nodes whose sets contain h are none or n more.
          So for m < 2 n all nodes open one set, and its sum is all that is learnt.
        - D = 1 and no honest holder is in all sets: of three of them, divide the nodes by which one
          their sets lack, if any. Any two of these four groups have n nodes together, so m >= 2 n.
        - Otherwise, where two holders are in different sets, n nodes have the first, n the second,
          and n one of the two without the other, so m >= 3 n / 2.
        """
        threshold, most = self.sharing.threshold, self.num_nodes
        if self.num_dropouts == 0:
            return threshold - 1
        if self.num_dropouts == 1 or self.num_dropouts * most < self._num_honest:
            return 2 * threshold - most - 1
        return 3 * threshold - 2 * most - 1

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
