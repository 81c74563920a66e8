import itertools

import jax.numpy as jnp

from experiments.benchmarks.timing import (
    FEWEST,
    Case,
    Effort,
    Times,
    blocking,
    interleaved,
    is_timed_in_round,
)


def recorded(durations):
    """Cases whose calls take scripted times, and the order they were called in."""
    calls = []

    def case(name, seconds):
        script = itertools.chain(seconds, itertools.repeat(seconds[-1]))

        def call():
            calls.append(name)
            return next(script)

        return Case(name, call)

    return [case(name, seconds) for name, seconds in durations.items()], calls


def test_cases_take_turns_after_one_call_each_to_warm_up():
    cases, calls = recorded({"a": [9.0, 1.0], "b": [9.0, 2.0]})
    times = interleaved(cases, Effort(seconds=9 * FEWEST))
    assert calls == ["a", "b"] * (1 + FEWEST)
    assert times == {"a": Times((1.0,) * FEWEST, False), "b": Times((2.0,) * FEWEST, False)}


def test_only_the_last_call_of_a_quick_cases_turn_counts(monkeypatch):
    clock = itertools.count(step=0.015)  # it is read once before a turn, and after each call
    monkeypatch.setattr("experiments.benchmarks.timing.time.perf_counter", lambda: next(clock))
    cases, calls = recorded({"quick": [0.9, 0.01, *[0.5, 0.01] * 4], "other": [1.0]})
    times = interleaved(cases, Effort(seconds=0.04))
    assert times["quick"].seconds == (0.01,) * 4
    assert calls.count("quick") == 2 + 2 * 4


def test_what_is_timed_less_often_has_its_turns_spread():
    cases, calls = recorded({"often": [1.0], "seldom": [2.0]})
    interleaved(cases, Effort(seconds=6.0))
    assert "".join(name[0] for name in calls[2:]) == "oosoosoos"


def test_as_many_turns_as_counted():
    for rounds, count in itertools.product(range(1, 30), range(1, 30)):
        if count <= rounds:
            assert (
                sum(is_timed_in_round(number, rounds, count) for number in range(rounds)) == count
            )


def test_a_slow_case_is_not_called_again():
    cases, calls = recorded({"slow": [20.0], "other": [1.0]})
    times = interleaved(cases, Effort(seconds=4.0))
    assert times["slow"] == Times((20.0,), True)
    assert calls.count("slow") == 1
    assert len(times["other"].seconds) == 4


def test_all_slow_and_none_at_all():
    cases, _ = recorded({"slow": [20.0]})
    assert interleaved(cases, Effort())["slow"].slow
    assert interleaved([], Effort()) == {}


def test_median_and_least_are_in_milliseconds():
    times = Times((0.001, 0.005, 0.002), False)
    assert (times.median, times.least) == (2.0, 1.0)


def test_blocking_returns_seconds():
    assert 0 < blocking(lambda: jnp.ones(3) + 1)() < 60
    assert 0 < blocking(jnp.add, 1, 2)() < 60


def test_a_skipped_case_is_left_out():
    cases, calls = recorded({"a": [1.0]})
    assert list(interleaved([Case("skipped", None), *cases], Effort(seconds=3.0))) == ["a"]
    assert calls == ["a"] * (1 + FEWEST)
