"""Every transformation of dpjax, with what it is fed: the matrix that the contract runs over."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
import pytest
from helpers.inputs import update_of

from dpjax import (
    BandedToeplitz,
    FixedSizeSampling,
    SubsampledGaussian,
    add_gaussian_noise,
    clip_per_example,
    differentially_private_aggregate,
    noisy_adam,
    noisy_sgd,
)

KEY = jax.random.key(0)
SIZE = 4
# Schedules are part of a state's structure and compared by identity.
FALLING, CONSTANT = optax.linear_schedule(0.5, 0.1, 9), optax.constant_schedule(0.5)
MECHANISM = SubsampledGaussian(
    FixedSizeSampling(40, 4),
    l2_clip=1.0,
    noise_multiplier=0.5,
    num_steps=100,
    adjacency="replace_one",
)


class Case(NamedTuple):
    """A transformation.

    Attributes:
      make: builds it; the key is where its noise comes from.
      takes_examples: whether its updates have a leading example axis (else they are a sum).
      noisy: whether it adds noise.
      ends_like_params: whether updates have the parameters' dtype; else half becomes single.
      strict: whether it works without promotion of dtypes, which optax's Adam and schedules need.
    """

    make: Callable[[jax.Array], optax.GradientTransformation]
    takes_examples: bool
    noisy: bool = True
    ends_like_params: bool = True
    strict: bool = True

    def updates(self, params):
        """What it takes for these parameters: gradients of examples that differ, or their sum."""

        def examples(leaf):
            scale = jnp.arange(1, SIZE + 1, dtype=leaf.dtype).reshape(-1, *[1] * leaf.ndim)
            return scale * (1 + jnp.expand_dims(leaf, 0))

        grads = jax.tree.map(examples, params)
        return grads if self.takes_examples else jax.tree.map(_single_sum, grads)


def _single_sum(leaf):
    """As the library's sums are: in single precision or wider."""
    return leaf.sum(0, dtype=leaf.dtype if leaf.dtype.itemsize > 2 else jnp.float32)


CASES = {
    "clip_per_example": Case(
        lambda key: clip_per_example(1.0), True, noisy=False, ends_like_params=False
    ),
    "clip_per_example by layer": Case(
        lambda key: clip_per_example({"w": 1.0, "b": 2.0}),
        True,
        noisy=False,
        ends_like_params=False,
    ),
    "add_gaussian_noise": Case(
        lambda key: add_gaussian_noise(noise_multiplier=0.5, l2_clip=1.0, key=key),
        False,
        ends_like_params=False,
    ),
    "add_gaussian_noise with a schedule": Case(
        lambda key: add_gaussian_noise(
            noise_multiplier=FALLING,
            l2_clip={"w": 1.0, "b": 2.0},
            key=key,
        ),
        False,
        ends_like_params=False,
    ),
    "add_gaussian_noise with correlation": Case(
        lambda key: add_gaussian_noise(
            noise_multiplier=0.5,
            l2_clip=1.0,
            key=key,
            correlation=BandedToeplitz(3, coefficients="square_root"),
        ),
        False,
        ends_like_params=False,
    ),
    "noisy_sgd": Case(
        lambda key: noisy_sgd(
            0.1, l2_clip=1.0, noise_multiplier=0.5, expected_batch_size=SIZE, key=key
        ),
        True,
    ),
    "noisy_sgd with schedules": Case(
        lambda key: noisy_sgd(
            optax.cosine_decay_schedule(0.1, 9),
            l2_clip=1.0,
            noise_multiplier=CONSTANT,
            expected_batch_size=SIZE,
            key=key,
        ),
        True,
        strict=False,
    ),
    "noisy_adam": Case(
        lambda key: noisy_adam(
            0.1, l2_clip=1.0, noise_multiplier=0.5, expected_batch_size=SIZE, key=key
        ),
        True,
        strict=False,
    ),
    "differentially_private_aggregate": Case(
        lambda key: differentially_private_aggregate(1.0, 0.5, key), True
    ),
    "SubsampledGaussian.noise": Case(MECHANISM.noise, False, ends_like_params=False),
    "SubsampledGaussian.private_optimizer": Case(
        lambda key: MECHANISM.private_optimizer(optax.adam(0.1), key=key), False, strict=False
    ),
}


@pytest.fixture(params=CASES, ids=lambda name: name.replace(" ", "_"))
def case(request):
    case = CASES[request.param]
    promotion = "strict" if case.strict else "standard"
    with jax.numpy_dtype_promotion(promotion), jax.numpy_rank_promotion("raise"):
        yield case


@pytest.fixture
def transformation(case):
    return case.make(KEY)


class Compiled(NamedTuple):
    """An update, compiled once for all tests, and a list that grows when it is traced."""

    update: Callable[..., Any]
    traces: list[None]


@functools.cache
def _compiled(case):
    transformation, traces = case.make(KEY), []

    def update(updates, state, params):
        traces.append(None)
        return update_of(transformation)(updates, state, params)

    return Compiled(jax.jit(update), traces)


@pytest.fixture
def compiled(case):
    return _compiled(case)
