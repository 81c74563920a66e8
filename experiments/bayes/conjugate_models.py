"""The conjugate families of the experiment, and records drawn from them."""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt

from dpjax.bayes.conjugate import (
    BetaBinomial,
    ConjugateFamily,
    DirichletMultinomial,
    GammaPoisson,
    NormalKnownVariance,
    NormalUnknownVariance,
    StatisticRelease,
    Sums,
)
from dpjax.mechanisms import Gaussian, Laplace

DELTA = 1e-6
# Data sets that are drawn at a time.
_BATCH = 50


class Model(NamedTuple):
    """A family and how its records come about.

    Attributes:
      family: prior and public bounds, which cut off next to nothing.
      truth: parameters for where they are fixed.
      draw: from key, parameters and n to records.
    """

    family: ConjugateFamily
    truth: Any
    draw: Callable[[jax.Array, Any, int], jax.Array]


class Data(NamedTuple):
    """Repeated data sets, each seen as a curator sees it and as the public does.

    Attributes:
      sums: exact.
      released: noisy, ``(repeats, m)``.
    """

    sums: Sums
    released: npt.NDArray[np.float64]


MODELS = {
    "beta-binomial": Model(
        BetaBinomial(1.0, 1.0),
        0.3,
        lambda key, theta, n: jax.random.bernoulli(key, theta, (n,)),
    ),
    "Dirichlet-multinomial": Model(
        DirichletMultinomial((1.0, 1.0, 1.0)),
        (0.2, 0.3, 0.5),
        lambda key, theta, n: jax.random.choice(key, 3, (n,), p=theta),
    ),
    "gamma-Poisson": Model(
        GammaPoisson(shape=6.0, rate=2.0, largest_count=12),
        3.0,
        lambda key, theta, n: jax.random.poisson(key, theta, (n,)),
    ),
    "normal, known variance": Model(
        NormalKnownVariance((-5.0, 5.0), variance=1.0, prior_mean=0.0, prior_variance=1.0),
        0.5,
        lambda key, theta, n: theta + jax.random.normal(key, (n,)),
    ),
    "normal, unknown variance": Model(
        NormalUnknownVariance(
            (-5.0, 5.0), prior_mean=0.0, prior_strength=10.0, prior_shape=10.0, prior_scale=9.0
        ),
        (0.3, 1.0),
        lambda key, theta, n: theta[0] + jnp.sqrt(theta[1]) * jax.random.normal(key, (n,)),
    ),
}


def release_of(family: str, noise: str, epsilon: float, adjacency: Any) -> StatisticRelease:
    """Returns the release of a family's sums with ``"Laplace"`` or ``"Gaussian"`` noise.

    Laplace noise is pure; Gaussian noise has ``epsilon`` at :data:`DELTA`.
    """
    known = MODELS[family].family
    if noise == "Laplace":
        of_sums = known.sensitivity(norm="l1", adjacency=adjacency)
        return StatisticRelease(known, Laplace.from_epsilon(of_sums, epsilon=epsilon))
    of_sums = known.sensitivity(norm="l2", adjacency=adjacency)
    return StatisticRelease(known, Gaussian.from_epsilon(of_sums, epsilon=epsilon, delta=DELTA))


def from_prior(key: jax.Array, family: str, repeats: int) -> jax.Array:
    """Returns parameters ``(repeats, ...)``: the posterior of no records is the prior."""
    known = MODELS[family].family
    nothing = Sums(np.zeros(len(known.statistic_bounds[0])), np.float64(0))
    return known.posterior(nothing).sample(key, repeats)


def repeated_data(
    key: jax.Array,
    model: Model,
    release: StatisticRelease,
    parameters: jax.Array,
    sizes: Sequence[int],
) -> list[Data]:
    """Draws a data set for each of ``parameters``, and releases its first n records.

    Returns:
      One entry for each n in ``sizes``, each with noise of its own.
    """

    def one(inputs: tuple[jax.Array, jax.Array]) -> list[tuple[jax.Array, jax.Array]]:
        data_key, *noise_keys = jax.random.split(inputs[0], 1 + len(sizes))
        records = model.draw(data_key, inputs[1], max(sizes))
        return [
            (release.family.sums(records[:n]).total, release.release(noise_key, records[:n]))
            for noise_key, n in zip(noise_keys, sizes, strict=True)
        ]

    keys = jax.random.split(key, len(parameters))
    drawn = jax.jit(lambda inputs: jax.lax.map(one, inputs, batch_size=_BATCH))((keys, parameters))
    counts = [np.full(len(parameters), float(n)) for n in sizes]
    return [
        Data(Sums(np.asarray(total, np.float64), count), np.asarray(noisy, np.float64))
        for (total, noisy), count in zip(drawn, counts, strict=True)
    ]
