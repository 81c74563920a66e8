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


@pytest.mark.slow
@pytest.mark.parametrize("number", [bug.number for bug in corpus.BUGS])
def test_every_bug_is_caught(number):
    result = corpus.check_one(number, seed=1)
    assert result.is_right, result


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize("position", range(len(corpus.SOUND)))
def test_right_programs_pass(position, seed):
    result = corpus.check_one(-1 - position, seed)
    assert result.is_right, result
