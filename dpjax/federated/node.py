"""A node's part of a round: what it received and opened is on disk before it answers."""

import threading

from dpjax.federated.journal import Journal
from dpjax.federated.messages import ANALYST, Kind, Message, require
from dpjax.federated.plan import FederatedSum
from dpjax.federated.protocol import NodeState, open_sum, receive


class Node:
    """A node that answers the messages of holders and analyst in one round.

    It opens one set of holders, whoever asks and however often its process is killed.

    Args:
      plan: of the release.
      node: index, from zero.
      journal: of the node.
      round_number: of the release.
    """

    def __init__(
        self, plan: FederatedSum, node: int, journal: Journal, *, round_number: int = 0
    ) -> None:
        self._plan, self._journal, self._round = plan, journal, round_number
        self._busy, self._is_stopped = threading.Lock(), False
        self._opening, self._share = f"opening-{round_number}", f"share-{round_number}-"
        self.state = self._read(node)

    def _read(self, node: int) -> NodeState:
        opening = self._journal.read(self._opening)
        names = [name for name in self._journal.names() if name.startswith(self._share)]
        if opening is None:
            entries = {int(name.removeprefix(self._share)): name for name in names}
            received = {(self._round, h): self._journal.read(n) for h, n in entries.items()}
            return NodeState(node, {key: data for key, data in received.items() if data})
        message = self._plan.message_format.from_bytes(
            opening, kind="opening", sender=node, receiver=ANALYST, round_number=self._round
        )
        for name in names:
            self._journal.delete(name)
        return NodeState(node, opened={self._round: (message.holders, opening)})

    def answer(self, sender: str, kind: Kind, data: bytes) -> bytes:
        """Returns the answer to a message.

        Args:
          sender: ``"analyst"`` or ``"holder-<index>"``, as the channel authenticated it.
          kind: ``"share"`` from a holder, ``"query"`` or ``"agreed"`` from the analyst.
          data: the message.

        Returns:
          Nothing to a share; to a query the holders that a share was received of or, where the sum
          is open, the opening; the opening to a set that the nodes agreed on.

        Raises:
          ProtocolError: anything else than a message that fits.
        """
        with self._busy:
            require(not self._is_stopped, "unreachable")
            if kind == "share":
                return self._accept(party_index("holder", sender), data)
            require(sender == "analyst", "sender")
            require(kind in ("query", "agreed"), "format")
            message = self._plan.message_format.from_bytes(
                data,
                kind=kind,
                sender=ANALYST,
                receiver=self.state.node,
                round_number=self._round,
            )
            return self._report() if kind == "query" else self._open(message.holders)

    def stop(self) -> None:
        """Ends the use of the journal, after the answer that is being made."""
        with self._busy:
            self._is_stopped = True

    def _accept(self, holder: int, data: bytes) -> bytes:
        state = receive(self._plan, self.state, data, holder=holder, round_number=self._round)
        if holder not in self.state.holders(self._round):
            self._journal.write(f"{self._share}{holder}", data)
        self.state = state
        return b""

    def _report(self) -> bytes:
        if self._round in self.state.opened:
            return self.state.opened[self._round][1]
        message = Message(
            kind="received",
            sender=self.state.node,
            receiver=ANALYST,
            round_number=self._round,
            holders=self.state.holders(self._round),
        )
        return self._plan.message_format.to_bytes(message)

    def _open(self, holders: frozenset[int]) -> bytes:
        state, data = open_sum(self._plan, self.state, holders, round_number=self._round)
        if self._round not in self.state.opened:
            self._journal.write(self._opening, data)
            shares = self.state.holders(self._round)
            self.state = state
            for holder in shares:
                self._journal.delete(f"{self._share}{holder}")
        return data


def party_index(role: str, name: str) -> int:
    """Returns the index in a party's name, such as 3 of ``"holder-3"``.

    Raises:
      ProtocolError: with the code ``"sender"``, the name is not of that role.
    """
    prefix, _, index = name.partition("-")
    named = prefix == role and index.isascii() and index.isdecimal() and index == str(int(index))
    require(named, "sender")
    return int(index)
