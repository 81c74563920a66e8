"""Whole optimisers, and dpjax's transformations inside optax's wrappers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from dpjax import (
    PoissonSampling,
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    mechanism_of,
    noisy_adam,
    noisy_sgd,
)
from dpjax.transforms import PrivateTransformation
from dpjax.transforms.noise import NoiseDescription

KEY = jax.random.key(5)
CENTRES = jnp.array([[0.0, 0.0], [4.0, 0.0], [9.0, 9.0], [0.0, 4.0]])
OPTIMUM = CENTRES.mean(0)


def examples(params):
    """Gradients of ``|params - centre|^2 / 2``: the optimum is the mean of the centres."""
    return params - CENTRES


def gaussian(noise_multiplier=1.0, l2_clip=1.0, key=KEY):
    return add_gaussian_noise(noise_multiplier=noise_multiplier, l2_clip=l2_clip, key=key)


def make(build, learning_rate, l2_clip, noise_multiplier, size):
    return build(
        learning_rate,
        l2_clip=l2_clip,
        noise_multiplier=noise_multiplier,
        expected_batch_size=size,
        key=KEY,
    )


def descend(optimizer, steps, params=None):
    params = jnp.zeros(2) if params is None else params

    def step(carry, _):
        params, state = carry
        updates, state = optimizer.update(examples(params), state, params, mask=None)
        return (optax.apply_updates(params, updates), state), None

    return jax.lax.scan(step, (params, optimizer.init(params)), length=steps)[0][0]


class TestConvergence:
    @pytest.mark.slow
    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_noisy_optimizer_reaches_the_optimum_without_noise(self, optimizer):
        build, rate = {"sgd": (noisy_sgd, 0.3), "adam": (noisy_adam, 0.1)}[optimizer]
        found = descend(make(build, rate, 1e6, 0.0, len(CENTRES)), 300)
        np.testing.assert_allclose(found, OPTIMUM, atol=1e-3)

    @pytest.mark.parametrize("optimizer", ["sgd", "adam"])
    def test_noisy_optimizer_equals_optax_without_noise(self, optimizer):
        private = make({"sgd": noisy_sgd, "adam": noisy_adam}[optimizer], 0.1, 1e6, 0.0, 4)
        plain = {"sgd": optax.sgd, "adam": optax.adam}[optimizer](0.1)
        params = other = jnp.zeros(2)
        state, plain_state = private.init(params), plain.init(params)
        for _ in range(3):
            updates, state = private.update(examples(params), state, params, mask=None)
            params = optax.apply_updates(params, updates)
            updates, plain_state = plain.update(examples(other).mean(0), plain_state, other)
            other = optax.apply_updates(other, updates)
            np.testing.assert_allclose(params, other, rtol=1e-5)

    def test_noisy_sgd_of_a_tight_bound(self):
        """Every gradient then has one length; of four corners, where the diagonals cross."""
        found = descend(
            make(noisy_sgd, 0.1, 1e-2, 0.0, 0.1),
            2000,
        )
        np.testing.assert_allclose(found, [2, 2], atol=0.02)

    def test_noisy_sgd_of_large_noise(self):
        found = descend(
            make(noisy_sgd, 0.3, 1e6, 1.0, len(CENTRES)),
            10,
        )
        assert np.linalg.norm(found - OPTIMUM) > 1e3

    def test_noisy_sgd_schedule(self):
        optimizer = noisy_sgd(
            lambda step: jnp.array([1.0, 0.1])[step],
            l2_clip=1e6,
            noise_multiplier=0.0,
            expected_batch_size=1.0,
            key=KEY,
        )
        state = optimizer.init(jnp.zeros(2))
        first, state = optimizer.update(examples(jnp.zeros(2)), state, mask=None)
        second, _ = optimizer.update(examples(jnp.zeros(2)), state, mask=None)
        np.testing.assert_allclose(first, CENTRES.sum(0), rtol=1e-6)
        np.testing.assert_allclose(second, 0.1 * first, rtol=1e-6)

    def test_noisy_adam_options(self):
        optimizer = noisy_adam(
            0.1, l2_clip=1.0, noise_multiplier=0.0, expected_batch_size=4, key=KEY, b1=0.0, eps=1e6
        )
        updates, _ = optimizer.update(
            examples(jnp.zeros(2)), optimizer.init(jnp.zeros(2)), mask=None
        )
        assert np.max(np.abs(updates)) < 1e-6


@pytest.mark.slow
def test_noisy_sgd_divisor():
    optimizer = make(noisy_sgd, 1.0, 1e6, 0.0, 10)
    state = optimizer.init(jnp.zeros(2))
    for count in (0, 1, 3):
        updates, _ = optimizer.update(jnp.ones((count, 2)), state, mask=None)
        np.testing.assert_allclose(updates, -count / 10 * np.ones(2), rtol=1e-6)


@pytest.mark.parametrize("size", [0, -1.0, np.nan, np.inf, "10"], ids=repr)
@pytest.mark.parametrize("build", [noisy_sgd, noisy_adam])
def test_expected_batch_size_refused(build, size):
    with pytest.raises(ValueError, match=r"^expected_batch_size must be a finite number > 0, got"):
        make(build, 0.1, 1.0, 1.0, size)


class TestDescription:
    @pytest.mark.parametrize("build", [noisy_sgd, noisy_adam])
    def test_description_of_optimizers(self, build):
        optimizer = make(build, 0.1, {"w": 3.0, "b": 4.0}, 1.2, 10)
        assert isinstance(optimizer, PrivateTransformation)
        expected = NoiseDescription({"w": 3.0, "b": 4.0}, 1.2, "public constant")
        assert optimizer.description == expected

    def test_description_of_noise(self):
        assert gaussian(1.2, 0.5).description == NoiseDescription(0.5, 1.2, "none")
        aggregate = differentially_private_aggregate(0.5, 1.2, key=0)
        assert aggregate.description == NoiseDescription(0.5, 1.2, "batch length")

    def test_mechanism_of_schedule(self):
        noise = gaussian(lambda step: 1.0 + step, 0.5)
        mechanism = mechanism_of(
            noise, sampling=PoissonSampling(100, 0.1), num_steps=3, adjacency="add_remove"
        )
        assert mechanism.noise_multiplier == (1.0, 2.0, 3.0)


class TestInjectHyperparams:
    """optax.inject_hyperparams puts numbers and arrays into its state, and a key is an array.

    Injected, the key lies in ``state.hyperparams`` beside the one that the noise moves on: nothing
    is drawn from it after ``init``, but it is one more copy of a secret. ``static_args="key"``
    keeps it out. The bounds and multipliers are cast to the parameters' dtype unless
    ``hyperparam_dtype`` says otherwise, so with half precision it has to.
    """

    @staticmethod
    def run(make, params, updates, steps=3):
        traces = []

        @jax.jit
        def update(updates, state, params):
            traces.append(None)
            return optimizer.update(updates, state, params, mask=None)

        optimizer = make()
        state, outputs = optimizer.init(params), []
        for _ in range(steps):
            output, state = update(updates, state, params)
            outputs.append(output)
        assert len(traces) == 1
        return outputs, state

    FACTORIES = {  # noqa: RUF012
        "add_gaussian_noise": (
            add_gaussian_noise,
            {"noise_multiplier": 0.7, "l2_clip": 0.5, "key": KEY},
        ),
        "noisy_sgd": (
            noisy_sgd,
            {
                "learning_rate": 0.1,
                "l2_clip": 0.5,
                "noise_multiplier": 0.7,
                "expected_batch_size": 4.0,
                "key": KEY,
            },
        ),
        "differentially_private_aggregate": (
            differentially_private_aggregate,
            {"l2_norm_clip": 0.5, "noise_multiplier": 0.7, "key": KEY},
        ),
    }

    @pytest.mark.slow
    @pytest.mark.parametrize("static_args", [(), ("key",)], ids=["", "static key"])
    @pytest.mark.parametrize("name", FACTORIES)
    def test_inject_hyperparams_numbers(self, name, static_args):
        factory, arguments = self.FACTORIES[name]
        updates = jnp.ones(2) if name == "add_gaussian_noise" else examples(jnp.zeros(2))
        make = optax.inject_hyperparams(factory, static_args=static_args)
        outputs, state = self.run(lambda: make(**arguments), jnp.zeros(2), updates)
        expected, _ = self.run(lambda: factory(**arguments), jnp.zeros(2), updates)
        np.testing.assert_allclose(outputs, expected, rtol=1e-5)
        assert ("key" in state.hyperparams) == (not static_args)
        assert not np.allclose(outputs[0], outputs[1])

    def test_inject_hyperparams_changed_while_running(self):
        make = optax.inject_hyperparams(noisy_sgd, static_args="key")
        optimizer = make(1.0, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=1.0, key=KEY)
        state = optimizer.init(jnp.zeros(2))
        state.hyperparams["noise_multiplier"] = jnp.float32(0)
        state.hyperparams["l2_clip"] = jnp.float32(1e6)
        updates, _ = optimizer.update(examples(jnp.zeros(2)), state, jnp.zeros(2), mask=None)
        np.testing.assert_allclose(updates, CENTRES.sum(0), rtol=1e-6)

    @pytest.mark.slow
    def test_inject_hyperparams_schedule(self):
        make = optax.inject_hyperparams(add_gaussian_noise, static_args="key")
        noise = make(
            noise_multiplier=lambda step: jnp.array([1.0, 3.0])[step], l2_clip=1.0, key=KEY
        )
        outputs, state = self.run(lambda: noise, jnp.zeros(2), jnp.zeros(2), steps=2)
        units, _ = self.run(
            lambda: gaussian(),
            jnp.zeros(2),
            jnp.zeros(2),
            steps=2,
        )
        np.testing.assert_allclose(outputs, np.array([[1.0], [3.0]]) * units, rtol=1e-5)
        assert state.inner_state.num_releases == 2

    def test_inject_hyperparams_noisy_adam(self):
        """The way for noisy_adam, whose further options inject_hyperparams cannot pass on."""

        @optax.inject_hyperparams
        def make(learning_rate):
            return noisy_adam(
                learning_rate, l2_clip=1.0, noise_multiplier=0.0, expected_batch_size=4, key=KEY
            )

        optimizer = make(learning_rate=0.1)
        state = optimizer.init(jnp.zeros(2))
        first, _ = optimizer.update(examples(jnp.zeros(2)), state, jnp.zeros(2), mask=None)
        state.hyperparams["learning_rate"] = jnp.float32(0.2)
        second, _ = optimizer.update(examples(jnp.zeros(2)), state, jnp.zeros(2), mask=None)
        assert set(state.hyperparams) == {"learning_rate"}
        np.testing.assert_allclose(second, 2 * first, rtol=1e-6)

    @pytest.mark.slow
    def test_inject_hyperparams_half_precision(self):
        make = optax.inject_hyperparams(
            add_gaussian_noise, static_args="key", hyperparam_dtype=jnp.float32
        )
        params, sums = jnp.zeros(1000, jnp.bfloat16), jnp.zeros(1000)
        outputs, state = self.run(
            lambda: make(noise_multiplier=1.3, l2_clip=1.0, key=KEY), params, sums, steps=1
        )
        assert state.hyperparams["noise_multiplier"] == jnp.float32(1.3)
        expected, _ = self.run(
            lambda: gaussian(1.3),
            params,
            sums,
            steps=1,
        )
        np.testing.assert_array_equal(outputs[0], expected[0])


class TestOptaxWrappers:
    PARAMS = {"w": jnp.zeros(3), "b": jnp.zeros(3)}  # noqa: RUF012

    def test_masked_noise(self):
        noise = optax.masked(gaussian(), {"w": True, "b": False})
        output, _ = noise.update(self.PARAMS, noise.init(self.PARAMS), self.PARAMS)
        assert np.all(output["w"] != 0)
        assert not np.any(output["b"])

    def test_partition_noise(self):
        first, second = jax.random.split(KEY)
        split = optax.partition(
            {
                "large": gaussian(1.0, 100.0, key=first),
                "small": gaussian(key=second),
            },
            {"w": "large", "b": "small"},
        )
        output, _ = split.update(self.PARAMS, split.init(self.PARAMS), self.PARAMS)
        assert np.all(np.abs(output["w"]) > np.abs(output["b"]))
        assert not np.allclose(output["w"], 100 * output["b"])

    def test_chain_after_noise(self):
        chain = optax.chain(
            clip_per_example(1.0),
            gaussian(0.0),
            optax.scale(1 / 4),
            optax.add_decayed_weights(0.1),
            optax.trace(0.9),
            optax.scale_by_learning_rate(0.5),
        )
        params = jnp.array([1.0, 2.0])
        state = chain.init(params)
        updates, _ = chain.update(
            jnp.tile(jnp.array([[30.0, 40.0]]), (4, 1)), state, params, mask=None
        )
        np.testing.assert_allclose(updates, [-0.5 * (0.6 + 0.1), -0.5 * (0.8 + 0.2)], rtol=3e-6)
