"""Privacy amplification by Poisson subsampling of a trade-off function."""

from dataclasses import dataclass

import numpy as np

from dpjax._validation import check
from dpjax.accounting.tradeoff._search import Array
from dpjax.accounting.tradeoff.base import TradeOff
from dpjax.accounting.tradeoff.closed_form import Identity
from dpjax.accounting.tradeoff.discrete import Discrete


@dataclass(frozen=True)
class Mixture(TradeOff):
    """p f + (1 - p) Id, that is T(P, (1 - p) P + p Q), for the sampling rate p; see ``mixture``."""

    curve: TradeOff
    sampling_rate: float

    def as_discrete(self) -> Discrete | None:
        """Returns the mixed pair where the curve is discrete."""
        pair = self.curve.as_discrete()
        return pair and Discrete(
            pair.p, (1.0 - self.sampling_rate) * pair.p + self.sampling_rate * pair.q
        )

    def _forward(self, epsilon: Array) -> Array:
        # log(1 + (e^epsilon - 1) / sampling_rate), without loss for small and large epsilon.
        small = np.log1p(np.expm1(np.minimum(epsilon, 1.0)) / self.sampling_rate)
        large = (
            epsilon
            - np.log(self.sampling_rate)
            + np.log1p((self.sampling_rate - 1.0) * np.exp(-epsilon))
        )
        return self.sampling_rate * self.curve._forward(np.where(epsilon < 1.0, small, large))

    def _backward(self, epsilon: Array) -> Array:
        # The loss in this order ends where e^epsilon (1 - sampling_rate) reaches 1.
        left = self.sampling_rate - (1.0 - self.sampling_rate) * np.expm1(
            np.minimum(epsilon, 700.0)
        )
        inside = left > 0
        loss = np.log(self.sampling_rate) + epsilon - np.log(np.where(inside, left, 1.0))
        deltas = self.curve._backward(np.maximum(np.where(inside, loss, 0.0), 0.0))
        return np.where(inside, left * deltas, 0.0)

    def _type_two(self, alpha: Array) -> Array:
        return self.sampling_rate * self.curve._type_two(alpha) + (1.0 - self.sampling_rate) * (
            1.0 - alpha
        )

    def _detection(self, alpha: Array) -> Array:
        return (
            self.sampling_rate * self.curve._detection(alpha) + (1.0 - self.sampling_rate) * alpha
        )


def mixture(curve: TradeOff, sampling_rate: float) -> TradeOff:
    """Returns f_p = p f + (1 - p) Id, the curve of a Poisson-sampled release in one order.

    It holds under add/remove for P, the output without the record, against Q, the output with it,
    where each record is in the batch with probability p and ``curve`` holds for the release on the
    batch in the same order. The other order has ``mixture(curve, sampling_rate).inverse()``.

    Source: Bu, Dong, Long, Su 2020, Theorem 4.

    Args:
      curve: f, of the release on the whole batch.
      sampling_rate: p in [0, 1].

    Raises:
      ValueError: ``sampling_rate`` is out of range.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> round(mixture(Gaussian(1.0), 0.5)(0.05), 3)
    0.845
    """
    check(0 <= sampling_rate <= 1, "sampling_rate", sampling_rate, "in [0, 1]")
    if sampling_rate == 0:
        return Identity()
    return curve if sampling_rate == 1 else Mixture(curve, float(sampling_rate))


def subsample(curve: TradeOff, sampling_rate: float) -> TradeOff:
    """Returns C_p(f) = min{f_p, f_p^-1}**, the curve of a Poisson-sampled release in both orders.

    For a symmetric f and epsilon >= 0 its delta is p times that of f at
    log(1 + (e^epsilon - 1) / p). Compose before symmetrizing: of many steps the tight curve is
    that of ``mixture`` composed, then symmetrized.

    Source: Dong, Roth, Su 2022, Theorem 4.2 in the preprint's numbering.

    Args:
      curve: f, of the release on the whole batch.
      sampling_rate: p in [0, 1].

    Raises:
      ValueError: ``sampling_rate`` is out of range.

    >>> from dpjax.accounting.tradeoff import Gaussian
    >>> curve = subsample(Gaussian(1.0), 0.5)
    >>> round(curve.delta(0.3), 4), curve.is_symmetric
    (0.1153, True)
    """
    return mixture(curve, sampling_rate).symmetrized()
