"""One description gives the sampler, the noise and the event of NoisySGD."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    PoissonSampledDpEvent,
    SelfComposedDpEvent,
)
from scipy import optimize, stats

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import (
    FixedSizeSampling,
    PoissonSampling,
    ShuffledEpochs,
    TruncatedPoissonSampling,
)

POISSON = PoissonSampling(1000, 0.1)
COORDINATES = 20_000


def mechanism(**fields):
    usual = {
        "sampling": POISSON,
        "l2_clip": 0.5,
        "noise_multiplier": 2.0,
        "num_steps": 4,
        "adjacency": "add_remove",
    }
    return SubsampledGaussian(**{**usual, **fields})


def noises(described: SubsampledGaussian, num_steps: int) -> list[np.ndarray]:
    """What successive releases add to a sum of zeros."""
    transform = described.noise(jax.random.key(0))
    zeros = jnp.zeros(COORDINATES)
    update, state, released = jax.jit(transform.update), transform.init(zeros), []
    for _ in range(num_steps):
        noise, state = update(zeros, state)
        released.append(np.asarray(noise))
    return released


def std_p(noise: np.ndarray, std: float) -> float:
    """Gaussian noise of this standard deviation: two-sided chi-square of the sum of squares."""
    statistic = float(np.sum(np.square(noise, dtype=np.float64))) / std**2
    tails = stats.chi2.cdf(statistic, noise.size), stats.chi2.sf(statistic, noise.size)
    return 2 * min(tails)


def test_event_follows_from_fields():
    described = mechanism()
    step = PoissonSampledDpEvent(0.1, GaussianDpEvent(2.0))
    assert described.event == SelfComposedDpEvent(step, 4)
    assert described.num_releases == 4
    assert described.unit == "one record"


def test_noise_scale():
    # False alarm 1e-6 a step; the same assertion fails with five per cent too little.
    for noise in noises(mechanism(), 4):
        assert std_p(noise, 2.0 * 0.5) > 1e-6
        assert std_p(0.95 * noise, 2.0 * 0.5) < 1e-6


def test_noise_scale_of_per_layer_bounds():
    (noise,) = noises(mechanism(l2_clip=[0.3, 0.4], noise_multiplier=3.0), 1)
    assert std_p(noise, 3.0 * 0.5) > 1e-6


def test_noise_of_each_step_in_update_and_event():
    sigmas = (4.0, 4.0, 1.0)
    described = mechanism(noise_multiplier=sigmas, num_steps=3)
    for noise, sigma in zip(noises(described, 3), sigmas, strict=True):
        assert std_p(noise, 0.5 * sigma) > 1e-6
    strong, weak = (PoissonSampledDpEvent(0.1, GaussianDpEvent(s)) for s in (4.0, 1.0))
    assert described.event == ComposedDpEvent([SelfComposedDpEvent(strong, 2), weak])


def test_noise_of_steps_differs():
    first, second = noises(mechanism(), 2)
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / np.sqrt(COORDINATES)


@pytest.mark.parametrize("sigma", [0.0, 2.0, (1.0, 2.0)])
def test_noise_past_num_steps_is_nan(sigma):
    described = mechanism(noise_multiplier=sigma, num_steps=2)
    one, two, three, four = noises(described, 4)
    assert np.isfinite(one).all()
    assert np.isfinite(two).all()
    assert np.isnan(three).all()
    assert np.isnan(four).all()


def test_private_optimizer_divides_by_expected_batch_size():
    described = mechanism(noise_multiplier=0.0)
    optimizer = described.private_optimizer(optax.sgd(0.5), key=jax.random.key(0))
    params = jnp.zeros(2)
    updates, _ = optimizer.update(jnp.array([300.0, -40.0]), optimizer.init(params), params)
    np.testing.assert_allclose(updates, [-1.5, 0.2], rtol=1e-6)


def test_sensitivity_by_adjacency():
    assert mechanism().sensitivity == 0.5
    assert mechanism(adjacency="replace_one").sensitivity == 1.0


def test_first_steps_is_a_prefix():
    described = mechanism(noise_multiplier=(4.0, 3.0, 2.0, 1.0))
    stopped = described.first_steps(2)
    assert (stopped.num_steps, stopped.noise_multiplier) == (2, (4.0, 3.0))
    assert described.first_steps(4) == described
    assert mechanism().first_steps(3) == mechanism(num_steps=3)
    before, after = noises(described, 2), noises(stopped, 2)
    assert all((a == b).all() for a, b in zip(before, after, strict=True))
    for num_steps in (0, 5, 1.5):
        with pytest.raises(ValueError, match="num_steps must be"):
            described.first_steps(num_steps)


def test_with_privacy_factor_scales_every_step():
    assert mechanism().with_privacy_factor(1.5) == mechanism(noise_multiplier=3.0)
    scaled = mechanism(noise_multiplier=(1.0, 2.0, 3.0, 4.0)).with_privacy_factor(2.0)
    assert scaled.noise_multiplier == (2.0, 4.0, 6.0, 8.0)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_steps": 0}, "num_steps must be a whole number >= 1, got 0"),
        ({"num_steps": 2.5}, "num_steps must be a whole number >= 1, got 2.5"),
        ({"l2_clip": 0.0}, "l2_clip must be a finite number > 0, got 0.0"),
        ({"l2_clip": -1.0}, "l2_clip must be a finite number > 0, got -1.0"),
        ({"l2_clip": {"a": 1.0, "b": 0.0}}, "l2_clip must be a finite number > 0, got 0.0"),
        ({"l2_clip": {}}, "l2_clip must hold at least one number > 0"),
        ({"noise_multiplier": -0.1}, "noise_multiplier must be a finite number >= 0, got -0.1"),
        ({"noise_multiplier": float("nan")}, "noise_multiplier must be a finite number >= 0"),
        ({"noise_multiplier": float("inf")}, "noise_multiplier must be a finite number >= 0"),
        ({"noise_multiplier": (1.0, 1.0, 1.0, -1.0)}, "noise_multiplier must be .* got -1.0"),
        ({"noise_multiplier": (1.0, 1.0)}, "tuple of num_steps = 4 numbers, got '2 values'"),
        ({"adjacency": "swap"}, "adjacency must be one of 'add_remove', 'replace_one'"),
        ({"sampling": FixedSizeSampling(10, 2)}, "'replace_one' or 'zero_out' for FixedSize"),
        ({"sampling": ShuffledEpochs(10, 2)}, "'replace_one' or 'zero_out' for Shuffled"),
    ],
)
def test_subsampled_gaussian_refuses(fields, words):
    with pytest.raises(ValueError, match=words):
        mechanism(**fields)


def test_guarantee_describes_every_number():
    words = mechanism(
        noise_multiplier=(2.0, 2.0, 2.0, 3.0), l2_clip={"a": 3.0, "b": 4.0}
    ).guarantee.description
    assert "0.1" in words["sampling"]
    assert "L2 norm 5, shared by layers" in words["clipping"]
    assert "2 to 3" in words["noise"]
    assert "noise multiplier 2 (" in mechanism().guarantee.description["noise"]


def exact_gaussian_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang (2018), Theorem 8, for a Gaussian of sensitivity over noise ``mu``."""

    def excess(eps):
        one, other = mu / 2 - eps / mu, -mu / 2 - eps / mu
        return stats.norm.cdf(one) - np.exp(eps) * stats.norm.cdf(other) - delta

    return optimize.brentq(excess, 0, 200, xtol=1e-12)


@pytest.mark.parametrize(
    ("sampling", "adjacency", "clips"),
    [
        (PoissonSampling(50, 1.0), "add_remove", 1),
        (PoissonSampling(50, 1.0), "replace_one", 2),
        (ShuffledEpochs(50, 50), "replace_one", 2),
    ],
)
def test_certificate_of_full_batches(sampling, adjacency, clips):
    sigmas = (3.0, 3.0, 4.0, 5.0)
    described = mechanism(sampling=sampling, noise_multiplier=sigmas, adjacency=adjacency)
    certificate = described.certificate(1e-5)
    exact = exact_gaussian_epsilon(clips * np.sqrt(sum(s**-2 for s in sigmas)), 1e-5)
    assert exact * (1 - 1e-9) <= certificate.epsilon <= exact * 1.001
    assert (certificate.guarantee.adjacency, certificate.guarantee.num_releases) == (adjacency, 4)
    assert certificate.accountant == "pld"


def test_certificate_names_accountant():
    samplers = (
        PoissonSampling(100, 0.1),
        TruncatedPoissonSampling(100, 0.1, truncated_batch_size=20),
        FixedSizeSampling(100, 10),
        ShuffledEpochs(100, 10),
    )
    epsilons = []
    for sampling in samplers:
        certificate = mechanism(sampling=sampling, adjacency="replace_one").certificate(1e-3)
        assert certificate.accountant == "pld"
        epsilons.append(certificate.epsilon)
    poisson, truncated, fixed, shuffled = epsilons
    assert poisson < fixed
    assert poisson < truncated
    assert max(poisson, truncated) < shuffled


def test_certificate_without_noise():
    assert mechanism(noise_multiplier=(1.0, 0.0, 1.0, 1.0)).certificate(1e-5).epsilon == np.inf
