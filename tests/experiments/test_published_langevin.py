"""Published step sizes, and the chain that takes the place of an exact sample."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.bayes.sgmcmc import OnePosteriorSample
from experiments.published.langevin import (
    markov_chain_sample,
    step_size_bound_2015,
    step_size_bound_2017,
)

SLIDES = {"num_examples": 50_000, "num_steps": 10_000, "l2_clip": 4.0}


def test_step_size_bound_2015_is_the_published_value():
    oldest = step_size_bound_2015(epsilon=0.1, delta=1e-5, **SLIDES)
    assert oldest == pytest.approx(9.2e-8, rel=0.01)


def test_step_size_bound_2017_falls_as_t_to_the_third_and_with_the_square_of_epsilon():
    bounds = step_size_bound_2017([1, 8, 27], epsilon=0.1, delta=1e-5, **SLIDES, constant=0.235)
    np.testing.assert_allclose(bounds, bounds[0] / [1, 2, 3])
    assert bounds[0] == pytest.approx(0.106, rel=0.01)
    twice = step_size_bound_2017(1, epsilon=0.2, delta=1e-5, **SLIDES, constant=0.235)
    assert twice == pytest.approx(4 * bounds[0])


def test_step_size_bounds_refuse_what_is_out_of_range():
    with pytest.raises(ValueError, match="delta"):
        step_size_bound_2015(epsilon=0.1, delta=0.0, **SLIDES)
    with pytest.raises(ValueError, match="step"):
        step_size_bound_2017([0], epsilon=0.1, delta=1e-5, **SLIDES, constant=1.0)


@pytest.mark.slow
def test_markov_chain_sample_is_near_the_tempered_posterior():
    mechanism = OnePosteriorSample(1e3, low=-50.0, high=0.0, adjacency="replace_one")
    keys = jax.random.split(jax.random.key(0), 64)

    def draw(key):
        return markov_chain_sample(
            key,
            lambda w, x: -((w - x) ** 2),
            lambda w: -0.0 * w,
            jnp.zeros(()),
            jnp.full(40, 2.0),
            mechanism,
            num_steps=60,
        )

    draws = np.asarray(jax.jit(jax.vmap(draw))(keys))
    deviation = (2 * 40 * mechanism.scale) ** -0.5
    assert abs(draws.mean() - 2.0) < 5 * deviation / 8
    assert 0.6 * deviation < draws.std() < 1.5 * deviation
