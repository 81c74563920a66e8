"""Properties of simulated federated rounds whose parties are killed, and kills at each point."""

import functools

import numpy as np

from dpjax.federated import Result
from dpjax.federated.messages import ANALYST, NO_PARAMETERS
from helpers.federated_simulation import PointAt

# Where a message is on its way when a party is killed.
PLACES = ("{} leaves", "{} arrives", "answer to {} leaves", "answer to {} arrives")
WRITING = {"open", "write", "fsync", "replace", "unlink"}


def read(plan, data, kind, sender, receiver):
    return plan.message_format.from_bytes(
        data, kind=kind, sender=sender, receiver=receiver, round_number=None, parameters=None
    )


def violations(views, rogue=False):
    """The properties that do not hold, of all that left the parties and of the round's end."""
    found = sending_violations(views)
    rounds = sorted({number for number, _ in views.openings})
    for number in rounds:
        found |= opening_violations(views, number)
    return found | result_violations(views, rogue)


def sending_violations(views):
    found = set()
    if any(len(set(sent)) > 1 for sent in views.shares.values()):
        found.add("a holder sent two different messages to a node")
    for (number, holder, node), sent in views.shares.items():
        for data in set(sent):
            share = read(views.plan, data, "share", holder, node).words.astype(np.int64)
            if any(np.any(share == noisy) for noisy in views.noisy[number, holder]):
                found.add("an unmasked sum left a holder")
        if number not in views.spent[holder]:
            found.add("shares left a holder whose journal has the budget unspent")
    if any(len(set(sent)) > 1 for sent in views.openings.values()):
        found.add("a node opened two sets")
    return found | parameter_violations(views)


def parameter_violations(views):
    found = set()
    if any(len(digests) > 1 for digests in views.parameters.values()):
        found.add("a round has two sets of parameters")
    for (number, holder, node), sent in views.shares.items():
        digests = {read(views.plan, data, "share", holder, node).parameters for data in set(sent)}
        if not digests <= views.parameters.get(number, {NO_PARAMETERS}):
            found.add("a share is at other parameters than its round's")
    return found


def opening_violations(views, number):
    plan, parties = views.plan, views.plan.parties
    found, sets = set(), {}
    nodes = [node for at, node in views.openings if at == number]
    openings = ((node, data) for node in nodes for data in set(views.openings[number, node]))
    for node, data in openings:
        message = read(plan, data, "opening", node, ANALYST)
        sets.setdefault(frozenset(message.draws.items()), {})[node] = message.words
        if len(message.holders) < parties.num_holders - parties.num_dropouts:
            found.add("a sum of too few holders was opened")
        shares = [
            read(plan, views.shares[number, holder, node][-1], "share", holder, node).words
            for holder in message.holders
        ]
        if np.any(functools.reduce(parties.sharing.add, shares) != message.words):
            found.add("an opening is not the sum of the shares")
    complete = [(s, own) for s, own in sets.items() if len(own) >= parties.sharing.threshold]
    if len(complete) > 1:
        found.add("two sums can be reconstructed")
    for draws, opened in complete:
        # The last of each holder's draws is the one on disk: none is drawn after it.
        total = np.sum([views.noisy[number, holder][-1] for holder, _ in draws], axis=0)
        if np.any(parties.sharing.reconstruct(opened) != total):
            found.add("the opened sum is not that of perturbed sums")
    return found


def result_violations(views, rogue):
    plan, parties = views.plan, views.plan.parties
    found = set()
    holders = sum(name.startswith("holder") for name in views.lost)
    nodes = sum(name.startswith("node") for name in views.lost)
    survivable = parties.num_dropouts >= holders
    survivable &= parties.num_nodes - parties.sharing.threshold >= nodes
    if "analyst" not in views.lost:
        if (views.result is None) == (views.code is None):
            found.add("the round has no clear end")
        if survivable and not rogue and views.result is None:
            found.add("the round of those who stayed has no result")
    if isinstance(views.result, Result):
        total = np.sum([views.noisy[0, holder][-1] for holder in views.result.holders], axis=0)
        if np.any(plan.from_units(total) != views.result.released):
            found.add("the result is not the sum of perturbed sums")
        if len(views.result.holders) < parties.num_holders - parties.num_dropouts:
            found.add("the result has too little noise")
    return found


def kill_at_each_point(monkeypatch, folder, simulate, most):
    """Violations of runs with one kill at up to ``most`` points of each name, and the names."""
    points = PointAt()
    found = violations(simulate(folder / "none", points).run(monkeypatch))
    names = np.array(points.names)
    chosen = [np.flatnonzero(names == name) for name in set(points.names)]
    spread = [at[np.linspace(0, at.size - 1, min(most, at.size)).astype(int)] for at in chosen]
    for last in np.concatenate(spread).tolist():
        views = simulate(folder / str(last), PointAt(last)).run(monkeypatch)
        assert views.num_kills == 1
        found |= violations(views)
        if views.result is None:
            found.add("one kill of a party that comes back ends the round")
    return found, set(points.names)
