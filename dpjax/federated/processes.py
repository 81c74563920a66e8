"""One process for each party: a holder or the analyst runs to its end, a node answers both."""

import dataclasses
import os
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from dpjax._validation import check
from dpjax.federated.analyst import Analyst
from dpjax.federated.config import PartySettings
from dpjax.federated.holder import Delivery, journalled_messages, spent_rounds
from dpjax.federated.journal import Journal
from dpjax.federated.messages import ErrorCode, ProtocolError
from dpjax.federated.node import Node
from dpjax.federated.protocol import Result
from dpjax.federated.transport import Channels, Identity, serve

T = TypeVar("T")
_PAUSE = 0.1


def poll(attempt: Callable[[float], T | None], *, time_limit: float) -> T | None:
    """Returns the first result of repeated attempts, or ``None`` when the time limit is over.

    Args:
      attempt: of the seconds since the first one; ``None`` if there is no result yet.
      time_limit: seconds after which no attempt is started.
    """
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < time_limit:
        result = attempt(elapsed)
        if result is not None:
            return result
        time.sleep(_PAUSE)
    return None


class HolderOutcome(NamedTuple):
    """How a holder's round ended.

    Attributes:
      codes: why a node has not accepted its message, by its index; ``None`` if it has.
      is_complete: whether as many nodes have accepted it as open a sum.
      spent: the rounds whose budget is spent.
    """

    codes: Mapping[int, ErrorCode | None]
    is_complete: bool
    spent: frozenset[int]


def run_holder(settings: PartySettings) -> HolderOutcome:
    """Sends a holder's messages, and returns when all nodes have answered or time is over.

    Args:
      settings: of the holder.

    Privacy:
      The round's budget is spent from the first message on, with or without a result.

    Raises:
      ProtocolError: with the code ``"spent"``, messages of other records have left in this round.
      ValueError: records that the mechanism does not take, or a journal of another party.
    """
    study = settings.study
    statistic = _read_statistic(settings)
    with _journal(settings, f"holder-{settings.index}") as journal:
        messages = journalled_messages(
            study.plan, settings.index, statistic, journal, round_number=study.round_number
        )
        delivery = Delivery(messages)
        with _channels(settings) as channels:
            poll(lambda _: delivery.attempt(channels.call) or None, time_limit=study.time_limit)
        is_complete = delivery.num_accepted >= study.plan.parties.sharing.threshold
        return HolderOutcome(dict(delivery.codes), is_complete, spent_rounds(journal))


def run_node(settings: PartySettings, stop: threading.Event) -> frozenset[int] | None:
    """Answers messages until ``stop`` is set or time is over.

    Args:
      settings: of the node.
      stop: ends the node.

    Returns:
      The holders whose sum was opened, or ``None``.

    Raises:
      ValueError: an address that is not free, or a journal of another party.
    """
    study = settings.study
    with _journal(settings, f"node-{settings.index}") as journal:
        node = Node(study.plan, settings.index, journal, round_number=study.round_number)
        server, _ = serve(
            node.answer,
            settings.address or study.nodes[settings.index],
            _identity(settings),
            max_bytes=study.plan.message_format.num_bytes,
        )
        try:
            stop.wait(study.time_limit)
        finally:
            server.stop(grace=1).wait()
            node.stop()
        opened = node.state.opened.get(study.round_number)
    return None if opened is None else opened[0]


def run_analyst(settings: PartySettings) -> Result:
    """Returns the result of a round, and writes it to the file that the settings name.

    Args:
      settings: of the analyst.

    Returns:
      The release, its holders, and the mechanism with the noise of that many holders. The file has
      the arrays of the release and the indices ``holders``.

    Raises:
      ProtocolError: the round has no result.
      ValueError: a journal of another party.
    """
    study = settings.study
    with _journal(settings, "analyst") as journal, _channels(settings) as channels:
        analyst = Analyst(study.plan, journal, round_number=study.round_number)
        result = poll(
            lambda elapsed: analyst.attempt(
                channels.call, waiting_over=elapsed >= study.waiting_time
            ),
            time_limit=study.time_limit,
        )
    if result is None:
        raise ProtocolError(analyst.failure)
    _write_result(settings.result, result)
    return result


def _journal(settings: PartySettings, party: str) -> Journal:
    fingerprint = settings.study.plan.message_format.fingerprint.hex()
    return Journal(settings.journal, f"{party} of plan {fingerprint}")


def _identity(settings: PartySettings) -> Identity:
    return Identity.read(settings.authority, settings.certificate, settings.key)


def _channels(settings: PartySettings) -> Channels:
    study = settings.study
    return Channels(
        study.nodes,
        _identity(settings),
        max_bytes=study.plan.message_format.num_bytes,
        call_time=study.call_time,
    )


def _read_statistic(settings: PartySettings) -> npt.NDArray[Any]:
    path, names = settings.data, settings.arrays
    check(zipfile.is_zipfile(path), "data", str(path), "an npz file")
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in names if name not in file]
        check(not missing, "arrays", missing, f"of the arrays in data: {', '.join(file)}")
        records = [file[name] for name in names]
    try:
        return settings.study.plan.mechanism.sum_records(*records)
    except (TypeError, ValueError) as error:
        raise ValueError(f"arrays {list(names)} do not fit the mechanism: {error}") from error


def _write_result(path: Path, result: Result) -> None:
    released = result.released
    if dataclasses.is_dataclass(released):
        fields = {one.name: getattr(released, one.name) for one in dataclasses.fields(released)}
    else:
        fields = released._asdict() if hasattr(released, "_asdict") else {"released": released}
    arrays: Any = {name: np.asarray(value) for name, value in fields.items() if value is not None}
    unfinished = path.with_name(f".{path.name}.unfinished.npz")
    np.savez(unfinished, holders=np.array(sorted(result.holders)), **arrays)
    os.replace(unfinished, path)
