"""Correlated noise as a transformation: its distribution, its state and what it refuses."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy import stats
from scipy.linalg import toeplitz

from dpjax import (
    BLT,
    BandedToeplitz,
    Dense,
    InverseSquareRoot,
    LambdaCGD,
    PoissonSampling,
    add_gaussian_noise,
    mechanism_of,
)

KEY = jax.random.key(5)
NUM_STEPS = 8
STRATEGIES = [
    BandedToeplitz(3, num_steps=NUM_STEPS),
    BandedToeplitz(8, coefficients="square_root", num_steps=NUM_STEPS),
    BLT(2, num_steps=NUM_STEPS),
    InverseSquareRoot(3),
    LambdaCGD(0.7),
    Dense(NUM_STEPS),
]
each_strategy = pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda s: type(s).__name__)
# Of one assertion on the covariance.
FALSE_ALARM = 1e-6


def gaussian(strategy, key=KEY):
    return add_gaussian_noise(noise_multiplier=1.5, l2_clip=2.0, key=key, correlation=strategy)


def releases(strategy, size, num_steps=NUM_STEPS, state=None):
    """The noise of all steps, ``(steps, size)``, and the states between them."""
    noise = gaussian(strategy)
    zeros = {"a": jnp.zeros(size), "b": jnp.zeros((2, 3))}
    states = [noise.init(zeros) if state is None else state]
    update, rows = jax.jit(noise.update), []
    for _ in range(num_steps):
        noisy, state = update(zeros, states[-1])
        rows.append(np.concatenate([np.ravel(noisy["a"]), np.ravel(noisy["b"])]))
        states.append(state)
    return np.stack(rows), states


def covariance_p(rows, inverse):
    """Of noise, ``(steps, draws)``, that its covariance is that of ``inverse @ z``: chi-square."""
    whitened = np.linalg.solve(3.0 * inverse, rows)
    draws = rows.shape[1]
    products = whitened @ whitened.T / draws
    # Entries are nearly independent and normal, of variance 1 / draws, on the diagonal twice that.
    upper = np.triu_indices(len(rows), 1)
    squares = draws * np.sum(products[upper] ** 2)
    squares += draws * np.sum((products.diagonal() - 1) ** 2) / 2
    return stats.chi2.sf(squares, len(upper[0]) + len(rows))


def full(matrix):
    return np.tril(toeplitz(matrix)) if matrix.ndim == 1 else matrix


@each_strategy
@pytest.mark.slow
def test_covariance_of_all_steps(strategy):
    """That of C^-1 z, with 2,000 draws; not that of a band or a lag more or less."""
    inverse = full(strategy.noise_matrix(NUM_STEPS))
    rows, _ = releases(strategy, 2_000)
    assert covariance_p(rows, inverse) > FALSE_ALARM

    # The same test of matrices that are wrong in a band, in the lag and in the step.
    shifted = np.eye(8)
    shifted[2:] += (inverse - np.eye(8) * inverse.diagonal())[1:-1]
    banded = np.triu(inverse, -1)
    for broken in (np.eye(8), shifted, banded, inverse.T):
        if not np.allclose(broken, inverse):
            assert covariance_p(rows, broken) < FALSE_ALARM


@each_strategy
def test_noise_is_independent_over_leaves_and_coordinates(strategy):
    """Correlations over coordinates of all steps together: the largest of many pairs."""
    rows, _ = releases(strategy, 44)
    white = np.linalg.solve(3.0 * full(strategy.noise_matrix(NUM_STEPS)), rows)
    cosines = np.corrcoef(white.T)[np.triu_indices(50, 1)]
    # Of 8 steps: the transform t sqrt(6 / (1 - t^2)) of a correlation is Student's t.
    largest = np.abs(cosines).max()
    p = 2 * stats.t.sf(largest * math.sqrt(6 / (1 - largest**2)), 6) * len(cosines)
    assert p > FALSE_ALARM
    # Power: a coordinate that has the noise of another.
    white[:, 1] = white[:, 0] + 1e-4 * white[:, 1]
    largest = np.abs(np.corrcoef(white.T)[np.triu_indices(50, 1)]).max()
    assert 2 * stats.t.sf(largest * math.sqrt(6 / (1 - largest**2)), 6) * len(cosines) < FALSE_ALARM


@each_strategy
def test_resumed_from_any_step(strategy):
    """Bit for bit; with the buffers of another step it is not."""
    rows, states = releases(strategy, 5)
    for step in (1, 4):
        copied = jax.tree.map(jnp.array, states[step])
        resumed, _ = releases(strategy, 5, NUM_STEPS - step, copied)
        np.testing.assert_array_equal(resumed, rows[step:])

        # Buffers restored a second time, in a later step.
        stale = states[step + 1]._replace(buffers=states[step].buffers)
        wrong, _ = releases(strategy, 5, NUM_STEPS - step - 1, stale)
        assert (wrong[0] != rows[step + 1]).any()


def test_buffers_restored_twice_change_the_covariance():
    """The test above finds it bit by bit, the test of the covariance by its distribution."""
    strategy = LambdaCGD(0.7)
    rows, states = releases(strategy, 2_000)
    stale = states[3]._replace(buffers=states[2].buffers)
    wrong, _ = releases(strategy, 2_000, 5, stale)
    inverse = full(strategy.noise_matrix(NUM_STEPS))
    assert covariance_p(np.concatenate([rows[:3], wrong]), inverse) < FALSE_ALARM


@each_strategy
@pytest.mark.slow
def test_compiled_once_and_in_a_scan(strategy):
    noise, traces = gaussian(strategy), []
    zeros = jnp.zeros(4)

    @jax.jit
    def update(state):
        traces.append(None)
        return noise.update(zeros, state)

    state, rows = noise.init(zeros), []
    for _ in range(NUM_STEPS):
        row, state = update(state)
        rows.append(row)
    assert len(traces) == 1

    def step(state, _):
        row, state = noise.update(zeros, state)
        return state, row

    _, scanned = jax.lax.scan(step, noise.init(zeros), length=NUM_STEPS)
    np.testing.assert_allclose(scanned, np.stack(rows), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("strategy", [STRATEGIES[0], STRATEGIES[5]], ids=["banded", "dense"])
def test_nan_past_the_planned_steps(strategy):
    rows, _ = releases(strategy, 3, NUM_STEPS + 2)
    assert np.isfinite(rows[:NUM_STEPS]).all()
    assert np.isnan(rows[NUM_STEPS:]).all()


def test_the_first_step_is_that_of_independent_noise():
    independent, _ = releases(None, 5, 1)
    for strategy in STRATEGIES[:-1]:
        np.testing.assert_allclose(releases(strategy, 5, 1)[0], independent, rtol=1e-6)


def test_one_key_for_each_sum():
    noise = gaussian(LambdaCGD(0.5))
    state = noise.init(jnp.zeros(2))
    with pytest.raises(ValueError, match="state must be another one for each of the 3 sums"):
        jax.vmap(noise.update, (0, None))(jnp.ones((3, 2)), state)


def test_state_of_another_strategy_refused():
    state = gaussian(LambdaCGD(0.5)).init(jnp.zeros(2))
    for other in (LambdaCGD(0.6), InverseSquareRoot(2), None):
        with pytest.raises(ValueError, match="state must come from init"):
            gaussian(other).update(jnp.zeros(2), state)


def test_partition_refused():
    groups = {
        name: gaussian(LambdaCGD(0.5), key)
        for name, key in zip("ab", jax.random.split(KEY), strict=True)
    }
    params = {"a": jnp.zeros(2), "b": jnp.zeros(2)}
    state = optax.partition(groups, {"a": "a", "b": "b"}).init(params)
    with pytest.raises(ValueError, match="independent over steps, got correlation="):
        mechanism_of(state, sampling=PoissonSampling(10, 0.1), num_steps=2, adjacency="add_remove")


def test_half_precision_parameters():
    """The buffers are in single precision, in which the noise is made."""
    state = gaussian(LambdaCGD(0.5)).init(jnp.zeros(3, jnp.bfloat16))
    assert state.buffers.dtype == jnp.float32


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: BandedToeplitz(1), "bands"),
        (lambda: InverseSquareRoot(1), "bands"),
        (lambda: BLT(0), "buffers"),
        (lambda: BLT(2, error="mean"), "error"),
        (lambda: LambdaCGD(1.0), "decay"),
        (lambda: LambdaCGD(0.0), "decay"),
        (lambda: Dense(513), "num_steps"),
        (lambda: BandedToeplitz(4, coefficients="ones"), "coefficients"),
        (lambda: gaussian(BandedToeplitz(4)).init(jnp.zeros(2)), "correlation must have num_steps"),
        (lambda: LambdaCGD(0.5).report(), "num_steps must be given"),
        (lambda: Dense(8).report(9), "num_steps must be at most the 8 steps"),
    ],
)
def test_refusals(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def test_correlation_of_another_type():
    with pytest.raises(TypeError, match="correlation must be such as LambdaCGD"):
        gaussian(0.5)


def test_report_as_text():
    text = str(BandedToeplitz(4).report(64, separation=16))
    for part in ("4, 16 apart", "(exact)", "lower bound", "3 copies of the parameters"):
        assert part in text, part


@pytest.mark.slow
def test_strategies_differ():
    """Of the same key: no two of them draw the same noise after the first step."""
    rows = [releases(strategy, 3, 3)[0][2] for strategy in STRATEGIES]
    for one, other in itertools.combinations(rows, 2):
        assert (one != other).any()
