"""DPSVI on a mesh of devices is DPSVI on one."""

import jax
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from jax.sharding import PartitionSpec as P
from numpyro.infer.autoguide import AutoMultivariateNormal, AutoNormal

from dpjax.bayes.variational import DPSVI
from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling
from dpjax.training import MeshSharding, split_records

NUM_EXAMPLES, NUM_STEPS = 107, 5
_RNG = np.random.default_rng(0)
X = _RNG.normal(size=(NUM_EXAMPLES, 4)).astype(np.float32)
Y = (X[:, 0] > 0).astype(np.float32)


def model(x, y):
    w = numpyro.sample("w", dist.Normal(0, 1).expand([4]).to_event(1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("y", dist.Bernoulli(logits=x @ w), obs=y)


def make(guide, sharding):
    mechanism = SubsampledGaussian(
        PoissonSampling(NUM_EXAMPLES, 0.3),
        num_steps=NUM_STEPS,
        l2_clip=1.0,
        noise_multiplier=1.0,
        adjacency="zero_out",
    )
    return DPSVI(model, guide(model), optax.adam(0.05), mechanism=mechanism, sharding=sharding)


def run(guide, sharding=None, split=False):
    data = {"x": X, "y": Y}
    data = split_records(data, sharding) if split else data
    svi = make(guide, sharding)
    return svi.run(jax.random.key(1), data["x"], data["y"], progress_bar=False)


EIGHT = MeshSharding(jax.make_mesh((8,), ("data",)))
TWO_BY_FOUR = MeshSharding(
    jax.make_mesh((2, 4), ("data", "model")),
    "data",
    lambda path, leaf: P("model") if np.shape(leaf) == (4,) else P(),
)


@pytest.mark.parametrize(
    ("guide", "sharding", "split"),
    [
        pytest.param(AutoNormal, EIGHT, True, marks=pytest.mark.slow),
        pytest.param(AutoNormal, TWO_BY_FOUR, False, marks=pytest.mark.slow),
        pytest.param(AutoMultivariateNormal, EIGHT, True, marks=pytest.mark.slow),
        pytest.param(AutoMultivariateNormal, TWO_BY_FOUR, True, marks=pytest.mark.slow),
    ],
)
def test_parameters_are_those_of_one_device(guide, sharding, split):
    found, expected = run(guide, sharding, split), run(guide)
    for name, value in expected.params.items():
        np.testing.assert_allclose(found.params[name], value, atol=2e-6)
    np.testing.assert_allclose(found.losses, expected.losses, rtol=1e-4)


@pytest.fixture(scope="module")
def records():
    return split_records({"x": X, "y": Y}, EIGHT)


def test_several_arrays_in_one_argument_are_refused(records):
    with pytest.raises(ValueError, match=r"one array of SplitRecords each, as records\['x'\]"):
        make(AutoNormal, EIGHT).init(jax.random.key(0), records)


def test_another_number_of_records_is_refused():
    few = split_records({"x": X[:9]}, EIGHT)
    with pytest.raises(ValueError, match=r"args must be of 107 records in all, got 9"):
        make(AutoNormal, EIGHT).init(jax.random.key(0), few["x"], Y)


def test_evaluation_takes_whole_arrays(records):
    with pytest.raises(ValueError, match=r"whole arrays here, got SplitRecords"):
        make(AutoNormal, EIGHT).evaluate(None, records["x"], records["y"])
