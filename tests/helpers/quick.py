"""Which cases of a parametrised test are in the quick set of `make test`."""

from collections.abc import Container, Iterable
from typing import Any

import pytest


def slow_except(quick: Container[str], names: Iterable[str]) -> list[Any]:
    """The names as parameters, marked slow where they are not in ``quick``."""
    return [pytest.param(name, marks=() if name in quick else pytest.mark.slow) for name in names]
