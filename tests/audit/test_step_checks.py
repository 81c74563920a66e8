"""Checks of private steps: right ones pass, wrong ones fail, and each check can fail."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import dpjax
from dpjax import audit

KEY = jax.random.key(0)
STD = 2.0
RECORDS = jax.random.normal(jax.random.key(5), (6, 4))


def mechanism(adjacency="add_remove", sensitivity=1.0):
    return dpjax.Gaussian(dpjax.Sensitivity(sensitivity, "l2", adjacency), STD)


def clipped_sum(records):
    norms = jnp.linalg.norm(records, axis=1)  # infinite for records that are huge
    usable = jnp.isfinite(records).all(axis=1)
    factors = jnp.minimum(1.0, 1.0 / jnp.maximum(norms, 1e-20))
    return jnp.sum(jnp.where(usable[:, None], records * factors[:, None], 0.0), axis=0)


def noisy_sum(std=STD, scale=1.0):
    def step(key, records):
        return scale * (clipped_sum(records) + std * jax.random.normal(key, (4,)))

    return step


def checked(step, claimed=None, key=KEY, **options):
    claimed = mechanism() if claimed is None else claimed
    return audit.check_step(key, step, RECORDS, claimed, num_runs=2_000, **options)


def failed(report):
    return [each.name for each in report.failures]


def test_a_right_step_passes_whatever_its_scale():
    for scale in (1.0, 1 / 50):
        assert checked(noisy_sum(scale=scale)).verdict == "passed"


@pytest.mark.parametrize(("adjacency", "bound"), [("zero_out", 1.0), ("replace_one", 2.0)])
def test_adjacencies(adjacency, bound):
    assert checked(noisy_sum(), mechanism(adjacency, bound)).verdict == "passed"
    assert failed(checked(noisy_sum(), mechanism(adjacency, bound / 2))) == ["sensitivity"]


@pytest.mark.slow
def test_a_sampled_mechanism_is_compared_by_its_noise_multiplier():
    sampling = dpjax.PoissonSampling(100, 0.1)
    for noise, verdict in ((STD, "passed"), (1.1 * STD, "failed")):
        claimed = dpjax.SubsampledGaussian(
            sampling, l2_clip=1.0, noise_multiplier=noise, num_steps=3, adjacency="add_remove"
        )
        assert checked(noisy_sum(), claimed).verdict == verdict


def normals(key, scale=1.0):
    return STD * scale * jax.random.normal(key, (4,))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "name"),
    [
        (lambda key: jnp.zeros(4), "noise on every number"),
        (lambda key: normals(key).at[1].set(0.0), "noise on every number"),
        (lambda key: normals(key, jnp.array([1, 1, 1, 0.7])), "equal noise"),
        (
            lambda key: STD * math.sqrt(3) * jax.random.uniform(key, (4,), minval=-1, maxval=1),
            "normal noise",
        ),
        (lambda key: jnp.clip(normals(key), -2.5 * STD, 2.5 * STD), "normal noise"),
        (lambda key: STD * jax.random.t(key, 5.0, (4,)) / math.sqrt(5 / 3), "normal noise"),
        (lambda key: jnp.full(4, normals(key)[0]), "independent noise"),
        (
            lambda key: (
                normals(key) * jnp.array([1, 0.8, 1, 1])
                + jnp.array([0, 0.6, 0, 0]) * normals(key)[0]
            ),
            "independent noise",
        ),
        (
            lambda key: normals(jax.random.key(jax.random.key_data(key)[-1] % 100)),
            "keys",
        ),
    ],
)
def test_power_of_each_check_of_the_noise(noise, name):
    assert name in failed(checked(lambda key, records: clipped_sum(records) + noise(key)))


@pytest.mark.slow
def test_power_of_the_checks_of_records():
    def of_size(key, records):
        return clipped_sum(records) + normals(key) * len(records) / 6

    def without_nan_check(key, records):
        norms = jnp.linalg.norm(records, axis=1, keepdims=True)
        return jnp.sum(records / jnp.maximum(1.0, norms), axis=0) + normals(key)

    def with_maximum(key, records):
        return {"sum": noisy_sum()(key, records), "maximum": jnp.nanmax(records, initial=0.0)}

    assert "noise and records" in failed(checked(of_size))
    assert "finite" in failed(checked(without_nan_check))
    assert "noise on every number" in failed(checked(with_maximum))


@pytest.mark.slow
def test_integers_and_records_that_are_not_clipped_are_not_decided():
    def rounded(key, records):
        return {"sum": noisy_sum()(key, records), "number": jax.random.poisson(key, 5.0)}

    report = checked(rounded)
    assert [each.name for each in report.checks if each.verdict == "not decided"] == ["integers"]
    assert report.verdict == "not decided"

    def timid(key, records):
        return 0.2 * clipped_sum(records) + normals(key)

    assert [each.name for each in checked(timid).checks if each.verdict != "passed"] == [
        "sensitivity"
    ]


def test_batches_of_one_length_need_a_null_record():
    def step(key, batch):
        records, mask = batch
        if len(mask) != 6:
            raise ValueError("six")
        return clipped_sum(jnp.where(mask[:, None], records, 0.0)) + normals(key)

    batch = RECORDS, jnp.ones(6, bool)
    report = audit.check_step(KEY, step, batch, mechanism(), num_runs=2_000)
    assert (report.verdict, "null_record" in str(report)) == ("not decided", True)
    null = np.zeros(4), False
    report = audit.check_step(KEY, step, batch, mechanism(), num_runs=2_000, null_record=null)
    assert report.verdict == "passed"


@pytest.mark.slow
def test_a_step_in_numpy_run_by_run():
    """A right step passes, and one with half the noise is seen, with the runs of the default."""

    def make(noise_std):
        def step(key, records):
            rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
            finite = np.where(np.isfinite(records).all(axis=1, keepdims=True), records, 0.0)
            norms = np.linalg.norm(finite.astype(float), axis=1, keepdims=True)
            clipped = finite / np.maximum(norms, 1)
            return {"sum": clipped.sum(axis=0) + noise_std * rng.normal(size=finite.shape[1])}

        return step

    right = audit.check_step(KEY, make(STD), RECORDS, mechanism(), vectorize=False)
    assert right.verdict == "passed"
    wrong = audit.check_step(KEY, make(STD / 2), RECORDS, mechanism(), vectorize=False)
    assert failed(wrong) == ["sensitivity"]


def test_a_release_of_numpy_beyond_float32_is_infinite():
    def step(key, records):
        rng = np.random.default_rng(np.asarray(jax.random.key_data(key)))
        return 1e200 * np.abs(records).sum(axis=0, dtype=float) + rng.normal(size=4)

    report = audit.check_step(KEY, step, RECORDS, mechanism(), num_runs=200, vectorize=False)
    assert failed(report) == ["finite"]


@pytest.mark.slow
def test_false_alarms_and_power_over_keys():
    """Of 20 right steps none is refused (8 checks at 1e-6 each); half the noise always is."""
    right, wrong = noisy_sum(), noisy_sum(STD / 2)
    keys = jax.random.split(jax.random.key(8), 20)
    assert [failed(checked(right, key=key)) for key in keys] == [[]] * 20
    assert all("sensitivity" in failed(checked(wrong, key=key)) for key in keys)


def test_the_report_reads_well():
    report = audit.StepReport(
        mechanism=mechanism(), checks=(audit.StepCheck("keys", "failed", "one key"),)
    )
    assert "FAILED: the step is not the mechanism (keys)" in str(report)
    assert report.paragraph() == "Keys: one key."
    assert report.to_dict()["verdict"] == "failed"
    assert "<table" in report._repr_html_()


def test_arguments_are_refused():
    with pytest.raises(TypeError, match="mechanism must be a SubsampledGaussian or a Gaussian"):
        audit.check_step(KEY, noisy_sum(), RECORDS, 2.0)
    with pytest.raises(TypeError, match="step must be a function of"):
        audit.check_step(KEY, 3, RECORDS, mechanism())
    with pytest.raises(ValueError, match="num_runs must be"):
        audit.check_step(KEY, noisy_sum(), RECORDS, mechanism(), num_runs=3)
