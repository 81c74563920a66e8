"""Chains on a data source are those on the same records on the device, bit for bit."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from dpjax.bayes.sgmcmc import SGLD, sample
from dpjax.sampling import PoissonSampling, ShuffledEpochs
from dpjax.training import ArraySource

N = 60
_RNG = np.random.default_rng(0)
DATA = (_RNG.normal(size=(N, 3)).astype(np.float32), _RNG.normal(size=N).astype(np.float32))


class Crowded(PoissonSampling):
    """Poisson sampling most of whose draws exceed the usual batches."""

    @property
    def num_static_batches(self) -> int:
        return 1


def log_likelihood(weights, record):
    x, y = record
    return -0.5 * (jnp.tanh(x) @ weights - y) ** 2


def samples(data, sampling, batches, folder=None):
    chain = SGLD(
        sampling,
        l2_clip=1.0,
        step_size=0.1,
        num_steps=11,
        adjacency="zero_out",
        num_chains=2,
        batches=batches,
    )
    return sample(
        jax.random.key(1),
        log_likelihood,
        None,
        jnp.zeros(3),
        data,
        mechanism=chain,
        burn_in=3,
        thinning=2,
        steps_per_call=2,
        checkpoint_dir=folder,
        progress=False,
    ).samples


@pytest.mark.parametrize(
    ("sampling", "batches"),
    [
        pytest.param(Crowded(N, 0.2, physical_batch_size=8), "own", marks=pytest.mark.slow),
        (ShuffledEpochs(N, 13), "shared"),
    ],
)
def test_a_source_gives_the_samples_of_the_arrays(sampling, batches, tmp_path):
    resident = samples(DATA, sampling, batches)
    np.testing.assert_array_equal(samples(ArraySource(DATA), sampling, batches, tmp_path), resident)
    assert resident.shape == (2, 4, 3)
    assert (resident[0] != resident[1]).all()
    # power: other records give other samples
    shifted = ArraySource(tuple(np.roll(leaf, 1, axis=0) for leaf in DATA))
    assert (samples(shifted, sampling, batches) != resident).any()
