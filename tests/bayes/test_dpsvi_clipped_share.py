"""The number of clipped records in DPSVI's release: sensitivity, noise, share and what it shows."""

import warnings
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.dpsvi_cases import FULL_RANK, MIXED, RECORDS, WHOLE, flat, mixture
from numpyro.infer.autoguide import AutoDelta, AutoDiagonalNormal, AutoNormal
from scipy import stats

import dpjax
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.noise_aware import ClippedShare
from dpjax.bayes.variational.step import CLIPPED, split_bound
from dpjax.federated import svi_training
from dpjax.gradients.clipping import rounding_margin

KEY = jax.random.key(2)
CLIP = 2.0  # some of the records' gradients exceed it
GUIDE = AutoNormal(mixture)


def inference(model=mixture, guide=GUIDE, optim=None, gradient="plain", share=True, **fields):
    mechanism = dpjax.SubsampledGaussian(**{**vars(WHOLE), "l2_clip": CLIP, **fields})
    return DPSVI(
        model,
        guide,
        numpyro.optim.SGD(1.0) if optim is None else optim,
        mechanism=mechanism,
        gradient=gradient,
        release_clipped_share=share,
    )


# Sensitivity.


@pytest.mark.parametrize("l2_clip", [0.5, 1.7, 3e-4, 12345.6])
@pytest.mark.parametrize("num_examples", [100, 100_000, 10_000_000])
def test_bounds_of_gradient_and_entry_are_within_the_clip_bound(l2_clip, num_examples):
    sampling = dpjax.PoissonSampling(num_examples, 0.1)
    mechanism = inference(l2_clip=l2_clip, sampling=sampling, adjacency="zero_out").mechanism
    bound, entry = split_bound(mechanism)
    num_terms = sampling.num_static_batches * sampling.physical_batch_size
    rounded = entry * (1 + 5 * rounding_margin(num_terms))
    assert (1 - 1e-11) * l2_clip < np.hypot(bound, rounded) < l2_clip
    assert bound > 0.96 * l2_clip


@cache
def sums(gradient, guide=GUIDE):
    """``f(record, others)``: the tree that is released, without noise; NaN adds nothing."""
    svi = inference(gradient=gradient, guide=guide)
    state = svi.init(KEY, MIXED)

    def released(record, others=MIXED):
        records = np.array(others)
        records[5] = record
        return svi.clipped_sum(KEY, state, records)

    return released


def distance(gradient, record, others=MIXED, guide=GUIDE):
    """By how much a record changes the released tree, in L2."""
    with_it, without = (flat(sums(gradient, guide)(each, others)) for each in (record, np.nan))
    return np.linalg.norm(with_it - without)


@pytest.mark.parametrize(
    "guide",
    [
        pytest.param(GUIDE, id="mean field"),
        pytest.param(FULL_RANK, id="full rank", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("gradient", ["plain", "aligned"])
def test_sensitivity_of_the_released_tree_is_the_clip_bound(gradient, guide):
    bound, entry = split_bound(inference().mechanism)
    records = [*np.linspace(-8, 8, 33), 1e3, -1e3]
    changes = [distance(gradient, record, guide=guide) for record in records]
    assert max(changes) == pytest.approx(CLIP, rel=1e-3)
    assert max(changes) <= CLIP

    # A record below its bound adds to the gradient alone, one far above it the whole entry.
    added = np.array(
        [
            sums(gradient, guide)(r)[CLIPPED] - sums(gradient, guide)(np.nan)[CLIPPED]
            for r in records
        ]
    )
    assert added.min() == 0
    assert added.max() == pytest.approx(entry, rel=1e-4)
    assert all(change < bound for change, e in zip(changes, added, strict=True) if not e)

    # Power: beside a gradient with the whole bound the entry would exceed it.
    assert np.hypot(CLIP, added.max()) > CLIP * (1 + 1e-2)


@pytest.mark.slow
def test_equal_records_near_the_bound_do_not_change_with_another():
    """All norms in the range where rounding changes what a record adds."""
    svi = inference()
    state, bound = svi.init(KEY, MIXED), split_bound(svi.mechanism)[0]
    values = np.linspace(-3, 3, 60)
    *_, info = svi.update_with_info(state, values.astype(np.float32))
    order = np.argsort(np.abs(np.asarray(info.norms)[:RECORDS] / bound - 1))
    for value in values[order[:3]]:
        others = np.full(RECORDS, value, np.float32)
        assert max(distance("plain", record, others) for record in (value, 1e3, 0.1)) <= CLIP


@pytest.mark.slow
def test_entry_counts_the_records_above_the_bound():
    svi = inference()
    state, (bound, entry) = svi.init(KEY, MIXED), split_bound(svi.mechanism)
    count = float(svi.clipped_sum(KEY, state, MIXED)[CLIPPED]) / entry
    *_, info = svi.update_with_info(state, MIXED)
    excess = np.asarray(info.norms)[np.asarray(info.mask)] / bound - 1
    assert count == pytest.approx(np.sum(np.clip(4 * excess, 0, 1)), rel=1e-5)
    assert 0 < np.sum(excess > 0.25) < count < np.sum(excess > 0) < RECORDS

    report = svi.clipping_report(jax.random.split(state.rng_key)[1], state, MIXED)
    assert float(report.share_clipped) == pytest.approx(np.mean(excess > 0))


def test_events_and_certificates_are_those_without_the_entry():
    fields = {"sampling": dpjax.PoissonSampling(RECORDS, 0.1), "noise_multiplier": 2.0}
    for adjacency in ("add_remove", "replace_one"):
        one, other = (
            inference(share=share, adjacency=adjacency, **fields) for share in (True, False)
        )
        assert one.mechanism == other.mechanism
        assert one.mechanism.certificate(1e-5).epsilon == other.mechanism.certificate(1e-5).epsilon


# Noise.


def entries(svi, num_steps):
    """What is released of the entry in that many first steps, each from another key."""
    state = svi.init(KEY, MIXED)
    step, data = svi._step_of(state, (MIXED,), {})

    def noisy(key):
        clipped_sum, _, _ = step.clipped_batch_gradient(state, state.sampler, data)
        return svi.mechanism.noise(key).update(clipped_sum, state.noise._replace(key=key))[0]

    return jax.vmap(noisy)(jax.random.split(KEY, num_steps))


@pytest.mark.slow
def test_entry_has_the_noise_of_the_gradient_and_is_independent_of_it():
    """False alarms: one in 10^4 each."""
    svi, num = inference(noise_multiplier=3.0), 2_000
    released = entries(svi, num)
    noise = np.asarray(released[CLIPPED]) - float(
        svi.clipped_sum(KEY, svi.init(KEY, MIXED), MIXED)[CLIPPED]
    )

    def p_value(noise):
        tail = stats.chi2.cdf(np.sum((noise / (3 * CLIP)) ** 2), num)
        return 2 * min(tail, 1 - tail)

    assert p_value(noise) > 1e-4
    assert p_value(1.15 * noise) < 1e-4 > p_value(0.85 * noise)  # power

    for each in released["means_auto_loc"].T:
        assert stats.pearsonr(noise, each).pvalue > 1e-4
        assert stats.pearsonr(noise, each + 0.2 * noise).pvalue < 1e-4  # power


# What the noise-aware posterior is told.


def normal(y):
    mean = numpyro.sample("mean", dist.Normal(0, 10).expand([2]).to_event(1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1).to_event(1), obs=y)


def posterior(l2_clip, share=True, guide=AutoNormal, gradient="aligned", key=KEY):
    """Of records from an asymmetric distribution, which clipping pulls to one side."""
    y = np.random.default_rng(0).exponential(size=(1_000, 2)).astype(np.float32)
    svi = inference(
        normal,
        guide(normal, init_scale=0.05),
        optax.sgd(1e-4),
        gradient,
        share,
        sampling=dpjax.PoissonSampling(1_000, 0.2),
        num_steps=1_500,
        l2_clip=l2_clip,
        noise_multiplier=2.0,
        adjacency="zero_out",
    )
    result = svi.run(key, y, progress_bar=False)
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        aware = result.noise_aware_posterior()
    report = svi.clipping_report(KEY, result.state, y)
    return aware, float(report.share_clipped), [str(each.message) for each in warned]


@pytest.mark.slow
@pytest.mark.parametrize("guide", [AutoNormal, AutoDiagonalNormal])
def test_clipping_that_moves_the_posterior_is_a_problem(guide):
    aware, share, warned = posterior(2.0, guide=guide)
    clipped = aware.clipped
    assert 0.6 * share < clipped.share < share + 4 * clipped.share_std  # some are near the bound
    assert share > 0.05 > 5 * clipped.share_std
    assert any("of the records are clipped" in each for each in warned)
    assert any("a larger l2_clip" in each for each in aware.problems)

    # What it moves: in the order of the true distance from the mean of the records.
    y = np.random.default_rng(0).exponential(size=(1_000, 2))
    draws = np.asarray(aware.posterior_samples(KEY, 1_000)["mean"][0])
    moved = np.abs(draws.mean(0) - y.mean(0)) / draws.std(0)
    assert np.sqrt(np.mean(moved**2)) / 4 < clipped.move < 4 * np.sqrt(np.mean(moved**2))


@pytest.mark.slow
def test_no_problem_where_nothing_is_clipped():
    """False alarms: one in 700."""
    aware, share, warned = posterior(12.0, key=jax.random.key(3))
    assert share == 0
    assert abs(aware.clipped.share) < 3 * aware.clipped.share_std
    assert not any("clipped" in each for each in warned)
    assert "as estimated from a noisy number (standard error" in str(aware)


@pytest.mark.slow
def test_a_share_that_is_not_released_is_not_stated():
    """Power of the two tests above: the same run without the entry knows the bound alone."""
    aware, share, warned = posterior(2.0, share=False)
    assert share > 0.05
    assert aware.clipped is None
    assert not any("of the records are clipped" in each for each in warned)
    assert any("release_clipped_share=True of DPSVI shows" in each for each in warned)
    assert "not released" in str(aware)

    aware, _, warned = posterior(12.0, share=False)
    assert aware.clipped is None
    assert not any("clip" in each for each in warned)


def test_share_below_its_noise_is_not_certain():
    assert not ClippedShare(0.002, 0.001, 1e3).is_certain
    assert ClippedShare(0.004, 0.001, 1e3).is_certain
    assert ClippedShare(-0.004, 0.001, 1e3).move == 0


@pytest.mark.slow
def test_resumed_runs_have_the_same_trace(tmp_path):
    fields = {"sampling": dpjax.PoissonSampling(RECORDS, 0.3), "noise_multiplier": 1.0}
    make = lambda: inference(**fields)  # noqa: E731
    make().run(KEY, MIXED, num_steps=4, progress_bar=False, checkpoint_dir=tmp_path)
    resumed = make().run(KEY, MIXED, progress_bar=False, checkpoint_dir=tmp_path)
    whole = make().run(KEY, MIXED, progress_bar=False)
    jax.tree.map(np.testing.assert_array_equal, resumed.state.trace, whole.state.trace)
    assert jnp.any(whole.state.trace.sums[CLIPPED])


# Refusals.


def test_share_is_refused_where_it_is_not_used():
    with pytest.raises(ValueError, match=r"guide must be AutoNormal, .*got AutoDelta"):
        inference(guide=AutoDelta(mixture)).init(KEY, MIXED)
    with pytest.raises(ValueError, match="l2_clip must be one number with release_clipped"):
        inference(l2_clip={"means_auto_loc": 1.0, "weight_auto_loc": 1.0})
    with pytest.raises(TypeError, match="release_clipped_share must be True or False"):
        inference(share="yes")
    with pytest.raises(ValueError, match="release_clipped_share=False"):
        svi_training(KEY, inference(), {"x": 0.0})
