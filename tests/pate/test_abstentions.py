"""Teachers that abstain: every bound holds when a vote appears or disappears."""

import dataclasses
import itertools
import math

import jax
import numpy as np
import pytest
from helpers.vote_oracles import gaussian_log_winners, laplace_log_winners, renyi

from dpjax.pate import (
    NO_ANSWER,
    ConfidentGNMax,
    GNMax,
    LNMax,
    SmoothRDPRelease,
    argmax_rdp,
    certificate,
    count_abstentions,
    count_votes,
    predict_labels,
)
from dpjax.pate import data_dependent as bounds

ORDERS = np.array([1.5, 2.0, 4.0, 16.0, 64.0])
HISTOGRAMS = [(100, 100), (101, 60), (0, 0), (230, 0), (90, 80, 79), (200, 3, 2, 0, 0), (1, 0, 0)]
WINNERS = {"gaussian": gaussian_log_winners, "laplace": laplace_log_winners}
SCALES = {"gaussian": (10.0, 20.0, 40.0), "laplace": (5.0, 10.0, 20.0)}
SLACK, ROUNDING = 1 + 1e-9, 1e-28


def appearances(votes):
    """Yields every histogram with one vote more or less."""
    for place, change in itertools.product(range(len(votes)), (-1, 1)):
        moved = np.array(votes, float)
        moved[place] += change
        if moved[place] >= 0:
            yield moved


@pytest.fixture(scope="module")
def exact():
    """The largest divergences over all appearances and disappearances, forward and reverse."""
    found = {}
    for noise, winners in WINNERS.items():
        for votes, scale in itertools.product(HISTOGRAMS, SCALES[noise]):
            here = winners(votes, scale)
            pairs = [(here, winners(moved, scale)) for moved in appearances(votes)]
            directions = (pairs, [pair[::-1] for pair in pairs])
            found[noise, votes, scale] = np.max(
                [[[renyi(*pair, o) for o in ORDERS] for pair in some] for some in directions],
                axis=1,
            )
    return found


def test_the_data_independent_bounds_hold(exact):
    gaussian = {one: found for one, found in exact.items() if one[0] == "gaussian"}
    for (_, _, scale), found in gaussian.items():
        assert np.all(found <= SLACK * argmax_rdp(ORDERS, scale) + ROUNDING)
    for (_, _, scale), found in ((k, v) for k, v in exact.items() if k[0] == "laplace"):
        assert np.all(found <= bounds.laplace_rdp_independent(ORDERS, scale) * SLACK + ROUNDING)
    # power: not those of half the sensitivity
    below = [np.any(v > argmax_rdp(ORDERS, 2 * k[2])) for k, v in gaussian.items()]
    assert any(below)


@pytest.mark.parametrize("noise", WINNERS)
def test_the_data_dependent_bounds_hold_in_both_directions(exact, noise):
    error = getattr(bounds, f"log_error_probability_{noise}")
    divergence = getattr(bounds, f"{noise}_rdp")
    found = {one: values for one, values in exact.items() if one[0] == noise}

    def violations(direction, log_factor=0.0, **settings):
        return sum(
            np.sum(
                values[direction]
                > SLACK
                * divergence(error([votes], scale, **settings) + log_factor, ORDERS, scale)[0]
                + ROUNDING
            )
            for (_, votes, scale), values in found.items()
        )

    assert violations(0) == 0
    assert violations(0, worst_neighbor=True) == 0
    assert violations(1, worst_neighbor=True) == 0
    # power: the probability of an unexpected label far too small
    assert violations(0, log_factor=-np.log(100)) > 0


@pytest.mark.parametrize("noise", WINNERS)
def test_the_worst_neighbor_is_also_worse_than_appearances(noise):
    error = getattr(bounds, f"log_error_probability_{noise}")
    for votes, scale in itertools.product(HISTOGRAMS, SCALES[noise]):
        worst = error([votes], scale, worst_neighbor=True)[0]
        for moved in appearances(votes):
            assert error([moved], scale)[0] <= worst + 1e-12


def test_the_check_and_its_answer_are_bounded_in_both_directions():
    """The exact divergence of the pair (passed, label), when one vote appears or disappears."""
    scale, settings = 20.0, {"threshold": 100.0, "threshold_scale": 30.0}

    def outcomes(votes):
        log_pass = bounds.log_answer_probability([np.max(votes)], **settings)[0]
        log_fail = np.log1p(-np.exp(log_pass))
        return np.concatenate([[log_fail], log_pass + gaussian_log_winners(votes, scale)])

    def violations(answers):
        count = 0
        for votes in HISTOGRAMS:
            worst = bounds.log_error_probability_gaussian([votes], scale, worst_neighbor=True)
            both = np.minimum(bounds.gaussian_rdp(worst, ORDERS, scale), argmax_rdp(ORDERS, scale))
            found = bounds.checked_answer_rdp([max(votes)], answers * both, ORDERS, **settings)[0]
            here = outcomes(votes)
            for moved in appearances(votes):
                pair = (here, outcomes(moved))
                exact = [max(renyi(*pair, o), renyi(*pair[::-1], o)) for o in ORDERS]
                count += np.sum(exact > SLACK * found + ROUNDING)
        return count

    assert violations(1.0) == 0
    # power: the check alone is no bound on the pair
    assert violations(0.0) > 0


TEACHERS, ORDER, BETA = 9, 3.0, 0.1
COMMON = {
    "num_teachers": TEACHERS,
    "num_classes": 3,
    "num_queries": 1,
    "adjacency": "replace_one",
    "abstentions": True,
}
CONFIDENT = ConfidentGNMax(threshold=6.0, threshold_scale=2.0, scale=1.2, max_answers=1, **COMMON)
MECHANISMS = {"GNMax": GNMax(scale=1.2, **COMMON), "Confident": CONFIDENT}


@pytest.mark.parametrize("name", MECHANISMS)
def test_smooth_sensitivity_covers_abstentions(name):
    """Against brute force: the teachers that abstain are a fourth class without noise."""
    release = SmoothRDPRelease(
        mechanism=MECHANISMS[name],
        order=ORDER,
        beta=BETA,
        noise_scale=3.0,
        failure_probability=1e-3,
    )
    every = range(TEACHERS + 1)
    votes = np.array([v for v in itertools.product(every, repeat=3) if sum(v) <= TEACHERS])
    costs = [release.cost([one]) for one in votes]
    values = np.array([cost.value for cost in costs])
    smooth = np.array([cost.smooth_sensitivity for cost in costs])
    all_four = np.concatenate([votes, TEACHERS - votes.sum(axis=1, keepdims=True)], axis=1)
    distances = np.abs(all_four[:, None] - all_four).sum(axis=-1) // 2
    differences = np.abs(values[:, None] - values)
    local = np.where(distances <= 1, differences, 0).max(axis=1)
    exact = (np.exp(-BETA * distances) * local).max(axis=1)
    assert np.all(exact <= smooth * SLACK)
    assert np.max((smooth[:, None] / smooth)[distances == 1]) <= math.exp(BETA) * SLACK
    # power: not half of it
    assert np.any(exact > 0.5 * smooth)


def test_votes_with_abstentions_need_the_mechanism_to_allow_them():
    votes = np.tile((5, 2, 0), (4, 1))
    allows = dataclasses.replace(MECHANISMS["GNMax"], num_queries=4)
    refuses = dataclasses.replace(allows, abstentions=False)
    assert allows.release(jax.random.key(0), votes).labels.shape == (4,)
    with pytest.raises(ValueError, match="of sum 7; abstentions=True lets teachers abstain"):
        refuses.release(jax.random.key(0), votes)
    with pytest.raises(ValueError, match="sum to at most num_teachers = 9 in every row, got"):
        allows.release(jax.random.key(0), votes + 1)
    assert "9 teachers, who may abstain" in allows.guarantee.description["statistic"]
    assert "abstain" not in refuses.guarantee.description["statistic"]


def test_a_teacher_that_abstains_does_not_change_the_noise():
    """Noiseless but for rounding: the label is that of the counts, without the abstention."""
    mechanism = LNMax(scale=1e-3, **{**COMMON, "num_queries": 2})
    votes = [[4, 3, 0], [0, 0, 1]]
    assert mechanism.release(jax.random.key(0), votes).labels.tolist() == [0, 2]


def test_the_guarantee_does_not_depend_on_abstentions():
    """All bounds are those of a vote that moves, so the epsilons are equal."""
    mechanism = LNMax(scale=20.0, **{**COMMON, "num_queries": 100})
    without = dataclasses.replace(mechanism, abstentions=False)
    assert certificate(mechanism, 1e-5).epsilon == certificate(without, 1e-5).epsilon


def test_a_teacher_without_predictions_casts_no_vote_from_training_to_certificate():
    """A NaN in a teacher's parameters reaches the mechanism as an abstention on every query."""
    weights = np.tile(np.eye(3, dtype=np.float32), (TEACHERS, 1, 1))
    weights[4, 0, 0] = np.nan
    queries = np.eye(3, dtype=np.float32)
    labels = predict_labels(lambda w, x: x @ w, weights, queries, progress=False)
    votes = count_votes(labels, 3, abstentions=True)
    assert votes.tolist() == (8 * np.eye(3)).tolist()
    settings = {"num_queries": 3, "threshold": 4.0, "max_answers": 3, "threshold_scale": 0.01}
    mechanism = dataclasses.replace(CONFIDENT, scale=0.01, **settings)
    answers = mechanism.release(jax.random.key(0), votes)
    assert answers.labels.tolist() == [0, 1, 2]
    noisy = dataclasses.replace(mechanism, scale=1.2, threshold_scale=2.0)
    found = certificate(noisy, 1e-3, votes=votes, answered=answers.answered)
    assert found.epsilon == certificate(noisy, 1e-3).epsilon
    assert "9 teachers, who may abstain" in " ".join(str(found).split())


def test_abstentions_are_counted_and_reported():
    labels = np.array([[0, np.nan, 2], [1, NO_ANSWER, 2], [1, 1, 2]])
    votes = count_votes(labels, 3, abstentions=True)
    assert votes.tolist() == [[1, 2, 0], [0, 1, 0], [0, 0, 3]]
    found = count_abstentions(labels)
    assert (found.of_teachers.tolist(), found.of_queries.tolist()) == ([1, 1, 0], [0, 2, 0])
    with pytest.raises(ValueError, match="nan of teacher 0 on query 1; abstentions=True lets"):
        count_votes(labels, 3)
    for wrong in (3, -2, 0.5, np.inf):
        with pytest.raises(ValueError, match="or NaN or -1 where a teacher abstains, got"):
            count_votes([[wrong]], 3, abstentions=True)
