"""The joint sensitivity of (sum of x, sum of x^2): never exceeded, and attained."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpjax.bayes.conjugate import of_first_two_moments

ORDERS = {"l1": 1, "l2": 2}
NORMS = st.sampled_from(sorted(ORDERS))
ADJACENCIES = st.sampled_from(["add_remove", "replace_one"])
# Wide boxes, narrow ones, and ones around the kinks at plus and minus a half.
ENDS = st.tuples(
    st.one_of(st.floats(-50, 50), st.floats(-2, 2)), st.one_of(st.floats(0.01, 60), st.just(1.0))
)


def distances(one, other, norm):
    """Between the moments of one record and those of another, or of none."""
    gaps = np.stack([one - other, one**2 - other**2], axis=-1)
    return np.linalg.norm(gaps, ORDERS[norm], axis=-1)


def everywhere(low, high):
    return np.linspace(low, high, 801)


@given(ends=ENDS, norm=NORMS, adjacency=ADJACENCIES)
def test_no_neighbours_exceed_it_and_some_reach_it(ends, norm, adjacency):
    low, high = ends[0], ends[0] + ends[1]
    stated = of_first_two_moments((low, high), norm=norm, adjacency=adjacency).value
    one = everywhere(low, high)
    other = one[:, None] if adjacency == "replace_one" else np.zeros(1)
    moved = distances(one, other, norm).max()
    assert moved <= stated * (1 + 1e-9)
    assert moved >= 0.99 * stated


@pytest.mark.parametrize(
    ("bounds", "norm", "value"),
    [
        ((0, 100), "l1", 10_100.0),
        ((-1, 1), "l1", 2.25),
        ((-1, 1), "l2", 2.0),
        ((-3, 3), "l1", 12.25),
        ((40, 41), "l2", np.hypot(1, 81)),
        ((1e15, 1e15 + 1), "l1", 2e15 + 2),  # where the difference of the squares cancels
    ],
)
def test_replacements_by_hand(bounds, norm, value):
    stated = of_first_two_moments(bounds, norm=norm, adjacency="replace_one")
    assert stated.value == pytest.approx(value, rel=1e-12)
    assert (stated.norm, stated.adjacency) == (norm, "replace_one")


def test_twice_the_addition_would_be_too_much_and_the_corners_alone_too_little():
    stated = of_first_two_moments((-3, 3), norm="l1", adjacency="replace_one").value
    added = of_first_two_moments((-3, 3), norm="l1", adjacency="add_remove").value
    assert distances(np.array(3.0), np.array(-3.0), "l1") < stated < 2 * added


@pytest.mark.parametrize(
    ("bounds", "norm", "text"),
    [
        ((1, 0), "l1", "bounds must be"),
        ((0, np.inf), "l1", "bounds must be"),
        (([0, 0], [1, 1]), "l1", "two numbers"),
        ((0, 1), "linf", "norm must be one of 'l1', 'l2'"),
    ],
)
def test_bad_arguments_are_named(bounds, norm, text):
    with pytest.raises(ValueError, match=text):
        of_first_two_moments(bounds, norm=norm, adjacency="add_remove")
