"""Committed records: one JSON file for each experiment and profile, and its figures.

Series are rounded to `SERIES_DIGITS` significant digits, figures to 256 colours, and absolute
paths in notes are left out; everything else is kept in full.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from dpjax._checks import check
from dpjax._files import write_atomically
from experiments.lib.figures import SavedFigure, draw_figures
from experiments.lib.records import decode_record, encode, load_records
from experiments.lib.registry import Experiment, Record
from experiments.lib.tables import finished_records, table_lines

PUBLISHED = Path("docs/reproduction")
SERIES_DIGITS = 6
# An absolute path of two or more parts.
_PATH = re.compile(r"(?<![\w.)/])(/[\w.-]+){2,}")


class Publication(NamedTuple):
    """The committed records of an experiment under one profile."""

    records: tuple[Record, ...]  # in the table's order
    missing: Mapping[str, str]  # rows without a record, and why
    figures: tuple[SavedFigure, ...]


def publication_path(folder: Path, name: str, profile: str) -> Path:
    """Returns the path of the JSON file with an experiment's committed results.

    >>> publication_path(Path("docs"), "gdp_mnist", "quick").name
    'gdp_mnist_quick.json'
    """
    return folder / f"{name}_{profile}.json"


def load_publication(folder: Path, name: str, profile: str) -> Publication:
    """Loads the committed records; an empty publication if there are none.

    Raises:
      ValueError: if the file is not one that `publish` wrote.
    """
    path = publication_path(folder, name, profile)
    if not path.exists():
        return Publication((), {}, ())
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        common = {"experiment": content["experiment"], "profile": content["profile"]}
        figures = [
            SavedFigure(folder / each["file"], each["caption"], each["width"])
            for each in content["figures"]
        ]
        records = [decode_record({**common, **record}) for record in content["records"]]
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{path} is not a file of published records") from error
    return Publication(tuple(records), content["missing"], tuple(figures))


def publish(experiment: Experiment, profile: str, results: Path, folder: Path) -> Publication:
    """Writes the finished records of one profile, and their figures, to be committed.

    A row that was committed before, with its present settings, is kept if ``results`` have no
    finished record of it. Rows without a record are named in the file, with the reason.

    Returns:
      What was written.

    Raises:
      ValueError: if no row is finished.
    """
    known = load_publication(folder, experiment.name, profile).records
    lines = table_lines(experiment, profile, load_records(results, experiment.name))
    committed = table_lines(experiment, profile, known)
    lines = tuple(
        old if new.state != "done" and old.state == "done" else new
        for new, old in zip(lines, committed, strict=True)
    )
    records = tuple(
        replace(record, series=_round(encode(record.series))) for record in finished_records(lines)
    )
    check(bool(records), f"finished rows of {experiment.name}", len(records), "at least one")
    encoded = [_encode(record) for record in records]
    for path in (folder / "figures").glob(f"{experiment.name}_{profile}_*.png"):
        path.unlink()
    figures = draw_figures(experiment, records, folder / "figures")
    missing = {line.row.name: line.state for line in lines if line.state != "done"}
    header = {
        "experiment": experiment.name,
        "profile": profile,
        "missing": missing,
        "series_digits": SERIES_DIGITS,
        "figures": [
            {"file": f"figures/{each.path.name}", "caption": each.caption, "width": each.width}
            for each in figures
        ],
    }
    opening = json.dumps(header, indent=1, ensure_ascii=False).removesuffix("\n}")
    # One line for each record.
    text = opening + ',\n "records": [\n' + ",\n".join(encoded) + "\n]}\n"
    write_atomically(publication_path(folder, experiment.name, profile), text.encode())
    return Publication(records, missing, figures)


def _encode(record: Record) -> str:
    """Returns a record as JSON, without what the file states once."""
    fields = {
        name: value
        for name, value in vars(record).items()
        if name not in ("experiment", "profile", "error")
    }
    return _PATH.sub("…", json.dumps(encode(fields), ensure_ascii=False, allow_nan=False))


def _round(value: Any) -> Any:
    """Rounds every float of JSON types to `SERIES_DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{SERIES_DIGITS}g}")
    if isinstance(value, list):
        return [_round(part) for part in value]
    if isinstance(value, dict):
        return {key: _round(part) for key, part in value.items()}
    return value
