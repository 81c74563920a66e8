"""The Langevin mechanism: injected noise, added noise and certificates of the samplers."""

import dataclasses

import numpy as np
import pytest
from scipy import stats

from dpjax import PoissonSampling, calibrate
from dpjax.accounting.accountants import certified_epsilon
from dpjax.accounting.events import decompose
from dpjax.bayes.sgmcmc import (
    PSGLD,
    PUBLISHED_TEMPERATURE,
    SGHMC,
    SGLD,
    PolynomialDecay,
    RMSProp,
    injected_noise_multiplier,
)

N = 50_000


def slides(batch=1_000, **changes):
    """The slides' MNIST setting."""
    sampling = PoissonSampling(N, batch / N)
    return dataclasses.replace(
        SGLD(sampling, l2_clip=4.0, step_size=0.1, num_steps=10_000, adjacency="add_remove"),
        **changes,
    )


def certified(chain, delta=1e-5):
    return certified_epsilon(decompose(chain.event, chain.adjacency), delta)[1]


@pytest.mark.parametrize(
    ("batch", "printed", "true_posterior"),
    [(100, 36.2, 8.87), (256, 3.5, 1.90), (1_000, 2.35, 1.58), (5_000, 2.29, 1.56)],
)
def test_the_slides_settings_certify_these_epsilons(batch, printed, true_posterior):
    chain = slides(batch, temperature=PUBLISHED_TEMPERATURE)
    assert certified(chain) == pytest.approx(printed, rel=0.005)
    assert certified(slides(batch)) == pytest.approx(true_posterior, rel=0.005)


def test_a_step_of_3e_4_certifies_a_tenth():
    printed = slides(step_size=3.2e-4, temperature=PUBLISHED_TEMPERATURE)
    assert certified(printed) == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize(("adjacency", "in_clips"), [("zero_out", 1), ("replace_one", 2)])
def test_a_chain_of_falling_steps_on_all_records_is_a_gaussian_mechanism(adjacency, in_clips):
    """By the profile of N(mu, 1), with the noise of each step by its formula."""
    sizes = (0.4, 0.2, 0.1)
    chain = SGLD(
        PoissonSampling(N, 1.0),
        l2_clip=4.0,
        step_size=sizes,
        num_steps=3,
        adjacency=adjacency,
        temperature=0.7,
    )
    noises = np.sqrt(2 * 0.7 * N / np.array(sizes)) / 4.0

    def delta_of(noises, epsilon):
        mu = in_clips * np.sqrt(np.sum(noises**-2.0))
        low, high = (stats.norm.cdf(sign * mu / 2 - epsilon / mu) for sign in (-1, 1))
        return high - np.exp(epsilon) * low

    epsilon = chain.certificate(1e-5).epsilon
    assert delta_of(noises, epsilon) == pytest.approx(1e-5, rel=0.02)
    for wrong in (noises[[0, 0, 0]], noises[[1, 2, 2]], noises[:2], noises / 2):  # power
        assert delta_of(wrong, epsilon) != pytest.approx(1e-5, rel=0.1)


@pytest.mark.parametrize(("batches", "epsilon"), [("own", 5.12), ("shared", 5.62)])
def test_eight_chains_are_counted(batches, epsilon):
    chain = slides(num_chains=8, batches=batches)
    assert certified(chain) == pytest.approx(epsilon, rel=0.005)
    assert chain.num_releases == 80_000


def test_the_noise_of_each_sampler_by_its_formula():
    sgld = slides(temperature=0.7)
    assert sgld.gaussian.noise_multiplier == pytest.approx(1_000 * np.sqrt(2 * 0.7 / (0.1 * N)) / 4)
    sghmc = SGHMC(
        sgld.sampling,
        l2_clip=4.0,
        step_size=0.1,
        num_steps=5,
        adjacency="add_remove",
        temperature=0.7,
        friction=0.2,
    )
    assert sghmc.gaussian.noise_multiplier == pytest.approx(
        1_000 * np.sqrt(2 * 0.2 * 0.7 / (0.1 * N)) / 4
    )
    psgld = PSGLD(
        sgld.sampling,
        l2_clip=4.0,
        step_size=0.1,
        num_steps=5,
        adjacency="add_remove",
        preconditioner=RMSProp(min_value=0.1, max_value=5.0),
    )
    assert psgld.gaussian.noise_multiplier == pytest.approx(1_000 * np.sqrt(2 / (0.1 * N * 5)) / 4)


def test_printed_noise_is_temperature_one_half():
    printed_noise = np.sqrt(0.1 / N)  # of the parameters
    of_the_sum = printed_noise * 1_000 / 0.1 / 4.0
    chain = slides(temperature=PUBLISHED_TEMPERATURE)
    assert chain.gaussian.noise_multiplier == pytest.approx(of_the_sum)
    assert slides().gaussian.noise_multiplier == pytest.approx(of_the_sum * np.sqrt(2))


def test_per_layer_bounds_count_together():
    one = injected_noise_multiplier(
        0.1, temperature=1.0, num_examples=N, expected_batch_size=100, l2_clip=5.0
    )
    layers = injected_noise_multiplier(
        0.1, temperature=1.0, num_examples=N, expected_batch_size=100, l2_clip={"a": 3.0, "b": 4.0}
    )
    assert layers == pytest.approx(one)


def test_a_floor_raises_the_steps_that_are_below_it_and_reports_by_how_much():
    chain = slides(step_size=PolynomialDecay(0.4), num_steps=50, min_noise_multiplier=4.0)
    injected, used = chain.injected_noise_multipliers, chain.noise_multipliers
    short = injected < 4
    assert 0 < short.sum() < 50
    np.testing.assert_allclose(used, np.where(short, 4.0, injected))
    # The used noise is the chain's own at the raised temperature.
    raised = injected_noise_multiplier(
        chain.step_sizes,
        temperature=1 + chain.excess_temperatures,
        num_examples=N,
        expected_batch_size=1_000,
        l2_clip=4.0,
    )
    np.testing.assert_allclose(raised, used)
    assert (chain.excess_temperatures[~short] == 0).all()
    assert chain.gaussian.noise_multiplier == tuple(used.tolist())
    assert f"in {short.sum()} of 50 steps" in chain.guarantee.description["injected noise"]


def test_scaling_the_noise_shrinks_the_steps():
    for step_size in (0.1, (0.1,) * 20, PolynomialDecay(0.1)):
        chain = slides(step_size=step_size, num_steps=20, min_noise_multiplier=6.0)
        np.testing.assert_allclose(
            chain.with_privacy_factor(3.0).noise_multipliers, 3 * chain.noise_multipliers
        )
        np.testing.assert_allclose(chain.with_privacy_factor(3.0).step_sizes, chain.step_sizes / 9)


def test_calibrate_takes_a_chain():
    chain = calibrate(slides(), epsilon=1.0, delta=1e-5)
    assert 0.99 <= certified(chain) <= 1
    assert chain.injected_noise_multipliers[0] == chain.gaussian.noise_multiplier


def test_a_certificate_describes_the_chain():
    text = slides(num_steps=10, num_chains=3).certificate(1e-5).paragraph()
    for said in ("SGLD, step size 0.1", "temperature 1", "3, with a batch for each"):
        assert said in text


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"step_size": -0.1}, "step_size"),
        ({"step_size": (0.1, 0.2)}, "step_size"),
        ({"step_size": lambda step: 0.1 - step}, "step_size"),
        ({"temperature": 0.0}, "temperature"),
        ({"min_noise_multiplier": -1.0}, "min_noise_multiplier"),
        ({"num_chains": 0}, "num_chains"),
        ({"batches": "mixed"}, "batches"),
        ({"num_steps": 0}, "num_steps"),
        ({"l2_clip": 0.0}, "l2_clip"),
        ({"adjacency": "swap"}, "adjacency"),
    ],
)
def test_what_is_out_of_range_is_named(changes, named):
    with pytest.raises(ValueError, match=named):
        slides(**{"num_steps": 10, **changes})


def test_friction_and_preconditioner_are_checked():
    sampling = PoissonSampling(10, 1.0)
    with pytest.raises(ValueError, match="friction"):
        SGHMC(
            sampling, l2_clip=1.0, step_size=0.1, num_steps=5, adjacency="add_remove", friction=1.5
        )
    with pytest.raises(ValueError, match="max_value"):
        RMSProp(min_value=1.0, max_value=0.5)
    with pytest.raises(ValueError, match="decay"):
        RMSProp(min_value=0.1, max_value=0.5, decay=1.0)
