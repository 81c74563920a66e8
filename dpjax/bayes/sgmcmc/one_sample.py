"""OPS: one exact sample of a tempered posterior is itself a private release."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from dp_accounting import DpEvent

from dpjax._validation import check, check_positive
from dpjax.accounting.adjacency import Adjacency, sensitivity_in_clips
from dpjax.accounting.certificate import Certificate
from dpjax.mechanisms.base import Mechanism
from dpjax.mechanisms.one_statistic import pure_in_words
from dpjax.mechanisms.statistic_events import pure_event


@dataclass(frozen=True)
class OnePosteriorSample(Mechanism):
    """One sample of ``prior * likelihood ^ scale``: the exponential mechanism of log-likelihoods.

    Of one record's log-likelihood nothing but its bounds matters: replacing a record moves the
    log-density by at most ``2 scale (high - low)``, adding or removing one by half of that. With
    log-likelihoods in [-B, B] the posterior itself is 4 B-private under replace one, with those in
    [-B, 0] 2 B-private. For a stronger guarantee the likelihood is tempered.

    Attributes:
      target_epsilon: what the release may cost at most.
      low: below which no record's log-likelihood falls, whatever the parameters.
      high: above which none rises; zero for probabilities.
      adjacency: ``"add_remove"`` or ``"replace_one"``; there is no default.
      unit: the unit of privacy, in words.

    Privacy:
      Pure differential privacy, of an **exact** sample alone. The end of a finite Markov chain is
      no exact sample, and has no such guarantee.

    Raises:
      ValueError: for bounds that are infinite or out of order, or an epsilon that is not above 0.

    Source: Wang, Fienberg, Smola (2015), Theorem 1; Dimitrakakis et al. (2014).

    >>> mechanism = OnePosteriorSample(1.0, low=-2.0, high=0.0, adjacency="replace_one")
    >>> mechanism.scale, mechanism.epsilon
    (0.25, 1.0)
    >>> OnePosteriorSample(1.0, low=-math.inf, high=0.0, adjacency="replace_one")
    Traceback (most recent call last):
    ValueError: low must be finite, got -inf: where a record's log-likelihood has no bound, one ...
    """

    target_epsilon: float
    low: float
    high: float
    adjacency: Adjacency
    unit: str = "one record"

    def __post_init__(self) -> None:
        check_positive("target_epsilon", self.target_epsilon)
        for name in ("low", "high"):
            _check_bounded(name, getattr(self, name))
        check(self.high > self.low, "high", self.high, f"above low = {self.low}")
        sensitivity_in_clips(self.adjacency)

    @property
    def scale(self) -> float:
        """The power of the likelihood: at most 1, where the posterior itself is private enough."""
        return min(1.0, self.target_epsilon / self._epsilon_at_one)

    @property
    def epsilon(self) -> float:
        """What the release costs: at most ``target_epsilon``."""
        return self.scale * self._epsilon_at_one

    @property
    def num_releases(self) -> int:
        """One."""
        return 1

    @property
    def event(self) -> DpEvent:
        """Of any release that is purely ``epsilon``-private."""
        return pure_event(self.epsilon, self.adjacency)

    def scale_noise(self, factor: float) -> "OnePosteriorSample":
        """The same with ``target_epsilon`` divided by ``factor``: a flatter likelihood."""
        return dataclasses.replace(self, target_epsilon=self.target_epsilon / factor)

    def describe(self) -> Mapping[str, str]:
        """Sampler and guarantee in words."""
        return {
            "sampler": f"one exact sample of the posterior, its likelihood to the power"
            f" {self.scale:.4g}",
            "clipping": f"each log-likelihood within [{self.low:.4g}, {self.high:.4g}]",
            "guarantee": pure_in_words(self.epsilon),
        }

    @property
    def _epsilon_at_one(self) -> float:
        return sensitivity_in_clips(self.adjacency) * (self.high - self.low)


@dataclass(frozen=True)
class PosteriorDraw:
    """One sample of a tempered posterior.

    Attributes:
      params: the sample.
      mechanism: what an exact sample of it guarantees.
      is_exact: whether this one is exact, up to floating-point arithmetic.
    """

    params: Any
    mechanism: OnePosteriorSample
    is_exact: bool

    @property
    def label(self) -> str:
        """``"pure DP"`` or ``"not pure DP"``, with the reason."""
        if self.is_exact:
            return "pure DP: an exact sample"
        return "not pure DP: the end of a finite Markov chain, which is no exact sample"

    def certificate(self, delta: float) -> Certificate:
        """What the sample guarantees.

        Raises:
          ValueError: the sample is not exact.
        """
        if not self.is_exact:
            raise ValueError(
                f"a certificate must be of an exact sample, this one is {self.label}: how far the"
                " chain's law is from the posterior is not known"
            )
        return self.mechanism.certificate(delta)


def _check_bounded(name: str, bound: float) -> None:
    if not math.isfinite(bound):
        raise ValueError(
            f"{name} must be finite, got {bound!r}: where a record's log-likelihood has no bound,"
            " one record can move the posterior without limit, and a sample of it is not private."
            " Clip the log-likelihood, or bound parameters and records (a logistic log-likelihood"
            " is bounded by -log(1 + exp(R X)) for parameters of norm R and features of norm X)"
        )


def clipped_log_likelihood(log_likelihood: Any, mechanism: OnePosteriorSample) -> Any:
    """Returns ``f(params, data)``: each record's log-likelihood, made to obey the bounds, ``(n,)``.

    What is not a number becomes the lower bound. Only a scalar is accepted: of several numbers for
    a record each would be within the bounds, and their sum would not.
    """

    def of_all(params: Any, data: Any) -> jax.Array:
        each = jax.vmap(log_likelihood, (None, 0))(params, data)
        if not (isinstance(each, jax.Array) and each.ndim == 1):
            shape = jax.tree.map(lambda leaf: leaf.shape[1:], each)
            raise ValueError(
                f"log_likelihood must return a scalar for each record, got the shape {shape}"
            )
        each = each.astype(float)  # half precision would round the bounds, and the sum
        each = jnp.where(jnp.isnan(each), mechanism.low, each)
        return jnp.clip(each, mechanism.low, mechanism.high)

    return of_all
