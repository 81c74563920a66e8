"""Training over many rounds: the analyst's and a holder's part, each from its journal.

A round is one release of the plan. It begins with the parameters that the analyst publishes through
the nodes, and is over when the parameters of the next one are there. The digest of the parameters
is in every message of the round, so shares of gradients that were taken at other parameters are
refused. After the last round the analyst publishes the final parameters, which end the training.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from dpjax._typing import PRNGKey
from dpjax.federated.entropy import SYSTEM, Entropy, UInt64
from dpjax.federated.messages import (
    ANALYST,
    ErrorCode,
    Kind,
    Message,
    ProtocolError,
    digest_of,
    require,
)
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.analyst import TEMPORARY, Analyst
from dpjax.federated.processes.holder import (
    Call,
    Delivery,
    end_deliveries,
    has_ended,
    journalled_messages,
)
from dpjax.federated.processes.journal import Journal
from dpjax.federated.protocol import Result
from dpjax.federated.training import ParameterFormat, Records, Training, noise_factor
from dpjax.keys import release_key

_STATE, _KEPT = "state-", "kept-"


class TrainingAnalyst:
    """The analyst of a training, who continues from the state on disk.

    Args:
      plan: of the training.
      training: of the plan.
      journal: of the analyst.
      waiting_time: seconds that holders who took part in the last round are waited for.
      keep_every: of how many rounds the parameters after one are kept, or zero for none.

    Attributes:
      round_number: of the round, the plan's number of rounds when all are over.
      state: after the rounds before it.
      codes: why a node has not taken the round's parameters, by its index.
      failure: why the round has no result so far.
    """

    def __init__(
        self,
        plan: FederatedSum,
        training: Training,
        journal: Journal,
        *,
        waiting_time: float,
        keep_every: int = 0,
    ) -> None:
        self._plan, self._training, self._journal = plan, training, journal
        self._waiting_time, self._keep_every = waiting_time, keep_every
        self._format = ParameterFormat(training, plan.size)
        names = [name for name in journal.names() if name.startswith(_STATE)]
        rounds = [int(name.removeprefix(_STATE)) for name in names]
        if not rounds:
            journal.write(f"{_STATE}0", self._format.state_to_bytes(self._format.start))
        self._start(max(rounds, default=0), None, elapsed=0.0)

    def _start(self, round_number: int, last: Result | None, *, elapsed: float) -> None:
        data = self._journal.read(f"{_STATE}{round_number}")
        assert data is not None
        self.round_number, self.state = round_number, self._format.state_from_bytes(data)
        over = [name for name in self._journal.names() if not name.startswith(_KEPT)]
        self._journal.delete(*(name for name in over if int(name.split("-")[1]) < round_number))
        self._words = self._format.to_words(self._training.get_params(self.state))
        self.codes: dict[int, ErrorCode] = {}
        self._informed: set[int] = set()
        self._started = elapsed
        self._analyst = Analyst(
            self._plan,
            self._journal,
            round_number=round_number,
            parameters=digest_of(self._words),
            awaited=None if last is None else last.holders,
        )

    @property
    def failure(self) -> ErrorCode:
        """Why the round has no result so far."""
        enough = len(self._informed) >= self._plan.parties.sharing.threshold
        return self._analyst.failure if enough else "too few nodes"

    def attempt(self, call: Call, *, elapsed: float) -> bool:
        """Goes on with the round, and returns whether all rounds are over.

        Args:
          call: sends one message to a node.
          elapsed: seconds since the process started.

        Raises:
          ProtocolError: so many nodes refuse that the round cannot end with a result.
        """
        self._publish(call)
        num_rounds = self._plan.mechanism.num_rounds
        if self.round_number < num_rounds:
            waiting_over = elapsed - self._started >= self._waiting_time

            def call_informed(node: int, kind: Kind, data: bytes) -> bytes:
                require(node in self._informed, "unreachable")
                return call(node, kind, data)

            result = self._analyst.attempt(call_informed, waiting_over=waiting_over)
            if result is None:
                return False
            self._step(result, elapsed)
            self._publish(call)
        all_informed = len(self._informed) == self._plan.parties.num_nodes
        over = self.round_number == num_rounds
        waited = elapsed - self._started >= self._waiting_time
        return over and (all_informed or waited)

    def _step(self, result: Result, elapsed: float) -> None:
        """Makes a step with a released sum; the next state is on disk before it is published."""
        shares = self._plan.parties.num_noise_shares
        state = self._training.update(
            self.state,
            self._format.from_vector(result.released),
            self.round_number,
            noise_factor(len(result.holders), shares),
        )
        number = self.round_number + 1
        kept = f"{_KEPT}{number}"
        if self._keep_every and number % self._keep_every == 0 and not self._journal.read(kept):
            words = self._format.to_words(self._training.get_params(state))
            self._journal.write(kept, words.tobytes())
        self._journal.write(f"{_STATE}{number}", self._format.state_to_bytes(state))
        self._start(number, result, elapsed=elapsed)

    def _publish(self, call: Call) -> None:
        for node in range(self._plan.parties.num_nodes):
            if node in self._informed or self.codes.get(node, "unreachable") not in TEMPORARY:
                continue
            message = Message(
                kind="parameters",
                sender=ANALYST,
                receiver=node,
                round_number=self.round_number,
                parameters=digest_of(self._words),
                words=self._words,
            )
            try:
                call(node, "parameters", self._plan.message_format.to_bytes(message))
                self._informed.add(node)
                self.codes.pop(node, None)
            except ProtocolError as error:
                self.codes[node] = error.code
        refused = [code for code in self.codes.values() if code not in TEMPORARY]
        if len(refused) > self._plan.parties.num_nodes - self._plan.parties.sharing.threshold:
            raise ProtocolError(refused[0])

    def kept_params(self) -> tuple[list[int], list[Any]]:
        """Returns the rounds after which parameters were kept, and these."""
        names = [name for name in self._journal.names() if name.startswith(_KEPT)]
        rounds = sorted(int(name.removeprefix(_KEPT)) for name in names)
        words = [self._journal.read(f"{_KEPT}{number}") for number in rounds]
        return rounds, [
            self._format.from_vector(np.frombuffer(data, np.float64)) for data in words if data
        ]


class TrainingHolder:
    """A holder of a training, which sums gradients once in a round.

    Args:
      plan: of the training.
      holder: index, from zero.
      training: of the plan.
      records: of the holder, arrays by name.
      journal: of the holder.
      entropy: source of random bytes; anything but the operating system's is a simulation.
      new_key: returns a new secret key for each batch.

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
        self._plan, self._holder, self._training = plan, holder, training
        self._records, self._journal = records, journal
        self._entropy, self._new_key = entropy, new_key
        self._delivery: Delivery | None = None
        self._asked = holder  # nodes are asked in turn, by each holder from another one on
        self.round_number, self.is_over = -1, False
        self.codes: dict[int, ErrorCode] = {}

    def attempt(self, call: Call) -> bool:
        """Goes on with the newest round, and returns whether the training has ended.

        Args:
          call: sends one message to a node.

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
        question = Message(
            kind="next",
            sender=self._holder,
            receiver=node,
            round_number=self.round_number + 1,
        )
        try:
            data = call(node, "next", self._plan.message_format.to_bytes(question))
            self.codes.pop(node, None)
            message = self._read(node, data) if data else None
        except ProtocolError as error:
            self.codes[node] = error.code
            refused = [code for code in self.codes.values() if code not in TEMPORARY]
            if len(refused) == self._plan.parties.num_nodes:
                raise
            return
        if message is not None:
            self._enter(message.round_number, message.words)

    def _read(self, node: int, data: bytes) -> Message:
        message = self._plan.message_format.from_bytes(
            data,
            kind="parameters",
            sender=ANALYST,
            receiver=node,
            round_number=None,
            parameters=None,
        )
        require(message.parameters == digest_of(message.words), "parameters")
        require(self.round_number < message.round_number, "round")
        require(message.round_number <= self._plan.mechanism.num_rounds, "round")
        return message

    def _enter(self, round_number: int, words: UInt64) -> None:
        end_deliveries(self._journal, before=round_number)
        self.round_number, self._delivery = round_number, None
        self.is_over = round_number == self._plan.mechanism.num_rounds
        if self.is_over or has_ended(self._journal, round_number):
            return

        def statistic() -> Any:
            summed = self._training.clipped_sum(
                self._new_key(), words.view(np.float64), round_number, self._records
            )
            return self._plan.mechanism.sum_records(summed)

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
