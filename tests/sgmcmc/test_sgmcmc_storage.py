"""Kept states on the host and on disk."""

import jax.numpy as jnp
import numpy as np

from dpjax.bayes.sgmcmc.storage import SampleStore

STATES = {"w": jnp.arange(12.0).reshape(2, 3, 2)}  # two states of three chains
PARAMS = {"w": jnp.zeros((3, 2))}


def test_states_of_chains_become_chains_of_states(tmp_path):
    for folder in (None, tmp_path):
        store = SampleStore(PARAMS, 4, folder)
        store.write(1, STATES)
        np.testing.assert_array_equal(store.samples["w"][:, 1:3], np.swapaxes(STATES["w"], 0, 1))
    again = SampleStore(PARAMS, 4, tmp_path).samples["w"]
    np.testing.assert_array_equal(again, store.samples["w"])


def test_a_file_of_another_shape_is_replaced(tmp_path):
    SampleStore(PARAMS, 9, tmp_path)
    assert SampleStore(PARAMS, 4, tmp_path).samples["w"].shape == (3, 4, 2)


def test_half_precision_that_numpy_has_no_files_of_becomes_single():
    samples = SampleStore(jnp.zeros((3, 2), jnp.bfloat16), 4, None).samples
    assert samples.dtype == np.float32
