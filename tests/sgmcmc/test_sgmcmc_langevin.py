"""The Langevin mechanism: step sizes, injected and added noise, certificates of the samplers."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
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
    CyclicalCosine,
    PolynomialDecay,
    RMSProp,
    injected_noise_multiplier,
)
from dpjax.bayes.sgmcmc.langevin import as_schedule, evaluate_step_sizes

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
def test_certified_epsilons_of_the_slides_settings(batch, printed, true_posterior):
    chain = slides(batch, temperature=PUBLISHED_TEMPERATURE)
    assert certified(chain) == pytest.approx(printed, rel=0.005)
    assert certified(slides(batch)) == pytest.approx(true_posterior, rel=0.005)


def test_certified_epsilon_of_a_step_of_3e_4_is_a_tenth():
    printed = slides(step_size=3.2e-4, temperature=PUBLISHED_TEMPERATURE)
    assert certified(printed) == pytest.approx(0.1, rel=0.03)


@pytest.mark.parametrize(("adjacency", "in_clips"), [("zero_out", 1), ("replace_one", 2)])
def test_certificate_of_falling_steps_on_all_records_is_gaussian(adjacency, in_clips):
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
def test_certified_epsilon_counts_eight_chains(batches, epsilon):
    chain = slides(num_chains=8, batches=batches)
    assert certified(chain) == pytest.approx(epsilon, rel=0.005)
    assert chain.num_releases == 80_000


def test_noise_multiplier_of_each_sampler_by_its_formula():
    sgld = slides(temperature=0.7)
    assert sgld.gaussian.noise_multiplier == pytest.approx(1_000 * np.sqrt(2 * 0.7 / (0.1 * N)) / 4)
    fields = {"l2_clip": 4.0, "step_size": 0.1, "num_steps": 5, "adjacency": "add_remove"}
    sghmc = SGHMC(sgld.sampling, **fields, temperature=0.7, friction=0.2)
    assert sghmc.gaussian.noise_multiplier == pytest.approx(
        1_000 * np.sqrt(2 * 0.2 * 0.7 / (0.1 * N)) / 4
    )
    preconditioner = RMSProp(min_value=0.1, max_value=5.0)
    psgld = PSGLD(sgld.sampling, **fields, preconditioner=preconditioner)
    assert psgld.gaussian.noise_multiplier == pytest.approx(1_000 * np.sqrt(2 / (0.1 * N * 5)) / 4)


def test_published_temperature_gives_the_published_noise():
    printed_noise = np.sqrt(0.1 / N)  # of the parameters
    of_the_sum = printed_noise * 1_000 / 0.1 / 4.0
    chain = slides(temperature=PUBLISHED_TEMPERATURE)
    assert chain.gaussian.noise_multiplier == pytest.approx(of_the_sum)
    assert slides().gaussian.noise_multiplier == pytest.approx(of_the_sum * np.sqrt(2))


def test_injected_noise_multiplier_of_bounds_for_each_layer():
    one = injected_noise_multiplier(
        0.1, temperature=1.0, num_examples=N, expected_batch_size=100, l2_clip=5.0
    )
    layers = injected_noise_multiplier(
        0.1, temperature=1.0, num_examples=N, expected_batch_size=100, l2_clip={"a": 3.0, "b": 4.0}
    )
    assert layers == pytest.approx(one)


def test_min_noise_multiplier_raises_the_steps_below_it():
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


def test_with_privacy_factor_shrinks_the_steps():
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


def test_certificate_describes_the_chain():
    text = slides(num_steps=10, num_chains=3).certificate(1e-5).paragraph()
    for said in ("SGLD, step size 0.1", "temperature 1", "3, with a batch for each"):
        assert said in text


def test_polynomial_decay_is_the_power():
    sizes = evaluate_step_sizes(PolynomialDecay(0.3), 100)
    np.testing.assert_allclose(sizes, 0.3 * np.arange(1, 101) ** (-1 / 3), rtol=1e-5)
    assert (evaluate_step_sizes(PolynomialDecay(0.3, exponent=0), 5) == np.float32(0.3)).all()


def test_cyclical_cosine_repeats_and_stays_above_zero():
    sizes = evaluate_step_sizes(CyclicalCosine(0.3, period=10), 30)
    np.testing.assert_allclose(sizes[:10], sizes[10:20])
    assert sizes[0] == np.float32(0.3)
    assert (np.diff(sizes[:10]) < 0).all()
    assert sizes.min() > 0


@pytest.mark.parametrize(
    "schedule", [PolynomialDecay(0.3), CyclicalCosine(0.3, period=4), optax.constant_schedule(1.0)]
)
def test_as_schedule_traces_and_agrees_with_evaluate_step_sizes(schedule):
    sizes = evaluate_step_sizes(schedule, 9)
    traced = jax.jit(as_schedule(tuple(sizes.tolist())))
    np.testing.assert_allclose([traced(jnp.int32(step)) for step in range(9)], sizes, rtol=1e-6)


def test_evaluate_step_sizes_gives_numbers_under_jit():
    @jax.jit
    def last(x):
        return x * evaluate_step_sizes(PolynomialDecay(0.3), 8)[-1]

    np.testing.assert_allclose(last(jnp.ones(())), 0.15, rtol=1e-6)


OWN = {"l2_clip": 1.0, "step_size": 0.1, "num_steps": 5, "adjacency": "add_remove"}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: slides(step_size=-0.1), "step_size"),
        (lambda: slides(step_size=(0.1, 0.2)), "step_size"),
        (lambda: slides(step_size=lambda step: 0.1 - step), "step_size"),
        (lambda: slides(temperature=0.0), "temperature"),
        (lambda: slides(min_noise_multiplier=-1.0), "min_noise_multiplier"),
        (lambda: slides(num_chains=0), "num_chains"),
        (lambda: slides(batches="mixed"), "batches"),
        (lambda: slides(num_steps=0), "num_steps"),
        (lambda: slides(l2_clip=0.0), "l2_clip"),
        (lambda: slides(adjacency="swap"), "adjacency"),
        (lambda: SGHMC(PoissonSampling(10, 1.0), **OWN, friction=1.5), "friction"),
        (lambda: RMSProp(min_value=1.0, max_value=0.5), "max_value"),
        (lambda: RMSProp(min_value=0.1, max_value=0.5, decay=1.0), "decay"),
        (lambda: PolynomialDecay(0.0), "initial must be"),
        (lambda: PolynomialDecay(1.0, exponent=2.0), "exponent must be"),
        (lambda: CyclicalCosine(1.0, period=0), "period must be"),
    ],
)
def test_refusals_of_numbers_out_of_range(call, message):
    with pytest.raises(ValueError, match=message):
        call()
