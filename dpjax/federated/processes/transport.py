"""Messages between processes: gRPC with mutual TLS, and the sender's name from its certificate.

A call has the kind of its message as method and the message's bytes as body, without protobuf. A
certificate has one name as its subject alternative name: ``holder-<i>``, ``node-<i>`` or
``analyst``. A node takes the sender's name from the certificate, and a client accepts only the
certificate of the node that it calls. One authority issues all certificates, and no others.

A call occupies one of the node's threads from its start, also where its body never comes. So each
name has a few calls at a time, and the node has threads for those of all clients.

Needs the extra ``federated``.
"""

import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, TypeVar, get_args

from dpjax._extras import requires_extra
from dpjax.federated.messages import ErrorCode, Kind, ProtocolError
from dpjax.federated.processes.config import PartySettings
from dpjax.federated.processes.progress import ConnectionErrors

with requires_extra("federated"):
    import grpc

T = TypeVar("T")
# Sends a message of a kind to a node and returns the answer; raises ProtocolError.
Call = Callable[[int, Kind, bytes], bytes]

# Seconds between attempts in a single round, and in the many rounds of a training.
_PAUSE, PAUSE_IN_TRAINING = 0.1, 0.05
_SERVICE = "dpjax.federated.Node"
_KINDS: tuple[Kind, ...] = ("share", "query", "agreed", "parameters", "next", "plan")
# What an answer may have at least: names of the plans of all parties.
_ANSWER_BYTES = 2**20
# The name of a study has at most 90 bytes, which is more than the messages of some plans.
_NAME_BYTES = 90
# Calls of one client at a time; a connection takes new ones for these seconds, and is closed after
# twice as many, with the calls on it.
_NUM_CALLS, _CONNECTION_SECONDS = 4, 120
_STATUS_CODES: dict[grpc.StatusCode, ErrorCode] = {
    grpc.StatusCode.UNAVAILABLE: "unreachable",
    grpc.StatusCode.DEADLINE_EXCEEDED: "unreachable",
    grpc.StatusCode.CANCELLED: "unreachable",
    grpc.StatusCode.RESOURCE_EXHAUSTED: "length",
    grpc.StatusCode.UNIMPLEMENTED: "format",
}


class Identity(NamedTuple):
    """TLS credentials of a party: key and certificate, and the certificate of the authority.

    Attributes:
      authority: certificate of the authority, PEM.
      certificate: of the party, PEM.
      key: private key of the certificate, PEM: a secret.
    """

    authority: bytes
    certificate: bytes
    key: bytes

    @classmethod
    def read(cls, authority: Path, certificate: Path, key: Path) -> "Identity":
        """Returns the identity in three files."""
        return cls(authority.read_bytes(), certificate.read_bytes(), key.read_bytes())

    @classmethod
    def of_party(cls, settings: PartySettings) -> "Identity":
        """Returns the identity in the files that a party's settings name."""
        return cls.read(settings.authority, settings.certificate, settings.key)


def serve(
    answer: Callable[[str, Kind, bytes], bytes],
    address: str,
    identity: Identity,
    *,
    max_bytes: int,
    num_clients: int,
) -> tuple[grpc.Server, int]:
    """Starts a gRPC server with mutual TLS, and returns it and its port.

    ``answer`` is from the sender's name, the kind and the bytes of a message to the answer's.
    ``address`` is host and port; port 0 takes a free one. ``num_clients`` names have clients: those
    of the holders, and the analyst. An address that is not free, and keys and certificates that do
    not fit, are refused.
    """
    # A few calls a client and a limited age of connections: none can occupy all threads.
    server = grpc.server(
        ThreadPoolExecutor(_NUM_CALLS * num_clients),
        options=[
            *_limits(received=max(max_bytes, _NAME_BYTES), sent=max(max_bytes, _ANSWER_BYTES)),
            ("grpc.so_reuseport", 0),
            ("grpc.max_concurrent_streams", _NUM_CALLS),
            ("grpc.max_connection_age_ms", 1000 * _CONNECTION_SECONDS),
            ("grpc.max_connection_age_grace_ms", 1000 * _CONNECTION_SECONDS),
        ],
    )

    # A stream of one message: its handler has the sender's name before the message is there.
    open_calls = _OpenCalls()
    handlers = {
        kind: grpc.stream_unary_rpc_method_handler(_handler(answer, kind, open_calls))
        for kind in _KINDS
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, handlers),))

    # Both ends authenticate themselves.
    credentials = grpc.ssl_server_credentials(
        [(identity.key, identity.certificate)], identity.authority, require_client_auth=True
    )
    try:
        port = server.add_secure_port(address, credentials)
    except RuntimeError as error:
        allowed = "a free address of this machine, with a key and certificates that fit"
        raise ValueError(f"address must be {allowed}, got {address!r}") from error
    server.start()
    return server, port


class _OpenCalls:
    """The open calls of each client, of which there are a few at most."""

    def __init__(self) -> None:
        self._lock, self._counts = threading.Lock(), Counter[str]()

    @contextlib.contextmanager
    def enter(self, sender: str) -> Iterator[None]:
        """Counts a call of ``sender`` while it lasts, or refuses it."""
        with self._lock:
            if self._counts[sender] == _NUM_CALLS:
                raise ProtocolError("unreachable")
            self._counts[sender] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[sender] -= 1


def _handler(
    answer: Callable[[str, Kind, bytes], bytes], kind: Kind, open_calls: _OpenCalls
) -> Callable[[Iterator[bytes], grpc.ServicerContext], bytes]:
    def handle(messages: Iterator[bytes], context: grpc.ServicerContext) -> bytes:
        try:
            sender = _sender(context)
            with open_calls.enter(sender):
                return answer(sender, kind, next(messages, b""))
        except ProtocolError as error:
            code = error.code
        except grpc.RpcError:  # the call has ended before its message was there
            raise
        except Exception:
            # Its text may contain a value: it stays here.
            traceback.print_exc(file=sys.stderr)
            code = "internal"
        return context.abort(grpc.StatusCode.FAILED_PRECONDITION, code)

    return handle


def _sender(context: grpc.ServicerContext) -> str:
    """Returns the one name in the client's certificate."""
    names = context.auth_context().get("x509_subject_alternative_name", ())
    if len(names) != 1:
        raise ProtocolError("sender")
    return names[0].decode("utf-8", "replace")


class Channels:
    """Channels of a holder or the analyst to all nodes, at ``addresses`` by index.

    The answer to one message is waited for ``call_time`` seconds.

    Attributes:
      codes: why a node has not answered the last call, by its index, or ``None`` if it has.
    """

    def __init__(
        self, addresses: Sequence[str], identity: Identity, *, max_bytes: int, call_time: float
    ) -> None:
        credentials = grpc.ssl_channel_credentials(
            identity.authority, identity.key, identity.certificate
        )
        self._call_time, self._errors = call_time, ConnectionErrors()
        self.codes: dict[int, ErrorCode | None] = dict.fromkeys(
            range(len(addresses)), "unreachable"
        )
        self._channels = [
            grpc.secure_channel(
                address,
                credentials,
                options=[
                    *_limits(
                        received=max(max_bytes, _ANSWER_BYTES), sent=max(max_bytes, _NAME_BYTES)
                    ),
                    # The name that the node's certificate must have.
                    ("grpc.ssl_target_name_override", f"node-{node}"),
                    ("grpc.enable_http_proxy", 0),
                    ("grpc.enable_retries", 0),
                    # Also the time that a connection may take, of which TLS needs some round trips.
                    ("grpc.min_reconnect_backoff_ms", round(1000 * call_time)),
                    ("grpc.initial_reconnect_backoff_ms", 100),
                    ("grpc.max_reconnect_backoff_ms", 1000),
                ],
            )
            for node, address in enumerate(addresses)
        ]

    def __enter__(self) -> "Channels":
        return self

    def __exit__(self, *_: object) -> None:
        for channel in self._channels:
            channel.close()

    def call(self, node: int, kind: Kind, data: bytes) -> bytes:
        """Returns a node's answer to a message.

        ProtocolError: the node refuses the message, or cannot be reached in time.
        """
        send = self._channels[node].unary_unary(f"/{_SERVICE}/{kind}")
        try:
            answer = send(data, timeout=self._call_time)
        except grpc.RpcError as error:
            code = _error_code(error)
            if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
                self._errors.clear(node)
            else:
                self._errors.add(node, error.details())
            self.codes[node] = code
            raise ProtocolError(code) from None

        self._errors.clear(node)
        self.codes[node] = None
        return answer


def connect(settings: PartySettings) -> Channels:
    """Returns the channels of a holder or the analyst to all nodes of its study."""
    study = settings.study
    return Channels(
        study.nodes,
        Identity.of_party(settings),
        max_bytes=study.plan.message_format.num_bytes,
        call_time=study.call_time,
    )


def poll(
    attempt: Callable[[float], T | None], *, time_limit: float, pause: float = _PAUSE
) -> T | None:
    """Returns the first result of repeated attempts, or ``None`` when the time limit is over.

    ``attempt`` is given the seconds since the first one. No attempt starts after ``time_limit``.
    """
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < time_limit:
        result = attempt(elapsed)
        if result is not None:
            return result
        time.sleep(pause)
    return None


def _error_code(error: grpc.RpcError) -> ErrorCode:
    """Returns the code that a node answered, or that of gRPC's own status."""
    if error.code() == grpc.StatusCode.FAILED_PRECONDITION:
        refused = [code for code in get_args(ErrorCode) if code == error.details()]
        return refused[0] if refused else "internal"
    return _STATUS_CODES.get(error.code(), "internal")


def _limits(*, received: int, sent: int) -> list[tuple[str, int]]:
    return [
        ("grpc.max_receive_message_length", received),
        ("grpc.max_send_message_length", sent),
        ("grpc.max_metadata_size", 4096),
        ("grpc.absolute_max_metadata_size", 8192),
    ]
