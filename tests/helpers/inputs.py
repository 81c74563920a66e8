"""A mechanism, a loss and records, where a test needs one of each and does not care which."""

import functools

import jax.numpy as jnp
import numpy as np

from dpjax.mechanisms import SubsampledGaussian
from dpjax.sampling import PoissonSampling


def gaussian_mechanism(sampling=None, **changes) -> SubsampledGaussian:
    """Returns four steps of Poisson sampling of 40 records at 0.25, with changes."""
    fields = {"l2_clip": 1.0, "noise_multiplier": 1.0, "num_steps": 4, "adjacency": "add_remove"}
    return SubsampledGaussian(sampling or PoissonSampling(40, 0.25), **{**fields, **changes})


def update_of(transformation):
    """Its update of per-example gradients in batches without padding, or of sums."""
    return functools.partial(transformation.update, mask=None)


def squared_error(params, example):
    """The squared error of a linear prediction ``x @ params["w"]``."""
    x, y = example
    return (x @ params["w"] - y) ** 2


def linear_records(num_examples=40, num_features=3, seed=0):
    """Returns float32 features and targets of a linear model with noise."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(num_examples, num_features))
    y = x.sum(axis=1) + 0.1 * rng.normal(size=num_examples)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


class Crash(Exception):
    """Ends a run that is to be resumed."""


def crash_at(num_releases):
    """Returns an ``on_report`` that ends the run at so many releases."""

    def on_report(report):
        if report.num_releases >= num_releases:
            raise Crash

    return on_report
