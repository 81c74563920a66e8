"""A conjugate Gaussian, and what a discretised chain on it does in the long run, in closed form."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from scipy.linalg import solve_discrete_lyapunov

PRECISION = np.array([[2.0, 0.6], [0.6, 0.5]])  # of a record
PRIOR = np.array([[4.0, 0.0], [0.0, 9.0]])  # of the mean, around zero
RECORDS = np.random.default_rng(5).normal(size=(40, 2)) @ [[1.0, 0.5], [0.0, 1.0]] + [1.0, -2.0]


class Distribution(NamedTuple):
    """Mean ``(2,)`` and covariance ``(2, 2)``."""

    mean: np.ndarray
    covariance: np.ndarray


def log_likelihood(theta, record):
    away = record - theta
    return -0.5 * away @ jnp.asarray(PRECISION, theta.dtype) @ away


def log_prior(theta):
    return -0.5 * theta @ jnp.asarray(PRIOR, theta.dtype) @ theta


def records():
    return jnp.asarray(RECORDS, jnp.float32)


def posterior() -> Distribution:
    hessian = len(RECORDS) * PRECISION + PRIOR
    return Distribution(
        np.linalg.solve(hessian, PRECISION @ RECORDS.sum(axis=0)), np.linalg.inv(hessian)
    )


def sgld_distribution(step_size, temperature, expected_batch_size=40) -> Distribution:
    """theta' - m = (I - h H)(theta - m) + noise, with the noise of Poisson batches added.

    The variance of a Poisson batch's mean gradient is (1 - q) / (q N^2) times the sum of the
    gradients' outer products, whose mean is linear in the chain's own covariance: a fixed point.
    """
    exact, size = posterior(), len(RECORDS)
    rate, h = expected_batch_size / size, step_size / size
    pull = np.eye(2) - h * np.linalg.inv(exact.covariance)
    around = exact.mean - RECORDS
    spread = around.T @ around
    covariance = np.zeros((2, 2))
    for _ in range(200):
        gradients = PRECISION @ (spread + size * covariance) @ PRECISION
        noise = 2 * temperature * h * np.eye(2) + h**2 * (1 - rate) / rate * gradients
        covariance = solve_discrete_lyapunov(pull, noise)
    return Distribution(exact.mean, covariance)


def sghmc_distribution(step_size, temperature, friction) -> Distribution:
    """(theta, v) is linear with Gaussian noise: v' = (1 - a) v - h H theta + e, then theta + v'.

    The noise e enters both.
    """
    exact, h = posterior(), step_size / len(RECORDS)
    eye, pull = np.eye(2), h * np.linalg.inv(exact.covariance)
    system = np.block([[eye - pull, (1 - friction) * eye], [-pull, (1 - friction) * eye]])
    both = np.block([[eye, eye], [eye, eye]])
    covariance = solve_discrete_lyapunov(system, 2 * friction * temperature * h * both)
    return Distribution(exact.mean, covariance[:2, :2])


def whitened(states, distribution: Distribution):
    """Largest deviation of the states' mean and covariance, in standard errors.

    ``states``: ``(count, 2)``, independent. Where the distribution is standard normal the mean's
    entries have standard error 1 / sqrt(count), a variance sqrt(2 / count), a covariance
    1 / sqrt(count).
    """
    root = np.linalg.inv(np.linalg.cholesky(distribution.covariance))
    white = (np.asarray(states, np.float64) - distribution.mean) @ root.T
    count = len(white)
    second = white.T @ white / count - np.eye(2)
    scale = np.sqrt(np.array([[2.0, 1.0], [1.0, 2.0]]) / count)
    return max(np.abs(white.mean(axis=0)).max() * count**0.5, np.abs(second / scale).max())


def key(number: int):
    return jax.random.key(number)
