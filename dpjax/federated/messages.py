"""Messages of the protocol: bytes of one length for each kind, and errors that are codes alone.

A message is a header, the set of holders as a bitmap, shares as little-endian 64-bit words, and a
BLAKE2b digest that detects damage. The digest has no key: who may send what is for the channel
(mutual TLS) to enforce. The header names the plan, the round, the sender and the receiver, so that
a message of another plan, another round or another pair is refused. An error never contains a
value, a length or a text that depends on a record.
"""

import hashlib
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dpjax._validation import check, check_count
from dpjax.federated.entropy import UInt64

# Magic, version, kind, sender, receiver, round, fingerprint of the plan.
_HEADER = struct.Struct("<4sHHIIQ16s")
_MAGIC, _VERSION = b"dpjf", 1
_DIGEST_BYTES = 16
# The receiver of an opened sum, and the sender of a query.
ANALYST = 2**32 - 1


# Why a message or a set of messages is refused.
ErrorCode = Literal[
    "length",  # not of the length that the plan gives
    "format",  # not a message of this protocol, version and kind
    "damaged",  # the digest differs
    "plan",  # of another plan
    "round",  # of another round
    "sender",  # from another party than the channel has, or from none of the plan
    "receiver",  # for another party
    "share",  # a word that is no share
    "holders",  # another set of holders than agreed on, or not all of their shares
    "too few holders",  # the noise of those who stayed does not suffice
    "too few nodes",  # fewer opened sums than needed
    "repeated",  # a second message for the same round
    "opened",  # the node has opened another set of holders in this round
    "spent",  # shares of other records have left the holder in this round
    "unreachable",  # no answer in time, or no channel that authenticates both ends
    "internal",  # the receiver failed
]
# A share of a holder's noisy statistic, from it to a node; the sum of them, from it to the analyst.
# The analyst's question which holders a node has shares of, the answer, and the set to be opened.
Kind = Literal["share", "opening", "query", "received", "agreed"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
_WITH_WORDS: tuple[Kind, ...] = ("share", "opening")


class ProtocolError(Exception):
    """A message or a set of messages is refused; the code is all that it contains.

    Attributes:
      code: the reason.
    """

    def __init__(self, code: ErrorCode) -> None:
        super().__init__(code)
        self.code = code


@dataclass(frozen=True, kw_only=True)
class Message:
    """One message.

    Attributes:
      kind: ``"share"``, ``"opening"``, ``"query"``, ``"received"`` or ``"agreed"``.
      sender: index of the holder or of the node, or `ANALYST`.
      receiver: index of the node, or `ANALYST`.
      round_number: of the release in the plan, from zero.
      holders: whose shares are in it, or whom it names.
      words: residues, uint64 ``(size,)``; empty unless it is a share or an opening.
    """

    kind: Kind
    sender: int
    receiver: int
    round_number: int
    holders: frozenset[int]
    words: UInt64 = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False)


@dataclass(frozen=True, kw_only=True)
class MessageFormat:
    """Conversion of messages of one plan to bytes and back.

    Attributes:
      fingerprint: of the plan, 16 bytes.
      num_holders: of the plan.
      size: number of words.
    """

    fingerprint: bytes
    num_holders: int
    size: int

    def __post_init__(self) -> None:
        fits = isinstance(self.fingerprint, bytes) and len(self.fingerprint) == 16
        check(fits, "fingerprint", self.fingerprint, "16 bytes")
        check_count("num_holders", self.num_holders)
        check_count("size", self.size)

    @property
    def num_bytes(self) -> int:
        """Length of every share and opening; other messages are shorter."""
        return self.length("share")

    def length(self, kind: Kind) -> int:
        """Returns the length in bytes of a message of ``kind``, the same for all of them."""
        words = self.size if kind in _WITH_WORDS else 0
        return _HEADER.size + self._bitmap_bytes + 8 * words + _DIGEST_BYTES

    @property
    def _bitmap_bytes(self) -> int:
        return -(-self.num_holders // 8)

    def to_bytes(self, message: Message) -> bytes:
        """Returns ``message`` as bytes."""
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _KINDS.index(message.kind),
            message.sender,
            message.receiver,
            message.round_number,
            self.fingerprint,
        )
        members = sum(1 << holder for holder in message.holders)
        bitmap = members.to_bytes(self._bitmap_bytes, "little")
        body = (header, bitmap, message.words.astype("<u8", copy=False).data)
        return b"".join((*body, _digest(*body)))

    def from_bytes(
        self, data: bytes, *, kind: Kind, sender: int, receiver: int, round_number: int
    ) -> Message:
        """Returns the message in ``data``, which must be the expected one.

        Args:
          data: what was received.
          kind: expected.
          sender: as the channel authenticated it.
          receiver: this party.
          round_number: expected.

        Raises:
          ProtocolError: anything else than a message of this kind, plan, round, sender and
            receiver.
        """
        require(len(data) == self.length(kind), "length")
        body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        magic, version, *found, number, fingerprint = _HEADER.unpack_from(body)
        known = (magic, version, found[0]) == (_MAGIC, _VERSION, _KINDS.index(kind))
        require(known, "format")
        require(_digest(body) == digest, "damaged")
        require(fingerprint == self.fingerprint, "plan")
        require(number == round_number, "round")
        require(found[1] == sender, "sender")
        require(found[2] == receiver, "receiver")
        start = _HEADER.size + self._bitmap_bytes
        members = int.from_bytes(body[_HEADER.size : start], "little")
        require(members >> self.num_holders == 0, "holders")
        holders = frozenset(h for h in range(self.num_holders) if members >> h & 1)
        words = np.frombuffer(body, "<u8", offset=start).astype(np.uint64, copy=False)
        return Message(
            kind=kind,
            sender=sender,
            receiver=receiver,
            round_number=round_number,
            holders=holders,
            words=words,
        )


def require(ok: bool, code: ErrorCode) -> None:
    """Raises ``ProtocolError(code)`` unless ``ok``."""
    if not ok:
        raise ProtocolError(code)


def agreed_holders(received: Iterable[Iterable[int]]) -> frozenset[int]:
    """Returns the holders whose shares every node received.

    Args:
      received: for each node the indices of the holders that it has a share of.

    >>> sorted(agreed_holders([{0, 1, 2}, {0, 2}, {2, 1, 0}]))
    [0, 2]
    """
    sets = [frozenset(one) for one in received]
    check(bool(sets), "received", sets, "the holders of at least one node")
    return frozenset.intersection(*sets)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()
