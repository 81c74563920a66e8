"""Messages of the protocol: bytes of one length for each kind, and errors that are codes alone.

A message is a header, identifiers of draws, 64-bit words, all little-endian, and a BLAKE2b digest
that detects damage. The digest has no key: who may send what is for the channel (mutual TLS) to
enforce. The header names the plan, the round, the parameters that the round's sums are taken at,
the sender and the receiver, so that a message of another plan, round or pair is refused. An error
never contains a value, a length or a text that depends on a record.

A holder draws its noise and its shares once for a round, and gives all shares of the draw one
random identifier. A holder that lost its journal and draws again has another one, and shares of two
draws do not add up to a sum: nodes open the draws that all of them have.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

import numpy as np

from dpjax._checks import check, check_count, check_type
from dpjax._hashing import hash_bytes
from dpjax.federated.noise import UInt64

# Magic, version, kind, sender, receiver, round, fingerprint of the plan, digest of the parameters.
_HEADER = struct.Struct("<4sHHIIQ16s16s")
_MAGIC, _VERSION = b"dpjf", 2
_DIGEST_BYTES = 16
# The receiver of an opened sum, and the sender of a query.
ANALYST = 2**32 - 1
# The digest in rounds whose sums are taken at no parameters.
NO_PARAMETERS = bytes(16)


# Why a message or a set of messages is refused.
ErrorCode = Literal[
    "length",  # not of the length that the plan gives
    "format",  # not a message of this protocol, version and kind
    "damaged",  # the digest differs
    "plan",  # of another plan
    "round",  # of another round
    "early",  # of a round that has not begun at the node
    "parameters",  # of a round at other parameters
    "sender",  # from another party than the channel has, or from none of the plan
    "receiver",  # for another party
    "share",  # a word that is no share
    "holders",  # another set of holders than agreed on, or not all of their shares
    "draw",  # shares of two draws of one holder, which do not add up
    "too few holders",  # the noise of those who stayed does not suffice
    "too few nodes",  # fewer opened sums than needed
    "repeated",  # a second message for the same round
    "opened",  # the node has opened another set of holders in this round
    "spent",  # shares of other records or at other parameters have left the holder in this round
    "unreachable",  # no answer in time, or no channel that authenticates both ends
    "internal",  # the receiver failed
]
# A share of a holder's noisy statistic, from it to a node; the sum of them, from it to the analyst.
# The analyst's question whose draws a node has shares of, the answer, and the set to be opened.
# The parameters of a round, from the analyst to a node, and a holder's question for them.
# The name of a plan, from a holder or the analyst to a node, is text without a header.
Kind = Literal["share", "opening", "query", "received", "agreed", "parameters", "next", "plan"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
_WITH_WORDS: tuple[Kind, ...] = ("share", "opening", "parameters")
_WITH_DRAWS: tuple[Kind, ...] = ("opening", "received", "agreed")


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
    """A message between two parties: header, draws by holder, and an array of 64-bit words.

    Attributes:
      kind: ``"share"``, ``"opening"``, ``"query"``, ``"received"``, ``"agreed"``,
        ``"parameters"`` or ``"next"``.
      sender: index of the holder or of the node, or `ANALYST`.
      receiver: index of the node, or `ANALYST`.
      round_number: of the release in the plan, from zero.
      parameters: digest of the parameters that the round's sums are taken at.
      draws: by holder the identifier, above zero, of the draw whose share is in it or is named.
      words: the payload, uint64 ``(size,)``, in a share, an opening or parameters, else empty.
    """

    kind: Kind
    sender: int
    receiver: int
    round_number: int
    parameters: bytes = NO_PARAMETERS
    draws: Mapping[int, int] = field(default_factory=dict)
    words: UInt64 = field(default_factory=lambda: np.zeros(0, np.uint64), repr=False)

    @property
    def holders(self) -> frozenset[int]:
        """The holders in `draws`."""
        return frozenset(self.draws)


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
        """Length of the longest messages, the openings."""
        return self.length("opening")

    def length(self, kind: Kind) -> int:
        """Returns the length in bytes of a message of ``kind``, the same for all of them."""
        words = self.size if kind in _WITH_WORDS else 0
        return _HEADER.size + 8 * (self._num_draws(kind) + words) + _DIGEST_BYTES

    def _num_draws(self, kind: Kind) -> int:
        return self.num_holders if kind in _WITH_DRAWS else int(kind == "share")

    def to_bytes(self, message: Message) -> bytes:
        """Returns ``message`` as bytes."""
        # Header.
        kind = message.kind
        header = _HEADER.pack(
            _MAGIC,
            _VERSION,
            _KINDS.index(kind),
            message.sender,
            message.receiver,
            message.round_number,
            self.fingerprint,
            message.parameters,
        )

        # Draws: a share has that of its sender, other kinds have one for each holder.
        draws = np.zeros(self._num_draws(kind), "<u8")
        for holder, draw in message.draws.items():
            draws[0 if kind == "share" else holder] = draw

        # Words, and the digest of all.
        body = (header, draws.data, message.words.astype("<u8", copy=False).data)
        return b"".join((*body, hash_bytes(*body)))

    def from_bytes(
        self,
        data: bytes,
        *,
        kind: Kind,
        sender: int,
        receiver: int,
        round_number: int | None,
        parameters: bytes | None = NO_PARAMETERS,
    ) -> Message:
        """Returns the message in ``data``; any other than the expected one is refused.

        ``sender`` is as the channel authenticated it. ``None`` stands for any round, or parameters.
        """
        # The header, as expected.
        require(len(data) == self.length(kind), "length")
        body, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
        header = _HEADER.unpack_from(body)
        magic, version, kind_number, source, target, number, fingerprint, at = header
        expected = (_MAGIC, _VERSION, _KINDS.index(kind))
        require((magic, version, kind_number) == expected, "format")
        require(hash_bytes(body) == digest, "damaged")
        require(fingerprint == self.fingerprint, "plan")
        require(round_number in (None, number), "round")
        require(parameters in (None, at), "parameters")
        require(source == sender, "sender")
        require(target == receiver, "receiver")

        # Draws and words.
        content = np.frombuffer(body, "<u8", offset=_HEADER.size).astype(np.uint64, copy=False)
        draws, words = np.split(content, [self._num_draws(kind)])
        if kind == "share":
            require(draws[0] > 0, "format")
            named = {sender: int(draws[0])}
        else:
            named = {int(holder): int(draws[holder]) for holder in np.flatnonzero(draws)}

        return Message(
            kind=kind,
            sender=sender,
            receiver=receiver,
            round_number=number,
            parameters=at,
            draws=named,
            words=words,
        )

    def read_parameters(self, data: bytes, *, receiver: int) -> Message:
        """Returns the message with the analyst's parameters of any round to node ``receiver``."""
        message = self.from_bytes(
            data,
            kind="parameters",
            sender=ANALYST,
            receiver=receiver,
            round_number=None,
            parameters=None,
        )
        require(message.parameters == digest_of(message.words), "parameters")
        return message

    def read_round(self, data: bytes) -> int:
        """Returns the round that a message has in its header, which may be damaged."""
        require(len(data) >= _HEADER.size, "length")
        return int(_HEADER.unpack_from(data)[5])

    def read_share(self, data: bytes) -> tuple[int, UInt64]:
        """Returns draw and words of a share that `from_bytes` has accepted before."""
        content = np.frombuffer(data, "<u8", count=1 + self.size, offset=_HEADER.size)
        return int(content[0]), content[1:].astype(np.uint64, copy=False)


def digest_of(words: UInt64) -> bytes:
    """Returns the digest of a round's parameters, which all messages of the round contain."""
    return hash_bytes(words.astype("<u8", copy=False).data)


def require(ok: bool, code: ErrorCode) -> None:
    """Raises ``ProtocolError(code)`` unless ``ok``."""
    if not ok:
        raise ProtocolError(code)


def agreed_draws(received: Iterable[Mapping[int, int]], *, threshold: int) -> dict[int, int]:
    """Returns the draws to be opened: those whose shares ``threshold`` nodes have in common.

    A holder of which these nodes have shares of different draws is left out.

    Args:
      received: for each node the draws that it has a share of, by holder.
      threshold: how many nodes open a sum, more than half of them; of more nodes those that lack
        the fewest draws are used.

    Raises:
      ValueError: fewer nodes than ``threshold``.

    >>> agreed_draws([{0: 7, 1: 8, 2: 9}, {0: 7, 1: 5, 2: 9}, {1: 8, 2: 9, 0: 7}], threshold=3)
    {0: 7, 2: 9}
    """
    check_count("threshold", threshold)
    check_type("received", received, Iterable, "mappings from holders to draws")
    received = list(received)
    for one in received:
        check_type("received", one, Mapping, "mappings from holders to draws")

    # Pairs of holder and draw, and those that enough nodes have.
    sets = [frozenset(one.items()) for one in received]
    check(0 < threshold <= len(sets), "received", len(sets), f"of at least {threshold} nodes")
    counts = Counter(pair for one in sets for pair in one)
    wide = {pair for pair, count in counts.items() if count >= threshold}

    # Of the nodes that have the most of these, what all have.
    used = sorted(sets, key=lambda one: len(one & wide))[-threshold:]
    return dict(sorted(frozenset.intersection(*used)))
