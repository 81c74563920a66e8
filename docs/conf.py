"""Sphinx configuration: `make docs` builds the site offline, with warnings as errors.

DPJAX_DOCS_ONLINE=1 resolves links to other projects by their whole inventories.
"""

import contextlib
import io
import os
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy.typing
import optax
from sphinx.domains.python import PyObject
from sphinx.util import logging

DOCS = Path(__file__).parent
ROOT = DOCS.parent
sys.path[:0] = [str(DOCS), str(ROOT)]


def name_aliases(module: ModuleType, package: str, *names: str) -> None:
    """Replaces type aliases by classes of their name, which signatures show unexpanded."""
    for name in names:
        setattr(module, name, type(name, (), {"__module__": package}))


# Before the modules that use the aliases are imported.
name_aliases(numpy.typing, "numpy.typing", "ArrayLike")
name_aliases(optax, "optax", "OptState", "ScalarOrSchedule")
import dpjax._typing  # noqa: E402

name_aliases(dpjax._typing, "chex", "Array", "Numeric")
name_aliases(
    dpjax._typing,
    "dpjax.training",
    *("ArrayTree", "ClipBound", "LossFn", "MicrobatchSize", "Params", "SamplerState"),
)

import benchmark_tables  # noqa: E402
import inventories  # noqa: E402
import member_order  # noqa: E402
import reproduction_pages  # noqa: E402
from public_names import public_names  # noqa: E402

import dpjax  # noqa: E402
from experiments.lib.registry import MODULES, load_experiments  # noqa: E402

project = "dpjax"
author = "the dpjax authors"
copyright = author
version = release = dpjax.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.intersphinx",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
]

# Google-style docstrings, with the sections that dpjax adds to them.
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
napoleon_custom_sections = ["Privacy", "Source", "Sources"]
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": True}
autodoc_inherit_docstrings = True
default_role = "py:obj"
python_maximum_signature_line_length = 88
add_module_names = False
toc_object_entries_show_parents = "hide"

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 4
nb_execution_mode = "off"  # `make docs` executes them beforehand
nb_output_stderr = "remove"
nb_merge_streams = True  # what a loop prints is one box

intersphinx_mapping = (
    inventories.ONLINE
    if os.environ.get("DPJAX_DOCS_ONLINE")
    else inventories.write(ROOT / "build" / "docs" / "inventories")
)

copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
viewcode_line_numbers = True

html_theme = "sphinx_book_theme"
html_title = f"dpjax {release}"
html_theme_options = {
    "show_toc_level": 1,
    "home_page_in_toc": True,
    "logo": {
        "image_light": "_static/logo.svg",
        "image_dark": "_static/logo.svg",
        "text": html_title,
    },
}
html_favicon = "_static/logo.svg"
html_static_path = ["_static"]
html_css_files = ["dpjax.css"]
html_js_files = ["tables.js"]


def copy_notebooks(_app: Any) -> None:
    """Copies the notebooks beside the page that lists them, executed ones where there are any."""
    for notebook in sorted((ROOT / "notebooks").glob("*.ipynb")):
        executed = ROOT / "build" / "notebooks" / notebook.name
        source = executed if executed.exists() else notebook
        shutil.copy2(source, DOCS / "tutorials" / notebook.name)


def write_example(_app: Any) -> None:
    """Runs the code of the landing page; writes the accuracy that it prints and its certificate."""
    code = re.search(r"```python\n(.*?)```", (DOCS / "index.md").read_text("utf-8"), re.DOTALL)
    assert code is not None
    names: dict[str, Any] = {}
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        exec(code[1], names)
    accuracy = printed.getvalue().partition("\n")[0]
    certificate = names["certificate"]._repr_html_()
    parts = [f"```text\n{accuracy}\n```", f"```{{raw}} html\n{certificate}\n```"]
    page = ROOT / "build" / "docs" / "example.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text("\n\n".join(parts) + "\n", "utf-8")


def write_benchmarks(_app: Any) -> None:
    """Writes the tables that the benchmarks page includes."""
    page = ROOT / "build" / "docs" / "benchmarks.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(benchmark_tables.render(ROOT / "results"), "utf-8")


def write_reproduction(_app: Any) -> None:
    """Writes the pages of the experiments, and the findings that their index includes."""
    modules = dict(zip(MODULES, load_experiments(), strict=True))
    page = ROOT / "build" / "docs" / "findings.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(reproduction_pages.write_pages(modules), "utf-8")


def skip_tuple_fields(_app: Any, _what: Any, _name: Any, value: object, *_: Any) -> bool | None:
    """Leaves out the fields of a NamedTuple: its docstring's "Attributes" describe them."""
    return True if type(value).__name__ == "_tuplegetter" else None


def escape_text(_app: Any, _what: str, _name: str, _object: Any, _options: Any, lines: Any) -> None:
    """Escapes mathematics, |x| and ``s``^2, and the name of ``**kwargs``, outside of doctests."""
    paragraphs = "\n".join(lines).split("\n\n")
    lines[:] = "\n\n".join(map(_escape_paragraph, paragraphs)).split("\n")


def _escape_paragraph(paragraph: str) -> str:
    if ">>>" in paragraph:
        return paragraph
    parts = paragraph.split("``")  # literals are the parts with an odd index
    for i in range(0, len(parts), 2):
        text = parts[i].replace("|", r"\|").replace(", **kwargs:", r", \*\*kwargs:")
        text = re.sub(r"^(?=[\w^|*\\])", r"\\ ", text) if i else text
        parts[i] = re.sub(r"(?<=[\w^|*])$", r"\\ ", text) if i + 1 < len(parts) else text
    return "``".join(parts)


def check_reference(_app: Any, env: Any) -> None:
    """Warns of each public name that no page of the reference documents."""
    documented = env.get_domain("py").objects
    described = {id(value) for name, value in public_names().items() if name in documented}
    for name, value in public_names().items():
        if name not in documented and id(value) not in described:
            logging.getLogger(__name__).warning("the reference does not document %s", name)


def setup(app: Any) -> None:
    """Connects the functions above to the build."""
    member_order.sort_by_use()
    for field in PyObject.doc_field_types:
        if field.name == "variable":
            field.label = "Attributes"
    app.connect("builder-inited", copy_notebooks)
    app.connect("builder-inited", write_example)
    app.connect("builder-inited", write_benchmarks)
    app.connect("builder-inited", write_reproduction)
    app.connect("autodoc-skip-member", skip_tuple_fields)
    app.connect("autodoc-process-docstring", escape_text, priority=400)  # before napoleon
    app.connect("env-check-consistency", check_reference)
