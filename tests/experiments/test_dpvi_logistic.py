"""Private variational logistic regression: one program for every noise, its accounts, its rows."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from experiments.data import Split, load_data
from experiments.dpvi import abalone, study
from experiments.dpvi.inference import (
    ADD,
    REPLACE,
    Point,
    compute_epsilons,
    make_mechanism,
    stack_points,
)
from experiments.dpvi.logistic import (
    _negative_elbo,
    accuracy_percent,
    accuracy_percent_of_draws,
    logistic_inference,
    source_accuracies,
    windowed_adagrad,
)
from experiments.lib.registry import experiment_of


def test_logistic_inference_has_the_mechanism_of_make_mechanism():
    svi = logistic_inference(40, 0.5, 0.1)(Point(1.5, 0.2), 12)
    accounted = make_mechanism(1.5, 0.2, 0.5, 12, 40)
    assert accounted.adjacency == "add_remove"  # of the source's claim; what is run is zero_out
    accounted = dataclasses.replace(accounted, adjacency="zero_out", size_scaled=True)
    for field in dataclasses.fields(accounted):
        assert getattr(svi.mechanism, field.name) == getattr(accounted, field.name)
    without = stack_points([Point(0.0, 0.2), Point(1.5, 0.2)])
    assert without.l2_clip[0] > 1e5
    np.testing.assert_allclose(without.l2_clip[1], 0.2)


def test_windowed_adagrad_divides_by_the_last_ten_gradients():
    gradients = np.random.default_rng(0).normal(size=25)
    optimizer = windowed_adagrad(0.1)
    state, params = optimizer.init(jnp.zeros(())), jnp.zeros(())
    for gradient in gradients:
        updates, state = optimizer.update(jnp.asarray(gradient), state)
        params = optax.apply_updates(params, updates)
    by_hand = [
        -0.1 * g / np.sqrt(np.sum(gradients[max(0, i - 9) : i + 1] ** 2) + 0.1)
        for i, g in enumerate(gradients)
    ]
    np.testing.assert_allclose(params, np.sum(by_hand), rtol=1e-4)


def test_negative_elbo_terms_sum_to_the_negative_elbo():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(7, 3)), rng.integers(0, 2, 7)
    params, normal = rng.normal(size=(2, 3)), rng.normal(size=3)
    terms = [_negative_elbo(params, record, normal, 7) for record in zip(x, y, strict=True)]
    weights = params[0] + np.exp(params[1]) * normal
    likelihood = -np.log1p(np.exp(-(2 * y - 1) * (x @ weights))).sum()
    elbo = likelihood - 0.5 * (weights**2).sum() + params[1].sum()
    assert float(sum(terms)) == pytest.approx(-elbo, rel=1e-5)


def test_source_accuracies_are_high_without_noise_and_low_in_much():
    x = np.random.default_rng(0).normal(size=(400, 3)).astype(np.float32)
    part = Split(x, (x @ np.array([1.0, -1.0, 0.5]) > 0).astype(np.int32))
    data = dataclasses.replace(load_data("abalone", stand_in=True), train=part, test=part)
    settings = {"sampling_rate": 0.1, "num_steps": 100, "learning_rate": 0.1, "repeats": 4}
    plain, noisy = source_accuracies(data, [Point(0.0, 0.2), Point(50.0, 0.2)], seed=0, **settings)
    assert plain.min() > 90
    assert noisy.mean() < 80

    # Stand-in data have fewer than one record in a batch of the source's rate: one is drawn.
    few = source_accuracies(data, [Point(0.0, 0.2)], seed=0, **{**settings, "sampling_rate": 1e-3})
    assert few.min() > 60


def test_accuracy_percent_of_draws_of_narrow_weights_is_that_of_the_mean():
    x = jax.random.normal(jax.random.key(0), (200, 4))
    y = (x @ jnp.array([1.0, -1.0, 0.5, 0.0]) > 0).astype(jnp.int32)
    params = {"mean": jnp.array([2.0, -1.0, 0.0, 1.0]), "scale": jnp.full(4, 1e-3)}
    by_mean = accuracy_percent(params, x, y)
    assert abs(accuracy_percent_of_draws(params, x, y, jax.random.key(1), 20) - by_mean) <= 1.0
    other = {**params, "mean": -params["mean"]}
    assert accuracy_percent(other, x, y) < 40 < 60 < by_mean


@pytest.mark.parametrize("sigma", [0.8, 3.0, 20.0])
def test_compute_epsilons_certifies_less_than_the_claimed_accounts(sigma):
    costs = compute_epsilons(make_mechanism(sigma, 0.375, 0.005, 2_000, 39_073), 1e-3)
    for adjacency in (ADD, REPLACE):
        certified = costs.certified[f"ε, {adjacency}"]
        assert certified < costs.claimed[f"MA ε, {adjacency}"] < costs.claimed[f"AC ε, {adjacency}"]
    assert costs.certified[f"ε, {ADD}"] < costs.certified[f"ε, {REPLACE}"]


@pytest.fixture(scope="module")
def records(run_rows):
    """Main rows, with few repetitions."""
    short = dataclasses.replace(
        abalone.STUDY,
        data=lambda scaling: load_data("abalone", scaling=scaling, stand_in=True),
        sigmas={"quick": (abalone.STUDY.at, 87.0)},
        clips=[],
        rates=[],
        step_sizes=[1.0],
        repeats={"quick": 3},
    )
    return run_rows(
        dataclasses.replace(experiment_of(abalone), rows=short.rows, run_row=short.run_row)
    )


def test_run_row_learns_and_has_the_epsilon_spent(records):
    plain, little, much, _, chain = records.values()
    assert not plain.certified
    assert 2.0 > little.certified[f"ε, {ADD}"] > 1.9
    assert plain.measured[study.ACCURACY] > much.measured[study.ACCURACY] > 50
    assert chain.measured[study.ACCURACY] > 60
    assert 0 < chain.certified[f"ε, {ADD}"] < little.certified[f"ε, {ADD}"]


def test_run_row_is_within_a_point_and_a_half_of_the_published_accuracies(records):
    if "This is not Abalone" in records["not private"].note:
        pytest.skip("DPJAX_DATA_DIR holds no Abalone: stand-in data have other accuracies")
    for record in records.values():
        if record.source:
            assert abs(record.measured[study.ACCURACY] - record.source[study.ACCURACY]) < 1.5
    public = records["public ranges, σ = 1.221"].measured[study.ACCURACY]
    assert abs(public - records["σ = 1.221"].measured[study.ACCURACY]) < 1.5
