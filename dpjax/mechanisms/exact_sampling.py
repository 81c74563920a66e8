"""Exact samples of discrete distributions, by integer arithmetic on uniformly random bits.

No probability is rounded, so neither gaps nor a cut-off tail of floating-point noise can reveal the
value beneath it (Mironov 2012). All functions are vectorised with numpy over *lanes*: each lane is
one number to be drawn, with a stream of random words of its own, so a lane's result depends on
nothing but its key and position. How long a draw takes depends on the noise.

Scales below 2^55 units are computed in int64 and larger ones in Python integers, by the same code.
An int64 overflow would need noise beyond 128 scales, of probability below 1e-55.

Source: Canonne, Kamath & Steinke (2020), Algorithms 1 and 2; Karney (2016), Algorithm D.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

UInt32 = npt.NDArray[np.uint32]
Integers = npt.NDArray[Any]  # int64, or Python integers with dtype object
Lanes = npt.NDArray[np.intp]

# Threefry-2x32, 20 rounds: Salmon, Moraes, Dror & Shaw (2011), Table 2 and Section 3.
_ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
_PARITY = np.uint32(0x1BD11BDA)
_LARGEST_FAST = 2**55
# The counter's first word that no lane has: keys derived by `derive` are no lane's random words.
_DERIVED = np.uint32(2**32 - 1)
# Few lanes take words of a table filled this many at a time: a call of `threefry` costs about as
# much for one counter as for a thousand.
_WORDS_AT_ONCE = 2048


def threefry(key: UInt32, first: UInt32, second: UInt32) -> tuple[UInt32, UInt32]:
    """Threefry-2x32 of the counters ``(first, second)`` under ``key``, as in `jax.random`.

    Args:
      key: ``(..., 2)``.
      first: broadcast with ``key[..., 0]``, of at least one dimension, as is ``second``.
      second: as ``first``.
    """
    one, two = key[..., 0], key[..., 1]
    schedule = (one, two, one ^ two ^ _PARITY)
    high, low = first + schedule[0], second + schedule[1]
    for group in range(5):
        for rotation in _ROTATIONS[group % 2]:
            high = high + low
            low = ((low << np.uint32(rotation)) | (low >> np.uint32(32 - rotation))) ^ high
        high = high + schedule[(group + 1) % 3]
        low = low + schedule[(group + 2) % 3] + np.uint32(group + 1)
    return high, low


def derive(words: UInt32, count: int) -> list[UInt32]:
    """Returns ``count`` independent keys like ``words``, ``(..., 2)``, derived from it."""
    derived = []
    for number in range(count):
        first = np.full(np.atleast_1d(words[..., 0]).shape, _DERIVED)
        second = np.full_like(first, number)
        pair = threefry(words.reshape(*first.shape, 2), first, second)
        derived.append(np.stack(pair, axis=-1).reshape(words.shape))
    return derived


def _words64(key: UInt32, first: UInt32, second: UInt32) -> npt.NDArray[np.uint64]:
    """Returns the values of `threefry` as 64-bit words."""
    high, low = threefry(key, first, second)
    return (high.astype(np.uint64) << np.uint64(32)) | low


class RandomWords:
    """Streams of independent uniform 64-bit words, one stream for each lane.

    The n-th word of a lane is Threefry's value at the counter (position, n) under the lane's key.

    Args:
      words: a key for each release, uint32 ``(..., 2)``.
      size: how many lanes each key has, below 2^32 - 1.
    """

    def __init__(self, words: UInt32, size: int) -> None:
        keys = words.reshape(-1, 2)
        self.size = len(keys) * size
        self._one_key = len(keys) == 1
        self._keys = keys if self._one_key else np.repeat(keys, size, axis=0)
        self._positions = np.tile(np.arange(size, dtype=np.uint32), len(keys))
        self._drawn = np.zeros(self.size, np.uint32)
        self._table = np.zeros((self.size, 0), np.uint64)  # the first words of each lane

    def draw(self, lanes: Lanes) -> npt.NDArray[np.uint64]:
        """Returns the next word of each of ``lanes``, which are all different."""
        counts = self._drawn[lanes]
        self._drawn[lanes] = counts + np.uint32(1)
        if self.size > _WORDS_AT_ONCE // 2:
            keys = self._keys if self._one_key else self._keys[lanes]
            return _words64(keys, self._positions[lanes], counts)
        while counts.max(initial=0) >= self._table.shape[1]:
            self._extend_table()
        return self._table[lanes, counts]

    def _extend_table(self) -> None:
        width = self._table.shape[1]
        counts = np.arange(width, width + _WORDS_AT_ONCE // max(self.size, 1), dtype=np.uint32)
        words = _words64(self._keys[:, None], self._positions[:, None], counts)
        self._table = np.concatenate([self._table, words], axis=1)

    def uniform(self) -> npt.NDArray[np.float64]:
        """Returns a float64 in (0, 1) for every lane, a multiple of 2^-54."""
        words = self.draw(np.arange(self.size))
        return ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def below(self, bounds: Integers, lanes: Lanes) -> Integers:
        """Returns an integer in 0 .. bound - 1 for each lane, all of the same probability."""
        if bounds.dtype == object:
            return self._below_large(bounds, lanes)
        limits = bounds.astype(np.uint64)
        # A word in the last, incomplete run of 2^64 mod bound values is drawn again.
        last = ~((~limits + np.uint64(1)) % limits)
        words = self.draw(lanes)
        again = np.flatnonzero(words > last)
        while again.size:
            words[again] = self.draw(lanes[again])
            again = again[words[again] > last[again]]
        return (words % limits).astype(np.int64)

    def _below_large(self, bounds: Integers, lanes: Lanes) -> Integers:
        if not lanes.size:
            return np.zeros(0, object)
        count = -(-(max(bounds) - 1).bit_length() // 64) + 1
        last = 2 ** (64 * count) // bounds * bounds
        result = np.zeros(lanes.size, object)
        left = np.arange(lanes.size)
        while left.size:
            words = np.zeros(left.size, object)
            for _ in range(count):
                words = words * 2**64 + self.draw(lanes[left]).astype(object)
            result[left] = words % bounds[left]
            left = left[(words >= last[left]).astype(bool)]
        return result


def fit_integers(*numbers: Any) -> list[Integers]:
    """Returns arrays of integers as int64 if the samplers can compute with all of them in int64."""
    arrays = [np.asarray(number, object) for number in numbers]
    small = all(np.all(array < _LARGEST_FAST) for array in arrays)
    return [array.astype(np.int64) if small else array for array in arrays]


def discrete_laplace(words: RandomWords, numerator: Integers, denominator: Integers) -> Integers:
    """Draws k with probability proportional to exp(-|k| / scale) for each lane.

    Args:
      words: the lanes.
      numerator: of each lane's scale, ``(words.size,)``; see `fit_integers`.
      denominator: of each lane's scale, ``(words.size,)``.

    Source: Canonne, Kamath & Steinke (2020), Algorithm 2.
    """
    result = np.zeros(words.size, numerator.dtype)
    left = np.arange(words.size)
    while left.size:
        size = _geometric(words, left, numerator[left]) // denominator[left]
        negative = _coin(words, left)
        kept = (size != 0) | ~negative  # else zero would be drawn twice as often
        result[left[kept]] = np.where(negative, -size, size)[kept]
        left = left[~kept]
    return result


def discrete_gaussian(words: RandomWords, numerator: Integers, denominator: Integers) -> Integers:
    """Draws k with probability proportional to exp(-k^2 / (2 scale^2)) for each lane.

    Args:
      words: the lanes.
      numerator: of each lane's scale, ``(words.size,)``; see `fit_integers`.
      denominator: of each lane's scale, ``(words.size,)``.

    Source: Karney (2016), Algorithm D, with centre zero. With k from exp(-k^2 / 2), a candidate is
    uniform among the integers in [k scale, (k + 1) scale): (k + x) scale, which is accepted with
    probability exp(-x^2 / 2 - k x).
    """
    result = np.zeros(words.size, numerator.dtype)
    left = np.arange(words.size)
    while left.size:
        top, bottom = numerator[left], denominator[left]
        k = _half_gaussian(words, left).astype(top.dtype)
        candidate = -(-k * top // bottom) + words.below(-(-top // bottom), left)
        x = bottom * candidate - k * top  # in units of 1 / top
        negative = _coin(words, left)
        kept = np.flatnonzero((x < top) & ~((candidate == 0) & negative))
        kept = kept[_bernoulli_exp_half_square(words, left[kept], x[kept], top[kept])]
        kept = kept[bernoulli_exp(words, left[kept], k[kept] * x[kept], top[kept])]
        result[left[kept]] = np.where(negative, -candidate, candidate)[kept]
        left = np.delete(left, kept)
    return result


def bernoulli_exp(
    words: RandomWords, lanes: Lanes, numerator: Integers, denominator: Integers
) -> npt.NDArray[np.bool_]:
    """Returns True with probability exp(-numerator / denominator) >= 0 for each of ``lanes``.

    Source: Canonne, Kamath & Steinke (2020), Algorithm 1.
    """
    wholes = numerator // denominator
    result = _bernoulli_exp_to_one(words, lanes, numerator % denominator, denominator)
    left, tossed = np.flatnonzero(result & (wholes > 0).astype(bool)), 1
    while left.size:
        heads = _bernoulli_exp_constant(words, lanes[left], 1)
        result[left[~heads]] = False
        left = left[heads]
        left = left[(wholes[left] > tossed).astype(bool)]
        tossed += 1
    return result


def _bernoulli_exp_to_one(
    words: RandomWords, lanes: Lanes, numerator: Integers, denominator: Integers
) -> npt.NDArray[np.bool_]:
    """For x in [0, 1]: whether a run of successes, the n-th of probability x / n, is even."""
    result = np.zeros(lanes.size, bool)
    left, n = np.arange(lanes.size), 1
    while left.size:
        success = words.below(denominator[left] * n, lanes[left]) < numerator[left]
        success = success.astype(bool)
        result[left[~success]] = n % 2 == 1
        left, n = left[success], n + 1
    return result


def _bernoulli_exp_constant(
    words: RandomWords, lanes: Lanes, denominator: int
) -> npt.NDArray[np.bool_]:
    """True with probability exp(-1 / ``denominator``)."""
    ones = np.ones(lanes.size, np.int64)
    return _bernoulli_exp_to_one(words, lanes, ones, denominator * ones)


def _bernoulli_exp_half_square(
    words: RandomWords, lanes: Lanes, numerator: Integers, denominator: Integers
) -> npt.NDArray[np.bool_]:
    """True with probability exp(-x^2 / 2): x^2 / (2 n) is the chance of three successes at once."""
    result = np.zeros(lanes.size, bool)
    left, n = np.arange(lanes.size), 1
    while left.size:
        success = words.below(np.full(left.size, 2 * n, np.int64), lanes[left]) == 0
        for _ in range(2):
            tossed = left[success]
            drawn = words.below(denominator[tossed], lanes[tossed]) < numerator[tossed]
            success[success] = drawn.astype(bool)
        result[left[~success]] = n % 2 == 1
        left, n = left[success], n + 1
    return result


def _geometric(words: RandomWords, lanes: Lanes, scale: Integers) -> Integers:
    """Draws n >= 0 with probability proportional to exp(-n / scale)."""
    rest = np.zeros(lanes.size, scale.dtype)
    left = np.arange(lanes.size)
    while left.size:
        rest[left] = words.below(scale[left], lanes[left])
        left = left[~_bernoulli_exp_to_one(words, lanes[left], rest[left], scale[left])]
    return rest + scale * _count_heads(words, lanes, 1).astype(scale.dtype)


def _count_heads(words: RandomWords, lanes: Lanes, denominator: int) -> npt.NDArray[np.int64]:
    """How many coins of probability exp(-1 / ``denominator``) in a row succeed."""
    counts = np.zeros(lanes.size, np.int64)
    left = np.arange(lanes.size)
    while left.size:
        left = left[_bernoulli_exp_constant(words, lanes[left], denominator)]
        counts[left] += 1
    return counts


def _half_gaussian(words: RandomWords, lanes: Lanes) -> npt.NDArray[np.int64]:
    """Draws k >= 0 with probability proportional to exp(-k^2 / 2)."""
    result = np.zeros(lanes.size, np.int64)
    left = np.arange(lanes.size)
    while left.size:
        k = _count_heads(words, lanes[left], 2)
        result[left] = k
        left = left[~bernoulli_exp(words, lanes[left], k * (k - 1), np.full(left.size, 2))]
    return result


def _coin(words: RandomWords, lanes: Lanes) -> npt.NDArray[np.bool_]:
    return (words.draw(lanes) & np.uint64(1)).astype(bool)
