"""Correlated noise in federated sums: what holders send, what it reveals, and the noise after."""

import contextlib
import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from helpers.federated_cases import plan_of

from dpjax.bayes import DPSVI
from dpjax.federated import (
    ClippedGradientSum,
    gradient_training,
    holder_gradient,
    run_round,
    simulated_entropy,
)
from dpjax.federated.processes.holder import TrainingHolder
from dpjax.federated.processes.journal import Journal
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import CyclicPoissonSampling, FixedSizeSampling, PoissonSampling
from dpjax.transforms import BLT, BandedToeplitz, Dense, InverseSquareRoot, LambdaCGD

STRATEGIES = [BandedToeplitz(3), BLT(2), InverseSquareRoot(3), LambdaCGD(0.8), Dense()]
NAMES = ["banded", "blt", "bisr", "lambda", "dense"]
EACH = pytest.mark.parametrize("strategy", STRATEGIES, ids=NAMES)
NUM_STEPS, NUM_GROUPS = 12, 4


def sums_of(strategy, *, size=2, num_examples=40, num_steps=NUM_STEPS, noise_multiplier=2.0):
    steps = SubsampledGaussian(
        CyclicPoissonSampling(num_examples, 1 / NUM_GROUPS, num_groups=NUM_GROUPS),
        l2_clip=1.0,
        noise_multiplier=noise_multiplier,
        num_steps=num_steps,
        adjacency="zero_out",
        correlation=strategy,
    )
    return ClippedGradientSum(steps, size)


def apply_in_turn(method, sums, values):
    """All rounds of ``multiply`` or ``solve``."""
    buffers, results = sums.init_buffers(), []
    for number, value in enumerate(values):
        result, buffers = method(value, buffers, round_number=number)
        results.append(result)
    return np.stack(results)


def as_matrix(strategy, num_steps, kind):
    """C or C^-1 as a lower triangular matrix."""
    numbers = getattr(strategy, kind)(num_steps)
    if numbers.ndim == 2:
        return numbers
    lags = np.subtract.outer(np.arange(num_steps), np.arange(num_steps))
    return np.where(lags >= 0, numbers[np.maximum(lags, 0)], 0.0)


@EACH
def test_what_is_sent_is_the_strategy_times_the_sums(strategy):
    sums = sums_of(strategy)
    values = np.random.default_rng(0).normal(size=(NUM_STEPS, 2))
    sent = apply_in_turn(sums.multiply, sums, values)
    matrix = as_matrix(sums.mechanism.correlation, NUM_STEPS, "strategy_matrix")
    np.testing.assert_allclose(sent, matrix @ values, rtol=1e-9, atol=1e-9)

    # What the analyst makes of it are the sums; power: of released sums as they are it is not.
    np.testing.assert_allclose(apply_in_turn(sums.solve, sums, sent), values, atol=1e-9)
    assert np.abs(sent - values).max() > 0.1


def worst_difference(sums):
    """What one record moves whose clipped gradients have norm 1, in each of its steps."""
    values = np.zeros((NUM_STEPS, 2))
    values[::NUM_GROUPS, 0] = 1.0
    return apply_in_turn(sums.multiply, sums, values)


@EACH
def test_one_record_moves_all_rounds_together_by_the_sensitivity(strategy):
    """From below, attained by a record of the first group; and from above, by any other."""
    sums = sums_of(strategy)
    planned = sums.mechanism.correlation
    sensitivity, is_exact = planned.sensitivity(NUM_STEPS, separation=NUM_GROUPS)
    moved = np.linalg.norm(worst_difference(sums))
    assert moved <= sensitivity * (1 + 1e-9)
    if is_exact:
        assert moved >= sensitivity * (1 - 1e-6)

    rng = np.random.default_rng(1)
    for _ in range(30):
        values = np.zeros((NUM_STEPS, 2))
        directions = rng.normal(size=(NUM_STEPS, 2))
        directions /= np.linalg.norm(directions, axis=1, keepdims=True)
        first = rng.integers(NUM_GROUPS)
        values[first::NUM_GROUPS] = directions[first::NUM_GROUPS]
        assert np.linalg.norm(apply_in_turn(sums.multiply, sums, values)) <= sensitivity * (
            1 + 1e-9
        )

    # Power: the sums as they are move by another length.
    assert abs(moved - np.sqrt(-(-NUM_STEPS // NUM_GROUPS))) > 0.02

    # Rounding is stated as a share of the sensitivity of one round: 1, no more than that of all.
    assert sensitivity >= 1 - 1e-6


@EACH
def test_the_event_is_that_of_the_correlated_mechanism(strategy):
    sums = sums_of(strategy)
    plan = plan_of(sums)
    assert plan.guarantee.event == sums.mechanism.event
    independent = dataclasses.replace(sums.mechanism, correlation=None)
    assert plan.guarantee.event != independent.event
    assert "noise of different steps is correlated" in plan.certificate(1e-5).paragraph()


def test_noise_is_enlarged_for_the_rounding_of_all_rounds_together():
    """Rounding moves each of T rounds by a unit in each entry: T d units squared, against d."""
    few, many = (
        plan_of(sums_of(LambdaCGD(0.8), num_steps=steps), grid_bits=4) for steps in (1, 900)
    )
    unit = 2.0 ** float(few.grid.exponents[0])
    scale = few.mechanism.sum_parts[0].mechanism.scale
    for plan, steps in ((few, 1), (many, 900)):
        # Gaussian noise of H shares, less what discrete noise lacks (the plan's steps 1 to 3).
        noise = np.sqrt(plan.parties.num_noise_shares * plan.grid.scales[0] ** 2 - 4) * unit
        needed = scale * (1 + np.sqrt(2 * steps) * unit)
        assert needed <= noise <= 1.02 * needed + 4 * unit
    # Power: the noise of one round does not suffice for 900.
    assert few.grid.scales[0] < many.grid.scales[0] / 1.5


def test_rounded_sums_of_neighbours_are_within_what_the_noise_covers():
    sums = sums_of(InverseSquareRoot(3))
    plan = plan_of(sums, grid_bits=4)
    unit = 2.0 ** plan.grid.exponents.astype(float)
    rng = np.random.default_rng(2)
    sensitivity, _ = sums.mechanism.correlation.sensitivity(NUM_STEPS, separation=NUM_GROUPS)
    covered = sensitivity + np.sqrt(NUM_STEPS * 2) * unit[0]
    moves = []
    for _ in range(30):
        values = rng.normal(size=(NUM_STEPS, 2))
        neighbour = values.copy()
        neighbour[::NUM_GROUPS, 0] += 1.0
        pair = [
            [plan.to_units(sent) for sent in apply_in_turn(sums.multiply, sums, each)]
            for each in (values, neighbour)
        ]
        moves.append(np.linalg.norm((np.array(pair[1]) - np.array(pair[0])) * unit))
    assert max(moves) <= covered
    assert max(moves) > sensitivity  # power: rounding does move them farther apart


def test_released_sums_have_the_noise_of_the_strategy():
    """Covariance over rounds of 4,000 entries: chi-squared errors of 2 %, a bound of five."""
    size, strategy = 4_000, LambdaCGD(0.8)
    sums = sums_of(strategy, size=size, num_steps=6)
    plan = plan_of(sums, num_holders=3)
    entropy, zeros = simulated_entropy(7), np.zeros(size)
    released = np.stack(
        [
            run_round(plan, [zeros] * 3, round_number=number, entropy=entropy).released
            for number in range(6)
        ]
    )
    noise = apply_in_turn(sums.solve, sums, released)

    inverse = as_matrix(sums.mechanism.correlation, 6, "noise_matrix")
    variance = 2.0**2 * 3 / plan.parties.num_noise_shares
    expected = variance * inverse @ inverse.T
    tolerance = 5 * variance * 2 / np.sqrt(size)
    assert np.abs(noise @ noise.T / size - expected).max() < tolerance
    # Power: the released sums themselves have independent noise.
    assert np.abs(np.asarray(released) @ released.T / size - expected).max() > 3 * tolerance


def test_holders_groups_take_turns():
    sums = sums_of(LambdaCGD(0.8), size=10)
    gradient = holder_gradient(lambda w, x: w @ x, sums.mechanism, num_examples=10)
    data, w = jnp.eye(10), jnp.zeros(10)
    for number in range(6):
        taken = np.flatnonzero(gradient(jax.random.key(number), w, data, number))
        assert taken.tolist() == list(range(number % NUM_GROUPS, 10, NUM_GROUPS))


def test_a_sum_that_is_not_finite_leaves_no_trace():
    sums = sums_of(BLT(2))
    _, buffers = sums.multiply([np.nan, np.inf], sums.init_buffers(), round_number=0)
    assert not buffers.any()


def distance(w, x):
    return 0.5 * jnp.sum((w - x["x"]) ** 2)


class Sent:
    """A holder's messages, without parties that take them."""

    def __init__(self, folder, sums, records, monkeypatch):
        self.plan = plan_of(sums, num_holders=3, num_nodes=2)
        self.training = gradient_training(
            distance, jnp.zeros(2), optax.sgd(0.1), mechanism=sums.mechanism
        )
        self.folder, self.records, self.sent = folder, records, {}

        def journalled(plan, holder, statistic, journal, *, round_number, **options):
            self.sent[round_number] = statistic()
            return []

        monkeypatch.setattr("dpjax.federated.processes.holder.journalled_messages", journalled)

    @contextlib.contextmanager
    def process(self):
        with Journal(self.folder, "holder-0") as journal:
            keys = (jax.random.key(0) for _ in iter(int, 1))
            yield TrainingHolder(
                self.plan, 0, self.training, self.records, journal, new_key=lambda: next(keys)
            )

    def enter(self, holder, number):
        holder._enter(number, np.zeros(2).view(np.uint64))


@pytest.mark.parametrize("missed", [[], [2, 3]], ids=["all rounds", "two missed"])
def test_a_holder_goes_on_from_its_buffers_in_every_process(tmp_path, monkeypatch, missed):
    """Rounds in processes of their own send what one process sends; missed ones count as zeros."""
    sums = sums_of(BLT(2))
    records = {"x": np.random.default_rng(3).normal(size=(9, 2)).astype(np.float32)}
    run = Sent(tmp_path, sums, records, monkeypatch)
    rounds = [number for number in range(6) if number not in missed]
    for number in rounds:
        with run.process() as holder:
            run.enter(holder, number)
            names = holder._journal.names()
            assert [n for n in names if n.startswith("buffers")] == [f"buffers-{number + 1}"]

    gradient = holder_gradient(distance, sums.mechanism, num_examples=9)
    values = np.zeros((6, 2))
    for number in rounds:
        data = {"x": jnp.asarray(records["x"])}
        values[number] = gradient(jax.random.key(0), jnp.zeros(2), data, number)
    expected = apply_in_turn(sums.multiply, sums, values)
    np.testing.assert_allclose([run.sent[n] for n in rounds], expected[rounds], rtol=1e-6)
    # Power: without the buffers it is the sum of the round alone.
    assert not np.allclose(run.sent[5], values[5], rtol=1e-2)


def test_a_round_that_was_cut_off_is_computed_again(tmp_path, monkeypatch):
    """The buffers of a round without messages are replaced, and not used twice."""
    sums = sums_of(LambdaCGD(0.8))
    records = {"x": np.ones((8, 2), np.float32)}
    run = Sent(tmp_path, sums, records, monkeypatch)
    with run.process() as holder:
        run.enter(holder, 0)

    # A process that ends between the buffers and the messages of round 1.
    def ends(*args, **options):
        args[2]()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, run.process() as holder:
        patch.setattr("dpjax.federated.processes.holder.journalled_messages", ends)
        with pytest.raises(KeyboardInterrupt):
            run.enter(holder, 1)
        assert {"buffers-1", "buffers-2"} <= set(holder._journal.names())
    for number in (1, 2):
        with run.process() as holder:
            run.enter(holder, number)

    # Each round's sum is that of two records of norm 1 at the clip bound, so 2 / sqrt(2) an entry.
    weights = 1 + np.cumsum(0.8 ** np.arange(1, 3))
    np.testing.assert_allclose(run.sent[1], -np.sqrt(2) * weights[0], rtol=1e-5)
    np.testing.assert_allclose(run.sent[2], -np.sqrt(2) * weights[1], rtol=1e-5)


def test_parties_with_other_weights_refuse_each_other(monkeypatch):
    sums = sums_of(LambdaCGD(0.8))
    plans = [plan_of(sums), plan_of(sums_of(LambdaCGD(0.81))), plan_of(sums_of(None))]
    assert len({plan.message_format.fingerprint for plan in plans}) == 3

    # The same strategy, of which another machine computes other numbers.
    monkeypatch.setattr(LambdaCGD, "strategy_matrix", lambda self, num: 0.8 ** np.arange(num))
    assert plan_of(sums_of(LambdaCGD(0.8))).message_format.fingerprint not in {
        plan.message_format.fingerprint for plan in plans
    }


def test_what_does_not_fit_is_refused():
    sums = sums_of(LambdaCGD(0.8))
    start = sums.init_buffers()
    with pytest.raises(ValueError, match="sums must be num_parameters = 2 numbers, got 3"):
        sums.multiply(np.zeros(3), start, round_number=0)
    with pytest.raises(ValueError, match="a holder sends what `multiply` returns"):
        sums.sum_records(np.zeros(2))
    with pytest.raises(ValueError, match=r"buffers must be of shape \(1, 2\)"):
        sums.solve(np.zeros(2), np.zeros((2, 2)), round_number=0)
    with pytest.raises(ValueError, match="round_number must be below num_rounds = 12"):
        sums.multiply(np.zeros(2), start, round_number=NUM_STEPS)
    with pytest.raises(ValueError, match="num_groups must be at most num_examples = 3"):
        holder_gradient(lambda w, x: w @ x, sums.mechanism, num_examples=3)
    fixed = dataclasses.replace(
        sums.mechanism, sampling=FixedSizeSampling(40, 10), correlation=None
    )
    with pytest.raises(ValueError, match="PoissonSampling or CyclicPoissonSampling, got Fixed"):
        holder_gradient(lambda w, x: w @ x, fixed, num_examples=40)


def test_independent_noise_has_no_buffers():
    steps = SubsampledGaussian(
        PoissonSampling(40, 0.1), l2_clip=1.0, noise_multiplier=2.0, num_steps=3,
        adjacency="zero_out",
    )  # fmt: skip
    sums = ClippedGradientSum(steps, 2)
    assert sums.init_buffers().size == 0
    sent, _ = sums.multiply([1.0, 2.0], sums.init_buffers(), round_number=2)
    assert sent.tolist() == [1.0, 2.0]
    assert sums.solve(sent, sums.init_buffers(), round_number=2)[0].tolist() == [1.0, 2.0]


def test_dpsvi_sums_of_batches_that_depend_on_earlier_ones_are_refused():
    """Its batch is drawn from the key alone: every round would take the first group."""
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer.autoguide import AutoNormal

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    mechanism = dataclasses.replace(sums_of(LambdaCGD(0.8)).mechanism, size_scaled=True)
    svi = DPSVI(model, AutoNormal(model), optax.sgd(0.1), mechanism=mechanism)
    x = jnp.zeros(40)
    state = svi.init(jax.random.key(0), x)
    with pytest.raises(
        ValueError, match="sampling must be one that draws each batch independently"
    ):
        svi.clipped_sum(jax.random.key(1), state, x)
