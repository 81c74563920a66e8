"""DP-SGD from batch size, epochs and a privacy target."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest

import dpjax
from dpjax.mechanisms import Epochs

PLAN = {"num_examples": 60_000, "batch_size": 256, "epochs": 1.5}
USUAL = {**PLAN, "noise_multiplier": 1.1, "adjacency": "zero_out"}


def described(**changes) -> dpjax.SubsampledGaussian:
    return dpjax.dpsgd(**{**USUAL, **changes})


def test_dpsgd_is_the_mechanism_of_its_rate_and_steps():
    by_hand = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(60_000, 256 / 60_000, expected_batch_size=256.0),
        l2_clip=1.0,
        noise_multiplier=1.1,
        num_steps=352,
        adjacency="zero_out",
    )
    made = described()
    assert dataclasses.replace(made, epochs=None) == by_hand
    assert made.event == by_hand.event
    layers = described(l2_clip={"a": 3.0, "b": 4.0}, unit="one image", noise_multiplier=2.0)
    assert (layers.sensitivity, layers.unit, layers.noise_multiplier) == (5.0, "one image", 2.0)


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove"])
def test_dpsgd_of_a_number_of_steps(adjacency):
    target = {"noise_multiplier": None, "epsilon": 2.0, "delta": 1e-6, "adjacency": adjacency}
    of_steps = described(epochs=None, num_steps=352.0, **target)
    assert type(of_steps.num_steps) is int
    of_epochs = described(**target)
    assert of_steps == dataclasses.replace(of_epochs, epochs=None)

    # The same guarantee, which does not say that the steps were computed from the records.
    found = of_steps.certificate(1e-6)
    assert found.epsilon == of_epochs.certificate(1e-6).epsilon <= 2.0
    assert of_steps.num_releases == 352
    assert "steps" not in of_steps.guarantee.description
    assert "the number of steps" not in of_steps.guarantee.size_constants
    assert "epochs" not in found.paragraph()

    # The rate is: the number of records is public under both adjacencies.
    assert of_steps.guarantee.is_size_public
    assert any("is public" in text for text in found.caveats) == (adjacency == "add_remove")


def test_replaced_steps_of_epochs_are_told_how():
    made = described()
    with pytest.raises(ValueError, match=r"at least num_steps = 500, or None .*, epochs=None\)"):
        dataclasses.replace(made, num_steps=500)
    assert dataclasses.replace(made, num_steps=500, epochs=None).num_steps == 500


def test_dpsgd_of_the_published_setting():
    # MNIST of Abadi et al. (2016), as dp-accounting's and TensorFlow Privacy's examples have it.
    made = described(epochs=60)
    assert made.num_steps == 14_063
    certificate = made.certificate(1e-5)
    assert certificate.epsilon == pytest.approx(2.383, abs=1e-3)
    assert certificate.epsilon_lower == pytest.approx(2.380, abs=1e-3)


@pytest.mark.parametrize("adjacency", ["zero_out", "add_remove", "replace_one"])
def test_dpsgd_meets_its_target(adjacency):
    made = described(noise_multiplier=None, epsilon=2.0, delta=1e-6, adjacency=adjacency)
    assert 1.98 <= made.certificate(1e-6).epsilon <= 2.0
    # Two per cent less noise is above the target.
    assert made.with_privacy_factor(0.98).certificate(1e-6).epsilon > 2.0


def test_dpsgd_truncated_has_the_noise_of_poisson_batches():
    target = {"num_examples": 1000, "batch_size": 50, "noise_multiplier": None}
    target |= {"epsilon": 2.0, "delta": 1e-5}
    truncated, poisson = described(**target, sampler="truncated"), described(**target)
    assert truncated.sampling == dpjax.TruncatedPoissonSampling(
        1000, 0.05, expected_batch_size=50.0
    )
    assert truncated.noise_multiplier == pytest.approx(poisson.noise_multiplier, rel=1e-3)
    assert truncated.guarantee.description["steps"] == poisson.guarantee.description["steps"]


def test_dpsgd_of_random_allocation():
    target = {"num_examples": 1010, "batch_size": 50, "noise_multiplier": None}
    target |= {"epsilon": 2.0, "delta": 1e-5}
    made = described(**target, sampler="allocated")
    assert made.sampling == dpjax.AllocatedSampling(1010, steps_per_epoch=21)
    # One and a half passes of 21 steps.
    assert made.num_steps == 32
    assert 1.98 <= made.certificate(1e-5).epsilon <= 2.0
    # Two passes that were begun.
    assert made.event.count == 2
    assert made.noise_multiplier < described(**target, epochs=2).noise_multiplier
    with pytest.raises(ValueError, match="no theorem bounds random allocation"):
        described(sampler="allocated", adjacency="replace_one")
    with pytest.raises(ValueError, match="sampler must be one of"):
        described(sampler="shuffled")


@pytest.mark.parametrize("epochs", [0.1, 0.3, 0.7, 1.1, 5 / 3, 2 / 3, 1.5, 30.0, 1e-9])
@pytest.mark.parametrize("batch_size", [1, 7, 32, 100, 1000])
def test_epochs_num_steps_is_the_quotient_rounded_up(epochs, batch_size):
    # The fraction that the user meant: the simplest one near the float.
    meant = Fraction(epochs).limit_denominator(10**9) * 1000 / batch_size
    found = Epochs(num_examples=1000, batch_size=batch_size, epochs=epochs).num_steps
    assert found == max(math.ceil(meant), 1)


@pytest.mark.parametrize("batch_size", [256, 256.0, np.int64(256), np.float32(256)])
@pytest.mark.parametrize("num_examples", [60_000, 60_000.0])
def test_epochs_accepts_whole_floats(num_examples, batch_size):
    plan = Epochs(num_examples=num_examples, batch_size=batch_size, epochs=1.5)
    assert plan == Epochs(**PLAN)
    assert [type(size) for size in (plan.num_examples, plan.batch_size)] == [int, int]
    assert described(num_examples=num_examples, batch_size=batch_size) == described()


def test_subsampled_gaussian_accepts_whole_floats_as_num_steps():
    made = dataclasses.replace(described(), num_steps=30 * 60_000 / 6_000, epochs=None)
    assert (made.num_steps, type(made.num_steps)) == (300, int)


def test_certificate_states_batch_size_epochs_and_rounding():
    stated = "60,000 records, 256 of them expected in a batch (1.5 * 60,000 / 256 = 351.5625"
    text = described().guarantee.description["steps"]
    assert text == f"352: 1.5 epochs of {stated} steps, rounded up)"
    assert text in described().certificate(1e-6).paragraph()
    stopped = described().first_steps(100)
    assert stopped.guarantee.description["steps"].startswith("100 of 352: 1.5 epochs of 60,000")
    assert "steps" not in dataclasses.replace(described(), epochs=None).guarantee.description


def test_certificate_under_add_remove_states_that_size_is_public():
    guarantee = described(adjacency="add_remove").guarantee
    assert guarantee.is_size_public
    assert guarantee.size_constants[-2:] == ("the sampling rate", "the number of steps")
    caveats = described(adjacency="add_remove").certificate(1e-6).caveats
    (caveat,) = (text for text in caveats if "is public" in text)
    assert "the sampling rate and the number of steps, so it is public" in caveat
    # The same epsilon as under zero_out, which has no such caveat.
    zero_out = described().certificate(1e-6)
    assert zero_out.epsilon == described(adjacency="add_remove").certificate(1e-6).epsilon
    assert not any("is public" in text for text in zero_out.caveats)


def test_replaced_epochs_must_be_those_of_the_sampler():
    for changes in ({"num_examples": 50_000}, {"batch_size": 128}, {"epochs": 1.0}):
        with pytest.raises(ValueError, match="epochs must be of"):
            dataclasses.replace(described(), epochs=Epochs(**{**PLAN, **changes}))
    with pytest.raises(TypeError, match="epochs must be Epochs, or None, got 2"):
        dataclasses.replace(described(), epochs=2)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epochs": None}, r"steps must be given by exactly one of epochs, num_steps, got \[\]"),
        ({"num_steps": 10}, r"exactly one of epochs, num_steps, got \['epochs', 'num_steps'\]"),
        ({"epochs": None, "num_steps": 0}, "num_steps must be a whole number >= 1, got 0"),
        ({"epochs": None, "num_steps": 1.5}, "num_steps must be a whole number >= 1, got 1.5"),
        (
            {"epochs": None, "num_steps": 5, "batch_size": 60_001},
            "batch_size must be at most num_examples = 60000, got 60001",
        ),
        ({"noise_multiplier": None}, r"exactly one of epsilon, noise_multiplier, got \[\]"),
        ({"epsilon": 1.0, "delta": 1e-6}, r"exactly one of .* got \['epsilon', 'noise_multiplier'"),
        ({"noise_multiplier": None, "epsilon": 1.0}, "delta must be given with epsilon"),
        ({"noise_multiplier": None, "epsilon": 1.0, "delta": 1.0}, r"delta must be in \(0, 1\)"),
        ({"noise_multiplier": None, "epsilon": 0.0, "delta": 1e-6}, "epsilon must be a finite num"),
        ({"delta": 1e-6}, "delta must be left out where noise_multiplier is given, got 1e-06"),
        ({"noise_multiplier": -1.0}, "noise_multiplier must be a finite number >= 0, got -1.0"),
        ({"noise_multiplier": (1.0, 2.0)}, "a tuple of num_steps = 352 numbers"),
        ({"num_examples": 0}, "num_examples must be a whole number >= 1, got 0"),
        ({"num_examples": 60_000.5}, "num_examples must be a whole number >= 1, got 60000.5"),
        ({"batch_size": 0}, "batch_size must be a whole number >= 1, got 0"),
        ({"batch_size": 0.5}, "batch_size must be a whole number >= 1, got 0.5"),
        ({"batch_size": math.nan}, "batch_size must be a whole number >= 1, got nan"),
        ({"batch_size": math.inf}, "batch_size must be a whole number >= 1, got inf"),
        ({"batch_size": True}, "batch_size must be a whole number >= 1, got True"),
        ({"batch_size": "256"}, "batch_size must be a whole number >= 1, got '256'"),
        ({"batch_size": 60_001}, "batch_size must be at most num_examples = 60000, got 60001"),
        ({"epochs": 0}, "epochs must be a finite number > 0, got 0"),
        ({"epochs": math.inf}, "epochs must be a finite number > 0, got inf"),
        ({"l2_clip": 0.0}, "l2_clip must be a finite number > 0, got 0.0"),
        ({"adjacency": "swap"}, "adjacency must be one of 'add_remove', 'replace_one'"),
        ({"unit": ""}, "unit must be a string, not empty"),
    ],
)
def test_dpsgd_refuses(changes, message):
    with pytest.raises(ValueError, match=message):
        described(**changes)
