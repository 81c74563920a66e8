"""The README's Python runs as printed."""

import re
from pathlib import Path

README = Path(__file__).parents[1] / "README.md"


def test_python_blocks_run(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, str(README), "exec"), {})
    assert "differential privacy" in capsys.readouterr().out


def test_readme_example_is_short():
    text = README.read_text(encoding="utf-8")
    lines = re.search(r"```python\n(.*?)```", text, re.DOTALL)[1].splitlines()
    assert len([line for line in lines if line.strip()]) <= 18
