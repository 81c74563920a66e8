"""Abstract values of a program: what its arrays reveal of the records, and by how much.

`_program` evaluates a jaxpr with these values instead of arrays. Each states facts that hold for
every data set: an interval, the records that an entry depends on, or how far one record moves a
sum. Numbers are exact reals here; rounding is left to the tests of sensitivity.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np

# A product of powers of arrays, by their numbers: its norm N is, for each record, that of theirs.
Product: TypeAlias = tuple[tuple[int, int], ...]
# Products whose squared norms are added up: N(G)^2 is the sum of N(g)^2 over g in G.
Group: TypeAlias = frozenset[Product]
# The empty product, of norm one.
UNIT: Group = frozenset([()])
Interval: TypeAlias = tuple[float, float]
REALS: Interval = (-math.inf, math.inf)


@dataclass(frozen=True)
class Facts:
    """Bounds on the entries of an array, N(G) being the norm of a record's arrays in G.

    Attributes:
      interval: bounds on every entry.
      name: G with N(G) the norm of the array.
      uniform: of an array whose entries are equal for a record, the product whose norm is their
        magnitude.
      repeats: the number of these entries.
      within: for G the factor k: the norm of the array is at most k N(G).
      least: for G the factor k: the norm of the array is at least k N(G).
      clipped: for A and G the factor k: the norm is at most k N(A) / N(G).
      total: for G the factor k: the entries are not negative and add up to at least k N(G)^2.
      square: every entry is at least k N(G)^2.
      norm: every entry is at least k N(G).
      inverse: the magnitude of every entry is at most k / N(G).
      smaller: of a Boolean array: for each answer, pairs of facts of which the first is then at
        most the second.
      excess: facts F and a number c: every entry is at least that of an array with F, less c.
    """

    interval: Interval = REALS
    name: Group | None = None
    uniform: Product | None = None
    repeats: float = 1.0
    within: Mapping[Group, float] = field(default_factory=dict)
    least: Mapping[Group, float] = field(default_factory=dict)
    clipped: Mapping[tuple[Group, Group], float] = field(default_factory=dict)
    total: Mapping[Group, float] = field(default_factory=dict)
    square: Mapping[Group, float] = field(default_factory=dict)
    norm: Mapping[Group, float] = field(default_factory=dict)
    inverse: Mapping[Group, float] = field(default_factory=dict)
    smaller: Mapping[bool, tuple[tuple["Facts", "Facts"], ...]] = field(default_factory=dict)
    excess: tuple["Facts", float] | None = None

    @property
    def magnitude(self) -> float:
        """The largest absolute value of an entry."""
        return max(abs(self.interval[0]), abs(self.interval[1]))

    def scaled(self, low: float, high: float) -> "Facts":
        """Bounds on the entries times a factor whose magnitude is between two numbers."""
        return Facts(
            times(self.interval, (-high, high)),
            self.name if low == high == 1 else None,
            within=_multiplied(self.within, high),
            least=_multiplied(self.least, low),
            clipped=_multiplied(self.clipped, high),
            total=_multiplied(self.total, low),
            square=_multiplied(self.square, low),
            norm=_multiplied(self.norm, low),
            inverse=_multiplied(self.inverse, high),
        )

    def repeated(self, number: float) -> "Facts":
        """Bounds on the entries of an array in which every entry is repeated so many times."""
        grown = self.scaled(1.0, math.sqrt(number))
        repeats = self.repeats * number
        return replace(self, name=None, repeats=repeats, within=grown.within, clipped=grown.clipped)


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
      loop: the loop in whose iterations it has different values, and which: the loop's counter, and
        the shift and factor of its multiple.
      diagonal: two axes, entries being zero where the positions along both differ.
    """

    facts: Facts = Facts()
    known: np.ndarray | None = None
    draws: frozenset[int] = frozenset()
    normal: Normal | None = None
    key: Key | None = None
    constant: bool = False
    distinct: Any = None
    mask_of: Any = None
    loop: tuple[int, Any, float, float] | None = None
    diagonal: tuple[int, int] | None = None


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
      diagonal: another axis along which all entries are zero but that at the record's position.
    """

    axes: tuple[int, ...]
    facts: Facts
    order: Any = ()
    draws: frozenset[int] = frozenset()
    each_once: frozenset[int] = frozenset()
    block: int = 1
    diagonal: int | None = None


class Bound(NamedTuple):
    """That each record contributes an array of norm at most ``factor N(one) / N(group)``.

    Attributes:
      group: arrays that are clipped together.
      one: those of the group that the sum is of.
      factor: infinite if no bound is known.
    """

    group: Group
    one: Group
    factor: float


@dataclass(frozen=True)
class Part:
    """A sum over records.

    Attributes:
      number: of the sum.
      bounds: on what a record contributes; each holds.
      is_attained: whether some record contributes as much, as far as is known.
      once: loops in which a record is added in one iteration only.
      where: the line at which the records are added up.
      rows: of which records, if not all: the arrays of records, and their rows.
    """

    number: int
    bounds: tuple[Bound, ...]
    is_attained: bool
    once: frozenset[int]
    where: str
    rows: tuple[Any, range] | None = None

    @property
    def is_clipped(self) -> bool:
        """Whether norms bound it, not entries."""
        return self.bounds[0].group != named(self.number)


@dataclass(frozen=True)
class Sums:
    """A linear function of sums over records.

    Attributes:
      blocks: of arrays put beside each other; each the magnitudes of the coefficients of the sums
        in it: terms of opposite signs do not cancel, as their entries may have been moved.
      carried: the same of the values that a loop carries, by their positions.
      draws: the random draws that it depends on.
      in_rows: whether one record moves one row only, of each sum.
    """

    blocks: tuple[Mapping[Part, float], ...]
    carried: Mapping[tuple[int, int], float] = field(default_factory=dict)
    draws: frozenset[int] = frozenset()
    in_rows: bool = False

    @property
    def parts(self) -> list[Part]:
        """The sums in all blocks."""
        return [part for block in self.blocks for part in block]

    def weighted(self, factor: Callable[[Part], float]) -> "Sums":
        """Returns each of the sums times its own number."""
        blocks = tuple({part: c * factor(part) for part, c in b.items()} for b in self.blocks)
        return replace(self, blocks=blocks)

    def scaled(self, factor: float) -> "Sums":
        """Returns the sums times the magnitude of a number."""
        carried = {position: c * abs(factor) for position, c in self.carried.items()}
        return replace(self.weighted(lambda _: abs(factor)), carried=carried)

    def outside(self, loops: frozenset[int]) -> "Sums":
        """Returns the sums after loops, in which a record may have been in several iterations."""
        blocks = tuple(
            {replace(part, once=part.once - loops): c for part, c in block.items()}
            for block in self.blocks
        )
        return replace(self, blocks=blocks)

    def plus(self, other: "Sums") -> "Sums":
        """Adds two arrays that are linear in sums over the records."""
        one, two = (value.blocks or ({},) for value in (self, other))
        if max(len(one), len(two)) > 1:  # the blocks may lie differently in the two arrays
            one, two = ((_joined(blocks),) for blocks in (one, two))
        blocks = tuple(_added(a, b) for a, b in zip(one, two, strict=True))
        carried = _added(self.carried, other.carried)
        return Sums(blocks, carried, self.draws | other.draws, self.in_rows and other.in_rows)


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
    """Interval of the products of numbers in two intervals."""
    ends = [0.0 if 0 in (a, b) else a * b for a in one for b in other]
    return min(ends), max(ends)


def plus(one: Interval, other: Interval) -> Interval:
    """Interval of the sums of numbers in two intervals."""
    return one[0] + other[0], one[1] + other[1]


def named(number: int) -> Group:
    """The group of one array."""
    return frozenset([((number, 1),)])


# Products of more arrays, and sums of more, are not followed.
_MOST_FACTORS = 4
_MOST_TERMS = 256
_MOST_NAMES = 32


def product_of(one: Product, other: Product, power: int = 1) -> Product | None:
    """The product of one with a power of the other; `None` if it has many factors."""
    powers = dict(one)
    for number, exponent in other:
        powers[number] = powers.get(number, 0) + power * exponent
    product = tuple(sorted((number, e) for number, e in powers.items() if e))
    return product if sum(abs(e) for _, e in product) <= _MOST_FACTORS else None


def group_product(one: Group | None, other: Group | None) -> Group | None:
    """G with N(G) = N(one) N(other), or less; `None` if it is not followed."""
    if one is None or other is None or len(one) * len(other) > _MOST_TERMS:
        return None
    products = [product_of(a, b) for a in one for b in other]
    return None if None in products else frozenset(one for one in products if one is not None)


def are_related(one: Group, group: Group) -> bool:
    """Whether products of both contain the same array, or the first is the number one."""
    numbers = {number for product in one for number, _ in product}
    return one == UNIT or any(number in numbers for product in group for number, _ in product)


def added(a: Facts, b: Facts) -> Facts:
    """Bounds on the entries of a sum."""
    interval = plus(a.interval, b.interval)
    for one, other in ((a, b), (b, a)):
        if other.interval == (0.0, 0.0):
            return one
    for one, other in ((a, b), (b, a)):  # x - c + d is at least x, if d is at least c
        if one.excess is not None and other.interval[0] >= one.excess[1]:
            least = one.excess[0]
            return Facts(interval, square=least.square, norm=least.norm)
    if min(a.interval[0], b.interval[0]) < 0:
        return Facts(interval)
    # Neither is negative: squares of different arrays add up, and norms (triangle inequality).
    square, norm = (
        _united(one, other) if one and other else _with_one({**one, **other}, number)
        for one, other, number in (
            (a.square, b.square, (a if b.square else b).interval[0]),
            (a.norm, b.norm, (a if b.norm else b).interval[0]),
        )
    )
    return Facts(
        interval,
        least=_united(a.least, b.least),
        total=_united(a.total, b.total),
        square=square,
        norm=norm,
    )


def reduced(a: Facts, b: Facts) -> Facts:
    """Bounds on the entries of a difference."""
    low, high = b.interval
    excess = (a, high) if a.interval[0] >= 0 and math.isfinite(high) else None
    return Facts(plus(a.interval, (-high, -low)), excess=excess)


def multiplied(a: Facts, b: Facts) -> Facts:
    """Bounds on the entries of a product of per-record arrays, or of one and a public array."""
    results = []
    name, uniform = None, None
    for one, other in ((a, b), (b, a)):
        low, high = other.interval
        result = one.scaled(max(low, -high, 0.0), other.magnitude)
        if low < 0:
            result = replace(result, total={}, square={}, norm={})
        clipped = dict(result.clipped)
        for group, k in other.inverse.items():
            for array, factor in one.within.items():
                if are_related(array, group):
                    clipped[array, group] = factor * k

        # A number times an array: the norm is the product of both.
        if other.uniform is not None:
            factor_name = frozenset([other.uniform])
            name = group_product(factor_name, one.name)
            if one.uniform is not None:
                uniform = product_of(one.uniform, other.uniform)
            shrunk = _multiplied(other.clipped, other.repeats**-0.5)
            single = Facts(name=factor_name, within={factor_name: 1.0}, clipped=shrunk)
            bounds = upper_product(one, single)
            within = _merged(result.within, bounds.within, min)
            result = replace(result, within=within)
            clipped = _merged(clipped, bounds.clipped, min)
        results.append(replace(result, clipped=clipped))

    # Lower bounds of both are bounds of the product.
    first, second = results
    lower = [
        _products(one, other) for one, other in ((a.square, b.square), (a.norm, b.norm))
    ]  # of numbers that are not negative
    return Facts(
        times(a.interval, b.interval),
        name,
        uniform,
        max(a.repeats, b.repeats),
        within=_merged(first.within, second.within, min),
        least=_merged(first.least, second.least, max),
        clipped=_merged(first.clipped, second.clipped, min),
        total=_merged(first.total, second.total, max),
        square=_merged(lower[0], _merged(first.square, second.square, max), max),
        norm=_merged(lower[1], _merged(first.norm, second.norm, max), max),
        inverse=_merged(
            _products(a.inverse, b.inverse), _merged(first.inverse, second.inverse, min), min
        ),
    )


def upper_product(a: Facts, b: Facts) -> Facts:
    """Bounds on the norm of any product of two arrays, which is at most that of their norms."""
    within: dict[Group, float] = {}
    clipped: dict[tuple[Group, Group], float] = {}
    for one, other in itertools.product((a.name, UNIT), (b.name, UNIT)):
        product = group_product(one, other)
        if product is not None:
            bound = a.within.get(one or UNIT, math.inf) * b.within.get(other or UNIT, math.inf)
            within.update({product: bound} if bound < math.inf else {})
    for first, second in ((a, b), (b, a)):
        for (array, group), k in first.clipped.items():
            for factor, m in second.within.items():
                product = group_product(array, factor)
                if product is not None and are_related(product, group):
                    clipped[product, group] = k * m
            for (factor, other_group), m in second.clipped.items():
                product, both = group_product(array, factor), group_product(group, other_group)
                if product is not None and both is not None:
                    clipped[product, both] = k * m
    return Facts(within=within, clipped=clipped)


def concatenated(parts: Sequence[Facts]) -> Facts:
    """Bounds on the entries of arrays beside each other: their squared norms add up."""
    interval = (min(p.interval[0] for p in parts), max(p.interval[1] for p in parts))
    parts = [part for part in parts if part.interval != (0.0, 0.0)] or parts[:1]
    first, *rest = parts
    name, clipped = first.name, dict(first.clipped)
    for part in rest:
        is_apart = name is not None and part.name is not None and not name & part.name
        name = name | part.name if is_apart else None  # type: ignore[operator]
        clipped = {
            (one | other, group): max(k, m) if not one & other else math.hypot(k, m)
            for (one, group), k in clipped.items()
            for (other, other_group), m in part.clipped.items()
            if group == other_group
        }
    least: Mapping[Group, float] = {}
    for part in parts:
        least = _united(least, part.least)
    return Facts(interval, name, least=least, clipped=clipped)


def squared(a: Facts) -> Facts:
    """Bounds on the entries of a square."""
    low, high = a.interval
    one_sign = low > 0 or high < 0
    interval = min(low * low, high * high) if one_sign else 0.0, max(low * low, high * high)
    total = {group: k**2 for group, k in a.least.items()}
    square = {group: k**2 for group, k in a.norm.items()} if low >= 0 else {}
    return Facts(interval, total=total, square=square)


def inverted(a: Facts) -> Facts:
    """Bounds on the entries of 1 / a."""
    uniform = None if a.uniform is None else product_of((), a.uniform, -1)
    low, high = a.interval
    if low >= 0:
        interval = (1 / high if high > 0 else math.inf), (1 / low if low > 0 else math.inf)
    elif high < 0:
        interval = 1 / high, (1 / low if math.isfinite(low) else 0.0)
    else:
        return Facts(uniform=uniform, repeats=a.repeats)
    inverse = {group: 1 / k for group, k in a.norm.items() if k > 0}
    return Facts(interval, uniform=uniform, repeats=a.repeats, inverse=inverse if low >= 0 else {})


def root(a: Facts) -> Facts:
    """Bounds on the entries of the square root."""
    low, high = (math.sqrt(max(end, 0.0)) for end in a.interval)
    least, norm = (
        {group: math.sqrt(k) for group, k in bounds.items()} for bounds in (a.total, a.square)
    )
    return Facts((low, high), least=least, norm=norm)


def larger(a: Facts, b: Facts) -> Facts:
    """Bounds on the entries of the maximum."""
    low, high = (max(ends) for ends in zip(a.interval, b.interval, strict=True))
    within: Mapping[Group, float] = {}
    clipped: Mapping[tuple[Group, Group], float] = {}
    inverse: Mapping[Group, float] = _common(a.inverse, b.inverse, max)
    for one, other in ((a, b), (b, a)):
        if other.interval[1] <= 0:  # max(x, c) is no larger than x in magnitude, for c <= 0
            within, clipped, inverse = one.within, one.clipped, one.inverse
    one_least, other_least = (one.least if one.interval[0] >= 0 else {} for one in (a, b))
    return Facts(
        (low, high),
        within=within,
        clipped=clipped,
        least=_merged(one_least, other_least, max),
        total=_merged(a.total, b.total, max),
        square=_merged(a.square, b.square, max),
        norm=_merged(a.norm, b.norm, max),
        inverse=inverse,
        excess=b.excess if a.excess is None else a.excess,
    )


def lesser(a: Facts, b: Facts) -> Facts:
    """Bounds on the entries of the minimum."""
    low, high = (min(ends) for ends in zip(a.interval, b.interval, strict=True))
    within: Mapping[Group, float] = {}
    clipped: Mapping[tuple[Group, Group], float] = {}
    for one, other in ((a, b), (b, a)):
        if other.interval[0] >= 0:
            within, clipped = one.within, one.clipped
    inverse = _merged(a.inverse, b.inverse, min) if low >= 0 else {}
    return Facts(
        (low, high),
        within=within,
        clipped=clipped,
        square=_common(a.square, b.square, min),
        norm=_common(a.norm, b.norm, min),
        inverse=inverse,
    )


def chosen(condition: Facts, by_answer: Mapping[bool, Facts]) -> Facts:
    """Bounds on the entries of ``where(condition, by_answer[True], by_answer[False])``."""
    # With N(G) <= r, a number u of [v, w] is at most w r / N(G), and at least v N(G) / r.
    sides = []
    for answer, facts in by_answer.items():
        inverse, clipped = dict(facts.inverse), dict(facts.clipped)
        norm, square = dict(facts.norm), dict(facts.square)
        for group, radius in _radii(condition.smaller.get(answer, ())).items():
            if math.isfinite(facts.magnitude):
                inverse[group] = facts.magnitude * radius
            for array, factor in facts.within.items():
                if are_related(array, group):
                    clipped[array, group] = factor * radius
            if facts.interval[0] > 0:
                ratio = facts.interval[0] / radius if radius > 0 else math.inf
                norm[group] = max(norm.get(group, 0.0), ratio)
                ratio = ratio / radius if radius > 0 else math.inf
                square[group] = max(square.get(group, 0.0), ratio)
        sides.append(replace(facts, inverse=inverse, clipped=clipped, norm=norm, square=square))

    # What holds on both sides; zero fulfils every upper bound.
    a, b = sides
    interval = (
        min(a.interval[0], b.interval[0]),
        max(a.interval[1], b.interval[1]),
    )
    for one, other in ((a, b), (b, a)):
        if one.interval == (0.0, 0.0):
            kept = other.scaled(0.0, 1.0)
            return replace(kept, interval=interval)
    is_uniform = condition.uniform is not None
    # Else some entries are of one side, some of the other.
    join = max if is_uniform else math.hypot
    return Facts(
        interval,
        within=_common(a.within, b.within, join),
        least=_common(a.least, b.least, min) if is_uniform else {},
        clipped=_common(a.clipped, b.clipped, join),
        total=_common(a.total, b.total, min) if is_uniform else {},
        square=_common(a.square, b.square, min),
        norm=_common(a.norm, b.norm, min),
        inverse=_common(a.inverse, b.inverse, max),
    )


def _radii(pairs: Sequence[tuple[Facts, Facts]]) -> dict[Group, float]:
    """Upper bounds on N(G), where the first of each pair is at most the second."""
    radii: dict[Group, float] = {}
    for small, large in pairs:
        limit = max(large.interval[1], 0.0)
        if math.isfinite(limit):
            of_norms = {group: limit / k for group, k in small.norm.items() if k > 0}
            of_squares = {group: math.sqrt(limit / k) for group, k in small.square.items() if k > 0}
            radii = _merged(radii, _merged(of_norms, of_squares, min), min)
    return radii


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
    """Lower bounds of a sum of two numbers that are not negative, from those of each."""
    if not one or not other:
        return {**one, **other}
    united: dict[Group, float] = {}
    for (a, k), (b, m) in itertools.product(one.items(), other.items()):
        pairs = [(a, k), (b, m)] if a & b else [(a | b, min(k, m))]
        for group, factor in pairs[: _MOST_NAMES - len(united)]:
            united[group] = max(factor, united.get(group, 0.0))
    return united


def _with_one(bounds: Mapping[Group, float], number: float) -> dict[Group, float]:
    """Lower bounds of a number's sum with one that is at least ``number``."""
    return {group | UNIT if number >= k else group: k for group, k in bounds.items()}


def _products(one: Mapping[Group, float], other: Mapping[Group, float]) -> dict[Group, float]:
    """Bounds of a product of two numbers, from those of each."""
    products: dict[Group, float] = {}
    for (a, k), (b, m) in itertools.product(one.items(), other.items()):
        group = group_product(a, b)
        if group is not None and len(products) < _MOST_NAMES:
            products[group] = k * m
    return products


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
