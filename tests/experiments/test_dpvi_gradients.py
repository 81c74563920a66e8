"""The averages of the iterates that `dpvi_gradients` compares."""

import warnings

import jax
import numpy as np
import optax
from numpyro.infer.autoguide import AutoNormal

import dpjax
from dpjax.bayes.variational import DPSVI
from experiments.dpvi.gradients import averages
from experiments.dpvi.inference import Fits
from experiments.dpvi.logistic import model


def test_averages_are_those_of_the_results():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.float32)
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(200, 0.2),
        num_steps=200,
        l2_clip=1.0,
        noise_multiplier=2.0,
        adjacency="zero_out",
    )
    svi = DPSVI(model, AutoNormal(model), optax.adam(0.05), mechanism=mechanism)
    results = [svi.run(jax.random.key(seed), x, y, progress_bar=False) for seed in range(2)]

    params, traces = [
        jax.tree.map(lambda *leaves: np.stack(leaves)[None], *trees)
        for trees in (
            [result.params for result in results],
            [result.state.trace for result in results],
        )
    ]
    found = averages(Fits(params, None, None, traces))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a trend in so few steps
        expected = [result.averaged_params() for result in results]
    for name, values in found.items():
        for run, average in enumerate(expected):
            np.testing.assert_allclose(values[0, run], average[name], rtol=1e-5)
            assert np.abs(values[0, run] - np.asarray(results[run].params[name])).max() > 1e-3
