"""Posterior draws as arviz's data trees, and numpyro's Predictive on what DPSVI releases."""

import arviz_stats
import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.dpsvi_cases import X, Y, logistic_guide, private
from numpyro.infer import Predictive

from dpjax.bayes.sgmcmc import SGLD, ChainResult
from dpjax.bayes.variational import to_arviz
from dpjax.sampling import PoissonSampling

DRAWS = {"w": np.random.default_rng(0).normal(size=(1, 300, 3))}
CHAIN = SGLD(
    PoissonSampling(8, 0.5),
    l2_clip=1.0,
    step_size=0.1,
    num_steps=300,
    adjacency="add_remove",
    num_chains=2,
)


def model(x, y=None):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        logits = numpyro.deterministic("logits", x @ weights)
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


@pytest.mark.slow
def test_predictive_on_released_draws_and_parameters():
    svi, public = private(model, logistic_guide), 2 * jnp.eye(3)[:2]
    params = {"loc": jnp.array([2.0, -1.0, 0.5]), "scale": 0.1 * jnp.ones(3)}

    # From draws: the same draws of the weights, so their logits are exact.
    samples = svi.posterior_samples(jax.random.key(1), params, 400, X, Y)
    drawn = Predictive(model, samples, batch_ndims=2)(jax.random.key(2), public)
    np.testing.assert_allclose(drawn["logits"], samples["w"] @ public.T, rtol=1e-5)
    assert drawn["y"].shape == (1, 400, 2)

    # From the guide's parameters, as `DPSVI.predict` does.
    from_guide = Predictive(model, guide=svi.guide, params=params, num_samples=400)
    drawn_too = from_guide(jax.random.key(3), public)
    same = svi.predict(jax.random.key(3), params, 400, public)
    np.testing.assert_allclose(drawn_too["logits"], same["logits"], rtol=1e-5)
    # Within four standard errors of 400 draws: false alarms below 2e-4.
    np.testing.assert_allclose(drawn_too["logits"].mean(0), public @ params["loc"], atol=0.04)

    # With draws of the prior, a data tree.
    prior = Predictive(model, num_samples=200, batch_ndims=2)(jax.random.key(4), public)
    tree = to_arviz(
        samples,
        posterior_predictive={"y": drawn["y"]},
        prior={"w": prior["w"]},
        prior_predictive={"y": prior["y"]},
    )
    assert {name: dict(group.sizes) for name, group in tree.children.items()} == {
        "posterior": {"chain": 1, "draw": 400, "w_dim_0": 3},
        "posterior_predictive": {"chain": 1, "draw": 400, "y_dim_0": 2},
        "prior": {"chain": 1, "draw": 200, "w_dim_0": 3},
        "prior_predictive": {"chain": 1, "draw": 200, "y_dim_0": 2},
    }
    np.testing.assert_array_equal(tree.posterior_predictive["y"], drawn["y"])
    np.testing.assert_array_equal(tree.prior["w"], prior["w"])


def test_to_arviz_states_that_draws_are_independent():
    tree = to_arviz(DRAWS)
    assert "r_hat and effective sample size do not apply" in tree.posterior.attrs["draws"]
    table = arviz_stats.summary(tree, kind="stats")
    np.testing.assert_allclose(table["mean"].astype(float), DRAWS["w"].mean((0, 1)), atol=0.05)
    of_chains = ChainResult({"w": np.zeros((2, 300, 3))}, CHAIN, False).to_arviz()
    assert "draws" not in of_chains.posterior.attrs


def test_to_arviz_of_chains_takes_predictive_draws():
    samples = {"w": np.random.default_rng(1).normal(size=(2, 300, 3))}
    result = ChainResult(samples, CHAIN, False)
    tree = result.to_arviz(posterior_predictive={"y": samples["w"][..., :1]})
    assert tree.posterior_predictive["y"].sizes == {"chain": 2, "draw": 300, "y_dim_0": 1}
    assert (np.abs(arviz_stats.rhat(tree)["w"] - 1) < 0.02).all()
    with pytest.raises(ValueError, match="observed_data has observed values of the records"):
        result.to_arviz(observed_data={"y": Y})


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"observed_data": {"y": Y}}, "observed_data has observed values of the records"),
        ({"constant_data": {"x": X}}, "constant_data has inputs of the records"),
        ({"log_likelihood": {"y": np.zeros((1, 300, 60))}}, "log_likelihood has a log-likelihood"),
        ({"sample_stats": {"lp": np.zeros((1, 300))}}, "sample_stats has energies and losses"),
        ({"posteriors": DRAWS}, "groups must be of posterior_predictive, .* got 'posteriors'"),
        ({"posterior_predictive": {"y": np.zeros((300, 2))}}, r"\['y'\] must .* \(300, 2\): .*=2"),
        ({"predictions": {"y": np.zeros((1, 200))}}, r"of shape \(1, 300\), got shape \(1, 200\)"),
        ({"prior": {"w": np.zeros(3)}}, r"prior\['w'\] must have leading axes \(chain, draw\)"),
        (
            {"prior": {"w": np.zeros((1, 9))}, "prior_predictive": {"y": np.zeros((1, 8))}},
            r"prior_predictive\['y'\] must have leading axes .* of shape \(1, 9\)",
        ),
    ],
)
def test_to_arviz_refuses(groups, message):
    with pytest.raises(ValueError, match=message):
        to_arviz(DRAWS, **groups)


def test_to_arviz_refuses_what_is_no_mapping():
    with pytest.raises(TypeError, match="prior must be a mapping from names to draws"):
        to_arviz(DRAWS, prior=np.zeros((1, 300)))
    with pytest.raises(TypeError, match="samples must be a mapping"):
        to_arviz(np.zeros((1, 300)))
