"""SG-MCMC chains on a mesh of devices are those on one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from dpjax.bayes.sgmcmc import PSGLD, SGHMC, SGLD, RMSProp, sample
from dpjax.sampling import PoissonSampling
from dpjax.training import ArraySource, MeshSharding, split_records

NUM_EXAMPLES = 107
DATA = np.random.default_rng(0).normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
EIGHT = MeshSharding(jax.make_mesh((8,), ("data",)))
TWO_BY_FOUR = MeshSharding(
    jax.make_mesh((2, 4), ("data", "model")), "data", lambda path, leaf: P("model")
)
OWN = {
    SGLD: {},
    SGHMC: {"friction": 0.1},
    PSGLD: {"preconditioner": RMSProp(min_value=0.1, max_value=1.0)},
}


def run(kind, batches, sharding=None, split=False, folder=None, data=DATA):
    chain = kind(
        PoissonSampling(NUM_EXAMPLES, 0.3), l2_clip=2.0, step_size=0.05, num_steps=6,
        adjacency="zero_out", num_chains=2, batches=batches,
        **OWN[kind],
    )  # fmt: skip
    data = split_records(DATA, sharding) if split else data
    return sample(
        jax.random.key(1), lambda w, x: -0.5 * jnp.sum((w - x) ** 2), lambda w: -jnp.sum(w**2),
        jnp.zeros(4), data, mechanism=chain, sharding=sharding,
        checkpoint_dir=folder, progress=False,
    ).samples  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "batches", "sharding", "split"),
    [
        (SGLD, "own", TWO_BY_FOUR, True),
        (SGLD, "shared", EIGHT, False),
        (SGHMC, "own", EIGHT, True),
        (PSGLD, "shared", TWO_BY_FOUR, True),
    ],
)
def test_sample_on_a_mesh_is_that_of_one_device(kind, batches, sharding, split):
    found, expected = run(kind, batches, sharding, split), run(kind, batches)
    np.testing.assert_allclose(found, expected, atol=2e-6)
    assert not np.allclose(found[0], found[1])  # two chains


@pytest.mark.slow
def test_sample_recognises_a_finished_run_on_another_mesh(tmp_path):
    first = run(SGLD, "own", EIGHT, True, tmp_path)
    np.testing.assert_array_equal(run(SGLD, "own", TWO_BY_FOUR, False, tmp_path), first)


@pytest.mark.slow
@pytest.mark.parametrize("batches", ["own", "shared"])
def test_sample_on_a_source_and_a_mesh_is_that_on_arrays(batches):
    streamed = run(SGLD, batches, TWO_BY_FOUR, data=ArraySource(DATA))
    np.testing.assert_array_equal(streamed, run(SGLD, batches, TWO_BY_FOUR))
