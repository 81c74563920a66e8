"""Private ridge regression by noise on its solution, or on its objective: baselines.

Both take coefficients from a ball, over which no record's loss (y - x^T b)^2 / 2 is steeper than
G = R (B + R radius), for features of norm R and targets of size B. Neighbours replace one record.
"""

import math
from dataclasses import dataclass, replace
from typing import Any, Self

import jax
import jax.numpy as jnp
from scipy.special import ndtri

from dpjax._validation import as_key, check, check_delta, check_positive
from dpjax.bayes.regression import RegressionBounds, RegressionStatistics
from dpjax.mechanisms import Gaussian
from dpjax.sensitivity import Sensitivity

_HALVINGS = 40


@dataclass(frozen=True)
class BallRidge:
    """The minimum over a ball of the summed losses plus ``ridge`` / 2 times the squared norm.

    Attributes:
      bounds: public, to which the records were clipped.
      ridge: above zero.
      radius: of the ball around zero that holds the coefficients.

    Raises:
      ValueError: ``ridge`` or ``radius`` is not above zero.
    """

    bounds: RegressionBounds
    ridge: float
    radius: float

    def __post_init__(self) -> None:
        check_positive("ridge", self.ridge)
        check_positive("radius", self.radius)

    @property
    def steepness(self) -> float:
        """G: no loss has a longer gradient within the ball."""
        bounds = self.bounds
        return bounds.x_norm * (bounds.y_size + bounds.x_norm * self.radius)

    @property
    def sensitivity(self) -> Sensitivity:
        """Of the minimum, in L2: 2 G / ridge.

        The objective is ``ridge``-strongly convex, and replacing a record changes its gradient by
        at most 2 G within the ball, where both minima are (Chaudhuri, Monteleoni and Sarwate 2011,
        Lemma 7).
        """
        return Sensitivity(2 * self.steepness / self.ridge, "l2", "replace_one")

    @property
    def determinants(self) -> float:
        """By how much, in logarithm, one record can change the Hessian's determinant."""
        return math.log1p(self.bounds.x_norm**2 / self.ridge)

    def solve(self, statistics: RegressionStatistics) -> jax.Array:
        """Returns the coefficients ``(d,)``; exact, so private.

        On the ball's surface they are those of a larger ridge, which is found by halving.
        """
        values, vectors = jnp.linalg.eigh(statistics.xtx)
        rotated = vectors.T @ statistics.xty
        curvature = jnp.maximum(values, 0.0) + self.ridge

        def halve(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            middle = (ends[0] + ends[1]) / 2
            outside = jnp.linalg.norm(rotated / (curvature + middle)) > self.radius
            low, high = jnp.where(outside, middle, ends[0]), jnp.where(outside, ends[1], middle)
            return low, high

        most = jnp.linalg.norm(rotated) / self.radius
        _, more = jax.lax.fori_loop(0, _HALVINGS, halve, (jnp.zeros_like(most), most))
        inside = jnp.linalg.norm(rotated / curvature) <= self.radius
        return vectors @ (rotated / (curvature + jnp.where(inside, 0.0, more)))


def output_perturbation(ridge: BallRidge, mu: float, unit: str = "one record") -> Gaussian:
    """Returns the mechanism that releases the minimum with Gaussian noise, mu-GDP."""
    return Gaussian(ridge.sensitivity, ridge.sensitivity.value / mu, unit)


@dataclass(frozen=True)
class ObjectivePerturbation:
    """The minimum of the objective plus a random linear function, N(0, scale^2 I)^T b.

    Attributes:
      model: what is minimised.
      scale: the standard deviation of each entry of the random function.

    Privacy:
      What ``release`` returns is private when one record is replaced, by ``epsilon(delta)``. First
      let the losses go on beyond the ball with slope G at most, so that b is free. A release b then
      gives away the noise, minus the objective's gradient at b. Between neighbours

      - the Jacobians' determinants differ by a factor of at most 1 + R^2 / ridge, for the Hessians
        share all records but one and that one's has rank one;
      - the noise differs by two records' gradients, each of a fixed direction and a length of at
        most G. Along either, the noise is beyond t scale, with t = Phi^-1(1 - delta / 4), with
        probability delta / 2. Else the densities differ by a factor of at most
        exp(2 G t / scale + (2 G)^2 / (2 scale^2)).

      With epsilon = log(1 + R^2 / ridge) + 2 G t / scale + 2 G^2 / scale^2 all that fails with
      probability delta. The ball is the limit of ever steeper penalties outside, which are the same
      for all data, and limits of private mechanisms are private.

    Source: Kifer, Smith and Thakurta 2012, Theorems 2 and 4, which this follows; the constants are
    those of a rank-one Hessian and of replaced records.
    """

    model: BallRidge
    scale: float

    @classmethod
    def from_epsilon(cls, model: BallRidge, epsilon: float, delta: float) -> Self:
        """Returns the mechanism with the least noise.

        Raises:
          ValueError: ``epsilon`` is below what the determinants alone cost; take a larger ridge.
        """
        check_positive("epsilon", epsilon)
        check_delta(delta)
        left, quantile = epsilon - model.determinants, -float(ndtri(delta / 4))
        check(left > 0, "epsilon", epsilon, f"above {model.determinants:.4g}")
        root = 2 * left / (quantile + math.sqrt(quantile**2 + 2 * left))
        return cls(model, 2 * model.steepness / root)

    def epsilon(self, delta: float) -> float:
        """Returns what is guaranteed at ``delta``."""
        check_delta(delta)
        ratio, quantile = 2 * self.model.steepness / self.scale, -float(ndtri(delta / 4))
        return self.model.determinants + quantile * ratio + ratio**2 / 2

    def scale_noise(self, factor: Any) -> Self:
        """The same mechanism with ``scale`` times ``factor``."""
        return replace(self, scale=self.scale * factor)

    def release(self, key: jax.Array, statistics: RegressionStatistics) -> jax.Array:
        """Returns private coefficients ``(d,)``; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          statistics: of records that were clipped to the model's bounds.
        """
        xty = jnp.asarray(statistics.xty)
        noise = self.scale * jax.random.normal(as_key(key), xty.shape, xty.dtype)
        return self.model.solve(statistics._replace(xty=xty + noise))
