"""The documentation covers every public name, and its Python runs as printed."""

import contextlib
import importlib
import inspect
import re
import shutil
import sys
from pathlib import Path

import nbformat
import pytest

from experiments.benchmarks.results import Benchmark, Row, Table, save

DOCS = Path(__file__).parents[1] / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "```python" in path.read_text("utf-8"))
# Pages of one long example, in which each block continues the one before.
CONTINUED = {"new_mechanism", "pate_on_own_classifiers", "private_inference", "rehearse"}
NOTEBOOKS = sorted(DOCS.parent.glob("notebooks/*.ipynb"))
REFERENCE = "\n".join(path.read_text("utf-8") for path in sorted(DOCS.glob("reference/*.md")))

sys.path[:0] = [str(DOCS), str(DOCS.parent)]
import api_table  # noqa: E402
import benchmark_tables  # noqa: E402
import member_order  # noqa: E402
from public_names import public_names  # noqa: E402

from notebooks.__main__ import find_difference  # noqa: E402


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
    if not docstring or docstring.startswith(f"{short}("):
        return f"{name}: no docstring"
    methods = inspect.getmembers(value, inspect.isroutine) if inspect.isclass(value) else []
    bare = [
        method
        for method, function in methods
        if not method.startswith("_")
        and (getattr(function, "__module__", None) or "").startswith(("dpjax", __name__))
        # An override inherits its docstring; ``inspect.getdoc`` does not find that of a
        # ``functools.cached_property``, which Python 3.13 counts as a routine.
        and not any(vars(base)[method].__doc__ for base in value.__mro__ if method in vars(base))
    ]
    return f"{name}: no docstring of {', '.join(bare)}" if bare else None


def has_page(module: str, reference: str) -> bool:
    return f".. automodule:: {module}\n" in reference


def problems(names: dict[str, object], reference: str = REFERENCE) -> list[str]:
    return [found for name, value in names.items() if (found := problem(name, value, reference))]


def test_public_names_are_documented():
    names = public_names()
    assert len(names) > 150
    assert problems(names) == []


def test_api_table_is_that_of_the_code():
    """After a change of signatures or first sentences: ``python docs/api_table.py``."""
    assert api_table.PAGE.read_text("utf-8") == api_table.render()
    assert len(api_table.rows(public_names())) > 200


def test_benchmark_tables_render_saved_results(tmp_path):
    assert "make bench" in benchmark_tables.render(tmp_path)
    assert "#" not in benchmark_tables.render(tmp_path)
    rows = Row("plain", {"ms": 1.2345, "× plain": 1.0}, 50), Row("vmap", note="takes 9 GiB")
    tables = (Table("steps", "MLP", 1024, rows),)
    missing = {"torch": "not installed"}
    save(tmp_path, Benchmark("steps", {"jax": "1.0"}, "2 CPU cores", missing, tables))
    lines = benchmark_tables.render(tmp_path).splitlines()
    assert lines[9] == "2 CPU cores; jax 1.0. Not measured: torch (not installed)."
    assert (DOCS / re.fullmatch(r"!\[.*\]\((.*)\)", lines[11])[1]).exists()
    assert lines[13:] == [
        "| MLP, batch 1,024 | ms | × plain | runs |  |",
        "| --- | ---: | ---: | ---: | --- |",
        "| plain | 1.23 | 1.00 | 50 |  |",
        "| vmap | – | – | – | takes 9 GiB |",
    ]


def test_reference_lists_names_in_the_order_of_use(monkeypatch):
    training = importlib.import_module("dpjax.training")
    monkeypatch.setattr(member_order, "FIRST", {"dpjax.training": "train Budget"})
    monkeypatch.setattr(training, "__all__", ["ArraySource", "Budget", "Report", "train"])
    member_order.sort_by_use()
    assert training.__all__ == ["train", "Budget", "ArraySource", "Report"]
    monkeypatch.setattr(member_order, "FIRST", {"dpjax.training": "train trains"})
    with pytest.raises(ValueError, match="has no trains"):
        member_order.sort_by_use()


def test_names_of_the_order_of_use_are_public():
    public = set(public_names())
    names = {
        f"{module}.{name}" for module, text in member_order.FIRST.items() for name in text.split()
    }
    assert names <= public


class Draws:
    """Draws records. Its second sentence is not shown."""

    def draw(self, key, size):
        pass


def draw(loss, size, *, key=None) -> tuple[int | None, ...]:
    """Draws ``size`` records."""


def test_api_table_rows_have_sentence_key_and_result():
    table = api_table.rows({"dpjax.here.Draws": Draws, "dpjax.here.draw": draw})
    assert [row[2:] for row in table] == [
        ("Draws records.", "`draw`", ""),
        ("Draws `size` records.", "keyword", r"`tuple[int \| None, ...]`"),
    ]
    assert table[0][:2] == ("here", "{py:obj}`Draws <dpjax.here.Draws>`")


class WithDocstring:
    """A documented class."""


class Inherits(WithDocstring):
    pass


class WithMethod(WithDocstring):
    """A class with a method."""

    def no_docstring(self):
        pass


def no_docstring():
    pass


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("dpjax.mechanisms.no_docstring", no_docstring, "no docstring"),
        ("dpjax.mechanisms.Inherits", Inherits, "no docstring"),
        ("dpjax.mechanisms.WithMethod", WithMethod, "no docstring of no_docstring"),
        ("dpjax.mechanisms.CONSTANT", 0.5, "no entry"),
        ("dpjax.no_such_package.WithDocstring", WithDocstring, "has no page"),
        ("dpjax.mechanisms.contextlib", contextlib, "no page"),
    ],
)
def test_power_undocumented_name_is_found(name, value, message):
    found = problems({name: value, "dpjax.mechanisms.WithDocstring": WithDocstring})
    assert len(found) == 1
    assert message in found[0]


# Of a short run with a release key, whose trace has problems at times.
@pytest.mark.filterwarnings("ignore:w_auto_loc:UserWarning")
@pytest.mark.slow
@pytest.mark.parametrize("path", PAGES, ids=[path.stem for path in PAGES])
def test_python_blocks_of_the_pages_run(path, tmp_path, monkeypatch):
    names: dict[str, object] = {}
    blocks = re.findall(r"```python\n(.*?)```", path.read_text("utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)  # for the files that a block writes
    for block in blocks:
        exec(compile(block, str(path), "exec"), names if path.stem in CONTINUED else {})


def test_notebooks_agree_with_their_markdown():
    assert NOTEBOOKS
    assert [text for path in NOTEBOOKS if (text := find_difference(path))] == []


@pytest.mark.parametrize("change", ["# A title", "```{code-cell}\n1 + 1\n```\n\n# A title"])
def test_power_notebook_that_differs_from_its_markdown_is_found(change, tmp_path):
    path = Path(shutil.copy(NOTEBOOKS[0], tmp_path))
    markdown = NOTEBOOKS[0].with_suffix(".md").read_text("utf-8")
    path.with_suffix(".md").write_text(markdown, "utf-8")
    assert find_difference(path) is None
    path.with_suffix(".md").write_text(markdown + f"\n+++\n\n{change}\n", "utf-8")
    assert "differ in cell" in find_difference(path)


def test_notebooks_have_no_outputs():
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    assert [
        cell.source for cell in cells if cell.get("outputs") or cell.get("execution_count")
    ] == []


def test_pages_are_in_a_table_of_contents():
    toctrees = "\n".join(path.read_text("utf-8") for path in DOCS.rglob("*.md"))
    pages = [path.relative_to(DOCS).with_suffix("") for path in DOCS.rglob("*.md")]
    pages += [Path("tutorials", path.stem) for path in NOTEBOOKS]
    # Building the site writes the experiments' pages and their table of contents, and checks them.
    pages = [page for page in pages if page.parent != Path("reproduction")]
    listed = re.findall(
        r"^[\w/]+$", "\n".join(re.findall(r"```{toctree}\n(.*?)```", toctrees, re.DOTALL)), re.M
    )
    missing = [page for page in pages if page.name != "index" and page.name not in listed]
    assert missing == []
