import json
import math
import subprocess
import sys

import pytest
from accounting_cases import FakeMechanism, Noiseless

from dpjax.accounting import UnsupportedEventError, certify, epsilon, gdp
from dpjax.accounting.certificate import _upward

DELTA = 1e-5


@pytest.fixture(scope="module")
def certificate():
    return FakeMechanism(noise_multiplier=1.0).certificate(DELTA)


@pytest.fixture(scope="module")
def without_replacement():
    mechanism = FakeMechanism(1.0, sampling="fixed_size", adjacency="replace_one")
    return mechanism.certificate(DELTA)


def test_the_guarantee_is_the_privacy_loss_distribution(certificate):
    event = FakeMechanism(1.0).event
    assert certificate.accountant == "pld"
    assert certificate.epsilon == epsilon(event, DELTA, adjacency="add_remove")
    kinds = {reading.accountant: reading.kind for reading in certificate.readings}
    assert kinds == {
        "pld": "guarantee",
        "rdp": "bound",
        "moments": "bound",
        "gdp_clt": "approximation",
    }


def test_every_reading_is_what_its_accountant_says(certificate):
    for reading in certificate.readings:
        value = epsilon(
            FakeMechanism(1.0).event, DELTA, adjacency="add_remove", method=reading.accountant
        )
        assert reading.epsilon == value


def test_without_replacement_the_renyi_bound_is_the_guarantee_and_is_named(without_replacement):
    assert without_replacement.accountant == "rdp"
    readings = {reading.accountant: reading for reading in without_replacement.readings}
    assert readings["pld"].kind == "unavailable"
    assert readings["pld"].epsilon is None
    assert "SampledWithoutReplacementDpEvent" in readings["pld"].note
    assert readings["rdp"].epsilon == without_replacement.epsilon
    assert "accountant                rdp (Rényi divergences" in str(without_replacement)


def test_the_approximation_says_on_which_side_it_lies(certificate):
    limit = certificate.readings[-1]
    assert limit.epsilon < certificate.epsilon
    assert "not a guarantee; below the certified epsilon by " in limit.note
    loose = FakeMechanism(0.5, 2_000).certificate(DELTA).readings[-1]
    assert "above the certified epsilon by " in loose.note
    exact = FakeMechanism(5.0, sampling="none").certificate(DELTA).readings[-1]
    assert exact.epsilon == pytest.approx(gdp.epsilon(2.0, DELTA))
    assert "equal to the certified epsilon" in exact.note


def test_the_text_names_everything(certificate):
    text = str(certificate)
    for part in (
        "pld (privacy loss distribution",
        "add or remove one record",
        "one <image>",
        "each batch is drawn by poisson sampling",
        "delta                     1e-05",
        "releases                  100",
        "lower end of the bracket  not computed",
        "approximation: central limit",
        "bound: Rényi divergences, improved conversion",
        "classical conversion",
        *certificate.caveats,
    ):
        assert part in text
    assert "replace one record" in str(
        FakeMechanism(4.0, sampling="none", adjacency="replace_one").certificate(DELTA)
    )


def test_html_is_escaped(certificate):
    page = certificate._repr_html_()
    assert "one &lt;image&gt;" in page
    assert "<image>" not in page
    assert page.count("<tr>") == page.count("</tr>") == 7 + 1 + 4


@pytest.mark.parametrize("fixture", ["certificate", "without_replacement"])
def test_json_round_trip(fixture, request):
    certificate = request.getfixturevalue(fixture)
    restored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert restored == certificate.to_dict()
    assert restored["epsilon"] == certificate.epsilon
    assert restored["epsilon_lower"] is None
    assert restored["num_releases"] == 100
    assert [reading["accountant"] for reading in restored["readings"]] == [
        "pld",
        "rdp",
        "moments",
        "gdp_clt",
    ]


def test_no_noise_is_infinite_in_words_and_in_json():
    certificate = Noiseless(1.0).certificate(DELTA)
    assert certificate.epsilon == math.inf
    assert "(inf, 1e-05)-differential privacy" in str(certificate)
    assert json.loads(json.dumps(certificate.to_dict(), allow_nan=False))["epsilon"] == "inf"


def test_nothing_is_certified_without_a_bound():
    with pytest.raises(UnsupportedEventError, match="no guarantee"):
        FakeMechanism(1.0, sampling="fixed_size").certificate(DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan, "small"])
def test_bad_deltas_are_refused(delta):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        certify(FakeMechanism(1.0), delta)


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
    assert _upward(value) == text


def test_the_mechanisms_can_be_imported_before_the_accounting():
    subprocess.run([sys.executable, "-c", "import dpjax.mechanisms.base"], check=True)
