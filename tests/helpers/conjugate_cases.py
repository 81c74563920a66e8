"""Conjugate families that several test modules share, and records drawn from them."""

import jax
import jax.numpy as jnp
import numpy as np

from dpjax.bayes.conjugate import (
    BetaBinomial,
    DirichletMultinomial,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    SufficientStatistics,
    SufficientStatisticsMechanism,
)
from dpjax.mechanisms import Laplace

FAMILIES = {
    "beta-binomial": BetaBinomial(1.0, 2.0),
    "dirichlet-multinomial": DirichletMultinomial((1.0, 2.0, 1.5)),
    "gamma-poisson": GammaPoisson(shape=6.0, rate=2.0, largest_count=12),
    "normal": NormalKnownVariance((-4.0, 6.0), variance=1.0, prior_mean=1.0, prior_variance=0.5),
    "normal-unknown": NormalUnknownVariance(
        (-4.0, 6.0), prior_mean=1.0, prior_strength=10.0, prior_shape=10.0, prior_scale=9.0
    ),
}
ADJACENCIES = ("add_remove", "replace_one")
DRAW = {
    "beta-binomial": lambda key, theta, n: jax.random.bernoulli(key, theta, (n,)),
    "dirichlet-multinomial": lambda key, theta, n: jax.random.choice(key, 3, (n,), p=theta),
    "gamma-poisson": lambda key, theta, n: jax.random.poisson(key, theta, (n,)),
    "normal": lambda key, theta, n: theta + jax.random.normal(key, (n,)),
    "normal-unknown": lambda key, theta, n: (
        theta[0] + jnp.sqrt(theta[1]) * jax.random.normal(key, (n,))
    ),
}


def laplace_release(family, adjacency, epsilon):
    sensitivity = family.sensitivity(norm="l1", adjacency=adjacency)
    return SufficientStatisticsMechanism(family, Laplace.from_epsilon(sensitivity, epsilon=epsilon))


def exact_sums(family, records):
    statistics = np.asarray(family.statistic(records), np.float64)
    return SufficientStatistics(statistics.sum(axis=0), np.float64(len(statistics)))


def records_of(name, seed=0, n=40):
    theta = {
        "beta-binomial": 0.3,
        "dirichlet-multinomial": jnp.array([0.2, 0.3, 0.5]),
        "gamma-poisson": 3.0,
        "normal": 0.5,
        "normal-unknown": jnp.array([0.5, 1.0]),
    }[name]
    return DRAW[name](jax.random.key(seed), theta, n)
