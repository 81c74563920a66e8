"""Rounds over gRPC with mutual TLS: who is refused, and what an error contains."""

import contextlib
import math
import socket
import threading
import time
from typing import NamedTuple

import grpc
import numpy as np
import pytest
from helpers.federated_cases import code_of, from_analyst, histogram_release, plan_of

from dpjax.federated import ProtocolError, holder_messages, perturb, simulated_entropy
from dpjax.federated.processes import trial_keys
from dpjax.federated.processes.analyst import Analyst
from dpjax.federated.processes.config import Study
from dpjax.federated.processes.holder import Delivery, journalled_messages
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node
from dpjax.federated.processes.plan_check import PlanCheck, plans_to_bytes
from dpjax.federated.processes.transport import Channels, Identity, poll, serve
from dpjax.federated.processes.trial_keys import make_trial_keys

PLAN = plan_of(histogram_release(), num_holders=4, num_dropouts=1)
MAX_BYTES = PLAN.message_format.num_bytes
CALL_TIME = 30.0
SUMS = [np.full(5, 10.0 * holder) for holder in range(4)]


class Network(NamedTuple):
    """Three nodes of a plan that answer on this machine."""

    addresses: list[str]
    nodes: list[Node]


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    folder = tmp_path_factory.mktemp("keys")
    for name in ("own", "foreign"):
        make_trial_keys(folder / name, num_holders=4, num_nodes=3)
    return folder


def identity(folder, party):
    return Identity.read(folder / "authority.pem", folder / f"{party}.pem", folder / f"{party}.key")


def serve_here(answer, own, address="127.0.0.1:0"):
    return serve(answer, address, own, max_bytes=MAX_BYTES, num_clients=5)


@contextlib.contextmanager
def network_of(answers, keys, names=("node-0", "node-1", "node-2")):
    """Addresses of nodes that answer by the functions ``answers``, with certificates of names."""
    servers = [
        serve_here(answer, identity(keys, name))
        for answer, name in zip(answers, names, strict=False)
    ]
    try:
        yield [f"127.0.0.1:{port}" for _, port in servers]
    finally:
        for server, _ in servers:
            server.stop(grace=None).wait()


@pytest.fixture
def network(tmp_path, keys):
    with contextlib.ExitStack() as stack:
        journals = [stack.enter_context(Journal(tmp_path / str(n), f"node {n}")) for n in range(3)]
        nodes = [Node(PLAN, index, journal) for index, journal in enumerate(journals)]
        answers = [node.answer for node in nodes]
        yield Network(stack.enter_context(network_of(answers, keys / "own")), nodes)


def channels(network, keys, party, *, max_bytes=MAX_BYTES, call_time=CALL_TIME):
    addresses = network if isinstance(network, list) else network.addresses
    own = identity(keys, party)
    return Channels(addresses, own, max_bytes=max_bytes, call_time=call_time)


def channel_of_grpc(address, party, *options):
    """A channel to node 0 without dpjax's own client."""
    credentials = grpc.ssl_channel_credentials(party.authority, party.key, party.certificate)
    own = [("grpc.ssl_target_name_override", "node-0"), ("grpc.enable_http_proxy", 0)]
    return grpc.secure_channel(address, credentials, [*own, *options])


def run_holder(network, keys, holder, folder):
    entropy = simulated_entropy(holder)
    with Journal(folder / f"holder-{holder}", "") as journal:
        messages = journalled_messages(PLAN, holder, SUMS[holder], journal, entropy=entropy)
        delivery = Delivery(messages)
        with channels(network, keys / "own", f"holder-{holder}") as own:
            poll(lambda _: delivery.attempt(own.call) or None, time_limit=30.0)
    assert set(delivery.codes.values()) == {None}


def test_round_over_tls_has_the_result_of_one_process(tmp_path, keys, network):
    """All holders at once, each from its own thread."""
    threads = [
        threading.Thread(target=run_holder, args=(network, keys, holder, tmp_path))
        for holder in range(4)
    ]
    for thread in threads:
        thread.start()
    with (
        Journal(tmp_path / "analyst", "") as journal,
        channels(network, keys / "own", "analyst") as own,
    ):
        analyst = Analyst(PLAN, journal)
        result = poll(lambda _: analyst.attempt(own.call, waiting_over=False), time_limit=30.0)
    for thread in threads:
        thread.join()
    noisy = [perturb(PLAN, SUMS[h], entropy=simulated_entropy(h)) for h in range(4)]
    assert result.holders == set(range(4))
    assert {frozenset(node.state.opened[0][0]) for node in network.nodes} == {result.holders}
    np.testing.assert_array_equal(result.released, PLAN.from_units(np.sum(noisy, axis=0)))


def test_analyst_leaves_out_missing_holders_once_waiting_is_over(tmp_path, keys, network):
    for holder in range(3):
        run_holder(network, keys, holder, tmp_path)
    with (
        Journal(tmp_path / "analyst", "") as journal,
        channels(network, keys / "own", "analyst") as own,
    ):
        analyst = Analyst(PLAN, journal)
        assert analyst.attempt(own.call, waiting_over=False) is None
        assert analyst.failure == "too few holders"
        result = analyst.attempt(own.call, waiting_over=True)
        assert result.holders == {0, 1, 2}
    with Journal(tmp_path / "analyst", "") as journal:  # started again, and no node is there
        again = Analyst(PLAN, journal).attempt(_nobody, waiting_over=False)
        np.testing.assert_array_equal(again.released, result.released)
    late = holder_messages(PLAN, 3, SUMS[3])
    with channels(network, keys / "own", "holder-3") as own:
        assert code_of(own.call, 0, "share", late[0]) == "opened"


def _nobody(node, kind, data):
    raise ProtocolError("unreachable")


def test_serve_does_not_answer_parties_of_no_study(keys, network):
    """No certificate, plain text, another authority: no answer. Power: the last call."""
    node, (first, *_) = network.nodes[0], network.addresses
    data = holder_messages(PLAN, 1, SUMS[1])[0]
    own, foreign = keys / "own", identity(keys / "foreign", "holder-1")
    authority = (own / "authority.pem").read_bytes()
    options = [("grpc.ssl_target_name_override", "node-0"), ("grpc.enable_http_proxy", 0)]
    without = grpc.secure_channel(first, grpc.ssl_channel_credentials(authority), options)
    for channel in (without, grpc.insecure_channel(first, options)):
        with channel, pytest.raises(grpc.RpcError) as raised:
            channel.unary_unary("/dpjax.federated.Node/share")(data, timeout=CALL_TIME)
        assert raised.value.code() == grpc.StatusCode.UNAVAILABLE
    # The node refuses a foreign client, a client a foreign node.
    for party in (foreign._replace(authority=authority), foreign):
        with Channels([first], party, max_bytes=MAX_BYTES, call_time=CALL_TIME) as channel:
            assert code_of(channel.call, 0, "share", data) == "unreachable"
    assert node.state.holders(0) == frozenset()
    with channels(network, own, "holder-1") as channel:
        assert channel.call(0, "share", data) == b""
    assert node.state.holders(0) == {1}


def test_serve_refuses_messages_of_another_name(keys, network):
    data = holder_messages(PLAN, 1, SUMS[1])
    node, own = network.nodes[0], keys / "own"
    query = from_analyst(PLAN, "query", 0)
    opening = from_analyst(PLAN, "agreed", 0, dict.fromkeys(range(4), 1))
    for party in ("holder-2", "analyst", "node-1", "node-0"):
        with channels(network, own, party) as channel:
            code = code_of(channel.call, 0, "share", data[0])
            # Nodes have certificates of servers, which clients cannot use.
            assert code == ("unreachable" if party.startswith("node") else "sender")
    for party in ("holder-1", "holder-0"):
        with channels(network, own, party) as channel:
            assert code_of(channel.call, 0, "query", query) == "sender"
            assert code_of(channel.call, 0, "agreed", opening) == "sender"
    assert node.state.holders(0) == frozenset()
    with channels(network, own, "analyst") as channel:  # power
        assert len(channel.call(0, "query", query)) == PLAN.message_format.length("received")


@pytest.mark.parametrize("more", [(), ("analyst",)])
def test_serve_refuses_a_certificate_of_two_names(monkeypatch, tmp_path, more):
    """Its first name would do; power: that name alone is answered."""
    senders = []

    def answer(sender, kind, data):
        senders.append(sender)
        return b""

    of_names = trial_keys.x509.SubjectAlternativeName
    names = [trial_keys.x509.DNSName(name) for name in more]
    monkeypatch.setattr(
        trial_keys.x509, "SubjectAlternativeName", lambda own: of_names([*own, *names])
    )
    make_trial_keys(tmp_path / "keys", num_holders=2, num_nodes=1)
    with (
        network_of([answer], tmp_path / "keys") as addresses,
        channels(addresses, tmp_path / "keys", "holder-1") as own,
    ):
        if more:
            assert code_of(own.call, 0, "share", b"data") == "sender"
        else:
            assert own.call(0, "share", b"data") == b""
    assert senders == ([] if more else ["holder-1"])


@pytest.mark.parametrize("party", ["node-1", "holder-0", "analyst"])
def test_channels_refuse_another_certificate_than_the_nodes(keys, party):
    """Another party's certificate at the address of node 0; power: its own."""
    received = []

    def answer(sender, kind, data):
        received.append(data)
        return b""

    for name, refused in ((party, True), ("node-0", False)):
        with (
            network_of([answer], keys / "own", [name]) as addresses,
            channels(addresses, keys / "own", "holder-1") as channel,
        ):
            if refused:
                assert code_of(channel.call, 0, "share", b"data") == "unreachable"
            else:
                channel.call(0, "share", b"data")
    assert received == [b"data"]


def test_call_is_refused_by_the_nodes_code(keys, network):
    sent = holder_messages(PLAN, 1, SUMS[1])
    other = plan_of(histogram_release(), num_holders=4, num_dropouts=2)
    altered = bytearray(sent[0])
    altered[70] ^= 1
    with channels(network, keys / "own", "holder-1") as own:
        cases = {
            "length": sent[0][:-1],
            "damaged": bytes(altered),
            "plan": holder_messages(other, 1, SUMS[1])[0],
            "receiver": sent[1],
            "sender": holder_messages(PLAN, 2, SUMS[2])[0],
        }
        for code, data in cases.items():
            assert code_of(own.call, 0, "share", data) == code
        assert own.call(0, "share", sent[0]) == own.call(0, "share", sent[0]) == b""
        assert code_of(own.call, 0, "share", holder_messages(PLAN, 1, SUMS[1])[0]) == "repeated"
    with channels(network, keys / "own", "holder-1", max_bytes=100 * MAX_BYTES) as own:
        for factor in (2, 50):
            assert code_of(own.call, 1, "share", factor * sent[1]) == "length"
        assert code_of(own.call, 1, "opening", sent[1]) == "format"
    assert [node.state.holders(0) for node in network.nodes] == [{1}, frozenset(), frozenset()]


def test_plan_check_over_tls(keys, network):
    """Nodes take a party's name from its certificate; their answer is longer than any message."""
    study = Study(plan=PLAN, nodes=tuple(network.addresses))
    checks = [PlanCheck(study) for _ in range(5)]
    for check, name in zip(checks, (*(f"holder-{h}" for h in range(4)), "analyst"), strict=True):
        with channels(network, keys / "own", name) as own:
            assert check.attempt(own.call) == (name == "analyst")
    assert str(checks[-1]) == f"all 8 parties hold plan {PLAN.message_format.fingerprint.hex()}"
    assert len(plans_to_bytes(checks[-1].plans)) > MAX_BYTES


def test_channels_log_a_node_that_is_away_once(keys, network, caplog):
    caplog.set_level("DEBUG", "dpjax.federated")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    addresses = [f"127.0.0.1:{port}", *network.addresses[1:]]
    with channels(addresses, keys / "own", "holder-1") as own:
        for _ in range(20):
            assert code_of(own.call, 0, "share", b"") == "unreachable"
            assert code_of(own.call, 1, "share", b"") == "length"
        assert own.call(2, "share", holder_messages(PLAN, 1, SUMS[1])[2]) == b""
        assert own.codes == {0: "unreachable", 1: "length", 2: None}
    lines = [record.getMessage() for record in caplog.records]
    assert len(set(lines)) == len(lines) < 5  # of 40 refused calls
    assert all(line.startswith("node-0: ") for line in lines)
    assert any("Connection refused" in line for line in lines)


def test_serve_sends_no_text_of_an_error(keys, capfd):
    def answer(sender, kind, data):
        raise RuntimeError("the private value 1234.5")

    with (
        network_of([answer] * 3, keys / "own") as addresses,
        channels(addresses, keys / "own", "holder-1") as own,
    ):
        with pytest.raises(grpc.RpcError) as raised:
            own._channels[0].unary_unary("/dpjax.federated.Node/share")(b"", timeout=CALL_TIME)
        assert raised.value.details() == "internal"
        assert "1234" not in str(raised.value.trailing_metadata())
        assert code_of(own.call, 0, "share", b"") == "internal"
    assert "1234.5" in capfd.readouterr().err  # of the node's own machine


def test_call_takes_no_text_for_a_code(keys):
    def answer(sender, kind, data):
        raise ProtocolError("1234.5")

    with (
        network_of([answer] * 3, keys / "own") as addresses,
        channels(addresses, keys / "own", "holder-1") as own,
    ):
        assert code_of(own.call, 0, "share", b"") == "internal"


def test_call_ends_at_its_time(keys):
    stop = threading.Event()

    def answer(sender, kind, data):
        stop.wait(30)
        return b""

    with (
        network_of([answer], keys / "own") as addresses,
        channels(addresses, keys / "own", "holder-1", call_time=0.5) as channel,
    ):
        begin = time.monotonic()
        assert code_of(channel.call, 0, "share", b"") == "unreachable"
        assert 0.4 < time.monotonic() - begin < 10
        stop.set()


@contextlib.contextmanager
def calls_without_a_body(address, party, *, connections, calls):
    """Open calls that send nothing, once those that are refused have ended."""
    ended, opened = threading.Event(), []

    def no_message():
        ended.wait()
        yield from ()

    with contextlib.ExitStack() as stack:
        stack.callback(ended.set)
        for _ in range(connections):
            alone = ("grpc.use_local_subchannel_pool", 1)  # else they share one connection
            channel = stack.enter_context(channel_of_grpc(address, party, alone))
            grpc.channel_ready_future(channel).result(timeout=CALL_TIME)
            start = channel.stream_unary("/dpjax.federated.Node/share").future
            opened += [start(no_message()) for _ in range(calls)]
        poll(lambda _: sum(one.done() for one in opened) >= 76 or None, time_limit=3.0)
        yield opened


@pytest.mark.slow
def test_serve_limits_open_calls_of_one_holder(keys, network):
    """80 of them, and a share of another holder; then its own again."""
    shares = {holder: holder_messages(PLAN, holder, SUMS[holder])[0] for holder in (0, 1)}
    first, own = network.addresses[0], keys / "own"
    with calls_without_a_body(first, identity(own, "holder-0"), connections=20, calls=4) as opened:
        assert sum(not one.done() for one in opened) == 4
        begin = time.monotonic()
        with channels(network, own, "holder-1") as channel:
            assert channel.call(0, "share", shares[1]) == b""
        assert time.monotonic() - begin < 5.0
        with channels(network, own, "holder-0") as channel:
            assert code_of(channel.call, 0, "share", shares[0]) == "unreachable"

    def attempt(_):
        with contextlib.suppress(ProtocolError), channels(network, own, "holder-0") as channel:
            return channel.call(0, "share", shares[0])

    assert poll(attempt, time_limit=CALL_TIME) == b""
    assert network.nodes[0].state.holders(0) == {0, 1}


def test_serve_refuses_a_call_without_a_message(keys, network, capfd):
    party = identity(keys / "own", "holder-0")
    with (
        channel_of_grpc(network.addresses[0], party) as channel,
        pytest.raises(grpc.RpcError) as raised,
    ):
        channel.stream_unary("/dpjax.federated.Node/share")(iter(()), timeout=CALL_TIME)
    assert raised.value.details() == "length"
    assert capfd.readouterr().err == ""


def copy_slowly(source, target):
    """Copies bytes, each piece after 0.2 seconds, until the source ends."""
    with contextlib.suppress(OSError):
        while data := source.recv(2**16):
            time.sleep(0.2)
            target.sendall(data)


def forward(listener, port):
    with contextlib.suppress(OSError):
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            for pair in ((client, server), (server, client)):
                threading.Thread(target=copy_slowly, args=pair, daemon=True).start()


@pytest.mark.slow
def test_channels_wait_for_a_slow_connection(keys):
    """Each piece of the handshake takes 0.2 seconds, as between continents."""
    with (
        network_of([lambda *_: b"answer"], keys / "own") as (node,),
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        port = int(node.rpartition(":")[2])
        threading.Thread(target=forward, args=(listener, port), daemon=True).start()
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        with channels([address], keys / "own", "holder-1") as channel:
            assert channel.call(0, "share", b"data") == b"answer"


def test_poll_ends_at_the_time_limit(monkeypatch):
    """On a clock of its own; power: without the limit they would not."""

    class Clock:
        now = 0.0

        def monotonic(self):
            return self.now

        def sleep(self, seconds):
            self.now += seconds
            if self.now > 60:
                raise TimeoutError

    monkeypatch.setattr("dpjax.federated.processes.transport.time", Clock())
    seen = []
    assert poll(lambda elapsed: seen.append(elapsed), time_limit=2.0) is None
    assert 15 <= len(seen) <= 25
    assert max(seen) < 2.0
    assert poll(lambda elapsed: elapsed if elapsed > 1 else None, time_limit=2.0) < 1.2
    with pytest.raises(TimeoutError):
        poll(seen.append, time_limit=math.inf)


def test_serve_refuses_an_address_in_use(keys):
    with (
        network_of([lambda *_: b""], keys / "own") as (address,),
        pytest.raises(ValueError, match=f"address must be a free address.*{address}"),
    ):
        serve_here(lambda *_: b"", identity(keys / "own", "node-0"), address)


def test_make_trial_keys_writes_secret_keys_once(tmp_path):
    make_trial_keys(tmp_path / "keys", num_holders=2, num_nodes=2)
    names = {path.name for path in (tmp_path / "keys").iterdir()}
    parties = ["holder-0", "holder-1", "node-0", "node-1", "analyst"]
    assert names == {"authority.pem", *(f"{p}.{end}" for p in parties for end in ("pem", "key"))}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "keys").glob("*.key")} == {0o600}
    with pytest.raises(FileExistsError):
        make_trial_keys(tmp_path / "keys", num_holders=2, num_nodes=2)
    with pytest.raises(ValueError, match="num_nodes must be a whole number >= 1, got 0"):
        make_trial_keys(tmp_path / "other", num_holders=2, num_nodes=0)
