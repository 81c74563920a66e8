"""Private tuning: the result is that of single runs, the guarantee counts all, resumption."""

import dataclasses
import json
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting.dp_event import ComposedDpEvent, RepeatAndSelectDpEvent

import dpjax
from dpjax import sensitivity, verify
from dpjax.sampling import PoissonRepetitions, Repetitions, TruncatedNegativeBinomial
from dpjax.training.step import private_step
from dpjax.tuning import Study, _tune

RUN = dpjax.SubsampledGaussian(
    dpjax.PoissonSampling(64, 0.25, expected_batch_size=16.0),
    l2_clip=1.0,
    noise_multiplier=2.0,
    num_steps=6,
    adjacency="zero_out",
)
MECHANISM = dpjax.RepeatedSelection(RUN, repetitions=TruncatedNegativeBinomial(6.0, shape=1.0))
RECORDS = jnp.ones((64, 2))
RATES = {"rate": [0.01, 0.1, 0.3]}


@dataclasses.dataclass(frozen=True)
class Exactly(TruncatedNegativeBinomial):
    """A fixed number of candidates, for tests of what they are."""

    number: int = 5

    def quantile(self, level):
        return self.number


def loss(params, example):
    return jnp.sum((params - example) ** 2)


def optimizer(settings):
    return optax.sgd(settings["rate"])


def closeness(params):
    return -jnp.sum((params - 1) ** 2)


def tuned(key=0, mechanism=MECHANISM, candidates=RATES, **options):
    options = {"score": closeness, "optimizer": optimizer, "params": jnp.zeros(2)} | options
    key = jax.random.key(key) if isinstance(key, int) else key
    return dpjax.tune(key, loss, options.pop("params"), RECORDS, options.pop("optimizer"),
                      candidates=candidates, mechanism=mechanism, **options)  # fmt: skip


def exactly(number, **changes):
    return dataclasses.replace(MECHANISM, repetitions=Exactly(6.0, number=number), **changes)


def seen_candidates(**options):
    """Parameters of all candidates, in order, through a score that keeps them: a private value."""
    seen = []

    def score(params):
        seen.append(np.asarray(params))
        return float(closeness(params))

    study = tuned(score=score, **options)
    return study, np.array(seen[1:])  # the first are the untrained ones


def test_the_best_candidate_is_returned():
    study, seen = seen_candidates(mechanism=exactly(7), key=3)
    scores = [float(closeness(each)) for each in seen]
    assert len(seen) == 7
    assert np.array_equal(study.params, seen[int(np.argmax(scores))])
    assert study.best_value == max(scores)
    assert study.best_params["rate"] in RATES["rate"]
    assert len(np.unique(seen, axis=0)) == 7


def test_candidates_are_runs_of_train():
    """Each candidate is a private run with a key of its own: the same steps, one at a time."""
    _, seen = seen_candidates(mechanism=exactly(3), candidates={"rate": [0.1]})
    key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), _tune._TRAINING), 0)
    others = np.roll(seen, 1, axis=0)
    for own_key, params, other in zip(jax.random.split(key, 3), seen, others, strict=True):
        step = private_step(loss, optax.sgd(jnp.float32(0.1)), mechanism=RUN, key=own_key)
        state = step.init(jnp.zeros(2))
        for _ in range(RUN.num_steps):
            state, _ = jax.jit(step.update)(state, RECORDS)
        assert np.allclose(params, state.params, rtol=1e-5, atol=1e-6)
        # Power: those of another key differ.
        assert not np.allclose(other, state.params, rtol=1e-3)


def test_noise_is_that_of_the_mechanism():
    """Variance of 400 candidates' noise, false alarms below 1e-6; power: half of it is refused."""
    mechanism = exactly(400, run=dataclasses.replace(RUN, num_steps=1))
    _, seen = seen_candidates(
        mechanism=mechanism, params=jnp.ones(2), candidates={"rate": [1.0]},
        candidates_per_program=200,
    )  # fmt: skip
    # At params = 1 all gradients are zero: one step is noise of 2 over 16.
    variance = np.mean((seen - 1) ** 2) / (2.0 / 16.0) ** 2
    width = 4.9 * math.sqrt(2 / seen.size)
    assert abs(variance - 1) < width
    assert abs(variance / 4 - 1) > width
    assert abs(np.corrcoef(seen.T)[0, 1]) < 4.9 / math.sqrt(400)
    assert abs(np.corrcoef(seen[:200, 0], seen[200:, 0])[0, 1]) < 4.9 / math.sqrt(200)


@pytest.mark.slow
def test_the_result_does_not_depend_on_programs_where_candidates_have_keys_of_their_own():
    first, seen = seen_candidates(mechanism=exactly(5), candidates_per_program=5)
    again, seen_again = seen_candidates(mechanism=exactly(5), candidates_per_program=5)
    assert np.array_equal(seen, seen_again)
    assert first.best_params == again.best_params
    _, parts = seen_candidates(mechanism=exactly(5), candidates_per_program=2)
    assert len(parts) == 5
    assert len(np.unique(parts, axis=0)) == 5


def test_the_guarantee_counts_the_search():
    study = tuned()
    guarantee = study.guarantee
    assert guarantee.event == RepeatAndSelectDpEvent(RUN.event, 6.0, 1.0)
    assert (guarantee.tuning, guarantee.seeded, guarantee.num_releases) == ("counted", True, 1)
    certificate = study.certificate(1e-3)
    assert certificate.epsilon > RUN.certificate(1e-3).epsilon
    assert certificate.epsilon_lower > RUN.certificate(1e-3).epsilon
    assert not any("tuning" in caveat for caveat in certificate.caveats)
    assert any("seed" in caveat for caveat in certificate.caveats)
    text = " ".join(str(certificate).split())
    assert "tuning counted" in text
    assert "geometric, of mean 6" in text
    assert "norms and losses are private" in text
    assert "Study" in study._repr_html_()
    key = dpjax.release_key()
    assert not tuned(key).seeded


def test_a_certificate_of_a_search_is_verified():
    values = json.loads(tuned().certificate(1e-3).to_json())
    assert verify.verify(values).verdict == "verified"

    # Power: "counted" needs a selection in the event.
    values["event"] = values["event"]["event"]
    values["hash"] = verify.content_hash(values)
    assert any("no selection" in reason for reason in verify.verify(values).reasons)


@pytest.mark.slow
def test_private_scores_are_in_the_event():
    noise = dpjax.DiscreteLaplace(sensitivity.of_count(norm="l1", adjacency="zero_out"), scale=4.0)
    mechanism = exactly(200, score=noise, run=dataclasses.replace(RUN, num_steps=1))
    event = mechanism.event
    assert event.event == ComposedDpEvent([mechanism.run.event, noise.event])
    assert "discrete Laplace" in mechanism.guarantee.description["score of a candidate"]

    # Of 64 records each is worth one: the count plus noise of this scale.
    one = dataclasses.replace(mechanism, repetitions=Exactly(6.0, number=1))
    values = [
        tuned(
            seed,
            one,
            score=lambda params, example: jnp.where(example[0] > 0, 3.0, 0.0),
            candidates={"rate": [0.1]},
            score_data=RECORDS,
        ).best_value
        for seed in range(3)
    ]
    assert all(value == round(value) for value in values)
    assert all(abs(value - 64) < 4.0 * 25 for value in values)
    assert len(set(values)) > 1

    # Twice as private, both noises are twice as large.
    scaled = mechanism.with_privacy_factor(2.0)
    assert (scaled.run.noise_multiplier, scaled.score.scale) == (4.0, 8.0)


@pytest.mark.parametrize(
    ("value", "total"), [(0.25, 16.0), (-3.0, 0.0), (3.0, 64.0), (math.nan, 0.0)]
)
def test_gaussian_scores_add_up_exactly(value, total):
    """Those of one record are clipped to [0, 1]."""
    noise = dpjax.Gaussian(sensitivity.of_count(norm="l2", adjacency="zero_out"), scale=1e-6)
    mechanism = exactly(1, score=noise)
    study = tuned(
        mechanism=mechanism, score=lambda params, example: value + 0 * example[0],
        candidates={"rate": [0.1]},
    )  # fmt: skip
    assert study.best_value == pytest.approx(total, abs=1e-4)


def test_every_score_has_noise_of_its_own():
    """Candidates of all programs have different keys, also of their scores."""
    noise = dpjax.DiscreteLaplace(sensitivity.of_count(norm="l1", adjacency="zero_out"), scale=1e6)
    released, release = [], dpjax.DiscreteLaplace.release

    def kept(self, key, value):
        released.append(int(release(self, key, value)))
        return np.int64(released[-1])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dpjax.DiscreteLaplace, "release", kept)
        tuned(
            mechanism=exactly(4, score=noise), score=lambda params, example: 0.0 * example[0],
            candidates={"rate": [0.1]}, candidates_per_program=2,
        )  # fmt: skip
    assert len(released) == len(set(released)) == 4


@pytest.mark.slow
def test_no_candidate_is_the_untrained_one():
    mechanism = dataclasses.replace(MECHANISM, repetitions=PoissonRepetitions(1.0))
    results = [tuned(seed, mechanism) for seed in range(6)]
    empty = [each for each in results if each.best_params is None]
    assert empty
    assert len(empty) < 6
    for study in empty:
        assert np.array_equal(study.params, jnp.zeros(2))
        assert study.best_value is None
        assert study.certificate(1e-3).epsilon > 0
        study._repr_html_()


@pytest.mark.slow
def test_nan_scores_are_the_worst():
    _, seen = seen_candidates(mechanism=exactly(4))
    scores = iter([0.0, math.nan, 1.0, math.nan, 0.5])
    chosen = tuned(mechanism=exactly(4), score=lambda params: next(scores))
    assert np.array_equal(chosen.params, seen[1])
    scores = iter([0.0, *[math.nan] * 4])
    assert tuned(mechanism=exactly(4), score=lambda params: next(scores)).best_params is not None


@pytest.mark.slow
def test_settings_of_the_mechanism():
    clips = {"rate": [0.1], "l2_clip": [1e-6, 1.0], "noise_multiplier": [2.0, 3.0]}
    study, seen = seen_candidates(mechanism=exactly(16), candidates=clips, params=jnp.ones(2) * 5)
    moved = np.linalg.norm(seen - 5, axis=1)
    assert moved.min() < 1e-4 < 0.05 < moved.max()
    assert set(study.best_params) == set(clips)


@pytest.mark.slow
def test_settings_by_a_sampler():
    def sampler(key):
        return {"rate": 10 ** jax.random.uniform(key, minval=-3.0, maxval=-1.0)}

    rates = [tuned(seed, candidates=sampler).best_params["rate"] for seed in range(3)]
    assert len(set(rates)) == 3
    assert all(1e-3 <= rate <= 0.1 for rate in rates)


def test_what_is_secret_is_refused():
    study = tuned()
    for name in ("trials", "best_trial", "trials_dataframe"):
        with pytest.raises(AttributeError, match="not released"):
            getattr(study, name)
    with pytest.raises(AttributeError, match="no attribute 'other'"):
        study.other  # noqa: B018
    assert {field.name for field in dataclasses.fields(Study)} == {
        "params", "best_params", "best_value", "mechanism", "seeded"
    }  # fmt: skip


class Interrupted(Exception):
    """A crash."""


@pytest.mark.slow
def test_an_interrupted_search_resumes_to_the_same_result(tmp_path):
    options = {
        "mechanism": exactly(5), "candidates_per_program": 2, "steps_per_call": 2
    }  # fmt: skip
    whole, seen = seen_candidates(**options)
    calls = []

    def crashing(params):
        calls.append(params)
        if len(calls) == 4:
            raise Interrupted
        return float(closeness(params))

    with pytest.raises(Interrupted):
        tuned(score=crashing, checkpoint_dir=tmp_path / "search", **options)

    # Another key is not used: the noise is that of the search in the folder.
    again, seen_again = seen_candidates(
        key=jax.random.key(9), checkpoint_dir=tmp_path / "search", **options
    )
    assert np.array_equal(seen, seen_again)
    assert np.array_equal(whole.params, again.params)
    assert again.seeded

    # A search that has ended is not scored again.
    final = tuned(score=lambda params: 0.0, checkpoint_dir=tmp_path / "search", **options)
    assert np.array_equal(final.params, again.params)
    assert (final.best_params, final.best_value) == (again.best_params, again.best_value)

    # Other candidates, or another mechanism, are another search.
    for changes in ({"candidates": {"rate": [0.5]}}, {"mechanism": exactly(4)}):
        with pytest.raises(ValueError, match="another mechanism or other candidates"):
            tuned(checkpoint_dir=tmp_path / "search", **{**options, **changes})
    (tmp_path / "search" / "study.npz").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="cannot be read"):
        tuned(checkpoint_dir=tmp_path / "search", **options)
    assert (tmp_path / "search").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"candidates": {}}, "at least one list of values"),
        ({"candidates": {"rate": 0.1}}, "a list of at least one number"),
        ({"candidates": {"rate": [math.nan]}}, "finite numbers"),
        ({"candidates": {"rate": [0.1], "num_steps": [3]}}, "all candidates have the mechanism's"),
        ({"candidates": {"rate": [0.1], "l2_clip": [0.0]}}, "l2_clip must be"),
        ({"candidates": {"rate": [0.1], "noise_multiplier": [1.9999]}}, "at least 2.0"),
        ({"candidates": lambda key: 1.0}, "a dict of numbers by name"),
        ({"candidates": lambda key: {"rate": jnp.ones(2)}}, "one number"),
        ({"candidates": lambda: {}}, "candidates must be a function"),
        ({"score": lambda params: params}, "what score returns must be one number"),
        ({"score": lambda params, example: 0.0}, "score must be a function"),
        ({"score_data": RECORDS}, "None without mechanism.score"),
        ({"mechanism": RUN}, "mechanism must be a RepeatedSelection"),
        ({"optimizer": optax.sgd(0.1)}, "optimizer must be a function"),
        ({"candidates_per_program": 0}, "candidates_per_program must be"),
        ({"steps_per_call": 0}, "steps_per_call must be"),
        ({"checkpoint_dir": ""}, "checkpoint_dir must be"),
        ({"params": jnp.zeros(2, int)}, "float"),
    ],
)
def test_bad_arguments_are_refused(changes, text):
    with pytest.raises((TypeError, ValueError), match=text):
        tuned(**changes)


def test_bad_mechanisms_are_refused():
    good = {"repetitions": TruncatedNegativeBinomial(3.0)}
    count = sensitivity.of_count(norm="l1", adjacency="replace_one")
    small = dpjax.Sensitivity(0.5, norm="l1", adjacency="zero_out")
    several = dpjax.Sensitivity(1.0, norm="l1", adjacency="zero_out", shape=(3,))
    for changes, text in [
        ({"repetitions": 10}, "repetitions must be a distribution"),
        ({"run": dpjax.Composition((RUN, RUN))}, "run must be a SubsampledGaussian"),
        ({"score": 1.0}, "score must be"),
        ({"score": dpjax.Laplace(count, scale=1.0)}, "score's adjacency"),
        ({"score": dpjax.Laplace(small, scale=1.0)}, "score's sensitivity"),
        ({"score": dpjax.Laplace(several, scale=1.0)}, "score's shape"),
    ]:
        arguments = {"run": RUN, **good, **changes}
        with pytest.raises((TypeError, ValueError), match=text):
            dpjax.RepeatedSelection(arguments.pop("run"), **arguments)
    with pytest.raises(ValueError, match="tuning must be one of"):
        dataclasses.replace(RUN, tuning="counted")
    assert issubclass(PoissonRepetitions, Repetitions)


def test_a_search_and_a_run_with_its_settings_are_composed():
    both = dpjax.Composition((MECHANISM, RUN), tuning="counted")
    assert both.guarantee.event == ComposedDpEvent([MECHANISM.event, RUN.event])
    assert both.guarantee.tuning == "counted"
    assert both.with_privacy_factor(2.0).guarantee.tuning == "counted"

    # Of a run beside a search nothing is known.
    assert dpjax.Composition((MECHANISM, RUN)).guarantee.tuning is None
    assert dpjax.Composition((MECHANISM, MECHANISM)).guarantee.tuning == "counted"
    with pytest.raises(ValueError, match="tuning must be another without a RepeatedSelection"):
        dpjax.Composition((RUN, RUN), tuning="counted")


def test_a_composition_keeps_the_caveat_of_a_part():
    stated = dataclasses.replace(RUN, tuning="on public records")
    uncounted = dataclasses.replace(RUN, tuning="on the private records, not counted")
    assert dpjax.Composition((stated, stated)).guarantee.tuning == "on public records"
    assert dpjax.Composition((RUN, stated)).guarantee.tuning is None
    for parts, tuning in [
        ((stated, uncounted), None),
        ((RUN, uncounted), "on public records"),
        ((MECHANISM, uncounted), "counted"),
    ]:
        certificate = dpjax.Composition(parts, tuning=tuning).certificate(1e-3)
        assert any("choice is not counted" in caveat for caveat in certificate.caveats)


@pytest.mark.slow
def test_half_precision_parameters_are_restored(tmp_path):
    params = jnp.zeros(2, jnp.bfloat16)
    first = tuned(params=params, checkpoint_dir=tmp_path)
    again = tuned(params=params, checkpoint_dir=tmp_path)
    assert again.params.dtype == jnp.bfloat16
    assert np.array_equal(first.params, again.params)


@pytest.mark.slow
def test_calibration_of_a_search():
    mechanism = dpjax.calibrate(MECHANISM, epsilon=2.0, delta=1e-3)
    assert 1.97 <= mechanism.certificate(1e-3).epsilon <= 2.0
