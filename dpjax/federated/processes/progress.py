"""Lines on the progress of a party's process, to the log of ``dpjax.federated``.

A line has what every party of the network sees anyway: the number of the round, which nodes answer,
which holders have sent shares, and the seconds from the start of one round to that of the next. It
has nothing of a holder's records: no value, no size of a batch, and no time of a computation.
"""

import contextlib
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import NamedTuple

from dpjax.federated.messages import ErrorCode
from dpjax.federated.plan import FederatedSum

# Seconds between two lines, and between two looks at the number of the round.
_LINE_SECONDS, _LOOK_SECONDS = 10.0, 0.25
# Names that a line lists, and texts of one node's errors.
_NUM_NAMES, _NUM_TEXTS = 8, 8
_log = logging.getLogger(__name__)


class Status(NamedTuple):
    """State of a party's round, as far as it is public in the network.

    Attributes:
      round_number: of the round, from zero; the number of rounds when all are over, and ``None``
        before the first has begun.
      shares: holders whose shares have arrived in the round; ``None`` at a holder, and once the
        sum is open.
      summed: holders in the last sum that was opened; ``None`` at a holder, and before the first.
    """

    round_number: int | None
    shares: Collection[int] | None = None
    summed: Collection[int] | None = None


def format_status(
    plan: FederatedSum,
    status: Status,
    codes: Mapping[int, ErrorCode | None],
    seconds: float | None,
) -> str:
    """Returns a line on the state of a round.

    Args:
      plan: of the release.
      status: of the party.
      codes: why a node has not answered the last call, by its index, or ``None`` if it has; empty
        at a node.
      seconds: mean time of the rounds that ended since the last line, or ``None`` if none did.

    >>> from dpjax.federated import Parties
    >>> from dpjax.mechanisms import ClippedSum
    >>> trusted = ClippedSum((0.0, 1.0), scale=1.0, adjacency="zero_out")
    >>> plan = FederatedSum(trusted, Parties(num_holders=3, num_nodes=2))
    >>> format_status(plan, Status(0), {0: None, 1: "unreachable"}, None)
    'round 1 of 1, 1 of 2 nodes answers (node-1: unreachable)'
    >>> format_status(plan, Status(0, shares={0, 2}), {}, None)
    'round 1 of 1, shares of 2 of 3 holders (not holder-1)'
    """
    num_rounds, num_holders = plan.mechanism.num_rounds, plan.parties.num_holders
    number = status.round_number
    if number is None:
        parts = [f"before round 1 of {num_rounds}"]
    elif number == num_rounds:
        parts = [f"{num_rounds} of {num_rounds} rounds are over"]
    else:
        parts = [f"round {number + 1} of {num_rounds}"]

    # Nodes that answered the last call, be it that they refused it.
    if codes:
        count = sum(code != "unreachable" for code in codes.values())
        reasons = [f"node-{n}: {code}" for n, code in codes.items() if code not in (None, "early")]
        text = f"{count} of {len(codes)} nodes {'answers' if count == 1 else 'answer'}"
        parts.append(text + (f" ({list_names(reasons)})" if reasons else ""))

    # The last sum where rounds go on or this one is open, else the holders that it waits for.
    if status.summed is not None and (seconds is not None or status.shares is None):
        parts.append(f"sum of {len(status.summed)} of {num_holders} holders")
    elif status.shares is not None:
        absent = [f"holder-{h}" for h in range(num_holders) if h not in status.shares]
        text = f"shares of {num_holders - len(absent)} of {num_holders} holders"
        parts.append(text + (f" (not {list_names(absent)})" if absent else ""))
    if seconds is not None:
        parts.append(f"{seconds:.2g} s a round")
    return ", ".join(parts)


def list_names(names: Collection[str]) -> str:
    """Returns the first few names, and how many are left out.

    >>> list_names([f"holder-{index}" for index in range(10)][-9:])
    'holder-1, holder-2, holder-3, holder-4, holder-5, holder-6, holder-7, holder-8 and 1 more'
    """
    listed = ", ".join(list(names)[:_NUM_NAMES])
    left = len(names) - _NUM_NAMES
    return listed + (f" and {left} more" if left > 0 else "")


class RoundTimes:
    """Mean time of rounds, from the end of the first one that is seen: start-up does not count."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._number: int | None = None
        # Number and time of changes: the first, the last, and the last before the newest line.
        self._first: tuple[int, float] | None = None
        self._last: tuple[int, float] | None = None
        self._line: tuple[int, float] | None = None

    def look(self, round_number: int | None) -> None:
        """Notes the time at which the round's number has changed."""
        if self._number is not None and round_number not in (None, self._number):
            self._last = round_number, self._clock()
            self._first = self._first or self._last
            self._line = self._line or self._last
        self._number = round_number

    def mean(self, *, of_all: bool = False) -> float | None:
        """Returns seconds per round since the last call, or of all; ``None`` where none ended."""
        since = self._first if of_all else self._line
        self._line = self._last
        if since is None or self._last is None or since == self._last:
            return None
        (number, begin), (last, end) = since, self._last
        return (end - begin) / (last - number)


@contextlib.contextmanager
def log_progress(
    party: str,
    plan: FederatedSum,
    get_status: Callable[[], Status],
    codes: Mapping[int, ErrorCode | None],
) -> Iterator[None]:
    """Logs a line on a round or training at the start, every ten seconds and at the end.

    Args:
      party: name of the party.
      plan: of the release.
      get_status: returns the state; it is called from another thread than the rounds'.
      codes: of the channels to the nodes, which change; empty at a node.
    """
    times = RoundTimes()

    def line(*, of_all: bool = False) -> str:
        status = get_status()
        times.look(status.round_number)
        return format_status(plan, status, dict(codes), times.mean(of_all=of_all))

    _log.info("%s: starts, plan %s", party, plan.message_format.fingerprint.hex())
    try:
        with repeat_lines(party, line, look=lambda: times.look(get_status().round_number)):
            yield
    finally:
        _log.info("%s: ends, %s", party, line(of_all=True))


@contextlib.contextmanager
def repeat_lines(
    party: str, line: Callable[[], str], *, look: Callable[[], None] = lambda: None
) -> Iterator[None]:
    """Logs a line every ten seconds from a thread, which calls ``look`` in between."""
    stop = threading.Event()

    def run() -> None:
        due = time.monotonic() + _LINE_SECONDS
        while not stop.wait(_LOOK_SECONDS):
            look()
            if time.monotonic() >= due:
                _log.info("%s: %s", party, line())
                due += _LINE_SECONDS

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


class ConnectionErrors:
    """Log of connection errors: each text of a node once, and their number when it changes.

    gRPC's texts repeat with every attempt, and may take turns. A text is logged again once the node
    has answered in between; of many texts a few are.
    """

    def __init__(self) -> None:
        self._counts: dict[int, Counter[str]] = {}

    def add(self, node: int, text: str) -> None:
        """Counts an error, and logs its text if it is new."""
        counts = self._counts.setdefault(node, Counter())
        if text not in counts and len(counts) < _NUM_TEXTS:
            before = f" (after {_count_errors(counts)})" if counts else ""
            _log.debug("node-%d: %s%s", node, text, before)
        counts[text] += 1

    def clear(self, node: int) -> None:
        """Logs how many errors there were, if any, before the node answered."""
        counts = self._counts.pop(node, None)
        if counts:
            _log.debug("node-%d: answers (after %s)", node, _count_errors(counts))


def _count_errors(counts: Counter[str]) -> str:
    total = counts.total()
    return f"{total} connection error{'' if total == 1 else 's'}"
