"""A holder's part of a round: messages that are on disk before the first of them leaves."""

import hashlib
from collections.abc import Callable

import numpy.typing as npt

from dpjax.federated.entropy import SYSTEM, Entropy
from dpjax.federated.messages import NO_PARAMETERS, ErrorCode, Kind, ProtocolError, require
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.journal import Journal
from dpjax.federated.protocol import holder_messages

# Sends a message of a kind to a node and returns the answer; raises ProtocolError.
Call = Callable[[int, Kind, bytes], bytes]

# After these a later attempt may succeed.
TEMPORARY: frozenset[ErrorCode] = frozenset(["unreachable", "internal", "early"])
_DIGEST_BYTES = 32
# Entries of rounds whose messages may have left, and of those whose delivery is over.
_SENT, _OVER = "shares-", "spent-"


def journalled_messages(
    plan: FederatedSum,
    holder: int,
    statistic: npt.ArrayLike | Callable[[], npt.ArrayLike],
    journal: Journal,
    *,
    round_number: int = 0,
    parameters: bytes = NO_PARAMETERS,
    entropy: Entropy = SYSTEM,
) -> list[bytes]:
    """Returns the messages of a holder to the nodes: the same ones in every process.

    The round's budget is spent when this returns: the messages are on disk, and may leave.

    Privacy:
      As `holder_messages`; noise is drawn once for a round.

    Args:
      plan: of the release.
      holder: index, from zero.
      statistic: ``(size,)``, from ``plan.mechanism.sum_records`` on the holder's records; or a
        function for that of a random batch, which is called where no messages are on disk.
      journal: of the holder.
      round_number: of the release.
      parameters: digest of those that the sums are taken at.
      entropy: source of random bytes; anything but the operating system's is a simulation.

    Raises:
      ProtocolError: with the code ``"spent"``, the round has messages of another statistic or at
        other parameters, or its delivery is over.
      ValueError: as `holder_messages`.
    """
    require(not has_ended(journal, round_number), "spent")
    units = b"" if callable(statistic) else plan.to_units(statistic).tobytes()
    digest = hashlib.blake2b(parameters + units, digest_size=_DIGEST_BYTES).digest()
    entry = f"{_SENT}{round_number}"
    data = journal.read(entry)
    if data is None:
        messages = holder_messages(
            plan,
            holder,
            statistic() if callable(statistic) else statistic,
            round_number=round_number,
            parameters=parameters,
            entropy=entropy,
        )
        journal.write(entry, digest + b"".join(messages))
        return messages
    require(data[:_DIGEST_BYTES] == digest, "spent")
    length = plan.message_format.length("share")
    return [data[start : start + length] for start in range(_DIGEST_BYTES, len(data), length)]


def end_deliveries(journal: Journal, *, before: int) -> None:
    """Deletes the messages of earlier rounds, which stay marked as spent.

    Args:
      journal: of the holder.
      before: number of the first round whose messages are kept.
    """
    names = journal.names()
    sent = {int(name.removeprefix(_SENT)): name for name in names if name.startswith(_SENT)}
    for number, name in sent.items():
        if number < before:
            if f"{_OVER}{number}" not in names:
                journal.write(f"{_OVER}{number}", b"")
            journal.delete(name)


def has_ended(journal: Journal, round_number: int) -> bool:
    """Returns whether the delivery of a round's messages is over.

    Args:
      journal: of the holder.
      round_number: of the release.
    """
    return f"{_OVER}{round_number}" in journal.names()


def spent_rounds(journal: Journal) -> frozenset[int]:
    """Returns the rounds whose budget a holder has spent: those whose shares may have left.

    Args:
      journal: of the holder.
    """
    names = (name for name in journal.names() if name.startswith((_SENT, _OVER)))
    return frozenset(int(name.partition("-")[2]) for name in names)


class Delivery:
    """Delivery of a holder's messages to the nodes, with as many attempts as it takes.

    Args:
      messages: one for each node.

    Attributes:
      codes: why a node has not accepted its message so far, by its index; ``None`` if it has.
    """

    def __init__(self, messages: list[bytes]) -> None:
        self._messages = messages
        self.codes: dict[int, ErrorCode | None] = dict.fromkeys(range(len(messages)), "unreachable")

    @property
    def num_accepted(self) -> int:
        """How many nodes have accepted their message."""
        return sum(code is None for code in self.codes.values())

    def attempt(self, call: Call) -> bool:
        """Sends what was not accepted or refused, and returns whether nothing is left to send.

        Args:
          call: sends one message.
        """
        for node, code in self.codes.items():
            if code not in TEMPORARY:
                continue
            try:
                call(node, "share", self._messages[node])
                self.codes[node] = None
            except ProtocolError as error:
                self.codes[node] = error.code
        return TEMPORARY.isdisjoint(self.codes.values())
