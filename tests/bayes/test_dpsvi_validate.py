"""What cannot be made private is refused, naming the site and saying what is allowed."""

from contextlib import nullcontext

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
import pandas as pd
import pytest
from helpers.dpsvi_cases import (
    MIXED,
    RECORDS,
    X,
    Y,
    flat,
    gradients,
    logistic,
    logistic_guide,
    mixture,
    private,
    step_of,
)
from helpers.quick import slow_except
from numpyro.handlers import mask, scale
from numpyro.infer import SVI, RenyiELBO, Trace_ELBO
from numpyro.infer.autoguide import (
    AutoDAIS,
    AutoDiagonalNormal,
    AutoGuideList,
    AutoLaplaceApproximation,
    AutoNormal,
)

KEY = jax.random.key(0)
SERIES = MIXED.astype(np.float32)
GROUPS = np.arange(RECORDS) % 4
SEEN = np.arange(RECORDS) % 3 > 0


def guide_mean(*_):
    """Starts at a point where the coefficient ``mean`` is almost zero."""
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 1e-3))


def model_of(
    loc=lambda mean, y: mean,
    *,
    observe=lambda y: y,
    weights=None,
    prior=lambda y: dist.Normal(0, 1),
    before=lambda y: None,
    around=lambda y: nullcontext(),
):
    """A model of a mean, with one thing changed: ``observe(y) ~ Normal(loc(mean, y), 1)``."""

    def model(y):
        before(y)
        mean = numpyro.sample("mean", prior(y))
        given = dist.Normal(loc(mean, y), 1)
        with numpyro.plate("records", len(y)), around(y):
            if weights is None:
                numpyro.sample("y", given, obs=observe(y))
            else:
                numpyro.factor("y", weights(y) * given.log_prob(y))

    return model


def no_plate(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def two_plates(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    for name in "ab":
        with numpyro.plate(name, len(y)):
            numpyro.sample(f"y_{name}", dist.Normal(mean, 1), obs=y)


def local(loc=lambda effect: effect):
    """A model with a latent variable for each record."""

    def model(y):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
        with numpyro.plate("records", len(y)):
            effect = numpyro.sample("effect", dist.Normal(mean, 1))
            numpyro.sample("y", dist.Normal(loc(effect), 1), obs=y)

    return model


def local_guide(of_record):
    def guide(y):
        guide_mean()
        with numpyro.plate("records", len(y)):
            numpyro.sample("effect", of_record(y))

    return guide


def amortised(read=lambda y: y):
    return local_guide(lambda y: dist.Normal(numpyro.param("slope", 0.0) * read(y), 0.5))


def own_parameters(y):
    loc = numpyro.param("effects", jnp.zeros(RECORDS))
    return dist.Normal(loc[jnp.arange(len(y))] + y, 1.0)


def discrete(y):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        side = numpyro.sample("side", dist.Bernoulli(0.5))
        numpyro.sample("y", dist.Normal(mean * side, 1), obs=y)


def stateful_guide(y):
    numpyro.primitives.mutable("kept", {"m": jnp.zeros(())})
    guide_mean()


def imputed(y, seen=None):
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y, obs_mask=y > 0 if seen is None else seen)


def reads_guide(y):
    numpyro.sample("mean", dist.Normal(y.mean() + numpyro.param("loc", 0.0), 1.0))


def stubborn_guide(y):
    numpyro.sample("mean", dist.VonMises(numpyro.param("loc", 1.0), 1.0))


def observed_total(y):
    numpyro.sample("total", dist.Normal(0, 1), obs=y.sum())


def mutable_mean(y):
    numpyro.primitives.mutable("running", jnp.zeros(()))


SITES = [
    (no_plate, guide_mean, "'y' is observed outside"),
    (model_of(before=observed_total), guide_mean, "'total' is observed outside"),
    (two_plates, guide_mean, "one plate of num_examples = 60"),
    (local(), AutoNormal(local()), "'effect_auto_loc' .* amortised guide"),
    (local(), AutoDiagonalNormal(local()), "'effect' is one, under plate 'records'.* amortised"),
    (local(), guide_mean, "'effect' is one, under plate"),
    (local(), local_guide(own_parameters), "'effects' has a leading axis"),
    (
        local(),
        local_guide(lambda y: dist.Normal(numpyro.param("shared", 0.0), 1.0)),
        "'effect' is under plate 'records' but does not depend",
    ),
    (discrete, guide_mean, "'side' is discrete.*MixtureSameFamily"),
    (
        model_of(before=mutable_mean),
        guide_mean,
        "model must not keep state, but site 'running' is mutable",
    ),
    (model_of(), stateful_guide, "guide must not keep state, but site 'kept' is mutable"),
    (
        model_of(before=lambda y: numpyro.factor("penalty", -1.0)),
        guide_mean,
        "numpyro.factor outside.*'penalty'.*prior of a latent variable",
    ),
    (imputed, guide_mean, "obs_mask makes one, 'y_unobserved', of site 'y'.*handlers.mask"),
    (
        model_of(around=lambda y: scale(scale=2.0)),
        guide_mean,
        "'y' must not be scaled, got a factor of 2.0",
    ),
    (
        model_of(prior=lambda y: dist.Normal(0, jnp.abs(y).max())),
        guide_mean,
        "'mean' must not depend on the records",
    ),
    (model_of(), reads_guide, "'mean' must not depend on the records"),
    (
        model_of(lambda mean, y: mean * jnp.asarray(Y)),
        guide_mean,
        "'y' must have one value for one record",
    ),
    (model_of(), stubborn_guide, "'mean' is VonMises, whose draws have no gradient"),
    (model_of(), lambda y: numpyro.param("loc", 0.0), "not site 'mean'"),
    (lambda y: guide_mean(y), guide_mean, "none of its sites has obs"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "guide", "message"), SITES)
def test_init_refuses_sites(model, guide, message):
    with pytest.raises(ValueError, match=message):
        private(model, guide).init(KEY, Y)


class Holder:
    """Neither an array nor a tree of them, as a data set's own class is."""

    def __init__(self, y):
        self.y = y


def observing(observed, **plate):
    """A model of the records x that observes ``observed(chosen, *others)``."""

    def model(x, *others):
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", RECORDS, **plate) as chosen:
            given = dist.Bernoulli(logits=x[chosen] @ weights)
            numpyro.sample("y", given, obs=observed(chosen, *others))

    return model


def log_likelihood_of_all(x):
    weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
    with numpyro.plate("records", RECORDS):
        given = dist.Bernoulli(logits=x @ weights)
        numpyro.factor("y", given.log_prob(jnp.asarray(Y)).sum(-1, keepdims=True))


def prior_from(x, y, transposed):
    prior = dist.Normal(0, jnp.sqrt((transposed**2).mean(1))).to_event(1)
    logits = x @ numpyro.sample("w", prior)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)


def prior_from_closure(x):
    numpyro.sample("spread", dist.HalfNormal(jnp.std(jnp.asarray(Y))))
    logistic(x, x[:, 0] > 0)


def guide_of_x(x, *_):
    logistic_guide(x)


def guide_of_both(x):
    logistic_guide(x)
    numpyro.sample("spread", dist.LogNormal(numpyro.param("log_spread", 0.0), 1.0))


def guide_from_closure(x, y):
    loc = numpyro.param("loc", jnp.zeros(x.shape[1]))
    numpyro.sample("w", dist.Normal(loc + X.mean(0), jnp.std(jnp.asarray(Y))).to_event(1))


def in_a_list(guide):
    guides = AutoGuideList(logistic)
    guides.append(guide)
    return guides


ONE_VALUE = "'y' must have one value for one record, but has values of shape \\(60,\\)"
CLOSURE = "read an array of shape \\(60,\\), so with an axis of num_examples = 60"
LONG_AXIS = "shape \\(3, 60\\) has num_examples = 60 on another.*put the axis of records first"
AUTOGUIDE = r"parameters alone, got Auto.*AutoMultivariate"
DATA = [
    (observing(lambda _: jnp.asarray(Y)), guide_of_x, (X,), ONE_VALUE),
    (observing(lambda _, held: held.y), guide_of_x, (X, Holder(Y)), ONE_VALUE),
    (observing(lambda i: jnp.asarray(Y)[i]), guide_of_x, (X,), CLOSURE),
    (observing(lambda i: jnp.asarray(Y)[i], subsample_size=10), guide_of_x, (X,), CLOSURE),
    (log_likelihood_of_all, guide_of_x, (X,), CLOSURE),
    (prior_from_closure, guide_of_both, (X,), CLOSURE),
    (logistic, guide_from_closure, (X, Y), CLOSURE),
    (
        model_of(lambda mean, y: jax.jit(lambda mean: mean + jnp.asarray(Y).sum())(mean)),
        guide_mean,
        (Y,),
        CLOSURE,
    ),
    (
        observing(lambda _, y: jnp.asarray(y)),
        guide_of_x,
        (X, Y.tolist()),
        "records in arrays, but one is a list of num_examples = 60",
    ),
    (observing(lambda _, y: y[0]), guide_of_x, (X, Y[None]), "shape \\(1, 60\\) has"),
    (prior_from, guide_of_x, (X, Y, X.T), LONG_AXIS),
    (logistic, logistic_guide, (X[:20], Y[:20]), r"the whole data set.*num_examples = 60.*20"),
    (logistic, AutoDAIS(logistic, K=1), (X, Y), AUTOGUIDE),
    (logistic, AutoLaplaceApproximation(logistic), (X, Y), AUTOGUIDE),
    (logistic, in_a_list(AutoLaplaceApproximation(logistic)), (X, Y), AUTOGUIDE),
]


@pytest.mark.slow
@pytest.mark.parametrize(("model", "guide", "args", "message"), DATA)
def test_init_refuses_data_that_are_no_records(model, guide, args, message):
    with pytest.raises(ValueError, match=message):
        private(model, guide).init(KEY, *args)


@pytest.mark.slow
def test_init_refuses_a_guide_that_kept_the_data():
    guides = AutoNormal(logistic), AutoDAIS(logistic)
    for guide in guides:
        SVI(logistic, guide, numpyro.optim.SGD(0.1), Trace_ELBO()).init(KEY, X, Y)
    normal, dais = guides
    private(guide=normal).init(KEY, X, Y)
    with pytest.raises(ValueError, match="read an array of shape"):
        private(guide=lambda x, y: dais(x, y)).init(KEY, X, Y)


def shifted(y, lag):
    return jnp.concatenate([jnp.zeros(lag), y[:-lag]])[: len(y)]


def scan_levels(y):
    return jax.lax.scan(lambda level, new: (0.5 * level + new, level), 0.0, y)[1]


def segment_sums(y):
    sign = (y > 0).astype(int)
    return jax.ops.segment_sum(y, sign, 2)[sign]


def positive(y):
    """Log-densities are NaN unless all data are positive."""
    mean = numpyro.sample("mean", dist.Normal(0, 1))
    with numpyro.plate("records", len(y)):
        rate = jnp.exp(mean + jnp.log(y).mean())
        numpyro.sample("y", dist.Gamma(2.0, rate), obs=y)


# "a param of zero" mixes nothing where it starts.
MIXING = {
    "autoregressive": model_of(lambda m, y: m * jnp.concatenate([jnp.zeros(1), y[:-1]])),
    "a lag of 12": model_of(lambda m, y: m * shifted(y, 12)),
    "deviation from the median": model_of(observe=lambda y: y - jnp.median(y)),
    "mean": model_of(lambda m, y: m + y.mean()),
    "a small share of the mean": model_of(lambda m, y: m + 1e-3 * y.mean()),
    "standardised": model_of(observe=lambda y: (y - y.mean(0)) / y.std(0)),
    "rank": model_of(lambda m, y: m * jnp.argsort(jnp.argsort(y))),
    "argsort": model_of(lambda m, y: m * jnp.argsort(y)),
    "sort": model_of(observe=jnp.sort),
    "cumsum": model_of(lambda m, y: m * (jnp.cumsum(y) - y)),
    "roll": model_of(lambda m, y: m * jnp.roll(y, 1)),
    "reversed": model_of(lambda m, y: m * y[::-1]),
    "softmax": model_of(weights=jax.nn.softmax),
    "weights over the batch": model_of(weights=lambda y: y**2 / (y**2).sum()),
    "pairwise kernel": model_of(lambda m, y: m * (jnp.exp(-((y[:, None] - y[None]) ** 2)) @ y)),
    "maximum": model_of(lambda m, y: m * y / jnp.abs(y).max()),
    "segment sums": model_of(lambda m, y: m * segment_sums(y)),
    "masked by the mean": model_of(around=lambda y: mask(mask=y > y.mean())),
    "scan over records": model_of(lambda m, y: m * scan_levels(y)),
    "only beyond 2": model_of(lambda m, y: m + jnp.where(y > 2, y.mean(), 0.0)),
    "a param of zero": model_of(lambda m, y: m + numpyro.param("slope", 0.0) * jnp.roll(y, 1)),
    "positive data": positive,
    "number of equals": model_of(weights=lambda y: jnp.log((y == y[:, None]).sum(0))),
}
NUMBERS = {
    "position": model_of(lambda m, y: m * jnp.arange(len(y))),
    "number": model_of(weights=lambda y: 1 / len(y)),
    "the first record": model_of(lambda m, y: jnp.zeros(len(y)).at[0].set(m)),
}
EFFECT = "site 'effect' must depend on one record alone"
MEAN_EFFECT = local_guide(lambda y: dist.Delta(numpyro.param("slope", 0.0) * (y - y.mean())))
LOCAL = [
    (local(lambda effect: jnp.roll(effect, 1)), amortised(), "'y' .* latent variables of"),
    (local(), amortised(lambda y: y - y.mean()), EFFECT),
    (local(), MEAN_EFFECT, EFFECT),
    (
        model_of(lambda mean, y: (y.reshape(-1, 5) - mean).ravel()),
        guide_mean,
        r"any number of records.*shown 1 they raise TypeError",
    ),
]


@pytest.mark.parametrize("name", slow_except(list(MIXING)[::3], MIXING))
def test_init_refuses_models_that_mix_records(name):
    with pytest.raises(ValueError, match="site 'y' must depend on one record alone"):
        private(MIXING[name], guide_mean).init(KEY, SERIES)


@pytest.mark.slow
@pytest.mark.parametrize("model", NUMBERS.values(), ids=NUMBERS)
def test_init_refuses_models_of_the_number_or_position_of_records(model):
    with pytest.raises(ValueError, match="site 'y' must have the same log-density for a record by"):
        private(model, guide_mean).init(KEY, SERIES)


@pytest.mark.slow
@pytest.mark.parametrize(("model", "guide", "message"), LOCAL)
def test_init_refuses_local_latent_variables_that_mix_records(model, guide, message):
    with pytest.raises(ValueError, match=message):
        private(model, guide).init(KEY, SERIES)


def test_init_refuses_standardising_with_an_autoguide():
    """Equal records have no standard deviation: the guide would not find starting values."""

    def model(x, y):
        weights = numpyro.sample("w", dist.Normal(0, 1).expand([x.shape[1]]).to_event(1))
        with numpyro.plate("records", len(y)):
            logits = (x - x.mean(0)) / x.std(0) @ weights
            numpyro.sample("y", dist.Bernoulli(logits=logits), obs=y)

    with pytest.raises(ValueError, match="site 'y' must depend on one record alone"):
        private(model, AutoNormal(model)).init(KEY, X, Y)


@pytest.mark.slow
def test_init_refuses_whatever_the_records():
    """Constant, missing and ordinary data are refused, or accepted, alike."""
    for data in (SERIES, np.zeros_like(SERIES), np.full_like(SERIES, np.nan)):
        with pytest.raises(ValueError, match="depend on one record alone"):
            private(MIXING["only beyond 2"], guide_mean).init(KEY, data)
        private(model_of(), guide_mean).init(KEY, data)


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
    with scale(scale=0.1):
        mean = numpyro.sample("mean", dist.Normal(0, 1))
    numpyro.deterministic("twice", 2 * mean)
    with numpyro.plate("records", len(y)), scale(scale=1.0):
        numpyro.sample("y", dist.Normal(mean, 1), obs=y)


def masked(y, seen):
    model_of(around=lambda y: mask(mask=seen & (y < 3)))(y)


def imputing_guide(y, seen):
    guide_mean()
    with numpyro.plate("records", len(y)), mask(mask=~seen):
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


ALLOWED = {
    "groups": (grouped, grouped_guide, (SERIES, GROUPS)),
    "subsampled": (subsampled, guide_mean, (SERIES,)),
    "mixture": (mixture, mixture_guide, (SERIES,)),
    "local": (local(), amortised(), (SERIES,)),
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


@pytest.mark.parametrize("name", slow_except(list(ALLOWED)[::3], ALLOWED))
def test_init_takes_models_that_do_not_mix_records(name):
    model, guide, args = ALLOWED[name]
    private(model, guide).init(KEY, *args)


def flat_prior(y):
    mean = numpyro.sample("mean", dist.ImproperUniform(dist.constraints.real, (), ()))
    positive = dist.ImproperUniform(dist.constraints.positive, (), event_shape=(2,))
    spread = numpyro.sample("scale", positive)
    with numpyro.plate("records", len(y)):
        numpyro.sample("y", dist.Normal(mean, spread.sum()), obs=y)


def flat_prior_guide(y):
    numpyro.sample("mean", dist.Normal(numpyro.param("loc", 0.0), 1.0))
    loc = numpyro.param("scale_loc", jnp.zeros(2))
    numpyro.sample("scale", dist.LogNormal(loc, 1.0).to_event(1))


AS_NUMPYRO = ["groups", "tempered prior", "masked", "panel", "within a record"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "guide", "args"),
    [(flat_prior, flat_prior_guide, (Y,)), *(ALLOWED[name] for name in AS_NUMPYRO)],
    ids=["improper prior", *AS_NUMPYRO],
)
def test_update_has_numpyros_gradients(model, guide, args):
    svi = private(model, guide)
    theirs, mine, loss, my_loss = gradients(svi, args, {})
    assert np.abs(theirs).max() > 0.1
    np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    np.testing.assert_allclose(my_loss, loss, rtol=1e-4)
    samples = svi.posterior_samples(KEY, svi.init(KEY, *args), 3, *args)
    assert {draws.shape[:2] for draws in samples.values()} == {(1, 3)}


@pytest.mark.slow
def test_update_distinguishes_equal_static_arguments_of_different_types():
    def model(y, flag):
        model_of(lambda mean, y: mean + (0.0 if flag is True else 3.0))(y)

    svi = private(model, guide_mean)
    state = svi.init(KEY, Y, True)
    one, other = (flat(step_of(svi, state, Y, flag)) for flag in (True, 1))
    assert abs(one - other).max() > 1


NUMBERS_ONLY = r"args\[1\] must be an array of numbers or booleans.*"


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (np.array(["a"] * RECORDS), NUMBERS_ONLY + "<U1"),
        (Y.astype(object), NUMBERS_ONLY + r"dtype\('O'\)"),
        (pd.Series(["a"] * RECORDS), r"args\[1\] must be real numbers, got values of dtype"),
        (
            pd.Series(pd.date_range("2000", periods=RECORDS)),
            r"args\[1\] must be real numbers, got values of dtype datetime64",
        ),
        (
            pd.DataFrame({"a": Y, "b": ["c"] * RECORDS}),
            r"args\[1\] must be real numbers, got column 'b' of dtype",
        ),
        (np.ma.masked_less(Y, 0), r"args\[1\] must be an array without a mask"),
    ],
)
def test_init_refuses_arrays_that_hold_no_numbers(column, message):
    with pytest.raises(ValueError, match=message):
        private().init(KEY, X, column)
    with pytest.raises(ValueError, match=r"kwargs\['y'\]" + message.removeprefix(r"args\[1\]")):
        private().init(KEY, X, y=column)


@pytest.mark.slow
def test_update_takes_pandas_data_as_arrays():
    svi = private()
    state = svi.init(KEY, X, Y)
    plain = flat(step_of(svi, state, X, Y))
    frame, series = pd.DataFrame(X, columns=list("abc")), pd.Series(Y)
    np.testing.assert_array_equal(flat(step_of(svi, state, frame, y=series)), plain)
    assert svi.predict(KEY, svi.get_params(state), 3, frame[:4])["y"].shape == (3, 4)
    nullable = pd.Series(Y).convert_dtypes()
    np.testing.assert_array_equal(flat(step_of(svi, state, frame, y=nullable)), plain)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: private(loss=RenyiELBO()), "loss must be Trace_ELBO or TraceMeanField_ELBO"),
        (lambda: private(loss=Trace_ELBO(multi_sample_guide=True)), "loss must be Trace_ELBO"),
        (lambda: private(loss=Trace_ELBO(sum_sites=False)), "loss must be Trace_ELBO"),
        (lambda: private(optim=numpyro.optim.Minimize()), "optim must use gradients alone"),
        (lambda: private().get_params(private().init(KEY, X, Y)), "init must be called first"),
        # numpyro's order of arguments: the model reads the number's shape, or has one too many.
        (lambda: private().run(KEY, 200, X), r"got 200 first.*\*args, num_steps=200\) here"),
        (lambda: private().run(KEY, 200, X, Y), r"got 200 first.*\*args, num_steps=200\) here"),
    ],
)
def test_refusals_of_dpsvi(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.slow
def test_update_checks_arguments_of_a_new_kind():
    def model(y, whole=False):
        model_of(observe=lambda y: Y if whole else y)(y)

    svi = private(model, lambda y, whole=False: guide_mean())
    state = svi.init(KEY, Y)
    svi.update(state, Y)
    with pytest.raises(ValueError, match="site 'y'"):
        svi.update(state, Y, whole=True)
    with pytest.raises(ValueError, match="site 'y'"):
        svi.run(KEY, Y, num_steps=2, whole=True, init_state=state, progress_bar=False)


def test_init_checks_other_parameters_for_the_same_arguments():
    def guide(y):
        numpyro.sample("mean", dist.Normal(jnp.mean(numpyro.param("loc", 0.0)), 1.0))

    svi = private(model_of(), guide)
    svi.init(KEY, Y)
    svi.init(KEY, Y, init_params={"loc": jnp.ones(2)})
    with pytest.raises(ValueError, match="params must be shared by all records, but 'loc'"):
        svi.init(KEY, Y, init_params={"loc": jnp.ones(RECORDS)})
