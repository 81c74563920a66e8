"""Randomness of holders: words from a source of bytes, and exact discrete Gaussian noise.

The noise is that of Karney (2016), Algorithm D, as in `dpjax.mechanisms._exact_noise`, but for
millions of entries: each comparison of a uniform number with a probability is made on about 32
random bits at first. Where the bits and the rounding error of the probability leave the result
open, less than once in 2^27, both are refined until it is certain. So no probability is rounded, at
two random words for a candidate.
"""

import functools
import os
import ssl
from collections.abc import Callable
from decimal import Context, Decimal, localcontext

import numpy as np
import numpy.typing as npt

from dpjax._checks import as_seed, check_count
from dpjax.mechanisms._exact_noise import Lanes, RandomWords

# From a number of bytes to that many independent, uniform ones.
Entropy = Callable[[int], bytes]
UInt64 = npt.NDArray[np.uint64]
Int64 = npt.NDArray[np.int64]
# From a number of decimal digits to a probability with an error below one in the last of them.
Probability = Callable[[int], Decimal]

# Of fresh entropy at every call of the generator.
_SEED_BYTES = 32
# A word has, from the top: a sign, the bits of a half-normal number, the bits of the acceptance.
_NORMAL_BITS, _ACCEPT_BITS = 31, 32
_LOW_31, _LOW_32 = (np.uint64(2**bits - 1) for bits in (_NORMAL_BITS, _ACCEPT_BITS))
# Above the bits' resolution and the error of float64 probabilities, whose exponents are below 40.
_GUARD = 2.0**-31
_WORD = 2**64
# Entries at a time: their arrays stay in a processor's cache.
_BLOCK = 2**15


def system_entropy(size: int) -> bytes:
    """Returns bytes of OpenSSL's generator, reseeded with the operating system's entropy.

    It is AES-256 in counter mode (NIST SP 800-90A), several times as fast as ``os.urandom``. Fresh
    entropy is mixed in at every call, so copies of a process or of a virtual machine differ.
    """
    ssl.RAND_add(os.urandom(_SEED_BYTES), float(_SEED_BYTES))
    return ssl.RAND_bytes(size)


SYSTEM: Entropy = system_entropy


def simulated_entropy(seed: int) -> Entropy:
    """Returns a reproducible source of bytes, for tests and simulations in one process.

    Privacy:
      None: anyone who has the seed can remove the masks and the noise.

    Args:
      seed: a whole number of at least zero.

    >>> simulated_entropy(3)(4) == simulated_entropy(3)(4)
    True
    """
    check_count("seed", as_seed(seed), minimum=0)
    return np.random.Generator(np.random.Philox(as_seed(seed))).bytes


def uniform_words(entropy: Entropy, size: int) -> UInt64:
    """Returns ``size`` independent uniform 64-bit words."""
    return np.frombuffer(entropy(8 * size), "<u8").astype(np.uint64, copy=False)


class EntropyWords(RandomWords):
    """Words of ``size`` lanes for the samplers, all from one source of bytes."""

    def __init__(self, entropy: Entropy, size: int) -> None:
        self.size = size
        self.entropy = entropy

    def draw(self, lanes: Lanes) -> UInt64:
        return uniform_words(self.entropy, len(lanes)).copy()


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
    result = np.zeros(scales.size, np.int64)
    for start in range(0, scales.size, _BLOCK):
        block = slice(start, start + _BLOCK)
        result[block] = _draw_block(entropy, scales[block])
    return result


def _draw_block(entropy: Entropy, scales: Int64) -> Int64:
    words = EntropyWords(entropy, scales.size)
    result = np.zeros(scales.size, np.int64)
    left = np.arange(scales.size)
    while left.size:
        # A candidate (whole + rest / scale) scale: half-normal, and uniform within a scale.
        scale, drawn = scales[left], words.draw(left)
        whole = _half_normal(entropy, drawn >> np.uint64(_ACCEPT_BITS) & _LOW_31)
        rest = words.below(scale, left)
        size = whole * scale + rest

        # Its sign; a negative zero is refused, or zero would be drawn twice as often.
        negative = drawn >= np.uint64(2**63)
        accepted = _accept(entropy, drawn & _LOW_32, whole, rest, scale)
        accepted &= (size > 0) | ~negative
        result[left[accepted]] = np.where(negative, -size, size)[accepted]
        left = left[~accepted]
    return result


def _half_normal(entropy: Entropy, drawn: UInt64) -> Int64:
    """Returns k >= 0 with probability proportional to exp(-k^2 / 2), by inversion.

    ``drawn`` has the first 31 binary digits of uniform numbers; further ones are from ``entropy``.
    """
    table = _cumulative_digits()
    numbers = np.searchsorted(table, drawn, side="left")

    # Where the digits are those of a cumulative probability, more of both decide.
    for lane in np.flatnonzero(table[np.minimum(numbers, table.size - 1)] == drawn):
        number, uniform = int(numbers[lane]), LazyUniform(int(drawn[lane]), _NORMAL_BITS, entropy)
        while not uniform.is_below(functools.partial(_cumulative, number)):
            number += 1
        numbers[lane] = number
    return numbers.astype(np.int64)


def _accept(
    entropy: Entropy, drawn: UInt64, whole: Int64, rest: Int64, scale: Int64
) -> npt.NDArray[np.bool_]:
    """True with probability exp(-x (x / 2 + whole)), x = rest / scale in [0, 1).

    ``drawn`` has the first 32 binary digits of uniform numbers; further ones are from ``entropy``.
    """
    # In float64, on the first digits.
    x = rest / scale
    excess = drawn * 2.0**-_ACCEPT_BITS - np.exp(-x * (x / 2 + whole))
    accepted = excess < 0

    # Where rounding or further digits could change the result, exactly.
    for lane in np.flatnonzero(np.abs(excess) < _GUARD):
        numbers = (int(one[lane]) for one in (whole, rest, scale))
        uniform = LazyUniform(int(drawn[lane]), _ACCEPT_BITS, entropy)
        accepted[lane] = uniform.is_below(functools.partial(_acceptance, *numbers))
    return accepted


class LazyUniform:
    """A uniform number in [0, 1) whose binary digits are drawn as they are needed.

    The first ``count`` ones are those of the whole number ``digits``.
    """

    def __init__(self, digits: int, count: int, entropy: Entropy) -> None:
        self._digits, self._count, self._entropy = digits, count, entropy

    def is_below(self, probability: Probability) -> bool:
        """Returns whether the uniform number is below ``probability``, never rounding."""
        while True:
            # Bounds on both, as far as the digits go.
            precision = self._count // 3 + 10
            with localcontext(Context(prec=precision)):
                value, error = probability(precision), Decimal(10) ** (3 - precision)
                low = Decimal(self._digits) / 2**self._count
                high = Decimal(self._digits + 1) / 2**self._count
                if high + error <= value:
                    return True
                if low - error >= value:
                    return False

            # Neither is certain: more digits.
            more = uniform_words(self._entropy, 1)
            self._digits, self._count = self._digits * _WORD + int(more[0]), self._count + 64


@functools.cache
def _cumulative_digits() -> UInt64:
    """The first 31 binary digits of each cumulative probability, up to the first of ones alone."""
    digits: list[int] = []
    with localcontext(Context(prec=60)):
        while not digits or digits[-1] < 2**_NORMAL_BITS - 1:
            digits.append(int(_cumulative(len(digits), 60) * 2**_NORMAL_BITS))
    return np.array(digits, np.uint64)


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
