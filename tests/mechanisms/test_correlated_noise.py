"""Correlated noise in a mechanism: its event, from sampler and strategy, and its refusals."""

import itertools
import json
import math
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent, SelfComposedDpEvent
from scipy.linalg import toeplitz

from dpjax import (
    BLT,
    BandedToeplitz,
    CyclicPoissonSampling,
    Dense,
    FixedSizeSampling,
    InverseSquareRoot,
    LambdaCGD,
    PoissonSampling,
    ShuffledEpochs,
    SubsampledGaussian,
    TruncatedPoissonSampling,
    calibrate,
    mechanism_of,
    private_step,
    train,
    verify,
)
from dpjax.bdp.accountant import subsampled_gaussian_steps

KEY = jax.random.key(2)
WHOLE = CyclicPoissonSampling(24, 0.25, num_groups=4)
HALF = CyclicPoissonSampling(24, 0.125, num_groups=4)
STRATEGIES = [
    BandedToeplitz(3),
    BandedToeplitz(6),
    BLT(2),
    InverseSquareRoot(3),
    LambdaCGD(0.7),
    Dense(),
]
each_strategy = pytest.mark.parametrize(
    "strategy", STRATEGIES, ids=lambda s: f"{type(s).__name__}{getattr(s, 'bands', '')}"
)


def mechanism(strategy=None, sampling=WHOLE, num_steps=10, **changes):
    settings = {"l2_clip": 1.0, "noise_multiplier": 3.0, "adjacency": "zero_out", **changes}
    return SubsampledGaussian(sampling, num_steps=num_steps, correlation=strategy, **settings)


def loss(w, x):
    return jnp.vdot(w, x)


def worst_mu(planned, num_steps=10, **changes):
    """Of the released sums of all steps, with the noise: mu of the worst record, by its program.

    The noise's covariance is that of the noise matrix; a record's contribution is what the step
    releases with it less what it does without it, which is the same noise.
    """
    column = planned.correlation.noise_matrix(num_steps)
    inverse = np.tril(toeplitz(column)) if column.ndim == 1 else column
    covariance = 9.0 * inverse @ inverse.T
    rows = jnp.zeros((24, 2)).at[:, 0].set(1.0)  # all clipped sums are along one direction

    # Steps are one after the other: the second coordinate has the noise alone.
    @jax.jit
    def released(data):
        step = private_step(loss, optax.sgd(1.0), mechanism=planned, key=KEY)
        state, sums = step.init(jnp.zeros(2)), []
        for _ in range(num_steps):
            before = state.params
            state, _ = step.update(state, data)
            sums.append((before - state.params) * planned.sampling.expected_batch_size)
        return jnp.stack(sums)

    base, mus = released(rows), []
    for record in range(8):
        moved = np.asarray(base - released(rows.at[record].set(0.0)))[:, 0]
        mus.append(math.sqrt(moved @ np.linalg.solve(covariance, moved)))
    return max(mus)


@pytest.mark.slow
@each_strategy
def test_event_is_attained_by_the_worst_record(strategy):
    """By the Gram matrix of what the steps release with and without a record."""
    planned = mechanism(strategy)
    attained = worst_mu(planned)
    event = planned.event
    if isinstance(event, SelfComposedDpEvent):
        mu = math.sqrt(event.count) / event.event.event.noise_multiplier
    else:
        mu = 1 / event.noise_multiplier
    assert attained <= mu * (1 + 1e-5)
    # 10 steps in groups of 4: the last column of a record is cut, which independent columns ignore.
    assert attained >= mu * (0.95 if isinstance(event, SelfComposedDpEvent) else 1 - 1e-5)

    # Planted: one participation too few.
    once, _ = planned.correlation.sensitivity(10, separation=8)
    assert attained > once / 3.0 * (1 + 1e-3)


def test_events():
    sensitivity, is_exact = LambdaCGD(0.7).sensitivity(10, separation=4)
    assert is_exact
    assert mechanism(LambdaCGD(0.7)).event == GaussianDpEvent(3.0 / sensitivity)

    # Bands up to the number of groups: amplified; the noise over the norm of a column.
    planned = mechanism(BandedToeplitz(4), HALF)
    column, _ = planned.correlation.sensitivity(10)
    step = PoissonSampledDpEvent(0.5, GaussianDpEvent(3.0 / column))
    assert planned.event == SelfComposedDpEvent(step, 3)

    # One epoch of shuffled batches: every strategy, one column.
    once = mechanism(BLT(2), ShuffledEpochs(24, 6), num_steps=4)
    column, _ = once.correlation.sensitivity(4)
    assert once.event == GaussianDpEvent(3.0 / column)


def test_bands_and_groups_off_by_one():
    """Five bands of four groups overlap: not amplified, and refused where groups are sampled."""
    assert isinstance(mechanism(BandedToeplitz(4)).event, SelfComposedDpEvent)
    planned = mechanism(BandedToeplitz(5))
    assert isinstance(planned.event, GaussianDpEvent)
    with pytest.raises(ValueError, match="correlation must fit the sampler"):
        mechanism(BandedToeplitz(5), HALF)

    # What overlapping columns cost more than columns that do not.
    column, _ = planned.correlation.sensitivity(10)
    assert 3.0 / planned.event.noise_multiplier > math.sqrt(3) * column * 1.01


@pytest.mark.parametrize(
    ("strategy", "sampling"),
    [
        *itertools.product(
            [BandedToeplitz(2), LambdaCGD(0.5)],
            [
                PoissonSampling(24, 0.25),
                TruncatedPoissonSampling(24, 0.25),
                FixedSizeSampling(24, 6),
                ShuffledEpochs(24, 6),
                CyclicPoissonSampling(24, 0.25, num_groups=1),
            ],
        ),
        (BLT(2), HALF),
        (LambdaCGD(0.5), HALF),
        (InverseSquareRoot(3), HALF),
        (Dense(), HALF),
    ],
)
def test_samplers_that_do_not_fit(strategy, sampling):
    words = "correlation must fit the sampler.*CyclicPoissonSampling of whole groups"
    with pytest.raises(ValueError, match=words):
        mechanism(strategy, sampling)


def test_refusals():
    with pytest.raises(ValueError, match="noise_multiplier must be one number with correlation"):
        mechanism(LambdaCGD(0.5), noise_multiplier=(1.0,) * 10)
    with pytest.raises(ValueError, match="correlation's num_steps must be at least"):
        mechanism(BandedToeplitz(3, num_steps=9))
    with pytest.raises(TypeError, match="correlation must be a strategy"):
        mechanism("banded")
    planned = mechanism(LambdaCGD(0.5))
    with pytest.raises(ValueError, match="SubsampledGaussian with PoissonSampling"):
        subsampled_gaussian_steps(planned)


def test_one_step_fits_every_sampler():
    """A budget is checked against the first step alone."""
    one = mechanism(LambdaCGD(0.5), PoissonSampling(24, 0.25), num_steps=1)
    assert one.event == mechanism(None, PoissonSampling(24, 0.25), num_steps=1).event
    first = mechanism(BandedToeplitz(4), HALF).first_steps(1)
    assert first.event == PoissonSampledDpEvent(0.5, GaussianDpEvent(3.0))


def test_fewer_steps_keep_the_coefficients():
    planned = mechanism(BandedToeplitz(3), num_steps=12)
    fewer = planned.first_steps(5)
    assert fewer.correlation == planned.correlation
    assert fewer.certificate(1e-5).epsilon < planned.certificate(1e-5).epsilon
    assert mechanism(BandedToeplitz(3), num_steps=5).correlation != fewer.correlation


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_certificate(adjacency):
    planned = mechanism(BandedToeplitz(4), HALF, adjacency=adjacency)
    planned = calibrate(planned, epsilon=2.0, delta=1e-5)
    certificate = planned.certificate(1e-5)
    text = certificate.paragraph()
    for part in ("BandedToeplitz(bands=4", "takes part 3 times at most, 4 steps apart", "cyclic"):
        assert part in text, part
    # The estimate of the last parameters is of independent noise.
    assert "last iterate" not in str(certificate)
    # The file is recomputed from its event.
    values = json.loads(certificate.to_json())
    assert verify.verify(values).verdict == "verified"


def test_replaced_records_cost_twice():
    one, two = (mechanism(LambdaCGD(0.7), adjacency=a) for a in ("zero_out", "replace_one"))
    half = replace(one, noise_multiplier=1.5)
    assert two.certificate(1e-5).epsilon == pytest.approx(half.certificate(1e-5).epsilon, rel=1e-6)


@each_strategy
def test_mechanism_of_a_state(strategy):
    planned = mechanism(strategy)
    state = planned.private_optimizer(optax.adam(0.1), key=KEY).init(jnp.zeros(3))
    read = mechanism_of(state, sampling=WHOLE, num_steps=10, adjacency="zero_out")
    assert read.event == planned.event


@pytest.mark.slow
def test_train_resumes_to_the_same_parameters(tmp_path):
    data = jax.random.normal(jax.random.key(0), (24, 3))
    planned = mechanism(BandedToeplitz(3))
    settings = {"mechanism": planned, "progress": False, "steps_per_call": 3}
    whole = train(KEY, loss, jnp.zeros(3), data, optax.sgd(0.1), **settings)

    class StopError(Exception):
        pass

    def stop(report):
        if report.num_releases == 6:
            raise StopError

    with pytest.raises(StopError):
        train(KEY, loss, jnp.zeros(3), data, optax.sgd(0.1), checkpoint_dir=tmp_path,
              on_report=stop, **settings)  # fmt: skip
    resumed = train(KEY, loss, jnp.zeros(3), data, optax.sgd(0.1), checkpoint_dir=tmp_path,
                    **settings)  # fmt: skip
    np.testing.assert_array_equal(whole.params, resumed.params)
    assert resumed.mechanism == planned

    # The noise of another strategy would be applied to other gradients.
    settings["mechanism"] = mechanism(BandedToeplitz(4))
    with pytest.raises(ValueError, match=r"correlation\.bands is 3 there and 4 here"):
        train(KEY, loss, jnp.zeros(3), data, optax.sgd(0.1), checkpoint_dir=tmp_path, **settings)


@pytest.mark.slow
def test_errors_of_prefix_sums_are_smaller():
    """What it is for: the parameters after all steps of SGD on constant gradients."""
    keys = jax.random.split(KEY, 64)

    def last(planned):
        def run(key):
            noise, total = planned.noise(key), jnp.zeros(50)
            state = noise.init(total)
            for _ in range(planned.num_steps):
                noisy, state = noise.update(jnp.zeros(50), state)
                total += noisy
            return total

        return float(jnp.std(jax.jit(jax.vmap(run))(keys)))

    sampling = CyclicPoissonSampling(64, 1 / 16, num_groups=16)
    plain = calibrate(mechanism(None, sampling, 64), epsilon=1.0, delta=1e-5)
    banded = calibrate(mechanism(BandedToeplitz(16), sampling, 64), epsilon=1.0, delta=1e-5)
    expected = BandedToeplitz(16).report(64, separation=16)
    ratio = last(banded) / last(plain)
    # Of the last prefix sum alone; the noise of both is calibrated up to 1 %.
    inverse = banded.correlation.noise_matrix(64)
    error = np.linalg.norm(np.cumsum(inverse)) / 8 * expected.sensitivity / 2
    assert ratio == pytest.approx(error, rel=0.05)
    assert ratio < 0.6


@pytest.mark.slow
def test_dpsvi():
    """Trains and certifies; its noise-aware posterior needs independent noise."""
    import numpyro
    from numpyro import distributions as dist
    from numpyro.infer.autoguide import AutoNormal

    from dpjax.bayes import DPSVI

    def model(x):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(x)):
            numpyro.sample("x", dist.Normal(mean, 1), obs=x)

    planned = mechanism(LambdaCGD(0.7))
    svi = DPSVI(model, AutoNormal(model), numpyro.optim.Adam(0.1), mechanism=planned)
    result = svi.run(KEY, jnp.ones(24), progress_bar=False)
    assert result.certificate(1e-5).epsilon == planned.certificate(1e-5).epsilon
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(result.params))
    with pytest.raises(ValueError, match="mechanism's correlation must be None for a noise-aware"):
        result.noise_aware_posterior()


def test_buffers_are_placed_like_parameters():
    """With a leading axis of buffers; on a mesh of one device the specs alone are seen."""
    from jax.sharding import PartitionSpec

    from dpjax import MeshSharding

    sharding = MeshSharding(
        jax.make_mesh((1,), ("data",)), "data", param_rule=lambda path, leaf: PartitionSpec("data")
    )
    params = {"w": jnp.zeros((4, 3))}
    state = mechanism(BandedToeplitz(3)).noise(KEY).init(params)
    specs = sharding.state_specs(state, params)
    assert specs.buffers["w"] == PartitionSpec(None, "data")
