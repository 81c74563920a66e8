"""Storage of records: one JSON list for each experiment, replaced atomically.

Infinities and NaN are written as the strings ``"inf"``, ``"-inf"`` and ``"nan"``.
"""

import fcntl
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dpjax._files import write_atomically
from experiments.lib.registry import Record, Row, Values

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def encode(value: Any) -> Any:
    """Converts a value to JSON types, NumPy and JAX arrays to lists.

    Raises:
      TypeError: if a value is not representable in JSON or a key is not a string.

    >>> encode({"ε": float("inf"), "range": (0, 1)})
    {'ε': 'inf', 'range': [0, 1]}
    """
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if value is None or type(value) in (str, bool, int, float):
        return value
    if isinstance(value, Mapping):
        if not all(isinstance(key, str) for key in value):
            raise TypeError(f"a record's mapping has strings as keys only, got {list(value)!r}")
        return {key: encode(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [encode(part) for part in value]
    if hasattr(value, "tolist"):
        return encode(value.tolist())
    raise TypeError(f"a record holds numbers, strings, lists and mappings only, got {value!r}")


def decode(value: Any) -> Any:
    """Inverse of :func:`encode`, with infinities and NaN as floats.

    >>> decode({"ε": "inf"})
    {'ε': inf}
    """
    if isinstance(value, dict):
        return {key: decode(part) for key, part in value.items()}
    if isinstance(value, list):
        return [decode(part) for part in value]
    return _NON_FINITE.get(value, value) if isinstance(value, str) else value


def records_path(results: Path, name: str) -> Path:
    """Returns the path of an experiment's records.

    >>> records_path(Path("results"), "gdp_mnist").name
    'gdp_mnist.json'
    """
    return results / f"{name}.json"


def load_records(results: Path, name: str) -> list[Record]:
    """Loads the records of one experiment, an empty list if it was not run.

    Raises:
      ValueError: if the file is not a list of records.

    >>> load_records(Path("no_such_folder"), "gdp_mnist")
    []
    """
    path = records_path(results, name)
    if not path.exists():
        return []
    try:
        return [decode_record(item) for item in json.loads(path.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, AttributeError) as error:
        raise ValueError(f"{path} must be a list of records; remove it to start again") from error


def decode_record(item: Values) -> Record:
    """Inverse of :func:`encode` for the fields of a record.

    Only mappings are decoded: a note or a name may be the text ``"nan"``.
    """
    return Record(
        **{key: decode(part) if isinstance(part, dict) else part for key, part in item.items()}
    )


def save_record(results: Path, record: Record) -> None:
    """Saves a record in place of the one of the same row and profile.

    Raises:
      TypeError: if the record is not representable in JSON.
    """
    results.mkdir(parents=True, exist_ok=True)
    with (results / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process may save a record of this experiment
        others = [
            known
            for known in load_records(results, record.experiment)
            if (known.row, known.profile) != (record.row, record.profile)
        ]
        content = [encode(vars(known)) for known in [*others, record]]
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
        path = records_path(results, record.experiment)
        write_atomically(path, f"{text}\n".encode())


def find_record(records: Sequence[Record], row: Row, profile: str) -> Record | None:
    """Returns the record of this row and profile, with the row's present source values."""
    for record in records:
        if (record.row, record.profile) == (row.name, profile):
            return replace(record, source=row.source)
    return None


def is_current(record: Record, row: Row) -> bool:
    """Whether the settings of the record are the row's present settings."""
    return bool(encode(record.settings) == encode(row.settings))
