"""Executes every notebook from a fresh kernel; the executed copies go to results/notebooks."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
OUT = Path("results/notebooks")


def main() -> None:
    """Executes all; the first cell that raises ends the command with its traceback."""
    OUT.mkdir(parents=True, exist_ok=True)
    for path in sorted(HERE.glob("*.ipynb")):
        print(f"{path.name} ...", end=" ", flush=True)
        notebook = nbformat.read(path, as_version=4)
        NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
        nbformat.write(notebook, OUT / path.name)
        print("executed")


if __name__ == "__main__":
    sys.exit(main())
