"""Exact noise on the host: integer samplers, and releases on a public grid.

Floating-point noise beside a floating-point value is no guarantee: the sum is rounded to the
value's spacing, which reveals the value, and removes all noise beside a large one (Mironov 2012).
Here a value is rounded to a multiple of a public power of two, noise is drawn exactly on that grid,
both are added as integers, and only the sum becomes a float: post-processing. So the guarantee
holds for the floating-point output and for every input.

With grid g, d entries, sensitivity D and scale s (public numbers), rounding moves the sensitivity
to at most D + d g in L1, D + sqrt(d) g in L2 and D + g in L-infinity; call it D (1 + r). The noise
is drawn at the integer scale T = ceil((s / g) (1 + r)) + 1, in units of g. Then:

- Discrete Laplace. The shift is at most m = D (1 + r) / g units, and moving it by one unit is
  (1 / T)-DP, so a path of m units is as private as the m-fold group (Dong, Roth & Su 2022, Theorem
  2.14), which noise in one dimension attains: delta is 1 - exp(-i / T) at epsilon = (m - 2 i) / T,
  and linear in exp(epsilon) between these points. Chords over a ratio exp(2 / T) lie above the
  curve 1 - exp((epsilon - m / T) / 2) of continuous noise by a factor of at most
  1 - (exp(2 / T) - 1)^2 / 32, about 1 / (8 T^2), on exp((epsilon - m / T) / 2); the "+ 1" in T
  lowers m / T by at least 1 / T^2. So continuous Laplace noise of scale s is an upper bound.
- Discrete Gaussian. A real x, rounded to k with probability proportional to
  exp(-(k - x)^2 / (2 v)) for v = 2^20, turns Gaussian noise of variance T^2 - v into discrete
  Gaussian noise of variance T^2, but for factors within 1 +- 10^(-10^6) in each entry (Poisson
  summation). Since T^2 - v > (T - 1)^2, continuous Gaussian noise of scale s is an upper bound.
- Selection: see `dpjax.mechanisms.selection`.

The grid is at most 2^-32 of the scale, and of the sensitivity over d (or sqrt(d)): noise is larger
than stated by less than one part in 10^9.

No probability is rounded, so neither gaps nor a cut-off tail of floating-point noise can reveal the
value beneath it (Mironov 2012). All functions are vectorised with numpy over *lanes*: each lane is
one number to be drawn, with a stream of random words of its own, so a lane's result depends on
nothing but its key and position. How long a draw takes depends on the noise.

Scales below 2^55 units are computed in int64 and larger ones in Python integers, by the same code.
An int64 overflow would need noise beyond 128 scales, of probability below 1e-55.

Source: Canonne, Kamath & Steinke (2020), Algorithms 1 and 2; Karney (2016), Algorithm D.
"""

import functools
import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from numbers import Rational
from typing import Any, NamedTuple, SupportsFloat

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.experimental.buffer_callback import buffer_callback

from dpjax._checks import as_key, as_numbers, check, is_traced, to_float64
from dpjax._random import threefry
from dpjax._typing import Numeric, PRNGKey

UInt32 = npt.NDArray[np.uint32]
Integers = np.ndarray  # int64, or Python integers with dtype object
Lanes = npt.NDArray[np.intp]

_LARGEST_FAST = 2**55
# The counter's first word that no lane has: keys derived by `derive` are no lane's random words.
_DERIVED = np.uint32(2**32 - 1)
# Few lanes take words of a table filled this many at a time: a call of `threefry` costs about as
# much for one counter as for a thousand.
_WORDS_AT_ONCE = 2048


def derive(key_bits: UInt32, count: int) -> list[UInt32]:
    """Returns ``count`` independent keys like ``key_bits``, ``(..., 2)``, derived from it."""
    derived = []
    for number in range(count):
        first = np.full(np.atleast_1d(key_bits[..., 0]).shape, _DERIVED)
        second = np.full_like(first, number)
        keys = key_bits.reshape(*first.shape, 2)
        pair = threefry(keys[..., 0], keys[..., 1], first, second)
        derived.append(np.stack(pair, axis=-1).reshape(key_bits.shape))
    return derived


def _words64(key: UInt32, first: UInt32, second: UInt32) -> npt.NDArray[np.uint64]:
    """Returns the values of `threefry` as 64-bit words."""
    high, low = threefry(key[..., 0], key[..., 1], first, second)
    return (high.astype(np.uint64) << np.uint64(32)) | low


class RandomWords:
    """Streams of independent uniform 64-bit words, one stream for each lane.

    The n-th word of a lane is Threefry's value at the counter (position, n) under the lane's key.

    Args:
      key_bits: a key for each release, uint32 ``(..., 2)``.
      size: how many lanes each key has, below 2^32 - 1.
    """

    def __init__(self, key_bits: UInt32, size: int) -> None:
        keys = key_bits.reshape(-1, 2)
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
        """Returns uniform numbers in (0, 1), one for each lane: float64 multiples of 2^-54."""
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


def fit_integers(*numbers: npt.ArrayLike) -> list[Integers]:
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
        accepted = (size != 0) | ~negative  # else zero would be drawn twice as often
        result[left[accepted]] = np.where(negative, -size, size)[accepted]
        left = left[~accepted]
    return result


def discrete_gaussian(words: RandomWords, numerator: Integers, denominator: Integers) -> Integers:
    """Draws k with probability proportional to exp(-k^2 / (2 scale^2)), as `discrete_laplace`.

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
        fits = np.flatnonzero((x < top) & ~((candidate == 0) & negative))
        fits = fits[_bernoulli_exp_half_square(words, left[fits], x[fits], top[fits])]
        fits = fits[bernoulli_exp(words, left[fits], k[fits] * x[fits], top[fits])]
        result[left[fits]] = np.where(negative, -candidate, candidate)[fits]
        left = np.delete(left, fits)
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


Array = np.ndarray
# What runs on the host: from keys (..., 2) and arrays with the same leading axes to such arrays.
HostFunction = Callable[[npt.NDArray[np.uint32], list[Array]], list[Array]]
_GRID_BITS = 32
_LARGEST_UNITS = 2.0**62


class Grid(NamedTuple):
    """A public grid for one release.

    Attributes:
      exponent: the grid's spacing is two to the power of this.
      scale: of the noise, in units of the spacing, enlarged for the rounding of the value.
    """

    exponent: int
    scale: Fraction

    def noise_scale(self, weight: float = 1.0) -> int:
        """The integer scale T of the noise on an entry of this weight."""
        return math.ceil(self.scale / Fraction(weight)) + 1


def as_fraction(number: SupportsFloat) -> Fraction:
    """Returns the rational number that a float, integer or fraction is."""
    number = number.item() if isinstance(number, np.generic) else number
    return Fraction(number if isinstance(number, Rational) else float(number))


def grid_for(
    scale: Numeric | Fraction, sensitivity: Numeric, moved_units: int, rounding: float = 0.0
) -> Grid:
    """Returns the grid of a release and the scale of the noise on it; all arguments are public.

    Args:
      scale: of the noise, as stated.
      sensitivity: of the value, as stated.
      moved_units: by how many units at most rounding to the grid moves two neighbours apart, in
        the sensitivity's norm.
      rounding: by how much more than stated the value moves, over the sensitivity.
    """
    stated, moves = as_fraction(scale), as_fraction(sensitivity)
    finest = min(stated, moves / moved_units)
    log2 = finest.numerator.bit_length() - finest.denominator.bit_length()  # or one above its floor
    exponent = log2 - (finest < Fraction(2) ** log2) - _GRID_BITS
    spacing = Fraction(2) ** exponent
    excess = Fraction(rounding) + moved_units * spacing / moves
    return Grid(exponent, stated / spacing * (1 + excess))


def to_units(value: Array, exponent: int) -> Array:
    """Returns ``value`` over 2^exponent, rounded to integers without overflow or other rounding.

    What is not finite becomes zero, a public constant: no refusal may depend on a private value.

    Args:
      value: float64, integers of any dtype, or Python numbers with dtype object.
      exponent: of the grid.

    Returns:
      Integers below 2^62 in size as int64, or larger ones as Python integers.
    """
    if value.dtype.kind in "biu" and np.all(np.abs(value.astype(np.float64)) < 2.0**53):
        value = value.astype(np.float64)
    if value.dtype.kind == "f":
        value = np.where(np.isfinite(value), value, 0.0)
        with np.errstate(over="ignore", under="ignore"):
            units = np.ldexp(value, -exponent)
        if np.all(np.abs(units) < _LARGEST_UNITS):
            return np.rint(units).astype(np.int64)
    spacing = Fraction(2) ** exponent
    finite = np.where(is_finite(value), value, 0)
    units = np.array([round(Fraction(v) / spacing) for v in finite.ravel().tolist()], object)
    return units.reshape(value.shape)


def is_finite(value: Array) -> npt.NDArray[np.bool_]:
    """Returns which entries are finite, also of Python numbers with dtype object."""
    if value.dtype != object:
        return np.isfinite(value)
    finite = [isinstance(entry, int) or math.isfinite(entry) for entry in value.ravel()]
    return np.array(finite, bool).reshape(value.shape)


def from_units(units: Array, exponent: int) -> npt.NDArray[np.float64]:
    """Returns ``units`` times 2^exponent as float64: infinite where that is too large."""
    units = np.asarray(units)
    if units.dtype != object:
        with np.errstate(over="ignore", under="ignore"):
            return np.ldexp(units.astype(np.float64), exponent)
    values = [Fraction(unit) * Fraction(2) ** exponent for unit in units.ravel()]
    return to_float64(np.array(values, object)).reshape(units.shape)


def as_integers(
    value: object, name: str = "value", *, booleans: bool = False
) -> np.ndarray | jax.Array:
    """Returns an array of integers without rounding; with ``booleans`` also one of booleans.

    Raises:
      ValueError: it is of anything else.
    """
    numbers = as_numbers(value, name)
    if numbers.dtype == object:
        whole = all(isinstance(number, int) for number in numbers.ravel())
    else:
        whole = jnp.issubdtype(numbers.dtype, jnp.integer) or (booleans and numbers.dtype == bool)
    check(whole, name, numbers.dtype, "integers or booleans" if booleans else "integers")
    return numbers


def float_dtype(value: object) -> np.dtype:
    """Returns the dtype of a release of ``value``: its own if of floats, else the default one."""
    numbers = as_numbers(value)
    if jnp.issubdtype(numbers.dtype, jnp.floating):
        return np.dtype(numbers.dtype)
    return np.dtype(jnp.asarray(0.0).dtype if isinstance(numbers, jax.Array) else np.float64)


def call_on_host(
    function: HostFunction,
    key: PRNGKey,
    values: Sequence[Any],
    results: Sequence[jax.ShapeDtypeStruct],
) -> list[Any]:
    """Returns ``function(key_bits, arrays)``: directly, or through a callback under jit and vmap.

    Args:
      function: takes a key's bits ``(..., 2)`` and numpy arrays, returns numpy arrays, all with the
        same leading axes of a batch. It must not call JAX, which could wait for itself.
      key: a JAX key.
      values: arrays as of `as_numbers`; those that are not traced reach the function exactly.
      results: shapes and dtypes without the axes of a batch.

    Returns:
      Numpy arrays, or traced ones if the key or a value is traced.
    """
    # Directly, unless something is traced.
    key_bits = jax.random.bits(as_key(key), (2,), jnp.uint32)
    traced = [is_traced(value) for value in values]
    values = [value if is_traced(value) else _in_64_bits(value) for value in values]
    if not any(traced) and not is_traced(key_bits):
        drawn = function(np.asarray(key_bits), list(values))
        return [_cast(a, r.dtype, keep_large=True) for a, r in zip(drawn, results, strict=True)]

    # What is traced reaches the host as words, in which no bit is lost.
    dtypes = [np.dtype(jax.dtypes.canonicalize_dtype(result.dtype)) for result in results]
    ranks = [len(np.shape(value)) for value in values]
    given_dtypes = [np.dtype(value.dtype) if is_traced(value) else None for value in values]

    def callback(key_bits: npt.ArrayLike, *operands: npt.ArrayLike) -> list[Array]:
        # The arrays, traced or not, with the axes of one batch.
        traced_values = iter(operands)
        arrays = [
            value if dtype is None else _in_64_bits(_from_words(next(traced_values), dtype))
            for value, dtype in zip(values, given_dtypes, strict=True)
        ]
        bits = np.asarray(key_bits)
        axes = [a.shape[: a.ndim - rank] for a, rank in zip(arrays, ranks, strict=True)]
        batch = np.broadcast_shapes(bits.shape[:-1], *axes)
        bits = np.broadcast_to(bits, (*batch, 2))
        arrays = [
            np.broadcast_to(a, batch + a.shape[a.ndim - rank :])
            for a, rank in zip(arrays, ranks, strict=True)
        ]

        drawn = function(bits, arrays)
        return [_host_words(_cast(a, dtype)) for a, dtype in zip(drawn, dtypes, strict=True)]

    # The results come back as words, too.
    shapes = [
        jax.eval_shape(_device_words, jax.ShapeDtypeStruct(result.shape, dtype))
        for result, dtype in zip(results, dtypes, strict=True)
    ]
    operands = [_device_words(value) for value in values if is_traced(value)]
    released = _host_callback(callback, shapes, key_bits, *operands)
    return [
        jax.lax.bitcast_convert_type(each, dtype) if dtype.itemsize == 8 else each
        for each, dtype in zip(released, dtypes, strict=True)
    ]


def _host_callback(
    callback: Callable[..., list[Array]], shapes: list[jax.ShapeDtypeStruct], *operands: jax.Array
) -> list[jax.Array]:
    """Calls a host function from a compiled program, without copies on CPUs.

    `jax.pure_callback` copies large operands on a thread of the CPU client's pool and waits for
    the copy. On a machine with one core that thread is the one that waits, so that neither goes on.
    `buffer_callback` reads the operands and writes the results in place.
    """

    def in_place(_: object, results: list[Any], *buffers: Any) -> None:
        for result, array in zip(results, callback(*buffers), strict=True):
            np.asarray(result)[...] = array

    return jax.lax.platform_dependent(
        *operands,
        cpu=buffer_callback(in_place, shapes, vmap_method="expand_dims"),
        default=functools.partial(jax.pure_callback, callback, shapes, vmap_method="expand_dims"),
    )


# JAX enables 64 bits for a thread, and a callback may run on another one: there JAX rounds to 32
# bits what the callback is given, and refuses what it returns. So 64-bit numbers are passed as
# pairs of words.
def _device_words(value: jax.Array) -> jax.Array:
    """Returns 64-bit entries as pairs of uint32 on a last axis, others as they are."""
    wide = value.dtype.itemsize == 8
    return jax.lax.bitcast_convert_type(value, jnp.uint32) if wide else value


def _host_words(array: Array) -> Array:
    """Returns the same as `_device_words` on the host."""
    wide = array.dtype.itemsize == 8
    return np.asarray(array, order="C")[..., None].view(np.uint32) if wide else array


def _from_words(words: npt.ArrayLike, dtype: np.dtype) -> Array:
    """Returns the numbers of this dtype that `_device_words` turned into ``words``."""
    array = np.asarray(words, order="C")
    return array.view(dtype)[..., 0] if dtype.itemsize == 8 else array


def _in_64_bits(value: npt.ArrayLike) -> Array:
    """Floats as float64, integers and Python numbers as they are: exact in each case."""
    array = np.asarray(value)
    return array if array.dtype.kind in "biuO" else array.astype(np.float64)


def _cast(array: Array, dtype: npt.DTypeLike, keep_large: bool = False) -> Array:
    """Casts to ``dtype``: floats may become infinite, and integers the nearest that it holds.

    With ``keep_large`` Python integers that ``dtype`` does not hold stay as they are.
    """
    nearest = array
    if np.dtype(dtype).kind == "i":
        info = np.iinfo(dtype)
        nearest = np.asarray(np.clip(array, info.min, info.max))
    with np.errstate(over="ignore", under="ignore"):
        cast = nearest.astype(dtype)
    kept = keep_large and array.dtype == object and not np.all(cast == array)
    return array if kept else cast
