"""What a noise costs and which noise a promise asks for, by the three accounts of Figure 4."""

import dataclasses
from collections.abc import Sequence

import numpy as np
from scipy.optimize import brentq

import dpjax
from dpjax.accounting import gdp, moments_accountant
from experiments.gdp.mnist_training import PUBLISHED_SIZE, Curve, Settings

# The moments accountant, the central limit, and the tight account, which alone is certified.
ACCOUNTS = ("MA", "CLT", "PLD")
_LEAST_NOISE, _MOST_NOISE = 0.4, 10.0


def epsilon(account: str, settings: Settings, epochs: int) -> float:
    """Returns what that many epochs on the 60,000 images cost by one of ``ACCOUNTS``.

    >>> settings = Settings(0.15, 1.5, 0.638, published_epochs=70, epochs=70)
    >>> [round(epsilon(account, settings, 70), 1) for account in ACCOUNTS]
    [11.5, 8.7, 9.5]
    """
    mechanism = settings.mechanism(PUBLISHED_SIZE, epochs)
    rate = settings.expected_batch_size / PUBLISHED_SIZE
    release = settings.noise_multiplier, rate, mechanism.num_steps
    if account == "MA":
        return float(moments_accountant.compute_epsilon(*release, settings.delta))
    if account == "CLT":
        return gdp.epsilon(gdp.clt_mu(*release), settings.delta)
    return dpjax.accounting.epsilon(
        mechanism.event, settings.delta, adjacency=mechanism.adjacency, method="pld"
    )


def least_noise(account: str, settings: Settings, target: float) -> float:
    """Returns the noise multiplier with which the published epochs cost ``target``.

    By the central limit that is the source's sigma~: ``epsilon_CLT(mu~) = target`` and
    ``p sqrt(T (exp(1 / sigma~^2) - 1)) = mu~``. By the tight account it is a calibration, so that
    the target is certified.

    >>> settings = Settings(0.15, 1.5, 1.3, published_epochs=20, epochs=20)
    >>> round(least_noise("CLT", settings, target=1.34), 2)
    1.06
    """
    if account == "PLD":
        mechanism = settings.mechanism(PUBLISHED_SIZE, settings.published_epochs)
        scale = dpjax.calibrate(mechanism, epsilon=target, delta=settings.delta)
        return float(np.max(scale.noise_multiplier))
    return float(
        brentq(
            lambda noise: _with_noise(account, settings, noise) - target, _LEAST_NOISE, _MOST_NOISE
        )
    )


def by_epoch(settings: Settings) -> dict[str, Curve]:
    """Returns epsilon by each account after each of the published epochs."""
    epochs = range(1, settings.published_epochs + 1)
    return {
        account: [(float(n), epsilon(account, settings, n)) for n in epochs] for account in ACCOUNTS
    }


def by_noise(settings: Settings, noises: Sequence[float]) -> dict[str, Curve]:
    """Returns epsilon by each account after the published epochs, with each of the noises."""
    return {
        account: [(float(noise), _with_noise(account, settings, noise)) for noise in noises]
        for account in ACCOUNTS
    }


def _with_noise(account: str, settings: Settings, noise: float) -> float:
    changed = dataclasses.replace(settings, noise_multiplier=float(noise))
    return epsilon(account, changed, settings.published_epochs)
