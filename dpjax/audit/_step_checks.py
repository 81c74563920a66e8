"""Checks of one private step as a black box: sensitivity, distribution of the noise, keys.

Two neighbours are released with the same key, so that the noise cancels and what one record moves
is seen without error. The noise itself is estimated from releases of the same records with many
keys. So a step needs no marks and no knowledge of its parts. What is compared is scale-free, the
change of the release over the standard deviation of its noise: sums and means are checked alike.
"""

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from scipy.stats import chi2, f, kstest, norm, t

from dpjax._checks import as_key, batch_length, check, check_count, check_function, check_type
from dpjax._typing import PRNGKey, PyTree
from dpjax.adjacency import sensitivity_factor
from dpjax.certificates import Report
from dpjax.certificates.render import Table
from dpjax.mechanisms import Gaussian, SubsampledGaussian

__all__ = ["StepCheck", "StepReport", "check_step"]

Array: TypeAlias = npt.NDArray[np.float64]
Verdict = Literal["passed", "failed", "not decided"]
Records: TypeAlias = list[np.ndarray]

# The probability that one check fails a step that is the mechanism.
FALSE_ALARM = 1e-6
# Random numbers drawn in all, unless `num_runs` is given, and the numbers of runs between which.
_NUM_DRAWS, _FEWEST_RUNS, _MOST_RUNS = 2_000_000, 2_000, 60_000
# Coordinates whose correlations are computed, and numbers held in memory by one call.
_NUM_CORRELATED, _CHUNK = 192, 2**24
# Steps that are taken one after the other, and the numbers that a record is multiplied with.
_NUM_STEPS = 3
# Pairs of neighbours that are followed over later steps.
_NUM_FOLLOWED = 6
_SCALES = (0.0, 1e-30, 1e-3, 0.3, 3.0, 1e2, 1e5, 1e30)
_OTHER_LENGTHS = ("one record", "no records")
# Where no neighbour moves the release by this share of what is allowed, nothing is decided.
_LEAST_SHARE = 0.5
# A change of the release relative to the allowed one that counts as rounding, and the factor that
# is allowed for it over several steps.
_SLACK, _STATE_SLACK = 1e-3, 1.02
_CAVEATS = (
    "Checked are the records, their extremes and the keys that were tried, not all that there are.",
    "How batches are drawn, how many steps are made and what else is published is not checked here:"
    " see dpjax.audit.audit.",
)


@dataclass(frozen=True)
class StepCheck:
    """One check of a step.

    Attributes:
      name: of the check.
      verdict: ``"passed"``, ``"failed"`` or ``"not decided"``.
      finding: what was measured, a sentence.
    """

    name: str
    verdict: Verdict
    finding: str


@dataclass(frozen=True, kw_only=True)
class StepReport(Report):
    """Checks of a private step against its mechanism, from `check_step`; printed as a certificate.

    Attributes:
      mechanism: that the step is claimed to be one step of.
      checks: in the order in which they were made.
    """

    mechanism: SubsampledGaussian | Gaussian
    checks: tuple[StepCheck, ...]

    caveats_heading = "Not covered"

    @property
    def failures(self) -> tuple[StepCheck, ...]:
        """The checks that failed."""
        return tuple(each for each in self.checks if each.verdict == "failed")

    @property
    def verdict(self) -> Verdict:
        """``"failed"`` if a check failed, else ``"not decided"`` if one was not decided."""
        if self.failures:
            return "failed"
        undecided = any(each.verdict == "not decided" for each in self.checks)
        return "not decided" if undecided else "passed"

    @property
    def title(self) -> str:
        number = len(self.checks)
        if self.failures:
            names = ", ".join(each.name for each in self.failures)
            return f"FAILED: the step is not the mechanism ({names})"
        passed = sum(each.verdict == "passed" for each in self.checks)
        return f"Passed: {passed} of {number} checks" + (
            "" if passed == number else f", {number - passed} not decided"
        )

    @property
    def tables(self) -> list[Table]:
        rows = [(each.name, f"{each.verdict}: {each.finding}") for each in self.checks]
        allowed = _Allowed.of(self.mechanism)
        claim = [
            ("adjacency", self.mechanism.adjacency),
            ("sensitivity over noise", f"at most {allowed.stated:.4g}"),
            ("false alarms", f"of each check with a probability of at most {FALSE_ALARM:g}"),
        ]
        return [("Checks of a private step", rows), ("Mechanism", claim)]

    @property
    def caveats(self) -> tuple[str, ...]:
        return _CAVEATS

    def paragraph(self) -> str:
        if self.failures:
            return " ".join(f"{each.name.capitalize()}: {each.finding}." for each in self.failures)
        names = ", ".join(each.name for each in self.checks if each.verdict == "passed")
        return f"The step passed the checks of {names}."

    def _values(self) -> dict[str, Any]:
        return {
            "verdict": self.verdict,
            "adjacency": self.mechanism.adjacency,
            "checks": [vars(each) for each in self.checks],
        }


def check_step(
    key: PRNGKey,
    step: Callable[..., Any],
    records: PyTree,
    mechanism: SubsampledGaussian | Gaussian,
    *,
    init: Callable[[PRNGKey], Any] | None = None,
    null_record: PyTree | None = None,
    num_runs: int | None = None,
    vectorize: bool = True,
) -> StepReport:
    """Tests sensitivity, noise and keys of a user's training step, as a black box, by a mechanism.

    The checks:

    - **sensitivity**: with the same key, neighbouring batches (a record added, removed, replaced by
      huge, tiny, opposite, infinite records and by NaN, in batches of many records and of one) move
      the release by at most what the mechanism states, relative to the standard deviation of the
      noise;
    - **finite**: none of them makes the release NaN or infinite;
    - **noise on every number**: no number that depends on the records is released without noise;
    - **equal noise**, **normal noise**, **independent noise**: the distribution of the noise over
      keys, its standard deviation and its correlations between coordinates and leaves;
    - **noise and records**: the standard deviation of the noise does not depend on the records, nor
      on their number under add/remove;
    - **keys**: the same key gives the same release, different keys different noise;
    - with ``init``, **steps**: the noise of three consecutive steps is independent and no smaller
      in the second and third; and **state**: nothing private passes to the next step without noise.

    A step that is the mechanism fails each statistical check with a probability of about 1e-6: at
    most, but for correlations of squares and of consecutive steps, whose limits are approximate.

    Args:
      key: of the checks.
      step: ``step(key, records) -> released``, or with ``init`` a step of a loop, ``step(state,
        records) -> (released, state)``, where the state holds key and parameters. ``released`` is
        the noisy sum or mean, or parameters after a plain gradient step; a tree of float arrays.
        ``records`` are those of one batch: a step that samples is checked at the rate 1.
      records: made-up records, a tree of arrays with a common leading axis, four to some dozens;
        with gradients in all parameters that are clipped.
      mechanism: that the step is claimed to be: only noise multiplier and adjacency matter, or of a
        `Gaussian` sensitivity, scale and adjacency.
      init: from a key the state of the first step.
      null_record: a record that contributes nothing (as one whose mask is False), a tree of the
        structure of ``records`` without the leading axis. Needed where the step takes batches of
        one size only and the adjacency is add/remove.
      num_runs: with how many keys the noise is estimated; by default so many that two million
        random numbers are drawn, at least 2,000.
      vectorize: whether the step is run under ``jax.jit`` and ``jax.vmap``; else run by run.

    Returns:
      The verdict of each check, with the numbers on which it is based.

    Raises:
      TypeError: an argument of another type.
      ValueError: records without a common leading axis, a noise multiplier of zero or a schedule.

    >>> from dpjax import Gaussian, Sensitivity, clipped_grad
    >>> gradient = clipped_grad(lambda w, x: jnp.vdot(w, x), l2_clip=1.0)
    >>> def make(noise_std):
    ...     def step(key, records):
    ...         total, _ = gradient(jnp.zeros(4), records, None)
    ...         return total + noise_std * jax.random.normal(key, (4,))
    ...     return step
    >>> mechanism = Gaussian(Sensitivity(1.0, "l2", "add_remove", shape=(4,)), 2.0)
    >>> records = jax.random.normal(jax.random.key(0), (6, 4))
    >>> check_step(jax.random.key(1), make(2.0), records, mechanism).verdict
    'passed'
    >>> report = check_step(jax.random.key(1), make(1.0), records, mechanism)
    >>> [each.name for each in report.failures]
    ['sensitivity']
    """
    key = as_key(key)
    check_function("step", step, *(("key",) if init is None else ("state",)), "records")
    if init is not None:
        check_function("init", init, "key")
    check_type(
        "mechanism", mechanism, SubsampledGaussian | Gaussian, "a SubsampledGaussian or a Gaussian"
    )
    batch_length(records, "records")
    if num_runs is not None:
        check_count("num_runs", num_runs, 200)
    check(isinstance(vectorize, bool), "vectorize", vectorize, "True or False")
    leaves, structure = jax.tree.flatten(records)
    null = None
    if null_record is not None:
        same = bool(jax.tree.structure(null_record) == structure)  # type: ignore[operator]
        check(same, "null_record", null_record, "a tree of the structure of records")
        null = jax.tree.leaves(null_record)
    runs = _Runs(step, init, structure, vectorize)
    return StepReport(
        mechanism=mechanism,
        checks=tuple(
            _checks(
                key,
                runs,
                [np.asarray(leaf) for leaf in leaves],
                mechanism,
                None if null is None else [np.asarray(leaf) for leaf in null],
                num_runs,
            )
        ),
    )


class _Allowed(NamedTuple):
    """Largest change of the release over the standard deviation of its noise, by the mechanism."""

    stated: float  # under the mechanism's adjacency
    removal: float | None  # where a record is added or removed, or replaced by the null record
    replacement: float  # where a record is replaced by any other

    @classmethod
    def of(cls, mechanism: SubsampledGaussian | Gaussian) -> "_Allowed":
        if isinstance(mechanism, Gaussian):
            stated = mechanism.mu
        else:
            noise = mechanism.noise_multiplier
            allowed = "one number above zero: noise schedules are checked noise by noise"
            if isinstance(noise, tuple) or noise == 0:
                raise ValueError(f"noise_multiplier must be {allowed}, got {noise}")
            allowed = "None: the noise of consecutive steps is checked to be independent"
            check(
                mechanism.correlation is None,
                "mechanism's correlation",
                mechanism.correlation,
                allowed,
            )
            stated = sensitivity_factor(mechanism.adjacency) / noise
        if mechanism.adjacency == "replace_one":
            return cls(stated, None, stated)
        return cls(stated, stated, 2 * stated)


class _Runs:
    """Releases of a step as rows of float64 numbers."""

    def __init__(self, step: Any, init: Any, structure: Any, vectorize: bool) -> None:
        self.step, self.init = step, init
        self.structure, self.vectorize = structure, vectorize
        # Run by run, steps may be of numpy: operations of JAX would take longer than they do.
        self.arrays: Any = jnp if vectorize else np
        self.paths: list[str] = []
        self.widths: list[int] = []
        self.dtypes: list[np.dtype] = []
        self.block = 1
        # Programs run for a second at most: less time to compile them is worth more.
        options: dict[str, Any] | None = None
        if jax.default_backend() == "cpu":
            options = {"xla_backend_optimization_level": 0}
        many_keys = jax.vmap(self._steps, (0, None))
        self._many_keys = jax.jit(many_keys, compiler_options=options) if vectorize else None
        self._many_rows = jax.jit(self._with_rows, compiler_options=options) if vectorize else None

    def over_keys(self, keys: jax.Array, *batches: Records) -> Array:
        """Returns the releases of consecutive steps on ``batches``, (keys, steps, numbers)."""
        if self._many_keys is None:
            return np.stack([self._steps(key, batches) for key in keys]).astype(np.float64)

        # Blocks of one length, so that one program serves all calls.
        parts = []
        for start in range(0, len(keys), self.block):
            own = keys[start : start + self.block]
            padded = jnp.concatenate([own, jnp.repeat(own[-1:], self.block - len(own))])
            parts.append(np.asarray(self._many_keys(padded, batches), np.float64)[: len(own)])
        return np.concatenate(parts)

    def measure(self, records: Records) -> int:
        """Returns how many numbers are released, and sets how many runs one call makes."""
        if self.vectorize:
            size = jax.eval_shape(self._steps, jax.random.key(0), [records]).shape[-1]
        else:
            size = self._steps(jax.random.key(0), [records]).shape[-1]
        # Gradients of all records are in memory in all runs.
        each = sum(leaf.size for leaf in records) + (len(records[0]) + 1) * max(size, 1)
        self.block = int(np.clip(min(200_000 // max(size, 1), _CHUNK // each), 128, 4_096))
        return size

    def accepts(self, batch: Records) -> bool:
        """Whether the step takes a batch of that length."""
        try:
            if self._many_keys is None:
                self._steps(jax.random.key(0), [batch])
            else:
                jax.eval_shape(self._steps, jax.random.key(0), [batch])
        except Exception:  # whatever a step raises
            return False
        return True

    def over_rows(self, key: jax.Array, batch: Records, slot: int, rows: Records) -> Array:
        """Returns the releases of a batch in which each of ``rows`` in turn replaces one record."""
        if self._many_rows is None:
            each = [
                self._steps(key, [_with_row(batch, slot, [leaf[one] for leaf in rows])])[0]
                for one in range(len(rows[0]))
            ]
            return np.stack(each).astype(np.float64)
        length = max(1, _CHUNK // (len(batch[0]) * (max(sum(self.widths), 1) + 1)))
        parts = []
        for start in range(0, len(rows[0]), length):
            some = [leaf[start : start + length] for leaf in rows]
            # Once for each row: dpjax's noise refuses to be drawn with one key for all of them.
            keys = jnp.broadcast_to(key, (len(some[0]),))
            parts.append(np.asarray(self._many_rows(keys, batch, slot, some), np.float64))
        return np.concatenate(parts)

    def _steps(self, key: jax.Array, batches: Any) -> jax.Array | np.ndarray:
        if self.init is None:
            return self._flat(self.step(key, jax.tree.unflatten(self.structure, batches[0])))[None]
        state, released = self.init(key), []
        for batch in batches:
            one, state = self.step(state, jax.tree.unflatten(self.structure, batch))
            released.append(self._flat(one))
        return self.arrays.stack(released)

    def _with_rows(self, keys: jax.Array, batch: Records, slot: int, rows: Records) -> jax.Array:
        def run(key: jax.Array, row: Any) -> jax.Array:
            changed = [jnp.asarray(a).at[slot].set(b) for a, b in zip(batch, row, strict=True)]
            return self._steps(key, [changed])[0]

        return jax.vmap(run)(keys, rows)

    def _flat(self, released: PyTree) -> jax.Array | np.ndarray:
        arrays = [self.arrays.asarray(leaf) for leaf in jax.tree.leaves(released)]
        if not self.paths:  # by the first run: they are the same in all
            paths = jax.tree_util.tree_leaves_with_path(released)
            self.paths = [jax.tree_util.keystr(path) for path, _ in paths]
            self.widths = [leaf.size for leaf in arrays]
            self.dtypes = [leaf.dtype for leaf in arrays]
        with np.errstate(over="ignore"):  # what does not fit is infinite
            return self.arrays.concatenate([leaf.astype(np.float32).ravel() for leaf in arrays])

    @property
    def is_discrete(self) -> npt.NDArray[np.bool_]:
        """Which released numbers are integers or truth values."""
        return np.repeat(
            [not jnp.issubdtype(one, jnp.floating) for one in self.dtypes], self.widths
        )

    @property
    def precision(self) -> float:
        """The largest rounding error of a released number, relative to it."""
        floats = [one for one in self.dtypes if jnp.issubdtype(one, jnp.floating)]
        return max(float(jnp.finfo(one).eps) for one in [*floats, np.dtype(np.float32)])

    def leaf_of(self, coordinate: int) -> str:
        """Returns the path of the leaf that holds a coordinate, in words."""
        number = int(np.searchsorted(np.cumsum(self.widths), coordinate, side="right"))
        path = self.paths[number]
        return f"leaf {path}" if path else "the release"


def _checks(
    key: jax.Array,
    runs: _Runs,
    records: Records,
    mechanism: SubsampledGaussian | Gaussian,
    null: Records | None,
    num_runs: int | None,
) -> Iterator[StepCheck]:
    base_key, data_key, rows_key = jax.random.split(key, 3)
    rng = np.random.default_rng(np.asarray(jax.random.key_data(rows_key)).ravel())
    allowed = _Allowed.of(mechanism)

    # The releases of the records as given, over many keys.
    size = runs.measure(records)
    if num_runs is None:
        num_runs = int(np.clip(_NUM_DRAWS // max(size, 1), _FEWEST_RUNS, _MOST_RUNS))
    keys = jax.random.split(base_key, num_runs)
    base = runs.over_keys(keys, records)[:, 0]
    if not np.isfinite(base).all():
        yield StepCheck("finite", "failed", "the records as given make the release NaN or infinite")
        return
    again = runs.over_keys(keys[:8], records)[:, 0]

    # Other batches, with fewer keys, and the changes by neighbours with the same key.
    batches = _batches(records, null, runs)
    few_keys = jax.random.split(data_key, runs.block)
    others = {name: runs.over_keys(few_keys, batch)[:, 0] for name, batch in batches.items()}
    size_is_private = mechanism.adjacency == "add_remove"
    changes = _find_changes(runs, keys[:2], batches, null, allowed, size_is_private, rng)

    # Numbers that vary over keys have noise; those that vary over records alone lack it.
    variance = base.var(axis=0, ddof=1)
    constant = (base == base[0]).all(axis=0)
    varies = changes.varies.copy()
    for release in others.values():
        varies |= (release != base[0]).any(axis=0)
    discrete = runs.is_discrete
    noisy = ~constant & ~discrete
    if not noisy.any():
        yield StepCheck(
            "noise on every number", "failed", "the release is the same for every key: no noise"
        )
        return
    yield _check_bare(runs, constant & varies, noisy)
    if (discrete & ~constant).any():
        number = int((discrete & ~constant).sum())
        finding = f"{number:,} released integers vary: only Gaussian noise on reals is checked"
        yield StepCheck("integers", "not decided", finding)

    # The distribution of the noise.
    pooled = float(variance[noisy].mean())
    yield _check_equal(runs, variance, noisy, pooled, num_runs)
    yield _check_normal(runs, base, noisy, pooled, rng)
    columns = _choose_coordinates(runs, noisy, rng)
    yield _check_independent(runs, base, columns, noisy)
    if not size_is_private:
        others = {name: each for name, each in others.items() if name not in _OTHER_LENGTHS}
    yield _check_other_records(runs, others, noisy, pooled, num_runs)
    yield _check_keys(base, base[:8], again, noisy)

    # What one record moves, over the largest standard deviation that the noise may have.
    degrees = (num_runs - 1) * int(noisy.sum())
    largest_std = math.sqrt(pooled * degrees / chi2.ppf(FALSE_ALARM, degrees))
    yield changes.check_finite()
    yield changes.check_sensitivity(mechanism, largest_std, noisy, runs, data_key)

    if runs.init is not None:
        yield from _check_loop(runs, keys, batches, changes, noisy, columns, allowed, pooled)


# ---------------------------------------------------------------------------------------------
# Neighbours.


def _is_float(leaf: np.ndarray) -> bool:
    return bool(jnp.issubdtype(leaf.dtype, jnp.floating))


def _with_row(batch: Records, slot: int, row: Records) -> Records:
    changed = [leaf.copy() for leaf in batch]
    for leaf, value in zip(changed, row, strict=True):
        leaf[slot] = value
    return changed


def _batches(records: Records, null: Records | None, runs: _Runs) -> dict[str, Records]:
    """Returns the batches in which records are changed, by name, that the step takes."""
    number = len(records[0])

    def of_floats(change: Callable[[np.ndarray], npt.ArrayLike]) -> Records:
        with np.errstate(over="ignore"):
            return [
                np.asarray(change(leaf)).astype(leaf.dtype) if _is_float(leaf) else leaf
                for leaf in records
            ]

    batches = {
        "the records as given": records,
        "records of zeros": of_floats(np.zeros_like),
        "huge records": of_floats(lambda leaf: leaf * np.float32(1e4)),
        "equal records": [np.repeat(leaf[:1], number, axis=0) for leaf in records],
        "records of NaN": of_floats(lambda leaf: np.full_like(leaf, np.nan)),
    }
    if null is not None:
        batches["null records"] = [
            np.repeat(value[None], number, axis=0).astype(leaf.dtype)
            for value, leaf in zip(null, records, strict=True)
        ]
    # Of other lengths: some steps take one length only.
    shorter = [[leaf[:length] for leaf in records] for length in (1, 0)]
    others = dict(zip(_OTHER_LENGTHS, shorter, strict=True))
    return batches | {name: batch for name, batch in others.items() if runs.accepts(batch)}


def _rows(records: Records, null: Records | None, rng: np.random.Generator) -> tuple[Records, list]:
    """Returns records to take another's place, and what each is, in words."""
    number = len(records[0])
    floats = [one for one, leaf in enumerate(records) if _is_float(leaf)]
    rows: list[Records] = []
    names: list[str] = []

    def add(name: str, row: Records, changes: dict[int, Any] | None = None) -> None:
        changed = list(row)
        with np.errstate(over="ignore", invalid="ignore"):
            for position, value in (changes or {}).items():
                leaf = records[position]
                changed[position] = np.broadcast_to(value, leaf.shape[1:]).astype(leaf.dtype)
        rows.append(changed)
        names.append(name)

    for one in range(min(number, 8)):
        add("another record", [leaf[one] for leaf in records])
    for one in range(min(number, 3)):
        row = [leaf[one] for leaf in records]
        # All numbers, and those of one leaf, multiplied or replaced.
        for group in [floats, *([each] for each in floats if len(floats) > 1)]:
            which = "a record" if group == floats else f"leaf {group[0]} of a record"
            for scale in _SCALES:
                for sign in (scale, -scale):
                    changes = {p: np.asarray(row[p], np.float64) * sign for p in group}
                    add(f"{which} times {sign:g}", row, changes)
            for value in (np.nan, np.inf, -np.inf, 1e4, -1e4):
                add(f"{which} replaced by {value}", row, dict.fromkeys(group, value))
        # One entry alone, with the others zero or as they are.
        for position in floats:
            shape = records[position].shape[1:]
            for _ in range(3 if shape else 0):
                entry = tuple(rng.integers(0, length) for length in shape)
                for value in (1e3, -1e3, np.nan):
                    spike = np.zeros(shape)
                    spike[entry] = value
                    others = dict.fromkeys(floats, 0.0)
                    add(f"a record of one entry {value:g}", row, others | {position: spike})
                    kept = np.array(row[position], np.float64)
                    kept[entry] = value
                    add(f"a record with one entry {value:g}", row, {position: kept})
        # The other leaves (labels, masks) of other records, and zero.
        for position in set(range(len(records))) - set(floats):
            for other in range(min(number, 8)):
                for sign in (1.0, -1e4):
                    changes = {p: np.asarray(row[p], np.float64) * sign for p in floats}
                    changes[position] = records[position][other]
                    add("a record with another's label", row, changes)
            add("a record of label zero", row, {position: 0})
    # Random directions and lengths.
    for number_drawn in range(96 if floats else 0):
        row = [leaf[number_drawn % number] for leaf in records]
        length = 10 ** rng.uniform(-1, 3)
        drawn = {
            p: length
            * (rng.normal(size=records[p].shape[1:]) if number_drawn % 3 else rng.normal())
            for p in floats
        }
        add("a random record", row, drawn)
    if null is not None:
        add("the null record", null)
    stacked = [
        np.stack([np.asarray(row[p], leaf.dtype) for row in rows]) for p, leaf in enumerate(records)
    ]
    return stacked, names


class _Change(NamedTuple):
    """A difference of two releases with the same key, and where it was found."""

    difference: Array
    allowed: float
    rounding: float
    words: str
    batches: tuple[Records, Records]
    # Whether other records than the changed one take another place in the batch.
    moves_others: bool = False


@dataclass
class _Changes:
    """The changes of the release by neighbours: the largest, and what was not finite."""

    found: list[_Change]
    not_finite: list[str]
    varies: npt.NDArray[np.bool_]
    has_removal: bool

    def check_finite(self) -> StepCheck:
        if self.not_finite:
            finding = f"the release is NaN or infinite with {self.not_finite[0]}"
            return StepCheck("finite", "failed", finding)
        return StepCheck("finite", "passed", "so is the release with every record that was tried")

    def check_sensitivity(
        self,
        mechanism: SubsampledGaussian | Gaussian,
        std: float,
        noisy: npt.NDArray[np.bool_],
        runs: _Runs,
        key: jax.Array,
    ) -> StepCheck:
        """Compares the largest change with what is allowed.

        Args:
          mechanism: whose adjacency is checked.
          std: the largest standard deviation that the noise may have.
          noisy: the coordinates with noise.
          runs: of the step.
          key: for changes where the order of the records may matter.
        """

        def share_of(change: _Change) -> float:
            norm_of_change = float(np.linalg.norm(change.difference[noisy]))
            share = max(norm_of_change - change.rounding, 0.0) / std / change.allowed
            if share > 1 + _SLACK and change.moves_others:
                # Keys of single records may depend on their place: only the mean must be near.
                return _mean_change(runs, key, change.batches, noisy) / std / change.allowed
            return share

        shares = [share_of(change) for change in self.found]
        if not shares:
            return StepCheck("sensitivity", "not decided", "no neighbour could be released")
        worst = self.found[int(np.argmax(shares))]
        share = max(shares)
        if share > 1 + _SLACK:
            finding = (
                f"the release moves by {share * worst.allowed:.4g} standard deviations of its"
                f" noise where {worst.allowed:.4g} are allowed, by {worst.words}"
            )
            return StepCheck("sensitivity", "failed", finding)
        if share < _LEAST_SHARE:
            finding = (
                f"no neighbour that was tried moves the release by more than {share:.3g} of what is"
                " allowed, so that half the noise would not be seen: give records with gradients"
                " that are clipped"
            )
            return StepCheck("sensitivity", "not decided", finding)
        if mechanism.adjacency == "add_remove" and not self.has_removal:
            finding = (
                "the step takes batches of one length only, so that no record could be removed;"
                f" replaced ones move the release by {share:.3g} of what is allowed: give a"
                " null_record"
            )
            return StepCheck("sensitivity", "not decided", finding)
        finding = f"the release moves by at most {share:.4g} of what is allowed, by {worst.words}"
        return StepCheck("sensitivity", "passed", finding)


def _find_changes(
    runs: _Runs,
    keys: jax.Array,
    batches: dict[str, Records],
    null: Records | None,
    allowed: _Allowed,
    size_is_private: bool,
    rng: np.random.Generator,
) -> _Changes:
    """Returns the largest changes of the release where one record is replaced, added or removed."""
    rows, names = _rows(batches["the records as given"], null, rng)
    found: list[_Change] = []
    not_finite: list[str] = []
    varies = np.zeros(sum(runs.widths), bool)
    has_removal = False
    for number, (name, batch) in enumerate(batches.items()):
        length = len(batch[0])
        if name in _OTHER_LENGTHS:
            continue
        for slot in sorted({0, length - 1}):
            key = keys[(number + slot) % len(keys)]
            releases = runs.over_rows(key, batch, slot, rows)
            place = f"at place {slot} of {name}"

            # Releases must be finite, and those that are not are left out.
            finite = np.isfinite(releases).all(axis=1)
            not_finite += [f"{names[one]} {place}" for one in np.flatnonzero(~finite)[:1]]
            if not finite.any():
                continue
            varies |= np.ptp(releases[finite], axis=0) > 0

            def add(
                difference: Array,
                bound: float,
                words: str,
                pair: tuple[Records, Records],
                moves: bool,
            ) -> None:
                scale = float(np.abs(releases[finite]).max())  # noqa: B023
                rounding = 8 * runs.precision * scale * math.sqrt(difference.size)
                found.append(_Change(difference, bound, rounding, words, pair, moves))

            def with_row(one: int) -> Records:
                return _with_row(batch, slot, [leaf[one] for leaf in rows])  # noqa: B023

            # Two records at the same place.
            one, other = _farthest_pair(np.where(finite.reshape(-1, 1), releases, np.nan))
            add(
                releases[one] - releases[other],
                allowed.replacement,
                f"{names[one]} in place of {names[other]} {place}",
                (with_row(one), with_row(other)),
                False,
            )
            if allowed.removal is None:
                continue

            # A record added, or removed; or in place of the null record.
            without = [np.delete(leaf, slot, axis=0) for leaf in batch]
            accepted = size_is_private and runs.accepts(without)
            empty = [(without, slot < length - 1)] if accepted else []
            if null is not None:
                empty.append((_with_row(batch, slot, null), False))
            for fewer, moves in empty:
                release = runs.over_keys(key[None], fewer)[0, 0]
                if not np.isfinite(release).all():
                    continue
                has_removal = True
                distances = np.linalg.norm(releases - release, axis=1)
                one = int(np.argmax(np.where(finite, distances, -1.0)))
                add(
                    releases[one] - release,
                    allowed.removal,
                    f"{names[one]} added {place}",
                    (with_row(one), fewer),
                    moves,
                )
    return _Changes(found, not_finite, varies, has_removal)


def _farthest_pair(releases: Array) -> tuple[int, int]:
    """Returns the positions of the two releases that are farthest apart, without those of NaN."""
    with np.errstate(invalid="ignore"):
        centred = releases - np.nanmean(releases, axis=0)
    # Distances from the products: exact where they are largest.
    filled = np.nan_to_num(centred)
    squares = np.einsum("ij,ij->i", filled, filled)
    squared = squares[:, None] + squares[None] - 2 * filled @ filled.T
    missing = np.isnan(releases).any(axis=1)
    squared[missing] = squared[:, missing] = -1.0
    one, other = np.unravel_index(np.argmax(squared), squared.shape)
    return int(one), int(other)


def _mean_change(
    runs: _Runs, key: jax.Array, batches: tuple[Records, Records], noisy: npt.NDArray[np.bool_]
) -> float:
    """Returns a lower bound on the distance of the mean releases of two batches.

    Half of the keys choose a direction, the others the mean along it (Student's t).
    """
    keys = jax.random.split(key, 512)
    first, second = (runs.over_keys(keys, batch)[:, 0][:, noisy] for batch in batches)
    changes = first - second
    direction = changes[:256].mean(axis=0)
    direction /= np.linalg.norm(direction) or 1.0
    along = changes[256:] @ direction
    error = along.std(ddof=1) / math.sqrt(along.size)
    return float(along.mean() + t.ppf(FALSE_ALARM, along.size - 1) * error)


# ---------------------------------------------------------------------------------------------
# Noise.


def _check_bare(
    runs: _Runs, bare: npt.NDArray[np.bool_], noisy: npt.NDArray[np.bool_]
) -> StepCheck:
    name = "noise on every number"
    if bare.any():
        finding = (
            f"{int(bare.sum()):,} numbers, the first in {runs.leaf_of(int(np.argmax(bare)))},"
            " depend on the records and are the same for every key"
        )
        return StepCheck(name, "failed", finding)
    return StepCheck(name, "passed", f"on all {int(noisy.sum()):,} that depend on the records")


def _check_equal(
    runs: _Runs, variance: Array, noisy: npt.NDArray[np.bool_], pooled: float, num_runs: int
) -> StepCheck:
    """Compares the variance of every coordinate with that of all, by the chi-squared test."""
    ratios = np.where(noisy, variance / pooled, 1.0)
    scaled, degrees = (num_runs - 1) * ratios, num_runs - 1
    logs = np.minimum(chi2.logcdf(scaled, degrees), chi2.logsf(scaled, degrees))
    worst = int(np.argmin(logs))
    ratio = math.sqrt(ratios[worst])
    finding = (
        f"the standard deviation of one number, in {runs.leaf_of(worst)}, is {ratio:.3g} times that"
        " of all"
    )
    if logs[worst] < math.log(FALSE_ALARM / (2 * noisy.sum())):
        return StepCheck("equal noise", "failed", finding)
    finding = f"standard deviations are {ratio:.3g} times that of all numbers, or nearer to it"
    return StepCheck("equal noise", "passed", finding)


def _check_normal(
    runs: _Runs,
    base: Array,
    noisy: npt.NDArray[np.bool_],
    pooled: float,
    rng: np.random.Generator,
) -> StepCheck:
    """Tests the noise of each leaf by Kolmogorov and Smirnov, and its largest value."""
    edges = np.cumsum([0, *runs.widths])
    leaves = [
        columns
        for start, stop in itertools.pairwise(edges)
        if (columns := start + np.flatnonzero(noisy[start:stop])).size
    ]
    alarm = FALSE_ALARM / (3 * len(leaves))
    smallest = 1.0
    for columns in leaves:
        most = max(1, _NUM_DRAWS // len(base))
        chosen = columns if columns.size <= most else rng.choice(columns, most, replace=False)
        values = base[:, chosen]
        values = ((values - values.mean(axis=0)) / values.std(axis=0, ddof=1)).ravel()
        path = runs.leaf_of(int(columns[0]))

        # The distribution function; estimated means and deviations only make it nearer.
        distance, p_value = kstest(values, "norm")[:2]
        if p_value < alarm:
            finding = (
                f"the distribution function of the noise in {path} is {distance:.3g} from that of"
                f" the normal distribution (p = {p_value:.1g})"
            )
            return StepCheck("normal noise", "failed", finding)
        smallest = min(smallest, float(p_value))

        # The largest of all values: bounded noise, or heavy tails.
        largest = float(np.abs(values).max())
        log_below = values.size * math.log1p(-2 * norm.sf(largest))
        if log_below < math.log(alarm) or -math.expm1(log_below) < alarm:
            finding = (
                f"the largest of {values.size:,} values of the noise in {path} is"
                f" {largest:.3g} standard deviations"
            )
            return StepCheck("normal noise", "failed", finding)
    finding = f"the least p-value of its distribution is {smallest:.2g}"
    return StepCheck("normal noise", "passed", finding)


def _choose_coordinates(
    runs: _Runs, noisy: npt.NDArray[np.bool_], rng: np.random.Generator
) -> npt.NDArray[np.intp]:
    """Returns coordinates with noise: the first of every leaf, and random ones."""
    edges = np.cumsum([0, *runs.widths])
    each = max(1, _NUM_CORRELATED // (2 * len(runs.widths)))
    first = [
        start + np.flatnonzero(noisy[start:stop])[:each]
        for start, stop in itertools.pairwise(edges)
    ]
    chosen = np.concatenate(first)[:_NUM_CORRELATED]
    rest = np.setdiff1d(np.flatnonzero(noisy), chosen)
    number = min(rest.size, _NUM_CORRELATED - chosen.size)
    return np.sort(np.concatenate([chosen, rng.choice(rest, number, replace=False)])).astype(int)


def _check_independent(
    runs: _Runs, base: Array, columns: npt.NDArray[np.intp], noisy: npt.NDArray[np.bool_]
) -> StepCheck:
    """Tests correlations of coordinates and of their squares, and looks for equal noise."""
    name = "independent noise"

    # The same noise twice, up to its sign, in all coordinates: differences of four pairs of runs.
    every = np.flatnonzero(noisy)
    differences = base[:8:2][:, every] - base[1:8:2][:, every]
    scale = differences.std() * 1e-4
    codes = np.round(np.abs(differences).T / scale).astype(np.int64)
    _, index, counts = np.unique(codes, axis=0, return_index=True, return_counts=True)
    if (counts > 1).any():
        first = int(index[np.argmax(counts > 1)])
        twin = int(np.flatnonzero((codes == codes[first]).all(axis=1))[1])
        places = runs.leaf_of(int(every[first])), runs.leaf_of(int(every[twin]))
        finding = f"one number in {places[0]} and one in {places[1]} have the same noise"
        return StepCheck(name, "failed", finding)

    # Correlations, of the noise and of its square.
    if len(columns) < 2:
        return StepCheck(name, "passed", "there is one number only")
    values = base[:, columns]
    limit = _largest_correlation(len(values), len(columns) * (len(columns) - 1) // 2)
    largest = 0.0
    centred = values - values.mean(axis=0)
    for power, factor in ((1, 1.0), (2, 2.0)):  # squares have heavier tails: twice the limit
        powers = centred**power
        powers -= powers.mean(axis=0)
        powers /= np.linalg.norm(powers, axis=0)
        table = powers.T @ powers
        np.fill_diagonal(table, 0.0)
        one, other = np.unravel_index(np.argmax(np.abs(table)), table.shape)
        value = float(table[one, other])
        if abs(value) > factor * limit:
            what = "the noise" if power == 1 else "the squares of the noise"
            finding = (
                f"{what} in {runs.leaf_of(int(columns[one]))} and in"
                f" {runs.leaf_of(int(columns[other]))} have a correlation of {value:.3g}"
            )
            return StepCheck(name, "failed", finding)
        largest = max(largest, abs(value))
    finding = f"the largest correlation of two numbers is {largest:.2g}"
    return StepCheck(name, "passed", finding)


def _largest_correlation(num_runs: int, num_pairs: int) -> float:
    """Returns what a correlation of independent noise exceeds with the false-alarm probability.

    By Student's t, exact for one pair of normal variables, divided by the number of pairs.
    """
    quantile = t.isf(FALSE_ALARM / (4 * max(num_pairs, 1)), num_runs - 2)
    return float(quantile / math.sqrt(num_runs - 2 + quantile**2))


def _check_other_records(
    runs: _Runs,
    others: dict[str, Array],
    noisy: npt.NDArray[np.bool_],
    pooled: float,
    num_runs: int,
) -> StepCheck:
    """Compares the variance of the noise on other records with that on the records as given."""
    name, number, largest = "noise and records", int(noisy.sum()), 1.0
    alarm = FALSE_ALARM / (4 * max(len(others), 1))
    for batch, release in others.items():
        if not np.isfinite(release).all():
            continue
        variance = release[:, noisy].var(axis=0, ddof=1)
        runs_here = len(release) - 1

        # Of all numbers together (F test), and of each.
        ratio = float(variance.mean()) / pooled
        degrees = runs_here * number, (num_runs - 1) * number
        log_tail = min(f.logcdf(ratio, *degrees), f.logsf(ratio, *degrees))
        each = variance / pooled
        degrees = runs_here, (num_runs - 1) * number
        log_tails = np.minimum(f.logcdf(each, *degrees), f.logsf(each, *degrees))
        if log_tail < math.log(alarm) or log_tails.min() < math.log(alarm / number):
            one = int(np.argmin(log_tails))
            worst = ratio if log_tail < math.log(alarm) else float(each[one])
            finding = (
                f"the standard deviation of the noise is {math.sqrt(worst):.3g} times as large with"
                f" {batch}"
            )
            return StepCheck(name, "failed", finding)
        largest = max(largest, ratio, 1 / max(ratio, 1e-9))
    finding = (
        f"its standard deviation is the same for {len(others)} kinds of records, up to a factor of"
        f" {math.sqrt(largest):.3g} by chance"
    )
    return StepCheck(name, "passed", finding)


def _check_keys(base: Array, first: Array, again: Array, noisy: npt.NDArray[np.bool_]) -> StepCheck:
    if not np.array_equal(first, again):
        return StepCheck("keys", "failed", "the same key gives another release the second time")
    different = len(np.unique(base[:, noisy], axis=0))
    # Single 32-bit numbers coincide at times.
    if different < len(base) * (0.9 if noisy.sum() == 1 else 1):
        finding = f"{len(base):,} keys give {different:,} different releases only"
        return StepCheck("keys", "failed", finding)
    finding = f"{len(base):,} keys give different noise, and one key the same twice"
    return StepCheck("keys", "passed", finding)


# ---------------------------------------------------------------------------------------------
# Loops.


def _check_loop(
    runs: _Runs,
    keys: jax.Array,
    batches: dict[str, Records],
    changes: _Changes,
    noisy: npt.NDArray[np.bool_],
    columns: npt.NDArray[np.intp],
    allowed: _Allowed,
    pooled: float,
) -> Iterator[StepCheck]:
    """Checks the noise of consecutive steps, and what the state carries from one to the next.

    A release may depend on earlier ones, which is post-processing. So what is compared is the part
    of it that a linear regression on the same number of earlier releases leaves.
    """
    # Records that contribute nothing, if there are any, so that all that is seen is noise.
    name = _find_empty(runs, keys, batches, noisy, pooled)
    is_empty = name is not None
    name = name or "the records as given"
    release = runs.over_keys(keys, *[batches[name]] * _NUM_STEPS)[..., noisy]
    if not np.isfinite(release).all():
        yield StepCheck("steps", "failed", f"later releases are NaN or infinite, on {name}")
        return
    centred, number = release - release.mean(axis=0), len(keys)

    # Innovations: the residuals of each step's noise on that of the steps before it.
    coefficients = [np.zeros(0)]
    innovations = [centred[:, 0]]
    for step in range(1, _NUM_STEPS):
        before = centred[:, :step]
        products = np.einsum("rsd,rtd->st", before, before)
        shares = np.linalg.lstsq(
            products, np.einsum("rsd,rd->s", before, centred[:, step]), rcond=None
        )[0]
        coefficients.append(shares)
        innovations.append(centred[:, step] - np.einsum("s,rsd->rd", shares, before))

    # Their variance is that of the noise at least, and they are not correlated.
    yield _check_innovations(innovations, pooled, number, name, is_empty, columns, noisy)
    if not is_empty:
        finding = "no batch without contributions was found: give a null_record"
        yield StepCheck("state", "not decided", finding)
        return

    # Two neighbours in the first step, and the same empty batches after it.
    stds = [math.sqrt(max(float((one**2).mean()), 1e-300)) for one in innovations]
    worst = 0.0
    key, given = keys[:1], batches["the records as given"]
    largest = sorted(changes.found, key=lambda each: -np.linalg.norm(each.difference[noisy]))
    for change in largest[:_NUM_FOLLOWED]:
        follow = [batches[name]] * (_NUM_STEPS - 1)
        if {len(batch[0]) for batch in change.batches} != {len(given[0])}:
            continue
        pair = [runs.over_keys(key, batch, *follow)[0][:, noisy] for batch in change.batches]
        if not (np.isfinite(pair[0]).all() and np.isfinite(pair[1]).all()):
            continue
        difference = pair[0] - pair[1]
        parts = [
            (difference[step] - coefficients[step] @ difference[:step]) / stds[step]
            for step in range(_NUM_STEPS)
        ]
        distance = math.sqrt(sum(float(np.sum(part**2)) for part in parts))
        own = float(np.linalg.norm(parts[0]))
        rounding = change.rounding * _NUM_STEPS / stds[0]
        bound = max(own, change.allowed) * _STATE_SLACK + rounding
        worst = max(worst, distance / bound)
    finding = f"all releases together move by {worst:.3g} of what a record may move one"
    yield StepCheck("state", "failed" if worst > 1 else "passed", finding)


def _find_empty(
    runs: _Runs,
    keys: jax.Array,
    batches: dict[str, Records],
    noisy: npt.NDArray[np.bool_],
    pooled: float,
) -> str | None:
    """Returns the name of a batch that contributes nothing, so that its release is noise."""
    if "null records" in batches:
        return "null records"

    # Records of NaN, if they are as good as none or the mean of their release is zero; or none.
    block = keys[: runs.block]
    nan, none = (
        runs.over_keys(block, batches[name])[:, 0, noisy] if name in batches else None
        for name in ("records of NaN", "no records")
    )
    assert nan is not None
    if none is not None and np.isfinite(none).all():
        return "records of NaN" if np.array_equal(nan, none) else "no records"
    if not np.isfinite(nan).all():
        return None
    limit = norm.isf(FALSE_ALARM / (2 * nan.shape[1])) * math.sqrt(pooled / len(nan))
    changes = any(_is_float(leaf) for leaf in batches["records of NaN"])
    return "records of NaN" if changes and np.abs(nan.mean(axis=0)).max() < limit else None


def _check_innovations(
    innovations: list[Array],
    pooled: float,
    num_runs: int,
    batch: str,
    is_empty: bool,
    columns: npt.NDArray[np.intp],
    noisy: npt.NDArray[np.bool_],
) -> StepCheck:
    name = "steps"
    alarm = FALSE_ALARM / (4 * _NUM_STEPS)
    width = innovations[0].shape[1]
    for step, innovation in enumerate(innovations[1:], start=2):
        variance = (innovation**2).sum(axis=0) / (num_runs - 1)
        ratio = float(variance.mean()) / pooled
        degrees = (num_runs - _NUM_STEPS) * width
        each = chi2.logcdf((num_runs - _NUM_STEPS) * variance / pooled, num_runs - _NUM_STEPS)
        whole = f.logcdf(ratio * (1 + 4 / num_runs), degrees, degrees)
        if whole < math.log(alarm) or each.min() < math.log(alarm / width):
            one = (
                ratio if whole < math.log(alarm) else float(variance[int(np.argmin(each))]) / pooled
            )
            finding = (
                f"given the releases before it, the noise of step {step} has {math.sqrt(one):.3g}"
                f" times the standard deviation of the first, on {batch}"
            )
            return StepCheck(name, "failed", finding)
    if not is_empty:
        finding = "new noise in each, as far as can be seen with records that contribute"
        return StepCheck(name, "passed", finding)

    # Correlations of all coordinates of one step with all of another.
    chosen = np.searchsorted(np.flatnonzero(noisy), columns)
    parts = [one[:, chosen] / (one[:, chosen].std(axis=0) + 1e-300) for one in innovations]
    limit = _largest_correlation(num_runs, _NUM_STEPS * len(chosen) ** 2)
    for later in range(1, _NUM_STEPS):
        for earlier in range(later):
            largest = float(np.abs(parts[later].T @ parts[earlier]).max()) / num_runs
            if largest > limit * 1.05:
                finding = (
                    f"noise of steps {earlier + 1} and {later + 1} has a correlation of"
                    f" {largest:.3g}"
                )
                return StepCheck(name, "failed", finding)
    return StepCheck(name, "passed", f"the noise of {_NUM_STEPS} steps is independent, on {batch}")
