"""Each planted bug is caught by the check that it names, and right programs pass."""

import pytest

from dpjax.audit import corpus


def test_bugs_are_numbered_and_named_once():
    assert [bug.number for bug in corpus.BUGS] == list(range(1, len(corpus.BUGS) + 1))
    assert len({bug.name for bug in corpus.BUGS}) == len(corpus.BUGS) >= 50


@pytest.mark.parametrize("number", [27, 36, 46])
def test_some_bugs_are_caught(number):
    result = corpus.check_one(number)
    assert result.is_right, result


# `make audit` runs all of them.
@pytest.mark.slow
@pytest.mark.parametrize("number", [2, 13, 19, 25, 30, 34, 41])
def test_bugs_of_each_part_are_caught(number):
    result = corpus.check_one(number, seed=1)
    assert result.is_right, result


@pytest.mark.slow
@pytest.mark.parametrize("name", ["dpjax.private_step", "the right step", "the right votes"])
def test_right_programs_pass(name):
    result = corpus.check_one(-1 - list(corpus.SOUND).index(name), seed=2)
    assert result.is_right, result
