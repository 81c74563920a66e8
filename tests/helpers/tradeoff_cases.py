"""Trade-off functions of every kind, plain and degenerate, and what must hold of each."""

import numpy as np
from hypothesis import strategies as st

from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Identity,
    Laplace,
    TradeOff,
    from_profile,
    group,
    mixture,
    piecewise_linear,
    subsample,
)

TAIL = np.concatenate([[0.0], np.logspace(-30, -3, 10)])
LEVELS = np.concatenate([TAIL, np.linspace(0.002, 0.998, 101), 1.0 - TAIL[:5:-1], [1.0]])
LOSSES = np.concatenate([-np.geomspace(8, 1e-3, 12), [0.0], np.geomspace(1e-3, 8, 12)])


def masses(size: int) -> st.SearchStrategy[np.ndarray]:
    """Distributions on ``size`` outcomes, some of mass zero."""
    numbers = st.lists(st.sampled_from([0, 1, 2, 5, 100, 10_000]), min_size=size, max_size=size)
    return numbers.filter(any).map(lambda values: np.array(values) / np.sum(values))


def pairs() -> st.SearchStrategy[Discrete]:
    sizes = st.integers(1, 7)
    return sizes.flatmap(lambda size: st.builds(Discrete, masses(size), masses(size)))


def profiles() -> st.SearchStrategy[Discrete]:
    pair = st.tuples(st.floats(0, 5), st.floats(0, 1))
    some = st.lists(pair, min_size=1, max_size=6)
    return some.map(lambda budgets: from_profile(*np.transpose(budgets)))


def polygons() -> st.SearchStrategy[Discrete]:
    """Points in any order below the diagonal, sorted so that they fall."""
    levels = st.lists(st.floats(0, 1), min_size=1, max_size=6, unique=True)

    def through(points: list[float]) -> Discrete:
        x = np.sort(points)
        return piecewise_linear(x, (1 - x) * np.linspace(1, 0.3, x.size) ** 2)

    return levels.map(through)


def closed_forms() -> st.SearchStrategy[TradeOff]:
    budgets, slacks = st.sampled_from([0.0, 0.7, 5.0, 800.0]), st.sampled_from([0, 1e-9, 0.2, 1])
    return st.one_of(
        st.just(Identity()),
        st.builds(Gaussian, st.sampled_from([0.0, 1e-6, 0.3, 2.0, 9.0, 1e3])),
        st.builds(Laplace, st.sampled_from([1e-3, 0.2, 1.0, 50.0])),
        st.builds(ApproximateDP, budgets, slack=slacks),
    )


def simple() -> st.SearchStrategy[TradeOff]:
    return st.one_of(closed_forms(), pairs(), profiles(), polygons())


def curves() -> st.SearchStrategy[TradeOff]:
    """Everything that has a name, and what the operators make of it."""
    rates = st.sampled_from([0.0, 1e-4, 0.3, 1.0])
    mixed = st.builds(mixture, simple(), rates)
    return st.one_of(
        simple(),
        mixed,
        mixed.map(TradeOff.inverse),
        mixed.map(TradeOff.symmetrized),
        st.builds(subsample, closed_forms(), rates),
        st.builds(group, st.one_of(closed_forms(), pairs()), st.integers(1, 3)),
    )


def assert_is_trade_off(curve: TradeOff) -> None:
    """Between 0 and 1 - alpha, non-increasing and convex, and the profile likewise."""
    values = curve(LEVELS)
    assert np.all((values >= 0) & (values <= 1 - LEVELS))
    assert np.all(np.diff(values) <= 1e-12)
    width = np.diff(LEVELS)
    # Each value against the chord of its neighbours.
    chord = (values[:-2] * width[1:] + values[2:] * width[:-1]) / (width[1:] + width[:-1])
    assert np.all(values[1:-1] <= chord + 1e-12)
    deltas = curve.delta(LOSSES)
    assert np.all(np.diff(deltas) <= 1e-12)
    assert np.all(deltas >= np.maximum(0.0, -np.expm1(LOSSES)) - 1e-12)
    # No line of the profile crosses the curve, and the two ways to ask for f agree.
    lines = 1 - deltas[:, None] - np.exp(LOSSES)[:, None] * LEVELS
    assert np.all(lines <= values + 1e-11)
    np.testing.assert_allclose(1 - curve.true_positive_rate(LEVELS), values, rtol=0, atol=1e-12)
