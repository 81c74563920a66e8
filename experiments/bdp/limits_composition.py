"""Theorem 1 against brute force, on a small model whose every expectation is known.

The record x' is one of 100, equally likely, and its norm in each of 20 steps is given. So
E exp(λ L) is a finite sum, Theorem 1's bound on it is another, and the privacy loss itself can be
simulated: draw x', sample it into the steps, add the noise, and take the logarithm of the ratio.
"""

import functools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import logsumexp

import dpjax
from dpjax.bdp import subsampled_gaussian_log_moments
from experiments.bdp.costs import ORDERS, Array, epsilons

NUM_RECORDS, NUM_STEPS, RATE, NOISE, DELTA = 100, 20, 0.1, 1.0, 1e-3
# Norms, and how many of the records have each in a step.
_NORMS, _NUMBERS = (0.2, 0.5, 1.0), (80, 17, 3)
_CHUNK = 100_000


def norms_by_step(kept: float) -> Array:
    """Returns the norm of every record in every step, ``(20, 100)``: each step has all the norms.

    Args:
      kept: the share of steps in which each record has a norm of its own; in the others the norms
        go round, a few records further in each step.

    >>> bool(np.all(np.sort(norms_by_step(0.5)) == np.sort(norms_by_step(1.0))))
    True
    """
    own = np.repeat(_NORMS, _NUMBERS)
    num_kept = round(kept * NUM_STEPS)
    turns = [0] * num_kept + [3 * (step + 1) for step in range(NUM_STEPS - num_kept)]
    return np.stack([np.roll(own, turn) for turn in turns])


def _moments(norms: Array, orders: Sequence[int]) -> Array:
    return subsampled_gaussian_log_moments(orders, norms, sampling_rate=RATE, noise_std=NOISE)


def exact_moments(norms: Array, orders: Sequence[int] = ORDERS) -> Array:
    """Returns log E exp(λ L) of all steps: the mean over records of their own products."""
    return np.asarray(
        logsumexp(_moments(norms, orders).sum(axis=0), axis=0) - math.log(NUM_RECORDS)
    )


def theorem_moments(norms: Array, orders: Sequence[int] = ORDERS) -> Array:
    """Returns Theorem 1's bound: Hölder's inequality, with the expectations known."""
    powers = logsumexp(NUM_STEPS * _moments(norms, orders), axis=1) - math.log(NUM_RECORDS)
    return np.asarray(powers.mean(axis=0))


def simulated_losses(norms: Array, draws: int, seed: int) -> Array:
    """Draws privacy losses of all steps together, x' with them."""
    generator = np.random.default_rng(seed)
    sizes = [min(_CHUNK, draws - start) for start in range(0, draws, _CHUNK)]
    return np.concatenate([_losses(norms, size, generator) for size in sizes])


def _losses(norms: Array, draws: int, generator: np.random.Generator) -> Array:
    lengths = norms[:, generator.integers(NUM_RECORDS, size=draws)]
    sampled = generator.random(lengths.shape) < RATE
    released = sampled * lengths + NOISE * generator.normal(size=lengths.shape)
    exponents = (released * lengths - lengths**2 / 2) / NOISE**2
    return np.asarray(np.log1p(RATE * np.expm1(exponents)).sum(axis=0))


class Estimate(NamedTuple):
    """A Monte Carlo mean and its standard error."""

    mean: float
    error: float


def simulated_moment(losses: Array, order: int) -> Estimate:
    """Returns E exp(λ L) from drawn losses.

    >>> simulated_moment(np.zeros(10), 2)
    Estimate(mean=1.0, error=0.0)
    """
    values = np.exp(order * losses)
    return Estimate(float(values.mean()), float(values.std() / math.sqrt(len(values))))


def epsilon_of(moments: Array) -> float:
    """Returns epsilon at delta = 1e-3."""
    return float(epsilons(moments, DELTA))


@functools.cache
def certified_epsilon() -> float:
    """Returns the tight DP epsilon of the model's run: the largest norm is the clip bound."""
    sampling = dpjax.PoissonSampling(NUM_RECORDS, RATE)
    mechanism = dpjax.SubsampledGaussian(
        sampling, l2_clip=1.0, noise_multiplier=NOISE, num_steps=NUM_STEPS, adjacency="zero_out"
    )
    return mechanism.certificate(DELTA).epsilon
