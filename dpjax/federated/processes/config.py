"""Configuration files: the study that all parties share, and the files and index of one party.

Both are TOML. The study names the plan by dpjax's public classes and public numbers, so all parties
build the same one; messages of parties whose plans differ are refused by their fingerprint.
"""

import hashlib
import importlib
import inspect
import runpy
import tomllib
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from dpjax._checks import check, check_count, check_delta, check_path, check_positive
from dpjax.federated.plan import FederatedSum, Parties, check_plan
from dpjax.federated.processes.journal import Journal
from dpjax.federated.training import ClippedGradientSum, Training

T = TypeVar("T")
_EXAMPLE = "such as 'dpjax.bayes.regression.PerturbedStatistics.from_epsilon'"


@dataclass(frozen=True, kw_only=True)
class Study:
    """The settings that all parties of a round share.

    Attributes:
      plan: of the release.
      nodes: host and port of each node.
      program: of a training, a Python file with a function ``training(mechanism) -> Training``;
        its digest is in the plan. Without it there is one round.
      round_number: of the release, from zero; unused in a training.
      call_time: seconds for the answer to one message.
      waiting_time: seconds that the analyst waits for holders that are missing, before it has the
        sum of the others opened; in a training not for those who were missing in the last round.
      time_limit: seconds after which every process ends.

    Raises:
      ValueError: another number of nodes than the plan's, or a number out of range.
    """

    plan: FederatedSum
    nodes: tuple[str, ...]
    program: Path | None = None
    round_number: int = 0
    call_time: float = 10.0
    waiting_time: float = 60.0
    time_limit: float = 300.0

    def __post_init__(self) -> None:
        check_plan(self.plan)
        wanted = self.plan.parties.num_nodes
        texts = isinstance(self.nodes, tuple) and all(isinstance(one, str) for one in self.nodes)
        allowed = f"a list of host and port of each of the {wanted} nodes"
        check(texts and len(self.nodes) == wanted, "nodes", self.nodes, allowed)
        check_count("round_number", self.round_number, minimum=0)
        last = self.plan.mechanism.num_rounds - 1
        check(self.round_number <= last, "round_number", self.round_number, f"at most {last}")
        for name in ("call_time", "waiting_time", "time_limit"):
            check_positive(name, getattr(self, name))
        before = f"below time_limit = {self.time_limit}"
        check(self.waiting_time < self.time_limit, "waiting_time", self.waiting_time, before)
        trains = self.program is None or isinstance(self.plan.mechanism, ClippedGradientSum)
        allowed = "left out: the mechanism is no dpjax.federated.ClippedGradientSum"
        check(trains, "program", str(self.program), allowed)

    def load_training(self) -> Training:
        """Runs the program, and returns its training.

        Returns:
          What the program's function ``training`` returns for the plan's mechanism.

        Raises:
          ValueError: there is no program, its code is not that of the plan, it fails, or it trains
            by another mechanism than the plan's.
        """
        path = self.program
        if path is None:
            raise ValueError("program must be given for a training, got None")
        same = _digest_of_file(path) == self.plan.program
        check(same, "program", str(path), "the file that the plan was made with")
        make = runpy.run_path(str(path)).get("training")
        check(callable(make), "program", str(path), "a file with a function training(mechanism)")
        assert make is not None
        mechanism = self.plan.mechanism
        assert isinstance(mechanism, ClippedGradientSum)
        training = make(mechanism.mechanism)
        check(isinstance(training, Training), "program", training, "one that returns a Training")
        same = training.mechanism == mechanism.mechanism
        check(same, "program", training.mechanism, f"one that trains by {mechanism.mechanism}")
        return training


def read_study(path: Path | str) -> Study:
    """Returns the study in a TOML file.

    Args:
      path: of the file.

    Raises:
      ValueError: no TOML, a key that is missing or unknown, or a value out of range.
    """
    check_path("path", path)
    path = Path(path)
    table = _read_toml(path)
    names = [name for name in Study.__dataclass_fields__ if name not in ("plan", "nodes")]
    _check_keys("study", table, required=["plan", "nodes"], optional=names)
    plan = _check_table("plan", table["plan"])
    _check_keys("plan", plan, required=["mechanism", "parties"], optional=["grid_bits"])
    parties = _check_table("plan.parties", plan["parties"])
    parts = {
        "mechanism": _build("plan.mechanism", plan["mechanism"]),
        "parties": _call("plan.parties", Parties, parties),
    }
    values = _build("study", table, skip=["plan"])
    if "program" in table:
        check(isinstance(table["program"], str), "program", table["program"], "the name of a file")
        values["program"] = path.parent / table["program"]
        parts["program"] = _digest_of_file(values["program"])
    built = _call("plan", FederatedSum, {**plan, **parts})
    return _call("study", Study, {**values, "plan": built})


def _digest_of_file(path: Path) -> str:
    check(path.is_file(), "program", str(path), "a file")
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest()


@dataclass(frozen=True, kw_only=True)
class PartySettings:
    """The study, and the index and files of one party.

    Attributes:
      study: that all parties share.
      index: of the holder or node; zero for the analyst.
      journal: folder of the party's journal.
      authority: file of the authority's certificate.
      certificate: file of the party's certificate.
      key: file of the party's private key.
      data: of a holder, an npz file with its records.
      arrays: names in ``data``, in the order of ``plan.mechanism.sum_records``; in a training they
        are the names in an example.
      address: that a node listens on, by default its address in the study.
      result: of the analyst, the npz file that is written.
      delta: of the analyst, at which the certificate is printed.
      keep_every: of the analyst of a training, of how many rounds the parameters after one are in
        the result, too; zero for none.
    """

    study: Study
    index: int
    journal: Path
    authority: Path
    certificate: Path
    key: Path
    data: Path = Path()
    arrays: tuple[str, ...] = ()
    address: str = ""
    result: Path = Path()
    delta: float = 0.0
    keep_every: int = 0

    def open_journal(self, party: str) -> Journal:
        """Opens the journal of ``party`` and the study's plan."""
        fingerprint = self.study.plan.message_format.fingerprint.hex()
        return Journal(self.journal, f"{party} of plan {fingerprint}")


_FILES = ("journal", "authority", "certificate", "key")
_REQUIRED = {
    "holder": ("study", *_FILES, "index", "data", "arrays"),
    "node": ("study", *_FILES, "index"),
    "analyst": ("study", *_FILES, "result", "delta"),
}
_OPTIONAL = {"holder": (), "node": ("address",), "analyst": ("keep_every",)}


def read_role(path: Path | str) -> str:
    """Returns the role that a file is of: ``"study"``, ``"holder"``, ``"node"`` or ``"analyst"``.

    Args:
      path: of a TOML file.

    Raises:
      ValueError: no TOML.
    """
    table = _read_toml(Path(path))
    keys = {"plan": "study", "data": "holder", "result": "analyst"}
    return next((role for key, role in keys.items() if key in table), "node")


def read_settings(path: Path | str, role: str) -> PartySettings:
    """Returns the settings of one party; paths in the file are relative to its folder.

    Args:
      path: of a TOML file.
      role: ``"holder"``, ``"node"`` or ``"analyst"``.

    Raises:
      ValueError: no TOML, a key that is missing or unknown, or a value out of range.
    """
    path = Path(path)
    table = _read_toml(path)
    _check_keys(role, table, required=_REQUIRED[role], optional=_OPTIONAL[role])
    values: dict[str, Any] = {"index": 0, **_build(role, table)}
    for name in {*_FILES, "study", "data", "result"} & set(table):
        check(isinstance(values[name], str), name, values[name], "the name of a file")
        values[name] = path.parent / values[name]
    for name in {*_FILES, "data"} & set(table) - {"journal"}:
        check(values[name].is_file(), name, str(values[name]), "a file")
    _check_values(values)
    study = read_study(values.pop("study"))
    parties = study.plan.parties
    number = parties.num_nodes if role == "node" else parties.num_holders
    index, allowed = values["index"], f"a whole number, 0 to {number - 1}"
    check(type(index) is int and 0 <= index < number, "index", index, allowed)
    return PartySettings(study=study, **values)


def _check_values(values: Mapping[str, Any]) -> None:
    """Checks what is used after the budget is spent, too."""
    if "arrays" in values:
        names = values["arrays"]
        fits = isinstance(names, tuple) and all(isinstance(name, str) for name in names)
        check(fits, "arrays", names, "a list of names of arrays")
    if "address" in values:
        check(isinstance(values["address"], str), "address", values["address"], "host and port")
    if "result" in values:
        folder = values["result"].parent
        check(folder.is_dir(), "result", str(values["result"]), "a file in a folder that exists")
        check_delta(values["delta"])
        check_count("keep_every", values.get("keep_every", 0), minimum=0)


def _read_toml(path: Path) -> dict[str, Any]:
    check(path.is_file(), "config", str(path), "a file")
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"config must be a TOML file, got {str(path)!r}: {error}") from error


def _check_keys(
    name: str, table: Mapping[str, object], *, required: Collection[str], optional: Collection[str]
) -> None:
    missing = sorted(set(required) - set(table))
    unknown = sorted(set(table) - set(required) - set(optional))
    check(not missing, name, sorted(table), f"a table with {', '.join(missing)}, too")
    check(not unknown, name, unknown, f"a table of {', '.join([*required, *optional])} alone")


def _check_table(name: str, value: object) -> dict[str, object]:
    check(isinstance(value, dict), name, value, "a table")
    assert isinstance(value, dict)
    return value


def _build(name: str, value: object, skip: Collection[str] = ()) -> Any:
    """Returns a value of TOML, with a tuple for a list and an object for a table with a type."""
    if isinstance(value, list):
        return tuple(_build(name, one) for one in value)
    if not isinstance(value, dict):
        return value
    parts = {key: _build(f"{name}.{key}", one) for key, one in value.items() if key not in skip}
    if "." not in name and "type" not in parts:
        return parts
    allowed = "a table with the key type, the name of a public class"
    check("type" in parts, name, sorted(parts), allowed)
    return _call(name, _public_constructor(f"{name}.type", parts.pop("type")), parts)


def _call(name: str, constructor: Callable[..., T], parameters: Mapping[str, object]) -> T:
    try:
        inspect.signature(constructor).bind(**parameters)
    except TypeError as error:
        takes = ", ".join(inspect.signature(constructor).parameters)
        raise ValueError(
            f"{name} must be a table of {takes}, got {sorted(parameters)}: {error}"
        ) from None
    try:
        return constructor(**parameters)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


def _public_constructor(name: str, path: object) -> Callable[..., object]:
    found: Any = None
    if isinstance(path, str):
        package, _, last = path.rpartition(".")
        found = _public_class(package, last)
        if found is None and not last.startswith("_"):  # a class and its constructor
            package, _, owner = package.rpartition(".")
            found = getattr(_public_class(package, owner), last, None)
    allowed = f"a public class of dpjax or a constructor of it, {_EXAMPLE}"
    check(callable(found), name, path, allowed)
    return found


def _public_class(package: str, name: str) -> type | None:
    if package.partition(".")[0] != "dpjax":
        return None
    try:
        module = importlib.import_module(package)
    except ImportError:
        return None
    found = getattr(module, name, None) if name in getattr(module, "__all__", ()) else None
    return found if inspect.isclass(found) else None
