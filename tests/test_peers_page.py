"""The page beside other libraries: no empty cell, and every named object of dpjax exists."""

import importlib
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[1] / "docs/concepts/peers.md").read_text("utf-8")


def feature_rows(page):
    """Cells of all rows of the tables of features, without heads."""
    lines = [line for line in page.splitlines() if line.startswith("|")]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "feature" and not set(row[0]) <= {"-"}]


def exists(name):
    """Whether a dotted name is a module, or an attribute of one."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:length]))
        except ImportError:
            continue
        for part in parts[length:]:
            if not hasattr(value, part):
                return False
            value = getattr(value, part)
        return True
    return False


def problems(page):
    found = []
    for feature, ours, *peers in feature_rows(page):
        answer = re.match(r"yes:|partly:|no;|", ours)[0]
        if len(peers) != 2 or not all([feature, ours, *peers]):
            found.append(f"{feature}: an empty cell")
        if not answer or len(ours) <= len(answer):
            found.append(f"{feature}: not 'yes: what', 'partly: what' or 'no; the nearest'")
        if not re.search(r"`dpjax[\w.]*`", ours):
            found.append(f"{feature}: names no object of dpjax")
        if not all(re.match(r"(yes|partly|no)\b", peer) for peer in peers):
            found.append(f"{feature}: a peer's cell without an answer")
    named = sorted(set(re.findall(r"`(dpjax[\w.]*)`", page)))
    return found + [f"{name} does not exist" for name in named if not exists(name)]


def test_features_of_dpjax_are_named_and_exist():
    assert len(feature_rows(PAGE)) > 70
    assert problems(PAGE) == []


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("| Keras |  | yes | no |", "empty cell"),
        ("| Keras | yes: `dpjax.keras_api` | yes | no |", "dpjax.keras_api does not exist"),
        ("| Keras | yes: a wrapper | yes | no |", "names no object"),
        ("| Keras | no | yes | no |", "not 'yes: what'"),
        ("| Keras | yes: `dpjax.train` | yes |  |", "empty cell"),
        ("| Keras | yes: `dpjax.train` | `keras_api` | no |", "without an answer"),
    ],
)
def test_the_check_of_the_page_finds(row, problem):
    assert any(problem in found for found in problems(row))
