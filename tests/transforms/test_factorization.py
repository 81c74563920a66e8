"""Numerics of strategies of correlated noise: errors, optima and sensitivities against oracles."""

import itertools
import math

import numpy as np
import pytest
from scipy import optimize
from scipy.linalg import toeplitz

from dpjax.transforms import BLT, BandedToeplitz, Dense, InverseSquareRoot, LambdaCGD
from dpjax.transforms import factorization as numerics

# Root mean square and largest error of the square root and of its columns over their norms, RMSE of
# the dense optimum, and the bound of singular values; computed by a script of its own.
SINGLE_PASS = {
    16: (1.7968, 1.9439, 1.7091, 1.7833, 1.689404, 1.6284),
    128: (2.4488, 2.6101, 2.3417, 2.4279, 2.311001, 2.2544),
    256: (2.6688, 2.8310, 2.5573, 2.6450, 2.524414, 2.4714),
    512: (2.8892, 3.0518, 2.7739, 2.8626, 2.739385, 2.6901),
    1024: (3.1098, 3.2726, 2.9914, 3.0807, None, 2.9096),
    2048: (3.3305, 3.4932, 3.2093, 3.2992, None, 3.1296),
}
# RMSE of 8 passes: square root of 4, 16, 64 and n / 8 bands, inverse square root alike, best decay.
EIGHT_PASSES = {
    512: (25.440, 14.776, 9.639, 9.639, 18.422, 11.008, 10.335, 10.335, 11.636, 0.933),
    1024: (35.835, 20.417, 12.379, 10.294, 25.765, 14.423, 10.613, 10.968, 13.639, 0.955),
    2048: (50.578, 28.528, 16.547, 10.948, 36.233, 19.708, 12.343, 11.597, 16.128, 0.969),
}
LARGE = [512, 1024, 2048]


def lower(coefficients):
    """The lower triangular Toeplitz matrix of a first column."""
    return np.tril(toeplitz(coefficients))


@pytest.mark.parametrize(
    "num_steps", [n if n < 100 else pytest.param(n, marks=pytest.mark.slow) for n in SINGLE_PASS]
)
def test_errors_in_a_single_pass(num_steps):
    rmse, largest, normalised_rmse, normalised_largest, optimum, bound = SINGLE_PASS[num_steps]
    report = BandedToeplitz(num_steps, coefficients="square_root").report(num_steps)
    assert report.is_exact
    assert report.rmse == pytest.approx(rmse, abs=1e-4)
    assert report.max_error == pytest.approx(largest, abs=1e-4)
    assert report.independent_rmse == pytest.approx(math.sqrt((num_steps + 1) / 2))

    # Columns of norm 1: a matrix that is not Toeplitz.
    matrix = lower(numerics.square_root(num_steps))
    norms = np.linalg.norm(matrix, axis=0)
    assert numerics.matrix_sensitivity(matrix / norms, num_steps, True)[0] == pytest.approx(1)
    inverse = norms[:, None] * lower(numerics.inverse_square_root(num_steps))
    errors = numerics.squared_errors(inverse)
    assert math.sqrt(errors.mean()) == pytest.approx(normalised_rmse, abs=1e-4)
    assert math.sqrt(errors.max()) == pytest.approx(normalised_largest, abs=1e-4)

    assert numerics.spectral_bound(num_steps, num_steps) == pytest.approx(bound, abs=1e-4)
    if optimum:
        matrix, primal, dual = numerics.optimize_dense(num_steps, num_steps)
        assert primal == pytest.approx(dual, rel=1e-10)
        assert primal == pytest.approx(optimum, abs=1e-6)
        # The matrix itself attains it.
        assert np.linalg.norm(matrix, axis=0) == pytest.approx(1, abs=1e-6)
        attained = numerics.squared_errors(np.linalg.inv(matrix)).mean()
        assert math.sqrt(attained) == pytest.approx(primal, rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", LARGE)
def test_errors_in_eight_passes(num_steps):
    *errors, decay = EIGHT_PASSES[num_steps]
    widths = (4, 16, 64, num_steps // 8)
    strategies = [
        *(BandedToeplitz(width, coefficients="square_root") for width in widths),
        *(InverseSquareRoot(width) for width in widths),
        LambdaCGD(decay),
    ]
    for strategy, error in zip(strategies, errors, strict=True):
        report = strategy.report(num_steps, separation=num_steps // 8)
        assert report.is_exact, strategy
        assert report.participations == 8
        assert report.rmse == pytest.approx(error, abs=6e-4), strategy
    assert report.independent_rmse == pytest.approx(math.sqrt(8 * (num_steps + 1) / 2))
    # The best decay to three digits.
    around = [
        LambdaCGD(decay + d).report(num_steps, separation=num_steps // 8).rmse
        for d in (-1e-3, 1e-3)
    ]
    assert report.rmse < min(around)


def test_errors_of_more_strategies():
    assert LambdaCGD(0.969).report(2048).rmse == pytest.approx(5.7006, abs=1e-4)
    for width, error in ((4, 12.810), (16, 6.968), (64, 4.302)):
        assert InverseSquareRoot(width).report(2048).rmse == pytest.approx(error, abs=6e-4)
    for width, once, eight in ((8, 6.15, 17.4), (64, 3.30, 9.35)):
        assert BandedToeplitz(width).report(512).rmse == pytest.approx(once, abs=6e-3)
        assert BandedToeplitz(width).report(512, separation=64).rmse == pytest.approx(
            eight, abs=6e-2
        )


@pytest.mark.slow
def test_blt_of_jax_privacy():
    """Their test's values: 100,000 steps, two buffers, largest error."""
    scales, decays = numerics.optimize_blt(100_000, 2, 100_000, "max")
    np.testing.assert_allclose(scales, (0.0122853238, 0.1878393665), rtol=1e-5)
    np.testing.assert_allclose(decays, (0.9999528892, 0.9857068667), rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("num_steps", "buffers", "ratio"),
    [
        (100, 2, 1.03),
        (1_000, 3, 1.03),
        (10_000, 3, 1.03),
        (100_000, 4, 1.03),
        (1_000_000, 5, 1.05),
        (10_000_000, 6, 1.06),
        (10_000, 1, 1.45),
    ],
)
def test_blt_near_the_optimum(num_steps, buffers, ratio):
    """Largest error over 1 + ln n / pi, by the coefficients and not by closed forms."""
    scales, decays = map(np.array, numerics.optimize_blt(num_steps, buffers, num_steps, "max"))
    powers = np.arange(num_steps - 1)
    matrix = np.append(1.0, sum(s * d**powers for s, d in zip(scales, decays, strict=True)))
    inverse = numerics.invert_blt(scales, decays, num_steps)
    identity = np.convolve(matrix[:200], inverse[:200])[: min(num_steps, 200)]
    np.testing.assert_allclose(identity, np.eye(len(identity))[0], atol=1e-12)
    error = np.linalg.norm(matrix) * np.linalg.norm(np.cumsum(inverse))
    assert error <= ratio * (1 + math.log(num_steps) / math.pi)


@pytest.mark.parametrize(("num_steps", "separation"), [(40, 40), (40, 10), (43, 10), (7, 1)])
def test_blt_closed_forms(num_steps, separation):
    scales, decays = np.array([0.1, 0.3]), np.array([0.99, 0.5])
    squared = numerics.blt_squared_sensitivity(scales, decays, num_steps, separation)
    column = np.append(1.0, scales @ decays[:, None] ** np.arange(num_steps - 1))
    expected, is_exact = numerics.toeplitz_sensitivity(column, separation)
    assert is_exact
    assert math.sqrt(squared) == pytest.approx(expected)


@pytest.mark.slow
def test_blt_optimum_of_each_objective():
    once, often = (BLT(2, num_steps=60, separation=b) for b in (60, 10))
    largest = BLT(2, error="max", num_steps=60)
    assert once.report().rmse < largest.report().rmse
    assert largest.report().max_error < once.report().max_error
    assert often.report(60, separation=10).rmse < once.report(60, separation=10).rmse
    product = numerics.squared_errors(
        lower(once.noise_matrix(60)) @ lower(once.strategy_matrix(60))
    )
    np.testing.assert_allclose(product, np.arange(1, 61), rtol=1e-5)


STRATEGIES = [
    BandedToeplitz(3, num_steps=8),
    BandedToeplitz(8, coefficients="square_root"),
    BLT(2, num_steps=8),
    InverseSquareRoot(3),
    LambdaCGD(0.7),
    Dense(8),
]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)


def full(matrix):
    return lower(matrix) if matrix.ndim == 1 else matrix


def brute_force(matrix, separation, fixed, rng):
    """Largest norm of sums of columns: over all patterns with signs, and with random vectors."""
    num_steps, gram = len(matrix), matrix.T @ matrix
    patterns = [
        steps
        for count in range(1, num_steps + 1)
        for steps in itertools.combinations(range(num_steps), count)
        if all((b - a) % separation == 0 if fixed else b - a >= separation
               for a, b in itertools.pairwise(steps))
    ]  # fmt: skip
    upper = attained = 0.0
    for steps in patterns:
        part = gram[np.ix_(steps, steps)]
        upper = max(upper, np.abs(part).sum())
        signs = [np.ones(len(steps)), *rng.choice([-1.0, 1.0], (4, len(steps)))]
        attained = max(attained, *(s @ part @ s for s in signs))
        vectors = rng.normal(size=(len(steps), 3))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        assert np.trace(vectors.T @ part @ vectors) <= upper + 1e-9
    return math.sqrt(attained), math.sqrt(upper)


@each_strategy
@pytest.mark.parametrize("separation", [1, 2, 3, 8])
@pytest.mark.parametrize("fixed", [True, False])
def test_sensitivity_over_all_patterns(strategy, separation, fixed):
    """From below by contributions that attain it, from above by |C^T C|."""
    matrix = full(strategy.strategy_matrix(8))
    assert np.abs(matrix @ full(strategy.noise_matrix(8)) - np.eye(8)).max() < 1e-6
    attained, upper = brute_force(matrix, separation, fixed, np.random.default_rng(0))
    sensitivity, is_exact = strategy.sensitivity(8, separation=separation, fixed=fixed)
    assert sensitivity >= attained * (1 - 1e-9)
    if is_exact:
        assert sensitivity <= attained * (1 + 1e-9)
        assert sensitivity <= upper * (1 + 1e-9)
    # A participation too few, or a separation too large, is below what is attained.
    if separation < 8:
        fewer, _ = strategy.sensitivity(8, separation=separation + 5, fixed=fixed)
        assert fewer < attained * (1 - 1e-3)


@pytest.mark.parametrize("seed", range(5))
def test_sensitivity_of_matrices_of_any_sign(seed):
    rng = np.random.default_rng(seed)
    matrix = np.tril(rng.normal(size=(7, 7)))
    for separation, fixed in itertools.product((1, 2, 3, 7), (True, False)):
        attained, upper = brute_force(matrix, separation, fixed, rng)
        sensitivity, is_exact = numerics.matrix_sensitivity(matrix, separation, fixed)
        assert attained * (1 - 1e-9) <= sensitivity
        assert not is_exact or sensitivity <= attained * (1 + 1e-9)
        if fixed:
            assert sensitivity == pytest.approx(upper)
        column, _ = numerics.toeplitz_sensitivity(matrix[:, 0], separation)
        assert column >= brute_force(lower(matrix[:, 0]), separation, fixed, rng)[0] * (1 - 1e-9)


def test_coefficients_that_rise():
    """The formula of coefficients that do not rise would give too little: two steps apart by one.

    [1, .5, .8] needs the majorant [1, .8, .8].
    """
    rising, majorant = np.array([1.0, 0.5, 0.8]), np.array([1.0, 0.8, 0.8])
    sensitivity, is_exact = numerics.toeplitz_sensitivity(rising, 1)
    assert not is_exact
    assert sensitivity == pytest.approx(numerics.toeplitz_sensitivity(majorant, 1)[0])

    # Steps 0 and 2 move the release of [1, 0, 0, 1, 0, 0] less than steps 0 and 3.
    far = np.array([1.0, 0.0, 0.0, 1.0, 0.0, 0.0])
    naive = np.linalg.norm(far + np.append([0.0, 0.0], far[:-2]) + np.append(np.zeros(4), far[:-4]))
    attained, _ = brute_force(lower(far), 2, False, np.random.default_rng(0))
    assert naive < attained * (1 - 1e-3)
    assert attained <= numerics.toeplitz_sensitivity(far, 2)[0]


def test_columns_that_do_not_overlap():
    """Exact whatever the coefficients; of one band more than the separation it is not."""
    rising = np.array([1.0, 0.2, 0.9, 0.0, 0.0, 0.0])
    sensitivity, is_exact = numerics.toeplitz_sensitivity(rising, 3)
    assert is_exact
    assert sensitivity == pytest.approx(math.sqrt(2 * 1.85))
    assert not numerics.toeplitz_sensitivity(rising, 2)[1]


@pytest.mark.parametrize("separation", [1, 4, 10, 16])
def test_dual_bound_is_below_every_strategy(separation):
    bound = numerics.optimize_dense(16, separation)[2]
    assert bound >= numerics.spectral_bound(16, separation) * (1 - 1e-9)
    strategies = [BandedToeplitz(4), BLT(2), InverseSquareRoot(4), LambdaCGD(0.8)]
    errors = [strategy.report(16, separation=separation).rmse for strategy in strategies]
    assert min(errors) > bound * (1 + 1e-4)

    # A matrix attains it, with float32 entries.
    report = Dense().report(16, separation=separation)
    assert report.rmse == pytest.approx(bound, rel=1e-6)
    assert report.max_error > report.rmse


@pytest.mark.parametrize(
    ("num_steps", "separation"),
    [
        (64, 4),
        (64, 8),
        (100, 1),
        (100, 30),
        (200, 7),
        pytest.param(512, 64, marks=pytest.mark.slow),
    ],
)
def test_dense_optimum_of_several_passes_attains_its_dual(num_steps, separation):
    matrix, primal, dual = numerics.optimize_dense(num_steps, separation)
    assert primal == pytest.approx(dual, rel=1e-8)
    assert numerics.matrix_sensitivity(matrix, separation, True)[0] == pytest.approx(1)
    attained = numerics.squared_errors(np.linalg.inv(matrix)).mean()
    assert math.sqrt(attained) == pytest.approx(primal)


def test_dense_optimum_of_several_passes_by_another_search():
    """Over all lower triangular C with the sensitivity of contributions of any inner products.

    Where C^T C has no negative entry within a pattern that is the sum of its entries; the search
    may use matrices with negative entries, whose largest sum over signs it counts.
    """
    num_steps, separation = 6, 2
    lower_entries = np.tril_indices(num_steps)
    signs = np.array(list(itertools.product([-1.0, 1.0], repeat=3)))

    def squared_rmse(entries):
        matrix = np.zeros((num_steps, num_steps))
        matrix[lower_entries] = entries
        gram = matrix.T @ matrix
        parts = (gram[start::separation, start::separation] for start in range(separation))
        squared = max(np.einsum("si,ij,sj->s", signs, part, signs).max() for part in parts)
        return squared * numerics.squared_errors(np.linalg.inv(matrix)).mean()

    start = np.tril(0.1 * np.random.default_rng(0).uniform(size=(6, 6))) + np.eye(6)
    best = start[lower_entries]
    for _ in range(4):
        options = {"maxiter": 20_000, "maxfev": 20_000, "adaptive": True, "fatol": 1e-12}
        best = optimize.minimize(squared_rmse, best, method="Nelder-Mead", options=options).x
    _, primal, dual = numerics.optimize_dense(num_steps, separation)
    assert primal == pytest.approx(dual, rel=1e-9)
    assert dual * (1 - 1e-9) <= math.sqrt(squared_rmse(best)) <= dual * 1.01
