"""Strategies of correlated noise: matrix factorisation mechanisms for sums over many steps.

With a strategy C, lower triangular, the noise of the steps is C^-1 z for independent z. What is
released is post-processing of C G + z, G the sums of the steps, so privacy follows from the L2
sensitivity of C under the participation of a record, and the noise of prefix sums, which is what an
optimiser adds up, is A C^-1 z with the lower triangular matrix A of ones.
"""

import abc
import dataclasses
import functools
import math
from dataclasses import KW_ONLY, dataclass
from typing import Literal, Self

import jax
import jax.numpy as jnp
import numpy as np
import numpy.typing as npt
from jax.typing import DTypeLike

from dpjax._checks import as_count, check, check_choice, check_delta
from dpjax._random import normal
from dpjax._typing import PRNGKey, PyTree
from dpjax.gradients.clipping import accumulator
from dpjax.transforms import factorization

Array = npt.NDArray[np.float64]

# Up to this many buffers are added one by one, which XLA fuses with what follows.
_FEW_BUFFERS = 4


@dataclass(frozen=True)
class CorrelationReport:
    """Error of prefix sums, sensitivity and memory of a strategy of correlated noise.

    Errors are standard deviations for independent noise of standard deviation 1 over the
    sensitivity: sensitivity times root mean square, or largest, row norm of A C^-1.

    Attributes:
      strategy: the strategy.
      num_steps: number of steps.
      separation: of the steps in which a record takes part.
      participations: the most steps in which a record takes part.
      sensitivity: L2 sensitivity of C.
      is_exact: whether ``sensitivity`` is exact, rather than an upper bound.
      rmse: root mean square error of the prefix sums.
      max_error: the largest error of a prefix sum.
      independent_rmse: that of independent noise.
      lower_bound: no factorisation has a smaller ``rmse``: that of the optimum up to 256 steps,
        else the bound of singular values.
      memory: buffers in the optimiser's state, in copies of the parameters.
    """

    strategy: "Correlation"
    num_steps: int
    separation: int
    participations: int
    sensitivity: float
    is_exact: bool
    rmse: float
    max_error: float
    independent_rmse: float
    lower_bound: float
    memory: int

    @property
    def excess(self) -> float:
        """How much ``rmse`` exceeds the lower bound, as a share of it."""
        return self.rmse / self.lower_bound - 1

    def __str__(self) -> str:
        kind = "exact" if self.is_exact else "upper bound"
        rows = [
            ("steps", f"{self.num_steps:,}"),
            ("steps of a record", f"{self.participations:,}, {self.separation:,} apart"),
            ("sensitivity", f"{self.sensitivity:.6g} ({kind})"),
            ("RMSE of prefix sums", f"{self.rmse:.6g}"),
            ("largest error", f"{self.max_error:.6g}"),
            ("RMSE, independent noise", f"{self.independent_rmse:.6g}"),
            ("RMSE, lower bound", f"{self.lower_bound:.6g} (the RMSE is {self.excess:.2%} above)"),
            ("memory", f"{self.memory:,} copies of the parameters"),
        ]
        width = max(len(name) for name, _ in rows)
        return "\n".join([str(self.strategy), *(f"  {name:{width}}  {v}" for name, v in rows)])


class Correlation(abc.ABC):
    """Base class of strategies: a lower triangular matrix C with ones as first entries.

    A strategy is a frozen dataclass of numbers. Its noise is made step by step from as few buffers
    as ``num_buffers`` says, each like the parameters. All numbers are those of float32, with which
    the noise is computed, so sensitivities are of the matrix that is used.

    Attributes:
      num_steps: planned steps: noise past them is NaN. ``None`` for strategies that do not depend
        on it, and until a mechanism sets it.
    """

    num_steps: int | None

    def __post_init__(self) -> None:
        for name in ("num_steps", "separation"):
            if getattr(self, name, None) is not None:
                object.__setattr__(self, name, as_count(name, getattr(self, name)))

    def plan(self, num_steps: int, *, separation: int) -> Self:
        """Returns the strategy for ``num_steps``, unless it was planned for a number of steps.

        Args:
          num_steps: number of steps.
          separation: of the steps in which a record takes part.
        """
        num_steps, separation = as_count("num_steps", num_steps), as_count("separation", separation)
        if self.num_steps is not None:
            return self
        changes = {"num_steps": num_steps}
        if getattr(self, "separation", separation) is None:
            changes["separation"] = separation
        return dataclasses.replace(self, **changes)  # type: ignore[type-var]

    @property
    @abc.abstractmethod
    def num_buffers(self) -> int:
        """Number of buffers in the optimiser's state, in copies of the parameters."""

    @property
    def bandwidth(self) -> int | None:
        """Number of nonzero diagonals of C; ``None`` if all may be nonzero."""
        return None

    def strategy_matrix(self, num_steps: int) -> Array:
        """Returns C, or of a Toeplitz matrix its first column.

        Args:
          num_steps: number of rows.
        """
        return self._strategy_matrix(self._as_num_steps(num_steps))

    def noise_matrix(self, num_steps: int) -> Array:
        """Returns C^-1, which the independent noise is multiplied by, or its first column.

        Args:
          num_steps: number of rows.
        """
        return self._noise_matrix(self._as_num_steps(num_steps))

    @abc.abstractmethod
    def _strategy_matrix(self, num_steps: int) -> Array:
        """Returns C, or its first column."""

    @abc.abstractmethod
    def _noise_matrix(self, num_steps: int) -> Array:
        """Returns C^-1, or its first column."""

    @abc.abstractmethod
    def _row(self, step: jax.Array) -> tuple[jax.Array | float, jax.Array]:
        """Returns the factors of the step's own independent noise and of the buffers.

        Args:
          step: number of the step, from 0.
        """

    @abc.abstractmethod
    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        """Returns the buffers of the next step.

        Args:
          buffers: ``(num_buffers, ...)``.
          white: the independent noise of the step.
          noise: the correlated noise of the step.
          step: number of the step, from 0.
        """

    def init(self, params: PyTree) -> PyTree:
        """Returns the buffers before the first step, of zeros.

        Args:
          params: a tree of arrays.
        """
        self._check_planned()

        def zeros(leaf: jax.Array) -> jax.Array:
            return jnp.zeros((self.num_buffers, *jnp.shape(leaf)), accumulator(jnp.asarray(leaf)))

        return jax.tree.map(zeros, params)

    @property
    def needs_num_steps(self) -> bool:
        """Whether the matrix depends on the number of steps."""
        return False

    def draw(
        self, key: PRNGKey, leaf: jax.Array, buffers: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the noise of one step for one array, and the buffers of the next step.

        Args:
          key: a JAX key, another one for each step and array.
          leaf: the array, of whose shape the noise is, in float32 or wider.
          buffers: of the array, from ``init`` or the step before.
          step: number of the step, from 0.
        """
        # Drawn once: as a branch XLA cannot fuse it, and so draw it again for the buffers.
        white = _draw_once(key, step, jnp.shape(leaf), accumulator(leaf))
        return self.solve(white, buffers, step)

    def multiply(
        self, value: jax.Array, buffers: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the step's entry of C G for the values G of the steps, and the next buffers.

        Args:
          value: of the step, an array.
          buffers: of the array, from ``init`` or the step before.
          step: number of the step, from 0.

        >>> strategy, one = LambdaCGD(0.5), jnp.ones(())
        >>> first, buffers = strategy.multiply(one, strategy.init(one), jnp.asarray(0))
        >>> first.item(), strategy.multiply(one, buffers, jnp.asarray(1))[0].item()
        (1.0, 1.5)
        """
        own, past = self._own_and_past(buffers, step, value.dtype)
        white = (value - past) / own
        return white, self._push(buffers, white, value, step)

    def solve(
        self, value: jax.Array, buffers: jax.Array, step: jax.Array
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the step's entry of C^-1 Y for the values Y of the steps, and the next buffers.

        Args:
          value: of the step, an array.
          buffers: of the array, from ``init`` or the step before.
          step: number of the step, from 0.

        >>> strategy, start = LambdaCGD(0.5), jnp.zeros(())
        >>> _, buffers = strategy.solve(jnp.ones(()), strategy.init(start), jnp.asarray(0))
        >>> strategy.solve(jnp.asarray(1.5), buffers, jnp.asarray(1))[0].item()
        1.0
        """
        own, past = self._own_and_past(buffers, step, value.dtype)
        solution = own * value + past
        return solution, self._push(buffers, value, solution, step)

    def _own_and_past(
        self, buffers: jax.Array, step: jax.Array, dtype: DTypeLike
    ) -> tuple[jax.Array, jax.Array]:
        """Returns the factor of the step's own value, and what is added to it from the buffers."""
        own, factors = self._row(step)
        factors = jnp.asarray(factors, buffers.dtype)
        if self.num_buffers <= _FEW_BUFFERS:
            past = sum(factors[i] * buffers[i] for i in range(self.num_buffers))
        else:
            past = jnp.tensordot(factors, buffers, 1, precision=jax.lax.Precision.HIGHEST)
        return jnp.asarray(own, dtype), jnp.asarray(past, dtype)

    def sensitivity(
        self, num_steps: int, *, separation: int | None = None, fixed: bool = True
    ) -> tuple[float, bool]:
        """Returns the L2 sensitivity of C, for contributions of norm 1, and whether it is exact.

        Args:
          num_steps: number of steps.
          separation: a record takes part in steps this far apart; by default once.
          fixed: whether they are exactly this far apart, as in groups that take turns, or that or
            more.

        Returns:
          The sensitivity, exact or an upper bound, and which of the two.

        >>> LambdaCGD(0.5).sensitivity(100, separation=50)
        (1.632..., True)
        """
        num_steps = self._as_num_steps(num_steps)
        separation = num_steps if separation is None else as_count("separation", separation)
        matrix = self.strategy_matrix(num_steps)
        if matrix.ndim == 1:
            return factorization.toeplitz_sensitivity(matrix, separation)
        return factorization.matrix_sensitivity(matrix, separation, fixed)

    def report(
        self, num_steps: int | None = None, *, separation: int | None = None
    ) -> CorrelationReport:
        """Returns error, sensitivity, distance from the optimum and memory.

        Args:
          num_steps: by default those planned.
          separation: a record takes part in steps this far apart; by default once.

        >>> print(LambdaCGD(0.9).report(128))
        LambdaCGD(decay=0.9, num_steps=128)
          steps                    128
          steps of a record        1, 128 apart
          sensitivity              2.29416 (exact)
          RMSE of prefix sums      2.93347
          largest error            3.4565
          RMSE, independent noise  8.03119
          RMSE, lower bound        2.311 (the RMSE is 26.94% above)
          memory                   1 copies of the parameters
        """
        num_steps = self.num_steps if num_steps is None else num_steps
        check(num_steps is not None, "num_steps", num_steps, "given, as the strategy has none")
        num_steps = as_count("num_steps", num_steps)
        separation = num_steps if separation is None else as_count("separation", separation)
        planned = self.plan(num_steps, separation=separation)
        sensitivity, is_exact = planned.sensitivity(num_steps, separation=separation)
        errors = factorization.squared_errors(planned.noise_matrix(num_steps))
        participations = factorization.num_participations(num_steps, separation)
        bound = factorization.spectral_bound(num_steps, separation)
        if num_steps <= factorization.LARGEST_OPTIMUM:
            bound = factorization.optimize_dense(num_steps, separation)[2]
        return CorrelationReport(
            planned,
            num_steps,
            separation,
            participations,
            sensitivity,
            is_exact,
            rmse=sensitivity * math.sqrt(errors.mean()),
            max_error=sensitivity * math.sqrt(errors.max()),
            independent_rmse=math.sqrt(participations * (num_steps + 1) / 2),
            lower_bound=bound,
            memory=planned.num_buffers,
        )

    def _as_num_steps(self, num_steps: int) -> int:
        """Returns ``num_steps``; raises ValueError for more than planned, or without a plan."""
        num_steps, planned = as_count("num_steps", num_steps), self.num_steps
        self._check_planned()
        allowed = f"at most the {planned} steps of {self}"
        check(planned is None or num_steps <= planned, "num_steps", num_steps, allowed)
        return num_steps

    def _check_planned(self) -> None:
        if self.num_steps is None and self.needs_num_steps:
            raise ValueError(
                f"correlation must have num_steps, which its coefficients depend on, got {self}:"
                f" {type(self).__name__}(..., num_steps=1000), or a mechanism with correlation=,"
                " which sets it"
            )


@dataclass(frozen=True)
class BandedToeplitz(Correlation):
    """Banded Toeplitz matrix: the noise of a step cancels part of that of the ``bands - 1`` before.

    Attributes:
      bands: number of nonzero diagonals, at least 2. With `CyclicPoissonSampling` of as many groups
        or more it is amplified by sampling.
      coefficients: ``"optimized"`` for the least RMSE in a single pass, or ``"square_root"``, those
        of the square root of the matrix of prefix sums.
      num_steps: planned steps, which optimised coefficients depend on; a mechanism sets it.

    Source: Choquette-Choo et al. (2023), "(Amplified) banded matrix factorization"; McKenna (2024)
    for Toeplitz matrices.

    >>> report = BandedToeplitz(8).report(512)
    >>> round(report.rmse, 2), report.memory
    (6.15, 7)
    """

    bands: int
    _: KW_ONLY
    coefficients: Literal["optimized", "square_root"] = "optimized"
    num_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bands", as_count("bands", self.bands, 2))
        check_choice("coefficients", self.coefficients, ("optimized", "square_root"))

    @property
    def bandwidth(self) -> int:
        """``bands``."""
        return self.bands

    @property
    def needs_num_steps(self) -> bool:
        """Whether coefficients are optimised."""
        return self.coefficients == "optimized"

    @property
    def num_buffers(self) -> int:
        """``bands - 1``: the buffers hold the correlated noise of as many steps."""
        return self.bands - 1

    @property
    def _taps(self) -> Array:
        """The nonzero coefficients of C; with a single step only the first matters."""
        if self.coefficients == "square_root":
            return _as_float32(factorization.square_root(self.bands))
        assert self.num_steps is not None
        taps = factorization.optimize_banded(self.num_steps, self.bands)
        return _as_float32(np.append(taps, np.zeros(self.bands - len(taps))))

    def _strategy_matrix(self, num_steps: int) -> Array:
        return _resize(self._taps, num_steps)

    def _noise_matrix(self, num_steps: int) -> Array:
        return factorization.invert(self._taps, num_steps)

    def _row(self, step: jax.Array) -> tuple[float, jax.Array]:
        return 1.0, -_of_slots(self._taps[1:], step)

    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        return _set_slot(buffers, noise, step)


@dataclass(frozen=True)
class BLT(Correlation):
    """Buffered linear Toeplitz matrix: coefficients are sums of a few geometric sequences.

    They are optimised for the number of steps and the separation of a record's steps.

    Attributes:
      buffers: number of geometric sequences, and of copies of the parameters in the state.
      error: what is least: ``"rmse"`` or ``"max"``, the error of the worst prefix sum.
      num_steps: planned steps; a mechanism sets it.
      separation: of the steps in which a record takes part; a mechanism sets it, by default once.

    Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024), "Efficient and near-optimal
    noise generation for streaming differential privacy"; McMahan, Xu & Zhang (2024) for several
    participations.

    >>> round(BLT(3).report(1000).rmse, 2)
    3.05
    """

    buffers: int
    _: KW_ONLY
    error: Literal["rmse", "max"] = "rmse"
    num_steps: int | None = None
    separation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "buffers", as_count("buffers", self.buffers))
        check(self.buffers <= 10, "buffers", self.buffers, "at most 10")
        check_choice("error", self.error, ("rmse", "max"))

    @property
    def needs_num_steps(self) -> bool:
        """True: scales and decays are optimised."""
        return True

    @property
    def num_buffers(self) -> int:
        """``buffers``, one for each geometric sequence."""
        return self.buffers

    @property
    def _scales_and_decays(self) -> tuple[Array, Array]:
        assert self.num_steps is not None
        separation = self.num_steps if self.separation is None else self.separation
        found = factorization.optimize_blt(
            self.num_steps, self.buffers, min(separation, self.num_steps), self.error
        )
        return _as_float32(np.array(found[0])), _as_float32(np.array(found[1]))

    def _strategy_matrix(self, num_steps: int) -> Array:
        scales, decays = self._scales_and_decays
        return np.append(1.0, scales @ decays[:, None] ** np.arange(num_steps - 1))

    def _noise_matrix(self, num_steps: int) -> Array:
        return factorization.invert_blt(*self._scales_and_decays, num_steps)

    def _row(self, step: jax.Array) -> tuple[float, jax.Array]:
        return 1.0, -jnp.asarray(self._scales_and_decays[0], jnp.float32)

    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        decays = self._scales_and_decays[1].reshape(-1, *[1] * noise.ndim)
        return jnp.asarray(decays, buffers.dtype) * buffers + noise.astype(buffers.dtype)


@dataclass(frozen=True)
class InverseSquareRoot(Correlation):
    """Banded inverse square root (BISR): C^-1 has the first coefficients of (1 - x)^(1/2).

    Attributes:
      bands: number of nonzero diagonals of C^-1, at least 2; C itself is not banded.
      num_steps: planned steps, or ``None`` for any number.

    Source: Kalinin, McKenna, Upadhyay & Lampert (2025), "Back to square roots".

    >>> round(InverseSquareRoot(4).report(512, separation=64).rmse, 3)
    18.422
    """

    bands: int
    _: KW_ONLY
    num_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "bands", as_count("bands", self.bands, 2))

    @property
    def num_buffers(self) -> int:
        """``bands - 1``: the buffers hold the independent noise of as many steps."""
        return self.bands - 1

    @property
    def _inverse(self) -> Array:
        return _as_float32(factorization.inverse_square_root(self.bands))

    def _strategy_matrix(self, num_steps: int) -> Array:
        return factorization.invert(self._inverse, num_steps)

    def _noise_matrix(self, num_steps: int) -> Array:
        return _resize(self._inverse, num_steps)

    def _row(self, step: jax.Array) -> tuple[float, jax.Array]:
        return 1.0, _of_slots(self._inverse[1:], step)

    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        return _set_slot(buffers, white, step)


@dataclass(frozen=True)
class LambdaCGD(Correlation):
    """The noise of step t is z_t - decay z_(t - 1): C has coefficients decay^t.

    Attributes:
      decay: in (0, 1); the nearer to 1, the more passes over few steps it suits.
      num_steps: planned steps, or ``None`` for any number.

    Source: Kalinin, Choquette-Choo et al. (2026), "DP-λCGD".

    >>> round(LambdaCGD(0.933).report(512, separation=64).rmse, 3)
    11.636
    """

    decay: float
    _: KW_ONLY
    num_steps: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check_delta(self.decay, "decay")

    @property
    def num_buffers(self) -> int:
        """One, which holds the independent noise of the last step."""
        return 1

    @property
    def _inverse(self) -> Array:
        return _as_float32(np.array([1.0, -self.decay]))

    def _strategy_matrix(self, num_steps: int) -> Array:
        return (-self._inverse[1]) ** np.arange(num_steps)

    def _noise_matrix(self, num_steps: int) -> Array:
        return _resize(self._inverse, num_steps)

    def _row(self, step: jax.Array) -> tuple[float, jax.Array]:
        return 1.0, jnp.asarray(self._inverse[1:], jnp.float32)

    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        return white[None].astype(buffers.dtype)


@dataclass(frozen=True)
class Dense(Correlation):
    """Dense matrix factorisation of least RMSE, for at most 512 steps.

    It is the optimum for records that take part in steps exactly ``separation`` apart: of all
    matrices, up to the precision that ``report`` shows.

    Attributes:
      num_steps: planned steps; a mechanism sets it.
      separation: of the steps in which a record takes part; a mechanism sets it, by default once.

    Source: Henzinger, Upadhyay & Upadhyay (2023); Choquette-Choo et al. (2023), Section 3.

    >>> report = Dense(16).report()
    >>> round(report.rmse, 4), report.excess < 1e-5
    (1.6894, True)
    >>> report = Dense().report(64, separation=8)
    >>> round(report.rmse, 4), report.excess < 1e-5
    (7.0085, True)
    """

    num_steps: int | None = None
    _: KW_ONLY
    separation: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        check((self.num_steps or 2) in range(2, 513), "num_steps", self.num_steps, "2 to 512")

    @property
    def needs_num_steps(self) -> bool:
        """True: it is a matrix of that size."""
        return True

    @property
    def num_buffers(self) -> int:
        """``num_steps - 1``: the buffers hold the independent noise of all steps but the last."""
        assert self.num_steps is not None
        return self.num_steps - 1

    @functools.cached_property
    def _inverse(self) -> Array:
        assert self.num_steps is not None
        separation = self.num_steps if self.separation is None else self.separation
        factor, _, _ = factorization.optimize_dense(self.num_steps, separation)
        return _as_float32(np.tril(np.linalg.inv(factor)))

    def _strategy_matrix(self, num_steps: int) -> Array:
        return np.tril(np.linalg.inv(self._inverse))[:num_steps, :num_steps]

    def _noise_matrix(self, num_steps: int) -> Array:
        return self._inverse[:num_steps, :num_steps]

    def _row(self, step: jax.Array) -> tuple[jax.Array, jax.Array]:
        rows = jnp.asarray(self._inverse, jnp.float32)
        factors = rows[jnp.minimum(step, self.num_buffers)]
        return factors[jnp.minimum(step, self.num_buffers)], factors[:-1]

    def _push(
        self, buffers: jax.Array, white: jax.Array, noise: jax.Array, step: jax.Array
    ) -> jax.Array:
        return buffers.at[step].set(white.astype(buffers.dtype), mode="drop")


@functools.partial(jax.jit, static_argnums=(2, 3))
def _draw_once(
    key: PRNGKey, step: jax.Array, shape: tuple[int, ...], dtype: DTypeLike
) -> jax.Array:
    return jax.lax.cond(
        step >= 0, lambda: normal(key, shape, dtype), lambda: jnp.zeros(shape, dtype)
    )


def _as_float32(numbers: Array) -> Array:
    return np.asarray(numbers, np.float32).astype(np.float64)


def _resize(coefficients: Array, count: int) -> Array:
    """The coefficients, cut or padded with zeros to ``count``."""
    padded = np.zeros(max(count, len(coefficients)))
    padded[: len(coefficients)] = coefficients
    return padded[:count]


def _of_slots(coefficients: Array, step: jax.Array) -> jax.Array:
    """The coefficients of lags 1, 2, ... by the slots that hold the values of these lags."""
    count = len(coefficients)
    lags = (step - 1 - jnp.arange(count, dtype=jnp.int32)) % count
    return jnp.asarray(coefficients, jnp.float32)[lags]


def _set_slot(buffers: jax.Array, value: jax.Array, step: jax.Array) -> jax.Array:
    """The buffers with the oldest of them replaced."""
    return buffers.at[step % len(buffers)].set(value.astype(buffers.dtype))
