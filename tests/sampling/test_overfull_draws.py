"""Of a draw larger than the usual batches hold, these have a uniformly random subset."""

import jax
import jax.numpy as jnp
import numpy as np
from scipy import stats

from dpjax.gradients import clipped_grad
from dpjax.sampling import PoissonSampling
from dpjax.sampling.poisson import pack
from dpjax.training.batch_gradient import sum_over_draw

FALSE_ALARM = 1e-6
N, RATE = 40, 0.05  # usual batches hold 7 of them, rounded up to 8: a full draw is five times that
SAMPLING = PoissonSampling(N, RATE, physical_batch_size=4)
MOST = SAMPLING.num_static_batches * SAMPLING.physical_batch_size


class Everyone(PoissonSampling):
    """Draws all records, whatever the rate: overfull every time."""

    def _bernoulli(self, key):
        return jnp.ones(self.num_examples, bool)


class InDataOrder(Everyone):
    """Broken as before: the first batches have the first records."""

    def draw(self, state):
        draw, state = super().draw(state)
        words = draw.usual.words | draw.further.words
        bits = (words[:, None] >> jnp.arange(32, dtype=jnp.uint32)) & 1
        chosen = bits.ravel()[: self.num_examples].astype(bool)
        first = jnp.cumsum(chosen) <= MOST
        return draw._replace(usual=pack(chosen & first), further=pack(chosen & ~first)), state


def reported(sampling, num_draws):
    """Norms that one step reports of records sorted by norm, ``(num_draws, slots)``."""
    data = jnp.arange(1.0, N + 1)
    clipped = clipped_grad(lambda params, record: params * record, l2_clip=1e3)

    def step(key):
        draw, _ = sampling.draw(sampling.init(key))
        total, info = sum_over_draw(clipped, sampling, draw, jnp.float32(1.0), data)
        return total, info.batch_size, info.norms, info.mask

    keys = jax.random.split(jax.random.key(7), num_draws)
    return jax.device_get(jax.jit(lambda keys: jax.lax.map(step, keys))(keys))


def inclusion_p(sampling):
    """Chi-square p-value of equal inclusion; those of one draw exclude each other."""
    total, sizes, norms, mask = reported(sampling, 2_000)
    assert (sizes == N).all()
    np.testing.assert_allclose(total, N * (N + 1) / 2, rtol=1e-5)  # nobody is dropped
    assert mask.all()
    assert mask.shape[1] == MOST
    counts = np.bincount(np.rint(norms).astype(int).ravel(), minlength=N + 1)[1:]
    share = MOST / N
    statistic = ((counts - 2_000 * share) ** 2).sum() / (2_000 * share * (1 - share))
    return stats.chi2.sf(statistic * (N - 1) / N, N - 1)


def test_norms_of_an_overfull_draw_of_sorted_records_are_a_random_subset():
    assert inclusion_p(Everyone(N, RATE, physical_batch_size=4)) > FALSE_ALARM


def test_power_the_first_records_of_the_data_are_no_random_subset():
    assert inclusion_p(InDataOrder(N, RATE, physical_batch_size=4)) < FALSE_ALARM


def test_every_subset_of_a_set_is_equally_likely_and_small_sets_stay_whole():
    chosen = pack(jnp.zeros(70, bool).at[jnp.array([3, 31, 32, 64, 69])].set(True))
    keys = jax.random.split(jax.random.key(0), 5_000)
    usual, further = jax.jit(jax.vmap(lambda key: chosen.split_randomly(key, 3)))(keys)
    assert (usual.counts[:, -1] == 3).all()
    assert (further.counts[:, -1] == 2).all()
    assert (usual.words ^ further.words == chosen.words).all()
    _, counts = np.unique(np.asarray(usual.words), axis=0, return_counts=True)
    assert len(counts) == 10
    assert stats.chisquare(counts).pvalue > FALSE_ALARM
    whole, nothing = chosen.split_randomly(keys[0], 5)
    assert (whole.words == chosen.words).all()
    assert int(nothing.size) == 0


def test_the_bits_of_a_draw_are_those_of_the_second_of_two_keys():
    """The random subset has a third key, which leaves the first two as they were."""
    key = jax.random.key(3)
    next_key, coins = jax.random.split(key)
    draw, state = SAMPLING.draw(SAMPLING.init(key))
    assert (jax.random.key_data(state) == jax.random.key_data(next_key)).all()
    expected = jax.random.bits(coins, (N,), jnp.uint32) < int(RATE * 2**32)
    assert (draw.usual.words | draw.further.words == pack(expected).words).all()
