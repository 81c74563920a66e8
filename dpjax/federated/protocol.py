"""The protocol of one federated release: functions of holder, node and analyst on bytes.

A round is one release. Each holder sends one message to each node; the nodes agree on the draws of
holders whose shares all of them have (`agreed_draws`), and each opens the sum of that set, once;
the analyst adds up what they opened. No function reads a network, a clock or a file, so that a
transport can be put around them. What a holder sends counts as released from the moment it leaves,
whether or not the round ends with a result; a retry must send the same bytes.

Source: Heikkilä et al. (2017), Algorithm 1 (secure sums of perturbed statistics).
"""

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy.typing as npt

from dpjax._checks import check, check_count, check_function, check_type
from dpjax._html import HTMLTable, render_html
from dpjax._html_tables import leaf_table
from dpjax.federated.messages import ANALYST, NO_PARAMETERS, Message, agreed_draws, require
from dpjax.federated.noise import SYSTEM, Entropy, Int64, draw_noise, uniform_words
from dpjax.federated.plan import FederatedSum, check_plan


def perturb(plan: FederatedSum, statistic: npt.ArrayLike, *, entropy: Entropy = SYSTEM) -> Int64:
    """Returns a holder's sums plus its share of the noise, in integer grid units, ``(size,)``.

    Privacy:
      Private: one share of noise protects less than the plan's epsilon; see ``plan.adversaries``.

    Args:
      plan: of the release.
      statistic: ``(size,)``, from ``plan.mechanism.sum_records`` on the holder's records.
      entropy: source of random bytes.
    """
    check_plan(plan)
    check_function("entropy", entropy, "number")
    return plan.to_units(statistic) + draw_noise(entropy, plan.grid.scales)


def holder_messages(
    plan: FederatedSum,
    holder: int,
    statistic: npt.ArrayLike,
    *,
    round_number: int = 0,
    parameters: bytes = NO_PARAMETERS,
    entropy: Entropy = SYSTEM,
) -> list[bytes]:
    """Returns the message of a holder to each node, with shares of its noisy sums.

    Privacy:
      Any nodes fewer than the threshold see uniform numbers. Two calls with one ``round_number``
      draw two noises: keep the bytes and send the same again.

    Args:
      plan: of the release.
      holder: index, from zero.
      statistic: ``(size,)``, from ``plan.mechanism.sum_records`` on the holder's records.
      round_number: of the release, from zero; one round is all that the event of a single release
        covers, and that of several steps as many rounds.
      parameters: digest of those that the sums are taken at, 16 bytes.
      entropy: source of random bytes; anything but the operating system's is a simulation.

    Raises:
      ValueError: an index out of range, or a statistic of another shape.
    """
    check_plan(plan)
    _check_digest(parameters)
    _check_index("holder", holder, plan.parties.num_holders)
    _check_index("round_number", round_number, plan.mechanism.num_rounds)
    noisy = perturb(plan, statistic, entropy=entropy)
    shares = plan.parties.sharing.share(entropy, noisy)
    # Zero stands for no draw.
    draw = max(1, int(uniform_words(entropy, 1)[0]))
    messages = (
        Message(
            kind="share",
            sender=holder,
            receiver=node,
            round_number=round_number,
            parameters=parameters,
            draws={holder: draw},
            words=share,
        )
        for node, share in enumerate(shares)
    )
    return [plan.message_format.to_bytes(message) for message in messages]


@dataclass(frozen=True)
class NodeState:
    """What a node has received and opened; it is to be stored before an answer is sent.

    Attributes:
      node: index of the node.
      received: messages by round and holder, of rounds that are not opened.
      opened: by round, the draws by holder and the message to the analyst.
    """

    node: int
    received: Mapping[tuple[int, int], bytes] = field(default_factory=dict, repr=False)
    opened: Mapping[int, tuple[Mapping[int, int], bytes]] = field(default_factory=dict, repr=False)

    def holders(self, round_number: int) -> frozenset[int]:
        """Returns the holders whose messages of ``round_number`` were received."""
        check_count("round_number", round_number, minimum=0)
        return frozenset(holder for number, holder in self.received if number == round_number)


def received_draws(
    plan: FederatedSum, state: NodeState, *, round_number: int = 0
) -> dict[int, int]:
    """Returns the draws whose shares a node has received in a round, by holder.

    Args:
      plan: of the release.
      state: of the node.
      round_number: of the release.
    """
    _check_node(plan, state)
    check_count("round_number", round_number, minimum=0)
    return {
        holder: plan.message_format.read_share(state.received[round_number, holder])[0]
        for holder in sorted(state.holders(round_number))
    }


def receive(
    plan: FederatedSum,
    state: NodeState,
    data: bytes,
    *,
    holder: int,
    round_number: int = 0,
    parameters: bytes = NO_PARAMETERS,
) -> NodeState:
    """Returns the state of a node with a holder's message; the same message again changes nothing.

    Args:
      plan: of the release.
      state: of the node.
      data: what was received.
      holder: the sender, as the channel authenticated it.
      round_number: of the release.
      parameters: digest of those that the round's sums are taken at.

    Returns:
      The new state.

    Raises:
      ProtocolError: a message that is not the expected one, a second one of the holder, or one
        after the sum was opened.
    """
    _check_node(plan, state)
    check_type("data", data, bytes, "bytes")
    check_type("holder", holder, int, "a whole number")
    check_count("round_number", round_number, minimum=0)
    _check_digest(parameters)
    require(round_number not in state.opened, "opened")
    require(0 <= holder < plan.parties.num_holders, "sender")
    known = state.received.get((round_number, holder))
    require(known is None or known == data, "repeated")
    if known is not None:
        return state
    message = plan.message_format.from_bytes(
        data,
        kind="share",
        sender=holder,
        receiver=state.node,
        round_number=round_number,
        parameters=parameters,
    )
    require(plan.parties.sharing.is_share(message.words), "share")
    return replace(state, received={**state.received, (round_number, holder): data})


def open_sum(
    plan: FederatedSum,
    state: NodeState,
    draws: Mapping[int, int],
    *,
    round_number: int = 0,
    parameters: bytes = NO_PARAMETERS,
) -> tuple[NodeState, bytes]:
    """Returns the state of a node and its message to the analyst: the sum of the holders' shares.

    Two sums that differ in one holder would give that holder's value under its own noise alone, so
    a node opens one set in each round: the same set again gives the same bytes, another is refused.

    Args:
      plan: of the release.
      state: of the node.
      draws: the set that the nodes agreed on, by holder.
      round_number: of the release.
      parameters: digest of those that the round's sums are taken at.

    Returns:
      The new state, to be stored before the message is sent, and the message.

    Raises:
      ProtocolError: too few holders, one whose share is missing or of another draw, or a second
        set.
    """
    _check_node(plan, state)
    check_type("draws", draws, Mapping, "a mapping from holders to draws")
    check_count("round_number", round_number, minimum=0)
    _check_digest(parameters)
    if round_number in state.opened:
        earlier, data = state.opened[round_number]
        require(earlier == draws, "opened")
        return state, data
    require(len(draws) >= plan.parties.least_holders, "too few holders")
    require(state.holders(round_number) >= draws.keys(), "holders")
    shares = {
        holder: plan.message_format.read_share(state.received[round_number, holder])
        for holder in sorted(draws)
    }
    require(all(shares[holder][0] == draw for holder, draw in draws.items()), "draw")
    opening = Message(
        kind="opening",
        sender=state.node,
        receiver=ANALYST,
        round_number=round_number,
        parameters=parameters,
        draws=draws,
        words=functools.reduce(plan.parties.sharing.add, (words for _, words in shares.values())),
    )
    data = plan.message_format.to_bytes(opening)
    kept = {key: value for key, value in state.received.items() if key[0] != round_number}
    opened = {**state.opened, round_number: (dict(draws), data)}
    return replace(state, received=kept, opened=opened), data


class Result(NamedTuple):
    """Result of a federated release.

    Attributes:
      released: the result of the mechanism's release.
      holders: whose records are in it.
      mechanism: the mechanism with the noise that is in it, for noise-aware posteriors.
    """

    released: Any
    holders: frozenset[int]
    mechanism: Any

    def _repr_html_(self) -> str:
        numbers = ", ".join(map(str, sorted(self.holders)))
        return render_html(
            f"Federated release of {len(self.holders)} holders",
            [
                leaf_table("Released sum", self.released),
                HTMLTable("", [("holders in the sum", numbers)]),
            ],
            enclosed_heading="The mechanism with the noise that is in the sum",
            enclosed_html=self.mechanism._repr_html_(),
        )


def combine(
    plan: FederatedSum,
    openings: Mapping[int, bytes],
    *,
    round_number: int = 0,
    parameters: bytes = NO_PARAMETERS,
) -> Result:
    """Returns the released sum, reconstructed from the nodes' sums of shares.

    Args:
      plan: of the release.
      openings: the message of each node that answered, by its index.
      round_number: of the release.
      parameters: digest of those that the round's sums are taken at.

    Returns:
      The release, its holders, and the mechanism with the noise of that many holders.

    Raises:
      ProtocolError: too few nodes, sums of different holders or draws, or a message that is not
        the expected one.
    """
    check_plan(plan)
    check_type("openings", openings, Mapping, "a mapping from nodes to messages")
    for data in openings.values():
        check_type("openings", data, bytes, "a mapping from nodes to messages, bytes")
    check_count("round_number", round_number, minimum=0)
    _check_digest(parameters)
    messages = {
        node: plan.message_format.from_bytes(
            data,
            kind="opening",
            sender=node,
            receiver=ANALYST,
            round_number=round_number,
            parameters=parameters,
        )
        for node, data in openings.items()
        if _is_index(node, plan.parties.num_nodes)
    }
    require(len(messages) == len(openings), "sender")
    sharing = plan.parties.sharing
    require(len(messages) >= sharing.threshold, "too few nodes")
    first, *others = messages.values()
    require(all(other.holders == first.holders for other in others), "holders")
    require(all(other.draws == first.draws for other in others), "draw")
    require(len(first.holders) >= plan.parties.least_holders, "too few holders")
    valid = all(sharing.is_share(message.words) for message in messages.values())
    require(valid, "share")
    total = sharing.reconstruct({node: message.words for node, message in messages.items()})
    released = plan.mechanism.from_sum(plan.from_units(total))
    return Result(released, first.holders, plan.mechanism_for(len(first.holders)))


def run_round(
    plan: FederatedSum,
    statistics: Sequence[npt.ArrayLike | None],
    *,
    entropy: Entropy = SYSTEM,
    dead_nodes: Collection[int] = (),
    round_number: int = 0,
) -> Result:
    """Runs one release in one process, with every message as bytes, and returns its result.

    Args:
      plan: of the release.
      statistics: for each holder ``plan.mechanism.sum_records`` of its records, or ``None`` if it
        drops out.
      entropy: source of random bytes.
      dead_nodes: nodes that do not open their sums.
      round_number: of the release.

    Returns:
      The release, its holders, and the mechanism with the noise of that many holders.

    Raises:
      ProtocolError: too few holders or nodes remain.
      ValueError: not one statistic for each holder.
    """
    check_plan(plan)
    check_function("entropy", entropy, "number")
    check_type("statistics", statistics, Sequence, "one statistic for each holder")
    check_type("dead_nodes", dead_nodes, list | tuple | set | frozenset, "indices of nodes")
    for node in dead_nodes:
        _check_index("dead_nodes", node, plan.parties.num_nodes)
    _check_index("round_number", round_number, plan.mechanism.num_rounds)
    given, wanted = len(statistics), plan.parties.num_holders
    check(given == wanted, "statistics", f"{given} of them", f"{wanted}, one for each holder")
    states = [NodeState(node) for node in range(plan.parties.num_nodes)]
    for holder, statistic in enumerate(statistics):
        if statistic is None:
            continue
        sent = holder_messages(plan, holder, statistic, round_number=round_number, entropy=entropy)
        states = [
            receive(plan, state, data, holder=holder, round_number=round_number)
            for state, data in zip(states, sent, strict=True)
        ]
    alive = [state for state in states if state.node not in dead_nodes]
    received = [received_draws(plan, state, round_number=round_number) for state in states]
    draws = agreed_draws(received, threshold=len(received))
    openings = {
        state.node: open_sum(plan, state, draws, round_number=round_number)[1] for state in alive
    }
    return combine(plan, openings, round_number=round_number)


def _is_index(value: int, size: int) -> bool:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return whole and 0 <= value < size


def _check_node(plan: object, state: object) -> None:
    check_plan(plan)
    check_type("state", state, NodeState, "a NodeState")


def _check_digest(parameters: object) -> None:
    size = len(NO_PARAMETERS)
    fits = isinstance(parameters, bytes) and len(parameters) == size
    check(fits, "parameters", parameters, f"a digest of {size} bytes")


def _check_index(name: str, value: int, size: int) -> None:
    check(_is_index(value, size), name, value, f"a whole number, 0 to {size - 1}")
