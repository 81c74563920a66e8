"""Writes the API table of the reference: ``python docs/api_table.py``.

One row for each public function and class. `tests/test_docs.py` compares the page with the code.
"""

import ast
import inspect
import re
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import member_order
from public_names import public_names

import dpjax

REFERENCE = Path(__file__).parent / "reference"
PAGE = REFERENCE / "api_table.md"
_HEAD = """\
# API table

Every public function and class, by package, in the order of use. *Key* states whether a function's
JAX key is its first argument or a keyword, and which methods of a class take a key. This page is
written from signatures and docstrings by `python docs/api_table.py`.
"""
_COLUMNS = """\
| name | what | key | returns |
|---|---|---|---|
"""


def render() -> str:
    """Returns the page in Markdown."""
    by_family: dict[str, list[tuple[str, ...]]] = {}
    for family, *row in rows(dict(sorted(public_names().items(), key=place))):
        by_family.setdefault(family, []).append(tuple(row))
    tables = (
        f"\n## {family}\n\n{_COLUMNS}" + "".join(f"| {' | '.join(row)} |\n" for row in lines)
        for family, lines in by_family.items()
    )
    return _HEAD + "".join(tables)


def place(item: tuple[str, Any]) -> tuple[int, int, str]:
    """Returns the place of a public name: that of its page, and of the name in its package."""
    package, _, short = item[0].rpartition(".")
    listed = re.findall(r"^\w+$", (REFERENCE / "index.md").read_text("utf-8"), re.M)
    pages = "\n".join((REFERENCE / f"{page}.md").read_text("utf-8") for page in listed)
    packages = re.findall(r"automodule:: ([\w.]+)\n", pages)
    first = member_order.FIRST.get(package, "").split()
    return (
        packages.index(package) if package in packages else len(packages),
        first.index(short) if short in first else len(first),
        item[0],
    )


def rows(names: dict[str, Any]) -> list[tuple[str, ...]]:
    """Returns the row of each function and class, under the name that the reference documents."""
    pages = "\n".join(path.read_text("utf-8") for path in sorted(REFERENCE.glob("*.md")))
    found = {}
    for name, value in names.items():
        package, _, short = name.rpartition(".")
        elsewhere = f".. automodule:: {package}\n   :exclude-members: {short}\n" in pages
        if elsewhere or not (inspect.isclass(value) or inspect.isroutine(value)):
            continue
        family = package.removeprefix("dpjax.")
        shown = f"dpjax.{short}" if dpjax._MODULE_OF.get(short) == package else short
        link = f"{{py:obj}}`{shown} <{name}>`"
        found.setdefault(id(value), (family, link, summary(value), key(value), returns(value)))
    return list(found.values())


def summary(value: Any) -> str:
    """Returns the first sentence of a docstring in Markdown."""
    paragraph = " ".join((inspect.getdoc(value) or "").partition("\n\n")[0].split())
    sentence = re.split(r"(?<=\.) (?=[A-Z*])", paragraph)[0]
    return sentence.replace("``", "`").replace("|", r"\|")


def key(value: Any) -> str:
    """Returns how a function takes its key, or which methods of a class take one."""
    if inspect.isclass(value):
        methods = inspect.getmembers(value, inspect.isfunction)
        taking = [name for name, method in methods if name[0] != "_" and key_position(method)]
        return ", ".join(f"`{name}`" for name in taking)
    return key_position(value)


def key_position(function: Callable[..., Any]) -> str:
    """Returns "first", "keyword", "by position" or, without a key, the empty string."""
    parameters = inspect.signature(function).parameters
    for number, (name, parameter) in enumerate(parameters.items()):
        if name in ("key", "rng_key"):
            by_position = "by position" if number else "first"
            return "keyword" if parameter.kind is parameter.KEYWORD_ONLY else by_position
    return ""


def returns(value: Any) -> str:
    """Returns the return annotation of a function as it is written in the source."""
    if inspect.isclass(value):
        return ""
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(value))).body
    return f"`{ast.unparse(function.returns)}`".replace("|", r"\|")


if __name__ == "__main__":
    PAGE.write_text(render(), "utf-8")
