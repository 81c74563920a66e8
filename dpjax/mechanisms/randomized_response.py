"""Randomized response (local differential privacy) on categories."""

import dataclasses
import functools
import math
from dataclasses import dataclass
from typing import NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from dpjax._checks import check, check_count, check_delta, check_positive, check_text
from dpjax._typing import PRNGKey
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.guarantee import Guarantee
from dpjax.mechanisms._exact_noise import (
    Array,
    RandomWords,
    as_fraction,
    as_integers,
    call_on_host,
    fit_integers,
)
from dpjax.mechanisms.base import Interval, Mechanism, format_pure_dp


class Frequencies(NamedTuple):
    """Estimated frequency of each category, from randomized answers.

    Attributes:
      estimate: unbiased, ``(num_categories,)``; sums to one, but may lie outside [0, 1].
      standard_error: of each estimate, ``(num_categories,)``, from the randomization alone.
    """

    estimate: jax.Array
    standard_error: jax.Array


@dataclass(frozen=True)
class RandomizedResponse(Mechanism):
    """Each answer is the truth with ``keep_probability``, else a uniformly random category.

    The random category may be the true one. With two categories and probability one half this is
    the design with two coins: the truth on heads, else the result of a second coin.

    Attributes:
      num_categories: at least two.
      keep_probability: in (0, 1).
      adjacency: ``"replace_one"``, which must be stated: who answered is public, and no
        answer contributes zero, as ``"zero_out"`` requires.
      unit: the unit of privacy, a noun phrase: who gives one answer.

    Privacy:
      All randomized answers are released. Each is randomized on its own, so the collector need not
      be trusted (*local* differential privacy).

    Raises:
      ValueError: a number out of range, or another adjacency than ``"replace_one"``.

    Source: Warner 1965; Kairouz, Bonawitz, Ramage 2016 (more than two categories).

    >>> coins = RandomizedResponse(2, keep_probability=0.5, adjacency="replace_one")
    >>> round(math.exp(coins.pure_epsilon), 6)
    3.0
    """

    num_categories: int
    keep_probability: float
    adjacency: Adjacency
    unit: str = "one answer"

    def __post_init__(self) -> None:
        check_count("num_categories", self.num_categories, minimum=2)
        check_delta(self.keep_probability, "keep_probability")
        check_adjacency(self.adjacency)
        check_text("unit", self.unit)
        local = self.adjacency == "replace_one"
        check(local, "adjacency", self.adjacency, "'replace_one': every answer counts")

    @classmethod
    def from_epsilon(
        cls, num_categories: int, *, epsilon: float, adjacency: Adjacency, unit: str = "one answer"
    ) -> Self:
        """Returns the mechanism that keeps as many answers unchanged as ``epsilon`` allows.

        Args:
          num_categories: at least two.
          epsilon: of pure differential privacy, a finite number above zero.
          adjacency: ``"replace_one"``.
          unit: the unit of privacy, a noun phrase: who gives one answer.
        """
        check_count("num_categories", num_categories, minimum=2)
        check_positive("epsilon", epsilon)
        gain = -math.expm1(-epsilon)
        return cls(
            num_categories, gain / (gain + num_categories * math.exp(-epsilon)), adjacency, unit
        )

    @property
    def pure_epsilon(self) -> float:
        """Epsilon at delta zero: log(1 + k p / (1 - p)) for k categories and keep probability p."""
        odds = self.keep_probability / (1 - self.keep_probability)
        return math.log1p(self.num_categories * odds)

    @functools.cached_property
    def guarantee(self) -> Guarantee:
        from dp_accounting import RandomizedResponseDpEvent

        return Guarantee(
            # Under the adjacency itself: there is no clip bound.
            event=RandomizedResponseDpEvent(1 - self.keep_probability, self.num_categories),
            adjacency=self.adjacency,
            unit=self.unit,
            num_releases=1,  # for each record
            description={
                "statistic": f"each record's category, of {self.num_categories}, randomized on its"
                " own",
                "noise": f"the truth with probability {self.keep_probability:.4g}, else any"
                " category",
                "guarantee": format_pure_dp(self.pure_epsilon),
            },
            exact_noise=True,
        )

    def with_privacy_factor(self, factor: float) -> Self:
        """Returns the same mechanism with its pure epsilon divided by ``factor``."""
        check_positive("factor", factor)
        quieter = self.from_epsilon(
            self.num_categories,
            epsilon=self.pure_epsilon / factor,
            adjacency=self.adjacency,
            unit=self.unit,
        )
        return dataclasses.replace(self, keep_probability=quieter.keep_probability)

    def release(self, key: PRNGKey, answers: npt.ArrayLike) -> jax.Array:
        """Returns the randomized answers, int32, shaped like ``answers``; works under jit and vmap.

        Args:
          key: a JAX key; a secret.
          answers: whole numbers in 0 .. ``num_categories`` - 1, or booleans. Others are
            mapped to a category too, since an error would reveal an answer.

        Raises:
          ValueError: ``answers`` are not integers or booleans, or are masked.
        """
        numbers = as_integers(answers, "answers", booleans=True)
        result = [jax.ShapeDtypeStruct(np.shape(numbers), np.int32)]
        return jnp.asarray(call_on_host(self._randomize, key, [numbers], result)[0])

    def _randomize(self, key_bits: npt.NDArray[np.uint32], arrays: list[Array]) -> list[Array]:
        """Randomizes on the host with the exact value of the keep probability."""
        truth = np.asarray(np.clip(arrays[0], 0, self.num_categories - 1)).astype(np.int64)
        size = math.prod(truth.shape[key_bits.ndim - 1 :])
        lanes = RandomWords(key_bits, size)
        every = np.arange(lanes.size)
        keep = as_fraction(self.keep_probability)
        top, bottom = fit_integers(
            np.full(lanes.size, keep.numerator, object),
            np.full(lanes.size, keep.denominator, object),
        )
        is_true = (lanes.below(bottom, every) < top).astype(bool)
        others = lanes.below(np.full(lanes.size, self.num_categories), every)
        return [np.where(is_true, truth.ravel(), others).reshape(truth.shape)]

    def frequencies(self, released: jax.Array) -> Frequencies:
        """Returns the debiased frequency of each category; post-processing, works under jit.

        For the coins it is 2 mean - 1/2.

        Args:
          released: what ``release`` returned, of any shape.
        """
        answers = as_integers(released, "released", booleans=True)
        check(answers.dtype != object, "released", answers.dtype, "integers of at most 64 bits")
        counts = jnp.bincount(jnp.ravel(answers), length=self.num_categories)
        size = jnp.size(answers)
        by_chance = (1 - self.keep_probability) / self.num_categories
        estimate = (counts / size - by_chance) / self.keep_probability
        # Mean variance of the reported indicator of a category with this share of the records.
        share, if_true = jnp.clip(estimate, 0, 1), self.keep_probability + by_chance
        variance = share * if_true * (1 - if_true) + (1 - share) * by_chance * (1 - by_chance)
        return Frequencies(estimate, jnp.sqrt(variance / size) / self.keep_probability)

    def confidence_interval(self, released: jax.Array, level: float) -> Interval:
        """Returns confidence intervals for the frequencies; post-processing.

        By the normal approximation, so for some hundred answers or more.

        Args:
          released: what ``release`` returned.
          level: the probability, in (0, 1), with which each interval covers; not all together.
        """
        check_delta(level, "level")
        estimate, error = self.frequencies(released)
        width = -float(ndtri((1 - level) / 2)) * error
        return Interval(estimate - width, estimate + width)
