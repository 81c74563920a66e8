"""Certificates: values, texts and figure, of the accountants and of the trade-off functions."""

import dataclasses
import json
import math
import subprocess
import sys

import numpy as np
import pytest
from dp_accounting import dp_event
from helpers.accounting_cases import FakeMechanism, Noiseless, Selection
from matplotlib.collections import FillBetweenPolyCollection

import dpjax
from dpjax import accounting
from dpjax.accounting import UnsupportedEventError, epsilon, gdp, risk, tradeoff
from dpjax.accounting.tradeoff import ApproximateDP
from dpjax.certificates import certify
from dpjax.certificates.certificate import compare_to_bounds
from dpjax.certificates.render import round_down, round_up

DELTA = 1e-5


@pytest.fixture(scope="module")
def certificate():
    return FakeMechanism(noise_multiplier=1.0).certificate(DELTA)


@pytest.fixture(scope="module")
def without_replacement():
    mechanism = FakeMechanism(1.0, sampling="fixed_size", adjacency="replace_one")
    return mechanism.certificate(DELTA)


def test_certify_by_privacy_loss_distribution(certificate):
    event = FakeMechanism(1.0).event
    assert certificate.accountant == "pld"
    assert certificate.epsilon == epsilon(event, DELTA, adjacency="add_remove")
    kinds = {estimate.method: estimate.kind for estimate in certificate.estimates}
    assert kinds == {
        "pld": "guarantee",
        "rdp": "bound",
        "moments": "bound",
        "gdp_clt": "approximation",
    }


def test_certify_estimates_are_accountants_epsilons(certificate):
    for estimate in certificate.estimates:
        value = epsilon(
            FakeMechanism(1.0).event, DELTA, adjacency="add_remove", method=estimate.method
        )
        assert estimate.epsilon == value


def test_certify_samples_without_replacement(without_replacement):
    assert without_replacement.accountant == "pld"
    estimates = {one.method: one for one in without_replacement.estimates}
    assert estimates["pld"].epsilon == without_replacement.epsilon < estimates["rdp"].epsilon


def test_certify_by_renyi_bound():
    selection = Selection(4.0).certificate(DELTA)
    assert selection.accountant == "rdp"
    estimates = {one.method: one for one in selection.estimates}
    assert estimates["pld"].kind == "unavailable"
    assert estimates["pld"].epsilon is None
    assert "ZCDpEvent" in estimates["pld"].note
    assert estimates["rdp"].epsilon == selection.epsilon
    text = " ".join(str(selection).split())
    assert "accountant rdp (Rényi DP" in text
    assert selection.epsilon_lower is None
    assert "epsilon, lower bound not available (no distribution of the loss of ZCDpEvent" in text


@pytest.mark.parametrize("fixture", ["certificate", "without_replacement"])
def test_certify_lower_bound_is_close(fixture, request):
    certificate = request.getfixturevalue(fixture)
    assert 0.997 * certificate.epsilon < certificate.epsilon_lower < certificate.epsilon
    assert "not a guarantee" in certificate.epsilon_lower_note


def test_certify_compares_the_approximation(certificate):
    limit = certificate.estimates[-1]
    bounds = f"[{round_down(certificate.epsilon_lower)}, {round_up(certificate.epsilon)}]"
    share = 1 - limit.epsilon / certificate.epsilon_lower
    assert limit.note.endswith(f"not a guarantee; below the bounds {bounds} by {share:.2%}")
    loose = FakeMechanism(0.5, 2_000).certificate(DELTA)
    share = loose.estimates[-1].epsilon / loose.epsilon - 1
    assert loose.estimates[-1].note.endswith(f"by {share:.2%}")
    assert "; above the bounds [" in loose.estimates[-1].note
    exact = FakeMechanism(5.0, sampling="none").certificate(DELTA).estimates[-1]
    assert exact.epsilon == pytest.approx(gdp.epsilon(2.0, DELTA))
    assert "; within the bounds [" in exact.note


def test_certificate_risks_are_those_of_its_curves(certificate):
    found = {one.name: one for one in certificate.risks}
    assert list(found) == [
        "advantage",
        "accuracy at prior 0.5",
        "accuracy at prior 0.1",
        "TPR at FPR 0.01",
        "TPR at FPR 0.001",
        "TPR at FPR 1e-05",
        "sum of errors",
    ]
    for name, metric in (
        ("advantage", risk.advantage),
        ("accuracy at prior 0.1", lambda curve: risk.bayes_accuracy(curve, 0.1)),
        ("TPR at FPR 1e-05", lambda curve: risk.true_positive_rate(curve, 1e-5)),
    ):
        assert found[name].upper == metric(certificate.curve)
        assert found[name].lower == metric(certificate.curve_upper)
    for one in certificate.risks:
        assert one.lower <= one.upper <= 1.01 * one.lower
    assert found["sum of errors"].lower == 1 - found["advantage"].upper
    assert certificate.curve.epsilon(DELTA) == pytest.approx(certificate.epsilon, rel=2e-3)


def test_certificate_curves_of_a_gaussian():
    certificate = FakeMechanism(5.0, sampling="none").certificate(DELTA)
    assert certificate.curve == certificate.curve_upper
    assert certificate.curve.mu == pytest.approx(2.0)


def test_certificate_without_upper_curve():
    selection = Selection(4.0).certificate(DELTA)
    assert selection.curve_upper is None
    assert "the other bounds are not computed: no privacy loss" in selection.risks_note
    assert all(one.lower is None for one in selection.risks[:-1])
    assert selection.risks[-1].upper is None
    assert selection.risks[-1].lower == 1 - selection.risks[0].upper
    assert "not computed" in " ".join(str(selection).split())
    # A looser account is a weaker guarantee, never a stronger one.
    once = tradeoff.Gaussian(FakeMechanism(4.0).noise_multiplier ** -1)
    assert selection.risks[0].upper > risk.advantage(once)


def test_certificate_of_a_seeded_run(certificate):
    run = certificate.guarantee.of_run(seeded=True, num_steps=100)
    changed = dataclasses.replace(certificate, guarantee=run)
    assert changed.risks == certificate.risks
    assert changed.caveats[:-1] == certificate.caveats
    assert changed.paragraph().endswith(changed.caveats[-1])
    assert "protects nobody" in changed.caveats[-1]
    stated = " ".join(str(changed).split())
    assert "run 100 steps; its key was derived from a seed" in stated
    assert "run 100 steps" not in " ".join(str(certificate).split())
    assert (changed.to_dict()["num_steps_run"], changed.to_dict()["seeded"]) == (100, True)


@pytest.mark.slow
@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one", "add_remove"])
def test_certificate_says_where_delta_is_not_below_one_over_n(adjacency):
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(100, 0.1),
        l2_clip=1.0,
        noise_multiplier=1.0,
        num_steps=10,
        adjacency=adjacency,
    )
    for delta, is_said in ((0.5, True), (0.01, True), (0.0099, False)):
        said = [c for c in mechanism.certificate(delta).caveats if "not below one over" in c]
        assert len(said) == is_said
    assert "delta = 0.5 is not below one over the number of records, 100" in str(
        mechanism.certificate(0.5)
    )


def test_certificate_keeps_a_private_n_out_of_the_caveat_on_delta():
    sampling = dpjax.PoissonSampling(103, 0.1, expected_batch_size=10.0)
    mechanism = dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=1.0, num_steps=10, adjacency="add_remove"
    )
    assert mechanism.guarantee.num_examples is None
    assert "103" not in str(mechanism.certificate(0.5))
    known = dataclasses.replace(mechanism, adjacency="zero_out")
    assert known.guarantee.num_examples == 103

    # Of a composition where all that is known of n agrees.
    both = dpjax.mechanisms.Composition((known, known))
    assert both.guarantee.num_examples == 103


def test_str_names_everything(certificate):
    text = " ".join(str(certificate).split())
    for part in (
        "pld (privacy loss distribution",
        "add_remove: one record is added or removed",
        "one <image>",
        "each batch is drawn by poisson sampling",
        "delta 1e-05",
        "releases 100",
        f"epsilon, lower bound {round_down(certificate.epsilon_lower)} (not a guarantee",
        "approximation: central limit theorem of Gaussian DP",
        "bound: Rényi DP, conversion of Canonne, Kamath & Steinke 2020",
        "conversion of Abadi et al. 2016",
        *certificate.caveats,
    ):
        assert part in text
    assert "replace_one: one record is replaced by any other" in str(
        FakeMechanism(4.0, sampling="none", adjacency="replace_one").certificate(DELTA)
    )


def test_repr_html_is_escaped(certificate):
    page = certificate._repr_html_()
    assert "one &lt;image&gt;" in page
    assert "<image>" not in page
    assert page.count("<tr>") == page.count("</tr>") == 9 + 1 + 4 + 9
    assert "at most " + round_up(certificate.risks[0].upper) in page


@pytest.mark.parametrize("fixture", ["certificate", "without_replacement"])
def test_to_dict_round_trip(fixture, request):
    certificate = request.getfixturevalue(fixture)
    restored = json.loads(json.dumps(certificate.to_dict(), allow_nan=False))
    assert restored == certificate.to_dict()
    assert restored["epsilon"] == certificate.epsilon
    assert restored["epsilon_lower"] == certificate.epsilon_lower
    assert restored["num_releases"] == 100
    assert restored["risks"][0]["upper"] == certificate.risks[0].upper
    assert restored["risks_note"] == certificate.risks_note
    assert [estimate["method"] for estimate in restored["estimates"]] == [
        "pld",
        "rdp",
        "moments",
        "gdp_clt",
    ]


def test_certificate_without_noise():
    certificate = Noiseless(1.0).certificate(DELTA)
    assert certificate.epsilon == certificate.epsilon_lower == math.inf
    assert "(inf, 1e-05)-differential privacy" in str(certificate)
    assert "advantage              at most 1 (lower bound 1, guessing 0)" in str(certificate)
    assert "(inf, 1e-05)-differentially private" in certificate.paragraph()
    assert json.loads(json.dumps(certificate.to_dict(), allow_nan=False))["epsilon"] == "inf"


def test_certify_refuses_without_bound():
    with pytest.raises(UnsupportedEventError, match="no guarantee"):
        FakeMechanism(1.0, sampling="fixed_size").certificate(DELTA)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1.0, math.nan, "small"])
def test_certify_refuses_delta(delta):
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        certify(FakeMechanism(1.0).guarantee, delta)


@pytest.mark.slow
def test_import_of_mechanisms_before_accounting():
    subprocess.run([sys.executable, "-c", "import dpjax.mechanisms.base"], check=True)


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
def test_round_up_and_round_down(value, text):
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
def test_compare_to_bounds(value, lower, text):
    assert compare_to_bounds(value, lower, 2.0) == text


def test_str_rounds_risks_outward(certificate):
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
    other = FakeMechanism(4.0, sampling="none", adjacency="replace_one").certificate(DELTA)
    assert "any attack that decides which of two values one <image> has" in str(other)


def test_paragraph_names_everything(certificate):
    found = certificate.paragraph()
    assert "\n" not in found
    risks = {one.name: one for one in certificate.risks}
    for part in (
        "publishes the results of 100 noisy releases",
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
    found = Selection(4.0).certificate(DELTA).paragraph()
    assert "accountant 'rdp' (Rényi DP" in found
    assert "a lower bound is not available (no distribution of the loss of ZCDpEvent" in found
    assert "An approximation" not in found


def _lines(axes):
    return {line.get_label(): line for line in axes.get_lines()}


@pytest.fixture(scope="module")
def drawn(certificate):
    figure = certificate.plot()
    figure.canvas.draw()
    return figure


def test_plot_trade_off_functions(certificate, drawn):
    lines = _lines(drawn.axes[0])
    x, y = lines["certified trade-off function"].get_data()
    np.testing.assert_array_equal(y, certificate.curve(x))
    x, y = lines["guessing"].get_data()
    np.testing.assert_allclose(x + y, 1.0)
    x, y = lines[f"({round_up(certificate.epsilon)}, 1e-05)-DP only"].get_data()
    np.testing.assert_array_equal(y, ApproximateDP(certificate.epsilon, slack=1e-5)(x))
    (least,) = (line for label, line in lines.items() if label.startswith("minimum sum"))
    assert 2 * least.get_xdata()[0] == pytest.approx(certificate.risks[-1].lower)


def test_plot_roc_curve(certificate, drawn):
    axes = drawn.axes[1]
    lines = _lines(axes)
    x, y = lines["certified upper bound"].get_data()
    np.testing.assert_array_equal(y, certificate.curve.true_positive_rate(x))
    x, y = lines["upper bound on TPR at given FPR"].get_data()
    found = [one.upper for one in certificate.risks if one.name.startswith("TPR")]
    np.testing.assert_array_equal(y, found)
    assert {text.get_text() for text in axes.texts} == {round_up(rate) for rate in found}
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_plot_people_counts_right_guesses(certificate):
    for axes, guessing, bound in zip(
        certificate.plot_people().axes,
        (50, 10),
        (
            risk.bayes_accuracy(certificate.curve, 0.5),
            risk.success_probability(certificate.curve, 0.1),
        ),
        strict=True,
    ):
        without, gained, wrong = (len(one.get_offsets()) for one in axes.collections)
        assert without == guessing
        assert 0 <= (without + gained) - 100 * bound < 1  # rounded up, never down
        assert without + gained + wrong == 100
        assert f"{without} without, at most {without + gained} with" in axes.get_xlabel()


def test_plot_shades_between_bounds(drawn):
    for axes in drawn.axes:
        assert sum(isinstance(one, FillBetweenPolyCollection) for one in axes.collections) == 1


@pytest.mark.slow
def test_plot_without_upper_curve_or_privacy():
    loose = Selection(4.0).certificate(DELTA).plot()
    loose.canvas.draw()
    assert not any(axes.collections for axes in loose.axes)
    noiseless = Noiseless(1.0).certificate(DELTA).plot()
    noiseless.canvas.draw()
    assert not any("only" in label for label in _lines(noiseless.axes[0]))
    assert np.all(_lines(noiseless.axes[0])["certified trade-off function"].get_ydata() == 0)


# The fields of the registry's records of September 2026, by section.
REGISTRY = {
    "basic": "name data_curators intended_use data_product_type data_product_region description"
    " publication_date data_product_sector",
    "dp_variant": "variant_name data_domain unprotected_quantities",
    "privacy_loss": "privacy_unit privacy_unit_details privacy_parameters"
    " privacy_parameters_details",
    "deployment_model": "model_name model_name_details actors release_type release_type_details"
    " data_source_type access_type access_type_details",
    "accounting": "post_processing composition",
    "implementation": "preprocessing_and_hyperparameter_tuning mechanisms justification",
    "administrative": "sources registry_authors",
}


def test_to_registry_has_the_fields_of_the_registry(certificate):
    record = certificate.to_registry(name="Counts", curators=["An office", "A bureau"])
    assert {key: set(values) for key, values in record["deployment"].items()} == {
        key: set(fields.split()) for key, fields in REGISTRY.items()
    }
    assert set(record) == {"status", "tier", "url_slug", "deployment"}
    assert record["status"] == "Draft"
    curators = [one["data_curator_name"] for one in record["deployment"]["basic"]["data_curators"]]
    assert curators == ["An office", "A bureau"]
    loss = record["deployment"]["privacy_loss"]
    assert loss["privacy_parameters"] == {"epsilon": certificate.epsilon, "delta": DELTA}
    assert "one record is added or removed" in loss["privacy_unit_details"]
    assert round_up(certificate.gaussian.mu) in loss["privacy_parameters_details"]
    json.dumps(record, allow_nan=False)


def test_to_registry_says_what_is_public_and_how_settings_were_chosen(certificate):
    implementation = certificate.to_registry(name="A", curators=["B"])["deployment"]
    assert implementation["implementation"]["preprocessing_and_hyperparameter_tuning"] == (
        "TO BE FILLED IN"
    )
    sampling = dpjax.PoissonSampling(1_000, 0.1)
    mechanism = dpjax.SubsampledGaussian(
        sampling,
        l2_clip=1.0,
        noise_multiplier=2.0,
        num_steps=10,
        adjacency="add_remove",
        tuning="on public records",
    )
    record = mechanism.certificate(DELTA).to_registry(name="A", curators=["B"])["deployment"]
    tuning = record["implementation"]["preprocessing_and_hyperparameter_tuning"]
    assert tuning == "Settings: on public records."
    assert record["dp_variant"]["unprotected_quantities"].startswith("The number of records")


@pytest.mark.parametrize(
    ("name", "curators", "message"),
    [
        ("", ["An office"], r"name must be a string, not empty, got ''"),
        ("Counts", [], r"curators must be one name or more, in a list, got \[\]"),
        ("Counts", "An office", r"curators must be one name or more, in a list, got 'An office'"),
    ],
)
def test_to_registry_refuses(certificate, name, curators, message):
    with pytest.raises(ValueError, match=message):
        certificate.to_registry(name=name, curators=curators)


@pytest.mark.parametrize(
    ("curve", "mu", "regret"),
    [
        # Closed forms: 2 Phi^-1(1 - e^(-1 / 2b) / 2) and -2 Phi^-1(1 / (e^epsilon + 1)).
        (tradeoff.Laplace(1.0), 1.030064, 0.037),
        (tradeoff.Laplace(1.25), 0.851418, 0.0347),
        (tradeoff.Laplace(2.0), 0.561764, 0.0272),
        (ApproximateDP(1.0, slack=0.0), 1.232035, 0.0575),
        (ApproximateDP(2.0, slack=0.0), 2.357961, 0.0563),
        (tradeoff.Gaussian(0.02), 0.02, 0.0),
        (tradeoff.Gaussian(1.5), 1.5, 0.0),
        (tradeoff.Gaussian(6.0), 6.0, 0.0),
    ],
)
def test_the_mu_of_a_curve_is_a_close_bound(curve, mu, regret):
    summary = gdp.summarize(curve)
    assert -1e-6 <= summary.mu - mu <= 5e-5
    assert summary.regret == pytest.approx(regret, abs=1e-4)


def test_the_curve_of_mu_is_below_and_of_a_smaller_mu_is_not(certificate):
    alphas = np.geomspace(gdp.LEAST_ERROR, 0.5, 3_000)
    mu = certificate.gaussian.mu
    assert np.all(tradeoff.Gaussian(mu)(alphas) <= certificate.curve(alphas) + 1e-15)
    below = tradeoff.Gaussian(mu - 1e-3)(alphas) <= certificate.curve(alphas)
    assert not np.all(below)  # power


def test_mu_and_regret_of_a_published_example():
    """gdpnum's for noise multiplier 9.4, rate 0.328, 2,000 steps; there to errors of 1e-10."""
    step = dp_event.PoissonSampledDpEvent(0.328, dp_event.GaussianDpEvent(9.4))
    event = dp_event.SelfComposedDpEvent(step, 2_000)
    curve = accounting.tradeoff_curve(event, adjacency="add_remove")
    assert gdp.summarize(curve, least_error=1e-10).mu == pytest.approx(1.5685622, abs=1e-4)
    assert gdp.summarize(curve, least_error=1e-10).regret == pytest.approx(0.0010208, abs=1e-5)


def test_mu_where_a_record_is_seen():
    """A record is seen with probability 0.01: of the least error, Phi^-1 of 1 - 1e-7 and 0.99."""
    assert gdp.summarize(ApproximateDP(1.0, slack=0.01)).mu == pytest.approx(2.8730, abs=1e-4)
    revealed = FakeMechanism(0.0).certificate(DELTA)
    assert revealed.gaussian == (math.inf, 1.0)
    assert revealed.to_dict()["mu"] == "inf"


@pytest.mark.parametrize("least_error", [0.0, 0.5, -1.0, math.nan])
def test_summarize_refuses(least_error):
    with pytest.raises(ValueError, match=r"least_error must be (a number )?in \(0, "):
        gdp.summarize(tradeoff.Gaussian(1.0), least_error=least_error)


@pytest.mark.parametrize(
    ("kind", "norm", "scale", "least"),
    [
        (dpjax.DiscreteLaplace, "l1", 1e-3, 1000.0),
        (dpjax.NoisyMax, "linf", 1e-3, 2000.0),
        (dpjax.ExponentialMechanism, "linf", 1e-3, 2000.0),
        (dpjax.DiscreteGaussian, "l2", 0.1, 50.0),
    ],
)
def test_a_loss_next_to_constant_has_a_certificate(kind, norm, scale, least):
    """With hardly any noise every release has the largest loss: its deviation is zero in floats."""
    shape = (3,) if norm == "linf" else ()
    mechanism = kind(dpjax.Sensitivity(1.0, norm, "add_remove", shape=shape), scale)
    found = mechanism.certificate(DELTA)
    assert found.epsilon == pytest.approx(least, rel=2e-3)
    assert found.gaussian.mu == math.inf
    assert str(found).startswith(f"({round_up(found.epsilon)}, ")
