"""Gradients that are not linear are found in the models of bayes_models, and not where they are."""

import warnings

import jax
import jax.numpy as jnp
import pytest

from experiments.bayes.models import Settings, inference, simulate

_RUNS = 2


def share_with(word, start=None, **settings):
    """Share of runs on simulated data sets whose noise-aware posterior has such a problem."""
    settings = Settings(**settings)
    svi, found = inference(settings), []
    for number in range(_RUNS):
        records = simulate(settings, number)[1]
        result = svi.run(jax.random.key(number), *records, init_params=start, progress_bar=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            problems = result.noise_aware_posterior().problems
        found.append(any(word in each for each in problems))
    return sum(found) / _RUNS


@pytest.mark.slow
def test_a_scale_that_follows_noisy_groups_is_found():
    """With a bound of 5 and a rate of 0.1: 16 of 16 runs when the limit was chosen."""
    model = "hierarchical logistic regression"
    assert (
        share_with("the gradient of the priors", model=model, l2_clip=5.0, learning_rate=0.1) == 1
    )


@pytest.mark.slow
@pytest.mark.parametrize(("learning_rate", "low", "high"), [(0.3, 0.5, 1.0), (0.02, 0.0, 0.0)])
def test_a_learning_rate_too_large_for_a_logistic_regression_is_found(learning_rate, low, high):
    """6 of 8 runs at 0.3, whose 90 % intervals cover 30 %, and 0 of 16 at 0.02."""
    settings = {"model": "logistic regression", "l2_clip": 3.0, "learning_rate": learning_rate}
    assert low <= share_with("not linear over the range", **settings) <= high


@pytest.mark.slow
@pytest.mark.parametrize(("left", "share"), [(2.0, 1.0), (-2.0, 0.0)])
def test_components_of_a_mixture_in_another_order_are_found(left, share):
    """Their centres have priors around -2 and 2, with standard deviations of 0.3."""
    start = {"centres_auto_loc": jnp.array([left, -left])}
    settings = {"model": "mixture", "l2_clip": 5.0, "learning_rate": 0.02}
    assert share_with("standard deviations of the prior", start, **settings) == share
