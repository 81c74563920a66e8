"""The protocol: exact sums, drop-outs, dead nodes, and messages that are refused by code."""

import dataclasses

import numpy as np
import pytest
from helpers.federated_cases import (
    RECORDS,
    code_of,
    count_release,
    draws_of,
    gradient_plan,
    histogram_release,
    plan_of,
    regression_release,
)

from dpjax.federated import (
    NodeState,
    agreed_draws,
    combine,
    holder_messages,
    open_sum,
    perturb,
    protocol,
    receive,
    received_draws,
    run_round,
    simulated_entropy,
)
from dpjax.federated.messages import ANALYST, NO_PARAMETERS, Message


def random_round(rng, name, **parties):
    make, records = RECORDS[name]
    plan = plan_of(make(), **parties)
    sums = [
        plan.mechanism.sum_records(*records(rng, int(rng.integers(0, 9))))
        for _ in range(plan.parties.num_holders)
    ]
    return plan, sums


@pytest.mark.slow
def test_run_round_opens_the_sum_of_perturbed_integers(monkeypatch):
    """Over random plans with drop-outs and dead nodes, the noise of each holder recorded."""
    rng = np.random.default_rng(11)
    sent = {}

    def recorded(plan, statistic, *, entropy):
        sent[len(sent)] = perturb(plan, statistic, entropy=entropy)
        return sent[len(sent) - 1]

    monkeypatch.setattr(protocol, "perturb", recorded)
    for _ in range(200):
        num_nodes = int(rng.integers(2, 6))
        num_dropouts = int(rng.integers(0, 3))
        least = num_nodes // 2 + 1 if num_dropouts < 2 else 2 * num_nodes // 3 + 1
        shamir = int(rng.integers(least, num_nodes + 1))
        parties = {
            "num_holders": int(rng.integers(4, 9)),
            "num_nodes": num_nodes,
            "num_dropouts": num_dropouts,
            "node_threshold": shamir if rng.random() < 0.5 else None,
        }
        plan, sums = random_round(rng, str(rng.choice(list(RECORDS))), **parties)
        dropped = rng.permutation(len(sums))[: rng.integers(0, plan.parties.num_dropouts + 1)]
        dead = rng.permutation(num_nodes)[: num_nodes - plan.parties.sharing.threshold]
        sent.clear()
        result = run_round(
            plan,
            [None if h in dropped else one for h, one in enumerate(sums)],
            dead_nodes=dead.tolist(),
        )
        assert result.holders == frozenset(range(len(sums))) - {int(h) for h in dropped}
        total = np.sum(list(sent.values()), axis=0)
        expected = plan.mechanism.from_sum(plan.from_units(total))
        for found, wanted in zip(result.released, expected, strict=True):
            np.testing.assert_array_equal(found, wanted)


def test_run_round_has_the_noise_of_those_who_stayed():
    plan = plan_of(histogram_release(scale=3.0), num_holders=6, num_dropouts=2)
    sums = [np.full(5, 10.0 * holder) for holder in range(6)]
    sums[1] = None
    entropy, noise = simulated_entropy(4), []
    for _ in range(150):
        result = run_round(plan, sums, entropy=entropy)
        noise.append(result.released - 10.0 * (0 + 2 + 3 + 4 + 5))
    expected = result.mechanism.mechanism.standard_deviation
    assert result.holders == {0, 2, 3, 4, 5}
    assert np.std(noise) == pytest.approx(expected, rel=6 / np.sqrt(2 * 750))
    correlations = np.corrcoef(np.transpose(noise)) - np.eye(5)
    assert np.abs(correlations).max() < 6 / np.sqrt(150)


def test_run_round_leaves_the_trusted_noise_against_the_observer(monkeypatch):
    """The observer and two colluders subtract all they sent; power: there are three colluders.

    Six standard errors of a deviation of 3,000 draws: false alarm 2e-9 each.
    """
    plan = plan_of(histogram_release(scale=3.0), num_holders=8, num_dropouts=1, num_colluders=2)
    assert plan.parties.num_noise_shares == 4
    sums, sent = [np.full(5, 10.0 * holder) for holder in range(8)], []
    sums[7] = None

    def recorded(plan, statistic, *, entropy):
        sent.append(perturb(plan, statistic, entropy=entropy))
        return sent[-1]

    monkeypatch.setattr(protocol, "perturb", recorded)
    entropy, rest = simulated_entropy(6), {3: [], 4: []}
    for _ in range(600):
        sent.clear()
        result = run_round(plan, sums, entropy=entropy)
        for num_known, found in rest.items():
            known = plan.from_units(np.sum(sent[:num_known], axis=0))
            found.append(result.released - known - sum(sums[num_known:7]))
    stated = plan.mechanism.mechanism.scale
    error = 6 * stated / np.sqrt(2 * 3000)
    assert abs(np.std(rest[3]) - stated) < error
    assert np.std(rest[4]) < stated - error


def started(plan, sums, entropy=None):
    """States of the nodes with every holder's message, and the messages."""
    entropy = entropy or simulated_entropy(1)
    states = [NodeState(node) for node in range(plan.parties.num_nodes)]
    sent = [holder_messages(plan, h, one, entropy=entropy) for h, one in enumerate(sums)]
    for holder, messages in enumerate(sent):
        states = [
            receive(plan, state, data, holder=holder)
            for state, data in zip(states, messages, strict=True)
        ]
    return states, sent


@pytest.fixture(scope="module")
def counted():
    plan = plan_of(count_release(), num_dropouts=1)
    states, sent = started(plan, [np.array([3.0, 1.0])] * 5)
    return plan, states, sent


def test_receive_refuses_every_wrong_message_by_its_code(counted):
    plan, _, sent = counted
    node, data = NodeState(1), sent[2][1]
    other = plan_of(count_release(), num_dropouts=1, num_colluders=1)

    def flipped(position):
        changed = bytearray(data)
        changed[position] ^= 1
        return bytes(changed)

    def code(data, **changes):
        options = {"holder": 2, "round_number": 0, **changes}
        return code_of(receive, plan, node, data, **options)

    assert code(data[:-1]) == code(data + b"0") == code(b"") == "length"
    assert code(data * 1000) == "length"
    assert code(flipped(0)) == code(flipped(4)) == code(flipped(6)) == "format"
    for position in (8, 12, 16, 24, 40, 60, len(data) - 1):
        assert code(flipped(position)) == "damaged"
    foreign = holder_messages(other, 2, np.zeros(2))[1]
    assert code(foreign) == "plan"
    assert code(data, round_number=1) == "round"
    assert code(data, holder=3) == "sender"
    assert code(data, holder=5) == code(data, holder=-1) == "sender"
    assert code(sent[2][0]) == "receiver"
    assert receive(plan, node, data, holder=2).holders(0) == {2}  # power


def test_receive_refuses_a_share_without_its_draw(counted):
    plan, _, sent = counted
    message = plan.message_format.from_bytes(
        sent[2][1], kind="share", sender=2, receiver=1, round_number=0
    )
    assert message.draws.keys() == {2}
    data = plan.message_format.to_bytes(dataclasses.replace(message, draws={2: 0}))
    assert code_of(receive, plan, NodeState(1), data, holder=2) == "format"


def share_message(words):
    return Message(kind="share", sender=2, receiver=1, round_number=0, draws={2: 77}, words=words)


def test_receive_refuses_words_that_are_no_residues():
    plan = plan_of(count_release(), node_threshold=2)
    words = np.array([2**61 - 1, 0], np.uint64)
    data = plan.message_format.to_bytes(share_message(words))
    assert code_of(receive, plan, NodeState(1), data, holder=2) == "share"


def test_receive_accepts_a_retry_and_no_other_message(counted):
    plan, states, sent = counted
    assert receive(plan, states[0], sent[2][0], holder=2) == states[0]
    again = holder_messages(plan, 2, np.array([3.0, 1.0]))
    assert again[0] != sent[2][0]  # new noise and new masks
    assert code_of(receive, plan, states[0], again[0], holder=2) == "repeated"


def test_open_sum_opens_one_set_in_a_round(counted):
    plan, states, sent = counted
    draws = draws_of(plan, states[0], range(5))
    state, opened = open_sum(plan, states[0], draws)
    assert open_sum(plan, state, dict(reversed(draws.items()))) == (state, opened)
    for other in (draws_of(plan, states[0], range(4)), {**draws, 2: 1}):
        assert code_of(open_sum, plan, state, other) == "opened"
    assert code_of(receive, plan, state, sent[1][0], holder=1) == "opened"
    assert state.holders(0) == frozenset()  # the shares are gone


def test_open_sum_refuses_too_little_noise(counted):
    plan, states, _ = counted
    state, fresh = states[0], NodeState(0)
    assert code_of(open_sum, plan, state, draws_of(plan, state, range(3))) == "too few holders"
    assert code_of(open_sum, plan, state, draws_of(plan, state, [0, 1, 2, 7])) == "holders"
    assert code_of(open_sum, plan, fresh, draws_of(plan, fresh, range(4))) == "holders"
    # Power: one drop-out is within the plan.
    open_sum(plan, state, draws_of(plan, state, range(4)))


def test_node_state_has_rounds_apart():
    plan = gradient_plan(2, num_steps=8)
    states, _ = started(plan, [np.zeros(2)] * 4)
    later = holder_messages(plan, 2, np.zeros(2), round_number=7)
    state = receive(plan, states[0], later[0], holder=2, round_number=7)
    assert state.holders(7) == {2}
    state, _ = open_sum(plan, state, draws_of(plan, state, range(4)))
    assert state.holders(7) == {2}


def test_round_number_beyond_the_event_is_refused():
    with pytest.raises(ValueError, match="round_number must be a whole number, 0 to 7"):
        holder_messages(gradient_plan(2, num_steps=8), 0, np.zeros(2), round_number=8)
    with pytest.raises(ValueError, match="round_number must be a whole number, 0 to 0"):
        run_round(plan_of(count_release()), [np.zeros(2)] * 5, round_number=1)


def test_combine_refuses_openings_that_do_not_fit(counted):
    plan, states, _ = counted
    openings = {s.node: open_sum(plan, s, draws_of(plan, s, range(5)))[1] for s in states}
    assert combine(plan, openings).holders == set(range(5))
    two = {node: openings[node] for node in (0, 1)}
    assert code_of(combine, plan, two) == "too few nodes"
    mixed = {**openings, 1: open_sum(plan, states[1], draws_of(plan, states[1], range(4)))[1]}
    assert code_of(combine, plan, mixed) == "holders"
    exchanged = {**openings, 1: openings[2]}
    assert code_of(combine, plan, exchanged) == "sender"
    assert code_of(combine, plan, {**openings, 5: openings[0]}) == "sender"
    assert code_of(combine, plan, openings, round_number=2) == "round"
    few = plan.message_format.to_bytes(
        dataclasses.replace(share_message(np.zeros(2, np.uint64)), kind="opening", receiver=ANALYST)
    )
    one_node = plan_of(count_release(), num_dropouts=1, num_nodes=3)
    assert code_of(combine, one_node, {**openings, 2: few}) == "holders"


def test_run_round_ends_beyond_the_plans_dropouts_and_dead_nodes():
    plan = plan_of(count_release(), num_nodes=3, node_threshold=2, num_dropouts=1)
    sums = [np.ones(2)] * 5
    assert run_round(plan, [*sums[:4], None], dead_nodes=[1]).holders == {0, 1, 2, 3}
    found = code_of(run_round, plan, [*sums[:3], None, None])
    assert found == "too few holders"
    assert code_of(run_round, plan, sums, dead_nodes=[0, 1]) == "too few nodes"
    with pytest.raises(ValueError, match="one for each holder"):
        run_round(plan, sums[:4])


def test_agreed_draws_are_those_that_enough_nodes_have():
    one, two, three = {0: 5, 1: 6, 2: 7}, {1: 6, 2: 8}, {2: 7, 1: 6}
    assert agreed_draws([one, two, three], threshold=3) == {1: 6}
    assert agreed_draws([one, two, three], threshold=2) == {1: 6, 2: 7}
    assert agreed_draws([two, one, one], threshold=2) == one
    for received in ([], [one]):
        with pytest.raises(ValueError, match="of at least 2 nodes"):
            agreed_draws(received, threshold=2)


def redrawn(plan, sums, again):
    """States of nodes; holder 2 sends the shares of a second draw to the nodes ``again``."""
    states, _ = started(plan, sums)
    second = holder_messages(plan, 2, sums[2], entropy=simulated_entropy(9))
    for node in again:
        received = {**states[node].received, (0, 2): second[node]}
        states[node] = dataclasses.replace(states[node], received=received)
    return states


def test_combine_refuses_shares_of_two_draws():
    plan = plan_of(count_release(), num_dropouts=1)
    states = redrawn(plan, [np.array([3.0, 1.0])] * 5, again=[1])
    received = [received_draws(plan, state) for state in states]
    assert received[0][2] == received[2][2] != received[1][2]
    assert code_of(open_sum, plan, states[1], received[0]) == "draw"
    openings = {s.node: open_sum(plan, s, received[s.node])[1] for s in states}
    assert code_of(combine, plan, openings) == "draw"
    # Power: the sum itself is spoiled, and without the holder it is not.
    words = [
        plan.message_format.from_bytes(
            data, kind="opening", sender=node, receiver=ANALYST, round_number=0
        ).words
        for node, data in openings.items()
    ]
    total = plan.from_units(plan.parties.sharing.reconstruct(dict(enumerate(words))))
    assert np.abs(total).max() > 1e6
    draws = agreed_draws(received, threshold=3)
    assert draws.keys() == {0, 1, 3, 4}
    openings = {s.node: open_sum(plan, s, draws)[1] for s in states}
    assert combine(plan, openings).holders == {0, 1, 3, 4}


def test_parameters_of_another_round_are_refused():
    plan = gradient_plan(2)
    here, there = b"a" * 16, b"b" * 16
    sent = [
        holder_messages(plan, holder, np.zeros(2), round_number=3, parameters=here)
        for holder in range(4)
    ]
    options = {"holder": 1, "round_number": 3}
    for other in (there, NO_PARAMETERS):
        found = code_of(receive, plan, NodeState(0), sent[1][0], parameters=other, **options)
        assert found == "parameters"
    states = [NodeState(node) for node in range(3)]
    for holder, messages in enumerate(sent):
        states = [
            receive(plan, state, data, holder=holder, round_number=3, parameters=here)
            for state, data in zip(states, messages, strict=True)
        ]
    draws = received_draws(plan, states[0], round_number=3)
    openings = {
        state.node: open_sum(plan, state, draws, round_number=3, parameters=here)[1]
        for state in states
    }
    assert code_of(combine, plan, openings, round_number=3, parameters=there) == "parameters"
    assert combine(plan, openings, round_number=3, parameters=here).holders == {0, 1, 2, 3}


def test_perturb_uses_the_systems_entropy_by_default():
    plan = plan_of(regression_release())
    zeros = np.zeros(plan.size)
    assert np.any(perturb(plan, zeros) != perturb(plan, zeros))
    one, other = (perturb(plan, zeros, entropy=simulated_entropy(3)) for _ in range(2))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("holder", [-1, 5, 1.0])
def test_holder_messages_refuses_an_index_out_of_range(counted, holder):
    with pytest.raises(ValueError, match="holder must be a whole number, 0 to 4"):
        holder_messages(counted[0], holder, np.zeros(2))
