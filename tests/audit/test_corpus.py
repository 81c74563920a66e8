"""Each planted bug is caught by the check that it names, and right programs pass."""

import jax
import jax.numpy as jnp
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


def test_bugs_are_planted_in_a_step_of_any_kind():
    case = corpus.SOUND["the right step"]()
    state, records = case.init(jax.random.key(1)), case.records
    right, after = case.step(state, records)
    loops = corpus.planted_in(case.step, is_loop=True, adjacency="add_remove")
    changed = {name: wrong(state, records) for name, wrong in loops.items()}
    assert len(changed) == 8

    # Each of them is another step: in what it releases, in its next key, or of no records.
    same = [
        name
        for name, (released, next_state) in changed.items()
        if jax.tree.structure(released) == jax.tree.structure(right)
        and all(jax.tree.leaves(jax.tree.map(jnp.array_equal, released, right)))
        and next_state[0] == after[0]
    ]
    assert same == ["nothing of no records"]
    nothing, _ = loops[same[0]](state, jax.tree.map(lambda leaf: leaf[:0], records))
    assert not any(leaf.any() for leaf in jax.tree.leaves(nothing))

    # Of no loop, and of padded batches.
    once = corpus.planted_in(lambda key, x: x, is_loop=False, adjacency="zero_out")
    assert set(once) < set(changed)
    padded = corpus.planted_in(
        lambda key, x: x, is_loop=False, adjacency="add_remove", any_number=False
    )
    assert set(once) - set(padded) == {"every record twice"}


def test_raw_keys_are_changed_too():
    def step(key, x):
        return x.sum(0) + jax.random.normal(key, (3,))

    wrong = corpus.planted_in(step, is_loop=False, adjacency="zero_out")["same key in every call"]
    x = jnp.ones((2, 3))
    one, two = (wrong(jax.random.PRNGKey(seed), x) for seed in range(2))
    assert (one == two).all()


@pytest.mark.slow
def test_the_checks_see_what_is_planted_in_a_right_step_and_a_bug_in_a_wrong_one():
    case = corpus.SOUND["the right step"]()
    arguments = case.records, case.mechanism
    results = corpus.check_own(jax.random.key(3), case.step, *arguments, init=case.init)
    assert all(result.is_right for result in results), results

    def half_of_the_noise(key, total):
        return corpus.add_noise(key, total, corpus.NOISE_STD / 2)

    wrong = corpus.make_step(noise=half_of_the_noise)
    first, *_ = corpus.check_own(jax.random.key(3), wrong, *arguments, init=case.init)
    assert not first.is_right
    assert set(first.caught) == {"property", "program"}
