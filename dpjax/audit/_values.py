"""Abstract values of a program: what its arrays reveal of the records, and by how much.

`_program` evaluates a jaxpr with these values instead of arrays. Each states facts that hold for
every data set: an interval, the records that an entry depends on, or how far one record moves a
sum. Numbers are exact reals here; rounding is left to the tests of sensitivity.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

# Ids of per-record arrays whose squared norms are added up before the records are clipped.
Group: TypeAlias = frozenset[int]
Interval: TypeAlias = tuple[float, float]
REALS: Interval = (-math.inf, math.inf)


@dataclass(frozen=True)
class Facts:
    """What holds for every entry of an array, N(G) being the norm of a record's arrays in G.

    Attributes:
      interval: bounds on every entry.
      within: arrays whose norm, times the number, bounds that of this one, for every record.
      norm_of: the array, and the factor, whose norm this one has exactly.
      clipped: for G the array of G and the factor k with norm at most k N(array) / N(G).
      total: for G the factor k: the entries are not negative and add up to at least k N(G)^2.
      square: every entry is at least k N(G)^2.
      norm: every entry is at least k N(G).
      inverse: the magnitude of every entry is at most k / N(G).
      smaller: of a Boolean array: for each answer, pairs of facts of which the first is then at
        most the second.
      uniform: whether all entries of a record are equal.
    """

    interval: Interval = REALS
    within: Mapping[int, float] = field(default_factory=dict)
    norm_of: tuple[int, float] | None = None
    clipped: Mapping[Group, tuple[int, float]] = field(default_factory=dict)
    total: Mapping[Group, float] = field(default_factory=dict)
    square: Mapping[Group, float] = field(default_factory=dict)
    norm: Mapping[Group, float] = field(default_factory=dict)
    inverse: Mapping[Group, float] = field(default_factory=dict)
    smaller: Mapping[bool, tuple[tuple["Facts", "Facts"], ...]] = field(default_factory=dict)
    uniform: bool = False

    @property
    def magnitude(self) -> float:
        """The largest absolute value of an entry."""
        return max(abs(self.interval[0]), abs(self.interval[1]))

    def scaled(self, low: float, high: float) -> "Facts":
        """Facts of the product with a factor whose magnitude is between two numbers."""
        clipped = {group: (one, k * high) for group, (one, k) in self.clipped.items()}
        norm_of = None
        if self.norm_of is not None and low == high > 0:
            norm_of = self.norm_of[0], self.norm_of[1] * low
        return Facts(
            times(self.interval, (-high, high)),
            _multiplied(self.within, high),
            norm_of,
            clipped if math.isfinite(high) else {},
            _multiplied(self.total, low),
            _multiplied(self.square, low),
            _multiplied(self.norm, low),
            _multiplied(self.inverse, high),
        )

    def repeated(self, number: float) -> "Facts":
        """Facts of an array in which every entry is repeated so many times."""
        grown = self.scaled(1.0, math.sqrt(number))
        return replace(self, norm_of=None, within=grown.within, clipped=grown.clipped)


@dataclass(frozen=True)
class Key:
    """A JAX key, or an array of keys, by how it is derived.

    Attributes:
      path: the root, and the step to each child: a range of numbers (of `split` or `fold_in`) or a
        number that differs in each iteration of a loop.
      span: of an array, the range of children of ``path`` that it holds; ``None`` for one key.
    """

    path: tuple[Any, ...]
    span: tuple[int, int] | None = None


@dataclass(frozen=True)
class Normal:
    """A multiple of standard normal noise, independent in every entry.

    Attributes:
      parts: the draws, each with the range of its flat entries (``None``: any).
      deviation: the least standard deviation of an entry.
    """

    parts: frozenset[tuple[int, tuple[int, int] | None]]
    deviation: float


@dataclass(frozen=True)
class Public:
    """An array that does not depend on the records, but possibly on random numbers.

    Attributes:
      facts: its interval.
      known: its value, if it is small and not random.
      draws: the random draws that it depends on.
      normal: what noise it is, if it is noise.
      key: what key it is, if it is one.
      constant: whether it is the same in every call.
      distinct: of an array of different entries, a name of their sequence.
      mask_of: of a mask, the name of the entries that it marks as no padding.
      loop: the loop in whose iterations it has different values, and which.
    """

    facts: Facts = Facts()
    known: np.ndarray | None = None
    draws: frozenset[int] = frozenset()
    normal: Normal | None = None
    key: Key | None = None
    constant: bool = False
    distinct: Any = None
    mask_of: Any = None
    loop: tuple[int, Any, float] | None = None


@dataclass(frozen=True)
class Records:
    """An array each of whose entries depends on one record alone.

    Attributes:
      axes: the axes that index the records together.
      order: which record is at which index; only arrays of one order can be combined.
      facts: of its entries.
      draws: the random draws that it depends on.
      each_once: loops in which every record is in one iteration only.
      block: how many entries of the axis in a row are of one record.
    """

    axes: tuple[int, ...]
    facts: Facts
    order: Any = ()
    draws: frozenset[int] = frozenset()
    each_once: frozenset[int] = frozenset()
    block: int = 1


@dataclass(frozen=True)
class Part:
    """A sum over records: each contributes an array of norm at most ``factor N(one) / N(group)``.

    Attributes:
      number: of the sum.
      group: arrays that are clipped together.
      one: the array of the group.
      factor: infinite if no bound is known.
      is_attained: whether some record contributes as much, as far as is known.
      once: loops in which a record is added in one iteration only.
      where: the line at which the records are added up.
    """

    number: int
    group: Group
    one: int
    factor: float
    is_attained: bool
    once: frozenset[int]
    where: str


@dataclass(frozen=True)
class Sums:
    """A linear function of sums over records.

    Attributes:
      blocks: of arrays put beside each other; each the magnitudes of the coefficients of the sums
        in it: terms of opposite signs do not cancel, as their entries may have been moved.
      carried: the same of the values that a loop carries, by their positions.
      draws: the random draws that it depends on.
    """

    blocks: tuple[Mapping[Part, float], ...]
    carried: Mapping[tuple[int, int], float] = field(default_factory=dict)
    draws: frozenset[int] = frozenset()

    def scaled(self, factor: float) -> "Sums":
        """Returns the sums times the magnitude of a number."""
        factor = abs(factor)
        blocks = tuple({part: c * factor for part, c in block.items()} for block in self.blocks)
        carried = {position: c * factor for position, c in self.carried.items()}
        return replace(self, blocks=blocks, carried=carried)

    def plus(self, other: "Sums") -> "Sums":
        """Returns the sum of two linear functions of sums."""
        one, two = (value.blocks or ({},) for value in (self, other))
        if max(len(one), len(two)) > 1:  # the blocks may lie differently in the two arrays
            one, two = ((_joined(blocks),) for blocks in (one, two))
        blocks = tuple(_added(a, b) for a, b in zip(one, two, strict=True))
        carried = _added(self.carried, other.carried)
        return Sums(blocks, carried, self.draws | other.draws)


@dataclass(frozen=True)
class Mixed:
    """An array that depends on the records in a way that gives no bound.

    Attributes:
      reason: why.
      where: the line.
      is_decided: whether the program is at fault, not the check.
      draws: the random draws that it depends on.
    """

    reason: str
    where: str
    is_decided: bool
    draws: frozenset[int] = frozenset()


Value: TypeAlias = Public | Records | Sums | Mixed


def times(one: Interval, other: Interval) -> Interval:
    """The interval of products."""
    ends = [0.0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(ends), max(ends)


def plus(one: Interval, other: Interval) -> Interval:
    """The interval of sums."""
    return one[0] + other[0], one[1] + other[1]


def added(a: Facts, b: Facts) -> Facts:
    """Facts of a sum."""
    interval = plus(a.interval, b.interval)
    if min(a.interval[0], b.interval[0]) < 0:
        return Facts(interval)
    # Neither is negative: the sum is at least each; squared norms of different arrays add up.
    norm = {**a.norm, **{group: max(k, a.norm.get(group, 0)) for group, k in b.norm.items()}}
    return Facts(
        interval, total=_united(a.total, b.total), square=_united(a.square, b.square), norm=norm
    )


def multiplied(a: Facts, b: Facts) -> Facts:
    """Facts of a product of per-record arrays, or of one and a public array."""
    interval = times(a.interval, b.interval)
    results = []
    for one, other in ((a, b), (b, a)):
        low, high = other.interval
        least = max(low, -high, 0.0)
        result = one.scaled(least, other.magnitude)
        if low < 0:
            result = replace(result, total={}, square={}, norm={})
        clipped = dict(result.clipped)
        for group, k in other.inverse.items():
            for array, factor in one.within.items():
                if array in group:
                    clipped[group] = array, factor * k
        results.append(replace(result, clipped=clipped))
    first, second = results
    return Facts(
        interval,
        {**first.within, **second.within},
        first.norm_of or second.norm_of,
        {**first.clipped, **second.clipped},
        {**first.total, **second.total},
        {**first.square, **second.square},
        {**first.norm, **second.norm},
        {**first.inverse, **second.inverse},
    )


def squared(a: Facts) -> Facts:
    """Facts of a square."""
    low, high = a.interval
    one_sign = low > 0 or high < 0
    interval = min(low * low, high * high) if one_sign else 0.0, max(low * low, high * high)
    total = {} if a.norm_of is None else {frozenset([a.norm_of[0]]): a.norm_of[1] ** 2}
    square = {group: k**2 for group, k in a.norm.items()} if low >= 0 else {}
    return Facts(interval, total=total, square=square)


def inverted(a: Facts) -> Facts:
    """Facts of 1 / a."""
    low, high = a.interval
    if low >= 0:
        interval = (1 / high if high > 0 else math.inf), (1 / low if low > 0 else math.inf)
    elif high < 0:
        interval = 1 / high, (1 / low if math.isfinite(low) else 0.0)
    else:
        return Facts()
    inverse = {group: 1 / k for group, k in a.norm.items() if k > 0}
    return Facts(interval, inverse=inverse if low >= 0 else {})


def root(a: Facts) -> Facts:
    """Facts of the square root."""
    low, high = (math.sqrt(max(end, 0.0)) for end in a.interval)
    return Facts((low, high), norm={group: math.sqrt(k) for group, k in a.square.items()})


def larger(a: Facts, b: Facts) -> Facts:
    """Facts of the maximum."""
    low, high = (max(ends) for ends in zip(a.interval, b.interval, strict=True))
    within = {}
    for one, other in ((a, b), (b, a)):
        if other.interval[1] <= 0:  # max(x, c) is no larger than x in magnitude, for c <= 0
            within = dict(one.within)
    return Facts(
        (low, high),
        within,
        total=_merged(a.total, b.total, max),
        square=_merged(a.square, b.square, max),
        norm=_merged(a.norm, b.norm, max),
        inverse=_common(a.inverse, b.inverse, max),
    )


def lesser(a: Facts, b: Facts) -> Facts:
    """Facts of the minimum."""
    low, high = (min(ends) for ends in zip(a.interval, b.interval, strict=True))
    within: Mapping[int, float] = {}
    for one, other in ((a, b), (b, a)):
        if other.interval[0] >= 0:
            within = dict(one.within)
    inverse = _merged(a.inverse, b.inverse, min) if low >= 0 else {}
    return Facts(
        (low, high),
        within,
        square=_common(a.square, b.square, min),
        norm=_common(a.norm, b.norm, min),
        inverse=inverse,
    )


def chosen(condition: Facts, by_answer: Mapping[bool, Facts]) -> Facts:
    """Facts of ``where(condition, by_answer[True], by_answer[False])``."""
    # What the answer says of norms: with N(G) <= t, a number u is at most u t / N(G).
    sides = []
    for answer, facts in by_answer.items():
        inverse, clipped = dict(facts.inverse), dict(facts.clipped)
        for small, large in condition.smaller.get(answer, ()):
            limit = large.interval[1]
            if not math.isfinite(limit):
                continue
            for group, k in small.norm.items():
                if k <= 0:
                    continue
                if math.isfinite(facts.magnitude):
                    inverse[group] = facts.magnitude * limit / k
                for array, factor in facts.within.items():
                    if array in group:
                        clipped[group] = array, factor * limit / k
        sides.append(replace(facts, inverse=inverse, clipped=clipped))

    # What holds on both sides; zero fulfils every upper bound.
    a, b = sides
    interval = (
        min(a.interval[0], b.interval[0]),
        max(a.interval[1], b.interval[1]),
    )
    for one, other in ((a, b), (b, a)):
        if one.interval == (0.0, 0.0):
            kept = replace(other, norm_of=None, total={}, square={}, norm={}, smaller={})
            return replace(kept, interval=interval, uniform=False)
    join = (
        max if condition.uniform else math.hypot
    )  # some entries are of one side, some of the other
    clipped = {
        group: (a.clipped[group][0], join(a.clipped[group][1], b.clipped[group][1]))
        for group in a.clipped.keys() & b.clipped.keys()
        if a.clipped[group][0] == b.clipped[group][0]
    }
    return Facts(
        interval,
        _common(a.within, b.within, join),
        None,
        clipped,
        _common(a.total, b.total, min) if condition.uniform else {},
        _common(a.square, b.square, min),
        _common(a.norm, b.norm, min),
        _common(a.inverse, b.inverse, max),
    )


def _multiplied(factors: Mapping[Any, float], number: float) -> dict[Any, float]:
    return {name: k * number for name, k in factors.items() if 0 < k * number < math.inf}


def _added(one: Mapping[Any, float], other: Mapping[Any, float]) -> dict[Any, float]:
    return {name: one.get(name, 0.0) + other.get(name, 0.0) for name in {**one, **other}}


def _joined(blocks: tuple[Mapping[Part, float], ...]) -> dict[Part, float]:
    """All sums of several blocks, each with the norm of its coefficients."""
    joined: dict[Part, float] = {}
    for block in blocks:
        for part, c in block.items():
            joined[part] = math.hypot(c, joined.get(part, 0.0))
    return joined


def _united(one: Mapping[Group, float], other: Mapping[Group, float]) -> dict[Group, float]:
    """Lower bounds k N(G)^2 of a sum from those of its two terms."""
    if not one or not other:
        return {**one, **other}
    return {a | b: min(k, m) for a, k in one.items() for b, m in other.items() if not a & b}


def _merged(one: Mapping[Any, float], other: Mapping[Any, float], choose: Any) -> dict[Any, float]:
    """Bounds of which each holds by itself."""
    return {
        name: choose(values)
        for name in {**one, **other}
        if (values := [side[name] for side in (one, other) if name in side])
    }


def _common(one: Mapping[Any, float], other: Mapping[Any, float], choose: Any) -> dict[Any, float]:
    """Bounds that hold on both sides."""
    return {name: choose(one[name], other[name]) for name in one.keys() & other.keys()}


# Public arrays of at most so many entries are computed.
MOST_KNOWN = 4096


def as_public(leaf: Any) -> Public:
    """A public array of known entries."""
    if is_key(leaf):
        return Public(constant=True)
    dtype = jnp.result_type(leaf)
    if isinstance(leaf, jax.ShapeDtypeStruct):
        return Public(dtype_facts(dtype))
    array = np.asarray(leaf)
    if (
        array.dtype == bool
        or np.issubdtype(array.dtype, np.integer)
        or jnp.issubdtype(dtype, jnp.floating)
    ):
        numbers = array.astype(float)
    else:
        return Public(constant=True)
    finite = numbers.size and not np.isnan(numbers).any()
    interval = (float(numbers.min()), float(numbers.max())) if finite else REALS
    small = array.size <= MOST_KNOWN
    is_distinct = small and array.ndim > 0 and len(np.unique(array)) == array.size
    distinct = (array.shape, array.tobytes()) if is_distinct else None
    return Public(Facts(interval), array if small else None, constant=True, distinct=distinct)


def dtype_facts(dtype: Any) -> Facts:
    """The range of a dtype."""
    if dtype == jnp.bool_:
        return Facts((0.0, 1.0))
    if jnp.issubdtype(dtype, jnp.integer):
        limits = jnp.iinfo(dtype)
        return Facts((float(limits.min), float(limits.max)))
    return Facts()


def within_limits(interval: Any, limits: Any) -> tuple[float, float]:
    """The interval, unless a number of its dtype may have wrapped around."""
    if interval[0] < limits[0] or interval[1] > limits[1] or math.isnan(interval[0] + interval[1]):
        return limits
    return interval


def batch_of(value: Value) -> Any:
    """The name of the padded batch that a per-record array has the rows of."""
    order = value.order if isinstance(value, Records) else ()
    while order:
        step, order = order
        if step[0] == "gather" and isinstance(step[1], tuple) and step[1][0] == "batch":
            return step[1]
    return None


def facts_of(value: Value) -> Facts:
    return value.facts if isinstance(value, Public | Records) else Facts()


def is_wide(dtype: Any) -> bool:
    """Whether a dtype holds all integers of a program."""
    return bool(jnp.issubdtype(dtype, jnp.integer)) and jnp.iinfo(dtype).bits >= 32


def is_zero(value: Value) -> bool:
    return isinstance(value, Public) and value.facts.interval == (0.0, 0.0)


def is_key_dtype(dtype: Any) -> bool:
    return bool(jnp.issubdtype(dtype, jax.dtypes.prng_key))


def is_key(leaf: Any) -> bool:
    return hasattr(leaf, "dtype") and is_key_dtype(leaf.dtype)


def is_raw_key(leaf: Any) -> bool:
    """Whether an array may hold raw keys: of `jax.random.PRNGKey`."""
    return (
        hasattr(leaf, "dtype")
        and leaf.dtype == jnp.uint32
        and np.ndim(leaf) in (1, 2)
        and np.shape(leaf)[-1] in (2, 4)
    )


def rows_differ(array: np.ndarray) -> bool:
    return len(np.unique(array, axis=0)) == len(array)


def as_hashable(parameter: Any) -> Any:
    return tuple(parameter) if parameter is not None else None
