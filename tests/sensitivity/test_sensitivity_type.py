"""The typed statement of a sensitivity."""

import dataclasses

import pytest

from dpjax import mechanisms
from dpjax.sensitivity import EmpiricalSensitivity, Sensitivity

BY_NORM = {
    "l1": (mechanisms.Laplace, mechanisms.DiscreteLaplace),
    "l2": (mechanisms.Gaussian, mechanisms.DiscreteGaussian),
    "linf": (mechanisms.NoisyMax, mechanisms.ExponentialMechanism),
}


def test_the_clip_bound_is_what_the_adjacency_makes_the_sensitivity_of():
    assert Sensitivity(3.0, "l1", "add_remove").clip_bound == 3.0
    assert Sensitivity(3.0, "l1", "replace_one").clip_bound == 1.5


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ((0.0, "l1", "add_remove"), "value must be a finite number > 0, got 0.0"),
        ((-1.0, "l1", "add_remove"), "value must be a finite number > 0, got -1.0"),
        ((float("nan"), "l1", "add_remove"), "value must be a finite number > 0"),
        ((float("inf"), "l1", "add_remove"), "value must be a finite number > 0"),
        ((1.0, "l3", "add_remove"), "norm must be one of 'l1', 'l2', 'linf', got 'l3'"),
        ((1.0, "l1", "swap"), "adjacency must be one of 'add_remove', 'replace_one'"),
        ((1.0, "l1", "add_remove", 1), "monotone must be True or False"),
    ],
)
def test_what_states_no_sensitivity_is_refused(fields, words):
    with pytest.raises(ValueError, match=words):
        Sensitivity(*fields)


def test_adjacency_and_norm_have_no_default():
    without = {f.name for f in dataclasses.fields(Sensitivity) if f.default is dataclasses.MISSING}
    assert without == {"value", "norm", "adjacency"}


@pytest.mark.parametrize("norm", BY_NORM)
def test_every_mechanism_takes_its_own_norm_and_nothing_else(norm):
    for wanted, classes in BY_NORM.items():
        for cls in classes:
            if wanted == norm:
                moves = Sensitivity(2.0, norm, "replace_one", shape=(3,))
                used = cls(moves, 3.0, "one person")
                assert (used.adjacency, used.unit) == ("replace_one", "one person")
                continue
            with pytest.raises(ValueError, match=f"stated in norm '{wanted}'"):
                cls(Sensitivity(2.0, norm, "replace_one"), 3.0)


def test_no_mechanism_takes_an_empirical_sensitivity():
    assert not issubclass(EmpiricalSensitivity, Sensitivity)
    for norm, classes in BY_NORM.items():
        for cls in classes:
            with pytest.raises(TypeError, match="only a lower bound"):
                cls(EmpiricalSensitivity(2.0, norm, "add_remove"), 3.0)
            with pytest.raises(TypeError, match="must be a Sensitivity"):
                cls(2.0, 3.0)
