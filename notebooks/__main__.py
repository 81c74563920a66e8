"""Executes the tutorials: ``python -m notebooks``, or with the paths of some of them.

Each is a notebook without outputs and its pair in MyST Markdown, which must have the same cells. The
executed copies go to build/notebooks, from where the documentation takes them.
"""

import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jaxlib.version
import jupytext
import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
OUT = HERE.parent / "build" / "notebooks"
_AT_ONCE = 2
# Most of a tutorial is tracing and compiling small programs: with fewer optimisations, no line numbers,
# one part each and the faster one of two code generators, as in the tests (tests/conftest.py: no tutorial
# has indices of 8 bits); and one thread each. What is set in the environment stays.
_ENVIRONMENT = {
    "JAX_DISABLE_MOST_OPTIMIZATIONS": "1",
    "JAX_TRACEBACK_IN_LOCATIONS_LIMIT": "0",
    "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0",
    "XLA_FLAGS": "--xla_cpu_parallel_codegen_split_count=1 --xla_cpu_multi_thread_eigen=false",
}
if jaxlib.version.__version_info__ < (0, 11):
    _ENVIRONMENT["XLA_FLAGS"] += " --xla_cpu_use_fusion_emitters=false"


def find_difference(path: Path) -> str | None:
    """Returns the first cell in which a notebook and its Markdown pair differ, or ``None``."""
    cells, pair = (
        [(cell.cell_type, cell.source.strip()) for cell in notebook.cells]
        for notebook in (nbformat.read(path, as_version=4), jupytext.read(path.with_suffix(".md")))
    )
    if cells == pair:
        return None
    equal = [one == other for one, other in zip(cells, pair, strict=False)]
    number = equal.index(False) if False in equal else len(equal)
    return (
        f"{path} and its pair {path.stem}.md differ in cell {number};"
        " `jupytext --sync notebooks/*.ipynb` copies the newer to the older"
    )


def main(arguments: Sequence[str]) -> str | None:
    """Compares pairs, then executes; a cell that raises ends the command with its traceback."""
    paths = [Path(name) for name in arguments] or sorted(HERE.glob("*.ipynb"))
    if differences := [text for path in paths if (text := find_difference(path))]:
        return "\n".join(differences)
    OUT.mkdir(parents=True, exist_ok=True)
    # Tracing and compiling use one core.
    with ThreadPoolExecutor(_AT_ONCE) as threads, tempfile.TemporaryDirectory() as cache:
        # Programs that two tutorials have in common, or two parts of one, are compiled once.
        cache = os.environ.get("JAX_COMPILATION_CACHE_DIR") or cache
        environment = _ENVIRONMENT | os.environ | {"JAX_COMPILATION_CACHE_DIR": cache}
        running = [threads.submit(execute, path, environment) for path in paths]
        try:
            for each in running:
                each.result()
        finally:
            threads.shutdown(cancel_futures=True)
    return None


def execute(path: Path, environment: Mapping[str, str]) -> None:
    """Executes one notebook in a kernel of its own with an environment, and writes the copy."""
    notebook = nbformat.read(path, as_version=4)
    # In their folder, as Jupyter does. What a cell prints while it computes arrives in pieces, which
    # are joined.
    client = NotebookClient(
        notebook,
        timeout=600,
        kernel_name="python3",
        # Tracing makes many objects that live on: looking for garbage less often saves time.
        extra_arguments=["--IPKernelApp.exec_lines=import gc; gc.set_threshold(100_000, 20, 20)"],
        coalesce_streams=True,
        resources={"metadata": {"path": str(HERE)}},
    )
    client.execute(env=environment)
    nbformat.write(notebook, OUT / path.name)
    print(f"{path.name}: executed", flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
