"""Data sets by name."""

from typing import Any

import pytest

import dpjax.datasets
from dpjax.datasets import Dataset, load


def test_a_name_calls_its_loader(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Any = object()
    monkeypatch.setitem(dpjax.datasets._LOADERS, "mnist", lambda: found)
    assert load("mnist") is found
    assert isinstance(load("digits"), Dataset)


@pytest.mark.parametrize("name", ["MNIST", "", None, ["mnist"]])
def test_other_names_are_refused_with_those_known(name: Any) -> None:
    known = ", ".join(map(repr, dpjax.datasets._LOADERS))
    with pytest.raises(ValueError, match=f"name must be one of {known}, got"):
        load(name)


def test_every_loader_is_public() -> None:
    loaders = {f"load_{name}" for name in dpjax.datasets._LOADERS}
    assert loaders <= set(dpjax.datasets.__all__)
