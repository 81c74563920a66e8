"""Training and sampling on pandas frames and series are those on their arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import dpjax
from dpjax.bayes.sgmcmc import SGLD, sample

MECHANISM = dpjax.SubsampledGaussian(
    dpjax.PoissonSampling(20, 0.5),
    l2_clip=1.0,
    noise_multiplier=1.0,
    num_steps=3,
    adjacency="zero_out",
)
FRAME = pd.DataFrame({"a": np.arange(20.0), "b": np.ones(20)}, index=range(100, 120))
LABELS = pd.Series(np.arange(20) % 2, index=range(100, 120))


def trained(data):
    def loss(w, example):
        x, y = example if isinstance(example, tuple) else (example["x"], example["y"])
        return jnp.sum((x @ w - y) ** 2)

    key, start = jax.random.key(0), jnp.zeros(2)
    return dpjax.train(
        key, loss, start, data, optax.sgd(0.1), mechanism=MECHANISM, progress=False
    ).params


@pytest.mark.parametrize(
    "as_data",
    [lambda x, y: (x, y), pytest.param(lambda x, y: {"x": x, "y": y}, marks=pytest.mark.slow)],
)
def test_train_on_frames_is_train_on_their_arrays(as_data):
    found = trained(as_data(FRAME, LABELS))
    np.testing.assert_array_equal(found, trained(as_data(FRAME.to_numpy(), LABELS.to_numpy())))


@pytest.mark.slow
@pytest.mark.parametrize("missing", [False, True])
def test_train_on_nullable_columns_is_train_on_their_numbers(missing):
    """Missing numbers are NaN."""
    floats = FRAME.assign(b=[np.nan, *[1.0] * 19]) if missing else FRAME
    nullable = floats.assign(a=floats.a.convert_dtypes(), b=floats.b.convert_dtypes())
    assert nullable.a.dtype != floats.a.dtype
    found = trained((nullable, LABELS.convert_dtypes()))
    np.testing.assert_array_equal(found, trained((floats.to_numpy(), LABELS.to_numpy())))
    assert np.isfinite(found).all()


def sampled(data):
    chain = SGLD(
        dpjax.PoissonSampling(20, 0.5),
        l2_clip=1.0,
        step_size=0.1,
        num_steps=3,
        adjacency="zero_out",
    )

    def log_likelihood(w, example):
        return -jnp.sum((example[0] @ w - example[1]) ** 2)

    key, start = jax.random.key(0), jnp.zeros(2)
    return sample(key, log_likelihood, None, start, data, mechanism=chain, progress=False).samples


@pytest.mark.slow
def test_sample_on_frames_is_sample_on_their_arrays():
    found = sampled((FRAME, LABELS))
    np.testing.assert_array_equal(found, sampled((FRAME.to_numpy(), LABELS.to_numpy())))


def test_runs_refuse_frames_that_hold_no_numbers():
    for run in (trained, sampled):
        with pytest.raises(ValueError, match="data must be real numbers, got column 'b'"):
            run((FRAME.assign(b="x"), LABELS))
