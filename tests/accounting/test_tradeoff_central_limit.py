import itertools
import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpjax.accounting import gdp
from dpjax.accounting.tradeoff import (
    ApproximateDP,
    Discrete,
    Gaussian,
    Identity,
    Laplace,
    composition_clt_mu,
    mixture,
    privacy_loss_moments,
    subsample,
)

MNIST_RATE = 256 / 60_000


def _by_integration(mu: float, rate: float) -> list[float]:
    """The six moments of a sampled Gaussian, in the order of ``PrivacyLossMoments``."""

    def loss(x):
        return np.log1p(rate * np.expm1(mu * x - mu * mu / 2))

    kink = mu / 2

    def integral(weight):
        ends = [-12.0, kink, mu + 12.0]
        parts = itertools.pairwise(ends)
        return sum(quad(weight, *part, epsabs=1e-15, epsrel=1e-11, limit=400)[0] for part in parts)

    moments = []
    for power, sign in ((1, -1), (2, 1), (3, 1)):
        moments.append(
            integral(
                lambda x, k=power, s=sign: (
                    norm.pdf(x) * (s * loss(x) if k == 1 else abs(loss(x)) ** k)
                )
            )
        )
        moments.append(
            integral(
                lambda x, k=power: (
                    ((1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu))
                    * (loss(x) if k == 1 else abs(loss(x)) ** k)
                )
            )
        )
    return moments


@pytest.mark.parametrize(("mu", "rate"), [(2.0, MNIST_RATE), (1 / 1.1, 0.2), (0.3, 1.0)])
def test_privacy_loss_moments_of_sampled_gaussians(mu, rate):
    curve, exact = mixture(Gaussian(mu), rate), _by_integration(mu, rate)
    np.testing.assert_allclose(privacy_loss_moments(curve), exact, rtol=1e-7)
    swapped = np.reshape(privacy_loss_moments(curve.inverse()), (3, 2))[:, ::-1].ravel()
    np.testing.assert_allclose(swapped, exact, rtol=1e-7)


@pytest.mark.parametrize("mu", [1e-3, 1.0, 40.0])
def test_privacy_loss_moments_of_gaussians(mu):
    values = privacy_loss_moments(Gaussian(mu))
    assert values.kl == pytest.approx(mu**2 / 2, rel=1e-8)
    assert values.kappa2 == pytest.approx(mu**2 + mu**4 / 4, rel=1e-8)
    assert composition_clt_mu(values, 1) == pytest.approx(mu / math.sqrt(1 + mu**2 / 4), rel=1e-8)


def test_privacy_loss_moments_of_kinks_and_atoms():
    laplace = privacy_loss_moments(Laplace(2.0))
    assert laplace.kl == pytest.approx(0.5 + math.exp(-0.5) - 1, rel=1e-5)
    pair = Discrete([0.2, 0.3, 0.5], [0.5, 0.3, 0.2])
    spread = 0.3 * math.log(2.5)
    assert privacy_loss_moments(pair).kl == pytest.approx(spread)
    assert privacy_loss_moments(pair).kappa3 == pytest.approx(0.7 * math.log(2.5) ** 3)
    assert privacy_loss_moments(ApproximateDP(1.0)).kappa2 == pytest.approx(1.0)
    assert privacy_loss_moments(Identity()) == (0.0,) * 6
    assert composition_clt_mu(privacy_loss_moments(Identity()), 9) == 0


def test_privacy_loss_moments_of_infinite_losses():
    values = privacy_loss_moments(Discrete([0.0, 1.0], [0.1, 0.9]))
    assert values.kl_tilde == values.kappa2_tilde == math.inf
    assert values.kl == pytest.approx(-math.log(0.9))
    assert privacy_loss_moments(mixture(ApproximateDP(1.0, slack=0.1), 0.5)).kl_tilde == math.inf
    with pytest.raises(ValueError, match="moments must be finite, got"):
        composition_clt_mu(privacy_loss_moments(ApproximateDP(1.0, slack=0.1)), 5)


def test_composition_clt_mu_of_published_limit():
    step = privacy_loss_moments(mixture(Gaussian(1 / 1.1), MNIST_RATE))
    assert round(composition_clt_mu(step, 14_062), 4) == 0.5735
    # The limit in closed form is near, and the symmetrised curve is another one.
    assert gdp.poisson_clt_mu(1.1, MNIST_RATE, 14_062) == pytest.approx(
        composition_clt_mu(step, 14_062), rel=2e-2
    )
    both = privacy_loss_moments(subsample(Gaussian(1 / 1.1), MNIST_RATE))
    assert composition_clt_mu(both, 14_062) > 1.01 * composition_clt_mu(step, 14_062)


@pytest.mark.parametrize("count", [0, 1.5])
def test_composition_clt_mu_refuses(count):
    with pytest.raises(ValueError, match="count must be a whole number >= 1, got"):
        composition_clt_mu(privacy_loss_moments(Gaussian(1.0)), count)
