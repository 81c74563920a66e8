"""A stated sensitivity meets the events' clip bound: nothing doubled, nothing halved."""

import math

import numpy as np
import pytest
from dp_accounting.dp_event import DiscreteLaplaceDpEvent
from hypothesis import given
from hypothesis import strategies as st

from dpjax.accounting.events import UnsupportedEventError, decompose
from dpjax.mechanisms import Gaussian, Laplace
from dpjax.mechanisms.additive import discrete_laplace_event, pure_dp_event
from dpjax.sensitivity import Sensitivity

ADJACENCIES = st.sampled_from(["add_remove", "replace_one"])
SIZES = st.floats(1e-6, 1e6)


def unit_sensitivity_event(event, adjacency):
    ((atom, _),) = decompose(event, adjacency)
    return atom.unit_sensitivity_event


@given(value=SIZES, scale=SIZES, adjacency=ADJACENCIES)
def test_event_states_noise_over_sensitivity(value, scale, adjacency):
    for mechanism, norm in ((Gaussian, "l2"), (Laplace, "l1")):
        event = mechanism(Sensitivity(value, norm, adjacency), scale).event
        seen = unit_sensitivity_event(event, adjacency).noise_multiplier
        assert seen == pytest.approx(scale / value, rel=1e-14)


@given(value=st.integers(1, 4096), scale=st.floats(0.01, 1e4), adjacency=ADJACENCIES)
def test_event_of_discrete_noise(value, scale, adjacency):
    event = discrete_laplace_event(Sensitivity(value, "l1", adjacency), scale)
    seen = unit_sensitivity_event(event, adjacency)
    assert seen == DiscreteLaplaceDpEvent(1 / scale, value)
    assert type(seen.sensitivity) is int


@given(value=st.integers(4097, 10**12), adjacency=ADJACENCIES)
def test_discrete_laplace_event_of_fine_grid(value, adjacency):
    event = discrete_laplace_event(Sensitivity(value, "l1", adjacency), value / 0.5)
    seen = unit_sensitivity_event(event, adjacency)
    assert 2048 <= seen.sensitivity <= 4096
    assert 0.5 * (1 - 1e-12) <= seen.noise_parameter * seen.sensitivity <= 0.5 * (1 + 5e-4)


def discrete_delta(parameter, sensitivity, epsilon):
    """The delta of discrete Laplace noise moved by ``sensitivity``, summed up."""
    k = np.arange(-int(60 / parameter), int(60 / parameter) + sensitivity)
    here = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(k))
    moved = math.tanh(parameter / 2) * np.exp(-parameter * np.abs(k - sensitivity))
    return np.maximum(here - math.exp(epsilon) * moved, 0).sum()


@pytest.mark.parametrize("step", [2, 3, 5])
def test_discrete_laplace_event_coarsens_conservatively(step):
    fine, coarse = (0.01, 30 * step), (0.01 * step, 30)
    total = 0.3 * step
    for epsilon in np.linspace(0, total, 61 * step):
        exact, claimed = discrete_delta(*fine, epsilon), discrete_delta(*coarse, epsilon)
        assert claimed >= exact - 1e-12
        assert claimed <= exact + 0.01 * step  # a step's loss at most
    # and the same where the coarser one has its losses
    assert discrete_delta(*fine, total * 0.8) == pytest.approx(discrete_delta(*coarse, total * 0.8))


@pytest.mark.parametrize("adjacency", ["add_remove", "replace_one"])
@pytest.mark.parametrize("epsilon", [0.01, 1.0, 5.0])
def test_pure_dp_event_is_binary_randomized_response(epsilon, adjacency):
    seen = unit_sensitivity_event(pure_dp_event(epsilon, adjacency), adjacency)
    assert seen.sensitivity == 1
    assert seen.noise_parameter == pytest.approx(epsilon, rel=1e-15)
    truth = math.exp(epsilon) / (1 + math.exp(epsilon))
    for smaller in (0.0, epsilon / 2):
        exact = truth - math.exp(smaller) * (1 - truth)
        assert discrete_delta(epsilon, 1, smaller) == pytest.approx(exact, rel=1e-9)


def test_decompose_refuses_half_integer_sensitivity():
    event = DiscreteLaplaceDpEvent(1.0, 1.5)
    assert unit_sensitivity_event(event, "replace_one").sensitivity == 3
    with pytest.raises(UnsupportedEventError, match=r"sensitivity of 1.5 is not a whole number"):
        decompose(event, "add_remove")
