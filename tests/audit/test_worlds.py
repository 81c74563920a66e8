"""Audits: honest code is not refuted, code with less noise or with a planted bug is."""

import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.stats import binomtest, norm

import dpjax
from dpjax import audit, verify
from dpjax.audit import _worlds

KEY = jax.random.key(11)
DELTA = 1e-5


def number(norm_name, adjacency="add_remove"):
    return dpjax.Sensitivity(1.0, norm_name, adjacency)


GAUSSIAN = dpjax.Gaussian(number("l2"), 2.0)
# Mechanisms of one release, with two neighbours that are as far apart as any.
RELEASES = {
    "gaussian": (GAUSSIAN, 0.0, 1.0),
    "gaussian, replace_one": (dpjax.Gaussian(number("l2", "replace_one"), 2.0), 0.0, 1.0),
    "laplace": (dpjax.Laplace(number("l1"), 1.0), 0.0, 1.0),
    "discrete laplace": (dpjax.DiscreteLaplace(number("l1"), 1.0), 0, 1),
    "discrete gaussian": (dpjax.DiscreteGaussian(number("l2"), 2.0), 0, 1),
}


def run(mechanism, first, second, *, by=None, num_runs=10_000, **options):
    release = (by or mechanism).release
    return audit.audit(
        KEY, release, first, second, mechanism, delta=DELTA, num_runs=num_runs, **options
    )


@pytest.mark.parametrize("name", RELEASES)
def test_a_mechanism_is_not_refuted_and_one_of_half_the_noise_is(name):
    mechanism, first, second = RELEASES[name]
    honest = run(mechanism, first, second)
    assert not honest.is_refuted
    assert 0.4 * honest.certificate.epsilon < honest.epsilon <= honest.certificate.epsilon
    assert 0 < honest.epsilon_distribution_free <= honest.epsilon
    half = run(mechanism, first, second, by=mechanism.with_privacy_factor(0.5))
    assert half.is_refuted
    assert half.errors.false_negative_rate < half.certified_false_negative_rate


@pytest.mark.slow
def test_more_noise_than_stated_is_not_refuted():
    report = run(GAUSSIAN, 0.0, 1.0, by=GAUSSIAN.with_privacy_factor(2.0))
    assert not report.is_refuted
    assert report.epsilon < 0.6 * report.certificate.epsilon


@pytest.mark.slow
def test_honest_releases_are_refuted_in_at_most_one_of_twenty_audits():
    """150 audits at confidence 0.9: above 24 refutations has a probability below 1e-2 at 10 %."""
    mechanism = dpjax.Gaussian(number("l2"), 1.0)

    def refuted(key):
        report = audit.audit(
            key,
            lambda key, mean: mean + jax.random.normal(key),
            0.0,
            1.0,
            mechanism,
            delta=DELTA,
            num_runs=1_000,
            confidence=0.9,
        )
        return report.is_refuted

    assert sum(map(refuted, jax.random.split(KEY, 150))) <= 24


@pytest.mark.slow
def test_half_the_noise_is_refuted_in_nineteen_of_twenty_audits():
    """20 audits of an epsilon of 1.3: below 17 has a probability below 1e-2 at 95 %."""
    mechanism = dpjax.Gaussian(number("l2"), 3.0)
    less = mechanism.with_privacy_factor(0.5)
    keys = jax.random.split(KEY, 20)
    found = [audit.audit(k, less.release, 0.0, 1.0, mechanism, delta=DELTA) for k in keys]
    assert sum(report.is_refuted for report in found) >= 17


def test_the_audited_epsilon_is_that_of_the_errors():
    report = run(GAUSSIAN, 0.0, 1.0)
    errors = report.errors
    mu = -norm.ppf(errors.false_positive_rate) - norm.ppf(errors.false_negative_rate)
    expected = float(dpjax.accounting.gdp.epsilon(mu, DELTA))
    assert report.epsilon == pytest.approx(expected, rel=0.02)


def training_loop(mechanism, *, noise_of=None, clip=None, mask=True, batch_mean=False):
    """A user's own loop of DP-SGD on the canary's loss; each option is a bug."""
    noisy = noise_of or mechanism
    sampling = mechanism.sampling
    gradient = dpjax.clipped_grad(audit.canary_loss, l2_clip=clip or mechanism.l2_clip)

    def train(key, data):
        noise_key, sampler_key = jax.random.split(key)
        noise = dpjax.add_gaussian_noise(
            noise_multiplier=noisy.noise_multiplier, l2_clip=mechanism.l2_clip, key=noise_key
        )
        optimizer = optax.chain(
            noise, optax.scale(1 / sampling.expected_batch_size), optax.sgd(1.0)
        )

        def step(carry, _):
            params, state, sampler = carry
            draw, sampler = sampling.draw(sampler)
            batch = sampling.batch(draw, 0)
            used = batch.mask if mask else jnp.ones_like(batch.mask)
            summed, _ = gradient(params, data[batch.indices], used)
            if batch_mean:
                summed = jax.tree.map(lambda leaf: leaf * 10.0, summed)
            updates, state = optimizer.update(summed, state, params)
            return (optax.apply_updates(params, updates), state, sampler), None

        params = jnp.zeros(data.shape[1])
        start = params, optimizer.init(params), sampling.init(sampler_key)
        (params, _, _), _ = jax.lax.scan(step, start, None, length=mechanism.num_steps)
        return params

    return train


def steps(rate, noise, num_steps, adjacency="zero_out"):
    return dpjax.SubsampledGaussian(
        dpjax.PoissonSampling(40, rate, physical_batch_size=40),
        l2_clip=1.0,
        noise_multiplier=noise,
        num_steps=num_steps,
        adjacency=adjacency,
    )


@functools.cache
def _whole_batches():
    return steps(1.0, 4.0, 10)


def audited(mechanism, loop, num_runs=4_000):
    adjacency = mechanism.guarantee.adjacency
    first, second = audit.canary_records(40, l2_clip=1.0, adjacency=adjacency, num_params=2)
    return audit.audit(KEY, loop, first, second, mechanism, delta=DELTA, num_runs=num_runs)


@pytest.mark.slow
def test_training_on_whole_batches_is_audited_close_to_its_certificate():
    mechanism = _whole_batches()
    report = audited(mechanism, training_loop(mechanism), num_runs=20_000)
    assert not report.is_refuted
    assert report.epsilon > 0.85 * report.certificate.epsilon


BUGS = {
    "half the noise": {"noise_of": steps(1.0, 2.0, 10)},
    "twice the clip bound": {"clip": 2.0},
    "a sum multiplied after the clip": {"batch_mean": True},
}


@pytest.mark.parametrize("bug", BUGS)
def test_a_planted_bug_is_refuted(bug):
    mechanism = _whole_batches()
    report = audited(mechanism, training_loop(mechanism, **BUGS[bug]))
    assert report.is_refuted
    assert report.title.startswith("REFUTED")


@pytest.mark.slow
def test_sampled_steps_are_audited_by_their_sums():
    mechanism = steps(0.1, 1.2, 30)
    sampling = mechanism.sampling
    gradient = dpjax.clipped_grad(audit.canary_loss, l2_clip=1.0)

    def noisy_sums(key, data):
        noise_key, sampler_key = jax.random.split(key)
        noise = mechanism.noise(noise_key)

        def step(carry, _):
            state, sampler = carry
            draw, sampler = sampling.draw(sampler)
            batch = sampling.batch(draw, 0)
            summed, _ = gradient(jnp.zeros(2), data[batch.indices], batch.mask)
            noisy, state = noise.update(summed, state)
            return (state, sampler), noisy[0]

        start = noise.init(jnp.zeros(2)), sampling.init(sampler_key)
        return jax.lax.scan(step, start, None, length=mechanism.num_steps)[1]

    def score(sums):
        return jnp.sum(jnp.log1p(0.1 * jnp.expm1((sums - 0.5) / 1.2**2)))

    first, second = audit.canary_records(40, l2_clip=1.0, adjacency="zero_out", num_params=2)
    report = audit.audit(KEY, noisy_sums, first, second, mechanism, delta=DELTA, score=score)
    assert not report.is_refuted
    assert report.epsilon > 0.5 * report.certificate.epsilon


@pytest.mark.slow
def test_padding_that_repeats_a_record_is_refuted():
    mechanism = steps(0.3, 2.0, 10)
    assert not audited(mechanism, training_loop(mechanism)).is_refuted
    assert audited(mechanism, training_loop(mechanism, mask=False)).is_refuted


def test_epsilon_of_more_steps_than_stated_is_refuted():
    stated, made = steps(1.0, 4.0, 3), steps(1.0, 4.0, 12)
    assert audited(stated, training_loop(made)).is_refuted


@pytest.mark.parametrize("adjacency", ["add_remove", "zero_out", "replace_one"])
def test_canary_records_are_neighbours_that_attain_the_clip_bound(adjacency):
    first, second = audit.canary_records(5, l2_clip=0.7, adjacency=adjacency, num_params=3)
    gradient = dpjax.clipped_grad(audit.canary_loss, l2_clip=0.7)
    sums = [gradient(jnp.zeros(3), data, None)[0] for data in (first, second)]
    moved = float(jnp.linalg.norm(sums[1] - sums[0]))
    assert moved == pytest.approx(1.4 if adjacency == "replace_one" else 0.7, rel=1e-5)
    assert len(second) == 5
    assert len(first) == (4 if adjacency == "add_remove" else 5)
    np.testing.assert_array_equal(first[:4], second[:4])


def test_an_attack_can_be_far_below_a_certificate_that_holds_for_every_attack():
    """The larger of two utilities: the certificate is that of any number of candidates."""
    moves = dpjax.Sensitivity(1.0, "linf", "replace_one", shape=(2,))
    mechanism = dpjax.NoisyMax(moves, 2.0)
    report = run(mechanism, np.array([1.0, 0.0]), np.array([0.0, 1.0]), num_runs=4_000)
    assert not report.is_refuted
    assert 0.4 * report.certificate.epsilon < report.epsilon


def test_runs_without_vmap_and_scores_of_ones_own():
    def release(key, data):
        assert not isinstance(data, jax.core.Tracer)
        return {"sum": np.asarray(GAUSSIAN.release(key, data)), "count": np.zeros(2)}

    report = run(GAUSSIAN, 0.0, 1.0, num_runs=400)
    alone = audit.audit(
        KEY, release, 0.0, 1.0, GAUSSIAN, delta=DELTA, num_runs=400, vectorize=False
    )
    scored = run(GAUSSIAN, 0.0, 1.0, num_runs=400, score=lambda released: 3 * released)
    assert alone.errors == report.errors == scored.errors
    other = run(GAUSSIAN, 0.0, 1.0, num_runs=400, score=lambda released: jnp.zeros(()))
    assert (other.epsilon, other.is_refuted) == (0.0, False)


def test_certificates_with_an_audit():
    report = run(GAUSSIAN, 0.0, 1.0)
    certificate = GAUSSIAN.certificate(DELTA).with_audit(report)
    assert report.title in str(certificate)
    values = json.loads(certificate.to_json())
    assert values["audit"] == json.loads(json.dumps(report.to_dict()))
    assert verify.verify(values).verdict == "verified"
    for change in ({"epsilon": 9.0}, {"certified_epsilon": 9.0}, {"is_refuted": True}):
        changed = {**values, "audit": {**values["audit"], **change}}
        changed["hash"] = verify.content_hash(changed)
        assert verify.verify(changed).verdict == "refused"


def test_an_audit_of_another_certificate_is_refused():
    report = run(GAUSSIAN, 0.0, 1.0, num_runs=400)
    with pytest.raises(ValueError, match="report must be an audit of epsilon, delta and adjacency"):
        GAUSSIAN.certificate(1e-6).with_audit(report)
    with pytest.raises(TypeError, match="report must be an AuditReport or OneRunReport, got Cert"):
        GAUSSIAN.certificate(DELTA).with_audit(GAUSSIAN.certificate(DELTA))
    with pytest.raises(TypeError, match="report must be"):
        GAUSSIAN.certificate(DELTA).with_audit(0.5)


def test_the_report_reads_well():
    report = run(GAUSSIAN, 0.0, 1.0)
    assert "which does not contradict the certified" in report.paragraph()
    assert "false positives" in str(report)
    assert "<table" in report._repr_html_()
    refuted = run(GAUSSIAN, 0.0, 1.0, by=GAUSSIAN.with_privacy_factor(0.5))
    assert "which refutes the certified" in refuted.paragraph()


@pytest.mark.parametrize(("count", "runs"), [(0, 100), (100, 100), (3, 50), (7, 7_000)])
def test_the_bounds_on_error_rates_are_those_of_clopper_and_pearson(count, runs):
    scores = np.arange(runs, dtype=float)
    threshold = np.array([runs - count - 1.0])
    found = _worlds._error_rates(scores, -scores, threshold, 0.025)
    exact = binomtest(count, runs).proportion_ci(0.95, "exact")
    assert (int(found[0][0]), int(found[1][0])) == (count, runs - (runs == count))
    assert found[2][0] == pytest.approx(exact.high)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"num_runs": 100}, "num_runs must be a whole number >= 200"),
        ({"confidence": 1.0}, r"confidence must be in \(0, 1\)"),
        ({"vectorize": "no"}, "vectorize must be True or False, got 'no'"),
        ({"score": lambda released: jnp.zeros(2)}, "score must be one number for each run"),
        ({"score": lambda released: jnp.nan}, "score must be a number for each run, got nan"),
    ],
)
def test_audit_refuses(options, message):
    with pytest.raises(ValueError, match=message):
        run(GAUSSIAN, 0.0, 1.0, **{"num_runs": 200, **options})


def test_audit_refuses_what_is_no_function_or_mechanism():
    with pytest.raises(TypeError, match="release must be"):
        audit.audit(KEY, 3, 0.0, 1.0, GAUSSIAN, delta=DELTA)
    with pytest.raises(TypeError, match="mechanism must be a mechanism, which has a certificate"):
        audit.audit(KEY, GAUSSIAN.release, 0.0, 1.0, 2.0, delta=DELTA)
    with pytest.raises(ValueError, match=r"delta must be in \(0, 1\)"):
        audit.audit(KEY, GAUSSIAN.release, 0.0, 1.0, GAUSSIAN, delta=0.0)


@pytest.mark.parametrize(
    "score",
    [
        lambda released: jnp.log(jnp.maximum(released, 0.0)),
        lambda released: jnp.where(released > 5, jnp.inf, released),
        lambda released: jnp.where(released < 3, -jnp.inf, jnp.inf),
    ],
)
def test_infinite_scores_do_not_refute_an_honest_release(score):
    mechanism = dpjax.Gaussian(number("l2"), 3.0)
    for key in jax.random.split(KEY, 2):
        report = audit.audit(
            key, mechanism.release, 0.0, 1.0, mechanism, delta=DELTA, num_runs=2_000, score=score
        )
        assert not report.is_refuted
        assert report.errors.false_positives + report.errors.false_negatives > 0


def test_a_grossly_wrong_loop_has_a_report_and_a_caveat():
    stated, made = steps(0.1, 4.0, 10), steps(1.0, 0.05, 10)
    report = audited(stated, training_loop(made), num_runs=1_000)
    assert report.is_refuted
    assert report.epsilon == report.epsilon_distribution_free
    assert "REFUTED" in str(report)
    certificate = stated.certificate(DELTA).with_audit(report)
    assert certificate.caveats[0].startswith("The code is not the mechanism")
    assert verify.verify(json.loads(certificate.to_json())).verdict == "refused"


@pytest.mark.parametrize(
    "change",
    [
        {"epsilon_distribution_free": 50.0},
        {"confidence": 0.0},
        {"errors": {"false_positive_rate": 0.0}},
        {"errors": {"false_positives": 10**9}},
        {"errors": {"false_negatives": 0, "false_negative_rate": 0.0}},
    ],
)
def test_a_forged_audit_is_refused(change):
    certificate = GAUSSIAN.certificate(DELTA).with_audit(run(GAUSSIAN, 0.0, 1.0, num_runs=400))
    values = json.loads(certificate.to_json())
    assert verify.verify(values).verdict == "verified"
    changed = values["audit"] | {name: new for name, new in change.items() if name != "errors"}
    changed["errors"] = values["audit"]["errors"] | change.get("errors", {})
    values = {**values, "audit": changed}
    assert verify.verify({**values, "hash": verify.content_hash(values)}).verdict == "refused"


@pytest.mark.parametrize(
    ("release", "message"),
    [
        (lambda key, data: jnp.full(2, jnp.nan), "release must be a function to finite.*NaN"),
        (
            lambda key, data: jnp.zeros(2, jnp.complex64),
            "release must be a function to finite.*complex64",
        ),
        (lambda key, data: (), "release must be a function to arrays of the same shapes"),
    ],
)
def test_releases_without_a_direction_are_refused(release, message):
    with pytest.raises(ValueError, match=message):
        audit.audit(KEY, release, 0.0, 1.0, GAUSSIAN, delta=DELTA, num_runs=200)
