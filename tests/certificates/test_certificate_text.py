"""The text of a certificate: its numbers, rounded outward, and its sentences."""

import math

import pytest
from helpers.accounting_cases import FakeMechanism, Noiseless, Selection

from dpjax.certificates.certificate import compare_to_bounds
from dpjax.certificates.render import round_down, round_up


@pytest.fixture(scope="module")
def certificate():
    return FakeMechanism(noise_multiplier=1.0).certificate(1e-5)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (3.0, "3"),
        (0.1, "0.1"),
        (2.38205, "2.383"),
        (2.38200001, "2.383"),
        (0.0033442, "0.003345"),
        (28.0485, "28.05"),
        (123456.0, "1.235e+05"),
        (math.inf, "inf"),
    ],
)
def test_bounds_are_never_printed_too_small(value, text):
    assert round_up(value) == text
    assert float(round_down(value)) <= value <= float(text)


@pytest.mark.parametrize(
    ("value", "lower", "text"),
    [
        (0.9, 1.0, "below the bounds [1, 2] by 10.00%"),
        (3.0, 1.0, "above the bounds [1, 2] by 50.00%"),
        (1.0, 1.0, "within the bounds [1, 2]"),
        (3.0, None, "above the certified epsilon 2 by 50.00%"),
        (0.5, 0.0, "within the bounds [0, 2]"),
    ],
)
def test_approximation_is_compared_to_the_bounds(value, lower, text):
    assert compare_to_bounds(value, lower, 2.0) == text


def test_risks_are_rounded_outward(certificate):
    lines = {line.split("  ")[1]: line for line in str(certificate).splitlines() if "guess" in line}
    assert len(lines) == 7
    for one in certificate.risks:
        upper, lower = round_up(one.upper), round_down(one.lower)
        if one.name == "sum of errors":
            expected = f"at least {lower} (upper bound {upper}, guessing {one.guessing:g})"
        else:
            expected = f"at most {upper} (lower bound {lower}, guessing {one.guessing:g})"
        assert expected in lines[one.name]
    assert "any attack that decides whether one <image> is in the data" in str(certificate)
    other = FakeMechanism(4.0, sampling="none", adjacency="replace_one").certificate(1e-5)
    assert "any attack that decides which of two values one <image> has" in str(other)


def test_paragraph_has_the_numbers(certificate):
    found = certificate.paragraph()
    assert "\n" not in found
    risks = {one.name: one for one in certificate.risks}
    for part in (
        "publishes 100 noisy values",
        "each batch is drawn by poisson sampling",
        "one <image> as the unit of privacy, under adjacency 'add_remove' (one record is added",
        f"({round_up(certificate.epsilon)}, 1e-05)-differentially private",
        "accountant 'pld'",
        "of dpjax ",
        "dp-accounting 0.6",
        f"can certify less than {round_down(certificate.epsilon_lower)}.",
        f"minus false positive rate) of at most {round_up(risks['advantage'].upper)}",
        f"{round_up(risks['TPR at FPR 0.01'].upper)} at a false positive rate of 0.01",
        f"{round_up(risks['TPR at FPR 1e-05'].upper)} at 1e-05",
        f"An approximation of epsilon is {certificate.estimates[-1].epsilon:.4g} (central limit",
        "not a guarantee; below the bounds [",
        "The privacy cost of tuning hyper-parameters on the same data is not included.",
        *certificate.caveats,
    ):
        assert part in found


def test_paragraph_without_a_lower_bound():
    found = Selection(4.0).certificate(1e-5).paragraph()
    assert "accountant 'rdp' (Rényi DP" in found
    assert "a lower bound is not available (the loss of RepeatAndSelect" in found
    assert "An approximation" not in found


def test_no_noise_in_words():
    found = Noiseless(1.0).certificate(1e-5)
    assert "(inf, 1e-05)-differentially private" in found.paragraph()
    assert "advantage              at most 1 (lower bound 1, guessing 0)" in str(found)
