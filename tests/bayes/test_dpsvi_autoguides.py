"""Every autoguide of numpyro with DPSVI, and the table of them in the documentation."""

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.dpsvi_cases import RECORDS, X, Y, gradients, logistic, logistic_guide, private
from numpyro.handlers import block
from numpyro.infer import autoguide

PAGE = Path(__file__).parents[2] / "docs/how_to/private_inference.md"
# Base classes.
ABSTRACT = {"AutoGuide", "AutoContinuous"}


def two_groups(x, y=None):
    """Latent variables in batches of one shape."""
    with numpyro.plate("groups", 2):
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=x @ weights.sum(0)), obs=y)


def two_sites(x, y=None):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    scale = numpyro.sample("scale", dist.Gamma(2, 2))
    with numpyro.plate("records", x.shape[0]):
        numpyro.sample("y", dist.Bernoulli(logits=scale * (x @ weights)), obs=y)


def two_parts():
    guides = autoguide.AutoGuideList(two_sites)
    guides.append(autoguide.AutoNormal(block(two_sites, expose=["w"])))
    guides.append(autoguide.AutoDelta(block(two_sites, expose=["scale"])))
    return guides


def surrogate():
    """As in numpyro's documentation: the likelihood of some of the records, with weights."""
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([3]).to_event(1))
    factors = numpyro.param("factors", 5 * jnp.ones(9), constraint=dist.constraints.positive)
    with numpyro.plate("some", 9), numpyro.handlers.scale(scale=factors):
        numpyro.sample("y", dist.Bernoulli(logits=X[:9] @ weights), obs=Y[:9])


def global_model(x, y=None):
    return numpyro.sample("w", dist.Normal(0, 1)), x, y


def local_model(values):
    weight, x, y = values
    with numpyro.plate("records", RECORDS):
        effect = numpyro.sample("effect", dist.Normal(0, 1))
        numpyro.sample("y", dist.Bernoulli(logits=x[:, 0] * weight + effect), obs=y)


def with_effects(x, y=None):
    local_model(global_model(x, y))


def local_guide(values):
    location = numpyro.param("location", 0.0)
    with numpyro.plate("records", RECORDS):
        numpyro.sample("effect", dist.Normal(location, 1))


def semi_dais():
    """With parameters that all records share."""
    return autoguide.AutoSemiDAIS(
        with_effects,
        local_model,
        autoguide.AutoNormal(global_model),
        local_guide,
        use_global_dais_params=True,
        subsample_plate="records",
    )


# Model and guide; those that are refused with a part of the message.
WORKS = {
    "AutoNormal": (two_sites, autoguide.AutoNormal),
    "AutoDiagonalNormal": (two_sites, autoguide.AutoDiagonalNormal),
    "AutoMultivariateNormal": (two_sites, autoguide.AutoMultivariateNormal),
    "AutoLowRankMultivariateNormal": (two_sites, autoguide.AutoLowRankMultivariateNormal),
    "AutoBatchedMultivariateNormal": (two_groups, autoguide.AutoBatchedMultivariateNormal),
    "AutoBatchedLowRankMultivariateNormal": (
        two_groups,
        autoguide.AutoBatchedLowRankMultivariateNormal,
    ),
    "AutoIAFNormal": (logistic, autoguide.AutoIAFNormal),
    "AutoBNAFNormal": (logistic, autoguide.AutoBNAFNormal),
    "AutoDelta": (two_sites, autoguide.AutoDelta),
    "AutoGuideList": (two_sites, lambda _: two_parts()),
    "function": (logistic, lambda _: logistic_guide),
}
REFUSED = {
    "AutoLaplaceApproximation": (
        logistic,
        autoguide.AutoLaplaceApproximation,
        "Hessian of the log-density of all records",
    ),
    "AutoDAIS": (logistic, autoguide.AutoDAIS, "gradients of the log-density of all records"),
    "AutoSemiDAIS": (with_effects, lambda _: semi_dais(), "made for a fixed number of records"),
    "AutoSurrogateLikelihoodDAIS": (
        logistic,
        lambda model: autoguide.AutoSurrogateLikelihoodDAIS(model, surrogate),
        "surrogate likelihood is of records in a closure",
    ),
}
SHAPES = {
    two_sites: {"w": (1, 400, 3), "scale": (1, 400)},
    two_groups: {"w": (1, 400, 2, 3)},
    logistic: {"w": (1, 400, 3)},
}


def slow_unless_custom(name):
    return pytest.param(name, marks=() if name == "function" else pytest.mark.slow)


@pytest.mark.parametrize("name", [slow_unless_custom(name) for name in WORKS])
def test_guide_has_numpyros_gradients_and_draws(name):
    model, make_guide = WORKS[name]
    svi = private(model, make_guide(model))
    expected, actual, expected_loss, loss = gradients(svi, (X, Y), {})
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-4)

    # Draws of the latent variables, with the spread that the guide starts with.
    state = svi.init(jax.random.key(7), X, Y)
    draws = svi.posterior_samples(jax.random.key(1), state, 400, X, Y)
    assert {site: values.shape for site, values in draws.items()} == SHAPES[model]
    spread = {site: float(values.std(1).min()) for site, values in draws.items()}
    points = {"AutoDelta": {"w", "scale"}, "AutoGuideList": {"scale"}}.get(name, set())
    assert {site for site, value in spread.items() if value < 1e-3} == points


@pytest.mark.slow
@pytest.mark.parametrize("name", REFUSED)
def test_guide_is_refused_with_a_reason(name):
    model, make_guide, reason = REFUSED[name]
    with pytest.raises(ValueError, match=f"guide must depend .* got {name}, .*{reason}"):
        private(model, make_guide(model)).init(jax.random.key(7), X, Y)


def test_table_of_the_documentation_has_every_autoguide():
    rows = re.findall(r"^\| `?(\w[\w ]*?)`? \| (works|refused)\b", PAGE.read_text("utf-8"), re.M)
    assert dict(rows) == dict.fromkeys(WORKS, "works") | dict.fromkeys(REFUSED, "refused")
    assert {name for name, _ in rows} == {*autoguide.__all__} - ABSTRACT | {"function"}
