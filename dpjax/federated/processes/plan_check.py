"""Comparison of the studies of all parties before anything is spent.

Holders and the analyst send the fingerprint of their plan to every node, and digests of the node
addresses and time limits of their study. A node keeps the last one
of each party as long as it runs, and answers with all of them and its own. Nothing is written to a
journal, and no noise is drawn. Fingerprint and digests are of public settings alone.

A party's name is that of its certificate; what a node passes on of other parties is taken from it.
So this finds mistakes: every message of the protocol has the fingerprint too, and is refused with
the code ``plan`` where it differs.
"""

import hashlib
import re
from collections.abc import Mapping

from dpjax.federated.messages import ProtocolError, require
from dpjax.federated.plan import FederatedSum
from dpjax.federated.processes.config import PartySettings, Study
from dpjax.federated.processes.progress import list_names, repeat_lines
from dpjax.federated.processes.transport import Call, connect, poll

_PAUSE = 0.5  # seconds between two questions
# Settings of a study that are compared one by one, beside the plan.
_SETTINGS = ("nodes", "call_time", "waiting_time", "time_limit")
_PLAN_NAME = r"[0-9a-f]{32}(?:-[0-9]{1,19})?"
_STUDY_NAME = rf"{_PLAN_NAME}(?:(?:\+[0-9a-f]{{8}}){{{len(_SETTINGS)}}})?"
_PARTY_NAME = r"(?:holder|node)-[0-9]{1,10}|analyst"


def plan_name(plan: FederatedSum, round_number: int | None = None) -> str:
    """Returns the fingerprint of a plan, and the number of a single round if it is not zero."""
    fingerprint = plan.message_format.fingerprint.hex()
    return f"{fingerprint}-{round_number}" if round_number else fingerprint


def study_name(study: Study) -> str:
    """Returns the `plan_name` of a study, followed by the digest of each compared setting."""
    digests = []
    for key in _SETTINGS:
        value = getattr(study, key)
        text = repr(value if key == "nodes" else float(value))
        digests.append("+" + hashlib.blake2b(text.encode(), digest_size=4).hexdigest())
    number = study.round_number if study.program is None else None
    return plan_name(study.plan, number) + "".join(digests)


def plan_of_name(name: str) -> str:
    """Returns the `plan_name` in a `study_name`."""
    return name.partition("+")[0]


def differing_settings(one: str, other: str) -> list[str]:
    """Returns the keys of the settings that differ between two names, where both have them."""
    digests = one.split("+")[1:], other.split("+")[1:]
    if not all(digests):
        return []
    return [key for key, a, b in zip(_SETTINGS, *digests, strict=True) if a != b]


def read_study_name(data: bytes) -> str:
    """Returns the name in a holder's or the analyst's message: `study_name` or `plan_name`."""
    text = data.decode("ascii", "replace")
    require(re.fullmatch(_STUDY_NAME, text) is not None, "format")
    return text


def plans_to_bytes(plans: Mapping[str, str]) -> bytes:
    """Returns a node's answer: a line for each party, with its name and that of its study."""
    return "\n".join(f"{party} {plan}" for party, plan in plans.items()).encode()


def _plans_from_bytes(data: bytes) -> dict[str, str]:
    plans = {}
    for line in data.decode("ascii", "replace").split("\n"):
        match = re.fullmatch(f"({_PARTY_NAME}) ({_STUDY_NAME})", line)
        if match is None:
            raise ProtocolError("format")
        plans[match[1]] = match[2]
    return plans


class PlanCheck:
    """The plans and settings of all parties, as a holder or the analyst receives them from nodes.

    Attributes:
      plans: names of the studies by party, of those that have sent theirs.
      own: name of the party's own study.
    """

    def __init__(self, study: Study) -> None:
        counts = study.plan.parties
        self._nodes = [f"node-{index}" for index in range(counts.num_nodes)]
        self._clients = [*(f"holder-{index}" for index in range(counts.num_holders)), "analyst"]
        self.plans: dict[str, str] = {}
        self.own = study_name(study)

    def attempt(self, call: Call) -> bool:
        """Sends the own plan to all nodes, and returns whether their answers are final.

        They are final once every node has received the plan of every party, or where a node has
        another plan, with which it refuses all messages.
        """
        # The plans that each node has received, its own among them.
        answers: dict[str, dict[str, str]] = {}
        for index, node in enumerate(self._nodes):
            try:
                answers[node] = _plans_from_bytes(call(index, "plan", self.own.encode()))
            except ProtocolError:
                continue
        received = {node: plans.get(node, "") for node, plans in answers.items()}
        for plans in answers.values():
            received.update((name, plan) for name, plan in plans.items() if name not in self._nodes)
        self.plans = received  # at once: the thread of the lines reads it

        # All nodes have received the same plans, of all parties.
        if any(plan_of_name(self.plans[node]) != plan_of_name(self.own) for node in answers):
            return True
        return len(answers) == len(self._nodes) and all(
            plans.get(name) == self.plans.get(name) is not None
            for plans in answers.values()
            for name in self._clients
        )

    @property
    def missing(self) -> list[str]:
        """Parties whose plan was not received."""
        return [name for name in (*self._clients, *self._nodes) if name not in self.plans]

    @property
    def is_agreed(self) -> bool:
        """Whether all parties' plans were received, and equal the own, and so do the settings."""
        names = set(map(plan_of_name, self.plans.values()))
        return not self.missing and names == {plan_of_name(self.own)} and not self.differing

    @property
    def differing(self) -> dict[str, list[str]]:
        """By the keys of settings, the parties that have another value than the own."""
        parties: dict[str, list[str]] = {}
        for party, name in sorted(self.plans.items()):
            for key in differing_settings(self.own, name):
                parties.setdefault(key, []).append(party)
        return parties

    def __str__(self) -> str:
        own = plan_of_name(self.own)
        if self.is_agreed:
            return f"all {len(self.plans)} parties hold plan {own}"

        plans = {party: plan_of_name(name) for party, name in self.plans.items()}
        lines = []
        for plan in dict.fromkeys([own, *plans.values()]):
            parties = sorted(party for party, its_plan in plans.items() if its_plan == plan)
            lines.append(f"plan {plan}: {list_names(parties) or 'no party'}")
        if self.missing:
            lines.append(f"no plan received from: {list_names(self.missing)}")
        for key, parties in self.differing.items():
            lines.append(f"{key} is another than in this study: {list_names(parties)}")
        return "\n".join(lines)


def run_plan_check(settings: PartySettings, party: str) -> PlanCheck:
    """Compares a holder's or the analyst's study with those of all parties, whose check runs too.

    The nodes' processes must run. Returns when the plans of all parties were received, or
    `Study.waiting_time` is over.
    """
    plan_check = PlanCheck(settings.study)

    def line() -> str:
        own = plan_of_name(plan_check.own)
        others = [one for one, name in plan_check.plans.items() if plan_of_name(name) != own]
        differing = f", {list_names(others)} with another plan" if others else ""
        return f"plan {own}, waits for {list_names(plan_check.missing)}{differing}"

    with connect(settings) as channels, repeat_lines(party, line):
        poll(
            lambda _: plan_check.attempt(channels.call) or None,
            time_limit=settings.study.waiting_time,
            pause=_PAUSE,
        )
    return plan_check
