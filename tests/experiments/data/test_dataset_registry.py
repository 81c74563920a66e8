"""Data sets by name."""

from typing import Any

import pytest

from experiments import data
from experiments.data import Dataset, load_data


def test_a_name_calls_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = object()
    monkeypatch.setitem(data._LOADERS, "mnist", lambda: found)
    assert load_data("mnist") is found
    assert isinstance(load_data("digits"), Dataset)


@pytest.mark.parametrize("name", ["MNIST", "", None, ["mnist"]])
def test_other_names_are_refused_with_those_known(name: Any) -> None:
    known = ", ".join(map(repr, data._LOADERS))
    with pytest.raises(ValueError, match=f"name must be one of {known}, got"):
        load_data(name)
