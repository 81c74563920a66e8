"""A certificate says whether the number of records is public, and prints it only where it is."""

import jax
import jax.numpy as jnp
import numpyro
import numpyro.distributions as dist
import optax
import pytest
from helpers.inputs import gaussian_mechanism
from numpyro.infer.autoguide import AutoNormal

from dpjax import bdp
from dpjax.bayes import DPSVI
from dpjax.bayes.sgmcmc import SGLD
from dpjax.mechanisms import Composition, Gaussian, SubsampledGaussian
from dpjax.sampling import PoissonSampling, ShuffledEpochs, TruncatedPoissonSampling
from dpjax.sensitivity import of_count, of_mean

N, IN_WORDS = 54_321, "54,321"
WITHOUT_SIZE = PoissonSampling(N, 0.01, expected_batch_size=500)
DERIVED = PoissonSampling(N, 0.01)


def gaussian(sampling, adjacency):
    return gaussian_mechanism(sampling, noise_multiplier=2.0, num_steps=10, adjacency=adjacency)


def printed(certificate):
    return " ".join([str(certificate), certificate.paragraph(), str(certificate.to_dict())])


def assert_size_private(certificate):
    assert not certificate.guarantee.is_size_public
    assert "number of records private" in " ".join(str(certificate).split())
    assert "the number of records is private" in certificate.paragraph()
    assert IN_WORDS not in printed(certificate)
    assert str(N) not in printed(certificate)


def assert_said_to_be_public(certificate):
    (caveat,) = [c for c in certificate.caveats if "number of records was used" in c]
    assert "adjacency 'zero_out'" in caveat
    assert certificate.guarantee.is_size_public
    assert "number of records public: used to compute" in " ".join(str(certificate).split())
    assert caveat in certificate.paragraph()


def test_is_size_public_with_constant_divisor():
    certificate = gaussian(WITHOUT_SIZE, "add_remove").certificate(1e-5)
    assert_size_private(certificate)
    # Computing the divisor from the size is what makes the difference.
    with pytest.raises(AssertionError):
        assert_size_private(gaussian(DERIVED, "add_remove").certificate(1e-5))


def test_expected_batch_size_is_the_divisor():
    summed = {"w": jnp.full(2, 1_000.0)}
    for sampling, expected in ((WITHOUT_SIZE, 2.0), (DERIVED, 1_000 / 543.21)):
        noiseless = gaussian_mechanism(sampling, noise_multiplier=0.0, num_steps=10)
        optimizer = noiseless.private_optimizer(optax.scale(1.0), key=jax.random.key(0))
        updates, _ = optimizer.update(summed, optimizer.init(summed), summed)
        assert updates["w"] == pytest.approx(expected)


@pytest.mark.parametrize(
    "mechanism",
    [
        gaussian(DERIVED, "add_remove"),
        gaussian(
            TruncatedPoissonSampling(N, 0.01, truncated_batch_size=700, expected_batch_size=500),
            "add_remove",
        ),
        SGLD(WITHOUT_SIZE, l2_clip=1.0, step_size=1e-3, num_steps=3, adjacency="add_remove"),
        Composition((gaussian(WITHOUT_SIZE, "add_remove"), gaussian(DERIVED, "add_remove"))),
    ],
    ids=["divisor", "truncated", "sgld", "composition"],
)
def test_caveats_name_size_constants(mechanism):
    assert_said_to_be_public(mechanism.certificate(1e-3))


def test_caveats_of_dpsvi_name_the_scale():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=y)

    settings = {"num_steps": 3, "l2_clip": 1.0, "noise_multiplier": 2.0}
    for sampling in (WITHOUT_SIZE, DERIVED):
        mechanism = SubsampledGaussian(sampling, adjacency="add_remove", **settings)
        svi = DPSVI(model, AutoNormal(model), optax.sgd(0.1), mechanism=mechanism)
        assert_said_to_be_public(svi.mechanism.certificate(1e-5))
        both = Composition((svi.mechanism, svi.mechanism))
        assert_said_to_be_public(both.certificate(1e-5))


@pytest.mark.parametrize("adjacency", ["zero_out", "replace_one"])
def test_is_size_public_by_adjacency(adjacency):
    for sampling in (DERIVED, WITHOUT_SIZE, ShuffledEpochs(N, 500)):
        certificate = gaussian(sampling, adjacency).certificate(1e-5)
        assert certificate.guarantee.is_size_public
        assert not any("number of records was used" in c for c in certificate.caveats)
        assert "number of records public" in " ".join(str(certificate).split())
        assert IN_WORDS in " ".join(str(certificate).split())


def test_certificate_of_zero_out():
    removed, zeroed = (
        gaussian(DERIVED, adjacency).certificate(1e-5) for adjacency in ("add_remove", "zero_out")
    )
    assert removed.epsilon == zeroed.epsilon
    assert removed.epsilon_lower == zeroed.epsilon_lower
    assert [e.epsilon for e in removed.estimates] == [e.epsilon for e in zeroed.estimates]


def test_certificate_of_a_statistic_states_size():
    count = Gaussian(of_count(norm="l2", adjacency="add_remove"), 3.0).certificate(1e-5)
    assert not count.guarantee.is_size_public
    mean = of_mean((0, 1), 50, norm="l2", adjacency="zero_out")
    assert Gaussian(mean, 1.0).certificate(1e-5).guarantee.is_size_public


def test_bdp_cost_of_zero_out():
    norms = jnp.array([[0.2, 0.7, 3.0]])
    costs = [
        bdp.update(bdp.init(gaussian(DERIVED, adjacency)), norms).costs
        for adjacency in ("add_remove", "zero_out")
    ]
    assert (costs[0] == costs[1]).all()
    with pytest.raises(ValueError, match="adjacency must be 'add_remove' or 'zero_out'"):
        bdp.update(bdp.init(gaussian(DERIVED, "replace_one")), norms)


def test_size_constants_of_rounded_rates():
    n, batch_size = 1_161, 100
    assert batch_size / n * n != batch_size
    given = PoissonSampling(n, batch_size / n, expected_batch_size=batch_size)
    assert_said_to_be_public(gaussian(given, "add_remove").certificate(1e-5))
