"""The drop-in for optax.contrib: the same where that is right, and different where it is not."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
    differentially_private_aggregate,
    mechanism_of,
)

pytestmark = pytest.mark.usefixtures("strict_numerics")

PARAMS = {"kernel": jnp.zeros((3, 2)), "biases": (jnp.zeros(2), jnp.zeros(()))}
SIZE = 8


def filled():
    """The gradient of example i is full of i."""
    numbers = jnp.arange(SIZE, dtype=jnp.float32)
    return jax.tree.map(
        lambda leaf: jnp.ones((SIZE, *leaf.shape)) * numbers.reshape(-1, *[1] * leaf.ndim), PARAMS
    )


def random_examples(seed, count=SIZE):
    return jax.tree.map(
        lambda leaf: jax.random.normal(jax.random.key(seed), (count, *leaf.shape)), PARAMS
    )


def threaded(aggregate, count, updates):
    """The means of several updates, the state handed on."""
    state, means = aggregate.init(PARAMS), []
    for i in range(count):
        mean, state = aggregate.update(updates(i), state, PARAMS)
        means.append(mean)
    return means


class TestLikeOptax:
    @pytest.mark.slow
    def test_mean_gradient_without_noise(self):
        aggregate = differentially_private_aggregate(1e9, 0.0, key=0)
        for i, mean in enumerate(threaded(aggregate, 3, random_examples)):
            expected = jax.tree.map(lambda leaf: leaf.mean(0), random_examples(i))
            chex.assert_trees_all_close(mean, expected, rtol=1e-5, atol=1e-7)

    @pytest.mark.slow
    @pytest.mark.parametrize("l2_norm_clip", [0.5, 10.0, 20.0, 40.0, 80.0])
    def test_clipping_by_the_norm_of_all_leaves(self, l2_norm_clip):
        entries = sum(leaf.size for leaf in jax.tree.leaves(PARAMS))  # 9, so norms are 3 i
        factors = [min(1.0, l2_norm_clip / (i * entries**0.5)) if i else 1.0 for i in range(SIZE)]
        value = np.mean([i * factor for i, factor in enumerate(factors)])
        expected = jax.tree.map(lambda leaf: np.full(leaf.shape, value), PARAMS)
        aggregate = differentially_private_aggregate(l2_norm_clip, 0.0, key=0)
        for mean in threaded(aggregate, 3, lambda i: filled()):
            chex.assert_trees_all_close(mean, expected, rtol=3e-6)

    @pytest.mark.slow
    @pytest.mark.parametrize("l2_norm_clip", [0.5, 3.0, 80.0])
    @pytest.mark.parametrize("noise_multiplier", [0.5, 4.0])
    def test_noise_scale(self, l2_norm_clip, noise_multiplier):
        """10 000 draws: the deviation of one is known to 0.7 %, so 10 % is 14 standard errors."""
        aggregate = differentially_private_aggregate(l2_norm_clip, noise_multiplier, key=1)
        noise, _ = aggregate.update(jnp.zeros((1, 100, 100)), aggregate.init(None))
        deviation = l2_norm_clip * noise_multiplier
        assert np.std(noise) == pytest.approx(deviation, rel=0.1)
        assert abs(np.mean(noise)) < 5 * deviation / 100

    @pytest.mark.parametrize("given", [True, False], ids=["params", "no params"])
    def test_summed_gradients_refused(self, given):
        aggregate = differentially_private_aggregate(1.0, 0.0, key=0)
        summed = jax.tree.map(lambda leaf: leaf.sum(0), filled())
        with pytest.raises(ValueError, match=r"^updates must "):
            aggregate.update(summed, aggregate.init(PARAMS), PARAMS if given else None)

    @pytest.mark.parametrize("l2_norm_clip", [0.1, 2.0, 1e3])
    @pytest.mark.parametrize("updates", [lambda i: filled(), random_examples], ids=["filled", ""])
    def test_equals_optax_without_noise(self, l2_norm_clip, updates):
        ours = differentially_private_aggregate(l2_norm_clip, 0.0, key=7)
        theirs = optax.contrib.differentially_private_aggregate(l2_norm_clip, 0.0, key=7)
        for mean, other in zip(
            threaded(ours, 3, updates), threaded(theirs, 3, updates), strict=True
        ):
            chex.assert_trees_all_close(mean, other, rtol=1e-5, atol=1e-6)

    def test_arguments_and_state_of_optax(self):
        for module in (optax.contrib, None):
            build = getattr(module, "differentially_private_aggregate", None)
            aggregate = (build or differentially_private_aggregate)(
                l2_norm_clip=1.0, noise_multiplier=0.5, key=jax.random.key(2)
            )
            chain = optax.chain(aggregate, optax.trace(0.9), optax.scale_by_learning_rate(0.1))
            state = chain.init(PARAMS)
            assert state[0].rng_key == jax.random.key(2)
            assert type(state[0]).__name__ == "DifferentiallyPrivateAggregateState"
            assert state[0]._fields[0] == "rng_key"
            assert len(jax.tree.leaves(state[0])) == 1
            moved, state = chain.update(filled(), state, PARAMS)
            assert jax.tree.map(jnp.shape, moved) == jax.tree.map(jnp.shape, PARAMS)
            assert state[0].rng_key != jax.random.key(2)


class TestUnlikeOptax:
    @pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
    def test_nonfinite_example(self, value):
        broken = filled()
        broken["kernel"] = broken["kernel"].at[3, 0, 0].set(value)
        zero = jax.tree.map(lambda leaf: leaf.at[3].set(0), filled())
        aggregate = differentially_private_aggregate(2.0, 0.5, key=0)
        means = [threaded(aggregate, 1, lambda i, u=u: u)[0] for u in (broken, zero)]
        jax.tree.map(np.testing.assert_array_equal, *means)

    def test_empty_batch(self):
        aggregate = differentially_private_aggregate(2.0, 0.5, key=0)
        noise, _ = aggregate.update(jnp.zeros((0, 100, 100)), aggregate.init(None))
        assert np.std(noise) == pytest.approx(1.0, rel=0.1)

    @pytest.mark.parametrize(
        "key",
        [3, np.int64(3), np.uint32(3), jax.random.key(3), jax.random.PRNGKey(3)],
        ids=["int", "int64", "uint32", "key", "raw key"],
    )
    def test_seeds_and_keys(self, key):
        state = differentially_private_aggregate(1.0, 1.0, key).init(PARAMS)
        assert state.rng_key == jax.random.key(3)

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            *(((1.0, 1.0, key), r"^key must be .* got")
              for key in (True, np.True_, 3.0, np.float32(3), None, "3", [3])),
            *(((bound, 1.0, 0), r"^l2_norm_clip must be a finite number > 0, got")
              for bound in (0.0, -1.0, np.nan, np.inf, {"w": 1.0})),
            *(((1.0, multiplier, 0), r"^noise_multiplier must be a finite number >= 0")
              for multiplier in (-1.0, np.nan, np.inf)),
        ],
    )  # fmt: skip
    def test_arguments_refused(self, arguments, message):
        with pytest.raises((TypeError, ValueError), match=message):
            differentially_private_aggregate(*arguments)


class TestItsMechanism:
    AGGREGATE = differentially_private_aggregate(1.5, 0.7, key=0)

    @pytest.mark.parametrize(
        "sampling",
        [PoissonSampling(100, 0.1), TruncatedPoissonSampling(100, 0.1, truncated_batch_size=20)],
        ids=repr,
    )
    def test_mechanism_of_private_batch_length_refused(self, sampling):
        with pytest.raises(
            ValueError, match=r"divides by the length of the drawn batch.*noisy_sgd"
        ):
            mechanism_of(self.AGGREGATE, sampling=sampling, num_steps=3, adjacency="add_remove")

    @pytest.mark.parametrize(
        "sampling", [FixedSizeSampling(100, 10), ShuffledEpochs(100, 10)], ids=repr
    )
    def test_mechanism_of_fixed_batch_length(self, sampling):
        mechanism = mechanism_of(
            self.AGGREGATE, sampling=sampling, num_steps=3, adjacency="replace_one"
        )
        assert (mechanism.l2_clip, mechanism.noise_multiplier) == (1.5, 0.7)
        assert (mechanism.num_steps, mechanism.sensitivity) == (3, 3.0)
