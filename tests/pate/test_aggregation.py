"""Mechanisms on votes: exact distributions, sensitivity, events, certificates, bad input."""

import dataclasses
import itertools
import math
import re
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
import pytest
from dp_accounting import LaplaceDpEvent, SelfComposedDpEvent
from helpers.noise_checks import FALSE_ALARM, chi_square_p
from helpers.vote_oracles import gaussian_log_winners, laplace_log_winners
from scipy import stats

from dpjax.accounting import calibrate, gdp, profile_bounds
from dpjax.pate import (
    NO_ANSWER,
    ConfidentGNMax,
    GNMax,
    LNMax,
    certificate,
    count_votes,
    predict_labels,
)

COMMON = {"num_teachers": 50, "num_classes": 4, "adjacency": "replace_one"}
VOTES = (20, 17, 8, 5)
MANY = 30_000
LN = LNMax(scale=8.0, num_queries=MANY, **COMMON)
GN = GNMax(scale=8.0, num_queries=MANY, **COMMON)
CONFIDENT = ConfidentGNMax(
    threshold=22.0, threshold_scale=5.0, scale=8.0, max_answers=MANY, num_queries=MANY, **COMMON
)
INTERACTIVE = dataclasses.replace(CONFIDENT, threshold=6.0, student_confidence=0.8)
PROBABILITIES = np.array([0.5, 0.2, 0.2, 0.1])
EVERY = {"LNMax": LN, "GNMax": GN, "Confident": CONFIDENT, "Interactive": INTERACTIVE}


def release(mechanism, key, votes, probabilities):
    student = getattr(mechanism, "student_confidence", None) and (probabilities,)
    return mechanism.release(key, votes, *student or ())


def small(mechanism, num_queries, **changes):
    if hasattr(mechanism, "max_answers"):
        changes = {"max_answers": num_queries, **changes}
    return dataclasses.replace(mechanism, num_queries=num_queries, **changes)


@pytest.fixture(scope="module")
def answers():
    votes = np.tile(VOTES, (MANY, 1))
    probabilities = np.tile(PROBABILITIES, (MANY, 1))
    return {
        name: release(mechanism, jax.random.key(place), votes, probabilities)
        for place, (name, mechanism) in enumerate(EVERY.items())
    }


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "log_winners"), [("LNMax", laplace_log_winners), ("GNMax", gaussian_log_winners)]
)
def test_release_has_the_exact_probabilities_of_labels(answers, name, log_winners):
    labels = np.asarray(answers[name].labels)
    exact = np.exp(log_winners(VOTES, 8.0))
    assert exact.sum() == pytest.approx(1, rel=1e-6)
    assert labels.dtype == np.int32
    assert np.all(answers[name].answered)
    assert chi_square_p(labels, exact.__getitem__, range(3)) > FALSE_ALARM
    # power: 10 % less noise, or the other noise
    less = np.exp(log_winners(VOTES, 0.9 * 8.0))
    assert chi_square_p(labels, less.__getitem__, range(3)) < FALSE_ALARM
    other = gaussian_log_winners if name == "LNMax" else laplace_log_winners
    wrong = np.exp(other(VOTES, 8.0))
    assert chi_square_p(labels, wrong.__getitem__, range(3)) < FALSE_ALARM


@pytest.mark.parametrize(
    ("name", "checked", "threshold"), [("Confident", 20.0, 22.0), ("Interactive", 7.0, 6.0)]
)
def test_release_has_the_exact_probabilities_of_checks_and_answers(
    answers, name, checked, threshold
):
    """Outcome -1 where nothing is answered; Interactive: largest of 20 - 25, 17 - 10, 8 - 10, 0."""
    labels = np.asarray(answers[name].labels)
    np.testing.assert_array_equal(labels == NO_ANSWER, ~np.asarray(answers[name].answered))

    def outcomes(threshold_scale):
        passing = stats.norm.sf(threshold, checked, threshold_scale)
        return passing * np.exp(gaussian_log_winners(VOTES, 8.0))

    assert chi_square_p(labels, outcomes(5.0).__getitem__, range(4)) > FALSE_ALARM
    # power: the check's noise is that of the answers; and a check that shares the noise of one
    assert chi_square_p(labels, outcomes(8.0).__getitem__, range(4)) < FALSE_ALARM
    noise = 8.0 * np.random.default_rng(0).standard_normal((MANY, 4))
    noisy = np.array(VOTES) + noise
    passed = checked + 5.0 / 8.0 * noise[:, 0] >= threshold
    shared = np.where(passed, noisy.argmax(axis=1), NO_ANSWER)
    assert chi_square_p(shared, outcomes(5.0).__getitem__, range(4)) < FALSE_ALARM


def test_release_draws_checks_and_answers_independently(monkeypatch):
    """Random words of a query's check could be those of one of another query's counts."""
    mechanism = small(CONFIDENT, 20_000, threshold=12.0)
    votes = np.tile((13, 13, 12, 12), (20_000, 1))

    def p_value():
        found = mechanism.release(jax.random.key(5), votes)
        labels, passed = np.asarray(found.labels), np.asarray(found.answered)
        query, count = np.divmod(np.arange(20_000), 4)
        wins = (labels[query] == count)[passed[query]]
        table = np.histogram2d(wins, passed[passed[query]], bins=2)[0]
        return stats.chi2_contingency(table).pvalue

    assert p_value() > FALSE_ALARM
    # power: one key for both
    monkeypatch.setattr("dpjax.pate.mechanisms.derive", lambda words, count: [words] * count)
    assert p_value() < FALSE_ALARM


def test_release_draws_independent_noise_for_each_query(answers):
    """Neighbouring queries: a chi-square test of the 16 pairs of labels."""
    labels = np.asarray(answers["GNMax"].labels).reshape(-1, 2)
    exact = np.exp(gaussian_log_winners(VOTES, 8.0))
    pairs = np.outer(exact, exact).ravel()
    found = 4 * labels[:, 0] + labels[:, 1]
    assert chi_square_p(found, pairs.__getitem__, range(15)) > FALSE_ALARM
    repeated = 4 * labels[:, 0] + np.where(np.arange(len(labels)) % 20, *labels.T[::-1])
    assert chi_square_p(repeated, pairs.__getitem__, range(15)) < FALSE_ALARM


@pytest.mark.parametrize("name", EVERY)
def test_release_under_jit_and_vmap_is_the_same_without_recompiling(name):
    mechanism = small(EVERY[name], 6)
    votes = jnp.asarray(np.random.default_rng(0).multinomial(50, [0.4, 0.3, 0.2, 0.1], size=6))
    probabilities = jnp.tile(jnp.asarray(PROBABILITIES), (6, 1))
    keys = jax.random.split(jax.random.key(1), 3)

    @jax.jit
    def compiled(keys, votes):
        return jax.vmap(lambda key: release(mechanism, key, votes, probabilities))(keys)

    for _ in range(2):
        batched = compiled(keys, votes)
    assert compiled._cache_size() == 1
    for place, key in enumerate(keys):
        alone = release(mechanism, key, np.asarray(votes), probabilities)
        np.testing.assert_array_equal(alone.labels, batched.labels[place])
        np.testing.assert_array_equal(alone.answered, batched.answered[place])


def test_release_answers_at_most_max_answers():
    votes = np.tile((50, 0, 0, 0), (40, 1))
    found = small(CONFIDENT, 40, max_answers=7, threshold_scale=0.1, scale=0.1).release(
        jax.random.key(0), votes
    )
    assert np.asarray(found.answered).tolist() == [True] * 7 + [False] * 33
    assert np.asarray(found.labels).tolist() == [0] * 7 + [NO_ANSWER] * 33


def test_release_has_the_labels_of_a_confident_student():
    votes = np.tile((0, 50, 0, 0), (3, 1))
    student = [[0.9, 0.05, 0.05, 0.0], [0.1, 0.9, 0.0, 0.0], [0.3, 0.3, 0.3, 0.1]]
    mechanism = small(INTERACTIVE, 3, threshold_scale=0.1, scale=0.1, threshold=20.0)
    found = mechanism.release(jax.random.key(0), votes, student)
    assert found.answered.tolist() == [True, False, True]
    assert found.labels.tolist() == [1, 1, 1]
    nothing = dataclasses.replace(mechanism, threshold=60.0)
    found = nothing.release(jax.random.key(0), votes, student)
    assert found.labels.tolist() == [0, 1, NO_ANSWER]


def test_event_is_that_of_the_stated_sensitivities():
    """In closed form: mu^2 = 2 / scale^2 an answer, 1 / threshold_scale^2 a check."""
    answers = small(GN, 100)
    assert gdp.mu_of_event(answers.event, "replace_one") == pytest.approx(10 * math.sqrt(2) / 8)
    checked = small(CONFIDENT, 100, max_answers=30)
    squared = 100 / 25 + 30 * 2 / 64
    assert gdp.mu_of_event(checked.event, "replace_one") == pytest.approx(math.sqrt(squared))
    assert (answers.num_releases, checked.num_releases) == (100, 130)
    # the loss of one label of Laplace noise is at most 2 / scale
    one = small(LN, 1).certificate(1e-12).epsilon
    assert one == pytest.approx(0.25, rel=0.01)


def exact_delta(epsilon, num_queries, votes):
    """Delta of ``num_queries`` labels of two classes when a vote moves, the larger direction."""
    logs = [laplace_log_winners(v, 8.0) for v in (votes, (votes[0] - 1, votes[1] + 1))]
    joint = [
        np.array([sum(outcome) for outcome in itertools.product(one, repeat=num_queries)])
        for one in logs
    ]
    return max(
        np.sum(np.maximum(np.exp(p) - np.exp(epsilon + q), 0)) for p, q in (joint, joint[::-1])
    )


def test_event_bounds_the_exact_delta_of_laplace_labels():
    """Two counts move by one: two Laplace releases of sensitivity one for each label."""
    half, exceeded = LaplaceDpEvent(2 * 8.0), 0
    for num_queries in (1, 4):
        event = small(LN, num_queries).event
        epsilons = num_queries / 8.0 * np.array([0.0, 0.5, 1.0, 1.3])
        upper = profile_bounds(event, epsilons, adjacency="replace_one").upper
        too_few = SelfComposedDpEvent(half, num_queries)
        lower = profile_bounds(too_few, epsilons, adjacency="replace_one").upper
        for votes in ((25, 25), (26, 24), (30, 20), (40, 10), (50, 0)):
            exact = [exact_delta(epsilon, num_queries, votes) for epsilon in epsilons]
            assert np.all(exact <= upper + 1e-9)
            exceeded += int(np.any(exact > lower + 1e-6))
    # power: one Laplace release for each label is too little
    assert exceeded > 0


def test_certificate_of_the_published_setting_has_the_exact_epsilon():
    mechanism = ConfidentGNMax(
        threshold=200.0,
        threshold_scale=150.0,
        scale=40.0,
        max_answers=286,
        num_queries=640,
        num_teachers=250,
        num_classes=10,
        adjacency="replace_one",
    )
    found = mechanism.certificate(1e-5)
    assert found.epsilon == pytest.approx(2.5426, rel=2e-3)
    assert found.guarantee == mechanism.guarantee
    assert mechanism.unit == "the shard of one teacher"
    assert "at most 286 answered" in found.guarantee.description["statistic"]
    assert "must reach 200" in found.guarantee.description["check"]


def test_calibrate_scales_both_noises():
    found = calibrate(small(CONFIDENT, 50), epsilon=4.0, delta=1e-5)
    assert found.threshold_scale / found.scale == pytest.approx(5 / 8)
    assert 3.9 < found.certificate(1e-5).epsilon <= 4.0


BAD_VOTES = {
    "another sum": np.tile((20, 17, 8, 6), (2, 1)),
    "negative": np.tile((60, -10, 0, 0), (2, 1)),
    "fractions": np.tile((20.5, 16.5, 8, 5), (2, 1)),
    "NaN": np.tile((np.nan, 17, 8, 5), (2, 1)),
    "infinite": np.tile((np.inf, 17, 8, 5), (2, 1)),
}


@pytest.mark.parametrize("votes", BAD_VOTES.values(), ids=BAD_VOTES)
@pytest.mark.parametrize("name", EVERY)
def test_release_refuses_votes_that_are_no_counts_of_all_teachers(name, votes):
    with pytest.raises(ValueError, match="votes must be whole counts >= 0 that sum to num_teach"):
        release(small(EVERY[name], 2), jax.random.key(0), votes, np.tile(PROBABILITIES, (2, 1)))


@pytest.mark.parametrize("shape", [(3, 4), (2, 3), (2,), (2, 4, 1), (0, 4)])
def test_release_refuses_votes_of_another_shape_also_under_jit(shape):
    mechanism = small(GN, 2)
    with pytest.raises(ValueError, match=r"votes must be of shape \(2, 4\)"):
        mechanism.release(jax.random.key(0), np.ones(shape))
    with pytest.raises(ValueError, match=r"votes must be of shape \(2, 4\)"):
        jax.jit(mechanism.release)(jax.random.key(0), jnp.ones(shape))


TWO_VOTES = np.tile(VOTES, (2, 1))
STUDENT = small(INTERACTIVE, 2)
REFUSALS = [
    *[
        (lambda changes=changes: dataclasses.replace(CONFIDENT, **changes), message)
        for changes, message in [
            ({"num_teachers": 0}, "num_teachers must be a whole number >= 1, got 0"),
            ({"num_classes": 1}, "num_classes must be a whole number >= 2, got 1"),
            ({"num_queries": 0}, "num_queries must be a whole number >= 1, got 0"),
            ({"scale": 0.0}, "scale must be a finite number > 0, got 0.0"),
            ({"threshold_scale": -1.0}, "threshold_scale must be a finite number > 0"),
            ({"threshold": math.nan}, "threshold must be a finite number, got nan"),
            ({"max_answers": MANY + 1}, f"max_answers must be at most num_queries = {MANY}"),
            ({"student_confidence": 1.0}, "student_confidence must be in"),
            ({"adjacency": "add_remove"}, "adjacency must be 'replace_one'"),
        ]
    ],
    *[
        (lambda arguments=arguments: STUDENT.release(jax.random.key(0), *arguments), message)
        for arguments, message in [
            ((TWO_VOTES, np.full((2, 4), 1.5)), r"student_probabilities must be in \[0, 1\], got"),
            ((TWO_VOTES, PROBABILITIES), "student_probabilities must be of shape"),
            ((TWO_VOTES,), "student_probabilities must be given where student_confidence is"),
        ]
    ],
    (
        lambda: small(CONFIDENT, 2).release(jax.random.key(0), TWO_VOTES, TWO_VOTES / 50),
        "student_probabilities must be .* left out where it is not",
    ),
    *[
        (lambda labels=labels: count_votes(labels, 3), message)
        for labels, message in [
            ([[0, 3]], r"whole numbers in 0 .. 2, got 3 of teacher 0 on query 1"),
            ([[0, 1], [-1, 1]], r"got -1 of teacher 1 on query 0"),
            ([[0.0, np.nan]], "got nan of teacher 0 on query 1; abstentions=True lets teachers"),
            ([[0.5, 1.0]], r"got 0.5 of teacher 0"),
            (np.zeros((0, 3)), "at least one teacher"),
            ([0, 1], "shape"),
        ]
    ],
    *[
        (
            lambda label=label: count_votes([[label]], 3, abstentions=True),
            "or NaN or -1 where a teacher abstains, got",
        )
        for label in (3, -2, 0.5, np.inf)
    ],
]


@pytest.mark.parametrize(("call", "message"), REFUSALS)
def test_votes_and_settings_are_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_count_votes_is_numpys_bincount():
    labels = np.random.default_rng(0).integers(0, 5, (30, 200))
    expected = [np.bincount(column, minlength=5) for column in labels.T]
    np.testing.assert_array_equal(count_votes(labels, 5), expected)


ABSTAINING = {"num_teachers": 9, "num_classes": 3, "adjacency": "replace_one", "abstentions": True}


def test_release_takes_fewer_votes_with_abstentions_alone():
    votes = np.tile((5, 2, 0), (4, 1))
    abstaining = GNMax(scale=1.2, num_queries=4, **ABSTAINING)
    others = dataclasses.replace(abstaining, abstentions=False)
    assert abstaining.release(jax.random.key(0), votes).labels.shape == (4,)
    with pytest.raises(ValueError, match="of sum 7; abstentions=True lets teachers abstain"):
        others.release(jax.random.key(0), votes)
    with pytest.raises(ValueError, match="sum to at most num_teachers = 9 in every row, got"):
        abstaining.release(jax.random.key(0), votes + 1)
    assert "9 teachers, who may abstain" in abstaining.guarantee.description["statistic"]
    assert "abstain" not in others.guarantee.description["statistic"]

    # almost without noise the label is that of the counts, without the abstention
    mechanism = LNMax(scale=1e-3, num_queries=2, **ABSTAINING)
    found = mechanism.release(jax.random.key(0), [[4, 3, 0], [0, 0, 1]])
    assert found.labels.tolist() == [0, 2]


@pytest.mark.slow
def test_teachers_without_predictions_cast_no_vote_from_training_to_certificate():
    """A NaN in a teacher's parameters reaches the mechanism as an abstention on every query."""
    weights = np.tile(np.eye(3, dtype=np.float32), (9, 1, 1))
    weights[4, 0, 0] = np.nan
    queries = np.eye(3, dtype=np.float32)
    labels = predict_labels(lambda w, x: x @ w, weights, queries, progress=False)
    votes = count_votes(labels, 3, abstentions=True)
    assert votes.tolist() == (8 * np.eye(3)).tolist()
    mechanism = ConfidentGNMax(
        threshold=4.0, threshold_scale=0.01, scale=0.01, max_answers=3, num_queries=3, **ABSTAINING
    )
    answers = mechanism.release(jax.random.key(0), votes)
    assert answers.labels.tolist() == [0, 1, 2]
    noisy = dataclasses.replace(mechanism, scale=1.2, threshold_scale=2.0)
    found = certificate(noisy, 1e-3, votes=votes, answered=answers.answered)
    without = dataclasses.replace(noisy, abstentions=False)
    assert found.epsilon == certificate(without, 1e-3).epsilon  # of a vote that moves
    assert "9 teachers, who may abstain" in " ".join(str(found).split())


@pytest.mark.parametrize("kind", [list, np.array, pd.DataFrame, partial(np.array, dtype=object)])
def test_count_votes_of_class_names_shows_how_to_encode_them(kind):
    names, classes = kind([["cat", "dog"], ["dog", "dog"]]), ["cat", "cow", "dog"]
    with pytest.raises(ValueError, match=r"must be real numbers.*, such as 'cat'") as caught:
        count_votes(names, num_classes=3)

    # The error's own code.
    pattern = r"^teacher_labels .* code = (.*), (np\.vectorize.*) and num_classes"
    made, applied = re.search(pattern, str(caught.value)).groups()
    code = eval(made, {"classes": classes})
    labels = eval(applied, {"np": np, "code": code, "names": names})
    assert count_votes(labels, len(classes)).tolist() == [[1, 0, 1], [0, 0, 2]]
    with pytest.raises(KeyError):
        eval(applied, {"np": np, "code": code, "names": np.array([["bird"]])})


def test_count_votes_of_other_objects_is_not_told_to_encode_names():
    with pytest.raises(ValueError, match="teacher_labels must be real numbers") as caught:
        count_votes([[1j, 0]], num_classes=3)
    assert "classes" not in str(caught.value)
