"""Aligned gradients of DPSVI: the ELBO's without noise, their sensitivity, noise and refusals."""

import warnings
from functools import cache, partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.dpsvi_cases import FULL_RANK, MIXED, RECORDS, WHOLE, flat, mixture, private, step_of
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO, init_to_value
from numpyro.infer.autoguide import (
    AutoDelta,
    AutoDiagonalNormal,
    AutoLowRankMultivariateNormal,
    AutoNormal,
)
from scipy import stats

import dpjax
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.model_args import with_positions
from dpjax.federated import svi_training
from dpjax.gradients import clipped_grad

KEY = jax.random.key(2)
CLIP = 0.5
# One latent variable of the mixture is in (0, 1), so guides transform it.
GUIDES = {
    "mean field": AutoNormal(mixture),
    "mean field, one vector": AutoDiagonalNormal(mixture),
    "full rank": FULL_RANK,
    "low rank": AutoLowRankMultivariateNormal(mixture),
}


def aligned(guide="mean field", **fields):
    guide = GUIDES[guide]
    mechanism = dpjax.SubsampledGaussian(**{**vars(WHOLE), **fields})
    return DPSVI(mixture, guide, numpyro.optim.SGD(1.0), mechanism=mechanism, gradient="aligned")


def shifted(svi, state):
    """The state at parameters away from where the guide starts."""
    params = {
        name: np.array(leaf) for name, leaf in svi.optim.get_params(state.optim_state).items()
    }
    for leaf in params.values():
        leaf += 1 + np.cos(np.arange(leaf.size, dtype=np.float32)).reshape(leaf.shape)
    return state._replace(optim_state=svi.optim.init(params))


# Without noise and clipping: the gradient of the ELBO, as that of plain gradients.


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["mean field", *(pytest.param(n, marks=pytest.mark.slow) for n in list(GUIDES)[1:])],
)
def test_aligned_gradient_is_that_of_the_elbo(name):
    svi, plain = aligned(name), private(mixture, GUIDES[name])
    state = shifted(svi, svi.init(KEY, MIXED))
    means = [
        leaf for name, leaf in svi.optim.get_params(state.optim_state).items() if "loc" in name
    ]
    assert sum(map(len, state.noise.shapes)) == sum(leaf.ndim for leaf in means)
    expected = step_of(plain, shifted(plain, plain.init(KEY, MIXED)), MIXED)
    step = step_of(svi, state, MIXED)
    size = np.abs(flat(expected)).max()
    np.testing.assert_allclose(flat(step), flat(expected), rtol=1e-4, atol=1e-5 * size)

    # Power: with the draw of another step.
    summed = svi.clipped_sum(KEY, state, MIXED)
    other = svi.update_from_sum(state._replace(rng_key=jax.random.key(9)), summed, MIXED)
    params = svi.optim.get_params(state.optim_state), svi.optim.get_params(other.optim_state)
    difference = flat(jax.tree.map(lambda a, b: a - b, *params)) - flat(expected)
    assert np.abs(difference).max() > 1e-2 * size


# Sensitivity.


@cache
def sums():
    """``f(records, mask)``: the clipped sum that is released, and that sum aligned."""
    svi = aligned(l2_clip=CLIP)
    state = shifted(svi, svi.init(KEY, MIXED))
    params = svi.optim.get_params(state.optim_state)
    step = svi._step_of(state, (MIXED,), {})[0]

    @jax.jit
    def clipped_sums(records, mask):
        space = step.clipping_space(params, [], KEY)
        summed, _ = clipped_grad(space.loss, CLIP)(space.point, with_positions([records]), mask)
        return summed, space.to_params(summed)

    return clipped_sums


def sum_with(record, which=0):
    """The sum with ``record`` in the place of record 5; without record 5 where it is None."""
    records, mask = MIXED.copy(), np.ones(RECORDS, bool)
    mask[5] = record is not None
    records[5] = 0.0 if record is None else record
    return flat(sums()(records, mask)[which])


def test_sensitivity_of_the_released_sum_is_the_bound():
    records = [*np.linspace(-8, 8, 33), 1e3, -1e3]
    found, without = [sum_with(record) for record in records], sum_with(None)
    one_added = [np.linalg.norm(each - without) for each in found]
    assert max(one_added) == pytest.approx(CLIP, rel=1e-4)
    assert max(one_added) <= CLIP * (1 + 1e-4)
    assert min(one_added) < 0.9 * CLIP  # clipped by its norm, not scaled to the bound

    # One replaced: both in opposite directions come near twice the bound.
    replaced = [np.linalg.norm(a - b) for a in found for b in found]
    bounds = [
        aligned(l2_clip=CLIP, adjacency=adjacency, sampling=dpjax.PoissonSampling(RECORDS, 0.1))
        for adjacency in ("add_remove", "replace_one")
    ]
    added, exchanged = (svi.mechanism.sensitivity for svi in bounds)
    assert added == pytest.approx(max(one_added), rel=1e-4)
    assert 1.5 * CLIP < max(replaced) <= exchanged * (1 + 1e-4)

    # Power: noise for this bound, added after the alignment, would be too little.
    assert np.linalg.norm(sum_with(1e3, 1) - sum_with(None, 1)) > CLIP * (1 + 1e-2)


# Noise.


def many_means(y):
    loc = numpyro.sample("loc", dist.Normal(0, 1).expand([200]).to_event(1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(loc.sum(), 1), obs=y)


def noise_of(gradient):
    """Noise of a step in means and scales, over its standard deviation in the means."""
    guide, noise = AutoNormal(many_means), []
    for noise_multiplier in (0.0, 50.0):
        mechanism = dpjax.SubsampledGaussian(
            **{**vars(WHOLE), "l2_clip": CLIP, "noise_multiplier": noise_multiplier}
        )
        svi = DPSVI(
            many_means, guide, numpyro.optim.SGD(1.0), mechanism=mechanism, gradient=gradient
        )
        noise.append(step_of(svi, svi.init(KEY, np.ones(RECORDS, np.float32)), np.ones(RECORDS)))
    means, scales = (
        noise[1][f"loc_auto_{n}"] - noise[0][f"loc_auto_{n}"] for n in ("loc", "scale")
    )
    return means / (50 * CLIP), scales / (50 * CLIP)


def two_sided(noise):
    """P-value of a standard deviation of one."""
    tail = stats.chi2.cdf(np.sum(noise**2), len(noise))
    return 2 * min(tail, 1 - tail)


@pytest.mark.slow
def test_noise_in_scales_is_that_in_means_aligned():
    """False alarms: one in 10^4."""
    means, scales = noise_of("aligned")
    assert two_sided(means) > 1e-4
    assert two_sided(1.3 * means) < 1e-4 > two_sided(0.75 * means)  # power

    # T' u times that of the means: T'(0.1) = 1 - exp(-0.1), and u is standard normal.
    slope = -np.expm1(-0.1)
    draws = scales / means / slope
    assert stats.kstest(draws, "norm").pvalue > 1e-4
    assert np.std(scales) < 2 * slope

    # Power: noise of their own is ten times as large.
    _, plain = noise_of("plain")
    assert np.std(plain) > 0.8


def test_certificate_is_that_of_plain_gradients():
    fields = {"sampling": dpjax.PoissonSampling(RECORDS, 0.1), "noise_multiplier": 2.0}
    for adjacency in ("zero_out", "replace_one"):
        one = aligned(**fields, l2_clip=CLIP, adjacency=adjacency)
        other = private(mixture, GUIDES["mean field"], **fields, l2_clip=CLIP, adjacency=adjacency)
        assert one.mechanism == other.mechanism


# Noise-aware posterior.


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10).expand([20]).to_event(1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1).to_event(1), obs=y)


@pytest.mark.slow
def test_noise_aware_posterior_identifies_the_curvature_better():
    """The curvature is n + 1/100; without much variation of the means only scales determine it."""
    y = np.random.default_rng(0).normal(size=(1_000, 20)).astype(np.float32)
    mechanism = dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(1_000, 0.2),
        num_steps=2_000,
        l2_clip=20.0,
        noise_multiplier=1.0,
        adjacency="zero_out",
    )
    start = init_to_value(values={"mean": y.mean(0)})
    guide, fits = AutoNormal(normal, init_scale=0.03, init_loc_fn=start), {}
    for gradient in ("plain", "aligned"):
        svi = DPSVI(normal, guide, optax.adam(2e-3), mechanism=mechanism, gradient=gradient)
        result = svi.run(KEY, y, progress_bar=False)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            posterior = result.noise_aware_posterior()
        assert len(warned) == (gradient == "plain"), warned  # a curvature is not identified
        fits[gradient] = posterior.fits["mean_auto_loc"]
    fit = fits["aligned"]
    z = (fit.slope - 1_000.01) / fit.slope_std
    assert stats.chi2.sf(np.sum(z**2), 20) > 1e-4
    assert stats.norm.sf(abs(z.mean()) * np.sqrt(20)) > 1e-4
    assert (fit.slope_std < 0.5 * fits["plain"].slope_std).all()
    assert stats.chi2.sf(np.sum((10 * z) ** 2), 20) < 1e-4  # power


# Refusals.


def custom_guide(x):
    numpyro.sample("weight", dist.Beta(numpyro.param("a", 2.0), 2.0))
    numpyro.sample("means", dist.Normal(numpyro.param("m", jnp.zeros(2)), 1).to_event(1))


def with_param(x):
    scale = numpyro.param("noise", 1.0, constraint=dist.constraints.positive)
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(x)):
        numpyro.sample("x", dist.Normal(mean, scale), obs=x)


@pytest.mark.slow
def test_aligned_gradients_refuse_what_the_means_do_not_determine():
    make = partial(DPSVI, mixture, optim=optax.sgd(1.0), mechanism=WHOLE)
    with pytest.raises(ValueError, match=r"guide must be AutoNormal.*got custom_guide"):
        make(custom_guide, gradient="aligned").init(KEY, MIXED)
    with pytest.raises(ValueError, match=r"guide must be AutoNormal.*got AutoDelta"):
        make(AutoDelta(mixture), gradient="aligned").init(KEY, MIXED)
    with pytest.raises(ValueError, match=r"one particle.*num_particles = 2"):
        make(GUIDES["mean field"], loss=Trace_ELBO(num_particles=2), gradient="aligned")
    with pytest.raises(ValueError, match="l2_clip must be one number"):
        aligned(l2_clip={"means_auto_loc": 1.0, "weight_auto_loc": 1.0})
    with pytest.raises(ValueError, match="gradient must be one of 'plain', 'aligned'"):
        make(GUIDES["mean field"], gradient="natural")
    svi = DPSVI(
        with_param, AutoNormal(with_param), optax.sgd(1.0), mechanism=WHOLE, gradient="aligned"
    )
    with pytest.raises(ValueError, match=r"params must be those of the guide.*noise"):
        svi.init(KEY, MIXED)
    with pytest.raises(ValueError, match=r"svi must have gradient=.plain."):
        svi_training(KEY, aligned(), {"x": 0.0})


@pytest.mark.slow
def test_aligned_runs_resume_and_take_the_analytic_loss(tmp_path):
    fields = {"sampling": dpjax.PoissonSampling(RECORDS, 0.3), "noise_multiplier": 1.0}
    mechanism = dpjax.SubsampledGaussian(**{**vars(WHOLE), **fields, "l2_clip": 1.0})

    def make(gradient):
        return DPSVI(
            mixture,
            GUIDES["mean field"],
            optax.adam(0.01),
            TraceMeanField_ELBO(),
            mechanism=mechanism,
            gradient=gradient,
        )

    make("aligned").run(KEY, MIXED, num_steps=4, progress_bar=False, checkpoint_dir=tmp_path)
    resumed = make("aligned").run(KEY, MIXED, progress_bar=False, checkpoint_dir=tmp_path)
    whole = make("aligned").run(KEY, MIXED, progress_bar=False)
    jax.tree.map(np.testing.assert_array_equal, resumed.params, whole.params)
    report = make("aligned").clipping_report(KEY, whole.state, MIXED)
    assert report.clipped.keys() == whole.params.keys()
    with pytest.raises(ValueError, match="another"):
        make("plain").run(KEY, MIXED, progress_bar=False, checkpoint_dir=tmp_path)
