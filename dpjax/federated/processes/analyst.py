"""The analyst's part of a round: it proposes one set of holders and combines what nodes open.

The analyst asks the nodes whose shares they have. Once all have those of every holder, or the time
to wait for the missing is over, it asks each node to open the set that suffices. A node opens one
set in a round, with the noise of N - D holders or more, whoever asks. Where all nodes are needed
two sets do not combine; where t of them suffice, an analyst who asks for several sets and has the
shares that more than `Parties.num_colluding_nodes` nodes received can open two.
"""

from collections.abc import Collection, Mapping

from dpjax.federated.messages import (
    ANALYST,
    NO_PARAMETERS,
    ErrorCode,
    Kind,
    Message,
    ProtocolError,
    agreed_draws,
    require,
)
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.holder import Call
from dpjax.federated.processes.journal import Journal
from dpjax.federated.protocol import Result, combine

# After these a later attempt may succeed.
TEMPORARY: frozenset[ErrorCode] = frozenset(["unreachable", "internal", "holders"])


class Analyst:
    """The collection of one round's openings, with as many attempts as it takes.

    Args:
      plan: of the release.
      journal: of the analyst.
      round_number: of the release.
      parameters: digest of those that the round's sums are taken at.
      awaited: holders that are waited for, by default all; as are those whose share a node has.

    Attributes:
      codes: why a node has not opened its sum so far, by its index.
      agreed: the draws whose sum is opened, by holder, or ``None`` before they are fixed.
      failure: why there is no result so far.
    """

    def __init__(
        self,
        plan: FederatedSum,
        journal: Journal,
        *,
        round_number: int = 0,
        parameters: bytes = NO_PARAMETERS,
        awaited: Collection[int] | None = None,
    ) -> None:
        self._plan, self._journal, self._round = plan, journal, round_number
        self._parameters = parameters
        everyone = range(plan.parties.num_holders)
        self._awaited = frozenset(everyone if awaited is None else awaited)
        self._entry = f"agreed-{round_number}"
        stored = {node: journal.read(self._name(node)) for node in range(plan.parties.num_nodes)}
        self._openings = {node: data for node, data in stored.items() if data is not None}
        self.codes: dict[int, ErrorCode] = {}
        self.failure: ErrorCode = "too few nodes"
        data = journal.read(self._entry)
        self.agreed = None if data is None else self._read(0, "agreed", data).draws

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
        return combine(
            self._plan,
            self._openings,
            round_number=self._round,
            parameters=self._parameters,
        )

    def _name(self, node: int) -> str:
        return f"opening-{self._round}-{node}"

    def _agree(self, call: Call, waiting_over: bool) -> None:
        parties = self._plan.parties
        answers = [message for message, _ in self._ask(call, "query", {}).values()]
        opened = [message.draws for message in answers if message.kind == "opening"]
        if opened:
            self._fix(opened[0])
            return
        received = [message.draws for message in answers]
        if len(received) < parties.sharing.threshold:
            return
        draws = agreed_draws(received, threshold=parties.sharing.threshold)
        # Holders that every node has a share of, but no draw that enough nodes have.
        spoiled = frozenset.intersection(*map(frozenset, received)) - draws.keys()
        self.failure = "draw" if spoiled else "too few holders"
        all_answered = len(received) == parties.num_nodes
        if all_answered and parties.num_holders - len(spoiled) < parties.least_holders:
            raise ProtocolError("draw")
        wanted = self._awaited.union(*received) - spoiled
        complete = all_answered and all(wanted <= one.keys() for one in received)
        if (complete or waiting_over) and len(draws) >= parties.least_holders:
            self._fix(draws)

    def _fix(self, draws: Mapping[int, int]) -> None:
        self._journal.write(self._entry, self._message("agreed", 0, draws))
        self.agreed, self.failure = draws, "too few nodes"

    def _ask(
        self, call: Call, kind: Kind, draws: Mapping[int, int]
    ) -> dict[int, tuple[Message, bytes]]:
        """Returns what the nodes answer, parsed and as bytes; `codes` has why others did not."""
        found = {}
        for node in range(self._plan.parties.num_nodes):
            if node in self._openings or self.codes.get(node, "unreachable") not in TEMPORARY:
                continue
            try:
                data = call(node, kind, self._message(kind, node, draws))
                is_open = len(data) == self._plan.message_format.num_bytes
                answer = self._read(node, "opening" if is_open else "received", data)
                if kind == "agreed":
                    require(is_open, "format")
                    require(answer.holders == draws.keys(), "holders")
                    require(answer.draws == draws, "draw")
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

    def _message(self, kind: Kind, node: int, draws: Mapping[int, int]) -> bytes:
        message = Message(
            kind=kind,
            sender=ANALYST,
            receiver=node,
            round_number=self._round,
            parameters=self._parameters,
            draws=draws,
        )
        return self._plan.message_format.to_bytes(message)

    def _read(self, node: int, kind: Kind, data: bytes) -> Message:
        sender, receiver = (ANALYST, node) if kind == "agreed" else (node, ANALYST)
        return self._plan.message_format.from_bytes(
            data,
            kind=kind,
            sender=sender,
            receiver=receiver,
            round_number=self._round,
            parameters=self._parameters,
        )
