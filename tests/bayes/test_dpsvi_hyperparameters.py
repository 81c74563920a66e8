"""Parameters of the guide that no record's term reads get no noise, all others do."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from helpers.dpsvi_cases import private, step_of
from numpyro.infer import Trace_ELBO, TraceMeanField_ELBO
from numpyro.infer.autoguide import AutoDiagonalNormal, AutoNormal

import dpjax.bayes.variational.step as step_module
from dpjax.bayes.variational import DPSVI
from dpjax.bayes.variational.elbo import data_free_loss
from dpjax.sampling import PoissonSampling

N, GROUPS = 20, 3
X = np.random.default_rng(0).normal(size=N).astype(np.float32)
GROUP = np.arange(N) % GROUPS
POISSON = PoissonSampling(N, 0.5)


def hierarchical(mean_of, scale=1.0):
    """``mean_of(intercepts, mu, tau)`` of a record."""

    def model(x, group):
        mu = numpyro.sample("mu", dist.Normal(0, 1))
        tau = numpyro.sample("tau", dist.HalfNormal(1))
        with numpyro.plate("groups", GROUPS), numpyro.handlers.scale(scale=scale):
            intercepts = numpyro.sample("intercepts", dist.Normal(mu, tau))
        with numpyro.plate("records", len(x)):
            numpyro.sample("x", dist.Normal(mean_of(intercepts, mu, tau)[group], 1), obs=x)

    return model


def by_branch(intercepts, mu, tau):
    return jax.lax.cond(tau > 0, lambda a, m: a, lambda a, m: a + m, intercepts, mu)


def by_loop(intercepts, mu, tau):
    return intercepts + jax.lax.scan(lambda c, _: (c * mu, None), 1.0, length=2)[0]


@jax.custom_vjp
def with_own_gradient(intercepts, mu):
    return intercepts


with_own_gradient.defvjp(lambda a, m: (a, None), lambda _, g: (g, g.sum()))


def by_own_gradient(intercepts, mu, tau):
    return with_own_gradient(intercepts, mu)


@jax.custom_jvp
def by_callback_value(mu):
    return jax.pure_callback(np.asarray, jax.typeof(mu), mu, vmap_method="sequential")


by_callback_value.defjvp(lambda primals, tangents: (by_callback_value(*primals), tangents[0]))

CENTRED = hierarchical(lambda intercepts, mu, tau: intercepts)
NON_CENTRED = hierarchical(lambda intercepts, mu, tau: mu + tau * intercepts)


def noisy(model, guide=AutoNormal, loss=None, gradient="plain"):
    """The parameters whose update changes with the key of the noise alone."""
    mechanism = private(sampling=POISSON, noise_multiplier=1.0).mechanism
    optim = numpyro.optim.SGD(1.0)
    svi = DPSVI(model, guide(model), optim, loss, mechanism=mechanism, gradient=gradient)
    state = svi.init(jax.random.key(1), X, GROUP)
    other = state._replace(noise=state.noise._replace(key=jax.random.key(9)))
    first, second = (step_of(svi, each, X, GROUP) for each in (state, other))
    return {name.removesuffix("_scale") for name in first if np.any(first[name] != second[name])}


def names(*sites):
    return {f"{site}_auto{end}" for site in sites for end in ("", "_loc")}


ALL = names("mu", "tau", "intercepts")


@pytest.mark.parametrize(
    "loss",
    [
        Trace_ELBO(),
        *(pytest.param(x, marks=pytest.mark.slow) for x in (Trace_ELBO(2), TraceMeanField_ELBO())),
    ],
)
def test_hyperparameters_of_a_centred_model_get_no_noise(loss):
    assert noisy(CENTRED, loss=loss) == names("intercepts")


@pytest.mark.slow
def test_scaled_priors_and_aligned_gradients_keep_the_rule():
    scaled = hierarchical(lambda a, mu, tau: a, scale=2.0)
    assert noisy(scaled, gradient="aligned") == names("intercepts")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mean_of", "expected"),
    [
        (lambda a, mu, tau: mu + tau * a, ALL),
        (by_branch, ALL),
        (by_loop, names("mu", "intercepts")),
        (by_own_gradient, names("mu", "intercepts")),
        (lambda a, mu, tau: a + by_callback_value(mu), names("mu", "intercepts")),
        (lambda a, mu, tau: a + 0 * mu, names("mu", "intercepts")),
        (lambda a, mu, tau: a + jax.lax.stop_gradient(tau), names("tau", "intercepts")),
    ],
)
def test_parameters_that_may_enter_a_record_keep_their_noise(mean_of, expected):
    assert noisy(hierarchical(mean_of)) == expected


@pytest.mark.slow
def test_a_guide_with_one_vector_of_means_keeps_its_noise():
    assert noisy(CENTRED, AutoDiagonalNormal) == {"auto_loc", "auto"}


def neighbours_differ(model):
    """The parameters whose update differs on ten random neighbours, with equal keys."""
    svi, found = private(model, AutoNormal(model), sampling=POISSON), set()
    state = svi.init(jax.random.key(1), X, GROUP)
    before = step_of(svi, state, X, GROUP)
    for seed in range(10):
        rng = np.random.default_rng(seed)
        changed, group, who = X.copy(), GROUP.copy(), rng.integers(N)
        changed[who], group[who] = 100 * rng.normal(), rng.integers(GROUPS)
        after = step_of(svi, state, changed, group)
        found |= {name for name in before if np.any(before[name] != after[name])}
    return {name.removesuffix("_scale") for name in found}


@pytest.mark.slow
def test_updates_without_noise_are_equal_on_neighbours():
    """Bit for bit; where the hyperparameters enter the likelihood they differ."""
    assert neighbours_differ(CENTRED) == names("intercepts")
    assert neighbours_differ(NON_CENTRED) == ALL


@pytest.mark.slow
def test_a_parameter_that_is_wrongly_left_out_loses_its_gradient_and_no_privacy(monkeypatch):
    monkeypatch.setattr(step_module, "params_of_records", lambda *_: frozenset())
    assert neighbours_differ(NON_CENTRED) == set()


@pytest.mark.slow
def test_the_update_without_noise_is_the_whole_gradient():
    """The clipped sum is zero there, and the update that of the prior and the entropy."""
    svi = private(CENTRED, AutoNormal(CENTRED), sampling=POISSON)
    state = svi.init(jax.random.key(1), X, GROUP)
    sums = svi.clipped_sum(jax.random.key(2), state, x=X, group=GROUP)
    taken = step_of(svi, state, X, GROUP)
    params, (_, key) = svi.optim.get_params(state.optim_state), jax.random.split(state.rng_key)
    terms = next(iter(svi._steps.values())).terms
    free = jax.grad(lambda params: data_free_loss(terms, params, [], key))(params)
    for name in ("mu_auto_loc", "mu_auto_scale", "tau_auto_loc", "tau_auto_scale"):
        assert not np.any(sums[name])
        np.testing.assert_allclose(taken[name], free[name], rtol=1e-5)
    assert jnp.any(sums["intercepts_auto_loc"])
