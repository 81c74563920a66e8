"""Exact discrete Gaussian noise for millions of entries, from a source of random bytes.

The rejection sampler of Karney (2016), Algorithm D, as in `dpjax.mechanisms.exact_sampling`, with
each of its comparisons of a uniform number with a probability made on 64 random bits at first.
Where the bits and the rounding error of the probability leave the result open, once in 2^40, both
are refined until it is certain. So no probability is rounded, at four random words for a candidate.
"""

import functools
from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
import numpy.typing as npt

from dpjax.federated.entropy import Entropy, EntropyWords, UInt64, uniform_words
from dpjax.mechanisms.exact_sampling import Lanes

Int64 = npt.NDArray[np.int64]
# From a number of decimal digits to a probability with an error below one in the last of them.
Probability = Callable[[int], Decimal]

# Far above the error of float64 probabilities up to one, whose exponents are below 100.
_GUARD = 2.0**-42
_WORD = 2**64


def draw_noise(entropy: Entropy, scales: Int64) -> Int64:
    """Returns independent k with probability proportional to exp(-k^2 / (2 scale^2)), exactly.

    Args:
      entropy: source of random bytes; the noise is as secret as they are.
      scales: whole numbers in 1 .. 2^50, ``(size,)``.

    >>> from dpjax.federated import simulated_entropy
    >>> noise = draw_noise(simulated_entropy(0), np.full(20_000, 1000))
    >>> round(float(noise.std() / 1000), 1)
    1.0
    """
    words = EntropyWords(entropy, scales.size)
    result = np.zeros(scales.size, np.int64)
    left = np.arange(scales.size)
    while left.size:
        scale = scales[left]
        whole = _half_normal(words, left)
        rest = words.below(scale, left)
        negative = (words.draw(left) & np.uint64(1)).astype(bool)
        size = whole * scale + rest
        kept = _accept(words, left, whole, rest, scale)
        kept &= (size > 0) | ~negative  # else zero would be drawn twice as often
        result[left[kept]] = np.where(negative, -size, size)[kept]
        left = left[~kept]
    return result


def _half_normal(words: EntropyWords, lanes: Lanes) -> Int64:
    """Draws k >= 0 with probability proportional to exp(-k^2 / 2), by inversion."""
    table = _cumulative_words()
    drawn = words.draw(lanes)
    found = np.searchsorted(table, drawn, side="left")
    for lane in np.flatnonzero(table[np.minimum(found, table.size - 1)] == drawn):
        number, uniform = int(found[lane]), LazyUniform(int(drawn[lane]), words.entropy)
        while not uniform.is_below(functools.partial(_cumulative, number)):
            number += 1
        found[lane] = number
    return found.astype(np.int64)


def _accept(
    words: EntropyWords, lanes: Lanes, whole: Int64, rest: Int64, scale: Int64
) -> npt.NDArray[np.bool_]:
    """True with probability exp(-x (x / 2 + whole)), x = rest / scale."""
    x = rest / scale
    drawn = words.draw(lanes)
    excess = drawn * (1 / _WORD) - np.exp(-x * (x / 2 + whole))
    accepted = excess < 0
    for lane in np.flatnonzero(np.abs(excess) < _GUARD):
        numbers = (int(part[lane]) for part in (whole, rest, scale))
        uniform = LazyUniform(int(drawn[lane]), words.entropy)
        accepted[lane] = uniform.is_below(functools.partial(_acceptance, *numbers))
    return accepted


class LazyUniform:
    """A uniform number in [0, 1) whose binary digits are drawn as they are needed.

    Args:
      word: its first 64 digits.
      entropy: of the others.
    """

    def __init__(self, word: int, entropy: Entropy) -> None:
        self._digits, self._count, self._entropy = word, 64, entropy

    def is_below(self, probability: Probability) -> bool:
        """Whether the number is below ``probability``, which it equals with probability zero."""
        while True:
            precision = self._count // 3 + 10
            with localcontext(Context(prec=precision)):
                value, error = probability(precision), Decimal(10) ** (3 - precision)
                low = Decimal(self._digits) / 2**self._count
                high = Decimal(self._digits + 1) / 2**self._count
                if high + error <= value:
                    return True
                if low - error >= value:
                    return False
            more = uniform_words(self._entropy, 1)
            self._digits, self._count = self._digits * _WORD + int(more[0]), self._count + 64


@functools.cache
def _cumulative_words() -> UInt64:
    """The first 64 binary digits of each cumulative probability, up to the first of ones alone."""
    found: list[int] = []
    with localcontext(Context(prec=60)):
        while not found or found[-1] < _WORD - 1:
            found.append(int(_cumulative(len(found), 60) * _WORD))
    return np.array(found, np.uint64)


def _cumulative(number: int, precision: int) -> Decimal:
    """The probability of 0 .. ``number`` under weights exp(-k^2 / 2)."""
    with localcontext(Context(prec=precision + 10)):
        # Weights beyond k have less than 10^-precision.
        last = max(number, 4 + int((5 * precision) ** 0.5))
        weights = [(-Decimal(k * k) / 2).exp() for k in range(last + 1)]
        return sum(weights[: number + 1], Decimal(0)) / sum(weights, Decimal(0))


def _acceptance(whole: int, rest: int, scale: int, precision: int) -> Decimal:
    with localcontext(Context(prec=precision + 10)):
        x = Decimal(rest) / scale
        return (-x * (x / 2 + whole)).exp()
