"""Smallest and largest settings of every sampler, under every adjacency: a value or a refusal."""

import math

import jax
import pytest

from dpjax.accounting import UnsupportedEventError
from dpjax.adjacency import ADJACENCIES
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)

SAMPLERS = [
    PoissonSampling(1, 1.0),
    PoissonSampling(1, 1e-4),
    PoissonSampling(7, 1.0, physical_batch_size=7),
    TruncatedPoissonSampling(1, 1.0, truncated_batch_size=1),
    TruncatedPoissonSampling(7, 1.0, truncated_batch_size=7),
    TruncatedPoissonSampling(7, 1.0, truncated_batch_size=1),
    TruncatedPoissonSampling(7, 1e-4, truncated_batch_size=1),
    FixedSizeSampling(1, 1),
    FixedSizeSampling(7, 7),
    FixedSizeSampling(7, 1),
    ShuffledEpochs(1, 1),
    ShuffledEpochs(7, 7),
    ShuffledEpochs(7, 2),
]
DELTA = 1e-6


@pytest.mark.parametrize("sampling", SAMPLERS, ids=repr)
@pytest.mark.parametrize("adjacency", ADJACENCIES)
def test_every_setting_has_an_epsilon_or_is_refused(sampling, adjacency):
    for noise, steps in ((0.0, 3), (0.5, 1), (1e6, 3)):
        if adjacency == "add_remove" and isinstance(sampling, FixedSizeSampling | ShuffledEpochs):
            with pytest.raises(ValueError, match="must be 'replace_one' or 'zero_out' for"):
                SubsampledGaussian(
                    sampling,
                    l2_clip=1.0,
                    noise_multiplier=noise,
                    num_steps=steps,
                    adjacency=adjacency,
                )
            continue
        mechanism = SubsampledGaussian(
            sampling, l2_clip=1.0, noise_multiplier=noise, num_steps=steps, adjacency=adjacency
        )
        certificate = mechanism.certificate(DELTA)
        if noise == 0:
            assert math.isinf(certificate.epsilon)
        elif noise == 0.5:
            least = certificate.epsilon_lower
            assert 0 <= least <= certificate.epsilon < 200
        else:
            assert certificate.epsilon < 1e-3


@pytest.mark.slow
@pytest.mark.parametrize("sampling", SAMPLERS, ids=repr)
def test_every_setting_draws(sampling):
    draw, _ = jax.jit(sampling.draw)(sampling.init(jax.random.key(0)))
    batch = sampling.batch(draw, 0)
    assert batch.mask.shape == (sampling.physical_batch_size,)
    assert ((batch.indices >= 0) & (batch.indices < sampling.num_examples)).all()


def test_hardly_any_noise_is_refused_in_words():
    for sampling in (
        PoissonSampling(7, 0.5),
        TruncatedPoissonSampling(7, 0.5, truncated_batch_size=3),
    ):
        mechanism = SubsampledGaussian(
            sampling, l2_clip=1.0, noise_multiplier=1e-9, num_steps=1, adjacency="replace_one"
        )
        with pytest.raises(
            UnsupportedEventError, match=r"noise_multiplier .*at least 0.01 .*, got 1e-09"
        ):
            mechanism.certificate(DELTA)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf, "100"])
@pytest.mark.parametrize("sampler", [PoissonSampling, TruncatedPoissonSampling])
def test_a_divisor_that_is_no_positive_number_is_refused(sampler, value):
    size = {} if sampler is PoissonSampling else {"truncated_batch_size": 5}
    with pytest.raises(ValueError, match="expected_batch_size must be a finite number > 0"):
        sampler(10, 0.5, **size, expected_batch_size=value)
