"""Files of certificates, verified without dpjax: what is right is verified, a change refused."""

import copy
import importlib.util
import json
import math
import runpy
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from dp_accounting import dp_event
from golden.cases_certificates import mechanisms
from helpers.accounting_cases import FakeMechanism, Selection, poisson

import dpjax
from dpjax import accounting, verify
from dpjax.accounting.accountants import METHODS
from dpjax.accounting.events import event_values
from dpjax.accounting.gdp import LEAST_ERROR
from dpjax.adjacency import ADJACENCIES
from dpjax.guarantee import Tuning

MECHANISMS = mechanisms()
# One of each kind of event, and of what composes them.
QUICK = (
    "poisson sigma=2.0 q=0.1 T=50 delta=1e-05 add_remove",
    "poisson sigma=2.0 q=0.1 T=50 delta=1e-05 replace_one",
    "poisson falling noise add_remove",
    "truncated n=1000 q=0.1 B=100 sigma=1.5 T=20 add_remove",
    "fixed n=1000 B=100 sigma=2.0 T=50 delta=1e-05",
    "shuffled n=1000 B=100 sigma=2.0 T=30",
    "gaussian 1.0 over 4.0 add_remove",
    "laplace 1.0 over 1.0 replace_one",
    "discrete_laplace 2.0 over 2.0 add_remove",
    "discrete_gaussian 1.0 over 2.0 add_remove",
    "discrete_gaussian 30.0 over 40.0 add_remove",
    "randomized_response k=5 p=0.3",
    "composition training_and_count add_remove",
    "wishart epsilon=2.0 add_remove",
)
CASES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in MECHANISMS]


def training(**changes):
    values = {"noise_multiplier": 1.5, "num_steps": 100, "adjacency": "zero_out", **changes}
    sampling = dpjax.PoissonSampling(5_000, 0.02)
    return dpjax.SubsampledGaussian(sampling, l2_clip=1.0, unit="one image", **values)


def content(certificate):
    return json.loads(certificate.to_json())


@cache
def _content():
    return content(training().certificate(1e-5))


@pytest.fixture
def values():
    return copy.deepcopy(_content())


def rehashed(values):
    return {**values, "hash": verify.content_hash(values)}


def with_event(values, change):
    return rehashed({**values, "event": change(copy.deepcopy(values["event"]))})


def test_all_quick_names_exist():
    assert set(QUICK) <= set(MECHANISMS)


@pytest.mark.parametrize("name", CASES)
def test_certificates_of_every_mechanism_are_verified(name):
    make, delta = MECHANISMS[name]
    certificate = make().certificate(delta)
    jsonschema.validate(content(certificate), verify.SCHEMA)
    result = verify.verify(content(certificate))
    assert result == ("verified", (), pytest.approx(certificate.epsilon, rel=2e-3, abs=1e-6))


def test_the_published_schema_is_that_of_the_verification(capsys):
    jsonschema.Draft202012Validator.check_schema(verify.SCHEMA)
    page = Path(__file__).parents[2] / "docs" / "reference" / "certificate.schema.json"
    assert verify.main(["--schema"]) == 0
    assert capsys.readouterr().out == page.read_text("utf-8")


def test_the_schema_enumerates_what_the_library_has():
    fields = verify.SCHEMA["properties"]
    estimate = fields["estimates"]["items"]["properties"]
    assert fields["adjacency"]["enum"] == ["add_remove", "zero_out", "replace_one"]
    assert set(fields["adjacency"]["enum"]) == set(ADJACENCIES)
    assert set(fields["tuning"]["enum"]) == {None, *get_args(Tuning)}
    assert estimate["method"]["enum"] == list(METHODS)
    names = [risk.name for risk in training().certificate(1e-5).risks]
    assert fields["risks"]["items"]["properties"]["name"]["enum"] == names
    assert verify._LEAST_ERROR == LEAST_ERROR


def test_a_delta_that_is_not_below_one_over_the_records_has_its_caveat():
    values = content(training().certificate(1e-3))
    assert verify.verify(values).verdict == "verified"
    changed = rehashed({**values, "caveats": values["caveats"][:-1]})
    assert any('the caveat of "delta" is missing' in one for one in verify.verify(changed).reasons)


def test_the_file_has_all_of_the_dictionary(values):
    assert values.items() >= json.loads(json.dumps(training().certificate(1e-5).to_dict())).items()


# Every change of one field, and words of the sentence that refuses it although the hash is right.
CHANGES = {
    "epsilon smaller": ({"epsilon": 0.9}, "one guarantee, with the accountant and the epsilon"),
    "epsilon of another type": ({"epsilon": "1.2"}, '"epsilon" has a value that is not allowed'),
    "epsilon without bound": ({"epsilon": "inf"}, "one guarantee, with the accountant"),
    "delta larger": ({"delta": 1e-4}, "from the event, the adjacency zero_out and delta 0.0001"),
    "delta smaller": ({"delta": 1e-7}, "from the event, the adjacency zero_out and delta 1e-07"),
    "delta one": ({"delta": 1}, '"delta" is out of range'),
    "accountant": ({"accountant": "rdp"}, "one guarantee, with the accountant"),
    "accountant of no guarantee": ({"accountant": "gdp_clt"}, '"accountant" must be one of'),
    "lower bound": ({"epsilon_lower": 9.0}, '"epsilon_lower" is above "epsilon"'),
    "mu": ({"mu": 0.1}, '"mu" is 0.1, but from the event follows'),
    "adjacency": ({"adjacency": "replace_one"}, "the adjacency replace_one"),
    "unknown adjacency": ({"adjacency": "user"}, '"adjacency" must be one of'),
    "public size": ({"is_size_public": False}, '"is_size_public" must be true'),
    "number of releases": ({"num_releases": 99}, '"num_releases" is 99, but the event has 100'),
    "no release": ({"num_releases": 0}, '"num_releases" is out of range'),
    "steps run": ({"num_steps_run": 101}, '"num_steps_run" is above "num_releases"'),
    "first plan": ({"first_plan": 50}, '"first_plan" must be below "num_steps_run"'),
    "seeded": ({"seeded": True}, 'the caveat of "seeded" is missing'),
    "tuning": (
        {"tuning": "fixed in advance"},
        '"The privacy cost of tuning hyper-parameters" contradicts',
    ),
    "unknown tuning": ({"tuning": "none"}, '"tuning" must be one of'),
    "exact noise": ({"exact_noise": True}, 'the caveat of "exact_noise" is missing'),
    "few records": ({"num_examples": 50_000, "delta": 1e-4}, 'the caveat of "delta" is missing'),
    "caveats": ({"caveats": []}, 'the caveat of "tuning" is missing'),
    "estimates": ({"estimates": []}, "one guarantee, with the accountant"),
    "risks": ({"risks": []}, '"risks" lacks "advantage"'),
    "format": ({"format": "dpjax certificate 0"}, '"format" must be'),
    "unit": ({"unit": 3}, '"unit" must be of type string'),
    "description": ({"description": {"noise": None}}, '"description.noise" must be of type string'),
    "another field": ({"audited": True}, 'has an unknown field, "audited"'),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_field_is_refused(values, name):
    change, words = CHANGES[name]
    changed = {**values, **change}
    result = verify.verify(changed)
    assert result.verdict == "refused"
    assert any("hash" in reason or words in reason for reason in result.reasons)
    again = verify.verify(rehashed(changed))
    assert again.verdict == "refused"
    assert any(words in reason for reason in again.reasons), again.reasons
    assert not any("hash" in reason for reason in again.reasons)


def _estimate(number, **changes):
    def change(values):
        values["estimates"][number] |= changes

    return change


def _without_floating_point(values):
    """Says the opposite of the caveats, in words that hold theirs."""
    values["caveats"] = [f"It is not true that: {caveat}" for caveat in values["caveats"]]


# Changes of several fields that agree with each other, and words of the sentence that refuses them.
FORGED = {
    "a bound by another accountant": (
        _estimate(1, epsilon=0.01),
        'the estimate "rdp" is a bound below "epsilon"',
    ),
    "an approximation as a bound": (
        _estimate(3, kind="bound"),
        'the estimate "gdp_clt" cannot be of the kind "bound"',
    ),
    "a bound as an approximation": (
        _estimate(1, epsilon=0.01, kind="approximation"),
        'the estimate "rdp" cannot be of the kind "approximation"',
    ),
    "caveats denied": (_without_floating_point, 'the caveat of "exact_noise" is missing'),
    "an empty unit": (lambda values: values.update(unit=" \t"), '"unit" must not be empty'),
    "epsilon a little smaller": (
        lambda values: (
            values.update(epsilon=0.996 * values["epsilon"], epsilon_lower=0.1),
            _estimate(0, epsilon=values["epsilon"])(values),
        ),
        '"epsilon" is',
    ),
    "mu a little smaller": (
        lambda values: values.update(mu=0.985 * values["mu"]),
        '"mu" is',
    ),
    "more records drawn than there are": (
        lambda values: values.update(
            event={
                "type": "SampledWithoutReplacement",
                "source_dataset_size": 5_000,
                "sample_size": 6_000,
                "event": {"type": "Gaussian", "noise_multiplier": 1.5},
            }
        ),
        "the event draws 6000 of 5000 records",
    ),
}


@pytest.mark.parametrize("name", FORGED)
def test_changes_that_agree_with_each_other_are_refused(values, name):
    change, words = FORGED[name]
    change(values)
    result = verify.verify(rehashed(values))
    assert result.verdict == "refused"
    assert any(words in reason for reason in result.reasons), result.reasons


@pytest.mark.parametrize("field", verify.SCHEMA["required"])
def test_a_missing_field_is_refused(values, field):
    del values[field]
    result = verify.verify(values)
    assert result.verdict == "refused"
    assert f'the certificate must have the field "{field}"' in result.reasons


@pytest.mark.parametrize(
    "field", ["unit", "description", "versions", "epsilon_lower_note", "risks_note", "num_examples"]
)
def test_what_follows_from_nothing_else_is_held_by_the_hash(values, field):
    other = {"description": {"noise": "none"}, "versions": {}, "num_examples": None}
    result = verify.verify({**values, field: other.get(field, "other")})
    assert result.verdict == "refused"
    assert "the hash is not that of the other fields" in result.reasons[0]


def _noise(event, factor):
    event["event"]["event"]["noise_multiplier"] *= factor
    return event


def _rate(event, factor):
    event["event"]["sampling_probability"] *= factor
    return event


EVENTS = {
    "more noise": lambda event: _noise(event, 1.03),
    "less noise": lambda event: _noise(event, 0.97),
    "half the noise": lambda event: _noise(event, 0.5),
    "a smaller rate": lambda event: _rate(event, 0.97),
    "a larger rate": lambda event: _rate(event, 1.03),
    "fewer steps": lambda event: {**event, "count": 95},
    "more steps": lambda event: {**event, "count": 105},
    "no sampling": lambda event: {**event, "event": event["event"]["event"]},
    "something without noise too": lambda event: {
        "type": "Composed",
        "events": [event, {"type": "NonPrivate"}],
    },
    "another release too": lambda event: {
        "type": "Composed",
        "events": [event, {"type": "Laplace", "noise_multiplier": 5.0}],
    },
    "nothing": lambda event: {"type": "NoOp"},
}


@pytest.mark.parametrize("name", EVENTS)
def test_a_changed_event_is_refused(values, name):
    result = verify.verify(with_event(values, EVENTS[name]))
    assert result.verdict == "refused"
    assert any('"epsilon"' in reason for reason in result.reasons)


def test_epsilon_of_less_noise_is_refused_where_everything_else_follows():
    """The certificate of one mechanism, all of it, with the event of another."""
    one, other = (content(training(noise_multiplier=s).certificate(1e-5)) for s in (1.5, 1.4))
    result = verify.verify(rehashed({**one, "event": other["event"]}))
    assert result.verdict == "refused"
    assert sum("from the event" in reason for reason in result.reasons) >= 5


def test_every_risk_follows_from_the_event(values):
    for number, risk in enumerate(values["risks"]):
        changed = copy.deepcopy(values)
        bound = "lower" if risk["name"] == "sum of errors" else "upper"
        other = "upper" if bound == "lower" else "lower"
        changed["risks"][number][other] = None
        changed["risks"][number][bound] = risk[bound] * 0.9
        result = verify.verify(rehashed(changed))
        assert [risk["name"] in reason for reason in result.reasons] == [True]


@pytest.mark.parametrize(
    ("event", "sentence"),
    [
        ({"type": "Gauss"}, '"event" has a value that is not allowed, {"type": "Gauss"}'),
        ({"type": "Gaussian"}, '"event" must have the field "noise_multiplier"'),
        (
            {"type": "Gaussian", "noise_multiplier": -1.0},
            '"event.noise_multiplier" has a value that is not allowed, -1.0',
        ),
        (
            {"type": "SelfComposed", "count": 2, "event": {"type": "Gaussian", "sigma": 1.0}},
            '"event.event" must have the field "noise_multiplier"',
        ),
        (
            {"type": "Composed", "events": [{"type": "NoOp", "x": 1}]},
            '"event.events[0]" has an unknown field, "x"',
        ),
        (
            {"type": "PoissonSampled", "sampling_probability": 1.5, "event": {"type": "NoOp"}},
            '"event.sampling_probability" is out of range, got 1.5',
        ),
    ],
)
def test_the_form_of_events(values, event, sentence):
    result = verify.verify(rehashed({**values, "event": event}))
    assert result.verdict == "refused"
    assert sentence in result.reasons
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**values, "event": event}, verify.SCHEMA)


@pytest.mark.parametrize("value", [None, [], "certificate", 3, {}])
def test_what_is_no_certificate_is_refused(value):
    assert verify.verify(value).verdict == "refused"


def test_runs_state_their_key_and_their_plan():
    guarantee = training().guarantee.of_run(seeded=True, num_steps=100, first_plan=60)
    values = content(dpjax.certificates.certify(guarantee, 1e-5))
    assert (values["seeded"], values["num_steps_run"], values["first_plan"]) == (True, 100, 60)
    assert verify.verify(values).verdict == "verified"
    hidden = rehashed({**values, "seeded": False})
    assert (
        '"This run protects nobody: its key was derived" contradicts'
        in verify.verify(hidden).reasons[0]
    )


@pytest.mark.parametrize("tuning", ["on simulated records", "on the private records, not counted"])
def test_the_tuning_is_stated(tuning):
    values = content(training(tuning=tuning).certificate(1e-5))
    assert verify.verify(values).verdict == "verified"
    changed = rehashed({**values, "tuning": None})
    assert any('"tuning" is missing' in reason for reason in verify.verify(changed).reasons)


def test_records_that_are_public_through_a_constant():
    values = content(training(adjacency="add_remove").certificate(1e-5))
    assert values["size_constants"] == ["sampling_rate"] or values["size_constants"]
    assert verify.verify(values).verdict == "verified"
    changed = rehashed({**values, "size_constants": []})
    reasons = verify.verify(changed).reasons
    assert any('"is_size_public" must be false' in reason for reason in reasons)


@pytest.mark.slow
def test_a_long_schedule_of_noise():
    noises = tuple(1.0 + 2.0 * step / 40 for step in range(40))
    certificate = training(noise_multiplier=noises, num_steps=40).certificate(1e-5)
    result = verify.verify(content(certificate))
    assert (result.verdict, result.reasons) == ("verified", ())


def test_without_noise_epsilon_is_infinite():
    certificate = FakeMechanism(0.0).certificate(1e-5)
    values = content(certificate)
    assert (values["epsilon"], verify.verify(values).verdict) == ("inf", "verified")
    claimed = {**values, "epsilon": 1.0, "accountant": "pld"}
    assert verify.verify(rehashed(claimed)).verdict == "refused"


def test_what_has_no_second_account_is_not_decided():
    result = verify.verify(content(Selection(4.0).certificate(1e-5)))
    assert result.verdict == "not decided"
    assert "no privacy loss of the event ZC" in result.reasons[0]


@pytest.mark.parametrize("shape", [0.0, 1.0, math.inf])
def test_repeated_selection_is_computed_anew(shape):
    class Best(FakeMechanism):
        def composed_event(self):
            run = poisson(self.noise_multiplier, 0.01, self.num_steps)
            return dp_event.RepeatAndSelectDpEvent(run, 50, shape)

    values = content(Best(1.0).certificate(1e-5))
    assert verify.verify(values).verdict == "verified"
    assert verify.verify(values).epsilon == pytest.approx(values["epsilon"], rel=2e-3)

    # Power: of fewer runs, or of a lighter tail.
    for change in ({"mean": 25}, {"shape": 0.0 if shape else 1.0}):
        changed = with_event(values, lambda event, change=change: {**event, **change})
        assert verify.verify(changed).verdict == "refused"
    small = with_event(values, lambda event: {**event, "mean": 0.5})
    assert verify.verify(small).verdict == "not decided"


@pytest.mark.parametrize(
    "event",
    [
        dp_event.ComposedDpEvent([dp_event.NoOpDpEvent(), dp_event.NonPrivateDpEvent()]),
        dp_event.RepeatAndSelectDpEvent(dp_event.GaussianDpEvent(2.0), 10, math.inf),
        dp_event.ZCDpEvent(0.1, 0.0),
        dp_event.SelfComposedDpEvent(accounting.ApproximateDpEvent(0.1, delta=1e-7), 10),
        dp_event.TruncatedSubsampledGaussianDpEvent(100, 0.1, 20, 1.0),
    ],
)
def test_all_events_have_a_form(event):
    values = json.loads(json.dumps(event_values(event)).replace("Infinity", '"inf"'))
    assert not list(verify._form_errors(values, verify.SCHEMA["$defs"]["event"], "event"))


def computed(event, adjacency, delta):
    """Epsilon as the verification computes it from an event."""
    values = json.loads(json.dumps(event_values(event)))
    flat = verify._flatten(values, adjacency)
    return verify._Curve(verify._composed_loss(flat, adjacency, 1.0)).epsilon(delta)


def sampled(rate, noise, count=1):
    step = dp_event.PoissonSampledDpEvent(rate, dp_event.GaussianDpEvent(noise))
    return dp_event.SelfComposedDpEvent(step, count)


def truncated(n, rate, most, noise):
    return dp_event.TruncatedSubsampledGaussianDpEvent(n, rate, most, noise)


@pytest.mark.parametrize(
    ("event", "adjacency", "delta"),
    [
        # Rare large losses among common small ones, which a mean variance would lose.
        (
            dp_event.ComposedDpEvent(
                [
                    sampled(0.01, 0.5),
                    *(sampled(0.01, 1e3 * 1.3**power, 10) for power in range(15)),
                    sampled(0.01, 1e60),
                ]
            ),
            "add_remove",
            1e-5,
        ),
        pytest.param(
            dp_event.ComposedDpEvent([sampled(0.01, 20 * 0.97**step) for step in range(90)]),
            "zero_out",
            1e-5,
            marks=pytest.mark.slow,
        ),
        # The worse neighbour has the smaller probability of a cut.
        (truncated(2, 0.99, 1, 1.0), "add_remove", 1e-5),
        (truncated(3, 0.95, 2, 1.0), "add_remove", 1e-5),
        (truncated(1, 0.5, 1, 1.0), "add_remove", 1e-5),
        (truncated(10, 0.9, 5, 1.0), "replace_one", 1e-5),
        (sampled(1e-5, 1.0, 10_000), "replace_one", 1e-6),
        (dp_event.SelfComposedDpEvent(dp_event.GaussianDpEvent(3_162.0), 10**7), "zero_out", 1e-6),
    ],
)
def test_events_made_to_mislead_have_the_epsilon_of_the_library(event, adjacency, delta):
    certified = accounting.epsilon(event, delta, adjacency=adjacency)
    assert computed(event, adjacency, delta) == pytest.approx(certified, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [
        {"delta": 1e-30},
        {"delta": 1e-15},
        {"event": {"type": "Approximate", "epsilon": 0.1, "delta": 1e-3}},
        {"event": {"type": "Wishart", "degrees_of_freedom": 3, "scale_over_square": 50.0}},
        {"event": {"type": "NonPrivate"}},
        {"event": {"type": "DiscreteGaussian", "noise_multiplier": 2000.0, "scale": 1000.0}},
        {"event": {"type": "DiscreteLaplace", "noise_parameter": 0.1, "sensitivity": 2.5}},
        {"event": {"type": "DiscreteLaplace", "noise_parameter": "inf", "sensitivity": 1}},
        {"event": {"type": "DiscreteGaussian", "noise_multiplier": 1.0, "scale": "inf"}},
        {"event": {"type": "RandomizedResponse", "noise_parameter": 0.1, "num_buckets": 0}},
        {"event": {"type": "RandomizedResponse", "noise_parameter": 1.0, "num_buckets": 1}},
        {"event": {"type": "Wishart", "degrees_of_freedom": 0, "scale_over_square": 0.0}},
        {"event": {"type": "Gaussian", "noise_multiplier": 1e300}},
        {"event": {"type": "Gaussian", "noise_multiplier": 1e-10}},
        {"event": {"type": "Laplace", "noise_multiplier": 1e-5}},
        {"event": {"type": "DiscreteLaplace", "noise_parameter": 1e-9, "sensitivity": 10**9}},
        {"num_releases": 10**400},
        {"num_examples": 2**60},
        {"unit": ""},
        {"mu": "inf"},
        {"epsilon_lower": "inf"},
    ],
)
def test_a_forged_file_is_not_verified_and_does_not_end_in_a_traceback(values, change):
    changed = {**values, **change}
    if "event" in change:
        changed["num_releases"] = 1
    assert verify.verify(rehashed(changed)).verdict != "verified"


@pytest.mark.parametrize("count", [10**9, 10**15])
def test_very_many_releases_are_not_computed(values, count):
    changed = with_event(values, lambda event: {**event, "count": count})
    result = verify.verify(rehashed({**changed, "num_releases": count}))
    assert result.verdict == "not decided"
    assert "more than 10,000,000 releases" in result.reasons[0]


@pytest.mark.parametrize("depth", [60, 3_000, 100_000])
def test_events_nested_deep_are_refused(values, depth, tmp_path, capsys):
    inner = json.dumps(values["event"])
    nested = '{"type": "SelfComposed", "count": 1, "event": ' * depth + inner + "}" * depth
    path = tmp_path / "deep.json"
    path.write_text(json.dumps({**values, "event": "here"}).replace('"here"', nested), "utf-8")
    assert verify.main([str(path)]) in (1, 2)
    assert capsys.readouterr().out


def test_a_run_of_more_steps_than_the_event_has_is_refused(values):
    fewer = rehashed({**values, "num_releases": 200, "num_steps_run": 200})
    sentence = '"num_steps_run" is 200, but the event has 100 sampled releases'
    assert sentence in verify.verify(fewer).reasons


def test_an_event_without_noise_has_the_risks_of_none(values):
    estimates = [{**one, "epsilon": "inf", "kind": "bound"} for one in values["estimates"]]
    estimates[0]["kind"] = "guarantee"
    changed = {**values, "event": {"type": "NonPrivate"}, "epsilon": "inf", "estimates": estimates}
    result = verify.verify(rehashed(changed))
    assert result.verdict == "refused"
    assert any("advantage" in reason for reason in result.reasons)
    assert any('"mu"' in reason for reason in result.reasons)


def test_fields_that_are_there_twice_are_refused(values, tmp_path, capsys):
    path = tmp_path / "twice.json"
    path.write_text('{"epsilon": 0.001, ' + json.dumps(values)[1:], "utf-8")
    assert verify.main([str(path)]) == 1
    assert 'the field "epsilon" is there more than once' in capsys.readouterr().out


@pytest.mark.parametrize(
    "change",
    [
        lambda text: text + " {}",
        lambda text: "\ufeff" + text,
        lambda text: text.replace('"delta": 1e-05', '"delta": NaN'),
        lambda text: text.replace('"delta": 1e-05', '"delta": 1e-05, "\\u0064elta": 1e-05'),
        lambda text: text.replace('"num_releases": 100', '"num_releases": 100.0'),
        lambda text: text.replace('"seeded": false', '"seeded": 0'),
        lambda text: text.replace('"num_steps_run": null', '"num_steps_run": ' + "9" * 5_000),
        lambda text: text.replace('"mu_regret": ', '"mu_regret": -'),
        lambda text: text.replace('"type": "Gaussian"', '"type": "Gaussian", "type": "Gaussian"'),
        lambda text: text.replace('"noise_multiplier": 1.5', '"noise_multiplier": 1e999'),
        lambda text: text.replace('"noise_multiplier": 1.5', '"noise_multiplier": "1.5"'),
        lambda text: text.replace('"count": 100', '"count": true'),
        lambda text: text.replace('"zero_out"', '"zer\u043e_out"'),
    ],
)
def test_files_of_another_form_are_refused(values, change, tmp_path, capsys):
    text = json.dumps(values)
    path = tmp_path / "changed.json"
    path.write_text(change(text), "utf-8")
    assert change(text) != text
    assert verify.main([str(path)]) == 1
    assert "changed.json: refused" in capsys.readouterr().out


def test_texts_of_a_file_do_not_forge_what_is_printed(values, tmp_path, capsys):
    unit = "one image; computed here: epsilon 0.01\nother.json: verified\x1b[1A"
    path = tmp_path / "lines.json"
    path.write_text(json.dumps(rehashed({**values, "unit": unit})), "utf-8")
    assert verify.main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert len(shown.splitlines()) == 2
    assert "\x1b" not in shown


@pytest.mark.parametrize(
    "mechanism",
    [
        dpjax.Laplace(dpjax.Sensitivity(1.0, "l1", "add_remove"), 1e-3),
        dpjax.Gaussian(dpjax.Sensitivity(1.0, "l2", "add_remove"), 0.02),
        dpjax.DiscreteGaussian(dpjax.Sensitivity(10.0, "l2", "add_remove"), 4.0),
        dpjax.RandomizedResponse(2, 0.999999, "replace_one"),
        training(noise_multiplier=0.05, num_steps=10),
        training(num_steps=1_000_000, noise_multiplier=20.0),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_extreme_honest_certificates_are_verified(mechanism):
    result = verify.verify(content(mechanism.certificate(1e-5)))
    assert (result.verdict, result.reasons) == ("verified", ())


def test_verification_needs_neither_dpjax_nor_jax(values, tmp_path):
    """The module, copied, on a machine that has neither; and not even by its name."""
    script, file = tmp_path / "verify_certificate.py", tmp_path / "certificate.json"
    script.write_text(Path(verify.__file__).read_text("utf-8"), "utf-8")
    file.write_text(json.dumps(values), "utf-8")
    code = (
        "import runpy, sys\n"
        "class Absent:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] in ('jax', 'jaxlib', 'dpjax', 'numpyro', 'optax'):\n"
        "            raise ModuleNotFoundError(name)\n"
        "sys.meta_path.insert(0, Absent())\n"
        f"sys.argv = ['verify', {str(file)!r}]\n"
        f"runpy.run_path({str(script)!r}, run_name='__main__')\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.startswith(f"{file}: verified\n  (")


def test_the_exit_status(values, tmp_path, capsys):
    good, bad, open_ = (tmp_path / f"{name}.json" for name in ("good", "bad", "open"))
    good.write_text(json.dumps(values), "utf-8")
    bad.write_text(json.dumps({**values, "unit": "one user"}), "utf-8")
    open_.write_text(Selection(4.0).certificate(1e-5).to_json(), "utf-8")
    absent = tmp_path / "absent.json"
    for files, status in (
        ([good], 0),
        ([good, bad], 1),
        ([good, open_], 2),
        ([open_, bad], 1),
        ([absent], 1),
    ):
        assert verify.main([str(file) for file in files]) == status
    shown = capsys.readouterr().out
    assert "absent.json: refused\n  - the file cannot be read: " in shown
    assert "open.json: not decided\n  - epsilon was not computed a second time" in shown
    (tmp_path / "text.json").write_text("no JSON", "utf-8")
    assert verify.main([str(tmp_path / "text.json")]) == 1
    with pytest.raises(SystemExit, match="2"):
        verify.main([])


def test_the_module_runs_by_its_name(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["dpjax.verify", "--schema"])
    with pytest.raises(SystemExit, match="0"):
        runpy.run_path(importlib.util.find_spec("dpjax.verify").origin, run_name="__main__")
    assert json.loads(capsys.readouterr().out) == verify.SCHEMA
