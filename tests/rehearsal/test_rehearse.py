"""The choice of settings, what is reported of it, and that both are right in known cases."""

import dataclasses
import json
import math
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import dpjax
from dpjax.rehearsal import Calibration, Rehearsal, Release, Training, World
from dpjax.rehearsal.calibration import NUM_DRAWS, rank_truth
from dpjax.rehearsal.report import relative_regrets

NUM = 400


def mean_world(key, dim=4, num=NUM):
    """Records around a mean that differs from world to world."""
    mean_key, record_key = jax.random.split(key)
    mean = jax.random.normal(mean_key, (dim,))
    values = mean + jax.random.normal(record_key, (num + 200, dim))
    return World(values[:num], values[num:], {"mean": mean})


def mean_loss(w, x):
    return jnp.sum((w - x) ** 2)


def rehearse_mean(seed=0, **changes):
    arguments = {
        "num_examples": NUM, "epsilon": 1.0, "delta": 1e-4, "adjacency": "zero_out",
        "batch_size": 40, "epochs": 4, "l2_clip": [0.1, 4.0], "learning_rate": [1e-4, 0.1, 10.0],
        "num_worlds": 4, "progress": False,
    }  # fmt: skip
    method = Training(mean_loss, jnp.zeros(4), optax.sgd)
    return dpjax.rehearse(jax.random.key(seed), method, mean_world, **(arguments | changes))


@pytest.fixture(scope="module")
def rehearsal() -> Rehearsal:
    return rehearse_mean()


def test_the_setting_that_learns_is_chosen(rehearsal):
    # A rate of 1e-4 does not move, one of 10 diverges or is noise; 0.1 with 4.0 learns.
    assert rehearsal.setting == (40, 4.0, 4.0, 0.1)
    assert rehearsal.error < 0.75 * rehearsal.constant_error
    assert rehearsal.is_complete
    assert not np.isnan(rehearsal.errors[rehearsal.best]).any()
    # The others were dropped before the last world.
    assert np.isnan(rehearsal.errors[:, -1]).sum() >= 3


@pytest.mark.slow
def test_mechanism_and_optimiser_go_into_the_real_run(rehearsal):
    records = mean_world(jax.random.key(77)).records
    result = dpjax.train(
        jax.random.key(1), mean_loss, jnp.zeros(4), records, rehearsal.optimizer,
        mechanism=rehearsal.mechanism, progress=False,
    )  # fmt: skip
    certificate = result.certificate(1e-4)
    assert certificate.epsilon <= 1.0
    assert "tuning" in str(certificate)
    assert "on simulated records" in str(certificate)
    assert certificate.to_dict()["tuning"] == "on simulated records"
    assert rehearsal.mechanism.l2_clip == 4.0
    assert rehearsal.mechanism.num_steps == 40


@pytest.mark.parametrize("tuning", ["fixed in advance", "on public records"])
def test_other_honest_answers_have_no_caveat(rehearsal, tuning):
    mechanism = dataclasses.replace(rehearsal.mechanism, tuning=tuning)
    certificate = mechanism.certificate(1e-4)
    assert tuning in str(certificate)
    for words in ("chosen by results", "tuning hyper-parameters"):
        assert not any(words in caveat for caveat in certificate.caveats)


def test_tuning_on_the_private_records_is_a_caveat(rehearsal):
    mechanism = dataclasses.replace(
        rehearsal.mechanism, tuning="on the private records, not counted"
    )
    caveats = mechanism.certificate(1e-4).caveats
    assert any("chosen by results on the private records" in caveat for caveat in caveats)
    with pytest.raises(ValueError, match="tuning must be one of 'on simulated records'"):
        dataclasses.replace(rehearsal.mechanism, tuning="on a sample")
    silent = dataclasses.replace(rehearsal.mechanism, tuning=None)
    assert "tuning  " not in str(silent.certificate(1e-4))
    assert "tuning hyper-parameters" in " ".join(silent.certificate(1e-4).caveats)


@pytest.mark.slow
def test_tuning_does_not_change_a_run_that_is_resumed(rehearsal, tmp_path):
    def run(tuning, num_steps):
        mechanism = dataclasses.replace(
            rehearsal.mechanism, tuning=tuning, num_steps=num_steps, epochs=None
        )
        return dpjax.train(
            jax.random.key(1), mean_loss, jnp.zeros(4), mean_world(jax.random.key(7)).records,
            rehearsal.optimizer, mechanism=mechanism, checkpoint_dir=tmp_path, progress=False,
        )  # fmt: skip

    run(None, 5)
    assert run("on simulated records", 10).mechanism.num_steps == 10


def test_the_report_prints_plots_and_is_json(rehearsal):
    text = str(rehearsal)
    for part in (
        "Rehearsal on simulated records: n = 400", "learning rate", "error without privacy",
        "records clipped", "Error by epsilon", "Best of 6 settings", "Nothing was released",
    ):  # fmt: skip
        assert part in text
    values = json.loads(json.dumps(rehearsal.to_dict()))
    assert values["setting"]["l2_clip"] == 4.0
    assert values["target"] == rehearsal.target
    assert "Chosen setting" in rehearsal.to_html()
    assert "learning_rate 0.1" in rehearsal.paragraph()
    figure = rehearsal.plot()
    assert [axes.get_xlabel() for axes in figure.axes[:2]] == ["epsilon", "clip bound"]


def test_the_error_falls_with_epsilon_to_that_without_privacy(rehearsal):
    means = [np.mean(errors) for errors in rehearsal.curve.errors]
    assert rehearsal.curve.epsilons[-1] == math.inf
    assert means[-1] == min(means)
    assert means[0] > means[-1] + 0.1


@pytest.mark.slow
def test_where_nothing_is_learnt_it_says_so_and_what_it_takes():
    hopeless = rehearse_mean(epsilon=0.01, learning_rate=[0.1, 1.0])
    assert hopeless.error > hopeless.target
    warning = " ".join(hopeless.caveats)
    assert "needs epsilon of" in warning or "is not enough" in warning or "No setting" in warning
    # An honest case has no such warning.
    assert "needs epsilon" not in " ".join(rehearse_mean(epsilon=4.0).caveats)


@pytest.mark.slow
def test_candidates_are_proposed_around_norms_and_the_best_rate():
    found = rehearse_mean(l2_clip=None, learning_rate=None)
    clips = sorted({setting.l2_clip for setting in found.settings})
    # Norms of gradients 2 (w - x) in four dimensions: about 2 * 2 near the optimum.
    assert clips[0] < 4 < clips[-1]
    assert found.error < 0.75 * found.constant_error
    # SGD follows the scale of gradients: smaller bounds are tried with larger rates.
    rates = {
        clip: max(each.learning_rate for each in found.settings if each.l2_clip == clip)
        for clip in (clips[0], clips[-1])
    }
    assert rates[clips[0]] > 4 * rates[clips[-1]]


@pytest.mark.slow
def test_the_time_allowed_ends_the_rehearsal():
    short = rehearse_mean(max_seconds=1e-3, num_worlds=8)
    assert not short.is_complete
    assert "time ended" in " ".join(short.caveats)
    assert short.setting in short.settings
    assert len(short.curve.constants) >= 1


LAPLACE_BOUND = 3.0


def laplace_mean(key, records, *, epsilon, bound=LAPLACE_BOUND):
    mean = jnp.mean(jnp.clip(records[:, 0], -bound, bound))
    return mean + 2 * bound / (len(records) * epsilon) * jax.random.laplace(key)


def noise_error(result, world):
    clipped = jnp.mean(jnp.clip(world.records[:, 0], -LAPLACE_BOUND, LAPLACE_BOUND))
    return abs(result - clipped)


@pytest.mark.slow
@pytest.mark.parametrize("target", [0.004, 0.02])
def test_the_needed_epsilon_is_that_of_the_closed_form(target):
    """The mean absolute error of Laplace noise is its scale: 2 b / (n epsilon)."""
    method = Release(laplace_mean, noise_error, {"bound": [LAPLACE_BOUND]})
    found = dpjax.rehearse(
        jax.random.key(0), method, mean_world, num_examples=NUM, epsilon=1.0, delta=1e-5,
        adjacency="zero_out", target=target, num_worlds=100, num_calibration_worlds=0,
        progress=False,
    )  # fmt: skip
    exact = 2 * LAPLACE_BOUND / (NUM * target)
    assert exact / 1.5 < found.needed_epsilon < 1.5 * exact


@pytest.mark.slow
def test_the_needed_epsilon_and_records_are_right_when_they_are_tried():
    asked = rehearse_mean(epsilon=0.008, l2_clip=[1.0, 4.0], learning_rate=None, num_worlds=16)
    needed, factor = asked.needed_epsilon, asked.needed_records
    assert 0.008 < needed < 0.064
    assert factor > 1
    tried = rehearse_mean(
        seed=1, epsilon=needed, l2_clip=[1.0, 4.0], learning_rate=None, num_worlds=16
    )
    # The error is between those at epsilons 1.5 times smaller and larger.
    slope = np.interp(
        np.log([needed / 1.5, 1.5 * needed]),
        np.log(asked.curve.epsilons[:-1]),
        [np.mean(errors) for errors in asked.curve.errors[:-1]],
    )
    assert slope[1] < tried.error < slope[0]

    num = round(factor * NUM)
    method = Training(mean_loss, jnp.zeros(4), optax.sgd)
    more = dpjax.rehearse(
        jax.random.key(2), method, lambda key: mean_world(key, num=num), num_examples=num,
        epsilon=0.008, delta=1e-4, adjacency="zero_out", batch_size=num // 10, epochs=4,
        l2_clip=[1.0, 4.0], num_worlds=16, progress=False,
    )  # fmt: skip
    assert more.error < slope[0]


def normal_posterior(scale):
    """The posterior of a normal mean under a normal prior, its deviation times ``scale``."""

    def release(key, records, *, epsilon, prior=1.0):
        del key, epsilon
        precision = 1 / prior**2 + len(records)
        return jnp.sum(records[:, 0]) / precision, scale / jnp.sqrt(precision)

    def draws(result, key, num_draws):
        mean, std = result
        return {"mean": mean + std * jax.random.normal(key, (num_draws,))}

    return Release(
        release, lambda result, world: abs(result[0] - world.truth["mean"]), {"prior": [1.0]},
        draws=draws,
    )  # fmt: skip


def one_mean(key):
    world = mean_world(key, dim=1)
    return world._replace(truth={"mean": world.truth["mean"][0]})


def intervals_of(scale, seed, num_worlds=100, method=None):
    return dpjax.rehearse(
        jax.random.key(seed), method or normal_posterior(scale), one_mean, num_examples=NUM,
        epsilon=1.0, delta=1e-5, adjacency="zero_out", num_worlds=2,
        num_calibration_worlds=num_worlds, progress=False,
    )  # fmt: skip


def test_warnings_of_simulated_posteriors_are_one_sentence(recwarn):
    """Those of another category than a posterior's are passed on as they are."""
    honest = normal_posterior(1.0)

    def draws(result, key, num_draws):
        if result[0] > 0:
            warnings.warn(f"a mean of {result[0]:.1f}", stacklevel=1)
            warnings.warn("a second one", stacklevel=1)
        warnings.warn("a library's", DeprecationWarning, stacklevel=1)
        return honest.draws(result, key, num_draws)

    found = intervals_of(1.0, 0, 8, dataclasses.replace(honest, draws=draws))
    warned = found.calibration.warned
    assert 1 < len(warned) < 8
    assert all(text.startswith("a mean of ") for text in warned)
    assert f"{len(warned)} of the 8 simulated posteriors came with warnings" in str(found)
    assert not [each for each in recwarn if each.category is UserWarning]
    assert {str(each.message) for each in recwarn} == {"a library's"}
    assert not intervals_of(1.0, 0, 2).calibration.warned


@pytest.mark.slow
def test_an_honest_posterior_covers_and_one_of_half_the_variance_is_flagged():
    honest, narrow = intervals_of(1.0, 0), intervals_of(0.5**0.5, 0)
    assert abs(honest.calibration.coverage()["mean"] - 0.9) < 4 * math.sqrt(0.09 / 100)
    assert not honest.calibration.problems
    assert "too narrow" in narrow.calibration.problems["mean"]
    assert "stated coverage" in " ".join(narrow.caveats)
    assert "cover" in str(honest)

    # Of few runs neither shares nor the absence of problems mean anything.
    few = Calibration({"mean": honest.calibration.ranks["mean"][:19]}, honest.calibration.num_draws)
    untested = dataclasses.replace(honest, calibration=few)
    assert "not tested: too few runs" in str(untested)
    assert "cover " not in str(untested)
    assert "coverage of intervals is not tested: 19 simulated runs" in " ".join(untested.caveats)
    assert not any("not tested" in caveat for caveat in honest.caveats)


def ranks(rng, num_worlds, num_entries, deviation=1.0, shared=0.0, bias=0.0):
    common, own = rng.normal(size=(num_worlds, 1)), rng.normal(size=(num_worlds, num_entries))
    truth = math.sqrt(shared) * common + math.sqrt(1 - shared) * own
    draws = bias + deviation * rng.normal(size=(num_worlds, NUM_DRAWS, num_entries))
    return Calibration({"w": np.sum(draws < truth[:, None], 1).astype(float)}, NUM_DRAWS)


@pytest.mark.slow
@pytest.mark.parametrize(("num_entries", "shared"), [(1, 0.0), (5, 0.0), (5, 0.9)])
def test_flags_are_rare_for_honest_posteriors_and_sure_for_half_the_variance(num_entries, shared):
    """Of 300 honest ones at most 15 (5 %; expected 6), of 100 narrow ones 95 are."""
    rng = np.random.default_rng(0)
    false = [bool(ranks(rng, 100, num_entries, 1.0, shared).problems) for _ in range(300)]
    assert sum(false) <= 15
    for changes in ({"deviation": 0.5**0.5}, {"deviation": 2**0.5}, {"bias": 0.6}):
        found = [
            bool(ranks(rng, 100, num_entries, shared=shared, **changes).problems)
            for _ in range(100)
        ]
        assert sum(found) >= 92


def test_the_sides_of_problems_are_named_right():
    rng = np.random.default_rng(1)
    assert "too narrow" in ranks(rng, 200, 3, deviation=0.6).problems["w"]
    assert "too wide" in ranks(rng, 200, 3, deviation=1.7).problems["w"]
    assert "draws are above the truth" in ranks(rng, 200, 3, bias=1.0).problems["w"]
    assert "draws are below the truth" in ranks(rng, 200, 3, bias=-1.0).problems["w"]


def test_ranks_that_are_the_same_in_all_worlds_are_flagged():
    """All draws on one side of every truth: no test may divide by a variance of zero."""
    above = Calibration({"w": np.full((50, 2), float(NUM_DRAWS))}, NUM_DRAWS)
    assert "draws are below the truth" in above.problems["w"]
    assert "too narrow" in above.problems["w"]
    middle = Calibration({"w": np.full((50, 2), (NUM_DRAWS - 1) / 2)}, NUM_DRAWS)
    assert "too wide" in middle.problems["w"]


@pytest.mark.parametrize(("share", "is_named"), [(0.3, True), (0.005, False)])
def test_clipping_is_named_where_intervals_miss(rehearsal, share, is_named):
    missing = Calibration({"w": np.full((50, 2), float(NUM_DRAWS))}, NUM_DRAWS)
    shares = np.full(np.shape(rehearsal.trace.clipped_share), share)
    trace = rehearsal.trace._replace(clipped_share=shares)
    found = dataclasses.replace(rehearsal, calibration=missing, trace=trace).caveats
    assert any("intervals of w do not have their stated coverage" in text for text in found)
    named = any(
        "30% of the records are clipped, which biases the posterior" in text for text in found
    )
    assert named == is_named


def test_draws_of_other_names_than_the_truth_are_refused():
    with pytest.raises(ValueError, match=r"names of draws must be among.*\['mean'\].*\['mu'\]"):
        rank_truth({"mu": jnp.ones(3)}, {"mean": jnp.ones(())})
    assert rank_truth({}, {"mean": jnp.ones(())}) == {}


def test_ranks_count_draws_below_and_shapes_must_agree():
    draws = {"a": jnp.array([[1.0], [2.0], [3.0]]), "other": jnp.ones(3)}
    assert rank_truth(draws, {"a": jnp.array([2.5])})["a"].tolist() == [2.0]
    with pytest.raises(ValueError, match="draws of a must be of shape"):
        rank_truth(draws, {"a": jnp.array([2.5, 1.0])})


def test_regret_is_in_units_of_the_gain_and_bounded():
    errors = np.array([[1.0, 2.0], [3.0, np.inf], [5.0, np.nan]])
    regrets = relative_regrets(errors, np.array([5.0, 4.0]))
    np.testing.assert_allclose(regrets, [[0, 0], [0.5, 2], [1, np.nan]])
    # A world in which nothing beats a constant result still ranks the settings.
    ranked = relative_regrets(np.array([[1.0], [1.05]]), np.array([0.5]))
    assert ranked[1, 0] == pytest.approx(0.5)
    # All runs diverged.
    assert relative_regrets(np.array([[np.inf]]), np.array([1.0])).tolist() == [[2.0]]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"epsilon": 0.0}, "epsilon must be a finite number > 0"),
        ({"delta": 1.0}, "delta must be in"),
        ({"num_worlds": 1}, "num_worlds must be a whole number >= 2"),
        ({"max_seconds": 0}, "max_seconds must be a finite number > 0"),
        ({"l2_clip": [0.0]}, "l2_clip must be a finite number > 0"),
        ({"epochs": -1}, "epochs must be a finite number > 0"),
        ({"target": math.inf}, "target must be a finite number or None"),
        ({"adjacency": "nearby"}, "adjacency must be"),
    ],
)
def test_bad_arguments_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        rehearse_mean(**changes)


@pytest.mark.slow
def test_runs_that_all_diverge_are_an_error_that_says_so():
    method = Training(lambda w, x: jnp.sum(w * x) / 0.0, jnp.ones(4), optax.sgd)
    with pytest.raises(ValueError, match="finite at some learning rate"):
        dpjax.rehearse(
            jax.random.key(0), method, mean_world, num_examples=NUM, epsilon=1.0, delta=1e-4,
            adjacency="zero_out", batch_size=40, epochs=1, num_worlds=2, progress=False,
        )  # fmt: skip
