"""The documentation covers every public name, and its Python runs as printed."""

import contextlib
import inspect
import re
import sys
from pathlib import Path

import pytest

import dpjax

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "```python" in path.read_text("utf-8"))
REFERENCE = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("reference/*.md")))

sys.path.insert(0, str(DOCS))
from public_names import public_names  # noqa: E402


def problem(name: str, value: object, reference: str) -> str | None:
    """What is missing in the documentation of one public object, or ``None``."""
    package, _, short = name.rpartition(".")
    if inspect.ismodule(value):
        return None if has_page(value.__name__, reference) else f"{name}: no page of the reference"
    if not (inspect.isclass(value) or inspect.isroutine(value)):  # a constant or a type
        entry = f".. py:data:: {short}\n   :module: {package}\n"
        return None if entry in reference else f"{name}: no entry {entry!r} in the reference"
    if not has_page(package, reference):
        return f"{name}: its package {package} has no page of the reference"
    # Dataclasses and named tuples without a docstring are given their signature.
    docstring = (vars(value).get("__doc__") if inspect.isclass(value) else value.__doc__) or ""
    return f"{name}: no docstring" if not docstring or docstring.startswith(f"{short}(") else None


def has_page(module: str, reference: str) -> bool:
    return f".. automodule:: {module}\n" in reference


def problems(names: dict[str, object], reference: str = REFERENCE) -> list[str]:
    return [found for name, value in names.items() if (found := problem(name, value, reference))]


def test_every_public_name_is_documented():
    names = public_names()
    assert len(names) > 150
    assert problems(names) == []


def test_the_table_of_the_reference_lists_what_dpjax_exports():
    table = (DOCS / "reference" / "index.md").read_text("utf-8")
    rows = [
        f"{{py:obj}}`dpjax.{name} <{dpjax._MODULE_OF[name]}.{name}>`" for name in dpjax._MODULE_OF
    ]
    rows += [f"{{py:mod}}`dpjax.{name}`" for name in dpjax._SUBPACKAGES]
    assert [row for row in rows if row not in table] == []
    assert table.count("| {py:") == len(rows)


class WithDocstring:
    """A documented class."""


class Inherits(WithDocstring):
    pass


def no_docstring():
    pass


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dpjax.mechanisms.no_docstring", no_docstring, "no docstring"),
        ("dpjax.mechanisms.Inherits", Inherits, "no docstring"),
        ("dpjax.mechanisms.CONSTANT", 0.5, "no entry"),
        ("dpjax.no_such_package.WithDocstring", WithDocstring, "has no page"),
        ("dpjax.mechanisms.contextlib", contextlib, "no page"),
    ],
)
def test_a_planted_violation_is_found(name, value, message):
    found = problems({name: value, "dpjax.mechanisms.WithDocstring": WithDocstring})
    assert len(found) == 1
    assert message in found[0]


@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_python_blocks_of_the_pages_run(path):
    for block in re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL):
        exec(compile(block, str(path), "exec"), {})


def test_every_page_is_in_a_table_of_contents():
    toctrees = "\n".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    pages += [Path("tutorials", path.stem) for path in DOCS.parent.glob("notebooks/*.ipynb")]
    listed = re.findall(
        r"^[\w/]+$", "\n".join(re.findall(r"```{toctree}\n(.*?)```", toctrees, re.DOTALL)), re.M
    )
    missing = [page for page in pages if page.name != "index" and page.name not in listed]
    assert missing == []
