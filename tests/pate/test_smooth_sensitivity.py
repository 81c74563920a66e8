"""Smooth sensitivity against brute force over all histograms, and the cost of its release."""

import dataclasses
import itertools
import json
import math

import jax
import numpy as np
import pytest
from helpers.noise_checks import FALSE_ALARM
from helpers.vote_oracles import exact_divergences, gaussian_log_winners
from scipy import integrate, stats

from dpjax.pate import (
    ConfidentGNMax,
    GNMax,
    LNMax,
    SmoothRDPRelease,
    certificate,
    gnss_rdp,
    sanitized_certificate,
)

TEACHERS, ORDER, BETA = 24, 3.0, 0.1
COMMON = {"num_teachers": TEACHERS, "num_classes": 3, "adjacency": "replace_one", "num_queries": 1}
CONFIDENT = ConfidentGNMax(threshold=16.0, threshold_scale=4.0, scale=2.0, max_answers=1, **COMMON)
MECHANISMS = {"GNMax": GNMax(scale=2.0, **COMMON), "Confident": CONFIDENT}
FEW = {**COMMON, "num_teachers": 9, "abstentions": True}
ABSTAINING = {
    "GNMax, abstentions": GNMax(scale=1.2, **FEW),
    "Confident, abstentions": ConfidentGNMax(
        threshold=6.0, threshold_scale=2.0, scale=1.2, max_answers=1, **FEW
    ),
}


def histograms(mechanism):
    """Every histogram of the teachers, with a fourth class of those that abstain."""
    every = itertools.product(range(mechanism.num_teachers + 1), repeat=3)
    votes = np.array([v for v in every if sum(v) <= mechanism.num_teachers])
    votes = np.column_stack([votes, mechanism.num_teachers - votes.sum(axis=1)])
    return votes if mechanism.abstentions else votes[votes[:, 3] == 0]


VOTES = histograms(CONFIDENT)[:, :3]


def releases(mechanism, **changes):
    settings = {"order": ORDER, "beta": BETA, "noise_scale": 3.0, "failure_probability": 1e-3}
    return SmoothRDPRelease(mechanism=mechanism, **{**settings, **changes})


@pytest.fixture(scope="module", params=MECHANISMS | ABSTAINING)
def brute_force(request):
    """Costs, smooth sensitivities, distances in changed votes, and exact smooth sensitivities."""
    mechanism = (MECHANISMS | ABSTAINING)[request.param]
    votes = histograms(mechanism)
    values, smooth = np.transpose([releases(mechanism).cost([v[:3]]) for v in votes])
    distances = np.abs(votes[:, None] - votes).sum(axis=-1) // 2
    differences = np.abs(values[:, None] - values)
    local = np.where(distances <= 1, differences, 0).max(axis=1)
    exact = (np.exp(-BETA * distances) * local).max(axis=1)
    return values, smooth, distances, exact


@pytest.mark.slow
def test_cost_has_an_upper_bound_on_the_exact_smooth_sensitivity(brute_force):
    _, smooth, _, exact = brute_force
    assert np.all(exact <= smooth * (1 + 1e-12))
    # power: not by far, so half of it is too little
    assert np.median(smooth / exact) < 1.8
    assert np.any(exact > 0.5 * smooth)


def test_cost_has_a_smooth_sensitivity(brute_force):
    _, smooth, distances, _ = brute_force
    ratios = smooth[:, None] / smooth
    neighbors = distances == 1
    assert np.max(ratios[neighbors]) <= math.exp(BETA) * (1 + 1e-12)
    # power: it is not smooth with half of beta
    assert np.max(ratios[neighbors]) > math.exp(BETA / 2)


def test_cost_bounds_the_exact_divergence_in_both_directions():
    release = releases(MECHANISMS["GNMax"])
    costs = [release.cost([votes])[0] for votes in VOTES[::5]]
    for votes, cost in zip(VOTES[::5], costs, strict=True):
        exact = exact_divergences(votes, 2.0, [ORDER], gaussian_log_winners).max()
        assert exact <= cost * (1 + 1e-9) + 1e-28
    assert min(costs) < 0.1 * max(costs)


@pytest.mark.parametrize("name", MECHANISMS)
def test_cost_of_several_queries_changes_by_at_most_its_sensitivity(name):
    """One teacher changes its votes on all queries; neighbours of 40 pairs of histograms."""
    generator = np.random.default_rng(0)
    changes = {"max_answers": 2} if name == "Confident" else {}
    release = releases(dataclasses.replace(MECHANISMS[name], num_queries=2, **changes))
    moves = np.array([b - a for a, b in itertools.permutations(np.eye(3, dtype=int), 2)])
    found = []
    for pair in generator.choice(len(VOTES), (40, 2)):
        moved = VOTES[pair] + moves[generator.choice(6, 2)]
        if np.any(moved < 0):
            continue
        costs, sensitivities = zip(release.cost(VOTES[pair]), release.cost(moved), strict=True)
        found.append(abs(costs[0] - costs[1]) / min(sensitivities))
    assert len(found) > 20
    assert 0.3 < max(found) <= 1 + 1e-12


def gaussian_divergence(order, shift, wide, narrow):
    """The Rényi divergence of N(shift, wide^2) from N(0, narrow^2), by quadrature."""

    def integrand(z):
        one, two = stats.norm.logpdf(z, shift, wide), stats.norm.logpdf(z, 0, narrow)
        return math.exp(order * one + (1 - order) * two)

    center = order * shift / wide**2 / (order / wide**2 + (1 - order) / narrow**2)
    spread = (order / wide**2 + (1 - order) / narrow**2) ** -0.5
    ends = (center - 30 * spread, center + 30 * spread)
    value, _ = integrate.quad(integrand, *ends, points=[center], limit=200)
    return math.log(value) / (order - 1)


@pytest.mark.parametrize(
    ("order", "beta", "noise", "expected", "published"),
    [(14.0, 0.0329, 6.23, 1.61, 0.52), (7.5, 0.0533, 4.88, 0.63, 0.54)],
)
def test_gnss_rdp_is_exact_at_the_published_settings(order, beta, noise, expected, published):
    found = gnss_rdp(order, beta=beta, shift=1 / noise)
    assert found == pytest.approx(expected, abs=0.006)
    claimed = order * math.exp(2 * beta) / noise**2
    claimed += (beta * order - math.log(1 - 2 * order * beta) / 2) / (order - 1)
    assert claimed == pytest.approx(published, abs=0.006)
    exact = [
        gaussian_divergence(order, min(1.0, ratio) / noise, 1.0, ratio)
        for ratio in np.exp(np.linspace(-beta, beta, 9))
    ]
    assert max(exact) == pytest.approx(found, rel=1e-6)
    # power: the published cost is none
    assert max(exact) > 1.1 * claimed


def test_release_has_the_stated_noise_and_failure_probability():
    release = releases(MECHANISMS["GNMax"], failure_probability=0.2)
    votes = [(14, 6, 4)]
    cost, sensitivity = release.cost(votes)
    scale = 3.0 * sensitivity
    keys = jax.random.split(jax.random.key(0), 400)
    found = np.array([release.release(key, votes) for key in keys])
    mean = cost + scale * stats.norm.isf(0.2)
    positive = found[found > 0]
    share = stats.norm.sf(0, mean, scale)
    truncated = stats.norm.sf(positive, mean, scale) / share
    assert stats.kstest(truncated, "uniform").pvalue > FALSE_ALARM
    failures = int(np.sum(found < cost))
    assert stats.binom.sf(failures - 1, found.size, 0.2) > FALSE_ALARM
    # power: without the quantile the bound fails half of the time
    without = int(np.sum(found - scale * stats.norm.isf(0.2) < cost))
    assert stats.binom.sf(without - 1, found.size, 0.2) < FALSE_ALARM


def test_epsilon_has_every_cost():
    release = releases(MECHANISMS["GNMax"], failure_probability=1e-6)
    shift = 1 / 3.0 + stats.norm.isf(1e-6) * math.expm1(BETA)
    assert release.own_rdp == pytest.approx(gnss_rdp(ORDER, beta=BETA, shift=shift))
    left = 1e-5 - 1e-6
    conversion = math.log(1 / left) / 2 + math.log(2 / 3) - math.log(3.0) / 2
    expected = 0.5 + release.own_rdp + conversion
    assert release.epsilon(0.5, delta=1e-5) == pytest.approx(expected)
    with pytest.raises(ValueError, match="delta must be above the failure probability 1e-06"):
        release.epsilon(0.5, delta=1e-7)


def test_sanitized_certificate_has_both_epsilons():
    release = releases(CONFIDENT, failure_probability=1e-6)
    found = sanitized_certificate(release, 0.5, delta=1e-5)
    assert found.epsilon == release.epsilon(0.5, delta=1e-5)
    assert found.data_independent == certificate(CONFIDENT, 1e-5).data_independent
    text = " ".join(str(found).split())
    assert "may be published" in text
    assert "before the votes were seen" in text
    assert "order 3, released with smooth sensitivity (beta 0.1" in found.paragraph()
    stored = json.loads(json.dumps(found.to_dict()))
    expected = {"released_rdp": 0.5, "own_rdp": release.own_rdp, "failure_probability": 1e-6}
    assert expected.items() <= stored.items()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"order": 1.0}, "order must be above one, got 1.0"),
        ({"order": math.nan}, "order must be a finite number > 0"),
        ({"beta": 0.0}, "beta must be a finite number > 0"),
        ({"beta": 0.3}, "beta must be so small that order"),
        ({"noise_scale": 0.0}, "noise_scale must be a finite number > 0"),
        ({"failure_probability": 0.0}, "failure_probability must be in"),
    ],
)
def test_smooth_rdp_release_refuses_settings(changes, message):
    with pytest.raises(ValueError, match=message):
        releases(MECHANISMS["GNMax"], **changes)


def test_smooth_rdp_release_refuses_other_mechanisms_and_votes():
    with pytest.raises(TypeError, match="mechanism must be a GNMax or a ConfidentGNMax, got LNMax"):
        releases(LNMax(scale=2.0, **COMMON))
    with pytest.raises(ValueError, match="mechanism's student_confidence must be left out, got 0"):
        releases(dataclasses.replace(CONFIDENT, student_confidence=0.9))
    with pytest.raises(ValueError, match="sum to num_teachers = 24"):
        releases(CONFIDENT).cost([(24, 1, 0)])
