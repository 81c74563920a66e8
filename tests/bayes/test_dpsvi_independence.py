"""Models that mix records are refused, and models that do not are fitted as numpyro fits them."""

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pytest
from dpsvi_cases import (
    MIXED,
    RECORDS,
    X,
    Y,
    gradients,
    mixture,
    private,
)
from numpyro.infer.autoguide import AutoNormal

KEY = jax.random.key(0)
SERIES = MIXED.astype(np.float32)
GROUPS = np.arange(RECORDS) % 4


def guide_mean(*_):
    """Starts at a point where the coefficient ``mean`` is almost zero."""
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 1e-3))


def location(of_records):
    """A model with ``y ~ Normal(of_records(mean, y), 1)``."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(of_records(mean, y), 1), obs=y)

    return model


def shifted(y, lag):
    return jnp.concatenate([jnp.zeros(lag), y[:-lag]])[: len(y)]


def kernel(y):
    return jnp.exp(-jnp.square(y[:, None] - y[None]))


def observing(transformed):
    """A model of ``transformed(y)``."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.sample("y", dist.Normal(mean, 1), obs=transformed(y))

    return model


def weighted(weights):
    """A model with a weight for each record."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            numpyro.factor("y", weights(y) * dist.Normal(mean, 1).log_prob(y))

    return model


def masked_by_mean(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)), numpyro.handlers.mask(mask=y > y.mean()):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def scanned(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    levels = jax.lax.scan(lambda level, new: (0.5 * level + new, level), 0.0, y)[1]
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean * levels, 1), obs=y)


def slope_in_a_param(y):
    slope = numpyro.param("slope", 0.0)  # where it starts nothing is mixed
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean + slope * jnp.roll(y, 1), 1), obs=y)


def positive(y):
    """Log-densities are NaN unless all data are positive."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        rate = jnp.exp(mean + jnp.log(y).mean())
        numpyro.sample("y", dist.Gamma(2.0, rate), obs=y)


def local_effects(loc):
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            effect = numpyro.sample("effect", dist.Normal(mean, 1))
            numpyro.sample("y", dist.Normal(loc(effect), 1), obs=y)

    return model


def amortised(read=lambda y: y):
    def guide(y):
        guide_mean(y)
        with numpyro.plate("records", len(y)):
            numpyro.sample("effect", dist.Normal(numpyro.param("slope", 0.0) * read(y), 0.5))

    return guide


def delta_guide(y):
    guide_mean(y)
    with numpyro.plate("records", len(y)):
        numpyro.sample("effect", dist.Delta(numpyro.param("slope", 0.0) * (y - y.mean())))


VALUES = {
    "autoregressive": location(lambda m, y: m * jnp.concatenate([jnp.zeros(1), y[:-1]])),
    "a lag of 12": location(lambda m, y: m * shifted(y, 12)),
    "deviation from the median": observing(lambda y: y - jnp.median(y)),
    "mean": location(lambda m, y: m + y.mean()),
    "a small share of the mean": location(lambda m, y: m + 1e-3 * y.mean()),
    "standardised": observing(lambda y: (y - y.mean(0)) / y.std(0)),
    "rank": location(lambda m, y: m * jnp.argsort(jnp.argsort(y))),
    "argsort": location(lambda m, y: m * jnp.argsort(y)),
    "sort": observing(jnp.sort),
    "cumsum": location(lambda m, y: m * (jnp.cumsum(y) - y)),
    "roll": location(lambda m, y: m * jnp.roll(y, 1)),
    "reversed": location(lambda m, y: m * y[::-1]),
    "softmax": weighted(lambda y: jax.nn.softmax(y)),
    "weights over the batch": weighted(lambda y: y**2 / (y**2).sum()),
    "pairwise kernel": location(lambda m, y: m * (kernel(y) @ y)),
    "maximum": location(lambda m, y: m * y / jnp.abs(y).max()),
    "segment sums": location(
        lambda m, y: m * jax.ops.segment_sum(y, (y > 0).astype(int), 2)[(y > 0).astype(int)]
    ),
    "masked by the mean": masked_by_mean,
    "scan over records": scanned,
    "only beyond 2": location(lambda m, y: m + jnp.where(y > 2, y.mean(), 0.0)),
    "a param of zero": slope_in_a_param,
    "positive data": positive,
    "log of the number of equals": weighted(lambda y: jnp.log((y == y[:, None]).sum(0))),
}
NUMBERS = {
    "position": location(lambda m, y: m * jnp.arange(len(y))),
    "number": weighted(lambda y: 1 / len(y)),
    "the first record": location(lambda m, y: jnp.zeros(len(y)).at[0].set(m)),
}
EFFECT = "site 'effect' must depend on one record alone"
LOCAL = [
    (local_effects(lambda effect: jnp.roll(effect, 1)), amortised(), "'y' .* latent variables of"),
    (local_effects(lambda effect: effect), amortised(lambda y: y - y.mean()), EFFECT),
    (local_effects(lambda effect: effect), delta_guide, EFFECT),
]


@pytest.mark.parametrize("model", VALUES.values(), ids=VALUES)
def test_models_that_mix_records(model):
    with pytest.raises(ValueError, match="site 'y' must depend on one record alone"):
        private(model, guide_mean).init(KEY, SERIES)


@pytest.mark.parametrize("model", NUMBERS.values(), ids=NUMBERS)
def test_models_of_the_number_or_position_of_records(model):
    with pytest.raises(ValueError, match="site 'y' must have the same log-density for a record by"):
        private(model, guide_mean).init(KEY, SERIES)


@pytest.mark.parametrize(("model", "guide", "words"), LOCAL)
def test_local_latent_variables_that_mix_records(model, guide, words):
    with pytest.raises(ValueError, match=words):
        private(model, guide).init(KEY, SERIES)


def test_standardising_with_an_autoguide():
    """Equal records have no standard deviation: the guide would not find starting values."""

    def model(x, y):
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", len(y)):
            logits = (x - x.mean(0)) / x.std(0) @ weights
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    with pytest.raises(ValueError, match="site 'y' must depend on one record alone"):
        private(model, AutoNormal(model)).init(KEY, X, Y)


def test_a_model_that_fails_on_one_record():
    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            by_day = y.reshape(-1, 5) - mean
            numpyro.sample("y", dist.Normal(by_day.ravel(), 1), obs=y)

    with pytest.raises(ValueError, match=r"any number of records.*shown 1 they raise TypeError"):
        private(model, guide_mean).init(KEY, SERIES)


def test_a_refusal_is_no_function_of_the_records():
    """Constant, missing and ordinary data are refused, or accepted, alike."""
    for data in (SERIES, np.zeros_like(SERIES), np.full_like(SERIES, np.nan)):
        with pytest.raises(ValueError, match="depend on one record alone"):
            private(VALUES["only beyond 2"], guide_mean).init(KEY, data)
        private(location(lambda m, y: m), guide_mean).init(KEY, data)


def grouped(y, group):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("groups", 4):
        effect = numpyro.sample("effect", dist.Normal(mean, 0.5))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(effect[group], 1), obs=y)


def grouped_guide(*_):
    guide_mean()
    with numpyro.plate("groups", 4):
        numpyro.sample("effect", dist.Normal(numpyro.param("effects", jnp.zeros(4)), 0.5))


def subsampled(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", RECORDS, subsample_size=10) as chosen:
        numpyro.sample("y", dist.Normal(mean, 1), obs=y[chosen])


def mixture_guide(_):
    numpyro.sample("weight", dist.Beta(numpyro.param("weight_loc", 1.0), 1.0))
    numpyro.sample("means", dist.Normal(numpyro.param("loc", jnp.ones(2)), 1.0).to_event(1))


def shapes(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", y.shape[0]):
        loc = jnp.zeros(len(y)) + mean * jnp.ones_like(y)
        spread = numpyro.deterministic("spread", jnp.full(y.shape[0], 2.0))
        numpyro.sample("y", dist.Normal(loc, spread), obs=y)


def tempered_prior(y):
    with numpyro.handlers.scale(scale=0.1):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.deterministic("twice", 2 * mean)
    with numpyro.plate("records", len(y)), numpyro.handlers.scale(scale=1.0):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def masked(y, seen):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)), numpyro.handlers.mask(mask=seen & (y < 3)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def imputed(y, seen):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y, obs_mask=seen)


def imputing_guide(y, seen):
    guide_mean()
    with numpyro.plate("records", len(y)), numpyro.handlers.mask(mask=~seen):
        numpyro.sample("y_unobserved", dist.Normal(numpyro.param("imputed", 0.0), 1.0))


def classes(x, label):
    mean = numpyro.sample("mean", dist.Normal(0, 1).expand([3]).to_event(1))
    with numpyro.plate("records", len(x)):
        logits = (x - x.mean(-1, keepdims=True)) * mean
        numpyro.sample("y", dist.Categorical(logits=logits), obs=label)


def classes_guide(*_):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", jnp.zeros(3)), 1.0).to_event(1))


def counts(count, exposure):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(count)):
        numpyro.sample("y", dist.Poisson(exposure * jnp.exp(mean)), obs=count)


def panel(series):
    """Records are columns of the model's plates, and rows of the data."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("times", 3, dim=-2), numpyro.plate("records", len(series), dim=-1):
        numpyro.sample("y", dist.Normal(mean, 1), obs=series.T)


def within_a_record(series):
    """Autoregressive in each record's own series."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    past = jnp.concatenate([jnp.zeros((len(series), 1)), series[:, :-1]], 1)
    level = jax.lax.scan(lambda s, new: (0.5 * s + new, s), jnp.zeros(len(series)), series.T)[1]
    with numpyro.plate("records", len(series)):
        loc = mean * (past + level.T)
        numpyro.sample("y", dist.Normal(loc, 1).to_event(1), obs=series)


def density(y, public_mean):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.factor("y", -jnp.logaddexp(0, -(y - public_mean) * mean))


def angles(y):
    mean = numpyro.sample("mean", dist.ProjectedNormal(jnp.zeros(2)))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.VonMises(jnp.arctan2(mean[1], mean[0]), 1.0), obs=y)


def angles_guide(_):
    numpyro.sample("mean", dist.ProjectedNormal(numpyro.param("loc", jnp.ones(2))))


SEEN = np.arange(RECORDS) % 3 > 0
ALLOWED = {
    "groups": (grouped, grouped_guide, (SERIES, GROUPS)),
    "subsampled": (subsampled, guide_mean, (SERIES,)),
    "mixture": (mixture, mixture_guide, (SERIES,)),
    "local": (local_effects(lambda effect: effect), amortised(), (SERIES,)),
    "shapes": (shapes, guide_mean, (SERIES,)),
    "tempered prior": (tempered_prior, guide_mean, (SERIES,)),
    "masked": (masked, guide_mean, (SERIES, SEEN)),
    "imputed": (imputed, imputing_guide, (SERIES, SEEN)),
    "classes": (classes, classes_guide, (X, GROUPS.astype(np.uint8) % 3)),
    "counts": (counts, guide_mean, (GROUPS, 1 + np.abs(SERIES))),
    "panel": (panel, guide_mean, (X,)),
    "within a record": (within_a_record, guide_mean, (X,)),
    "density": (density, guide_mean, (SERIES, 1.5)),
    "angles": (angles, angles_guide, (SERIES,)),
}


@pytest.mark.parametrize("name", ALLOWED)
def test_models_that_do_not_mix_records(name):
    model, guide, args = ALLOWED[name]
    private(model, guide).init(KEY, *args)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["groups", "tempered prior", "masked", "panel", "within a record"])
def test_their_gradients_are_numpyros(name):
    model, guide, args = ALLOWED[name]
    theirs, mine, loss, my_loss = gradients(private(model, guide), args, {})
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(my_loss, loss, rtol=1e-4)
