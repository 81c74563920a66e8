"""The mechanism read off an optax transformation has that transformation's own numbers."""

import jax
import jax.numpy as jnp
import optax
import pytest

from dpjax.mechanisms import SubsampledGaussian, mechanism_of
from dpjax.sampling import FixedSizeSampling, PoissonSampling, TruncatedPoissonSampling
from dpjax.transforms import (
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_adam,
    noisy_sgd,
)

KEY = jax.random.key(0)
POISSON = PoissonSampling(100, 0.1)
FIXED = FixedSizeSampling(100, 10)

TRANSFORMS = {
    "add_gaussian_noise": lambda clip, sigma: add_gaussian_noise(
        noise_multiplier=sigma, l2_clip=clip, key=KEY
    ),
    "noisy_sgd": lambda clip, sigma: noisy_sgd(
        0.1, l2_clip=clip, noise_multiplier=sigma, expected_batch_size=10, key=KEY
    ),
    "noisy_adam": lambda clip, sigma: noisy_adam(
        0.1, l2_clip=clip, noise_multiplier=sigma, expected_batch_size=10, key=KEY
    ),
}


@pytest.mark.parametrize("name", TRANSFORMS)
@pytest.mark.parametrize("clip", [0.7, {"a": 3.0, "b": 4.0}])
def test_clip_and_noise_are_the_transformations_own(name, clip):
    found = mechanism_of(
        TRANSFORMS[name](clip, 1.1),
        sampling=POISSON,
        num_steps=7,
        adjacency="add_remove",
        unit="one image",
    )
    assert found == SubsampledGaussian(
        POISSON,
        l2_clip=clip,
        noise_multiplier=1.1,
        num_steps=7,
        adjacency="add_remove",
        unit="one image",
    )


@pytest.mark.parametrize("name", TRANSFORMS)
def test_a_schedule_is_read_at_the_steps_the_loop_makes(name):
    falling = lambda step: 3.0 - jnp.minimum(step, 2)  # noqa: E731
    found = mechanism_of(
        TRANSFORMS[name](1.0, falling), sampling=POISSON, num_steps=4, adjacency="replace_one"
    )
    assert found.noise_multiplier == (3.0, 2.0, 1.0, 1.0)


def test_a_schedule_is_the_noise_that_is_added():
    falling = optax.exponential_decay(4.0, 1, 0.5)
    transform = add_gaussian_noise(noise_multiplier=falling, l2_clip=1.0, key=KEY)
    zeros = jnp.zeros(50_000)
    state = transform.init(zeros)
    found = mechanism_of(transform, sampling=POISSON, num_steps=3, adjacency="replace_one")
    for sigma in found.noise_multiplier:
        noise, state = transform.update(zeros, state)
        # 0.32 % is one standard error: seven of them, false alarm 3e-12
        assert float(noise.std()) == pytest.approx(sigma, rel=0.0225)


def test_the_mean_over_the_batchs_length_needs_a_public_length():
    aggregate = differentially_private_aggregate(0.7, 1.1, key=0)
    found = mechanism_of(aggregate, sampling=FIXED, num_steps=3, adjacency="replace_one")
    assert found == SubsampledGaussian(
        FIXED, l2_clip=0.7, noise_multiplier=1.1, num_steps=3, adjacency="replace_one"
    )
    for sampling in (POISSON, TruncatedPoissonSampling(100, 0.1, truncated_batch_size=15)):
        with pytest.raises(ValueError, match=f"private under {type(sampling).__name__}"):
            mechanism_of(aggregate, sampling=sampling, num_steps=3, adjacency="replace_one")


@pytest.mark.parametrize(
    "plain",
    [
        optax.sgd(0.1),
        clip_per_example(1.0),
        optax.chain(
            noisy_sgd(0.1, l2_clip=1.0, noise_multiplier=1.0, expected_batch_size=10, key=KEY),
            optax.scale(2.0),
        ),
    ],
    ids=["sgd", "clip alone", "wrapped"],
)
def test_what_has_no_description_is_refused(plain):
    with pytest.raises(
        ValueError, match="must be a state where dpjax's transformations are wrapped"
    ):
        mechanism_of(plain, sampling=POISSON, num_steps=3, adjacency="add_remove")


def test_numbers_out_of_range_are_refused():
    transform = noisy_sgd(
        0.1, l2_clip=1.0, noise_multiplier=lambda step: 1.0 - step, expected_batch_size=10, key=KEY
    )
    for num_steps, words in ((0, "num_steps must be"), (3, "noise_multiplier must be")):
        with pytest.raises(ValueError, match=words):
            mechanism_of(transform, sampling=POISSON, num_steps=num_steps, adjacency="add_remove")
