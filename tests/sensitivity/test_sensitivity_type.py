"""The typed statement of a sensitivity."""

import dataclasses
import pickle

import numpy as np
import pytest

from dpjax import mechanisms
from dpjax.sensitivity import EmpiricalSensitivity, Sensitivity

BY_NORM = {
    "l1": (mechanisms.Laplace, mechanisms.DiscreteLaplace),
    "l2": (mechanisms.Gaussian, mechanisms.DiscreteGaussian),
    "linf": (mechanisms.NoisyMax, mechanisms.ExponentialMechanism),
}


def test_clip_bound_by_adjacency():
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
        ((1e-310, "l1", "add_remove"), "value must be at least 2.23e-308, a normal float64"),
        ((1.0, "l1", "add_remove", 1), "monotone must be True or False"),
        ((1.0, "l1", "add_remove", False, 3), "shape must be a tuple of whole numbers >= 0, or"),
        ((1.0, "l1", "add_remove", False, [3]), r"shape must be a tuple .*, got \[3\]"),
        ((1.0, "l1", "add_remove", False, (-1,)), r"shape must be a tuple .*, got \(-1,\)"),
        ((1.0, "l1", "add_remove", False, (2.0,)), "shape must be a tuple of whole numbers"),
        ((1.0, "l1", "add_remove", False, (True,)), "shape must be a tuple of whole numbers"),
        ((1.0, "l1", "add_remove", False, ((2,), 3)), "shape must be a tuple of whole numbers"),
        ((1.0, "l1", "add_remove", False, (((2,),),)), "shape must be a tuple of whole numbers"),
    ],
)
def test_sensitivity_refuses(fields, words):
    with pytest.raises(ValueError, match=words):
        Sensitivity(*fields)


@pytest.mark.parametrize("shape", [(), (3,), (2, 0), ((3,), ()), (np.int64(3),)])
def test_sensitivity_equality_hash_and_pickle(shape):
    """Equal and of equal hash if all fields are; as keys, and after pickling."""
    one = Sensitivity(2.0, "l2", "zero_out", shape=shape)
    same = Sensitivity(np.float64(2), "l2", "zero_out", False, shape)
    assert one == same == pickle.loads(pickle.dumps(one))
    assert hash(one) == hash(same)
    others = [
        dataclasses.replace(one, **{name: value})
        for name, value in {
            "value": 2.5, "norm": "l1", "adjacency": "add_remove", "monotone": True, "shape": (7,)
        }.items()
    ]  # fmt: skip
    assert len({one, same, *others}) == 6
    assert {mechanisms.Gaussian(one, 1.0): 1}[mechanisms.Gaussian(same, 1.0)] == 1


def test_shapes_of_one_array_and_of_trees():
    for shape, shapes in (((), ((),)), ((3,), ((3,),)), (((3,), ()), ((3,), ())), (((),), ((),))):
        assert Sensitivity(1.0, "l1", "add_remove", shape=shape).shapes == shapes


def test_sensitivity_fields_without_default():
    without = {f.name for f in dataclasses.fields(Sensitivity) if f.default is dataclasses.MISSING}
    assert without == {"value", "norm", "adjacency"}


@pytest.mark.parametrize("norm", BY_NORM)
def test_mechanisms_refuse_other_norms(norm):
    for wanted, classes in BY_NORM.items():
        for cls in classes:
            if wanted == norm:
                moves = Sensitivity(2.0, norm, "replace_one", shape=(3,))
                used = cls(moves, 3.0, "one person")
                assert (used.adjacency, used.unit) == ("replace_one", "one person")
                continue
            with pytest.raises(ValueError, match=f"stated in norm '{wanted}'"):
                cls(Sensitivity(2.0, norm, "replace_one"), 3.0)


def test_mechanisms_refuse_empirical_sensitivity():
    assert not issubclass(EmpiricalSensitivity, Sensitivity)
    for norm, classes in BY_NORM.items():
        for cls in classes:
            with pytest.raises(TypeError, match="only a lower bound"):
                cls(EmpiricalSensitivity(2.0, norm, "add_remove"), 3.0)
            with pytest.raises(TypeError, match="must be a Sensitivity"):
                cls(2.0, 3.0)
