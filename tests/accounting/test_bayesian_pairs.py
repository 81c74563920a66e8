"""Pairs of gradients: their geometry, their independence, and the account of replacing a record."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax.accounting import bayesian
from dpjax.accounting.bayesian.pairs import Pairs, gradient_pairs, independent_pairs


def loss(params, example):
    x, y = example
    return 0.5 * (jnp.tanh(x @ params["w"]) @ params["v"] - y) ** 2


def problem(num_pairs=20, seed=0):
    keys = jax.random.split(jax.random.key(seed), 6)
    params = {"w": jax.random.normal(keys[0], (4, 3)), "v": jax.random.normal(keys[1], (3,))}
    first, second = (
        (jax.random.normal(a, (num_pairs, 4)), jax.random.normal(b, (num_pairs,)))
        for a, b in (keys[2:4], keys[4:6])
    )
    return params, first, second


def record(batch, index):
    return jax.tree.map(lambda array: array[index], batch)


def flat(params, example):
    return np.asarray(jax.flatten_util.ravel_pytree(jax.grad(loss)(params, example))[0], float)


@pytest.mark.parametrize("l2_clip", [None, 0.5])
def test_geometry_is_that_of_the_clipped_gradients(l2_clip):
    params, first, second = problem()
    pairs = gradient_pairs(loss, params, first, second, l2_clip=l2_clip)
    for i in range(5):
        g, other = (flat(params, record(part, i)) for part in (first, second))
        if l2_clip:
            g, other = (v * min(1, l2_clip / np.linalg.norm(v)) for v in (g, other))
        assert pairs.norms[i] == pytest.approx(np.linalg.norm(g), rel=1e-5)
        assert pairs.other_norms[i] == pytest.approx(np.linalg.norm(other), rel=1e-5)
        assert pairs.distances[i] == pytest.approx(np.linalg.norm(g - other), rel=1e-3, abs=1e-6)


def test_a_batch_can_be_the_unit():
    params, first, second = problem()
    batches = [
        jax.tree.map(lambda a: a.reshape(4, 5, *a.shape[1:]), part) for part in (first, second)
    ]

    def mean_loss(params, batch):
        return jax.vmap(loss, (None, 0))(params, batch).mean()

    pairs = gradient_pairs(mean_loss, params, *batches)
    mean = np.mean([flat(params, record(first, i)) for i in range(5)], axis=0)
    assert pairs.norms.shape == (4,)
    assert pairs.norms[0] == pytest.approx(np.linalg.norm(mean), rel=1e-5)


def test_gradients_that_vanish_or_are_not_finite_contribute_nothing():
    x = jnp.array([[0.0, 0.0], [jnp.inf, 0.0]])
    pairs = gradient_pairs(lambda w, x: w @ x, jnp.zeros(2), x, jnp.ones((2, 2)))
    assert pairs.norms.tolist() == [0.0, 0.0]
    np.testing.assert_allclose(pairs.distances, np.sqrt(2), rtol=1e-6)


def test_no_record_is_in_two_pairs_and_all_are_as_likely():
    drawn = [independent_pairs(jax.random.key(seed), 12, 3) for seed in range(400)]
    assert all(len(np.unique(pairs)) == 6 for pairs in drawn)
    counts = np.bincount(np.ravel(drawn), minlength=12)  # 200 each, standard deviation 10
    assert np.abs(counts - 200).max() < 50


def test_replacing_a_record_can_cost_more_than_the_published_formula_says():
    params, first, second = problem(200)
    pairs = gradient_pairs(loss, params, first, second, l2_clip=1.0)
    settings = {"sampling_rate": 0.05, "noise_std": 0.8}
    own = bayesian.replaced_sampled_gaussian((1, 3), *pairs, **settings)
    published = bayesian.sampled_gaussian((1, 3), pairs.distances, **settings)
    assert np.mean(own[:, 0] > published[:, 0]) > 0.2
    sampling = dpjax.PoissonSampling(1_000, 0.05)
    mechanism = dpjax.SubsampledGaussian(sampling, 1.0, 0.8, 1, "replace_one")
    account = bayesian.init(mechanism, orders=(1, 3))
    both = bayesian.epsilon(bayesian.update_with(account, own), 1e-5)
    assert 0 < both.differential < np.inf


def test_bad_input_is_refused_by_name():
    params, first, second = problem(4)
    with pytest.raises(ValueError, match="second must be as many examples"):
        gradient_pairs(loss, params, first, jax.tree.map(lambda a: a[:3], second))
    with pytest.raises(ValueError, match="l2_clip"):
        gradient_pairs(loss, params, first, second, l2_clip=0.0)
    with pytest.raises(ValueError, match="num_pairs must be at most 5"):
        independent_pairs(jax.random.key(0), 10, 6)


def test_pairs_of_equal_records_cost_nothing():
    pairs = Pairs(jnp.ones(3), jnp.ones(3), jnp.ones(3))
    assert pairs.distances.tolist() == [0, 0, 0]
