"""Fixed-size batches: uniformly random subsets, or epochs in a new random order each."""

import itertools

import jax
import numpy as np
import pytest
from dp_accounting import (
    ComposedDpEvent,
    GaussianDpEvent,
    SampledWithoutReplacementDpEvent,
    SelfComposedDpEvent,
)
from helpers.drawn_batches import FALSE_ALARM, drawn, same_share_p, steps_p, uniform_p

from dpjax.sampling import FixedSizeSampling, ShuffledEpochs

DRAWS = 20_000


def subset_numbers(counts: np.ndarray, size: int) -> np.ndarray:
    """Each draw as the number of its subset."""
    number = {s: i for i, s in enumerate(itertools.combinations(range(counts.shape[1]), size))}
    return np.array([number[tuple(np.flatnonzero(row))] for row in counts])


def epoch_orders(sampling: ShuffledEpochs, num_epochs: int, seed: int = 0) -> np.ndarray:
    """The order of the records in successive epochs: ``(num_epochs, num_examples)``."""

    def one_step(state, _):
        draw, state = sampling.draw(state)
        return state, sampling.batch(draw, 0)

    steps = num_epochs * sampling.steps_per_epoch
    state = sampling.init(jax.random.key(seed))
    _, batches = jax.jit(lambda s: jax.lax.scan(one_step, s, length=steps))(state)
    return np.asarray(batches.indices)[np.asarray(batches.mask)].reshape(num_epochs, -1)


class AlwaysShiftsByOne(ShuffledEpochs):
    """Broken: the order is turned, not shuffled."""

    def _shuffle(self, state):
        return jax.random.split(state.key)[0], (state.order + 1) % self.num_examples


class ShufflesOnce(ShuffledEpochs):
    """Broken: every epoch has the first one's order."""

    def draw(self, state):
        draw, moved_on = super().draw(state)
        same_key = jax.lax.select(moved_on.step == 0, jax.random.key(0), moved_on.key)
        order = jax.lax.select(
            moved_on.step == 0, np.arange(self.num_examples, dtype=np.int32), moved_on.order
        )
        return draw, moved_on._replace(key=same_key, order=order)


def test_fixed_size_draw_size():
    counts = drawn(FixedSizeSampling(12, 5), 1000)
    assert counts.max() == 1
    assert (counts.sum(axis=1) == 5).all()


def test_fixed_size_subsets_uniform():
    numbers = subset_numbers(drawn(FixedSizeSampling(5, 3), DRAWS), 3)
    assert uniform_p(numbers, 10) > FALSE_ALARM
    skewed = np.where(np.arange(DRAWS) % 20 == 0, 0, numbers)  # every twentieth is subset 0
    assert uniform_p(skewed, 10) < FALSE_ALARM


@pytest.mark.slow
def test_fixed_size_records_uniform_and_independent():
    counts = drawn(FixedSizeSampling(30, 6), DRAWS)
    assert same_share_p(counts) > FALSE_ALARM
    assert steps_p(counts) > FALSE_ALARM


def test_power_shuffled_epochs_dependent():
    assert steps_p(drawn(ShuffledEpochs(30, 6), DRAWS)) < FALSE_ALARM


def test_fixed_size_batch_of_all_records():
    assert (drawn(FixedSizeSampling(7, 7), 10) == 1).all()
    assert (drawn(ShuffledEpochs(7, 7), 10) == 1).all()


@pytest.mark.parametrize(("num_examples", "batch_size"), [(12, 4), (13, 4), (5, 1), (3, 2)])
def test_shuffled_epochs_each_record_once(num_examples, batch_size):
    sampling = ShuffledEpochs(num_examples, batch_size)
    counts = drawn(sampling, 4 * sampling.steps_per_epoch)
    epochs = counts.reshape(4, sampling.steps_per_epoch, num_examples)
    assert (epochs.sum(axis=1) == 1).all()
    last = num_examples - (sampling.steps_per_epoch - 1) * batch_size
    sizes = [batch_size] * (sampling.steps_per_epoch - 1) + [last]
    assert (epochs.sum(axis=2) == sizes).all()


def test_shuffled_epochs_fixed_shape():
    sampling = ShuffledEpochs(5, 2)
    draw_one, state = jax.jit(sampling.draw), sampling.init(jax.random.key(0))
    masks = []
    for _ in range(6):
        draw, state = draw_one(state)
        batch = sampling.batch(draw, 0)
        assert batch.indices.shape == batch.mask.shape == (2,)
        assert (batch.indices < 5).all()
        masks.append(batch.mask.tolist())
    assert masks == 2 * [[True, True], [True, True], [True, False]]


def orders_p(sampling: ShuffledEpochs) -> dict[str, float]:
    """All 24 orders of four records equally often, also after each order of the epoch before."""
    orders = epoch_orders(sampling, 40_000)
    number = {order: i for i, order in enumerate(itertools.permutations(range(4)))}
    numbers = np.array([number[tuple(order)] for order in orders.tolist()])
    pairs = numbers[:-1:2] * 24 + numbers[1::2]
    return {"orders": uniform_p(numbers, 24), "pairs of epochs": uniform_p(pairs, 576)}


def test_shuffled_epochs_orders_uniform():
    assert min(orders_p(ShuffledEpochs(4, 2)).values()) > FALSE_ALARM


@pytest.mark.parametrize("broken", [AlwaysShiftsByOne(4, 2), ShufflesOnce(4, 2)])
def test_power_repeated_orders(broken):
    assert orders_p(broken)["pairs of epochs"] < FALSE_ALARM


def test_fixed_size_event():
    event = FixedSizeSampling(12, 5).event([(2.0, 1)])
    assert event == SampledWithoutReplacementDpEvent(12, 5, GaussianDpEvent(2.0))


def test_shuffled_epochs_event_of_begun_epochs():
    sampling = ShuffledEpochs(7, 3)  # three steps an epoch
    one = GaussianDpEvent(1.0)
    for num_steps in (1, 2, 3):
        assert sampling.event([(1.0, num_steps)]) == one
    for num_steps in (4, 5, 6):
        assert sampling.event([(1.0, num_steps)]) == SelfComposedDpEvent(one, 2)


def test_shuffled_epochs_event_of_least_noise():
    sampling = ShuffledEpochs(7, 3)
    two_epochs = sampling.event([(2.0, 4), (1.0, 2)])  # 2 2 2 | 2 1 1
    assert two_epochs == ComposedDpEvent([GaussianDpEvent(2.0), GaussianDpEvent(1.0)])
    begun = sampling.event([(2.0, 6), (0.5, 1)])  # 2 2 2 | 2 2 2 | 0.5
    assert begun == ComposedDpEvent(
        [SelfComposedDpEvent(GaussianDpEvent(2.0), 2), GaussianDpEvent(0.5)]
    )
