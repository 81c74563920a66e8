"""A check of a program: that records reach its results only as clipped sums with noise.

The program is traced to a jaxpr, which is evaluated with the abstract values of `_values`: a
per-record array stays one while every entry depends on one record; a factor that is at most
C / norm of the record's gradient clips it; a sum over records has a sensitivity; the sum plus
independent normal noise is a release, and public from then on. What is not understood is never
taken for safe: it becomes `Mixed`, and the answer "not decided" or "violated".
"""

import contextlib
import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Var
from jax.extend.core import Literal as JaxprLiteral

from dpjax._checks import as_count, check, check_function, check_non_negative
from dpjax._jaxprs import aval, bind, bodies_of, body_of, equations_at_any_depth, read_scan
from dpjax._typing import PyTree
from dpjax.adjacency import Adjacency, check_adjacency
from dpjax.audit import _values
from dpjax.audit._device_rules import SUMS_OF_DEVICES, added_up, from_devices, on_device
from dpjax.audit._equations import (
    INLINED,
    TRUSTED,
    in_one,
    is_own,
    length_dependent,
    line_of,
    loop_counters,
    operands_of,
    outputs_reached,
    used_equations,
)
from dpjax.audit._noise_rules import (
    KEYS,
    NORMAL,
    carried_key,
    is_normal,
    key_after,
    keys_overlap,
    normal_after,
    parts_overlap,
    varies_in_loop,
)
from dpjax.audit._record_rules import (
    ELEMENTWISE,
    ENTRIES_KEPT,
    IDENTITIES,
    KEEPS_DISTINCT,
    SAME_ENTRIES,
    SCATTER_ADD,
    Axes,
    Mixing,
    axes_after,
    diagonals_after,
    elementwise_facts,
    is_inside,
    most_gathered,
    one_hot,
    order_after,
    partner_of_sum,
    places_scattered,
    region_of,
    repeats_of,
    rows_of,
    scattered_facts,
    structural_facts,
)
from dpjax.audit._values import (
    MOST_KNOWN,
    UNIT,
    Bound,
    Facts,
    Group,
    Key,
    Mixed,
    Normal,
    Part,
    Product,
    Public,
    Records,
    Sums,
    Value,
    as_hashable,
    as_public,
    batch_of,
    dtype_facts,
    facts_of,
    is_key,
    is_raw_key,
    is_wide,
    is_zero,
    named,
    rows_differ,
    within_limits,
)
from dpjax.certificates import Report
from dpjax.certificates.render import Table, round_down

Verdict = Literal["shown", "violated", "not decided"]
# Float32 rounds the clip bound and the noise's scale by less.
_TOLERANCE = 1e-4
# Of sums of rows of several arrays, so many combinations are looked at.
_MOST_ROWS = 1024
_CAVEATS = (
    "Arguments other than the records are public: results of earlier releases, or chosen without"
    " the records. Keys among them are secret and new in every call.",
    "Single numbers among them have the values of this call: of a schedule of noise or of clip"
    " bounds, one step is checked.",
    "Numbers are exact here: rounding, infinite and undefined gradients are not covered.",
)


class Finding(NamedTuple):
    """Why a program is not shown to be private.

    Attributes:
      is_violation: whether the program is at fault; else the check could not decide.
      reason: in words.
      where: file and line.
      outputs: paths of the outputs that are affected.
    """

    is_violation: bool
    reason: str
    where: str
    outputs: tuple[str, ...] = ()

    def __str__(self) -> str:
        where = f" at {self.where}" if self.where else ""
        outputs = f", in {', '.join(self.outputs)}" if self.outputs else ""
        return self.reason + where + outputs


@dataclass(frozen=True, kw_only=True)
class ProgramReport(Report):
    """Result of `check_program`: shown, violated or not decided, with reasons and source lines.

    Attributes:
      verdict: ``"shown"``, ``"violated"`` or ``"not decided"``.
      findings: reasons, of a program that is not shown to be private.
      noise_multiplier: of all releases of one call together: the standard deviation of the noise
        over the largest norm that one record contributes to the sums (half the sensitivity under
        replace-one); infinite if nothing is released that depends on the records, ``nan`` if it is
        not known.
      declared: the noise multiplier that the program is claimed to have.
      adjacency: of the data sets.
      num_releases: noisy sums of one call.
      trusted: functions of dpjax that are not analysed, as their own tests show what they do.
      private: paths of the outputs that are not published and not checked.
      is_length_public: whether the number of records is taken as public: under zero-out and
        replace-one, or where the program takes one number only.
    """

    verdict: Verdict
    findings: tuple[Finding, ...]
    noise_multiplier: float
    declared: float
    adjacency: Adjacency
    num_releases: int
    trusted: tuple[str, ...]
    private: tuple[str, ...]
    is_length_public: bool

    @property
    def title(self) -> str:
        if self.verdict == "shown":
            return (
                "Shown: records reach the results only through clipped sums with noise, of noise"
                f" multiplier {round_down(self.noise_multiplier)} or more"
            )
        if self.verdict == "violated":
            return "VIOLATED: records reach the results otherwise than as declared"
        return "Not decided: the check does not follow the whole program"

    @property
    def tables(self) -> list[Table]:
        found = self.noise_multiplier
        shown = "not known" if math.isnan(found) else round_down(found)
        rows = [
            ("adjacency", self.adjacency),
            ("noise multiplier", f"{shown} found, {self.declared:g} declared"),
            ("releases", f"{self.num_releases} noisy sums in one call"),
            ("number of records", "taken as public" if self.is_length_public else "private"),
        ]
        if self.trusted:
            rows.append(("trusted", ", ".join(self.trusted)))
        if self.private:
            rows.append(("private outputs", ", ".join(self.private)))
        findings = [
            ("violated" if one.is_violation else "not decided", str(one)) for one in self.findings
        ]
        return [("Check of the program", rows), *([("Findings", findings)] if findings else [])]

    @property
    def caveats(self) -> tuple[str, ...]:
        return _CAVEATS

    def paragraph(self) -> str:
        if self.verdict == "shown":
            return (
                "By an analysis of the traced program, its results depend on the records only"
                " through sums of per-record values of bounded norm with independent normal noise,"
                f" of a noise multiplier of at least {round_down(self.noise_multiplier)} (declared:"
                f" {self.declared:g}) under {self.adjacency}."
            )
        return f"{self.title}. " + " ".join(f"{finding}." for finding in self.findings)

    def _values(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "findings": [finding._asdict() for finding in self.findings],
            "noise_multiplier": self.noise_multiplier,
            "declared": self.declared,
            "adjacency": self.adjacency,
            "num_releases": self.num_releases,
            "trusted": list(self.trusted),
            "private": list(self.private),
            "is_length_public": self.is_length_public,
        }


def check_program(
    step: Callable[..., PyTree],
    *args: PyTree,
    records: int | Sequence[int],
    noise_multiplier: float,
    adjacency: Adjacency,
    private_outputs: Sequence[str] = (),
) -> ProgramReport:
    """Checks that a function's results depend on records only through clipped sums with noise.

    The function is traced, not run. Shown is: every path from the records to a result that is not
    named private goes through per-record values, a clip of their norms or bounds on their entries,
    a sum over the records, and normal noise of at least the declared scale; every key is used once;
    no branch, loop, callback or constant depends on the records. The rules are in the how-to "Check
    a program".

    Args:
      step: any function that JAX can trace, such as one step of training.
      *args: of one call. Arrays that are not records are public, and their values are used (a
        learning rate, the state of a schedule).
      records: position of the argument, or of those, whose arrays have one row for each record.
      noise_multiplier: declared: standard deviation of the noise over the clip bound.
      adjacency: under ``"add_remove"`` no constant may depend on the number of records.
      private_outputs: beginnings of the paths of outputs that are not published, as
        `jax.tree_util.keystr` writes them: ``"[1]"`` is the second element of a tuple.

    Returns:
      The verdict: ``"shown"``, ``"violated"`` or ``"not decided"``, with reasons and lines.

    Raises:
      TypeError: an argument of another type.
      ValueError: no record, arrays of different length, or a position of no argument.

    >>> def step(key, w, x, scale=1.0):
    ...     gradients = jax.vmap(jax.grad(lambda w, x: jnp.vdot(w, x) ** 2), (None, 0))(w, x)
    ...     norms = jnp.linalg.norm(gradients, axis=1, keepdims=True)
    ...     total = jnp.sum(gradients / jnp.maximum(1, norms), axis=0)
    ...     return w - 0.1 * (total + 2 * scale * jax.random.normal(key, total.shape))
    >>> args, given = (jax.random.key(0), jnp.ones(3), jnp.ones((5, 3))), {"records": 2}
    >>> given |= {"noise_multiplier": 2.0, "adjacency": "add_remove"}
    >>> check_program(step, *args, **given).verdict
    'shown'
    >>> check_program(lambda *args: step(*args, scale=0.5), *args, **given).verdict
    'violated'
    """
    check_function("step", step, *(f"argument {i}" for i in range(len(args))))
    check_non_negative("noise_multiplier", noise_multiplier)
    check_adjacency(adjacency)
    positions = (records,) if isinstance(records, int) else tuple(records)
    for position in positions:
        allowed = f"the position of an argument, 0 to {len(args) - 1}"
        check(as_count("records", position, 0) < len(args), "records", position, allowed)
    check(bool(positions), "records", records, "at least one position")
    lengths = {np.shape(leaf)[:1] for i in positions for leaf in jax.tree.leaves(args[i])}
    check(
        len(lengths) == 1 and lengths != {()},
        "records",
        sorted(lengths),
        "arrays of one length, the number of records",
    )
    ((length,),) = lengths
    check(length > 1, "records", length, "at least two records")

    # The program, and the abstract values of its arguments.
    program, outputs = jax.make_jaxpr(step, return_shape=True)(*args)
    analysis = _Analysis(length)
    values = analysis.run_step(program, args, positions)

    # What reaches the outputs that are published.
    paths = [jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_leaves_with_path(outputs)]
    names: list[str | None] = []
    published: list[Value] = []
    kept: list[Value] = []
    for path, value in zip(paths, values, strict=True):
        is_private = any(
            path.startswith(beginning) and path[len(beginning) :][:1] in ("", "[", ".")
            for beginning in private_outputs
        )
        name = None if is_private else path or "the result"
        names.append(name)
        (kept if is_private else published).append(value)
        if name is not None:
            analysis.check_output(name, value)
    analysis.check_keys([*values, *analysis.shown])
    analysis.check_randomness([*published, *analysis.shown], kept)
    if adjacency == "add_remove":
        analysis.check_length(step, args, positions, program, names)

    # The noise of all releases together, against that declared.
    found = analysis.noise_multiplier()
    if found < noise_multiplier * (1 - _TOLERANCE):
        parts = [part for one in analysis.releases for part in one.sums.parts]
        is_exact = all(part.is_attained and not part.once for part in parts)
        # Several bounded arrays need not attain their bounds at once.
        is_exact &= sum(not part.is_clipped for part in parts) <= 1
        # Nor need different arrays whose bounds are those of the same.
        bounds = {(part.number, *part.bounds[0][:2]) for part in parts}
        is_exact &= len({bound[1:] for bound in bounds}) == len(bounds)
        relation = "is" if is_exact else "may be no more than"
        analysis.report(
            is_exact,
            f"the noise multiplier {relation} {found:.4g}, and {noise_multiplier:g} is declared",
            ", ".join(dict.fromkeys(release.where for release in analysis.releases)),
        )
    elif math.isnan(found) and not analysis.findings:
        analysis.report(False, "the noise multiplier is not known")
    if not analysis.findings:
        analysis.check_numbers(program, args, positions, names, noise_multiplier)
    findings = tuple(analysis.findings)
    verdict: Verdict = "shown"
    if findings:
        verdict = "violated" if any(one.is_violation for one in findings) else "not decided"
    return ProgramReport(
        verdict=verdict,
        findings=findings,
        noise_multiplier=found,
        declared=float(noise_multiplier),
        adjacency=adjacency,
        num_releases=sum(release.number for release in analysis.releases),
        trusted=tuple(sorted(analysis.trusted)),
        private=tuple(private_outputs),
        is_length_public=analysis.is_length_public or adjacency != "add_remove",
    )


class _Release(NamedTuple):
    """A sum over records to which normal noise was added."""

    sums: Sums
    deviation: float
    noise: frozenset[tuple[int, tuple[int, int] | None]]  # the draws and their ranges
    repeats: int  # how often a record is in it
    number: int  # how often it is made
    where: str


def is_of_records(value: Value, other: Records) -> bool:
    """Whether an array is public, or has the records of another at the same axes."""
    if not isinstance(value, Records):
        return isinstance(value, Public)
    names = [(one.axes, one.order, one.each_once, one.block) for one in (value, other)]
    return names[0] == names[1] and value.block == 1


def squared_distance(
    squares: np.ndarray, bounds: Sequence[Bound], are_apart: Callable[[Product, Product], bool]
) -> float:
    """The largest quadratic form of the norms by which one record moves the sums.

    Args:
      squares: the form.
      bounds: on the norms.
      are_apart: whether two arrays have no part in common.
    """
    factors = np.array([bound.factor for bound in bounds])
    squares = squares * np.outer(factors, factors)

    # Sums of the same arrays of a group are moved together.
    names = [(bound.group, bound.one) for bound in bounds]
    arrays = list(dict.fromkeys(names))
    member = np.array([[name == array for name in names] for array in arrays], float)
    squares = member @ squares @ member.T

    # The norms of different arrays of a group have together a norm of at most one.
    groups: list[list[int]] = []
    for i, (group, one) in enumerate(arrays):
        for others in groups:
            if all(
                arrays[j][0] == group and all(are_apart(a, b) for a in arrays[j][1] for b in one)
                for j in others
            ):
                others.append(i)
                break
        else:
            groups.append([i])
    return float(
        sum(np.linalg.norm(squares[np.ix_(one, other)], 2) for one in groups for other in groups)
    )


def are_single_rows(arrays: Sequence[Records]) -> bool:
    """Whether arrays are each of one record, of different ones, outside of loops."""
    rows = [rows_of(value.order) for value in arrays]
    return (
        all(one is not None and len(one) == 1 for one in rows)
        and len(set(rows)) == len(rows)
        and len({value.order[1] for value in arrays}) == 1
        and all(value.axes == () and not value.each_once for value in arrays)
    )


def met_by_one(parts: Sequence[Part]) -> list[dict[int, Part]]:
    """The sets of sums that one record may be in, by their positions.

    Sums of rows of the same arrays are met by a record in the row that it is in.
    """
    everywhere = {i: part for i, part in enumerate(parts) if part.rows is None}
    by_arrays: dict[Any, dict[int, Part]] = {}
    for i, part in enumerate(parts):
        if part.rows is not None:
            by_arrays.setdefault(part.rows[0], {})[i] = part
    choices = []
    for found in by_arrays.values():
        rows = {row for part in found.values() for row in part.rows[1]}  # type: ignore[index]
        met = {frozenset(i for i, part in found.items() if row in part.rows[1]) for row in rows}  # type: ignore[index]
        met.add(frozenset())
        choices.append([{i: parts[i] for i in sorted(one)} for one in sorted(met, key=sorted)])
    if math.prod(map(len, choices)) > _MOST_ROWS:
        return [dict(enumerate(parts))]
    return [
        {i: part for one in (everywhere, *chosen) for i, part in one.items()}
        for chosen in itertools.product(*choices)
    ]


@dataclass
class _Analysis:
    """One evaluation of a program with abstract values.

    Attributes:
      length: the number of records.
      findings, releases, trusted: what was found.
      bits: keys that random numbers were drawn from, with the lines.
      samples: draws that per-record values depend on.
      factors: draws that sums over records were multiplied with, or that were added to them.
      correlated: normal draws that were multiplied with a public matrix.
      numbers: the number of the next array, draw, sum or loop.
      shown: arrays that leave the program other than as outputs.
      public_vars: variables that are public arrays, in one evaluation at least.
      shared_vars: variables that are public arrays or sums, in one evaluation at least.
      line: of the equation before.
      is_length_public: whether the program takes one number of records only.
      moved: outputs of equations that move the entries of an array, and the array.
      joined: numbers of arrays that were joined of rows of two.
      devices: by the names of the axes of a mesh, the numbers of loops over their devices, and
        the numbers of devices, in a program that every device runs.
      pieces: numbers of regions of arrays, with the arrays.
      regions: of these numbers the array, the region, and what the array is a part of.
      by_position: lines where some records are taken by their positions.
      has_row_loops: whether loops go through records by their positions.
    """

    length: int
    findings: list[Finding] = field(default_factory=list)
    releases: list[_Release] = field(default_factory=list)
    trusted: set[str] = field(default_factory=set)
    bits: list[tuple[Key, str, int]] = field(default_factory=list)
    samples: set[int] = field(default_factory=set)
    factors: set[int] = field(default_factory=set)
    correlated: set[int] = field(default_factory=set)
    numbers: Any = field(default_factory=itertools.count)
    shown: list[Public] = field(default_factory=list)
    public_vars: set[Var] = field(default_factory=set)
    shared_vars: set[Var] = field(default_factory=set)
    line: str = ""
    is_length_public: bool = False
    moved: dict[Any, tuple[Value, list[Value]]] = field(default_factory=dict)
    joined: dict[tuple[Product, Product, Any], int] = field(default_factory=dict)
    devices: dict[Any, tuple[int, int]] = field(default_factory=dict)
    pieces: dict[Any, tuple[int, Records]] = field(default_factory=dict)
    regions: dict[int, tuple[Any, Any, Group]] = field(default_factory=dict)
    by_position: set[str] = field(default_factory=set)
    has_row_loops: bool = False

    def report(
        self, is_violation: bool, reason: str, where: str = "", output: str | None = None
    ) -> None:
        """Adds a finding, or an output to one."""
        outputs = () if output is None else (output,)
        for index, one in enumerate(self.findings):
            if one[:3] == (is_violation, reason, where):
                self.findings[index] = one._replace(outputs=(*one.outputs, *outputs))
                return
        self.findings.append(Finding(is_violation, reason, where, outputs))

    # --- Values of arguments and results -------------------------------------------------------

    def argument(self, leaf: Any, *, is_record: bool) -> Value:
        """Abstract value of an array of an argument."""
        if is_record:
            size = math.prod(np.shape(leaf)[1:])
            return self.records((0,), self.of_size(dtype_facts(jnp.result_type(leaf)), size))
        if is_key(leaf):
            span = None if np.ndim(leaf) == 0 else (0, int(np.shape(leaf)[0]))
            return Public(key=Key(("argument", next(self.numbers)), span))
        if is_raw_key(leaf):
            span = None if np.ndim(leaf) == 1 else (0, int(np.shape(leaf)[0]))
            return Public(key=Key(("argument", next(self.numbers)), span))
        value = as_public(leaf)
        # Parameters take other values in the next step, where zeros bound nothing.
        is_float = jnp.issubdtype(jnp.result_type(leaf), jnp.floating)
        if is_float and (np.ndim(leaf) > 0 or is_zero(value)):
            return Public()
        return replace(value, constant=False)

    def closed_over(self, const: Any) -> Value:
        """Abstract value of an array that the program closes over."""
        if is_key(const):
            return Public(key=Key(("constant", next(self.numbers))), constant=True)
        varies = np.ndim(const) > 0 and bool(np.any(np.asarray(const) != np.ravel(const)[:1]))
        if varies and np.shape(const)[0] == self.length:
            self.report(
                False,
                f"the program closes over an array of shape {np.shape(const)}, as long as the"
                " records: arrays of records must be arguments; if it is public, check the program"
                " with another number of records",
            )
        return as_public(const)

    def records(
        self,
        axes: tuple[int, ...],
        facts: Facts,
        *,
        order: Any = (),
        draws: frozenset[int] = frozenset(),
        each_once: frozenset[int] = frozenset(),
        block: int = 1,
    ) -> Records:
        """Returns a per-record array, with a number that its norm is referred to by."""
        name = named(next(self.numbers)) if facts.name is None else facts.name
        within, least = {**facts.within, name: 1.0}, {**facts.least}
        least.setdefault(name, 1.0)
        facts = replace(facts, name=name, within=within, least=least)
        self.samples |= draws
        return Records(axes, facts, order, draws, each_once, block)

    def check_output(self, path: str, value: Value) -> None:
        """Reports records that reach an output without noise."""
        if isinstance(value, Records):
            self.report(True, "per-record values are returned", "", path)
        elif isinstance(value, Sums):
            where = ", ".join(dict.fromkeys(part.where for part in value.parts))
            # As of `jax.random.multivariate_normal`: the covariance may be large enough.
            if value.draws & self.correlated:
                reason = "a sum over the records is returned with noise that is correlated"
                self.report(False, reason, where, path)
            else:
                self.report(True, "a sum over the records is returned without noise", where, path)
        elif isinstance(value, Mixed):
            # With random numbers it may be a release that the check does not understand.
            is_violation = value.is_decided and not value.draws
            self.report(is_violation, value.reason, value.where, path)

    def check_randomness(self, published: Iterable[Value], private: Iterable[Value]) -> None:
        """Reports noise that is used twice or kept, and noise or samples that are returned."""
        for one, other in itertools.combinations(self.releases, 2):
            if parts_overlap(one.noise, other.noise):
                where = ", ".join(dict.fromkeys([one.where, other.where]))
                self.report(True, "the same noise is added to several sums", where)
        noise = {draw for release in self.releases for draw, _ in release.noise}
        if noise & (self.samples | self.factors):
            self.report(True, "the noise of a release changes records, or another release")
        for value in published:
            if isinstance(value, Mixed):
                continue
            if value.draws & noise:
                self.report(True, "the noise of a release is returned as well")
            elif value.draws & self.samples:
                self.report(True, "random numbers that choose or change records are returned")

        # As of correlated noise: a later call may take it off a sum.
        if any(isinstance(value, Public) and value.draws & noise for value in private):
            self.report(False, "the noise of a release is kept, and may be used in a later call")

    def check_keys(self, outputs: Iterable[Value]) -> None:
        """Reports keys that are used twice, constant, or returned after their use."""
        noise = {draw for release in self.releases for draw, _ in release.noise}
        for first, second in itertools.combinations(self.bits, 2):
            (one, where, number), (other, other_where, other_number) = first, second
            overlap = keys_overlap(one, other) if {number, other_number} & noise else False
            if overlap is not False:
                reason = "one key is used for two draws" if overlap else "keys may be equal"
                self.report(overlap is True, reason, f"{where}, {other_where}")
        for key, where, number in self.bits:
            if key.path[0] == "constant" and number in noise:
                self.report(True, "a key is a constant of the program", where)
            if key.path[0] == "seed" and number in noise:
                reason = "a key is made of a public number: the argument must be a key"
                self.report(False, reason, where)
            if key.path[0] == "unknown" and number in noise:
                self.report(False, "a key is derived in a way that is not followed", where)
        for value in outputs:
            if isinstance(value, Public) and value.key is not None:
                for key, where, _ in self.bits:
                    if keys_overlap(key, value.key) is not False:
                        self.report(True, "a key is returned that was used already", where)

    def check_length(
        self,
        step: Callable[..., PyTree],
        args: Sequence[PyTree],
        positions: Sequence[int],
        program: ClosedJaxpr,
        paths: Sequence[str | None],
    ) -> None:
        """Reports constants that depend on the number of records and reach a published output."""

        def traced(length: int) -> tuple[ClosedJaxpr, list[PyTree]] | None:
            def resized(leaf: Any) -> jax.ShapeDtypeStruct:
                return jax.ShapeDtypeStruct((length, *np.shape(leaf)[1:]), leaf.dtype)

            def resized_too(leaf: Any) -> Any:
                is_row = hasattr(leaf, "dtype") and np.shape(leaf)[:1] == (self.length,)
                return resized(leaf) if is_row else leaf

            # A program may take some numbers of rows only: multiples of a number of microbatches;
            # and public arrays with a row for each record.
            for change in (lambda leaf: leaf, resized_too):
                given = [
                    jax.tree.map(resized if position in positions else change, argument)
                    for position, argument in enumerate(args)
                ]
                with contextlib.suppress(Exception):
                    return jax.make_jaxpr(step)(*given), given
            return None

        # Without records as many normal numbers must be drawn.
        empty = traced(0)
        if empty is not None:
            drawn = [
                sum(
                    one.params.get("name") in NORMAL
                    for one in equations_at_any_depth(
                        each.jaxpr.replace(eqns=used_equations(each.jaxpr))
                    )
                )
                for each in (program, empty[0])
            ]
            if drawn[1] < drawn[0]:
                self.report(True, "without records less noise is drawn")

        # With other numbers of records: the same program, of which no constant has another value.
        lengths = [self.length + 1, self.length + 2, *(self.length * k for k in (2, 64, 4096))]
        lengths += [self.length - 1, 1, 0]
        self.is_length_public = True
        for length in lengths:
            traced_too = traced(length)
            if traced_too is None:
                continue
            other, given = traced_too
            self.is_length_public = False
            outs = [[aval(out) for out in one.jaxpr.outvars] for one in (program, other)]
            is_same = all(one.dtype == same.dtype for one, same in zip(*outs, strict=True))
            if len(program.consts) != len(other.consts) or not is_same:
                self.report(False, "another number of records gives another program")
                return
            affected = [
                not is_key(a) and np.shape(a) == np.shape(b) and not np.array_equal(a, b)
                for a, b in zip(program.consts, other.consts, strict=True)
            ]
            lines: list[str] = []
            changed = [*[False] * len(program.jaxpr.invars), *affected]
            try:
                results = length_dependent(
                    program.jaxpr, other.jaxpr, changed, lines, self.public_vars, self.shared_vars
                )
            except ValueError:
                if length < max(self.length - 1, 2):  # of few rows JAX makes other programs
                    continue
                self.report(False, "another number of records gives another program")
                return
            # An output of another shape has the number in it.
            shapes = [one.shape != same.shape for one, same in zip(*outs, strict=True)]
            changed = [one or same for one, same in zip(results, shapes, strict=True)]
            found = [path for path, one in zip(paths, changed, strict=True) if one and path]
            for path in found:
                reason = "a constant depends on the number of records, private under add_remove"
                self.report(True, reason, lines[0] if lines else "", path)
            if found:
                return
            if (
                self.has_row_loops and self.length < length <= 2 * self.length
            ):  # through more records too?
                longer = _Analysis(length)
                longer.run_step(other, given, positions)
                self.by_position |= longer.by_position
        if self.by_position and traced(self.length + 1) is not None:
            reason = "which records are in some rows depends on their number"
            self.report(False, reason, ", ".join(sorted(self.by_position)))

    def check_numbers(
        self,
        program: ClosedJaxpr,
        args: Sequence[PyTree],
        positions: Sequence[int],
        paths: Sequence[str | None],
        declared: float,
    ) -> None:
        """Reports numbers that the noise multiplier depends on, and results change for later calls.

        Such as a clip bound that follows a quantile, of which the noise is no multiple.
        """
        given = [
            (position, jax.tree_util.keystr(path), leaf)
            for position, argument in enumerate(args)
            for path, leaf in jax.tree_util.tree_leaves_with_path(argument)
        ]
        is_record = [position in positions for position, _, _ in given]
        of_records = outputs_reached(program.jaxpr, is_record)
        leaves, structure = jax.tree.flatten(list(args))
        for number, (position, path, leaf) in enumerate(given):
            if is_key(leaf) or np.ndim(leaf) or is_record[number]:
                continue
            if not jnp.issubdtype(jnp.result_type(leaf), jnp.floating) or not np.isfinite(leaf):
                continue

            # Outputs in its place that depend on it and on the records, through a release.
            own = outputs_reached(program.jaxpr, [i == number for i in range(len(given))])
            successors = [
                output
                for output, atom, *reached in zip(
                    paths, program.jaxpr.outvars, own, of_records, strict=True
                )
                if output
                and all(reached)
                and aval(atom).shape == ()
                and (output.endswith(path) if path else output.count("[") + output.count(".") <= 1)
            ]
            if not successors:
                continue

            # The noise multiplier where the number is another one.
            for factor in (2.0**-10, 2.0**10):
                changed = [*leaves[:number], leaf * factor, *leaves[number + 1 :]]
                other = _Analysis(self.length)
                other.run_step(program, jax.tree.unflatten(structure, changed), positions)
                if not other.noise_multiplier() >= declared * (1 - _TOLERANCE):
                    reason = (
                        f"the noise multiplier holds for the number {float(leaf):.4g} of argument"
                        f" {position}{path} only, which results change"
                    )
                    self.report(False, reason, "", successors[0])
                    break

    def noise_multiplier(self) -> float:
        """Noise multiplier: noise standard deviation over the L2 sensitivity of all releases.

        A record moves sum p by a vector of norm x_p <= factor_p t_p, the t_p of one group having a
        norm of at most 1. The squared distance of the releases, in standard deviations, is at most
        the quadratic form of these norms with non-negative coefficients.
        """
        parts: dict[Part, int] = {}
        rows = []
        for release in self.releases:
            for block in release.sums.blocks:
                for part in block:
                    parts.setdefault(part, len(parts))
                rows.append((block, release.deviation, release.repeats))
        if not parts:
            return math.inf
        if any(not math.isfinite(part.bounds[0].factor) for part in parts) or any(
            not math.isfinite(c) for block, _, _ in rows for c in block.values()
        ):
            self.report_unbounded()
            return math.nan
        if any(deviation <= 0 for _, deviation, _ in rows):
            return 0.0
        squares = np.zeros((len(parts), len(parts)))
        for block, deviation, count in rows:
            row = np.zeros(len(parts))
            for part, coefficient in block.items():
                row[parts[part]] = abs(coefficient) / deviation
            squares += count * np.outer(row, row)

        # One record at most is in some of the sums: the most for any.
        least = max(self.least_distance(squares, found) for found in met_by_one(list(parts)))
        return least**-0.5 if least > 0 else math.inf

    def least_distance(self, squares: np.ndarray, found: Mapping[int, Part]) -> float:
        """The least bound on the squared distance by sums, given by their positions.

        Each choice of one bound for every sum holds: the best of those with bounds of one group.
        """
        positions, parts = list(found), list(found.values())
        squares = squares[np.ix_(positions, positions)]
        bounds = [part.bounds[0] for part in parts]
        least = squared_distance(squares, bounds, self.are_apart)
        shared = Counter(group for part in parts for group in {one.group for one in part.bounds})
        for group in [group for group, number in shared.most_common() if number > 1]:
            changed = [
                next((other for other in part.bounds if other.group == group), one)
                for part, one in zip(parts, bounds, strict=True)
            ]
            total = squared_distance(squares, changed, self.are_apart)
            if total < least:
                bounds, least = changed, total
        return least

    def report_unbounded(self) -> None:
        """Reports sums of which no bound is known."""
        for release in self.releases:
            for block in release.sums.blocks:
                for part, coefficient in block.items():
                    if not math.isfinite(part.bounds[0].factor):
                        reason = "no bound is found on what one record adds to the sum"
                        self.report(False, reason, part.where)
                    elif not math.isfinite(coefficient):
                        reason = "the factor of a sum is not known"
                        self.report(False, reason, release.where)

    # --- Evaluation ----------------------------------------------------------------------------

    def run_step(
        self, program: ClosedJaxpr, args: Sequence[PyTree], positions: Sequence[int]
    ) -> list[Value]:
        """Abstract values of the outputs of a traced step."""
        inputs = [
            self.argument(leaf, is_record=position in positions)
            for position, argument in enumerate(args)
            for leaf in jax.tree.leaves(argument)
        ]
        return self.inline(program, inputs)

    def run(
        self, program: ClosedJaxpr, inputs: Sequence[Value], consts: Sequence[Value]
    ) -> list[Value]:
        """Abstract values of the outputs of a jaxpr."""
        jaxpr = program.jaxpr
        values: dict[Var, Value] = dict(zip(jaxpr.invars, inputs, strict=True))
        values.update(zip(jaxpr.constvars, consts, strict=True))

        def read(atom: Any) -> Value:
            return as_public(atom.val) if isinstance(atom, JaxprLiteral) else values[atom]

        for equation in used_equations(jaxpr):  # not the row of `x[0].size`
            outputs = self.apply(equation, [read(atom) for atom in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        self.public_vars |= {v for v, value in values.items() if isinstance(value, Public)}
        self.shared_vars |= {v for v, one in values.items() if isinstance(one, Public | Sums)}
        return [read(atom) for atom in jaxpr.outvars]

    def inline(self, program: ClosedJaxpr, inputs: Sequence[Value]) -> list[Value]:
        """Abstract values of the outputs of a jaxpr inside another."""
        return self.run(program, inputs, [self.closed_over(const) for const in program.consts])

    def apply(self, equation: JaxprEqn, inputs: list[Value]) -> list[Value]:
        """Abstract values of the outputs of an equation."""
        equation = in_one(equation)
        name, where = equation.primitive.name, line_of(equation) or self.line
        self.line = where
        private = [value for value in inputs if not isinstance(value, Public)]

        # Values as they are, random numbers and keys.
        if name in IDENTITIES and len(inputs) == len(equation.outvars):
            return inputs
        if name in ("jit", "pjit"):
            noise = self.standard_normal(equation, inputs, where)
            if noise is not None:
                return [noise]
            trusted = self.trusted_sum(equation, inputs, where)
            if trusted is not None:
                return trusted
        if name in KEYS and not private:
            return [self.key_of(equation, inputs)]

        # Programs in the program.
        if name == "scan":
            outputs = self.scan(equation, inputs, where)
            if equation.effects and any(isinstance(value, Mixed) for value in outputs):
                self.report(False, "records may leave the program in a loop", where)
            return outputs
        if name == "while":
            return self.while_loop(equation, inputs, where)
        if name == "cond":
            return self.cond(equation, inputs, where)
        if name in INLINED:
            (body, *_) = bodies_of(equation)
            if len(body.jaxpr.invars) == len(inputs):
                return self.inline(body, inputs)
        if name == "call_hi_primitive" and hasattr(equation.params["_prim"], "expand"):
            # From JAX 0.12 on, a primitive that is a program: that of `jnp.searchsorted`.
            shapes = [jax.ShapeDtypeStruct(aval(v).shape, aval(v).dtype) for v in equation.invars]
            body = jax.make_jaxpr(equation.params["_prim"].expand)(*shapes)
            if len(body.jaxpr.outvars) == len(equation.outvars):
                return self.inline(body, inputs)
        if name == "shard_map":
            return self.on_devices(equation, inputs, where)
        if name == "axis_index" and equation.params["axis_name"] in self.devices:
            uid, size = self.devices[equation.params["axis_name"]]
            return [Public(Facts((0.0, size - 1.0)), loop=(uid, "iteration", 0.0, 1.0))]
        if name in SUMS_OF_DEVICES and not any(isinstance(one, Mixed) for one in inputs):
            if all(isinstance(axis, int) for axis in equation.params["axes"]):
                return self.sums_of_vmap(equation, inputs)
            sums = [added_up(equation, value, self.devices) for value in inputs]
            undecided = Mixed(f"the check does not follow {name}", where, False)
            # As of gradients by parameters that do not vary by device.
            mixing = Mixed(f"{name} adds up records of several devices", where, True)
            return [
                sum_of_all or (mixing if isinstance(value, Records) else undecided)
                for value, sum_of_all in zip(inputs, sums, strict=True)
            ]
        effects = [one for one in equation.effects if type(one).__name__ != "NamedAxisEffect"]
        if effects or name.endswith("callback"):
            if private:
                self.report(True, f"records reach {name}, which leaves the program", where)
            self.shown += [value for value in inputs if isinstance(value, Public)]
        if not equation.outvars:
            return []

        # Values that cannot be followed any further.
        draws = frozenset().union(*(value.draws for value in inputs))
        mixed = next((value for value in inputs if isinstance(value, Mixed)), None)
        if mixed is not None:
            return [replace(mixed, draws=draws) for _ in equation.outvars]
        if any(isinstance(value, Sums) for value in inputs):
            return self.linear(equation, inputs, where, draws)
        if not private:
            return self.public(equation, inputs, draws)

        # The same array, moved in the same way, is the same value: of a product with itself.
        moved = name, id(inputs[0]), str(equation.params)
        if name not in SAME_ENTRIES or len(inputs) > 1:
            return self.per_record(equation, inputs, where, draws)
        if moved not in self.moved:
            outputs = self.per_record(equation, inputs, where, draws)
            self.moved[moved] = inputs[0], outputs
        return self.moved[moved][1]

    def public(self, equation: JaxprEqn, inputs: list[Value], draws: frozenset[int]) -> list[Value]:
        """Abstract values of the outputs of an equation without records."""
        values = [value for value in inputs if isinstance(value, Public)]
        name = equation.primitive.name
        constant = all(value.constant for value in values)
        small = all(
            np.prod(aval(v).shape, dtype=float) <= MOST_KNOWN for v in operands_of(equation)
        )
        if small and not equation.effects and all(value.known is not None for value in values):
            try:
                operands = [jnp.asarray(value.known) for value in values]
                computed = [as_public(output) for output in bind(equation, operands)]
            except Exception:  # a primitive that cannot run by itself
                computed = []
            if computed:
                return [replace(value, constant=constant) for value in computed]

        # A choice of which one side is always taken.
        facts = [value.facts for value in values]
        if name == "select_n" and facts[0].interval in ((0.0, 0.0), (1.0, 1.0)):
            return [values[1 + int(facts[0].interval[0])]]

        # Noise times a matrix is noise with a covariance, which is not followed.
        if name == "dot_general":
            noise = [value for value in values if value.normal is not None]
            if len(noise) == 1 and all(not one.draws for one in values if one is not noise[0]):
                self.correlated |= draws

        # Noise stays noise, and keys keys, under maps that keep their entries.
        keys = [key_after(equation, values, n) for n in range(len(equation.outvars))]
        if None in keys:
            draws = draws.union(*(self.draws_of(value, self.line) for value in values))
        loop = self.loop_after(equation, values)
        known = None
        if name == "broadcast_in_dim" and len(values) == 1 and values[0].known is not None:
            out = aval(equation.outvars[0]).shape
            shape = np.ones(len(out), int)
            shape[list(equation.params["broadcast_dimensions"])] = values[0].known.shape
            known = np.broadcast_to(values[0].known.reshape(shape), out)
        outputs: list[Value] = []
        for number, var in enumerate(equation.outvars):
            source = number if name == "sort" else 0
            result = elementwise_facts(name, equation, facts)
            if result is None:
                result = facts[source] if name in ENTRIES_KEPT and facts else Facts()
            distinct = self.distinct_after(equation, values[source], number) if values else None
            diagonals = diagonals_after(equation, values) if known is None and number == 0 else []
            outputs.append(
                Public(
                    Facts(within_limits(result.interval, dtype_facts(aval(var).dtype).interval)),
                    known,
                    draws,
                    normal_after(equation, values, number),
                    keys[number],
                    constant,
                    distinct,
                    loop=loop,
                    diagonal=next(iter(diagonals), None),
                )
            )
        return outputs

    def draws_of(self, value: Value, where: str) -> frozenset[int]:
        """The random draws that an array depends on; an unfollowed key counts as a draw."""
        if isinstance(value, Public) and value.key is not None:
            return value.draws | {self.draw(value, where)}
        return value.draws

    def loop_after(self, equation: JaxprEqn, values: Sequence[Public]) -> Any:
        """The loop in whose iterations an output has different values, and which."""
        name, dtype = equation.primitive.name, aval(equation.outvars[0]).dtype
        loops = [value.loop for value in values if value.loop is not None]
        if len(loops) != 1 or not is_wide(dtype):
            return None
        if name in ("convert_element_type", "reshape", "squeeze", "broadcast_in_dim"):
            return loops[0] if is_wide(aval(equation.invars[0]).dtype) else None
        if name == "add" or (name == "sub" and values[0].loop is not None):
            (other,) = [value for value in values if value.loop is None]
            if other.known is None or other.known.size != 1:
                return None
            shift = float(other.known.item()) * (-1 if name == "sub" else 1)
            return (*loops[0][:2], loops[0][2] + shift, loops[0][3])
        if name == "mul" and len(values) == 2:
            (other,) = [value for value in values if value.loop is None]
            interval = _values.times(values[0].facts.interval, values[1].facts.interval)
            wraps = within_limits(interval, dtype_facts(dtype).interval) != interval
            if other.known is None or other.known.size != 1 or wraps or not other.known.all():
                return None
            factor = float(other.known.item())
            return (*loops[0][:2], loops[0][2] * factor, loops[0][3] * factor)
        return None

    def distinct_after(self, equation: JaxprEqn, value: Public, number: int) -> Any:
        """The name of an output's different entries."""
        name, params = equation.primitive.name, equation.params
        if value.distinct is None or name not in KEEPS_DISTINCT:
            return None
        if not jnp.issubdtype(aval(equation.invars[0]).dtype, jnp.integer) and name != "sort":
            return None
        if name == "sort":
            return next(self.numbers)
        if name == "slice":
            cut = params["start_indices"], params["limit_indices"], params["strides"]
            return value.distinct, tuple(map(as_hashable, cut))
        if name == "convert_element_type":
            limits = dtype_facts(aval(equation.outvars[0]).dtype).interval
            wide = is_wide(aval(equation.outvars[0]).dtype)
            if not wide or within_limits(value.facts.interval, limits) != value.facts.interval:
                return None
        same_size = aval(equation.outvars[number]).size == aval(equation.invars[0]).size
        return value.distinct if same_size else None

    def standard_normal(self, equation: JaxprEqn, inputs: list[Value], where: str) -> Public | None:
        """Noise, if the equation calls `jax.random.normal` or dpjax's own."""
        if equation.params["name"] not in NORMAL or len(inputs) != 1:
            return None
        (value,) = inputs
        if not isinstance(value, Public) or not is_normal(equation):
            return None
        number = self.draw(value, where)
        region = 0, math.prod(aval(equation.outvars[0]).shape)
        return Public(draws=frozenset([number]), normal=Normal(frozenset([(number, region)]), 1.0))

    def key_of(self, equation: JaxprEqn, inputs: Sequence[Any]) -> Public:
        """Abstract value of a key that an equation makes or derives, or of bits drawn from one."""
        name, value = equation.primitive.name, inputs[0]
        key, constant = value.key, value.constant
        if name == "random_bits":
            number = self.draw(value, self.line)
            return Public(dtype_facts(aval(equation.outvars[0]).dtype), draws=frozenset([number]))
        if name == "random_seed":
            kind = "constant" if constant else "seed"
            return Public(key=Key((kind, next(self.numbers))), constant=constant)
        if name == "random_wrap" and key is None and constant:
            return Public(key=Key(("constant", next(self.numbers))), constant=True)
        if name == "random_wrap":
            return Public(key=key)
        if name == "random_unwrap" or key is None:
            return Public(key=key, constant=constant)

        # The children of a key, by their numbers; of each of several keys alike.
        if key.span is not None:
            key = Key((*key.path, ("each", -1, *key.span)))
        if name == "random_split":
            span = (0, math.prod(equation.params["shape"]))
            return Public(key=Key(key.path, span), constant=constant)
        data = inputs[1]
        if data.known is not None and data.known.ndim == 0:
            child: Any = (int(data.known), int(data.known) + 1)
            return Public(key=Key((*key.path, child)), constant=constant)
        if data.known is not None:
            start = int(data.known.flat[0])
            if np.array_equal(data.known, np.arange(len(data.known)) + start):
                return Public(key=Key(key.path, (start, start + len(data.known))))
        is_one = aval(equation.invars[1]).ndim == 0
        repeats = data.known is not None and len(np.unique(data.known)) < data.known.size
        if repeats or not (is_one or data.known is not None):
            return Public(key=Key(("unknown", next(self.numbers))))
        child = ("data", next(self.numbers)) if data.loop is None else ("loop", *data.loop)
        return Public(key=Key((*key.path, child)))

    def draw(self, key: Value, where: str) -> int:
        """The number of a draw from a key."""
        number = next(self.numbers)
        used = key.key if isinstance(key, Public) else None
        self.bits.append((used or Key(("unknown", number)), where, number))
        return number

    def trusted_sum(
        self, equation: JaxprEqn, inputs: list[Value], where: str
    ) -> list[Value] | None:
        """Abstract values of the outputs of a trusted function of dpjax, not analysed."""
        name = equation.params["name"]
        if name not in TRUSTED or not is_own(equation):
            return None
        draws = frozenset().union(*(value.draws for value in inputs))
        if name == "batch_of_draw":
            self.trusted.add(TRUSTED[name])
            batch = ("batch", next(self.numbers))
            facts = Facts((0.0, float(jnp.iinfo(jnp.int32).max)))
            return [Public(facts, draws=draws, distinct=batch), Public(draws=draws, mask_of=batch)]
        body = body_of(equation).jaxpr
        inner_equations = list(equations_at_any_depth(body))
        if any(one.effects or "callback" in one.primitive.name for one in inner_equations):
            return None  # what leaves the program is looked at
        marks = [
            inner
            for inner in inner_equations
            if inner.primitive.name in ("jit", "pjit") and inner.params["name"] == "sum_of_clipped"
        ]
        bounds = {
            float(atom.val)
            for inner in marks
            for atom in inner.invars[:1]
            if isinstance(atom, JaxprLiteral) and float(atom.val) > 0
        }
        private = [value for value in inputs if not isinstance(value, Public)]
        if not private or not marks:
            return None
        if any(
            not isinstance(one, Records) or one.axes != (0,) or one.block > 1 for one in private
        ):
            return None
        if len({(one.order, one.each_once) for one in private if isinstance(one, Records)}) > 1:
            reason = f"{TRUSTED[name]} gets records at different positions"
            return [Mixed(reason, where, True, draws) for _ in equation.outvars]
        self.trusted.add(TRUSTED[name])

        # Rows of padding repeat records: their mask must be among the arguments.
        masks = {value.mask_of for value in inputs if isinstance(value, Public)}
        if any(batch_of(value) not in {None, *masks} for value in private):
            return None
        self.samples |= draws

        # The sums are moved by the clip bound together; the rest is private.
        bound = bounds.pop() if len(bounds) == 1 else math.inf
        last = [inner for inner in body.eqns if inner in marks]
        summed = {var for inner in last for var in inner.outvars}
        members = [named(next(self.numbers)) for _ in summed]
        group = frozenset().union(*members)
        reached = outputs_reached(body, [isinstance(value, Records) for value in inputs])
        results: list[Value] = []
        for var, is_reached in zip(body.outvars, reached, strict=True):
            if var in summed:
                bounds_of_sum = (Bound(group, members.pop(), bound),)
                part = Part(next(self.numbers), bounds_of_sum, True, frozenset(), where)
                results.append(Sums(({part: 1.0},)))
            elif is_reached:
                reason = f"statistics of the batch that {TRUSTED[name]} returns are private"
                results.append(Mixed(reason, where, True, draws))
            else:
                results.append(Public(draws=draws))
        return results

    # --- Sums ----------------------------------------------------------------------------------

    def linear(
        self, equation: JaxprEqn, inputs: list[Value], where: str, draws: frozenset[int]
    ) -> list[Value]:
        """Abstract values of linear maps of sums over records, and of noise added to them."""
        name, shape = equation.primitive.name, aval(equation.outvars[0]).shape
        mixed = Mixed(f"a sum over the records enters {name}", where, True, draws)
        first, dtype = inputs[0], aval(equation.outvars[0]).dtype
        if not jnp.issubdtype(dtype, jnp.floating) and name in (
            "mul",
            "div",
            "convert_element_type",
        ):
            return [replace(mixed, reason=f"{name} of a sum over the records gives {dtype}")]

        if name in ("add", "add_any", "sub"):
            terms = [
                self.as_sums(value, where, aval(atom))
                for value, atom in zip(inputs, equation.invars, strict=True)
            ]
            terms = [
                term
                and replace(
                    term.scaled(repeats_of(atom, shape)),
                    in_rows=term.in_rows and aval(atom).shape == shape,
                )
                for term, atom in zip(terms, equation.invars, strict=True)
            ]
            for sums, other in ((terms[0], inputs[1]), (terms[1], inputs[0])):
                if not isinstance(other, Public) or sums is None:
                    continue
                if sums.carried and not is_zero(other):
                    reason = "a number is added to a sum over records in every iteration"
                    return [Mixed(reason, where, False, draws)]
                if other.normal is None:
                    return [replace(sums, draws=draws)]
                if any(aval(v).shape != shape for v in equation.invars):
                    return [replace(sums, draws=draws)]
                noise = other.normal
                self.factors |= sums.draws
                if sums.draws & {draw for draw, _ in noise.parts}:
                    return [replace(mixed, reason="the noise is not independent of the sum")]
                repeats = self.repeats_on_devices(sums, noise, where)
                self.releases.append(
                    _Release(sums, noise.deviation, noise.parts, repeats, repeats, where)
                )
                return [Public()]
            if terms[0] is None or terms[1] is None:
                return [mixed]
            return [replace(terms[0].plus(terms[1]), draws=draws)]

        if name in ("mul", "div"):
            summed, factor = (first, inputs[1]) if isinstance(first, Sums) else (inputs[1], first)
            if not isinstance(summed, Sums) or not isinstance(factor, Public):
                return [mixed]
            if name == "div" and summed is not first:
                return [mixed]
            facts = factor.facts if name == "mul" else _values.inverted(factor.facts)
            (atom,) = [
                atom for atom, value in zip(equation.invars, inputs, strict=True) if value is summed
            ]
            factor_of = facts.magnitude * repeats_of(atom, shape)
            in_rows = summed.in_rows and aval(atom).shape == shape
            return [replace(summed.scaled(factor_of), draws=draws, in_rows=in_rows)]

        if name == "neg" and isinstance(first, Sums):
            return [replace(first, draws=draws)]
        if name in SCATTER_ADD and any(isinstance(value, Records) for value in inputs[1:]):
            return [self.scattered(equation, inputs, where) or mixed]
        if name == "gather" and isinstance(first, Sums) and isinstance(inputs[1], Public):
            most = most_gathered(equation, inputs[1])
            if most is not None:
                return [replace(first.scaled(math.sqrt(most)), draws=draws, in_rows=False)]
        is_moved = name in SAME_ENTRIES and all(isinstance(one, Public) for one in inputs[1:])
        if is_moved and isinstance(first, Sums):
            in_rows = first.in_rows and name == "convert_element_type"
            return [replace(first, draws=draws, in_rows=in_rows) for _ in equation.outvars]
        if name == "broadcast_in_dim" and isinstance(first, Sums):
            before, after = np.prod(aval(equation.invars[0]).shape), np.prod(shape)
            grown = first.scaled(math.sqrt(after / max(before, 1)))
            return [replace(grown, draws=draws, in_rows=False)]
        if name == "reduce_sum" and isinstance(first, Sums):
            before, axes = aval(equation.invars[0]).shape, equation.params["axes"]
            terms = math.prod(before[axis] for axis in axes if axis or not first.in_rows)
            in_rows = first.in_rows and 0 not in axes
            return [replace(first.scaled(math.sqrt(terms)), draws=draws, in_rows=in_rows)]
        sums_of = [value for value in inputs if isinstance(value, Sums)]
        if name in ("concatenate", "stack") and not any(value.carried for value in sums_of):
            blocks = tuple(block for value in sums_of for block in value.blocks)
            known = all(isinstance(value, Sums | Public) for value in inputs)
            return [Sums(blocks, draws=draws) if known else mixed]
        if name == "select_n" and isinstance(first, Public):
            cases = inputs[1:]
            if all(is_zero(value) or isinstance(value, Sums) for value in cases):
                sums_only = [value for value in cases if isinstance(value, Sums)]
                if len(sums_only) == 1:
                    return [replace(sums_only[0], draws=draws)]
        return [mixed for _ in equation.outvars]

    def as_sums(self, value: Value, where: str, array: Any) -> Sums | None:
        """A per-record value of a loop over the records as a term of the sum that it carries."""
        if isinstance(value, Sums):
            return value
        if isinstance(value, Records) and value.axes == ():
            return self.sum_of(value, where, array)
        return Sums(({},)) if isinstance(value, Public) else None

    def sum_of(self, value: Records, where: str, array: Any, *, in_rows: bool = False) -> Sums:
        """The sum over the records of a per-record array, of the shape and dtype of ``array``."""
        facts, number = value.facts, next(self.numbers)
        size = math.prod(array.shape[1:] if in_rows else array.shape)
        if jnp.issubdtype(array.dtype, jnp.integer):
            most = self.length * facts.magnitude
            if not most <= float(jnp.iinfo(array.dtype).max):  # the sum may wrap around
                facts = Facts()
        bounds = [
            Bound(group, one, factor)
            for (one, group), factor in facts.clipped.items()
            if (whole := self.whole_of(one)) is not None and whole <= group
        ]
        bounds.sort(key=lambda bound: (bound.factor, -len(bound.group)))
        own = min(facts.magnitude * math.sqrt(size), facts.within.get(UNIT, math.inf))
        if batch_of(value) is not None:  # padding repeats records
            bounds, own = [], math.inf
        is_attained = bool(bounds) or size == 1  # not all entries need attain their bounds at once
        if not bounds or own < math.inf:
            bounds.append(Bound(named(number), named(number), own))
        rows = rows_of(value.order)
        of_rows = None if rows is None else ((value.order[1], value.each_once), rows)
        part = Part(number, tuple(bounds), is_attained, value.each_once, where, of_rows)
        return Sums(({part: 1.0},), draws=value.draws, in_rows=in_rows)

    # --- Per-record values ---------------------------------------------------------------------

    def per_record(
        self, equation: JaxprEqn, inputs: list[Value], where: str, draws: frozenset[int]
    ) -> list[Value]:
        """Abstract values of the outputs of an equation with per-record arrays."""
        name = equation.primitive.name
        arrays = [value for value in inputs if isinstance(value, Records)]
        if name == "dynamic_slice":
            row = self.row_of(equation, inputs)
            if row is not None:
                return [row]
        orders = {(value.order, value.each_once) for value in arrays}
        undecided = Mixed(f"the check does not follow {name}", where, False, draws)
        mixing = Mixed(f"{name} mixes the records", where, True, draws)
        is_noisy = any(isinstance(value, Public) and value.normal for value in inputs)
        is_sum = name in ("add", "add_any", "sub") and (len(orders) > 1 or is_noisy)
        if is_sum and are_single_rows(arrays):  # of different records, or of one with noise
            return self.linear(equation, inputs, where, draws)
        if len(orders) > 1:
            joined = self.joined_rows(equation, inputs)
            if joined is not None:
                return [joined]
            reason = f"{name} combines records at different positions"
            return [replace(mixing, reason=reason) for _ in equation.outvars]
        ((order, each_once),) = orders
        try:
            # Of one record, in a loop over the records, nothing can be mixed.
            single = all(value.axes == () for value in arrays)
            result = Axes(()) if single else axes_after(equation, inputs)
        except Mixing:
            return [self.scattered(equation, inputs, where) or mixing for _ in equation.outvars]
        if result is None or (bodies_of(equation) and not name.startswith("scatter")):
            return [undecided for _ in equation.outvars]

        # Facts of the entries; one number of a record is repeated where it meets an array.
        facts = [facts_of(value) for value in inputs]
        if any(jnp.issubdtype(aval(v).dtype, jnp.complexfloating) for v in operands_of(equation)):
            return [undecided for _ in equation.outvars]
        if name in ELEMENTWISE:
            entries = math.prod(aval(equation.outvars[0]).shape)
            sizes = [math.prod(aval(v).shape) for v in equation.invars]
            facts = [
                fact.repeated(entries / size) if 0 < size < entries else fact
                for size, fact in zip(sizes, facts, strict=True)
            ]
            if name == "select_n" and aval(equation.invars[0]).shape == ():
                facts[0] = replace(facts[0], uniform=())
        outputs: list[Value] = []
        for number, var in enumerate(equation.outvars):
            axes = result.axes
            found = elementwise_facts(name, equation, facts)
            if found is None:
                found = structural_facts(equation, facts, inputs, number)
            if name == "eq":
                found = one_hot(found, inputs, axes, aval(var).shape)
            step = result.orders[number] if result.orders else result.order
            region = region_of(equation, number) if step is None else None
            if region is not None:
                found = replace(found, clipped=self.pieces_of(arrays[0], region, found.clipped))
            dtype = aval(var).dtype
            limited = within_limits(found.interval, dtype_facts(dtype).interval)
            if limited != found.interval:  # numbers may have wrapped around
                found = Facts(limited)
            if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
                # Half precision rounds norms and factors.
                error = float(jnp.finfo(dtype).eps)
                found = replace(found.scaled(1 - error, 1 + error), interval=found.interval)

            # A sum of one term for each record, over all records, or another per-record array.
            partner = None
            if result.is_sum and axes == ():
                partner = partner_of_sum(equation, inputs)
            if partner is not None:
                axes = (partner,)
            elif result.is_sum:
                value = Records(arrays[0].axes, found, order, draws, each_once)
                outputs.append(self.sum_of(value, where, aval(var), in_rows=axes != ()))
                continue
            per_row = math.prod(n for axis, n in enumerate(aval(var).shape) if axis not in axes)
            per_row *= result.block
            found = self.of_size(found, per_row)
            new_order = order if step is None else order_after(step, order)
            if step is not None and rows_of(new_order) is not None and new_order[1] == ():
                self.by_position.add(where)
            array = self.records(
                axes,
                found,
                order=new_order,
                draws=draws,
                each_once=each_once,
                block=result.block,
            )
            if len(axes) == 1 and partner is None and number == 0 and result.block == 1:
                others = [pair for pair in diagonals_after(equation, inputs) if axes[0] in pair]
                for a, b in others[:1]:
                    array = replace(array, diagonal=b if a == axes[0] else a)
            outputs.append(array)
        return outputs

    def pieces_of(self, whole: Records, region: Any, clipped: Mapping[Any, float]) -> Any:
        """Bounds on the norm of a region of an array, from those on the norm of all of it.

        With |y| <= k N(A) / N(G) of an array y, N(a) = |y_region| N(G) / k defines a part a of A:
        those of regions apart have squares that add up to N(A)^2 or less.
        """
        found = {}
        for (array, group), k in clipped.items():
            key = id(whole), region, array, group
            number, _ = self.pieces.setdefault(key, (next(self.numbers), whole))
            self.regions[number] = (key[0], array, group), region, array
            found[named(number), group] = k
        return found

    def are_apart(self, one: Product, other: Product) -> bool:
        """Whether two arrays, or parts of arrays, have no part in common."""
        parts = [self.regions.get(product[0][0]) if product else None for product in (one, other)]
        if parts[0] is not None and parts[1] is not None and parts[0][0] == parts[1][0]:
            ranges = zip(parts[0][1], parts[1][1], strict=True)
            return any(a[0] >= b[1] or b[0] >= a[1] for a, b in ranges)
        if parts[0] is not None:
            return all(self.are_apart(product, other) for product in parts[0][2])
        if parts[1] is not None:
            return all(self.are_apart(one, product) for product in parts[1][2])
        return one != other

    def whole_of(self, group: Group) -> Group | None:
        """The arrays of which parts are apart; `None` if some are not."""
        if any(not self.are_apart(a, b) for a, b in itertools.combinations(group, 2)):
            return None
        whole: Group = frozenset()
        for product in group:
            part = self.regions.get(product[0][0]) if product else None
            of_product = frozenset([product]) if part is None else self.whole_of(part[2])
            if of_product is None:
                return None
            whole |= of_product
        return whole

    def joined_rows(self, equation: JaxprEqn, inputs: Sequence[Value]) -> Records | None:
        """Arrays of consecutive rows of the records, one after another."""
        name, params = equation.primitive.name, equation.params
        if name not in ("concatenate", "stack") or len(inputs) < 2:
            return None
        place = params["dimension"] if name == "concatenate" else params["axis"]
        arrays = [value for value in inputs if isinstance(value, Records)]
        if len(arrays) < len(inputs) or any(value.each_once for value in arrays):
            return None
        if len({value.order[1:] for value in arrays}) != 1:
            return None

        # Which rows: of an array of one record, one.
        rows: range | None = None
        for value, atom in zip(arrays, equation.invars, strict=True):
            own = rows_of(value.order)
            number = aval(atom).shape[place] if name == "concatenate" else 1
            is_single = value.axes == () and number == 1
            if own is None or own.step != 1 or number != len(own) or value.block > 1:
                return None
            if not is_single and (name == "stack" or value.axes != (place,)):
                return None
            if rows is not None and own.start != rows.stop:
                return None
            rows = own if rows is None else range(rows.start, own.stop)
        base = arrays[0].order[1]
        is_whole = base == () and rows == range(self.length)

        # What holds of the record of each row.
        facts = arrays[0].facts
        for value in arrays[1:]:
            facts = self.joined_facts(facts, value.facts, value.order)
        draws = frozenset().union(*(value.draws for value in arrays))
        order = base if is_whole else (("rows", rows), base)
        return self.records((place,), facts, order=order, draws=draws)

    def joined_facts(self, one: Facts, other: Facts, order: Any) -> Facts:
        """Bounds on the entries of two arrays that are concatenated along their rows.

        The norm of a joined product is that of the first product for the records of the first
        array, and that of the second for those of the second, which has an order.
        """

        def joined(group: Group, other_group: Group) -> dict[Any, Any]:
            pairs = zip(sorted(group), sorted(other_group), strict=True)
            numbers = {
                pair: self.joined.setdefault((*pair, order), next(self.numbers)) for pair in pairs
            }
            return {pair: ((number, 1),) for pair, number in numbers.items()}

        clipped = {}
        for ((array, group), k), ((other_array, other_group), m) in itertools.product(
            one.clipped.items(), other.clipped.items()
        ):
            if len(group) != len(other_group) or not (
                array <= group and other_array <= other_group
            ):
                continue
            pairs = joined(group, other_group)
            members = frozenset(pairs[pair] for pair in pairs if pair[0] in array)
            if members == frozenset(pairs[pair] for pair in pairs if pair[1] in other_array):
                clipped[members, frozenset(pairs.values())] = max(k, m)
        within = {}
        if UNIT in one.within and UNIT in other.within:
            within[UNIT] = max(one.within[UNIT], other.within[UNIT])
        interval = (
            min(one.interval[0], other.interval[0]),
            max(one.interval[1], other.interval[1]),
        )
        return Facts(interval, within=within, clipped=clipped)

    def scattered(self, equation: JaxprEqn, inputs: Sequence[Value], where: str) -> Sums | None:
        """The sum of rows of the records at public or per-record positions, and an array."""
        operand, *rows = inputs
        records = [value for value in rows if isinstance(value, Records)]
        if equation.primitive.name not in SCATTER_ADD or not isinstance(operand, Public | Sums):
            return None
        if any(isinstance(value, Sums | Mixed) for value in rows):
            return None
        if isinstance(operand, Public) and operand.normal is not None:
            return None
        is_float = jnp.issubdtype(aval(equation.outvars[0]).dtype, jnp.floating)
        if isinstance(operand, Public) and not is_zero(operand) and not is_float:
            return None
        if len({(value.order, value.each_once) for value in records}) != 1:
            return None
        if any(value.block > 1 for value in records) or not places_scattered(equation, inputs):
            return None
        facts = scattered_facts(equation, [facts_of(value) for value in inputs], inputs)
        draws = frozenset().union(*(value.draws for value in rows))
        self.samples |= draws
        value = replace(records[0], axes=(), facts=facts, draws=draws)
        sums = self.sum_of(value, where, aval(equation.outvars[0]))
        if isinstance(operand, Sums):
            return operand.plus(sums)
        return replace(sums, draws=draws | operand.draws)

    def of_size(self, facts: Facts, size: int) -> Facts:
        """Bounds on the entries of an array with so many entries for each record."""
        if math.isfinite(facts.magnitude):
            bound = facts.magnitude * math.sqrt(size)
            bound = min(bound, facts.within.get(UNIT, math.inf))
            facts = replace(facts, within={**facts.within, UNIT: bound})
        facts = replace(facts, repeats=float(size))
        if size != 1:
            return facts

        # Of one number, the norm is the magnitude.
        name = facts.name if facts.name is not None and len(facts.name) == 1 else None
        name = named(next(self.numbers)) if name is None else name
        (uniform,) = name
        least = {**facts.least, **facts.norm}
        least.setdefault(name, 1.0)
        inverse = {(UNIT, group): k for group, k in facts.inverse.items()}
        return replace(
            facts,
            name=name,
            uniform=uniform,
            least=least,
            clipped={**facts.clipped, **inverse},
            norm=least if facts.interval[0] >= 0 else {},
            square={**facts.square, **facts.total},
            total={**facts.total, **facts.square},
        )

    def row_of(self, equation: JaxprEqn, inputs: Sequence[Value]) -> Records | None:
        """The records that a dynamic slice takes at a loop's counter, others in every iteration."""
        array, out = inputs[0], aval(equation.outvars[0]).shape
        before = aval(equation.invars[0]).shape
        if not isinstance(array, Records) or not array.axes or array.block != 1:
            return None
        axis, *others = array.axes
        index, rest = inputs[1 + axis], [*inputs[1 : 1 + axis], *inputs[2 + axis :]]
        if not isinstance(index, Public) or index.loop is None:
            return None
        if any(out[other] != before[other] for other in others) or not all(map(is_zero, rest)):
            return None
        uid, counter, shift, factor = index.loop
        rows, limit = out[axis], before[axis] - out[axis]
        if rows > abs(factor) or not is_inside(index, limit + 1):
            return None
        self.has_row_loops = True
        if index.facts.interval != (0.0, limit) or rows != abs(factor):
            self.by_position.add(self.line)
        axes = tuple(others) if rows == 1 else array.axes
        order = array.order
        if (counter, shift, factor, rows) != ("iteration", 0.0, 1.0, 1):
            # Not as a scan has them.
            counted = counter if counter == "iteration" else (uid, counter)
            order = ("row", counted, shift, factor, rows), order
        once = array.each_once | {uid}
        facts = array.facts
        if math.prod(out) // rows != math.prod(before) // before[axis]:  # some entries only
            facts = Facts(facts.interval)
        return self.records(axes, facts, order=order, draws=array.draws, each_once=once)

    # --- Devices -------------------------------------------------------------------------------

    def sums_of_vmap(self, equation: JaxprEqn, inputs: Sequence[Value]) -> list[Value]:
        """Abstract values of ``psum`` over axes of `jax.vmap`: as many sums as arrays."""
        atoms = zip(equation.invars, equation.outvars, strict=True)
        params = {"axes": equation.params["axes"]}
        sums = [
            equation.replace(
                primitive=jax.lax.reduce_sum_p, params=params, invars=[atom], outvars=[out]
            )
            for atom, out in atoms
        ]
        return [self.apply(one, [value])[0] for one, value in zip(sums, inputs, strict=True)]

    def on_devices(self, equation: JaxprEqn, inputs: list[Value], where: str) -> list[Value]:
        """Abstract values of the outputs of a ``shard_map``, as of a loop over the devices."""
        params = equation.params
        draws = frozenset().union(*(value.draws for value in inputs))
        undecided = Mixed("the check does not follow shard_map", where, False, draws)
        before, (body,) = self.devices, bodies_of(equation)
        sizes = params["mesh"].shape
        devices = {name: (next(self.numbers), sizes[name]) for name in params["newly_manual_axes"]}
        try:
            inside = [
                on_device(value, spec, atom, devices)
                for value, spec, atom in zip(
                    inputs, params["in_specs"], body.jaxpr.invars, strict=True
                )
            ]
            self.devices = {**before, **devices}
            outputs = self.inline(body, inside)
            return [
                value if isinstance(value, Mixed) else from_devices(value, spec, devices)
                for value, spec in zip(outputs, params["out_specs"], strict=True)
            ]
        except ValueError:
            return [undecided for _ in equation.outvars]
        finally:
            self.devices = before

    def repeats_on_devices(self, sums: Sums, noise: Normal, where: str) -> int:
        """How often noise is added to the same sums; reports the same noise for other sums."""
        keys = [key for key, _, number in self.bits if number in {draw for draw, _ in noise.parts}]
        repeats = 1
        for uid, size in self.devices.values():
            varies = any(varies_in_loop(key, uid) for key in keys)
            is_shared = any(uid in part.once for part in sums.parts)
            if is_shared and not varies:
                self.report(True, "the same noise is added on every device", where)
            if varies and not is_shared:
                repeats *= size
        return repeats

    # --- Loops and branches --------------------------------------------------------------------

    def scan(self, equation: JaxprEqn, inputs: list[Value], where: str) -> list[Value]:
        """Abstract values of a scan: what it carries are sums over the records, or public."""
        scan, uid = read_scan(equation), next(self.numbers)
        consts = inputs[: scan.num_consts]
        carried = list(inputs[scan.num_consts : scan.num_consts + scan.num_carry])
        arrays = inputs[scan.num_consts + scan.num_carry :]
        draws = frozenset().union(*(value.draws for value in inputs))
        undecided = Mixed("the check does not follow this loop", where, False, draws)
        if any(isinstance(value, Mixed) for value in inputs):
            mixed = next(value for value in inputs if isinstance(value, Mixed))
            return [replace(mixed, draws=draws) for _ in equation.outvars]

        # One row of each array; every record is in one iteration only, if its axis is scanned.
        rows: list[Value] = []
        for value in arrays:
            if isinstance(value, Records) and value.block > 1:
                return [undecided for _ in equation.outvars]
            if isinstance(value, Records):
                if 0 in value.axes:
                    axes = tuple(axis - 1 for axis in value.axes if axis)
                    once = value.each_once | {uid}
                    facts = value.facts
                else:
                    axes, once = tuple(axis - 1 for axis in value.axes), value.each_once
                    facts = value.facts if scan.length == 1 else Facts(value.facts.interval)
                rows.append(
                    self.records(axes, facts, order=value.order, draws=value.draws, each_once=once)
                )
            elif isinstance(value, Public):
                key = value.key
                if key is not None and key.span is not None:
                    key = Key((*key.path, ("each", uid, *key.span)))
                loop: Any = None
                if value.known is not None and rows_differ(value.known):
                    counted = np.arange(scan.length) + value.known.flat[0]
                    if np.array_equal(value.known, counted) and not scan.reverse:
                        loop = uid, "iteration", float(value.known.flat[0]), 1.0
                    else:
                        loop = uid, next(self.numbers), 0.0, 1.0
                distinct = value.distinct and ("of", value.distinct, uid)
                rows.append(
                    Public(value.facts, draws=value.draws, key=key, distinct=distinct, loop=loop)
                )
            else:
                return [undecided for _ in equation.outvars]

        # Carried values: public, or sums of which the loop's own is a term.
        body = scan.body
        counters = loop_counters(body.jaxpr, scan.num_consts, scan.num_carry)
        unchanged = [
            body.jaxpr.outvars[position] is body.jaxpr.invars[scan.num_consts + position]
            for position in range(scan.num_carry)
        ]
        # Or per-record arrays, of the same records in every iteration.
        kinds: list[Any] = [
            "sum" if isinstance(value, Sums) else value if isinstance(value, Records) else "public"
            for value in carried
        ]
        if any(isinstance(kind, Records) and kind.block > 1 for kind in kinds):
            return [undecided for _ in equation.outvars]
        for _ in range(scan.num_carry + 1):
            saved = self._lengths()
            inside: list[Value] = []
            marks = []
            for position, (kind, value) in enumerate(zip(kinds, carried, strict=True)):
                if kind != "sum" and unchanged[position]:
                    inside.append(value)
                elif kind == "sum":
                    inside.append(Sums(({},), {(uid, position): 1.0}))
                elif isinstance(kind, Records):
                    facts = dtype_facts(aval(equation.outvars[position]).dtype)
                    inside.append(replace(kind, facts=self.records((), facts).facts))
                else:
                    assert isinstance(value, Public)
                    key = carried_key(value.key, ("carried", uid, position))
                    facts, loop = Facts(), None
                    if position in counters:
                        steps = (0.0, counters[position] * (scan.length - 1))
                        last = (min(steps), max(steps))
                        facts = Facts(_values.plus(value.facts.interval, last))
                        loop = uid, ("counter", position), 0.0, 1.0
                        if counters[position] == 1 and value.known is not None and not scan.reverse:
                            loop = uid, "iteration", float(value.known), 1.0
                    # What it depends on after an iteration is one more draw.
                    draws_inside = value.draws
                    if position not in counters:
                        marks.append(next(self.numbers))
                        draws_inside |= {marks[-1]}
                    inside.append(Public(facts, draws=draws_inside, key=key, loop=loop))
            outputs = self.inline(body, [*consts, *inside, *rows])
            after = outputs[: scan.num_carry]
            changed = [
                position
                for position, (kind, value) in enumerate(zip(kinds, after, strict=True))
                if (kind == "public" and not isinstance(value, Public))
                or (isinstance(kind, Records) and not is_of_records(value, kind))
            ]
            if not changed:
                break
            failed = [after[position] for position in changed if isinstance(after[position], Mixed)]
            if failed:
                return [failed[0] for _ in equation.outvars]
            for position in changed:
                value = after[position]
                if isinstance(kinds[position], Records):
                    return [undecided for _ in equation.outvars]
                is_array = isinstance(value, Records) and uid not in value.each_once
                kinds[position] = value if is_array else "sum"
            self._undo(saved)

        # Draws of one iteration that choose records in the next.
        if self.samples & set(marks):
            publics = [value for value in after if isinstance(value, Public)]
            self.samples |= frozenset().union(*(value.draws for value in publics))
        self.samples -= set(marks)
        outputs = [
            replace(value, draws=value.draws - set(marks)) if isinstance(value, Public) else value
            for value in outputs
        ]
        after = outputs[: scan.num_carry]

        # Keys of the body, used once in every iteration.
        for position, (before, value) in enumerate(zip(carried, after, strict=True)):
            if kinds[position] == "public" and not unchanged[position]:
                self.check_carried(before, value, uid, position, where)
        for key, line, _ in self.bits[saved["bits"] :]:
            varies = varies_in_loop(key, uid)
            if not varies and scan.length > 1 and key.path[0] != "unknown":
                self.report(True, "a key is used in every iteration of a loop", line)
        for position, value in enumerate(after):
            if isinstance(value, Public) and value.key is not None and not unchanged[position]:
                for key, line, _ in self.bits[saved["bits"] :]:
                    if keys_overlap(key, value.key) is not False:
                        self.report(True, "the loop goes on with a key that was used already", line)

        # Releases of the body are repeated.
        for index in range(saved["releases"], len(self.releases)):
            release = self.releases[index]
            if scan.length > 1 and any(draw < uid for draw, _ in release.noise):
                reason = "the same noise is added in every iteration of a loop"
                self.report(True, reason, release.where)
            # Of records that are in one iteration each, one release has a record.
            times = 1 if all(uid in part.once for part in release.sums.parts) else scan.length
            self.releases[index] = release._replace(
                repeats=release.repeats * times, number=release.number * scan.length
            )

        # Sums after all iterations.
        results: list[Value] = []
        for position, (kind, before, value) in enumerate(zip(kinds, carried, after, strict=True)):
            if isinstance(kind, Records):
                facts = dtype_facts(aval(equation.outvars[position]).dtype)
                facts, array_draws = self.records((), facts).facts, before.draws | value.draws
                array_after = replace(kind, facts=facts, draws=array_draws)
                results.append(before if unchanged[position] else array_after)
                continue
            if kind == "public":
                if unchanged[position]:
                    results.append(before)
                else:
                    results.append(self.after_loop(before, value, uid, position))
                continue
            array = aval(equation.outvars[position])
            start, end = (self.as_sums(one, where, array) for one in (before, value))
            if end is None or start is None:
                results.append(value if isinstance(value, Mixed) else undecided)
                continue
            own = end.carried.get((uid, position), 0.0)
            others = {p: c for p, c in end.carried.items() if p != (uid, position)}
            if others or own > 1:
                # Sums of other carried values, as in compensated summation.
                results.append(undecided)
                continue
            loop_sums = end.weighted(lambda part: 1 if uid in part.once else scan.length)
            results.append(start.plus(replace(loop_sums, carried={}, in_rows=False)))
        for value, var in zip(
            outputs[scan.num_carry :], equation.outvars[scan.num_carry :], strict=True
        ):
            results.append(self._stacked(value, var, uid, scan.length, undecided))
        return results

    def after_loop(self, before: Value, after: Value, uid: int, position: int) -> Public:
        """A public value after a loop that carried it."""
        assert isinstance(before, Public)
        assert isinstance(after, Public)
        key = carried_key(before.key, ("carried out", uid, position))
        return Public(draws=before.draws | after.draws, key=key if after.key else None)

    def check_carried(
        self, before: Value, after: Value, uid: int, position: int, where: str
    ) -> None:
        """Reports a carried key whose next value is not derived from it."""
        if not isinstance(before, Public) or before.key is None:
            return
        key = after.key if isinstance(after, Public) else None
        start = carried_key(before.key, ("carried", uid, position))
        assert start is not None
        own = key is not None and key.path[: len(start.path)] == start.path
        if key is None or not own or len(key.path) == len(start.path):
            self.report(False, "a loop carries a key in a way that is not followed", where)

    def _stacked(self, value: Value, var: Any, uid: int, length: int, undecided: Mixed) -> Value:
        """The values of all iterations, one after another."""
        if isinstance(value, Public):
            return Public(value.facts, None, self.draws_of(value, self.line))
        if isinstance(value, Mixed):
            return value
        if isinstance(value, Sums) and not value.carried:
            in_rows = all(uid in part.once for part in value.parts)
            return replace(value.scaled(1 if in_rows else math.sqrt(length)), in_rows=in_rows)
        if isinstance(value, Records) and uid in value.each_once:
            axes = (0, *(axis + 1 for axis in value.axes))
            if axes != tuple(range(len(axes))):
                return undecided
            return replace(
                self.records(axes, value.facts, order=value.order, draws=value.draws),
                each_once=value.each_once - {uid},
            )
        if isinstance(value, Records) and value.axes and value.block == 1:
            # The same records in every iteration.
            axes = tuple(axis + 1 for axis in value.axes)
            facts = value.facts if length == 1 else Facts(value.facts.interval)
            return replace(
                self.records(axes, facts, order=value.order, draws=value.draws),
                each_once=value.each_once,
            )
        return undecided

    def _lengths(self) -> dict[str, int]:
        return {name: len(getattr(self, name)) for name in ("findings", "releases", "bits")}

    def _undo(self, lengths: dict[str, int]) -> None:
        for name, length in lengths.items():
            del getattr(self, name)[length:]

    def while_loop(self, equation: JaxprEqn, inputs: list[Value], where: str) -> list[Value]:
        """Abstract values of the outputs of a ``while_loop``, which must have no records."""
        draws = frozenset().union(*(value.draws for value in inputs))
        if any(not isinstance(value, Public) for value in inputs):
            draws = draws.union(*(self.draws_of(value, where) for value in inputs))
        num_consts = equation.params["cond_nconsts"] + equation.params["body_nconsts"]
        if any(not isinstance(value, Public) for value in inputs):
            condition, body = equation.params["cond_jaxpr"], equation.params["body_jaxpr"]
            private = [not isinstance(value, Public) for value in inputs]
            of_condition = equation.params["cond_nconsts"]
            carried = private[num_consts:]
            body_consts = private[of_condition:num_consts]
            for _ in range(len(carried) + 1):
                reached = outputs_reached(body.jaxpr, [*body_consts, *carried])
                carried = [a or b for a, b in zip(carried, reached, strict=True)]
            if any(outputs_reached(condition.jaxpr, [*private[:of_condition], *carried])):
                reason = "the number of iterations of a loop depends on the records"
                self.report(True, reason, where)
            if equation.effects:
                self.report(True, "records may leave the program in a loop", where)
            undecided = Mixed("the check does not follow this loop", where, False, draws)
            return [undecided if is_private else Public(draws=draws) for is_private in carried]
        uid, saved = next(self.numbers), len(self.bits)
        body = equation.params["body_jaxpr"]
        counters = loop_counters(
            body.jaxpr, equation.params["body_nconsts"], len(inputs) - num_consts
        )
        inside = []
        for position, value in enumerate(inputs[num_consts:]):
            assert isinstance(value, Public)
            key = carried_key(value.key, ("carried", uid, position))
            loop = (uid, ("counter", position), 0.0, 1.0) if position in counters else None
            inside.append(Public(draws=value.draws, key=key, loop=loop))
        consts = inputs[equation.params["cond_nconsts"] : num_consts]
        outputs = self.inline(body, [*consts, *inside])
        for position, (before, value) in enumerate(zip(inputs[num_consts:], outputs, strict=True)):
            self.check_carried(before, value, uid, position, where)
        for key, line, _ in self.bits[saved:]:
            if not varies_in_loop(key, uid) and key.path[0] != "unknown":
                self.report(False, "a key may be used in every iteration of a loop", line)
        draws = frozenset().union(draws, *(value.draws for value in outputs))
        return [
            replace(self.after_loop(before, value, uid, position), draws=draws)
            for position, (before, value) in enumerate(
                zip(inputs[num_consts:], outputs, strict=True)
            )
        ]

    def cond(self, equation: JaxprEqn, inputs: list[Value], where: str) -> list[Value]:
        """Abstract values of the outputs of one of several branches."""
        choice, operands = inputs[0], inputs[1:]
        branches = bodies_of(equation)
        draws = frozenset().union(*(value.draws for value in inputs))
        if not isinstance(choice, Public):
            reason = "which branch is taken depends on the records"
            self.report(True, reason, where)
            return [Mixed(reason, where, True, draws) for _ in equation.outvars]
        if choice.known is not None and choice.constant:
            taken = branches[int(np.clip(choice.known, 0, len(branches) - 1))]
            return self.inline(taken, operands)
        results = [self.inline(branch, operands) for branch in branches]
        joined: list[Value] = []
        for values in zip(*results, strict=True):
            draws = choice.draws.union(*(self.draws_of(value, where) for value in values))
            if all(isinstance(value, Public) for value in values):
                joined.append(Public(draws=draws))
            else:
                joined.append(Mixed("the check does not follow this branch", where, False, draws))
        return joined
