"""A node's part of a round: what it received and opened is on disk before it answers."""

import threading
from collections.abc import Mapping
from typing import NamedTuple

from dpjax.federated.messages import ANALYST, NO_PARAMETERS, Kind, Message, require
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.config import PartySettings
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.plan_check import (
    plan_name,
    plans_to_bytes,
    read_study_name,
    study_name,
)
from dpjax.federated.processes.progress import Status, log_progress
from dpjax.federated.processes.transport import Identity, serve
from dpjax.federated.protocol import NodeState, open_sum, receive, received_draws


class Node:
    """A node that answers the messages of holders and analyst in one round at a time.

    It opens one set of holders in a round, whoever asks and however often its process is killed. In
    training a round begins with the parameters that the analyst sends, which the node hands on to
    the holders; then all earlier rounds are over.

    ``round_number`` is ``None`` for the rounds of a training.

    Attributes:
      state: what was received and opened in the round.
      round_number: of the round, or ``None`` before the first one has begun.
    """

    def __init__(
        self,
        plan: FederatedSum,
        node: int,
        journal: Journal,
        *,
        round_number: int | None = 0,
        name: str | None = None,
    ) -> None:
        self._plan, self._journal, self._index = plan, journal, node
        self._busy, self._is_stopped = threading.Lock(), False
        self._is_training = round_number is None
        self.state, self.round_number = NodeState(node), round_number
        self._begun, self._parameters = b"", NO_PARAMETERS
        self._summed: frozenset[int] | None = None
        self._plans = {f"node-{node}": name or plan_name(plan, round_number)}
        if self._is_training:
            rounds = [_round_of(name) for name in journal.names() if name.startswith("parameters-")]
            round_number = max(rounds, default=None)
        if round_number is not None:
            self._enter(round_number)

    def _enter(self, round_number: int) -> None:
        """Continues a round from the journal; what is left of earlier rounds is deleted."""
        # A round of a training begins with its parameters, and ends all earlier ones.
        names = self._journal.names()
        if self._is_training:
            data = self._journal.read(f"parameters-{round_number}")
            assert data is not None
            message = self._plan.message_format.read_parameters(data, receiver=self._index)
            self._begun, self._parameters = data, message.parameters
            over = [name for name in names if _round_of(name) < round_number]
            self._journal.delete(*over)
            names = [name for name in names if name not in over]
        self.round_number = round_number

        # Shares as they were received, as long as no sum is open.
        opening = self._journal.read(f"opening-{round_number}")
        shares = [name for name in names if name.startswith(f"share-{round_number}-")]
        if opening is None:
            entries = {int(name.rpartition("-")[2]): self._journal.read(name) for name in shares}
            received = {(round_number, holder): data for holder, data in entries.items() if data}
            self.state = NodeState(self._index, received)
            return

        # Else the opening alone.
        message = self._plan.message_format.from_bytes(
            opening,
            kind="opening",
            sender=self._index,
            receiver=ANALYST,
            round_number=round_number,
            parameters=self._parameters,
        )
        self._journal.delete(*shares)
        self.state = NodeState(self._index, opened={round_number: (message.draws, opening)})
        self._summed = message.holders

    @property
    def status(self) -> Status:
        """Number of the node's current round, and the holders whose shares it has received."""
        with self._busy:
            number = self.round_number
            over = number == self._plan.mechanism.num_rounds
            if number is None or over or number in self.state.opened:
                return Status(number, summed=self._summed)
            return Status(number, shares=self.state.holders(number), summed=self._summed)

    def answer(self, sender: str, kind: Kind, data: bytes) -> bytes:
        """Returns the answer to a message.

        Args:
          sender: ``"analyst"`` or ``"holder-<index>"``, as the channel authenticated it.
          kind: ``"share"`` or ``"next"`` from a holder, ``"parameters"``, ``"query"`` or
            ``"agreed"`` from the analyst, ``"plan"`` from both.
          data: the message.

        Returns:
          Nothing to a share and to parameters; to a query the draws that a share was received of
          or, where the sum is open, the opening; the opening to a set that the nodes agreed on; to
          a holder's question for the next parameters those of the node's round, or nothing where
          the asked round has not begun; to the name of a plan those of all parties.

        Raises:
          ProtocolError: anything else than a message that fits.
        """
        with self._busy:
            require(not self._is_stopped, "unreachable")
            if kind == "plan":
                return self._compare(sender, data)

            # Holders send shares, and ask for parameters.
            if kind in ("share", "next"):
                holder = party_index("holder", sender)
                return self._accept(holder, data) if kind == "share" else self._next(holder, data)

            # Everything else is the analyst's.
            require(sender == "analyst", "sender")
            require(kind in ("parameters", "query", "agreed"), "format")
            if kind == "parameters":
                return self._begin(data)
            self._check_begun(data)
            message = self._plan.message_format.from_bytes(
                data,
                kind=kind,
                sender=ANALYST,
                receiver=self._index,
                round_number=self.round_number,
                parameters=self._parameters,
            )
            return self._report() if kind == "query" else self._open(message.draws)

    def _compare(self, sender: str, data: bytes) -> bytes:
        """Returns the plans received from parties so far; any plan is accepted."""
        if sender != "analyst":
            party_index("holder", sender)
        self._plans[sender] = read_study_name(data)
        return plans_to_bytes(self._plans)

    def stop(self) -> None:
        """Ends the use of the journal, after the answer that is being made."""
        with self._busy:
            self._is_stopped = True

    def _check_begun(self, data: bytes) -> int:
        """Returns the number of the round that has begun, unless the message is of a later one."""
        number = self._plan.message_format.read_round(data)
        if self._is_training:
            require(self.round_number is not None and number <= self.round_number, "early")
        assert self.round_number is not None
        return self.round_number

    def _accept(self, holder: int, data: bytes) -> bytes:
        number = self._check_begun(data)
        state = receive(
            self._plan,
            self.state,
            data,
            holder=holder,
            round_number=number,
            parameters=self._parameters,
        )
        if (number, holder) not in self.state.received:
            self._journal.write(f"share-{number}-{holder}", data)
        self.state = state
        return b""

    def _report(self) -> bytes:
        number = self.round_number
        assert number is not None
        if number in self.state.opened:
            return self.state.opened[number][1]
        message = Message(
            kind="received",
            sender=self._index,
            receiver=ANALYST,
            round_number=number,
            parameters=self._parameters,
            draws=received_draws(self._plan, self.state, round_number=number),
        )
        return self._plan.message_format.to_bytes(message)

    def _open(self, draws: Mapping[int, int]) -> bytes:
        number = self.round_number
        assert number is not None
        state, data = open_sum(
            self._plan, self.state, draws, round_number=number, parameters=self._parameters
        )
        if number not in self.state.opened:
            self._journal.write(f"opening-{number}", data)
            shares = self.state.holders(number)
            self.state, self._summed = state, frozenset(draws)
            self._journal.delete(*(f"share-{number}-{holder}" for holder in shares))
        return data

    def _begin(self, data: bytes) -> bytes:
        require(self._is_training, "format")
        message = self._plan.message_format.read_parameters(data, receiver=self._index)
        number, current = message.round_number, self.round_number
        require(number <= self._plan.mechanism.num_rounds, "round")
        require(current is None or number >= current, "round")
        if number == current:
            require(message.parameters == self._parameters, "parameters")
            return b""
        self._journal.write(f"parameters-{number}", data)
        self._enter(number)
        return b""

    def _next(self, holder: int, data: bytes) -> bytes:
        require(self._is_training, "format")
        message = self._plan.message_format.from_bytes(
            data, kind="next", sender=holder, receiver=self._index, round_number=None
        )
        begun = self.round_number is not None and self.round_number >= message.round_number
        return self._begun if begun else b""


def party_index(role: str, name: str) -> int:
    """Returns the index in a party's name, such as 3 of ``"holder-3"``.

    Raises:
      ProtocolError: with the code ``"sender"``, the name is not of that role.
    """
    prefix, _, index = name.partition("-")
    named = prefix == role and index.isascii() and index.isdecimal() and index == str(int(index))
    require(named, "sender")
    return int(index)


def _round_of(name: str) -> int:
    """The round in the name of an entry, such as 3 of ``"share-3-0"``."""
    return int(name.split("-")[1])


class NodeOutcome(NamedTuple):
    """How a node ended.

    Attributes:
      round_number: of the last round that has begun, or ``None``.
      holders: whose sum was opened in it, or ``None``.
    """

    round_number: int | None
    holders: frozenset[int] | None


def run_node(settings: PartySettings, stop: threading.Event) -> NodeOutcome:
    """Answers messages until ``stop`` is set or time is over.

    Raises:
      ValueError: an address that is not free, or a journal of another party.
    """
    study = settings.study
    number = study.round_number if study.program is None else None
    with settings.open_journal(f"node-{settings.index}") as journal:
        node = Node(
            study.plan, settings.index, journal, round_number=number, name=study_name(study)
        )
        server, _ = serve(
            node.answer,
            settings.address or study.nodes[settings.index],
            Identity.of_party(settings),
            max_bytes=study.plan.message_format.num_bytes,
            num_clients=study.plan.parties.num_holders + 1,
        )

        # The journal is closed when no answer is being made.
        try:
            with log_progress(f"node-{settings.index}", study.plan, lambda: node.status, {}):
                stop.wait(study.time_limit)
        finally:
            server.stop(grace=1).wait()
            node.stop()

        draws = [draws for draws, _ in node.state.opened.values()]
    return NodeOutcome(node.round_number, frozenset(draws[0]) if draws else None)
