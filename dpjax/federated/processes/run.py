"""One process for each party: a holder or the analyst runs to its end, a node answers both."""

import dataclasses
import os
import threading
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import jax
import numpy as np
import numpy.typing as npt

from dpjax._checks import check
from dpjax.federated.messages import ErrorCode, ProtocolError
from dpjax.federated.processes.analyst import Analyst
from dpjax.federated.processes.config import PartySettings
from dpjax.federated.processes.holder import Delivery, journalled_messages, spent_rounds
from dpjax.federated.processes.journal import Journal
from dpjax.federated.processes.node import Node
from dpjax.federated.processes.rounds import TrainingAnalyst, TrainingHolder
from dpjax.federated.processes.transport import Channels, Identity, serve
from dpjax.federated.protocol import Result

T = TypeVar("T")
# Seconds between attempts in a single round, and in the many rounds of a training.
_PAUSE, _PAUSE_IN_TRAINING = 0.1, 0.05


def poll(
    attempt: Callable[[float], T | None], *, time_limit: float, pause: float = _PAUSE
) -> T | None:
    """Returns the first result of repeated attempts, or ``None`` when the time limit is over.

    Args:
      attempt: of the seconds since the first one; ``None`` if there is no result yet.
      time_limit: seconds after which no attempt is started.
      pause: seconds between two attempts.
    """
    start = time.monotonic()
    while (elapsed := time.monotonic() - start) < time_limit:
        result = attempt(elapsed)
        if result is not None:
            return result
        time.sleep(pause)
    return None


class HolderOutcome(NamedTuple):
    """How a holder's round or training ended.

    Attributes:
      codes: why a node has not accepted its message, by its index; ``None`` if it has.
      is_complete: whether as many nodes have accepted it as open a sum, or the training is over.
      spent: the rounds whose budget is spent.
    """

    codes: Mapping[int, ErrorCode | None]
    is_complete: bool
    spent: frozenset[int]


def run_holder(settings: PartySettings) -> HolderOutcome:
    """Sends a holder's messages, and returns when all nodes have answered or time is over.

    In a training the holder sends messages in every round, and returns when the last one is over.

    Args:
      settings: of the holder.

    Privacy:
      A round's budget is spent from its first message on, with or without a result.

    Raises:
      ProtocolError: with the code ``"spent"``, messages of other records or at other parameters
        have left in the round.
      ValueError: records that the mechanism does not take, or a journal of another party.
    """
    study, index = settings.study, settings.index
    arrays = _read_arrays(settings)
    if study.program is not None:
        training = study.load_training()
        with _journal(settings, f"holder-{index}") as journal, _channels(settings) as channels:
            holder = TrainingHolder(study.plan, index, training, arrays, journal)
            poll(
                lambda _: holder.attempt(channels.call) or None,
                time_limit=study.time_limit,
                pause=_PAUSE_IN_TRAINING,
            )
            return HolderOutcome(dict(holder.codes), holder.is_over, spent_rounds(journal))
    statistic = _sum_records(settings, arrays)
    with _journal(settings, f"holder-{index}") as journal:
        messages = journalled_messages(
            study.plan, index, statistic, journal, round_number=study.round_number
        )
        delivery = Delivery(messages)
        with _channels(settings) as channels:
            poll(lambda _: delivery.attempt(channels.call) or None, time_limit=study.time_limit)
        is_complete = delivery.num_accepted >= study.plan.parties.sharing.threshold
        return HolderOutcome(dict(delivery.codes), is_complete, spent_rounds(journal))


class NodeOutcome(NamedTuple):
    """How a node ended.

    Attributes:
      round_number: of the last round that has begun, or ``None``.
      holders: whose sum was opened in it, or ``None``.
    """

    round_number: int | None
    holders: frozenset[int] | None


def run_node(settings: PartySettings, stop: threading.Event) -> NodeOutcome:
    """Answers messages until ``stop`` is set or time is over.

    Args:
      settings: of the node.
      stop: ends the node.

    Raises:
      ValueError: an address that is not free, or a journal of another party.
    """
    study = settings.study
    number = study.round_number if study.program is None else None
    with _journal(settings, f"node-{settings.index}") as journal:
        node = Node(study.plan, settings.index, journal, round_number=number)
        server, _ = serve(
            node.answer,
            settings.address or study.nodes[settings.index],
            _identity(settings),
            max_bytes=study.plan.message_format.num_bytes,
            num_clients=study.plan.parties.num_holders + 1,
        )
        try:
            stop.wait(study.time_limit)
        finally:
            server.stop(grace=1).wait()
            node.stop()
        draws = [draws for draws, _ in node.state.opened.values()]
    return NodeOutcome(node.round_number, frozenset(draws[0]) if draws else None)


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
    holders = np.array(sorted(result.holders))
    _write_arrays(settings.result, {**_named_arrays(result.released), "holders": holders})
    return result


def run_training_analyst(settings: PartySettings) -> int:
    """Runs the analyst of a training, writes its result, and returns the number of rounds.

    The file has the result of the training, each of its arrays by its path in the tree. Where the
    settings have ``keep_every``, it has the parameters after these rounds too, each array's name
    after ``kept.``, and the numbers ``kept_rounds`` of the rounds that were over.

    Args:
      settings: of the analyst.

    Raises:
      ProtocolError: a round has no result. Those before it are on disk: started again, the analyst
        goes on.
      ValueError: a journal of another party, or a program that does not fit the plan.
    """
    study = settings.study
    training = study.load_training()
    with _journal(settings, "analyst") as journal, _channels(settings) as channels:
        analyst = TrainingAnalyst(
            study.plan,
            training,
            journal,
            waiting_time=study.waiting_time,
            keep_every=settings.keep_every,
        )
        is_over = poll(
            lambda elapsed: analyst.attempt(channels.call, elapsed=elapsed) or None,
            time_limit=study.time_limit,
            pause=_PAUSE_IN_TRAINING,
        )
        if not is_over and analyst.round_number < study.plan.mechanism.num_rounds:
            raise ProtocolError(analyst.failure)
        arrays = _named_leaves(training.get_result(analyst.state))
        rounds, kept = analyst.kept_params()
    if rounds:
        stacked = jax.tree.map(lambda *leaves: np.stack(leaves), *kept)
        arrays |= {f"kept.{name}": array for name, array in _named_leaves(stacked).items()}
        arrays["kept_rounds"] = np.array(rounds)
    _write_arrays(settings.result, arrays)
    return analyst.round_number


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


def _read_arrays(settings: PartySettings) -> dict[str, npt.NDArray[Any]]:
    path, names = settings.data, settings.arrays
    check(zipfile.is_zipfile(path), "data", str(path), "an npz file")
    with np.load(path, allow_pickle=False) as file:
        missing = [name for name in names if name not in file]
        check(not missing, "arrays", missing, f"of the arrays in data: {', '.join(file)}")
        return {name: file[name] for name in names}


def _sum_records(
    settings: PartySettings, arrays: Mapping[str, npt.NDArray[Any]]
) -> npt.NDArray[Any]:
    try:
        return settings.study.plan.mechanism.sum_records(*arrays.values())
    except (TypeError, ValueError) as error:
        raise ValueError(f"arrays {list(arrays)} do not fit the mechanism: {error}") from error


def _named_arrays(released: Any) -> dict[str, Any]:
    if dataclasses.is_dataclass(released):
        fields = {one.name: getattr(released, one.name) for one in dataclasses.fields(released)}
    else:
        fields = released._asdict() if hasattr(released, "_asdict") else {"released": released}
    return {name: np.asarray(value) for name, value in fields.items() if value is not None}


def _named_leaves(tree: Any) -> dict[str, Any]:
    leaves = jax.tree_util.tree_leaves_with_path(tree)
    return {
        jax.tree_util.keystr(path, simple=True, separator=".") or "params": np.asarray(leaf)
        for path, leaf in leaves
    }


def _write_arrays(path: Path, arrays: Mapping[str, Any]) -> None:
    unfinished = path.with_name(f".{path.name}.unfinished.npz")
    np.savez(unfinished, **dict(arrays))
    os.replace(unfinished, path)
