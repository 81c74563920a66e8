"""No neighbours move a statistic farther than stated, and some move it that far."""

import functools
import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.sensitivity import (
    of_count,
    of_histogram,
    of_mean,
    of_quantile_counts,
    of_second_moment,
    of_second_moment_in_box,
    of_sum,
)

ORDERS = {"l1": 1, "l2": 2, "linf": np.inf}
NORMS = st.sampled_from(sorted(ORDERS))
ADJACENCIES = st.sampled_from(["add_remove", "replace_one"])
SHARES = st.lists(st.floats(0, 1), min_size=8, max_size=8)
UP = 1 + 1e-12


@st.composite
def boxes(draw):
    """Asymmetric bounds of up to four entries, such as (0, 100) or (-3, 7)."""
    size = draw(st.integers(1, 4))
    signs = st.sampled_from([(-1, -1), (-1, 1), (1, 1)])
    ends = st.tuples(signs, st.floats(0.01, 100), st.floats(0.01, 100))
    pairs = [
        sorted((signs[0] * one, signs[1] * other))
        for signs, one, other in draw(st.lists(ends, min_size=size, max_size=size))
    ]
    low, high = np.array(pairs).T
    return low, np.maximum(high, low + 0.01)


def inside(box, shares):
    low, high = box
    return low + np.array(shares[: low.size]) * (high - low)


def distance(one, other, norm):
    return np.linalg.norm(np.ravel(one - other), ORDERS[norm])


def farthest(box):
    low, high = box
    return np.where(np.abs(high) >= np.abs(low), high, low)


def neighbours(adjacency, x, z):
    """What x and z add to a statistic on neighbouring data sets."""
    return (x, z) if adjacency == "replace_one" else (x, np.zeros_like(x))


@given(box=boxes(), x=SHARES, z=SHARES, norm=NORMS, adjacency=ADJACENCIES)
def test_of_sum_bounds_distance(box, x, z, norm, adjacency):
    stated = of_sum(box, norm=norm, adjacency=adjacency)
    one, other = neighbours(adjacency, inside(box, x), inside(box, z))
    assert distance(one, other, norm) <= stated.value * UP
    if stated.monotone:
        assert (one >= other).all() or (one <= other).all()


@pytest.mark.parametrize(
    ("bounds", "added", "replaced"),
    [((0, 100), 100, 100), ((-3, 7), 7, 10), ((-9, -4), 9, 5), ((-1, 1), 1, 2), ((40, 41), 41, 1)],
)
def test_of_sum_of_asymmetric_bounds(bounds, added, replaced):
    for norm in ORDERS:
        assert of_sum(bounds, norm=norm, adjacency="add_remove").value == added
        assert of_sum(bounds, norm=norm, adjacency="replace_one").value == replaced


def triangle(x):
    """The upper triangle of x x^T, diagonal included."""
    return np.outer(x, x)[np.triu_indices(x.size)]


@given(x=SHARES, z=SHARES, d=st.integers(2, 5), radius=st.floats(0.1, 10), adjacency=ADJACENCIES)
def test_of_second_moment_bounds_distance(x, z, d, radius, adjacency):
    def row(shares):
        x = 2 * np.array(shares[:d]) - 1
        return radius * x / max(np.linalg.norm(x), 1e-9, 1.0 if shares[-1] > 0.5 else 0.0)

    stated = of_second_moment(radius, num_features=d, adjacency=adjacency)
    one, other = neighbours(adjacency, row(x), row(z))
    assert distance(triangle(one), triangle(other), "l2") <= stated.value * UP
    axes = neighbours(adjacency, radius * np.eye(d)[0], radius * np.eye(d)[1])
    assert distance(*map(triangle, axes), "l2") >= 0.99 * stated.value


@given(box=boxes(), x=SHARES, z=SHARES, adjacency=ADJACENCIES)
def test_of_second_moment_in_box_bounds_distance(box, x, z, adjacency):
    stated = of_second_moment_in_box(box, adjacency=adjacency)
    candidates = [neighbours(adjacency, inside(box, x), inside(box, z))]
    candidates += [neighbours(adjacency, inside(box, np.round(x)), inside(box, np.round(z)))]
    for one, other in candidates:
        moved = triangle(one) - triangle(other)
        assert np.abs(moved).sum() <= stated.value * (1 + 1e-9)
        if stated.monotone:
            assert (moved >= 0).all() or (moved <= 0).all()


# Boxes: (low, high), asymmetric, of one sign, across zero, next to zero, of one entry or several.
BOXES = {
    "0 .. 100": (0.0, 100.0),
    "-3 .. 7": (-3.0, 7.0),
    "-9 .. -4": (-9.0, -4.0),
    "-1 .. 1": (-1.0, 1.0),
    "-5 .. 0": (-5.0, 0.0),
    "40 .. 41": (40.0, 41.0),
    "next to 1e15": (1e15, 1e15 + 1),
    "one entry": ([-2.0], [5.0]),
    "(-1, 1)^2": ([-1.0, -1.0], [1.0, 1.0]),
    "asymmetric": ([-3.0, -0.5], [7.0, 2.0]),
    "signs": ([2.0, -3.0], [3.0, -2.0]),
    "across zero and not": ([-1.0, 2.0], [1.0, 3.0]),
    "(0, 1)^3": ([0.0] * 3, [1.0] * 3),
    "three": ([-1.0, -4.0, -0.25], [2.0, 1.0, 0.5]),
    "far apart": ([-1e-9, -1e9], [1e9, 1e-9]),
}
# Numbers near both ends of float64, whose squares overflow or underflow.
SCALES = (1.0, 2.0**-1000, 2.0**-530, 2.0**500, 2.0**960)


def corners(bounds, with_zero=True):
    """All records whose entries are at a bound, or zero where that is allowed."""
    low, high = (np.atleast_1d(bound).astype(float) for bound in bounds)
    sides = [
        {a, b} | ({0.0} if with_zero and a <= 0 <= b else set())
        for a, b in zip(low, high, strict=True)
    ]
    return [np.array(corner).reshape(np.shape(bounds[0])) for corner in itertools.product(*sides)]


def scaled(bounds, scale):
    return tuple(np.asarray(bound) * scale for bound in bounds)


def in_box(of, contribution, norms):
    """The cases of a statistic of records in a box: the sensitivity, what records add to it."""
    return {
        (name, scale, norm): (
            functools.partial(of, scaled(bounds, scale), **norms[norm]),
            [contribution(record * scale) for record in corners(bounds)],
        )
        for (name, bounds), scale, norm in itertools.product(BOXES.items(), SCALES, norms)
    }


def exact(array):
    return np.array([Fraction(x) for x in np.ravel(array).tolist()], object)


def exact_triangle(record):
    x = exact(record)
    return np.outer(x, x)[np.triu_indices(x.size)]


def over(array, n):
    return (exact(array) / n).reshape(np.shape(array))


def rows_in_a_ball(radius, d):
    """Multiples of the axes and of the diagonals, exact powers of two: up to the bound."""
    diagonals = [np.array(s) / 2 for s in itertools.product((-1.0, 1.0), repeat=d) if d == 4]
    return [radius * row for row in (np.zeros(d), *np.eye(d), *-np.eye(d), *diagonals)]


BY_NORM = {norm: {"norm": norm} for norm in ORDERS}
CASES = {
    "sum": in_box(of_sum, lambda record: record, BY_NORM),
    "mean": in_box(
        functools.partial(of_mean, num_examples=7), lambda record: over(record, 7), BY_NORM
    ),
    "second moment in a box": in_box(of_second_moment_in_box, exact_triangle, {"l1": {}}),
    "count": {
        norm: (functools.partial(of_count, norm=norm), [np.array(0), np.array(1)])
        for norm in ORDERS
    },
    "counts": {
        (norm, k): (
            functools.partial(of_count, k, norm=norm),
            [np.array(has) for has in itertools.product((0, 1), repeat=k)],
        )
        for norm, k in itertools.product(ORDERS, (1, 2, 5))
    },
    "histogram": {
        (norm, bins): (functools.partial(of_histogram, bins, norm=norm), list(np.eye(bins)))
        for norm, bins in itertools.product(ORDERS, (2, 3, 10))
    },
    "quantile counts": {
        (norm, m): (
            functools.partial(of_quantile_counts, m, norm=norm),
            [np.arange(m) >= first for first in range(m + 1)],
        )
        for norm, m in itertools.product(ORDERS, (1, 2, 9))
    },
    "second moment": {
        ("l2", d, radius): (
            functools.partial(of_second_moment, radius, num_features=d),
            [exact_triangle(row) for row in rows_in_a_ball(radius, d)],
        )
        for d, radius in itertools.product((1, 2, 4), (1.0, 3.0, 2.0**-510, 2.0**500))
    },
}


def pairs_of(contributions, adjacency):
    """What a record, or its absence, and another one add to a statistic."""
    if adjacency == "replace_one":
        return itertools.combinations(contributions, 2)
    return ((one, np.zeros_like(one)) for one in contributions)


def is_ordered(one, other):
    moves = exact(one) - exact(other)
    return all(x >= 0 for x in moves) or all(x <= 0 for x in moves)


def largest_move(contributions, norm, adjacency):
    """The largest distance between neighbours in exact arithmetic, squared for L2."""
    pairs = pairs_of(contributions, adjacency)
    sizes = [[abs(x) for x in exact(one) - exact(other)] for one, other in pairs]
    if norm == "l2":
        return max(sum(x * x for x in moved) for moved in sizes)
    return max(map(sum if norm == "l1" else max, sizes))


def is_attained(stated, contributions):
    """Whether the stated value is the largest move, up to rounding: neither below nor above."""
    power = 2 if stated.norm == "l2" else 1
    ratio = Fraction(stated.value) ** power / largest_move(
        contributions, stated.norm, stated.adjacency
    )
    return abs(ratio - 1) < Fraction(1, 2**48)


def cases(statistic, adjacency):
    """The cases that an adjacency has, in which the sensitivity is stated to be attained."""
    for name, (stated, contributions) in CASES[statistic].items():
        if statistic == "mean" and adjacency == "add_remove":
            continue
        partly_zero = statistic.endswith("box") and name[0] == "across zero and not"
        if partly_zero and adjacency == "replace_one":  # a bound only
            continue
        if 2.0**-1022 <= largest_move(contributions, "linf", adjacency) < 2.0**1023:
            yield name, stated(adjacency=adjacency), contributions
        else:  # float64 does not hold it
            with pytest.raises(ValueError, match="value must be"):
                stated(adjacency=adjacency)


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
@pytest.mark.parametrize("statistic", CASES)
def test_sensitivity_is_attained_by_worst_neighbours(statistic, adjacency):
    tried = list(cases(statistic, adjacency))
    assert tried or (statistic, adjacency) == ("mean", "add_remove")
    for name, stated, contributions in tried:
        assert is_attained(stated, contributions), name
        assert stated.shape == np.shape(contributions[0]), name
        if stated.monotone:
            assert all(is_ordered(*pair) for pair in pairs_of(contributions, adjacency)), name
        # power: a value too small or too large by a billionth
        for factor in (1 - 1e-9, 1 + 1e-9):
            assert not is_attained(replace(stated, value=stated.value * factor), contributions)


ADD, REPLACE = {"norm": "l1", "adjacency": "add_remove"}, {"norm": "l1", "adjacency": "replace_one"}


@pytest.mark.parametrize(
    ("stated", "monotone"),
    [
        (of_count(**REPLACE), True),
        (of_count(1, **REPLACE), True),
        (of_count(2, **REPLACE), False),
        (of_count(2, **ADD), True),
        (of_histogram(3, **ADD), True),
        (of_histogram(3, **REPLACE), False),
        (of_quantile_counts(3, **REPLACE), True),
        (of_sum((0, 1), **ADD), True),
        (of_sum((-1, 1), **ADD), False),
    ],
)
def test_sensitivity_is_monotone(stated, monotone):
    assert stated.monotone == monotone


@pytest.mark.parametrize(
    ("call", "message"),
    [
        *(
            (functools.partial(of_sum, bounds, **ADD), r"bounds must be \(low, high\)")
            for bounds in (
                *((1, 0), (0, np.inf), (np.nan, 1), ([0, 0], [1, -1])),
                *(5, (1, 2, 3), ("a", "b"), ([], [])),
            )
        ),
        (
            lambda: of_sum((0, 1), norm="l0", adjacency="add_remove"),
            "norm must be one of 'l1', 'l2', 'linf', got 'l0'",
        ),
        (lambda: of_sum((0, 1), norm="l1", adjacency="neighbours"), "adjacency must be one of"),
        (lambda: of_sum((4, 4), **REPLACE), "value must be a finite number > 0"),
        (lambda: of_mean((0, 1), 0, **REPLACE), "num_examples must be a whole number >= 1"),
        (lambda: of_mean((0, 1), 10, **ADD), r"'replace_one' or 'zero_out' for a mean.*of_sum"),
        (
            lambda: of_mean((np.zeros(9), 100.0), 9, **REPLACE),
            r"those of one record, not of each of 9 records, got \(an array of .* \(9,\), 100\.0\)",
        ),
        (lambda: of_quantile_counts(0, **REPLACE), "num_thresholds must be a whole number >= 1"),
        (lambda: of_histogram(1, **REPLACE), "num_bins must be a whole number >= 2"),
        (
            lambda: of_second_moment(-1.0, num_features=2, adjacency="replace_one"),
            "l2_bound must be a finite number > 0",
        ),
        (
            lambda: of_second_moment(1.0, num_features=0, adjacency="replace_one"),
            "num_features must be a whole number >= 1",
        ),
    ],
)
def test_sensitivity_refuses(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("norm", ["l1", "l2"])
def test_sensitivity_under_zero_out_is_that_of_add_remove(norm):
    box = ([-2.0, 1.0], [3.0, 1.5])
    statistics = [
        functools.partial(of_sum, box, norm=norm),
        functools.partial(of_count, norm=norm),
        functools.partial(of_count, 3, norm=norm),
        functools.partial(of_histogram, 4, norm=norm),
        functools.partial(of_quantile_counts, 5, norm=norm),
        functools.partial(of_second_moment, 2.0, num_features=2),
        functools.partial(of_second_moment_in_box, box),
    ]
    for statistic in statistics:
        removed, zeroed = statistic(adjacency="add_remove"), statistic(adjacency="zero_out")
        assert (zeroed.value, zeroed.monotone) == (removed.value, removed.monotone)
        assert zeroed.adjacency == "zero_out"
        assert zeroed.clip_bound == zeroed.value
    mean = of_mean(box, 10, norm=norm, adjacency="zero_out")
    assert mean.value == of_sum(box, norm=norm, adjacency="add_remove").value / 10
