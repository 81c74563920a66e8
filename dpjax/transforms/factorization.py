"""Numerics of matrix factorisations A = B C of prefix sums: coefficients, sensitivity and error.

A is the lower triangular matrix of ones. Noise C^-1 z on the sums of all steps is post-processing
of C G + z, whose L2 sensitivity is a norm of columns of C; the noise of prefix sums is A C^-1 z.
"""

import functools
import math
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]

# The largest matrix of which the optimum is computed for a report.
LARGEST_OPTIMUM = 256


def square_root(count: int) -> Array:
    """Returns coefficients of the square root of prefix sums: of (1 - x)^(-1/2), 1, 1/2, 3/8, ...

    >>> square_root(3).tolist()
    [1.0, 0.5, 0.375]
    """
    steps = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (2 * steps - 1) / (2 * steps)]))


def inverse_square_root(count: int) -> Array:
    """Returns coefficients of its inverse: of (1 - x)^(1/2), 1, -1/2, -1/8, ...

    >>> inverse_square_root(3).tolist()
    [1.0, -0.5, -0.125]
    """
    steps = np.arange(1, count)
    return np.cumprod(np.concatenate([[1.0], (2 * steps - 3) / (2 * steps)]))


def invert(coefficients: Array, count: int) -> Array:
    """Returns the first coefficients of one over a power series that starts with 1.

    >>> invert(np.array([1.0, -0.5]), 3).tolist()
    [1.0, 0.5, 0.25]
    """
    from scipy.signal import lfilter

    impulse = np.zeros(count)
    impulse[0] = 1.0
    return np.asarray(lfilter([1.0], coefficients[:count], impulse))


def num_participations(num_steps: int, separation: int) -> int:
    """Returns the most steps, ``separation`` or more apart, among ``num_steps``."""
    return -(-num_steps // separation)


def toeplitz_sensitivity(coefficients: Array, separation: int) -> tuple[float, bool]:
    """Returns the L2 sensitivity of a lower triangular Toeplitz matrix, and whether it is exact.

    A record takes part in steps that are ``separation`` or more apart.

    Args:
      coefficients: the first column, ``(num_steps,)``.
      separation: in steps, at least 1.

    Returns:
      The largest norm of a sum of columns, each times a number in [-1, 1]. Exact where a record
      takes part once, where columns do not overlap, and where coefficients are not negative and do
      not rise; else the value of the least such coefficients above, an upper bound.

    Source: Kalinin & Lampert (2024), Theorem 2, for coefficients that do not rise.

    >>> toeplitz_sensitivity(np.array([1.0, 0.5, 0.8]), 1)[1]
    False
    """
    num_steps = len(coefficients)
    width = int(np.flatnonzero(coefficients).max()) + 1
    rises = bool(np.any(np.diff(coefficients) > 0) or np.any(coefficients < 0))
    is_exact = not rises or min(width, num_steps) <= separation
    if not is_exact:
        coefficients = np.maximum.accumulate(np.abs(coefficients)[::-1])[::-1]
    total = np.zeros(num_steps)
    if min(width, num_steps) <= separation:  # columns without overlap, whatever the signs
        squares = np.cumsum(coefficients**2)
        starts = range(0, num_steps, separation)
        return math.sqrt(sum(squares[num_steps - start - 1] for start in starts)), True
    for start in range(0, num_steps, separation):
        total[start:] += coefficients[: num_steps - start]
    return float(np.linalg.norm(total)), is_exact


def matrix_sensitivity(matrix: Array, separation: int, fixed: bool) -> tuple[float, bool]:
    """Returns the L2 sensitivity of a matrix, and whether it is exact.

    Args:
      matrix: C, ``(num_steps, num_steps)``.
      separation: of the steps in which a record takes part.
      fixed: whether these are exactly ``separation`` apart, rather than that or more.

    Returns:
      With ``fixed`` the largest of ``separation`` sums of entries of |C^T C|, exact where C^T C has
      no negative entry. Else an upper bound by two dynamic programmes: for each step the heaviest
      pattern in its row of |C^T C|, and the heaviest pattern of these; exact where a record takes
      part once.

    Source: Choquette-Choo et al. (2023), "Multi-epoch matrix factorization mechanisms", Theorem 2.
    """
    gram = matrix.T @ matrix
    num_steps = len(gram)
    is_once = num_steps <= separation
    if is_once:
        return math.sqrt(gram.diagonal().max()), True
    sizes = np.abs(gram)
    if fixed:
        patterns = [np.arange(start, num_steps, separation) for start in range(separation)]
        squares = [sizes[np.ix_(steps, steps)].sum() for steps in patterns]
        largest = patterns[int(np.argmax(squares))]
        # The pattern that attains it has no negative entry: contributions that are equal.
        return math.sqrt(max(squares)), bool((gram[np.ix_(largest, largest)] >= 0).all())
    rows = np.array([_heaviest_pattern(row, separation) for row in sizes])
    return math.sqrt(_heaviest_pattern(rows, separation)), False


def _heaviest_pattern(weights: Array, separation: int) -> float:
    """Returns the largest sum of weights at positions ``separation`` or more apart."""
    best = np.zeros(len(weights) + separation)
    for i, weight in enumerate(weights):
        best[i + separation] = max(best[i + separation - 1], best[i] + weight)
    return float(best[-1])


def squared_errors(noise_matrix: Array) -> Array:
    """Returns the squared row norms of A C^-1, ``(num_steps,)``.

    Args:
      noise_matrix: C^-1, or of a Toeplitz matrix its first column.
    """
    if noise_matrix.ndim == 1:
        return np.cumsum(np.cumsum(noise_matrix) ** 2)
    return np.sum(np.cumsum(noise_matrix, axis=0) ** 2, axis=1)


@functools.cache
def optimize_banded(num_steps: int, bands: int) -> tuple[float, ...]:
    """Returns coefficients 1, c_1, ... of the banded Toeplitz matrix of least RMSE in one pass.

    Minimises ||c||^2 times the mean square of the rows of A C^-1, by L-BFGS from the square root.

    Source: McKenna (2024), "Scaling up the banded matrix factorization mechanism".
    """
    from scipy.optimize import minimize
    from scipy.signal import fftconvolve, lfilter

    bands = min(bands, num_steps)
    weights = np.arange(num_steps, 0, -1) / num_steps

    def log_loss(tail: Array) -> tuple[float, Array]:
        c = np.concatenate([[1.0], tail])
        with np.errstate(over="ignore", invalid="ignore"):
            prefix = lfilter([1.0], c, np.ones(num_steps))
            error = float(weights @ prefix**2)
            if not math.isfinite(error):
                return math.inf, np.zeros_like(tail)
            # The derivative of prefix by c_j is -shift_j(prefix / c).
            quotient = lfilter([1.0], c, prefix)
            correlated = fftconvolve(weights * prefix, quotient[::-1])[
                num_steps : num_steps + bands - 1
            ]
        gradient = -2 * correlated / error + 2 * tail / (c @ c)
        return math.log(error) + math.log(c @ c), gradient

    start = square_root(bands)[1:]
    options: Any = {"maxiter": 5000, "ftol": 1e-15, "gtol": 1e-9}
    loss: Any = log_loss
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return (1.0, *found.x.tolist())


@functools.cache
def optimize_blt(
    num_steps: int, buffers: int, separation: int, error: str
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Returns scales and decays of the buffered linear Toeplitz matrix of least error.

    C has coefficients 1 and sum_j s_j d_j^(t - 1). As a generating function it is the product of
    (1 - e_j x) / (1 - d_j x), so C^-1 is of the same form with decays e_j; with
    d_1 > e_1 > d_2 > ... > 0 all scales are positive. The distances to 1 are minimised over.

    Args:
      num_steps: of the error.
      buffers: number of terms.
      separation: of the steps in which a record takes part.
      error: ``"rmse"`` or ``"max"``.

    Source: Dvijotham, McMahan, Pillutla, Steinke & Thakurta (2024); McMahan, Xu & Zhang (2024).
    """
    from scipy.optimize import minimize

    least = 1e-3 / num_steps

    def decays_of(logs: Array) -> tuple[Array, Array]:
        # Distances between decays and to 0 and 1: not all equal, and none zero.
        shares = np.exp(logs - logs.max())
        shares = shares / (math.exp(-logs.max()) + shares.sum())
        gaps = np.cumsum(least + (1 - 2 * buffers * least) * shares)
        return 1 - gaps[::2], 1 - gaps[1::2]

    def log_loss(logs: Array) -> float:
        decays, inverse = decays_of(logs)
        scales, inverse_scales = blt_scales(decays, inverse), blt_scales(inverse, decays)
        squared = blt_squared_sensitivity(scales, decays, num_steps, separation)
        # Prefix sums of the inverse: a constant and geometric sequences.
        factors = np.append(
            -inverse_scales / (1 - inverse), 1 + (inverse_scales / (1 - inverse)).sum()
        )
        rates = np.multiply.outer(np.append(inverse, 1.0), np.append(inverse, 1.0))
        sums = _geometric(rates, num_steps) if error == "max" else _mean_geometric(rates, num_steps)
        return math.log(squared) + math.log(factors @ sums @ factors)

    # From distances spread evenly over the scales up to num_steps.
    ends = np.geomspace(0.5 / num_steps, 0.5, 2 * buffers)
    logs = np.log(np.diff(ends, prepend=0.0) / (1 - ends[-1]))
    for _ in range(3):
        simplex: Any = {
            "maxiter": 4000,
            "maxfev": 8000,
            "xatol": 1e-9,
            "fatol": 1e-14,
            "adaptive": True,
        }
        logs = minimize(log_loss, logs, method="Nelder-Mead", options=simplex).x
        logs = minimize(log_loss, logs, method="BFGS", jac="3-point", options={"gtol": 1e-10}).x
    decays, inverse = decays_of(logs)
    return tuple(blt_scales(decays, inverse).tolist()), tuple(decays.tolist())


def blt_scales(decays: Array, inverse: Array) -> Array:
    """Returns the scales of a BLT matrix from its decays and those of its inverse."""
    ratios = decays[:, None] - inverse
    others = decays[:, None] - decays + np.eye(len(decays))
    return np.asarray(np.prod(ratios, axis=1) / np.prod(others, axis=1))


def invert_blt(scales: Array, decays: Array, count: int) -> Array:
    """Returns the first coefficients of C^-1 of a BLT matrix.

    Its decays are the eigenvalues of diag(d) - sqrt(s) sqrt(s)^T: the buffers of the inverse.
    """
    roots = np.sqrt(scales)
    inverse_decays, vectors = np.linalg.eigh(np.diag(decays) - np.outer(roots, roots))
    powers, coefficients = np.arange(count - 1), np.zeros(count)
    coefficients[0] = 1.0
    for scale, decay in zip((roots @ vectors) ** 2, inverse_decays, strict=True):
        coefficients[1:] -= scale * decay**powers
    return coefficients


def blt_squared_sensitivity(scales: Array, decays: Array, num_steps: int, separation: int) -> float:
    """Returns the squared norm of the sum of columns ``separation`` apart, from the first one.

    In the steps after participation number j it is a sum of geometric sequences.
    """
    starts = np.arange(0, num_steps, separation)
    lengths = np.minimum(separation, num_steps - starts)
    products = np.multiply.outer(decays, decays)
    amplitude, total = np.zeros_like(scales), 0.0
    for length in lengths.tolist():
        total += (1 + amplitude.sum()) ** 2
        amplitude = amplitude * decays + scales
        total += amplitude @ _geometric(products, length - 1) @ amplitude
        amplitude = amplitude * decays ** (length - 1)
    return float(total)


def _geometric(rates: Array, count: int) -> Array:
    """Returns the sums of rates^t over t < count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = -np.expm1(count * np.log(rates)) / (1 - rates)
    return np.where(rates == 1, float(count), sums)


def _mean_geometric(rates: Array, count: int) -> Array:
    """Returns the sums of (1 - t / count) rates^t over t < count."""
    with np.errstate(divide="ignore", invalid="ignore"):
        sums = (1 - rates * _geometric(rates, count) / count) / (1 - rates)
    return np.where(rates == 1, (count + 1) / 2, sums)


@functools.cache
def optimize_dense(num_steps: int, separation: int) -> tuple[Array, float, float]:
    """Returns the optimal dense factorisation of prefix sums: C, its RMSE and a lower bound on all.

    A record takes part in the steps of one pattern, those ``separation`` apart. Contributions of
    norm 1 whose inner products are M (positive semidefinite, with ones on the diagonal) move C G by
    the square root of the sum of M * X over the pattern, X = C^T C. So for weights v of the
    patterns and any M of each, and V of blocks v M, every factorisation of sensitivity 1 has a sum
    of squared errors of at least (tr (A V A^T)^(1/2))^2 / sum(v): the dual. Where that is largest,
    A^T (A V A^T)^(-1/2) A is a multiple of the X of least error: its columns of C are orthogonal
    within each pattern, so that no M is worse than another.

    Args:
      num_steps: of the error.
      separation: of the steps in which a record takes part.

    Returns:
      C, lower triangular, of sensitivity 1; its RMSE; and that of the dual, which is a lower bound
      however close to the largest one it is.

    Source: Choquette-Choo et al. (2023), "Multi-epoch matrix factorization mechanisms", Section 3,
    for orthogonal columns. The multipliers of that problem are blocks v M, so it has the least
    error of all.
    """
    from scipy.optimize import minimize

    # Pattern p has the steps p, p + period, ...; entry (i, j) of its block is that of its steps.
    period = min(separation, num_steps)
    size = num_participations(num_steps, period)
    patterns, lower = np.arange(period), np.tril_indices(size)
    prefix_sums = np.tril(np.ones((num_steps, num_steps)))

    def dual(parameters: Array) -> tuple[float, Array, Array]:
        """Minus the logarithm of the dual, its derivative, and A^T (A V A^T)^(-1/2) A."""
        # M from rows of norm 1, and V of these blocks, without steps after the last.
        weights, rows = np.exp(parameters[:period]), np.zeros((period, size, size))
        rows[:, lower[0], lower[1]] = parameters[period:].reshape(period, -1)
        norms = np.linalg.norm(rows, axis=2, keepdims=True)
        unit = rows / norms
        correlations = unit @ unit.transpose(0, 2, 1)
        grid = np.zeros((size, period, size, period))
        grid[:, patterns, :, patterns] = weights[:, None, None] * correlations
        multipliers = grid.reshape(size * period, -1)[:num_steps, :num_steps]

        values, vectors = np.linalg.eigh(prefix_sums @ multipliers @ prefix_sums.T)
        roots = np.sqrt(np.maximum(values, 0))
        factors = prefix_sums.T @ vectors
        gram = (factors / np.maximum(roots, 1e-15 * roots.max())) @ factors.T
        logarithm = 2 * math.log(roots.sum()) - math.log(weights.sum())

        # The derivative of tr (A V A^T)^(1/2) by V is half of ``gram``.
        grid = np.zeros((size * period, size * period))
        grid[:num_steps, :num_steps] = gram / roots.sum()
        blocks = grid.reshape(size, period, size, period)[:, patterns, :, patterns]
        blocks = weights[:, None, None] * blocks
        by_weight = np.sum(blocks * correlations, axis=(1, 2)) - weights / weights.sum()
        by_unit = 2 * blocks @ unit
        by_row = (by_unit - np.sum(by_unit * unit, axis=2, keepdims=True) * unit) / norms
        return -logarithm, -np.append(by_weight, by_row[:, lower[0], lower[1]]), gram

    # From equal weights and the correlations of the columns of A, the optimum of a single pattern.
    square = np.eye(size * period)
    square[:num_steps, :num_steps] = prefix_sums.T @ prefix_sums
    square /= np.sqrt(np.multiply.outer(square.diagonal(), square.diagonal()))
    grid = square.reshape(size, period, size, period)[:, patterns, :, patterns]
    start = np.append(np.zeros(period), np.linalg.cholesky(grid)[:, lower[0], lower[1]])
    options: Any = {"maxiter": 500, "ftol": 1e-12, "gtol": 1e-8, "maxcor": 30}
    loss: Any = lambda parameters: dual(parameters)[:2]  # noqa: E731
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    minus_logarithm, _, gram = dual(found.x)

    # Columns made orthogonal within each pattern, with squared norms that sum to 1: so what is left
    # of the search changes the error in second order only.
    scale = np.zeros_like(gram)
    for pattern in patterns:
        steps = np.arange(pattern, num_steps, period)
        block = gram[np.ix_(steps, steps)]
        values, vectors = np.linalg.eigh(block)
        norms = np.sqrt(block.diagonal() / block.trace())
        scale[np.ix_(steps, steps)] = (vectors / np.sqrt(values)) @ vectors.T * norms
    gram = scale.T @ gram @ scale

    # C lower triangular with C^T C = X: the Cholesky factor of X in reverse order.
    factor: Array = np.linalg.cholesky(gram[::-1, ::-1])[::-1, ::-1].T.astype(np.float64)
    inverse: Array = np.linalg.inv(factor).astype(np.float64)
    squared = float(np.sum(squared_errors(inverse)))
    lowest = math.exp(-minus_logarithm)
    return factor, math.sqrt(squared / num_steps), math.sqrt(lowest / num_steps)


def spectral_bound(num_steps: int, separation: int) -> float:
    """Returns a lower bound on the RMSE of every factorisation: of the singular values of A.

    The dual of `optimize_dense` with equal weights and no correlations.

    >>> round(spectral_bound(16, 16), 4)
    1.6284
    """
    angles = (2 * np.arange(1, num_steps + 1) - 1) * np.pi / (4 * num_steps + 2)
    nuclear = float(np.sum(1 / (2 * np.sin(angles))))
    return nuclear / math.sqrt(num_steps * min(separation, num_steps))
