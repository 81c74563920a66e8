"""The analyst's part of a round: it proposes one set of holders and combines what nodes open.

The analyst asks the nodes whose shares they have. Once all have those of every holder, or the time
to wait for the missing is over, it asks each node to open the set that suffices. A node opens one
set in a round, with the noise of N - D holders or more, whoever asks. Where all nodes are needed
two sets do not combine; where t of them suffice, an analyst who asks for several sets and has the
shares that more than `Parties.num_colluding_nodes` nodes received can open two.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TypeVar

import jax
import numpy as np
import numpy.typing as npt

from dpjax._files import to_npz, write_atomically
from dpjax._typing import ArrayTree
from dpjax.federated.messages import (
    ANALYST,
    NO_PARAMETERS,
    ErrorCode,
    Kind,
    Message,
    ProtocolError,
    agreed_draws,
    digest_of,
    require,
)
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.config import PartySettings
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.progress import Status, log_progress
from dpjax.federated.processes.transport import PAUSE_IN_TRAINING, Call, connect, poll
from dpjax.federated.protocol import Result, combine
from dpjax.federated.training import (
    ClippedGradientSum,
    ParameterFormat,
    Training,
    noise_factor,
)

T = TypeVar("T")
# After these a later attempt may succeed.
_TEMPORARY: frozenset[ErrorCode] = frozenset(["unreachable", "internal", "holders"])
# Entries of a training: states by the number of rounds before them, and parameters for the result.
_STATE, _BUFFERS, _KEPT = "state-", "buffers-", "kept-"


def _ask_nodes(
    nodes: Iterable[int], codes: dict[int, ErrorCode], ask: Callable[[int], T]
) -> dict[int, T]:
    """Returns the answers of nodes that have not refused for good; ``codes`` has why others not."""
    answers = {}
    for node in nodes:
        if codes.get(node, "unreachable") in _TEMPORARY:
            try:
                answers[node] = ask(node)
                codes.pop(node, None)
            except ProtocolError as error:
                codes[node] = error.code
    return answers


def _check_refusals(plan: FederatedSum, codes: Mapping[int, ErrorCode]) -> None:
    """Raises ProtocolError if so many nodes refuse for good that no sum can be opened."""
    refused = [code for code in codes.values() if code not in _TEMPORARY]
    if plan.parties.num_nodes - len(refused) < plan.parties.sharing.threshold:
        raise ProtocolError(refused[0])


class Analyst:
    """The analyst of one round, who collects openings with as many attempts as it takes.

    ``parameters`` is the digest of those that the round's sums are taken at. Holders that are
    ``awaited``, by default all, are waited for, as are those whose share a node has.

    Attributes:
      codes: why a node has not opened its sum so far, by its index.
      received: holders of which all nodes that answered have shares.
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
        self._plan, self._journal = plan, journal
        self._round, self._parameters = round_number, parameters
        everyone = range(plan.parties.num_holders)
        self._awaited = frozenset(everyone if awaited is None else awaited)

        # What an earlier process of the analyst has on disk.
        self._entry = f"agreed-{round_number}"
        stored = {node: journal.read(self._name(node)) for node in range(plan.parties.num_nodes)}
        self._openings = {node: data for node, data in stored.items() if data is not None}
        self.codes: dict[int, ErrorCode] = {}
        self.failure: ErrorCode = "too few nodes"
        self.received: frozenset[int] = frozenset()
        data = journal.read(self._entry)
        self.agreed = None if data is None else self._read(0, "agreed", data).draws

    @property
    def status(self) -> Status:
        """State of the round."""
        if self.agreed is None:
            return Status(self._round, shares=self.received)
        return Status(self._round, summed=self.agreed)

    def attempt(self, call: Call, *, waiting_over: bool) -> Result | None:
        """Tries to end the round; returns its result, or ``None`` where parties are missing.

        Once ``waiting_over``, a sum without some of the holders may be opened. ProtocolError: so
        many nodes refuse that the round cannot end with a result.
        """
        # Fix the set of holders: on disk before a node is asked to open it.
        if self.agreed is None:
            self._agree(call, waiting_over)

        # Have it opened by every node that has not yet.
        if self.agreed is not None:
            answers = self._ask(call, "agreed", self.agreed)
            for node, (_, data) in answers.items():
                self._journal.write(self._name(node), data)
                self._openings[node] = data
        _check_refusals(self._plan, self.codes)

        # As many as the threshold give the sum.
        if len(self._openings) < self._plan.parties.sharing.threshold:
            return None
        return combine(
            self._plan, self._openings, round_number=self._round, parameters=self._parameters
        )

    def _name(self, node: int) -> str:
        return f"opening-{self._round}-{node}"

    def _agree(self, call: Call, waiting_over: bool) -> None:
        parties = self._plan.parties
        answers = [message for message, _ in self._ask(call, "query", {}).values()]

        # A set that one node has opened is the only one that it opens.
        opened = [message.draws for message in answers if message.kind == "opening"]
        if opened:
            self._fix(opened[0])
            return

        # The draws whose shares enough nodes have in common.
        received = [message.draws for message in answers]
        self.received = frozenset.intersection(*map(frozenset, received or [{}]))
        if len(received) < parties.sharing.threshold:
            return
        draws = agreed_draws(received, threshold=parties.sharing.threshold)

        # Holders that every node has a share of, but no draw that enough nodes have.
        spoiled = self.received - draws.keys()
        self.failure = "draw" if spoiled else "too few holders"
        all_answered = len(received) == parties.num_nodes
        if all_answered and parties.num_holders - len(spoiled) < parties.least_holders:
            raise ProtocolError("draw")

        # Wait for the other holders, as long as there is time.
        wanted = self._awaited.union(*received) - spoiled
        is_complete = all_answered and all(wanted <= one.keys() for one in received)
        if (is_complete or waiting_over) and len(draws) >= parties.least_holders:
            self._fix(draws)

    def _fix(self, draws: Mapping[int, int]) -> None:
        self._journal.write(self._entry, self._message("agreed", 0, draws))
        self.agreed, self.failure = draws, "too few nodes"

    def _ask(
        self, call: Call, kind: Kind, draws: Mapping[int, int]
    ) -> dict[int, tuple[Message, bytes]]:
        """Returns what the nodes answer, parsed and as bytes."""

        def ask(node: int) -> tuple[Message, bytes]:
            data = call(node, kind, self._message(kind, node, draws))
            is_open = len(data) == self._plan.message_format.num_bytes
            answer = self._read(node, "opening" if is_open else "received", data)
            if kind == "agreed":
                require(is_open, "format")
                require(answer.holders == draws.keys(), "holders")
                require(answer.draws == draws, "draw")
            return answer, data

        waiting = set(range(self._plan.parties.num_nodes)) - self._openings.keys()
        return _ask_nodes(sorted(waiting), self.codes, ask)

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


class TrainingAnalyst:
    """The analyst of a training, who continues from the state on disk.

    A round is one release of the plan. It begins with the parameters that the analyst publishes
    through the nodes, and is over when the parameters of the next one are there. The digest of the
    parameters is in every message of the round, so shares of gradients that were taken at other
    parameters are refused. After the last round the analyst publishes the final parameters, which
    end the training.

    Holders who took part in the last round are waited for, ``waiting_time`` seconds at most. The
    parameters after every ``keep_every``-th round are kept, or none where it is zero.

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
        assert isinstance(plan.mechanism, ClippedGradientSum)
        self._plan, self._training, self._journal = plan, training, journal
        self._sums = plan.mechanism
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
        self._buffers = self._sums.init_buffers()
        if self._buffers.size and round_number:
            data = self._journal.read(f"{_BUFFERS}{round_number}")
            assert data is not None
            self._buffers = np.frombuffer(data).reshape(self._buffers.shape)

        # What is left of earlier rounds is deleted.
        over = [name for name in self._journal.names() if not name.startswith(_KEPT)]
        self._journal.delete(*(name for name in over if int(name.split("-")[1]) < round_number))

        self._words = self._format.to_words(self._training.get_params(self.state))
        self.codes: dict[int, ErrorCode] = {}
        self._last = last
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
    def status(self) -> Status:
        """State of the training."""
        summed = None if self._last is None else self._last.holders
        if self.round_number == self._plan.mechanism.num_rounds:
            return Status(self.round_number, summed=summed)
        return Status(self.round_number, shares=self._analyst.received, summed=summed)

    @property
    def failure(self) -> ErrorCode:
        """Why the round has no result so far."""
        enough = len(self._informed) >= self._plan.parties.sharing.threshold
        return self._analyst.failure if enough else "too few nodes"

    def attempt(self, call: Call, *, elapsed: float) -> bool:
        """Continues the round ``elapsed`` seconds after the start; returns whether all are over.

        ProtocolError: so many nodes refuse that the round cannot end with a result.
        """
        # A round begins with its parameters.
        self._publish(call)
        num_rounds = self._plan.mechanism.num_rounds
        if self.round_number < num_rounds:
            waiting_over = elapsed - self._started >= self._waiting_time

            def call_informed(node: int, kind: Kind, data: bytes) -> bytes:
                require(node in self._informed, "unreachable")
                return call(node, kind, data)

            # The released sum gives the next state, whose parameters begin the next round.
            result = self._analyst.attempt(call_informed, waiting_over=waiting_over)
            if result is None:
                return False
            self._step(result, elapsed)
            self._publish(call)

        # The last parameters end the training, at every node that takes them in time.
        all_informed = len(self._informed) == self._plan.parties.num_nodes
        over = self.round_number == num_rounds
        return over and (all_informed or elapsed - self._started >= self._waiting_time)

    def _step(self, result: Result, elapsed: float) -> None:
        """Makes a step with a released sum; the next state is on disk before it is published."""
        shares = self._plan.parties.num_noise_shares
        summed, buffers = self._sums.solve(
            result.released, self._buffers, round_number=self.round_number
        )
        state = self._training.update(
            self.state,
            self._format.from_vector(summed),
            self.round_number,
            noise_factor(len(result.holders), shares),
        )
        number = self.round_number + 1

        # What goes with the state first: an earlier process may have ended between two writes.
        with_state = {f"{_BUFFERS}{number}": buffers.tobytes()} if buffers.size else {}
        if self._keep_every and number % self._keep_every == 0:
            words = self._format.to_words(self._training.get_params(state))
            with_state[f"{_KEPT}{number}"] = words.tobytes()
        for name, data in with_state.items():
            if self._journal.read(name) is None:
                self._journal.write(name, data)

        self._journal.write(f"{_STATE}{number}", self._format.state_to_bytes(state))
        self._start(number, result, elapsed=elapsed)

    def _publish(self, call: Call) -> None:
        """Sends the round's parameters to the nodes that do not have them."""

        def send(node: int) -> None:
            message = Message(
                kind="parameters",
                sender=ANALYST,
                receiver=node,
                round_number=self.round_number,
                parameters=digest_of(self._words),
                words=self._words,
            )
            call(node, "parameters", self._plan.message_format.to_bytes(message))

        waiting = set(range(self._plan.parties.num_nodes)) - self._informed
        self._informed |= _ask_nodes(sorted(waiting), self.codes, send).keys()
        _check_refusals(self._plan, self.codes)

    def kept_params(self) -> tuple[list[int], list[ArrayTree]]:
        """Returns the rounds after which parameters were kept, and these."""
        names = [name for name in self._journal.names() if name.startswith(_KEPT)]
        rounds = sorted(int(name.removeprefix(_KEPT)) for name in names)
        words = [self._journal.read(f"{_KEPT}{number}") for number in rounds]
        return rounds, [
            self._format.from_vector(np.frombuffer(data, np.float64)) for data in words if data
        ]


def run_analyst(settings: PartySettings) -> Result:
    """Returns the result of a round, and writes it to the file that the settings name.

    Returns:
      The release, its holders, and the mechanism with the noise of that many holders. The file has
      the arrays of the release and the indices ``holders``.

    Raises:
      ProtocolError: the round has no result.
      ValueError: a journal of another party.
    """
    study = settings.study
    with settings.open_journal("analyst") as journal, connect(settings) as channels:
        analyst = Analyst(study.plan, journal, round_number=study.round_number)
        with log_progress("analyst", study.plan, lambda: analyst.status, channels.codes):
            result = poll(
                lambda elapsed: analyst.attempt(
                    channels.call, waiting_over=elapsed >= study.waiting_time
                ),
                time_limit=study.time_limit,
            )

    if result is None:
        raise ProtocolError(analyst.failure)
    holders = np.array(sorted(result.holders))
    write_atomically(settings.result, to_npz(**_named_arrays(result.released), holders=holders))
    return result


def run_training_analyst(settings: PartySettings) -> int:
    """Runs the analyst of a training, writes its result, and returns the number of rounds.

    The file has the result of the training, each of its arrays by its path in the tree. Where the
    settings have ``keep_every``, it has the parameters after these rounds too, each array's name
    after ``kept.``, and the numbers ``kept_rounds`` of the rounds that were over.

    Raises:
      ProtocolError: a round has no result. Those before it are on disk: started again, the analyst
        goes on.
      ValueError: a journal of another party, or a program that does not fit the plan.
    """
    study = settings.study
    training = study.load_training()
    with settings.open_journal("analyst") as journal, connect(settings) as channels:
        # Rounds, from the state on disk.
        analyst = TrainingAnalyst(
            study.plan,
            training,
            journal,
            waiting_time=study.waiting_time,
            keep_every=settings.keep_every,
        )
        with log_progress("analyst", study.plan, lambda: analyst.status, channels.codes):
            is_over = poll(
                lambda elapsed: analyst.attempt(channels.call, elapsed=elapsed) or None,
                time_limit=study.time_limit,
                pause=PAUSE_IN_TRAINING,
            )
        if not is_over and analyst.round_number < study.plan.mechanism.num_rounds:
            raise ProtocolError(analyst.failure)

        # The result, and the parameters of earlier rounds.
        arrays = _named_leaves(training.get_result(analyst.state))
        rounds, kept = analyst.kept_params()
        if rounds:
            stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *kept)
            arrays |= {f"kept.{name}": array for name, array in _named_leaves(stacked).items()}
            arrays["kept_rounds"] = np.array(rounds)
    write_atomically(settings.result, to_npz(**arrays))
    return analyst.round_number


def _named_arrays(released: object) -> dict[str, npt.NDArray[np.generic]]:
    if dataclasses.is_dataclass(released):
        fields = {one.name: getattr(released, one.name) for one in dataclasses.fields(released)}
    else:
        fields = released._asdict() if hasattr(released, "_asdict") else {"released": released}
    return {name: np.asarray(value) for name, value in fields.items() if value is not None}


def _named_leaves(tree: ArrayTree) -> dict[str, npt.NDArray[np.generic]]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "params": np.asarray(leaf)
        for path, leaf in leaves
    }
