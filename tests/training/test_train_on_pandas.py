"""Training on pandas frames and series is training on their arrays."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest

import dpjax

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


@pytest.mark.parametrize("as_data", [lambda x, y: (x, y), lambda x, y: {"x": x, "y": y}])
def test_train_on_frames_is_train_on_their_arrays(as_data):
    found = trained(as_data(FRAME, LABELS))
    np.testing.assert_array_equal(found, trained(as_data(FRAME.to_numpy(), LABELS.to_numpy())))


def test_train_refuses_frames_of_text():
    with pytest.raises(ValueError, match="data must be real numbers"):
        trained((FRAME.assign(b="x"), LABELS))
