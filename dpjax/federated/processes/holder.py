"""A holder's process: its messages are on disk before the first is sent."""

import hashlib
import zipfile
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from dpjax._checks import check
from dpjax._typing import PRNGKey
from dpjax.federated.messages import (
    NO_PARAMETERS,
    ErrorCode,
    Message,
    ProtocolError,
    digest_of,
    require,
)
from dpjax.federated.noise import SYSTEM, Entropy, UInt64
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.config import PartySettings
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.progress import Status, log_progress
from dpjax.federated.processes.transport import PAUSE_IN_TRAINING, Call, connect, poll
from dpjax.federated.protocol import holder_messages
from dpjax.federated.training import ClippedGradientSum, Records, Training
from dpjax.keys import release_key

# After these a later attempt may succeed.
_TEMPORARY: frozenset[ErrorCode] = frozenset(["unreachable", "internal", "early"])
_DIGEST_BYTES = 32
# Entries of rounds whose messages may have left, and of those whose delivery is over.
_SENT, _OVER = "shares-", "spent-"
# Entries of the combinations of earlier sums that correlated noise needs, before a round.
_BUFFERS = "buffers-"


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

    As `holder_messages`, with noise that is drawn once for a round. The round's budget is spent
    when this returns: the messages are on disk, and may leave. ``statistic`` may be a function for
    that of a random batch, which is called where no messages are on disk.

    Raises:
      ProtocolError: with the code ``"spent"``, the round has messages of another statistic or at
        other parameters, or its delivery is over.
      ValueError: as `holder_messages`.
    """
    require(not has_ended(journal, round_number), "spent")

    # What the messages are of: the parameters and, where it is not drawn, the statistic.
    units = b"" if callable(statistic) else plan.to_units(statistic).tobytes()
    digest = hashlib.blake2b(parameters + units, digest_size=_DIGEST_BYTES).digest()

    # The first process draws noise and shares, and writes them to disk.
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

    # Every later one reads them.
    require(data[:_DIGEST_BYTES] == digest, "spent")
    length = plan.message_format.length("share")
    return [data[start : start + length] for start in range(_DIGEST_BYTES, len(data), length)]


def end_deliveries(journal: Journal, *, before: int) -> None:
    """Deletes the messages of rounds ``before`` a number; the rounds stay marked as spent."""
    names = journal.names()
    sent = {int(name.removeprefix(_SENT)): name for name in names if name.startswith(_SENT)}
    for number, name in sent.items():
        if number < before:
            if f"{_OVER}{number}" not in names:
                journal.write(f"{_OVER}{number}", b"")
            journal.delete(name)


def has_ended(journal: Journal, round_number: int) -> bool:
    """Returns whether the delivery of a round's messages is over."""
    return f"{_OVER}{round_number}" in journal.names()


def spent_rounds(journal: Journal) -> frozenset[int]:
    """Returns the rounds whose budget a holder has spent: those whose shares may have left."""
    names = (name for name in journal.names() if name.startswith((_SENT, _OVER)))
    return frozenset(int(name.partition("-")[2]) for name in names)


class Delivery:
    """Delivery of a holder's messages, one for each node, with as many attempts as it takes.

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
        """Sends what was not accepted or refused, and returns whether nothing is left to send."""
        for node, code in self.codes.items():
            if code not in _TEMPORARY:
                continue
            try:
                call(node, "share", self._messages[node])
                self.codes[node] = None
            except ProtocolError as error:
                self.codes[node] = error.code
        return _TEMPORARY.isdisjoint(self.codes.values())


class TrainingHolder:
    """A holder of a training, which sums gradients once in a round.

    ``new_key`` returns a new secret key for each batch. Any other source of entropy than the
    operating system's is a simulation.

    Attributes:
      round_number: of the newest round whose parameters the holder has, or -1.
      is_over: whether the training has ended.
      codes: why a node has not answered, by its index.
    """

    def __init__(
        self,
        plan: FederatedSum,
        holder: int,
        training: Training,
        records: Records,
        journal: Journal,
        *,
        entropy: Entropy = SYSTEM,
        new_key: Callable[[], PRNGKey] = release_key,
    ) -> None:
        assert isinstance(plan.mechanism, ClippedGradientSum)
        self._plan, self._holder, self._training = plan, holder, training
        self._sums = plan.mechanism
        self._records, self._journal = records, journal
        self._entropy, self._new_key = entropy, new_key
        self._delivery: Delivery | None = None
        self._asked = holder  # nodes are asked in turn, by each holder from another one on
        self.round_number, self.is_over = -1, False
        self.codes: dict[int, ErrorCode] = {}

    @property
    def status(self) -> Status:
        """State of the training."""
        return Status(None if self.round_number < 0 else self.round_number)

    def attempt(self, call: Call) -> bool:
        """Continues the newest round, and returns whether the training has ended.

        Raises:
          ProtocolError: all nodes refuse; or with the code ``"spent"``, messages at other
            parameters have left in the round.
        """
        self._ask(call)
        if self._delivery is not None and self._delivery.attempt(call):
            end_deliveries(self._journal, before=self.round_number + 1)
            self._delivery = None
        return self.is_over

    def _ask(self, call: Call) -> None:
        """Asks the next node for the parameters of a later round than the newest."""
        node = self._asked % self._plan.parties.num_nodes
        self._asked += 1
        number = self.round_number + 1
        question = Message(kind="next", sender=self._holder, receiver=node, round_number=number)

        # An empty answer means that the round has not begun at the node.
        try:
            data = call(node, "next", self._plan.message_format.to_bytes(question))
            self.codes.pop(node, None)
            message = self._read(node, data) if data else None
        except ProtocolError as error:
            self.codes[node] = error.code
            refused = [code for code in self.codes.values() if code not in _TEMPORARY]
            if len(refused) == self._plan.parties.num_nodes:
                raise
            return

        if message is not None:
            self._enter(message.round_number, message.words)

    def _read(self, node: int, data: bytes) -> Message:
        message = self._plan.message_format.read_parameters(data, receiver=node)
        require(self.round_number < message.round_number, "round")
        require(message.round_number <= self._plan.mechanism.num_rounds, "round")
        return message

    def _enter(self, round_number: int, words: UInt64) -> None:
        # All earlier rounds are over.
        end_deliveries(self._journal, before=round_number)
        self.round_number, self._delivery = round_number, None
        self.is_over = round_number == self._plan.mechanism.num_rounds
        if self.is_over or has_ended(self._journal, round_number):
            return

        # A batch and its gradients are drawn once, in the first process of the round. The buffers
        # after it are on disk before the messages, without which nothing of the round has left.
        def statistic() -> npt.NDArray[np.float64]:
            summed = self._training.clipped_sum(
                self._new_key(), words.view(np.float64), round_number, self._records
            )
            before = self._buffers_before(round_number)
            sent, buffers = self._sums.multiply(summed, before, round_number=round_number)
            if buffers.size:
                after = f"{_BUFFERS}{round_number + 1}"
                if after in self._journal.names():
                    self._journal.delete(after)
                self._journal.write(after, buffers.tobytes())
            return sent

        messages = journalled_messages(
            self._plan,
            self._holder,
            statistic,
            self._journal,
            round_number=round_number,
            parameters=digest_of(words),
            entropy=self._entropy,
        )
        self._delivery = Delivery(messages)

        # Buffers before the round, whose messages are on disk, are of no more use.
        entries = (name for name in self._journal.names() if name.startswith(_BUFFERS))
        self._journal.delete(*(name for name in entries if _number(name) <= round_number))

    def _buffers_before(self, round_number: int) -> npt.NDArray[np.float64]:
        """Returns the buffers before a round; rounds that the holder missed have sums of zeros."""
        buffers, first = self._sums.init_buffers(), 0
        if not buffers.size:
            return buffers
        entries = (name for name in self._journal.names() if name.startswith(_BUFFERS))
        newest = max((n for n in map(_number, entries) if n <= round_number), default=0)
        if newest:
            data = self._journal.read(f"{_BUFFERS}{newest}")
            assert data is not None
            buffers, first = np.frombuffer(data).reshape(buffers.shape), newest
        for number in range(first, round_number):
            zeros = np.zeros(self._sums.num_parameters)
            _, buffers = self._sums.multiply(zeros, buffers, round_number=number)
        return buffers


def _number(entry: str) -> int:
    """The round in the name of an entry."""
    return int(entry.rpartition("-")[2])


class HolderOutcome(NamedTuple):
    """How a holder's round or training ended.

    Attributes:
      codes: why a node has not accepted its message, by its index; ``None`` if it has.
      is_complete: whether as many nodes have accepted it as open a sum, or the training is over.
      spent: the rounds whose budget is spent.
    """

    codes: Mapping[int, ErrorCode | None]
    is_complete: bool
    spent: frozenset[int]


def run_holder(settings: PartySettings) -> HolderOutcome:
    """Sends a holder's messages, and returns when all nodes have answered or time is over.

    In a training the holder sends messages in every round, and returns when the last one is over.

    Privacy:
      A round's budget is spent from its first message on, with or without a result.

    Raises:
      ProtocolError: with the code ``"spent"``, messages of other records or at other parameters
        have left in the round.
      ValueError: records that the mechanism does not take, or a journal of another party.
    """
    study, party = settings.study, f"holder-{settings.index}"
    arrays = _read_arrays(settings)

    # Many rounds, of which each begins with the parameters that nodes hand on.
    if study.program is not None:
        training = study.load_training()
        with settings.open_journal(party) as journal, connect(settings) as channels:
            holder = TrainingHolder(study.plan, settings.index, training, arrays, journal)
            with log_progress(party, study.plan, lambda: holder.status, channels.codes):
                poll(
                    lambda _: holder.attempt(channels.call) or None,
                    time_limit=study.time_limit,
                    pause=PAUSE_IN_TRAINING,
                )
            return HolderOutcome(dict(holder.codes), holder.is_over, spent_rounds(journal))

    # One round: its messages are on disk before a channel is opened.
    statistic = _sum_records(study.plan, arrays)
    with settings.open_journal(party) as journal:
        messages = journalled_messages(
            study.plan, settings.index, statistic, journal, round_number=study.round_number
        )
        delivery = Delivery(messages)
        status = Status(study.round_number)
        with (
            connect(settings) as channels,
            log_progress(party, study.plan, lambda: status, channels.codes),
        ):
            poll(lambda _: delivery.attempt(channels.call) or None, time_limit=study.time_limit)
        is_complete = delivery.num_accepted >= study.plan.parties.sharing.threshold
        return HolderOutcome(dict(delivery.codes), is_complete, spent_rounds(journal))


def _read_arrays(settings: PartySettings) -> dict[str, npt.NDArray[np.generic]]:
    path, names = settings.data, settings.arrays
    check(zipfile.is_zipfile(path), "data", str(path), "an npz file")
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in names if name not in file]
        check(not missing, "arrays", missing, f"of the arrays in data: {', '.join(file)}")
        return {name: file[name] for name in names}


def _sum_records(
    plan: FederatedSum, arrays: Mapping[str, npt.NDArray[np.generic]]
) -> npt.NDArray[np.generic]:
    try:
        return plan.mechanism.sum_records(*arrays.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"arrays {list(arrays)} do not fit the mechanism: {error}") from error
