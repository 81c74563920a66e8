"""Rounds with parties that are killed at any write to disk and any message, in one process.

Every call of the operating system in a journal, and every message and answer, is a point at which
the party that makes it can be killed. What it had in memory is lost; it may be started again from
its journal. Time is counted in attempts.
"""

import contextlib
import os
from dataclasses import dataclass, field

import numpy as np

from dpjax import _files as files_module
from dpjax.federated import ProtocolError, holder_messages, protocol
from dpjax.federated.messages import ANALYST, Message
from dpjax.federated.processes import holder as holder_module
from dpjax.federated.processes import journal as journal_module
from dpjax.federated.processes.analyst import Analyst, TrainingAnalyst
from dpjax.federated.processes.holder import (
    Delivery,
    TrainingHolder,
    journalled_messages,
    spent_rounds,
)
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node
from dpjax.federated.training import Training
from helpers.federated_cases import draws_of

# Attempts that the analyst waits for holders that are missing, and after which every party ends.
WAITING, LIMIT = 8, 16


class Killed(BaseException):
    """The process ends here."""


class Points:
    """Points at which a party may be killed: one in ``1 / rate`` is its end."""

    def __init__(self, rng, rate, most):
        self._rng, self._rate, self._left = rng, rate, most

    def pass_one(self, name):
        if self._left and self._rng.random() < self._rate:
            self._left -= 1
            raise Killed

    def stop(self):
        self._left = 0


class PointAt:
    """Points of which the one with a given number is the party's end, or none of them.

    Attributes:
      names: of the points that were passed.
    """

    def __init__(self, last=None):
        self.last, self.names, self._is_stopped = last, [], False

    def pass_one(self, name):
        if self._is_stopped:
            return
        self.names.append(name)
        if len(self.names) - 1 == self.last:
            raise Killed

    def stop(self):
        self._is_stopped = True


class KillableOs:
    """The calls of ``os`` that a journal makes, each of them a point; writes need no disk."""

    O_WRONLY, O_CREAT, O_TRUNC, O_RDONLY = os.O_WRONLY, os.O_CREAT, os.O_TRUNC, os.O_RDONLY

    def __init__(self, points):
        self._points = points

    def __getattr__(self, name):
        def call(*args):
            self._points.pass_one(name)
            return None if name == "fsync" else getattr(os, name)(*args)

        return call

    def getpid(self):
        return os.getpid()

    def close(self, descriptor):
        os.close(descriptor)

    def fdopen(self, descriptor, mode):
        file = os.fdopen(descriptor, mode)
        points = self._points

        class HalfWritten:
            def __enter__(self):
                return self

            def __exit__(self, *_):
                file.close()

            def write(self, data):
                file.write(data[: len(data) // 2])
                points.pass_one("write")
                file.write(data[len(data) // 2 :])

            def flush(self):
                file.flush()

            def fileno(self):
                return file.fileno()

        return HalfWritten()


@dataclass
class Views:
    """All that left the parties, and what holders kept to themselves."""

    plan: object
    shares: dict = field(default_factory=dict)  # messages by round, holder and node
    openings: dict = field(default_factory=dict)  # messages by round and node
    spent: dict = field(default_factory=dict)  # rounds by holder
    noisy: dict = field(default_factory=dict)  # perturbed sums that were drawn, by round and holder
    parameters: dict = field(default_factory=dict)  # digests by round
    lost: set = field(default_factory=set)  # parties that were killed and not started again
    num_kills: int = 0
    result: object = None
    code: str | None = None


class Simulation:
    """One round of one plan under kills.

    Args:
      plan: of the release.
      folder: of the journals.
      rng: of the order of events.
      points: at which parties are killed.
      lost: probability that a party that was killed is not started again.
      rogue: whether someone with the analyst's certificate asks for random sets, too.
      node: the class of nodes.
      messages: the function of a holder's messages.
    """

    limit = LIMIT

    def __init__(
        self,
        plan,
        folder,
        rng,
        points,
        *,
        lost=0.1,
        rogue=False,
        node=Node,
        messages=journalled_messages,
    ):
        self.plan, self.folder, self.rng, self.rogue = plan, folder, rng, rogue
        self.points, self.lost = points, lost
        self.node_class, self.messages = node, messages
        self.views = Views(plan)
        self.statistics = [
            np.round(rng.normal(0, 100, plan.size)) for _ in range(plan.parties.num_holders)
        ]
        # A party is an object, None while it is not running, or absent for good.
        names = [f"holder-{h}" for h in range(plan.parties.num_holders)]
        names += [f"node-{n}" for n in range(plan.parties.num_nodes)]
        self.running = dict.fromkeys([*names, "analyst"])
        self.journals, self.finished = {}, set()

    def run(self, monkeypatch):
        with monkeypatch.context() as patched:
            for module in (files_module, journal_module):
                patched.setattr(module, "os", KillableOs(self.points))
            patched.setattr(protocol, "perturb", self._recorded(protocol.perturb))
            patched.setattr(holder_module, "holder_messages", self._named(holder_messages))
            for step in range(self.limit):
                self.step(step)
                if self._is_over() and not self.rogue:
                    break
            self.points.stop()
            self._end()
        return self.views

    def _recorded(self, perturb):
        def recorded(plan, statistic, *, entropy):
            found = perturb(plan, statistic, entropy=entropy)
            self.views.noisy.setdefault(self._drawing, []).append(found)
            return found

        return recorded

    def _named(self, messages):
        def named(plan, holder, statistic, *, round_number=0, **options):
            self._drawing = round_number, holder
            return messages(plan, holder, statistic, round_number=round_number, **options)

        return named

    def _is_over(self):
        parties = [name for name in self.running if not name.startswith("node")]
        return all(name in self.finished for name in parties)

    def step(self, step):
        """One attempt of every party in a random order; parties that were killed may come back."""
        for name in self.rng.permutation(list(self.running)):
            if name not in self.running or name in self.finished:
                continue
            try:
                if self.running[name] is None:
                    self._start(str(name))
                self._attempt(str(name), step)
            except Killed:
                self._kill(str(name))
        for node in range(self.plan.parties.num_nodes if self.rogue else 0):
            self._ask_for_any_set(node)

    def _start(self, name):
        role, _, index = name.partition("-")
        journal = self.journals[name] = Journal(self.folder / name, name)
        if role == "node":
            self.running[name] = self.node_class(self.plan, int(index), journal)
        elif role == "analyst":
            self.running[name] = Analyst(self.plan, journal)
        else:
            statistic = self.statistics[int(index)]
            self.running[name] = Delivery(self.messages(self.plan, int(index), statistic, journal))

    def _kill(self, name):
        """Most parties are started again, some never."""
        if name in self.journals:
            self.journals.pop(name).close()
        self.running[name] = None
        self.views.num_kills += 1
        if self.rng.random() < self.lost:
            self.views.lost.add(name)
            del self.running[name]

    def _attempt(self, name, step):
        party = self.running[name]
        if isinstance(party, Delivery) and party.attempt(self._caller(name)):
            self.finished.add(name)
        if isinstance(party, Analyst):
            try:
                waiting_over = step >= WAITING
                self.views.result = party.attempt(self._caller(name), waiting_over=waiting_over)
                failed = step == self.limit - 1 and self.views.result is None
                self.views.code = party.failure if failed else None
            except ProtocolError as error:
                self.views.code = error.code
            if self.views.result or self.views.code:
                self.finished.add(name)

    def _caller(self, sender):
        def call(node, kind, data):
            self.points.pass_one(f"{kind} leaves")
            if kind == "share":
                number = self.plan.message_format.read_round(data)
                holder = int(sender.partition("-")[2])
                self.views.shares.setdefault((number, holder, node), []).append(data)
            answer = self._deliver(sender, node, kind, data)
            self.points.pass_one(f"answer to {kind} arrives")
            return answer

        return call

    def _deliver(self, sender, node, kind, data):
        name = f"node-{node}"
        if self.running.get(name) is None:
            raise ProtocolError("unreachable")
        try:
            self.points.pass_one(f"{kind} arrives")
            answer = self.running[name].answer(sender, kind, data)
            if len(answer) == self.plan.message_format.num_bytes:
                number = self.plan.message_format.read_round(answer)
                self.views.openings.setdefault((number, node), []).append(answer)
            self.points.pass_one(f"answer to {kind} leaves")
        except Killed:
            self._kill(name)
            raise ProtocolError("unreachable") from None
        return answer

    def _ask_for_any_set(self, node):
        parties = self.plan.parties
        number = self.rng.integers(
            parties.num_holders - parties.num_dropouts - 1, parties.num_holders + 1
        )
        holders = frozenset(self.rng.permutation(parties.num_holders)[:number].tolist())
        running = self.running.get(f"node-{node}")
        if running is None:
            return
        draws = draws_of(self.plan, running.state, holders)
        message = Message(kind="agreed", sender=ANALYST, receiver=node, round_number=0, draws=draws)
        data = self.plan.message_format.to_bytes(message)
        with contextlib.suppress(ProtocolError):
            self._deliver("analyst", node, "agreed", data)

    def _end(self):
        """Reads what the holders' journals say of the budget."""
        self.views.lost |= {name for name, party in self.running.items() if party is None}
        for journal in self.journals.values():
            journal.close()
        for holder in range(self.plan.parties.num_holders):
            name = f"holder-{holder}"
            with Journal(self.folder / name, name) as journal:
                self.views.spent[holder] = spent_rounds(journal)


def toy_training(plan):
    """Steps on sums of numbers, without compiled programs; batches are random."""

    def clipped_sum(key, vector, round_number, records):
        return np.round(records["x"] + 10 * np.asarray(vector)) + key

    return Training(
        mechanism=plan.mechanism.mechanism,
        init=lambda: {"w": np.zeros(plan.size, np.float32)},
        get_params=lambda state: state,
        clipped_sum=clipped_sum,
        update=lambda state, noisy, number, factor: {
            "w": np.asarray(state["w"] + 0.01 * factor * noisy["w"], np.float32)
        },
        get_result=lambda state: state,
    )


class TrainingSimulation(Simulation):
    """All rounds of a training under kills; `Views.result` is the final state."""

    def __init__(self, plan, *arguments, analyst=TrainingAnalyst, **options):
        super().__init__(plan, *arguments, **options)
        self.analyst_class, self.training = analyst, toy_training(plan)
        self.limit = 8 * plan.mechanism.num_rounds + 4 * WAITING

    def _start(self, name):
        role, _, index = name.partition("-")
        journal = self.journals[name] = Journal(self.folder / name, name)
        if role == "node":
            self.running[name] = self.node_class(self.plan, int(index), journal, round_number=None)
        elif role == "analyst":
            self.running[name] = self.analyst_class(
                self.plan, self.training, journal, waiting_time=WAITING
            )
        else:
            self.running[name] = TrainingHolder(
                self.plan,
                int(index),
                self.training,
                {"x": self.statistics[int(index)]},
                journal,
                new_key=lambda: float(self.rng.integers(5)),
            )

    def _attempt(self, name, step):
        party = self.running[name]
        if isinstance(party, TrainingHolder) and party.attempt(self._caller(name)):
            self.finished.add(name)
        if isinstance(party, TrainingAnalyst):
            try:
                over = party.attempt(self._caller(name), elapsed=float(step))
                self.views.result = party.state if over else None
                failed = step == self.limit - 1 and not over
                self.views.code = party.failure if failed else None
            except ProtocolError as error:
                self.views.code = error.code
            if self.views.result or self.views.code:
                self.finished.add(name)

    def _deliver(self, sender, node, kind, data):
        if kind == "parameters":
            message = self.plan.message_format.from_bytes(
                data, kind=kind, sender=ANALYST, receiver=node, round_number=None, parameters=None
            )
            found = self.views.parameters.setdefault(message.round_number, set())
            found.add(message.parameters)
        return super()._deliver(sender, node, kind, data)
