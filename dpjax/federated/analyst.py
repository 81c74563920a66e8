"""The analyst's part of a round: it proposes one set of holders and combines what nodes open.

The analyst asks the nodes whose shares they have. Once all have those of every holder, or the time
to wait for the missing is over, it asks each node to open the set that suffices. Its choice needs
no trust: a node opens one set in a round, with the noise of N - D holders or more, and two sets
that different nodes open do not combine.
"""

from dpjax.federated.holder import TEMPORARY, Call
from dpjax.federated.journal import Journal
from dpjax.federated.messages import (
    ANALYST,
    ErrorCode,
    Kind,
    Message,
    ProtocolError,
    agreed_holders,
    require,
)
from dpjax.federated.plan import FederatedSum
from dpjax.federated.protocol import Result, combine


class Analyst:
    """The collection of one round's openings, with as many attempts as it takes.

    Args:
      plan: of the release.
      journal: of the analyst.
      round_number: of the release.

    Attributes:
      codes: why a node has not opened its sum so far, by its index.
      agreed: the holders whose sum is opened, or ``None`` before they are fixed.
      failure: why there is no result so far.
    """

    def __init__(self, plan: FederatedSum, journal: Journal, *, round_number: int = 0) -> None:
        self._plan, self._journal, self._round = plan, journal, round_number
        self._entry = f"agreed-{round_number}"
        stored = {node: journal.read(self._name(node)) for node in range(plan.parties.num_nodes)}
        self._openings = {node: data for node, data in stored.items() if data is not None}
        self.codes: dict[int, ErrorCode] = {}
        self.failure: ErrorCode = "too few nodes"
        data = journal.read(self._entry)
        self.agreed = None if data is None else self._read(0, "agreed", data).holders

    def attempt(self, call: Call, *, waiting_over: bool) -> Result | None:
        """Returns the result, or ``None`` where nodes or holders are missing.

        Args:
          call: sends one message to a node.
          waiting_over: whether a sum without some of the holders may be opened.

        Raises:
          ProtocolError: so many nodes refuse that the round cannot end with a result.
        """
        if self.agreed is None:
            self._agree(call, waiting_over)
        if self.agreed is not None:
            answers = self._ask(call, "agreed", self.agreed)
            for node, (_, data) in answers.items():
                self._journal.write(self._name(node), data)
                self._openings[node] = data
        self._check_refusals()
        if len(self._openings) < self._plan.parties.sharing.threshold:
            return None
        return combine(self._plan, self._openings, round_number=self._round)

    def _name(self, node: int) -> str:
        return f"opening-{self._round}-{node}"

    def _agree(self, call: Call, waiting_over: bool) -> None:
        parties = self._plan.parties
        answers = [message for message, _ in self._ask(call, "query", frozenset()).values()]
        opened = [message.holders for message in answers if message.kind == "opening"]
        if opened:
            self._fix(opened[0])
            return
        # Of Shamir's nodes, those that lack the fewest.
        received = sorted((message.holders for message in answers), key=len)
        most = received[-parties.sharing.threshold :]
        if len(most) < parties.sharing.threshold:
            return
        self.failure = "too few holders"
        holders = agreed_holders(most)
        complete = len(received) == parties.num_nodes and len(received[0]) == parties.num_holders
        if complete or (waiting_over and len(holders) >= parties.least_holders):
            self._fix(holders)

    def _fix(self, holders: frozenset[int]) -> None:
        self._journal.write(self._entry, self._message("agreed", 0, holders))
        self.agreed, self.failure = holders, "too few nodes"

    def _ask(
        self, call: Call, kind: Kind, holders: frozenset[int]
    ) -> dict[int, tuple[Message, bytes]]:
        """Returns what the nodes answer, parsed and as bytes; `codes` has why others did not."""
        found = {}
        for node in range(self._plan.parties.num_nodes):
            if node in self._openings or self.codes.get(node, "unreachable") not in TEMPORARY:
                continue
            try:
                data = call(node, kind, self._message(kind, node, holders))
                is_open = len(data) == self._plan.message_format.num_bytes
                answer = self._read(node, "opening" if is_open else "received", data)
                if kind == "agreed":
                    require(is_open, "format")
                    require(answer.holders == holders, "holders")
                found[node] = answer, data
                self.codes.pop(node, None)
            except ProtocolError as error:
                self.codes[node] = error.code
        return found

    def _check_refusals(self) -> None:
        refused = [code for code in self.codes.values() if code not in TEMPORARY]
        parties = self._plan.parties
        if parties.num_nodes - len(refused) < parties.sharing.threshold:
            raise ProtocolError(refused[0])

    def _message(self, kind: Kind, node: int, holders: frozenset[int]) -> bytes:
        message = Message(
            kind=kind, sender=ANALYST, receiver=node, round_number=self._round, holders=holders
        )
        return self._plan.message_format.to_bytes(message)

    def _read(self, node: int, kind: Kind, data: bytes) -> Message:
        sender, receiver = (ANALYST, node) if kind == "agreed" else (node, ANALYST)
        return self._plan.message_format.from_bytes(
            data, kind=kind, sender=sender, receiver=receiver, round_number=self._round
        )
