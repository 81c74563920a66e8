"""The order of the sources, and what stops the search."""

import logging
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from experiments.data import CorruptedFileError, Dataset, Split
from experiments.data.sources import UnavailableError, first_available

PART = Split(np.zeros((1, 2), np.float32), np.zeros(1, np.int32))
FOUND = Dataset("toy", PART, PART, "memory", False, 2, "A toy.")


def fail(error: Exception) -> Callable[[], Dataset]:
    def source() -> Dataset:
        raise error

    return source


def test_the_first_source_that_has_the_data_is_the_last_one_asked() -> None:
    never = fail(AssertionError("asked for nothing"))
    assert first_available((lambda: FOUND, never)) is FOUND


def test_the_note_gives_the_reason_for_each_source_that_failed() -> None:
    sources = (fail(UnavailableError("no disk")), fail(UnavailableError("no net")), lambda: FOUND)
    found = first_available(sources)
    assert found.note == "A toy. Sources not available: no disk; no net."
    assert found.train is PART


@pytest.mark.parametrize("error", [CorruptedFileError("bad bytes"), FileNotFoundError("one gone")])
def test_wrong_data_are_never_passed_over(error: Exception) -> None:
    with pytest.raises(type(error), match=str(error)):
        first_available((fail(error), lambda: FOUND))


def test_without_any_source_every_reason_is_given() -> None:
    with pytest.raises(UnavailableError, match="no disk; no net"):
        first_available((fail(UnavailableError("no disk")), fail(UnavailableError("no net"))))


@pytest.mark.parametrize("is_stand_in", [True, False])
def test_only_a_stand_in_is_announced(is_stand_in: bool, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        first_available((lambda: replace(FOUND, is_stand_in=is_stand_in),))
    assert caplog.messages == (["A toy."] if is_stand_in else [])
